/* The operators of others: PyTorch's two and ONNX's, right and spoiled. */
#include "fuzz_call.h"

#include <multihead/presets.h>

#include <stdlib.h>

typedef struct sizes {
    int64_t B, H, Hk, T, S, P, D, Dv;
} sizes;

static sizes some_sizes(fuzz_part *in)
{
    sizes n = {.B = fuzz_pick(in, 0, 3), .Hk = fuzz_pick(in, 1, 2)};
    n.H = n.Hk * fuzz_pick(in, 1, 2);
    n.T = fuzz_pick(in, 0, 6);
    n.S = fuzz_pick(in, 0, 9);
    n.P = fuzz_pick(in, 0, 4);
    n.D = fuzz_pick(in, 1, 9);
    n.Dv = fuzz_pick(in, 0, 1) ? n.D : fuzz_pick(in, 1, 9);
    return n;
}

static mha_tensor *some_mask(fuzz_call *c, int ndim, const int64_t *shape)
{
    return fuzz_broadcast(c, fuzz_pick(c->in, 0, 1) ? MHA_U8 : fuzz_float(c), ndim, shape);
}

/* ---- scaled_dot_product_attention ---------------------------------------------------------- */

typedef struct sdpa_case {
    mha_pytorch_sdpa_args *args;
    mha_tensor *q, *k, *v, *o;
} sdpa_case;

static mha_status sdpa(mha_context *context, void *user)
{
    const sdpa_case *x = user;
    return mha_pytorch_sdpa_forward(context, x->args, x->q, x->k, x->v, x->o);
}

static void fuzz_sdpa(fuzz_call *c)
{
    const sizes n = some_sizes(c->in);
    const int extra = (int)fuzz_pick(c->in, -2, 2), axes = 4 + extra;
    const unsigned shared = (unsigned)fuzz_take(c->in, 1); /* axes of key and value to broadcast */
    const int64_t outer = shared & 1 ? 1 : 2, B = shared & 2 ? 1 : n.B,
                  heads = shared & 4 ? 1 : n.Hk;
    const int64_t q[] = {2, 1, n.B, n.H, n.T, n.D}, k[] = {outer, 1, B, heads, n.S, n.D};
    const int64_t v[] = {outer, 1, B, heads, n.S, n.Dv}, o[] = {2, 1, n.B, n.H, n.T, n.Dv};
    const int64_t mask[] = {2, 1, n.B, n.H, n.T, n.S};
    const int from = 6 - axes;
    const mha_dtype type = fuzz_float(c);
    mha_pytorch_sdpa_args args = {.flags = (uint32_t)fuzz_pick(c->in, 0, 15),
                                  .scale = (float)fuzz_double(c->in),
                                  .dropout_p = fuzz_pick(c->in, 0, 3) ? 0 : 0.5f};
    sdpa_case x = {.q = fuzz_input(c, type, axes, q + from),
                   .k = fuzz_input(c, type, axes, k + from),
                   .v = fuzz_input(c, type, axes, v + from)};
    if (fuzz_pick(c->in, 0, 1)) args.attn_mask = some_mask(c, axes, mask + from);
    x.o = fuzz_output(c, type, axes, o + from);
    fuzz_call_spoil(c);
    x.args = fuzz_struct(c, &args, sizeof args);
    if (fuzz_call_backed(c)) fuzz_call_check(c, sdpa, &x);
    free(x.args);
}

/* ---- MultiheadAttention -------------------------------------------------------------------- */

typedef struct mha_case {
    mha_module *module;
    mha_pytorch_mha_args *args;
    mha_tensor *out, *weights;
} mha_case;

static mha_status pytorch_mha(mha_context *context, void *user)
{
    const mha_case *x = user;
    return mha_pytorch_mha_forward(context, x->module, x->args, x->out, x->weights);
}

static void fuzz_mha(fuzz_call *c)
{
    const sizes n = some_sizes(c->in);
    const uint32_t flags = (uint32_t)fuzz_pick(c->in, 0, 15), more = (uint32_t)fuzz_take(c->in, 1);
    const mha_module_desc desc = {.struct_size = sizeof desc,
                                  .embed_dim = n.H * n.D,
                                  .num_heads = n.H,
                                  .flags = more & (MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN)};
    const int64_t E = desc.embed_dim, added = (more >> 2 & 1) + (more >> 3 & 1), S = n.S + added;
    const bool first = flags & MHA_PYTORCH_BATCH_FIRST;
    const int from = more & 16 ? 1 : 0, axes = 3 - from; /* without a batch */
    const int64_t q[] = {first ? n.B : n.T, first ? n.T : n.B, E};
    const int64_t k[] = {first ? n.B : n.S, first ? n.S : n.B, E};
    const int64_t flat_q[] = {n.T, E}, flat_k[] = {n.S, E};
    const int64_t p[] = {n.B, n.H, n.T, S}, mean[] = {n.B, n.T, S};
    mha_pytorch_mha_args args = {.flags = flags, .dropout = more & 32 ? 0.5f : 0};
    mha_case x = {0};
    fuzz_must(mha_module_create(fuzz_context(1, 0), &desc, &x.module) == MHA_OK, "no module");
    args.query = fuzz_input(c, MHA_F32, axes, from ? flat_q : q);
    args.key = fuzz_input(c, MHA_F32, axes, from ? flat_k : k);
    args.value = fuzz_input(c, MHA_F32, axes, from ? flat_k : k);
    if (more & 64) args.key_padding_mask = some_mask(c, 2, (int64_t[]){n.B, n.S});
    if (more & 128) args.attn_mask = some_mask(c, 2, (int64_t[]){n.T, n.S});
    x.out = fuzz_output(c, MHA_F32, axes, from ? flat_q : q);
    if (more & 1) {
        const bool heads = flags & MHA_PYTORCH_PER_HEAD;
        x.weights = fuzz_output(c, MHA_F32, (heads ? 4 : 3) - from, (heads ? p : mean) + from);
    }
    fuzz_call_spoil(c);
    x.args = fuzz_struct(c, &args, sizeof args);
    if (fuzz_call_backed(c)) fuzz_call_check(c, pytorch_mha, &x);
    mha_module_destroy(x.module);
    free(x.args);
}

/* ---- ONNX ---------------------------------------------------------------------------------- */

typedef struct onnx_case {
    mha_onnx_attention_attributes *attributes;
    mha_onnx_attention_inputs *inputs;
    mha_onnx_attention_outputs *outputs;
} onnx_case;

static mha_status onnx(mha_context *context, void *user)
{
    const onnx_case *x = user;
    return mha_onnx_attention(context, x->attributes, x->inputs, x->outputs);
}

static void make_onnx(fuzz_call *c, const sizes *n, mha_onnx_attention_attributes *a,
                      mha_onnx_attention_inputs *in, mha_onnx_attention_outputs *out)
{
    const unsigned has = (unsigned)fuzz_take(c->in, 1);
    const bool flat = has & 1, past = has & 2;
    const mha_dtype type = fuzz_float(c);
    const int axes = flat ? 3 : 4;
    const int64_t q[] = {n->B, n->H, n->T, n->D}, k[] = {n->B, n->Hk, n->S, n->D};
    const int64_t v[] = {n->B, n->Hk, n->S, n->Dv}, y[] = {n->B, n->H, n->T, n->Dv};
    const int64_t fq[] = {n->B, n->T, n->H * n->D}, fk[] = {n->B, n->S, n->Hk * n->D};
    const int64_t fv[] = {n->B, n->S, n->Hk * n->Dv}, fy[] = {n->B, n->T, n->H * n->Dv};
    const int64_t P = past ? n->P : 0, all = P + n->S;
    if (flat) a->q_num_heads = n->H, a->kv_num_heads = n->Hk;
    in->q = fuzz_input(c, type, axes, flat ? fq : q);
    in->k = fuzz_input(c, type, axes, flat ? fk : k);
    in->v = fuzz_input(c, type, axes, flat ? fv : v);
    if (past) {
        in->past_key = fuzz_input(c, type, 4, (int64_t[]){n->B, n->Hk, P, n->D});
        in->past_value = fuzz_input(c, type, 4, (int64_t[]){n->B, n->Hk, P, n->Dv});
    }
    if (has & 4) in->attn_mask = some_mask(c, 4, (int64_t[]){n->B, n->H, n->T, all});
    if (has & 8) in->nonpad_kv_seqlen = fuzz_input(c, MHA_I64, 1, &n->B);
    out->y = fuzz_output(c, type, axes, flat ? fy : y);
    if (has & 16) out->present_key = fuzz_output(c, type, 4, (int64_t[]){n->B, n->Hk, all, n->D});
    if (has & 16)
        out->present_value = fuzz_output(c, type, 4, (int64_t[]){n->B, n->Hk, all, n->Dv});
    if (has & 32)
        out->qk_matmul_output = fuzz_output(c, MHA_F32, 4, (int64_t[]){n->B, n->H, n->T, all});
}

static void fuzz_onnx(fuzz_call *c)
{
    static const int64_t odd[] = {-1, 0, 1, 3, INT64_MAX, INT64_MIN};
    static const int types[] = {0, 0, 1, 10, 11, 16, 2};
    const sizes n = some_sizes(c->in);
    mha_onnx_attention_attributes attributes = {
        .flags = (uint32_t)fuzz_pick(c->in, 0, 8),
        .opset = fuzz_pick(c->in, 0, 1) ? 0 : (int32_t)fuzz_pick(c->in, 22, 26),
        .softmax_precision = types[fuzz_pick(c->in, 0, 6)],
        .scale = fuzz_pick(c->in, 0, 3) ? 0 : (float)fuzz_double(c->in),
        .softcap = fuzz_pick(c->in, 0, 3) ? 0 : (float)fuzz_double(c->in),
        .qk_matmul_output_mode = (mha_onnx_qk_mode)fuzz_pick(c->in, 0, 4)};
    mha_onnx_attention_inputs inputs = {.struct_size = 0};
    mha_onnx_attention_outputs outputs = {.struct_size = 0};
    if (attributes.flags & MHA_ONNX_WINDOW) {
        attributes.left_window_size = odd[fuzz_pick(c->in, 0, 5)];
        attributes.right_window_size = odd[fuzz_pick(c->in, 0, 5)];
    }
    make_onnx(c, &n, &attributes, &inputs, &outputs);
    fuzz_call_spoil(c);
    onnx_case x = {fuzz_struct(c, &attributes, sizeof attributes),
                   fuzz_struct(c, &inputs, sizeof inputs),
                   fuzz_struct(c, &outputs, sizeof outputs)};
    if (fuzz_call_backed(c)) fuzz_call_check(c, onnx, &x);
    free(x.attributes), free(x.inputs), free(x.outputs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static void (*const kinds[])(fuzz_call *) = {fuzz_sdpa, fuzz_mha, fuzz_onnx};
    fuzz_part in = {data, size};
    const int kind = (int)fuzz_pick(&in, 0, 2);
    fuzz_call *c = malloc(sizeof *c);
    fuzz_must(c != NULL, "out of memory");
    fuzz_call_make(c, &in);
    kinds[kind](c);
    fuzz_call_free(c);
    free(c);
    return 0;
}
