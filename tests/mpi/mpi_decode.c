/* Decoding over ranks started by mpirun: a cache that grows on all of them, with runs dealt round-robin.
 *
 *   mpi_decode bits                              each step compared with one process bit for bit
 *   mpi_decode speed N HEADS KV_HEADS SIZE THREADS   the minimum time of a step of rank 0 over twenty steps
 *
 * Rank 0 prints one line per problem. `speed` with one rank is the baseline. */
#include "check.h"

#include <multihead/component.h>
#include <multihead/distributed.h>
#include <multihead/mpi.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_PIECES = 64, Q = 0, K, V };

typedef struct text {
    mha_context *context;
    const mha_transport *t;
    int64_t heads, kv_heads, size, run;
    mha_kv_cache *here, *whole; /* `whole` is NULL without a comparison */
    mha_key_piece pieces[MOST_PIECES];
    mha_key_split keys;
    int64_t length;
    float *q, *k, *v, *o, *expected;
} text;

/* Numbers that depend only on their position in the whole tensor. */
static void fill(float *x, int tensor, int64_t heads, int64_t position, int64_t size)
{
    for (int64_t h = 0; h < heads; h++)
        for (int64_t d = 0; d < size; d++) {
            uint64_t z =
                (uint64_t)(((tensor * 64 + h) << 40) + (position << 10) + d) * 0x9E3779B97F4A7C15u;
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
            x[h * size + d] = (float)(int32_t)(z >> 32) / 1.2e9f;
        }
}

static float *room(int64_t count)
{
    float *memory = calloc((size_t)count + 1, sizeof *memory);
    CHECK(memory);
    return memory;
}

static mha_tensor row(float *x, int64_t heads, int64_t size)
{
    return mha_tensor_contiguous(x, MHA_F32, 4, (const int64_t[]){1, heads, 1, size});
}

static text begin(const mha_transport *t, int64_t heads, int64_t kv_heads, int64_t size,
                  int64_t capacity, int64_t run, mha_dtype type, int threads, bool compared)
{
    const mha_context_desc context = {.struct_size = sizeof context, .num_threads = threads};
    const mha_kv_cache_desc cache = {.struct_size = sizeof cache,
                                     .batch = 1,
                                     .kv_heads = kv_heads,
                                     .capacity = capacity,
                                     .head_dim = size,
                                     .type = type,
                                     .page_size = 64};
    text x = {.t = t, .heads = heads, .kv_heads = kv_heads, .size = size, .run = run};
    CHECK(!mha_context_create(&context, &x.context));
    CHECK(!mha_kv_cache_create(x.context, &cache, &x.here));
    if (compared) CHECK(!mha_kv_cache_create(x.context, &cache, &x.whole));
    x.q = room(heads * size), x.k = room(kv_heads * size), x.v = room(kv_heads * size);
    x.o = room(heads * size), x.expected = room(heads * size);
    return x;
}

static void finish(text *x)
{
    free(x->q), free(x->k), free(x->v), free(x->o), free(x->expected);
    mha_kv_cache_destroy(x->here);
    mha_kv_cache_destroy(x->whole);
    mha_context_destroy(x->context);
}

/* Decodes one token. The rank with the last piece appends it. */
static void grow(text *x)
{
    const int64_t owner = x->length / x->run % x->t->size;
    fill(x->k, K, x->kv_heads, x->length, x->size);
    fill(x->v, V, x->kv_heads, x->length, x->size);
    const mha_tensor k = row(x->k, x->kv_heads, x->size), v = row(x->v, x->kv_heads, x->size);
    if (owner == x->t->rank) CHECK(!mha_kv_cache_append(x->here, &k, &v, NULL));
    if (x->whole) CHECK(!mha_kv_cache_append(x->whole, &k, &v, NULL));
    const int64_t at = x->length++ / x->run;
    CHECK(at < MOST_PIECES);
    x->pieces[at] = (mha_key_piece){x->length, owner};
    x->keys = (mha_key_split){.struct_size = sizeof x->keys,
                              .transport = x->t,
                              .pieces = x->pieces,
                              .piece_count = at + 1,
                              .cache = x->here};
    fill(x->q, Q, x->heads, x->length, x->size);
}

static void bits(const mha_transport *t, mha_dtype type)
{
    const mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
    text x = begin(t, 4, 2, 64, 2200, 512, type, 1 + t->rank % 2, true);
    const mha_tensor q = row(x.q, 4, 64), o = row(x.o, 4, 64), expected = row(x.expected, 4, 64);
    while (x.length < 2100) {
        grow(&x);
        if (x.length < 1900 && x.length % 100 > 0) continue;
        CHECK(!mha_distributed_decode(x.context, &x.keys, &desc, &q, &o, NULL));
        CHECK(!mha_kv_cache_attention(x.context, x.whole, &desc, &q, &expected, NULL));
        CHECK(!memcmp(x.o, x.expected, (size_t)(x.heads * x.size) * sizeof *x.o));
    }
    if (t->rank == 0)
        printf("%d ranks: %lld keys of %s: the same bits\n", t->size, (long long)x.length,
               mha_dtype_name(type));
    finish(&x);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void speed(const mha_transport *t, int64_t length, int64_t heads, int64_t kv_heads,
                  int64_t size, int threads)
{
    const int64_t blocks = (length + MHA_SPLIT_KEYS - 1) / MHA_SPLIT_KEYS;
    const int64_t run = (blocks + t->size - 1) / t->size * MHA_SPLIT_KEYS;
    text x = begin(t, heads, kv_heads, size, run, run, MHA_F32, threads, false);
    const mha_tensor q = row(x.q, heads, size), o = row(x.o, heads, size);
    double least = 1e9;
    mha_decode_plan plan;
    while (x.length < length) grow(&x);
    for (int i = 0; i < 20; i++) {
        CHECK(!mha_transport_agree(t, MHA_OK));
        const double start = now();
        CHECK(!mha_distributed_decode(x.context, &x.keys, NULL, &q, &o, NULL));
        if (now() - start < least) least = now() - start;
    }
    CHECK(!mha_distributed_decode_explain(x.context, &x.keys, NULL, &q, NULL, &plan));
    if (t->rank == 0)
        printf("%d ranks of %d threads, %lld keys: %.3f ms; rank 0 sends %.0f bytes in %lld "
               "messages\n",
               t->size, threads, (long long)length, 1e3 * least, plan.bytes_sent,
               (long long)plan.messages_sent);
    finish(&x);
}

int main(int count, char **arguments)
{
    mha_mpi *mpi = NULL;
    const char *what = count > 1 ? arguments[1] : "";
    CHECK(!mha_mpi_start(NULL, &mpi));
    const mha_transport *t = mha_mpi_transport(mpi);
    const bool known = !strcmp(what, "bits") || (!strcmp(what, "speed") && count == 7);
    if (!strcmp(what, "bits")) {
        bits(t, MHA_F32);
        bits(t, MHA_I8);
    } else if (known) {
        speed(t, atoll(arguments[2]), atoll(arguments[3]), atoll(arguments[4]), atoll(arguments[5]),
              atoi(arguments[6]));
    } else {
        fprintf(stderr, "mpi_decode bits | speed N HEADS KV_HEADS SIZE THREADS\n");
    }
    mha_mpi_finish(mpi);
    return known ? 0 : 2;
}
