/* The order in which to remove heads, least important first. The remaining heads are measured
 * again after each round. */
#include "analysis/importance_parts.h"
#include "base/need.h"

#include <string.h>

/* The least important open head whose layer may lose a head; -1: none. */
static int64_t least_of(const mhai_importance_run *r, const int64_t *open, int64_t least)
{
    const int64_t H = r->d.num_heads;
    int64_t found = -1;
    for (int64_t k = 0; k < r->d.num_layers * H; k++) {
        const bool here = r->gates[k] < 0 || r->gates[k] > 0;
        if (!here || k % H >= mhai_importance_heads(r, k / H) || open[k / H] <= least) continue;
        if (found < 0 || r->scores[k] < r->scores[found]) found = k;
    }
    return found;
}

/* The order, the scores of removed heads, and the number of open heads per layer. */
typedef struct going {
    int64_t *order, *open, count;
    double *scores;
} going;

static mha_status take(mhai_importance_run *r, going *g)
{
    const int64_t L = r->d.num_layers, H = r->d.num_heads;
    *g = (going){0};
    MHA_TRY(mha_scratch_alloc(r->context, L * H, sizeof *g->order, &g->order));
    MHA_TRY(mha_scratch_zeros(r->context, L, sizeof *g->open, &g->open));
    MHA_TRY(mha_scratch_alloc(r->context, L * H, sizeof *g->scores, &g->scores));
    for (int64_t k = 0; k < L * H; k++)
        g->open[k / H] +=
            (r->gates[k] < 0 || r->gates[k] > 0) && k % H < mhai_importance_heads(r, k / H);
    return MHA_OK;
}

/* The number of passes of all rounds, for progress. Each round closes `step` more heads. */
static int64_t all_passes(const mhai_importance_run *r, const going *g, int64_t step, int64_t least)
{
    int64_t go = 0, passes = 0, round = mhai_importance_passes(r);
    for (int64_t l = 0; l < r->d.num_layers; l++) go += g->open[l] > least ? g->open[l] - least : 0;
    for (; go > 0; go -= step) {
        passes += round;
        if (r->desc.kind >= MHA_IMPORTANCE_ABLATION) round -= step;
    }
    return passes;
}

static mha_status one_by_one(mhai_importance_run *r, int64_t step, int64_t least, going *g)
{
    const int64_t D = r->d.head_dim;
    double loss;
    r->passes = r->done + all_passes(r, g, step, least);
    while (least_of(r, g->open, least) >= 0) {
        MHA_TRY(mhai_importance_score(r, &loss));
        for (int64_t i = 0; i < step; i++) {
            const int64_t k = least_of(r, g->open, least);
            if (k < 0) break;
            g->order[g->count] = k;
            g->scores[g->count++] = r->scores[k];
            g->open[k / r->d.num_heads]--;
            r->gates[k] = 0;
            memset(r->means + k * D, 0, (size_t)D * sizeof *r->means);
        }
    }
    return MHA_OK;
}

mha_status mha_head_order(mha_context *context, const mha_transformer *transformer,
                          const mha_importance_desc *desc, const mha_importance_data *data,
                          mha_head_order_call *call)
{
    mha_head_order_call c;
    MHA_NEED("mha_head_order", context, call);
    MHA_TRY(mhai_struct_copy("mha_head_order_call", &c, sizeof c, sizeof c, call));
    const int64_t step = c.step, least = c.least;
    MHA_NEED_AS("mha_head_order", "order", c.order);
    if (step < 1 || least < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_head_order: step is %lld, expected 1 or more; least is %lld, expected "
                        "0 or more",
                        (long long)step, (long long)least);
    mha_scratch_mark mark = mha_scratch_top(context);
    mhai_importance_run r;
    going g = {0};
    mha_status status = mhai_importance_begin(&r, context, transformer, desc, data);
    if (status == MHA_OK) status = mhai_importance_prepare(&r);
    if (status == MHA_OK) status = take(&r, &g);
    status = mhai_importance_agree(&r, status, step, least);
    if (status == MHA_OK) status = one_by_one(&r, step, least, &g);
    if (status == MHA_OK) {
        memcpy(c.order, g.order, (size_t)g.count * sizeof *c.order);
        if (c.scores) memcpy(c.scores, g.scores, (size_t)g.count * sizeof *c.scores);
        call->count = g.count;
    }
    mhai_importance_end(&r);
    return mha_scratch_end(context, mark, status);
}
