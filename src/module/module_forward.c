/* A forward call: project q, k, v; attend; project the heads with W_o.
 *
 * The projections write [B, T, H * D], which attention reads as [B, H, T, D] through strides,
 * so nothing is copied between the steps. Every step that can fail precedes the first write to an
 * output or a cache. */
#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "base/need.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <string.h>

/* ---- f16 and bf16 -------------------------------------------------------------------------- */

/* Reserve scratch for a conversion of the tensor to f32, if needed. */
static mha_status take_f32(mhai_forward *f, int which, mha_tensor *x)
{
    void *memory;
    int64_t count;
    if (x->ndim == 0 || x->dtype == MHA_F32) return MHA_OK;
    f->given[which] = *x;
    MHA_TRY(mha_tensor_count(x, &count));
    MHA_TRY(mhai_module_take(f, count, sizeof(float), &memory));
    *x = mha_tensor_contiguous(memory, MHA_F32, 3, x->shape);
    return MHA_OK;
}

static bool is_same(const mha_tensor *x, const mha_tensor *y)
{
    bool same = x->data == y->data && x->dtype == y->dtype;
    for (int i = 0; i < 3; i++) same &= x->shape[i] == y->shape[i] && x->stride[i] == y->stride[i];
    return same;
}

/* In self-attention, the shared tensor is converted once. While scratch is measured, data may be
 * missing, so tensors are not compared. */
static mha_status take_all_f32(mhai_forward *f)
{
    const mha_tensor query = f->query, key = f->key;
    const bool key_is_query = !f->measuring && is_same(&key, &query),
               value_is_key = !f->measuring && is_same(&f->value, &key);
    if (f->has_query) MHA_TRY(take_f32(f, MHAI_QUERY, &f->query));
    if (f->has_query) MHA_TRY(take_f32(f, MHAI_OUT, &f->out));
    if (!f->has_keys) return MHA_OK;
    if (f->has_query && key_is_query)
        f->key = f->query;
    else
        MHA_TRY(take_f32(f, MHAI_KEY, &f->key));
    if (value_is_key)
        f->value = f->key;
    else
        MHA_TRY(take_f32(f, MHAI_VALUE, &f->value));
    return MHA_OK;
}

typedef struct conversion {
    const mha_tensor *given, *f32; /* [B,L,width]; f32 is contiguous */
    bool narrows;
} conversion;

static void convert_row(void *argument, int64_t row, int worker)
{
    const conversion *c = argument;
    const int64_t length = c->given->shape[1], width = c->given->shape[2];
    const int64_t at = row / length * c->given->stride[0] + row % length * c->given->stride[1];
    void *given = (char *)c->given->data + at * (int64_t)mha_dtype_size(c->given->dtype);
    float *f32 = (float *)c->f32->data + row * width;
    (void)worker;
    if (c->narrows)
        mhai_narrow(c->given->dtype, given, f32, width);
    else
        mhai_widen(c->given->dtype, given, width, f32);
}

static void convert(const mhai_forward *f, int which, const mha_tensor *f32)
{
    conversion c = {&f->given[which], f32, which == MHAI_OUT};
    if (c.given->data) mha_parallel_for(f->context, f32->shape[0] * f32->shape[1], convert_row, &c);
}

/* ---- scratch ------------------------------------------------------------------------------- */

static mha_status take_heads(mhai_forward *f, int64_t length, int64_t heads, int64_t head_dim,
                             mha_tensor *view)
{
    void *memory;
    int64_t rows, count;
    if (!mhai_mul_i64(f->B, length, &rows) || !mhai_mul_i64(rows, heads * head_dim, &count))
        return mha_fail(MHA_ERR_SIZE, "projections: the number of elements overflows 64 bits");
    MHA_TRY(mhai_module_take(f, count, sizeof(float), &memory));
    *view = mha_tensor_bthd(memory, f->B, length, heads, head_dim);
    return MHA_OK;
}

/* Reserve the probabilities, and the part of them that attention writes. Attention also writes
 * their average unless columns are added later. */
static mha_status take_probabilities(mhai_forward *f)
{
    const int64_t H = f->module->desc.num_heads, columns = f->columns + f->extra;
    const bool average = f->wanted[MHAI_OUT_AVERAGE];
    if (average && !f->extra) f->at.outputs.average_probabilities = &f->each[MHAI_OUT_AVERAGE];
    if (!f->wanted[MHAI_OUT_P] && !(average && f->extra)) return MHA_OK;
    f->probabilities = f->each[MHAI_OUT_P];
    if (!f->wanted[MHAI_OUT_P]) {
        void *memory;
        int64_t width, rows, count;
        if (!mhai_mul_i64(H, columns, &width) || !mhai_mul_i64(f->B, f->T, &rows) ||
            !mhai_mul_i64(rows, width, &count))
            return mha_fail(MHA_ERR_SIZE, "probabilities: the number of elements overflows");
        MHA_TRY(mhai_module_take(f, count, sizeof(float), &memory));
        f->probabilities =
            mha_tensor_contiguous(memory, MHA_F32, 4, (int64_t[]){f->B, H, f->T, columns});
    }
    f->narrow = f->probabilities;
    f->narrow.shape[3] = f->columns;
    f->at.outputs.probabilities = &f->narrow;
    return MHA_OK;
}

static mha_status take_scratch(mhai_forward *f, const mha_module_call *call)
{
    const mha_module_desc *d = &f->module->desc;
    MHA_TRY(take_all_f32(f));
    if (f->has_keys) {
        MHA_TRY(take_heads(f, f->S, d->kv_heads, d->head_dim, &f->at.k));
        MHA_TRY(take_heads(f, f->S, d->kv_heads, d->value_head_dim, &f->at.v));
    }
    MHA_TRY(mhai_module_position_prepare(f, call));
    if (!f->has_query) return MHA_OK;
    MHA_TRY(take_heads(f, f->T, d->num_heads, d->head_dim, &f->at.q));
    MHA_TRY(take_heads(f, f->T, d->num_heads, d->value_head_dim, &f->at.heads));
    if (f->wanted[MHAI_OUT_LSE]) f->at.outputs.lse = &f->each[MHAI_OUT_LSE];
    MHA_TRY(take_probabilities(f));
    return mhai_module_extra_prepare(f);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* y[b] = x[b] W^T + b, for contiguous y and x [B, length, width] with any outer strides.
 * If rows are equally spaced and weights are packed, add it to *jobs as one product.
 * Otherwise compute it now. */
static mha_status project_in(const mhai_forward *f, int projection, const mha_tensor *x,
                             const mha_tensor *y, mhai_matmul *jobs, int *count)
{
    const mha_linear *l = f->module->projection[projection];
    const int64_t length = x->shape[1];
    if (f->B == 0 || length == 0) return MHA_OK; /* x and y may have no data */
    const bool even = x->stride[0] == length * x->stride[1] || f->B == 1;
    if (even && l->weight) {
        jobs[(*count)++] = mhai_linear_job(l, MHA_ACTIVATION_NONE, x->data, x->stride[1],
                                           f->B * length, y->data, l->outputs);
        return MHA_OK;
    }
    for (int64_t b = 0; b < (even ? 1 : f->B); b++)
        MHA_TRY(mhai_linear_run(f->context, l, (const float *)x->data + b * x->stride[0],
                                x->stride[1], even ? f->B * length : length,
                                (float *)y->data + b * length * l->outputs, l->outputs));
    return MHA_OK;
}

/* Project queries, keys and values in one parallel step. */
static mha_status project_all(const mhai_forward *f)
{
    mhai_matmul jobs[MHAI_MATMULS];
    int count = 0;
    if (f->has_query) MHA_TRY(project_in(f, MHAI_Q, &f->query, &f->at.q, jobs, &count));
    if (f->has_keys) MHA_TRY(project_in(f, MHAI_K, &f->key, &f->at.k, jobs, &count));
    if (f->has_keys) MHA_TRY(project_in(f, MHAI_V, &f->value, &f->at.v, jobs, &count));
    mhai_matmul_run_all(f->context, jobs, count);
    return MHA_OK;
}

/* Project the heads. prepare() has reserved the scratch. */
static mha_status project_out(const mhai_forward *f)
{
    const mha_linear *l = f->module->projection[MHAI_O];
    if (f->B == 0 || f->T == 0 || !f->out.data) return MHA_OK;
    bool one_run = f->out.stride[0] == f->T * f->out.stride[1] || f->B == 1;
    for (int64_t b = 0; b < (one_run ? 1 : f->B); b++)
        MHA_TRY(mhai_linear_run(f->context, l,
                                (const float *)f->at.heads.data + b * f->T * l->inputs, l->inputs,
                                one_run ? f->B * f->T : f->T,
                                (float *)f->out.data + b * f->out.stride[0], f->out.stride[1]));
    return MHA_OK;
}

static void copy_heads(const mhai_forward *f, const mha_tensor *from, int output)
{
    const mha_tensor *to = &f->each[output];
    for (int64_t b = 0; f->wanted[output] && b < from->shape[0]; b++)
        for (int64_t h = 0; h < from->shape[1]; h++)
            for (int64_t t = 0; t < from->shape[2]; t++)
                memcpy((float *)to->data + b * to->stride[0] + h * to->stride[1] +
                           t * to->stride[2],
                       (const float *)from->data + b * from->stride[0] + h * from->stride[1] +
                           t * from->stride[2],
                       (size_t)from->shape[3] * sizeof(float));
}

/* Average over heads, in the same order as attention. */
static void average_heads(const mhai_forward *f)
{
    if (!f->wanted[MHAI_OUT_AVERAGE] || !f->extra) return;
    const mha_tensor *p = &f->probabilities, *mean = &f->each[MHAI_OUT_AVERAGE];
    int64_t heads = f->module->desc.num_heads, columns = f->columns + f->extra;
    for (int64_t b = 0; b < f->B; b++)
        for (int64_t t = 0; t < f->T; t++) {
            float *out = (float *)mean->data + b * mean->stride[0] + t * mean->stride[1];
            for (int64_t s = 0; s < columns; s++) out[s] = 0;
            for (int64_t h = 0; h < heads; h++) {
                const float *row =
                    (const float *)p->data + b * p->stride[0] + h * p->stride[1] + t * p->stride[2];
                for (int64_t s = 0; s < columns; s++) out[s] += row[s];
            }
            for (int64_t s = 0; s < columns; s++) out[s] /= (float)heads;
        }
}

static mha_status compute(mhai_forward *f)
{
    convert(f, MHAI_QUERY, &f->query);
    convert(f, MHAI_KEY, &f->key);
    convert(f, MHAI_VALUE, &f->value);
    MHA_TRY(project_all(f));
    MHA_TRY(mhai_attend_position(&f->at));
    MHA_TRY(f->at.cache ? mhai_module_cached_attend(f) : mhai_attend_run(&f->at));
    if (!f->has_query) return MHA_OK;
    mhai_module_extra_merge(f); /* nothing below can fail */
    MHA_TRY(project_out(f));
    convert(f, MHAI_OUT, &f->out);
    copy_heads(f, &f->at.q, MHAI_OUT_Q);
    copy_heads(f, &f->at.k, MHAI_OUT_K);
    copy_heads(f, &f->at.v, MHAI_OUT_V);
    copy_heads(f, &f->at.heads, MHAI_OUT_HEADS);
    average_heads(f);
    return MHA_OK;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Reserve the scratch of products with borrowed weights, so that they cannot fail
 * after an output is written. */
static mha_status reserve_rows(const mhai_forward *f, mha_attention_plan *plan)
{
    size_t most = 0;
    for (int i = 0; i < MHAI_PROJECTIONS; i++) {
        const mha_linear *l = f->module->projection[i];
        if (l->weight) continue;
        const int64_t rows = f->B * (i == MHAI_K || i == MHAI_V ? f->S : f->T);
        const size_t bytes = mhai_matmul_rows_bytes(f->context, MHA_COMPUTE_F32, rows, l->inputs);
        if (bytes > most) most = bytes;
    }
    if (plan->scratch_bytes < most) plan->scratch_bytes = most;
    if (f->measuring || most == 0) return MHA_OK;
    return mhai_scratch_ensure(f->context, (int64_t)most, 1);
}

/* Check everything and reserve scratch. mha_attention_explain() rejects invalid descriptors
 * before any work is done. */
static mha_status prepare(mhai_forward *f, const mha_module_call *call, mha_attention_plan *plan)
{
    *plan = (mha_attention_plan){.reason = ""};
    MHA_TRY(mhai_module_check(f, call));
    MHA_TRY(take_scratch(f, call));
    if (f->at.cache)
        MHA_TRY(mhai_module_cached_plan(f, plan));
    else
        MHA_TRY(mha_attention_explain(f->context, &f->at.desc, &f->at.q, &f->at.k, &f->at.v,
                                      &f->at.heads, &f->at.outputs, plan));
    return reserve_rows(f, plan);
}

mha_status mha_module_run(mha_context *context, const mha_module *module,
                          const mha_module_call *call)
{
    MHA_NEED("mha_module_run", context, module, call);
    mhai_forward f = {.context = context, .module = module};
    mha_module_call own;
    mha_attention_plan plan;
    MHA_TRY(mhai_struct_copy("mha_module_call", &own, sizeof own, sizeof own, call));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = prepare(&f, &own, &plan);
    if (status == MHA_OK) status = compute(&f);
    return mha_scratch_end(context, mark, status);
}

mha_status mha_module_scratch(mha_context *context, const mha_module *module,
                              const mha_module_call *call, size_t *bytes)
{
    MHA_NEED("mha_module_scratch", context, module, call, bytes);
    mhai_forward f = {.context = context, .module = module, .measuring = true};
    mha_module_call own;
    mha_attention_plan plan;
    int64_t sum;
    MHA_TRY(mhai_struct_copy("mha_module_call", &own, sizeof own, sizeof own, call));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = prepare(&f, &own, &plan);
    mha_scratch_release(context, mark);
    if (status != MHA_OK) return status;
    if ((uint64_t)plan.scratch_bytes > INT64_MAX / 2 ||
        !mhai_add_i64(f.bytes, (int64_t)plan.scratch_bytes + 64, &sum))
        return mha_fail(MHA_ERR_SIZE, "module: its scratch overflows 64 bits");
    *bytes = (size_t)sum;
    return MHA_OK;
}
