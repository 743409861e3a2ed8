/* Writing JSON that is also safe inside a script element. */
#ifndef MHAI_RENDER_HTML_JSON_H
#define MHAI_RENDER_HTML_JSON_H

#include "sink.h"

/* A string; NULL is null. Invalid UTF-8 becomes U+FFFD; < > & and what mha_text_hidden() names are
 * escaped. */
void mhai_html_json_text(mhai_writer *writer, const char *text);

/* A number with 9 digits at most; null unless it is finite. */
void mhai_html_json_real(mhai_writer *writer, double value);

/* ,"name":value: a further member of an object that is open. */
void mhai_html_json_member(mhai_writer *writer, const char *name, const char *text);
void mhai_html_json_member_integer(mhai_writer *writer, const char *name, int64_t value);
void mhai_html_json_member_real(mhai_writer *writer, const char *name, double value);
void mhai_html_json_member_texts(mhai_writer *writer, const char *name, const char *const *texts,
                                 int64_t count);
void mhai_html_json_member_reals(mhai_writer *writer, const char *name, const double *values,
                                 int64_t count);

#endif
