/* Runs of the model: with heads switched off (gates), or patched from another text, and what of a run
 * stays in memory. */
#include "serve/serve_model.h"

#include "common/arena.h"
#include "common/signals.h"

#include <multihead/component.h>

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys: what a run is a run of ------------------------------------------------------------ */

typedef struct run_key {
    char *bytes;
    size_t count;
} run_key;

static void add(run_key *key, const void *bytes, size_t count)
{
    if (count > 0) memcpy(key->bytes + key->count, bytes, count);
    key->count += count;
}

static void add_heads(run_key *key, const serve_heads *heads)
{
    add(key, &heads->count, sizeof heads->count);
    for (int64_t i = 0; i < heads->count; i++) {
        add(key, &heads->items[i].layer, sizeof heads->items[i].layer);
        add(key, &heads->items[i].head, sizeof heads->items[i].head);
    }
}

/* Everything that the model's numbers depend on; in the arena. */
static cli_exit make_key(const serve_state *s, bool whole, run_key *key)
{
    const size_t heads = (size_t)(s->off.count + s->patched.count) * 2 * sizeof(int64_t);
    *key = (run_key){0};
    CLI_TRY(
        ARENA_ALLOC(SERVE, (int64_t)(s->text_bytes + s->other_bytes + heads + 64), &key->bytes));
    add(key, s->text, s->text_bytes);
    if (whole) return CLI_OK;
    add(key, "\0", 1); /* a text has none */
    add_heads(key, &s->off);
    add_heads(key, &s->patched);
    if (s->patched.count == 0) return CLI_OK;
    add(key, &s->at_last, sizeof s->at_last);
    add(key, s->other, s->other_bytes);
    return CLI_OK;
}

static bool is_altered(const serve_state *s)
{
    return s->off.count > 0 || s->patched.count > 0;
}

bool serve_is_over(const serve_model *serve)
{
    return signals_came() || (serve->reader_left && serve->reader_left());
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void forget(kept_run *run)
{
    free(run->key);
    free(run->hidden);
    free(run->layers);
    free(run->memory);
    *run = (kept_run){0};
}

void serve_forget(serve_model *serve)
{
    forget(&serve->now);
    forget(&serve->whole);
}

/* Numbers of queries and keys of all layers, at most. */
static double count_kept(const serve_model *serve, int64_t tokens)
{
    const mha_transformer_desc *d = &serve->model.desc;
    const int64_t most = d->layer_heads ? 2 * d->num_heads : d->num_heads + d->kv_heads;
    return (double)tokens * (double)d->num_layers * (double)most * (double)d->head_dim;
}

/* Room for a run; without layers where their queries and keys do not fit into most_bytes. */
static cli_exit make_room(const serve_model *serve, int64_t tokens, bool layers, kept_run *run)
{
    const mha_transformer_desc *d = &serve->model.desc;
    const double numbers = count_kept(serve, tokens);
    forget(run);
    run->tokens = tokens;
    run->hidden = calloc((size_t)tokens, (size_t)d->embed_dim * sizeof *run->hidden);
    if (!run->hidden) return cli_fail(CLI_NO_MEMORY, SERVE, "out of memory");
    if (!layers || numbers * (double)sizeof(float) > serve->most_bytes) return CLI_OK;
    run->layers = calloc((size_t)d->num_layers, sizeof *run->layers);
    run->memory = calloc((size_t)numbers, sizeof *run->memory);
    if (run->layers && run->memory) return CLI_OK;
    free(run->layers);
    free(run->memory);
    run->layers = NULL;
    run->memory = NULL;
    return CLI_OK;
}

static cli_exit remember(const run_key *key, kept_run *run)
{
    run->key = malloc(key->count + 1);
    if (!run->key) return cli_fail(CLI_NO_MEMORY, SERVE, "out of memory");
    memcpy(run->key, key->bytes, key->count);
    run->key_bytes = key->count;
    return CLI_OK;
}

static bool is_of(const kept_run *run, const run_key *key)
{
    return run->key && run->key_bytes == key->count && !memcmp(run->key, key->bytes, key->count);
}

/* ---- heads that differ ----------------------------------------------------------------------- */

/* Heads that the model has, each once: the memory that a list asks for is that of the model's heads. */
static cli_exit check_heads(const serve_model *serve, const serve_heads *heads)
{
    const mha_transformer_desc *d = &serve->model.desc;
    bool *seen;
    CLI_TRY(ARENA_ALLOC(SERVE, d->num_layers * d->num_heads, &seen));
    for (int64_t i = 0; i < heads->count; i++) {
        const serve_head *h = &heads->items[i];
        if (h->layer >= d->num_layers ||
            h->head >= (d->layer_heads ? d->layer_heads[h->layer] : d->num_heads))
            return cli_fail(CLI_BAD_INPUT, SERVE, "the model has no head L%" PRId64 "H%" PRId64,
                            h->layer, h->head);
        bool *own = &seen[h->layer * d->num_heads + h->head];
        if (*own)
            return cli_fail(CLI_BAD_INPUT, SERVE, "head L%" PRId64 "H%" PRId64 " is given twice",
                            h->layer, h->head);
        *own = true;
    }
    return CLI_OK;
}

static cli_exit make_gates(const serve_model *serve, const serve_heads *off, mha_tensor *gates)
{
    const mha_transformer_desc *d = &serve->model.desc;
    const int64_t shape[] = {d->num_layers, d->num_heads};
    float *memory;
    CLI_TRY(ARENA_ALLOC(SERVE, shape[0] * shape[1], &memory));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++) memory[i] = 1;
    for (int64_t i = 0; i < off->count; i++)
        memory[off->items[i].layer * d->num_heads + off->items[i].head] = 0;
    *gates = mha_tensor_contiguous(memory, MHA_F32, 2, shape);
    return CLI_OK;
}

/* The outputs of some heads in the second text, on their way into the first. */
typedef struct patching {
    const serve_model *serve;
    const serve_heads *heads;
    int64_t first, taken; /* rows of the second text: so many from first on */
    int64_t room, size;   /* tokens of the first text, or 1; D */
    float *memory;        /* [heads, room, size] */
    mha_tensor *values;
    mha_head_patch *patches;
    uint8_t *rows; /* of the first text: those that are patched */
} patching;

static mha_status take_outputs(void *user, const mha_activations *activations, int64_t layer)
{
    const patching *p = user;
    mha_layer_view view = {.struct_size = sizeof view};
    if (serve_is_over(p->serve)) return MHA_ERR_CALLBACK;
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    for (int64_t i = 0; i < p->heads->count; i++) {
        if (p->heads->items[i].layer != layer) continue;
        const float *from =
            (const float *)view.heads.data + p->heads->items[i].head * view.heads.stride[1];
        for (int64_t t = 0; t < p->taken; t++)
            memcpy(p->memory + (i * p->room + t) * p->size,
                   from + (p->first + t) * view.heads.stride[2], (size_t)p->size * sizeof(float));
    }
    return MHA_OK;
}

/* At every token that both texts have its own row, or at the last one the last row of the second text. */
static void aim_patches(const serve_state *state, int64_t tokens, patching *p)
{
    for (int64_t i = 0; i < p->heads->count; i++) {
        const int64_t shape[] = {1, tokens, p->size};
        p->values[i] = mha_tensor_contiguous(p->memory + i * p->room * p->size, MHA_F32, 3, shape);
        if (state->at_last) p->values[i].stride[1] = 0;
        p->patches[i] = (mha_head_patch){.struct_size = sizeof *p->patches,
                                         .part = MHA_PATCH_OUTPUT,
                                         .layer = p->heads->items[i].layer,
                                         .head = p->heads->items[i].head,
                                         .values = &p->values[i],
                                         .rows = p->rows};
    }
}

static cli_exit make_patches(serve_model *serve, const serve_state *state, int64_t tokens,
                             patching *p)
{
    const text_limits limits = {.most = serve->most_tokens, .fixed = true};
    text_tokens other;
    *p = (patching){.serve = serve, .heads = &state->patched, .size = serve->model.desc.head_dim};
    CLI_TRY(text_model_encode(&serve->model, &limits, state->other, state->other_bytes, NULL, 0,
                              &other));
    const int64_t count = other.list.count;
    p->first = state->at_last ? count - 1 : 0;
    p->room = state->at_last ? 1 : tokens;
    p->taken = count < p->room ? count : p->room;
    const int64_t numbers = p->heads->count * p->room * p->size;
    if ((double)numbers * sizeof(float) > serve->most_bytes)
        return cli_fail(CLI_BAD_INPUT, SERVE,
                        "patched: %" PRId64 " heads of %" PRId64
                        " tokens take more than %.0f MiB; patch fewer heads, or shorten the text",
                        p->heads->count, p->room, serve->most_bytes / 0x1p20);
    CLI_TRY(ARENA_ALLOC(SERVE, numbers, &p->memory));
    CLI_TRY(ARENA_ALLOC(SERVE, p->heads->count, &p->values));
    CLI_TRY(ARENA_ALLOC(SERVE, p->heads->count, &p->patches));
    CLI_TRY(ARENA_ALLOC(SERVE, tokens, &p->rows));
    for (int64_t t = 0; t < tokens; t++) p->rows[t] = state->at_last ? t == tokens - 1 : t < count;
    const text_visit visit = {.after_layer = take_outputs, .user = p};
    CLI_TRY(cli_check(SERVE, text_model_run(&serve->model, &other, &visit)));
    aim_patches(state, tokens, p);
    return CLI_OK;
}

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct running {
    const serve_model *serve;
    kept_run *run;
    serve_layer_fn *fn; /* called on the way, where nothing is kept */
    void *user;
    float *free; /* of the run's memory */
} running;

static mha_tensor keep_rows(running *r, const mha_tensor *x)
{
    const mha_tensor made = mha_tensor_contiguous(r->free, MHA_F32, 4, x->shape);
    for (int64_t h = 0; h < x->shape[1]; h++)
        for (int64_t t = 0; t < x->shape[2]; t++, r->free += x->shape[3])
            memcpy(r->free, (const float *)x->data + h * x->stride[1] + t * x->stride[2],
                   (size_t)x->shape[3] * sizeof(float));
    return made;
}

static mha_status after_layer(void *user, const mha_activations *activations, int64_t layer)
{
    running *r = user;
    mha_layer_view view = {.struct_size = sizeof view};
    if (serve_is_over(r->serve)) return MHA_ERR_CALLBACK;
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    if (view.q.ndim == 0) return MHA_OK;
    if (r->run && r->run->layers) {
        kept_layer *kept = &r->run->layers[layer];
        kept->attention = view.attention;
        kept->q = keep_rows(r, &view.q);
        kept->k = keep_rows(r, &view.k);
    } else if (r->fn) {
        return r->fn(r->user, layer, &view.attention, &view.q, &view.k);
    }
    return MHA_OK;
}

static cli_exit run_text(serve_model *serve, const serve_state *state, bool whole,
                         const text_tokens *tokens, running *r)
{
    patching p = {0};
    int64_t patched = 0;
    mha_tensor gates, hidden;
    const int64_t shape[] = {1, tokens->list.count, serve->model.desc.embed_dim};
    text_visit visit = {.after_layer = after_layer, .user = r};
    if (!whole && state->off.count > 0) {
        CLI_TRY(make_gates(serve, &state->off, &gates));
        visit.gates = &gates;
    }
    if (!whole && state->patched.count > 0) {
        CLI_TRY(make_patches(serve, state, tokens->list.count, &p));
        visit.patches = p.patches;
        visit.patch_count = p.heads->count;
        for (int64_t t = 0; t < tokens->list.count; t++) patched += p.rows[t];
    }
    if (r->run) {
        hidden = mha_tensor_contiguous(r->run->hidden, MHA_F32, 3, shape);
        visit.last_hidden = &hidden;
        r->free = r->run->memory;
        r->run->patched = patched;
    }
    return cli_check(SERVE, text_model_run(&serve->model, tokens, &visit));
}

static cli_exit visit_kept(const serve_model *serve, serve_layer_fn *fn, void *user)
{
    const kept_run *run = &serve->now;
    for (int64_t l = 0; fn && l < serve->model.layers; l++) {
        const kept_layer *kept = &run->layers[l];
        if (serve_is_over(serve)) return CLI_NO_OUTPUT;
        if (kept->q.ndim > 0)
            CLI_TRY(cli_check(SERVE, fn(user, l, &kept->attention, &kept->q, &kept->k)));
    }
    return CLI_OK;
}

/* A run that fails leaves nothing, so that nothing is mistaken for it. */
static cli_exit run_anew(serve_model *serve, const serve_state *state, bool whole,
                         const text_tokens *tokens, const run_key *key, running *r)
{
    if (serve_is_over(serve)) return CLI_NO_OUTPUT;
    CLI_TRY(make_room(serve, tokens->list.count, !whole, r->run));
    cli_exit code = run_text(serve, state, whole, tokens, r);
    if (code == CLI_OK) code = remember(key, r->run);
    if (code != CLI_OK) forget(r->run);
    return code;
}

cli_exit serve_run(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                   serve_layer_fn *fn, void *user)
{
    run_key key;
    running r = {.serve = serve, .run = &serve->now, .fn = fn, .user = user};
    CLI_TRY(check_heads(serve, &state->off));
    CLI_TRY(check_heads(serve, &state->patched));
    CLI_TRY(make_key(state, false, &key));
    if (!is_of(&serve->now, &key)) {
        CLI_TRY(run_anew(serve, state, false, tokens, &key, &r));
    } else if (!serve->now.layers && fn) {
        r.run = NULL;
        return run_text(serve, state, false, tokens, &r);
    }
    return serve->now.layers ? visit_kept(serve, fn, user) : CLI_OK;
}

cli_exit serve_run_whole(serve_model *serve, const serve_state *state, const text_tokens *tokens,
                         const kept_run **whole)
{
    run_key key;
    running r = {.serve = serve, .run = &serve->whole};
    *whole = is_altered(state) ? &serve->whole : &serve->now;
    if (!is_altered(state)) return CLI_OK;
    CLI_TRY(make_key(state, true, &key));
    return is_of(&serve->whole, &key) ? CLI_OK : run_anew(serve, state, true, tokens, &key, &r);
}

cli_exit serve_encode(serve_model *serve, const serve_state *state, text_tokens *tokens)
{
    const text_limits limits = {.most = serve->most_tokens, .fixed = true};
    return text_model_encode(&serve->model, &limits, state->text, state->text_bytes, NULL, 0,
                             tokens);
}
