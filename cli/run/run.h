/* The parts of `multihead run`: options -> arrays -> a problem -> its outputs -> files, stdout.
 *
 * Letters as in attention.h. The arrays of the files may lack leading axes; the problem is always
 * [B,H,T,D], and outputs have the axes of q.
 */
#ifndef CLI_RUN_H
#define CLI_RUN_H

#include "common/args.h"

#include <multihead/multihead.h>
#include <multihead/sink.h>

#define RUN_BAD_INPUT(...) cli_fail(CLI_BAD_INPUT, __VA_ARGS__)
#define RUN_USAGE(...) cli_fail(CLI_USAGE, __VA_ARGS__)

/* ---- What can be read and written ------------------------------------------------------------ */

/* MHA_ATTENTION_INPUTS lists the tensors of the descriptor. These macros add the option's name, the
 * name of its value, its help, and the options that it needs (or NULL). */
#define RUN_INPUT_keep_mask "keep-mask", "FILE", "true is visible", NULL
#define RUN_INPUT_bias "bias", "FILE", "added to scores", NULL
#define RUN_INPUT_global_keys "global-keys", "ARRAY", "keys the window does not hide", NULL
#define RUN_INPUT_global_queries \
    "global-queries", "ARRAY", "queries the window does not restrict", NULL
#define RUN_INPUT_query_documents \
    "query-documents", "ARRAY", "document of each query, if S is not T", "--key-documents"
#define RUN_INPUT_key_documents \
    "key-documents", "ARRAY", "document of each key", "--query-documents"
#define RUN_INPUT_keep_blocks "keep-blocks", "FILE", "true is visible", "--block-size QxK, as 64x64"
#define RUN_INPUT_alibi_slopes "alibi-slopes", "ARRAY", "ALiBi with these slopes", NULL
#define RUN_INPUT_t5_table "t5-table", "FILE", "T5's relative bias", NULL
#define RUN_INPUT_shaw_keys "shaw-keys", "FILE", "Shaw's positions on keys", NULL
#define RUN_INPUT_shaw_values "shaw-values", "FILE", "Shaw's positions on values", NULL
#define RUN_INPUT_sink_logits "sink-logits", "ARRAY", "an extra logit in each denominator", NULL
#define RUN_INPUT_gates "gates", "ARRAY", "factors of the heads' outputs", NULL

/* The axes of the list in help texts. */
#define RUN_AXES_BHTS "[B,H,T,S]"
#define RUN_AXES_BT "[B,T]"
#define RUN_AXES_BS "[B,S]"
#define RUN_AXES_BH "[H] or [B,H]"
#define RUN_AXES_BLOCKS "[B,H,rows,columns] of blocks"
#define RUN_AXES_H "[H]"
#define RUN_AXES_RH "[buckets,H]"
#define RUN_AXES_RD "[2 k + 1, D]"
#define RUN_AXES_RV "[2 k + 1, Dv]"

/* Outputs besides o: X(field of mha_attention_outputs, option, axes, type, help). Axes: B H T as in
 * attention.h, of the tensor q; h and r the picked heads and rows; S the keys of the
 * longest sequence; N all keys of a sequence's tensor; O the offsets; K the number of top keys. */
#define RUN_OUTPUTS(X)                                                                       \
    X(lse, "lse", "BHT", MHA_F32, "[B,H,T] log of the sum of exp(score)")                    \
    X(probabilities, "probabilities", "BhrS", MHA_F32, "[B,H,T,S] the weights")              \
    X(average_probabilities, "average", "BTS", MHA_F32, "[B,T,S] weights, mean over heads")  \
    X(scores, "scores", "BhrS", MHA_F32, "[B,H,T,S] input of the softmax, -inf: hidden")     \
    X(entropy, "entropy", "BHT", MHA_F32, "[B,H,T] entropy of each row, in nats")            \
    X(largest_weight, "largest-weight", "BHT", MHA_F32, "[B,H,T] largest weight")            \
    X(largest_key, "largest-key", "BHT", MHA_I64,                                            \
      "[B,H,T] int64, the key with the largest weight")                                      \
    X(first_token, "first-token", "BHT", MHA_F32, "[B,H,T] weight of key 0")                 \
    X(diagonal, "diagonal", "BHT", MHA_F32, "[B,H,T] weight of the query's own position")    \
    X(offset_mass, "offset-mass", "BHTO", MHA_F32,                                           \
      "[B,H,T,n] weight of keys at n relative offsets")                                      \
    X(top_keys, "top-keys", "BHTK", MHA_I64, "[B,H,T,K] int64, keys of the largest weights") \
    X(top_weights, "top-weights", "BHTK", MHA_F32, "[B,H,T,K] the weights of these keys")    \
    X(column_sums, "column-sums", "BHN", MHA_F32, "[B,H,S] weight received, summed over queries")

/* The parsed command line. Texts point into it; NULL and 0: not given. */
typedef struct run_options {
#define RUN_FIELD(field, ...) const char *field;
    MHA_ATTENTION_INPUTS(RUN_FIELD)
    const char *out;
    RUN_OUTPUTS(RUN_FIELD)
#undef RUN_FIELD
    const char *x, *q, *k, *v, *memory, *json;
    const char *offsets, *lengths, *begins, *window, *block_size, *documents;
    const char *query_starts, *key_starts, *positions, *key_positions;
    const char *pick_heads, *pick_rows, *mass_offsets, *trace_heads, *trace_rows, *trace_keys;
    int64_t heads, kv_heads, offset, sink_keys, t5_max_distance, seed, rope_dim, top;
    int64_t trace_sequence, trace_limit, threads;
    int layout, dtype, qk_norm, rope_pairing, score_stage, cache, path, compute, isa; /* choices */
    int example, module, sinusoidal, causal, strict, linear, alibi, t5_one_sided, rope;
    int after_dropout, trace, quiet, delta;
    args_real scale, softcap, dropout, rope_base, rope_scale, qk_epsilon;
} run_options;

#define RUN_ONE(...) +1
enum {
    RUN_INPUT_COUNT = 0 MHA_ATTENTION_INPUTS(RUN_ONE),
    RUN_OUTPUT_COUNT = 1 RUN_OUTPUTS(RUN_ONE) /* o is the first */
};
#undef RUN_ONE

/* ---- The problem ----------------------------------------------------------------------------- */

/* --module: the inputs and weights of the projections. */
typedef struct run_module {
    mha_tensor x, memory;         /* [B,T,E] for queries; [B,S,E] for keys and values, or x */
    mha_tensor plain_x, encoding; /* with --sinusoidal: x before the sum; [T,E] */
    mha_tensor weights[4];        /* W_q [H*D,E], W_k and W_v [Hk*D,E], W_o [E,H*D] */
    mha_tensor projected[3];      /* x W^T: q, k, v with the axes of x */
} run_module;

typedef struct run_problem {
    const run_options *options;
    mha_context *context;
    bool heads_only;             /* only check the file headers, before reading any element */
    mha_tensor q, k, v;          /* [B,H,T,D], after --qk-norm and RoPE */
    mha_tensor plain_q, plain_k; /* before --qk-norm and RoPE */
    const char *names[3];        /* file names of q, k, v */
    bool batch_axis, head_axis;  /* leading axes of the results: those of q's file */
    bool ragged, time_first;     /* [B,T,H,D] or [B,T,H*D] */
    mha_attention_desc desc;
    mha_linear_attention_desc linear;
    mha_attention_outputs wanted; /* heads, rows, offsets; the tensors are added later */
    run_module module;            /* empty tensors without --module */
} run_problem;

/* Read every array that the options name and fill the descriptor. */
cli_exit run_problem_make(const run_options *options, mha_context *context, run_problem *problem);

/* A tensor of the descriptor: the library's name for it, its option, its text and its shape. */
typedef struct run_input {
    const char *word, *option, *shape;
    size_t text, field; /* in run_options; in mha_attention_desc */
    int kind;           /* run_kind */
} run_input;
extern const run_input run_inputs[];

/* The value given for an input, and its option; NULL: not given. */
const char *run_input_text(const run_options *options, const run_input *input, const char **option);

/* Read x and the weights of --module, and compute q, k and v. */
cli_exit run_module_make(run_problem *problem);

/* out = concat(heads) W_o^T, of heads [..,H*D], as an array of the same axes. */
cli_exit run_module_out(const run_problem *problem, const mha_tensor *heads, mha_tensor *out);

/* The type of o: --dtype, or float32. */
mha_dtype run_o_dtype(const run_options *options);

/* The number of sequences, and of keys in the longest one. The starts must be valid. */
int64_t run_sequences(const run_problem *problem);
int64_t run_longest(const run_problem *problem);

/* Report a failed library call in terms of the command line. Does nothing for MHA_OK. */
cli_exit run_check(const run_problem *problem, mha_status status);

/* ---- Arrays: contiguous tensors in the arena ------------------------------------------------- */

/* The type that elements are converted to, as in MHA_ATTENTION_INPUTS: REAL keeps f16 and bf16; U8
 * accepts booleans and integers, I32 and I64 accept integers. */
typedef enum run_kind { RUN_REAL, RUN_F32, RUN_U8, RUN_I32, RUN_I64 } run_kind;

/* Read the array that text names: "3,5" is a list of numbers, "a.npy" a file, "a.safetensors:name" a
 * tensor in one. "random:5xD" draws multiples of 1/2 from -2 to 2 (booleans for U8), seeded by --seed and
 * the option; letters name sizes of the problem once q, k and v are read. With heads_only it reads only
 * shape and type, and the elements of integer arrays, which the descriptor's check needs. Rounding is
 * reported on stderr. */
cli_exit run_array_read(const run_problem *problem, const char *option, const char *text,
                        run_kind kind, mha_tensor *array);
bool run_random_is(const char *text);

/* Read "0,2-4", or a file of integers, each in 0 .. count - 1; errors call an element `what`. */
cli_exit run_list_read(const run_problem *problem, const char *option, const char *text,
                       const char *what, int64_t count, mha_tensor *list);

/* Make an array of zeros; of i64 0 .. count - 1; or of a tensor's numbers in another type. */
cli_exit run_array_make(mha_dtype dtype, int ndim, const int64_t *shape, mha_tensor *array);
cli_exit run_array_count(int64_t count, mha_tensor *array);
cli_exit run_array_convert(const mha_tensor *tensor, mha_dtype dtype, mha_tensor *array);

/* Make an array of --example; weights have the requested number of rows. */
typedef enum run_example {
    RUN_EXAMPLE_Q,
    RUN_EXAMPLE_K,
    RUN_EXAMPLE_V,
    RUN_EXAMPLE_X,
    RUN_EXAMPLE_MEMORY,
    RUN_EXAMPLE_W /* projections of q, k, v, o */
} run_example;
cli_exit run_example_make(int which, int64_t rows, mha_tensor *array);

/* ---- Results --------------------------------------------------------------------------------- */

typedef struct run_results {
    mha_tensor arrays[RUN_OUTPUT_COUNT];
    /* Tensors to write, with the axes of q. With --module the first is the module's output */
    mha_tensor saved[RUN_OUTPUT_COUNT];
    mha_attention_plan plan;
    double seconds;
} run_results;

/* Check, before any computation, that the requested outputs can be combined and written. */
cli_exit run_check_outputs(const run_options *options);
bool run_has_files(const run_options *options);

/* The output that writes to path, or NULL. */
const char *run_writes(const run_options *options, const char *path);

cli_exit run_compute(const run_problem *problem, run_results *results);

/* Write all requested files, with a line on stderr for each. */
cli_exit run_write(const run_problem *problem, const run_results *results);

/* Report the computation on stderr; print o on stdout, abbreviated. */
void run_say(const run_problem *problem, const run_results *results);
cli_exit run_print_result(const run_problem *problem, const run_results *results);

/* --example --delta: print its steps. */
cli_exit run_delta(mha_context *context);

/* Print the step-by-step trace on stdout. */
extern const char *const run_caches[];
cli_exit run_trace(const run_problem *problem, const run_results *results);

/* ---- Numbers as text ------------------------------------------------------------------------- */

/* Shape as text: "[2, 3]". */
typedef struct run_shape {
    char text[128];
} run_shape;
run_shape run_shape_of(const mha_tensor *tensor);

/* Print a float array as NumPy does: of large ones, the corners. */
void run_print_array(const mha_tensor *tensor);

/* The value of a cell of a table, and the last column of a row. */
struct run_table;
typedef double run_number(const struct run_table *table, int64_t row, int64_t column);
typedef double run_sum(const struct run_table *table, int64_t row);

/* A table with a name before each row and above each column; -inf is a dot. */
typedef struct run_table {
    char row, column;                 /* letters of their names; column 0: none */
    const mha_tensor *rows, *columns; /* indices, i64; NULL: 0, 1, 2, ... */
    int64_t row_count, column_count;
    run_number *at;
    run_sum *sum;   /* NULL: no last column */
    const void *of; /* data of both callbacks */
    bool cut;       /* whether columns are omitted */
} run_table;
void run_print_table(const run_table *table);

/* Entry i of an array of i64. */
static inline int64_t run_entry(const mha_tensor *list, int64_t i)
{
    return ((const int64_t *)list->data)[i];
}

#endif
