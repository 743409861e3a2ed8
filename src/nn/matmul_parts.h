/* What the files of products share: a product divided into blocks (matmul.c), and the product with
 * weights that lie in rows (matmul_rows.c), in f32 or in another arithmetic (matmul_int8.c,
 * matmul_bf16.c). */
#ifndef MHAI_MATMUL_PARTS_H
#define MHAI_MATMUL_PARTS_H

#include "nn/matmul.h"

/* 8 strips are enough for a group of panels in L2 to pay, and more than 16 panels gain nothing.
 *
 * Outputs whose rows lie whole pages apart would meet in a few sets of the caches each time that
 * they are added to. Until the last block of inputs their sums lie at another stride instead. */
enum {
    MHAI_GROUP_PANELS = 16,
    MHAI_BLOCK_STRIPS = 8,
    MHAI_SUMS_STRIDE = MHAI_GROUP_PANELS * MHAI_PANEL + 16,
    MHAI_SUMS = MHAI_BLOCK_STRIPS * MHAI_MAX_ROWS * MHAI_SUMS_STRIDE
};

typedef struct mhai_matmul_plan {
    const mhai_matmul *job;
    const mhai_kernels *kernels;
    int64_t chain;        /* inner indices that are summed before they join the output */
    int64_t group_panels; /* panels of a column group */
    int64_t blocks;       /* row blocks */
    int64_t items;        /* blocks of all groups */
    bool fetches;         /* weights that come from memory, before they are needed */
    float *sums;          /* [threads][MHAI_SUMS]; NULL: sums lie in the output */
} mhai_matmul_plan;

int64_t mhai_matmul_chain(bool pairs);

/* mhai_matmul_place() for blocks of another length. */
int64_t mhai_matmul_place_of(int64_t chain, int64_t inner, int64_t cols, int64_t input,
                             int64_t col);

/* A product for so many threads, without sums, and item i of it. */
mhai_matmul_plan mhai_matmul_divide(const mhai_matmul *job, const mha_context *context,
                                    int64_t threads);
void mhai_matmul_block(const mhai_matmul_plan *run, int64_t item, int worker);

bool mhai_matmul_pages_apart(const mhai_matmul *job); /* it gains by sums of its own */
bool mhai_matmul_shares(const mha_context *context, const mhai_matmul *jobs, int count);

/* ---- with rows ------------------------------------------------------------------------------- */

/* Inputs of a panel's rows that are read together: a multiple of every block of a file, and of
 * MHAI_GEMM_BLOCK; 32 KiB. Panels of a group: 1 MiB. */
enum {
    MHAI_READ_INPUTS = MHA_CODED_COLUMNS,
    MHAI_READ_FLOATS = MHAI_READ_INPUTS * MHAI_PANEL,
    MHAI_GROUP_FLOATS = 1 << 18
};

typedef struct mhai_rows_job {
    const mhai_matmul *job; /* of packing alone: its inner and cols */
    const mhai_rows *from;
    const mha_context *context;
    const mhai_kernels *kernels;
    float *panels;  /* of all columns; or of each worker, of a group's */
    float *read;    /* of each worker, MHAI_READ_FLOATS */
    float *sums;    /* of each worker, MHAI_SUMS; NULL: not requested */
    int64_t group;  /* panels of an item */
    int64_t room;   /* for panels, of a worker */
    int64_t inputs; /* bf16: of a row of W; job has pairs of them, or changed places */
    bool bf16;
} mhai_rows_job;

/* Rows of W from `col` on, where they lie. */
typedef struct mhai_stored_rows {
    const char *at; /* NULL: they do not */
    mha_dtype type;
    int64_t stride;
} mhai_stored_rows;

/* So many elements further on. */
static inline const void *mhai_stored_at(const mhai_stored_rows *s, int64_t elements)
{
    return s->at + elements * (s->type == MHA_F32 ? 4 : 2);
}

mhai_stored_rows mhai_rows_stored(const mhai_rows_job *r, int64_t col);

/* A job without memory; the floats of scratch that all threads take, with room for so many panels each;
 * and where a job's parts are in them. */
mhai_rows_job mhai_rows_job_of(const mha_context *context, const mhai_matmul *job,
                               const mhai_rows *from);
int64_t mhai_rows_floats(const mha_context *context, int64_t room, int64_t inner);
void mhai_rows_place(mhai_rows_job *r, float *memory);

/* All groups; columns first .. end of the output, of at most one group. */
void mhai_rows_groups(mha_context *context, mhai_rows_job *r);
void mhai_rows_columns(const mhai_rows_job *r, int64_t first, int64_t end, int worker);

/* A body for all items, over the threads if they pay where a weight costs as much as products with
 * `rows` rows. */
void mhai_rows_each(mha_context *context, const mhai_matmul *job, int64_t rows, int64_t items,
                    mha_parallel_body body, void *argument);

/* The product in int8 and in bf16, and bytes of scratch: of int8 all, of bf16 those beside f32's. */
MHA_NODISCARD mha_status mhai_rows_int8(mha_context *context, const mhai_matmul *job,
                                        const mhai_rows *from);
MHA_NODISCARD mha_status mhai_rows_bf16(mha_context *context, const mhai_matmul *job,
                                        const mhai_rows *from);
size_t mhai_rows_int8_bytes(const mha_context *context, int64_t rows, int64_t inner);
size_t mhai_rows_bf16_bytes(const mha_context *context, int64_t rows, int64_t inner);

/* `cols` rows of W from `first` on become panels; where one does not fit bf16 arithmetic, bias, which is
 * of these columns, becomes NaN. */
void mhai_rows_pack_bf16(const mhai_rows_job *r, int64_t first, int64_t cols, float *panels,
                         float *read, float *bias);

#endif
