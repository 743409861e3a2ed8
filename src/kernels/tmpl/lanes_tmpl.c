/* Few keys per head: 16 lanes at once, each with a few queries. The contract is in kernels.h.
 * Results are bit-identical to tile_forward and finish_row: each score is the same chain over the
 * head size, and the sum of probabilities the same tree over the positions of keys. */

/* Rows and keys whose chains run at once, and rows and vectors of the outputs. */
enum { LANE_ROWS = VF_LANES == 8 ? 2 : 4, LANE_KEYS = 4, OUT_ROWS = 2, OUT_VECTORS = 4 };

/* Transpose a row of each lane: out[i][lane] for i < dim, with `step` floats per i. */
ALWAYS_INLINE void turn_lanes(const float *const at[16], int64_t offset, int64_t dim, vf factor,
                              float *out, int64_t step, vf finite[FINITE_SUMS])
{
    float square[VF_LANES * VF_LANES];
    for (int64_t i = 0; i < dim; i += VF_LANES) {
        const int64_t left = lanes_at(i, dim);
        for (int lane = 0; lane < 16; lane += VF_LANES) {
            vf rows[VF_LANES];
            UNROLL for (int r = 0; r < VF_LANES; r++)
            {
                rows[r] = vf_load_n(at[lane + r] + offset + i, left);
                finite[r % FINITE_SUMS] = vf_fma(rows[r], vf_zero(), finite[r % FINITE_SUMS]);
                rows[r] = vf_mul(rows[r], factor);
            }
            float *to = out + i * step + lane;
            transpose(rows, left < VF_LANES ? square : to, left < VF_LANES ? VF_LANES : step);
            for (int64_t c = 0; left < VF_LANES && c < left; c++)
                vf_store(to + c * step, vf_load(square + c * VF_LANES));
        }
    }
}

/* s[row][key][lane] = q k of VF_LANES lanes. q [row][dim][16], k [dim][step], s [row][16][16]. */
ALWAYS_INLINE void lane_scores(int rows, int keys, int64_t dim, const float *q, const float *k,
                               int64_t step, float *s)
{
    vf sum[LANE_ROWS][LANE_KEYS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < keys; j++) sum[r][j] =
        vf_zero();
    for (int64_t i = 0; i < dim; i++, k += step) {
        vf column[LANE_KEYS];
        UNROLL for (int j = 0; j < keys; j++) column[j] = vf_load(k + j * 16);
        UNROLL for (int r = 0; r < rows; r++)
        {
            const vf row = vf_load(q + (r * dim + i) * 16);
            UNROLL for (int j = 0; j < keys; j++) sum[r][j] = vf_fma(row, column[j], sum[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < keys; j++)
        vf_store(s + (r * 16 + j) * 16, sum[r][j]);
}

/* The same for all keys. */
ALWAYS_INLINE void key_scores(int rows, int keys, int64_t dim, const float *q, const float *k,
                              int64_t step, float *s)
{
    int j = 0;
    for (; j + 4 <= keys; j += 4) lane_scores(rows, 4, dim, q, k + j * 16, step, s + j * 16);
    for (; j + 2 <= keys; j += 2) lane_scores(rows, 2, dim, q, k + j * 16, step, s + j * 16);
    for (; j < keys; j++) lane_scores(rows, 1, dim, q, k + j * 16, step, s + j * 16);
}

/* The same for all rows. */
static void all_scores(const mhai_lanes *x, const float *q, const float *k, float *s)
{
    const int64_t dim = x->head_dim, step = 16 * x->keys;
    int r = 0;
    for (; r + LANE_ROWS <= x->rows; r += LANE_ROWS)
        key_scores(LANE_ROWS, x->keys, dim, q + r * dim * 16, k, step, s + r * 16 * 16);
    for (; r < x->rows; r++)
        key_scores(1, x->keys, dim, q + r * dim * 16, k, step, s + r * 16 * 16);
}

/* Softmax of VF_LANES lanes: s[key][lane] becomes p. */
ALWAYS_INLINE void lane_softmax(int keys, const float *ends, float *s, float *m, float *l)
{
    const vf none = vf_set1(-__builtin_inff()), least = vf_set1(-0x1.fffffep127f);
    const vf end = vf_load(ends);
    vf max = none, sum[16];
    for (int key = 0; key < keys; key++) {
        const vf x = vf_where_below(vf_set1((float)key), end, vf_load(s + key * 16), none);
        vf_store(s + key * 16, x);
        max = vf_max(x, max);
    }
    vf_store(m, max);
    max = vf_where_below(max, least, vf_zero(), max); /* no key: every p is 2^-inf = 0 */
    UNROLL for (int key = 0; key < 16; key++) sum[key] = vf_zero();
    for (int key = 0; key < keys; key++) {
        sum[key] = vf_exp2(vf_sub(vf_load(s + key * 16), max));
        vf_store(s + key * 16, sum[key]);
    }
    for (int half = 8; half > 0; half /= 2)
        for (int key = 0; key < half; key++) sum[key] = vf_add(sum[key], sum[key + half]);
    vf_store(l, sum[0]);
}

/* Some columns of output rows: the sums of p v over `keys` keys, divided by the rows' sums. */
ALWAYS_INLINE void lane_output(int rows, int vectors, int64_t left, const mhai_lanes *x, int lane,
                               int row, int keys, const float *p, int64_t column, vf *finite)
{
    const float *v = x->v[lane] + column;
    vf sum[OUT_ROWS][OUT_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_zero();
    for (int key = 0; key < keys; key++, v += x->v_row) UNROLL for (int j = 0; j < vectors; j++)
        {
            const vf value = vf_load_n(v + j * VF_LANES, left);
            UNROLL for (int r = 0; r < rows; r++) sum[r][j] =
                vf_fma(vf_load1(p + (r * 16 + key) * 16), value, sum[r][j]);
        }
    UNROLL for (int r = 0; r < rows; r++)
    {
        const float l = x->l[(row + r) * 16 + lane];
        const vf divisor = vf_set1(l == 0 ? 1.0f : l);
        UNROLL for (int j = 0; j < vectors; j++)
        {
            const vf o = vf_add(vf_div(sum[r][j], divisor), vf_zero()); /* like finish_row */
            *finite = vf_fma(o, vf_zero(), *finite);
            vf_store_n(x->o[lane] + (row + r) * x->o_row + column + j * VF_LANES, left, o);
        }
    }
}

/* Keys that no row sees are skipped; p of other hidden keys is 0. */
ALWAYS_INLINE void lane_outputs(int rows, const mhai_lanes *x, int lane, int row, const float *p,
                                vf *finite)
{
    enum { WIDE = OUT_VECTORS * VF_LANES };
    float end = 0;
    for (int r = 0; r < rows; r++)
        end = x->ends[row + r][lane] > end ? x->ends[row + r][lane] : end;
    int64_t i = 0;
    for (; i + WIDE <= x->value_dim; i += WIDE)
        lane_output(rows, OUT_VECTORS, VF_LANES, x, lane, row, (int)end, p, i, finite);
    for (; i < x->value_dim; i += VF_LANES)
        lane_output(rows, 1, lanes_at(i, x->value_dim), x, lane, row, (int)end, p, i, finite);
}

static void lanes_forward(const mhai_lanes *x, bool *done)
{
    const int64_t dim = x->head_dim, step = 16 * x->keys;
    float *q = x->turned, *k = x->turned + x->rows * dim * 16;
    float s[MHAI_LANE_ROWS * 16 * 16];
    vf finite[FINITE_SUMS] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    for (int row = 0; row < x->rows; row++)
        turn_lanes(x->q, row * x->q_row, dim, vf_set1(x->factor), q + row * dim * 16, 16, finite);
    for (int key = 0; key < x->keys; key++)
        turn_lanes(x->k, key * x->k_row, dim, vf_set1(1), k + key * 16, step, finite);
    *done = sums_are_zero(finite);
    if (!*done) return;
    for (int lane = 0; lane < 16; lane += VF_LANES) {
        all_scores(x, q + lane, k + lane, s + lane);
        for (int row = 0; row < x->rows; row++)
            lane_softmax(x->keys, x->ends[row] + lane, s + row * 16 * 16 + lane,
                         x->m + row * 16 + lane, x->l + row * 16 + lane);
    }
    for (int lane = 0; lane < x->lanes; lane++) {
        vf *sum = &finite[lane % FINITE_SUMS];
        int row = 0;
        for (; row + OUT_ROWS <= x->rows; row += OUT_ROWS)
            lane_outputs(OUT_ROWS, x, lane, row, s + row * 16 * 16 + lane, sum);
        for (; row < x->rows; row++) lane_outputs(1, x, lane, row, s + row * 16 * 16 + lane, sum);
    }
    *done = sums_are_zero(finite);
}
