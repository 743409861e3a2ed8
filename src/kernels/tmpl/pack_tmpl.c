/* Packing into panels, with a check for non-finite elements. */

ALWAYS_INLINE bool row_finite(mha_dtype type, const void *in, int64_t first, int64_t n)
{
    /* x * 0 is NaN exactly if x is not finite, and a sum keeps a NaN. */
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

/* Find the rows with non-finite elements. Only called if there are any. */
ALWAYS_INLINE void find_bad_rows(mha_dtype type, const mhai_pack *pack)
{
    for (int64_t r = 0; r < pack->rows; r++) {
        pack->bad[r] = type == MHA_I8 ? !element_finite(pack->scale[r])
                                      : !row_finite(type, pack->in, r * pack->stride, pack->cols);
        if (pack->bad[r]) *pack->any_bad = true;
    }
}

/* Number of independent sums of x * 0, which stay 0 while all x are finite. */
enum { FINITE_SUMS = 4 };

ALWAYS_INLINE bool sums_are_zero(const vf sum[FINITE_SUMS])
{
    const vf part[16 / VF_LANES] = {vf_add(vf_add(sum[0], sum[1]), vf_add(sum[2], sum[3]))};
    return vf_sum16(part) == 0;
}

/* Prefetch rows that are packed later. Hardware prefetchers do not find rows that are pages apart.
 * Addresses outside the tensor are not dereferenced. */
ALWAYS_INLINE void fetch_element(mha_dtype type, const mhai_pack *pack, int64_t row, int64_t col)
{
    const int64_t size = run_size(type);
    __builtin_prefetch(
        (const void *)((uintptr_t)pack->in + (uintptr_t)((row * pack->stride + col) * size)));
}

/* Load VF_LANES rows, starting at column col. Missing rows are zeros. */
ALWAYS_INLINE void load_square(mha_dtype type, const mhai_pack *pack, int64_t row, int64_t col,
                               int64_t cols, vf rows[VF_LANES])
{
    UNROLL for (int r = 0; r < VF_LANES; r++) rows[r] =
        row + r < pack->rows ? load_n_as(type, pack->in, (row + r) * pack->stride + col, cols)
                             : vf_zero();
}

/* The same, transposed. */
ALWAYS_INLINE void pack_square(mha_dtype type, const mhai_pack *pack, int64_t row, int64_t col,
                               int64_t cols, float *out, int64_t ld)
{
    vf rows[VF_LANES];
    load_square(type, pack, row, col, cols, rows);
    transpose(rows, out, ld);
}

/* The same for a panel. Also prefetches the next panel unless it is close. */
ALWAYS_INLINE void pack_panel_square(mha_dtype type, const mhai_pack *pack, bool near, int64_t row,
                                     int64_t col, int64_t cols, float *out, int64_t ld,
                                     vf finite[FINITE_SUMS])
{
    vf rows[VF_LANES];
    load_square(type, pack, row, col, cols, rows);
    UNROLL for (int r = 0; r < VF_LANES; r++)
    {
        if (!near) fetch_element(type, pack, row + r + MHAI_PANEL, col);
        finite[r % FINITE_SUMS] = vf_fma(rows[r], vf_zero(), finite[r % FINITE_SUMS]);
    }
    transpose(rows, out, ld);
}

/* Pack the first `columns` columns of a panel, which are rows of the matrix from `row` on. Returns
 * false if an element is not finite. */
ALWAYS_INLINE bool pack_panel_part(mha_dtype type, const mhai_pack *pack, bool near, int64_t row,
                                   int64_t columns, float *panel)
{
    const int64_t whole = pack->cols / VF_LANES * VF_LANES;
    vf finite[FINITE_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t c = 0; c < whole; c += VF_LANES)
        for (int64_t r = 0; r < columns; r += VF_LANES)
            pack_panel_square(type, pack, near, row + r, c, VF_LANES, panel + c * MHAI_PANEL + r,
                              MHAI_PANEL, finite);
    for (int64_t r = 0; whole < pack->cols && r < columns; r += VF_LANES) {
        float square[VF_LANES * VF_LANES];
        pack_panel_square(type, pack, near, row + r, whole, pack->cols - whole, square, VF_LANES,
                          finite);
        for (int64_t c = whole; c < pack->cols; c++)
            memcpy(panel + c * MHAI_PANEL + r, square + (c - whole) * VF_LANES, sizeof(vf));
    }
    return sums_are_zero(finite);
}

/* A constant width gives straight-line code. */
ALWAYS_INLINE bool pack_panel(mha_dtype type, const mhai_pack *pack, int64_t row, float *panel)
{
    if (pack->half && pack->rows - row <= HALF_PANEL)
        return pack_panel_part(type, pack, false, row, HALF_PANEL, panel);
    return pack_panel_part(type, pack, false, row, MHAI_PANEL, panel);
}

/* Clear the rows marked as bad, or only their non-finite elements. */
static void clear_bad_columns(const mhai_pack *pack)
{
    for (int64_t r = 0; r < pack->rows; r++) {
        float *at = pack->out + r / MHAI_PANEL * MHAI_PANEL * pack->cols + r % MHAI_PANEL;
        for (int64_t c = 0; pack->bad[r] && c < pack->cols; c++)
            if (pack->whole || !element_finite(at[c * MHAI_PANEL])) at[c * MHAI_PANEL] = 0;
    }
}

ALWAYS_INLINE void pack_panels_as(mha_dtype type, const mhai_pack *pack)
{
    bool finite = true;
    for (int64_t row = 0; row < pack->rows; row += MHAI_PANEL)
        finite &= pack_panel(type, pack, row, pack->out + row * pack->cols);
    if (!pack->bad) return;
    memset(pack->bad, 0, (size_t)pack->rows);
    if (finite) return;
    find_bad_rows(type, pack);
    clear_bad_columns(pack);
}

/* Mark the keys of a panel that have non-finite elements. */
static void note_bad_columns(const mhai_pack *pack, int64_t row, const float *panel)
{
    vf sum[PANEL_VECTORS] = {vf_zero()};
    float zeros[MHAI_PANEL];
    UNROLL for (int j = 0; j < PANEL_VECTORS; j++) sum[j] = vf_zero();
    for (int64_t c = 0; c < pack->cols; c++)
        UNROLL for (int j = 0; j < PANEL_VECTORS; j++) sum[j] =
            vf_fma(vf_load(panel + c * MHAI_PANEL + j * VF_LANES), vf_zero(), sum[j]);
    UNROLL for (int j = 0; j < PANEL_VECTORS; j++) vf_store(zeros + j * VF_LANES, sum[j]);
    for (int64_t r = row; r < row + MHAI_PANEL && r < pack->rows; r++) {
        pack->bad[r] = zeros[r - row] != 0;
        if (pack->bad[r]) *pack->any_bad = true;
    }
}

static void pack_key_runs(const mhai_pack *pack)
{
    bool any = pack->bad && *pack->any_bad;
    if (pack->bad) *pack->any_bad = false;
    for (int64_t row = 0; row < pack->rows; row += MHAI_PANEL) {
        float *panel = pack->out + row * pack->cols;
        run_panel(pack->runs + row / MHAI_RUN, pack->rows - row, pack->cols, panel);
        if (pack->bad) note_bad_columns(pack, row, panel);
    }
    if (!pack->bad) return;
    if (*pack->any_bad) clear_bad_columns(pack);
    *pack->any_bad |= any;
}

static void pack_panels(const mhai_pack *pack)
{
    if (pack->runs) {
        pack_key_runs(pack);
        return;
    }
    BY_TYPE(pack->type, pack_panels_as, pack);
}

ALWAYS_INLINE void unpack_run(int run, const float *fours, vf scale, vf offset, float *out)
{
    for (int i = 0; i < run; i += 4, fours += MHAI_PANEL) {
        const vf four = vf_load(fours);
        UNROLL for (int k = 0; k < 4; k++, out += MHAI_PANEL)
            vf_store(out, vf_fma(vf_byte(four, k), scale, offset));
    }
}

ALWAYS_INLINE void unpack_runs(int run, const mha_coded *rows, int64_t column, int64_t columns,
                               float *panel)
{
    const float *fours = (const float *)(const void *)rows->number[column / 4];
    const vf unit = vf_set1(0x1p-24f);
    for (int64_t c = 0, i = column / run; c < columns; c += run, i++)
        for (int64_t r = 0; r < MHAI_PANEL; r += VF_LANES)
            unpack_run(run, fours + c / 4 * MHAI_PANEL + r,
                       vf_mul(vf_load(rows->scale[i] + r), unit), vf_load(rows->offset[i] + r),
                       panel + c * MHAI_PANEL + r);
}

static void pack_coded(const mha_coded *rows, int64_t column, int64_t columns, float *panel)
{
    if (rows->run == 16)
        unpack_runs(16, rows, column, columns, panel);
    else
        unpack_runs(32, rows, column, columns, panel);
}

/* Prefetch distance in rows. */
enum { VALUES_AHEAD = 16 };

/* The first n lanes times `scale`, which may be NaN; zeros in the others. */
ALWAYS_INLINE vf scaled(vf x, float scale, int64_t n)
{
    float lanes[VF_LANES];
    x = vf_mul(x, vf_set1(scale));
    if (n >= VF_LANES) return x;
    vf_store(lanes, x);
    return n > 0 ? vf_load_n(lanes, n) : vf_zero();
}

/* Pack `columns` columns of a row. If fewer are left, pad them with zeros. */
ALWAYS_INLINE void pack_value_row(mha_dtype type, const mhai_pack *pack, int64_t row, int64_t col,
                                  int columns, bool whole, vf finite[FINITE_SUMS])
{
    float *out = pack->out + (col * MHAI_KEY_BLOCK + row * MHAI_PANEL);
    UNROLL for (int j = 0; j < columns / VF_LANES; j++)
    {
        const int64_t at = col + j * VF_LANES, left = pack->cols - at;
        vf x = whole || left >= VF_LANES ? load_as(type, pack->in, row * pack->stride + at)
               : left > 0                ? load_n_as(type, pack->in, row * pack->stride + at, left)
                                         : vf_zero();
        if (type == MHA_I8) x = scaled(x, pack->scale[row], left);
        fetch_element(type, pack, row + VALUES_AHEAD, at);
        finite[j % FINITE_SUMS] = vf_fma(x, vf_zero(), finite[j % FINITE_SUMS]);
        vf_store(out + j * VF_LANES, x);
    }
}

/* Processes one row at a time, so that each row is read once and contiguously. */
ALWAYS_INLINE void pack_values_as(mha_dtype type, const mhai_pack *pack)
{
    const int64_t padding = (16 - pack->rows % 16) % 16, part = pack->cols % MHAI_PANEL;
    const int64_t whole = pack->cols - part;
    vf finite[FINITE_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int64_t r = 0; r < pack->rows; r++) {
        for (int64_t col = 0; col < whole; col += MHAI_PANEL)
            pack_value_row(type, pack, r, col, MHAI_PANEL, true, finite);
        if (part == HALF_PANEL && pack->half)
            pack_value_row(type, pack, r, whole, HALF_PANEL, true, finite);
        else if (part > 0)
            pack_value_row(type, pack, r, whole, MHAI_PANEL, false, finite);
    }
    for (int64_t col = 0; col < pack->cols; col += MHAI_PANEL)
        for (int64_t i = 0; i < padding * MHAI_PANEL; i += VF_LANES)
            vf_store(pack->out + col * MHAI_KEY_BLOCK + pack->rows * MHAI_PANEL + i, vf_zero());
    if (!pack->bad) return;
    memset(pack->bad, 0, (size_t)pack->rows);
    if (sums_are_zero(finite)) return;
    find_bad_rows(type, pack);
    for (int64_t r = 0; r < pack->rows; r++)
        for (int64_t c = 0; pack->bad[r] && c < pack->cols; c++) {
            float *at = pack->out + (c / MHAI_PANEL * MHAI_KEY_BLOCK + r) * MHAI_PANEL;
            if (!element_finite(at[c % MHAI_PANEL])) at[c % MHAI_PANEL] = 0;
        }
}

static void pack_value_runs(const mhai_pack *pack)
{
    mhai_pack part = *pack;
    part.stride = pack->cols;
    for (int64_t row = 0; row < pack->rows; row += MHAI_RUN) {
        const mhai_run *run = &pack->runs[row / MHAI_RUN];
        part.in = run->at;
        part.scale = run->scale;
        part.out = pack->out + row * MHAI_PANEL;
        part.rows = pack->rows - row < MHAI_RUN ? pack->rows - row : MHAI_RUN;
        part.bad = pack->bad ? pack->bad + row : NULL;
        BY_RUN_TYPE(run->type, pack_values_as, &part)
    }
}

static void pack_values(const mhai_pack *pack)
{
    if (pack->runs) {
        pack_value_runs(pack);
        return;
    }
    BY_TYPE(pack->type, pack_values_as, pack)
}

ALWAYS_INLINE const void *row_of(mha_dtype type, const void *in, int64_t first)
{
    return type == MHA_F32 ? (const void *)((const float *)in + first)
                           : (const void *)((const uint16_t *)in + first);
}

ALWAYS_INLINE void scale_row_as(mha_dtype type, float *out, const void *in, int64_t n, float factor,
                                bool *finite)
{
    vf sum = vf_zero();
    const vf by = vf_set1(factor);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = n - i < VF_LANES ? n - i : VF_LANES;
        vf x = load_n_as(type, in, i, lanes);
        sum = vf_fma(x, vf_zero(), sum);
        vf_store_n(out + i, lanes, vf_mul(x, by));
    }
    const vf part[16 / VF_LANES] = {sum};
    *finite = vf_sum16(part) == 0;
    if (!*finite) memset(out, 0, (size_t)n * sizeof *out);
}

static void scale_row(float *out, mha_dtype type, const void *in, int64_t n, float factor,
                      bool *finite){BY_TYPE(type, scale_row_as, out, in, n, factor, finite)}

/* Rows with non-finite elements are found and zeroed afterwards, in a second pass that runs only if
 * there are any. */
ALWAYS_INLINE void scale_rows_as(mha_dtype type, const mhai_pack *rows, float factor)
{
    bool finite;
    const int64_t n = rows->cols;
    const vf by = vf_set1(factor);
    vf sum = vf_zero();
    for (int64_t r = 0; r < rows->rows; r++)
        for (int64_t i = 0; i < n; i += VF_LANES) {
            const int64_t lanes = n - i < VF_LANES ? n - i : VF_LANES;
            const vf x = load_n_as(type, rows->in, r * rows->stride + i, lanes);
            sum = vf_fma(x, vf_zero(), sum);
            vf_store_n(rows->out + r * n + i, lanes, vf_mul(x, by));
        }
    const vf part[LANES16] = {sum};
    if (vf_sum16(part) == 0) return;
    for (int64_t r = 0; r < rows->rows; r++)
        scale_row_as(type, rows->out + r * n, row_of(type, rows->in, r * rows->stride), n, factor,
                     &finite);
}

static void scale_rows(const mhai_pack *rows, float factor)
{
    BY_TYPE(rows->type, scale_rows_as, rows, factor)
}
