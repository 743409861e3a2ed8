/* Numbers for people: digits in groups of three, bytes with a unit, rounded sizes. */
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

const char *words_s(int64_t n); /* the plural ending for n: "" for 1, else "s" */

/* Print a label and a text on stdout, wrapped at spaces and indented by the label. */
void words_print(const char *label, const char *text);

#endif
