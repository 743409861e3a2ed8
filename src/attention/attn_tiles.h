/* The parts of every pass of the tiled path: a worker's memory, a chunk of query rows, a key block,
 * a strip of rows against that block, and two walks over them:
 *
 *   mhai_attn_walk_chunk  row-major: the rows of a chunk against all their key blocks, in order
 *   mhai_attn_walk_keys   key-major: a key block against all rows of its key/value head, in order
 *
 * A pass is a visitor. A walk calls its strip() for each strip and block. Before that, it packs the
 * block's keys (w->k) and, if requested, its values (w->v), and prepares the strip's queries
 * (strip->tile.q) and mask for a kernel. Each sum over a walk has one owner and a fixed order, so
 * results do not depend on threads or on the division into chunks. */
#ifndef MHAI_ATTN_TILES_H
#define MHAI_ATTN_TILES_H

#include "attention/attn_pages.h"
#include "attention/attn_plan.h"
#include "base/checked.h"

/* Memory of one worker. Arrays of rows have an entry per row of the chunk. */
typedef struct mhai_attn_workspace {
    float *q, *o, *m, *l;  /* [rows][D], [rows][Dv padded], [rows] twice */
    float *k, *v, *s;      /* packed block, strip of scores */
    int64_t *head, *query; /* [rows] indices h and t */
    mhai_attn_range *limit,
        *window;        /* [rows] keys allowed by causal and length; their intersection with the
                         * window */
    uint8_t *bad_query; /* [rows] not finite */
    uint8_t *bad_key, *bad_value, *visible;
    uint8_t *keep;            /* [MHAI_MAX_ROWS][MHAI_KEY_BLOCK] composed mask of a strip */
    float *relative;          /* terms by distance; one table per run of rows of one head */
    int64_t *relative_at;     /* [rows] index of a row's entry for key 0 of the block */
    float *shaw_keys;         /* [rows][2k+1 padded] q times the table, in units of scores */
    float *shaw_values;       /* [rows][2k+1 padded] sums of p by distance */
    float *shaw_panels;       /* a packed table */
    double *entropy;          /* [rows] statistics so far */
    float *largest, *log_sum; /* [rows]; log_sum is log2 of l */
    int64_t *largest_key;     /* [rows] */
    double *columns;          /* [MHAI_KEY_BLOCK] sums over rows */
    float *scores;            /* [key blocks][scored_rows][MHAI_SCORE_STRIDE] */
    mhai_attn_range *scored;  /* [key blocks][scored_rows] keys of the block that have a score */
    mhai_run *key_runs,
        *value_runs;         /* [MHAI_BLOCK_RUNS + MHAI_RUNS_AHEAD] runs of the block in pages */
    float *run;              /* [MHAI_RUN][Dv padded] values from pages, as floats */
    unsigned char *gathered; /* copies of runs that span two pages */
    size_t bytes;
} mhai_attn_workspace;

/* Rows of some heads of one key/value head. With i = first + r, row r is query i % width of head
 * head0 + i / width. The `width` queries start at query0, or are given by a list. */
typedef struct mhai_attn_chunk {
    mhai_attn_sequence seq;
    int64_t hk;
    int64_t first, rows;
    int64_t head0, query0, width;
    const int64_t *list;    /* rows of the tensors, instead of query0; or NULL */
    mhai_attn_range limit;  /* hull of the limits of the rows */
    mhai_attn_range window; /* hull of the nonempty windows of the rows */
    bool global_query;      /* some row is exempt from the window */
    bool bad_query;         /* some query is not finite */
} mhai_attn_chunk;

/* A key block and its properties for a chunk. Keys are numbered from the first key of the block. */
typedef struct mhai_attn_block {
    int64_t key; /* index of its first key in the sequence */
    int keys;
    int exempt_begin, exempt_end; /* hull of the keys exempt from the window */
    bool exempt_solid;            /* all keys of that hull are exempt */
    int32_t least_document, greatest_document;
    int pack_begin, pack_end; /* keys that some row of the chunk may see;
                               * pack_begin is a multiple of 32 */
    bool packed, bad;         /* already packed; some element is not finite */
} mhai_attn_block;

/* A strip against a block, as arguments of a kernel. */
typedef struct mhai_attn_strip {
    mhai_tile tile;
    mhai_tile_mask mask;
    mhai_poison poison;
    int64_t first; /* index of its first row in the chunk */
    bool masked;   /* the tile needs the mask */
} mhai_attn_strip;

/* Data shared by all strips of one or more passes over a problem. */
typedef struct mhai_attn_walk {
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    mhai_attn_tiling tiling;
    const int64_t *first_item; /* [B + 1] first item of each sequence; NULL: all sequences have the
                                * same number of items */
    unsigned char *memory;
    size_t worker_bytes;
    bool pairs;           /* bf16 kernels multiply in pairs (kernels.h) */
    mhai_dropout dropout; /* fields common to all strips */
} mhai_attn_walk;

enum {
    MHAI_WALK_VALUES = 1 << 0, /* also pack values */
    MHAI_WALK_ALL = 1 << 1     /* row-major: also visit tiles that see nothing, up to column S; only
                                * the strip's rows are set, and tile.begin == tile.end */
};

typedef struct mhai_attn_visitor {
    unsigned options;
    void *user;
    /* Called once a chunk's rows are placed and its queries loaded. m and l have the values for no
     * keys, or for only the sink; a later pass replaces them by the final values. May set
     * bad_query. NULL: not called. */
    void (*chunk)(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w);
    void (*strip)(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                  const mhai_attn_block *block, mhai_attn_strip *strip);
    /* Row-major, for chunks of few rows: process all strips that see the block at once, with
     * keys and values in place. Returns false if it cannot, so that strip() is called
     * instead. NULL: not called. */
    bool (*rows)(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                 const mhai_attn_block *block, mhai_attn_strip *strips, int count);
} mhai_attn_visitor;

/* ---- attn_rows.c: memory and rows ------------------------------------------------------------ */

int64_t mhai_attn_padded_values(const mhai_attn_problem *p); /* Dv rounded up to whole panels */
int64_t mhai_attn_padded_shaw(const mha_tensor *table);      /* the table's rows, rounded up
                                                              * likewise; 0 if absent */

/* Lay out a workspace of the tiling's sizes in memory, where it is also stored for
 * mhai_attn_workspace_of(). If memory is NULL, only compute its size. */
mhai_attn_workspace mhai_attn_lay_out(const mhai_attn_problem *p, const mhai_attn_tiling *tiling,
                                      int tile_rows, unsigned char *memory);
mhai_attn_workspace mhai_attn_workspace_of(const mhai_attn_walk *walk, int worker);

/* Set positions and visible keys of the chunk's rows. Then load the scaled queries and their
 * products with Shaw's tables. */
void mhai_attn_place_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w);
void mhai_attn_load_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w);

/* out[r] = (first ? 0 : out[r]) + x[r] W for the rows of a chunk, with W packed. Each product
 * is one chain over inner. */
void mhai_attn_multiply_rows(const mhai_kernels *kernels, int64_t rows, int64_t inner, int64_t cols,
                             const float *x, int64_t x_stride, const float *w, int64_t panel_stride,
                             bool first, float *out, int64_t out_stride);

/* The factor that scales queries. With a cap, log2 e is applied after the cap instead. */
float mhai_attn_factor(const mhai_attn_problem *p);
/* The log of a row's denominator, from l and m (in units of log2 e). */
float mhai_attn_lse(float m, float l);

/* Shaw's values: update the sums after each tile; add the result after the last tile. */
void mhai_attn_add_shaw_values(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               const mhai_attn_strip *strip);
void mhai_attn_finish_shaw_values(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                                  mhai_attn_workspace *w);

/* ---- attn_tiling.c --------------------------------------------------------------------------- */

/* Set tiling, kernels, scratch and their part of the account for the plan's problem. */
MHA_NODISCARD mha_status mhai_attn_divide(const mha_context *context, mhai_attn_plan *plan);

/* Whether chunks of this many rows can process key blocks independently, which requires that
 * attn_split.c supports all features of the problem. */
bool mhai_attn_takes_apart(const mhai_attn_problem *p, int64_t rows, int tile_rows);

/* ---- attn_walk.c ----------------------------------------------------------------------------- */

/* Number of chunks of a key/value head with this many queries. */
static inline int64_t mhai_attn_chunks_of(const mhai_attn_problem *p, int64_t queries,
                                          int64_t chunk_rows)
{
    return chunk_rows > 0 ? mhai_ceil_div(p->group * queries, chunk_rows) : 0;
}

/* The chunk of an item, with item < tiling.items. */
mhai_attn_chunk mhai_attn_chunk_of_item(const mhai_attn_walk *walk, int64_t item);

/* Whether chunks of this many rows read keys and values in place instead of packing them. */
bool mhai_attn_by_rows(const mhai_attn_problem *p, int64_t rows, int64_t tile_rows);

/* Rows of the tallest strip of a chunk with this many rows. An upper bound if
 * a pattern cuts strips. */
int64_t mhai_attn_strip_rows(const mhai_attn_problem *p, int64_t chunk_rows, int64_t tile_rows);

/* Prepare the walk of a plan: allocate the index of ragged items and the
 * workers' memory in scratch. */
MHA_NODISCARD mha_status mhai_attn_walk_begin(mha_context *context, const mhai_attn_plan *plan,
                                              mhai_attn_walk *walk);

/* Row-major walk. The chunk's seq, hk, rows and positions must be set. */
void mhai_attn_walk_chunk(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_visitor *visitor);

/* Run a loaded chunk against the block at key only. */
void mhai_attn_walk_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          mhai_attn_workspace *w, int64_t key, const mhai_attn_visitor *visitor);

/* The kernel arguments for a visitor's rows(). They use the memory of the packed block. The memory
 * of keys holds a panel. The memory of values holds the sums, followed by the scores of several
 * strips. */
mhai_tile_rows mhai_attn_rows_of(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                 const mhai_attn_workspace *w, const mhai_attn_block *block,
                                 int strips);

/* Fill the tables of terms by distance for a chunk against a block; set all terms of a strip's
 * scores except visibility. */
void mhai_attn_fill_relative(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                             const mhai_attn_workspace *w, const mhai_attn_block *block);
void mhai_attn_set_score_terms(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               mhai_attn_strip *s);

/* Key-major walk. Items are blocks of MHAI_KEY_BLOCK keys of the key/value heads of all
 * sequences; mhai_attn_key_items() is their number per key/value head. An item visits all rows
 * that see the block, by head and then by query, in chunks of any size. Blocks after the
 * sequence's last key are skipped. */
int64_t mhai_attn_key_items(const mhai_attn_walk *walk);
typedef struct mhai_attn_key_item {
    mhai_attn_sequence seq;
    int64_t hk, key;
} mhai_attn_key_item;
mhai_attn_key_item mhai_attn_key_item_at(const mhai_attn_walk *walk, int64_t item);
void mhai_attn_walk_keys(const mhai_attn_walk *walk, const mhai_attn_key_item *item,
                         mhai_attn_workspace *w, const mhai_attn_visitor *visitor);

/* Dropout of a call, and of a strip. */
mhai_dropout mhai_attn_dropout_of(const mhai_attn_problem *p);
void mhai_attn_set_dropout(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                           const mhai_attn_workspace *w, const mhai_attn_block *block,
                           const mhai_attn_strip *strip, mhai_dropout *dropout);

/* ---- attn_one_block.c ------------------------------------------------------------------------ */

/* Whether the keys of each sequence form one block, and only causal, lengths, a dense mask
 * and a bias are in use. */
bool mhai_attn_is_one_block(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* Compute a chunk of a one-block problem, with its outputs. Returns false if an element is not
 * finite; the chunk must then be computed by a walk. fetch: data to prefetch. */
MHA_NODISCARD bool mhai_attn_one_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                                       const mhai_attn_workspace *w, mhai_fetch *fetch);

/* ---- attn_lanes.c ---------------------------------------------------------------------------- */

/* Computes a chunk, and possibly its outputs. */
typedef void mhai_attn_forward_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w);

/* Whether heads have few keys, and only causal and lengths are in use. */
bool mhai_attn_in_lanes(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

int64_t mhai_attn_lane_items(const mhai_attn_problem *p);

/* Compute an item, with its outputs. If an element is not finite, alone() is called for each of its
 * chunks instead. */
void mhai_attn_run_lanes(const mhai_attn_walk *walk, int64_t item, mhai_attn_workspace *w,
                         mhai_attn_forward_chunk *alone, void *user);

/* ---- attn_mask.c ----------------------------------------------------------------------------- */

/* The block at key, for a chunk whose limit is set. */
mhai_attn_block mhai_attn_block_at(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                   int64_t key);

/* Returns false if the window hides the whole block from the whole chunk. */
bool mhai_attn_block_seen(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_block *block);

/* Set the strip's ranges and masks. Returns false if no row sees a key of the block. */
bool mhai_attn_mask_strip(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w, const mhai_attn_block *block,
                          mhai_attn_strip *strip);

/* ---- attn_tiled.c ---------------------------------------------------------------------------- */

/* The current item, and the data to prefetch for the end of its current key block. */
typedef struct mhai_attn_item {
    const mhai_attn_walk *walk;
    int64_t next;    /* the worker's next item; the number of items if unknown */
    int64_t planned; /* the key block whose last tiles prefetch */
    mhai_fetch fetch;
} mhai_attn_item;

/* The forward pass of a chunk: starts with o = 0 and adds block by block. */
mhai_attn_visitor mhai_attn_forward_visitor(mhai_attn_item *item);

/* Write o and lse of a chunk after its walk. */
void mhai_attn_write_rows(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w);

/* ---- attn_outputs.c, attn_sums.c: passes after the forward pass ------------------------------ */

/* The final m and l of every row, [batch][H][rows of q]; in scratch, if later passes need them. */
typedef struct mhai_attn_kept {
    float *m, *l;
} mhai_attn_kept;

bool mhai_attn_needs_kept(const mhai_attn_problem *p);
void mhai_attn_keep_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                         const mhai_attn_chunk *c, const mhai_attn_workspace *w);
void mhai_attn_restore_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                            const mhai_attn_chunk *c, const mhai_attn_workspace *w);

/* Write probabilities, scores and statistics of rows. */
void mhai_attn_run_outputs(mha_context *context, const mhai_attn_walk *walk,
                           const mhai_attn_kept *kept);

/* Compute the average over heads in the forward pass. An item is a run of queries of one sequence,
 * with all heads. forward() processes a chunk of these rows, leaves their final m and l in the
 * workspace, and saves their scores with mhai_attn_keep_scores(). */
int64_t mhai_attn_average_items(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);
void mhai_attn_run_scored(const mhai_attn_walk *walk, int64_t item, int worker,
                          mhai_attn_forward_chunk *forward, void *user);
void mhai_attn_keep_scores(const mhai_attn_walk *walk, const mhai_attn_workspace *w,
                           const mhai_attn_block *block, mhai_attn_strip *s);

/* Write the sums over rows, and the average over heads if it needs a pass. */
MHA_NODISCARD mha_status mhai_attn_run_sums(mha_context *context, const mhai_attn_walk *walk,
                                            const mhai_attn_kept *kept);

#endif
