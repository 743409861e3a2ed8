/* Contracts of the kernels. The code is in tmpl/, compiled once per instruction set in isa/, and
 * selected once per context. Callers must check the arguments; kernels do not.
 *
 * Panels. Right-hand factors of products (keys, values, weights) are packed into panels of
 * MHAI_PANEL columns, with the inner dimension outermost. Element [i][j] of panel p, j < 32, is at
 * p * inner * 32 + i * 32 + j. All instruction sets use the same panels. */
#ifndef MHAI_KERNELS_H
#define MHAI_KERNELS_H

#include <multihead/base.h>

enum {
    MHAI_PANEL = 32,          /* columns of a panel */
    MHAI_KEY_BLOCK = 512,     /* keys per softmax step; changing this or the next
                            * constant changes results */
    MHAI_STORED_COLUMNS = 64, /* outputs per call of gemm_stored */
    MHAI_GEMM_BLOCK = 128, /* products of this many inputs are summed, then added to the output */
    MHAI_MAX_ROWS = 16,    /* the largest tile_rows of any instruction set */
    MHAI_LEAST_ROWS = 12   /* every instruction set accepts this many rows */
};

/* A cache stores keys and values in runs of MHAI_RUN positions of a head. Runs start at multiples
 * of MHAI_RUN. All runs of a call have the same type. */
enum { MHAI_RUN = 16, MHAI_BLOCK_RUNS = MHAI_KEY_BLOCK / MHAI_RUN };
enum { MHAI_BAD_POWER = 127 }; /* all 16 elements are NaN */
typedef struct mhai_run {
    const void *at;     /* keys are transposed, [head_dim][16]; values are rows, [16][value_dim] */
    const float *scale; /* MHA_I8: [16], one factor per position; element =
                         * number * factor, exactly */
    const int8_t *powers; /* MHA_I8 keys: [head_dim], or NULL. Used instead of scale: element =
                           * number * 2^powers[c]. From -126 to 121; MHAI_BAD_POWER: the channel is
                           * NaN because some element was not finite */
    mha_dtype type;       /* MHA_F32, MHA_F16, MHA_BF16 or MHA_I8 */
} mhai_run;

/* Copy a matrix into panels. On request, mark the source rows with non-finite elements, and pack 0
 * instead of those elements, so that packed data is finite. */
typedef struct mhai_pack {
    float *out;
    const void *in; /* [rows, cols], cols contiguous */
    mha_dtype type; /* type of in: MHA_F32 (0, the default), MHA_F16 or MHA_BF16 */
    int64_t stride; /* between rows, in elements */
    int64_t rows, cols;
    uint8_t *bad;         /* [rows], set to 1 if a row is not finite, otherwise 0; NULL:
                           * elements are packed unchanged */
    bool *any_bad;        /* set to true if any row is not finite; never cleared */
    const mhai_run *runs; /* runs that hold the rows: keys for pack_panels, values for pack_values.
                           * Used instead of in, type and stride; NULL: not used */
    const float *scale;   /* MHA_I8 (only in runs): [rows] */
    bool whole;           /* pack_panels: pack a row that is not finite as 0 */
    bool half; /* a last panel of at most 16 columns needs no zeros after column 16. Allowed for
                * keys, which become columns, and for values of exactly 16 columns */
} mhai_pack;
/* pack_panels: rows become columns (keys, weights): out [ceil(rows/32)][cols][32], zero-padded.
 * pack_coded: decode columns column .. column + columns - 1 of coded rows: panel [columns][32].
 *             columns is at most MHAI_GEMM_BLOCK and a multiple of rows->run; column is a multiple
 *             of MHAI_GEMM_BLOCK.
 * pack_values: rows stay inner: out [ceil(cols/32)][MHAI_KEY_BLOCK][32], rows <= MHAI_KEY_BLOCK.
 *              Columns are zero-padded to a panel, and rows to the next multiple of 16. */

/* scale_row: out[i] = in[i] * factor. *finite: whether all in[i] are finite; otherwise the row
 * becomes 0. scale_rows: the same for the rows of `in`, stored contiguously in `out`. It only reads
 * in, out, type, stride, rows and cols of mhai_pack. */

/* Non-finite keys, values and queries of a tile (see special values in attention.h). */
typedef struct mhai_poison {
    const uint8_t *bad_query; /* [rows of the strip] */
    const uint8_t *bad_key;   /* [MHAI_KEY_BLOCK] */
    const uint8_t *bad_value; /* [MHAI_KEY_BLOCK] */
    const void *values;       /* unpacked values, starting at key 0 of the block */
    mha_dtype value_type;
    int64_t value_stride;       /* between keys, in elements */
    const mhai_run *value_runs; /* used instead of the three fields above; or NULL */
    int64_t value_dim;
    uint8_t *visible; /* [MHAI_MAX_ROWS][MHAI_KEY_BLOCK], working memory */
} mhai_poison;

/* Changes to a strip's scores before the softmax. Pointers are per row, since the rows of a strip
 * may belong to several heads; NULL means absent. In this order:
 *
 *   s += shaw[clip(shaw_center + j, 0, shaw_last)]      in units of the score before the cap
 *   s  = softcap log2 e tanh(s / softcap)               q then lacks the factor log2 e
 *   s += (bias[j * bias_stride] + relative[j]) log2 e   a bias of -inf drops the key
 *   s  = -inf                                           outside begin .. end, outside the runs, and
 *                                                       where keep[j * keep_stride] is 0
 */
enum { MHAI_MAX_RUNS = MHAI_KEY_BLOCK / MHAI_PANEL / 2 };
typedef struct mhai_tile_mask {
    int runs; /* intervals of panels that some row sees; 0: one, the tile */
    int run_begin[MHAI_MAX_RUNS], run_end[MHAI_MAX_RUNS]; /* multiples of 32, except the end of
                                                             the tile */
    int begin[MHAI_MAX_ROWS], end[MHAI_MAX_ROWS];         /* keys of the block; begin <= end */
    const uint8_t *keep[MHAI_MAX_ROWS];                   /* starting at key 0 of the block */
    int64_t keep_stride;                                  /* between keys */
    const void *bias[MHAI_MAX_ROWS];
    mha_dtype bias_type;
    int64_t bias_stride;
    const float *relative[MHAI_MAX_ROWS];
    const float *shaw[MHAI_MAX_ROWS];
    int64_t shaw_center[MHAI_MAX_ROWS]; /* table row for key 0 of the block, before clipping */
    int64_t shaw_last;
    float softcap;             /* 0: none */
    const mhai_poison *poison; /* NULL: all elements are finite */
} mhai_tile_mask;

/* Dropout of a strip's probabilities, applied after they are summed: p becomes 0 if the random word
 * of (row, key) is below threshold, otherwise p * scale. */
typedef struct mhai_dropout {
    uint32_t seed[2];
    uint32_t threshold;
    float scale;
    int64_t key; /* key 0 of the block */
    uint32_t query[MHAI_MAX_ROWS], head[MHAI_MAX_ROWS], batch;
} mhai_dropout;

/* Statistics over the keys of a tile, for tile_probabilities: -sum p log p in nats, and
 * the largest p. -log p is computed from the score, so it is accurate for small p.
 * Undefined if the row's sum is NaN. */
typedef struct mhai_tile_statistics {
    const float *log_sum; /* [rows] in: log2 of l; NULL: entropy is not requested */
    float entropy[MHAI_MAX_ROWS], largest[MHAI_MAX_ROWS];
} mhai_tile_statistics;

/* Rows of head_dim floats to prefetch during the computation of scores, one cache line per inner
 * index: about 16 rows per panel. */
enum { MHAI_FETCH_RUNS = 3 };
static inline int64_t mhai_fetched_rows(int64_t head_dim)
{
    return head_dim / ((head_dim + 15) / 16);
}
typedef struct mhai_fetch {
    int run; /* the current run */
    bool l2; /* prefetch only to L2: with short blocks, prefetched data would evict current data
              * from L1, especially if rows are pages apart and map to the same sets */
    struct mhai_fetch_run {
        const float *at;
        int64_t stride, rows; /* rows: remaining */
    } runs[MHAI_FETCH_RUNS];
} mhai_fetch;

/* A strip of query rows and one key block. Scores are in log2 units, because q includes the
 * factor scale * log2 e. */
typedef struct mhai_tile {
    int rows;       /* 1 .. the table's tile_rows */
    int begin, end; /* keys that some row sees; begin is a multiple of 32 */
    int64_t head_dim;
    int64_t value_panels, value_dim; /* columns of o beyond value_dim are undefined */
    const float *q;                  /* [rows][head_dim], contiguous */
    const float *k;                  /* panels of the block: [16][head_dim][32] */
    const float *v;                  /* panels of the block: [value_panels][512][32] */
    float *s;     /* [rows][MHAI_SCORE_STRIDE], working memory; probabilities on return */
    float *o;     /* [rows][value_panels * 32], sum of p v, in and out */
    float *m, *l; /* [rows], running maximum (log2 units) and sum, in and out */
    const mhai_tile_mask *mask;  /* NULL: every row sees begin .. end, with unchanged scores */
    const mhai_dropout *dropout; /* NULL: none; not used by tile_probabilities */
    float *alpha;                /* [rows] out: the factor a; NULL: not requested */
    float *scores; /* tile_forward: [rows][MHAI_SCORE_STRIDE] out, the masked scores begin .. end;
                      NULL: not requested */
    mhai_tile_statistics *statistics; /* tile_probabilities: out; NULL: not requested */
    mhai_fetch *fetch;                /* tile_forward: advanced with each panel; or NULL */
    float factor;                     /* bf16_forward: scale * log2 e, not included in q */
    bool pairs;                       /* bf16_forward: as for packing q, k and v */
} mhai_tile;
enum { MHAI_SCORE_STRIDE = MHAI_KEY_BLOCK + 16 };
/* tile_forward: one step of the online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, alg.
 * 1): m' = max(m, max_s score), p = 2^(score - m'), a = 2^(m - m'), l = a l + sum p, o = a o + p V.
 * On return, s is undefined between runs.
 * tile_probabilities: with the final m and l, s[r][begin .. end) = 2^(score - m) / l.
 * tile_masked_scores: s[r][begin .. end) = the score in natural units, or -inf if hidden.
 * tile_drop: dropout of the probabilities s[r][begin .. end). */

/* add_probabilities: out[j] += 2^(s[j] - m) / l, j < n; bit-identical to tile_probabilities. */

/* Unpacked keys and values of a block, for up to MHAI_ROWS_TILES strips. If they are in runs,
 * value_dim is a multiple of 16. */
enum { MHAI_ROWS_TILES = 10, MHAI_RUNS_AHEAD = 11 };
typedef struct mhai_tile_rows {
    const float *k, *v; /* starting at key 0 of the block */
    int64_t k_stride, v_stride;
    const mhai_run *key_runs, *value_runs; /* used instead of k and v: the runs of the block, and
                                            * MHAI_RUNS_AHEAD more to prefetch; or NULL */
    float *run;                            /* [16][value_panels * 32], working
                                            * memory for values in runs */
    int keys;                              /* readable rows of the block */
    int64_t readable; /* readable rows of k and v, including rows of later blocks */
    int tiles;        /* each tile has its own s */
    float *panel;     /* [head_dim][32], working memory */
    float *o;         /* [rows of all tiles][value_panels * 32], working memory */
} mhai_tile_rows;
/* tile_rows_forward: tile_forward of each tile, with these rows instead of the tile's k and v,
 * and without poison. If any element is not finite, visible or not, *done is false and only
 * working memory has changed. */

/* The same in three steps, for blocks that are processed independently (no dropout, no alpha):
 * tile_rows_scores: s = the masked scores, m = their maximum.
 * tile_rows_values: given s of tile_rows_scores and the maximum m up to and including this block,
 * s = p, l = sum p, rows->o = p V.
 * join_row: with a = 2^(old_max - max): l = a l + sum, o = a o + sums; n is a multiple of 32. */

/* Mask bytes or biases per head, query and key. Strides are in elements. */
typedef struct mhai_dense {
    const void *at; /* NULL: none */
    mha_dtype type;
    int64_t head, row, key;
} mhai_dense;

/* Query rows and all keys of a sequence that form one block. Row r is query (first + r) % queries
 * of head (first + r) / queries. A causal mask, a dense mask and a bias are supported. All tensors
 * are f32. */
typedef struct mhai_one_block {
    int64_t first, rows, queries;
    int keys;               /* <= MHAI_KEY_BLOCK */
    const float *q, *k, *v; /* q: query 0 of head 0; k, v: key 0 */
    int64_t q_head, q_row;  /* strides in elements */
    int64_t k_row, v_row;
    float *o;
    int64_t o_head, o_row;
    int64_t head_dim, value_dim;
    float factor; /* applied to q: scale * log2 e */
    bool causal;
    int64_t offset; /* position of query 0 */
    mhai_dense keep, bias;
    float *m, *l;       /* [rows] out; or NULL */
    float *panels;      /* [16][head_dim][32], working memory, like the next four */
    float *values;      /* panels [512][32]; NULL: values are read in place */
    float *tail;        /* [512][32]: the last value_dim % 16 columns of values read in place */
    float *scaled;      /* [rows of a strip][head_dim] */
    float *s;           /* [rows of a strip][MHAI_SCORE_STRIDE] */
    mhai_fetch *fetch;  /* advanced with each panel; not NULL */
    bool fetch_outputs; /* rows of o may be far apart */
} mhai_one_block;
/* one_block_forward: tile_forward of all strips, then finish_row. If any element is not
 * finite, visible or not, *done is false and o, m and l are undefined. The caller then
 * computes the rows in tiles. */

/* Up to 16 lanes, each with a few queries of a head that has few keys. Query `row` of a lane sees
 * keys before ends[row][lane]. All tensors are f32. */
enum { MHAI_LANES = 16, MHAI_LANE_ROWS = 16, MHAI_LANE_KEYS = 16 };
typedef struct mhai_lanes {
    int lanes, rows, keys;
    const float *q[MHAI_LANES], *k[MHAI_LANES], *v[MHAI_LANES]; /* the first row of each lane; in
                                                                 * unused lanes, that of another */
    float *o[MHAI_LANES];
    int64_t q_row, k_row, v_row, o_row; /* strides in elements */
    int64_t head_dim, value_dim;
    float factor;                           /* applied to q: scale * log2 e */
    float ends[MHAI_LANE_ROWS][MHAI_LANES]; /* 0 .. keys */
    float *m, *l;                           /* [rows][16] out */
    float *turned;                          /* [rows + keys][head_dim][16], working memory */
} mhai_lanes;
/* lanes_forward: tile_forward and finish_row. If an element of q or k, or of a value that a query
 * sees, is not finite, *done is false, and the contents of o are unspecified. */

/* bf16 arithmetic: elements are rounded to bf16, and become 0 if below 2^-50 in magnitude. The
 * memory layout is private to these functions, and takes no more memory than floats. `pairs`
 * selects the instruction that multiplies pairs; results are bit-identical. It must be the same in
 * all calls.
 * bf16_row: convert a row in place. If an element is not finite, or 2^59 or more in magnitude,
 *           *fits is false and the row becomes 0.
 * bf16_keys: pack_panels to bf16, with `whole`. A key with an element of 2^59 or more in magnitude
 *            also counts as not finite. The rest of a last panel of at most 16 keys is undefined.
 * bf16_panel: bf16_keys of float panels, in place in `out`; `in` is not read.
 * bf16_values: pack_values to bf16. `out` is the address of key 0, `in` that of key `first`, a
 *              multiple of 32.
 * bf16_forward: tile_forward without runs, alpha, scores and fetch; s does not hold probabilities
 *               on return. */

/* finish_row: out[i] = in[i] / sum * gate, or 0 if sum is 0; rounded to f32, then to `type`. */

/* A strip of rows times packed weights, for one block of inputs:
 *   out[r, :] = (first ? bias : from ? from[r, :] : out[r, :]) + x[r, 0 .. inner) W */
typedef struct mhai_gemm {
    int rows;
    int64_t inner;  /* inputs of the block; a linear layer uses MHAI_GEMM_BLOCK */
    int64_t panels; /* panels to compute */
    int64_t cols;   /* outputs; the last panel may be partial */
    const float *x; /* [rows][x_stride]; transposed: [inner][x_stride] */
    int64_t x_stride;
    bool transposed;
    bool pairs;           /* elements are pairs of bf16; needs gather; not with transposed */
    float *gather;        /* [MHAI_GATHER] working memory for a copy of x; or NULL */
    const float *w;       /* the first panel, at the block's first input */
    int64_t panel_stride; /* elements between panels */
    const float *bias;    /* [cols]; NULL: 0 */
    bool first;
    float *out; /* [rows][out_stride] */
    int64_t out_stride;
    const float *from; /* [rows][from_stride], the addend; NULL: out */
    int64_t from_stride;
    /* Data of later calls to prefetch into L2; NULL: none. next_w: next_floats contiguous floats
     * per panel. next_x: next_rows rows of next_lines cache lines, divided among the panels. */
    const float *next_w, *next_x;
    int64_t next_floats, next_rows, next_stride, next_lines;
} mhai_gemm;

enum { MHAI_GATHER = MHAI_MAX_ROWS * MHAI_SCORE_STRIDE };

/* gemm_stored: gemm_strip with weights stored in rows, for at most MHAI_STORED_COLUMNS outputs and
 * MHAI_GEMM_BLOCK inputs. It ignores w, transposed, gather, from and the prefetch fields of `gemm`. */
typedef struct mhai_gemm_stored {
    mhai_gemm gemm;
    const void *w;  /* [cols][stride], `inner` inputs per row; may be unaligned */
    mha_dtype type; /* MHA_F16 or MHA_BF16 */
    int64_t stride;
    const void *next; /* rows of the next call, to prefetch into L2; may be any address */
} mhai_gemm_stored;

/* gemm_coded: gemm_strip for one row of x and the weights that pack_coded would decode. rows[p] has
 * outputs 32 p to 32 p + 31; cols is MHAI_STORED_COLUMNS, and all have the same run. `column` is as
 * in pack_coded. The same fields of `gemm` are ignored. */

/* activate_gelu: x[i] = x[i] Phi(x[i]), with the normal distribution Phi.
 * gelu_backward: dx[i] = dy[i] times the derivative at x[i]; dx may be dy.
 * activate_gelu_tanh: x[i] = x[i] sigmoid(2 z), z = sqrt(2/pi) (x[i] + 0.044715 x[i]^3), which
 *                     equals x[i] (1 + tanh(z)) / 2. gelu_tanh_backward: its gradient.
 * swiglu: y[i] = silu(gate[i]) up[i], silu(x) = x / (1 + exp(-x)).
 * swiglu_backward: dgate and dup from dy; they may be the same memory as gate, up or dy.
 * exp_row: p[i] = exp(x[i] - max); also returns the maximum of x and the sum of p. n >= 1; p may
 *          be x. */

/* Layer norm (centred) or RMS norm (without bias) of up to MHAI_MAX_ROWS rows, in double. Rows are
 * summed in the order of their elements. */
typedef struct mhai_norm_strip {
    int rows;
    int64_t n;
    bool centred;
    double epsilon;
    const float *z; /* [rows][z_stride] */
    int64_t z_stride;
    const float *weight, *bias; /* [n] */
    float *y;                   /* [rows][y_stride]; may be the same memory as z */
    int64_t y_stride;
} mhai_norm_strip;
/* The gradients. norm.y is dx, which may be NULL or equal to dy. norm.bias is not read. */
typedef struct mhai_norm_strip_back {
    mhai_norm_strip norm;
    const float *dy; /* [rows][dy_stride] */
    int64_t dy_stride;
    bool add;     /* add to dx */
    double *sums; /* [2][n], or NULL. Row by row, dy times the normalised z is added to sums[0] and,
                   * if centred, dy to sums[1] */
} mhai_norm_strip_back;

/* Rotary embedding of the heads of a token, in double. Elements i and mate + i of a head form a
 * complex number, which is multiplied by cosine[i] + sine[i] * sqrt(-1). y may be x. */
typedef struct mhai_turn {
    int64_t heads, pairs, mate;
    const float *x; /* [heads][x_stride] */
    int64_t x_stride;
    float *y;
    int64_t y_stride;
    const double *cosine, *sine; /* [pairs] */
} mhai_turn;

/* row_deltas, for up to MHAI_MAX_ROWS rows of q, o and dO. delta [MHAI_MAX_ROWS] = dO . o in
 * double, summed in order, without the terms where o is 0; unused rows get 0. finite[row]: whether
 * all three rows are finite. */
typedef struct mhai_deltas {
    int rows;
    int64_t head_dim, value_dim;
    const float *q, *o, *g;
    int64_t q_stride, o_stride, g_stride;
} mhai_deltas;

/* The backward pass of a strip and a key block. Scores and dropout are determined by the same
 * fields of the tile as in tile_forward, without poison. v, o, m, l and alpha are not read. */
typedef struct mhai_tile_back {
    mhai_tile tile;
    int64_t value_dim;
    const float *g;     /* [rows][value_dim] dO; 0 if a row is not finite */
    const float *v;     /* values of the block, packed like keys: [16][value_dim][32] */
    float *x;           /* [rows][MHAI_SCORE_STRIDE] */
    float *slope;       /* [rows][MHAI_SCORE_STRIDE], written only with a softcap */
    const float *lse;   /* [rows] in log2 units; +inf: the row sees no key */
    const float *delta; /* [rows] dO . o; NaN: the row is not finite */
    const float *gate;  /* [rows] */
    float *share;       /* [rows] out: sum of p x after dropout; NULL: not requested */
    const int *ends;    /* [rows], for tiles without a mask: row r sees keys begin .. ends[r] - 1;
                         * NULL: up to the tile's end */
    const struct mhai_shaw_back *shaw; /* NULL: none */
} mhai_tile_back;

/* g times Shaw's table of values; fields as in mhai_tile_mask. */
typedef struct mhai_shaw_back {
    const float *table[MHAI_MAX_ROWS];
    int64_t center[MHAI_MAX_ROWS], last;
} mhai_shaw_back;
/* tile_backward: p = 2^(score - lse), x = g . (v + shaw). Then, for begin .. end, in place:
 * s = gate p kept, x = p (gate kept x - delta), slope = 1 - tanh^2. `kept` is the dropout factor.
 * s and x are 0 at hidden keys, and NaN at visible keys of a row that is not finite. */

/* add_product: out[r, :] += sum over i < inner of a[r][i] b[i, :], as one chain over i. The second
 * half of a last panel with at most 16 columns may be skipped. */
typedef struct mhai_product {
    int64_t rows, inner, cols;
    const float *a; /* [rows][a_stride]; transposed: [inner][a_stride] */
    int64_t a_stride;
    bool transposed;
    const float *b; /* panels of pack_values */
    int64_t panel_stride;
    float *out; /* [rows][out_stride], whole panels */
    int64_t out_stride;
} mhai_product;

/* Write sums into rows of a tensor: out = in * factor, or out + in * factor in double, rounded
 * once. Never writes -0. */
typedef struct mhai_write {
    int64_t rows, cols;
    const float *in; /* [rows][in_stride] */
    int64_t in_stride;
    float *out; /* [rows][out_stride] */
    int64_t out_stride;
    float factor;
    bool add;
} mhai_write;

/* scale_double: out[i] = in[i] * factors[each ? i : 0], in double, rounded once; out may be in. */

/* recurrent_strip: rows `first` .. first + rows - 1 of a strip of a recurrent layer, in order. Sums
 * over j are chains that start at 0; row 0 of a strip has no `erase` sum.
 *
 *   erased[r] = erased[r] + sum over j < first + r of erase[r][j] u[j]
 *   u[first + r] = strength[r] (value[r] - erased[r])              in double, rounded once
 *   out[r] = out[r] + sum over j <= first + r of read[r][j] u[j]
 *
 * erase NULL: u = strength value, in double. */
typedef struct mhai_recurrent_strip {
    int first, rows; /* first + rows <= MHAI_PANEL */
    int64_t cols;    /* a multiple of MHAI_PANEL: the distance of rows of value, erased and out */
    const float *erase, *read; /* [rows][MHAI_PANEL] */
    const float *value;
    const double *strength; /* [rows] */
    float *erased, *out;
    float *u; /* [cols / 32][u_stride]: rows of a panel, from row 0 of the strip */
    int64_t u_stride;
} mhai_recurrent_strip;

typedef struct mhai_kernels {
    mha_isa isa;
    int tile_rows;  /* rows per strip */
    int block_rows; /* rows per register block: tile_rows, or half of it */
#define MHAI_KERNEL(name, arguments) void(*name) arguments;
#include "kernels/kernels.inc"
#undef MHAI_KERNEL
} mhai_kernels;

/* Whether VDPBF16PS is available, so that the bf16 kernels accept `pairs`. */
bool mhai_kernels_have_pairs(const mhai_kernels *kernels);

/* The table of an available instruction set (mha_isa_available()). */
const mhai_kernels *mhai_kernels_for(mha_isa isa);

#endif
