/* Attention to keys that form one block. No sum needs rescaling, so each strip goes from queries to
 * outputs in one pass. The contract is in kernels.h. Results are bit-identical to tile_forward,
 * whose chains, maxima and sums are the same. Its additional step, fma(0, alpha, sum), can only
 * change the sign of a zero, which finish_row removes.
 *
 * Non-finite elements are only detected here, by `finite`, a sum of x * 0. The caller then
 * computes all rows in tiles. */

/* ---- products ---------------------------------------------------------------------------------
 * Products of weights and values with two features that block_tmpl.c lacks: values in rows at any
 * address, and results that are divided and written to the output. */

typedef struct one_product {
    int64_t inner;
    const float *a; /* [rows][MHAI_SCORE_STRIDE] */
    const float *b;
    int64_t b_stride;
    float *const *out;
    int64_t column;
    const float *sum; /* divisor of the row */
    vf *finite;
} one_product;

ALWAYS_INLINE void one_body(int rows, int vectors, const one_product *t)
{
    vf sum[BLOCK_ROWS][TILE_VECTORS];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < vectors; j++) sum[r][j] =
        vf_zero();
    const float *a = t->a, *b = t->b;
    const int64_t inner = t->inner, b_stride = t->b_stride;
    for (int64_t i = 0; i < inner; i++, b += b_stride) {
        vf column[TILE_VECTORS];
        UNROLL for (int j = 0; j < vectors; j++) column[j] = vf_load(b + j * VF_LANES);
        UNROLL for (int r = 0; r < rows; r++)
        {
            vf row = vf_load1(a + r * MHAI_SCORE_STRIDE + i);
            UNROLL for (int j = 0; j < vectors; j++) sum[r][j] = vf_fma(row, column[j], sum[r][j]);
        }
    }
    vf finite = *t->finite;
    UNROLL for (int r = 0; r < rows; r++)
    {
        const vf divisor = vf_set1(t->sum[r]);
        UNROLL for (int j = 0; j < vectors; j++)
        {
            vf x = vf_add(vf_div(sum[r][j], divisor), vf_zero()); /* like finish_row */
            finite = vf_fma(x, vf_zero(), finite);
            vf_store(t->out[r] + t->column + j * VF_LANES, x);
        }
    }
    *t->finite = finite;
}

#define ONE_CASE(n)                                                         \
    case n:                                                                 \
        if (n <= BLOCK_ROWS) one_body(n <= BLOCK_ROWS ? n : 1, vectors, t); \
        return;
/* clang-format off */
#define DEFINE_ONE(name, width)                                                                 \
    static __attribute__((noinline)) void name(int rows, const one_product *t)                  \
    {                                                                                           \
        const int vectors = width;                                                              \
        switch (rows) {                                                                         \
            ONE_CASE(1) ONE_CASE(2) ONE_CASE(3) ONE_CASE(4) ONE_CASE(5) ONE_CASE(6) ONE_CASE(7) \
            ONE_CASE(8) ONE_CASE(9) ONE_CASE(10) ONE_CASE(11) ONE_CASE(12) ONE_CASE(13)         \
            ONE_CASE(14)                                                                        \
        }                                                                                       \
    }
/* clang-format on */
DEFINE_ONE(one_values, TILE_VECTORS)
DEFINE_ONE(one_half_values, HALF_VECTORS)

/* All rows of a strip, by a function for register blocks. */
ALWAYS_INLINE void one_strip_product(void (*blocks)(int, const one_product *), int rows,
                                     one_product t)
{
    for (int row = 0, some; row < rows; row += some) {
        some = block_rows(rows - row);
        blocks(some, &t);
        if (BLOCK_ROWS == TILE_ROWS) return;
        t.a += some * MHAI_SCORE_STRIDE;
        t.out += some;
        t.sum += some;
    }
}

/* ---- a strip --------------------------------------------------------------------------------- */

typedef struct one_strip {
    int rows, end;           /* keys that some row sees */
    int ends[MHAI_MAX_ROWS]; /* keys that each row sees */
    const float *q[MHAI_MAX_ROWS];
    float *o[MHAI_MAX_ROWS];
    float m[MHAI_MAX_ROWS], l[MHAI_MAX_ROWS];
    mhai_tile_mask mask; /* used only with a mask or bias */
} one_strip;

ALWAYS_INLINE const void *dense_row(const mhai_dense *x, int64_t head, int64_t query)
{
    const int64_t size = x->type == MHA_F32 ? 4 : x->type == MHA_U8 ? 1 : 2;
    return x->at ? (const char *)x->at + (head * x->head + query * x->row) * size : NULL;
}

/* Set a row's part of the mask. */
static void mask_one_row(const mhai_one_block *x, int64_t head, int64_t query, int row,
                         one_strip *s)
{
    s->mask.begin[row] = 0;
    s->mask.end[row] = s->ends[row];
    s->mask.keep[row] = dense_row(&x->keep, head, query);
    s->mask.bias[row] = dense_row(&x->bias, head, query);
}

/* Find the next rows, and advance *head and *query. Prefetches output
 * rows, which may be far apart. */
ALWAYS_INLINE void place_strip(const mhai_one_block *x, int64_t *head, int64_t *query, one_strip *s)
{
    s->end = 0;
    for (int r = 0; r < s->rows; r++) {
        int64_t end = x->causal ? *query + x->offset + 1 : x->keys;
        end = end < 0 ? 0 : end < x->keys ? end : x->keys;
        s->ends[r] = (int)end;
        s->end = s->ends[r] > s->end ? s->ends[r] : s->end;
        s->q[r] = x->q + *head * x->q_head + *query * x->q_row;
        s->o[r] = x->o + *head * x->o_head + *query * x->o_row;
        s->m[r] = -__builtin_inff();
        s->l[r] = 0;
        for (int64_t i = 0; x->fetch_outputs && i < x->value_dim; i += LINE) fetch(s->o[r] + i);
        if (x->keep.at || x->bias.at) mask_one_row(x, *head, *query, r, s);
        if (++*query == x->queries) *query = 0, ++*head;
    }
}

static void scale_strip(const mhai_one_block *x, const one_strip *s, vf *finite)
{
    const vf by = vf_set1(x->factor);
    const int64_t dim = x->head_dim, whole = dim / VF_LANES * VF_LANES;
    vf sum = *finite;
    for (int r = 0; r < s->rows; r++) {
        float *out = x->scaled + r * dim;
        for (int64_t i = 0; i < whole; i += VF_LANES) {
            vf q = vf_load(s->q[r] + i);
            sum = vf_fma(q, vf_zero(), sum);
            vf_store(out + i, vf_mul(q, by));
        }
        if (whole == dim) continue;
        vf q = vf_load_n(s->q[r] + whole, dim - whole);
        sum = vf_fma(q, vf_zero(), sum);
        vf_store_n(out + whole, dim - whole, vf_mul(q, by));
    }
    *finite = sum;
}

/* Hide the keys that a row does not see, up to `end`, a multiple of 16. */
static void hide_rest(float *s, int from, int end)
{
    static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const vf none = vf_set1(-__builtin_inff());
    for (int j = from / 16 * 16; j < end; j += 16) {
        const vf seen = vf_set1((float)(from - j));
        UNROLL for (int i = 0; i < LANES16; i++)
        {
            float *at = s + j + i * VF_LANES;
            vf_store(at, vf_where_below(vf_load(lanes + i * VF_LANES), seen, vf_load(at), none));
        }
    }
}

/* The columns after the last multiple of 16 are computed in working memory. */
static void one_outputs(const mhai_one_block *x, const one_strip *s, const mhai_tile *t, vf *finite)
{
    enum { HALF = HALF_VECTORS * VF_LANES };
    const int64_t dim = x->value_dim, whole = dim / 16 * 16;
    float divisor[MHAI_MAX_ROWS], last[MHAI_MAX_ROWS][16], *rows[MHAI_MAX_ROWS];
    for (int r = 0; r < s->rows; r++) divisor[r] = s->l[r] == 0 ? 1.0f : s->l[r];
    for (int r = 0; r < s->rows; r++) rows[r] = last[r];
    for (int64_t column = 0, width; column < dim; column += width) {
        const bool full = whole - column >= BLOCK_COLS, tail = column >= whole;
        const int64_t panel = column / MHAI_PANEL * MHAI_PANEL * MHAI_KEY_BLOCK;
        width = full ? BLOCK_COLS : HALF;
        one_strip_product(full ? one_values : one_half_values, s->rows,
                          (one_product){.inner = s->end,
                                        .a = t->s,
                                        .b = x->values ? x->values + panel + column % MHAI_PANEL
                                             : tail    ? x->tail + column - whole
                                                       : x->v + column,
                                        .b_stride = x->values || tail ? MHAI_PANEL : x->v_row,
                                        .out = tail ? rows : s->o,
                                        .column = tail ? column - whole : column,
                                        .sum = divisor,
                                        .finite = finite});
    }
    for (int r = 0; whole < dim && r < s->rows; r++)
        memcpy(s->o[r] + whole, last[r], (size_t)(dim - whole) * sizeof(float));
}

/* ---- the keys -------------------------------------------------------------------------------- */

/* Pack the keys and, if requested, the values; otherwise only the values' columns after the last
 * multiple of 16. An empty second half of the last panel of keys is skipped. */
static bool pack_one_block(const mhai_one_block *x)
{
    const mhai_pack keys = {.in = x->k, .stride = x->k_row, .rows = x->keys, .cols = x->head_dim};
    const int64_t first = x->values ? 0 : x->value_dim / 16 * 16;
    const mhai_pack values = {.out = x->values ? x->values : x->tail,
                              .in = x->v + first,
                              .stride = x->v_row,
                              .rows = x->keys,
                              .cols = x->value_dim - first};
    bool finite = true;
    for (int64_t row = 0; row < x->keys; row += MHAI_PANEL)
        finite &= pack_panel_part(MHA_F32, &keys, true, row,
                                  x->keys - row > HALF_PANEL ? MHAI_PANEL : HALF_PANEL,
                                  x->panels + row * x->head_dim);
    if (values.cols > 0) pack_values_as(MHA_F32, &values);
    return finite;
}

static void one_block_forward(const mhai_one_block *x, bool *done)
{
    vf finite = vf_zero();
    int64_t head = x->first / x->queries, query = x->first % x->queries;
    *done = pack_one_block(x);
    if (!*done) return;
    one_strip s;
    const bool masked = x->keep.at || x->bias.at;
    if (masked)
        s.mask = (mhai_tile_mask){
            .keep_stride = x->keep.key, .bias_stride = x->bias.key, .bias_type = x->bias.type};
    for (int64_t first = 0, left; (left = x->rows - first) > 0; first += s.rows) {
        const int64_t strips = (left + TILE_ROWS - 1) / TILE_ROWS;
        float alpha[MHAI_MAX_ROWS];
        s.rows = (int)((left + strips - 1) / strips);
        place_strip(x, &head, &query, &s);
        scale_strip(x, &s, &finite);
        const mhai_tile t = {.rows = s.rows,
                             .end = s.end,
                             .head_dim = x->head_dim,
                             .q = x->scaled,
                             .k = x->panels,
                             .s = x->s,
                             .m = s.m,
                             .l = s.l,
                             .mask = masked ? &s.mask : NULL,
                             .fetch = x->fetch};
        const int begin = 0, end = (s.end + 15) / 16 * 16;
        const int from = masked_scores(&t);
        for (int r = 0; r < s.rows; r++)
            if (t.mask)
                prepare_row(&t, r, from);
            else
                hide_rest(score_row(&t, r), s.ends[r], end);
        softmax_rows(&t, &(tile_runs){.count = 1, .begin = &begin, .end = &end}, alpha);
        one_outputs(x, &s, &t, &finite);
        if (x->m) {
            memcpy(x->m + first, s.m, (size_t)s.rows * sizeof(float));
            memcpy(x->l + first, s.l, (size_t)s.rows * sizeof(float));
        }
    }
    const vf part[LANES16] = {finite};
    *done = vf_sum16(part) == 0;
}
