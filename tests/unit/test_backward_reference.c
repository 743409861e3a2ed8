/* The double-precision gradients that test_backward.c uses, compared with central differences of
 * the double-precision forward. Tests every element of every differentiable input, with every kind
 * of attention alone, in pairs and in random combinations.
 *
 * Differences are of fourth order, f' = (8 (f(+h) - f(-h)) - (f(+2h) - f(-2h))) / 12 h; with
 * h = 3e-4 their error is h^4 f5 / 30 (1e-15 f5) and a rounding of f. With m the sum of the magnitudes of f's terms
 * (which may cancel), f is computed within about 20 u m = 2.3e-15 m, and the difference within (2 * 8 + 2) / 12 times
 * that, over h: 3.5e-15 m / h. */
#include "reference/backward_reference.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A problem with f64 inputs, which can be perturbed. */
typedef struct doubled {
    kinds_case c;
    mha_attention_desc desc;
    mha_tensor input[BACKWARD_COUNT];
    double *memory[BACKWARD_COUNT], *gradient[4];
    double terms;        /* m */
    mha_tensor given[4]; /* gradients of o, lse, p and its average */
    backward_loss loss;
    ref_attention a;
} doubled;

static mha_tensor copy_tensor(const mha_tensor *x, double **memory)
{
    int64_t index[MHA_MAX_DIMS] = {0}, count;
    expect_ok(mha_tensor_count(x, &count));
    *memory = ref_doubles(count);
    if (count > 0) {
        double *out = *memory;
        do *out++ = ref_element(x, index);
        while (guarded_next(x, index));
    }
    return mha_tensor_contiguous(*memory, MHA_F64, x->ndim, x->shape);
}

static void point_at_copies(doubled *x)
{
    const ref_attention from = kinds_reference(&x->c);
    const mha_tensor **to[BACKWARD_SCALE] = {&x->a.q,
                                             &x->a.k,
                                             &x->a.v,
                                             &x->desc.bias,
                                             &x->desc.alibi_slopes,
                                             &x->desc.t5_table,
                                             &x->desc.shaw_keys,
                                             &x->desc.shaw_values,
                                             &x->desc.sink_logits,
                                             &x->desc.gates};
    x->desc = x->c.desc;
    x->a.desc = &x->desc;
    for (int i = 0; i < BACKWARD_SCALE; i++) {
        const mha_tensor *input = backward_input(&from, i);
        if (!input) continue;
        x->input[i] = copy_tensor(input, &x->memory[i]);
        *to[i] = &x->input[i];
    }
}

/* The largest finite magnitude of an input; least if there is none. */
static double largest_of(const mha_tensor *x, double least)
{
    int64_t index[MHA_MAX_DIMS] = {0}, count;
    if (!x || mha_tensor_count(x, &count) != MHA_OK || count == 0) return least;
    do {
        double size = fabs(ref_element(x, index));
        if (isfinite(size) && size > least) least = size;
    } while (guarded_next(x, index));
    return least;
}

static double sizes_of(const mha_tensor *x)
{
    int64_t count;
    double sum = 0;
    if (!x || mha_tensor_count(x, &count) != MHA_OK) return 0;
    for (int64_t i = 0; i < count; i++) sum += fabs(((const double *)x->data)[i]);
    return sum;
}

/* A bound of m. Weights are at most 1 (2 with dropout of a half), gates multiply, and lse is a few
 * scores. */
static double terms_of(const doubled *x)
{
    double dropped = 1 - (double)x->desc.dropout;
    double sum = sizes_of(x->loss.o) *
                 (largest_of(x->a.v, 0) + largest_of(x->desc.shaw_values, 0)) *
                 largest_of(x->desc.gates, 1);
    sum += sizes_of(x->loss.probabilities) + sizes_of(x->loss.average);
    return sum / (dropped > 0 ? dropped : 1) + 50 * sizes_of(x->loss.lse);
}

/* The loss depends on o, and often on the other outputs. */
static void make_loss(doubled *x, rng *r)
{
    const int64_t batch = x->a.q->shape[0], H = x->a.q->shape[1], rows = x->a.q->shape[2];
    int64_t longest = 0;
    for (int64_t b = 0; b < kinds_sequences(&x->a); b++)
        if (kinds_sequence_at(&x->a, b).S > longest) longest = kinds_sequence_at(&x->a, b).S;
    const int64_t shapes[4][4] = {{batch, H, rows, x->a.v->shape[3]},
                                  {batch, H, rows},
                                  {batch, H, rows, longest},
                                  {batch, rows, longest}};
    const int dims[4] = {4, 3, 4, 3};
    const mha_tensor **to[4] = {&x->loss.o, &x->loss.lse, &x->loss.probabilities, &x->loss.average};
    for (int i = 0; i < 4; i++) {
        int64_t count;
        if (i > 0 && rng_chance(r, 0.6)) continue;
        x->given[i] = mha_tensor_contiguous(NULL, MHA_F64, dims[i], shapes[i]);
        expect_ok(mha_tensor_count(&x->given[i], &count));
        x->given[i].data = x->gradient[i] = ref_doubles(count);
        for (int64_t j = 0; j < count; j++) x->gradient[i][j] = (double)rng_normal(r);
        *to[i] = &x->given[i];
    }
    x->loss.dropped = rng_chance(r, 0.5);
}

static void make(doubled *x, rng *r, unsigned kinds)
{
    memset(x, 0, sizeof *x);
    kinds_shape shape = {.B = rng_between(r, 1, 2),
                         .Hk = 1,
                         .H = rng_between(r, 1, 2),
                         .T = rng_between(r, 1, 4),
                         .S = rng_between(r, 1, 6),
                         .D = rng_between(r, 1, 3),
                         .Dv = rng_between(r, 1, 3),
                         .kinds = kinds};
    kinds_make(&x->c, r, &shape);
    point_at_copies(x);
    static const float scales[] = {0.5f, -0.25f, 0.0f, 1.0f}; /* exact when moved by h */
    x->desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
    x->desc.scale = RNG_PICK(r, scales);
    make_loss(x, r);
    x->terms = terms_of(x);
}

static void unmake(doubled *x)
{
    for (int i = 0; i < BACKWARD_COUNT; i++) free(x->memory[i]);
    for (int i = 0; i < 4; i++) free(x->gradient[i]);
    kinds_free(&x->c);
}

/* A row's contribution: gradients times o, lse and p. */
static double loss_of_row(const doubled *x, int64_t b, int64_t h, int64_t t, const kinds_row *row)
{
    const kinds_sequence at = kinds_sequence_at(&x->a, b);
    double sum = 0;
    for (int64_t d = 0; d < row->value_dim; d++)
        sum += row->o[d] * ref_element(x->loss.o, (int64_t[]){at.batch, h, at.q0 + t, d});
    if (x->loss.lse && isfinite(row->lse))
        sum += row->lse * ref_element(x->loss.lse, (int64_t[]){at.batch, h, at.q0 + t});
    for (int64_t s = 0; s < row->keys; s++)
        sum += row->p[s] * backward_weight(&x->loss, &x->a, b, h, t, s, row->factor[s]);
    return sum;
}

static double loss(const doubled *x)
{
    const ref_attention *a = &x->a;
    kinds_row row = kinds_row_make(x->c.shape.S, a->v->shape[3]);
    double sum = 0;
    for (int64_t b = 0; b < kinds_sequences(a); b++)
        for (int64_t h = 0; h < a->q->shape[1]; h++)
            for (int64_t t = 0; t < kinds_sequence_at(a, b).T; t++) {
                kinds_attention_row(a, b, h, t, &row);
                sum += loss_of_row(x, b, h, t, &row);
            }
    kinds_row_free(&row);
    return sum;
}

static double moved(doubled *x, double *element, double by)
{
    double old = element ? *element : (double)x->desc.scale;
    if (element)
        *element = old + by;
    else
        x->desc.scale = (float)(old + by);
    double result = loss(x);
    if (element)
        *element = old;
    else
        x->desc.scale = (float)old;
    return result;
}

static double difference(doubled *x, double *element, double *rounding)
{
    /* A change of the scale changes scores by q . k times the step, through a cap that may be
     * small. */
    double h = element ? 3e-4 * fmax(1, fabs(*element)) : 0x1p-15;
    double near[2] = {moved(x, element, h), moved(x, element, -h)};
    double far[2] = {moved(x, element, 2 * h), moved(x, element, -2 * h)};
    *rounding = 3.5e-15 * x->terms / h;
    return (8 * (near[0] - near[1]) - (far[0] - far[1])) / (12 * h);
}

static void check_input(doubled *x, int which, const backward_arrays *got, int64_t *compared)
{
    double largest = 0;
    for (int64_t i = 0; i < got->count[which]; i++)
        largest = fmax(largest, fabs(got->of[which][i]));
    for (int64_t i = 0; i < got->count[which]; i++) {
        double *element = which == BACKWARD_SCALE ? NULL : x->memory[which] + i;
        if (element && !isfinite(*element)) { /* -inf: no key, no sink */
            assert_true(got->of[which][i] == 0);
            continue;
        }
        double rounding, expected = difference(x, element, &rounding), value = got->of[which][i];
        if (!(fabs(value - expected) <= 1e-6 * fabs(value) + 1e-8 * largest + rounding))
            fail_msg("%s[%lld] is %.12g, by differences %.12g\n  %s", backward_name(which),
                     (long long)i, value, expected, x->c.text);
        ++*compared;
    }
}

static void check_kinds(uint64_t stream, unsigned kinds, int64_t *compared)
{
    rng r = rng_make(rng_run_seed(), stream);
    doubled x;
    if (kinds & (KIND_SINK_KEYS | KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES)) kinds |= KIND_WINDOW;
    make(&x, &r, kinds);
    backward_arrays got = backward_arrays_make(&x.a);
    backward_reference(&x.a, &x.loss, &got);
    for (int i = 0; i < BACKWARD_COUNT; i++)
        if (got.of[i]) check_input(&x, i, &got, &compared[i]);
    backward_arrays_free(&got);
    unmake(&x);
}

static void gradients_are_differences(void)
{
    int64_t compared[BACKWARD_COUNT] = {0};
    uint64_t stream = 0;
    for (int i = 0; i < KINDS_COUNT; i++)
        for (int j = i; j < KINDS_COUNT; j++) check_kinds(stream++, 1u << i | 1u << j, compared);
    int count = rng_cases(300, 20000);
    for (int i = 0; i < count; i++) {
        rng r = rng_make(rng_run_seed(), 1000000 + (uint64_t)i);
        unsigned kinds = (unsigned)rng_next(&r) & KINDS_ALL;
        if (rng_chance(&r, 0.5)) kinds &= (unsigned)rng_next(&r);
        check_kinds(stream++, kinds, compared);
    }
    for (int i = 0; i < BACKWARD_COUNT; i++) {
        printf("  %s: %lld elements\n", backward_name(i), (long long)compared[i]);
        if (rng_whole_sample()) assert_true(compared[i] > 20);
    }
}

RUN_TESTS(TEST(gradients_are_differences))
