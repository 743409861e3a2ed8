/* Products with weights in rows, which are packed some columns at a time (matmul.h). */
#include "nn/matmul_parts.h"

#include "base/checked.h"
#include "base/context.h"

enum { PAIR = 2 };
_Static_assert(PAIR *MHA_CODED_ROWS == MHAI_STORED_COLUMNS, "the columns of gemm_coded");
_Static_assert(PAIR * sizeof(mha_coded) <= MHAI_READ_FLOATS * sizeof(float),
               "what is read finds room");

/* ---- packing ------------------------------------------------------------------------------- */

mhai_stored_rows mhai_rows_stored(const mhai_rows_job *r, int64_t col, int64_t most)
{
    const mhai_rows *from = r->from;
    mhai_stored_rows s = {.rows = mhai_min_i64(most, r->job->cols - col)};
    if (from->stored) s.at = from->stored(from->user, from->at, col, s.rows, &s.type, &s.stride);
    return s;
}

/* Read MHA_CODED_ROWS rows; returns false if the weights are not coded alike. */
static bool read_coded(const mhai_rows_job *r, int64_t col, int64_t first, int64_t count,
                       mha_coded *to)
{
    const mhai_rows *from = r->from;
    int64_t alike = MHA_CODED_ROWS;
    return from->read_coded && r->job->cols - col >= MHA_CODED_ROWS &&
           from->read_coded(from->user, from->at, col, &alike, first, count, to) &&
           alike == MHA_CODED_ROWS;
}

/* Pack columns of W^T, starting at `col`, for inputs first .. first + inner - 1, into panel
 * `panel`. The panels have `cols` columns in total. first is a multiple of MHAI_READ_INPUTS. */
static void pack_read(const mhai_rows_job *r, int64_t col, int64_t first, int64_t inner,
                      float *panels, int64_t panel, int64_t cols, float *read)
{
    const int64_t rows = mhai_min_i64(MHAI_PANEL, r->job->cols - col);
    const mhai_rows *from = r->from;
    mha_coded *coded = (void *)read;
    const mhai_stored_rows stored = mhai_rows_stored(r, col, MHAI_PANEL);
    for (int64_t input = 0; stored.at && input < inner; input += MHAI_GEMM_BLOCK)
        r->kernels->pack_panels(
            &(mhai_pack){.out = panels + mhai_matmul_place(inner, cols, input, panel * MHAI_PANEL),
                         .in = mhai_stored_at(&stored, first + input),
                         .type = stored.type,
                         .stride = stored.stride,
                         .rows = rows,
                         .cols = mhai_min_i64(MHAI_GEMM_BLOCK, inner - input)});
    for (int64_t input = 0; !stored.at && input < inner; input += MHAI_READ_INPUTS) {
        const int64_t count = mhai_min_i64(MHAI_READ_INPUTS, inner - input), at = first + input;
        const bool is_coded = read_coded(r, col, at, count, coded);
        if (!is_coded) from->read(from->user, from->at, col, rows, at, count, read);
        for (int64_t k = 0; k < count; k += MHAI_GEMM_BLOCK) {
            const int64_t columns = mhai_min_i64(MHAI_GEMM_BLOCK, count - k);
            float *out = panels + mhai_matmul_place(inner, cols, input + k, panel * MHAI_PANEL);
            if (is_coded)
                r->kernels->pack_coded(coded, k, columns, out);
            else
                r->kernels->pack_panels(&(mhai_pack){
                    .out = out, .in = read + k, .stride = count, .rows = rows, .cols = columns});
        }
    }
}

static void pack_item(void *argument, int64_t panel, int worker)
{
    const mhai_rows_job *r = argument;
    pack_read(r, panel * MHAI_PANEL, 0, r->job->inner, r->panels, panel, r->job->cols,
              r->read + worker * MHAI_READ_FLOATS);
}

mha_status mhai_matmul_pack_rows(mha_context *context, const mhai_rows *from, int64_t inner,
                                 int64_t cols, float *panels)
{
    void *read;
    const mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, (int64_t)context->num_threads * MHAI_READ_FLOATS,
                              sizeof(float), &read));
    const mhai_matmul shape = {.inner = inner, .cols = cols};
    mhai_rows_job job = {.job = &shape,
                         .from = from,
                         .kernels = mhai_kernels_for(context->isa),
                         .panels = panels,
                         .read = read};
    mha_parallel_for(context, mhai_ceil_div(cols, MHAI_PANEL), pack_item, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}

/* ---- the product with rows ------------------------------------------------------------------- */

/* Pack the columns of at most one group, and multiply all rows by them. */
static void run_many(const mhai_rows_job *r, int64_t first, int64_t end, int worker)
{
    const int64_t cols = end - first;
    float bias[MHAI_GROUP_PANELS * MHAI_PANEL];
    float *panels = r->panels + worker * r->room * MHAI_PANEL * r->job->inner;
    float *read = r->read + worker * MHAI_READ_FLOATS;
    mhai_matmul part = *r->job;
    part.cols = cols;
    part.panels = panels;
    part.c += first;
    if (part.bias) part.bias += first;
    if (r->bf16) {
        for (int64_t i = 0; i < cols; i++) bias[i] = part.bias ? part.bias[i] : 0;
        part.bias = bias;
        mhai_rows_pack_bf16(r, first, cols, panels, read, bias);
    }
    for (int64_t p = 0; !r->bf16 && p * MHAI_PANEL < cols; p++)
        pack_read(r, first + p * MHAI_PANEL, 0, r->job->inner, panels, p, cols, read);
    mhai_matmul_plan run = mhai_matmul_divide(&part, r->context, 1);
    if (r->sums) run.sums = r->sums + worker * MHAI_SUMS;
    for (int64_t i = 0; i < run.items; i++) mhai_matmul_block(&run, i, 0);
}

/* Rows of f16 or bf16 that gemm_stored reads in place, or the rows of a panel. */
static mhai_stored_rows rows_in_place(const mhai_rows_job *r, int64_t col, int64_t end)
{
    mhai_stored_rows s = {0};
    for (int64_t most = MHAI_STORED_COLUMNS; !s.at && most >= MHAI_PANEL; most /= 2)
        s = mhai_rows_stored(r, col, mhai_min_i64(most, end - col));
    if (s.at && s.type != MHA_F32) return s;
    return (mhai_stored_rows){.rows = mhai_min_i64(MHAI_PANEL, end - col)};
}

/* Read MHAI_STORED_COLUMNS rows for gemm_coded. */
static bool read_pair(const mhai_rows_job *r, int64_t col, int64_t first, int64_t count,
                      mha_coded pair[PAIR])
{
    for (int p = 0; p < PAIR; p++)
        if (!read_coded(r, col + p * MHA_CODED_ROWS, first, count, &pair[p]) ||
            pair[p].run != pair[0].run)
            return false;
    return true;
}

/* The weights of some columns: in memory, coded, or packed. */
typedef struct few_columns {
    mhai_stored_rows stored;
    const mha_coded *coded; /* [PAIR]; NULL: not coded */
    float *panels;
} few_columns;

/* Multiply by `count` inputs, starting at `input`. */
static void few_inputs(const mhai_rows_job *r, const few_columns *w, int64_t col, int64_t input,
                       int64_t count)
{
    const mhai_matmul *job = r->job;
    const mhai_stored_rows *stored = &w->stored;
    for (int64_t k = 0; k < count || k == 0; k += MHAI_GEMM_BLOCK) {
        const int64_t inner = mhai_min_i64(MHAI_GEMM_BLOCK, count - k);
        const mhai_gemm gemm = {.rows = (int)job->rows,
                                .inner = inner,
                                .panels = mhai_ceil_div(stored->rows, MHAI_PANEL),
                                .cols = stored->rows,
                                .x = job->a + input + k,
                                .x_stride = job->a_stride,
                                .w = w->panels + mhai_matmul_place(count, stored->rows, k, 0),
                                .panel_stride = inner * MHAI_PANEL,
                                .bias = job->bias ? job->bias + col : NULL,
                                .first = input + k == 0 && !job->accumulate,
                                .out = job->c + col,
                                .out_stride = job->c_stride};
        const int64_t later = input + k + MHAI_GEMM_BLOCK;
        const int64_t next = later < job->inner ? later : stored->rows * stored->stride;
        if (stored->at)
            r->kernels->gemm_stored(&(mhai_gemm_stored){.gemm = gemm,
                                                        .w = mhai_stored_at(stored, input + k),
                                                        .type = stored->type,
                                                        .stride = stored->stride,
                                                        .next = mhai_stored_at(stored, next)});
        else if (w->coded)
            r->kernels->gemm_coded(&gemm, (const mha_coded *const[]){w->coded, w->coded + 1}, k);
        else
            r->kernels->gemm_strip(&gemm);
    }
}

/* The same for few rows. Panels are packed some inputs at a time, in L1. A single row is multiplied
 * by coded weights without packing them. */
static void run_few(const mhai_rows_job *r, int64_t first, int64_t end, int worker)
{
    const mhai_matmul *job = r->job;
    float *read = r->read + worker * MHAI_READ_FLOATS;
    few_columns w = {.panels = r->panels + worker * r->room * MHAI_PANEL * job->inner};
    for (int64_t col = first; col < end; col += w.stored.rows) {
        w.stored = rows_in_place(r, col, end);
        const bool pair = !w.stored.at && job->rows == 1 && r->from->read_coded &&
                          end - col >= MHAI_STORED_COLUMNS;
        if (pair) w.stored.rows = MHAI_STORED_COLUMNS;
        for (int64_t input = 0; input < job->inner || input == 0; input += MHAI_READ_INPUTS) {
            const int64_t count = mhai_min_i64(MHAI_READ_INPUTS, job->inner - input);
            const bool coded = pair && read_pair(r, col, input, count, (mha_coded *)(void *)read);
            w.coded = coded ? (const mha_coded *)(void *)read : NULL;
            for (int64_t p = 0; !w.stored.at && !coded && p * MHAI_PANEL < w.stored.rows; p++)
                pack_read(r, col + p * MHAI_PANEL, input, count, w.panels, p, w.stored.rows, read);
            few_inputs(r, &w, col, input, count);
        }
    }
    for (int64_t row = 0; row < job->rows; row++)
        mhai_activate(r->kernels, job->activation, job->c + row * job->c_stride + first,
                      end - first);
}

void mhai_rows_columns(const mhai_rows_job *r, int64_t first, int64_t end, int worker)
{
    if (!r->bf16 && r->job->rows <= r->kernels->tile_rows && !r->job->a_transposed)
        run_few(r, first, end, worker);
    else
        run_many(r, first, end, worker);
}

static void run_group(void *argument, int64_t item, int worker)
{
    const mhai_rows_job *r = argument;
    const int64_t first = item * r->group * MHAI_PANEL;
    mhai_rows_columns(r, first, mhai_min_i64(r->job->cols, first + r->group * MHAI_PANEL), worker);
}

/* Number of panels per step and thread, so that every thread gets work. */
static int64_t group_of(const mha_context *context, int64_t inner, int64_t cols)
{
    const int64_t panels = mhai_ceil_div(cols, MHAI_PANEL),
                  fit = MHAI_GROUP_FLOATS / MHAI_PANEL / mhai_max_i64(1, inner);
    const int64_t shared = mhai_ceil_div(panels, 4 * (int64_t)context->num_threads);
    const int64_t whole = shared + shared % 2; /* gemm_stored processes two panels */
    return mhai_max_i64(1, mhai_min_i64(mhai_min_i64(fit, MHAI_GROUP_PANELS), whole));
}

mhai_rows_job mhai_rows_job_of(const mha_context *context, const mhai_matmul *job,
                               const mhai_rows *from)
{
    const int64_t group = group_of(context, job->inner, job->cols);
    return (mhai_rows_job){.job = job,
                           .from = from,
                           .context = context,
                           .kernels = mhai_kernels_for(context->isa),
                           .group = group,
                           .room = group};
}

int64_t mhai_rows_floats(const mha_context *context, int64_t room, int64_t inner)
{
    return context->num_threads * (room * MHAI_PANEL * inner + MHAI_READ_FLOATS + MHAI_SUMS);
}

void mhai_rows_place(mhai_rows_job *r, float *memory)
{
    const int64_t threads = r->context->num_threads;
    r->panels = memory;
    r->read = r->panels + threads * r->room * MHAI_PANEL * r->job->inner;
    if (mhai_matmul_pages_apart(r->job)) r->sums = r->read + threads * MHAI_READ_FLOATS;
}

void mhai_rows_each(mha_context *context, const mhai_matmul *job, int64_t rows, int64_t items,
                    mha_parallel_body body, void *argument)
{
    mhai_matmul alike = *job;
    alike.rows += rows;
    if (mhai_matmul_shares(context, &alike, 1))
        mha_parallel_for(context, items, body, argument);
    else
        for (int64_t i = 0; i < items; i++) body(argument, i, 0);
}

void mhai_rows_groups(mha_context *context, mhai_rows_job *r)
{
    enum { PACKING = 60 };
    mhai_rows_each(context, r->job, PACKING,
                   mhai_ceil_div(mhai_ceil_div(r->job->cols, MHAI_PANEL), r->group), run_group, r);
}

size_t mhai_matmul_rows_bytes(const mha_context *context, mha_compute compute, int64_t rows,
                              int64_t inner)
{
    const int64_t panels = mhai_max_i64(MHAI_GROUP_FLOATS, inner * MHAI_PANEL);
    const size_t f32 =
        (size_t)(mhai_rows_floats(context, 0, 0) + context->num_threads * panels) * sizeof(float);
    const size_t int8 = mhai_rows_int8_bytes(context, rows, inner);
    switch (compute) {
    case MHA_COMPUTE_INT8: return int8 > f32 ? int8 : f32;
    case MHA_COMPUTE_TILES: return mhai_rows_tiles_bytes(context, rows, inner);
    case MHA_COMPUTE_BF16: return mhai_rows_bf16_bytes(context, rows, inner) + f32;
    default: return f32;
    }
}

static mha_status run_f32(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    void *memory;
    mhai_rows_job r = mhai_rows_job_of(context, job, from);
    MHA_TRY(mha_scratch_alloc(context, mhai_rows_floats(context, r.room, job->inner), sizeof(float),
                              &memory));
    mhai_rows_place(&r, memory);
    mhai_rows_groups(context, &r);
    return MHA_OK;
}

static mha_status run(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    const bool runs = job->inner > 0 && job->inner % 16 == 0; /* otherwise no row is coded */
    if (from->compute == MHA_COMPUTE_INT8 && from->read_coded && runs)
        return mhai_rows_int8(context, job, from);
    if (from->compute == MHA_COMPUTE_TILES) return mhai_rows_tiles(context, job, from);
    if (from->compute == MHA_COMPUTE_BF16) return mhai_rows_bf16(context, job, from);
    return run_f32(context, job, from);
}

mha_status mhai_matmul_run_rows(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    if (job->rows == 0 || job->cols == 0) return MHA_OK;
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, job, from));
}
