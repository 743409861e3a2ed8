/* Printing text to stdout, and chat templates. */
#ifndef CLI_GENERATE_STREAM_H
#define CLI_GENERATE_STREAM_H

#include "common/exits.h"

#include <multihead/tokenizer.h>

/* Print text with line ends and tabs; escape other control characters. */
void generate_print(const char *text, size_t bytes);

/* TEXT as the user's turn of a chat, in the arena, and the token that ends the answer: ChatML or
 * Llama 3, by the special tokens of the vocabulary. */
cli_exit generate_chat(const mha_tokenizer *tokenizer, const char *folder, const char *text,
                       char **prompt, int32_t *end);

#endif
