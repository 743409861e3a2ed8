/* Latent attention: queries, keys, values and outputs match simple loops in double. Steps, batches and
 * threads change no bit; sequences fork and roll back. Descriptions are checked. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { L = 3, B = 2, T = 37, V = 23, H = 3, E = 18, D = 10, Dv = 6, WIDE = 64 };

static const mha_layer_desc layers[L] = {{.struct_size = sizeof(mha_layer_desc),
                                          .flags = MHA_LAYER_ROPE_INTERLEAVED,
                                          .scale = 0.25f,
                                          .value_dim = Dv,
                                          .latent_dim = 7,
                                          .query_latent_dim = 8,
                                          .shared_dim = 4},
                                         {.struct_size = sizeof(mha_layer_desc)},
                                         {.struct_size = sizeof(mha_layer_desc),
                                          .flags = MHA_LAYER_NO_ROPE,
                                          .head_norm_epsilon = 0.125f,
                                          .value_dim = 13,
                                          .latent_dim = 9,
                                          .shared_dim = 3}};

static mha_transformer_desc describe(const mha_layer_desc *of)
{
    return (mha_transformer_desc){.struct_size = sizeof(mha_transformer_desc),
                                  .flags = MHA_TRANSFORMER_CAUSAL | MHA_TRANSFORMER_QKV_BIAS,
                                  .vocab_size = V,
                                  .max_length = T,
                                  .embed_dim = E,
                                  .num_layers = L,
                                  .num_heads = H,
                                  .head_dim = D,
                                  .ff_dim = 20,
                                  .norm = MHA_NORM_RMS,
                                  .positions = MHA_ENCODING_ROTARY,
                                  .feed_forward = MHA_FEED_FORWARD_SWIGLU,
                                  .layers = of};
}

static mha_transformer *make(mha_context *context)
{
    const mha_transformer_desc d = describe(layers);
    return normal_transformer(context, rng_make(5, 0), 0.4f, &d);
}

static mha_tensor floats(float *data, int64_t n, int64_t width)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (const int64_t[]){B, n, width});
}

/* ---- simple loops ---------------------------------------------------------------------------- */

/* y = W x + bias; a bias is optional. */
static void multiply(mha_transformer *t, int layer, const char *name, const double *x, int inputs,
                     int outputs, double *y)
{
    char full[64];
    mha_parameter p;
    const float *data = mha_transformer_data(t), *bias = NULL;
    snprintf(full, sizeof full, "self_attn.%s.bias", name);
    if (mha_transformer_find(t, layer, full, &p) == MHA_OK) bias = data + p.offset;
    snprintf(full, sizeof full, "self_attn.%s.weight", name);
    expect_ok(mha_transformer_find(t, layer, full, &p));
    assert_true(p.shape[0] == outputs && p.shape[1] == inputs);
    for (int o = 0; o < outputs; o++) {
        y[o] = bias ? (double)bias[o] : 0;
        for (int i = 0; i < inputs; i++) y[o] += (double)data[p.offset + o * inputs + i] * x[i];
    }
}

static void normalise(mha_transformer *t, int layer, const char *name, double epsilon, int count,
                      double *x)
{
    char full[64];
    mha_parameter p;
    double squares = 0;
    snprintf(full, sizeof full, "self_attn.%s.weight", name);
    expect_ok(mha_transformer_find(t, layer, full, &p));
    assert_true(p.count == count);
    for (int i = 0; i < count; i++) squares += x[i] * x[i];
    for (int i = 0; i < count; i++)
        x[i] *= (double)mha_transformer_data(t)[p.offset + i] / sqrt(squares / count + epsilon);
}

/* Rotate pairs of neighbours among the first `count` elements. */
static void turn(double *x, int count, int position)
{
    for (int i = 0; i < count / 2; i++) {
        const double angle = position * pow(10000, -2.0 * i / count), a = x[2 * i],
                     b = x[2 * i + 1];
        x[2 * i] = a * cos(angle) - b * sin(angle);
        x[2 * i + 1] = a * sin(angle) + b * cos(angle);
    }
}

typedef struct plain {
    double q[T][H][D], k[T][H][D], v[T][H][16];
} plain;

/* The queries, keys and values of a token. */
static void expand(mha_transformer *t, int layer, const double *x, int position, plain *to)
{
    const mha_layer_desc *l = &layers[layer];
    const int r = (int)l->latent_dim, rq = (int)l->query_latent_dim, s = (int)l->shared_dim;
    const int wide = (int)l->value_dim;
    const double epsilon = l->head_norm_epsilon > 0 ? (double)l->head_norm_epsilon : (double)1e-5f;
    double q[WIDE], c[WIDE], k[WIDE], v[WIDE];
    if (rq > 0) {
        double down[WIDE];
        multiply(t, layer, "q_a_proj", x, E, rq, down);
        normalise(t, layer, "q_a_norm", epsilon, rq, down);
        multiply(t, layer, "q_b_proj", down, rq, H * D, q);
    } else {
        multiply(t, layer, "q_proj", x, E, H * D, q);
    }
    multiply(t, layer, "kv_a_proj", x, E, r + s, c);
    normalise(t, layer, "kv_a_norm", epsilon, r, c);
    multiply(t, layer, "k_b_proj", c, r, H * (D - s), k);
    multiply(t, layer, "v_b_proj", c, r, H * wide, v);
    for (int h = 0; h < H; h++) {
        double *key = to->k[position][h], *query = to->q[position][h];
        memcpy(query, q + h * D, D * sizeof *q);
        memcpy(key, c + r, (size_t)s * sizeof *key);
        memcpy(key + s, k + h * (D - s), (size_t)(D - s) * sizeof *key);
        memcpy(to->v[position][h], v + h * wide, (size_t)wide * sizeof *v);
        if (l->flags & MHA_LAYER_NO_ROPE) continue;
        turn(query, s, position);
        turn(key, s, position);
    }
}

/* The output of a head at a row. */
static void attend(const plain *x, const mha_layer_desc *l, int row, int h, double *y)
{
    const double scale = l->scale > 0 ? (double)l->scale : 1 / sqrt(D);
    double sum = 0;
    memset(y, 0, 16 * sizeof *y);
    for (int j = 0; j <= row; j++) {
        double score = 0;
        for (int d = 0; d < D; d++) score += x->q[row][h][d] * x->k[j][h][d];
        const double weight = exp(scale * score);
        sum += weight;
        for (int d = 0; d < l->value_dim; d++) y[d] += weight * x->v[j][h][d];
    }
    for (int d = 0; d < l->value_dim; d++) y[d] /= sum;
}

static double element(const mha_tensor *x, int b, int h, int row, int d)
{
    return (double)((const float *)x->data)[b * x->stride[0] + h * x->stride[1] +
                                            row * x->stride[2] + d * x->stride[3]];
}

/* Numbers are of order 1: each is a sum of at most 20 products of three factors, so 1e-4 is above
 * 2^-24 times the terms and far below a wrong element. */
static void close_to(double value, double expected)
{
    assert_true(fabs(value - expected) < 1e-4 * (1 + fabs(expected)));
}

static void heads_are_plain_loops(void)
{
    mha_context *context = context_with(1);
    static float logits[B * T * V];
    static int32_t ids[B * T];
    static plain made;
    mha_transformer *t = make(context);
    mha_activations *a = NULL;
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), all = floats(logits, T, V);
    input.tokens = &tokens;
    expect_ok(mha_activations_create(context, t, B * T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &all, NULL, NULL));
    for (int layer = 0; layer < L; layer += 2) {
        const int wide = (int)layers[layer].value_dim;
        mha_layer_view view = MHA_INIT(mha_layer_view);
        expect_ok(mha_activations_layer(a, layer, MHA_PART_SELF_ATTENTION, &view));
        assert_true(view.q.shape[3] == D && view.k.shape[3] == D && view.v.shape[3] == wide);
        assert_true(view.heads.shape[3] == wide && view.concatenated.shape[2] == H * wide);
        for (int b = 0; b < B; b++) {
            for (int i = 0; i < T; i++) {
                double x[E];
                for (int e = 0; e < E; e++)
                    x[e] = (double)((const float *)view.input.data)[(b * T + i) * E + e];
                expand(t, layer, x, i, &made);
            }
            for (int i = 0; i < T * H; i++) {
                double y[16];
                const int row = i / H, h = i % H;
                attend(&made, &layers[layer], row, h, y);
                for (int d = 0; d < D; d++) {
                    close_to(element(&view.q, b, h, row, d), made.q[row][h][d]);
                    close_to(element(&view.k, b, h, row, d), made.k[row][h][d]);
                }
                for (int d = 0; d < wide; d++) {
                    close_to(element(&view.v, b, h, row, d), made.v[row][h][d]);
                    close_to(element(&view.heads, b, h, row, d), y[d]);
                }
            }
        }
    }
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

static void forward(mha_context *context, mha_transformer *t, const mha_tensor *tokens, float *to)
{
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    const mha_tensor all = floats(to, T, V);
    input.tokens = tokens;
    expect_ok(mha_transformer_forward(context, t, &input, NULL, &all, NULL, NULL));
}

static void steps_forks_and_rollbacks_change_no_bit(void)
{
    const mha_decoder_desc usual = {.struct_size = sizeof usual, .batch = B};
    mha_decoder_desc kinds[4] = {usual, usual, usual, usual};
    mha_context *one = context_with(1), *several = context_with(3);
    static float whole[B * T * V], part[B * T * V];
    static int32_t ids[B * T];
    mha_transformer *t = make(one);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V);
    forward(one, t, &tokens, whole);
    for (int k = 0; k < 4; k++) {
        kinds[k].flags = k < 2 ? 0 : MHA_DECODER_LATENT;
        if (k % 2) kinds[k].page_size = 16, kinds[k].pages = 7;
    }
    rng r = rng_make(rng_run_seed(), 1);
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        mha_decoder *decoder = NULL;
        bool forked = false;
        expect_ok(mha_decoder_create(several, t, &kinds[kind], &decoder));
        for (int64_t at = 0, n; at < T; at += n) {
            n = rng_between(&r, 1, T - at);
            mha_tensor step = tokens;
            step.data = ids + at;
            step.shape[1] = n;
            const mha_tensor out = floats(part, n, V);
            expect_ok(mha_decoder_step(several, decoder, &step, &out));
            for (int b = 0; b < B; b++)
                assert_memory_equal(part + b * n * V, whole + ((forked ? 1 : b) * T + at) * V,
                                    (size_t)(n * V) * sizeof(float));
            if (at + n < T || forked) continue;
            const int64_t back = rng_between(&r, 1, T - 1);
            forked = true;
            memcpy(ids, ids + T, sizeof ids / 2); /* both continue as sequence 1 */
            expect_ok(mha_decoder_fork(decoder, 1, 0, back));
            expect_ok(mha_decoder_truncate(decoder, back));
            at = back - n;
        }
        fixed_tokens(ids, B, T, V);
        mha_decoder_destroy(decoder);
    }
    mha_transformer_destroy(t);
}

/* Slopes of a loss, sum of the logits times fixed numbers, in the parameters of latent attention. */
static void gradients_are_slopes_for_any_threads(void)
{
    static float part[B * T * V];
    static int32_t ids[B * T];
    mha_context *context = context_with(1);
    mha_transformer *t = make(context);
    const mha_tensor tokens = fixed_tokens(ids, B, T, V), dlogits = floats(part, T, V);
    rng r = rng_make(8, 0);
    for (int i = 0; i < B * T * V; i++) part[i] = rng_normal(&r);
    float *gradient = loss_gradient(t, &tokens, &dlogits);
    for (int64_t i = 0; i < mha_transformer_parameters(t); i++) {
        mha_parameter p;
        expect_ok(mha_transformer_parameter(t, i, &p));
        if (strstr(p.name, "self_attn."))
            expect_slope(context, t, &tokens, &dlogits, &p, &r, 1.0f / 512, 0.01,
                         gradient + p.offset);
    }
    free(gradient);
    mha_transformer_destroy(t);
}

static void caches_have_the_widths_of_heads(void)
{
    mha_context *context = context_with(1);
    mha_transformer *t = make(context);
    mha_decoder_sizes sizes = MHA_INIT(mha_decoder_sizes);
    mha_decoder_desc latent = {.struct_size = sizeof latent, .flags = MHA_DECODER_LATENT};
    mha_decoder *decoder = NULL;
    expect_ok(mha_decoder_count(t, NULL, &sizes));
    const int64_t widths = (D + Dv) + (D + D) + (D + 13), usual = sizes.total_bytes;
    assert_true(usual - sizes.table_bytes >= T * H * widths * (int64_t)sizeof(float));
    /* c, p and an unused key: 7 + 4 + 1 and 9 + 3 + 1 numbers, in runs of 16 positions */
    expect_ok(mha_decoder_count(t, &latent, &sizes));
    assert_true(sizes.total_bytes < usual / 2);
    latent.window = 5;
    expect_error(mha_decoder_create(context, t, &latent, &decoder), MHA_ERR_UNSUPPORTED,
                 "window is 5; leave it 0 with MHA_DECODER_LATENT");
    mha_transformer_destroy(t);
}

static void descriptions_are_checked(void)
{
#define LATENT .value_dim = 4, .latent_dim = 4
    static const struct {
        mha_layer_desc layer;
        mha_status status;
        const char *words;
    } wrong[] = {
        {{.latent_dim = 4, .shared_dim = 4}, MHA_ERR_ARGUMENT, "value_dim 0"},
        {{.value_dim = 4, .shared_dim = 4}, MHA_ERR_ARGUMENT, "latent_dim is 0"},
        {{LATENT, .shared_dim = D}, MHA_ERR_ARGUMENT, "shared_dim 10, head_dim 10"},
        {{LATENT, .shared_dim = -1}, MHA_ERR_ARGUMENT, "shared_dim -1"},
        {{LATENT}, MHA_ERR_ARGUMENT, "rotary_dim is 0, expected 2..0"},
        {{LATENT, .shared_dim = 4, .rotary_dim = 6}, MHA_ERR_ARGUMENT, "rotary_dim is 6"},
        {{LATENT, .shared_dim = 3}, MHA_ERR_ARGUMENT, "rotary_dim is 3"},
        {{LATENT, .shared_dim = 4, .query_latent_dim = -1},
         MHA_ERR_ARGUMENT,
         "query_latent_dim -1"},
        {{.value_dim = 4, .latent_dim = INT64_MAX, .shared_dim = 4},
         MHA_ERR_ARGUMENT,
         "latent_dim"},
        {{.value_dim = INT64_MAX, .latent_dim = 4, .shared_dim = 4}, MHA_ERR_ARGUMENT, "value_dim"},
        {{LATENT, .shared_dim = 4, .head_norm_epsilon = -1}, MHA_ERR_ARGUMENT, "head_norm_epsilon"},
        {{LATENT, .shared_dim = 4, .key_dim = 4}, MHA_ERR_ARGUMENT, "only with a mixer"},
        {{LATENT, .shared_dim = 4, .flags = MHA_LAYER_QK_NORM}, MHA_ERR_UNSUPPORTED, "norms of"},
        {{LATENT, .shared_dim = 4, .flags = MHA_LAYER_OUTPUT_GATE}, MHA_ERR_UNSUPPORTED, "gates"},
        {{LATENT, .mixer = MHA_MIXER_GATED_DELTA}, MHA_ERR_ARGUMENT, "latent"}};
    mha_context *context = context_with(1);
    mha_transformer *t = NULL;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        mha_layer_desc all[L] = {wrong[i].layer, layers[1], layers[1]};
        all[0].struct_size = sizeof all[0];
        const mha_transformer_desc d = describe(all);
        expect_error(mha_transformer_create(context, &d, &t), wrong[i].status, wrong[i].words);
    }
    mha_transformer_desc d = describe(layers);
    d.kv_heads = 1;
    expect_error(mha_transformer_create(context, &d, &t), MHA_ERR_UNSUPPORTED, "here 1 for 3");
}

static void what_is_not_supported_is_refused(void)
{
    static const char words[] = "layer 0 has latent attention";
    mha_context *context = context_with(1);
    mha_transformer *t = make(context), *other = NULL;
    float keep[L * H];
    for (int i = 0; i < L * H; i++) keep[i] = 1;
    const mha_tensor kept = mha_tensor_contiguous(keep, MHA_F32, 2, (const int64_t[]){L, H});
    expect_error(mha_transformer_prune(context, t, &kept, &other), MHA_ERR_UNSUPPORTED, words);
    expect_error(mha_transformer_share_kv(context, t, 1, &other), MHA_ERR_UNSUPPORTED, words);
    mha_transformer_destroy(t);
}

RUN_TESTS(TEST(heads_are_plain_loops), TEST(steps_forks_and_rollbacks_change_no_bit),
          TEST(caches_have_the_widths_of_heads), TEST(gradients_are_slopes_for_any_threads),
          TEST(descriptions_are_checked), TEST(what_is_not_supported_is_refused))
