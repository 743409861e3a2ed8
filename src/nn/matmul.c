/* Matrix products with packed panels; see matmul.h.
 *
 * The output is divided into blocks of rows and groups of panels, each with one owner. The owner
 * processes MHAI_GEMM_BLOCK inner indices at a time. It sums their products in registers, and adds
 * the sums to the output, which is initialised to the bias. The order is the same for all
 * shapes. */
#include "base/math.h"
#include "nn/matmul_parts.h"

#include "base/checked.h"
#include "base/context.h"

#include <string.h>

/* A group of panels times 128 inputs, 16 KiB per panel, stays in L2 while the strips of a row
 * block are multiplied by it. */
enum { PANEL_BYTES = MHAI_GEMM_BLOCK * MHAI_PANEL * 4, PAGE = 1024 /* floats */ };

int64_t mhai_matmul_chain(bool pairs)
{
    return pairs ? MHAI_GEMM_BLOCK / 2 : MHAI_GEMM_BLOCK;
}

int64_t mhai_matmul_place_of(int64_t chain, int64_t inner, int64_t cols, int64_t input, int64_t col)
{
    const int64_t first = input / chain * chain, block = mhai_min_i64(chain, inner - first);
    return first * mhai_round_up(cols, MHAI_PANEL) + col / MHAI_PANEL * block * MHAI_PANEL +
           (input - first) * MHAI_PANEL + col % MHAI_PANEL;
}

int64_t mhai_matmul_place(int64_t inner, int64_t cols, int64_t input, int64_t col)
{
    return mhai_matmul_place_of(MHAI_GEMM_BLOCK, inner, cols, input, col);
}

static const float *panels_at(const mhai_matmul *job, int64_t input, int64_t col)
{
    return job->panels +
           mhai_matmul_place_of(mhai_matmul_chain(job->pairs), job->inner, job->cols, input, col);
}

/* Copying a strip costs about a tenth of its product with one panel, and saves as much in every
 * product: copied rows have a constant stride and do not share cache sets in L1. */
enum { GATHER_PANELS = 4 };

/* ---- the product --------------------------------------------------------------------------- */

/* Prefetch the strip's part of the next inner indices, and its share of the next panels. */
static void fetch_next(const mhai_matmul_plan *run, mhai_gemm *g, int64_t input, int64_t col,
                       int64_t strip, int64_t strips)
{
    const mhai_matmul *job = run->job;
    const int64_t next = input + run->chain, left = job->inner - next;
    if (left <= 0) return;
    const int64_t inner = mhai_min_i64(left, run->chain);
    if (run->fetches) {
        const int64_t floats = g->panels * inner * MHAI_PANEL;
        g->next_w = panels_at(job, next, col) + strip * floats / strips;
        g->next_floats = inner * MHAI_PANEL / strips;
    }
    g->next_stride = job->a_stride;
    g->next_x = g->x + run->chain * (g->transposed ? job->a_stride : 1);
    g->next_rows = g->transposed ? inner : g->rows;
    g->next_lines = g->transposed ? 2 : mhai_ceil_div(inner, 16);
}

/* Keep sums in separate memory until the last block of inner indices, which writes the output. */
static void place_sums(const mhai_matmul_plan *run, mhai_gemm *g, int64_t input, float *sums)
{
    g->from = input > 0 ? sums : g->out;
    g->from_stride = input > 0 ? MHAI_SUMS_STRIDE : g->out_stride;
    if (input + run->chain >= run->job->inner) return;
    g->out = sums;
    g->out_stride = MHAI_SUMS_STRIDE;
}

/* Multiply all strips of a row block by one block of inner indices. */
static void run_inner(const mhai_matmul_plan *run, int64_t row, int64_t rows, int64_t panel,
                      int64_t panels, int64_t input, float *sums)
{
    const mhai_matmul *job = run->job;
    _Alignas(64) float buffer[MHAI_GATHER];
    /* Balance the strips: 16 rows become 5, 5 and 6. */
    const int64_t units = mhai_ceil_div(rows, run->kernels->block_rows);
    const int64_t in_strip = run->kernels->tile_rows / run->kernels->block_rows;
    const int64_t strips = mhai_ceil_div(units, in_strip);
    int64_t col = panel * MHAI_PANEL;
    const int64_t inner = mhai_min_i64(run->chain, job->inner - input);
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
                       .pairs = job->pairs,
                       .w = panels_at(job, input, col),
                       .panel_stride = inner * MHAI_PANEL,
                       .bias = job->bias ? job->bias + col : NULL,
                       .first = input == 0 && !job->accumulate,
                       .out = job->c + begin * job->c_stride + col,
                       .out_stride = job->c_stride};
        if (job->pairs || (panels >= GATHER_PANELS && g.rows > 1)) g.gather = buffer;
        if (sums) place_sums(run, &g, input, sums + (begin - row) * MHAI_SUMS_STRIDE);
        fetch_next(run, &g, input, col, i, strips);
        run->kernels->gemm_strip(&g);
    }
}

/* A product with 1 is exact. */
static void activate_silu(const mhai_kernels *kernels, float *x, int64_t n)
{
    enum { ONES = 64 };
    float ones[ONES];
    for (int64_t i = 0; i < ONES && i < n; i++) ones[i] = 1;
    for (int64_t i = 0; i < n; i += ONES)
        kernels->swiglu(x + i, x + i, ones, mhai_min_i64(ONES, n - i));
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
    case MHA_ACTIVATION_RELU2:
        for (int64_t i = 0; i < n; i++) x[i] = x[i] < 0 ? 0 : x[i] * x[i];
        break;
    case MHA_ACTIVATION_SILU: activate_silu(kernels, x, n); break;
    case MHA_ACTIVATION_QUICK_GELU:
        for (int64_t i = 0; i < n; i++)
            x[i] = (float)((double)x[i] * mhai_sigmoid(1.702 * (double)x[i]));
        break;
    }
}

/* Multiply a row block by all inner indices. sums: memory of the worker, or NULL. */
static void run_panels(const mhai_matmul_plan *run, int64_t row, int64_t rows, int64_t panel,
                       int64_t panels, float *sums)
{
    int64_t input = 0;
    do { /* at least once: without inner indices, the output is the bias */
        run_inner(run, row, rows, panel, panels, input, sums);
        input += run->chain;
    } while (input < run->job->inner);
}

/* The first row of block i. Blocks are whole register blocks, and nearly equal. */
static int64_t block_begin(const mhai_matmul_plan *run, int64_t i)
{
    const int64_t unit = run->kernels->block_rows;
    const int64_t units = mhai_ceil_div(run->job->rows, unit);
    return mhai_min_i64(run->job->rows, i * units / run->blocks * unit);
}

void mhai_matmul_block(const mhai_matmul_plan *run, int64_t item, int worker)
{
    const mhai_matmul *job = run->job;
    /* Consecutive items are row blocks of the same group, whose panels stay in cache. */
    const int64_t row = block_begin(run, item % run->blocks);
    const int64_t rows = block_begin(run, item % run->blocks + 1) - row;
    int64_t panel = item / run->blocks * run->group_panels, col = panel * MHAI_PANEL;
    int64_t panels = mhai_min_i64(run->group_panels, mhai_ceil_div(job->cols, MHAI_PANEL) - panel);
    int64_t cols = mhai_min_i64(panels * MHAI_PANEL, job->cols - col);
    run_panels(run, row, rows, panel, panels, run->sums ? run->sums + worker * MHAI_SUMS : NULL);
    if (job->activation == MHA_ACTIVATION_NONE) return;
    for (int64_t r = row; r < row + rows; r++)
        mhai_activate(run->kernels, job->activation, job->c + r * job->c_stride + col, cols);
}

/* One thread reads 250,000 weights from L2 in about 10 us, and multiplies each by 8 rows in about
 * the same time; reading from beyond L2 takes 2.5 times as long. Above this amount of work, sharing
 * it with awake threads pays off. Waking a sleeping thread takes longer (30 to 50 us in a virtual
 * machine), and sharing saves at most half of the time. */
bool mhai_matmul_shares(const mha_context *context, const mhai_matmul *jobs, int count)
{
    enum { IN_L2 = 8, BEYOND_L2 = 20 }; /* rows whose products take as long as reading a weight */
    const bool asleep = context->pool && !mhai_pool_is_awake(context->pool);
    double work = 0;
    for (int i = 0; i < count; i++) {
        const double weights = (double)jobs[i].inner *
                               (double)mhai_round_up(jobs[i].cols, MHAI_PANEL); /* whole panels */
        const bool fits = weights * sizeof(float) <= (double)mha_context_l2(context);
        work += ((double)jobs[i].rows + (fits ? IN_L2 : BEYOND_L2)) * weights;
    }
    return context->num_threads > 1 && work > (asleep ? 0x1p23 : 0x1p20);
}

/* Weights of up to TIMES_L2 times the size of L2 are in the last-level cache. With one register
 * block, memory is read at full speed without prefetching. */
static bool from_memory(const mhai_matmul *job, const mhai_kernels *kernels, int64_t l2)
{
    enum { TIMES_L2 = 8 };
    return job->rows > kernels->block_rows &&
           (double)job->inner * (double)job->cols * sizeof(float) > (double)(TIMES_L2 * l2);
}

mhai_matmul_plan mhai_matmul_divide(const mhai_matmul *job, const mha_context *context,
                                    int64_t threads)
{
    const mhai_kernels *kernels = mhai_kernels_for(context->isa);
    const int64_t l2 = context->l2;
    mhai_matmul_plan run = {.job = job,
                            .kernels = kernels,
                            .chain = mhai_matmul_chain(job->pairs),
                            .fetches = from_memory(job, kernels, l2)};
    if (job->rows == 0 || job->cols == 0) return run;
    const int64_t panels = mhai_ceil_div(job->cols, MHAI_PANEL);
    run.blocks = mhai_ceil_div(job->rows, (int64_t)MHAI_BLOCK_STRIPS * kernels->tile_rows);
    /* With few rows, make groups narrower, so that every thread gets work. */
    const int64_t wanted = threads > 1 ? mhai_ceil_div(4 * threads, run.blocks) : 1;
    run.group_panels = mhai_ceil_div(panels, wanted);
    /* A single row reads each weight once, in memory order. With more rows, the next group is
     * prefetched while the current one is processed. With few strips, a group takes little time. */
    if (job->rows > 1) {
        const int64_t share = run.fetches && run.blocks == 1 ? 4 : 2;
        const int64_t fit =
            mhai_max_i64(1, mhai_min_i64(MHAI_GROUP_PANELS, l2 / share / PANEL_BYTES));
        run.group_panels = mhai_min_i64(fit, run.group_panels);
    }
    run.items = run.blocks * mhai_ceil_div(panels, run.group_panels);
    return run;
}

bool mhai_matmul_pages_apart(const mhai_matmul *job)
{
    return job->rows > 1 && job->inner > mhai_matmul_chain(job->pairs) && job->c_stride % PAGE == 0;
}

static size_t sums_bytes(int64_t threads)
{
    return (size_t)threads * MHAI_SUMS * sizeof(float);
}

mha_status mhai_matmul_reserve(mha_context *context, const mhai_matmul *job)
{
    if (!mhai_matmul_pages_apart(job)) return MHA_OK;
    return mhai_scratch_ensure(context, 1, sums_bytes(context->num_threads));
}

/* Items of the first product come first. */
static void run_item(void *argument, int64_t item, int worker)
{
    const mhai_matmul_plan *run = argument;
    for (; item >= run->items; run++) item -= run->items;
    mhai_matmul_block(run, item, worker);
}

void mhai_matmul_run_all(mha_context *context, const mhai_matmul *jobs, int count)
{
    const int64_t threads = mhai_matmul_shares(context, jobs, count) ? context->num_threads : 1;
    mhai_matmul_plan runs[MHAI_MATMULS]; /* the products share sums, because a worker processes one
                                          * product at a time */
    int64_t items = 0;
    for (int i = 0; i < count; i++) {
        runs[i] = mhai_matmul_divide(&jobs[i], context, threads);
        items += runs[i].items;
        if (mhai_matmul_pages_apart(&jobs[i]))
            runs[i].sums = mhai_scratch_spare(context, sums_bytes(threads));
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

/* ---- packing ------------------------------------------------------------------------------- */

enum { PACK_ROWS = 16 };

typedef struct pack_job {
    const float *b;
    int64_t stride, inner, cols;
    float *panels;
} pack_job;

static float *packed_at(const pack_job *job, int64_t input, int64_t col)
{
    return job->panels + mhai_matmul_place(job->inner, job->cols, input, col);
}

/* An item packs several inner indices of all panels, so that memory is read sequentially. */
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

mha_status mhai_matmul_packing(mha_context *context, const mhai_matmul *job, const float *b,
                               int64_t stride)
{
    pack_job pack = {.b = b, .stride = stride, .inner = job->inner, .cols = job->cols};
    int64_t floats;
    if (!mhai_matmul_panels(job->inner, job->cols, &floats))
        return mha_fail(MHA_ERR_SIZE, "matrix: %lld x %lld elements overflow 64 bits",
                        (long long)job->inner, (long long)job->cols);
    mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY(mha_scratch_alloc(context, floats, sizeof(float), &pack.panels));
    mha_parallel_for(context, mhai_ceil_div(job->inner, PACK_ROWS), pack_rows, &pack);
    mhai_matmul packed = *job;
    packed.panels = pack.panels;
    MHA_TRY(mhai_matmul_reserve(context, job));
    mhai_matmul_run(context, &packed);
    mha_scratch_release(context, mark);
    return MHA_OK;
}
