/* Files of tokens: a token a line, or a JSON list of texts. */
#include "texts.h"
#include "view.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tokens ---------------------------------------------------------------------------------- */

/* Names that models give to tokens which stand for no text. */
static bool looks_special(const char *text)
{
    static const char *const names[] = {"[CLS]", "[SEP]", "[PAD]",         "[MASK]",
                                        "[UNK]", "<s>",   "</s>",          "<pad>",
                                        "<bos>", "<eos>", "<|endoftext|>", "<|begin_of_text|>"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(text, names[i])) return true;
    return false;
}

/* Append a token; text becomes its own. */
static cli_exit append(maps_tokens *tokens, char *text)
{
    int64_t count = tokens->count;
    /* Room doubles whenever the count is a power of two. */
    if ((count & (count - 1)) == 0) {
        size_t room = count > 0 ? (size_t)count * 2 : 1;
        maps_token *grown = text ? realloc(tokens->items, room * sizeof *grown) : NULL;
        if (!grown) {
            free(text);
            return cli_fail(CLI_NO_MEMORY, VIEW, "out of memory: %" PRId64 " tokens", count + 1);
        }
        tokens->items = grown;
    }
    if (!text) return cli_fail(CLI_NO_MEMORY, VIEW, "out of memory: a token");
    tokens->items[tokens->count++] = (maps_token){.text = text,
                                                  .id = -1,
                                                  .type = -1,
                                                  .begin = -1,
                                                  .end = -1,
                                                  .sequence = -1,
                                                  .special = looks_special(text)};
    return CLI_OK;
}

static cli_exit take_lines(const char *text, size_t size, maps_tokens *tokens)
{
    size_t at = 0;
    while (at < size) {
        const char *end = memchr(text + at, '\n', size - at);
        size_t length = end ? (size_t)(end - text) - at : size - at;
        size_t shown = length > 0 && text[at + length - 1] == '\r' ? length - 1 : length;
        cli_exit code = append(tokens, maps_copy_text(text + at, shown));
        if (code != CLI_OK) return code;
        at += length + 1;
    }
    return CLI_OK;
}

/* ---- A JSON list of texts (RFC 8259), and no other JSON -------------------------------------- */

static void skip_space(const char **at)
{
    *at += strspn(*at, " \t\r\n");
}

/* Four hexadecimal digits, or -1. */
static long take_hex(const char **at)
{
    long value = 0;
    for (int i = 0; i < 4; i++) {
        const char digits[] = "0123456789abcdef";
        char lower = (char)(**at | 0x20); /* leaves digits as they are */
        const char *digit = **at ? strchr(digits, lower) : NULL;
        if (!digit || !*digit) return -1;
        value = value * 16 + (digit - digits);
        ++*at;
    }
    return value;
}

static char *put_utf8(char *out, long code)
{
    if (code < 0x80) {
        *out++ = (char)code;
    } else if (code < 0x800) {
        *out++ = (char)(0xC0 | code >> 6);
        *out++ = (char)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *out++ = (char)(0xE0 | code >> 12);
        *out++ = (char)(0x80 | (code >> 6 & 63));
        *out++ = (char)(0x80 | (code & 63));
    } else {
        *out++ = (char)(0xF0 | code >> 18);
        *out++ = (char)(0x80 | (code >> 12 & 63));
        *out++ = (char)(0x80 | (code >> 6 & 63));
        *out++ = (char)(0x80 | (code & 63));
    }
    return out;
}

/* What follows a backslash; NULL where it is no JSON. A zero character is refused too: no token
 * holds one, and labels end at it. */
static char *take_escape(const char **at, char *out)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char letter = *(*at)++;
    const char *name = letter ? strchr(names, letter) : NULL;
    if (name) {
        *out++ = values[name - names];
        return out;
    }
    if (letter != 'u') return NULL;
    long code = take_hex(at);
    if (code >= 0xD800 && code < 0xDC00 && (*at)[0] == '\\' && (*at)[1] == 'u') {
        *at += 2;
        long low = take_hex(at);
        if (low < 0xDC00 || low > 0xDFFF) return NULL;
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
    if (code <= 0 || (code >= 0xD800 && code <= 0xDFFF)) return NULL;
    return put_utf8(out, code);
}

/* A text in quotes as a new string, or NULL with *malformed set. Escapes only ever shrink. */
static char *take_string(const char **at, bool *malformed)
{
    *malformed = true;
    if (**at != '"') return NULL;
    ++*at;
    size_t most = 0;
    while ((*at)[most] && (*at)[most] != '"')
        most += (*at)[most] == '\\' && (*at)[most + 1] ? 2 : 1;
    char *text = malloc(most + 1), *out = text;
    *malformed = text != NULL;
    while (text && **at != '"') {
        unsigned char c = (unsigned char)*(*at)++;
        if (c == '\\')
            out = take_escape(at, out);
        else
            *out++ = (char)c;
        if (c < 0x20 || !out) {
            free(text);
            return NULL;
        }
    }
    if (!text) return NULL;
    ++*at;
    *out = '\0';
    *malformed = false;
    return text;
}

static cli_exit malformed_list(const char *path, const char *text, const char *at)
{
    return cli_fail(CLI_BAD_INPUT, VIEW,
                    "%s: byte %zu: expected a JSON list of strings, such as [\"the\", \"cat\"]",
                    path, (size_t)(at - text));
}

static cli_exit take_json(const char *path, const char *text, size_t size, maps_tokens *tokens)
{
    const char *at = text;
    skip_space(&at);
    if (*at != '[') return malformed_list(path, text, at);
    ++at;
    skip_space(&at);
    while (*at != ']' || tokens->count > 0) {
        bool malformed;
        char *token = take_string(&at, &malformed);
        if (malformed) return malformed_list(path, text, at);
        cli_exit code = append(tokens, token);
        if (code != CLI_OK) return code;
        skip_space(&at);
        if (*at == ']') break;
        if (*at != ',') return malformed_list(path, text, at);
        ++at;
        skip_space(&at);
    }
    ++at;
    skip_space(&at);
    return at == text + size ? CLI_OK : malformed_list(path, text, at);
}

cli_exit view_read_tokens(const char *path, maps_tokens *tokens)
{
    char *text;
    size_t size, length = strlen(path);
    cli_exit code = texts_read_file(VIEW, path, &text, &size);
    if (code != CLI_OK) return code;
    size_t valid = maps_valid_utf8(text, size);
    size_t start = size >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3) ? 3 : 0; /* a byte order mark */
    if (valid < size)
        code = cli_fail(CLI_BAD_INPUT, VIEW, "%s: byte %zu is not valid UTF-8; save it as UTF-8",
                        path, valid);
    else if (length > 5 && !strcmp(path + length - 5, ".json"))
        code = take_json(path, text + start, size - start, tokens);
    else
        code = take_lines(text + start, size - start, tokens);
    free(text);
    return code;
}
