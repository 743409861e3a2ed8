/* The effects of ablation as a table, as JSON, and for the page and arrays. */
#include "ablate/ablate.h"
#include "common/arena.h"
#include "common/files.h"
#include "common/table.h"
#include "common/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_WIDTH = 9,
    PAIR_WIDTH = 16,
    CELL_WIDTH = 29,
    NAME_BYTES = 96,
    LINE_BYTES = 512,
    SEED = 2,
    TOP = 10
};

/* ---- numbers --------------------------------------------------------------------------------- */

static mha_effect_interval interval_of(const ablate_effects *e, const double *values, int64_t count)
{
    mha_effect_interval x = {NAN, NAN, NAN, 0};
    const mha_status status =
        mha_effect_bootstrap(e->model->context, values, count, 1, 0, SEED, &x);
    if (status == MHA_ERR_NOMEM) *e->failed = status;
    return status == MHA_OK ? x : (mha_effect_interval){NAN, NAN, NAN, 0};
}

cli_exit ablate_told(const ablate_effects *e)
{
    return cli_check(*e->failed);
}

static const effect_set *set_of(const ablate_effects *e, int m)
{
    return &e->sets[e->measures[m].set];
}

/* Add row `row` of a measure, times factor, text by text. numbers: [.., texts, measures]. */
static void add_row(const ablate_effects *e, int m, const double *numbers, int64_t row,
                    double factor, double *to)
{
    const effect_set *set = set_of(e, m);
    const int64_t texts = set->data.texts, measures = set->data.measures;
    for (int64_t i = 0; i < texts; i++)
        to[i] += factor * numbers[(row * texts + i) * measures + e->measures[m].index];
}

/* The quantities reported per measure: the measure of the whole model (row -1), the effect of a
 * chosen head or of a pair, the interaction of a pair, the estimate or the direct effect of a
 * head. */
typedef enum quantity { WHOLE, SINGLE, BOTH, INTERACTION, ESTIMATE, DIRECT } quantity;

static mha_effect_interval interval_for(const ablate_effects *e, int m, quantity what, int64_t row)
{
    const effect_set *set = set_of(e, m);
    double *x = e->row;
    if ((what == ESTIMATE && !set->estimates) || (what == DIRECT && !set->direct))
        return (mha_effect_interval){NAN, NAN, NAN, 0};
    for (int64_t i = 0; i < set->data.texts; i++) x[i] = 0;
    switch (what) {
    case WHOLE: add_row(e, m, set->whole, 0, 1, x); break;
    case SINGLE: add_row(e, m, set->single, row, 1, x); break;
    case ESTIMATE: add_row(e, m, set->estimates, row, 1, x); break;
    case DIRECT: add_row(e, m, set->direct, row, 1, x); break;
    case BOTH:
    case INTERACTION: add_row(e, m, set->without, row, 1, x);
    }
    if (what == SINGLE || what == BOTH) add_row(e, m, set->whole, 0, -1, x);
    if (what == INTERACTION) { /* (both - whole) - (a - whole) - (b - whole) */
        add_row(e, m, set->single, e->pairs[2 * row], -1, x);
        add_row(e, m, set->single, e->pairs[2 * row + 1], -1, x);
        add_row(e, m, set->whole, 0, 1, x);
    }
    return interval_of(e, x, set->data.texts);
}

/* ---- the table ------------------------------------------------------------------------------- */

static void put_cell(table *t, mha_effect_interval x, bool change)
{
    if (isnan(x.mean))
        table_text(t, "-");
    else if (isnan(x.low))
        table_text(t, change ? "%+.4f" : "%.4f", x.mean);
    else
        table_text(t, change ? "%+.4f (%+.4f, %+.4f)" : "%.4f (%.4f, %.4f)", x.mean, x.low, x.high);
}

/* A table of intervals after a first column. */
enum { MOST_COLUMNS = 1 + EFFECT_MEASURES };
typedef struct interval_table {
    table of;
    table_column columns[MOST_COLUMNS];
    int count;
} interval_table;

static void begin_table(const ablate_effects *e, interval_table *t, const char *first, int width)
{
    const mha_terminal terminal = screen_of(&e->options->heads.screen);
    *t = (interval_table){.of = {.limit = terminal.columns, .ascii = terminal.ascii},
                          .columns = {{.heading = first, .width = -width}},
                          .count = 1};
    t->of.columns = t->columns;
    cli_print("\n");
}

static void add_column(interval_table *t, const char *heading)
{
    t->columns[t->count++] = (table_column){.heading = heading, .width = CELL_WIDTH};
}

static void name_of(const ablate_effects *e, int64_t head, char *name, size_t size)
{
    snprintf(name, size, "L%" PRId64 "H%" PRId64, head / e->model->heads, head % e->model->heads);
}

static void put_name(const ablate_effects *e, int64_t head, table *t)
{
    table_text(t, "L%" PRId64 "H%" PRId64, head / e->model->heads, head % e->model->heads);
}

/* A value and the index of its row, to sort rows by absolute value. */
typedef struct ranked {
    int64_t row;
    mha_effect_interval found;
} ranked;

static int by_size(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    const double p = fabs(x->found.mean), q = fabs(y->found.mean);
    if (p > q || (isnan(q) && !isnan(p))) return -1;
    if (q > p || (isnan(p) && !isnan(q))) return 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Print heads by the size of their effect on the first of these measures. */
static cli_exit print_heads(const ablate_effects *e, int first, int end)
{
    const size_t mark = arena_mark();
    interval_table t;
    ranked *heads;
    CLI_TRY(ARENA_ALLOC(e->chosen_count + 1, &heads));
    for (int64_t k = 0; k < e->chosen_count; k++)
        heads[k] = (ranked){k, interval_for(e, first, SINGLE, k)};
    qsort(heads, (size_t)e->chosen_count, sizeof *heads, by_size);
    begin_table(e, &t, "without", HEAD_WIDTH);
    for (int m = first; m < end; m++) add_column(&t, e->measures[m].name);
    table_head(&t.of, t.count);
    table_text(&t.of, "(none)");
    for (int m = first; m < end; m++) put_cell(&t.of, interval_for(e, m, WHOLE, 0), false);
    table_end(&t.of);
    for (int64_t k = 0; k < e->chosen_count; k++) {
        put_name(e, e->chosen[heads[k].row], &t.of);
        put_cell(&t.of, heads[k].found, true);
        for (int m = first + 1; m < end; m++)
            put_cell(&t.of, interval_for(e, m, SINGLE, heads[k].row), true);
        table_end(&t.of);
    }
    arena_release(mark);
    return CLI_OK;
}

/* Print the pairs with the largest interaction. */
static cli_exit print_pairs(const ablate_effects *e, int m)
{
    const size_t mark = arena_mark();
    interval_table t;
    ranked *all;
    if (e->pair_count == 0) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(e->pair_count, &all));
    for (int64_t p = 0; p < e->pair_count; p++)
        all[p] = (ranked){p, interval_for(e, m, INTERACTION, p)};
    qsort(all, (size_t)e->pair_count, sizeof *all, by_size);
    begin_table(e, &t, "without both", PAIR_WIDTH);
    add_column(&t, e->measures[m].name);
    add_column(&t, "interaction");
    table_head(&t.of, t.count);
    for (int64_t p = 0; p < e->pair_count && p < TOP; p++) {
        char a[NAME_BYTES], b[NAME_BYTES];
        name_of(e, e->chosen[e->pairs[2 * all[p].row]], a, sizeof a);
        name_of(e, e->chosen[e->pairs[2 * all[p].row + 1]], b, sizeof b);
        table_text(&t.of, "%s %s", a, b);
        put_cell(&t.of, interval_for(e, m, BOTH, all[p].row), true);
        put_cell(&t.of, all[p].found, true);
        table_end(&t.of);
    }
    arena_release(mark);
    return CLI_OK;
}

/* Print the heads with the largest values of [L H, prompts]. */
static cli_exit print_patched(const ablate_effects *e, const double *values, const char *title)
{
    interval_table t;
    const int64_t all = e->found->of.layers * e->model->heads;
    const int64_t prompts = e->sets[2].data.texts;
    const size_t mark = arena_mark();
    ranked *heads;
    if (!values) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(all, &heads));
    for (int64_t k = 0; k < all; k++)
        heads[k] = (ranked){k, interval_of(e, values + k * prompts, prompts)};
    qsort(heads, (size_t)all, sizeof *heads, by_size);
    begin_table(e, &t, "patched", HEAD_WIDTH);
    add_column(&t, title);
    table_head(&t.of, t.count);
    for (int64_t k = 0; k < all && k < TOP && !isnan(heads[k].found.mean); k++) {
        put_name(e, heads[k].row, &t.of);
        put_cell(&t.of, heads[k].found, true);
        table_end(&t.of);
    }
    arena_release(mark);
    return CLI_OK;
}

static void print_title(const ablate_effects *e, int64_t width)
{
    char text[LINE_BYTES];
    snprintf(
        text, sizeof text,
        "%s ablation: change of each measure when a head is ablated; mean over texts and 95 %% "
        "confidence interval",
        mha_ablation_name(e->kind));
    cli_print_wrapped("", text, width);
    for (int m = 0; m < e->measure_count; m++) {
        const int64_t texts = interval_for(e, m, WHOLE, 0).texts;
        snprintf(text, sizeof text, "%s: %s; %" PRId64 " text%s", e->measures[m].name,
                 e->measures[m].text, texts, words_s(texts));
        cli_print_wrapped("  ", text, width);
    }
}

cli_exit ablate_print(const ablate_effects *e)
{
    const int64_t width = screen_of(&e->options->heads.screen).columns;
    const int64_t room = (width - HEAD_WIDTH) / CELL_WIDTH;
    const int columns = room < 1 ? 1 : room > EFFECT_MEASURES ? EFFECT_MEASURES : (int)room;
    print_title(e, width);
    for (int m = 0; m < e->measure_count; m += columns) {
        const int end = m + columns < e->measure_count ? m + columns : e->measure_count;
        CLI_TRY(print_heads(e, m, end));
    }
    for (int m = 0; m < e->measure_count; m++) CLI_TRY(print_pairs(e, m));
    CLI_TRY(print_patched(e, e->patched, "restored share of task"));
    return print_patched(e, e->paths, "change of task by paths");
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_interval(mha_json *json, const char *name, mha_effect_interval x)
{
    static const mha_json_field fields[] = {MHA_JSON_FIELD(NUMBER, mha_effect_interval, mean),
                                            MHA_JSON_FIELD(NUMBER, mha_effect_interval, low),
                                            MHA_JSON_FIELD(NUMBER, mha_effect_interval, high),
                                            MHA_JSON_FIELD(INTEGER, mha_effect_interval, texts),
                                            {0}};
    if (x.texts == 0) {
        mha_json_null(json, name);
        return;
    }
    mha_json_struct(json, name, fields, &x);
}

static void put_measures(mha_json *json, const char *name, const ablate_effects *e, quantity what,
                         int64_t row)
{
    mha_json_line(json, 7);
    mha_json_object(json, name);
    for (int m = 0; m < e->measure_count; m++)
        put_interval(json, e->measures[m].name, interval_for(e, m, what, row));
    mha_json_end(json);
}

static void json_name(mha_json *json, const char *member, const ablate_effects *e, int64_t head)
{
    char name[NAME_BYTES];
    name_of(e, head, name, sizeof name);
    mha_json_text(json, member, name);
}

static void put_head(mha_json *json, const ablate_effects *e, int64_t head)
{
    const int64_t prompts = e->sets[2].data.texts;
    mha_json_line(json, 6);
    mha_json_object(json, NULL);
    json_name(json, "head", e, head);
    mha_json_integer(json, "layer", head / e->model->heads);
    mha_json_integer(json, "number", head % e->model->heads);
    put_measures(json, "estimate", e, ESTIMATE, head);
    put_measures(json, "direct", e, DIRECT, head);
    for (int64_t k = 0; k < e->chosen_count; k++)
        if (e->chosen[k] == head) put_measures(json, "effect", e, SINGLE, k);
    mha_json_lines(json, 7);
    if (e->patched)
        put_interval(json, "restored", interval_of(e, e->patched + head * prompts, prompts));
    if (e->paths) put_interval(json, "paths", interval_of(e, e->paths + head * prompts, prompts));
    mha_json_lines(json, -1);
    mha_json_end(json);
}

static void put_pairs(mha_json *json, const ablate_effects *e)
{
    mha_json_line(json, 4);
    mha_json_array(json, "pairs");
    for (int64_t p = 0; p < e->pair_count; p++) {
        mha_json_line(json, 6);
        mha_json_object(json, NULL);
        mha_json_array(json, "heads");
        json_name(json, NULL, e, e->chosen[e->pairs[2 * p]]);
        json_name(json, NULL, e, e->chosen[e->pairs[2 * p + 1]]);
        mha_json_end(json);
        put_measures(json, "effect", e, BOTH, p);
        put_measures(json, "interaction", e, INTERACTION, p);
        mha_json_end(json);
    }
    mha_json_end(json);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const ablate_effects *e = user;
    mha_json json = {.sink = sink};
    heads_json_begin(&json, "multihead-ablate", e->found, e->found->count);
    mha_json_text(&json, "ablation", mha_ablation_name(e->kind));
    mha_json_object(&json, "measures");
    for (int m = 0; m < e->measure_count; m++) {
        mha_json_line(&json, 4);
        mha_json_object(&json, e->measures[m].name);
        mha_json_text(&json, "definition", e->measures[m].text);
        put_interval(&json, "whole", interval_for(e, m, WHOLE, 0));
        mha_json_end(&json);
    }
    mha_json_end(&json);
    if (e->paths) mha_json_text(&json, "paths_to", e->paths_to);
    mha_json_array(&json, "heads");
    for (int64_t l = 0; l < e->found->of.layers; l++)
        for (int64_t h = 0; h < e->found->of.heads[l]; h++)
            put_head(&json, e, l * e->model->heads + h);
    mha_json_end(&json);
    put_pairs(&json, e);
    mha_json_end(&json);
    return *e->failed ? *e->failed : mha_json_finish(&json);
}

cli_exit ablate_write_json(const ablate_effects *e)
{
    return cli_check(files_draw("-", draw_json, e));
}

/* ---- the page ------------------------------------------------------------------------------- */

/* Whether a measure has estimates: its set must be large enough for a gradient. */
static bool has(const ablate_effects *e, int m, quantity what)
{
    return what == ESTIMATE ? set_of(e, m)->estimates != NULL : e->chosen_count > 0;
}

static const quantity of_page[2] = {ESTIMATE, SINGLE};

static cli_exit make_columns(const ablate_effects *e, heads_beside *beside)
{
    for (int m = 0; m < e->measure_count; m++)
        for (int i = 0; i < 2; i++) {
            mha_heads_column *column = &beside->columns[beside->column_count];
            const bool exact = of_page[i] == SINGLE;
            if (!has(e, m, of_page[i])) continue;
            *column = (mha_heads_column){.luck = NAN};
            CLI_TRY(arena_print(&column->name, "%s_%s", exact ? "effect" : "estimate",
                                e->measures[m].name));
            CLI_TRY(arena_print(&column->text,
                                "change by %s ablation of the head in: %s; %s, mean over %" PRId64
                                " texts (docs/ablation.md)",
                                mha_ablation_name(e->kind), e->measures[m].text,
                                exact ? "measured"
                                      : "estimated by a gradient, to select heads to measure",
                                set_of(e, m)->data.texts));
            CLI_TRY(arena_print(&column->label, "%s on %s", exact ? "effect" : "estimated effect",
                                e->measures[m].label));
            beside->column_count++;
        }
    return CLI_OK;
}

/* Each row is a text; a head that was not measured has no rows. */
static void take_values(const void *of, const heads_row *row,
                        mha_heads_value values[HEADS_MOST_BESIDE])
{
    const ablate_effects *e = of;
    const int64_t head = row->layer * e->model->heads + row->head;
    int64_t place = 0, used = 0;
    while (place < e->chosen_count && e->chosen[place] != head) place++;
    for (int m = 0; m < e->measure_count; m++)
        for (int i = 0; i < 2; i++) {
            if (!has(e, m, of_page[i])) continue;
            mha_effect_interval x = {NAN, NAN, NAN, 0};
            if (of_page[i] == ESTIMATE)
                x = interval_for(e, m, ESTIMATE, head);
            else if (place < e->chosen_count)
                x = interval_for(e, m, SINGLE, place);
            values[used++] = (mha_heads_value){.value = isnan(x.mean) ? 0 : x.mean,
                                               .chance = NAN,
                                               .low = x.low,
                                               .high = x.high,
                                               .rows = isnan(x.mean) ? 0 : x.texts,
                                               .deciles = {NAN}};
        }
}

static cli_exit list_pairs(const ablate_effects *e, int m, int64_t head, mha_heads_list *list)
{
    ranked *all;
    const char **names;
    double *values;
    CLI_TRY(ARENA_ALLOC(e->pair_count + 1, &all));
    for (int64_t p = 0; p < e->pair_count; p++)
        if (e->chosen[e->pairs[2 * p]] == head || e->chosen[e->pairs[2 * p + 1]] == head)
            all[list->count++] = (ranked){p, interval_for(e, m, INTERACTION, p)};
    qsort(all, (size_t)list->count, sizeof *all, by_size);
    if (list->count > TOP) list->count = TOP;
    CLI_TRY(ARENA_ALLOC(list->count + 1, &names));
    CLI_TRY(ARENA_ALLOC(list->count + 1, &values));
    for (int64_t i = 0; i < list->count; i++) {
        const int64_t *pair = &e->pairs[2 * all[i].row];
        char name[NAME_BYTES];
        name_of(e, e->chosen[pair[e->chosen[pair[0]] == head]], name, sizeof name);
        CLI_TRY(arena_print(&names[i], "%s", name));
        values[i] = all[i].found.mean;
    }
    CLI_TRY(arena_print(&list->title, "Pairs: interaction in %s", e->measures[m].label));
    list->text = "effect of ablating both heads minus the sum of the effects of ablating each "
                 "(docs/ablation.md)";
    list->names = names;
    list->values = values;
    return CLI_OK;
}

static cli_exit make_card(const void *of, const heads_row *row,
                          mha_heads_list lists[HEADS_MOST_BESIDE], mha_heads_card *card)
{
    const ablate_effects *e = of;
    for (int m = 0; m < e->measure_count; m++) {
        mha_heads_list *list = &lists[card->list_count];
        *list = (mha_heads_list){0};
        CLI_TRY(list_pairs(e, m, row->layer * e->model->heads + row->head, list));
        card->list_count += list->count > 0;
    }
    return CLI_OK;
}

cli_exit ablate_beside(const ablate_effects *e, heads_beside *beside)
{
    *beside = (heads_beside){.values = take_values, .card = make_card, .of = e};
    CLI_TRY(make_columns(e, beside));
    beside->x = beside->column_count > 1; /* the effect, which follows its estimate */
    return CLI_OK;
}
