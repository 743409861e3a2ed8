/* Ablation: sets compared with plain passes with closed gates, means and patches; gradients with
 * differences; direct effects with logit attribution; patching between prompts with plain passes,
 * and paths with sums of products; statistics over texts; a handmade pair of induction heads, which
 * fails without either head; misuse. tests/python/test_ablation_torch.py compares with torch's
 * hooks. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/ablation.h>
#include <multihead/attribution.h>
#include <multihead/component.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    TEXTS = 3,
    MEASURES = 2,
    MOST_TERMS = 32,
    HEADS = SMALL_LAYERS * SMALL_HEADS,
    WIDE = SMALL_HEADS * SMALL_SIZE,
    SETS = 8
};

/* One text with terms of both measures, or of one measure. */
typedef struct some_text {
    int32_t ids[SMALL_ROWS];
    int64_t B, T, lengths[SMALL_B];
    mha_tensor tokens;
    mha_effect_term terms[MOST_TERMS];
    mha_effect_text text;
    float heads[SMALL_LAYERS][SMALL_ROWS * WIDE]; /* the heads' outputs, [B,T,H D] */
} some_text;

typedef struct example {
    small_model *m;
    some_text texts[TEXTS];
    const mha_effect_text *list[TEXTS];
    mha_effect_data data;
    float means_data[HEADS * SMALL_SIZE];
    mha_tensor means;
    mha_ablation_desc how;
} example;

/* ---- examples -------------------------------------------------------------------------------- */

static void draw_text(const small_model *m, rng *r, int64_t only, some_text *x)
{
    x->B = rng_between(r, 1, SMALL_B);
    x->T = rng_between(r, 2, SMALL_T);
    for (int64_t i = 0; i < x->B * x->T; i++)
        x->ids[i] = (int32_t)rng_between(r, 0, m->desc.vocab_size - 1);
    for (int64_t b = 0; b < x->B; b++) x->lengths[b] = rng_between(r, 1, x->T);
    x->tokens = mha_tensor_contiguous(x->ids, MHA_I32, 2, (int64_t[]){x->B, x->T});
    x->text = (mha_effect_text){.struct_size = sizeof x->text,
                                .tokens = &x->tokens,
                                .lengths = x->lengths,
                                .terms = x->terms,
                                .term_count = rng_between(r, 1, MOST_TERMS)};
    for (int64_t k = 0; k < x->text.term_count; k++) {
        const int64_t b = rng_between(r, 0, x->B - 1);
        x->terms[k] =
            (mha_effect_term){.factor = (double)rng_normal(r) / 4,
                              .row = b * x->T + rng_between(r, 0, x->lengths[b] - 1),
                              .token = (int32_t)rng_between(r, 0, m->desc.vocab_size - 1),
                              .measure = (int32_t)(only >= 0 ? only : rng_between(r, 0, 1))};
    }
}

/* The output of every head in a text, by a call that keeps all activations. */
static void run_text(mha_context *context, const small_model *m, some_text *x)
{
    mha_activations *a = NULL;
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &x->tokens, .lengths = x->lengths};
    expect_ok(mha_activations_create(context, m->t, x->B * x->T, 0, &a));
    expect_ok(mha_transformer_forward(context, m->t, &input, a, NULL, NULL, NULL));
    for (int64_t l = 0; l < m->desc.num_layers; l++) {
        mha_layer_view view = {.struct_size = sizeof view};
        expect_ok(mha_activations_layer(a, l, MHA_PART_SELF_ATTENTION, &view));
        memcpy(x->heads[l], view.concatenated.data,
               (size_t)(x->B * x->T * m->desc.num_heads * m->desc.head_dim) * sizeof(float));
    }
    mha_activations_destroy(a);
}

static example *example_make(mha_context *context, rng *r, uint32_t flags)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->m = small_model_make(context, r, flags);
    for (int i = 0; i < TEXTS; i++) {
        draw_text(e->m, r, i == TEXTS - 1 ? 1 : -1, &e->texts[i]);
        run_text(context, e->m, &e->texts[i]);
        e->list[i] = &e->texts[i].text;
    }
    e->data = (mha_effect_data){
        .struct_size = sizeof e->data, .texts = TEXTS, .measures = MEASURES, .text = e->list};
    const int64_t shape[] = {e->m->desc.num_layers, e->m->desc.num_heads * e->m->desc.head_dim};
    e->means = mha_tensor_contiguous(e->means_data, MHA_F32, 2, shape);
    e->how = (mha_ablation_desc){
        .struct_size = sizeof e->how, .kind = (mha_ablation)rng_between(r, 0, 2), .seed = 7};
    expect_ok(mha_effect_means(context, e->m->t, &e->data, &e->means));
    if (e->how.kind == MHA_ABLATION_MEAN) e->how.means = &e->means;
    return e;
}

static void example_free(example *e)
{
    small_model_free(e->m);
    free(e);
}

/* ---- the reference --------------------------------------------------------------------------- */

/* SplitMix64, as specified in ablation.h. */
static int64_t other_text(uint64_t seed, int64_t i)
{
    uint64_t z = seed + UINT64_C(0xD1342543DE82EF95) * (uint64_t)i + UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return (i + 1 + (int64_t)((z ^ z >> 31) % (TEXTS - 1))) % TEXTS;
}

/* The replacement of a head's output in text i, [B T, D]. */
static void replacement(const example *e, int64_t i, int64_t layer, int64_t head, float *to)
{
    const int64_t D = e->m->desc.head_dim, wide = e->m->desc.num_heads * D;
    const some_text *x = &e->texts[i], *other = &e->texts[other_text(e->how.seed, i)];
    for (int64_t row = 0; row < x->B * x->T; row++) {
        const int64_t b = row / x->T % other->B, t = row % x->T % other->lengths[b];
        const float *from = other->heads[layer] + (b * other->T + t) * wide + head * D;
        for (int64_t k = 0; k < D; k++)
            to[row * D + k] = e->how.kind == MHA_ABLATION_ZERO ? 0
                              : e->how.kind == MHA_ABLATION_MEAN
                                  ? e->means_data[layer * wide + head * D + k]
                                  : from[k];
    }
}

static double log_probability(const float *logits, int64_t count, int64_t token)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < count; v++) most = fmax(most, (double)logits[v]);
    for (int64_t v = 0; v < count; v++) sum += exp((double)logits[v] - most);
    return (double)logits[token] - most - log(sum);
}

/* The measures of a pass over all layers, for tokens that may differ from the text's. */
static void plain(mha_context *context, const small_model *m, const some_text *x,
                  const mha_tensor *tokens, const mha_head_patch *patches, int64_t count,
                  double values[MEASURES])
{
    static float logits[SMALL_ROWS * SMALL_WIDTH];
    const int64_t V = m->desc.vocab_size;
    const mha_tensor output = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){x->B, x->T, V});
    const mha_transformer_input input = {.struct_size = sizeof input,
                                         .tokens = tokens,
                                         .lengths = x->lengths,
                                         .patches = patches,
                                         .patch_count = count};
    if (mha_transformer_forward(context, m->t, &input, NULL, &output, NULL, NULL) != MHA_OK)
        fail_msg("%s", mha_error_detail());
    for (int k = 0; k < MEASURES; k++) values[k] = NAN;
    for (int64_t k = 0; k < x->text.term_count; k++) {
        const mha_effect_term *term = &x->terms[k];
        double *value = &values[term->measure];
        if (isnan(*value)) *value = 0;
        *value += term->factor * log_probability(logits + term->row * V, V, term->token);
    }
}

/* f32 softmaxes of up to 32 logits are within 12 u of log P. Factors sum to a few units. */
static void expect_measures(const double *got, const double *wanted)
{
    for (int k = 0; k < MEASURES; k++) {
        assert_int_equal(isnan(got[k]), isnan(wanted[k]));
        if (!isnan(wanted[k]) && !(fabs(got[k] - wanted[k]) <= 2e-5 * (1 + fabs(wanted[k]))))
            fail_msg("measure %d is %.9g, plainly %.9g", k, got[k], wanted[k]);
    }
}

/* ---- sets ------------------------------------------------------------------------------------ */

typedef struct tally {
    int64_t done, total, calls, stop_at;
} tally;

static mha_status count_work(int64_t done, int64_t total, void *user)
{
    tally *x = user;
    assert_true(done > x->done && done <= total);
    x->done = done;
    x->total = total;
    return ++x->calls == x->stop_at ? mha_fail(MHA_ERR_CALLBACK, "stopped") : MHA_OK;
}

static void draw_sets(const small_model *m, rng *r, int64_t *first, int64_t *heads,
                      mha_head_sets *sets)
{
    const int64_t all = m->desc.num_layers * m->desc.num_heads;
    first[0] = 0;
    for (int s = 0; s < SETS; s++) {
        const int64_t size = s == 0 ? 0 : rng_between(r, 1, 3);
        for (int64_t k = 0; k < size; k++) heads[first[s] + k] = rng_between(r, 0, all - 1);
        first[s + 1] = first[s] + size;
    }
    *sets =
        (mha_head_sets){.struct_size = sizeof *sets, .count = SETS, .first = first, .heads = heads};
}

static void sets_are_plain_passes(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, rng_chance(&r, 0.7) ? MHA_TRANSFORMER_CAUSAL : 0);
        const int64_t D = e->m->desc.head_dim, H = e->m->desc.num_heads;
        int64_t first[SETS + 1], heads[3 * SETS], work = 0;
        mha_head_sets sets;
        tally seen = {0};
        double whole[TEXTS][MEASURES], without[SETS][TEXTS][MEASURES], wanted[MEASURES];
        static float values[3][SMALL_ROWS * SMALL_SIZE];
        draw_sets(e->m, &r, first, heads, &sets);
        e->data.progress = count_work;
        e->data.progress_user = &seen;
        expect_ok(
            mha_effect_sets(context, e->m->t, &e->how, &e->data, &sets, whole[0], without[0][0]));
        expect_ok(mha_effect_work(e->m->t, &e->how, &e->data, &sets, &work));
        assert_int_equal(seen.done, seen.total);
        assert_int_equal(seen.done, work);
        for (int x = 0; x < TEXTS; x++) {
            const some_text *text = &e->texts[x];
            const int64_t shape[] = {text->B, text->T, D};
            plain(context, e->m, text, &text->tokens, NULL, 0, wanted);
            expect_measures(whole[x], wanted);
            assert_memory_equal(whole[x], without[0][x], sizeof whole[x]);
            for (int s = 1; s < SETS; s++) {
                mha_head_patch patches[3];
                mha_tensor tensors[3];
                for (int64_t k = first[s]; k < first[s + 1]; k++) {
                    const int64_t at = k - first[s];
                    replacement(e, x, heads[k] / H, heads[k] % H, values[at]);
                    tensors[at] = mha_tensor_contiguous(values[at], MHA_F32, 3, shape);
                    patches[at] =
                        (mha_head_patch){sizeof patches[at], MHA_PATCH_OUTPUT, heads[k] / H,
                                         heads[k] % H,       &tensors[at],     NULL};
                }
                plain(context, e->m, text, &text->tokens, patches, first[s + 1] - first[s], wanted);
                expect_measures(without[s][x], wanted);
            }
        }
        example_free(e);
    }
}

/* Results are bit-identical for every number of threads and any other sets. */
static void threads_change_no_bit(void)
{
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), 1000 + (uint64_t)i);
        mha_context *one = machines_context(1, i), *three = machines_context(3, i);
        example *e = example_make(one, &r, MHA_TRANSFORMER_CAUSAL);
        const int64_t all = e->m->desc.num_layers * e->m->desc.num_heads;
        int64_t first[SETS + 1], heads[3 * SETS];
        mha_head_sets sets;
        double a[SETS * TEXTS * MEASURES], b[SETS * TEXTS * MEASURES];
        double by[2][HEADS * TEXTS * MEASURES];
        draw_sets(e->m, &r, first, heads, &sets);
        expect_ok(mha_effect_sets(one, e->m->t, &e->how, &e->data, &sets, NULL, a));
        expect_ok(mha_effect_sets(three, e->m->t, &e->how, &e->data, &sets, NULL, b));
        assert_memory_equal(a, b, sizeof a);
        const int64_t s = rng_between(&r, 1, SETS - 1), alone[] = {0, first[s + 1] - first[s]};
        sets.count = 1;
        sets.first = alone;
        sets.heads = heads + first[s];
        expect_ok(mha_effect_sets(one, e->m->t, &e->how, &e->data, &sets, NULL, b));
        assert_memory_equal(a + s * TEXTS * MEASURES, b, TEXTS * MEASURES * sizeof *a);
        expect_ok(mha_effect_gradients(one, e->m->t, &e->how, &e->data, by[0]));
        expect_ok(mha_effect_gradients(three, e->m->t, &e->how, &e->data, by[1]));
        assert_memory_equal(by[0], by[1], (size_t)all * TEXTS * MEASURES * sizeof *a);
        example_free(e);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* The slope of measures in the replaced fraction s of a head, three times from differences at h and
 * 2 h (Richardson). Their disagreement estimates rounding and higher derivatives. */
static void slopes(mha_context *context, const example *e, int64_t x, int64_t head, double low[],
                   double high[])
{
    static float values[SMALL_ROWS * SMALL_SIZE], put[SMALL_ROWS * SMALL_SIZE];
    const some_text *text = &e->texts[x];
    const int64_t D = e->m->desc.head_dim, H = e->m->desc.num_heads, l = head / H, h = head % H;
    const mha_tensor tensor =
        mha_tensor_contiguous(put, MHA_F32, 3, (int64_t[]){text->B, text->T, D});
    const mha_head_patch patch = {sizeof patch, MHA_PATCH_OUTPUT, l, h, &tensor, NULL};
    replacement(e, x, l, h, values);
    for (int m = 0; m < MEASURES; m++) low[m] = INFINITY, high[m] = -INFINITY;
    for (double step = 0.02; step > 0.004; step /= 2) {
        double by[2][MEASURES] = {{0}}, at[2][MEASURES];
        for (int far = 0; far < 2; far++) {
            for (int side = 0; side < 2; side++) {
                const double part = (side ? -1 : 1) * (far ? 2 * step : step);
                for (int64_t k = 0; k < text->B * text->T * D; k++) {
                    const double z = (double)text->heads[l][k / D * H * D + h * D + k % D];
                    put[k] = (float)(z + part * ((double)values[k] - z));
                }
                plain(context, e->m, text, &text->tokens, &patch, 1, at[side]);
            }
            for (int m = 0; m < MEASURES; m++)
                by[far][m] = (at[0][m] - at[1][m]) / (2 * (far ? 2 * step : step));
        }
        for (int m = 0; m < MEASURES; m++) {
            const double slope = (4 * by[0][m] - by[1][m]) / 3;
            low[m] = fmin(low[m], slope);
            high[m] = fmax(high[m], slope);
        }
    }
}

static void gradients_are_slopes(void)
{
    int tame = 0;
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 2000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, MHA_TRANSFORMER_CAUSAL);
        const int64_t all = e->m->desc.num_layers * e->m->desc.num_heads;
        double estimates[HEADS][TEXTS][MEASURES], low[MEASURES], high[MEASURES];
        tally seen = {0};
        int64_t work = 0;
        e->data.progress = count_work;
        e->data.progress_user = &seen;
        /* ReLU and absolute values in layers have kinks; differences across one are meaningless. */
        const bool smooth = e->m->desc.feed_forward != MHA_FEED_FORWARD_RELU;
        expect_ok(mha_effect_gradients(context, e->m->t, &e->how, &e->data, estimates[0][0]));
        expect_ok(mha_effect_work(e->m->t, &e->how, &e->data, NULL, &work));
        assert_int_equal(seen.done, seen.total);
        assert_int_equal(seen.done, work);
        for (int64_t k = 0; k < 3 && smooth; k++) {
            const int64_t head = rng_between(&r, 0, all - 1), x = rng_between(&r, 0, TEXTS - 1);
            slopes(context, e, x, head, low, high);
            for (int m = 0; m < MEASURES; m++) {
                const double got = estimates[head][x][m], numeric = (low[m] + high[m]) / 2;
                assert_int_equal(isnan(got), isnan(numeric));
                if (isnan(got)) continue;
                /* a rounding error of 1e-6 in a measure, divided by the smallest step */
                const double bound = 4e-4 + 1e-3 * fabs(got) + 1.5 * (high[m] - low[m]);
                if (!(fabs(got - numeric) <= bound))
                    fail_msg("head %lld, text %lld: estimate %.6g, by differences %.6g (%.2g)",
                             (long long)head, (long long)x, got, numeric, bound);
                tame += fabs(got) > 10 * bound;
            }
        }
        example_free(e);
    }
    printf("  %d slopes known to a tenth\n", tame);
    if (rng_whole_sample()) assert_true(tame > 30);
}

/* ---- direct effects -------------------------------------------------------------------------- */

static double attributed(mha_context *context, const example *e, const mha_activations *a,
                         const some_text *x, int64_t head, int m)
{
    const mha_transformer_desc *d = &e->m->desc;
    const int64_t E = d->embed_dim, V = d->vocab_size;
    double terms[HEADS], sum = NAN;
    float direction[64];
    mha_parameter p;
    const bool tied = d->flags & MHA_TRANSFORMER_TIED;
    expect_ok(
        mha_transformer_find(e->m->t, -1, tied ? "embed_tokens.weight" : "lm_head.weight", &p));
    const float *out = mha_transformer_data(e->m->t) + p.offset;
    for (int64_t k = 0; k < x->text.term_count; k++) {
        const mha_effect_term *term = &x->terms[k];
        if (term->measure != m) continue;
        for (int64_t i = 0; i < E; i++) {
            double mean = 0;
            for (int64_t v = 0; v < V; v++) mean += (double)out[v * E + i] / (double)V;
            direction[i] =
                (float)((double)d->logit_scale * ((double)out[term->token * E + i] - mean));
        }
        const mha_attribution_target target = {.struct_size = sizeof target,
                                               .batch = term->row / x->T,
                                               .position = term->row % x->T,
                                               .direction = direction};
        mha_attribution found = {.struct_size = sizeof found, .heads = terms};
        expect_ok(mha_logit_attribution(context, e->m->t, a, &target, &found));
        sum = (isnan(sum) ? 0 : sum) - term->factor * terms[head];
    }
    return sum;
}

static void direct_effects_are_attributions(void)
{
    int compared = 0;
    for (int i = 0; i < rng_cases(30, 300); i++) {
        rng r = rng_make(rng_run_seed(), 3000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, MHA_TRANSFORMER_CAUSAL);
        const mha_transformer_desc *d = &e->m->desc;
        double direct[HEADS][TEXTS][MEASURES];
        const mha_status status = mha_effect_direct(context, e->m->t, &e->data, direct[0][0]);
        if (mha_transformer_norms_follow(d)) {
            assert_int_equal(status, MHA_ERR_UNSUPPORTED);
            example_free(e);
            continue;
        }
        expect_ok(status);
        for (int x = 0; x < TEXTS; x++) {
            const some_text *text = &e->texts[x];
            mha_activations *a = NULL;
            const mha_transformer_input input = {
                .struct_size = sizeof input, .tokens = &text->tokens, .lengths = text->lengths};
            expect_ok(mha_activations_create(context, e->m->t, text->B * text->T, 0, &a));
            expect_ok(mha_transformer_forward(context, e->m->t, &input, a, NULL, NULL, NULL));
            const int64_t head = rng_between(&r, 0, d->num_layers * d->num_heads - 1);
            for (int m = 0; m < MEASURES; m++, compared++) {
                const double wanted = attributed(context, e, a, text, head, m);
                const double got = direct[head][x][m];
                assert_int_equal(isnan(got), isnan(wanted));
                /* the direction was rounded to f32 */
                if (!isnan(got)) assert_true(fabs(got - wanted) <= 1e-4 * (1 + fabs(wanted)));
            }
            mha_activations_destroy(a);
        }
        example_free(e);
    }
    if (rng_whole_sample()) assert_true(compared > 40);
}

/* ---- patching -------------------------------------------------------------------------------- */

/* A part of a head, [B,T,D], from a call that keeps all activations. */
static mha_tensor part_of(const mha_activations *a, mha_patch_part part, int64_t layer,
                          int64_t head)
{
    mha_layer_view view = {.struct_size = sizeof view};
    expect_ok(mha_activations_layer(a, layer, MHA_PART_SELF_ATTENTION, &view));
    const mha_tensor *all[] = {&view.heads, &view.q, &view.k, &view.v};
    mha_tensor one = *all[part];
    one.ndim = 3;
    one.data = (float *)one.data + head * one.stride[1];
    for (int i = 1; i < 3; i++) one.shape[i] = one.shape[i + 1], one.stride[i] = one.stride[i + 1];
    return one;
}

static void activation_patching_is_plain_passes(void)
{
    for (int i = 0; i < rng_cases(40, 400); i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, MHA_TRANSFORMER_CAUSAL);
        const some_text *x = &e->texts[0];
        const mha_transformer_desc *d = &e->m->desc;
        int32_t ids[SMALL_ROWS];
        uint8_t rows[SMALL_ROWS];
        mha_activations *a = NULL;
        mha_tensor from = mha_tensor_contiguous(ids, MHA_I32, 2, x->tokens.shape);
        mha_patching desc = {.struct_size = sizeof desc,
                             .part = (mha_patch_part)rng_between(&r, 0, 3),
                             .to = &x->text,
                             .from = &from,
                             .rows = rng_chance(&r, 0.5) ? rows : NULL,
                             .measures = MEASURES};
        const mha_transformer_input input = {
            .struct_size = sizeof input, .tokens = &from, .lengths = x->lengths};
        double to[MEASURES], other[MEASURES], values[HEADS][MEASURES], wanted[MEASURES];
        for (int k = 0; k < SMALL_ROWS; k++) {
            ids[k] = (int32_t)rng_between(&r, 0, d->vocab_size - 1);
            rows[k] = rng_chance(&r, 0.5);
        }
        expect_ok(mha_activations_create(context, e->m->t, x->B * x->T, 0, &a));
        expect_ok(mha_transformer_forward(context, e->m->t, &input, a, NULL, NULL, NULL));
        expect_ok(mha_activation_patching(context, e->m->t, &desc, to, other, values[0]));
        plain(context, e->m, x, &x->tokens, NULL, 0, wanted);
        expect_measures(to, wanted);
        plain(context, e->m, x, &from, NULL, 0, wanted);
        expect_measures(other, wanted);
        const bool grouped = desc.part >= MHA_PATCH_KEY;
        for (int64_t k = 0; k < d->num_layers * d->num_heads; k++) {
            const int64_t l = k / d->num_heads, h = k % d->num_heads;
            if (grouped && h >= d->kv_heads) {
                for (int m = 0; m < MEASURES; m++) assert_true(isnan(values[k][m]));
                continue;
            }
            const mha_tensor put = part_of(a, desc.part, l, h);
            const mha_head_patch patch = {sizeof patch, desc.part, l, h, &put, desc.rows};
            plain(context, e->m, x, &x->tokens, &patch, 1, wanted);
            expect_measures(values[k], wanted);
        }
        desc.from = &x->tokens; /* patching with its own numbers is bit-identical */
        expect_ok(mha_activation_patching(context, e->m->t, &desc, to, NULL, values[0]));
        for (int64_t k = 0; k < d->num_layers * d->kv_heads; k++)
            if (k % d->num_heads < d->kv_heads) assert_memory_equal(values[k], to, sizeof to);
        mha_activations_destroy(a);
        example_free(e);
    }
}

/* A prompt's measures for each path, computed plainly. First the inputs of receivers are computed,
 * with the sender from the other prompt and all other heads frozen. Then the prompt runs with these
 * inputs. */
static void path_plainly(mha_context *context, const example *e, const some_text *x,
                         const mha_activations *to, const mha_activations *from, int64_t sender,
                         const mha_patching *desc, double *wanted)
{
    const mha_transformer_desc *d = &e->m->desc;
    const int64_t H = d->num_heads, all = d->num_layers * H;
    mha_head_patch patches[HEADS + SETS];
    mha_tensor tensors[HEADS + SETS];
    mha_activations *sent = NULL;
    const mha_transformer_input input = {.struct_size = sizeof input,
                                         .tokens = &x->tokens,
                                         .lengths = x->lengths,
                                         .patches = patches,
                                         .patch_count = all + 1};
    for (int64_t k = 0; k <= all; k++) {
        const int64_t head = k < all ? k : sender;
        tensors[k] = part_of(k < all ? to : from, MHA_PATCH_OUTPUT, head / H, head % H);
        patches[k] = (mha_head_patch){sizeof patches[k], MHA_PATCH_OUTPUT, head / H,
                                      head % H,          &tensors[k],      NULL};
        if (k == all) patches[k].rows = desc->rows;
    }
    if (desc->receiver_count == 0) {
        plain(context, e->m, x, &x->tokens, patches, all + 1, wanted);
        return;
    }
    expect_ok(mha_activations_create(context, e->m->t, x->B * x->T, 0, &sent));
    expect_ok(mha_transformer_forward(context, e->m->t, &input, sent, NULL, NULL, NULL));
    for (int64_t k = 0; k < desc->receiver_count; k++) {
        const mha_path_receiver *p = &desc->receivers[k];
        tensors[k] = part_of(sent, p->part, p->layer, p->head);
        patches[k] =
            (mha_head_patch){sizeof patches[k], p->part, p->layer, p->head, &tensors[k], NULL};
    }
    plain(context, e->m, x, &x->tokens, patches, desc->receiver_count, wanted);
    mha_activations_destroy(sent);
}

static void paths_are_plain_passes(void)
{
    for (int i = 0; i < rng_cases(40, 400); i++) {
        rng r = rng_make(rng_run_seed(), 5000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r, MHA_TRANSFORMER_CAUSAL);
        const some_text *x = &e->texts[0];
        const mha_transformer_desc *d = &e->m->desc;
        int32_t ids[SMALL_ROWS];
        uint8_t rows[SMALL_ROWS];
        mha_path_receiver receivers[SETS] = {{0}};
        mha_activations *to = NULL, *other = NULL;
        mha_tensor from = mha_tensor_contiguous(ids, MHA_I32, 2, x->tokens.shape);
        mha_patching desc = {.struct_size = sizeof desc,
                             .to = &x->text,
                             .from = &from,
                             .rows = rng_chance(&r, 0.5) ? rows : NULL,
                             .receivers = receivers,
                             .receiver_count = rng_chance(&r, 0.3) ? 0 : rng_between(&r, 1, 4),
                             .measures = MEASURES};
        mha_transformer_input input = {
            .struct_size = sizeof input, .tokens = &from, .lengths = x->lengths};
        double values[HEADS][MEASURES], wanted[MEASURES];
        for (int k = 0; k < SETS; k++) {
            const mha_patch_part part = (mha_patch_part)rng_between(&r, 1, 3);
            receivers[k].part = part;
            receivers[k].layer = rng_between(&r, 0, d->num_layers - 1);
            receivers[k].head =
                rng_between(&r, 0, (part == MHA_PATCH_QUERY ? d->num_heads : d->kv_heads) - 1);
        }
        for (int k = 0; k < SMALL_ROWS; k++) {
            ids[k] = (int32_t)rng_between(&r, 0, d->vocab_size - 1);
            rows[k] = rng_chance(&r, 0.5);
        }
        expect_ok(mha_activations_create(context, e->m->t, x->B * x->T, 0, &to));
        expect_ok(mha_activations_create(context, e->m->t, x->B * x->T, 0, &other));
        expect_ok(mha_transformer_forward(context, e->m->t, &input, other, NULL, NULL, NULL));
        input.tokens = &x->tokens;
        expect_ok(mha_transformer_forward(context, e->m->t, &input, to, NULL, NULL, NULL));
        expect_ok(mha_path_patching(context, e->m->t, &desc, NULL, NULL, values[0]));
        for (int64_t k = 0; k < d->num_layers * d->num_heads; k++) {
            path_plainly(context, e, x, to, other, k, &desc, wanted);
            expect_measures(values[k], wanted);
        }
        mha_activations_destroy(to);
        mha_activations_destroy(other);
        example_free(e);
    }
}

/* ---- an induction pair by hand --------------------------------------------------------------- */

/* Attention only, two layers of two heads. The stream has the parts token [V], previous token [V],
 * answer [V], position [T]. L0H0 attends to the previous position and copies its token into the
 * second part. L1H1 matches its own token with the second parts and copies the token of the
 * matching position to the answer, which the output reads. L0H1 and L1H0 attend uniformly and write
 * little. */
enum { PAIR_V = 26, PAIR_T = 49, PAIR_D = PAIR_T, PAIR_E = 3 * PAIR_V + PAIR_T };

static float *weight_of(mha_transformer *t, int64_t layer, const char *name)
{
    mha_parameter p;
    expect_ok(mha_transformer_find(t, layer, name, &p));
    return mha_transformer_data(t) + p.offset;
}

static mha_transformer *make_pair(mha_context *context)
{
    enum { V = PAIR_V, T = PAIR_T, D = PAIR_D, E = PAIR_E };
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = V,
                                    .max_length = T,
                                    .embed_dim = E,
                                    .num_layers = 2,
                                    .num_heads = 2,
                                    .head_dim = D,
                                    .positions = MHA_ENCODING_LEARNED};
    mha_transformer *t = NULL;
    expect_ok(mha_transformer_create(context, &d, &t));
    float *tokens = weight_of(t, -1, "embed_tokens.weight");
    float *positions = weight_of(t, -1, "embed_positions.weight");
    float *q[2], *k[2], *v[2], *o[2], *out = weight_of(t, -1, "lm_head.weight");
    for (int l = 0; l < 2; l++) {
        q[l] = weight_of(t, l, "self_attn.q_proj.weight");
        k[l] = weight_of(t, l, "self_attn.k_proj.weight");
        v[l] = weight_of(t, l, "self_attn.v_proj.weight");
        o[l] = weight_of(t, l, "self_attn.o_proj.weight");
    }
    for (int i = 0; i < V; i++) tokens[i * E + i] = 1;
    for (int i = 0; i < T; i++) positions[i * E + 3 * V + i] = 1;
    for (int i = 0; i < D; i++) {
        if (i > 0) q[0][(i - 1) * E + 3 * V + i] = 30 * sqrtf(D); /* i matches i - 1 */
        k[0][i * E + 3 * V + i] = 1;
        if (i >= V) continue;
        v[0][i * E + i] = 1;
        o[0][(V + i) * 2 * D + i] = 1;
        q[1][(D + i) * E + i] = 30 * sqrtf(D);
        k[1][(D + i) * E + V + i] = 1;
        v[1][(D + i) * E + i] = 1;
        o[1][(2 * V + i) * 2 * D + D + i] = 30;
        v[0][(D + i) * E + i] = 1; /* the idle heads: a mean of tokens, which is hardly read */
        v[1][i * E + i] = 1;
        o[0][i * 2 * D + D + i] = 0.01f;
        o[1][i * 2 * D + i] = 0.01f;
        out[i * E + 2 * V + i] = 1;
    }
    expect_ok(mha_transformer_update(context, t));
    return t;
}

/* Token 0, then a sequence of distinct tokens twice; only the second copy counts. */
static void draw_repeats(rng *r, int32_t *ids, mha_effect_term *terms)
{
    enum { BLOCK = (PAIR_T - 1) / 2 };
    int32_t pool[PAIR_V];
    ids[0] = 0;
    for (int i = 0; i < PAIR_V; i++) pool[i] = i;
    for (int i = 0; i < BLOCK; i++) {
        const int64_t at = rng_between(r, 1 + i, PAIR_V - 1);
        const int32_t drawn = pool[at];
        pool[at] = pool[1 + i];
        ids[1 + i] = ids[1 + BLOCK + i] = pool[1 + i] = drawn;
    }
    expect_ok(mha_effect_loss(ids, 2 + BLOCK, PAIR_T, 1, 0, terms));
}

static void an_induction_pair_is_dead_without_either(void)
{
    enum { SOME = 5, BLOCK = (PAIR_T - 1) / 2 };
    mha_context *context = machines_context(2, 0);
    mha_transformer *t = make_pair(context);
    rng r = rng_make(rng_run_seed(), 6000);
    int32_t ids[SOME][PAIR_T];
    mha_tensor tokens[SOME];
    mha_effect_term terms[SOME][BLOCK];
    mha_effect_text texts[SOME];
    const mha_effect_text *list[SOME];
    float means_data[4 * PAIR_D];
    const mha_tensor means =
        mha_tensor_contiguous(means_data, MHA_F32, 2, (int64_t[]){2, 2 * PAIR_D});
    for (int i = 0; i < SOME; i++) {
        draw_repeats(&r, ids[i], terms[i]);
        tokens[i] = mha_tensor_contiguous(ids[i], MHA_I32, 2, (int64_t[]){1, PAIR_T});
        texts[i] = (mha_effect_text){sizeof texts[i], 0, &tokens[i], NULL, terms[i], BLOCK - 1};
        list[i] = &texts[i];
    }
    const mha_effect_data data = {
        .struct_size = sizeof data, .texts = SOME, .measures = 1, .text = list};
    /* each head, the pair, the idle heads */
    const int64_t first[] = {0, 1, 2, 3, 4, 6, 8}, heads[] = {0, 1, 2, 3, 0, 3, 1, 2};
    const mha_head_sets sets = {sizeof sets, 0, 6, first, heads};
    const double chance = log(PAIR_V);
    expect_ok(mha_effect_means(context, t, &data, &means));
    for (int kind = 0; kind < 3; kind++) {
        const mha_ablation_desc how = {sizeof how, (mha_ablation)kind, 3, &means};
        double whole[SOME], without[6][SOME];
        expect_ok(mha_effect_sets(context, t, &how, &data, &sets, whole, without[0]));
        for (int i = 0; i < SOME; i++) {
            assert_true(whole[i] < 1e-3);
            assert_true(without[1][i] < 1e-3 && without[2][i] < 1e-3 && without[5][i] < 1e-3);
            /* no answer or another answer: at best chance, also for mean ablation */
            assert_true(without[0][i] > 0.8 * chance);
            assert_true(without[3][i] > 0.99 * chance);
            assert_true(without[4][i] > 0.8 * chance);
            if (kind == MHA_ABLATION_ZERO) { /* each head is useless without the other */
                assert_true(fabs(without[3][i] - chance) < 1e-3);
                assert_true(fabs(without[4][i] - without[3][i]) < 1e-3);
            }
        }
    }
    mha_transformer_destroy(t);
}

/* From the repeated tokens to other tokens in the first block. The path to the answer is through
 * the keys of L1H1. */
static void the_path_of_the_pair_is_by_its_keys(void)
{
    enum { BLOCK = (PAIR_T - 1) / 2 };
    mha_context *context = machines_context(2, 0);
    mha_transformer *t = make_pair(context);
    rng r = rng_make(rng_run_seed(), 6100);
    int32_t ids[PAIR_T], other[PAIR_T];
    mha_effect_term terms[BLOCK];
    draw_repeats(&r, ids, terms);
    memcpy(other, ids, sizeof ids);
    for (int i = 0; i < BLOCK; i++) other[1 + i] = ids[BLOCK - i]; /* reversed the first time */
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, PAIR_T});
    const mha_tensor from = mha_tensor_contiguous(other, MHA_I32, 2, (int64_t[]){1, PAIR_T});
    const mha_effect_text text = {sizeof text, 0, &tokens, NULL, terms, BLOCK - 1};
    mha_path_receiver receiver = {1, 1, MHA_PATCH_KEY, 0};
    mha_patching desc = {.struct_size = sizeof desc,
                         .to = &text,
                         .from = &from,
                         .receivers = &receiver,
                         .receiver_count = 1,
                         .measures = 1};
    double to, other_value, values[4];
    expect_ok(mha_path_patching(context, t, &desc, &to, &other_value, values));
    assert_true(to < 1e-3 && other_value > 3 && values[0] > 3);
    for (int k = 1; k < 4; k++) assert_true(fabs(values[k] - to) < 1e-3);
    receiver.part = MHA_PATCH_QUERY;
    expect_ok(mha_path_patching(context, t, &desc, NULL, NULL, values));
    for (int k = 0; k < 4; k++) assert_true(fabs(values[k] - to) < 1e-3);
    desc.receiver_count = 0; /* the logits: only L1H1 writes the part that they read */
    expect_ok(mha_path_patching(context, t, &desc, NULL, NULL, values));
    for (int k = 0; k < 3; k++) assert_true(fabs(values[k] - to) < 1e-3);
    assert_true(values[3] > 3);
    desc.receivers = NULL;
    expect_ok(mha_activation_patching(context, t, &desc, NULL, NULL, values));
    assert_true(values[0] > 3 && values[3] > 3);
    assert_true(fabs(values[1] - to) < 1e-3 && fabs(values[2] - to) < 1e-3);
    mha_transformer_destroy(t);
}

/* ---- statistics over texts ------------------------------------------------------------------- */

static void intervals(void)
{
    mha_context *context = machines_context(1, 0);
    mha_effect_interval x, again;
    double values[200];
    for (int i = 0; i < 200; i++) values[i] = i % 2 ? NAN : i % 4 ? 1 : 0; /* 50 zeros, 50 ones */
    expect_ok(mha_effect_bootstrap(context, values, 200, 1, 4000, 5, &x));
    assert_true(x.mean == 0.5 && x.texts == 100);
    /* The mean of 100 binary draws has a standard deviation of 0.05, so 95 % are within 0.1 of the
     * mean, up to a step of 0.01 and the error of 4,000 draws. */
    assert_true(fabs(x.low - 0.4) < 0.016 && fabs(x.high - 0.6) < 0.016);
    expect_ok(mha_effect_bootstrap(context, values, 200, 1, 4000, 5, &again));
    assert_memory_equal(&x, &again, sizeof x);
    expect_ok(mha_effect_bootstrap(context, values, 200, 1, 4000, 6, &again));
    expect_ok(mha_effect_bootstrap(context, values, 100, 2, 4000, 5, &again));
    assert_memory_equal(&x, &again, sizeof x);
    values[0] = 3;
    expect_ok(mha_effect_bootstrap(context, values, 1, 1, 0, 0, &x));
    assert_true(x.mean == 3 && x.texts == 1 && isnan(x.low) && isnan(x.high));
    expect_ok(mha_effect_bootstrap(context, values + 1, 1, 1, 0, 0, &x));
    assert_true(isnan(x.mean) && x.texts == 0);
    for (int i = 0; i < 9; i++) values[i] = 2;
    expect_ok(mha_effect_bootstrap(context, values, 9, 1, 0, 1, &x));
    assert_true(x.mean == 2 && x.low == 2 && x.high == 2);
    expect_error(mha_effect_bootstrap(context, values, 0, 1, 0, 1, &x), MHA_ERR_ARGUMENT,
                 "count 0");
    expect_error(mha_effect_bootstrap(context, values, 9, 1, 39, 1, &x), MHA_ERR_ARGUMENT,
                 "replicates 39");
    expect_error(mha_effect_bootstrap(context, NULL, 9, 1, 0, 1, &x), MHA_ERR_NULL, "values");
}

static void measures_name_heads_in_turn(void)
{
    const double effects[6][2] = {{1, 0}, {-3, 0.1}, {0, -9}, {3, NAN}, {0, 0}, {0.5, 8}};
    int64_t chosen[6], made = 0;
    expect_ok(mha_effect_best(effects[0], 6, 2, 4, chosen, &made));
    assert_int_equal(made, 4);
    assert_memory_equal(chosen, ((int64_t[]){1, 2, 3, 5}), 4 * sizeof *chosen);
    expect_ok(mha_effect_best(effects[0], 6, 2, 6, chosen, &made));
    assert_int_equal(made, 5); /* L4 has no effect */
    assert_int_equal(chosen[4], 0);
    expect_ok(mha_effect_best(effects[0], 6, 2, 0, chosen, &made));
    assert_int_equal(made, 0);
    expect_error(mha_effect_best(effects[0], -1, 2, 4, chosen, &made), MHA_ERR_ARGUMENT, "-1");
    expect_error(mha_effect_best(NULL, 6, 2, 4, chosen, &made), MHA_ERR_NULL, "effects");
}

/* ---- misuse ---------------------------------------------------------------------------------- */

typedef struct calls {
    example *e;
    mha_head_sets sets;
    int64_t first[3], heads[2];
    mha_patching patching;
    mha_path_receiver receiver;
    double out[HEADS * TEXTS * MEASURES];
} calls;

static calls *calls_make(mha_context *context)
{
    calls *c = calloc(1, sizeof *c);
    assert_non_null(c);
    rng r = rng_make(11, 0);
    do { /* at least two layers, and no norms after blocks */
        if (c->e) example_free(c->e);
        c->e = example_make(context, &r, MHA_TRANSFORMER_CAUSAL);
    } while (c->e->m->desc.num_layers < 2 || mha_transformer_norms_follow(&c->e->m->desc));
    c->e->how.kind = MHA_ABLATION_RESAMPLE;
    memcpy(c->first, (int64_t[]){0, 1, 2}, sizeof c->first);
    c->sets = (mha_head_sets){sizeof c->sets, 0, 2, c->first, c->heads};
    c->receiver = (mha_path_receiver){1, 0, MHA_PATCH_VALUE, 0};
    c->patching = (mha_patching){.struct_size = sizeof c->patching,
                                 .to = c->e->list[0],
                                 .from = c->e->list[0]->tokens,
                                 .receivers = &c->receiver,
                                 .receiver_count = 1,
                                 .measures = MEASURES};
    return c;
}

static mha_status call_sets(mha_context *context, calls *c)
{
    return mha_effect_sets(context, c->e->m->t, &c->e->how, &c->e->data, &c->sets, NULL, c->out);
}

static mha_status call_paths(mha_context *context, calls *c)
{
    return mha_path_patching(context, c->e->m->t, &c->patching, NULL, NULL, c->out);
}

static void misuse(void)
{
    mha_context *context = machines_context(1, 0);
    calls *c = calls_make(context);
    example *e = c->e;
    mha_effect_term *term = e->texts[0].terms;
    mha_effect_text *text = &e->texts[0].text;
    tally stop = {.stop_at = 2};
#define BAD(thing, ...) expect_spoiled(thing, call_sets(context, c), __VA_ARGS__)
    expect_ok(call_sets(context, c));
    expect_error(mha_effect_sets(NULL, e->m->t, &e->how, &e->data, &c->sets, NULL, c->out),
                 MHA_ERR_NULL, "context");
    BAD(e->data, MHA_ERR_ARGUMENT, "0 texts", e->data.texts = 0);
    BAD(e->data, MHA_ERR_ARGUMENT, "0 measures", e->data.measures = 0);
    BAD(e->data, MHA_ERR_NULL, "text is NULL", e->data.text = NULL);
    BAD(e->data, MHA_ERR_UNSUPPORTED, "reserved is 1", e->data.reserved = 1);
    BAD(e->data, MHA_ERR_ARGUMENT, "only one", e->data.texts = 1);
    BAD(e->data, MHA_ERR_CALLBACK, "stopped", e->data.progress = count_work,
        e->data.progress_user = &stop);
    BAD(e->list[1], MHA_ERR_NULL, "text[1]", e->list[1] = NULL);
    BAD(*text, MHA_ERR_ARGUMENT, "-1 terms", text->term_count = -1);
    BAD(*text, MHA_ERR_NULL, "tokens", text->tokens = NULL);
    BAD(*term, MHA_ERR_ARGUMENT, "row 99 is not in the text", term->row = 99);
    BAD(*term, MHA_ERR_ARGUMENT, "token -1", term->token = -1);
    BAD(*term, MHA_ERR_ARGUMENT, "measure 2 of 2", term->measure = 2);
    BAD(*term, MHA_ERR_ARGUMENT, "factor nan", term->factor = NAN);
    BAD(e->how, MHA_ERR_ARGUMENT, "kind 3 is unknown", e->how.kind = (mha_ablation)3);
    BAD(e->how, MHA_ERR_NULL, "requires means", e->how.kind = MHA_ABLATION_MEAN,
        e->how.means = NULL);
    BAD(c->sets, MHA_ERR_ARGUMENT, "-1 sets", c->sets.count = -1);
    BAD(c->first, MHA_ERR_ARGUMENT, "ascend from 0", c->first[1] = 5);
    BAD(c->heads, MHA_ERR_ARGUMENT, "heads[1] is 99", c->heads[1] = 99);
    expect_error(mha_effect_loss(e->texts[0].ids, 0, 2, 1, 0, term), MHA_ERR_ARGUMENT, "tokens 0");
    assert_null(mha_ablation_name((mha_ablation)3));
    assert_string_equal(mha_ablation_name(MHA_ABLATION_RESAMPLE), "resample");
#undef BAD
#define BAD(thing, ...) expect_spoiled(thing, call_paths(context, c), __VA_ARGS__)
    expect_ok(call_paths(context, c));
    BAD(c->patching, MHA_ERR_ARGUMENT, "part 1", c->patching.part = MHA_PATCH_QUERY);
    BAD(c->patching, MHA_ERR_SHAPE, "from", c->patching.from = e->list[1]->tokens);
    BAD(c->patching, MHA_ERR_NULL, "text[0]", c->patching.to = NULL);
    BAD(c->patching, MHA_ERR_ARGUMENT, "receivers", c->patching.receivers = NULL);
    BAD(c->receiver, MHA_ERR_ARGUMENT, "receivers[0]: layer 9", c->receiver.layer = 9);
    BAD(c->receiver, MHA_ERR_ARGUMENT, "part 0", c->receiver.part = MHA_PATCH_OUTPUT);
    expect_error(mha_activation_patching(context, e->m->t, &c->patching, NULL, NULL, c->out),
                 MHA_ERR_ARGUMENT, "belong to mha_path_patching");
#undef BAD
    rng r = rng_make(12, 0);
    small_model *encoder = small_model_make(context, &r, MHA_TRANSFORMER_NO_OUTPUT);
    expect_error(mha_effect_sets(context, encoder->t, &e->how, &e->data, &c->sets, NULL, c->out),
                 MHA_ERR_UNSUPPORTED, "no output");
    small_model_free(encoder);
    example_free(e);
    free(c);
}

/* Make all calls, with a model made by another context. */
static mha_status run_all(mha_context *context, failing_alloc *memory, void *user)
{
    calls *c = user;
    example *e = c->e;
    failing_from_here(memory);
    mha_status status = call_sets(context, c);
    if (status == MHA_OK) status = call_paths(context, c);
    if (status == MHA_OK) status = mha_effect_means(context, e->m->t, &e->data, &e->means);
    if (status == MHA_OK)
        status = mha_effect_gradients(context, e->m->t, &e->how, &e->data, c->out);
    if (status == MHA_OK) status = mha_effect_direct(context, e->m->t, &e->data, c->out);
    mha_effect_interval found;
    if (status == MHA_OK) status = mha_effect_bootstrap(context, c->out, 3, 1, 0, 0, &found);
    return status;
}

static void failed_allocations_are_reported(void)
{
    calls *c = calls_make(machines_context(1, 0));
    assert_true(failing_each(run_all, c) > 10);
    example_free(c->e);
    free(c);
}

RUN_TESTS(TEST(sets_are_plain_passes), TEST(threads_change_no_bit), TEST(gradients_are_slopes),
          TEST(direct_effects_are_attributions), TEST(activation_patching_is_plain_passes),
          TEST(paths_are_plain_passes), TEST(an_induction_pair_is_dead_without_either),
          TEST(the_path_of_the_pair_is_by_its_keys), TEST(intervals),
          TEST(measures_name_heads_in_turn), TEST(misuse), TEST(failed_allocations_are_reported))
