/* Dynamic time warping of rows of attention with columns (transcription.h). */
#include <multihead/component.h>
#include <multihead/transcription.h>

#include <inttypes.h>
#include <math.h>
#include <string.h>

typedef struct warp {
    const mha_tensor *p;
    int64_t heads, rows, cols, half; /* half: columns on each side of a median */
    double *z;                       /* [rows,cols] of one head */
    double *sum;                     /* [rows,cols] of the medians of all heads */
    double *costs;                   /* [2,cols+1] of the last two rows of steps */
    uint8_t *steps;                  /* [rows+1,cols+1] */
} warp;

enum { DIAGONAL, DOWN, RIGHT };

static double at(const warp *w, int64_t h, int64_t t, int64_t s)
{
    const int64_t *stride = w->p->stride;
    return (double)((const float *)w->p->data)[h * stride[0] + t * stride[1] + s * stride[2]];
}

/* Standardise each column over the rows. */
static void standardise(const warp *w, int64_t h)
{
    for (int64_t s = 0; s < w->cols; s++) {
        double mean = 0, square = 0;
        for (int64_t t = 0; t < w->rows; t++) mean += at(w, h, t, s);
        mean /= (double)w->rows;
        for (int64_t t = 0; t < w->rows; t++) {
            const double x = at(w, h, t, s) - mean;
            square += x * x;
        }
        const double deviation = sqrt(square / (double)w->rows);
        for (int64_t t = 0; t < w->rows; t++)
            w->z[t * w->cols + s] = deviation > 0 ? (at(w, h, t, s) - mean) / deviation : 0;
    }
}

/* The median of the columns around s, reflected at both ends. few [2 half + 1] is sorted by
 * insertion. */
static double median(const warp *w, const double *row, int64_t s, double *few)
{
    int64_t count = 0;
    for (int64_t i = s - w->half; i <= s + w->half; i++) {
        const int64_t from = i < 0 ? -i : i >= w->cols ? 2 * (w->cols - 1) - i : i;
        int64_t k = count++;
        for (; k > 0 && few[k - 1] > row[from]; k--) few[k] = few[k - 1];
        few[k] = row[from];
    }
    return few[w->half];
}

static void add_head(const warp *w, int64_t h, double *few)
{
    standardise(w, h);
    for (int64_t t = 0; t < w->rows; t++)
        for (int64_t s = 0; s < w->cols; s++) {
            const double *row = w->z + t * w->cols;
            w->sum[t * w->cols + s] += w->half < w->cols ? median(w, row, s, few) : row[s];
        }
}

/* Costs and steps of the best path to each cell. */
static void walk(const warp *w)
{
    const int64_t wide = w->cols + 1;
    for (int64_t s = 0; s < wide; s++) w->costs[s] = s > 0 ? HUGE_VAL : 0;
    for (int64_t t = 1; t <= w->rows; t++) {
        const double *above = w->costs + (t - 1) % 2 * wide;
        double *here = w->costs + t % 2 * wide;
        here[0] = HUGE_VAL;
        for (int64_t s = 1; s < wide; s++) {
            const double a = above[s - 1], b = above[s], c = here[s - 1];
            const int step = a < b && a < c ? DIAGONAL : b < a && b < c ? DOWN : RIGHT;
            const double least = step == DIAGONAL ? a : step == DOWN ? b : c;
            here[s] = least - w->sum[(t - 1) * w->cols + s - 1] / (double)w->heads;
            w->steps[t * wide + s] = (uint8_t)step;
        }
    }
}

static void trace(const warp *w, int64_t *columns)
{
    int64_t t = w->rows, s = w->cols;
    while (t > 0 || s > 0) {
        const int step = t == 0 ? RIGHT : s == 0 ? DOWN : w->steps[t * (w->cols + 1) + s];
        if (t > 0) columns[t - 1] = s > 0 ? s - 1 : 0;
        t -= step != RIGHT;
        s -= step != DOWN;
    }
}

static mha_status run(mha_context *context, warp *w, int64_t *columns)
{
    const int64_t wide = w->cols + 1;
    double *few;
    MHA_TRY(mha_scratch_alloc(context, w->rows * w->cols, sizeof *w->z, &w->z));
    MHA_TRY(mha_scratch_zeros(context, w->rows * w->cols, sizeof *w->sum, &w->sum));
    MHA_TRY(mha_scratch_alloc(context, 2 * wide, sizeof *w->costs, &w->costs));
    MHA_TRY(mha_scratch_zeros(context, (w->rows + 1) * wide, sizeof *w->steps, &w->steps));
    MHA_TRY(mha_scratch_alloc(context, 2 * w->half + 1, sizeof *few, &few));
    for (int64_t h = 0; h < w->heads; h++)
        for (int64_t i = 0; i < w->rows * w->cols; i++)
            if (!isfinite(at(w, h, i / w->cols, i % w->cols)))
                return mha_fail(MHA_ERR_NUMERIC,
                                "p of head %" PRId64 " at row %" PRId64 " is not finite", h,
                                i / w->cols);
    for (int64_t h = 0; h < w->heads; h++) add_head(w, h, few);
    walk(w);
    trace(w, columns);
    return MHA_OK;
}

mha_status mha_warp_rows(mha_context *context, const mha_tensor *p, int64_t width, int64_t *columns)
{
    MHA_NEED_AS("mha_warp_rows", "context, p, columns", context, p && p->data, columns);
    if (p->dtype != MHA_F32 || p->ndim != 3 || p->shape[0] < 1 || p->shape[1] < 1 ||
        p->shape[2] < 1 || p->shape[1] > INT32_MAX || p->shape[2] > INT32_MAX - 1)
        return mha_fail(MHA_ERR_SHAPE, "p: expected f32 [heads,rows,columns], one or more of each");
    if (width < 1 || width % 2 == 0 || width > 1001)
        return mha_fail(MHA_ERR_ARGUMENT,
                        "width is %" PRId64 ", expected an odd number from 1 to 1001", width);
    warp w = {
        .p = p, .heads = p->shape[0], .rows = p->shape[1], .cols = p->shape[2], .half = width / 2};
    const mha_scratch_mark mark = mha_scratch_top(context);
    return mha_scratch_end(context, mark, run(context, &w, columns));
}
