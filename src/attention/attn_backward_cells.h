/* Cells of the tiled path of the backward pass. A cell is a chunk of at most MHAI_CELL_QUERIES
 * queries of one head, against a block of at most MHAI_CELL_KEYS keys. The first chunk starts at
 * query 0, the first block at key 0. */
#ifndef MHAI_ATTN_BACKWARD_CELLS_H
#define MHAI_ATTN_BACKWARD_CELLS_H

#include "attention/attn_backward.h"
#include "attention/attn_tiles.h"
#include "base/checked.h"

/* Results depend on both constants. 112 is 8 strips of 14 rows. For head sizes up to 128, a cell's
 * P, dX, keys, values and gradients fit in a 1 MiB L2 cache. MHAI_CELL_KEYS is a multiple of 32. */
enum { MHAI_CELL_QUERIES = 112, MHAI_CELL_KEYS = 256 };

/* Sums of one chunk. */
typedef struct mhai_cells_sums {
    double *t5;                     /* [buckets] */
    float *shaw_keys, *shaw_values; /* [rows padded][D padded], [rows padded][Dv padded] */
    double alibi, gates, scale;
} mhai_cells_sums;

/* Accumulators for the rows of a head or a chunk; NULL: not requested. */
typedef struct mhai_cells_rows {
    float *dq;              /* [rows][D padded] */
    float *shaw_x, *shaw_p; /* [rows][table padded]: x and p summed by distance */
    mhai_cells_sums *sums;  /* one per chunk */
} mhai_cells_rows;

typedef struct mhai_cells_job {
    const mhai_backward_problem *x;
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    unsigned char *memory;
    size_t worker_bytes;
    mhai_attn_walk walk;    /* p, kernels and dropout */
    int64_t chunks, blocks; /* for the longest sequence */
    int64_t held;           /* number of rows of dq in a workspace */
    bool both;
    /* Shaw's tables, packed as right operands. The first two multiply rows (q or dO), the third
     * multiplies sums by distance. */
    float *shaw_keys, *shaw_values, *shaw_keys_rows;
    bool plain;            /* only causal and lengths hide keys, and scores have no extra terms */
    bool summing;          /* cells compute only weight_sums */
    mhai_cells_sums *sums; /* [WAVE] */
    int64_t wave;          /* first item of the current wave */
} mhai_cells_job;

/* Memory of one worker. */
typedef struct mhai_cells_space {
    mhai_attn_workspace rows; /* for masks and score terms */
    float *q, *g; /* [MHAI_CELL_QUERIES][D], [MHAI_CELL_QUERIES][Dv]: scaled queries, dO */
    float *q_panels, *g_panels;
    float *lse, *delta, *gate;             /* [MHAI_CELL_QUERIES] */
    float *k_panels, *v_panels, *k_values; /* the block, packed */
    float *p, *x, *slope;   /* [MHAI_CELL_QUERIES][MHAI_SCORE_STRIDE]: c p after dropout; ds
                             * or dx; slope of the cap */
    float *dk, *dv;         /* [MHAI_CELL_KEYS][D padded], [MHAI_CELL_KEYS][Dv padded] */
    float *dq;              /* [held][D padded] */
    float *shaw_g;          /* [MHAI_CELL_QUERIES][table padded]: dO times the table (rows.shaw_keys
                             * holds q times the table) */
    float *shaw_x, *shaw_p; /* same shape: x and p summed by distance */
    double *diagonal;       /* [MHAI_CELL_KEYS + MHAI_CELL_QUERIES] ds summed by distance */
    double *bias;           /* [MHAI_CELL_QUERIES][MHAI_CELL_KEYS] */
    float *weights;         /* [MHAI_MAX_ROWS][MHAI_SCORE_STRIDE] p, if the caller passes gradients
                             * of p */
    double *weight_sums;    /* [MHAI_CELL_QUERIES] */
    uint8_t *bad;           /* [MHAI_KEY_BLOCK] */
    size_t bytes;
} mhai_cells_space;

/* A chunk, with the data that all its cells use. */
typedef struct mhai_cells_chunk {
    mhai_attn_chunk c;
    int64_t b, h, t; /* its first query */
} mhai_cells_chunk;

/* The hull of a cell's visible keys in the block, and the part of it that each strip computed. The
 * rest of the hull counts as 0 and is not written. */
typedef struct mhai_cell {
    mhai_attn_block block;
    int begin, end;
    int strips;
    int strip_begin[MHAI_CELL_QUERIES], strip_end[MHAI_CELL_QUERIES];
    bool stairs; /* all strips begin at the same key, and no strip ends before the previous one */
} mhai_cell;

/* The first row of strip i of a cell. */
static inline int64_t mhai_cells_strip(const mhai_cells_chunk *c, const mhai_cell *at, int64_t i)
{
    return i * c->c.rows / at->strips;
}

static inline int64_t mhai_cells_padded(int64_t columns)
{
    return mhai_round_up(columns, MHAI_PANEL);
}

/* Bytes of a worker's memory. The job's x, p and held must be set. */
size_t mhai_cells_space_bytes(const mhai_cells_job *job);

/* Allocate and lay out the memory of all workers. */
MHA_NODISCARD mha_status mhai_cells_take_spaces(mha_context *context, mhai_cells_job *job);
mhai_cells_space mhai_cells_space_of(const mhai_cells_job *job, int worker);

/* Pack Shaw's tables in the context's scratch, once for all chunks. */
MHA_NODISCARD mha_status mhai_cells_pack_tables(mha_context *context, mhai_cells_job *job);

/* Load the chunk of at most MHAI_CELL_QUERIES queries that starts at t. panels: also pack q and dO
 * as right operands of products. */
mhai_cells_chunk mhai_cells_load_chunk(const mhai_cells_job *job, mhai_cells_space *w, int64_t b,
                                       int64_t h, int64_t t, bool panels);

/* Load the block of keys and values that begins at key. panels: also pack
 * them as right operands. */
void mhai_cells_load_block(const mhai_cells_job *job, mhai_cells_space *w,
                           const mhai_attn_sequence *seq, int64_t hk, int64_t key, bool rows);

/* For the loaded chunk and the loaded block at key, compute c p after dropout in w->p, and ds in
 * w->x. The gates' terms are added to *share in the order of rows (NULL: not requested). Returns
 * false if nothing is visible. */
bool mhai_cells_run(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                    int64_t key, double *share, mhai_cell *at);

/* Add sum_s p w of a chunk over the block at key to w->weight_sums. Does not
 * read the block's values. */
void mhai_cells_sum_weights(const mhai_cells_job *job, const mhai_cells_chunk *c,
                            mhai_cells_space *w, int64_t key);

/* Fill the rest of the hull, which the strips did not compute, with zeros. */
void mhai_cells_clear(const mhai_cells_chunk *c, const mhai_cells_space *w, const mhai_cell *at);

/* ---- attn_backward_tiled.c ------------------------------------------------------------------ */

/* Make a job without memory. */
mhai_cells_job mhai_cells_job_of(const mha_context *context, const mhai_backward_problem *x);

/* Allocate the sums of this many chunks in the context's scratch. */
MHA_NODISCARD mha_status mhai_cells_take_sums(mha_context *context, const mhai_cells_job *job,
                                              int64_t count, mhai_cells_sums **sums);

/* Run all queries of a head against the loaded block at key. Add to w->dk, w->dv, and the requested
 * sums of the head's rows. */
void mhai_cells_add_head(const mhai_cells_job *job, mhai_cells_space *w,
                         const mhai_attn_sequence *seq, int64_t h, int64_t key,
                         const mhai_cells_rows *rows);

/* Compute dq and job->sums of one chunk. Items are chunks of all query heads of all sequences,
 * counted from job->wave. */
void mhai_cells_run_queries(void *job, int64_t i, int worker);

/* Add the sums of a chunk of head h to the sums of a call with this many heads. Must be called in
 * the order of sequences, heads, queries. */
void mhai_cells_add_sums(const mhai_cells_job *job, int64_t heads, int64_t b, int64_t h,
                         const mhai_cells_sums *from, const mhai_backward_sums *to);

/* Compute x->weight_sums. */
void mhai_cells_walk_weights(mha_context *context, mhai_cells_job *job);

/* Write sums of rows from a workspace to a gradient. */
void mhai_cells_write_rows(const mhai_cells_job *job, const mha_tensor *out, int64_t batch,
                           int64_t h, int64_t first, int64_t rows, const float *sums, float factor);

/* ---- attn_backward_bias.c ------------------------------------------------------------------- */

/* The part of the bias that one item computes. With broadcast elements, it covers several
 * sequences, heads, chunks or blocks. */
typedef struct mhai_bias_item {
    mhai_attn_range b, h, chunk, block;
    bool by_row, by_key; /* whether elements differ by query, and by key */
} mhai_bias_item;

int64_t mhai_cells_bias_items(const mhai_cells_job *job);
mhai_bias_item mhai_cells_bias_item(const mhai_cells_job *job, int64_t index);

/* Add the chunks and blocks of one head of one sequence to the item's sums,
 * [MHAI_CELL_QUERIES or 1][MHAI_CELL_KEYS or 1]. Must be called in the order of sequences and
 * heads, before the sums are written. */
void mhai_cells_add_bias(const mhai_cells_job *job, mhai_cells_space *w, int64_t b, int64_t h,
                         const mhai_bias_item *item, double *sums);
void mhai_cells_write_bias(const mhai_cells_job *job, const mhai_bias_item *item,
                           const double *sums);

/* Compute and write one item. */
void mhai_cells_run_bias(void *job, int64_t index, int worker);

/* ---- attn_backward_cells.c ------------------------------------------------------------------- */

/* Whether only causal and lengths hide keys, and scores have no terms besides the products. */
bool mhai_cells_plain(const mhai_attn_problem *p);

/* Multiply ds in w->x by the slope of the cap, which gives dx. */
void mhai_cells_pass_cap(const mhai_cells_job *job, const mhai_cells_chunk *c,
                         const mhai_cells_space *w, const mhai_cell *at);

#endif
