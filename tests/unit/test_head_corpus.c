/* Corpus statistics compared with simple loops in double over all rows of all texts; bit-identical
 * results for any order, division, number of threads and block of rows; confidence intervals and
 * permutation nulls in known cases. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/head_corpus.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 3, ALL = LAYERS * HEADS, MOST = 24, VOCAB = 6, WIDTH = 3, EMBED = 5 };

typedef struct text {
    int64_t n, ids[MOST];
    float map[LAYERS][HEADS][MOST][MOST];
    float v[LAYERS][HEADS][MOST][WIDTH];
} text;

typedef struct corpus {
    text *texts;
    int64_t count;
    float weight[LAYERS][EMBED][HEADS * WIDTH];
} corpus;

static mha_context *one, *several;

/* ---- random corpora -------------------------------------------------------------------------- */

static void make_row(rng *r, float *row, int64_t keys)
{
    double sum = 0;
    for (int64_t j = 0; j < keys; j++) sum += row[j] = (float)exp(2 * (double)rng_normal(r));
    for (int64_t j = 0; j < keys; j++) row[j] = (float)((double)row[j] / sum * 0.99999);
}

static corpus corpus_make(rng *r, int64_t count)
{
    corpus c = {.texts = calloc((size_t)count, sizeof *c.texts), .count = count};
    assert_non_null(c.texts);
    for (int64_t k = 0; k < count; k++) {
        text *x = &c.texts[k];
        x->n = rng_between(r, 1, MOST);
        for (int64_t i = 0; i < x->n; i++) x->ids[i] = rng_between(r, 0, VOCAB - 1);
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++)
                for (int64_t i = 0; i < x->n; i++) {
                    make_row(r, x->map[l][h][i], i + 1);
                    for (int d = 0; d < WIDTH; d++) x->v[l][h][i][d] = rng_normal(r);
                }
    }
    for (size_t i = 0; i < sizeof c.weight / sizeof(float); i++)
        (&c.weight[0][0][0])[i] = rng_normal(r);
    return c;
}

static void corpus_free(corpus *c)
{
    free(c->texts);
}

typedef struct object {
    mha_head_measures *measures;
    mha_head_corpus *corpus;
} object;

static const mha_head_corpus_desc usual = {.struct_size = sizeof usual,
                                           .vocab_size = VOCAB,
                                           .places = 3,
                                           .replicates = 40,
                                           .permutations = 30,
                                           .seed = 9};

static object object_make(mha_context *context, const mha_head_corpus_desc *desc)
{
    static const int64_t heads[LAYERS] = {HEADS, HEADS};
    const mha_head_measures_desc d = {
        .struct_size = sizeof d, .layers = LAYERS, .heads = heads, .rare_rank = -1};
    object o = {0};
    expect_ok(mha_head_measures_create(context, &d, &o.measures));
    expect_ok(mha_head_corpus_create(context, o.measures, desc, &o.corpus));
    expect_ok(mha_head_corpus_attach(o.measures, o.corpus));
    return o;
}

static void object_free(object *o)
{
    mha_head_measures_destroy(o->measures);
    mha_head_corpus_destroy(o->corpus);
}

static mha_tensor map_of(const text *x, int l, int64_t row, int64_t rows)
{
    mha_tensor p = mha_tensor_contiguous((void *)(uintptr_t)x->map[l][0][row], MHA_F32, 3,
                                         (int64_t[]){HEADS, rows, x->n});
    p.stride[0] = (int64_t)MOST * MOST;
    p.stride[1] = MOST;
    return p;
}

static void feed(object *o, const corpus *c, int64_t k, int64_t block, bool values)
{
    const text *x = &c->texts[k];
    const mha_heads_text t = {.struct_size = sizeof t,
                              .flags = MHA_HEADS_CAUSAL,
                              .queries = x->n,
                              .keys = x->n,
                              .ids = x->ids};
    expect_ok(mha_head_corpus_number(o->corpus, k));
    expect_ok(mha_head_measures_begin(o->measures, &t));
    for (int l = 0; l < LAYERS; l++) {
        mha_tensor v = mha_tensor_contiguous((void *)(uintptr_t)x->v[l], MHA_F32, 3,
                                             (int64_t[]){HEADS, x->n, WIDTH});
        v.stride[0] = (int64_t)MOST * WIDTH;
        const mha_tensor w = mha_tensor_contiguous((void *)(uintptr_t)c->weight[l], MHA_F32, 2,
                                                   (int64_t[]){EMBED, HEADS * WIDTH});
        if (values) expect_ok(mha_head_corpus_values(o->corpus, l, &v, &w));
        for (int64_t row = 0; row < x->n; row += block) {
            const mha_tensor p = map_of(x, l, row, x->n - row < block ? x->n - row : block);
            expect_ok(mha_head_measures_rows(o->measures, l, row, &p));
        }
    }
    expect_ok(mha_head_measures_end(o->measures));
}

/* ---- simple loops ---------------------------------------------------------------------------- */

/* Some scores of a row, or NaN where the row is not eligible. */
static const mha_head_measure known[] = {
    MHA_MEASURE_PREVIOUS, MHA_MEASURE_SELF,      MHA_MEASURE_FIRST, MHA_MEASURE_ENTROPY,
    MHA_MEASURE_DISTANCE, MHA_MEASURE_DUPLICATE, MHA_MEASURE_SINK};
enum { KNOWN = sizeof known / sizeof *known };

static double score_of(const text *x, const float *row, int64_t i, mha_head_measure which)
{
    double sum = 0;
    int64_t targets = 0;
    if (which == MHA_MEASURE_SINK) return (double)row[0];
    if (i < 1) return NAN;
    switch (which) {
    case MHA_MEASURE_PREVIOUS: return (double)row[i - 1];
    case MHA_MEASURE_SELF: return (double)row[i];
    case MHA_MEASURE_FIRST: return (double)row[0];
    case MHA_MEASURE_ENTROPY:
        for (int64_t j = 0; j <= i; j++) sum -= (double)row[j] * log((double)row[j]);
        return sum;
    case MHA_MEASURE_DISTANCE:
        for (int64_t j = 0; j <= i; j++) sum += (double)row[j] * (double)(i - j);
        return sum;
    default:
        for (int64_t j = 0; j < i; j++)
            if (x->ids[j] == x->ids[i]) sum += (double)row[j], targets++;
        return targets > 0 && targets < i + 1 ? sum : NAN;
    }
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int64_t largest_key(const float *row, int64_t i)
{
    int64_t best = 0;
    for (int64_t j = 1; j <= i; j++)
        if (row[j] > row[best]) best = j;
    return best;
}

/* The best row of a text. */
static mha_head_place best_of(const corpus *c, int64_t k, int l, int h, mha_head_measure which,
                              bool least)
{
    mha_head_place best = {.text = -1};
    for (int64_t i = 0; i < c->texts[k].n; i++) {
        const float *row = c->texts[k].map[l][h][i];
        const double value = score_of(&c->texts[k], row, i, which);
        if (isnan(value) || i + 1 < MHA_HEAD_CORPUS_PLACE_KEYS) continue;
        if (best.text >= 0 && (least ? value >= best.value : value <= best.value)) continue;
        best = (mha_head_place){k, i, which == MHA_MEASURE_SINK ? 0 : largest_key(row, i), value};
    }
    return best;
}

static void check_places(const corpus *c, const object *o, int l, int h, mha_head_measure which,
                         bool least)
{
    mha_head_place held[MHA_HEAD_CORPUS_MOST_PLACES];
    bool *used = calloc((size_t)c->count, sizeof *used);
    const int64_t count = mha_head_corpus_places(o->corpus, l, h, which, least, held, 3);
    for (int64_t i = 0; i < count; i++) {
        mha_head_place best = {.text = -1};
        for (int64_t k = 0; k < c->count; k++) {
            const mha_head_place p = best_of(c, k, l, h, which, least);
            if (used[k] || p.text < 0) continue;
            if (best.text < 0 || (least ? p.value < best.value : p.value > best.value)) best = p;
        }
        assert_true(best.text >= 0);
        /* Entropies of two texts may differ only by rounding; the other scores are weights. */
        assert_true(fabs(held[i].value - best.value) < 1e-12 * (1 + fabs(best.value)));
        if (which != MHA_MEASURE_ENTROPY && which != MHA_MEASURE_DISTANCE &&
            which != MHA_MEASURE_DUPLICATE) {
            assert_int_equal(held[i].text, best.text);
            assert_int_equal(held[i].row, best.row);
            assert_int_equal(held[i].key, best.key);
        }
        used[held[i].text] = true;
    }
    free(used);
}

static void check_score(const corpus *c, const object *o, int l, int h, mha_head_measure which)
{
    double *values = calloc((size_t)(c->count * MOST), sizeof *values), sum = 0;
    int64_t rows = 0, texts = 0;
    for (int64_t k = 0; k < c->count; k++) {
        const int64_t before = rows;
        for (int64_t i = 0; i < c->texts[k].n; i++) {
            const double value = score_of(&c->texts[k], c->texts[k].map[l][h][i], i, which);
            if (!isnan(value)) sum += values[rows++] = value;
        }
        texts += rows > before;
    }
    const mha_head_distribution d = mha_head_corpus_distribution(o->corpus, l, h, which);
    assert_int_equal(d.rows, rows);
    assert_int_equal(d.texts, texts);
    if (rows == 0) {
        free(values);
        return;
    }
    assert_true(fabs(d.mean - sum / (double)rows) < 1e-11);
    assert_true(d.mean == mha_head_measures_score(o->measures, l, h, which).value);
    assert_true(d.low <= d.high);
    qsort(values, (size_t)rows, sizeof *values, ascending);
    assert_true(fabs(d.deciles[0] - values[0]) < 1e-12 * (1 + values[0]));
    assert_true(fabs(d.deciles[10] - values[rows - 1]) < 1e-12 * (1 + values[rows - 1]));
    for (int i = 1; i < 10; i++) {
        const double rank = (double)(rows - 1) * i / 10;
        const double low = values[(int64_t)floor(rank)], high = values[(int64_t)ceil(rank)];
        const mha_measure_kind kind = mha_measure_describe(which).kind;
        const double bin = kind == MHA_KIND_NATS     ? 1.0 / 16
                           : kind == MHA_KIND_TOKENS ? 1.0 / 16 + high / 16
                                                     : 1.0 / 256;
        assert_true(d.deciles[i] >= low - bin - 1e-12 && d.deciles[i] <= high + bin + 1e-12);
    }
    free(values);
    check_places(c, o, l, h, which, false);
    check_places(c, o, l, h, which, true);
}

static double norm_of(const corpus *c, const text *x, int l, int h, int64_t j)
{
    double square = 0;
    for (int e = 0; e < EMBED; e++) {
        double f = 0;
        for (int d = 0; d < WIDTH; d++)
            f += (double)c->weight[l][e][h * WIDTH + d] * (double)x->v[l][h][j][d];
        square += f * f;
    }
    return sqrt(square);
}

/* Tokens, positions and other data of a head, summed directly. */
typedef struct plain {
    double read[VOCAB], expected[VOCAB], written[VOCAB], rest, moved, all_written;
    int64_t keys[VOCAB], rows[VOCAB], rest_rows;
    double entropy[MHA_HEAD_CORPUS_POSITIONS], distance[MHA_HEAD_CORPUS_POSITIONS];
    int64_t at[MHA_HEAD_CORPUS_POSITIONS];
} plain;

static void add_row(const corpus *c, const text *x, int l, int h, int64_t i, plain *p)
{
    const float *row = x->map[l][h][i];
    double moved = 0;
    int bin = 0;
    for (int64_t far = i; far > 0; far /= 2) bin++;
    p->at[bin]++;
    p->entropy[bin] += score_of(x, row, i, MHA_MEASURE_ENTROPY);
    p->distance[bin] += score_of(x, row, i, MHA_MEASURE_DISTANCE);
    for (int64_t j = 1; j <= i; j++) {
        p->read[x->ids[j]] += (double)row[j];
        p->expected[x->ids[j]] += 1 / (double)(i + 1);
        moved += (double)row[j] * norm_of(c, x, l, h, j);
    }
    const double first = (double)row[0] * norm_of(c, x, l, h, 0);
    p->rest += (double)row[0];
    p->rest_rows++;
    p->moved += first / (first + moved);
    p->written[x->ids[i]] += moved;
    p->all_written += moved;
    p->rows[x->ids[i]]++;
}

static void check_tokens(const object *o, int l, int h, const plain *p, mha_head_token_list list)
{
    mha_head_token found[VOCAB];
    const int64_t count = mha_head_corpus_tokens(o->corpus, l, h, list, 1, found, VOCAB);
    int64_t kinds = 0;
    for (int id = 0; id < VOCAB; id++)
        kinds += (list == MHA_HEAD_READS ? p->keys : p->rows)[id] > 0;
    assert_int_equal(count, kinds);
    for (int64_t i = 0; i < count; i++) {
        const int64_t id = found[i].token;
        const bool reads = list == MHA_HEAD_READS;
        const double mass = reads ? p->read[id] : p->written[id];
        const int64_t places = reads ? p->keys[id] : p->rows[id];
        const double expected =
            reads ? p->expected[id] : p->all_written / (double)p->rest_rows * (double)places;
        assert_int_equal(found[i].count, places);
        /* Terms are in fixed point of 2^-20 or 2^-16, and norms have an error of at most 1e-5. */
        assert_true(fabs(found[i].mass - mass) < 1e-4 * (1 + mass));
        assert_true(fabs(found[i].expected - expected) < 1e-4 * (1 + expected));
        assert_true(found[i].mean == found[i].mass / (double)places);
        if (i > 0)
            assert_true(reads ? found[i].mass <= found[i - 1].mass
                              : found[i].mean <= found[i - 1].mean);
    }
    assert_int_equal(mha_head_corpus_tokens(o->corpus, l, h, list, 1, found, 1), kinds > 0);
    assert_int_equal(mha_head_corpus_tokens(o->corpus, l, h, list, INT64_MAX, found, VOCAB), 0);
}

static void check_head(const corpus *c, const object *o, int l, int h)
{
    plain p = {0};
    mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS];
    for (int n = 0; n < KNOWN; n++) check_score(c, o, l, h, known[n]);
    for (int64_t k = 0; k < c->count; k++) {
        const text *x = &c->texts[k];
        for (int64_t i = 1; i < x->n; i++) {
            add_row(c, x, l, h, i, &p);
            p.keys[x->ids[i]]++;
        }
    }
    check_tokens(o, l, h, &p, MHA_HEAD_READS);
    check_tokens(o, l, h, &p, MHA_HEAD_WRITES);
    const int64_t count = mha_head_corpus_positions(o->corpus, l, h, bins);
    for (int i = 0; i < MHA_HEAD_CORPUS_POSITIONS; i++) {
        assert_int_equal(i < count ? bins[i].rows : 0, p.at[i]);
        if (i < count) { /* 0, 1, 2 .. 3, 4 .. 7, ... */
            assert_int_equal(bins[i].first, i == 0 ? 0 : 1 << (i - 1));
            assert_int_equal(bins[i].last, (1 << i) - 1);
        }
        if (p.at[i] == 0) continue;
        assert_true(fabs(bins[i].entropy - p.entropy[i] / (double)p.at[i]) < 1e-4);
        assert_true(fabs(bins[i].distance - p.distance[i] / (double)p.at[i]) < 1e-3);
    }
    const mha_head_rest rest = mha_head_corpus_rest(o->corpus, l, h);
    assert_int_equal(rest.rows, p.rest_rows);
    assert_int_equal(rest.moved_rows, p.rest_rows);
    if (p.rest_rows == 0) return;
    assert_true(fabs(rest.mass - p.rest / (double)p.rest_rows) < 1e-6);
    assert_true(fabs(rest.moved - p.moved / (double)p.rest_rows) < 1e-5);
}

static void it_is_what_plain_loops_find(void)
{
    const int cases = rng_cases(8, 200);
    for (int n = 0; n < cases; n++) {
        rng r = rng_make(rng_run_seed(), 1000000 + (uint64_t)n);
        corpus c = corpus_make(&r, rng_between(&r, 1, 12));
        object o = object_make(one, &usual);
        for (int64_t k = 0; k < c.count; k++) feed(&o, &c, k, 1 + n % 7, true);
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++) check_head(&c, &o, l, h);
        object_free(&o);
        corpus_free(&c);
    }
}

/* Three equal texts, and tokens that receive and write equally: ties are ordered by number. */
static void equals_have_an_order(void)
{
    enum { N = 10 };
    static const int64_t ids[N] = {0, 3, 1, 2, 1, 3, 2, 2, 1, 3}, order[] = {2, 0, 1};
    rng r = rng_make(1, 1);
    corpus c = corpus_make(&r, 3);
    object o = object_make(one, &usual);
    for (int l = 0; l < LAYERS; l++)
        for (int e = 0; e < EMBED; e++)
            for (int d = 0; d < HEADS * WIDTH; d++) c.weight[l][e][d] = 1;
    for (int k = 0; k < 3; k++) {
        text *x = &c.texts[k];
        x->n = N;
        for (int i = 0; i < N; i++) x->ids[i] = ids[i];
        for (int at = 0; at < LAYERS * HEADS * N; at++) {
            const int l = at / N / HEADS, h = at / N % HEADS, i = at % N;
            for (int d = 0; d < WIDTH; d++) x->v[l][h][i][d] = 1;
            for (int j = 0; j <= i; j++)
                x->map[l][h][i][j] = i == 0 ? 1 : j == 0 || j == i ? 0.5f : 0;
        }
    }
    for (int k = 0; k < 3; k++) feed(&o, &c, order[k], N, true);
    for (int least = 0; least < 2; least++) {
        mha_head_place places[3];
        assert_int_equal(mha_head_corpus_places(o.corpus, 0, 0, MHA_MEASURE_SELF, least, places, 3),
                         3);
        for (int k = 0; k < 3; k++) assert_int_equal(places[k].text, k);
    }
    for (int list = 0; list < 2; list++) {
        mha_head_token tokens[4];
        assert_int_equal(
            mha_head_corpus_tokens(o.corpus, 0, 0, (mha_head_token_list)list, 1, tokens, 4), 3);
        for (int k = 0; k < 3; k++) assert_int_equal(tokens[k].token, k + 1);
    }
    object_free(&o);
    corpus_free(&c);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void *counted_alloc(void *user, size_t bytes, size_t alignment)
{
    *(int64_t *)user += (int64_t)bytes;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void counted_release(void *user, void *memory, size_t bytes)
{
    *(int64_t *)user -= (int64_t)bytes;
    free(memory);
}

static void memory_is_returned(void)
{
    int64_t held = 0;
    mha_context *context = NULL;
    const mha_context_desc counted = {
        .struct_size = sizeof counted,
        .num_threads = 1,
        .allocator = {.alloc = counted_alloc, .release = counted_release, .user = &held}};
    expect_ok(mha_context_create(&counted, &context));
    rng r = rng_make(1, 2);
    corpus c = corpus_make(&r, 1);
    object o = object_make(context, &usual);
    feed(&o, &c, 0, MOST, true);
    object_free(&o);
    corpus_free(&c);
    mha_context_destroy(context);
    assert_int_equal(held, 0);
}

/* If norms of values overflow, the rows are omitted only from the moved mass. */
static void norms_beyond_all_sums_are_left_out(void)
{
    static const float huge[] = {1e30F, 1e5F, INFINITY, NAN, -1e38F};
    rng r = rng_make(rng_run_seed(), 3000000);
    for (size_t n = 0; n < sizeof huge / sizeof *huge; n++) {
        corpus c = corpus_make(&r, 1);
        object o = object_make(one, &usual);
        c.texts[0].n = MOST;
        for (int64_t i = 0; i < MOST; i++) {
            c.texts[0].ids[i] = 0;
            make_row(&r, c.texts[0].map[0][0][i], i + 1);
            for (int h = 1; h < ALL; h++)
                memcpy(c.texts[0].map[h / HEADS][h % HEADS][i], c.texts[0].map[0][0][i],
                       sizeof c.texts[0].map[0][0][i]);
            for (int d = 0; d < WIDTH; d++)
                c.texts[0].v[0][0][i][d] = huge[n] * (n == 1 ? 1e3F : 1);
        }
        feed(&o, &c, 0, MOST, true);
        const mha_head_rest rest = mha_head_corpus_rest(o.corpus, 0, 0);
        assert_int_equal(rest.rows, MOST - 1);
        assert_int_equal(rest.moved_rows, 0);
        assert_true(rest.mass > 0 && rest.moved == 0);
        object_free(&o);
        corpus_free(&c);
    }
}

/* ---- bits ------------------------------------------------------------------------------------ */

/* All readings of a corpus. */
typedef struct everything {
    mha_head_distribution d[ALL][MHA_MEASURES];
    mha_head_place places[ALL][MHA_MEASURES][2][3];
    mha_head_token tokens[ALL][2][VOCAB];
    mha_head_position positions[ALL][MHA_HEAD_CORPUS_POSITIONS];
    mha_head_rest rest[ALL];
    double luck[MHA_MEASURES];
} everything;

static everything *read_all(const object *o)
{
    everything *e = calloc(1, sizeof *e);
    assert_non_null(e);
    for (int n = 0; n < MHA_MEASURES; n++)
        e->luck[n] = mha_head_corpus_luck(o->corpus, (mha_head_measure)n);
    for (int i = 0; i < ALL; i++) {
        const int l = i / HEADS, h = i % HEADS;
        for (int n = 0; n < MHA_MEASURES; n++) {
            const mha_head_measure which = (mha_head_measure)n;
            e->d[i][n] = mha_head_corpus_distribution(o->corpus, l, h, which);
            for (int side = 0; side < 2; side++)
                mha_head_corpus_places(o->corpus, l, h, which, side, e->places[i][n][side], 3);
        }
        for (int list = 0; list < 2; list++)
            mha_head_corpus_tokens(o->corpus, l, h, (mha_head_token_list)list, 1,
                                   e->tokens[i][list], VOCAB);
        mha_head_corpus_positions(o->corpus, l, h, e->positions[i]);
        e->rest[i] = mha_head_corpus_rest(o->corpus, l, h);
    }
    return e;
}

static void order_and_division_leave_no_trace(void)
{
    const int cases = rng_cases(10, 200);
    for (int n = 0; n < cases; n++) {
        rng r = rng_make(rng_run_seed(), 2000000 + (uint64_t)n);
        corpus c = corpus_make(&r, rng_between(&r, 1, 9));
        object whole = object_make(one, &usual), part[3];
        for (int64_t k = 0; k < c.count; k++) feed(&whole, &c, k, MOST, true);
        for (int i = 0; i < 3; i++) part[i] = object_make(i == 1 ? several : one, &usual);
        for (int64_t k = c.count - 1; k >= 0; k--)
            feed(&part[rng_between(&r, 0, 2)], &c, k, rng_between(&r, 1, MOST), true);
        for (int i = 0; i < 2; i++) {
            expect_ok(mha_head_corpus_merge(part[2].corpus, part[i].corpus));
            expect_ok(mha_head_measures_merge(part[2].measures, part[i].measures));
        }
        everything *a = read_all(&whole), *b = read_all(&part[2]);
        assert_memory_equal(a, b, sizeof *a);
        free(a);
        free(b);
        object_free(&whole);
        for (int i = 0; i < 3; i++) object_free(&part[i]);
        corpus_free(&c);
    }
}

/* ---- intervals and permutation nulls --------------------------------------------------------- */

/* One counted row per text: the weight of the second of two tokens on the first. */
static corpus corpus_of_weights(const float *weights, int64_t count)
{
    corpus c = {.texts = calloc((size_t)count, sizeof *c.texts), .count = count};
    assert_non_null(c.texts);
    for (int64_t k = 0; k < count; k++) {
        c.texts[k].n = 2;
        for (int l = 0; l < LAYERS; l++)
            for (int h = 0; h < HEADS; h++) {
                const float w = weights[k * ALL + l * HEADS + h];
                c.texts[k].map[l][h][0][0] = 1;
                c.texts[k].map[l][h][1][0] = w;
                c.texts[k].map[l][h][1][1] = 1 - w;
            }
    }
    return c;
}

/* The interval is 1.96 standard errors to both sides; quantiles of 1,000 replicates have an error
 * of about 5 % of that. */
static void intervals_are_those_of_many_texts(void)
{
    enum { TEXTS = 400 };
    static float weights[TEXTS * ALL];
    rng r = rng_make(rng_run_seed(), 0);
    for (int i = 0; i < TEXTS * ALL; i++) weights[i] = (float)rng_uniform(&r);
    corpus c = corpus_of_weights(weights, TEXTS);
    mha_head_corpus_desc desc = usual;
    desc.replicates = MHA_HEAD_CORPUS_MOST_REPLICATES;
    object o = object_make(one, &desc);
    for (int64_t k = 0; k < TEXTS; k++) feed(&o, &c, k, 2, false);
    for (int h = 0; h < HEADS; h++) {
        const mha_head_distribution d =
            mha_head_corpus_distribution(o.corpus, 1, h, MHA_MEASURE_FIRST);
        const double error = sqrt(1.0 / 12 / TEXTS);
        assert_true(fabs((d.high - d.low) / (2 * 1.96 * error) - 1) < 0.2);
        assert_true(d.low < d.mean && d.mean < d.high);
        assert_true(fabs(d.deciles[5] - 0.5) < 0.15);
    }
    object_free(&o);
    corpus_free(&c);
}

static void luck_is_what_exchanged_heads_reach(void)
{
    enum { TEXTS = 60 };
    static float weights[TEXTS * ALL];
    rng r = rng_make(rng_run_seed(), 0);
    /* With equal heads, the best one is no better than under the permutation null. */
    for (int i = 0; i < TEXTS * ALL; i++) weights[i] = 0.25F;
    corpus c = corpus_of_weights(weights, TEXTS);
    mha_head_corpus_desc desc = usual;
    desc.permutations = 300;
    object o = object_make(one, &desc);
    for (int64_t k = 0; k < TEXTS; k++) feed(&o, &c, k, 2, false);
    assert_true(mha_head_corpus_luck(o.corpus, MHA_MEASURE_FIRST) == 0.25);
    assert_true(mha_head_corpus_distribution(o.corpus, 0, 0, MHA_MEASURE_FIRST).low == 0.25);
    object_free(&o);
    corpus_free(&c);
    /* Uniform weights: each of six means of 60 has the standard deviation sqrt(1 / 12 / 60) =
     * 0.037, and the 95 % point of the largest is near 0.5 + 2.39 * 0.037. One head is far above
     * it. */
    for (int i = 0; i < TEXTS * ALL; i++)
        weights[i] = (float)(i % ALL == 4 ? 0.9 + 0.1 * rng_uniform(&r) : rng_uniform(&r));
    c = corpus_of_weights(weights, TEXTS);
    o = object_make(one, &desc);
    for (int64_t k = 0; k < TEXTS; k++) feed(&o, &c, k, 2, false);
    const double luck = mha_head_corpus_luck(o.corpus, MHA_MEASURE_FIRST);
    const double best = mha_head_corpus_distribution(o.corpus, 1, 1, MHA_MEASURE_FIRST).low;
    assert_true(luck > 0.55 && luck < 0.75 && best > luck);
    object_free(&o);
    corpus_free(&c);
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void misuse_is_refused(void)
{
    static const int64_t others[LAYERS] = {HEADS, HEADS + 1};
    const mha_head_measures_desc other = {
        .struct_size = sizeof other, .layers = LAYERS, .heads = others};
    rng r = rng_make(rng_run_seed(), 0);
    corpus c = corpus_make(&r, 2);
    object o = object_make(one, &usual), p = object_make(one, &usual);
    mha_head_corpus_desc d = usual;
    mha_head_corpus *made = NULL;
    mha_head_measures *measures = NULL;
#define CREATE mha_head_corpus_create(one, o.measures, &d, &made)
    expect_spoiled(d, CREATE, MHA_ERR_UNSUPPORTED, "flags 0x1", d.flags = 1);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "vocab_size is -1", d.vocab_size = -1);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "places is 65", d.places = 65);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "places is -1", d.places = -1);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "replicates is 1001", d.replicates = 1001);
    expect_spoiled(d, CREATE, MHA_ERR_ARGUMENT, "permutations is -2", d.permutations = -2);
    expect_error(mha_head_corpus_create(one, NULL, &d, &made), MHA_ERR_NULL, "measures");
    assert_null(made);
    expect_ok(mha_head_measures_create(one, &other, &measures));
    expect_error(mha_head_corpus_attach(measures, o.corpus), MHA_ERR_ARGUMENT, "other heads");
    expect_error(mha_head_corpus_attach(NULL, o.corpus), MHA_ERR_NULL, "measures");
    expect_error(mha_head_corpus_number(o.corpus, -1), MHA_ERR_ARGUMENT, "text is -1");
    expect_error(mha_head_corpus_merge(o.corpus, o.corpus), MHA_ERR_ARGUMENT, "same object");
    d.seed++;
    expect_ok(CREATE);
    expect_error(mha_head_corpus_merge(o.corpus, made), MHA_ERR_ARGUMENT, "different descriptions");
    mha_head_corpus_destroy(made);
    const mha_tensor w = mha_tensor_contiguous(c.weight[0], MHA_F32, 2, (int64_t[]){EMBED, 9});
    mha_tensor v = mha_tensor_contiguous(c.texts[0].v[0], MHA_F32, 3, (int64_t[]){2, 1, WIDTH});
    expect_error(mha_head_corpus_values(o.corpus, 0, &v, &w), MHA_ERR_ARGUMENT, "no text is open");
    int64_t id = VOCAB;
    const mha_heads_text t = {.struct_size = sizeof t, .queries = 1, .keys = 1, .ids = &id};
    expect_error(mha_head_measures_begin(o.measures, &t), MHA_ERR_ARGUMENT, "ids[0] is 6");
    id = 0;
    expect_ok(mha_head_measures_begin(o.measures, &t));
    expect_error(mha_head_corpus_values(o.corpus, 2, &v, &w), MHA_ERR_ARGUMENT, "layer 2");
    expect_error(mha_head_corpus_values(o.corpus, 0, &v, &w), MHA_ERR_SHAPE, "divisor of 3");
    v.shape[0] = HEADS;
    expect_error(mha_head_corpus_values(o.corpus, 0, &v, NULL), MHA_ERR_NULL, "weight is NULL");
    expect_error(mha_head_corpus_merge(p.corpus, o.corpus), MHA_ERR_ARGUMENT, "a text is open");
    expect_error(mha_head_corpus_attach(o.measures, NULL), MHA_ERR_ARGUMENT, "a text is open");
    mha_head_corpus_destroy(o.corpus); /* during a text, whose measurement continues */
    o.corpus = NULL;
    float weight = 1;
    const mha_tensor row = mha_tensor_contiguous(&weight, MHA_F32, 3, (int64_t[]){1, 1, 1});
    (void)row;
    expect_ok(mha_head_measures_end(o.measures));
    assert_int_equal(mha_head_corpus_places(p.corpus, 0, HEADS, MHA_MEASURE_SELF, false, NULL, 0),
                     0);
    assert_int_equal(mha_head_corpus_distribution(p.corpus, -1, 0, MHA_MEASURE_SELF).rows, 0);
    assert_int_equal(mha_head_corpus_distribution(p.corpus, 0, 0, (mha_head_measure)99).rows, 0);
    assert_true(mha_head_corpus_luck(p.corpus, MHA_MEASURES) == 0);
    mha_head_corpus_destroy(NULL);
    mha_head_measures_destroy(measures);
    object_free(&o);
    object_free(&p);
    corpus_free(&c);
}

static mha_status run_without_memory(mha_context *context, failing_alloc *memory, void *user)
{
    const corpus *c = user;
    const text *x = &c->texts[0];
    static const int64_t heads[LAYERS] = {HEADS, HEADS};
    const mha_head_measures_desc d = {.struct_size = sizeof d, .layers = LAYERS, .heads = heads};
    const mha_heads_text t = {.struct_size = sizeof t,
                              .flags = MHA_HEADS_CAUSAL,
                              .queries = x->n,
                              .keys = x->n,
                              .ids = x->ids};
    object o = {0};
    failing_from_here(memory);
    mha_status status = mha_head_measures_create(context, &d, &o.measures);
    if (status == MHA_OK) status = mha_head_corpus_create(context, o.measures, &usual, &o.corpus);
    if (status == MHA_OK) status = mha_head_corpus_attach(o.measures, o.corpus);
    if (status == MHA_OK) status = mha_head_measures_begin(o.measures, &t);
    for (int l = 0; l < LAYERS && status == MHA_OK; l++) {
        mha_tensor v = mha_tensor_contiguous((void *)(uintptr_t)x->v[l], MHA_F32, 3,
                                             (int64_t[]){HEADS, x->n, WIDTH});
        v.stride[0] = (int64_t)MOST * WIDTH;
        const mha_tensor w = mha_tensor_contiguous((void *)(uintptr_t)c->weight[l], MHA_F32, 2,
                                                   (int64_t[]){EMBED, HEADS * WIDTH});
        const mha_tensor p = map_of(x, l, 0, x->n);
        status = mha_head_corpus_values(o.corpus, l, &v, &w);
        if (status == MHA_OK) status = mha_head_measures_rows(o.measures, l, 0, &p);
    }
    if (status == MHA_OK) status = mha_head_measures_end(o.measures);
    object_free(&o);
    return status;
}

static void memory_that_is_missing_is_a_status(void)
{
    rng r = rng_make(rng_run_seed(), 0);
    corpus c = corpus_make(&r, 1);
    assert_true(failing_each(run_without_memory, &c) > 10);
    corpus_free(&c);
}

static int begin(void **state)
{
    (void)state;
    mha_context_desc d = {.struct_size = sizeof d, .num_threads = 1};
    if (mha_context_create(&d, &one) != MHA_OK) return 1;
    d.num_threads = 3;
    return mha_context_create(&d, &several) != MHA_OK;
}

static int end(void **state)
{
    (void)state;
    mha_context_destroy(one);
    mha_context_destroy(several);
    return 0;
}

RUN_TESTS_BETWEEN(begin, end, TEST(it_is_what_plain_loops_find), TEST(equals_have_an_order),
                  TEST(memory_is_returned), TEST(norms_beyond_all_sums_are_left_out),
                  TEST(order_and_division_leave_no_trace), TEST(intervals_are_those_of_many_texts),
                  TEST(luck_is_what_exchanged_heads_reach), TEST(misuse_is_refused),
                  TEST(memory_that_is_missing_is_a_status))
