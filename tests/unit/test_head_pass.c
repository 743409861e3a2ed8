/* A pass of a text through a transformer: its measures are bit-identical to those of complete maps
 * and outputs of a forward call; interrupted passes; ranks, words and repeated tokens computed by
 * hand. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/layers.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/stored.h"
#include "support/suite.h"

#include <multihead/head_pass.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 3, H = 4, D = 3, E = 8, MOST_T = 12, VOCAB = 7, MAPS = L * H * MOST_T * MOST_T };

/* A transformer whose middle layer may lack heads, and a text for it. */
typedef struct example {
    mha_transformer *t;
    int64_t heads[L], T;
    int32_t ids[MOST_T], type_ids[MOST_T];
    uint8_t separators[MOST_T];
    mha_tensor tokens, types;
    mha_transformer_input input;
    mha_heads_text text;
} example;

static void make_net(mha_context *context, rng *r, example *e)
{
    for (int l = 0; l < L; l++) e->heads[l] = H;
    if (rng_chance(r, 0.5)) e->heads[1] = rng_between(r, 0, H - 1);
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .vocab_size = VOCAB,
                              .max_length = MOST_T,
                              .num_layers = L,
                              .num_heads = H,
                              .head_dim = D,
                              .embed_dim = E,
                              .ff_dim = 5,
                              .type_count = 2,
                              .norm = (mha_norm)rng_between(r, 0, 2),
                              .positions = MHA_ENCODING_LEARNED,
                              .layer_heads = e->heads,
                              .layer_kv_heads = e->heads};
    mha_layer_desc layers[L];
    if (rng_chance(r, 0.5)) d.flags |= MHA_TRANSFORMER_CAUSAL;
    layers_draw(r, &d, layers);
    if (rng_chance(r, 0.5)) d.layers = layers;
    if (mha_transformer_create(context, &d, &e->t) != MHA_OK) fail_msg("%s", mha_error_detail());
    const mha_transformer_init init = {
        .struct_size = sizeof init, .seed = rng_next(r), .embedding_std = 1, .position_std = 1};
    expect_ok(mha_transformer_initialise(context, e->t, &init));
}

static example *example_make(mha_context *context, rng *r)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    make_net(context, r, e);
    e->T = rng_between(r, 1, MOST_T);
    for (int64_t i = 0; i < e->T; i++) {
        e->ids[i] = (int32_t)rng_between(r, 0, VOCAB - 1);
        e->type_ids[i] = (int32_t)rng_between(r, 0, 1);
        e->separators[i] = rng_chance(r, 0.3);
    }
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (int64_t[]){1, e->T});
    e->types = mha_tensor_contiguous(e->type_ids, MHA_I32, 2, (int64_t[]){1, e->T});
    e->input = (mha_transformer_input){
        .struct_size = sizeof e->input, .tokens = &e->tokens, .token_types = &e->types};
    e->text = (mha_heads_text){.struct_size = sizeof e->text, .separators = e->separators};
    return e;
}

static void example_free(example *e)
{
    mha_transformer_destroy(e->t);
    free(e);
}

/* Measures and distances of one pass, or of direct calls. */
typedef struct found {
    mha_head_measures *measures;
    mha_head_distances *distances[L];
} found;

static mha_status found_make(mha_context *context, const example *e, found *f)
{
    const mha_head_measures_desc d = {
        .struct_size = sizeof d, .layers = L, .heads = e->heads, .rare_rank = -1};
    *f = (found){0};
    mha_status status = mha_head_measures_create(context, &d, &f->measures);
    for (int l = 0; l < L && status == MHA_OK; l++)
        status = mha_head_pass_distances(context, e->t, l, &f->distances[l]);
    return status;
}

static void found_free(found *f)
{
    mha_head_measures_destroy(f->measures);
    for (int l = 0; l < L; l++) mha_head_distances_destroy(f->distances[l]);
}

static mha_head_pass pass_of(const found *f)
{
    return (mha_head_pass){
        .struct_size = sizeof(mha_head_pass), .measures = f->measures, .distances = f->distances};
}

/* ---- the pass -------------------------------------------------------------------------------- */

static mha_tensor single(const mha_tensor *batch)
{
    mha_tensor x = *batch;
    x.ndim--;
    memmove(x.shape, x.shape + 1, (size_t)x.ndim * sizeof *x.shape);
    memmove(x.stride, x.stride + 1, (size_t)x.ndim * sizeof *x.stride);
    return x;
}

/* The text that the measures of a layer need. */
static mha_heads_text text_of_layer(const example *e, const mha_heads_text *text, int l)
{
    mha_heads_text x = *text;
    mha_transformer_desc d;
    mha_transformer_describe(e->t, &d);
    if (!d.layers || !(d.layers[l].flags & MHA_LAYER_WINDOW)) return x;
    x.flags |= MHA_HEADS_WINDOW;
    x.left_keys = d.layers[l].left_keys;
    x.right_keys = d.layers[l].right_keys;
    x.sink_keys = d.layers[l].sink_keys;
    return x;
}

/* W_O of a layer in the layout of head_distances.h, from the flat array. */
static mha_head_distances *distances_by_hand(mha_context *context, const example *e, int l)
{
    mha_parameter p;
    mha_head_distances *made = NULL;
    if (e->heads[l] == 0) return NULL;
    expect_ok(mha_transformer_find(e->t, l, "self_attn.o_proj.weight", &p));
    mha_tensor w = mha_tensor_contiguous(mha_transformer_data(e->t) + p.offset, MHA_F32, 3,
                                         (int64_t[]){e->heads[l], D, E});
    w.stride[0] = D, w.stride[1] = 1, w.stride[2] = e->heads[l] * D;
    expect_ok(mha_head_distances_create(context, e->heads[l], D, &w, &made));
    return made;
}

static void feed_by_hand(mha_context *context, const example *e, const mha_heads_text *text,
                         found *f)
{
    static float maps[MAPS], logits[MOST_T * VOCAB];
    const mha_tensor all =
        mha_tensor_contiguous(maps, MHA_F32, 5, (int64_t[]){L, 1, H, e->T, e->T});
    const mha_tensor out = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, e->T, VOCAB});
    mha_activations *kept = NULL;
    expect_ok(mha_activations_create(context, e->t, e->T, 0, &kept));
    expect_ok(mha_transformer_forward(context, e->t, &e->input, kept, &out, &all, NULL));
    for (int l = 0; l < L; l++) { /* a text for each layer; the others get no rows */
        const mha_heads_text own = text_of_layer(e, text, l);
        const mha_tensor rows = mha_tensor_contiguous(maps + l * H * e->T * e->T, MHA_F32, 3,
                                                      (int64_t[]){e->heads[l], e->T, e->T});
        mha_layer_view view = {.struct_size = sizeof view};
        if (e->heads[l] == 0) continue;
        mha_head_distances_destroy(f->distances[l]);
        f->distances[l] = distances_by_hand(context, e, l);
        expect_ok(mha_activations_layer(kept, l, MHA_PART_SELF_ATTENTION, &view));
        const mha_tensor input = single(&view.input), heads = single(&view.heads);
        expect_ok(mha_head_measures_begin(f->measures, &own));
        expect_ok(mha_head_measures_inputs(f->measures, l, &input));
        expect_ok(mha_head_measures_rows(f->measures, l, 0, &rows));
        expect_ok(mha_head_measures_end(f->measures));
        expect_ok(mha_head_distances_rows(f->distances[l], &rows));
        expect_ok(mha_head_distances_outputs(f->distances[l], &heads));
    }
    mha_activations_destroy(kept);
}

static int64_t expect_equal(const example *e, const found *a, const found *b)
{
    int64_t rows = 0;
    for (int l = 0; l < L; l++)
        for (int64_t h = 0; h < e->heads[l]; h++) {
            for (int which = 0; which < MHA_MEASURES; which++) {
                const mha_head_score x = mha_head_measures_score(a->measures, l, h,
                                                                 (mha_head_measure)which),
                                     y = mha_head_measures_score(b->measures, l, h,
                                                                 (mha_head_measure)which);
                rows += x.rows;
                if (memcmp(&x, &y, sizeof x) != 0)
                    fail_msg("layer %d head %lld: %s is %.17g, by hand %.17g", l, (long long)h,
                             mha_measure_describe((mha_head_measure)which).name, x.value, y.value);
            }
            for (int64_t g = 0; g < h; g++) {
                const mha_head_pair x = mha_head_distances_pair(a->distances[l], g, h),
                                    y = mha_head_distances_pair(b->distances[l], g, h);
                assert_true(x.map_rows == e->T);
                assert_memory_equal(&x, &y, sizeof x);
            }
        }
    return rows;
}

static void a_pass_is_maps_by_hand(void)
{
    int64_t rows = 0;
    for (int i = 0; i < rng_cases(40, 600); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        found whole, hand;
        int64_t ids[MOST_T];
        expect_ok(found_make(context, e, &whole));
        expect_ok(found_make(context, e, &hand));
        mha_heads_text text = e->text;
        mha_transformer_desc d;
        mha_transformer_describe(e->t, &d);
        for (int64_t k = 0; k < e->T; k++) ids[k] = e->ids[k];
        text.queries = text.keys = e->T;
        text.ids = ids;
        if (d.flags & MHA_TRANSFORMER_CAUSAL) text.flags |= MHA_HEADS_CAUSAL;
        const mha_head_pass pass = pass_of(&whole);
        if (i % 4 == 0)
            e->text.flags = MHA_HEADS_CAUSAL; /* the pass derives the flag from the
                                                           * transformer */
        expect_ok(mha_head_pass_run(context, e->t, &e->input, &e->text, &pass));
        feed_by_hand(context, e, &text, &hand);
        rows += expect_equal(e, &whole, &hand);
        found_free(&whole);
        found_free(&hand);
        example_free(e);
    }
    if (rng_whole_sample()) assert_true(rows > 1000);
}

typedef struct calls {
    int64_t layer, row, count, stop_at;
} calls;

static mha_status count_calls(void *user, int64_t layer, int64_t row)
{
    calls *c = user;
    assert_true(layer > c->layer || (layer == c->layer && row > c->row) || c->count == 0);
    c->layer = layer, c->row = row;
    return c->count++ == c->stop_at ? MHA_ERR_CALLBACK : MHA_OK;
}

/* An interrupted pass closes its text; the next pass is the only one in measures that had not begun. */
static void a_pass_breaks_off(void)
{
    rng r = rng_make(7, 0);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r);
    found broken, fresh;
    calls c = {.stop_at = 0};
    expect_ok(found_make(context, e, &broken));
    expect_ok(found_make(context, e, &fresh));
    mha_head_pass pass = {.struct_size = sizeof pass,
                          .measures = broken.measures,
                          .progress = count_calls,
                          .progress_user = &c};
    assert_int_equal(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_CALLBACK);
    assert_int_equal(c.count, 1);
    c = (calls){.stop_at = -1};
    pass.distances = broken.distances;
    expect_ok(mha_head_pass_run(context, e->t, &e->input, NULL, &pass));
    assert_int_equal(c.layer, L - 1);
    const mha_head_pass other = pass_of(&fresh);
    expect_ok(mha_head_pass_run(context, e->t, &e->input, NULL, &other));
    expect_equal(e, &broken, &fresh);
    const mha_head_details d = mha_head_measures_details(broken.measures, 0, 0);
    assert_true(d.column_text <= 0); /* the first text that ended */
    found_free(&broken);
    found_free(&fresh);
    example_free(e);
}

/* State of the caller's callbacks. */
typedef struct seen {
    int64_t layers, stop_at;
} seen;

static mha_status see_layer(void *user, const mha_activations *kept, int64_t layer)
{
    seen *s = user;
    mha_layer_view view = {.struct_size = sizeof view};
    assert_int_equal(layer, s->layers++);
    expect_ok(mha_activations_layer(kept, layer, MHA_PART_SELF_ATTENTION, &view));
    return layer == s->stop_at ? MHA_ERR_CALLBACK : MHA_OK;
}

/* One run provides the caller's outputs, the calls of after_layer, and the measures. */
static void the_caller_sees_the_same_run(void)
{
    rng r = rng_make(9, 0);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r);
    static float maps[2][H * MOST_T * MOST_T];
    mha_tensor map[2];
    found f;
    seen s = {.stop_at = -1};
    for (int i = 0; i < 2; i++)
        map[i] = mha_tensor_contiguous(maps[i], MHA_F32, 4, (int64_t[]){1, H, e->T, e->T});
    mha_attention_outputs outputs = {.struct_size = sizeof outputs, .probabilities = &map[0]};
    const mha_attention_outputs *wanted[L] = {&outputs};
    e->input.outputs = wanted;
    expect_ok(mha_transformer_forward(context, e->t, &e->input, NULL, NULL, NULL, NULL));
    outputs.probabilities = &map[1];
    e->input.after_layer = see_layer, e->input.after_layer_user = &s;
    expect_ok(found_make(context, e, &f));
    const mha_head_pass pass = pass_of(&f);
    expect_ok(mha_head_pass_run(context, e->t, &e->input, NULL, &pass));
    assert_int_equal(s.layers, L);
    assert_memory_equal(maps[0], maps[1], (size_t)(H * e->T * e->T) * sizeof(float));
    assert_true(mha_head_measures_score(f.measures, 0, 0, MHA_MEASURE_SINK).rows > 0);
    s = (seen){.stop_at = 1};
    assert_int_equal(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_CALLBACK);
    assert_int_equal(s.layers, 2);
    found_free(&f);
    example_free(e);
}

static void misuse_is_refused(void)
{
    rng r = rng_make(8, 0);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r);
    found f;
    expect_ok(found_make(context, e, &f));
    mha_head_pass pass = pass_of(&f);
    expect_error(mha_head_pass_run(NULL, e->t, &e->input, NULL, &pass), MHA_ERR_NULL, "context");
    expect_error(mha_head_pass_run(context, NULL, &e->input, NULL, &pass), MHA_ERR_NULL,
                 "transformer");
    expect_error(mha_head_pass_run(context, e->t, NULL, NULL, &pass), MHA_ERR_NULL, "input");
    expect_error(mha_head_pass_run(context, e->t, &e->input, NULL, NULL), MHA_ERR_NULL, "pass");
    pass.flags = 4;
    expect_error(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_UNSUPPORTED,
                 "flags 0x4");
    pass.flags = MHA_HEAD_PASS_CROSS;
    expect_error(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_ARGUMENT,
                 "no distances");
    mha_head_distances *const *distances = pass.distances;
    pass.distances = NULL;
    expect_error(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_ARGUMENT,
                 "requires a transformer with cross-attention");
    pass.distances = distances;
    pass.flags = MHA_HEAD_PASS_OWN_LAYERS; /* all of them */
    e->text.keys = MOST_T + 1;
    expect_error(mha_head_pass_run(context, e->t, &e->input, &e->text, &pass), MHA_ERR_ARGUMENT,
                 "keys");
    e->text.keys = 0, e->text.q_offset = 3;
    expect_error(mha_head_pass_run(context, e->t, &e->input, &e->text, &pass), MHA_ERR_ARGUMENT,
                 "q_offset is 3");
    const int64_t none = 0;
    e->input.lengths = &none;
    expect_error(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_ARGUMENT,
                 "without padding");
    e->input.lengths = NULL;
    e->ids[0] = VOCAB;
    assert_int_equal(mha_head_pass_run(context, e->t, &e->input, NULL, &pass), MHA_ERR_ARGUMENT);
    e->ids[0] = 0;
    expect_ok(mha_head_pass_run(context, e->t, &e->input, NULL, &pass)); /* no text is open */
    mha_head_distances *d = NULL;
    expect_error(mha_head_pass_distances(context, e->t, L, &d), MHA_ERR_ARGUMENT, "layer 3");
    expect_error(mha_head_pass_distances(context, e->t, 0, NULL), MHA_ERR_NULL, "distances");
    found_free(&f);
    example_free(e);
}

static mha_status made_and_run(mha_context *context, failing_alloc *memory, void *user)
{
    rng r = rng_make(9, 0);
    example *e = example_make(context, &r);
    mha_transformer *own = e->t;
    found f;
    stored source;
    (void)user;
    e->t = stored_transformer(context, own, 0, &source);
    failing_from_here(memory);
    mha_status status = found_make(context, e, &f);
    const mha_head_pass pass = pass_of(&f);
    if (status == MHA_OK) status = mha_head_pass_run(context, e->t, &e->input, &e->text, &pass);
    found_free(&f);
    example_free(e);
    mha_transformer_destroy(own);
    return status;
}

static void failed_allocations_are_reported(void)
{
    assert_true(failing_each(made_and_run, NULL) > 5);
}

/* ---- texts ----------------------------------------------------------------------------------- */

static void ranks(void)
{
    mha_context *context = machines_context(1, 0);
    const int64_t counts[] = {2, 0, 5, 2, 1, 0}, wanted[] = {1, 0, 0, 2, 3, 0};
    int64_t got[6], kinds = 0;
    expect_ok(mha_head_pass_ranks(context, 6, counts, got, &kinds));
    assert_int_equal(kinds, 4);
    assert_memory_equal(got, wanted, sizeof got);
    expect_ok(mha_head_pass_ranks(context, 0, counts, got, NULL));
    expect_error(mha_head_pass_ranks(context, 1, NULL, got, NULL), MHA_ERR_NULL, "counts");
    expect_error(mha_head_pass_ranks(context, -1, counts, got, NULL), MHA_ERR_ARGUMENT, "is -1");
    expect_error(mha_head_pass_ranks(context, 1, (int64_t[]){-1}, got, NULL), MHA_ERR_ARGUMENT,
                 "counts[0]");
    assert_memory_equal(got, wanted, sizeof got);
}

/* "ab cd. efg": ab and efg have two tokens each, no token begins in cd, and the full stop is not a
 * word. */
static void words(void)
{
    const int64_t token[] = {-1, 0, 1, 5, 7, 9, -1}, begin[] = {0, 3, 7}, end[] = {2, 5, 10};
    const int64_t wanted[] = {-1, 0, 0, -1, 1, 1, -1}, numbers[] = {0, -1, 1};
    int64_t word_of[7], number[3];
    expect_ok(mha_head_pass_words(7, token, 3, begin, end, word_of, number));
    assert_memory_equal(word_of, wanted, sizeof wanted);
    assert_memory_equal(number, numbers, sizeof numbers);
    expect_ok(mha_head_pass_words(0, NULL, 3, begin, end, NULL, number));
    assert_true(number[0] == -1 && number[1] == -1 && number[2] == -1);
    expect_error(mha_head_pass_words(7, token, 3, begin, NULL, word_of, number), MHA_ERR_NULL,
                 "words");
    expect_error(mha_head_pass_words(-1, token, 3, begin, end, word_of, number), MHA_ERR_ARGUMENT,
                 "-1 tokens");
}

static void repeated_tokens(void)
{
    mha_repeated_tokens d = {
        .struct_size = sizeof d, .block = 5, .repeats = 3, .first = 90, .last = -1, .seed = 1};
    int32_t pool[20], tokens[17], again[17];
    uint8_t special[17];
    int64_t count, chosen[20] = {0};
    for (uint64_t s = 0; s < 400; s++) {
        for (int i = 0; i < 20; i++) pool[i] = i;
        d.sequence = s;
        expect_ok(mha_head_pass_repeated(&d, 20, pool, tokens, special, &count));
        assert_true(count == 16 && tokens[0] == 90 && special[0] == 1);
        for (int i = 0; i < 15; i++) {
            assert_true(special[1 + i] == 0 && tokens[1 + i] == pool[i % 5]);
            for (int k = 0; k < i % 5; k++) assert_true(pool[k] != tokens[1 + i]);
        }
        for (int i = 0; i < 5; i++) chosen[pool[i]]++;
    }
    /* 400 draws of 5 out of 20: the mean is 100 for each, and the standard deviation is 8.7 */
    for (int i = 0; i < 20; i++) assert_true(chosen[i] > 100 - 52 && chosen[i] < 100 + 52);
    for (int i = 0; i < 20; i++) pool[i] = i;
    expect_ok(mha_head_pass_repeated(&d, 20, pool, again, special, &count));
    assert_memory_equal(again, tokens, 16 * sizeof *tokens);
    d.last = 91;
    expect_ok(mha_head_pass_repeated(&d, 20, pool, again, special, &count));
    assert_true(count == 17 && again[16] == 91 && special[16] == 1);
    d.block = 21;
    expect_error(mha_head_pass_repeated(&d, 20, pool, again, special, &count), MHA_ERR_ARGUMENT,
                 "3 times 21 of 20");
    d.block = 5, d.repeats = 0;
    expect_error(mha_head_pass_repeated(&d, 20, pool, again, special, &count), MHA_ERR_ARGUMENT,
                 "0 times");
    d.repeats = INT64_MAX / 4;
    expect_error(mha_head_pass_repeated(&d, 20, pool, again, special, &count), MHA_ERR_SIZE, "");
    expect_error(mha_head_pass_repeated(&d, 20, NULL, again, special, &count), MHA_ERR_NULL,
                 "pool");
}

RUN_TESTS(TEST(a_pass_is_maps_by_hand), TEST(a_pass_breaks_off), TEST(the_caller_sees_the_same_run),
          TEST(misuse_is_refused), TEST(failed_allocations_are_reported), TEST(ranks), TEST(words),
          TEST(repeated_tokens))
