/* Text on stdout, and the form of chats. */
#ifndef CLI_GENERATE_STREAM_H
#define CLI_GENERATE_STREAM_H

#include "common/exits.h"

#include <multihead/tokenizer.h>

#define GENERATE "generate"

/* Text on stdout with its line ends and tabs; other controls are escaped. */
void generate_print(const char *text, size_t bytes);

/* TEXT as the user's turn of a chat, in the arena, and the token that ends the answer: ChatML, or
 * the form of Llama 3, by the special tokens that the vocabulary has. */
cli_exit generate_chat(const mha_tokenizer *tokenizer, const char *folder, const char *text,
                       char **prompt, int32_t *end);

#endif
