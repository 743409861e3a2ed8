/* multihead: scores that describe heads by their attention.
 *
 * Three parts, each usable on its own:
 *
 *   - a source of rows: mha_attention_visit_rows() computes the probabilities of all heads from q
 *     and k, a block of query rows at a time; no T x S array is kept. Rows can be pooled into
 *     smaller maps;
 *   - mha_head_measures, which computes scores from such rows, or from whole maps, of any number of
 *     texts. Each score has a chance level and a number of rows;
 *   - roles: names for heads whose scores reach a threshold, with the evidence.
 *
 * Letters: H heads of a layer, T query rows t, S keys j. Query t is at key i = t + q_offset;
 * the row is A[j], N its number of visible keys. Logarithms are natural.
 *
 * A row counts for a score only if it is eligible: at least one visible key is a target of the
 * score, and at least one is not. Rows whose weights are all 0 never count.
 * A row's chance is the score of uniform attention over its N keys: the number of visible
 * targets / N. value and chance are means over the same eligible rows, of all texts together, and
 *
 *   corrected = (value - chance) / (1 - chance)        0 at chance, 1 perfect
 *
 * Images: mha_heads_text.grid; scores as in grid.h.
 *
 * Signed maps (recurrent.h): A[j] = |M[j]| / sum |M|, for mha_head_measures_signed().
 *
 * Cross-attention (MHA_HEADS_CROSS): the keys are another text, so scores that compare a token with
 * its own text have no rows: previous, next, self, near, distance, segment, block, cut, the
 * duplicate and induction scores, and cosine. Offsets are j - i. MHA_MEASURE_LAST and
 * MHA_MEASURE_MONOTONE have rows for cross-attention only; the latter is the mass on the keys with
 * |j - t (S - 1) / (T - 1)| <= near_tokens.
 *
 * docs/heads.md has each formula with its source, its eligible rows and its threshold.
 *
 * Example, given mha_context *context, mha_tensor q, mha_tensor k, const int64_t *heads, int64_t
 * tokens:
 *
 *   mha_head_measures_desc desc = MHA_INIT(mha_head_measures_desc);
 *   desc.layers = 1, desc.heads = heads;
 *   mha_heads_text text = MHA_INIT(mha_heads_text);
 *   text.flags = MHA_HEADS_CAUSAL, text.queries = text.keys = tokens;
 *   mha_attention_desc causal = MHA_INIT(mha_attention_desc);
 *   causal.flags = MHA_ATTENTION_CAUSAL;
 *   mha_head_measures *measures = NULL;
 *   mha_status status = mha_head_measures_create(context, &desc, &measures);
 *   if (!status) status = mha_head_measures_begin(measures, &text);
 *   if (!status) status = mha_head_measures_attention(measures, 0, &causal, &q, &k);
 *   if (!status) status = mha_head_measures_end(measures);
 *   if (!status)
 *       printf("%g\n", mha_head_measures_score(measures, 0, 0, MHA_MEASURE_PREVIOUS).value);
 *   mha_head_measures_destroy(measures);
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_HEADS_H
#define MULTIHEAD_HEADS_H

#include <multihead/attention.h>
#include <multihead/grid.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rows ------------------------------------------------------------------------------------ */

/**
 * Visit the probabilities of attention, a block of query rows at a time, in the order of b and t.
 *
 *   q [B,H,T,D] in    k [B,Hk,S,D] in    as for mha_attention_forward(); values are not needed
 *
 * desc may be NULL; its dropout, gates and shaw_values are ignored. block_rows 0 chooses a number
 * that keeps a block near 4 MiB. Blocks of a ragged sequence have that sequence's number of keys.
 * p is bit-identical to mha_attention_outputs.probabilities for any block_rows.
 *
 * Memory   a block of H block_rows S floats of the context's scratch, and what attention needs.
 * Errors   as mha_attention_forward(); MHA_ERR_ARGUMENT (block_rows negative); the status that fn
 *          returned.
 * Threads  one call at a time per context; fn runs in the calling thread.
 * Cost     two passes over the scores: 4 D flops per visible pair.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_visit_rows(mha_context *context,
                                                          const mha_attention_desc *desc,
                                                          const mha_tensor *q, const mha_tensor *k,
                                                          int64_t block_rows, mha_rows_fn fn,
                                                          void *user);

/**
 * Add rows to maps of blocks of tokens: called by a mha_rows_fn, it makes maps of long texts whose
 * T x S weights are never in memory. A cell is the largest weight of cell x cell tokens (a mean
 * would hide lines and stripes), in a signed map the largest in magnitude:
 *
 *   maps[h,i,j] = max(maps[h,i,j], p of rows i cell .. and keys j cell ..)
 *
 *   p [H,R,S] in          f32, any strides: queries row .. row+R-1
 *   heads [H] in          not 0: add this head; NULL: all
 *   maps [H,I,J] in, out  f32, last axis contiguous; I cell >= row + R and J cell >= S. Zeros
 *                         before the first row
 *
 * A block with a NaN is NaN.
 *
 * Memory   borrowed for the call; no scratch.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (row, cell), MHA_ERR_SHAPE, MHA_ERR_DTYPE,
 *          MHA_ERR_STRIDE, MHA_ERR_OVERLAP. No byte of maps is then written.
 * Threads  one call at a time per context.
 * Accuracy exact, for any division into rows and any order of them.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_attention_pool_rows(mha_context *context, const mha_tensor *p,
                                                         int64_t row, int64_t cell,
                                                         const uint8_t *heads,
                                                         const mha_tensor *maps);

/* ---- Scores ---------------------------------------------------------------------------------- */

/* The unit of a score. Shares have a chance level and a corrected value; for the others `corrected`
 * is the value. */
typedef enum mha_measure_kind {
    MHA_KIND_SHARE = 0,      /* of a row's mass, of rows or of texts: 0 .. 1 */
    MHA_KIND_PLAIN = 1,      /* 0 .. 1, without a correction; uniform attention gives chance */
    MHA_KIND_NATS = 2,       /* natural units of entropy; chance is mean log N */
    MHA_KIND_TOKENS = 3,     /* a distance; chance is that of uniform attention */
    MHA_KIND_CORRELATION = 4 /* -1 .. 1 */
} mha_measure_kind;

/* All scores: id, name in files and options, kind, label for readers, definition, source. New ones are
 * appended. docs/heads.md has the formulas and the full references. */
#define MHA_MEASURE_LIST(X)                                                                        \
    X(PREVIOUS, "previous", SHARE, "previous token", "mass on the token just before",              \
      "Clark 2019, Olsson 2022")                                                                   \
    X(NEXT, "next", SHARE, "next token", "mass on the token just after", "Clark 2019")             \
    X(SELF, "self", SHARE, "token itself", "mass on the token itself", "Clark 2019")               \
    X(FIRST, "first", SHARE, "first token", "mass on the first token", "Clark 2019")               \
    X(SEPARATOR, "separator", SHARE, "separators", "mass on separators", "Clark 2019")             \
    X(NEAR, "near", SHARE, "nearby tokens", "mass on the token itself and its neighbours", "ours") \
    X(SEGMENT, "segment", SHARE, "own segment", "mass inside the token's own segment",             \
      "Kovaleva 2019")                                                                             \
    X(BLOCK, "block", SHARE, "own segment, evenly",                                                \
      "mass inside the token's own segment, times its evenness there", "ours")                     \
    X(DUPLICATE, "duplicate", SHARE, "duplicate tokens",                                           \
      "mass on other occurrences of the same token", "Wang 2023")                                  \
    X(INDUCTION, "induction", SHARE, "induction",                                                  \
      "mass on the tokens that followed earlier occurrences of the same token", "Olsson 2022")     \
    X(INDUCTION_MEAN, "induction_mean", SHARE, "induction, mean weight",                           \
      "mean weight of a token that followed an earlier occurrence", "Olsson 2022")                 \
    X(RARE, "rare", SHARE, "rarest token", "mass on the rarest token of the text", "Voita 2019")   \
    X(CONFIDENCE, "confidence", SHARE, "confidence",                                               \
      "largest weight on a token that is not a separator", "Voita 2019")                           \
    X(ENTROPY, "entropy", NATS, "entropy", "entropy of a row", "Clark 2019")                       \
    X(EVENNESS, "evenness", PLAIN, "evenness",                                                     \
      "entropy of a row / log of its number of visible keys", "Clark 2019")                        \
    X(BROAD, "broad", PLAIN, "broad rows", "share of rows with an evenness above 0.78",            \
      "Clark 2019")                                                                                \
    X(DISTANCE, "distance", TOKENS, "distance",                                                    \
      "mean distance from a token to the tokens it attends to", "ours")                            \
    X(SINK, "sink", SHARE, "first token, all rows (sink)",                                         \
      "mass on the first token, over all rows including the first", "Gu 2024")                     \
    X(COSINE, "cosine", CORRELATION, "similar inputs",                                             \
      "correlation of weights with the inputs' cosine similarity", "ours")                         \
    X(VERTICAL, "vertical", SHARE, "vertical stripes", "mass on the best one to three columns",    \
      "Kovaleva 2019")                                                                             \
    X(HORIZONTAL, "horizontal", PLAIN, "horizontal stripes",                                       \
      "share of rows with an evenness above 0.9, if most are below 0.6; otherwise 0", "ours")      \
    X(CUT, "cut", SHARE, "two segments", "as block, for the two segments of the best single cut",  \
      "ours")                                                                                      \
    X(FAMILY_DIAGONAL, "family_diagonal", SHARE, "densest diagonals",                              \
      "mass on the densest diagonals that fill an eighth of the map", "Jiang 2024")                \
    X(FAMILY_VERTICAL, "family_vertical", SHARE, "densest columns",                                \
      "mass on the densest columns that fill an eighth of the map", "Jiang 2024")                  \
    X(FAMILY_BLOCK, "family_block", SHARE, "densest blocks",                                       \
      "mass on the densest cells of a 16 x 16 grid that fill an eighth of the map", "Jiang 2024")  \
    X(RAREST, "rarest", SHARE, "points to the rarest token",                                       \
      "share of texts whose densest column is the rarest token", "Voita 2019")                     \
    X(RAREST_TWO, "rarest_two", SHARE, "points to one of the two rarest",                          \
      "share of texts whose densest column is one of the two rarest tokens", "Voita 2019")         \
    X(DIAGONAL, "diagonal", SHARE, "best offset", "mass at the best offset", "Kovaleva 2019")      \
    X(POSITIONAL, "positional", SHARE, "largest weight at the best offset",                        \
      "share of rows whose largest weight is at the best offset", "Voita 2019")                    \
    X(INDUCTION_LATEST, "induction_latest", SHARE, "induction, latest",                            \
      "mass on the token that followed the latest of several earlier occurrences", "ours")         \
    X(NEGATIVE, "negative", PLAIN, "negative weights",                                             \
      "share of a signed row's mass that is negative", "ours")                                     \
    X(LAST, "last", SHARE, "last token of the source",                                             \
      "cross-attention: mass on the last token of the source", "ours")                             \
    X(MONOTONE, "monotone", SHARE, "same relative place",                                          \
      "cross-attention: mass within two tokens of the same relative place in the source", "ours")  \
    X(PATCH_DISTANCE, "patch_distance", TOKENS, "distance in patches",                             \
      "mean distance from a patch to the patches it attends to", "Dosovitskiy 2021")               \
    X(PATCH_LOCAL, "patch_local", SHARE, "neighbouring patches",                                   \
      "mass on the patch itself and its neighbours, of that on patches", "d'Ascoli 2021")          \
    X(SAME_ROW, "same_row", SHARE, "own row",                                                      \
      "mass on the patches in the same row, of that on patches", "ours")                           \
    X(SAME_COL, "same_col", SHARE, "own column",                                                   \
      "mass on the patches in the same column, of that on patches", "ours")                        \
    X(CLS, "cls", SHARE, "CLS", "mass of a patch on CLS", "ours")                                  \
    X(REGISTERS, "registers", SHARE, "registers", "mass of a patch on registers", "Darcet 2024")

typedef enum mha_head_measure {
#define MHA_MEASURE_ENUM(id, ...) MHA_MEASURE_##id,
    MHA_MEASURE_LIST(MHA_MEASURE_ENUM)
#undef MHA_MEASURE_ENUM
        MHA_MEASURES
} mha_head_measure;

typedef struct mha_measure_info {
    const char *name; /* "previous" */
    const char *text; /* "mass on the token just before" */
    mha_measure_kind kind;
    const char *label;  /* "previous token" */
    const char *source; /* "Clark 2019, Olsson 2022"; "ours" */
} mha_measure_info;

/** The name, definition and kind of a score; an unknown one has the name "?". Memory static text.
 * Errors none. Threads any. Since 0.1 */
MHA_API mha_measure_info mha_measure_describe(mha_head_measure measure);

typedef struct mha_head_score {
    double value, chance, corrected; /* 0 where there were no rows */
    int64_t rows;                    /* eligible rows; for rarest and rarest_two, texts */
} mha_head_score;

/* Settings; zero selects the default. */
typedef struct mha_head_measures_desc {
    uint32_t struct_size;
    uint32_t flags;           /* 0 */
    int64_t layers;           /* at least 1 */
    const int64_t *heads;     /* [layers], each at least 0; borrowed during create only */
    int64_t farthest_offset;  /* diagonals -n .. n; 0: 8, at most 64 */
    int64_t near_tokens;      /* of MHA_MEASURE_NEAR; 0: 2 */
    int64_t rare_rank;        /* a text has a rare token if its largest rank is at least this; 0:
                                 500 (Voita), -1: any */
    const char *const *names; /* [relations], copied; names of the links, "nsubj" */
    int64_t relations;
} mha_head_measures_desc;

/* mha_heads_text.flags */
enum {
    MHA_HEADS_CAUSAL = 1 << 0,        /* j <= i */
    MHA_HEADS_WINDOW = 1 << 1,        /* left_keys, right_keys and sink_keys apply */
    MHA_HEADS_CROSS = 1 << 2,         /* cross-attention: queries and keys have different texts */
    MHA_HEADS_QUERY_PREDICTS = 1 << 3 /* links: test the row before the word, which predicts it */
};

/* A gold link: in a head of relation r, the query word attends to the key word, or the reverse;
 * both directions are measured. Words are numbers from text.words, or token positions
 * (of keys) if there are none. */
typedef struct mha_heads_link {
    int64_t query, key;
    int64_t relation; /* 0 .. relations-1 */
} mha_heads_link;

/* One text. Arrays may be NULL: scores that need them are then not measured. Everything is borrowed
 * until mha_head_measures_end(). */
typedef struct mha_heads_text {
    uint32_t struct_size;
    uint32_t flags;
    int64_t queries, keys; /* T and S */
    int64_t q_offset;      /* query t is key t + q_offset */
    /* Visibility, besides MHA_HEADS_CAUSAL; as in mha_attention_desc. */
    int64_t left_keys, right_keys, sink_keys;
    const uint8_t *hidden_keys;  /* [S], padding: visible to no query */
    const uint8_t *skip_queries; /* [T], rows that are not measured */
    /* Properties of the tokens. */
    const int64_t *ids;        /* [S]: duplicates, induction */
    const uint8_t *separators; /* [S]: [SEP], full stops: the caller's choice */
    const uint8_t *special;    /* [S]: not words: never a duplicate, rare, or partner of a link */
    const int64_t *segments;   /* [S]: tokens of a segment have the same number */
    const int64_t *ranks;      /* [S]: 0 for the most frequent token, higher for rarer ones */
    const int64_t *words; /* [S]: word of a token, increasing by 0 or 1; -1: in no word. Weights are
                             summed over a word's columns and averaged over its rows */
    const mha_heads_link *links;
    int64_t links_count;
    /* The tokens are those of an image: rows are measured for patches only, by the scores of patches and
     * the scores that need no order of the tokens. ids, segments and ranks are not used. NULL: a text */
    const mha_grid *grid;
} mha_heads_text;

typedef struct mha_head_measures mha_head_measures;

/**
 * Create an object that measures heads. Then, for each text, call
 *
 *   begin(text), then for each layer in any order its rows from 0 to T-1, then end
 *
 * Scores can be read at any time: they include all texts that have ended.
 *
 * Memory   the caller owns *measures and calls mha_head_measures_destroy(); the context must
 *          outlive it. While a layer is being read, 56 bytes per token and head; nothing of size
 *          T x S.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT, MHA_ERR_UNSUPPORTED (unknown flags), MHA_ERR_SIZE,
 *          MHA_ERR_NOMEM.
 * Threads  one call at a time per context.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_create(mha_context *context,
                                                          const mha_head_measures_desc *desc,
                                                          mha_head_measures **measures);

/** Free it, or do nothing for NULL. Memory frees all. Errors none. Threads one. Since 0.1 */
MHA_API void mha_head_measures_destroy(mha_head_measures *measures);

/**
 * Begin a text.
 *
 * Memory   borrows text's arrays until end.
 * Errors   MHA_ERR_NULL, MHA_ERR_ARGUMENT (a text is open; a length, a word, a link out of range),
 *          MHA_ERR_UNSUPPORTED, MHA_ERR_SIZE, MHA_ERR_NOMEM.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_begin(mha_head_measures *measures,
                                                         const mha_heads_text *text);

/**
 * Set the inputs of a layer before its rows: the vectors that its queries and keys were projected
 * from.
 *
 *   x [S,M] in    f32, any strides; NULL: none, the default
 *
 * MHA_MEASURE_COSINE compares each row's weights with the cosine of x[i] and x[j], j other than i.
 *
 * Memory   borrows x until the layer's last row.
 * Errors   MHA_ERR_ARGUMENT (no text is open, or the layer has begun), MHA_ERR_NULL, MHA_ERR_SHAPE,
 *          MHA_ERR_DTYPE.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_inputs(mha_head_measures *measures,
                                                          int64_t layer, const mha_tensor *x);

/**
 * Set the window of a layer before its rows: chance is then that of uniform attention within it.
 *
 *   desc   of the layer's attention. With MHA_ATTENTION_WINDOW its left_keys, right_keys and sink_keys,
 *          and with MHA_ATTENTION_CAUSAL its causal mask, limit the keys that the text's
 *          description makes visible; nothing else in it is read. Without the flag, with global
 *          keys or queries, and for NULL, visibility depends on the text only, which is the default
 *
 * It applies until the text ends, also to the baseline of links. mha_head_measures_attention() and
 * mha_head_pass_run() call it.
 *
 * Memory   copies what it needs.
 * Errors   MHA_ERR_ARGUMENT (no text is open, or the layer has begun; struct_size), MHA_ERR_NULL,
 *          MHA_ERR_UNSUPPORTED.
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_window(mha_head_measures *measures,
                                                          int64_t layer,
                                                          const mha_attention_desc *desc);

/**
 * Declare, before a layer's rows, that they belong to a signed map M (mha_recurrent_visit_rows()).
 * Scores are then those of A[j] = |M[j]| / sum |M|, except that MHA_MEASURE_COSINE correlates M
 * itself. MHA_MEASURE_SINK has no rows; MHA_MEASURE_NEGATIVE has rows for signed maps only.
 *
 * Memory   none.   Errors  MHA_ERR_NULL, MHA_ERR_ARGUMENT (no text is open, or the layer has begun).
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_signed(mha_head_measures *measures,
                                                          int64_t layer);

/**
 * Add rows of a layer: in order, any number at a time; finish a layer before beginning another.
 *
 *   p [H,R,S] in    queries row .. row+R-1 of all heads; f32 or f64, any strides
 *
 * Weights are not negative; rows sum to 1, to less (a sink takes part of the mass), or to 0 (no
 * visible key); those of a signed map are any finite numbers. Weights on keys that the text's
 * description or the layer's window hides are 0.
 *
 * Memory   borrows p for the call.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NOMEM; MHA_ERR_ARGUMENT (order,
 *          layer); MHA_ERR_NUMERIC (a weight is not finite, negative, or on a hidden key; a row
 *          sums to more than 1.001). On error nothing of p is counted.
 * Threads  one; uses the context's.
 * Accuracy sums over a text are in double, in the order of j and t; those over texts are exact to
 *          2^-128 per text and rounded once: the same bits for any number of threads, any division
 *          into blocks and any order of texts.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_rows(mha_head_measures *measures, int64_t layer,
                                                        int64_t row, const mha_tensor *p);

/**
 * Compute and add all rows of a layer: mha_head_measures_window(), then mha_attention_visit_rows()
 * into mha_head_measures_rows(). One sequence only: B is 1.
 *
 * Memory, Errors  as these calls.   Threads  one; uses the context's.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_attention(mha_head_measures *measures,
                                                             int64_t layer,
                                                             const mha_attention_desc *desc,
                                                             const mha_tensor *q,
                                                             const mha_tensor *k);

/**
 * End the text. Layers without rows are unchanged.
 *
 * Memory   releases the text.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (no text is open; a layer lacks rows: the text is closed
 *          without that layer).
 * Threads  one.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_end(mha_head_measures *measures);

/**
 * Add the measurements of other texts of the same model, for example of another process's share of
 * a corpus. `from` is unchanged.
 *
 * Scores, offsets and relations are bit-identical to one object that measured all texts, for any
 * division of the texts and any order of merging. In mha_head_details the texts of `from` are
 * numbered after those of `measures`, and the earlier of two equally strong texts is kept.
 *
 * Memory   none.
 * Errors   MHA_ERR_NULL; MHA_ERR_ARGUMENT (a text is open, the same object, layers, heads or
 *          another field of the descriptions differ); MHA_ERR_SIZE (more than 2^53 rows). Nothing is
 *          then changed.
 * Threads  one; from may be of another context that is not in use.   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_merge(mha_head_measures *measures,
                                                         const mha_head_measures *from);

/**
 * Add the measurements of other layers in the same texts, for example by a rank that has other
 * layers of a model (MHA_HEAD_PASS_OWN_LAYERS). Texts are not counted again; the result is
 * bit-identical to one object that received the rows of all layers.
 *
 *   from    with the same texts in the same order; no layer has rows in both
 *
 * Memory   none.   Errors  as mha_head_measures_merge(); MHA_ERR_ARGUMENT (other numbers of texts).
 * Threads  as mha_head_measures_merge().   Since  0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_merge_layers(mha_head_measures *measures,
                                                                const mha_head_measures *from);

/** The number of heads of a layer; -1 beyond the last layer. Memory none. Errors none. Threads any.
 * Since 0.1 */
MHA_API int64_t mha_head_measures_heads(const mha_head_measures *measures, int64_t layer);

/** The name of a relation, in the memory of measures; NULL beyond the last, or for NULL. Memory none.
 * Errors none. Threads any. Since 0.1 */
MHA_API const char *mha_head_measures_name(const mha_head_measures *measures, int64_t relation);

/** A score of one head; all 0 for numbers out of range. Memory none. Errors none. Threads any while
 * nothing is added. Since 0.1 */
MHA_API mha_head_score mha_head_measures_score(const mha_head_measures *measures, int64_t layer,
                                               int64_t head, mha_head_measure measure);

/* The positions that scores refer to. */
typedef struct mha_head_details {
    int64_t diagonal_offset;   /* of MHA_MEASURE_DIAGONAL */
    int64_t positional_offset; /* of MHA_MEASURE_POSITIONAL */
    /* Columns and cut of the text in which they were strongest; texts count from 0, -1: none. */
    int64_t column_text, columns, column[3]; /* of MHA_MEASURE_VERTICAL, strongest first */
    int64_t cut_text, cut; /* of MHA_MEASURE_CUT: the second segment's first key */
} mha_head_details;

/** The positions that a head's scores refer to; zeros for numbers out of range. Memory none. Errors
 * none. Threads as mha_head_measures_score(). Since 0.1 */
MHA_API mha_head_details mha_head_measures_details(const mha_head_measures *measures, int64_t layer,
                                                   int64_t head);

/* Mass at one offset, and how often the row's largest weight is there (the first, if several). */
typedef struct mha_head_offset {
    mha_head_score mass, largest;
} mha_head_offset;

/** The diagonal j = i + offset, |offset| <= farthest_offset; zeros for numbers out of range. Memory
 * none. Errors none. Threads as mha_head_measures_score(). Since 0.1 */
MHA_API mha_head_offset mha_head_measures_offset(const mha_head_measures *measures, int64_t layer,
                                                 int64_t head, int64_t offset);

/* Both directions of a relation: the link's query word attends to its key word, or the reverse. */
enum { MHA_LINK_FORWARD = 0, MHA_LINK_BACKWARD = 1 };

/* The results of a relation, over the links whose partner and another word are visible. */
typedef struct mha_head_relation {
    mha_head_score
        accuracy;        /* share of links where the word with the largest weight is the partner;
                            without special tokens, separators and the word itself. rows: links */
    mha_head_score mass; /* mean share of the row's weight on the partner */
    double baseline;     /* accuracy of always choosing the most frequent offset */
    int64_t baseline_offset; /* in words */
} mha_head_relation;

/** The results of a relation in one direction; zeros for numbers out of range. Memory none. Errors
 * none. Threads as mha_head_measures_score(). Since 0.1 */
MHA_API mha_head_relation mha_head_measures_relation(const mha_head_measures *measures,
                                                     int64_t layer, int64_t head, int64_t relation,
                                                     int direction);

/* ---- Roles ----------------------------------------------------------------------------------- */

/* All roles: id, name, the score that decides, the threshold it must reach, VALUE or CORRECTED, the
 * minimum number of rows, the behaviour of the head, the source of the threshold. Specific roles
 * come first. A share must also be at least 0.1 above its chance. LINKS is decided for each relation
 * and direction: accuracy - baseline. New roles are appended. */
#define MHA_ROLE_LIST(X)                                                                          \
    X(PREVIOUS, "previous token", PREVIOUS, 0.5, VALUE, 4,                                        \
      "each token attends to the token just before it", "Clark 2019: mean mass above 0.5")        \
    X(NEXT, "next token", NEXT, 0.5, VALUE, 4, "each token attends to the token just after it",   \
      "Clark 2019: mean mass above 0.5")                                                          \
    X(SELF, "self", SELF, 0.5, VALUE, 4, "each token attends to itself", "as for previous token") \
    X(SINK, "first token", SINK, 0.3, VALUE, 4,                                                   \
      "attention concentrates on the first token (a sink)", "Gu 2024: epsilon 0.3")               \
    X(SEPARATOR, "separator", SEPARATOR, 0.6, VALUE, 4, "attention concentrates on separators",   \
      "Clark 2019, notebook: above 0.6")                                                          \
    X(DUPLICATE, "duplicate token", DUPLICATE, 0.3, CORRECTED, 4,                                 \
      "a repeated token attends to its other occurrences", "as for induction")                    \
    X(INDUCTION, "induction", INDUCTION, 0.3, CORRECTED, 4,                                       \
      "a repeated token attends to the token after its earlier occurrence",                       \
      "Olsson 2022; 0.3 as in studies of Llama 3")                                                \
    X(RARE, "rare word", RAREST_TWO, 0.5, VALUE, 10, "the head attends to the rarest words",      \
      "Voita 2019: above half of the texts, two rarest")                                          \
    X(LINKS, "syntactic", COSINE, 0.1, VALUE, 10,                                                 \
      "a word attends to the word that it is linked to",                                          \
      "Voita 2019: 10 points above the best offset")                                              \
    X(SEMANTIC, "semantic", COSINE, 0.5, VALUE, 4, "tokens attend to tokens with similar inputs", \
      "ours")                                                                                     \
    X(POSITIONAL, "positional", POSITIONAL, 0.9, VALUE, 4,                                        \
      "the largest weight is nearly always at one offset", "Voita 2019: at least 90 % of rows")   \
    X(BLOCK, "block", BLOCK, 0.5, CORRECTED, 4, "tokens attend evenly to their own segment",      \
      "ours, after Kovaleva 2019")                                                                \
    X(BROAD, "broad", BROAD, 0.95, VALUE, 4, "attention is spread over all tokens",               \
      "Clark 2019: 3.8 nats of log 128")                                                          \
    X(HORIZONTAL, "horizontal", HORIZONTAL, 0.1, VALUE, 4,                                        \
      "a few tokens attend to all tokens, the others to few", "ours")                             \
    X(DIAGONAL, "diagonal", DIAGONAL, 0.5, CORRECTED, 4, "each token attends to a fixed offset",  \
      "ours, after Kovaleva 2019")                                                                \
    X(LOCAL, "local", NEAR, 0.5, CORRECTED, 4, "each token attends to nearby tokens", "ours")     \
    X(VERTICAL, "vertical", VERTICAL, 0.5, CORRECTED, 4,                                          \
      "all tokens attend to the same few tokens", "ours, after Kovaleva 2019")                    \
    X(CUT, "two blocks", CUT, 0.5, CORRECTED, 4,                                                  \
      "two parts of the text, each attending to itself", "ours, after Kovaleva 2019")             \
    X(MONOTONE, "monotone", MONOTONE, 0.5, CORRECTED, 4,                                          \
      "each token attends to the same relative place in the source", "ours")                      \
    X(PATCHES, "nearby patches", PATCH_LOCAL, 0.5, CORRECTED, 4,                                  \
      "each patch attends to itself and its neighbours", "ours, after d'Ascoli 2021")             \
    X(ROW, "own row", SAME_ROW, 0.5, CORRECTED, 4, "each patch attends to its row", "ours")       \
    X(COLUMN, "own column", SAME_COL, 0.5, CORRECTED, 4, "each patch attends to its column",      \
      "ours")                                                                                     \
    X(CLS, "CLS", CLS, 0.5, VALUE, 4, "patches attend to CLS", "ours")                            \
    X(REGISTERS, "registers", REGISTERS, 0.5, VALUE, 4, "patches attend to registers",            \
      "ours, after Darcet 2024")

typedef enum mha_role {
#define MHA_ROLE_ENUM(id, ...) MHA_ROLE_##id,
    MHA_ROLE_LIST(MHA_ROLE_ENUM)
#undef MHA_ROLE_ENUM
        MHA_ROLES
} mha_role;

typedef struct mha_role_info {
    const char *name, *text, *source;
    mha_head_measure measure; /* the score that decides; unused for MHA_ROLE_LINKS */
    double threshold;
    bool corrected; /* the corrected score is compared, else the value */
    int64_t least_rows;
} mha_role_info;

/** The definition of a role; an unknown one has the name "?". Memory static text. Errors none.
 * Threads any. Since 0.1 */
MHA_API mha_role_info mha_role_describe(mha_role role);

/* A role that a head has. */
typedef struct mha_head_role {
    mha_role role;
    int64_t offset;       /* of positional and diagonal, else 0 */
    int64_t relation;     /* of syntactic, else 0 */
    int direction;        /* MHA_LINK_FORWARD, MHA_LINK_BACKWARD */
    mha_head_score score; /* the score that decided */
    char evidence[192];   /* "previous token 0.94, chance 0.06, 63 rows": one line of UTF-8 */
} mha_head_role;

/**
 * The roles of a head, in the order of the list; there may be none. A general role is omitted if a
 * specific one implies it: diagonal and local beside previous, next and self; local beside
 * diagonal; vertical beside first token, separator, CLS and registers; two blocks beside block;
 * monotone beside diagonal; roles of patches beside self.
 *
 *   roles [most] out    the first `most` of them; NULL with most 0 to count
 *
 * Returns the number of roles; 0 means that none was found.
 *
 * Memory   none.   Errors  none.   Threads  as mha_head_measures_score().   Since  0.1
 */
MHA_API int64_t mha_head_measures_roles(const mha_head_measures *measures, int64_t layer,
                                        int64_t head, mha_head_role *roles, int64_t most);

#ifdef __cplusplus
}
#endif
#endif
