/* Diagrams: reproducible bytes, escaped texts, colours of both themes, positions of marks, cards
 * that do not overlap, and every kind of bad input rejected before the first byte is written.
 * tests/cli/explain.py parses the program's pictures as XML. */
#include "support/expect.h"
#include "support/suite.h"

#include <multihead/render.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mha_diagram diagram_of(const mha_diagram_panel *panels, int64_t count)
{
    return (mha_diagram){.struct_size = sizeof(mha_diagram),
                         .panel_size = sizeof(mha_diagram_panel),
                         .mark_size = sizeof(mha_mark),
                         .panels = panels,
                         .panel_count = count};
}

static mha_buffer draw(const mha_diagram *diagram)
{
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    expect_ok(mha_render_diagram(diagram, &sink));
    assert_non_null(buffer.data);
    return buffer;
}

static mha_status refused(const mha_diagram *diagram)
{
    mha_buffer buffer = {0};
    mha_sink sink = mha_buffer_sink(&buffer);
    mha_status status = mha_render_diagram(diagram, &sink);
    assert_int_equal(buffer.size, 0);
    mha_buffer_free(&buffer);
    return status;
}

/* One mark of each kind. */
static const uint8_t cells[6] = {MHA_INK_BLUE,   0, MHA_INK_BLUE | MHA_CELL_SOFT, MHA_INK_ORANGE,
                                 MHA_INK_ORANGE, 0};
static const float values[4] = {-1, 0, 0.5f, 1};
static const mha_panel map = {.values = values};
static const mha_figure figure = {.struct_size = sizeof(mha_figure),
                                  .panel_size = sizeof(mha_panel),
                                  .rows = 2,
                                  .cols = 2,
                                  .panels = &map,
                                  .panel_count = 1};

static const mha_mark all_marks[] = {
    {.kind = MHA_MARK_BOX,
     .ink = MHA_INK_BLUE,
     .width = 100,
     .height = 40,
     .text = "<q> & \"k\"",
     .detail = "[1, 2]\n[3, 4]"},
    {.kind = MHA_MARK_LINE,
     .ink = MHA_INK_GREEN,
     .flags = MHA_MARK_ARROW | MHA_MARK_ACROSS,
     .x = 100,
     .y = 20,
     .width = 50,
     .height = 30},
    {.kind = MHA_MARK_LINE, .flags = MHA_MARK_DASHED, .x = 100, .y = 20, .width = 50},
    {.kind = MHA_MARK_TEXT,
     .ink = MHA_INK_MUTED,
     .x = 10,
     .y = 90,
     .width = 60,
     .text = "words that need more than one line"},
    {.kind = MHA_MARK_CELLS,
     .x = 150,
     .y = 10,
     .width = 60,
     .height = 40,
     .rows = 2,
     .cols = 3,
     .cells = cells},
    {.kind = MHA_MARK_FIGURE, .x = 10, .y = 100, .width = 200, .height = 90, .figure = &figure},
    {.kind = MHA_MARK_FIGURE,
     .flags = MHA_MARK_BARE,
     .x = 220,
     .y = 100,
     .width = 20,
     .height = 20,
     .figure = &figure},
};
enum { MARKS = sizeof all_marks / sizeof *all_marks };

static const mha_diagram_panel whole = {.title = "All marks",
                                        .caption = "a caption",
                                        .width = 300,
                                        .height = 200,
                                        .marks = all_marks,
                                        .mark_count = MARKS};

static void every_mark(void)
{
    mha_diagram d = diagram_of(&whole, 1);
    d.title = "A <title>";
    d.subtitle = "a subtitle";
    d.footnote = "a footnote";
    mha_buffer first = draw(&d), second = draw(&d);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    const char *svg = first.data;
    assert_non_null(strstr(svg, "&lt;q&gt; &amp; &quot;k&quot;"));
    assert_non_null(strstr(svg, "<title>A &lt;title&gt;</title>"));
    assert_null(strstr(svg, "<q>"));
    assert_non_null(strstr(svg, "[1, 2]</text>"));
    assert_non_null(strstr(svg, "[3, 4]</text>"));
    assert_non_null(strstr(svg, "stroke-dasharray"));
    assert_int_equal(count_of(svg, "<polygon"), 1); /* one arrow head */
    assert_int_equal(count_of(svg, "<image"), 1);   /* the bare map */
    assert_int_equal(count_of(svg, "<svg"), 2);     /* the page and the figure */
    assert_int_equal(count_of(svg, "</svg>"), 2);
    assert_int_equal(count_of(svg, "xmlns="), 1);
    assert_non_null(strstr(svg, "a caption</text>"));
    assert_non_null(strstr(svg, "a footnote</text>"));
    mha_buffer_free(&first);
    mha_buffer_free(&second);
}

/* Soft and strong cells have different colours. The two themes have different colours too. */
static void colors(void)
{
    mha_mark grid = all_marks[4];
    const mha_diagram_panel panel = {.width = 60, .height = 40, .marks = &grid, .mark_count = 1};
    mha_diagram d = diagram_of(&panel, 1);
    mha_buffer light = draw(&d);
    d.dark = true;
    mha_buffer dark = draw(&d);
    assert_int_equal(count_of(light.data, "<rect"), 2 + 4); /* page, card, four visible cells */
    assert_int_equal(count_of(light.data, "#7db0e8"), 1);   /* blue, half strong */
    assert_int_equal(count_of(light.data, "#bfdaf6"), 1);   /* blue, soft */
    assert_int_equal(count_of(light.data, "#f0b06a"), 2);   /* orange */
    assert_int_equal(count_of(dark.data, "#7db0e8"), 0);
    assert_int_equal(count_of(dark.data, "#3f78b5"), 1);
    mha_buffer_free(&light);
    mha_buffer_free(&dark);
}

/* Small cells are merged into runs: a row of 100 equal cells becomes one rectangle. */
static void runs(void)
{
    uint8_t row[100];
    memset(row, MHA_INK_GREEN, sizeof row);
    const mha_mark grid = {
        .kind = MHA_MARK_CELLS, .width = 100, .height = 1, .rows = 1, .cols = 100, .cells = row};
    const mha_diagram_panel panel = {.width = 100, .height = 1, .marks = &grid, .mark_count = 1};
    const mha_diagram d = diagram_of(&panel, 1);
    mha_buffer svg = draw(&d);
    assert_int_equal(count_of(svg.data, "<rect"), 2 + 1);
    mha_buffer_free(&svg);
}

/* Three cards of width 500 on a page of width 1200: two are side by side, the third is below them,
 * and the page has the requested width. A card of width 2000 widens the page. */
static void cards(void)
{
    mha_diagram_panel panels[3];
    for (int i = 0; i < 3; i++)
        panels[i] = (mha_diagram_panel){.title = "card", .width = 500, .height = 100};
    mha_diagram d = diagram_of(panels, 3);
    mha_buffer svg = draw(&d);
    assert_non_null(strstr(svg.data, "width=\"1200\""));
    double x[3], y[3], width[3], height[3];
    const char *at = strstr(svg.data, "<rect"); /* the page */
    for (int i = 0; i < 3; i++) {
        at = strstr(at + 1, "<rect");
        assert_non_null(at);
        assert_int_equal(sscanf(at, "<rect x=\"%lf\" y=\"%lf\" width=\"%lf\" height=\"%lf\"", &x[i],
                                &y[i], &width[i], &height[i]),
                         4);
    }
    assert_true(y[0] == y[1] && x[1] >= x[0] + width[0] && x[1] + width[1] <= 1200);
    assert_true(y[2] >= y[0] + height[0] && height[0] == height[1]);
    mha_buffer_free(&svg);
    panels[0].width = 2000;
    svg = draw(&d);
    assert_null(strstr(svg.data, "width=\"1200\" height"));
    mha_buffer_free(&svg);
    d.panel_count = 0;
    svg = draw(&d); /* an empty page is valid */
    mha_buffer_free(&svg);
}

/* A text that is too wide for its box is first made smaller, then truncated. */
static void texts_fit(void)
{
    char text[256];
    memset(text, 'W', sizeof text - 1);
    text[sizeof text - 1] = 0;
    mha_mark box = {.kind = MHA_MARK_BOX, .width = 120, .height = 40, .text = text};
    const mha_diagram_panel panel = {.width = 120, .height = 40, .marks = &box, .mark_count = 1};
    const mha_diagram d = diagram_of(&panel, 1);
    mha_buffer svg = draw(&d);
    const char *drawn = strstr(svg.data, ">W");
    assert_non_null(drawn);
    size_t letters = strspn(drawn + 1, "W");
    /* 13 units shrink to 8.67; a W is 0.99 em wide, so 110 units hold at most 12. */
    assert_true(letters >= 8 && letters <= 12);
    assert_non_null(strstr(drawn, "\xE2\x80\xA6"));
    mha_buffer_free(&svg);
}

static mha_diagram_panel bad_panel;
static mha_mark bad_mark;

static mha_diagram bad_start(void)
{
    bad_mark = (mha_mark){.width = 10, .height = 10};
    bad_panel = (mha_diagram_panel){.width = 10, .height = 10, .marks = &bad_mark, .mark_count = 1};
    return diagram_of(&bad_panel, 1);
}

static void bad_diagrams(void)
{
    mha_sink none = {0};
    mha_buffer buffer = {0};
    mha_sink sink = mha_buffer_sink(&buffer);
    mha_diagram d = bad_start();
    assert_int_equal(mha_render_diagram(&d, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_render_diagram(&d, &none), MHA_ERR_NULL);
    assert_int_equal(mha_render_diagram(NULL, &sink), MHA_ERR_NULL);
    d.mark_size = 0;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    d.width = NAN;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    d.panel_count = -1;
    assert_int_equal(refused(&d), MHA_ERR_SHAPE);
    d.panel_count = INT64_MAX;
    assert_int_equal(refused(&d), MHA_ERR_SIZE);
    d = bad_start();
    d.panels = NULL;
    assert_int_equal(refused(&d), MHA_ERR_NULL);
}

static void bad_marks(void)
{
    mha_diagram d = bad_start();
    bad_mark.kind = (mha_mark_kind)9;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    bad_mark.ink = (mha_ink)99;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    bad_mark.x = INFINITY;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    bad_mark.width = -1;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    bad_mark.kind = MHA_MARK_TEXT;
    bad_mark.flags = MHA_MARK_MIDDLE | MHA_MARK_END; /* an attribute twice: invalid XML */
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    d = bad_start();
    bad_panel.marks = NULL;
    assert_int_equal(refused(&d), MHA_ERR_NULL);
    d = bad_start();
    bad_panel.mark_count = -1;
    assert_int_equal(refused(&d), MHA_ERR_SHAPE);
    d = bad_start();
    bad_mark.kind = MHA_MARK_FIGURE;
    assert_int_equal(refused(&d), MHA_ERR_NULL);
    mha_figure broken = figure;
    broken.rows = -1;
    bad_mark.figure = &broken;
    assert_int_equal(refused(&d), MHA_ERR_SHAPE);
    d = bad_start();
    bad_mark.kind = MHA_MARK_CELLS;
    bad_mark.rows = bad_mark.cols = 2;
    assert_int_equal(refused(&d), MHA_ERR_NULL);
    const uint8_t wrong[4] = {0, 1, 9, 1};
    bad_mark.cells = wrong;
    assert_int_equal(refused(&d), MHA_ERR_ARGUMENT);
    bad_mark.rows = INT64_MAX;
    assert_int_equal(refused(&d), MHA_ERR_SIZE);
    bad_mark.rows = -1;
    assert_int_equal(refused(&d), MHA_ERR_SHAPE);
}

/* A caller compiled against a later header: unknown fields must be zero. */
static void newer_callers(void)
{
    struct newer {
        mha_mark mark;
        int64_t more;
    } marks[2] = {{.mark = {.kind = MHA_MARK_TEXT, .y = 5, .text = "first"}},
                  {.mark = {.kind = MHA_MARK_TEXT, .y = 9, .text = "second"}}};
    const mha_diagram_panel panel = {
        .width = 9, .height = 9, .marks = &marks[0].mark, .mark_count = 2};
    mha_diagram d = diagram_of(&panel, 1);
    d.mark_size = sizeof *marks;
    mha_buffer svg = draw(&d);
    assert_non_null(strstr(svg.data, ">second</text>"));
    mha_buffer_free(&svg);
    marks[1].more = 1;
    assert_int_equal(refused(&d), MHA_ERR_UNSUPPORTED);
}

/* The call returns the sink's status, whichever write fails. */
static mha_status stop_after(void *user, const void *bytes, size_t count)
{
    (void)bytes;
    size_t *left = user;
    if (count > *left) return MHA_ERR_CALLBACK;
    *left -= count;
    return MHA_OK;
}

static void failing_sinks(void)
{
    static const char *const begin[] = {"<svg", "%PDF"};
    mha_diagram d = diagram_of(&whole, 1);
    for (int i = 0; i < 2; i++) {
        d.pdf = i;
        mha_buffer out = draw(&d);
        assert_memory_equal(out.data, begin[i], 4);
        for (size_t room = 0; room < out.size; room += 1 + out.size / 50) {
            size_t left = room;
            const mha_sink sink = {.write = stop_after, .user = &left};
            assert_int_equal(mha_render_diagram(&d, &sink), MHA_ERR_CALLBACK);
        }
        mha_buffer_free(&out);
    }
}

RUN_TESTS(TEST(every_mark), TEST(colors), TEST(runs), TEST(cards), TEST(texts_fit),
          TEST(bad_diagrams), TEST(bad_marks), TEST(newer_callers), TEST(failing_sinks))
