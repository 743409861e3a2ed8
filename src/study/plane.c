/* Queries and keys of a head in the plane of their first two principal components: see trace.h. */
#include "study/trial.h"

#include <multihead/component.h>
#include <multihead/trace.h>

#include <inttypes.h>
#include <math.h>

typedef struct plane {
    mha_trial_head head;
    int64_t tokens, size; /* T, D */
    double *rows;         /* [2T,D] queries, then keys, minus their mean */
    double *matrix;       /* [D,D] of sums of products; later its eigenvalues are on the diagonal */
    double *vectors;      /* [D,D] an eigenvector in each row */
    mha_room room;
} plane;

/* ---- rows ------------------------------------------------------------------------------------ */

static void take_rows(const mha_tensor *x, int64_t h, int64_t T, int64_t D, double *to)
{
    const float *from = (const float *)x->data + h * x->stride[1];
    for (int64_t t = 0; t < T; t++)
        for (int64_t d = 0; d < D; d++) to[t * D + d] = (double)from[t * x->stride[2] + d];
}

static mha_status no_head(const plane *p)
{
    return mha_fail(MHA_ERR_MODEL,
                    "the model has no head L%" PRId64 "H%" PRId64 " of softmax attention",
                    p->head.layer, p->head.head);
}

static mha_status take_view(plane *p, const mha_layer_view *view)
{
    if (view->mixer || view->q.ndim == 0 || p->head.head < 0 || p->head.head >= view->q.shape[1])
        return no_head(p);
    const int64_t T = view->q.shape[2], D = view->q.shape[3];
    const int64_t kv = p->head.head / (view->q.shape[1] / view->k.shape[1]);
    p->tokens = T;
    p->size = D;
    MHA_TRY(MHA_ROOM_ALLOC(&p->room, 2 * T * D, &p->rows));
    take_rows(&view->q, p->head.head, T, D, p->rows);
    take_rows(&view->k, kv, T, D, p->rows + T * D);
    return MHA_OK;
}

static mha_status after_layer(void *user, const mha_activations *activations, int64_t layer)
{
    plane *p = user;
    mha_layer_view view = {.struct_size = sizeof view};
    if (layer != p->head.layer) return MHA_OK;
    MHA_TRY(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &view));
    return take_view(p, &view);
}

/* ---- principal components -------------------------------------------------------------------- */

static void subtract_mean(plane *p)
{
    const int64_t rows = 2 * p->tokens, D = p->size;
    for (int64_t d = 0; d < D; d++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) sum += p->rows[r * D + d];
        for (int64_t r = 0; r < rows; r++) p->rows[r * D + d] -= sum / (double)rows;
    }
}

static void multiply_rows(plane *p)
{
    const int64_t rows = 2 * p->tokens, D = p->size;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < D; i++)
            for (int64_t j = 0; j < D; j++)
                p->matrix[i * D + j] += p->rows[r * D + i] * p->rows[r * D + j];
}

static void turn(double *x, double *y, int64_t count, int64_t stride, double c, double s)
{
    for (int64_t i = 0; i < count * stride; i += stride) {
        const double a = x[i], b = y[i];
        x[i] = c * a - s * b;
        y[i] = s * a + c * b;
    }
}

/* Rotate axes i and j so that element (i, j) becomes zero. */
static void turn_pair(plane *p, int64_t i, int64_t j)
{
    const int64_t D = p->size;
    double *a = p->matrix;
    const double part = a[i * D + j];
    const double theta = (a[j * D + j] - a[i * D + i]) / (2 * part);
    const double t = (theta < 0 ? -1 : 1) / (fabs(theta) + sqrt(theta * theta + 1));
    const double c = 1 / sqrt(t * t + 1), s = t * c;
    turn(a + i * D, a + j * D, D, 1, c, s);
    turn(a + i, a + j, D, D, c, s);
    turn(p->vectors + i * D, p->vectors + j * D, D, 1, c, s);
}

/* Jacobi's method: all pairs in order, until the off-diagonal elements are below the rounding of
 * the sum of the eigenvalues. */
static void diagonalise(plane *p, double sum)
{
    enum { SWEEPS = 40 }; /* quadratic convergence takes about 8 */
    const int64_t D = p->size;
    bool done = false;
    for (int64_t d = 0; d < D; d++) p->vectors[d * D + d] = 1;
    for (int sweep = 0; sweep < SWEEPS && !done; sweep++) {
        done = true;
        for (int64_t i = 0; i < D; i++)
            for (int64_t j = i + 1; j < D; j++) {
                if (fabs(p->matrix[i * D + j]) <= 0x1p-54 * sum) continue;
                turn_pair(p, i, j);
                done = false;
            }
    }
}

/* The component with the largest eigenvalue, except `other`; -1: none. */
static int64_t find_largest(const plane *p, int64_t other)
{
    const int64_t D = p->size;
    int64_t best = -1;
    for (int64_t d = 0; d < D; d++)
        if (d != other && (best < 0 || p->matrix[d * D + d] > p->matrix[best * D + best])) best = d;
    return best;
}

/* The sign that makes the largest element of a vector positive. */
static double sign_of(const double *vector, int64_t count)
{
    int64_t most = 0;
    for (int64_t d = 1; d < count; d++)
        if (fabs(vector[d]) > fabs(vector[most])) most = d;
    return vector[most] < 0 ? -1 : 1;
}

static void project(const plane *p, int64_t component, float *to)
{
    const int64_t D = p->size;
    const double *vector = p->vectors + component * D;
    const double sign = sign_of(vector, D);
    for (int64_t r = 0; r < 2 * p->tokens; r++) {
        double sum = 0;
        for (int64_t d = 0; d < D; d++) sum += p->rows[r * D + d] * vector[d];
        to[2 * r] = (float)(sign * sum);
    }
}

static mha_status make_plane(plane *p, float *points, double shares[2])
{
    const int64_t D = p->size;
    double sum = 0;
    int64_t component = -1;
    MHA_TRY(MHA_ROOM_ALLOC(&p->room, D * D, &p->matrix));
    MHA_TRY(MHA_ROOM_ALLOC(&p->room, D * D, &p->vectors));
    subtract_mean(p);
    multiply_rows(p);
    for (int64_t d = 0; d < D; d++) sum += p->matrix[d * D + d];
    if (!isfinite(sum)) return mha_fail(MHA_ERR_MODEL, "queries or keys are not finite");
    diagonalise(p, sum);
    for (int i = 0; i < 2; i++) {
        component = find_largest(p, component);
        shares[i] = component >= 0 && sum > 0 ? p->matrix[component * D + component] / sum : 0;
        if (component >= 0) project(p, component, points + i);
    }
    return MHA_OK;
}

mha_status mha_trials_plane(mha_trials *trials, const mha_trial *given, mha_trial_head head,
                            float *points, double shares[2])
{
    mha_trial run;
    plane p = {.head = head};
    MHA_NEED("mha_trials_plane", points, shares);
    MHA_TRY(mhai_trial_read(trials, given, &run));
    if (head.layer < 0 || head.layer >= trials->desc.num_layers) return no_head(&p);
    mha_status status = mha_trials_run(trials, given, -1, NULL, NULL, NULL);
    if (status == MHA_OK)
        status = trials->now.layers ? take_view(&p, &trials->now.layers[head.layer].view)
                                    : mhai_trial_watch(trials, &run, after_layer, &p);
    for (int64_t i = 0; status == MHA_OK && i < 4 * p.tokens; i++) points[i] = 0;
    if (status == MHA_OK) status = make_plane(&p, points, shares);
    mha_room_release(&p.room, 0);
    return status;
}
