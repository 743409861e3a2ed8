/* What the BERT tokenizer knows of Unicode: classes of characters, decomposition, case.
 *
 * The answers are those of the Rust crates that Hugging Face's tokenizer is built on, which stand
 * at different versions of Unicode: general categories at 8.0, decomposition and combining classes
 * at 9.0, lower case and white space at the newest. They do not depend on the version of utf8proc,
 * which gives decompositions, combining classes and lower case for what existed then. */
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
bool mhai_unicode_is_punct(int32_t c);   /* P*, and all ASCII that is no letter, digit or space */
bool mhai_unicode_is_cjk(int32_t c);     /* the ideographs that BERT treats as words */

/* ---- Mappings -------------------------------------------------------------------------------- */

enum { MHAI_DECOMPOSE_MAX = 4, MHAI_LOWER_MAX = 2 };

/* The canonical combining class; 0 for a starter. */
int mhai_unicode_combining(int32_t c);

/* The full canonical decomposition; gives the number of characters, 1 where c is its own. */
int mhai_unicode_decompose(int32_t c, int32_t parts[MHAI_DECOMPOSE_MAX]);

/* Lower case without context; gives the number of characters. */
int mhai_unicode_lower(int32_t c, int32_t lowered[MHAI_LOWER_MAX]);

#endif
