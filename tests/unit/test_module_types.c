/* Modules with borrowed weights, and modules of f16 and bf16, are bit-identical to modules with f32
 * parameters of the same numbers. */
#include "reference/half_reference.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/machines.h"
#include "support/module_call.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/module_backward.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { QUERY, KEY, VALUE, INPUTS };
enum { MOST = 12, GAP = 3 }; /* parameters; elements between rows */

/* The same numbers in memory of any type with gaps between rows, and in contiguous f32. */
typedef struct numbers {
    mha_tensor narrow, wide;
} numbers;

static mha_dtype some_type(rng *r)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    return RNG_PICK(r, types);
}

static void fill(const numbers *x, rng *r)
{
    const int last = x->wide.ndim - 1;
    const int64_t columns = x->wide.shape[last];
    int64_t count;
    expect_ok(mha_tensor_count(&x->wide, &count));
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = i / columns * (columns + GAP) + i % columns;
        const float value = 0.5f * rng_normal(r);
        float *wide = (float *)x->wide.data + i;
        if (x->narrow.dtype == MHA_F32) {
            ((float *)x->narrow.data)[at] = *wide = value;
            continue;
        }
        const uint16_t half = half_nearest(x->narrow.dtype, (double)value);
        ((uint16_t *)x->narrow.data)[at] = half;
        *wide = (float)half_value(x->narrow.dtype, half);
    }
}

static numbers numbers_make(rng *r, mha_dtype type, int ndim, const int64_t *shape)
{
    int64_t rows = 1, columns = shape[ndim - 1];
    for (int i = 0; i < ndim - 1; i++) rows *= shape[i];
    void *narrow = calloc((size_t)(rows * (columns + GAP)) + 1, sizeof(float));
    void *wide = calloc((size_t)(rows * columns) + 1, sizeof(float));
    assert_true(narrow && wide);
    numbers x = {.narrow = mha_tensor_contiguous(narrow, type, ndim, shape),
                 .wide = mha_tensor_contiguous(wide, MHA_F32, ndim, shape)};
    for (int64_t i = ndim - 2, stride = columns + GAP; i >= 0; stride *= shape[i--])
        x.narrow.stride[i] = stride;
    fill(&x, r);
    return x;
}

static void numbers_free(const numbers *x)
{
    free(x->narrow.data);
    free(x->wide.data);
}

/* Two modules of the same numbers, and calls to them. */
typedef struct pair {
    mha_module_desc desc;
    mha_module *plain, *other; /* f32 parameters by copy; any kind of parameters */
    int64_t B, T, S, count;
    numbers parameter[MOST], input[INPUTS], out;
    mha_attention_desc attention;
} pair;

static mha_module_desc some_desc(rng *r)
{
    mha_module_desc d = {.struct_size = sizeof d, .num_heads = rng_chance(r, 0.5) ? 2 : 4};
    d.head_dim = 2 * rng_between(r, 1, 12);
    d.embed_dim = rng_chance(r, 0.7) ? d.num_heads * d.head_dim : rng_between(r, 1, 300);
    if (rng_chance(r, 0.3)) d.kv_heads = d.num_heads / 2;
    if (rng_chance(r, 0.3)) d.key_dim = rng_between(r, 1, 300);
    for (uint32_t flag = 1; flag <= MHA_MODULE_QK_NORM; flag *= 2)
        if (rng_chance(r, 0.3)) d.flags |= flag;
    return d;
}

static void set_all(mha_module *module, const pair *x, bool narrow)
{
    mha_module_parameter p;
    for (int64_t i = 0; i < x->count; i++) {
        assert_true(mha_module_parameter_at(module, i, &p));
        expect_ok(mha_module_set_parameter(
            module, p.name, narrow ? &x->parameter[i].narrow : &x->parameter[i].wide));
    }
}

/* Borrows weights by the names of a state_dict. */
static void borrow_all(mha_module *module, const pair *x)
{
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++)
        if (p.ndim == 2)
            expect_ok(mha_module_borrow_parameter(module, p.name, &x->parameter[i].narrow));
}

static void pair_make(pair *x, mha_context *context, rng *r)
{
    mha_module_parameter p;
    *x = (pair){.desc = some_desc(r), .attention = {.struct_size = sizeof x->attention}};
    expect_ok(mha_module_create(context, &x->desc, &x->plain));
    expect_ok(mha_module_create(context, &x->desc, &x->other));
    mha_module_describe(x->plain, &x->desc);
    x->B = rng_between(r, 1, 3), x->T = rng_between(r, 1, 40), x->S = rng_between(r, 1, 40);
    if (rng_chance(r, 0.5)) x->attention.flags = MHA_ATTENTION_CAUSAL;
    for (; mha_module_parameter_at(x->plain, x->count, &p); x->count++)
        x->parameter[x->count] = numbers_make(r, some_type(r), p.ndim, p.shape);
    const int64_t shapes[INPUTS][3] = {{x->B, x->T, x->desc.embed_dim},
                                       {x->B, x->S, x->desc.key_dim},
                                       {x->B, x->S, x->desc.value_dim}};
    for (int i = 0; i < INPUTS; i++) x->input[i] = numbers_make(r, some_type(r), 3, shapes[i]);
    x->out = numbers_make(r, some_type(r), 3, shapes[QUERY]);
    set_all(x->plain, x, false);
    set_all(x->other, x, true);
}

static void pair_free(pair *x)
{
    mha_module_destroy(x->plain);
    mha_module_destroy(x->other);
    for (int64_t i = 0; i < x->count; i++) numbers_free(&x->parameter[i]);
    for (int i = 0; i < INPUTS; i++) numbers_free(&x->input[i]);
    numbers_free(&x->out);
}

static mha_module_call call_of(const pair *x, bool narrow)
{
    const mha_tensor *all[INPUTS + 1];
    for (int i = 0; i <= INPUTS; i++) {
        const numbers *each = i < INPUTS ? &x->input[i] : &x->out;
        all[i] = narrow ? &each->narrow : &each->wide;
    }
    return (mha_module_call){.struct_size = sizeof(mha_module_call),
                             .attention = &x->attention,
                             .query = all[QUERY],
                             .key = all[KEY],
                             .value = all[VALUE],
                             .out = all[INPUTS]};
}

/* The other module's out equals the plain module's out, rounded. */
static void expect_same(const pair *x)
{
    const mha_tensor *wide = &x->out.wide, *narrow = &x->out.narrow;
    const int64_t width = wide->shape[2], count = x->B * x->T * width;
    for (int64_t i = 0; i < count; i++) {
        const int64_t at = i / width * (width + GAP) + i % width;
        const float value = ((const float *)wide->data)[i];
        bool same;
        if (narrow->dtype == MHA_F32)
            same = memcmp((const float *)narrow->data + at, &value, sizeof value) == 0;
        else
            same = half_same(narrow->dtype, ((const uint16_t *)narrow->data)[at],
                             half_nearest(narrow->dtype, (double)value));
        if (!same)
            fail_msg("flags 0x%x, E %d, T %d, out %s: element %lld is not %.9g",
                     (unsigned)x->desc.flags, (int)x->desc.embed_dim, (int)x->T,
                     mha_dtype_name(narrow->dtype), (long long)i, (double)value);
    }
}

static void run_both(mha_context *context, const pair *x)
{
    const mha_module_call plain = call_of(x, false), other = call_of(x, true);
    expect_ok(mha_module_run(context, x->plain, &plain));
    expect_ok(mha_module_run(context, x->other, &other));
    expect_same(x);
}

/* ---- bits ------------------------------------------------------------------------------------ */

static void same_parameters(const pair *x)
{
    mha_module_parameter p;
    for (int64_t i = 0; i < x->count; i++) {
        assert_true(mha_module_parameter_at(x->other, i, &p));
        int64_t count;
        mha_tensor got = x->parameter[i].wide;
        expect_ok(mha_tensor_count(&got, &count));
        got.data = calloc((size_t)count + 1, sizeof(float));
        assert_non_null(got.data);
        expect_ok(mha_module_get_parameter(x->other, p.name, &got));
        assert_memory_equal(got.data, x->parameter[i].wide.data, (size_t)count * sizeof(float));
        free(got.data);
    }
}

static void types_and_borrowed_weights(void)
{
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        mha_context *context = machines_context(1 + i % 3, i);
        pair x;
        pair_make(&x, context, &r);
        run_both(context, &x); /* `other` has copies of tensors of any type */
        borrow_all(x.other, &x);
        run_both(context, &x);
        same_parameters(&x);
        for (int64_t j = 0; j < x.count; j++) fill(&x.parameter[j], &r); /* in place */
        set_all(x.plain, &x, false);
        mha_module_parameter p;
        for (int64_t j = 0; mha_module_parameter_at(x.other, j, &p); j++)
            if (p.ndim != 2)
                expect_ok(mha_module_set_parameter(x.other, p.name, &x.parameter[j].narrow));
        run_both(context, &x);
        set_all(x.other, &x, true); /* no parameter is borrowed now */
        for (int64_t j = 0; j < x.count; j++)
            memset(x.parameter[j].narrow.data, 0xFF, sizeof(uint16_t));
        run_both(context, &x);
        same_parameters(&x);
        pair_free(&x);
    }
}

/* A tensor that is query, key and value is converted once. */
static void self_attention(void)
{
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), 10000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        pair x;
        do { /* equal widths */
            pair_make(&x, context, &r);
            if (x.desc.key_dim == x.desc.embed_dim && x.desc.value_dim == x.desc.embed_dim) break;
            pair_free(&x);
        } while (true);
        mha_module_call plain = call_of(&x, false), other = call_of(&x, true);
        plain.key = plain.value = plain.query;
        other.key = other.value = other.query;
        expect_ok(mha_module_run(context, x.plain, &plain));
        expect_ok(mha_module_run(context, x.other, &other));
        expect_same(&x);
        pair_free(&x);
    }
}

/* ---- gradients ------------------------------------------------------------------------------- */

typedef struct gradients {
    mha_tensor q, k, v, heads, lse, query, weight[MOST];
    const mha_tensor *weights[MOST];
} gradients;

static mha_tensor zeros(int ndim, const int64_t *shape)
{
    mha_tensor x = mha_tensor_contiguous(NULL, MHA_F32, ndim, shape);
    int64_t count;
    expect_ok(mha_tensor_count(&x, &count));
    x.data = calloc((size_t)count + 1, sizeof(float));
    assert_non_null(x.data);
    return x;
}

static gradients differentiate(mha_context *context, const pair *x, bool narrow)
{
    const mha_module *module = narrow ? x->other : x->plain;
    const mha_module_desc *d = &x->desc;
    const int64_t H = d->num_heads, Hk = d->kv_heads, D = d->head_dim, Dv = d->value_head_dim;
    gradients g = {.q = zeros(4, (int64_t[]){x->B, H, x->T, D}),
                   .k = zeros(4, (int64_t[]){x->B, Hk, x->S, D}),
                   .v = zeros(4, (int64_t[]){x->B, Hk, x->S, Dv}),
                   .heads = zeros(4, (int64_t[]){x->B, H, x->T, Dv}),
                   .lse = zeros(3, (int64_t[]){x->B, H, x->T}),
                   .query = zeros(3, x->input[QUERY].wide.shape)};
    const mha_module_outputs outputs = {.struct_size = sizeof outputs,
                                        .q = &g.q,
                                        .k = &g.k,
                                        .v = &g.v,
                                        .heads = &g.heads,
                                        .lse = &g.lse};
    mha_module_call call = call_of(x, narrow);
    call.outputs = &outputs;
    for (int64_t i = 0; i < x->count; i++) {
        g.weight[i] = zeros(x->parameter[i].wide.ndim, x->parameter[i].wide.shape);
        g.weights[i] = &g.weight[i];
    }
    const mha_module_gradients wanted = {.struct_size = sizeof wanted,
                                         .query = &g.query,
                                         .parameters = g.weights,
                                         .parameters_count = x->count};
    expect_ok(mha_module_run(context, module, &call));
    /* The query serves as the gradient of out, in any type. */
    expect_ok(mha_module_backward(context, module, &call, call.query, &wanted));
    return g;
}

static void same_tensor(const mha_tensor *a, const mha_tensor *b)
{
    int64_t count;
    expect_ok(mha_tensor_count(a, &count));
    assert_memory_equal(a->data, b->data, (size_t)count * sizeof(float));
    free(a->data);
    free(b->data);
}

static void gradients_of_types(void)
{
    for (int i = 0; i < rng_cases(30, 500); i++) {
        rng r = rng_make(rng_run_seed(), 20000 + (uint64_t)i);
        mha_context *context = machines_context(1 + i % 2, i);
        pair x;
        pair_make(&x, context, &r);
        if (i % 3) borrow_all(x.other, &x);
        const gradients a = differentiate(context, &x, false), b = differentiate(context, &x, true);
        same_tensor(&a.q, &b.q);
        same_tensor(&a.k, &b.k);
        same_tensor(&a.v, &b.v);
        same_tensor(&a.heads, &b.heads);
        same_tensor(&a.lse, &b.lse);
        same_tensor(&a.query, &b.query);
        for (int64_t j = 0; j < x.count; j++) same_tensor(&a.weight[j], &b.weight[j]);
        pair_free(&x);
    }
}

/* ---- errors, memory -------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    const mha_module_desc d = {.struct_size = sizeof d, .embed_dim = 8, .num_heads = 2};
    mha_module *m;
    expect_ok(mha_module_create(machines_context(1, 0), &d, &m));
    float memory[24 * 8] = {0};
    mha_tensor w = mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){8, 8});
    mha_tensor b = mha_tensor_contiguous(memory, MHA_F32, 1, (int64_t[]){8});
    const char *name = "out_proj.weight";
#define ROW(...) expect_spoiled(w, mha_module_borrow_parameter(m, name, &w), __VA_ARGS__)
    expect_error(mha_module_borrow_parameter(NULL, name, &w), MHA_ERR_NULL, "module");
    expect_error(mha_module_borrow_parameter(m, NULL, &w), MHA_ERR_NULL, "name");
    expect_error(mha_module_borrow_parameter(m, name, NULL), MHA_ERR_NULL, name);
    expect_error(mha_module_borrow_parameter(m, "W_o", &w), MHA_ERR_ARGUMENT, "W_o");
    expect_error(mha_module_borrow_parameter(m, "out_proj.bias", &b), MHA_ERR_ARGUMENT,
                 "only weights");
    ROW(MHA_ERR_SHAPE, "dim 1 is 7", w.shape[1] = 7);
    ROW(MHA_ERR_DTYPE, "i8", w.dtype = MHA_I8);
    ROW(MHA_ERR_STRIDE, "last axis", w.stride[1] = 2);
    ROW(MHA_ERR_NULL, "data", w.data = NULL);
    ROW(MHA_ERR_DTYPE, "99 is not an element type", w.dtype = (mha_dtype)99);
    w.dtype = (mha_dtype)99;
    expect_error(mha_module_set_parameter(m, name, &w), MHA_ERR_DTYPE, "99");
    expect_error(mha_module_get_parameter(m, name, &w), MHA_ERR_DTYPE, "99");
    w.dtype = MHA_F64;
    expect_error(mha_module_set_parameter(m, name, &w), MHA_ERR_DTYPE, "f64");
    w.dtype = MHA_BF16;
    expect_error(mha_module_get_parameter(m, name, &w), MHA_ERR_DTYPE, "bf16");
    w.dtype = MHA_F32;
    mha_tensor in = mha_tensor_contiguous(memory, MHA_I32, 3, (int64_t[]){1, 2, 8}), out = in;
    out.data = memory + 32, out.dtype = MHA_F16;
    expect_error(
        mha_module_run(machines_context(1, 0), m, MODULE_CALL(NULL, &in, &in, &in, &out, NULL)),
        MHA_ERR_DTYPE, "query");
    in.dtype = MHA_F16, out.data = memory + 4; /* within the query's 32 bytes */
    expect_error(
        mha_module_run(machines_context(1, 0), m, MODULE_CALL(NULL, &in, &in, &in, &out, NULL)),
        MHA_ERR_OVERLAP, "out");
#undef ROW
    mha_module_destroy(m);
}

/* With the scratch reported by mha_module_scratch(), nothing is allocated. */
static void scratch_account(void)
{
    for (int i = 0; i < rng_cases(20, 200); i++) {
        rng r = rng_make(rng_run_seed(), 30000 + (uint64_t)i);
        failing_alloc memory = failing_alloc_make();
        mha_context *context;
        expect_ok(failing_context(&memory, 2, MHA_ISA_AUTO, &context));
        pair x;
        pair_make(&x, machines_context(1, 0), &r);
        borrow_all(x.other, &x);
        const mha_module_call call = call_of(&x, true);
        size_t bytes = 0;
        expect_ok(mha_module_scratch(context, x.other, &call, &bytes));
        expect_ok(mha_context_reserve(context, bytes));
        const int64_t calls = memory.calls;
        expect_ok(mha_module_run(context, x.other, &call));
        assert_int_equal(memory.calls, calls);
        pair_free(&x);
        mha_context_destroy(context);
        assert_int_equal(memory.live, 0);
    }
}

/* Every allocation fails once. A parameter whose copy fails remains borrowed, and a call that fails
 * does not write out. */
static mha_status set_or_run(mha_context *context, failing_alloc *memory, void *user)
{
    const bool sets = *(const bool *)user;
    rng r = rng_make(3, 3);
    pair x;
    pair_make(&x, context, &r);
    borrow_all(x.other, &x);
    const mha_module_call call = call_of(&x, true);
    memset(x.out.narrow.data, 0x55, sizeof(float));
    uint32_t first;
    failing_from_here(memory);
    mha_module_parameter p;
    assert_true(mha_module_parameter_at(x.other, 0, &p));
    mha_status status;
    if (sets)
        status = mha_module_set_parameter(x.other, p.name, &x.parameter[0].narrow);
    else
        status = mha_module_run(context, x.other, &call);
    memcpy(&first, x.out.narrow.data, sizeof first);
    if (!sets && status != MHA_OK) assert_int_equal(first, 0x55555555);
    if (sets) run_both(machines_context(1, 0), &x);
    pair_free(&x);
    return status;
}

static void failed_allocations_are_reported(void)
{
    bool sets = true;
    assert_true(failing_each(set_or_run, &sets) > 0);
    sets = false;
    assert_true(failing_each(set_or_run, &sets) > 0);
}

RUN_TESTS(TEST(types_and_borrowed_weights), TEST(self_attention), TEST(gradients_of_types),
          TEST(misuse_is_refused), TEST(scratch_account), TEST(failed_allocations_are_reported))
