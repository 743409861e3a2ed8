/* What the machine can do at most, and samples of work with the gate that tells quiet ones. Loops
 * of registers show the peaks; a thread shares them as it shares work, by mha_parallel_for(). */
#include "bench.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ITEMS = 64, ROUNDS = 20000, RUNS = 40, CHAINS = 12 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- loops of registers: operations of one round -----------------------------------------------
 */

typedef struct loop {
    float (*run)(int rounds);
    double operations;
} loop;

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>

/* Twelve chains: enough for two units of latency 4, with registers to spare. */
__attribute__((target("avx512f"), noinline)) static float fma512(int rounds)
{
    __m512 sum[CHAINS], x = _mm512_set1_ps(0.5f);
    UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_fmadd_ps(sum[j], x, x);
    UNROLL for (int j = 1; j < CHAINS; j++) sum[0] = _mm512_add_ps(sum[0], sum[j]);
    return _mm512_cvtss_f32(sum[0]);
}

__attribute__((target("avx2,fma"), noinline)) static float fma256(int rounds)
{
    __m256 sum[CHAINS], x = _mm256_set1_ps(0.5f);
    UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = _mm256_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = _mm256_fmadd_ps(sum[j], x, x);
    UNROLL for (int j = 1; j < CHAINS; j++) sum[0] = _mm256_add_ps(sum[0], sum[j]);
    return _mm256_cvtss_f32(sum[0]);
}

/* In assembly, since gcc 12 moves every sum to another register around the intrinsic. */
__attribute__((target("avx512f,avx512vnni"), noinline)) static float int8_512(int rounds)
{
    __m512i sum[CHAINS], x = _mm512_set1_epi8(1);
    UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_set1_epi32(j);
    for (int i = 0; i < rounds; i++)
        UNROLL for (int j = 0; j < CHAINS;
                    j++) __asm__("vpdpbusd %1, %1, %0" : "+v"(sum[j]) : "v"(x));
    UNROLL for (int j = 1; j < CHAINS; j++) sum[0] = _mm512_add_epi32(sum[0], sum[j]);
    return (float)_mm_cvtsi128_si32(_mm512_castsi512_si128(sum[0]));
}

static bool has_vnni(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 11));
}

static loop fma_loop(mha_isa isa)
{
    if (isa == MHA_ISA_AVX512) return (loop){fma512, 2.0 * 16 * CHAINS};
    if (isa == MHA_ISA_AVX2) return (loop){fma256, 2.0 * 8 * CHAINS};
    return (loop){0};
}

static loop int8_loop(mha_isa isa)
{
    if (isa == MHA_ISA_AVX512 && has_vnni()) return (loop){int8_512, 2.0 * 64 * CHAINS};
    return (loop){0};
}
#elif defined(__aarch64__)
#include <arm_neon.h>

static float fma_neon(int rounds)
{
    float32x4_t sum[CHAINS], x = vdupq_n_f32(0.5f);
    UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = vdupq_n_f32((float)j);
    for (int i = 0; i < rounds; i++)
        UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = vfmaq_f32(x, sum[j], x);
    UNROLL for (int j = 1; j < CHAINS; j++) sum[0] = vaddq_f32(sum[0], sum[j]);
    return vgetq_lane_f32(sum[0], 0);
}

static loop fma_loop(mha_isa isa)
{
    return isa == MHA_ISA_NEON ? (loop){fma_neon, 2.0 * 4 * CHAINS} : (loop){0};
}

static loop int8_loop(mha_isa isa)
{
    (void)isa;
    return (loop){0};
}
#else
static loop fma_loop(mha_isa isa)
{
    (void)isa;
    return (loop){0};
}

static loop int8_loop(mha_isa isa)
{
    (void)isa;
    return (loop){0};
}
#endif

/* ---- reading -----------------------------------------------------------------------------------
 */

#if defined(__x86_64__)
__attribute__((target("avx512f"), noinline)) static float read512(const float *p, size_t n)
{
    __m512 sum[8];
    UNROLL for (int j = 0; j < 8; j++) sum[j] = _mm512_setzero_ps();
    for (size_t i = 0; i + 128 <= n; i += 128)
        UNROLL for (int j = 0; j < 8; j++) sum[j] =
            _mm512_add_ps(sum[j], _mm512_loadu_ps(p + i + 16 * j));
    UNROLL for (int j = 1; j < 8; j++) sum[0] = _mm512_add_ps(sum[0], sum[j]);
    return _mm512_cvtss_f32(sum[0]);
}
#endif

/* The sixteen lanes become vectors of whatever the compiler may assume. */
static float read_memory(mha_isa isa, const float *p, size_t n)
{
#if defined(__x86_64__)
    if (isa == MHA_ISA_AVX512) return read512(p, n);
#endif
    (void)isa;
    float sum[16] = {0};
    for (size_t i = 0; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++) sum[j] += p[i + j];
    return sum[0] + sum[7];
}

/* ---- shared by the threads, so that there are many small items ----------------------------------
 */

/* Sums go to `sink`, or a compiler would leave them out. */
typedef struct job {
    loop loop;
    mha_isa isa;
    const float *memory;
    size_t floats; /* of an item */
    float sink[ITEMS];
} job;

static void loop_item(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    j->sink[item] = j->loop.run(ROUNDS);
}

static void read_item(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    j->sink[item] = read_memory(j->isa, j->memory + (size_t)item * j->floats, j->floats);
}

/* The third of the fastest runs, of at least three: not the first, since where a host takes time
 * away, clocks now and then run short. */
static double fastest(mha_context *context, double seconds, mha_parallel_body body, job *j)
{
    double time[RUNS];
    int runs = 0;
    const double end = now() + seconds;
    for (; runs < 3 || (runs < RUNS && now() < end); runs++) {
        const double start = now();
        mha_parallel_for(context, ITEMS, body, j);
        time[runs] = now() - start;
    }
    qsort(time, (size_t)runs, sizeof *time, compare);
    return time[2];
}

static double loop_peak(mha_context *context, double seconds, loop of)
{
    job j = {.loop = of};
    return of.run ? of.operations * ROUNDS * ITEMS / fastest(context, seconds, loop_item, &j) : 0;
}

/* More than the caches of the machines that we know. */
static const size_t memory_bytes = (size_t)256 << 20, probe_bytes = (size_t)16 << 20;

static float *touched_memory(size_t bytes)
{
    float *memory = malloc(bytes);
    for (size_t i = 0; memory && i < bytes / sizeof *memory; i++) memory[i] = (float)(i & 7);
    return memory;
}

mha_status bench_machine_measure(mha_context *context, double seconds, bench_machine *machine)
{
    const mha_isa isa = mha_context_isa(context);
    float *memory = touched_memory(memory_bytes);
    if (!memory) return mha_fail(MHA_ERR_NOMEM, "256 MB to read from");
    job j = {.isa = isa, .memory = memory, .floats = memory_bytes / sizeof(float) / ITEMS};
    *machine = (bench_machine){.isa = isa, .threads = mha_context_threads(context)};
    machine->fma_peak = loop_peak(context, seconds, fma_loop(isa));
    machine->int8_peak = loop_peak(context, seconds, int8_loop(isa));
    machine->bandwidth = (double)memory_bytes / fastest(context, seconds, read_item, &j);
    free(memory);
    return MHA_OK;
}

/* ---- the probes: work of the same kind ---------------------------------------------------------
 */

/* For work that computes a small attention; for work that waits for memory a piece of reading. (A
 * loop of registers alone is no probe: it shows its full speed while neighbours have the caches.)
 */
typedef struct probe {
    mha_context *context;
    bench_work attention;
    job read;
    float *memory;
} probe;

static mha_status probe_make(mha_context *context, const bench_work *of, probe *p)
{
    static const bench_shape small = {.kind = BENCH_FORWARD,
                                      .batch = 1,
                                      .heads = 8,
                                      .kv_heads = 8,
                                      .head_dim = 64,
                                      .queries = 256,
                                      .keys = 256};
    *p = (probe){.context = context};
    if (of->bytes == 0)
        return bench_work_make(context, &small, &p->attention) == CLI_OK
                   ? MHA_OK
                   : mha_fail(MHA_ERR_NOMEM, "a small attention to probe with");
    p->memory = touched_memory(probe_bytes);
    p->read = (job){.isa = mha_context_isa(context),
                    .memory = p->memory,
                    .floats = probe_bytes / sizeof(float) / ITEMS};
    return p->memory ? MHA_OK : mha_fail(MHA_ERR_NOMEM, "16 MB to read from");
}

static void probe_free(probe *p)
{
    if (p->attention.free) bench_work_free(&p->attention);
    free(p->memory);
}

static mha_status probe_time(probe *p, double *seconds)
{
    mha_status status = MHA_OK;
    const double start = now();
    if (p->memory)
        mha_parallel_for(p->context, ITEMS, read_item, &p->read);
    else
        status = p->attention.run(p->attention.user, 0);
    *seconds = now() - start;
    return status;
}

/* ---- samples -----------------------------------------------------------------------------------
 */

/* Short work is repeated until a clock can tell what it takes. */
static mha_status work_time(const bench_work *work, int64_t first, int64_t repeats, double *seconds)
{
    mha_status status = MHA_OK;
    const double start = now();
    for (int64_t r = 0; r < repeats && !status; r++) status = work->run(work->user, first + r);
    *seconds = (now() - start) / (double)repeats;
    return status;
}

static mha_status choose_repeats(const bench_work *work, int64_t *repeats)
{
    double seconds = 0;
    mha_status status = work_time(work, 0, 1, &seconds); /* the first call allocates scratch */
    if (!status) status = work_time(work, 1, 1, &seconds);
    *repeats = seconds < 2e-3 ? (int64_t)(2e-3 / (seconds + 1e-8)) + 1 : 1;
    return status;
}

/* By the same rule. */
static double quiet_level(const double *noise, int count, double *sorted)
{
    memcpy(sorted, noise, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, compare);
    return sorted[count > 2 ? 2 : 0];
}

/* Fill what the samples so far say; scratch has room for them. */
static void sum_up(bench_result *r, double *scratch)
{
    const int n = r->samples;
    int quiet = 0;
    r->quiet_level = quiet_level(r->noise, n, scratch);
    for (int i = 0; i < n; i++)
        if (r->noise[i] <= 1.05 * r->quiet_level) scratch[quiet++] = r->seconds[i];
    r->quiet = quiet;
    r->gated = quiet >= BENCH_QUIET;
    if (!r->gated) memcpy(scratch, r->seconds, (size_t)n * sizeof *scratch);
    const int count = r->gated ? quiet : n;
    qsort(scratch, (size_t)count, sizeof *scratch, compare);
    r->median = count % 2 ? scratch[count / 2] : (scratch[count / 2 - 1] + scratch[count / 2]) / 2;
}

static bool enough(const bench_result *r, const bench_limits *limits, double elapsed)
{
    if (r->samples < BENCH_QUIET) return false;
    if (r->samples == BENCH_MOST_SAMPLES || r->quiet >= limits->wanted) return true;
    return elapsed > limits->patience || (elapsed > limits->seconds && r->gated);
}

static mha_status take_samples(const bench_work *work, const bench_limits *limits, probe *p,
                               bench_result *r, double *scratch)
{
    int64_t repeats = 1;
    double before = 0, after = 0;
    const double start = now();
    mha_status status = choose_repeats(work, &repeats);
    if (!status) status = probe_time(p, &before);
    if (!status) status = probe_time(p, &before); /* the first one warms its memory */
    while (!status && !enough(r, limits, now() - start)) {
        double *seconds = &r->seconds[r->samples];
        status = work_time(work, 2 + r->samples * repeats, repeats, seconds);
        if (!status) status = probe_time(p, &after);
        if (status) break;
        r->noise[r->samples] = before > after ? before : after;
        if (r->samples == 0 || *seconds < r->best) r->best = *seconds;
        before = after;
        r->samples++;
        sum_up(r, scratch);
    }
    return status;
}

mha_status bench_measure(mha_context *context, const bench_work *work, const bench_limits *limits,
                         bench_result *result)
{
    probe p;
    *result = (bench_result){0};
    result->seconds = calloc(BENCH_MOST_SAMPLES, sizeof *result->seconds);
    result->noise = calloc(BENCH_MOST_SAMPLES, sizeof *result->noise);
    double *scratch = calloc(BENCH_MOST_SAMPLES, sizeof *scratch);
    mha_status status = probe_make(context, work, &p);
    if (!result->seconds || !result->noise || !scratch)
        status = mha_fail(MHA_ERR_NOMEM, "room for samples");
    if (!status) status = take_samples(work, limits, &p, result, scratch);
    free(scratch);
    probe_free(&p);
    return status;
}

void bench_result_free(bench_result *result)
{
    free(result->seconds);
    free(result->noise);
    *result = (bench_result){0};
}
