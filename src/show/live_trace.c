/* A trace (trace.h) as JSON: the stream at a token, and a head with one pair of tokens. Arrays of
 * floats are base64, so that the page gets the exact bits. */
#include "show/live.h"

#include <multihead/component.h>
#include <multihead/trace.h>

#include <inttypes.h>
#include <string.h>

static void put_floats(mha_json *json, const char *name, const float *x, int64_t count)
{
    if (x) mha_json_base64(json, name, x, (size_t)count * sizeof *x);
}

/* ---- the model ------------------------------------------------------------------------------- */

static const char *const norms[] = {MHA_NORM_NAMES};
static const char *const feed_forwards[] = {MHA_FEED_FORWARD_NAMES};

static void put_model(const mhai_live_asked *a, mha_json *json)
{
    const mha_transformer_desc *d = a->desc;
    const struct {
        const char *name;
        uint32_t flag;
    } flags[] = {{"causal", MHA_TRANSFORMER_CAUSAL},
                 {"post_norm", MHA_TRANSFORMER_POST_NORM},
                 {"parallel", MHA_TRANSFORMER_PARALLEL},
                 {"tied", MHA_TRANSFORMER_TIED}};
    mha_json_object(json, "model");
    mha_json_integer(json, "width", d->embed_dim);
    mha_json_integer(json, "vocabulary", d->vocab_size);
    mha_json_integer(json, "head_dim", d->head_dim);
    mha_json_integer(json, "feed_forward_width", d->ff_dim);
    mha_json_text(json, "feed_forward", d->ff_dim ? feed_forwards[d->feed_forward] : NULL);
    mha_json_text(json, "norm", d->norm ? norms[d->norm] : NULL);
    mha_json_text(json, "positions", d->positions ? mhai_live_positions[d->positions] : NULL);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        mha_json_bool(json, flags[i].name, d->flags & flags[i].flag);
    mha_json_end(json);
}

/* ---- the stream ------------------------------------------------------------------------------ */

static void put_stream(const mha_trace *x, mha_json *json)
{
    mha_json_object(json, "embedding");
    put_floats(json, "token", x->token, x->width);
    put_floats(json, "position", x->position, x->width);
    put_floats(json, "type", x->type, x->width);
    mha_json_end(json);
    mha_json_array(json, "layers");
    for (int64_t l = 0; l < x->layer_count; l++) {
        const mha_trace_layer *layer = &x->layers[l];
        mha_json_object(json, NULL);
        mha_json_integer(json, "heads", layer->heads);
        mha_json_integer(json, "kv_heads", layer->kv_heads);
        mha_json_bool(json, "norms_input", layer->norms_input);
        mha_json_bool(json, "norms_branch", layer->norms_branch);
        mha_json_floats(json, "norms", layer->norms, layer->heads);
        put_floats(json, "stream", layer->stream, x->width);
        put_floats(json, "attention", layer->attention, x->width);
        put_floats(json, "middle", layer->middle, x->width);
        put_floats(json, "feed_forward", layer->feed_forward, x->width);
        put_floats(json, "next", layer->next, x->width);
        mha_json_end(json);
    }
    mha_json_end(json);
    put_floats(json, "last", x->last, x->width);
}

/* ---- the head -------------------------------------------------------------------------------- */

static void put_head(const mha_trace *x, mha_json *json)
{
    const int64_t E = x->width, D = x->head_dim, T = x->tokens;
    mha_json_object(json, "head");
    mha_json_integer(json, "layer", x->layer);
    mha_json_integer(json, "head", x->head);
    mha_json_integer(json, "kv_head", x->kv_head);
    mha_json_integer(json, "channel", x->channel);
    mha_json_integer(json, "rotary_dim", x->rotary_dim);
    mha_json_bool(json, "normalised", x->normalised);
    mha_json_number(json, "scale", x->scale);
    mha_json_number(json, "softcap", x->softcap);
    mha_json_numbers(json, "products", x->products, D);
    put_floats(json, "query_input", x->query_input, E);
    put_floats(json, "key_input", x->key_input, E);
    put_floats(json, "query_weight", x->query_weight, E);
    put_floats(json, "key_weight", x->key_weight, E);
    put_floats(json, "query_plain", x->query_plain, D);
    put_floats(json, "key_plain", x->key_plain, D);
    put_floats(json, "query", x->query, D);
    put_floats(json, "key", x->keys + x->key * D, D);
    put_floats(json, "values", x->values, T * D);
    put_floats(json, "raw", x->raw, T);
    put_floats(json, "scaled", x->scaled, T);
    put_floats(json, "capped", x->capped, T);
    put_floats(json, "biased", x->biased, T);
    put_floats(json, "weights", x->weights, T);
    put_floats(json, "output", x->output, D);
    put_floats(json, "concatenated", x->concatenated, x->heads * D);
    put_floats(json, "written", x->written, E);
    mha_json_end(json);
}

static mha_status put_trace(mhai_live_asked *a, const mha_trace *x)
{
    mha_json json = {.sink = a->sink, .compact = true};
    mha_json_object(&json, NULL);
    mha_json_integer(&json, "tokens", x->tokens);
    mha_json_integer(&json, "row", x->row);
    mha_json_integer(&json, "key", x->key);
    put_model(a, &json);
    put_stream(x, &json);
    if (x->layer >= 0) put_head(x, &json);
    a->request.row = x->row;
    MHA_TRY(mhai_live_next(a, &json));
    mha_json_end(&json);
    return mha_json_finish(&json);
}

mha_status mhai_live_trace(mhai_live_asked *a)
{
    const mhai_live_request *r = &a->request;
    const mha_trace_options options = {
        .struct_size = sizeof options, .head = r->head, .row = r->cell_row, .key = r->cell_col};
    mha_trace trace = {.struct_size = sizeof trace};
    MHA_TRY(mha_trials_trace(a->trials, &a->trial, &options, &trace));
    const mha_status status = put_trace(a, &trace);
    mha_trace_free(&trace);
    return status;
}

/* ---- queries and keys in a plane ------------------------------------------------------------- */

mha_status mhai_live_plane(mhai_live_asked *a)
{
    const mha_trial_head head = a->request.head;
    const int64_t T = a->trial.count;
    mha_json json = {.sink = a->sink, .compact = true};
    double shares[2];
    float *points;
    if (head.layer < 0) return mha_fail(MHA_ERR_FORMAT, "head: expected a head such as L3H11");
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, 4 * T, &points));
    MHA_TRY(mha_trials_plane(a->trials, &a->trial, head, points, shares));
    mha_json_object(&json, NULL);
    mha_json_format(&json, "head", "L%" PRId64 "H%" PRId64, head.layer, head.head);
    mha_json_integer(&json, "tokens", T);
    mha_json_numbers(&json, "shares", shares, 2);
    put_floats(&json, "queries", points, 2 * T);
    put_floats(&json, "keys", points + 2 * T, 2 * T);
    mha_json_end(&json);
    return mha_json_finish(&json);
}
