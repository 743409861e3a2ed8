/* The BERT normaliser, one character at a time, in this order:
 *
 *   clean   remove control characters, U+0000 and U+FFFD; white space becomes a space
 *   cjk     put a space on both sides of an ideograph
 *   strip   canonical decomposition, then remove nonspacing marks
 *   lower   lower case, without context
 *
 * Each function passes its characters to the next. Only decomposition looks ahead: combining
 * characters are sorted by class, so they wait for the next starter. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

mhai_normalizer mhai_tokenizer_normalize_make(const mha_tokenizer *tokenizer, mhai_char_sink sink,
                                              void *user)
{
    return (mhai_normalizer){
        .rules = tokenizer->rules,
        .sink = sink,
        .user = user,
        .waiting = mhai_vector_make(&tokenizer->allocator, sizeof(mhai_waiting)),
        .sorted = mhai_vector_make(&tokenizer->allocator, sizeof(mhai_waiting)),
    };
}

void mhai_tokenizer_normalize_free(mhai_normalizer *normalizer)
{
    mhai_vector_free(&normalizer->waiting);
    mhai_vector_free(&normalizer->sorted);
}

static mha_status lower(mhai_normalizer *n, const mhai_char *ch)
{
    if (!n->rules.lower) return n->sink(n->user, ch);
    int32_t lowered[MHAI_LOWER_MAX];
    const int count = mhai_unicode_lower(ch->c, lowered);
    for (int i = 0; i < count; i++) {
        const mhai_char out = {lowered[i], ch->begin, ch->end};
        MHA_TRY(n->sink(n->user, &out));
    }
    return MHA_OK;
}

static mha_status drop_mark(mhai_normalizer *n, const mhai_char *ch)
{
    return mhai_unicode_is_mark(ch->c) ? MHA_OK : lower(n, ch);
}

/* Sort stably by combining class. A text may have any number of consecutive marks, so an attacker
 * could exploit an O(n^2) sort. */
mha_status mhai_tokenizer_sort_marks(const mhai_vector *waiting, mhai_vector *sorted)
{
    const mhai_waiting *from = waiting->items;
    size_t place[256] = {0}, total = 0;
    void *memory = NULL;
    sorted->count = 0;
    MHA_TRY(mhai_vector_add(sorted, waiting->count, &memory));
    mhai_waiting *to = memory;
    for (size_t i = 0; i < waiting->count; i++) place[from[i].combining]++;
    for (int class = 0; class < 256; class ++) {
        const size_t count = place[class];
        place[class] = total;
        total += count;
    }
    for (size_t i = 0; i < waiting->count; i++) to[place[from[i].combining]++] = from[i];
    return MHA_OK;
}

/* Assign the k-th character of the sorted decompositions to the k-th decomposed character, even if
 * sorting moved another character there. This is how Hugging Face computes offsets. */
static mha_status release_sorted(mhai_normalizer *n)
{
    const mhai_waiting *waiting = n->waiting.items, *sorted = n->sorted.items;
    size_t source = 0, next = 0;
    for (size_t i = 0; i < n->sorted.count; i++) {
        if (!sorted[i].continues) {
            while (waiting[next].continues) next++;
            source = next++;
        }
        const mhai_char ch = {sorted[i].ch.c, waiting[source].ch.begin, waiting[source].ch.end};
        MHA_TRY(drop_mark(n, &ch));
    }
    return MHA_OK;
}

static mha_status release_waiting(mhai_normalizer *n)
{
    const mhai_waiting *waiting = n->waiting.items;
    if (n->waiting.count == 1) {
        MHA_TRY(drop_mark(n, &waiting[0].ch));
    } else if (n->waiting.count > 1) {
        MHA_TRY(mhai_tokenizer_sort_marks(&n->waiting, &n->sorted));
        MHA_TRY(release_sorted(n));
    }
    n->waiting.count = 0;
    return MHA_OK;
}

static mha_status decompose(mhai_normalizer *n, const mhai_char *ch)
{
    if (!n->rules.strip) return lower(n, ch);
    int32_t parts[MHAI_DECOMPOSE_MAX];
    const int count = mhai_unicode_decompose(ch->c, parts);
    for (int i = 0; i < count; i++) {
        const int combining = mhai_unicode_combining(parts[i]);
        const mhai_char part = {parts[i], ch->begin, ch->end};
        if (combining != 0) {
            const mhai_waiting waiting = {part, (uint8_t)combining, i > 0};
            MHA_TRY(mhai_vector_push(&n->waiting, &waiting));
            continue;
        }
        MHA_TRY(release_waiting(n));
        MHA_TRY(drop_mark(n, &part));
    }
    return MHA_OK;
}

static mha_status set_apart(mhai_normalizer *n, const mhai_char *ch)
{
    if (!n->rules.cjk || !mhai_unicode_is_cjk(ch->c)) return decompose(n, ch);
    const mhai_char blank = {' ', ch->begin, ch->end};
    MHA_TRY(decompose(n, &blank));
    MHA_TRY(decompose(n, ch));
    return decompose(n, &blank);
}

static mha_status clean(mhai_normalizer *n, mhai_char *ch)
{
    if (n->rules.clean) {
        if (ch->c == 0xFFFD || mhai_unicode_is_control(ch->c)) return MHA_OK;
        if (mhai_unicode_is_space(ch->c)) ch->c = ' ';
    }
    return set_apart(n, ch);
}

mha_status mhai_tokenizer_normalize(mhai_normalizer *normalizer, const char *text, size_t from,
                                    size_t to)
{
    normalizer->waiting.count = 0;
    for (size_t at = from; at < to;) {
        mhai_char ch = {.begin = (int64_t)at};
        ch.c = mhai_utf8_next(text, &at);
        ch.end = (int64_t)at;
        MHA_TRY(clean(normalizer, &ch));
    }
    return release_waiting(normalizer);
}
