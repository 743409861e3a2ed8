/* torch.nn.MultiheadAttention.forward by PyTorch's conventions (presets.h), on top of the module.
 *
 *   masks -> a callback that keeps, and at most one bias -> mha_module_run() -> NaN where PyTorch
 *   has it, dropout in the weights */
#include "base/checked.h"
#include "base/philox.h"
#include "base/struct_copy.h"
#include "base/tensor.h"
#include "presets/preset.h"

#include <multihead/component.h>
#include <multihead/presets.h>

#include <math.h>

typedef struct mha_call {
    mha_context *context;
    const mha_module *module;
    mha_pytorch_mha_args args;
    const mha_tensor *out_given, *weights_given;
    int64_t B, H, T, S, columns;                /* columns: S and those of bias_k and the zeros */
    bool learned;                               /* there is a column of bias_k */
    mha_tensor query, key, value, out;          /* [B, length, width] */
    mha_tensor attn, padding;                   /* [B,H,T,S] by strides; data NULL: absent */
    const mha_tensor *keep_attn, *keep_padding; /* those of them that mask: the callback's */
    mhai_preset_mask bias;
    mha_tensor weights;       /* [B,T,columns] or [B,H,T,columns] */
    mha_tensor probabilities; /* [B,H,T,columns], only where dropout must be applied to them */
    mha_tensor lse;           /* [B,H,T], only where rows without keys may be */
} mha_call;

static bool flag(const mha_call *c, uint32_t bit)
{
    return c->args.flags & bit;
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* [B, length, width] from the three forms. */
static mha_tensor batched(const mha_call *c, const mha_tensor *x)
{
    if (x->ndim == 3) return flag(c, MHA_PYTORCH_BATCH_FIRST) ? *x : mhai_tensor_swap(x, 0, 1);
    mha_tensor view = {.data = x->data, .dtype = x->dtype, .ndim = 3};
    view.shape[0] = 1;
    for (int i = 0; i < 2; i++) view.shape[i + 1] = x->shape[i], view.stride[i + 1] = x->stride[i];
    return view;
}

static mha_status check_inputs(mha_call *c)
{
    const mha_tensor *given[] = {c->args.query, c->args.key, c->args.value};
    static const char *const names[] = {"query", "key", "value"};
    mha_tensor *views[] = {&c->query, &c->key, &c->value};
    for (int i = 0; i < 3; i++) {
        MHA_TRY(mhai_preset_check_input(names[i], given[i], MHA_F32));
        if (given[i]->ndim != given[0]->ndim || given[i]->ndim < 2 || given[i]->ndim > 3)
            return mha_fail(MHA_ERR_SHAPE,
                            "%s: has %d dimensions, query has %d, expected 3, or 2 without a batch",
                            names[i], (int)given[i]->ndim, (int)given[0]->ndim);
        *views[i] = batched(c, given[i]);
        if (views[i]->shape[0] != c->query.shape[0])
            return mha_fail(MHA_ERR_SHAPE, "%s: has a batch of %lld, query of %lld", names[i],
                            (long long)views[i]->shape[0], (long long)c->query.shape[0]);
    }
    mha_module_desc d;
    mha_module_describe(c->module, &d);
    c->B = c->query.shape[0], c->T = c->query.shape[1], c->S = c->key.shape[1];
    c->H = d.num_heads;
    if (c->S > INT64_MAX - 2)
        return mha_fail(MHA_ERR_SIZE, "key: %lld keys are too many", (long long)c->S);
    c->learned = d.flags & MHA_MODULE_BIAS_KV;
    c->columns = c->S + c->learned + !!(d.flags & MHA_MODULE_ZERO_ATTN);
    return MHA_OK;
}

static mha_status check_output(const mha_call *c, const char *name, const mha_tensor *x)
{
    const struct {
        const char *name;
        const mha_tensor *tensor;
    } inputs[] = {{"query", c->args.query},
                  {"key", c->args.key},
                  {"value", c->args.value},
                  {"key_padding_mask", c->args.key_padding_mask},
                  {"attn_mask", c->args.attn_mask}};
    for (size_t i = 0; i < sizeof inputs / sizeof inputs[0]; i++)
        MHA_TRY(mhai_tensor_check_disjoint(name, x, inputs[i].name, inputs[i].tensor));
    return MHA_OK;
}

/* With dropout off and no NaN to write, the module itself checks the outputs; what is written here
 * is checked here. */
static mha_status check_outputs(mha_call *c)
{
    const bool per_head = flag(c, MHA_PYTORCH_PER_HEAD);
    const int lone = c->args.query->ndim == 2;
    if (!c->out_given) return mha_fail(MHA_ERR_NULL, "out: is NULL");
    MHA_TRY(mhai_preset_check_output("out", c->out_given, MHA_F32, 3 - lone, c->args.query->shape));
    c->out = batched(c, c->out_given);
    MHA_TRY(check_output(c, "out", c->out_given));
    if (!c->weights_given) return MHA_OK;
    const int64_t four[] = {c->B, c->H, c->T, c->columns}, three[] = {c->B, c->T, c->columns};
    MHA_TRY(mhai_preset_check_output("weights", c->weights_given, MHA_F32, 3 + per_head - lone,
                                     (per_head ? four : three) + lone));
    MHA_TRY(check_output(c, "weights", c->weights_given));
    MHA_TRY(mhai_tensor_check_disjoint("weights", c->weights_given, "out", c->out_given));
    c->weights = *c->weights_given;
    if (!lone) return MHA_OK;
    c->weights.ndim = 3 + per_head;
    c->weights.shape[0] = 1, c->weights.stride[0] = 0;
    for (int i = 1; i < c->weights.ndim; i++) {
        c->weights.shape[i] = c->weights_given->shape[i - 1];
        c->weights.stride[i] = c->weights_given->stride[i - 1];
    }
    return MHA_OK;
}

/* ---- masks: checked and seen as [B,H,T,S] ---------------------------------------------------- */

static mha_status check_exactly(const char *name, const mha_tensor *x, int ndim,
                                const int64_t *shape)
{
    return mhai_tensor_check(name, x, x->dtype, ndim, shape);
}

static mha_status see_padding(mha_call *c)
{
    const mha_tensor *given = c->args.key_padding_mask;
    const int lone = c->args.query->ndim == 2;
    const int64_t shape[] = {c->B, c->S};
    if (!given) return MHA_OK;
    MHA_TRY(mhai_preset_check_mask("key_padding_mask", given, MHA_F32));
    MHA_TRY(check_exactly("key_padding_mask", given, 2 - lone, shape + lone));
    c->padding =
        (mha_tensor){.data = given->data,
                     .dtype = given->dtype,
                     .ndim = 4,
                     .shape = {c->B, 1, 1, c->S},
                     .stride = {lone ? 0 : given->stride[0], 0, 0, given->stride[1 - lone]}};
    return MHA_OK;
}

/* Whether is_causal stands for the mask, which is then not read. */
static bool hint_stands(const mha_call *c)
{
    return flag(c, MHA_PYTORCH_IS_CAUSAL) && !c->weights_given && !c->args.key_padding_mask &&
           c->columns == c->S;
}

static mha_status see_attn(mha_call *c)
{
    const mha_tensor *given = c->args.attn_mask;
    int64_t heads;
    if (!given) return MHA_OK;
    MHA_TRY(mhai_preset_check_mask("attn_mask", given, MHA_F32));
    /* PyTorch then asks for 2 or 3 axes, and for their lengths if query has no batch axis. */
    if (hint_stands(c) && (given->ndim == 2 || (given->ndim == 3 && c->args.query->ndim == 3)))
        return MHA_OK;
    if (given->ndim == 2) {
        MHA_TRY(check_exactly("attn_mask", given, 2, (int64_t[]){c->T, c->S}));
        c->attn = (mha_tensor){.shape = {1, 1, c->T, c->S},
                               .stride = {0, 0, given->stride[0], given->stride[1]}};
    } else if (given->ndim == 3) {
        if (!mhai_mul_i64(c->B, c->H, &heads))
            return mha_fail(MHA_ERR_SIZE, "attn_mask: the number of heads overflows 64 bits");
        MHA_TRY(check_exactly("attn_mask", given, 3, (int64_t[]){heads, c->T, c->S}));
        c->attn = (mha_tensor){.shape = {c->B, c->H, c->T, c->S},
                               .stride = {c->H * given->stride[0], given->stride[0],
                                          given->stride[1], given->stride[2]}};
    } else {
        return mha_fail(MHA_ERR_SHAPE, "attn_mask: has %d dimensions, expected 2 or 3",
                        (int)given->ndim);
    }
    c->attn.data = given->data, c->attn.dtype = given->dtype, c->attn.ndim = 4;
    return MHA_OK;
}

static mha_status check_args(const mha_call *c)
{
    const uint32_t known = MHA_PYTORCH_BATCH_FIRST | MHA_PYTORCH_IS_CAUSAL | MHA_PYTORCH_PER_HEAD |
                           MHA_PYTORCH_TRAINING;
    if ((c->args.flags & ~known) || c->args.reserved)
        return mha_fail(MHA_ERR_UNSUPPORTED,
                        "mha_pytorch_mha_args: flags 0x%x are unknown, reserved is %u",
                        (unsigned)(c->args.flags & ~known), (unsigned)c->args.reserved);
    if (!(c->args.dropout >= 0 && c->args.dropout <= 1))
        return mha_fail(MHA_ERR_ARGUMENT, "dropout is %g, expected 0..1", (double)c->args.dropout);
    if (flag(c, MHA_PYTORCH_IS_CAUSAL) && !c->args.attn_mask)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "is_causal is a hint about attn_mask, which must be given "
                        "too");
    return MHA_OK;
}

/* ---- masks: what they become ----------------------------------------------------------------- */

/* Does a mask say no more than a boolean: is it u8, or are its values 0 and -inf? */
static bool only_masks(const mha_tensor *mask)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (mask->dtype == MHA_U8 || mhai_preset_is_empty(mask)) return true;
    do {
        int64_t row = mhai_preset_offset(mask, 3, index);
        for (int64_t s = 0; s < mask->shape[3]; s++) {
            float x = mhai_preset_load(mask, row + s * mask->stride[3]);
            if (x != 0 && x != -INFINITY) return false;
        }
    } while (mhai_preset_next(mask, 3, index));
    return true;
}

static bool masks(const mha_tensor *mask, int64_t offset)
{
    return mask->dtype == MHA_U8 ? ((const uint8_t *)mask->data)[offset] != 0
                                 : mhai_preset_load(mask, offset) == -INFINITY;
}

/* The callback of both masks, as far as they mask. */
static void keep_tile(void *user, int64_t b, int64_t h, int64_t query, int64_t queries, int64_t key,
                      int64_t keys, uint8_t *keep, int64_t keep_stride)
{
    const mha_call *c = user;
    const mha_tensor *both[] = {c->keep_attn, c->keep_padding};
    for (int64_t r = 0; r < queries; r++) {
        uint8_t *row = keep + r * keep_stride;
        for (int64_t j = 0; j < keys; j++) row[j] = 1;
        for (int i = 0; i < 2; i++) {
            if (!both[i]) continue;
            const int64_t *stride = both[i]->stride;
            int64_t at = b * stride[0] + h * stride[1] + (query + r) * stride[2] + key * stride[3];
            for (int64_t j = 0; j < keys; j++)
                if (masks(both[i], at + j * stride[3])) row[j] = 0;
        }
    }
}

/* The sum of two float masks, [B,1,T,S] or [B,H,T,S]. */
static mha_status add_masks(mha_call *c, mha_tensor *sum)
{
    const int64_t shape[] = {c->B, c->attn.shape[1], c->T, c->S};
    int64_t count, index[MHA_MAX_DIMS] = {0};
    mha_tensor made = mha_tensor_contiguous(NULL, MHA_F32, 4, shape);
    MHA_TRY(mha_tensor_count(&made, &count));
    MHA_TRY(mha_scratch_alloc(c->context, count, sizeof(float), &made.data));
    *sum = made;
    if (count == 0) return MHA_OK;
    do {
        float *row = (float *)made.data + mhai_preset_offset(&made, 3, index);
        int64_t attn = mhai_preset_offset(&c->attn, 3, index);
        int64_t padding = mhai_preset_offset(&c->padding, 3, index);
        for (int64_t s = 0; s < c->S; s++)
            row[s] = mhai_preset_load(&c->attn, attn + s * c->attn.stride[3]) +
                     mhai_preset_load(&c->padding, padding + s * c->padding.stride[3]);
    } while (mhai_preset_next(&made, 3, index));
    return MHA_OK;
}

/* Sort the masks: a single float mask is the bias; beside it, whatever only masks is the
 * callback's. */
static mha_status make_masks(mha_call *c)
{
    const mha_tensor *attn = c->attn.ndim ? &c->attn : NULL;
    const mha_tensor *padding = c->padding.ndim ? &c->padding : NULL;
    const mha_tensor *bias = NULL;
    mha_tensor sum;
    bool attn_adds = attn && attn->dtype != MHA_U8, adds = padding && padding->dtype != MHA_U8;
    if (attn_adds && adds) {
        adds = !only_masks(padding);
        attn_adds = !adds || !only_masks(attn);
    }
    if (attn_adds && adds) {
        MHA_TRY(add_masks(c, &sum));
        bias = &sum;
    } else if (attn_adds || adds) {
        bias = attn_adds ? attn : padding;
    }
    if (attn && !attn_adds) c->keep_attn = attn;
    if (padding && !adds) c->keep_padding = padding;
    return mhai_preset_mask_make(c->context, bias, -1, &c->bias);
}

/* ---- the module ------------------------------------------------------------------------------ */

static mha_status describe(mha_call *c, mha_attention_desc *desc)
{
    *desc = (mha_attention_desc){.struct_size = sizeof *desc};
    if (flag(c, MHA_PYTORCH_TRAINING)) {
        desc->dropout = c->args.dropout;
        desc->dropout_seed = c->args.dropout_seed;
    }
    if (hint_stands(c)) {
        desc->flags |= MHA_ATTENTION_CAUSAL;
        return MHA_OK;
    }
    MHA_TRY(make_masks(c));
    desc->bias = c->bias.bias;
    if (c->keep_attn || c->keep_padding) {
        desc->keep_callback = keep_tile;
        desc->keep_callback_user = c;
    }
    return MHA_OK;
}

static mha_status take(const mha_call *c, int ndim, const int64_t *shape, mha_tensor *made)
{
    int64_t count;
    *made = mha_tensor_contiguous(NULL, MHA_F32, ndim, shape);
    MHA_TRY(mha_tensor_count(made, &count));
    return mha_scratch_alloc(c->context, count, sizeof(float), &made->data);
}

/* Room for what is needed to finish the weights, and where the module writes them. */
static mha_status want_weights(mha_call *c, const mha_attention_desc *desc,
                               mha_module_outputs *outputs)
{
    const int64_t shape[] = {c->B, c->H, c->T, c->columns};
    const bool masked = c->args.attn_mask || c->args.key_padding_mask;
    *outputs = (mha_module_outputs){.struct_size = sizeof *outputs};
    if (!c->weights_given) return MHA_OK;
    if (masked && c->columns == c->S && c->S > 0) {
        MHA_TRY(take(c, 3, shape, &c->lse));
        outputs->lse = &c->lse;
    }
    if (flag(c, MHA_PYTORCH_PER_HEAD)) {
        c->probabilities = c->weights;
        outputs->probabilities = &c->weights;
    } else if (desc->dropout > 0) {
        MHA_TRY(take(c, 4, shape, &c->probabilities));
        outputs->probabilities = &c->probabilities;
    } else {
        outputs->average_probabilities = &c->weights;
    }
    return MHA_OK;
}

/* ---- after it -------------------------------------------------------------------------------- */

static float *row_of(const mha_tensor *x, const int64_t *index)
{
    return (float *)x->data + mhai_preset_offset(x, x->ndim - 1, index);
}

/* Which key column s is to dropout: that of bias_k is the last key that dropout can count, as
 * module.h says, and that of zeros, which changes no sum, is the one before. */
static int64_t dropout_key(const mha_call *c, int64_t s)
{
    const int64_t last = ((int64_t)1 << 34) - 1;
    if (s < c->S) return s;
    return s == c->S && c->learned ? last : last - 1;
}

/* The weights of one row after dropout, with the factors that attention used. */
static void drop_row(const mha_call *c, const mha_attention_desc *desc, const int64_t *index,
                     float *row)
{
    const uint32_t seed[2] = {(uint32_t)desc->dropout_seed, (uint32_t)(desc->dropout_seed >> 32)};
    const double all = (double)desc->dropout * 4294967296.0; /* as on the tiled path */
    const uint32_t threshold = all >= 4294967295.0 ? UINT32_MAX : (uint32_t)all;
    const double factor = desc->dropout < 1 ? 1 / (1 - (double)desc->dropout) : 0;
    uint32_t word[4];
    for (int64_t s = 0; s < c->columns; s++) {
        int64_t key = dropout_key(c, s);
        if (s % 4 == 0 || s >= c->S)
            mhai_dropout_words(word, seed, (uint32_t)index[0], (uint32_t)index[1],
                               (uint32_t)index[2], key / 4);
        if (word[key % 4] < threshold)
            row[s] *= 0; /* a NaN stays one */
        else
            row[s] = (float)((double)row[s] * factor);
    }
}

static void drop_weights(const mha_call *c, const mha_attention_desc *desc)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (!c->probabilities.data || desc->dropout <= 0 || mhai_preset_is_empty(&c->probabilities))
        return;
    do {
        drop_row(c, desc, index, row_of(&c->probabilities, index));
    } while (mhai_preset_next(&c->probabilities, 3, index));
}

/* Mean over heads, as the module has it: summed in their order, then divided. */
static void average_weights(const mha_call *c, const mha_attention_desc *desc)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (!c->weights_given || flag(c, MHA_PYTORCH_PER_HEAD) || desc->dropout <= 0 ||
        mhai_preset_is_empty(&c->weights))
        return;
    do {
        float *out = row_of(&c->weights, index);
        for (int64_t s = 0; s < c->columns; s++) out[s] = 0;
        for (int64_t h = 0; h < c->H; h++) {
            const int64_t from[] = {index[0], h, index[1]};
            const float *row = row_of(&c->probabilities, from);
            for (int64_t s = 0; s < c->columns; s++) out[s] += row[s];
        }
        for (int64_t s = 0; s < c->columns; s++) out[s] /= (float)c->H;
    } while (mhai_preset_next(&c->weights, 2, index));
}

static void fill(float *row, int64_t n, float value)
{
    for (int64_t i = 0; i < n; i++) row[i] = value;
}

/* A row without keys is NaN, as the softmax of nothing but -inf: in its head's weights, in the
 * average, and, mixed by W_o, in all of out. */
static void poison_rows(const mha_call *c)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (!c->lse.data || mhai_preset_is_empty(&c->lse)) return;
    do {
        const int64_t place[] = {index[0], index[2]};
        if (((const float *)c->lse.data)[mhai_preset_offset(&c->lse, 3, index)] != -INFINITY)
            continue;
        fill(row_of(&c->out, place), c->out.shape[2], NAN);
        fill(row_of(&c->weights, flag(c, MHA_PYTORCH_PER_HEAD) ? index : place), c->columns, NAN);
    } while (mhai_preset_next(&c->lse, 3, index));
}

static mha_status run(mha_call *c)
{
    mha_attention_desc desc;
    mha_module_outputs outputs;
    MHA_TRY(describe(c, &desc));
    MHA_TRY(want_weights(c, &desc, &outputs));
    MHA_TRY(mha_module_forward(c->context, c->module, &desc, &c->query, &c->key, &c->value, &c->out,
                               &outputs));
    drop_weights(c, &desc); /* from here on nothing can fail */
    average_weights(c, &desc);
    poison_rows(c);
    return MHA_OK;
}

mha_status mha_pytorch_mha_forward(mha_context *context, const mha_module *module,
                                   const mha_pytorch_mha_args *args, const mha_tensor *out,
                                   const mha_tensor *weights)
{
    if (!context || !module || !args)
        return mha_fail(MHA_ERR_NULL, "mha_pytorch_mha_forward: %s is NULL",
                        !context  ? "context"
                        : !module ? "module"
                                  : "args");
    mha_call call = {
        .context = context, .module = module, .out_given = out, .weights_given = weights};
    MHA_TRY(mhai_struct_copy("mha_pytorch_mha_args", &call.args, sizeof call.args, sizeof call.args,
                             args));
    MHA_TRY(check_args(&call));
    MHA_TRY(check_inputs(&call));
    MHA_TRY(see_padding(&call));
    MHA_TRY(see_attn(&call));
    MHA_TRY(check_outputs(&call));
    mha_scratch_mark mark = mha_scratch_top(context);
    mha_status status = run(&call);
    mha_scratch_release(context, mark);
    return status;
}
