/* Views of a report, and reports inside other pages: their data, hostile texts, and errors. */
#include "support/expect.h"
#include "support/suite.h"
#include "unit/html_page.h"

#include <multihead/render.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 2, COLS = 3, CHANNELS = 5 };

typedef struct views {
    float values[ROWS * COLS], queries[ROWS * CHANNELS], keys[COLS * CHANNELS];
    mha_panel panels[2];
    int64_t lines[2];
    mha_figure figure;
    mha_report report;
} views;

static void make_views(views *v)
{
    *v = (views){.lines = {1, 0}};
    for (int i = 0; i < ROWS * COLS; i++) v->values[i] = (float)i / 8;
    for (int i = 0; i < ROWS * CHANNELS; i++) v->queries[i] = (float)(i - 4) / 3;
    for (int i = 0; i < COLS * CHANNELS; i++) v->keys[i] = (float)(7 - i) * 1.1f;
    v->panels[0] = (mha_panel){.values = v->values};
    v->panels[1] = (mha_panel){.values = v->values,
                               .queries = v->queries,
                               .keys = v->keys,
                               .channels = CHANNELS,
                               .score_scale = 0.25};
    v->figure = html_figure(v->panels, 2, ROWS, COLS);
    v->report = (mha_report){.struct_size = sizeof v->report,
                             .first_panel = 1,
                             .guide = "How <b> to read",
                             .first_cell = true,
                             .first_row = 1,
                             .first_col = 2,
                             .view = MHA_VIEW_NEURONS,
                             .only_view = true,
                             .line_panels = v->lines,
                             .line_panel_count = 2,
                             .second_row = 1,
                             .second_col = 2};
}

static void test_views_are_in_the_page(void)
{
    views v;
    make_views(&v);
    mha_buffer page = html_render(&v.figure, &v.report);
    html_check_page(&page);
    char *json = html_data(&page);
    static const char *const parts[] = {
        "\"view\":\"neurons\"", "\"only_view\":1",      "\"guide\":\"How \\u003cb\\u003e to read\"",
        "\"first_row\":1",      "\"first_col\":2",      "\"second_row\":1",
        "\"second_col\":2",     "\"score_scale\":0.25", "\"line_panels\":[1,0]",
        "\"neuron_bits\":32",   "\"channels\":5"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(json, parts[i])) fail_msg("the page lacks %s", parts[i]);
    assert_non_null(strstr(page.data, "<html lang=\"en\" class=\"only\">"));
    assert_int_equal(count_of(json, "\"queries\":"), 1);
    size_t size;
    unsigned char *bytes = html_decode(strstr(json, "\"queries\":"), &size);
    assert_int_equal(size, sizeof v.queries);
    assert_memory_equal(bytes, v.queries, sizeof v.queries);
    free(bytes);
    bytes = html_decode(strstr(json, "\"keys\":"), &size);
    assert_int_equal(size, sizeof v.keys);
    assert_memory_equal(bytes, v.keys, sizeof v.keys);
    free(bytes);
    free(json);
    mha_buffer_free(&page);
    v.panels[1].score_scale = 0; /* the default of the attention formula */
    page = html_render(&v.figure, &v.report);
    json = html_data(&page);
    assert_non_null(strstr(json, "\"score_scale\":0.447213"));
    free(json);
    mha_buffer_free(&page);
}

/* The error of each code is at most half a step, m / (2 mid), and the float's rounding. */
static void check_codes(const unsigned char *bytes, int64_t bits, const float *vectors,
                        int64_t count, double most)
{
    const int middle = bits == 16 ? 32767 : 127;
    for (int64_t i = 0; i < count; i++) {
        const int code = bits == 16 ? bytes[2 * i] | bytes[2 * i + 1] << 8 : bytes[i];
        const double got = (double)(code - middle) / (double)middle * most;
        if (!isfinite(vectors[i]))
            assert_int_equal(code, 2 * middle + 1);
        else
            assert_true(fabs(got - (double)vectors[i]) <= most * (0.5 / (double)middle + 1e-6));
    }
}

/* Both take at most a quarter of the file; if 8 bits take more, the call reports it. */
static void test_neurons_in_fewer_bits(void)
{
    enum { SIDE = 64, WIDE = 500 };
    static const struct {
        int64_t most_bytes, bits;
    } cases[] = {{800000, 16}, {400000, 8}};
    float *values = html_wave(SIDE * SIDE), *vectors = html_wave(SIDE * WIDE);
    const mha_panel panel = {
        .values = values, .queries = vectors, .keys = vectors, .channels = WIDE};
    const mha_figure figure = html_figure(&panel, 1, SIDE, SIDE);
    double most = 0;
    vectors[3] = NAN;
    vectors[4] = -vectors[4];
    for (int i = 0; i < SIDE * WIDE; i++) most = fmax(most, fabs((double)vectors[i]));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const mha_report report = {.struct_size = sizeof report, .most_bytes = cases[k].most_bytes};
        mha_buffer page = html_render(&figure, &report);
        assert_true((int64_t)page.size <= cases[k].most_bytes);
        char *json = html_data(&page);
        size_t size;
        unsigned char *bytes = html_decode(strstr(json, "\"queries\":"), &size);
        assert_int_equal(html_integer(json, "neuron_bits"), cases[k].bits);
        assert_int_equal(size, SIDE * WIDE * cases[k].bits / 8);
        check_codes(bytes, cases[k].bits, vectors, SIDE * WIDE, most);
        free(bytes);
        free(json);
        mha_buffer_free(&page);
    }
    const mha_report report = {.struct_size = sizeof report, .most_bytes = 300000};
    expect_error(html_refused(&figure, &report), MHA_ERR_SIZE, "queries and keys take");
    free(values);
    free(vectors);
}

static void test_views_refused(void)
{
    views v;
    make_views(&v);
#define REFUSE(wanted, part, ...) \
    expect_spoiled(v, html_refused(&v.figure, &v.report), wanted, part, __VA_ARGS__)
    REFUSE(MHA_ERR_ARGUMENT, "unknown view 4", v.report.view = (mha_view)4);
    REFUSE(MHA_ERR_ARGUMENT, "requires queries and keys", v.report.first_panel = 0);
    REFUSE(MHA_ERR_NULL, "panel 1: set both queries and keys", v.panels[1].keys = NULL);
    REFUSE(MHA_ERR_SIZE, "panel 1: 0 channels", v.panels[1].channels = 0);
    REFUSE(MHA_ERR_ARGUMENT, "first_row, first_col are 1, 3", v.report.first_col = COLS);
    REFUSE(MHA_ERR_ARGUMENT, "line_panels[1] is -1", v.lines[1] = -1);
    REFUSE(MHA_ERR_NULL, "line_panels is NULL", v.report.line_panels = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "second_row", v.report.second_row = ROWS + 1);
    REFUSE(MHA_ERR_ARGUMENT, "score_scale", v.panels[1].score_scale = (double)NAN);
#undef REFUSE
}

/* ---- Insets ----------------------------------------------------------------------------------- */

/* The document of the first frame, decoded from the attribute like in a browser: only &amp; and
 * &quot; are escaped. The caller frees it. */
static char *document_of(const char *text)
{
    static const char attribute[] = " srcdoc=\"";
    const char *from = strstr(text, attribute);
    assert_non_null(from);
    from += sizeof attribute - 1;
    const size_t length = strcspn(from, "\"");
    char *inside = calloc(length + 1, 1), *to = inside;
    assert_non_null(inside);
    for (const char *end = from + length; from < end;) {
        const bool quote = !strncmp(from, "&quot;", 6),
                   escaped = quote || !strncmp(from, "&amp;", 5);
        *to++ = (char)(quote ? '"' : *from);
        from += quote ? 6 : escaped ? 5 : 1;
    }
    return inside;
}

static mha_buffer inset_of(const mha_inset *inset)
{
    mha_buffer out = {0};
    const mha_sink sink = mha_buffer_sink(&out);
    expect_ok(mha_render_inset(inset, &sink));
    return out;
}

/* For any labels, a frame's document is the original page, also within a frame of tabs. */
static void test_insets_hold_the_page(void)
{
    views v;
    make_views(&v);
    const char *const hostile[] = {"\"><script>alert(1)</script>", "&quot;", "</iframe>"};
    v.figure.col_labels = hostile;
    const mha_inset_page pages[] = {{"one \"&<", &v.figure, &v.report}, {NULL, &v.figure, NULL}};
    mha_inset inset = {.struct_size = sizeof inset,
                       .page_size = sizeof *pages,
                       .pages = pages,
                       .page_count = 1,
                       .width = 500};
    mha_buffer page = html_render(&v.figure, &v.report), out = inset_of(&inset);
    assert_int_equal(count_of(out.data, "<iframe"), 1);
    assert_int_equal(count_of(out.data, "</iframe>"), 1);
    assert_non_null(strstr(out.data, "sandbox=\"allow-scripts allow-downloads\""));
    int height = 0;
    const char *style = strstr(out.data, "width:500px;height:");
    assert_non_null(style);
    assert_int_equal(sscanf(style, "width:500px;height:%dpx", &height), 1);
    assert_in_range(height, 300, 760);
    char *inside = document_of(out.data);
    assert_string_equal(inside, page.data);
    free(inside);
    mha_buffer_free(&out);
    inset.page_count = 2;
    inset.whole_file = true;
    inset.height = 444;
    out = inset_of(&inset);
    assert_int_equal(strncmp(out.data, "<!DOCTYPE html>", 15), 0);
    assert_non_null(strstr(out.data, "height:444px"));
    char *tabs = document_of(out.data);
    assert_non_null(strstr(tabs, ">one &quot;&amp;&lt;</label>"));
    assert_non_null(strstr(tabs, ">1</label>"));
    assert_int_equal(count_of(tabs, "<iframe"), 2);
    inside = document_of(tabs);
    assert_string_equal(inside, page.data);
    free(inside);
    free(tabs);
    mha_buffer_free(&out);
    mha_buffer_free(&page);
}

static void refuse_inset(const mha_inset *inset, mha_status want, const char *part)
{
    mha_buffer out = {0};
    const mha_sink sink = mha_buffer_sink(&out);
    expect_error(mha_render_inset(inset, &sink), want, part);
    assert_null(out.data); /* the error precedes all writes */
}

static void test_insets_refused(void)
{
    views v;
    make_views(&v);
    mha_inset_page page = {"name", &v.figure, &v.report};
    const mha_inset good = {
        .struct_size = sizeof good, .page_size = sizeof page, .pages = &page, .page_count = 1};
    mha_inset bad = good;
    refuse_inset(NULL, MHA_ERR_NULL, "inset is NULL");
    expect_error(mha_render_inset(&good, NULL), MHA_ERR_NULL, "sink is NULL");
    bad.page_size = 0;
    refuse_inset(&bad, MHA_ERR_ARGUMENT, "page_size");
    bad = good;
    bad.page_count = 0;
    refuse_inset(&bad, MHA_ERR_ARGUMENT, "no page");
    bad.page_count = 17;
    refuse_inset(&bad, MHA_ERR_SIZE, "17 pages");
    bad = good;
    bad.pages = NULL;
    refuse_inset(&bad, MHA_ERR_NULL, "pages is NULL");
    bad = good;
    bad.height = -1;
    refuse_inset(&bad, MHA_ERR_ARGUMENT, "negative");
    bad.height = 100001;
    refuse_inset(&bad, MHA_ERR_SIZE, "pixels");
    page.figure = NULL;
    refuse_inset(&good, MHA_ERR_NULL, "figure is NULL");
    page.figure = &v.figure;
    v.report.first_panel = 9;
    refuse_inset(&good, MHA_ERR_ARGUMENT, "first_panel is 9");
}

static void test_pieces(void)
{
    static const char *const cases[][2] = {{"\xC4\xA0the", "the"},
                                           {"\xC4\xA0", " "},
                                           {"\xC4\xA0\xC4\xA0", " "},
                                           {"\xC4\x8A", "\n"},
                                           {"\xE2\x96\x81the", "the"},
                                           {"\xE2\x96\x81", "\xE2\x96\x81"},
                                           {"\xC3\x83\xC2\xA9", "\xC3\xA9"},
                                           {"the</w>", "the"},
                                           {"</w>", "</w>"},
                                           {"##ing", "##ing"},
                                           {"caf\xC3\xA9", "caf\xC3\xA9"},
                                           {"\xC4\x85", "\xC4\x85"},
                                           {"[CLS]", "[CLS]"},
                                           {"\xFF", "\xFF"},
                                           {"", ""},
                                           {NULL, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[32], same[32];
        assert_int_equal(mha_text_piece(cases[i][0], text, sizeof text), strlen(cases[i][1]));
        assert_string_equal(text, cases[i][1]);
        snprintf(same, sizeof same, "%s", cases[i][0] ? cases[i][0] : "");
        mha_text_piece(same, same, sizeof same);
        assert_string_equal(same, cases[i][1]);
    }
    char little[3];
    assert_int_equal(mha_text_piece("\xC4\xA0the", little, sizeof little), 3);
    assert_string_equal(little, "th");
    assert_int_equal(mha_text_piece("abc", NULL, 0), 3);
}

enum { WORDS = 7 };

/* Maps of a sentence, each near 0 except for a few cells. */
typedef struct sentence {
    float values[4][WORDS * WORDS];
    uint8_t masked[WORDS * WORDS];
    mha_panel panels[4];
    mha_figure figure;
    mha_report report;
} sentence;

static const char *const words[WORDS] = {"[CLS]", "Dogs", "near", "the", "lake", "bark", "."};
static const char *const special_words[] = {"[CLS]"};

static void make_sentence(sentence *s, int64_t panels)
{
    *s = (sentence){0};
    for (int64_t i = 0; i < 4; i++) {
        for (int c = 0; c < WORDS * WORDS; c++) s->values[i][c] = 0.01f;
        s->panels[i] = (mha_panel){.values = s->values[i]};
    }
    s->figure = html_figure(s->panels, panels, WORDS, WORDS);
    s->figure.row_labels = s->figure.col_labels = words;
    s->report = (mha_report){.struct_size = sizeof s->report,
                             .first_panel = -1,
                             .same_labels = true,
                             .special = special_words,
                             .special_count = 1};
}

static void put(sentence *s, int panel, int row, int col, float weight)
{
    s->values[panel][row * WORDS + col] = weight;
}

static void expect_link(const mha_link *link, int64_t row, int64_t col, bool content)
{
    assert_int_equal(link->row, row);
    assert_int_equal(link->col, col);
    assert_int_equal(link->content, content);
}

/* The chosen link is between content words that are not neighbours and differs from other maps: 1
 * -> 4 of map 2, not the larger 1 -> 5 that all maps have, and not larger but less informative
 * links. */
static void test_links_tell(void)
{
    sentence s;
    mha_link links[4];
    int64_t strongest;
    make_sentence(&s, 4);
    for (int i = 0; i < 4; i++) {
        put(&s, i, 1, 5, 0.7f);
        put(&s, i, 5, 0, 0.9f); /* a special token */
    }
    put(&s, 2, 1, 4, 0.6f);
    put(&s, 2, 4, 3, 0.95f); /* the previous token, a function word */
    put(&s, 3, 2, 5, 0.95f); /* a function word */
    put(&s, 3, 5, 4, 0.9f);  /* a neighbour */
    expect_ok(mha_figure_links(&s.figure, &s.report, links, &strongest));
    expect_link(&links[0], 1, 5, true);
    expect_link(&links[2], 1, 4, true);
    assert_int_equal(strongest, 2);
    assert_true(fabs(links[2].value - 0.6) < 1e-6);
    assert_true(fabs(links[2].mean - (0.6 + 3 * 0.01) / 4) < 1e-6);
    assert_true(fabs(links[2].score - 0.6 * log(0.6 / links[2].mean)) < 1e-6);
    mha_buffer page = html_render(&s.figure, &s.report);
    char *json = html_data(&page);
    assert_non_null(strstr(json, "\"first_panel\":2"));
    assert_non_null(strstr(json, "\"link\":[1,4]"));
    free(json);
    mha_buffer_free(&page);
}

/* Fallbacks of a map: a faint link between content words is not used, special tokens are skipped, a
 * causal map's first token is not informative, and a single map uses its largest link. */
static void test_links_that_are_left(void)
{
    sentence s;
    mha_link links[4];
    int64_t strongest;
    make_sentence(&s, 4);
    put(&s, 0, 5, 4, 0.8f);
    put(&s, 0, 1, 4, 0.19f); /* less than a quarter */
    put(&s, 1, 5, 4, 0.8f);
    put(&s, 1, 1, 4, 0.21f);
    put(&s, 2, 5, 0, 0.9f);
    expect_ok(mha_figure_links(&s.figure, &s.report, links, &strongest));
    expect_link(&links[0], 5, 4, false);
    expect_link(&links[1], 1, 4, true);
    assert_true(links[2].content && links[2].col != 0);
    assert_int_equal(strongest, 1);
    make_sentence(&s, 1);
    put(&s, 0, 4, 1, 0.3f);
    put(&s, 0, 5, 1, 0.4f);
    expect_ok(mha_figure_links(&s.figure, &s.report, links, &strongest));
    expect_link(&links[0], 5, 1, true);
    s.report.special_count =
        0; /* the first token is then a word, which is not informative in a causal map */
    put(&s, 0, 4, 0, 0.9f);
    for (int c = 0; c < WORDS * WORDS; c++) s.masked[c] = c % WORDS > c / WORDS;
    s.panels[0].masked = s.masked;
    expect_ok(mha_figure_links(&s.figure, &s.report, links, &strongest));
    expect_link(&links[0], 5, 1, true);
    s.panels[0].masked = NULL;
    expect_ok(mha_figure_links(&s.figure, &s.report, links, &strongest));
    expect_link(&links[0], 4, 0, true);
    for (int c = 0; c < WORDS * WORDS; c++) s.values[0][c] = NAN;
    expect_ok(mha_figure_links(&s.figure, NULL, links, &strongest));
    expect_link(&links[0], -1, -1, false);
    assert_int_equal(mha_figure_links(&s.figure, NULL, NULL, &strongest), MHA_ERR_NULL);
    s.report.first_panel = -2;
    assert_int_equal(mha_figure_links(&s.figure, &s.report, links, &strongest), MHA_ERR_ARGUMENT);
}

RUN_TESTS(TEST(test_links_tell), TEST(test_links_that_are_left), TEST(test_views_are_in_the_page),
          TEST(test_neurons_in_fewer_bits), TEST(test_views_refused),
          TEST(test_insets_hold_the_page), TEST(test_insets_refused), TEST(test_pieces))
