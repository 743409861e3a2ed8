/* The ONNX operator Attention, opsets 23 to 25, by its own conventions (presets.h).
 *
 *   check attributes, inputs, outputs -> views [B,H,T,D] -> descriptor -> join past and new keys
 *   -> mha_attention_forward() -> present without a past */
#include "base/struct_copy.h"
#include "base/tensor.h"
#include "presets/preset.h"

#include <multihead/component.h>
#include <multihead/presets.h>

#include <string.h>

typedef struct onnx_call {
    mha_context *context;
    mha_onnx_attention_attributes attributes;
    mha_onnx_attention_inputs in;
    mha_onnx_attention_outputs out;
    int opset;
    mha_dtype type;
    int64_t B, H, Hk, T, S, P, D, Dv; /* P: keys of the past */
    mha_tensor q, k, v, y;            /* [B,H,T,D] and so on, of the caller's memory */
    mha_tensor all_k, all_v;          /* what is attended to: k and v, or joined with the past */
    mhai_preset_mask mask;
    mha_attention_desc desc;
    mha_attention_outputs extra;
} onnx_call;

static bool is_causal(const onnx_call *c)
{
    return c->attributes.flags & MHA_ONNX_IS_CAUSAL;
}

static bool has_window(const onnx_call *c)
{
    return c->attributes.flags & MHA_ONNX_WINDOW;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static mha_status check_window(const onnx_call *c)
{
    const mha_onnx_attention_attributes *a = &c->attributes;
    if (!has_window(c) && (a->left_window_size || a->right_window_size))
        return mha_fail(MHA_ERR_ARGUMENT, "left_window_size and right_window_size need the flag "
                                          "MHA_ONNX_WINDOW");
    if (has_window(c) && c->opset < 25)
        return mha_fail(MHA_ERR_UNSUPPORTED, "opset %d has no window sizes, set opset to 25",
                        c->opset);
    if (a->left_window_size < -1 || a->right_window_size < -1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "left_window_size is %lld, right_window_size %lld, expected a number of "
                        "keys, or -1 for an open side",
                        (long long)a->left_window_size, (long long)a->right_window_size);
    return MHA_OK;
}

static mha_status check_attributes(onnx_call *c)
{
    const mha_onnx_attention_attributes *a = &c->attributes;
    const uint32_t known = MHA_ONNX_IS_CAUSAL | MHA_ONNX_SCALE_GIVEN | MHA_ONNX_WINDOW;
    const int32_t p = a->softmax_precision;
    if (a->flags & ~known)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_onnx_attention_attributes: flags 0x%x are unknown",
                        (unsigned)(a->flags & ~known));
    c->opset = a->opset ? a->opset : 25;
    if (c->opset < 23 || c->opset > 25)
        return mha_fail(MHA_ERR_UNSUPPORTED, "opset is %d, Attention is known for 23, 24 and 25",
                        c->opset);
    if (p != 0 && p != 1 && p != 10 && p != 11 && p != 16)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "softmax_precision is %d, expected 1 (float), 10 (float16), 11 (double) or "
                        "16 (bfloat16)",
                        (int)p);
    if ((unsigned)a->qk_matmul_output_mode > MHA_ONNX_QK_PROBABILITIES)
        return mha_fail(MHA_ERR_ARGUMENT, "qk_matmul_output_mode is %d, expected 0..3",
                        (int)a->qk_matmul_output_mode);
    if (!(a->scale >= 0))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "scale is %g: the operator takes its root, it must be "
                        "0 or more",
                        (double)a->scale);
    return check_window(c);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

/* x as [B, heads, length, size], from 4 dimensions or from [B, length, heads * size]. */
static mha_status as_heads(const onnx_call *c, const char *name, const mha_tensor *x, int64_t heads,
                           mha_tensor *view)
{
    *view = *x;
    if (x->ndim == 4) {
        if (heads != 0 && (c->opset >= 25 || heads != x->shape[1]))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "%s: has 4 dimensions and %lld heads, but a number of heads is given "
                            "too, %lld; it is for 3 dimensions",
                            name, (long long)x->shape[1], (long long)heads);
        return MHA_OK;
    }
    if (heads < 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "%s: has 3 dimensions, so q_num_heads and kv_num_heads must be given",
                        name);
    if (x->shape[2] % heads != 0)
        return mha_fail(MHA_ERR_SHAPE, "%s: dim 2 is %lld, not a multiple of %lld heads", name,
                        (long long)x->shape[2], (long long)heads);
    int64_t size = x->shape[2] / heads;
    view->ndim = 4;
    view->shape[1] = heads;
    view->shape[2] = x->shape[1];
    view->shape[3] = size;
    view->stride[1] = size;
    view->stride[2] = x->stride[1];
    view->stride[3] = 1;
    return MHA_OK;
}

static mha_status check_inputs(onnx_call *c)
{
    const mha_onnx_attention_inputs *in = &c->in;
    MHA_TRY(mhai_preset_check_input("q", in->q, -1));
    c->type = in->q->dtype;
    MHA_TRY(mhai_preset_check_input("k", in->k, (int)c->type));
    MHA_TRY(mhai_preset_check_input("v", in->v, (int)c->type));
    int dims = in->q->ndim;
    if ((dims != 3 && dims != 4) || in->k->ndim != dims || in->v->ndim != dims)
        return mha_fail(MHA_ERR_SHAPE,
                        "q, k, v: have %d, %d and %d dimensions, expected 3 each or 4 each", dims,
                        (int)in->k->ndim, (int)in->v->ndim);
    MHA_TRY(as_heads(c, "q", in->q, c->attributes.q_num_heads, &c->q));
    MHA_TRY(as_heads(c, "k", in->k, c->attributes.kv_num_heads, &c->k));
    MHA_TRY(as_heads(c, "v", in->v, c->attributes.kv_num_heads, &c->v));
    c->B = c->q.shape[0], c->H = c->q.shape[1], c->T = c->q.shape[2], c->D = c->q.shape[3];
    c->Hk = c->k.shape[1], c->S = c->k.shape[2], c->Dv = c->v.shape[3];
    const int64_t k_shape[] = {c->B, c->Hk, c->S, c->D}, v_shape[] = {c->B, c->Hk, c->S, c->Dv};
    MHA_TRY(mhai_tensor_check("k", &c->k, c->type, 4, k_shape));
    return mhai_tensor_check("v", &c->v, c->type, 4, v_shape);
}

static mha_status check_past(onnx_call *c)
{
    const mha_tensor *key = c->in.past_key, *value = c->in.past_value;
    if (!key && !value) return MHA_OK;
    if (!key || !value)
        return mha_fail(MHA_ERR_ARGUMENT, "past_key and past_value go together, or neither");
    if (c->in.nonpad_kv_seqlen)
        return mha_fail(MHA_ERR_ARGUMENT, "nonpad_kv_seqlen does not go with a past");
    MHA_TRY(mhai_preset_check_input("past_key", key, (int)c->type));
    MHA_TRY(mhai_preset_check_input("past_value", value, (int)c->type));
    const int64_t key_shape[] = {c->B, c->Hk, -1, c->D};
    MHA_TRY(mhai_tensor_check("past_key", key, c->type, 4, key_shape));
    c->P = key->shape[2];
    const int64_t value_shape[] = {c->B, c->Hk, c->P, c->Dv};
    MHA_TRY(mhai_tensor_check("past_value", value, c->type, 4, value_shape));
    if (c->P > INT64_MAX - c->S)
        return mha_fail(MHA_ERR_SIZE, "past_key: %lld and %lld keys overflow 64 bits",
                        (long long)c->P, (long long)c->S);
    return MHA_OK;
}

static mha_status check_nonpad(const onnx_call *c)
{
    const mha_tensor *lengths = c->in.nonpad_kv_seqlen;
    if (!lengths) return MHA_OK;
    if (c->opset < 24)
        return mha_fail(MHA_ERR_UNSUPPORTED, "opset 23 has no nonpad_kv_seqlen, set opset to 24");
    if (c->out.present_key || c->out.present_value)
        return mha_fail(MHA_ERR_ARGUMENT, "nonpad_kv_seqlen does not go with present outputs");
    MHA_TRY(mhai_tensor_check("nonpad_kv_seqlen", lengths, MHA_I64, 1, &c->B));
    for (int64_t b = 0; b < c->B; b++) {
        int64_t length = ((const int64_t *)lengths->data)[b * lengths->stride[0]];
        if (length < 0 || length > c->S)
            return mha_fail(MHA_ERR_ARGUMENT, "nonpad_kv_seqlen[%lld] is %lld, expected 0..%lld",
                            (long long)b, (long long)length, (long long)c->S);
    }
    return MHA_OK;
}

static mha_status check_mask(const onnx_call *c)
{
    const mha_tensor *mask = c->in.attn_mask;
    if (!mask) return MHA_OK;
    MHA_TRY(mhai_preset_check_mask("attn_mask", mask, c->type));
    if (mask->ndim < 1 || mask->ndim > 4)
        return mha_fail(MHA_ERR_SHAPE, "attn_mask: has %d dimensions, expected 1 to 4",
                        (int)mask->ndim);
    const int64_t keys = c->P + c->S, full[4] = {c->B, c->H, c->T, keys};
    for (int i = 0; i < mask->ndim; i++) {
        int axis = 4 - mask->ndim + i;
        int64_t d = mask->shape[i];
        bool fits = d == full[axis] || d == 1;
        if (axis == 3 && c->opset >= 24) fits |= d < keys;
        if (!fits)
            return mha_fail(MHA_ERR_SHAPE,
                            "attn_mask: dim %d is %lld, it must be 1 or %lld to broadcast", i,
                            (long long)d, (long long)full[axis]);
    }
    return MHA_OK;
}

/* ---- outputs --------------------------------------------------------------------------------- */

static mha_status check_outputs(onnx_call *c)
{
    const mha_onnx_attention_outputs *out = &c->out;
    const int dims = c->in.q->ndim;
    if (!out->y) return mha_fail(MHA_ERR_NULL, "y: is NULL");
    if (out->y->ndim != dims)
        return mha_fail(MHA_ERR_SHAPE, "y: has %d dimensions, q has %d", (int)out->y->ndim, dims);
    const int64_t four[] = {c->B, c->H, c->T, c->Dv};
    int64_t three[] = {c->B, c->T, 0};
    if (__builtin_mul_overflow(c->H, c->Dv, &three[2]))
        return mha_fail(MHA_ERR_SIZE, "y: %lld heads of %lld overflow 64 bits", (long long)c->H,
                        (long long)c->Dv);
    MHA_TRY(mhai_preset_check_output("y", out->y, c->type, dims, dims == 4 ? four : three));
    c->y = *out->y;
    if (dims == 3) {
        c->y.ndim = 4;
        memcpy(c->y.shape, four, sizeof four);
        c->y.stride[1] = c->Dv, c->y.stride[2] = out->y->stride[1], c->y.stride[3] = 1;
    }
    const int64_t keys = c->P + c->S;
    const int64_t key_shape[] = {c->B, c->Hk, keys, c->D};
    const int64_t value_shape[] = {c->B, c->Hk, keys, c->Dv};
    const int64_t qk_shape[] = {c->B, c->H, c->T, keys};
    if (out->present_key)
        MHA_TRY(mhai_preset_check_output("present_key", out->present_key, c->type, 4, key_shape));
    if (out->present_value)
        MHA_TRY(
            mhai_preset_check_output("present_value", out->present_value, c->type, 4, value_shape));
    if (out->qk_matmul_output)
        MHA_TRY(mhai_preset_check_output("qk_matmul_output", out->qk_matmul_output, MHA_F32, 4,
                                         qk_shape));
    return MHA_OK;
}

static mha_status check_overlap(const onnx_call *c)
{
    typedef struct named {
        const char *name;
        const mha_tensor *tensor;
    } named;
    const named outputs[] = {{"y", c->out.y},
                             {"present_key", c->out.present_key},
                             {"present_value", c->out.present_value},
                             {"qk_matmul_output", c->out.qk_matmul_output}};
    const named inputs[] = {{"q", c->in.q},
                            {"k", c->in.k},
                            {"v", c->in.v},
                            {"attn_mask", c->in.attn_mask},
                            {"past_key", c->in.past_key},
                            {"past_value", c->in.past_value},
                            {"nonpad_kv_seqlen", c->in.nonpad_kv_seqlen}};
    for (int i = 0; i < 4; i++) {
        for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, inputs[j].name,
                                               inputs[j].tensor));
        for (int j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, outputs[j].name,
                                               outputs[j].tensor));
    }
    return MHA_OK;
}

/* ---- the descriptor -------------------------------------------------------------------------- */

/* Keys that are not padding, and where query 0 stands among them. */
static mha_status set_lengths(onnx_call *c)
{
    const mha_tensor *given = c->in.nonpad_kv_seqlen;
    const bool positions = is_causal(c) || has_window(c);
    if (positions && !given) c->desc.q_offset = c->P;
    if (!given) return MHA_OK;
    void *memory;
    MHA_TRY(mha_scratch_alloc(c->context, c->B, 2 * sizeof(int64_t), &memory));
    int64_t *lengths = memory, *offsets = lengths + c->B;
    for (int64_t b = 0; b < c->B; b++) {
        lengths[b] = ((const int64_t *)given->data)[b * given->stride[0]];
        offsets[b] = lengths[b] - c->T;
    }
    c->desc.key_lengths = lengths;
    if (positions) c->desc.q_offsets = offsets;
    return MHA_OK;
}

static void set_window(onnx_call *c)
{
    if (!has_window(c)) return;
    c->desc.flags |= MHA_ATTENTION_WINDOW;
    c->desc.left_keys = c->attributes.left_window_size;
    c->desc.right_keys = c->attributes.right_window_size;
    if (is_causal(c)) c->desc.right_keys = 0; /* causal hides them anyway */
}

static void set_extra(onnx_call *c)
{
    static const mha_score_stage stages[] = {[MHA_ONNX_QK_RAW] = MHA_SCORES_RAW,
                                             [MHA_ONNX_QK_CAPPED] = MHA_SCORES_CAPPED,
                                             [MHA_ONNX_QK_BIASED] = MHA_SCORES_BIASED};
    mha_onnx_qk_mode mode = c->attributes.qk_matmul_output_mode;
    c->extra.struct_size = sizeof c->extra;
    if (mode == MHA_ONNX_QK_PROBABILITIES) {
        c->extra.probabilities = c->out.qk_matmul_output;
    } else {
        c->extra.scores = c->out.qk_matmul_output;
        c->extra.score_stage = stages[mode];
    }
}

static mha_status describe(onnx_call *c)
{
    const mha_onnx_attention_attributes *a = &c->attributes;
    c->desc = (mha_attention_desc){
        .struct_size = sizeof c->desc, .scale = a->scale, .softcap = a->softcap};
    if (a->flags & MHA_ONNX_SCALE_GIVEN) c->desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
    if (is_causal(c)) c->desc.flags |= MHA_ATTENTION_CAUSAL;
    if (a->softmax_precision == 11) c->desc.path = MHA_PATH_PLAIN; /* all of it is double */
    set_window(c);
    MHA_TRY(set_lengths(c));
    MHA_TRY(mhai_preset_mask_make(c->context, c->in.attn_mask, c->opset < 24 ? -1 : c->P + c->S,
                                  &c->mask));
    c->desc.keep_mask = c->mask.keep;
    c->desc.bias = c->mask.bias;
    set_extra(c);
    return MHA_OK;
}

/* ---- keys and values ------------------------------------------------------------------------- */

/* to[b, h, first + s, :] = from[b, h, s, :] */
static void copy_rows(const mha_tensor *from, const mha_tensor *to, int64_t first)
{
    const int64_t size = (int64_t)mha_dtype_size(from->dtype);
    int64_t index[3] = {0};
    if (mhai_preset_is_empty(from)) return;
    do {
        int64_t target = mhai_preset_offset(to, 3, index) + first * to->stride[2];
        memcpy((char *)to->data + target * size,
               (const char *)from->data + mhai_preset_offset(from, 3, index) * size,
               (size_t)(from->shape[3] * size));
    } while (mhai_preset_next(from, 3, index));
}

/* Where all keys, or values, will lie: the present's memory, scratch, or the input's. */
static mha_status place(const onnx_call *c, const mha_tensor *fresh, const mha_tensor *past,
                        const mha_tensor *present, mha_tensor *all)
{
    *all = *fresh;
    if (!past) return MHA_OK;
    if (present) {
        *all = *present;
        return MHA_OK;
    }
    const int64_t shape[] = {c->B, c->Hk, c->P + c->S, fresh->shape[3]};
    mha_tensor joined = mha_tensor_contiguous(NULL, c->type, 4, shape);
    int64_t count;
    MHA_TRY(mha_tensor_count(&joined, &count));
    MHA_TRY(mha_scratch_alloc(c->context, count, mha_dtype_size(c->type), &joined.data));
    *all = joined;
    return MHA_OK;
}

/* Mode 2 shows the mask's values: those that were moved go back. */
static void restore_scores(const onnx_call *c)
{
    const mha_tensor *scores = c->out.qk_matmul_output;
    int64_t index[MHA_MAX_DIMS] = {0};
    if (!scores || !c->mask.moved || mhai_preset_is_empty(scores) ||
        c->attributes.qk_matmul_output_mode != MHA_ONNX_QK_BIASED)
        return;
    do {
        float *row = (float *)scores->data + mhai_preset_offset(scores, 3, index);
        for (int64_t s = 0; s < scores->shape[3]; s++) row[s] = mhai_preset_restore(row[s]);
    } while (mhai_preset_next(scores, 3, index));
}

static mha_status run(onnx_call *c)
{
    const mha_onnx_attention_inputs *in = &c->in;
    MHA_TRY(describe(c));
    MHA_TRY(place(c, &c->k, in->past_key, c->out.present_key, &c->all_k));
    MHA_TRY(place(c, &c->v, in->past_value, c->out.present_value, &c->all_v));
    MHA_TRY(
        mhai_preset_prepare(c->context, &c->desc, &c->q, &c->all_k, &c->all_v, &c->y, &c->extra));
    /* From here on nothing can fail. */
    if (in->past_key) {
        copy_rows(in->past_key, &c->all_k, 0);
        copy_rows(in->past_value, &c->all_v, 0);
        copy_rows(&c->k, &c->all_k, c->P);
        copy_rows(&c->v, &c->all_v, c->P);
    } else {
        if (c->out.present_key) copy_rows(&c->k, c->out.present_key, 0);
        if (c->out.present_value) copy_rows(&c->v, c->out.present_value, 0);
    }
    MHA_TRY(
        mha_attention_forward(c->context, &c->desc, &c->q, &c->all_k, &c->all_v, &c->y, &c->extra));
    restore_scores(c);
    return MHA_OK;
}

/* ---- the call -------------------------------------------------------------------------------- */

static mha_status copy_structs(onnx_call *c, const mha_onnx_attention_attributes *attributes,
                               const mha_onnx_attention_inputs *inputs,
                               const mha_onnx_attention_outputs *outputs)
{
    MHA_TRY(mhai_struct_copy("mha_onnx_attention_attributes", &c->attributes, sizeof c->attributes,
                             sizeof c->attributes, attributes));
    MHA_TRY(
        mhai_struct_copy("mha_onnx_attention_inputs", &c->in, sizeof c->in, sizeof c->in, inputs));
    MHA_TRY(mhai_struct_copy("mha_onnx_attention_outputs", &c->out, sizeof c->out, sizeof c->out,
                             outputs));
    if (c->in.reserved != 0 || c->out.reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_onnx_attention: reserved is %u and %u, expected 0",
                        (unsigned)c->in.reserved, (unsigned)c->out.reserved);
    return MHA_OK;
}

mha_status mha_onnx_attention(mha_context *context, const mha_onnx_attention_attributes *attributes,
                              const mha_onnx_attention_inputs *inputs,
                              const mha_onnx_attention_outputs *outputs)
{
    if (!context || !inputs || !outputs)
        return mha_fail(MHA_ERR_NULL, "mha_onnx_attention: %s is NULL",
                        !context  ? "context"
                        : !inputs ? "inputs"
                                  : "outputs");
    onnx_call c = {.context = context};
    MHA_TRY(copy_structs(&c, attributes, inputs, outputs));
    MHA_TRY(check_attributes(&c));
    MHA_TRY(check_inputs(&c));
    MHA_TRY(check_past(&c));
    MHA_TRY(check_nonpad(&c));
    MHA_TRY(check_mask(&c));
    MHA_TRY(check_outputs(&c));
    MHA_TRY(check_overlap(&c));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = run(&c);
    mha_scratch_release(context, mark);
    return status;
}
