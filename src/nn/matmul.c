/* Matrix products on packed panels; see matmul.h.
 *
 * The output is divided into blocks of rows and groups of panels; each block has one owner. Within
 * it, inner indices are taken MHAI_GEMM_BLOCK at a time: their products are summed in registers and
 * then added to the output, which began as the bias. That order is the same for every shape. */
#include "nn/matmul.h"

#include "base/checked.h"
#include "base/context.h"
#include "kernels/int8.h"

#include <string.h>

/* A group of panels times 128 inputs, 16 KiB each, stays in L2 while the strips of a row block pass
 * over it; 8 strips are enough for that to pay, and more than 16 panels gain nothing. */
enum { GROUP_PANELS = 16, BLOCK_STRIPS = 8, PANEL_BYTES = MHAI_GEMM_BLOCK * MHAI_PANEL * 4 };

/* Outputs whose rows lie whole pages apart would meet in a few sets of the caches each time that
 * they are added to. Until the last block of inputs their sums lie at another stride instead. */
enum {
    SUMS_STRIDE = GROUP_PANELS * MHAI_PANEL + 16,
    SUMS = BLOCK_STRIPS * MHAI_MAX_ROWS * SUMS_STRIDE,
    PAGE = 1024 /* floats */
};

int64_t mhai_matmul_place(int64_t inner, int64_t cols, int64_t input, int64_t col)
{
    const int64_t first = input / MHAI_GEMM_BLOCK * MHAI_GEMM_BLOCK;
    const int64_t block = mhai_min_i64(MHAI_GEMM_BLOCK, inner - first);
    return first * mhai_round_up(cols, MHAI_PANEL) + col / MHAI_PANEL * block * MHAI_PANEL +
           (input - first) * MHAI_PANEL + col % MHAI_PANEL;
}

static const float *panels_at(const mhai_matmul *job, int64_t input, int64_t col)
{
    return job->panels + mhai_matmul_place(job->inner, job->cols, input, col);
}

/* Copying a strip costs about a tenth of multiplying it by one panel, and gains as much at each:
 * its rows then lie at a stride that the kernel knows, in sets of L1 of their own. */
enum { GATHER_PANELS = 4, GATHER_STRIDE = MHAI_SCORE_STRIDE, GATHER_COLUMNS = MHAI_MAX_ROWS };

typedef struct matmul_run {
    const mhai_matmul *job;
    const mhai_kernels *kernels;
    int64_t group_panels; /* panels of a column group */
    int64_t blocks;       /* row blocks */
    int64_t items;        /* blocks of all groups */
    bool fetches;         /* weights that come from memory, before they are needed */
    float *sums;          /* [threads][SUMS]; NULL: sums lie in the output */
} matmul_run;

/* ---- the product --------------------------------------------------------------------------- */

/* What the strip will need of the next block of inner indices; of panels, its part. */
static void fetch_next(const matmul_run *run, mhai_gemm *g, int64_t input, int64_t col,
                       int64_t strip, int64_t strips)
{
    const mhai_matmul *job = run->job;
    const int64_t next = input + MHAI_GEMM_BLOCK, left = job->inner - next;
    if (left <= 0) return;
    const int64_t inner = mhai_min_i64(left, MHAI_GEMM_BLOCK);
    if (run->fetches) {
        const int64_t floats = g->panels * inner * MHAI_PANEL;
        g->next_w = panels_at(job, next, col) + strip * floats / strips;
        g->next_floats = inner * MHAI_PANEL / strips;
    }
    g->next_stride = job->a_stride;
    g->next_x = g->x + MHAI_GEMM_BLOCK * (g->transposed ? job->a_stride : 1);
    g->next_rows = g->transposed ? inner : g->rows;
    g->next_lines = g->transposed ? 2 : mhai_ceil_div(inner, 16);
}

/* Where a block of inner indices finds the sums before it, and where it leaves its own. */
static void place_sums(const mhai_matmul *job, mhai_gemm *g, int64_t input, float *sums)
{
    g->from = input > 0 ? sums : g->out;
    g->from_stride = input > 0 ? SUMS_STRIDE : g->out_stride;
    if (input + MHAI_GEMM_BLOCK >= job->inner) return;
    g->out = sums;
    g->out_stride = SUMS_STRIDE;
}

/* One block of inner indices for all strips of one row block. */
static void run_inner(const matmul_run *run, int64_t row, int64_t rows, int64_t panel,
                      int64_t panels, int64_t input, float *sums)
{
    const mhai_matmul *job = run->job;
    _Alignas(64) float buffer[MHAI_GATHER];
    /* Rows of about the same number for each register block: 16 are 5, 5 and 6. */
    const int64_t units = mhai_ceil_div(rows, run->kernels->block_rows);
    const int64_t in_strip = run->kernels->tile_rows / run->kernels->block_rows;
    const int64_t strips = mhai_ceil_div(units, in_strip);
    int64_t col = panel * MHAI_PANEL;
    const int64_t inner = mhai_min_i64(MHAI_GEMM_BLOCK, job->inner - input);
    for (int64_t i = 0, unit = 0; unit < units; i++, unit += in_strip) {
        const int64_t begin = row + unit * rows / units;
        const int64_t end = row + mhai_min_i64(unit + in_strip, units) * rows / units;
        mhai_gemm g = {.rows = (int)(end - begin),
                       .inner = inner,
                       .panels = panels,
                       .cols = mhai_min_i64(panels * MHAI_PANEL, job->cols - col),
                       .x = job->a + (job->a_transposed ? input * job->a_stride + begin
                                                        : begin * job->a_stride + input),
                       .x_stride = job->a_stride,
                       .transposed = job->a_transposed,
                       .w = panels_at(job, input, col),
                       .panel_stride = inner * MHAI_PANEL,
                       .bias = job->bias ? job->bias + col : NULL,
                       .first = input == 0 && !job->accumulate,
                       .out = job->c + begin * job->c_stride + col,
                       .out_stride = job->c_stride};
        if (panels >= GATHER_PANELS && g.rows > 1) g.gather = buffer;
        if (sums) place_sums(job, &g, input, sums + (begin - row) * SUMS_STRIDE);
        fetch_next(run, &g, input, col, i, strips);
        run->kernels->gemm_strip(&g);
    }
}

void mhai_activate(const mhai_kernels *kernels, mha_activation activation, float *x, int64_t n)
{
    switch (activation) {
    case MHA_ACTIVATION_NONE: break;
    case MHA_ACTIVATION_GELU: kernels->activate_gelu(x, n); break;
    case MHA_ACTIVATION_GELU_TANH: kernels->activate_gelu_tanh(x, n); break;
    case MHA_ACTIVATION_RELU:
        for (int64_t i = 0; i < n; i++) x[i] = x[i] < 0 ? 0 : x[i];
        break;
    }
}

/* All inner indices for one row block. sums: of this worker, or NULL. */
static void run_panels(const matmul_run *run, int64_t row, int64_t rows, int64_t panel,
                       int64_t panels, float *sums)
{
    int64_t input = 0;
    do { /* at least once: without inner indices the output is the bias */
        run_inner(run, row, rows, panel, panels, input, sums);
        input += MHAI_GEMM_BLOCK;
    } while (input < run->job->inner);
}

/* Row blocks of about the same size, in whole register blocks. */
static int64_t block_begin(const matmul_run *run, int64_t i)
{
    const int64_t unit = run->kernels->block_rows;
    const int64_t units = mhai_ceil_div(run->job->rows, unit);
    return mhai_min_i64(run->job->rows, i * units / run->blocks * unit);
}

static void run_block(const matmul_run *run, int64_t item, int worker)
{
    const mhai_matmul *job = run->job;
    /* Row blocks follow each other under one group, whose panels then stay in cache. */
    const int64_t row = block_begin(run, item % run->blocks);
    const int64_t rows = block_begin(run, item % run->blocks + 1) - row;
    int64_t panel = item / run->blocks * run->group_panels, col = panel * MHAI_PANEL;
    int64_t panels = mhai_min_i64(run->group_panels, mhai_ceil_div(job->cols, MHAI_PANEL) - panel);
    int64_t cols = mhai_min_i64(panels * MHAI_PANEL, job->cols - col);
    run_panels(run, row, rows, panel, panels, run->sums ? run->sums + worker * SUMS : NULL);
    for (int64_t r = row; r < row + rows; r++)
        mhai_activate(run->kernels, run->job->activation, job->c + r * job->c_stride + col, cols);
}

/* One thread reads a quarter of a million weights from L2 in some 10 us, and multiplies each with 8
 * rows about as fast as it reads them. Threads that are awake are worth that much; those that sleep
 * take longer to wake (30 to 50 us in a virtual machine), and sharing gains half of the time at
 * most. */
static bool pays_to_share(const mha_context *context, const mhai_matmul *jobs, int count)
{
    const bool asleep = context->pool && !mhai_pool_is_awake(context->pool);
    double work = 0;
    for (int i = 0; i < count; i++)
        work += (double)(jobs[i].rows + 8) * (double)jobs[i].inner * (double)jobs[i].cols;
    return context->num_threads > 1 && work > (asleep ? 0x1p23 : 0x1p20);
}

/* Weights of some times the size of L2 are in the cache behind it. One register block reads memory
 * as fast as that is without help. */
static bool from_memory(const mhai_matmul *job, const mhai_kernels *kernels, int64_t l2)
{
    enum { TIMES_L2 = 8 };
    return job->rows > kernels->block_rows &&
           (double)job->inner * (double)job->cols * sizeof(float) > (double)(TIMES_L2 * l2);
}

static matmul_run divide(const mhai_matmul *job, const mha_context *context, int64_t threads)
{
    const mhai_kernels *kernels = mhai_kernels_for(context->isa);
    const int64_t l2 = context->l2;
    matmul_run run = {.job = job, .kernels = kernels, .fetches = from_memory(job, kernels, l2)};
    if (job->rows == 0 || job->cols == 0) return run;
    const int64_t panels = mhai_ceil_div(job->cols, MHAI_PANEL);
    run.blocks = mhai_ceil_div(job->rows, (int64_t)BLOCK_STRIPS * kernels->tile_rows);
    /* Few rows: narrower groups, so that every thread has some. */
    const int64_t wanted = threads > 1 ? mhai_ceil_div(4 * threads, run.blocks) : 1;
    run.group_panels = mhai_ceil_div(panels, wanted);
    /* One row reads each weight once, as they lie. Of what is fetched, one group is worked on
     * while the next arrives; few strips are soon through with theirs. */
    if (job->rows > 1) {
        const int64_t share = run.fetches && run.blocks == 1 ? 4 : 2;
        const int64_t fit = mhai_max_i64(1, mhai_min_i64(GROUP_PANELS, l2 / share / PANEL_BYTES));
        run.group_panels = mhai_min_i64(fit, run.group_panels);
    }
    run.items = run.blocks * mhai_ceil_div(panels, run.group_panels);
    return run;
}

static bool pages_apart(const mhai_matmul *job)
{
    return job->rows > 1 && job->inner > MHAI_GEMM_BLOCK && job->c_stride % PAGE == 0;
}

static size_t sums_bytes(int64_t threads)
{
    return (size_t)threads * SUMS * sizeof(float);
}

mha_status mhai_matmul_reserve(mha_context *context, const mhai_matmul *job)
{
    void *memory;
    if (!pages_apart(job)) return MHA_OK;
    const mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, 1, sums_bytes(context->num_threads), &memory));
    mha_scratch_release(context, mark);
    return MHA_OK;
}

/* Items of the first product, then those of the next. */
static void run_item(void *argument, int64_t item, int worker)
{
    const matmul_run *run = argument;
    for (; item >= run->items; run++) item -= run->items;
    run_block(run, item, worker);
}

void mhai_matmul_run_all(mha_context *context, const mhai_matmul *jobs, int count)
{
    const int64_t threads = pays_to_share(context, jobs, count) ? context->num_threads : 1;
    matmul_run runs[MHAI_MATMULS]; /* a worker is at one of them at a time: they share sums */
    int64_t items = 0;
    for (int i = 0; i < count; i++) {
        runs[i] = divide(&jobs[i], context, threads);
        items += runs[i].items;
        if (pages_apart(&jobs[i])) runs[i].sums = mhai_scratch_spare(context, sums_bytes(threads));
    }
    if (threads > 1)
        mha_parallel_for(context, items, run_item, runs);
    else
        for (int64_t i = 0; i < items; i++) run_item(runs, i, 0);
}

void mhai_matmul_run(mha_context *context, const mhai_matmul *job)
{
    mhai_matmul_run_all(context, job, 1);
}

/* ---- packing from rows --------------------------------------------------------------------- */

/* Inputs of a panel's rows that are read together: a multiple of every block of a file, and of
 * MHAI_GEMM_BLOCK; 32 KiB. Panels of a group: 1 MiB. */
enum {
    READ_INPUTS = MHA_CODED_COLUMNS,
    READ_FLOATS = READ_INPUTS * MHAI_PANEL,
    GROUP_FLOATS = 1 << 18
};
_Static_assert(sizeof(mha_coded) <= READ_FLOATS * sizeof(float), "what is read finds room");

typedef struct rows_job {
    const mhai_matmul *job; /* of packing alone: its inner and cols */
    const mhai_rows *from;
    const mha_context *context;
    const mhai_kernels *kernels;
    float *panels; /* of all columns; or of each worker, of a group's */
    float *read;   /* of each worker, READ_FLOATS */
    float *sums;   /* of each worker, SUMS; NULL: not wanted */
    int64_t group; /* panels of an item */
} rows_job;

/* Rows of W from `col` on, of 16 bits, where they lie. */
typedef struct stored_rows {
    const uint16_t *at; /* NULL: they do not */
    mha_dtype type;
    int64_t stride;
} stored_rows;

static stored_rows find_stored(const rows_job *r, int64_t col)
{
    const mhai_rows *from = r->from;
    const int64_t rows = mhai_min_i64(MHAI_PANEL, r->job->cols - col);
    stored_rows s = {0};
    if (from->stored) s.at = from->stored(from->user, from->at, col, rows, &s.type, &s.stride);
    return s;
}

/* Columns of W^T from col on, and of them inputs first .. first + inner, become panel number `panel`
 * of panels that have `cols` columns. first is a multiple of READ_INPUTS. */
static void pack_read(const rows_job *r, int64_t col, int64_t first, int64_t inner, float *panels,
                      int64_t panel, int64_t cols, float *read)
{
    const int64_t rows = mhai_min_i64(MHAI_PANEL, r->job->cols - col);
    const mhai_rows *from = r->from;
    mha_coded *coded = (void *)read;
    const stored_rows stored = find_stored(r, col);
    for (int64_t input = 0; stored.at && input < inner; input += MHAI_GEMM_BLOCK)
        r->kernels->pack_panels(
            &(mhai_pack){.out = panels + mhai_matmul_place(inner, cols, input, panel * MHAI_PANEL),
                         .in = stored.at + first + input,
                         .type = stored.type,
                         .stride = stored.stride,
                         .rows = rows,
                         .cols = mhai_min_i64(MHAI_GEMM_BLOCK, inner - input)});
    for (int64_t input = 0; !stored.at && input < inner; input += READ_INPUTS) {
        const int64_t count = mhai_min_i64(READ_INPUTS, inner - input), at = first + input;
        int64_t alike = rows;
        const bool is_coded =
            rows == MHA_CODED_ROWS && from->read_coded &&
            from->read_coded(from->user, from->at, col, &alike, at, count, coded) && alike == rows;
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
    const rows_job *r = argument;
    pack_read(r, panel * MHAI_PANEL, 0, r->job->inner, r->panels, panel, r->job->cols,
              r->read + worker * READ_FLOATS);
}

mha_status mhai_matmul_pack_rows(mha_context *context, const mhai_rows *from, int64_t inner,
                                 int64_t cols, float *panels)
{
    void *read;
    const mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, (int64_t)context->num_threads * READ_FLOATS, sizeof(float),
                              &read));
    const mhai_matmul shape = {.inner = inner, .cols = cols};
    rows_job job = {.job = &shape,
                    .from = from,
                    .kernels = mhai_kernels_for(context->isa),
                    .panels = panels,
                    .read = read};
    mha_parallel_for(context, mhai_ceil_div(cols, MHAI_PANEL), pack_item, &job);
    mha_scratch_release(context, mark);
    return MHA_OK;
}

/* ---- the product with rows ------------------------------------------------------------------- */

/* Columns of at most one group of panels: packed, and multiplied with all rows. */
static void run_many(const rows_job *r, int64_t first, int64_t end, int worker)
{
    const int64_t cols = end - first;
    float *panels = r->panels + worker * r->group * MHAI_PANEL * r->job->inner;
    for (int64_t p = 0; p * MHAI_PANEL < cols; p++)
        pack_read(r, first + p * MHAI_PANEL, 0, r->job->inner, panels, p, cols,
                  r->read + worker * READ_FLOATS);
    mhai_matmul part = *r->job;
    part.cols = cols;
    part.panels = panels;
    part.c += first;
    if (part.bias) part.bias += first;
    matmul_run run = divide(&part, r->context, 1);
    if (r->sums) run.sums = r->sums + worker * SUMS;
    for (int64_t i = 0; i < run.items; i++) run_block(&run, i, 0);
}

/* The same for few rows, some inputs of a panel at a time, which stay in L1. */
static void run_few(const rows_job *r, int64_t first, int64_t end, int worker)
{
    const mhai_matmul *job = r->job;
    float *panel = r->panels + worker * r->group * MHAI_PANEL * job->inner;
    float *read = r->read + worker * READ_FLOATS;
    for (int64_t col = first; col < end; col += MHAI_PANEL) {
        const stored_rows stored = find_stored(r, col);
        for (int64_t input = 0; input < job->inner || input == 0; input += READ_INPUTS) {
            const int64_t count = mhai_min_i64(READ_INPUTS, job->inner - input);
            if (!stored.at) pack_read(r, col, input, count, panel, 0, MHAI_PANEL, read);
            for (int64_t k = 0; k < count || k == 0; k += MHAI_GEMM_BLOCK) {
                const mhai_gemm gemm = {.rows = (int)job->rows,
                                        .inner = mhai_min_i64(MHAI_GEMM_BLOCK, count - k),
                                        .panels = 1,
                                        .cols = mhai_min_i64(MHAI_PANEL, end - col),
                                        .x = job->a + input + k,
                                        .x_stride = job->a_stride,
                                        .w = panel + k * MHAI_PANEL,
                                        .bias = job->bias ? job->bias + col : NULL,
                                        .first = input + k == 0 && !job->accumulate,
                                        .out = job->c + col,
                                        .out_stride = job->c_stride};
                const int64_t later = input + k + MHAI_GEMM_BLOCK;
                const int64_t next = later < job->inner ? later : MHAI_PANEL * stored.stride;
                if (stored.at)
                    r->kernels->gemm_stored(&(mhai_gemm_stored){.gemm = gemm,
                                                                .w = stored.at + input + k,
                                                                .type = stored.type,
                                                                .stride = stored.stride,
                                                                .next = stored.at + next});
                else
                    r->kernels->gemm_strip(&gemm);
            }
        }
    }
    for (int64_t row = 0; row < job->rows; row++)
        mhai_activate(r->kernels, job->activation, job->c + row * job->c_stride + first,
                      end - first);
}

static void run_columns(const rows_job *r, int64_t first, int64_t end, int worker)
{
    if (r->job->rows <= r->kernels->tile_rows && !r->job->a_transposed)
        run_few(r, first, end, worker);
    else
        run_many(r, first, end, worker);
}

static void run_group(void *argument, int64_t item, int worker)
{
    const rows_job *r = argument;
    const int64_t first = item * r->group * MHAI_PANEL;
    run_columns(r, first, mhai_min_i64(r->job->cols, first + r->group * MHAI_PANEL), worker);
}

/* ---- in int8 arithmetic -----------------------------------------------------------------------
 *
 * Activations become small numbers first: of READ_INPUTS inputs those of all rows, then of the next.
 * A worker codes some tiles, rows of W that are read together, and multiplies them with all rows. */

enum { INT8_TILES = 16, INT8_FEW = 8, INT8_ROUND = 16 };

/* One after the other in lines of a cache. */
typedef struct int8_coded {
    _Alignas(64) mha_coded rows;
} int8_coded;

typedef struct int8_job {
    rows_job r;
    const mhai_int8_kernels *kernels;
    int32_t *small; /* [ceil(inner / READ_INPUTS)][rows][row_stride] */
    mhai_int8_block *blocks;
    int8_coded *coded; /* [threads][tiles] */
    const float *zeros;
    int64_t tiles; /* of W that are coded together */
    int64_t group; /* panels of an item; of those in f32 (r.group) one */
} int8_job;

/* W's rows `first` .. `first` + `count`. */
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
        for (int64_t input = 0; input < job->inner; input += READ_INPUTS) {
            const int64_t at = input / READ_INPUTS * job->rows + row;
            j->kernels->int8_inputs(
                job->a + row * job->a_stride + input, mhai_min_i64(READ_INPUTS, job->inner - input),
                j->small + at * j->kernels->row_stride, j->blocks + at * MHAI_INT8_BLOCKS);
        }
}

/* Some tiles of which the first inputs have been coded: all rows by the first inputs, then by the
 * next. */
static void int8_tiles(const int8_job *j, const int8_tile *tile, int64_t tiles, int8_coded *coded)
{
    const mhai_matmul *job = j->r.job;
    const mhai_rows *from = j->r.from;
    const int64_t strip = j->kernels->strip_rows;
    for (int64_t input = 0; input < job->inner; input += READ_INPUTS) {
        const int64_t inputs = mhai_min_i64(READ_INPUTS, job->inner - input);
        for (int64_t t = 0; input > 0 && t < tiles; t++) {
            int64_t count = tile[t].count;
            from->read_coded(from->user, from->at, tile[t].first, &count, input, inputs,
                             &coded[t].rows);
        }
        for (int64_t row = 0; row < job->rows; row += strip)
            for (int64_t t = 0; t < tiles; t++) {
                const int64_t at = input / READ_INPUTS * job->rows + row, col = tile[t].first;
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

/* What has no coded form is computed in f32. */
static void int8_group(void *argument, int64_t item, int worker)
{
    const int8_job *j = argument;
    const mhai_rows *from = j->r.from;
    const mhai_matmul *job = j->r.job;
    int8_tile tile[INT8_TILES];
    int8_coded *coded = j->coded + worker * j->tiles;
    int64_t tiles = 0, col = item * j->group * MHAI_PANEL, count;
    const int64_t end = mhai_min_i64(job->cols, col + j->group * MHAI_PANEL);
    const int64_t inputs = mhai_min_i64(READ_INPUTS, job->inner);
    for (; col < end; col += count) {
        count = mhai_min_i64(MHAI_PANEL, end - col);
        const bool is_coded =
            from->read_coded(from->user, from->at, col, &count, 0, inputs, &coded[tiles].rows);
        if (is_coded) tile[tiles++] = (int8_tile){col, count};
        if (tiles > 0 && (!is_coded || tiles == j->tiles || col + count == end)) {
            int8_tiles(j, tile, tiles, coded);
            tiles = 0;
        }
        if (!is_coded) run_columns(&j->r, col, col + count, worker);
    }
}

/* Bytes of scratch: of all rows, of each worker, and what f32 needs. */
static size_t int8_bytes(const mha_context *context, int64_t rows, int64_t inner, int64_t tiles)
{
    const size_t row = (size_t)mhai_int8_kernels_for(context->isa)->row_stride * sizeof(int32_t) +
                       MHAI_INT8_BLOCKS * sizeof(mhai_int8_block);
    return (size_t)(mhai_ceil_div(inner, READ_INPUTS) * rows) * row +
           (size_t)context->num_threads *
               ((size_t)tiles * sizeof(int8_coded) +
                (size_t)(MHAI_PANEL * inner + READ_FLOATS + SUMS) * sizeof(float));
}

/* Panels that a thread packs and multiplies together: every thread has some. */
static int64_t rows_group(const mha_context *context, int64_t inner, int64_t cols)
{
    const int64_t panels = mhai_ceil_div(cols, MHAI_PANEL),
                  fit = GROUP_FLOATS / MHAI_PANEL / mhai_max_i64(1, inner);
    const int64_t shared = mhai_ceil_div(panels, 4 * (int64_t)context->num_threads);
    return mhai_max_i64(1, mhai_min_i64(mhai_min_i64(fit, GROUP_PANELS), shared));
}

size_t mhai_matmul_rows_bytes(const mha_context *context, bool int8, int64_t rows, int64_t inner)
{
    const int64_t panels = mhai_max_i64(GROUP_FLOATS, inner * MHAI_PANEL);
    const size_t f32 =
        (size_t)context->num_threads * sizeof(float) * (size_t)(panels + READ_FLOATS + SUMS);
    const size_t small = int8 ? int8_bytes(context, rows, inner, INT8_TILES) : 0;
    return small > f32 ? small : f32;
}

static mha_status run_int8(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    static const float zeros[MHAI_PANEL];
    const int64_t threads = context->num_threads, panels = mhai_ceil_div(job->cols, MHAI_PANEL);
    const int64_t chunks = mhai_ceil_div(job->inner, READ_INPUTS);
    int8_job j = {.r = {.job = job,
                        .from = from,
                        .context = context,
                        .kernels = mhai_kernels_for(context->isa),
                        .group = 1},
                  .kernels = mhai_int8_kernels_for(context->isa),
                  .zeros = zeros,
                  .tiles = job->rows > INT8_FEW ? INT8_TILES : 1,
                  .group = threads > 1 ? mhai_ceil_div(panels, 4 * threads) : panels};
    mhai_matmul alike = *job; /* a weight costs as much as products with some rows */
    alike.rows += INT8_FEW;
    void *memory;
    MHA_TRY(mha_scratch_alloc(context, (int64_t)int8_bytes(context, job->rows, job->inner, j.tiles),
                              1, &memory));
    j.coded = memory;
    j.blocks = (void *)(j.coded + threads * j.tiles);
    j.small = (void *)(j.blocks + chunks * job->rows * MHAI_INT8_BLOCKS);
    j.r.panels = (void *)(j.small + chunks * job->rows * j.kernels->row_stride);
    j.r.read = j.r.panels + threads * MHAI_PANEL * job->inner;
    if (pages_apart(job)) j.r.sums = j.r.read + threads * READ_FLOATS;
    if (!pays_to_share(context, &alike, 1)) {
        for (int64_t i = 0; i * INT8_ROUND < job->rows; i++) int8_round(&j, i, 0);
        for (int64_t i = 0; i * j.group < panels; i++) int8_group(&j, i, 0);
        return MHA_OK;
    }
    if (job->rows > INT8_ROUND)
        mha_parallel_for(context, mhai_ceil_div(job->rows, INT8_ROUND), int8_round, &j);
    else
        int8_round(&j, 0, 0);
    mha_parallel_for(context, mhai_ceil_div(panels, j.group), int8_group, &j);
    return MHA_OK;
}

static mha_status run_f32(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    const int64_t threads = context->num_threads;
    const int64_t group = rows_group(context, job->inner, job->cols);
    mhai_matmul alike = *job; /* a weight costs as much as products with some 60 rows */
    alike.rows += 60;
    void *memory;
    MHA_TRY(mha_scratch_alloc(context,
                              threads * (group * MHAI_PANEL * job->inner + READ_FLOATS + SUMS),
                              sizeof(float), &memory));
    rows_job r = {.job = job,
                  .from = from,
                  .context = context,
                  .kernels = mhai_kernels_for(context->isa),
                  .panels = memory,
                  .group = group};
    r.read = r.panels + threads * group * MHAI_PANEL * job->inner;
    if (pages_apart(job)) r.sums = r.read + threads * READ_FLOATS;
    const int64_t items = mhai_ceil_div(mhai_ceil_div(job->cols, MHAI_PANEL), group);
    if (pays_to_share(context, &alike, 1))
        mha_parallel_for(context, items, run_group, &r);
    else
        for (int64_t i = 0; i < items; i++) run_group(&r, i, 0);
    return MHA_OK;
}

mha_status mhai_matmul_run_rows(mha_context *context, const mhai_matmul *job, const mhai_rows *from)
{
    if (job->rows == 0 || job->cols == 0) return MHA_OK;
    const mha_scratch_mark mark = mha_scratch_top(context);
    const bool runs = job->inner > 0 && job->inner % 16 == 0; /* else no row is coded */
    const bool int8 = from->int8 && from->read_coded && runs;
    const mha_status status = int8 ? run_int8(context, job, from) : run_f32(context, job, from);
    mha_scratch_release(context, mark);
    return status;
}

/* ---- packing ------------------------------------------------------------------------------- */

enum { PACK_ROWS = 16 };

typedef struct pack_job {
    const mhai_kernels *kernels;
    const float *b;
    int64_t stride, inner, cols;
    float *panels;
} pack_job;

static float *packed_at(const pack_job *job, int64_t input, int64_t col)
{
    return job->panels + mhai_matmul_place(job->inner, job->cols, input, col);
}

static void pack_panel(void *argument, int64_t panel, int worker)
{
    const pack_job *job = argument;
    (void)worker;
    const int64_t col = panel * MHAI_PANEL;
    for (int64_t input = 0; input < job->inner; input += MHAI_GEMM_BLOCK)
        job->kernels->pack_panels(
            &(mhai_pack){.out = packed_at(job, input, col),
                         .in = job->b + col * job->stride + input,
                         .stride = job->stride,
                         .rows = mhai_min_i64(MHAI_PANEL, job->cols - col),
                         .cols = mhai_min_i64(MHAI_GEMM_BLOCK, job->inner - input)});
}

/* Rows stay inner: some of them, for all panels, so that memory is read as it lies. */
static void pack_rows(void *argument, int64_t item, int worker)
{
    const pack_job *job = argument;
    (void)worker;
    const int64_t first = item * PACK_ROWS, rows = mhai_min_i64(PACK_ROWS, job->inner - first);
    for (int64_t col = 0; col < job->cols; col += MHAI_PANEL) {
        const float *in = job->b + first * job->stride + col;
        float *out = packed_at(job, first, col);
        const int64_t cols = mhai_min_i64(MHAI_PANEL, job->cols - col);
        for (int64_t i = 0; i < rows; i++) {
            const float *later = in + (i + PACK_ROWS) * job->stride;
            __builtin_prefetch(later);
            __builtin_prefetch(later + 16);
            if (cols == MHAI_PANEL) {
                memcpy(out + i * MHAI_PANEL, in + i * job->stride, MHAI_PANEL * sizeof(float));
                continue;
            }
            memcpy(out + i * MHAI_PANEL, in + i * job->stride, (size_t)cols * sizeof(float));
            for (int64_t c = cols; c < MHAI_PANEL; c++) out[i * MHAI_PANEL + c] = 0;
        }
    }
}

bool mhai_matmul_panels(int64_t inner, int64_t cols, int64_t *floats)
{
    return cols <= INT64_MAX - MHAI_PANEL &&
           mhai_mul_i64(mhai_round_up(cols, MHAI_PANEL), inner, floats);
}

void mhai_matmul_pack(mha_context *context, const float *b, int64_t stride, bool transposed,
                      int64_t inner, int64_t cols, float *panels)
{
    pack_job job = {.kernels = mhai_kernels_for(context->isa),
                    .b = b,
                    .stride = stride,
                    .inner = inner,
                    .cols = cols,
                    .panels = panels};
    if (transposed)
        mha_parallel_for(context, mhai_ceil_div(cols, MHAI_PANEL), pack_panel, &job);
    else
        mha_parallel_for(context, mhai_ceil_div(inner, PACK_ROWS), pack_rows, &job);
}

mha_status mhai_matmul_packing(mha_context *context, const mhai_matmul *job, const float *b,
                               int64_t stride, bool transposed)
{
    void *panels;
    int64_t floats;
    if (!mhai_matmul_panels(job->inner, job->cols, &floats))
        return mha_fail(MHA_ERR_SIZE, "matrix: %lld x %lld elements overflow 64 bits",
                        (long long)job->inner, (long long)job->cols);
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof(float), &panels));
    mhai_matmul_pack(context, b, stride, transposed, job->inner, job->cols, panels);
    mhai_matmul packed = *job;
    packed.panels = panels;
    MHA_TRY(mhai_matmul_reserve(context, job));
    mhai_matmul_run(context, &packed);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
