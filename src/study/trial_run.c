/* Runs of one text, with heads ablated by gates or patched from another text, and the data that is
 * kept of a run. */
#include "study/trial.h"

#include "study/routes.h"
#include "study/study.h"

#include <multihead/component.h>
#include <multihead/head_pass.h>
#include <multihead/heads.h>

#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static mha_status check_over(const mha_trials *trials)
{
    if (!trials->options.is_over || !trials->options.is_over(trials->options.user)) return MHA_OK;
    return mha_fail(MHA_ERR_CALLBACK, "the work was interrupted");
}

/* ---- text and intervention ------------------------------------------------------------------- */

/* Every head must exist and be given once, which bounds the memory of a list. */
static mha_status check_heads(const mha_trials *trials, const mha_trial_head *heads, int64_t count)
{
    const mha_transformer_desc *d = &trials->desc;
    mha_status status = MHA_OK;
    bool *seen = calloc((size_t)d->num_layers, (size_t)d->num_heads * sizeof *seen);
    if (!seen) return MHA_NO_MEMORY("a run of the text");
    for (int64_t i = 0; i < count && status == MHA_OK; i++) {
        const int64_t layer = heads[i].layer, head = heads[i].head;
        if (layer < 0 || layer >= d->num_layers || head < 0 ||
            head >= mha_transformer_heads(d, layer))
            status =
                mha_fail(MHA_ERR_MODEL, "the model has no head L%" PRId64 "H%" PRId64, layer, head);
        else if (seen[layer * d->num_heads + head])
            status = mha_fail(MHA_ERR_MODEL, "head L%" PRId64 "H%" PRId64 " is given twice", layer,
                              head);
        else
            seen[layer * d->num_heads + head] = true;
    }
    free(seen);
    return status;
}

/* The decoder of an encoder-decoder has a source, and no patches. */
static mha_status check_source(const mha_trials *trials, const mha_trial *run)
{
    const bool towers = trials->options.encoder;
    if (towers != (run->source && run->source_count > 0) || run->source_count < 0 ||
        (!towers && run->flags & MHA_TRIAL_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT, "trial: %s",
                        towers ? "an encoder-decoder needs a source"
                               : "a source or MHA_TRIAL_CROSS without an encoder");
    if (towers && (run->patched_count > 0 || run->noise > 0))
        return mha_fail(MHA_ERR_MODEL, "the heads of an encoder-decoder can be switched off, but "
                                       "not patched");
    return MHA_OK;
}

mha_status mhai_trial_read(const mha_trials *trials, const mha_trial *given, mha_trial *run)
{
    MHA_NEED_AS("trial", "trials, run", trials, given);
    MHA_TRY(mha_struct_read("mha_trial", run, sizeof *run, offsetof(mha_trial, source), given,
                            given->struct_size));
    if (run->flags & ~(uint32_t)(MHA_TRIAL_AT_LAST | MHA_TRIAL_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT, "trial: flags %#x, expected MHA_TRIAL_ flags",
                        (unsigned)run->flags);
    MHA_TRY(check_source(trials, run));
    if (run->count < 1 || run->off_count < 0 || run->patched_count < 0 || run->other_count < 0)
        return mha_fail(MHA_ERR_ARGUMENT, "trial: a count is negative, or the text has no token");
    if (!run->tokens || (run->off_count > 0 && !run->off) ||
        (run->patched_count > 0 && (!run->patched || !run->other || run->other_count < 1)))
        return mha_fail(MHA_ERR_NULL, "trial: tokens, heads or the other text are missing");
    if (!(run->noise >= 0 && run->noise <= 1e3) ||
        !(run->temperature >= 0 && run->temperature <= 1e3) || run->top_k < 0 ||
        run->top_k > MHA_TRIAL_TOP)
        return mha_fail(MHA_ERR_MODEL,
                        "trial: noise %g, temperature %g, top_k %" PRId64
                        "; expected 0 to 1000, 0 to 1000, 0 to %d",
                        run->noise, run->temperature, run->top_k, MHA_TRIAL_TOP);
    if (run->noise > 0) MHA_TRY(check_heads(trials, &run->noisy, 1));
    MHA_TRY(check_heads(trials, run->off, run->off_count));
    return check_heads(trials, run->patched, run->patched_count);
}

typedef struct run_key {
    unsigned char *bytes;
    size_t count;
} run_key;

static void add(run_key *key, const void *bytes, size_t count)
{
    if (bytes && count > 0) memcpy(key->bytes + key->count, bytes, count);
    key->count += bytes ? count : 0;
}

static void add_text(run_key *key, const int32_t *tokens, const int32_t *types, int64_t count)
{
    const size_t bytes = (size_t)count * sizeof *tokens;
    const unsigned char has_types = types != NULL;
    add(key, &count, sizeof count);
    add(key, tokens, bytes);
    add(key, &has_types, sizeof has_types);
    add(key, types, bytes);
}

static void add_heads(run_key *key, const mha_trial_head *heads, int64_t count)
{
    add(key, &count, sizeof count);
    add(key, heads, (size_t)count * sizeof *heads);
}

/* Make the key of a run: all data that its results depend on. The caller frees the bytes. */
static mha_status make_key(const mha_trial *r, run_key *key)
{
    const size_t heads = (size_t)(r->off_count + r->patched_count) * sizeof *r->off,
                 tokens =
                     (size_t)(r->count + r->other_count + r->source_count) * 2 * sizeof *r->tokens;
    *key = (run_key){.bytes = malloc(heads + tokens + 128)};
    if (!key->bytes) return MHA_NO_MEMORY("a run of the text");
    add_text(key, r->tokens, r->types, r->count);
    add_heads(key, r->off, r->off_count);
    add_heads(key, r->patched, r->patched_count);
    if (r->noise > 0) {
        add(key, &r->noise, sizeof r->noise);
        add_heads(key, &r->noisy, 1);
        add(key, &r->noise_seed, sizeof r->noise_seed);
    }
    if (r->source) {
        add(key, &r->flags, sizeof r->flags);
        add_text(key, r->source, NULL, r->source_count);
    }
    if (r->patched_count == 0) return MHA_OK;
    add(key, &r->flags, sizeof r->flags);
    add_text(key, r->other, r->other_types, r->other_count);
    return MHA_OK;
}

static bool is_of(const mhai_kept_run *run, const run_key *key)
{
    return run->key && run->key_bytes == key->count && !memcmp(run->key, key->bytes, key->count);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void forget(mhai_kept_run *run)
{
    free(run->key);
    free(run->hidden);
    free(run->layers);
    free(run->memory);
    mha_routes_free(&run->routes);
    *run = (mhai_kept_run){0};
}

/* An upper bound of the number of elements that the rows of all layers need. */
static double count_kept(const mha_trials *trials, int64_t tokens)
{
    const mha_transformer_desc *d = &trials->desc;
    const double H = (double)d->num_heads;
    const double most = d->layer_heads ? 2 * H : H + (double)d->kv_heads;
    double numbers = 0;
    for (int64_t i = 0; i < d->num_layers; i++) {
        const mha_layer_desc *l = d->layers && d->layers[i].mixer ? &d->layers[i] : NULL;
        numbers += l ? H * (double)((l->gate_rank > 0 ? 3 : 2) * (l->key_dim + 1))
                     : most * (double)mha_transformer_head_dim(d, i);
        if (d->layers && d->layers[i].relative_rows > 0) numbers += H * (double)tokens;
    }
    return (double)tokens * numbers;
}

/* Allocate a run; without layers if their queries and keys exceed most_bytes. */
static mha_status make_room(const mha_trials *trials, const mha_trial *of, bool layers,
                            mhai_kept_run *run)
{
    const mha_transformer_desc *d = &trials->desc;
    const int64_t tokens = of->count;
    const double numbers = count_kept(trials, tokens + of->source_count);
    forget(run);
    run->hidden = calloc((size_t)tokens, (size_t)d->embed_dim * sizeof *run->hidden);
    if (!run->hidden) return MHA_NO_MEMORY("a run of the text");
    if (!layers) return MHA_OK;
    mha_room room = {0};
    const mha_status status = mhai_routes_make(d, tokens, &room, &run->routes);
    run->routes.memory = room;
    if (status != MHA_OK || numbers * (double)sizeof(float) > trials->options.most_bytes)
        return status;
    run->layers = calloc((size_t)d->num_layers, sizeof *run->layers);
    run->memory = calloc((size_t)numbers, sizeof *run->memory);
    if (run->layers && run->memory) return MHA_OK;
    free(run->layers);
    free(run->memory);
    run->layers = NULL;
    run->memory = NULL;
    return MHA_OK;
}

/* ---- a text through the transformer ---------------------------------------------------------- */

/* The batch of one sequence that a call reads. */
typedef struct sequence {
    mha_tensor tokens, types;
    mha_transformer_input input;
} sequence;

static void make_sequence(const mha_trials *trials, const int32_t *tokens, const int32_t *types,
                          int64_t count, sequence *s)
{
    const int64_t shape[] = {1, count};
    union {
        const int32_t *given;
        void *data;
    } ids = {tokens}, kinds = {types};
    s->tokens = mha_tensor_contiguous(ids.data, MHA_I32, 2, shape);
    s->types = mha_tensor_contiguous(kinds.data, MHA_I32, 2, shape);
    s->input =
        (mha_transformer_input){.struct_size = sizeof s->input,
                                .tokens = &s->tokens,
                                .token_types = trials->desc.type_count && types ? &s->types : NULL};
}

static mha_status forward(const mha_trials *trials, const sequence *s)
{
    return mha_transformer_forward(trials->context, trials->transformer, &s->input, NULL, NULL,
                                   NULL, NULL);
}

/* ---- interventions --------------------------------------------------------------------------- */

/* The patches: outputs of the patched heads on the second text, written to the first. */
typedef struct patching {
    const mha_trials *trials;
    const mha_trial *run;
    int64_t first, taken; /* rows of the second text: `taken` rows from first on */
    int64_t room, size;   /* tokens of the first text, or 1; the numbers of the widest head */
    float *memory;        /* [heads, room, size] */
    mha_tensor *values;
    mha_head_patch *patches;
    uint8_t *rows; /* rows of the first text: 1 where patched */
} patching;

static void free_patches(patching *p)
{
    free(p->memory);
    free(p->values);
    free(p->patches);
    free(p->rows);
}

static mha_status take_outputs(void *user, const mha_activations *activations, int64_t layer)
{
    const patching *p = user;
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(check_over(p->trials));
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    for (int64_t i = 0; i < p->run->patched_count; i++) {
        if (p->run->patched[i].layer != layer) continue;
        const float *from =
            (const float *)view.heads.data + p->run->patched[i].head * view.heads.stride[1];
        for (int64_t t = 0; t < p->taken; t++)
            memcpy(p->memory + (i * p->room + t) * p->size,
                   from + (p->first + t) * view.heads.stride[2],
                   (size_t)view.heads.shape[3] * sizeof(float));
    }
    return MHA_OK;
}

/* The numbers of a head's output. */
static int64_t width_of(const mha_transformer_desc *d, int64_t layer)
{
    const mha_layer_desc *l = d->layers ? &d->layers[layer] : NULL;
    return l && l->mixer ? l->value_dim : mha_transformer_head_dim(d, layer);
}

/* Patch every position of both texts from the same row, or the last token from the last row of the
 * second text. */
static void aim_patches(patching *p)
{
    const mha_trial *r = p->run;
    const bool last = r->flags & MHA_TRIAL_AT_LAST;
    for (int64_t t = 0; t < r->count; t++)
        p->rows[t] = last ? t == r->count - 1 : t < r->other_count;
    for (int64_t i = 0; i < r->patched_count; i++) {
        const int64_t shape[] = {1, r->count, width_of(&p->trials->desc, r->patched[i].layer)};
        p->values[i] = mha_tensor_contiguous(p->memory + i * p->room * p->size, MHA_F32, 3, shape);
        p->values[i].stride[1] = last ? 0 : p->size;
        p->patches[i] = (mha_head_patch){.struct_size = sizeof *p->patches,
                                         .part = MHA_PATCH_OUTPUT,
                                         .layer = r->patched[i].layer,
                                         .head = r->patched[i].head,
                                         .values = &p->values[i],
                                         .rows = p->rows};
    }
}

/* The caller always calls free_patches(). */
static mha_status make_patches(const mha_trials *trials, const mha_trial *r, patching *p)
{
    sequence other;
    const bool last = r->flags & MHA_TRIAL_AT_LAST;
    *p = (patching){.trials = trials, .run = r};
    for (int64_t i = 0; i < r->patched_count; i++) {
        const int64_t width = width_of(&trials->desc, r->patched[i].layer);
        if (width > p->size) p->size = width;
    }
    p->first = last ? r->other_count - 1 : 0;
    p->room = last ? 1 : r->count;
    p->taken = last || r->other_count > r->count ? p->room : r->other_count;
    const size_t numbers = (size_t)(r->patched_count * p->room * p->size);
    if ((double)numbers * sizeof(float) > trials->options.most_bytes)
        return mha_fail(MHA_ERR_MODEL,
                        "patched: %" PRId64 " heads of %" PRId64
                        " tokens need more than %.0f MiB; patch fewer heads, or shorten the text",
                        r->patched_count, p->room, trials->options.most_bytes / 0x1p20);
    p->memory = calloc(numbers, sizeof *p->memory);
    p->values = calloc((size_t)r->patched_count, sizeof *p->values);
    p->patches = calloc((size_t)r->patched_count, sizeof *p->patches);
    p->rows = calloc((size_t)r->count, sizeof *p->rows);
    if (!p->memory || !p->values || !p->patches || !p->rows)
        return MHA_NO_MEMORY("a run of the text");
    make_sequence(trials, r->other, r->other_types, r->other_count, &other);
    other.input.after_layer = take_outputs;
    other.input.after_layer_user = p;
    aim_patches(p);
    return forward(trials, &other);
}

/* The mixing function of SplitMix64: turns a counter into random bits for normal numbers (Box and
 * Muller). */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

static double normal_at(uint64_t seed, int64_t i)
{
    const uint64_t key = mix(seed), at = 2 * (uint64_t)i;
    const double a = ((double)(mix(key ^ at) >> 11) + 0.5) * 0x1p-53;
    const double b = (double)(mix(key ^ (at + 1)) >> 11) * 0x1p-53;
    return sqrt(-2 * mha_log(a)) * mha_cos_turns(b);
}

/* Patch the noisy head from the same text, plus noise. The caller always calls free_patches(). */
static mha_status make_noise(const mha_trials *trials, const mha_trial *r, patching *p)
{
    const mha_trial own = {.tokens = r->tokens,
                           .types = r->types,
                           .count = r->count,
                           .patched = &r->noisy,
                           .patched_count = 1,
                           .other = r->tokens,
                           .other_types = r->types,
                           .other_count = r->count};
    MHA_TRY(make_patches(trials, &own, p));
    const int64_t count = r->count * p->size;
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += (double)p->memory[i] * (double)p->memory[i];
    const double size = r->noise * sqrt(squares / (double)count);
    for (int64_t i = 0; i < count; i++)
        p->memory[i] = (float)((double)p->memory[i] + size * normal_at(r->noise_seed, i));
    return MHA_OK;
}

/* Gates that are 0 for ablated heads. *memory is NULL if out of memory. */
static mha_tensor make_gates(const mha_trials *trials, const mha_trial *r, float **memory)
{
    const mha_transformer_desc *d = &trials->desc;
    const int64_t shape[] = {d->num_layers, d->num_heads};
    float *gates = malloc((size_t)(shape[0] * shape[1]) * sizeof *gates);
    for (int64_t i = 0; gates && i < shape[0] * shape[1]; i++) gates[i] = 1;
    for (int64_t i = 0; gates && i < r->off_count; i++)
        gates[r->off[i].layer * d->num_heads + r->off[i].head] = 0;
    *memory = gates;
    return mha_tensor_contiguous(gates, MHA_F32, 2, shape);
}

/* ---- a run ----------------------------------------------------------------------------------- */

typedef struct running {
    const mha_trials *trials;
    mhai_kept_run *run; /* NULL: the run is not kept */
    bool cross;         /* visit cross-attention */
    int64_t only;       /* the only layer to visit; -1: all */
    mha_trial_rows_fn fn;
    mhai_trial_layer_fn watch;
    void *user;
    int64_t layer;
    float *free; /* the unused part of the run's memory */
} running;

static mha_status give_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const running *r = user;
    (void)b;
    MHA_TRY(check_over(r->trials));
    return r->fn(r->user, r->layer, row, p);
}

static mha_status visit(running *r, int64_t layer, const mha_layer_view *view)
{
    r->layer = layer;
    if (!r->fn || view->q.ndim == 0 || (r->only >= 0 && layer != r->only)) return MHA_OK;
    return mha_layer_visit_rows(r->trials->context, view, 0, give_rows, r);
}

static mha_tensor keep_rows(running *r, const mha_tensor *x)
{
    const mha_tensor made = mha_tensor_contiguous(r->free, MHA_F32, 4, x->shape);
    for (int64_t h = 0; h < x->shape[1]; h++)
        for (int64_t t = 0; t < x->shape[2]; t++, r->free += x->shape[3])
            memcpy(r->free, (const float *)x->data + h * x->stride[1] + t * x->stride[2],
                   (size_t)x->shape[3] * sizeof(float));
    return made;
}

/* [1,H,T], or [1,H,T,D] */
static mha_tensor keep_numbers(running *r, const mha_tensor *x)
{
    mha_tensor each = *x;
    each.ndim = 4;
    if (x->ndim == 3) each.shape[3] = each.stride[3] = 1;
    each = keep_rows(r, &each);
    each.ndim = x->ndim;
    return each;
}

static mha_status after_layer(void *user, const mha_activations *activations, int64_t layer)
{
    running *r = user;
    mha_layer_view view = {.struct_size = sizeof view};
    MHA_TRY(check_over(r->trials));
    if (r->watch) return r->watch(r->user, activations, layer);
    if (r->run) MHA_TRY(mhai_routes_take(&r->run->routes, activations, layer));
    MHA_TRY(mha_activations_layer(
        activations, layer, r->cross ? MHA_PART_CROSS_ATTENTION : MHA_PART_SELF_ATTENTION, &view));
    if (view.q.ndim == 0) return MHA_OK;
    if (!r->run || !r->run->layers) return visit(r, layer, &view);
    mhai_kept_layer *kept = &r->run->layers[layer];
    kept->view = view;
    kept->view.q = keep_rows(r, &view.q);
    kept->view.k = keep_rows(r, &view.k);
    if (view.attention.bias) {
        kept->bias = keep_rows(r, view.attention.bias);
        kept->view.attention.bias = &kept->bias;
    }
    if (!view.mixer) return MHA_OK;
    kept->view.log_decay = keep_numbers(r, &view.log_decay);
    kept->view.strength = keep_numbers(r, &view.strength);
    return MHA_OK;
}

/* The patches of a run. */
typedef struct interventions {
    patching patched, noisy;
    mha_head_patch *all;
    float *gate_memory;
    mha_tensor gates;
} interventions;

static void free_interventions(interventions *x)
{
    free_patches(&x->patched);
    free_patches(&x->noisy);
    free(x->all);
    free(x->gate_memory);
}

static mha_status make_interventions(const mha_trials *trials, const mha_trial *run,
                                     interventions *x, mha_transformer_input *input)
{
    if (run->off_count > 0) {
        x->gates = make_gates(trials, run, &x->gate_memory);
        *(run->flags & MHA_TRIAL_CROSS ? &input->cross_gates : &input->gates) = &x->gates;
        if (!x->gate_memory) return MHA_NO_MEMORY("a run of the text");
    }
    const size_t count = (size_t)run->patched_count;
    if (count == 0 && !(run->noise > 0)) return MHA_OK;
    x->all = calloc(count + 1, sizeof *x->all);
    if (!x->all) return MHA_NO_MEMORY("a run of the text");
    input->patches = x->all;
    if (count > 0) {
        MHA_TRY(make_patches(trials, run, &x->patched));
        memcpy(x->all, x->patched.patches, count * sizeof *x->all);
        input->patch_count = run->patched_count;
    }
    if (!(run->noise > 0)) return MHA_OK;
    MHA_TRY(make_noise(trials, run, &x->noisy));
    x->all[input->patch_count++] = *x->noisy.patches;
    return MHA_OK;
}

static mha_status run_text(const mha_trials *trials, const mha_trial *run, running *r)
{
    interventions x = {0};
    sequence s;
    mha_tensor hidden, memory;
    mha_room room = {0};
    const mha_tokens source = {.count = run->source_count,
                               .ids = (int32_t *)(uintptr_t)run->source}; /* only read */
    make_sequence(trials, run->tokens, run->types, run->count, &s);
    s.input.after_layer = after_layer;
    s.input.after_layer_user = r;
    r->cross = run->flags & MHA_TRIAL_CROSS;
    mha_status status = make_interventions(trials, run, &x, &s.input);
    if (status == MHA_OK && run->source) {
        status = mhai_encode(trials->context, trials->options.encoder, &source, &room, &memory);
        s.input.memory = &memory;
    }
    if (r->run) {
        const int64_t shape[] = {1, run->count, trials->desc.embed_dim};
        const uint8_t *rows = x.patched.rows;
        hidden = mha_tensor_contiguous(r->run->hidden, MHA_F32, 3, shape);
        s.input.last_hidden = &hidden;
        r->free = r->run->memory;
        for (int64_t t = 0; rows && t < run->count; t++) r->run->patched += rows[t];
    }
    if (status == MHA_OK) status = forward(trials, &s);
    free_interventions(&x);
    mha_room_release(&room, 0);
    return status;
}

/* A failed run is cleared, so that no later call can use it. The run takes ownership of the key. */
static mha_status run_anew(const mha_trials *trials, const mha_trial *run, bool layers,
                           run_key *key, running *r)
{
    mha_status status = check_over(trials);
    if (status == MHA_OK) status = make_room(trials, run, layers, r->run);
    if (status == MHA_OK) status = run_text(trials, run, r);
    if (status != MHA_OK) {
        forget(r->run);
        return status;
    }
    r->run->key = key->bytes;
    r->run->key_bytes = key->count;
    key->bytes = NULL;
    return MHA_OK;
}

static mha_status visit_kept(const mha_trials *trials, running *r)
{
    for (int64_t l = 0; r->fn && l < trials->desc.num_layers; l++) {
        const mhai_kept_layer *kept = &trials->now.layers[l];
        MHA_TRY(check_over(trials));
        MHA_TRY(visit(r, l, &kept->view));
    }
    return MHA_OK;
}

mha_status mha_trials_run(mha_trials *trials, const mha_trial *given, int64_t layer,
                          mha_trial_rows_fn fn, void *user, int64_t *patched)
{
    run_key key;
    mha_trial run;
    running r = {.trials = trials, .only = layer, .fn = fn, .user = user};
    MHA_TRY(mhai_trial_read(trials, given, &run));
    MHA_TRY(make_key(&run, &key));
    mha_status status = MHA_OK;
    if (!is_of(&trials->now, &key)) {
        r.run = &trials->now;
        status = run_anew(trials, &run, true, &key, &r);
    } else if (!trials->now.layers && fn) {
        status = run_text(trials, &run, &r);
    }
    free(key.bytes);
    if (status == MHA_OK && trials->now.layers) status = visit_kept(trials, &r);
    if (status == MHA_OK && patched) *patched = trials->now.patched;
    return status;
}

mha_status mha_trials_routes(mha_trials *trials, const mha_trial *run, const mha_routes **routes)
{
    MHA_NEED("mha_trials_routes", trials, run, routes);
    MHA_TRY(mha_trials_run(trials, run, -1, NULL, NULL, NULL));
    *routes = &trials->now.routes;
    return MHA_OK;
}

mha_status mhai_trial_watch(mha_trials *trials, const mha_trial *run, mhai_trial_layer_fn fn,
                            void *user)
{
    running r = {.trials = trials, .only = -1, .watch = fn, .user = user};
    return run_text(trials, run, &r);
}

mha_status mhai_trial_whole(mha_trials *trials, const mha_trial *run, const mhai_kept_run **whole)
{
    run_key key;
    running r = {.trials = trials, .run = &trials->whole, .only = -1};
    const mha_trial plain = {.struct_size = sizeof plain,
                             .tokens = run->tokens,
                             .types = run->types,
                             .count = run->count,
                             .source = run->source,
                             .source_count = run->source_count};
    mha_trials *baseline = trials->options.baseline;
    if (baseline) {
        *whole = &baseline->now;
        return mha_trials_run(baseline, &plain, -1, NULL, NULL, NULL);
    }
    const bool changed = run->off_count + run->patched_count > 0 || run->noise > 0;
    *whole = changed ? &trials->whole : &trials->now;
    if (!changed) return MHA_OK;
    MHA_TRY(make_key(&plain, &key));
    const mha_status status =
        is_of(&trials->whole, &key) ? MHA_OK : run_anew(trials, &plain, false, &key, &r);
    free(key.bytes);
    return status;
}

/* ---- creation and destruction ---------------------------------------------------------------- */

mha_status mha_trials_create(mha_context *context, const mha_transformer *transformer,
                             const mha_trials_options *options, mha_trials **trials)
{
    mha_trials made = {.context = context, .transformer = transformer};
    MHA_NEED("trial", context, transformer, options, trials);
    *trials = NULL;
    MHA_TRY(mha_struct_read("mha_trials_options", &made.options, sizeof made.options,
                            offsetof(mha_trials_options, encoder), options, options->struct_size));
    made.desc.struct_size = sizeof made.desc;
    mha_transformer_describe(transformer, &made.desc);
    if (!made.options.encoder == !!(made.desc.flags & MHA_TRANSFORMER_CROSS))
        return mha_fail(MHA_ERR_ARGUMENT, "trial: %s",
                        made.options.encoder ? "an encoder without cross-attention"
                                             : "cross-attention without an encoder");
    *trials = malloc(sizeof made);
    if (!*trials) return MHA_NO_MEMORY("a run of the text");
    memcpy(*trials, &made, sizeof made);
    return MHA_OK;
}

void mha_trials_destroy(mha_trials *trials)
{
    if (!trials) return;
    forget(&trials->now);
    forget(&trials->whole);
    free(trials);
}
