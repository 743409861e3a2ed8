/* Layer norm and RMS norm, forward and backward, in double. Contracts in kernels.h. */

enum { TURNED = TURNED_COLUMNS * MHAI_MAX_ROWS };

/* Sums of z - mean, or of its squares. turned: the last columns, turned, on return. */
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
    float turned[TURNED];
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

/* ---- backward ------------------------------------------------------------------------------ */

/* Means over a row of g = dy weight, and of g times the normed z. z: as norm_measure() left it. */
static void norm_means(const mhai_norm_strip_back *b, const double *mean, const double *scale,
                       float z[TURNED], double *mean_g, double *mean_gn)
{
    float dy[TURNED];
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
                const vd centred = vd_load_at(z + i * MHAI_MAX_ROWS, at, MHAI_MAX_ROWS) -
                                   vd_double_at(mean, at, MHAI_MAX_ROWS);
                g_sum[j] += g;
                gn_sum[j] += g * centred * vd_double_at(scale, at, MHAI_MAX_ROWS);
            }
    }
    memcpy(mean_g, g_sum, sizeof g_sum);
    memcpy(mean_gn, gn_sum, sizeof gn_sum);
    for (int r = 0; r < MHAI_MAX_ROWS; r++) {
        mean_g[r] = b->norm.centred ? mean_g[r] / (double)n : 0;
        mean_gn[r] /= (double)n;
    }
}

/* A row's part of the sums for weight and bias. */
static void norm_add_sums(const mhai_norm_strip_back *b, int r, double mean, double scale)
{
    const int64_t n = b->norm.n;
    const float *z = b->norm.z + r * b->norm.z_stride, *dy = b->dy + r * b->dy_stride;
    for (int64_t i = 0; i < n; i++) {
        b->sums[i] += (double)dy[i] * ((double)z[i] - mean) * scale;
        b->sums[n + i] += (double)dy[i];
    }
}

static void norm_strip_backward(const mhai_norm_strip_back *b)
{
    double mean[MHAI_MAX_ROWS], scale[MHAI_MAX_ROWS];
    double mean_g[MHAI_MAX_ROWS], mean_gn[MHAI_MAX_ROWS];
    const int64_t n = b->norm.n;
    float turned[TURNED];
    norm_measure(&b->norm, mean, scale, turned);
    for (int r = 0; b->sums && r < b->norm.rows; r++) norm_add_sums(b, r, mean[r], scale[r]);
    if (!b->norm.y) return;
    norm_means(b, mean, scale, turned, mean_g, mean_gn);
    for (int r = 0; r < b->norm.rows; r++) {
        const float *z = b->norm.z + r * b->norm.z_stride, *dy = b->dy + r * b->dy_stride;
        float *dx = b->norm.y + r * b->norm.y_stride;
        for (int64_t i = 0; i < n; i += VD_LANES) {
            const vd normal = (vd_load_at(z, i, n) - mean[r]) * scale[r];
            const vd g = vd_load_at(dy, i, n) * vd_load_at(b->norm.weight, i, n);
            vd d = scale[r] * (g - mean_g[r] - normal * mean_gn[r]);
            if (b->add) d = vd_load_at(dx, i, n) + d;
            vd_store_at(dx, i, n, d);
        }
    }
}
