/* Check a text, and prepare data for the rows of all layers: repeated tokens, rarest tokens,
 * candidate cuts, and links as probes.
 *
 * A probe is a link in one direction: the query rows of one word, and the word to which they should
 * attend. Probes are sorted by row, so the probes of a word are adjacent. */
#include "analysis/grid.h"
#include "analysis/head_corpus.h"
#include "analysis/head_measures.h"

#include "base/checked.h"
#include "base/need.h"

#include <stdlib.h>
#include <string.h>

/* ---- checks ---------------------------------------------------------------------------------- */

static mha_status check_flags(const mha_heads_text *x)
{
    const uint32_t known =
        MHA_HEADS_CAUSAL | MHA_HEADS_WINDOW | MHA_HEADS_CROSS | MHA_HEADS_QUERY_PREDICTS;
    MHA_TRY(mhai_check_flags("mha_heads_text", x->flags, known));
    if (x->flags & MHA_HEADS_CROSS &&
        x->flags & (MHA_HEADS_CAUSAL | MHA_HEADS_WINDOW | MHA_HEADS_QUERY_PREDICTS))
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_heads_text: MHA_HEADS_CROSS has no masks; clear causal, "
                        "window and query_predicts");
    if (!(x->flags & MHA_HEADS_WINDOW) && (x->left_keys || x->right_keys || x->sink_keys))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_heads_text: left_keys, right_keys and sink_keys "
                                          "require the flag MHA_HEADS_WINDOW");
    if (x->left_keys < -1 || x->right_keys < -1 || x->sink_keys < 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_heads_text: left_keys %lld, right_keys %lld, sink_keys %lld; expected "
                        "numbers of keys >= 0, or -1 for no limit",
                        (long long)x->left_keys, (long long)x->right_keys, (long long)x->sink_keys);
    return MHA_OK;
}

static mha_status check_numbers(const mha_heads_text *x)
{
    if (x->queries < 0 || x->keys < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_heads_text: %lld queries and %lld keys",
                        (long long)x->queries, (long long)x->keys);
    if (x->queries > INT32_MAX || x->keys > INT32_MAX || x->q_offset > INT32_MAX ||
        x->q_offset < -INT32_MAX)
        return mha_fail(MHA_ERR_SIZE,
                        "mha_heads_text: %lld queries, %lld keys, q_offset %lld; at "
                        "most %d",
                        (long long)x->queries, (long long)x->keys, (long long)x->q_offset,
                        INT32_MAX);
    if (x->links_count < 0 || x->links_count > INT32_MAX)
        return mha_fail(MHA_ERR_ARGUMENT, "mha_heads_text: links_count is %lld",
                        (long long)x->links_count);
    if (!x->links && x->links_count > 0)
        return mha_fail(MHA_ERR_NULL, "mha_heads_text: links is NULL with a count of %lld",
                        (long long)x->links_count);
    return MHA_OK;
}

/* Check that word numbers start at 0 and increase by 0 or 1. Count the words. */
static mha_status check_words(const mha_heads_text *x, int64_t *words)
{
    *words = x->words ? 0 : x->keys;
    int64_t last = -1; /* token of the last word */
    for (int64_t s = 0; x->words && s < x->keys; s++) {
        const int64_t word = x->words[s];
        if (word == -1) continue;
        const bool goes_on = word == *words - 1 && last == s - 1, next = word == *words;
        if (!goes_on && !next)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "words[%lld] is %lld, expected -1, or %lld for the next word%s",
                            (long long)s, (long long)word, (long long)*words,
                            *words > 0 ? ", or the word of the token before" : "");
        *words += next;
        last = s;
    }
    return MHA_OK;
}

static mha_status check_links(const mha_head_measures *m, const mha_heads_text *x, int64_t words)
{
    const int64_t askers = x->flags & MHA_HEADS_CROSS ? x->queries : words;
    for (int64_t i = 0; i < x->links_count; i++) {
        const mha_heads_link *link = &x->links[i];
        if (link->relation < 0 || link->relation >= m->relations)
            return mha_fail(MHA_ERR_ARGUMENT, "links[%lld]: relation %lld, expected 0..%lld",
                            (long long)i, (long long)link->relation, (long long)m->relations - 1);
        if (link->query < 0 || link->query >= askers || link->key < 0 || link->key >= words)
            return mha_fail(MHA_ERR_ARGUMENT,
                            "links[%lld]: words %lld and %lld, expected 0..%lld and 0..%lld",
                            (long long)i, (long long)link->query, (long long)link->key,
                            (long long)askers - 1, (long long)words - 1);
    }
    return MHA_OK;
}

/* Check an image, and drop what its tokens do not have. */
static mha_status check_grid(mha_heads_text *x)
{
    const mha_grid *grid = x->grid;
    if (!grid) return MHA_OK;
    MHA_TRY(mhai_grid_check(grid));
    const int64_t tokens = grid->first + grid->rows * grid->cols;
    if (x->flags || x->q_offset || x->queries != tokens || x->keys != tokens)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "mha_heads_text: grid has %lld tokens; expected as many queries and keys, "
                        "q_offset 0 and no flags",
                        (long long)tokens);
    x->ids = x->segments = x->ranks = NULL;
    return MHA_OK;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Lay out the text's arrays in memory. If memory is NULL, only compute the size. */
static size_t lay_out(mhai_head_text *x, unsigned char *memory)
{
    const int64_t S = x->given.keys, T = x->given.queries;
    mhai_carver c = {memory, 0};
    x->same_before = mhai_carve(&c, S, sizeof(int64_t));
    x->same_after = mhai_carve(&c, S, sizeof(int64_t));
    x->word_of = mhai_carve(&c, S, sizeof(int64_t));
    x->word_open = mhai_carve(&c, x->words, 1);
    x->word_begin = mhai_carve(&c, x->words, sizeof(int64_t));
    x->word_end = mhai_carve(&c, x->words, sizeof(int64_t));
    x->probes = mhai_carve(&c, 2 * x->given.links_count, sizeof(mhai_head_probe));
    x->probe_at = mhai_carve(&c, T, sizeof(int64_t));
    x->cut_bin = mhai_carve(&c, S, 1);
    x->grid_bin = mhai_carve(&c, S, 1);
    return c.used;
}

static mha_status take_memory(mha_head_measures *m, mhai_head_text *x)
{
    const size_t bytes = lay_out(x, NULL);
    void *memory = m->allocator.alloc(m->allocator.user, bytes ? bytes : 1, 64);
    if (!memory)
        return mha_fail(MHA_ERR_NOMEM, "mha_head_measures: cannot allocate %zu bytes", bytes);
    m->text_memory = memory;
    m->text_bytes = bytes ? bytes : 1;
    lay_out(x, memory);
    return MHA_OK;
}

void mhai_head_text_close(mha_head_measures *m)
{
    if (m->text_memory) m->allocator.release(m->allocator.user, m->text_memory, m->text_bytes);
    m->text_memory = NULL;
    m->open = false;
    if (m->corpus && m->corpus->open) mhai_corpus_drop(m->corpus);
}

/* ---- tokens ---------------------------------------------------------------------------------- */

typedef struct placed {
    int64_t id, at;
} placed;

static int by_id(const void *a, const void *b)
{
    const placed *x = a, *y = b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

static bool is_marked(const uint8_t *marks, int64_t s)
{
    return marks && marks[s];
}

static mha_status find_same(const mha_head_measures *m, mhai_head_text *x)
{
    const int64_t S = x->given.keys;
    if (!x->given.ids) {
        x->same_before = x->same_after = NULL;
        return MHA_OK;
    }
    const mha_scratch_mark mark = mha_scratch_top(m->context);
    placed *tokens;
    MHA_TRY(mha_scratch_alloc(m->context, S, sizeof(placed), &tokens));
    int64_t count = 0;
    for (int64_t s = 0; s < S; s++) {
        x->same_before[s] = x->same_after[s] = -1;
        if (!is_marked(x->given.special, s)) tokens[count++] = (placed){x->given.ids[s], s};
    }
    qsort(tokens, (size_t)count, sizeof *tokens, by_id);
    for (int64_t n = 1; n < count; n++)
        if (tokens[n].id == tokens[n - 1].id) {
            x->same_before[tokens[n].at] = tokens[n - 1].at;
            x->same_after[tokens[n - 1].at] = tokens[n].at;
        }
    mha_scratch_release(m->context, mark);
    return MHA_OK;
}

/* Find the largest rank, and the largest rank of the other tokens. Both are equal if two tokens
 * share the largest rank. */
static void find_rarest(const mha_head_measures *m, mhai_head_text *x)
{
    x->rarest = x->second = -1;
    for (int64_t s = 0; x->given.ranks && s < x->given.keys; s++) {
        if (is_marked(x->given.special, s) || is_marked(x->given.separators, s)) continue;
        const int64_t rank = x->given.ranks[s];
        if (rank > x->rarest)
            x->second = x->rarest, x->rarest = rank;
        else if (rank > x->second)
            x->second = rank;
    }
    if (x->rarest < m->rare_rank) x->rarest = x->second = -1;
}

bool mhai_head_text_is_rarest(const mhai_head_text *text, int64_t j)
{
    return text->given.ranks[j] == text->rarest && !is_marked(text->given.special, j) &&
           !is_marked(text->given.separators, j);
}

bool mhai_head_text_is_follower(const mhai_head_text *text, int64_t i, int64_t j)
{
    return j + 1 < text->given.keys && j + 1 != i && text->given.ids[j + 1] != text->given.ids[i];
}

bool mhai_head_text_is_level(const mha_head_measures *m, int64_t t, int64_t j)
{
    const int64_t rows = m->text.given.queries - 1, keys = m->text.given.keys - 1;
    const int64_t distance =
        j * rows - t * keys; /* below 2^62, as texts have at most 2^31 tokens */
    return rows > 0 && (distance < 0 ? -distance : distance) <= m->near_tokens * rows;
}

static void place_bins(mhai_head_text *x)
{
    const int64_t S = x->given.keys;
    int64_t at = 0;
    x->cuts = 0;
    for (int64_t n = 0; S > 1 && !x->given.grid && n < MHAI_HEAD_CUTS; n++) {
        const int64_t cut = S <= MHAI_HEAD_CUTS ? n : n * S / MHAI_HEAD_CUTS;
        if (cut < 4 || S - cut < 4) continue; /* a block must have at least 4 rows */
        x->cut_at[x->cuts++] = cut;
    }
    for (int64_t s = 0; s < S; s++) {
        while (at < x->cuts && x->cut_at[at] <= s) at++;
        x->cut_bin[s] = (uint8_t)at;
        x->grid_bin[s] = (uint8_t)(s * MHAI_HEAD_GRID / S);
    }
}

static void place_words(mhai_head_text *x)
{
    for (int64_t s = 0; s < x->given.keys; s++) {
        const int64_t word = x->given.words ? x->given.words[s] : s;
        x->word_of[s] = word;
        if (word < 0) continue;
        if (s == 0 || x->word_of[s - 1] != word) {
            x->word_begin[word] = s;
            x->word_open[word] = 1;
        }
        x->word_end[word] = s + 1;
        if (is_marked(x->given.special, s) || is_marked(x->given.separators, s))
            x->word_open[word] = 0;
    }
}

/* ---- links ----------------------------------------------------------------------------------- */

/* Find the rows of a word. Returns false if there are none. */
static bool rows_of_word(const mhai_head_text *x, int64_t word, int64_t *row, int64_t *end)
{
    const int64_t shift = x->given.q_offset;
    if (x->given.flags & MHA_HEADS_CROSS) {
        *row = word, *end = word + 1;
        return true;
    }
    *row = x->word_begin[word] - shift, *end = x->word_end[word] - shift;
    if (x->given.flags & MHA_HEADS_QUERY_PREDICTS) *row -= 1, *end = *row + 1;
    return *row >= 0 && *end <= x->given.queries;
}

static void add_probe(mhai_head_text *x, int64_t from, int64_t to, int64_t slot)
{
    mhai_head_probe probe = {.from = from, .to = to, .slot = slot, .offset = to - from};
    if (!rows_of_word(x, from, &probe.group_row, &probe.group_end)) return;
    if (x->given.flags & (MHA_HEADS_CROSS | MHA_HEADS_QUERY_PREDICTS)) probe.from = -1;
    x->probes[x->probes_count++] = probe;
}

static int by_row(const void *a, const void *b)
{
    const mhai_head_probe *x = a, *y = b;
    if (x->group_row != y->group_row) return x->group_row < y->group_row ? -1 : 1;
    if (x->slot != y->slot) return x->slot < y->slot ? -1 : 1;
    return (x->to > y->to) - (x->to < y->to);
}

static void place_probes(mhai_head_text *x)
{
    x->probes_count = 0;
    for (int64_t n = 0; n < x->given.links_count; n++) {
        const mha_heads_link *link = &x->given.links[n];
        add_probe(x, link->query, link->key, 2 * link->relation + MHA_LINK_FORWARD);
        if (!(x->given.flags & MHA_HEADS_CROSS))
            add_probe(x, link->key, link->query, 2 * link->relation + MHA_LINK_BACKWARD);
    }
    qsort(x->probes, (size_t)x->probes_count, sizeof *x->probes, by_row);
    for (int64_t t = 0; t < x->given.queries; t++) x->probe_at[t] = -1;
    for (int64_t n = x->probes_count - 1; n >= 0; n--)
        for (int64_t t = x->probes[n].group_row; t < x->probes[n].group_end; t++)
            x->probe_at[t] = n;
}

static bool sees_word(const mhai_head_text *x, const mhai_head_window *window, int64_t t,
                      int64_t word)
{
    for (int64_t j = x->word_begin[word]; j < x->word_end[word]; j++)
        if (mhai_head_facts_sees(x, window, t, j)) return true;
    return false;
}

bool mhai_head_text_eligible(const mhai_head_text *x, const mhai_head_window *window,
                             const mhai_head_probe *probe)
{
    const int64_t t = probe->group_end - 1;
    if (probe->to == probe->from || !x->word_open[probe->to] || !sees_word(x, window, t, probe->to))
        return false;
    for (int64_t r = probe->group_row; x->given.skip_queries && r < probe->group_end; r++)
        if (x->given.skip_queries[r]) return false;
    for (int64_t k = 0; k < x->words; k++)
        if (k != probe->to && k != probe->from && x->word_open[k] && sees_word(x, window, t, k))
            return true;
    return false;
}

/* ---- the whole ------------------------------------------------------------------------------- */

mha_status mhai_head_text_open(mha_head_measures *m, const mha_heads_text *text)
{
    mhai_head_text x = {0};
    mha_status status;
    MHA_TRY(mhai_struct_copy("mha_heads_text", &x.given, sizeof x.given, sizeof x.given, text));
    MHA_TRY(check_flags(&x.given));
    MHA_TRY(check_numbers(&x.given));
    MHA_TRY(check_grid(&x.given));
    MHA_TRY(check_words(&x.given, &x.words));
    MHA_TRY(check_links(m, &x.given, x.words));
    MHA_TRY(take_memory(m, &x));
    MHA_TRY_GOTO(find_same(m, &x), fail);
    find_rarest(m, &x);
    place_bins(&x);
    place_words(&x);
    place_probes(&x);
    m->text = x;
    m->open = true;
    return MHA_OK;
fail:
    mhai_head_text_close(m);
    return status;
}
