/* Normal forms with the positions of Hugging Face's tokenizers. The k-th character of the text
 * that is kept or replaced has the k-th position. Characters composed into it have none. As in
 * those tokenizers, decomposition and composition are those of Unicode 9.0 (unicode_bert.h). */
#include "tokenizer/bpe.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <utf8proc.h>

/* A pending character. change is 1 for a character added by decomposition, and -1 for a character
 * that absorbed another (mhai_aligner). */
typedef struct moving {
    int32_t c;
    int change, combining;
} moving;

typedef struct composer {
    const mhai_step *step;
    mhai_aligner out;
    mhai_vector waiting, sorted; /* of mhai_waiting: marks of one starter */
    mhai_vector kept;            /* of moving: marks that do not compose */
    moving starter;
    bool has_starter;
    int last; /* combining class of the last kept mark; -1: none */
} composer;

bool mhai_form_is_plain(const mhai_step *step, const char *text, size_t size)
{
    const unsigned char least = step->form.compatible ? 0xC2 /* U+0080 */
                                : step->form.compose  ? 0xCC /* U+0300 */
                                                      : 0xC3; /* U+00C0 */
    for (size_t i = 0; i < size; i++)
        if ((unsigned char)text[i] >= least) return false;
    return true;
}

static mha_status emit(composer *c, const moving *m)
{
    return mhai_aligner_put(&c->out, m->c, m->change);
}

/* Compose two characters. Returns 0 if they do not compose. */
static int32_t compose(int32_t a, int32_t b)
{
    utf8proc_int32_t pair[3] = {a, b}, parts[MHAI_DECOMPOSE_MAX];
    if (b < 0x300) return 0;
    const utf8proc_ssize_t size =
        utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
    if (size != 1) return 0;
    const bool hangul = pair[0] >= 0xAC00 && pair[0] <= 0xD7A3;
    return hangul || mhai_unicode_decompose(pair[0], parts) > 1 ? pair[0] : 0;
}

static mha_status release_starter(composer *c)
{
    if (!c->has_starter) return MHA_OK;
    MHA_TRY(emit(c, &c->starter));
    const moving *kept = c->kept.items;
    for (size_t i = 0; i < c->kept.count; i++) MHA_TRY(emit(c, &kept[i]));
    c->kept.count = 0;
    c->has_starter = false;
    c->last = -1;
    return MHA_OK;
}

static mha_status take(composer *c, const moving *m)
{
    if (!c->step->form.compose) return emit(c, m);
    if (!c->has_starter) {
        if (m->combining != 0) return emit(c, m);
        c->starter = *m;
        c->has_starter = true;
        return MHA_OK;
    }
    const bool blocked = c->last >= 0 && c->last >= m->combining;
    const int32_t composed = blocked ? 0 : compose(c->starter.c, m->c);
    if (composed) {
        c->starter.c = composed;
        c->starter.change += m->change - 1;
        return MHA_OK;
    }
    if (m->combining == 0) {
        MHA_TRY(release_starter(c));
        c->starter = *m;
        c->has_starter = true;
        return MHA_OK;
    }
    c->last = m->combining;
    return mhai_vector_push(&c->kept, m);
}

static mha_status release_marks(composer *c)
{
    if (c->waiting.count == 0) return MHA_OK;
    MHA_TRY(mhai_tokenizer_sort_marks(&c->waiting, &c->sorted));
    const mhai_waiting *sorted = c->sorted.items;
    for (size_t i = 0; i < c->sorted.count; i++) {
        const moving m = {sorted[i].ch.c, sorted[i].continues, sorted[i].combining};
        MHA_TRY(take(c, &m));
    }
    c->waiting.count = 0;
    return MHA_OK;
}

static mha_status decompose(composer *c, int32_t code)
{
    int32_t parts[MHAI_COMPATIBLE_MAX];
    const int count = c->step->form.compatible ? mhai_unicode_decompose_compatible(code, parts)
                                               : mhai_unicode_decompose(code, parts);
    for (int i = 0; i < count; i++) {
        const int combining = mhai_unicode_combining(parts[i]);
        if (combining != 0) {
            const mhai_waiting waiting = {{parts[i], 0, 0}, (uint8_t)combining, i > 0};
            MHA_TRY(mhai_vector_push(&c->waiting, &waiting));
            continue;
        }
        const moving m = {parts[i], i > 0, 0};
        MHA_TRY(release_marks(c));
        MHA_TRY(take(c, &m));
    }
    return MHA_OK;
}

static mha_status run(composer *c, const mhai_stretch *text)
{
    for (size_t at = 0; at < text->size;) MHA_TRY(decompose(c, mhai_utf8_next(text->text, &at)));
    MHA_TRY(release_marks(c));
    return release_starter(c);
}

mha_status mhai_form(const mha_allocator *allocator, const mhai_step *step,
                     const mhai_stretch *stretch, mhai_draft *draft)
{
    composer c = {.step = step, .out = {.text = stretch, .draft = draft}, .last = -1};
    c.waiting = mhai_vector_make(allocator, sizeof(mhai_waiting));
    c.sorted = mhai_vector_make(allocator, sizeof(mhai_waiting));
    c.kept = mhai_vector_make(allocator, sizeof(moving));
    const mha_status status = run(&c, stretch);
    mhai_vector_free(&c.waiting);
    mhai_vector_free(&c.sorted);
    mhai_vector_free(&c.kept);
    return status;
}
