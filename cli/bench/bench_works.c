/* The works: attention forward, backward and decoding, the module, a linear layer. Each work
 * creates its tensors, counts the operations and bytes of a run, and runs. */
#include "bench/bench.h"

#include "common/arena.h"

#include <multihead/backward.h>
#include <multihead/component.h>

#include <stdio.h>
#include <string.h>

const char *bench_kind_name(bench_kind kind)
{
    static const char *const names[] = {
#define KIND_NAME(name, value, text, what) [value] = text,
        BENCH_KIND_LIST(KIND_NAME)
#undef KIND_NAME
    };
    return kind < BENCH_KINDS ? names[kind] : "?";
}

/* Data that must come from memory has copies of this many bytes in total, more than caches hold. */
static const double cold_bytes = 512e6;
enum { MOST_COPIES = 64, BLOCK = 64, PADDING = 100 };

static int64_t copies_of(double bytes)
{
    const double copies = cold_bytes / bytes;
    return copies < 1 ? 1 : copies > MOST_COPIES ? MOST_COPIES : (int64_t)copies;
}

/* Numbers in -0.5 .. 0.5 that are the same in every run. NULL: out of memory. */
static float *some_floats(int64_t count)
{
    float *x = count > 0 ? arena_try(count, sizeof *x) : NULL;
    uint32_t state = 1;
    for (int64_t i = 0; x && i < count; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    return x;
}

static cli_exit too_large(const char *what)
{
    return cli_fail(CLI_NO_MEMORY, "out of memory: %s of these sizes; choose smaller ones", what);
}

/* ---- attention, its gradients, decoding ------------------------------------------------------ */

typedef struct attention_work {
    mha_context *context;
    bench_shape shape;
    mha_attention_desc desc;
    mha_tensor q, o, lse, dout, dq, dk, dv, extra;
    mha_tensor k[MOST_COPIES], v[MOST_COPIES];
    mha_kv_cache *cache[MOST_COPIES];
    int64_t copies, lengths[16];
    void *mask;
} attention_work;

/* The next tensor in the memory that starts at *at. */
static mha_tensor take(float **at, const bench_shape *s, int64_t heads, int64_t rows)
{
    const int64_t size = s->head_dim;
    mha_tensor x = mha_tensor_contiguous(*at, MHA_F32, 4, (int64_t[]){s->batch, heads, rows, size});
    if (s->by_token) {
        x = mha_tensor_contiguous(*at, MHA_F32, 4, (int64_t[]){s->batch, rows, heads, size});
        const int64_t stride = x.stride[1];
        x.shape[1] = heads, x.shape[2] = rows;
        x.stride[1] = x.stride[2], x.stride[2] = stride;
    }
    *at += s->batch * heads * rows * size;
    return x;
}

/* Convert to bf16 in place. */
static void narrow(mha_tensor *x)
{
    const int64_t count = x->shape[0] * x->shape[1] * x->shape[2] * x->shape[3];
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, (const float *)x->data + i, sizeof bits);
        const uint16_t half = (uint16_t)(bits >> 16);
        memcpy((uint16_t *)x->data + i, &half, sizeof half);
    }
    x->dtype = MHA_BF16;
}

static void narrow_tensors(attention_work *w, int64_t stored)
{
    narrow(&w->q);
    narrow(&w->o);
    for (int64_t i = 0; i < stored; i++) {
        narrow(&w->k[i]);
        narrow(&w->v[i]);
    }
}

static cli_exit make_tensors(attention_work *w)
{
    const bench_shape *s = &w->shape;
    const bool backward = s->kind == BENCH_BACKWARD;
    const int64_t queries = s->batch * s->heads * s->queries * s->head_dim;
    const int64_t keys = s->batch * s->kv_heads * s->keys * s->head_dim;
    const int64_t rows = s->batch * s->heads * s->queries, stored = s->cache ? 1 : w->copies;
    const bool countable = queries < INT64_MAX / 32 && keys < INT64_MAX / 32 / stored;
    float *at = NULL;
    if (countable)
        at = some_floats((backward ? 4 : 2) * queries + (backward ? 4 : 2 * stored) * keys + rows);
    if (!at) return too_large("tensors");
    w->q = take(&at, s, s->heads, s->queries);
    w->o = take(&at, s, s->heads, s->queries);
    for (int64_t i = 0; i < stored; i++) {
        w->k[i] = take(&at, s, s->kv_heads, s->keys);
        w->v[i] = take(&at, s, s->kv_heads, s->keys);
    }
    if (backward) {
        w->dout = take(&at, s, s->heads, s->queries);
        w->dq = take(&at, s, s->heads, s->queries);
        w->dk = take(&at, s, s->kv_heads, s->keys);
        w->dv = take(&at, s, s->kv_heads, s->keys);
    }
    w->lse = mha_tensor_contiguous(at, MHA_F32, 3, (int64_t[]){s->batch, s->heads, s->queries});
    if (s->compute == MHA_COMPUTE_BF16) narrow_tensors(w, stored);
    return CLI_OK;
}

/* Keep a fifth of the blocks: the diagonal, and others at random. Returns the share. */
static double some_blocks(uint8_t *keep, int64_t rows, int64_t columns)
{
    uint32_t state = 7;
    int64_t kept = 0;
    for (int64_t i = 0; i < rows * columns; i++) {
        state = state * 1664525u + 1013904223u;
        keep[i] = i / columns == i % columns || (state >> 8) < (1u << 24) / 5;
        kept += keep[i];
    }
    return (double)kept / (double)(rows * columns);
}

static double mask_blocks(attention_work *w)
{
    const int64_t rows = (w->shape.queries + BLOCK - 1) / BLOCK;
    const int64_t columns = (w->shape.keys + BLOCK - 1) / BLOCK;
    w->mask = arena_try(rows * columns, 1);
    if (!w->mask) return 0;
    w->extra = mha_tensor_contiguous(w->mask, MHA_U8, 4, (int64_t[]){1, 1, rows, columns});
    w->desc.keep_blocks = &w->extra;
    w->desc.block_queries = w->desc.block_keys = BLOCK;
    return some_blocks(w->mask, rows, columns);
}

static double mask_dense(attention_work *w)
{
    const int64_t rows = w->shape.queries, columns = w->shape.keys, pairs = rows * columns;
    const bool bias = w->shape.mask == BENCH_MASK_BIAS;
    w->mask = bias ? (void *)some_floats(pairs) : arena_try(pairs, 1);
    if (!w->mask) return 0;
    w->extra = mha_tensor_contiguous(w->mask, bias ? MHA_F32 : MHA_U8, 4,
                                     (int64_t[]){1, 1, rows, columns});
    for (int64_t i = 0; !bias && i < pairs; i++) ((uint8_t *)w->mask)[i] = i % 7 != 0;
    if (bias)
        w->desc.bias = &w->extra;
    else
        w->desc.keep_mask = &w->extra;
    return 1; /* every tile is computed */
}

/* Pairs of a causal window of `window` keys: the first rows have fewer. */
static double window_pairs(double rows, double window)
{
    return rows <= window ? rows * (rows + 1) / 2 : window * rows - window * (window - 1) / 2;
}

/* Set the mask in w->desc; returns the share of pairs that it keeps, 0: out of memory. */
static double set_mask(attention_work *w)
{
    const bench_shape *s = &w->shape;
    const double n = (double)s->queries, all = n * (double)s->keys;
    switch (s->mask) {
    case BENCH_MASK_FULL: return 1;
    case BENCH_MASK_CAUSAL:
        w->desc.flags |= MHA_ATTENTION_CAUSAL;
        w->desc.q_offset = s->keys - s->queries;
        return (n * (n + 1) / 2 + n * (double)(s->keys - s->queries)) / all;
    case BENCH_MASK_WINDOW:
        w->desc.flags |= MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW;
        w->desc.left_keys = s->window - 1;
        return window_pairs(n, (double)s->window) / all;
    case BENCH_MASK_BLOCKS: return mask_blocks(w);
    case BENCH_MASK_LENGTHS:
        for (int64_t b = 0; b < s->batch; b++) w->lengths[b] = s->keys - PADDING;
        w->desc.key_lengths = w->lengths;
        return (double)(s->keys - PADDING) / (double)s->keys;
    case BENCH_MASK_KEEP:
    case BENCH_MASK_BIAS: return mask_dense(w);
    }
    return 0;
}

ARENA_RELEASE(destroy_cache, mha_kv_cache_destroy)

static mha_dtype cache_type(bench_cache cache)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F32, MHA_F16, MHA_BF16, MHA_I8};
    return types[cache];
}

static cli_exit fill_caches(attention_work *w)
{
    const bench_shape *s = &w->shape;
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = s->batch,
                                    .kv_heads = s->kv_heads,
                                    .capacity = s->keys,
                                    .head_dim = s->head_dim,
                                    .type = cache_type(s->cache),
                                    .page_size = s->page};
    for (int64_t i = 0; i < w->copies; i++) {
        CLI_TRY(cli_check(mha_kv_cache_create(w->context, &desc, &w->cache[i])));
        CLI_TRY(arena_keep(w->cache[i], destroy_cache));
        CLI_TRY(cli_check(mha_kv_cache_append(w->cache[i], &w->k[0], &w->v[0], NULL)));
    }
    return CLI_OK;
}

static mha_status run_attention(void *user, int64_t i)
{
    attention_work *w = user;
    i %= w->copies;
    if (w->shape.cache)
        return mha_kv_cache_attention(w->context, w->cache[i], &w->desc, &w->q, &w->o, NULL);
    return mha_attention_forward(w->context, &w->desc, &w->q, &w->k[i], &w->v[i], &w->o, NULL);
}

static mha_status run_backward(void *user, int64_t i)
{
    attention_work *w = user;
    const mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &w->dq, .k = &w->dk, .v = &w->dv};
    (void)i;
    return mha_attention_backward(
        w->context,
        &(mha_attention_backward_call){.struct_size = sizeof(mha_attention_backward_call),
                                       .attention = &w->desc,
                                       .q = &w->q,
                                       .k = &w->k[0],
                                       .v = &w->v[0],
                                       .o = &w->o,
                                       .lse = &w->lse,
                                       .o_gradient = &w->dout,
                                       .gradients = &gradients});
}

static cli_exit make_attention(mha_context *context, bench_work *work)
{
    const bench_shape *s = &work->shape;
    attention_work *w;
    CLI_TRY(ARENA_ALLOC(1, &w));
    work->user = w;
    work->run = s->kind == BENCH_BACKWARD ? run_backward : run_attention;
    *w = (attention_work){.context = context, .shape = *s};
    w->desc.struct_size = sizeof w->desc;
    w->desc.compute = s->compute;
    const double each = s->compute == MHA_COMPUTE_BF16 /* per key and value */
                            ? 4
                            : 2 * (double)mha_dtype_size(cache_type(s->cache));
    const double keys_bytes = each * (double)(s->batch * s->kv_heads * s->keys * s->head_dim);
    w->copies = s->kind == BENCH_DECODE ? copies_of(keys_bytes) : 1;
    CLI_TRY(make_tensors(w));
    const double share = set_mask(w);
    if (share == 0) return too_large("a mask");
    if (s->cache) CLI_TRY(fill_caches(w));
    if (s->kind == BENCH_BACKWARD) {
        const mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &w->lse};
        CLI_TRY(cli_check(
            mha_attention_forward(context, &w->desc, &w->q, &w->k[0], &w->v[0], &w->o, &outputs)));
    }
    const double products = s->kind == BENCH_BACKWARD ? 5 : 2; /* products of T x S x D */
    work->flops = 2 * products * (double)(s->batch * s->heads * s->queries * s->head_dim) *
                  (double)s->keys * share;
    work->bytes = s->kind == BENCH_DECODE ? keys_bytes : 0;
    return CLI_OK;
}

/* ---- the module ------------------------------------------------------------------------------ */

typedef struct module_work {
    mha_context *context;
    mha_module *module;
    mha_attention_desc desc;
    mha_module_outputs outputs;
    mha_tensor x, out, average;
} module_work;

static mha_status run_module(void *user, int64_t i)
{
    module_work *w = user;
    (void)i;
    mha_module_call call = MHA_INIT(mha_module_call);
    call.attention = &w->desc, call.out = &w->out;
    call.query = call.key = call.value = &w->x;
    if (w->average.data) call.outputs = &w->outputs;
    return mha_module_run(w->context, w->module, &call);
}

ARENA_RELEASE(destroy_module, mha_module_destroy)

/* All parameters point into one array, as large as the largest parameter. */
static cli_exit set_parameters(mha_module *module, float *numbers)
{
    mha_module_parameter parameter;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &parameter); i++) {
        const mha_tensor value =
            mha_tensor_contiguous(numbers, MHA_F32, parameter.ndim, parameter.shape);
        CLI_TRY(cli_check(mha_module_set_parameter(module, parameter.name, &value)));
    }
    return CLI_OK;
}

static cli_exit make_module(mha_context *context, bench_work *work)
{
    const bench_shape *s = &work->shape;
    const int64_t width = s->heads * s->head_dim, rows = s->batch * s->queries;
    const int64_t projected = width + 2 * s->kv_heads * s->head_dim;
    const int64_t weights = s->need_weights ? rows * s->keys : 0, parameters = 3 * width * width;
    module_work *w;
    CLI_TRY(ARENA_ALLOC(1, &w));
    work->user = w, work->run = run_module;
    w->context = context;
    float *at = some_floats(2 * rows * width + weights + parameters);
    if (!at) return too_large("a module");
    const mha_module_desc desc = {.struct_size = sizeof desc,
                                  .embed_dim = width,
                                  .num_heads = s->heads,
                                  .kv_heads = s->kv_heads,
                                  .head_dim = s->head_dim};
    const int64_t shape[] = {s->batch, s->queries, width};
    w->x = mha_tensor_contiguous(at, MHA_F32, 3, shape);
    w->out = mha_tensor_contiguous(at += rows * width, MHA_F32, 3, shape);
    at += rows * width;
    if (weights)
        w->average =
            mha_tensor_contiguous(at, MHA_F32, 3, (int64_t[]){s->batch, s->queries, s->keys});
    w->outputs = (mha_module_outputs){.struct_size = sizeof w->outputs,
                                      .average_probabilities = &w->average};
    w->desc.struct_size = sizeof w->desc;
    if (s->mask == BENCH_MASK_CAUSAL) w->desc.flags |= MHA_ATTENTION_CAUSAL;
    CLI_TRY(cli_check(mha_module_create(context, &desc, &w->module)));
    CLI_TRY(arena_keep(w->module, destroy_module));
    CLI_TRY(set_parameters(w->module, at + weights));
    const double n = (double)s->queries, pairs = w->desc.flags ? n * (n + 1) / 2 : n * n;
    work->flops = 2.0 * (double)rows * (double)width * (double)(projected + width) +
                  4.0 * (double)(s->batch * width) * pairs;
    return CLI_OK;
}

/* ---- a linear layer -------------------------------------------------------------------------- */

typedef struct gemm_work {
    mha_context *context;
    mha_linear *linear[MOST_COPIES];
    int64_t copies;
    mha_tensor x, y;
} gemm_work;

static mha_status run_gemm(void *user, int64_t i)
{
    gemm_work *w = user;
    return mha_linear_forward(w->context, w->linear[i % w->copies], MHA_ACTIVATION_NONE, &w->x,
                              &w->y);
}

ARENA_RELEASE(destroy_linear, mha_linear_destroy)

/* A single row is limited by reading its weights, so they come from memory. */
static cli_exit make_gemm(mha_context *context, bench_work *work)
{
    const bench_shape *s = &work->shape;
    const bool f32 = s->compute == MHA_COMPUTE_F32;
    const double weight_bytes = (f32 ? 4.0 : 2.0) * (double)s->outputs * (double)s->inputs;
    gemm_work *w;
    CLI_TRY(ARENA_ALLOC(1, &w));
    work->user = w, work->run = run_gemm;
    w->context = context;
    w->copies = s->rows == 1 ? copies_of(weight_bytes) : 1;
    float *at = some_floats(s->rows * (s->inputs + s->outputs) + s->outputs * s->inputs);
    if (!at) return too_large("a product");
    w->x = mha_tensor_contiguous(at, MHA_F32, 2, (int64_t[]){s->rows, s->inputs});
    w->y = mha_tensor_contiguous(at += s->rows * s->inputs, MHA_F32, 2,
                                 (int64_t[]){s->rows, s->outputs});
    const mha_tensor weight = mha_tensor_contiguous(at + s->rows * s->outputs, MHA_F32, 2,
                                                    (int64_t[]){s->outputs, s->inputs});
    for (int64_t i = 0; i < w->copies; i++) {
        CLI_TRY(cli_check((f32 ? mha_linear_create
                           : s->compute == MHA_COMPUTE_TILES
                               ? mha_linear_create_tiles
                               : mha_linear_create_bf16)(context, &weight, NULL, &w->linear[i])));
        CLI_TRY(arena_keep(w->linear[i], destroy_linear));
    }
    work->flops = 2.0 * (double)s->rows * (double)s->outputs * (double)s->inputs;
    work->bytes = s->rows == 1 ? weight_bytes : 0;
    return CLI_OK;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static const char *compute_suffix(const bench_shape *s)
{
    return s->compute == MHA_COMPUTE_BF16    ? " bf16"
           : s->compute == MHA_COMPUTE_TILES ? " tiles"
                                             : "";
}

static void name_attention(bench_work *work)
{
    static const char *const masks[] = {"", " causal", "", " blocks", " lengths", " keep", " bias"};
    const bench_shape *s = &work->shape;
    char heads[32], keys[32] = "", batch[24] = "", window[32] = "", cache[40] = "";
    snprintf(heads, sizeof heads, s->kv_heads == s->heads ? "h%lld" : "h%lld/%lld",
             (long long)s->heads, (long long)s->kv_heads);
    if (s->keys != s->queries) snprintf(keys, sizeof keys, " k%lld", (long long)s->keys);
    if (s->batch > 1) snprintf(batch, sizeof batch, " b%lld", (long long)s->batch);
    if (s->mask == BENCH_MASK_WINDOW)
        snprintf(window, sizeof window, " window%lld", (long long)s->window);
    if (s->cache)
        snprintf(cache, sizeof cache, s->page ? " cache %s page%lld" : " cache %s",
                 mha_dtype_name(cache_type(s->cache)), (long long)s->page);
    snprintf(work->name, sizeof work->name, "%s %s d%lld n%lld%s%s%s%s%s%s%s%s",
             bench_kind_name(s->kind), heads, (long long)s->head_dim, (long long)s->queries, keys,
             batch, masks[s->mask], window, s->by_token ? " bthd" : "",
             s->need_weights ? " weights" : "", cache, compute_suffix(s));
}

cli_exit bench_work_make(mha_context *context, const bench_shape *shape, bench_work *work)
{
    *work = (bench_work){.shape = *shape};
    if (shape->kind == BENCH_GEMM)
        snprintf(work->name, sizeof work->name, "gemm %lldx%lldx%lld%s", (long long)shape->rows,
                 (long long)shape->outputs, (long long)shape->inputs, compute_suffix(shape));
    else
        name_attention(work);
    return shape->kind == BENCH_GEMM     ? make_gemm(context, work)
           : shape->kind == BENCH_MODULE ? make_module(context, work)
                                         : make_attention(context, work);
}
