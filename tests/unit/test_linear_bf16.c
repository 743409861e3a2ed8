/* Linear layers in bf16 arithmetic, by pairs and in the order of tiles: the bits of the definition on
 * every instruction set, for packed weights of each type, for weights of a source, and for any number of
 * threads and rows; the error bound; errors. */
#include "reference/bf16_linear_reference.h"
#include "reference/half_reference.h"
#include "support/expect.h"
#include "support/machines.h"
#include "support/output_layer.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/nn.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_INPUTS = 520, MOST_OUTPUTS = 150, MOST_ROWS = OUTPUT_LAYER_ROWS };

typedef struct matrix {
    int64_t inputs, outputs;
    mha_dtype type;           /* stored type of w */
    int64_t stride;           /* stride of its stored rows */
    bool found[MOST_OUTPUTS]; /* whether rows are in place */
    bool coded;               /* f32 products of numbers and scales, in runs of 32 */
    int8_t number[MOST_OUTPUTS][MOST_INPUTS];
    float scale[MOST_OUTPUTS][MOST_INPUTS / 32 + 1];
    float x[MOST_OUTPUTS][MOST_INPUTS], w[MOST_OUTPUTS][MOST_INPUTS], bias[MOST_OUTPUTS];
    uint16_t halves[MOST_OUTPUTS][MOST_INPUTS];
} matrix;

static float number(rng *r, float size)
{
    const float x = rng_normal(r) * size;
    return rng_chance(r, 0.05) ? ldexpf(x, (int)rng_between(r, -70, 20)) : x;
}

static matrix *make_matrix(rng *r)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    matrix *m = calloc(1, sizeof *m);
    assert_non_null(m);
    m->inputs = rng_chance(r, 0.3) ? rng_between(r, 1, 40) : rng_between(r, 1, MOST_INPUTS);
    m->outputs = rng_between(r, 1, MOST_OUTPUTS);
    m->type = types[rng_between(r, 0, 2)];
    const float size = rng_chance(r, 0.2) ? ldexpf(1, (int)rng_between(r, -60, 36)) : 1;
    for (int64_t k = 0; k < m->outputs; k++) {
        m->found[k] = k % 32 ? m->found[k - 1] : rng_chance(r, 0.7);
        m->bias[k] = rng_normal(r);
        for (int64_t i = 0; i < m->inputs; i++) {
            m->x[k][i] = number(r, size);
            m->w[k][i] = number(r, m->type == MHA_F16 ? 1 : size);
        }
    }
    return m;
}

static void make_coded(rng *r, matrix *m)
{
    m->coded = true;
    m->type = MHA_F32;
    m->inputs = 32 * rng_between(r, 1, MOST_INPUTS / 32);
    for (int64_t k = 0; k < m->outputs; k++)
        for (int64_t i = 0; i < m->inputs; i++) {
            if (i % 32 == 0)
                m->scale[k][i / 32] = rng_chance(r, 0.002) ? INFINITY : 0.01f * rng_normal(r);
            m->number[k][i] = (int8_t)rng_between(r, -128, 127);
            m->w[k][i] = (float)m->number[k][i] * m->scale[k][i / 32];
        }
}

/* Numbers outside the range of bf16 arithmetic. */
static void spoil(rng *r, matrix *m)
{
    static const float wild[] = {NAN, INFINITY, -INFINITY, 0x1p59f, -0x1.fffffep127f};
    const int64_t k = rng_between(r, 0, m->outputs - 1), i = rng_between(r, 0, m->inputs - 1);
    (rng_chance(r, 0.5) ? m->x : m->w)[k][i] = wild[rng_between(r, 0, 4)];
}

/* Round w to its type. */
static void store(matrix *m)
{
    for (int64_t k = 0; m->type != MHA_F32 && k < m->outputs; k++)
        for (int64_t i = 0; i < m->inputs; i++) {
            m->halves[k][i] = half_nearest(m->type, (double)m->w[k][i]);
            m->w[k][i] = (float)half_value(m->type, m->halves[k][i]);
        }
}

static void read_matrix(const void *user, int64_t parameter, int64_t row, int64_t rows,
                        int64_t column, int64_t columns, float *to)
{
    const matrix *m = user;
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * columns, (parameter == 0 ? m->x : m->w)[row + r] + column,
               (size_t)columns * sizeof *to);
}

static bool read_coded(const void *user, int64_t parameter, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, mha_coded *to)
{
    const matrix *m = user;
    if (parameter == 0 || !m->coded || !m->found[row]) return false;
    to->run = 32;
    to->has_offsets = false;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < columns; i++) {
            to->number[i / 4][r][i % 4] = m->number[row + r][column + i];
            to->scale[i / 32][r] = m->scale[row + r][(column + i) / 32];
            to->offset[i / 32][r] = -0.0f;
        }
    return true;
}

static const void *find_rows(const void *user, int64_t parameter, int64_t row, int64_t rows,
                             mha_dtype *type, int64_t *stride)
{
    const matrix *m = user;
    (void)rows;
    if (parameter == 0 || m->type == MHA_F32 || !m->found[row]) return NULL;
    *type = m->type;
    *stride = MOST_INPUTS;
    return m->halves[row];
}

/* The arithmetic under test. */
static const struct {
    mha_compute compute;
    bf16_order order;
    mha_status (*create)(mha_context *context, const mha_tensor *weight, const mha_tensor *bias,
                         mha_linear **linear);
} modes[] = {{MHA_COMPUTE_BF16, BF16_PAIRS, mha_linear_create_bf16},
             {MHA_COMPUTE_TILES, BF16_TILES, mha_linear_create_tiles}};

static mha_transformer *from_source(mha_context *context, const matrix *m, mha_compute compute)
{
    union {
        const matrix *in;
        void *user;
    } pointer = {m};
    return output_layer(context, m->inputs, m->outputs,
                        &(mha_transformer_source){.struct_size = sizeof(mha_transformer_source),
                                                  .read = read_matrix,
                                                  .find_rows = find_rows,
                                                  .read_coded = read_coded,
                                                  .user = pointer.user,
                                                  .compute = compute});
}

static mha_tensor weight_of(const matrix *m)
{
    union {
        const void *in;
        void *data;
    } pointer = {m->type == MHA_F32 ? (const void *)m->w : m->halves};
    return (mha_tensor){.data = pointer.data,
                        .dtype = m->type,
                        .ndim = 2,
                        .shape = {m->outputs, m->inputs},
                        .stride = {MOST_INPUTS, 1}};
}

static mha_tensor vector_of(const float *x, int64_t n)
{
    union {
        const float *in;
        void *data;
    } pointer = {x};
    return mha_tensor_contiguous(pointer.data, MHA_F32, 1, (int64_t[]){n});
}

/* Passes rows 0 .. count - 1 of x, at their stride, through a packed layer. */
static void packed_forward(mha_context *context, const mha_linear *linear, const matrix *m,
                           int64_t count, float *y)
{
    static float x[MOST_ROWS][MOST_INPUTS];
    for (int64_t t = 0; t < count; t++) memcpy(x[t], m->x[t % m->outputs], sizeof x[t]);
    const mha_tensor in = {.data = x,
                           .dtype = MHA_F32,
                           .ndim = 2,
                           .shape = {count, m->inputs},
                           .stride = {MOST_INPUTS, 1}};
    const mha_tensor out = mha_tensor_contiguous(y, MHA_F32, 2, (int64_t[]){count, m->outputs});
    expect_ok(mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &in, &out));
}

/* Outputs by the definition, with or without the bias. */
typedef struct expected {
    int64_t count, outputs;
    bf16_linear_output each[MOST_ROWS * MOST_OUTPUTS];
} expected;

static void expect_from(const matrix *m, bool has_bias, int64_t count, bf16_order order,
                        expected *e)
{
    e->count = count;
    e->outputs = m->outputs;
    for (int64_t t = 0; t < count; t++)
        for (int64_t k = 0; k < m->outputs; k++)
            e->each[t * m->outputs + k] = bf16_linear_reference(
                m->w[k], m->x[t % m->outputs], m->inputs, has_bias ? m->bias[k] : 0, order);
}

static double worst; /* error / bound */

static void check_outputs(const expected *e, int64_t count, const float *y, const char *name)
{
    for (int64_t i = 0; i < count * e->outputs; i++) {
        const bf16_linear_output *one = &e->each[i];
        const int row = (int)(i / e->outputs), k = (int)(i % e->outputs);
        if (memcmp(&y[i], &one->y, sizeof *y) != 0 && !(isnan(y[i]) && isnan(one->y)))
            fail_msg("%s: row %d, output %d is %a, %a by the definition", name, row, k,
                     (double)y[i], (double)one->y);
        const double error = fabs((double)y[i] - one->exact);
        if (isnan(one->y) || isinf(one->y) || error == 0) continue;
        if (!(error <= one->bound))
            fail_msg("%s: row %d, output %d is wrong by %.3g of its bound", name, row, k,
                     error / one->bound);
        worst = fmax(worst, error / one->bound);
    }
}

static void outputs_have_the_bits_of_the_definition(void)
{
    static float y[MOST_ROWS * MOST_OUTPUTS];
    static expected plain, with_bias;
    int first, end;
    rng_range(20, 400, &first, &end);
    for (int i = first; i < end; i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        matrix *m = make_matrix(&r);
        const int64_t count = rng_between(&r, 1, MOST_ROWS);
        if (rng_chance(&r, 0.25))
            make_coded(&r, m);
        else if (rng_chance(&r, 0.3))
            spoil(&r, m);
        store(m);
        const int mode = (int)rng_between(&r, 0, 1);
        expect_from(m, false, count, modes[mode].order, &plain);
        expect_from(m, true, count, modes[mode].order, &with_bias);
        const mha_tensor weight = weight_of(m), bias = vector_of(m->bias, m->outputs);
        const machines all = machines_make(1 + i % 4);
        for (int k = 0; k < all.count; k++) {
            mha_context *context = all.each[k].context;
            const char *name = all.each[k].name;
            mha_transformer *t = from_source(context, m, modes[mode].compute);
            output_layer_forward(context, t, 0, count, y);
            check_outputs(&plain, count, y, name);
            output_layer_forward(context, t, 0, 1, y); /* the same for one row as for several */
            check_outputs(&plain, 1, y, name);
            mha_transformer_destroy(t);
            mha_linear *linear = NULL;
            expect_ok(modes[mode].create(context, &weight, &bias, &linear));
            packed_forward(context, linear, m, count, y);
            check_outputs(&with_bias, count, y, name);
            mha_linear_destroy(linear);
            expect_ok(modes[mode].create(context, &weight, NULL, &linear));
            packed_forward(context, linear, m, 1, y);
            check_outputs(&plain, 1, y, name);
            mha_linear_destroy(linear);
        }
        free(m);
    }
    printf("  largest error / bound %.2f\n", worst);
}

static void update(int mode)
{
    static float y[MOST_ROWS * MOST_OUTPUTS];
    static expected e;
    rng r = rng_make(rng_run_seed(), 5000);
    mha_context *context = machines_context(2, 0);
    matrix *m = make_matrix(&r);
    m->type = MHA_F32;
    const mha_tensor weight = weight_of(m), bias = vector_of(m->bias, m->outputs);
    const float was = m->w[m->outputs - 1][0];
    mha_linear *linear = NULL;
    m->w[m->outputs - 1][0] = NAN;
    expect_ok(modes[mode].create(context, &weight, &bias, &linear));
    packed_forward(context, linear, m, 2, y);
    expect_from(m, true, 2, modes[mode].order, &e);
    check_outputs(&e, 2, y, "created");
    m->w[m->outputs - 1][0] = was; /* its output is finite again */
    expect_ok(mha_linear_update(linear, &weight, &bias));
    packed_forward(context, linear, m, 2, y);
    expect_from(m, true, 2, modes[mode].order, &e);
    check_outputs(&e, 2, y, "updated");
    mha_linear_destroy(linear);
    free(m);
}

static void an_update_gives_other_numbers(void)
{
    for (int mode = 0; mode < 2; mode++) update(mode);
}

static void misuse_is_refused(void)
{
    rng r = rng_make(rng_run_seed(), 7);
    matrix *m = make_matrix(&r);
    m->type = MHA_BF16;
    mha_context *context = machines_context(1, 0);
    mha_tensor weight = weight_of(m), bias = vector_of(m->bias, m->outputs);
    mha_linear *linear = NULL;
    expect_error(mha_linear_create_tiles(NULL, &weight, NULL, &linear), MHA_ERR_NULL,
                 "create_tiles");
    expect_spoiled(weight, mha_linear_create_tiles(context, &weight, &bias, &linear), MHA_ERR_DTYPE,
                   "weight", weight.dtype = MHA_I32);
#define MAKE() mha_linear_create_bf16(context, &weight, &bias, &linear)
    expect_spoiled(weight, MAKE(), MHA_ERR_DTYPE, "weight", weight.dtype = MHA_I32);
    expect_spoiled(weight, MAKE(), MHA_ERR_SHAPE, "weight", weight.ndim = 3);
    expect_spoiled(bias, MAKE(), MHA_ERR_SHAPE, "bias", bias.shape[0]++);
    expect_spoiled(bias, MAKE(), MHA_ERR_DTYPE, "bias", bias.dtype = MHA_BF16);
    if (m->inputs > 1)
        expect_spoiled(weight, MAKE(), MHA_ERR_STRIDE, "weight", weight.stride[1] = 2);
    expect_error(mha_linear_create_bf16(context, NULL, NULL, &linear), MHA_ERR_NULL, "weight");
    expect_error(mha_linear_create_bf16(NULL, &weight, NULL, &linear), MHA_ERR_NULL, "context");
    expect_ok(MAKE());
    expect_error(mha_linear_update(linear, &weight, NULL), MHA_ERR_NULL, "bias");
    mha_linear_destroy(linear);
    mha_transformer_source source = {.struct_size = sizeof source,
                                     .flags = MHA_SOURCE_PACK,
                                     .read = read_matrix,
                                     .compute = MHA_COMPUTE_BF16};
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .vocab_size = 3,
                                    .max_length = 4,
                                    .embed_dim = 32,
                                    .num_layers = 1,
                                    .num_heads = 1};
    mha_transformer *t = NULL;
    expect_error(mha_transformer_create_from(context, &d, &source, &t), MHA_ERR_ARGUMENT, "PACK");
    source.compute = MHA_COMPUTE_TILES;
    expect_error(mha_transformer_create_from(context, &d, &source, &t), MHA_ERR_ARGUMENT, "tiles");
    free(m);
}

RUN_TESTS(TEST(outputs_have_the_bits_of_the_definition), TEST(an_update_gives_other_numbers),
          TEST(misuse_is_refused))
