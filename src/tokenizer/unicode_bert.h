/* What the BERT tokenizer knows of Unicode: UTF-8, classes of characters, decomposition, case.
 *
 * The answers are those of the Rust crates that Hugging Face's tokenizer is built on, which stand
 * at different versions of Unicode: general categories at 8.0, decomposition and combining classes
 * at 9.0, lower case and white space at the newest. They do not depend on the version of utf8proc,
 * which gives decompositions, combining classes and lower case for what existed then. */
#ifndef MHAI_UNICODE_BERT_H
#define MHAI_UNICODE_BERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

enum { MHAI_UTF8_MAX = 4 }; /* bytes of one character */

/* The offset of the first byte that does not belong to a valid character (surrogates, over-long
 * forms and values above 10FFFF are not valid); size if all are. */
size_t mhai_unicode_check_utf8(const char *text, size_t size);

/* The character that begins at *at in valid text; moves *at behind it. */
int32_t mhai_unicode_next(const char *text, size_t *at);

/* Write a character as UTF-8; gives the number of bytes, 1 to 4. */
int mhai_unicode_put(int32_t c, char bytes[MHAI_UTF8_MAX]);

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
