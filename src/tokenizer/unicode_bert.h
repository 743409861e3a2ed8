/* Unicode for the BERT tokenizer: character classes, decomposition, and case.
 *
 * Results match the Rust crates of Hugging Face's tokenizer, which use several versions of Unicode:
 * 8.0 for general categories, 9.0 for decomposition and combining classes, and the newest for lower
 * case and white space. utf8proc provides decompositions, combining classes and lower case, but
 * results do not depend on its version. */
#ifndef MHAI_UNICODE_BERT_H
#define MHAI_UNICODE_BERT_H

#include "io/utf8.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Classes of characters ------------------------------------------------------------------- */

bool mhai_unicode_is_space(int32_t c);    /* White_Space */
bool mhai_unicode_is_control(int32_t c);  /* Cc, Cf and Co, except tab and the two line ends */
bool mhai_unicode_is_mark(int32_t c);     /* Mn */
bool mhai_unicode_is_any_mark(int32_t c); /* Mn, Mc and Me of Unicode 9.0 */
bool mhai_unicode_is_punct(int32_t c);    /* P*, and all ASCII except letters, digits and spaces */
bool mhai_unicode_is_cjk(int32_t c);      /* the ideographs that BERT treats as words */

/* ---- Mappings -------------------------------------------------------------------------------- */

enum { MHAI_DECOMPOSE_MAX = 4, MHAI_COMPATIBLE_MAX = 18, MHAI_LOWER_MAX = 2 };

/* The canonical combining class; 0 for starters. */
int mhai_unicode_combining(int32_t c);

/* Write the full canonical decomposition, or c itself. Returns the number of characters. */
int mhai_unicode_decompose(int32_t c, int32_t parts[MHAI_DECOMPOSE_MAX]);

/* The same for the full compatibility decomposition. */
int mhai_unicode_decompose_compatible(int32_t c, int32_t parts[MHAI_COMPATIBLE_MAX]);

/* Lower case without context. Returns the number of characters. */
int mhai_unicode_lower(int32_t c, int32_t lowered[MHAI_LOWER_MAX]);

#endif
