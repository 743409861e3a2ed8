/* Results as lines and as JSON, and the results of an older run of the same work. */
#include "bench/bench.h"
#include "common/arena.h"
#include "common/commands.h"
#include "common/table.h"
#include "common/texts.h"
#include "common/words.h"

#include <multihead/json.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* The peak for the work's products: f32 or bf16 multiply-adds; 0: unknown. */
static double peak_of(const bench_machine *machine, const bench_work *work)
{
    return work->shape.compute == MHA_COMPUTE_BF16 ? machine->bf16_peak : machine->fma_peak;
}

double bench_limit(const bench_machine *machine, const bench_work *work, double bandwidth)
{
    const double peak = peak_of(machine, work), compute = peak > 0 ? work->flops / peak : 0;
    const double memory = work->bytes > 0 ? work->bytes / bandwidth : 0;
    return compute > memory ? compute : memory;
}

/* Unknown numbers are 0 or less. */
static double known(double value)
{
    return value > 0 ? value : NAN;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static const table_column columns[] = {
    {"", -36, 0, 0, {0}},       {"median ms", 11, 0, 0, {0}},
    {"best ms", 11, 0, 0, {0}}, {"GFLOP/s", 11, 1, 0, {0}},
    {"GB/s", 9, 1, 0, {0}},     {"% roof", 8, 1, 0, {0}},
    {"best", 7, 1, 0, {0}},     {"  quiet samples", 0, 0, 0, {0}},
    {"", 0, 0, 0, {0}},         {"", 0, 0, 0, {0}},
    {"", 0, 0, 0, {0}}};

/* "AMD EPYC, Zen 3 (Milan), AuthenticAMD family 25 model 1 stepping 1"; unknown parts are
 * omitted. */
static void print_processor(const bench_processor *p)
{
    const char *const parts[] = {p->name, p->microarchitecture, p->id};
    const char *before = "";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!*parts[i]) continue;
        cli_print("%s%s", before, parts[i]);
        before = ", ";
    }
    if (*before) cli_print("\n");
}

void bench_print_machine(const bench_machine *m)
{
    print_processor(&m->processor);
    cli_print("%s, %d thread%s, L2 %lld KiB: ", mha_isa_name(m->isa), m->threads,
              words_s(m->threads), (long long)(m->l2 >> 10));
    if (m->fma_peak > 0) cli_print("%.1f GFLOP/s of multiply-adds, ", 1e-9 * m->fma_peak);
    if (m->bf16_peak > 0) cli_print("%.0f GFLOP/s of bf16 products, ", 1e-9 * m->bf16_peak);
    cli_print("reads %.1f GB/s\n", 1e-9 * m->bandwidth);
    table_head(&(table){.columns = columns}, 8);
}

/* Print the rate of multiply-adds while the work ran if it was below the peak: the host gave less
 * processor time. */
static void put_share(table *t, const bench_machine *machine, const bench_row *row)
{
    if (row->work.bytes == 0 && row->result.beside < 0.9 * machine->fma_peak)
        table_text(t, "  (the machine then reached %.0f GFLOP/s of multiply-adds)",
                   1e-9 * row->result.beside);
}

void bench_print_row(const bench_machine *machine, const bench_row *row)
{
    const bench_result *r = &row->result;
    table t = {.columns = columns};
    table_text(&t, "%s", row->work.name);
    table_text(&t, "%.4g", 1e3 * r->median);
    table_text(&t, "%.4g", 1e3 * r->best);
    table_number(&t, 1e-9 * row->work.flops / r->median);
    table_number(&t, known(1e-9 * row->work.bytes / r->median));
    table_number(&t, known(100 * row->limit / r->median));
    table_number(&t, row->limit > 0 ? 100 * row->best / r->best : NAN);
    table_text(&t, "  %d of %d%s", r->quiet, r->samples, r->gated ? "" : ", ungated");
    if (row->f32 > 0) table_text(&t, "  %.2f times as fast as f32", row->f32 / r->median);
    if (row->before > 0) table_text(&t, "  %.2f times as fast as before", row->before / r->median);
    put_share(&t, machine, row);
    table_end(&t);
    fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static const char *known_text(const char *text)
{
    return *text ? text : NULL;
}

static void put_machine(mha_json *json, const bench_machine *m)
{
    char date[16] = ""; /* the day of the measurement, in the machine's time zone */
    const time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts)) strftime(date, sizeof date, "%Y-%m-%d", &parts);
    mha_json_text(json, "isa", mha_isa_name(m->isa));
    mha_json_text(json, "processor", known_text(m->processor.name));
    mha_json_text(json, "microarchitecture", known_text(m->processor.microarchitecture));
    mha_json_text(json, "processor_id", known_text(m->processor.id));
    mha_json_text(json, "date", known_text(date));
    mha_json_integer(json, "threads", m->threads);
    mha_json_integer(json, "l2_bytes", m->l2);
    mha_json_number(json, "peak_gflops", known(1e-9 * m->fma_peak));
    mha_json_number(json, "peak_bf16_gflops", known(1e-9 * m->bf16_peak));
    mha_json_number(json, "bandwidth_gbs", known(1e-9 * m->bandwidth));
}

static void put_shape(mha_json *json, const bench_shape *s)
{
#define SHAPE(member) MHA_JSON_FIELD(INTEGER, bench_shape, member)
    static const mha_json_field product[] = {SHAPE(rows), SHAPE(outputs), SHAPE(inputs), {0}};
    static const mha_json_field fields[] = {
        SHAPE(batch), SHAPE(heads), SHAPE(kv_heads), SHAPE(head_dim), SHAPE(queries),
        SHAPE(keys),  {0}};
#undef SHAPE
    static const char *const masks[] = {"full",    "causal", "window", "blocks",
                                        "lengths", "keep",   "bias"};
    static const char *const caches[] = {NULL, "f32", "f16", "bf16", "int8"};
    mha_json_text(json, "compute", mha_compute_name(s->compute));
    mha_json_fields(json, s->kind == BENCH_GEMM ? product : fields, s);
    if (s->kind == BENCH_GEMM) return;
    mha_json_text(json, "mask", masks[s->mask]);
    if (s->mask == BENCH_MASK_WINDOW) mha_json_integer(json, "window", s->window);
    mha_json_text(json, "layout", s->by_token ? "bthd" : "bhtd");
    mha_json_bool(json, "need_weights", s->need_weights);
    mha_json_text(json, "cache", caches[s->cache]);
    if (s->page) mha_json_integer(json, "page", s->page);
}

static void put_row(mha_json *json, const bench_machine *machine, const bench_row *row)
{
    const bench_result *r = &row->result;
    const double peak = peak_of(machine, &row->work), flops = row->work.flops;
    mha_json_text(json, "name", row->work.name);
    mha_json_text(json, "work", bench_kind_name(row->work.shape.kind));
    put_shape(json, &row->work.shape);
    mha_json_number(json, "flops", known(flops));
    mha_json_number(json, "bytes", known(row->work.bytes));
    mha_json_number(json, "median_seconds", known(r->median));
    mha_json_number(json, "best_seconds", known(r->best));
    mha_json_number(json, "gflops", known(1e-9 * flops / r->median));
    mha_json_number(json, "best_gflops", known(1e-9 * flops / r->best));
    mha_json_number(json, "gbs", known(1e-9 * row->work.bytes / r->median));
    mha_json_number(json, "percent_of_peak",
                    peak > 0 ? known(100 * flops / r->median / peak) : NAN);
    if (row->work.shape.compute != MHA_COMPUTE_F32) {
        mha_json_number(json, "f32_median_seconds", known(row->f32));
        mha_json_number(json, "times_as_fast_as_f32", known(row->f32 / r->median));
    }
    mha_json_number(json, "percent_of_roofline", known(100 * row->limit / r->median));
    mha_json_number(json, "best_percent_of_roofline", known(100 * row->best / r->best));
    mha_json_number(json, "peak_gflops_beside",
                    row->work.bytes > 0 ? NAN : known(1e-9 * r->beside));
    mha_json_number(json, "bandwidth_gbs_beside",
                    row->work.bytes > 0 ? known(1e-9 * r->beside) : NAN);
    mha_json_number(json, "older_median_seconds", known(row->before));
    mha_json_bool(json, "gated", r->gated);
    mha_json_integer(json, "quiet_samples", r->quiet);
    mha_json_number(json, "quiet_probe_seconds", known(r->quiet_level));
    mha_json_line(json, 2);
    mha_json_numbers(json, "samples", r->seconds, r->samples);
    mha_json_line(json, 2);
    mha_json_numbers(json, "probes", r->noise, r->samples);
}

mha_status bench_write_json(const bench_report *report, const mha_sink *sink)
{
    mha_json json = {.sink = sink};
    mha_json_object(&json, NULL);
    mha_json_text(&json, "format", "multihead-bench");
    mha_json_integer(&json, "version", 1);
    mha_json_text(&json, "producer", "multihead " CLI_VERSION);
    mha_json_line(&json, 2);
    put_machine(&json, &report->machine);
    mha_json_line(&json, 2);
    if (report->count != 1) mha_json_array(&json, "rows");
    for (int i = 0; i < report->count; i++) {
        if (report->count > 1) {
            mha_json_line(&json, 1);
            mha_json_object(&json, NULL);
        }
        put_row(&json, &report->machine, &report->rows[i]);
        if (report->count > 1) mha_json_end(&json);
    }
    if (report->count != 1) mha_json_end(&json);
    mha_json_end(&json);
    return mha_json_finish(&json);
}

/* ---- an older run ---------------------------------------------------------------------------- */

struct bench_older {
    json_t *root;
    const char *path; /* the caller's */
};

/* Accept only what put_machine() wrote. */
static cli_exit check_older(const json_t *root, const char *path)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (!format || strcmp(format, "multihead-bench") != 0)
        return cli_fail(CLI_BAD_INPUT,
                        "--compare: '%s' was not written by 'multihead bench --json'", path);
    if (version != 1)
        return cli_fail(CLI_UNSUPPORTED,
                        "--compare: '%s' is of version %lld, only 1 can be read; measure again "
                        "with this program",
                        path, (long long)version);
    return CLI_OK;
}

cli_exit bench_older_read(const char *path, bench_older **older)
{
    json_error_t error;
    json_t *root;
    char *text;
    size_t size;
    *older = NULL;
    if (!path) return CLI_OK;
    CLI_TRY(texts_read_file(path, &text, &size));
    CLI_TRY(texts_json(path, text, size, 0, &root, &error));
    if (!root)
        return cli_fail(CLI_BAD_INPUT, "--compare: '%s', line %d: %s", path, error.line,
                        error.text);
    CLI_TRY(check_older(root, path));
    CLI_TRY(ARENA_ALLOC(1, older));
    **older = (bench_older){root, path};
    return CLI_OK;
}

void bench_older_warn(const bench_older *older, const bench_machine *machine)
{
    if (!older) return;
    const char *isa = json_string_value(json_object_get(older->root, "isa"));
    const char *processor = json_string_value(json_object_get(older->root, "processor_id"));
    const json_int_t threads = json_integer_value(json_object_get(older->root, "threads"));
    const double peak = 1e9 * json_number_value(json_object_get(older->root, "peak_gflops"));
    if (!isa || strcmp(isa, mha_isa_name(machine->isa)) != 0 || threads != machine->threads)
        cli_warn("--compare: '%s' was measured with %s and %lld threads, this is %s and %d",
                 older->path, isa ? isa : "?", (long long)threads, mha_isa_name(machine->isa),
                 machine->threads);
    else if (processor && strcmp(processor, machine->processor.id) != 0)
        cli_warn("--compare: '%s' was measured on another processor: %s; this is %s", older->path,
                 processor, machine->processor.id);
    else if (peak > 1.1 * machine->fma_peak || 1.1 * peak < machine->fma_peak)
        cli_warn("--compare: '%s' was measured with a peak of %.1f GFLOP/s, here it is %.1f: "
                 "another machine, or other load",
                 older->path, 1e-9 * peak, 1e-9 * machine->fma_peak);
}

static double row_median(const json_t *row, const char *name)
{
    const char *text = json_string_value(json_object_get(row, "name"));
    const bool same = text && !strcmp(text, name);
    return same ? json_number_value(json_object_get(row, "median_seconds")) : 0;
}

double bench_older_median(const bench_older *older, const char *name)
{
    if (!older) return 0;
    const json_t *rows = json_object_get(older->root, "rows");
    double median = row_median(older->root, name);
    for (size_t i = 0; !(median > 0) && i < json_array_size(rows); i++)
        median = row_median(json_array_get(rows, i), name);
    return median;
}
