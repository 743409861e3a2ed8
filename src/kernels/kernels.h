/* The kernels' contracts: written once in tmpl/, compiled once per instruction set in isa/, chosen
 * once per context. Kernels trust their arguments; the layers above check.
 *
 * Panels. Whatever multiplies from the right (keys, values, weights) is packed into panels of
 * MHAI_PANEL columns, the inner dimension outermost: panel p holds element [i][j], j < 32, at
 * p * inner * 32 + i * 32 + j. All instruction sets use the same panels. */
#ifndef MHAI_KERNELS_H
#define MHAI_KERNELS_H

#include <multihead/base.h>

enum {
    MHAI_PANEL = 32,       /* columns of a panel */
    MHAI_KEY_BLOCK = 512,  /* keys per softmax step; it and the next constant are part of the
                              bits contract */
    MHAI_GEMM_BLOCK = 128, /* inputs whose products are summed before they are added to the
                              output */
    MHAI_MAX_ROWS = 16,    /* maximum of rows over all instruction sets */
    MHAI_LEAST_ROWS = 12   /* number of rows that every instruction set accepts */
};

/* How a cache stores keys and values: a run is MHAI_RUN positions of a head, the first a
 * multiple of MHAI_RUN. All runs of a call have one type. */
enum { MHAI_RUN = 16, MHAI_BLOCK_RUNS = MHAI_KEY_BLOCK / MHAI_RUN };
enum { MHAI_BAD_POWER = 127 }; /* all 16 elements are NaN */
typedef struct mhai_run {
    const void *at;     /* keys are transposed, [head_dim][16]; values are rows, [16][value_dim] */
    const float *scale; /* MHA_I8: [16], an element is its number times the position's; the product
                           is exact */
    const int8_t *powers; /* keys of MHA_I8: [head_dim], replaces scale; an element is its number
                             times 2^powers[c]; from -126 to 121, or MHAI_BAD_POWER: a non-finite
                             element invalidates the run. NULL: scale, as for all other runs */
    mha_dtype type;       /* MHA_F32, MHA_F16, MHA_BF16 or MHA_I8 */
} mhai_run;

/* Copy a matrix into panels, and record the source rows that hold a non-finite element; if
 * requested, those elements are packed as 0, so that packed data is finite. */
typedef struct mhai_pack {
    float *out;
    const void *in; /* [rows, cols], cols contiguous */
    mha_dtype type; /* of in: MHA_F32, which is 0, MHA_F16 or MHA_BF16; likewise below */
    int64_t stride; /* of rows, in elements */
    int64_t rows, cols;
    uint8_t *bad;  /* [rows], set to 1 if a row is not finite, else 0; NULL: not requested, and
                      elements are packed unchanged */
    bool *any_bad; /* set to true if any row is not finite; never cleared */
    const mhai_run *runs; /* of rows 0 .. rows - 1, for pack_panels as keys and for pack_values as
                             values; in, type and stride are not read then. NULL: rows */
    const float *scale;   /* MHA_I8 (runs only): [rows] */
    bool whole;           /* pack_panels: the whole row becomes 0 */
    bool half; /* a last panel with at most 16 columns needs no zeros beyond column 16: for keys,
                  which become columns, and for values of exactly 16 columns */
} mhai_pack;
/* pack_panels: rows become columns (keys, weights): out [ceil(rows/32)][cols][32], zero-padded.
 * pack_coded: columns column .. column + columns of coded rows, at most MHAI_GEMM_BLOCK: panel
 *             [columns][32]. column is a multiple of that, columns of rows->run.
 * pack_values: rows stay inner: out [ceil(cols/32)][MHAI_KEY_BLOCK][32], rows <= MHAI_KEY_BLOCK;
 *              columns are zero-padded, rows beyond `rows` up to the next multiple of 16 too. */

/* scale_row: out[i] = in[i] * factor; *finite is set to whether every in[i] is finite; if not,
 * the whole row becomes 0. scale_rows: the same for rows of `in`, one after the other in `out`; the
 * rest of mhai_pack is not read. */

/* Non-finite keys, values and queries that a tile must handle (attention.h, special values). */
typedef struct mhai_poison {
    const uint8_t *bad_query; /* [rows of the strip] */
    const uint8_t *bad_key;   /* [MHAI_KEY_BLOCK] */
    const uint8_t *bad_value; /* [MHAI_KEY_BLOCK] */
    const void *values;       /* unpacked value of the block's key 0 */
    mha_dtype value_type;
    int64_t value_stride;       /* of keys, in elements */
    const mhai_run *value_runs; /* replaces these three; NULL: none */
    int64_t value_dim;
    uint8_t *visible; /* [MHAI_MAX_ROWS][MHAI_KEY_BLOCK], working memory */
} mhai_poison;

/* The changes to a strip's scores before the softmax, if there are any. Pointers are per row,
 * since the rows of a strip may come from several heads; NULL means absent. In this order:
 *
 *   s += shaw[clip(shaw_center + j, 0, shaw_last)]      in units of the score before the cap
 *   s  = softcap log2 e tanh(s / softcap)               q then lacks the factor log2 e
 *   s += (bias[j * bias_stride] + relative[j]) log2 e   a bias of -inf drops the key
 *   s  = -inf                                           outside begin .. end and outside the runs,
 *                                                       and where keep[j * keep_stride] is 0
 */
enum { MHAI_MAX_RUNS = MHAI_KEY_BLOCK / MHAI_PANEL / 2 };
typedef struct mhai_tile_mask {
    int runs; /* of panels that any row sees, with gaps between runs; 0: one run, the tile */
    int run_begin[MHAI_MAX_RUNS], run_end[MHAI_MAX_RUNS]; /* begin is a multiple of 32, and end
                                                             too, except the tile's */
    int begin[MHAI_MAX_ROWS], end[MHAI_MAX_ROWS];         /* keys of the block, begin <= end */
    const uint8_t *keep[MHAI_MAX_ROWS];                   /* at the block's key 0 */
    int64_t keep_stride;                                  /* of keys */
    const void *bias[MHAI_MAX_ROWS];
    mha_dtype bias_type;
    int64_t bias_stride;
    const float *relative[MHAI_MAX_ROWS];
    const float *shaw[MHAI_MAX_ROWS];
    int64_t shaw_center[MHAI_MAX_ROWS]; /* table row of the block's key 0, before clipping */
    int64_t shaw_last;
    float softcap;             /* 0: none */
    const mhai_poison *poison; /* NULL: all finite */
} mhai_tile_mask;

/* Dropout of a strip's probabilities after they are summed: p becomes 0 where the generator's word
 * for (row, key) is below threshold, and p * scale elsewhere. */
typedef struct mhai_dropout {
    uint32_t seed[2];
    uint32_t threshold;
    float scale;
    int64_t key; /* the block's key 0 */
    uint32_t query[MHAI_MAX_ROWS], head[MHAI_MAX_ROWS], batch;
} mhai_dropout;

/* Statistics of tile_probabilities over the keys of the tile: -sum p log p in nats (with -log p
 * from the score, so that small p keep their digits), and the largest p. Undefined for a row
 * whose sum is NaN. */
typedef struct mhai_tile_statistics {
    const float *log_sum; /* [rows] in: log2 of l; NULL: no entropy requested */
    float entropy[MHAI_MAX_ROWS], largest[MHAI_MAX_ROWS];
} mhai_tile_statistics;

/* Rows of head_dim floats that will be read soon, prefetched while a tile's scores are computed:
 * 16 rows per panel, one cache line after each product. */
enum { MHAI_FETCH_RUNS = 3 };
typedef struct mhai_fetch {
    int run; /* the current one */
    bool l2; /* prefetch to L2 only: with short blocks, later data would evict the current
                working set from L1, especially if its rows are pages apart and map to the same
                lines */
    struct mhai_fetch_run {
        const float *at;
        int64_t stride, rows; /* rows that are not prefetched yet */
    } runs[MHAI_FETCH_RUNS];
} mhai_fetch;

/* A strip of query rows against one key block. Scores are in units of log2 e: q is already
 * multiplied by scale * log2 e. */
typedef struct mhai_tile {
    int rows;       /* 1 .. the table's tile_rows */
    int begin, end; /* keys of the block that any row sees; begin is a multiple of 32 */
    int64_t head_dim;
    int64_t value_panels, value_dim; /* columns of o beyond value_dim are undefined */
    const float *q;                  /* [rows][head_dim], contiguous */
    const float *k;                  /* panels of the block: [16][head_dim][32] */
    const float *v;                  /* panels of the block: [value_panels][512][32] */
    float *s;     /* [rows][MHAI_SCORE_STRIDE], working memory; probabilities on return */
    float *o;     /* [rows][value_panels * 32], sum of p v, in and out */
    float *m, *l; /* [rows], running maximum (log2 units) and sum, in and out */
    const mhai_tile_mask *mask;  /* NULL: every row sees begin .. end, and scores are not changed */
    const mhai_dropout *dropout; /* NULL: none; not used by tile_probabilities */
    float *alpha;                /* [rows] out, the factor a; NULL: not requested */
    float *scores; /* [rows][MHAI_SCORE_STRIDE] out of tile_forward: masked scores from begin to
                      end; NULL: not requested */
    mhai_tile_statistics *statistics; /* out, of tile_probabilities only; NULL: not requested */
    mhai_fetch *fetch;                /* tile_forward: advanced with each panel; NULL: nothing */
    float factor;                     /* bf16_forward: the factor of scores, which its q lacks */
    bool pairs;                       /* bf16_forward: as for the packing of its q, k and v */
} mhai_tile;
enum { MHAI_SCORE_STRIDE = MHAI_KEY_BLOCK + 16 };
/* tile_forward: one step of the online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, alg.
 * 1): m' = max(m, max_s score), p = 2^(score - m'), a = 2^(m - m'), l = a l + sum p, o = a o + p V.
 * On return, s is undefined between runs.
 * tile_probabilities: with the final m and l, s[r][begin .. end) = 2^(score - m) / l.
 * tile_masked_scores: s[r][begin .. end) = the score in natural units, -inf where it is hidden.
 * tile_drop: dropout of s[r][begin .. end), which holds probabilities. */

/* add_probabilities: out[j] += 2^(s[j] - m) / l, j < n, as tile_probabilities computes them from
 * s. */

/* Keys and values of a block that are not packed, for up to MHAI_ROWS_TILES strips; value_dim is a
 * multiple of 32. */
enum { MHAI_ROWS_TILES = 10, MHAI_RUNS_AHEAD = 11 };
typedef struct mhai_tile_rows {
    const float *k, *v; /* first row: the block's key 0 */
    int64_t k_stride, v_stride;
    const mhai_run *key_runs, *value_runs; /* of the block and MHAI_RUNS_AHEAD more, which are
                                              prefetched; replaces k and v. NULL: rows */
    float *run;                            /* [16][value_panels * 32], working memory with runs */
    int keys;                              /* readable rows of the block */
    int64_t readable; /* readable keys and values from there on, including those of later blocks */
    int tiles;        /* each with its own s */
    float *panel;     /* [head_dim][32], working memory, with runs too */
    float *o;         /* [rows of all tiles][value_panels * 32], likewise */
} mhai_tile_rows;
/* tile_rows_forward: tile_forward of each tile from such rows (no poison; k and v of the tiles
 * are not read). *done false: an element is not finite, visible or not, and only working memory
 * has changed. */

/* The same in parts, for blocks that are processed independently (no dropout, no alpha):
 * tile_rows_scores: s = the scores, masked, and m = the maximum of those.
 * tile_rows_values: from s of tile_rows_scores and the maximum m up to and including the block:
 * s = p, l = sum p, rows->o = p V.
 * join_row: with a = 2^(old_max - max): l = a l + sum, o = a o + sums; n is a multiple of 32. */

/* A mask byte or a bias per pair, from head 0, query 0 and key 0 on; strides in elements. */
typedef struct mhai_dense {
    const void *at; /* NULL: none */
    mha_dtype type;
    int64_t head, row, key;
} mhai_dense;

/* Rows of queries against all keys of a sequence, which are one block, with at most a causal mask,
 * a dense mask and a bias: row r is query (first + r) % queries of head (first + r) / queries. All
 * f32; head_dim and value_dim are multiples of 16. */
typedef struct mhai_one_block {
    int64_t first, rows, queries;
    int keys;               /* <= MHAI_KEY_BLOCK */
    const float *q, *k, *v; /* query 0 of head 0; key 0 */
    int64_t q_head, q_row;  /* strides, in elements */
    int64_t k_row, v_row;
    float *o;
    int64_t o_head, o_row;
    int64_t head_dim, value_dim;
    float factor; /* of q: scale * log2 e */
    bool causal;
    int64_t offset; /* position of query 0 */
    mhai_dense keep, bias;
    float *m, *l;       /* [rows] out; or NULL */
    float *panels;      /* [16][head_dim][32], working memory, as the next three */
    float *values;      /* [value_dim / 32][512][32]; NULL: values are read in place */
    float *scaled;      /* of a strip: [rows][head_dim] */
    float *s;           /* likewise: [rows][MHAI_SCORE_STRIDE] */
    mhai_fetch *fetch;  /* advanced with each panel; not NULL */
    bool fetch_outputs; /* rows of o may be far apart */
} mhai_one_block;
/* one_block_forward: tile_forward of all strips, and finish_row of the results. *done false: an
 * element is not finite, visible or not; then o, m and l are undefined, and the caller computes
 * the rows in tiles. */

/* bf16 arithmetic: elements become the nearest bf16, and 0 below 2^-50. Only these functions
 * know the memory layout, which is no larger than that of floats. pairs, the same for all calls:
 * multiply pairs by one instruction; the results have the same bits.
 * bf16_row: a row in place; *fits false: an element is not finite, or is 2^59 or more, and the row
 *           becomes 0.
 * bf16_keys: pack_panels, of bf16, with `whole`; a key with an element of 2^59 or more also counts
 *            as not finite. The rest of a last panel of at most 16 keys is undefined.
 * bf16_panel: bf16_keys of rows that are floats in panels already, in out; in is not read.
 * bf16_values: pack_values, of bf16; out is the address of key 0, and in that of key `first`, a
 *              multiple of 32.
 * bf16_forward: tile_forward without runs, alpha, scores and fetch; leaves no probabilities in s. */

/* finish_row: out[i] = in[i] / sum * gate, or 0 if sum is 0; rounded to f32, then to type. */

/* A strip of rows times packed weights, one block of inputs:
 *   out[r, :] = (first ? bias : from ? from[r, :] : out[r, :]) + x[r, 0 .. inner) W */
typedef struct mhai_gemm {
    int rows;
    int64_t inner;  /* inputs of this block, one chain; a linear layer uses MHAI_GEMM_BLOCK */
    int64_t panels; /* panels to compute */
    int64_t cols;   /* outputs in them; the last panel may be partial */
    const float *x; /* [rows][x_stride]; transposed: [inner][x_stride] */
    int64_t x_stride;
    bool transposed;
    bool pairs;           /* of bf16, which inner counts; not transposed, gathered */
    float *gather;        /* [MHAI_GATHER] working memory, into which x is copied first; or NULL */
    const float *w;       /* first panel at this block's first input */
    int64_t panel_stride; /* elements between panels */
    const float *bias;    /* [cols]; NULL: 0 */
    bool first;
    float *out; /* [rows][out_stride] */
    int64_t out_stride;
    const float *from; /* [rows][from_stride], the addend instead of out; NULL: out */
    int64_t from_stride;
    /* Data of later calls, prefetched into L2; NULL: nothing. next_floats with each panel, one
     * after the other; and rows of some lines each. */
    const float *next_w, *next_x;
    int64_t next_floats, next_rows, next_stride, next_lines;
} mhai_gemm;

enum { MHAI_GATHER = MHAI_MAX_ROWS * MHAI_SCORE_STRIDE };

/* gemm_stored: gemm_strip of at most 32 outputs and MHAI_GEMM_BLOCK inputs (not transposed, nothing
 * gathered, fetched or taken from elsewhere; w is not read), whose weights lie in rows. */
typedef struct mhai_gemm_stored {
    mhai_gemm gemm;
    const void *w;  /* [cols][stride], of each row `inner` inputs; of any alignment */
    mha_dtype type; /* MHA_F16 or MHA_BF16 */
    int64_t stride;
    const void *next; /* rows of the next call, prefetched into L2; any address */
} mhai_gemm_stored;

/* activate_gelu: x[i] = x[i] Phi(x[i]), Phi the normal distribution. gelu_backward: dx[i] = dy[i]
 * times its derivative at x[i]; dx may be dy. activate_gelu_tanh: x[i] sigmoid(2 z), z = sqrt(2/pi)
 * (x[i] + 0.044715 x[i]^3), which is x[i] (1 + tanh(z)) / 2; gelu_tanh_backward likewise.
 * swiglu: y[i] = silu(gate[i]) up[i], silu(x) = x / (1 + exp(-x)). swiglu_backward: dgate and dup
 * from dy; they may be gate, up or dy, element for element.
 * exp_row: p[i] = exp(x[i] - max), with the maximum and the sum of p; n >= 1, p may be x. */

/* Up to MHAI_MAX_ROWS rows of layer norm (centred) or RMS norm (no bias), in double; each row's
 * sums run in index order. */
typedef struct mhai_norm_strip {
    int rows;
    int64_t n;
    bool centred;
    double epsilon;
    const float *z; /* [rows][z_stride] */
    int64_t z_stride;
    const float *weight, *bias; /* [n] */
    float *y;                   /* [rows][y_stride]; may be z, element for element */
    int64_t y_stride;
} mhai_norm_strip;
/* The gradients; y of norm is dx, or NULL, and may be dy, element for element; bias is not read. */
typedef struct mhai_norm_strip_back {
    mhai_norm_strip norm;
    const float *dy; /* [rows][dy_stride] */
    int64_t dy_stride;
    bool add;     /* to dx */
    double *sums; /* [2][n], to which each row adds dy times the normed z and, if centred, dy, in
                     order; or NULL */
} mhai_norm_strip_back;

/* Rotary embedding of one token's heads, in double: elements i and mate + i of each, as a complex
 * number, times that of cosine and sine. y may be x. */
typedef struct mhai_turn {
    int64_t heads, pairs, mate;
    const float *x; /* [heads][x_stride] */
    int64_t x_stride;
    float *y;
    int64_t y_stride;
    const double *cosine, *sine; /* [pairs] */
} mhai_turn;

/* Up to MHAI_MAX_ROWS rows of q, o and dO. row_deltas: delta [MHAI_MAX_ROWS] = dO . o in double,
 * one chain over value_dim that skips zeros of o, and 0 beyond the rows; finite [rows]: whether
 * all three rows are. */
typedef struct mhai_deltas {
    int rows;
    int64_t head_dim, value_dim;
    const float *q, *o, *g;
    int64_t q_stride, o_stride, g_stride;
} mhai_deltas;

/* The backward of a strip against one key block. The fields of the tile that determine scores
 * and dropout are as in tile_forward (no poison); v, o, m, l and alpha are not read. */
typedef struct mhai_tile_back {
    mhai_tile tile;
    int64_t value_dim;
    const float *g;     /* [rows][value_dim] dO, 0 where a row is not finite */
    const float *v;     /* the block's values, in panels as its keys are: [16][value_dim][32] */
    float *x;           /* [rows][MHAI_SCORE_STRIDE] as s */
    float *slope;       /* likewise, written only with a cap */
    const float *lse;   /* [rows], log2 units; +inf: the row sees no key */
    const float *delta; /* [rows] dO . o; NaN: the row is not finite */
    const float *gate;  /* [rows] */
    float *share;       /* [rows] out: sum of p kept x; NULL: not requested */
    const int *ends;    /* [rows] the end of each row's keys, from begin on, if the tile has no
                           mask; NULL: the tile's end */
    const struct mhai_shaw_back *shaw; /* NULL: none */
} mhai_tile_back;

/* g times Shaw's table of values, as in mhai_tile_mask. */
typedef struct mhai_shaw_back {
    const float *table[MHAI_MAX_ROWS];
    int64_t center[MHAI_MAX_ROWS], last;
} mhai_shaw_back;
/* tile_backward: p = 2^(score - lse), x = g . (v + shaw), then in place, for begin .. end: s =
 * gate p kept, x = p (gate kept x - delta), slope = 1 - tanh^2. At hidden keys both are 0; in a
 * row that is not finite, visible keys are NaN. */

/* add_product: out[r, :] += sum over i < inner of a[r][i] b[i, :]; each sum is one chain over i,
 * then added. Of a last panel with at most 16 columns, those of the other half may be left out. */
typedef struct mhai_product {
    int64_t rows, inner, cols;
    const float *a; /* [rows][a_stride]; transposed: [inner][a_stride] */
    int64_t a_stride;
    bool transposed;
    const float *b; /* panels, as pack_values makes them */
    int64_t panel_stride;
    float *out; /* [rows][out_stride], whole panels */
    int64_t out_stride;
} mhai_product;

/* Sums into rows of a tensor: out = in * factor, or out + in * factor in double, rounded once;
 * never -0. */
typedef struct mhai_write {
    int64_t rows, cols;
    const float *in; /* [rows][in_stride] */
    int64_t in_stride;
    float *out; /* [rows][out_stride] */
    int64_t out_stride;
    float factor;
    bool add;
} mhai_write;

typedef struct mhai_kernels {
    mha_isa isa;
    int tile_rows;  /* rows of a strip */
    int block_rows; /* and of a register block: the same, or half of it */
#define MHAI_KERNEL(name, arguments) void(*name) arguments;
#include "kernels/kernels.inc"
#undef MHAI_KERNEL
} mhai_kernels;

/* VDPBF16PS is available: `pairs` of bf16 kernels may be true */
bool mhai_kernels_have_pairs(const mhai_kernels *kernels);

/* The table of an instruction set that mha_isa_available() reports. */
const mhai_kernels *mhai_kernels_for(mha_isa isa);

#endif
