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
    MHAI_HEAD_CUTS = 64,    /* candidates for the best cut: all up to 64 keys, then evenly spaced */
    MHAI_HEAD_GRID = 16,    /* blocks of the block family, in each direction */
    MHAI_HEAD_FAR_LINK = 64 /* offsets of links in words, for the baseline */
};

/* Limits of counts and integer sums when objects are merged or read from a file: below them, counts
 * can be doubled, and 256 of them added. A text adds less than 2^60 to a sum (2^24 rows of terms
 * below 2^36, or 20 times 2^20 rows of terms below 2^30 in the bootstrap). */
#define MHAI_COUNT_MOST (INT64_C(1) << 53)
#define MHAI_SUM_MOST (INT64_C(1) << 62)

/* The part of the map that each family may cover: 1 / 8 of the visible pairs. */
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
    double mass, chance, share;     /* share: chance of the mass */
    int64_t hits, links;
} mhai_head_link_sum;

/* The sums of a head over all texts, and separately over the current layer's rows. */
typedef struct mhai_head_kept {
    mhai_head_sum sum[MHA_MEASURES]; /* some measures compute the score from other numbers */
    mha_head_details details;
    double best_column, best_cut; /* corrected, for the texts that details name */
    mhai_head_at *at;             /* [2 farthest_offset + 1] */
    mhai_head_link_sum *links;    /* [relations][2] */
} mhai_head_kept;

/* The current layer's sums of one head; arrays are parts of one block. */
typedef struct mhai_head_map {
    mhai_head_kept own;
    int64_t rows;                   /* not skipped, with weight and at least two keys */
    int64_t broad_rows, sharp_rows; /* evenness above 0.9; below 0.6 */
    double *column, *column_even;   /* [S] mass; sum of 1 / N over the rows that see the key */
    int64_t *column_rows;           /* [S] */
    double *diagonal;               /* [S + T - 1] mass at j - t + T - 1 */
    int64_t *diagonal_rows;
    double cut[MHAI_HEAD_CUTS], cut_even[MHAI_HEAD_CUTS];
    int64_t cut_rows[MHAI_HEAD_CUTS];
    double grid[MHAI_HEAD_GRID * MHAI_HEAD_GRID];
    int64_t grid_area[MHAI_HEAD_GRID * MHAI_HEAD_GRID];
    double *word;                  /* [words] the current probe's row, by words */
    struct mhai_corpus_seen *seen; /* NULL: no corpus */
} mhai_head_map;

/* A link in one direction: `word` is the partner in the rows of one group. */
typedef struct mhai_head_probe {
    int64_t group_row, group_end; /* token rows */
    int64_t from, to;             /* words; from -1: none is excluded */
    int64_t slot;                 /* relation * 2 + direction */
    int64_t offset;               /* to - the link's own word */
} mhai_head_probe;

typedef struct mhai_head_text {
    mha_heads_text given;
    int64_t *same_before,
        *same_after;        /* [S] nearest place of the same token, or -1; NULL: no ids */
    int64_t rarest, second; /* largest ranks; -1: none */
    int64_t *word_of;       /* [S] */
    int64_t words;
    uint8_t *word_open;             /* [words] may be a partner: not special, no separator */
    int64_t *word_begin, *word_end; /* [words] token ranges */
    mhai_head_probe *probes;        /* by group_row */
    int64_t probes_count;
    int64_t *probe_at; /* [T] the first probe whose group holds the row, or -1 */
    int64_t cuts, cut_at[MHAI_HEAD_CUTS];
    uint8_t *cut_bin;  /* [S] how many cuts are at or before the key */
    uint8_t *grid_bin; /* [S] */
} mhai_head_text;

/* The keys that a layer's attention shows to queries, in addition to the text's masks. */
typedef struct mhai_head_window {
    bool on, causal;
    int64_t left, right, sinks; /* left and right -1: open */
} mhai_head_window;

/* The data of a row, shared by all heads. */
typedef struct mhai_head_fact {
    int64_t t, i;       /* i: its key position; -1 across texts or outside */
    int64_t begin, end; /* the range of all visible keys */
    int64_t keys;       /* N */
    bool skipped;       /* by the caller */
    int64_t in_segment; /* visible keys of its segment */
    uint8_t *visible;   /* [S] */
    double *cosine;     /* [S] of inputs i and j, or NULL */
    int64_t bin[MHAI_HEAD_CUTS + 1], cell[MHAI_HEAD_GRID]; /* visible keys */
    int64_t grid_row;
    double chance[MHA_MEASURES]; /* of a score summed over rows; below 0: not eligible */
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
    mhai_exact *exact;     /* [heads][exact sums], which kept's doubles round */
    int64_t *link_offsets; /* [layers][relations][2][2 FAR_LINK + 1] */
    int64_t *link_count;   /* [layers][relations][2] */

    bool open;
    int64_t texts; /* that have ended */
    mhai_head_text text;
    mhai_head_window *windows;      /* [layers] */
    bool *done;                     /* [layers] */
    int64_t layer, row;             /* being fed, -1: none; its next row */
    struct mha_head_corpus *corpus; /* attached, or NULL */
    mha_tensor inputs;
    int64_t inputs_layer, signed_layer; /* -1: none */
    void *text_memory;
    size_t text_bytes;
    mhai_head_map *maps; /* [most_heads] */
    void *map_memory;
    size_t map_bytes;
};

/* head_measures.c: exact sums of a head */
int64_t mhai_head_measures_exacts(const mha_head_measures *m);

/* Merging visits all sums twice: first to check that each stays within -most .. most, even for
 * hostile files, then to add. */
typedef struct mhai_head_merge {
    bool adds, fits;
} mhai_head_merge;
void mhai_head_merge_counts(mhai_head_merge *pass, int64_t *to, const int64_t *from, int64_t count,
                            int64_t most);

/* head_text.c */
MHA_NODISCARD mha_status mhai_head_text_open(mha_head_measures *m, const mha_heads_text *text);
void mhai_head_text_close(mha_head_measures *m);

bool mhai_head_text_is_rarest(const mhai_head_text *text, int64_t j);
/* True if the key after j, an earlier occurrence of token i, is a follower: neither i nor the same
 * token. */
bool mhai_head_text_is_follower(const mhai_head_text *text, int64_t i, int64_t j);

/* True if a probe applies to every head of a layer: the partner is eligible, visible, and not the
 * only key. */
bool mhai_head_text_eligible(const mhai_head_text *text, const mhai_head_window *window,
                             const mhai_head_probe *probe);

/* head_facts.c: true if query t sees key j */
bool mhai_head_facts_sees(const mhai_head_text *text, const mhai_head_window *window, int64_t t,
                          int64_t j);
/* Facts of rows row .. row+count-1, in scratch. */
MHA_NODISCARD mha_status mhai_head_facts_make(mha_head_measures *m, int64_t row, int64_t count,
                                              mhai_head_fact **facts);

/* head_row.c: a row is a[S], in double; given: the caller's row, with signs. */
void mhai_head_row_add(const mha_head_measures *m, const mhai_head_fact *fact, const double *a,
                       const double *given, mhai_head_map *map);

/* head_finish.c; memory: mhai_head_finish_bytes() per worker */
size_t mhai_head_finish_bytes(const mha_head_measures *m);
void mhai_head_finish_map(const mha_head_measures *m, mhai_head_map *map, void *memory);

/* head_scores.c */
mha_head_score mhai_head_scores_share(double value, double chance, int64_t rows);

#endif
