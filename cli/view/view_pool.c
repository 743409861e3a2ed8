/* Maps of long texts: how large their cells are, what their tokens are called, and the run, whose
 * rows the library pools as they are computed. */
#include "view/view_pool.h"

#include "common/arena.h"
#include "view/view.h"

#include <multihead/component.h>
#include <multihead/heads.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

int64_t view_pool_cell(const view_options *options, const maps_picks *picks, int64_t tokens)
{
    if (options->json || options->npy || options->hide.count > 0) return 1;
    return mha_show_cell(picks->count, tokens);
}

/* ---- tokens -------------------------------------------------------------------------------- */

/* The tokens so far become those of the text; rows and columns are blocks of cell x cell of them,
 * which are called by their first token: "the...". */
static cli_exit make_blocks(int64_t cell, attention_maps *maps)
{
    const mha_tokens all = maps->rows;
    CLI_TRY(maps_make_tokens(VIEW, (all.count + cell - 1) / cell, &maps->rows));
    for (int64_t i = 0; i < maps->rows.count; i++) {
        const char *first = all.labels[i * cell];
        const size_t bytes = strlen(first) + 4;
        char *name;
        CLI_TRY(ARENA_ALLOC(VIEW, (int64_t)bytes, &name));
        snprintf(name, bytes, "%s\xE2\x80\xA6", first);
        maps->rows.labels[i] = name;
        maps->rows.begin[i] = all.begin[i * cell];
    }
    maps->tokens = all;
    maps->cols = maps->rows;
    maps->cell = cell;
    return CLI_OK;
}

/* ---- rows ---------------------------------------------------------------------------------- */

typedef struct pool {
    const text_model *model;
    const attention_maps *maps;
    int64_t layer;
    progress *shown;
} pool;

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const pool *x = user;
    const attention_maps *maps = x->maps;
    const int64_t shape[] = {p->shape[0], maps->rows.count, maps->cols.count};
    const mha_tensor to = mha_tensor_contiguous(maps->layer[x->layer], MHA_F32, 3, shape);
    (void)b;
    progress_show(x->shown,
                  ((double)x->layer + (double)row / (double)maps->tokens.count) /
                      (double)maps->layers,
                  "layer %" PRId64 " of %" PRId64 ", token %" PRId64 " of %" PRId64, x->layer + 1,
                  maps->layers, row, maps->tokens.count);
    return mha_attention_pool_rows(x->model->context, p, row, maps->cell,
                                   maps->picks.on + x->layer * maps->heads, &to);
}

static mha_status pool_after(void *user, const mha_activations *activations, int64_t layer)
{
    pool *x = user;
    mha_layer_view view = {.struct_size = sizeof view};
    x->layer = layer;
    if (!x->maps->layer[layer]) return MHA_OK;
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    return mha_attention_visit_rows(x->model->context, &view.attention, &view.q, &view.k, 0,
                                    take_rows, x);
}

cli_exit view_pool_begin(const text_model *model, int64_t cell, progress *shown,
                         attention_maps *maps, text_visit *visit)
{
    pool *x;
    CLI_TRY(ARENA_ALLOC(VIEW, 1, &x));
    *x = (pool){.model = model, .maps = maps, .shown = shown};
    CLI_TRY(make_blocks(cell, maps));
    for (int64_t l = 0; l < maps->layers; l++)
        if (maps_picks_in_layer(&maps->picks, l) > 0) CLI_TRY(maps_add_layer(VIEW, maps, l));
    *visit = (text_visit){.after_layer = pool_after, .user = x};
    return CLI_OK;
}
