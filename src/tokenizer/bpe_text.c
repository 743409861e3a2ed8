/* Texts with their source positions (bpe.h). */
#include "tokenizer/bpe.h"

#include "io/utf8.h"

#include <multihead/component.h>

void mhai_stretch_place(const mhai_stretch *s, size_t from, size_t to, int64_t *begin, int64_t *end)
{
    if (s->begin) {
        *begin = s->begin[from];
        *end = s->end[to - 1];
        return;
    }
    while (((unsigned char)s->text[from] & 0xC0) == 0x80) from--;
    while (to < s->size && ((unsigned char)s->text[to] & 0xC0) == 0x80) to++;
    *begin = s->base + (int64_t)from;
    *end = s->base + (int64_t)to;
}

mhai_draft mhai_draft_make(const mha_allocator *allocator)
{
    return (mhai_draft){mhai_vector_make(allocator, 1),
                        mhai_vector_make(allocator, sizeof(int64_t)),
                        mhai_vector_make(allocator, sizeof(int64_t))};
}

void mhai_draft_free(mhai_draft *draft)
{
    mhai_vector_free(&draft->bytes);
    mhai_vector_free(&draft->begin);
    mhai_vector_free(&draft->end);
}

mhai_stretch mhai_draft_stretch(const mhai_draft *draft)
{
    return (mhai_stretch){draft->bytes.items, draft->bytes.count, draft->begin.items,
                          draft->end.items, 0};
}

mha_status mhai_draft_add(mhai_draft *draft, const char *text, size_t size, int64_t begin,
                          int64_t end)
{
    void *begins = NULL, *ends = NULL;
    MHA_TRY(mhai_vector_append(&draft->bytes, text, size));
    MHA_TRY(mhai_vector_add(&draft->begin, size, &begins));
    MHA_TRY(mhai_vector_add(&draft->end, size, &ends));
    for (size_t i = 0; i < size; i++) {
        ((int64_t *)begins)[i] = begin;
        ((int64_t *)ends)[i] = end;
    }
    return MHA_OK;
}

mha_status mhai_draft_copy(mhai_draft *draft, const mhai_stretch *s, size_t from, size_t to)
{
    if (s->begin) {
        MHA_TRY(mhai_vector_append(&draft->bytes, s->text + from, to - from));
        MHA_TRY(mhai_vector_append(&draft->begin, s->begin + from, to - from));
        return mhai_vector_append(&draft->end, s->end + from, to - from);
    }
    while (from < to) {
        size_t next = from + 1;
        while (next < to && ((unsigned char)s->text[next] & 0xC0) == 0x80) next++;
        MHA_TRY(mhai_draft_add(draft, s->text + from, next - from, s->base + (int64_t)from,
                               s->base + (int64_t)next));
        from = next;
    }
    return MHA_OK;
}

/* ---- Positions of rewritten texts ------------------------------------------------------------ */

mha_status mhai_aligner_put(mhai_aligner *a, int32_t c, int64_t change)
{
    char bytes[MHAI_UTF8_MAX];
    const int size = mhai_utf8_put(c, bytes);
    if (change <= 0 && a->at < a->text->size) {
        const size_t from = a->at;
        (void)mhai_utf8_next(a->text->text, &a->at);
        mhai_stretch_place(a->text, from, a->at, &a->begin, &a->end);
    }
    const int64_t begin = a->begin, end = a->end;
    for (; change < 0 && a->at < a->text->size; change++) {
        const size_t from = a->at;
        (void)mhai_utf8_next(a->text->text, &a->at);
        mhai_stretch_place(a->text, from, a->at, &a->begin, &a->end);
    }
    return mhai_draft_add(a->draft, bytes, (size_t)size, begin, end);
}
