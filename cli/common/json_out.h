/* JSON on its way to a sink: the pieces that all subcommands write. The first failure is kept, and
 * after it nothing is written. */
#ifndef CLI_JSON_OUT_H
#define CLI_JSON_OUT_H

#include <multihead/render.h>

typedef struct json_out {
    const mha_sink *sink;
    mha_status status;
} json_out;

void json_put(json_out *json, const char *bytes, size_t count);

/* For short pieces: what is longer than 127 bytes is cut. */
void json_print(json_out *json, const char *format, ...) MHA_PRINTF(2, 3);

/* A text in quotes; NULL is null. Bytes that are not UTF-8 (a file's name may hold them) become
 * U+FFFD; what a terminal would obey or not show (mha_text_next()) is written \u0000. */
void json_text_bytes(json_out *json, const char *text, size_t bytes);
void json_text(json_out *json, const char *text);

/* A number behind before, with nine digits; null for NaN and infinity. */
void json_number(json_out *json, double value, const char *before);

#endif
