/* Internals of the attention layer: a checked problem, with all defaults filled in. */
#ifndef MHAI_ATTN_H
#define MHAI_ATTN_H

#include "attention/attn_uses.h"
#include "attention/attn_wanted.h"
#include "base/checked.h"
#include "kernels/kernels.h"

#include <multihead/attention.h>

/* Above any length. Sums of up to seven offsets fit in 64 bits. */
#define MHAI_MOST_OFFSET ((int64_t)1 << 60)

/* Column sums of a call that is divided by queries. Each part continues the unrounded sums
 * of the parts before it. */
typedef struct mhai_attn_columns {
    double *sums; /* per sequence, in order: [H][keys of the sequence] */
    /* take() receives the sums of earlier parts. pass() sends them with this part's terms added. */
    mha_status (*take)(void *user);
    mha_status (*pass)(void *user);
    void *user;
} mhai_attn_columns;

/* The part of a larger call that this call computes. Other ranks compute the other rows
 * (src/distributed). Positions, numbers of queries, and tensors indexed by keys belong to the
 * larger call; o and tensors indexed by queries have only this part's rows. */
typedef struct mhai_attn_part {
    const int64_t *queries_before;    /* [B] queries of each sequence that precede this part */
    int64_t T, H;                     /* of the larger call; only the backward pass reads H */
    int64_t first_key;                /* the row of the larger call at which k and v begin */
    int64_t keys;                     /* number of rows in k and v */
    const mhai_attn_columns *columns; /* instead of column_sums; NULL: not requested */
} mhai_attn_part;

typedef struct mhai_attn_problem {
    int uses;                      /* MHAI_USES() bits of the features in use */
    int64_t B, H, Hk, T, S, D, Dv; /* ragged: B sequences; T and S are the maximum */
    int64_t group;                 /* H / Hk, query heads per key/value head */
    mha_tensor q, k, v, o;
    mha_tensor lse, probabilities; /* data NULL: not requested */
    mhai_attn_wanted want;         /* the other outputs */
    float scale;
    bool causal, window, strict;
    int64_t left_keys, right_keys; /* clamped; an unbounded side exceeds any distance */
    int64_t sink_keys;
    int64_t q_offset, first_head;
    const int64_t *q_offsets, *key_lengths, *key_begins;
    const int64_t *query_starts, *key_starts; /* NULL: not ragged */
/* Inputs by their names in the descriptor; data NULL: absent. */
#define MHAI_INPUT(name, type, axes, stage) mhai_form_##axes name;
    MHA_ATTENTION_INPUTS(MHAI_INPUT)
#undef MHAI_INPUT
    int64_t block_queries, block_keys;
    mha_keep_fn callback;
    void *callback_user;
    float softcap, dropout;
    uint64_t dropout_seed;
    int64_t t5_max_distance;
    bool t5_one_sided;
    bool need_data; /* false: only checked and planned, never run */
    mha_path asked; /* the requested path; the plan has the chosen path */
    mha_compute compute;
    const mhai_attn_part *part;          /* NULL: all */
    const struct mhai_attn_pages *pages; /* keys and values in pages, if k and v have no data;
                                          * otherwise NULL */
} mhai_attn_problem;

/* Check a call's arguments and fill in the problem. Without need_data,
 * data of tensors may be NULL. */
MHA_NODISCARD mha_status mhai_attn_check(const mha_attention_desc *desc, const mha_tensor *q,
                                         const mha_tensor *k, const mha_tensor *v,
                                         const mha_tensor *o, const mha_attention_outputs *outputs,
                                         bool need_data, const mhai_attn_part *part,
                                         mhai_attn_problem *problem);

/* Validate the starts [sequences + 1] of a ragged batch with this many rows. Set *longest. */
MHA_NODISCARD mha_status mhai_attn_check_starts(const char *name, const int64_t *starts,
                                                int64_t sequences, int64_t rows, int64_t *longest);

/* View a list of numbers as a tensor. */
mha_tensor mhai_attn_list_view(const int64_t *list, int64_t count);

/* Check that an output shares no memory with any input of the descriptor. */
MHA_NODISCARD mha_status mhai_attn_check_apart(const mha_attention_desc *desc, const char *name,
                                               const mha_tensor *output);

/* Checks of outputs (attn_wanted.c). mhai_attn_copy_outputs() copies the caller's struct to one of
 * this version's size. mhai_attn_check_outputs() checks all shapes and lists; call it after the
 * checks of inputs. mhai_attn_list_outputs() lists the requested outputs, including o. */
enum { MHAI_ATTN_OUTPUTS = 14 };
typedef struct mhai_attn_named {
    const char *name;
    const mha_tensor *tensor;
} mhai_attn_named;
MHA_NODISCARD mha_status mhai_attn_copy_outputs(const mha_attention_outputs *outputs,
                                                mha_attention_outputs *own);
MHA_NODISCARD mha_status mhai_attn_check_output(const char *name, const mha_tensor *given,
                                                mha_dtype dtype, int ndim, const int64_t *shape,
                                                bool need_data, mha_tensor *tensor);
MHA_NODISCARD mha_status mhai_attn_check_outputs(const mha_attention_outputs *given, bool need_data,
                                                 mhai_attn_problem *problem);
int mhai_attn_list_outputs(const mhai_attn_problem *problem,
                           mhai_attn_named list[MHAI_ATTN_OUTPUTS]);

/* Number of additional passes over all scores for the requested outputs. scored: the forward pass
 * already computes the average over heads. */
double mhai_attn_passes(const mhai_attn_problem *problem, bool tiled, bool scored);

/* A sequence of the batch: its lengths, its offset, and its rows in the tensors. */
typedef struct mhai_attn_sequence {
    int64_t b;      /* index of the sequence */
    int64_t batch;  /* index on the batch axis: b, or 0 if ragged */
    int64_t T, S;   /* number of queries, and of keys within the length */
    int64_t stored; /* keys in memory */
    int64_t q0, k0; /* rows of its first query and key */
    int64_t s0;     /* index of its first key in inputs over keys: k0, except in a part */
    int64_t before; /* queries of the sequence in earlier parts */
    int64_t begin;  /* the first visible key */
    int64_t offset; /* position of query 0 */
} mhai_attn_sequence;

mhai_attn_sequence mhai_attn_sequence_of(const mhai_attn_problem *problem, int64_t b);

/* The row of keep_blocks for query t. Not used in ragged batches, where each sequence must give the
 * same result as on its own. */
static inline int64_t mhai_attn_pattern_row(const mhai_attn_problem *p, int64_t t)
{
    return ((p->part ? p->part->queries_before[0] : 0) + t) / p->block_queries;
}

/* Number of keys and values that can be read from memory, starting at `key`. */
static inline int64_t mhai_attn_readable(const mhai_attn_problem *p, const mhai_attn_sequence *seq,
                                         int64_t key)
{
    const int64_t rows = seq->S - key;
    return p->part ? mhai_min_i64(rows, p->part->keys - seq->k0 - key) : rows;
}

/* A half-open interval of keys. */
typedef struct mhai_attn_range {
    int64_t begin, end; /* begin <= end */
} mhai_attn_range;

/* The keys that causal, length and begin allow for query t, and their intersection with the window.
 * Inline, because returning a range through memory for each row costs more than computing it. */
static inline mhai_attn_range mhai_attn_limit(const mhai_attn_problem *p,
                                              const mhai_attn_sequence *seq, int64_t t)
{
    int64_t end = p->causal ? mhai_min_i64(seq->S, t + seq->offset + 1) : seq->S;
    return seq->begin < end ? (mhai_attn_range){seq->begin, end} : (mhai_attn_range){0, 0};
}

static inline mhai_attn_range mhai_attn_window(const mhai_attn_problem *p,
                                               const mhai_attn_sequence *seq, int64_t t)
{
    mhai_attn_range limit = mhai_attn_limit(p, seq, t);
    if (!p->window) return limit;
    int64_t position = t + seq->offset;
    int64_t begin = mhai_max_i64(limit.begin, position - p->left_keys);
    int64_t end = mhai_min_i64(limit.end, position + p->right_keys + 1);
    return begin < end ? (mhai_attn_range){begin, end} : (mhai_attn_range){0, 0};
}

/* Column sums (attn_columns.c), for all paths.
 *
 * begin initialises the sums of `count` keys of one head, starting at `key`: to 0 or, in a part, to
 * the sums of the earlier parts. end stores the sums. run executes a number of items; in a part, it
 * first receives the sums of the earlier parts. */
void mhai_attn_begin_columns(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t h,
                             int64_t key, int64_t count, double *sums);
void mhai_attn_end_columns(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t h,
                           int64_t key, int64_t count, const double *sums);
MHA_NODISCARD mha_status mhai_attn_run_columns(mha_context *context, const mhai_attn_problem *p,
                                               int64_t items, mha_parallel_body body,
                                               void *argument);

/* Offset of head h in a part's sums. The sequence has `keys` keys, and the sequences before it have
 * `before` keys in total. */
static inline int64_t mhai_attn_columns_at(int64_t heads, int64_t before, int64_t keys, int64_t h)
{
    return heads * before + h * keys;
}

/* Number of query-key pairs over B and H that causal, lengths and the window
 * (with sink keys) allow. */
int64_t mhai_attn_visible_pairs(const mhai_attn_problem *p);

/* The terms of a score that depend on the distance rel = s - i (ALiBi and T5), in f32. */
float mhai_attn_relative(const mhai_attn_problem *p, int64_t b, int64_t h, int64_t rel);
static inline bool mhai_attn_has_relative(const mhai_attn_problem *p)
{
    return p->uses & MHAI_DISTANCES;
}

/* The T5 bucket of distance rel. */
int64_t mhai_attn_t5_bucket(int64_t rel, int64_t buckets, int64_t max_distance, bool one_sided);

/* Pointer to row [b, h, t] of a tensor with four axes: of any type, or of f32. */
static inline void *mhai_attn_data(const mha_tensor *x, int64_t b, int64_t h, int64_t t)
{
    int64_t at = b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
    return (char *)x->data + at * (int64_t)mha_dtype_size(x->dtype);
}
static inline float *mhai_attn_row(const mha_tensor *x, int64_t b, int64_t h, int64_t t)
{
    return (float *)x->data + b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

/* Prefetch a row. In the output of a projection, rows of a head are pages apart, which is too far
 * for hardware prefetchers. */
enum { MHAI_ROWS_AHEAD = 8, MHAI_LINE = 64 };
static inline __attribute__((always_inline)) void mhai_attn_fetch_row(const mha_tensor *x,
                                                                      int64_t b, int64_t h,
                                                                      int64_t t)
{
    const char *row = mhai_attn_data(x, b, h, t);
    const int64_t bytes = x->shape[3] * (int64_t)mha_dtype_size(x->dtype);
    for (int64_t i = 0; i < bytes; i += MHAI_LINE) __builtin_prefetch(row + i);
}

/* Offset of [b, h, t, 0] in a broadcast input. */
static inline int64_t mhai_attn_offset(const mhai_attn_broadcast *x, int64_t b, int64_t h,
                                       int64_t t)
{
    return b * x->stride[0] + h * x->stride[1] + t * x->stride[2];
}

static inline const void *mhai_attn_element(const mhai_attn_broadcast *x, int64_t offset)
{
    return (const char *)x->data + offset * (int64_t)mha_dtype_size(x->dtype);
}

/* Element [i, j] of a broadcast input with two axes. */
static inline float mhai_attn_f32(const mhai_attn_broadcast *x, int64_t i, int64_t j)
{
    return ((const float *)x->data)[i * x->stride[2] + j * x->stride[3]];
}
static inline bool mhai_attn_flag(const mhai_attn_broadcast *x, int64_t i, int64_t j)
{
    return x->data && ((const uint8_t *)x->data)[i * x->stride[2] + j * x->stride[3]];
}
static inline int32_t mhai_attn_i32(const mhai_attn_broadcast *x, int64_t i, int64_t j)
{
    return ((const int32_t *)x->data)[i * x->stride[2] + j * x->stride[3]];
}

#endif
