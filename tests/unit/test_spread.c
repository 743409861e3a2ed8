/* Transformers spread over ranks. Every rank gets the bits of one process from all kinds of forward
 * calls, decoders and loaded models, for any number of ranks, also for more ranks than layers.
 * Measures of heads, which each rank computes for its layers, equal those of one process. Each
 * matrix is read by one rank. Errors and allocation failures of one rank reach all ranks, differing
 * ranks are detected, and a lost rank ends the call. */
#include "support/decoded.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/one_context.h"
#include "support/rng.h"
#include "support/stored.h"
#include "support/suite.h"
#include "support/temp_files.h"
#include "support/thread_ranks.h"

#include <multihead/checkpoint.h>
#include <multihead/component.h>
#include <multihead/head_pass.h>
#include <multihead/head_state.h>
#include <multihead/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, T = 7, S = 3, STEPS = 5, FLOATS = 1 << 17, MOST_READ = 256 };
enum { PROMPT = 2 * LENGTH }; /* more than one piece that passes through the ranks */

/* The argument that differs on a rank. */
enum {
    NOTHING,
    TOKEN,
    LENGTHS,
    DROPOUT,
    SEED,
    SHAPE,
    OUTPUT,
    FIRST,
    LAST,
    SHOWS,
    MAPS,
    NUMBERS,
    ROOM,
    CALLBACK
};

/* A rank's results. */
typedef struct outcome {
    mha_status status;
    char detail[512];
    int64_t size;
    float numbers[FLOATS];
    int64_t reads[MOST_READ]; /* number of reads of each parameter */
    mha_buffer heads;         /* the state of the measures of its layers */
    failing_alloc memory;
} outcome;

typedef struct course {
    const mha_transformer *like;
    mha_transformer_desc desc;
    uint64_t seed;
    uint32_t source_flags;
    int spoiled, how;       /* the rank that differs, and NOTHING, TOKEN, ... */
    int64_t fail_at;        /* the allocation that fails on rank `spoiled`, or -1 */
    const char *folders[2]; /* folders of models; rank `spoiled` has the second */
    outcome *outcomes;
} course;

/* The state of a rank during a run. */
typedef struct rank_run {
    const course *c;
    const mha_transport *transport;
    mha_context *context;
    mha_transformer *t;
    outcome *out;
    bool spoils;
    stored source;
} rank_run;

static bool has(const rank_run *r, int how)
{
    return r->spoils && r->c->how == how;
}

/* ---- results of calls
 * ------------------------------------------------------------------------- */

static mha_status keep(rank_run *r, const mha_tensor *x)
{
    int64_t count = x->ndim > 0;
    for (int i = 0; i < x->ndim; i++) count *= x->shape[i];
    if (r->out->size + count > FLOATS) return mha_fail(MHA_ERR_SIZE, "the test has no room");
    for (int64_t k = 0; k < count; k++) {
        int64_t rest = k, at = 0;
        for (int i = x->ndim - 1; i >= 0; rest /= x->shape[i--])
            at += rest % x->shape[i] * x->stride[i];
        r->out->numbers[r->out->size++] = ((const float *)x->data)[at];
    }
    return MHA_OK;
}

static mha_status keep_layer(void *user, const mha_activations *a, int64_t layer)
{
    rank_run *r = user;
    const uint32_t flags = r->c->desc.flags;
    if (has(r, CALLBACK)) return mha_fail(MHA_ERR_CALLBACK, "has seen enough");
    for (int part = 0; part <= MHA_PART_FEED_FORWARD; part++) {
        mha_layer_view v = {.struct_size = sizeof v};
        if (part == MHA_PART_CROSS_ATTENTION && !(flags & MHA_TRANSFORMER_CROSS)) continue;
        if (part == MHA_PART_FEED_FORWARD && r->c->desc.ff_dim == 0) continue;
        MHA_TRY(mha_activations_layer(a, layer, (mha_layer_part)part, &v));
        if (part != MHA_PART_FEED_FORWARD && !v.q.data) v.input.ndim = 0; /* it has no reader */
        const mha_tensor *all[] = {&v.stream, &v.input, &v.next,  &v.q,      &v.k,
                                   &v.v,      &v.lse,   &v.heads, &v.hidden, &v.expert_weights};
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) MHA_TRY(keep(r, all[i]));
    }
    return MHA_OK;
}

/* ---- calls ------------------------------------------------------------------------------------ */

typedef struct batch {
    int32_t ids[B * PROMPT];
    int64_t lengths[B];
    float memory[B * S * WIDTH], stream[B * T * WIDTH], logits[B * PROMPT * WIDTH];
    float hidden[B * T * WIDTH], maps[LAYERS * B * 4 * T * T], entropy[B * 4 * T];
    mha_tensor tokens, rows, output, last, probabilities, begin, row_entropy;
    mha_transformer_input input;
} batch;

static void draw(const rank_run *r, batch *b)
{
    const mha_transformer_desc *d = &r->c->desc;
    const int64_t width = d->flags & MHA_TRANSFORMER_NO_OUTPUT ? d->embed_dim : d->vocab_size;
    rng x = rng_make(r->c->seed, 1);
    for (int i = 0; i < B * PROMPT; i++) b->ids[i] = (int32_t)rng_between(&x, 0, VOCAB - 1);
    for (int i = 0; i < B; i++) b->lengths[i] = rng_between(&x, 1, T);
    for (int i = 0; i < B * S * WIDTH; i++) b->memory[i] = rng_normal(&x);
    for (int i = 0; i < B * T * WIDTH; i++) b->stream[i] = rng_normal(&x);
    if (has(r, TOKEN)) b->ids[3] = (b->ids[3] + 1) % VOCAB;
    b->tokens = mha_tensor_contiguous(b->ids, MHA_I32, 2, (int64_t[]){B, T});
    b->rows = mha_tensor_contiguous(b->memory, MHA_F32, 3, (int64_t[]){B, S, WIDTH});
    b->output = mha_tensor_contiguous(b->logits, MHA_F32, 3, (int64_t[]){B, T, width});
    b->output.stride[1] = width + 3; /* not contiguous */
    b->output.stride[0] = T * (width + 3);
    b->last = mha_tensor_contiguous(b->hidden, MHA_F32, 3, (int64_t[]){B, T, WIDTH});
    b->begin = mha_tensor_contiguous(b->stream, MHA_F32, 3, (int64_t[]){B, T, WIDTH});
    b->probabilities =
        mha_tensor_contiguous(b->maps, MHA_F32, 5, (int64_t[]){d->num_layers, B, 4, T, T});
    b->input = (mha_transformer_input){.struct_size = sizeof b->input, .tokens = &b->tokens};
    if (r->c->how == NOTHING ? rng_chance(&x, 0.5) : has(r, LENGTHS)) b->input.lengths = b->lengths;
    if (d->flags & MHA_TRANSFORMER_CROSS) b->input.memory = &b->rows;
    if (r->c->how == SEED || has(r, DROPOUT)) b->input.dropout = 0.1f;
    if (has(r, SEED)) b->input.dropout_seed = 1;
    if (!has(r, SHAPE)) return;
    b->tokens.shape[0] = b->output.shape[0] = 1; /* the same tokens in one sequence */
    b->tokens.shape[1] = b->output.shape[1] = (int64_t)B * T;
}

/* Calls for only the output, with the last rows, from a layer on, and with all outputs of a
 * layer. */
static mha_status forward_calls(rank_run *r, batch *b)
{
    mha_transformer_input input = b->input;
#define FORWARD(a, output, maps) \
    mha_transformer_forward(r->context, r->t, &input, a, output, maps, NULL)
    MHA_TRY(FORWARD(NULL, has(r, OUTPUT) ? NULL : &b->output, NULL));
    MHA_TRY(keep(r, &b->output));
    input.first_layer = r->c->desc.num_layers - (has(r, FIRST) ? 2 : 1);
    input.stream = &b->begin;
    if (!has(r, LAST)) input.last_hidden = &b->last;
    if (has(r, SHOWS)) input.after_layer = keep_layer, input.after_layer_user = r;
    MHA_TRY(FORWARD(NULL, NULL, NULL));
    MHA_TRY(keep(r, &b->last));
    input = b->input;
    mha_attention_outputs wanted = {.struct_size = sizeof wanted, .entropy = &b->row_entropy};
    const mha_attention_outputs *list[LAYERS] = {0};
    const int64_t *heads = r->c->desc.layer_heads;
    b->row_entropy =
        mha_tensor_contiguous(b->entropy, MHA_F32, 3, (int64_t[]){B, heads ? heads[0] : 4, T});
    list[0] = &wanted;
    input.outputs = list;
    input.after_layer = keep_layer;
    input.after_layer_user = r;
    MHA_TRY(FORWARD(NULL, &b->output, has(r, MAPS) ? NULL : &b->probabilities));
    MHA_TRY(keep(r, &b->output));
    MHA_TRY(keep(r, &b->probabilities));
    return b->row_entropy.shape[1] > 0 ? keep(r, &b->row_entropy) : MHA_OK;
#undef FORWARD
}

/* A rank that cannot create its part reports it to the others. */
static mha_status together(const rank_run *r, mha_status status)
{
    return r->transport ? mha_transport_agree(r->transport, status) : status;
}

static mha_status kept_activations(rank_run *r, batch *b)
{
    mha_activations *a = NULL;
    mha_stream_view v = {.struct_size = sizeof v};
    const int64_t memory = r->c->desc.flags & MHA_TRANSFORMER_CROSS ? B * S : 0;
    mha_status status =
        together(r, mha_activations_create(r->context, r->t, B * T + 2, memory, &a));
    if (status == MHA_OK)
        status = mha_transformer_forward(r->context, r->t, &b->input, a, NULL, NULL, NULL);
    for (int64_t i = 0; i < r->c->desc.num_layers && status == MHA_OK; i++)
        status = keep_layer(r, a, i);
    if (status == MHA_OK) status = mha_activations_stream(a, &v);
    if (status == MHA_OK) status = keep(r, &v.embedded);
    if (status == MHA_OK) status = keep(r, &v.normed);
    mha_activations_destroy(a);
    return status;
}

static mha_status logits_of_rows(rank_run *r, batch *b)
{
    const mha_tensor rows = mha_tensor_contiguous(b->stream, MHA_F32, 2, (int64_t[]){4, WIDTH});
    const mha_tensor logits = mha_tensor_contiguous(b->logits, MHA_F32, 2, (int64_t[]){4, VOCAB});
    if (r->c->desc.flags & MHA_TRANSFORMER_NO_OUTPUT) return MHA_OK;
    MHA_TRY(mha_transformer_logits(r->context, r->t, &rows, &logits));
    return keep(r, &logits);
}

/* Steps of several sizes, with and without an output, then a truncation and a branch. */
static mha_status decode(rank_run *r, batch *b, mha_decoder *d)
{
    static const int64_t sizes[STEPS] = {5, 1, 3, 1, 2};
    const int64_t width = b->output.shape[2], counts[B] = {2, 1};
    int64_t at = 0;
    if (b->input.memory) MHA_TRY(mha_decoder_set_memory(r->context, d, b->input.memory, NULL));
    for (int i = 0; i < STEPS; at += sizes[i++]) {
        const mha_tensor tokens =
            mha_tensor_contiguous(b->ids + at, MHA_I32, 2, (int64_t[]){B, sizes[i]});
        const mha_tensor output =
            mha_tensor_contiguous(b->logits, MHA_F32, 3, (int64_t[]){B, sizes[i], width});
        const bool wants = i != 2, all = i != STEPS - 1;
        if (i == 3) MHA_TRY(mha_decoder_truncate(d, 4));
        if (i == 4) MHA_TRY(mha_decoder_truncate_sequence(d, 1, 2));
        if (i == 4) MHA_TRY(mha_decoder_fork(d, 0, 1, 3));
        memset(b->logits, 0, sizeof b->logits);
        MHA_TRY(mha_decoder_step_rows(r->context, d, &tokens, NULL, all ? NULL : counts,
                                      wants ? &output : NULL));
        if (wants && all) MHA_TRY(keep(r, &output));
        if (!all)
            MHA_TRY(keep(r, &(mha_tensor){.data = b->logits,
                                          .dtype = MHA_F32,
                                          .ndim = 1,
                                          .shape = {width},
                                          .stride = {1}}));
    }
    return MHA_OK;
}

static mha_status decoding(rank_run *r, batch *b)
{
    const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                   .batch = B,
                                   .capacity = has(r, ROOM) ? LENGTH - 1 : LENGTH,
                                   .page_size = 8,
                                   .cache_type = r->c->seed % 2 ? MHA_F16 : MHA_F32,
                                   .memory_capacity =
                                       r->c->desc.flags & MHA_TRANSFORMER_CROSS ? S : 0};
    mha_decoder *d = NULL;
    mha_status status = mha_decoder_create(r->context, r->t, &desc, &d);
    if (status == MHA_OK) status = decode(r, b, d);
    mha_decoder_destroy(d);
    return status;
}

/* A token, a prompt that passes through the ranks in pieces, and another token. */
static mha_status long_step(rank_run *r, batch *b)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_I8, MHA_I8};
    const uint64_t kind = r->c->seed % 4;
    const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                   .page_size = 16,
                                   .cache_type = types[kind],
                                   .key_scales =
                                       kind == 3 ? MHA_KV_SCALES_CHANNEL : MHA_KV_SCALES_POSITION,
                                   .memory_capacity = b->input.memory ? S : 0};
    const mha_tensor memory =
        mha_tensor_contiguous(b->memory, MHA_F32, 3, (int64_t[]){1, S, WIDTH});
    mha_decoder *d = NULL;
    mha_status status = mha_decoder_create(r->context, r->t, &desc, &d);
    if (status == MHA_OK && b->input.memory)
        status = mha_decoder_set_memory(r->context, d, &memory, NULL);
    for (int64_t at = 0, n = 1; at < PROMPT && status == MHA_OK;
         at += n, n = at == 1 ? PROMPT - 2 : 1) {
        const mha_tensor tokens = mha_tensor_contiguous(b->ids + at, MHA_I32, 2, (int64_t[]){1, n});
        mha_tensor output =
            mha_tensor_contiguous(b->logits, MHA_F32, 3, (int64_t[]){1, n, b->output.shape[2]});
        status = mha_decoder_step(r->context, d, &tokens, &output);
        if (status == MHA_OK) status = keep(r, &output);
    }
    mha_decoder_destroy(d);
    return status;
}

/* ---- heads ------------------------------------------------------------------------------------ */

/* Measures two texts with links. Offsets are counted per layer. */
static mha_status measure_texts(rank_run *r, batch *b, mha_head_measures *m)
{
    static const mha_heads_link links[] = {{0, 2, 0}, {3, 1, 0}};
    const mha_tensor tokens[] = {mha_tensor_contiguous(b->ids, MHA_I32, 2, (int64_t[]){1, T}),
                                 mha_tensor_contiguous(b->ids + T, MHA_I32, 2, (int64_t[]){1, 4})};
    const mha_heads_text text = {.struct_size = sizeof text, .links = links, .links_count = 2};
    const mha_head_pass pass = {
        .struct_size = sizeof pass, .flags = MHA_HEAD_PASS_OWN_LAYERS, .measures = m};
    mha_transformer_input input = b->input;
    const mha_tensor rows = mha_tensor_contiguous(b->memory, MHA_F32, 3, (int64_t[]){1, S, WIDTH});
    const mha_sink sink = mha_buffer_sink(&r->out->heads);
    input.lengths = NULL;
    if (input.memory) input.memory = &rows;
    for (int i = 0; i < 2; i++) {
        input.tokens = &tokens[i];
        MHA_TRY(mha_head_pass_run(r->context, r->t, &input, &text, &pass));
    }
    return mha_head_state_write(m, &sink);
}

static mha_status measure_heads(rank_run *r, batch *b)
{
    static const char *const names[] = {"link"};
    const mha_transformer_desc *d = &r->c->desc;
    int64_t heads[LAYERS];
    for (int64_t l = 0; l < d->num_layers; l++)
        heads[l] = d->layer_heads ? d->layer_heads[l] : d->num_heads;
    const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                         .layers = d->num_layers,
                                         .heads = heads,
                                         .names = names,
                                         .relations = 1};
    const mha_head_corpus_desc corpus_desc = {.struct_size = sizeof corpus_desc,
                                              .vocab_size = VOCAB,
                                              .places = 2,
                                              .replicates = 3,
                                              .permutations = 3};
    mha_head_measures *m = NULL;
    mha_head_corpus *corpus = NULL;
    mha_status status = mha_head_measures_create(r->context, &desc, &m);
    if (status == MHA_OK) status = mha_head_corpus_create(r->context, m, &corpus_desc, &corpus);
    if (status == MHA_OK) status = mha_head_corpus_attach(m, corpus);
    status = together(r, status);
    if (status == MHA_OK) status = measure_texts(r, b, m);
    mha_head_corpus_destroy(corpus);
    mha_head_measures_destroy(m);
    return status;
}

/* The measures of all ranks equal those of one process. */
static void check_heads(const outcome *one, const outcome *many, int size)
{
    mha_head_measures *all = NULL, *m;
    mha_head_corpus *corpus = NULL, *c;
    mha_buffer state = {0};
    const mha_sink sink = mha_buffer_sink(&state);
    for (int r = 0; r < size; r++) {
        const mha_buffer *own = &many[r].heads;
        expect_ok(mha_head_state_read(context, own->data, own->size, NULL, &m, &c));
        if (r == 0) {
            all = m, corpus = c;
            continue;
        }
        expect_ok(mha_head_measures_merge_layers(all, m));
        expect_ok(mha_head_corpus_merge_layers(corpus, c));
        mha_head_corpus_destroy(c);
        mha_head_measures_destroy(m);
    }
    expect_ok(mha_head_state_write(all, &sink));
    assert_int_equal(state.size, one->heads.size);
    assert_memory_equal(state.data, one->heads.data, state.size);
    mha_buffer_free(&state);
    mha_head_corpus_destroy(corpus);
    mha_head_measures_destroy(all);
}

static void free_outcomes(outcome *all)
{
    for (int r = 0; r < MOST_THREAD_RANKS; r++) mha_buffer_free(&all[r].heads);
    free(all);
}

/* ---- a rank ----------------------------------------------------------------------------------- */

static void count_read(const void *user, int64_t parameter, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, float *to)
{
    const rank_run *r = user;
    stored_read(&r->source, parameter, row, rows, column, columns, to);
    r->out->reads[parameter]++;
    if (has(r, NUMBERS) && rows * columns == WIDTH) to[0] += 1;
}

static mha_status make(rank_run *r)
{
    const mha_transformer_source source = {.struct_size = sizeof source,
                                           .flags = r->c->source_flags,
                                           .read = count_read,
                                           .user = r,
                                           .transport = r->transport};
    MHA_TRY(mha_transformer_create_from(r->context, &r->c->desc, &source, &r->t));
    return mha_transformer_update(r->context, r->t);
}

static mha_status all_calls(rank_run *r, batch *b)
{
    draw(r, b);
    MHA_TRY(together(r, make(r)));
    MHA_TRY(forward_calls(r, b));
    MHA_TRY(kept_activations(r, b));
    MHA_TRY(logits_of_rows(r, b));
    MHA_TRY(measure_heads(r, b));
    MHA_TRY(long_step(r, b));
    return decoding(r, b);
}

/* All calls of a rank, or of the one process if t is NULL. */
static void run(void *user, const mha_transport *t)
{
    const course *c = user;
    batch *b = calloc(1, sizeof *b);
    rank_run r = {
        .c = c, .transport = t, .out = &c->outcomes[t ? t->rank : 0], .source = {.like = c->like}};
    failing_alloc memory = failing_alloc_make();
    r.spoils = t && t->rank == c->spoiled;
    r.out->size = 0;
    r.out->heads.size = 0;
    memset(r.out->reads, 0, sizeof r.out->reads);
    if (r.spoils) memory.fail_at = c->fail_at;
    mha_status status = b ? failing_context(&memory, 1, MHA_ISA_AUTO, &r.context) : MHA_ERR_NOMEM;
    if (status != MHA_OK)
        r.context = NULL, status = together(&r, status);
    else
        status = together(&r, MHA_OK);
    if (status == MHA_OK) status = all_calls(&r, b);
    r.out->status = status;
    snprintf(r.out->detail, sizeof r.out->detail, "%s", status != MHA_OK ? mha_error_detail() : "");
    mha_transformer_destroy(r.t);
    mha_context_destroy(r.context);
    r.out->memory = memory;
    free(b);
}

/* ---- the bits of one process ------------------------------------------------------------------ */

static outcome *make_outcomes(void)
{
    outcome *all = calloc(MOST_THREAD_RANKS, sizeof *all);
    assert_non_null(all);
    return all;
}

static course draw_course(uint64_t number, bool cross, mha_transformer **like)
{
    rng r = rng_make(rng_run_seed(), number);
    course c = {.seed = rng_next(&r), .spoiled = -1, .fail_at = -1};
    mha_transformer_desc d = decoded_draw(&r, cross);
    d.max_length = PROMPT;
    *like = decoded_make(&d, rng_next(&r));
    mha_transformer_describe(*like, &c.desc);
    c.like = *like;
    c.source_flags = rng_chance(&r, 0.5) ? MHA_SOURCE_PACK : 0;
    return c;
}

static void check_same(const outcome *one, const outcome *o, int size, int rank)
{
    if (o->status != MHA_OK) fail_msg("rank %d of %d: %s", rank, size, o->detail);
    assert_int_equal(o->size, one->size);
    assert_memory_equal(o->numbers, one->numbers, (size_t)one->size * sizeof(float));
}

/* One rank reads a layer's matrix. The first rank reads the embeddings, and the last one does too
 * if they are tied. */
static void check_reads(const course *c, int size)
{
    mha_parameter p;
    for (int64_t i = 0; i < mha_transformer_parameters(c->like); i++) {
        int readers = 0;
        expect_ok(mha_transformer_parameter(c->like, i, &p));
        for (int k = 0; k < size; k++) readers += c->outcomes[k].reads[i] > 0;
        if (p.kind == MHA_PARAMETER_MATRIX) assert_int_equal(readers, 1);
        if (p.kind != MHA_PARAMETER_MATRIX && i > 0) assert_int_equal(readers, size);
    }
}

static void any_number_of_ranks_gives_the_same_bits(void)
{
    static const int sizes[] = {1, 2, 3, 5, 11};
    outcome *one = make_outcomes(), *many = make_outcomes();
    for (int i = 0; i < rng_cases(24, 300); i++) {
        mha_transformer *like;
        course c = draw_course((uint64_t)i, i % 4 == 3, &like);
        c.outcomes = one;
        run(&c, NULL);
        if (one->status != MHA_OK) fail_msg("one process: %s", one->detail);
        assert_true(one->size > 100);
        c.outcomes = many;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            thread_ranks_run(sizes[k], run, &c, -1, 0);
            for (int r = 0; r < sizes[k]; r++) check_same(one, &many[r], sizes[k], r);
            check_reads(&c, sizes[k]);
            check_heads(one, many, sizes[k]);
        }
        mha_transformer_destroy(like);
    }
    free_outcomes(one);
    free_outcomes(many);
}

/* A layer belongs to the rank whose share of all numbers contains the layer's middle. The middles
 * of three equal layers without an output are at 1/6, 3/6 and 5/6. */
static void layers_are_shared_evenly(void)
{
    static const int owners[][3] = {{0, 0, 0}, {0, 1, 1}, {0, 1, 2},
                                    {0, 2, 3}, {0, 2, 4}, {1, 3, 5}};
    mha_parameter p;
    course c = {.seed = 2, .fail_at = -1, .spoiled = -1};
    c.desc = (mha_transformer_desc){.struct_size = sizeof c.desc,
                                    .flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_NO_OUTPUT,
                                    .vocab_size = VOCAB,
                                    .max_length = PROMPT,
                                    .embed_dim = WIDTH,
                                    .num_layers = 3,
                                    .num_heads = 4,
                                    .norm = MHA_NORM_RMS};
    mha_transformer *like = decoded_make(&c.desc, 5);
    c.like = like;
    mha_transformer_describe(like, &c.desc);
    c.outcomes = make_outcomes();
    for (int size = 1; size <= (int)(sizeof owners / sizeof *owners); size++) {
        thread_ranks_run(size, run, &c, -1, 0);
        for (int64_t i = 0; i < mha_transformer_parameters(like); i++) {
            expect_ok(mha_transformer_parameter(like, i, &p));
            if (p.kind != MHA_PARAMETER_MATRIX || p.layer < 0 || p.layer >= 3) continue;
            for (int r = 0; r < size; r++)
                assert_int_equal(c.outcomes[r].reads[i] > 0, r == owners[size - 1][p.layer]);
        }
    }
    mha_transformer_destroy(like);
    free_outcomes(c.outcomes);
}

/* ---- errors
 * ----------------------------------------------------------------------------------- */

static void check_all(const outcome *all, int size, mha_status status, const char *part)
{
    for (int r = 0; r < size; r++) {
        assert_int_equal(all[r].status, status);
        if (!strstr(all[r].detail, part))
            fail_msg("rank %d: '%s', expected '%s'", r, all[r].detail, part);
    }
}

static void ranks_that_differ_are_found(void)
{
    outcome *many = make_outcomes();
    for (int how = TOKEN; how <= CALLBACK; how++) {
        mha_transformer *like;
        course c = {.seed = 1, .fail_at = -1, .spoiled = 2};
        c.desc = (mha_transformer_desc){.struct_size = sizeof c.desc,
                                        .flags = MHA_TRANSFORMER_CAUSAL,
                                        .vocab_size = VOCAB,
                                        .max_length = PROMPT,
                                        .embed_dim = WIDTH,
                                        .num_layers = 3,
                                        .num_heads = 4,
                                        .norm = MHA_NORM_RMS};
        c.like = like = decoded_make(&c.desc, 5);
        mha_transformer_describe(like, &c.desc);
        c.outcomes = many;
        c.how = how;
        thread_ranks_run(4, run, &c, -1, 0);
        if (how == CALLBACK) /* during a call */
            check_all(many, 4, MHA_ERR_CALLBACK, "rank 2: has seen enough");
        else
            check_all(many, 4, MHA_ERR_ARGUMENT,
                      how == ROOM ? "rank 2: has another transformer or decoder than rank 0"
                                  : "rank 2: has another transformer or batch than rank 0");
        mha_transformer_destroy(like);
    }
    free_outcomes(many);
}

/* Each allocation of the first rank, and of a middle rank, fails. */
static void a_rank_without_memory_tells_all(void)
{
    outcome *many = make_outcomes();
    for (int spoiled = 0; spoiled < 2; spoiled++) {
        mha_transformer *like;
        course c = draw_course(40 + (uint64_t)spoiled, spoiled, &like);
        int refused = 0;
        c.outcomes = many;
        c.spoiled = spoiled;
        for (c.fail_at = 0;; c.fail_at++) {
            thread_ranks_run(3, run, &c, -1, 0);
            for (int r = 0; r < 3; r++)
                assert_true(many[r].memory.live == 0 && many[r].memory.mistakes == 0);
            if (many[spoiled].memory.calls <= c.fail_at) break;
            const bool refuses = many[spoiled].status != MHA_OK; /* some allocations are optional */
            check_all(many, 3, refuses ? MHA_ERR_NOMEM : MHA_OK,
                      !refuses  ? ""
                      : spoiled ? "rank 1: "
                                : "rank 0: ");
            refused += refuses;
        }
        assert_true(refused > 5 && many[0].status == MHA_OK);
        mha_transformer_destroy(like);
    }
    free_outcomes(many);
}

static void a_lost_rank_ends_the_call(void)
{
    mha_transformer *like;
    course c = draw_course(50, false, &like);
    outcome *many = c.outcomes = make_outcomes();
    int lost = 0;
    for (int64_t after = 0;; after += rng_long_run() ? 1 : 3) {
        thread_ranks_run(3, run, &c, 1, after);
        if (many[1].status == MHA_OK) break;
        for (int r = 0; r < 3; r++) lost += many[r].status == MHA_ERR_RANK;
        assert_true(many[1].status == MHA_ERR_RANK);
        assert_true(many[0].status == MHA_ERR_RANK || many[0].status == MHA_OK);
        assert_true(many[2].status == MHA_ERR_RANK || many[2].status == MHA_OK);
    }
    assert_true(lost > 10);
    mha_transformer_destroy(like);
    free_outcomes(many);
}

static mha_status no_message(void *user, int32_t rank, int32_t tag, const void *bytes, size_t count,
                             mha_transfer *transfer)
{
    (void)user, (void)tag, (void)bytes, (void)count, (void)transfer;
    return mha_fail(MHA_ERR_RANK, "rank %d cannot be reached", (int)rank);
}

static mha_status no_receipt(void *user, int32_t rank, int32_t tag, void *bytes, size_t count,
                             mha_transfer *transfer)
{
    return no_message(user, rank, tag, bytes, count, transfer);
}

static mha_status no_wait(void *user, mha_transfer *transfer)
{
    (void)user, (void)transfer;
    return MHA_OK;
}

static void no_cancel(void *user, mha_transfer *transfer)
{
    (void)user, (void)transfer;
}

static void what_is_refused(void)
{
    mha_transformer *like = NULL, *t = NULL;
    mha_activations *a = NULL;
    mha_decoder *decoder = NULL;
    batch *b = calloc(1, sizeof *b);
    assert_non_null(b);
    course c = draw_course(60, false, &like);
    mha_transport two = {.struct_size = sizeof two, .size = 2, .most_tag = 32767};
    stored numbers = {.like = like};
    const mha_transformer_source source = {
        .struct_size = sizeof source, .read = stored_read, .user = &numbers, .transport = &two};
#define CREATE() mha_transformer_create_from(context, &c.desc, &source, &t)
    expect_error(CREATE(), MHA_ERR_NULL, "send, receive, wait");
    two.size = 0;
    expect_error(CREATE(), MHA_ERR_ARGUMENT, "rank 0 of 0");
    assert_null(t);
    two = (mha_transport){.struct_size = sizeof two,
                          .size = 2,
                          .most_tag = 32767,
                          .send = no_message,
                          .receive = no_receipt,
                          .wait = no_wait,
                          .cancel = no_cancel};
    expect_ok(CREATE());
    expect_ok(mha_transformer_update(context, t));
    draw(&(rank_run){.c = &c}, b);
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_error(mha_transformer_forward(context, t, &b->input, a, &b->output, NULL, NULL),
                 MHA_ERR_RANK, "rank 1 cannot be reached");
    expect_error(mha_decoder_create(context, t, NULL, &decoder), MHA_ERR_RANK, "rank 1");
    const mha_transformer_gradients gradients = {.struct_size = sizeof gradients};
    expect_error(mha_transformer_backward(context, t, &b->input, a, &b->output, &gradients),
                 MHA_ERR_UNSUPPORTED, "spread over ranks");
    mha_model *model = NULL;
    const mha_model_options how = {
        .struct_size = sizeof how, .flags = MHA_MODEL_ARRAY, .transport = &two};
    expect_error(mha_model_load(context, "none", &how, &model), MHA_ERR_ARGUMENT,
                 "MHA_MODEL_ARRAY");
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
    mha_transformer_destroy(like);
    free(b);
#undef CREATE
}

/* ---- models ----------------------------------------------------------------------------------- */

static void load(void *user, const mha_transport *t)
{
    const course *c = user;
    outcome *out = &c->outcomes[t ? t->rank : 0];
    mha_context *own = NULL;
    mha_model *model = NULL;
    float *hidden = calloc(T * WIDTH, sizeof *hidden);
    static const int32_t ids[T] = {3, 1, 4, 1, 5, 9, 2};
    const mha_model_options how = {
        .struct_size = sizeof how, .flags = MHA_MODEL_NO_TOKENIZER, .transport = t};
    const mha_tensor last = mha_tensor_contiguous(hidden, MHA_F32, 3, (int64_t[]){1, T, WIDTH});
    const mha_batch tokens = {.struct_size = sizeof tokens, .batch = 1, .length = T, .ids = ids};
    const mha_model_outputs wanted = {.struct_size = sizeof wanted, .last_hidden = &last};
    const mha_context_desc one = {.struct_size = sizeof one, .num_threads = 1};
    mha_status status = hidden ? mha_context_create(&one, &own) : MHA_ERR_NOMEM;
    if (status == MHA_OK)
        status = mha_model_load(own, c->folders[t && t->rank == c->spoiled], &how, &model);
    if (status == MHA_OK) status = mha_model_forward(own, model, &tokens, &wanted);
    out->status = status;
    snprintf(out->detail, sizeof out->detail, "%s", mha_error_detail());
    out->size = T * WIDTH;
    if (hidden) memcpy(out->numbers, hidden, T * WIDTH * sizeof *hidden);
    mha_model_destroy(model);
    mha_context_destroy(own);
    free(hidden);
}

static void models_are_loaded_together(void)
{
    static const char *const names[] = {"a", "b", "c"};
    char folders[4][256];
    outcome *one = make_outcomes(), *many = make_outcomes();
    for (int i = 0; i < 3; i++) { /* b differs from a in its numbers, and c in its width */
        mha_transformer *t =
            decoded_make(&(mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                                 .flags = MHA_TRANSFORMER_CAUSAL,
                                                 .vocab_size = VOCAB,
                                                 .max_length = LENGTH,
                                                 .embed_dim = WIDTH,
                                                 .num_layers = 3,
                                                 .num_heads = 4,
                                                 .ff_dim = i == 2 ? 32 : 20,
                                                 .norm = MHA_NORM_RMS,
                                                 .positions = MHA_ENCODING_ROTARY,
                                                 .feed_forward = MHA_FEED_FORWARD_SWIGLU},
                         7);
        if (i == 1) mha_transformer_data(t)[mha_transformer_size(t) - VOCAB * WIDTH - 1] += 1;
        snprintf(folders[i], sizeof folders[i], "%s", temp_path(names[i]));
        expect_ok(mha_checkpoint_save(folders[i], t, NULL));
        mha_transformer_destroy(t);
    }
    snprintf(folders[3], sizeof folders[3], "%s", temp_path("none"));
    course c = {.spoiled = -1, .folders = {folders[0], folders[0]}, .outcomes = one};
    load(&c, NULL);
    if (one->status != MHA_OK) fail_msg("%s", one->detail);
    c.outcomes = many;
    for (int size = 1; size <= 6; size++) {
        thread_ranks_run(size, load, &c, -1, 0);
        for (int r = 0; r < size; r++) check_same(one, &many[r], size, r);
    }
    static const struct {
        int folder;
        mha_status status;
        const char *part;
    } rows[] = {{1, MHA_ERR_ARGUMENT, ": has other weights than at rank 0"},
                {2, MHA_ERR_ARGUMENT, ": has another configuration than at rank 0"},
                {3, MHA_ERR_FILE, "rank 1: "}};
    c.spoiled = 1;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        c.folders[1] = folders[rows[i].folder];
        thread_ranks_run(3, load, &c, -1, 0);
        check_all(many, 3, rows[i].status, rows[i].part);
    }
    free_outcomes(one);
    free_outcomes(many);
}

RUN_TESTS_BETWEEN(context_and_folder_begin, context_and_folder_end,
                  TEST(any_number_of_ranks_gives_the_same_bits), TEST(layers_are_shared_evenly),
                  TEST(ranks_that_differ_are_found), TEST(a_rank_without_memory_tells_all),
                  TEST(a_lost_rank_ends_the_call), TEST(what_is_refused),
                  TEST(models_are_loaded_together))
