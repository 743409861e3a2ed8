/* A call over ranks, as seen from one rank: its arguments, and their slices by pieces of
 * queries. */
#ifndef MHAI_DISTRIBUTED_H
#define MHAI_DISTRIBUTED_H

#include "distributed/split.h"

#include "attention/attn_plan.h"

/* The caller's arguments; structs have the sizes of this library. */
typedef struct mhai_slice_call {
    mha_status status; /* of this rank's checks so far */
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    const mha_tensor *q, *k, *v, *o;
} mhai_slice_call;

/* The values that all ranks must agree on. */
typedef struct mhai_slice_common {
    int64_t batch, heads, kv_heads, head_dim, value_dim, queries, keys;
    int64_t q_offset, left_keys, right_keys, sink_keys, block_queries, block_keys, t5_max_distance;
    int64_t sequences, version, first_head;
    int64_t table_rows[3]; /* of T5's table and Shaw's; backward only */
    int64_t bias_axes[3];  /* of a bias whose gradient is requested, all but the axis of queries;
                       * backward only */
    uint64_t dropout_seed, given;
    uint64_t lists;   /* a hash of all lengths, starts and offsets, including the outputs'
                       * offsets */
    int64_t top_keys; /* K */
    int32_t k_type, v_type, compute, path;
    int32_t outputs;   /* bits of the requested outputs */
    int32_t stage;     /* of scores */
    int32_t gradients; /* bits of the requested and given ones, and whether they accumulate */
    int32_t q_types;   /* of q, o, bias and, in the backward, o_gradient: a byte each */
    uint32_t flags, output_flags;
    float scale, softcap, dropout;
} mhai_slice_common;

/* Inputs over queries: keep_mask, bias, global_queries, query_documents. Each rank has its own rows
 * of them. Some ranks may broadcast an axis that others do not. */
enum { MHAI_ROW_BIAS = 1, MHAI_ROW_INPUTS = 4 };
typedef struct mhai_masks {
    int64_t shape[MHAI_ROW_INPUTS][4]; /* of a row [.,.,1,.], over all ranks */
    bool by_row[MHAI_ROW_INPUTS];      /* each query has its own row */
} mhai_masks;
const mha_tensor **mhai_slice_mask(mha_attention_desc *desc, int i);
static inline bool mhai_mask_has_columns(int i)
{
    return i < 2;
}

/* Outputs with a row for each query; the last three of them have columns for keys. */
enum { MHAI_ROW_OUTPUTS = 12, MHAI_FIRST_PAIRS = 9 };
typedef struct mhai_row_output {
    const char *name;
    int ndim;
    bool columns; /* the last axis is not that of rows */
} mhai_row_output;
extern const mhai_row_output mhai_row_outputs[MHAI_ROW_OUTPUTS];
const mha_tensor **mhai_slice_output(mha_attention_outputs *outputs, int i);

/* One piece of this rank's queries. */
typedef struct mhai_slice {
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    mhai_attn_part part;
    mha_tensor q, o;
    bool has_o;
    mha_tensor inputs[4], results[12]; /* the tensors of desc and outputs, sliced; not
                                        * column_sums */
    int64_t *before, *starts;          /* [B]; ragged: [B + 1] */
} mhai_slice;

/* Check the arguments without which ranks cannot even agree on an error. */
MHA_NODISCARD mha_status mhai_slice_arguments(const char *name, const mha_context *context,
                                              const mha_sequence_split *split);
MHA_NODISCARD mha_status mhai_slice_take(const char *name, const mha_attention_desc *desc,
                                         const mha_tensor *q, const mha_tensor *k,
                                         const mha_tensor *v, const mha_tensor *o,
                                         const mha_attention_outputs *outputs,
                                         mhai_slice_call *call);

/* Check the shapes that slicing relies on; fills common even on failure. */
MHA_NODISCARD mha_status mhai_slice_check(const mhai_slice_call *call, const mhai_split *split,
                                          mhai_slice_common *common);

/* Agree on the masks of all ranks. A collective call, for checked calls only. */
MHA_NODISCARD mha_status mhai_slice_masks(const mhai_slice_call *call, const mhai_split *split,
                                          mhai_masks *masks);

/* View a tensor with the axes [.,.,rows,columns]; axes that broadcast have stride 0. */
mha_tensor mhai_slice_view(const mha_tensor *x, bool columns);

/* Select some heads of a checked descriptor: every tensor over heads is sliced into `inputs`. */
enum { MHAI_HEAD_INPUTS = 7 };
void mhai_slice_heads(mha_attention_desc *desc, int64_t begin, int64_t end,
                      mha_tensor inputs[MHAI_HEAD_INPUTS]);

/* Cut a tensor to the rows of a slice. Its axis has this rank's rows. It is unchanged if it is NULL
 * or broadcasts on that axis. */
MHA_NODISCARD mha_status mhai_slice_cut(const char *name, const mha_tensor **x, int axis,
                                        bool broadcasts, int64_t all, int64_t first, int64_t rows,
                                        mha_tensor *to);

/* Make the slice of a piece, which begins at row `first` of the call's `all` rows. */
MHA_NODISCARD mha_status mhai_slice_piece(mha_context *context, const mhai_slice_call *call,
                                          const mhai_split *split, int64_t all,
                                          const mha_piece *piece, int64_t first, mhai_slice *slice);

/* Make a slice for each piece, in scratch. Together they have all rows of the call. */
MHA_NODISCARD mha_status mhai_slice_make(mha_context *context, const mhai_slice_call *call,
                                         const mhai_split *split, const mha_piece *pieces,
                                         int64_t count, mhai_slice **slices);

/* The attention call of a slice, without keys and values. */
mhai_attn_call mhai_slice_call_of(const mhai_slice *slice);

#endif
