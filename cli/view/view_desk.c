/* W_O as a mixing desk: what each head of a layer writes to every feature of the stream, at every
 * token; the heads side by side before it and their sum after it. */
#include "view/view_desk.h"

#include "common/arena.h"
#include "common/commands.h"
#include "common/files.h"
#include "common/launched.h"
#include "common/text_model.h"

#include <multihead/attribution.h>
#include <multihead/component.h>
#include <multihead/json.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 32, DETAIL_BYTES = 160 };

/* A layer's desk. */
typedef struct desk {
    const view_options *options;
    text_model model;
    mha_tokens *tokens;
    attention_maps source; /* name, texts, tokens; no maps */
    mha_activations *kept;
    int64_t layer, H, T, E, D;
    const float *before;     /* [T,H D], the heads side by side; the activations' */
    float *after, *terms;    /* [T,E], [H,T,E] */
    float *out;              /* [E,H D], W_O */
    float *norms, *shares;   /* [H,T] */
    float *cosines, *weight; /* [H,H], [H,E] */
} desk;

/* ---- Measuring ------------------------------------------------------------------------------- */

static cli_exit take_memory(desk *d)
{
    const size_t row = (size_t)d->E * sizeof(float);
    CLI_TRY(arena_alloc(VIEW, d->T, row, &d->after));
    CLI_TRY(arena_alloc(VIEW, d->H * d->T, row, &d->terms));
    CLI_TRY(ARENA_ALLOC(VIEW, d->H * d->T, &d->norms));
    CLI_TRY(ARENA_ALLOC(VIEW, d->H * d->T, &d->shares));
    CLI_TRY(ARENA_ALLOC(VIEW, d->H * d->H, &d->cosines));
    CLI_TRY(ARENA_ALLOC(VIEW, d->E * d->H * d->D, &d->out));
    return arena_alloc(VIEW, d->H, row, &d->weight);
}

static mha_status measure(desk *d)
{
    mha_parameter p;
    const int64_t H = d->H, T = d->T, E = d->E;
    const mha_tensor terms = mha_tensor_contiguous(d->terms, MHA_F32, 4, (int64_t[]){1, H, T, E});
    const mha_tensor norms = mha_tensor_contiguous(d->norms, MHA_F32, 3, (int64_t[]){1, H, T});
    const mha_tensor shares = mha_tensor_contiguous(d->shares, MHA_F32, 3, (int64_t[]){1, H, T});
    const mha_tensor cosines = mha_tensor_contiguous(d->cosines, MHA_F32, 2, (int64_t[]){H, H});
    const mha_tensor after = mha_tensor_contiguous(d->after, MHA_F32, 3, (int64_t[]){1, T, E});
    const mha_tensor map = mha_tensor_contiguous(d->weight, MHA_F32, 2, (int64_t[]){H, E});
    const mha_head_writing out = {.struct_size = sizeof out,
                                  .written = &terms,
                                  .norms = &norms,
                                  .shares = &shares,
                                  .cosines = &cosines,
                                  .output = &after};
    MHA_TRY(mha_layer_write(d->model.context, d->model.net, d->kept, d->layer,
                            MHA_PART_SELF_ATTENTION, NULL, &out));
    MHA_TRY(mha_transformer_find(d->model.net, d->layer, "self_attn.o_proj.weight", &p));
    const mha_tensor weight = mha_tensor_contiguous(d->out, MHA_F32, 2, p.shape);
    MHA_TRY(mha_transformer_read(d->model.net, &p, 0, p.shape[0], d->out));
    return mha_head_weight_norms(&weight, &map);
}

static cli_exit check_layer(desk *d)
{
    const char *end;
    int64_t layer;
    if (d->model.encoder)
        return cli_fail(CLI_UNSUPPORTED, VIEW,
                        "--desk shows self-attention; give the encoder alone: %s/encoder",
                        d->options->model);
    if (!args_whole(d->options->desk, "", &layer, &end) || layer < 0 || layer >= d->model.layers)
        return cli_fail(CLI_USAGE, VIEW, "--desk %s: expected a layer, 0 to %" PRId64,
                        d->options->desk, d->model.layers - 1);
    d->layer = layer;
    return CLI_OK;
}

static cli_exit look(desk *d)
{
    mha_layer_view view = {.struct_size = sizeof view};
    CLI_TRY(
        cli_check(VIEW, mha_activations_layer(d->kept, d->layer, MHA_PART_SELF_ATTENTION, &view)));
    if (view.heads.ndim == 0)
        return cli_fail(CLI_BAD_INPUT, VIEW, "--desk %" PRId64 ": the layer has no heads left",
                        d->layer);
    d->H = view.heads.shape[1];
    d->D = view.heads.shape[3];
    d->T = view.heads.shape[2];
    d->E = view.stream.shape[2];
    d->before = view.concatenated.data;
    return CLI_OK;
}

static cli_exit run(desk *d)
{
    const text_limits limits = {.most = d->options->max_tokens, .truncate = d->options->truncate};
    CLI_TRY(view_take_texts(d->options, &d->source));
    CLI_TRY(view_open_model(d->options, &d->model));
    CLI_TRY(view_name_source(&d->model, &d->source));
    CLI_TRY(check_layer(d));
    CLI_TRY(text_model_encode(&d->model, &limits, d->source.text[0], d->source.text_bytes[0], NULL,
                              0, &d->tokens));
    CLI_TRY(text_model_keep(&d->model, d->tokens, &d->kept));
    CLI_TRY(look(d));
    CLI_TRY(take_memory(d));
    return cli_check(VIEW, measure(d));
}

/* ---- Pictures -------------------------------------------------------------------------------- */

static double mean_share(const desk *d, int64_t head)
{
    double sum = 0;
    for (int64_t t = 0; t < d->T; t++) sum += (double)d->shares[head * d->T + t];
    return sum / (double)d->T;
}

typedef struct desk_figure {
    mha_figure figure;
    mha_panel *panels;
    char *names, *details, *numbers;
    const char **rows, **cols;
    char subtitle[1200];
} desk_figure;

static void add_panel(desk_figure *f, const float *values, int64_t group, const char *detail)
{
    const int64_t at = f->figure.panel_count++;
    char *own = f->details + at * DETAIL_BYTES;
    snprintf(own, DETAIL_BYTES, "%s", detail);
    f->panels[at] = (mha_panel){
        .values = values, .name = f->names + at * NAME_BYTES, .detail = own, .group = group};
}

static void add_panels(const desk *d, desk_figure *f)
{
    char detail[DETAIL_BYTES];
    if (d->H * d->D == d->E) {
        snprintf(f->names, NAME_BYTES, "before");
        add_panel(f, d->before, 0, "The heads side by side, which W_O reads.");
    }
    snprintf(f->names + f->figure.panel_count * NAME_BYTES, NAME_BYTES, "after");
    add_panel(f, d->after, 0, "The sum of what all heads write, and the bias of W_O.");
    for (int64_t h = 0; h < d->H; h++) {
        snprintf(f->names + f->figure.panel_count * NAME_BYTES, NAME_BYTES, "L%" PRId64 "H%" PRId64,
                 d->layer, h);
        snprintf(detail, sizeof detail,
                 "What it writes to each feature; %.0f %% of the length of all heads' terms, mean "
                 "over tokens.",
                 100 * mean_share(d, h));
        add_panel(f, d->terms + h * d->T * d->E, 1, detail);
    }
}

static cli_exit make_figure(const desk *d, desk_figure *f)
{
    static const char *const groups[] = {"the layer", "heads"};
    *f = (desk_figure){0};
    CLI_TRY(ARENA_ALLOC(VIEW, d->H + 2, &f->panels));
    CLI_TRY(arena_alloc(VIEW, d->H + 2, NAME_BYTES, &f->names));
    CLI_TRY(arena_alloc(VIEW, d->H + 2, DETAIL_BYTES, &f->details));
    CLI_TRY(ARENA_ALLOC(VIEW, d->T, &f->rows));
    CLI_TRY(ARENA_ALLOC(VIEW, d->E, &f->cols));
    CLI_TRY(arena_alloc(VIEW, d->E, NAME_BYTES, &f->numbers));
    for (int64_t t = 0; t < d->T; t++) f->rows[t] = d->tokens->labels[t];
    for (int64_t e = 0; e < d->E; e++) {
        snprintf(f->numbers + e * NAME_BYTES, NAME_BYTES, "%" PRId64, e);
        f->cols[e] = f->numbers + e * NAME_BYTES;
    }
    f->figure =
        (mha_figure){.struct_size = sizeof f->figure,
                     .panel_size = sizeof(mha_panel),
                     .title = d->source.name,
                     .subtitle = f->subtitle,
                     .row_axis = "token",
                     .col_axis = "feature",
                     .rows = d->T,
                     .cols = d->E,
                     .row_labels = f->rows,
                     .col_labels = f->cols,
                     .panels = f->panels,
                     .group_names = groups,
                     .group_count = 2,
                     .columns = 3,
                     .cmap = d->options->cmap == MHA_CMAP_VIRIDIS ? MHA_CMAP_DIVERGING
                                                                  : (mha_cmap)d->options->cmap,
                     .scale = (mha_scale)(d->options->scale > 0 ? d->options->scale - 1 : 0),
                     .dark = d->options->paper == PAPER_DARK,
                     .print_values = MHA_VALUES_NEVER,
                     .value_name = "term"};
    view_join_texts(&d->source, 140, f->subtitle, sizeof f->subtitle);
    add_panels(d, f);
    return view_check_range(d->options, &f->figure.range, &f->figure.lo, &f->figure.hi);
}

static mha_status draw_html(const void *user, const mha_sink *sink)
{
    const desk_figure *f = user;
    mha_figure untitled = f->figure;
    const mha_fact facts[] = {{"model", f->figure.title}, {"shows", "what heads write"}};
    const mha_report report = {.struct_size = sizeof report,
                               .text = f->subtitle,
                               .facts = facts,
                               .fact_count = 2,
                               .producer = "multihead " CLI_VERSION};
    untitled.subtitle = NULL;
    return mha_render_html(&untitled, &report, sink);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_rows(mha_json *json, const char *name, const float *values, int64_t rows,
                     int64_t cols)
{
    mha_json_line(json, 3);
    mha_json_array(json, name);
    for (int64_t r = 0; r < rows; r++) mha_json_floats(json, NULL, values + r * cols, cols);
    mha_json_end(json);
}

static void put_head(mha_json *json, const desk *d, int64_t h)
{
    mha_json_line(json, 2);
    mha_json_object(json, NULL);
    mha_json_integer(json, "head", h);
    mha_json_format(json, "name", "L%" PRId64 "H%" PRId64, d->layer, h);
    mha_json_line(json, 3);
    mha_json_floats(json, "norms", d->norms + h * d->T, d->T);
    mha_json_line(json, 3);
    mha_json_floats(json, "shares", d->shares + h * d->T, d->T);
    mha_json_line(json, 3);
    mha_json_floats(json, "cosines", d->cosines + h * d->H, d->H);
    mha_json_line(json, 3);
    mha_json_floats(json, "weight_norms", d->weight + h * d->E, d->E);
    put_rows(json, "terms", d->terms + h * d->T * d->E, d->T, d->E);
    mha_json_end(json);
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    const desk *d = user;
    mha_json json = {.sink = sink};
    mha_json_object(&json, NULL);
    mha_json_text(&json, "format", "multihead-desk");
    mha_json_integer(&json, "version", 1);
    mha_json_object(&json, "source");
    mha_json_text(&json, "name", d->source.name);
    mha_json_end(&json);
    mha_json_integer(&json, "layer", d->layer);
    mha_json_array(&json, "tokens");
    for (int64_t t = 0; t < d->T; t++) mha_json_text(&json, NULL, d->tokens->labels[t]);
    mha_json_end(&json);
    put_rows(&json, "before", d->before, d->T, d->H * d->D);
    put_rows(&json, "after", d->after, d->T, d->E);
    mha_json_line(&json, 1);
    mha_json_array(&json, "heads");
    for (int64_t h = 0; h < d->H; h++) put_head(&json, d, h);
    mha_json_line(&json, 1);
    mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

/* ---- Out ------------------------------------------------------------------------------------- */

static cli_exit write_files(const desk *d)
{
    const view_options *o = d->options;
    desk_figure f;
    const mha_tensor terms =
        mha_tensor_contiguous(d->terms, MHA_F32, 3, (const int64_t[]){d->H, d->T, d->E});
    const struct {
        const char *path;
        files_draw_fn *draw;
        const void *user;
    } all[] = {{o->html, draw_html, &f},
               {o->svg, files_draw_svg, &f.figure},
               {o->png, files_draw_png, &f.figure},
               {o->pdf, files_draw_pdf, &f.figure},
               {o->json, draw_json, d}};
    CLI_TRY(make_figure(d, &f));
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (!all[i].path) continue;
        CLI_TRY(cli_check(VIEW, files_draw(all[i].path, all[i].draw, all[i].user)));
        if (strcmp(all[i].path, "-") != 0)
            cli_note(o->quiet, "wrote %s: %" PRId64 " heads of layer %" PRId64, all[i].path, d->H,
                     d->layer);
    }
    if (!o->npy) return CLI_OK;
    CLI_TRY(cli_check(VIEW, files_write_npy(o->npy, &terms)));
    if (strcmp(o->npy, "-") != 0)
        cli_note(o->quiet, "wrote %s: %" PRId64 " heads, %" PRId64 " tokens, %" PRId64 " features",
                 o->npy, d->H, d->T, d->E);
    return CLI_OK;
}

/* The head that writes most alike; -1: there is no other. */
static int64_t nearest(const desk *d, int64_t head)
{
    int64_t best = -1;
    for (int64_t g = 0; g < d->H; g++)
        if (g != head && (best < 0 || d->cosines[head * d->H + g] > d->cosines[head * d->H + best]))
            best = g;
    return best;
}

/* 33 columns, and 18 more where there is room for the token. */
static void print_table(const desk *d, int64_t width)
{
    const bool wide = width >= 60;
    cli_print("%-7s %7s %7s %9s%s\n", "head", "norm", "share", "nearest",
              wide ? "  loudest at" : "");
    for (int64_t h = 0; h < d->H; h++) {
        double length = 0;
        int64_t loud = 0, near = nearest(d, h);
        char name[32], other[48] = "-";
        for (int64_t t = 0; t < d->T; t++) {
            length += (double)d->norms[h * d->T + t] / (double)d->T;
            if (d->shares[h * d->T + t] > d->shares[h * d->T + loud]) loud = t;
        }
        snprintf(name, sizeof name, "L%" PRId64 "H%" PRId64, d->layer, h);
        if (near >= 0)
            snprintf(other, sizeof other, "H%" PRId64 " %.2f", near,
                     (double)d->cosines[h * d->H + near]);
        cli_print("%-7s %7.3f %7.3f %9s", name, length, mean_share(d, h), other);
        if (wide)
            cli_print("  %.30s (%.2f)", d->tokens->labels[loud],
                      (double)d->shares[h * d->T + loud]);
        cli_print("\n");
    }
}

static void print_desk(const desk *d)
{
    char line[1400], text[1200];
    const int64_t width = screen_of(&d->options->screen).columns;
    snprintf(line, sizeof line, "%s: what the heads of layer %" PRId64 " write", d->source.name,
             d->layer);
    cli_print_wrapped("", line, width);
    if (view_join_texts(&d->source, 140, text, sizeof text)) cli_print_wrapped("", text, width);
    cli_print_wrapped(
        "",
        "length: of what a head adds to the stream, ||W_O z||, mean over tokens. "
        "share: of the sum of all heads' lengths. nearest: the head whose terms point "
        "the same way, and their mean cosine",
        width);
    cli_print("\n");
    print_table(d, width);
}

cli_exit view_desk(const view_options *options)
{
    desk d = {.options = options};
    CLI_TRY(run(&d));
    ranks_release();
    if (!ranks_first()) return CLI_OK;
    if (view_has_files(options)) CLI_TRY(write_files(&d));
    if (options->terminal || !view_has_files(options)) print_desk(&d);
    CLI_TRY(cli_finish_stdout(VIEW, CLI_OK));
    if (!view_has_files(options))
        cli_note(options->quiet, "next: add -o desk.html for every term of every head");
    return CLI_OK;
}
