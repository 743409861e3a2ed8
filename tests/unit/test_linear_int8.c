/* Linear layers in int8 arithmetic (MHA_COMPUTE_INT8 of a source): the bits of the definition on
 * every instruction set, for any number of threads and rows; the error bound; errors. The layer is
 * the output of a transformer whose only layer has no heads: its inputs are embeddings. */
#include "reference/int8_linear_reference.h"
#include "support/expect.h"
#include "support/machines.h"
#include "support/output_layer.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_INPUTS = 800,
    MOST_OUTPUTS = 600,
    MOST_TOKENS = OUTPUT_LAYER_ROWS,
    MOST_RUNS = MOST_INPUTS / 16
};

typedef struct matrix {
    int64_t inputs, outputs, run;
    bool has_offsets;
    bool coded[MOST_OUTPUTS / MHA_CODED_ROWS + 1]; /* possible tiles of rows */
    float x[MOST_OUTPUTS][MOST_INPUTS];            /* the table of tokens */
    int8_t number[MOST_OUTPUTS][MOST_INPUTS];
    float scale[MOST_OUTPUTS][MOST_RUNS], offset[MOST_OUTPUTS][MOST_RUNS];
} matrix;

static float weight_of(const matrix *m, int64_t row, int64_t i)
{
    const float product = (float)m->number[row][i] * m->scale[row][i / m->run];
    return product + m->offset[row][i / m->run];
}

static void read_matrix(const void *user, int64_t parameter, int64_t row, int64_t rows,
                        int64_t column, int64_t columns, float *to)
{
    const matrix *m = user;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++)
            to[r * columns + i] =
                parameter == 0 ? m->x[row + r][column + i] : weight_of(m, row + r, column + i);
}

static bool read_coded(const void *user, int64_t parameter, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, mha_coded *to)
{
    const matrix *m = user;
    if (parameter == 0 || !m->coded[row / MHA_CODED_ROWS]) return false;
    assert_true(rows >= 1 && rows <= MHA_CODED_ROWS && row >= 0 && row + rows <= m->outputs);
    assert_true(column % MHA_CODED_COLUMNS == 0 && columns >= 1 && column + columns <= m->inputs);
    assert_true(columns == MHA_CODED_COLUMNS || column + columns == m->inputs);
    memset(to, 0xFF, sizeof *to); /* other rows: NaN */
    to->run = (int32_t)m->run;
    to->has_offsets = m->has_offsets;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++) {
            to->number[i / 4][r][i % 4] = m->number[row + r][column + i];
            to->scale[i / m->run][r] = m->scale[row + r][(column + i) / m->run];
            to->offset[i / m->run][r] = m->offset[row + r][(column + i) / m->run];
        }
    return true;
}

static matrix *make_matrix(rng *r, int64_t most_outputs)
{
    matrix *m = calloc(1, sizeof *m);
    assert_non_null(m);
    memset(m->coded, true, sizeof m->coded);
    m->run = rng_chance(r, 0.3) ? 16 : 32;
    m->inputs = m->run * rng_between(r, 1, MOST_INPUTS / m->run);
    m->outputs = rng_between(r, 1, most_outputs);
    m->has_offsets = rng_chance(r, 0.5);
    for (int64_t k = 0; k < m->outputs; k++) {
        const float size = rng_chance(r, 0.2) ? ldexpf(1, (int)rng_between(r, -100, 60)) : 1;
        for (int64_t i = 0; i < m->inputs; i++) {
            m->x[k][i] = rng_normal(r) * size;
            if (rng_chance(r, 0.02)) m->x[k][i] *= 30;
            if (size > 1 && i / 32 % 3 == 1) m->x[k][i] = 0;
            m->number[k][i] = (int8_t)rng_between(r, -128, 127);
            m->scale[k][i / m->run] = 0.01f * rng_normal(r);
            m->offset[k][i / m->run] = m->has_offsets ? rng_normal(r) : -0.0f;
        }
    }
    return m;
}

static mha_transformer *transformer_of(mha_context *context, const matrix *m, mha_compute compute)
{
    union {
        const matrix *in;
        void *user;
    } pointer = {m};
    return output_layer(context, m->inputs, m->outputs,
                        &(mha_transformer_source){.struct_size = sizeof(mha_transformer_source),
                                                  .read = read_matrix,
                                                  .read_coded = read_coded,
                                                  .user = pointer.user,
                                                  .compute = compute});
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b));
}

static double worst; /* error / bound */

static void expect_outputs(const matrix *m, int64_t count, const float *y, const char *name)
{
    for (int64_t t = 0; t < count; t++)
        for (int64_t k = 0; k < m->outputs; k++) {
            const int8_linear_row w = {m->inputs,   m->run,       m->number[k],
                                       m->scale[k], m->offset[k], m->has_offsets};
            const int8_linear_output e = int8_linear_reference(&w, m->x[t % m->outputs], 0);
            const float got = y[t * m->outputs + k];
            if (!same(got, e.y))
                fail_msg("%s: row %d, output %d is %a, %a by the definition", name, (int)t, (int)k,
                         (double)got, (double)e.y);
            if (isnan(e.y) || isinf(e.y)) continue;
            const double part = fabs((double)got - e.exact) / e.bound;
            if (!(part <= 1))
                fail_msg("%s: row %d, output %d is wrong by %.3g of its bound", name, (int)t,
                         (int)k, part);
            worst = fmax(worst, part);
        }
}

static void outputs_have_the_bits_of_the_definition(void)
{
    static float y[MOST_TOKENS * MOST_OUTPUTS];
    int first, end;
    rng_range(60, 600, &first, &end);
    for (int i = first; i < end; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        matrix *m = make_matrix(&r, 150);
        const int64_t count = rng_between(&r, 1, MOST_TOKENS);
        if (rng_chance(&r, 0.3)) {
            static const float wild[] = {NAN, INFINITY, -INFINITY, 0x1p93f, -0x1.fffffep127f};
            const int64_t row = rng_between(&r, 0, m->outputs - 1);
            m->x[row][rng_between(&r, 0, m->inputs - 1)] = wild[rng_between(&r, 0, 4)];
        }
        const machines all = machines_make(1 + i % 4);
        for (int k = 0; k < all.count; k++) {
            mha_transformer *t = transformer_of(all.each[k].context, m, MHA_COMPUTE_INT8);
            output_layer_forward(all.each[k].context, t, 0, count, y);
            expect_outputs(m, count, y, all.each[k].name);
            output_layer_forward(all.each[k].context, t, 0, 1, y); /* one row */
            expect_outputs(m, 1, y, all.each[k].name);
            mha_transformer_destroy(t);
        }
        free(m);
    }
    printf("  largest error / bound %.2f\n", worst);
}

/* Rows that cannot be coded are computed in f32, with the bits of f32 arithmetic; other rows are
 * not affected. */
static void rows_without_codes_stay_in_f32(void)
{
    static float f32[MOST_TOKENS * MOST_OUTPUTS], int8[MOST_TOKENS * MOST_OUTPUTS],
        mixed[MOST_TOKENS * MOST_OUTPUTS];
    for (int i = 0; i < rng_cases(10, 100); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(10000 + i));
        matrix *m = make_matrix(&r, MOST_OUTPUTS);
        const int64_t count = rng_between(&r, 1, MOST_TOKENS);
        const double part = i % 2 ? 0.5 : 0;
        mha_context *context = machines_context(1 + i % 3, i);
        mha_transformer *t = transformer_of(context, m, MHA_COMPUTE_INT8);
        output_layer_forward(context, t, 0, count, int8);
        for (size_t k = 0; k < sizeof m->coded; k++) m->coded[k] = rng_chance(&r, part);
        output_layer_forward(context, t, 0, count, mixed);
        mha_transformer_destroy(t);
        t = transformer_of(context, m, MHA_COMPUTE_F32);
        output_layer_forward(context, t, 0, count, f32);
        mha_transformer_destroy(t);
        for (int64_t k = 0; k < count * m->outputs; k++) {
            const bool coded = m->coded[k % m->outputs / MHA_CODED_ROWS];
            assert_true(same(mixed[k], coded ? int8[k] : f32[k]));
        }
        free(m);
    }
}

/* A row whose inputs do not fill whole runs has no coded form. */
static void rows_without_runs_stay_in_f32(void)
{
    static float y[2][MOST_TOKENS * MOST_OUTPUTS];
    for (int i = 0; i < rng_cases(5, 50); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)(20000 + i));
        matrix *m = make_matrix(&r, 150);
        const int64_t count = rng_between(&r, 1, MOST_TOKENS);
        m->inputs -= rng_between(&r, 1, 15);
        memset(m->coded, false, sizeof m->coded);
        for (int k = 0; k < 2; k++) {
            mha_context *context = machines_context(1 + i % 3, i);
            mha_transformer *t = transformer_of(context, m, k ? MHA_COMPUTE_INT8 : MHA_COMPUTE_F32);
            output_layer_forward(context, t, 0, count, y[k]);
            mha_transformer_destroy(t);
        }
        assert_memory_equal(y[0], y[1], (size_t)(count * m->outputs) * sizeof(float));
        free(m);
    }
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 7);
    matrix *m = make_matrix(&r, 150);
    mha_context *context = machines_context(1, 0);
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .vocab_size = 3,
                                    .max_length = 4,
                                    .embed_dim = 32,
                                    .num_layers = 1,
                                    .num_heads = 1};
    mha_transformer_source source = {.struct_size = sizeof source,
                                     .read = read_matrix,
                                     .read_coded = read_coded,
                                     .compute = MHA_COMPUTE_INT8};
    mha_transformer *t = NULL;
#define MAKE() mha_transformer_create_from(context, &d, &source, &t)
    expect_spoiled(source, MAKE(), MHA_ERR_ARGUMENT, "compute is 4",
                   source.compute = (mha_compute)4);
    expect_spoiled(source, MAKE(), MHA_ERR_ARGUMENT, "read_coded", source.read_coded = NULL);
    expect_spoiled(source, MAKE(), MHA_ERR_ARGUMENT, "PACK", source.flags = MHA_SOURCE_PACK);
    expect_spoiled(source, MAKE(), MHA_ERR_UNSUPPORTED, "reserved", source.reserved = 1);
    t = transformer_of(context, m, MHA_COMPUTE_INT8);
    mha_activations *kept = NULL;
    expect_ok(mha_activations_create(context, t, 4, 0, &kept));
    int32_t ids[] = {0};
    float y[MOST_OUTPUTS] = {0};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, 1});
    const mha_tensor out = mha_tensor_contiguous(y, MHA_F32, 3, (int64_t[]){1, 1, m->outputs});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    const mha_transformer_gradients gradients = {.struct_size = sizeof gradients};
    expect_ok(mha_transformer_forward(context, t, &input, kept, &out, NULL, NULL));
    expect_error(mha_transformer_backward(context, t, &input, kept, &out, &gradients),
                 MHA_ERR_UNSUPPORTED, "forward only");
    mha_activations_destroy(kept);
    mha_transformer_destroy(t);
    free(m);
}

RUN_TESTS(TEST(outputs_have_the_bits_of_the_definition), TEST(rows_without_codes_stay_in_f32),
          TEST(rows_without_runs_stay_in_f32), TEST(misuse_is_refused))
