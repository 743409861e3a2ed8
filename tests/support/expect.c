#include "support/expect.h"

#include "support/suite.h"

#include <stdio.h>
#include <string.h>

void expect_ok_at(mha_status got, const char *call, const char *file, int line)
{
    if (got == MHA_OK) return;
    print_error("%s\n  gave status %d: %s\n", call, (int)got, mha_error_detail());
    _fail(file, line);
}

void expect_error_at(mha_status got, mha_status wanted, const char *part, const char *call,
                     const char *file, int line)
{
    const char *detail = mha_error_detail();
    printf("  %2d %s\n", (int)got, detail);
    if (got == wanted && *detail && !strchr(detail, '\n') && strstr(detail, part)) return;
    print_error("%s\n  gave status %d: %s\n  expected status %d and one line with '%s'\n", call,
                (int)got, detail, (int)wanted, part);
    _fail(file, line);
}

void expect_row_at(size_t i, mha_status got, mha_status wanted, const char *part, const char *file,
                   int line)
{
    char row[32];
    snprintf(row, sizeof row, "row %zu", i);
    expect_error_at(got, wanted, part, row, file, line);
}

int count_of(const char *text, const char *what)
{
    int count = 0;
    for (; (text = strstr(text, what)) != NULL; text += strlen(what)) count++;
    return count;
}
