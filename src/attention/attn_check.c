/* Check a call's arguments and fill in the problem. The layers below do not check anything. */
#include "attention/attn.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>

#include <math.h>

/* A valid address for pointer arithmetic, never read or written. */
static double nothing;

/* Check q, k, v or o, which have four axes and may differ in type. */
static mha_status check_tensor(const char *name, const mha_tensor *given, const int64_t *shape,
                               bool need_data, mha_tensor *tensor)
{
    MHA_TRY(mhai_tensor_check_real(name, given));
    *tensor = *given;
    if (!need_data && !tensor->data) tensor->data = &nothing;
    MHA_TRY(mhai_tensor_check(name, tensor, tensor->dtype, 4, shape));
    if (!tensor->data) tensor->data = &nothing; /* no elements */
    return mhai_tensor_check_last(name, tensor);
}

/* ---- lengths ------------------------------------------------------------------------------- */

mha_status mhai_attn_check_starts(const char *name, const int64_t *starts, int64_t sequences,
                                  int64_t rows, int64_t *longest)
{
    *longest = 0;
    if (starts[0] != 0 || starts[sequences] != rows)
        return mha_fail(MHA_ERR_ARGUMENT, "%s: runs from %lld to %lld, expected 0 to %lld", name,
                        (long long)starts[0], (long long)starts[sequences], (long long)rows);
    for (int64_t b = 0; b < sequences; b++) {
        if (starts[b + 1] < starts[b] || starts[b + 1] > rows)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "%s: entry %lld is %lld after %lld; entries must not decrease", name,
                            (long long)(b + 1), (long long)starts[b + 1], (long long)starts[b]);
        *longest = mhai_max_i64(*longest, starts[b + 1] - starts[b]);
    }
    return MHA_OK;
}

/* Split the packed tensors into the sequences of a ragged batch. */
static mha_status check_ragged(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    if (!desc->query_starts && !desc->key_starts && desc->sequences == 0) return MHA_OK;
    if (!desc->query_starts || !desc->key_starts || desc->sequences < 1)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "a ragged batch requires query_starts, key_starts and sequences >= 1");
    if (p->B != 1)
        return mha_fail(MHA_ERR_SHAPE, "q: dim 0 is %lld, expected 1 for a ragged batch",
                        (long long)p->B);
    if (desc->keep_blocks)
        return mha_fail(MHA_ERR_UNSUPPORTED, "keep_blocks is not supported with a ragged batch");
    MHA_TRY(
        mhai_attn_check_starts("query_starts", desc->query_starts, desc->sequences, p->T, &p->T));
    MHA_TRY(mhai_attn_check_starts("key_starts", desc->key_starts, desc->sequences, p->S, &p->S));
    p->B = desc->sequences;
    p->query_starts = desc->query_starts;
    p->key_starts = desc->key_starts;
    return MHA_OK;
}

static mha_status check_lengths(const mhai_attn_problem *p)
{
    const struct {
        const char *name;
        const int64_t *of;
    } all[] = {{"key_lengths", p->key_lengths}, {"key_begins", p->key_begins}};
    for (int i = 0; i < 2; i++)
        for (int64_t b = 0; all[i].of && b < p->B; b++) {
            const int64_t most = p->key_starts ? p->key_starts[b + 1] - p->key_starts[b] : p->S;
            MHA_TRY(mhai_check_entry(all[i].name, b, all[i].of[b], 0, most));
        }
    return MHA_OK;
}

/* ---- masks --------------------------------------------------------------------------------- */

static mha_status check_window(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    const int64_t open =
        INT64_MAX / 4; /* exceeds any distance; adding a position cannot overflow */
    p->window = desc->flags & MHA_ATTENTION_WINDOW;
    if (!p->window && (desc->left_keys || desc->right_keys || desc->sink_keys ||
                       desc->global_keys || desc->global_queries))
        return mha_fail(MHA_ERR_ARGUMENT, "left_keys, right_keys, sink_keys, global_keys and "
                                          "global_queries require the flag MHA_ATTENTION_WINDOW");
    if (desc->left_keys < -1 || desc->right_keys < -1 || desc->sink_keys < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "window: left_keys %lld, right_keys %lld, sink_keys %lld; expected numbers "
                        "of keys >= 0, or -1 for no limit",
                        (long long)desc->left_keys, (long long)desc->right_keys,
                        (long long)desc->sink_keys);
    if (p->causal && desc->right_keys > 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "window: right_keys is %lld, but a causal query sees no later key; set 0",
                        (long long)desc->right_keys);
    p->left_keys = desc->left_keys < 0 ? open : mhai_min_i64(desc->left_keys, open);
    p->right_keys = desc->right_keys < 0 ? open : mhai_min_i64(desc->right_keys, open);
    p->sink_keys = mhai_min_i64(desc->sink_keys, open);
    return MHA_OK;
}

static mha_status check_blocks(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    p->block_queries = desc->block_queries;
    p->block_keys = desc->block_keys;
    if (!desc->keep_blocks && (desc->block_queries || desc->block_keys))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "block_queries %lld and block_keys %lld require keep_blocks",
                        (long long)desc->block_queries, (long long)desc->block_keys);
    if (desc->keep_blocks && (desc->block_queries < 1 || desc->block_keys < 1))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "keep_blocks: block_queries %lld and block_keys %lld "
                        "must be positive",
                        (long long)desc->block_queries, (long long)desc->block_keys);
    return MHA_OK;
}

static mha_status check_masks(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    MHA_TRY(check_window(desc, p));
    if (!desc->query_documents != !desc->key_documents)
        return mha_fail(MHA_ERR_ARGUMENT, "set both query_documents and key_documents, or neither");
    p->callback = desc->keep_callback;
    p->callback_user = desc->keep_callback_user;
    return check_blocks(desc, p);
}

/* ---- tensors of the descriptor --------------------------------------------------------------- */

enum { TYPE_U8 = MHA_U8, TYPE_I32 = MHA_I32, TYPE_F32 = MHA_F32, TYPE_REAL = -1 };
enum { AXES_BHTS, AXES_BLOCKS, AXES_BT, AXES_BS, AXES_BH, AXES_H, AXES_RH, AXES_RD, AXES_RV };

/* The axes that a tensor may have: up to the last `dims` of shape with broadcasting, or exactly
 * these. */
typedef struct axes {
    bool exact;
    int dims;
    int64_t shape[4];
} axes;

/* A row of MHA_ATTENTION_INPUTS, for one call. */
typedef struct input {
    const char *name;
    const mha_tensor *given;
    int use;
    int type;
    int axes;
    void *to; /* the field of the problem that stores it */
} input;

/* Strides of a tensor over these axes, right-aligned. */
static mha_status take_broadcast(const input *x, const axes *most, const mha_tensor *tensor)
{
    mhai_attn_broadcast *to = x->to;
    if (tensor->ndim < 0 || tensor->ndim > most->dims)
        return mha_fail(MHA_ERR_SHAPE, "%s: has %d dimensions, expected 0..%d", x->name,
                        (int)tensor->ndim, most->dims);
    for (int i = 0; i < tensor->ndim; i++) {
        const int64_t length = most->shape[most->dims - tensor->ndim + i];
        if (tensor->shape[i] != 1 && tensor->shape[i] != length)
            return mha_fail(MHA_ERR_SHAPE, "%s: dim %d is %lld, it must be 1 or %lld to broadcast",
                            x->name, i, (long long)tensor->shape[i], (long long)length);
        to->stride[4 - tensor->ndim + i] = tensor->shape[i] == 1 ? 0 : tensor->stride[i];
    }
    if (x->type == TYPE_REAL) MHA_TRY(mhai_tensor_check_real(x->name, tensor));
    to->dtype = x->type == TYPE_REAL ? tensor->dtype : (mha_dtype)x->type;
    to->data = tensor->data;
    return mhai_tensor_check(x->name, tensor, to->dtype, tensor->ndim, NULL);
}

static mha_status take_table(const input *x, const axes *expected, const mha_tensor *tensor)
{
    MHA_TRY(
        mhai_tensor_check(x->name, tensor, (mha_dtype)x->type, expected->dims, expected->shape));
    *(mha_tensor *)x->to = *tensor;
    return MHA_OK;
}

static mha_status take_inputs(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    /* In a ragged batch, the batch axis has length 1 and the row axis covers all sequences. */
    const int64_t batch = p->q.shape[0], rows = p->q.shape[2], keys = p->k.shape[2];
    const int64_t high = mhai_max_i64(1, p->block_queries), wide = mhai_max_i64(1, p->block_keys);
    const axes lengths[] = {
        [AXES_BHTS] = {false, 4, {batch, p->H, rows, p->S}},
        [AXES_BLOCKS] = {false,
                         4,
                         {p->B, p->H, mhai_ceil_div(p->part ? p->part->T : p->T, high),
                          mhai_ceil_div(p->S, wide)}},
        [AXES_BT] = {false, 2, {batch, rows}},
        [AXES_BS] = {false, 2, {batch, keys}},
        [AXES_BH] = {false, 2, {p->B, p->H}}, /* ragged: per sequence */
        [AXES_H] = {true, 1, {p->H}},
        [AXES_RH] = {true, 2, {-1, p->H}},
        [AXES_RD] = {true, 2, {-1, p->D}},
        [AXES_RV] = {true, 2, {-1, p->Dv}},
    };
#define ROW(name, type, axes, stage) \
    {#name, desc->name, MHAI_USES(name), TYPE_##type, AXES_##axes, &p->name},
    const input all[] = {MHA_ATTENTION_INPUTS(ROW)};
#undef ROW
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].given) continue;
        mha_tensor tensor = *all[i].given;
        if (!p->need_data && !tensor.data) tensor.data = &nothing;
        const axes *expected = &lengths[all[i].axes];
        MHA_TRY((expected->exact ? take_table : take_broadcast)(&all[i], expected, &tensor));
        p->uses |= all[i].use;
    }
    return MHA_OK;
}

mha_status mhai_attn_check_apart(const mha_attention_desc *desc, const char *name,
                                 const mha_tensor *output)
{
#define APART(input, ...) MHA_TRY(mhai_tensor_check_disjoint(name, output, #input, desc->input));
    MHA_ATTENTION_INPUTS(APART)
#undef APART
    return MHA_OK;
}

/* ---- scores -------------------------------------------------------------------------------- */

static mha_status check_t5(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    p->t5_one_sided = desc->flags & MHA_ATTENTION_T5_ONE_SIDED;
    p->t5_max_distance = desc->t5_max_distance ? desc->t5_max_distance : 128;
    if (!desc->t5_table && (desc->t5_max_distance || p->t5_one_sided))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "t5_max_distance and MHA_ATTENTION_T5_ONE_SIDED require t5_table");
    if (!desc->t5_table) return MHA_OK;
    int64_t buckets = p->t5_table.shape[0], exact = buckets / (p->t5_one_sided ? 2 : 4);
    if (exact < 1 || (!p->t5_one_sided && buckets % 2 != 0))
        return mha_fail(MHA_ERR_SHAPE,
                        "t5_table: %lld buckets; expected an even number of at least 4 if "
                        "two-sided, at least 2 if one-sided",
                        (long long)buckets);
    if (p->t5_max_distance <= exact)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "t5_max_distance is %lld, it must exceed the %lld exact distances",
                        (long long)p->t5_max_distance, (long long)exact);
    return MHA_OK;
}

static mha_status check_shaw(const char *name, const mha_tensor *given)
{
    if (!given) return MHA_OK;
    if (given->shape[0] > INT32_MAX) /* with a row stride of 0, the shape
                                      * alone does not bound memory */
        return mha_fail(MHA_ERR_SIZE, "%s: dim 0 is %lld, at most %d distances", name,
                        (long long)given->shape[0], INT32_MAX);
    if (given->shape[0] % 2 == 0)
        return mha_fail(MHA_ERR_SHAPE, "%s: dim 0 is %lld, expected 2 k + 1 distances", name,
                        (long long)given->shape[0]);
    return mhai_tensor_check_last(name, given);
}

static mha_status check_sinks(const mhai_attn_problem *p)
{
    const mha_tensor *sinks = &p->sink_logits;
    for (int64_t h = 0; sinks->data && p->need_data && h < p->H; h++) {
        float sink = ((const float *)sinks->data)[h * sinks->stride[0]];
        if (!(sink <= 0x1p127f)) /* sink * log2 e must be finite */
            return mha_fail(MHA_ERR_NUMERIC,
                            "sink_logits[%lld] is %g, expected a number up to 2^127, or -inf",
                            (long long)h, (double)sink);
    }
    return MHA_OK;
}

/* Reject gates that are not finite: they would turn the 0 of a query without keys into NaN. */
static mha_status check_gates(const mhai_attn_problem *p)
{
    for (int64_t b = 0; p->gates.data && p->need_data && b < p->B; b++)
        for (int64_t h = 0; h < p->H; h++)
            if (!isfinite(mhai_attn_f32(&p->gates, b, h)))
                return mha_fail(MHA_ERR_NUMERIC, "gates[%lld,%lld] is not finite", (long long)b,
                                (long long)h);
    return MHA_OK;
}

static mha_status check_scores(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    p->softcap = desc->softcap;
    p->dropout = desc->dropout;
    p->dropout_seed = desc->dropout_seed;
    p->first_head = desc->first_head;
    if (p->first_head < 0 || p->first_head > (INT64_C(1) << 32) - p->H)
        return mha_fail(MHA_ERR_ARGUMENT, "first_head is %lld, expected 0 .. 2^32 - %lld",
                        (long long)p->first_head, (long long)p->H);
    /* 1 / softcap and softcap * log2 e must be finite. */
    if (p->softcap != 0 && !(p->softcap >= 0x1p-126f && p->softcap <= 0x1p127f))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "softcap is %g, expected a number in 2^-126 .. 2^127, or 0 for none",
                        (double)p->softcap);
    if (!(p->dropout >= 0 && p->dropout <= 1))
        return mha_fail(MHA_ERR_ARGUMENT, "dropout is %g, expected 0..1", (double)p->dropout);
    MHA_TRY(check_sinks(p));
    MHA_TRY(check_gates(p));
    MHA_TRY(check_t5(desc, p));
    MHA_TRY(check_shaw("shaw_keys", desc->shaw_keys));
    return check_shaw("shaw_values", desc->shaw_values);
}

/* ---- the descriptor -------------------------------------------------------------------------- */

static mha_status check_offset(const mha_attention_desc *desc, const mha_attention_outputs *wanted,
                               mhai_attn_problem *p)
{
    const bool read = p->uses & MHAI_POSITIONS || wanted->diagonal || wanted->offset_mass;
    if (!read && (desc->q_offset != 0 || desc->q_offsets))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_attention_desc: q_offset requires causal, window, ALiBi, T5, Shaw, or "
                        "the outputs diagonal and offset_mass; set the flag MHA_ATTENTION_CAUSAL");
    if (desc->q_offset != 0 && desc->q_offsets)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_attention_desc: set q_offset or q_offsets, not both");
    for (int64_t b = 0; b < (desc->q_offsets ? p->B : 1); b++) {
        const int64_t offset = desc->q_offsets ? desc->q_offsets[b] : desc->q_offset;
        if (offset < -MHAI_MOST_OFFSET || offset > MHAI_MOST_OFFSET)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "mha_attention_desc: the q_offset of sequence %lld is %lld, expected "
                            "-2^60 .. 2^60",
                            (long long)b, (long long)offset);
    }
    p->q_offset = desc->q_offset;
    p->q_offsets = desc->q_offsets;
    return MHA_OK;
}

/* 1 / sqrt(D). */
static float default_scale(int64_t head_dim)
{
    return (float)(1.0 / sqrt((double)head_dim));
}

static mha_status check_scale(const mha_attention_desc *desc, mhai_attn_problem *p)
{
    p->scale = desc->scale;
    if (p->scale == 0 && !(desc->flags & MHA_ATTENTION_SCALE_GIVEN)) p->scale = default_scale(p->D);
    if (!isfinite(p->scale))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_attention_desc: scale is %g, expected a finite number",
                        (double)p->scale);
    return MHA_OK;
}

/* Record which of the options that are not tensors are in use. */
static void note_options(mhai_attn_problem *p)
{
    if (p->causal) p->uses |= MHAI_USES(causal);
    if (p->key_lengths) p->uses |= MHAI_USES(key_lengths);
    if (p->key_begins) p->uses |= MHAI_USES(key_begins);
    if (p->query_starts) p->uses |= MHAI_USES(ragged);
    if (p->window) p->uses |= MHAI_USES(window);
    if (p->sink_keys > 0) p->uses |= MHAI_USES(sink_keys);
    if (p->callback) p->uses |= MHAI_USES(keep_callback);
    if (p->softcap > 0) p->uses |= MHAI_USES(softcap);
    if (p->dropout > 0) p->uses |= MHAI_USES(dropout);
}

static mha_status check_desc(const mha_attention_desc *desc, const mha_attention_outputs *wanted,
                             mhai_attn_problem *p)
{
    const uint32_t known = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_SCALE_GIVEN | MHA_ATTENTION_STRICT |
                           MHA_ATTENTION_WINDOW | MHA_ATTENTION_T5_ONE_SIDED;
    MHA_TRY(mhai_check_flags("mha_attention_desc", desc->flags, known));
    MHA_TRY(mhai_check_range("mha_attention_desc: path", desc->path, 0, MHA_PATH_PLAIN));
    if (desc->compute != MHA_COMPUTE_F32 && desc->compute != MHA_COMPUTE_BF16)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_attention_desc: compute is %d (%s), expected 0 (f32) or 2 (bf16)",
                        (int)desc->compute, mha_compute_name(desc->compute));
    MHA_TRY(mhai_check_reserved("mha_attention_desc", desc->reserved));
    p->asked = desc->path;
    p->compute = desc->compute;
    p->causal = desc->flags & MHA_ATTENTION_CAUSAL;
    p->strict = desc->flags & MHA_ATTENTION_STRICT;
    p->key_lengths = desc->key_lengths;
    p->key_begins = desc->key_begins;
    MHA_TRY(check_scale(desc, p));
    MHA_TRY(check_ragged(desc, p));
    MHA_TRY(check_lengths(p));
    MHA_TRY(check_masks(desc, p));
    MHA_TRY(take_inputs(desc, p));
    MHA_TRY(check_scores(desc, p));
    note_options(p);
    return check_offset(desc, wanted, p);
}

/* ---- tensors ------------------------------------------------------------------------------- */

static mha_status check_inputs(const mha_tensor *q, const mha_tensor *k, const mha_tensor *v,
                               bool need_data, mhai_attn_problem *p)
{
    MHA_TRY(check_tensor("q", q, NULL, need_data, &p->q));
    p->B = p->q.shape[0], p->H = p->q.shape[1], p->T = p->q.shape[2], p->D = p->q.shape[3];
    MHA_TRY(check_tensor("k", k, (int64_t[]){p->B, -1, -1, p->D}, need_data, &p->k));
    p->Hk = p->k.shape[1], p->S = p->k.shape[2];
    if (p->Hk == 0 ? p->H != 0 : p->H % p->Hk != 0)
        return mha_fail(MHA_ERR_SHAPE,
                        "q has %lld heads, k has %lld: the first must be a multiple of the second",
                        (long long)p->H, (long long)p->Hk);
    p->group = p->Hk ? p->H / p->Hk : 0;
    MHA_TRY(check_tensor("v", v, (int64_t[]){p->B, p->Hk, p->S, -1}, need_data, &p->v));
    p->Dv = p->v.shape[3];
    if (p->D == 0) return mha_fail(MHA_ERR_SHAPE, "q: dim 3, the head size, is 0");
    /* Row counts are multiplied and added below in any order. Bound their product so that nothing
     * overflows, even if another length is 0. */
    int64_t pairs = 1;
    bool fits = true;
    for (int i = 0; i < 4; i++)
        fits = fits && mhai_mul_i64(pairs, mhai_max_i64(1, i < 3 ? p->q.shape[i] : p->S), &pairs);
    if (!fits || pairs > INT64_MAX / 4)
        return mha_fail(MHA_ERR_SIZE, "q, k: B H T S = %lld x %lld x %lld x %lld overflows 64 bits",
                        (long long)p->B, (long long)p->H, (long long)p->T, (long long)p->S);
    return MHA_OK;
}

mha_tensor mhai_attn_list_view(const int64_t *list, int64_t count)
{
    return mha_tensor_contiguous((void *)(uintptr_t)list, MHA_I64, 1, &count);
}

/* Check that no output overlaps an input or another output. */
static mha_status check_overlap(const mhai_attn_problem *p, const mha_attention_desc *desc)
{
    mhai_attn_named outputs[MHAI_ATTN_OUTPUTS];
    const int count = mhai_attn_list_outputs(p, outputs);
    const mha_tensor heads = mhai_attn_list_view(p->want.heads, p->want.heads_count),
                     rows = mhai_attn_list_view(p->want.rows, p->want.rows_count),
                     offsets = mhai_attn_list_view(p->want.offsets, p->want.offsets_count);
    const mhai_attn_named inputs[] = {{"heads", &heads}, {"rows", &rows}, {"offsets", &offsets},
                                      {"q", &p->q},      {"k", &p->k},    {"v", &p->v}};
    /* In a part, k and v may be stored elsewhere. The caller has checked their overlap. */
    const size_t count_inputs = sizeof inputs / sizeof inputs[0] - (p->part ? 2 : 0);
    for (int i = 0; i < count; i++) {
        MHA_TRY(mhai_attn_check_apart(desc, outputs[i].name, outputs[i].tensor));
        for (size_t j = 0; j < count_inputs; j++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, inputs[j].name,
                                               inputs[j].tensor));
        for (int j = 0; j < i; j++)
            MHA_TRY(mhai_tensor_check_disjoint(outputs[i].name, outputs[i].tensor, outputs[j].name,
                                               outputs[j].tensor));
    }
    return MHA_OK;
}

mha_status mhai_attn_check(const mha_attention_desc *desc, const mha_tensor *q, const mha_tensor *k,
                           const mha_tensor *v, const mha_tensor *o,
                           const mha_attention_outputs *outputs, bool need_data,
                           const mhai_attn_part *part, mhai_attn_problem *problem)
{
    mha_attention_desc own;
    mha_attention_outputs wanted;
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &own, sizeof own,
                             offsetof(mha_attention_desc, left_keys), desc));
    MHA_TRY(mhai_attn_copy_outputs(outputs, &wanted));
    mhai_attn_problem p = {.need_data = need_data, .part = part};
    MHA_TRY(check_inputs(q, k, v, need_data, &p));
    MHA_TRY(check_desc(&own, &wanted, &p));
    const int64_t *rows = p.q.shape; /* [batch, H, T] */
    const int64_t o_shape[] = {rows[0], p.H, rows[2], p.Dv};
    if (o || need_data) {
        MHA_TRY(check_tensor("o", o, o_shape, need_data, &p.o));
        MHA_TRY(mhai_tensor_check_output("o", &p.o));
    }
    MHA_TRY(mhai_attn_check_outputs(&wanted, need_data, &p));
    if (need_data) MHA_TRY(check_overlap(&p, &own));
    *problem = p;
    return MHA_OK;
}
