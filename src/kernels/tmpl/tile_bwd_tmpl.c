/* The backward pass of a strip of query rows and one key block, and the products for the gradients
 * of keys and values. Contracts in kernels.h. */

/* Mask the scores of a row as in the forward pass, and compute the slope of the softcap. */
static void mask_row_back(const mhai_tile_back *b, int row)
{
    const mhai_tile *t = &b->tile;
    const mhai_tile_mask *mask = t->mask;
    if (mask->softcap > 0) {
        float *s = score_row(t, row), *slope = b->slope + row * MHAI_SCORE_STRIDE;
        const vf inverse = vf_set1(1.0f / mask->softcap), one = vf_set1(1.0f);
        int end = (t->end + 15) / 16 * 16;
        for (int j = t->begin; j < end; j++) slope[j] = s[j];
        if (mask->shaw[row]) add_shaw(mask, row, slope, mask->begin[row], mask->end[row]);
        for (int j = t->begin; j < end; j += VF_LANES) {
            vf flat = vf_tanh(vf_mul(vf_load(slope + j), inverse));
            vf_store(slope + j, vf_sub(one, vf_mul(flat, flat)));
        }
    }
    mask_row(t, row, t->begin);
}

/* The dropout factor of each p: 0 or the scale. */
static void dropout_factors(const mhai_tile *t, int row, float *factor)
{
    const mhai_dropout *d = t->dropout;
    for (int j = t->begin; j < t->end; j += 4) {
        uint32_t word[4];
        mhai_dropout_words(word, d->seed, d->batch, d->head[row], d->query[row], (d->key + j) / 4);
        for (int i = 0; i < 4; i++) factor[j + i] = word[i] < d->threshold ? 0.0f : d->scale;
    }
}

/* The results of a row that is not finite. */
static void nan_row(float *s, float *x, int begin, int end)
{
    for (int j = begin; j < end; j++)
        x[j] = s[j] = s[j] == -__builtin_inff() ? 0.0f : __builtin_nanf("");
}

typedef struct back_row {
    float *s, *x;
    const float *factor;
    vf lse, delta, gate;
} back_row;

/* Process VF_LANES keys, starting at j, with probabilities p. Returns p x after dropout. A select
 * excludes hidden keys, where x may have overflowed. */
ALWAYS_INLINE vf back_lanes(const back_row *r, bool drops, int j, vf p)
{
    const vf hidden = vf_set1(-0x1.fffffep127f);
    vf x = vf_zero_below(vf_load(r->s + j), hidden, vf_load(r->x + j)), kept = p, passed = x;
    if (drops) {
        vf factor = vf_load(r->factor + j);
        kept = vf_mul(p, factor);
        passed = vf_mul(x, factor);
    }
    vf_store(r->s + j, vf_mul(kept, r->gate));
    vf_store(r->x + j, vf_mul(p, vf_sub(vf_mul(passed, r->gate), r->delta)));
    return vf_mul(kept, x);
}

/* A probability is at most 1. For scores near 1e11, however, rounding errors of the score and the
 * log-sum-exp reach thousands. The exponent is clamped to the range of exp2, so that all
 * instruction sets agree. NaN remains NaN. */
ALWAYS_INLINE void back_some(int count, const back_row *r, bool drops, int begin, vf sum[LANES16])
{
    vf p[EXP2_VECTORS];
    UNROLL for (int i = 0; i < count; i++) p[i] =
        vf_min(vf_set1(127.0f), vf_sub(vf_load(r->s + begin + i * VF_LANES), r->lse));
    exp2_vectors(count, p);
    UNROLL for (int i = 0; i < count; i++) sum[i % LANES16] =
        vf_add(sum[i % LANES16], back_lanes(r, drops, begin + i * VF_LANES, p[i]));
}

ALWAYS_INLINE void back_all(const back_row *r, bool drops, int begin, int end, float *share)
{
    enum { STEP = EXP2_VECTORS * VF_LANES };
    vf sum[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
    int j = begin;
    for (; j + STEP <= end; j += STEP) back_some(EXP2_VECTORS, r, drops, j, sum);
    for (; j < end; j += 16) back_some(LANES16, r, drops, j, sum);
    if (share) *share = vf_sum16(sum);
}

/* Hide scores as in the forward pass, up to the next multiple of 16. */
static void hide_row(const mhai_tile_back *b, int row)
{
    const mhai_tile *t = &b->tile;
    if (t->mask) mask_row_back(b, row);
    hide_rest(score_row(t, row), b->ends && !t->mask ? b->ends[row] : t->end,
              (t->end + 15) / 16 * 16);
}

static void backward_row(const mhai_tile_back *b, int row)
{
    const mhai_tile *t = &b->tile;
    float factor[MHAI_SCORE_STRIDE], *share = b->share ? b->share + row : NULL;
    int end = (t->end + 15) / 16 * 16;
    const back_row r = {.s = score_row(t, row),
                        .x = b->x + row * MHAI_SCORE_STRIDE,
                        .factor = factor,
                        .lse = vf_set1(b->lse[row]),
                        .delta = vf_set1(b->delta[row]),
                        .gate = vf_set1(b->gate[row])};
    if (b->delta[row] != b->delta[row]) {
        nan_row(r.s, r.x, t->begin, end);
        if (share) *share = b->delta[row];
        return;
    }
    if (b->shaw) {
        const mhai_tile_mask values = {.shaw[0] = b->shaw->table[row],
                                       .shaw_center[0] = b->shaw->center[row],
                                       .shaw_last = b->shaw->last};
        add_shaw(&values, 0, r.x, t->begin, t->end);
    }
    if (!t->dropout) {
        back_all(&r, false, t->begin, end, share);
        return;
    }
    for (int j = t->end; j < end; j++) factor[j] = 0;
    dropout_factors(t, row, factor);
    back_all(&r, true, t->begin, end, share);
}

static void tile_backward(const mhai_tile_back *b)
{
    mhai_tile values = b->tile; /* x = g v, as s = q k */
    values.q = b->g;
    values.k = b->v;
    values.s = b->x;
    values.head_dim = b->value_dim;
    score_panels(&b->tile, b->tile.begin, b->tile.end);
    score_panels(&values, values.begin, values.end);
    for (int row = 0; row < b->tile.rows; row++) hide_row(b, row);
    for (int row = 0; row < b->tile.rows; row++) backward_row(b, row);
}

/* ---- gradients ------------------------------------------------------------------------------- */

/* A panel of the outputs, or its first half, in blocks of nearly equal height. */
static void add_panel(const mhai_product *g, int64_t column)
{
    const bool same =
        (int)HALF_VECTORS == (int)TILE_VECTORS; /* half a panel is a whole register block */
    const bool half = g->cols - column <= HALF_PANEL && (same || g->a_stride == MHAI_SCORE_STRIDE);
    block_function blocks = g->transposed ? adding_columns(g->a_stride) : adding_rows(g->a_stride);
    if (half && !same) blocks = g->transposed ? half_add_score_columns : half_add_score_rows;
    const float *b = g->b + column / MHAI_PANEL * g->panel_stride;
    for (int64_t row = 0, some; row < g->rows; row += some) {
        const int64_t left = g->rows - row, count = (left + TILE_ROWS - 1) / TILE_ROWS;
        float *out = g->out + row * g->out_stride + column;
        block t = {.inner = g->inner,
                   .a = g->a + row * (g->transposed ? 1 : g->a_stride),
                   .a_stride = g->a_stride,
                   .transposed = g->transposed,
                   .b = b,
                   .c = out,
                   .c_stride = g->out_stride,
                   .start = out,
                   .start_stride = g->out_stride};
        some = (left + count - 1) / count;
        if (half)
            half_product(blocks, (int)some, &t);
        else
            panel_product(blocks, blocks, (int)some, &t);
    }
}

static void add_product(const mhai_product *g)
{
    for (int64_t column = 0; column < g->cols; column += MHAI_PANEL) add_panel(g, column);
}

/* out = out + in * factor in double. May give -0, which write_rows() turns into +0. */
static void add_row(const mhai_write *w, const float *in, float *out)
{
    const vd factor = vd_set1((double)w->factor);
    for (int64_t i = 0; i < w->cols; i += VD_LANES)
        vd_store_at(out, i, w->cols,
                    vd_load_at(out, i, w->cols) + vd_load_at(in, i, w->cols) * factor);
}

/* A product of two floats is exact in double, so rounding it to float gives the float product. */
static void write_rows(const mhai_write *w)
{
    const int64_t rows = w->rows, cols = w->cols, whole = cols / VF_LANES * VF_LANES;
    const vf factor = vf_set1(w->add ? 1 : w->factor);
    const float *in = w->in;
    float *out = w->out;
    for (int64_t r = 0; r < rows; r++) {
        if (w->add) add_row(w, in, out);
        const float *from = w->add ? out : in;
        for (int64_t i = 0; i < whole; i += VF_LANES)
            vf_store(out + i, vf_add(vf_mul(vf_load(from + i), factor), vf_zero()));
        if (whole < cols)
            vf_store_n(out + whole, cols - whole,
                       vf_add(vf_mul(vf_load_n(from + whole, cols - whole), factor), vf_zero()));
        in += w->in_stride;
        out += w->out_stride;
    }
}
