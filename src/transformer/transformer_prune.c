/* Smaller transformers made of larger ones: heads taken out of the matrices, key/value heads
 * averaged into fewer. */
#include "transformer/transformer_parts.h"

#include "nn/nn_check.h"

#include <string.h>

/* From which heads of the old layer those of the new one come. */
typedef struct heads_plan {
    int64_t q, kv;    /* of the new layer */
    int64_t *from_q;  /* [q] */
    int64_t *from_kv; /* [kv], the first of `merged` that become one */
    int64_t merged;   /* key/value heads that are averaged; 1: copied */
} heads_plan;

/* A call: plans of all layers, and both transformers. */
typedef struct call {
    mha_context *context;
    const mha_transformer *from;
    mha_transformer *to;
    heads_plan *plans; /* [L] */
} call;

/* ---- plans --------------------------------------------------------------------------------- */

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static mha_status take(call *c, int64_t count, int64_t **memory)
{
    void *taken;
    MHA_TRY(mha_scratch_alloc(c->context, count > 0 ? count : 1, sizeof **memory, &taken));
    *memory = taken;
    return MHA_OK;
}

static mha_status take_plans(call *c)
{
    const mha_transformer_desc *d = &c->from->desc;
    void *memory;
    MHA_TRY(mha_scratch_alloc(c->context, d->num_layers, sizeof *c->plans, &memory));
    c->plans = memory;
    for (int64_t l = 0; l < d->num_layers; l++) {
        const int64_t heads = mhai_transformer_heads_of(d, l, false).q;
        c->plans[l] = (heads_plan){.merged = 1};
        MHA_TRY(take(c, heads, &c->plans[l].from_q));
        MHA_TRY(take(c, heads, &c->plans[l].from_kv));
    }
    return MHA_OK;
}

/* Heads of a layer with keep != 0. Groups of different sizes are cut into ones of equal size, the
 * greatest that divides them all, each with its own copy of the key/value head. */
static void plan_kept(const mha_transformer *t, int64_t layer, const float *keep, heads_plan *plan)
{
    const mhai_heads heads = mhai_transformer_heads_of(&t->desc, layer, false);
    const int64_t group = heads.kv > 0 ? heads.q / heads.kv : 1;
    int64_t size = 0;
    for (int64_t g = 0; g < heads.kv; g++) {
        int64_t kept = 0;
        for (int64_t h = g * group; h < (g + 1) * group; h++) kept += keep[h] > 0;
        size = common_divisor(size, kept);
    }
    for (int64_t h = 0; h < heads.q; h++) {
        if (!(keep[h] > 0)) continue;
        if (plan->q % size == 0) plan->from_kv[plan->kv++] = h / group;
        plan->from_q[plan->q++] = h;
    }
}

/* ---- parameters ---------------------------------------------------------------------------- */

/* A block of `block` numbers, averaged over `merged` of them `apart` numbers from each other. */
static void average(float *to, const float *from, int64_t block, int64_t merged, int64_t apart)
{
    for (int64_t i = 0; i < block; i++) {
        double sum = 0;
        for (int64_t k = 0; k < merged; k++) sum += (double)from[k * apart + i];
        to[i] = merged == 1 ? from[i] : (float)(sum / (double)merged);
    }
}

/* Rows of q, k, v and their biases: head by head, `block` numbers each. */
static void copy_rows(float *to, const float *from, const int64_t *heads, int64_t count,
                      int64_t merged, int64_t block)
{
    for (int64_t h = 0; h < count; h++)
        average(to + h * block, from + heads[h] * block, block, merged, block);
}

/* Columns of W_o. */
static void copy_columns(float *to, const float *from, const heads_plan *plan, int64_t rows,
                         int64_t D, int64_t from_width)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < plan->q; h++)
            memcpy(to + (r * plan->q + h) * D, from + r * from_width + plan->from_q[h] * D,
                   (size_t)D * sizeof *to);
}

static bool begins(const char *name, const char *beginning)
{
    return strncmp(name, beginning, strlen(beginning)) == 0;
}

static mha_status copy_parameter(const call *c, const mha_parameter *p)
{
    mha_parameter old;
    const int64_t D = c->from->desc.head_dim;
    MHA_TRY(mha_transformer_find(c->from, -1, p->name, &old));
    float *to = c->to->data + p->offset;
    const mha_scratch_mark mark = mha_scratch_top(c->context);
    mha_tensor whole;
    MHA_TRY(mhai_transformer_matrix(c->context, c->from, old.offset, old.shape[0],
                                    old.ndim == 2 ? old.shape[1] : 1, &whole));
    const float *from = whole.data;
    const char *part = p->layer < 0 ? NULL : strstr(p->name, ".self_attn.");
    const int64_t block = p->ndim == 2 ? D * p->shape[1] : D;
    const heads_plan *plan = p->layer < 0 ? NULL : &c->plans[p->layer];
    if (part && begins(part, ".self_attn.q_proj"))
        copy_rows(to, from, plan->from_q, plan->q, 1, block);
    else if (part && (begins(part, ".self_attn.k_proj") || begins(part, ".self_attn.v_proj")))
        copy_rows(to, from, plan->from_kv, plan->kv, plan->merged, block);
    else if (part && strcmp(part, ".self_attn.o_proj.weight") == 0)
        copy_columns(to, from, plan, p->shape[0], D, old.shape[1]);
    else if (part && (strcmp(part, ".self_attn.sinks") == 0 ||
                      strcmp(part, ".self_attn.alibi_slopes") == 0))
        copy_rows(to, from, plan->from_q, plan->q, 1, 1);
    else if (part && strcmp(part, ".self_attn.relative_attention_bias.weight") == 0)
        copy_columns(to, from, plan, p->shape[0], 1, old.shape[1]);
    else
        memcpy(to, from, (size_t)p->count * sizeof *to);
    mha_scratch_release(c->context, mark);
    return MHA_OK;
}

/* The new transformer, by the plans. */
static mha_status make(call *c, bool keep_num_heads)
{
    mha_transformer_desc d = c->from->desc;
    int64_t *heads, *kv, most = 1;
    MHA_TRY(take(c, d.num_layers, &heads));
    MHA_TRY(take(c, d.num_layers, &kv));
    for (int64_t l = 0; l < d.num_layers; l++) {
        heads[l] = c->plans[l].q;
        kv[l] = c->plans[l].kv;
        if (heads[l] > most) most = heads[l];
    }
    d.struct_size = sizeof d;
    d.layer_heads = heads;
    d.layer_kv_heads = kv;
    if (!keep_num_heads) d.num_heads = most;
    for (int64_t l = 0; l < d.num_layers; l++) /* the rest of what all layers may have alike */
        if (!keep_num_heads && heads[l] == most) d.kv_heads = kv[l];
    if (!keep_num_heads && d.num_heads % d.kv_heads != 0) d.kv_heads = d.num_heads;
    MHA_TRY(mha_transformer_create(c->context, &d, &c->to));
    for (int64_t i = 0; i < c->to->parameter_count; i++)
        MHA_TRY(copy_parameter(c, &c->to->parameters[i]));
    return mha_transformer_update(c->context, c->to);
}

static mha_status finish(call *c, mha_scratch_mark mark, mha_status status, mha_transformer **made)
{
    mha_scratch_release(c->context, mark);
    if (status == MHA_OK)
        *made = c->to;
    else
        mha_transformer_destroy(c->to);
    return status;
}

/* ---- public -------------------------------------------------------------------------------- */

static mha_status check_keep(const mha_transformer *t, const mha_tensor *keep)
{
    MHA_TRY(mhai_nn_matrix("keep", keep, t->desc.num_layers, t->desc.num_heads));
    for (int64_t l = 0; l < t->desc.num_layers; l++)
        for (int64_t h = 0; h < t->desc.num_heads; h++) {
            const float k = mhai_nn_row(keep, l)[h];
            if (!(k >= 0 && k <= 0) && !(k >= 1 && k <= 1))
                return mha_fail(MHA_ERR_ARGUMENT, "keep[%lld,%lld] is %g, expected 0 (goes) or 1",
                                (long long)l, (long long)h, (double)k);
        }
    return MHA_OK;
}

mha_status mha_transformer_prune(mha_context *context, const mha_transformer *transformer,
                                 const mha_tensor *keep, mha_transformer **pruned)
{
    if (!context || !transformer || !pruned)
        return mha_fail(MHA_ERR_NULL, "mha_transformer_prune: %s is NULL",
                        !context       ? "context"
                        : !transformer ? "transformer"
                                       : "pruned");
    MHA_TRY(check_keep(transformer, keep));
    mha_scratch_mark mark = mha_scratch_top(context);
    call c = {.context = context, .from = transformer};
    mha_status status = take_plans(&c);
    for (int64_t l = 0; status == MHA_OK && l < transformer->desc.num_layers; l++)
        plan_kept(transformer, l, mhai_nn_row(keep, l), &c.plans[l]);
    if (status == MHA_OK)
        status = make(&c, mhai_transformer_has(transformer, MHA_TRANSFORMER_CROSS));
    return finish(&c, mark, status, pruned);
}

/* All heads of a layer on kv_heads key/value heads. */
static mha_status plan_shared(const mha_transformer *t, int64_t layer, int64_t kv_heads,
                              heads_plan *plan)
{
    const mhai_heads heads = mhai_transformer_heads_of(&t->desc, layer, false);
    if (heads.q == 0) return MHA_OK;
    if (kv_heads < 1 || heads.kv % kv_heads != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "layer %lld has %lld key/value heads; they cannot become %lld, choose a "
                        "divisor",
                        (long long)layer, (long long)heads.kv, (long long)kv_heads);
    plan->q = heads.q;
    plan->kv = kv_heads;
    plan->merged = heads.kv / kv_heads;
    for (int64_t h = 0; h < heads.q; h++) plan->from_q[h] = h;
    for (int64_t g = 0; g < kv_heads; g++) plan->from_kv[g] = g * plan->merged;
    return MHA_OK;
}

mha_status mha_transformer_share_kv(mha_context *context, const mha_transformer *transformer,
                                    int64_t kv_heads, mha_transformer **shared)
{
    if (!context || !transformer || !shared)
        return mha_fail(MHA_ERR_NULL, "mha_transformer_share_kv: %s is NULL",
                        !context       ? "context"
                        : !transformer ? "transformer"
                                       : "shared");
    mha_scratch_mark mark = mha_scratch_top(context);
    call c = {.context = context, .from = transformer};
    mha_status status = take_plans(&c);
    for (int64_t l = 0; status == MHA_OK && l < transformer->desc.num_layers; l++)
        status = plan_shared(transformer, l, kv_heads, &c.plans[l]);
    if (status == MHA_OK)
        status = make(&c, mhai_transformer_has(transformer, MHA_TRANSFORMER_CROSS));
    return finish(&c, mark, status, shared);
}
