/* The cost of measuring heads: 12 causal heads of size 64 of one layer, for several numbers of
 * tokens. Prints processor seconds for the rows alone, with all scores, and with distances of all
 * pairs. Also prints in MiB the rise of the process's peak memory and the size of the maps.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/heads.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_heads && MHA_THREADS=1 build/bench_heads 4096
 *
 * Linux only. The peak is VmHWM of /proc/self/status. It never falls: pass one number per run for
 * exact results. */
#include "apart.h"

#include <multihead/head_distances.h>
#include <multihead/heads.h>

enum { H = 12, D = 64 };

typedef struct bench {
    mha_context *context;
    mha_head_measures *measures;   /* NULL: only iterate */
    mha_head_distances *distances; /* NULL: none */
} bench;

static double peak_megabytes(void)
{
    return (double)apart_status_kb("VmHWM:") / 1024;
}

static mha_status take(void *user, int64_t b, int64_t row, const mha_tensor *p)
{
    const bench *x = user;
    mha_status status = MHA_OK;
    (void)b;
    if (x->measures) status = mha_head_measures_rows(x->measures, 0, row, p);
    if (status == MHA_OK && x->distances) status = mha_head_distances_rows(x->distances, p);
    return status;
}

static double run(const bench *x, const mha_heads_text *text, const mha_tensor *q,
                  const mha_tensor *k)
{
    const mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
    const double start = apart_now();
    mha_status status = x->measures ? mha_head_measures_begin(x->measures, text) : MHA_OK;
    if (status == MHA_OK)
        status = mha_attention_visit_rows(x->context, &desc, q, k, 0, take, (void *)(uintptr_t)x);
    if (status == MHA_OK && x->measures) status = mha_head_measures_end(x->measures);
    if (status != MHA_OK) {
        fprintf(stderr, "%s\n", mha_error_detail());
        exit(1);
    }
    return apart_now() - start;
}

/* Random queries and keys, tokens, segments of 64 and a separator at the end of each. */
static void measure(bench *x, int64_t n)
{
    float *qk = malloc((size_t)(2 * H * n * D) * sizeof *qk);
    int64_t *ids = malloc((size_t)n * sizeof *ids), *segments = malloc((size_t)n * sizeof *ids);
    uint8_t *separators = malloc((size_t)n);
    uint32_t state = 1;
    if (!qk || !ids || !segments || !separators) exit(1);
    for (int64_t i = 0; i < 2 * H * n * D; i++) {
        state = state * 1664525u + 1013904223u;
        qk[i] = (float)(state >> 8) * 0x1p-22f - 2;
    }
    for (int64_t i = 0; i < n; i++)
        ids[i] = i * 7919 % 1000, segments[i] = i / 64, separators[i] = i % 64 == 63;
    const mha_tensor q = mha_tensor_contiguous(qk, MHA_F32, 4, (int64_t[]){1, H, n, D});
    const mha_tensor k = mha_tensor_contiguous(qk + H * n * D, MHA_F32, 4, (int64_t[]){1, H, n, D});
    const mha_heads_text text = {.struct_size = sizeof text,
                                 .flags = MHA_HEADS_CAUSAL,
                                 .queries = n,
                                 .keys = n,
                                 .ids = ids,
                                 .segments = segments,
                                 .ranks = ids,
                                 .separators = separators};
    const bench rows = {.context = x->context},
                scores = {.context = x->context, .measures = x->measures};
    const double before = peak_megabytes(), visit = run(&rows, &text, &q, &k);
    const double visited = peak_megabytes(), score = run(&scores, &text, &q, &k);
    const double scored = peak_megabytes(), all = run(x, &text, &q, &k);
    printf("%6lld %8.2f %8.2f %8.2f %11.1f %11.1f %11.1f %9.0f\n", (long long)n, visit, score, all,
           visited - before, scored - before, peak_megabytes() - before,
           (double)H * (double)n * (double)n * 4 / 1048576);
    free(qk);
    free(ids);
    free(segments);
    free(separators);
}

int main(int argc, char **argv)
{
    const int64_t heads = H;
    bench x = {0};
    const mha_head_measures_desc desc = {
        .struct_size = sizeof desc, .layers = 1, .heads = &heads, .rare_rank = -1};
    if (mha_context_create(NULL, &x.context) != MHA_OK ||
        mha_head_measures_create(x.context, &desc, &x.measures) != MHA_OK ||
        mha_head_distances_create(x.context, heads, 0, NULL, &x.distances) != MHA_OK)
        return 1;
    printf("%d threads\n       ------- seconds --------  ----------- peak, MiB ----------\n"
           "tokens     rows   scores    pairs        rows      scores       pairs      maps\n",
           mha_context_threads(x.context));
    for (int i = 1; i < argc; i++) measure(&x, strtol(argv[i], NULL, 10));
    mha_head_distances_destroy(x.distances);
    mha_head_measures_destroy(x.measures);
    mha_context_destroy(x.context);
    return 0;
}
