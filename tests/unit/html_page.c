#include "unit/html_page.h"

#include "support/expect.h"
#include "support/suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

mha_figure html_figure(const mha_panel *panels, int64_t count, int64_t rows, int64_t cols)
{
    return (mha_figure){.struct_size = sizeof(mha_figure),
                        .panel_size = sizeof(mha_panel),
                        .rows = rows,
                        .cols = cols,
                        .panels = panels,
                        .panel_count = count,
                        .value_name = "weight"};
}

mha_buffer html_render(const mha_figure *figure, const mha_report *report)
{
    mha_buffer page = {0};
    const mha_sink sink = mha_buffer_sink(&page);
    expect_ok(mha_render_html(figure, report, &sink));
    return page;
}

void html_check_page(const mha_buffer *page)
{
    assert_int_equal(strlen(page->data), page->size);
    assert_int_equal(count_of(page->data, "http:") + count_of(page->data, "https:"), 0);
    assert_int_equal(count_of(page->data, "src="), count_of(page->data, "src=\"data:"));
    assert_int_equal(count_of(page->data, "<script"), 2);
    assert_int_equal(count_of(page->data, "</script"), 2);
    assert_int_equal(count_of(page->data, "<noscript"), 1);
    assert_int_equal(count_of(page->data, "</noscript"), 1);
    static const char *const never[] = {"import(", "@import", "fetch(", "XMLHttp", "<link",
                                        "<iframe", "url(\"",  "xmlns:", "{{"};
    for (size_t i = 0; i < sizeof never / sizeof *never; i++)
        if (strstr(page->data, never[i])) fail_msg("the page holds %s", never[i]);
}

char *html_data(const mha_buffer *page)
{
    const char *open = "<script type=\"application/json\" id=\"data\">";
    char *from = strstr(page->data, open);
    assert_non_null(from);
    from += strlen(open);
    size_t size = (size_t)(strstr(from, "</script") - from);
    char *json = calloc(size + 1, 1);
    assert_non_null(json);
    memcpy(json, from, size);
    return json;
}

int64_t html_integer(const char *json, const char *name)
{
    char member[64];
    snprintf(member, sizeof member, "\"%s\":", name);
    const char *at = strstr(json, member);
    if (!at) fail_msg("no member %s", name);
    return at ? strtoll(at + strlen(member), NULL, 10) : -1;
}

unsigned char *html_decode(const char *json, size_t *size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strstr(json, "\"data\":\"");
    assert_non_null(at);
    at += 8;
    size_t length = strcspn(at, "\"");
    unsigned char *bytes = malloc(length + 3);
    assert_non_null(bytes);
    *size = 0;
    unsigned long word = 0;
    int held = 0;
    for (size_t i = 0; i < length && at[i] != '='; i++) {
        const char *digit = strchr(digits, at[i]);
        assert_non_null(digit);
        word = (word << 6 | (unsigned long)(digit - digits)) & 0xFFFFFF;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        bytes[(*size)++] = (unsigned char)(word >> held);
    }
    return bytes;
}

float *html_wave(int64_t count)
{
    float *values = malloc((size_t)count * sizeof *values);
    assert_non_null(values);
    uint32_t seed = 7;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        double u = (double)(seed >> 8) / 16777216.0;
        values[i] = (float)(u * u * u);
    }
    return values;
}

mha_status html_refused(const mha_figure *figure, const mha_report *report)
{
    mha_buffer page = {0};
    const mha_sink sink = mha_buffer_sink(&page);
    const mha_status status = mha_render_html(figure, report, &sink);
    assert_null(page.data);
    return status;
}
