/* The multi-head attention module: project q, k, v; attend; mix with W_o.
 *
 * The projections write [B, T, H * D], which the attention layer reads as [B, H, T, D] by strides:
 * nothing is copied between the four steps. */
#include "base/checked.h"
#include "base/context.h"
#include "base/struct_copy.h"
#include "base/tensor.h"
#include "module/linear.h"

#include <multihead/component.h>
#include <multihead/module.h>

#include <string.h>

enum { Q, K, V, O, PROJECTIONS };

struct mha_module {
    mha_allocator allocator;
    mha_module_desc desc; /* every default filled in */
    mha_linear *projection[PROJECTIONS];
};

/* ---- description --------------------------------------------------------------------------- */

static mha_status check_positive(const char *name, int64_t value)
{
    /* The bound keeps every product of two of these far inside 64 bits. */
    if (value < 1 || value > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_module_desc: %s is %lld, expected 1..%d", name,
                        (long long)value, INT32_MAX);
    return MHA_OK;
}

static mha_status fill_defaults(mha_module_desc *d)
{
    if (d->flags & ~(uint32_t)(MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS))
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_module_desc: flags 0x%x are unknown",
                        (unsigned)d->flags);
    MHA_TRY(check_positive("embed_dim", d->embed_dim));
    MHA_TRY(check_positive("num_heads", d->num_heads));
    if (d->head_dim == 0 && d->embed_dim % d->num_heads != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "embed_dim %lld is not a multiple of num_heads %lld; choose another number "
                        "of heads or set head_dim",
                        (long long)d->embed_dim, (long long)d->num_heads);
    if (d->kv_heads == 0) d->kv_heads = d->num_heads;
    if (d->head_dim == 0) d->head_dim = d->embed_dim / d->num_heads;
    if (d->value_head_dim == 0) d->value_head_dim = d->head_dim;
    if (d->key_dim == 0) d->key_dim = d->embed_dim;
    if (d->value_dim == 0) d->value_dim = d->embed_dim;
    MHA_TRY(check_positive("kv_heads", d->kv_heads));
    MHA_TRY(check_positive("head_dim", d->head_dim));
    MHA_TRY(check_positive("value_head_dim", d->value_head_dim));
    MHA_TRY(check_positive("key_dim", d->key_dim));
    MHA_TRY(check_positive("value_dim", d->value_dim));
    if (d->num_heads % d->kv_heads != 0)
        return mha_fail(MHA_ERR_SHAPE, "num_heads %lld is not a multiple of kv_heads %lld",
                        (long long)d->num_heads, (long long)d->kv_heads);
    return MHA_OK;
}

mha_status mha_module_create(mha_context *context, const mha_module_desc *desc, mha_module **module)
{
    if (!context || !desc || !module)
        return mha_fail(MHA_ERR_NULL, "mha_module_create: %s is NULL",
                        !context ? "context"
                        : !desc  ? "desc"
                                 : "module");
    mha_module_desc d;
    MHA_TRY(mhai_struct_copy("mha_module_desc", &d, sizeof d, sizeof d, desc));
    MHA_TRY(fill_defaults(&d));
    const mha_allocator *a = &context->allocator;
    mha_module *made = a->alloc(a->user, sizeof *made, _Alignof(mha_module));
    if (!made) return mha_fail(MHA_ERR_NOMEM, "module: cannot allocate %zu bytes", sizeof *made);
    *made = (mha_module){.allocator = *a, .desc = d};
    const int64_t width[PROJECTIONS][2] = {
        [Q] = {d.embed_dim, d.num_heads * d.head_dim},
        [K] = {d.key_dim, d.kv_heads * d.head_dim},
        [V] = {d.value_dim, d.kv_heads * d.value_head_dim},
        [O] = {d.num_heads * d.value_head_dim, d.embed_dim},
    };
    for (int i = 0; i < PROJECTIONS; i++) {
        bool has_bias = !(d.flags & (i == O ? MHA_MODULE_NO_OUT_BIAS : MHA_MODULE_NO_QKV_BIAS));
        mha_status status =
            mhai_linear_create(context, width[i][0], width[i][1], has_bias, &made->projection[i]);
        if (status != MHA_OK) {
            mha_module_destroy(made);
            return status;
        }
    }
    *module = made;
    return MHA_OK;
}

void mha_module_destroy(mha_module *module)
{
    if (!module) return;
    for (int i = 0; i < PROJECTIONS; i++) mha_linear_destroy(module->projection[i]);
    mha_allocator allocator = module->allocator;
    allocator.release(allocator.user, module, sizeof *module);
}

void mha_module_describe(const mha_module *module, mha_module_desc *desc)
{
    *desc = module->desc;
    desc->struct_size = sizeof *desc;
}

/* ---- parameters ---------------------------------------------------------------------------- */

/* The one list of parameter names. in_proj is split over three layers. */
static const struct {
    const char *name;
    int first, count; /* layers that it fills, one after the other */
    bool bias;
} parameters[] = {
    {"in_proj_weight", Q, 3, false}, {"in_proj_bias", Q, 3, true}, {"q_proj_weight", Q, 1, false},
    {"q_proj.weight", Q, 1, false},  {"q_proj.bias", Q, 1, true},  {"k_proj_weight", K, 1, false},
    {"k_proj.weight", K, 1, false},  {"k_proj.bias", K, 1, true},  {"v_proj_weight", V, 1, false},
    {"v_proj.weight", V, 1, false},  {"v_proj.bias", V, 1, true},  {"out_proj.weight", O, 1, false},
    {"out_proj.bias", O, 1, true},
};

/* in_proj stands for three layers of one width. */
static mha_status check_splits_evenly(const char *name, const mha_module *module)
{
    const mha_linear *q = module->projection[Q];
    for (int i = K; i <= V; i++)
        if (module->projection[i]->inputs != q->inputs ||
            module->projection[i]->outputs != q->outputs)
            return mha_fail(MHA_ERR_SHAPE,
                            "%s needs q, k and v projections of one shape; set q_proj_weight, "
                            "k_proj_weight and v_proj_weight instead",
                            name);
    return MHA_OK;
}

static mha_status set_parameter(mha_module *module, size_t index, const mha_tensor *value)
{
    const char *name = parameters[index].name;
    int first = parameters[index].first, count = parameters[index].count;
    bool bias = parameters[index].bias;
    const mha_linear *layer = module->projection[first];
    if (bias && !layer->has_bias)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: this module was made without that bias", name);
    if (count > 1) MHA_TRY(check_splits_evenly(name, module));
    const int64_t shape[] = {count * layer->outputs, layer->inputs};
    MHA_TRY(mhai_tensor_check(name, value, MHA_F32, bias ? 1 : 2, shape));
    for (int i = 0; i < count; i++) {
        mha_linear *l = module->projection[first + i];
        if (bias)
            mhai_linear_set_bias(l, value, i * l->outputs);
        else
            mhai_linear_set_weight(l, value, i * l->outputs);
    }
    return MHA_OK;
}

mha_status mha_module_set_parameter(mha_module *module, const char *name, const mha_tensor *value)
{
    if (!module || !name)
        return mha_fail(MHA_ERR_NULL, "mha_module_set_parameter: %s is NULL",
                        module ? "name" : "module");
    for (size_t i = 0; i < sizeof parameters / sizeof parameters[0]; i++)
        if (strcmp(name, parameters[i].name) == 0) return set_parameter(module, i, value);
    return mha_fail(MHA_ERR_ARGUMENT,
                    "parameter '%.80s' is unknown, expected a PyTorch name such as in_proj_weight, "
                    "q_proj.weight or out_proj.bias",
                    name);
}

/* ---- forward ------------------------------------------------------------------------------- */

/* One forward call: sizes, checked inputs, and the views of scratch that flow between the steps. */
typedef struct forward {
    mha_context *context;
    const mha_module *module;
    int64_t B, T, S;
    const mha_tensor *query, *key, *value, *out;
    mha_module_outputs want;
    mha_tensor q, k, v, heads; /* [B,H,T,D] views of [B,T,H*D] scratch */
    mha_tensor probabilities;  /* the caller's, or scratch for the average */
    bool has_probabilities;
} forward;

static mha_status check_input(const char *name, const mha_tensor *x, int64_t batch, int64_t length,
                              int64_t width)
{
    MHA_TRY(mhai_tensor_check(name, x, MHA_F32, 3, (int64_t[]){batch, length, width}));
    return mhai_tensor_check_last(name, x);
}

static mha_status check_inputs(forward *f)
{
    const mha_module_desc *d = &f->module->desc;
    MHA_TRY(check_input("query", f->query, -1, -1, d->embed_dim));
    f->B = f->query->shape[0], f->T = f->query->shape[1];
    MHA_TRY(check_input("key", f->key, f->B, -1, d->key_dim));
    MHA_TRY(check_input("value", f->value, f->B, -1, d->value_dim));
    f->S = f->key->shape[1];
    if (f->value->shape[1] != f->S)
        return mha_fail(MHA_ERR_SHAPE,
                        "key has length %lld, value has length %lld: they must be equal",
                        (long long)f->S, (long long)f->value->shape[1]);
    return check_input("out", f->out, f->B, f->T, d->embed_dim);
}

/* Every output: its shape, no overlap within, with an input, or with another output. */
static mha_status check_outputs(const forward *f)
{
    const mha_module_desc *d = &f->module->desc;
    const struct {
        const char *name;
        const mha_tensor *tensor;
        int ndim;
        int64_t shape[4];
    } outputs[] = {
        {"out", f->out, 3, {f->B, f->T, d->embed_dim}},
        {"probabilities", f->want.probabilities, 4, {f->B, d->num_heads, f->T, f->S}},
        {"average_probabilities", f->want.average_probabilities, 3, {f->B, f->T, f->S}},
        {"q", f->want.q, 4, {f->B, d->num_heads, f->T, d->head_dim}},
        {"k", f->want.k, 4, {f->B, d->kv_heads, f->S, d->head_dim}},
        {"v", f->want.v, 4, {f->B, d->kv_heads, f->S, d->value_head_dim}},
        {"heads", f->want.heads, 4, {f->B, d->num_heads, f->T, d->value_head_dim}},
        {"lse", f->want.lse, 3, {f->B, d->num_heads, f->T}},
    };
    const mha_tensor *inputs[] = {f->query, f->key, f->value};
    static const char *const input_names[] = {"query", "key", "value"};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++) {
        const char *name = outputs[i].name;
        const mha_tensor *tensor = outputs[i].tensor;
        if (!tensor) continue;
        MHA_TRY(mhai_tensor_check(name, tensor, MHA_F32, outputs[i].ndim, outputs[i].shape));
        MHA_TRY(mhai_tensor_check_last(name, tensor));
        MHA_TRY(mhai_tensor_check_output(name, tensor));
        for (int j = 0; j < 3; j++)
            MHA_TRY(mhai_tensor_check_disjoint(name, tensor, input_names[j], inputs[j]));
        for (size_t j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(name, tensor, outputs[j].name, outputs[j].tensor));
    }
    return MHA_OK;
}

/* What the descriptor points to is input too. */
static mha_status check_desc_overlap(const forward *f, const mha_attention_desc *attention)
{
    mha_attention_desc d;
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &d, sizeof d,
                             offsetof(mha_attention_desc, left_keys), attention));
    const mha_tensor *outputs[] = {f->out,
                                   f->want.probabilities,
                                   f->want.average_probabilities,
                                   f->want.q,
                                   f->want.k,
                                   f->want.v,
                                   f->want.heads,
                                   f->want.lse};
    const struct {
        const char *name;
        const mha_tensor *tensor;
    } inputs[] = {{"keep_mask", d.keep_mask},
                  {"bias", d.bias},
                  {"global_keys", d.global_keys},
                  {"global_queries", d.global_queries},
                  {"query_documents", d.query_documents},
                  {"key_documents", d.key_documents},
                  {"keep_blocks", d.keep_blocks},
                  {"alibi_slopes", d.alibi_slopes},
                  {"t5_table", d.t5_table},
                  {"shaw_keys", d.shaw_keys},
                  {"shaw_values", d.shaw_values},
                  {"sink_logits", d.sink_logits},
                  {"gates", d.gates}};
    for (size_t i = 0; i < sizeof outputs / sizeof outputs[0]; i++)
        for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++)
            MHA_TRY(mhai_tensor_check_disjoint("an output", outputs[i], inputs[j].name,
                                               inputs[j].tensor));
    return MHA_OK;
}

static mha_status scratch_heads(const forward *f, int64_t length, int64_t heads, int64_t head_dim,
                                mha_tensor *view)
{
    void *memory;
    int64_t rows, count;
    if (!mhai_mul_i64(f->B, length, &rows) || !mhai_mul_i64(rows, heads * head_dim, &count))
        return mha_fail(MHA_ERR_SIZE, "projections: the number of elements overflows 64 bits");
    MHA_TRY(mha_scratch_alloc(f->context, count, sizeof(float), &memory));
    *view = mha_tensor_bthd(memory, f->B, length, heads, head_dim);
    return MHA_OK;
}

static mha_status allocate_scratch(forward *f)
{
    const mha_module_desc *d = &f->module->desc;
    MHA_TRY(scratch_heads(f, f->T, d->num_heads, d->head_dim, &f->q));
    MHA_TRY(scratch_heads(f, f->S, d->kv_heads, d->head_dim, &f->k));
    MHA_TRY(scratch_heads(f, f->S, d->kv_heads, d->value_head_dim, &f->v));
    MHA_TRY(scratch_heads(f, f->T, d->num_heads, d->value_head_dim, &f->heads));
    f->has_probabilities = f->want.probabilities || f->want.average_probabilities;
    if (f->want.probabilities) {
        f->probabilities = *f->want.probabilities;
    } else if (f->want.average_probabilities) {
        void *memory;
        int64_t width, count;
        if (!mhai_mul_i64(d->num_heads, f->S, &width) || !mhai_mul_i64(f->B * f->T, width, &count))
            return mha_fail(MHA_ERR_SIZE, "probabilities: the number of elements overflows");
        MHA_TRY(mha_scratch_alloc(f->context, count, sizeof(float), &memory));
        f->probabilities =
            mha_tensor_contiguous(memory, MHA_F32, 4, (int64_t[]){f->B, d->num_heads, f->T, f->S});
    }
    return MHA_OK;
}

/* y[b] = x[b] W^T + b for [B, length, width] x of any outer strides and contiguous y. */
static void project_in(const forward *f, int projection, const mha_tensor *x, const mha_tensor *y)
{
    const mha_linear *l = f->module->projection[projection];
    int64_t length = x->shape[1];
    bool one_run = x->stride[0] == length * x->stride[1] || f->B == 1;
    for (int64_t b = 0; b < (one_run ? 1 : f->B); b++)
        mhai_linear_run(f->context, l, MHA_ACTIVATION_NONE,
                        (const float *)x->data + b * x->stride[0], x->stride[1],
                        one_run ? f->B * length : length,
                        (float *)y->data + b * length * l->outputs, l->outputs);
}

static void project_out(const forward *f)
{
    const mha_linear *l = f->module->projection[O];
    bool one_run = f->out->stride[0] == f->T * f->out->stride[1] || f->B == 1;
    for (int64_t b = 0; b < (one_run ? 1 : f->B); b++)
        mhai_linear_run(f->context, l, MHA_ACTIVATION_NONE,
                        (const float *)f->heads.data + b * f->T * l->inputs, l->inputs,
                        one_run ? f->B * f->T : f->T, (float *)f->out->data + b * f->out->stride[0],
                        f->out->stride[1]);
}

static void copy_heads(const mha_tensor *from, const mha_tensor *to)
{
    if (!to) return;
    for (int64_t b = 0; b < from->shape[0]; b++)
        for (int64_t h = 0; h < from->shape[1]; h++)
            for (int64_t t = 0; t < from->shape[2]; t++)
                memcpy((float *)to->data + b * to->stride[0] + h * to->stride[1] +
                           t * to->stride[2],
                       (const float *)from->data + b * from->stride[0] + h * from->stride[1] +
                           t * from->stride[2],
                       (size_t)from->shape[3] * sizeof(float));
}

/* Mean over heads, summed in their order. */
static void average_heads(const forward *f)
{
    const mha_tensor *p = &f->probabilities, *mean = f->want.average_probabilities;
    int64_t heads = f->module->desc.num_heads;
    for (int64_t b = 0; mean && b < f->B; b++)
        for (int64_t t = 0; t < f->T; t++) {
            float *out = (float *)mean->data + b * mean->stride[0] + t * mean->stride[1];
            for (int64_t s = 0; s < f->S; s++) out[s] = 0;
            for (int64_t h = 0; h < heads; h++) {
                const float *row =
                    (const float *)p->data + b * p->stride[0] + h * p->stride[1] + t * p->stride[2];
                for (int64_t s = 0; s < f->S; s++) out[s] += row[s];
            }
            for (int64_t s = 0; s < f->S; s++) out[s] /= (float)heads;
        }
}

static mha_status run(forward *f, const mha_attention_desc *attention)
{
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs,
                                           .lse = f->want.lse,
                                           .probabilities =
                                               f->has_probabilities ? &f->probabilities : NULL};
    mha_attention_plan plan; /* refuses a bad descriptor before the work */
    MHA_TRY(mha_attention_explain(f->context, attention, &f->q, &f->k, &f->v, &f->heads, &outputs,
                                  &plan));
    project_in(f, Q, f->query, &f->q);
    project_in(f, K, f->key, &f->k);
    project_in(f, V, f->value, &f->v);
    MHA_TRY(mha_attention_forward(f->context, attention, &f->q, &f->k, &f->v, &f->heads, &outputs));
    project_out(f); /* from here on nothing can fail */
    copy_heads(&f->q, f->want.q);
    copy_heads(&f->k, f->want.k);
    copy_heads(&f->v, f->want.v);
    copy_heads(&f->heads, f->want.heads);
    average_heads(f);
    return MHA_OK;
}

mha_status mha_module_forward(mha_context *context, const mha_module *module,
                              const mha_attention_desc *attention, const mha_tensor *query,
                              const mha_tensor *key, const mha_tensor *value, const mha_tensor *out,
                              const mha_module_outputs *outputs)
{
    if (!context || !module)
        return mha_fail(MHA_ERR_NULL, "mha_module_forward: %s is NULL",
                        context ? "module" : "context");
    forward f = {.context = context,
                 .module = module,
                 .query = query,
                 .key = key,
                 .value = value,
                 .out = out};
    MHA_TRY(mhai_struct_copy("mha_module_outputs", &f.want, sizeof f.want, sizeof f.want, outputs));
    if (f.want.reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_module_outputs: reserved is %u, expected 0",
                        (unsigned)f.want.reserved);
    MHA_TRY(check_inputs(&f));
    MHA_TRY(check_outputs(&f));
    MHA_TRY(check_desc_overlap(&f, attention));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = allocate_scratch(&f);
    if (status == MHA_OK) status = run(&f, attention);
    mha_scratch_release(context, mark);
    return status;
}
