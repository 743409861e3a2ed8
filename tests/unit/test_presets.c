/* The presets against the double-precision reference: each peer's conventions are written out here
 * in its own words, pair by pair, as a dense mask and bias; what comes out must be within the
 * bounds of attention (docs/numerics.md), or, for the module, have the bits of the module with that
 * dense mask. Errors are in test_presets_misuse.c, comparisons with the peers in tests/python. */
#include "reference/kinds_bounds.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/shared_context.h"
#include "support/suite.h"
#include "support/tally.h"

#include <multihead/presets.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- one head of one sequence, dense ----------------------------------------------------------
 */

typedef struct dense {
    int64_t T, S, D, Dv;
    float *q, *k, *v, *bias;
    uint8_t *keep;
    mha_tensor tq, tk, tv, tbias, tkeep;
    mha_attention_desc desc;
    ref_attention a;
} dense;

static void *memory_for(int64_t count, size_t size)
{
    void *memory = calloc((size_t)(count > 0 ? count : 1), size);
    assert_non_null(memory);
    return memory;
}

/* In place: the reference points into it. Everything is 0, every pair is kept. */
static void dense_make(dense *x, int64_t T, int64_t S, int64_t D, int64_t Dv)
{
    *x = (dense){.T = T, .S = S, .D = D, .Dv = Dv};
    x->q = memory_for(T * D, sizeof(float));
    x->k = memory_for(S * D, sizeof(float));
    x->v = memory_for(S * Dv, sizeof(float));
    x->bias = memory_for(T * S, sizeof(float));
    x->keep = memory_for(T * S, 1);
    memset(x->keep, 1, (size_t)(T * S));
    x->tq = mha_tensor_contiguous(x->q, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    x->tk = mha_tensor_contiguous(x->k, MHA_F32, 4, (int64_t[]){1, 1, S, D});
    x->tv = mha_tensor_contiguous(x->v, MHA_F32, 4, (int64_t[]){1, 1, S, Dv});
    x->tbias = mha_tensor_contiguous(x->bias, MHA_F32, 2, (int64_t[]){T, S});
    x->tkeep = mha_tensor_contiguous(x->keep, MHA_U8, 2, (int64_t[]){T, S});
    x->desc = (mha_attention_desc){
        .struct_size = sizeof x->desc, .keep_mask = &x->tkeep, .bias = &x->tbias};
    x->a = (ref_attention){.desc = &x->desc, .q = &x->tq, .k = &x->tk, .v = &x->tv};
}

static void dense_free(dense *x)
{
    free(x->q), free(x->k), free(x->v), free(x->bias), free(x->keep);
}

/* What a mask says of a pair, u8 or float; `masks` is what true means. */
static void put_mask(dense *x, int64_t t, int64_t s, const mha_tensor *mask, const void *element,
                     bool masks)
{
    if (mask->dtype == MHA_U8)
        x->keep[t * x->S + s] &= (*(const uint8_t *)element != 0) != masks;
    else
        x->bias[t * x->S + s] += *(const float *)element;
}

/* Row t of the library's o, and of its scores at a stage (or p at stage -1) if there are any. */
static void check_row(const dense *x, const bound_arith *arith, int64_t t, const float *o,
                      const float *extra, int stage, tally *tallies, const char *text)
{
    kinds_row row = kinds_row_make(x->S, x->Dv);
    bound_row bound = bound_row_make(x->S, x->Dv);
    kinds_attention_row(&x->a, 0, 0, t, &row);
    kinds_bound_row(&x->a, arith, 0, 0, t, &row, &bound);
    for (int64_t d = 0; d < x->Dv; d++)
        if (!tally_compare(&tallies[0], (double)o[d], row.o[d], bound.o[d]))
            fail_msg("%s: o[%lld,%lld] is %.9g, exact %.9g, bound %.3g", text, (long long)t,
                     (long long)d, (double)o[d], row.o[d], bound.o[d]);
    for (int64_t s = 0; extra && s < x->S; s++) {
        kinds_score parts = kinds_score_at(&x->a, 0, 0, t, s);
        double exact = row.p[s], within = bound.p[s];
        if (stage == MHA_SCORES_RAW) exact = parts.before_cap;
        if (stage == MHA_SCORES_CAPPED) exact = parts.capped;
        if (stage == MHA_SCORES_BIASED) exact = row.score[s];
        if (stage >= 0)
            within = kinds_bound_score(&x->a, arith, 0, 0, t, s, (mha_score_stage)stage, &parts);
        if (!tally_compare(&tallies[1], (double)extra[s], exact, within))
            fail_msg("%s: qk[%lld,%lld] at stage %d is %.9g, exact %.9g, bound %.3g", text,
                     (long long)t, (long long)s, stage, (double)extra[s], exact, within);
    }
    kinds_row_free(&row);
    bound_row_free(&bound);
}

/* ---- random tensors ---------------------------------------------------------------------------
 */

static guarded numbers(rng *r, int ndim, const int64_t *shape)
{
    return guarded_filled(r, ndim, shape, guarded_random_layout(r, true), 1);
}

/* A mask: booleans, or numbers with -inf; some axes of 1. */
static guarded some_mask(rng *r, int ndim, const int64_t *full, bool boolean, bool exact)
{
    int64_t shape[MHA_MAX_DIMS], index[MHA_MAX_DIMS] = {0};
    for (int i = 0; i < ndim; i++) shape[i] = !exact && rng_chance(r, 0.3) ? 1 : full[i];
    double rate = rng_chance(r, 0.5) ? 0.2 : 0.7; /* of what true says or -inf masks */
    guarded made = guarded_make(r, boolean ? MHA_U8 : MHA_F32, ndim, shape,
                                guarded_random_layout(r, true) | LAYOUT_LAST);
    if (guarded_is_empty(&made.view)) return made;
    do {
        bool hit = rng_chance(r, rate);
        void *element = guarded_element(&made.view, index);
        if (boolean)
            *(uint8_t *)element = hit ? (uint8_t)rng_between(r, 1, 255) : 0;
        else
            *(float *)element = hit ? -INFINITY : rng_normal(r);
    } while (guarded_next(&made.view, index));
    return made;
}

/* The element that broadcasts to an index of `dims` axes, from the right. */
static const void *element_of(const mha_tensor *x, int dims, const int64_t *index)
{
    int64_t own[MHA_MAX_DIMS];
    for (int i = 0; i < x->ndim; i++) own[i] = x->shape[i] == 1 ? 0 : index[dims - x->ndim + i];
    return guarded_element(x, own);
}

static int64_t pick_length(rng *r)
{
    static const int64_t lengths[] = {1, 2, 3, 5, 9, 17, 31};
    if (rng_chance(r, 0.03)) return rng_chance(r, 0.5) ? 0 : 530;
    return RNG_PICK(r, lengths);
}

/* The machines whose arithmetic a preset can use: it chooses the path by head size alone. */
static bound_arith arith_of(const machine *m, int64_t D, int64_t Dv, bool default_scale)
{
    if (D > MHA_TILED_MAX_HEAD_DIM || Dv > MHA_TILED_MAX_HEAD_DIM)
        return bound_arith_plain(default_scale);
    return bound_arith_tiled(m->isa, default_scale);
}

/* ---- scaled_dot_product_attention --------------------------------------------------------------
 */

typedef struct sdpa_case {
    int dims;
    int64_t lead[4], T, S, D, Dv, group;
    guarded q, k, v, mask, out;
    mha_pytorch_sdpa_args args;
    char text[200];
} sdpa_case;

static guarded sdpa_input(const sdpa_case *c, rng *r, int64_t rows, int64_t columns, int64_t group,
                          bool whole)
{
    int64_t shape[MHA_MAX_DIMS];
    const int lead = c->dims - 2;
    for (int i = 0; i < lead; i++)
        shape[i] = rng_chance(r, 0.15) && !(group && i == lead - 1) ? 1 : c->lead[i];
    if (group > 1) shape[lead - 1] = c->lead[lead - 1] / group;
    shape[lead] = rows, shape[lead + 1] = columns;
    int skip = 0; /* leading axes of 1 may be missing, though not everywhere */
    while (!whole && skip < lead && shape[skip] == 1 && !(group && skip == lead - 1) &&
           rng_chance(r, 0.5))
        skip++;
    return numbers(r, c->dims - skip, shape + skip);
}

/* In place. */
static void sdpa_make(sdpa_case *c, rng *r)
{
    *c = (sdpa_case){.dims = (int)rng_between(r, 2, 6), .mask = {.view = {.ndim = -1}}};
    c->T = pick_length(r), c->S = pick_length(r);
    c->D = rng_between(r, 1, 40), c->Dv = rng_chance(r, 0.05) ? 260 : rng_between(r, 1, 40);
    for (int i = 0; i < c->dims - 2; i++) c->lead[i] = rng_between(r, 1, 3);
    bool grouped = c->dims > 2 && rng_chance(r, 0.3);
    c->group = grouped ? rng_between(r, 1, 3) : 0;
    if (grouped) c->lead[c->dims - 3] *= c->group;
    c->q = sdpa_input(c, r, c->T, c->D, grouped, true);
    c->k = sdpa_input(c, r, c->S, c->D, c->group, false);
    c->v = sdpa_input(c, r, c->S, c->Dv, c->group, false);
    int64_t full[MHA_MAX_DIMS]; /* what the three broadcast to, and what a mask may have */
    for (int i = 0; i < c->dims - 2; i++) {
        const mha_tensor *all[] = {&c->q.view, &c->k.view, &c->v.view};
        full[i] = 1;
        for (int j = 0; j < 3; j++) {
            int at = i - (c->dims - all[j]->ndim);
            if (at >= 0 && all[j]->shape[at] > full[i]) full[i] = all[j]->shape[at];
        }
        c->lead[i] = full[i];
    }
    full[c->dims - 2] = c->T, full[c->dims - 1] = c->Dv;
    c->out = guarded_make(r, MHA_F32, c->dims, full, guarded_random_layout(r, false));
    full[c->dims - 1] = c->S;
    c->args = (mha_pytorch_sdpa_args){.struct_size = sizeof c->args};
    if (grouped) c->args.flags |= MHA_SDPA_ENABLE_GQA;
    int kind = (int)rng_between(r, 0, 3); /* none, causal, boolean, float */
    int ndim = (int)rng_between(r, 0, c->dims);
    if (kind == 1) c->args.flags |= MHA_SDPA_IS_CAUSAL;
    if (kind >= 2) {
        c->mask = some_mask(r, ndim, full + c->dims - ndim, kind == 2, false);
        c->args.attn_mask = &c->mask.view;
    }
    if (rng_chance(r, 0.5)) {
        static const float scales[] = {0, -0.5f, 0.1f, 1};
        c->args.flags |= MHA_SDPA_SCALE_GIVEN;
        c->args.scale = RNG_PICK(r, scales);
    }
    snprintf(c->text, sizeof c->text,
             "dims %d T %lld S %lld D %lld Dv %lld group %lld mask %d (%d)", c->dims,
             (long long)c->T, (long long)c->S, (long long)c->D, (long long)c->Dv,
             (long long)c->group, kind, ndim);
}

static void sdpa_free(sdpa_case *c)
{
    guarded_free(&c->q), guarded_free(&c->k), guarded_free(&c->v), guarded_free(&c->out);
    if (c->mask.view.ndim >= 0) guarded_free(&c->mask);
}

/* The problem at one index of the leading axes, by PyTorch's words. */
static void sdpa_dense(const sdpa_case *c, const int64_t *lead, dense *x)
{
    const int n = c->dims - 2;
    int64_t index[MHA_MAX_DIMS] = {0}, shared[MHA_MAX_DIMS] = {0};
    dense_make(x, c->T, c->S, c->D, c->Dv);
    memcpy(index, lead, (size_t)n * sizeof *lead);
    memcpy(shared, lead, (size_t)n * sizeof *lead);
    if (c->group > 1) shared[n - 1] /= c->group; /* repeat_interleave */
    for (index[n] = 0; index[n] < c->T; index[n]++)
        for (index[n + 1] = 0; index[n + 1] < c->D; index[n + 1]++)
            x->q[index[n] * c->D + index[n + 1]] =
                *(const float *)element_of(&c->q.view, c->dims, index);
    for (shared[n] = 0; shared[n] < c->S; shared[n]++) {
        for (shared[n + 1] = 0; shared[n + 1] < c->D; shared[n + 1]++)
            x->k[shared[n] * c->D + shared[n + 1]] =
                *(const float *)element_of(&c->k.view, c->dims, shared);
        for (shared[n + 1] = 0; shared[n + 1] < c->Dv; shared[n + 1]++)
            x->v[shared[n] * c->Dv + shared[n + 1]] =
                *(const float *)element_of(&c->v.view, c->dims, shared);
    }
    for (index[n] = 0; index[n] < c->T; index[n]++)
        for (index[n + 1] = 0; index[n + 1] < c->S; index[n + 1]++) {
            if (c->args.attn_mask)
                put_mask(x, index[n], index[n + 1], &c->mask.view,
                         element_of(&c->mask.view, c->dims, index), false);
            if (c->args.flags & MHA_SDPA_IS_CAUSAL) /* torch.ones(L, S).tril(0) */
                x->keep[index[n] * c->S + index[n + 1]] = index[n + 1] <= index[n];
        }
    if (c->args.flags & MHA_SDPA_SCALE_GIVEN) x->desc.flags = MHA_ATTENTION_SCALE_GIVEN;
    x->desc.scale = c->args.scale;
}

static void sdpa_check(const sdpa_case *c, const machine *m, tally *tallies)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    bound_arith arith = arith_of(m, c->D, c->Dv, !(c->args.flags & MHA_SDPA_SCALE_GIVEN));
    mha_tensor lead = c->out.view;
    if (guarded_is_empty(&lead)) return;
    lead.ndim -= 2;
    do {
        dense x;
        sdpa_dense(c, index, &x);
        for (int64_t t = 0; t < c->T; t++) {
            int64_t at[MHA_MAX_DIMS] = {0};
            memcpy(at, index, sizeof at);
            at[c->dims - 2] = t, at[c->dims - 1] = 0;
            check_row(&x, &arith, t, guarded_element(&c->out.view, at), NULL, 0, tallies, c->text);
        }
        dense_free(&x);
    } while (lead.ndim > 0 && guarded_next(&lead, index));
}

static void sdpa_conventions(void **state)
{
    (void)state;
    machines all = machines_make(2);
    tally tallies[2] = {{.name = "sdpa: o"}};
    for (int i = 0; i < rng_cases(150, 3000); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        const machine *m = &all.each[i % (all.count - 1)]; /* the last is the plain path */
        sdpa_case c;
        sdpa_make(&c, &r);
        mha_status status = mha_pytorch_sdpa_forward(m->context, &c.args, &c.q.view, &c.k.view,
                                                     &c.v.view, &c.out.view);
        if (status != MHA_OK) fail_msg("case %d: %s: %s", i, c.text, mha_error_detail());
        if (!guarded_gaps_intact(&c.out)) fail_msg("case %d: wrote beside out", i);
        sdpa_check(&c, m, tallies);
        sdpa_free(&c);
    }
    tally_judge(&tallies[0]);
}

/* Five dimensions are many calls of four: each has the bits of that call, and dropout a stream of
 * its own for each. */
static void sdpa_slices(void **state)
{
    (void)state;
    enum { A = 2, B = 2, H = 3, T = 7, S = 9, D = 8 };
    mha_context *context = context_with(0);
    rng r = rng_make(rng_run_seed(), 2);
    guarded q = numbers(&r, 5, (int64_t[]){A, B, H, T, D});
    guarded k = numbers(&r, 5, (int64_t[]){A, B, H, S, D});
    float whole[A][B][H][T][D], part[B][H][T][D], dropped[A][B][H][T][D];
    mha_tensor five = mha_tensor_contiguous(whole, MHA_F32, 5, (int64_t[]){A, B, H, T, D});
    mha_tensor four = mha_tensor_contiguous(part, MHA_F32, 4, (int64_t[]){B, H, T, D});
    assert_int_equal(mha_pytorch_sdpa_forward(context, NULL, &q.view, &k.view, &k.view, &five),
                     MHA_OK);
    for (int64_t a = 0; a < A; a++) {
        mha_tensor qa = guarded_slice(&q.view, 0, a, 1), ka = guarded_slice(&k.view, 0, a, 1);
        mha_tensor *both[] = {&qa, &ka};
        for (int i = 0; i < 2; i++) {
            both[i]->ndim = 4;
            memmove(both[i]->shape, both[i]->shape + 1, 4 * sizeof(int64_t));
            memmove(both[i]->stride, both[i]->stride + 1, 4 * sizeof(int64_t));
        }
        assert_int_equal(mha_attention_forward(context, NULL, &qa, &ka, &ka, &four, NULL), MHA_OK);
        assert_memory_equal(part, whole[a], sizeof part);
    }
    mha_pytorch_sdpa_args args = {.struct_size = sizeof args, .dropout_p = 0.5f};
    five.data = dropped;
    for (int i = 0; i < 2; i++) { /* equal slices in, different ones out */
        q.view.stride[0] = k.view.stride[0] = 0;
        assert_int_equal(mha_pytorch_sdpa_forward(context, &args, &q.view, &k.view, &k.view, &five),
                         MHA_OK);
        assert_memory_not_equal(dropped[0], dropped[1], sizeof dropped[0]);
    }
    args.dropout_p = 1;
    assert_int_equal(mha_pytorch_sdpa_forward(context, &args, &q.view, &k.view, &k.view, &five),
                     MHA_OK);
    for (size_t i = 0; i < sizeof dropped / sizeof(float); i++)
        assert_true((&dropped[0][0][0][0][0])[i] == 0);
    guarded_free(&q), guarded_free(&k);
}

/* ---- the ONNX operator ------------------------------------------------------------------------
 */

typedef struct onnx_case {
    int64_t B, H, Hk, T, S, P, D, Dv;
    bool flat, has_past;
    int stage; /* of qk_matmul_output; -1: probabilities */
    guarded q, k, v, past_key, past_value, mask, y, present_key, present_value, qk;
    int64_t lengths[4];
    mha_tensor nonpad;
    mha_onnx_attention_attributes attributes;
    mha_onnx_attention_inputs in;
    mha_onnx_attention_outputs out;
    char text[240];
} onnx_case;

static guarded onnx_input(const onnx_case *c, rng *r, int64_t heads, int64_t length, int64_t size)
{
    if (c->flat) return numbers(r, 3, (int64_t[]){c->B, length, heads * size});
    return numbers(r, 4, (int64_t[]){c->B, heads, length, size});
}

static guarded onnx_output(rng *r, int ndim, const int64_t *shape)
{
    return guarded_make(r, MHA_F32, ndim, shape, guarded_random_layout(r, false));
}

static void onnx_attributes(onnx_case *c, rng *r)
{
    static const float scales[] = {0, 0.1f, 1}, caps[] = {0.5f, 3, 30};
    static const mha_score_stage stages[] = {MHA_SCORES_RAW, MHA_SCORES_CAPPED, MHA_SCORES_BIASED};
    mha_onnx_attention_attributes *a = &c->attributes;
    *a = (mha_onnx_attention_attributes){.struct_size = sizeof *a};
    a->opset = (int32_t)rng_between(r, 23, 25);
    if (c->flat) a->q_num_heads = c->H, a->kv_num_heads = c->Hk;
    if (rng_chance(r, 0.4)) a->flags |= MHA_ONNX_IS_CAUSAL;
    if (rng_chance(r, 0.3)) a->flags |= MHA_ONNX_SCALE_GIVEN, a->scale = RNG_PICK(r, scales);
    if (rng_chance(r, 0.3)) a->softcap = RNG_PICK(r, caps);
    if (a->opset == 25 && rng_chance(r, 0.5)) {
        a->flags |= MHA_ONNX_WINDOW;
        a->left_window_size = rng_between(r, -1, 6);
        a->right_window_size = rng_between(r, -1, 6);
    }
    int mode = (int)rng_between(r, 0, 3);
    a->qk_matmul_output_mode = (mha_onnx_qk_mode)mode;
    c->stage = mode == 3 ? -1 : (int)stages[mode];
}

static void onnx_mask(onnx_case *c, rng *r)
{
    int64_t full[4] = {c->B, c->H, c->T, c->P + c->S};
    int ndim = (int)rng_between(r, 1, 4), opset = c->attributes.opset;
    c->mask.view.ndim = -1;
    if (rng_chance(r, 0.4)) return;
    if (opset >= 24 && rng_chance(r, 0.4)) full[3] = rng_between(r, 0, full[3]);
    c->mask = some_mask(r, ndim, full + 4 - ndim, rng_chance(r, 0.5), false);
    c->in.attn_mask = &c->mask.view;
}

/* In place. */
static void onnx_make(onnx_case *c, rng *r)
{
    *c = (onnx_case){.B = rng_between(r, 1, 3), .Hk = rng_between(r, 1, 2)};
    c->H = c->Hk * rng_between(r, 1, 3);
    c->T = pick_length(r), c->S = pick_length(r);
    c->D = rng_between(r, 1, 40), c->Dv = rng_chance(r, 0.05) ? 260 : rng_between(r, 1, 40);
    c->flat = rng_chance(r, 0.5), c->has_past = rng_chance(r, 0.4);
    c->P = c->has_past ? rng_between(r, 0, 12) : 0;
    onnx_attributes(c, r);
    c->in = (mha_onnx_attention_inputs){.struct_size = sizeof c->in};
    c->out = (mha_onnx_attention_outputs){.struct_size = sizeof c->out};
    c->q = onnx_input(c, r, c->H, c->T, c->D);
    c->k = onnx_input(c, r, c->Hk, c->S, c->D);
    c->v = onnx_input(c, r, c->Hk, c->S, c->Dv);
    c->past_key = numbers(r, 4, (int64_t[]){c->B, c->Hk, c->P, c->D});
    c->past_value = numbers(r, 4, (int64_t[]){c->B, c->Hk, c->P, c->Dv});
    c->in.q = &c->q.view, c->in.k = &c->k.view, c->in.v = &c->v.view;
    if (c->has_past) c->in.past_key = &c->past_key.view, c->in.past_value = &c->past_value.view;
    bool lengths = !c->has_past && c->attributes.opset >= 24 && rng_chance(r, 0.5);
    for (int64_t b = 0; b < c->B; b++) c->lengths[b] = rng_between(r, 0, c->S);
    c->nonpad = mha_tensor_contiguous(c->lengths, MHA_I64, 1, &c->B);
    if (lengths) c->in.nonpad_kv_seqlen = &c->nonpad;
    onnx_mask(c, r);
    const int64_t keys = c->P + c->S;
    c->y = c->flat ? onnx_output(r, 3, (int64_t[]){c->B, c->T, c->H * c->Dv})
                   : onnx_output(r, 4, (int64_t[]){c->B, c->H, c->T, c->Dv});
    c->present_key = onnx_output(r, 4, (int64_t[]){c->B, c->Hk, keys, c->D});
    c->present_value = onnx_output(r, 4, (int64_t[]){c->B, c->Hk, keys, c->Dv});
    c->qk = onnx_output(r, 4, (int64_t[]){c->B, c->H, c->T, keys});
    c->out.y = &c->y.view;
    if (!lengths && rng_chance(r, 0.5)) c->out.present_key = &c->present_key.view;
    if (!lengths && rng_chance(r, 0.5)) c->out.present_value = &c->present_value.view;
    if (rng_chance(r, 0.6)) c->out.qk_matmul_output = &c->qk.view;
    snprintf(c->text, sizeof c->text,
             "opset %d B %lld H %lld Hk %lld T %lld S %lld P %lld D %lld Dv %lld flags %u mode %d "
             "mask %d lengths %d",
             (int)c->attributes.opset, (long long)c->B, (long long)c->H, (long long)c->Hk,
             (long long)c->T, (long long)c->S, (long long)c->P, (long long)c->D, (long long)c->Dv,
             c->attributes.flags, (int)c->attributes.qk_matmul_output_mode, (int)c->mask.view.ndim,
             lengths);
}

static void onnx_free(onnx_case *c)
{
    guarded *all[] = {&c->q,          &c->k, &c->v,           &c->past_key,
                      &c->past_value, &c->y, &c->present_key, &c->present_value,
                      &c->qk};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) guarded_free(all[i]);
    if (c->mask.view.ndim >= 0) guarded_free(&c->mask);
}

/* Element of an input that may be flat. */
static float *onnx_at(const onnx_case *c, const mha_tensor *x, int64_t b, int64_t h, int64_t t,
                      int64_t d, int64_t size)
{
    if (c->flat) return guarded_element(x, (int64_t[]){b, t, h * size + d});
    return guarded_element(x, (int64_t[]){b, h, t, d});
}

/* Element of past and new keys, or values, together. */
static float joined(const onnx_case *c, const mha_tensor *past, const mha_tensor *fresh, int64_t b,
                    int64_t h, int64_t s, int64_t d, int64_t size)
{
    if (s < c->P) return *(const float *)guarded_element(past, (int64_t[]){b, h, s, d});
    return *onnx_at(c, fresh, b, h, s - c->P, d, size);
}

/* The operator's masks of one pair, in the words of its text. */
static void onnx_pair(const onnx_case *c, dense *x, int64_t b, int64_t h, int64_t t, int64_t s)
{
    const mha_onnx_attention_attributes *a = &c->attributes;
    const mha_tensor *mask = c->in.attn_mask;
    const bool lengths = c->in.nonpad_kv_seqlen;
    int64_t offset = c->has_past ? c->P : lengths ? c->lengths[b] - c->T : 0;
    uint8_t *keep = &x->keep[t * x->S + s];
    if ((a->flags & MHA_ONNX_IS_CAUSAL) && s > t + offset) *keep = 0;
    if (lengths && s >= c->lengths[b]) *keep = 0;
    if (a->flags & MHA_ONNX_WINDOW) {
        if (a->left_window_size >= 0 && s < t + offset - a->left_window_size) *keep = 0;
        if (a->right_window_size >= 0 && s > t + offset + a->right_window_size) *keep = 0;
    }
    if (!mask) return;
    bool padded = a->opset >= 24 && s >= mask->shape[mask->ndim - 1];
    if (padded)
        *keep = 0;
    else
        put_mask(x, t, s, mask, element_of(mask, 4, (int64_t[]){b, h, t, s}), false);
}

static void onnx_dense(const onnx_case *c, int64_t b, int64_t h, dense *x)
{
    const int64_t keys = c->P + c->S, shared = h / (c->H / c->Hk);
    dense_make(x, c->T, keys, c->D, c->Dv);
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t d = 0; d < c->D; d++)
            x->q[t * c->D + d] = *onnx_at(c, &c->q.view, b, h, t, d, c->D);
    for (int64_t s = 0; s < keys; s++) {
        for (int64_t d = 0; d < c->D; d++)
            x->k[s * c->D + d] = joined(c, &c->past_key.view, &c->k.view, b, shared, s, d, c->D);
        for (int64_t d = 0; d < c->Dv; d++)
            x->v[s * c->Dv + d] =
                joined(c, &c->past_value.view, &c->v.view, b, shared, s, d, c->Dv);
    }
    for (int64_t t = 0; t < c->T; t++)
        for (int64_t s = 0; s < keys; s++) onnx_pair(c, x, b, h, t, s);
    x->desc.scale = c->attributes.scale;
    x->desc.softcap = c->attributes.softcap;
    if (c->attributes.flags & MHA_ONNX_SCALE_GIVEN) x->desc.flags = MHA_ATTENTION_SCALE_GIVEN;
}

static void check_present(const onnx_case *c, const mha_tensor *present, const mha_tensor *past,
                          const mha_tensor *fresh)
{
    int64_t i[MHA_MAX_DIMS] = {0};
    if (!present || guarded_is_empty(present)) return;
    do {
        float got = *(const float *)guarded_element(present, i);
        if (got != joined(c, past, fresh, i[0], i[1], i[2], i[3], present->shape[3]))
            fail_msg("%s: present[%lld,%lld,%lld,%lld] is %g", c->text, (long long)i[0],
                     (long long)i[1], (long long)i[2], (long long)i[3], (double)got);
    } while (guarded_next(present, i));
}

static void onnx_check(const onnx_case *c, const machine *m, tally *tallies)
{
    bound_arith arith = arith_of(m, c->D, c->Dv, !(c->attributes.flags & MHA_ONNX_SCALE_GIVEN));
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t h = 0; h < c->H; h++) {
            dense x;
            onnx_dense(c, b, h, &x);
            for (int64_t t = 0; t < c->T; t++) {
                const float *qk = NULL;
                if (c->out.qk_matmul_output && x.S > 0)
                    qk = guarded_element(&c->qk.view, (int64_t[]){b, h, t, 0});
                check_row(&x, &arith, t, onnx_at(c, &c->y.view, b, h, t, 0, c->Dv), qk, c->stage,
                          tallies, c->text);
            }
            dense_free(&x);
        }
    check_present(c, c->out.present_key, &c->past_key.view, &c->k.view);
    check_present(c, c->out.present_value, &c->past_value.view, &c->v.view);
}

static void onnx_conventions(void **state)
{
    (void)state;
    machines all = machines_make(2);
    tally tallies[2] = {{.name = "onnx: y"}, {.name = "onnx: qk_matmul_output"}};
    for (int i = 0; i < rng_cases(200, 4000); i++) {
        rng r = rng_make(rng_run_seed(), 100000 + (uint64_t)i);
        const machine *m = &all.each[i % (all.count - 1)];
        onnx_case c;
        onnx_make(&c, &r);
        if (mha_onnx_attention(m->context, &c.attributes, &c.in, &c.out) != MHA_OK)
            fail_msg("case %d: %s: %s", i, c.text, mha_error_detail());
        guarded *written[] = {&c.y, &c.present_key, &c.present_value, &c.qk};
        for (int j = 0; j < 4; j++)
            if (!guarded_gaps_intact(written[j])) fail_msg("case %d: wrote beside output %d", i, j);
        onnx_check(&c, m, tallies);
        onnx_free(&c);
    }
    for (int j = 0; j < 2; j++) tally_judge(&tallies[j]);
}

/* softmax_precision double is the plain path: one rounding, at the end. */
static void onnx_double(void **state)
{
    (void)state;
    mha_context *context = context_with(0);
    tally tallies[2] = {{.name = "onnx in double: y"}};
    for (int i = 0; i < 20; i++) {
        rng r = rng_make(rng_run_seed(), 200000 + (uint64_t)i);
        onnx_case c;
        onnx_make(&c, &r);
        c.attributes.softmax_precision = 11;
        c.out.qk_matmul_output = NULL;
        assert_int_equal(mha_onnx_attention(context, &c.attributes, &c.in, &c.out), MHA_OK);
        bound_arith arith = bound_arith_plain(!(c.attributes.flags & MHA_ONNX_SCALE_GIVEN));
        for (int64_t b = 0; b < c.B; b++)
            for (int64_t h = 0; h < c.H; h++) {
                dense x;
                onnx_dense(&c, b, h, &x);
                for (int64_t t = 0; t < c.T; t++)
                    check_row(&x, &arith, t, onnx_at(&c, &c.y.view, b, h, t, 0, c.Dv), NULL, 0,
                              tallies, c.text);
                dense_free(&x);
            }
        onnx_free(&c);
    }
    tally_print(&tallies[0]);
}

/* ---- the lowest float -------------------------------------------------------------------------
 */

/* Rows with nothing but the lowest float are means; beside anything else it masks. */
static void lowest_floats(void **state)
{
    (void)state;
    enum { T = 3, S = 4, D = 2 };
    machines all = machines_make(1);
    float q[T][D] = {{1, 2}, {3, -1}, {0.5f, 0}}, k[S][D] = {{1, 0}, {0, 2}, {-1, 1}, {2, 2}};
    float v[S][D] = {{1, 8}, {2, 6}, {3, 4}, {6, 2}}, o[T][D], qk[T][S], mask[T][S] = {{0}};
    for (int s = 0; s < S; s++) mask[1][s] = -FLT_MAX, mask[2][s] = s == 2 ? 1.5f : -3e38f;
    mha_tensor tq = mha_tensor_contiguous(q, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    mha_tensor tk = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, 1, S, D});
    mha_tensor tv = mha_tensor_contiguous(v, MHA_F32, 4, (int64_t[]){1, 1, S, D});
    mha_tensor to = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, T, D});
    mha_tensor tqk = mha_tensor_contiguous(qk, MHA_F32, 4, (int64_t[]){1, 1, T, S});
    mha_tensor tmask = mha_tensor_contiguous(mask, MHA_F32, 2, (int64_t[]){T, S});
    mha_pytorch_sdpa_args args = {.struct_size = sizeof args, .attn_mask = &tmask};
    mha_onnx_attention_attributes attributes = {.struct_size = sizeof attributes,
                                                .qk_matmul_output_mode = MHA_ONNX_QK_BIASED};
    mha_onnx_attention_inputs in = {
        .struct_size = sizeof in, .q = &tq, .k = &tk, .v = &tv, .attn_mask = &tmask};
    mha_onnx_attention_outputs out = {
        .struct_size = sizeof out, .y = &to, .qk_matmul_output = &tqk};
    for (int i = 0; i < all.count; i++)
        for (int preset = 0; preset < 2; preset++) {
            memset(o, 0, sizeof o);
            if (preset)
                assert_int_equal(mha_onnx_attention(all.each[i].context, &attributes, &in, &out),
                                 MHA_OK);
            else
                assert_int_equal(
                    mha_pytorch_sdpa_forward(all.each[i].context, &args, &tq, &tk, &tv, &to),
                    MHA_OK);
            assert_true(o[1][0] == 3 && o[1][1] == 5); /* sums of small integers */
            assert_true(o[2][0] == v[2][0] && o[2][1] == v[2][1]);
            if (!preset) continue;
            assert_true(fabsf(qk[1][0] - -FLT_MAX) <= 0x1p105f); /* four roundings of 2^127 */
            assert_true(fabsf(qk[2][0] - -3e38f) <= 0x1p105f && qk[2][2] > 0);
        }
}

/* ---- nn.MultiheadAttention ---------------------------------------------------------------------
 */

typedef struct module_case {
    int64_t B, T, S, E, H, columns;
    bool lone, first, per_head, weights;
    mha_module *module;
    guarded x[3], attn, padding, out, weight;
    mha_pytorch_mha_args args;
    char text[200];
} module_case;

static mha_module *some_module(mha_context *context, rng *r, int64_t E, int64_t H, uint32_t flags)
{
    mha_module_desc desc = {
        .struct_size = sizeof desc, .flags = flags, .embed_dim = E, .num_heads = H};
    mha_module_parameter p;
    mha_module *module;
    assert_int_equal(mha_module_create(context, &desc, &module), MHA_OK);
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        guarded value = numbers(r, p.ndim, p.shape);
        assert_int_equal(mha_module_set_parameter(module, p.name, &value.view), MHA_OK);
        guarded_free(&value);
    }
    return module;
}

/* [B, length, E] in the case's own form. */
static guarded module_tensor(const module_case *c, rng *r, int64_t length, bool output)
{
    int64_t three[] = {c->first ? c->B : length, c->first ? length : c->B, c->E};
    int64_t two[] = {length, c->E};
    const int64_t *shape = c->lone ? two : three;
    if (!output) return numbers(r, 3 - c->lone, shape);
    return guarded_make(r, MHA_F32, 3 - c->lone, shape, guarded_random_layout(r, false));
}

static void module_masks(module_case *c, rng *r)
{
    c->attn.view.ndim = c->padding.view.ndim = -1;
    if (rng_chance(r, 0.7)) {
        bool heads = rng_chance(r, 0.5);
        const int64_t shape[] = {c->B * c->H, c->T, c->S};
        c->attn = some_mask(r, 2 + heads, heads ? shape : shape + 1, rng_chance(r, 0.5), true);
        c->args.attn_mask = &c->attn.view;
    }
    if (rng_chance(r, 0.7)) {
        const int64_t shape[] = {c->B, c->S};
        c->padding = some_mask(r, 2 - c->lone, shape + c->lone, rng_chance(r, 0.4), true);
        c->args.key_padding_mask = &c->padding.view;
        int64_t index[MHA_MAX_DIMS] = {0};
        if (c->padding.view.dtype == MHA_F32 && rng_chance(r, 0.5)) /* 0 and -inf only */
            do {
                float *x = guarded_element(&c->padding.view, index);
                if (*x != -INFINITY) *x = 0;
            } while (guarded_next(&c->padding.view, index));
    }
}

/* In place. */
static void module_make(module_case *c, mha_context *context, rng *r)
{
    *c = (module_case){.B = rng_between(r, 1, 3), .T = rng_between(r, 1, 20)};
    c->S = rng_between(r, 1, 20), c->H = rng_between(r, 1, 3), c->E = c->H * rng_between(r, 1, 9);
    c->lone = rng_chance(r, 0.25), c->first = rng_chance(r, 0.5);
    if (c->lone) c->B = 1;
    c->weights = rng_chance(r, 0.7), c->per_head = rng_chance(r, 0.5);
    uint32_t flags = 0;
    if (rng_chance(r, 0.3)) flags |= MHA_MODULE_BIAS_KV;
    if (rng_chance(r, 0.3)) flags |= MHA_MODULE_ZERO_ATTN;
    c->columns = c->S + !!(flags & MHA_MODULE_BIAS_KV) + !!(flags & MHA_MODULE_ZERO_ATTN);
    c->module = some_module(context, r, c->E, c->H, flags);
    c->args = (mha_pytorch_mha_args){.struct_size = sizeof c->args};
    if (c->first) c->args.flags |= MHA_PYTORCH_BATCH_FIRST;
    if (c->per_head) c->args.flags |= MHA_PYTORCH_PER_HEAD;
    for (int i = 0; i < 3; i++) c->x[i] = module_tensor(c, r, i == 0 ? c->T : c->S, false);
    c->args.query = &c->x[0].view, c->args.key = &c->x[1].view, c->args.value = &c->x[2].view;
    c->out = module_tensor(c, r, c->T, true);
    int64_t four[] = {c->B, c->H, c->T, c->columns}, three[] = {c->B, c->T, c->columns};
    c->weight =
        guarded_make(r, MHA_F32, 3 + c->per_head - c->lone, (c->per_head ? four : three) + c->lone,
                     guarded_random_layout(r, false));
    module_masks(c, r);
    snprintf(c->text, sizeof c->text,
             "B %lld T %lld S %lld E %lld H %lld columns %lld lone %d first %d per head %d weights "
             "%d masks %d %d",
             (long long)c->B, (long long)c->T, (long long)c->S, (long long)c->E, (long long)c->H,
             (long long)c->columns, c->lone, c->first, c->per_head, c->weights,
             (int)c->attn.view.ndim, (int)c->padding.view.ndim);
}

static void module_free(module_case *c)
{
    for (int i = 0; i < 3; i++) guarded_free(&c->x[i]);
    guarded_free(&c->out), guarded_free(&c->weight);
    if (c->attn.view.ndim >= 0) guarded_free(&c->attn);
    if (c->padding.view.ndim >= 0) guarded_free(&c->padding);
    mha_module_destroy(c->module);
}

/* What PyTorch's masks say of all pairs, true masking: a keep mask and a bias [B,H,T,S]. */
static void module_dense(const module_case *c, uint8_t *keep, float *bias)
{
    for (int64_t i = 0; i < c->B * c->H * c->T * c->S; i++) {
        int64_t s = i % c->S, t = i / c->S % c->T, bh = i / c->S / c->T, b = bh / c->H;
        const int64_t attn[] = {bh, t, s}, padding[] = {b, s};
        const mha_tensor *masks[] = {c->args.attn_mask, c->args.key_padding_mask};
        const int64_t *index[] = {attn, padding};
        const int most[] = {3, 2};
        keep[i] = 1, bias[i] = 0;
        for (int j = 0; j < 2; j++) {
            if (!masks[j]) continue;
            const void *x = guarded_element(masks[j], index[j] + most[j] - masks[j]->ndim);
            if (masks[j]->dtype == MHA_U8)
                keep[i] &= !*(const uint8_t *)x;
            else
                bias[i] += *(const float *)x;
        }
    }
}

/* As [B, length, E]. */
static mha_tensor module_view(const module_case *c, const mha_tensor *x)
{
    mha_tensor view = *x;
    view.ndim = 3;
    if (c->lone) {
        for (int i = 2; i > 0; i--)
            view.shape[i] = x->shape[i - 1], view.stride[i] = x->stride[i - 1];
        view.shape[0] = 1, view.stride[0] = 0;
    } else if (!c->first) {
        view.shape[0] = x->shape[1], view.shape[1] = x->shape[0];
        view.stride[0] = x->stride[1], view.stride[1] = x->stride[0];
    }
    return view;
}

static bool sees_nothing(const module_case *c, const uint8_t *keep, const float *bias, int64_t b,
                         int64_t h, int64_t t)
{
    const int64_t row = ((b * c->H + h) * c->T + t) * c->S;
    if (c->columns > c->S) return false; /* bias_k and the zeros are always seen */
    for (int64_t s = 0; s < c->S; s++)
        if (keep[row + s] && bias[row + s] != -INFINITY) return false;
    return true;
}

static void module_compare(const module_case *c, const uint8_t *keep, const float *bias,
                           const float *out, const float *weights)
{
    mha_tensor got = module_view(c, &c->out.view);
    for (int64_t b = 0; b < c->B; b++)
        for (int64_t t = 0; t < c->T; t++) {
            bool blind = false;
            for (int64_t h = 0; h < c->H; h++) blind |= sees_nothing(c, keep, bias, b, h, t);
            const float *row = guarded_element(&got, (int64_t[]){b, t, 0});
            const float *right = out + (b * c->T + t) * c->E;
            for (int64_t e = 0; e < c->E; e++)
                if (blind && c->weights ? !isnan(row[e]) : row[e] != right[e])
                    fail_msg("%s: out[%lld,%lld,%lld] is %g, not %g", c->text, (long long)b,
                             (long long)t, (long long)e, (double)row[e], (double)right[e]);
            for (int64_t h = 0; c->weights && h < (c->per_head ? c->H : 1); h++) {
                bool nan = c->per_head ? sees_nothing(c, keep, bias, b, h, t) : blind;
                int64_t index[] = {b, h, t, 0}, mean[] = {b, t, 0};
                row = guarded_element(&c->weight.view, (c->per_head ? index : mean) + c->lone);
                int64_t rows = c->per_head ? (b * c->H + h) * c->T + t : b * c->T + t;
                right = weights + rows * c->columns;
                for (int64_t s = 0; s < c->columns; s++)
                    if (nan ? !isnan(row[s]) : row[s] != right[s])
                        fail_msg("%s: weights[%lld,%lld,%lld,%lld] is %g, not %g", c->text,
                                 (long long)b, (long long)h, (long long)t, (long long)s,
                                 (double)row[s], (double)right[s]);
            }
        }
}

static void module_case_check(const module_case *c, mha_context *context)
{
    const int64_t pairs = c->B * c->H * c->T * c->S;
    uint8_t *keep = memory_for(pairs, 1);
    float *bias = memory_for(pairs, sizeof(float));
    float *out = memory_for(c->B * c->T * c->E, sizeof(float));
    float *weights = memory_for(c->B * c->H * c->T * c->columns, sizeof(float));
    const int64_t dense_shape[] = {c->B, c->H, c->T, c->S};
    const int64_t p_shape[] = {c->B, c->H, c->T, c->columns};
    const int64_t mean_shape[] = {c->B, c->T, c->columns};
    module_dense(c, keep, bias);
    mha_tensor tkeep = mha_tensor_contiguous(keep, MHA_U8, 4, dense_shape);
    mha_tensor tbias = mha_tensor_contiguous(bias, MHA_F32, 4, dense_shape);
    mha_tensor tout = mha_tensor_contiguous(out, MHA_F32, 3, (int64_t[]){c->B, c->T, c->E});
    mha_tensor tp = mha_tensor_contiguous(weights, MHA_F32, 4, p_shape);
    mha_tensor tmean = mha_tensor_contiguous(weights, MHA_F32, 3, mean_shape);
    mha_tensor q = module_view(c, c->args.query), k = module_view(c, c->args.key);
    mha_tensor v = module_view(c, c->args.value);
    mha_attention_desc desc = {.struct_size = sizeof desc, .keep_mask = &tkeep, .bias = &tbias};
    mha_module_outputs outputs = {.struct_size = sizeof outputs};
    if (c->per_head)
        outputs.probabilities = &tp;
    else
        outputs.average_probabilities = &tmean;
    assert_int_equal(mha_module_forward(context, c->module, &desc, &q, &k, &v, &tout, &outputs),
                     MHA_OK);
    module_compare(c, keep, bias, out, weights);
    free(keep), free(bias), free(out), free(weights);
}

static void module_conventions(void **state)
{
    (void)state;
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(150, 3000); i++) {
        rng r = rng_make(rng_run_seed(), 300000 + (uint64_t)i);
        const machine *m = &all.each[i % (all.count - 1)];
        module_case c;
        module_make(&c, m->context, &r);
        if (mha_pytorch_mha_forward(m->context, c.module, &c.args, &c.out.view,
                                    c.weights ? &c.weight.view : NULL) != MHA_OK)
            fail_msg("case %d: %s: %s", i, c.text, mha_error_detail());
        if (!guarded_gaps_intact(&c.out) || !guarded_gaps_intact(&c.weight))
            fail_msg("case %d: wrote beside an output", i);
        module_case_check(&c, m->context);
        module_free(&c);
    }
}

/* The hint stands for the mask only without weights, padding and learned keys. */
static void module_hint(void **state)
{
    (void)state;
    enum { T = 5, S = 7, E = 6, H = 2 };
    mha_context *context = context_with(0);
    rng r = rng_make(rng_run_seed(), 3);
    guarded x = numbers(&r, 2, (int64_t[]){S, E});
    mha_tensor query = guarded_slice(&x.view, 0, 0, T);
    uint8_t causal[T][S], nothing[T][S] = {{0}}, padding[S] = {0};
    for (int t = 0; t < T; t++)
        for (int s = 0; s < S; s++) causal[t][s] = s > t;
    float out[4][T][E], weights[T][S + 1];
    mha_tensor masks[] = {mha_tensor_contiguous(causal, MHA_U8, 2, (int64_t[]){T, S}),
                          mha_tensor_contiguous(nothing, MHA_U8, 2, (int64_t[]){T, S})};
    mha_tensor pad = mha_tensor_contiguous(padding, MHA_U8, 1, (int64_t[]){S});
    for (int learned = 0; learned < 2; learned++) {
        mha_module *module =
            some_module(context, &r, E, H, learned ? (uint32_t)MHA_MODULE_ZERO_ATTN : 0);
        mha_tensor w = mha_tensor_contiguous(weights, MHA_F32, 2, (int64_t[]){T, S + learned});
        /* the mask; another mask with the hint; that with weights; that with padding. A mask that
         * the hint stands for may have any lengths. */
        const mha_tensor odd = mha_tensor_contiguous(nothing, MHA_U8, 2, (int64_t[]){2, 3});
        for (int i = 0; i < 4; i++) {
            mha_tensor o = mha_tensor_contiguous(out[i], MHA_F32, 2, (int64_t[]){T, E});
            mha_pytorch_mha_args args = {.struct_size = sizeof args,
                                         .flags = i > 0 ? (uint32_t)MHA_PYTORCH_IS_CAUSAL : 0,
                                         .query = &query,
                                         .key = &x.view,
                                         .value = &x.view,
                                         .key_padding_mask = i == 3 ? &pad : NULL,
                                         .attn_mask = i == 1 && !learned ? &odd : &masks[i > 0]};
            assert_int_equal(
                mha_pytorch_mha_forward(context, module, &args, &o, i == 2 ? &w : NULL), MHA_OK);
        }
        bool hint = memcmp(out[0], out[1], sizeof out[0]) == 0;
        assert_int_equal(hint, !learned);
        assert_memory_equal(out[2], out[3], sizeof out[2]);
        assert_memory_not_equal(out[0], out[2], sizeof out[0]);
        mha_module_destroy(module);
    }
    guarded_free(&x);
}

static void set_parameter(mha_module *module, const char *name, int ndim, const int64_t *shape,
                          float *data)
{
    mha_tensor value = mha_tensor_contiguous(data, MHA_F32, ndim, shape);
    assert_int_equal(mha_module_set_parameter(module, name, &value), MHA_OK);
}

/* The weights after dropout are those that out was made of, learned keys among them; W_o is the
 * identity, so that out shows it: sum_s w[s] v[s], chains of S + 1 terms of up to 4 |w v|. */
static void module_dropout(void **state)
{
    (void)state;
    enum { T = 9, S = 11, E = 4 };
    mha_context *context = context_with(0);
    for (uint32_t flags = 0; flags < 4; flags++) {
        rng r = rng_make(rng_run_seed(), 400000 + flags);
        uint32_t extra = (flags & 1 ? (uint32_t)MHA_MODULE_BIAS_KV : 0) |
                         (flags & 2 ? (uint32_t)MHA_MODULE_ZERO_ATTN : 0);
        mha_module *module = some_module(context, &r, E, 1, extra);
        float one[E][E] = {{0}}, none[E] = {0}, learned[E] = {0}, v[S][E];
        float out[T][E], weights[T][S + 2], quiet[T][S + 2];
        for (int i = 0; i < E; i++) one[i][i] = 1, learned[i] = rng_normal(&r);
        set_parameter(module, "out_proj.weight", 2, (int64_t[]){E, E}, &one[0][0]);
        set_parameter(module, "out_proj.bias", 1, (int64_t[]){E}, none);
        if (flags & 1) set_parameter(module, "bias_v", 3, (int64_t[]){1, 1, E}, learned);
        guarded q = numbers(&r, 2, (int64_t[]){T, E}), x = numbers(&r, 2, (int64_t[]){S, E});
        const int columns = S + (flags & 1 ? 1 : 0) + (flags & 2 ? 1 : 0);
        mha_tensor to = mha_tensor_contiguous(out, MHA_F32, 2, (int64_t[]){T, E});
        mha_tensor tw = mha_tensor_contiguous(weights, MHA_F32, 2, (int64_t[]){T, columns});
        mha_tensor tv = mha_tensor_contiguous(v, MHA_F32, 3, (int64_t[]){1, S, E});
        tw.stride[0] = S + 2;
        mha_module_outputs outputs = {.struct_size = sizeof outputs, .v = &tv};
        assert_int_equal(
            mha_module_forward(context, module, NULL, &q.view, &x.view, &x.view, &to, &outputs),
            MHA_OK);
        mha_pytorch_mha_args args = {.struct_size = sizeof args,
                                     .query = &q.view,
                                     .key = &x.view,
                                     .value = &x.view,
                                     .dropout = 0.5f,
                                     .dropout_seed = rng_next(&r)};
        tw.data = quiet;
        assert_int_equal(mha_pytorch_mha_forward(context, module, &args, &to, &tw), MHA_OK);
        tw.data = weights;
        args.flags = MHA_PYTORCH_TRAINING;
        assert_int_equal(mha_pytorch_mha_forward(context, module, &args, &to, &tw), MHA_OK);
        int dropped = 0;
        for (int t = 0; t < T; t++) {
            for (int s = 0; s < columns; s++) {
                dropped += weights[t][s] == 0;
                assert_true(weights[t][s] == 0 || weights[t][s] == 2 * quiet[t][s]);
            }
            for (int e = 0; e < E; e++) {
                double sum = 0, size = 0;
                for (int s = 0; s < S + (flags & 1 ? 1 : 0); s++) {
                    double term = (double)weights[t][s] * (double)(s < S ? v[s][e] : learned[e]);
                    sum += term, size += fabs(term);
                }
                assert_true(fabs(sum - (double)out[t][e]) <= 64 * 0x1p-24 * (size + 1));
            }
        }
        assert_in_range(dropped, T * columns / 4, 3 * T * columns / 4); /* 5 sigma and more */
        guarded_free(&q), guarded_free(&x);
        mha_module_destroy(module);
    }
}

RUN_TESTS(TEST(sdpa_conventions), TEST(sdpa_slices), TEST(onnx_conventions), TEST(onnx_double),
          TEST(lowest_floats), TEST(module_conventions), TEST(module_hint), TEST(module_dropout))
