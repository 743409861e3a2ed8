/* A source of attention probabilities, one block of query rows at a time.
 *
 * Each block is a separate attention problem with all keys, the queries of its rows, and every
 * input restricted to these rows. Values have width 0, so the forward pass only computes the
 * maximum and sum of each row. A row's result does not depend on other rows (docs/numerics.md), so
 * it does not depend on the division into blocks. */
#include "analysis/row_source.h"

#include "base/checked.h"
#include "base/need.h"
#include "base/tensor.h"

#include <multihead/component.h>
#include <multihead/heads.h>

/* Default size of a block: 4 MiB of floats, but at most 64 rows, which are enough to
 * amortise a pass over the keys. */
enum { BLOCK_FLOATS = 1 << 20, BLOCK_ROWS = 64 };

typedef struct row_source {
    mha_context *context;
    mha_attention_desc desc; /* the caller's, without the inputs that rows do not need */
    const mha_tensor *q, *k;
    int64_t block_rows;
    mha_rows_fn fn;
    void *user;
} row_source;

/* A sequence: its first row and key, and the numbers of both. */
typedef struct row_sequence {
    int64_t b, batch, q0, k0, T, S;
} row_sequence;

/* ---- cutting ------------------------------------------------------------------------------- */

/* Restrict an axis to elements from .. from+count-1. It is the axis `right` places before the last.
 * A missing or broadcast axis is left alone. */
static void cut(mha_tensor *tensor, int right, int64_t from, int64_t count)
{
    const int axis = tensor->ndim - 1 - right;
    if (axis < 0 || tensor->shape[axis] == 1) return;
    if (tensor->data)
        tensor->data = (char *)tensor->data +
                       from * tensor->stride[axis] * (int64_t)mha_dtype_size(tensor->dtype);
    tensor->shape[axis] = count;
}

/* Copies of the caller's inputs, restricted to a block. desc points to them. */
typedef struct cut_inputs {
#define OWN(name, type, axes, stage) mha_tensor name;
    MHA_ATTENTION_INPUTS(OWN)
#undef OWN
    struct shifted_callback {
        mha_keep_fn fn;
        void *user;
        int64_t b, row;
    } callback;
} cut_inputs;

/* A block: rows row .. row+rows-1 of a sequence. */
typedef struct row_block {
    const row_sequence *seq;
    int64_t row, rows;
    int64_t block_row; /* row of keep_blocks (see block_end()) */
} row_block;

/* Restrict an input to a block, according to its axes in MHA_ATTENTION_INPUTS. */
static void cut_BHTS(mha_tensor *tensor, const row_block *to)
{
    cut(tensor, 3, to->seq->batch, 1);
    cut(tensor, 1, to->seq->q0 + to->row, to->rows);
    cut(tensor, 0, 0, to->seq->S);
}

static void cut_BLOCKS(mha_tensor *tensor, const row_block *to)
{
    cut(tensor, 3, to->seq->batch, 1);
    cut(tensor, 1, to->block_row, 1);
}

static void cut_BT(mha_tensor *tensor, const row_block *to)
{
    cut(tensor, 1, to->seq->batch, 1);
    cut(tensor, 0, to->seq->q0 + to->row, to->rows);
}

static void cut_BS(mha_tensor *tensor, const row_block *to)
{
    cut(tensor, 1, to->seq->batch, 1);
    cut(tensor, 0, to->seq->k0, to->seq->S);
}

static void cut_BH(mha_tensor *tensor, const row_block *to)
{
    cut(tensor, 1, to->seq->b, 1);
}

/* Inputs that are the same for all sequences remain unchanged. */
static void stay(mha_tensor *tensor, const row_block *to)
{
    (void)tensor, (void)to;
}
#define cut_H stay
#define cut_RH stay
#define cut_RD stay
#define cut_RV stay

static void shifted(void *user, int64_t b, int64_t h, int64_t query, int64_t queries, int64_t key,
                    int64_t keys, uint8_t *keep, int64_t keep_stride)
{
    const struct shifted_callback *to = user;
    (void)b; /* always 0 here */
    to->fn(to->user, to->b, h, query + to->row, queries, key, keys, keep, keep_stride);
}

bool mhai_reads_positions(const mha_attention_desc *desc)
{
    enum { PRODUCT, BIAS, DISTANCE, MASK, RESULT };
#define BY_DISTANCE(name, type, axes, stage) || (stage == DISTANCE && desc->name)
    return desc->flags & (MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW) ||
           desc->shaw_keys MHA_ATTENTION_INPUTS(BY_DISTANCE);
#undef BY_DISTANCE
}

static mha_attention_desc cut_desc(const row_source *x, const row_sequence *seq, int64_t row,
                                   int64_t rows, cut_inputs *own)
{
    const mha_attention_desc *from = &x->desc;
    mha_attention_desc desc = *from;
    desc.query_starts = desc.key_starts = desc.q_offsets = NULL;
    desc.sequences = 0;
    desc.q_offset = from->q_offsets ? from->q_offsets[seq->b] : from->q_offset;
    /* Clamp to the largest offset that attention accepts; larger offsets give the same results. */
    desc.q_offset =
        mhai_reads_positions(from) ? mhai_min_i64(desc.q_offset + row, (int64_t)1 << 60) : 0;
    if (from->key_lengths) desc.key_lengths = from->key_lengths + seq->b;
    if (from->key_begins) desc.key_begins = from->key_begins + seq->b;
    const row_block to = {seq, row, rows, from->keep_blocks ? row / from->block_queries : 0};
#define CUT(name, type, axes, stage) \
    if (from->name) {                \
        own->name = *from->name;     \
        cut_##axes(&own->name, &to); \
        desc.name = &own->name;      \
    }
    MHA_ATTENTION_INPUTS(CUT)
#undef CUT
    if (from->keep_callback) {
        own->callback =
            (struct shifted_callback){from->keep_callback, from->keep_callback_user, seq->b, row};
        desc.keep_callback = shifted;
        desc.keep_callback_user = &own->callback;
    }
    return desc;
}

/* ---- visiting rows ------------------------------------------------------------------------- */

static mha_status visit_block(const row_source *x, const row_sequence *seq, int64_t row,
                              int64_t rows, float *memory)
{
    cut_inputs own;
    mha_tensor q = *x->q, k = *x->k;
    const mha_attention_desc desc = cut_desc(x, seq, row, rows, &own);
    const int64_t heads = q.shape[1];
    q.shape[0] = k.shape[0] = 1;
    if (q.data)
        q.data = (char *)q.data + (seq->batch * q.stride[0] + (seq->q0 + row) * q.stride[2]) *
                                      (int64_t)mha_dtype_size(q.dtype);
    if (k.data)
        k.data = (char *)k.data + (seq->batch * k.stride[0] + seq->k0 * k.stride[2]) *
                                      (int64_t)mha_dtype_size(k.dtype);
    q.shape[2] = rows;
    k.shape[2] = seq->S;
    const mha_tensor v =
        mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, k.shape[1], seq->S, 0});
    const mha_tensor o = mha_tensor_contiguous(NULL, MHA_F32, 4, (int64_t[]){1, heads, rows, 0});
    const mha_tensor p =
        mha_tensor_contiguous(memory, MHA_F32, 4, (int64_t[]){1, heads, rows, seq->S});
    const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &p};
    MHA_TRY(mha_attention_forward(x->context, &desc, &q, &k, &v, &o, &outputs));
    const mha_tensor map =
        mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){heads, rows, seq->S});
    return x->fn(x->user, seq->b, row, &map);
}

/* The end of a block: at most `rows` rows, all in one sequence and in one row of keep_blocks. */
static int64_t block_end(const row_source *x, const row_sequence *seq, int64_t row, int64_t rows)
{
    int64_t count = mhai_min_i64(rows, seq->T - row);
    const int64_t block = x->desc.block_queries;
    if (x->desc.keep_blocks) count = mhai_min_i64(count, block - row % block);
    return row + count;
}

static mha_status visit_sequence(const row_source *x, const row_sequence *seq)
{
    const int64_t heads = x->q->shape[1];
    int64_t width = mhai_max_i64(1, seq->S), rows = x->block_rows;
    if (heads > 0 && !mhai_mul_i64(width, heads, &width))
        return mha_fail(MHA_ERR_SIZE, "rows of %lld heads of %lld keys do not fit in memory",
                        (long long)heads, (long long)seq->S);
    if (rows == 0) rows = mhai_max_i64(1, mhai_min_i64(BLOCK_ROWS, BLOCK_FLOATS / width));
    rows = mhai_min_i64(rows, mhai_max_i64(1, seq->T));
    const mha_scratch_mark mark = mha_scratch_top(x->context);
    void *memory;
    MHA_TRY(mha_scratch_alloc(x->context, mhai_times(width, rows), sizeof(float), &memory));
    mha_status status = MHA_OK;
    for (int64_t row = 0, end; status == MHA_OK && row < seq->T; row = end) {
        end = block_end(x, seq, row, rows);
        status = visit_block(x, seq, row, end - row, memory);
    }
    return mha_scratch_end(x->context, mark, status);
}

/* Before the first row, reject everything that mha_attention_forward() would reject. */
static mha_status check(const row_source *x)
{
    const mha_attention_desc *desc = &x->desc;
    mha_attention_plan plan;
    if (!x->q || !x->k) return mha_fail(MHA_ERR_NULL, "%s: is NULL", x->q ? "k" : "q");
    if (!x->fn) return mha_fail(MHA_ERR_NULL, "mha_attention_visit_rows: fn is NULL");
    MHA_TRY(mhai_check_range("block_rows", x->block_rows, 0, INT64_MAX));
    MHA_TRY(mhai_tensor_check_real("q", x->q));
    MHA_TRY(mhai_tensor_check_real("k", x->k));
    MHA_TRY(mhai_tensor_check("q", x->q, x->q->dtype, 4, NULL));
    MHA_TRY(mhai_tensor_check("k", x->k, x->k->dtype, 4, NULL));
    const mha_tensor v = mha_tensor_contiguous(
        NULL, MHA_F32, 4, (int64_t[]){x->k->shape[0], x->k->shape[1], x->k->shape[2], 0});
    return mha_attention_explain(x->context, desc, x->q, x->k, &v, NULL, NULL, &plan);
}

mha_status mha_attention_visit_rows(mha_context *context, const mha_attention_desc *desc,
                                    const mha_tensor *q, const mha_tensor *k, int64_t block_rows,
                                    mha_rows_fn fn, void *user)
{
    row_source x = {
        .context = context, .q = q, .k = k, .block_rows = block_rows, .fn = fn, .user = user};
    if (!context) return mha_fail(MHA_ERR_NULL, "mha_attention_visit_rows: context is NULL");
    MHA_TRY(mhai_struct_copy("mha_attention_desc", &x.desc, sizeof x.desc,
                             offsetof(mha_attention_desc, left_keys), desc));
    x.desc.struct_size = sizeof x.desc;
    x.desc.dropout = 0;
    x.desc.gates = x.desc.shaw_values = NULL;
    if (!mhai_reads_positions(&x.desc)) x.desc.q_offset = 0, x.desc.q_offsets = NULL;
    MHA_TRY(check(&x));
    const bool ragged = x.desc.query_starts;
    const int64_t sequences = ragged ? x.desc.sequences : q->shape[0];
    for (int64_t b = 0; b < sequences; b++) {
        row_sequence seq = {.b = b, .batch = b, .T = q->shape[2], .S = k->shape[2]};
        if (ragged)
            seq = (row_sequence){.b = b,
                                 .q0 = x.desc.query_starts[b],
                                 .k0 = x.desc.key_starts[b],
                                 .T = x.desc.query_starts[b + 1] - x.desc.query_starts[b],
                                 .S = x.desc.key_starts[b + 1] - x.desc.key_starts[b]};
        MHA_TRY(visit_sequence(&x, &seq));
    }
    return MHA_OK;
}
