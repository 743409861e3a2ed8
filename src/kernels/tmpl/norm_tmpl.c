/* Layer norm and RMS norm, forward and backward, in double. Contracts in kernels.h. */

enum { TURNED = TURNED_COLUMNS * MHAI_MAX_ROWS };

/* Row sums of z, or of (z - mean)^2. On return, turned holds the last columns, transposed. */
ALWAYS_INLINE void norm_sums(const mhai_norm_strip *s, bool squares, const double *mean,
                             double *sums, float turned[TURNED])
{
    vd sum[TURNED_PARTS], less[TURNED_PARTS];
    UNROLL for (int j = 0; j < TURNED_PARTS; j++)
    {
        sum[j] = vd_set1(0);
        less[j] = squares ? vd_double_at(mean, j * VD_LANES, MHAI_MAX_ROWS) : vd_set1(0);
    }
    for (int64_t col = 0; col < s->n; col += TURNED_COLUMNS) {
        const int64_t cols = turned_columns(col, s->n);
        turn_rows(s->z, s->z_stride, s->rows, col, cols, turned);
        for (int64_t i = 0; i < cols; i++) UNROLL for (int j = 0; j < TURNED_PARTS; j++)
            {
                vd z = vd_load_at(turned + i * MHAI_MAX_ROWS, j * VD_LANES, MHAI_MAX_ROWS);
                if (squares) {
                    z -= less[j];
                    z *= z;
                }
                sum[j] += z;
            }
    }
    memcpy(sums, sum, sizeof sum);
}

static void norm_measure(const mhai_norm_strip *s, double *mean, double *scale,
                         float turned[TURNED])
{
    double sums[MHAI_MAX_ROWS] = {0};
    const double n = (double)s->n;
    if (s->centred) norm_sums(s, false, NULL, sums, turned);
    for (int r = 0; r < MHAI_MAX_ROWS; r++) mean[r] = sums[r] / n;
    norm_sums(s, true, mean, sums, turned);
    for (int r = 0; r < MHAI_MAX_ROWS; r++)
        scale[r] = 1.0 / __builtin_sqrt(sums[r] / n + s->epsilon);
}

static void norm_strip(const mhai_norm_strip *s)
{
    double mean[MHAI_MAX_ROWS], scale[MHAI_MAX_ROWS];
    const int64_t n = s->n;
    _Alignas(64) float turned[TURNED];
    norm_measure(s, mean, scale, turned);
    for (int r = 0; r < s->rows; r++) {
        const float *z = s->z + r * s->z_stride;
        for (int64_t i = 0; i < n; i += VD_LANES) {
            vd y = (vd_load_at(z, i, n) - mean[r]) * scale[r] * vd_load_at(s->weight, i, n);
            if (s->bias) y += vd_load_at(s->bias, i, n);
            vd_store_at(s->y + r * s->y_stride, i, n, y);
        }
    }
}

/* ---- backward ------------------------------------------------------------------------------
 *
 * Without centring, means are 0 and bias sums are not computed. `centred` is a constant, so that
 * neither costs time. z - 0 is exactly z. */

/* Means over a row of g = dy weight, and of g times the normalised z. z is the `turned` of
 * norm_measure(). */
ALWAYS_INLINE void norm_means(const mhai_norm_strip_back *b, bool centred, const double *mean,
                              const double *scale, float z[TURNED], double *mean_g, double *mean_gn)
{
    _Alignas(64) float dy[TURNED];
    vd g_sum[TURNED_PARTS], gn_sum[TURNED_PARTS];
    const int64_t n = b->norm.n;
    UNROLL for (int j = 0; j < TURNED_PARTS; j++) g_sum[j] = gn_sum[j] = vd_set1(0);
    for (int64_t col = 0; col < n; col += TURNED_COLUMNS) {
        const int64_t cols = turned_columns(col, n);
        if (n > TURNED_COLUMNS) turn_rows(b->norm.z, b->norm.z_stride, b->norm.rows, col, cols, z);
        turn_rows(b->dy, b->dy_stride, b->norm.rows, col, cols, dy);
        for (int64_t i = 0; i < cols; i++) UNROLL for (int j = 0; j < TURNED_PARTS; j++)
            {
                const int at = j * VD_LANES;
                const vd g = vd_load_at(dy + i * MHAI_MAX_ROWS, at, MHAI_MAX_ROWS) *
                             (double)b->norm.weight[col + i];
                vd less = vd_load_at(z + i * MHAI_MAX_ROWS, at, MHAI_MAX_ROWS);
                if (centred) less -= vd_double_at(mean, at, MHAI_MAX_ROWS);
                if (centred) g_sum[j] += g;
                gn_sum[j] += g * less * vd_double_at(scale, at, MHAI_MAX_ROWS);
            }
    }
    memcpy(mean_g, g_sum, sizeof g_sum);
    memcpy(mean_gn, gn_sum, sizeof gn_sum);
    for (int r = 0; r < MHAI_MAX_ROWS; r++) {
        mean_g[r] /= (double)n;
        mean_gn[r] /= (double)n;
    }
}

/* Statistics of the rows of a strip. */
typedef struct norm_rows {
    double mean[MHAI_MAX_ROWS], scale[MHAI_MAX_ROWS];
    double mean_g[MHAI_MAX_ROWS], mean_gn[MHAI_MAX_ROWS];
} norm_rows;

/* Number of vectors of columns processed together. */
enum { NORM_VECTORS = 4, NORM_COLUMNS = NORM_VECTORS * VD_LANES };

/* Process `vectors` vectors of columns, starting at i; only `left` columns exist. Processes one row
 * at a time, so that the sums for weight and bias stay in registers. */
ALWAYS_INLINE void norm_columns(const mhai_norm_strip_back *b, bool centred, int vectors,
                                const norm_rows *of, int64_t i, int64_t left)
{
    const int rows = b->norm.rows;
    const bool add = b->add;
    const int64_t z_stride = b->norm.z_stride, dy_stride = b->dy_stride, stride = b->norm.y_stride;
    const float *z = b->norm.z + i, *dy = b->dy + i;
    float *out = b->norm.y ? b->norm.y + i : NULL;
    vd weight[NORM_VECTORS], normal_sum[NORM_VECTORS], sum[NORM_VECTORS];
    UNROLL for (int j = 0; j < vectors; j++)
    {
        const int at = j * VD_LANES;
        weight[j] = vd_load_at(b->norm.weight + i, at, left);
        normal_sum[j] = b->sums ? vd_double_at(b->sums + i, at, left) : vd_set1(0);
        sum[j] = b->sums && centred ? vd_double_at(b->sums + b->norm.n + i, at, left) : vd_set1(0);
    }
    for (int r = 0; r < rows; r++, z += z_stride, dy += dy_stride) {
        const double mean = of->mean[r], scale = of->scale[r];
        const double mean_g = of->mean_g[r], mean_gn = of->mean_gn[r];
        UNROLL for (int j = 0; j < vectors; j++)
        {
            const int at = j * VD_LANES;
            const vd up = vd_load_at(dy, at, left);
            vd less = vd_load_at(z, at, left), g = up * weight[j];
            if (centred) less -= mean, sum[j] += up, g -= mean_g;
            normal_sum[j] += up * less * scale;
            if (!out) continue;
            vd d = scale * (g - less * scale * mean_gn);
            if (add) d = vd_load_at(out + r * stride, at, left) + d;
            vd_store_at(out + r * stride, at, left, d);
        }
    }
    if (!b->sums) return;
    UNROLL for (int j = 0; j < vectors; j++)
    {
        vd_double_store_at(b->sums + i, j * VD_LANES, left, normal_sum[j]);
        if (centred) vd_double_store_at(b->sums + b->norm.n + i, j * VD_LANES, left, sum[j]);
    }
}

ALWAYS_INLINE void norm_strip_backward_as(const mhai_norm_strip_back *b, bool centred)
{
    norm_rows of = {.mean_g = {0}};
    _Alignas(64) float turned[TURNED];
    const int64_t n = b->norm.n, whole = n / NORM_COLUMNS * NORM_COLUMNS;
    norm_measure(&b->norm, of.mean, of.scale, turned);
    if (b->norm.y) norm_means(b, centred, of.mean, of.scale, turned, of.mean_g, of.mean_gn);
    for (int64_t i = 0; i < whole; i += NORM_COLUMNS)
        norm_columns(b, centred, NORM_VECTORS, &of, i, NORM_COLUMNS);
    for (int64_t i = whole; i < n; i += VD_LANES) norm_columns(b, centred, 1, &of, i, n - i);
}

static void norm_strip_backward(const mhai_norm_strip_back *b)
{
    if (b->norm.centred)
        norm_strip_backward_as(b, true);
    else
        norm_strip_backward_as(b, false);
}
