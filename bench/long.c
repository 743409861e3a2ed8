/* Time and peak resident memory of attention over long sequences: full, causal, a window, block
 * patterns, linear attention; one head of 64, f32.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/long.c build/libmultihead.a \
 *      -lm -lpthread -o build/bench_long && MHA_THREADS=1 build/bench_long > build/long.md &&
 *   python3 bench/long_plot.py build/long.md docs/long-sequences.svg
 *
 * Each case runs in a process of its own. Its inputs and outputs are written before; then Linux
 * forgets the peak (/proc/self/clear_refs), and what the peak rises to during the calls, less what
 * was resident before, is what the calls needed beyond their arguments. Time is that of the
 * processor, all threads together, which a busy machine disturbs less: the best of up to ten calls,
 * within about four seconds. MHA_THREADS and MHA_ISA choose the machine; numbers after the
 * program's name are other lengths.
 */
#include <multihead/multihead.h>

#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { D = 64, BLOCK = 128, WINDOW = 512 };

typedef struct problem {
    mha_context *context;
    mha_tensor q, k, v, o;
    int64_t n;
} problem;

/* ---- what is measured ------------------------------------------------------------------------ */

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

typedef struct result {
    double seconds;
    long long beyond_kb; /* -1: the call failed */
} result;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A line of /proc/self/status, in kB; -1 where there is none. */
static long long status_kb(const char *name)
{
    char line[256];
    long long kb = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, strlen(name)) == 0) kb = atoll(line + strlen(name) + 1);
    if (file) fclose(file);
    return kb;
}

static void forget_peak(void)
{
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) fputs("5", file), fclose(file);
}

static result measure(size_t kind, int64_t n)
{
    result r = {.seconds = 1e9, .beyond_kb = -1};
    problem p = {.n = n};
    float *memory = malloc((size_t)(4 * n * D) * sizeof *memory);
    if (!memory || mha_context_create(NULL, &p.context) != MHA_OK) return r;
    uint32_t state = 1;
    for (int64_t i = 0; i < 4 * n * D; i++) {
        state = state * 1664525u + 1013904223u;
        memory[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    mha_tensor *each[] = {&p.q, &p.k, &p.v, &p.o};
    for (int i = 0; i < 4; i++)
        *each[i] = mha_tensor_contiguous(memory + i * n * D, MHA_F32, 4, (int64_t[]){1, 1, n, D});
    forget_peak();
    long long before = status_kb("VmRSS:");
    double begun = now();
    for (int i = 0; i < 10 && now() - begun < 4; i++) {
        double start = now();
        if (kinds[kind].run(&p) != MHA_OK) {
            fprintf(stderr, "%s: %s\n", kinds[kind].name, mha_error_detail());
            return r;
        }
        if (now() - start < r.seconds) r.seconds = now() - start;
    }
    r.beyond_kb = status_kb("VmHWM:") - before;
    mha_context_destroy(p.context);
    free(memory);
    return r;
}

/* The same in a new process, so that no case sees what another left. */
static result measure_apart(size_t kind, int64_t n)
{
    result r = {.beyond_kb = -1};
    int ends[2];
    if (pipe(ends) != 0) return r;
    pid_t child = fork();
    if (child == 0) {
        r = measure(kind, n);
        _exit(write(ends[1], &r, sizeof r) != sizeof r);
    }
    close(ends[1]);
    if (read(ends[0], &r, sizeof r) != sizeof r) r.beyond_kb = -1;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return r;
}

static void print_row(const char *name, int64_t n, const result *r, const result *before)
{
    const double mb = 1 << 20, arguments = 4.0 * (double)n * D * 4 / mb;
    printf("| %s | %lld | %.4g | %.2f | %.1f | %.1f | %.0f |\n", name, (long long)n, r->seconds,
           before->seconds > 0 ? r->seconds / before->seconds : 0, arguments,
           (double)r->beyond_kb / 1024, (double)n * (double)n * 4 / mb);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const int64_t usual[] = {1024, 4096, 16384, 65536};
    int count = argc > 1 ? argc - 1 : 4, failed = 0;
    mha_context *context = NULL;
    if (mha_context_create(NULL, &context) != MHA_OK) return 1;
    int threads = mha_context_threads(context);
    printf("One head of %d, f32; %s, %d thread%s.\n\n", D, mha_isa_name(mha_context_isa(context)),
           threads, threads == 1 ? "" : "s");
    mha_context_destroy(context);
    printf("| kind | n | seconds | times the row above | q, k, v, o: MB | beyond them: MB "
           "| an n x n array: MB |\n|---|---|---|---|---|---|---|\n");
    for (size_t kind = 0; kind < sizeof kinds / sizeof kinds[0]; kind++) {
        result before = {0};
        for (int i = 0; i < count; i++) {
            int64_t n = argc > 1 ? atoll(argv[i + 1]) : usual[i];
            result r = measure_apart(kind, n);
            failed |= r.beyond_kb < 0;
            print_row(kinds[kind].name, n, &r, &before);
            before = r;
        }
    }
    return failed;
}
