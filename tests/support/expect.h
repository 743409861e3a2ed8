/* The expected result of a call: a status and the text of its error. */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include <multihead/base.h>

#include <stdbool.h>
#include <string.h>

/* The call succeeds. */
#define expect_ok(call) expect_ok_at(call, #call, __FILE__, __LINE__)

/* The call returns `wanted`, with one line of text that contains `part`. */
#define expect_error(call, wanted, part) \
    expect_error_at(call, wanted, part, #call, __FILE__, __LINE__)

/* Check the result of row i of a table of misuse, like expect_error(). */
#define expect_row(i, got, wanted, part) expect_row_at(i, got, wanted, part, __FILE__, __LINE__)

/* A row of misuse: the last arguments spoil `right`, the call must return `wanted`, and `right` is
 * restored. */
#define expect_spoiled(right, call, wanted, part, ...)                         \
    do {                                                                       \
        unsigned char kept_[sizeof(right)];                                    \
        memcpy(kept_, &(right), sizeof kept_);                                 \
        __VA_ARGS__;                                                           \
        expect_error_at(call, wanted, part, #__VA_ARGS__, __FILE__, __LINE__); \
        memcpy(&(right), kept_, sizeof kept_);                                 \
    } while (0)

/* A table of misuse is a macro of rows: MISUSE(status, part of the text, spoiling statement), or MISUSE_OF_DATA(...) if
 * explain accepts the call. DEFINE_SPOIL(call *c, name, ROWS) defines the function that spoils *c by row i and returns
 * the expected error; beyond the last row it returns the number of rows. */
typedef struct expected_refusal {
    mha_status status;
    const char *part;
    bool data_only;
    size_t rows;
} expected_refusal;

#define MISUSE_ROW(wanted, part, data_only, ...)                       \
    if (row++ == i) {                                                  \
        __VA_ARGS__;                                                   \
        return (expected_refusal){wanted, part, data_only, .rows = 0}; \
    }
#define MISUSE(wanted, part, ...) MISUSE_ROW(wanted, part, false, __VA_ARGS__)
#define MISUSE_OF_DATA(wanted, part, ...) MISUSE_ROW(wanted, part, true, __VA_ARGS__)
#define DEFINE_SPOIL(argument, name, ROWS)           \
    static expected_refusal name(argument, size_t i) \
    {                                                \
        size_t row = 0;                              \
        ROWS return (expected_refusal){.rows = row}; \
    }

/* One mistake of such a table: a function that spoils a valid call. */
#define SPOILER(argument, name, ...) \
    static void name(argument)       \
    {                                \
        __VA_ARGS__;                 \
    }

/* The number of occurrences of one text in another. */
int count_of(const char *text, const char *what);

void expect_ok_at(mha_status got, const char *call, const char *file, int line);
void expect_error_at(mha_status got, mha_status wanted, const char *part, const char *call,
                     const char *file, int line);
void expect_row_at(size_t i, mha_status got, mha_status wanted, const char *part, const char *file,
                   int line);

#endif
