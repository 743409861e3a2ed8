/* Gradients of the module: each is compared with differences of the loss along random directions,
 * for random modules and calls. Bits do not depend on threads or other requested gradients. Further
 * tests are for strides and misuse. tests/python/test_module_backward_torch.py compares numbers
 * with PyTorch in double precision. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/module_backward.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 2048, PARAMETERS = 12, GAP = 3 };
enum { QUERY, KEY, VALUE, INPUTS };
enum { Q, K, V, HEADS, LSE, P, KEPT };

/* A random module, call and gradient of out. The loss is sum(out_gradient * out). Some examples add
 * sums of gradients times lse and probabilities. */
typedef struct example {
    mha_module_desc desc;
    mha_module *module;
    mha_attention_desc attention;
    mha_module_call call;
    mha_module_outputs outputs;
    int64_t B, T, S, count; /* number of parameters */
    int64_t query_starts[3], key_starts[3];
    float input[INPUTS][ROOM], out[ROOM], upper[ROOM], kept[KEPT][ROOM], value[PARAMETERS][ROOM];
    float of_lse[ROOM], of_p[ROOM];
    bool loss_of_lse, loss_of_p;
    mha_tensor of_lse_view, of_p_view;
    mha_attention_gradients inner;
    mha_tensor inputs[INPUTS], kept_view[KEPT], out_view, upper_view, parameter[PARAMETERS];
} example;

typedef struct gradients {
    float input[INPUTS][ROOM], value[PARAMETERS][ROOM];
    mha_tensor inputs[INPUTS], parameter[PARAMETERS];
    const mha_tensor *parameters[PARAMETERS];
    mha_module_gradients g;
} gradients;

static void fill(rng *r, float *x, double factor)
{
    for (int i = 0; i < ROOM; i++) x[i] = (float)((double)rng_normal(r) * factor);
}

static mha_module_desc some_desc(rng *r)
{
    mha_module_desc d = {.struct_size = sizeof d,
                         .embed_dim = rng_between(r, 1, 9),
                         .num_heads = rng_chance(r, 0.5) ? 2 : 4,
                         .head_dim = 2 * rng_between(r, 1, 3)};
    if (rng_chance(r, 0.4)) d.kv_heads = d.num_heads / 2;
    if (rng_chance(r, 0.4)) d.value_head_dim = rng_between(r, 1, 5);
    if (rng_chance(r, 0.4)) d.key_dim = rng_between(r, 1, 9);
    if (rng_chance(r, 0.4)) d.value_dim = rng_between(r, 1, 9);
    for (uint32_t flag = 1; flag <= MHA_MODULE_QK_NORM; flag *= 2)
        if (rng_chance(r, 0.4)) d.flags |= flag;
    return d;
}

static void some_attention(example *e, rng *r)
{
    mha_attention_desc *a = &e->attention;
    a->struct_size = sizeof *a;
    if (rng_chance(r, 0.3)) a->flags |= MHA_ATTENTION_CAUSAL, a->q_offset = rng_between(r, -2, 4);
    if (rng_chance(r, 0.3)) a->softcap = 2;
    if (rng_chance(r, 0.3)) a->dropout = 0.3f, a->dropout_seed = rng_next(r);
    if (e->B == 1 && rng_chance(r, 0.4)) { /* two concatenated sequences */
        e->query_starts[1] = e->T / 2, e->query_starts[2] = e->T;
        e->key_starts[1] = e->S / 3, e->key_starts[2] = e->S;
        a->query_starts = e->query_starts, a->key_starts = e->key_starts, a->sequences = 2;
    }
}

/* A tensor [B,L,width] with random gaps between rows and sequences. */
static mha_tensor rows(rng *r, float *data, int64_t batch, int64_t length, int64_t width)
{
    mha_tensor x = mha_tensor_contiguous(data, MHA_F32, 3, (int64_t[]){batch, length, width});
    if (rng_chance(r, 0.5)) x.stride[1] += GAP, x.stride[0] += (length + 1) * GAP;
    return x;
}

static void make_views(example *e, rng *r)
{
    const mha_module_desc *d = &e->desc;
    const int64_t B = e->B, T = e->T, S = e->S, H = d->num_heads, Hk = d->kv_heads;
    e->inputs[QUERY] = rows(r, e->input[QUERY], B, T, d->embed_dim);
    e->inputs[KEY] = rows(r, e->input[KEY], B, S, d->key_dim);
    e->inputs[VALUE] = rows(r, e->input[VALUE], B, S, d->value_dim);
    e->out_view = rows(r, e->out, B, T, d->embed_dim);
    e->upper_view = rows(r, e->upper, B, T, d->embed_dim);
    const bool ragged = e->attention.query_starts != NULL;
    const int64_t columns = ragged ? e->S - e->S / 3 : S; /* the longer one */
    const bool extra = d->flags & (MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN);
    const int64_t shapes[KEPT][4] = {{B, H, T, d->head_dim},
                                     {B, Hk, S, d->head_dim},
                                     {B, Hk, S, d->value_head_dim},
                                     {B, H, T, d->value_head_dim},
                                     {B, H, T},
                                     {B, H, T, columns}};
    for (int i = 0; i < KEPT; i++)
        e->kept_view[i] = mha_tensor_contiguous(e->kept[i], MHA_F32, i == LSE ? 3 : 4, shapes[i]);
    e->outputs = (mha_module_outputs){.struct_size = sizeof e->outputs,
                                      .q = &e->kept_view[Q],
                                      .k = &e->kept_view[K],
                                      .v = &e->kept_view[V],
                                      .heads = &e->kept_view[HEADS],
                                      .lse = &e->kept_view[LSE]};
    e->loss_of_lse = rng_chance(r, 0.5);
    e->loss_of_p = !extra && rng_chance(r, 0.5);
    if (e->loss_of_p) e->outputs.probabilities = &e->kept_view[P];
    e->of_lse_view = e->kept_view[LSE], e->of_lse_view.data = e->of_lse;
    e->of_p_view = e->kept_view[P], e->of_p_view.data = e->of_p;
    e->inner =
        (mha_attention_gradients){.struct_size = sizeof e->inner,
                                  .lse_gradient = e->loss_of_lse ? &e->of_lse_view : NULL,
                                  .probabilities_gradient = e->loss_of_p ? &e->of_p_view : NULL};
    e->call = (mha_module_call){.struct_size = sizeof e->call,
                                .attention = &e->attention,
                                .query = &e->inputs[QUERY],
                                .key = &e->inputs[KEY],
                                .value = &e->inputs[VALUE],
                                .out = &e->out_view,
                                .outputs = &e->outputs};
}

static example *example_make(mha_context *context, rng *r)
{
    example *e = calloc(1, sizeof *e);
    assert_non_null(e);
    e->desc = some_desc(r);
    expect_ok(mha_module_create(context, &e->desc, &e->module));
    mha_module_describe(e->module, &e->desc);
    e->B = rng_between(r, 1, 3), e->T = rng_between(r, 1, 9), e->S = rng_between(r, 1, 12);
    some_attention(e, r);
    for (int i = 0; i < INPUTS; i++) fill(r, e->input[i], 1);
    fill(r, e->upper, 1);
    fill(r, e->of_lse, 1);
    fill(r, e->of_p, 1);
    make_views(e, r);
    mha_module_parameter p;
    for (; mha_module_parameter_at(e->module, e->count, &p); e->count++) {
        fill(r, e->value[e->count], 0.5);
        e->parameter[e->count] =
            mha_tensor_contiguous(e->value[e->count], MHA_F32, p.ndim, p.shape);
        expect_ok(mha_module_set_parameter(e->module, p.name, &e->parameter[e->count]));
    }
    return e;
}

static void example_free(example *e)
{
    mha_module_destroy(e->module);
    free(e);
}

/* The sum of a contiguous output times its gradient, or of the magnitudes of these products.
 * Gradients of an lse of -inf (no key) are not read. */
static double product_of(const mha_tensor *x, const float *gradient, bool sizes)
{
    double sum = 0;
    int64_t count;
    expect_ok(mha_tensor_count(x, &count));
    for (int64_t i = 0; i < count; i++) {
        const float value = ((const float *)x->data)[i];
        const double product = value == -INFINITY ? 0 : (double)value * (double)gradient[i];
        sum += sizes ? fabs(product) : product;
    }
    return sum;
}

static double loss_of(mha_context *context, example *e)
{
    double loss = 0;
    expect_ok(mha_module_run(context, e->module, &e->call));
    for (int64_t i = 0; i < e->B * e->T; i++) {
        const int64_t b = i / e->T, t = i % e->T;
        const float *o = e->out + b * e->out_view.stride[0] + t * e->out_view.stride[1];
        const float *g = e->upper + b * e->upper_view.stride[0] + t * e->upper_view.stride[1];
        for (int64_t j = 0; j < e->desc.embed_dim; j++) loss += (double)o[j] * (double)g[j];
    }
    return loss + (e->loss_of_lse ? product_of(&e->kept_view[LSE], e->of_lse, false) : 0) +
           (e->loss_of_p ? product_of(&e->kept_view[P], e->of_p, false) : 0);
}

static void gradients_make(gradients *g, const example *e)
{
    memset(g, 0, sizeof *g);
    for (int i = 0; i < INPUTS; i++) {
        g->inputs[i] = e->inputs[i];
        g->inputs[i].data = g->input[i];
    }
    for (int64_t i = 0; i < e->count; i++) {
        g->parameter[i] = e->parameter[i];
        g->parameter[i].data = g->value[i];
        g->parameters[i] = &g->parameter[i];
    }
    g->g = (mha_module_gradients){.struct_size = sizeof g->g,
                                  .query = &g->inputs[QUERY],
                                  .key = &g->inputs[KEY],
                                  .value = &g->inputs[VALUE],
                                  .parameters = g->parameters,
                                  .parameters_count = e->count,
                                  .attention = &e->inner};
}

/* ---- slopes -------------------------------------------------------------------------------- */

/* The loss at x = start + h direction. */
static double loss_at(mha_context *context, example *e, float *x, const float *start,
                      const double *direction, double h, int64_t parameter)
{
    mha_module_parameter p;
    for (int i = 0; i < ROOM; i++) x[i] = (float)((double)start[i] + h * direction[i]);
    if (parameter >= 0) {
        assert_true(mha_module_parameter_at(e->module, parameter, &p));
        expect_ok(mha_module_set_parameter(e->module, p.name, &e->parameter[parameter]));
    }
    return loss_of(context, e);
}

/* Compares with the slope of the loss along a random direction, like test_transformer.c:
 * differences at h and 2 h cancel the h^2 term of their error (Richardson), and their difference
 * measures the remaining error. Each loss is an f32 sum with an error of about 4e-7 of its
 * terms. */
static void check_slope(mha_context *context, example *e, rng *r, float *x, const float *gradient,
                        int64_t parameter, double *worst)
{
    static double direction[ROOM];
    static float start[ROOM];
    const double h = 1e-3; /* well below the width of a normalised query of small length */
    double slope = 0, norm = 0, size = 0, loss[4];
    memcpy(start, x, sizeof start);
    for (int i = 0; i < ROOM; i++) direction[i] = gradient[i] != 0 ? (double)rng_normal(r) : 0;
    for (int i = 0; i < ROOM; i++) norm += direction[i] * direction[i];
    for (int i = 0; i < ROOM && norm > 0; i++) {
        direction[i] /= sqrt(norm);
        slope += direction[i] * (double)gradient[i];
    }
    for (int i = 0; i < 4; i++)
        loss[i] =
            loss_at(context, e, x, start, direction, (double[]){-2, -1, 1, 2}[i] * h, parameter);
    loss_at(context, e, x, start, direction, 0, parameter);
    for (int i = 0; i < ROOM; i++) size += fabs((double)e->out[i] * (double)e->upper[i]);
    if (e->loss_of_lse) size += product_of(&e->kept_view[LSE], e->of_lse, true);
    if (e->loss_of_p) size += product_of(&e->kept_view[P], e->of_p, true);
    double near = (loss[2] - loss[1]) / (2 * h), far = (loss[3] - loss[0]) / (4 * h);
    double numeric = (4 * near - far) / 3;
    double bound = 4e-7 * (1 + size) / h + 5e-4 * fabs(slope) + 0.5 * fabs(far - near);
    *worst = fmax(*worst, fabs(numeric - slope) / bound);
    if (fabs(numeric - slope) > bound)
        fail_msg("flags 0x%x, parameter %d: slope %.6g by differences, %.6g by gradients (bound "
                 "%.2g)",
                 (unsigned)e->desc.flags, (int)parameter, numeric, slope, bound);
}

static void gradients_are_slopes(void)
{
    double worst = 0;
    for (int i = 0; i < rng_cases(60, 2000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = machines_context(2, i);
        example *e = example_make(context, &r);
        gradients *g = malloc(sizeof *g);
        assert_non_null(g);
        gradients_make(g, e);
        loss_of(context, e);
        expect_ok(mha_module_backward(context, e->module, &e->call, &e->upper_view, &g->g));
        for (int k = 0; k < INPUTS; k++)
            check_slope(context, e, &r, e->input[k], g->input[k], -1, &worst);
        for (int64_t k = 0; k < e->count; k++)
            check_slope(context, e, &r, e->value[k], g->value[k], k, &worst);
        free(g);
        example_free(e);
    }
    printf("  largest difference of slopes / bound %.3f\n", worst);
    if (rng_whole_sample()) assert_true(worst > 0.01);
}

/* ---- bits ---------------------------------------------------------------------------------- */

/* The bits are the same on 1, 2 and 8 threads, and for a single gradient. No write is beyond the
 * views. */
static void threads_and_wishes_change_no_bit(void)
{
    gradients *g = calloc(4, sizeof *g);
    assert_non_null(g);
    for (int i = 0; i < rng_cases(16, 200); i++) {
        for (int j = 0; j < 4; j++) {
            machines all = machines_make(j == 1 ? 2 : j == 2 ? 8 : 1);
            mha_context *context = all.each[0].context;
            rng r = rng_make(rng_run_seed(), 5000 + (uint64_t)i);
            example *e = example_make(context, &r);
            gradients_make(&g[j], e);
            loss_of(context, e);
            if (j == 3) { /* only gradients of the keys and of the second parameter */
                g[j].g.query = g[j].g.value = NULL;
                for (int64_t k = 0; k < e->count; k++)
                    if (k != 1) g[j].parameters[k] = NULL;
            }
            expect_ok(mha_module_backward(context, e->module, &e->call, &e->upper_view, &g[j].g));
            assert_memory_equal(g[j].input[KEY], g[0].input[KEY], sizeof g[0].input[KEY]);
            assert_memory_equal(g[j].value[1], g[0].value[1], sizeof g[0].value[1]);
            if (j < 3) {
                assert_memory_equal(g[j].input, g[0].input, sizeof g[0].input);
                assert_memory_equal(g[j].value, g[0].value, sizeof g[0].value);
            }
            example_free(e);
        }
    }
    free(g);
}

/* ---- misuse -------------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    mha_context *x = machines_context(1, 0);
    rng r = rng_make(1, 1);
    example *e = NULL;
    do { /* an ordinary module with a learned key */
        if (e) example_free(e);
        e = example_make(x, &r);
    } while (e->desc.flags != MHA_MODULE_BIAS_KV);
    gradients *g = malloc(sizeof *g);
    assert_non_null(g);
    gradients_make(g, e);
    loss_of(x, e);
#define BACKWARD(upper) mha_module_backward(x, e->module, &e->call, upper, &g->g)
#define ROW(...) expect_spoiled(*e, BACKWARD(&e->upper_view), __VA_ARGS__)
#define GRADIENT_ROW(...) expect_spoiled(*g, BACKWARD(&e->upper_view), __VA_ARGS__)
    expect_error(BACKWARD(NULL), MHA_ERR_NULL, "out_gra");
    ROW(MHA_ERR_NULL, "outputs is NULL", e->call.outputs = NULL);
    ROW(MHA_ERR_NULL, "lse: is NULL", e->outputs.lse = NULL);
    ROW(MHA_ERR_SHAPE, "q: dim 2", e->kept_view[Q].shape[2]++);
    ROW(MHA_ERR_SHAPE, "7 dimensions, expected 0 to 6", e->kept_view[Q].ndim = MHA_MAX_DIMS + 1);
    ROW(MHA_ERR_SHAPE, "expected 0 to 6", e->kept_view[Q].ndim = INT32_MAX);
    ROW(MHA_ERR_SHAPE, "out_gradient: dim 1", e->upper_view.shape[1]++);
    GRADIENT_ROW(MHA_ERR_SHAPE, "key gradient: dim 0", g->inputs[KEY].shape[0]++);
    GRADIENT_ROW(MHA_ERR_UNSUPPORTED, "flags 0x2", g->g.flags = 2);
    GRADIENT_ROW(MHA_ERR_ARGUMENT, "no number", g->g.parameters_count = e->count + 1);
    GRADIENT_ROW(MHA_ERR_ARGUMENT, "is 99", g->g.parameters_count = 99);
    GRADIENT_ROW(MHA_ERR_SHAPE, "dim 0", g->parameter[0].shape[0]++);
    GRADIENT_ROW(MHA_ERR_OVERLAP, "an input", g->inputs[QUERY].data = e->upper);
    GRADIENT_ROW(MHA_ERR_OVERLAP, "another gradient", g->inputs[VALUE].data = g->input[KEY]);
    mha_attention_gradients inner = {.struct_size = sizeof inner};
    g->g.attention = &inner;
#define INNER_ROW(...) expect_spoiled(inner, BACKWARD(&e->upper_view), __VA_ARGS__)
    INNER_ROW(MHA_ERR_UNSUPPORTED, "bias_k", inner.scale = &e->kept_view[Q]);
    INNER_ROW(MHA_ERR_ARGUMENT, "q, k and v", inner.q = &e->kept_view[Q]);
    INNER_ROW(MHA_ERR_UNSUPPORTED, "columns", inner.probabilities_gradient = &e->of_p_view);
    INNER_ROW(MHA_ERR_SHAPE, "lse_gradient", inner.lse_gradient = &e->of_p_view);
    INNER_ROW(MHA_ERR_OVERLAP, "an input", inner.lse_gradient = &g->inputs[QUERY]);
    INNER_ROW(MHA_ERR_ARGUMENT, "bias", inner.bias = &e->kept_view[Q]);
    for (int i = 0; i < ROOM; i++)
        assert_true(g->input[QUERY][i] == 0 && g->value[0][i] == 0); /* no gradient is written */
    g->g.attention = NULL;
    expect_ok(BACKWARD(&e->upper_view));
#undef BACKWARD
#undef ROW
#undef GRADIENT_ROW
#undef INNER_ROW
    free(g);
    example_free(e);
}

static void no_gradient(void)
{
    mha_context *x = machines_context(1, 0);
    rng r = rng_make(1, 2);
    example *e = example_make(x, &r);
    gradients *g = malloc(sizeof *g);
    assert_non_null(g);
    mha_module_destroy(e->module);
    e->desc = (mha_module_desc){.struct_size = sizeof e->desc,
                                .flags = MHA_MODULE_QK_NORM,
                                .qk_norm = MHA_QK_NORM_L2,
                                .embed_dim = 4,
                                .num_heads = 2};
    expect_ok(mha_module_create(x, &e->desc, &e->module));
    mha_module_describe(e->module, &e->desc);
    e->attention = (mha_attention_desc){.struct_size = sizeof e->attention};
    make_views(e, &r);
    e->count = 0;
    gradients_make(g, e);
    expect_error(mha_module_backward(x, e->module, &e->call, &e->upper_view, &g->g),
                 MHA_ERR_UNSUPPORTED, "MHA_QK_NORM_L2");
    mha_kv_cache *cache;
    expect_ok(mha_module_cache_create(x, e->module, e->B, 4, &cache));
    e->call.cache = cache;
    expect_error(mha_module_backward(x, e->module, &e->call, &e->upper_view, &g->g),
                 MHA_ERR_ARGUMENT, "cache");
    mha_kv_cache_destroy(cache);
    free(g);
    example_free(e);
}

/* Every allocation fails once, with an error and without a leak. */
static mha_status backward_once(mha_context *context, failing_alloc *memory, void *user)
{
    rng r = rng_make(3, 3);
    example *e = example_make(context, &r);
    gradients *g = malloc(sizeof *g);
    assert_non_null(g);
    (void)user;
    gradients_make(g, e);
    loss_of(machines_context(1, 0), e);
    failing_from_here(memory);
    const mha_status status =
        mha_module_backward(context, e->module, &e->call, &e->upper_view, &g->g);
    free(g);
    example_free(e);
    return status;
}

static void failed_allocations_are_reported(void)
{
    assert_true(failing_each(backward_once, NULL) > 0);
}

RUN_TESTS(TEST(gradients_are_slopes), TEST(threads_and_wishes_change_no_bit),
          TEST(misuse_is_refused), TEST(no_gradient), TEST(failed_allocations_are_reported))
