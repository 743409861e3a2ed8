/* The model of a request under another description: mask, window, scale, positions. This file also
 * computes the weight that this change, or noise, moves in each head. */
#include "show/live.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* ---- the description ------------------------------------------------------------------------- */

static bool is_changed(const mhai_live_vary *v)
{
    return v->causal >= 0 || v->unscaled || v->window > 0 || v->positions >= 0 ||
           v->rope_base > 0 || v->kv_heads > 0;
}

static bool is_same(const mhai_live_vary *a, const mhai_live_vary *b)
{
    return a->causal == b->causal && a->unscaled == b->unscaled && a->window == b->window &&
           a->kv_heads == b->kv_heads && a->positions == b->positions &&
           !(a->rope_base < b->rope_base) && !(a->rope_base > b->rope_base);
}

static void vary_layer(const mhai_live_vary *v, const mha_transformer_desc *d, mha_layer_desc *l)
{
    if (l->mixer) return; /* not attention */
    if (v->unscaled) {
        l->flags |= MHA_LAYER_SCALE_GIVEN;
        l->scale = 1;
    }
    if (v->window > 0) {
        l->flags |= MHA_LAYER_WINDOW;
        l->left_keys = v->window - 1;
        l->right_keys = d->flags & MHA_TRANSFORMER_CAUSAL ? 0 : v->window - 1;
    } else if (v->causal == 0 && l->flags & MHA_LAYER_WINDOW && l->right_keys == 0) {
        l->right_keys = -1;
    }
    if (d->positions != MHA_ENCODING_ROTARY) {
        l->flags &= ~(uint32_t)(MHA_LAYER_NO_ROPE | MHA_LAYER_ROPE_INTERLEAVED);
        l->rotary_dim = l->rope_pairs = l->rope_original_length = 0;
        l->rope_base = l->rope_factor = l->rope_low = l->rope_high = l->rope_amplitude = 0;
        l->rope_scaling = MHA_ROPE_SCALING_LINEAR;
    } else if (v->rope_base > 0) {
        l->rope_base = (float)v->rope_base;
    }
}

static mha_status make_desc(mhai_live_asked *a, const mha_transformer *from,
                            mha_transformer_desc *d)
{
    const mhai_live_vary *v = &a->request.vary;
    mha_layer_desc *layers;
    d->struct_size = sizeof *d;
    mha_transformer_describe(from, d);
    if (v->causal >= 0) d->flags &= ~(uint32_t)MHA_TRANSFORMER_CAUSAL;
    if (v->causal > 0) d->flags |= MHA_TRANSFORMER_CAUSAL;
    if (v->positions >= 0) d->positions = (mha_position_encoding)v->positions;
    if (v->rope_base > 0) d->rope_base = (float)v->rope_base;
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, d->num_layers, &layers));
    for (int64_t i = 0; i < d->num_layers; i++) {
        layers[i] = d->layers ? d->layers[i] : (mha_layer_desc){.struct_size = sizeof layers[i]};
        vary_layer(v, d, &layers[i]);
    }
    d->layers = layers;
    return MHA_OK;
}

void mhai_live_forget(mha_live *live)
{
    if (live->decoding.of == live->varied) mhai_live_forget_decoder(live);
    mha_trials_destroy(live->varied_trials);
    mha_transformer_destroy(live->varied);
    live->varied_trials = NULL;
    live->varied = NULL;
}

/* Vary the loaded model, or one whose key/value heads are merged. */
static mha_status vary(mhai_live_asked *a, const mha_transformer *from)
{
    mha_live *live = a->live;
    mha_transformer_desc d;
    MHA_TRY(make_desc(a, from, &d));
    MHA_TRY(mha_transformer_vary(live->context, from, &d, &live->varied));
    live->varied_desc.struct_size = sizeof live->varied_desc;
    mha_transformer_describe(live->varied, &live->varied_desc);
    return MHA_OK;
}

static mha_status make_varied(mhai_live_asked *a)
{
    mha_live *live = a->live;
    const mha_trials_options how = {.struct_size = sizeof how,
                                    .most_bytes = live->options.most_bytes,
                                    .is_over = live->options.is_over,
                                    .user = live->options.user,
                                    .baseline = live->trials};
    const mha_transformer *loaded = mha_model_transformer(live->model);
    const int64_t kv_heads = a->request.vary.kv_heads;
    mha_transformer *merged = NULL;
    mhai_live_forget(live);
    if (kv_heads > 0) MHA_TRY(mha_transformer_share_kv(live->context, loaded, kv_heads, &merged));
    mha_status status = vary(a, merged ? merged : loaded);
    mha_transformer_destroy(merged);
    live->vary = a->request.vary;
    if (status == MHA_OK)
        status = mha_trials_create(live->context, live->varied, &how, &live->varied_trials);
    if (status != MHA_OK) mhai_live_forget(live);
    return status;
}

mha_status mhai_live_choose(mhai_live_asked *a)
{
    mha_live *live = a->live;
    a->trials = live->trials;
    a->transformer = mha_model_transformer(live->model);
    a->desc = &live->desc;
    if (!is_changed(&a->request.vary)) return MHA_OK;
    if (!live->varied || !is_same(&live->vary, &a->request.vary)) MHA_TRY(make_varied(a));
    a->trials = live->varied_trials;
    a->transformer = live->varied;
    a->desc = &live->varied_desc;
    return MHA_OK;
}

/* ---- members of the answer ------------------------------------------------------------------- */

const char *const mhai_live_positions[] = {MHA_ENCODING_NAMES, NULL};

/* The greatest common divisor of the numbers of key/value heads, over layers with heads; 0: none
 * can be merged. */
static int64_t common_kv_heads(const mha_transformer_desc *d)
{
    int64_t common = 0;
    for (int64_t l = 0; l < d->num_layers; l++) {
        if (d->layers && d->layers[l].mixer) return 0;
        for (int64_t n = mhai_live_heads_of(d, l, true), rest; n != 0; n = rest) {
            rest = common % n;
            common = n;
        }
    }
    return common;
}

void mhai_live_model(const mhai_live_asked *a, mha_json *json)
{
    const mha_transformer_desc *d = &a->live->desc;
    mha_json_object(json, "model");
    mha_json_bool(json, "causal", d->flags & MHA_TRANSFORMER_CAUSAL);
    mha_json_text(json, "positions", mhai_live_positions[d->positions]);
    mha_json_number(json, "rope_base", (double)d->rope_base);
    mha_json_integer(json, "kv_heads", common_kv_heads(d));
    mha_json_end(json);
}

mha_status mhai_live_name_vary(mhai_live_asked *a, char **words)
{
    enum { ROOM = 256 };
    const mhai_live_request *r = &a->request;
    const mhai_live_vary *v = &r->vary;
    size_t n = 0;
    *words = NULL;
    if (!is_changed(v) && !(r->noise > 0)) return MHA_OK;
    MHA_TRY(MHA_ROOM_ALLOC(&a->room, ROOM, words));
    char *to = *words;
    if (v->causal >= 0)
        n += (size_t)mha_format(to, ROOM, ", %s", v->causal ? "causal" : "no causal mask");
    if (v->unscaled) n += (size_t)mha_format(to + n, ROOM - n, ", scores not scaled");
    if (v->window > 0)
        n += (size_t)mha_format(to + n, ROOM - n, ", window of %" PRId64 " tokens", v->window);
    if (v->positions >= 0)
        n += (size_t)mha_format(to + n, ROOM - n, ", positions: %s",
                                mhai_live_positions[v->positions]);
    if (v->rope_base > 0) n += (size_t)mha_format(to + n, ROOM - n, ", RoPE base %g", v->rope_base);
    if (v->kv_heads > 0)
        n += (size_t)mha_format(to + n, ROOM - n, ", %" PRId64 " key/value heads in each layer",
                                v->kv_heads);
    if (r->noise > 0)
        n += (size_t)mha_format(to + n, ROOM - n, ", noise %g in L%" PRId64 "H%" PRId64, r->noise,
                                r->noisy.layer, r->noisy.head);
    *words = to + 2;
    return MHA_OK;
}

/* The weight that moved to other keys, as a mean over rows: half the sum of absolute
 * differences. */
static double moved(const float *p, const float *q, int64_t tokens)
{
    double sum = 0;
    for (int64_t i = 0; i < tokens * tokens; i++) sum += fabs((double)p[i] - (double)q[i]);
    return sum / 2 / (double)tokens;
}

mha_status mhai_live_changes(mhai_live_asked *a, mha_json *json)
{
    mha_maps *maps = &a->maps, before = {.struct_size = sizeof before};
    const mha_maps_desc desc = {.struct_size = sizeof desc, .tokens = &a->tokens, .cell = 1};
    const int64_t tokens = a->trial.count, cells = tokens * tokens;
    const mha_trial plain = {.struct_size = sizeof plain,
                             .tokens = a->trial.tokens,
                             .types = a->trial.types,
                             .count = tokens};
    if (maps->cell > 1 || (a->trials == a->live->trials && !(a->trial.noise > 0))) return MHA_OK;
    MHA_TRY(mha_maps_make(a->live->model, &desc, &before));
    mhai_live_rows rows = {a->live->context, &before};
    const mha_status status =
        mha_trials_run(a->live->trials, &plain, -1, mhai_live_add_rows, &rows, NULL);
    mha_json_array(json, "moved");
    for (int64_t l = 0; status == MHA_OK && l < maps->layers; l++)
        for (int64_t h = 0; h < maps->heads; h++)
            if (!maps->on || maps->on[l * maps->heads + h])
                mha_json_number(
                    json, NULL,
                    moved(maps->layer[l] + h * cells, before.layer[l] + h * cells, tokens));
    mha_json_end(json);
    mha_maps_free(&before);
    return status;
}
