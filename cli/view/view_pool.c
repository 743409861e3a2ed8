/* Maps of long texts: a cell is the largest weight of a block of tokens (the mean would lose
 * stripes). The rows of attention are computed a few at a time and taken in, so that no map is ever
 * there as a whole. */
#include "view/view_pool.h"

#include "common/arena.h"
#include "view/view.h"

#include <multihead/component.h>
#include <multihead/heads.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Maps beyond FULL_BYTES are pooled, to as many cells as a report of 10 MB holds in 8 bits. */
static const double FULL_BYTES = 256e6, POOLED_CELLS = 7e6;

int64_t view_pool_cell(const view_options *options, const maps_picks *picks, int64_t tokens)
{
    const double n = (double)tokens, maps = (double)picks->count;
    if (options->json || options->npy || options->hide.count > 0) return 1;
    if (maps * n * n * sizeof(float) <= FULL_BYTES) return 1;
    int64_t cell = 2;
    while (maps * ceil(n / (double)cell) * ceil(n / (double)cell) > POOLED_CELLS) cell++;
    return cell;
}

/* ---- tokens -------------------------------------------------------------------------------- */

/* A block is called by its first token: "the...". */
static cli_exit make_block(const maps_token *first, maps_token *block)
{
    const size_t bytes = strlen(first->text) + 4;
    *block = (maps_token){.id = -1, .type = -1, .begin = first->begin, .end = -1, .sequence = -1};
    CLI_TRY(ARENA_ALLOC(VIEW, (int64_t)bytes, &block->text));
    snprintf(block->text, bytes, "%s\xE2\x80\xA6", first->text);
    return CLI_OK;
}

/* The tokens so far become those of the text; rows and columns are blocks of them. */
static cli_exit make_blocks(int64_t cell, attention_maps *maps)
{
    const maps_tokens all = maps->rows;
    const int64_t blocks = (all.count + cell - 1) / cell;
    maps->tokens = all;
    maps->rows.count = blocks;
    CLI_TRY(ARENA_ALLOC(VIEW, blocks, &maps->rows.items));
    for (int64_t i = 0; i < blocks; i++)
        CLI_TRY(make_block(&all.items[i * cell], &maps->rows.items[i]));
    maps->cols = maps->rows;
    maps->cell = cell;
    return CLI_OK;
}

/* ---- rows ---------------------------------------------------------------------------------- */

typedef struct pool {
    const text_model *model;
    const attention_maps *maps;
    const maps_picks *picks;
    int64_t layer;
    bool progress;
} pool;

/* The larger one; what is not a number stays. */
static void take_max(float value, float *cell)
{
    if (!isnan(*cell) && !(value <= *cell)) *cell = value;
}

static mha_status take_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const pool *x = user;
    const attention_maps *maps = x->maps;
    const int64_t blocks = maps->cols.count, cell = maps->cell;
    (void)b;
    if (x->progress)
        cli_print_to(stderr,
                     "\r\033[Klayer %" PRId64 " of %" PRId64 ", token %" PRId64 " of %" PRId64,
                     x->layer + 1, maps->layers, row, maps->tokens.count);
    for (int64_t h = 0; h < p->shape[0]; h++) {
        if (!x->picks->on[x->layer * x->picks->heads + h]) continue;
        for (int64_t r = 0; r < p->shape[1]; r++) {
            const float *from = (const float *)p->data + h * p->stride[0] + r * p->stride[1];
            float *to = maps->layer[x->layer] + (h * blocks + (row + r) / cell) * blocks;
            for (int64_t s = 0; s < p->shape[2]; s++) take_max(from[s], &to[s / cell]);
        }
    }
    return MHA_OK;
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

cli_exit view_pool_begin(const text_model *model, int64_t cell, const maps_picks *picks,
                         bool progress, attention_maps *maps, text_visit *visit)
{
    pool *x;
    CLI_TRY(ARENA_ALLOC(VIEW, 1, &x));
    *x = (pool){.model = model, .maps = maps, .picks = picks, .progress = progress};
    CLI_TRY(make_blocks(cell, maps));
    for (int64_t l = 0; l < maps->layers; l++)
        if (maps_picks_in_layer(picks, l) > 0) CLI_TRY(maps_add_layer(VIEW, maps, l));
    *visit = (text_visit){.after_layer = pool_after, .user = x};
    return CLI_OK;
}
