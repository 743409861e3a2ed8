/* Products with coded weights in int8 arithmetic (docs/numerics.md 13).
 *
 * Activations are quantised first, MHAI_READ_INPUTS inputs of all rows at a time. Then each worker
 * codes some tiles (rows of W that are read together) and multiplies all rows by them. */
#include "nn/matmul_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "kernels/int8.h"

enum { INT8_TILES = 16, INT8_FEW = 8, INT8_ROUND = 16 };

/* Aligned to a cache line. */
typedef struct int8_coded {
    _Alignas(64) mha_coded rows;
} int8_coded;

typedef struct int8_job {
    mhai_rows_job r;
    const mhai_int8_kernels *kernels;
    int32_t *small; /* [ceil(inner / MHAI_READ_INPUTS)][rows][row_stride] */
    mhai_int8_block *blocks;
    int8_coded *coded; /* [threads][tiles] */
    const float *zeros;
    int64_t tiles; /* number of tiles coded together */
    int64_t group; /* panels per item; for items in f32, r.group */
} int8_job;

/* Rows `first` .. first + count - 1 of W. */
typedef struct int8_tile {
    int64_t first, count;
} int8_tile;

static void int8_round(void *argument, int64_t item, int worker)
{
    const int8_job *j = argument;
    const mhai_matmul *job = j->r.job;
    const int64_t end = mhai_min_i64(job->rows, (item + 1) * INT8_ROUND);
    (void)worker;
    for (int64_t row = item * INT8_ROUND; row < end; row++)
        for (int64_t input = 0; input < job->inner; input += MHAI_READ_INPUTS) {
            const int64_t at = input / MHAI_READ_INPUTS * job->rows + row;
            j->kernels->int8_inputs(job->a + row * job->a_stride + input,
                                    mhai_min_i64(MHAI_READ_INPUTS, job->inner - input),
                                    j->small + at * j->kernels->row_stride,
                                    j->blocks + at * MHAI_INT8_BLOCKS);
        }
}

/* Compute tiles whose first inputs are already coded. Multiply all rows by these inputs, then code
 * and multiply the next inputs. */
static void int8_tiles(const int8_job *j, const int8_tile *tile, int64_t tiles, int8_coded *coded)
{
    const mhai_matmul *job = j->r.job;
    const mhai_rows *from = j->r.from;
    const int64_t strip = j->kernels->strip_rows;
    for (int64_t input = 0; input < job->inner; input += MHAI_READ_INPUTS) {
        const int64_t inputs = mhai_min_i64(MHAI_READ_INPUTS, job->inner - input);
        for (int64_t t = 0; input > 0 && t < tiles; t++) {
            int64_t count = tile[t].count;
            from->read_coded(from->user, from->at, tile[t].first, &count, input, inputs,
                             &coded[t].rows);
        }
        for (int64_t row = 0; row < job->rows; row += strip)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t at = input / MHAI_READ_INPUTS * job->rows + row, col = tile[t].first;
                float *out = job->c + row * job->c_stride + col;
                const float *bias = job->bias ? job->bias + col : j->zeros;
                j->kernels->int8_product(
                    &(mhai_int8_product){.rows = mhai_min_i64(strip, job->rows - row),
                                         .w = &coded[t].rows,
                                         .inputs = inputs,
                                         .cols = tile[t].count,
                                         .x = j->small + at * j->kernels->row_stride,
                                         .blocks = j->blocks + at * MHAI_INT8_BLOCKS,
                                         .from = input > 0 ? out : bias,
                                         .from_stride = input > 0 ? job->c_stride : 0,
                                         .out = out,
                                         .out_stride = job->c_stride});
            }
    }
    const int64_t first = tile[0].first,
                  cols = tile[tiles - 1].first + tile[tiles - 1].count - first;
    for (int64_t row = 0; row < job->rows; row++)
        mhai_activate(j->r.kernels, job->activation, job->c + row * job->c_stride + first, cols);
}

/* Compute rows of W that have no coded form, in f32. */
static void int8_group(void *argument, int64_t item, int worker)
{
    const int8_job *j = argument;
    const mhai_rows *from = j->r.from;
    const mhai_matmul *job = j->r.job;
    int8_tile tile[INT8_TILES];
    int8_coded *coded = j->coded + worker * j->tiles;
    int64_t tiles = 0, col = item * j->group * MHAI_PANEL, count;
    const int64_t end = mhai_min_i64(job->cols, col + j->group * MHAI_PANEL);
    const int64_t inputs = mhai_min_i64(MHAI_READ_INPUTS, job->inner);
    for (; col < end; col += count) {
        count = mhai_min_i64(MHAI_PANEL, end - col);
        const bool is_coded =
            from->read_coded(from->user, from->at, col, &count, 0, inputs, &coded[tiles].rows);
        if (is_coded) tile[tiles++] = (int8_tile){col, count};
        if (tiles > 0 && (!is_coded || tiles == j->tiles || col + count == end)) {
            int8_tiles(j, tile, tiles, coded);
            tiles = 0;
        }
        if (!is_coded) mhai_rows_columns(&j->r, col, col + count, worker);
    }
}

/* Scratch bytes for all rows, for each worker, and for the f32 path. */
static size_t bytes_of(const mha_context *context, int64_t rows, int64_t inner, int64_t tiles)
{
    const size_t row = (size_t)mhai_int8_kernels_for(context->isa)->row_stride * sizeof(int32_t) +
                       MHAI_INT8_BLOCKS * sizeof(mhai_int8_block);
    return (size_t)(mhai_ceil_div(inner, MHAI_READ_INPUTS) * rows) * row +
           (size_t)(context->num_threads * tiles) * sizeof(int8_coded) +
           (size_t)mhai_rows_floats(context, 1, inner) * sizeof(float);
}

size_t mhai_rows_int8_bytes(const mha_context *context, int64_t rows, int64_t inner)
{
    return bytes_of(context, rows, inner, INT8_TILES);
}

mha_status mhai_rows_int8(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    static const float zeros[MHAI_PANEL];
    const int64_t threads = context->num_threads, panels = mhai_ceil_div(job->cols, MHAI_PANEL);
    const int64_t chunks = mhai_ceil_div(job->inner, MHAI_READ_INPUTS);
    int8_job j = {.r = mhai_rows_job_of(context, job, from),
                  .kernels = mhai_int8_kernels_for(context->isa),
                  .zeros = zeros,
                  .tiles = job->rows > INT8_FEW ? INT8_TILES : 1,
                  .group = threads > 1 ? mhai_ceil_div(panels, 4 * threads) : panels};
    j.r.group = j.r.room = 1;
    MHA_TRY(mha_scratch_alloc(context, (int64_t)bytes_of(context, job->rows, job->inner, j.tiles),
                              1, &j.coded));
    j.blocks = (void *)(j.coded + threads * j.tiles);
    j.small = (void *)(j.blocks + chunks * job->rows * MHAI_INT8_BLOCKS);
    mhai_rows_place(&j.r, (void *)(j.small + chunks * job->rows * j.kernels->row_stride));
    mhai_rows_each(context, job, INT8_FEW, mhai_ceil_div(job->rows, INT8_ROUND), int8_round, &j);
    mhai_rows_each(context, job, INT8_FEW, mhai_ceil_div(panels, j.group), int8_group, &j);
    return MHA_OK;
}
