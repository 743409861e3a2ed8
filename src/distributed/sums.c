/* See sums.h. */
#include "distributed/sums.h"

#include <multihead/component.h>

#include <string.h>

mha_status mhai_sums_take(mhai_sums *s)
{
    MHA_TRY(mhai_backward_take_sums(s->context, s->x, &s->parameters, &s->count));
    if (!s->shares_bias) return MHA_OK;
    s->job = mhai_cells_job_of(s->context, s->x);
    s->items = mhai_cells_bias_items(&s->job);
    s->numbers = s->items > 0 && mhai_cells_bias_item(&s->job, 0).by_key ? MHAI_CELL_KEYS : 1;
    MHA_TRY(
        mha_scratch_zeros(s->context, s->items, (size_t)s->numbers * sizeof *s->bias, &s->bias));
    MHA_TRY(mha_scratch_alloc(s->context, s->items, sizeof *s->at, &s->at));
    for (int64_t i = 0; i < s->items; i++) s->at[i] = -1;
    return MHA_OK;
}

/* Send the sums to the rank that adds next. */
static mha_status send_sums(const mhai_sums *s, double *sums, int64_t count, int32_t *at,
                            int32_t to)
{
    const mha_transport *t = s->roles->s->t;
    const size_t bytes = (size_t)count * sizeof *sums;
    const int32_t from = *at;
    *at = to;
    if (from < 0 || from == to) return MHA_OK;
    if (t->rank == from) return mha_transport_send(t, to, sums, bytes);
    return t->rank == to ? mha_transport_receive(t, from, sums, bytes) : MHA_OK;
}

/* Called for the pieces in order, for each sequence and some heads of a part. */
typedef mha_status visit_fn(const mhai_sums *s, int64_t b, int64_t h, int64_t heads, int32_t rank,
                            const mhai_backward_share *share, int32_t *at);

static mha_status visit_pieces(const mhai_sums *s, int64_t together, int32_t *at, visit_fn *visit)
{
    const mhai_roles *r = s->roles;
    const int64_t H = s->x->p.H;
    for (int64_t b = 0; b < s->x->p.B; b++)
        for (int64_t h = 0; h < H; h += together) {
            const mhai_backward_share *share = s->shares;
            for (int64_t i = 0; i < r->count[MHAI_GROUP_QUERIES]; i++) {
                const mhai_owned *piece = &r->rows[MHAI_GROUP_QUERIES][i];
                const int32_t rank = piece->rank * r->parts + (int32_t)(h / (H / r->parts));
                if (mhai_split_has_rows(s->desc, b, piece))
                    MHA_TRY(visit(s, b, h, together, rank, share, at));
                share += piece->rank == mhai_roles_group(r);
            }
        }
    return MHA_OK;
}

/* ---- parameters ------------------------------------------------------------------------------ */

static mha_status add_parameters(const mhai_sums *s, int64_t b, int64_t h, int64_t heads,
                                 int32_t rank, const mhai_backward_share *share, int32_t *at)
{
    const int64_t H = s->x->p.H, own = H / s->roles->parts, first = h / own * own;
    MHA_TRY(send_sums(s, s->parameters, s->count, at, rank));
    for (int64_t i = h; rank == s->roles->s->t->rank && i < h + heads; i++)
        mhai_backward_share_sum(share, H, first, b, i - first, s->again, &s->x->sums);
    return MHA_OK;
}

/* If nothing is summed over heads, all heads of a part are sent together. For each head, the order
 * of sequences and pieces is the same. */
static mha_status run_parameters(mhai_sums *s)
{
    const mhai_backward_problem *x = s->x;
    const bool over_heads = x->scale.data || x->shaw_keys.data || x->shaw_values.data;
    const int64_t part = x->p.H / s->roles->parts;
    int32_t at = -1;
    if (s->count == 0) return MHA_OK;
    MHA_TRY(visit_pieces(s, over_heads ? 1 : part, &at, add_parameters));
    s->again = x->sinks.data && mhai_backward_has_weights(x);
    if (s->again) MHA_TRY(visit_pieces(s, part, &at, add_parameters));
    if (at >= 0)
        MHA_TRY(mha_transport_broadcast(s->roles->s->t, at, s->parameters,
                                        (size_t)s->count * sizeof *s->parameters));
    mhai_backward_write_parameters(x);
    return MHA_OK;
}

/* ---- the bias -------------------------------------------------------------------------------- */

typedef struct adding {
    const mhai_sums *s;
    const mhai_backward_share *share;
    int64_t b, h, first;
} adding;

static void add_item(void *argument, int64_t i, int worker)
{
    const adding *a = argument;
    const int64_t item = a->first + i;
    mhai_backward_share_add_bias(a->share, a->b, a->h, item, a->s->bias + item * a->s->numbers,
                                 worker);
}

/* Add the items of a sequence and a head, for all its keys. */
static mha_status add_bias(const mhai_sums *s, int64_t b, int64_t h, int64_t heads, int32_t rank,
                           const mhai_backward_share *share, int32_t *at)
{
    adding a = {.s = s, .share = share, .b = b, .h = h};
    int64_t end;
    mhai_bias_item item;
    (void)heads;
    for (item = mhai_cells_bias_item(&s->job, 0); item.b.end <= b || item.h.end <= h;)
        item = mhai_cells_bias_item(&s->job, ++a.first);
    for (end = a.first + 1; end < s->items; end++) {
        item = mhai_cells_bias_item(&s->job, end);
        if (item.b.begin > b || item.h.begin > h || item.h.end <= h) break;
    }
    MHA_TRY(send_sums(s, s->bias + a.first * s->numbers, (end - a.first) * s->numbers, &at[a.first],
                      rank));
    if (rank == s->roles->s->t->rank) mha_parallel_for(s->context, end - a.first, add_item, &a);
    return MHA_OK;
}

static mha_status run_bias(const mhai_sums *s)
{
    if (s->items == 0) return MHA_OK;
    MHA_TRY(visit_pieces(s, 1, s->at, add_bias));
    for (int64_t i = 0, end; i < s->items; i = end) {
        for (end = i + 1; end < s->items && s->at[end] < 0; end++) continue;
        if (s->at[i] >= 0)
            MHA_TRY(mha_transport_broadcast(s->roles->s->t, s->at[i], s->bias + i * s->numbers,
                                            (size_t)((end - i) * s->numbers) * sizeof *s->bias));
    }
    for (int64_t i = 0; i < s->items; i++) {
        const mhai_bias_item item = mhai_cells_bias_item(&s->job, i);
        mhai_cells_write_bias(&s->job, &item, s->bias + i * s->numbers);
    }
    return MHA_OK;
}

mha_status mhai_sums_run(mhai_sums *s)
{
    MHA_TRY(run_parameters(s));
    return run_bias(s);
}
