/* Maps of a trial: small maps of all heads, a large map of one head, and the report. */
#include "show/live.h"

#include <multihead/component.h>
#include <multihead/heads.h>
#include <multihead/render_live.h>
#include <multihead/show.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* Limits: small maps together have as many cells as 270 maps of 60 x 60. A large map has as many
 * cells as a screen, 4 MB. */
static const double SMALL_CELLS = 1e6;
/* For a fast reply to a key press, use 8 bits per cell if 32 bits need more than LIVE_BYTES. */
enum { LARGE_SIDE = 1024, LIVE_BYTES = 500000, WITH_REPLY_SIDE = 160 };

/* Tokens per cell of a large map. */
static int64_t map_tokens(const mhai_live_asked *a)
{
    return (a->trial.count + LARGE_SIDE - 1) / LARGE_SIDE;
}

static int64_t small_cell(int64_t tokens, int64_t heads)
{
    int64_t cell = 1;
    for (double side; cell < tokens; cell++) {
        side = ceil((double)tokens / (double)cell);
        if ((double)heads * side * side <= SMALL_CELLS) break;
    }
    return cell;
}

/* ---- from rows to maps ----------------------------------------------------------------------- */

mha_status mhai_live_add_rows(void *user, int64_t layer, int64_t row, const mha_tensor *p)
{
    const mhai_live_rows *x = user;
    return mha_maps_add_rows(x->context, x->maps, layer, row, p);
}

/* Tokens of the columns. */
static int64_t count_keys(const mhai_live_asked *a)
{
    return a->cross ? a->source.count : a->trial.count;
}

/* Compute all maps of the text, with `cell` tokens per cell. */
static mha_status make_maps(mhai_live_asked *a, int64_t cell)
{
    const mha_maps_desc desc = {.struct_size = sizeof desc,
                                .flags = a->live->encoder && !a->cross ? MHA_MAPS_SELF : 0,
                                .tokens = &a->tokens,
                                .source = a->live->encoder ? &a->source : NULL,
                                .cell = a->live->encoder ? 1 : cell};
    a->maps.struct_size = sizeof a->maps;
    MHA_TRY(mha_maps_make(a->live->model, &desc, &a->maps));
    a->maps.flags &= ~(uint32_t)MHA_MAPS_CAUSAL;
    if (a->desc->flags & MHA_TRANSFORMER_CAUSAL && !a->cross) a->maps.flags |= MHA_MAPS_CAUSAL;
    a->maps.name = a->live->options.name;
    a->maps.text[0] = a->request.source ? a->request.source : a->request.text;
    a->maps.text_bytes[0] = a->request.source ? a->request.source_bytes : a->request.text_bytes;
    if (a->request.source) a->maps.text[1] = a->request.text;
    if (a->request.source) a->maps.text_bytes[1] = a->request.text_bytes;
    mhai_live_rows rows = {a->live->context, &a->maps};
    MHA_TRY(mha_trials_run(a->trials, &a->trial, -1, mhai_live_add_rows, &rows, NULL));
    const mha_routes *routes;
    MHA_TRY(mha_trials_routes(a->trials, &a->trial, &routes));
    a->maps.routes = *routes; /* borrowed */
    return MHA_OK;
}

mha_status mhai_live_maps(mhai_live_asked *a)
{
    const int64_t heads = a->live->info.layers * a->live->info.heads, count = a->trial.count;
    int64_t cell = small_cell(count, heads);
    mha_show show;
    if (cell < map_tokens(a)) cell = map_tokens(a);
    if (a->live->encoder) cell = 1;
    const int64_t cells =
        ((count + cell - 1) / cell) * ((count_keys(a) + cell - 1) / cell); /* of one map */
    MHA_TRY(make_maps(a, cell));
    MHA_TRY(mha_show_make(&a->maps, NULL, &show));
    show.report.text = NULL;
    mha_status status = mhai_live_frames(a, &show.page, &show.report);
    /* Use 8 bits if 32 do not fit, but never fewer cells. The text around the maps takes about 200
     * bytes per head and 30 per token, plus the page's colours. */
    show.report.most_bytes =
        heads * cells * 4 / 3 + 300 * heads + 60 * (count + count_keys(a)) + 200000;
    if (show.report.most_bytes < LIVE_BYTES) show.report.most_bytes = LIVE_BYTES;
    if (status == MHA_OK)
        status = mha_render_live_maps(&show.page, &show.report, map_tokens(a), a->sink);
    mha_show_free(&show);
    return status;
}

/* ---- one map --------------------------------------------------------------------------------- */

/* As in the page's data, a particular NaN marks cells that a causal mask hides. */
static void mask_future(float *map, int64_t side)
{
    const uint32_t masked = UINT32_C(0x7FC0A5A5);
    for (int64_t r = 0; r < side; r++)
        for (int64_t c = r + 1; c < side; c++) memcpy(&map[r * side + c], &masked, sizeof masked);
}

typedef struct one_head {
    mha_context *context;
    int64_t cell, head;
    int64_t side; /* rows of the map */
    float *map;   /* [side,cells of the keys] */
} one_head;

static mha_status pool_head(void *user, int64_t layer, int64_t row, const mha_tensor *p)
{
    const one_head *x = user;
    const int64_t cols = (p->shape[2] + x->cell - 1) / x->cell;
    const mha_tensor to =
        mha_tensor_contiguous(x->map, MHA_F32, 3, (const int64_t[]){1, x->side, cols});
    mha_tensor from = *p;
    (void)layer;
    from.shape[0] = 1;
    from.data = (float *)p->data + x->head * p->stride[0];
    return mha_attention_pool_rows(x->context, &from, row, x->cell, NULL, &to);
}

/* Compute the map of the selected head. */
static mha_status make_map(mhai_live_asked *a, float **map, size_t *bytes)
{
    const mha_transformer_desc *d = a->desc;
    const mha_trial_head *head = &a->request.head;
    if (head->layer < 0 || head->layer >= d->num_layers ||
        head->head >= mha_transformer_heads(d, head->layer))
        return mha_fail(MHA_ERR_MODEL, "head: the model has no such head");
    one_head x = {.context = a->live->context, .cell = map_tokens(a), .head = head->head};
    const int64_t cols = (count_keys(a) + x.cell - 1) / x.cell;
    x.side = (a->trial.count + x.cell - 1) / x.cell;
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, x.side * cols, &x.map));
    MHA_TRY(mha_trials_run(a->trials, &a->trial, head->layer, pool_head, &x, NULL));
    if (d->flags & MHA_TRANSFORMER_CAUSAL && !a->cross) mask_future(x.map, x.side);
    *map = x.map;
    *bytes = (size_t)(x.side * cols) * sizeof *x.map;
    return MHA_OK;
}

mha_status mhai_live_map(mhai_live_asked *a)
{
    float *map = NULL;
    size_t bytes = 0;
    MHA_TRY(make_map(a, &map, &bytes));
    return a->sink->write(a->sink->user, map, bytes);
}

mha_status mhai_live_map_beside(mhai_live_asked *a, mha_json *json)
{
    const mha_trial_head *head = &a->request.head;
    float *map = NULL;
    size_t bytes = 0;
    if (head->layer < 0 || a->trial.count > WITH_REPLY_SIDE || count_keys(a) > WITH_REPLY_SIDE)
        return MHA_OK;
    MHA_TRY(make_map(a, &map, &bytes));
    mha_json_object(json, "map");
    mha_json_format(json, "head", "L%" PRId64 "H%" PRId64, head->layer, head->head);
    mha_json_base64(json, "data", map, bytes);
    mha_json_end(json);
    return json->status;
}

/* ---- the report ------------------------------------------------------------------------------ */

/* "L0H1, L2H3"; NULL: none. */
static mha_status name_heads(mhai_live_asked *a, const mhai_live_heads *heads, char **list)
{
    enum { EACH = 48 };
    size_t used = 0;
    *list = NULL;
    if (heads->count == 0) return MHA_OK;
    MHA_TRY(mha_room_alloc(&a->room, heads->count, EACH, list));
    for (int64_t i = 0; i < heads->count; i++)
        used += (size_t)mha_format(*list + used, EACH, "%sL%" PRId64 "H%" PRId64, i ? ", " : "",
                                   heads->items[i].layer, heads->items[i].head);
    return MHA_OK;
}

/* List the most likely tokens, "quite 12.0 % (11.5), very 7.0 % (9.1)", with the baseline in
 * parentheses. NULL if the model does not predict tokens. */
static mha_status name_next(mhai_live_asked *a, char **words)
{
    enum { FEW = 5, LABEL = 60, ROOM = FEW * (LABEL + 40) };
    mha_trial_next next;
    size_t used = 0;
    *words = NULL;
    MHA_TRY(mha_trials_predict(a->trials, &a->trial, a->request.row, &next));
    if (next.count == 0) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, ROOM, words));
    for (int64_t i = 0; i < FEW && i < next.count; i++) {
        char label[LABEL + 1];
        const mha_trial_choice *c = &next.tokens[i];
        const bool fits = mha_token_label(a->live->model, c->id, label, sizeof label) <= LABEL;
        used += (size_t)mha_format(*words + used, ROOM - used, "%s%s %.1f %%", i ? ", " : "",
                                   fits ? label : "\u2026", 100 * c->p);
        if (next.changed)
            used += (size_t)mha_format(*words + used, ROOM - used, " (%.1f)", 100 * c->p_whole);
    }
    return MHA_OK;
}

/* Add facts about the request to those about the maps. */
enum { MOST_FACTS = 16, OWN_FACTS = 5 };

static mha_status add_facts(mhai_live_asked *a, int64_t patched, mha_report *report,
                            mha_fact facts[MOST_FACTS])
{
    const mhai_live_request *r = &a->request;
    int64_t count =
        report->fact_count < MOST_FACTS - OWN_FACTS ? report->fact_count : MOST_FACTS - OWN_FACTS;
    char *off, *heads, *next, *rows, *varied;
    MHA_TRY(name_next(a, &next));
    MHA_TRY(name_heads(a, &r->off, &off));
    MHA_TRY(name_heads(a, &r->patched, &heads));
    MHA_TRY(mhai_live_name_vary(a, &varied));
    MHA_TRY(mha_room_alloc(&a->room, 96, 1, &rows));
    mha_format(rows, 96, "at %s%" PRId64 " of %" PRId64 " tokens from",
               r->at_last ? "the last " : "the first ", patched, a->trial.count);
    memcpy(facts, report->facts, (size_t)count * sizeof *facts);
    if (off) facts[count++] = (mha_fact){"heads off", off};
    if (heads) {
        facts[count++] = (mha_fact){"heads patched", heads};
        facts[count++] = (mha_fact){rows, r->other};
    }
    if (varied) facts[count++] = (mha_fact){"model changed", varied};
    if (next)
        facts[count++] = (mha_fact){varied         ? "next token (unchanged)"
                                    : off || heads ? "next token (all heads on)"
                                                   : "next token",
                                    next};
    report->facts = facts;
    report->fact_count = count;
    return MHA_OK;
}

/* The index of the selected head among the existing heads. */
static int64_t panel_of(const mha_maps *maps, const mha_trial_head *head)
{
    int64_t panel = 0;
    const int64_t at = head->layer * maps->heads + head->head;
    if (head->layer < 0 || head->layer >= maps->layers || head->head >= maps->heads) return 0;
    for (int64_t i = 0; i < at; i++) panel += maps->on[i];
    return maps->on[at] ? panel : 0;
}

static mha_status write_report(mhai_live_asked *a, int64_t patched, mha_show *show)
{
    const mhai_live_request *r = &a->request;
    mha_report *report = &show->report;
    mha_fact facts[MOST_FACTS];
    MHA_TRY(add_facts(a, patched, report, facts));
    report->view = (mha_view)r->view;
    if (r->cell_row >= 0 && r->cell_row < show->page.rows && r->cell_col >= 0 &&
        r->cell_col < show->page.cols) {
        report->first_cell = true;
        report->first_row = r->cell_row;
        report->first_col = r->cell_col;
    }
    return mha_render_html(&show->page, report, a->sink);
}

mha_status mhai_live_save(mhai_live_asked *a)
{
    const mhai_live_request *r = &a->request;
    const mha_transformer_desc *d = &a->live->desc;
    int64_t patched, heads = 0;
    mha_show show;
    for (int64_t l = 0; l < d->num_layers; l++) heads += mha_transformer_heads(d, l);
    MHA_TRY(mha_trials_run(a->trials, &a->trial, -1, NULL, NULL, &patched));
    MHA_TRY(make_maps(a, mha_show_cell(heads, a->trial.count)));
    const mha_show_options options = {.struct_size = sizeof options,
                                      .flags = MHA_SHOW_FIRST_PANEL |
                                               (r->dark ? MHA_SHOW_DARK : 0) |
                                               (r->scale >= 0 ? MHA_SHOW_SCALE : 0),
                                      .cmap = (mha_cmap)r->cmap,
                                      .scale = (mha_scale)(r->scale >= 0 ? r->scale : 0),
                                      .first_panel = panel_of(&a->maps, &r->head)};
    MHA_TRY(mha_show_make(&a->maps, &options, &show));
    const mha_status status = write_report(a, patched, &show);
    mha_show_free(&show);
    return status;
}
