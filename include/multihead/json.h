/* multihead: write JSON to a sink. The writer places commas, quotes and escapes, checks that every
 * object and array is ended, and writes numbers independently of the locale.
 *
 * Functions that write a value take its member name: NULL in an array and for the root value. They
 * return no error: status keeps the first one, and nothing is written after it.
 *
 * Example, given const mha_sink *sink, const char *name, const double *weights, int64_t count:
 *
 *   mha_json json;
 *   memset(&json, 0, sizeof json);
 *   json.sink = sink;
 *   mha_json_object(&json, NULL);
 *   mha_json_text(&json, "model", name);
 *   mha_json_numbers(&json, "weights", weights, count);
 *   mha_json_end(&json);
 *   mha_status status = mha_json_finish(&json); // {"model": "tiny", "weights": [0.25, 0.75]}
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

enum { MHA_JSON_DEPTH = 32 /* nested objects and arrays */ };

/* Set sink, and compact for one-line output; zero all other fields. */
typedef struct mha_json {
    const mha_sink *sink;
    mha_status status; /* the first failure */
    /* No spaces, and < > & escaped, so that the output can be embedded in a script element. Each
     * further member of the root, and each further object of an array, begins on a new line. */
    bool compact;
    uint8_t depth, line, lines[MHA_JSON_DEPTH + 1], open[MHA_JSON_DEPTH + 1];
} mha_json;

/* Errors of all functions: MHA_ERR_ARGUMENT (a name outside an object, no name inside one, a value after
 * the root, nesting deeper than MHA_JSON_DEPTH); those of the sink. */

/** Begin an object. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_object(mha_json *json, const char *name);

/** Begin an array. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_array(mha_json *json, const char *name);

/** End the innermost open object or array, if any; after the root, also write a newline. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_end(mha_json *json);

/** Finish, and return the first error. Memory none. Errors status; MHA_ERR_ARGUMENT (an object or array
 * is still open). Threads one per writer. Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_json_finish(mha_json *json);

/** Begin a line, indented by `indent` spaces (at most 250), before the next value or end; ignored
 * if compact. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_line(mha_json *json, int indent);

/** Likewise before every further value of the innermost object or array, and before its end with two
 * spaces less; -1 stops it. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_lines(mha_json *json, int indent);

/** Write a string of any length; NULL is null. A byte outside well-formed UTF-8 becomes U+FFFD; a
 * character that a terminal would interpret (mha_text_hidden()) is escaped as \uXXXX. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_text(mha_json *json, const char *name, const char *text);

/** Write a string of `bytes` bytes. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_bytes(mha_json *json, const char *name, const char *text, size_t bytes);

/** Write a string formatted as by printf(), in the locale "C". Memory allocated for the call above 200
 * bytes. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_format(mha_json *json, const char *name, const char *format, ...)
    MHA_PRINTF(3, 4);

/** Write an integer. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_integer(mha_json *json, const char *name, int64_t value);

/** Write a number with nine digits, which round-trip every float; null for NaN and infinity. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_number(mha_json *json, const char *name, double value);

/** Write a number with 0 to 20 decimals; null for NaN and infinity. Memory none.
 * Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_decimals(mha_json *json, const char *name, double value, int decimals);

/** Write true or false. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_bool(mha_json *json, const char *name, bool value);

/** Write null. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_null(mha_json *json, const char *name);

/** Write bytes as a base64 string, in quotes. Memory none. Errors in status. Threads one per writer.
 * Since 0.1 */
MHA_API void mha_json_base64(mha_json *json, const char *name, const void *bytes, size_t count);

/** Write bytes as base64 to a sink, without quotes. Memory none. Errors those of the sink. Threads any.
 * Since 0.1 */
MHA_API MHA_NODISCARD mha_status mha_base64(const void *bytes, size_t count, const mha_sink *sink);

/** Write the comma and name before a value, which the caller then writes to the sink directly. Memory
 * none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_value(mha_json *json, const char *name);

/** Write an array of strings; NULL is null. Memory none. Errors in status. Threads one per writer. Since
 * 0.1 */
MHA_API void mha_json_texts(mha_json *json, const char *name, const char *const *values,
                            int64_t count);

/** Write an array of integers. Memory none. Errors in status. Threads one per writer.
 * Since 0.1 */
MHA_API void mha_json_integers(mha_json *json, const char *name, const int64_t *values,
                               int64_t count);

/** Write an array of numbers, as mha_json_number() does. Memory none. Errors in status. Threads
 * one per writer. Since 0.1 */
MHA_API void mha_json_numbers(mha_json *json, const char *name, const double *values,
                              int64_t count);

/** Write an array of floats, as mha_json_number() does. Memory none. Errors in status. Threads
 * one per writer. Since 0.1 */
MHA_API void mha_json_floats(mha_json *json, const char *name, const float *values, int64_t count);

/* The type of a field, or a structural entry of the table without a field. */
typedef enum mha_json_type {
    MHA_JSON_LAST,    /* the table ends */
    MHA_JSON_TEXT,    /* const char * */
    MHA_JSON_CHARS,   /* char [], ended by a NUL */
    MHA_JSON_INTEGER, /* int64_t */
    MHA_JSON_COUNT,   /* int64_t; null below 0 */
    MHA_JSON_GIVEN,   /* int64_t; omitted below 0 */
    MHA_JSON_INT,     /* int */
    MHA_JSON_NUMBER,  /* double */
    MHA_JSON_KNOWN,   /* double; null unless above 0 */
    MHA_JSON_FLOAT,   /* float */
    MHA_JSON_WHOLE,   /* double, written as an integer */
    MHA_JSON_BOOL,    /* bool */
    MHA_JSON_OBJECT,  /* an object begins */
    MHA_JSON_END,     /* the object ends */
    MHA_JSON_LINE     /* mha_json_line(); offset is the indent */
} mha_json_type;

/* An entry of a field table, which ends with {0}. */
typedef struct mha_json_field {
    const char *name;
    mha_json_type type;
    size_t offset;
} mha_json_field;

/* Entries: a field named as its member, MHA_JSON_FIELD(INTEGER, mha_head_score, rows), or with a name of
 * its own; and structural entries. A member of another type is a compile error (C11). */
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

/** Write the fields of the struct at data as members of the open object. Memory none. Errors in status.
 * Threads one per writer. Since 0.1 */
MHA_API void mha_json_fields(mha_json *json, const mha_json_field *fields, const void *data);

/** Write a struct as an object. Memory none. Errors in status. Threads one per writer. Since 0.1 */
MHA_API void mha_json_struct(mha_json *json, const char *name, const mha_json_field *fields,
                             const void *data);

/** Write an array of objects from count structs of size bytes each. Memory none. Errors in status.
 * Threads one per writer. Since 0.1 */
MHA_API void mha_json_structs(mha_json *json, const char *name, const mha_json_field *fields,
                              const void *data, size_t size, int64_t count);

/**
 * Read the next code point of a UTF-8 text that ends before end, and advance *text past it. A byte
 * outside any well-formed sequence is read as U+FFFD. *hidden is set for such a byte, and for a code
 * point with mha_text_hidden().
 *
 * Memory   none.   Errors  none; *text must be before end.   Threads  any.   Since  0.1
 */
MHA_API uint32_t mha_text_next(const char **text, const char *end, bool *hidden);

/**
 * Whether a terminal would interpret a code point, hide it or display something else: control characters
 * (U+0000 .. U+001F, U+007F .. U+009F), directional marks, line separators, characters without a glyph
 * or width (except joiners, which scripts and emoji need), tags, noncharacters.
 *
 * Memory   none.   Errors  none.   Threads  any.   Since  0.1
 */
MHA_API bool mha_text_hidden(uint32_t code);

#ifdef __cplusplus
}
#endif
#endif
