/* Internals of matrix products: the division of a product into blocks (matmul.c), and products with
 * weights in rows (matmul_rows.c), in f32, int8 (matmul_int8.c), bf16 (matmul_bf16.c) and bf16 with
 * the sums of tiles (matmul_tiles.c). */
#ifndef MHAI_MATMUL_PARTS_H
#define MHAI_MATMUL_PARTS_H

#include "nn/matmul.h"

/* With 8 strips, keeping a group of panels in L2 pays off. More than 16 panels gain nothing.
 *
 * If rows of the output are whole pages apart, updates would map to few cache sets. Sums are then
 * kept in separate memory with another stride until the last block of inputs. */
enum {
    MHAI_GROUP_PANELS = 16,
    MHAI_BLOCK_STRIPS = 8,
    MHAI_SUMS_STRIDE = MHAI_GROUP_PANELS * MHAI_PANEL + 16,
    MHAI_SUMS = MHAI_BLOCK_STRIPS * MHAI_MAX_ROWS * MHAI_SUMS_STRIDE
};

typedef struct mhai_matmul_plan {
    const mhai_matmul *job;
    const mhai_kernels *kernels;
    int64_t chain;        /* inner indices summed before each addition to the output */
    int64_t group_panels; /* panels per group of columns */
    int64_t blocks;       /* number of row blocks */
    int64_t items;        /* row blocks times groups */
    bool fetches;         /* prefetch weights from memory */
    float *sums;          /* [threads][MHAI_SUMS]; NULL: sum in the output */
} mhai_matmul_plan;

int64_t mhai_matmul_chain(bool pairs);

/* mhai_matmul_place() for blocks of `chain` inner indices. */
int64_t mhai_matmul_place_of(int64_t chain, int64_t inner, int64_t cols, int64_t input,
                             int64_t col);

/* Plan a product for this many threads, without sums; compute item i. */
mhai_matmul_plan mhai_matmul_divide(const mhai_matmul *job, const mha_context *context,
                                    int64_t threads);
void mhai_matmul_block(const mhai_matmul_plan *run, int64_t item, int worker);

bool mhai_matmul_pages_apart(const mhai_matmul *job); /* whether separate sums are faster */
bool mhai_matmul_shares(const mha_context *context, const mhai_matmul *jobs, int count);

/* ---- with rows ------------------------------------------------------------------------------- */

/* MHAI_READ_INPUTS: inputs of a panel's rows read at a time (32 KiB), a multiple of MHAI_GEMM_BLOCK
 * and of all block sizes in files. MHAI_GROUP_FLOATS: size of a group of panels (1 MiB). */
enum {
    MHAI_READ_INPUTS = MHA_CODED_COLUMNS,
    MHAI_READ_FLOATS = MHAI_READ_INPUTS * MHAI_PANEL,
    MHAI_GROUP_FLOATS = 1 << 18
};

typedef struct mhai_rows_job {
    const mhai_matmul *job; /* for packing alone, only inner and cols are set */
    const mhai_rows *from;
    const mha_context *context;
    const mhai_kernels *kernels;
    float *panels;  /* of all columns, or of one group per worker */
    float *read;    /* MHAI_READ_FLOATS per worker */
    float *sums;    /* MHAI_SUMS per worker; NULL: not needed */
    int64_t group;  /* panels per item */
    int64_t room;   /* panels for which each worker has memory */
    int64_t inputs; /* bf16: inputs of a row of W, because job->inner may count pairs */
    bool bf16;
} mhai_rows_job;

/* Up to `most` rows of W in memory, starting at row `col`. */
typedef struct mhai_stored_rows {
    const char *at; /* NULL: not in memory */
    int64_t rows;
    mha_dtype type;
    int64_t stride;
} mhai_stored_rows;

/* The address of an element. */
static inline const void *mhai_stored_at(const mhai_stored_rows *s, int64_t elements)
{
    return s->at + elements * (s->type == MHA_F32 ? 4 : 2);
}

mhai_stored_rows mhai_rows_stored(const mhai_rows_job *r, int64_t col, int64_t most);

/* Make a job without memory; compute the scratch floats of all threads, with `room` panels per
 * thread; divide that memory. */
mhai_rows_job mhai_rows_job_of(const mha_context *context, const mhai_matmul *job,
                               const mhai_rows *from);
int64_t mhai_rows_floats(const mha_context *context, int64_t room, int64_t inner);
void mhai_rows_place(mhai_rows_job *r, float *memory);

/* Process all groups of columns, or columns first .. end - 1 of a single group. */
void mhai_rows_groups(mha_context *context, mhai_rows_job *r);
void mhai_rows_columns(const mhai_rows_job *r, int64_t first, int64_t end, int worker);

/* Run a body for all items, on several threads if that pays off. The estimate assumes that reading
 * a weight costs as much as products with `rows` rows. */
void mhai_rows_each(mha_context *context, const mhai_matmul *job, int64_t rows, int64_t items,
                    mha_parallel_body body, void *argument);

/* The products in int8 and in bf16, and their scratch bytes. For int8 this is the total; for bf16
 * it is added to the scratch of f32. */
MHA_NODISCARD mha_status mhai_rows_int8(mha_context *context, const mhai_matmul *job,
                                        const mhai_rows *from);
MHA_NODISCARD mha_status mhai_rows_bf16(mha_context *context, const mhai_matmul *job,
                                        const mhai_rows *from);
size_t mhai_rows_int8_bytes(const mha_context *context, int64_t rows, int64_t inner);
size_t mhai_rows_bf16_bytes(const mha_context *context, int64_t rows, int64_t inner);

/* Rows of a product, rounded for bf16 arithmetic into x: floats, or pairs of bf16 padded with zeros
 * to whole MHAI_TILE_STEPs. A row that does not fit is 0; mhai_mark_rows() makes its outputs NaN. x
 * is scratch that the caller releases. */
typedef struct mhai_rounded {
    const mhai_matmul *job;
    const mhai_kernels *kernels;
    bool pairs;
    float *x; /* [rows][stride] */
    int64_t stride;
    uint8_t *fits; /* [rows] */
} mhai_rounded;
MHA_NODISCARD mha_status mhai_round_rows(mha_context *context, const mhai_matmul *job, bool pairs,
                                         mhai_rounded *rounded);
void mhai_mark_rows(const mhai_rounded *rounded);
size_t mhai_rounded_bytes(int64_t rows, int64_t inner);

/* The product with the sums of tiles, and all its scratch bytes. from NULL: job->panels are packed. */
MHA_NODISCARD mha_status mhai_rows_tiles(mha_context *context, const mhai_matmul *job,
                                         const mhai_rows *from);
size_t mhai_rows_tiles_bytes(const mha_context *context, int64_t rows, int64_t inner);

/* Pack `cols` rows of W, starting at `first`, into panels. bias has these columns. If bf16
 * arithmetic cannot represent a row, its bias becomes NaN. */
void mhai_rows_pack_bf16(const mhai_rows_job *r, int64_t first, int64_t cols, float *panels,
                         float *read, float *bias);

#endif
