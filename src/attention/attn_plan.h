/* The plan of a call. It is used to run the call and to explain it.
 *
 * Each back end is described by a row in attn_plan.c: when it is selected, which problems it
 * rejects, how it divides a problem, and how it runs it. */
#ifndef MHAI_ATTN_PLAN_H
#define MHAI_ATTN_PLAN_H

#include "attention/attn.h"

/* How the tiled path divides a problem. A chunk is a run of query rows of one key/value head. The
 * rows of the group's query heads are consecutive: row r is query r % T of head r / T. */
typedef struct mhai_attn_tiling {
    int64_t chunk_rows;      /* rows per chunk; the last chunk may have fewer */
    int64_t items;           /* chunks of all key/value heads of all sequences */
    int64_t forward_items;   /* items of the forward pass: chunks, or runs of
                              * queries with all heads */
    int64_t runs;            /* upper bound on the runs of consecutive queries
                              * of one head in a chunk */
    int64_t average_queries; /* queries per item of the average over heads */
    int64_t scored_rows;     /* rows whose scores the forward pass keeps for the average over heads;
                              * 0: the average has a separate pass */
    int64_t chosen_rows;     /* rows per item of a pass over chosen rows */
    int64_t kept_rows;       /* number of rows whose m and l later passes need */
    int64_t split_blocks;    /* key blocks of a chunk that threads share; 0: they are not shared */
    int64_t split_floats;    /* extra scratch for shared blocks */
    bool one_block;          /* attn_one_block.c computes every chunk */
    bool lanes;              /* attn_lanes.c computes every head */
    bool alone;              /* runs on one thread, because more would not pay off */
} mhai_attn_tiling;

/* Scratch of a call in bytes. A run allocates exactly this. */
typedef struct mhai_attn_scratch {
    size_t worker; /* per thread */
    size_t index;  /* for ragged items */
    size_t kept;
    size_t split;
} mhai_attn_scratch;

typedef struct mhai_attn_plan {
    mhai_attn_problem p;
    const struct mhai_attn_backend *backend;
    const mhai_kernels *kernels; /* the context's kernels; a test may replace them before the run */
    int threads;
    mhai_attn_tiling tiling;
    mhai_attn_scratch scratch;
    mha_attention_plan account; /* flops, bytes and pairs are set only if requested */
} mhai_attn_plan;

struct mhai_backward_plan;

/* The reason reported when the tiled path is chosen by default. */
#define MHAI_TILED_REASON "head sizes up to 256 need no matrix of all scores"

typedef struct mhai_attn_backend {
    mha_path path; /* requesting this path or compute selects this back end */
    mha_compute compute;
    const char *reason; /* reported if it is chosen by default */
    /* Returns the reason for rejecting the problem, as static text; NULL if it accepts. */
    const char *(*refuses)(const mha_context *context, const mhai_attn_problem *p);
    const char *instead; /* alternative to suggest in the message */
    /* Set tiling, scratch and account for plan->p. */
    mha_status (*plan)(const mha_context *context, mhai_attn_plan *plan);
    mha_status (*run)(mha_context *context, const mhai_attn_plan *plan);
    /* The same for gradients; NULL: none. */
    mha_status (*plan_backward)(const mha_context *context, struct mhai_backward_plan *plan);
    mha_status (*run_backward)(mha_context *context, struct mhai_backward_plan *plan);
} mhai_attn_backend;

/* The caller's arguments. */
typedef struct mhai_attn_call {
    const mha_attention_desc *desc;
    const mha_tensor *q, *k, *v, *o;
    const mha_attention_outputs *outputs;
    const struct mhai_attn_pages *pages; /* as in mhai_attn_problem */
    const mhai_attn_part *part;          /* likewise */
} mhai_attn_call;

/* Check a call and plan it. Without need_data, data of tensors may be NULL and
 * the plan is never run. */
MHA_NODISCARD mha_status mhai_attn_plan_call(const mha_context *context, const mhai_attn_call *call,
                                             bool need_data, mhai_attn_plan *plan);

/* Implement mha_attention_forward() and mha_attention_explain(). */
MHA_NODISCARD mha_status mhai_attn_forward(mha_context *context, const mhai_attn_call *call);
MHA_NODISCARD mha_status mhai_attn_explain(const mha_context *context, const mhai_attn_call *call,
                                           mha_attention_plan *plan);

/* Choose the first back end that accepts the problem, or its gradients, on the requested path.
 * Set *reason to the reason for the choice. */
MHA_NODISCARD mha_status mhai_attn_choose(const mha_context *context, const mhai_attn_problem *p,
                                          bool backward, const mhai_attn_backend **backend,
                                          const char **reason);

/* Bytes of a tensor for the account; 0 if its data is NULL. */
double mhai_attn_tensor_bytes(const mha_tensor *tensor);

/* All scratch of a run. */
MHA_NODISCARD mha_status mhai_attn_scratch_bytes(const mhai_attn_plan *plan, size_t *bytes);

/* Add n allocations of this many bytes to *total, rounded up as the context does. */
MHA_NODISCARD mha_status mhai_attn_add_scratch(size_t *total, size_t bytes, int n);

/* The back ends: attn_tiled.c, attn_plain.c, attn_bf16.c; for gradients attn_backward_tiled.c and
 * attn_backward_plain.c. */
const char *mhai_tiled_refuses(const mha_context *context, const mhai_attn_problem *p);
mha_status mhai_tiled_plan(const mha_context *context, mhai_attn_plan *plan);
mha_status mhai_tiled_run(mha_context *context, const mhai_attn_plan *plan);
mha_status mhai_tiled_plan_backward(const mha_context *context, struct mhai_backward_plan *plan);
mha_status mhai_tiled_run_backward(mha_context *context, struct mhai_backward_plan *plan);

mha_status mhai_plain_plan(const mha_context *context, mhai_attn_plan *plan);
mha_status mhai_plain_run(mha_context *context, const mhai_attn_plan *plan);
mha_status mhai_plain_plan_backward(const mha_context *context, struct mhai_backward_plan *plan);
mha_status mhai_plain_run_backward(mha_context *context, struct mhai_backward_plan *plan);

const char *mhai_bf16_refuses(const mha_context *context, const mhai_attn_problem *p);
mha_status mhai_bf16_plan(const mha_context *context, mhai_attn_plan *plan);
mha_status mhai_bf16_run(mha_context *context, const mhai_attn_plan *plan);

#endif
