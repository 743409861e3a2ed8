/* Cells of the backward's tiled path. A cell is a chunk of at most MHAI_CELL_QUERIES queries of one
 * head against a block of at most MHAI_CELL_KEYS keys. Chunks begin at query 0, blocks at key 0. */
#ifndef MHAI_ATTN_BACKWARD_CELLS_H
#define MHAI_ATTN_BACKWARD_CELLS_H

#include "attention/attn_backward.h"
#include "attention/attn_tiles.h"
#include "base/checked.h"

/* Part of the bits contract. 112 is 8 strips of 14 rows; P, dX, keys, values and their gradients of
 * a cell stay in a 1 MiB L2 for head sizes up to 128. MHAI_CELL_KEYS is a multiple of 32. */
enum { MHAI_CELL_QUERIES = 112, MHAI_CELL_KEYS = 256 };

/* Sums of one chunk. */
typedef struct mhai_cells_sums {
    double *t5;                     /* [buckets] */
    float *shaw_keys, *shaw_values; /* [rows padded][D padded], [rows padded][Dv padded] */
    double alibi, gates, scale;
} mhai_cells_sums;

/* Where to add the sums of a head's or a chunk's rows; NULL: not requested. */
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
    int64_t chunks, blocks; /* of the longest sequence */
    int64_t held;           /* rows of dq in a workspace */
    bool both;
    /* Shaw's tables, packed as right operands for rows (by distance) and for sums by distance. */
    float *shaw_keys, *shaw_values, *shaw_keys_rows;
    bool plain;            /* only causal and lengths hide keys, and no term changes scores */
    bool summing;          /* cells compute only weight_sums */
    mhai_cells_sums *sums; /* [WAVE] */
    int64_t wave;          /* first item of the current wave */
} mhai_cells_job;

/* One worker's memory. */
typedef struct mhai_cells_space {
    mhai_attn_workspace rows; /* for masks and score terms */
    float *q, *g; /* [MHAI_CELL_QUERIES][D], [MHAI_CELL_QUERIES][Dv]: scaled queries, dO */
    float *q_panels, *g_panels;
    float *lse, *delta, *gate;             /* [MHAI_CELL_QUERIES] */
    float *k_panels, *v_panels, *k_values; /* the block, packed */
    float *p, *x, *slope;   /* [MHAI_CELL_QUERIES][MHAI_SCORE_STRIDE]: c p kept, ds or dx */
    float *dk, *dv;         /* [MHAI_CELL_KEYS][D padded], [MHAI_CELL_KEYS][Dv padded] */
    float *dq;              /* [held][D padded] */
    float *shaw_g;          /* [MHAI_CELL_QUERIES][table padded]: dO times the table; q times the
                               table is in rows */
    float *shaw_x, *shaw_p; /* likewise: x and p summed by distance */
    double *diagonal;       /* [MHAI_CELL_KEYS + MHAI_CELL_QUERIES] ds summed by distance */
    double *bias;           /* [MHAI_CELL_QUERIES][MHAI_CELL_KEYS] */
    float *weights;         /* [MHAI_MAX_ROWS][MHAI_SCORE_STRIDE] p, if its gradients are passed */
    double *weight_sums;    /* [MHAI_CELL_QUERIES] */
    uint8_t *bad;           /* [MHAI_KEY_BLOCK] */
    size_t bytes;
} mhai_cells_space;

/* A chunk, and the data that its cells share. */
typedef struct mhai_cells_chunk {
    mhai_attn_chunk c;
    int64_t b, h, t; /* its first query */
} mhai_cells_chunk;

/* The hull of a cell's visible keys in the block, and the part of it that each strip has
 * computed. The rest of the hull is 0 but not written. */
typedef struct mhai_cell {
    mhai_attn_block block;
    int begin, end;
    int strips;
    int strip_begin[MHAI_CELL_QUERIES], strip_end[MHAI_CELL_QUERIES];
    bool stairs; /* all strips begin at the same key, and none ends before the one above */
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

/* Size of a worker's memory for a job whose x, p and held are set. */
size_t mhai_cells_space_bytes(const mhai_cells_job *job);
mhai_cells_space mhai_cells_space_of(const mhai_cells_job *job, int worker);

/* Pack Shaw's tables, once for all chunks, in the context's scratch. */
MHA_NODISCARD mha_status mhai_cells_pack_tables(mha_context *context, mhai_cells_job *job);

/* Load the chunk of queries from t on. panels: also pack q and dO as right operands of products. */
mhai_cells_chunk mhai_cells_load_chunk(const mhai_cells_job *job, mhai_cells_space *w, int64_t b,
                                       int64_t h, int64_t t, bool panels);

/* Load the block of keys and values from key on. panels: also pack them as right operands. */
void mhai_cells_load_block(const mhai_cells_job *job, mhai_cells_space *w,
                           const mhai_attn_sequence *seq, int64_t hk, int64_t key, bool rows);

/* Compute c p kept into w->p and ds into w->x, for the loaded chunk against the loaded block at
 * key. The gates' share is added to *share in the order of the rows (NULL: not requested).
 * Returns false if nothing is visible. */
bool mhai_cells_run(const mhai_cells_job *job, const mhai_cells_chunk *c, mhai_cells_space *w,
                    int64_t key, double *share, mhai_cell *at);

/* Add sum_s p w of a chunk over the block at key to w->weight_sums. The block's values are not
 * read. */
void mhai_cells_sum_weights(const mhai_cells_job *job, const mhai_cells_chunk *c,
                            mhai_cells_space *w, int64_t key);

/* Write zeros around the strips' results, up to the hull. */
void mhai_cells_clear(const mhai_cells_chunk *c, const mhai_cells_space *w, const mhai_cell *at);

/* ---- attn_backward_tiled.c ------------------------------------------------------------------ */

/* A job without memory. */
mhai_cells_job mhai_cells_job_of(const mha_context *context, const mhai_backward_problem *x);

/* Allocate the sums of this many chunks in scratch. */
MHA_NODISCARD mha_status mhai_cells_take_sums(mha_context *context, const mhai_cells_job *job,
                                              int64_t count, mhai_cells_sums **sums);

/* Process all queries of a head against the loaded block at key: add to w->dk, w->dv and the
 * requested sums of the head's rows. */
void mhai_cells_add_head(const mhai_cells_job *job, mhai_cells_space *w,
                         const mhai_attn_sequence *seq, int64_t h, int64_t key,
                         const mhai_cells_rows *rows);

/* Items are chunks of all query heads of all sequences, counted from job->wave: compute dq and
 * the terms of job->sums. */
void mhai_cells_run_queries(void *job, int64_t i, int worker);

/* Add the sums of a chunk of head h to those of a call with this many heads. Call in the order
 * of sequences, heads, queries. */
void mhai_cells_add_sums(const mhai_cells_job *job, int64_t heads, int64_t b, int64_t h,
                         const mhai_cells_sums *from, const mhai_backward_sums *to);

/* Fill in x->weight_sums. */
void mhai_cells_walk_weights(mha_context *context, mhai_cells_job *job);

/* Write a workspace's sums of rows to a gradient. */
void mhai_cells_write_rows(const mhai_cells_job *job, const mha_tensor *out, int64_t batch,
                           int64_t h, int64_t first, int64_t rows, const float *sums, float factor);

/* ---- attn_backward_bias.c ------------------------------------------------------------------- */

/* The part of the bias that an item owns. If elements are broadcast, it covers more than one
 * sequence, head, chunk or block. */
typedef struct mhai_bias_item {
    mhai_attn_range b, h, chunk, block;
    bool by_row, by_key; /* has elements for each query, for each key */
} mhai_bias_item;

int64_t mhai_cells_bias_items(const mhai_cells_job *job);
mhai_bias_item mhai_cells_bias_item(const mhai_cells_job *job, int64_t index);

/* Add the chunks and blocks of one head of one sequence to the item's elements,
 * [MHAI_CELL_QUERIES or 1][MHAI_CELL_KEYS or 1]. Call in the order of sequences and heads; the
 * elements are written afterwards. */
void mhai_cells_add_bias(const mhai_cells_job *job, mhai_cells_space *w, int64_t b, int64_t h,
                         const mhai_bias_item *item, double *sums);
void mhai_cells_write_bias(const mhai_cells_job *job, const mhai_bias_item *item,
                           const double *sums);

/* Compute a complete item. */
void mhai_cells_run_bias(void *job, int64_t index, int worker);

/* ---- attn_backward_cells.c ------------------------------------------------------------------- */

/* Whether only causal and lengths hide keys, and scores are products without further terms. */
bool mhai_cells_plain(const mhai_attn_problem *p);

/* ds -> dx in w->x. */
void mhai_cells_pass_cap(const mhai_cells_job *job, const mhai_cells_chunk *c,
                         const mhai_cells_space *w, const mhai_cell *at);

#endif
