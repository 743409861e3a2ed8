/* What heads read and write by their weights alone: copying, matching, singular values, and tokens at
 * both ends of the leading directions (circuits.h, docs/circuits.md). */
#include "common/arena.h"
#include "common/progress.h"
#include "heads/heads.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#ifdef CLI_HAS_CIRCUITS
#include <multihead/circuits.h>
#endif

enum { DIRECTIONS = 2, TOKENS = 8, ENDS = 2, SIDES = 4, VALUES = 8 };
enum { LINE_BYTES = 1024, END_BYTES = LINE_BYTES / 2 - 64 };

/* Of the pairs of sides, the first two are of the QK circuit. */
static const char *const side_names[SIDES] = {"queries", "keys", "reads", "writes"};

struct heads_circuits {
    int64_t first, last; /* offsets of keys; 0, 0 without rotary positions */
    int64_t directions, tokens, heads, size;
    double *values[2];          /* [layers, heads, size] of QK and OV */
    double *copying, *matching; /* [layers, heads] */
    int64_t *row_of;            /* [layers, heads] in what follows; -1: not chosen */
    int32_t *ids[SIDES];        /* [rows, directions, 2, tokens] */
    float *scores[SIDES];
};

#ifdef CLI_HAS_CIRCUITS
typedef struct circuits_work {
    const heads_options *options;
    const heads_found *found;
    heads_circuits *circuits;
    progress shown;
    uint8_t *chosen;       /* [layers, heads] */
    float *vectors[SIDES]; /* [layers, heads, directions, width] */
    int64_t count;         /* of rows */
    const char *what;
} circuits_work;

static mha_status show_progress(int64_t done, int64_t total, void *user)
{
    circuits_work *w = user;
    progress_show(&w->shown, (double)done / (double)total, "%s", w->what);
    return MHA_OK;
}

static cli_exit decompose(circuits_work *w)
{
    heads_circuits *c = w->circuits;
    const mha_circuits_desc desc = {.struct_size = sizeof desc,
                                    .flags = MHA_CIRCUITS_NORMED_TOKENS,
                                    .first_offset = c->first,
                                    .last_offset = c->last,
                                    .directions = c->directions,
                                    .heads = w->chosen,
                                    .progress = show_progress,
                                    .progress_user = w};
    const mha_circuits out = {.struct_size = sizeof out,
                              .qk_values = c->values[0],
                              .ov_values = c->values[1],
                              .queries = w->vectors[0],
                              .keys = w->vectors[1],
                              .reads = w->vectors[2],
                              .writes = w->vectors[3],
                              .copying = c->copying,
                              .matching = c->matching};
    w->what = "circuits of heads";
    return cli_check(HEADS, mha_transformer_circuits(w->found->model->context, w->found->model->net,
                                                     &desc, &out));
}

/* The chosen heads' vectors side by side, in place: places only move down. */
static void gather(circuits_work *w, float *vectors)
{
    const int64_t size = w->circuits->directions * w->found->model->desc.embed_dim;
    for (int64_t i = 0; i < w->found->layers * w->circuits->heads; i++)
        if (w->circuits->row_of[i] >= 0)
            memmove(vectors + w->circuits->row_of[i] * size, vectors + i * size,
                    (size_t)size * sizeof *vectors);
}

static cli_exit list_tokens(circuits_work *w, int side)
{
    heads_circuits *c = w->circuits;
    const int64_t listed = w->count * c->directions * ENDS * c->tokens;
    const mha_direction_desc desc = {.struct_size = sizeof desc,
                                     .flags = MHA_CIRCUITS_NORMED_TOKENS,
                                     .side = side == 3 ? MHA_SIDE_UNEMBEDDING : MHA_SIDE_EMBEDDING,
                                     .count = w->count * c->directions,
                                     .most = c->tokens,
                                     .progress = show_progress,
                                     .progress_user = w};
    CLI_TRY(ARENA_ALLOC(HEADS, listed, &c->ids[side]));
    CLI_TRY(ARENA_ALLOC(HEADS, listed, &c->scores[side]));
    gather(w, w->vectors[side]);
    w->what = "tokens at the ends of directions";
    return cli_check(HEADS,
                     mha_direction_tokens(w->found->model->context, w->found->model->net, &desc,
                                          w->vectors[side], c->ids[side], c->scores[side]));
}

static cli_exit work(circuits_work *w, const heads_row *rows)
{
    heads_circuits *c = w->circuits;
    const int64_t all = w->found->layers * c->heads, width = w->found->model->desc.embed_dim;
    CLI_TRY(ARENA_ALLOC(HEADS, all, &w->chosen));
    CLI_TRY(ARENA_ALLOC(HEADS, all, &c->row_of));
    CLI_TRY(ARENA_ALLOC(HEADS, all, &c->copying));
    CLI_TRY(ARENA_ALLOC(HEADS, all, &c->matching));
    for (int i = 0; i < 2; i++) CLI_TRY(ARENA_ALLOC(HEADS, all * c->size, &c->values[i]));
    for (int side = 0; side < SIDES; side++)
        CLI_TRY(ARENA_ALLOC(HEADS, all * c->directions * width, &w->vectors[side]));
    for (int64_t i = 0; i < w->count; i++) w->chosen[rows[i].layer * c->heads + rows[i].head] = 1;
    for (int64_t i = 0, next = 0; i < all; i++) c->row_of[i] = w->chosen[i] ? next++ : -1;
    CLI_TRY(decompose(w));
    for (int side = 0; side < SIDES; side++) CLI_TRY(list_tokens(w, side));
    for (int side = 0; side < SIDES; side++) arena_drop(w->vectors[side]);
    return CLI_OK;
}
#endif

cli_exit heads_circuits_make(const heads_options *options, heads_found *found,
                             const heads_row *rows, int64_t count)
{
#ifdef CLI_HAS_CIRCUITS
    const mha_transformer_desc *d = &found->model->desc;
    const int64_t rank = d->head_dim < d->embed_dim ? d->head_dim : d->embed_dim;
    heads_circuits *c;
    if (found->layers * d->num_heads > INT32_MAX / (DIRECTIONS * d->embed_dim))
        return cli_fail(CLI_UNSUPPORTED, HEADS, "--circuits: too many heads of this width");
    CLI_TRY(ARENA_ALLOC(HEADS, 1, &c));
    c->heads = d->num_heads, c->size = d->head_dim;
    c->directions = rank < DIRECTIONS ? rank : DIRECTIONS;
    c->tokens = d->vocab_size < TOKENS ? d->vocab_size : TOKENS;
    if (d->positions == MHA_ENCODING_ROTARY)
        c->first = options->offsets[0], c->last = options->offsets[1];
    circuits_work w = {.options = options,
                       .found = found,
                       .circuits = c,
                       .count = count,
                       .shown = progress_begin(options->quiet)};
    const cli_exit status = work(&w, rows);
    progress_clear(&w.shown);
    found->circuits = c;
    return status;
#else
    (void)options, (void)found, (void)rows, (void)count;
    return cli_fail(CLI_UNSUPPORTED, HEADS,
                    "--circuits: this program was built without LAPACK (cmake -DMHA_CIRCUITS=ON)");
#endif
}

cli_exit heads_circuits_offsets(const char *text, int64_t offsets[2])
{
    long long first = 0, last = 0;
    int end = 0;
    const int got = sscanf(text, "%9lld%n-%9lld%n", &first, &end, &last, &end);
    if (got == 1) last = first;
    if (got < 1 || text[end] || first < 0 || last < first || last - first >= 1 << 20)
        return cli_fail(CLI_USAGE, HEADS,
                        "--offset %s: expected a number of tokens, or two: 1, 0-63", text);
    offsets[0] = first, offsets[1] = last;
    return CLI_OK;
}

/* ---- told ------------------------------------------------------------------------------------ */

static int64_t at(const heads_circuits *c, const heads_row *row)
{
    return row->layer * c->heads + row->head;
}

static int64_t place(const heads_circuits *c, const heads_row *row, int64_t direction, int end)
{
    return ((c->row_of[at(c, row)] * c->directions + direction) * ENDS + end) * c->tokens;
}

/* "cat dog ...": the first tokens of an end. */
static cli_exit spell(const heads_found *found, int side, int64_t first, int64_t count, char *line,
                      size_t size)
{
    const heads_circuits *c = found->circuits;
    size_t used = 0;
    line[0] = '\0';
    for (int64_t i = 0; i < count && i < c->tokens && used < size; i++) {
        char *text;
        CLI_TRY(text_model_token(found->model, c->ids[side][first + i], &text));
        used += (size_t)snprintf(line + used, size - used, "%s%s", i ? " " : "", text);
    }
    return CLI_OK;
}

static cli_exit print_row(const heads_found *found, const heads_row *row, int64_t width, bool ascii)
{
    const heads_circuits *c = found->circuits;
    char name[48], line[LINE_BYTES], ends[2][END_BYTES];
    snprintf(name, sizeof name, "L%" PRId64 "H%" PRId64, row->layer, row->head);
    const int used = cli_print("%-7s%5.2f %5.2f %7.2f %7.2f ", name, c->copying[at(c, row)],
                               c->matching[at(c, row)], c->values[0][at(c, row) * c->size],
                               c->values[1][at(c, row) * c->size]);
    for (int side = 2; side < SIDES; side++)
        CLI_TRY(spell(found, side, place(c, row, 0, 0), 4, ends[side - 2], sizeof ends[0]));
    snprintf(line, sizeof line, "%s %s %s", ends[0], ascii ? "->" : "→", ends[1]);
    cli_print_cut(line, width - used, ascii);
    cli_print("\n");
    return CLI_OK;
}

/* Each direction of a circuit in a line for each end. */
static cli_exit print_details(const heads_found *found, const heads_row *row, int64_t width)
{
    static const char *const verbs[2][2] = {{"queries", "find keys"}, {"reads", "writes"}};
    const heads_circuits *c = found->circuits;
    char line[LINE_BYTES], ends[2][END_BYTES];
    for (int circuit = 0; circuit < 2; circuit++)
        for (int64_t k = 0; k < c->directions; k++)
            for (int end = 0; end < ENDS; end++) {
                for (int i = 0; i < 2; i++)
                    CLI_TRY(spell(found, 2 * circuit + i, place(c, row, k, end), TOKENS, ends[i],
                                  sizeof ends[0]));
                snprintf(line, sizeof line, "%s %.2f%s: %s %s; %s %s", circuit ? "OV" : "QK",
                         c->values[circuit][at(c, row) * c->size + k], end ? ", other end" : "",
                         verbs[circuit][0], ends[0], verbs[circuit][1], ends[1]);
                cli_print_wrapped("  ", line, width);
            }
    return CLI_OK;
}

cli_exit heads_circuits_print(const heads_options *options, const heads_found *found,
                              const heads_row *rows, int64_t count)
{
    const heads_circuits *c = found->circuits;
    const mha_terminal terminal = screen_of(&options->screen);
    cli_print("\nCircuits, from the weights");
    if (found->model->desc.positions == MHA_ENCODING_ROTARY)
        cli_print(c->first == c->last ? "; keys %" PRId64 " before their query"
                                      : "; keys %" PRId64 " to %" PRId64
                                        " before their query, averaged",
                  c->first, c->last);
    cli_print("\n\n%-7s%5s %5s %7s %7s %s\n", "head", "copy", "match", "QK", "OV",
              terminal.ascii ? "reads -> writes" : "reads → writes");
    for (int64_t i = 0; i < count; i++) {
        const size_t mark = arena_mark();
        CLI_TRY(print_row(found, &rows[i], terminal.columns, terminal.ascii));
        if (options->details) CLI_TRY(print_details(found, &rows[i], terminal.columns));
        arena_release(mark);
    }
    return CLI_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static cli_exit put_end(json_out *json, const heads_found *found, int side, int64_t first)
{
    const heads_circuits *c = found->circuits;
    for (int64_t i = 0; i < c->tokens; i++) {
        char *text;
        CLI_TRY(text_model_token(found->model, c->ids[side][first + i], &text));
        json_print(json, "%s{\"id\": %" PRId32 ", \"token\": ", i ? ", " : "",
                   c->ids[side][first + i]);
        json_text(json, text);
        json_number(json, (double)c->scores[side][first + i], ", \"value\": ");
        json_print(json, "}");
    }
    return CLI_OK;
}

static cli_exit put_directions(json_out *json, const heads_found *found, const heads_row *row,
                               int circuit)
{
    const heads_circuits *c = found->circuits;
    for (int64_t k = 0; k < c->directions; k++) {
        json_print(json, "%s\n       {", k ? "," : "");
        for (int i = 0; i < 2; i++) {
            const int side = 2 * circuit + i;
            json_print(json, "%s\"%s\": {\"most\": [", i ? ",\n        " : "", side_names[side]);
            CLI_TRY(put_end(json, found, side, place(c, row, k, 0)));
            json_print(json, "],\n         \"least\": [");
            CLI_TRY(put_end(json, found, side, place(c, row, k, 1)));
            json_print(json, "]}");
        }
        json_print(json, "}");
    }
    return CLI_OK;
}

cli_exit heads_circuits_json(json_out *json, const heads_found *found, const heads_row *row)
{
    static const char *const names[2] = {"qk", "ov"};
    const heads_circuits *c = found->circuits;
    json_number(json, c->copying[at(c, row)], ",\n     \"circuits\": {\"copying\": ");
    json_number(json, c->matching[at(c, row)], ", \"matching\": ");
    for (int circuit = 0; circuit < 2; circuit++) {
        json_print(json, ",\n      \"%s\": {\"values\": [", names[circuit]);
        for (int64_t i = 0; i < VALUES && i < c->size; i++)
            json_number(json, c->values[circuit][at(c, row) * c->size + i], i ? ", " : "");
        json_print(json, "], \"directions\": [");
        CLI_TRY(put_directions(json, found, row, circuit));
        json_print(json, "]}");
    }
    json_print(json, "}");
    return CLI_OK;
}

void heads_circuits_json_how(json_out *json, const heads_found *found)
{
    const heads_circuits *c = found->circuits;
    json_print(json, ",\n  \"circuits\": {\"offsets\": [%" PRId64 ", %" PRId64 "]", c->first,
               c->last);
    json_print(json, ", \"normed_tokens\": true}");
}

/* ---- the page -------------------------------------------------------------------------------- */

static cli_exit make_list(const heads_found *found, const heads_row *row, int side,
                          mha_heads_list *list)
{
    static const char *const titles[SIDES] = {"Weights: queries like", "Weights: find keys like",
                                              "Weights: read of", "Weights: write for"};
    static const char *const texts[SIDES] = {
        "tokens along the QK circuit's first direction, query side, without a text",
        "tokens along the QK circuit's first direction, key side, without a text",
        "tokens whose embeddings lie along what the OV circuit reads most strongly",
        "tokens whose logits rise by what the OV circuit then writes"};
    const heads_circuits *c = found->circuits;
    char **names;
    double *values;
    CLI_TRY(ARENA_ALLOC(HEADS, c->tokens, &names));
    CLI_TRY(ARENA_ALLOC(HEADS, c->tokens, &values));
    for (int64_t i = 0; i < c->tokens; i++) {
        CLI_TRY(text_model_token(found->model, c->ids[side][place(c, row, 0, 0) + i], &names[i]));
        values[i] = (double)c->scores[side][place(c, row, 0, 0) + i];
    }
    *list =
        (mha_heads_list){titles[side], texts[side], (const char *const *)names, values, c->tokens};
    return CLI_OK;
}

cli_exit heads_circuits_lists(const heads_found *found, const heads_row *row,
                              mha_heads_list lists[HEADS_CIRCUIT_LISTS])
{
    for (int side = 0; side < SIDES; side++) CLI_TRY(make_list(found, row, side, &lists[side]));
    return CLI_OK;
}

void heads_circuits_columns(mha_heads_column columns[HEADS_CIRCUIT_COLUMNS])
{
    columns[0] = (mha_heads_column){
        .name = "copying",
        .text = "sum of the eigenvalues of the OV circuit from tokens to logits over the sum of "
                "their sizes (Elhage et al. 2021): 1 raises the token that is read, -1 lowers it; "
                "from the weights (docs/circuits.md)",
        .luck = NAN};
    columns[1] = (mha_heads_column){
        .name = "matching",
        .text = "the same of the QK circuit from tokens to tokens: 1 finds keys of the query's "
                "own kind; from the weights (docs/circuits.md)",
        .luck = NAN};
}

/* They rest on no rows of a text; random matrices have about 0. */
void heads_circuits_values(const heads_found *found, const heads_row *row,
                           mha_heads_value values[HEADS_CIRCUIT_COLUMNS])
{
    const heads_circuits *c = found->circuits;
    const double scores[] = {c->copying[at(c, row)], c->matching[at(c, row)]};
    for (int i = 0; i < HEADS_CIRCUIT_COLUMNS; i++)
        values[i] = (mha_heads_value){
            .value = scores[i], .low = NAN, .high = NAN, .rows = 1, .deciles = {NAN}};
}
