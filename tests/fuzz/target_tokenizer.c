/* A folder's tokenizer of any kind, and a text. Parts: a letter (j tokenizer.json, v vocab.txt, b
 * both), the file, tokenizer_config.json if not empty, the text.
 */
#include "fuzz.h"

#include <multihead/checkpoint.h>
#include <multihead/tokenizer.h>

#include <string.h>

FUZZ_MUTATOR("tttt")

static void check_places(int64_t begin, int64_t end, size_t size)
{
    fuzz_must((begin == -1 && end == -1) || (begin >= 0 && begin <= end && end <= (int64_t)size),
              "a token of bytes that the text does not have");
}

static void speak(const mha_tokenizer *tokenizer, int64_t count)
{
    const char *bytes = NULL;
    size_t size = 0;
    int special = 0;
    for (int64_t id = 0; id < count; id++) {
        fuzz_must(mha_tokenizer_token_bytes(tokenizer, (int32_t)id, &bytes, &size, &special) ==
                      MHA_OK,
                  "a token without bytes");
        fuzz_must(size == 0 || memchr(bytes, bytes[size - 1], size), "bytes that are not there");
        fuzz_must(size <= strlen(mha_tokenizer_token(tokenizer, (int32_t)id)),
                  "more than its text");
    }
}

/* The limit changes only the count of tokens beyond it. */
static void stop(const mha_tokenizer *tokenizer, mha_encode_options options, const char *bytes,
                 size_t size, const mha_encoding *whole)
{
    mha_encoding e = {.struct_size = sizeof e};
    options.flags |= MHA_ENCODE_STOP;
    fuzz_must(mha_tokenizer_encode(tokenizer, &options, bytes, size, NULL, 0, &e) == MHA_OK &&
                  e.count == whole->count &&
                  !memcmp(e.ids, whole->ids, (size_t)e.count * sizeof *e.ids) &&
                  (e.dropped[0] > 0) == (whole->dropped[0] > 0),
              "another encoding if it stops");
    mha_encoding_free(&e);
}

static void encode(const mha_tokenizer *tokenizer, fuzz_part text, unsigned how)
{
    mha_tokenizer_info info = {.struct_size = sizeof info};
    mha_encoding e = {.struct_size = sizeof e};
    mha_words words = {.struct_size = sizeof words};
    const mha_encode_options options = {.struct_size = sizeof options,
                                        .flags = how & 1,
                                        .max_length = how >> 1 & 15,
                                        .truncation = (mha_truncation)(how >> 5 & 3)};
    const char *bytes = (const char *)text.data;
    const size_t half = how & 128 ? text.size / 2 : text.size;
    fuzz_must(mha_tokenizer_describe(tokenizer, &info) == MHA_OK, "no description");
    speak(tokenizer, info.vocab_size);
    mha_status status = mha_tokenizer_encode(tokenizer, &options, bytes, half,
                                             how & 128 ? bytes + half : NULL, text.size - half, &e);
    fuzz_must_speak(status);
    fuzz_must(status == MHA_OK || !e.memory, "an encoding that failed is not as it was");
    fuzz_must(options.max_length == 0 || e.count <= options.max_length, "too many tokens");
    if (status == MHA_OK && !(how & 128)) stop(tokenizer, options, bytes, half, &e);
    for (int64_t i = 0; i < e.count; i++) {
        fuzz_must(e.ids[i] >= 0 && e.ids[i] < info.vocab_size, "an id beyond the vocabulary");
        fuzz_must(mha_tokenizer_token(tokenizer, e.ids[i]) != NULL, "an id without a token");
        check_places(e.begin[i], e.end[i], e.sequence[i] == 1 ? text.size - half : half);
    }
    mha_encoding_free(&e);
    status = mha_tokenizer_words(tokenizer, bytes, text.size, &words);
    fuzz_must_speak(status);
    for (int64_t i = 0; i < words.count; i++) {
        check_places(words.from[i], words.to[i], (size_t)words.text_bytes);
        check_places(words.begin[i], words.end[i], text.size);
    }
    mha_words_free(&words);
}

enum { ROOM = 64 };

static void split(const mha_vocabulary *vocabulary, fuzz_part text)
{
    int32_t ids[ROOM];
    int64_t begin[ROOM], end[ROOM], count = 0, normalised = 0;
    const mha_status status = mha_vocabulary_locate(vocabulary, (const char *)text.data, text.size,
                                                    ids, begin, end, ROOM, &count);
    fuzz_must_speak(status);
    fuzz_must(count >= 0 && count <= ROOM, "more tokens than there is room");
    for (int64_t i = 0; i < count && status == MHA_OK; i++) {
        fuzz_must(mha_vocabulary_word(vocabulary, ids[i]) != NULL, "an id without a word");
        check_places(begin[i], end[i], text.size);
    }
    const mha_status other = mha_vocabulary_locate_normalised(
        vocabulary, (const char *)text.data, text.size, ids, begin, end, ROOM, &normalised);
    fuzz_must_speak(other);
    fuzz_must(normalised >= 0 && normalised <= ROOM, "more tokens than there is room");
    fuzz_must(status != MHA_OK || (other == MHA_OK && normalised == count),
              "a text that needs no normalising was changed");
    for (int64_t i = 0; i < normalised; i++) {
        fuzz_must(mha_vocabulary_word(vocabulary, ids[i]) != NULL, "an id without a word");
        check_places(begin[i], end[i], text.size);
    }
    if (other == MHA_ERR_FORMAT && normalised > 0 && normalised < ROOM)
        fuzz_must(begin[normalised] >= 0 && begin[normalised] < end[normalised] &&
                      end[normalised] <= (int64_t)text.size,
                  "an unknown word that is not in the text");
    fuzz_must(!mha_vocabulary_word(vocabulary, mha_vocabulary_count(vocabulary)),
              "a word beyond the last");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t none[1] = "";
    fuzz_part parts[4];
    mha_tokenizer *tokenizer;
    mha_vocabulary *vocabulary;
    fuzz_cut(data, size, parts, 4);
    const char kind = parts[0].size > 0 ? (char)parts[0].data[0] : 'j';
    fuzz_clear(NULL);
    if (kind != 'v') fuzz_write("tokenizer.json", parts[1]);
    if (kind == 'v' || kind == 'b') fuzz_write("vocab.txt", parts[1]);
    if (parts[2].size > 0) fuzz_write("tokenizer_config.json", parts[2]);
    if (!parts[3].data) parts[3].data = none;
    mha_status status = mha_tokenizer_load(fuzz_folder(), NULL, &tokenizer);
    fuzz_must_speak(status);
    if (status == MHA_OK) {
        encode(tokenizer, parts[3], parts[0].size > 1 ? parts[0].data[1] : 0);
        mha_tokenizer_destroy(tokenizer);
    }
    status = mha_vocabulary_load(fuzz_folder(), &vocabulary);
    fuzz_must_speak(status);
    if (status == MHA_OK) {
        split(vocabulary, parts[3]);
        mha_vocabulary_destroy(vocabulary);
    }
    return 0;
}
