/* Results do not depend on setlocale(): in a locale with a decimal comma, every message, evidence
 * text and number in a file equals that in "C".
 *
 * The build creates the locales (tests/CMakeLists.txt, LOCPATH); without their sources the whole program is skipped. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/suite.h"
#include "support/temp_files.h"

#include <multihead/attention.h>
#include <multihead/checkpoint.h>
#include <multihead/component.h>
#include <multihead/heads.h>
#include <multihead/io.h>
#include <multihead/render.h>

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Collects everything that a host reads. The caller frees the buffer. */
typedef void collector(mha_buffer *all);

static void add(mha_buffer *all, const char *text, size_t size)
{
    const mha_sink sink = mha_buffer_sink(all);
    expect_ok(sink.write(sink.user, text, size));
    expect_ok(sink.write(sink.user, "\n", 1));
}

static void expect_same(collector *collect)
{
    mha_buffer plain = {0}, comma = {0};
    collect(&plain);
    assert_non_null(setlocale(LC_ALL, "de_DE.UTF-8"));
    char point[8];
    snprintf(point, sizeof point, "%.1f", 0.5);
    assert_string_equal(point, "0,5");
    collect(&comma);
    snprintf(point, sizeof point, "%.1f", 0.5);
    assert_string_equal(point, "0,5"); /* the host's locale is unchanged */
    assert_non_null(setlocale(LC_ALL, "C"));
    if (plain.size != comma.size || memcmp(plain.data, comma.data, plain.size) != 0)
        fail_msg("%.*s\nbecame\n%.*s", (int)plain.size, plain.data, (int)comma.size, comma.data);
    mha_buffer_free(&plain);
    mha_buffer_free(&comma);
}

static void collect_messages(mha_buffer *all)
{
    float one = 0;
    const mha_tensor t = mha_tensor_contiguous(&one, MHA_F32, 4, (int64_t[]){1, 1, 1, 1});
    const mha_attention_desc d = {.struct_size = sizeof d, .softcap = -0.5F};
    assert_int_equal(mha_attention_forward(context, &d, &t, &t, &t, &t, NULL), MHA_ERR_ARGUMENT);
    assert_non_null(strstr(mha_error_detail(), "softcap is -0.5, "));
    add(all, mha_error_detail(), strlen(mha_error_detail()));
    assert_int_equal(mha_fail(MHA_ERR_SIZE, "%.3f %s %5.1e", 1.5, "a", 0.25), MHA_ERR_SIZE);
    assert_string_equal(mha_error_detail(), "1.500 a 2.5e-01");
}

static void messages(void)
{
    expect_same(collect_messages);
}

/* A head with 3/4 of its weight on the previous token and the rest on the current one. */
static void collect_evidence(mha_buffer *all)
{
    enum { N = 40, MOST = 32 };
    static float map[N * N];
    for (int i = 0; i < N; i++) {
        map[i * N + i] = i ? 0.25f : 1;
        if (i) map[i * N + i - 1] = 0.75f;
    }
    const int64_t heads = 1;
    const mha_head_measures_desc desc = {
        .struct_size = sizeof desc, .layers = 1, .heads = &heads, .rare_rank = -1};
    const mha_heads_text text = {
        .struct_size = sizeof text, .flags = MHA_HEADS_CAUSAL, .queries = N, .keys = N};
    const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, N, N});
    mha_head_measures *m = NULL;
    mha_head_role roles[MOST];
    expect_ok(mha_head_measures_create(context, &desc, &m));
    expect_ok(mha_head_measures_begin(m, &text));
    expect_ok(mha_head_measures_rows(m, 0, 0, &p));
    expect_ok(mha_head_measures_end(m));
    const int64_t count = mha_head_measures_roles(m, 0, 0, roles, MOST);
    assert_true(count > 0);
    assert_non_null(strstr(roles[0].evidence, " 0.75, chance 0."));
    for (int64_t i = 0; i < count; i++) add(all, roles[i].evidence, strlen(roles[i].evidence));
    mha_head_measures_destroy(m);
}

static void evidence(void)
{
    expect_same(collect_evidence);
}

/* Writes, reads and writes again: numbers in JSON are preserved. */
static void collect_checkpoint(mha_buffer *all)
{
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = 11,
                                    .max_length = 16,
                                    .embed_dim = 8,
                                    .num_layers = 1,
                                    .num_heads = 2,
                                    .ff_dim = 10,
                                    .norm = MHA_NORM_RMS,
                                    .norm_epsilon = 1.2345678e-6f,
                                    .rope_base = 12345.5f,
                                    .positions = MHA_ENCODING_ROTARY,
                                    .feed_forward = MHA_FEED_FORWARD_SWIGLU};
    mha_transformer *from = NULL, *to = NULL;
    mha_transformer_desc back;
    size_t size;
    expect_ok(mha_transformer_create(context, &d, &from));
    expect_ok(mha_transformer_initialise(
        context, from, &(mha_transformer_init){.struct_size = sizeof(mha_transformer_init)}));
    expect_ok(mha_checkpoint_save(temp_path("a"), from, NULL));
    expect_ok(mha_checkpoint_load(context, temp_path("a"), &to));
    mha_transformer_describe(to, &back);
    assert_memory_equal(&back.norm_epsilon, &d.norm_epsilon, sizeof d.norm_epsilon);
    assert_memory_equal(&back.rope_base, &d.rope_base, sizeof d.rope_base);
    expect_ok(mha_checkpoint_save(temp_path("b"), to, NULL));
    static const char *const files[] = {"a/config.json", "b/config.json", "b/model.safetensors"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char *text = temp_read(temp_path(files[i]), &size);
        add(all, text, size);
        free(text);
    }
    mha_transformer_destroy(from);
    mha_transformer_destroy(to);
}

static void checkpoints(void)
{
    expect_same(collect_checkpoint);
}

typedef mha_status writer(const mha_figure *figure, const mha_sink *sink);

static mha_status write_html(const mha_figure *figure, const mha_sink *sink)
{
    static const double x[] = {0, 0.5}, y[] = {1.5, 5e-324};
    static const mha_series series = {"loss", x, y, 2, false};
    static const mha_curve curve = {.series = &series, .series_count = 1};
    const mha_report report = {.struct_size = sizeof report,
                               .curve_size = sizeof curve,
                               .curves = &curve,
                               .curve_count = 1};
    return mha_render_html(figure, &report, sink);
}

static mha_status write_terminal(const mha_figure *figure, const mha_sink *sink)
{
    const mha_terminal terminal = {.struct_size = sizeof terminal, .columns = 80};
    return mha_render_terminal(figure, &terminal, sink);
}

static mha_status write_diagram(const mha_figure *figure, const mha_sink *sink)
{
    const mha_mark mark = {
        .kind = MHA_MARK_FIGURE, .width = 99.5, .height = 77.25, .figure = figure};
    const mha_diagram_panel panel = {.width = 100.5, .height = 80, .marks = &mark, .mark_count = 1};
    const mha_diagram diagram = {.struct_size = sizeof diagram,
                                 .panel_size = sizeof panel,
                                 .mark_size = sizeof mark,
                                 .panels = &panel,
                                 .panel_count = 1};
    return mha_render_diagram(&diagram, sink);
}

static mha_status write_chart(const mha_figure *figure, const mha_sink *sink)
{
    static const double x[] = {0, 0.5, 1.25}, y[] = {1.5, 0.75, 0.125};
    static const mha_series series = {"loss", x, y, 3, false};
    static const mha_curve curve = {.series = &series, .series_count = 1};
    const mha_chart chart = {
        .struct_size = sizeof chart, .curve_size = sizeof curve, .curve = &curve};
    (void)figure;
    return mha_render_chart(&chart, sink);
}

static void collect_pictures(mha_buffer *all)
{
    static writer *const writers[] = {mha_render_svg, mha_render_pdf, write_html,
                                      write_terminal, write_diagram,  write_chart};
    static const float values[] = {0.125f, 1e-30f, 123456.5f, 0.75f};
    static const mha_measure measure = {"previous", 0.79, 0.0625, 0, 63, "rows"};
    static const mha_panel panel = {.values = values, .measures = &measure, .measure_count = 1};
    const mha_figure figure = {.struct_size = sizeof figure,
                               .panel_size = sizeof panel,
                               .rows = 2,
                               .cols = 2,
                               .panels = &panel,
                               .panel_count = 1};
    for (size_t i = 0; i < sizeof writers / sizeof *writers; i++) {
        const mha_sink sink = mha_buffer_sink(all);
        expect_ok(writers[i](&figure, &sink));
    }
}

static void pictures(void)
{
    expect_same(collect_pictures);
}

static int no_locale(void)
{
    const bool missing = !setlocale(LC_ALL, "de_DE.UTF-8");
    if (missing)
        puts("skipped: no locale de_DE.UTF-8, and no localedef with its source (Debian: locales)");
    setlocale(LC_ALL, "C");
    return missing;
}

RUN_TESTS_IF(no_locale, context_and_folder_begin, context_and_folder_end, TEST(messages),
             TEST(evidence), TEST(checkpoints), TEST(pictures))
