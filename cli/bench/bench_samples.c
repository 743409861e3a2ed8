/* Samples of work, classified as quiet or not, with the machine's rates between them. */
#include "bench/bench.h"

#include "common/arena.h"
#include "common/signals.h"

#include <multihead/component.h>

#include <stdlib.h>
#include <string.h>

/* ---- the probes: work of the same kind ------------------------------------------------------- */

/* The arithmetic probe is a small attention call and a loop of multiply-adds; the memory probe is
 * a read. The loop alone is not sufficient: it runs at full speed while neighbours occupy the
 * caches. */
typedef struct probe {
    mha_context *context;
    bench_work attention;
    const float *memory;
    int64_t pieces;
} probe;

/* seconds: the probe's time; rate: multiply-adds or bytes read per second. */
typedef struct probe_result {
    double seconds, rate;
} probe_result;

static cli_exit probe_make(mha_context *context, const bench_machine *machine, const bench_work *of,
                           probe *p)
{
    static const bench_shape small = {.kind = BENCH_FORWARD,
                                      .batch = 1,
                                      .heads = 8,
                                      .kv_heads = 8,
                                      .head_dim = 64,
                                      .queries = 256,
                                      .keys = 256};
    *p = (probe){.context = context, .memory = of->bytes > 0 ? machine->memory : NULL};
    return p->memory ? CLI_OK : bench_work_make(context, &small, &p->attention);
}

static mha_status probe_run(probe *p, probe_result *result)
{
    mha_status status = MHA_OK;
    const double start = seconds_now();
    if (p->memory)
        result->rate = bench_read_piece(p->context, p->memory, p->pieces++);
    else
        status = p->attention.run(p->attention.user, 0);
    result->seconds = seconds_now() - start;
    if (!p->memory) result->rate = bench_multiply_piece(p->context);
    return status;
}

/* ---- samples --------------------------------------------------------------------------------- */

/* Repeat short work until the clock resolves its duration. */
static mha_status work_time(const bench_work *work, int64_t first, int64_t repeats, double *seconds)
{
    mha_status status = MHA_OK;
    const double start = seconds_now();
    for (int64_t r = 0; r < repeats && !status; r++) status = work->run(work->user, first + r);
    *seconds = (seconds_now() - start) / (double)repeats;
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

static void sort_into(const double *values, int count, double *sorted)
{
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, bench_compare);
}

/* The third lowest time and the third highest rate of the probes, as in bench_machine.c. */
static double quiet_level(const bench_result *r, double *scratch)
{
    sort_into(r->noise, r->samples, scratch);
    return scratch[r->samples > 2 ? 2 : 0];
}

static double highest_rate(const bench_result *r, double *scratch)
{
    sort_into(r->rates, r->samples, scratch);
    return scratch[r->samples > 2 ? r->samples - 3 : r->samples - 1];
}

static bool is_quiet(const bench_result *r, int sample)
{
    return r->noise[sample] <= 1.05 * r->quiet_level;
}

/* The median over the samples that count. */
static double median_of(const bench_result *r, const double *values, double *scratch)
{
    int count = 0;
    for (int i = 0; i < r->samples; i++)
        if (!r->gated || is_quiet(r, i)) scratch[count++] = values[i];
    qsort(scratch, (size_t)count, sizeof *scratch, bench_compare);
    return count % 2 ? scratch[count / 2] : (scratch[count / 2 - 1] + scratch[count / 2]) / 2;
}

/* Classify the samples measured so far. scratch has room for as many numbers. */
static void count_quiet(bench_result *r, double *scratch)
{
    r->quiet_level = quiet_level(r, scratch);
    r->quiet = 0;
    for (int i = 0; i < r->samples; i++) r->quiet += is_quiet(r, i);
    r->gated = r->quiet >= BENCH_QUIET;
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
    probe_result before = {0}, after = {0};
    const double start = seconds_now();
    mha_status status = choose_repeats(work, &repeats);
    if (!status) status = probe_run(p, &before);
    if (!status) status = probe_run(p, &before); /* the first probe warms its memory */
    while (!status && !enough(r, limits, seconds_now() - start)) {
        double *seconds = &r->seconds[r->samples];
        status = work_time(work, 2 + r->samples * repeats, repeats, seconds);
        if (!status) status = probe_run(p, &after);
        if (status) break;
        r->noise[r->samples] = before.seconds > after.seconds ? before.seconds : after.seconds;
        r->rates[r->samples] = (before.rate + after.rate) / 2;
        if (r->samples == 0 || *seconds < r->best) r->best = *seconds;
        before = after;
        r->samples++;
        count_quiet(r, scratch);
    }
    if (!status) r->median = median_of(r, r->seconds, scratch);
    if (!status) r->beside = median_of(r, r->rates, scratch);
    if (!status) r->most = highest_rate(r, scratch);
    return status;
}

cli_exit bench_measure(mha_context *context, const bench_machine *machine, const bench_shape *shape,
                       const bench_limits *limits, bench_work *work, bench_result *result)
{
    probe p;
    double *scratch;
    *result = (bench_result){0};
    CLI_TRY(ARENA_ALLOC(BENCH_MOST_SAMPLES, &result->seconds));
    CLI_TRY(ARENA_ALLOC(BENCH_MOST_SAMPLES, &result->noise));
    CLI_TRY(ARENA_ALLOC(BENCH_MOST_SAMPLES, &result->rates));
    const size_t mark = arena_mark();
    CLI_TRY(ARENA_ALLOC(BENCH_MOST_SAMPLES, &scratch));
    CLI_TRY(bench_work_make(context, shape, work));
    CLI_TRY(probe_make(context, machine, work, &p));
    CLI_TRY(cli_check(take_samples(work, limits, &p, result, scratch)));
    arena_release(mark);
    return CLI_OK;
}
