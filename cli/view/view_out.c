/* Where the maps go: files, stdout, the terminal. */
#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "view/view.h"
#include "view/view_ask.h"
#include "view/view_roles.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- .npy ------------------------------------------------------------------------------------ */

/* The heads that are on, as one array [layers, heads, T, S]. */
static cli_exit collect(const char *command, const attention_maps *maps, const maps_picks *picks,
                        mha_tensor *tensor)
{
    int64_t layers = 0, size = maps->rows.count * maps->cols.count;
    for (int64_t l = 0; l < picks->layers; l++) layers += maps_picks_in_layer(picks, l) > 0;
    float *to;
    CLI_TRY(ARENA_ALLOC(command, picks->count * size, &to));
    int64_t shape[] = {layers, picks->count / layers, maps->rows.count, maps->cols.count};
    *tensor = mha_tensor_contiguous(to, MHA_F32, 4, shape);
    for (int64_t i = 0; i < picks->layers * picks->heads; i++) {
        if (!picks->on[i]) continue;
        const float *map = maps->layer[i / picks->heads] + i % picks->heads * size;
        memcpy(to, map, (size_t)size * sizeof *map);
        to += size;
    }
    return CLI_OK;
}

static cli_exit write_npy(const char *command, const attention_maps *maps, const maps_picks *picks,
                          const char *path)
{
    mha_tensor tensor;
    CLI_TRY(collect(command, maps, picks, &tensor));
    return cli_check(command, files_write_npy(path, &tensor));
}

/* ---- Pictures and JSON ----------------------------------------------------------------------- */

/* What all outputs share. */
typedef struct output_job {
    const view_options *options;
    const attention_maps *maps;
    const maps_picks *picks;
    const view_figure *made; /* NULL for data */
} output_job;

static const char guide[] =
    "Each square is a head. A row is a token that looks, a column one that it looks at; the "
    "brighter a cell, the more of the row's attention goes there.";
static const char guide_contrast[] = "Each square is a head. A row is a token that looks, a column "
                                     "one that it looks at; red is more "
                                     "attention in the first text than in the second, blue less.";

mha_status view_make_report(const view_options *options, const attention_maps *maps,
                            const maps_picks *picks, const view_figure *made, view_report_fn *take,
                            void *user)
{
    char size[64], tokens[64], text[1 << 14];
    mha_figure untitled = made->figure; /* the report has the text itself, and more of it */
    untitled.subtitle = NULL;
    snprintf(size, sizeof size, "%" PRId64 " x %" PRId64, maps->layers, maps->heads);
    const int64_t count = maps->cell > 1 ? maps->tokens.count : maps->rows.count;
    snprintf(tokens, sizeof tokens, "%" PRId64, count);
    mha_fact facts[] = {{"model", maps->name},
                        {"kind", maps->architecture ? maps->architecture : "array"},
                        {"layers x heads", size},
                        {"tokens", tokens}};
    mha_report report = {.struct_size = sizeof report,
                         .text = view_join_texts(maps, 2000, text, sizeof text) ? text : NULL,
                         .facts = facts,
                         .fact_count = sizeof facts / sizeof *facts,
                         .producer = "multihead " CLI_VERSION,
                         .same_labels = maps->rows.items == maps->cols.items,
                         .special = made->special,
                         .special_count = made->special_count,
                         .first_panel = made->first_panel,
                         .first_cell = made->first_row >= 0 && made->first_col >= 0,
                         .first_row = made->first_row,
                         .first_col = made->first_col,
                         .second_row = made->second_row,
                         .second_col = made->second_col,
                         .guide = maps->contrast ? guide_contrast : guide,
                         .twin_name = "what arrives",
                         .twin_value = "length"};
    if (maps->cell > 1) {
        report.cell_tokens = maps->cell;
        report.tokens = made->tokens;
        report.token_count = maps->tokens.count;
    }
    if (options->extra) {
        const view_extra *extra = options->extra;
        report.curve_size = sizeof(mha_curve);
        report.curves = extra->curves;
        report.curve_count = extra->curve_count;
        report.frames = extra->frames;
        report.frame_count = extra->frame_count;
        report.columns = extra->columns;
        report.column_count = extra->column_count;
    }
    mha_column columns[ASK_MEASURES], scores[VIEW_ROLES_MEASURES];
    if (!report.columns) {
        report.column_count = view_roles_columns(options->roles, picks, scores);
        report.columns = scores;
    }
    if (options->ask) {
        if (view_ask_columns(options->ask, picks, columns) != CLI_OK)
            return MHA_ERR_CALLBACK; /* the error is already reported */
        report.columns = columns;
        report.column_count = ASK_MEASURES;
    }
    return take(user, &untitled, &report);
}

static mha_status write_html(void *user, const mha_figure *figure, const mha_report *report)
{
    return mha_render_html(figure, report, user);
}

static mha_status draw_html(const void *user, const mha_sink *sink)
{
    const output_job *job = user;
    mha_sink to = *sink;
    return view_make_report(job->options, job->maps, job->picks, job->made, write_html, &to);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const output_job *job = user;
    return view_write_json(job->maps, job->picks, sink);
}

/* The one list of outputs. npy has no draw: it is no stream. */
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

cli_exit view_check_picks(const view_options *options, const maps_picks *picks)
{
    if (!options->npy || maps_picks_rectangular(picks)) return CLI_OK;
    return cli_fail(CLI_USAGE, options->command,
                    "--npy: one array needs the same heads of every layer; "
                    "choose with --layer and plain head numbers, or use --json");
}

/* -o writes HTML whatever the name: another extension is a mistake. */
static cli_exit check_name(const char *path)
{
    const char *const names[] = {".svg", ".png", ".pdf", ".json", ".npy"};
    size_t length = path ? strlen(path) : 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        size_t bytes = strlen(names[i]);
        if (length > bytes && !strcmp(path + length - bytes, names[i]))
            return cli_fail(CLI_USAGE, VIEW, "-o %s: -o writes an HTML report; use --%s %s", path,
                            names[i] + 1, path);
    }
    return CLI_OK;
}

cli_exit view_check_outputs(const view_options *options)
{
    CLI_TRY(check_name(options->html));
    const char *on_stdout = options->terminal ? "--terminal" : NULL;
    for (int i = 0; i < OUTPUT_COUNT; i++) {
        const char *path = path_of(options, i);
        if (!path) continue;
        for (int j = 0; j < i; j++)
            if (path_of(options, j) && files_same(path, path_of(options, j)))
                return cli_fail(CLI_USAGE, options->command, "%s and %s both write '%s'",
                                outputs[j].option, outputs[i].option, path);
        if (strcmp(path, "-") != 0) {
            CLI_TRY(cli_check(options->command, files_check_place(path)));
            continue;
        }
        if (on_stdout)
            return cli_fail(CLI_USAGE, options->command,
                            "%s and %s both write to stdout; one of them needs a "
                            "file",
                            on_stdout, outputs[i].option);
        if (outputs[i].binary && isatty(STDOUT_FILENO))
            return cli_fail(CLI_USAGE, options->command,
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
    view_figure figure = {0};
    if (!outputs[i].draw) return write_npy(job->options->command, job->maps, job->picks, path);
    if (outputs[i].kind != DATA)
        CLI_TRY(view_figure_make(job->options, job->maps, job->picks, NULL, &figure));
    output_job drawn = *job;
    drawn.made = &figure;
    const void *what = outputs[i].kind == PICTURE ? (const void *)&figure.figure : &drawn;
    return cli_check(job->options->command, folder
                                                ? files_draw_in(folder, path, outputs[i].draw, what)
                                                : files_draw(path, outputs[i].draw, what));
}

static cli_exit write_one(const output_job *job, int i)
{
    const char *path = path_of(job->options, i), *folder = job->options->folder;
    const size_t mark = arena_mark();
    CLI_TRY(draw(job, i));
    arena_release(mark);
    const attention_maps *maps = job->maps;
    const bool pooled = maps->cell > 1;
    char blocks[64] = "";
    if (pooled)
        snprintf(blocks, sizeof blocks, ", in blocks of %" PRId64 " x %" PRId64, maps->cell,
                 maps->cell);
    if (strcmp(path, "-") != 0)
        cli_note(job->options->quiet,
                 "wrote %s%s%s: %" PRId64 " %s, %" PRId64 " x %" PRId64 " tokens%s",
                 folder ? folder : "", folder ? "/" : "", path, job->picks->count,
                 job->picks->count == 1 ? "head" : "heads",
                 pooled ? maps->tokens.count : maps->rows.count,
                 pooled ? maps->tokens.count : maps->cols.count, blocks);
    return CLI_OK;
}

cli_exit view_write_files(const view_options *options, const attention_maps *maps,
                          const maps_picks *picks)
{
    output_job job = {.options = options, .maps = maps, .picks = picks};
    CLI_TRY(view_check_picks(options, picks));
    for (int i = 0; i < OUTPUT_COUNT; i++)
        if (path_of(options, i)) CLI_TRY(write_one(&job, i));
    return CLI_OK;
}

/* ---- The terminal ---------------------------------------------------------------------------- */

static cli_exit print_picks(const view_options *options, const attention_maps *maps,
                            const maps_picks *picks, const char *remark,
                            const mha_terminal *terminal)
{
    view_figure figure;
    CLI_TRY(view_figure_make(options, maps, picks, remark, &figure));
    figure.figure.dark = screen_dark(options->paper);
    return cli_check(options->command,
                     mha_render_terminal(&figure.figure, terminal, &files_stdout));
}

cli_exit view_print(const view_options *options, const attention_maps *maps,
                    const maps_picks *picks)
{
    mha_terminal terminal = screen_of(&options->screen);
    if (options->layers.count > 0 || options->heads.count > 0)
        return print_picks(options, maps, picks, NULL, &terminal);
    maps_picks few;
    view_figure all;
    char remark[400], change[300] = "";
    CLI_TRY(view_figure_make(options, maps, picks, NULL, &all));
    CLI_TRY(view_few(&all, picks, terminal.columns, &few));
    const mha_link *most = &all.links[all.first_panel];
    if (maps->contrast && most->row >= 0)
        snprintf(change, sizeof change, "; most: %s, %+.2f from %.40s to %.80s",
                 all.figure.panels[all.first_panel].name, most->value,
                 all.figure.row_labels[most->row], all.figure.col_labels[most->col]);
    snprintf(remark, sizeof remark, "%" PRId64 " of %" PRId64 " heads: those that %s%s%s",
             few.count, picks->count,
             maps->contrast ? "change most" : "have the strongest link between two words",
             maps->layers > 1 ? ", one a layer" : "", change);
    return print_picks(options, maps, &few, few.count < picks->count ? remark : NULL, &terminal);
}
