/* Outputs of heads, norm-based maps, logit attribution, composition, rollout: compared with cases
 * computed by hand, identities (exact for small integers), and the definitions in double. */
#include "reference/attribution_reference.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/layers.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/stored.h"
#include "support/suite.h"

#include <multihead/attribution.h>
#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, VOCAB = 11 };

static const double U = 0x1p-24; /* half an ulp of 1 in f32 */

static mha_tensor tensor4(float *data, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){a, b, c, d});
}

static mha_tensor tensor3(float *data, int64_t a, int64_t b, int64_t c)
{
    return mha_tensor_contiguous(data, MHA_F32, 3, (int64_t[]){a, b, c});
}

static mha_tensor tensor2(float *data, int64_t a, int64_t b)
{
    return mha_tensor_contiguous(data, MHA_F32, 2, (int64_t[]){a, b});
}

static void check_near(double got, double wanted, double bound, const char *what)
{
    if (!(fabs(got - wanted) <= bound))
        fail_msg("%s: %.9g, expected %.9g within %.2g", what, got, wanted, bound);
}

/* ---- worked by hand ------------------------------------------------------------------------- */

/* Two heads of size 2 and four features. Head 0 writes (3 z0, 4 z0, z1, 0), head 1 writes (z0, 0,
 * 0, 2 z1). */
static float hand_weight[] = {3, 0, 1, 0, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2};
static float hand_bias[] = {1, -1, 2, 0};

static void hand_writing(void)
{
    /* z of head 0 and 1 for four tokens. */
    float z[] = {1, 0, 0, 2, -1, 0, 0, 0, /**/ 0, 0, 1, 0, 3, 2, 0, 0};
    float written[32], norms[8], shares[8], cosines[4], output[16], map[8];
    mha_tensor heads = tensor4(z, 1, 2, 4, 2), weight = tensor2(hand_weight, 4, 4);
    mha_tensor bias = mha_tensor_contiguous(hand_bias, MHA_F32, 1, (int64_t[]){4});
    mha_tensor w = tensor4(written, 1, 2, 4, 4), n = tensor3(norms, 1, 2, 4);
    mha_tensor s = tensor3(shares, 1, 2, 4), c = tensor2(cosines, 2, 2);
    mha_tensor o = tensor3(output, 1, 4, 4), m = tensor2(map, 2, 4);
    const mha_head_writing out = {sizeof out, 0, &w, &n, &s, &c, &o};
    expect_ok(mha_heads_write(machines_context(2, 0), &heads, &weight, &bias, NULL, NULL, &out));
    static const float wanted[] = {3, 4, 0, 0, 0, 0, 2, 0, -3, -4, 0, 0, 0, 0, 0, 0,
                                   0, 0, 0, 0, 1, 0, 0, 0, 3,  0,  0, 4, 0, 0, 0, 0};
    static const float sums[] = {4, 3, 2, 0, 2, -1, 4, 0, 1, -5, 2, 4, 1, -1, 2, 0};
    static const float sizes[] = {5, 2, 5, 0, 0, 1, 5, 0};
    static const float parts[] = {1, 2.0f / 3, 0.5f, 0, 0, 1.0f / 3, 0.5f, 0};
    assert_memory_equal(written, wanted, sizeof wanted);
    assert_memory_equal(output, sums, sizeof sums);
    assert_memory_equal(norms, sizes, sizeof sizes);
    assert_memory_equal(shares, parts, sizeof parts);
    /* Only tokens 1 and 2 count, with cosines 0 and -9 / 25: token 3 has length 0 in either
     * head. */
    static const float angles[] = {1, -0.18f, -0.18f, 1};
    assert_memory_equal(cosines, angles, sizeof angles);
    expect_ok(mha_head_weight_norms(&weight, &m));
    static const float rows[] = {3, 4, 1, 0, 1, 0, 0, 2};
    assert_memory_equal(map, rows, sizeof rows);
}

static void hand_maps(void)
{
    float v[] = {1, 0, 0, 2, -1, 0, 0, 0, /**/ 0, 0, 1, 0, 3, 2, 0, 0};
    float p[32] = {1, 0, 0, 0, 0.5f, 0.5f, 0, 0, 0, 0.5f, 0.5f, 0, 0.25f, 0.25f, 0.25f, 0.25f,
                   1, 0, 0, 0, 0,    1,    0, 0, 0, 0,    1,    0, 0.25f, 0.25f, 0.25f, 0.25f};
    float values[8], layer[16], gate[] = {1, -2};
    mha_tensor values_t = tensor3(values, 1, 2, 4), layer_t = tensor3(layer, 1, 4, 4);
    mha_tensor v_t = tensor4(v, 1, 2, 4, 2), weight = tensor2(hand_weight, 4, 4);
    mha_tensor p_t = tensor4(p, 1, 2, 4, 4);
    mha_tensor gates = mha_tensor_contiguous(gate, MHA_F32, 1, (int64_t[]){2});
    const mha_norm_maps out = {sizeof out, 0,    &p_t,    &gates,
                               &values_t,  &p_t, &layer_t}; /* in place */
    expect_ok(mha_attention_norm_maps(machines_context(2, 0), &v_t, &weight, &out));
    /* ||f|| is 5 2 5 0 and, doubled by the gate, 0 2 10 0. */
    static const float norms[] = {5, 2, 5, 0, 0, 2, 10, 0};
    static const float heads[] = {5, 0, 0, 0, 2.5f, 1, 0, 0, 0, 1, 2.5f, 0, 1.25f, 0.5f, 1.25f, 0,
                                  0, 0, 0, 0, 0,    2, 0, 0, 0, 0, 10,   0, 0,     0.5f, 2.5f,  0};
    assert_memory_equal(values, norms, sizeof norms);
    assert_memory_equal(p, heads, sizeof heads);
    /* f of key 1: (0,0,2,0) and -2 (1,0,0,0); of key 2: (-3,-4,0,0) and -2 (3,0,0,4). */
    const float row2[] = {0, 1, (float)sqrt(7.5 * 7.5 + 4 + 64), 0};
    const float row1[] = {2.5f, (float)sqrt(5), 0, 0};
    assert_memory_equal(layer + 4, row1, sizeof row1);
    assert_memory_equal(layer + 8, row2, sizeof row2);
    assert_true(layer[0] == 5 && layer[12] == 1.25f);
}

static void hand_rollout(void)
{
    float maps[] = {1, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0,
                    1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
    float first[16], second[16];
    mha_tensor m = tensor4(maps, 1, 2, 4, 4), a = tensor3(first, 1, 4, 4);
    mha_tensor b = tensor3(second, 1, 4, 4);
    expect_ok(mha_rollout_step(machines_context(2, 0), &m, NULL, &a));
    /* Head 0 attends to the previous token, head 1 to itself: a quarter and three quarters. */
    static const float one[] = {1, 0,     0,     0, 0.25f, 0.75f, 0,     0,
                                0, 0.25f, 0.75f, 0, 0,     0,     0.25f, 0.75f};
    assert_memory_equal(first, one, sizeof one);
    expect_ok(mha_rollout_step(machines_context(2, 0), &m, &a, &b));
    static const float two[] = {1,       0,      0,       0, 0.4375f, 0.5625f, 0,      0,
                                0.0625f, 0.375f, 0.5625f, 0, 0,       0.0625f, 0.375f, 0.5625f};
    assert_memory_equal(second, two, sizeof two);
}

/* ---- comparison with the definitions --------------------------------------------------------- */

static float *random_floats(rng *r, int64_t count)
{
    float *x = malloc((size_t)(count + 1) * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = rng_normal(r);
    return x;
}

static double *widen(const float *x, int64_t count)
{
    double *y = malloc((size_t)(count + 1) * sizeof *y);
    assert_non_null(y);
    for (int64_t i = 0; i < count; i++) y[i] = (double)x[i];
    return y;
}

/* Values and weights of a random shape, with some heads shared, and results in all forms. */
typedef struct desk {
    int64_t B, Hk, H, T, D, E, lengths[3];
    float *z, *weight, *bias, *gates, *p;
    float *written, *norms, *shares, *cosines, *output, *values, *maps, *layer;
} desk;

static desk desk_make(rng *r)
{
    desk d = {.B = rng_between(r, 1, 3),
              .Hk = rng_between(r, 1, 3),
              .T = rng_between(r, 1, 70),
              .D = rng_between(r, 1, 9),
              .E = rng_between(r, 1, 20)};
    d.H = d.Hk * rng_between(r, 1, 2);
    for (int64_t b = 0; b < d.B; b++) d.lengths[b] = rng_between(r, 0, d.T);
    d.z = random_floats(r, d.B * d.Hk * d.T * d.D);
    d.weight = random_floats(r, d.E * d.H * d.D);
    d.bias = random_floats(r, d.E);
    d.gates = random_floats(r, d.H);
    d.p = random_floats(r, d.B * d.H * d.T * d.T);
    d.written = calloc((size_t)(d.B * d.H * d.T * d.E), sizeof(float));
    d.norms = calloc((size_t)(d.B * d.H * d.T), sizeof(float));
    d.shares = calloc((size_t)(d.B * d.H * d.T), sizeof(float));
    d.cosines = calloc((size_t)(d.H * d.H), sizeof(float));
    d.output = calloc((size_t)(d.B * d.T * d.E), sizeof(float));
    d.values = calloc((size_t)(d.B * d.H * d.T), sizeof(float));
    d.maps = calloc((size_t)(d.B * d.H * d.T * d.T), sizeof(float));
    d.layer = calloc((size_t)(d.B * d.T * d.T), sizeof(float));
    assert_true(d.written && d.norms && d.shares && d.cosines && d.output && d.values && d.maps &&
                d.layer);
    return d;
}

static void desk_free(desk *d)
{
    float *const all[] = {d->z,       d->weight, d->bias,   d->gates,   d->p,
                          d->written, d->norms,  d->shares, d->cosines, d->output,
                          d->values,  d->maps,   d->layer};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void desk_run(mha_context *context, const desk *d)
{
    mha_tensor z = tensor4(d->z, d->B, d->Hk, d->T, d->D), weight;
    weight = tensor2(d->weight, d->E, d->H * d->D);
    mha_tensor bias = mha_tensor_contiguous(d->bias, MHA_F32, 1, &d->E);
    mha_tensor gates = mha_tensor_contiguous(d->gates, MHA_F32, 1, &d->H);
    mha_tensor p = tensor4(d->p, d->B, d->H, d->T, d->T);
    mha_tensor written = tensor4(d->written, d->B, d->H, d->T, d->E);
    mha_tensor norms = tensor3(d->norms, d->B, d->H, d->T);
    mha_tensor shares = tensor3(d->shares, d->B, d->H, d->T);
    mha_tensor cosines = tensor2(d->cosines, d->H, d->H);
    mha_tensor output = tensor3(d->output, d->B, d->T, d->E);
    mha_tensor values = tensor3(d->values, d->B, d->H, d->T);
    mha_tensor maps = tensor4(d->maps, d->B, d->H, d->T, d->T);
    mha_tensor layer = tensor3(d->layer, d->B, d->T, d->T);
    const mha_head_writing out = {sizeof out, 0, &written, &norms, &shares, &cosines, &output};
    const mha_norm_maps also = {sizeof also, 0, &p, &gates, &values, &maps, &layer};
    expect_ok(mha_heads_write(context, &z, &weight, &bias, &gates, d->lengths, &out));
    expect_ok(mha_attention_norm_maps(context, &z, &weight, &also));
}

/* Compute out [H,E] of a token and `size` [H,E], the sums of the magnitudes of its terms. Each step
 * in double rounds by at most 2^-53 of this size, 2 D + 2 times in the library and here. */
static void reference_token(const desk *d, const double *weight, int64_t b, int64_t t, double *out,
                            double *size)
{
    double z[9];
    for (int64_t h = 0; h < d->H; h++) {
        const int64_t hk = h / (d->H / d->Hk), width = d->H * d->D;
        for (int64_t i = 0; i < d->D; i++)
            z[i] = (double)d->gates[h] * (double)d->z[((b * d->Hk + hk) * d->T + t) * d->D + i];
        reference_head_out(weight, d->E, width, h, d->D, z, out + h * d->E);
        for (int64_t e = 0; e < d->E; e++) {
            size[h * d->E + e] = 0;
            for (int64_t i = 0; i < d->D; i++)
                size[h * d->E + e] += fabs(weight[e * width + h * d->D + i] * z[i]);
        }
    }
}

static void check_token(const desk *d, const double *weight, int64_t b, int64_t t, double *cosines)
{
    double out[6 * 20], size[6 * 20], norm[6], wide[6], all = 0;
    const double eps = (double)(4 * d->D + 4) * 0x1p-53;
    reference_token(d, weight, b, t, out, size);
    for (int64_t h = 0; h < d->H; h++) {
        norm[h] = reference_norm(out + h * d->E, d->E);
        wide[h] = eps * reference_norm(size + h * d->E, d->E);
        all += norm[h];
    }
    for (int64_t h = 0; h < d->H; h++) {
        const int64_t at = (b * d->H + h) * d->T + t;
        check_near((double)d->norms[at], norm[h], norm[h] * U * 1.001 + wide[h], "norm");
        check_near((double)d->values[at], norm[h], norm[h] * U * 1.001 + wide[h], "value norm");
        /* The errors of the other heads are relative 1e-13 at most, far below U. */
        check_near((double)d->shares[at], norm[h] / all, 1.01 * U + 1e-12, "share");
        for (int64_t e = 0; e < d->E; e++)
            check_near((double)d->written[at * d->E + e], out[h * d->E + e],
                       fabs(out[h * d->E + e]) * U * 1.001 + eps * size[h * d->E + e], "term");
        for (int64_t g = 0; g < d->H && t < d->lengths[b]; g++)
            cosines[h * d->H + g] += reference_dot(out + h * d->E, out + g * d->E, d->E) /
                                     (norm[h] * reference_norm(out + g * d->E, d->E));
    }
    for (int64_t e = 0; e < d->E; e++) {
        double sum = (double)d->bias[e], room = fabs(sum);
        for (int64_t h = 0; h < d->H; h++) {
            sum += out[h * d->E + e];
            room += size[h * d->E + e];
        }
        check_near((double)d->output[(b * d->T + t) * d->E + e], sum,
                   fabs(sum) * U * 1.001 + 2 * eps * room, "sum of heads");
    }
}

/* Compare one row of maps with explicit vectors. */
static void check_row(const desk *d, const double *weight, int64_t b, int64_t t)
{
    double out[6 * 20], size[6 * 20];
    for (int64_t s = 0; s < d->T; s++) {
        double sum[20] = {0}, room = 0;
        reference_token(d, weight, b, s, out, size);
        for (int64_t h = 0; h < d->H; h++) {
            const int64_t at = ((b * d->H + h) * d->T + t) * d->T + s;
            const double p = (double)d->p[at], norm = reference_norm(out + h * d->E, d->E);
            check_near((double)d->maps[at], fabs(p) * norm,
                       fabs(p) * (norm * U * 1.001 + 1e-13 * reference_norm(size + h * d->E, d->E)),
                       "norm-based weight");
            for (int64_t e = 0; e < d->E; e++) sum[e] += p * out[h * d->E + e];
            room += fabs(p) * norm;
        }
        const double wanted = reference_norm(sum, d->E);
        check_near((double)d->layer[(b * d->T + t) * d->T + s], wanted,
                   wanted * U * 1.001 + 0x1p-26 * (double)d->H * room, "layer's map");
    }
}

static void desks(void)
{
    machines all = machines_make(2), three = machines_make(3);
    for (int i = 0; i < rng_cases(40, 400); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        desk d = desk_make(&r), again = d;
        desk_run(all.each[i % all.count].context, &d);
        double *weight = widen(d.weight, d.E * d.H * d.D), cosines[36] = {0}, count = 0;
        for (int64_t b = 0; b < d.B; b++)
            for (int64_t t = 0; t < d.T; t++) check_token(&d, weight, b, t, cosines);
        for (int64_t b = 0; b < d.B; b++) {
            count += (double)d.lengths[b];
            check_row(&d, weight, b, rng_between(&r, 0, d.T - 1));
        }
        for (int64_t k = 0; k < d.H * d.H; k++)
            check_near((double)d.cosines[k], count > 0 ? cosines[k] / count : 0, U + 1e-11,
                       "cosine");
        const size_t terms = (size_t)(d.B * d.H * d.T * d.E), cells = (size_t)(d.B * d.T * d.T);
        float *written = malloc(terms * sizeof(float)), *layer = malloc(cells * sizeof(float));
        float *angles = malloc((size_t)(d.H * d.H) * sizeof(float));
        assert_true(written && layer && angles);
        again.written = written, again.layer = layer, again.cosines = angles;
        desk_run(three.each[(i + 1) % three.count].context, &again); /* other threads, other ISA */
        assert_memory_equal(written, d.written, terms * sizeof(float));
        assert_memory_equal(layer, d.layer, cells * sizeof(float));
        assert_memory_equal(angles, d.cosines, (size_t)(d.H * d.H) * sizeof(float));
        free(written), free(layer), free(angles), free(weight);
        desk_free(&d);
    }
}

static void rollouts(void)
{
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 300 + (uint64_t)i);
        const int64_t B = rng_between(&r, 1, 2), H = rng_between(&r, 1, 3);
        const int64_t T = rng_between(&r, 1, 17), L = rng_between(&r, 1, 4);
        double before[17 * 17], after[17 * 17];
        float out[2][2 * 17 * 17];
        float *maps[4];
        for (int64_t l = 0; l < L; l++) {
            maps[l] = random_floats(&r, B * H * T * T);
            for (int64_t row = 0; row < B * H * T; row++) {
                float sum = 0, *p = maps[l] + row * T;
                for (int64_t s = 0; s < T; s++) sum += p[s] = s > row % T ? 0 : fabsf(p[s]);
                if (row % 3 == 1) sum *= 2; /* a sink has half of the weight */
                for (int64_t s = 0; s < T; s++) p[s] /= sum;
            }
            mha_tensor m = tensor4(maps[l], B, H, T, T), to = tensor3(out[l % 2], B, T, T);
            mha_tensor from = tensor3(out[(l + 1) % 2], B, T, T);
            expect_ok(mha_rollout_step(machines_context(2, i), &m, l ? &from : NULL, &to));
        }
        for (int64_t b = 0; b < B; b++) {
            for (int64_t l = 0; l < L; l++) {
                double *wide = widen(maps[l] + b * H * T * T, H * T * T);
                reference_rollout(wide, H, T, l ? before : NULL, after);
                memcpy(before, after, sizeof before);
                free(wide);
            }
            for (int64_t t = 0; t < T; t++) {
                double sum = 0;
                for (int64_t s = 0; s < T; s++) {
                    const double got = (double)out[(L - 1) % 2][(b * T + t) * T + s];
                    /* Each layer's result is rounded once, and weights sum to 1. */
                    check_near(got, after[t * T + s], (double)L * U, "rollout");
                    sum += got;
                }
                check_near(sum, 1, (double)(L * T) * U, "row of a rollout");
            }
        }
        for (int64_t l = 0; l < L; l++) free(maps[l]);
    }
}

/* ---- transformers ---------------------------------------------------------------------------- */

typedef struct example {
    mha_transformer *t;
    mha_activations *a;
    mha_transformer_desc d;
    mha_transformer_input input;
    int64_t B, T, S;
    int32_t ids[64];
    int64_t lengths[4];
    float memory[MOST], gates[32], output[MOST], probabilities[MOST * 4];
    mha_tensor tokens, memory_t, gates_t, output_t, probabilities_t;
} example;

/* Numbers of remaining heads in layers. */
static const int64_t left[][3] = {{2, 0, 1}, {0, 2, 2}, {1, 2, 0}};

static mha_transformer_desc some_desc(rng *r)
{
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .vocab_size = VOCAB,
                              .max_length = 8,
                              .num_layers = rng_between(r, 1, 3),
                              .num_heads = rng_chance(r, 0.5) ? 2 : 4,
                              .ff_dim = rng_chance(r, 0.3) ? 0 : rng_between(r, 1, 9),
                              .norm = (mha_norm)rng_between(r, 0, 2),
                              .positions = (mha_position_encoding)rng_between(r, 0, 3),
                              .feed_forward = (mha_feed_forward)rng_between(r, 0, 5)};
    d.embed_dim = d.num_heads * (rng_chance(r, 0.5) ? 2 : 4);
    if (rng_chance(r, 0.3)) d.head_dim = 6;
    if (rng_chance(r, 0.4)) d.kv_heads = d.num_heads / 2;
    if (d.head_dim && !d.kv_heads && rng_chance(r, 0.7)) d.layer_heads = left[rng_between(r, 0, 2)];
    if (rng_chance(r, 0.5)) d.flags |= MHA_TRANSFORMER_CAUSAL;
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_CROSS;
    if (rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_TIED;
    if (rng_chance(r, 0.2)) d.flags |= MHA_TRANSFORMER_NO_OUTPUT;
    blocks_draw(r, &d);
    d.flags &=
        ~(uint32_t)(MHA_TRANSFORMER_BRANCH_NORM | MHA_TRANSFORMER_NO_INPUT_NORM); /* rejected */
    if (d.norm && rng_chance(r, 0.3)) d.flags |= MHA_TRANSFORMER_EMBEDDING_NORM;
    if (rng_chance(r, 0.3)) d.residual_scale = 0.5f, d.logit_scale = 2;
    if (!(d.flags & MHA_TRANSFORMER_NO_OUTPUT) && rng_chance(r, 0.4))
        d.flags |= MHA_TRANSFORMER_LOGIT_BIAS;
    return d;
}

static void example_fill(example *e, rng *r)
{
    float *data = mha_transformer_data(e->t);
    for (int64_t i = 0; i < mha_transformer_size(e->t); i++) data[i] = rng_normal(r);
    for (int64_t i = 0; i < MOST; i++) e->memory[i] = rng_normal(r);
    for (int64_t i = 0; i < 32; i++) e->gates[i] = rng_normal(r);
}

static example *example_make(mha_context *context, const mha_transformer_desc *desc, rng *r)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    if (mha_transformer_create(context, desc, &e->t) != MHA_OK) fail_msg("%s", mha_error_detail());
    mha_transformer_describe(e->t, &e->d);
    const bool cross = e->d.flags & MHA_TRANSFORMER_CROSS;
    e->B = rng_between(r, 1, 3), e->T = rng_between(r, 1, 8);
    e->S = cross ? rng_between(r, 1, 5) : 0;
    for (int64_t i = 0; i < 64; i++) e->ids[i] = (int32_t)rng_between(r, 0, VOCAB - 1);
    for (int64_t b = 0; b < e->B; b++) e->lengths[b] = rng_between(r, 1, e->T);
    e->tokens = mha_tensor_contiguous(e->ids, MHA_I32, 2, (int64_t[]){e->B, e->T});
    e->memory_t = tensor3(e->memory, e->B, e->S, cross ? e->d.memory_dim : 0);
    e->gates_t = tensor2(e->gates, e->d.num_layers, e->d.num_heads);
    e->output_t = tensor3(e->output, e->B, e->T,
                          e->d.flags & MHA_TRANSFORMER_NO_OUTPUT ? e->d.embed_dim : VOCAB);
    const int64_t maps[] = {e->d.num_layers, e->B, e->d.num_heads, e->T, e->T};
    e->probabilities_t = mha_tensor_contiguous(e->probabilities, MHA_F32, 5, maps);
    e->input = (mha_transformer_input){.struct_size = sizeof e->input,
                                       .tokens = &e->tokens,
                                       .lengths = e->lengths,
                                       .memory = cross ? &e->memory_t : NULL};
    expect_ok(mha_activations_create(context, e->t, 64, cross ? 64 : 0, &e->a));
    example_fill(e, r);
    if (rng_chance(r, 0.5)) e->input.gates = &e->gates_t;
    return e;
}

static void example_run(mha_context *context, example *e)
{
    expect_ok(mha_transformer_update(context, e->t));
    if (mha_transformer_forward(context, e->t, &e->input, e->a, &e->output_t, &e->probabilities_t,
                                NULL) != MHA_OK)
        fail_msg("%s", mha_error_detail());
}

static void example_free(example *e)
{
    mha_activations_destroy(e->a);
    mha_transformer_destroy(e->t);
    free(e);
}

/* Make the example's transformer read the parameters of its old transformer, which is returned. */
static mha_transformer *example_read(mha_context *context, example *e, stored *s)
{
    mha_transformer *own = e->t;
    mha_activations_destroy(e->a);
    e->t = stored_transformer(context, own, 0, s);
    expect_ok(mha_activations_create(context, e->t, 64, e->S > 0 ? 64 : 0, &e->a));
    return own;
}

static int64_t heads_of(const example *e, int64_t layer, bool cross)
{
    return cross || !e->d.layer_heads ? e->d.num_heads : e->d.layer_heads[layer];
}

/* A parameter in double; NULL if there is none. */
static double *parameter(const example *e, int64_t layer, const char *name)
{
    mha_parameter p;
    if (mha_transformer_find(e->t, layer, name, &p) != MHA_OK) return NULL;
    return widen(mha_transformer_data(e->t) + p.offset, p.count);
}

static void norm_stream(const example *e, reference_stream *s, int64_t layer, const char *prefix,
                        const mha_tensor *read, int64_t row)
{
    char name[64];
    snprintf(name, sizeof name, "%s.weight", prefix);
    double *weight = parameter(e, layer, name);
    snprintf(name, sizeof name, "%s.bias", prefix);
    double *bias = parameter(e, layer, name);
    double *x = widen((const float *)read->data + row * e->d.embed_dim, e->d.embed_dim);
    /* The bias of the norm goes to term 1. The norm is computed in double and rounded once. */
    reference_stream_norm(s, x, weight, bias, (double)e->d.norm_epsilon,
                          e->d.norm == MHA_NORM_LAYER, 1, 1.01 * U);
    free(weight), free(bias), free(x);
}

/* Add the terms of W z + b: one for each `D` columns, and the bias. In the forward call, the
 * product of K terms, its bias and the sum with the stream have K + 3 roundings. */
static void add_linear(const example *e, reference_stream *s, int64_t layer, const char *name,
                       const float *z, int64_t K, int64_t D, const float *stream)
{
    char text[64];
    const int64_t E = e->d.embed_dim;
    snprintf(text, sizeof text, "%s.weight", name);
    double *weight = K ? parameter(e, layer, text) : NULL, *wide = widen(z, K);
    snprintf(text, sizeof text, "%s.bias", name);
    double *bias = parameter(e, layer, text), *term = reference_stream_add(s);
    const double scale = (double)e->d.residual_scale; /* a power of two */
    for (int64_t i = 0; i < E * K; i++) weight[i] *= scale;
    for (int64_t c = 0; bias && c < E; c++) bias[c] *= scale;
    for (int64_t c = 0; c < E; c++) {
        double room = fabs((double)stream[c]) + (bias ? fabs(bias[c]) : 0);
        for (int64_t i = 0; i < K; i++) room += fabs(weight[c * K + i] * wide[i]);
        s->error[c] += 1.01 * (double)(K + 3) * U * room;
        if (bias) term[c] = bias[c];
    }
    for (int64_t h = 0; h < K / D; h++)
        reference_head_out(weight, E, K, h, D, wide + h * D, reference_stream_add(s));
    free(weight), free(wide), free(bias);
}

static void add_part(const example *e, reference_stream *s, int64_t layer, mha_layer_part part,
                     int64_t row)
{
    static const char *const names[] = {"self_attn.o_proj", "cross_attn.o_proj", "mlp.down_proj"};
    static const char *const norms[] = {"self_attn_norm", "cross_attn_norm", "mlp_norm"};
    mha_layer_view view = {.struct_size = sizeof view};
    expect_ok(mha_activations_layer(e->a, layer, part, &view));
    const bool ff = part == MHA_PART_FEED_FORWARD;
    const mha_tensor *in = ff ? &view.hidden : &view.concatenated;
    const int64_t K = in->shape[2];
    add_linear(e, s, layer, names[part], (const float *)in->data + row * K, K,
               ff ? K : e->d.head_dim, (const float *)view.stream.data + row * e->d.embed_dim);
    if (e->d.flags & MHA_TRANSFORMER_POST_NORM)
        norm_stream(e, s, layer, norms[part], &view.sum, row);
}

/* The stream of one token as a sum, from the embeddings to the end. Its terms are the embedding,
 * the biases of norms, and for each part its bias and its heads (or the complete part). */
static reference_stream decompose(const example *e, int64_t row)
{
    mha_stream_view ends = {.struct_size = sizeof ends};
    reference_stream s = reference_stream_make(e->d.embed_dim, 40);
    expect_ok(mha_activations_stream(e->a, &ends));
    double *embedding = reference_stream_add(&s);
    for (int64_t c = 0; c < s.E; c++)
        embedding[c] = (double)((const float *)ends.embedded.data)[row * s.E + c];
    reference_stream_add(&s);
    if (e->d.flags & MHA_TRANSFORMER_EMBEDDING_NORM)
        norm_stream(e, &s, -1, "embed_norm", &ends.embedded, row);
    for (int64_t i = 0; i < e->d.num_layers; i++) {
        add_part(e, &s, i, MHA_PART_SELF_ATTENTION, row);
        if (e->d.flags & MHA_TRANSFORMER_CROSS) add_part(e, &s, i, MHA_PART_CROSS_ATTENTION, row);
        if (e->d.ff_dim > 0) add_part(e, &s, i, MHA_PART_FEED_FORWARD, row);
    }
    if (e->d.norm != MHA_NORM_NONE && !(e->d.flags & MHA_TRANSFORMER_POST_NORM))
        norm_stream(e, &s, -1, "norm", &ends.last, row);
    return s;
}

typedef struct result {
    double heads[12], cross_heads[12], biases[3], cross_biases[3], feed_forward[3];
    mha_attribution out;
} result;

static void attribute(mha_context *context, const example *e, const mha_attribution_target *target,
                      result *got)
{
    *got = (result){.out = {.struct_size = sizeof got->out}};
    got->out.heads = got->heads, got->out.cross_heads = got->cross_heads;
    got->out.biases = got->biases, got->out.cross_biases = got->cross_biases;
    got->out.feed_forward = got->feed_forward;
    if (mha_logit_attribution(context, e->t, e->a, target, &got->out) != MHA_OK)
        fail_msg("%s", mha_error_detail());
}

/* Check each term separately. Both sides are in double; 1e-12 of the terms' sizes covers the
 * amplification by norms with a small deviation. */
static void check_terms(const example *e, const reference_stream *s, const double *u,
                        double bias_of_logits, const result *got)
{
    const int64_t H = e->d.num_heads, E = s->E;
    int64_t at = 2;
    double size = 0, sum = got->out.embedding + got->out.norms;
    for (int64_t k = 0; k < s->count; k++)
        for (int64_t c = 0; c < E; c++) size += fabs(s->terms[k * E + c] * u[c]);
    const double bound = 1e-12 * size;
#define TERM(k) reference_dot(u, s->terms + (k)*E, E)
    check_near(got->out.embedding, TERM(0), bound, "embedding");
    check_near(got->out.norms, TERM(1) + bias_of_logits, bound + fabs(bias_of_logits) * 1e-12,
               "biases of norms and of the output");
    for (int64_t l = 0; l < e->d.num_layers; l++)
        for (int part = 0; part < 3; part++) {
            const bool there = part == 0 || (part == 1 && e->d.flags & MHA_TRANSFORMER_CROSS) ||
                               (part == 2 && e->d.ff_dim > 0);
            if (!there) continue;
            const double bias = TERM(at);
            at++;
            if (part == 2) {
                check_near(got->feed_forward[l], bias + TERM(at), bound, "feed-forward");
                sum += got->feed_forward[l];
                at++;
                continue;
            }
            check_near((part ? got->cross_biases : got->biases)[l], bias, bound, "bias");
            sum += (part ? got->cross_biases : got->biases)[l];
            for (int64_t h = 0; h < heads_of(e, l, part == 1); h++, at++) {
                const double head = (part ? got->cross_heads : got->heads)[l * H + h];
                check_near(head, TERM(at), bound, "head");
                sum += head;
            }
        }
#undef TERM
    assert_int_equal(at, s->count);
    check_near(got->out.remainder, got->out.total - sum, bound, "remainder");
    double rounding = bound;
    for (int64_t c = 0; c < E; c++) rounding += fabs(u[c]) * s->error[c];
    check_near(got->out.remainder, 0, rounding, "what rounding left");
}

/* Compare the total with the logits themselves: a product of E terms in f32, and a bias. */
/* W_out, times the scale of logits, a power of two. */
static double *output_table(const example *e)
{
    double *table = parameter(
        e, -1, e->d.flags & MHA_TRANSFORMER_TIED ? "embed_tokens.weight" : "lm_head.weight");
    for (int64_t i = 0; i < VOCAB * e->d.embed_dim; i++) table[i] *= (double)e->d.logit_scale;
    return table;
}

static double output_bias(const example *e, const mha_attribution_target *target)
{
    double *bias = parameter(e, -1, "lm_head.bias"), x = 0;
    if (bias) x = bias[target->token] - (target->against < 0 ? 0 : bias[target->against]);
    free(bias);
    return x * (double)e->d.logit_scale;
}

static void check_total(const example *e, const mha_attribution_target *target, int64_t row,
                        const double *u, double total)
{
    const float *logits = e->output + row * VOCAB;
    mha_stream_view ends = {.struct_size = sizeof ends};
    expect_ok(mha_activations_stream(e->a, &ends));
    const float *x = (const float *)ends.normed.data + row * e->d.embed_dim;
    double *table = output_table(e);
    double wanted = (double)logits[target->token], room = 0;
    const int64_t tokens[] = {target->token, target->against};
    for (int i = 0; i < 2; i++) { /* the rounding of the sum with each bias */
        const mha_attribution_target one = {.token = tokens[i], .against = -1};
        if (one.token >= 0) room += fabs(output_bias(e, &one));
    }
    for (int64_t c = 0; c < e->d.embed_dim; c++) {
        const double against =
            target->against < 0 ? 0 : table[target->against * e->d.embed_dim + c];
        assert_true(u[c] == table[target->token * e->d.embed_dim + c] - against);
        room +=
            fabs((double)x[c]) * (fabs(table[target->token * e->d.embed_dim + c]) + fabs(against));
    }
    if (target->against >= 0) wanted -= (double)logits[target->against];
    check_near(total, wanted, (double)(e->d.embed_dim + 2) * U * room, "logits");
    free(table);
}

static void terms_sum_to_the_logit(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 700 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        const mha_transformer_desc desc = some_desc(&r);
        example *e = example_make(context, &desc, &r);
        example_run(context, e);
        mha_attribution_target target = {.struct_size = sizeof target,
                                         .batch = rng_between(&r, 0, e->B - 1),
                                         .position = rng_between(&r, 0, e->T - 1),
                                         .token = rng_between(&r, 0, VOCAB - 1),
                                         .against = rng_between(&r, -1, VOCAB - 1)};
        const int64_t row = target.batch * e->T + target.position, E = e->d.embed_dim;
        const bool directed = e->d.flags & MHA_TRANSFORMER_NO_OUTPUT || rng_chance(&r, 0.2);
        float direction[16];
        double u[16], bias = 0;
        for (int64_t c = 0; c < E; c++) u[c] = (double)(direction[c] = rng_normal(&r));
        if (directed) target.direction = direction;
        result got;
        attribute(context, e, &target, &got);
        reference_stream s = decompose(e, row);
        if (!directed) {
            double *table = output_table(e);
            for (int64_t c = 0; c < E; c++)
                u[c] = table[target.token * E + c] -
                       (target.against < 0 ? 0 : table[target.against * E + c]);
            free(table);
            bias = output_bias(e, &target);
            check_total(e, &target, row, u, got.out.total);
        }
        check_terms(e, &s, u, bias, &got);
        reference_stream_free(&s);
        example_free(e);
    }
}

/* With small integers, heads that attend to four tokens uniformly, and no norm, every number is
 * exact in f32. The terms sum exactly to the logit, and heads and bias sum to the module's
 * output. */
static void small_integers_are_exact(void)
{
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), 1500 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                           .flags = MHA_TRANSFORMER_BIAS,
                                           .vocab_size = VOCAB,
                                           .max_length = 8,
                                           .embed_dim = 8,
                                           .num_layers = 2,
                                           .num_heads = 4,
                                           .ff_dim = rng_chance(&r, 0.5) ? 5 : 0,
                                           .feed_forward = MHA_FEED_FORWARD_RELU};
        example *e = example_make(context, &desc, &r);
        e->T = 4, e->input.gates = NULL, e->input.lengths = NULL;
        e->tokens.shape[1] = e->output_t.shape[1] = 4;
        e->tokens.stride[0] = 4, e->output_t.stride[0] = 4 * VOCAB;
        const int64_t maps[] = {2, e->B, 4, 4, 4};
        e->probabilities_t = mha_tensor_contiguous(e->probabilities, MHA_F32, 5, maps);
        float *data = mha_transformer_data(e->t);
        for (int64_t k = 0; k < mha_transformer_parameters(e->t); k++) {
            mha_parameter p;
            expect_ok(mha_transformer_parameter(e->t, k, &p));
            const bool zero = strstr(p.name, "q_proj") != NULL;
            for (int64_t n = 0; n < p.count; n++)
                data[p.offset + n] = zero ? 0 : (float)rng_between(&r, -2, 2);
        }
        example_run(context, e);
        assert_true(e->probabilities[0] == 0.25f);
        const mha_attribution_target target = {.struct_size = sizeof target,
                                               .position = rng_between(&r, 0, 3),
                                               .token = 3,
                                               .against = 7};
        result got;
        attribute(context, e, &target, &got);
        const float *logit = e->output + target.position * VOCAB;
        assert_true(got.out.total == (double)logit[3] - (double)logit[7]);
        assert_true(got.out.remainder == 0);
        double sum = got.out.embedding + got.out.norms;
        for (int k = 0; k < 8; k++) sum += got.heads[k];
        for (int k = 0; k < 2; k++) sum += got.biases[k] + got.feed_forward[k];
        assert_true(sum == got.out.total);
        mha_layer_view view = {.struct_size = sizeof view};
        float written[3 * 4 * 4 * 8], output[3 * 4 * 8];
        mha_tensor w = tensor4(written, e->B, 4, 4, 8), o = tensor3(output, e->B, 4, 8);
        const mha_head_writing out = {.struct_size = sizeof out, .written = &w, .output = &o};
        expect_ok(mha_activations_layer(e->a, 1, MHA_PART_SELF_ATTENTION, &view));
        expect_ok(mha_layer_write(context, e->t, e->a, 1, MHA_PART_SELF_ATTENTION, NULL, &out));
        double *bias = parameter(e, 1, "self_attn.o_proj.bias");
        for (int64_t k = 0; k < e->B * 4 * 8; k++) {
            const int64_t b = k / 32, t = k / 8 % 4, c = k % 8;
            float heads = (float)bias[c];
            for (int64_t h = 0; h < 4; h++) heads += written[((b * 4 + h) * 4 + t) * 8 + c];
            assert_true(output[k] == heads);
            assert_true(output[k] ==
                        ((const float *)view.sum.data)[k] - ((const float *)view.stream.data)[k]);
        }
        free(bias);
        example_free(e);
    }
}

/* The calls for layers equal the plain calls on the layers' numbers. A token that sees only itself
 * has ||f|| = ||out||. */
static void layers_are_the_plain_calls(void)
{
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 2100 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        mha_transformer_desc desc = some_desc(&r);
        desc.flags |= MHA_TRANSFORMER_CAUSAL;
        example *e = example_make(context, &desc, &r);
        example_run(context, e);
        const int64_t l = rng_between(&r, 0, e->d.num_layers - 1), H = heads_of(e, l, false);
        if (H == 0) {
            const mha_head_writing none = {.struct_size = sizeof none};
            assert_int_equal(mha_layer_write(context, e->t, e->a, l, 0, e->lengths, &none),
                             MHA_ERR_ARGUMENT);
            example_free(e);
            continue;
        }
        float norms[3 * 4 * 8], values[3 * 4 * 8], maps[3 * 4 * 8 * 8];
        mha_tensor n = tensor3(norms, e->B, H, e->T), v = tensor3(values, e->B, H, e->T);
        mha_tensor m = tensor4(maps, e->B, H, e->T, e->T);
        const int64_t all_heads = e->d.num_heads, cells = e->T * e->T;
        mha_tensor p =
            tensor4(e->probabilities + l * e->B * all_heads * cells, e->B, H, e->T, e->T);
        p.stride[0] = all_heads * cells;
        mha_tensor gates = mha_tensor_contiguous(e->gates + l * all_heads, MHA_F32, 1, &H);
        const mha_head_writing out = {.struct_size = sizeof out, .norms = &n};
        const mha_norm_maps also = {.struct_size = sizeof also,
                                    .probabilities = &p,
                                    .gates = e->input.gates ? &gates : NULL,
                                    .values = &v,
                                    .heads = &m};
        expect_ok(mha_layer_write(context, e->t, e->a, l, 0, e->lengths, &out));
        expect_ok(mha_layer_norm_maps(context, e->t, e->a, l, 0, &also));
        for (int64_t row = 0; row < e->B * H; row++) {
            const double size = (double)values[row * e->T];
            /* z is v: of a softmax over one key, times a gate, in f32. */
            check_near((double)norms[row * e->T], size, 1e-5 * (1 + size), "the first token");
            assert_true(maps[row * e->T * e->T] == values[row * e->T]);
        }
        example_free(e);
    }
}

/* ---- with a source --------------------------------------------------------------------------- */

/* All results of one layer, of one token and of all weights. */
typedef struct findings {
    float norms[3 * 4 * 8], maps[3 * 4 * 8 * 8], composition[3][144];
    result logit;
} findings;

static void find_all(mha_context *context, example *e, int64_t l, findings *f)
{
    const int64_t H = heads_of(e, l, false), L = e->d.num_layers, all = e->d.num_heads;
    const int64_t cells = e->T * e->T;
    const float direction[] = {1, -2, 0.5f, 3, 0, 1, 1, 4, 1, -1, 2, 1, 1, 1, -3, 1};
    const mha_attribution_target target = {
        .struct_size = sizeof target, .position = e->T - 1, .direction = direction};
    mha_tensor n = tensor3(f->norms, e->B, H, e->T), m = tensor4(f->maps, e->B, H, e->T, e->T);
    mha_tensor p = tensor4(e->probabilities + l * e->B * all * cells, e->B, H, e->T, e->T), t[3];
    p.stride[0] = all * cells;
    const mha_head_writing out = {.struct_size = sizeof out, .norms = &n};
    const mha_norm_maps maps = {.struct_size = sizeof maps, .probabilities = &p, .heads = &m};
    memset(f, 0, sizeof *f);
    for (int k = 0; k < 3; k++) t[k] = tensor4(f->composition[k], L, all, L, all);
    mha_composition scores = {.struct_size = sizeof scores, .q = &t[0], .k = &t[1], .v = &t[2]};
    example_run(context, e);
    attribute(context, e, &target, &f->logit);
    expect_ok(mha_transformer_composition(context, e->t, &scores));
    if (H == 0) return;
    expect_ok(mha_layer_write(context, e->t, e->a, l, 0, e->lengths, &out));
    expect_ok(mha_layer_norm_maps(context, e->t, e->a, l, 0, &maps));
}

/* Matrices from a source are bit-identical to those in an array, and no scratch remains. */
static void sources_change_no_bit(void)
{
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 2500 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        const mha_transformer_desc desc = some_desc(&r);
        example *e = example_make(context, &desc, &r);
        const int64_t l = rng_between(&r, 0, e->d.num_layers - 1);
        static findings f[2];
        stored s;
        find_all(context, e, l, &f[0]);
        mha_transformer *own = example_read(context, e, &s);
        const mha_scratch_mark mark = mha_scratch_top(context);
        find_all(context, e, l, &f[1]);
        const mha_scratch_mark top = mha_scratch_top(context);
        assert_true(top.block == mark.block && top.used == mark.used);
        assert_memory_equal(f[0].norms, f[1].norms, sizeof f[0].norms);
        assert_memory_equal(f[0].maps, f[1].maps, sizeof f[0].maps);
        assert_memory_equal(f[0].composition, f[1].composition, sizeof f[0].composition);
        assert_memory_equal(f[0].logit.heads, f[1].logit.heads, sizeof f[0].logit.heads);
        assert_true(f[0].logit.out.total == f[1].logit.out.total &&
                    f[0].logit.out.remainder == f[1].logit.out.remainder);
        example_free(e);
        mha_transformer_destroy(own);
    }
}

/* ---- composition ----------------------------------------------------------------------------- */

/* W [head's D rows, E] of q, k or v with the norm's weights; or W_O[h] transposed. */
static double *reader_rows(const example *e, int64_t l, const char *name, int64_t head)
{
    double *weight = parameter(e, l, name), *norm = parameter(e, l, "self_attn_norm.weight");
    const int64_t E = e->d.embed_dim, D = e->d.head_dim;
    double *rows = malloc((size_t)(D * E) * sizeof *rows);
    assert_non_null(rows);
    const bool pre = norm && !(e->d.flags & MHA_TRANSFORMER_POST_NORM);
    for (int64_t i = 0; i < D * E; i++)
        rows[i] = weight[head * D * E + i] * (pre ? norm[i % E] : 1);
    free(weight), free(norm);
    return rows;
}

/* *size is ||W_Q|| ||W_K|| / ||W_QK||, which amplifies errors of the factors. */
static double *full_qk(const example *e, int64_t l, int64_t h, double *size)
{
    const int64_t E = e->d.embed_dim, D = e->d.head_dim;
    const int64_t group = e->d.layer_heads ? 1 : e->d.num_heads / e->d.kv_heads;
    double *q = reader_rows(e, l, "self_attn.q_proj.weight", h);
    double *k = reader_rows(e, l, "self_attn.k_proj.weight", h / group);
    double *turned = malloc((size_t)(D * E) * sizeof *turned);
    double *out = malloc((size_t)(E * E) * sizeof *out);
    assert_true(turned && out);
    reference_turn(q, D, E, turned);
    reference_product(turned, k, E, D, E, out);
    *size = reference_norm(q, D * E) * reference_norm(k, D * E) / reference_norm(out, E * E);
    free(q), free(k), free(turned);
    return out;
}

static double *full_ov(const example *e, int64_t l, int64_t h, double *size)
{
    const int64_t E = e->d.embed_dim, D = e->d.head_dim;
    const int64_t group = e->d.layer_heads ? 1 : e->d.num_heads / e->d.kv_heads;
    double *v = reader_rows(e, l, "self_attn.v_proj.weight", h / group);
    double *o = parameter(e, l, "self_attn.o_proj.weight");
    double *part = malloc((size_t)(D * E) * sizeof *part);
    double *out = malloc((size_t)(E * E) * sizeof *out);
    assert_true(part && out);
    for (int64_t i = 0; i < E * D; i++)
        part[i] = o[i / D * heads_of(e, l, false) * D + h * D + i % D];
    reference_product(part, v, E, D, E, out);
    *size = reference_norm(part, D * E) * reference_norm(v, D * E) / reference_norm(out, E * E);
    free(v), free(o), free(part);
    return out;
}

static void composition(void)
{
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), 2700 + (uint64_t)i);
        mha_context *context = all.each[i % all.count].context;
        const mha_transformer_desc desc = some_desc(&r);
        example *e = example_make(context, &desc, &r);
        const int64_t L = e->d.num_layers, H = e->d.num_heads, E = e->d.embed_dim;
        float scores[3][144];
        mha_tensor t[3];
        for (int k = 0; k < 3; k++) t[k] = tensor4(scores[k], L, H, L, H);
        mha_composition out = {.struct_size = sizeof out, .q = &t[0], .k = &t[1], .v = &t[2]};
        expect_ok(mha_transformer_composition(context, e->t, &out));
        assert_true(out.baseline == 1 / sqrt((double)E));
        for (int64_t k = 0; k < L * H * L * H; k++) {
            const int64_t to = k / (H * L * H), h = k / (L * H) % H, from = k / H % L, g = k % H;
            if (from >= to || h >= heads_of(e, to, false) || g >= heads_of(e, from, false)) {
                assert_true(scores[0][k] == 0 && scores[1][k] == 0 && scores[2][k] == 0);
                continue;
            }
            double qk_size, ov_size, size;
            double *qk = full_qk(e, to, h, &qk_size), *ov = full_ov(e, to, h, &ov_size);
            double *wrote = full_ov(e, from, g, &size);
            double *turned = malloc((size_t)(E * E) * sizeof *turned);
            assert_non_null(turned);
            reference_turn(qk, E, E, turned);
            /* M = X O' is a product of E terms in f32, and X is rounded once more. Its error of (E
             * + 2) U ||X|| ||O'|| is propagated by P and V'. The rest is in double. */
            const double part = 1.01 * (double)(E + 2) * U * size;
            check_near((double)scores[0][k], reference_composition(turned, wrote, E),
                       part * qk_size + U, "q");
            check_near((double)scores[1][k], reference_composition(qk, wrote, E),
                       part * qk_size + U, "k");
            check_near((double)scores[2][k], reference_composition(ov, wrote, E),
                       part * ov_size + U, "v");
            free(qk), free(ov), free(wrote), free(turned);
        }
        example_free(e);
    }
}

/* Random matrices score at the baseline. A head that reads everything that another head writes
 * scores far higher. */
static void composition_of_chance(void)
{
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size = VOCAB,
                                       .max_length = 8,
                                       .embed_dim = 64,
                                       .num_layers = 2,
                                       .num_heads = 4};
    mha_context *context = machines_context(2, 0);
    mha_transformer *t;
    mha_parameter p, from;
    expect_ok(mha_transformer_create(context, &desc, &t));
    const mha_transformer_init init = {.struct_size = sizeof init, .seed = 5};
    expect_ok(mha_transformer_initialise(context, t, &init));
    float scores[64];
    mha_tensor k = tensor4(scores, 2, 4, 2, 4);
    mha_composition out = {.struct_size = sizeof out, .k = &k};
    expect_ok(mha_transformer_composition(context, t, &out));
    double sum = 0;
    for (int i = 0; i < 16; i++) sum += (double)scores[32 + i / 4 * 8 + i % 4];
    /* The mean of 16 scores with a standard deviation of about 0.01 (16 x 16 numbers each, of one
     * head): 0.01 is 4 sigma. */
    check_near(sum / 16, out.baseline, 0.01, "random matrices");
    /* W_K of head 1 reads the output of W_O of head 2: its rows are those columns. */
    expect_ok(mha_transformer_find(t, 1, "self_attn.k_proj.weight", &p));
    expect_ok(mha_transformer_find(t, 0, "self_attn.o_proj.weight", &from));
    float *data = mha_transformer_data(t);
    for (int d = 0; d < 16; d++)
        for (int c = 0; c < 64; c++)
            data[p.offset + (16 + d) * 64 + c] = data[from.offset + c * 64 + 2 * 16 + d];
    expect_ok(mha_transformer_composition(context, t, &out));
    const float *row = scores + 32 + 8;
    assert_true(row[2] > 0.22f && row[0] < 0.16f && row[1] < 0.16f && row[3] < 0.16f);
    mha_transformer_destroy(t);
}

/* ---- from tokens to tokens ------------------------------------------------------------------- */

static double sum_of(const float *row, int64_t first, int64_t count)
{
    double sum = 0;
    for (int64_t s = 0; s < count; s++) sum += (double)row[first + s];
    return sum;
}

static double log_probability_of(const float *row, int64_t count, int64_t token)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < count; i++) most = fmax(most, (double)row[i]);
    for (int64_t i = 0; i < count; i++) sum += exp((double)row[i] - most);
    return (double)row[token] - most - log(sum);
}

/* The change by the definition, from outputs [T,width] with and without a head. */
static double plain_effect(const example *e, const mha_head_attribution_desc *d, const float *with,
                           const float *without, int64_t predicted)
{
    const int64_t width = e->output_t.shape[2], last = d->from_first + d->from_count - 1;
    double turn = 0;
    if (predicted >= 0)
        return log_probability_of(with + last * width, width, predicted) -
               log_probability_of(without + last * width, width, predicted);
    for (int64_t t = d->from_first; t <= last; t++) {
        const float *a = with + t * width, *b = without + t * width;
        double ab = 0, aa = 0, bb = 0;
        for (int64_t i = 0; i < width; i++) {
            ab += (double)a[i] * (double)b[i];
            aa += (double)a[i] * (double)a[i];
            bb += (double)b[i] * (double)b[i];
        }
        turn += 1 - ab / sqrt(aa * bb);
    }
    return turn / (double)d->from_count;
}

/* The same by calls that keep all activations: complete maps, and a run without each head. */
static void check_heads(mha_context *context, example *e, const mha_head_attribution_desc *d,
                        const mha_head_attribution *got)
{
    static float whole[MOST], map[MOST];
    const int64_t H = e->d.num_heads, T = e->T, width = e->output_t.shape[2];
    const float *last = whole + (d->from_first + d->from_count - 1) * width;
    example_run(context, e);
    memcpy(whole, e->output, (size_t)(T * width) * sizeof *whole);
    if (e->d.flags & MHA_TRANSFORMER_NO_OUTPUT) {
        assert_true(got->predicted == -1 && got->probability == 0);
    } else {
        for (int64_t i = 0; i < width; i++) assert_true(last[i] <= last[got->predicted]);
        check_near(got->probability, exp(log_probability_of(last, width, got->predicted)), 1e-12,
                   "probability");
    }
    for (int64_t l = 0; l < e->d.num_layers; l++) {
        const int64_t have = heads_of(e, l, false);
        const float *p = e->probabilities + l * H * T * T;
        const mha_tensor from = tensor4((float *)(uintptr_t)p, 1, have, T, T),
                         to = tensor4(map, 1, have, T, T);
        const mha_norm_maps maps = {
            .struct_size = sizeof maps, .probabilities = &from, .heads = &to};
        if (have > 0) expect_ok(mha_layer_norm_maps(context, e->t, e->a, l, 0, &maps));
        for (int64_t h = 0; h < H; h++) {
            const int64_t at = l * H + h;
            if (h >= have || (d->heads && !d->heads[at])) {
                assert_true(got->weights[at] < 0 && got->shares[at] < 0 && got->effects[at] < -99);
                continue;
            }
            double weight = 0, share = 0;
            for (int64_t t = d->from_first; t < d->from_first + d->from_count; t++) {
                const float *row = map + (h * T + t) * T;
                const double all = sum_of(row, 0, T);
                weight += sum_of(p + (h * T + t) * T, d->to_first, d->to_count);
                share += all > 0 ? sum_of(row, d->to_first, d->to_count) / all : 0;
            }
            check_near(got->weights[at], weight / (double)d->from_count, 1e-12, "weight");
            check_near(got->shares[at], share / (double)d->from_count, 1e-12, "share");
        }
    }
    for (int64_t at = 0; at < e->d.num_layers * H; at++) {
        if (got->weights[at] < 0) continue;
        for (int64_t i = 0; i < e->d.num_layers * H; i++) e->gates[i] = i != at;
        e->input.gates = &e->gates_t;
        example_run(context, e);
        e->input.gates = NULL;
        check_near(got->effects[at], plain_effect(e, d, whole, e->output, got->predicted), 1e-9,
                   "effect");
    }
}

static mha_status count_calls(int64_t done, int64_t total, void *user)
{
    int64_t *calls = user;
    assert_true(done >= 0 && done < total);
    ++*calls;
    return *calls == 1000 ? MHA_ERR_FILE : MHA_OK;
}

static void heads_from_tokens_to_tokens(void)
{
    static const mha_layer_desc windows[3] = {
        {.struct_size = sizeof *windows, .flags = MHA_LAYER_WINDOW, .left_keys = 1},
        {.struct_size = sizeof *windows, .flags = MHA_LAYER_SINKS},
        {.struct_size = sizeof *windows, .softcap = 3}};
    const machines all = machines_make(2);
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 2900 + (uint64_t)i);
        mha_context *context = all.each[i % all.count].context;
        mha_transformer_desc desc = some_desc(&r);
        desc.flags &= ~(uint32_t)MHA_TRANSFORMER_CROSS;
        if (rng_chance(&r, 0.5)) desc.layers = windows;
        example *e = example_make(context, &desc, &r);
        uint8_t on[32];
        double found[3][32];
        int64_t calls = 0, wanted = 0;
        e->B = 1;
        e->tokens.shape[0] = e->output_t.shape[0] = 1;
        e->probabilities_t =
            mha_tensor_contiguous(e->probabilities, MHA_F32, 5,
                                  (int64_t[]){e->d.num_layers, 1, e->d.num_heads, e->T, e->T});
        e->input.lengths = NULL;
        e->input.gates = NULL;
        for (int k = 0; k < 32; k++) on[k] = rng_chance(&r, 0.7);
        for (int k = 0; k < 96; k++) found[k / 32][k % 32] = -100;
        mha_head_attribution_desc d = {.struct_size = sizeof d,
                                       .from_first = rng_between(&r, 0, e->T - 1),
                                       .to_first = rng_between(&r, 0, e->T - 1),
                                       .heads = rng_chance(&r, 0.5) ? on : NULL,
                                       .progress = count_calls,
                                       .progress_user = &calls};
        d.from_count = rng_between(&r, 1, e->T - d.from_first);
        d.to_count = rng_between(&r, 1, e->T - d.to_first);
        mha_head_attribution heads = {.struct_size = sizeof heads,
                                      .weights = found[0],
                                      .shares = found[1],
                                      .effects = found[2]};
        const mha_tensor tokens = mha_tensor_contiguous(e->ids, MHA_I32, 1, (int64_t[]){e->T});
        expect_ok(mha_transformer_update(context, e->t));
        expect_ok(mha_transformer_head_attribution(context, e->t, &tokens, &d, &heads));
        check_heads(context, e, &d, &heads);
        for (int64_t k = 0; k < e->d.num_layers * e->d.num_heads; k++) wanted += found[0][k] >= 0;
        assert_int_equal(calls, wanted);
        calls = 999; /* the status that progress returns ends the call */
        d.heads = NULL;
        if (wanted > 0)
            assert_int_equal(mha_transformer_head_attribution(context, e->t, &tokens, &d, &heads),
                             MHA_ERR_FILE);
        example_free(e);
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    mha_context *x = machines_context(1, 0);
    float z[32] = {0}, w[16] = {0}, out[64], p[64] = {0};
    struct {
        mha_tensor heads, weight, norms, map, maps, probabilities, square, after;
        mha_head_writing writing;
        mha_norm_maps twin;
        int64_t length;
    } a = {
        .heads = tensor4(z, 1, 2, 4, 2),
        .weight = tensor2(w, 4, 4),
        .norms = tensor3(out, 1, 2, 4),
        .map = tensor2(out, 2, 4),
        .maps = tensor4(out, 1, 2, 4, 4),
        .probabilities = tensor4(p, 1, 2, 4, 4),
        .square = tensor4(p, 1, 1, 4, 4),
        .after = tensor3(out, 1, 4, 4),
        .writing = {.struct_size = sizeof a.writing, .norms = &a.norms},
        .twin = {.struct_size = sizeof a.twin, .probabilities = &a.probabilities, .heads = &a.maps},
        .length = 4};
#define WRITE() mha_heads_write(x, &a.heads, &a.weight, NULL, NULL, &a.length, &a.writing)
#define NORM_MAPS() mha_attention_norm_maps(x, &a.heads, &a.weight, &a.twin)
#define ROLL() mha_rollout_step(x, &a.square, NULL, &a.after)
#define REFUSE(call, status, part, ...) expect_spoiled(a, call, status, part, __VA_ARGS__)
    expect_ok(WRITE());
    expect_ok(NORM_MAPS());
    expect_ok(ROLL());
    REFUSE(WRITE(), MHA_ERR_ARGUMENT, "lengths[0] is 5, expected 0..4", a.length = 5);
    REFUSE(WRITE(), MHA_ERR_SHAPE, "weight: 4 columns", a.heads.shape[3] = 3);
    REFUSE(WRITE(), MHA_ERR_OVERLAP, "norms overlaps", a.norms.data = z);
    REFUSE(WRITE(), MHA_ERR_UNSUPPORTED, "reserved", a.writing.reserved = 1);
    REFUSE(WRITE(), MHA_ERR_ARGUMENT, "struct_size", a.writing.struct_size = 0);
    REFUSE(mha_heads_write(NULL, &a.heads, &a.weight, NULL, NULL, NULL, &a.writing), MHA_ERR_NULL,
           "context", a.length = 0);
    REFUSE(mha_head_weight_norms(&a.weight, &a.map), MHA_ERR_SHAPE, "3 heads", a.map.shape[0] = 3);
    REFUSE(NORM_MAPS(), MHA_ERR_NULL, "probabilities", a.twin.probabilities = NULL);
    REFUSE(NORM_MAPS(), MHA_ERR_SHAPE, "probabilities", a.probabilities.shape[3] = 3);
    REFUSE(ROLL(), MHA_ERR_OVERLAP, "after overlaps", a.after.data = p);
    REFUSE(ROLL(), MHA_ERR_SHAPE, "maps", a.square.shape[2] = 3);
#undef REFUSE
#undef ROLL
#undef NORM_MAPS
#undef WRITE
}

static void transformer_errors(void)
{
    mha_context *x = machines_context(1, 0);
    rng r = rng_make(3, 0);
    mha_transformer_desc desc = {.struct_size = sizeof desc,
                                 .flags = MHA_TRANSFORMER_NO_OUTPUT,
                                 .vocab_size = VOCAB,
                                 .max_length = 8,
                                 .embed_dim = 8,
                                 .num_layers = 2,
                                 .num_heads = 2};
    example *e = example_make(x, &desc, &r), *f = example_make(x, &desc, &r);
    mha_attribution_target target = {.struct_size = sizeof target, .against = -1};
    mha_attribution out = {.struct_size = sizeof out};
    mha_head_writing writing = {.struct_size = sizeof writing};
    expect_error(mha_logit_attribution(x, e->t, e->a, &target, &out), MHA_ERR_ARGUMENT, "no batch");
    example_run(x, e);
    expect_error(mha_logit_attribution(x, e->t, e->a, &target, &out), MHA_ERR_ARGUMENT,
                 "no output; set direction");
    expect_error(mha_logit_attribution(x, f->t, e->a, &target, &out), MHA_ERR_ARGUMENT,
                 "another transformer");
    target.position = e->T;
    expect_error(mha_logit_attribution(x, e->t, e->a, &target, &out), MHA_ERR_ARGUMENT, "target");
    expect_error(mha_logit_attribution(x, e->t, e->a, NULL, &out), MHA_ERR_NULL, "target");
    expect_error(mha_layer_write(x, e->t, e->a, 0, MHA_PART_FEED_FORWARD, NULL, &writing),
                 MHA_ERR_ARGUMENT, "expected self-attention or cross-attention");
    expect_error(mha_layer_write(x, e->t, e->a, 2, MHA_PART_SELF_ATTENTION, NULL, &writing),
                 MHA_ERR_ARGUMENT, "no layer 2");
    expect_error(mha_layer_write(x, e->t, e->a, 0, MHA_PART_CROSS_ATTENTION, NULL, &writing),
                 MHA_ERR_ARGUMENT, "no cross-attention");
    float scores[15];
    mha_tensor k = tensor4(scores, 2, 2, 2, 1);
    mha_composition composition = {.struct_size = sizeof composition, .k = &k};
    expect_error(mha_transformer_composition(x, e->t, &composition), MHA_ERR_SHAPE, "k: dim 3");
    const mha_tensor tokens = mha_tensor_contiguous(e->ids, MHA_I32, 1, (int64_t[]){e->T});
    mha_head_attribution heads = {.struct_size = sizeof heads};
    mha_head_attribution_desc d = {.struct_size = sizeof d, .from_count = 1, .to_count = 1};
#define HEADS() mha_transformer_head_attribution(x, e->t, &tokens, &d, &heads)
    expect_spoiled(d, HEADS(), MHA_ERR_ARGUMENT, "from: 0 tokens", d.from_count = 0);
    expect_spoiled(d, HEADS(), MHA_ERR_ARGUMENT, "to: 9 tokens", d.to_count = 9);
    expect_spoiled(d, HEADS(), MHA_ERR_ARGUMENT, "from -1", d.to_first = -1);
    expect_spoiled(d, HEADS(), MHA_ERR_ARGUMENT, "from: 1 tokens", d.from_first = INT64_MAX);
    expect_spoiled(d, HEADS(), MHA_ERR_UNSUPPORTED, "reserved", d.reserved = 1);
    expect_spoiled(heads, HEADS(), MHA_ERR_ARGUMENT, "struct_size", heads.struct_size = 3);
    expect_error(mha_transformer_head_attribution(x, e->t, NULL, &d, &heads), MHA_ERR_NULL,
                 "tokens");
    expect_error(mha_transformer_head_attribution(x, e->t, &tokens, NULL, &heads), MHA_ERR_NULL,
                 "desc");
    expect_ok(HEADS());
    example_free(e), example_free(f);
}

/* Scratch grows with its first use, so the call that comes first meets the most failures. */
typedef struct failing_run {
    rng r;
    bool maps_first;
} failing_run;

static mha_status written_and_mapped(mha_context *context, failing_alloc *memory, void *user)
{
    failing_run *run = user;
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .flags = MHA_TRANSFORMER_BIAS,
                                       .vocab_size = VOCAB,
                                       .max_length = 8,
                                       .embed_dim = 128,       /* W_o fills a block of scratch */
                                       .residual_scale = 0.5f, /* and its multiple another one */
                                       .num_layers = 2,
                                       .num_heads = 4};
    mha_context *other = machines_context(1, 0);
    example *e = example_make(other, &desc, &run->r);
    stored s;
    mha_transformer *own = example_read(other, e, &s);
    float scores[64], cosines[16], layer[3 * 64];
    mha_tensor k = tensor4(scores, 2, 4, 2, 4), cos = tensor2(cosines, 4, 4);
    mha_tensor map = tensor3(layer, e->B, e->T, e->T);
    mha_tensor p = tensor4(e->probabilities, e->B, 4, e->T, e->T);
    mha_composition out = {.struct_size = sizeof out, .k = &k};
    const mha_head_writing writing = {.struct_size = sizeof writing, .cosines = &cos};
    const mha_norm_maps maps = {.struct_size = sizeof maps, .probabilities = &p, .layer = &map};
    example_run(other, e);
    failing_from_here(memory);
    mha_status status = MHA_OK;
    if (run->maps_first) status = mha_layer_norm_maps(context, e->t, e->a, 0, 0, &maps);
    if (status == MHA_OK) status = mha_layer_write(context, e->t, e->a, 0, 0, NULL, &writing);
    if (status == MHA_OK) status = mha_layer_norm_maps(context, e->t, e->a, 0, 0, &maps);
    if (status == MHA_OK) status = mha_transformer_composition(context, e->t, &out);
    const mha_tensor tokens = mha_tensor_contiguous(e->ids, MHA_I32, 1, (int64_t[]){e->T});
    const mha_head_attribution_desc d = {.struct_size = sizeof d, .from_count = 1, .to_count = 1};
    double weights[8];
    mha_head_attribution heads = {.struct_size = sizeof heads, .weights = weights};
    if (status == MHA_OK)
        status = mha_transformer_head_attribution(context, e->t, &tokens, &d, &heads);
    example_free(e);
    mha_transformer_destroy(own);
    return status;
}

static void failed_allocations_are_reported(void)
{
    for (int i = 0; i < 2; i++) {
        failing_run run = {rng_make(4, 0), i};
        assert_true(failing_each(written_and_mapped, &run) > 3);
    }
}

RUN_TESTS(TEST(hand_writing), TEST(hand_maps), TEST(hand_rollout), TEST(desks), TEST(rollouts),
          TEST(terms_sum_to_the_logit), TEST(small_integers_are_exact),
          TEST(layers_are_the_plain_calls), TEST(sources_change_no_bit), TEST(composition),
          TEST(composition_of_chance), TEST(heads_from_tokens_to_tokens), TEST(misuse_is_refused),
          TEST(transformer_errors), TEST(failed_allocations_are_reported))
