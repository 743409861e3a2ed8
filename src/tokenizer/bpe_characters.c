/* Steps that rewrite a text character by character, with the positions of Hugging Face's
 * tokenizers. */
#include "tokenizer/bpe.h"

#include "io/utf8.h"
#include "tokenizer/charsmap.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

static mha_status lowercase(const mhai_stretch *s, mhai_aligner *out)
{
    for (size_t at = 0; at < s->size;) {
        int32_t lowered[MHAI_LOWER_MAX];
        const int count = mhai_unicode_lower(mhai_utf8_next(s->text, &at), lowered);
        for (int i = 0; i < count; i++) MHA_TRY(mhai_aligner_put(out, lowered[i], i > 0));
    }
    return MHA_OK;
}

/* A character whose change is not known yet: removed characters that follow it are added. */
typedef struct held {
    mhai_aligner out;
    bool any;
    int32_t c;
    int64_t change;
} held;

static mha_status put_held(held *h)
{
    return h->any ? mhai_aligner_put(&h->out, h->c, h->change) : MHA_OK;
}

static mha_status hold(held *h, int32_t c, int64_t change)
{
    MHA_TRY(put_held(h));
    *h = (held){h->out, true, c, change};
    return MHA_OK;
}

/* Removed characters at the beginning of the text move the positions of all others. */
static mha_status strip_marks(const mhai_stretch *s, mhai_aligner *out)
{
    held h = {.out = *out};
    for (size_t at = 0; at < s->size;) {
        const size_t from = at;
        const int32_t c = mhai_utf8_next(s->text, &at);
        if (!mhai_unicode_is_any_mark(c)) {
            if (!h.any) h.out.at = from;
            MHA_TRY(hold(&h, c, 0));
        } else {
            h.change--;
        }
    }
    return put_held(&h);
}

static bool is_space_at(const char *text, size_t at)
{
    return mhai_unicode_is_space(mhai_utf8_next(text, &at));
}

static mha_status strip_spaces(const mhai_step *step, const mhai_stretch *s, mhai_draft *draft)
{
    size_t from = 0, to = s->size;
    while (step->ends.left && from < to && is_space_at(s->text, from))
        (void)mhai_utf8_next(s->text, &from);
    while (step->ends.right && to > from) {
        size_t last = to - 1;
        while (((unsigned char)s->text[last] & 0xC0) == 0x80) last--;
        if (!is_space_at(s->text, last)) break;
        to = last;
    }
    return mhai_draft_copy(draft, s, from, to);
}

static int64_t count_characters(const char *text, size_t size)
{
    int64_t count = 0;
    for (size_t i = 0; i < size; i++) count += ((unsigned char)text[i] & 0xC0) != 0x80;
    return count;
}

/* Replace `old` characters. Of a longer replacement, the last characters are the inserted ones.
 * Characters removed before the first of the text are forgotten, as in the reference, where they
 * move all positions. */
static mha_status replace(held *h, int64_t old, const char *text)
{
    const size_t size = strlen(text);
    const int64_t count = count_characters(text, size), added = count - old;
    int64_t i = 0;
    for (size_t at = 0; at < size; i++)
        MHA_TRY(hold(h, mhai_utf8_next(text, &at), i >= count - added));
    if (added < 0 && h->any) h->change += added;
    return MHA_OK;
}

static mha_status map_characters(const mhai_charsmap *map, const char *text, size_t at, size_t to,
                                 held *h)
{
    while (at < to) {
        const size_t from = at;
        const int32_t c = mhai_utf8_next(text, &at);
        const char *made = mhai_charsmap_find(map, text + from, at - from);
        MHA_TRY(made ? replace(h, 1, made) : hold(h, c, 0));
    }
    return MHA_OK;
}

/* A grapheme cluster of up to five bytes that begins with a key becomes that key's replacement; the
 * rest of the cluster is dropped. Otherwise, each character is mapped. These are the rules of the
 * reference. */
static mha_status map_clusters(const mhai_charsmap *map, const mhai_stretch *s, mhai_aligner *out)
{
    enum { MOST_MAPPED = 5 };
    held h = {.out = *out};
    for (size_t at = 0, end = 0; at < s->size; at = end) {
        end = mhai_grapheme_end(s->text, s->size, at);
        const char *made =
            end - at <= MOST_MAPPED ? mhai_charsmap_find(map, s->text + at, end - at) : NULL;
        MHA_TRY(made ? replace(&h, count_characters(s->text + at, end - at), made)
                     : map_characters(map, s->text, at, end, &h));
    }
    return put_held(&h);
}

/* SentencePiece: the longest key at each place is replaced. */
static mha_status map_longest(const mhai_charsmap *map, const mhai_stretch *s, mhai_aligner *out)
{
    held h = {.out = *out};
    for (size_t at = 0, matched; at < s->size;) {
        const char *made = mhai_charsmap_longest(map, s->text + at, s->size - at, &matched);
        if (made) {
            MHA_TRY(replace(&h, count_characters(s->text + at, matched), made));
            at += matched;
        } else {
            MHA_TRY(hold(&h, mhai_utf8_next(s->text, &at), 0));
        }
    }
    return put_held(&h);
}

mha_status mhai_rewrite_characters(const mha_allocator *allocator, const mhai_step *step,
                                   const mhai_stretch *s, mhai_draft *draft)
{
    mhai_aligner out = {.text = s, .draft = draft};
    switch (step->what) {
    case MHAI_STEP_LOWERCASE: return lowercase(s, &out);
    case MHAI_STEP_STRIP_MARKS: return strip_marks(s, &out);
    case MHAI_STEP_STRIP_SPACES: return strip_spaces(step, s, draft);
    case MHAI_STEP_CHARSMAP:
        return step->longest ? map_longest(step->charsmap, s, &out)
                             : map_clusters(step->charsmap, s, &out);
    default: return mhai_form(allocator, step, s, draft);
    }
}
