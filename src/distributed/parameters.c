/* See parameters.h. */
#include "distributed/parameters.h"

#include <multihead/component.h>

/* The sums go to the rank that adds next. */
static mha_status hand_on(const mhai_parameters *p, int32_t from, int32_t to)
{
    const mha_transport *t = p->s->t;
    const size_t bytes = (size_t)p->count * sizeof *p->sums;
    if (from < 0 || from == to) return MHA_OK;
    if (t->rank == from) return mha_transport_send(t, to, p->sums, bytes);
    return t->rank == to ? mha_transport_receive(t, from, p->sums, bytes) : MHA_OK;
}

/* Sequences, heads, pieces: the order of one process. Where no sum is over heads, all heads go together,
 * since each has the order of sequences and pieces. *at: who has the sums. */
static mha_status add_up(const mhai_parameters *p, bool again, int32_t *at)
{
    const mhai_backward_problem *x = p->x;
    const mhai_split *s = p->s;
    const bool over_heads = x->scale.data || x->shaw_keys.data || x->shaw_values.data;
    const int64_t H = x->p.H, together = over_heads && !again ? 1 : H;
    for (int64_t b = 0; b < x->p.B; b++)
        for (int64_t first = 0; first < H; first += together) {
            const mhai_backward_fold *fold = p->folds;
            for (int64_t i = 0; i < s->query_count; i++) {
                const int32_t rank = s->queries[i].rank;
                if (mhai_split_has_rows(p->desc, b, &s->queries[i])) {
                    MHA_TRY(hand_on(p, *at, rank));
                    *at = rank;
                    for (int64_t h = first; rank == s->t->rank && h < first + together; h++)
                        mhai_backward_fold_sum(fold, b, h, again, &x->sums);
                }
                fold += rank == s->t->rank;
            }
        }
    return MHA_OK;
}

mha_status mhai_parameters_sum(const mhai_parameters *p)
{
    int32_t at = -1;
    if (p->count == 0) return MHA_OK;
    MHA_TRY(add_up(p, false, &at));
    if (p->x->sinks.data && mhai_backward_has_weights(p->x)) MHA_TRY(add_up(p, true, &at));
    if (at < 0) return MHA_OK;
    return mha_transport_broadcast(p->s->t, at, p->sums, (size_t)p->count * sizeof *p->sums);
}
