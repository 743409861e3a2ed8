/* Time and peak resident memory of attention forward and backward over long sequences: one head of
 * 64, f32, gradients of q, k and v; then the same with dropout on and the gradient of a T5 table.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/long_backward.c \
 *      build/libmultihead.a -lm -lpthread -o build/bench_long_backward &&
 *   MHA_THREADS=1 build/bench_long_backward
 *
 * Each case runs once, in a separate process. q, k, v, o, lse and their gradients are written
 * first; then /proc/self/clear_refs resets Linux's peak. The peak during forward and backward minus
 * resident memory before them is the memory beyond arguments. Time is processor time. MHA_THREADS
 * and MHA_ISA set threads and instruction set; arguments are other lengths.
 * bench/long_backward_torch.py measures the same in torch.
 */
#include "apart.h"

#include <multihead/backward.h>
#include <multihead/component.h>

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
    return mha_attention_backward(
        p->context,
        &(mha_attention_backward_call){.struct_size = sizeof(mha_attention_backward_call),
                                       .attention = &desc,
                                       .q = &p->x[0],
                                       .k = &p->x[1],
                                       .v = &p->x[2],
                                       .o = &p->x[3],
                                       .lse = &p->lse,
                                       .o_gradient = &p->x[7],
                                       .gradients = &gradients});
}

/* ---- measuring ------------------------------------------------------------------------------- */

static bool set_up(problem *p, int64_t n)
{
    const int64_t floats = n * D * TENSORS + n;
    p->memory = apart_floats(floats);
    if (!p->memory || mha_context_create(NULL, &p->context) != MHA_OK) return false;
    for (int i = 0; i < 2 * BUCKETS; i++) p->values[i] = (float)(i % 7) / 8;
    for (int i = 0; i < TENSORS; i++)
        p->x[i] = mha_tensor_contiguous(p->memory + i * n * D, MHA_F32, 4, (int64_t[]){1, 1, n, D});
    p->lse = mha_tensor_contiguous(p->memory + TENSORS * n * D, MHA_F32, 3, (int64_t[]){1, 1, n});
    p->table = mha_tensor_contiguous(p->values, MHA_F32, 2, (int64_t[]){BUCKETS, 1});
    p->table_gradient =
        mha_tensor_contiguous(p->values + BUCKETS, MHA_F32, 2, (int64_t[]){BUCKETS, 1});
    return true;
}

static apart_result measure(int everything, int64_t n)
{
    apart_result r = {.beyond_kb = -1};
    problem p;
    if (!set_up(&p, n)) return r;
    const long long before = apart_begin_kb();
    const double start = apart_now();
    if (run(&p, everything != 0) != MHA_OK) {
        fprintf(stderr, "%lld: %s\n", (long long)n, mha_error_detail());
        return r;
    }
    r.seconds = apart_now() - start;
    r.beyond_kb = apart_beyond_kb(before);
    mha_context_destroy(p.context);
    free(p.memory);
    return r;
}

int main(int argc, char **argv)
{
    static const int64_t usual[] = {1024, 2048, 4096, 8192, 16384, 32768};
    const int count = argc > 1 ? argc - 1 : (int)(sizeof usual / sizeof usual[0]);
    int failed = 0;
    if (!apart_print_machine(D)) return 1;
    printf("| kind | n | seconds | arguments: MB | beyond them: MB | an n x n array: MB |\n"
           "|---|---|---|---|---|---|\n");
    for (int everything = 0; everything < 2; everything++)
        for (int i = 0; i < count; i++) {
            const int64_t n = argc > 1 ? atoll(argv[i + 1]) : usual[i];
            const double mb = 1 << 20, length = (double)n;
            const apart_result r = apart(measure, everything, n);
            failed |= r.beyond_kb < 0;
            printf("| %s | %lld | %.3g | %.1f | %.1f | %.0f |\n",
                   everything ? "dropout, T5 table" : "plain", (long long)n, r.seconds,
                   length * (D * TENSORS + 1) * 4 / mb, (double)r.beyond_kb / 1024,
                   length * length * 4 / mb);
            fflush(stdout);
        }
    return failed;
}
