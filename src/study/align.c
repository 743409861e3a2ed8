/* The best path of a matrix of weights that never goes back. */
#include <multihead/component.h>
#include <multihead/maps.h>

#include <inttypes.h>
#include <string.h>

typedef struct alignment {
    const mha_tensor *p;
    int64_t rows, columns, reach;
    double *sums;  /* [columns] of the current row, over the reach */
    double *best;  /* [columns] of a path that ends at or before a column */
    int64_t *from; /* [rows,columns] the column at which the best path ends */
    double *held;  /* [columns] the sum of a column over all rows */
} alignment;

/* Sums of a row over columns j - reach .. j + reach. */
static void sum_row(const alignment *a, int64_t row)
{
    const float *p = (const float *)a->p->data + row * a->p->stride[0];
    for (int64_t j = 0; j < a->columns; j++) {
        const int64_t first = j < a->reach ? 0 : j - a->reach;
        const int64_t last = j < a->columns - 1 - a->reach ? j + a->reach : a->columns - 1;
        a->sums[j] = 0;
        for (int64_t i = first; i <= last; i++) a->sums[j] += (double)p[i * a->p->stride[1]];
        a->held[j] += a->sums[j];
    }
}

/* The first of equal columns wins. */
static void extend(const alignment *a, int64_t row)
{
    int64_t *from = a->from + row * a->columns;
    sum_row(a, row);
    for (int64_t j = 0; j < a->columns; j++) {
        const double whole = a->best[j] + a->sums[j];
        const bool later = j > 0 && !(whole > a->best[j - 1]);
        a->best[j] = later ? a->best[j - 1] : whole;
        from[j] = later ? from[j - 1] : j;
    }
}

static double align(const alignment *a, int64_t *path)
{
    double most = 0;
    for (int64_t row = 0; row < a->rows; row++) extend(a, row);
    int64_t at = a->columns - 1;
    for (int64_t row = a->rows; row-- > 0;) {
        at = a->from[row * a->columns + at];
        if (path) path[row] = at;
    }
    for (int64_t j = 0; j < a->columns; j++)
        if (a->held[j] > most) most = a->held[j];
    return (a->best[a->columns - 1] - most) / (double)a->rows;
}

mha_status mha_align_rows(const mha_tensor *p, int64_t reach, double *score, int64_t *columns)
{
    MHA_NEED_AS("mha_align_rows", "p, score", p && p->data, score);
    if (p->dtype != MHA_F32 || p->ndim != 2 || p->shape[0] < 1 || p->shape[1] < 1)
        return mha_fail(MHA_ERR_SHAPE, "p: expected f32 [rows,columns], at least one of each");
    if (reach < 0 || reach >= p->shape[1])
        return mha_fail(MHA_ERR_ARGUMENT, "reach is %" PRId64 ", expected 0 to %" PRId64, reach,
                        p->shape[1] - 1);
    mha_room room = {0};
    alignment a = {.p = p, .rows = p->shape[0], .columns = p->shape[1], .reach = reach};
    mha_status status = MHA_ROOM_ALLOC(&room, a.columns, &a.sums);
    if (status == MHA_OK) status = MHA_ROOM_ALLOC(&room, a.columns, &a.best);
    if (status == MHA_OK) status = MHA_ROOM_ALLOC(&room, a.columns, &a.held);
    if (status == MHA_OK)
        status = mha_room_alloc(&room, a.rows, (size_t)a.columns * sizeof *a.from, &a.from);
    if (status == MHA_OK) *score = align(&a, columns);
    mha_room_release(&room, 0);
    return status;
}
