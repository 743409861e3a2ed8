/* What was measured, as lines and as JSON; and what an older run says of the same work. */
#include "bench/bench.h"
#include "common/arena.h"
#include "common/commands.h"
#include "common/json_out.h"

#include <jansson.h>

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

double bench_peak(const bench_machine *machine, const bench_work *work)
{
    return work->shape.compute == MHA_COMPUTE_BF16 ? machine->bf16_peak : machine->fma_peak;
}

double bench_limit(const bench_machine *machine, const bench_work *work, double bandwidth)
{
    const double peak = bench_peak(machine, work), compute = peak > 0 ? work->flops / peak : 0;
    const double memory = work->bytes > 0 ? work->bytes / bandwidth : 0;
    return compute > memory ? compute : memory;
}

/* ---- lines ----------------------------------------------------------------------------------- */

/* "AMD EPYC, Zen 3 (Milan), AuthenticAMD family 25 model 1 stepping 1", as far as it is known. */
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
              m->threads == 1 ? "" : "s", (long long)(m->l2 >> 10));
    if (m->fma_peak > 0) cli_print("%.1f GFLOP/s of multiply-adds, ", 1e-9 * m->fma_peak);
    if (m->bf16_peak > 0) cli_print("%.0f GFLOP/s of bf16 products, ", 1e-9 * m->bf16_peak);
    cli_print("reads %.1f GB/s\n", 1e-9 * m->bandwidth);
    cli_print("%-36s %10s %10s  %9s %8s  %6s %6s  %s\n", "", "median ms", "best ms", "GFLOP/s",
              "GB/s", "% roof", "best", "quiet samples");
}

/* Less than the peak while the work ran: the host gave less of its processors. */
static void print_share(const bench_machine *machine, const bench_row *row)
{
    if (row->work.bytes == 0 && row->result.beside < 0.9 * machine->fma_peak)
        cli_print("  (at the time the machine gave %.0f GFLOP/s of multiply-adds)",
                  1e-9 * row->result.beside);
}

void bench_print_row(const bench_machine *machine, const bench_row *row)
{
    const bench_result *r = &row->result;
    cli_print("%-36s %10.4g %10.4g  %9.1f ", row->work.name, 1e3 * r->median, 1e3 * r->best,
              1e-9 * row->work.flops / r->median);
    if (row->work.bytes > 0)
        cli_print("%8.1f", 1e-9 * row->work.bytes / r->median);
    else
        cli_print("%8s", "");
    if (row->limit > 0)
        cli_print("  %6.1f %6.1f", 100 * row->limit / r->median, 100 * row->best / r->best);
    else
        cli_print("  %6s %6s", "", "");
    cli_print("  %d of %d%s", r->quiet, r->samples, r->gated ? "" : ", ungated");
    if (row->f32 > 0) cli_print("  %.2f times as fast as f32", row->f32 / r->median);
    if (row->before > 0) cli_print("  %.2f times as fast as before", row->before / r->median);
    print_share(machine, row);
    cli_print("\n");
    fflush(stdout);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

static void put_int(json_out *json, const char *name, int64_t value)
{
    json_print(json, ", \"%s\": %" PRId64, name, value);
}

static void put_bool(json_out *json, const char *name, bool value)
{
    json_print(json, ", \"%s\": %s", name, value ? "true" : "false");
}

/* Numbers of 0 or less are not known. */
static void put_real(json_out *json, const char *name, double value)
{
    json_print(json, ", \"%s\": ", name);
    if (value > 0)
        json_number(json, value, "");
    else
        json_print(json, "null");
}

static void put_text(json_out *json, const char *name, const char *text)
{
    json_print(json, ", \"%s\": ", name);
    json_text(json, *text ? text : NULL);
}

/* The day of the measurement, where it was measured. */
static void put_date(json_out *json)
{
    char date[16] = "";
    const time_t now = time(NULL);
    struct tm parts;
    if (localtime_r(&now, &parts)) strftime(date, sizeof date, "%Y-%m-%d", &parts);
    put_text(json, "date", date);
}

static void put_machine(json_out *json, const bench_machine *m)
{
    json_print(json, "\"isa\": \"%s\"", mha_isa_name(m->isa));
    put_text(json, "processor", m->processor.name);
    put_text(json, "microarchitecture", m->processor.microarchitecture);
    put_text(json, "processor_id", m->processor.id);
    put_date(json);
    put_int(json, "threads", m->threads);
    put_int(json, "l2_bytes", m->l2);
    put_real(json, "peak_gflops", 1e-9 * m->fma_peak);
    put_real(json, "peak_bf16_gflops", 1e-9 * m->bf16_peak);
    put_real(json, "bandwidth_gbs", 1e-9 * m->bandwidth);
}

static void put_shape(json_out *json, const bench_shape *s)
{
    static const char *const masks[] = {"full",    "causal", "window", "blocks",
                                        "lengths", "keep",   "bias"};
    json_print(json, ", \"compute\": \"%s\"", mha_compute_name(s->compute));
    if (s->kind == BENCH_GEMM) {
        put_int(json, "rows", s->rows);
        put_int(json, "outputs", s->outputs);
        put_int(json, "inputs", s->inputs);
        return;
    }
    put_int(json, "batch", s->batch);
    put_int(json, "heads", s->heads);
    put_int(json, "kv_heads", s->kv_heads);
    put_int(json, "head_dim", s->head_dim);
    put_int(json, "queries", s->queries);
    put_int(json, "keys", s->keys);
    json_print(json, ", \"mask\": \"%s\"", masks[s->mask]);
    if (s->mask == BENCH_MASK_WINDOW) put_int(json, "window", s->window);
    json_print(json, ", \"layout\": \"%s\"", s->by_token ? "bthd" : "bhtd");
    put_bool(json, "need_weights", s->need_weights);
    static const char *const caches[] = {"null", "\"f32\"", "\"f16\"", "\"bf16\"", "\"int8\""};
    json_print(json, ", \"cache\": %s", caches[s->cache]);
    if (s->page) put_int(json, "page", s->page);
}

static void put_reals(json_out *json, const char *name, const double *values, int count)
{
    json_print(json, ",\n  \"%s\": [", name);
    for (int i = 0; i < count; i++) json_number(json, values[i], i ? ", " : "");
    json_print(json, "]");
}

static void put_row(json_out *json, const bench_machine *machine, const bench_row *row)
{
    const bench_result *r = &row->result;
    json_print(json, "\"name\": ");
    json_text(json, row->work.name);
    json_print(json, ", \"work\": \"%s\"", bench_kind_name(row->work.shape.kind));
    put_shape(json, &row->work.shape);
    put_real(json, "flops", row->work.flops);
    put_real(json, "bytes", row->work.bytes);
    put_real(json, "median_seconds", r->median);
    put_real(json, "best_seconds", r->best);
    put_real(json, "gflops", 1e-9 * row->work.flops / r->median);
    put_real(json, "best_gflops", 1e-9 * row->work.flops / r->best);
    put_real(json, "gbs", 1e-9 * row->work.bytes / r->median);
    const double peak = bench_peak(machine, &row->work);
    put_real(json, "percent_of_peak", peak > 0 ? 100 * row->work.flops / r->median / peak : 0);
    if (row->work.shape.compute != MHA_COMPUTE_F32) {
        put_real(json, "f32_median_seconds", row->f32);
        put_real(json, "times_as_fast_as_f32", row->f32 / r->median);
    }
    put_real(json, "percent_of_roofline", 100 * row->limit / r->median);
    put_real(json, "best_percent_of_roofline", 100 * row->best / r->best);
    put_real(json, "peak_gflops_beside", row->work.bytes > 0 ? 0 : 1e-9 * r->beside);
    put_real(json, "bandwidth_gbs_beside", row->work.bytes > 0 ? 1e-9 * r->beside : 0);
    put_real(json, "older_median_seconds", row->before);
    put_bool(json, "gated", r->gated);
    put_int(json, "quiet_samples", r->quiet);
    put_real(json, "quiet_probe_seconds", r->quiet_level);
    put_reals(json, "samples", r->seconds, r->samples);
    put_reals(json, "probes", r->noise, r->samples);
}

mha_status bench_write_json(const bench_report *report, const mha_sink *sink)
{
    json_out json = {.sink = sink};
    json_print(&json, "{\"format\": \"multihead-bench\", \"version\": 1, \"producer\": ");
    json_text(&json, "multihead " CLI_VERSION);
    json_print(&json, ",\n  ");
    put_machine(&json, &report->machine);
    json_print(&json, report->count == 1 ? ",\n  " : ",\n  \"rows\": [");
    for (int i = 0; i < report->count; i++) {
        if (report->count > 1) json_print(&json, i ? ",\n {" : "\n {");
        put_row(&json, &report->machine, &report->rows[i]);
        if (report->count > 1) json_print(&json, "}");
    }
    json_print(&json, report->count == 1 ? "}\n" : "]}\n");
    return json.status;
}

/* ---- an older run ---------------------------------------------------------------------------- */

struct bench_older {
    json_t *root;
    const char *path; /* the caller's */
};

/* Nothing else than what put_machine() wrote. */
static cli_exit check_older(const json_t *root, const char *path)
{
    const char *format = json_string_value(json_object_get(root, "format"));
    const json_int_t version = json_integer_value(json_object_get(root, "version"));
    if (!format || strcmp(format, "multihead-bench") != 0)
        return cli_fail(CLI_BAD_INPUT, BENCH,
                        "--compare: '%s' was not written by 'multihead bench --json'", path);
    if (version != 1)
        return cli_fail(CLI_UNSUPPORTED, BENCH,
                        "--compare: '%s' is of version %lld, only 1 can be read; measure again "
                        "with this program",
                        path, (long long)version);
    return CLI_OK;
}

static void release_json(void *root)
{
    json_decref(root);
}

cli_exit bench_older_read(const char *path, bench_older **older)
{
    json_error_t error;
    *older = NULL;
    if (!path) return CLI_OK;
    FILE *file = fopen(path, "rb");
    json_t *root = file ? json_loadf(file, 0, &error) : NULL;
    const int reason = !file || ferror(file) ? errno : 0;
    if (file) fclose(file);
    if (!root && reason)
        return cli_fail(CLI_NO_INPUT, BENCH, "--compare: '%s' cannot be read: %s", path,
                        strerror(reason));
    if (!root)
        return cli_fail(CLI_BAD_INPUT, BENCH, "--compare: '%s', line %d: %s", path, error.line,
                        error.text);
    CLI_TRY(arena_keep(BENCH, root, release_json));
    CLI_TRY(check_older(root, path));
    CLI_TRY(ARENA_ALLOC(BENCH, 1, older));
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
        cli_warn(BENCH, "--compare: '%s' was measured with %s and %lld threads, this is %s and %d",
                 older->path, isa ? isa : "?", (long long)threads, mha_isa_name(machine->isa),
                 machine->threads);
    else if (processor && strcmp(processor, machine->processor.id) != 0)
        cli_warn(BENCH, "--compare: '%s' was measured on another processor: %s; this is %s",
                 older->path, processor, machine->processor.id);
    else if (peak > 1.1 * machine->fma_peak || 1.1 * peak < machine->fma_peak)
        cli_warn(BENCH,
                 "--compare: where '%s' was measured the peak was %.1f GFLOP/s, here it is %.1f: "
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
