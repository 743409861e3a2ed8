/* What a call must give: a status, and the text of its error. */
#ifndef TEST_EXPECT_H
#define TEST_EXPECT_H

#include <multihead/base.h>

/* The call succeeds. */
#define expect_ok(call) expect_ok_at(call, #call, __FILE__, __LINE__)

/* The call gives `wanted`, with one line of text that holds `part`. */
#define expect_error(call, wanted, part) \
    expect_error_at(call, wanted, part, #call, __FILE__, __LINE__)

void expect_ok_at(mha_status got, const char *call, const char *file, int line);
void expect_error_at(mha_status got, mha_status wanted, const char *part, const char *call,
                     const char *file, int line);

#endif
