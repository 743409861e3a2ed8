/* One forward call: project q, k, v; attend; mix with W_o.
 *
 * The projections write [B, T, H * D], which the attention layer reads as [B, H, T, D] by strides:
 * nothing is copied between the four steps. Everything that can fail comes before the first byte of
 * an output is written. */
#include "base/checked.h"
#include "base/context.h"
#include "base/struct_copy.h"
#include "base/tensor.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <string.h>

static const char *const output_names[MHAI_OUTPUTS] = {
    "probabilities", "average_probabilities", "q", "k", "v", "heads", "lse"};

/* ---- views --------------------------------------------------------------------------------- */

/* Stands for memory that is never touched: a valid address to add to. */
static float nothing;

/* Check a tensor of the call against shape, which has the batch axis, and give a view that has it
 * too. While measuring a tensor may come without data. */
static mha_status view_of(const mhai_forward *f, const char *name, const mha_tensor *given,
                          int ndim, const int64_t *shape, mha_tensor *view)
{
    if (!given) return mha_fail(MHA_ERR_NULL, "%s: is NULL", name);
    mha_tensor own = *given;
    if (f->measuring && !own.data) own.data = &nothing;
    int first = f->unbatched ? 1 : 0;
    if (f->unbatched && own.ndim == ndim)
        return mha_fail(MHA_ERR_SHAPE,
                        "%s: has %d dimensions, but query has no batch axis: leave it out of every "
                        "tensor, or of none",
                        name, ndim);
    MHA_TRY(mhai_tensor_check(name, &own, MHA_F32, ndim - first, shape + first));
    MHA_TRY(mhai_tensor_check_last(name, &own));
    *view = own;
    if (!f->unbatched) return MHA_OK;
    view->ndim = ndim;
    view->shape[0] = 1;
    view->stride[0] = 0;
    memcpy(view->shape + 1, own.shape, (size_t)(ndim - 1) * sizeof(int64_t));
    memcpy(view->stride + 1, own.stride, (size_t)(ndim - 1) * sizeof(int64_t));
    return MHA_OK;
}

/* ---- checks -------------------------------------------------------------------------------- */

static mha_status check_inputs(mhai_forward *f, const mha_module_call *call)
{
    const mha_module_desc *d = &f->module->desc;
    f->unbatched = call->query && call->query->ndim == 2;
    MHA_TRY(view_of(f, "query", call->query, 3, (int64_t[]){-1, -1, d->embed_dim}, &f->query));
    f->B = f->query.shape[0], f->T = f->query.shape[1];
    MHA_TRY(view_of(f, "key", call->key, 3, (int64_t[]){f->B, -1, d->key_dim}, &f->key));
    MHA_TRY(view_of(f, "value", call->value, 3, (int64_t[]){f->B, -1, d->value_dim}, &f->value));
    f->S = f->key.shape[1];
    if (f->value.shape[1] != f->S)
        return mha_fail(MHA_ERR_SHAPE,
                        "key has length %lld, value has length %lld: they must be equal",
                        (long long)f->S, (long long)f->value.shape[1]);
    const int64_t shape[] = {f->B, f->T, d->embed_dim};
    if (f->measuring && !call->out) return MHA_OK;
    return view_of(f, "out", call->out, 3, shape, &f->out);
}

/* The columns of outputs over keys. Attention checks the offsets themselves. */
static int64_t count_columns(const mhai_forward *f)
{
    const mha_attention_desc *d = &f->desc;
    if (!d->query_starts || !d->key_starts) return f->S;
    int64_t longest = 0;
    for (int64_t b = 0; b < d->sequences; b++) {
        bool fits = d->key_starts[b] >= 0 && d->key_starts[b + 1] <= f->S;
        if (fits) longest = mhai_max_i64(longest, d->key_starts[b + 1] - d->key_starts[b]);
    }
    return longest;
}

/* Read the caller's outputs; those of attention that the module has too may come either way. */
static mha_status read_outputs(mhai_forward *f, const mha_module_outputs *outputs,
                               const mha_tensor *given[MHAI_OUTPUTS])
{
    mha_module_outputs want;
    MHA_TRY(mhai_struct_copy("mha_module_outputs", &want, sizeof want,
                             offsetof(mha_module_outputs, attention), outputs));
    if (want.reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_module_outputs: reserved is %u, expected 0",
                        (unsigned)want.reserved);
    const mha_tensor *all[] = {want.probabilities,
                               want.average_probabilities,
                               want.q,
                               want.k,
                               want.v,
                               want.heads,
                               want.lse};
    memcpy(given, all, sizeof all);
    f->inner = (mha_attention_outputs){.struct_size = sizeof f->inner};
    if (!want.attention) return MHA_OK;
    if (f->extra)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_module_outputs: attention's own outputs know nothing of bias_k and "
                        "the key of zeros; ask the module for lse and probabilities");
    MHA_TRY(mhai_struct_copy("mha_attention_outputs", &f->inner, sizeof f->inner,
                             offsetof(mha_attention_outputs, probabilities) + sizeof(void *),
                             want.attention));
    f->inner.struct_size = sizeof f->inner;
    const mha_tensor *both[] = {f->inner.probabilities, f->inner.average_probabilities,
                                f->inner.lse};
    const int own[] = {MHAI_OUT_P, MHAI_OUT_AVERAGE, MHAI_OUT_LSE};
    for (int i = 0; i < 3; i++)
        if (both[i] && given[own[i]])
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_module_outputs: %s is given twice, leave it NULL in attention",
                            output_names[own[i]]);
    if ((f->inner.heads || f->inner.rows) && given[MHAI_OUT_P])
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_module_outputs: probabilities are of all heads and rows; to choose "
                        "some, ask for probabilities in attention instead");
    return MHA_OK;
}

/* Every output: its shape, no overlap within, with an input, or with another output. */
static mha_status check_outputs(mhai_forward *f, const mha_module_outputs *outputs)
{
    const mha_module_desc *d = &f->module->desc;
    const int64_t B = f->B, T = f->T, H = d->num_heads, Hk = d->kv_heads;
    const int64_t columns = f->columns + f->extra;
    const struct {
        int ndim;
        int64_t shape[4];
    } expected[MHAI_OUTPUTS] = {
        [MHAI_OUT_P] = {4, {B, H, T, columns}},
        [MHAI_OUT_AVERAGE] = {3, {B, T, columns}},
        [MHAI_OUT_Q] = {4, {B, H, T, d->head_dim}},
        [MHAI_OUT_K] = {4, {B, Hk, f->S, d->head_dim}},
        [MHAI_OUT_V] = {4, {B, Hk, f->S, d->value_head_dim}},
        [MHAI_OUT_HEADS] = {4, {B, H, T, d->value_head_dim}},
        [MHAI_OUT_LSE] = {3, {B, H, T}},
    };
    const mha_tensor *given[MHAI_OUTPUTS];
    MHA_TRY(read_outputs(f, outputs, given));
    for (int i = 0; i < MHAI_OUTPUTS; i++) {
        f->wanted[i] = given[i];
        if (given[i])
            MHA_TRY(view_of(f, output_names[i], given[i], expected[i].ndim, expected[i].shape,
                            &f->each[i]));
    }
    return MHA_OK;
}

typedef struct named {
    const char *name;
    const mha_tensor *tensor;
} named;

/* What the descriptor points to is input too. */
static mha_status check_desc_overlap(const mha_attention_desc *d, const char *name,
                                     const mha_tensor *output)
{
    const named inputs[] = {{"keep_mask", d->keep_mask},
                            {"bias", d->bias},
                            {"global_keys", d->global_keys},
                            {"global_queries", d->global_queries},
                            {"query_documents", d->query_documents},
                            {"key_documents", d->key_documents},
                            {"keep_blocks", d->keep_blocks},
                            {"alibi_slopes", d->alibi_slopes},
                            {"t5_table", d->t5_table},
                            {"shaw_keys", d->shaw_keys},
                            {"shaw_values", d->shaw_values},
                            {"sink_logits", d->sink_logits},
                            {"gates", d->gates}};
    for (size_t j = 0; j < sizeof inputs / sizeof inputs[0]; j++)
        MHA_TRY(mhai_tensor_check_disjoint(name, output, inputs[j].name, inputs[j].tensor));
    return MHA_OK;
}

/* All outputs that are wanted; attention itself checks its own for shape and against each other. */
enum { ATTENTION_OUTPUTS = 13 };
static int list_outputs(const mhai_forward *f, named list[1 + MHAI_OUTPUTS + ATTENTION_OUTPUTS])
{
    const mha_attention_outputs *w = &f->inner;
    const named inner[ATTENTION_OUTPUTS] = {{"lse", w->lse},
                                            {"probabilities", w->probabilities},
                                            {"average_probabilities", w->average_probabilities},
                                            {"scores", w->scores},
                                            {"entropy", w->entropy},
                                            {"largest_weight", w->largest_weight},
                                            {"largest_key", w->largest_key},
                                            {"first_token", w->first_token},
                                            {"diagonal", w->diagonal},
                                            {"offset_mass", w->offset_mass},
                                            {"top_keys", w->top_keys},
                                            {"top_weights", w->top_weights},
                                            {"column_sums", w->column_sums}};
    int count = 0;
    list[count++] = (named){"out", &f->out};
    for (int i = 0; i < MHAI_OUTPUTS; i++)
        if (f->wanted[i]) list[count++] = (named){output_names[i], &f->each[i]};
    for (int i = 0; i < ATTENTION_OUTPUTS; i++)
        if (inner[i].tensor) list[count++] = inner[i];
    return count;
}

static mha_status check_overlap(const mhai_forward *f)
{
    named outputs[1 + MHAI_OUTPUTS + ATTENTION_OUTPUTS];
    int count = list_outputs(f, outputs);
    const named inputs[] = {{"query", &f->query}, {"key", &f->key}, {"value", &f->value}};
    for (int i = 0; i < count; i++) {
        const named *o = &outputs[i];
        MHA_TRY(mhai_tensor_check_output(o->name, o->tensor));
        for (int j = 0; j < 3; j++)
            MHA_TRY(
                mhai_tensor_check_disjoint(o->name, o->tensor, inputs[j].name, inputs[j].tensor));
        for (int j = 0; j < i; j++)
            MHA_TRY(
                mhai_tensor_check_disjoint(o->name, o->tensor, outputs[j].name, outputs[j].tensor));
        MHA_TRY(check_desc_overlap(&f->desc, o->name, o->tensor));
    }
    return MHA_OK;
}

static mha_status check_call(mhai_forward *f, const mha_module_call *call)
{
    if (call->reserved != 0)
        return mha_fail(MHA_ERR_UNSUPPORTED, "mha_module_call: reserved is %u, expected 0",
                        (unsigned)call->reserved);
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &f->desc, sizeof f->desc,
                             offsetof(mha_attention_desc, left_keys), call->attention));
    f->desc.struct_size = sizeof f->desc;
    f->extra = mhai_module_extra_keys(f->module);
    MHA_TRY(check_inputs(f, call));
    f->columns = count_columns(f);
    MHA_TRY(check_outputs(f, call->outputs));
    return f->measuring ? MHA_OK : check_overlap(f);
}

/* ---- scratch ------------------------------------------------------------------------------- */

mha_status mhai_module_take(mhai_forward *f, int64_t count, size_t size, void **memory)
{
    int64_t bytes;
    *memory = NULL;
    if (!f->measuring) return mha_scratch_alloc(f->context, count, size, memory);
    if (count > INT64_MAX - 64 || !mhai_mul_i64(count, (int64_t)size, &bytes) ||
        bytes > INT64_MAX - 64 ||
        !mhai_add_i64(f->bytes, mhai_round_up(mhai_max_i64(bytes, 1), 64), &f->bytes))
        return mha_fail(MHA_ERR_SIZE, "module: its scratch overflows 64 bits");
    return MHA_OK;
}

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

/* Where probabilities go, and the part of it that attention fills. Attention knows their average
 * too, unless keys are to come. */
static mha_status take_probabilities(mhai_forward *f)
{
    const int64_t H = f->module->desc.num_heads, columns = f->columns + f->extra;
    const bool average = f->wanted[MHAI_OUT_AVERAGE];
    if (average && !f->extra) f->inner.average_probabilities = &f->each[MHAI_OUT_AVERAGE];
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
    f->inner.probabilities = &f->narrow;
    return MHA_OK;
}

static mha_status take_scratch(mhai_forward *f)
{
    const mha_module_desc *d = &f->module->desc;
    MHA_TRY(take_heads(f, f->T, d->num_heads, d->head_dim, &f->q));
    MHA_TRY(take_heads(f, f->S, d->kv_heads, d->head_dim, &f->k));
    MHA_TRY(take_heads(f, f->S, d->kv_heads, d->value_head_dim, &f->v));
    MHA_TRY(take_heads(f, f->T, d->num_heads, d->value_head_dim, &f->heads));
    if (f->wanted[MHAI_OUT_LSE]) f->inner.lse = &f->each[MHAI_OUT_LSE];
    MHA_TRY(take_probabilities(f));
    return mhai_module_extra_prepare(f);
}

/* ---- steps --------------------------------------------------------------------------------- */

/* y[b] = x[b] W^T + b for [B, length, width] x of any outer strides and contiguous y. */
static void project_in(const mhai_forward *f, int projection, const mha_tensor *x,
                       const mha_tensor *y)
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

static void project_out(const mhai_forward *f)
{
    const mha_linear *l = f->module->projection[MHAI_O];
    bool one_run = f->out.stride[0] == f->T * f->out.stride[1] || f->B == 1;
    for (int64_t b = 0; b < (one_run ? 1 : f->B); b++)
        mhai_linear_run(f->context, l, MHA_ACTIVATION_NONE,
                        (const float *)f->heads.data + b * f->T * l->inputs, l->inputs,
                        one_run ? f->B * f->T : f->T, (float *)f->out.data + b * f->out.stride[0],
                        f->out.stride[1]);
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

/* Mean over heads, summed in their order, as attention does it. */
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
    project_in(f, MHAI_Q, &f->query, &f->q);
    project_in(f, MHAI_K, &f->key, &f->k);
    project_in(f, MHAI_V, &f->value, &f->v);
    MHA_TRY(mha_attention_forward(f->context, &f->desc, &f->q, &f->k, &f->v, &f->heads, &f->inner));
    mhai_module_extra_merge(f); /* from here on nothing can fail */
    project_out(f);
    copy_heads(f, &f->q, MHAI_OUT_Q);
    copy_heads(f, &f->k, MHAI_OUT_K);
    copy_heads(f, &f->v, MHAI_OUT_V);
    copy_heads(f, &f->heads, MHAI_OUT_HEADS);
    average_heads(f);
    return MHA_OK;
}

/* ---- calls --------------------------------------------------------------------------------- */

/* Check everything, take scratch, and say what attention would do: it refuses a bad descriptor
 * before the work. */
static mha_status prepare(mhai_forward *f, const mha_module_call *call, mha_attention_plan *plan)
{
    MHA_TRY(check_call(f, call));
    MHA_TRY(take_scratch(f));
    return mha_attention_explain(f->context, &f->desc, &f->q, &f->k, &f->v, &f->heads, &f->inner,
                                 plan);
}

mha_status mha_module_run(mha_context *context, const mha_module *module,
                          const mha_module_call *call)
{
    if (!context || !module || !call)
        return mha_fail(MHA_ERR_NULL, "mha_module_run: %s is NULL",
                        !context  ? "context"
                        : !module ? "module"
                                  : "call");
    mhai_forward f = {.context = context, .module = module};
    mha_module_call own;
    mha_attention_plan plan;
    MHA_TRY(mhai_struct_copy("mha_module_call", &own, sizeof own, sizeof own, call));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = prepare(&f, &own, &plan);
    if (status == MHA_OK) status = compute(&f);
    mha_scratch_release(context, mark);
    return status;
}

mha_status mha_module_forward(mha_context *context, const mha_module *module,
                              const mha_attention_desc *attention, const mha_tensor *query,
                              const mha_tensor *key, const mha_tensor *value, const mha_tensor *out,
                              const mha_module_outputs *outputs)
{
    return mha_module_run(context, module,
                          &(mha_module_call){.struct_size = sizeof(mha_module_call),
                                             .attention = attention,
                                             .query = query,
                                             .key = key,
                                             .value = value,
                                             .out = out,
                                             .outputs = outputs});
}

mha_status mha_module_scratch(mha_context *context, const mha_module *module,
                              const mha_module_call *call, size_t *bytes)
{
    if (!context || !module || !call || !bytes)
        return mha_fail(MHA_ERR_NULL, "mha_module_scratch: %s is NULL",
                        !context  ? "context"
                        : !module ? "module"
                        : !call   ? "call"
                                  : "bytes");
    mhai_forward f = {.context = context, .module = module, .measuring = true};
    mha_module_call own;
    mha_attention_plan plan;
    int64_t sum;
    MHA_TRY(mhai_struct_copy("mha_module_call", &own, sizeof own, sizeof own, call));
    MHA_TRY(prepare(&f, &own, &plan));
    if (plan.scratch_bytes > INT64_MAX / 2 ||
        !mhai_add_i64(f.bytes, (int64_t)plan.scratch_bytes + 64, &sum))
        return mha_fail(MHA_ERR_SIZE, "module: its scratch overflows 64 bits");
    *bytes = (size_t)sum;
    return MHA_OK;
}
