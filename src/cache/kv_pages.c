/* The page tables of sequences. A sequence of length n has ceil(n / page_size) entries; the last
 * page may be partly filled. Shared pages are copied on write. With a window, entries between the
 * sinks and the first visible position refer to the empty page. */
#include "cache/kv_cache.h"

#include "base/checked.h"
#include "base/need.h"

#include <multihead/component.h>

#include <string.h>

static int64_t pages_of(const mha_kv_cache *cache, int64_t length)
{
    return mhai_ceil_div(length, cache->desc.page_size);
}

static int32_t *row_of(const mha_kv_cache *cache, int64_t b)
{
    return cache->table + b * cache->pages.entries;
}

void mhai_kv_pages_reset(mha_kv_cache *cache)
{
    const int64_t pages = cache->desc.pages;
    memset(cache->lengths, 0, (size_t)cache->desc.batch * sizeof *cache->lengths);
    memset(cache->discarded, 0, (size_t)cache->desc.batch * sizeof *cache->discarded);
    memset(cache->references, 0, (size_t)pages * sizeof *cache->references);
    cache->free_count = pages;
    for (int64_t i = 0; i < pages; i++) cache->free_pages[i] = (int32_t)(pages - 1 - i);
}

static void hold(mha_kv_cache *cache, int32_t page)
{
    if (page != mhai_kv_empty_page(cache)) cache->references[page]++;
}

static void release(mha_kv_cache *cache, int32_t page)
{
    if (page == mhai_kv_empty_page(cache)) return;
    if (--cache->references[page] == 0) cache->free_pages[cache->free_count++] = page;
}

/* ---- windows -------------------------------------------------------------------------------- */

/* The first entry that the window of a query at `position` needs. */
static int64_t first_needed(const mha_kv_cache *cache, int64_t position)
{
    const int64_t before = mhai_max_i64(0, position) - (cache->desc.window - 1);
    return mhai_max_i64(0, before) / cache->desc.page_size;
}

/* Whether all positions that a query at `length` sees are in the cache. */
static bool holds_window(const mha_kv_cache *cache, int64_t discarded, int64_t length)
{
    return pages_of(cache, length) <= mhai_kv_sink_pages(cache) ||
           first_needed(cache, length) >= mhai_min_i64(discarded, pages_of(cache, length));
}

/* Number of discarded entries among the first `entries` entries of a sequence. */
static int64_t discarded_of(const mha_kv_cache *cache, int64_t discarded, int64_t entries)
{
    return entries <= mhai_kv_sink_pages(cache) ? 0 : mhai_min_i64(discarded, entries);
}

/* The entries of sequence b that appending these rows discards. */
static mhai_attn_range discards(const mha_kv_cache *cache, const mhai_kv_rows *rows, int64_t b)
{
    const mhai_attn_range none = {0, 0};
    if (cache->desc.window == 0 || mhai_kv_count(rows, b) == 0) return none;
    const int64_t begin = mhai_max_i64(mhai_kv_sink_pages(cache), cache->discarded[b]);
    const int64_t end = first_needed(cache, cache->lengths[b] - mhai_kv_first(rows, b));
    return begin < end ? (mhai_attn_range){begin, end} : none;
}

mha_status mhai_kv_pages_check_truncate(const mha_kv_cache *cache, int64_t b, int64_t length)
{
    if (length < 0 || length > cache->lengths[b])
        return mha_fail(MHA_ERR_ARGUMENT,
                        "cache: sequence %lld holds %lld positions, it cannot be truncated to %lld",
                        (long long)b, (long long)cache->lengths[b], (long long)length);
    if (cache->desc.window == 0 || holds_window(cache, cache->discarded[b], length)) return MHA_OK;
    return mha_fail(
        MHA_ERR_ARGUMENT,
        "cache: sequence %lld has discarded positions before %lld, which the window of %lld "
        "includes at %lld; truncate it to %lld or more, or to at most %lld",
        (long long)b, (long long)(cache->discarded[b] * cache->desc.page_size),
        (long long)cache->desc.window, (long long)length,
        (long long)(cache->discarded[b] * cache->desc.page_size + cache->desc.window - 1),
        (long long)(mhai_kv_sink_pages(cache) * cache->desc.page_size));
}

int64_t mhai_kv_pages_restorable(const mha_kv_cache *cache, int64_t b, int64_t length)
{
    while (cache->desc.window > 0 && !holds_window(cache, cache->discarded[b], length)) length--;
    return length;
}

void mhai_kv_pages_truncate(mha_kv_cache *cache, int64_t b, int64_t length)
{
    const int64_t keep = pages_of(cache, length);
    for (int64_t i = pages_of(cache, cache->lengths[b]); i > keep; i--)
        release(cache, row_of(cache, b)[i - 1]);
    cache->lengths[b] = length;
    cache->discarded[b] = discarded_of(cache, cache->discarded[b], keep);
}

/* ---- new rows ------------------------------------------------------------------------------- */

/* The page that sequence b writes to next, or -1 if its last page is full. */
static int32_t partial_page(const mha_kv_cache *cache, int64_t b)
{
    const int64_t length = cache->lengths[b], size = cache->desc.page_size;
    return length % size == 0 ? -1 : row_of(cache, b)[length / size];
}

/* Whether sequence b must copy its last page. If all sequences that share a page append to it, the
 * last of them can keep it. */
static bool copies_page(const mha_kv_cache *cache, const mhai_kv_rows *rows, int64_t b)
{
    const int32_t page = partial_page(cache, b);
    if (page < 0 || mhai_kv_count(rows, b) == 0 || cache->references[page] == 1) return false;
    int64_t before = 0;
    for (int64_t i = 0; i < b; i++)
        before += mhai_kv_count(rows, i) > 0 && partial_page(cache, i) == page;
    return cache->references[page] - before > 1;
}

/* The number of pages that become free when every sequence discards its unneeded entries. A sign of
 * -1 removes their references; 1 restores them. */
static int64_t count_discarded(const mha_kv_cache *cache, const mhai_kv_rows *rows, int sign)
{
    int64_t freed = 0;
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const mhai_attn_range range = discards(cache, rows, b);
        for (int64_t i = range.begin; i < range.end; i++) {
            int32_t *holders = &cache->references[row_of(cache, b)[i]];
            *holders += sign;
            freed += *holders == 0;
        }
    }
    return freed;
}

mha_status mhai_kv_pages_check(const mha_kv_cache *cache, const mhai_kv_rows *rows)
{
    int64_t needed = 0;
    const int64_t free = cache->free_count + count_discarded(cache, rows, -1);
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const int64_t length = cache->lengths[b];
        needed += pages_of(cache, length + mhai_kv_count(rows, b)) - pages_of(cache, length) +
                  copies_page(cache, rows, b);
    }
    count_discarded(cache, rows, 1);
    if (needed <= free) return MHA_OK;
    return mha_fail(MHA_ERR_NOMEM,
                    "cache: %lld pages are needed, %lld of %lld are free; truncate a sequence, or "
                    "make a cache with more pages%s",
                    (long long)needed, (long long)free, (long long)cache->desc.pages,
                    cache->desc.window > 0 ? " or a larger max_append" : "");
}

static int32_t take_page(mha_kv_cache *cache)
{
    const int32_t page = cache->free_pages[--cache->free_count];
    cache->references[page] = 1;
    return page;
}

/* Copy the runs of a page that start below position `used`. */
static void copy_runs(const mha_kv_cache *cache, const unsigned char *at, int64_t bytes,
                      int32_t from, int32_t to, int64_t used)
{
    const mhai_attn_pages *pages = &cache->pages;
    unsigned char *out = (unsigned char *)(uintptr_t)at;
    for (int64_t h = 0; h < cache->desc.kv_heads; h++)
        memcpy(out + mhai_attn_page_run(pages, to, h, 0) * bytes,
               at + mhai_attn_page_run(pages, from, h, 0) * bytes,
               (size_t)(mhai_ceil_div(used, MHAI_RUN) * bytes));
}

static void own_page(mha_kv_cache *cache, int64_t b)
{
    const mhai_attn_pages *pages = &cache->pages;
    const int64_t used = cache->lengths[b] % cache->desc.page_size;
    int32_t *entry = row_of(cache, b) + cache->lengths[b] / cache->desc.page_size;
    if (used == 0 || cache->references[*entry] == 1) return;
    const int32_t page = take_page(cache);
    copy_runs(cache, pages->keys, pages->key_bytes, *entry, page, used);
    copy_runs(cache, pages->values, pages->value_bytes, *entry, page, used);
    release(cache, *entry);
    *entry = page;
}

static void discard(mha_kv_cache *cache, const mhai_kv_rows *rows, int64_t b)
{
    const mhai_attn_range range = discards(cache, rows, b);
    for (int64_t i = range.begin; i < range.end; i++) {
        release(cache, row_of(cache, b)[i]);
        row_of(cache, b)[i] = mhai_kv_empty_page(cache);
    }
    if (range.begin < range.end) cache->discarded[b] = range.end;
}

void mhai_kv_pages_take(mha_kv_cache *cache, const mhai_kv_rows *rows)
{
    for (int64_t b = 0; b < cache->desc.batch; b++) discard(cache, rows, b);
    for (int64_t b = 0; b < cache->desc.batch; b++) {
        const int64_t length = cache->lengths[b], count = mhai_kv_count(rows, b);
        const int64_t end = pages_of(cache, length + count);
        if (count > 0) own_page(cache, b);
        for (int64_t i = pages_of(cache, length); i < end; i++)
            row_of(cache, b)[i] = take_page(cache);
    }
}

/* ---- the calls ------------------------------------------------------------------------------ */

static mha_status check_sequence(const mha_kv_cache *cache, int64_t b)
{
    if (b >= 0 && b < cache->desc.batch) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT, "cache: there is no sequence %lld, expected 0..%lld",
                    (long long)b, (long long)(cache->desc.batch - 1));
}

mha_status mha_kv_cache_truncate(mha_kv_cache *cache, int64_t b, int64_t length)
{
    if (!cache) return mha_fail(MHA_ERR_NULL, "mha_kv_cache_truncate: cache is NULL");
    MHA_TRY(check_sequence(cache, b));
    MHA_TRY(mhai_kv_pages_check_truncate(cache, b, length));
    mhai_kv_pages_truncate(cache, b, length);
    return MHA_OK;
}

mha_status mha_kv_cache_fork(mha_kv_cache *cache, int64_t from, int64_t to, int64_t length)
{
    if (!cache) return mha_fail(MHA_ERR_NULL, "mha_kv_cache_fork: cache is NULL");
    MHA_TRY(check_sequence(cache, from));
    MHA_TRY(check_sequence(cache, to));
    if (from == to)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_kv_cache_fork: sequence %lld cannot be forked to itself",
                        (long long)to);
    MHA_TRY(mhai_kv_pages_check_truncate(cache, from, length));
    const int64_t shared = pages_of(cache, length);
    mhai_kv_pages_truncate(cache, to, 0);
    memcpy(row_of(cache, to), row_of(cache, from), (size_t)shared * sizeof *cache->table);
    for (int64_t i = 0; i < shared; i++) hold(cache, row_of(cache, to)[i]);
    cache->lengths[to] = length;
    cache->discarded[to] = discarded_of(cache, cache->discarded[from], shared);
    return MHA_OK;
}

/* Marks a page as seen in the counts. */
static const int32_t SEEN = 1 << 30;

static mha_status check_page(const mha_kv_cache *cache, const int32_t *pages, int64_t i)
{
    const int32_t page = pages[i];
    if (page == mhai_kv_empty_page(cache) && cache->desc.window > 0) return MHA_OK;
    MHA_TRY(mhai_check_entry("pages", i, page, 0, cache->desc.pages - 1));
    if (cache->references[page] & SEEN)
        return mha_fail(MHA_ERR_ARGUMENT, "pages[%lld] is %d, as is an earlier one", (long long)i,
                        (int)page);
    if (cache->references[page] == 0)
        return mha_fail(MHA_ERR_ARGUMENT, "pages[%lld] is %d, which no sequence holds",
                        (long long)i, (int)page);
    return MHA_OK;
}

/* Check that each entry is a page in use, and that no page repeats. */
static mha_status check_pages(mha_kv_cache *cache, const int32_t *pages, int64_t count)
{
    mha_status status = MHA_OK;
    int64_t seen = 0;
    for (; seen < count; seen++) {
        status = check_page(cache, pages, seen);
        if (status != MHA_OK) break;
        if (pages[seen] != mhai_kv_empty_page(cache)) cache->references[pages[seen]] |= SEEN;
    }
    for (int64_t i = 0; i < seen; i++)
        if (pages[i] != mhai_kv_empty_page(cache)) cache->references[pages[i]] &= ~SEEN;
    return status;
}

/* Check that entries for the empty page are between the sinks and the
 * window, and return their end. */
static mha_status check_discarded(const mha_kv_cache *cache, const int32_t *pages, int64_t count,
                                  int64_t length, int64_t *end)
{
    const int64_t begin = mhai_kv_sink_pages(cache);
    int64_t wrong = -1;
    *end = 0;
    for (int64_t i = 0; i < count && wrong < 0; i++) {
        if (pages[i] != mhai_kv_empty_page(cache)) continue;
        if (i != (*end == 0 ? begin : *end)) wrong = i;
        *end = i + 1;
    }
    if (wrong < 0 && (*end == 0 || holds_window(cache, *end, length))) return MHA_OK;
    return mha_fail(MHA_ERR_ARGUMENT,
                    "mha_kv_cache_assign: pages[%lld] is discarded, but the window of %lld or the "
                    "sinks include it at %lld, or a page before it is not discarded; only those "
                    "from pages[%lld] to the window's first page may be",
                    (long long)(*end - 1), (long long)cache->desc.window, (long long)length,
                    (long long)begin);
}

mha_status mha_kv_cache_assign(mha_kv_cache *cache, int64_t b, const int32_t *pages, int64_t count,
                               int64_t length)
{
    if (!cache || (!pages && count > 0))
        return mha_fail(MHA_ERR_NULL, "mha_kv_cache_assign: %s is NULL", cache ? "pages" : "cache");
    MHA_TRY(check_sequence(cache, b));
    if (length > cache->desc.capacity)
        return mha_fail(MHA_ERR_SIZE, "cache: %lld positions are more than its capacity, %lld",
                        (long long)length, (long long)cache->desc.capacity);
    if (length < 0 || count != pages_of(cache, length))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_kv_cache_assign: %lld pages for %lld positions, expected %lld",
                        (long long)count, (long long)length,
                        (long long)(length < 0 ? 0 : pages_of(cache, length)));
    int64_t discarded;
    MHA_TRY(check_pages(cache, pages, count));
    MHA_TRY(check_discarded(cache, pages, count, length, &discarded));
    for (int64_t i = 0; i < count; i++) hold(cache, pages[i]);
    mhai_kv_pages_truncate(cache, b, 0);
    if (count > 0) memmove(row_of(cache, b), pages, (size_t)count * sizeof *pages);
    cache->lengths[b] = length;
    cache->discarded[b] = discarded;
    return MHA_OK;
}

const int32_t *mha_kv_cache_pages(const mha_kv_cache *cache, int64_t b, int64_t *count)
{
    if (b < 0 || b >= cache->desc.batch) return NULL;
    *count = pages_of(cache, cache->lengths[b]);
    return row_of(cache, b);
}

int64_t mha_kv_cache_free_pages(const mha_kv_cache *cache)
{
    return cache->free_count;
}
