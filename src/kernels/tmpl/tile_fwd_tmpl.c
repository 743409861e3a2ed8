/* A strip of query rows against one key block: scores -> mask -> softmax step -> weighted sum.
 * The contract is in kernels.h. Scores and probabilities share the strip s, which stays in L1. */

static const float log2_e = 0x1.715476p+0f;

ALWAYS_INLINE float *score_row(const mhai_tile *t, int row)
{
    return t->s + row * MHAI_SCORE_STRIDE;
}

/* S = Q K^T by whole panels. For a last panel with few keys, only the first half is computed. */
static void score_panels(const mhai_tile *t, int begin, int end)
{
    const bool whole_blocks = (int)HALF_VECTORS == (int)TILE_VECTORS;
    const block_function half = whole_blocks ? block_store_rows : half_store_rows;
    for (int key = begin; key < end; key += MHAI_PANEL) {
        block b = {.inner = t->head_dim,
                   .a = t->q,
                   .a_stride = t->head_dim,
                   .b = t->k + key * t->head_dim,
                   .c = t->s + key,
                   .c_stride = MHAI_SCORE_STRIDE};
        if (t->end - key <= HALF_PANEL)
            half_product(half, t->rows, &b);
        else
            panel_product(block_store_rows, block_store_rows, t->rows, &b);
    }
}

/* Add relative positions on keys: the row's products with the table, whose index is clipped. */
static void add_shaw(const mhai_tile_mask *mask, int row, float *s, int begin, int end)
{
    const float *table = mask->shaw[row];
    int64_t center = mask->shaw_center[row], last = mask->shaw_last;
    for (int j = begin; j < end; j++) {
        int64_t i = center + j;
        s[j] += table[i < 0 ? 0 : i > last ? last : i];
    }
}

/* softcap tanh(s / softcap), in log2 units. */
static void cap_scores(float *s, float softcap, int begin, int end)
{
    const vf inverse = vf_set1(1.0f / softcap), cap = vf_set1(softcap * log2_e);
    for (int j = begin; j < end; j += VF_LANES)
        vf_store(s + j, vf_mul(cap, vf_tanh(vf_mul(vf_load(s + j), inverse))));
}

static void add_relative(float *s, const float *relative, int begin, int end)
{
    for (int j = begin; j < end; j++) s[j] = scalar_fma(relative[j], log2_e, s[j]);
}

/* Add a bias. A bias of -inf drops the key even if its score is infinite, so it is selected, not
 * added. */
static void add_bias(float *s, const float *bias, int64_t stride, int begin, int end)
{
    for (int j = begin; j < end; j++) {
        float b = bias[j * stride];
        s[j] = b == -__builtin_inff() ? b : scalar_fma(b, log2_e, s[j]);
    }
}

static void drop_keys(float *s, const uint8_t *keep, int64_t stride, int begin, int end)
{
    for (int j = begin; j < end; j++) s[j] = keep[j * stride] ? s[j] : -__builtin_inff();
}

static void widen_bias(mha_dtype type, const void *bias, int64_t stride, int begin, int end,
                       float *out)
{
    int j = begin;
    for (; stride == 1 && j + VF_LANES <= end; j += VF_LANES)
        vf_store(out + j, type == MHA_F16 ? load_as(MHA_F16, bias, j) : load_as(MHA_BF16, bias, j));
    for (; j < end; j++) out[j] = element_as(type, bias, j * stride);
}

/* A constant stride of 1 lets the compiler vectorise the usual case. */
static void add_bias_row(const mhai_tile_mask *mask, int row, float *s, int begin, int end)
{
    float wide[MHAI_KEY_BLOCK];
    const float *bias = mask->bias[row];
    int64_t stride = mask->bias_stride;
    if (mask->bias_type != MHA_F32) {
        widen_bias(mask->bias_type, bias, stride, begin, end, wide);
        bias = wide;
        stride = 1;
    }
    if (stride == 1)
        add_bias(s, bias, 1, begin, end);
    else
        add_bias(s, bias, stride, begin, end);
}

static void drop_keys_row(const mhai_tile_mask *mask, int row, float *s, int begin, int end)
{
    if (mask->keep_stride == 1)
        drop_keys(s, mask->keep[row], 1, begin, end);
    else
        drop_keys(s, mask->keep[row], mask->keep_stride, begin, end);
}

static void hide(float *s, int begin, int end)
{
    for (int j = begin; j < end; j++) s[j] = -__builtin_inff();
}

/* Mask a row, except gaps between runs. Bias and bytes are applied to keys >= from. The cap works
 * on whole vectors; numbers outside the interval are overwritten later. */
static void mask_interval(const mhai_tile *t, int row, int from)
{
    const mhai_tile_mask *mask = t->mask;
    float *s = score_row(t, row);
    int begin = mask->begin[row], end = mask->end[row];
    if (from < begin) from = begin;
    if (mask->shaw[row]) add_shaw(mask, row, s, begin, end);
    if (mask->softcap > 0) cap_scores(s, mask->softcap, t->begin, (t->end + 15) / 16 * 16);
    if (mask->bias[row]) add_bias_row(mask, row, s, from, end);
    if (mask->relative[row]) add_relative(s, mask->relative[row], begin, end);
    if (mask->keep[row]) drop_keys_row(mask, row, s, from, end);
    hide(s, t->begin, begin);
    hide(s, end, t->end);
}

static void mask_row(const mhai_tile *t, int row, int from)
{
    const mhai_tile_mask *mask = t->mask;
    mask_interval(t, row, from);
    for (int i = 0; i + 1 < mask->runs; i++)
        hide(score_row(t, row), mask->run_end[i], mask->run_begin[i + 1]);
}

/* ---- dense masks, a panel at a time: right after its products, while its scores are in L1 ---- */

/* Prefetch the next row of a mask, which hardware prefetchers do not find because rows are far
 * apart. The data arrives while the panel's scores are computed. (Always inlined, because gcc
 * removes calls to functions that only prefetch.) */
ALWAYS_INLINE void fetch_dense(const mhai_tile *t, int key)
{
    const mhai_tile_mask *mask = t->mask;
    const int64_t size = mask->bias_type == MHA_F32 ? 4 : 2, line = LINE * (int64_t)sizeof(float);
    for (int row = 0; row < t->rows; row++) {
        const char *bias = (const char *)mask->bias[row];
        for (int64_t i = 0; bias && i < MHAI_PANEL * size; i += line) fetch(bias + key * size + i);
        if (mask->keep[row]) fetch(mask->keep[row] + key);
    }
}

/* add_bias and drop_keys for a panel. */
ALWAYS_INLINE void mask_panel_as(mha_dtype type, const mhai_tile *t, int key)
{
    const vf none = vf_set1(-__builtin_inff()), least = vf_set1(-0x1.fffffep127f);
    const vf unit = vf_set1(log2_e);
    for (int row = 0; row < t->rows; row++) {
        const void *bias = t->mask->bias[row];
        const uint8_t *keep = t->mask->keep[row];
        float *s = score_row(t, row) + key;
        UNROLL for (int j = 0; j < MHAI_PANEL; j += VF_LANES)
        {
            vf x = vf_load(s + j);
            if (bias) {
                vf b = load_as(type, bias, key + j);
                x = vf_where_below(b, least, none, vf_fma(b, unit, x));
            }
            if (keep) x = vf_where_kept(keep + key + j, x, none);
            vf_store(s + j, x);
        }
    }
}

static void mask_panel(const mhai_tile *t, int key)
{
    BY_TYPE(t->mask->bias_type, mask_panel_as, t, key)
}

/* Whether the mask has a bias or bytes with contiguous keys, and no terms before them. */
static bool dense_mask(const mhai_tile_mask *mask)
{
    if (!mask || mask->shaw[0] || mask->softcap > 0 || mask->relative[0]) return false;
    if (mask->bias[0] && mask->bias_stride != 1) return false;
    if (mask->keep[0] && mask->keep_stride != 1) return false;
    return mask->bias[0] || mask->keep[0];
}

/* Compute the products of a panel, and prefetch rows that the next tiles read. */
static void score_fetching(const mhai_tile *t, int key, mhai_fetch *f)
{
    struct mhai_fetch_run *run = &f->runs[f->run];
    const int64_t lines = (t->head_dim + LINE - 1) / LINE;
    panel_product(f->l2 ? block_fetch_l2_rows : block_fetch_rows, block_store_rows, t->rows,
                  &(block){.inner = t->head_dim,
                           .a = t->q,
                           .a_stride = t->head_dim,
                           .b = t->k + key * t->head_dim,
                           .c = t->s + key,
                           .c_stride = MHAI_SCORE_STRIDE,
                           .fetching = 1,
                           .next = run->at,
                           .next_lines = lines,
                           .next_gap = run->stride - lines * LINE});
    run->at += mhai_fetched_rows(t->head_dim) * run->stride;
    run->rows -= mhai_fetched_rows(t->head_dim);
    while (f->run < MHAI_FETCH_RUNS && f->runs[f->run].rows <= 0) f->run++;
}

static void score_packed(const mhai_tile *t, int key)
{
    if (t->fetch && t->fetch->run < MHAI_FETCH_RUNS && t->end - key > HALF_PANEL)
        score_fetching(t, key, t->fetch);
    else
        score_panels(t, key, key + 1);
}

/* Compute scores panel by panel. Returns the key up to which bias and bytes are already applied. */
ALWAYS_INLINE int masked_panels(const mhai_tile *t, void (*scores)(const mhai_tile *, int))
{
    const bool dense = dense_mask(t->mask);
    int from = t->begin;
    for (int key = t->begin; key < t->end; key += MHAI_PANEL) {
        const bool whole = dense && key + MHAI_PANEL <= t->end;
        if (whole) fetch_dense(t, key);
        scores(t, key);
        if (!whole) continue;
        mask_panel(t, key);
        from = key + MHAI_PANEL;
    }
    return from;
}

static int masked_scores(const mhai_tile *t)
{
    return masked_panels(t, score_packed);
}

/* Set scores of visible keys to NaN if the key or the query is not finite. Packed data is finite,
 * so a score of -inf always means "not visible". */
static void poison_row(const mhai_tile *t, int row)
{
    const mhai_poison *poison = t->mask->poison;
    float *s = score_row(t, row);
    for (int j = t->begin; j < t->end; j++) {
        bool visible = s[j] != -__builtin_inff();
        poison->visible[row * MHAI_KEY_BLOCK + j] = visible;
        if (visible && (poison->bad_query[row] || poison->bad_key[j])) s[j] = __builtin_nanf("");
    }
}

static float float_weight(const float *s, int j)
{
    return s[j];
}

/* Add the products with non-finite elements of values, which are 0 in the packed values. */
ALWAYS_INLINE void poison_values(const mhai_tile *t, int row, float (*weight)(const float *, int))
{
    const mhai_poison *poison = t->mask->poison;
    float *o = t->o + row * t->value_panels * MHAI_PANEL;
    for (int j = t->begin; j < t->end; j++) {
        if (!poison->bad_value[j] || !poison->visible[row * MHAI_KEY_BLOCK + j]) continue;
        for (int64_t d = 0; d < poison->value_dim; d++) {
            const float value = poison_value(poison, j, d);
            if (!element_finite(value)) o[d] += weight(score_row(t, row), j) * value;
        }
    }
}

/* Number of chains, because a maximum has a latency of four cycles on some processors. */
enum { MAX_VECTORS = LANES16 > 4 ? LANES16 : 4 };

ALWAYS_INLINE void max_start(vf max[MAX_VECTORS])
{
    UNROLL for (int i = 0; i < MAX_VECTORS; i++) max[i] = vf_set1(-__builtin_inff());
}

ALWAYS_INLINE void max_some(int count, const float *s, vf max[MAX_VECTORS])
{
    UNROLL for (int i = 0; i < count; i++) max[i] = vf_max(vf_load(s + i * VF_LANES), max[i]);
}

ALWAYS_INLINE void max_lanes(const float *s, int begin, int end, vf max[MAX_VECTORS])
{
    enum { STEP = MAX_VECTORS * VF_LANES };
    int j = begin;
    for (; j + STEP <= end; j += STEP) max_some(MAX_VECTORS, s + j, max);
    for (; j < end; j += 16) max_some(LANES16, s + j, max);
}

ALWAYS_INLINE float max_end(vf max[MAX_VECTORS])
{
    UNROLL for (int i = MAX_VECTORS - 1; i >= LANES16; i--) max[i - LANES16] =
        vf_max(max[i], max[i - LANES16]);
    return vf_max16(max);
}

static float row_max(const float *s, int begin, int end)
{
    vf max[MAX_VECTORS];
    max_start(max);
    max_lanes(s, begin, end, max);
    return max_end(max);
}

/* p = 2^(s - m) in place. Returns the sum: 16 lanes by key position, then the fixed tree. */
ALWAYS_INLINE void exp_some(int count, float *s, vf top, vf sum[LANES16])
{
    vf p[EXP2_VECTORS];
    UNROLL for (int i = 0; i < count; i++) p[i] = vf_sub(vf_load(s + i * VF_LANES), top);
    exp2_vectors(count, p);
    UNROLL for (int i = 0; i < count; i++) vf_store(s + i * VF_LANES, p[i]);
    UNROLL for (int i = 0; i < count; i++) sum[i % LANES16] = vf_add(sum[i % LANES16], p[i]);
}

/* Positions from the end up to the next multiple of 16 must be hidden. */
ALWAYS_INLINE void exp_lanes(float *s, int begin, int end, float m, vf sum[LANES16])
{
    enum { STEP = EXP2_VECTORS * VF_LANES };
    const vf top = vf_set1(m);
    int j = begin;
    for (; j + STEP <= end; j += STEP) exp_some(EXP2_VECTORS, s + j, top, sum);
    for (; j < end; j += 16) exp_some(LANES16, s + j, top, sum);
}

static float row_exp(float *s, int begin, int end, float m)
{
    vf sum[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
    exp_lanes(s, begin, end, m, sum);
    return vf_sum16(sum);
}

/* Mask the scores of a row, starting at `from`, and hide the columns that pad the last 16 lanes.
 * Returns the padded end. */
static int prepare_row(const mhai_tile *t, int row, int from)
{
    int end = (t->end + 15) / 16 * 16;
    if (t->mask) mask_row(t, row, from);
    if (t->mask && t->mask->poison) poison_row(t, row);
    for (int j = t->end; j < end; j++) score_row(t, row)[j] = -__builtin_inff();
    return end;
}

/* Four probabilities share a counter; begin is a multiple of 32. */
static void drop_row(const mhai_tile *t, int row)
{
    const mhai_dropout *d = t->dropout;
    float *s = score_row(t, row);
    for (int j = t->begin; j < t->end; j += 4) {
        uint32_t word[4];
        mhai_dropout_words(word, d->seed, d->batch, d->head[row], d->query[row], (d->key + j) / 4);
        for (int i = 0; i < 4; i++) s[j + i] = word[i] < d->threshold ? 0.0f : s[j + i] * d->scale;
    }
}

/* Intervals of computed panels: the runs of the mask, or the whole tile. */
typedef struct tile_runs {
    int count;
    const int *begin, *end;
} tile_runs;

ALWAYS_INLINE float runs_max(const float *s, const tile_runs *runs)
{
    vf max[MAX_VECTORS];
    max_start(max);
    for (int run = 0; run < runs->count; run++) max_lanes(s, runs->begin[run], runs->end[run], max);
    return max_end(max);
}

/* p = 2^(s - top) in place; the 16 sums continue from run to run. */
ALWAYS_INLINE void runs_exp(float *s, const tile_runs *runs, float top, vf sums[LANES16])
{
    vf sum[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
    for (int run = 0; run < runs->count; run++)
        exp_lanes(s, runs->begin[run], runs->end[run], top, sum);
    UNROLL for (int i = 0; i < LANES16; i++) sums[i] = sum[i];
}

/* A step of online softmax on masked scores. alpha receives the factor of each row's earlier sums.
 * Maxima and sums are separate passes over the rows, so that the processor overlaps the chains of
 * successive rows. In a single pass, those chains would take a third of the time. */
static void softmax_rows(const mhai_tile *t, const tile_runs *runs, float alpha[MHAI_MAX_ROWS])
{
    vf sums[TILE_ROWS][LANES16];
    float top[MHAI_MAX_ROWS];
    for (int row = 0; row < t->rows; row++) top[row] = runs_max(score_row(t, row), runs);
    for (int row = 0; row < MHAI_MAX_ROWS; row++) {
        if (row >= t->rows) {
            top[row] = alpha[row] = 0;
            continue;
        }
        float old = t->m[row], m = top[row] > old ? top[row] : old;
        t->m[row] = m;
        top[row] = m == -__builtin_inff() ? 0.0f : m; /* no key yet: every p is 2^-inf = 0 */
        alpha[row] = old - top[row];
    }
    for (int row = 0; row < MHAI_MAX_ROWS; row += VF_LANES)
        vf_store(alpha + row, vf_exp2(vf_load(alpha + row)));
    for (int row = 0; row < t->rows; row++) runs_exp(score_row(t, row), runs, top[row], sums[row]);
    for (int row = 0; row < t->rows; row++)
        t->l[row] = scalar_fma(t->l[row], alpha[row], vf_sum16(sums[row]));
}

/* Mask, softmax and dropout of the whole tile. */
static void softmax_from(const mhai_tile *t, int from, float alpha[MHAI_MAX_ROWS])
{
    int end = t->end;
    for (int row = 0; row < t->rows; row++) end = prepare_row(t, row, from);
    for (int row = 0; t->scores && row < t->rows; row++)
        memcpy(t->scores + row * MHAI_SCORE_STRIDE + t->begin, score_row(t, row) + t->begin,
               (size_t)(t->end - t->begin) * sizeof(float));
    softmax_rows(t, &(tile_runs){.count = 1, .begin = &t->begin, .end = &end}, alpha);
    for (int row = 0; t->dropout && row < t->rows; row++) drop_row(t, row);
}

static void softmax_step(const mhai_tile *t, float alpha[MHAI_MAX_ROWS])
{
    softmax_from(t, t->begin, alpha);
}

/* ---- a tile with gaps between runs, which are neither computed nor read ---------------------- */

/* O = alpha O + P V, a panel of values at a time. */
static void weigh_runs(const mhai_tile *t, const float *alpha)
{
    const mhai_tile_mask *mask = t->mask;
    const int64_t cols = t->value_panels * MHAI_PANEL;
    for (int64_t panel = 0; panel < t->value_panels; panel++) {
        float sums[TILE_ROWS * MHAI_PANEL];
        memset(sums, 0, (size_t)(t->rows * MHAI_PANEL) * sizeof *sums);
        for (int run = 0; run < mask->runs; run++) {
            const int key = mask->run_begin[run];
            value_rows part = {.keys = mask->run_end[run] - key,
                               .p = t->s + key,
                               .p_stride = MHAI_SCORE_STRIDE,
                               .v = t->v + (panel * MHAI_KEY_BLOCK + key) * MHAI_PANEL,
                               .v_stride = MHAI_PANEL,
                               .o_stride = MHAI_PANEL};
            for (int column = 0; column < MHAI_PANEL; column += BLOCK_COLS) {
                part.o = sums + column;
                value_strip(value_packed, value_packed, t->rows, &part);
                part.v += BLOCK_COLS;
            }
        }
        join_rows(t->rows, MHAI_PANEL, sums, MHAI_PANEL, alpha, t->o + panel * MHAI_PANEL, cols);
    }
}

static void forward_runs(const mhai_tile *t)
{
    const mhai_tile_mask *mask = t->mask;
    const int last = mask->run_end[mask->runs - 1];
    float alpha[MHAI_MAX_ROWS];
    for (int run = 0; run < mask->runs; run++)
        score_panels(t, mask->run_begin[run], mask->run_end[run]);
    for (int row = 0; row < t->rows; row++) {
        mask_interval(t, row, t->begin);
        hide(score_row(t, row), last, (last + 15) / 16 * 16);
    }
    softmax_rows(t,
                 &(tile_runs){.count = mask->runs, .begin = mask->run_begin, .end = mask->run_end},
                 alpha);
    weigh_runs(t, alpha);
}

/* O = alpha O + P V for one panel and keys begin .. end - 1. Uses `whole`, or `half` for a last
 * panel with few columns. */
ALWAYS_INLINE void weigh_panel(block_function whole, block_function half, const mhai_tile *t,
                               int64_t panel, int64_t begin, int64_t end, const float *alpha)
{
    block b = {.inner = end - begin,
               .a = t->s + begin,
               .a_stride = MHAI_SCORE_STRIDE,
               .b = t->v + (panel * MHAI_KEY_BLOCK + begin) * MHAI_PANEL,
               .c = t->o + panel * MHAI_PANEL,
               .c_stride = t->value_panels * MHAI_PANEL,
               .scale = alpha};
    if (t->value_dim - panel * MHAI_PANEL <= HALF_PANEL)
        half_product(half, t->rows, &b);
    else
        panel_product(whole, whole, t->rows, &b);
}

static void tile_forward(const mhai_tile *t)
{
    const bool whole_blocks = (int)HALF_VECTORS == (int)TILE_VECTORS;
    float alpha[MHAI_MAX_ROWS];
    if (t->mask && t->mask->runs > 0 && !t->mask->poison && !t->dropout && !t->alpha &&
        !t->scores) {
        forward_runs(t);
        return;
    }
    softmax_from(t, masked_scores(t), alpha);
    for (int row = 0; t->alpha && row < t->rows; row++) t->alpha[row] = alpha[row];
    for (int64_t panel = 0; panel < t->value_panels; panel++)
        weigh_panel(block_rescale_rows, whole_blocks ? block_rescale_rows : half_rescale_rows, t,
                    panel, t->begin, t->end, alpha);
    if (t->mask && t->mask->poison)
        for (int row = 0; row < t->rows; row++) poison_values(t, row, float_weight);
}

/* A row whose sum is NaN: NaN for visible keys, otherwise 0. */
static void nan_probabilities(float *s, int begin, int end)
{
    for (int j = begin; j < end; j++) s[j] = s[j] == -__builtin_inff() ? 0.0f : __builtin_nanf("");
}

static void row_probabilities(float *s, int begin, int end, float m, float l)
{
    /* A row without keys has m = -inf, l = 0; dividing by 1 keeps its zeros. */
    const vf sum = vf_set1(l == 0 ? 1.0f : l);
    row_exp(s, begin, end, m == -__builtin_inff() ? 0.0f : m);
    for (int j = begin; j < end; j += VF_LANES) vf_store(s + j, vf_div(vf_load(s + j), sum));
}

/* row_probabilities of a row with keys. Returns -sum p log p. Since -log p = (m - s + log2 l) ln 2,
 * the result does not depend on the rounding of p. Hidden keys get a finite distance for which p
 * underflows to 0. No term is negative: the largest score contributes 1 to l, so l >= 1. */
static float row_entropy(float *s, int begin, int end, float m, float l, float log_sum)
{
    vf sum[LANES16];
    const vf top = vf_set1(m), divisor = vf_set1(l), tail = vf_set1(log_sum);
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
    for (int j = begin; j < end; j += 16) UNROLL for (int i = 0; i < LANES16; i++)
        {
            vf x = vf_max(vf_sub(vf_load(s + j + i * VF_LANES), top), vf_set1(-160.0f));
            vf p = vf_div(vf_exp2(x), divisor);
            vf_store(s + j + i * VF_LANES, p);
            sum[i] = vf_fma(p, vf_sub(tail, x), sum[i]);
        }
    return vf_sum16(sum) * 0x1.62e430p-1f; /* ln 2 */
}

static void finish_probabilities(const mhai_tile *t, int row, int end)
{
    const float m = t->m[row], l = t->l[row];
    float *s = score_row(t, row);
    mhai_tile_statistics *statistics = t->statistics;
    if (l != l)
        nan_probabilities(s, t->begin, end);
    else if (statistics && statistics->log_sum && m != -__builtin_inff())
        statistics->entropy[row] = row_entropy(s, t->begin, end, m, l, statistics->log_sum[row]);
    else
        row_probabilities(s, t->begin, end, m, l);
    if (statistics) statistics->largest[row] = row_max(s, t->begin, end);
}

static void tile_probabilities(const mhai_tile *t)
{
    const int from = masked_scores(t);
    for (int row = 0; row < t->rows; row++) {
        if (t->statistics) t->statistics->entropy[row] = 0;
        finish_probabilities(t, row, prepare_row(t, row, from));
    }
}

static void add_probabilities(float *out, const float *s, int64_t n, float m, float l)
{
    const vf top = vf_set1(m == -__builtin_inff() ? 0.0f : m), sum = vf_set1(l == 0 ? 1.0f : l);
    if (l != l) {
        for (int64_t j = 0; j < n; j++) out[j] += s[j] == -__builtin_inff() ? 0.0f : l;
        return;
    }
    for (int64_t j = 0; j < n; j += VF_LANES) {
        const int64_t lanes = lanes_at(j, n);
        const vf p = vf_div(vf_exp2(vf_sub(vf_load_n(s + j, lanes), top)), sum);
        vf_store_n(out + j, lanes, vf_add(vf_load_n(out + j, lanes), p));
    }
}

static void tile_masked_scores(const mhai_tile *t)
{
    const vf unit = vf_set1(0x1.62e430p-1f); /* ln 2 */
    const int from = masked_scores(t);
    for (int row = 0; row < t->rows; row++) {
        int end = prepare_row(t, row, from);
        float *s = score_row(t, row);
        for (int j = t->begin; j < end; j += VF_LANES)
            vf_store(s + j, vf_mul(vf_load(s + j), unit));
    }
}

static void tile_drop(const mhai_tile *t)
{
    for (int row = 0; row < t->rows; row++) drop_row(t, row);
}

/* Adding +0 turns -0 into +0. Otherwise the sign of a zero would depend on the
 * number of empty key blocks. */
ALWAYS_INLINE void finish_row_as(mha_dtype type, void *out, const float *in, int64_t n, float sum,
                                 float gate)
{
    const vf divisor = vf_set1(sum == 0 ? 1.0f : sum), factor = vf_set1(gate);
    for (int64_t i = 0; i < n; i += VF_LANES) {
        int64_t lanes = n - i < VF_LANES ? n - i : VF_LANES;
        vf x = vf_mul(vf_div(vf_load_n(in + i, lanes), divisor), factor);
        store_n_as(type, out, i, lanes, vf_add(x, vf_zero()));
    }
}

static void finish_row(mha_dtype type, void *out, const float *in, int64_t n, float sum, float gate)
{
    BY_TYPE(type, finish_row_as, out, in, n, sum, gate)
}
