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
 * `u` is half the spacing of f32 at 1, `tiny` half the smallest subnormal, as in docs/numerics.md.
 * Bounds leave out products of errors; a factor of 1.001 stands for them. */
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
    bool compared; /* an output, not just working memory */
} kt_area;

typedef struct kt_bits {
    unsigned char *at;
    size_t size, room;
} kt_bits;

typedef struct kernel_test {
    rng r;
    const char *slot;
    bool timed;          /* a typical case, with repeated calls */
    double flops, bytes; /* of a call, for --bench; 0: not applicable */
    int rows;            /* rows of a strip: instruction sets that take fewer are skipped */
    bool undefined;      /* outputs of this case are undefined: their bits are not compared */
    bool failed;
    /* the rest is kernel_test.c's */
    tally tally;
    int64_t equal; /* values compared by kt_same() */
    const void *tables[KT_TABLES];
    const char *names[KT_TABLES];
    bool exact[KT_TABLES]; /* bit-identical to all others that have it */
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

/* A size from 1 to most; near multiples of the widths of registers more often. Timed: typical. */
int64_t kt_size(kernel_test *t, int64_t most, int64_t typical);
int kt_rows(kernel_test *t);                        /* of a strip; t->rows is set */
bool kt_chance(kernel_test *t, double probability); /* timed: false */
int64_t kt_stride(kernel_test *t, int64_t cols);    /* cols or some more; timed: cols */

/* Inputs [rows][stride] with cols per row; all 0xFF. Create them before EACH_TABLE. */
void *kt_input(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride);
float *kt_floats(kernel_test *t, int64_t n);
/* Outputs and working memory; create them in EACH_TABLE. */
void *kt_output(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride);
void *kt_scratch(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride);
/* An output initialised with a copy of `from`, which has the same strides. */
void *kt_in_out(kernel_test *t, mha_dtype type, int64_t rows, int64_t cols, int64_t stride,
                const void *from);
/* Plain memory for the check's own numbers, zeroed. */
void *kt_plain(kernel_test *t, size_t bytes);
/* An inaccessible address, for arguments that are only prefetched. */
const float *kt_nowhere(kernel_test *t);

/* Numbers: normal, with some zeros of either sign, equal numbers, small integers and subnormal numbers. */
float kt_number(kernel_test *t);
void kt_fill(kernel_test *t, float *x, int64_t n);
void kt_fill_rows(kernel_test *t, float *x, int64_t rows, int64_t cols, int64_t stride);
/* An input filled with them. */
float *kt_numbers(kernel_test *t, int64_t rows, int64_t cols, int64_t stride);
/* Elements of any type, with random NaN and infinities (`bad` > 0). */
void kt_fill_typed(kernel_test *t, mha_dtype type, void *x, int64_t rows, int64_t cols,
                   int64_t stride, double bad);
double kt_element(mha_dtype type, const void *x, int64_t i);
mha_dtype kt_type(kernel_test *t); /* f32, f16 or bf16 */

/* For each instruction set of the machine. */
#define EACH_TABLE(t, k) for (const mhai_kernels *k = kt_first(t, false); k; k = kt_next(t))
#define EACH_INT8_TABLE(t, k) \
    for (const mhai_int8_kernels *k = kt_first(t, true); k; k = kt_next(t))
const void *kt_first(kernel_test *t, bool int8);
const void *kt_next(kernel_test *t);

/* The call; repeated if it is timed. */
#define KERNEL_CALL(t) for (kt_start(t); kt_again(t);)
void kt_start(kernel_test *t);
bool kt_again(kernel_test *t);

/* |got - exact| <= bound, or both NaN; the same value (any NaN); a condition. */
void kt_close(kernel_test *t, double got, double exact, double bound, const char *what, int64_t i,
              int64_t j);
void kt_same(kernel_test *t, double got, double expected, const char *what, int64_t i, int64_t j);
void kt_that(kernel_test *t, bool holds, const char *what, int64_t i, int64_t j);
/* Add numbers that are part of an output to its bits. */
void kt_bits_of(kernel_test *t, const float *x, int64_t n);

/* Every slot of kernels.inc and int8.inc must have a check; otherwise linking fails. */
#define MHAI_KERNEL(name, arguments) void check_##name(kernel_test *t);
#include "kernels/int8.inc"
#include "kernels/kernels.inc"
#undef MHAI_KERNEL

#endif
