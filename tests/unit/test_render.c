/* Pictures: well-formed and escaped SVG, the colours of known cells, ranges, scales, masks, PNG decoded by libpng, PDF,
 * terminal widths, atomic files, hostile input. */
#define _GNU_SOURCE /* memmem */
#include "support/expect.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/component.h>
#include <multihead/render.h>

#include <dirent.h>
#include <locale.h>
#include <math.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef mha_status (*writer_fn)(const mha_figure *figure, const mha_sink *sink);

static mha_status plain_terminal(const mha_figure *figure, const mha_sink *sink)
{
    return mha_render_terminal(figure, NULL, sink);
}

static mha_status color_terminal(const mha_figure *figure, const mha_sink *sink)
{
    mha_terminal terminal = {.struct_size = sizeof terminal, .color = MHA_TERMINAL_TRUECOLOR};
    return mha_render_terminal(figure, &terminal, sink);
}

static const writer_fn writers[] = {mha_render_svg, mha_render_png, mha_render_pdf, plain_terminal,
                                    color_terminal};
enum { WRITERS = sizeof writers / sizeof *writers };

static mha_figure figure_of(const mha_panel *panels, int64_t count, int64_t rows, int64_t cols)
{
    return (mha_figure){.struct_size = sizeof(mha_figure),
                        .panel_size = sizeof(mha_panel),
                        .rows = rows,
                        .cols = cols,
                        .panels = panels,
                        .panel_count = count};
}

static mha_buffer draw(writer_fn writer, const mha_figure *figure)
{
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    expect_ok(writer(figure, &sink));
    assert_non_null(buffer.data);
    return buffer;
}

/* ---- A small checker of XML: nesting, quoting, entities, allowed characters, UTF-8 ---- */

static const char *check_entity(const char *at)
{
    static const char *const known[] = {"&amp;", "&lt;", "&gt;", "&quot;", "&#39;"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(at, known[i], strlen(known[i])) == 0) return at + strlen(known[i]);
    fail_msg("unknown entity at %.30s", at);
    return at;
}

static const char *check_character(const char *at)
{
    unsigned char c = (unsigned char)*at;
    if (c == '&') return check_entity(at);
    if (c < 0x20 && c != '\n' && c != '\t' && c != '\r') fail_msg("control character %d", c);
    if (c < 0x80) return at + 1;
    int length = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 0;
    if (!length) fail_msg("invalid UTF-8 byte %d", c);
    for (int i = 1; i < length; i++) assert_int_equal((unsigned char)at[i] & 0xC0, 0x80);
    return at + length;
}

/* <name attr="value" ...> or </name> or <name .../>; a stack has the names of open elements. */
static const char *check_tag(const char *at, char stack[][32], int *depth)
{
    bool closing = at[1] == '/';
    const char *name = at + 1 + closing;
    size_t length = strcspn(name, " \n/>");
    assert_in_range(length, 1, 31);
    at = name + length;
    while (*at && *at != '>' && *at != '/') {
        if (*at == ' ' || *at == '\n') {
            at++;
            continue;
        }
        at += strcspn(at, "= \n>");
        assert_int_equal(at[0], '=');
        assert_int_equal(at[1], '"');
        for (at += 2; *at != '"';) {
            assert_int_not_equal(*at, '<');
            assert_int_not_equal(*at, 0);
            at = check_character(at);
        }
        at++;
    }
    bool empty = *at == '/';
    at += empty;
    assert_int_equal(*at, '>');
    if (closing) {
        assert_true(*depth > 0);
        (*depth)--;
        assert_true(strncmp(stack[*depth], name, length) == 0 && !stack[*depth][length]);
    } else if (!empty) {
        assert_in_range(*depth, 0, 14);
        memcpy(stack[*depth], name, length);
        stack[(*depth)++][length] = 0;
    }
    return at + 1;
}

static void check_xml(const mha_buffer *buffer)
{
    char stack[16][32];
    int depth = 0;
    assert_int_equal(strlen(buffer->data), buffer->size); /* no NUL inside */
    const char *at = buffer->data;
    while (*at) {
        if (*at == '<') {
            at = check_tag(at, stack, &depth);
        } else {
            assert_int_not_equal(*at, '>');
            at = check_character(at);
        }
    }
    assert_int_equal(depth, 0);
}

/* ---- SVG ---- */

static const float four[] = {0.0F, 0.25F, 0.5F, 1.0F};
static const char *const ab[] = {"a", "b"};

static void color_text(mha_cmap cmap, bool dark, double t, char text[8])
{
    uint8_t rgb[3];
    mha_cmap_color(cmap, dark, round(255 * t) / 255, rgb);
    snprintf(text, 8, "#%02x%02x%02x", rgb[0], rgb[1], rgb[2]);
}

/* The fill of the cell whose tooltip begins with `tooltip`, in the n-th panel with such a cell. */
static void cell_fill(const char *svg, const char *tooltip, int nth, char fill[32])
{
    char title[64];
    snprintf(title, sizeof title, "<title>%s", tooltip);
    const char *at = strstr(svg, title);
    for (; at && nth > 0; nth--) at = strstr(at + 1, title);
    if (!at) fail_msg("no cell %s", tooltip);
    while (strncmp(at, "fill=\"", 6) != 0) at--;
    snprintf(fill, 32, "%.*s", (int)strcspn(at + 6, "\""), at + 6);
}

static void svg_colors_known_cells(void)
{
    static const char *const cells[] = {
        "a [0] \xE2\x86\x92 a [0]: 0<", "a [0] \xE2\x86\x92 b [1]: 0.25<",
        "b [1] \xE2\x86\x92 a [0]: 0.5<", "b [1] \xE2\x86\x92 b [1]: 1<"};
    mha_panel panel = {.values = four};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    figure.row_labels = figure.col_labels = ab;
    for (int cmap = MHA_CMAP_VIRIDIS; cmap <= MHA_CMAP_PLASMA; cmap++)
        for (int dark = 0; dark < 2; dark++) {
            figure.cmap = (mha_cmap)cmap;
            figure.dark = dark;
            mha_buffer svg = draw(mha_render_svg, &figure);
            check_xml(&svg);
            for (int i = 0; i < 4; i++) {
                char fill[32], expected[8];
                cell_fill(svg.data, cells[i], 0, fill);
                color_text((mha_cmap)cmap, dark, (double)four[i], expected);
                assert_string_equal(fill, expected);
            }
            mha_buffer_free(&svg);
        }
}

/* A mark has two frames and both labels in a unique colour, and changes the PNG too. */
static void a_marked_cell(void)
{
    static const int64_t cell[2] = {1, 0};
    mha_panel panel = {.values = four};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    figure.row_labels = figure.col_labels = ab;
    mha_buffer plain = draw(mha_render_svg, &figure), plain_png = draw(mha_render_png, &figure);
    panel.mark = cell;
    mha_buffer svg = draw(mha_render_svg, &figure), png = draw(mha_render_png, &figure);
    assert_int_equal(count_of(plain.data, "#e5004c"), 0);
    assert_int_equal(count_of(svg.data, "stroke=\"#e5004c\""), 8);
    assert_int_equal(count_of(svg.data, "font-weight=\"600\" fill=\"#e5004c\""), 2);
    assert_true(png.size != plain_png.size || memcmp(png.data, plain_png.data, png.size) != 0);
    mha_buffer_free(&plain);
    mha_buffer_free(&plain_png);
    mha_buffer_free(&svg);
    mha_buffer_free(&png);
}

static void svg_ranges(void)
{
    static const float half[] = {0.0F, 0.25F, 0.5F, 0.5F};
    static const char *const quarter = "a [0] \xE2\x86\x92 b [1]: 0.25<";
    mha_panel panels[] = {{.values = four, .name = "p"}, {.values = half, .name = "q"}};
    mha_figure figure = figure_of(panels, 2, 2, 2);
    figure.row_labels = figure.col_labels = ab;
    static const struct {
        mha_range range;
        double lo, hi, t[2];
        const char *says;
    } cases[] = {{MHA_RANGE_SHARED, 0, 0, {0.25, 0.25}, ">0.5</text>"},
                 {MHA_RANGE_PANEL, 0, 0, {0.25, 0.5}, "0 to 0.5"},
                 {MHA_RANGE_FIXED, 0.2, 0.3, {0.5, 0.5}, "clipped"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        figure.range = cases[i].range;
        figure.lo = cases[i].lo;
        figure.hi = cases[i].hi;
        mha_buffer svg = draw(mha_render_svg, &figure);
        for (int panel = 0; panel < 2; panel++) {
            char fill[32], expected[8];
            cell_fill(svg.data, quarter, panel, fill);
            color_text(MHA_CMAP_VIRIDIS, false, cases[i].t[panel], expected);
            assert_string_equal(fill, expected);
        }
        assert_non_null(strstr(svg.data, cases[i].says));
        assert_int_equal(count_of(svg.data, "<polygon"), cases[i].range == MHA_RANGE_FIXED ? 2 : 0);
        mha_buffer_free(&svg);
    }
}

static void svg_scales(void)
{
    static const float values[] = {0.01F, 0.1F, 0.25F, 1.0F};
    static const char *const cell = "a [0] \xE2\x86\x92 b [1]: 0.1<";
    mha_panel panel = {.values = values};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    figure.row_labels = figure.col_labels = ab;
    static const double expected_t[] = {0.1, 0.316227766, 0.75, 1.0 / 3};
    for (int scale = MHA_SCALE_LINEAR; scale <= MHA_SCALE_RANK; scale++) {
        figure.scale = (mha_scale)scale;
        mha_buffer svg = draw(mha_render_svg, &figure);
        char fill[32], expected[8];
        cell_fill(svg.data, cell, 0, fill);
        color_text(MHA_CMAP_VIRIDIS, false, expected_t[scale], expected);
        assert_string_equal(fill, expected);
        if (scale) assert_non_null(strstr(svg.data, mha_scale_name((mha_scale)scale)));
        mha_buffer_free(&svg);
    }
}

static void svg_masked_and_not_finite(void)
{
    const float values[] = {0.0F, NAN, INFINITY, 0.0F};
    static const uint8_t masked[] = {0, 0, 0, 1};
    mha_panel panel = {.values = values, .masked = masked};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    figure.row_labels = figure.col_labels = ab;
    mha_buffer svg = draw(mha_render_svg, &figure);
    check_xml(&svg);
    char zero[32], mask[32];
    cell_fill(svg.data, "a [0] \xE2\x86\x92 a [0]: 0<", 0, zero);
    cell_fill(svg.data, "b [1] \xE2\x86\x92 b [1]: masked<", 0, mask);
    assert_string_equal(mask, "url(#mha-hatch)");
    assert_int_equal(zero[0], '#');
    assert_int_equal(count_of(svg.data, ": not finite<"), 2);
    assert_non_null(strstr(svg.data, "2 cells are not finite"));
    assert_non_null(strstr(svg.data, ">masked</text>"));
    mha_extent extent;
    expect_ok(mha_figure_extent(&figure, -1, &extent));
    assert_int_equal(extent.not_finite, 2);
    assert_true(extent.lo == 0 && extent.hi == 1); /* arbitrary: no value is above 0 */
    mha_buffer_free(&svg);
}

/* The range of finite, unmasked cells; an explicit range clips values. */
static void extents(void)
{
    const float values[] = {0.5F, -2, INFINITY, -3, 7, 1};
    static const uint8_t masked[] = {0, 0, 0, 1, 0, 1};
    static const struct {
        double lo, hi;
        bool clipped_lo, clipped_hi;
    } ranges[] = {{-1, 8, true, false}, {-2, 7, false, false}, {-5, 6.5, false, true}};
    mha_panel panel = {.values = values, .masked = masked};
    mha_figure figure = figure_of(&panel, 1, 2, 3);
    figure.range = MHA_RANGE_FIXED;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        mha_extent e;
        figure.lo = ranges[i].lo, figure.hi = ranges[i].hi;
        expect_ok(mha_figure_extent(&figure, 0, &e));
        assert_true(e.lo == ranges[i].lo && e.hi == ranges[i].hi);
        assert_true(e.least == -2 && e.greatest == 7 && e.not_finite == 1);
        assert_int_equal(e.clipped_lo, ranges[i].clipped_lo);
        assert_int_equal(e.clipped_hi, ranges[i].clipped_hi);
    }
}

static void svg_escapes_hostile_text(void)
{
    char *huge = malloc(200001);
    assert_non_null(huge);
    memset(huge, 'x', 200000);
    huge[200000] = 0;
    const char *labels[] = {"</script><svg onload=\"x\">",
                            "\"'&<>",
                            "\x01\x1b[31m\x7f",
                            "\xff\xc0\xaf\xed\xa0\x80\xf5",
                            "\xef\xbf\xbf",
                            huge,
                            NULL,
                            "",
                            " a\n\tb ",
                            "\xE2\x80\xAE"
                            "evil"};
    enum { N = sizeof labels / sizeof *labels };
    float values[N * N];
    for (int i = 0; i < N * N; i++) values[i] = (float)i;
    mha_panel panel = {.values = values, .name = labels[0], .note = labels[3]};
    mha_figure figure = figure_of(&panel, 1, N, N);
    figure.row_labels = figure.col_labels = labels;
    figure.title = labels[0];
    figure.subtitle = huge;
    figure.footnote = labels[1];
    figure.row_axis = labels[2];
    figure.value_name = labels[4];
    mha_buffer svg = draw(mha_render_svg, &figure);
    check_xml(&svg);
    assert_null(strstr(svg.data, "</script>"));
    assert_null(strstr(svg.data, "<svg onload"));
    assert_null(strstr(svg.data, "\xE2\x80\xAE")); /* no right-to-left override */
    assert_non_null(strstr(svg.data, "\xC2\xB7"
                                     "a\xE2\x8F\x8E\xE2\x90\x89"
                                     "b\xC2\xB7"));
    assert_true(svg.size < 600000);
    mha_buffer_free(&svg);
    for (int i = 1; i < WRITERS; i++) {
        mha_buffer other = draw(writers[i], &figure);
        mha_buffer_free(&other);
    }
    free(huge);
}

static void svg_prints_values_in_small_figures(void)
{
    float values[900];
    for (int i = 0; i < 900; i++) values[i] = 0.625F;
    mha_panel panel = {.values = values};
    mha_figure figure = figure_of(&panel, 1, 3, 3);
    mha_buffer small = draw(mha_render_svg, &figure);
    assert_int_equal(count_of(small.data, ">0.63</text>"), 9);
    figure.rows = figure.cols = 30;
    mha_buffer large = draw(mha_render_svg, &figure);
    assert_int_equal(count_of(large.data, ">0.63</text>"), 0);
    figure.print_values = MHA_VALUES_ALWAYS;
    mha_buffer always = draw(mha_render_svg, &figure);
    assert_int_equal(count_of(always.data, ">0.63</text>"), 900);
    mha_buffer_free(&small);
    mha_buffer_free(&large);
    mha_buffer_free(&always);
}

static void svg_labels_both_axes_and_groups(void)
{
    static const char *const rows[] = {"der", "Hund"}, *const cols[] = {"the", "big", "dog"};
    static const char *const groups[] = {"layer 0", "layer 1"};
    static const float values[6] = {0.1F, 0.2F, 0.3F, 0.4F, 0.5F, 0.6F};
    mha_panel panels[4];
    for (int i = 0; i < 4; i++)
        panels[i] = (mha_panel){.values = values, .name = "head", .group = i % 2};
    mha_figure figure = figure_of(panels, 4, 2, 3);
    figure.row_labels = rows;
    figure.col_labels = cols;
    figure.row_axis = "query (attending)";
    figure.col_axis = "key (attended to)";
    figure.group_names = groups;
    figure.group_count = 2;
    mha_buffer svg = draw(mha_render_svg, &figure);
    check_xml(&svg);
    assert_int_equal(count_of(svg.data, ">Hund</text>"), 2); /* once a grid row */
    assert_int_equal(count_of(svg.data, ">dog</text>"), 4);  /* once a map */
    assert_int_equal(count_of(svg.data, ">layer 1</text>"), 1);
    assert_int_equal(count_of(svg.data, ">query (attending)</text>"), 2);
    assert_int_equal(count_of(svg.data, ">key (attended to)</text>"), 1);
    mha_buffer_free(&svg);
    /* An empty list of names is not read. */
    for (int i = 0; i < 4; i++) panels[i].group = 0;
    const char *const wild = (const char *)1;
    figure.group_names = &wild;
    figure.group_count = 0;
    svg = draw(mha_render_svg, &figure);
    assert_int_equal(count_of(svg.data, ">head</text>"), 4);
    mha_buffer_free(&svg);
}

/* ---- PNG ---- */

typedef struct picture {
    png_image head;
    png_bytep rgb;
} picture;

static picture decode(const void *bytes, size_t count)
{
    picture p = {.head = {.version = PNG_IMAGE_VERSION}};
    assert_true(png_image_begin_read_from_memory(&p.head, bytes, count));
    p.head.format = PNG_FORMAT_RGB;
    p.rgb = malloc(PNG_IMAGE_SIZE(p.head));
    assert_non_null(p.rgb);
    assert_true(png_image_finish_read(&p.head, NULL, p.rgb, 0, NULL));
    return p;
}

/* The number of pixels with exactly this colour, and their centre. */
static long pixels_of(const picture *p, const uint8_t rgb[3], double *x, double *y)
{
    long count = 0;
    *x = *y = 0;
    for (png_uint_32 i = 0; i < p->head.width * p->head.height; i++)
        if (memcmp(p->rgb + 3 * i, rgb, 3) == 0) {
            count++;
            *x += i % p->head.width;
            *y += i / p->head.width;
        }
    if (count) *x /= (double)count, *y /= (double)count;
    return count;
}

static double svg_number(const char *svg, const char *attribute)
{
    const char *at = strstr(svg, attribute);
    assert_non_null(at);
    return strtod(at + strlen(attribute), NULL);
}

static void png_has_size_and_colors(void)
{
    mha_panel panel = {.values = four};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    figure.print_values = MHA_VALUES_NEVER;
    for (int ratio = 1; ratio <= 3; ratio++) {
        figure.pixel_ratio = ratio;
        mha_buffer svg = draw(mha_render_svg, &figure), png = draw(mha_render_png, &figure);
        picture p = decode(png.data, png.size);
        assert_int_equal(p.head.width, (int)svg_number(svg.data, " width=\"") * ratio);
        assert_int_equal(p.head.height, (int)svg_number(svg.data, " height=\"") * ratio);
        double x[2], y[2];
        for (int i = 1; i <= 2; i++) { /* 0 and 1 are also the ends of the colour bar */
            uint8_t rgb[3];
            mha_cmap_color(MHA_CMAP_VIRIDIS, false, round(255 * (double)four[i]) / 255, rgb);
            assert_true(pixels_of(&p, rgb, &x[i - 1], &y[i - 1]) >= 35L * 35 * ratio * ratio);
        }
        assert_true(x[0] > x[1] + 30 && y[1] > y[0] + 30); /* 0.25 is upper right, 0.5 lower left */
        free(p.rgb);
        mha_buffer_free(&svg);
        mha_buffer_free(&png);
    }
}

static void png_font_errors(void)
{
    mha_panel panel = {.values = four};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    mha_buffer buffer = {0};
    mha_sink sink = mha_buffer_sink(&buffer);
    static const char *const files[] = {"/no/such/font.ttf", "CMakeLists.txt", "/dev/null"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        figure.font_file = files[i];
        for (int pdf = 0; pdf < 2; pdf++)
            expect_error((pdf ? mha_render_pdf : mha_render_png)(&figure, &sink), MHA_ERR_FILE,
                         files[i]);
        assert_int_equal(buffer.size, 0);
    }
}

/* The page has the SVG's size, 3/4 point per unit, without a date and with an embedded font.
 * tests/cli/pdf.py reads its text. */
static void pdf_is_a_page(void)
{
    mha_panel panel = {.values = four, .name = "head"};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    char box[96];
    mha_buffer svg = draw(mha_render_svg, &figure), pdf = draw(mha_render_pdf, &figure);
    assert_memory_equal(pdf.data, "%PDF-1.4", 8);
    snprintf(box, sizeof box, "/MediaBox [ 0 0 %.6g %.6g ]",
             svg_number(svg.data, " width=\"") * 0.75, svg_number(svg.data, " height=\"") * 0.75);
    const char *const parts[] = {box, "/FontFile2", "/ToUnicode", "/Type /Font", "%%EOF"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!memmem(pdf.data, pdf.size, parts[i], strlen(parts[i]))) fail_msg("no %s", parts[i]);
    assert_null(memmem(pdf.data, pdf.size, "Date", 4));
    mha_buffer_free(&svg);
    mha_buffer_free(&pdf);
}

/* Pictures too large for cairo or for readers of PDF are rejected. */
static void too_large(void)
{
    mha_panel *panels = calloc(4096, sizeof *panels);
    assert_non_null(panels);
    for (int i = 0; i < 4096; i++) panels[i].values = four;
    mha_figure figure = figure_of(panels, 4096, 2, 2);
    mha_buffer buffer = {0};
    const mha_sink sink = mha_buffer_sink(&buffer);
    figure.columns = 1;
    expect_error(mha_render_png(&figure, &sink), MHA_ERR_SIZE, "draw fewer panels");
    expect_error(mha_render_pdf(&figure, &sink), MHA_ERR_SIZE, "14400");
    assert_int_equal(buffer.size, 0);
    free(panels);
}

static size_t unbase64(const char *text, unsigned char *bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t count = 0;
    unsigned word = 0, bits = 0;
    for (const char *at; *text && (at = strchr(digits, *text)) != NULL; text++) {
        word = word << 6 | (unsigned)(at - digits);
        bits += 6;
        if (bits >= 8) bytes[count++] = (unsigned char)(word >> (bits -= 8));
    }
    return count;
}

/* A single large cell of 4096 x 4096 must be visible in a picture of 1024 x 1024: blocks have the
 * maximum, never the mean. */
static void large_maps_keep_their_maximum(void)
{
    enum { N = 4096 };
    float *values = calloc((size_t)N * N, sizeof *values);
    assert_non_null(values);
    values[(size_t)1234 * N + 3333] = 1;
    mha_panel panel = {.values = values};
    mha_figure figure = figure_of(&panel, 1, N, N);
    mha_buffer svg = draw(mha_render_svg, &figure);
    check_xml(&svg);
    assert_non_null(strstr(svg.data, "1 px = 4x4 cells, max"));
    const char *data = strstr(svg.data, "base64,");
    assert_non_null(data);
    unsigned char *bytes = malloc(svg.size);
    assert_non_null(bytes);
    size_t count = unbase64(data + 7, bytes);
    picture p = decode(bytes, count);
    assert_int_equal(p.head.width, 1024);
    uint8_t hot[3];
    double x, y;
    mha_cmap_color(MHA_CMAP_VIRIDIS, false, 1, hot);
    assert_int_equal(pixels_of(&p, hot, &x, &y), 1);
    assert_true(x == 833 && y == 308);
    free(p.rgb);
    free(bytes);
    mha_buffer text = draw(plain_terminal, &figure);
    assert_int_equal(count_of(strstr(text.data, "4096 x 4096"), "@"), 1);
    mha_buffer_free(&text);
    mha_buffer_free(&svg);
    free(values);
}

/* ---- Colours ---- */

static double lightness(const uint8_t rgb[3])
{
    static const double weight[] = {0.2126, 0.7152, 0.0722};
    double y = 0;
    for (int i = 0; i < 3; i++) {
        double s = rgb[i] / 255.0;
        y += weight[i] * (s <= 0.04045 ? s / 12.92 : pow((s + 0.055) / 1.055, 2.4));
    }
    return 116 * cbrt(y) - 16;
}

static void ramps_are_monotone(void)
{
#define SIGNED(name, value, text, is_signed) is_signed,
    static const int is_signed[] = {MHA_CMAP_LIST(SIGNED)};
#undef SIGNED
    for (int cmap = 0; cmap < (int)(sizeof is_signed / sizeof *is_signed); cmap++)
        for (int dark = 0; dark < 2; dark++) {
            uint8_t first[3], last[3], before[3], now[3];
            mha_cmap_color((mha_cmap)cmap, dark, 0, first);
            mha_cmap_color((mha_cmap)cmap, dark, is_signed[cmap] ? 0.5 : 1, last);
            double turn = lightness(last) > lightness(first) ? 1 : -1;
            assert_true(fabs(lightness(last) - lightness(first)) > 50);
            memcpy(before, first, 3);
            for (int i = 1; i <= 255; i++) {
                mha_cmap_color((mha_cmap)cmap, dark, i / 255.0, now);
                double step = (lightness(now) - lightness(before)) * turn;
                if (is_signed[cmap] && i > 127) step = i > 128 ? -step : 0;
                assert_true(step > -0.25); /* rounding to bytes */
                memcpy(before, now, 3);
            }
        }
}

static void viridis_is_viridis(void)
{
    static const uint8_t known[][3] = {
        {68, 1, 84}, {59, 82, 139}, {33, 145, 140}, {94, 201, 98}, {253, 231, 37}};
    for (int i = 0; i < 5; i++) {
        uint8_t rgb[3];
        mha_cmap_color(MHA_CMAP_VIRIDIS, false, i / 4.0, rgb);
        for (int k = 0; k < 3; k++) assert_in_range(rgb[k] + 4, known[i][k], known[i][k] + 8);
    }
    uint8_t low[3], nan_color[3];
    mha_cmap_color(MHA_CMAP_VIRIDIS, false, -3, low);
    mha_cmap_color(MHA_CMAP_VIRIDIS, false, (double)NAN, nan_color);
    assert_memory_equal(low, known[0], 3);
    assert_memory_equal(nan_color, known[0], 3);
}

static void names_follow_the_lists(void)
{
#define CMAP_CASE(id, value, text, is_signed) assert_string_equal(mha_cmap_name(id), text);
    MHA_CMAP_LIST(CMAP_CASE)
#undef CMAP_CASE
    assert_string_equal(mha_cmap_name((mha_cmap)77), "?");
    assert_string_equal(mha_scale_name(MHA_SCALE_LOG), "log");
    assert_string_equal(mha_scale_name((mha_scale)77), "?");
}

/* ---- Terminal ---- */

/* Columns of a line, counted without the library. Escape sequences have no columns. */
static int line_columns(const char *line, size_t length)
{
    int columns = 0;
    for (size_t i = 0; i < length;) {
        unsigned char c = (unsigned char)line[i];
        if (c == 0x1b) {
            while (line[i] != 'm') i++;
            i++;
            continue;
        }
        int bytes = c < 0x80 ? 1 : c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
        unsigned code = c < 0x80 ? c : c & (0x7Fu >> bytes);
        for (int k = 1; k < bytes; k++)
            code = code << 6 | ((unsigned char)line[i + (size_t)k] & 0x3Fu);
        bool wide = (code >= 0x3000 && code < 0xA000) || (code >= 0xAC00 && code < 0xD7A4) ||
                    (code >= 0xFF01 && code <= 0xFF60) || (code >= 0x1F300 && code <= 0x1FAFF);
        columns += wide ? 2 : code >= 0x300 && code < 0x370 ? 0 : 1;
        i += (size_t)bytes;
    }
    return columns;
}

static void check_terminal(const mha_figure *figure, const mha_terminal *terminal)
{
    mha_buffer buffer = {0};
    mha_sink sink = mha_buffer_sink(&buffer);
    expect_ok(mha_render_terminal(figure, terminal, &sink));
    assert_int_equal(strlen(buffer.data), buffer.size);
    for (const char *line = buffer.data; *line;) {
        size_t length = strcspn(line, "\n");
        assert_int_equal(line[length], '\n');
        int columns = line_columns(line, length);
        if (columns > terminal->columns)
            fail_msg("%d columns of %d: %.*s", columns, terminal->columns, (int)length, line);
        line += length + 1;
    }
    if (terminal->color == MHA_TERMINAL_PLAIN)
        assert_null(strchr(buffer.data, 0x1b));
    else
        assert_non_null(strchr(buffer.data, 0x1b));
    for (size_t i = 0; terminal->ascii && i < buffer.size; i++)
        assert_true((unsigned char)buffer.data[i] < 0x7F);
    mha_buffer_free(&buffer);
}

static void terminal_keeps_its_width(void)
{
    static const char *const words[] = {"the",
                                        "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E",
                                        "e\xCC\x81\xCC\x81"
                                        "clair",
                                        "\xF0\x9F\x90\x88",
                                        "averyveryverylongtokenindeed",
                                        "",
                                        " ",
                                        "\n",
                                        "\xff",
                                        NULL};
    enum { MOST = 300 };
    const char *labels[MOST];
    float *values = malloc(sizeof(float) * MOST * MOST);
    assert_non_null(values);
    for (int i = 0; i < MOST; i++) labels[i] = words[i % 10];
    for (int i = 0; i < MOST * MOST; i++) values[i] = i % 97 ? (float)(i % 13) - 0.5F : NAN;
    static const int sizes[][2] = {{1, 1},   {3, 9},   {9, 3},   {8, 8},
                                   {17, 17}, {1, 300}, {300, 1}, {130, 130}};
    static const int widths[] = {20, 21, 33, 40, 79, 80, 132};
    mha_panel panels[13];
    for (int i = 0; i < 13; i++)
        panels[i] = (mha_panel){
            .values = values, .name = words[i % 10], .note = words[(i + 1) % 10], .group = i % 2};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
            for (int variant = rng_whole_sample() ? 0 : (int)(s + w) % 7; variant < 24;
                 variant += rng_whole_sample() ? 1 : 7) {
                mha_figure figure =
                    figure_of(panels, variant % 2 ? 13 : 1, sizes[s][0], sizes[s][1]);
                figure.group_count = 2;
                figure.group_names = words + 1;
                figure.row_labels = figure.col_labels = variant % 4 < 2 ? labels : NULL;
                figure.title = figure.footnote = words[4];
                figure.value_name = words[1];
                figure.range = (mha_range)(variant / 12);
                mha_terminal terminal = {sizeof terminal, widths[w],
                                         (mha_terminal_color)(variant / 4 % 3), variant % 3 == 0};
                check_terminal(&figure, &terminal);
            }
    free(values);
}

static void terminal_says_what_it_draws(void)
{
    static const uint8_t masked[] = {0, 1, 0, 0};
    mha_panel panel = {.values = four, .masked = masked, .name = "L0H3"};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    figure.row_labels = figure.col_labels = ab;
    figure.row_axis = "query";
    figure.col_axis = "key";
    mha_buffer text = draw(plain_terminal, &figure);
    static const char *const expected[] = {"rows: query, columns: key, 2 x 2",
                                           "0 [",
                                           "] 0.5 [",
                                           "] 1\n",
                                           "L0H3",
                                           "/ is masked",
                                           "a |0.00 /////|\n",
                                           "b |0.50 1.00 |\n"};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (!strstr(text.data, expected[i])) fail_msg("no '%s' in:\n%s", expected[i], text.data);
    mha_buffer_free(&text);
    mha_buffer color = draw(color_terminal, &figure);
    uint8_t rgb[3];
    char escape[64];
    mha_cmap_color(MHA_CMAP_VIRIDIS, false, round(255 * 0.5) / 255, rgb);
    snprintf(escape, sizeof escape, "48;2;%d;%d;%dm0.50", rgb[0], rgb[1], rgb[2]);
    assert_non_null(strstr(color.data, escape));
    mha_buffer_free(&color);
}

static void text_columns(void)
{
    assert_int_equal(mha_text_columns(NULL), 0);
    assert_int_equal(mha_text_columns(""), 0);
    assert_int_equal(mha_text_columns("abc"), 3);
    assert_int_equal(mha_text_columns("e\xCC\x81"), 1);
    assert_int_equal(mha_text_columns("\xE6\x97\xA5\xE6\x9C\xAC"), 4);
    assert_int_equal(mha_text_columns("\xF0\x9F\x98\x80"), 2);
    assert_int_equal(mha_text_columns("\xff\xfe"), 2);
    assert_int_equal(mha_text_columns("\xE6\x97"), 2); /* a truncated character: two stray bytes */
    assert_int_equal(mha_text_columns("\x1b[0m"), 3);
}

/* ---- Reproducible bytes, degenerate figures, errors ---- */

static void bytes_do_not_vary(void)
{
    mha_panel panels[] = {{.values = four}, {.values = four, .note = "1.5"}};
    mha_figure figure = figure_of(panels, 2, 2, 2);
    figure.scale = MHA_SCALE_SQRT;
    mha_buffer before[WRITERS];
    for (int i = 0; i < WRITERS; i++) before[i] = draw(writers[i], &figure);
    /* If a locale with a decimal comma is installed, the comma must not appear. */
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) setlocale(LC_ALL, "fr_FR.UTF-8");
    for (int i = 0; i < WRITERS; i++) {
        mha_buffer again = draw(writers[i], &figure);
        assert_int_equal(again.size, before[i].size);
        assert_memory_equal(again.data, before[i].data, again.size);
        mha_buffer_free(&again);
        mha_buffer_free(&before[i]);
    }
    setlocale(LC_ALL, "C");
}

static void degenerate_figures_are_drawn(void)
{
    const float odd[] = {NAN, -INFINITY, 3e38F, -3e38F};
    static const uint8_t all[] = {1, 1, 1, 1};
    const mha_panel panels[] = {{.values = odd}, {.values = four, .masked = all}, {.values = NULL}};
    for (int i = 0; i < WRITERS; i++)
        for (int variant = 0; variant < 8; variant++) {
            mha_figure figure = figure_of(&panels[variant % 3], variant != 7, 2, 2);
            if (variant % 3 == 2) figure.rows = 0;
            if (variant == 4) figure.cols = 1;
            if (variant == 7) figure.panels = NULL;
            figure.scale = (mha_scale)(variant % 2 ? MHA_SCALE_RANK : MHA_SCALE_SQRT);
            figure.cmap = variant < 4 ? MHA_CMAP_DIVERGING : MHA_CMAP_GREYS;
            mha_buffer out = draw(writers[i], &figure);
            if (i == 0) check_xml(&out);
            mha_buffer_free(&out);
        }
}

typedef struct refusal {
    const char *what;
    mha_status status;
    void (*spoil)(mha_figure *figure, mha_panel *panel);
} refusal;

static void no_size(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->struct_size = 0;
}
static void cut_size(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->struct_size = offsetof(mha_figure, group_names) + 3;
}
static void cut_panel(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->panel_size = offsetof(mha_panel, badge) + 4;
}
static void no_panel_size(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->panel_size = 0;
}
static void negative(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->rows = -1;
}
static void too_many(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->rows = f->cols = INT64_MAX;
}
static void no_panels(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->panels = NULL;
}
static void no_values(mha_figure *f, mha_panel *p)
{
    (void)f;
    p->values = NULL;
}
static void short_stride(mha_figure *f, mha_panel *p)
{
    (void)f;
    p->row_stride = 1;
}
static void bad_group(mha_figure *f, mha_panel *p)
{
    (void)f;
    p->group = 1;
}
static void bad_cmap(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->cmap = (mha_cmap)55;
}
static void bad_scale(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->scale = (mha_scale)55;
}
static void bad_range(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->range = (mha_range)55;
}
static void empty_range(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->range = MHA_RANGE_FIXED;
}
static void nan_range(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->range = MHA_RANGE_FIXED;
    f->hi = (double)NAN;
}
static void bad_ratio(mha_figure *f, mha_panel *p)
{
    (void)p;
    f->pixel_ratio = 0.5;
}
static void log_of_negative(mha_figure *f, mha_panel *p)
{
    static const float values[] = {1, -1, 1, 1};
    f->scale = MHA_SCALE_LOG;
    p->values = values;
}
static void bad_mark(mha_figure *f, mha_panel *p)
{
    static const int64_t beside[2] = {1, 2};
    (void)f;
    p->mark = beside;
}

static void bad_figures_are_refused(void)
{
    static const refusal refusals[] = {
        {"struct_size", MHA_ERR_ARGUMENT, no_size},
        {"panel_size", MHA_ERR_ARGUMENT, no_panel_size},
        {"struct_size", MHA_ERR_ARGUMENT, cut_size},
        {"mha_panel", MHA_ERR_ARGUMENT, cut_panel},
        {"negative", MHA_ERR_SHAPE, negative},
        {"2^31", MHA_ERR_SIZE, too_many},
        {"panels", MHA_ERR_NULL, no_panels},
        {"values", MHA_ERR_NULL, no_values},
        {"stride", MHA_ERR_SHAPE, short_stride},
        {"group", MHA_ERR_ARGUMENT, bad_group},
        {"cmap", MHA_ERR_ARGUMENT, bad_cmap},
        {"scale", MHA_ERR_ARGUMENT, bad_scale},
        {"range", MHA_ERR_ARGUMENT, bad_range},
        {"lo < hi", MHA_ERR_ARGUMENT, empty_range},
        {"lo < hi", MHA_ERR_ARGUMENT, nan_range},
        {"pixel_ratio", MHA_ERR_ARGUMENT, bad_ratio},
        {"log", MHA_ERR_ARGUMENT, log_of_negative},
        {"mark", MHA_ERR_ARGUMENT, bad_mark},
    };
    for (size_t r = 0; r < sizeof refusals / sizeof *refusals; r++)
        for (int i = 0; i < WRITERS; i++) {
            mha_panel panel = {.values = four};
            mha_figure figure = figure_of(&panel, 1, 2, 2);
            mha_buffer buffer = {0};
            mha_sink sink = mha_buffer_sink(&buffer);
            refusals[r].spoil(&figure, &panel);
            expect_row(r, writers[i](&figure, &sink), refusals[r].status, refusals[r].what);
            assert_int_equal(buffer.size, 0);
        }
    mha_figure figure = figure_of(NULL, 0, 2, 2);
    mha_terminal narrow = {sizeof narrow, 19, MHA_TERMINAL_PLAIN, false},
                 odd = {sizeof odd, 80, (mha_terminal_color)9, false};
    mha_buffer buffer = {0};
    mha_sink sink = mha_buffer_sink(&buffer), none = {0};
    assert_int_equal(mha_render_terminal(&figure, &narrow, &sink), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_render_terminal(&figure, &odd, &sink), MHA_ERR_ARGUMENT);
    assert_int_equal(mha_render_svg(NULL, &sink), MHA_ERR_NULL);
    assert_int_equal(mha_render_svg(&figure, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_render_png(&figure, &none), MHA_ERR_NULL);
}

/* Older callers have fewer fields, and newer ones have more. */
static void structs_may_grow(void)
{
    struct {
        mha_panel panel;
        int64_t more;
    } newer[2] = {{{.values = four, .name = "one"}, 0}, {{.values = four, .name = "two"}, 0}};
    mha_figure figure = figure_of(&newer[0].panel, 2, 2, 2);
    figure.panel_size = sizeof *newer;
    mha_buffer svg = draw(mha_render_svg, &figure);
    assert_non_null(strstr(svg.data, ">two</text>"));
    mha_buffer_free(&svg);
    newer[1].more = 1;
    mha_sink sink = mha_buffer_sink(&svg);
    assert_int_equal(mha_render_svg(&figure, &sink), MHA_ERR_UNSUPPORTED);
    newer[1].more = 0;
    figure.value_name = "not seen";
    figure.struct_size = offsetof(mha_figure, value_name);
    svg = draw(mha_render_svg, &figure);
    assert_null(strstr(svg.data, "not seen"));
    mha_buffer_free(&svg);
}

/* ---- Sinks and files ---- */

typedef struct failing {
    int left, calls_after;
    mha_status status;
} failing;

static mha_status fail_later(void *user, const void *bytes, size_t count)
{
    failing *f = user;
    assert_true(count > 0 && bytes);
    if (f->left < 0) f->calls_after++;
    if (f->left-- > 0) return MHA_OK;
    f->left = -1;
    return mha_fail(f->status, "the sink is full");
}

static void sink_failures_are_passed_up(void)
{
    float values[1600];
    for (int i = 0; i < 1600; i++) values[i] = (float)(i * 7 % 31);
    mha_panel panels[4] = {
        {.values = values}, {.values = values}, {.values = values}, {.values = values}};
    mha_figure figure = figure_of(panels, 4, 40, 40);
    for (int i = 0; i < WRITERS; i++)
        for (int k = 0;; k += rng_long_run() ? 1 : 1 + k / 8) {
            failing f = {k, 0, k % 2 ? MHA_ERR_CALLBACK : MHA_ERR_WRITE};
            mha_sink sink = {fail_later, &f};
            mha_status status = writers[i](&figure, &sink);
            if (status == MHA_OK) {
                assert_true(k > 0 && f.left >= 0);
                break;
            }
            assert_int_equal(status, f.status);
            assert_string_equal(mha_error_detail(), "the sink is full");
            assert_int_equal(f.calls_after, 0);
        }
}

static int entries_of(const char *folder)
{
    int count = 0;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) count += entry->d_name[0] != '.';
    closedir(dir);
    return count;
}

static void check_content(const char *path, const char *expected)
{
    char text[64] = "";
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[count] = 0;
    assert_string_equal(text, expected);
}

static mha_status write_file(const char *path, const char *text, mha_status outcome)
{
    mha_file *file;
    mha_status status = mha_file_create(path, &file);
    if (!status) {
        const mha_sink *sink = mha_file_sink(file);
        status = sink->write(sink->user, text, strlen(text));
    }
    return mha_file_finish(file, status ? status : outcome);
}

static void files_appear_whole_or_not_at_all(void)
{
    char folder[] = "render-test-XXXXXX", path[64], link[64], missing[64];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/out.svg", folder);
    snprintf(link, sizeof link, "%s/link.svg", folder);
    snprintf(missing, sizeof missing, "%s/none/out.svg", folder);
    assert_int_equal(write_file(path, "first", MHA_ERR_NOMEM), MHA_ERR_NOMEM);
    assert_int_equal(entries_of(folder), 0);
    expect_ok(write_file(path, "first", MHA_OK));
    check_content(path, "first");
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(write_file(path, "never", MHA_ERR_CALLBACK), MHA_ERR_CALLBACK);
    check_content(path, "first");
    assert_int_equal(symlink("out.svg", link), 0);
    expect_ok(write_file(link, "second", MHA_OK));
    check_content(path, "second");
    struct stat info;
    assert_true(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
    assert_true(stat(path, &info) == 0 && (info.st_mode & 0777) == 0640);
    assert_int_equal(entries_of(folder), 2);
    assert_int_equal(write_file(missing, "x", MHA_OK), MHA_ERR_WRITE);
    assert_non_null(strstr(mha_error_detail(), missing));
    assert_int_equal(write_file(folder, "x", MHA_OK), MHA_ERR_WRITE);
    assert_int_equal(entries_of(folder), 2);
    mha_file *file = NULL;
    assert_int_equal(mha_file_create(NULL, &file), MHA_ERR_NULL);
    assert_int_equal(mha_file_create(path, NULL), MHA_ERR_NULL);
    assert_int_equal(mha_file_finish(NULL, MHA_ERR_SHAPE), MHA_ERR_SHAPE);
    unlink(path);
    assert_int_equal(write_file(link, "x", MHA_OK), MHA_ERR_WRITE); /* a dangling link */
    assert_true(lstat(link, &info) == 0 && S_ISLNK(info.st_mode));
    unlink(link);
    rmdir(folder);
}

static void full_disk_is_an_error(void)
{
    if (access("/dev/full", W_OK) != 0) skip();
    mha_panel panel = {.values = four};
    mha_figure figure = figure_of(&panel, 1, 2, 2);
    for (int i = 0; i < WRITERS; i++) {
        mha_file *file;
        expect_ok(mha_file_create("/dev/full", &file));
        mha_status status = mha_file_finish(file, writers[i](&figure, mha_file_sink(file)));
        assert_int_equal(status, MHA_ERR_WRITE);
        assert_non_null(strstr(mha_error_detail(), "/dev/full"));
    }
}

RUN_TESTS(TEST(svg_colors_known_cells), TEST(svg_ranges), TEST(a_marked_cell), TEST(svg_scales),
          TEST(svg_masked_and_not_finite), TEST(extents), TEST(svg_escapes_hostile_text),
          TEST(svg_prints_values_in_small_figures), TEST(svg_labels_both_axes_and_groups),
          TEST(png_has_size_and_colors), TEST(png_font_errors), TEST(pdf_is_a_page),
          TEST(too_large), TEST(large_maps_keep_their_maximum), TEST(ramps_are_monotone),
          TEST(viridis_is_viridis), TEST(names_follow_the_lists), TEST(terminal_keeps_its_width),
          TEST(terminal_says_what_it_draws), TEST(text_columns), TEST(bytes_do_not_vary),
          TEST(degenerate_figures_are_drawn), TEST(bad_figures_are_refused), TEST(structs_may_grow),
          TEST(sink_failures_are_passed_up), TEST(files_appear_whole_or_not_at_all),
          TEST(full_disk_is_an_error))
