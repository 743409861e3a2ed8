/* See attn_pages.h. */
#include "attention/attn_pages.h"

#include "attention/attn_tiles.h"
#include "base/convert.h"

#include <math.h>
#include <string.h>

/* The keys, or the values, in the pages. */
typedef struct page_rows {
    const mhai_attn_pages *pages;
    const unsigned char *at;
    int64_t bytes, width; /* bytes per run; elements per position */
    bool turned;          /* keys: transposed within a run */
    bool channels;        /* powers of channels follow a run */
} page_rows;

static page_rows keys_of(const mhai_attn_problem *p)
{
    return (page_rows){p->pages, p->pages->keys, p->pages->key_bytes,
                       p->D,     true,           p->pages->channels};
}

static page_rows values_of(const mhai_attn_problem *p)
{
    return (page_rows){p->pages, p->pages->values, p->pages->value_bytes, p->Dv, false, false};
}

static const float *scales_of(const page_rows *x, const unsigned char *run)
{
    if (x->pages->type != MHA_I8 || x->channels) return NULL;
    return (const float *)(const void *)(run + x->bytes - MHAI_LINE);
}

static const int8_t *powers_of(const page_rows *x, const unsigned char *run)
{
    if (!x->channels) return NULL;
    return (const int8_t *)(run + x->bytes - mhai_round_up(x->width, MHAI_LINE));
}

/* The run that contains position s of a sequence, and the position's index in it (*lane). */
static const unsigned char *run_of(const page_rows *x, int64_t b, int64_t hk, int64_t s, int *lane)
{
    const int64_t page = x->pages->table[b * x->pages->entries + s / x->pages->page_size];
    const int64_t in_page = s % x->pages->page_size;
    *lane = (int)(in_page % MHAI_RUN);
    return x->at + mhai_attn_page_run(x->pages, page, hk, in_page) * x->bytes;
}

/* ---- runs of a block ----------------------------------------------------------------------- */

/* Whether a run of a sequence may span two pages. */
static bool gathers(const mhai_attn_problem *p)
{
    return p->pages && p->pages->entries > 1 && p->pages->page_size % MHAI_RUN != 0;
}

int64_t mhai_attn_gathered_bytes(const mhai_attn_problem *p)
{
    return gathers(p) ? MHAI_BLOCK_RUNS * (p->pages->key_bytes + p->pages->value_bytes) : 0;
}

/* Copy a position from one run to another. */
static void copy_lane(const page_rows *x, const unsigned char *from, int from_lane,
                      unsigned char *to, int to_lane)
{
    const int64_t size = (int64_t)mha_dtype_size(x->pages->type), width = x->width;
    if (x->pages->type == MHA_I8)
        memcpy(to + x->bytes - MHAI_LINE + (size_t)to_lane * sizeof(float),
               scales_of(x, from) + from_lane, sizeof(float));
    if (!x->turned) {
        memcpy(to + to_lane * width * size, from + from_lane * width * size,
               (size_t)(width * size));
        return;
    }
    for (int64_t c = 0; c < width; c++)
        memcpy(to + (c * MHAI_RUN + to_lane) * size, from + (c * MHAI_RUN + from_lane) * size,
               (size_t)size);
}

/* Copy the run that begins at position s of a sequence to `to`, excluding positions >= end. */
static void gather_run(const page_rows *x, int64_t b, int64_t hk, int64_t s, int64_t end,
                       unsigned char *to)
{
    memset(to, 0, (size_t)x->bytes);
    for (int to_lane = 0; to_lane < MHAI_RUN && s + to_lane < end; to_lane++) {
        int lane;
        const unsigned char *from = run_of(x, b, hk, s + to_lane, &lane);
        copy_lane(x, from, lane, to, to_lane);
    }
}

static mhai_run run_at(const page_rows *x, const unsigned char *at)
{
    return (mhai_run){
        .at = at, .scale = scales_of(x, at), .powers = powers_of(x, at), .type = x->pages->type};
}

/* Set pointers to `count` runs starting at position `key`, without copying. */
static void runs_in_place(const page_rows *x, int64_t b, int64_t hk, int64_t key, int64_t count,
                          mhai_run *runs)
{
    const mhai_attn_pages *pages = x->pages;
    const int64_t of_page = mhai_ceil_div(pages->page_size, MHAI_RUN), first = key / MHAI_RUN;
    const int64_t page_bytes = of_page * x->bytes;
    const unsigned char *head = x->at + hk * pages->pages * page_bytes;
    const int32_t *page = pages->table + b * pages->entries + first / of_page;
    int64_t in_page = first % of_page;
    for (int64_t i = 0; i < count; i++) {
        runs[i] = run_at(x, head + *page * page_bytes + in_page * x->bytes);
        if (++in_page < of_page) continue;
        in_page = 0;
        page++;
    }
}

/* Set pointers to the runs of a block and to the runs after it. Together they hold `left`
 * positions, starting at `first`. The last pointer is repeated for prefetches. */
static void find_runs(const page_rows *x, int64_t b, int64_t hk, int64_t first, int64_t left,
                      unsigned char *gathered, mhai_run *runs)
{
    const int64_t runs_left = mhai_ceil_div(left, MHAI_RUN);
    const int64_t block = mhai_min_i64(runs_left, MHAI_BLOCK_RUNS), all = block + MHAI_RUNS_AHEAD;
    const int64_t count = gathered ? block : mhai_min_i64(runs_left, all);
    if (!gathered) runs_in_place(x, b, hk, first, count, runs);
    for (int64_t i = 0; gathered && i < count; i++) {
        gather_run(x, b, hk, first + i * MHAI_RUN, first + left, gathered + i * x->bytes);
        runs[i] = run_at(x, gathered + i * x->bytes);
    }
    for (int64_t i = count; i < all; i++) runs[i] = runs[count - 1];
}

void mhai_attn_find_runs(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t hk,
                         int64_t key, mhai_attn_workspace *w)
{
    const page_rows keys = keys_of(p), values = values_of(p);
    const int64_t first = seq->k0 + key, left = mhai_attn_readable(p, seq, key);
    unsigned char *second = gathers(p) ? w->gathered + MHAI_BLOCK_RUNS * keys.bytes : NULL;
    find_runs(&keys, seq->b, hk, first, left, gathers(p) ? w->gathered : NULL, w->key_runs);
    find_runs(&values, seq->b, hk, first, left, second, w->value_runs);
}

/* ---- one position -------------------------------------------------------------------------- */

/* The value of an element stored as n. */
static float byte_value(const page_rows *x, const unsigned char *run, int lane, int64_t c, int8_t n)
{
    if (!x->channels) return (float)n * scales_of(x, run)[lane];
    const int8_t power = powers_of(x, run)[c];
    return power == MHAI_BAD_POWER ? NAN : ldexpf((float)n, power);
}

static void read_row(const page_rows *x, const mhai_attn_sequence *seq, int64_t hk, int64_t s,
                     float *room)
{
    const mha_dtype type = x->pages->type;
    const int64_t size = (int64_t)mha_dtype_size(type);
    int lane;
    const unsigned char *run = run_of(x, seq->b, hk, seq->k0 + s, &lane);
    for (int64_t c = 0; c < x->width; c++) {
        const unsigned char *at =
            run + (x->turned ? c * MHAI_RUN + lane : lane * x->width + c) * size;
        if (type == MHA_I8)
            room[c] = byte_value(x, run, lane, c, *(const int8_t *)at);
        else
            mhai_widen(type, at, 1, room + c);
    }
}

void mhai_attn_page_key(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t hk,
                        int64_t s, float *room)
{
    const page_rows keys = keys_of(p);
    read_row(&keys, seq, hk, s, room);
}

void mhai_attn_page_value(const mhai_attn_problem *p, const mhai_attn_sequence *seq, int64_t hk,
                          int64_t s, float *room)
{
    const page_rows values = values_of(p);
    read_row(&values, seq, hk, s, room);
}
