/* The parts of `multihead run`: options -> arrays -> a problem -> its outputs -> files, stdout.
 *
 * Letters as in attention.h. The arrays of the files may lack leading axes; the problem is always
 * [B,H,T,D], and what is written has the axes of q again.
 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "common/args.h"

#include <multihead/multihead.h>
#include <multihead/sink.h>

#define RUN "run" /* the name in messages */

typedef enum run_layout { RUN_BHTD = 0, RUN_BTHD = 1 } run_layout;

/* What the command line says. Texts are pointers into it; NULL and 0: not given. */
typedef struct run_options {
    const char *x, *q, *k, *v, *memory;
    int64_t heads, kv_heads;
    int layout, example, dtype, module, sinusoidal;

    int causal, strict, linear, alibi, t5_one_sided, rope;
    int64_t offset, sink_keys, t5_max_distance, seed, rope_dim;
    const char *offsets, *lengths, *begins, *window, *block_size, *query_starts, *key_starts;
    const char *global_keys, *global_queries, *documents, *query_documents, *key_documents;
    const char *keep_blocks, *keep_mask, *bias, *alibi_slopes, *t5_table, *shaw_keys, *shaw_values;
    const char *sink_logits, *gates, *positions, *key_positions;
    args_real scale, softcap, dropout, rope_base, rope_scale;
    int rope_pairing, qk_norm;
    args_real qk_epsilon;

    const char *out, *lse, *probabilities, *average, *scores, *entropy, *largest_key;
    const char *largest_weight, *first_token, *diagonal, *offset_mass, *column_sums;
    const char *top_keys, *top_weights, *json;
    const char *pick_heads, *pick_rows, *mass_offsets;
    int64_t top;
    int score_stage, after_dropout;

    int trace;
    const char *trace_heads, *trace_rows, *trace_keys;
    int64_t trace_limit, trace_sequence;
    int cache; /* of run_caches; 0: none */

    int path, compute, isa, quiet;
    int64_t threads;
} run_options;

extern const char *const run_caches[];

/* ---- Arrays ---------------------------------------------------------------------------------- */

/* What an array's elements are for, which says what may be turned into them. */
typedef enum run_kind {
    RUN_FLOAT,  /* f32, f16 and bf16 as they are, else f32, of any number */
    RUN_REAL,   /* f32, of any number */
    RUN_KEEP,   /* u8, of booleans and whole numbers */
    RUN_INDEX,  /* i64, of whole numbers */
    RUN_INDEX32 /* i32, likewise */
} run_kind;

/* Arrays are contiguous tensors; what is behind them is the arena's. */

/* Read text, given for option: "3,5" is a list of numbers, "a.npy" a file, "a.safetensors:name" a
 * tensor of one. Rounding is said on stderr unless quiet. */
cli_exit run_array_read(const char *option, const char *text, run_kind kind, bool quiet,
                        mha_tensor *array);

/* Its shape, and the type that it would be read in, from the head of the file; data is NULL. */
cli_exit run_array_peek(const char *option, const char *text, run_kind kind, mha_tensor *array);

/* "0,2-4", or a file of whole numbers, each in 0 .. count - 1: what is said to be `what`. */
cli_exit run_list_read(const char *option, const char *text, const char *what, int64_t count,
                       mha_tensor *list);

/* The numbers of a tensor in another floating type, in row order. */
cli_exit run_array_convert(const mha_tensor *tensor, mha_dtype dtype, mha_tensor *array);

/* An array of zeros. */
cli_exit run_array_make(mha_dtype dtype, int ndim, const int64_t *shape, mha_tensor *array);

/* "random:4x8", "random:5xD": an array of that shape without a file, of halves from -2 to 2, by --seed
 * and the option; of booleans for RUN_KEEP. Letters are those of the problem, once q, k and v are
 * there. With heads_only there are no elements. */
bool run_random_is(const char *text);
struct run_problem;
cli_exit run_random_make(const run_options *options, const struct run_problem *problem,
                         const char *option, const char *text, run_kind kind, mha_tensor *array);

/* ---- The problem ----------------------------------------------------------------------------- */

/* --module: what is projected, and by what. */
typedef struct run_module {
    mha_tensor x, memory;         /* [B,T,E] of queries; [B,S,E] of keys and values, or x again */
    mha_tensor plain_x, encoding; /* with --sinusoidal: before it was added; [T,E] */
    mha_tensor weights[4];        /* W_q [H*D,E], W_k and W_v [Hk*D,E], W_o [E,H*D] */
    mha_tensor projected[3];      /* x W^T: q, k, v with the axes of x */
} run_module;

typedef struct run_problem {
    mha_tensor q, k, v;                   /* [B,H,T,D], after --qk-norm and RoPE */
    mha_tensor plain_q, plain_k;          /* and before them */
    const char *q_name, *k_name, *v_name; /* of their files */
    bool batch_axis,
        head_axis; /* which of the leading axes the file of q has, or gets by --heads */
    bool split;    /* --heads: [B,T,H*D] */
    bool ragged;
    bool heads_only; /* what the heads of the files say is checked before an element is read */
    mha_attention_desc desc;
    mha_linear_attention_desc linear;
    mha_attention_outputs wanted; /* which heads, rows, offsets; the tensors are added later */
    run_module module;            /* its tensors are empty without --module */
} run_problem;

/* An array by its file, its list or "random:...": with heads_only only its shape and type, but whole
 * numbers, which the descriptor's check looks at, in any case. */
cli_exit run_array_load(const run_options *options, const run_problem *problem, const char *option,
                        const char *text, run_kind kind, mha_tensor *array);

/* --module: x and what else it needs, and q, k, v of it. */
cli_exit run_module_make(const run_options *options, mha_context *context, run_problem *problem,
                         const mha_tensor *arrays[3]);

/* out = concat(heads) W_o^T, of heads [..,H*D], as an array of the same axes. */
cli_exit run_module_out(mha_context *context, const run_problem *problem, const mha_tensor *heads,
                        mha_tensor *out);

/* The built-in module: tokens x, or memory; one of the four weights. */
cli_exit run_example_tokens(bool memory, mha_tensor *array);
cli_exit run_example_weight(int which, int64_t rows, mha_tensor *array);

/* The type of o: --dtype, or float32. */
mha_dtype run_o_dtype(const run_options *options);

/* Keys of the longest sequence. The starts must have been checked. */
int64_t run_longest(const run_problem *problem);

/* Read every array that the options name and fill the descriptor. */
cli_exit run_problem_make(const run_options *options, mha_context *context, run_problem *problem);

/* The built-in example as q, k, v. */
cli_exit run_example_arrays(mha_tensor *q, mha_tensor *k, mha_tensor *v);

/* A library call that failed, in words of the command line. */
cli_exit run_fail(const run_options *options, const run_problem *problem, mha_status status);

/* ---- Results --------------------------------------------------------------------------------- */

enum { RUN_MOST_OUTPUTS = 20, RUN_DEFAULT_TOP = 5 };

typedef struct run_results {
    mha_tensor arrays[RUN_MOST_OUTPUTS]; /* in the order of the list in run_output.c */
    mha_tensor saved[RUN_MOST_OUTPUTS];  /* as they are written: with the axes of q; the first is
                                            out with --module */
    mha_attention_plan plan;
    mha_isa isa;
    int threads;
    double seconds;
} run_results;

/* Whether the outputs asked for can be had together and written; nothing is computed yet. */
cli_exit run_check_outputs(const run_options *options);
bool run_has_files(const run_options *options);

/* The output that writes to path, or NULL. */
const char *run_writes(const run_options *options, const char *path);

cli_exit run_compute(const run_options *options, mha_context *context, const run_problem *problem,
                     run_results *results);

/* All files asked for, with a line on stderr each. */
cli_exit run_write(const run_options *options, const run_problem *problem,
                   const run_results *results);

/* What ran, on stderr; o on stdout, as much of it as one looks at. */
void run_say(const run_options *options, const run_problem *problem, const run_results *results);
cli_exit run_print_result(const run_options *options, const run_results *results);

/* Shape as text: "[2, 3]". */
const char *run_shape_text(const mha_tensor *tensor, char *text, size_t size);

/* ---- Numbers as text ------------------------------------------------------------------------- */

/* How the numbers of one array are printed, so that they stand under each other. */
typedef struct run_format {
    char style; /* 'f' or 'e' */
    int digits; /* behind the point */
    int width;  /* of the widest */
} run_format;

/* dots: -inf will be drawn as a dot. */
run_format run_format_of(const double *numbers, int64_t count, int digits, bool dots);

/* One number, right-aligned; -inf as "-inf". */
void run_print_number(const run_format *format, double number);

/* A float array as NumPy prints it: large ones by their corners. */
void run_print_array(const mha_tensor *tensor);

/* "float32", "int64", ... */
const char *run_dtype_text(mha_dtype dtype);

/* The step-by-step account on stdout. */
cli_exit run_trace(const run_options *options, mha_context *context, const run_problem *problem,
                   const run_results *results);

#endif
