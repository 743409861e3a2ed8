/* Answer the requests of a live page: tokenise the text, run a trial of the model, write the
 * results. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "show/live.h"

#include <multihead/audio.h>
#include <multihead/component.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Maps of an encoder-decoder are not pooled, so its texts are shorter. */
enum { DEFAULT_TOKENS = 4096, TOWER_TOKENS = 256, MOST_TOWER_TOKENS = 1024 };

/* ---- the request ----------------------------------------------------------------------------- */

static mha_status read_text(const mha_live *live, const mha_model *model, const char *text,
                            size_t bytes, uint32_t flags, mha_tokens *tokens)
{
    const mha_tokens_options options = {.struct_size = sizeof options,
                                        .flags = flags,
                                        .max_tokens = live->options.max_tokens,
                                        .advise_words = live->options.advise_words};
    MHA_TRY(mha_tokens_read(model, &options, text, bytes, NULL, 0, tokens));
    if (live->encoder && model == live->model && tokens->count > 0)
        return MHA_OK; /* a target may consist of its start token */
    for (int64_t i = 0; i < tokens->count; i++)
        if (tokens->sequence[i] == 0) return MHA_OK;
    return mha_fail(MHA_ERR_FORMAT, "the text is empty; give at least one word");
}

/* The source of an encoder-decoder, which has no other architecture. */
static mha_status read_source(mhai_live_asked *a)
{
    const mhai_live_request *r = &a->request;
    const mha_live *live = a->live;
    const mhai_live_vary none = {.causal = -1, .positions = -1};
    if (!live->encoder && !r->source && !r->self) return MHA_OK;
    if (!live->encoder) return mha_fail(MHA_ERR_FORMAT, "source: the model has no encoder");
    if (!r->source) return mha_fail(MHA_ERR_FORMAT, "source: an encoder-decoder needs a text");
    if (r->vary.causal != none.causal || r->vary.positions != none.positions || r->vary.unscaled ||
        r->vary.window > 0 || r->vary.kv_heads > 0 || r->vary.rope_base > 0)
        return mha_fail(MHA_ERR_MODEL, "the architecture of an encoder-decoder cannot be changed");
    a->cross = !r->self;
    return read_text(live, live->encoder, r->source, r->source_bytes, 0, &a->source);
}

static mha_status make_trial_as(mhai_live_asked *a, uint32_t flags)
{
    const mhai_live_request *r = &a->request;
    MHA_TRY(read_source(a));
    MHA_TRY(read_text(a->live, a->live->model, r->text, r->text_bytes, flags, &a->tokens));
    a->trial = (mha_trial){.struct_size = sizeof a->trial,
                           .flags = (r->at_last ? MHA_TRIAL_AT_LAST : 0) |
                                    (a->cross ? MHA_TRIAL_CROSS : 0),
                           .tokens = a->tokens.ids,
                           .types = a->tokens.types,
                           .count = a->tokens.count,
                           .off = r->off.items,
                           .off_count = r->off.count,
                           .patched = r->patched.items,
                           .patched_count = r->patched.count,
                           .noise = r->noise,
                           .noisy = r->noisy,
                           .temperature = r->temperature,
                           .top_k = r->top_k,
                           .source = a->source.ids,
                           .source_count = a->source.count};
    MHA_TRY(mhai_live_choose(a));
    if (r->patched.count == 0) return MHA_OK;
    MHA_TRY(read_text(a->live, a->live->model, r->other, r->other_bytes, 0, &a->other));
    a->trial.other = a->other.ids;
    a->trial.other_types = a->other.types;
    a->trial.other_count = a->other.count;
    return MHA_OK;
}

static mha_status make_trial(mhai_live_asked *a)
{
    return make_trial_as(a, 0);
}

/* ---- look ------------------------------------------------------------------------------------ */

mha_status mhai_live_label(mhai_live_asked *a, int32_t id, mha_json *json)
{
    const size_t size = mha_token_label(a->live->model, id, NULL, 0) + 1;
    char *label;
    MHA_TRY(mha_room_alloc(&a->room, (int64_t)size, 1, &label));
    mha_token_label(a->live->model, id, label, size);
    mha_json_text(json, "text", label);
    return json->status;
}

static mha_status put_token(mhai_live_asked *a, const mha_trial_choice *c, bool changed,
                            mha_json *json)
{
    mha_json_object(json, NULL);
    mha_json_integer(json, "id", c->id);
    MHA_TRY(mhai_live_label(a, c->id, json));
    mha_json_number(json, "p", c->p);
    mha_json_number(json, "logit", (double)c->logit);
    if (a->trial.temperature > 0 || a->trial.top_k > 0)
        mha_json_number(json, "p_drawn", c->p_drawn);
    if (changed) {
        mha_json_number(json, "p_whole", c->p_whole);
        mha_json_number(json, "logit_whole", (double)c->logit_whole);
    }
    mha_json_end(json);
    return MHA_OK;
}

mha_status mhai_live_next(mhai_live_asked *a, mha_json *json)
{
    mha_trial_next next;
    MHA_TRY(mha_trials_predict(a->trials, &a->trial, a->request.row, &next));
    if (next.count == 0) {
        mha_json_null(json, "next");
        return MHA_OK;
    }
    mha_json_object(json, "next");
    mha_json_integer(json, "row", next.row);
    mha_json_bool(json, "changed", next.changed);
    if (next.changed) mha_json_number(json, "divergence", next.divergence);
    mha_json_array(json, "tokens");
    for (int64_t i = 0; i < next.count; i++)
        MHA_TRY(put_token(a, &next.tokens[i], next.changed, json));
    mha_json_end(json);
    mha_json_end(json);
    return MHA_OK;
}

double mhai_live_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static mha_status look(mhai_live_asked *a)
{
    const double start = mhai_live_seconds();
    mha_json json = {.sink = a->sink, .compact = true};
    int64_t patched;
    MHA_TRY(make_trial(a));
    mha_json_object(&json, NULL);
    mha_json_integer(&json, "tokens", a->trial.count);
    if (a->live->training.frames) mha_json_text(&json, "training", a->live->training.text);
    mhai_live_model(a, &json);
    if (!a->request.no_maps) {
        mha_json_value(&json, "maps");
        MHA_TRY(json.status);
        MHA_TRY(mhai_live_maps(a));
        MHA_TRY(mhai_live_changes(a, &json));
        MHA_TRY(mhai_live_map_beside(a, &json));
    }
    MHA_TRY(mha_trials_run(a->trials, &a->trial, -1, NULL, NULL, &patched));
    MHA_TRY(mhai_live_next(a, &json));
    MHA_TRY(mhai_live_cache(a, a->trial.count, &json));
    mha_json_integer(&json, "patched", patched);
    mha_json_number(&json, "seconds", mhai_live_seconds() - start);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

static mha_status map(mhai_live_asked *a)
{
    MHA_TRY(make_trial(a));
    return mhai_live_map(a);
}

static mha_status generate(mhai_live_asked *a)
{
    MHA_TRY(make_trial_as(a, MHA_TOKENS_PROMPT));
    return mhai_live_generate(a);
}

/* The steps of one head, and its plane, are those of self-attention of a single text. */
static mha_status check_single(const mhai_live_asked *a)
{
    return !a->live->encoder ? MHA_OK
                             : mha_fail(MHA_ERR_UNSUPPORTED,
                                        "an encoder-decoder has neither this trace nor this plane");
}

static mha_status trace(mhai_live_asked *a)
{
    MHA_TRY(check_single(a));
    MHA_TRY(make_trial(a));
    return mhai_live_trace(a);
}

static mha_status plane(mhai_live_asked *a)
{
    MHA_TRY(check_single(a));
    MHA_TRY(make_trial(a));
    return mhai_live_plane(a);
}

static mha_status save(mhai_live_asked *a)
{
    MHA_TRY(make_trial(a));
    return mhai_live_save(a);
}

/* ---- the page -------------------------------------------------------------------------------- */

/* With an explorer the page is self-contained; otherwise it uses a server. */
static mha_status write_page(const mha_live *live, const mha_explorer *explorer,
                             const mha_sink *sink)
{
    const mha_transformer_desc *d = &live->desc;
    const int64_t kv = d->kv_heads ? d->kv_heads : d->num_heads;
    char size[64], width[64], each[64], shared[64], most[64], producer[64];
    mha_format(size, sizeof size, "%" PRId64 " \u00d7 %" PRId64, live->info.layers,
               live->info.heads);
    mha_format(width, sizeof width, "%" PRId64, d->embed_dim);
    mha_format(each, sizeof each, "%" PRId64,
               d->head_dim ? d->head_dim : d->embed_dim / d->num_heads);
    mha_format(shared, sizeof shared, "%" PRId64, kv);
    mha_format(most, sizeof most, "%" PRId64, live->options.max_tokens);
    mha_format(producer, sizeof producer, "multihead %s", mha_version());
    const mha_fact facts[] = {
        {"kind", live->info.architecture}, {"layers \u00d7 heads", size}, {"width", width},
        {"numbers per head", each},        {"key/value heads", shared},   {"tokens, at most", most},
        {"source tokens, at most", most}}; /* tells the page of towers */
    const mha_figure figure = {.struct_size = sizeof figure,
                               .panel_size = sizeof(mha_panel),
                               .title = live->options.name,
                               .row_axis = "query (attending)",
                               .col_axis = "key (attended to)",
                               .value_name = "weight"};
    const mha_report report = {.struct_size = sizeof report,
                               .facts = facts,
                               .fact_count =
                                   (int64_t)(sizeof facts / sizeof *facts) - !live->encoder,
                               .same_labels = true,
                               .producer = producer};
    return explorer ? mha_render_explorer(&figure, &report, explorer, sink)
                    : mha_render_live_page(&figure, &report, sink);
}

static mha_status page(mhai_live_asked *a)
{
    return write_page(a->live, NULL, a->sink);
}

mha_status mha_live_explorer(const mha_live *live, const mha_explorer *explorer,
                             const mha_sink *sink)
{
    MHA_NEED("live", live, explorer, sink);
    mha_explorer own = {0};
    MHA_TRY(mha_struct_read("mha_explorer", &own, sizeof own, sizeof own, explorer,
                            explorer->struct_size));
    own.struct_size = sizeof own;
    if (!own.text) own.text = live->training.text; /* the model may know only its training words */
    return write_page(live, &own, sink);
}

static mha_status style(mhai_live_asked *a)
{
    return mha_render_live_file(MHA_LIVE_STYLE, a->sink);
}

static mha_status script(mhai_live_asked *a)
{
    return mha_render_live_file(MHA_LIVE_SCRIPT, a->sink);
}

/* ---- places ---------------------------------------------------------------------------------- */

static const struct {
    mha_live_place place;
    mha_status (*answer)(mhai_live_asked *a);
} places[] = {
    {{"page", "text/html; charset=utf-8", NULL, false}, page},
    {{"page.css", "text/css; charset=utf-8", NULL, false}, style},
    {{"page.js", "text/javascript; charset=utf-8", NULL, false}, script},
    {{"look", "application/json", NULL, true}, look},
    {{"generate", "application/json", NULL, true}, generate},
    {{"map", "application/octet-stream", NULL, true}, map},
    {{"trace", "application/json", NULL, true}, trace},
    {{"plane", "application/json", NULL, true}, plane},
    {{"save", "text/html; charset=utf-8", "heads.html", true}, save},
};

enum { PLACES = sizeof places / sizeof *places };

const mha_live_place *mha_live_find(const char *name)
{
    for (int i = 0; i < PLACES; i++)
        if (!strcmp(places[i].place.name, name)) return &places[i].place;
    return NULL;
}

mha_status mha_live_answer(mha_live *live, const mha_live_place *place, const char *request,
                           size_t bytes, const mha_sink *sink)
{
    mhai_live_asked a = {.live = live,
                         .sink = sink,
                         .tokens = {.struct_size = sizeof a.tokens},
                         .other = {.struct_size = sizeof a.other},
                         .source = {.struct_size = sizeof a.source}};
    if (!live || !place || !sink || (place->asks && !request && bytes > 0))
        return mha_fail(MHA_ERR_NULL, "live: live, place, request and sink are required");
    int i = 0;
    while (i < PLACES && place != &places[i].place) i++;
    if (i == PLACES)
        return mha_fail(MHA_ERR_ARGUMENT, "live: the place is not from mha_live_find()");
    mha_status status = MHA_OK;
    if (place->asks) status = mhai_live_read(request, bytes, &a.room, &a.request);
    if (status == MHA_OK) status = places[i].answer(&a);
    mha_tokens_free(&a.tokens);
    mha_tokens_free(&a.other);
    mha_tokens_free(&a.source);
    mha_maps_free(&a.maps);
    mha_room_release(&a.room, 0);
    return status;
}

/* ---- creation and destruction ---------------------------------------------------------------- */

static mha_status prepare(mha_live *live)
{
    mha_live_options *o = &live->options;
    mha_audio_input input = {.struct_size = sizeof input};
    int64_t most = live->info.max_positions, usual = DEFAULT_TOKENS;
    live->encoder = mha_model_encoder(live->model);
    if (live->encoder && mha_model_audio_input(live->encoder, &input) == MHA_OK)
        return mha_fail(MHA_ERR_UNSUPPORTED, "live: the model's encoder reads audio");
    if (live->encoder) {
        if (most > MOST_TOWER_TOKENS) most = MOST_TOWER_TOKENS;
        usual = TOWER_TOKENS;
    }
    if (o->max_tokens < 0 || o->max_tokens > most)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "live: max_tokens %" PRId64 ", expected at most %" PRId64
                        ", the model's positions%s",
                        o->max_tokens, most, live->encoder ? " or the limit of two towers" : "");
    if (o->max_tokens == 0) o->max_tokens = most < usual ? most : usual;
    if (o->most_bytes == 0) o->most_bytes = 0x1p30; /* 11,000 tokens with 135 million parameters */
    const mha_trials_options how = {.struct_size = sizeof how,
                                    .most_bytes = o->most_bytes,
                                    .is_over = o->is_over,
                                    .user = o->user,
                                    .encoder = mha_model_transformer(live->encoder)};
    const mha_transformer *net = mha_model_transformer(live->model);
    live->desc.struct_size = sizeof live->desc;
    mha_transformer_describe(net, &live->desc);
    if (!live->encoder) MHA_TRY(mhai_live_training_read(live));
    return mha_trials_create(live->context, net, &how, &live->trials);
}

mha_status mha_live_create(mha_context *context, mha_model *model, const mha_live_options *options,
                           mha_live **live)
{
    mha_live made = {.context = context, .model = model, .info = {.struct_size = sizeof made.info}};
    MHA_NEED("live", context, model, options, live);
    *live = NULL;
    MHA_TRY(mha_struct_read("mha_live_options", &made.options, sizeof made.options,
                            sizeof made.options, options, options->struct_size));
    MHA_TRY(mha_model_describe(model, &made.info));
    mha_status status = prepare(&made);
    if (status == MHA_OK && !(*live = malloc(sizeof made)))
        status = mha_fail(MHA_ERR_NOMEM, "out of memory for a live page");
    if (status == MHA_OK) {
        **live = made;
        return MHA_OK;
    }
    mha_trials_destroy(made.trials);
    mha_room_release(&made.training.room, 0);
    return status;
}

void mha_live_destroy(mha_live *live)
{
    if (!live) return;
    mhai_live_forget_decoder(live);
    mhai_live_forget(live);
    mha_trials_destroy(live->trials);
    mha_room_release(&live->training.room, 0);
    free(live);
}
