/* multihead selftest: compare the tiled path, on every instruction set of this machine, with the
 * plain path, which evaluates the formula in double precision and shares no code with the tiles.
 *
 * Every output element must satisfy the bound of attention.h,
 *
 *   |o - exact| <= (2 max_s |delta_s| + (S/51 + 600) u) max_s |v_s|           u = 2^-24
 *   delta_s      = (D + 3) u |scale| sum_d |q_d k_d| + u |score_s| + 1.3 u |bias_s|
 *
 * plus u |o| for the plain path, whose result is rounded to float.
 *
 * bf16 arithmetic of the same problems must be bit-identical on all sets with fused multiply-add, and
 * have a cosine of at least 0.999 with the exact result over all problems.
 */
#include "common/arena.h"
#include "common/commands.h"
#include "common/contexts.h"
#include "common/option_rows.h"
#include "common/progress.h"
#include "common/random.h"
#include "common/words.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct test_options {
    int64_t problems, seed;
    int quiet;
} test_options;

static const args_option option_table[] = {
    ROW_HEADING("Options"),
    ROW_NUMBER("problems", test_options, problems, 1, 1000000, "check N problems; default 60"),
    ROW_NUMBER("seed", test_options, seed, 0, INT64_MAX, "seed the random problems; default 1"),
    ROW_QUIET(test_options, "print no progress on stderr"),
    ROW_HELP,
};

const args_page selftest_page = {
    .bare = true,
    .usage = "selftest [options]",
    .examples = "multihead selftest\n"
                "multihead selftest --problems 1000 --seed 7",
    .notes = "Prints the comparisons, the largest error, and that error as a fraction of its\n"
             "bound. Exits with 0 if all checks pass, otherwise with 1.",
    .takes = "",
    .spare = "it takes options only",
    ARGS_OPTIONS(option_table),
};

/* ---- Random problems ------------------------------------------------------------------------- */

/* In -size .. size. */
static float random_float(random_source *r, double size)
{
    return (float)(size * (2 * random_part(r) - 1));
}

enum { MOST_BATCH = 2 };

typedef struct random_problem {
    int64_t B, H, Hk, T, S, D, Dv;
    float *q, *k, *v, *bias, *expected; /* bias [B,H,T,S] or NULL */
    uint8_t *keep;                      /* [T,S] or NULL */
    int64_t key_lengths[MOST_BATCH];
    mha_attention_desc desc;
    mha_tensor keep_tensor, bias_tensor;
    int64_t outputs; /* B H T Dv */
} random_problem;

static cli_exit make_floats(random_source *r, int64_t count, double size, float **out)
{
    CLI_TRY(ARENA_ALLOC(count, out));
    for (int64_t i = 0; i < count; i++) (*out)[i] = random_float(r, size);
    return CLI_OK;
}

/* Each part of a mask occurs in about a third of the problems, so that parts combine. */
static cli_exit make_mask(random_source *r, random_problem *p)
{
    if (random_below(r, 3) == 0) {
        p->desc.flags |= MHA_ATTENTION_CAUSAL;
        p->desc.q_offset = random_below(r, p->T + p->S) - p->T;
    }
    if (random_below(r, 3) == 0) {
        for (int64_t b = 0; b < p->B; b++) p->key_lengths[b] = random_below(r, p->S + 1);
        p->desc.key_lengths = p->key_lengths;
    }
    if (random_below(r, 3) == 0) {
        CLI_TRY(ARENA_ALLOC(p->T * p->S, &p->keep));
        for (int64_t i = 0; i < p->T * p->S; i++) p->keep[i] = random_below(r, 4) != 0;
        p->keep_tensor = mha_tensor_contiguous(p->keep, MHA_U8, 2, (int64_t[]){p->T, p->S});
        p->desc.keep_mask = &p->keep_tensor;
    }
    if (random_below(r, 3) == 0) {
        CLI_TRY(make_floats(r, p->B * p->H * p->T * p->S, 3, &p->bias));
        p->bias_tensor =
            mha_tensor_contiguous(p->bias, MHA_F32, 4, (int64_t[]){p->B, p->H, p->T, p->S});
        p->desc.bias = &p->bias_tensor;
    }
    return CLI_OK;
}

static cli_exit make_problem(random_source *r, random_problem *p)
{
    static const int64_t sizes[] = {1, 7, 16, 32, 40, 64, 80, 96, 128, 256};
    enum { SIZES = sizeof sizes / sizeof *sizes, MOST_T = 70, MOST_S = 700 };
    *p = (random_problem){.desc = {.struct_size = sizeof p->desc}};
    p->B = 1 + random_below(r, MOST_BATCH);
    p->Hk = 1 + random_below(r, 2);
    p->H = p->Hk * (1 + random_below(r, 2));
    p->T = 1 + random_below(r, MOST_T);
    p->S = 1 + random_below(r, MOST_S);
    p->D = sizes[random_below(r, SIZES)];
    p->Dv = random_below(r, 2) ? p->D : sizes[random_below(r, SIZES)];
    p->outputs = p->B * p->H * p->T * p->Dv;
    CLI_TRY(make_floats(r, p->B * p->H * p->T * p->D, 3, &p->q));
    CLI_TRY(make_floats(r, p->B * p->Hk * p->S * p->D, 3, &p->k));
    CLI_TRY(make_floats(r, p->B * p->Hk * p->S * p->Dv, 3, &p->v));
    CLI_TRY(make_mask(r, p));
    return make_floats(r, p->outputs, 0, &p->expected);
}

static cli_exit solve(mha_context *context, random_problem *p, mha_path path, mha_compute compute,
                      float *out)
{
    mha_tensor q = mha_tensor_contiguous(p->q, MHA_F32, 4, (int64_t[]){p->B, p->H, p->T, p->D});
    mha_tensor k = mha_tensor_contiguous(p->k, MHA_F32, 4, (int64_t[]){p->B, p->Hk, p->S, p->D});
    mha_tensor v = mha_tensor_contiguous(p->v, MHA_F32, 4, (int64_t[]){p->B, p->Hk, p->S, p->Dv});
    mha_tensor o = mha_tensor_contiguous(out, MHA_F32, 4, (int64_t[]){p->B, p->H, p->T, p->Dv});
    mha_attention_desc desc = p->desc;
    desc.path = path;
    desc.compute = compute;
    desc.flags |= MHA_ATTENTION_STRICT;
    return cli_check(mha_attention_forward(context, &desc, &q, &k, &v, &o, NULL));
}

/* ---- Comparing ------------------------------------------------------------------------------- */

/* An implementation and its errors. */
typedef struct contender {
    mha_isa isa;
    mha_context *context;
    float *out;         /* output of the current problem */
    double error, part; /* the largest error; the largest fraction of its bound */
    int64_t outputs, beyond;
} contender;

/* max_s |delta_s| of a row over all keys: masked keys only increase it. */
static double score_error(const random_problem *p, const float *q, const float *k,
                          const float *bias)
{
    const double u = 0x1p-24, scale = 1 / sqrt((double)p->D);
    double most = 0;
    for (int64_t s = 0; s < p->S; s++) {
        double sum = 0, dot = 0;
        for (int64_t d = 0; d < p->D; d++) {
            double product = (double)q[d] * (double)k[s * p->D + d];
            dot += product;
            sum += fabs(product);
        }
        const double added = bias ? fabs((double)bias[s]) : 0, score = fabs(scale * dot) + added;
        most = fmax(most, ((double)(p->D + 3) * scale * sum + score + 1.3 * added) * u);
    }
    return most;
}

static void compare_row(const random_problem *p, contender *runner, int64_t row, double delta,
                        double v_most)
{
    const double u = 0x1p-24;
    for (int64_t d = 0; d < p->Dv; d++) {
        double expected = (double)p->expected[row * p->Dv + d];
        double error = fabs((double)runner->out[row * p->Dv + d] - expected);
        double bound = (2 * delta + ((double)p->S / 51 + 600) * u) * v_most + u * fabs(expected);
        if (!(error <= bound)) runner->beyond++; /* NaN also exceeds it */
        runner->error = fmax(runner->error, error);
        runner->part = fmax(runner->part, error / bound);
    }
}

static void compare(const random_problem *p, contender *runners, int count)
{
    for (int64_t row = 0; row < p->B * p->H * p->T; row++) {
        int64_t bh = row / p->T, kv = bh / p->H * p->Hk + bh % p->H / (p->H / p->Hk);
        const float *v = p->v + kv * p->S * p->Dv;
        double v_most = 0;
        for (int64_t i = 0; i < p->S * p->Dv; i++) v_most = fmax(v_most, fabs((double)v[i]));
        double delta = score_error(p, p->q + row * p->D, p->k + kv * p->S * p->D,
                                   p->bias ? p->bias + row * p->S : NULL);
        for (int i = 0; i < count; i++) compare_row(p, &runners[i], row, delta, v_most);
    }
    for (int i = 0; i < count; i++) runners[i].outputs += p->outputs;
}

/* ---- The run --------------------------------------------------------------------------------- */

#define ISA_VALUE(name, value, text) name,
static const mha_isa isas[] = {MHA_ISA_LIST(ISA_VALUE)};

enum { MOST_RUNNERS = sizeof isas / sizeof *isas };

/* Whether bits that must be identical were compared, whether they differ, and the error of bf16. */
typedef struct bit_check {
    bool threads_differ, sets_compared, sets_differ, bf16_differs;
    double along, size, exact_size; /* sums of bf16 times exact results, and of both squares */
} bit_check;

/* One runner for every instruction set that this machine has. */
static cli_exit make_runners(contender *runners, int *count)
{
    *count = 0;
    for (int i = 0; i < MOST_RUNNERS; i++) {
        if (isas[i] == MHA_ISA_AUTO || !mha_isa_available(isas[i])) continue;
        runners[*count] = (contender){.isa = isas[i]};
        CLI_TRY(context_make(isas[i], 1, &runners[(*count)++].context));
    }
    return CLI_OK;
}

static cli_exit check_bits(random_problem *p, mha_context *three, contender *runners, int count,
                           bit_check *bits)
{
    size_t bytes = (size_t)p->outputs * sizeof(float);
    float *best = runners[count - 1].out, *again;
    CLI_TRY(make_floats(&(random_source){0}, p->outputs, 0, &again));
    CLI_TRY(solve(three, p, MHA_PATH_TILED, MHA_COMPUTE_F32, again));
    if (memcmp(again, best, bytes) != 0) bits->threads_differ = true;
    /* Portable C has no fused multiply-add; only the bound applies to it. */
    for (int i = 0; i + 1 < count; i++) {
        if (runners[i].isa == MHA_ISA_PORTABLE) continue;
        bits->sets_compared = true;
        if (memcmp(runners[i].out, best, bytes) != 0) bits->sets_differ = true;
    }
    return CLI_OK;
}

/* Compare the bits of the instruction sets with fused multiply-add, and of three threads with the
 * runners. */
static cli_exit check_bf16(random_problem *p, mha_context *three, contender *runners, int count,
                           bit_check *check)
{
    size_t bytes = (size_t)p->outputs * sizeof(float);
    float *again;
    CLI_TRY(make_floats(&(random_source){0}, p->outputs, 0, &again));
    CLI_TRY(solve(three, p, MHA_PATH_TILED, MHA_COMPUTE_BF16, again));
    for (int i = 0; i < count; i++) {
        if (runners[i].isa != mha_context_isa(three) && runners[i].isa == MHA_ISA_PORTABLE)
            continue;
        CLI_TRY(solve(runners[i].context, p, MHA_PATH_TILED, MHA_COMPUTE_BF16, runners[i].out));
        if (memcmp(runners[i].out, again, bytes) != 0) check->bf16_differs = true;
    }
    for (int64_t i = 0; i < p->outputs; i++) {
        double got = (double)again[i], exact = (double)p->expected[i];
        check->along += got * exact;
        check->size += got * got;
        check->exact_size += exact * exact;
    }
    return CLI_OK;
}

static cli_exit run_problem(random_source *r, mha_context *three, contender *runners, int count,
                            bit_check *bits)
{
    const size_t mark = arena_mark();
    random_problem p;
    CLI_TRY(make_problem(r, &p));
    CLI_TRY(solve(three, &p, MHA_PATH_PLAIN, MHA_COMPUTE_F32, p.expected));
    for (int i = 0; i < count; i++) {
        CLI_TRY(make_floats(r, p.outputs, 0, &runners[i].out));
        CLI_TRY(solve(runners[i].context, &p, MHA_PATH_TILED, MHA_COMPUTE_F32, runners[i].out));
    }
    compare(&p, runners, count);
    CLI_TRY(check_bits(&p, three, runners, count, bits));
    CLI_TRY(check_bf16(&p, three, runners, count, bits));
    arena_release(mark);
    return CLI_OK;
}

static bool report_bf16(const bit_check *check)
{
    const double sizes = sqrt(check->size * check->exact_size);
    const double cosine = sizes > 0 ? check->along / sizes : 1;
    const bool close = cosine >= 0.999;
    cli_print(
        "  bf16 arithmetic: same bits on all with fused multiply-add, with 1 and 3 threads: %s\n"
        "                   cosine with plain arithmetic %.6f: %s\n",
        check->bf16_differs ? "NO, FAILED" : "yes", cosine, close ? "ok" : "FAILED");
    return close && !check->bf16_differs;
}

static cli_exit report(const test_options *options, const contender *runners, int count,
                       const bit_check *bits)
{
    bool good = !bits->threads_differ && !bits->sets_differ;
    cli_print("attention forward, tiled path against plain arithmetic in double\n"
              "%" PRId64 " random problem%s (seed %" PRId64
              "): causal, lengths, masks, biases, grouped "
              "heads, head sizes 1 to 256\n",
              options->problems, words_s(options->problems), options->seed);
    for (int i = 0; i < count; i++) {
        const contender *r = &runners[i];
        cli_print(
            "  %-9s %9" PRId64 " numbers, largest error %.2e, at most %.1f %% of its bound: %s\n",
            mha_isa_name(r->isa), r->outputs, r->error, 100 * r->part, r->beyond ? "FAILED" : "ok");
        good = good && r->beyond == 0;
    }
    cli_print("  same bits with 1 and 3 threads: %s\n",
              bits->threads_differ ? "NO, FAILED" : "yes");
    if (bits->sets_compared)
        cli_print("  same bits on all instruction sets with fused multiply-add: %s\n",
                  bits->sets_differ ? "NO, FAILED" : "yes");
    good &= report_bf16(bits);
    cli_print("%s\n", good ? "all checks pass"
                           : "selftest failed: do not trust this build on this machine");
    return good ? CLI_OK : CLI_INTERNAL;
}

cli_exit cmd_selftest(int count, char *const *arguments)
{
    test_options options = {.problems = 60, .seed = 1};
    args_line line = {0};
    CLI_TRY(args_parse(&selftest_page, count, arguments, &options, &line));
    contender runners[MOST_RUNNERS] = {0};
    mha_context *three = NULL;
    bit_check bits = {0};
    int runner_count;
    random_source r = {(uint64_t)options.seed};
    CLI_TRY(make_runners(runners, &runner_count));
    CLI_TRY(context_make(runners[runner_count - 1].isa, 3, &three));
    progress shown = progress_begin(options.quiet);
    for (int64_t i = 0; i < options.problems; i++) {
        progress_show(&shown, (double)i / (double)options.problems,
                      "problem %" PRId64 " of %" PRId64, i + 1, options.problems);
        CLI_TRY(run_problem(&r, three, runners, runner_count, &bits));
    }
    progress_clear(&shown);
    return report(&options, runners, runner_count, &bits);
}
