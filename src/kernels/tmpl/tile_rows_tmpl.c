/* Strips of query rows against unpacked keys and values, for calls with too few queries to justify
 * packing a block. The contract is in kernels.h.
 *
 * Keys are packed one panel at a time, in L1, for all strips. For few rows they are transposed in
 * registers instead. Values are read in place. The chains are the same as in tile_forward, over d
 * for scores and over the block's keys for outputs, so results are bit-identical. */

/* ---- scores ---------------------------------------------------------------------------------- */

/* Pack 32 keys, which were prefetched during the products with the previous panel. */
static void whole_panel(const float *k, int64_t stride, int64_t dim, float *panel)
{
    for (int64_t c = 0; c < dim; c += VF_LANES)
        for (int64_t i = 0; i < MHAI_PANEL; i += VF_LANES)
            transpose_from(k + i * stride + c, stride, panel + c * MHAI_PANEL + i, MHAI_PANEL);
}

/* Keys for the rows of a register block, transposed in registers, LINE keys at a time.
 * Meanwhile, `next` is touched. */
typedef struct key_rows {
    const float *k;
    int64_t stride, dim;
    const float *next; /* LINE rows ahead */
    bool dense;        /* rows are contiguous, so touch lines in memory order;
                        * otherwise row by row */
    int64_t far;       /* as in value_rows */
} key_rows;

static key_rows keys_at(const mhai_tile_rows *x, int64_t dim, int64_t key)
{
    const float *k = x->k + key * x->k_stride;
    const bool last = key + 2 * LINE > x->readable, dense = x->k_stride == dim;
    return (key_rows){.k = k,
                      .stride = x->k_stride,
                      .dim = dim,
                      .next = last ? k : k + LINE * x->k_stride,
                      .dense = dense,
                      .far = dense ? FAR : LINE * x->k_stride};
}

/* Compute the scores of LINE keys. */
ALWAYS_INLINE void few_body(int rows, const key_rows *x, const float *q, float *s)
{
    vf sum[BLOCK_ROWS][LANES16];
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < LANES16; j++) sum[r][j] =
        vf_zero();
    const int64_t next_line = x->dense ? LINE : x->stride;
    for (int64_t c = 0; c < x->dim; c += VF_LANES) {
        const float *next =
            x->next + (x->dense ? c * LINE : c % LINE * x->stride + c / LINE * LINE);
        float square[VF_LANES][LINE];
        UNROLL for (int j = 0; j < LINE; j += VF_LANES)
            transpose_from(x->k + j * x->stride + c, x->stride, square[0] + j, LINE);
        UNROLL for (int i = 0; i < VF_LANES; i++)
        {
            vf column[LANES16];
            touch_and_fetch(next + i * next_line, x->far);
            UNROLL for (int j = 0; j < LANES16; j++) column[j] = vf_load(square[i] + j * VF_LANES);
            UNROLL for (int r = 0; r < rows; r++)
            {
                const vf row = vf_load1(q + r * x->dim + c + i);
                UNROLL for (int j = 0; j < LANES16; j++) sum[r][j] =
                    vf_fma(row, column[j], sum[r][j]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int j = 0; j < LANES16; j++)
        vf_store(s + r * MHAI_SCORE_STRIDE + j * VF_LANES, sum[r][j]);
}

#define FEW_CASE(n)                                                      \
    case n:                                                              \
        if (n <= BLOCK_ROWS) few_body(n <= BLOCK_ROWS ? n : 1, x, q, s); \
        return;

/* clang-format off */
static __attribute__((noinline)) void few_scores(int rows, const key_rows *x, const float *q,
                                                 float *s)
{
    switch (rows) {
        FEW_CASE(1) FEW_CASE(2) FEW_CASE(3) FEW_CASE(4) FEW_CASE(5) FEW_CASE(6) FEW_CASE(7)
        FEW_CASE(8) FEW_CASE(9) FEW_CASE(10) FEW_CASE(11) FEW_CASE(12) FEW_CASE(13) FEW_CASE(14)
    }
}
/* clang-format on */

static void few_panel(const mhai_tile *t, const mhai_tile_rows *x, int key)
{
    for (const int end = key + MHAI_PANEL; key < end; key += LINE) {
        const key_rows keys = keys_at(x, t->head_dim, key);
        few_scores(t->rows, &keys, t->q, t->s + key);
    }
}

/* Compute the scores of the last keys, which fill only half a panel. */
static void half_panel(const mhai_tile *t, const mhai_tile_rows *x, int key, const mhai_pack *pack)
{
    enum { HALF = MHAI_PANEL / 2, WIDTH = BLOCK_COLS < HALF ? BLOCK_COLS : HALF };
    const value_function values = (int)BLOCK_COLS <= (int)HALF ? value_packed : value_half;
    pack_panel_part(MHA_F32, pack, false, 0, HALF, x->panel);
    for (int row = 0; row < t->rows; row++)
        memset(t->s + row * MHAI_SCORE_STRIDE + key, 0, HALF * sizeof(float));
    for (int column = 0; column < HALF; column += WIDTH)
        value_strip(values, values, t->rows,
                    &(value_rows){.keys = t->head_dim,
                                  .p = t->q,
                                  .p_stride = t->head_dim,
                                  .v = x->panel + column,
                                  .v_stride = MHAI_PANEL,
                                  .o = t->s + key + column,
                                  .o_stride = MHAI_SCORE_STRIDE});
}

/* Compute the scores of strip i for the panel at `key`, if it sees any of its keys. The first
 * products also prefetch the next panel, 16 keys each. */
static void score_panel(const mhai_tile *t, const mhai_tile_rows *x, int i, int key)
{
    if (key < t->begin || key >= t->end) return;
    const int64_t lines = (t->head_dim + LINE - 1) / LINE;
    int64_t row = key + MHAI_PANEL + i * (MHAI_PANEL / BLOCK_COLS) * LINE;
    block b = {.inner = t->head_dim,
               .a = t->q,
               .a_stride = t->head_dim,
               .b = x->panel,
               .c = t->s + key,
               .c_stride = MHAI_SCORE_STRIDE,
               .next_lines = x->key_runs ? t->head_dim : lines,
               .next_gap = x->key_runs ? 0 : x->k_stride - lines * LINE};
    for (int column = 0; column < MHAI_PANEL; column += BLOCK_COLS, row += LINE) {
        const bool near = row < key + 2 * MHAI_PANEL;
        const bool fetches = near && (x->key_runs || row + LINE <= x->readable);
        b.next = !fetches      ? NULL
                 : x->key_runs ? x->key_runs[row / MHAI_RUN].at
                               : x->k + row * x->k_stride;
        b.fetching = fetches;
        strip_product(block_fetch_rows, block_store_rows, t->rows, &b);
        b.b += BLOCK_COLS;
        b.c += BLOCK_COLS;
    }
}

/* Compute scores of keys in runs. */
static void run_key_scores(const mhai_tile *const *tiles, const mhai_tile_rows *x, int begin,
                           int end)
{
    const mhai_tile *t = tiles[0];
    if (x->tiles > 1 || t->rows > RUN_ROWS) {
        for (int key = begin; key < end; key += MHAI_PANEL) {
            run_panel(x->key_runs + key / MHAI_RUN, x->keys - key, t->head_dim, x->panel);
            for (int i = 0; i < x->tiles; i++) score_panel(tiles[i], x, i, key);
        }
        return;
    }
    const run_scores few = {.runs = x->key_runs + begin / MHAI_RUN,
                            .dim = t->head_dim,
                            .q = t->q,
                            .s = t->s + begin,
                            .factors = x->panel};
    const int runs = (end - begin + MHAI_RUN - 1) / MHAI_RUN;
    BY_KEY_TYPE(few.runs, run_scores_as, t->rows, &few, runs)
    const int last = (end + MHAI_RUN - 1) / MHAI_RUN * MHAI_RUN;
    for (int row = 0; x->keys < last && row < t->rows; row++) /* the memory holds arbitrary
                                                                 values */
        memset(t->s + row * MHAI_SCORE_STRIDE + x->keys, 0,
               (size_t)(last - x->keys) * sizeof(float));
}

static void rows_scores(const mhai_tile *const *tiles, const mhai_tile_rows *x, int begin, int end)
{
    const int64_t dim = tiles[0]->head_dim;
    if (x->key_runs) {
        run_key_scores(tiles, x, begin, end);
        return;
    }
    for (int key = begin; key < end; key += MHAI_PANEL) {
        const int64_t left = x->keys - key;
        const mhai_pack pack = {.in = x->k + key * x->k_stride,
                                .stride = x->k_stride,
                                .rows = left < MHAI_PANEL ? left : MHAI_PANEL,
                                .cols = dim};
        if (x->tiles == 1 && end - key <= MHAI_PANEL / 2) {
            half_panel(tiles[0], x, key, &pack);
            return;
        }
        const bool whole = left >= MHAI_PANEL && dim % VF_LANES == 0;
        if (whole && x->tiles == 1 && tiles[0]->rows <= BLOCK_ROWS) {
            few_panel(tiles[0], x, key);
            continue;
        }
        if (whole)
            whole_panel(pack.in, x->k_stride, dim, x->panel);
        else
            pack_panel(MHA_F32, &pack, 0, x->panel);
        for (int i = 0; i < x->tiles; i++) score_panel(tiles[i], x, i, key);
    }
}

/* Checks row 0 only. A non-finite key makes its score infinite or NaN for every query. */
static bool rows_finite(const mhai_tile *t)
{
    vf sum = vf_zero();
    for (int j = t->begin; j < t->end; j += VF_LANES)
        sum = vf_fma(vf_load(t->s + j), vf_zero(), sum);
    vf part[LANES16] = {sum};
    return vf_sum16(part) == 0;
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Add the last columns, fewer than a panel, from a copy. Also touches the data at part->next. */
static void value_tail(const mhai_tile *t, int64_t cols, bool ahead, bool dense, value_rows *part)
{
    enum { MOST_KEYS = 2 * VALUE_KEYS };
    float copy[MOST_KEYS * MHAI_PANEL];
    for (int64_t i = 0; i < part->keys; i++)
        for (int64_t j = 0; j < MHAI_PANEL; j += VF_LANES)
            vf_store(copy + i * MHAI_PANEL + j,
                     j < cols ? vf_load_n(part->v + i * part->v_stride + j, lanes_at(j, cols))
                              : vf_zero());
    for (int64_t i = 0; ahead && dense && i < part->keys * cols; i += LINE)
        touch_and_fetch(part->next + i, part->far);
    for (int64_t i = 0; ahead && !dense && i < part->keys; i++)
        touch_and_fetch(part->next + i * part->next_stride, part->far);
    part->v = copy;
    part->v_stride = MHAI_PANEL;
    for (int64_t column = 0; column < cols; column += BLOCK_COLS) {
        value_strip(value_packed, value_packed, t->rows, part);
        part->v += BLOCK_COLS;
        part->o += BLOCK_COLS;
    }
}

/* Add the values of `keys` keys, starting at `key`, as far as a strip sees them, some columns at a
 * time. The first strip also touches the values after them, if they are readable. */
static void value_part(const mhai_tile *t, const mhai_tile_rows *x, int key, int keys, float *o)
{
    const int64_t cols = t->value_panels * MHAI_PANEL;
    const int end = t->end < key + keys ? t->end : key + keys;
    if (key < t->begin || key >= end) return;
    const int64_t whole = t->value_dim / MHAI_PANEL * MHAI_PANEL;
    const bool last = key + 2 * keys > x->readable, dense = !last && x->v_stride == t->value_dim;
    const bool first = o == x->o;
    const float *v = x->v + key * x->v_stride;
    value_rows part = {.keys = end - key,
                       .p = t->s + key,
                       .p_stride = MHAI_SCORE_STRIDE,
                       .v = v,
                       .v_stride = x->v_stride,
                       .o = o,
                       .o_stride = cols,
                       .next = last ? v : v + keys * x->v_stride,
                       .next_stride = x->v_stride,
                       .far = dense ? FAR : VALUE_KEYS * x->v_stride};
    for (int64_t col = 0, width; col < whole; col += width) {
        const int64_t most = (whole - col) / VF_LANES;
        const bool full = t->rows <= FULL_ROWS && most >= VALUE_FULL,
                   wide = t->rows <= FULL_ROWS && most >= VALUE_WIDE;
        width = (full ? VALUE_FULL : wide ? VALUE_WIDE : TILE_VECTORS) * VF_LANES;
        if (dense) part.next_stride = width;
        value_strip(full    ? value_full
                    : wide  ? value_wide
                    : first ? value_ahead
                            : value_packed,
                    value_packed, t->rows, &part);
        part.v += width;
        part.o += width;
        part.next += dense ? width * keys : width;
    }
    if (whole < t->value_dim) value_tail(t, t->value_dim - whole, first, dense, &part);
}

/* Add the values of a run that a strip sees. They are in L1. */
static void run_part(const mhai_tile *t, const float *v, int key, int keys, float *o)
{
    const int64_t cols = t->value_panels * MHAI_PANEL;
    const int end = t->end < key + keys ? t->end : key + keys;
    if (key < t->begin || key >= end) return;
    value_rows part = {.keys = end - key,
                       .p = t->s + key,
                       .p_stride = MHAI_SCORE_STRIDE,
                       .v = v,
                       .v_stride = cols,
                       .o = o,
                       .o_stride = cols};
    for (int64_t col = 0; col < cols; col += BLOCK_COLS, part.v += BLOCK_COLS, part.o += BLOCK_COLS)
        value_strip(value_packed, value_packed, t->rows, &part);
}

/* Compute sums of values in runs. */
static void run_value_sums(const mhai_tile *const *tiles, const mhai_tile_rows *x, int begin,
                           int end)
{
    const int64_t cols = tiles[0]->value_panels * MHAI_PANEL;
    if (x->tiles == 1 && tiles[0]->rows <= RUN_ROWS) {
        const int step = run_step(x->value_runs->type);
        for (int key = begin; key < end; key += step * MHAI_RUN) {
            const run_values few = {.run = &x->value_runs[key / MHAI_RUN],
                                    .runs = step,
                                    .end =
                                        end - key < step * MHAI_RUN ? end - key : step * MHAI_RUN,
                                    .dim = tiles[0]->value_dim,
                                    .cols = cols,
                                    .p = tiles[0]->s + key,
                                    .o = x->o};
            BY_RUN_TYPE(few.run->type, run_values_as, tiles[0]->rows, &few)
        }
        return;
    }
    for (int key = begin; key < end; key += MHAI_RUN) {
        const int keys = end - key < MHAI_RUN ? end - key : MHAI_RUN;
        const float *v =
            run_rows(&x->value_runs[key / MHAI_RUN], keys, tiles[0]->value_dim, cols, x->run);
        float *o = x->o;
        for (int i = 0; i < x->tiles; o += tiles[i++]->rows * cols)
            run_part(tiles[i], v, key, keys, o);
    }
}

/* Compute the sums of all strips, contiguously in x->o. */
static void rows_values(const mhai_tile *const *tiles, const mhai_tile_rows *x, int begin, int end)
{
    const int64_t cols = tiles[0]->value_panels * MHAI_PANEL;
    int64_t rows = 0;
    for (int i = 0; i < x->tiles; i++) rows += tiles[i]->rows;
    memset(x->o, 0, (size_t)(rows * cols) * sizeof(float));
    if (x->value_runs) {
        run_value_sums(tiles, x, begin, end);
        return;
    }
    const int step = x->tiles > 1 ? 2 * VALUE_KEYS : VALUE_KEYS;
    for (int key = begin; key < end; key += step) {
        float *o = x->o;
        for (int i = 0; i < x->tiles; i++) {
            value_part(tiles[i], x, key, step, o);
            o += tiles[i]->rows * cols;
        }
    }
}

/* A non-finite value makes the sum of its column non-finite. */
static bool sums_finite(const float *sums, int64_t n)
{
    vf sum = vf_zero();
    for (int64_t i = 0; i < n; i += VF_LANES) sum = vf_fma(vf_load(sums + i), vf_zero(), sum);
    vf part[LANES16] = {sum};
    return vf_sum16(part) == 0;
}

/* The state of a strip before the block, for a restart. */
typedef struct rows_state {
    float m[MHAI_MAX_ROWS], l[MHAI_MAX_ROWS], alpha[MHAI_MAX_ROWS];
} rows_state;

static bool rows_softmax(const mhai_tile *const *tiles, int count, rows_state *states)
{
    for (int i = 0; i < count; i++)
        if (!rows_finite(tiles[i])) return false;
    for (int i = 0; i < count; i++) {
        memcpy(states[i].m, tiles[i]->m, (size_t)tiles[i]->rows * sizeof(float));
        memcpy(states[i].l, tiles[i]->l, (size_t)tiles[i]->rows * sizeof(float));
        softmax_step(tiles[i], states[i].alpha);
    }
    return true;
}

/* Add the block's sums to the outputs, if they are finite. */
static bool rows_join(const mhai_tile *const *tiles, const mhai_tile_rows *x,
                      const rows_state *states)
{
    const int64_t cols = tiles[0]->value_panels * MHAI_PANEL;
    const float *sums = x->o;
    int64_t rows = 0;
    for (int i = 0; i < x->tiles; i++) rows += tiles[i]->rows;
    bool finite = sums_finite(sums, rows * cols);
    for (int i = 0; i < x->tiles; i++) {
        const mhai_tile *t = tiles[i];
        if (finite) {
            join_rows(t->rows, cols, sums, cols, states[i].alpha, t->o, cols);
            sums += t->rows * cols;
            if (t->alpha) memcpy(t->alpha, states[i].alpha, (size_t)t->rows * sizeof(float));
        } else {
            memcpy(t->m, states[i].m, (size_t)t->rows * sizeof(float));
            memcpy(t->l, states[i].l, (size_t)t->rows * sizeof(float));
        }
    }
    return finite;
}

/* Find the range of keys that any strip sees. */
static void rows_range(const mhai_tile *const *tiles, int count, int *begin, int *end)
{
    *begin = tiles[0]->begin;
    *end = tiles[0]->end;
    for (int i = 1; i < count; i++) {
        *begin = tiles[i]->begin < *begin ? tiles[i]->begin : *begin;
        *end = tiles[i]->end > *end ? tiles[i]->end : *end;
    }
}

static void tile_rows_forward(const mhai_tile *const *tiles, const mhai_tile_rows *x, bool *done)
{
    rows_state states[MHAI_ROWS_TILES];
    int begin, end;
    rows_range(tiles, x->tiles, &begin, &end);
    rows_scores(tiles, x, begin, end);
    *done = rows_softmax(tiles, x->tiles, states);
    if (!*done) return;
    rows_values(tiles, x, begin, end);
    *done = rows_join(tiles, x, states);
}

/* ---- the same in three steps ----------------------------------------------------------------- */

static void tile_rows_scores(const mhai_tile *const *tiles, const mhai_tile_rows *x, bool *finite)
{
    int begin, end;
    rows_range(tiles, x->tiles, &begin, &end);
    rows_scores(tiles, x, begin, end);
    for (int i = 0; i < x->tiles; i++) {
        const mhai_tile *t = tiles[i];
        *finite = rows_finite(t);
        if (!*finite) return;
        for (int row = 0; row < t->rows; row++) {
            const int last = prepare_row(t, row, t->begin);
            t->m[row] = row_max(score_row(t, row), t->begin, last);
        }
    }
}

static void tile_rows_values(const mhai_tile *const *tiles, const mhai_tile_rows *x, bool *finite)
{
    int begin, end;
    int64_t rows = 0;
    rows_range(tiles, x->tiles, &begin, &end);
    for (int i = 0; i < x->tiles; i++) {
        const mhai_tile *t = tiles[i];
        for (int row = 0; row < t->rows; row++)
            t->l[row] = row_exp(score_row(t, row), t->begin, (t->end + 15) / 16 * 16,
                                t->m[row] == -__builtin_inff() ? 0.0f : t->m[row]);
        rows += t->rows;
    }
    rows_values(tiles, x, begin, end);
    *finite = sums_finite(x->o, rows * tiles[0]->value_panels * MHAI_PANEL);
}

static void join_row(float *o, const float *sums, int64_t n, float old_max, float max, float sum,
                     float *l)
{
    const float alpha = scalar_exp2(old_max - (max == -__builtin_inff() ? 0.0f : max));
    *l = scalar_fma(*l, alpha, sum);
    join_rows(1, n, sums, n, &alpha, o, n);
}
