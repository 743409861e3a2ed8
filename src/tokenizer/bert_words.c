/* The BERT pre-tokenizer. It splits at white space, which is dropped, and makes each punctuation
 * character a separate word. */
#include "tokenizer/tokenizer_parts.h"

#include "tokenizer/unicode_bert.h"

#include <multihead/component.h>

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
    const int size = mhai_utf8_put(ch->c, bytes);
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
