/* Attention forward, not causal: the best of 12 calls in GFLOP/s, counting 4 h n n d, with f32
 * tensors; and the time of f16 and bf16 tensors relative to that, calls of the three types taking
 * turns.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/attention.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_attention && MHA_THREADS=1 build/bench_attention
 *
 * MHA_THREADS and MHA_ISA choose the machine. Nothing tells a quiet machine from a busy one here.
 */
#include <multihead/attention.h>
#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { TYPES = 3 };
static const mha_dtype types[TYPES] = {MHA_F32, MHA_F16, MHA_BF16};

/* q, k, v, o */
typedef struct problem {
    mha_tensor x[4];
} problem;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The same numbers in each type, as far as it holds them. */
static mha_status fill(problem p[TYPES], float *memory, int64_t h, int64_t n, int64_t d)
{
    const int64_t count = h * n * d, shape[] = {1, h, n, d};
    uint32_t state = 1;
    for (int64_t i = 0; i < 4 * count; i++) {
        state = state * 1664525u + 1013904223u;
        memory[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    mha_status status = MHA_OK;
    for (int t = 0; t < TYPES; t++)
        for (int i = 0; i < 4 && status == MHA_OK; i++) {
            p[t].x[i] = mha_tensor_contiguous(memory + (4 * t + i) * count, types[t], 4, shape);
            if (t > 0) status = mha_tensor_convert(&p[0].x[i], &p[t].x[i]);
        }
    return status;
}

static mha_status time_types(mha_context *context, const problem p[TYPES], double best[TYPES])
{
    mha_status status = MHA_OK;
    for (int t = 0; t < TYPES; t++) best[t] = 1e9;
    for (int i = 0; i < 12 * TYPES && status == MHA_OK; i++) {
        const mha_tensor *x = p[i % TYPES].x;
        double start = now();
        status = mha_attention_forward(context, NULL, &x[0], &x[1], &x[2], &x[3], NULL);
        double seconds = now() - start;
        if (seconds < best[i % TYPES]) best[i % TYPES] = seconds;
    }
    return status;
}

static mha_status measure(mha_context *context, int64_t h, int64_t n, int64_t d)
{
    problem p[TYPES];
    double best[TYPES];
    int64_t count = h * n * d;
    float *memory = malloc((size_t)count * 4 * TYPES * sizeof *memory);
    if (!memory) return mha_fail(MHA_ERR_NOMEM, "out of memory");
    mha_status status = fill(p, memory, h, n, d);
    if (status == MHA_OK) status = time_types(context, p, best);
    free(memory);
    if (status == MHA_OK)
        printf("%2d heads of %3d, %4d tokens: %6.1f   f16 %.3f, bf16 %.3f of its time\n", (int)h,
               (int)d, (int)n, 4e-9 * (double)count * (double)n / best[0], best[1] / best[0],
               best[2] / best[0]);
    return status;
}

int main(void)
{
    static const int64_t shapes[][3] = {{8, 512, 64}, {8, 2048, 64}, {8, 2048, 128}, {12, 128, 64}};
    mha_context *context = NULL;
    mha_status status = mha_context_create(NULL, &context);
    if (status == MHA_OK)
        printf("GFLOP/s, best of 12; %s, %d threads\n", mha_isa_name(mha_context_isa(context)),
               mha_context_threads(context));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && status == MHA_OK; i++)
        status = measure(context, shapes[i][0], shapes[i][1], shapes[i][2]);
    if (status != MHA_OK) fprintf(stderr, "bench_attention: %s\n", mha_error_detail());
    mha_context_destroy(context);
    return status != MHA_OK;
}
