/* The results of circuits as a table, as JSON, and for the page and arrays. */
#include "circuits/circuits.h"
#include "common/arena.h"
#include "common/files.h"
#include "common/table.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ENDS = CIRCUITS_ENDS, SIDES = CIRCUITS_SIDES, VALUES = 8 };
enum { LINE_BYTES = 1024, END_BYTES = LINE_BYTES / 2 - 64 };

/* The first two sides belong to the QK circuit, the others to the OV circuit. */
static const char *const side_names[SIDES] = {"queries", "keys", "reads", "writes"};

/* ---- the table ------------------------------------------------------------------------------------ */

static int64_t at(const circuits *c, const heads_row *row)
{
    return row->layer * c->heads + row->head;
}

static int64_t place(const circuits *c, const heads_row *row, int64_t direction, int end)
{
    return ((c->row_of[at(c, row)] * c->directions + direction) * ENDS + end) * c->tokens;
}

/* "cat dog ...": the first tokens at an end of a direction. */
static cli_exit spell(const circuits *c, int side, int64_t first, int64_t count, char *line,
                      size_t size)
{
    size_t used = 0;
    line[0] = '\0';
    for (int64_t i = 0; i < count && i < c->tokens && used < size; i++) {
        char *text;
        CLI_TRY(text_model_token(c->found->model, c->ids[side][first + i], &text));
        used += (size_t)snprintf(line + used, size - used, "%s%s", i ? " " : "", text);
    }
    return CLI_OK;
}

static cli_exit print_row(table *t, const circuits *c, const heads_row *row)
{
    char ends[2][END_BYTES];
    for (int side = 2; side < SIDES; side++)
        CLI_TRY(spell(c, side, place(c, row, 0, 0), 4, ends[side - 2], sizeof ends[0]));
    table_text(t, "L%" PRId64 "H%" PRId64, row->layer, row->head);
    table_number(t, c->copying[at(c, row)]);
    table_number(t, c->matching[at(c, row)]);
    for (int circuit = 0; circuit < 2; circuit++)
        table_number(t, c->values[circuit][at(c, row) * c->size]);
    table_text(t, " %s %s %s", ends[0], t->ascii ? "->" : "→", ends[1]);
    table_end(t);
    return CLI_OK;
}

/* One line for each end of each direction of both circuits. */
static cli_exit print_details(const circuits *c, const heads_row *row, int64_t width)
{
    static const char *const verbs[2][2] = {{"queries", "find keys"}, {"reads", "writes"}};
    char line[LINE_BYTES], ends[2][END_BYTES];
    for (int circuit = 0; circuit < 2; circuit++)
        for (int64_t k = 0; k < c->directions; k++)
            for (int end = 0; end < ENDS; end++) {
                for (int i = 0; i < 2; i++)
                    CLI_TRY(spell(c, 2 * circuit + i, place(c, row, k, end), CIRCUITS_TOKENS,
                                  ends[i], sizeof ends[0]));
                snprintf(line, sizeof line, "%s %.2f%s: %s %s; %s %s", circuit ? "OV" : "QK",
                         c->values[circuit][at(c, row) * c->size + k], end ? ", other end" : "",
                         verbs[circuit][0], ends[0], verbs[circuit][1], ends[1]);
                cli_print_wrapped("  ", line, width);
            }
    return CLI_OK;
}

cli_exit circuits_print(const circuits *c)
{
    const heads_options *o = &c->options->heads;
    const mha_terminal terminal = screen_of(&o->screen);
    char line[LINE_BYTES];
    if (c->decomposed && c->found->model->desc.positions == MHA_ENCODING_ROTARY) {
        snprintf(line, sizeof line,
                 c->first == c->last ? "Keys %" PRId64 " before their query"
                                     : "Keys %" PRId64 " to %" PRId64
                                       " before their query, averaged",
                 c->first, c->last);
        cli_print_wrapped("", line, terminal.columns);
        cli_print("\n");
    }
    const char *ends = terminal.ascii ? " reads -> writes" : " reads → writes";
    const table_column columns[] = {
        {"head", -7, 0, TABLE_PLAIN, {0}}, {"copy", 5, 2, TABLE_PLAIN, {0}},
        {"match", 6, 2, TABLE_PLAIN, {0}}, {"QK", 8, 2, TABLE_PLAIN, {0}},
        {"OV", 8, 2, TABLE_PLAIN, {0}},    {ends, 0, 0, TABLE_PLAIN, {0}}};
    table t = {.columns = columns, .limit = terminal.columns, .ascii = terminal.ascii};
    if (c->decomposed) table_head(&t, sizeof columns / sizeof *columns);
    for (int64_t i = 0; i < c->count; i++) {
        const heads_row *row = &c->rows[i];
        const size_t mark = arena_mark();
        if (c->decomposed)
            CLI_TRY(print_row(&t, c, row));
        else
            cli_print("L%" PRId64 "H%" PRId64 "\n", row->layer, row->head);
        if (c->decomposed && o->details) CLI_TRY(print_details(c, row, terminal.columns));
        if (c->composition[0] && row->layer > 0) {
            circuits_writers_line(c, row, line, sizeof line);
            cli_print_wrapped("  ", line, terminal.columns);
        }
        arena_release(mark);
    }
    return CLI_OK;
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static cli_exit put_end(mha_json *json, const char *name, const circuits *c, int side,
                        int64_t first)
{
    mha_json_array(json, name);
    for (int64_t i = 0; i < c->tokens; i++) {
        char *text;
        CLI_TRY(text_model_token(c->found->model, c->ids[side][first + i], &text));
        mha_json_object(json, NULL);
        mha_json_integer(json, "id", c->ids[side][first + i]);
        mha_json_text(json, "token", text);
        mha_json_number(json, "value", (double)c->scores[side][first + i]);
        mha_json_end(json);
    }
    mha_json_end(json);
    return CLI_OK;
}

static cli_exit put_directions(mha_json *json, const circuits *c, const heads_row *row, int circuit)
{
    mha_json_array(json, "directions");
    for (int64_t k = 0; k < c->directions; k++) {
        mha_json_line(json, 7);
        mha_json_object(json, NULL);
        for (int side = 2 * circuit; side < 2 * circuit + 2; side++) {
            if (side % 2) mha_json_line(json, 8);
            mha_json_object(json, side_names[side]);
            CLI_TRY(put_end(json, "most", c, side, place(c, row, k, 0)));
            mha_json_line(json, 9);
            CLI_TRY(put_end(json, "least", c, side, place(c, row, k, 1)));
            mha_json_end(json);
        }
        mha_json_end(json);
    }
    mha_json_end(json);
    return CLI_OK;
}

static cli_exit put_weights(mha_json *json, const circuits *c, const heads_row *row)
{
    static const char *const names[2] = {"qk", "ov"};
    mha_json_number(json, "copying", c->copying[at(c, row)]);
    mha_json_number(json, "matching", c->matching[at(c, row)]);
    for (int circuit = 0; circuit < 2; circuit++) {
        mha_json_line(json, 6);
        mha_json_object(json, names[circuit]);
        mha_json_numbers(json, "values", c->values[circuit] + at(c, row) * c->size,
                         c->size < VALUES ? c->size : VALUES);
        CLI_TRY(put_directions(json, c, row, circuit));
        mha_json_end(json);
    }
    return CLI_OK;
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const circuits *c = user;
    mha_json json = {.sink = sink};
    heads_json_begin(&json, "multihead-circuits", c->found, c->found->count);
    if (c->decomposed) {
        mha_json_integers(&json, "offsets", (int64_t[]){c->first, c->last}, 2);
        mha_json_lines(&json, -1);
        mha_json_bool(&json, "normed_tokens", true);
        mha_json_lines(&json, 2);
    }
    if (c->composition[0]) mha_json_number(&json, "composition_chance", c->composition_chance);
    mha_json_array(&json, "heads");
    mha_json_lines(&json, 4);
    for (int64_t i = 0; i < c->count; i++) {
        const heads_row *row = &c->rows[i];
        mha_json_object(&json, NULL);
        heads_json_head(&json, row);
        if (c->decomposed && put_weights(&json, c, row) != CLI_OK) return MHA_ERR_CALLBACK;
        if (c->composition[0]) circuits_writers_json(&json, c, row);
        mha_json_end(&json);
    }
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

cli_exit circuits_write_json(const circuits *c)
{
    return cli_check(files_draw("-", draw_json, c));
}

/* ---- the page -------------------------------------------------------------------------------- */

static cli_exit make_list(const circuits *c, const heads_row *row, int side, mha_heads_list *list)
{
    static const char *const titles[SIDES] = {"Weights: queries like", "Weights: find keys like",
                                              "Weights: read of", "Weights: write for"};
    static const char *const texts[SIDES] = {
        "tokens along the QK circuit's first direction, query side, without a text",
        "tokens along the QK circuit's first direction, key side, without a text",
        "tokens whose embeddings lie along the direction that the OV circuit reads most strongly",
        "tokens whose logits rise with the direction that the OV circuit then writes"};
    char **names;
    double *values;
    CLI_TRY(ARENA_ALLOC(c->tokens, &names));
    CLI_TRY(ARENA_ALLOC(c->tokens, &values));
    for (int64_t i = 0; i < c->tokens; i++) {
        CLI_TRY(
            text_model_token(c->found->model, c->ids[side][place(c, row, 0, 0) + i], &names[i]));
        values[i] = (double)c->scores[side][place(c, row, 0, 0) + i];
    }
    *list =
        (mha_heads_list){titles[side], texts[side], (const char *const *)names, values, c->tokens};
    return CLI_OK;
}

static cli_exit make_card(const void *of, const heads_row *row,
                          mha_heads_list lists[HEADS_MOST_BESIDE], mha_heads_card *card)
{
    const circuits *c = of;
    for (int side = 0; c->decomposed && side < SIDES; side++)
        CLI_TRY(make_list(c, row, side, &lists[card->list_count++]));
    return c->composition[0] ? circuits_arrows(c, row, card) : CLI_OK;
}

/* These scores do not come from rows of a text. The baseline of random matrices is about 0. */
static void take_values(const void *of, const heads_row *row,
                        mha_heads_value values[HEADS_MOST_BESIDE])
{
    const circuits *c = of;
    const double scores[] = {c->copying[at(c, row)], c->matching[at(c, row)]};
    for (int i = 0; i < 2; i++)
        values[i] = (mha_heads_value){.value = scores[i],
                                      .low = NAN,
                                      .high = NAN,
                                      .rows = c->row_of[at(c, row)] >= 0,
                                      .deciles = {NAN}};
}

void circuits_beside(const circuits *c, heads_beside *beside)
{
    static const mha_heads_column columns[2] = {
        {.name = "copying",
         .text =
             "sum of the eigenvalues of the OV circuit from tokens to logits over the sum of "
             "their absolute values (Elhage et al. 2021): 1 raises the token read, -1 lowers it; "
             "from the weights (docs/circuits.md)",
         .luck = NAN},
        {.name = "matching",
         .text = "the same for the QK circuit from tokens to tokens: 1 finds keys equal to the "
                 "query's token; from the weights (docs/circuits.md)",
         .luck = NAN}};
    *beside = (heads_beside){.column_count = c->decomposed ? 2 : 0,
                             .values = take_values,
                             .card = make_card,
                             .composition = c->composition[0] ? c->composition : NULL,
                             .composition_chance = c->composition_chance,
                             .of = c};
    memcpy(beside->columns, columns, sizeof columns);
}
