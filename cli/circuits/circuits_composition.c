/* The earlier heads that a head reads: Q-, K- and V-composition of the weights (attribution.h). */
#include "circuits/circuits.h"
#include "common/arena.h"
#include "common/progress.h"

#include <multihead/attribution.h>

#include <inttypes.h>
#include <stdio.h>

enum { FEW_WRITERS = 3 };

/* An earlier head, and the composition score of its output. */
typedef struct writer {
    int64_t layer, head;
    double value;
} writer;

static mha_status show_progress(int64_t done, int64_t total, void *shown)
{
    if (done == 0) progress_restart(shown); /* a step of the preparation takes a different time */
    progress_show(shown, (double)done / (double)total,
                  "composition of heads, %" PRId64 " of %" PRId64 " pairs of layers", done + 1,
                  total);
    return MHA_OK;
}

cli_exit circuits_compose(circuits *c)
{
    const heads_found *found = c->found;
    const int64_t heads = found->model->heads, all = found->of.layers * heads;
    const int64_t shape[] = {found->of.layers, heads, found->of.layers, heads};
    mha_tensor view[HEADS_COMPOSITIONS];
    progress shown = progress_begin(c->options->heads.quiet);
    mha_composition out = {
        .struct_size = sizeof out, .progress = show_progress, .progress_user = &shown};
    const mha_tensor **to[HEADS_COMPOSITIONS] = {&out.q, &out.k, &out.v};
    if (all > INT32_MAX / 4)
        return cli_fail(CLI_UNSUPPORTED,
                        "--composition: the model has too many heads (%" PRId64 ")", all);
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        CLI_TRY(ARENA_ALLOC(all * all, &c->composition[n]));
        view[n] = mha_tensor_contiguous(c->composition[n], MHA_F32, 4, shape);
        *to[n] = &view[n];
    }
    const mha_status status =
        mha_transformer_composition(found->model->context, found->model->net, &out);
    progress_clear(&shown);
    c->composition_chance = out.baseline;
    return cli_check(status);
}

static bool comes_first(const writer *a, const writer *b)
{
    if (a->value != b->value) return a->value > b->value;
    return a->layer != b->layer ? a->layer < b->layer : a->head < b->head;
}

/* List the earlier heads that a head reads most in its queries (kind 0), keys (1) or values (2). Returns
 * their number. */
static int64_t find_writers(const circuits *c, const heads_row *of, int kind,
                            writer writers[FEW_WRITERS])
{
    const int64_t heads = c->found->model->heads, all = c->found->of.layers * heads;
    const float *row = c->composition[kind] + (of->layer * heads + of->head) * all;
    int64_t held = 0;
    for (int64_t i = 0; i < of->layer * heads; i++) {
        const writer w = {i / heads, i % heads, (double)row[i]};
        if (!(w.value > 0)) continue; /* a pruned layer lacks this head */
        int64_t at = held < FEW_WRITERS ? held++ : FEW_WRITERS;
        if (at == FEW_WRITERS && !comes_first(&w, &writers[--at])) continue;
        for (; at > 0 && comes_first(&w, &writers[at - 1]); at--) writers[at] = writers[at - 1];
        writers[at] = w;
    }
    return held;
}

void circuits_writers_json(mha_json *json, const circuits *c, const heads_row *row)
{
    static const char *const names[HEADS_COMPOSITIONS] = {"q", "k", "v"};
    mha_json_line(json, 5);
    mha_json_object(json, "composition");
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        writer writers[FEW_WRITERS];
        const int64_t count = find_writers(c, row, n, writers);
        mha_json_array(json, names[n]);
        for (int64_t i = 0; i < count; i++) {
            mha_json_object(json, NULL);
            mha_json_format(json, "head", "L%" PRId64 "H%" PRId64, writers[i].layer,
                            writers[i].head);
            mha_json_number(json, "value", writers[i].value);
            mha_json_end(json);
        }
        mha_json_end(json);
    }
    mha_json_end(json);
}

/* "reads keys of L16H0 0.161, ...; queries of ..." below its row. */
void circuits_writers_line(const circuits *c, const heads_row *row, char *line, size_t size)
{
    static const char *const names[HEADS_COMPOSITIONS] = {"queries", "keys", "values"};
    static const int order[HEADS_COMPOSITIONS] = {1, 0, 2};
    size_t used = (size_t)snprintf(line, size, "reads");
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        writer writers[FEW_WRITERS];
        const int64_t count = find_writers(c, row, order[n], writers);
        for (int64_t i = 0; i < count && used < size; i++)
            used +=
                (size_t)snprintf(line + used, size - used, "%s%s%s L%" PRId64 "H%" PRId64 " %.2f",
                                 i   ? ","
                                 : n ? "; "
                                     : " ",
                                 i ? "" : names[order[n]], i ? "" : " from", writers[i].layer,
                                 writers[i].head, writers[i].value);
    }
    if (used < size)
        snprintf(line + used, size - used, " (random matrices: %.2f)", c->composition_chance);
}

cli_exit circuits_arrows(const circuits *c, const heads_row *row, mha_heads_card *card)
{
    static const char *const names[HEADS_COMPOSITIONS] = {"queries", "keys", "values"};
    mha_heads_arrow *arrows;
    CLI_TRY(ARENA_ALLOC(HEADS_COMPOSITIONS * FEW_WRITERS, &arrows));
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        writer writers[FEW_WRITERS];
        const int64_t count = find_writers(c, row, n, writers);
        for (int64_t i = 0; i < count; i++)
            arrows[card->arrow_count++] =
                (mha_heads_arrow){names[n], writers[i].layer, writers[i].head, writers[i].value,
                                  c->composition_chance};
    }
    card->arrows = arrows;
    return CLI_OK;
}
