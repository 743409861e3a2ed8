/* Numbers as people read them: digits in threes, bytes with a unit, rough sizes. */
#ifndef CLI_WORDS_H
#define CLI_WORDS_H

#include <stdint.h>

enum { WORDS_BYTES = 48 };
typedef struct words {
    char text[WORDS_BYTES];
} words;

words words_count(int64_t n);    /* "1,048,576" */
words words_bytes(double bytes); /* "320 KiB", "1.25 GiB" */
words words_rough(double n);     /* "124 million", "1.4e+18" */
words words_flops(double flops); /* "1.37 TFLOP" */

const char *words_s(int64_t n); /* the end of a noun behind n: "" for 1, else "s" */

/* A label and a text behind it on stdout, broken at spaces, the lines indented by the label. */
void words_print(const char *label, const char *text);

#endif
