/* Shared by the files of products: the division of a product into blocks (matmul.c), and products
 * with weights in rows (matmul_rows.c) in f32, int8 (matmul_int8.c) and bf16 (matmul_bf16.c). */
#ifndef MHAI_MATMUL_PARTS_H
#define MHAI_MATMUL_PARTS_H

#include "nn/matmul.h"

/* 8 strips are enough for a group of panels in L2 to pay off; more than 16 panels gain nothing.
 *
 * If rows of the output are whole pages apart, each update maps to a few cache sets. Their sums are
 * kept at another stride until the last block of inputs. */
enum {
    MHAI_GROUP_PANELS = 16,
    MHAI_BLOCK_STRIPS = 8,
    MHAI_SUMS_STRIDE = MHAI_GROUP_PANELS * MHAI_PANEL + 16,
    MHAI_SUMS = MHAI_BLOCK_STRIPS * MHAI_MAX_ROWS * MHAI_SUMS_STRIDE
};

typedef struct mhai_matmul_plan {
    const mhai_matmul *job;
    const mhai_kernels *kernels;
    int64_t chain;        /* inner indices that are summed before they are added to the output */
    int64_t group_panels; /* panels of a column group */
    int64_t blocks;       /* row blocks */
    int64_t items;        /* blocks of all groups */
    bool fetches;         /* prefetch weights from memory */
    float *sums;          /* [threads][MHAI_SUMS]; NULL: sums are in the output */
} mhai_matmul_plan;

int64_t mhai_matmul_chain(bool pairs);

/* mhai_matmul_place() for blocks of `chain` inner indices. */
int64_t mhai_matmul_place_of(int64_t chain, int64_t inner, int64_t cols, int64_t input,
                             int64_t col);

/* The plan of a product for this many threads, without sums; and the computation of item i. */
mhai_matmul_plan mhai_matmul_divide(const mhai_matmul *job, const mha_context *context,
                                    int64_t threads);
void mhai_matmul_block(const mhai_matmul_plan *run, int64_t item, int worker);

bool mhai_matmul_pages_apart(const mhai_matmul *job); /* whether separate sums make it faster */
bool mhai_matmul_shares(const mha_context *context, const mhai_matmul *jobs, int count);

/* ---- with rows ------------------------------------------------------------------------------- */

/* MHAI_READ_INPUTS: inputs of a panel's rows that are read together (32 KiB), a multiple of every
 * block size of files and of MHAI_GEMM_BLOCK. MHAI_GROUP_FLOATS: panels of a group (1 MiB). */
enum {
    MHAI_READ_INPUTS = MHA_CODED_COLUMNS,
    MHAI_READ_FLOATS = MHAI_READ_INPUTS * MHAI_PANEL,
    MHAI_GROUP_FLOATS = 1 << 18
};

typedef struct mhai_rows_job {
    const mhai_matmul *job; /* when only packing: its inner and cols */
    const mhai_rows *from;
    const mha_context *context;
    const mhai_kernels *kernels;
    float *panels;  /* for all columns; or for each worker, for one group */
    float *read;    /* for each worker, MHAI_READ_FLOATS */
    float *sums;    /* for each worker, MHAI_SUMS; NULL: not requested */
    int64_t group;  /* panels per item */
    int64_t room;   /* panels for which each worker has room */
    int64_t inputs; /* bf16: inputs of a row of W; inner of job may count pairs of them */
    bool bf16;
} mhai_rows_job;

/* Rows of W in memory, from `col` on. */
typedef struct mhai_stored_rows {
    const char *at; /* NULL: not in memory */
    mha_dtype type;
    int64_t stride;
} mhai_stored_rows;

/* The address `elements` elements after the first. */
static inline const void *mhai_stored_at(const mhai_stored_rows *s, int64_t elements)
{
    return s->at + elements * (s->type == MHA_F32 ? 4 : 2);
}

mhai_stored_rows mhai_rows_stored(const mhai_rows_job *r, int64_t col);

/* A job without memory; the scratch floats of all threads, with room for `room` panels per thread;
 * and the division of that memory. */
mhai_rows_job mhai_rows_job_of(const mha_context *context, const mhai_matmul *job,
                               const mhai_rows *from);
int64_t mhai_rows_floats(const mha_context *context, int64_t room, int64_t inner);
void mhai_rows_place(mhai_rows_job *r, float *memory);

/* Process all groups of columns; or columns first .. end - 1, which are at most one group. */
void mhai_rows_groups(mha_context *context, mhai_rows_job *r);
void mhai_rows_columns(const mhai_rows_job *r, int64_t first, int64_t end, int worker);

/* Run a body on all items. Use the threads if that pays off, assuming that a weight costs as much
 * as products with `rows` rows. */
void mhai_rows_each(mha_context *context, const mhai_matmul *job, int64_t rows, int64_t items,
                    mha_parallel_body body, void *argument);

/* The products in int8 and in bf16, and their scratch bytes: for int8 all; for bf16 those in
 * addition to those of f32. */
MHA_NODISCARD mha_status mhai_rows_int8(mha_context *context, const mhai_matmul *job,
                                        const mhai_rows *from);
MHA_NODISCARD mha_status mhai_rows_bf16(mha_context *context, const mhai_matmul *job,
                                        const mhai_rows *from);
size_t mhai_rows_int8_bytes(const mha_context *context, int64_t rows, int64_t inner);
size_t mhai_rows_bf16_bytes(const mha_context *context, int64_t rows, int64_t inner);

/* Pack `cols` rows of W from `first` on into panels. For a row that does not fit bf16 arithmetic,
 * bias, which covers these columns, becomes NaN. */
void mhai_rows_pack_bf16(const mhai_rows_job *r, int64_t first, int64_t cols, float *panels,
                         float *read, float *bias);

#endif
