/* Keys and values in the pages of a cache. A page holds runs of MHAI_RUN positions of a head
 * (kernels.h). Blocks are read through one pointer per run. If a page is not a whole number of
 * runs, positions are first copied into runs. */
#ifndef MHAI_ATTN_PAGES_H
#define MHAI_ATTN_PAGES_H

#include "attention/attn.h"

struct mhai_attn_workspace;

typedef struct mhai_attn_pages {
    mha_dtype type;                     /* MHA_F32, MHA_F16, MHA_BF16 or MHA_I8 */
    const unsigned char *keys, *values; /* [heads][pages][runs of a page] */
    int64_t key_bytes, value_bytes;     /* bytes per run; with MHA_I8, its
                                         * last line holds the scales */
    bool channels; /* MHA_I8 keys: the last lines of a run hold the powers of channels; page_size is
                    * a multiple of MHAI_RUN, or each sequence has one page */
    int64_t pages, page_size; /* pages of a head are contiguous in memory, so that reading pages
                               * in order is sequential */
    const int32_t *table;     /* [B][entries] pages of each sequence */
    int64_t entries;
} mhai_attn_pages;

/* Bytes of a run of `width` elements: the numbers, then scales or powers of channels. */
static inline int64_t mhai_attn_run_bytes(mha_dtype type, int64_t width, bool channels)
{
    const int64_t numbers = width * MHAI_RUN * (int64_t)mha_dtype_size(type);
    const int64_t scales = type != MHA_I8 ? 0 : channels ? width : MHAI_LINE;
    return mhai_round_up(numbers, MHAI_LINE) + mhai_round_up(scales, MHAI_LINE);
}

/* Index of the run that holds this position of a page of head hk. */
static inline int64_t mhai_attn_page_run(const mhai_attn_pages *pages, int64_t page, int64_t hk,
                                         int64_t position)
{
    const int64_t runs = mhai_ceil_div(pages->page_size, MHAI_RUN);
    return (hk * pages->pages + page) * runs + position / MHAI_RUN;
}

/* Bytes of memory for the copied runs of a block; 0: runs are not copied. */
int64_t mhai_attn_gathered_bytes(const mhai_attn_problem *p);

/* Set pointers to the runs of the block at `key`, and to the next runs for prefetching. */
void mhai_attn_find_runs(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t hk,
                         int64_t key, struct mhai_attn_workspace *w);

/* Convert key or value s of a sequence to f32 in room. */
void mhai_attn_page_key(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t hk,
                        int64_t s, float *room);
void mhai_attn_page_value(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t hk,
                          int64_t s, float *room);

#endif
