/* Products in bf16 arithmetic (docs/numerics.md 15.2). Rows of both factors are rounded. If the
 * processor multiplies pairs of bf16, each inner index is a pair. */
#include "nn/matmul_parts.h"

#include "base/checked.h"
#include "base/context.h"
#include "kernels/int8.h"

#include <math.h>
#include <string.h>

/* ---- weights --------------------------------------------------------------------------------- */

/* Panels of W, or of some of its rows. A chain that is being packed needs twice its size, and
 * overlaps the next chain's memory. Chains are therefore packed in memory order, with spare memory
 * after the last. */
typedef struct bf16_weights {
    const mhai_kernels *kernels;
    bool pairs;
    int64_t inputs, cols;
    int64_t step; /* inputs packed at a time; more than a chain only for a single panel */
    float *panels, *bias;
} bf16_weights;

/* Number of inner indices of these inputs. */
static int64_t indices(bool pairs, int64_t inputs)
{
    return pairs ? (inputs + 1) / 2 : inputs;
}

bool mhai_matmul_bf16_panels(const mhai_kernels *kernels, int64_t inner, int64_t cols,
                             int64_t *floats)
{
    const bool pairs = mhai_kernels_have_pairs(kernels);
    return cols <= INT64_MAX - 2 * MHAI_PANEL &&
           mhai_matmul_panels(indices(pairs, inner), cols + MHAI_PANEL, floats);
}

static float *place_of(const bf16_weights *w, int64_t panel, int64_t input)
{
    return w->panels + mhai_matmul_place_of(mhai_matmul_chain(w->pairs),
                                            indices(w->pairs, w->inputs), w->cols,
                                            indices(w->pairs, input), panel * MHAI_PANEL);
}

/* Pack a step of rows into a panel, from `in` with its type and stride. If `in` is NULL, the panel
 * already contains them as floats. */
static void pack_step(const bf16_weights *w, mhai_pack rows, int64_t panel, int64_t input)
{
    uint8_t bad[MHAI_PANEL];
    bool any_bad = false;
    rows.out = place_of(w, panel, input);
    rows.rows = mhai_min_i64(MHAI_PANEL, w->cols - panel * MHAI_PANEL);
    rows.cols = mhai_min_i64(w->step, w->inputs - input);
    rows.bad = bad;
    rows.any_bad = &any_bad;
    rows.whole = true;
    (rows.in ? w->kernels->bf16_keys : w->kernels->bf16_panel)(&rows, w->pairs);
    for (int64_t i = 0; any_bad && i < rows.rows; i++)
        if (bad[i]) w->bias[panel * MHAI_PANEL + i] = nanf("");
}

/* Describe a step of rows that are not in memory. They are read or, for a single
 * panel, decoded in place. */
static mhai_pack read_step(const mhai_rows_job *r, const bf16_weights *w, int64_t panel,
                           int64_t col, int64_t input, float *read)
{
    const mhai_rows *from = r->from;
    const int64_t rows = mhai_min_i64(MHAI_PANEL, w->cols - panel * MHAI_PANEL);
    const int64_t count = mhai_min_i64(w->step, w->inputs - input);
    int64_t alike = rows;
    if (w->step == MHAI_READ_INPUTS && rows == MHA_CODED_ROWS && from->read_coded &&
        from->read_coded(from->user, from->at, col, &alike, input, count, (void *)read) &&
        alike == rows) {
        for (int64_t k = 0; k < count; k += MHAI_GEMM_BLOCK)
            r->kernels->pack_coded((void *)read, k, mhai_min_i64(MHAI_GEMM_BLOCK, count - k),
                                   place_of(w, panel, input) + k * MHAI_PANEL);
        return (mhai_pack){0};
    }
    from->read(from->user, from->at, col, rows, input, count, read);
    return (mhai_pack){.in = read, .stride = count};
}

void mhai_rows_pack_bf16(const mhai_rows_job *r, int64_t first, int64_t cols, float *panels,
                         float *read, float *bias)
{
    const bool single = cols <= MHAI_PANEL, stored = mhai_rows_stored(r, first, MHAI_PANEL).at;
    const bf16_weights w = {.kernels = r->kernels,
                            .pairs = r->job->pairs,
                            .inputs = r->inputs,
                            .cols = cols,
                            .step = !single  ? MHAI_GEMM_BLOCK
                                    : stored ? r->inputs
                                             : MHAI_READ_INPUTS,
                            .panels = panels,
                            .bias = bias};
    for (int64_t input = 0; input < w.inputs; input += w.step)
        for (int64_t p = 0; p * MHAI_PANEL < cols; p++) {
            const int64_t col = first + p * MHAI_PANEL;
            const mhai_stored_rows s = mhai_rows_stored(r, col, MHAI_PANEL);
            const mhai_pack rows = s.at ? (mhai_pack){.in = mhai_stored_at(&s, input),
                                                      .type = s.type,
                                                      .stride = s.stride}
                                        : read_step(r, &w, p, col, input, read);
            pack_step(&w, rows, p, input);
        }
}

void mhai_matmul_pack_bf16(const mhai_kernels *kernels, mha_dtype type, const void *rows,
                           int64_t stride, int64_t inner, int64_t cols, float *panels, float *bias)
{
    const int64_t size = type == MHA_F32 ? sizeof(float) : sizeof(uint16_t);
    const bf16_weights w = {.kernels = kernels,
                            .pairs = mhai_kernels_have_pairs(kernels),
                            .inputs = inner,
                            .cols = cols,
                            .step = MHAI_GEMM_BLOCK,
                            .panels = panels,
                            .bias = bias};
    for (int64_t input = 0; input < inner; input += w.step)
        for (int64_t col = 0; col < cols; col += MHAI_PANEL)
            pack_step(&w,
                      (mhai_pack){.in = (const char *)rows + (col * stride + input) * size,
                                  .type = type,
                                  .stride = stride},
                      col / MHAI_PANEL, input);
}

/* ---- activations ----------------------------------------------------------------------------- */

enum { ROUND_ROWS = 16 };

/* A row stride that is not a power of two. */
static int64_t stride_of(int64_t inner)
{
    return mhai_round_up(inner, 16) + 16;
}

size_t mhai_rounded_bytes(int64_t rows, int64_t inner)
{
    return (size_t)(rows * stride_of(inner)) * sizeof(float) + (size_t)rows;
}

size_t mhai_rows_bf16_bytes(const mha_context *context, int64_t rows, int64_t inner)
{
    const int64_t room = mhai_round_up(inner, 2) * MHAI_PANEL * context->num_threads;
    return mhai_rounded_bytes(rows, inner) + 64 +
           (size_t)room * sizeof(float); /* 64 for alignment */
}

static void round_rows(void *argument, int64_t item, int worker)
{
    const mhai_rounded *j = argument;
    const int64_t pairs = (j->job->inner + 1) / 2, step = MHAI_TILE_STEP;
    const int64_t end = mhai_min_i64(j->job->rows, (item + 1) * ROUND_ROWS);
    (void)worker;
    for (int64_t row = item * ROUND_ROWS; row < end; row++) {
        float *x = j->x + row * j->stride;
        bool fits = true;
        memcpy(x, j->job->a + row * j->job->a_stride, (size_t)j->job->inner * sizeof *x);
        if (j->job->inner > 0) j->kernels->bf16_row(x, j->job->inner, j->pairs, &fits);
        if (j->pairs)
            memset(x + pairs, 0, (size_t)(mhai_round_up(pairs, step) - pairs) * sizeof *x);
        j->fits[row] = fits;
    }
}

mha_status mhai_round_rows(mha_context *context, const mhai_matmul *job, bool pairs,
                           mhai_rounded *j)
{
    *j = (mhai_rounded){.job = job,
                        .kernels = mhai_kernels_for(context->isa),
                        .pairs = pairs,
                        .stride = stride_of(job->inner)};
    MHA_TRY(
        mha_scratch_alloc(context, (int64_t)mhai_rounded_bytes(job->rows, job->inner), 1, &j->x));
    j->fits = (void *)(j->x + job->rows * j->stride);
    mhai_rows_each(context, job, 0, mhai_ceil_div(job->rows, ROUND_ROWS), round_rows, j);
    return MHA_OK;
}

/* Make the job, with rounded rows in scratch that the caller releases. */
static mha_status round_all(mha_context *context, const mhai_matmul *job, mhai_rounded *j,
                            mhai_matmul *rounded)
{
    const bool pairs = mhai_kernels_have_pairs(mhai_kernels_for(context->isa));
    MHA_TRY(mhai_round_rows(context, job, pairs, j));
    *rounded = *job;
    rounded->a = j->x;
    rounded->a_stride = j->stride;
    rounded->inner = indices(j->pairs, job->inner);
    rounded->pairs = j->pairs;
    return MHA_OK;
}

void mhai_mark_rows(const mhai_rounded *j)
{
    for (int64_t row = 0; row < j->job->rows; row++)
        for (int64_t i = 0; !j->fits[row] && i < j->job->cols; i++)
            j->job->c[row * j->job->c_stride + i] = nanf("");
}

/* ---- products -------------------------------------------------------------------------------- */

mha_status mhai_rows_bf16(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    mhai_rounded j;
    mhai_matmul rounded;
    void *memory;
    MHA_TRY(round_all(context, job, &j, &rounded));
    mhai_rows_job r = mhai_rows_job_of(context, &rounded, from);
    r.bf16 = true;
    r.inputs = job->inner;
    if (job->rows <= r.kernels->tile_rows) r.group = 1;
    r.room = r.group + 1;
    MHA_TRY(mha_scratch_alloc(context, mhai_rows_floats(context, r.room, rounded.inner),
                              sizeof(float), &memory));
    mhai_rows_place(&r, memory);
    mhai_rows_groups(context, &r);
    mhai_mark_rows(&j);
    return MHA_OK;
}

static mha_status run_packed(mha_context *context, const mhai_matmul *job)
{
    mhai_rounded j;
    mhai_matmul rounded;
    MHA_TRY(round_all(context, job, &j, &rounded));
    MHA_TRY(mhai_matmul_reserve(context, &rounded));
    mhai_matmul_run(context, &rounded);
    mhai_mark_rows(&j);
    return MHA_OK;
}

mha_status mhai_matmul_run_bf16(mha_context *context, const mhai_matmul *job)
{
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run_packed(context, job));
}
