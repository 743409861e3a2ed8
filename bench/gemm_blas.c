/* Projections: compare our packed product with a BLAS, interleaved in one run.
 *
 *   cc -O2 -std=c17 -D_POSIX_C_SOURCE=200809L -Iinclude bench/gemm_blas.c build/libmultihead.a \
 *      -lopenblas -lm -lpthread -o build/gemm_blas && OPENBLAS_NUM_THREADS=1 build/gemm_blas 1
 *
 * The argument is the library's number of threads; OPENBLAS_NUM_THREADS sets the BLAS's. Prints the
 * median and best GFLOP/s of both per shape, and the ratio of the medians. Other load on the
 * machine is not detected, so compare the ratio, and run the benchmark more than once. */
#include <multihead/component.h>
#include <multihead/nn.h>

#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { SAMPLES = 31 };

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static float *random_floats(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);
    static uint32_t state = 1;
    for (int64_t i = 0; x && i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = (float)(state >> 8) * 0x1p-24f - 0.5f;
    }
    return x;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct problem {
    int M, N, K;
    float *x, *w, *ours, *theirs;
} problem;

static void run_blas(const problem *p)
{
    if (p->M == 1)
        cblas_sgemv(CblasRowMajor, CblasNoTrans, p->N, p->K, 1, p->w, p->K, p->x, 1, 0, p->theirs,
                    1);
    else
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, p->M, p->N, p->K, 1, p->x, p->K, p->w,
                    p->K, 0, p->theirs, p->N);
}

static mha_status compare(mha_context *context, const problem *p)
{
    mha_tensor x = mha_tensor_contiguous(p->x, MHA_F32, 2, (int64_t[]){p->M, p->K});
    mha_tensor w = mha_tensor_contiguous(p->w, MHA_F32, 2, (int64_t[]){p->N, p->K});
    mha_tensor y = mha_tensor_contiguous(p->ours, MHA_F32, 2, (int64_t[]){p->M, p->N});
    mha_linear *linear;
    double ours[SAMPLES], theirs[SAMPLES], difference = 0;
    MHA_TRY(mha_linear_create(context, &w, NULL, &linear));
    mha_status status = MHA_OK;
    for (int i = 0; i < SAMPLES && status == MHA_OK; i++) {
        double t0 = now();
        status = mha_linear_forward(context, linear, MHA_ACTIVATION_NONE, &x, &y);
        double t1 = now();
        run_blas(p);
        ours[i] = t1 - t0;
        theirs[i] = now() - t1;
    }
    mha_linear_destroy(linear);
    if (status != MHA_OK) return status;
    for (int64_t i = 0; i < (int64_t)p->M * p->N; i++)
        difference = fmax(difference, fabs((double)p->ours[i] - (double)p->theirs[i]));
    qsort(ours, SAMPLES, sizeof *ours, ascending);
    qsort(theirs, SAMPLES, sizeof *theirs, ascending);
    double work = 2e-9 * p->M * p->N * p->K;
    printf("%5d x %4d x %4d   ours %6.1f (best %6.1f)   blas %6.1f (best %6.1f)   ratio %.2f   "
           "max difference %.1e\n",
           p->M, p->N, p->K, work / ours[SAMPLES / 2], work / ours[0], work / theirs[SAMPLES / 2],
           work / theirs[0], theirs[SAMPLES / 2] / ours[SAMPLES / 2], difference);
    return MHA_OK;
}

int main(int argc, char **argv)
{
    static const int shapes[][3] = {{512, 512, 512}, {2048, 512, 512},  {128, 768, 768},
                                    {16, 512, 512},  {512, 4096, 4096}, {14, 384, 384},
                                    {14, 1536, 384}, {1, 512, 512},     {1, 4096, 4096}};
    mha_context_desc desc = {.struct_size = sizeof desc,
                             .num_threads = argc > 1 ? atoi(argv[1]) : 1};
    mha_context *context;
    mha_status status = mha_context_create(&desc, &context);
    if (status != MHA_OK) {
        fprintf(stderr, "gemm_blas: %s\n", mha_error_detail());
        return 1;
    }
    printf("GFLOP/s, median of %d; %s, %d threads\n", (int)SAMPLES,
           mha_isa_name(mha_context_isa(context)), mha_context_threads(context));
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0] && status == MHA_OK; i++) {
        problem p = {.M = shapes[i][0], .N = shapes[i][1], .K = shapes[i][2]};
        p.x = random_floats((int64_t)p.M * p.K);
        p.w = random_floats((int64_t)p.N * p.K);
        p.ours = random_floats((int64_t)p.M * p.N);
        p.theirs = random_floats((int64_t)p.M * p.N);
        bool made = p.x && p.w && p.ours && p.theirs;
        status = made ? compare(context, &p) : mha_fail(MHA_ERR_NOMEM, "out of memory");
        free(p.x), free(p.w), free(p.ours), free(p.theirs);
    }
    if (status != MHA_OK) fprintf(stderr, "gemm_blas: %s\n", mha_error_detail());
    mha_context_destroy(context);
    return status != MHA_OK;
}
