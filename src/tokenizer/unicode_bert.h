/* Unicode for the BERT tokenizer: classes of characters, decomposition, case.
 *
 * Results match the Rust crates of Hugging Face's tokenizer, which use several versions of Unicode:
 * general categories of 8.0, decomposition and combining classes of 9.0, lower case and white space
 * of the newest. They do not depend on the version of utf8proc, which provides decompositions,
 * combining classes and lower case for the characters of that version. */
#ifndef MHAI_UNICODE_BERT_H
#define MHAI_UNICODE_BERT_H

#include "io/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Classes of characters ------------------------------------------------------------------- */

bool mhai_unicode_is_space(int32_t c);   /* White_Space */
bool mhai_unicode_is_control(int32_t c); /* Cc, Cf and Co, without tab and the two line ends */
bool mhai_unicode_is_mark(int32_t c);    /* Mn */
bool mhai_unicode_is_punct(int32_t c);   /* P*, and all ASCII except letters, digits and spaces */
bool mhai_unicode_is_cjk(int32_t c);     /* the ideographs that BERT treats as words */

/* ---- Mappings -------------------------------------------------------------------------------- */

enum { MHAI_DECOMPOSE_MAX = 4, MHAI_LOWER_MAX = 2 };

/* The canonical combining class; 0 for a starter. */
int mhai_unicode_combining(int32_t c);

/* Write the full canonical decomposition; returns the number of characters, 1 if there is none. */
int mhai_unicode_decompose(int32_t c, int32_t parts[MHAI_DECOMPOSE_MAX]);

/* Lower case without context; returns the number of characters. */
int mhai_unicode_lower(int32_t c, int32_t lowered[MHAI_LOWER_MAX]);

#endif
