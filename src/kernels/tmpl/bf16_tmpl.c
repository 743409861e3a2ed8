/* Attention in bf16 arithmetic (kernels.h; docs/numerics.md 15). If the processor multiplies pairs,
 * two neighbours along the inner dimension replace a float. Otherwise numbers are floats rounded to
 * bf16, with each pair swapped, because the instruction adds the odd product first. */

static const float bf16_least = 0x1p-50f, bf16_most = 0x1.FEp127f, bf16_limit = 0x1p59f;

/* Clamp before rounding to bf16, so that no result is subnormal or infinite. */
ALWAYS_INLINE vf bf16_range(vf x)
{
    const vf most = vf_set1(bf16_most), least = vf_set1(-bf16_most);
    return vf_zero_below(vf_abs(x), vf_set1(bf16_least), vf_max(vf_min(x, most), least));
}

ALWAYS_INLINE vf bf16_nearest(vf x)
{
    uint16_t half[VF_LANES];
    vf_store_bf16(half, x);
    return vf_load_bf16(half);
}

/* Whether all magnitudes are below the limit and no element is NaN. zero is a sum of x * 0, which
 * detects NaN. A maximum ignores NaN. */
ALWAYS_INLINE bool bf16_fits(vf max, vf zero)
{
    float sizes[VF_LANES], zeros[VF_LANES];
    bool fits = true;
    vf_store(sizes, max);
    vf_store(zeros, zero);
    for (int i = 0; i < VF_LANES; i++) fits = fits && sizes[i] < bf16_limit && zeros[i] == 0;
    return fits;
}

static void bf16_row(float *row, int64_t n, bool pairs, bool *fits)
{
    const int64_t whole = n / 2 * 2;
    vf max = vf_zero(), zero = vf_zero();
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const vf x = vf_load_n(row + i, lanes_at(i, n));
        max = vf_max(vf_abs(x), max);
        zero = vf_fma(x, vf_zero(), zero);
    }
    *fits = bf16_fits(max, zero);
    if (!*fits) memset(row, 0, (size_t)n * sizeof *row);
    const vf last = bf16_nearest(bf16_range(vf_set1(row[n - 1])));
    for (int64_t i = 0; i < n; i += VF_LANES) {
        const int64_t lanes = lanes_at(i, n);
        const vf x = bf16_range(vf_load_n(row + i, lanes));
        if (pairs)
            store_n_as(MHA_BF16, row, i, lanes, x);
        else
            vf_store_n(row + i, lanes, vf_swap(bf16_nearest(x)));
    }
    if (n == whole) return;
    if (pairs)
        memset((uint16_t *)(void *)row + n, 0, sizeof(uint16_t));
    else
        vf_store_n(row + whole, 1, last);
}

/* Panels of floats to convert to bf16 in place, for inner indices first ..
 * inner - 1. first is even. */
typedef struct bf16_panels {
    float *panels;
    int64_t columns, stride; /* total number of columns; floats between panels */
    int64_t first, inner;
    bool pairs;
    const mhai_pack *keys; /* keys with an element of 2^59 or more become 0; NULL: not requested */
} bf16_panels;

/* Convert VF_LANES columns of a panel. Returns the largest magnitude in each column, or NaN. */
ALWAYS_INLINE vf bf16_columns(const bf16_panels *x, float *panel)
{
    vf max = vf_zero(), zero = vf_zero(); /* zero detects NaN, which max ignores */
    for (int64_t i = x->first; i < x->inner; i += 2) {
        const bool both = i + 1 < x->inner;
        float *at = panel + i * MHAI_PANEL;
        vf even = vf_load(at), odd = both ? vf_load(at + MHAI_PANEL) : vf_zero();
        max = vf_max(vf_max(vf_abs(even), vf_abs(odd)), max);
        zero = vf_fma(odd, vf_zero(), vf_fma(even, vf_zero(), zero));
        even = bf16_range(even), odd = bf16_range(odd);
#ifdef HAS_PAIRS
        if (x->pairs) {
            vf_store(panel + i / 2 * MHAI_PANEL, vf_pair(even, odd));
            continue;
        }
#endif
        vf_store(at, bf16_nearest(both ? odd : even));
        if (both) vf_store(at + MHAI_PANEL, bf16_nearest(even));
    }
    return vf_add(max, zero);
}

static void bf16_convert(const bf16_panels *x)
{
    for (int64_t column = 0; column < x->columns; column += VF_LANES) {
        float *panel = x->panels + column / MHAI_PANEL * x->stride + column % MHAI_PANEL;
        float sizes[VF_LANES];
        vf_store(sizes, bf16_columns(x, panel));
        for (int j = 0; x->keys && j < VF_LANES && column + j < x->columns; j++) {
            if (sizes[j] < bf16_limit) continue;
            x->keys->bad[column + j] = 1;
            *x->keys->any_bad = true;
            for (int64_t i = 0; i < x->inner; i++) panel[i * MHAI_PANEL + j] = 0;
        }
    }
}

#ifdef HAS_PAIRS
/* Pack bf16 rows without conversion. Returns false if an element is out of range; the whole piece
 * must then be converted through floats. */
enum {
    PAIRS = 2 * VF_LANES,
    BF16_LEAST_BITS = 0x2680,
    BF16_LIMIT_BITS = 0x5D00,
    BF16_INFINITE_BITS = 0x7F80
};

/* Load the first `cols` columns of row r of the matrix at `at`; zeros if r >= rows. */
ALWAYS_INLINE vf stored_pairs(const uint16_t *at, int64_t stride, int r, int64_t rows, int64_t cols,
                              pair_sizes *sizes)
{
    if (r >= rows) return vf_zero();
    return load_pairs(at + r * stride, cols, sizes);
}

/* Transpose PAIRS elements of up to VF_LANES keys. */
ALWAYS_INLINE void stored_square(const uint16_t *at, int64_t stride, int64_t rows, int64_t cols,
                                 float *out, pair_sizes *sizes)
{
    float square[VF_LANES * VF_LANES];
    vf part[VF_LANES];
    UNROLL for (int r = 0; r < VF_LANES; r++) part[r] =
        stored_pairs(at, stride, r, rows, cols, sizes);
    if (cols >= PAIRS) {
        transpose(part, out, MHAI_PANEL);
        return;
    }
    transpose(part, square, VF_LANES);
    for (int64_t i = 0; i < (cols + 1) / 2; i++)
        vf_store(out + i * MHAI_PANEL, vf_load(square + i * VF_LANES));
}

/* The prefetch position, which runs ahead of packing in memory order (value_tmpl.c). It continues
 * after the last row, because the memory after it is often packed next. */
typedef struct line_cursor {
    const mhai_pack *pack;
    int64_t row, col;
} line_cursor;

ALWAYS_INLINE void touch_lines(line_cursor *next, int lines)
{
    const mhai_pack *pack = next->pack;
    const int64_t end = pack->cols > 0 ? pack->rows + VF_LANES : 0;
    for (int i = 0; i < lines && next->row < end; i++) {
        const int64_t at = (next->row * pack->stride + next->col) * (int64_t)sizeof(uint16_t);
        if (next->row < pack->rows)
            touch_and_fetch((const float *)(const void *)((const char *)pack->in + at), FAR);
        else
            fetch_l2((const void *)((uintptr_t)pack->in + (uintptr_t)at));
        next->col += PAIRS;
        if (next->col < next->pack->cols) continue;
        next->col = 0;
        next->row++;
    }
}

static bool stored_keys(const mhai_pack *pack)
{
    pair_sizes sizes = no_pairs();
    line_cursor next = {.pack = pack};
    touch_lines(&next, VF_LANES * (int)((pack->cols + PAIRS - 1) / PAIRS));
    for (int64_t row = 0; row < pack->rows; row += VF_LANES) {
        for (int64_t col = 0; col < pack->cols; col += PAIRS) {
            const uint16_t *at = (const uint16_t *)pack->in + row * pack->stride + col;
            const int64_t rows = pack->rows - row, cols = pack->cols - col;
            touch_lines(&next, VF_LANES);
            float *out = pack->out + row / MHAI_PANEL * MHAI_PANEL * pack->cols +
                         col / 2 * MHAI_PANEL + row % MHAI_PANEL;
            if (rows >= VF_LANES && cols >= PAIRS)
                stored_square(at, pack->stride, VF_LANES, PAIRS, out, &sizes);
            else
                stored_square(at, pack->stride, rows, cols < PAIRS ? cols : PAIRS, out, &sizes);
        }
    }
    return pairs_between(&sizes, BF16_LEAST_BITS, BF16_LIMIT_BITS);
}

ALWAYS_INLINE void stored_couple(const uint16_t *at, int64_t stride, int64_t rows, int64_t cols,
                                 float *out, pair_sizes *sizes)
{
    const vf even = stored_pairs(at, stride, 0, rows, cols, sizes);
    interleave(even, stored_pairs(at, stride, 1, rows, cols, sizes), out);
}

static bool stored_values(const mhai_pack *pack, int64_t first)
{
    const int64_t end = (pack->rows + 15) / 16 * 16;
    pair_sizes sizes = no_pairs();
    line_cursor next = {.pack = pack};
    touch_lines(&next, VF_LANES);
    for (int64_t row = 0; row < end; row += 2) {
        for (int64_t col = 0; col < pack->cols; col += PAIRS) {
            const uint16_t *at = (const uint16_t *)pack->in + row * pack->stride + col;
            const int64_t rows = pack->rows - row, cols = pack->cols - col;
            touch_lines(&next, 2);
            float *out = pack->out + col * MHAI_KEY_BLOCK + (first + row) / 2 * MHAI_PANEL;
            if (rows >= 2 && cols >= PAIRS)
                stored_couple(at, pack->stride, 2, PAIRS, out, &sizes);
            else
                stored_couple(at, pack->stride, rows, cols < PAIRS ? cols : PAIRS, out, &sizes);
        }
    }
    return pairs_between(&sizes, BF16_LEAST_BITS, BF16_INFINITE_BITS);
}
#endif

static void convert_keys(const mhai_pack *pack, bool pairs)
{
    bf16_convert(&(bf16_panels){.panels = pack->out,
                                .columns = pack->rows,
                                .stride = pack->cols * MHAI_PANEL,
                                .inner = pack->cols,
                                .pairs = pairs,
                                .keys = pack});
}

static void bf16_keys(const mhai_pack *pack, bool pairs)
{
#ifdef HAS_PAIRS
    if (pairs && !pack->runs && pack->type == MHA_BF16 && stored_keys(pack)) {
        memset(pack->bad, 0, (size_t)pack->rows);
        return;
    }
#endif
    pack_panels(pack);
    convert_keys(pack, pairs);
}

static void bf16_panel(const mhai_pack *pack, bool pairs)
{
    memset(pack->bad, 0, (size_t)pack->rows);
    convert_keys(pack, pairs);
}

static void bf16_values(const mhai_pack *pack, int64_t first, bool pairs)
{
    mhai_pack floats = *pack;
#ifdef HAS_PAIRS
    if (pairs && !pack->runs && pack->type == MHA_BF16 && stored_values(pack, first)) {
        memset(pack->bad, 0, (size_t)pack->rows);
        return;
    }
#endif
    floats.out += first * MHAI_PANEL;
    pack_values(&floats);
    bf16_convert(&(bf16_panels){.panels = pack->out,
                                .columns = pack->cols,
                                .stride = (int64_t)MHAI_KEY_BLOCK * MHAI_PANEL,
                                .first = first,
                                .inner = first + (pack->rows + 15) / 16 * 16,
                                .pairs = pairs});
}

/* ---- the tile -------------------------------------------------------------------------------- */

/* Offset of column j in floats, in a row of pairs or of floats. */
ALWAYS_INLINE int64_t pair_at(bool pairs, int64_t j)
{
    return pairs ? j / 2 : j;
}

static void bf16_score_panel(const mhai_tile *t, int key)
{
    const block_function scores = FOR_PAIRS(t->pairs, pair_scale_rows, block_scale_rows);
    float factor[MHAI_MAX_ROWS];
    for (int row = 0; row < t->rows; row++) factor[row] = t->factor;
    panel_product(scores, scores, t->rows,
                  &(block){.inner = pair_at(t->pairs, t->head_dim + t->pairs),
                           .a = t->q,
                           .a_stride = t->head_dim,
                           .b = t->k + key * t->head_dim,
                           .c = t->s + key,
                           .c_stride = MHAI_SCORE_STRIDE,
                           .scale = factor});
}

/* Load probabilities, which can underflow but not overflow. */
ALWAYS_INLINE vf load_weight(const float *p)
{
    const vf x = vf_load(p);
    return vf_zero_below(x, vf_set1(bf16_least), x);
}

/* Convert probabilities begin .. end to bf16; end is a multiple of 16. */
static void bf16_weights(float *s, int begin, int end, bool pairs)
{
#ifdef HAS_PAIRS
    if (pairs) {
        for (int j = begin; j < end; j += 2 * VF_LANES)
            store_pairs(s + j / 2, load_weight(s + j), load_weight(s + j + VF_LANES));
        return;
    }
#endif
    (void)pairs;
    for (int j = begin; j < end; j += VF_LANES)
        vf_store(s + j, vf_swap(bf16_nearest(load_weight(s + j))));
}

static float paired_weight(const float *s, int j)
{
    return mhai_bf16_to_f32(((const uint16_t *)(const void *)s)[j]);
}

static float swapped_weight(const float *s, int j)
{
    return s[j ^ 1];
}

static void bf16_forward(const mhai_tile *t)
{
    const int end = (t->end + 15) / 16 * 16;
    float alpha[MHAI_MAX_ROWS];
    softmax_from(t, masked_panels(t, bf16_score_panel), alpha);
    for (int row = 0; row < t->rows; row++)
        bf16_weights(score_row(t, row), t->begin, end, t->pairs);
    for (int64_t panel = 0; panel < t->value_panels; panel++)
        weigh_panel(FOR_PAIRS(t->pairs, pair_rescale_rows, block_rescale_rows),
                    FOR_PAIRS(t->pairs, half_pair_rescale_rows, half_rescale_rows), t, panel,
                    pair_at(t->pairs, t->begin), pair_at(t->pairs, end), alpha);
    for (int row = 0; t->mask && t->mask->poison && row < t->rows; row++)
        poison_values(t, row, t->pairs ? paired_weight : swapped_weight);
}
