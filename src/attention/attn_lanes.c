/* Few queries and keys per head, with no features except causal and lengths. One kernel call
 * computes up to 16 heads, one per lane: a head alone would spend most of its time on packing and on
 * waiting for its chains of multiply-adds. */
#include "attention/attn_tiles.h"

/* Cycles of 16 heads in lanes, and of one head alone. (Fitted on Zen 5 to heads of 16 to 128 numbers with
 * up to 16 queries and keys.) */
static int64_t lane_cost(const mhai_attn_problem *p)
{
    return p->D * (3 * p->T * p->S / 2 + 3 * (p->T + p->S));
}

static int64_t head_cost(const mhai_attn_problem *p)
{
    return 800 + p->T * p->D;
}

bool mhai_attn_in_lanes(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const int takes = MHAI_USES(causal) | MHAI_USES(key_lengths);
    if (p->uses & ~takes || p->pages || p->compute != MHA_COMPUTE_F32) return false;
    if (p->q.dtype != MHA_F32 || p->k.dtype != MHA_F32 || p->v.dtype != MHA_F32 ||
        p->o.dtype != MHA_F32)
        return false;
    if (p->T > MHAI_LANE_ROWS || p->S > MHAI_LANE_KEYS || p->S == 0 || p->group > MHAI_LANES ||
        tiling->items == 0 || tiling->scored_rows > 0 || tiling->kept_rows > 0)
        return false;
    const int64_t heads = mhai_min_i64(p->B * p->Hk, MHAI_LANES / p->group) * p->group;
    return lane_cost(p) < heads * head_cost(p);
}

int64_t mhai_attn_lane_items(const mhai_attn_problem *p)
{
    return mhai_ceil_div(p->B * p->Hk, MHAI_LANES / p->group);
}

mhai_attn_range mhai_attn_lane_heads(const mhai_attn_problem *p, int64_t item)
{
    const int64_t each = MHAI_LANES / p->group;
    return (mhai_attn_range){item * each, mhai_min_i64(p->B * p->Hk, (item + 1) * each)};
}

/* Set lane i to head h of sequence b. */
static void set_lane(const mhai_attn_problem *p, int64_t b, int64_t h, int i, mhai_lanes *x)
{
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
    const int64_t hk = h / p->group;
    x->q[i] = mhai_attn_row(&p->q, seq.batch, h, seq.q0);
    x->k[i] = mhai_attn_row(&p->k, seq.batch, hk, seq.k0);
    x->v[i] = mhai_attn_row(&p->v, seq.batch, hk, seq.k0);
    x->o[i] = mhai_attn_row(&p->o, seq.batch, h, seq.q0);
    for (int64_t t = 0; t < p->T; t++) x->ends[t][i] = (float)mhai_attn_limit(p, &seq, t).end;
}

static void write_lse(const mhai_attn_problem *p, int64_t b, int64_t h, int i, const mhai_lanes *x)
{
    const mhai_attn_sequence seq = mhai_attn_sequence_of(p, b);
    for (int64_t t = 0; t < p->T; t++)
        *mhai_attn_row(&p->lse, seq.batch, h, seq.q0 + t) =
            mhai_attn_lse(x->m[t * MHAI_LANES + i], x->l[t * MHAI_LANES + i]);
}

bool mhai_attn_run_lanes(const mhai_attn_walk *walk, int64_t item, const mhai_attn_workspace *w)
{
    const mhai_attn_problem *p = walk->p;
    const mhai_attn_range heads = mhai_attn_lane_heads(p, item);
    const int64_t first = heads.begin * p->group;
    mhai_lanes x = {.heads = (int)((heads.end - heads.begin) * p->group),
                    .rows = (int)p->T,
                    .keys = (int)p->S,
                    .q_row = p->q.stride[2],
                    .k_row = p->k.stride[2],
                    .v_row = p->v.stride[2],
                    .o_row = p->o.stride[2],
                    .head_dim = p->D,
                    .value_dim = p->Dv,
                    .factor = mhai_attn_factor(p),
                    .m = w->s,
                    .l = w->s + MHAI_LANES * MHAI_LANE_ROWS,
                    .turned = w->k};
    int64_t b = first / p->H, h = first % p->H;
    for (int i = 0; i < x.heads; i++) {
        set_lane(p, b, h, i, &x);
        if (++h == p->H) h = 0, b++;
    }
    for (int i = x.heads; i < MHAI_LANES; i++) x.q[i] = x.q[0], x.k[i] = x.k[0];
    bool done;
    walk->kernels->lanes_forward(&x, &done);
    for (int i = 0; done && p->lse.data && i < x.heads; i++)
        write_lse(p, (first + i) / p->H, (first + i) % p->H, i, &x);
    return done;
}
