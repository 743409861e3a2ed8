/* Average-link clustering: each step merges the two clusters with the smallest mean distance
 * between their members. Distances are updated by the rule of Lance and Williams (1967): d(a + b,
 * c) = (|a| d(a,c) + |b| d(b,c)) / (|a| + |b|). */
#include "base/checked.h"

#include <multihead/component.h>
#include <multihead/head_distances.h>

#include <math.h>

enum { MOST = 4096 };

typedef struct clusters {
    int64_t count;
    double *distance; /* [count,count] between clusters, each identified by its first member */
    int64_t *size;    /* [count] size of the cluster whose first member this is;
                       * 0: merged into another */
    int64_t *head;    /* [count] first member of the item's cluster */
} clusters;

static mha_status check(int64_t count, const double *distance, double cut)
{
    if (count < 0 || isnan(cut))
        return mha_fail(MHA_ERR_ARGUMENT, "mha_head_clusters: %lld items, cut %g", (long long)count,
                        cut);
    if (count > MOST)
        return mha_fail(MHA_ERR_SIZE, "mha_head_clusters: %lld items, at most %d", (long long)count,
                        (int)MOST);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < count; j++)
            if (i != j && !isfinite(distance[i * count + j]))
                return mha_fail(MHA_ERR_NUMERIC, "distance[%lld,%lld] is not finite", (long long)i,
                                (long long)j);
    return MHA_OK;
}

/* Find the nearest two clusters, a < b. Returns false if no distance is within cut. */
static bool nearest(const clusters *x, double cut, int64_t *a, int64_t *b)
{
    double best = cut;
    *a = -1;
    for (int64_t i = 0; i < x->count; i++)
        for (int64_t j = i + 1; x->size[i] > 0 && j < x->count; j++) {
            const double d = x->distance[i * x->count + j];
            if (x->size[j] == 0 || d > best || (d == best && *a >= 0)) continue;
            best = d, *a = i, *b = j;
        }
    return *a >= 0;
}

static void join(clusters *x, int64_t a, int64_t b)
{
    const double m = (double)x->size[a], n = (double)x->size[b];
    for (int64_t c = 0; c < x->count; c++) {
        if (c == a || c == b || x->size[c] == 0) continue;
        const double d =
            (m * x->distance[a * x->count + c] + n * x->distance[b * x->count + c]) / (m + n);
        x->distance[a * x->count + c] = x->distance[c * x->count + a] = d;
    }
    x->size[a] += x->size[b];
    x->size[b] = 0;
    for (int64_t i = 0; i < x->count; i++)
        if (x->head[i] == b) x->head[i] = a;
}

static void run(clusters *x, const double *distance, double cut, int64_t *cluster, int64_t *found)
{
    int64_t a, b, next = 0;
    for (int64_t i = 0; i < x->count; i++) {
        x->size[i] = 1, x->head[i] = i;
        for (int64_t j = 0; j < x->count; j++)
            x->distance[i * x->count + j] = distance[i * x->count + j];
    }
    while (nearest(x, cut, &a, &b)) join(x, a, b);
    for (int64_t i = 0; i < x->count; i++)
        cluster[i] = x->head[i] == i ? next++ : cluster[x->head[i]];
    *found = next;
}

mha_status mha_head_clusters(mha_context *context, int64_t count, const double *distance,
                             double cut, int64_t *cluster, int64_t *found)
{
    clusters x = {.count = count};
    mha_status status;
    if (!context || !found || (count > 0 && (!distance || !cluster)))
        return mha_fail(MHA_ERR_NULL, "mha_head_clusters: a pointer is NULL");
    MHA_TRY(check(count, distance, cut));
    const mha_scratch_mark mark = mha_scratch_top(context);
    MHA_TRY_GOTO(mha_scratch_alloc(context, count * count, sizeof(double), &x.distance), done);
    MHA_TRY_GOTO(mha_scratch_alloc(context, count, sizeof(int64_t), &x.size), done);
    MHA_TRY_GOTO(mha_scratch_alloc(context, count, sizeof(int64_t), &x.head), done);
    run(&x, distance, cut, cluster, found);
done:
    return mha_scratch_end(context, mark, status);
}
