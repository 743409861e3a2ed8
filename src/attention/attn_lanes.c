/* Few keys per head, with no features except causal and lengths. One kernel call computes 16 lanes,
 * each with up to 16 queries of a head. A strip of one head alone would spend most of its time on
 * packing, on reductions along its few keys, and on waiting for its chains of multiply-adds.
 *
 * The queries of a head fill lanes of 16 queries and one lane with the rest. An item is up to 16
 * lanes with equally many queries. Items with 16 queries per lane come first. */
#include "attention/attn_tiles.h"

/* The lanes of an item: lane i is number first + i of those with `rows` queries. */
typedef struct lane_set {
    int64_t first;
    int lanes, rows;
} lane_set;

static int64_t full_lanes(const mhai_attn_problem *p) /* of a head */
{
    return p->T / MHAI_LANE_ROWS;
}

static int64_t items_of(int64_t lanes)
{
    return mhai_ceil_div(lanes, MHAI_LANES);
}

int64_t mhai_attn_lane_items(const mhai_attn_problem *p)
{
    const int64_t heads = p->B * p->H;
    return items_of(heads * full_lanes(p)) + (p->T % MHAI_LANE_ROWS > 0 ? items_of(heads) : 0);
}

static lane_set lanes_of(const mhai_attn_problem *p, int64_t item)
{
    const int64_t full = p->B * p->H * full_lanes(p), before = items_of(full);
    const bool whole = item < before;
    const int64_t first = (whole ? item : item - before) * MHAI_LANES;
    const int64_t left = (whole ? full : p->B * p->H) - first;
    return (lane_set){first, (int)mhai_min_i64(MHAI_LANES, left),
                      (int)(whole ? MHAI_LANE_ROWS : p->T % MHAI_LANE_ROWS)};
}

/* The queries of lane i. */
static mhai_attn_chunk chunk_of(const mhai_attn_problem *p, const lane_set *set, int i)
{
    const int64_t lane = set->first + i, full = full_lanes(p);
    const bool whole = set->rows == MHAI_LANE_ROWS;
    const int64_t head = whole ? lane / full : lane, h = head % p->H;
    const int64_t t = (whole ? lane % full : full) * MHAI_LANE_ROWS;
    return (mhai_attn_chunk){.seq = mhai_attn_sequence_of(p, head / p->H),
                             .hk = h / p->group,
                             .head0 = h,
                             .first = t,
                             .rows = set->rows,
                             .width = p->T};
}

/* Cycles of a kernel call, and of all heads without lanes. (Fitted on Zen 5 to heads of 16 to 128
 * numbers with up to 16 queries and keys.) */
static double call_cost(const mhai_attn_problem *p, int64_t rows)
{
    const double pairs = (double)(rows * p->S), turned = (double)(rows + p->S);
    return (double)p->D * (2.6 * pairs + 5.25 * turned);
}

static double strip_cost(const mhai_attn_problem *p)
{
    const double heads = (double)(p->B * p->Hk), rows = (double)(p->B * p->H * p->T);
    return 1100 * heads + rows * (1.5 * (double)p->D + 40);
}

bool mhai_attn_in_lanes(const mhai_attn_problem *p, const mhai_attn_tiling *tiling)
{
    const int takes = MHAI_USES(causal) | MHAI_USES(key_lengths);
    if (p->uses & ~takes || p->pages || p->compute != MHA_COMPUTE_F32) return false;
    if (p->q.dtype != MHA_F32 || p->k.dtype != MHA_F32 || p->v.dtype != MHA_F32 ||
        p->o.dtype != MHA_F32)
        return false;
    if (p->S > MHAI_LANE_KEYS || p->S == 0 || tiling->items == 0 || tiling->scored_rows > 0 ||
        tiling->kept_rows > 0)
        return false;
    const int64_t heads = p->B * p->H, rest = p->T % MHAI_LANE_ROWS;
    double cost = (double)items_of(heads * full_lanes(p)) * call_cost(p, MHAI_LANE_ROWS);
    if (rest > 0) cost += (double)items_of(heads) * call_cost(p, rest);
    return cost < strip_cost(p);
}

static void set_lane(const mhai_attn_problem *p, const mhai_attn_chunk *c, int i, mhai_lanes *x)
{
    const mhai_attn_sequence *seq = &c->seq;
    x->q[i] = mhai_attn_row(&p->q, seq->batch, c->head0, seq->q0 + c->first);
    x->k[i] = mhai_attn_row(&p->k, seq->batch, c->hk, seq->k0);
    x->v[i] = mhai_attn_row(&p->v, seq->batch, c->hk, seq->k0);
    x->o[i] = mhai_attn_row(&p->o, seq->batch, c->head0, seq->q0 + c->first);
    for (int r = 0; r < x->rows; r++)
        x->ends[r][i] = (float)mhai_attn_limit(p, seq, c->first + r).end;
}

static void write_lse(const mhai_attn_problem *p, const mhai_attn_chunk *c, int i,
                      const mhai_lanes *x)
{
    for (int r = 0; r < x->rows; r++)
        *mhai_attn_row(&p->lse, c->seq.batch, c->head0, c->seq.q0 + c->first + r) =
            mhai_attn_lse(x->m[r * MHAI_LANES + i], x->l[r * MHAI_LANES + i]);
}

void mhai_attn_run_lanes(const mhai_attn_walk *walk, int64_t item, mhai_attn_workspace *w,
                         mhai_attn_forward_chunk *alone, void *user)
{
    const mhai_attn_problem *p = walk->p;
    const lane_set set = lanes_of(p, item);
    mhai_attn_chunk chunk[MHAI_LANES];
    mhai_lanes x = {.lanes = set.lanes,
                    .rows = set.rows,
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
    for (int i = 0; i < set.lanes; i++) {
        chunk[i] = chunk_of(p, &set, i);
        set_lane(p, &chunk[i], i, &x);
    }
    for (int i = set.lanes; i < MHAI_LANES; i++) x.q[i] = x.q[0], x.k[i] = x.k[0];
    bool done;
    walk->kernels->lanes_forward(&x, &done);
    for (int i = 0; i < set.lanes; i++)
        if (!done)
            alone(user, &chunk[i], w);
        else if (p->lse.data)
            write_lse(p, &chunk[i], i, &x);
}
