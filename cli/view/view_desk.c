/* view --desk: the output of each head of a layer, as files and a table. */
#include "view/view_desk.h"

#include "common/arena.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/table.h"
#include "common/text_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

typedef struct desk {
    const view_options *options;
    mha_maps source; /* name, texts, tokens; no maps */
    mha_desk of;
} desk;

/* ---- Measuring ------------------------------------------------------------------------------- */

static cli_exit check_layer(const view_options *options, const text_model *model, int64_t *layer)
{
    const char *end;
    if (model->encoder)
        return cli_fail(CLI_UNSUPPORTED,
                        "--desk shows self-attention; give the encoder alone: %s/encoder",
                        options->model);
    if (args_whole(options->desk, "", layer, &end) && *layer >= 0 && *layer < model->layers)
        return CLI_OK;
    return cli_fail(CLI_USAGE, "--desk %s: expected a layer, 0 to %" PRId64, options->desk,
                    model->layers - 1);
}

ARENA_RELEASE(forget_desk, mha_desk_free)
ARENA_RELEASE(forget_show, mha_show_free)

static cli_exit measure(desk *d)
{
    const view_options *o = d->options;
    const text_limits limits = {.most = o->max_tokens, .truncate = o->truncate};
    text_model model;
    mha_tokens *tokens;
    int64_t layer;
    CLI_TRY(view_take_texts(o, &d->source));
    CLI_TRY(view_open_model(o, &model));
    CLI_TRY(view_name_source(&model, &d->source));
    CLI_TRY(check_layer(o, &model, &layer));
    CLI_TRY(text_model_encode(&model, &limits, d->source.text[0], d->source.text_bytes[0], NULL, 0,
                              &tokens));
    d->source.rows = *tokens;
    d->of.struct_size = sizeof d->of;
    CLI_TRY(arena_keep(&d->of, forget_desk));
    const mha_status status = mha_desk_measure(model.context, model.net, tokens, layer, &d->of);
    if (status == MHA_ERR_MODEL)
        return cli_fail(CLI_BAD_INPUT, "--desk %" PRId64 ": %s", layer, mha_error_detail());
    return cli_check(status);
}

/* ---- Output ---------------------------------------------------------------------------------- */

static mha_status draw_html(const void *user, const mha_sink *sink)
{
    const mha_show *show = user;
    return mha_render_html(&show->page, &show->report, sink);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const desk *d = user;
    return mha_desk_write_json(&d->of, &d->source, sink);
}

static cli_exit make_show(const desk *d, mha_show **show)
{
    const view_options *o = d->options;
    mha_show_options how = {.struct_size = sizeof how,
                            .flags = (o->paper == PAPER_DARK ? MHA_SHOW_DARK : 0) |
                                     (o->scale > 0 ? MHA_SHOW_SCALE : 0),
                            .cmap = (mha_cmap)o->cmap,
                            .scale = (mha_scale)(o->scale > 0 ? o->scale - 1 : 0)};
    CLI_TRY(view_check_range(o, &how.range, &how.lo, &how.hi));
    CLI_TRY(ARENA_ALLOC(1, show));
    CLI_TRY(cli_check(mha_show_desk(&d->of, &d->source, &how, *show)));
    return arena_keep(*show, forget_show);
}

static cli_exit write_files(const desk *d)
{
    const view_options *o = d->options;
    mha_show *show;
    const mha_tensor terms = mha_tensor_contiguous(
        d->of.terms, MHA_F32, 3, (const int64_t[]){d->of.heads, d->of.tokens, d->of.features});
    CLI_TRY(make_show(d, &show));
    const struct {
        const char *path;
        files_draw_fn *draw;
        const void *user;
    } all[] = {{o->html, draw_html, show},
               {o->svg, files_draw_svg, &show->figure},
               {o->png, files_draw_png, &show->figure},
               {o->pdf, files_draw_pdf, &show->figure},
               {o->json, draw_json, d}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].path) continue;
        CLI_TRY(cli_check(files_draw(all[i].path, all[i].draw, all[i].user)));
        if (strcmp(all[i].path, "-") != 0)
            cli_note(o->quiet, "wrote %s: %" PRId64 " heads of layer %" PRId64, all[i].path,
                     d->of.heads, d->of.layer);
    }
    if (!o->npy) return CLI_OK;
    CLI_TRY(cli_check(files_write_npy(o->npy, &terms)));
    if (strcmp(o->npy, "-") != 0)
        cli_note(o->quiet, "wrote %s: %" PRId64 " heads, %" PRId64 " tokens, %" PRId64 " features",
                 o->npy, d->of.heads, d->of.tokens, d->of.features);
    return CLI_OK;
}

/* The head with the most similar output; -1: no other head. */
static int64_t nearest(const mha_desk *d, int64_t head)
{
    const float *cosines = d->cosines + head * d->heads;
    int64_t best = -1;
    for (int64_t g = 0; g < d->heads; g++)
        if (g != head && (best < 0 || cosines[g] > cosines[best])) best = g;
    return best;
}

/* The table has 33 columns, and one more for the token if it fits. */
static void print_table(const desk *of, int64_t width)
{
    const mha_desk *d = &of->of;
    const bool wide = width >= 60;
    const table_column columns[] = {{"head", -7, 0, TABLE_PLAIN, {0}},
                                    {"norm", 8, 3, TABLE_PLAIN, {0}},
                                    {"share", 8, 3, TABLE_PLAIN, {0}},
                                    {"nearest", 10, 0, TABLE_PLAIN, {0}},
                                    {wide ? "  loudest at" : NULL, 0, 0, TABLE_PLAIN, {0}}};
    table t = {.columns = columns, .limit = wide ? width : 0, .ascii = of->options->screen.ascii};
    table_head(&t, sizeof columns / sizeof *columns);
    for (int64_t h = 0; h < d->heads; h++) {
        double length = 0;
        int64_t loud = 0, near = nearest(d, h);
        const float *norms = d->norms + h * d->tokens, *shares = d->shares + h * d->tokens;
        for (int64_t i = 0; i < d->tokens; i++) {
            length += (double)norms[i] / (double)d->tokens;
            if (shares[i] > shares[loud]) loud = i;
        }
        table_text(&t, "L%" PRId64 "H%" PRId64, d->layer, h);
        table_number(&t, length);
        table_number(&t, mha_desk_share(d, h));
        if (near < 0)
            table_text(&t, "-");
        else
            table_text(&t, "H%" PRId64 " %.2f", near, (double)d->cosines[h * d->heads + near]);
        if (wide) table_text(&t, "  %s (%.2f)", of->source.rows.labels[loud], (double)shares[loud]);
        table_end(&t);
    }
}

static void print_desk(const desk *d)
{
    char line[1400], text[1200];
    const int64_t width = screen_of(&d->options->screen).columns;
    snprintf(line, sizeof line, "%s: what the heads of layer %" PRId64 " write", d->source.name,
             d->of.layer);
    cli_print_wrapped("", line, width);
    if (view_join_texts(&d->source, 140, text, sizeof text)) cli_print_wrapped("", text, width);
    cli_print_wrapped(
        "",
        "length: mean over tokens of ||W_O z||, where W_O z is a head's addition to the "
        "stream. share: length over the sum of all heads' lengths. nearest: the head with the most "
        "similar terms, and their mean cosine",
        width);
    cli_print("\n");
    print_table(d, width);
}

cli_exit view_desk(const view_options *options)
{
    desk *d;
    CLI_TRY(ARENA_ALLOC(1, &d));
    d->options = options;
    CLI_TRY(measure(d));
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    if (view_has_files(options)) CLI_TRY(write_files(d));
    if (options->terminal || !view_has_files(options)) print_desk(d);
    CLI_TRY(cli_finish_stdout(CLI_OK));
    if (!view_has_files(options))
        cli_note(options->quiet, "next: add -o desk.html for every term of every head");
    return CLI_OK;
}
