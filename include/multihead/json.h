/* multihead: JSON into a sink. The writer places commas, quotes and escapes, checks that what is
 * begun is ended, and writes numbers alike in every locale.
 *
 *   mha_json json = {.sink = &sink};
 *   mha_json_object(&json, NULL);
 *   mha_json_text(&json, "model", name);
 *   mha_json_array(&json, "weights");
 *   for (int i = 0; i < count; i++) mha_json_number(&json, NULL, weights[i]);
 *   mha_json_end(&json);
 *   mha_json_end(&json);
 *   return mha_json_finish(&json);                {"model": "tiny", "weights": [0.25, 0.75]}
 *
 * Functions that write a value take the name of a member: NULL in an array and for the whole.
 * None returns an error; the first one stays in status, and nothing is written after it.
 *
 * Stability: may change in a minor version (docs/stability.md).
 * SPDX-License-Identifier: MIT
 */
#ifndef MULTIHEAD_JSON_H
#define MULTIHEAD_JSON_H

#include <multihead/sink.h>

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MHA_JSON_DEPTH = 32 /* objects and arrays within each other */ };

/* Set sink, and compact if wanted; leave the rest zero. */
typedef struct mha_json {
    const mha_sink *sink;
    mha_status status; /* the first failure */
    /* No spaces, and < > & escaped, so that it may stand inside a script element; a line begins
     * with each further member of the whole, and with each further object of an array. */
    bool compact;
    uint8_t depth, line, lines[MHA_JSON_DEPTH + 1], open[MHA_JSON_DEPTH + 1];
} mha_json;

/* Errors of all: MHA_ERR_ARGUMENT for a name where none belongs, none where one does, a value after the
 * whole, more than MHA_JSON_DEPTH within each other; those of the sink. */

/** Begin an object. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_object(mha_json *json, const char *name);

/** Begin an array. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_array(mha_json *json, const char *name);

/** End what was begun last, if anything is open; after the whole the line ends too. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_end(mha_json *json);

/** The status of the writing. Memory none. Errors status; MHA_ERR_ARGUMENT (something is still
 * open). Threads one per writer. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_json_finish(mha_json *json);

/** The next value, or end, begins a line after so many spaces (at most 250); not in compact form.
 * Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_line(mha_json *json, int indent);

/** So does every further value of the innermost object or array, and its end after two spaces less;
 * -1 ends this. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_lines(mha_json *json, int indent);

/** A text of any length; NULL is null. A byte that belongs to no well-formed UTF-8 becomes U+FFFD;
 * what a terminal would interpret (mha_text_hidden()) is written \u0000. Memory none. Errors in
 * status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_text(mha_json *json, const char *name, const char *text);

/** A text of so many bytes. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_bytes(mha_json *json, const char *name, const char *text, size_t bytes);

/** A text made as by printf(), in the locale "C". Above 200 bytes it is allocated for the call.
 * Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_format(mha_json *json, const char *name, const char *format, ...)
    MHA_PRINTF(3, 4);

/** A whole number. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_integer(mha_json *json, const char *name, int64_t value);

/** A number with nine digits, which give back every float; null for NaN and infinity. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_number(mha_json *json, const char *name, double value);

/** A number with so many digits (0 to 20) after the point; null for NaN and infinity. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_decimals(mha_json *json, const char *name, double value, int decimals);

/** true or false. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_bool(mha_json *json, const char *name, bool value);

/** null. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_null(mha_json *json, const char *name);

/** Bytes as base64, in quotes. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_base64(mha_json *json, const char *name, const void *bytes, size_t count);

/** The same without quotes, for other texts. Memory none. Errors those of the sink. Threads any.
 * Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_base64(const void *bytes, size_t count, const mha_sink *sink);

/** What stands before a value, which the caller then writes to the sink by other means. Memory
 * none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_value(mha_json *json, const char *name);

/** An array of texts; NULL is null. Memory none. Errors in status. Threads one per writer. Since
 * 0.1 */
MHA_API void mha_json_texts(mha_json *json, const char *name, const char *const *values,
                            int64_t count);

/** An array of whole numbers. Memory none. Errors in status. Threads one per writer.
 * Since 0.1 */
MHA_API void mha_json_integers(mha_json *json, const char *name, const int64_t *values,
                               int64_t count);

/** An array of numbers, as mha_json_number(). Memory none. Errors in status. Threads
 * one per writer. Since 0.1 */
MHA_API void mha_json_numbers(mha_json *json, const char *name, const double *values,
                              int64_t count);

/** An array of numbers, as mha_json_number(). Memory none. Errors in status. Threads
 * one per writer. Since 0.1 */
MHA_API void mha_json_floats(mha_json *json, const char *name, const float *values, int64_t count);

/* What a field of a struct is; or, without one, what comes between fields. */
typedef enum mha_json_type {
    MHA_JSON_LAST,    /* the table ends */
    MHA_JSON_TEXT,    /* const char * */
    MHA_JSON_CHARS,   /* char [], ended by a NUL */
    MHA_JSON_INTEGER, /* int64_t */
    MHA_JSON_COUNT,   /* int64_t; null below 0 */
    MHA_JSON_GIVEN,   /* int64_t; left out below 0 */
    MHA_JSON_INT,     /* int */
    MHA_JSON_NUMBER,  /* double */
    MHA_JSON_KNOWN,   /* double; null unless above 0 */
    MHA_JSON_FLOAT,   /* float */
    MHA_JSON_WHOLE,   /* double, without a point */
    MHA_JSON_BOOL,    /* bool */
    MHA_JSON_OBJECT,  /* an object begins */
    MHA_JSON_END,     /* it ends */
    MHA_JSON_LINE     /* mha_json_line(); offset is the indent */
} mha_json_type;

/* A table of them ends with {0}. */
typedef struct mha_json_field {
    const char *name;
    mha_json_type type;
    size_t offset;
} mha_json_field;

/* A field called as the member, MHA_JSON_FIELD(INTEGER, mha_head_score, rows), or otherwise; and
 * what comes between fields. A member of another type does not compile (C11). */
#define MHA_JSON_FIELD(type, structure, member) MHA_JSON_NAMED(#member, type, structure, member)
#define MHA_JSON_NAMED(name, type, structure, member)                                  \
    {                                                                                  \
        name, MHA_JSON_##type,                                                         \
            offsetof(structure, member) + MHA_JSON_IS_##type(((structure *)0)->member) \
    }
#define MHA_JSON_IS_TEXT(x) _Generic(&(x), const char ** : 0, char ** : 0)
#define MHA_JSON_IS_CHARS(x) _Generic(&(x)[0], char * : 0)
#define MHA_JSON_IS_INTEGER(x) _Generic(&(x), int64_t * : 0)
#define MHA_JSON_IS_COUNT(x) MHA_JSON_IS_INTEGER(x)
#define MHA_JSON_IS_GIVEN(x) MHA_JSON_IS_INTEGER(x)
#define MHA_JSON_IS_INT(x) _Generic(&(x), int * : 0)
#define MHA_JSON_IS_NUMBER(x) _Generic(&(x), double * : 0)
#define MHA_JSON_IS_KNOWN(x) MHA_JSON_IS_NUMBER(x)
#define MHA_JSON_IS_WHOLE(x) MHA_JSON_IS_NUMBER(x)
#define MHA_JSON_IS_FLOAT(x) _Generic(&(x), float * : 0)
#define MHA_JSON_IS_BOOL(x) _Generic(&(x), bool * : 0)
#define MHA_JSON_BEGINS(name)    \
    {                            \
        name, MHA_JSON_OBJECT, 0 \
    }
#define MHA_JSON_ENDS         \
    {                         \
        NULL, MHA_JSON_END, 0 \
    }
#define MHA_JSON_BREAK(indent)      \
    {                               \
        NULL, MHA_JSON_LINE, indent \
    }

/** Members of the open object: the fields of the struct at data. Memory none. Errors in status.
 * Threads one per writer. Since 0.1 */
MHA_API void mha_json_fields(mha_json *json, const mha_json_field *fields, const void *data);

/** An object of these members. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_struct(mha_json *json, const char *name, const mha_json_field *fields,
                             const void *data);

/** An array of such objects, of count structs of size bytes each. Memory none. Errors in status.
 * Threads one per writer. Since 0.1 */
MHA_API void mha_json_structs(mha_json *json, const char *name, const mha_json_field *fields,
                              const void *data, size_t size, int64_t count);

/**
 * The next code point of a UTF-8 text that ends before end; *text moves past it. A byte that
 * belongs to no well-formed sequence gives U+FFFD and advances by one. *hidden tells whether
 * mha_text_hidden() holds, or it is such a stray byte.
 *
 * Memory   none.   Errors  none; *text must be before end.   Threads  any.   Since  0.1
 */
MHA_API uint32_t mha_text_next(const char **text, const char *end, bool *hidden);

/**
 * Whether a terminal would interpret a code point, or show nothing or something else: controls of
 * both sets (U+0000 .. U+001F, U+007F .. U+009F), directional marks, line separators, characters
 * with neither shape nor width (except joiners, which scripts and emoji need), tags, noncharacters.
 *
 * Memory   none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API bool mha_text_hidden(uint32_t code);

#ifdef __cplusplus
}
#endif
#endif
