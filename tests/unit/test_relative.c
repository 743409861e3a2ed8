/* Content-position terms: maps match simple loops in double for every kind of embedding. Batches, lengths, threads,
 * pruning and kept activations change no bit, views and patches include the terms, and descriptions are checked. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/attribution.h>
#include <multihead/head_pass.h>
#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 2, B = 2, T = 21, V = 17, H = 3, E = 15, D = 5, R = 14, CELLS = B * H * T * T };

#define C2P MHA_LAYER_CONTENT_TO_POSITION
#define P2C MHA_LAYER_POSITION_TO_CONTENT
#define SHARED MHA_LAYER_RELATIVE_SHARED
#define TABLE MHA_LAYER_RELATIVE_TABLE

/* Some distances are beyond the rows, others in buckets. */
static const struct kind {
    uint32_t flags;
    int64_t rows, buckets, most;
    float scale;
} kinds[] = {{C2P | P2C, R, 7, 16, 0.25f},
             {C2P, R, 0, 0, 0},
             {P2C, 2 * T + 1, 0, 0, 0.3f},
             {C2P | P2C | SHARED, R, 6, 19, 0},
             {C2P | P2C | TABLE, 2 * T - 1, 0, 0, 0},
             {P2C | TABLE, 3, 0, 0, -0.5f},
             {P2C | SHARED, 1, 0, 0, 0}};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

static mha_layer_desc layers[L];

static mha_transformer_desc describe(const struct kind *kind)
{
    const bool norm = !(kind->flags & TABLE) && kind->scale > 0;
    for (int i = 0; i < L; i++)
        layers[i] = (mha_layer_desc){.struct_size = sizeof layers[i],
                                     .flags = kind->flags,
                                     .scale = kind->scale,
                                     .relative_rows = kind->rows,
                                     .relative_buckets = kind->buckets,
                                     .relative_max_distance = kind->most};
    return (mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                  .flags = MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_BIAS |
                                           MHA_TRANSFORMER_NO_OUTPUT |
                                           (norm ? MHA_TRANSFORMER_RELATIVE_NORM : 0),
                                  .vocab_size = V,
                                  .max_length = T,
                                  .embed_dim = E,
                                  .num_layers = L,
                                  .num_heads = H,
                                  .ff_dim = 8,
                                  .norm = MHA_NORM_LAYER,
                                  .layers = layers};
}

static mha_transformer *make(mha_context *context, const struct kind *kind)
{
    const mha_transformer_desc d = describe(kind);
    return normal_transformer(context, rng_make(6, 0), 0.5f, &d);
}

/* ---- simple loops ---------------------------------------------------------------------------- */

static const float *numbers(mha_transformer *t, int layer, const char *name)
{
    mha_parameter p;
    return mha_transformer_find(t, layer, name, &p) == MHA_OK ? mha_transformer_data(t) + p.offset
                                                              : NULL;
}

/* The row of a distance i - j, by the formula of transformer.h. */
static int64_t row_of(const struct kind *k, int distance)
{
    const double half = (double)(k->buckets / 2), size = abs(distance);
    double bucket = size;
    if (k->buckets > 0 && size > half)
        bucket =
            ceil((half - 1) * log(size / half) / log((double)(k->most - 1) / half) - 1e-9) + half;
    const int64_t row = (int64_t)(distance < 0 ? -bucket : bucket) + k->rows / 2;
    return row < 0 ? 0 : row >= k->rows ? k->rows - 1 : row;
}

/* Row r of embed_relative after its norm. */
static void embed(mha_transformer *t, int64_t r, double *e)
{
    const float *weight = numbers(t, -1, "relative_norm.weight"),
                *bias = numbers(t, -1, "relative_norm.bias");
    double mean = 0, squares = 0;
    for (int i = 0; i < E; i++) {
        e[i] = (double)numbers(t, -1, "embed_relative.weight")[r * E + i];
        mean += e[i] / E;
    }
    for (int i = 0; i < E; i++) squares += (e[i] - mean) * (e[i] - mean) / E;
    for (int i = 0; i < E && weight; i++)
        e[i] = (e[i] - mean) / sqrt(squares + 1e-5) * (double)weight[i] + (double)bias[i];
}

/* a_r of a head, or b_r. */
static void position(mha_transformer *t, int layer, const struct kind *k, bool keys, int64_t r,
                     int h, double *to)
{
    char name[64], bias[64];
    double e[E];
    if (k->flags & TABLE) {
        const float *table = numbers(t, layer, "self_attn.distance_embedding.weight");
        for (int d = 0; d < D; d++) to[d] = (double)table[r * D + d];
        return;
    }
    const char *own = k->flags & SHARED ? "" : "position_";
    snprintf(name, sizeof name, "self_attn.%s%c_proj.weight", own, keys ? 'q' : 'k');
    snprintf(bias, sizeof bias, "self_attn.%s%c_proj.bias", own, keys ? 'q' : 'k');
    embed(t, r, e);
    for (int d = 0; d < D; d++) {
        to[d] = (double)numbers(t, layer, bias)[h * D + d];
        for (int i = 0; i < E; i++)
            to[d] += (double)numbers(t, layer, name)[(h * D + d) * E + i] * e[i];
    }
}

static double element(const mha_tensor *x, int b, int h, int row, int d)
{
    return (double)((const float *)x->data)[b * x->stride[0] + h * x->stride[1] +
                                            row * x->stride[2] + d * x->stride[3]];
}

static double score(mha_transformer *t, int layer, const struct kind *k, const mha_layer_view *view,
                    int b, int h, int i, int j)
{
    const double scale = k->scale > 0 || k->scale < 0 ? (double)k->scale : 1 / sqrt(D);
    double a[D] = {0}, c[D] = {0}, sum = 0;
    if (k->flags & C2P) position(t, layer, k, false, row_of(k, i - j), h, a);
    if (k->flags & P2C) position(t, layer, k, true, row_of(k, i - j), h, c);
    for (int d = 0; d < D; d++) {
        const double q = element(&view->q, b, h, i, d), key = element(&view->k, b, h, j, d);
        sum += q * key + q * a[d] + c[d] * key;
    }
    return scale * sum;
}

/* ---- runs ------------------------------------------------------------------------------------ */

typedef struct run {
    float maps[L * CELLS], hidden[B * T * E];
} run;

static mha_tensor maps_of(const float *data, int64_t batch, int64_t n)
{
    union {
        const float *in;
        void *out;
    } pointer = {data};
    return mha_tensor_contiguous(pointer.out, MHA_F32, 5, (const int64_t[]){L, batch, H, n, n});
}

static void forward(mha_context *context, mha_transformer *t, const mha_tensor *tokens,
                    const int64_t *lengths, mha_activations *a, run *to)
{
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const int64_t batch = tokens->shape[0], n = tokens->shape[1];
    const mha_tensor maps = maps_of(to->maps, batch, n);
    const mha_tensor hidden =
        mha_tensor_contiguous(to->hidden, MHA_F32, 3, (const int64_t[]){batch, n, E});
    input.tokens = tokens;
    input.lengths = lengths;
    expect_ok(mha_transformer_forward(context, t, &input, a, &hidden, &maps, NULL));
}

typedef struct comparison {
    const float *maps; /* of one layer */
    int64_t rows;
} comparison;

static mha_status same_rows(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    comparison *x = user;
    for (int64_t h = 0; h < H; h++)
        assert_memory_equal((const float *)p->data + h * p->stride[0],
                            x->maps + ((b * H + h) * T + row) * T,
                            (size_t)(p->shape[1] * T) * sizeof(float));
    x->rows += p->shape[1];
    return MHA_OK;
}

/* Scores are below 20 and sums of at most 20 products, each below 20, so that the error of a score is below
 * 2^-24 * 20 * 20 * 3 = 8e-5, and that of a weight below twice that; a wrong row changes weights by 0.01. */
static void maps_are_plain_loops(void)
{
    static run all;
    static int32_t ids[B * T];
    mha_context *context = context_with(1);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    for (int k = 0; k < KINDS; k++) {
        mha_transformer *t = make(context, &kinds[k]);
        mha_activations *a = NULL;
        expect_ok(mha_activations_create(context, t, B * T, 0, &a));
        forward(context, t, &tokens, NULL, a, &all);
        for (int layer = 0; layer < L; layer++) {
            mha_layer_view view = MHA_INIT(mha_layer_view);
            comparison same = {all.maps + layer * CELLS, 0};
            expect_ok(mha_activations_layer(a, layer, MHA_PART_SELF_ATTENTION, &view));
            for (int row = 0; row < B * H * T; row++) {
                const float *p = all.maps + layer * CELLS + row * T;
                double weights[T], sum = 0;
                for (int j = 0; j < T; j++) {
                    weights[j] =
                        score(t, layer, &kinds[k], &view, row / (H * T), row / T % H, row % T, j);
                    assert_true(fabs(weights[j]) < 20);
                    sum += weights[j] = exp(weights[j]);
                }
                for (int j = 0; j < T; j++)
                    if (fabs((double)p[j] - weights[j] / sum) > 2e-4)
                        fail_msg("kind %d, layer %d, row %d, key %d: %g, expected %g", k, layer,
                                 row, j, (double)p[j], weights[j] / sum);
            }
            expect_ok(mha_layer_visit_rows(context, &view, 4, same_rows, &same));
            assert_true(same.rows == B * T);
        }
        mha_activations_destroy(a);
        mha_transformer_destroy(t);
    }
}

/* The maps and hidden states of one sequence alone, which has n tokens, are those in the batch. */
static void expect_alone(mha_context *context, mha_transformer *t, const run *batch, int32_t *ids,
                         int b, int n)
{
    static run alone;
    const mha_tensor tokens =
        mha_tensor_contiguous(ids + b * T, MHA_I32, 2, (const int64_t[]){1, n});
    forward(context, t, &tokens, NULL, NULL, &alone);
    assert_memory_equal(alone.hidden, batch->hidden + b * T * E, (size_t)(n * E) * sizeof(float));
    for (int i = 0; i < L * H * n; i++) {
        const int layer = i / (H * n), h = i / n % H, row = i % n;
        assert_memory_equal(alone.maps + i * n,
                            batch->maps + layer * CELLS + ((b * H + h) * T + row) * T,
                            (size_t)n * sizeof(float));
    }
}

static void batches_threads_and_lengths_change_no_bit(void)
{
    static run one, kept;
    static int32_t ids[B * T];
    static const int64_t lengths[B] = {T, T - 8};
    mha_context *single = context_with(1), *several = context_with(3);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    for (int k = 0; k < KINDS; k++) {
        mha_transformer *t = make(single, &kinds[k]);
        mha_activations *a = NULL;
        expect_ok(mha_activations_create(several, t, B * T + 5, 0, &a));
        forward(single, t, &tokens, lengths, NULL, &one);
        forward(several, t, &tokens, lengths, a, &kept);
        assert_memory_equal(&one, &kept, sizeof one);
        for (int b = 0; b < B; b++) expect_alone(several, t, &one, ids, b, (int)lengths[b]);
        mha_activations_destroy(a);
        mha_transformer_destroy(t);
    }
}

/* The first layer's maps of the heads that remain keep their bits. */
static void pruning_keeps_the_maps_of_other_heads(void)
{
    static run whole, part;
    static int32_t ids[B * T];
    float keep[L * H] = {1, 0, 1, 0, 0, 1};
    mha_context *context = context_with(1);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    const mha_tensor kept = mha_tensor_contiguous(keep, MHA_F32, 2, (const int64_t[]){L, H});
    for (int k = 0; k < KINDS; k++) {
        mha_transformer *t = make(context, &kinds[k]), *pruned = NULL;
        forward(context, t, &tokens, NULL, NULL, &whole);
        expect_ok(mha_transformer_prune(context, t, &kept, &pruned));
        mha_transformer_input input = MHA_INIT(mha_transformer_input);
        const mha_tensor maps =
            mha_tensor_contiguous(part.maps, MHA_F32, 5, (const int64_t[]){L, B, 2, T, T});
        input.tokens = &tokens;
        expect_ok(mha_transformer_forward(context, pruned, &input, NULL, NULL, &maps, NULL));
        for (int i = 0; i < B * 2; i++)
            assert_memory_equal(part.maps + i * T * T,
                                whole.maps + (i / 2 * H + (i % 2 ? 2 : 0)) * T * T,
                                (size_t)(T * T) * sizeof(float));
        mha_transformer_destroy(pruned);
        mha_transformer_destroy(t);
    }
}

/* Queries of 0 leave no score with a content-to-position term alone. */
static void patched_queries_enter_the_terms(void)
{
    static run all;
    static int32_t ids[B * T];
    static float zeros[D];
    mha_context *context = context_with(1);
    mha_transformer *t = make(context, &kinds[1]);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), maps = maps_of(all.maps, B, T);
    mha_tensor values = mha_tensor_contiguous(zeros, MHA_F32, 3, (const int64_t[]){B, T, D});
    values.stride[0] = values.stride[1] = 0;
    const mha_head_patch patch = {.struct_size = sizeof patch,
                                  .part = MHA_PATCH_QUERY,
                                  .layer = 1,
                                  .head = 2,
                                  .values = &values};
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    input.tokens = &tokens;
    input.patches = &patch;
    input.patch_count = 1;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, NULL, &maps, NULL));
    for (int i = 0; i < T * T; i++)
        assert_true(fabs((double)all.maps[CELLS + 2 * T * T + i] - 1.0 / T) < 1e-6);
    mha_transformer_destroy(t);
}

/* Weights from tokens to a token are those of the map. */
static void attribution_reads_rows(void)
{
    static run all;
    static int32_t ids[B * T];
    enum { FIRST = 4, COUNT = 3, KEY = 7 };
    mha_context *context = context_with(1);
    mha_transformer *t = make(context, &kinds[0]);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    const mha_tensor text = mha_tensor_contiguous(ids, MHA_I32, 1, (const int64_t[]){T});
    double weights[L * H];
    const mha_head_attribution_desc desc = {.struct_size = sizeof desc,
                                            .from_first = FIRST,
                                            .from_count = COUNT,
                                            .to_first = KEY,
                                            .to_count = 1};
    mha_head_attribution found = {.struct_size = sizeof found, .weights = weights};
    forward(context, t, &tokens, NULL, NULL, &all);
    expect_ok(mha_transformer_head_attribution(context, t, &text, &desc, &found));
    for (int i = 0; i < L * H; i++) {
        const float *map = all.maps + i / H * CELLS + i % H * T * T;
        double mean = 0;
        for (int64_t row = FIRST; row < FIRST + COUNT; row++)
            mean += (double)map[row * T + KEY] / COUNT;
        assert_true(fabs(weights[i] - mean) < 1e-12);
    }
    mha_transformer_destroy(t);
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void descriptions_are_checked(void)
{
#define ROWS .relative_rows = 4
    static const struct {
        mha_layer_desc layer;
        uint32_t flags;
        mha_status status;
        const char *words;
    } wrong[] = {
        {{.flags = C2P}, 0, MHA_ERR_ARGUMENT, "only with relative_rows"},
        {{.flags = TABLE}, 0, MHA_ERR_ARGUMENT, "only with relative_rows"},
        {{.relative_buckets = 4}, 0, MHA_ERR_ARGUMENT, "only with relative_rows"},
        {{.relative_max_distance = 4}, 0, MHA_ERR_ARGUMENT, "only with relative_rows"},
        {{ROWS}, 0, MHA_ERR_ARGUMENT, "set MHA_LAYER_CONTENT_TO_POSITION or"},
        {{ROWS, .flags = C2P | SHARED | TABLE}, 0, MHA_ERR_ARGUMENT, "at most one of"},
        {{.flags = C2P, .relative_rows = -1}, 0, MHA_ERR_ARGUMENT, "relative_rows is -1"},
        {{ROWS, .flags = C2P, .relative_buckets = 1, .relative_max_distance = 9},
         0,
         MHA_ERR_ARGUMENT,
         "relative_buckets is 1"},
        {{ROWS, .flags = C2P, .relative_buckets = 8, .relative_max_distance = 5},
         0,
         MHA_ERR_ARGUMENT,
         "relative_max_distance 5"},
        {{ROWS, .flags = C2P, .relative_max_distance = 5}, 0, MHA_ERR_ARGUMENT, "buckets is 0"},
        {{ROWS, .flags = C2P, .softcap = 2}, 0, MHA_ERR_UNSUPPORTED, "only without"},
        {{ROWS, .flags = C2P | MHA_LAYER_QK_NORM}, 0, MHA_ERR_UNSUPPORTED, "only without"},
        {{ROWS, .flags = C2P | MHA_LAYER_OUTPUT_GATE}, 0, MHA_ERR_UNSUPPORTED, "only without"},
        {{ROWS, .flags = C2P}, MHA_TRANSFORMER_CAUSAL, MHA_ERR_UNSUPPORTED, "only without"},
        {{ROWS, .flags = C2P}, MHA_TRANSFORMER_CROSS, MHA_ERR_UNSUPPORTED, "only without"},
        {{ROWS, .flags = C2P}, 0, MHA_ERR_ARGUMENT, "of layer 1 is 5, of earlier layers 4"},
        {{.flags = 0}, MHA_TRANSFORMER_RELATIVE_NORM, MHA_ERR_ARGUMENT, "RELATIVE_NORM: only"},
        {{ROWS, .flags = C2P | TABLE},
         MHA_TRANSFORMER_RELATIVE_NORM,
         MHA_ERR_ARGUMENT,
         "RELATIVE_NORM: only"}};
    mha_context *context = context_with(1);
    mha_transformer *t = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mha_transformer_desc d = describe(&kinds[0]);
        layers[0] = wrong[i].layer;
        layers[0].struct_size = sizeof layers[0];
        layers[1].relative_rows = 5;
        if (wrong[i].flags & MHA_TRANSFORMER_RELATIVE_NORM)
            layers[1] = (mha_layer_desc){.struct_size = sizeof layers[0]};
        d.flags = (d.flags & ~(uint32_t)MHA_TRANSFORMER_RELATIVE_NORM) | wrong[i].flags;
        expect_row(i, mha_transformer_create(context, &d, &t), wrong[i].status, wrong[i].words);
    }
}

static void gradients_are_slopes_for_any_threads(void)
{
    static float numbers_of_loss[B * T * E];
    static int32_t ids[B * T];
    mha_context *context = context_with(1);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    const mha_tensor dhidden =
        mha_tensor_contiguous(numbers_of_loss, MHA_F32, 3, (const int64_t[]){B, T, E});
    rng r = rng_make(9, 0);
    for (int i = 0; i < B * T * E; i++) numbers_of_loss[i] = rng_normal(&r);
    for (int k = 0; k < KINDS; k++) {
        mha_transformer *t = make(context, &kinds[k]);
        float *gradient = loss_gradient(t, &tokens, &dhidden);
        for (int64_t i = 0; i < mha_transformer_parameters(t); i++) {
            mha_parameter p;
            expect_ok(mha_transformer_parameter(t, i, &p));
            if (strstr(p.name, "position_k_proj.bias")) continue; /* the softmax cancels it */
            if (strstr(p.name, "relative") || strstr(p.name, "layers.0.self_attn.q") ||
                strstr(p.name, "layers.0.self_attn.k_proj.weight") ||
                strstr(p.name, "layers.0.self_attn.position") || strstr(p.name, "distance"))
                expect_slope(context, t, &tokens, &dhidden, &p, &r, 1.0f / 1024, 0.01,
                             gradient + p.offset);
        }
        free(gradient);
        mha_transformer_destroy(t);
    }
}

RUN_TESTS(TEST(maps_are_plain_loops), TEST(batches_threads_and_lengths_change_no_bit),
          TEST(pruning_keeps_the_maps_of_other_heads), TEST(patched_queries_enter_the_terms),
          TEST(attribution_reads_rows), TEST(descriptions_are_checked),
          TEST(gradients_are_slopes_for_any_threads))
