/* What all passes of the tiled path are made of: one worker's memory, the chunk of query rows it
 * works on, the key block at hand, a strip of rows against that block, and two walks over them:
 *
 *   mhai_attn_walk_chunk  row-major: the rows of a chunk against all their key blocks, in order
 *   mhai_attn_walk_keys   key-major: a key block against all rows of its key/value head, in order
 *
 * A pass is a visitor: its strip() is called for each strip against each block, with the block's
 * keys packed (w->k), its values if asked for (w->v), the strip's queries (strip->tile.q) and mask
 * ready for a kernel. What is summed over a walk has one owner and one order, so the bits depend
 * neither on threads nor on how rows are cut into chunks. */
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
    int64_t *relative_at;     /* [rows] where in it a row's entry for the block's key 0 is */
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
    unsigned char *gathered; /* room for runs that span two pages */
    size_t bytes;
} mhai_attn_workspace;

/* Rows of some heads of one key/value head: with i = first + r, row r is head head0 + i / width and
 * the (i % width)-th of `width` queries: query0 and on, or those of a list. */
typedef struct mhai_attn_chunk {
    mhai_attn_sequence seq;
    int64_t hk;
    int64_t first, rows;
    int64_t head0, query0, width;
    const int64_t *list;    /* NULL, or rows of the tensors; query0 is not read then */
    mhai_attn_range limit;  /* hull of the rows' limits */
    mhai_attn_range window; /* hull of the rows' windows that are not empty */
    bool global_query;      /* the window does not limit every row */
    bool bad_query;         /* a query is not finite */
} mhai_attn_chunk;

/* A key block, and its properties for the whole chunk. Keys count from the block's first. */
typedef struct mhai_attn_block {
    int64_t key; /* its first key in the sequence */
    int keys;
    int exempt_begin, exempt_end; /* hull of the keys that the window leaves */
    bool exempt_solid;            /* every key of that hull is visible within the window */
    int32_t least_document, greatest_document;
    int pack_begin, pack_end; /* keys that a row of the chunk may see; begin is a multiple of 32 */
    bool packed, bad;         /* already packed; with a non-finite element */
} mhai_attn_block;

/* A strip against a block: the arguments of a kernel call. */
typedef struct mhai_attn_strip {
    mhai_tile tile;
    mhai_tile_mask mask;
    mhai_poison poison;
    int64_t first; /* row of the chunk */
    bool masked;   /* the tile needs the mask */
} mhai_attn_strip;

/* One pass, or several over the same problem; what all of them share. */
typedef struct mhai_attn_walk {
    const mhai_attn_problem *p;
    const mhai_kernels *kernels;
    mhai_attn_tiling tiling;
    const int64_t *first_item; /* [B + 1] of each sequence; NULL: all have the same number */
    unsigned char *memory;
    size_t worker_bytes;
    bool pairs;           /* of bf16 arithmetic (kernels.h) */
    mhai_dropout dropout; /* what all strips share */
} mhai_attn_walk;

enum {
    MHAI_WALK_VALUES = 1 << 0, /* pack values too */
    MHAI_WALK_ALL = 1 << 1     /* row-major: also visit tiles that see nothing, up to column S,
                                  with tile.begin == tile.end; only the strip's rows are set then */
};

typedef struct mhai_attn_visitor {
    unsigned options;
    void *user;
    /* Called after a chunk's rows are placed and its queries loaded; m and l are those of no
     * keys (or the sink). A later pass sets the final ones; bad_query may be set. NULL: no call. */
    void (*chunk)(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w);
    void (*strip)(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                  const mhai_attn_block *block, mhai_attn_strip *strip);
    /* Row-major, of a chunk of few rows: all its strips that see something of the block at once,
     * with keys and values as they lie; false if it cannot, and strip() is to follow. NULL: never
     * tried. */
    bool (*rows)(void *user, const mhai_attn_chunk *c, mhai_attn_workspace *w,
                 const mhai_attn_block *block, mhai_attn_strip *strips, int count);
} mhai_attn_visitor;

/* ---- attn_rows.c: memory and rows ------------------------------------------------------------ */

int64_t mhai_attn_padded_values(const mhai_attn_problem *p); /* Dv in whole panels */
int64_t mhai_attn_padded_shaw(const mha_tensor *table);      /* likewise its rows; 0 without it */

/* A workspace of the tiling's sizes in memory; with memory NULL only its size is computed. */
mhai_attn_workspace mhai_attn_lay_out(const mhai_attn_problem *p, const mhai_attn_tiling *tiling,
                                      int tile_rows, unsigned char *memory);
mhai_attn_workspace mhai_attn_workspace_of(const mhai_attn_walk *walk, int worker);

/* Set positions and visible keys of the chunk's rows; then load their queries, scaled, and the
 * products with Shaw's tables. */
void mhai_attn_place_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w);
void mhai_attn_load_rows(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w);

/* out[r] = (first ? 0 : out[r]) + x[r] W for rows of a chunk, W packed; each product is one chain over inner. */
void mhai_attn_multiply_rows(const mhai_kernels *kernels, int64_t rows, int64_t inner, int64_t cols,
                             const float *x, int64_t x_stride, const float *w, int64_t panel_stride,
                             bool first, float *out, int64_t out_stride);

/* The factor of queries; with a cap, scores get the unit log2 e after it. */
float mhai_attn_factor(const mhai_attn_problem *p);
/* The log of a row's denominator, from m in units of log2 e and l. */
float mhai_attn_lse(float m, float l);

/* Shaw's values: after a tile, and when all tiles are done. */
void mhai_attn_add_shaw_values(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               const mhai_attn_strip *strip);
void mhai_attn_finish_shaw_values(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                                  mhai_attn_workspace *w);

/* ---- attn_tiling.c --------------------------------------------------------------------------- */

/* Tiling, kernels, scratch and the account's part of them, from the problem in the plan. */
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

/* A plan's walk: index of ragged items and the workers' memory, from the context's scratch. */
MHA_NODISCARD mha_status mhai_attn_walk_begin(mha_context *context, const mhai_attn_plan *plan,
                                              mhai_attn_walk *walk);

/* Row-major walk of a chunk whose seq, hk, rows and positions are set. */
void mhai_attn_walk_chunk(const mhai_attn_walk *walk, mhai_attn_chunk *c, mhai_attn_workspace *w,
                          const mhai_attn_visitor *visitor);

/* Row-major, a loaded chunk against the one block at key. */
void mhai_attn_walk_block(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          mhai_attn_workspace *w, int64_t key, const mhai_attn_visitor *visitor);

/* What a visitor's rows() hands to the kernels. The packed block's memory is free then: keys' for a
 * panel, values' for the sums, and behind them the scores of several strips. */
mhai_tile_rows mhai_attn_rows_of(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                                 const mhai_attn_workspace *w, const mhai_attn_block *block,
                                 int strips);

/* The tables of terms by distance for a chunk's rows against a block; and everything that goes with a
 * strip's scores, apart from what its rows see. */
void mhai_attn_fill_relative(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                             const mhai_attn_workspace *w, const mhai_attn_block *block);
void mhai_attn_set_score_terms(const mhai_attn_problem *p, const mhai_attn_chunk *c,
                               const mhai_attn_workspace *w, const mhai_attn_block *block,
                               mhai_attn_strip *s);

/* Key-major: items are blocks of MHAI_KEY_BLOCK keys of the key/value heads of all sequences. Each
 * walks all rows that see any of it, head after head and query after query, in chunks that are cut
 * anywhere. Where the block begins beyond the sequence's keys nothing is visited. mhai_attn_key_items():
 * of each key/value head. */
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

/* All keys of a sequence are one block, under nothing but causal, lengths, a dense mask and a bias.
 */
bool mhai_attn_is_one_block(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);

/* A chunk of such a problem, outputs and all; false if something is not finite: nothing has been
 * done then that a walk would not do again. fetch: what is read next. */
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

/* An item in progress, and what will be read after its current key block. */
typedef struct mhai_attn_item {
    const mhai_attn_walk *walk;
    int64_t next;    /* the worker's next item, if known; items: none */
    int64_t planned; /* the key block at whose end the prefetch is made */
    mhai_fetch fetch;
} mhai_attn_item;

/* The forward pass of a chunk: from o = 0, block by block. */
mhai_attn_visitor mhai_attn_forward_visitor(mhai_attn_item *item);

/* o and lse of a chunk whose walk is done. */
void mhai_attn_write_rows(const mhai_attn_walk *walk, const mhai_attn_chunk *c,
                          const mhai_attn_workspace *w);

/* ---- attn_outputs.c, attn_sums.c: passes after the forward ----------------------------------- */

/* The final m and l of every row, [batch][H][rows of q]; from scratch if a later pass needs them.
 */
typedef struct mhai_attn_kept {
    float *m, *l;
} mhai_attn_kept;

bool mhai_attn_needs_kept(const mhai_attn_problem *p);
void mhai_attn_keep_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                         const mhai_attn_chunk *c, const mhai_attn_workspace *w);
void mhai_attn_restore_rows(const mhai_attn_kept *kept, const mhai_attn_problem *p,
                            const mhai_attn_chunk *c, const mhai_attn_workspace *w);

/* Probabilities, scores and the statistics of rows. */
void mhai_attn_run_outputs(mha_context *context, const mhai_attn_walk *walk,
                           const mhai_attn_kept *kept);

/* The average over heads, if it comes with the forward pass: an item of it is a run of queries of
 * one sequence, and every head of each. forward() does a chunk of their rows, the scores of which
 * are kept by mhai_attn_keep_scores(), and leaves their final m and l. */
typedef void mhai_attn_forward_chunk(void *user, mhai_attn_chunk *c, mhai_attn_workspace *w);
int64_t mhai_attn_average_items(const mhai_attn_problem *p, const mhai_attn_tiling *tiling);
void mhai_attn_run_scored(const mhai_attn_walk *walk, int64_t item, int worker,
                          mhai_attn_forward_chunk *forward, void *user);
void mhai_attn_keep_scores(const mhai_attn_walk *walk, const mhai_attn_workspace *w,
                           const mhai_attn_block *block, mhai_attn_strip *s);

/* Average over heads if it takes a pass, sums over rows. */
MHA_NODISCARD mha_status mhai_attn_run_sums(mha_context *context, const mhai_attn_walk *walk,
                                            const mhai_attn_kept *kept);

#endif
