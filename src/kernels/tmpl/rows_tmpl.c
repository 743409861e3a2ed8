/* Sums along rows in double, rotary embedding, and delta. Each row is one chain, in the order of
 * its elements; 16 transposed rows are 16 parallel chains. Contracts in kernels.h. */

enum { VD_LANES = VF_LANES / 2, TURNED_PARTS = MHAI_MAX_ROWS / VD_LANES, TURNED_COLUMNS = 64 };

/* Load VD_LANES numbers, starting at i; zeros past n. */
ALWAYS_INLINE vd vd_load_at(const float *x, int64_t i, int64_t n)
{
    float part[VD_LANES] = {0};
    if (n - i >= VD_LANES) return vd_load(x + i);
    memcpy(part, x + i, (size_t)(n - i) * sizeof *part);
    return vd_load(part);
}

ALWAYS_INLINE vd vd_double_at(const double *x, int64_t i, int64_t n)
{
    vd part = {0};
    if (n - i >= VD_LANES)
        memcpy(&part, x + i, sizeof part);
    else
        memcpy(&part, x + i, (size_t)(n - i) * sizeof *x);
    return part;
}

ALWAYS_INLINE void vd_store_at(float *x, int64_t i, int64_t n, vd value)
{
    float part[VD_LANES];
    if (n - i >= VD_LANES) {
        vd_store(x + i, value);
        return;
    }
    vd_store(part, value);
    memcpy(x + i, part, (size_t)(n - i) * sizeof *part);
}

ALWAYS_INLINE void vd_double_store_at(double *x, int64_t i, int64_t n, vd value)
{
    memcpy(x + i, &value, n - i >= VD_LANES ? sizeof value : (size_t)(n - i) * sizeof *x);
}

ALWAYS_INLINE vd vd_set1(double x)
{
    return x - (vd){0};
}

/* Transpose columns col .. col + cols - 1 of up to 16 rows: out
 * [cols][16], zeros for missing rows. */
ALWAYS_INLINE void turn_rows_of(const mhai_pack *pack, int64_t col, int64_t cols, float *out)
{
    for (int64_t c = 0; c < cols; c += VF_LANES) { /* the rows that follow are often needed next */
        for (int r = 0; r < MHAI_MAX_ROWS; r++)
            fetch_element(MHA_F32, pack, MHAI_MAX_ROWS + r, col + c);
        for (int r = 0; r < MHAI_MAX_ROWS; r += VF_LANES)
            pack_square(MHA_F32, pack, r, col + c, lanes_at(c, cols), out + c * MHAI_MAX_ROWS + r,
                        MHAI_MAX_ROWS);
    }
}

static void turn_rows(const float *x, int64_t stride, int rows, int64_t col, int64_t cols,
                      float out[TURNED_COLUMNS * MHAI_MAX_ROWS])
{
    if (rows == MHAI_MAX_ROWS) /* as a constant, this avoids the test for missing rows */
        turn_rows_of(&(mhai_pack){.in = x, .stride = stride, .rows = MHAI_MAX_ROWS}, col, cols,
                     out);
    else
        turn_rows_of(&(mhai_pack){.in = x, .stride = stride, .rows = rows}, col, cols, out);
}

static inline int64_t turned_columns(int64_t col, int64_t n)
{
    return n - col < TURNED_COLUMNS ? n - col : TURNED_COLUMNS;
}

/* ---- rotary embedding ---------------------------------------------------------------------- */

static void rope_halves(const mhai_turn *t)
{
    const int64_t n = t->pairs;
    for (int64_t h = 0; h < t->heads; h++) {
        const float *x = t->x + h * t->x_stride, *x_mate = x + t->mate;
        float *y = t->y + h * t->y_stride, *y_mate = y + t->mate;
        for (int64_t i = 0; i < n; i += VD_LANES) {
            const vd real = vd_load_at(x, i, n), imaginary = vd_load_at(x_mate, i, n);
            const vd cosine = vd_double_at(t->cosine, i, n), sine = vd_double_at(t->sine, i, n);
            vd_store_at(y, i, n, real * cosine - imaginary * sine);
            vd_store_at(y_mate, i, n, real * sine + imaginary * cosine);
        }
    }
}

/* ---- delta --------------------------------------------------------------------------------- */

enum { TURNED_VECTORS = MHAI_MAX_ROWS / VF_LANES };

/* x * 0 is NaN exactly if x is not finite, and a sum keeps a NaN. */
ALWAYS_INLINE void note_finite(const float *column, vf zero[TURNED_VECTORS])
{
    UNROLL for (int j = 0; j < TURNED_VECTORS; j++) zero[j] =
        vf_fma(vf_load(column + j * VF_LANES), vf_zero(), zero[j]);
}

/* The product, or 0 where o is 0. */
ALWAYS_INLINE vd delta_term(vd o, vd g)
{
    typedef int64_t bits __attribute__((vector_size(sizeof(vd))));
    return (vd)((bits)(o * g) & (bits)(o != vd_set1(0)));
}

/* Check all queries at once. */
static bool queries_finite(const mhai_deltas *d)
{
    vf sum = vf_zero();
    for (int r = 0; r < d->rows; r++)
        for (int64_t i = 0; i < d->head_dim; i += VF_LANES)
            sum = vf_fma(vf_load_n(d->q + r * d->q_stride + i, lanes_at(i, d->head_dim)), vf_zero(),
                         sum);
    const vf part[LANES16] = {sum};
    return vf_sum16(part) == 0;
}

static void row_deltas(const mhai_deltas *d, double *delta, bool *finite)
{
    _Alignas(64) float o[TURNED_COLUMNS * MHAI_MAX_ROWS], g[TURNED_COLUMNS * MHAI_MAX_ROWS];
    float zeros[MHAI_MAX_ROWS];
    vd sum[TURNED_PARTS];
    vf zero[TURNED_VECTORS];
    UNROLL for (int j = 0; j < TURNED_PARTS; j++) sum[j] = vd_set1(0);
    UNROLL for (int j = 0; j < TURNED_VECTORS; j++) zero[j] = vf_zero();
    for (int64_t col = 0; col < d->value_dim; col += TURNED_COLUMNS) {
        const int64_t cols = turned_columns(col, d->value_dim);
        turn_rows(d->o, d->o_stride, d->rows, col, cols, o);
        turn_rows(d->g, d->g_stride, d->rows, col, cols, g);
        for (int64_t at = 0; at < cols * MHAI_MAX_ROWS; at += MHAI_MAX_ROWS) {
            note_finite(o + at, zero);
            note_finite(g + at, zero);
            UNROLL for (int j = 0; j < TURNED_PARTS; j++) sum[j] +=
                delta_term(vd_load_at(o + at, j * VD_LANES, MHAI_MAX_ROWS),
                           vd_load_at(g + at, j * VD_LANES, MHAI_MAX_ROWS));
        }
    }
    for (int64_t col = queries_finite(d) ? d->head_dim : 0; col < d->head_dim;
         col += TURNED_COLUMNS) {
        const int64_t cols = turned_columns(col, d->head_dim);
        turn_rows(d->q, d->q_stride, d->rows, col, cols, o);
        for (int64_t i = 0; i < cols; i++) note_finite(o + i * MHAI_MAX_ROWS, zero);
    }
    memcpy(delta, sum, sizeof sum);
    memcpy(zeros, zero, sizeof zero);
    for (int r = 0; r < d->rows; r++) finite[r] = zeros[r] == 0;
}
