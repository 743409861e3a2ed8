/* See generate_stream.h. */
#include "generate/generate_stream.h"

#include "common/arena.h"
#include "common/print.h"

#include <multihead/io.h>

#include <stdio.h>
#include <string.h>

void generate_print(const char *text, size_t bytes)
{
    for (size_t at = 0; at < bytes;) {
        size_t run = 0;
        while (at + run < bytes && text[at + run] != '\n' && text[at + run] != '\t') run++;
        if (run > 0) cli_print("%.*s", (int)run, text + at);
        at += run;
        if (at < bytes) cli_print(text[at++] == '\n' ? "\n" : "\t");
    }
}

/* Show text up to end; bytes of no character become U+FFFD, unless they may still become one. */
static cli_exit show(generate_stream *s, size_t end, bool last)
{
    while (s->shown < end) {
        size_t broken;
        const char *from = s->text + s->shown;
        const size_t valid = mha_utf8_span(from, end - s->shown, &broken);
        generate_print(from, valid);
        s->shown += valid;
        if (last && broken == 0) broken = end - s->shown;
        if (broken == 0) break;
        cli_print("\uFFFD");
        s->shown += broken;
    }
    return cli_finish_stdout(GENERATE, CLI_OK);
}

/* Where the first stop text stands in what was not shown; used: nowhere. *held: bytes at the end
 * that begin one. */
static size_t find_stop(const generate_stream *s, size_t *held)
{
    size_t first = s->used;
    *held = 0;
    for (int i = 0; i < s->stops->count; i++) {
        const char *stop = s->stops->items[i];
        const size_t length = strlen(stop);
        for (size_t at = s->shown; at < s->used; at++) {
            const size_t left = s->used - at, compared = left < length ? left : length;
            if (memcmp(s->text + at, stop, compared) != 0) continue;
            if (compared == length && at < first) first = at;
            if (compared < length && left > *held) *held = left;
        }
    }
    return first;
}

cli_exit generate_stream_add(generate_stream *s, int32_t id, bool *stopped)
{
    const char *bytes;
    size_t count;
    int special;
    *stopped = false;
    CLI_TRY(
        cli_check(GENERATE, mha_tokenizer_token_bytes(s->tokenizer, id, &bytes, &count, &special)));
    if (special) return CLI_OK;
    if (s->used + count > s->room) {
        const size_t room = 2 * (s->used + count) + 256;
        CLI_TRY(arena_grow(GENERATE, (int64_t)room, 1, &s->text));
        s->room = room;
    }
    memcpy(s->text + s->used, bytes, count);
    s->used += count;
    size_t held;
    const size_t stop = find_stop(s, &held);
    *stopped = stop < s->used;
    if (*stopped) s->used = stop;
    return show(s, *stopped ? stop : s->used - held, *stopped);
}

cli_exit generate_stream_end(generate_stream *s)
{
    return show(s, s->used, true);
}

/* ---- chats --------------------------------------------------------------------------------- */

cli_exit generate_chat(const mha_tokenizer *tokenizer, const char *folder, const char *text,
                       char **prompt, int32_t *end)
{
    static const struct {
        const char *tokens[3]; /* that a vocabulary of this form has; the last ends a turn */
        const char *before, *after;
    } forms[] = {{{"<|im_start|>", "<|im_start|>", "<|im_end|>"},
                  "<|im_start|>user\n",
                  "<|im_end|>\n<|im_start|>assistant\n"},
                 {{"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
                  "<|start_header_id|>user<|end_header_id|>\n\n",
                  "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        bool has = true;
        for (int k = 0; k < 3; k++)
            has = has && mha_tokenizer_id(tokenizer, forms[i].tokens[k]) >= 0;
        if (!has) continue;
        const size_t room = strlen(forms[i].before) + strlen(text) + strlen(forms[i].after) + 1;
        CLI_TRY(ARENA_ALLOC(GENERATE, (int64_t)room, prompt));
        snprintf(*prompt, room, "%s%s%s", forms[i].before, text, forms[i].after);
        *end = mha_tokenizer_id(tokenizer, forms[i].tokens[2]);
        return CLI_OK;
    }
    return cli_fail(
        CLI_UNSUPPORTED, GENERATE,
        "--chat: %s has neither the tokens of ChatML (<|im_start|>) nor those of Llama 3 "
        "(<|start_header_id|>); write its form into TEXT",
        folder);
}
