/* Maps from a run: all heads small, one head large, and the report of what is seen. */
#include "serve/serve_model.h"

#include "common/arena.h"
#include "common/commands.h"
#include "common/json_out.h"
#include "view/view.h"
#include "view/view_pool.h"

#include <multihead/component.h>
#include <multihead/heads.h>
#include <multihead/render_live.h>

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* Small maps are as fine as 270 of 60 x 60 cells; a large one as a screen has points, 4 MB. */
static const double SMALL_CELLS = 1e6;
/* A reply to a key press: 8 bits a cell where that is more than half a megabyte in 32. */
enum { LARGE_SIDE = 1024, LIVE_BYTES = 500000, WITH_REPLY_SIDE = 160 };

int64_t serve_map_tokens(int64_t tokens)
{
    return (tokens + LARGE_SIDE - 1) / LARGE_SIDE;
}

static int64_t small_cell(int64_t tokens, int64_t heads)
{
    int64_t cell = 1;
    for (double side;; cell++) {
        side = ceil((double)tokens / (double)cell);
        if ((double)heads * side * side <= SMALL_CELLS) break;
    }
    return cell;
}

/* ---- from queries and keys to maps ----------------------------------------------------------- */

typedef struct pooling {
    mha_context *context;
    attention_maps *maps; /* all heads; NULL: one */
    int64_t cell, head;   /* head: that one */
    float *map;           /* of one head, [side,side] */
} pooling;

static mha_status pool_rows(void *user, int64_t layer, int64_t row, const mha_tensor *p)
{
    const pooling *x = user;
    mha_tensor from = *p;
    if (!x->maps) {
        from.shape[0] = 1;
        from.data = (float *)p->data + x->head * p->stride[0];
    }
    const int64_t side = (p->shape[2] + x->cell - 1) / x->cell;
    const int64_t shape[] = {from.shape[0], side, side};
    const mha_tensor to =
        mha_tensor_contiguous(x->maps ? x->maps->layer[layer] : x->map, MHA_F32, 3, shape);
    return mha_attention_pool_rows(x->context, &from, row, x->cell, NULL, &to);
}

/* All maps of a text with cells of so many tokens. */
static cli_exit make_maps(serve_model *serve, const serve_state *state, const serve_run *run,
                          int64_t cell, attention_maps *maps, maps_picks *picks)
{
    const text_model *model = &serve->model;
    const args_texts none = {0};
    char *text;
    CLI_TRY(arena_text(SERVE, state->text, state->text_bytes, &text));
    *maps = (attention_maps){.text = {text},
                             .text_bytes = {state->text_bytes},
                             .causal = model->causal,
                             .rows = run->tokens.list,
                             .cols = run->tokens.list};
    CLI_TRY(view_name_source(model, maps));
    CLI_TRY(ARENA_ALLOC(SERVE, maps->layers, &maps->layer));
    CLI_TRY(text_model_pick(model, &none, &none, picks));
    if (cell > 1) CLI_TRY(view_pool_blocks(cell, maps));
    for (int64_t l = 0; l < maps->layers; l++)
        if (maps_picks_in_layer(picks, l) > 0) CLI_TRY(maps_add_layer(SERVE, maps, l));
    pooling x = {.context = model->context, .maps = maps, .cell = cell};
    return cli_check(SERVE, mha_trials_run(serve->trials, &run->run, -1, pool_rows, &x, NULL));
}

/* ---- the overview ---------------------------------------------------------------------------- */

typedef struct live_job {
    const mha_sink *sink;
    int64_t map_tokens, least_bytes;
} live_job;

static mha_status write_live(void *user, const mha_figure *figure, const mha_report *report)
{
    const live_job *job = user;
    mha_report small = *report;
    small.most_bytes = LIVE_BYTES; /* 8 bits where all do not fit: never fewer cells */
    if (small.most_bytes < job->least_bytes) small.most_bytes = job->least_bytes;
    small.text = NULL;
    return mha_render_live_maps(figure, &small, job->map_tokens, job->sink);
}

cli_exit serve_write_maps(serve_model *serve, const serve_state *state, const serve_run *run,
                          const mha_sink *sink)
{
    view_options options = {.command = SERVE};
    const int64_t count = run->run.count;
    attention_maps maps;
    maps_picks picks;
    view_figure figure;
    live_job job = {.sink = sink, .map_tokens = serve_map_tokens(count)};
    const int64_t heads = serve->model.layers * serve->model.heads;
    int64_t cell = small_cell(count, heads);
    if (cell < job.map_tokens) cell = job.map_tokens;
    const int64_t side = (count + cell - 1) / cell;
    /* Texts around the maps: some 200 bytes a head, 30 a token, and the page's colours. */
    job.least_bytes = heads * side * side * 4 / 3 + 300 * heads + 60 * count + 200000;
    CLI_TRY(make_maps(serve, state, run, cell, &maps, &picks));
    options.first_panel = -1;
    CLI_TRY(view_figure_make(&options, &maps, &picks, NULL, &figure));
    return cli_check(SERVE, view_make_report(&options, &maps, &picks, &figure, write_live, &job));
}

/* ---- one map --------------------------------------------------------------------------------- */

/* As the page's data has them: what a causal model cannot see is a NaN of its own. */
static void mask_future(float *map, int64_t side)
{
    const uint32_t masked = UINT32_C(0x7FC0A5A5);
    for (int64_t r = 0; r < side; r++)
        for (int64_t c = r + 1; c < side; c++) memcpy(&map[r * side + c], &masked, sizeof masked);
}

/* The map of state->head, [side,side] in the arena. */
static cli_exit make_map(serve_model *serve, const serve_state *state, const serve_run *run,
                         float **map, int64_t *side)
{
    const mha_transformer_desc *d = &serve->model.desc;
    const mha_trial_head *head = &state->head;
    if (head->layer < 0 || head->layer >= d->num_layers ||
        head->head >= (d->layer_heads ? d->layer_heads[head->layer] : d->num_heads))
        return cli_fail(CLI_BAD_INPUT, SERVE, "head: the model has no such head");
    pooling x = {.context = serve->model.context,
                 .cell = serve_map_tokens(run->run.count),
                 .head = head->head};
    *side = (run->run.count + x.cell - 1) / x.cell;
    CLI_TRY(ARENA_ALLOC(SERVE, *side * *side, &x.map));
    CLI_TRY(cli_check(SERVE,
                      mha_trials_run(serve->trials, &run->run, head->layer, pool_rows, &x, NULL)));
    if (serve->model.causal) mask_future(x.map, *side);
    *map = x.map;
    return CLI_OK;
}

cli_exit serve_map(void *user, const serve_state *state, const mha_sink *sink)
{
    serve_model *serve = user;
    serve_run run;
    float *map;
    int64_t side;
    CLI_TRY(serve_make_run(serve, state, &run));
    CLI_TRY(make_map(serve, state, &run, &map, &side));
    return cli_check(SERVE, sink->write(sink->user, map, (size_t)(side * side) * sizeof *map));
}

static void put_base64(json_out *json, const unsigned char *bytes, size_t count)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        const unsigned long b1 = i + 1 < count ? bytes[i + 1] : 0,
                            b2 = i + 2 < count ? bytes[i + 2] : 0,
                            all = (unsigned long)bytes[i] << 16 | b1 << 8 | b2;
        const char four[] = {digits[all >> 18], digits[all >> 12 & 63],
                             i + 1 < count ? digits[all >> 6 & 63] : '=',
                             i + 2 < count ? digits[all & 63] : '='};
        json_put(json, four, sizeof four);
    }
}

cli_exit serve_write_map(serve_model *serve, const serve_state *state, const serve_run *run,
                         const mha_sink *sink)
{
    json_out json = {.sink = sink};
    float *map;
    int64_t side;
    if (state->head.layer < 0 || run->run.count > WITH_REPLY_SIDE) return CLI_OK;
    CLI_TRY(make_map(serve, state, run, &map, &side));
    json_print(&json, ",\n\"map\":{\"head\":\"L%" PRId64 "H%" PRId64 "\",\"data\":\"",
               state->head.layer, state->head.head);
    put_base64(&json, (const unsigned char *)map, (size_t)(side * side) * sizeof *map);
    json_print(&json, "\"}");
    return cli_check(SERVE, json.status);
}

/* ---- the report ------------------------------------------------------------------------------ */

typedef struct save_job {
    const serve_state *state;
    const mha_sink *sink;
    char *off, *patched, *next;
    char rows[96];
} save_job;

static cli_exit list_heads(const serve_heads *heads, char **list)
{
    enum { EACH = 48 };
    size_t used = 0;
    *list = NULL;
    if (heads->count == 0) return CLI_OK;
    CLI_TRY(ARENA_ALLOC(SERVE, heads->count * EACH, list));
    for (int64_t i = 0; i < heads->count; i++)
        used += (size_t)snprintf(*list + used, EACH, "%sL%" PRId64 "H%" PRId64, i ? ", " : "",
                                 heads->items[i].layer, heads->items[i].head);
    return CLI_OK;
}

static mha_status write_report(void *user, const mha_figure *figure, const mha_report *report)
{
    enum { MOST = 16 };
    const save_job *job = user;
    mha_report own = *report;
    mha_fact facts[MOST];
    int64_t count = report->fact_count < MOST - 5 ? report->fact_count : MOST - 5;
    memcpy(facts, report->facts, (size_t)count * sizeof *facts);
    if (job->off) facts[count++] = (mha_fact){"heads off", job->off};
    if (job->patched) {
        facts[count++] = (mha_fact){"heads patched", job->patched};
        facts[count++] = (mha_fact){job->rows, job->state->other};
    }
    if (job->next)
        facts[count++] = (mha_fact){
            job->off || job->patched ? "next token (all heads on)" : "next token", job->next};
    own.facts = facts;
    own.fact_count = count;
    own.view = (mha_view)job->state->view;
    if (job->state->cell_row >= 0 && job->state->cell_row < figure->rows &&
        job->state->cell_col >= 0 && job->state->cell_col < figure->cols) {
        own.first_cell = true;
        own.first_row = job->state->cell_row;
        own.first_col = job->state->cell_col;
    }
    return mha_render_html(figure, &own, job->sink);
}

/* The place of a head among those that the model has. */
static int64_t panel_of(const maps_picks *picks, const mha_trial_head *head)
{
    int64_t panel = 0;
    const int64_t at = head->layer * picks->heads + head->head;
    if (head->layer < 0 || head->layer >= picks->layers || head->head >= picks->heads) return 0;
    for (int64_t i = 0; i < at; i++) panel += picks->on[i];
    return picks->on[at] ? panel : 0;
}

cli_exit serve_save(void *user, const serve_state *state, const mha_sink *sink)
{
    serve_model *serve = user;
    serve_run run;
    attention_maps maps;
    maps_picks picks;
    view_figure figure;
    save_job job = {.state = state, .sink = sink};
    view_options options = {.command = SERVE,
                            .cmap = state->cmap,
                            .scale = state->scale + 1,
                            .paper = state->dark ? PAPER_DARK : PAPER_LIGHT};
    CLI_TRY(serve_make_run(serve, state, &run));
    int64_t patched;
    CLI_TRY(cli_check(SERVE, mha_trials_run(serve->trials, &run.run, -1, NULL, NULL, &patched)));
    snprintf(job.rows, sizeof job.rows, "at %s%" PRId64 " of %" PRId64 " tokens from",
             state->at_last ? "the last " : "the first ", patched, run.run.count);
    CLI_TRY(serve_predict_words(serve, state, &run, &job.next));
    CLI_TRY(list_heads(&state->off, &job.off));
    CLI_TRY(list_heads(&state->patched, &job.patched));
    const args_texts none = {0};
    CLI_TRY(text_model_pick(&serve->model, &none, &none, &picks));
    CLI_TRY(make_maps(serve, state, &run, view_pool_cell(&options, &picks, run.run.count), &maps,
                      &picks));
    options.first_panel = panel_of(&picks, &state->head);
    CLI_TRY(view_figure_make(&options, &maps, &picks, NULL, &figure));
    return cli_check(SERVE, view_make_report(&options, &maps, &picks, &figure, write_report, &job));
}

/* ---- the page -------------------------------------------------------------------------------- */

cli_exit serve_page_of(void *user, const mha_sink *sink)
{
    const serve_model *serve = user;
    const text_model *model = &serve->model;
    char size[64], most[64];
    snprintf(size, sizeof size, "%" PRId64 " \u00d7 %" PRId64, model->layers, model->heads);
    snprintf(most, sizeof most, "%" PRId64, serve->most_tokens);
    const mha_fact facts[] = {
        {"kind", model->architecture}, {"layers \u00d7 heads", size}, {"tokens, at most", most}};
    const mha_figure figure = {.struct_size = sizeof figure,
                               .panel_size = sizeof(mha_panel),
                               .title = model->name,
                               .row_axis = "query (looking)",
                               .col_axis = "key (looked at)",
                               .value_name = "weight"};
    const mha_report report = {.struct_size = sizeof report,
                               .facts = facts,
                               .fact_count = sizeof facts / sizeof *facts,
                               .same_labels = true,
                               .producer = "multihead " CLI_VERSION};
    return cli_check(SERVE, mha_render_live_page(&figure, &report, sink));
}

const serve_work serve_model_work = {serve_page_of, serve_look, serve_map, serve_save};
