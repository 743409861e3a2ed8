/* The text that a model of BPE or WordPiece writes, on stdout as it comes: whole characters only,
 * and nothing of a stop text. */
#ifndef CLI_GENERATE_STREAM_H
#define CLI_GENERATE_STREAM_H

#include "common/args.h"

#include <multihead/tokenizer.h>

#define GENERATE "generate"

typedef struct generate_stream {
    const mha_tokenizer *tokenizer;
    const args_texts *stops;
    char *text; /* [room] all that was generated */
    size_t room, used, shown;
    size_t held; /* bytes that may be the beginning of a stop text */
} generate_stream;

/* Append a token; *stopped: a stop text is complete, and what is before it is shown. */
cli_exit generate_stream_add(generate_stream *stream, int32_t id, bool *stopped);

/* Show what is held back; bytes of a character that never ended become U+FFFD. */
cli_exit generate_stream_end(generate_stream *stream);

/* Text on stdout with its line ends and tabs; other controls are escaped. */
void generate_print(const char *text, size_t bytes);

/* TEXT as the user's turn of a chat, in the arena, and the token that ends the answer: ChatML, or
 * the form of Llama 3, by the special tokens that the vocabulary has. */
cli_exit generate_chat(const mha_tokenizer *tokenizer, const char *folder, const char *text,
                       char **prompt, int32_t *end);

#endif
