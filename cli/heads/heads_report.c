/* The page about all heads: columns of scores, cards with places, tokens and positions. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "heads/heads.h"

#include <multihead/render_heads.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { AROUND = 12, AFTER = 4, FEW_PLACES = 3, FEW_TOKENS = 10, NAME_BYTES = MHA_STUDY_NAME_BYTES };

/* Measures of images that places can illustrate. */
static const mha_head_measure of_patches[] = {MHA_MEASURE_PATCH_DISTANCE, MHA_MEASURE_ENTROPY,
                                              MHA_MEASURE_CONFIDENCE};

const mha_head_measure heads_placed[HEADS_PLACED] = {
    MHA_MEASURE_PREVIOUS,  MHA_MEASURE_NEXT,     MHA_MEASURE_SELF,    MHA_MEASURE_DUPLICATE,
    MHA_MEASURE_INDUCTION, MHA_MEASURE_DISTANCE, MHA_MEASURE_ENTROPY, MHA_MEASURE_CONFIDENCE};

typedef struct report {
    const heads_options *options;
    const heads_found *found;
    text_model *model;
    const heads_sources *sources;
    const heads_row *rows;
    const heads_beside *beside; /* NULL: scores only */
    int64_t count, columns;     /* heads; scores */
    int64_t *column_of;         /* [scores] of the study: its column, or -1 */
    mha_tokens **read; /* [texts,2] tokens of rows and of keys, read when a place needs them */
    mha_heads_page page;
} report;

/* ---- columns --------------------------------------------------------------------------------- */

static cli_exit make_column(report *r, int64_t score, mha_heads_column *column)
{
    char name[NAME_BYTES];
    mha_measure_info info = {.kind = MHA_KIND_SHARE};
    if (score < MHA_MEASURES) info = mha_measure_describe((mha_head_measure)score);
    mha_study_score_name(&r->found->of, score, name);
    CLI_TRY(arena_print(&column->name, "%s", name));
    mha_study_score_label(&r->found->of, score, name);
    CLI_TRY(arena_print(&column->label, "%s", name));
    CLI_TRY(arena_print(&column->text, "%s (docs/heads.md)", mha_study_score_text(score)));
    column->unit = info.kind == MHA_KIND_NATS            ? "nats"
                   : score == MHA_MEASURE_PATCH_DISTANCE ? NULL
                   : info.kind == MHA_KIND_TOKENS        ? "tokens"
                                                         : NULL;
    column->share = info.kind == MHA_KIND_SHARE || info.kind == MHA_KIND_PLAIN;
    column->luck = NAN;
    if (r->found->of.corpus && score < MHA_MEASURES) {
        const double luck = mha_head_corpus_luck(r->found->of.corpus, (mha_head_measure)score);
        if (luck != 0) column->luck = luck;
    }
    return CLI_OK;
}

static void make_value(const report *r, const heads_row *row, int64_t score, mha_heads_value *value)
{
    const mha_head_score s = mha_study_score(&r->found->of, row->layer, row->head, score);
    *value = (mha_heads_value){
        .value = s.value, .chance = s.chance, .low = NAN, .high = NAN, .rows = s.rows};
    value->deciles[0] = NAN;
    if (s.rows == 0 || !r->found->of.corpus || score >= MHA_MEASURES) return;
    const mha_head_distribution d = mha_head_corpus_distribution(
        r->found->of.corpus, row->layer, row->head, (mha_head_measure)score);
    if (d.rows == 0) return;
    value->low = d.low;
    value->high = d.high;
    memcpy(value->deciles, d.deciles, sizeof d.deciles);
}

static int64_t column_named(const report *r, const char *name)
{
    for (int64_t c = 0; c < r->page.column_count; c++)
        if (!strcmp(r->page.columns[c].name, name)) return c;
    return -1;
}

/* Whether some head is far from chance and above the permutation null. */
static bool stands_out(const report *r, int64_t column)
{
    for (int64_t h = 0; h < r->count; h++) {
        const mha_heads_value *v = &r->page.values[h * r->columns + column];
        if (v->rows > 0 && v->value > 3 * v->chance && !(v->value <= r->page.columns[column].luck))
            return true;
    }
    return false;
}

/* The first of the names that stands out, or else the first that exists; never the column
 * `other`. */
static int64_t column_to_open(const report *r, const char *const *names, int count, int64_t other)
{
    int64_t first = -1;
    for (int i = 0; i < count; i++) {
        const int64_t column = column_named(r, names[i]);
        if (column < 0 || column == other) continue;
        if (stands_out(r, column)) return column;
        if (first < 0) first = column;
    }
    return first;
}

/* Choose the columns that the page opens with: effects, if there are any, before scores. */
static void choose_axes(report *r)
{
    static const char *const across[] = {"random_induction", "induction", "random_duplicate",
                                         "duplicate",        "previous",  "monotone"};
    static const char *const up[] = {"previous", "sink", "entropy"};
    static const char *const patch_distance[] = {"patch_distance"}, *const local[] = {
                                                                        "patch_local"};
    int64_t x = column_to_open(r, across, 6, -1), y = column_to_open(r, up, 3, x);
    if (r->found->images) x = column_to_open(r, patch_distance, 1, -1);
    if (r->found->images) y = column_to_open(r, local, 1, x);
    if (r->beside && r->beside->column_count > 0) {
        y = x >= 0 ? x : r->columns - 1;
        x = r->beside->x;
    }
    r->page.x = x < 0 ? 0 : x;
    r->page.y = y < 0 ? 0 : y;
}

/* Make the columns of effects, then those of the scores that at least one head has. */
static cli_exit make_columns(report *r)
{
    const int64_t scores = mha_study_score_count(&r->found->of);
    mha_heads_column *columns;
    mha_heads_value *values;
    CLI_TRY(ARENA_ALLOC(scores + HEADS_MOST_BESIDE, &columns));
    CLI_TRY(ARENA_ALLOC(scores, &r->column_of));
    for (int64_t c = 0; r->beside && c < r->beside->column_count; c++)
        columns[r->columns++] = r->beside->columns[c];
    for (int64_t s = 0; s < scores; s++) {
        bool any = false;
        for (int64_t h = 0; h < r->count && !any; h++)
            any = mha_study_score(&r->found->of, r->rows[h].layer, r->rows[h].head, s).rows > 0;
        r->column_of[s] = any ? r->columns : -1;
        if (any) CLI_TRY(make_column(r, s, &columns[r->columns++]));
    }
    CLI_TRY(ARENA_ALLOC(r->count * r->columns, &values));
    for (int64_t h = 0; h < r->count; h++) {
        mha_heads_value first[HEADS_MOST_BESIDE];
        if (r->beside) r->beside->values(r->beside->of, &r->rows[h], first);
        for (int64_t c = 0; r->beside && c < r->beside->column_count; c++)
            values[h * r->columns + c] = first[c];
        for (int64_t s = 0; s < scores; s++)
            if (r->column_of[s] >= 0)
                make_value(r, &r->rows[h], s, &values[h * r->columns + r->column_of[s]]);
    }
    r->page.columns = columns;
    r->page.column_count = r->columns;
    r->page.values = values;
    choose_axes(r);
    return CLI_OK;
}

/* ---- places ---------------------------------------------------------------------------------- */

static cli_exit tokens_of(report *r, int64_t text, const mha_tokens **tokens,
                          const mha_tokens **keys)
{
    mha_tokens **read = &r->read[2 * text];
    if (!read[0])
        CLI_TRY(heads_source_encode(r->options, r->model, &r->sources->items[text], &read[0],
                                    &read[1]));
    *tokens = read[0];
    *keys = read[1];
    return CLI_OK;
}

/* The bytes of the text from one token to the next, including spaces; a special token's name. */
cli_exit heads_report_spelled(const heads_source *source, const mha_tokens *tokens, int64_t i,
                              const char **text)
{
    char *copy;
    int64_t begin = tokens->begin[i];
    const int64_t end = tokens->end[i];
    if (tokens->special[i] || begin < 0 || end < begin || (size_t)end > source->bytes) {
        *text = tokens->labels[i];
        return CLI_OK;
    }
    if (i > 0 && tokens->end[i - 1] >= 0 && tokens->end[i - 1] < begin) begin = tokens->end[i - 1];
    CLI_TRY(arena_text(source->text + begin, (size_t)(end - begin), &copy));
    *text = copy;
    return CLI_OK;
}

/* A patch, and the token with its largest weight. */
static cli_exit show_patches(const mha_tokens *tokens, int64_t row, int64_t key,
                             mha_heads_place *place)
{
    const char **texts;
    CLI_TRY(ARENA_ALLOC(3, &texts));
    texts[0] = tokens->labels[row];
    texts[1] = " → ";
    texts[2] = key >= 0 ? tokens->labels[key] : "";
    place->tokens = texts;
    place->token_count = key >= 0 ? 3 : 1;
    place->query = 0;
    place->key = key >= 0 ? 2 : -1;
    return CLI_OK;
}

/* Tokens of the target up to the row, then those of the source around the key. */
static cli_exit show_pair(const heads_source *source, const mha_tokens *tokens,
                          const mha_tokens *keys, int64_t key, int64_t row, mha_heads_place *place)
{
    const heads_source target = {.text = source->target, .bytes = source->target_bytes};
    const int64_t first = row < AROUND ? 0 : row - AROUND, begin = key < AROUND ? 0 : key - AROUND,
                  end = key + AROUND < keys->count ? key + AROUND + 1 : keys->count;
    int64_t count = 0;
    const char **texts;
    CLI_TRY(ARENA_ALLOC(row - first + end - begin + 2, &texts));
    for (int64_t i = first; i <= row; i++)
        CLI_TRY(heads_report_spelled(&target, tokens, i, &texts[count++]));
    place->query = count - 1;
    texts[count++] = " → ";
    place->key = key < 0 ? -1 : count + key - begin;
    for (int64_t i = begin; i < end; i++)
        CLI_TRY(heads_report_spelled(source, keys, i, &texts[count++]));
    place->tokens = texts;
    place->token_count = count;
    return CLI_OK;
}

/* The tokens from first to end, and a more distant key separately. */
static cli_exit show_tokens(report *r, const mha_head_place *found, int64_t row,
                            mha_heads_place *place)
{
    const heads_source *source = &r->sources->items[found->text];
    const mha_tokens *tokens, *keys;
    CLI_TRY(tokens_of(r, found->text, &tokens, &keys));
    if (r->found->cross) return show_pair(source, tokens, keys, found->key, row, place);
    const int64_t n = tokens->count, key = found->key < n ? found->key : -1;
    if (source->image) return show_patches(tokens, row, key, place);
    int64_t first = row - AROUND, end = row + AFTER + 1, count = 0;
    if (key >= 0 && key < first && row - key < 2 * AROUND) first = key;
    if (key >= end && key - row < 2 * AROUND) end = key + 1;
    if (first < 0) first = 0;
    if (end > n) end = n;
    const char **texts;
    CLI_TRY(ARENA_ALLOC(end - first + 2, &texts));
    place->key = key < 0 ? -1 : key - first;
    if (key >= 0 && key < first) {
        CLI_TRY(heads_report_spelled(source, tokens, key, &texts[count++]));
        texts[count++] = " … ";
        place->key = 0;
    }
    place->query = row - first + count;
    for (int64_t i = first; i < end; i++)
        CLI_TRY(heads_report_spelled(source, tokens, i, &texts[count++]));
    if (key >= end) {
        texts[count++] = " … ";
        place->key = count;
        CLI_TRY(heads_report_spelled(source, tokens, key, &texts[count++]));
    }
    place->tokens = texts;
    place->token_count = count;
    return CLI_OK;
}

void heads_report_where(const heads_source *source, const mha_head_place *place, char *where,
                        size_t size)
{
    if (source->image)
        snprintf(where, size, "%s", source->file);
    else if (source->line > 0)
        snprintf(where, size, "%s, line %" PRId64 ", token %" PRId64,
                 source->file ? source->file : "text", source->line, place->row);
    else
        snprintf(where, size, "%s%stext %" PRId64 ", token %" PRId64,
                 source->file ? source->file : "", source->file ? ", " : "", place->text + 1,
                 place->row);
}

static cli_exit make_place(report *r, int64_t column, const mha_head_place *found,
                           mha_heads_place *place)
{
    const heads_source *source = &r->sources->items[found->text];
    char where[320];
    *place = (mha_heads_place){.column = column, .value = found->value};
    CLI_TRY(show_tokens(r, found, found->row, place));
    heads_report_where(source, found, where, sizeof where);
    return arena_print(&place->where, "%s", where);
}

static cli_exit make_places(report *r, const heads_row *row, mha_heads_card *card)
{
    const bool images = r->found->images;
    const mha_head_measure *placed = images ? of_patches : heads_placed;
    const int count = images ? sizeof of_patches / sizeof *of_patches : HEADS_PLACED;
    mha_heads_place *places;
    if (r->sources->count == 0) return CLI_OK; /* only the results of a state are shown */
    CLI_TRY(ARENA_ALLOC(HEADS_PLACED * FEW_PLACES, &places));
    for (int n = 0; n < count; n++) {
        mha_head_place found[FEW_PLACES];
        const int64_t held = mha_head_corpus_places(r->found->of.corpus, row->layer, row->head,
                                                    placed[n], false, found, FEW_PLACES);
        if (r->column_of[placed[n]] < 0) continue;
        for (int64_t i = 0; i < held && i < FEW_PLACES; i++)
            if (found[i].row >= 0 && found[i].value > 0)
                CLI_TRY(make_place(r, r->column_of[placed[n]], &found[i],
                                   &places[card->place_count++]));
    }
    card->places = places;
    return CLI_OK;
}

/* ---- other parts of a card ------------------------------------------------------------------- */

static cli_exit make_roles(const heads_row *row, mha_heads_card *card)
{
    mha_heads_role *roles;
    CLI_TRY(ARENA_ALLOC(row->role_count, &roles));
    for (int64_t i = 0; i < row->role_count; i++)
        roles[i] = (mha_heads_role){row->roles[i].name, row->roles[i].is.evidence};
    card->role_count = row->role_count;
    card->roles = roles;
    return CLI_OK;
}

static cli_exit make_list(const report *r, const heads_row *row, mha_head_token_list kind,
                          mha_heads_list *list)
{
    heads_token tokens[HEADS_MOST_TOKENS];
    const char **names;
    double *values;
    CLI_TRY(heads_corpus_tokens(r->found, row->layer, row->head, kind, tokens, FEW_TOKENS,
                                &list->count));
    CLI_TRY(ARENA_ALLOC(list->count, &names));
    CLI_TRY(ARENA_ALLOC(list->count, &values));
    for (int64_t i = 0; i < list->count; i++) {
        names[i] = tokens[i].text;
        values[i] =
            tokens[i].found.expected > 0 ? tokens[i].found.mass / tokens[i].found.expected : 0;
    }
    list->names = names;
    list->values = values;
    list->title = kind == MHA_HEAD_READS ? "Reads most from" : "Writes most at";
    list->text =
        kind == MHA_HEAD_READS
            ? "tokens by attention received, except the first token of a text; number: ratio to "
              "uniform attention"
            : "frequent tokens whose rows have the largest norms of weighted values, without the "
              "first token's; number: ratio to the head's mean";
    return CLI_OK;
}

static cli_exit make_lines(const report *r, const heads_row *row, mha_heads_card *card)
{
    mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS];
    mha_heads_line *lines;
    double *x, *entropy, *distance;
    const int64_t count =
        mha_head_corpus_positions(r->found->of.corpus, row->layer, row->head, bins);
    int64_t used = 0;
    CLI_TRY(ARENA_ALLOC(2, &lines));
    CLI_TRY(ARENA_ALLOC(count, &x));
    CLI_TRY(ARENA_ALLOC(count, &entropy));
    CLI_TRY(ARENA_ALLOC(count, &distance));
    for (int64_t i = 0; i < count; i++) {
        if (bins[i].rows == 0) continue;
        x[used] = (double)(bins[i].first + bins[i].last) / 2;
        entropy[used] = bins[i].entropy;
        distance[used++] = bins[i].distance;
    }
    lines[0] = (mha_heads_line){"Entropy by position", "nats", x, entropy, used};
    lines[1] = (mha_heads_line){"Distance by position", "tokens", x, distance, used};
    card->lines = lines;
    card->line_count = used < 2 ? 0 : r->found->cross ? 1 : 2; /* no distance to another text */
    return CLI_OK;
}

static cli_exit make_note(const report *r, const heads_row *row, mha_heads_card *card)
{
    const mha_head_rest rest = mha_head_corpus_rest(r->found->of.corpus, row->layer, row->head);
    char note[256];
    int used = snprintf(note, sizeof note, "%.0f %% of its attention is on the first %stoken",
                        100 * rest.mass, r->found->cross ? "source " : "");
    if (rest.moved_rows > 0)
        used += snprintf(note + used, sizeof note - (size_t)used,
                         ", and %.0f %% of its output comes from that token", 100 * rest.moved);
    snprintf(note + used, sizeof note - (size_t)used, ".");
    return rest.rows == 0 ? CLI_OK : arena_print(&card->note, "%s", note);
}

static cli_exit make_card(report *r, const heads_row *row, mha_heads_card *card)
{
    *card = (mha_heads_card){.layer = row->layer, .head = row->head};
    CLI_TRY(make_roles(row, card));
    if (r->options->model)
        CLI_TRY(arena_print(
            &card->command, "multihead view %s %s --head L%" PRId64 "H%" PRId64 "%s -o view.html",
            r->options->model,
            r->model->encoder ? "\"source\" \"target\"" : heads_argument(r->options), row->layer,
            row->head, r->options->self ? " --self" : ""));
    mha_heads_list *lists;
    CLI_TRY(ARENA_ALLOC(2 + HEADS_MOST_BESIDE, &lists));
    card->lists = lists;
    if (r->beside) CLI_TRY(r->beside->card(r->beside->of, row, lists, card));
    if (r->found->of.corpus && !r->found->images) {
        for (int n = 0; n < 2; n++) {
            mha_heads_list *list = &lists[card->list_count];
            CLI_TRY(make_list(r, row, n ? MHA_HEAD_WRITES : MHA_HEAD_READS, list));
            card->list_count += list->count > 0;
        }
    }
    if (!r->found->of.corpus) return CLI_OK;
    if (!r->found->images) CLI_TRY(make_note(r, row, card));
    if (!r->found->images) CLI_TRY(make_lines(r, row, card));
    return make_places(r, row, card);
}

/* ---- the page -------------------------------------------------------------------------------- */

static mha_status draw(const void *user, const mha_sink *sink)
{
    return mha_render_heads_page(user, sink);
}

/* The best head on the scatter plot's x axis: the largest score, or the effect of the largest
 * magnitude. */
static int64_t first_head(const report *r)
{
    int64_t best = 0;
    for (int64_t h = 1; h < r->count; h++) {
        const mha_heads_value *a = &r->page.values[h * r->columns + r->page.x];
        const mha_heads_value *b = &r->page.values[best * r->columns + r->page.x];
        const bool more = r->beside ? fabs(a->value) > fabs(b->value) : a->value > b->value;
        if (a->rows > 0 && (b->rows == 0 || more)) best = h;
    }
    return best;
}

cli_exit heads_write_page(const heads_options *options, text_model *model,
                          const heads_sources *sources, const heads_found *found,
                          const heads_row *rows, int64_t count, const heads_beside *beside)
{
    report r = {.options = options,
                .found = found,
                .model = model,
                .sources = sources,
                .rows = rows,
                .count = count,
                .beside = beside};
    mha_heads_card *cards;
    char numbers[3][32], title[512];
    CLI_TRY(ARENA_ALLOC(2 * sources->count, &r.read));
    if (count == 0)
        return cli_fail(CLI_BAD_INPUT,
                        "%s: no head matches the selection, so there is no page to write",
                        options->page);
    CLI_TRY(ARENA_ALLOC(count, &cards));
    CLI_TRY(make_columns(&r));
    for (int64_t h = 0; h < count; h++) CLI_TRY(make_card(&r, &rows[h], &cards[h]));
    snprintf(numbers[0], sizeof numbers[0], "%" PRId64, found->of.text_count);
    snprintf(numbers[1], sizeof numbers[1], "%" PRId64, found->of.token_count);
    snprintf(numbers[2], sizeof numbers[2], "%" PRId64 " x %" PRId64 " tokens, %" PRId64 " times",
             found->of.random_count, found->of.plan ? found->of.plan->how.block : 0,
             found->of.plan ? found->of.plan->how.repeats : 0);
    const mha_fact fifth = model->encoder ? (mha_fact){"attention", heads_attention(found)}
                                          : (mha_fact){"repeated random tokens", numbers[2]};
    const mha_fact facts[] = {{"model", model->name},
                              {"kind", model->architecture},
                              {found->images ? "images" : "texts", numbers[0]},
                              {found->cross ? "source tokens" : "tokens", numbers[1]},
                              fifth,
                              {"targets written by the model", numbers[2]}};
    if (model->encoder) snprintf(numbers[2], sizeof numbers[2], "%" PRId64, found->made);
    char of[48] = "";
    if (count < found->count) snprintf(of, sizeof of, "%" PRId64 " of ", count);
    snprintf(title, sizeof title, "What %sthe %" PRId64 " heads of %s do", of, found->count,
             model->name);
    r.page.struct_size = sizeof r.page;
    r.page.title = title;
    r.page.producer = "multihead " CLI_VERSION;
    r.page.facts = facts;
    r.page.fact_count = model->encoder               ? found->made > 0 ? 6 : 5
                        : found->of.random_count > 0 ? 5
                        : found->of.texts            ? 4
                                                     : 2;
    r.page.heads = cards;
    r.page.head_count = count;
    r.page.first_head = first_head(&r);
    CLI_TRY(cli_check(files_draw(options->page, draw, &r.page)));
    cli_note(options->quiet || !strcmp(options->page, "-"),
             "wrote %s: %" PRId64 " heads, %" PRId64 " scores", options->page, count, r.columns);
    return CLI_OK;
}
