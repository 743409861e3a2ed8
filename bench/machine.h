/* What a benchmark measures itself by, in the run in which it measures: the peak of fused
 * multiply-adds and the read bandwidth of the threads of a context, and a gate that keeps the
 * samples that were taken while nobody else wanted the machine.
 *
 * The gate: a probe, a short piece of the same kind of work as the sample, runs before and after
 * it. A sample is quiet if neither took more than a twentieth longer than the fastest probe of the
 * row. (A loop of multiply-adds alone is no probe: it shows its full speed while neighbours have
 * the caches.) With fewer than five quiet samples in the time given, the row is "ungated". */
#ifndef BENCH_MACHINE_H
#define BENCH_MACHINE_H

#include <multihead/base.h>
#include <multihead/component.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    MACHINE_ITEMS = 64,
    MACHINE_ROUNDS = 20000,
    MACHINE_SAMPLES = 2000,
    MACHINE_RUNS = 20,
    MACHINE_QUIET = 5
};

/* BENCH_CLOCK=cpu counts the time of the process instead of the wall's: for one thread on a machine
 * that others keep busy. */
static inline double machine_now(void)
{
    const char *clock = getenv("BENCH_CLOCK");
    struct timespec t;
    clock_gettime(clock && strcmp(clock, "cpu") == 0 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC,
                  &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- peaks --------------------------------------------------------------------------------- */

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#define MACHINE_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MACHINE_UNROLL _Pragma("GCC unroll 16")
#endif

/* Twelve chains, enough for two units of latency 4 with registers to spare. */
__attribute__((target("avx512f"), noinline)) static float machine_fma512(int rounds)
{
    __m512 sum[12], x = _mm512_set1_ps(0.5f);
    MACHINE_UNROLL for (int j = 0; j < 12; j++) sum[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        MACHINE_UNROLL for (int j = 0; j < 12; j++) sum[j] = _mm512_fmadd_ps(sum[j], x, x);
    MACHINE_UNROLL for (int j = 1; j < 12; j++) sum[0] = _mm512_add_ps(sum[0], sum[j]);
    return _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx2,fma"), noinline)) static float machine_fma256(int rounds)
{
    __m256 sum[12], x = _mm256_set1_ps(0.5f);
    MACHINE_UNROLL for (int j = 0; j < 12; j++) sum[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        MACHINE_UNROLL for (int j = 0; j < 12; j++) sum[j] = _mm256_fmadd_ps(sum[j], x, x);
    MACHINE_UNROLL for (int j = 1; j < 12; j++) sum[0] = _mm256_add_ps(sum[0], sum[j]);
    return _mm256_cvtss_f32(sum[0]);
}

/* The widest loads that the instruction set has, four lines at a time. */
__attribute__((target("avx512f"), noinline)) static float machine_read512(const float *p, size_t n)
{
    __m512 sum[8];
    MACHINE_UNROLL for (int j = 0; j < 8; j++) sum[j] = _mm512_setzero_ps();
    for (size_t i = 0; i + 128 <= n; i += 128)
        for (int j = 0; j < 8; j++) sum[j] = _mm512_add_ps(sum[j], _mm512_loadu_ps(p + i + 16 * j));
    MACHINE_UNROLL for (int j = 1; j < 8; j++) sum[0] = _mm512_add_ps(sum[0], sum[j]);
    return _mm512_cvtss_f32(sum[0]);
}
#endif

static inline float machine_read(mha_isa isa, const float *p, size_t n)
{
#if defined(__x86_64__)
    if (isa == MHA_ISA_AVX512) return machine_read512(p, n);
#endif
    (void)isa;
    float sum[16] = {0};
    for (size_t i = 0; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++) sum[j] += p[i + (size_t)j];
    return sum[0] + sum[7];
}

/* What one item does, so that the threads share many small ones. Sums go to `sink`, or a compiler
 * would leave them out. */
typedef struct machine_job {
    mha_isa isa;
    const float *memory;
    size_t floats; /* of an item */
    float sink[MACHINE_ITEMS];
} machine_job;

static inline void machine_fma_item(void *argument, int64_t item, int worker)
{
    machine_job *job = argument;
    (void)worker;
#if defined(__x86_64__)
    job->sink[item] = job->isa == MHA_ISA_AVX512 ? machine_fma512(MACHINE_ROUNDS)
                      : job->isa == MHA_ISA_AVX2 ? machine_fma256(MACHINE_ROUNDS)
                                                 : 0;
#else
    job->sink[item] = 0;
#endif
}

static inline void machine_read_item(void *argument, int64_t item, int worker)
{
    machine_job *job = argument;
    (void)worker;
    job->sink[item] = machine_read(job->isa, job->memory + (size_t)item * job->floats, job->floats);
}

static inline int machine_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static inline double machine_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, machine_compare);
    return n > 0 ? x[n / 2] : 0;
}

/* The lower quartile of several runs. Not the best: where a host takes time away, clocks now and
 * then run short. */
static inline double machine_quartile_of(mha_context *context, mha_parallel_body body,
                                         machine_job *job)
{
    double time[MACHINE_RUNS];
    for (int i = 0; i < MACHINE_RUNS; i++) {
        double start = machine_now();
        mha_parallel_for(context, MACHINE_ITEMS, body, job);
        time[i] = machine_now() - start;
    }
    qsort(time, MACHINE_RUNS, sizeof *time, machine_compare);
    return time[MACHINE_RUNS / 4];
}

/* GFLOP/s of fused multiply-adds in the registers of the context's instruction set; 0 if it has
 * none. */
static inline double machine_fma_peak(mha_context *context)
{
    machine_job job = {.isa = mha_context_isa(context)};
    double lanes = job.isa == MHA_ISA_AVX512 ? 16 : job.isa == MHA_ISA_AVX2 ? 8 : 0;
    double seconds = machine_quartile_of(context, machine_fma_item, &job);
    return 2e-9 * 12 * lanes * MACHINE_ROUNDS * MACHINE_ITEMS / seconds;
}

/* GB/s of reading memory that is larger than what caches are likely to hold for us. */
static inline double machine_bandwidth(mha_context *context, const float *memory, size_t bytes)
{
    machine_job job = {.isa = mha_context_isa(context),
                       .memory = memory,
                       .floats = bytes / sizeof(float) / MACHINE_ITEMS / 128 * 128};
    double seconds = machine_quartile_of(context, machine_read_item, &job);
    return 1e-9 * (double)(job.floats * sizeof(float) * MACHINE_ITEMS) / seconds;
}

/* ---- the gate ------------------------------------------------------------------------------ */

/* A piece of work: run(user, i) does it for the i-th time. */
typedef struct machine_work {
    mha_status (*run)(void *user, int64_t i);
    void *user;
    int64_t repeats; /* of a sample, so that a clock can tell what they take; 0: one */
} machine_work;

typedef struct machine_result {
    double best, median; /* seconds; the median of the quiet samples, or of all if ungated */
    int samples, quiet;
} machine_result;

static inline mha_status machine_time(const machine_work *work, int64_t i, double *seconds)
{
    const int64_t repeats = work->repeats > 1 ? work->repeats : 1;
    double start = machine_now();
    mha_status status = work->run(work->user, i * repeats);
    for (int64_t r = 1; r < repeats && status == MHA_OK; r++)
        status = work->run(work->user, i * repeats + r);
    *seconds = (machine_now() - start) / (double)repeats;
    return status;
}

/* Samples until `wanted` of them are quiet, or the seconds are over. The level of the probes is
 * known only at the end, so the samples are sorted out then. */
static inline mha_status machine_measure(machine_work *work, const machine_work *probe, int wanted,
                                         double seconds, machine_result *result)
{
    static double time[MACHINE_SAMPLES], noise[MACHINE_SAMPLES], quiet[MACHINE_SAMPLES];
    double level = 1e9, before = 0, after, end = machine_now() + seconds;
    mha_status status = machine_time(work, 0, &after);
    if (after < 1e-3) work->repeats = (int64_t)(1e-3 / (after + 1e-7));
    if (status == MHA_OK) status = machine_time(probe, 0, &before);
    *result = (machine_result){.best = 1e9};
    int n = 0, good = 0;
    while (status == MHA_OK && n < MACHINE_SAMPLES && (good < wanted || n < wanted)) {
        if (n >= 3 && machine_now() > end) break;
        if ((status = machine_time(work, n + 1, &time[n])) != MHA_OK) break;
        if ((status = machine_time(probe, n + 1, &after)) != MHA_OK) break;
        noise[n] = before > after ? before : after;
        level = before < level ? before : level;
        level = after < level ? after : level;
        if (time[n] < result->best) result->best = time[n];
        before = after;
        good = 0;
        n++;
        for (int i = 0; i < n; i++)
            if (noise[i] <= 1.05 * level) quiet[good++] = time[i];
    }
    result->samples = n;
    result->quiet = good;
    result->median = good >= MACHINE_QUIET ? machine_median(quiet, good) : machine_median(time, n);
    return status;
}

#endif
