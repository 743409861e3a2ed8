/* The outputs of maps: files, stdout, the terminal. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "view/view.h"
#include "view/view_ask.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- .npy ------------------------------------------------------------------------------------ */

/* Collect the selected heads in one array [layers, heads, T, S]. */
static cli_exit collect(const mha_maps *maps, mha_tensor *tensor)
{
    const int64_t size = maps->rows.count * maps->cols.count, count = maps_count(maps);
    int64_t layers = 0;
    for (int64_t l = 0; l < maps->layers; l++) layers += mha_maps_count(maps, l) > 0;
    float *to;
    CLI_TRY(ARENA_ALLOC(count * size, &to));
    const int64_t shape[] = {layers, count / layers, maps->rows.count, maps->cols.count};
    *tensor = mha_tensor_contiguous(to, MHA_F32, 4, shape);
    for (int64_t i = 0; i < maps->layers * maps->heads; i++) {
        if (!maps->on[i]) continue;
        const float *map = maps->layer[i / maps->heads] + i % maps->heads * size;
        memcpy(to, map, (size_t)size * sizeof *map);
        to += size;
    }
    return CLI_OK;
}

static cli_exit write_npy(const mha_maps *maps, const char *path)
{
    mha_tensor tensor;
    CLI_TRY(collect(maps, &tensor));
    return cli_check(files_write_npy(path, &tensor));
}

/* ---- Pictures and JSON ----------------------------------------------------------------------- */

/* Data of all outputs. */
typedef struct output_job {
    const view_options *options;
    const mha_maps *maps;
    const mha_show *show; /* NULL for data */
    const mha_picture_show *image;
} output_job;

/* Draw a report with its texts next to the maps. */
static mha_status draw_html(const void *user, const mha_sink *sink)
{
    const output_job *job = user;
    if (job->image) return mha_render_picture_page(&job->image->page, sink);
    const view_extra *extra = job->options->extra;
    mha_report report = job->show->report;
    mha_column columns[MHA_ANSWER_MEASURES];
    if (extra) {
        report.curve_size = sizeof(mha_curve);
        report.curves = extra->curves;
        report.curve_count = extra->curve_count;
        report.frames = extra->frames;
        report.frame_count = extra->frame_count;
        if (extra->columns) {
            report.columns = extra->columns;
            report.column_count = extra->column_count;
        }
    }
    if (job->options->ask) {
        if (view_ask_columns(job->options->ask, job->maps, columns) != CLI_OK)
            return MHA_ERR_CALLBACK; /* the error is already reported */
        report.columns = columns;
        report.column_count = MHA_ANSWER_MEASURES;
    }
    return mha_render_html(&job->show->page, &report, sink);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const output_job *job = user;
    return mha_maps_write_json(job->maps, sink);
}

/* All outputs. npy has no draw function, because it is not written to a stream. */
static const struct {
    const char *option;
    size_t path; /* in view_options */
    files_draw_fn *draw;
    enum { DATA, PAGE, PICTURE } kind;
    bool binary;
} outputs[] = {
    {"--output", offsetof(view_options, html), draw_html, PAGE, false},
    {"--svg", offsetof(view_options, svg), files_draw_svg, PICTURE, false},
    {"--png", offsetof(view_options, png), files_draw_png, PICTURE, true},
    {"--pdf", offsetof(view_options, pdf), files_draw_pdf, PICTURE, true},
    {"--json", offsetof(view_options, json), draw_json, DATA, false},
    {"--npy", offsetof(view_options, npy), NULL, DATA, true},
};

enum { OUTPUT_COUNT = sizeof outputs / sizeof *outputs };

static const char *path_of(const view_options *options, int i)
{
    return *(const char *const *)(const void *)((const char *)options + outputs[i].path);
}

bool view_has_files(const view_options *options)
{
    for (int i = 0; i < OUTPUT_COUNT; i++)
        if (path_of(options, i)) return true;
    return false;
}

cli_exit view_check_picks(const view_options *options, const mha_maps *maps)
{
    if (!options->npy || maps_rectangular(maps)) return CLI_OK;
    return cli_fail(CLI_USAGE, "--npy: one array needs the same heads of every layer; "
                               "choose with --layer and plain head numbers, or use --json");
}

cli_exit view_check_outputs(const view_options *options)
{
    const char *on_stdout = options->terminal  ? "--terminal"
                            : options->experts ? "--experts"
                                               : NULL;
    for (int i = 0; i < OUTPUT_COUNT; i++) {
        const char *path = path_of(options, i);
        if (!path) continue;
        for (int j = 0; j < i; j++)
            if (path_of(options, j) && files_same(path, path_of(options, j)))
                return cli_fail(CLI_USAGE, "%s and %s both write '%s'", outputs[j].option,
                                outputs[i].option, path);
        if (strcmp(path, "-") != 0) {
            CLI_TRY(cli_check(files_check_place(path)));
            continue;
        }
        if (on_stdout)
            return cli_fail(CLI_USAGE,
                            "%s and %s both write to stdout; one of them needs a "
                            "file",
                            on_stdout, outputs[i].option);
        if (outputs[i].binary && isatty(STDOUT_FILENO))
            return cli_fail(CLI_USAGE,
                            "%s -: stdout is a terminal; name a file, or use a "
                            "pipe",
                            outputs[i].option);
        on_stdout = outputs[i].option;
    }
    return CLI_OK;
}

static cli_exit draw(const output_job *job, int i)
{
    const char *path = path_of(job->options, i), *folder = job->options->folder;
    mha_show *show = NULL;
    if (!outputs[i].draw) return write_npy(job->maps, path);
    if (outputs[i].kind != DATA && !job->image)
        CLI_TRY(view_show(job->options, job->maps, NULL, &show));
    output_job drawn = *job;
    drawn.show = show;
    const mha_figure *figure = job->image ? &job->image->figure : show ? &show->figure : NULL;
    const void *what = outputs[i].kind == PICTURE ? (const void *)figure : &drawn;
    return cli_check(folder ? files_draw_in(folder, path, outputs[i].draw, what)
                            : files_draw(path, outputs[i].draw, what));
}

static cli_exit write_one(const output_job *job, int i)
{
    const char *path = path_of(job->options, i), *folder = job->options->folder;
    const size_t mark = arena_mark();
    CLI_TRY(draw(job, i));
    arena_release(mark);
    const mha_maps *maps = job->maps;
    const bool pooled = maps->cell > 1;
    const int64_t count = maps_count(maps);
    char blocks[64] = "";
    if (pooled)
        snprintf(blocks, sizeof blocks, ", in blocks of %" PRId64 " x %" PRId64, maps->cell,
                 maps->cell);
    if (strcmp(path, "-") != 0)
        cli_note(job->options->quiet,
                 "wrote %s%s%s: %" PRId64 " %s, %" PRId64 " x %" PRId64 " tokens%s",
                 folder ? folder : "", folder ? "/" : "", path, count,
                 count == 1 ? "head" : "heads", pooled ? maps->tokens.count : maps->rows.count,
                 pooled ? maps->tokens.count : maps->cols.count, blocks);
    return CLI_OK;
}

cli_exit view_write_files(const view_options *options, const mha_maps *maps)
{
    return view_write_image(options, maps, NULL);
}

cli_exit view_write_image(const view_options *options, const mha_maps *maps,
                          const mha_picture_show *show)
{
    const output_job job = {.options = options, .maps = maps, .image = show};
    CLI_TRY(view_check_picks(options, maps));
    for (int i = 0; i < OUTPUT_COUNT; i++)
        if (path_of(options, i)) CLI_TRY(write_one(&job, i));
    return CLI_OK;
}

/* ---- The terminal ---------------------------------------------------------------------------- */

static cli_exit print_picks(const view_options *options, const mha_maps *maps, const char *remark,
                            const mha_terminal *terminal)
{
    mha_show *show;
    CLI_TRY(view_show(options, maps, remark, &show));
    show->figure.dark = screen_dark(options->paper);
    return cli_check(mha_render_terminal(&show->figure, terminal, &files_stdout));
}

cli_exit view_print(const view_options *options, const mha_maps *maps)
{
    mha_terminal terminal = screen_of(&options->screen);
    if (options->layers.count > 0 || options->heads.count > 0)
        return print_picks(options, maps, NULL, &terminal);
    mha_maps few;
    mha_show *all;
    char remark[400], change[300] = "";
    CLI_TRY(view_show(options, maps, NULL, &all));
    CLI_TRY(view_few(all, maps, terminal.columns, &few));
    const bool contrast = maps->flags & MHA_MAPS_CONTRAST;
    const int64_t first = all->report.first_panel, shown = maps_count(&few),
                  count = maps_count(maps);
    const mha_link *most = &all->links[first];
    if (contrast && most->row >= 0)
        snprintf(change, sizeof change, "; most: %s, %+.2f from %.40s to %.80s",
                 all->figure.panels[first].name, most->value, all->figure.row_labels[most->row],
                 all->figure.col_labels[most->col]);
    snprintf(remark, sizeof remark, "%" PRId64 " of %" PRId64 " heads: those that %s%s%s", shown,
             count, contrast ? "change most" : "have the strongest link between two words",
             maps->layers > 1 ? ", one per layer" : "", change);
    return print_picks(options, &few, shown < count ? remark : NULL, &terminal);
}
