/* multihead: what each head does, measured on its attention.
 *
 * Three parts, each usable on its own:
 *
 *   - a source of rows: mha_attention_visit_rows() hands out the probabilities of all heads, a
 *     block of query rows at a time, from q and k; no T x S array is kept. Its rows can be pooled
 *     into smaller maps;
 *   - mha_head_measures, which takes such rows (or whole maps from anywhere) of any number of texts
 *     and yields scores: where a head's attention goes, each score beside its chance level and
 *     the number of rows that it was measured on;
 *   - roles: which of them are strong enough to give the head a name, with the evidence.
 *
 * Letters: H heads of a layer, T query rows t, S keys j. Query t is at key i = t + q_offset;
 * the row is A[j], N its number of visible keys. Logarithms are natural.
 *
 * A row counts for a score only if it is eligible: it sees at least two keys, of which at least
 * one is a target of the score and at least one is not. Rows whose weights are all 0 never count.
 * A row's chance is the score of uniform attention over its N keys: the number of visible
 * targets / N. value and chance are means over the same eligible rows, of all texts together, and
 *
 *   corrected = (value - chance) / (1 - chance)        0 at chance, 1 perfect
 *
 * docs/heads.md has each formula with its source, its eligible rows and its threshold.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_HEADS_H
#define MULTIHEAD_HEADS_H

#include <multihead/attention.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Rows ------------------------------------------------------------------------------------ */

/* Takes rows of sequence b: p [H,R,S] f32 holds queries row .. row+R-1 of all heads. An error stops
 * the visit and is returned. It may call the library on the same context. */
typedef mha_status (*mha_rows_fn)(void *user, int64_t b, int64_t row, const mha_tensor *p);

/**
 * Visit the probabilities of attention, a block of query rows at a time, in the order of b and t.
 *
 *   q [B,H,T,D] in    k [B,Hk,S,D] in    as for mha_attention_forward(); values are not needed
 *
 * desc may be NULL; its dropout, gates and shaw_values are ignored. block_rows 0 chooses a number
 * that keeps a block near 4 MiB. Each ragged sequence comes with its own number of keys. The p are
 * bit-identical to mha_attention_outputs.probabilities for any block_rows.
 *
 * Memory   a block of H block_rows S floats of the context's scratch, and what attention needs.
 * Errors   as mha_attention_forward(); MHA_ERR_ARGUMENT (block_rows negative); what fn returned.
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
 * T x S weights are never in memory. A cell is the largest weight of cell x cell tokens (in their
 * mean a line or a stripe would disappear):
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

/* What a score counts. Shares have a chance level and a corrected value; for the others corrected
 * is the value. */
typedef enum mha_measure_kind {
    MHA_KIND_SHARE = 0,      /* of a row's mass, of rows or of texts: 0 .. 1 */
    MHA_KIND_PLAIN = 1,      /* 0 .. 1, without a correction; uniform attention gives chance */
    MHA_KIND_NATS = 2,       /* natural units of entropy; chance is mean log N */
    MHA_KIND_TOKENS = 3,     /* a distance; chance is that of uniform attention */
    MHA_KIND_CORRELATION = 4 /* -1 .. 1 */
} mha_measure_kind;

/* All scores: id, name in tables and files, kind, description. New ones are appended. */
#define MHA_MEASURE_LIST(X)                                                                       \
    X(PREVIOUS, "previous", SHARE, "mass on the token just before")                               \
    X(NEXT, "next", SHARE, "mass on the token just after")                                        \
    X(SELF, "self", SHARE, "mass on the token itself")                                            \
    X(FIRST, "first", SHARE, "mass on the first token")                                           \
    X(SEPARATOR, "separator", SHARE, "mass on separators")                                        \
    X(NEAR, "near", SHARE, "mass within a few tokens, itself included")                           \
    X(SEGMENT, "segment", SHARE, "mass inside the token's own segment")                           \
    X(BLOCK, "block", SHARE, "mass inside the token's own segment, times its evenness there")     \
    X(DUPLICATE, "duplicate", SHARE, "mass on other places of the same token")                    \
    X(INDUCTION, "induction", SHARE, "mass on what followed earlier places of the same token")    \
    X(INDUCTION_MEAN, "induction_mean", SHARE, "mean weight of one such follower")                \
    X(RARE, "rare", SHARE, "mass on the rarest token of the text")                                \
    X(CONFIDENCE, "confidence", SHARE, "largest weight on a token that is no separator")          \
    X(ENTROPY, "entropy", NATS, "entropy of a row")                                               \
    X(EVENNESS, "evenness", PLAIN, "entropy of a row / log of the number of keys it sees")        \
    X(BROAD, "broad", PLAIN, "share of rows with an evenness above 0.78")                         \
    X(DISTANCE, "distance", TOKENS, "mean distance of what is looked at")                         \
    X(SINK, "sink", SHARE, "mass on the first token, over all rows, the first too")               \
    X(COSINE, "cosine", CORRELATION, "correlation of weights with the inputs' cosine similarity") \
    X(VERTICAL, "vertical", SHARE, "mass on the best one to three columns")                       \
    X(HORIZONTAL, "horizontal", PLAIN, "share of broad rows where most rows are sharp")           \
    X(CUT, "cut", SHARE, "as block, for the two segments of the best single cut")                 \
    X(FAMILY_DIAGONAL, "family_diagonal", SHARE, "mass on an eighth of the map: best diagonals")  \
    X(FAMILY_VERTICAL, "family_vertical", SHARE, "mass on an eighth of the map: best columns")    \
    X(FAMILY_BLOCK, "family_block", SHARE, "mass on an eighth of the map: best blocks")           \
    X(RAREST, "rarest", SHARE, "share of texts where it points to the rarest token")              \
    X(RAREST_TWO, "rarest_two", SHARE, "share of texts where it points to one of the two rarest") \
    X(DIAGONAL, "diagonal", SHARE, "mass at the best offset")                                     \
    X(POSITIONAL, "positional", SHARE, "share of rows whose largest weight is at the best offset")

typedef enum mha_head_measure {
#define MHA_MEASURE_ENUM(id, name, kind, text) MHA_MEASURE_##id,
    MHA_MEASURE_LIST(MHA_MEASURE_ENUM)
#undef MHA_MEASURE_ENUM
        MHA_MEASURES
} mha_head_measure;

typedef struct mha_measure_info {
    const char *name; /* "previous" */
    const char *text; /* "mass on the token just before" */
    mha_measure_kind kind;
} mha_measure_info;

/** What a score is; an unknown one has the name "?". Memory static text. Errors none. Threads any.
 * Since 0.1 */
MHA_API mha_measure_info mha_measure_describe(mha_head_measure measure);

typedef struct mha_head_score {
    double value, chance, corrected; /* 0 where there were no rows */
    int64_t rows;                    /* eligible rows; for rarest and rarest_two, texts */
} mha_head_score;

/* What is measured, zero for the defaults. */
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
    MHA_HEADS_CROSS = 1 << 2,         /* queries belong to another text: no offsets, no self, ... */
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
    /* What a query sees, besides MHA_HEADS_CAUSAL; as in mha_attention_desc. */
    int64_t left_keys, right_keys, sink_keys;
    const uint8_t *hidden_keys;  /* [S], padding: visible to no query */
    const uint8_t *skip_queries; /* [T], rows that are not measured */
    /* What the tokens are. */
    const int64_t *ids;        /* [S]: duplicates, induction */
    const uint8_t *separators; /* [S]: [SEP], full stops: the caller's choice */
    const uint8_t *special;    /* [S]: not words: never a duplicate, rare, or partner of a link */
    const int64_t *segments;   /* [S]: tokens of a segment have the same number */
    const int64_t *ranks;      /* [S]: 0 for the most frequent token, higher for rarer ones */
    const int64_t *words; /* [S]: word of a token, increasing by 0 or 1; -1: in no word. Weights are
                             summed over a word's columns and averaged over its rows */
    const mha_heads_link *links;
    int64_t links_count;
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

/** Free it; NULL is fine. Memory frees all. Errors none. Threads one. Since 0.1 */
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
 * Set the inputs of a layer before its rows: what its queries and keys were projected from.
 *
 *   x [S,M] in    f32, any strides; NULL: none, as without the call
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
 *   desc   of the layer's attention: with MHA_ATTENTION_WINDOW its queries see, of the keys that
 *          the text's description leaves, those of left_keys, right_keys and sink_keys, and with
 *          MHA_ATTENTION_CAUSAL no later ones; nothing else in it is read. Without the flag, with
 *          global keys or queries, and for NULL, what is visible depends on the text only, as
 *          without the call
 *
 * It holds until the text ends, for the baseline of links too. mha_head_measures_attention() and
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
 * Add rows of a layer: in order, any number at a time; finish a layer before beginning another.
 *
 *   p [H,R,S] in    queries row .. row+R-1 of all heads; f32 or f64, any strides
 *
 * Weights are not negative; rows sum to 1, to less (a sink takes part of the mass), or to 0 (no
 * visible key); weights on keys that the text's description or the layer's window hides are 0.
 *
 * Memory   borrows p for the call.
 * Errors   MHA_ERR_NULL, MHA_ERR_SHAPE, MHA_ERR_DTYPE, MHA_ERR_NOMEM; MHA_ERR_ARGUMENT (order,
 *          layer); MHA_ERR_NUMERIC (a weight is not finite, negative, or on a hidden key; a row
 *          sums to more than 1.001). On error nothing of p is counted.
 * Threads  one; uses the context's.
 * Accuracy sums over a text are in double, in the order of j and t; those over texts are exact to
 *          2^-128 a text and rounded once: the same bits for any number of threads, any division
 *          into blocks and any order of texts.
 * Since    0.1
 */
MHA_API MHA_NODISCARD mha_status mha_head_measures_rows(mha_head_measures *measures, int64_t layer,
                                                        int64_t row, const mha_tensor *p);

/**
 * Compute and add all rows of a layer: mha_head_measures_window(), then mha_attention_visit_rows()
 * into mha_head_measures_rows(). One sequence only: B is 1.
 *
 * Memory, Errors, Threads  as those two.   Since  0.1
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
 * Add what another object has measured on other texts of the same model, for example on another
 * machine or in another process's share of a corpus. `from` is unchanged.
 *
 * Scores, offsets and relations have the bits that one object would have after all texts, however
 * these were divided and in any order of merging. In details the texts of `from` are
 * numbered after those of `measures`, and among equally strong ones the earlier is kept.
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
 * Add what was measured of other layers in the same texts, such as by a rank that has other layers of a
 * model (MHA_HEAD_PASS_OWN_LAYERS). Texts are not counted again; the result has the bits of one object
 * that got the rows of all layers.
 *
 *   from    with as many texts, which came in the same order; no layer has rows in both
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

/* Positions behind the scores. */
typedef struct mha_head_details {
    int64_t diagonal_offset;   /* of MHA_MEASURE_DIAGONAL */
    int64_t positional_offset; /* of MHA_MEASURE_POSITIONAL */
    /* Of the text in which they were strongest, counted from 0; -1: none. */
    int64_t column_text, columns, column[3]; /* of MHA_MEASURE_VERTICAL, strongest first */
    int64_t cut_text, cut; /* of MHA_MEASURE_CUT: the second segment's first key */
} mha_head_details;

/** Where a head's scores come from; zeros for numbers out of range. Memory none. Errors none.
 * Threads as score. Since 0.1 */
MHA_API mha_head_details mha_head_measures_details(const mha_head_measures *measures, int64_t layer,
                                                   int64_t head);

/* Mass at one offset, and how often the row's largest weight is there (the first, if several). */
typedef struct mha_head_offset {
    mha_head_score mass, largest;
} mha_head_offset;

/** The diagonal j = i + offset, |offset| <= farthest_offset; zeros for numbers out of range. Memory
 * none. Errors none. Threads as score. Since 0.1 */
MHA_API mha_head_offset mha_head_measures_offset(const mha_head_measures *measures, int64_t layer,
                                                 int64_t head, int64_t offset);

/* Both directions of a relation: the link's query word attends to its key word, or the reverse. */
enum { MHA_LINK_FORWARD = 0, MHA_LINK_BACKWARD = 1 };

/* Over the links whose partner is visible: it and at least one other word. */
typedef struct mha_head_relation {
    mha_head_score
        accuracy;        /* share of links where the word with the largest weight is the partner;
                            special tokens, separators and the word itself left out. rows: links */
    mha_head_score mass; /* mean weight of the partner, of all the row's */
    double baseline;     /* accuracy of always choosing the most frequent offset */
    int64_t baseline_offset; /* in words */
} mha_head_relation;

/** A relation's figures in a direction; zeros for numbers out of range. Memory none. Errors none.
 * Threads as score. Since 0.1 */
MHA_API mha_head_relation mha_head_measures_relation(const mha_head_measures *measures,
                                                     int64_t layer, int64_t head, int64_t relation,
                                                     int direction);

/* ---- Roles ----------------------------------------------------------------------------------- */

/* All roles: id, name, the score that decides, the threshold it must reach, VALUE or CORRECTED, the
 * minimum number of rows, what such a head does, the source of the threshold.
 * Specific ones come first. A share must also be at least 0.1 above its chance. LINKS is decided
 * for each relation and direction: accuracy - baseline. New ones are appended. */
#define MHA_ROLE_LIST(X)                                                                           \
    X(PREVIOUS, "previous token", PREVIOUS, 0.5, VALUE, 4,                                         \
      "each token looks at the token just before it", "Clark 2019: mean mass above 0.5")           \
    X(NEXT, "next token", NEXT, 0.5, VALUE, 4, "each token looks at the token just after it",      \
      "Clark 2019: mean mass above 0.5")                                                           \
    X(SELF, "self", SELF, 0.5, VALUE, 4, "each token looks at itself", "as for previous token")    \
    X(SINK, "first token", SINK, 0.3, VALUE, 4, "attention rests on the first token (a sink)",     \
      "Gu 2024: epsilon 0.3")                                                                      \
    X(SEPARATOR, "separator", SEPARATOR, 0.6, VALUE, 4, "attention rests on the separators",       \
      "Clark 2019, notebook: above 0.6")                                                           \
    X(DUPLICATE, "duplicate token", DUPLICATE, 0.3, CORRECTED, 4,                                  \
      "a token that occurred before looks at its other occurrence", "as for induction")            \
    X(INDUCTION, "induction", INDUCTION, 0.3, CORRECTED, 4,                                        \
      "a token that occurred before looks at what followed it then",                               \
      "Olsson 2022; 0.3 as in studies of Llama 3")                                                 \
    X(RARE, "rare word", RAREST_TWO, 0.5, VALUE, 10, "it points to the rarest words of the text",  \
      "Voita 2019: above half of the texts, two rarest")                                           \
    X(LINKS, "syntactic", COSINE, 0.1, VALUE, 10, "a word looks at the word it is linked with",    \
      "Voita 2019: 10 points above the best offset")                                               \
    X(SEMANTIC, "semantic", COSINE, 0.5, VALUE, 4, "tokens look at tokens with similar inputs",    \
      "ours")                                                                                      \
    X(POSITIONAL, "positional", POSITIONAL, 0.9, VALUE, 4,                                         \
      "the largest weight is nearly always at one distance", "Voita 2019: at least 90 % of rows")  \
    X(BLOCK, "block", BLOCK, 0.5, CORRECTED, 4, "tokens look evenly over their own segment",       \
      "ours, after Kovaleva 2019")                                                                 \
    X(BROAD, "broad", BROAD, 0.95, VALUE, 4, "attention is spread over all tokens",                \
      "Clark 2019: 3.8 nats of log 128")                                                           \
    X(HORIZONTAL, "horizontal", HORIZONTAL, 0.1, VALUE, 4,                                         \
      "a few tokens look everywhere while the others look at few", "ours")                         \
    X(DIAGONAL, "diagonal", DIAGONAL, 0.5, CORRECTED, 4, "each token looks a fixed distance away", \
      "ours, after Kovaleva 2019")                                                                 \
    X(LOCAL, "local", NEAR, 0.5, CORRECTED, 4, "each token looks at its neighbourhood", "ours")    \
    X(VERTICAL, "vertical", VERTICAL, 0.5, CORRECTED, 4, "all tokens look at the same few tokens", \
      "ours, after Kovaleva 2019")                                                                 \
    X(CUT, "two blocks", CUT, 0.5, CORRECTED, 4, "the text falls into two parts, each for itself", \
      "ours, after Kovaleva 2019")

typedef enum mha_role {
#define MHA_ROLE_ENUM(id, ...) MHA_ROLE_##id,
    MHA_ROLE_LIST(MHA_ROLE_ENUM)
#undef MHA_ROLE_ENUM
        MHA_ROLES
} mha_role;

typedef struct mha_role_info {
    const char *name, *text, *source;
    mha_head_measure measure; /* decides; not for MHA_ROLE_LINKS */
    double threshold;
    bool corrected; /* the corrected score is compared, else the value */
    int64_t least_rows;
} mha_role_info;

/** What a role means; an unknown one has the name "?". Memory static text. Errors none. Threads
 * any. Since 0.1 */
MHA_API mha_role_info mha_role_describe(mha_role role);

/* A role that a head has. */
typedef struct mha_head_role {
    mha_role role;
    int64_t offset;       /* of positional and diagonal, else 0 */
    int64_t relation;     /* of syntactic, else 0 */
    int direction;        /* MHA_LINK_FORWARD, MHA_LINK_BACKWARD */
    mha_head_score score; /* what decided */
    char evidence[192];   /* "previous token 0.94, chance 0.06, 63 rows": one line of UTF-8 */
} mha_head_role;

/**
 * The roles of a head, in the order of the list: none, one or several. A general one is left out
 * if a specific one implies it: diagonal and local beside previous, next and self; local
 * beside diagonal; vertical beside first token and separator; two blocks beside block.
 *
 *   roles [most] out    the first `most` of them; NULL with most 0 to count
 *
 * Returns the number of roles; 0 means that none was found.
 *
 * Memory   none.   Errors  none.   Threads  as score.   Since  0.1
 */
MHA_API int64_t mha_head_measures_roles(const mha_head_measures *measures, int64_t layer,
                                        int64_t head, mha_head_role *roles, int64_t most);

#ifdef __cplusplus
}
#endif
#endif
