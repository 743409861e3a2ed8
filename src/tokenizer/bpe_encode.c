/* BPE encoding. The text between added tokens is normalised. Normalised text between added tokens
 * is then split into words, and the symbols of each word are merged.
 *
 * The symbols of a word form a linked list, and the possible merges a heap, so a word of n symbols
 * takes O(n log n) steps in the worst case. */
#define _GNU_SOURCE /* memmem, which takes linear time */
#include "tokenizer/bpe_encode.h"

#include "tokenizer/bpe.h"
#include "tokenizer/pattern.h"
#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

/* The limit of normalised bytes per byte of text; SentencePiece's spaces take 3, and the longest
 * compatibility decomposition is 11 times as long (U+FDFA). SHORT_BYTES is added to the length of
 * the text, so that short texts may grow more. */
enum { MOST_GROWTH = 4, MOST_EXPANSION = 12, SHORT_BYTES = 1024 };

/* A part of a stretch. */
typedef struct part {
    size_t from, to;
} part;

typedef struct symbol {
    size_t from, to; /* bytes of the stretch */
    int32_t id;      /* -1: merged into the previous symbol */
    int32_t before, after;
} symbol;

/* A possible merge of the symbol at an index with the next symbol. */
typedef struct candidate {
    int32_t rank, place, merged;
} candidate;

typedef struct encoder {
    const mha_tokenizer *t;
    const mhai_bpe *bpe;
    const char *text; /* the original text */
    size_t size;
    mhai_tokens *tokens;
    mhai_matcher matcher;
    mhai_stretch normal;  /* the current segment, normalised */
    mhai_stretch words;   /* the text between two added tokens in it */
    mhai_draft drafts[4]; /* two for normal and two for words, used alternately */
    mhai_vector parts[2]; /* of part, used alternately: the words */
    int draft, current;
    mhai_vector symbols, heap; /* of symbol, candidate */
    mhai_vector letters;       /* of char */
    mhai_vector nodes, pieces; /* unigram: memory, and of mhai_piece */
} encoder;

static mha_status encode_word(encoder *e, const part *word);

/* Encode and remove all words of a list, except the last `stay`. */
static mha_status encode_words(encoder *e, mhai_vector *words, size_t stay)
{
    part *all = words->items;
    const size_t count = words->count - stay;
    for (size_t i = 0; i < count; i++) MHA_TRY(encode_word(e, &all[i]));
    if (count > 0 && stay > 0) memmove(all, all + count, stay * sizeof *all);
    words->count = stay;
    return MHA_OK;
}

/* ---- Steps ----------------------------------------------------------------------------------- */

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

/* The bytes of a match of a class at byte `at`; 0: no match. *next: the next place to look. */
static size_t match_class(const mhai_step *step, const char *text, size_t at, size_t end,
                          size_t *next)
{
    const unsigned char *bytes = (const unsigned char *)text + at, c = bytes[0];
    *next = at + 1;
    if (step->class == MHAI_PUNCTUATION) {
        *next = at;
        return mhai_unicode_is_punct(mhai_utf8_next(text, next)) ? *next - at : 0;
    }
    if (step->class == MHAI_NUMERIC_BYTE)
        return is_digit(c) || c == 0xB2 || c == 0xB3 || c == 0xB9 || (c >= 0xBC && c <= 0xBE);
    return end - at >= 3 && is_digit(c) && is_digit(bytes[1]) && is_digit(bytes[2]) ? 3 : 0;
}

/* Find the first match at or after byte at, within bytes [begin, end). */
static mha_status next_match(encoder *e, const mhai_step *step, const char *text, size_t begin,
                             size_t at, size_t end, size_t *from, size_t *to)
{
    if (step->pattern)
        return mhai_matcher_next(&e->matcher, step->pattern, begin, at, end, from, to);
    for (size_t size = 0, next = at; step->class && at < end; at = next) {
        size = match_class(step, text, at, end, &next);
        if (size == 0) continue;
        *from = at;
        *to = at + size;
        return MHA_OK;
    }
    const char *first =
        step->class ? NULL : memmem(text + at, end - at, step->literal, step->literal_size);
    *from = first ? (size_t)(first - text) : end;
    *to = first ? *from + step->literal_size : end;
    return MHA_OK;
}

static mha_status add_part(mhai_vector *parts, size_t from, size_t to)
{
    const part made = {from, to};
    return from < to ? mhai_vector_push(parts, &made) : MHA_OK;
}

/* Turns matches, and the text between them, into consecutive parts. */
typedef struct divider {
    const mhai_step *step;
    mhai_vector *parts;
    size_t first;   /* index of the first part of this split */
    bool before;    /* whether the last part was a match */
    bool held;      /* a match is waiting for the text after it */
    size_t waiting; /* start of that match */
} divider;

static mha_status divide(divider *d, size_t from, size_t to, bool matched)
{
    const bool before = d->before, any = d->parts->count > d->first;
    const bool match = matched != d->step->invert;
    if (from == to) return MHA_OK;
    d->before = match;
    switch (d->step->split) {
    case MHAI_ISOLATED: break;
    case MHAI_REMOVED:
        if (match) return MHA_OK;
        break;
    case MHAI_CONTIGUOUS:
    case MHAI_WITH_PREVIOUS:
        if (!any || (d->step->split == MHAI_CONTIGUOUS ? match != before : !match || before)) break;
        ((part *)d->parts->items)[d->parts->count - 1].to = to;
        return MHA_OK;
    case MHAI_WITH_NEXT:
        if (match) {
            if (d->held) MHA_TRY(add_part(d->parts, d->waiting, from));
            d->held = true;
            d->waiting = from;
            return MHA_OK;
        }
        if (d->held) from = d->waiting;
        d->held = false;
        break;
    }
    return add_part(d->parts, from, to);
}

/* If words is set, all parts except the last, which may grow, are encoded immediately. Splitting
 * then stops as soon as there are enough tokens. */
static mha_status split_part(encoder *e, const mhai_step *step, const part *p, bool words,
                             mhai_vector *parts)
{
    divider d = {.step = step, .parts = parts, .first = parts->count};
    for (size_t at = p->from, from = 0, to = 0; at < p->to; at = to) {
        MHA_TRY(next_match(e, step, e->words.text, p->from, at, p->to, &from, &to));
        MHA_TRY(divide(&d, at, from, false));
        MHA_TRY(divide(&d, from, to, true));
        if (words && parts->count > 1) MHA_TRY(encode_words(e, parts, 1));
    }
    if (d.held) MHA_TRY(add_part(parts, d.waiting, p->to));
    return words ? encode_words(e, parts, 0) : MHA_OK;
}

/* Growth is limited, because a chain of growing steps could use any amount of memory. */
static mha_status check_growth(const encoder *e, size_t made)
{
    const size_t most = e->bpe->expands ? MOST_EXPANSION : MOST_GROWTH;
    if (made / most <= e->size + SHORT_BYTES) return MHA_OK;
    return mha_fail(MHA_ERR_SIZE,
                    "tokenizer: its steps make more than %zu bytes of a text of %zu; give the "
                    "model a simpler normalizer",
                    most * (e->size + SHORT_BYTES), e->size);
}

/* Append a step's own text. `rest` more bytes will follow. */
static mha_status add_text(const encoder *e, const mhai_step *step, int64_t begin, int64_t end,
                           size_t rest, mhai_draft *draft)
{
    MHA_TRY(check_growth(e, draft->bytes.count + step->text_size + rest));
    return mhai_draft_add(draft, step->text, step->text_size, begin, end);
}

static mha_status prepend(const encoder *e, const mhai_step *step, const mhai_stretch *s,
                          const part *p, mhai_draft *draft)
{
    int64_t begin = 0, end = 0;
    const bool there = p->to - p->from >= step->text_size &&
                       memcmp(s->text + p->from, step->text, step->text_size) == 0;
    if (step->prepend != MHAI_ALWAYS && there) return MHA_OK;
    mhai_stretch_place(s, p->from, p->from + 1, &begin, &end);
    if (step->prepend == MHAI_FIRST && begin != 0) return MHA_OK;
    return add_text(e, step, begin, end, s->size - p->from, draft);
}

/* Replace matches. A replacement has the position of the match's last character. */
static mha_status replace(encoder *e, const mhai_step *step, const mhai_stretch *s, const part *p,
                          mhai_draft *draft)
{
    for (size_t at = p->from, from = 0, to = 0; at < p->to; at = to) {
        int64_t begin = 0, end = 0;
        MHA_TRY(next_match(e, step, s->text, p->from, at, p->to, &from, &to));
        MHA_TRY(mhai_draft_copy(draft, s, at, from));
        if (from == to) continue;
        mhai_stretch_place(s, to - 1, to, &begin, &end);
        MHA_TRY(add_text(e, step, begin, end, s->size - to, draft));
    }
    return MHA_OK;
}

/* Apply a rewriting step to a part of a text, and append the result to a draft. */
static mha_status rewrite(encoder *e, const mhai_step *step, const mhai_stretch *s, const part *p,
                          mhai_draft *draft)
{
    if (step->what == MHAI_STEP_REPLACE) return replace(e, step, s, p, draft);
    MHA_TRY(prepend(e, step, s, p, draft));
    return mhai_draft_copy(draft, s, p->from, p->to);
}

static void clear(mhai_draft *draft)
{
    draft->bytes.count = draft->begin.count = draft->end.count = 0;
}

/* Switch to the other of two drafts, and clear it. */
static mhai_draft *next_draft(encoder *e, int first)
{
    e->draft ^= 1;
    clear(&e->drafts[first + e->draft]);
    return &e->drafts[first + e->draft];
}

static mha_status normalize(encoder *e, size_t from, size_t to)
{
    e->normal = (mhai_stretch){.text = e->text + from, .size = to - from, .base = (int64_t)from};
    for (int32_t i = 0; i < e->bpe->normal_count && e->normal.size > 0; i++) {
        const mhai_step *step = &e->bpe->steps[i];
        const part all = {0, e->normal.size};
        if (step->what == MHAI_STEP_FORM &&
            mhai_form_is_plain(step, e->normal.text, e->normal.size))
            continue;
        mhai_draft *draft = next_draft(e, 0);
        if (step->pattern)
            MHA_TRY(mhai_matcher_text(&e->matcher, e->normal.text, 0, e->normal.size));
        if (step->what < MHAI_STEP_PREPEND)
            MHA_TRY(mhai_rewrite_characters(&e->t->allocator, step, &e->normal, draft));
        else
            MHA_TRY(rewrite(e, step, &e->normal, &all, draft));
        MHA_TRY(check_growth(e, draft->bytes.count));
        e->normal = mhai_draft_stretch(draft);
    }
    return MHA_OK;
}

/* Apply a step to all parts. The results form one text again, in the same order. */
static mha_status rewrite_parts(encoder *e, const mhai_step *step, const mhai_vector *parts,
                                mhai_vector *made)
{
    mhai_draft *draft = next_draft(e, 2);
    const part *p = parts->items;
    for (size_t i = 0; i < parts->count; i++) {
        const size_t from = draft->bytes.count;
        MHA_TRY(rewrite(e, step, &e->words, &p[i], draft));
        MHA_TRY(add_part(made, from, draft->bytes.count));
    }
    e->words = mhai_draft_stretch(draft);
    return MHA_OK;
}

/* Split bytes [from, to) of the normalised text into words. Returns the words
 * that are not encoded yet. */
static mha_status split(encoder *e, size_t from, size_t to, bool encoded, mhai_vector **words)
{
    e->words = e->normal;
    e->parts[e->current].count = 0;
    MHA_TRY(add_part(&e->parts[e->current], from, to));
    for (int32_t i = e->bpe->normal_count; i < e->bpe->step_count; i++) {
        const mhai_step *step = &e->bpe->steps[i];
        const mhai_vector *parts = &e->parts[e->current];
        mhai_vector *made = &e->parts[e->current ^= 1];
        made->count = 0;
        if (step->pattern) MHA_TRY(mhai_matcher_text(&e->matcher, e->words.text, from, to));
        if (step->what == MHAI_STEP_SPLIT) {
            const part *p = parts->items;
            const bool last = encoded && i == e->bpe->step_count - 1;
            for (size_t k = 0; k < parts->count; k++)
                MHA_TRY(split_part(e, step, &p[k], last, made));
        } else {
            MHA_TRY(rewrite_parts(e, step, parts, made));
            from = 0;
            to = e->words.size;
        }
    }
    *words = &e->parts[e->current];
    return MHA_OK;
}

/* ---- Places ---------------------------------------------------------------------------------- */

static bool is_blank(int32_t c)
{
    return c == 0x120 || mhai_unicode_is_space(c); /* 0x120 is the letter of a space */
}

/* Exclude white space at the ends of a token, like ByteLevel's post-processor, but keep a space
 * that was inserted before the text. Counts characters. */
static void trim(const encoder *e, const char *token, size_t size, mhai_found_token *found)
{
    size_t leading = 0, trailing = 0;
    for (size_t at = 0; at < size; leading++)
        if (!is_blank(mhai_utf8_next(token, &at))) break;
    for (size_t at = size; at > 0; trailing++) {
        do at--;
        while (at > 0 && ((unsigned char)token[at] & 0xC0) == 0x80);
        size_t next = at;
        if (!is_blank(mhai_utf8_next(token, &next))) break;
    }
    const bool first = e->tokens->found.count == 0 || found->begin == 0;
    if (first && e->bpe->trim_prefix && leading == 1) leading = 0;
    for (; leading > 0 && found->begin < found->end; leading--) {
        size_t at = (size_t)found->begin;
        (void)mhai_utf8_next(e->text, &at);
        found->begin = (int64_t)at;
    }
    int64_t end = found->end;
    for (; trailing > 0 && end > 0; trailing--) do
            end--;
        while (end > 0 && ((unsigned char)e->text[end] & 0xC0) == 0x80);
    if (trailing == 0) found->end = end > found->begin ? end : found->begin;
}

static mha_status push(encoder *e, const mhai_stretch *s, int32_t id, size_t from, size_t to,
                       const char *token, size_t size)
{
    mhai_found_token found = {.id = id};
    mhai_stretch_place(s, from, to, &found.begin, &found.end);
    if (e->bpe->trim_offsets) trim(e, token, size, &found);
    MHA_TRY(mhai_vector_push(&e->tokens->found, &found));
    return mhai_tokens_cut(e->tokens);
}

static mha_status push_symbol(encoder *e, int32_t id, size_t from, size_t to)
{
    const char *token = e->t->tokens[id];
    return push(e, &e->words, id, from, to, token, e->bpe->trim_offsets ? strlen(token) : 0);
}

/* ---- Merging --------------------------------------------------------------------------------- */

static const mhai_pair *find_pair(const mhai_bpe *bpe, int32_t left, int32_t right)
{
    const mhai_pair *pairs = bpe->pairs.items;
    int32_t low = bpe->first[left], high = bpe->first[left + 1];
    while (low < high) {
        const int32_t middle = low + (high - low) / 2;
        if (pairs[middle].right == right) return &pairs[middle];
        if (pairs[middle].right < right)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static bool is_before(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->place < b->place;
}

static mha_status heap_push(mhai_vector *heap, const candidate *c)
{
    MHA_TRY(mhai_vector_push(heap, c));
    candidate *items = heap->items;
    size_t at = heap->count - 1;
    for (; at > 0 && is_before(c, &items[(at - 1) / 2]); at = (at - 1) / 2)
        items[at] = items[(at - 1) / 2];
    items[at] = *c;
    return MHA_OK;
}

static candidate heap_pop(mhai_vector *heap)
{
    candidate *items = heap->items;
    const candidate top = items[0], last = items[--heap->count];
    size_t at = 0;
    for (size_t child = 1; child < heap->count; child = 2 * at + 1) {
        if (child + 1 < heap->count && is_before(&items[child + 1], &items[child])) child++;
        if (!is_before(&items[child], &last)) break;
        items[at] = items[child];
        at = child;
    }
    if (heap->count > 0) items[at] = last;
    return top;
}

/* Push the pair of the symbol at an index and its successor, if it can be merged. */
static mha_status consider(encoder *e, int32_t place)
{
    const symbol *symbols = e->symbols.items;
    if (place < 0 || symbols[place].after < 0) return MHA_OK;
    const mhai_pair *pair = find_pair(e->bpe, symbols[place].id, symbols[symbols[place].after].id);
    if (!pair) return MHA_OK;
    const candidate c = {pair->rank, place, pair->merged};
    return heap_push(&e->heap, &c);
}

static mha_status merge(encoder *e)
{
    symbol *symbols = e->symbols.items;
    e->heap.count = 0;
    for (size_t i = 0; i < e->symbols.count; i++) MHA_TRY(consider(e, (int32_t)i));
    while (e->heap.count > 0) {
        const candidate top = heap_pop(&e->heap);
        symbol *left = &symbols[top.place];
        if (left->id < 0 || left->after < 0) continue;
        symbol *right = &symbols[left->after];
        const mhai_pair *pair = find_pair(e->bpe, left->id, right->id);
        if (!pair || pair->merged != top.merged)
            continue; /* one of the two symbols has been merged since */
        left->id = top.merged;
        left->to = right->to;
        left->after = right->after;
        right->id = -1;
        if (left->after >= 0) symbols[left->after].before = top.place;
        MHA_TRY(consider(e, left->before));
        MHA_TRY(consider(e, top.place));
    }
    return MHA_OK;
}

/* ---- Symbols --------------------------------------------------------------------------------- */

static mha_status add_symbol(encoder *e, int32_t id, size_t from, size_t to)
{
    const int32_t place = (int32_t)e->symbols.count;
    const symbol made = {from, to, id, place - 1, -1};
    if (e->symbols.count >= INT32_MAX)
        return mha_fail(MHA_ERR_SIZE, "text: a word of more than %d symbols", INT32_MAX);
    MHA_TRY(mhai_vector_push(&e->symbols, &made));
    if (place > 0) ((symbol *)e->symbols.items)[place - 1].after = place;
    return MHA_OK;
}

/* Handle a symbol that is not in the vocabulary: add an unknown token, extend the
 * previous one, or drop it. */
static mha_status add_unknown(encoder *e, size_t from, size_t to, bool *pending)
{
    symbol *symbols = e->symbols.items;
    if (e->bpe->unk < 0) return MHA_OK;
    if (*pending && e->bpe->fuse_unk) {
        symbols[e->symbols.count - 1].to = to;
        return MHA_OK;
    }
    *pending = true;
    return add_symbol(e, e->bpe->unk, from, to);
}

/* Append the symbols of a character of a word. */
static mha_status add_character(encoder *e, size_t from, size_t to, bool last, bool *pending)
{
    const char *text = e->words.text;
    const int32_t *bytes = last && e->bpe->byte_level ? e->bpe->last_ids : e->bpe->byte_ids;
    size_t matched = 0;
    int32_t id = -1;
    if (e->bpe->byte_level)
        id = bytes[(unsigned char)text[from]];
    else
        id = mhai_lexicon_longest(&e->t->first_pieces, text + from, to - from, &matched);
    if (id >= 0 && (e->bpe->byte_level || matched == to - from)) {
        *pending = false;
        return add_symbol(e, id, from, to);
    }
    if (e->bpe->byte_level || !e->bpe->byte_fallback) return add_unknown(e, from, to, pending);
    for (; from < to; from++)
        MHA_TRY(add_symbol(e, bytes[(unsigned char)text[from]], from, from + 1));
    return MHA_OK;
}

/* Find a token that is the whole word. */
static mha_status find_whole(encoder *e, const part *word, int32_t *id)
{
    const char *text = e->words.text + word->from;
    size_t size = word->to - word->from, matched = 0;
    if (e->bpe->byte_level) {
        e->letters.count = 0;
        for (size_t i = 0; i < size; i++) {
            char letter[MHAI_UTF8_MAX];
            const int bytes = mhai_utf8_put(mhai_bpe_letter((unsigned char)text[i]), letter);
            MHA_TRY(mhai_vector_append(&e->letters, letter, (size_t)bytes));
        }
        text = e->letters.items;
        size = e->letters.count;
    }
    *id = mhai_lexicon_longest(&e->t->first_pieces, text, size, &matched);
    if (matched != size) *id = -1;
    return MHA_OK;
}

/* Push a piece of a word. An unknown piece becomes the token with its text, which fusing can make,
 * or its bytes if the vocabulary has all of them. */
static mha_status push_piece(encoder *e, const mhai_piece *piece, size_t first)
{
    const mhai_bpe *bpe = e->bpe;
    const part place = {first + piece->from, first + piece->to};
    int32_t id = piece->id;
    bool bytes = bpe->byte_fallback && id == bpe->unk;
    if (id == bpe->unk) MHA_TRY(find_whole(e, &place, &id));
    bytes &= id < 0;
    for (size_t i = place.from; bytes && i < place.to; i++)
        bytes = bpe->byte_ids[(unsigned char)e->words.text[i]] >= 0;
    if (!bytes) return push_symbol(e, id < 0 ? bpe->unk : id, place.from, place.to);
    for (size_t i = place.from; i < place.to; i++)
        MHA_TRY(
            push_symbol(e, bpe->byte_ids[(unsigned char)e->words.text[i]], place.from, place.to));
    return MHA_OK;
}

static mha_status encode_by_score(encoder *e, const part *word)
{
    e->pieces.count = 0;
    MHA_TRY(mhai_unigram_pieces(e->t, e->words.text + word->from, word->to - word->from, &e->nodes,
                                &e->pieces));
    const mhai_piece *pieces = e->pieces.items;
    for (size_t i = 0; i < e->pieces.count; i++) MHA_TRY(push_piece(e, &pieces[i], word->from));
    return MHA_OK;
}

static mha_status encode_word(encoder *e, const part *word)
{
    if (e->bpe->scores) return encode_by_score(e, word);
    bool pending = false;
    int32_t whole = -1;
    if (e->bpe->ignore_merges) MHA_TRY(find_whole(e, word, &whole));
    if (whole >= 0) return push_symbol(e, whole, word->from, word->to);
    e->symbols.count = 0;
    for (size_t from = word->from, to = 0; from < word->to; from = to) {
        to = from + 1;
        while (!e->bpe->byte_level && to < word->to &&
               ((unsigned char)e->words.text[to] & 0xC0) == 0x80)
            to++;
        MHA_TRY(add_character(e, from, to, to == word->to, &pending));
    }
    MHA_TRY(merge(e));
    const symbol *symbols = e->symbols.items;
    for (size_t i = 0; i < e->symbols.count; i++)
        if (symbols[i].id >= 0)
            MHA_TRY(push_symbol(e, symbols[i].id, symbols[i].from, symbols[i].to));
    return MHA_OK;
}

/* ---- Texts ----------------------------------------------------------------------------------- */

static mha_status take_words(void *user, size_t from, size_t to)
{
    encoder *e = user;
    mhai_vector *words = NULL;
    MHA_TRY(split(e, from, to, true, &words));
    return encode_words(e, words, 0);
}

static mha_status take_normal_token(void *user, int32_t id, size_t from, size_t to)
{
    encoder *e = user;
    return push(e, &e->normal, id, from, to, e->normal.text + from, to - from);
}

static mha_status take_segment(void *user, size_t from, size_t to)
{
    encoder *e = user;
    const mhai_finder finder = {e, take_normal_token, take_words};
    MHA_TRY(normalize(e, from, to));
    return mhai_tokenizer_find(e->t, &e->t->normal_tokens, e->normal.text, e->normal.size, &finder);
}

static mha_status take_token(void *user, int32_t id, size_t from, size_t to)
{
    encoder *e = user;
    const mhai_stretch given = {.text = e->text, .size = e->size};
    return push(e, &given, id, from, to, e->text + from, to - from);
}

static mha_status start(const mha_tokenizer *t, const char *text, size_t size, encoder *e)
{
    const mha_allocator *allocator = &t->allocator;
    *e = (encoder){.t = t, .bpe = t->bpe, .text = text, .size = size};
    for (int i = 0; i < 4; i++) e->drafts[i] = mhai_draft_make(allocator);
    for (int i = 0; i < 2; i++) e->parts[i] = mhai_vector_make(allocator, sizeof(part));
    e->symbols = mhai_vector_make(allocator, sizeof(symbol));
    e->heap = mhai_vector_make(allocator, sizeof(candidate));
    e->letters = mhai_vector_make(allocator, 1);
    e->nodes = mhai_unigram_nodes(allocator);
    e->pieces = mhai_vector_make(allocator, sizeof(mhai_piece));
    return mhai_matcher_make(allocator, &e->matcher);
}

static mha_status finish(encoder *e, mha_status status)
{
    mhai_matcher_free(&e->matcher);
    for (int i = 0; i < 4; i++) mhai_draft_free(&e->drafts[i]);
    for (int i = 0; i < 2; i++) mhai_vector_free(&e->parts[i]);
    mhai_vector_free(&e->symbols);
    mhai_vector_free(&e->heap);
    mhai_vector_free(&e->letters);
    mhai_vector_free(&e->nodes);
    mhai_vector_free(&e->pieces);
    return status;
}

mha_status mhai_bpe_encode(const mha_tokenizer *t, const char *text, size_t size,
                           mhai_tokens *tokens)
{
    encoder e;
    const mhai_finder finder = {&e, take_token, take_segment};
    mha_status status = start(t, text, size, &e);
    e.tokens = tokens;
    if (status == MHA_OK) status = mhai_tokenizer_find(t, &t->raw_tokens, text, size, &finder);
    return finish(&e, status);
}

mha_status mhai_bpe_normalize(const mha_tokenizer *t, const char *text, mhai_vector *normalized)
{
    encoder e;
    const size_t size = strlen(text);
    mha_status status = start(t, text, size, &e);
    if (status == MHA_OK) status = normalize(&e, 0, size);
    if (status == MHA_OK) status = mhai_vector_append(normalized, e.normal.text, e.normal.size);
    return finish(&e, status);
}

static mha_status add_words(encoder *e, const mhai_vector *parts, mhai_vector *normalized,
                            mhai_vector *words)
{
    const part *p = parts->items;
    MHA_TRY(mhai_vector_append(normalized, e->words.text, e->words.size));
    for (size_t i = 0; i < parts->count; i++) {
        mhai_found_word word = {.from = (int64_t)p[i].from, .to = (int64_t)p[i].to};
        mhai_stretch_place(&e->words, p[i].from, p[i].to, &word.begin, &word.end);
        MHA_TRY(mhai_vector_push(words, &word));
    }
    return MHA_OK;
}

mha_status mhai_bpe_words(const mha_tokenizer *t, const char *text, size_t size,
                          mhai_vector *normalized, mhai_vector *words)
{
    encoder e;
    mhai_vector *parts = NULL;
    mha_status status = start(t, text, size, &e);
    if (status == MHA_OK) status = normalize(&e, 0, size);
    if (status == MHA_OK) status = split(&e, 0, e.normal.size, false, &parts);
    if (status == MHA_OK) status = add_words(&e, parts, normalized, words);
    return finish(&e, status);
}
