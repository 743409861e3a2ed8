/* Importance of heads. Gradients of gates are compared with differences of the loss, their kinds
 * with each other, mean ablation with an equivalent bias, the order of removal with a simple
 * search, and the curve with losses of forward calls. Ablation is bit-identical to closed gates,
 * and ranks that share the passes are bit-identical to one process. Further tests are for heads
 * without output, other orders, and misuse. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/small_model.h"
#include "support/suite.h"
#include "support/thread_ranks.h"

#include <multihead/component.h>
#include <multihead/importance.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCHES = 3, MOST_B = 4, MOST_T = 9, MOST_ROWS = MOST_B * MOST_T, MOST_WIDTH = 24 };
enum { MOST_HEADS = 12, MOST_MEANS = MOST_HEADS * 6 };

/* One random batch. */
typedef struct batch {
    int32_t ids[MOST_ROWS], targets[MOST_ROWS];
    int64_t lengths[MOST_B];
    float wanted[MOST_B * MOST_WIDTH];
    mha_tensor tokens, target, embedding;
    mha_transformer_input input;
} batch;

/* A random transformer and data for its measurement. */
typedef struct example {
    mha_transformer *t;
    mha_transformer_desc desc;
    batch batches[BATCHES];
    const mha_transformer_input *inputs[BATCHES];
    const mha_tensor *targets[BATCHES], *embeddings[BATCHES];
    mha_importance_data data;
    int64_t heads, sequences;
} example;

static mha_transformer_desc some_desc(rng *r, bool output)
{
    mha_transformer_desc d = {.struct_size = sizeof d,
                              .vocab_size = rng_between(r, 5, 20),
                              .max_length = MOST_T,
                              .num_layers = rng_between(r, 1, 3),
                              .num_heads = rng_chance(r, 0.5) ? 2 : 4,
                              .ff_dim = rng_chance(r, 0.2) ? 0 : rng_between(r, 1, 20)};
    d.embed_dim = d.num_heads * (rng_chance(r, 0.5) ? 2 : 6);
    if (rng_chance(r, 0.3)) d.head_dim = 4;
    if (rng_chance(r, 0.4)) d.kv_heads = d.num_heads / 2;
    d.norm = (mha_norm)rng_between(r, 0, 2);
    d.positions = (mha_position_encoding)rng_between(r, 0, 3);
    d.feed_forward = rng_chance(r, 0.5) ? MHA_FEED_FORWARD_GELU : MHA_FEED_FORWARD_SWIGLU;
    if (rng_chance(r, 0.5)) d.flags |= MHA_TRANSFORMER_CAUSAL;
    if (rng_chance(r, 0.5)) d.flags |= MHA_TRANSFORMER_BIAS;
    if (!output) d.flags |= MHA_TRANSFORMER_NO_OUTPUT;
    if (d.norm && rng_chance(r, 0.4)) d.flags |= MHA_TRANSFORMER_POST_NORM;
    return d;
}

static void draw_batch(batch *b, rng *r, const mha_transformer_desc *d)
{
    const int64_t B = rng_between(r, 1, MOST_B), T = rng_between(r, 1, MOST_T), rows = B * T;
    for (int64_t i = 0; i < rows; i++) b->ids[i] = (int32_t)rng_between(r, 0, d->vocab_size - 1);
    for (int64_t i = 0; i < B; i++) b->lengths[i] = rng_between(r, 1, T);
    for (int64_t i = 0; i < rows; i++) {
        const bool counts = i % T < b->lengths[i / T] && rng_chance(r, 0.8);
        b->targets[i] = counts ? (int32_t)rng_between(r, 0, d->vocab_size - 1) : -1;
    }
    for (int64_t i = 0; i < B * d->embed_dim; i++) b->wanted[i] = rng_normal(r);
    b->tokens = mha_tensor_contiguous(b->ids, MHA_I32, 2, (int64_t[]){B, T});
    b->target = mha_tensor_contiguous(b->targets, MHA_I32, 2, (int64_t[]){B, T});
    b->embedding = mha_tensor_contiguous(b->wanted, MHA_F32, 2, (int64_t[]){B, d->embed_dim});
    b->input = (mha_transformer_input){
        .struct_size = sizeof b->input, .tokens = &b->tokens, .lengths = b->lengths};
}

static example *example_make(mha_context *context, rng *r, bool output)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->desc = some_desc(r, output);
    e->t = random_transformer(context, r, &e->desc);
    for (int i = 0; i < BATCHES; i++) {
        draw_batch(&e->batches[i], r, &e->desc);
        e->inputs[i] = &e->batches[i].input;
        e->targets[i] = &e->batches[i].target;
        e->embeddings[i] = &e->batches[i].embedding;
        e->sequences += e->batches[i].tokens.shape[0];
    }
    e->heads = e->desc.num_layers * e->desc.num_heads;
    e->data = (mha_importance_data){.struct_size = sizeof e->data,
                                    .batches = BATCHES,
                                    .inputs = e->inputs,
                                    .loss = output ? mha_loss_targets : mha_loss_direction,
                                    .user = output ? e->targets : e->embeddings};
    return e;
}

static void example_free(const example *e)
{
    mha_transformer_destroy(e->t);
    free((void *)(uintptr_t)e);
}

static mha_tensor gates_view(const example *e, float *gates)
{
    return mha_tensor_contiguous(gates, MHA_F32, 2,
                                 (int64_t[]){e->desc.num_layers, e->desc.num_heads});
}

static double loss_at(mha_context *context, const example *e, float *gates)
{
    double loss;
    mha_tensor view = gates_view(e, gates);
    if (mha_gated_loss(context, e->t, &e->data, &view, &loss) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    return loss;
}

static double score(mha_context *context, const example *e, mha_importance kind, uint32_t flags,
                    double *scores)
{
    const mha_importance_desc desc = {.struct_size = sizeof desc, .kind = kind, .flags = flags};
    double loss;
    if (mha_head_importance(context, e->t, &desc, &e->data, scores, &loss) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    return loss;
}

static void open_all(float *gates)
{
    for (int i = 0; i < MOST_HEADS; i++) gates[i] = 1;
}

/* ---- gradients ----------------------------------------------------------------------------- */

/* Computes the slope of the loss by one gate three times, from differences at h and 2 h that cancel
 * the h^2 term of their error (Richardson). The disagreement of the three estimates the roundings
 * of the f32 loss and its higher derivatives. test_transformer.c has the same bound. */
static void check_gate(mha_context *context, const example *e, int64_t gate, double slope,
                       double *worst, int *tame)
{
    const double widest = 4e-3;
    double low = INFINITY, high = -INFINITY, scale = 0;
    for (double h = widest; h > widest / 5; h /= 2) {
        double by[2];
        for (int far = 0; far < 2; far++) {
            const float step = (float)(far ? 2 * h : h);
            float gates[MOST_HEADS];
            open_all(gates);
            gates[gate] = 1 + step;
            const double above = loss_at(context, e, gates), up = (double)gates[gate];
            gates[gate] = 1 - step;
            const double below = loss_at(context, e, gates);
            by[far] = (above - below) / (up - (double)gates[gate]);
            scale = fmax(scale, fabs(above));
        }
        low = fmin(low, (4 * by[0] - by[1]) / 3);
        high = fmax(high, (4 * by[0] - by[1]) / 3);
    }
    const double numeric = (low + high) / 2;
    const double bound = 4e-7 * (1 + scale) / widest + 1e-3 * fabs(slope) + 1.5 * (high - low);
    *worst = fmax(*worst, fabs(numeric - slope) / bound);
    *tame += high - low < 0.02 * fabs(slope);
    if (fabs(numeric - slope) > bound)
        fail_msg("gate %lld: slope %.6g by differences, %.6g by gradients (bound %.2g)",
                 (long long)gate, numeric, slope, bound);
}

static void gradients_are_slopes(void)
{
    double worst = 0;
    int tame = 0;
    for (int i = 0; i < rng_cases(40, 500); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, i % 2);
        double scores[MOST_HEADS];
        score(context, e, MHA_IMPORTANCE_GRADIENT_SIGNED, 0, scores);
        for (int64_t h = 0; h < e->heads; h++) check_gate(context, e, h, scores[h], &worst, &tame);
        example_free(e);
    }
    printf("  largest difference of slopes / bound %.3f, %d slopes known to 2 %%\n", worst, tame);
    if (rng_whole_sample()) assert_true(worst > 0.01 && tame > 50);
}

/* Every kind sums over sequences: a measurement of one sequence at a time gives the same bits. */
static void batches_are_single_sequences(void)
{
    for (int i = 0; i < rng_cases(20, 300); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, i % 2);
        double by[4][MOST_HEADS], one[MOST_HEADS], token[MOST_HEADS],
            expected[4][MOST_HEADS] = {{0}};
        for (int kind = 0; kind < 4; kind++) score(context, e, (mha_importance)kind, 0, by[kind]);
        const mha_importance_data whole = e->data;
        for (int64_t k = 0; k < BATCHES; k++) {
            const batch given = e->batches[k];
            double sum[MOST_HEADS] = {0};
            e->data.batches = 1;
            e->data.inputs = &e->inputs[k];
            e->data.user = i % 2 ? (void *)&e->targets[k] : (void *)&e->embeddings[k];
            for (int64_t b = 0; b < given.tokens.shape[0]; b++) {
                batch *single = &e->batches[k];
                const int64_t T = given.tokens.shape[1];
                single->tokens.shape[0] = single->target.shape[0] = 1;
                single->embedding.shape[0] = 1;
                single->tokens.data = single->ids + b * T;
                single->target.data = single->targets + b * T;
                single->embedding.data = single->wanted + b * e->desc.embed_dim;
                single->input.lengths = single->lengths + b;
                score(context, e, MHA_IMPORTANCE_GRADIENT_SIGNED, 0, one);
                score(context, e, MHA_IMPORTANCE_GRADIENT_TOKEN, 0, token);
                for (int64_t h = 0; h < e->heads; h++) {
                    expected[0][h] += fabs(one[h]);
                    expected[1][h] += token[h];
                    sum[h] += one[h];
                    assert_true(token[h] >= fabs(one[h]) * (1 - 1e-12));
                }
            }
            for (int64_t h = 0; h < e->heads; h++)
                expected[2][h] += fabs(sum[h]), expected[3][h] += sum[h];
            e->batches[k] = given;
        }
        e->data = whole;
        for (int kind = 0; kind < 4; kind++)
            for (int64_t h = 0; h < e->heads; h++) /* sums of doubles in a different order */
                assert_true(fabs(by[kind][h] - expected[kind][h] / (double)e->sequences) <=
                            1e-12 * by[MHA_IMPORTANCE_GRADIENT_TOKEN][h]);
        example_free(e);
    }
}

static void normalised(void)
{
    rng r = rng_make(rng_run_seed(), 2000);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r, true);
    double plain[MOST_HEADS], scaled[MOST_HEADS];
    score(context, e, MHA_IMPORTANCE_GRADIENT, 0, plain);
    score(context, e, MHA_IMPORTANCE_GRADIENT, MHA_IMPORTANCE_NORMALISE, scaled);
    const int64_t H = e->desc.num_heads;
    for (int64_t l = 0; l < e->desc.num_layers; l++) {
        double square = 0, norm = 0;
        for (int64_t h = l * H; h < (l + 1) * H; h++) {
            square += scaled[h] * scaled[h];
            norm += plain[h] * plain[h];
        }
        assert_true(fabs(square - 1) < 1e-12);
        for (int64_t h = l * H; h < (l + 1) * H; h++)
            assert_true(fabs(scaled[h] * sqrt(norm) - plain[h]) <= 1e-12 * plain[h]);
    }
    example_free(e);
}

/* ---- ablation ------------------------------------------------------------------------------ */

/* The loss from the transformer's forward call and the loss function of importance.h. */
static double plain_loss(mha_context *context, const example *e, float *gates)
{
    float *output = malloc(MOST_ROWS * MOST_WIDTH * sizeof *output);
    mha_activations *a = NULL;
    double sum = 0, losses[MOST_B];
    assert_non_null(output);
    expect_ok(mha_activations_create(context, e->t, MOST_ROWS, 0, &a));
    const int64_t width =
        e->desc.flags & MHA_TRANSFORMER_NO_OUTPUT ? e->desc.embed_dim : e->desc.vocab_size;
    mha_tensor view = gates_view(e, gates);
    for (int64_t i = 0; i < BATCHES; i++) {
        mha_transformer_input input = *e->inputs[i];
        const int64_t *shape = input.tokens->shape;
        mha_tensor out =
            mha_tensor_contiguous(output, MHA_F32, 3, (int64_t[]){shape[0], shape[1], width});
        input.gates = &view;
        expect_ok(mha_transformer_forward(context, e->t, &input, a, &out, NULL, NULL));
        expect_ok(e->data.loss(context, i, &input, &out, NULL, losses, e->data.user));
        for (int64_t b = 0; b < shape[0]; b++) sum += losses[b];
    }
    mha_activations_destroy(a);
    free(output);
    return sum / (double)e->sequences;
}

static void ablation(void)
{
    for (int i = 0; i < rng_cases(16, 200); i++) {
        rng r = rng_make(rng_run_seed(), 3000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, i % 2);
        double scores[MOST_HEADS];
        float gates[MOST_HEADS];
        open_all(gates);
        const double loss = score(context, e, MHA_IMPORTANCE_ABLATION, 0, scores);
        assert_true(loss == plain_loss(context, e, gates) && loss == loss_at(context, e, gates));
        for (int64_t h = 0; h < e->heads; h++) {
            open_all(gates);
            gates[h] = 0;
            assert_true(scores[h] == plain_loss(context, e, gates) - loss);
        }
        example_free(e);
    }
}

static mha_parameter find(const example *e, int64_t layer, const char *name)
{
    mha_parameter p;
    if (mha_transformer_find(e->t, layer, name, &p) != MHA_OK) fail_msg("%s", mha_error_detail());
    return p;
}

/* A head that outputs its mean equals a closed head plus an additional bias W_o mean. The two round differently: sums
 * of up to 24 + 20 terms through at most six steps, in losses of size one. */
static void mean_ablation(void)
{
    double worst = 0;
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, i % 2);
        const int64_t H = e->desc.num_heads, D = e->desc.head_dim, E = e->desc.embed_dim;
        float gates[MOST_HEADS], means[MOST_MEANS];
        double scores[MOST_HEADS];
        mha_tensor view =
            mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){e->desc.num_layers, H * D});
        expect_ok(mha_head_means(context, e->t, &e->data, &view));
        const double loss = score(context, e, MHA_IMPORTANCE_MEAN_ABLATION, 0, scores);
        for (int64_t h = 0; e->desc.flags & MHA_TRANSFORMER_BIAS && h < e->heads; h++) {
            const mha_parameter weight = find(e, h / H, "self_attn.o_proj.weight");
            float *bias =
                mha_transformer_data(e->t) + find(e, h / H, "self_attn.o_proj.bias").offset;
            const float *w = mha_transformer_data(e->t) + weight.offset;
            float before[MOST_WIDTH];
            memcpy(before, bias, (size_t)E * sizeof *bias);
            for (int64_t c = 0; c < E; c++) {
                double sum = (double)bias[c];
                for (int64_t k = 0; k < D; k++)
                    sum += (double)w[c * H * D + h % H * D + k] * (double)means[h * D + k];
                bias[c] = (float)sum;
            }
            expect_ok(mha_transformer_update(context, e->t));
            open_all(gates);
            gates[h] = 0;
            const double error = fabs(loss_at(context, e, gates) - loss - scores[h]);
            worst = fmax(worst, error / (1 + fabs(loss)));
            memcpy(bias, before, (size_t)E * sizeof *bias);
            expect_ok(mha_transformer_update(context, e->t));
        }
        example_free(e);
    }
    printf("  largest difference / (1 + loss): %.2g\n", worst);
    assert_true(worst < 2e-6 && (worst > 0 || !rng_whole_sample()));
}

/* The means equal those of the forward call's kept outputs. */
static void means(void)
{
    rng r = rng_make(rng_run_seed(), 5000);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r, true);
    const int64_t wide = e->desc.num_heads * e->desc.head_dim;
    float got[MOST_MEANS], output[MOST_ROWS * MOST_WIDTH];
    double sums[MOST_MEANS] = {0};
    int64_t tokens = 0;
    mha_tensor view = mha_tensor_contiguous(got, MHA_F32, 2, (int64_t[]){e->desc.num_layers, wide});
    expect_ok(mha_head_means(context, e->t, &e->data, &view));
    mha_activations *a = NULL;
    expect_ok(mha_activations_create(context, e->t, MOST_ROWS, 0, &a));
    for (int i = 0; i < BATCHES; i++) {
        const int64_t B = e->inputs[i]->tokens->shape[0], T = e->inputs[i]->tokens->shape[1];
        mha_tensor out =
            mha_tensor_contiguous(output, MHA_F32, 3, (int64_t[]){B, T, e->desc.vocab_size});
        expect_ok(mha_transformer_forward(context, e->t, e->inputs[i], a, &out, NULL, NULL));
        for (int64_t b = 0; b < B; b++) tokens += e->batches[i].lengths[b];
        for (int64_t l = 0; l < e->desc.num_layers; l++) {
            mha_layer_view v = {.struct_size = sizeof v};
            expect_ok(mha_activations_layer(a, l, MHA_PART_SELF_ATTENTION, &v));
            for (int64_t k = 0; k < B * T * wide; k++)
                if (k / wide % T < e->batches[i].lengths[k / wide / T])
                    sums[l * wide + k % wide] += (double)((float *)v.concatenated.data)[k];
        }
    }
    for (int64_t k = 0; k < e->desc.num_layers * wide; k++)
        assert_true(got[k] == (float)(sums[k] / (double)tokens));
    mha_activations_destroy(a);
    example_free(e);
}

/* Heads whose W_o is 0 write nothing, and every kind gives them the score 0. */
static void silent_heads(void)
{
    for (int i = 0; i < 12; i++) {
        rng r = rng_make(rng_run_seed(), 6000 + (uint64_t)i);
        mha_context *context = machines_context(1, i);
        example *e = example_make(context, &r, i % 2);
        const int64_t H = e->desc.num_heads, D = e->desc.head_dim;
        const int64_t silent = rng_between(&r, 0, e->heads - 1);
        const mha_parameter p = find(e, silent / H, "self_attn.o_proj.weight");
        float *w = mha_transformer_data(e->t) + p.offset;
        for (int64_t k = 0; k < p.count; k++)
            if (k % (H * D) / D == silent % H) w[k] = 0;
        expect_ok(mha_transformer_update(context, e->t));
        for (int kind = 0; kind <= MHA_IMPORTANCE_MEAN_ABLATION; kind++) {
            double scores[MOST_HEADS];
            score(context, e, (mha_importance)kind, 0, scores);
            for (int64_t h = 0; h < e->heads; h++)
                if (h == silent) assert_true(scores[h] >= 0 && scores[h] <= 0);
        }
        example_free(e);
    }
}

/* ---- order --------------------------------------------------------------------------------- */

/* The same order from single calls, which score, close a head, and score again. Means are of the
 * whole model, and 0 for removed heads. */
static int64_t by_hand(mha_context *context, const example *e, mha_importance kind, int64_t step,
                       int64_t least, int64_t *order, double *order_scores)
{
    float gates[MOST_HEADS], means[MOST_MEANS];
    int64_t open[3], count = 0, H = e->desc.num_heads, D = e->desc.head_dim;
    double scores[MOST_HEADS];
    const mha_tensor mean =
        mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){e->desc.num_layers, H * D});
    expect_ok(mha_head_means(context, e->t, &e->data, &mean));
    open_all(gates);
    for (int i = 0; i < 3; i++) open[i] = H;
    for (bool more = true; more;) {
        mha_tensor view = gates_view(e, gates);
        const mha_importance_desc desc = {.struct_size = sizeof desc,
                                          .kind = kind,
                                          .gates = &view,
                                          .means =
                                              kind == MHA_IMPORTANCE_MEAN_ABLATION ? &mean : NULL};
        expect_ok(mha_head_importance(context, e->t, &desc, &e->data, scores, NULL));
        more = false;
        for (int64_t i = 0; i < step; i++) {
            int64_t found = -1;
            for (int64_t h = 0; h < e->heads; h++)
                if (gates[h] > 0 && open[h / H] > least && (found < 0 || scores[h] < scores[found]))
                    found = h;
            if (found < 0) return count;
            more = true;
            order_scores[count] = scores[found];
            order[count++] = found;
            gates[found] = 0;
            memset(means + found * D, 0, (size_t)D * sizeof *means);
            open[found / H]--;
        }
    }
    return count;
}

static mha_status order_of(mha_context *context, const mha_transformer *t,
                           const mha_importance_desc *desc, const mha_importance_data *data,
                           int64_t step, int64_t least, int64_t *order, int64_t *count,
                           double *scores)
{
    mha_head_order_call call = {
        .struct_size = sizeof call, .step = step, .least = least, .order = order, .scores = scores};
    const mha_status status = mha_head_order(context, t, desc, data, &call);
    *count = call.count;
    return status;
}

static mha_status curve_of(mha_context *context, const mha_transformer *t,
                           const mha_importance_data *data, const int64_t *order, int64_t count,
                           const int64_t *removed, int64_t points, double *losses)
{
    const mha_head_curve_call call = {.struct_size = sizeof call,
                                      .order = order,
                                      .count = count,
                                      .removed = removed,
                                      .points = points,
                                      .losses = losses};
    return mha_head_curve(context, t, data, &call);
}

/* If heads have no influence, all scores are 0, and heads are removed in order. */
static void equal_scores(void)
{
    for (int i = 0; i < 12; i++) {
        rng r = rng_make(rng_run_seed(), 6500 + (uint64_t)i);
        mha_context *context = machines_context(1, i);
        example *e = example_make(context, &r, i % 2);
        for (int64_t layer = 0; layer < e->desc.num_layers; layer++) {
            const mha_parameter p = find(e, layer, "self_attn.o_proj.weight");
            memset(mha_transformer_data(e->t) + p.offset, 0, (size_t)p.count * sizeof(float));
        }
        expect_ok(mha_transformer_update(context, e->t));
        int64_t went[MOST_HEADS], count = 0;
        for (int64_t step = 1; step <= 3; step++) {
            expect_ok(order_of(context, e->t, NULL, &e->data, step, 0, went, &count, NULL));
            assert_int_equal(count, e->heads);
            for (int64_t k = 0; k < count; k++) assert_int_equal(went[k], k);
        }
        example_free(e);
    }
}

static mha_status count_progress(int64_t done, int64_t total, void *user)
{
    int64_t *calls = user;
    assert_true(done == ++*calls && done <= total);
    return MHA_OK;
}

static void heads_go_in_their_order(void)
{
    for (int i = 0; i < rng_cases(16, 200); i++) {
        rng r = rng_make(rng_run_seed(), 7000 + (uint64_t)i);
        mha_context *context = machines_context(1, i);
        example *e = example_make(context, &r, i % 2);
        const mha_importance kind =
            i % 2 ? MHA_IMPORTANCE_MEAN_ABLATION
                  : (mha_importance)rng_between(&r, 0, MHA_IMPORTANCE_MEAN_ABLATION);
        const int64_t step = rng_between(&r, 1, 3), least = rng_between(&r, 0, 2);
        const mha_importance_desc desc = {.struct_size = sizeof desc, .kind = kind};
        int64_t got[MOST_HEADS], expected[MOST_HEADS], count, calls = 0;
        double scores[MOST_HEADS], expected_scores[MOST_HEADS];
        const int64_t wanted = by_hand(context, e, kind, step, least, expected, expected_scores);
        e->data.progress = count_progress;
        e->data.progress_user = &calls;
        if (order_of(context, e->t, &desc, &e->data, step, least, got, &count, scores) != MHA_OK)
            fail_msg("%s", mha_error_detail());
        assert_int_equal(count, wanted);
        assert_int_equal(count, e->heads - (e->desc.num_layers * least));
        for (int64_t k = 0; k < count; k++) assert_int_equal(got[k], expected[k]);
        for (int64_t k = 0; k < count; k++) assert_true(scores[k] == expected_scores[k]);
        assert_true(calls > 0 || count == 0);
        example_free(e);
    }
}

/* ---- the curve ------------------------------------------------------------------------------- */

/* Each point is the loss of a forward pass with its gates closed, and points are reported in
 * order. */
static void the_curve_is_plain_losses(void)
{
    for (int i = 0; i < rng_cases(16, 200); i++) {
        rng r = rng_make(rng_run_seed(), 7500 + (uint64_t)i);
        mha_context *context = machines_context(1, i);
        example *e = example_make(context, &r, i % 2);
        int64_t order[MOST_HEADS], removed[5], count = e->heads, calls = 0;
        double losses[5];
        float gates[MOST_HEADS], base[MOST_HEADS];
        open_all(base);
        base[rng_between(&r, 0, e->heads - 1)] = 0.5f;
        const mha_tensor view = gates_view(e, base);
        for (int64_t k = 0; k < count; k++) order[k] = k;
        for (int64_t k = count - 1; k > 0; k--) {
            const int64_t other = rng_between(&r, 0, k), kept = order[k];
            order[k] = order[other];
            order[other] = kept;
        }
        for (int p = 0; p < 5; p++) removed[p] = rng_between(&r, 0, count);
        e->data.progress = count_progress;
        e->data.progress_user = &calls;
        const mha_head_curve_call call = {.struct_size = sizeof call,
                                          .gates = i % 3 ? &view : NULL,
                                          .order = order,
                                          .count = count,
                                          .removed = removed,
                                          .points = 5,
                                          .losses = losses};
        if (mha_head_curve(context, e->t, &e->data, &call) != MHA_OK)
            fail_msg("%s", mha_error_detail());
        assert_int_equal(calls, 5);
        for (int p = 0; p < 5; p++) {
            open_all(gates);
            if (i % 3) memcpy(gates, base, sizeof gates);
            for (int64_t k = 0; k < removed[p]; k++) gates[order[k]] = 0;
            assert_true(losses[p] == plain_loss(context, e, gates));
        }
        example_free(e);
    }
}

/* A transformer whose layers have 3, 0 and 2 heads. */
static mha_transformer *uneven(mha_context *context)
{
    static const int64_t heads[] = {3, 0, 2};
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .vocab_size = 5,
                                    .max_length = 4,
                                    .num_layers = 3,
                                    .num_heads = 3,
                                    .embed_dim = 6,
                                    .layer_heads = heads,
                                    .layer_kv_heads = heads};
    mha_transformer *t = NULL;
    if (mha_transformer_create(context, &d, &t) != MHA_OK) fail_msg("%s", mha_error_detail());
    return t;
}

static void expect_order(const int64_t *got, int64_t count, const int64_t *wanted, int64_t wants)
{
    assert_int_equal(count, wants);
    for (int64_t k = 0; k < count; k++) assert_int_equal(got[k], wanted[k]);
}

/* Heads are 0 1 2 and 6 7. */
static void other_orders_keep_the_limit(void)
{
    mha_context *context = machines_context(1, 0);
    mha_transformer *t = uneven(context);
    int64_t out[9], made = 0, ours[] = {7, 1};
    expect_ok(mha_head_order_reverse(t, ours, 2, 0, out, &made));
    expect_order(out, made, (int64_t[]){0, 2, 6, 1, 7}, 5);
    expect_ok(mha_head_order_reverse(t, ours, 2, 1, out, &made));
    expect_order(out, made, (int64_t[]){0, 2, 6}, 3);
    for (int at = 0; at < 3; at++) { /* in place, and wherever the two overlap */
        for (int64_t least = 0; least < 2; least++) {
            memcpy(out + at, (int64_t[]){7, 1}, 2 * sizeof *out);
            expect_ok(mha_head_order_reverse(t, out + at, 2, least, out, &made));
            expect_order(out, made, (int64_t[]){0, 2, 6, 1, 7}, least ? 3 : 5);
        }
    }
    int64_t all[] = {2, 6, 0, 7, 1};
    expect_ok(mha_head_order_limit(t, all, 5, 0, out, &made));
    expect_order(out, made, all, 5);
    expect_ok(mha_head_order_limit(t, all, 5, 1, all, &made)); /* in place */
    expect_order(all, made, (int64_t[]){2, 6, 0}, 3);
    made = 9;
    expect_error(mha_head_order_limit(t, (int64_t[]){3}, 1, 0, out, &made), MHA_ERR_ARGUMENT,
                 "order[0] is 3");
    expect_error(mha_head_order_reverse(t, (int64_t[]){1, 0, 1}, 3, 0, out, &made),
                 MHA_ERR_ARGUMENT, "order[0] and order[2]");
    expect_error(mha_head_order_limit(t, all, 1, -1, out, &made), MHA_ERR_ARGUMENT, "least is -1");
    expect_error(mha_head_order_limit(t, NULL, 1, 0, out, &made), MHA_ERR_NULL, "order");
    expect_error(mha_head_order_reverse(NULL, all, 1, 0, out, &made), MHA_ERR_NULL, "transformer");
    assert_int_equal(made, 9);
    mha_transformer_destroy(t);
}

/* ---- losses -------------------------------------------------------------------------------- */

/* Gradients of the losses with respect to their inputs. Differences are computed in double and
 * accurate to a millionth, like the rounding to f32. */
static void loss_slopes(void)
{
    static const mha_loss_fn losses[] = {mha_loss_targets, mha_loss_cosine, mha_loss_direction};
    mha_context *context = machines_context(1, 0);
    for (int i = 0; i < 3 * 12; i++) {
        rng r = rng_make(rng_run_seed(), 8000 + (uint64_t)i);
        batch b;
        const mha_transformer_desc d = {.vocab_size = 7, .embed_dim = 7};
        draw_batch(&b, &r, &d);
        const int64_t B = b.tokens.shape[0], T = b.tokens.shape[1];
        float x[MOST_ROWS * 7], g[MOST_ROWS * 7] = {0};
        for (int64_t k = 0; k < B * T * 7; k++) x[k] = rng_normal(&r);
        mha_tensor out = mha_tensor_contiguous(x, MHA_F32, 3, (int64_t[]){B, T, 7}), slope = out;
        const mha_tensor *user[] = {i % 3 ? &b.embedding : &b.target};
        double loss[MOST_B], moved[2][MOST_B];
        slope.data = g;
        mha_loss_fn f = losses[i % 3];
        expect_ok(f(context, 0, &b.input, &out, &slope, loss, user));
        for (int64_t k = 0; k < B * T * 7; k++) {
            const float before = x[k];
            double by[2];
            for (int far = 0; far < 2; far++) {
                const float h = far ? 0.02f : 0.01f;
                float at[2];
                for (int s = 0; s < 2; s++) {
                    at[s] = x[k] = s ? before + h : before - h;
                    expect_ok(f(context, 0, &b.input, &out, NULL, moved[s], user));
                }
                x[k] = before;
                const int64_t own = k / 7 / T;
                by[far] = (moved[1][own] - moved[0][own]) / ((double)at[1] - (double)at[0]);
            }
            /* cross-entropy rounds to f32 internally: an error of 1e-6 in a loss of 2, divided by
             * 0.02 */
            assert_true(fabs((4 * by[0] - by[1]) / 3 - (double)g[k]) < 2e-4 + 1e-3 * fabs(by[0]));
        }
    }
}

static mha_status refuse_second(int64_t done, int64_t total, void *user)
{
    (void)total;
    (void)user;
    return done < 2 ? MHA_OK : MHA_ERR_CALLBACK;
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 9000);
    mha_context *context = machines_context(1, 0);
    example *e = example_make(context, &r, true);
    double loss = 7;
    float gates[MOST_HEADS];
    open_all(gates);
    mha_tensor view = gates_view(e, gates);
    struct {
        double scores[MOST_HEADS], *to;
        int64_t order[MOST_HEADS], count;
        mha_importance_desc desc;
        mha_importance_data data;
    } x = {.desc = {.struct_size = sizeof x.desc, .kind = MHA_IMPORTANCE_ABLATION},
           .data = e->data,
           .to = x.scores};
#define MEASURE() mha_head_importance(context, e->t, &x.desc, &x.data, x.to, &loss)
#define REFUSE(status, part, ...) expect_spoiled(x, MEASURE(), status, part, __VA_ARGS__)
    expect_error(mha_head_importance(context, e->t, &x.desc, NULL, x.to, &loss), MHA_ERR_NULL,
                 "data");
    REFUSE(MHA_ERR_NULL, "scores", x.to = NULL);
    REFUSE(MHA_ERR_NULL, "loss", x.data.loss = NULL);
    REFUSE(MHA_ERR_ARGUMENT, "at least one", x.data.batches = 0);
    REFUSE(MHA_ERR_ARGUMENT, "kind 9", x.desc.kind = (mha_importance)9);
    REFUSE(MHA_ERR_UNSUPPORTED, "flags 0x2", x.desc.flags = 2);
    REFUSE(MHA_ERR_SHAPE, "gates", view.shape[1] = 1, x.desc.gates = &view);
#undef REFUSE
    assert_null(mha_importance_name((mha_importance)9));
    expect_spoiled(e->batches[1], mha_gated_loss(context, e->t, &x.data, NULL, &loss),
                   MHA_ERR_ARGUMENT, "inputs[1]", e->batches[1].input.dropout = 0.5f);
    expect_error(order_of(context, e->t, &x.desc, &x.data, 0, 0, x.order, &x.count, NULL),
                 MHA_ERR_ARGUMENT, "step is 0");
#define CURVE(data, removed, points, losses) \
    curve_of(context, e->t, data, x.order, 1, removed, points, losses)
    expect_error(CURVE(&x.data, &(int64_t){2}, 1, &loss), MHA_ERR_ARGUMENT, "removed[0] is 2");
    expect_error(CURVE(&x.data, &(int64_t){1}, 1, NULL), MHA_ERR_NULL, "losses");
    const mha_transport none = {.struct_size = sizeof none};
    x.data.transport = &none;
    assert_int_equal(MEASURE(), MHA_ERR_ARGUMENT);
    assert_int_equal(CURVE(&x.data, &(int64_t){1}, 1, &loss), MHA_ERR_ARGUMENT);
    x.data.transport = NULL;
    x.data.progress = refuse_second;
    x.scores[0] = 7;
    assert_int_equal(MEASURE(), MHA_ERR_CALLBACK);
    assert_int_equal(CURVE(&x.data, ((int64_t[]){0, 1}), 2, &loss), MHA_ERR_CALLBACK);
    assert_true(x.scores[0] >= 7 && x.scores[0] <= 7 && loss >= 7 && loss <= 7);
#undef CURVE
#undef MEASURE
    example_free(e);
}

/* Every failing allocation gives an error or is optional, and nothing is leaked. */
static mha_status measured(mha_context *context, failing_alloc *memory, void *user)
{
    rng r = rng_make(11, 0);
    example *e = example_make(context, &r, true);
    double scores[MOST_HEADS];
    const mha_importance_desc kind = {.struct_size = sizeof kind};
    (void)user;
    failing_from_here(memory);
    const mha_status status = mha_head_importance(context, e->t, &kind, &e->data, scores, NULL);
    example_free(e);
    return status;
}

static void failed_allocations_are_reported(void)
{
    assert_true(failing_each(measured, NULL) > 2);
}

/* ---- ranks --------------------------------------------------------------------------------- */

enum { KINDS = MHA_IMPORTANCE_MEAN_ABLATION + 1, POINTS = 4 };

/* The results of a rank. */
typedef struct results {
    double scores[KINDS][MOST_HEADS], losses[KINDS], went[2][MOST_HEADS], curve[POINTS];
    int64_t order[2][MOST_HEADS], count[2];
} results;

typedef struct outcome {
    results found;
    mha_status status;
    char detail[200];
    int64_t passes, steps; /* calls of loss and of progress */
    failing_alloc memory;
} outcome;

/* The work of all ranks; one of them may fail. */
typedef struct course {
    const example *e;
    int spoiled; /* -1: none */
    int64_t fail_at,
        refuses_at;  /* its failing allocation; its batch that the loss rejects; -1: none */
    int64_t ends_at; /* its pass after which progress ends the call; -1: none */
    int64_t step;    /* step of the failing rank's order */
    outcome *outcomes;
} course;

typedef struct loss_of_rank {
    const course *c;
    outcome *out;
    bool spoils;
} loss_of_rank;

static mha_status counted_loss(mha_context *context, int64_t number,
                               const mha_transformer_input *input, const mha_tensor *output,
                               const mha_tensor *output_gradient, double *losses, void *user)
{
    const loss_of_rank *l = user;
    const mha_importance_data *data = &l->c->e->data;
    if (l->out->passes++ == l->c->refuses_at && l->spoils)
        return mha_fail(MHA_ERR_CALLBACK, "has seen enough");
    return data->loss(context, number, input, output, output_gradient, losses, data->user);
}

static mha_status counted_progress(int64_t done, int64_t total, void *user)
{
    const loss_of_rank *l = user;
    (void)done, (void)total;
    if (l->out->steps++ == l->c->ends_at && l->spoils) return mha_fail(MHA_ERR_CALLBACK, "stop");
    return MHA_OK;
}

static mha_status measure_all(mha_context *context, const course *c, const mha_importance_data *d,
                              int64_t step, results *found)
{
    static const mha_importance kinds[] = {MHA_IMPORTANCE_GRADIENT, MHA_IMPORTANCE_ABLATION};
    const mha_transformer *t = c->e->t;
    int64_t removed[POINTS];
    for (int k = 0; k < KINDS; k++) {
        const mha_importance_desc desc = {.struct_size = sizeof desc, .kind = (mha_importance)k};
        MHA_TRY(mha_head_importance(context, t, &desc, d, found->scores[k], &found->losses[k]));
    }
    for (int k = 0; k < 2; k++) {
        const mha_importance_desc desc = {.struct_size = sizeof desc, .kind = kinds[k]};
        MHA_TRY(order_of(context, t, &desc, d, step, k, found->order[k], &found->count[k],
                         found->went[k]));
    }
    for (int p = 0; p < POINTS; p++) removed[p] = found->count[0] * p / (POINTS - 1);
    return curve_of(context, t, d, found->order[0], found->count[0], removed, POINTS, found->curve);
}

static void run_rank(void *user, const mha_transport *t)
{
    const course *c = user;
    outcome *o = &c->outcomes[t ? t->rank : 0];
    mha_context *context = NULL;
    *o = (outcome){.memory = failing_alloc_make()};
    const bool spoils = t && t->rank == c->spoiled;
    loss_of_rank loss = {.c = c, .out = o, .spoils = spoils};
    mha_importance_data data = c->e->data;
    data.loss = counted_loss, data.user = &loss, data.transport = t;
    data.progress = counted_progress, data.progress_user = &loss;
    o->status = failing_context(&o->memory, 1, MHA_ISA_AUTO, &context);
    o->memory.calls = 0;
    if (spoils) o->memory.fail_at = c->fail_at;
    if (o->status == MHA_OK)
        o->status = measure_all(context, c, &data, spoils ? c->step : 2, &o->found);
    if (o->status != MHA_OK) snprintf(o->detail, sizeof o->detail, "%s", mha_error_detail());
    mha_context_destroy(context);
}

static course make_course(uint64_t number, outcome *outcomes)
{
    rng r = rng_make(rng_run_seed(), 5000 + number);
    return (course){.e = example_make(machines_context(1, 0), &r, number % 2),
                    .spoiled = -1,
                    .fail_at = -1,
                    .refuses_at = -1,
                    .ends_at = -1,
                    .step = 2,
                    .outcomes = outcomes};
}

static void ranks_give_the_same_bits(void)
{
    static const int sizes[] = {1, 2, 3, 5, 16};
    outcome one, many[MOST_THREAD_RANKS];
    for (int i = 0; i < rng_cases(20, 300); i++) {
        course c = make_course((uint64_t)i, &one);
        run_rank(&c, NULL);
        expect_ok(one.status);
        c.outcomes = many;
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            int64_t passes = 0;
            thread_ranks_run(sizes[k], run_rank, &c, -1, 0);
            for (int rank = 0; rank < sizes[k]; rank++) {
                if (many[rank].status != MHA_OK) fail_msg("rank %d: %s", rank, many[rank].detail);
                assert_memory_equal(&many[rank].found, &one.found, sizeof one.found);
                assert_int_equal(many[rank].memory.live, 0);
                passes += many[rank].passes;
            }
            /* all ranks compute the means and the baseline loss of ablations */
            assert_true(sizes[k] > 1 ? many[0].passes < one.passes : passes == one.passes);
        }
        example_free(c.e);
    }
}

static void check_told(const outcome *many, int size, mha_status status, const char *text)
{
    for (int rank = 0; rank < size; rank++) {
        assert_int_equal(many[rank].status, status);
        if (!strstr(many[rank].detail, text)) fail_msg("'%s' in '%s'", text, many[rank].detail);
        assert_true(many[rank].memory.live == 0 && many[rank].memory.mistakes == 0);
    }
}

static void what_one_rank_meets_all_are_told(void)
{
    outcome many[MOST_THREAD_RANKS];
    course c = make_course(1, many);
    c.spoiled = 1;
    for (c.refuses_at = 0;; c.refuses_at++) { /* fails at every allocation */
        thread_ranks_run(3, run_rank, &c, -1, 0);
        if (many[1].passes <= c.refuses_at) break;
        check_told(many, 3, MHA_ERR_CALLBACK, "rank 1: has seen enough");
    }
    assert_true(c.refuses_at > 10);
    c.refuses_at = -1;
    for (c.ends_at = 0;; c.ends_at++) {
        thread_ranks_run(3, run_rank, &c, -1, 0);
        if (many[1].steps <= c.ends_at) break;
        check_told(many, 3, MHA_ERR_CALLBACK, "rank 1: stop");
    }
    assert_true(c.ends_at > 5);
    c.ends_at = -1;
    for (c.fail_at = 0;; c.fail_at++) {
        thread_ranks_run(3, run_rank, &c, -1, 0);
        if (many[1].memory.calls <= c.fail_at) break;
        if (many[1].status != MHA_OK) check_told(many, 3, MHA_ERR_NOMEM, "rank 1: ");
    }
    assert_true(c.fail_at > 5);
    c.fail_at = -1;
    c.step = 3;
    thread_ranks_run(3, run_rank, &c, -1, 0);
    check_told(many, 3, MHA_ERR_ARGUMENT, "rank 1: has another importance to measure");
    c.step = 2;
    for (int64_t after = 0;; after += 7) {
        thread_ranks_run(3, run_rank, &c, 1, after);
        if (many[1].status == MHA_OK) break;
        for (int rank = 0; rank < 3; rank++)
            assert_true(many[rank].status == MHA_ERR_RANK || (rank != 1 && !many[rank].status));
    }
    example_free(c.e);
}

/* The argument that differs on rank 1. */
enum {
    NOTHING,
    KIND,
    FLAGS,
    FEWER,
    TOKEN,
    LENGTH,
    STEP,
    LEAST,
    ORDER,
    REMOVED,
    REMOVALS,
    DIFFERENCES
};

typedef struct difference {
    const example *e;
    int how;
    mha_context *contexts[3];
    char detail[3][200];
} difference;

static void measure_differently(void *user, const mha_transport *t)
{
    difference *x = user;
    const example *e = x->e;
    mha_context *context = x->contexts[t->rank];
    const int how = t->rank == 1 ? x->how : NOTHING;
    batch other = e->batches[0];
    const mha_transformer_input *inputs[] = {&other.input, e->inputs[1], e->inputs[2]};
    int64_t order[MOST_HEADS] = {how == ORDER, how != ORDER}, count;
    double scores[MOST_HEADS];
    other.tokens.data = other.ids, other.input.tokens = &other.tokens;
    other.input.lengths = how == LENGTH ? NULL : other.lengths;
    if (how == TOKEN) other.ids[0] = (other.ids[0] + 1) % (int32_t)e->desc.vocab_size;
    mha_importance_data data = e->data;
    data.inputs = inputs, data.transport = t;
    data.batches = how == FEWER ? BATCHES - 1 : BATCHES;
    const mha_importance_desc desc = {.struct_size = sizeof desc,
                                      .kind = how == KIND ? MHA_IMPORTANCE_ABLATION
                                                          : MHA_IMPORTANCE_GRADIENT,
                                      .flags = how == FLAGS};
    const int64_t removed[] = {how == REMOVED, 1};
    const mha_status status =
        x->how < STEP ? mha_head_importance(context, e->t, &desc, &data, scores, NULL)
        : x->how < ORDER
            ? order_of(context, e->t, &desc, &data, 1 + (how == STEP), how == LEAST, order, &count,
                       NULL)
            : curve_of(context, e->t, &data, order, 2, removed, 2 - (how == REMOVALS), scores);
    snprintf(x->detail[t->rank], sizeof *x->detail, "%s", status ? mha_error_detail() : "");
}

static void ranks_that_differ_are_found(void)
{
    rng r = rng_make(8, 8);
    difference x = {.e = example_make(machines_context(1, 0), &r, true)};
    const mha_context_desc one = {.struct_size = sizeof one, .num_threads = 1};
    for (int rank = 0; rank < 3; rank++) expect_ok(mha_context_create(&one, &x.contexts[rank]));
    for (x.how = NOTHING; x.how < DIFFERENCES; x.how++) {
        thread_ranks_run(3, measure_differently, &x, -1, 0);
        for (int rank = 0; rank < 3; rank++)
            if (!strstr(x.detail[rank],
                        x.how ? "rank 1: has another importance to measure than rank 0" : "") ||
                (!x.how && x.detail[rank][0]))
                fail_msg("difference %d, rank %d: '%s'", x.how, rank, x.detail[rank]);
    }
    for (int rank = 0; rank < 3; rank++) mha_context_destroy(x.contexts[rank]);
    example_free(x.e);
}

RUN_TESTS(TEST(gradients_are_slopes), TEST(batches_are_single_sequences), TEST(normalised),
          TEST(ablation), TEST(mean_ablation), TEST(means), TEST(silent_heads), TEST(equal_scores),
          TEST(heads_go_in_their_order), TEST(the_curve_is_plain_losses),
          TEST(other_orders_keep_the_limit), TEST(loss_slopes), TEST(misuse_is_refused),
          TEST(failed_allocations_are_reported), TEST(ranks_give_the_same_bits),
          TEST(what_one_rank_meets_all_are_told), TEST(ranks_that_differ_are_found))
