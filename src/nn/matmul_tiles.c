/* Products of bf16 with the sums of tiles (docs/numerics.md 15.3). The memory of W and of rounded rows
 * is the same on all machines: pairs of bf16, in chunks of CHAIN inputs. A chunk of a panel and of 32
 * rows fits in L1. */
#include "nn/matmul_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "base/convert.h"
#include "kernels/int8.h"

#include <math.h>
#include <string.h>

enum {
    CHAIN = 2 * MHAI_TILE_PAIRS,          /* inputs summed before an addition to the output */
    CHUNK = MHAI_TILE_PAIRS * MHAI_PANEL, /* dwords of a chunk of a panel */
    READ = CHAIN * MHAI_PANEL,            /* floats of the same numbers */
    BLOCK = 256                           /* rows per item */
};
_Static_assert((int)CHAIN <= (int)MHAI_READ_INPUTS, "sources are read in chunks");

/* Whole steps of pairs for these inputs. */
static int64_t pairs_of(int64_t inputs)
{
    const int64_t pairs = inputs / 2 + inputs % 2, step = MHAI_TILE_STEP;
    return mhai_round_up(pairs, step);
}

/* ---- weights --------------------------------------------------------------------------------- */

bool mhai_matmul_tiles_panels(int64_t inner, int64_t cols, int64_t *floats)
{
    return inner <= INT64_MAX - 2 * MHAI_TILE_STEP &&
           mhai_matmul_panels(pairs_of(inner), cols, floats);
}

/* Round x, [rows][inputs] of W, in place, and transpose the pairs into a chunk. pack_panels copies
 * the bits of floats. bad[c] becomes NaN if row c does not fit. */
static void pack_chunk(const mhai_kernels *kernels, float *x, int64_t rows, int64_t inputs,
                       int32_t *chunk, float *bad)
{
    const int64_t pairs = inputs / 2 + inputs % 2, left = pairs_of(inputs) - pairs;
    for (int64_t c = 0; c < rows; c++) {
        bool fits = true;
        kernels->bf16_row(x + c * inputs, inputs, true, &fits);
        if (!fits) bad[c] = nanf("");
    }
    kernels->pack_panels(&(mhai_pack){
        .out = (float *)(void *)chunk, .in = x, .stride = inputs, .rows = rows, .cols = pairs});
    memset(chunk + pairs * MHAI_PANEL, 0, (size_t)(left * MHAI_PANEL) * sizeof *chunk);
}

/* The same for rows of any type, which are first copied to x, [READ]. */
static void pack_stored(const mhai_kernels *kernels, const mhai_stored_rows *in, int64_t input,
                        int64_t inputs, float *x, int32_t *chunk, float *bad)
{
    for (int64_t c = 0; c < in->rows; c++)
        mhai_widen(in->type, mhai_stored_at(in, c * in->stride + input), inputs, x + c * inputs);
    pack_chunk(kernels, x, in->rows, inputs, chunk, bad);
}

void mhai_matmul_pack_tiles(const mhai_kernels *kernels, mha_dtype type, const void *rows,
                            int64_t stride, int64_t inner, int64_t cols, float *panels, float *bias)
{
    float x[READ];
    int32_t *to = (void *)panels;
    mhai_stored_rows in = {.type = type, .stride = stride, .at = rows};
    for (int64_t col = 0; col < cols; col += MHAI_PANEL) {
        in.rows = mhai_min_i64(MHAI_PANEL, cols - col);
        for (int64_t input = 0; input < inner; input += CHAIN) {
            const int64_t inputs = mhai_min_i64(CHAIN, inner - input);
            pack_stored(kernels, &in, input, inputs, x, to, bias + col);
            to += pairs_of(inputs) * MHAI_PANEL;
        }
        in.at = mhai_stored_at(&in, in.rows * stride);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* A product with packed panels, or with rows that each worker reads and packs. */
typedef struct tiles_job {
    const mhai_matmul *job;
    mhai_rounded rounded;
    const mhai_int8_kernels *kernels;
    mhai_rows_job rows; /* from: NULL with packed panels */
    float *memory;      /* [threads][CHUNK + READ] */
    int64_t blocks, block;
} tiles_job;

/* A chunk of a panel, from input `input`. */
static const int32_t *chunk_of(const tiles_job *j, int64_t col, int64_t input, int64_t inputs,
                               float *bad, int worker)
{
    const mhai_matmul *job = j->job;
    const mhai_rows *from = j->rows.from;
    if (!from)
        return (const int32_t *)(const void *)job->panels + col * pairs_of(job->inner) +
               input / 2 * MHAI_PANEL;
    float *read = j->memory + worker * (CHUNK + READ);
    int32_t *chunk = (void *)(read + READ);
    const mhai_stored_rows stored = mhai_rows_stored(&j->rows, col, MHAI_PANEL);
    if (stored.at) {
        pack_stored(j->rounded.kernels, &stored, input, inputs, read, chunk, bad);
    } else {
        from->read(from->user, from->at, col, stored.rows, input, inputs, read);
        pack_chunk(j->rounded.kernels, read, stored.rows, inputs, chunk, bad);
    }
    return chunk;
}

/* Rows of a block times a panel. */
static void run_item(void *argument, int64_t item, int worker)
{
    const tiles_job *j = argument;
    const mhai_matmul *job = j->job;
    const int64_t col = item / j->blocks * MHAI_PANEL, row = item % j->blocks * j->block;
    const int64_t rows = mhai_min_i64(j->block, job->rows - row);
    const int64_t cols = mhai_min_i64(MHAI_PANEL, job->cols - col);
    float bias[MHAI_PANEL] = {0}, bad[MHAI_PANEL] = {0};
    float *out = job->c + row * job->c_stride + col;
    if (job->bias) memcpy(bias, job->bias + col, (size_t)cols * sizeof *bias);
    for (int64_t input = 0; input < job->inner || input == 0; input += CHAIN) {
        const int64_t inputs = mhai_min_i64(CHAIN, job->inner - input);
        const bool first = input == 0 && !job->accumulate;
        const float *x = j->rounded.x + row * j->rounded.stride;
        j->kernels->bf16_product(&(mhai_bf16_product){
            .rows = rows,
            .pairs = pairs_of(inputs),
            .cols = cols,
            .x = (const int32_t *)(const void *)x + input / 2,
            .x_stride = j->rounded.stride,
            .w = inputs > 0 ? chunk_of(j, col, input, inputs, bad, worker) : NULL,
            .from = first ? bias : out,
            .from_stride = first ? 0 : job->c_stride,
            .out = out,
            .out_stride = job->c_stride});
    }
    for (int64_t r = 0; r < rows; r++, out += job->c_stride) {
        for (int64_t i = 0; i < cols; i++) out[i] += bad[i];
        mhai_activate(j->rounded.kernels, job->activation, out, cols);
    }
}

static size_t memory_bytes(const mha_context *context)
{
    return (size_t)context->num_threads * (CHUNK + READ) * sizeof(float);
}

size_t mhai_rows_tiles_bytes(const mha_context *context, int64_t rows, int64_t inner)
{
    return mhai_rounded_bytes(rows, inner) + memory_bytes(context) + 64; /* 64 for alignment */
}

mha_status mhai_rows_tiles(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    tiles_job j = {.job = job, .kernels = mhai_int8_kernels_for(context->isa)};
    MHA_TRY(mhai_round_rows(context, job, true, &j.rounded));
    j.rows = mhai_rows_job_of(context, job, from);
    j.block = from ? mhai_max_i64(1, job->rows) : BLOCK;
    j.blocks = mhai_ceil_div(job->rows, j.block);
    if (from) MHA_TRY(mha_scratch_alloc(context, (int64_t)memory_bytes(context), 1, &j.memory));
    mhai_rows_each(context, job, 0, mhai_ceil_div(job->cols, MHAI_PANEL) * j.blocks, run_item, &j);
    mhai_mark_rows(&j.rounded);
    return MHA_OK;
}

mha_status mhai_matmul_run_tiles(mha_context *context, const mhai_matmul *job)
{
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, mhai_rows_tiles(context, job, NULL));
}
