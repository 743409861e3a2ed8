/* Charts: positions of points, ticks at round numbers, gaps, styles, escaped texts, extreme
 * doubles. Every kind of bad input is rejected before a byte is written. */
#include "support/expect.h"
#include "support/suite.h"

#include <multihead/render.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mha_chart chart_of(const mha_curve *curve)
{
    return (mha_chart){
        .struct_size = sizeof(mha_chart), .curve_size = sizeof(mha_curve), .curve = curve};
}

static mha_buffer draw(const mha_chart *chart)
{
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    expect_ok(mha_render_chart(chart, &sink));
    assert_non_null(buffer.data);
    return buffer;
}

static void holds(const mha_buffer *svg, const char *what)
{
    if (!strstr(svg->data, what)) fail_msg("no %s in\n%s", what, svg->data);
}

/* The first number after `before`, starting at *at. */
static double number_behind(const char **at, const char *before)
{
    *at = strstr(*at, before);
    assert_non_null(*at);
    *at += strlen(before);
    return strtod(*at, NULL);
}

/* The y axis runs from 0 to 10, 280 high; the x axis from 0 to 4 over the width of its line. */
static void points_are_in_their_places(void)
{
    const double x[] = {0, 1, 2, 4}, y[] = {0, 5, 7.5, 10};
    const mha_series series = {"a", x, y, 4, false};
    const mha_curve curve = {.series = &series, .series_count = 1};
    for (int falls = 0; falls < 2; falls++) {
        mha_chart chart = chart_of(&curve);
        chart.x_falls = falls;
        mha_buffer svg = draw(&chart);
        const char *at = svg.data;
        const double left = number_behind(&at, "x1=\""), right = number_behind(&at, "x2=\"");
        const double top = 16;
        at = svg.data;
        for (int i = 0; i < 4; i++) {
            const double cx = number_behind(&at, "cx=\""), cy = number_behind(&at, "cy=\"");
            const double part = falls ? 1 - x[i] / 4 : x[i] / 4;
            assert_true(fabs(cx - (left + part * (right - left))) < 0.011);
            assert_true(fabs(cy - (top + 280 * (1 - y[i] / 10))) < 0.011);
        }
        for (int tick = 0; tick <= 10; tick += 2) {
            char text[16];
            snprintf(text, sizeof text, ">%d</text>", tick);
            holds(&svg, text);
        }
        /* on the x axis, whose ticks are whole numbers */
        assert_int_equal(count_of(svg.data, ">3</text>"), 1);
        assert_null(strstr(svg.data, ">3.5<"));
        mha_buffer_free(&svg);
    }
}

static void gaps_and_looks(void)
{
    const double x[] = {0, 1, 2, 3, 4}, y[] = {1, NAN, 2, 3, INFINITY};
    const mha_series series[] = {{"first", x, y, 5, false},
                                 {"second", x, y, 5, false},
                                 {NULL, x, y, 5, false},
                                 {"measure <&>", x, y, 5, true}};
    const mha_curve curve = {.title = "a < b",
                             .caption = "said & done",
                             .x_axis = "x",
                             .y_axis = "y",
                             .series = series,
                             .series_count = 4};
    mha_chart chart = chart_of(&curve);
    mha_buffer svg = draw(&chart), again = draw(&chart);
    assert_string_equal(svg.data, again.data);
    mha_buffer_free(&again);
    assert_int_equal(count_of(svg.data, "stroke=\"#0072b2\""), 2); /* line, legend */
    assert_int_equal(count_of(svg.data, "stroke=\"#d55e00\""), 3); /* one series has no name */
    assert_int_equal(count_of(svg.data, "stroke-dasharray=\"3 3\""), 2);
    assert_int_equal(count_of(svg.data, "<circle"), 3 * 3 + 1); /* only the baseline's */
    const char *line = strstr(svg.data, "<path d=\"M");
    int with_gap = 0;
    for (; line; line = strstr(line + 1, "<path d=\"M")) {
        const char *end = strstr(line, "/>");
        int moves = 0, to = 0;
        for (const char *c = line; c < end; c++) moves += *c == 'M', to += *c == 'L';
        with_gap += moves == 2 && to == 1;
    }
    assert_int_equal(with_gap, 4);
    holds(&svg, "a &lt; b");
    holds(&svg, "said &amp; done");
    holds(&svg, "measure &lt;&amp;&gt;");
    mha_buffer_free(&svg);
    chart.dark = true;
    svg = draw(&chart);
    assert_null(strstr(svg.data, "#0072b2"));
    holds(&svg, "#56b4e9");
    mha_buffer_free(&svg);
}

/* Empty charts, equal numbers, and doubles of every size give a picture without "nan" or "inf". */
static void as_pdf(void)
{
    static const char *const begin[] = {"<svg", "%PDF"};
    const double x[] = {0, 1, 2}, y[] = {1, NAN, 3};
    const mha_series series = {"a", x, y, 3, false};
    const mha_curve curve = {.title = "t", .series = &series, .series_count = 1};
    mha_chart chart = chart_of(&curve);
    for (int i = 0; i < 2; i++) {
        chart.pdf = i;
        mha_buffer one = draw(&chart), again = draw(&chart);
        assert_memory_equal(one.data, begin[i], 4);
        assert_int_equal(one.size, again.size);
        assert_memory_equal(one.data, again.data, one.size);
        mha_buffer_free(&one);
        mha_buffer_free(&again);
    }
}

static void any_numbers(void)
{
    static const double sets[][3] = {{0, 0, 0},
                                     {7, 7, 7},
                                     {-3, -3, -3},
                                     {0, 5e-324, 5e-324},
                                     {5e-324, 5e-324, 5e-324},
                                     {1e308, -1e308, 1},
                                     {1e100, -1e100, 0},
                                     {1e15, 1e15 + 1, 1e15 + 2},
                                     {1, 1 + 0x1p-52, 1},
                                     {1e-8, 2e-8, 3e-8},
                                     {NAN, INFINITY, -INFINITY}};
    for (size_t a = 0; a < sizeof sets / sizeof sets[0]; a++)
        for (size_t b = 0; b < sizeof sets / sizeof sets[0]; b++) {
            double x[3];
            memcpy(x, sets[a], sizeof x);
            const mha_series series = {"a", x, sets[b], 3, false};
            const mha_curve curve = {.series = &series, .series_count = 1};
            mha_chart chart = chart_of(&curve);
            chart.width = 160, chart.height = 80;
            mha_buffer svg = draw(&chart);
            assert_null(strstr(svg.data, "nan"));
            assert_null(strstr(svg.data, "inf"));
            assert_true(count_of(svg.data, "<text") >= 4);
            mha_buffer_free(&svg);
        }
    const mha_curve empty = {0};
    const mha_chart chart = chart_of(&empty);
    mha_buffer svg = draw(&chart);
    assert_null(strstr(svg.data, "nan"));
    mha_buffer_free(&svg);
}

/* A span of a few parts per million: tick labels must differ. */
static void near_numbers_are_told_apart(void)
{
    const double x[] = {2e6, 2e6 + 1, 2e6 + 2}, y[] = {4.123451, 4.123453, 4.123456};
    const mha_series series = {"a", x, y, 3, false};
    const mha_curve curve = {.series = &series, .series_count = 1};
    const mha_chart chart = chart_of(&curve);
    mha_buffer svg = draw(&chart);
    const char *const once[] = {">4.123451<", ">4.123452<", ">4.123456<", ">2.000001e6<"};
    for (size_t i = 0; i < sizeof once / sizeof once[0]; i++)
        assert_int_equal(count_of(svg.data, once[i]), 1);
    mha_buffer_free(&svg);
}

static void a_long_legend_wraps(void)
{
    const double x[] = {0, 1};
    mha_series series[30];
    for (int i = 0; i < 30; i++) series[i] = (mha_series){"a name of some length", x, x, 2, false};
    const mha_curve curve = {.series = series, .series_count = 30};
    const mha_chart chart = chart_of(&curve);
    mha_buffer svg = draw(&chart);
    const char *at = svg.data;
    const double width = number_behind(&at, " width=\""), height = number_behind(&at, " height=\"");
    int names = 0;
    while ((at = strstr(at, ">a name of")) != NULL) {
        const char *element = at;
        while (*element != '<') element--;
        const double left = number_behind(&element, "x=\""), y = number_behind(&element, "y=\"");
        assert_true(left + 12 * 0.5 * 21 < width && y < height);
        names++, at++;
    }
    assert_int_equal(names, 30);
    mha_buffer_free(&svg);
}

static mha_status stop_after(void *user, const void *bytes, size_t count)
{
    (void)bytes;
    size_t *left = user;
    if (count > *left) return MHA_ERR_CALLBACK;
    *left -= count;
    return MHA_OK;
}

static void misuse_is_refused(void)
{
    const double x[] = {0, 1};
    mha_series series = {"a", x, x, 2, false};
    mha_curve curve = {.series = &series, .series_count = 1};
    const mha_chart right = chart_of(&curve);
    mha_chart chart = right;
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer), none = {0};
    expect_error(mha_render_chart(NULL, &sink), MHA_ERR_NULL, "chart");
    expect_error(mha_render_chart(&chart, NULL), MHA_ERR_NULL, "sink");
    expect_error(mha_render_chart(&chart, &none), MHA_ERR_NULL, "sink");
    chart.struct_size = 0;
    assert_int_equal(mha_render_chart(&chart, &sink), MHA_ERR_ARGUMENT);
    chart = right, chart.curve_size = 0;
    expect_error(mha_render_chart(&chart, &sink), MHA_ERR_ARGUMENT, "curve_size");
    chart = right, chart.curve = NULL;
    expect_error(mha_render_chart(&chart, &sink), MHA_ERR_NULL, "curve");
    chart = right, chart.width = 159;
    expect_error(mha_render_chart(&chart, &sink), MHA_ERR_ARGUMENT, "width");
    chart = right, chart.height = NAN;
    expect_error(mha_render_chart(&chart, &sink), MHA_ERR_ARGUMENT, "height");
    series.count = 100001;
    expect_error(mha_render_chart(&right, &sink), MHA_ERR_SIZE, "points");
    series.count = 2, series.y = NULL;
    expect_error(mha_render_chart(&right, &sink), MHA_ERR_NULL, "x or y");
    series.y = x, curve.series_count = 65;
    expect_error(mha_render_chart(&right, &sink), MHA_ERR_SIZE, "65 series");
    curve.series_count = 1, curve.series = NULL;
    expect_error(mha_render_chart(&right, &sink), MHA_ERR_NULL, "series");
    curve.series = &series;
    assert_int_equal(buffer.size, 0);
    chart = right;
    for (int pdf = 0; pdf < 2; pdf++)
        for (size_t room = 0; room < 1000; room += 90) {
            size_t left = room;
            const mha_sink stopping = {.write = stop_after, .user = &left};
            chart.pdf = pdf;
            assert_int_equal(mha_render_chart(&chart, &stopping), MHA_ERR_CALLBACK);
        }
}

RUN_TESTS(TEST(points_are_in_their_places), TEST(gaps_and_looks), TEST(as_pdf), TEST(any_numbers),
          TEST(near_numbers_are_told_apart), TEST(a_long_legend_wraps), TEST(misuse_is_refused))
