/* The loss as heads are removed in a given order, and other orders for comparison. */
#include "analysis/importance_parts.h"

#include "base/checked.h"
#include "base/hash.h"
#include "base/need.h"
#include "transformer/transformer_parts.h"

#include <string.h>

/* ---- orders ---------------------------------------------------------------------------------- */

/* Check that each entry is an existing head, and that none repeats. */
static mha_status check_order(const char *function, const mha_transformer_desc *d,
                              const int64_t *order, int64_t count)
{
    const int64_t H = d->num_heads;
    if (count < 0 || count > d->num_layers * H)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: count is %lld, expected 0..%lld heads", function,
                        (long long)count, (long long)(d->num_layers * H));
    if (count > 0 && !order) return mha_fail(MHA_ERR_NULL, "%s: order is NULL", function);
    for (int64_t k = 0; k < count; k++) {
        const int64_t head = order[k];
        if (head < 0 || head >= d->num_layers * H ||
            head % H >= mhai_transformer_heads_of(d, head / H, false).q)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "%s: order[%lld] is %lld, expected layer * %lld + head of a head that "
                            "the transformer has",
                            function, (long long)k, (long long)head, (long long)H);
        for (int64_t i = 0; i < k; i++)
            if (order[i] == head)
                return mha_fail(MHA_ERR_ARGUMENT, "%s: order[%lld] and order[%lld] are both %lld",
                                function, (long long)i, (long long)k, (long long)head);
    }
    return MHA_OK;
}

static mha_status begin_order(const char *function, const mha_transformer *transformer,
                              const int64_t *from, int64_t count, int64_t least,
                              const int64_t *order, const int64_t *made, mha_transformer_desc *d)
{
    MHA_NEED(function, transformer, order, made);
    if (least < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: least is %lld, expected 0 or more", function,
                        (long long)least);
    mha_transformer_describe(transformer, d);
    return check_order(function, d, from, count);
}

/* Append a head, unless fewer than `least` heads would remain in its layer. */
static void append(const mha_transformer_desc *d, int64_t least, int64_t head, int64_t *order,
                   int64_t *made)
{
    const int64_t layer = head / d->num_heads;
    int64_t left = mhai_transformer_heads_of(d, layer, false).q;
    for (int64_t i = 0; i < *made; i++) left -= order[i] / d->num_heads == layer;
    if (left > least) order[(*made)++] = head;
}

mha_status mha_head_order_limit(const mha_transformer *transformer, const int64_t *from,
                                int64_t count, int64_t least, int64_t *order, int64_t *made)
{
    mha_transformer_desc d;
    int64_t taken = 0;
    MHA_TRY(begin_order("mha_head_order_limit", transformer, from, count, least, order, made, &d));
    for (int64_t k = 0; k < count; k++) append(&d, least, from[k], order, &taken);
    *made = taken;
    return MHA_OK;
}

mha_status mha_head_order_reverse(const mha_transformer *transformer, const int64_t *order,
                                  int64_t count, int64_t least, int64_t *reversed, int64_t *made)
{
    mha_transformer_desc d;
    int64_t taken = 0;
    MHA_TRY(begin_order("mha_head_order_reverse", transformer, order, count, least, reversed, made,
                        &d));
    int64_t heads = 0, kept = 0;
    for (int64_t l = 0; l < d.num_layers; l++) heads += mhai_transformer_heads_of(&d, l, false).q;
    int64_t *back = reversed + heads - count; /* at the end of reversed; may overlap order */
    if (count > 0) memmove(back, order, (size_t)count * sizeof *back);
    for (int64_t k = 0; k < count / 2; k++) {
        const int64_t head = back[k];
        back[k] = back[count - 1 - k];
        back[count - 1 - k] = head;
    }
    for (int64_t head = 0; head < d.num_layers * d.num_heads; head++) {
        bool goes =
            head % d.num_heads >= mhai_transformer_heads_of(&d, head / d.num_heads, false).q;
        for (int64_t k = 0; k < count && !goes; k++) goes = back[k] == head;
        if (!goes) reversed[kept++] = head;
    }
    for (int64_t k = 0; k < heads; k++) append(&d, least, reversed[k], reversed, &taken);
    *made = taken;
    return MHA_OK;
}

/* ---- the curve ------------------------------------------------------------------------------- */

static mha_status check_points(const mha_head_curve_call *c)
{
    MHA_TRY(mhai_check_range("mha_head_curve: points", c->points, 0, INT64_MAX));
    if (c->points > 0) MHA_NEED_AS("mha_head_curve", "removed, losses", c->removed, c->losses);
    for (int64_t p = 0; p < c->points; p++)
        if (c->removed[p] < 0 || c->removed[p] > c->count)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_head_curve: removed[%lld] is %lld, expected 0..%lld, the heads of "
                            "the order",
                            (long long)p, (long long)c->removed[p], (long long)c->count);
    return MHA_OK;
}

/* Compute into `found` first, so that an error changes no output. */
static mha_status curve(mhai_importance_run *r, const mha_head_curve_call *c, void *memory,
                        double *found)
{
    const int64_t heads = r->d.num_layers * r->d.num_heads;
    const float *whole = memcpy(memory, r->gates, (size_t)heads * sizeof *r->gates);
    mha_status status = MHA_OK;
    int64_t begin, end;
    mhai_importance_mine(r, c->points, &begin, &end);
    r->passes = c->points;
    r->done = begin;
    for (int64_t p = begin; p < end && status == MHA_OK; p++) {
        memcpy(r->gates, whole, (size_t)heads * sizeof *r->gates);
        for (int64_t k = 0; k < c->removed[p]; k++) r->gates[c->order[k]] = 0;
        status = mhai_importance_loss(r, &found[p]);
    }
    return mhai_importance_share(r, status, found, c->points, 1);
}

mha_status mha_head_curve(mha_context *context, const mha_transformer *transformer,
                          const mha_importance_data *data, const mha_head_curve_call *call)
{
    mha_head_curve_call c;
    MHA_NEED("mha_head_curve", context, call);
    MHA_TRY(mhai_struct_copy("mha_head_curve_call", &c, sizeof c, sizeof c, call));
    const mha_importance_desc desc = {
        .struct_size = sizeof desc, .kind = MHA_IMPORTANCE_ABLATION, .gates = c.gates};
    const size_t bytes = (size_t)c.points * sizeof *c.losses;
    mha_scratch_mark mark = mha_scratch_top(context);
    mhai_importance_run r;
    double *found = NULL;
    float *gates = NULL;
    mha_status status = mhai_importance_begin(&r, context, transformer, &desc, data);
    if (status == MHA_OK) status = check_order("mha_head_curve", &r.d, c.order, c.count);
    if (status == MHA_OK) status = check_points(&c);
    if (status == MHA_OK) status = mha_scratch_alloc(context, c.points, sizeof *c.losses, &found);
    if (status == MHA_OK)
        status = mha_scratch_alloc(context, r.d.num_layers * r.d.num_heads, sizeof *gates, &gates);
    if (status == MHA_OK) {
        r.mark = mhai_hash(r.mark, c.order, (size_t)c.count * sizeof *c.order);
        r.mark = mhai_hash(r.mark, c.removed, (size_t)c.points * sizeof *c.removed);
    }
    status = mhai_importance_agree(&r, status, c.points, c.count);
    if (status == MHA_OK) status = curve(&r, &c, gates, found);
    if (status == MHA_OK && c.points > 0) memcpy(c.losses, found, bytes);
    mhai_importance_end(&r);
    return mha_scratch_end(context, mark, status);
}
