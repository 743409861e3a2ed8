/* Attention in bf16 arithmetic (docs/numerics.md 15.1). Chunks, key blocks, strips, masks and
 * softmax are the same as on the tiled path. Queries, keys, values and weights are rounded in
 * place. */
#include "attention/attn_tiles.h"

#include "base/checked.h"
#include "base/context.h"

#include <multihead/component.h>

#include <string.h>

const char *mhai_bf16_refuses(const mha_context *context, const mhai_attn_problem *p)
{
    const int takes = MHAI_MASKS | MHAI_BIASES | MHAI_USES(softcap) | MHAI_USES(dropout) |
                      MHAI_USES(ragged) | MHAI_USES(sink_logits) | MHAI_USES(gates);
    mhai_attn_named outputs[MHAI_ATTN_OUTPUTS];
    const int count = mhai_attn_list_outputs(p, outputs);
    (void)context;
    if (p->uses & (MHAI_USES(shaw_keys) | MHAI_USES(shaw_values)))
        return "compute bf16 does not support Shaw's relative positions";
    if (p->uses & ~takes) return "compute bf16 does not support an input of the descriptor";
    for (int i = 0; i < count; i++)
        if (outputs[i].tensor != &p->o && outputs[i].tensor != &p->lse)
            return "compute bf16 supports no outputs except o and lse";
    if (p->D > MHA_TILED_MAX_HEAD_DIM || p->Dv > MHA_TILED_MAX_HEAD_DIM)
        return "compute bf16 supports head sizes up to 256";
    return NULL;
}

/* ---- the visitor ----------------------------------------------------------------------------- */

/* Products of a finite but large query may overflow. */
static void start_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w)
{
    const mhai_attn_walk *walk = user;
    const int64_t width = walk->p->D;
    memset(w->o, 0, (size_t)(c->rows * mhai_attn_padded_values(walk->p)) * sizeof(float));
    for (int64_t r = 0; r < c->rows && width > 0; r++) {
        bool fits;
        walk->kernels->bf16_row(w->q + r * width, width, walk->pairs, &fits);
        if (!fits) w->bad_query[r] = c->bad_query = true;
    }
}

static void forward_strip(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_block *block, mhai_attn_strip *s)
{
    const mhai_attn_walk *walk = user;
    mhai_dropout dropout;
    s->tile.factor = mhai_attn_factor(walk->p);
    s->tile.pairs = walk->pairs;
    if (walk->p->dropout > 0) {
        mhai_attn_set_dropout(walk, c, w, block, s, &dropout);
        s->tile.dropout = &dropout;
    }
    walk->kernels->bf16_forward(&s->tile);
}

/* ---- the call -------------------------------------------------------------------------------- */

static void run_item(void *argument, int64_t at, int worker)
{
    const mhai_attn_walk *walk = argument;
    const mhai_attn_visitor visitor = {.options = MHAI_WALK_VALUES,
                                       .user = argument,
                                       .chunk = start_chunk,
                                       .strip = forward_strip};
    mhai_attn_workspace w = mhai_attn_workspace_of(walk, worker);
    mhai_attn_chunk c = mhai_attn_chunk_of_item(walk, at);
    mhai_attn_walk_chunk(walk, &c, &w, &visitor);
    mhai_attn_write_rows(walk, &c, &w);
}

mha_status mhai_bf16_run(mha_context *context, const mhai_attn_plan *plan)
{
    mhai_attn_walk walk;
    MHA_TRY(mhai_attn_walk_begin(context, plan, &walk));
    if (plan->tiling.alone)
        for (int64_t item = 0; item < plan->tiling.items; item++) run_item(&walk, item, 0);
    else
        mha_parallel_for(context, plan->tiling.items, run_item, &walk);
    return MHA_OK;
}

mha_status mhai_bf16_plan(const mha_context *context, mhai_attn_plan *plan)
{
    MHA_TRY(mhai_attn_divide(context, plan));
    plan->account.row_block =
        mhai_attn_strip_rows(&plan->p, plan->tiling.chunk_rows, plan->kernels->tile_rows);
    plan->account.reason =
        mhai_kernels_have_pairs(plan->kernels)
            ? "bf16 arithmetic was requested: the tiled path with products of pairs (VDPBF16PS)"
            : "bf16 arithmetic was requested: the tiled path on numbers rounded to bf16; this "
              "instruction set has no products of bf16, so f32 is as fast";
    return MHA_OK;
}
