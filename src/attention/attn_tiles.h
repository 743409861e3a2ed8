/* The parts of every pass of the tiled path: one worker's memory, its chunk of query rows, its
 * current key block, a strip of rows against that block, and two walks over them:
 *
 *   mhai_attn_walk_chunk  row-major: the rows of a chunk against all their key blocks, in order
 *   mhai_attn_walk_keys   key-major: a key block against all rows of its key/value head, in order
 *
 * A pass is a visitor. The walk calls its strip() for each strip against each block, with the
 * block's keys packed (w->k), its values packed if requested (w->v), and the strip's queries
 * (strip->tile.q) and mask ready for a kernel. Each sum over a walk has one owner and one order, so
 * no bit depends on threads or on how rows are divided into chunks. */
#ifndef MHAI_ATTN_TILES_H
#define MHAI_ATTN_TILES_H

#include "attention/attn_pages.h"
#include "attention/attn_plan.h"
#include "base/checked.h"

/* One worker's memory. Row arrays have an entry for each row of the chunk. */
typedef struct mhai_attn_workspace {
    float *q, *o, *m, *l;  /* [rows][D], [rows][Dv padded], [rows] twice */
    float *k, *v, *s;      /* packed block, strip of scores */
    int64_t *head, *query; /* [rows] indices h and t */
    mhai_attn_range *limit,
        *window;        /* [rows] keys within causal and length; and also within the window */
    uint8_t *bad_query; /* [rows] not finite */
    uint8_t *bad_key, *bad_value, *visible;
    uint8_t *keep;            /* [MHAI_MAX_ROWS][MHAI_KEY_BLOCK] composed mask of a strip */
    float *relative;          /* terms by distance, a table for each run of rows of one head */
    int64_t *relative_at;     /* [rows] index in it of a row's entry for the block's key 0 */
    float *shaw_keys;         /* [rows][2k+1 padded] q times the table, in units of scores */
    float *shaw_values;       /* [rows][2k+1 padded] sums of p by distance */
    float *shaw_panels;       /* a packed table */
    double *entropy;          /* [rows] statistics in progress */
    float *largest, *log_sum; /* [rows], log_sum is log2 of l */
    int64_t *largest_key;     /* [rows] */
    double *columns;          /* [MHAI_KEY_BLOCK] sums over rows */
    float *scores;            /* [key blocks][scored_rows][MHAI_SCORE_STRIDE] */
    mhai_attn_range *scored;  /* [key blocks][scored_rows] keys of the block with a score */
    mhai_run *key_runs,
        *value_runs;         /* [MHAI_BLOCK_RUNS + MHAI_RUNS_AHEAD] runs of the block, with pages */
    float *run;              /* [MHAI_RUN][Dv padded] values as floats, with pages */
    unsigned char *gathered; /* memory for runs that span two pages */
    size_t bytes;
} mhai_attn_workspace;

/* Rows of some heads of one key/value head. With i = first + r, row r belongs to head
 * head0 + i / width and is query i % width of `width` queries: from query0 on, or those of a
 * list. */
typedef struct mhai_attn_chunk {
    mhai_attn_sequence seq;
    int64_t hk;
    int64_t first, rows;
    int64_t head0, query0, width;
    const int64_t *list;    /* rows of the tensors, instead of query0; NULL: none */
    mhai_attn_range limit;  /* hull of the rows' limits */
    mhai_attn_range window; /* hull of the rows' windows that are not empty */
    bool global_query;      /* the window does not limit every row */
    bool bad_query;         /* a query is not finite */
} mhai_attn_chunk;

/* A key block, and its properties for the whole chunk. Keys are numbered from the block's first. */
typedef struct mhai_attn_block {
    int64_t key; /* its first key in the sequence */
    int keys;
    int exempt_begin, exempt_end; /* hull of the keys exempt from the window */
    bool exempt_solid;            /* every key of that hull is exempt */
    int32_t least_document, greatest_document;
    int pack_begin, pack_end; /* keys that a row of the chunk may see; begin is a multiple of 32 */
    bool packed, bad;         /* already packed; has a non-finite element */
} mhai_attn_block;

/* A strip against a block: the arguments of a kernel call. */
typedef struct mhai_attn_strip {
    mhai_tile tile;
    mhai_tile_mask mask;
    mhai_poison poison;
    int64_t first; /* its first row in the chunk */
    bool masked;   /* the tile needs the mask */
} mhai_attn_strip;

/* The data shared by all strips of a pass, or of several passes over one problem. */
typedef struct mhai_attn_walk {
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    mhai_attn_tiling tiling;
    const int64_t *first_item; /* [B + 1] first item of each sequence; NULL: all have the same
                                  number */
    unsigned char *memory;
    size_t worker_bytes;
    bool pairs;           /* bf16 kernels multiply by pairs (kernels.h) */
    mhai_dropout dropout; /* the fields that all strips share */
} mhai_attn_walk;

enum {
    MHAI_WALK_VALUES = 1 << 0, /* pack values too */
    MHAI_WALK_ALL = 1 << 1     /* row-major: also visit tiles that see nothing, up to column S,
                                  with tile.begin == tile.end; only the strip's rows are set then */
};

typedef struct mhai_attn_visitor {
    unsigned options;
    void *user;
    /* Called after a chunk's rows are placed and its queries loaded. m and l are those of no
     * keys (or the sink); a later pass sets the final ones. The callback may set bad_query. NULL:
     * no call. */
    void (*chunk)(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w);
    void (*strip)(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                  const mhai_attn_block *block, mhai_attn_strip *strip);
    /* Row-major, for a chunk of few rows: process all strips that see the block at once, reading
     * keys and values in place. Returns false if it cannot; strip() is then called. NULL: no
     * call. */
    bool (*rows)(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                 const mhai_attn_block *block, mhai_attn_strip *strips, int count);
} mhai_attn_visitor;

/* ---- attn_rows.c: memory and rows ------------------------------------------------------------ */

int64_t mhai_attn_padded_values(const mhai_attn_problem *p); /* Dv in whole panels */
int64_t mhai_attn_padded_shaw(const mha_tensor *table);      /* likewise its rows; 0 if absent */

/* A workspace of the tiling's sizes in memory; with memory NULL only its size is computed. */
mhai_attn_workspace mhai_attn_lay_out(const mhai_attn_problem *p, const mhai_attn_tiling *tiling,
                                      int tile_rows, unsigned char *memory);
mhai_attn_workspace mhai_attn_workspace_of(const mhai_attn_walk *walk, int worker);

/* Set positions and visible keys of the chunk's rows; then load their scaled queries, and the
 * products with Shaw's tables. */
void mhai_attn_place_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w);
void mhai_attn_load_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w);

/* out[r] = (first ? 0 : out[r]) + x[r] W for rows of a chunk. W is packed; each product is one
 * chain over inner. */
void mhai_attn_multiply_rows(const mhai_kernels *kernels, int64_t rows, int64_t inner, int64_t cols,
                             const float *x, int64_t x_stride, const float *w, int64_t panel_stride,
                             bool first, float *out, int64_t out_stride);

/* The factor of queries. With a cap, scores are converted to units of log2 e after the cap. */
float mhai_attn_factor(const mhai_attn_problem *p);
/* The log of a row's denominator, from m in units of log2 e and l. */
float mhai_attn_lse(float m, float l);

/* Shaw's values: update after a tile, and finish when all tiles are done. */
void mhai_attn_add_shaw_values(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               const mhai_attn_strip *strip);
void mhai_attn_finish_shaw_values(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                                  mhai_attn_workspace *w);

/* ---- attn_tiling.c --------------------------------------------------------------------------- */

/* Set the tiling, kernels, scratch and their part of the account, for the problem in the plan. */
MHA_NODISCARD mha_status mhai_attn_divide(const mha_context *context, mhai_attn_plan *plan);

/* Whether chunks of this many rows may process blocks of keys independently: attn_split.c supports
 * every feature of the problem. */
bool mhai_attn_takes_apart(const mhai_attn_problem *p, int64_t rows, int tile_rows);

/* ---- attn_walk.c ----------------------------------------------------------------------------- */

/* Chunks of a key/value head with this many queries. */
static inline int64_t mhai_attn_chunks_of(const mhai_attn_problem *p, int64_t queries,
                                          int64_t chunk_rows)
{
    return chunk_rows > 0 ? mhai_ceil_div(p->group * queries, chunk_rows) : 0;
}

/* The chunk of an item < tiling.items: a run of rows of one key/value head. */
mhai_attn_chunk mhai_attn_chunk_of_item(const mhai_attn_walk *walk, int64_t item);

/* Chunks of this few rows read keys and values in place instead of packing them. */
bool mhai_attn_by_rows(const mhai_attn_problem *p, int64_t rows, int64_t tile_rows);

/* Rows of the tallest strip of a chunk of this many rows; an upper bound where a pattern cuts
 * strips. */
int64_t mhai_attn_strip_rows(const mhai_attn_problem *p, int64_t chunk_rows, int64_t tile_rows);

/* Prepare a plan's walk: allocate the index of ragged items and the workers' memory from the
 * context's scratch. */
MHA_NODISCARD mha_status mhai_attn_walk_begin(mha_context *context, const mhai_attn_plan *plan,
                                              mhai_attn_walk *walk);

/* Row-major walk of a chunk whose seq, hk, rows and positions are set. */
void mhai_attn_walk_chunk(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_visitor *visitor);

/* Row-major: a loaded chunk against the block at key only. */
void mhai_attn_walk_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          mhai_attn_workspace *w, int64_t key, const mhai_attn_visitor *visitor);

/* The arguments that a visitor's rows() passes to the kernels. They use the memory of the packed
 * block: that of keys for a panel, that of values for the sums, and after these the scores of
 * several strips. */
mhai_tile_rows mhai_attn_rows_of(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                 const mhai_attn_workspace *w, const mhai_attn_block *block,
                                 int strips);

/* Fill the tables of terms by distance for a chunk's rows against a block; and set all terms of
 * a strip's scores except visibility. */
void mhai_attn_fill_relative(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                             const mhai_attn_workspace *w, const mhai_attn_block *block);
void mhai_attn_set_score_terms(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               mhai_attn_strip *s);

/* Key-major: items are blocks of MHAI_KEY_BLOCK keys of the key/value heads of all sequences.
 * Each item walks all rows that see the block, by head and then by query, in chunks of any
 * division. A block that begins beyond the sequence's keys is skipped. mhai_attn_key_items():
 * number of items per key/value head. */
int64_t mhai_attn_key_items(const mhai_attn_walk *walk);
typedef struct mhai_attn_key_item {
    mhai_attn_sequence seq;
    int64_t hk, key;
} mhai_attn_key_item;
mhai_attn_key_item mhai_attn_key_item_at(const mhai_attn_walk *walk, int64_t item);
void mhai_attn_walk_keys(const mhai_attn_walk *walk, const mhai_attn_key_item *item,
                         mhai_attn_workspace *w, const mhai_attn_visitor *visitor);

/* The dropout of a call, and of a strip. */
mhai_dropout mhai_attn_dropout_of(const mhai_attn_problem *p);
void mhai_attn_set_dropout(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                           const mhai_attn_workspace *w, const mhai_attn_block *block,
                           const mhai_attn_strip *strip, mhai_dropout *dropout);

/* ---- attn_one_block.c ------------------------------------------------------------------------ */

/* Whether all keys of a sequence are one block, with no features except causal, lengths, a dense
 * mask and a bias. */
bool mhai_attn_is_one_block(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* Compute a chunk of such a problem, including its outputs. Returns false if an element is not
 * finite; a walk then recomputes the chunk. fetch: the data read next. */
MHA_NODISCARD bool mhai_attn_one_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                                       const mhai_attn_workspace *w, mhai_fetch *fetch);

/* ---- attn_mask.c ----------------------------------------------------------------------------- */

/* The block at key of a chunk whose limit is set. */
mhai_attn_block mhai_attn_block_at(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                   int64_t key);

/* False if the window and its exemptions hide the whole block from the whole chunk. */
bool mhai_attn_block_seen(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_block *block);

/* Fill in the strip's ranges and masks; false if no row sees a key of the block. */
bool mhai_attn_mask_strip(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w, const mhai_attn_block *block,
                          mhai_attn_strip *strip);

/* ---- attn_tiled.c ---------------------------------------------------------------------------- */

/* An item in progress, and the data to read after its current key block. */
typedef struct mhai_attn_item {
    const mhai_attn_walk *walk;
    int64_t next;    /* the worker's next item, if known; otherwise the number of items */
    int64_t planned; /* the key block at whose end the prefetch happens */
    mhai_fetch fetch;
} mhai_attn_item;

/* The forward pass of a chunk: from o = 0, block by block. */
mhai_attn_visitor mhai_attn_forward_visitor(mhai_attn_item *item);

/* Write o and lse of a chunk whose walk is done. */
void mhai_attn_write_rows(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w);

/* ---- attn_outputs.c, attn_sums.c: passes after the forward ----------------------------------- */

/* The final m and l of every row, [batch][H][rows of q]; in scratch if a later pass needs them. */
typedef struct mhai_attn_kept {
    float *m, *l;
} mhai_attn_kept;

bool mhai_attn_needs_kept(const mhai_attn_problem *p);
void mhai_attn_keep_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                         const mhai_attn_chunk *c, const mhai_attn_workspace *w);
void mhai_attn_restore_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                            const mhai_attn_chunk *c, const mhai_attn_workspace *w);

/* Write probabilities, scores and the statistics of rows. */
void mhai_attn_run_outputs(mha_context *context, const mhai_attn_walk *walk,
                           const mhai_attn_kept *kept);

/* The average over heads, if the forward pass computes it. An item is a run of queries of one
 * sequence, with all heads. forward() processes a chunk of these rows, leaves their final m and
 * l, and keeps their scores with mhai_attn_keep_scores(). */
typedef void mhai_attn_forward_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w);
int64_t mhai_attn_average_items(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);
void mhai_attn_run_scored(const mhai_attn_walk *walk, int64_t item, int worker,
                          mhai_attn_forward_chunk *forward, void *user);
void mhai_attn_keep_scores(const mhai_attn_walk *walk, const mhai_attn_workspace *w,
                           const mhai_attn_block *block, mhai_attn_strip *s);

/* Write the average over heads, if it needs a pass, and sums over rows. */
MHA_NODISCARD mha_status mhai_attn_run_sums(mha_context *context, const mhai_attn_walk *walk,
                                            const mhai_attn_kept *kept);

#endif
