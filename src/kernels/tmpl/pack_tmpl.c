/* Packing into panels, and the check for non-finite elements on the way. */

static inline bool row_finite(const float *row, int64_t n)
{
    /* x * 0 is NaN exactly for what is not finite, and a NaN stays in the sum. */
    vf sum = vf_zero();
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = n - i < VF_LANES ? n - i : VF_LANES;
        vf x = lanes == VF_LANES ? vf_load(row + i) : vf_load_n(row + i, lanes);
        sum = vf_fma(x, vf_zero(), sum);
    }
    float lanes[VF_LANES], total = 0;
    vf_store(lanes, sum);
    for (int i = 0; i < VF_LANES; i++) total += lanes[i];
    return total == 0;
}

static inline bool element_finite(float x)
{
    return x * 0.0f == 0.0f;
}

/* Note rows that are not finite; true if there are any. */
static bool find_bad_rows(const mhai_pack *pack)
{
    bool any = false;
    for (int64_t r = 0; r < pack->rows; r++) {
        bool finite = row_finite(pack->in + r * pack->stride, pack->cols);
        pack->bad[r] = !finite;
        any |= !finite;
    }
    if (any) *pack->any_bad = true;
    return any;
}

/* Columns [col, cols) of up to 32 rows into a panel, element by element. */
static void pack_panel_scalar(const mhai_pack *pack, int64_t row, int64_t col, float *panel)
{
    int64_t rows = pack->rows - row < MHAI_PANEL ? pack->rows - row : MHAI_PANEL;
    for (int64_t c = col; c < pack->cols; c++)
        for (int64_t r = 0; r < MHAI_PANEL; r++)
            panel[c * MHAI_PANEL + r] = r < rows ? pack->in[(row + r) * pack->stride + c] : 0.0f;
}

/* The multiple-of-16 columns of 16 rows; rows beyond the matrix read zeros. */
static void pack_half_panel(const mhai_pack *pack, int64_t row, float *panel)
{
    static const float zeros[16];
    const float *rows[16];
    for (int64_t c = 0; c + 16 <= pack->cols; c += 16) {
        for (int64_t r = 0; r < 16; r++)
            rows[r] = row + r < pack->rows ? pack->in + (row + r) * pack->stride + c : zeros;
        transpose16(rows, panel + c * MHAI_PANEL, MHAI_PANEL);
    }
}

static void pack_panels(const mhai_pack *pack)
{
    bool any_bad = pack->bad && find_bad_rows(pack);
    for (int64_t row = 0; row < pack->rows; row += MHAI_PANEL) {
        float *panel = pack->out + row * pack->cols;
        pack_half_panel(pack, row, panel);
        pack_half_panel(pack, row + 16, panel + 16);
        pack_panel_scalar(pack, row, pack->cols / 16 * 16, panel);
        int64_t rows = pack->rows - row < MHAI_PANEL ? pack->rows - row : MHAI_PANEL;
        for (int64_t r = 0; any_bad && r < rows; r++)
            for (int64_t c = 0; pack->bad[row + r] && c < pack->cols; c++)
                if (!element_finite(panel[c * MHAI_PANEL + r])) panel[c * MHAI_PANEL + r] = 0;
    }
}

/* One row of up to 32 columns, zero-padded. */
static inline void pack_value_row(float *out, const float *in, int64_t cols)
{
    for (int64_t c = 0; c < MHAI_PANEL; c += VF_LANES) {
        int64_t left = cols - c;
        vf x = left >= VF_LANES ? vf_load(in + c) : left > 0 ? vf_load_n(in + c, left) : vf_zero();
        vf_store(out + c, x);
    }
}

static void pack_values(const mhai_pack *pack)
{
    bool any_bad = pack->bad && find_bad_rows(pack);
    int64_t padded = (pack->rows + 15) / 16 * 16;
    for (int64_t col = 0; col < pack->cols; col += MHAI_PANEL) {
        float *panel = pack->out + col * MHAI_KEY_BLOCK;
        for (int64_t r = 0; r < padded; r++) {
            bool inside = r < pack->rows;
            pack_value_row(panel + r * MHAI_PANEL,
                           inside ? pack->in + r * pack->stride + col : NULL,
                           inside ? pack->cols - col : 0);
            for (int64_t c = 0; any_bad && inside && pack->bad[r] && c < MHAI_PANEL; c++)
                if (!element_finite(panel[r * MHAI_PANEL + c])) panel[r * MHAI_PANEL + c] = 0;
        }
    }
}

static void scale_row(float *out, const float *in, int64_t n, float factor, bool *finite)
{
    *finite = row_finite(in, n);
    for (int64_t i = 0; i < n; i++) out[i] = *finite ? in[i] * factor : 0.0f;
}
