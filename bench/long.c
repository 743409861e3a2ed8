/* Time and peak resident memory of attention over long sequences: full, causal, a window, block
 * patterns, linear attention; one head of 64, f32.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/long.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_long && MHA_THREADS=1 build/bench_long > build/long.md &&
 *   python3 bench/long_plot.py build/long.md docs/long-sequences.svg
 *
 * Each case runs in a separate process. Inputs and outputs are written first; then
 * /proc/self/clear_refs resets Linux's peak. The peak during the calls minus resident memory before
 * them is the memory beyond arguments. Time is processor time over all threads, which depends less
 * on other load than wall time. It is the best of up to ten calls within about four seconds.
 * MHA_THREADS and MHA_ISA set threads and instruction set. Arguments are other lengths, and the
 * kinds to run:
 *
 *   MHA_THREADS=1 build/bench_long causal 131072
 */
#include "apart.h"

#include <multihead/component.h>
#include <multihead/patterns.h>

enum { D = 64, BLOCK = 128, WINDOW = 512 };

typedef struct problem {
    mha_context *context;
    mha_tensor q, k, v, o;
    int64_t n;
} problem;

/* ---- cases ----------------------------------------------------------------------------------- */

static mha_status run_full(const problem *p)
{
    return mha_attention_forward(p->context, NULL, &p->q, &p->k, &p->v, &p->o, NULL);
}

static mha_status run_causal(const problem *p)
{
    const mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
    return mha_attention_forward(p->context, &desc, &p->q, &p->k, &p->v, &p->o, NULL);
}

static mha_status run_window(const problem *p)
{
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .flags = MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW,
                                     .left_keys = WINDOW - 1};
    return mha_attention_forward(p->context, &desc, &p->q, &p->k, &p->v, &p->o, NULL);
}

/* Big Bird: neighbours on both sides, one global block, three random ones. */
static mha_status run_blocks(const problem *p)
{
    const mha_pattern_desc pattern = {.struct_size = sizeof pattern,
                                      .flags = MHA_PATTERN_LOCAL,
                                      .left_blocks = 1,
                                      .right_blocks = 1,
                                      .global_rows = 1,
                                      .global_cols = 1,
                                      .random_blocks = 3,
                                      .seed = 1};
    const int64_t blocks = (p->n + BLOCK - 1) / BLOCK;
    uint8_t *memory = malloc((size_t)(blocks * blocks));
    if (!memory) return mha_fail(MHA_ERR_NOMEM, "no memory for %lld blocks", (long long)blocks);
    const mha_tensor keep = mha_tensor_contiguous(memory, MHA_U8, 2, (int64_t[]){blocks, blocks});
    const mha_attention_desc desc = {.struct_size = sizeof desc,
                                     .keep_blocks = &keep,
                                     .block_queries = BLOCK,
                                     .block_keys = BLOCK};
    mha_status status = mha_pattern_fill(&pattern, &keep, NULL);
    if (status == MHA_OK)
        status = mha_attention_forward(p->context, &desc, &p->q, &p->k, &p->v, &p->o, NULL);
    free(memory);
    return status;
}

static mha_status run_linear(const problem *p)
{
    return mha_linear_attention_forward(p->context, NULL, &p->q, &p->k, &p->v, &p->o, NULL);
}

static mha_status run_linear_causal(const problem *p)
{
    const mha_linear_attention_desc desc = {.struct_size = sizeof desc,
                                            .flags = MHA_LINEAR_ATTENTION_CAUSAL};
    return mha_linear_attention_forward(p->context, &desc, &p->q, &p->k, &p->v, &p->o, NULL);
}

static const struct {
    const char *name;
    mha_status (*run)(const problem *p);
} kinds[] = {{"full", run_full},
             {"causal", run_causal},
             {"window of 512", run_window},
             {"block pattern", run_blocks},
             {"linear", run_linear},
             {"linear, causal", run_linear_causal}};

/* ---- measuring ------------------------------------------------------------------------------- */

static apart_result measure(int kind, int64_t n)
{
    apart_result r = {.seconds = 1e9, .beyond_kb = -1};
    problem p = {.n = n};
    float *memory = apart_floats(4 * n * D);
    if (!memory || mha_context_create(NULL, &p.context) != MHA_OK) return r;
    mha_tensor *each[] = {&p.q, &p.k, &p.v, &p.o};
    for (int i = 0; i < 4; i++)
        *each[i] = mha_tensor_contiguous(memory + i * n * D, MHA_F32, 4, (int64_t[]){1, 1, n, D});
    const long long before = apart_begin_kb();
    const double begun = apart_now();
    for (int i = 0; i < 10 && apart_now() - begun < 4; i++) {
        const double start = apart_now();
        if (kinds[kind].run(&p) != MHA_OK) {
            fprintf(stderr, "%s: %s\n", kinds[kind].name, mha_error_detail());
            return r;
        }
        const double took = apart_now() - start;
        if (took < r.seconds) r.seconds = took;
    }
    r.beyond_kb = apart_beyond_kb(before);
    mha_context_destroy(p.context);
    free(memory);
    return r;
}

static void print_row(const char *name, int64_t n, const apart_result *r,
                      const apart_result *before)
{
    const double mb = 1 << 20, arguments = 4.0 * (double)n * D * 4 / mb;
    printf("| %s | %lld | %.4g | %.2f | %.1f | %.1f | %.0f |\n", name, (long long)n, r->seconds,
           before->seconds > 0 ? r->seconds / before->seconds : 0, arguments,
           (double)r->beyond_kb / 1024, (double)n * (double)n * 4 / mb);
    fflush(stdout);
}

/* Arguments that are numbers are lengths, others are kinds. By default all kinds run. */
static bool is_chosen(const char *kind, int argc, char **argv)
{
    int words = 0;
    for (int i = 1; i < argc; i++) {
        if (atoll(argv[i]) > 0) continue;
        if (strcmp(argv[i], kind) == 0) return true;
        words++;
    }
    return words == 0;
}

int main(int argc, char **argv)
{
    int64_t lengths[32] = {1024, 4096, 16384, 65536};
    int count = 0, failed = 0;
    for (int i = 1; i < argc && count < 32; i++)
        if (atoll(argv[i]) > 0) lengths[count++] = atoll(argv[i]);
    if (count == 0) count = 4;
    if (!apart_print_machine(D)) return 1;
    printf("| kind | n | seconds | times the row above | q, k, v, o: MB | beyond them: MB "
           "| an n x n array: MB |\n|---|---|---|---|---|---|---|\n");
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        apart_result before = {0};
        for (int i = 0; i < count && is_chosen(kinds[kind].name, argc, argv); i++) {
            const apart_result r = apart(measure, (int)kind, lengths[i]);
            failed |= r.beyond_kb < 0;
            print_row(kinds[kind].name, lengths[i], &r, &before);
            before = r;
        }
    }
    return failed;
}
