/* Layer norm and RMS norm, forward and backward, in double. A row's sums run in the order of its
 * index, so one row is one chain of additions; 16 rows, turned, are 16 chains side by side.
 * Contracts in kernels.h. */

enum { VD_LANES = VF_LANES / 2, NORM_PARTS = MHAI_MAX_ROWS / VD_LANES, NORM_COLUMNS = 64 };

typedef double vd __attribute__((vector_size(VD_LANES * sizeof(double))));
typedef float half_vf __attribute__((vector_size(VD_LANES * sizeof(float))));

/* The next up to VD_LANES floats of n from i on; beyond them 0. */
ALWAYS_INLINE vd vd_load_at(const float *x, int64_t i, int64_t n)
{
    half_vf part = {0};
    if (n - i >= VD_LANES)
        memcpy(&part, x + i, sizeof part);
    else
        memcpy(&part, x + i, (size_t)(n - i) * sizeof(float));
    return __builtin_convertvector(part, vd);
}

ALWAYS_INLINE void vd_store_at(float *x, int64_t i, int64_t n, vd value)
{
    const half_vf part = __builtin_convertvector(value, half_vf);
    if (n - i >= VD_LANES)
        memcpy(x + i, &part, sizeof part);
    else
        memcpy(x + i, &part, (size_t)(n - i) * sizeof(float));
}

ALWAYS_INLINE vd vd_set1(double x)
{
    return x - (vd){0};
}

ALWAYS_INLINE vd vd_double(const double *x)
{
    vd value;
    memcpy(&value, x, sizeof value);
    return value;
}

/* Columns col .. col + cols - 1 of up to 16 rows, turned: out [cols][16], 0 for rows there are
 * not. */
static void turn_rows(const float *x, int64_t stride, int rows, int64_t col, int64_t cols,
                      float out[NORM_COLUMNS * MHAI_MAX_ROWS])
{
    const mhai_pack pack = {.in = x, .stride = stride, .rows = rows};
    for (int64_t c = 0; c < cols; c += VF_LANES)
        for (int r = 0; r < MHAI_MAX_ROWS; r += VF_LANES)
            pack_square(MHA_F32, &pack, r, col + c, lanes_at(c, cols), out + c * MHAI_MAX_ROWS + r,
                        MHAI_MAX_ROWS);
}

static inline int64_t norm_columns(int64_t col, int64_t n)
{
    return n - col < NORM_COLUMNS ? n - col : NORM_COLUMNS;
}

/* Sums of z - mean, or of its squares. */
ALWAYS_INLINE void norm_sums(const mhai_norm_strip *s, bool squares, const double *mean,
                             double *sums)
{
    float turned[NORM_COLUMNS * MHAI_MAX_ROWS];
    vd sum[NORM_PARTS], less[NORM_PARTS];
    UNROLL for (int j = 0; j < NORM_PARTS; j++)
    {
        sum[j] = vd_set1(0);
        less[j] = squares ? vd_double(mean + j * VD_LANES) : vd_set1(0);
    }
    for (int64_t col = 0; col < s->n; col += NORM_COLUMNS) {
        const int64_t cols = norm_columns(col, s->n);
        turn_rows(s->z, s->z_stride, s->rows, col, cols, turned);
        for (int64_t i = 0; i < cols; i++) UNROLL for (int j = 0; j < NORM_PARTS; j++)
            {
                vd z = vd_load_at(turned + i * MHAI_MAX_ROWS, j * VD_LANES, MHAI_MAX_ROWS);
                if (squares) z -= less[j];
                sum[j] += squares ? z * z : z;
            }
    }
    memcpy(sums, sum, sizeof sum);
}

static void norm_measure(const mhai_norm_strip *s, double *mean, double *scale)
{
    double sums[MHAI_MAX_ROWS] = {0};
    const double n = (double)s->n;
    if (s->centred) norm_sums(s, false, NULL, sums);
    for (int r = 0; r < MHAI_MAX_ROWS; r++) mean[r] = sums[r] / n;
    norm_sums(s, true, mean, sums);
    for (int r = 0; r < MHAI_MAX_ROWS; r++)
        scale[r] = 1.0 / __builtin_sqrt(sums[r] / n + s->epsilon);
}

static void norm_strip(const mhai_norm_strip *s)
{
    double mean[MHAI_MAX_ROWS], scale[MHAI_MAX_ROWS];
    const int64_t n = s->n;
    norm_measure(s, mean, scale);
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

/* Means over a row of g = dy weight, and of g times the normed z. */
static void norm_means(const mhai_norm_strip_back *b, const double *mean, const double *scale,
                       double *mean_g, double *mean_gn)
{
    float z[NORM_COLUMNS * MHAI_MAX_ROWS], dy[NORM_COLUMNS * MHAI_MAX_ROWS];
    vd g_sum[NORM_PARTS], gn_sum[NORM_PARTS];
    const int64_t n = b->norm.n;
    UNROLL for (int j = 0; j < NORM_PARTS; j++) g_sum[j] = gn_sum[j] = vd_set1(0);
    for (int64_t col = 0; col < n; col += NORM_COLUMNS) {
        const int64_t cols = norm_columns(col, n);
        turn_rows(b->norm.z, b->norm.z_stride, b->norm.rows, col, cols, z);
        turn_rows(b->dy, b->dy_stride, b->norm.rows, col, cols, dy);
        for (int64_t i = 0; i < cols; i++) UNROLL for (int j = 0; j < NORM_PARTS; j++)
            {
                const int at = j * VD_LANES;
                const vd g = vd_load_at(dy + i * MHAI_MAX_ROWS, at, MHAI_MAX_ROWS) *
                             (double)b->norm.weight[col + i];
                const vd centred =
                    vd_load_at(z + i * MHAI_MAX_ROWS, at, MHAI_MAX_ROWS) - vd_double(mean + at);
                g_sum[j] += g;
                gn_sum[j] += g * centred * vd_double(scale + at);
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
    norm_measure(&b->norm, mean, scale);
    for (int r = 0; b->sums && r < b->norm.rows; r++) norm_add_sums(b, r, mean[r], scale[r]);
    if (!b->norm.y) return;
    norm_means(b, mean, scale, mean_g, mean_gn);
    for (int r = 0; r < b->norm.rows; r++) {
        const float *z = b->norm.z + r * b->norm.z_stride, *dy = b->dy + r * b->dy_stride;
        float *dx = b->norm.y + r * b->norm.y_stride;
        for (int64_t i = 0; i < n; i += VD_LANES) {
            const vd normal = (vd_load_at(z, i, n) - mean[r]) * scale[r];
            const vd g = vd_load_at(dy, i, n) * vd_load_at(b->norm.weight, i, n);
            const vd d = scale[r] * (g - mean_g[r] - normal * mean_gn[r]);
            vd_store_at(dx, i, n, b->add ? vd_load_at(dx, i, n) + d : d);
        }
    }
}
