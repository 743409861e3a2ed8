/* Problems with a single key block and no features except causal, lengths, a dense mask and a bias.
 * One kernel call computes a chunk from queries to outputs. The general walk (attn_walk.c) would
 * spend more time on setting up strips and blocks than on products. */
#include "attention/attn_tiles.h"

/* With fewer than MANY_ROWS rows, or more than KEYS_PER_ROW keys per row, products wait for memory.
 * Panels of keys that stay in L1 are then faster (tile_rows_tmpl.c): twice as fast for one row over
 * 512 keys, and equal for four rows over 64 keys. */
enum { MANY_ROWS = 8, KEYS_PER_ROW = 16 };

static const int takes = MHAI_USES(causal) | MHAI_USES(key_lengths) | MHAI_USES(ragged) |
                         MHAI_USES(keep_mask) | MHAI_USES(bias);

bool mhai_attn_is_one_block(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const int64_t rows = tiling->chunk_rows;
    if (p->pages || p->compute != MHA_COMPUTE_F32 || p->S > MHAI_KEY_BLOCK) return false;
    if (tiling->items == 0 || p->S == 0) return false; /* nothing to run */
    if (rows < MANY_ROWS && p->S > KEYS_PER_ROW * rows) return false;
    if (p->q.dtype != MHA_F32 || p->k.dtype != MHA_F32 || p->v.dtype != MHA_F32 ||
        p->o.dtype != MHA_F32)
        return false;
    if (p->uses & ~takes) return false;
    return tiling->scored_rows == 0 && tiling->kept_rows == 0 && tiling->split_blocks == 0;
}

/* Each strip reads every value once, so copying them only pays with several strips and rows
 * that are not contiguous. */
static bool copies_values(const mhai_attn_walk *walk, const mhai_attn_chunk *c)
{
    return c->rows > walk->kernels->tile_rows && walk->p->v.stride[2] != walk->p->Dv;
}

/* A broadcast input, starting at the chunk's first head and the sequence's first query. */
static mhai_dense dense_of(const mhai_attn_broadcast *x, const mhai_attn_chunk *c)
{
    if (!x->data) return (mhai_dense){.at = NULL};
    const int64_t first = mhai_attn_offset(x, c->seq.batch, c->head0, c->seq.q0);
    return (mhai_dense){mhai_attn_element(x, first), x->dtype, x->stride[1], x->stride[2],
                        x->stride[3]};
}

static void write_lse(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                      const mhai_attn_workspace *w)
{
    for (int64_t r = 0; r < c->rows; r++) {
        const int64_t i = c->first + r, h = c->head0 + i / c->width, t = c->seq.q0 + i % c->width;
        *mhai_attn_row(&p->lse, c->seq.batch, h, t) = mhai_attn_lse(w->m[r], w->l[r]);
    }
}

bool mhai_attn_one_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                         const mhai_attn_workspace *w, mhai_fetch *fetch)
{
    const mhai_attn_problem *p = walk->p;
    const mhai_attn_sequence *seq = &c->seq;
    bool done;
    walk->kernels->one_block_forward(
        &(mhai_one_block){.first = c->first,
                          .rows = c->rows,
                          .queries = c->width,
                          .keys = (int)seq->S,
                          .q = mhai_attn_row(&p->q, seq->batch, c->head0, seq->q0),
                          .k = mhai_attn_row(&p->k, seq->batch, c->hk, seq->k0),
                          .v = mhai_attn_row(&p->v, seq->batch, c->hk, seq->k0),
                          .q_head = p->q.stride[1],
                          .q_row = p->q.stride[2],
                          .k_row = p->k.stride[2],
                          .v_row = p->v.stride[2],
                          .o = mhai_attn_row(&p->o, seq->batch, c->head0, seq->q0),
                          .o_head = p->o.stride[1],
                          .o_row = p->o.stride[2],
                          .head_dim = p->D,
                          .value_dim = p->Dv,
                          .factor = mhai_attn_factor(p),
                          .causal = p->causal,
                          .offset = seq->offset,
                          .keep = dense_of(&p->keep_mask, c),
                          .bias = dense_of(&p->bias, c),
                          .m = p->lse.data ? w->m : NULL,
                          .l = w->l,
                          .panels = w->k,
                          .values = copies_values(walk, c) ? w->v : NULL,
                          .tail = w->v,
                          .scaled = w->q,
                          .s = w->s,
                          .fetch = fetch,
                          .fetch_outputs = c->rows > walk->kernels->tile_rows},
        &done);
    if (done && p->lse.data) write_lse(p, c, w);
    return done;
}
