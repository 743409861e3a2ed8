/* Shared by the checks of kernels. A check draws one case, creates its inputs, runs the kernel of each instruction set
 * and compares the outputs with plain arithmetic in double or integers, written from the contract in kernels.h:
 *
 *     void check_thing(kernel_test *t)
 *     {
 *         const int64_t n = kt_size(t, 300, 4096);
 *         float *x = kt_floats(t, n);                             (inputs: read-only from here on)
 *         kt_fill(t, x, n);
 *         EACH_TABLE (t, k) {
 *             float *y = kt_output(t, MHA_F32, 1, n, n);          (outputs: between canaries)
 *             KERNEL_CALL (t) k->thing(y, x, n);
 *             for (int64_t i = 0; i < n; i++) kt_close(t, y[i], exact, bound, "y", 0, i);
 *         }
 *     }
 *
 * All memory randomly ends before, or begins after, an inaccessible page; gaps between rows are 0xFF. After each pass
 * of EACH_TABLE the canaries are checked, and outputs are compared bit by bit with those of the first instruction set
 * that has fused multiply-adds.
 *
 * `u` is half the spacing of f32 at 1, and `tiny` is half the smallest subnormal, like in
 * docs/numerics.md. Bounds omit products of errors; a factor of 1.001 covers them. */
#ifndef KERNEL_TEST_H
#define KERNEL_TEST_H

#include "kernels/int8.h"
#include "kernels/kernels.h"
#include "support/guarded.h"
#include "support/rng.h"
#include "support/tally.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KT_MOST = 1024, KT_TABLES = 8 };

static const double u = 0x1p-24, tiny = 0x1p-150, log2_e = 1.4426950408889634074,
                    ln2 = 0.69314718055994530942;

typedef struct kt_area {
    guarded memory;
    bool compared; /* an output; false for working memory */
} kt_area;

typedef struct kt_bits {
    unsigned char *at;
    size_t size, room;
} kt_bits;

typedef struct kernel_test {
    rng r;
    const char *slot;
    bool timed;          /* a typical case, with repeated calls */
    double flops, bytes; /* per call, for --bench; 0 if not applicable */
    int rows;            /* rows of a strip; skips instruction sets whose strips have fewer */
    bool undefined;      /* outputs are undefined, and their bits are not compared */
    bool failed;
    /* the other fields belong to kernel_test.c */
    tally tally;
    int64_t equal; /* values compared by kt_same() */
    const void *tables[KT_TABLES];
    const char *names[KT_TABLES];
    bool exact[KT_TABLES]; /* bit-identical to all tables with `exact` */
    int most_rows[KT_TABLES], count, table;
    kt_area inputs[KT_MOST], areas[KT_MOST];
    void *plain[KT_MOST];
    int input_count, area_count, plain_count, complaints;
    kt_bits bits, first_bits;
    const char *first_name;
    char place[160];
    int passes, batch, left, batches;
    double start, times[64];
} kernel_test;

/* A size from 1 to most, often near multiples of the widths of registers; `typical` for timed
 * cases. */
int64_t kt_size(kernel_test *t, int64_t most, int64_t typical);
int kt_rows(kernel_test *t);                        /* rows of a strip; sets t->rows */
bool kt_chance(kernel_test *t, double probability); /* false for timed cases */
int64_t kt_stride(kernel_test *t, int64_t cols);    /* cols or some more; cols for timed cases */

/* Inputs [rows][stride] with cols per row, initialised with 0xFF. Create them before EACH_TABLE. */
void *kt_input(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride);
float *kt_floats(kernel_test *t, int64_t n);
/* Outputs and working memory; create them in EACH_TABLE. */
void *kt_output(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride);
void *kt_scratch(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride);
/* An output initialised with a copy of `from`, which has the same strides. */
void *kt_in_out(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride,
                const void *from);
/* Zeroed memory without canaries, for the check's own numbers. */
void *kt_plain(kernel_test *t, size_t bytes);
/* An inaccessible address, for arguments that are only prefetched. */
const float *kt_nowhere(kernel_test *t);

/* Normally distributed numbers, with some zeros of either sign, equal numbers, small integers and
 * subnormal numbers. */
float kt_number(kernel_test *t);
void kt_fill(kernel_test *t, float *x, int64_t n);
void kt_fill_rows(kernel_test *t, float *x, int64_t rows, int64_t cols, int64_t stride);
/* An input with these numbers. */
float *kt_numbers(kernel_test *t, int64_t rows, int64_t cols, int64_t stride);
/* Elements of any type, with random NaN and infinities (`bad` > 0). */
void kt_fill_typed(kernel_test *t, mha_dtype type, void *x, int64_t rows, int64_t cols,
                   int64_t stride, double bad);
double kt_element(mha_dtype type, const void *x, int64_t i);
mha_dtype kt_type(kernel_test *t); /* f32, f16 or bf16 */

/* Loops over the machine's instruction sets. */
#define EACH_TABLE(t, k) for (const mhai_kernels *k = kt_first(t, false); k; k = kt_next(t))
#define EACH_INT8_TABLE(t, k) \
    for (const mhai_int8_kernels *k = kt_first(t, true); k; k = kt_next(t))
const void *kt_first(kernel_test *t, bool int8);
const void *kt_next(kernel_test *t);

/* Makes the call, repeatedly if it is timed. */
#define KERNEL_CALL(t) for (kt_start(t); kt_again(t);)
void kt_start(kernel_test *t);
bool kt_again(kernel_test *t);

/* Checks that |got - exact| <= bound, or that both are NaN; that values are equal, or both NaN; and
 * a condition. */
void kt_close(kernel_test *t, double got, double exact, double bound, const char *what, int64_t i,
              int64_t j);
void kt_same(kernel_test *t, double got, double expected, const char *what, int64_t i, int64_t j);
void kt_that(kernel_test *t, bool holds, const char *what, int64_t i, int64_t j);
/* sum over i of a[i a_step] b[i b_step], and the sum of magnitudes. */
double kt_product(const float *a, int64_t a_step, const float *b, int64_t b_step, int64_t inner,
                  double *size);
/* The bound of one chain: at most `inner` roundings of each product, then the sum with the previous
 * value (docs/numerics.md 2). */
double kt_product_bound(int64_t inner, double size, double result);
/* Adds numbers that are part of an output to the compared bits. */
void kt_bits_of(kernel_test *t, const float *x, int64_t n);

/* Every slot of kernels.inc and int8.inc must have a check; otherwise linking fails. */
#define MHAI_KERNEL(name, arguments) void check_##name(kernel_test *t);
#include "kernels/int8.inc"
#include "kernels/kernels.inc"
#undef MHAI_KERNEL

#endif
