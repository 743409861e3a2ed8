/* multihead bench: the operations and bytes of each work, the machine's peaks, measured in the same
 * run, and the fraction of a peak that each work reaches. */
#ifndef CLI_BENCH_H
#define CLI_BENCH_H

#include "common/args.h"
#include "common/exits.h"

#include <multihead/multihead.h>
#include <multihead/sink.h>

/* The one list of kinds of work: name, value, description. */
#define BENCH_KIND_LIST(X)                                                    \
    X(BENCH_FORWARD, 0, "forward", "attention")                               \
    X(BENCH_BACKWARD, 1, "backward", "its gradients with respect to q, k, v") \
    X(BENCH_DECODE, 2, "decode", "one query against many keys")               \
    X(BENCH_MODULE, 3, "module", "projections, attention, projection")        \
    X(BENCH_GEMM, 4, "gemm", "a linear layer")

typedef enum bench_kind {
#define BENCH_KIND_ENUM(name, value, text, what) name = value,
    BENCH_KIND_LIST(BENCH_KIND_ENUM)
#undef BENCH_KIND_ENUM
        BENCH_KINDS
} bench_kind;

const char *bench_kind_name(bench_kind kind);

typedef enum bench_cache {
    BENCH_CACHE_NONE, /* plain tensors */
    BENCH_CACHE_F32,
    BENCH_CACHE_F16,
    BENCH_CACHE_BF16,
    BENCH_CACHE_INT8
} bench_cache;

typedef enum bench_mask {
    BENCH_MASK_FULL,
    BENCH_MASK_CAUSAL,
    BENCH_MASK_WINDOW,  /* causal, `window` keys */
    BENCH_MASK_BLOCKS,  /* a fifth of the blocks of 64 x 64 is visible */
    BENCH_MASK_LENGTHS, /* 100 keys are padding */
    BENCH_MASK_KEEP,    /* a byte for each pair */
    BENCH_MASK_BIAS     /* a bias per pair */
} bench_mask;

/* The work to measure; sizes are positive. */
typedef struct bench_shape {
    bench_kind kind;
    bench_mask mask;
    int64_t batch, heads, kv_heads, head_dim, queries, keys, window;
    int64_t rows, outputs, inputs; /* gemm: M, N, K */
    bool by_token;                 /* [B,T,H,D] in memory, as projections write it */
    bool need_weights;             /* module: also compute the mean weights over heads */
    bench_cache cache;             /* decode from a KV cache of this type */
    int64_t page;                  /* positions of its pages; 0: one page */
    mha_compute compute;           /* forward, decode: including packing; bf16 with bf16 tensors */
} bench_shape;

/* A work that can run any number of times. Run i uses copy i of the data that must come from
 * memory. */
typedef struct bench_work {
    char name[96];
    bench_shape shape;
    double flops;
    double bytes; /* size of all copies of that data; 0: everything fits into caches */
    mha_status (*run)(void *user, int64_t i);
    void *user;
} bench_work;

/* The work's memory belongs to the arena. Errors are printed. */
cli_exit bench_work_make(mha_context *context, const bench_shape *shape, bench_work *work);

/* ---- the machine ----------------------------------------------------------------------------- */

/* Texts are empty if unknown. */
typedef struct bench_processor {
    char name[96]; /* the vendor's or the host's name for it */
    char microarchitecture[48];
    char id[96]; /* vendor, family, model, stepping */
} bench_processor;

void bench_processor_read(bench_processor *processor);

typedef struct bench_machine {
    bench_processor processor;
    mha_isa isa;
    int threads;
    int64_t l2;       /* bytes, which determine how the library divides work */
    double fma_peak;  /* multiply-adds in registers, FLOP/s; 0: unknown for this processor */
    double bf16_peak; /* the same for products of bf16 */
    double bandwidth; /* bytes read per second */
    float *memory;    /* larger than the caches, for reading during work */
} bench_machine;

/* Measure each of the three rates for at most `seconds`, or a few runs. Errors are printed. */
cli_exit bench_machine_measure(mha_context *context, double seconds, bench_machine *machine);

/* Short pieces of the same work, to run between samples. They return multiply-adds per second (0:
 * unknown), and bytes read per second from the i-th piece of a machine's memory. */
double bench_multiply_piece(mha_context *context);
double bench_read_piece(mha_context *context, const float *memory, int64_t i);

int bench_compare(const void *a, const void *b); /* comparison of doubles for qsort */

enum { BENCH_MOST_SAMPLES = 4000, BENCH_QUIET = 5 };

/* A probe is a short piece of the same kind of work. A sample is quiet if the probes before and
 * after it took at most 5 % longer than on an otherwise idle machine. */
typedef struct bench_result {
    double median, best;     /* seconds; the median of the quiet samples, or of all if ungated */
    int samples, quiet;      /* numbers of samples */
    bool gated;              /* there are at least BENCH_QUIET quiet samples */
    double *seconds, *noise; /* [samples] each sample, and the longer of its two probes */
    double *rates;      /* [samples] multiply-adds or bytes read per second: mean of both probes */
    double beside;      /* median over the samples that count */
    double most;        /* third highest rate of all samples */
    double quiet_level; /* seconds of a probe on an otherwise idle machine */
} bench_result;

/* Measuring ends when `wanted` samples are quiet, after `seconds` if BENCH_QUIET samples are quiet,
 * or after `patience` seconds. */
typedef struct bench_limits {
    int wanted;
    double seconds, patience;
} bench_limits;

/* Make the work of a shape and measure it; only the description of the work remains. Errors are
 * printed. */
cli_exit bench_measure(mha_context *context, const bench_machine *machine, const bench_shape *shape,
                       const bench_limits *limits, bench_work *work, bench_result *result);

/* ---- output ---------------------------------------------------------------------------------- */

typedef struct bench_row {
    bench_work work;
    bench_result result;
    double limit;  /* minimum seconds on this machine, by its peak or by the bandwidth of the
                      probes */
    double best;   /* the same with the highest bandwidth of the probes */
    double before; /* median of the older run; 0: none */
    double f32;    /* median in f32, if the row is not in f32 */
} bench_row;

typedef struct bench_report {
    bench_machine machine;
    bench_row *rows;
    int count;
} bench_report;

/* Minimum seconds on this machine; 0 if its peak is unknown. Traffic from memory is compared with
 * the bandwidth measured at the same time, because bandwidth on a shared machine changes within
 * seconds. */
double bench_limit(const bench_machine *machine, const bench_work *work, double bandwidth);

void bench_print_machine(const bench_machine *machine);
void bench_print_row(const bench_machine *machine, const bench_row *row);

/* Write one object: a single row's fields follow those of the machine; several rows are under
 * "rows". */
mha_status bench_write_json(const bench_report *report, const mha_sink *sink);

/* Read an older --json file. If path is NULL, *older is NULL. Errors are printed. path must outlive
 * *older. */
typedef struct bench_older bench_older;
cli_exit bench_older_read(const char *path, bench_older **older);

/* Warn if the older run had other settings or another machine. */
void bench_older_warn(const bench_older *older, const bench_machine *machine);

/* The older median of the row with that name; 0: there is none. */
double bench_older_median(const bench_older *older, const char *name);

/* Plot operations per second against operations per byte, both logarithmic, under the machine's
 * roof. */
mha_status bench_write_roofline(const bench_report *report, bool pdf, const mha_sink *sink);

#endif
