/* multihead bench: attention as a fraction of this machine's peak, measured in the same run
 * (bench_machine.c). Only samples taken while the machine was otherwise idle count. */
#include "bench/bench.h"
#include "common/arena.h"
#include "common/commands.h"
#include "common/contexts.h"
#include "common/files.h"
#include "common/option_rows.h"
#include "common/words.h"

#include <stdio.h>
#include <string.h>

typedef struct bench_options {
    int64_t batch, heads, kv_heads, head_dim, length, keys, window, page;
    int64_t rows, outputs, inputs, threads, samples;
    args_real seconds, patience;
    int causal, mask, layout, need_weights, cache, compute, isa, json, quiet;
    const char *compare, *svg, *pdf;
} bench_options;

#define ISA_TEXT(name, value, text) text,
static const char *const isas[] = {MHA_ISA_LIST(ISA_TEXT) NULL};
static const char *const masks[] = {"full",    "causal", "window", "blocks",
                                    "lengths", "keep",   "bias",   NULL};
static const char *const layouts[] = {"bhtd", "bthd", NULL};
static const char *const caches[] = {"none", "f32", "f16", "bf16", "int8", NULL}; /* bench_cache */
static const char *const computes[] = {"f32", "bf16", "tiles", NULL};
static const mha_compute arithmetic[] = {MHA_COMPUTE_F32, MHA_COMPUTE_BF16, MHA_COMPUTE_TILES};

enum { MOST = 1 << 24 };

static const args_option option_table[] = {
    ROW_HEADING("The work (forward, backward, decode, module)"),
    ROW_NUMBER("heads", bench_options, heads, 1, 4096, "query heads; default 8, decode 32"),
    ROW_NUMBER("kv-heads", bench_options, kv_heads, 1, 4096,
               "key/value heads; default: as --heads, decode 8"),
    ROW_NUMBER("head-dim", bench_options, head_dim, 1, 4096, "head size; default 64, decode 128"),
    ROW_NUMBER("length", bench_options, length, 1, MOST,
               "tokens; default 2048, module 512, decode 1"),
    ROW_NUMBER("keys", bench_options, keys, 1, MOST, "keys; default: as --length, decode 4096"),
    ROW_NUMBER("batch", bench_options, batch, 1, 4096, "sequences; default 1"),
    ROW_FLAG(0, "causal", bench_options, causal, 1, "same as --mask causal"),
    ROW_CHOICE(
        "mask", bench_options, mask, masks,
        "set the mask; blocks keeps a fifth of the blocks; keep\nand bias have one value per pair"),
    ROW_NUMBER("window", bench_options, window, 1, MOST,
               "use a causal window of N keys; implies --mask window"),
    ROW_CHOICE("layout", bench_options, layout, layouts, "memory layout of the tensors"),
    ROW_FLAG(0, "need-weights", bench_options, need_weights, 1,
             "module: also compute the weights' mean over heads"),
    ROW_CHOICE("cache", bench_options, cache, caches, "decode from a KV cache of this type"),
    ROW_NUMBER("page", bench_options, page, 1, MOST,
               "positions per page of the cache; default: all"),
    ROW_CHOICE("compute", bench_options, compute, computes,
               "set the arithmetic of forward, decode or gemm; default\nf32; others are compared "
               "with f32. tiles: gemm only"),
    ROW_HEADING("The work (gemm)"),
    ROW_NUMBER("rows", bench_options, rows, 1, MOST, "rows M; default 512"),
    ROW_NUMBER("outputs", bench_options, outputs, 1, MOST, "outputs N; default 512"),
    ROW_NUMBER("inputs", bench_options, inputs, 1, MOST, "inputs K; default 512"),
    ROW_HEADING("Measurement"),
    ROW_NUMBER("threads", bench_options, threads, 1, 1024,
               "use N threads; default: MHA_THREADS, else all CPUs"),
    ROW_CHOICE("isa", bench_options, isa, isas, "select the instruction set; default: the best"),
    ROW_NUMBER("samples", bench_options, samples, 1, BENCH_MOST_SAMPLES,
               "take N quiet samples per row; default 15"),
    ROW_REAL("seconds", bench_options, seconds, "accept 5 samples after X seconds; default 10"),
    ROW_REAL("patience", bench_options, patience,
             "mark a row as ungated after X seconds; default 600"),
    ROW_HEADING("Output"),
    ROW_FLAG(0, "json", bench_options, json, 1, "print everything as JSON, including raw samples"),
    ROW_TEXT("compare", bench_options, compare, "FILE",
             "report the speedup over an older --json file"),
    ROW_TEXT("svg", bench_options, svg, "FILE", "write a roofline plot", .ending = ".svg"),
    ROW_TEXT("pdf", bench_options, pdf, "FILE", "write the plot as PDF, for papers",
             .ending = ".pdf"),
    ROW_QUIET(bench_options, "print no notes on stderr"),
    ROW_HELP,
};

static const char *work_at(int i)
{
    if (i < BENCH_KINDS) return bench_kind_name((bench_kind)i);
    return i == BENCH_KINDS ? "all" : NULL;
}

const args_page bench_page = {
    .usage = "bench WORK [options]",
    .examples = "multihead bench forward --heads 8 --head-dim 64 --length 2048 --threads 1\n"
                "multihead bench forward --causal --json > before.json\n"
                "multihead bench forward --causal --compare before.json\n"
                "multihead bench decode --heads 32 --kv-heads 8 --keys 32768\n"
                "multihead bench gemm --rows 1 --outputs 4096 --inputs 4096\n"
                "multihead bench all --svg roofline.svg",
    .notes = "WORK is forward, backward, decode, module, gemm, or all: a list of\n"
             "shapes. Forward counts 4 D operations per visible pair of query and key,\n"
             "backward 10 D. The peak of multiply-adds and the read bandwidth are measured\n"
             "first, in the same run and with the same number of threads.\n"
             "\n"
             "A sample is quiet if short probes of the same kind of work before and after it\n"
             "took at most 5 % longer than the third fastest probe of the row. A row with\n"
             "fewer than five quiet samples is ungated: its median is over all samples and\n"
             "includes other load. Bytes are compared with the bandwidth of a\n"
             "sample's probes, operations with the peak measured first. A note says if the\n"
             "machine later reached less than nine tenths of that peak. A row above 102 %\n"
             "means that the machine was busy while the peak was measured. decode and gemm\n"
             "of one row read from memory: calls alternate between copies of the data.",
    .takes = "WORK",
    .spare = "name one work",
    ARGS_OPTIONS(option_table),
    .word = work_at,
};

/* ---- the works ------------------------------------------------------------------------------- */

#define PLAIN(b, h, hk, d, n) \
    .batch = (b), .heads = (h), .kv_heads = (hk), .head_dim = (d), .queries = (n), .keys = (n)
#define STEP(h, hk, n)                                                                 \
    .kind = BENCH_DECODE, .batch = 1, .heads = (h), .kv_heads = (hk), .head_dim = 128, \
    .queries = 1, .keys = (n)
#define PRODUCT(m, n, k) .kind = BENCH_GEMM, .rows = (m), .outputs = (n), .inputs = (k)

/* The shapes of `bench all`; docs/speed.md shows some of them. */
static const bench_shape all_shapes[] = {
    {PLAIN(1, 8, 8, 64, 512)},
    {PLAIN(1, 8, 8, 64, 2048)},
    {PLAIN(1, 8, 8, 128, 2048)},
    {PLAIN(1, 32, 32, 128, 512)},
    {PLAIN(1, 12, 12, 64, 128)},
    {PLAIN(16, 12, 12, 64, 128)},
    {PLAIN(2, 8, 8, 64, 10)},
    {PLAIN(1, 8, 8, 64, 2048), .by_token = true},
    {PLAIN(1, 8, 8, 128, 2048), .by_token = true},
    {PLAIN(1, 32, 32, 128, 512), .by_token = true},
    {PLAIN(1, 12, 12, 64, 128), .by_token = true},
    {PLAIN(1, 8, 8, 64, 2048), .mask = BENCH_MASK_CAUSAL},
    {PLAIN(1, 8, 8, 128, 2048), .mask = BENCH_MASK_CAUSAL},
    {PLAIN(1, 8, 8, 64, 16384), .mask = BENCH_MASK_WINDOW, .window = 256},
    {PLAIN(1, 8, 8, 64, 8192), .mask = BENCH_MASK_BLOCKS},
    {PLAIN(1, 8, 8, 64, 2048), .mask = BENCH_MASK_LENGTHS},
    {PLAIN(1, 8, 8, 64, 2048), .mask = BENCH_MASK_KEEP},
    {PLAIN(1, 8, 8, 64, 2048), .mask = BENCH_MASK_BIAS},
    {PLAIN(1, 8, 8, 64, 2048), .compute = MHA_COMPUTE_BF16},
    {PLAIN(1, 8, 8, 128, 2048), .compute = MHA_COMPUTE_BF16},
    {.kind = BENCH_BACKWARD, PLAIN(1, 8, 8, 64, 512)},
    {.kind = BENCH_BACKWARD, PLAIN(1, 8, 8, 64, 2048)},
    {.kind = BENCH_BACKWARD, PLAIN(1, 8, 8, 128, 512)},
    {.kind = BENCH_BACKWARD, PLAIN(1, 8, 8, 128, 2048)},
    {STEP(32, 8, 4096)},
    {STEP(32, 32, 4096)},
    {STEP(32, 1, 4096)},
    {STEP(32, 8, 32768)},
    {STEP(32, 32, 32768)},
    {STEP(32, 1, 32768)},
    {STEP(32, 8, 4096), .cache = BENCH_CACHE_F32},
    {STEP(32, 8, 32768), .cache = BENCH_CACHE_F32},
    {STEP(32, 8, 32768), .cache = BENCH_CACHE_BF16},
    {STEP(32, 8, 32768), .cache = BENCH_CACHE_INT8, .page = 16},
    {.kind = BENCH_MODULE, PLAIN(2, 8, 8, 64, 10)},
    {.kind = BENCH_MODULE, PLAIN(1, 12, 12, 64, 128)},
    {.kind = BENCH_MODULE, PLAIN(1, 8, 8, 64, 512)},
    {.kind = BENCH_MODULE, PLAIN(1, 8, 8, 64, 2048)},
    {.kind = BENCH_MODULE, PLAIN(32, 12, 12, 64, 128)},
    {.kind = BENCH_MODULE, PLAIN(1, 12, 12, 64, 128), .need_weights = true},
    {.kind = BENCH_MODULE, PLAIN(1, 8, 8, 64, 512), .need_weights = true},
    {PRODUCT(512, 512, 512)},
    {PRODUCT(2048, 512, 512)},
    {PRODUCT(128, 768, 768)},
    {PRODUCT(512, 4096, 4096)},
    {PRODUCT(16, 512, 512)},
    {PRODUCT(1, 512, 512)},
    {PRODUCT(1, 4096, 4096)},
    {PRODUCT(2048, 512, 512), .compute = MHA_COMPUTE_BF16},
    {PRODUCT(512, 4096, 4096), .compute = MHA_COMPUTE_BF16},
    {PRODUCT(1, 4096, 4096), .compute = MHA_COMPUTE_BF16},
};

enum { ALL_SHAPES = sizeof all_shapes / sizeof *all_shapes };

static int64_t or_else(int64_t value, int64_t otherwise)
{
    return value ? value : otherwise;
}

static bench_shape shape_of(const bench_options *o, bench_kind kind)
{
    const bool decode = kind == BENCH_DECODE;
    bench_shape s = {.kind = kind,
                     .mask = (bench_mask)o->mask,
                     .batch = or_else(o->batch, 1),
                     .heads = or_else(o->heads, decode ? 32 : 8),
                     .head_dim = or_else(o->head_dim, decode ? 128 : 64),
                     .queries = or_else(o->length, decode                 ? 1
                                                   : kind == BENCH_MODULE ? 512
                                                                          : 2048),
                     .window = o->window,
                     .rows = or_else(o->rows, 512),
                     .outputs = or_else(o->outputs, 512),
                     .inputs = or_else(o->inputs, 512),
                     .by_token = o->layout == 1,
                     .need_weights = o->need_weights,
                     .cache = (bench_cache)o->cache,
                     .page = o->page,
                     .compute = arithmetic[o->compute]};
    s.kv_heads = or_else(o->kv_heads, decode && s.heads % 8 == 0 && !o->heads ? 8 : s.heads);
    s.keys = or_else(o->keys, decode ? 4096 : s.queries);
    if (o->causal) s.mask = BENCH_MASK_CAUSAL;
    if (o->window) s.mask = BENCH_MASK_WINDOW;
    return s;
}

/* Reject options that apply to other works only. */
static cli_exit check_work(const bench_options *o, bench_kind kind, bool all)
{
    const bool sizes = o->heads || o->kv_heads || o->head_dim || o->length || o->keys || o->batch;
    const bool kinds =
        o->causal || o->mask || o->window || o->layout || o->need_weights || o->cache || o->page;
    const bool product = o->rows || o->outputs || o->inputs;
    if (all && (sizes || kinds || product || o->compute))
        return cli_fail(CLI_USAGE,
                        "all measures a fixed list of works; name one of them, such as forward, "
                        "to choose sizes and masks");
    if (all) return CLI_OK;
    if (kind == BENCH_GEMM && (sizes || kinds))
        return cli_fail(CLI_USAGE, "gemm has only the sizes --rows, --outputs and --inputs");
    if (kind != BENCH_GEMM && product)
        return cli_fail(CLI_USAGE, "--rows, --outputs and --inputs apply to gemm only");
    if (o->need_weights && kind != BENCH_MODULE)
        return cli_fail(CLI_USAGE, "--need-weights applies to the work 'module' only");
    if (o->cache && kind != BENCH_DECODE)
        return cli_fail(CLI_USAGE, "--cache applies to the work 'decode' only");
    if (o->page && !o->cache)
        return cli_fail(CLI_USAGE, "--page requires a cache; add its type, such as --cache f32");
    const bool attends = kind == BENCH_FORWARD || (kind == BENCH_DECODE && !o->cache);
    if (o->compute && !attends && kind != BENCH_GEMM)
        return cli_fail(
            CLI_USAGE,
            "--compute bf16 applies to the works 'forward', 'decode' without --cache, and 'gemm'");
    if (arithmetic[o->compute] == MHA_COMPUTE_TILES && kind != BENCH_GEMM)
        return cli_fail(CLI_USAGE, "--compute tiles applies to the work 'gemm' only");
    return CLI_OK;
}

/* --mask, --causal and --window set the same field. */
static cli_exit check_mask(const bench_options *o)
{
    const bench_mask mask = (bench_mask)o->mask;
    if (o->causal && mask != BENCH_MASK_FULL && mask != BENCH_MASK_CAUSAL && !o->window)
        return cli_fail(CLI_USAGE, "--causal conflicts with --mask %s; choose one", masks[mask]);
    if (o->window && mask != BENCH_MASK_FULL && mask != BENCH_MASK_CAUSAL &&
        mask != BENCH_MASK_WINDOW)
        return cli_fail(CLI_USAGE, "--window conflicts with --mask %s; choose one", masks[mask]);
    return CLI_OK;
}

static cli_exit check_shape(const bench_shape *s)
{
    const bool masked = s->mask != BENCH_MASK_FULL && s->mask != BENCH_MASK_CAUSAL;
    if (s->heads % s->kv_heads != 0)
        return cli_fail(CLI_USAGE,
                        "%lld heads cannot share %lld key/value heads evenly; --kv-heads must "
                        "divide --heads",
                        (long long)s->heads, (long long)s->kv_heads);
    if (s->kind == BENCH_MODULE && (masked || s->keys != s->queries || s->by_token))
        return cli_fail(CLI_USAGE, "a module is measured full or --causal, on one sequence "
                                   "length, in its own layout");
    if (s->kind == BENCH_DECODE && (s->mask == BENCH_MASK_WINDOW || (s->cache && masked)))
        return cli_fail(CLI_USAGE,
                        "decode is measured without windows, and with --cache full or --causal");
    if (s->mask == BENCH_MASK_WINDOW && (!s->window || s->keys != s->queries))
        return cli_fail(CLI_USAGE, "a window needs --window N, and as many keys as tokens");
    if (s->mask == BENCH_MASK_CAUSAL && s->keys < s->queries)
        return cli_fail(CLI_USAGE, "causal: %lld --keys are fewer than the %lld tokens of --length",
                        (long long)s->keys, (long long)s->queries);
    if (s->mask == BENCH_MASK_LENGTHS && (s->keys <= 100 || s->batch > 16))
        return cli_fail(CLI_USAGE,
                        "lengths: 100 keys are padding; give more keys, and at most 16 sequences");
    return CLI_OK;
}

/* ---- the run --------------------------------------------------------------------------------- */

static bench_limits limits_of(const bench_options *o)
{
    return (bench_limits){.wanted = (int)or_else(o->samples, 15),
                          .seconds = o->seconds.given ? o->seconds.value : 10,
                          .patience = o->patience.given ? o->patience.value : 600};
}

static cli_exit measure_row(mha_context *context, const bench_limits *limits,
                            const bench_shape *shape, const bench_machine *machine, bench_row *row)
{
    if (shape->compute != MHA_COMPUTE_F32) { /* the f32 row, first */
        bench_shape twin = *shape;
        twin.compute = MHA_COMPUTE_F32;
        CLI_TRY(measure_row(context, limits, &twin, machine, row));
        row->f32 = row->result.median;
    }
    CLI_TRY(bench_measure(context, machine, shape, limits, &row->work, &row->result));
    row->limit = bench_limit(machine, &row->work, row->result.beside);
    row->best = bench_limit(machine, &row->work, row->result.most);
    return CLI_OK;
}

static mha_status draw_json(const void *user, const mha_sink *sink)
{
    return bench_write_json(user, sink);
}

static mha_status draw_svg(const void *user, const mha_sink *sink)
{
    return bench_write_roofline(user, false, sink);
}

static mha_status draw_pdf(const void *user, const mha_sink *sink)
{
    return bench_write_roofline(user, true, sink);
}

static cli_exit write_outputs(const bench_options *o, const bench_report *report)
{
    if (o->json) CLI_TRY(cli_check(files_draw("-", draw_json, report)));
    if (o->svg) CLI_TRY(cli_check(files_draw(o->svg, draw_svg, report)));
    return o->pdf ? cli_check(files_draw(o->pdf, draw_pdf, report)) : CLI_OK;
}

/* Checks that need the machine's measurement, before minutes are spent on rows. */
static cli_exit check_machine(const bench_options *o, const bench_machine *machine,
                              const bench_older *older)
{
    bench_older_warn(older, machine);
    if ((!o->svg && !o->pdf) || machine->fma_peak > 0) return CLI_OK;
    return cli_fail(CLI_UNSUPPORTED, "--%s: the peak of %s is unknown, so there is no roof to draw",
                    o->svg ? "svg" : "pdf", mha_isa_name(machine->isa));
}

static cli_exit measure_all(const bench_options *o, mha_context *context, const bench_shape *shapes,
                            const bench_older *older, bench_report *report)
{
    const bench_limits limits = limits_of(o);
    cli_note(o->quiet || !o->json, "measuring the machine, then %d row%s", report->count,
             words_s(report->count));
    CLI_TRY(bench_machine_measure(context, limits.patience < 0.5 ? limits.patience : 0.5,
                                  &report->machine));
    int found = 0; /* rows that are also in the older file */
    CLI_TRY(check_machine(o, &report->machine, older));
    if (!o->json) bench_print_machine(&report->machine);
    for (int i = 0; i < report->count; i++) {
        bench_row *row = &report->rows[i];
        CLI_TRY(measure_row(context, &limits, &shapes[i], &report->machine, row));
        row->before = bench_older_median(older, row->work.name);
        found += row->before > 0;
        if (!o->json) bench_print_row(&report->machine, row);
        if (o->json) cli_note(o->quiet, "%s", row->work.name);
        if (row->work.bytes == 0 && row->limit > 1.02 * row->result.median)
            cli_warn("%s: faster than the peak, which was measured while others used the machine; "
                     "measure again",
                     row->work.name);
    }
    if (older && !found)
        cli_warn("--compare: '%s' has no row '%s'%s", o->compare, report->rows[0].work.name,
                 report->count > 1 ? " or another of these" : "");
    return write_outputs(o, report);
}

static cli_exit bench(const bench_options *o, const bench_shape *shapes, int count)
{
    mha_context *context;
    bench_older *older;
    bench_report report = {.count = count};
    CLI_TRY(context_make((mha_isa)o->isa, o->threads, &context));
    CLI_TRY(ARENA_ALLOC(count, &report.rows));
    CLI_TRY(bench_older_read(o->compare, &older));
    return measure_all(o, context, shapes, older, &report);
}

static cli_exit check_options(const bench_options *o)
{
    if (o->seconds.given && o->seconds.value < 0)
        return cli_fail(CLI_USAGE, "--seconds is negative");
    if (o->patience.given && o->patience.value < 0)
        return cli_fail(CLI_USAGE, "--patience is negative");
    const char *const plots[] = {o->svg, o->pdf};
    for (int i = 0; i < 2; i++) {
        if (plots[i] && !strcmp(plots[i], "-"))
            return cli_fail(CLI_USAGE, "--%s -: stdout has the rows; name a file for the plot",
                            i ? "pdf" : "svg");
        if (plots[i]) CLI_TRY(cli_check(files_check_place(plots[i])));
    }
    return check_mask(o);
}

static cli_exit unknown_work(const char *word)
{
    const char *names[BENCH_KINDS + 1] = {[BENCH_KINDS] = "all"};
    for (int i = 0; i < BENCH_KINDS; i++) names[i] = bench_kind_name((bench_kind)i);
    const char *near = mha_nearest_name(word, names, BENCH_KINDS + 1);
    if (near) return cli_fail(CLI_USAGE, "unknown work '%s'; did you mean '%s'?", word, near);
    return cli_fail(CLI_USAGE,
                    "unknown work '%s'; expected forward, backward, decode, module, gemm or all",
                    word);
}

cli_exit cmd_bench(int count, char *const *arguments)
{
    bench_options options = {0};
    args_line line = {0};
    CLI_TRY(args_parse(&bench_page, count, arguments, &options, &line));
    CLI_TRY(check_options(&options));
    if (!strcmp(line.plain.items[0], "all")) {
        CLI_TRY(check_work(&options, BENCH_KINDS, true));
        return bench(&options, all_shapes, ALL_SHAPES);
    }
    for (int kind = 0; kind < BENCH_KINDS; kind++) {
        if (strcmp(line.plain.items[0], bench_kind_name((bench_kind)kind)) != 0) continue;
        const bench_shape shape = shape_of(&options, (bench_kind)kind);
        CLI_TRY(check_work(&options, (bench_kind)kind, false));
        CLI_TRY(check_shape(&shape));
        return bench(&options, &shape, 1);
    }
    return unknown_work(line.plain.items[0]);
}
