/* Check the arguments of a call: shapes and overlaps of all tensors, viewed with a batch axis. */
#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"
#include "module/module_parts.h"

#include <multihead/component.h>

#include <string.h>

static const char *const output_names[MHAI_OUTPUTS] = {
    "probabilities", "average_probabilities", "q", "k", "v", "heads", "lse"};

/* ---- views --------------------------------------------------------------------------------- */

/* A valid address for pointer arithmetic, never read or written. */
static float nothing;

/* Check a tensor against a shape with a batch axis, and return a view of that shape. While scratch
 * is measured, tensors may have no data. */
static mha_status view_of(const mhai_forward *f, const char *name, const mha_tensor *given,
                          mha_dtype type, int ndim, const int64_t *shape, mha_tensor *view)
{
    mha_tensor own = *given;
    if (f->measuring && !own.data) own.data = &nothing;
    int first = f->unbatched ? 1 : 0;
    if (f->unbatched && own.ndim == ndim)
        return mha_fail(MHA_ERR_SHAPE,
                        "%s: has %d dimensions, but query has no batch axis: leave it out of every "
                        "tensor, or of none",
                        name, ndim);
    MHA_TRY(mhai_tensor_check(name, &own, type, ndim - first, shape + first));
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

/* The same for a tensor [B,L,width] of f32, f16 or bf16. */
static mha_status real_view_of(const mhai_forward *f, const char *name, const mha_tensor *given,
                               const int64_t shape[3], mha_tensor *view)
{
    if (!given) return mha_fail(MHA_ERR_NULL, "%s: is NULL", name);
    MHA_TRY(mhai_tensor_check_real(name, given));
    return view_of(f, name, given, given->dtype, 3, shape, view);
}

/* ---- checks -------------------------------------------------------------------------------- */

static mha_status check_keys(mhai_forward *f, const mha_module_call *call)
{
    const mha_module_desc *d = &f->module->desc;
    const int64_t batch = f->has_query ? f->B : -1;
    MHA_TRY(real_view_of(f, "key", call->key, (int64_t[]){batch, -1, d->key_dim}, &f->key));
    f->B = f->key.shape[0], f->S = f->key.shape[1];
    MHA_TRY(real_view_of(f, "value", call->value, (int64_t[]){f->B, -1, d->value_dim}, &f->value));
    if (f->value.shape[1] != f->S)
        return mha_fail(MHA_ERR_SHAPE,
                        "key has length %lld, value has length %lld: they must be equal",
                        (long long)f->S, (long long)f->value.shape[1]);
    return MHA_OK;
}

static mha_status check_inputs(mhai_forward *f, const mha_module_call *call)
{
    const mha_module_desc *d = &f->module->desc;
    f->at.cache = call->cache;
    f->at.counts = call->counts;
    f->has_query = !f->at.cache || call->query || call->out || call->outputs;
    f->has_keys = !f->at.cache || call->key || call->value || !f->has_query;
    const mha_tensor *first = f->has_query ? call->query : call->key;
    f->unbatched = first && first->ndim == 2;
    if (f->has_query) {
        MHA_TRY(
            real_view_of(f, "query", call->query, (int64_t[]){-1, -1, d->embed_dim}, &f->query));
        f->B = f->query.shape[0], f->T = f->query.shape[1];
    }
    if (f->has_keys) MHA_TRY(check_keys(f, call));
    if (!f->has_query || !call->out) return MHA_OK;
    return real_view_of(f, "out", call->out, (int64_t[]){f->B, f->T, d->embed_dim}, &f->out);
}

/* The number of columns of outputs over keys. Attention checks the key offsets themselves. */
static int64_t count_columns(const mhai_forward *f)
{
    const mha_attention_desc *d = &f->at.desc;
    if (!d->query_starts || !d->key_starts) return f->S;
    int64_t longest = 0;
    for (int64_t b = 0; b < d->sequences; b++) {
        int64_t begin = d->key_starts[b], end = d->key_starts[b + 1];
        if (begin >= 0 && begin <= end && end <= f->S) longest = mhai_max_i64(longest, end - begin);
    }
    return longest;
}

/* Read the caller's outputs. Outputs that attention also has may be requested in either struct. */
static mha_status read_outputs(mhai_forward *f, const mha_module_outputs *outputs,
                               const mha_tensor *given[MHAI_OUTPUTS])
{
    mha_module_outputs want;
    MHA_TRY(mhai_struct_copy("mha_module_outputs", &want, sizeof want,
                             offsetof(mha_module_outputs, attention), outputs));
    MHA_TRY(mhai_check_reserved("mha_module_outputs", want.reserved));
    const mha_tensor *all[] = {want.probabilities,
                               want.average_probabilities,
                               want.q,
                               want.k,
                               want.v,
                               want.heads,
                               want.lse};
    memcpy(given, all, sizeof all);
    f->at.outputs = (mha_attention_outputs){.struct_size = sizeof f->at.outputs};
    if (!want.attention) return MHA_OK;
    if (f->extra)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_module_outputs: attention's own outputs do not include bias_k and the "
                        "key of zeros; request lse and probabilities from the module");
    MHA_TRY(mhai_struct_copy("mha_attention_outputs", &f->at.outputs, sizeof f->at.outputs,
                             offsetof(mha_attention_outputs, probabilities) + sizeof(void *),
                             want.attention));
    f->at.outputs.struct_size = sizeof f->at.outputs;
    const mha_tensor *both[] = {f->at.outputs.probabilities, f->at.outputs.average_probabilities,
                                f->at.outputs.lse};
    const int own[] = {MHAI_OUT_P, MHAI_OUT_AVERAGE, MHAI_OUT_LSE};
    for (int i = 0; i < 3; i++)
        if (both[i] && given[own[i]])
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_module_outputs: %s is requested twice; leave it NULL in attention",
                            output_names[own[i]]);
    if ((f->at.outputs.heads || f->at.outputs.rows) && given[MHAI_OUT_P])
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_module_outputs: probabilities are of all heads and rows; to select "
                        "some, request probabilities in attention instead");
    return MHA_OK;
}

/* Check the shape of each output, and that it overlaps neither itself, nor an
 * input, nor another output. */
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
    if (!f->has_keys && (given[MHAI_OUT_K] || given[MHAI_OUT_V]))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_module_outputs: this call projects no keys, leave k "
                                          "and v NULL");
    for (int i = 0; i < MHAI_OUTPUTS; i++) {
        f->wanted[i] = given[i];
        if (given[i])
            MHA_TRY(view_of(f, output_names[i], given[i], MHA_F32, expected[i].ndim,
                            expected[i].shape, &f->each[i]));
    }
    return MHA_OK;
}

typedef struct named {
    const char *name;
    const mha_tensor *tensor;
} named;

/* Check that an output does not overlap the descriptor's tensors, which are inputs too. */
static mha_status check_desc_overlap(const mha_attention_desc *d, const char *name,
                                     const mha_tensor *output)
{
#define APART(input, ...) MHA_TRY(mhai_tensor_check_disjoint(name, output, #input, d->input));
    MHA_ATTENTION_INPUTS(APART)
#undef APART
    return MHA_OK;
}

/* List all requested outputs. Attention checks shapes and overlaps of its own outputs. */
enum { ATTENTION_OUTPUTS = 13 };
static int list_outputs(const mhai_forward *f, named list[1 + MHAI_OUTPUTS + ATTENTION_OUTPUTS])
{
    const mha_attention_outputs *w = &f->at.outputs;
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
    const named inputs[] = {{"query", f->has_query ? &f->query : NULL},
                            {"key", f->has_keys ? &f->key : NULL},
                            {"value", f->has_keys ? &f->value : NULL}};
    for (int i = 0; i < count; i++) {
        const named *o = &outputs[i];
        MHA_TRY(mhai_tensor_check_output(o->name, o->tensor));
        for (int j = 0; j < 3; j++)
            MHA_TRY(
                mhai_tensor_check_disjoint(o->name, o->tensor, inputs[j].name, inputs[j].tensor));
        for (int j = 0; j < i; j++)
            MHA_TRY(
                mhai_tensor_check_disjoint(o->name, o->tensor, outputs[j].name, outputs[j].tensor));
        MHA_TRY(check_desc_overlap(&f->at.desc, o->name, o->tensor));
    }
    return MHA_OK;
}

/* Reject descriptor fields that only the module may set. */
static mha_status check_conflicts(const mhai_forward *f)
{
    if ((f->module->desc.flags & MHA_MODULE_SINKS) && f->at.desc.sink_logits)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "sink_logits: the module has its own sinks; leave it NULL");
    if (f->at.counts && !f->at.cache)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_module_call: counts require a cache; set key_lengths in attention");
    return MHA_OK;
}

mha_status mhai_module_check(mhai_forward *f, const mha_module_call *call)
{
    MHA_TRY(mhai_check_reserved("mha_module_call", call->reserved));
    f->at = mhai_module_attend(f->module);
    f->at.context = f->context;
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &f->at.desc, sizeof f->at.desc,
                             offsetof(mha_attention_desc, left_keys), call->attention));
    f->at.desc.struct_size = sizeof f->at.desc;
    f->extra = mhai_module_extra_keys(f->module);
    MHA_TRY(check_inputs(f, call));
    MHA_TRY(check_conflicts(f));
    f->columns = count_columns(f);
    if (f->at.cache) MHA_TRY(mhai_module_cached_prepare(f));
    if (!f->has_query) return MHA_OK;
    MHA_TRY(check_outputs(f, call->outputs));
    if (!f->measuring && !call->out && !f->wanted[MHAI_OUT_HEADS])
        return mha_fail(MHA_ERR_NULL, "out is NULL, and the output heads is not requested");
    return f->measuring ? MHA_OK : check_overlap(f);
}
