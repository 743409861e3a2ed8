/* The HTML report: no requests, no injection, its values, size and errors. */
#include "support/expect.h"
#include "support/suite.h"
#include "unit/html_page.h"

#include <multihead/render.h>

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_nothing_is_fetched(void)
{
    float values[6] = {0.1f, 0.9f, 0, 1, 0.5f, 0.5f};
    const char *const tokens[] = {"a", "b", "c"};
    mha_panel panels[2] = {{.values = values, .name = "L0H0", .note = "note"},
                           {.values = values, .detail = "A sentence."}};
    mha_figure figure = html_figure(panels, 2, 2, 3);
    figure.title = "Title";
    figure.footnote = "[CLS] hidden: 12 %";
    figure.col_labels = tokens;
    const mha_fact facts[] = {{"model", "tiny"}, {NULL, NULL}};
    const mha_report report = {.struct_size = sizeof report,
                               .text = "a b c",
                               .facts = facts,
                               .fact_count = 2,
                               .producer = "multihead test",
                               .first_panel = 1};
    mha_buffer page = html_render(&figure, &report);
    html_check_page(&page);
    assert_null(strstr(page.data, "http"));
    static const char *const parts[] = {"<title>Title</title>", "<dt>model</dt><dd><bdi>tiny",
                                        "[CLS] hidden: 12 %",   "multihead test",
                                        "<svg width=",          "A sentence.",
                                        "\"name\":\"1\"",       "\"first_panel\":1"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(page.data, parts[i])) fail_msg("the page lacks %s", parts[i]);
    mha_buffer again = html_render(&figure, &report);
    assert_int_equal(again.size, page.size);
    assert_memory_equal(again.data, page.data, page.size);
    mha_buffer_free(&again);
    mha_buffer_free(&page);
}

static void test_labels_stay_labels(void)
{
    char longest[901];
    for (int i = 0; i < 300; i++) memcpy(longest + 3 * i, "\xE5\xAD\x97", 3);
    longest[900] = 0;
    const char *const labels[] = {"</script><script>alert(1)</script>",
                                  "<!-- <script> -->",
                                  "\"quoted\" 'single' \\ back",
                                  "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC",
                                  "\xD7\xA9\xD7\x9C\xD7\x95\xD7\x9D \xE2\x80\xAE"
                                  "abc",
                                  "\x01\x02\n\t\x7F \xE2\x80\xA8",
                                  "\xFF\xC0\x80 \xED\xA0\x80",
                                  "{{data}} ${x} ]]> &amp;",
                                  longest,
                                  "",
                                  NULL,
                                  "</noscript><img src=x onerror=alert(1)>"};
    enum { N = sizeof labels / sizeof *labels };
    float values[N * N] = {0};
    const mha_panel panel = {
        .values = values, .name = labels[0], .note = labels[1], .detail = labels[11]};
    mha_figure figure = html_figure(&panel, 1, N, N);
    figure.row_labels = figure.col_labels = labels;
    figure.title = figure.subtitle = figure.footnote = labels[0];
    figure.row_axis = figure.col_axis = figure.value_name = labels[2];
    figure.group_names = labels;
    figure.group_count = N;
    mha_fact fact = {labels[0], labels[11]};
    const mha_report report = {.struct_size = sizeof report,
                               .text = labels[11],
                               .facts = &fact,
                               .fact_count = 1,
                               .producer = labels[0],
                               .special = labels,
                               .special_count = N};
    mha_buffer page = html_render(&figure, &report);
    /* Labels contain "{{data}}" and "src=", which must remain text. */
    assert_int_equal(count_of(page.data, "<script"), 2);
    assert_int_equal(count_of(page.data, "</script"), 2);
    assert_int_equal(count_of(page.data, "</noscript"), 1);
    assert_int_equal(count_of(page.data, "<img"), 0);
    assert_int_equal(count_of(page.data, "<title>"), 2); /* titles of the page and of the drawing */
    char *json = html_data(&page);
    assert_null(strchr(json, '<'));
    assert_null(strchr(json, '&'));
    for (const char *at = json; *at; at++) assert_true((unsigned char)*at >= 0x20 || *at == '\n');
    assert_non_null(strstr(json, "\"\\u003c/script\\u003e\\u003cscript\\u003ealert(1)"));
    assert_non_null(strstr(json, "\\u0022quoted\\u0022 'single' \\u005c back"));
    assert_non_null(strstr(json, "\xF0\x9F\x98\x80\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x94\xAC"));
    assert_non_null(strstr(json, "\\u0001\\u0002\\u000a\\u0009\\u007f \\u2028"));
    assert_non_null(strstr(json, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD "));
    assert_non_null(strstr(json, longest));
    free(json);
    mha_buffer_free(&page);
}

static void test_values_are_exact(void)
{
    float values[10] = {0.25f, 1e-30f, -0.0f, 3.5f, NAN, INFINITY, -INFINITY, 7, 1e9f, 99};
    uint8_t masked[10] = {0, 0, 0, 1, 0, 0, 0, 0, 0, 0};
    const mha_panel panel = {.values = values, .row_stride = 5, .masked = masked, .mask_stride = 5};
    mha_figure figure = html_figure(&panel, 1, 2, 4);
    mha_buffer page = html_render(&figure, NULL);
    html_check_page(&page);
    char *json = html_data(&page);
    assert_int_equal(html_integer(json, "bits"), 32);
    assert_int_equal(html_integer(json, "pool"), 1);
    size_t size;
    unsigned char *bytes = html_decode(json, &size);
    assert_int_equal(size, 8 * 4);
    for (size_t i = 0; i < 8; i++) {
        float want = values[i / 4 * 5 + i % 4], got;
        uint32_t bits = (uint32_t)bytes[4 * i] | (uint32_t)bytes[4 * i + 1] << 8 |
                        (uint32_t)bytes[4 * i + 2] << 16 | (uint32_t)bytes[4 * i + 3] << 24;
        memcpy(&got, &bits, sizeof got);
        if (i == 3)
            assert_int_equal(bits, 0x7FC0A5A5);
        else if (isnan(want))
            assert_int_equal(bits, 0x7FC00000);
        else
            assert_memory_equal(&got, &want, sizeof got);
    }
    free(bytes);
    free(json);
    mha_buffer_free(&page);
}

/* Decode cell i as page/data.js does. */
static double coded_value(const unsigned char *bytes, int64_t bits, bool negative, double greatest,
                          size_t i)
{
    unsigned code = bits == 8 ? bytes[i] : (unsigned)(bytes[2 * i] | bytes[2 * i + 1] << 8);
    unsigned last = bits == 8 ? 255 : 65535, middle = (last - 3) / 2;
    assert_true(code < last - 1);
    double s = negative ? ((double)code - middle) / middle : (double)code / (last - 2);
    return greatest * s * fabs(s);
}

/* Values in fewer bits stay within the bound that the page states. */
static void check_coding(int64_t most_bytes, int64_t want_bits, bool negative)
{
    enum { SIDE = 300 };
    float *values = html_wave(SIDE * SIDE);
    float greatest = 0;
    for (int64_t i = 0; i < SIDE * SIDE; i++) {
        if (negative && i % 3 == 0) values[i] = -values[i];
        if (fabsf(values[i]) > greatest) greatest = fabsf(values[i]);
    }
    const mha_panel panel = {.values = values};
    mha_figure figure = html_figure(&panel, 1, SIDE, SIDE);
    const mha_report report = {.struct_size = sizeof report, .most_bytes = most_bytes};
    mha_buffer page = html_render(&figure, &report);
    html_check_page(&page);
    assert_true((int64_t)page.size <= most_bytes);
    char *json = html_data(&page);
    assert_int_equal(html_integer(json, "bits"), want_bits);
    assert_int_equal(html_integer(json, "pool"), 1);
    size_t size;
    unsigned char *bytes = html_decode(json, &size);
    assert_int_equal(size, SIDE * SIDE * want_bits / 8);
    double top = want_bits == 8 ? (negative ? 126 : 253) : (negative ? 32766 : 65533);
    for (size_t i = 0; i < SIDE * SIDE; i++) {
        double v = (double)values[i], m = (double)greatest;
        double got = coded_value(bytes, want_bits, negative, m, i);
        double bound = sqrt(fabs(v) * m) / top + m / (4 * top * top);
        if (!(fabs(got - v) <= bound * 1.0001))
            fail_msg("cell %zu: %.9g read back as %.9g, bound %.3g", i, v, got, bound);
    }
    free(bytes);
    free(json);
    free(values);
    mha_buffer_free(&page);
}

static void test_fewer_bits(void)
{
    check_coding(520000, 16, false);
    check_coding(520000, 16, true);
    check_coding(370000, 8, false);
    check_coding(370000, 8, true);
}

static void test_large_figures_keep_the_budget(void)
{
    enum { SIDE = 512, HEADS = 72 };
    float *values = html_wave(SIDE * SIDE);
    mha_panel panels[HEADS];
    for (int i = 0; i < HEADS; i++) panels[i] = (mha_panel){.values = values};
    mha_figure figure = html_figure(panels, HEADS, SIDE, SIDE);
    mha_buffer page = html_render(&figure, NULL);
    html_check_page(&page);
    assert_true(page.size <= 10000000);
    char *json = html_data(&page);
    assert_int_equal(html_integer(json, "pool"), 2);
    assert_int_equal(html_integer(json, "bits"), 8);
    /* Blocks have their maximum. */
    size_t size;
    unsigned char *bytes = html_decode(json, &size);
    assert_int_equal(size, 256 * 256);
    float most = 0, greatest = 0;
    for (int i = 0; i < SIDE * SIDE; i++) greatest = fmaxf(greatest, values[i]);
    for (int r = 10; r < 12; r++)
        for (int c = 40; c < 42; c++) most = fmaxf(most, values[r * SIDE + c]);
    double got = coded_value(bytes, 8, false, (double)greatest, 5 * 256 + 20);
    assert_true(fabs(got - (double)most) <= 0.005 * (double)greatest);
    free(bytes);
    free(json);
    mha_buffer_free(&page);

    /* A page is written for any budget. */
    const mha_report report = {.struct_size = sizeof report, .most_bytes = 1};
    page = html_render(&figure, &report);
    html_check_page(&page);
    assert_true(page.size < 260000);
    mha_buffer_free(&page);
    free(values);
}

static void test_odd_sizes(void)
{
    float *values = html_wave(2000);
    const mha_panel panels[2] = {{.values = values}, {.values = values}};
    static const int64_t sizes[][3] = {{1, 1, 1}, {2, 1, 1000}, {2, 1000, 1}, {1, 0, 5},
                                       {1, 5, 0}, {0, 3, 3},    {0, 0, 0},    {2, 7, 13}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int range = MHA_RANGE_SHARED; range <= MHA_RANGE_FIXED; range++)
            for (int scale = MHA_SCALE_LINEAR; scale <= MHA_SCALE_RANK; scale++) {
                mha_figure figure = html_figure(panels, sizes[i][0], sizes[i][1], sizes[i][2]);
                figure.range = (mha_range)range;
                figure.scale = (mha_scale)scale;
                figure.lo = 0.1;
                figure.hi = 0.5;
                figure.dark = scale == 1;
                const mha_report report = {.struct_size = sizeof report, .same_labels = true};
                mha_buffer page = html_render(&figure, &report);
                html_check_page(&page);
                mha_buffer_free(&page);
            }
    free(values);
}

/* A report with everything except maps, and with texts that try to end their context. */
static const char evil[] = "</script><b>\xFF\"&";

typedef struct evidence {
    float map[6], twin[8], early[6], late[6];
    uint8_t masked[6];
    double scores[2], x[3], y[3];
    mha_measure measures[3];
    mha_panel panels[2];
    const float *maps[2][2];
    mha_series series[2];
    mha_curve curves[2];
    mha_column columns[2];
    mha_frame frames[2];
    int32_t numbers[4];
    float weights[4];
    mha_choice choices[2];
    mha_figure figure;
    mha_report report;
} evidence;

static void make_evidence(evidence *e)
{
    *e = (evidence){.map = {0.5f, 0.25f, 0.25f, 1, 0, 0},
                    .twin = {2, 4, 0.5f, 99, NAN, 1, 3, 99},
                    .early = {0.1f, 0.2f, 0.7f, 0.3f, 0.3f, 0.4f},
                    .late = {0.5f, 0.5f, 0, 0, 0, 1},
                    .masked = {0, 0, 0, 0, 0, 1},
                    .scores = {0.125, (double)NAN},
                    .numbers = {0, 4, 1, 2},
                    .weights = {0.75f, 0.25f, 1, NAN},
                    .x = {0, 50, 100},
                    .y = {2.5, (double)INFINITY, 0.25}};
    e->measures[0] = (mha_measure){"on the previous token", 0.94, 0.0625, 0, 63, "rows"};
    e->measures[1] = (mha_measure){evil, (double)NAN, (double)NAN, 3, 0, evil};
    e->panels[0] = (mha_panel){.values = e->map,
                               .masked = e->masked,
                               .badge = "previous",
                               .measures = e->measures,
                               .measure_count = 3,
                               .twin = e->twin,
                               .twin_stride = 4};
    e->panels[1] = (mha_panel){.values = e->map, .badge = evil};
    e->maps[0][0] = e->maps[0][1] = e->early;
    e->maps[1][0] = e->late;
    e->series[0] = (mha_series){evil, e->x, e->y, 3, false};
    e->series[1] = (mha_series){"random", e->x, e->y, 1, true};
    e->curves[0] = (mha_curve){"Loss", evil, "step", "loss", e->series, 2, true};
    e->columns[0] = (mha_column){"importance", evil, e->scores, false};
    e->columns[1] = (mha_column){evil, NULL, e->scores, true};
    e->frames[0] = (mha_frame){"step 0", 0, e->maps[0]};
    e->frames[1] = (mha_frame){evil, 100, e->maps[1]};
    e->choices[0] = (mha_choice){"layer 3", 5, 2, e->numbers, e->weights};
    e->choices[1] = (mha_choice){evil, 3, 1, e->numbers + 2, e->weights};
    e->figure = html_figure(e->panels, 2, 2, 3);
    e->report = (mha_report){.struct_size = sizeof(mha_report),
                             .curve_size = sizeof(mha_curve),
                             .curves = e->curves,
                             .curve_count = 2,
                             .columns = e->columns,
                             .column_count = 2,
                             .frames = e->frames,
                             .frame_count = 2,
                             .choices = e->choices,
                             .choice_count = 2,
                             .choice_title = "Experts",
                             .twin_name = evil,
                             .twin_value = "norm"};
}

static void test_evidence_is_in_the_page(void)
{
    evidence e;
    make_evidence(&e);
    mha_buffer page = html_render(&e.figure, &e.report);
    html_check_page(&page);
    char *json = html_data(&page);
    assert_null(strchr(json, '<'));
    static const char *const parts[] = {
        "\"badge\":\"previous\"", "\"badge\":\"\\u003c/script\\u003e\\u003cb\\u003e\xEF\xBF\xBD",
        "\"name\":\"on the previous token\",\"value\":0.94,\"chance\":0.0625,\"most\":0",
        "\"value\":null,\"chance\":null,\"most\":3", "\"values\":[0.125,null]",
        "\"y\":[2.5,null,0.25]", "\"title\":\"Loss\"", "\"baseline\":1",
        "\"label\":\"step 0\",\"at\":0",
        /* The range of the twin only. Its NaN, its masked cell and memory beyond the row do not
         * count.
         */
        "\"twin\":{\"of\":0,\"least\":0.5,\"greatest\":4,\"data\":",
        /* The second frame has no map of the second panel. */
        "},null]}", "\"twin_value\":\"norm\"", "\"choice_title\":\"Experts\"",
        ("\"name\":\"layer 3\",\"count\":5,\"used\":2,\"numbers\":[0,4,1,2],"
         "\"weights\":[750,250,1000,null]")};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(json, parts[i])) fail_msg("the data lack %s\n%s", parts[i], json);
    free(json);
    assert_non_null(strstr(page.data, "on the previous token 0.94 (chance 0.0625)"));
    assert_non_null(strstr(page.data, "<th>importance</th>"));
    mha_buffer again = html_render(&e.figure, &e.report);
    assert_int_equal(again.size, page.size);
    assert_memory_equal(again.data, page.data, page.size);
    mha_buffer_free(&again);
    mha_buffer_free(&page);
}

/* A caller of an older version, with shorter structs, gets the old page's values. */
static void test_older_callers(void)
{
    evidence e;
    make_evidence(&e);
    e.figure.panel_size = offsetof(mha_panel, badge);
    e.figure.panel_count = 1;
    e.report.struct_size = offsetof(mha_report, curve_size);
    mha_buffer page = html_render(&e.figure, &e.report);
    char *json = html_data(&page);
    assert_non_null(strstr(json, "\"badge\":null"));
    assert_null(strstr(json, "\"twin\":{"));
    assert_non_null(strstr(json, "\"curves\":[]"));
    assert_non_null(strstr(json, "\"frames\":[]"));
    assert_non_null(strstr(json, "\"choices\":[]"));
    assert_int_equal(html_integer(json, "cell_tokens"), 1);
    free(json);
    mha_buffer_free(&page);
}

/* Many frames use half of the budget. The page keeps every step-th frame and the last, at least 8;
 * if these do not fit, maps have blocks. */
static void test_frames_keep_the_budget(void)
{
    enum { SIDE = 64, FRAMES = 101 };
    float *values = html_wave(SIDE * SIDE);
    const mha_panel panel = {.values = values};
    const float *const maps[1] = {values};
    mha_frame frames[FRAMES];
    for (int i = 0; i < FRAMES; i++) frames[i] = (mha_frame){"step", i, maps};
    mha_figure figure = html_figure(&panel, 1, SIDE, SIDE);
    mha_report report = {.struct_size = sizeof report, .frames = frames, .frame_count = FRAMES};
    mha_buffer all = html_render(&figure, &report);
    /* In no case has the budget room for a picture besides the maps. */
    mha_report bare = {.struct_size = sizeof bare, .most_bytes = 500000};
    mha_buffer none = html_render(&figure, &bare);
    int64_t rest = (int64_t)none.size - 4 * ((SIDE * SIDE * 4 + 2) / 3);
    mha_buffer_free(&none);
    static const struct {
        int64_t maps, step, pool;
    } cases[] = {{1200000, 1, 1}, {330000, 4, 1}, {120000, 10, 1}, {40000, 0, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        report.most_bytes = rest + cases[i].maps + 100 * FRAMES;
        mha_buffer page = html_render(&figure, &report);
        html_check_page(&page);
        assert_true((int64_t)page.size <= report.most_bytes);
        char *json = html_data(&page);
        if (cases[i].step) assert_int_equal(html_integer(json, "frame_step"), cases[i].step);
        assert_true(html_integer(json, "pool") >= cases[i].pool);
        assert_true(count_of(json, "\"label\"") >= 8);
        assert_non_null(strstr(json, "\"at\":100,")); /* the last frame */
        free(json);
        mha_buffer_free(&page);
    }
    mha_buffer_free(&all);
    free(values);
}

/* If frames are few, all are kept. If they do not fit, maps become coarser, and a page that exceeds
 * its budget is still written. */
static void test_few_frames_that_do_not_fit(void)
{
    enum { SIDE = 64, MOST_FRAMES = 9, PAGE_BYTES = 220000 /* without maps */ };
    static const int64_t most_bytes[] = {1, 20000, 330000};
    float *values = html_wave(SIDE * SIDE);
    const mha_panel panel = {.values = values};
    const float *const maps[1] = {values};
    mha_frame frames[MOST_FRAMES];
    for (int i = 0; i < MOST_FRAMES; i++) frames[i] = (mha_frame){"step", i, maps};
    const mha_figure figure = html_figure(&panel, 1, SIDE, SIDE);
    for (int count = 1; count <= MOST_FRAMES; count++)
        for (size_t i = 0; i < sizeof most_bytes / sizeof *most_bytes; i++) {
            const mha_report report = {.struct_size = sizeof report,
                                       .frames = frames,
                                       .frame_count = count,
                                       .most_bytes = most_bytes[i]};
            mha_buffer page = html_render(&figure, &report);
            html_check_page(&page);
            char *json = html_data(&page);
            const int64_t kept = count_of(json, "\"label\":\"step\"");
            const bool fits = most_bytes[i] > PAGE_BYTES;
            if (!fits || count <= 8) assert_int_equal(kept, fits || count < 2 ? count : 2);
            assert_true(fits ? (int64_t)page.size <= most_bytes[i]
                             : html_integer(json, "pool") > 1);
            free(json);
            mha_buffer_free(&page);
        }
    free(values);
}

/* Rows of frames' maps have as many numbers as the figure has columns, for any strides of its
 * panels and twins. Each map is read with its own strides, and no read is beyond its memory. */
static void test_frames_that_are_not_square(void)
{
    static const int64_t shapes[][2] = {{2, 3}, {3, 2}, {1, 6}, {6, 1}};
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++) {
        float values[6 * 9] = {0}, map[6] = {1, 0.25f, 0.0625f, 0.5f, 0, 0.75f};
        const mha_panel panel = {
            .values = values, .row_stride = 9, .twin = values, .twin_stride = 7};
        const mha_figure figure = html_figure(&panel, 1, shapes[k][0], shapes[k][1]);
        const float *const maps[1] = {map};
        const mha_frame frame = {"step", 0, maps};
        const mha_report report = {
            .struct_size = sizeof report, .frames = &frame, .frame_count = 1};
        mha_buffer page = html_render(&figure, &report);
        char *json = html_data(&page);
        size_t size;
        unsigned char *codes = html_decode(strstr(json, "\"frames\":["), &size);
        assert_int_equal(size, 6);
        /* Codes 0 .. 253 of the square root of the value relative to the greatest, which is 1. */
        for (int i = 0; i < 6; i++)
            assert_int_equal(codes[i], (int)lround(253 * sqrt((double)map[i])));
        free(codes);
        free(json);
        mha_buffer_free(&page);
    }
}

/* One strip of tokens has the labels of the rows or, if they have none, of the columns. */
static void test_one_strip_of_labels(void)
{
    const float values[4] = {0};
    const char *const rows[] = {"r0", "r1"}, *const cols[] = {"c0", "c1"};
    const mha_panel panel = {.values = values};
    const mha_report report = {.struct_size = sizeof report, .same_labels = true};
    static const struct {
        bool rows, cols;
        const char *labels;
    } cases[] = {{true, true, "\"row_labels\":[\"r0\",\"r1\"]"},
                 {true, false, "\"row_labels\":[\"r0\",\"r1\"]"},
                 {false, true, "\"row_labels\":[\"c0\",\"c1\"]"},
                 {false, false, "\"row_labels\":null"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mha_figure figure = html_figure(&panel, 1, 2, 2);
        figure.row_labels = cases[i].rows ? rows : NULL;
        figure.col_labels = cases[i].cols ? cols : NULL;
        mha_buffer page = html_render(&figure, &report);
        char *json = html_data(&page);
        assert_non_null(strstr(json, "\"same_labels\":true"));
        assert_non_null(strstr(json, cases[i].labels));
        assert_null(strstr(json, "\"col_labels\""));
        free(json);
        mha_buffer_free(&page);
    }
}

/* The size of frames includes their labels in JSON: with long labels fewer frames are kept. */
static void test_long_labels_of_frames(void)
{
    enum { FRAMES = 100, LENGTH = 5000 };
    char label[LENGTH + 1];
    memset(label, '<', LENGTH); /* "\u003c" */
    label[LENGTH] = 0;
    const float values[4] = {0.25f, 0.5f, 0.75f, 1};
    const mha_panel panel = {.values = values};
    const float *const maps[1] = {values};
    mha_frame frames[FRAMES];
    for (int i = 0; i < FRAMES; i++) frames[i] = (mha_frame){label, i, maps};
    const mha_figure figure = html_figure(&panel, 1, 2, 2);
    const mha_report report = {.struct_size = sizeof report,
                               .frames = frames,
                               .frame_count = FRAMES,
                               .most_bytes = 1000000};
    mha_buffer page = html_render(&figure, &report);
    char *json = html_data(&page);
    assert_true((int64_t)page.size <= report.most_bytes);
    const int64_t kept = count_of(json, "\"label\":\"\\u003c");
    assert_true(kept >= 8 && kept * 6 * LENGTH <= report.most_bytes / 2);
    free(json);
    mha_buffer_free(&page);
}

/* A figure of blocks states so, and its labels are those of all tokens. */
static void test_blocks_of_tokens(void)
{
    float *values = html_wave(9);
    const char *const tokens[] = {"t0", "t1", "t2", "t3", "t4", "t5", "t6", "t7", "t8", "t9"};
    const mha_panel panel = {.values = values};
    mha_figure figure = html_figure(&panel, 1, 3, 3);
    mha_report report = {
        .struct_size = sizeof report, .cell_tokens = 4, .tokens = tokens, .token_count = 10};
    mha_buffer page = html_render(&figure, &report);
    html_check_page(&page);
    char *json = html_data(&page);
    assert_int_equal(html_integer(json, "cell_tokens"), 4);
    assert_int_equal(html_integer(json, "token_count"), 10);
    assert_non_null(strstr(json, "\"t8\",\"t9\"]"));
    assert_non_null(strstr(page.data, "Each cell is the maximum of 4 x 4 tokens"));
    free(json);
    mha_buffer_free(&page);
    free(values);
}

typedef struct failing_sink {
    int64_t calls, fail_at;
} failing_sink;

static mha_status failing_write(void *user, const void *bytes, size_t count)
{
    failing_sink *sink = user;
    (void)bytes;
    assert_true(count > 0);
    assert_true(sink->calls <= sink->fail_at); /* no write after a failure */
    return sink->calls++ == sink->fail_at ? MHA_ERR_CALLBACK : MHA_OK;
}

static void test_a_failing_sink(void)
{
    float values[9] = {0};
    const mha_panel panels[3] = {{.values = values}, {.values = values}, {.values = values}};
    const mha_figure figure = html_figure(panels, 3, 3, 3);
    for (int64_t k = 0; k < 10000; k++) {
        failing_sink user = {.fail_at = k};
        const mha_sink sink = {failing_write, &user};
        mha_status status = mha_render_html(&figure, NULL, &sink);
        if (status == MHA_OK) {
            assert_true(k > 10);
            return;
        }
        assert_int_equal(status, MHA_ERR_CALLBACK);
    }
    fail_msg("it never succeeded");
}

static void test_refusals(void)
{
    static const char *const tokens[] = {"a", "b", "c"};
    float values[4] = {-1, 0, 1, 2};
    const mha_panel panel = {.values = values};
    mha_figure figure = html_figure(&panel, 1, 2, 2);
    mha_report report = {.struct_size = sizeof report};
    expect_error(html_refused(NULL, NULL), MHA_ERR_NULL, "figure is NULL");
#define REFUSE(wanted, part, ...) \
    expect_spoiled(report, html_refused(&figure, &report), wanted, part, __VA_ARGS__)
    REFUSE(MHA_ERR_ARGUMENT, "struct_size", report.struct_size = 0);
    REFUSE(MHA_ERR_NULL, "facts", report.fact_count = 1);
    REFUSE(MHA_ERR_NULL, "special", report.special_count = 1);
    REFUSE(MHA_ERR_ARGUMENT, "negative", report.fact_count = -1);
    REFUSE(MHA_ERR_ARGUMENT, "negative", report.most_bytes = -1);
    REFUSE(MHA_ERR_ARGUMENT, "first_panel is 1, the figure has 1", report.first_panel = 1);
    REFUSE(MHA_ERR_SHAPE, "3 tokens in blocks of 1 are 3 cells", report.tokens = tokens,
           report.token_count = 3);
    REFUSE(MHA_ERR_ARGUMENT, "cell_tokens", report.cell_tokens = -1);
#undef REFUSE
    evidence e;
    make_evidence(&e);
#define REFUSE(wanted, part, ...) \
    expect_spoiled(e, html_refused(&e.figure, &e.report), wanted, part, __VA_ARGS__)
    REFUSE(MHA_ERR_ARGUMENT, "curve_size", e.report.curve_size = 0);
    REFUSE(MHA_ERR_NULL, "x or y of curve 0", e.series[1].y = NULL);
    REFUSE(MHA_ERR_SIZE, "points", e.series[1].count = 99998);
    REFUSE(MHA_ERR_SIZE, "curve 1", e.curves[1].series_count = -1);
    REFUSE(MHA_ERR_NULL, "column 1", e.columns[1].values = NULL);
    REFUSE(MHA_ERR_NULL, "frames is NULL", e.report.frames = NULL);
    REFUSE(MHA_ERR_SIZE, "10001 frames", e.report.frame_count = 10001);
    REFUSE(MHA_ERR_ARGUMENT, "65 measures", e.panels[0].measure_count = 65);
    REFUSE(MHA_ERR_NULL, "measures", e.panels[0].measures = NULL);
    REFUSE(MHA_ERR_SHAPE, "stride", e.panels[0].twin_stride = 2);
    REFUSE(MHA_ERR_NULL, "choice 1: numbers or weights", e.choices[1].weights = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "choice 0: 6 of 5 are used", e.choices[0].used = 6);
    REFUSE(MHA_ERR_ARGUMENT, "choice 0: number 5, expected 0 .. 4", e.numbers[1] = 5);
    REFUSE(MHA_ERR_SIZE, "more than 1000000 numbers",
           e.choices[0].count = e.choices[0].used = 500001);
    REFUSE(MHA_ERR_UNSUPPORTED, "blocks of tokens", e.report.cell_tokens = 2);
#undef REFUSE
    struct {
        mha_report report;
        uint64_t newer;
    } newer = {.report.struct_size = sizeof newer, .newer = 1};
    expect_error(html_refused(&figure, &newer.report), MHA_ERR_UNSUPPORTED,
                 "is set, but this library");
    newer.newer = 0; /* a newer caller that does not use new fields */
    mha_buffer page = html_render(&figure, &newer.report);
    mha_buffer_free(&page);
    figure.scale = MHA_SCALE_LOG;
    expect_error(html_refused(&figure, NULL), MHA_ERR_ARGUMENT, "log scale");
    assert_int_equal(mha_render_html(&figure, NULL, NULL), MHA_ERR_NULL);
}

RUN_TESTS(TEST(test_nothing_is_fetched), TEST(test_labels_stay_labels), TEST(test_values_are_exact),
          TEST(test_fewer_bits), TEST(test_large_figures_keep_the_budget), TEST(test_odd_sizes),
          TEST(test_evidence_is_in_the_page), TEST(test_older_callers),
          TEST(test_frames_keep_the_budget), TEST(test_few_frames_that_do_not_fit),
          TEST(test_frames_that_are_not_square), TEST(test_one_strip_of_labels),
          TEST(test_long_labels_of_frames), TEST(test_blocks_of_tokens), TEST(test_a_failing_sink),
          TEST(test_refusals))
