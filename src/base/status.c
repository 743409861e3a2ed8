/* Status texts and the thread-local error detail.
 *
 * The detail is set where a failure is detected. Callers do not change it. */
#include "format.h"
#include "need.h"

#include <multihead/component.h>

#include <stdarg.h>
#include <string.h>

enum { DETAIL_BYTES = 1024 };

static _Thread_local char detail[DETAIL_BYTES];

const char *mha_status_text(mha_status status)
{
    switch (status) {
#define STATUS_CASE(name, value, text) \
    case name: return text;
        MHA_STATUS_LIST(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *mha_error_detail(void)
{
    return detail;
}

/* Remove a UTF-8 sequence that snprintf() cut off. */
static void trim_partial_utf8(char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t have = length - start + 1;
    size_t want = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (have < want) text[start - 1] = '\0';
}

mha_status mha_fail(mha_status status, const char *format, ...)
{
    /* Formatted in a separate buffer, because an argument may be the current detail. */
    char text[DETAIL_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = mhai_format_list(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length < 0)
        text[0] = '\0';
    else if ((size_t)length >= sizeof text)
        trim_partial_utf8(text, sizeof text - 1);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F) *c = '?';
    memcpy(detail, text, sizeof detail);
    return status;
}

mha_status mha_need_fail(const char *function, const char *names, size_t index)
{
    for (; index > 0; index--) names = strchr(names, ',') + 2;
    return mha_fail(MHA_ERR_NULL, "%s: %.*s is NULL", function, (int)strcspn(names, ","), names);
}

mha_status mhai_check_flags(const char *of, uint32_t flags, uint32_t known)
{
    if (!(flags & ~known)) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: flags 0x%x are unknown", of,
                    (unsigned)(flags & ~known));
}

mha_status mhai_check_reserved(const char *of, uint32_t reserved)
{
    if (!reserved) return MHA_OK;
    return mha_fail(MHA_ERR_UNSUPPORTED, "%s: reserved is %u, expected 0", of, (unsigned)reserved);
}

mha_status mhai_range_fail(const char *name, int64_t index, int64_t value, int64_t least,
                           int64_t most)
{
    char entry[24] = "", limit[24] = " or more";
    if (index >= 0) mhai_format(entry, sizeof entry, "[%lld]", (long long)index);
    if (most < INT64_MAX) mhai_format(limit, sizeof limit, "..%lld", (long long)most);
    return mha_fail(MHA_ERR_ARGUMENT, "%s%s is %lld, expected %lld%s", name, entry,
                    (long long)value, (long long)least, limit);
}
