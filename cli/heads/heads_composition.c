/* Which earlier heads a head reads: composition of their weights (attribution.h). */
#include "common/arena.h"
#include "common/progress.h"
#include "heads/heads.h"

#include <multihead/attribution.h>

#include <inttypes.h>
#include <stdio.h>

static mha_status show_progress(int64_t done, int64_t total, void *shown)
{
    progress_show(shown, (double)done / (double)total,
                  "composition of heads, %" PRId64 " of %" PRId64 " pairs of layers", done + 1,
                  total);
    return MHA_OK;
}

cli_exit heads_composition_make(const heads_options *options, heads_found *found)
{
    const int64_t heads = found->model->heads, all = found->layers * heads;
    const int64_t shape[] = {found->layers, heads, found->layers, heads};
    mha_tensor view[HEADS_COMPOSITIONS];
    progress shown = progress_begin(options->quiet);
    mha_composition out = {
        .struct_size = sizeof out, .progress = show_progress, .progress_user = &shown};
    const mha_tensor **to[HEADS_COMPOSITIONS] = {&out.q, &out.k, &out.v};
    if (all > INT32_MAX / 4)
        return cli_fail(CLI_UNSUPPORTED, HEADS, "--composition: %" PRId64 " heads are too many",
                        all);
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        CLI_TRY(ARENA_ALLOC(HEADS, all * all, &found->composition[n]));
        view[n] = mha_tensor_contiguous(found->composition[n], MHA_F32, 4, shape);
        *to[n] = &view[n];
    }
    const mha_status status =
        mha_transformer_composition(found->model->context, found->model->net, &out);
    progress_clear(&shown);
    found->composition_chance = out.baseline;
    return cli_check(HEADS, status);
}

static bool comes_first(const heads_writer *a, const heads_writer *b)
{
    if (a->value != b->value) return a->value > b->value;
    return a->layer != b->layer ? a->layer < b->layer : a->head < b->head;
}

int64_t heads_composition_top(const heads_found *found, int64_t layer, int64_t head, int kind,
                              heads_writer *writers, int64_t most)
{
    const int64_t heads = found->model->heads, all = found->layers * heads;
    const float *row = found->composition[kind] + (layer * heads + head) * all;
    int64_t held = 0;
    for (int64_t i = 0; i < layer * heads; i++) {
        const heads_writer w = {i / heads, i % heads, (double)row[i]};
        if (!(w.value > 0)) continue; /* a head that a pruned layer does not have */
        int64_t at = held < most ? held++ : most;
        if (at == most && !comes_first(&w, &writers[--at])) continue;
        for (; at > 0 && comes_first(&w, &writers[at - 1]); at--) writers[at] = writers[at - 1];
        writers[at] = w;
    }
    return held;
}

void heads_composition_json(json_out *json, const heads_found *found, const heads_row *row)
{
    static const char *const names[HEADS_COMPOSITIONS] = {"q", "k", "v"};
    json_print(json, ",\n     \"composition\": {");
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        heads_writer writers[HEADS_FEW_WRITERS];
        const int64_t count =
            heads_composition_top(found, row->layer, row->head, n, writers, HEADS_FEW_WRITERS);
        json_print(json, "%s\"%s\": [", n ? ", " : "", names[n]);
        for (int64_t i = 0; i < count; i++) {
            json_print(json, "%s{\"head\": \"L%" PRId64 "H%" PRId64 "\"", i ? ", " : "",
                       writers[i].layer, writers[i].head);
            json_number(json, writers[i].value, ", \"value\": ");
            json_print(json, "}");
        }
        json_print(json, "]");
    }
    json_print(json, "}");
}

/* "reads keys of L16H0 0.161, ...; queries of ..." for --details. */
void heads_composition_line(const heads_found *found, const heads_row *row, char *line, size_t size)
{
    static const char *const names[HEADS_COMPOSITIONS] = {"queries", "keys", "values"};
    static const int order[HEADS_COMPOSITIONS] = {1, 0, 2};
    size_t used = (size_t)snprintf(line, size, "reads");
    for (int n = 0; n < HEADS_COMPOSITIONS; n++) {
        heads_writer writers[HEADS_FEW_WRITERS];
        const int64_t count = heads_composition_top(found, row->layer, row->head, order[n], writers,
                                                    HEADS_FEW_WRITERS);
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
        snprintf(line + used, size - used, " (random matrices: %.2f)", found->composition_chance);
}
