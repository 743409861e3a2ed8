/* The cost of each optional output: the best of 15 calls that request it, as a multiple of the
 * forward pass alone, in processor time. 8 heads of 64, 2048 tokens, full and causal.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/outputs.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_outputs && MHA_THREADS=1 build/bench_outputs
 *
 * MHA_ISA sets the instruction set. Processor time is summed over threads, so use one thread. */
#include "apart.h"

#include <multihead/attention.h>
#include <multihead/component.h>

enum { H = 8, N = 2048, D = 64, TOP = 8, ROWS = 64, REPEATS = 15 };

/* Memory of every output, allocated once; calls use parts of it. */
typedef struct bench {
    mha_tensor x[4], p, scores, average, row[4], key, top_keys, top_weights, places, chosen;
} bench;

/* Never freed: the process exits after the measurement. */
static mha_tensor make(mha_dtype dtype, int ndim, const int64_t *shape)
{
    mha_tensor tensor = mha_tensor_contiguous(NULL, dtype, ndim, shape);
    int64_t count;
    if (mha_tensor_count(&tensor, &count) != MHA_OK) exit(1);
    tensor.data = calloc((size_t)count, mha_dtype_size(dtype));
    if (!tensor.data) exit(1);
    return tensor;
}

static bench make_all(void)
{
    bench b = {.p = make(MHA_F32, 4, (int64_t[]){1, H, N, N}),
               .scores = make(MHA_F32, 4, (int64_t[]){1, H, N, N}),
               .average = make(MHA_F32, 3, (int64_t[]){1, N, N}),
               .key = make(MHA_I64, 3, (int64_t[]){1, H, N}),
               .top_keys = make(MHA_I64, 4, (int64_t[]){1, H, N, TOP}),
               .top_weights = make(MHA_F32, 4, (int64_t[]){1, H, N, TOP}),
               .places = make(MHA_F32, 4, (int64_t[]){1, H, N, 3}),
               .chosen = make(MHA_F32, 4, (int64_t[]){1, 1, ROWS, N})};
    uint32_t state = 1;
    for (int i = 0; i < 4; i++) {
        b.row[i] = make(MHA_F32, 3, (int64_t[]){1, H, N});
        b.x[i] = make(MHA_F32, 4, (int64_t[]){1, H, N, D});
        for (int64_t j = 0; j < H * N * D; j++) {
            state = state * 1664525u + 1013904223u;
            ((float *)b.x[i].data)[j] = (float)(state >> 8) * 0x1p-24f - 0.5f;
        }
    }
    return b;
}

static double measure(mha_context *context, const bench *b, mha_attention_outputs outputs,
                      bool causal)
{
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .flags = causal ? MHA_ATTENTION_CAUSAL : 0};
    double best = 1e9;
    outputs.struct_size = sizeof outputs;
    for (int i = 0; i < REPEATS; i++) {
        double start = apart_now();
        if (mha_attention_forward(context, &desc, &b->x[0], &b->x[1], &b->x[2], &b->x[3],
                                  &outputs) != MHA_OK) {
            fprintf(stderr, "bench_outputs: %s\n", mha_error_detail());
            exit(1);
        }
        double seconds = apart_now() - start;
        if (seconds < best) best = seconds;
    }
    return best;
}

int main(void)
{
    static const int64_t offsets[] = {-1, 0, 1}, heads[] = {3};
    int64_t rows[ROWS];
    for (int i = 0; i < ROWS; i++) rows[i] = (int64_t)i * N / ROWS;
    mha_context *context;
    if (mha_context_create(NULL, &context) != MHA_OK) return 1;
    const bench b = make_all();
    const mha_attention_outputs all = {.entropy = &b.row[0],
                                       .largest_weight = &b.row[1],
                                       .largest_key = &b.key,
                                       .first_token = &b.row[2],
                                       .offset_mass = &b.places,
                                       .offsets = offsets,
                                       .offsets_count = 3,
                                       .top_keys = &b.top_keys,
                                       .top_weights = &b.top_weights,
                                       .column_sums = &b.row[3]};
    const struct {
        const char *name;
        mha_attention_outputs outputs;
    } each[] = {
        {"probabilities", {.probabilities = &b.p}},
        {"probabilities of 64 rows of one head",
         {.probabilities = &b.chosen,
          .heads = heads,
          .heads_count = 1,
          .rows = rows,
          .rows_count = ROWS}},
        {"average_probabilities", {.average_probabilities = &b.average}},
        {"scores, raw", {.scores = &b.scores}},
        {"scores, biased", {.scores = &b.scores, .score_stage = MHA_SCORES_BIASED}},
        {"entropy", {.entropy = &b.row[0]}},
        {"largest_weight, largest_key", {.largest_weight = &b.row[0], .largest_key = &b.key}},
        {"first_token, diagonal", {.first_token = &b.row[0], .diagonal = &b.row[1]}},
        {"top 8 of nearly equal weights", {.top_keys = &b.top_keys, .top_weights = &b.top_weights}},
        {"column_sums", {.column_sums = &b.row[0]}},
        {"all statistics and column_sums", all},
    };
    printf("%s, %d threads\n%-40s full causal\n", mha_isa_name(mha_context_isa(context)),
           mha_context_threads(context), "times the forward pass");
    const double full = measure(context, &b, (mha_attention_outputs){0}, false);
    const double causal = measure(context, &b, (mha_attention_outputs){0}, true);
    for (size_t i = 0; i < sizeof each / sizeof each[0]; i++)
        printf("%-40s %4.2f %6.2f\n", each[i].name,
               measure(context, &b, each[i].outputs, false) / full,
               measure(context, &b, each[i].outputs, true) / causal);
    mha_context_destroy(context);
    return 0;
}
