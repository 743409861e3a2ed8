/* Time and peak resident memory of attention forward and backward over long sequences: one head of
 * 64, f32, gradients of q, k and v; then the same with dropout on and the gradient of a T5 table.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/long_backward.c \
 *      build/libmultihead.a -lm -lpthread -o build/bench_long_backward &&
 *   MHA_THREADS=1 build/bench_long_backward
 *
 * Each case runs once, in a process of its own. q, k, v, o, lse and their gradients are written
 * before; then Linux forgets the peak (/proc/self/clear_refs), and what the peak rises to during
 * forward and backward, less what was resident before, is what both calls needed beyond their
 * arguments. Time is that of the processor. MHA_THREADS and MHA_ISA choose the machine; numbers
 * after the program's name are other lengths. bench/long_backward_torch.py is its twin.
 */
#include <multihead/multihead.h>

#include <multihead/backward.h>
#include <multihead/component.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { D = 64, BUCKETS = 32, TENSORS = 8 }; /* q, k, v, o, and the gradients of each */

typedef struct problem {
    mha_context *context;
    float *memory;
    mha_tensor x[TENSORS], lse, table, table_gradient;
    float values[2 * BUCKETS];
} problem;

static mha_status run(const problem *p, bool everything)
{
    mha_attention_desc desc = {.struct_size = sizeof desc};
    mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &p->lse};
    mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &p->x[4], .k = &p->x[5], .v = &p->x[6]};
    if (everything) {
        desc.dropout = 0.1f;
        desc.dropout_seed = 7;
        desc.t5_table = &p->table;
        gradients.t5_table = &p->table_gradient;
    }
    MHA_TRY(
        mha_attention_forward(p->context, &desc, &p->x[0], &p->x[1], &p->x[2], &p->x[3], &outputs));
    return mha_attention_backward(p->context, &desc, &p->x[0], &p->x[1], &p->x[2], &p->x[3],
                                  &p->lse, &p->x[7], &gradients);
}

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

static bool set_up(problem *p, int64_t n)
{
    const int64_t floats = n * D * TENSORS + n;
    p->memory = malloc((size_t)floats * sizeof *p->memory);
    if (!p->memory || mha_context_create(NULL, &p->context) != MHA_OK) return false;
    uint32_t state = 1;
    for (int64_t i = 0; i < floats; i++) {
        state = state * 1664525u + 1013904223u;
        p->memory[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    for (int i = 0; i < 2 * BUCKETS; i++) p->values[i] = (float)(i % 7) / 8;
    for (int i = 0; i < TENSORS; i++)
        p->x[i] = mha_tensor_contiguous(p->memory + i * n * D, MHA_F32, 4, (int64_t[]){1, 1, n, D});
    p->lse = mha_tensor_contiguous(p->memory + TENSORS * n * D, MHA_F32, 3, (int64_t[]){1, 1, n});
    p->table = mha_tensor_contiguous(p->values, MHA_F32, 2, (int64_t[]){BUCKETS, 1});
    p->table_gradient =
        mha_tensor_contiguous(p->values + BUCKETS, MHA_F32, 2, (int64_t[]){BUCKETS, 1});
    return true;
}

static result measure(bool everything, int64_t n)
{
    result r = {.beyond_kb = -1};
    problem p;
    if (!set_up(&p, n)) return r;
    forget_peak();
    long long before = status_kb("VmRSS:");
    double start = now();
    if (run(&p, everything) != MHA_OK) {
        fprintf(stderr, "%lld: %s\n", (long long)n, mha_error_detail());
        return r;
    }
    r.seconds = now() - start;
    r.beyond_kb = status_kb("VmHWM:") - before;
    mha_context_destroy(p.context);
    free(p.memory);
    return r;
}

/* The same in a new process, so that no case sees what another left. */
static result measure_apart(bool everything, int64_t n)
{
    result r = {.beyond_kb = -1};
    int ends[2];
    if (pipe(ends) != 0) return r;
    pid_t child = fork();
    if (child == 0) {
        r = measure(everything, n);
        _exit(write(ends[1], &r, sizeof r) != sizeof r);
    }
    close(ends[1]);
    if (read(ends[0], &r, sizeof r) != sizeof r) r.beyond_kb = -1;
    close(ends[0]);
    if (child > 0) waitpid(child, NULL, 0);
    return r;
}

int main(int argc, char **argv)
{
    static const int64_t usual[] = {1024, 2048, 4096, 8192, 16384, 32768};
    const int count = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof usual[0]);
    int failed = 0;
    mha_context *context = NULL;
    if (mha_context_create(NULL, &context) != MHA_OK) return 1;
    printf("One head of %d, f32; %s, threads: %d.\n\n", D, mha_isa_name(mha_context_isa(context)),
           mha_context_threads(context));
    mha_context_destroy(context);
    printf("| kind | n | seconds | arguments: MB | beyond them: MB | an n x n array: MB |\n"
           "|---|---|---|---|---|---|\n");
    for (int everything = 0; everything < 2; everything++)
        for (int i = 0; i < count; i++) {
            const int64_t n = argc > 1 ? atoll(argv[i + 1]) : usual[i];
            const double mb = 1 << 20, length = (double)n;
            result r = measure_apart(everything != 0, n);
            failed |= r.beyond_kb < 0;
            printf("| %s | %lld | %.3g | %.1f | %.1f | %.0f |\n",
                   everything ? "dropout, T5 table" : "plain", (long long)n, r.seconds,
                   length * (D * TENSORS + 1) * 4 / mb, (double)r.beyond_kb / 1024,
                   length * length * 4 / mb);
            fflush(stdout);
        }
    return failed;
}
