/* Find the tokens of a word in a text: "it", "didn't" (three tokens), "it:2". */
#include <multihead/component.h>
#include <multihead/question.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ASCII only: bytes beyond it may belong to scripts that do not separate words. */
static bool is_word_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Whether a word of the text may begin or end at a byte: at an end of the text, or next to a byte
 * outside words. */
static bool is_boundary(const char *text, int64_t bytes, int64_t at)
{
    return at <= 0 || at >= bytes || !is_word_byte(text[at - 1]) || !is_word_byte(text[at]);
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool is_same(const char *a, const char *b, size_t count)
{
    size_t i = 0;
    while (i < count && lower(a[i]) == lower(b[i])) i++;
    return i == count;
}

/* A text and its tokens. */
typedef struct source {
    const mha_tokens *tokens;
    const char *text;
    int64_t bytes;
} source;

/* The number of tokens from i on that spell the word; 0 if they do not. */
static int64_t match_at(const source *from, int64_t i, const char *word, size_t length)
{
    const mha_tokens *t = from->tokens;
    if (t->sequence[i] < 0) /* a special token, by its name */
        return strlen(t->labels[i]) == length && !strncmp(t->labels[i], word, length);
    int64_t begin = t->begin[i]; /* tokens of BPE begin with the space before a word */
    while (begin + 1 < t->end[i] && from->text[begin] == ' ' && *word != ' ') begin++;
    for (int64_t j = i; j < t->count; j++) {
        if (t->sequence[j] != t->sequence[i] || t->end[j] - begin > (int64_t)length) break;
        if (t->end[j] - begin < (int64_t)length) continue;
        return is_same(from->text + begin, word, length) &&
                       is_boundary(from->text, from->bytes, begin) &&
                       is_boundary(from->text, from->bytes, t->end[j])
                   ? j - i + 1
                   : 0;
    }
    return 0;
}

typedef struct word_places {
    int64_t count;
    mha_token_span chosen; /* number `wanted`, or the first */
    char list[120];        /* "2, 7": token numbers for a message */
} word_places;

static word_places find_places(const source *from, const char *word, size_t length, int64_t wanted)
{
    word_places places = {0};
    for (int64_t i = 0; length > 0 && i < from->tokens->count; i++) {
        const int64_t count = match_at(from, i, word, length);
        const size_t used = strlen(places.list);
        if (count == 0) continue;
        places.count++;
        if (places.count == 1 || places.count == wanted) places.chosen = (mha_token_span){i, count};
        if (used + 24 < sizeof places.list)
            mha_format(places.list + used, sizeof places.list - used, "%s%" PRId64,
                       used ? ", " : "", i);
    }
    return places;
}

/* "it:2" returns 2 and sets *length to that of "it"; returns 0 without a number after a colon. */
static int64_t take_number(const char *given, size_t *length)
{
    const char *colon = strrchr(given, ':');
    if (!colon || colon == given || !colon[1] ||
        strspn(colon + 1, "0123456789") < strlen(colon + 1))
        return 0;
    const long long number = strtoll(colon + 1, NULL, 10);
    *length = (size_t)(colon - given);
    return number;
}

static mha_status missing(const char *word, const char *text, size_t bytes)
{
    enum { SHOWN = 60 }; /* characters of the text */
    size_t end = 0;
    while (bytes > 0 && strchr(" \n\r\t", text[bytes - 1])) bytes--;
    for (int i = 0; i < SHOWN && end < bytes; i++)
        for (end++; end < bytes && ((unsigned char)text[end] & 0xC0) == 0x80;) end++;
    return mha_fail(
        MHA_ERR_FORMAT,
        "%s: no such word in the text '%.*s%s'; write it as in the text, or give a token "
        "such as [CLS]",
        word, (int)end, text, end < bytes ? "\u2026" : "");
}

mha_status mha_tokens_find_word(const mha_tokens *tokens, const char *text, size_t bytes,
                                const char *word, mha_token_span *span)
{
    if (!tokens || !text || !word || !span || (tokens->count > 0 && !tokens->labels))
        return mha_fail(MHA_ERR_NULL, "word: tokens with labels, text, word and span are required");
    const source from = {tokens, text, (int64_t)bytes};
    size_t length = strlen(word);
    word_places places = find_places(&from, word, length, 0); /* "12:30" is also a word */
    int64_t wanted = 0;
    if (places.count == 0) {
        wanted = take_number(word, &length);
        if (length < strlen(word)) places = find_places(&from, word, length, wanted);
        if (places.count > 0 && (wanted < 1 || wanted > places.count))
            return mha_fail(MHA_ERR_ARGUMENT,
                            "%s: the text has the word %" PRId64 " time%s, counted from 1", word,
                            places.count, places.count == 1 ? "" : "s");
    }
    if (places.count == 0) return missing(word, text, bytes);
    if (places.count > 1 && wanted == 0)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "%s: the text has the word %" PRId64 " times, at tokens %s; choose one: "
                        "%s:1 .. %s:%" PRId64,
                        word, places.count, places.list, word, word, places.count);
    *span = places.chosen;
    return MHA_OK;
}
