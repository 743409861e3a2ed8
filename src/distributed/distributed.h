/* A distributed call on one rank: its arguments, and their slices by pieces of queries. */
#ifndef MHAI_DISTRIBUTED_H
#define MHAI_DISTRIBUTED_H

#include "distributed/split.h"

#include "attention/attn_plan.h"

/* The caller's arguments, with this library's struct sizes. */
typedef struct mhai_slice_call {
    mha_status status; /* result of this rank's checks so far */
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    const mha_tensor *q, *k, *v, *o;
} mhai_slice_call;

/* Values on which all ranks must agree. */
typedef struct mhai_slice_common {
    int64_t batch, heads, kv_heads, head_dim, value_dim, queries, keys;
    int64_t q_offset, left_keys, right_keys, sink_keys, block_queries, block_keys, t5_max_distance;
    int64_t sequences, version, first_head;
    int64_t table_rows[3]; /* rows of T5's table and Shaw's tables; backward only */
    int64_t bias_axes[3];  /* axes of a bias whose gradient is requested, except the query axis;
                            * backward only */
    uint64_t dropout_seed, given;
    uint64_t lists;   /* hash of all lengths, starts and offsets, including those of outputs */
    int64_t top_keys; /* K */
    int32_t k_type, v_type, compute, path;
    int32_t outputs;   /* one bit per requested output */
    int32_t stage;     /* stage of the scores */
    int32_t gradients; /* one bit per requested or given gradient, and whether to accumulate */
    int32_t q_types;   /* types of q, o, bias and, in the backward pass, o_gradient, one byte
                        * each */
    uint32_t flags, output_flags;
    float scale, softcap, dropout;
} mhai_slice_common;

/* Inputs with a row per query: keep_mask, bias, global_queries, query_documents. Each rank has the
 * rows of its queries. An axis may be broadcast on some ranks and not on others. */
enum { MHAI_ROW_BIAS = 1, MHAI_ROW_INPUTS = 4 };
typedef struct mhai_masks {
    int64_t shape[MHAI_ROW_INPUTS][4]; /* shape of a row [.,.,1,.], over all ranks */
    bool by_row[MHAI_ROW_INPUTS];      /* rows differ by query */
} mhai_masks;
const mha_tensor **mhai_slice_mask(mha_attention_desc *desc, int i);
static inline bool mhai_mask_has_columns(int i)
{
    return i < 2;
}

/* Outputs with a row per query. The last three also have an axis of keys. */
enum { MHAI_ROW_OUTPUTS = 12, MHAI_FIRST_PAIRS = 9 };
typedef struct mhai_row_output {
    const char *name;
    int ndim;
    bool columns; /* the last axis is columns, not rows */
} mhai_row_output;
extern const mhai_row_output mhai_row_outputs[MHAI_ROW_OUTPUTS];
const mha_tensor **mhai_slice_output(mha_attention_outputs *outputs, int i);

/* A piece of this rank's queries. */
typedef struct mhai_slice {
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    mhai_attn_part part;
    mha_tensor q, o;
    bool has_o;
    mha_tensor inputs[4], results[12]; /* sliced tensors of desc and outputs, without column_sums */
    int64_t *before, *starts;          /* [B]; ragged: [B + 1] */
} mhai_slice;

/* Check the arguments without which ranks cannot communicate, not even to agree on an error. */
MHA_NODISCARD mha_status mhai_slice_arguments(const char *name, const mha_context *context,
                                              const mha_sequence_split *split);
MHA_NODISCARD mha_status mhai_slice_take(const char *name, const mha_attention_desc *desc,
                                         const mha_tensor *q, const mha_tensor *k,
                                         const mha_tensor *v, const mha_tensor *o,
                                         const mha_attention_outputs *outputs,
                                         mhai_slice_call *call);

/* Check the shapes that slicing needs. Fills common even after an error. */
MHA_NODISCARD mha_status mhai_slice_check(const mhai_slice_call *call, const mhai_split *split,
                                          mhai_slice_common *common);

/* Agree on the masks of all ranks. A collective call; the call must be checked first. */
MHA_NODISCARD mha_status mhai_slice_masks(const mhai_slice_call *call, const mhai_split *split,
                                          mhai_masks *masks);

/* View a tensor with axes [.,.,rows,columns]. Broadcast axes have stride 0. */
mha_tensor mhai_slice_view(const mha_tensor *x, bool columns);

/* Select heads of a checked descriptor. `inputs` receives slices of the
 * tensors with a head axis. */
enum { MHAI_HEAD_INPUTS = 7 };
void mhai_slice_heads(mha_attention_desc *desc, int64_t begin, int64_t end,
                      mha_tensor inputs[MHAI_HEAD_INPUTS]);

/* Restrict a tensor to the rows of a slice. The axis must have length `all`. No-op if the tensor is
 * NULL or broadcast on that axis. */
MHA_NODISCARD mha_status mhai_slice_cut(const char *name, const mha_tensor **x, int axis,
                                        bool broadcasts, int64_t all, int64_t first, int64_t rows,
                                        mha_tensor *to);

/* Make the slice of a piece that begins at row `first` of the `all` rows of the call. */
MHA_NODISCARD mha_status mhai_slice_piece(mha_context *context, const mhai_slice_call *call,
                                          const mhai_split *split, int64_t all,
                                          const mha_piece *piece, int64_t first, mhai_slice *slice);

/* Make a slice per piece in scratch. Together, they cover all rows of the call. */
MHA_NODISCARD mha_status mhai_slice_make(mha_context *context, const mhai_slice_call *call,
                                         const mhai_split *split, const mha_piece *pieces,
                                         int64_t count, mhai_slice **slices);

/* The attention call of a slice, without keys and values. */
mhai_attn_call mhai_slice_call_of(const mhai_slice *slice);

#endif
