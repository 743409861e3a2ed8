/* Kernels of attention's tiles with keys and values in rows, and of a whole sequence. */
#include "kernel_strip.h"

#include "reference/half_reference.h"

/* ---- several strips and rows --------------------------------------------------------------- */

typedef struct rows_case {
    block_case block;
    strip_case strips[MHAI_ROWS_TILES];
    const strip_row **pairs[MHAI_ROWS_TILES];
    int count, rows;       /* number of strips, and rows of all strips */
    bool finite, unfinite; /* all inputs are finite; a visible one is not */
} rows_case;

/* Tiles for one instruction set. */
typedef struct rows_turn {
    mhai_tile tile[MHAI_ROWS_TILES];
    mhai_tile_mask mask[MHAI_ROWS_TILES];
    const mhai_tile *tiles[MHAI_ROWS_TILES];
    mhai_tile_rows rows;
} rows_turn;

/* Makes a position of a run, or a channel of all positions, non-finite. */
static void spoil_run(const mhai_run *run, int64_t at, int64_t lane, int64_t col, float bad)
{
    if (run->powers) {
        ((int8_t *)(uintptr_t)run->powers)[col] = MHAI_BAD_POWER;
        return;
    }
    void *memory = (void *)(uintptr_t)(run->type == MHA_I8 ? (const void *)run->scale : run->at);
    if (run->type == MHA_I8)
        ((float *)memory)[lane] = NAN;
    else if (run->type == MHA_F32)
        ((float *)memory)[at] = bad;
    else
        ((uint16_t *)memory)[at] = half_nearest(run->type, (double)bad);
}

/* Records keys and values that are not finite here, because strips do not support them. */
static void spoil(kernel_test *t, rows_case *c)
{
    const block_case *b = &c->block;
    const bool keys = kt_chance(t, 0.5);
    const int key = (int)rng_between(&t->r, 0, b->keys - 1), lane = key % 16;
    const int64_t col = rng_between(&t->r, 0, (keys ? b->dim : b->value_dim) - 1);
    const float bad = kt_chance(t, 0.5) ? NAN : INFINITY;
    if (b->key_runs)
        spoil_run(keys ? &b->key_runs[key / 16] : &b->value_runs[key / 16],
                  keys ? col * 16 + lane : lane * b->value_dim + col, lane, col, bad);
    else
        (keys ? b->k_rows + key * b->k_stride : b->v_rows + key * b->v_stride)[col] = bad;
    c->finite = false;
    t->undefined = true; /* kernels may or may not detect elements that are hidden from some rows */
    for (int i = 0; i < c->count; i++)
        for (int r = 0; r < c->strips[i].rows; r++)
            if (key >= c->strips[i].begin && key < c->strips[i].end)
                c->unfinite |= !c->pairs[i][r]->scores[key].hidden &&
                               (keys || c->pairs[i][r]->scores[key].y > c->pairs[i][r]->max - 100);
}

static void copy_columns(int rows, int64_t cols, const float *from, int64_t from_stride, float *to,
                         int64_t to_stride)
{
    for (int r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, (size_t)cols * sizeof *to);
}

static rows_case *make_rows(kernel_test *t, unsigned with)
{
    static const int64_t dims[] = {16, 32, 64, 80, 128};
    rows_case *c = kt_plain(t, sizeof *c);
    const int most = t->timed ? 4 : kt_rows(t);
    const int64_t dim = kt_chance(t, 0.6) ? RNG_PICK(&t->r, dims) : kt_size(t, 80, 64);
    c->block = strip_block(t, WITH_ROWS, (int)kt_size(t, MHAI_KEY_BLOCK, MHAI_KEY_BLOCK), dim,
                           t->timed ? 2 : rng_between(&t->r, 1, 5));
    if (kt_chance(t, 0.6)) {
        const mha_dtype type = strip_run_type(t);
        float *k = (float *)(uintptr_t)c->block.k, *v = (float *)(uintptr_t)c->block.v;
        const int64_t cols = c->block.cols, dim_v = cols - (kt_chance(t, 0.5) ? 16 : 0);
        float *columns = kt_plain(t, (size_t)(c->block.keys * dim_v) * sizeof(float));
        c->block.value_dim = dim_v;
        copy_columns(c->block.keys, dim_v, v, cols, columns, dim_v);
        c->block.key_runs = strip_runs(t, type, k, c->block.keys, dim, true);
        c->block.value_runs = strip_runs(t, type, columns, c->block.keys, dim_v, false);
        copy_columns(c->block.keys, dim_v, columns, dim_v, v, cols); /* rounded to the type */
    }
    c->count = kt_chance(t, 0.5) ? (int)rng_between(&t->r, 2, MHAI_ROWS_TILES) : 1;
    c->finite = true;
    for (int i = 0; i < c->count; i++) {
        const int rows = kt_chance(t, 0.5) ? (int)rng_between(&t->r, 1, most) : most;
        c->strips[i] = strip_make(t, with, &c->block, rows);
        c->pairs[i] = strip_rows(t, &c->strips[i]);
        c->rows += rows;
    }
    if (kt_chance(t, 0.15)) spoil(t, c);
    t->bytes = 4.0 * (double)(c->block.keys * (dim + c->block.cols));
    return c;
}

/* All arguments except the outputs. */
static rows_turn *turn_of(kernel_test *t, const rows_case *c)
{
    const block_case *b = &c->block;
    rows_turn *turn = kt_plain(t, sizeof *turn);
    for (int i = 0; i < c->count; i++) {
        turn->tile[i] = strip_tile(t, &c->strips[i], &turn->mask[i], NULL);
        turn->tiles[i] = &turn->tile[i];
    }
    turn->rows = (mhai_tile_rows){.k = b->key_runs ? NULL : b->k_rows,
                                  .v = b->key_runs ? NULL : b->v_rows,
                                  .key_runs = b->key_runs,
                                  .value_runs = b->value_runs,
                                  .run = kt_scratch(t, MHA_F32, 16, b->cols, b->cols),
                                  .k_stride = b->k_stride,
                                  .v_stride = b->v_stride,
                                  .keys = b->keys,
                                  .readable = b->readable,
                                  .tiles = c->count,
                                  .panel = kt_scratch(t, MHA_F32, 1, b->dim * 32, b->dim * 32),
                                  .o = kt_scratch(t, MHA_F32, c->rows, b->cols, b->cols)};
    return turn;
}

static void expect_unchanged(kernel_test *t, const strip_case *s, const mhai_tile *tile)
{
    const size_t rows = (size_t)s->rows * sizeof(float), cols = (size_t)s->block->cols;
    kt_that(t, memcmp(tile->m, s->m, rows) == 0, "m is as it was", 0, 0);
    kt_that(t, memcmp(tile->l, s->l, rows) == 0, "l is as it was", 0, 0);
    kt_that(t, memcmp(tile->o, s->o, rows * cols) == 0, "o is as it was", 0, 0);
}

void check_tile_rows_forward(kernel_test *t)
{
    rows_case *c = make_rows(t, WITH_DROPOUT | WITH_RUNS | WITH_TERMS | WITH_MASK);
    const int64_t cols = c->block.cols;
    const bool alpha = kt_chance(t, 0.3);
    EACH_TABLE(t, k)
    {
        rows_turn *turn = turn_of(t, c);
        for (int i = 0; i < c->count; i++) {
            const strip_case *s = &c->strips[i];
            mhai_tile *tile = &turn->tile[i];
            tile->o = kt_in_out(t, MHA_F32, s->rows, cols, cols, s->o);
            tile->m = kt_in_out(t, MHA_F32, 1, s->rows, s->rows, s->m);
            tile->l = kt_in_out(t, MHA_F32, 1, s->rows, s->rows, s->l);
            if (alpha) tile->alpha = kt_scratch(t, MHA_F32, 1, s->rows, s->rows);
        }
        bool done = !c->finite;
        KERNEL_CALL(t) k->tile_rows_forward(turn->tiles, &turn->rows, &done);
        kt_that(t, done || !c->finite, "done", c->count, 0);
        kt_that(t, !done || !c->unfinite, "not done", c->count, 0);
        for (int i = 0; i < c->count; i++) {
            const strip_case *s = &c->strips[i];
            const mhai_tile *tile = &turn->tile[i];
            if (!done) expect_unchanged(t, s, tile);
            for (int r = 0; done && c->finite && r < s->rows; r++)
                strip_expect(t, s, c->pairs[i][r], r, (double)tile->m[r], (double)tile->l[r],
                             tile->o + r * cols, tile->s + r * MHAI_SCORE_STRIDE,
                             alpha ? tile->alpha + r : NULL);
        }
    }
}

void check_tile_rows_scores(kernel_test *t)
{
    rows_case *c = make_rows(t, WITH_RUNS | WITH_TERMS | WITH_MASK);
    EACH_TABLE(t, k)
    {
        rows_turn *turn = turn_of(t, c);
        for (int i = 0; i < c->count; i++)
            turn->tile[i].m = kt_scratch(t, MHA_F32, 1, c->strips[i].rows, c->strips[i].rows);
        bool finite = !c->finite;
        KERNEL_CALL(t) k->tile_rows_scores(turn->tiles, &turn->rows, &finite);
        kt_that(t, finite || !c->finite, "finite", c->count, 0);
        for (int i = 0; c->finite && i < c->count; i++) {
            const strip_case *s = &c->strips[i];
            for (int r = 0; r < s->rows; r++) {
                const float *got = turn->tile[i].s + r * MHAI_SCORE_STRIDE;
                float max = -INFINITY;
                if (t->exact[t->table]) kt_bits_of(t, got + s->begin, s->end - s->begin);
                for (int j = s->begin; j < s->end; j++) {
                    const score *x = &c->pairs[i][r]->scores[j];
                    max = got[j] > max ? got[j] : max;
                    kt_close(t, (double)got[j], x->hidden ? -INFINITY : x->y,
                             x->hidden ? 0 : x->error, "s", r, j);
                }
                kt_that(t, turn->tile[i].m[r] == max, "m is the maximum", i, r);
            }
        }
    }
}

/* Begins with the scores of tile_rows_scores and a maximum that may exceed theirs. */
void check_tile_rows_values(kernel_test *t)
{
    rows_case *c = make_rows(t, WITH_RUNS | WITH_TERMS | WITH_MASK);
    const double raise = kt_chance(t, 0.5) ? 3 : 0;
    EACH_TABLE(t, k)
    {
        rows_turn *turn = turn_of(t, c);
        bool finite;
        for (int i = 0; i < c->count; i++) {
            turn->tile[i].m = kt_scratch(t, MHA_F32, 1, c->strips[i].rows, c->strips[i].rows);
            turn->tile[i].l = kt_output(t, MHA_F32, 1, c->strips[i].rows, c->strips[i].rows);
        }
        k->tile_rows_scores(turn->tiles, &turn->rows, &finite);
        if (!finite)
            for (int i = 0; i < c->count; i++)
                for (int r = 0; r < c->strips[i].rows; r++) turn->tile[i].l[r] = 0;
        if (!finite) continue;
        for (int i = 0; i < c->count; i++)
            for (int r = 0; r < c->strips[i].rows; r++) turn->tile[i].m[r] += (float)raise;
        KERNEL_CALL(t) k->tile_rows_values(turn->tiles, &turn->rows, &finite);
        kt_that(t, finite || !c->finite, "finite", c->count, 0);
        kt_that(t, !finite || !c->unfinite, "not finite", c->count, 0);
        const float *o = turn->rows.o;
        for (int i = 0; c->finite && i < c->count; i++) {
            strip_case s = c->strips[i]; /* begins a first step */
            float *zeros = kt_plain(t, (size_t)(s.rows * s.block->cols) * sizeof(float));
            float *m = kt_plain(t, (size_t)s.rows * sizeof(float));
            s.o = s.l = zeros;
            s.m = m;
            for (int r = 0; r < s.rows; r++, o += s.block->cols) {
                m[r] = turn->tile[i].m[r];
                if (t->exact[t->table]) kt_bits_of(t, o, s.block->cols);
                strip_expect(t, &s, c->pairs[i][r], r, (double)m[r], (double)turn->tile[i].l[r], o,
                             turn->tile[i].s + r * MHAI_SCORE_STRIDE, NULL);
            }
        }
    }
}

/* ---- a sequence that is one block ---------------------------------------------------------- */

/* A tensor over all pairs, or one that broadcasts over heads or queries. */
static mhai_dense make_dense(kernel_test *t, mha_dtype type, int64_t heads, int64_t queries,
                             int64_t keys)
{
    mhai_dense x = {.type = type, .key = kt_chance(t, 0.8) ? 1 : 2};
    const int64_t cols = (keys - 1) * x.key + 1, stride = kt_stride(t, cols);
    const int64_t tall = kt_chance(t, 0.2) ? 1 : queries, deep = kt_chance(t, 0.3) ? 1 : heads;
    unsigned char *at = kt_input(t, type, tall * deep, cols, stride);
    x.row = tall > 1 ? stride : 0;
    x.head = deep > 1 ? tall * stride : 0;
    for (int64_t r = 0; r < tall * deep; r++)
        for (int64_t j = 0; j < cols; j++) {
            const float value = kt_chance(t, 0.2) ? -INFINITY : kt_number(t);
            if (type == MHA_U8)
                at[r * stride + j] = kt_chance(t, 0.3) ? 0 : (uint8_t)rng_between(&t->r, 1, 255);
            else if (type == MHA_F32)
                ((float *)(void *)at)[r * stride + j] = value;
            else
                ((uint16_t *)(void *)at)[r * stride + j] = half_nearest(type, (double)value);
        }
    x.at = at;
    return x;
}

static const void *dense_at(const mhai_dense *x, int64_t head, int64_t query)
{
    const unsigned char *at = x->at;
    return at ? at + (size_t)(head * x->head + query * x->row) * mha_dtype_size(x->type) : NULL;
}

/* o = sum p v / sum p, for any reference of p. The bound is that of strip_expect(), plus a
 * quotient. */
static void expect_one(kernel_test *t, const strip_case *s, const strip_row *x, int64_t row,
                       const float *o, const float *m, const float *l)
{
    const block_case *b = s->block;
    const double top = x->any ? x->max : 0;
    double p[MHAI_KEY_BLOCK], p_error[MHAI_KEY_BLOCK], sum = 0, sum_error = 0;
    for (int j = 0; j < b->keys; j++) {
        p[j] = strip_power(&x->scores[j], m && x->any ? (double)m[row] : top, &p_error[j]);
        sum += p[j];
        sum_error += p_error[j];
    }
    sum_error += 36 * u * sum;
    if (m) kt_close(t, (double)m[row], x->max, x->error, "m", row, 0);
    if (m) kt_close(t, (double)l[row], sum, sum_error, "l", row, 0);
    for (int64_t i = 0; i < b->cols; i++) {
        double exact = 0, error = 0;
        for (int j = 0; j < b->keys; j++) {
            const double v = (double)b->v[j * b->cols + i];
            exact += p[j] * v;
            error += (p_error[j] + b->keys * u * p[j]) * fabs(v);
        }
        const double divisor = sum == 0 ? 1 : sum;
        exact /= divisor;
        error = (error + fabs(exact) * sum_error) / (divisor - sum_error) + u * fabs(exact);
        kt_close(t, (double)o[i], exact, error + (double)b->keys * 2 * tiny, "o", row, i);
    }
}

typedef struct one_case {
    int64_t heads, queries, first, rows, offset, q_row, q_head, o_row, o_head;
    float *q; /* unscaled */
    float factor;
    bool causal;
    mhai_dense keep, bias;
    block_case block;
} one_case;

/* Make keys and values in rows. */
static block_case make_rows_of(kernel_test *t, int keys, int64_t dim, int64_t cols,
                               int64_t k_stride, int64_t v_stride)
{
    block_case b = strip_block(t, WITH_ROWS, keys, dim, 1);
    float *v = kt_plain(t, (size_t)(keys * cols) * sizeof(float));
    kt_fill(t, v, keys * cols);
    b.cols = b.value_dim = cols;
    b.readable = keys;
    b.k_stride = k_stride;
    b.v_stride = v_stride;
    b.v = v;
    b.k_rows = kt_input(t, MHA_F32, keys, dim, k_stride);
    b.v_rows = kt_input(t, MHA_F32, keys, cols, v_stride);
    for (int j = 0; j < keys; j++) {
        memcpy(b.k_rows + j * k_stride, b.k + j * dim, (size_t)dim * sizeof(float));
        memcpy(b.v_rows + j * v_stride, v + j * cols, (size_t)cols * sizeof(float));
    }
    return b;
}

static int64_t make_head_size(kernel_test *t)
{
    if (t->timed) return 64;
    return kt_chance(t, 0.5) ? rng_between(&t->r, 1, 80) : 16 * rng_between(&t->r, 1, 5);
}

static one_case make_one(kernel_test *t)
{
    static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16};
    one_case c = {.heads = t->timed ? 1 : rng_between(&t->r, 1, 3),
                  .queries = kt_size(t, 30, 128),
                  .factor = 0.2f,
                  .causal = kt_chance(t, 0.5)};
    const int64_t all = c.heads * c.queries, dim = make_head_size(t), cols = make_head_size(t);
    const int keys =
        (int)(kt_chance(t, 0.3) ? kt_size(t, MHAI_KEY_BLOCK, 128) : kt_size(t, 80, 128));
    c.first = kt_chance(t, 0.4) ? rng_between(&t->r, 0, all - 1) : 0;
    c.rows = t->timed ? all : rng_between(&t->r, 1, all - c.first);
    c.offset = rng_between(&t->r, -c.queries, keys);
    c.block = make_rows_of(t, keys, dim, cols, kt_stride(t, dim), kt_stride(t, cols));
    const int64_t q_stride = kt_stride(t, dim), o_stride = kt_stride(t, cols);
    const bool swapped = kt_chance(t, 0.5);
    c.q = kt_input(t, MHA_F32, all, dim, q_stride);
    kt_fill_rows(t, c.q, all, dim, q_stride);
    c.q_head = swapped ? q_stride : c.queries * q_stride;
    c.q_row = swapped ? c.heads * q_stride : q_stride;
    c.o_head = swapped ? o_stride : c.queries * o_stride;
    c.o_row = swapped ? c.heads * o_stride : o_stride;
    if (kt_chance(t, 0.4)) c.keep = make_dense(t, MHA_U8, c.heads, c.queries, keys);
    if (kt_chance(t, 0.4)) c.bias = make_dense(t, RNG_PICK(&t->r, types), c.heads, c.queries, keys);
    return c;
}

/* Row r as a strip of one row, with the query scaled by scale_row. */
static strip_case row_case(kernel_test *t, const one_case *c, int64_t r)
{
    const int64_t head = (c->first + r) / c->queries, query = (c->first + r) % c->queries;
    const float *q = c->q + head * c->q_head + query * c->q_row;
    float *scaled = kt_plain(t, (size_t)c->block.dim * sizeof(float));
    int64_t end = c->causal ? query + c->offset + 1 : c->block.keys;
    end = end < 0 ? 0 : end > c->block.keys ? c->block.keys : end;
    for (int64_t d = 0; d < c->block.dim; d++) scaled[d] = q[d] * c->factor;
    strip_case s = {
        .block = &c->block, .rows = 1, .end = c->block.keys, .q = scaled, .masked = true};
    s.mask.end[0] = (int)end;
    s.mask.keep[0] = dense_at(&c->keep, head, query);
    s.mask.keep_stride = c->keep.key;
    s.mask.bias[0] = dense_at(&c->bias, head, query);
    s.mask.bias_stride = c->bias.key;
    s.mask.bias_type = c->bias.type;
    return s;
}

/* Make an element of a key or value non-finite. Returns whether it is in a key, which kernels always
 * detect. */
static bool spoil_rows(kernel_test *t, const block_case *b)
{
    const bool in_key = kt_chance(t, 0.5);
    const int key = (int)rng_between(&t->r, 0, b->keys - 1);
    t->undefined = true;
    if (in_key)
        b->k_rows[key * b->k_stride] = INFINITY;
    else
        b->v_rows[key * b->v_stride + b->cols - 1] = NAN;
    return in_key;
}

void check_one_block_forward(kernel_test *t)
{
    const one_case c = make_one(t);
    const block_case *b = &c.block;
    const int64_t all = c.heads * c.queries,
                  o_stride = c.o_row < c.o_head || c.heads == 1 ? c.o_row : c.o_head;
    const bool sums = kt_chance(t, 0.5), copies = kt_chance(t, 0.5);
    const bool spoiled = kt_chance(t, 0.1), fetches = kt_chance(t, 0.5);
    const float *nowhere = kt_nowhere(t);
    const bool detected = spoiled && spoil_rows(t, b);
    strip_case *strips = kt_plain(t, (size_t)c.rows * sizeof *strips);
    const strip_row ***pairs = kt_plain(t, (size_t)c.rows * sizeof *pairs);
    for (int64_t r = 0; r < c.rows && !t->timed; r++) {
        strips[r] = row_case(t, &c, r);
        pairs[r] = strip_rows(t, &strips[r]);
    }
    t->flops = 2.0 * (double)(c.rows * b->keys * (b->dim + b->cols));
    EACH_TABLE(t, k)
    {
        const int64_t panels = (b->cols + 31) / 32, block = (int64_t)MHAI_KEY_BLOCK * MHAI_PANEL;
        float *o = kt_output(t, MHA_F32, all, b->cols, o_stride);
        float *m = sums ? kt_output(t, MHA_F32, 1, c.rows, c.rows) : NULL;
        float *l = sums ? kt_output(t, MHA_F32, 1, c.rows, c.rows) : NULL;
        mhai_fetch fetch = {.run = fetches ? 1 : MHAI_FETCH_RUNS,
                            .runs = {{0}, {nowhere, 70, 64}, {nowhere, 64, 16}}};
        const int64_t strip = MHAI_MAX_ROWS * (int64_t)MHAI_SCORE_STRIDE;
        const mhai_one_block one = {
            .first = c.first,
            .rows = c.rows,
            .queries = c.queries,
            .keys = b->keys,
            .q = c.q,
            .k = b->k_rows,
            .v = b->v_rows,
            .q_head = c.q_head,
            .q_row = c.q_row,
            .k_row = b->k_stride,
            .v_row = b->v_stride,
            .o = o,
            .o_head = c.o_head,
            .o_row = c.o_row,
            .head_dim = b->dim,
            .value_dim = b->cols,
            .factor = c.factor,
            .causal = c.causal,
            .offset = c.offset,
            .keep = c.keep,
            .bias = c.bias,
            .m = m,
            .l = l,
            .panels = kt_scratch(t, MHA_F32, 1, 16 * b->dim * 32, 16 * b->dim * 32),
            .values = copies ? kt_scratch(t, MHA_F32, 1, panels * block, panels * block) : NULL,
            .tail = kt_scratch(t, MHA_F32, 1, block, block),
            .scaled = kt_scratch(t, MHA_F32, 1, MHAI_MAX_ROWS * b->dim, MHAI_MAX_ROWS * b->dim),
            .s = kt_scratch(t, MHA_F32, 1, strip, strip),
            .fetch = &fetch,
            .fetch_outputs = fetches};
        bool done = spoiled;
        KERNEL_CALL(t) k->one_block_forward(&one, &done);
        kt_that(t, done || spoiled, "done", 0, 0);
        kt_that(t, !done || !detected, "not done", 0, 0);
        for (int64_t r = 0; r < all && !t->timed; r++) {
            const int64_t at = (r / c.queries) * c.o_head + r % c.queries * c.o_row;
            const bool mine = r >= c.first && r < c.first + c.rows;
            if (mine && done && !spoiled)
                expect_one(t, &strips[r - c.first], pairs[r - c.first][0], r - c.first, o + at, m,
                           l);
            for (int64_t i = 0; !mine && i < b->cols; i++)
                kt_that(t, memcmp(o + at + i, &(uint32_t){UINT32_MAX}, 4) == 0, "another row of o",
                        r, i);
        }
    }
}

/* ---- lanes ----------------------------------------------------------------------------------- */

typedef struct lanes_case {
    int lanes, rows, keys;
    int64_t dim, cols, q_stride, k_stride, v_stride, o_stride;
    one_case lane[MHAI_LANES];
    strip_case strip[MHAI_LANES][MHAI_LANE_ROWS];
    const strip_row **row[MHAI_LANES][MHAI_LANE_ROWS];
} lanes_case;

static lanes_case *make_lanes(kernel_test *t)
{
    lanes_case *c = kt_plain(t, sizeof *c);
    c->lanes = t->timed ? MHAI_LANES : (int)rng_between(&t->r, 1, MHAI_LANES);
    c->rows = t->timed ? 8 : (int)rng_between(&t->r, 1, MHAI_LANE_ROWS);
    c->keys = t->timed ? 8 : (int)rng_between(&t->r, 1, MHAI_LANE_KEYS);
    c->dim = make_head_size(t), c->cols = make_head_size(t);
    c->q_stride = kt_stride(t, c->dim), c->k_stride = kt_stride(t, c->dim);
    c->v_stride = kt_stride(t, c->cols), c->o_stride = kt_stride(t, c->cols);
    for (int h = 0; h < c->lanes; h++) {
        one_case *lane = &c->lane[h];
        *lane = (one_case){.heads = 1,
                           .queries = c->rows,
                           .rows = c->rows,
                           .factor = 0.2f,
                           .causal = kt_chance(t, 0.5),
                           .offset = rng_between(&t->r, -2, c->keys),
                           .q_row = c->q_stride};
        lane->block = make_rows_of(t, c->keys, c->dim, c->cols, c->k_stride, c->v_stride);
        lane->q = kt_input(t, MHA_F32, c->rows, c->dim, c->q_stride);
        kt_fill_rows(t, lane->q, c->rows, c->dim, c->q_stride);
        for (int r = 0; r < c->rows; r++) c->strip[h][r] = row_case(t, lane, r);
    }
    t->flops = 2.0 * c->lanes * c->rows * c->keys * (double)(c->dim + c->cols);
    return c;
}

static mhai_lanes lanes_of(kernel_test *t, const lanes_case *c)
{
    const int64_t turned = (c->rows + c->keys) * c->dim * MHAI_LANES;
    mhai_lanes x = {.lanes = c->lanes,
                    .rows = c->rows,
                    .keys = c->keys,
                    .q_row = c->q_stride,
                    .k_row = c->k_stride,
                    .v_row = c->v_stride,
                    .o_row = c->o_stride,
                    .head_dim = c->dim,
                    .value_dim = c->cols,
                    .factor = 0.2f,
                    .m = kt_scratch(t, MHA_F32, c->rows, MHAI_LANES, MHAI_LANES),
                    .l = kt_scratch(t, MHA_F32, c->rows, MHAI_LANES, MHAI_LANES),
                    .turned = kt_scratch(t, MHA_F32, 1, turned, turned)};
    for (int h = 0; h < MHAI_LANES; h++) {
        const one_case *lane = &c->lane[h < c->lanes ? h : 0];
        x.q[h] = lane->q;
        x.k[h] = lane->block.k_rows;
        if (h >= c->lanes) continue;
        x.v[h] = lane->block.v_rows;
        x.o[h] = kt_output(t, MHA_F32, c->rows, c->cols, c->o_stride);
        for (int r = 0; r < c->rows; r++) x.ends[r][h] = (float)c->strip[h][r].mask.end[0];
    }
    return x;
}

void check_lanes_forward(kernel_test *t)
{
    lanes_case *c = make_lanes(t);
    const bool spoiled = kt_chance(t, 0.1);
    const bool detected =
        spoiled && spoil_rows(t, &c->lane[rng_between(&t->r, 0, c->lanes - 1)].block);
    for (int h = 0; h < c->lanes && !t->timed; h++)
        for (int r = 0; r < c->rows; r++) c->row[h][r] = strip_rows(t, &c->strip[h][r]);
    EACH_TABLE(t, k)
    {
        const mhai_lanes x = lanes_of(t, c);
        bool done = spoiled;
        KERNEL_CALL(t) k->lanes_forward(&x, &done);
        kt_that(t, done || spoiled, "done", 0, 0);
        kt_that(t, !done || !detected, "not done", 0, 0);
        for (int h = 0; h < c->lanes && done && !spoiled && !t->timed; h++)
            for (int r = 0; r < c->rows; r++)
                expect_one(t, &c->strip[h][r], c->row[h][r][0], r * MHAI_LANES + h,
                           x.o[h] + r * c->o_stride, x.m, x.l);
    }
}
