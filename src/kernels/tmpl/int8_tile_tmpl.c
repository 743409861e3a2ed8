/* A strip of query rows against one key block, as in tile_fwd_tmpl.c, by products of small numbers.
 *
 * A row's scores are kept as t = (sum of small products) times the key's unit; a score, in units of
 * log2 e, is t times the query's unit plus what the keys' mean adds to all of them. Only where a
 * bias joins does a row hold scores themselves (but for the mean's part), and its unit is 1. Its
 * weights are those of the block alone, 255 for its largest score; what the block weighs against
 * others enters when its sums join o and l. */

static const float log2_e = 0x1.715476p+0f;
static const float int8_score_limit = 0x1p126f;

ALWAYS_INLINE float *score_row(const mhai_tile *t, int row)
{
    return t->s + row * MHAI_SCORE_STRIDE;
}

/* What a row is worth in this block. */
typedef struct int8_step {
    float top[MHAI_MAX_ROWS], unit[MHAI_MAX_ROWS], alpha[MHAI_MAX_ROWS], beta[MHAI_MAX_ROWS];
    bool poisoned[MHAI_MAX_ROWS];
} int8_step;

/* 2^x, 0 below -126, as vf_exp2 of math_tmpl.c but rounded after each operation. */
static vf int8_exp2(vf x)
{
    static const float coefficients[] = {0x1.3cea88p-7f, 0x1.c6b752p-5f, 0x1.ebf9bcp-3f,
                                         0x1.62e42ap-1f, 1.0f};
    vn n = vf_nearest(x);
    vf r = vf_sub(x, vf_whole(n)), p = vf_set1(0x1.5bba14p-10f);
    UNROLL for (int i = 0; i < 5; i++) p = vf_add(vf_mul(p, r), vf_set1(coefficients[i]));
    return vf_zero_below(x, vf_set1(-126.0f), vf_times_power(p, n));
}

/* ---- masks ----------------------------------------------------------------------------------- */

static void hide(float *s, int begin, int end)
{
    for (int j = begin; j < end; j++) s[j] = -__builtin_inff();
}

static void hide_dropped(const mhai_tile_mask *mask, int row, float *s)
{
    const uint8_t *keep = mask->keep[row];
    const int64_t stride = mask->keep_stride;
    const int begin = mask->begin[row], end = mask->end[row];
    if (stride == 1)
        for (int j = begin; j < end; j++) s[j] = keep[j] ? s[j] : -__builtin_inff();
    else
        for (int j = begin; j < end; j++) s[j] = keep[j * stride] ? s[j] : -__builtin_inff();
}

/* Scores with what is added to them. One that is not finite then makes the row NaN. */
static void add_terms(const mhai_tile_mask *mask, int row, float *s, int8_step *step)
{
    const void *bias = mask->bias[row];
    const float *relative = mask->relative[row];
    const float unit = step->unit[row];
    const int begin = mask->begin[row], end = mask->end[row];
    for (int j = begin; j < end; j++) {
        float x = s[j] * unit;
        if (bias) {
            float b = element_as(mask->bias_type, bias, j * mask->bias_stride);
            x = b == -__builtin_inff() ? b : x + b * log2_e;
        }
        s[j] = relative ? x + relative[j] * log2_e : x;
    }
    step->unit[row] = 1;
}

static bool clamp_scores(float *s, int begin, int end)
{
    bool all = true;
    for (int j = begin; j < end; j++) {
        bool fits = s[j] < int8_score_limit;
        all &= fits;
        s[j] = fits ? s[j] : int8_score_limit;
    }
    return all;
}

static void mask_row(const mhai_tile *t, int row, int8_step *step)
{
    const mhai_tile_mask *mask = t->mask;
    float *s = score_row(t, row);
    const bool terms = mask->bias[row] || mask->relative[row];
    if (terms) add_terms(mask, row, s, step);
    if (mask->keep[row]) hide_dropped(mask, row, s);
    hide(s, t->begin, mask->begin[row]);
    hide(s, mask->end[row], t->end);
    for (int i = 0; i + 1 < mask->runs; i++) hide(s, mask->run_end[i], mask->run_begin[i + 1]);
    if (terms) step->poisoned[row] |= !clamp_scores(s, t->begin, t->end);
}

/* What the row sees, noted; true if any of it is not finite. */
static bool poison_row(const mhai_tile *t, int row)
{
    const mhai_poison *poison = t->mask->poison;
    const float *s = score_row(t, row);
    bool poisoned = false;
    for (int j = t->begin; j < t->end; j++) {
        bool visible = s[j] != -__builtin_inff();
        poison->visible[row * MHAI_KEY_BLOCK + j] = visible;
        poisoned |= visible && (poison->bad_query[row] || poison->bad_key[j]);
    }
    return poisoned;
}

/* The values that are not finite, which the packed ones left out, whatever they weigh. */
static void poison_values(const mhai_tile *t, int row)
{
    const mhai_poison *poison = t->mask->poison;
    float *o = t->o + row * t->value_panels * MHAI_PANEL;
    for (int j = t->begin; j < t->end; j++) {
        if (!poison->bad_value[j] || !poison->visible[row * MHAI_KEY_BLOCK + j]) continue;
        for (int64_t d = 0; d < poison->value_dim; d++) {
            const float value = poison_value(poison, j, d);
            if (!(value * 0.0f == 0.0f)) o[d] += value;
        }
    }
}

/* ---- softmax --------------------------------------------------------------------------------- */

static float row_max(const float *s, int begin, int end)
{
    vf max[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) max[i] = vf_set1(-__builtin_inff());
    for (int j = begin; j < end; j += 16)
        UNROLL for (int i = 0; i < LANES16; i++) max[i] =
            vf_max(vf_load(s + j + i * VF_LANES), max[i]);
    return vf_max16(max);
}

/* x is 2^11 times a distance below the largest score: 255 2^(x / 2^11), rounded. With n the next
 * integer below and f the rest, 64 255 2^f by a polynomial of degree 2 in 15 bits (exact at 0,
 * within 0.21 % elsewhere), then 2^(n + 9) / 2^15 of that. */
ALWAYS_INLINE vs int8_weights(vs x)
{
    vs f = vs_and(vs_left4(x), vs_set1(0x7FF0));
    vs n = vs_right11(vs_add(x, vs_set1(9 << 11)));
    vs y = vs_add(vs_times(f, vs_set1(5385)), vs_set1(10868));
    y = vs_add(vs_times(f, y), vs_set1(16320));
    return vs_times(y, vs_power(n));
}

/* Weights of a row in place, bytes or halves in front of the scores they come from; returns their
 * sum. */
ALWAYS_INLINE int32_t weigh_row(float *s, int begin, int end, float top, float unit)
{
    const vf most = vf_set1(top), factor = vf_set1(unit * 2048.0f);
    weight *out = (weight *)(void *)s;
    vi sum = vi_zero();
    for (int j = begin; j < end; j += 4 * VF_LANES) {
        vi x[4];
        UNROLL for (int i = 0; i < 4; i++) x[i] =
            vf_int(vf_mul(vf_sub(vf_load(s + j + i * VF_LANES), most), factor));
        sum = store_weights(out + j, int8_weights(vs_of(x[0], x[1])),
                            int8_weights(vs_of(x[2], x[3])), sum);
    }
    return vi_total(sum);
}

/* What the mean of the keys adds to the row's scores: 16 lanes over d, then one tree. */
static float mean_score(const float *q, const float *mean, int64_t n)
{
    vf sum[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
    for (int64_t d = 0; d < n; d += 16) UNROLL for (int i = 0; i < LANES16; i++)
        {
            const int64_t at = d + i * VF_LANES;
            if (at >= n) continue;
            vf x = n - at < VF_LANES ? vf_load_n(q + at, n - at) : vf_load(q + at);
            sum[i] = vf_add(sum[i], vf_mul(x, vf_load(mean + at)));
        }
    return vf_sum16(sum);
}

static float limited(float x)
{
    return x < int8_score_limit ? (x > -int8_score_limit ? x : -int8_score_limit)
                                : int8_score_limit;
}

/* The factors of what came before and of this block, from the largest scores of both. */
static void join_factors(const mhai_tile *t, const mhai_int8_tile *x, int8_step *step)
{
    const float none = -__builtin_inff();
    for (int row = 0; row < MHAI_MAX_ROWS; row++) {
        step->alpha[row] = 0;
        step->beta[row] = none;
        if (row >= t->rows) continue;
        if (step->top[row] == none) { /* nothing seen: every weight becomes 0 */
            step->top[row] = 0;
            continue;
        }
        const float block =
            limited(step->top[row] * step->unit[row] +
                    limited(mean_score(t->q + row * t->head_dim, x->mean, t->head_dim)));
        const float old = t->m[row], m = block > old ? block : old;
        step->alpha[row] = old - m;
        step->beta[row] = block - m;
        t->m[row] = m;
    }
    for (int row = 0; row < MHAI_MAX_ROWS; row += VF_LANES) {
        vf_store(step->alpha + row, int8_exp2(vf_load(step->alpha + row)));
        vf_store(step->beta + row,
                 vf_mul(int8_exp2(vf_load(step->beta + row)), vf_set1(1.0f / 255.0f)));
    }
}

static void softmax_rows(const mhai_tile *t, const mhai_int8_tile *x, int begin, int end,
                         int8_step *step)
{
    for (int row = 0; row < t->rows; row++) {
        float *s = score_row(t, row);
        const bool fits = x->q_unit[row] == x->q_unit[row];
        step->unit[row] = fits ? x->q_unit[row] : 1.0f;
        step->poisoned[row] = false;
        if (t->mask) mask_row(t, row, step);
        hide(s, begin, t->begin);
        hide(s, t->end, end);
        if (t->mask && t->mask->poison) step->poisoned[row] |= poison_row(t, row);
        step->top[row] = row_max(s, begin, end);
        step->poisoned[row] |= !fits && step->top[row] != -__builtin_inff();
    }
    join_factors(t, x, step);
    for (int row = 0; row < t->rows; row++) {
        const int32_t sum =
            weigh_row(score_row(t, row), begin, end, step->top[row], step->unit[row]);
        t->l[row] = t->l[row] * step->alpha[row] + (float)sum * step->beta[row];
        if (step->poisoned[row]) t->l[row] = __builtin_nanf("");
    }
}

/* ---- the tile -------------------------------------------------------------------------------- */

/* A strip may be higher than this instruction set's register block. */
static void int8_panel(void (*blocks)(int, const int8_block *), int rows, const int8_block *whole,
                       int64_t a_stride)
{
    for (int row = 0; row < rows; row += BLOCK_ROWS) {
        int8_block t = *whole;
        t.a += row * a_stride;
        t.c += row * t.c_stride;
        if (t.start) t.start += row;
        if (t.alpha) t.alpha += row, t.beta += row;
        for (int column = 0; column < MHAI_PANEL; column += BLOCK_COLS) {
            blocks(rows - row < BLOCK_ROWS ? rows - row : BLOCK_ROWS, &t);
            t.b += BLOCK_COLS;
            t.c += BLOCK_COLS;
            t.unit += BLOCK_COLS;
        }
    }
}

static void int8_forward(const mhai_tile *t, const mhai_int8_tile *x)
{
    const int begin = t->begin / INT8_GRAIN * INT8_GRAIN;
    const int end = (t->end + INT8_GRAIN - 1) / INT8_GRAIN * INT8_GRAIN;
    const int64_t dwords = (t->head_dim + GROUP - 1) / GROUP;
    int8_step step;
    for (int key = begin; key < end; key += MHAI_PANEL)
        int8_panel(int8_scores, t->rows,
                   &(int8_block){.inner = dwords,
                                 .a = x->q,
                                 .b = x->k + key * dwords,
                                 .c = t->s + key,
                                 .c_stride = MHAI_SCORE_STRIDE,
                                 .unit = x->k_unit + key,
                                 .start = x->q_start},
                   ROW_STRIDE);
    softmax_rows(t, x, begin, end, &step);
    for (int64_t panel = 0; panel < t->value_panels; panel++)
        int8_panel(int8_weighted, t->rows,
                   &(int8_block){.inner = (end - begin) / GROUP,
                                 .a = (const int32_t *)(const void *)t->s + begin / GROUP,
                                 .b = x->v + (panel * MHAI_KEY_BLOCK + begin) / GROUP * MHAI_PANEL,
                                 .c = t->o + panel * MHAI_PANEL,
                                 .c_stride = t->value_panels * MHAI_PANEL,
                                 .unit = x->v_unit + panel * MHAI_PANEL,
                                 .alpha = step.alpha,
                                 .beta = step.beta},
                   MHAI_SCORE_STRIDE);
    for (int row = 0; t->mask && t->mask->poison && row < t->rows; row++) poison_values(t, row);
}
