/* Attention forward and decoding, as a part of what the machine can do.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/attention.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_attention && MHA_THREADS=1 build/bench_attention
 *
 * With arguments only rows whose name contains one of them run; MHA_THREADS and MHA_ISA choose the
 * machine, BENCH_SECONDS how long a row may wait for quiet (4), BENCH_CLOCK the clock (machine.h).
 * Forward rows count 4 d for each query head and pair that its mask allows and are compared with
 * the peak of fused multiply-adds; decoding rows count the bytes of keys and values that a step
 * reads and are compared with the read bandwidth or, where a group of heads makes it the lower of
 * the two, with the multiply-adds. Both are measured in the same run (machine.h). Keys of decoding
 * rows come from memory: calls take turns with copies of them. */
#include "machine.h"

#include <multihead/attention.h>
#include <multihead/cache.h>

#include <stdio.h>

typedef enum kind { FULL, CAUSAL, WINDOW, BLOCKS, LENGTHS, KEEP, BIAS, DECODE, CACHE } kind;

typedef struct shape {
    const char *name;
    kind kind;
    int64_t batch, h, hk, t, s, d;
    bool by_token; /* [B,T,H,D] in memory */
} shape;

static const shape shapes[] = {
    {"full h8 d64 n512", FULL, 1, 8, 8, 512, 512, 64, false},
    {"full h8 d64 n2048", FULL, 1, 8, 8, 2048, 2048, 64, false},
    {"full h8 d128 n2048", FULL, 1, 8, 8, 2048, 2048, 128, false},
    {"full h32 d128 n512", FULL, 1, 32, 32, 512, 512, 128, false},
    {"full h12 d64 n128", FULL, 1, 12, 12, 128, 128, 64, false},
    {"full h12 d64 n128 B16", FULL, 16, 12, 12, 128, 128, 64, false},
    {"full h8 d64 n10 B2", FULL, 2, 8, 8, 10, 10, 64, false},
    {"tokens h8 d64 n512", FULL, 1, 8, 8, 512, 512, 64, true},
    {"tokens h8 d64 n2048", FULL, 1, 8, 8, 2048, 2048, 64, true},
    {"tokens h8 d128 n2048", FULL, 1, 8, 8, 2048, 2048, 128, true},
    {"tokens h32 d128 n512", FULL, 1, 32, 32, 512, 512, 128, true},
    {"tokens h12 d64 n128", FULL, 1, 12, 12, 128, 128, 64, true},
    {"tokens h8 d64 n10 B2", FULL, 2, 8, 8, 10, 10, 64, true},
    {"causal h8 d64 n2048", CAUSAL, 1, 8, 8, 2048, 2048, 64, false},
    {"causal h8 d128 n2048", CAUSAL, 1, 8, 8, 2048, 2048, 128, false},
    {"window 256 h8 d64 n16384", WINDOW, 1, 8, 8, 16384, 16384, 64, false},
    {"blocks 20% h8 d64 n8192", BLOCKS, 1, 8, 8, 8192, 8192, 64, false},
    {"lengths h8 d64 n2048", LENGTHS, 1, 8, 8, 2048, 2048, 64, false},
    {"keep mask h8 d64 n2048", KEEP, 1, 8, 8, 2048, 2048, 64, false},
    {"bias h8 d64 n2048", BIAS, 1, 8, 8, 2048, 2048, 64, false},
    {"decode 32/8 d128 k4096", DECODE, 1, 32, 8, 1, 4096, 128, false},
    {"decode 32/32 d128 k4096", DECODE, 1, 32, 32, 1, 4096, 128, false},
    {"decode 32/1 d128 k4096", DECODE, 1, 32, 1, 1, 4096, 128, false},
    {"decode 32/8 d128 k32768", DECODE, 1, 32, 8, 1, 32768, 128, false},
    {"decode 32/32 d128 k32768", DECODE, 1, 32, 32, 1, 32768, 128, false},
    {"decode 32/1 d128 k32768", DECODE, 1, 32, 1, 1, 32768, 128, false},
    {"decode tokens 32/8 d128 k4096", DECODE, 1, 32, 8, 1, 4096, 128, true},
    {"cache 32/8 d128 k4096", CACHE, 1, 32, 8, 1, 4096, 128, false},
    {"cache 32/32 d128 k4096", CACHE, 1, 32, 32, 1, 4096, 128, false},
    {"cache 32/1 d128 k4096", CACHE, 1, 32, 1, 1, 4096, 128, false},
    {"cache 32/8 d128 k32768", CACHE, 1, 32, 8, 1, 32768, 128, false},
};

/* Copies of keys and values are this many bytes together, more than caches are likely to keep. */
static const double cold_bytes = 512e6;
enum { MOST_COPIES = 64, BLOCK = 64 };

typedef struct problem {
    mha_context *context;
    const shape *shape;
    float *memory;
    mha_tensor q, k[MOST_COPIES], v[MOST_COPIES], o, extra;
    mha_kv_cache *cache[MOST_COPIES];
    int64_t copies, length[16];
    uint8_t *keep;
    mha_attention_desc desc;
    double flops, bytes;
} problem;

static void fill(float *x, int64_t n)
{
    uint32_t state = 1;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
}

static mha_tensor tensor_of(float *data, const shape *s, int64_t heads, int64_t n)
{
    if (!s->by_token)
        return mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){s->batch, heads, n, s->d});
    mha_tensor x = mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){s->batch, n, heads, s->d});
    int64_t stride = x.stride[1];
    x.shape[1] = heads, x.shape[2] = n;
    x.stride[1] = x.stride[2], x.stride[2] = stride;
    return x;
}

static bool decodes(const shape *s)
{
    return s->kind == DECODE || s->kind == CACHE;
}

/* Fifth of the blocks: the diagonal, and others at random. Returns the share. */
static double fill_blocks(uint8_t *keep, int64_t n)
{
    uint32_t state = 7;
    int64_t kept = 0;
    for (int64_t i = 0; i < n * n; i++) {
        state = state * 1664525u + 1013904223u;
        keep[i] = i % (n + 1) == 0 || (state >> 8) < (1u << 24) / 5;
        kept += keep[i];
    }
    return (double)kept / (double)(n * n);
}

/* The mask of the row in p->desc; returns the share of the pairs that it allows. */
static double set_mask(problem *p)
{
    const shape *s = p->shape;
    const int64_t n = s->t, blocks = n / BLOCK;
    double share = 1;
    switch (s->kind) {
    case CAUSAL: p->desc.flags = MHA_ATTENTION_CAUSAL; return (double)(n + 1) / (double)(2 * n);
    case WINDOW:
        p->desc.flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW;
        p->desc.left_keys = 255;
        return (256.0 * (double)n - 256.0 * 255 / 2) / ((double)n * (double)n);
    case BLOCKS:
        share = fill_blocks(p->keep, blocks);
        p->extra = mha_tensor_contiguous(p->keep, MHA_U8, 4, (int64_t[]){1, 1, blocks, blocks});
        p->desc.keep_blocks = &p->extra;
        p->desc.block_queries = p->desc.block_keys = BLOCK;
        return share;
    case LENGTHS:
        p->length[0] = n - 100;
        p->desc.key_lengths = p->length;
        return (double)p->length[0] / (double)n;
    case KEEP:
        memset(p->keep, 1, (size_t)(n * n));
        for (int64_t i = 0; i < n * n; i += 7) p->keep[i] = 0;
        p->extra = mha_tensor_contiguous(p->keep, MHA_U8, 4, (int64_t[]){1, 1, n, n});
        p->desc.keep_mask = &p->extra;
        return 1;
    case BIAS:
        fill((float *)(void *)p->keep, n * n);
        p->extra = mha_tensor_contiguous(p->keep, MHA_F32, 4, (int64_t[]){1, 1, n, n});
        p->desc.bias = &p->extra;
        return 1;
    default: return 1;
    }
}

static mha_status fill_cache(problem *p, int64_t i)
{
    const shape *s = p->shape;
    const mha_kv_cache_desc desc = {.struct_size = sizeof desc,
                                    .batch = s->batch,
                                    .kv_heads = s->hk,
                                    .capacity = s->s,
                                    .head_dim = s->d};
    mha_status status = mha_kv_cache_create(p->context, &desc, &p->cache[i]);
    if (status == MHA_OK) status = mha_kv_cache_append(p->cache[i], &p->k[0], &p->v[0], NULL);
    return status;
}

static mha_status set_up(problem *p)
{
    const shape *s = p->shape;
    const int64_t queries = s->batch * s->h * s->t * s->d, keys = s->batch * s->hk * s->s * s->d;
    const double bytes = 8.0 * (double)keys;
    p->copies = decodes(s) ? (int64_t)(cold_bytes / bytes) : 1;
    if (p->copies < 1) p->copies = 1;
    if (p->copies > MOST_COPIES) p->copies = MOST_COPIES;
    const int64_t stored = s->kind == CACHE ? 1 : p->copies;
    const int64_t floats = 2 * queries + 2 * stored * keys;
    p->memory = malloc((size_t)floats * sizeof(float));
    p->keep = malloc(4 * (size_t)(s->t * s->s));
    if (!p->memory || !p->keep) return mha_fail(MHA_ERR_NOMEM, "out of memory");
    fill(p->memory, floats);
    p->q = tensor_of(p->memory, s, s->h, s->t);
    p->o = tensor_of(p->memory + queries, s, s->h, s->t);
    for (int64_t i = 0; i < stored; i++) {
        p->k[i] = tensor_of(p->memory + 2 * queries + 2 * i * keys, s, s->hk, s->s);
        p->v[i] = tensor_of(p->memory + 2 * queries + (2 * i + 1) * keys, s, s->hk, s->s);
    }
    mha_status status = MHA_OK;
    for (int64_t i = 0; s->kind == CACHE && i < p->copies && status == MHA_OK; i++)
        status = fill_cache(p, i);
    p->desc.struct_size = sizeof p->desc;
    double share = set_mask(p);
    p->flops = 4.0 * (double)(s->batch * s->h * s->t * s->d) * (double)s->s * share;
    p->bytes = decodes(s) ? bytes : 0;
    return status;
}

static void tear_down(problem *p)
{
    for (int64_t i = 0; i < p->copies; i++) mha_kv_cache_destroy(p->cache[i]);
    free(p->memory);
    free(p->keep);
}

static mha_status run(void *user, int64_t i)
{
    problem *p = user;
    i %= p->copies;
    if (p->shape->kind == CACHE)
        return mha_kv_cache_attention(p->context, p->cache[i], &p->desc, &p->q, &p->o, NULL);
    return mha_attention_forward(p->context, &p->desc, &p->q, &p->k[i], &p->v[i], &p->o, NULL);
}

/* ---- what a row is compared with ------------------------------------------------------------- */

typedef struct bench {
    mha_context *context;
    double peak, bandwidth;
    float *memory; /* that bandwidth is measured on */
    problem probe; /* a small attention */
    machine_job read;
} bench;

static mha_status probe_read(void *user, int64_t i)
{
    bench *b = user;
    (void)i;
    mha_parallel_for(b->context, MACHINE_ITEMS, machine_read_item, &b->read);
    return MHA_OK;
}

static void print_row(const bench *b, const problem *p, const machine_result *r)
{
    const char *gate = r->quiet >= MACHINE_QUIET ? "" : "  ungated";
    double work = p->flops / b->peak, limit = work;
    if (p->bytes > 0) {
        limit = p->bytes / b->bandwidth;
        if (work > limit) limit = work;
    }
    limit *= 1e-9; /* seconds at the limit */
    printf("%-30s %9.3f %9.3f ms  %7.1f GFLOP/s %6.1f GB/s  %5.1f %5.1f %%  %d/%d%s\n",
           p->shape->name, 1e3 * r->median, 1e3 * r->best, 1e-9 * p->flops / r->median,
           1e-9 * p->bytes / r->median, 100 * limit / r->median, 100 * limit / r->best, r->quiet,
           r->samples, gate);
    fflush(stdout);
}

static mha_status measure(bench *b, const shape *s, double seconds)
{
    problem p = {.context = b->context, .shape = s};
    machine_result result;
    mha_status status = set_up(&p);
    machine_work work = {.run = run, .user = &p};
    const machine_work probe = decodes(s) ? (machine_work){.run = probe_read, .user = b}
                                          : (machine_work){.run = run, .user = &b->probe};
    if (status == MHA_OK) status = machine_measure(&work, &probe, 15, seconds, &result);
    if (status == MHA_OK) print_row(b, &p, &result);
    tear_down(&p);
    return status;
}

static bool chosen(const char *name, int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (strstr(name, argv[i])) return true;
    return argc < 2;
}

static mha_status measure_all(bench *b, int argc, char **argv)
{
    static const shape probe = {"probe", FULL, 1, 8, 8, 256, 256, 64, false};
    const size_t bytes = (size_t)256 << 20;
    const char *limit = getenv("BENCH_SECONDS");
    mha_status status = MHA_OK;
    b->memory = malloc(bytes);
    if (!b->memory) return mha_fail(MHA_ERR_NOMEM, "out of memory");
    fill(b->memory, (int64_t)(bytes / sizeof(float)));
    b->peak = machine_fma_peak(b->context);
    b->bandwidth = machine_bandwidth(b->context, b->memory, bytes);
    printf("%s, %d threads: %.1f GFLOP/s of multiply-adds, reads %.1f GB/s\n"
           "%-30s %9s %9s     %34s %5s %5s\n",
           mha_isa_name(mha_context_isa(b->context)), mha_context_threads(b->context), b->peak,
           b->bandwidth, "", "median", "best", "", "of it", "best");
    b->read = (machine_job){.isa = mha_context_isa(b->context),
                            .memory = b->memory,
                            .floats = ((size_t)16 << 20) / sizeof(float) / MACHINE_ITEMS};
    b->probe = (problem){.context = b->context, .shape = &probe};
    status = set_up(&b->probe);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && status == MHA_OK; i++)
        if (chosen(shapes[i].name, argc, argv))
            status = measure(b, &shapes[i], limit ? strtod(limit, NULL) : 4);
    tear_down(&b->probe);
    free(b->memory);
    return status;
}

int main(int argc, char **argv)
{
    static bench b;
    mha_status status = mha_context_create(NULL, &b.context);
    if (status == MHA_OK) status = measure_all(&b, argc, argv);
    if (status != MHA_OK) fprintf(stderr, "bench_attention: %s\n", mha_error_detail());
    mha_context_destroy(b.context);
    return status != MHA_OK;
}
