/* A strip of a recurrent layer, and factors in double. Contracts in kernels.h.
 *
 * Columns are independent. A slice of them is processed for all rows, in blocks of STRIP_ROWS rows
 * whose sums stay in registers: first the products with earlier blocks, then those within the block,
 * which depend on each other. */

ALWAYS_INLINE void scale_as(float *out, const float *in, int64_t n, const double *factors,
                            bool each)
{
    const vd one = vd_set1(*factors);
    const int64_t whole = n / VD_LANES * VD_LANES;
    UNROLL_TIMES(4)
    for (int64_t i = 0; i < whole; i += VD_LANES)
        vd_store(out + i, vd_load(in + i) * (each ? vd_double_at(factors, i, whole) : one));
    if (whole < n)
        vd_store_at(out, whole, n,
                    vd_load_at(in, whole, n) * (each ? vd_double_at(factors, whole, n) : one));
}

static void scale_double(float *out, const float *in, int64_t n, const double *factors, bool each)
{
    if (each)
        scale_as(out, in, n, factors, true);
    else
        scale_as(out, in, n, factors, false);
}

enum { STRIP_ROWS = 4, STRIP_VECTORS = VF_LANES == 8 ? 2 : 4 };

ALWAYS_INLINE float *strip_u(const mhai_recurrent_strip *s, int64_t row, int64_t col)
{
    return s->u + col / MHAI_PANEL * s->u_stride + row * MHAI_PANEL + col % MHAI_PANEL;
}

ALWAYS_INLINE void strip_add(const mhai_recurrent_strip *s, int rows, int vectors,
                             const float *factors, int64_t j, int64_t col,
                             vf sum[STRIP_ROWS][STRIP_VECTORS])
{
    vf u[STRIP_VECTORS];
    UNROLL for (int v = 0; v < vectors; v++) u[v] = vf_load(strip_u(s, j, col + v * VF_LANES));
    UNROLL for (int r = 0; r < rows; r++)
    {
        const vf factor = vf_load1(factors + r * MHAI_PANEL + j);
        UNROLL for (int v = 0; v < vectors; v++) sum[r][v] = vf_fma(factor, u[v], sum[r][v]);
    }
}

/* u of `rows` rows from `row` on. */
ALWAYS_INLINE void strip_write(const mhai_recurrent_strip *s, int rows, int vectors, int row,
                               int64_t col)
{
    vf sum[STRIP_ROWS][STRIP_VECTORS];
    const float *erase = s->erase ? s->erase + row * MHAI_PANEL : NULL;
    const int64_t at = s->first + row;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
        vf_zero();
    for (int64_t j = 0; erase && j < at; j++) strip_add(s, rows, vectors, erase, j, col, sum);
    UNROLL for (int r = 0; r < rows; r++)
    {
        const vd strength = vd_set1(s->strength[row + r]);
        float *erased = erase ? s->erased + (row + r) * s->cols + col : NULL;
        UNROLL for (int v = 0; v < vectors; v++)
        {
            const vf value = vf_load(s->value + (row + r) * s->cols + col + v * VF_LANES);
            vd low = vd_low(value), high = vd_high(value);
            if (erase) {
                vf all = vf_load(erased + v * VF_LANES);
                if (at + r > 0) all = vf_add(all, sum[r][v]);
                vf_store(erased + v * VF_LANES, all);
                low -= vd_low(all);
                high -= vd_high(all);
            }
            const vf u = vf_join(strength * low, strength * high);
            vf_store(strip_u(s, at + r, col + v * VF_LANES), u);
            if (erase)
                UNROLL for (int k = r + 1; k < rows; k++) sum[k][v] =
                    vf_fma(vf_load1(erase + k * MHAI_PANEL + at + r), u, sum[k][v]);
        }
    }
}

/* Rows of queries, which depend on all rows of u up to their own. */
ALWAYS_INLINE void strip_read(const mhai_recurrent_strip *s, int rows, int vectors, int row,
                              int64_t col)
{
    vf sum[STRIP_ROWS][STRIP_VECTORS];
    const float *read = s->read + row * MHAI_PANEL;
    const int64_t at = s->first + row;
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++) sum[r][v] =
        vf_zero();
    for (int64_t j = 0; j <= at; j++) strip_add(s, rows, vectors, read, j, col, sum);
    UNROLL for (int j = 1; j < rows; j++) UNROLL for (int v = 0; v < vectors; v++)
    {
        const vf u = vf_load(strip_u(s, at + j, col + v * VF_LANES));
        UNROLL for (int r = j; r < rows; r++) sum[r][v] =
            vf_fma(vf_load1(read + r * MHAI_PANEL + at + j), u, sum[r][v]);
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int v = 0; v < vectors; v++)
    {
        float *out = s->out + (row + r) * s->cols + col + v * VF_LANES;
        vf_store(out, vf_add(vf_load(out), sum[r][v]));
    }
}

ALWAYS_INLINE void strip_slice(const mhai_recurrent_strip *s, int vectors, int64_t col)
{
    const int whole = s->rows / STRIP_ROWS * STRIP_ROWS;
    for (int row = 0; row < whole; row += STRIP_ROWS) strip_write(s, STRIP_ROWS, vectors, row, col);
    for (int row = whole; row < s->rows; row++) strip_write(s, 1, vectors, row, col);
    for (int row = 0; row < whole; row += STRIP_ROWS) strip_read(s, STRIP_ROWS, vectors, row, col);
    for (int row = whole; row < s->rows; row++) strip_read(s, 1, vectors, row, col);
}

static void recurrent_strip(const mhai_recurrent_strip *s)
{
    enum { WIDE = STRIP_VECTORS * VF_LANES, LEFT = WIDE > MHAI_PANEL ? STRIP_VECTORS / 2 : 1 };
    int64_t col = 0;
    for (; col + WIDE <= s->cols; col += WIDE) strip_slice(s, STRIP_VECTORS, col);
    if (col < s->cols) strip_slice(s, LEFT, col); /* half of a slice is left at most */
}
