/* Traces (trace.h): the row of weights is bit-identical to the map's, and every step equals the
 * formula in double of the previous step. */
#include "support/expect.h"
#include "support/one_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/trace.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

static const double U = 0x1p-24;

/* Checks that `got` is the sum of `count` terms, within the error of f32 sums. The magnitudes of
 * the terms sum to `size`. */
static void expect_sum(double got, double exact, double size, int64_t count)
{
    if (fabs(got - exact) <= U * ((double)(count + 8) * size + fabs(exact)) + 0x1p-140) return;
    fail_msg("got %.9g, expected %.9g", got, exact);
}

/* The parameter's numbers, or NULL. */
static const float *parameter(const small_model *m, int64_t layer, const char *name)
{
    mha_parameter p;
    if (mha_transformer_find(m->t, layer, name, &p) != MHA_OK) return NULL;
    return mha_transformer_data(m->t) + p.offset;
}

/* ---- the steps ------------------------------------------------------------------------------- */

typedef struct step {
    const small_model *m;
    const mha_trace *x;
    const mha_layer_desc *layer;
} step;

static void expect_projection(const step *s, const char *name, int64_t head, const float *input,
                              const float *plain, const float *weight_row)
{
    const int64_t E = s->x->width, D = s->x->head_dim;
    char text[40];
    snprintf(text, sizeof text, "self_attn.%s.weight", name);
    const float *weight = parameter(s->m, s->x->layer, text) + head * D * E;
    snprintf(text, sizeof text, "self_attn.%s.bias", name);
    const float *bias = parameter(s->m, s->x->layer, text);
    for (int64_t d = 0; d < D; d++) {
        double sum = bias ? (double)bias[head * D + d] : 0, size = fabs(sum);
        for (int64_t e = 0; e < E; e++) {
            const double term = (double)input[e] * (double)weight[d * E + e];
            sum += term;
            size += fabs(term);
        }
        expect_sum((double)plain[d], sum, size, E);
    }
    assert_memory_equal(weight_row, weight + s->x->channel * E, (size_t)E * sizeof(float));
}

/* The rotation turns pairs by position times frequency. Without rotation and norm, q and k are
 * unchanged. */
static void expect_rotation(const step *s, int64_t position, const float *plain,
                            const float *turned)
{
    double frequencies[SMALL_SIZE];
    mha_layer_rotation r = {.struct_size = sizeof r, .frequencies = frequencies};
    const int64_t D = s->x->head_dim;
    if (s->x->normalised) return;
    if (s->x->rotary_dim == 0) {
        assert_memory_equal(plain, turned, (size_t)D * sizeof(float));
        return;
    }
    expect_ok(mha_transformer_rotation(s->m->t, s->x->layer, &r));
    assert_int_equal(r.rotary_dim, s->x->rotary_dim);
    for (int64_t i = 0; i < r.rotary_dim / 2; i++) {
        const bool halves = r.pairing == MHA_ROPE_HALVES;
        const int64_t a = halves ? i : 2 * i, b = halves ? i + r.rotary_dim / 2 : 2 * i + 1;
        const double angle = (double)position * frequencies[i];
        const double x = (double)plain[a] * r.amplitude, y = (double)plain[b] * r.amplitude;
        const double size = 4 * (fabs(x) + fabs(y));
        expect_sum((double)turned[a], x * cos(angle) - y * sin(angle), size, 2);
        expect_sum((double)turned[b], x * sin(angle) + y * cos(angle), size, 2);
    }
    for (int64_t d = r.rotary_dim; d < D; d++) assert_true(plain[d] == turned[d]);
}

static void expect_scores(const step *s)
{
    const mha_trace *x = s->x;
    const int64_t D = x->head_dim;
    for (int64_t k = 0; k < x->tokens; k++) {
        double sum = 0, size = 0;
        for (int64_t d = 0; d < D; d++) {
            const double term = (double)x->query[d] * (double)x->keys[k * D + d];
            if (k == x->key) assert_true(term == x->products[d]);
            sum += term;
            size += fabs(term);
        }
        expect_sum((double)x->raw[k], sum, size, D);
        expect_sum((double)x->scaled[k], sum * x->scale, size * fabs(x->scale), D);
        assert_true((x->capped != NULL) == (x->softcap > 0));
        if (x->capped)
            expect_sum((double)x->capped[k], x->softcap * tanh((double)x->scaled[k] / x->softcap),
                       8 * x->softcap, 1);
    }
    for (int64_t d = 0; d < D; d++)
        assert_true(fabs(x->products[d]) <= fabs(x->products[x->channel]));
}

/* Weights are the softmax of unmasked scores, with the sink. Masked keys have no weight. */
static void expect_weights(const step *s)
{
    const mha_trace *x = s->x;
    const float *sinks = parameter(s->m, x->layer, "self_attn.sinks");
    const bool causal = s->m->desc.flags & MHA_TRANSFORMER_CAUSAL;
    double most = sinks ? (double)sinks[x->head] : -(double)INFINITY, sum;
    for (int64_t k = 0; k < x->tokens; k++) {
        most = fmax(most, (double)x->biased[k]);
        if (causal && k > x->row) assert_true(isinf(x->biased[k]));
        if (!s->layer) assert_true(!isinf(x->biased[k]) == !(causal && k > x->row));
    }
    sum = sinks ? exp((double)sinks[x->head] - most) : 0;
    for (int64_t k = 0; k < x->tokens; k++) sum += exp((double)x->biased[k] - most);
    for (int64_t k = 0; k < x->tokens; k++)
        expect_sum((double)x->weights[k], exp((double)x->biased[k] - most) / sum, 4, x->tokens);
}

static void expect_output(const step *s, double gate)
{
    const mha_trace *x = s->x;
    const int64_t D = x->head_dim, E = x->width;
    const double scale = (double)s->m->desc.residual_scale;
    const float *out = parameter(s->m, x->layer, "self_attn.o_proj.weight");
    for (int64_t d = 0; d < D; d++) {
        double sum = 0, size = 0;
        for (int64_t k = 0; k < x->tokens; k++) {
            const double term = gate * (double)x->weights[k] * (double)x->values[k * D + d];
            sum += term;
            size += fabs(term);
        }
        expect_sum((double)x->output[d], sum, size, 2 * x->tokens);
    }
    assert_memory_equal(x->output, x->concatenated + x->head * D, (size_t)D * sizeof(float));
    for (int64_t e = 0; e < E; e++) {
        double sum = 0, size = 0;
        for (int64_t d = 0; d < D; d++) {
            const double term =
                scale * (double)x->output[d] * (double)out[e * x->heads * D + x->head * D + d];
            sum += term;
            size += fabs(term);
        }
        expect_sum((double)x->written[e], sum, size, 1);
    }
}

/* The stream: both ends match, and pre-norm blocks add the heads' outputs. */
static void expect_stream(const step *s)
{
    const mha_trace *x = s->x;
    const uint32_t flags = s->m->desc.flags;
    const mha_trace_layer *first = &x->layers[0], *layer = &x->layers[x->layer];
    for (int64_t l = 1; l < x->layer_count; l++)
        assert_memory_equal(x->layers[l].stream, x->layers[l - 1].next,
                            (size_t)x->width * sizeof(float));
    for (int64_t e = 0; e < x->width; e++) {
        const double token = (double)x->token[e],
                     position = x->position ? (double)x->position[e] : 0;
        if (!(flags & MHA_TRANSFORMER_EMBEDDING_NORM))
            expect_sum((double)first->stream[e], token + position, fabs(token) + fabs(position), 2);
        if (!(flags & (MHA_TRANSFORMER_POST_NORM | MHA_TRANSFORMER_PARALLEL)) &&
            !layer->norms_branch) {
            const double a = (double)layer->stream[e], b = (double)layer->attention[e];
            expect_sum((double)layer->middle[e], a + b, 40 * (fabs(a) + fabs(b) + 1), x->width);
        }
    }
    double length = 0;
    for (int64_t e = 0; e < x->width; e++) length += (double)x->written[e] * (double)x->written[e];
    expect_sum((double)layer->norms[x->head], sqrt(length), sqrt(length), 4);
}

/* The norms of layers are those that have weights, and q reads one of them or the stream itself. */
static void expect_norms(const step *s)
{
    const mha_trace *x = s->x;
    const bool post = s->m->desc.flags & MHA_TRANSFORMER_POST_NORM;
    for (int64_t l = 0; l < x->layer_count; l++) {
        const bool input = parameter(s->m, l, "self_attn_norm.weight") && !post;
        assert_true(x->layers[l].norms_input == input);
        assert_true(x->layers[l].norms_branch ==
                    (parameter(s->m, l, "self_attn_post_norm.weight") != NULL));
    }
    assert_true(x->layers[x->layer].norms_input ==
                (memcmp(x->query_input, x->layers[x->layer].stream,
                        (size_t)x->width * sizeof(float)) != 0));
}

/* ---- the bits of the map --------------------------------------------------------------------- */

typedef struct wanted_row {
    int64_t layer, head, row;
    float weights[SMALL_T];
    bool found;
} wanted_row;

static mha_status find_row(void *user, int64_t layer, int64_t row, const mha_tensor *p)
{
    wanted_row *w = user;
    if (layer != w->layer || w->row < row || w->row >= row + p->shape[1]) return MHA_OK;
    memcpy(w->weights,
           (const float *)p->data + w->head * p->stride[0] + (w->row - row) * p->stride[1],
           (size_t)p->shape[2] * sizeof(float));
    w->found = true;
    return MHA_OK;
}

/* ---- any model ------------------------------------------------------------------------------- */

static void trace_one(const small_model *m, mha_trials *trials, const mha_trial *run,
                      mha_trial_head head, int64_t row, int64_t key)
{
    mha_trace x = MHA_INIT(mha_trace);
    const mha_trace_options options = {
        .struct_size = sizeof options, .head = head, .row = row, .key = key};
    wanted_row map = {.layer = head.layer, .head = head.head, .row = row};
    expect_ok(mha_trials_trace(trials, run, &options, &x));
    expect_ok(mha_trials_run(trials, run, head.layer, find_row, &map, NULL));
    assert_true(map.found && x.tokens == m->T && x.key >= 0);
    assert_memory_equal(x.weights, map.weights, (size_t)m->T * sizeof(float));
    for (int64_t k = 0; key < 0 && k < m->T; k++) assert_true(x.weights[k] <= x.weights[x.key]);
    const step s = {m, &x, m->desc.layers ? &m->desc.layers[head.layer] : NULL};
    expect_projection(&s, "q_proj", x.head, x.query_input, x.query_plain, x.query_weight);
    expect_projection(&s, "k_proj", x.kv_head, x.key_input, x.key_plain, x.key_weight);
    expect_rotation(&s, row, x.query_plain, x.query);
    expect_rotation(&s, x.key, x.key_plain, x.keys + x.key * x.head_dim);
    expect_scores(&s);
    expect_weights(&s);
    expect_output(&s, run->off_count ? 0 : 1);
    expect_stream(&s);
    expect_norms(&s);
    mha_trace_free(&x);
    assert_null(x.weights);
}

static void every_step_follows(void)
{
    int mixed = 0; /* layers with branch norms in transformers with pre-norm */
    for (uint64_t seed = 0; seed < 96; seed++) {
        rng r = rng_make(seed, 88);
        small_model *m = small_model_make(context, &r, seed % 3 ? MHA_TRANSFORMER_CAUSAL : 0);
        mha_trials *trials = NULL;
        const mha_trials_options how = {.struct_size = sizeof how, .most_bytes = 1e9};
        const mha_trial_head head = {rng_between(&r, 0, m->desc.num_layers - 1),
                                     rng_between(&r, 0, m->desc.num_heads - 1)};
        const mha_trial run = {.struct_size = sizeof run,
                               .tokens = m->ids,
                               .count = m->T,
                               .off = &head,
                               .off_count = seed % 4 == 3};
        const int64_t row = rng_between(&r, 0, m->T - 1);
        expect_ok(mha_trials_create(context, m->t, &how, &trials));
        trace_one(m, trials, &run, head, row, seed % 2 ? rng_between(&r, 0, row) : -1);
        for (int64_t l = 0; m->desc.layers && l < m->desc.num_layers; l++)
            mixed += (m->desc.layers[l].flags & MHA_LAYER_BRANCH_NORM) != 0;
        mha_trials_destroy(trials);
        small_model_free(m);
    }
    assert_true(mixed > 0);
}

/* The row of a bias that has a row for each token. */
static void content_position_terms_are_a_bias(void)
{
    static small_model m;
    mha_layer_desc layers[2];
    mha_trials *trials = NULL;
    const mha_trials_options how = {.struct_size = sizeof how, .most_bytes = 1e9};
    const mha_trial run = {.struct_size = sizeof run, .tokens = m.ids, .count = SMALL_T};
    rng r = rng_make(7, 90);
    for (int i = 0; i < 2; i++)
        layers[i] =
            (mha_layer_desc){.struct_size = sizeof *layers,
                             .flags = MHA_LAYER_CONTENT_TO_POSITION | MHA_LAYER_POSITION_TO_CONTENT,
                             .relative_rows = 2 * SMALL_T};
    m.desc = (mha_transformer_desc){.struct_size = sizeof m.desc,
                                    .flags = MHA_TRANSFORMER_NO_OUTPUT,
                                    .vocab_size = 20,
                                    .max_length = SMALL_T,
                                    .embed_dim = 16,
                                    .num_layers = 2,
                                    .num_heads = 4,
                                    .ff_dim = 12,
                                    .norm = MHA_NORM_LAYER,
                                    .layers = layers};
    m.T = SMALL_T;
    m.t = random_transformer(context, &r, &m.desc);
    fixed_tokens(m.ids, 1, SMALL_T, 20);
    expect_ok(mha_trials_create(context, m.t, &how, &trials));
    for (int64_t row = 0; row < SMALL_T; row += 3)
        trace_one(&m, trials, &run, (mha_trial_head){1, row % 4}, row, -1);
    mha_trials_destroy(trials);
    mha_transformer_destroy(m.t);
}

static void misuse_of_traces(void)
{
    rng r = rng_make(5, 89);
    small_model *m = small_model_make(context, &r, MHA_TRANSFORMER_CAUSAL);
    mha_trials *trials = NULL;
    const mha_trials_options how = {.struct_size = sizeof how, .most_bytes = 1e9};
    const mha_trial run = {.struct_size = sizeof run, .tokens = m->ids, .count = m->T};
    expect_ok(mha_trials_create(context, m->t, &how, &trials));
    mha_trace x = MHA_INIT(mha_trace);
    mha_trace_options o = {.struct_size = sizeof o, .head = {-1, 0}, .row = -1, .key = -1};
#define TRACE mha_trials_trace(trials, &run, &o, &x)
    expect_ok(TRACE);
    assert_true(x.row == m->T - 1 && x.key == -1 && !x.weights && x.layers[0].stream);
    mha_trace_free(&x);
    expect_spoiled(o, TRACE, MHA_ERR_MODEL, "tokens", o.row = m->T);
    expect_spoiled(o, TRACE, MHA_ERR_MODEL, "tokens", o.head.layer = 0, o.key = m->T);
    expect_spoiled(o, TRACE, MHA_ERR_MODEL, "no head L0H99", o.head = (mha_trial_head){0, 99});
    memset(&x, 0xA5, sizeof x); /* an error must reset this */
    x.struct_size = sizeof x;
    expect_spoiled(o, TRACE, MHA_ERR_ARGUMENT, "struct_size", o.struct_size = 4);
    assert_true(!x.weights && !x.layers && x.layer == -1);
    mha_trace_free(&x);
    x.struct_size = 8;
    expect_error(TRACE, MHA_ERR_ARGUMENT, "struct_size");
#undef TRACE
    expect_error(mha_trials_trace(trials, &run, NULL, &x), MHA_ERR_NULL, "options is NULL");
    mha_trace_free(NULL);
    mha_trials_destroy(trials);
    small_model_free(m);
}

/* Traces do not support output gates, and a gated delta net has different steps. */
static void other_mixers_are_refused(void)
{
    static const struct {
        mha_layer_desc layer;
        const char *what;
    } cases[] = {{{.flags = MHA_LAYER_OUTPUT_GATE}, "layer 1 has output gates"},
                 {{.mixer = MHA_MIXER_GATED_DELTA, .conv_kernel = 2, .key_dim = 4, .value_dim = 4},
                  "layer 1 is a gated delta net"}};
    const int32_t ids[3] = {1, 2, 3};
    for (int i = 0; i < 2; i++) {
        mha_layer_desc layers[2] = {{.struct_size = sizeof *layers}, cases[i].layer};
        layers[1].struct_size = sizeof *layers;
        const mha_transformer_desc d = {.struct_size = sizeof d,
                                        .flags = MHA_TRANSFORMER_CAUSAL,
                                        .vocab_size = 5,
                                        .max_length = 8,
                                        .embed_dim = 8,
                                        .num_layers = 2,
                                        .num_heads = 2,
                                        .head_dim = 4,
                                        .ff_dim = 8,
                                        .norm = MHA_NORM_RMS,
                                        .layers = layers};
        const mha_trials_options how = {.struct_size = sizeof how, .most_bytes = 1e9};
        const mha_trace_options o = {.struct_size = sizeof o, .head = {0, 0}, .row = -1, .key = -1};
        const mha_trial run = {.struct_size = sizeof run, .tokens = ids, .count = 3};
        mha_transformer *t = NULL;
        mha_trials *trials = NULL;
        mha_trace x = MHA_INIT(mha_trace);
        expect_ok(mha_transformer_create(context, &d, &t));
        expect_ok(mha_trials_create(context, t, &how, &trials));
        expect_error(mha_trials_trace(trials, &run, &o, &x), MHA_ERR_UNSUPPORTED, cases[i].what);
        assert_true(!x.layers && x.layer == -1);
        mha_trials_destroy(trials);
        mha_transformer_destroy(t);
    }
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(every_step_follows),
                  TEST(content_position_terms_are_a_bias), TEST(misuse_of_traces),
                  TEST(other_mixers_are_refused))
