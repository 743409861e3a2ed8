/* Each kind of layer of a hybrid against plain loops in double: state spaces, gated delta nets, short convolutions, a
 * norm across the queries of all heads, norms after blocks. The references read the layer's own input. */
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { L = 5, T = 37, V = 23, H = 4, G = 2, E = 16, D = 8, K = 3, N = 5, P = 6, R = 3 };

static const double EPSILON = 0.125, HEAD_EPSILON = 0.25, STRENGTH = 1.75, RESIDUAL = 0.5;

#define RECURRENT \
    .struct_size = sizeof(mha_layer_desc), .conv_kernel = K, .key_dim = N, .value_dim = P
static const mha_layer_desc layers[L] = {
    {RECURRENT, .mixer = MHA_MIXER_STATE_SPACE, .step_least = 0.25f, .step_most = 1},
    {.struct_size = sizeof(mha_layer_desc),
     .flags = MHA_LAYER_QK_NORM | MHA_LAYER_QK_NORM_ROW | MHA_LAYER_BRANCH_NORM,
     .qk_norm_epsilon = 0.5f},
    {RECURRENT, .mixer = MHA_MIXER_GATED_DELTA, .strength_scale = 1.75f,
     .head_norm_epsilon = 0.25f},
    {.struct_size = sizeof(mha_layer_desc), .mixer = MHA_MIXER_SHORT_CONVOLUTION, .conv_kernel = K},
    {RECURRENT, .mixer = MHA_MIXER_GATED_DELTA, .strength_scale = 1.75f, .head_norm_epsilon = 0.25f,
     .gate_rank = R}};

typedef struct run {
    mha_transformer *t;
    mha_activations *a;
    int64_t layer;
    mha_layer_view view;
} run;

static void begin(run *r)
{
    static const int64_t heads[] = {H, H, H, 0, H}, kv_heads[] = {G, G, G, 0, G};
    static float logits[T * V];
    static int32_t ids[T];
    mha_context *context = context_with(1);
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = V,
                                    .max_length = T,
                                    .embed_dim = E,
                                    .num_layers = L,
                                    .num_heads = H,
                                    .head_dim = D,
                                    .ff_dim = 12,
                                    .norm = MHA_NORM_RMS,
                                    .norm_epsilon = (float)EPSILON,
                                    .residual_scale = (float)RESIDUAL,
                                    .feed_forward = MHA_FEED_FORWARD_SWIGLU,
                                    .layer_heads = heads,
                                    .layer_kv_heads = kv_heads,
                                    .layers = layers};
    *r = (run){.t = normal_transformer(context, rng_make(8, 0), 1, &d)};
    const mha_tensor tokens = fixed_tokens(ids, 1, T, V),
                     all = mha_tensor_contiguous(logits, MHA_F32, 3, (const int64_t[]){1, T, V});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    expect_ok(mha_activations_create(context, r->t, T, 0, &r->a));
    expect_ok(mha_transformer_forward(context, r->t, &input, r->a, &all, NULL, NULL));
}

static void look(run *r, int64_t layer)
{
    r->layer = layer;
    r->view = (mha_layer_view){.struct_size = sizeof r->view};
    expect_ok(mha_activations_layer(r->a, layer, MHA_PART_SELF_ATTENTION, &r->view));
}

static void end(run *r)
{
    mha_activations_destroy(r->a);
    mha_transformer_destroy(r->t);
}

/* ---- plain loops ----------------------------------------------------------------------------- */

static const float *numbers(const run *r, const char *name)
{
    mha_parameter p;
    expect_ok(mha_transformer_find(r->t, r->layer, name, &p));
    return mha_transformer_data(r->t) + p.offset;
}

static double input_at(const run *r, int64_t t, int64_t e)
{
    return (double)((const float *)r->view.input.data)[t * E + e];
}

/* One output of a projection of token t, which may lie before the text. */
static double project(const run *r, const char *name, int64_t t, int64_t row)
{
    const float *w = numbers(r, name);
    double sum = 0;
    for (int64_t e = 0; t >= 0 && e < E; e++) sum += (double)w[row * E + e] * input_at(r, t, e);
    return sum;
}

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* silu(conv(W x)) of a projection whose rows are the channels first .. of the convolution. */
static double mixed(const run *r, const char *kind, char part, int64_t first, int64_t t,
                    int64_t row)
{
    char weight[40], taps[40], bias[40];
    snprintf(weight, sizeof weight, "%s.%c_proj.weight", kind, part);
    snprintf(taps, sizeof taps, "%s.conv.weight", kind);
    snprintf(bias, sizeof bias, "%s.conv.bias", kind);
    const float *w = numbers(r, taps);
    double sum = strcmp(kind, "state_space") ? 0 : (double)numbers(r, bias)[first + row];
    for (int64_t k = 0; k < K; k++)
        sum += (double)w[(first + row) * K + k] * project(r, weight, t - K + 1 + k, row);
    return sum * sigmoid(sum);
}

/* The places of q, k and v among the channels, and the recurrence of a head. */
typedef struct recurrence {
    const char *kind;
    bool delta, channels; /* channels: Kimi delta attention */
    int64_t at_q, at_k, at_v;
    double state[N][P];
} recurrence;

static double own(const recurrence *c, const run *r, const char *tail, int64_t h)
{
    char name[40];
    snprintf(name, sizeof name, "%s.%s", c->kind, tail);
    return (double)numbers(r, name)[h];
}

/* One output of a product of two matrices: 'g' or 'f' of Kimi delta attention. */
static double project_twice(const run *r, char part, int64_t t, int64_t row)
{
    char first[40], second[40];
    double sum = 0;
    snprintf(first, sizeof first, "delta_net.%c_a_proj.weight", part);
    snprintf(second, sizeof second, "delta_net.%c_b_proj.weight", part);
    for (int64_t i = 0; i < R; i++)
        sum += (double)numbers(r, second)[row * R + i] * project(r, first, t, i);
    return sum;
}

/* Strength and decays of a head. */
static void find_gates(const recurrence *c, const run *r, int64_t t, int64_t h, double *b,
                       double a[N])
{
    char name[40];
    snprintf(name, sizeof name, "%s.a_proj.weight", c->kind);
    for (int64_t n = 0; n < N; n++) {
        const double x = c->channels ? project_twice(r, 'f', t, h * N + n) : project(r, name, t, h);
        double step = log(1 + exp(x + own(c, r, "dt_bias", c->channels ? h * N + n : h)));
        if (!c->delta) step = fmin(fmax(step, 0.25), 1);
        a[n] = exp(-exp(own(c, r, "A_log", h)) * step);
        *b = c->delta ? STRENGTH * sigmoid(project(r, "delta_net.b_proj.weight", t, h)) : step;
    }
}

static void take(const recurrence *c, const run *r, char part, int64_t at, int64_t t, int64_t head,
                 int64_t size, double *x)
{
    double squares = 1e-6;
    for (int64_t i = 0; i < size; i++) {
        x[i] = mixed(r, c->kind, part, at, t, head * size + i);
        squares += x[i] * x[i];
    }
    for (int64_t i = 0; i < size && c->delta && part != 'v'; i++) x[i] /= sqrt(squares);
}

/* A head's output before its norm and gate. */
static void step(recurrence *c, const run *r, int64_t t, int64_t h, double *o)
{
    double q[N], k[N], v[P], a[N], b;
    take(c, r, 'q', c->at_q, t, h / (H / G), N, q);
    take(c, r, 'k', c->at_k, t, h / (H / G), N, k);
    take(c, r, 'v', c->at_v, t, h, P, v);
    find_gates(c, r, t, h, &b, a);
    for (int p = 0; p < P; p++) {
        double held = 0;
        for (int n = 0; n < N; n++) held += (c->state[n][p] *= a[n]) * k[n];
        o[p] = c->delta ? 0 : own(c, r, "D", h) * v[p];
        for (int n = 0; n < N; n++) {
            c->state[n][p] += b * k[n] * (c->delta ? v[p] - held : v[p]);
            o[p] += q[n] * c->state[n][p] * (c->delta ? 1 / sqrt((double)N) : 1);
        }
    }
}

/* Compares a row of a tensor. The longest path is that of delta nets: q, v and both uses of k have 33 roundings each
 * (projection 17, convolution 4, SiLU 4, norm 8); the strength and the gate have 22 each; decays have 22/e, because
 * n |log a| a^n <= 1/e after n tokens; the readout, its norm and its weight have 14. These are about 200 roundings; 300
 * of the row's largest number allow for sums that cancel. */
static void near(const float *got, const double *wanted, int64_t count)
{
    double largest = 0;
    for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs(wanted[i]));
    assert_true(largest > 0.1);
    for (int64_t i = 0; i < count; i++)
        assert_true(fabs((double)got[i] - wanted[i]) < 300 * 0x1p-24 * largest);
}

static const float *row_of(const mha_tensor *x, int64_t t, int64_t width)
{
    return (const float *)x->data + t * width;
}

static double norm_of(const double *x, int64_t count, double epsilon)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++) squares += x[i] * x[i];
    return 1 / sqrt(squares / (double)count + epsilon);
}

static void run_heads(recurrence *c, const run *r, double o[T][H * P])
{
    for (int64_t h = 0; h < H; h++) {
        memset(c->state, 0, sizeof c->state);
        for (int64_t t = 0; t < T; t++) step(c, r, t, h, &o[t][h * P]);
    }
}

static double silu_gate(const recurrence *c, const run *r, int64_t t, int64_t i)
{
    char name[40];
    snprintf(name, sizeof name, "%s.g_proj.weight", c->kind);
    const double g = project(r, name, t, i);
    return g * sigmoid(g);
}

/* ---- tests ----------------------------------------------------------------------------------- */

static void a_state_space_is_plain_loops(void)
{
    static double o[T][H * P];
    recurrence c = {"state_space", false, false, H * P + G * N, H * P, 0, {{0}}};
    run r;
    begin(&r);
    look(&r, 0);
    run_heads(&c, &r, o);
    const float *weight = numbers(&r, "state_space.o_norm.weight");
    const int64_t group = H / G * P;
    for (int64_t t = 0; t < T; t++) {
        for (int64_t i = 0; i < H * P; i++) o[t][i] *= silu_gate(&c, &r, t, i);
        double wanted[H * P];
        for (int64_t i = 0; i < H * P; i++)
            wanted[i] =
                o[t][i] * norm_of(&o[t][i / group * group], group, EPSILON) * (double)weight[i];
        near(row_of(&r.view.concatenated, t, H * P), wanted, H * P);
    }
    end(&r);
}

static void compare_delta_net(int64_t layer, bool channels)
{
    static double o[T][H * P];
    recurrence c = {"delta_net", true, channels, 0, G * N, 2 * G * N, {{0}}};
    run r;
    begin(&r);
    look(&r, layer);
    run_heads(&c, &r, o);
    const float *weight = numbers(&r, "delta_net.o_norm.weight");
    for (int64_t t = 0; t < T; t++) {
        double wanted[H * P];
        for (int64_t i = 0; i < H * P; i++)
            wanted[i] =
                o[t][i] * norm_of(&o[t][i / P * P], P, HEAD_EPSILON) * (double)weight[i % P] *
                (channels ? sigmoid(project_twice(&r, 'g', t, i)) : silu_gate(&c, &r, t, i));
        near(row_of(&r.view.concatenated, t, H * P), wanted, H * P);
    }
    assert_int_equal(r.view.log_decay.ndim, channels ? 4 : 3);
    end(&r);
}

static void a_delta_net_is_plain_loops(void)
{
    compare_delta_net(2, false);
}

static void kimi_delta_attention_is_plain_loops(void)
{
    compare_delta_net(4, true);
}

static double product_of_gates(const run *r, int64_t t, int64_t e)
{
    return project(r, "short_conv.b_proj.weight", t, e) *
           project(r, "short_conv.x_proj.weight", t, e);
}

static void a_short_convolution_is_plain_loops(void)
{
    run r;
    begin(&r);
    look(&r, 3);
    const float *taps = numbers(&r, "short_conv.conv.weight"),
                *w = numbers(&r, "short_conv.o_proj.weight");
    for (int64_t t = 0; t < T; t++) {
        double x[E], sums[E];
        for (int64_t e = 0; e < E; e++) {
            x[e] = 0;
            for (int64_t k = 0; k < K; k++)
                x[e] += (double)taps[e * K + k] * product_of_gates(&r, t - K + 1 + k, e);
            x[e] *= project(&r, "short_conv.c_proj.weight", t, e);
        }
        for (int64_t i = 0; i < E; i++) {
            sums[i] = (double)row_of(&r.view.stream, t, E)[i];
            for (int64_t e = 0; e < E; e++) sums[i] += RESIDUAL * (double)w[i * E + e] * x[e];
        }
        near(row_of(&r.view.sum, t, E), sums, E);
    }
    end(&r);
}

/* Queries or keys of a token, in order of their heads. */
static void compare_normed(const run *r, char part, const mha_tensor *x, int64_t t)
{
    char weight[40], norm[40];
    double y[H * D], wanted[H * D];
    float got[H * D];
    const int64_t width = x->shape[1] * D;
    snprintf(weight, sizeof weight, "self_attn.%c_proj.weight", part);
    snprintf(norm, sizeof norm, "self_attn.%c_norm.weight", part);
    for (int64_t i = 0; i < width; i++) y[i] = project(r, weight, t, i);
    for (int64_t i = 0; i < width; i++) {
        got[i] = ((const float *)x->data)[i / D * x->stride[1] + t * x->stride[2] + i % D];
        wanted[i] = y[i] * norm_of(y, width, 0.5) * (double)numbers(r, norm)[i];
    }
    near(got, wanted, width);
}

/* The layer reads the stream itself, and its output is normalised before it is added. */
static void norms_across_heads_and_after_blocks(void)
{
    static const char *const outs[] = {"self_attn.o_proj.weight", "mlp.down_proj.weight"};
    static const char *const posts[] = {"self_attn_post_norm.weight", "mlp_post_norm.weight"};
    run r;
    begin(&r);
    look(&r, 1);
    for (int64_t t = 0; t < T; t++) {
        compare_normed(&r, 'q', &r.view.q, t);
        compare_normed(&r, 'k', &r.view.k, t);
    }
    for (int part = 0; part < 2; part++) {
        mha_layer_view v = {.struct_size = sizeof v};
        expect_ok(mha_activations_layer(
            r.a, 1, part ? MHA_PART_FEED_FORWARD : MHA_PART_SELF_ATTENTION, &v));
        const mha_tensor *in = part ? &v.hidden : &v.concatenated;
        const int64_t width = in->shape[2];
        assert_ptr_equal(v.input.data, v.stream.data);
        for (int64_t t = 0; t < T; t++) {
            double y[E] = {0}, sums[E];
            for (int64_t i = 0; i < E * width; i++)
                y[i / width] +=
                    (double)numbers(&r, outs[part])[i] * (double)row_of(in, t, width)[i % width];
            for (int64_t e = 0; e < E; e++)
                sums[e] =
                    (double)row_of(&v.stream, t, E)[e] +
                    RESIDUAL * y[e] * norm_of(y, E, EPSILON) * (double)numbers(&r, posts[part])[e];
            near(row_of(&v.sum, t, E), sums, E);
        }
    }
    end(&r);
}

RUN_TESTS(TEST(a_state_space_is_plain_loops), TEST(a_delta_net_is_plain_loops),
          TEST(kimi_delta_attention_is_plain_loops), TEST(a_short_convolution_is_plain_loops),
          TEST(norms_across_heads_and_after_blocks))
