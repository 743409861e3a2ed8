/* Words of a text and the tokens that they are: "it", "didn't" (three tokens), "it:2". */
#include "view/view_ask.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Bytes beyond ASCII belong to letters of any script, which words need not end at. */
static bool is_word_byte(char c)
{
    return isalnum((unsigned char)c);
}

/* A place where a word of the text begins or ends: at an end of it, or next to something else. */
static bool is_boundary(const char *text, int64_t bytes, int64_t at)
{
    return at <= 0 || at >= bytes || !is_word_byte(text[at - 1]) || !is_word_byte(text[at]);
}

/* The tokens from i on whose bytes are the word; 0 if they are not. */
static int64_t match_at(const attention_maps *source, int64_t i, const char *word, size_t length)
{
    const maps_tokens *tokens = &source->rows;
    const maps_token *first = &tokens->items[i];
    if (first->sequence < 0) /* a special token, by its name */
        return strlen(first->text) == length && !strncmp(first->text, word, length);
    const char *text = source->text[first->sequence];
    const int64_t bytes = (int64_t)source->text_bytes[first->sequence];
    int64_t begin = first->begin; /* tokens of BPE begin with the space before a word */
    while (begin + 1 < first->end && text[begin] == ' ' && *word != ' ') begin++;
    for (int64_t j = i; j < tokens->count; j++) {
        const maps_token *last = &tokens->items[j];
        if (last->sequence != first->sequence || last->end - begin > (int64_t)length) break;
        if (last->end - begin < (int64_t)length) continue;
        return !strncasecmp(text + begin, word, length) && is_boundary(text, bytes, begin) &&
                       is_boundary(text, bytes, last->end)
                   ? j - i + 1
                   : 0;
    }
    return 0;
}

typedef struct word_places {
    int64_t count;
    ask_word chosen; /* number `wanted`, or the first */
    char list[120];  /* "2, 7": token numbers for a message */
} word_places;

static word_places find_places(const attention_maps *source, const char *word, size_t length,
                               int64_t wanted)
{
    word_places places = {0};
    for (int64_t i = 0; length > 0 && i < source->rows.count; i++) {
        const int64_t count = match_at(source, i, word, length);
        const size_t used = strlen(places.list);
        if (count == 0) continue;
        places.count++;
        if (places.count == 1 || places.count == wanted) places.chosen = (ask_word){NULL, i, count};
        if (used + 24 < sizeof places.list)
            snprintf(places.list + used, sizeof places.list - used, "%s%" PRId64, used ? ", " : "",
                     i);
    }
    return places;
}

/* "it:2" -> 2, and *length that of "it"; 0 if no number is behind a colon. */
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

static cli_exit missing(const char *option, const char *given, const attention_maps *source)
{
    char text[200];
    view_join_texts(source, 60, text, sizeof text);
    return cli_fail(CLI_BAD_INPUT, VIEW,
                    "%s %s: no such word in the text '%s'; give it as it stands there, or a token "
                    "such as [CLS]",
                    option, given, text);
}

cli_exit view_find_word(const char *option, const char *given, const attention_maps *source,
                        ask_word *word)
{
    size_t length = strlen(given);
    word_places places = find_places(source, given, length, 0); /* "12:30" is a word too */
    int64_t wanted = 0;
    if (places.count == 0) {
        wanted = take_number(given, &length);
        if (length < strlen(given)) places = find_places(source, given, length, wanted);
        if (places.count > 0 && (wanted < 1 || wanted > places.count))
            return cli_fail(CLI_USAGE, VIEW,
                            "%s %s: the text has the word %" PRId64 " time%s, counted from 1",
                            option, given, places.count, places.count == 1 ? "" : "s");
    }
    if (places.count == 0) return missing(option, given, source);
    if (places.count > 1 && wanted == 0)
        return cli_fail(CLI_USAGE, VIEW,
                        "%s %s: the text has the word %" PRId64 " times, at tokens %s; say which: "
                        "%s %s:1 .. %s:%" PRId64,
                        option, given, places.count, places.list, option, given, given,
                        places.count);
    *word = places.chosen;
    word->given = given;
    return CLI_OK;
}
