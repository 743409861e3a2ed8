/* The machine's peaks. Loops in registers measure arithmetic, and reading an array larger than
 * the caches measures memory. Threads divide the items by mha_parallel_for(), as in the library. */
#include "bench/bench.h"

#include "common/arena.h"
#include "common/signals.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

enum { ITEMS = 64, ROUNDS = 20000, FEW_ROUNDS = 2000, RUNS = 100, LEAST_RUNS = 9, CHAINS = 12 };

int bench_compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- loops in registers: operations per round ------------------------------------------------ */

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

/* In assembly, because gcc 12 copies each sum to another register around the intrinsic. */
__attribute__((target("avx512f,avx512bf16"), noinline)) static float bf16_512(int rounds)
{
    __m512 sum[CHAINS], x = _mm512_castsi512_ps(_mm512_set1_epi16(0x3E80)); /* 1/4 */
    UNROLL for (int j = 0; j < CHAINS; j++) sum[j] = _mm512_set1_ps((float)j);
    for (int i = 0; i < rounds; i++)
        UNROLL for (int j = 0; j < CHAINS;
                    j++) __asm__("vdpbf16ps %1, %1, %0" : "+v"(sum[j]) : "v"(x));
    UNROLL for (int j = 1; j < CHAINS; j++) sum[0] = _mm512_add_ps(sum[0], sum[j]);
    return _mm512_cvtss_f32(sum[0]);
}

static loop fma_loop(mha_isa isa)
{
    if (isa >= MHA_ISA_AVX512) return (loop){fma512, 2.0 * 16 * CHAINS};
    if (isa == MHA_ISA_AVX2) return (loop){fma256, 2.0 * 8 * CHAINS};
    return (loop){0};
}

static bool has_bf16(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5));
}

static loop bf16_loop(mha_isa isa)
{
    if (isa >= MHA_ISA_AVX512 && has_bf16()) return (loop){bf16_512, 2.0 * 32 * CHAINS};
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

static loop bf16_loop(mha_isa isa)
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

static loop bf16_loop(mha_isa isa)
{
    (void)isa;
    return (loop){0};
}
#endif

/* ---- reading --------------------------------------------------------------------------------- */

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

/* The sixteen lanes become vectors of the compiler's target width. */
static float read_memory(mha_isa isa, const float *p, size_t n)
{
#if defined(__x86_64__)
    if (isa >= MHA_ISA_AVX512) return read512(p, n);
#endif
    (void)isa;
    float sum[16] = {0};
    for (size_t i = 0; i + 16 <= n; i += 16)
        for (size_t j = 0; j < 16; j++) sum[j] += p[i + j];
    return sum[0] + sum[7];
}

/* ---- many small items, divided among the threads --------------------------------------------- */

/* Sums are stored to `sink`, so that the compiler cannot remove them. */
typedef struct job {
    loop loop;
    int rounds;
    mha_isa isa;
    const float *memory;
    size_t floats; /* per item */
    float sink[ITEMS];
} job;

static void loop_item(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    j->sink[item] = j->loop.run(j->rounds);
}

static void read_item(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    j->sink[item] = read_memory(j->isa, j->memory + (size_t)item * j->floats, j->floats);
}

/* Larger than the caches of current machines; each read takes a piece. */
static const size_t memory_bytes = (size_t)256 << 20, piece_bytes = (size_t)32 << 20;

double bench_read_piece(mha_context *context, const float *memory, int64_t i)
{
    const size_t piece = (size_t)i % (memory_bytes / piece_bytes);
    job j = {.isa = mha_context_isa(context),
             .memory = memory + piece * (piece_bytes / sizeof(float)),
             .floats = piece_bytes / sizeof(float) / ITEMS};
    const double start = seconds_now();
    mha_parallel_for(context, ITEMS, read_item, &j);
    return (double)piece_bytes / (seconds_now() - start);
}

/* Operations per second; 0: the processor has no such loop. */
static double multiply(mha_context *context, loop of, int rounds)
{
    job j = {.loop = of, .rounds = rounds};
    if (!of.run) return 0;
    const double start = seconds_now();
    mha_parallel_for(context, ITEMS, loop_item, &j);
    return of.operations * rounds * ITEMS / (seconds_now() - start);
}

double bench_multiply_piece(mha_context *context)
{
    return multiply(context, fma_loop(mha_context_isa(context)), FEW_ROUNDS);
}

/* ---- peaks ----------------------------------------------------------------------------------- */

/* The work whose rate is measured: a loop, or reads of memory. */
typedef struct source {
    mha_context *context;
    loop loop;
    const float *memory;
} source;

/* The third highest of at least nine rates. The highest is unreliable: if a host suspends the
 * machine, clocks occasionally measure too short a time. */
static double highest(double seconds, const source *of)
{
    double rate[RUNS];
    int runs = 0;
    const double end = seconds_now() + seconds;
    for (; runs < LEAST_RUNS || (runs < RUNS && seconds_now() < end); runs++)
        rate[runs] = of->memory ? bench_read_piece(of->context, of->memory, runs)
                                : multiply(of->context, of->loop, ROUNDS);
    qsort(rate, (size_t)runs, sizeof *rate, bench_compare);
    return rate[runs - 3];
}

cli_exit bench_machine_measure(mha_context *context, double seconds, bench_machine *machine)
{
    const mha_isa isa = mha_context_isa(context);
    float *memory;
    CLI_TRY(arena_alloc((int64_t)memory_bytes, 1, &memory));
    for (size_t i = 0; i < memory_bytes / sizeof *memory; i++) memory[i] = (float)(i & 7);
    *machine = (bench_machine){.isa = isa,
                               .threads = mha_context_threads(context),
                               .l2 = mha_context_l2(context),
                               .memory = memory};
    bench_processor_read(&machine->processor);
    machine->fma_peak = highest(seconds, &(source){context, fma_loop(isa), NULL});
    machine->bf16_peak = highest(seconds, &(source){context, bf16_loop(isa), NULL});
    machine->bandwidth = highest(seconds, &(source){context, {0}, memory});
    return CLI_OK;
}
