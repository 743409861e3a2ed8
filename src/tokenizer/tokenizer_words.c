/* The BERT pre-tokenizer: words end at white space, which goes, and at punctuation, of which every
 * character is a word of its own. And the public function that shows the words of a text. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

#include <string.h>

void mhai_tokenizer_words_begin(mhai_splitter *splitter, mhai_word_sink sink, void *user)
{
    splitter->sink = sink;
    splitter->user = user;
    splitter->at = 0;
    splitter->word.chars = 0;
    splitter->word.size = 0;
}

mha_status mhai_tokenizer_words_finish(mhai_splitter *splitter)
{
    if (splitter->word.chars == 0) return MHA_OK;
    const mha_status status = splitter->sink(splitter->user, &splitter->word);
    splitter->word.chars = 0;
    splitter->word.size = 0;
    return status;
}

static void append(mhai_splitter *splitter, const mhai_char *ch, const char *bytes, int size)
{
    mhai_word *word = &splitter->word;
    if (word->chars == 0) {
        word->from = splitter->at;
        word->first = ch->begin;
    }
    if (word->chars < MHAI_WORD_CHARS)
        for (int i = 0; i < size; i++) {
            word->bytes[word->size] = bytes[i];
            word->begin[word->size] = ch->begin;
            word->end[word->size] = ch->end;
            word->size++;
        }
    word->chars++;
    word->to = splitter->at + size;
    word->last = ch->end;
}

mha_status mhai_tokenizer_words_take(mhai_splitter *splitter, const mhai_char *ch)
{
    char bytes[MHAI_UTF8_MAX];
    const int size = mhai_unicode_put(ch->c, bytes);
    if (mhai_unicode_is_space(ch->c)) {
        MHA_TRY(mhai_tokenizer_words_finish(splitter));
    } else if (mhai_unicode_is_punct(ch->c)) {
        MHA_TRY(mhai_tokenizer_words_finish(splitter));
        append(splitter, ch, bytes, size);
        MHA_TRY(mhai_tokenizer_words_finish(splitter));
    } else {
        append(splitter, ch, bytes, size);
    }
    splitter->at += size;
    return MHA_OK;
}

/* ---- mha_tokenizer_words --------------------------------------------------------------------- */

typedef struct found_word {
    int64_t from, to, begin, end;
} found_word;

typedef struct collector {
    mhai_splitter splitter;
    mhai_vector text;  /* of char */
    mhai_vector words; /* of found_word */
} collector;

static mha_status collect_word(void *user, const mhai_word *word)
{
    collector *c = user;
    const found_word found = {word->from, word->to, word->first, word->last};
    return mhai_vector_push(&c->words, &found);
}

static mha_status collect_char(void *user, const mhai_char *ch)
{
    collector *c = user;
    char bytes[MHAI_UTF8_MAX];
    const int size = mhai_unicode_put(ch->c, bytes);
    void *place = NULL;
    MHA_TRY(mhai_vector_add(&c->text, (size_t)size, &place));
    memcpy(place, bytes, (size_t)size);
    return mhai_tokenizer_words_take(&c->splitter, ch);
}

/* One block: allocator and size, the four columns, the text. */
static mha_status hand_over(const mha_allocator *allocator, const collector *c, mha_words *words)
{
    const size_t count = c->words.count, text_bytes = c->text.count;
    const found_word *found = c->words.items;
    void *memory = NULL, *items = NULL;
    MHA_TRY(mhai_vector_block_make(allocator, count, 4 * sizeof(int64_t), text_bytes + 1, &memory,
                                   &items));
    int64_t *from = items, *to = from + count, *begin = to + count, *end = begin + count;
    for (size_t i = 0; i < count; i++) {
        from[i] = found[i].from;
        to[i] = found[i].to;
        begin[i] = found[i].begin;
        end[i] = found[i].end;
    }
    char *text = (char *)(end + count);
    if (text_bytes > 0) memcpy(text, c->text.items, text_bytes);
    text[text_bytes] = '\0';
    words->text = text;
    words->text_bytes = (int64_t)text_bytes;
    words->count = (int64_t)count;
    words->from = from;
    words->to = to;
    words->begin = begin;
    words->end = end;
    words->memory = memory;
    return MHA_OK;
}

mha_status mha_tokenizer_words(const mha_tokenizer *tokenizer, const char *text, size_t text_bytes,
                               mha_words *words)
{
    if (!tokenizer || !words || (!text && text_bytes > 0))
        return mha_fail(MHA_ERR_NULL, "mha_tokenizer_words: NULL argument");
    MHA_TRY(mha_struct_check_size("mha_words", words->struct_size, sizeof *words));
    MHA_TRY(mhai_tokenizer_check_text("text", text, text_bytes));
    collector c = {.text = mhai_vector_make(&tokenizer->allocator, 1),
                   .words = mhai_vector_make(&tokenizer->allocator, sizeof(found_word))};
    mhai_normalizer normalizer = mhai_tokenizer_normalize_make(tokenizer, collect_char, &c);
    mha_status status = MHA_OK;
    mhai_tokenizer_words_begin(&c.splitter, collect_word, &c);
    MHA_TRY_GOTO(mhai_tokenizer_normalize(&normalizer, text, 0, text_bytes), done);
    MHA_TRY_GOTO(mhai_tokenizer_words_finish(&c.splitter), done);
    MHA_TRY_GOTO(hand_over(&tokenizer->allocator, &c, words), done);
done:
    mhai_tokenizer_normalize_free(&normalizer);
    mhai_vector_free(&c.text);
    mhai_vector_free(&c.words);
    return status;
}

void mha_words_free(mha_words *words)
{
    if (!words) return;
    const uint32_t struct_size = words->struct_size;
    mhai_vector_block_free(words->memory);
    *words = (mha_words){.struct_size = struct_size};
}
