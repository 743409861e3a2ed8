/* The model layer on a tiny BERT of the tests: results equal PyTorch's, bits do not depend on
 * padding, threads or other outputs, and failures have no side effects. */
#include <multihead/io.h>
#include <multihead/model.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/suite.h"
#include "support/temp_files.h"

#define TINY "tests/golden/tiny-bert"

enum { TEXTS = 7, L = 2, H = 3, E = 36, D = E / H, MOST = 128 };

/* One text of the golden file. */
typedef struct golden {
    int32_t ids[MOST], type_ids[MOST];
    int64_t length;
    mha_tensor attention, hidden; /* f64; data is NULL if not recorded */
    double attention_error[L], hidden_error[L + 1];
} golden;

/* All outputs of a pass for B sequences of T tokens. */
typedef struct results {
    float *attention[L], *hidden[L + 1], *last;
    mha_tensor attention_view[L], hidden_view[L + 1], last_view;
    mha_module_outputs module[L];
    const mha_module_outputs *module_pointer[L];
    const mha_tensor *hidden_pointer[L + 1];
    mha_model_outputs outputs;
    size_t map_bytes, state_bytes;
} results;

static mha_context *make_context(int threads, failing_alloc *state)
{
    mha_context_desc desc = {.struct_size = sizeof desc, .num_threads = threads};
    if (state) desc.allocator = failing_alloc_interface(state);
    mha_context *context = NULL;
    expect_ok(mha_context_create(&desc, &context));
    return context;
}

static mha_model *load_tiny(mha_context *context)
{
    const mha_model_options options = {.struct_size = sizeof options,
                                       .flags = MHA_MODEL_NO_TOKENIZER};
    mha_model *model = NULL;
    expect_ok(mha_model_load(context, TINY, &options, &model));
    return model;
}

static float *floats(int64_t count)
{
    float *memory = malloc((size_t)count * sizeof(float) + 1);
    assert_non_null(memory);
    memset(memory, 0xA5, (size_t)count * sizeof(float));
    return memory;
}

static results *make_results(int64_t B, int64_t T)
{
    results *r = calloc(1, sizeof *r);
    assert_non_null(r);
    const int64_t map[] = {B, H, T, T}, state[] = {B, T, E};
    r->map_bytes = (size_t)(B * H * T * T) * sizeof(float);
    r->state_bytes = (size_t)(B * T * E) * sizeof(float);
    for (int l = 0; l < L; l++) {
        r->attention[l] = floats(B * H * T * T);
        r->attention_view[l] = mha_tensor_contiguous(r->attention[l], MHA_F32, 4, map);
        r->module[l] = (mha_module_outputs){.struct_size = sizeof r->module[l],
                                            .probabilities = &r->attention_view[l]};
        r->module_pointer[l] = &r->module[l];
    }
    for (int l = 0; l <= L; l++) {
        r->hidden[l] = floats(B * T * E);
        r->hidden_view[l] = mha_tensor_contiguous(r->hidden[l], MHA_F32, 3, state);
        r->hidden_pointer[l] = &r->hidden_view[l];
    }
    r->last = floats(B * T * E);
    r->last_view = mha_tensor_contiguous(r->last, MHA_F32, 3, state);
    r->outputs = (mha_model_outputs){.struct_size = sizeof r->outputs,
                                     .last_hidden = &r->last_view,
                                     .hidden = r->hidden_pointer,
                                     .attention = r->module_pointer};
    return r;
}

static void free_results(results *r)
{
    for (int l = 0; l < L; l++) free(r->attention[l]);
    for (int l = 0; l <= L; l++) free(r->hidden[l]);
    free(r->last);
    free(r);
}

static void assert_same(const results *a, const results *b)
{
    assert_int_equal(a->map_bytes, b->map_bytes);
    for (int l = 0; l < L; l++) assert_memory_equal(a->attention[l], b->attention[l], a->map_bytes);
    for (int l = 0; l <= L; l++) assert_memory_equal(a->hidden[l], b->hidden[l], a->state_bytes);
    assert_memory_equal(a->last, b->last, a->state_bytes);
}

static bool untouched(const results *r)
{
    bool same = true;
    for (int l = 0; l < L; l++)
        for (size_t i = 0; i < r->map_bytes; i++) same &= ((uint8_t *)r->attention[l])[i] == 0xA5;
    for (int l = 0; l <= L; l++)
        for (size_t i = 0; i < r->state_bytes; i++) same &= ((uint8_t *)r->hidden[l])[i] == 0xA5;
    for (size_t i = 0; i < r->state_bytes; i++) same &= ((uint8_t *)r->last)[i] == 0xA5;
    return same;
}

/* ---- golden -------------------------------------------------------------------------------- */

static bool find(const mha_safetensors *file, int text, const char *what, mha_tensor *tensor)
{
    char name[64];
    snprintf(name, sizeof name, "%d.%s", text, what);
    int64_t index = mha_safetensors_find(file, name);
    *tensor = (mha_tensor){.data = NULL};
    return index >= 0 && mha_safetensors_tensor(file, index, tensor) == MHA_OK;
}

static golden read_golden(const mha_safetensors *file, int text)
{
    golden g = {.length = 0};
    mha_tensor ids, types, attention_error, hidden_error;
    assert_true(find(file, text, "ids", &ids));
    assert_true(find(file, text, "type_ids", &types));
    assert_true(find(file, text, "attention_error", &attention_error));
    assert_true(find(file, text, "hidden_error", &hidden_error));
    assert_true(find(file, text, "hidden", &g.hidden));
    find(file, text, "attention", &g.attention);
    assert_int_equal(ids.dtype, MHA_I32);
    assert_int_equal(g.hidden.dtype, MHA_F64);
    g.length = ids.shape[0];
    assert_true(g.length <= MOST);
    memcpy(g.ids, ids.data, (size_t)g.length * sizeof(int32_t));
    memcpy(g.type_ids, types.data, (size_t)g.length * sizeof(int32_t));
    memcpy(g.attention_error, attention_error.data, sizeof g.attention_error);
    memcpy(g.hidden_error, hidden_error.data, sizeof g.hidden_error);
    return g;
}

static mha_safetensors *open_golden(void)
{
    mha_safetensors *file = NULL;
    expect_ok(mha_safetensors_open(TINY "/golden.safetensors", &file));
    return file;
}

static mha_batch batch_of(const golden *g)
{
    return (mha_batch){.struct_size = sizeof(mha_batch),
                       .batch = 1,
                       .length = g->length,
                       .ids = g->ids,
                       .type_ids = g->type_ids};
}

static double worst(const float *got, const double *exact, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        double error = fabs((double)got[i] - exact[i]);
        if (!(error <= largest)) largest = error; /* NaN is kept */
    }
    return largest;
}

static void raise_to(double *largest, double value)
{
    if (!(value <= *largest)) *largest = value;
}

/* In a small model, the largest error of one text is random. Therefore, the test takes each layer's
 * largest error over all texts, for the library and for PyTorch. */
static void test_computes_what_torch_computes(void)
{
    mha_context *context = make_context(2, NULL);
    mha_model *model = load_tiny(context);
    mha_safetensors *file = open_golden();
    double own[2 * L + 1] = {0}, torch[2 * L + 1] = {0};
    for (int text = 0; text < TEXTS; text++) {
        golden g = read_golden(file, text);
        mha_batch batch = batch_of(&g);
        results *r = make_results(1, g.length);
        expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
        assert_memory_equal(r->last, r->hidden[L], r->state_bytes);
        int64_t T = g.length, maps = H * T * T, recorded = g.hidden.shape[0];
        for (int l = 0; g.attention.data && l < L; l++) {
            const double *exact = (const double *)g.attention.data + l * maps;
            raise_to(&own[l], worst(r->attention[l], exact, maps));
            raise_to(&torch[l], g.attention_error[l]);
        }
        for (int64_t l = L + 1 - recorded; l <= L; l++) { /* recorded layers */
            const double *exact = (const double *)g.hidden.data + (l + recorded - L - 1) * T * E;
            raise_to(&own[L + l], worst(r->hidden[l], exact, T * E));
            raise_to(&torch[L + l], g.hidden_error[l]);
        }
        free_results(r);
    }
    for (int i = 0; i < 2 * L + 1; i++) {
        print_message("%s %d: error %.2e, torch's float32 %.2e\n", i < L ? "attention" : "hidden",
                      i < L ? i : i - L, own[i], torch[i]);
        assert_true(own[i] <= 2 * torch[i]);
        assert_true(own[i] > 0.1 * torch[i]); /* otherwise the comparison would be void */
    }
    mha_safetensors_close(file);
    mha_model_destroy(model);
    mha_context_destroy(context);
}

static void test_describes_itself(void)
{
    mha_context *context = make_context(1, NULL);
    mha_model *model = load_tiny(context);
    mha_model_info info = {.struct_size = sizeof info};
    expect_ok(mha_model_describe(model, &info));
    assert_string_equal(info.architecture, "bert");
    assert_int_equal(info.layers, L);
    assert_int_equal(info.heads, H);
    assert_int_equal(info.kv_heads, H);
    assert_int_equal(info.hidden_size, E);
    assert_int_equal(info.head_dim, D);
    assert_int_equal(info.intermediate_size, 80);
    assert_int_equal(info.max_positions, MOST);
    assert_int_equal(info.type_vocab_size, 2);
    int64_t layer = 4 * (E * E + E) + 2 * E * 80 + 80 + E + 4 * E;
    assert_int_equal(info.parameters, (info.vocab_size + MOST + 2 + 2) * E + L * layer);
    assert_null(mha_model_tokenizer(model));
    assert_null(mha_model_tokenizer(NULL));
    info.struct_size = 0;
    expect_error(mha_model_describe(model, &info), MHA_ERR_ARGUMENT, "struct_size");
    expect_error(mha_model_describe(model, NULL), MHA_ERR_NULL, "NULL");
    mha_model_destroy(model);
    mha_model_destroy(NULL);
    mha_context_destroy(context);
}

/* ---- bits ---------------------------------------------------------------------------------- */

enum { BATCH = 4, PADDED = 45 };

/* Four texts of different lengths in one batch, padded with [PAD]. */
static void make_batch(const mha_safetensors *file, golden *texts, int32_t *ids, int32_t *types,
                       int64_t *lengths)
{
    memset(ids, 0, BATCH * PADDED * sizeof *ids);
    memset(types, 0, BATCH * PADDED * sizeof *types);
    for (int b = 0; b < BATCH; b++) {
        texts[b] = read_golden(file, (int[]){0, 2, 4, 5}[b]);
        lengths[b] = texts[b].length;
        memcpy(ids + b * PADDED, texts[b].ids, (size_t)lengths[b] * sizeof *ids);
        memcpy(types + b * PADDED, texts[b].type_ids, (size_t)lengths[b] * sizeof *types);
    }
}

static void assert_alone(const results *padded, const results *alone, int b, int64_t T)
{
    for (int l = 0; l < L; l++)
        for (int64_t row = 0; row < H * T; row++) {
            const float *full =
                padded->attention[l] + ((b * H + row / T) * PADDED + row % T) * PADDED;
            assert_memory_equal(full, alone->attention[l] + row * T, (size_t)T * sizeof(float));
            for (int64_t s = T; s < PADDED; s++) assert_true(full[s] == 0);
        }
    for (int l = 0; l <= L; l++)
        assert_memory_equal(padded->hidden[l] + b * PADDED * E, alone->hidden[l],
                            (size_t)(T * E) * sizeof(float));
}

static void test_padding_does_not_change_bits(void)
{
    mha_context *context = make_context(2, NULL);
    mha_model *model = load_tiny(context);
    mha_safetensors *file = open_golden();
    golden texts[BATCH];
    int32_t ids[BATCH * PADDED], types[BATCH * PADDED];
    int64_t lengths[BATCH];
    make_batch(file, texts, ids, types, lengths);
    const mha_batch batch = {sizeof batch, 0, BATCH, PADDED, ids, types, lengths, NULL};
    results *padded = make_results(BATCH, PADDED);
    expect_ok(mha_model_forward(context, model, &batch, &padded->outputs));
    for (int b = 0; b < BATCH; b++) {
        mha_batch one = batch_of(&texts[b]);
        results *alone = make_results(1, lengths[b]);
        expect_ok(mha_model_forward(context, model, &one, &alone->outputs));
        assert_alone(padded, alone, b, lengths[b]);
        free_results(alone);
    }
    free_results(padded);
    mha_safetensors_close(file);
    mha_model_destroy(model);
    mha_context_destroy(context);
}

static void test_threads_do_not_change_bits(void)
{
    mha_safetensors *file = open_golden();
    golden g = read_golden(file, 6);
    mha_batch batch = batch_of(&g);
    results *first = make_results(1, g.length);
    for (int i = 0; i < 4; i++) {
        mha_context *context = make_context((int[]){1, 2, 3, 8}[i], NULL);
        mha_model *model = load_tiny(context);
        results *r = i == 0 ? first : make_results(1, g.length);
        expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
        assert_same(first, r);
        if (i > 0) free_results(r);
        mha_model_destroy(model);
        mha_context_destroy(context);
    }
    free_results(first);
    mha_safetensors_close(file);
}

/* One buffer for the maps of both layers, compared when each layer is complete. */
typedef struct shared {
    const results *all;
    const float *buffer;
    int64_t calls;
    mha_status answer;
} shared;

static mha_status compare_layer(void *user, int64_t layer)
{
    shared *s = user;
    assert_int_equal(layer, s->calls++);
    assert_memory_equal(s->buffer, s->all->attention[layer], s->all->map_bytes);
    return s->answer;
}

static void test_outputs_do_not_change_bits(void)
{
    mha_context *context = make_context(2, NULL);
    mha_model *model = load_tiny(context);
    mha_safetensors *file = open_golden();
    golden g = read_golden(file, 4);
    mha_batch batch = batch_of(&g);
    results *all = make_results(1, g.length), *some = make_results(1, g.length);
    expect_ok(mha_model_forward(context, model, &batch, &all->outputs));
    /* No outputs, then only the last hidden state. */
    expect_ok(mha_model_forward(context, model, &batch, NULL));
    mha_model_outputs outputs = {.struct_size = sizeof outputs, .last_hidden = &some->last_view};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
    assert_memory_equal(all->last, some->last, all->state_bytes);
    /* One layer at a time, in one buffer. */
    shared s = {.all = all, .buffer = some->attention[0]};
    const mha_module_outputs *same[L] = {&some->module[0], &some->module[0]};
    outputs = (mha_model_outputs){.struct_size = sizeof outputs,
                                  .attention = same,
                                  .after_layer = compare_layer,
                                  .after_layer_user = &s};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
    assert_int_equal(s.calls, L);
    s.calls = 0;
    s.answer = MHA_ERR_CALLBACK;
    assert_int_equal(mha_model_forward(context, model, &batch, &outputs), MHA_ERR_CALLBACK);
    assert_int_equal(s.calls, 1);
    free_results(all);
    free_results(some);
    mha_safetensors_close(file);
    mha_model_destroy(model);
    mha_context_destroy(context);
}

/* Other outputs of a layer: q, k, v, heads, lse and the average are consistent. A request for only
 * averages, which need scratch for the maps, gives the same averages. */
static void test_layer_outputs(void)
{
    mha_context *context = make_context(2, NULL);
    mha_model *model = load_tiny(context);
    mha_safetensors *file = open_golden();
    golden g = read_golden(file, 0);
    int64_t T = g.length;
    mha_batch batch = batch_of(&g);
    results *r = make_results(1, T);
    float *q = floats(H * T * D), *k = floats(H * T * D), *lse = floats(H * T);
    float *mean = floats(T * T), *mean_alone = floats(T * T);
    mha_tensor qv = mha_tensor_bthd(q, 1, T, H, D), kv = mha_tensor_bthd(k, 1, T, H, D);
    mha_tensor lv = mha_tensor_contiguous(lse, MHA_F32, 3, (int64_t[]){1, H, T});
    mha_tensor mv = mha_tensor_contiguous(mean, MHA_F32, 3, (int64_t[]){1, T, T});
    mha_tensor av = mha_tensor_contiguous(mean_alone, MHA_F32, 3, (int64_t[]){1, T, T});
    r->module[1].q = &qv;
    r->module[1].k = &kv;
    r->module[1].lse = &lv;
    r->module[1].average_probabilities = &mv;
    expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
    for (int64_t h = 0; h < H; h++)
        for (int64_t t = 0; t < T; t++)
            for (int64_t s = 0; s < T; s++) {
                double score = 0, p = (double)r->attention[1][(h * T + t) * T + s];
                for (int64_t d = 0; d < D; d++)
                    score += (double)q[t * E + h * D + d] * (double)k[s * E + h * D + d];
                score = score / sqrt(D) - (double)lse[h * T + t];
                assert_true(fabs(exp(score) - p) < 1e-5);
            }
    const mha_module_outputs average = {.struct_size = sizeof average,
                                        .average_probabilities = &av};
    const mha_module_outputs *layers[L] = {NULL, &average};
    const mha_model_outputs outputs = {.struct_size = sizeof outputs, .attention = layers};
    expect_ok(mha_model_forward(context, model, &batch, &outputs));
    assert_memory_equal(mean, mean_alone, (size_t)(T * T) * sizeof(float));
    float *memory[] = {q, k, lse, mean, mean_alone};
    for (int i = 0; i < 5; i++) free(memory[i]);
    free_results(r);
    mha_safetensors_close(file);
    mha_model_destroy(model);
    mha_context_destroy(context);
}

static void test_empty_batches(void)
{
    mha_context *context = make_context(2, NULL);
    mha_model *model = load_tiny(context);
    const int64_t sizes[][2] = {{0, 5}, {3, 0}, {0, 0}};
    for (int i = 0; i < 3; i++) {
        const mha_batch batch = {
            .struct_size = sizeof batch, .batch = sizes[i][0], .length = sizes[i][1]};
        results *r = make_results(sizes[i][0], sizes[i][1]);
        expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
        free_results(r);
    }
    /* A batch has a sequence without tokens: no key is visible, and no result is NaN. */
    const int32_t ids[4] = {2, 3, 0, 0};
    const int64_t lengths[2] = {2, 0};
    const mha_batch batch = {sizeof batch, 0, 2, 2, ids, NULL, lengths, NULL};
    results *r = make_results(2, 2);
    expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
    for (int i = 0; i < 4 * H; i++) assert_true(r->attention[0][4 * H + i] == 0);
    for (int i = 0; i < 4 * E; i++) assert_true(isfinite(r->last[i]));
    free_results(r);
    mha_model_destroy(model);
    mha_context_destroy(context);
}

/* ---- errors -------------------------------------------------------------------------------- */

/* A call that must fail and must not change an output. */
typedef struct refusal {
    mha_context *context;
    mha_model *model;
    mha_batch batch;
    results *r;
} refusal;

static void refuse(const refusal *f, mha_status status, const char *part)
{
    expect_error(mha_model_forward(f->context, f->model, &f->batch, &f->r->outputs), status, part);
    assert_true(untouched(f->r));
}

static void test_refuses_batches(void)
{
    int32_t ids[6] = {2, 8, 3, 2, 9, 3}, types[6] = {0};
    int64_t lengths[2] = {3, 3};
    refusal f = {.context = make_context(1, NULL), .r = make_results(2, 3)};
    f.model = load_tiny(f.context);
    const mha_batch good = {sizeof good, 0, 2, 3, ids, types, lengths, NULL};
    f.batch = good;
    f.batch.struct_size = 8;
    refuse(&f, MHA_ERR_ARGUMENT, "mha_batch: struct_size is 8");
    f.batch = good;
    f.batch.reserved = 1;
    refuse(&f, MHA_ERR_UNSUPPORTED, "mha_batch: reserved is 1");
    f.batch = good;
    f.batch.batch = -1;
    refuse(&f, MHA_ERR_ARGUMENT, "negative");
    f.batch = good;
    f.batch.length = 10000;
    refuse(&f, MHA_ERR_SIZE, "10000 tokens, the model takes at most 128");
    f.batch = good;
    f.batch.batch = INT64_MAX / 2;
    refuse(&f, MHA_ERR_SIZE, "overflows");
    f.batch = good;
    f.batch.ids = NULL;
    refuse(&f, MHA_ERR_NULL, "ids is NULL");
    f.batch = good;
    ids[4] = -1;
    refuse(&f, MHA_ERR_ARGUMENT, "id of sequence 1, token 1 is -1");
    ids[4] = 30000;
    refuse(&f, MHA_ERR_ARGUMENT, "is 30000, the model has 0..");
    ids[4] = 9;
    types[2] = 2;
    refuse(&f, MHA_ERR_ARGUMENT, "type id of sequence 0, token 2 is 2, the model has 0..1");
    types[2] = 0;
    lengths[1] = 4;
    refuse(&f, MHA_ERR_ARGUMENT, "length of sequence 1 is 4, expected 0..3");
    lengths[1] = -1;
    refuse(&f, MHA_ERR_ARGUMENT, "length of sequence 1 is -1");
    expect_error(mha_model_forward(NULL, f.model, &good, NULL), MHA_ERR_NULL, "context");
    expect_error(mha_model_forward(f.context, NULL, &good, NULL), MHA_ERR_NULL, "model");
    expect_error(mha_model_forward(f.context, f.model, NULL, NULL), MHA_ERR_NULL, "batch");
    free_results(f.r);
    mha_model_destroy(f.model);
    mha_context_destroy(f.context);
}

/* The wrong output is in the last layer: the first must not be written. */
static void test_refuses_outputs(void)
{
    const int32_t ids[6] = {2, 8, 3, 2, 9, 3};
    refusal f = {.context = make_context(1, NULL), .r = make_results(2, 3)};
    f.model = load_tiny(f.context);
    f.batch = (mha_batch){sizeof f.batch, 0, 2, 3, ids, NULL, NULL, NULL};
    mha_tensor *map = &f.r->attention_view[L - 1], *last = &f.r->last_view, good = *map;
    map->shape[2] = 4;
    refuse(&f, MHA_ERR_SHAPE, "probabilities of layer 1: dim 2 is 4, expected 3");
    *map = good;
    map->ndim = 3;
    refuse(&f, MHA_ERR_SHAPE, "3 dimensions");
    *map = good;
    map->dtype = MHA_F64;
    refuse(&f, MHA_ERR_DTYPE, "f64");
    *map = good;
    map->data = NULL;
    refuse(&f, MHA_ERR_NULL, "data");
    *map = good;
    map->stride[3] = 2;
    refuse(&f, MHA_ERR_STRIDE, "contiguous");
    *map = good;
    map->stride[0] = 0;
    refuse(&f, MHA_ERR_STRIDE, "share memory");
    map->stride[0] = INT64_MIN;
    refuse(&f, MHA_ERR_SIZE, "stride");
    map->stride[0] = INT64_MAX / 64;
    refuse(&f, MHA_ERR_SIZE, "address space");
    *map = good;
    f.r->module[L - 1].struct_size = 4;
    refuse(&f, MHA_ERR_ARGUMENT, "mha_module_outputs: struct_size is 4");
    f.r->module[L - 1].struct_size = sizeof f.r->module[0];
    f.r->module[L - 1].reserved = 1;
    refuse(&f, MHA_ERR_UNSUPPORTED, "mha_module_outputs: reserved is 1");
    f.r->module[L - 1].reserved = 0;
    const mha_attention_outputs inner = {.struct_size = sizeof inner};
    f.r->module[L - 1].attention = &inner;
    refuse(&f, MHA_ERR_UNSUPPORTED, "the module's own outputs only");
    f.r->module[L - 1].attention = NULL;
    good = *last;
    last->data = (char *)last->data + 2;
    refuse(&f, MHA_ERR_STRIDE, "aligned");
    /* in memory of their own, because other results may follow on the heap */
    float *both = floats(2 * 2 * 3 * E);
    const mha_tensor state = f.r->hidden_view[L];
    f.r->hidden_view[L].data = both;
    last->data = both + 2 * 3 * E - 1;
    refuse(&f, MHA_ERR_OVERLAP, "last_hidden overlaps hidden state of layer 1");
    f.r->hidden_view[L] = state;
    *last = good;
    free(both);
    f.r->outputs.struct_size = 0;
    refuse(&f, MHA_ERR_ARGUMENT, "mha_model_outputs: struct_size is 0");
    f.r->outputs.struct_size = sizeof f.r->outputs;
    f.r->outputs.reserved = 1;
    refuse(&f, MHA_ERR_UNSUPPORTED, "mha_model_outputs: reserved is 1");
    f.r->outputs.reserved = 0;
    expect_ok(mha_model_forward(f.context, f.model, &f.batch, &f.r->outputs));
    free_results(f.r);
    mha_model_destroy(f.model);
    mha_context_destroy(f.context);
}

/* ---- memory -------------------------------------------------------------------------------- */

/* One pass in a new context whose allocation fail_at fails. Returns the number of allocations. */
static int64_t pass_with_failure(const golden *g, const results *want, int64_t fail_at, bool after,
                                 mha_status *status)
{
    failing_alloc model_memory = failing_alloc_make(), memory = failing_alloc_make();
    mha_context *loader = make_context(1, &model_memory);
    mha_context *context = make_context(2, &memory);
    mha_model *model = load_tiny(loader);
    mha_batch batch = batch_of(g);
    results *r = make_results(1, g->length);
    int64_t before = memory.calls;
    memory.fail_at = fail_at < 0 ? -1 : before + fail_at;
    memory.fail_after = after;
    *status = mha_model_forward(context, model, &batch, &r->outputs);
    int64_t calls = memory.calls - before;
    if (*status == MHA_OK) {
        assert_same(r, want);
    } else {
        assert_int_equal(*status, MHA_ERR_NOMEM);
        assert_true(untouched(r));
    }
    memory.fail_at = -1;
    memset(r->last, 0xA5, r->state_bytes);
    expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
    assert_same(r, want);
    int64_t steady = memory.calls;
    expect_ok(mha_model_forward(context, model, &batch, &r->outputs));
    assert_int_equal(memory.calls, steady);
    mha_model_destroy(model);
    mha_context_destroy(context);
    mha_context_destroy(loader);
    assert_int_equal(memory.live + memory.mistakes + model_memory.live + model_memory.mistakes, 0);
    free_results(r);
    return calls;
}

static void forward_without_memory(const golden *g)
{
    mha_batch batch = batch_of(g);
    mha_context *context = make_context(2, NULL);
    mha_model *model = load_tiny(context);
    results *want = make_results(1, g->length);
    expect_ok(mha_model_forward(context, model, &batch, &want->outputs));
    mha_status status = MHA_OK;
    int64_t calls = pass_with_failure(g, want, -1, false, &status), refused = 0;
    expect_ok(status);
    assert_true(calls > 0);
    for (int64_t i = 0; i <= calls; i++)
        for (int after = 0; after <= 1; after++) {
            pass_with_failure(g, want, i, after == 1, &status);
            refused += status != MHA_OK;
        }
    print_message("%lld tokens: %lld allocations, %lld failures reported\n", (long long)g->length,
                  (long long)calls, (long long)refused);
    assert_true(refused > 0);
    free_results(want);
    mha_model_destroy(model);
    mha_context_destroy(context);
}

static void test_forward_without_memory(void)
{
    mha_safetensors *file = open_golden();
    for (int text = 0; text < TEXTS; text++) {
        golden g = read_golden(file, text);
        forward_without_memory(&g);
    }
    mha_safetensors_close(file);
}

static void test_load_without_memory(void)
{
    const mha_model_options options = {.struct_size = sizeof options,
                                       .flags = MHA_MODEL_NO_TOKENIZER};
    int64_t i = 0;
    for (mha_status status = MHA_ERR_NOMEM; status != MHA_OK; i++) {
        failing_alloc memory = failing_alloc_make();
        mha_context *context = make_context(1, &memory);
        mha_model *model = NULL;
        memory.fail_at = memory.calls + i;
        status = mha_model_load(context, TINY, &options, &model);
        if (status != MHA_OK) {
            assert_int_equal(status, MHA_ERR_NOMEM);
            assert_null(model);
        }
        mha_model_destroy(model);
        mha_context_destroy(context);
        assert_int_equal(memory.live + memory.mistakes, 0);
    }
    print_message("%lld allocations\n", (long long)(i - 1));
    assert_true(i > 20);
}

RUN_TESTS(TEST(test_computes_what_torch_computes), TEST(test_describes_itself),
          TEST(test_padding_does_not_change_bits), TEST(test_threads_do_not_change_bits),
          TEST(test_outputs_do_not_change_bits), TEST(test_layer_outputs), TEST(test_empty_batches),
          TEST(test_refuses_batches), TEST(test_refuses_outputs), TEST(test_forward_without_memory),
          TEST(test_load_without_memory))
