/* The backward of a strip of query rows against one key block, and the products by columns that
 * gradients of keys and values are. Contracts in kernels.h. */

/* Scores of one row as the forward has them, and the slope of the cap beside them. */
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

/* What dropout makes of each p: 0 or its scale. */
static void dropout_factors(const mhai_tile *t, int row, float *factor)
{
    const mhai_dropout *d = t->dropout;
    for (int j = t->begin; j < t->end; j += 4) {
        uint32_t word[4];
        mhai_dropout_words(word, d->seed, d->batch, d->head[row], d->query[row], (d->key + j) / 4);
        for (int i = 0; i < 4; i++) factor[j + i] = word[i] < d->threshold ? 0.0f : d->scale;
    }
}

/* A row that is not finite. */
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

/* VF_LANES places from j on, of probabilities p; returns p kept x. A hidden place takes no part by
 * selection, since x may have overflowed there. */
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

/* A probability is at most 1, but a score of 1e11 and its log-sum-exp are rounded to thousands:
 * more than exp2 is good for is cut, so that instruction sets agree. NaN stays. */
ALWAYS_INLINE float back_all(const back_row *r, bool drops, int begin, int end)
{
    vf sum[LANES16];
    UNROLL for (int i = 0; i < LANES16; i++) sum[i] = vf_zero();
    for (int j = begin; j < end; j += 16) {
        vf p[LANES16];
        UNROLL for (int i = 0; i < LANES16; i++) p[i] =
            vf_min(vf_set1(127.0f), vf_sub(vf_load(r->s + j + i * VF_LANES), r->lse));
        exp2_vectors(LANES16, p);
        UNROLL for (int i = 0; i < LANES16; i++) sum[i] =
            vf_add(sum[i], back_lanes(r, drops, j + i * VF_LANES, p[i]));
    }
    return vf_sum16(sum);
}

static float backward_row(const mhai_tile_back *b, int row)
{
    const mhai_tile *t = &b->tile;
    float factor[MHAI_SCORE_STRIDE];
    int end = (t->end + 15) / 16 * 16;
    const back_row r = {.s = score_row(t, row),
                        .x = b->x + row * MHAI_SCORE_STRIDE,
                        .factor = factor,
                        .lse = vf_set1(b->lse[row]),
                        .delta = vf_set1(b->delta[row]),
                        .gate = vf_set1(b->gate[row])};
    if (t->mask) mask_row_back(b, row);
    for (int j = t->end; j < end; j++) r.s[j] = -__builtin_inff();
    if (b->delta[row] != b->delta[row]) {
        nan_row(r.s, r.x, t->begin, end);
        return b->delta[row];
    }
    if (b->shaw[row]) {
        const mhai_tile_mask values = {.shaw[0] = b->shaw[row],
                                       .shaw_center[0] = b->shaw_center[row],
                                       .shaw_last = b->shaw_last};
        add_shaw(&values, 0, r.x, t->begin, t->end);
    }
    if (!t->dropout) return back_all(&r, false, t->begin, end);
    for (int j = t->end; j < end; j++) factor[j] = 0;
    dropout_factors(t, row, factor);
    return back_all(&r, true, t->begin, end);
}

static void tile_backward(const mhai_tile_back *b)
{
    mhai_tile values = b->tile; /* x = g v, as s = q k */
    values.q = b->g;
    values.k = b->v;
    values.s = b->x;
    values.head_dim = b->value_dim;
    tile_scores(&b->tile);
    tile_scores(&values);
    for (int row = 0; row < b->tile.rows; row++) b->share[row] = backward_row(b, row);
}

static void gemm_transposed(const mhai_gemm_transposed *g)
{
    for (int64_t panel = 0; panel < g->panels; panel++)
        for (int64_t col = 0; col < g->cols; col += TILE_ROWS) {
            int64_t left = g->cols - col;
            float *out = g->out + col * g->out_stride + panel * MHAI_PANEL;
            panel_product(adding_columns(g->a_stride), (int)(left < TILE_ROWS ? left : TILE_ROWS),
                          &(block){.inner = g->rows,
                                   .a = g->a + col,
                                   .a_stride = g->a_stride,
                                   .transposed = true,
                                   .b = g->b + panel * g->panel_stride,
                                   .c = out,
                                   .c_stride = g->out_stride,
                                   .start = out,
                                   .start_stride = g->out_stride,
                                   .next = g->b + panel * g->panel_stride});
        }
}
