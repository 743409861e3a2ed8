/* Internals of mha_head_measures: the data of a head, and the steps from a row to a score.
 *
 * head_text.c       checks of a text; places of equal tokens, the probes of its links
 *   head_facts.c      data of a row that is the same for all heads: its keys, chances
 * head_row.c        adds one row of one head to the head's sums
 * head_finish.c     scores of columns, blocks and families from the sums of a whole map
 *   head_measures.c   creation, destruction, and the public calls that feed
 *   head_scores.c     the public calls that read
 *   head_roles.c      roles
 */
#ifndef MHAI_HEAD_MEASURES_H
#define MHAI_HEAD_MEASURES_H

#include "analysis/exact_sum.h"

#include <multihead/component.h>
#include <multihead/heads.h>

enum {
    MHAI_HEAD_CUTS = 64,    /* candidates for the best cut: every key up to 64
                             * keys, then evenly spaced */
    MHAI_HEAD_GRID = 16,    /* blocks per side in the block family */
    MHAI_HEAD_FAR_LINK = 64 /* offsets of links in words, for the baseline */
};

/* Limits for counts and integer sums, checked when objects are merged or read from a file.
 * Below them, counts can be doubled and 256 of them added without overflow. A text adds less
 * than 2^60 to a sum (2^24 rows of terms below 2^36, or 20 times 2^20 rows of terms below
 * 2^30 in the bootstrap). */
#define MHAI_COUNT_MOST (INT64_C(1) << 53)
#define MHAI_SUM_MOST (INT64_C(1) << 62)

/* The fraction of the visible pairs that each family may cover. */
#define MHAI_HEAD_AREA 0.125

typedef struct mhai_head_sum {
    double value, chance;
    int64_t rows;
} mhai_head_sum;

typedef struct mhai_head_at { /* one offset */
    double mass, chance;
    int64_t rows, largest;
} mhai_head_at;

typedef struct mhai_head_link_sum { /* one relation and direction */
    double mass, chance, share;     /* share: chance level of the mass */
    int64_t hits, links;
} mhai_head_link_sum;

/* Sums of a head, over all texts or over the rows of the current layer. */
typedef struct mhai_head_kept {
    mhai_head_sum sum[MHA_MEASURES]; /* some measures derive their score from other fields */
    mha_head_details details;
    double best_column, best_cut; /* corrected scores of the texts in details */
    mhai_head_at *at;             /* [2 farthest_offset + 1] */
    mhai_head_link_sum *links;    /* [relations][2] */
} mhai_head_kept;

/* Sums of one head in the current layer. The arrays share one block of memory. */
typedef struct mhai_head_map {
    mhai_head_kept own;
    int64_t rows;                   /* rows that are not skipped, with weight and at
                                     * least two keys */
    int64_t broad_rows, sharp_rows; /* rows with evenness above 0.9; below 0.6 */
    double *column, *column_even;   /* [S] mass; sum of 1 / N over rows that see the key */
    int64_t *column_rows;           /* [S] */
    double *diagonal;               /* [S + T - 1] mass at j - t + T - 1 */
    int64_t *diagonal_rows;
    double cut[MHAI_HEAD_CUTS], cut_even[MHAI_HEAD_CUTS];
    int64_t cut_rows[MHAI_HEAD_CUTS];
    double grid[MHAI_HEAD_GRID * MHAI_HEAD_GRID];
    int64_t grid_area[MHAI_HEAD_GRID * MHAI_HEAD_GRID];
    double *word;                  /* [words] mass of the current probe's row by word */
    struct mhai_corpus_seen *seen; /* NULL: no corpus */
} mhai_head_map;

/* A link in one direction, from the rows of a group to the partner `word`. */
typedef struct mhai_head_probe {
    int64_t group_row, group_end; /* rows of tokens */
    int64_t from, to;             /* words; from is -1 if none is excluded */
    int64_t slot;                 /* relation * 2 + direction */
    int64_t offset;               /* to minus the link's own word */
} mhai_head_probe;

typedef struct mhai_head_text {
    mha_heads_text given;
    int64_t *same_before,
        *same_after;        /* [S] nearest occurrence of the same token, or -1; NULL: no ids */
    int64_t rarest, second; /* the largest ranks; -1: none */
    int64_t *word_of;       /* [S] */
    int64_t words;
    uint8_t *word_open;             /* [words] whether it may be a partner: not
                                     * special, not a separator */
    int64_t *word_begin, *word_end; /* [words] ranges of tokens */
    mhai_head_probe *probes;        /* sorted by group_row */
    int64_t probes_count;
    int64_t *probe_at; /* [T] the first probe whose group contains the row, or -1 */
    int64_t cuts, cut_at[MHAI_HEAD_CUTS];
    uint8_t *cut_bin;  /* [S] number of cuts at or before the key */
    uint8_t *grid_bin; /* [S] */
} mhai_head_text;

/* The keys that a layer's attention allows, in addition to the masks of the text. */
typedef struct mhai_head_window {
    bool on, causal;
    int64_t left, right, sinks; /* left or right -1: unbounded */
} mhai_head_window;

/* Data of a row that all heads share. */
typedef struct mhai_head_fact {
    int64_t t, i;       /* i: key position of the row; -1: none, or in another text */
    int64_t begin, end; /* range that contains all visible keys */
    int64_t keys;       /* number of visible keys, N */
    bool skipped;       /* excluded by the caller */
    int64_t in_segment; /* visible keys in its segment */
    uint8_t *visible;   /* [S] */
    double *cosine;     /* [S] between inputs i and j, or NULL */
    int64_t bin[MHAI_HEAD_CUTS + 1], cell[MHAI_HEAD_GRID]; /* numbers of visible keys */
    int64_t grid_row;
    double chance[MHA_MEASURES]; /* chance level of each score that is summed over rows;
                                  * negative: not eligible */
} mhai_head_fact;

struct mha_head_measures {
    mha_context *context;
    mha_allocator allocator;
    int64_t layers, *first_head; /* [layers + 1] */
    int64_t most_heads, offsets, near_tokens, rare_rank, relations;
    char **names;
    mhai_head_at *all_at; /* memory of kept[].at and .links */
    mhai_head_link_sum *all_links;
    mhai_head_kept *kept;  /* [first_head[layers]] */
    mhai_exact *exact;     /* [heads][exact sums] behind the doubles in kept */
    int64_t *link_offsets; /* [layers][relations][2][2 FAR_LINK + 1] */
    int64_t *link_count;   /* [layers][relations][2] */

    bool open;
    int64_t texts; /* finished texts */
    mhai_head_text text;
    mhai_head_window *windows;      /* [layers] */
    bool *done;                     /* [layers] */
    int64_t layer, row;             /* current layer, or -1, and its next row */
    struct mha_head_corpus *corpus; /* attached, or NULL */
    mha_tensor inputs;
    int64_t inputs_layer, signed_layer; /* -1: none */
    void *text_memory;
    size_t text_bytes;
    mhai_head_map *maps; /* [most_heads] */
    void *map_memory;
    size_t map_bytes;
};

/* head_measures.c: number of exact sums per head */
int64_t mhai_head_measures_exacts(const mha_head_measures *m);

/* Merging has two passes over all sums. The first pass checks that each sum stays within -most ..
 * most, even for hostile files. The second pass adds. */
typedef struct mhai_head_merge {
    bool adds, fits;
} mhai_head_merge;
void mhai_head_merge_counts(mhai_head_merge *pass, int64_t *to, const int64_t *from, int64_t count,
                            int64_t most);

/* head_text.c */
MHA_NODISCARD mha_status mhai_head_text_open(mha_head_measures *m, const mha_heads_text *text);
void mhai_head_text_close(mha_head_measures *m);

bool mhai_head_text_is_rarest(const mhai_head_text *text, int64_t j);
/* Whether the key after j, an earlier occurrence of token i, is a follower: neither i itself nor an
 * occurrence of the same token. */
bool mhai_head_text_is_follower(const mhai_head_text *text, int64_t i, int64_t j);
/* Whether key j is near the relative place of row t: |j - t (S - 1) / (T - 1)| <= near_tokens. */
bool mhai_head_text_is_level(const mha_head_measures *m, int64_t t, int64_t j);

/* Whether a probe applies to the heads of a layer: the partner must be eligible and
 * visible, and not the only key. */
bool mhai_head_text_eligible(const mhai_head_text *text, const mhai_head_window *window,
                             const mhai_head_probe *probe);

/* head_facts.c: whether query t sees key j */
bool mhai_head_facts_sees(const mhai_head_text *text, const mhai_head_window *window, int64_t t,
                          int64_t j);
/* Compute the facts of rows row .. row+count-1 in scratch. */
MHA_NODISCARD mha_status mhai_head_facts_make(mha_head_measures *m, int64_t row, int64_t count,
                                              mhai_head_fact **facts);

/* head_row.c: add row a[S], in double. given: the caller's row, with signs. */
void mhai_head_row_add(const mha_head_measures *m, const mhai_head_fact *fact, const double *a,
                       const double *given, mhai_head_map *map);

/* head_finish.c. memory: mhai_head_finish_bytes() for each worker */
size_t mhai_head_finish_bytes(const mha_head_measures *m);
void mhai_head_finish_map(const mha_head_measures *m, mhai_head_map *map, void *memory);

#endif
