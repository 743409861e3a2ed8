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
#define RUN_BAD_INPUT(...) cli_fail(CLI_BAD_INPUT, RUN, __VA_ARGS__)
#define RUN_USAGE(...) cli_fail(CLI_USAGE, RUN, __VA_ARGS__)

/* ---- What can be read and written ------------------------------------------------------------ */

/* Tensors of the descriptor are those of MHA_ATTENTION_INPUTS. Here stands what the list leaves
 * open: the option's name, what its value is called, what it means, and the options that it
 * needs (or NULL). */
#define RUN_INPUT_keep_mask "keep-mask", "FILE", "true is visible", NULL
#define RUN_INPUT_bias "bias", "FILE", "added to scores", NULL
#define RUN_INPUT_global_keys "global-keys", "ARRAY", "keys the window does not hide", NULL
#define RUN_INPUT_global_queries "global-queries", "ARRAY", "queries it does not restrict", NULL
#define RUN_INPUT_query_documents \
    "query-documents", "ARRAY", "for --documents where S is not T", "--key-documents"
#define RUN_INPUT_key_documents "key-documents", "ARRAY", "those of the keys", "--query-documents"
#define RUN_INPUT_keep_blocks "keep-blocks", "FILE", "true is visible", "--block-size QxK, as 64x64"
#define RUN_INPUT_alibi_slopes "alibi-slopes", "ARRAY", "ALiBi with these slopes", NULL
#define RUN_INPUT_t5_table "t5-table", "FILE", "T5's relative bias", NULL
#define RUN_INPUT_shaw_keys "shaw-keys", "FILE", "Shaw's positions on keys", NULL
#define RUN_INPUT_shaw_values "shaw-values", "FILE", "Shaw's positions on values", NULL
#define RUN_INPUT_sink_logits "sink-logits", "ARRAY", "an extra logit in each denominator", NULL
#define RUN_INPUT_gates "gates", "ARRAY", "factors of the heads' outputs", NULL

/* Axes of the list in words. */
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
 * attention.h, of the tensor q; h and r the heads and rows that were picked; S the keys of the
 * longest sequence; N all keys of a sequence's tensor; O the offsets; K of the top. */
#define RUN_OUTPUTS(X)                                                                      \
    X(lse, "lse", "BHT", MHA_F32, "[B,H,T] log of the sum of exp(score)")                   \
    X(probabilities, "probabilities", "BhrS", MHA_F32, "[B,H,T,S] the weights")             \
    X(average_probabilities, "average", "BTS", MHA_F32, "[B,T,S], their mean over heads")   \
    X(scores, "scores", "BhrS", MHA_F32, "[B,H,T,S] what softmax sees, -inf: hidden")       \
    X(entropy, "entropy", "BHT", MHA_F32, "[B,H,T] of each row of weights, in nats")        \
    X(largest_weight, "largest-weight", "BHT", MHA_F32, "[B,H,T]")                          \
    X(largest_key, "largest-key", "BHT", MHA_I64,                                           \
      "[B,H,T] int64, the key with the largest weight")                                     \
    X(first_token, "first-token", "BHT", MHA_F32, "[B,H,T] weight of key 0")                \
    X(diagonal, "diagonal", "BHT", MHA_F32, "[B,H,T] weight of the query's own position")   \
    X(offset_mass, "offset-mass", "BHTO", MHA_F32,                                          \
      "[B,H,T,n] weight of keys at n relative offsets")                                     \
    X(top_keys, "top-keys", "BHTK", MHA_I64, "[B,H,T,K] int64, the keys of largest weight") \
    X(top_weights, "top-weights", "BHTK", MHA_F32, "[B,H,T,K] and their weights")           \
    X(column_sums, "column-sums", "BHN", MHA_F32, "[B,H,S] what each key receives from all queries")

/* What the command line says. Texts are pointers into it; NULL and 0: not given. */
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
    int after_dropout, trace, quiet;
    args_real scale, softcap, dropout, rope_base, rope_scale, qk_epsilon;
} run_options;

#define RUN_ONE(...) +1
enum {
    RUN_INPUT_COUNT = 0 MHA_ATTENTION_INPUTS(RUN_ONE),
    RUN_OUTPUT_COUNT = 1 RUN_OUTPUTS(RUN_ONE) /* o is the first */
};
#undef RUN_ONE

/* ---- The problem ----------------------------------------------------------------------------- */

/* --module: what is projected, and by what. */
typedef struct run_module {
    mha_tensor x, memory;         /* [B,T,E] of queries; [B,S,E] of keys and values, or x again */
    mha_tensor plain_x, encoding; /* with --sinusoidal: before it was added; [T,E] */
    mha_tensor weights[4];        /* W_q [H*D,E], W_k and W_v [Hk*D,E], W_o [E,H*D] */
    mha_tensor projected[3];      /* x W^T: q, k, v with the axes of x */
} run_module;

typedef struct run_problem {
    const run_options *options;
    mha_context *context;
    bool heads_only;    /* what the heads of the files say is checked before an element is read */
    mha_tensor q, k, v; /* [B,H,T,D], after --qk-norm and RoPE */
    mha_tensor plain_q, plain_k; /* and before them */
    const char *names[3];        /* of the files of q, k, v */
    bool batch_axis, head_axis;  /* which of the leading axes results have: those of q's file */
    bool ragged, time_first;     /* [B,T,H,D] or [B,T,H*D] */
    mha_attention_desc desc;
    mha_linear_attention_desc linear;
    mha_attention_outputs wanted; /* which heads, rows, offsets; the tensors are added later */
    run_module module;            /* its tensors are empty without --module */
} run_problem;

/* Read every array that the options name and fill the descriptor. */
cli_exit run_problem_make(const run_options *options, mha_context *context, run_problem *problem);

/* A tensor of the descriptor: the library's word for it, and the option, its text, and the
 * shape. */
typedef struct run_input {
    const char *word, *option, *shape;
    size_t text, field; /* in run_options; in mha_attention_desc */
    int kind;           /* run_kind */
} run_input;
extern const run_input run_inputs[];

/* What is given for it, and by which option; NULL: nothing. */
const char *run_input_text(const run_options *options, const run_input *input, const char **option);

/* --module: x and what else it needs, and q, k, v of it. */
cli_exit run_module_make(run_problem *problem);

/* out = concat(heads) W_o^T, of heads [..,H*D], as an array of the same axes. */
cli_exit run_module_out(const run_problem *problem, const mha_tensor *heads, mha_tensor *out);

/* The type of o: --dtype, or float32. */
mha_dtype run_o_dtype(const run_options *options);

/* Sequences, and keys of the longest one. The starts must have been checked. */
int64_t run_sequences(const run_problem *problem);
int64_t run_longest(const run_problem *problem);

/* A library call that failed, in words of the command line; MHA_OK is none. */
cli_exit run_check(const run_problem *problem, mha_status status);

/* ---- Arrays: contiguous tensors, whose elements are the arena's ------------------------------ */

/* What elements become, by the types of MHA_ATTENTION_INPUTS: REAL stays f16 or bf16 if it is;
 * U8 takes booleans and whole numbers, I32 and I64 whole numbers. */
typedef enum run_kind { RUN_REAL, RUN_F32, RUN_U8, RUN_I32, RUN_I64 } run_kind;

/* text, given for option: "3,5" is a list of numbers, "a.npy" a file, "a.safetensors:name" a
 * tensor of one. "random:5xD" is an array without a file, of halves from -2 to 2, by --seed and
 * the option; of booleans for U8; its letters are those of the problem, once q, k and v are
 * there. Of a problem with heads_only only shape and type, but whole numbers, which the
 * descriptor's check looks at, in any case. Rounding is said on stderr. */
cli_exit run_array_read(const run_problem *problem, const char *option, const char *text,
                        run_kind kind, mha_tensor *array);
bool run_random_is(const char *text);

/* "0,2-4", or a file of whole numbers, each in 0 .. count - 1: what is said to be `what`. */
cli_exit run_list_read(const run_problem *problem, const char *option, const char *text,
                       const char *what, int64_t count, mha_tensor *list);

/* An array of zeros; of i64, 0 .. count - 1; the numbers of a tensor in another type. */
cli_exit run_array_make(mha_dtype dtype, int ndim, const int64_t *shape, mha_tensor *array);
cli_exit run_array_count(int64_t count, mha_tensor *array);
cli_exit run_array_convert(const mha_tensor *tensor, mha_dtype dtype, mha_tensor *array);

/* The arrays of --example; weights have as many rows as are asked for. */
typedef enum run_example {
    RUN_EXAMPLE_Q,
    RUN_EXAMPLE_K,
    RUN_EXAMPLE_V,
    RUN_EXAMPLE_X,
    RUN_EXAMPLE_MEMORY,
    RUN_EXAMPLE_W /* of q, k, v, o */
} run_example;
cli_exit run_example_make(int which, int64_t rows, mha_tensor *array);

/* ---- Results --------------------------------------------------------------------------------- */

typedef struct run_results {
    mha_tensor arrays[RUN_OUTPUT_COUNT];
    mha_tensor saved[RUN_OUTPUT_COUNT]; /* as they are written: with the axes of q; the first is out
                                           with --module */
    mha_attention_plan plan;
    double seconds;
} run_results;

/* Whether the outputs asked for can be had together and written; nothing is computed yet. */
cli_exit run_check_outputs(const run_options *options);
bool run_has_files(const run_options *options);

/* The output that writes to path, or NULL. */
const char *run_writes(const run_options *options, const char *path);

cli_exit run_compute(const run_problem *problem, run_results *results);

/* All files asked for, with a line on stderr each. */
cli_exit run_write(const run_problem *problem, const run_results *results);

/* What ran, on stderr; o on stdout, as much of it as one looks at. */
void run_say(const run_problem *problem, const run_results *results);
cli_exit run_print_result(const run_problem *problem, const run_results *results);

/* The step-by-step account on stdout. */
extern const char *const run_caches[];
cli_exit run_trace(const run_problem *problem, const run_results *results);

/* ---- Numbers as text ------------------------------------------------------------------------- */

/* Shape as text: "[2, 3]". */
typedef struct run_shape {
    char text[128];
} run_shape;
run_shape run_shape_of(const mha_tensor *tensor);

/* A float array as NumPy prints it: large ones by their corners. */
void run_print_array(const mha_tensor *tensor);

/* A number of those shown in a table, and what ends a row. */
struct run_table;
typedef double run_number(const struct run_table *table, int64_t row, int64_t column);
typedef double run_sum(const struct run_table *table, int64_t row);

/* A table with a name before each row and over each column; -inf is drawn as a dot. */
typedef struct run_table {
    char row, column;                 /* their letters; column 0: none */
    const mha_tensor *rows, *columns; /* their numbers, i64; NULL: 0, 1, 2, ... */
    int64_t row_count, column_count;
    run_number *at;
    run_sum *sum;   /* NULL: no last column */
    const void *of; /* what these two look at */
    bool cut;       /* there are more columns */
} run_table;
void run_print_table(const run_table *table);

/* Entry i of an array of i64. */
static inline int64_t run_entry(const mha_tensor *list, int64_t i)
{
    return ((const int64_t *)list->data)[i];
}

#endif
