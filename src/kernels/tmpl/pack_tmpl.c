/* Packing into panels, and the check for non-finite elements on the way. */

ALWAYS_INLINE bool row_finite(mha_dtype type, const void *in, int64_t first, int64_t n)
{
    /* x * 0 is NaN exactly for what is not finite, and a NaN stays in the sum. */
    vf sum = vf_zero();
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = n - i < VF_LANES ? n - i : VF_LANES;
        sum = vf_fma(load_n_as(type, in, first + i, lanes), vf_zero(), sum);
    }
    const vf part[16 / VF_LANES] = {sum};
    return vf_sum16(part) == 0;
}

static inline bool element_finite(float x)
{
    return x * 0.0f == 0.0f;
}

/* Note rows that are not finite; true if there are any. */
ALWAYS_INLINE bool find_bad_rows(mha_dtype type, const mhai_pack *pack)
{
    bool any = false;
    for (int64_t r = 0; r < pack->rows; r++) {
        bool finite = row_finite(type, pack->in, r * pack->stride, pack->cols);
        pack->bad[r] = !finite;
        any |= !finite;
    }
    if (any) *pack->any_bad = true;
    return any;
}

/* VF_LANES rows, transposed, from column col on; rows beyond the matrix are zeros. */
ALWAYS_INLINE void pack_square(mha_dtype type, const mhai_pack *pack, int64_t row, int64_t col,
                               int64_t cols, float *out, int64_t ld)
{
    vf rows[VF_LANES];
    UNROLL for (int r = 0; r < VF_LANES; r++) rows[r] =
        row + r < pack->rows ? load_n_as(type, pack->in, (row + r) * pack->stride + col, cols)
                             : vf_zero();
    transpose(rows, out, ld);
}

/* The first `columns` columns of a panel: rows of the matrix from `row` on. */
ALWAYS_INLINE void pack_panel_part(mha_dtype type, const mhai_pack *pack, int64_t row,
                                   int64_t columns, float *panel)
{
    const int64_t whole = pack->cols / VF_LANES * VF_LANES;
    for (int64_t c = 0; c < whole; c += VF_LANES)
        for (int64_t r = 0; r < columns; r += VF_LANES)
            pack_square(type, pack, row + r, c, VF_LANES, panel + c * MHAI_PANEL + r, MHAI_PANEL);
    for (int64_t r = 0; whole < pack->cols && r < columns; r += VF_LANES) {
        float square[VF_LANES * VF_LANES];
        pack_square(type, pack, row + r, whole, pack->cols - whole, square, VF_LANES);
        for (int64_t c = whole; c < pack->cols; c++)
            memcpy(panel + c * MHAI_PANEL + r, square + (c - whole) * VF_LANES, sizeof(vf));
    }
}

ALWAYS_INLINE void pack_panel(mha_dtype type, const mhai_pack *pack, int64_t row, float *panel)
{
    pack_panel_part(type, pack, row, MHAI_PANEL, panel);
}

ALWAYS_INLINE void pack_panels_as(mha_dtype type, const mhai_pack *pack)
{
    bool any_bad = pack->bad && find_bad_rows(type, pack);
    for (int64_t row = 0; row < pack->rows; row += MHAI_PANEL) {
        float *panel = pack->out + row * pack->cols;
        pack_panel(type, pack, row, panel);
        int64_t rows = pack->rows - row < MHAI_PANEL ? pack->rows - row : MHAI_PANEL;
        for (int64_t r = 0; any_bad && r < rows; r++)
            for (int64_t c = 0; pack->bad[row + r] && c < pack->cols; c++)
                if (!element_finite(panel[c * MHAI_PANEL + r])) panel[c * MHAI_PANEL + r] = 0;
    }
}

static void pack_panels(const mhai_pack *pack){BY_TYPE(pack->type, pack_panels_as, pack)}

/* One row of up to 32 columns, zero-padded. */
ALWAYS_INLINE
    void pack_value_row(mha_dtype type, float *out, const void *in, int64_t first, int64_t cols)
{
    for (int64_t c = 0; c < MHAI_PANEL; c += VF_LANES) {
        int64_t left = cols - c < VF_LANES ? cols - c : VF_LANES;
        vf_store(out + c, left > 0 ? load_n_as(type, in, first + c, left) : vf_zero());
    }
}

ALWAYS_INLINE void pack_values_as(mha_dtype type, const mhai_pack *pack)
{
    bool any_bad = pack->bad && find_bad_rows(type, pack);
    int64_t padded = (pack->rows + 15) / 16 * 16;
    for (int64_t col = 0; col < pack->cols; col += MHAI_PANEL) {
        float *panel = pack->out + col * MHAI_KEY_BLOCK;
        for (int64_t r = 0; r < padded; r++) {
            bool inside = r < pack->rows;
            pack_value_row(type, panel + r * MHAI_PANEL, pack->in, r * pack->stride + col,
                           inside ? pack->cols - col : 0);
            for (int64_t c = 0; any_bad && inside && pack->bad[r] && c < MHAI_PANEL; c++)
                if (!element_finite(panel[r * MHAI_PANEL + c])) panel[r * MHAI_PANEL + c] = 0;
        }
    }
}

static void pack_values(const mhai_pack *pack){BY_TYPE(pack->type, pack_values_as, pack)}

ALWAYS_INLINE void scale_row_as(mha_dtype type, float *out, const void *in, int64_t n, float factor,
                                bool *finite)
{
    *finite = row_finite(type, in, 0, n);
    const vf by = vf_set1(factor);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = n - i < VF_LANES ? n - i : VF_LANES;
        vf_store_n(out + i, lanes, *finite ? vf_mul(load_n_as(type, in, i, lanes), by) : vf_zero());
    }
}

static void scale_row(float *out, mha_dtype type, const void *in, int64_t n, float factor,
                      bool *finite)
{
    BY_TYPE(type, scale_row_as, out, in, n, factor, finite)
}
