#include "support/problem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const value_names[VALUES_KINDS] = {"normal", "large",   "tiny", "huge",  "equal",
                                                      "rising", "falling", "peak", "spread"};

/* ---- values --------------------------------------------------------------------------------- */

/* Factors for standard normal q, k and v. */
static const struct {
    double q, k, v;
} factors[VALUES_KINDS] = {
    [VALUES_NORMAL] = {1, 1, 1},          [VALUES_LARGE] = {1e4, 1, 1},
    [VALUES_TINY] = {1e-38, 1e-3, 1e-40}, [VALUES_HUGE] = {1e18, 1e-18, 1e33},
    [VALUES_EQUAL] = {1, 1, 1},           [VALUES_RISING] = {1, 0.1, 1},
    [VALUES_FALLING] = {1, 0.1, 1},       [VALUES_PEAK] = {1, 1, 1},
    [VALUES_SPREAD] = {1, 1, 1},
};

static void fill_normal(rng *r, const mha_tensor *x, double factor, bool spread)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do {
        double value = (double)rng_normal(r) * factor;
        if (spread) value *= exp(3 * (double)rng_normal(r));
        *(float *)guarded_element(x, index) = (float)value;
    } while (guarded_next(x, index));
}

/* Set the height of each key: its product with a query of ones. */
static void shape_keys(rng *r, const problem *p)
{
    const problem_shape *n = &p->shape;
    int64_t peak = n->S > 0 ? rng_between(r, 0, n->S - 1) : 0, index[4] = {0};
    double steep = rng_chance(r, 0.5) ? 30 : 400;
    if (guarded_is_empty(&p->k.view)) return;
    do {
        float *k = guarded_element(&p->k.view, index);
        double place = (double)index[2] / (double)n->S, per = 1 / sqrt((double)n->D);
        switch (n->values) {
        case VALUES_EQUAL: *k = (float)(1.0 / (double)(index[3] + 1)); break;
        case VALUES_RISING: *k += (float)(steep * place * per); break;
        case VALUES_FALLING: *k -= (float)(steep * place * per); break;
        case VALUES_PEAK: *k += index[2] == peak ? (float)(200 * per) : 0; break;
        default: break;
        }
    } while (guarded_next(&p->k.view, index));
    if (guarded_is_empty(&p->q.view) || n->values == VALUES_EQUAL) return;
    memset(index, 0, sizeof index);
    do *(float *)guarded_element(&p->q.view, index) = (float)(1 + 0.01 * (double)rng_normal(r));
    while (guarded_next(&p->q.view, index));
}

static void fill_values(problem *p, rng *r)
{
    problem_values kind = p->shape.values;
    bool spread = kind == VALUES_SPREAD;
    fill_normal(r, &p->q.view, factors[kind].q, spread);
    fill_normal(r, &p->k.view, factors[kind].k, false);
    fill_normal(r, &p->v.view, factors[kind].v, spread);
    if (kind == VALUES_EQUAL || kind == VALUES_RISING || kind == VALUES_FALLING ||
        kind == VALUES_PEAK)
        shape_keys(r, p);
}

/* ---- masks ---------------------------------------------------------------------------------- */

static int64_t some_offset(rng *r, int64_t T, int64_t S)
{
    switch (rng_between(r, 0, 6)) {
    case 0: return 0;
    case 1: return S - T;
    case 2: return rng_between(r, -T - 1, 0);
    case 3: return rng_between(r, 0, S + 1);
    case 4: return (rng_chance(r, 0.5) ? 1 : -1) * ((int64_t)1 << 60);
    default: return rng_between(r, -T, S);
    }
}

/* A tensor that broadcasts to [B,H,T,S]: any number of axes, each full or 1. */
static guarded broadcast_tensor(const problem *p, rng *r, mha_dtype dtype)
{
    const int64_t full[4] = {p->shape.B, p->shape.H, p->shape.T, p->shape.S};
    int64_t shape[4] = {0};
    int ndim = (int)rng_between(r, 0, 4);
    if (rng_chance(r, 0.4)) ndim = 4;
    for (int i = 0; i < ndim; i++) shape[i] = rng_chance(r, 0.7) ? full[4 - ndim + i] : 1;
    static const unsigned layouts[] = {LAYOUT_CONTIGUOUS, LAYOUT_CONTIGUOUS, LAYOUT_PAD,
                                       LAYOUT_PAD | LAYOUT_NEGATIVE | LAYOUT_LAST};
    unsigned layout = p->shape.plain_layout ? LAYOUT_CONTIGUOUS : RNG_PICK(r, layouts);
    return guarded_make(r, dtype, ndim, shape, layout);
}

/* Fill a mask. Some rows are cleared, so that some queries see no key. */
static void fill_mask(rng *r, const mha_tensor *mask, double drop)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    bool row_dropped = false;
    if (guarded_is_empty(mask)) return;
    do {
        if (mask->ndim == 0 || index[mask->ndim - 1] == 0) row_dropped = rng_chance(r, 0.1);
        bool dropped = rng_chance(r, drop) || row_dropped;
        void *element = guarded_element(mask, index);
        if (mask->dtype == MHA_U8)
            *(uint8_t *)element = (uint8_t)(dropped ? 0 : rng_between(r, 1, 255));
        else
            *(float *)element = dropped ? -INFINITY : 2 * rng_normal(r);
    } while (guarded_next(mask, index));
}

static void add_masks(problem *p, rng *r)
{
    const problem_shape *n = &p->shape;
    unsigned masks = n->masks;
    if (masks & (MASK_CAUSAL | MASK_OFFSETS)) {
        p->desc.flags |= MHA_ATTENTION_CAUSAL;
        for (int64_t b = 0; b < n->B; b++) p->offsets[b] = some_offset(r, n->T, n->S);
        if (masks & MASK_OFFSETS)
            p->desc.q_offsets = p->offsets;
        else
            p->desc.q_offset = p->offsets[0] = some_offset(r, n->T, n->S);
    }
    if (masks & MASK_LENGTHS) {
        for (int64_t b = 0; b < n->B; b++)
            p->lengths[b] = rng_chance(r, 0.2)   ? 0
                            : rng_chance(r, 0.2) ? n->S
                                                 : rng_between(r, 0, n->S);
        p->desc.key_lengths = p->lengths;
    }
    if (masks & MASK_KEEP) {
        static const double drops[] = {0.02, 0.5, 0.95};
        p->keep = broadcast_tensor(p, r, MHA_U8);
        fill_mask(r, &p->keep.view, RNG_PICK(r, drops));
        p->desc.keep_mask = &p->keep.view;
    }
    if (masks & MASK_BIAS) {
        static const double drops[] = {0, 0.1, 0.6};
        p->bias = broadcast_tensor(p, r, MHA_F32);
        fill_mask(r, &p->bias.view, RNG_PICK(r, drops));
        p->desc.bias = &p->bias.view;
    }
}

static void choose_scale(problem *p, rng *r)
{
    static const float scales[] = {0.125f, -0.25f, 1.0f, 0.0f};
    /* Values that are designed for the default scale keep it. */
    if (p->shape.values != VALUES_NORMAL || rng_chance(r, 0.6)) return;
    p->desc.scale = RNG_PICK(r, scales);
    if (p->desc.scale == 0 || rng_chance(r, 0.5)) p->desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
}

/* ---- problems ------------------------------------------------------------------------------- */

static int describe_mask(char *text, size_t size, const char *name, const guarded *mask)
{
    int used = snprintf(text, size, " %s [", name);
    for (int i = 0; i < mask->view.ndim; i++)
        used += snprintf(text + used, size - (size_t)used, "%s%lld", i ? "," : "",
                         (long long)mask->view.shape[i]);
    return used + snprintf(text + used, size - (size_t)used, "]");
}

static void describe(problem *p)
{
    const problem_shape *n = &p->shape;
    size_t size = sizeof p->text;
    int used = snprintf(p->text, size, "B%lld H%lld/%lld T%lld S%lld D%lld/%lld %s",
                        (long long)n->B, (long long)n->H, (long long)n->Hk, (long long)n->T,
                        (long long)n->S, (long long)n->D, (long long)n->Dv, value_names[n->values]);
    if (p->desc.scale != 0 || p->desc.flags & MHA_ATTENTION_SCALE_GIVEN)
        used += snprintf(p->text + used, size - (size_t)used, " scale %g", (double)p->desc.scale);
    if (p->desc.flags & MHA_ATTENTION_CAUSAL)
        used += snprintf(p->text + used, size - (size_t)used, " causal%s %lld",
                         p->desc.q_offsets ? "[b]" : "", (long long)p->offsets[0]);
    if (p->desc.key_lengths)
        used += snprintf(p->text + used, size - (size_t)used, " lengths %lld..",
                         (long long)p->lengths[0]);
    if (p->desc.keep_mask)
        used += describe_mask(p->text + used, size - (size_t)used, "keep", &p->keep);
    if (p->desc.bias) describe_mask(p->text + used, size - (size_t)used, "bias", &p->bias);
}

void problem_make(problem *p, rng *r, const problem_shape *shape)
{
    memset(p, 0, sizeof *p);
    p->shape = *shape;
    p->desc.struct_size = sizeof p->desc;
    const int64_t q[] = {shape->B, shape->H, shape->T, shape->D};
    const int64_t k[] = {shape->B, shape->Hk, shape->S, shape->D};
    const int64_t v[] = {shape->B, shape->Hk, shape->S, shape->Dv};
    unsigned layout[3] = {0};
    for (int i = 0; i < 3 && !shape->plain_layout; i++) layout[i] = guarded_random_layout(r, true);
    p->q = guarded_make(r, MHA_F32, 4, q, layout[0]);
    p->k = guarded_make(r, MHA_F32, 4, k, layout[1]);
    p->v = guarded_make(r, MHA_F32, 4, v, layout[2]);
    choose_scale(p, r);
    fill_values(p, r);
    add_masks(p, r);
    describe(p);
}

void problem_free(problem *p)
{
    guarded *all[] = {&p->q, &p->k, &p->v, &p->keep, &p->bias};
    for (int i = 0; i < 5; i++) guarded_free(all[i]);
}

/* ---- outcomes ------------------------------------------------------------------------------- */

outcome outcome_make(rng *r, const problem_shape *n, unsigned wanted, unsigned layout)
{
    outcome x = {.has_lse = wanted & OUTCOME_LSE, .has_p = wanted & OUTCOME_P};
    x.lse.view.ndim = x.p.view.ndim = -1;
    x.o = guarded_make(r, MHA_F32, 4, (int64_t[]){n->B, n->H, n->T, n->Dv}, layout);
    if (x.has_lse) x.lse = guarded_make(r, MHA_F32, 3, (int64_t[]){n->B, n->H, n->T}, layout);
    if (x.has_p) x.p = guarded_make(r, MHA_F32, 4, (int64_t[]){n->B, n->H, n->T, n->S}, layout);
    return x;
}

void outcome_free(outcome *x)
{
    guarded_free(&x->o);
    guarded_free(&x->lse);
    guarded_free(&x->p);
}

mha_status outcome_run(mha_context *context, const mha_attention_desc *desc, const mha_tensor *q,
                       const mha_tensor *k, const mha_tensor *v, outcome *x)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .lse = x->has_lse ? &x->lse.view : NULL,
                                           .probabilities = x->has_p ? &x->p.view : NULL};
    return mha_attention_forward(context, desc, q, k, v, &x->o.view, &outputs);
}

mha_status problem_run(mha_context *context, const problem *p, mha_path path, outcome *x)
{
    mha_attention_desc desc = p->desc;
    desc.path = path;
    return outcome_run(context, &desc, &p->q.view, &p->k.view, &p->v.view, x);
}

bool outcome_intact(const outcome *x)
{
    return guarded_gaps_intact(&x->o) && (!x->has_lse || guarded_gaps_intact(&x->lse)) &&
           (!x->has_p || guarded_gaps_intact(&x->p));
}

bool outcome_same(const outcome *a, const outcome *b, bool nan_alike)
{
    if (!guarded_same_bits(&a->o.view, &b->o.view, nan_alike)) return false;
    if (a->has_lse && b->has_lse && !guarded_same_bits(&a->lse.view, &b->lse.view, nan_alike))
        return false;
    return !a->has_p || !b->has_p || guarded_same_bits(&a->p.view, &b->p.view, nan_alike);
}
