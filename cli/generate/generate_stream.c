/* See generate_stream.h. */
#include "generate/generate_stream.h"

#include "common/arena.h"
#include "common/print.h"

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

/* ---- chats --------------------------------------------------------------------------------- */

cli_exit generate_chat(const mha_tokenizer *tokenizer, const char *folder, const char *text,
                       char **prompt, int32_t *end)
{
    static const struct {
        const char *tokens[3]; /* in a vocabulary of this form; the last token ends a turn */
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
        CLI_TRY(ARENA_ALLOC((int64_t)room, prompt));
        snprintf(*prompt, room, "%s%s%s", forms[i].before, text, forms[i].after);
        *end = mha_tokenizer_id(tokenizer, forms[i].tokens[2]);
        return CLI_OK;
    }
    return cli_fail(
        CLI_UNSUPPORTED,
        "--chat: %s has neither the tokens of ChatML (<|im_start|>) nor those of Llama 3 "
        "(<|start_header_id|>); write its template into TEXT",
        folder);
}
