/* Measures of heads on texts of every kind, compared with simple loops in double (tests/reference).
 * Results are bit-identical for any blocks of rows, number of threads, order of heads, type of the
 * weights, order of texts, and division of texts among merged objects.
 *
 * The reference sums the same terms in a different order. Every score is a mean of terms that are
 * at most 64 (distances), each a sum of at most 64 products: a few times 64 * 64 * 2^-53, or 1e-12,
 * covers it, and logarithms are accurate to a few units in the last place. The error of
 * correlations is up to the square root of the variances' error: 1e-9.
 *
 * The default is a sample; MHA_TEST_LONG=1 tests 2,000 bundles of texts. */
#include "reference/heads_reference.h"
#include "support/expect.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLE = 120, ALL = 2000, MOST = 40, HEADS = 3, TEXTS = 3, WIDTH = 5 };

typedef struct text {
    mha_heads_text given;
    uint8_t hidden[MOST], skip[MOST], separators[MOST], special[MOST];
    int64_t ids[MOST], segments[MOST], ranks[MOST], words[MOST];
    mha_heads_link links[MOST];
    float inputs[MOST * WIDTH];
    mha_attention_desc window; /* the layer's window */
    bool has_inputs, has_window;
    float map[HEADS * MOST * MOST];
} text;

static mha_context *one, *several;

/* ---- texts
 * --------------------------------------------------------------------------------------- */

static void make_marks(text *x, rng *r)
{
    mha_heads_text *g = &x->given;
    int64_t word = -1, segment = 0;
    for (int64_t s = 0; s < g->keys; s++) {
        x->hidden[s] = rng_chance(r, 0.1);
        x->separators[s] = rng_chance(r, 0.15);
        x->special[s] = rng_chance(r, 0.1);
        x->ids[s] = rng_between(r, 0, 9);
        segment += rng_chance(r, 0.15);
        x->segments[s] = segment;
        x->ranks[s] = rng_between(r, 0, 30);
        const bool none = rng_chance(r, 0.1);
        const bool goes_on = s > 0 && x->words[s - 1] >= 0 && rng_chance(r, 0.3);
        x->words[s] = none ? -1 : goes_on ? word : ++word;
    }
    for (int64_t t = 0; t < g->queries; t++) x->skip[t] = rng_chance(r, 0.1);
    for (size_t n = 0; n < MOST * WIDTH; n++) x->inputs[n] = rng_normal(r);
    if (rng_chance(r, 0.3)) g->hidden_keys = x->hidden;
    if (rng_chance(r, 0.3)) g->skip_queries = x->skip;
    if (rng_chance(r, 0.7)) g->separators = x->separators;
    if (rng_chance(r, 0.5)) g->special = x->special;
    if (rng_chance(r, 0.7)) g->ids = x->ids;
    if (rng_chance(r, 0.7)) g->segments = x->segments;
    if (rng_chance(r, 0.7)) g->ranks = x->ranks;
    if (rng_chance(r, 0.5)) g->words = x->words;
    x->has_inputs = rng_chance(r, 0.5);
    const int64_t words = g->words ? word + 1 : g->keys;
    const int64_t askers = g->flags & MHA_HEADS_CROSS ? g->queries : words;
    g->links = x->links;
    for (; words > 0 && askers > 0 && g->links_count < MOST && !rng_chance(r, 0.1);)
        x->links[g->links_count++] =
            (mha_heads_link){rng_between(r, 0, askers - 1), rng_between(r, 0, words - 1),
                             rng_between(r, 0, REF_HEAD_RELATIONS - 1)};
}

static void make_mask(mha_heads_text *g, rng *r)
{
    if (rng_chance(r, 0.2)) {
        g->flags = MHA_HEADS_CROSS;
        return;
    }
    if (rng_chance(r, 0.5)) g->flags |= MHA_HEADS_CAUSAL;
    if (rng_chance(r, 0.3)) g->flags |= MHA_HEADS_QUERY_PREDICTS;
    if (rng_chance(r, 0.3))
        g->q_offset = rng_between(r, -3, 5);
    else if (rng_chance(r, 0.7))
        g->queries = g->keys;
    if (!rng_chance(r, 0.3)) return;
    g->flags |= MHA_HEADS_WINDOW;
    g->left_keys = rng_between(r, -1, 9);
    g->right_keys = rng_between(r, -1, 9);
    if (rng_chance(r, 0.5)) g->sink_keys = rng_between(r, 0, 4);
}

/* Makes the layer's window. A text's flags may permit more keys, fewer or the same. */
static void make_window(text *x, rng *r)
{
    mha_attention_desc *w = &x->window;
    *w = (mha_attention_desc){.struct_size = sizeof *w, .flags = MHA_ATTENTION_WINDOW};
    w->left_keys = rng_chance(r, 0.1) ? INT64_MAX : rng_between(r, -1, 9);
    w->right_keys = rng_chance(r, 0.1) ? INT64_MAX : rng_between(r, -1, 9);
    if (rng_chance(r, 0.5)) w->sink_keys = rng_between(r, 0, 4);
    if (rng_chance(r, 0.5)) w->flags |= MHA_ATTENTION_CAUSAL;
    x->has_window = rng_chance(r, 0.4);
}

/* Whether query t can see key j by the definitions, without the library. */
static bool may_see(const text *x, int64_t t, int64_t j)
{
    const mha_heads_text *g = &x->given;
    const mha_attention_desc *w = &x->window;
    const int64_t i = t + g->q_offset;
    if (x->has_window && w->flags & MHA_ATTENTION_CAUSAL && j > i) return false;
    if (x->has_window && j >= w->sink_keys &&
        ((w->left_keys >= 0 && i - j > w->left_keys) ||
         (w->right_keys >= 0 && j - i > w->right_keys)))
        return false;
    if (g->hidden_keys && g->hidden_keys[j]) return false;
    if (g->flags & MHA_HEADS_CAUSAL && j > i) return false;
    if (!(g->flags & MHA_HEADS_WINDOW) || j < g->sink_keys) return true;
    return (g->left_keys < 0 || i - j <= g->left_keys) &&
           (g->right_keys < 0 || j - i <= g->right_keys);
}

static void make_row(const text *x, int64_t t, float *row, rng *r)
{
    double sum = 0, raw[MOST] = {0};
    const double sharp = (double)rng_between(r, 0, 6);
    const bool dead = rng_chance(r, 0.05);
    for (int64_t j = 0; j < x->given.keys; j++) {
        if (may_see(x, t, j)) raw[j] = exp(sharp * (double)rng_normal(r));
        if (rng_chance(r, 0.1)) raw[j] = 0;
        sum += raw[j];
    }
    const double rest = rng_chance(r, 0.2) ? 0.7 : 1; /* like a row with a sink */
    for (int64_t j = 0; j < x->given.keys; j++)
        row[j] = dead || !(sum > 0) ? 0 : (float)(raw[j] / sum * rest);
}

static void make_text(text *x, rng *r)
{
    memset(x, 0, sizeof *x);
    x->given.struct_size = sizeof x->given;
    x->given.queries = rng_between(r, 0, MOST);
    x->given.keys = rng_chance(r, 0.2) ? rng_between(r, 0, 3) : rng_between(r, 0, MOST);
    make_mask(&x->given, r);
    make_window(x, r);
    make_marks(x, r);
    for (int64_t n = 0; n < HEADS * x->given.queries; n++)
        make_row(x, n % x->given.queries, x->map + n * x->given.keys, r);
}

/* ---- calls
 * --------------------------------------------------------------------------------------- */

/* How the rows of a bundle are passed. */
typedef struct manner {
    mha_context *context;
    int64_t block; /* rows per call; 0: random */
    bool f64, reversed;
} manner;

static mha_head_measures *make(mha_context *context)
{
    static const char *const names[REF_HEAD_RELATIONS] = {"a", "b", "c", "d"};
    const int64_t heads = HEADS;
    mha_head_measures *m = NULL;
    const mha_head_measures_desc desc = {.struct_size = sizeof desc,
                                         .layers = 1,
                                         .heads = &heads,
                                         .rare_rank = -1,
                                         .names = names,
                                         .relations = REF_HEAD_RELATIONS};
    expect_ok(mha_head_measures_create(context, &desc, &m));
    return m;
}

static mha_tensor rows_of(const text *x, const manner *how, double *wide, int64_t row,
                          int64_t count)
{
    const int64_t T = x->given.queries, S = x->given.keys;
    mha_tensor p =
        mha_tensor_contiguous((void *)(uintptr_t)x->map, MHA_F32, 3, (int64_t[]){HEADS, T, S});
    if (how->f64) {
        for (int64_t n = 0; n < HEADS * T * S; n++) wide[n] = (double)x->map[n];
        p = mha_tensor_contiguous(wide, MHA_F64, 3, (int64_t[]){HEADS, T, S});
    }
    int64_t first = row * S;
    if (how->reversed) first += (HEADS - 1) * p.stride[0], p.stride[0] = -p.stride[0];
    p.data = (char *)p.data + (size_t)first * mha_dtype_size(p.dtype);
    p.shape[1] = count;
    return p;
}

static void feed(mha_head_measures *m, const text *x, const manner *how, rng *r)
{
    static double wide[HEADS * MOST * MOST];
    const int64_t T = x->given.queries;
    const mha_tensor inputs = mha_tensor_contiguous((void *)(uintptr_t)x->inputs, MHA_F32, 2,
                                                    (int64_t[]){x->given.keys, WIDTH});
    if (mha_head_measures_begin(m, &x->given) != MHA_OK) fail_msg("%s", mha_error_detail());
    if (x->has_inputs) expect_ok(mha_head_measures_inputs(m, 0, &inputs));
    if (x->has_window) expect_ok(mha_head_measures_window(m, 0, &x->window));
    for (int64_t row = 0; row < T;) {
        int64_t count = how->block ? how->block : rng_between(r, 1, T);
        if (count > T - row) count = T - row;
        const mha_tensor p = rows_of(x, how, wide, row, count);
        if (mha_head_measures_rows(m, 0, row, &p) != MHA_OK) fail_msg("%s", mha_error_detail());
        row += count;
    }
    expect_ok(mha_head_measures_end(m));
}

static mha_head_measures *measure(const text *texts, const manner *how, rng *r)
{
    mha_head_measures *m = make(how->context);
    for (int n = 0; n < TEXTS; n++) feed(m, &texts[n], how, r);
    return m;
}

/* ---- comparing
 * ------------------------------------------------------------------------------------- */

static int number;

static void compare(const char *what, int64_t h, mha_head_score got, const ref_head_sum *ref,
                    double most)
{
    const double rows = ref->rows ? (double)ref->rows : 1;
    const double value = ref->value / rows, chance = ref->chance / rows;
    if (got.rows != ref->rows || !(fabs(got.value - value) <= most) ||
        !(fabs(got.chance - chance) <= most))
        fail_msg("case %d, head %lld: %s is %.15g, chance %.15g, %lld rows; expected %.15g, %.15g, "
                 "%lld",
                 number, (long long)h, what, got.value, got.chance, (long long)got.rows, value,
                 chance, (long long)ref->rows);
}

/* The same offset, or one whose score differs by rounding only. */
static void compare_best(const ref_head_sum *sums, int64_t got, int64_t expected)
{
    const ref_head_sum *a = &sums[got + REF_HEAD_OFFSETS], *b = &sums[expected + REF_HEAD_OFFSETS];
    if (got == expected) return;
    assert_true(a->rows > 0 && b->rows > 0);
    const double x = (a->value - a->chance) / ((double)a->rows - a->chance),
                 y = (b->value - b->chance) / ((double)b->rows - b->chance);
    assert_true(fabs(x - y) < 1e-11);
}

static void compare_head(const mha_head_measures *m, int64_t h, const ref_head *ref)
{
    for (int which = 0; which < MHA_MEASURES; which++) {
        if (which == MHA_MEASURE_DIAGONAL || which == MHA_MEASURE_POSITIONAL) continue; /* below */
        compare(mha_measure_describe((mha_head_measure)which).name, h,
                mha_head_measures_score(m, 0, h, (mha_head_measure)which), &ref->sum[which],
                which == MHA_MEASURE_COSINE ? 1e-8 : 1e-11);
    }
    for (int64_t o = -REF_HEAD_OFFSETS; o <= REF_HEAD_OFFSETS; o++) {
        const mha_head_offset at = mha_head_measures_offset(m, 0, h, o);
        compare("offset", h, at.mass, &ref->mass[o + REF_HEAD_OFFSETS], 1e-11);
        compare("largest", h, at.largest, &ref->largest[o + REF_HEAD_OFFSETS], 1e-11);
    }
    const mha_head_details d = mha_head_measures_details(m, 0, h);
    compare_best(ref->mass, d.diagonal_offset, ref_head_best_offset(ref, false));
    compare_best(ref->largest, d.positional_offset, ref_head_best_offset(ref, true));
    compare("diagonal", h, mha_head_measures_score(m, 0, h, MHA_MEASURE_DIAGONAL),
            &ref->mass[d.diagonal_offset + REF_HEAD_OFFSETS], 1e-11);
    for (int64_t n = 0; n < REF_HEAD_RELATIONS; n++)
        for (int direction = 0; direction < 2; direction++) {
            const mha_head_relation r = mha_head_measures_relation(m, 0, h, n, direction);
            compare("accuracy", h, r.accuracy, &ref->link[n][direction], 1e-11);
            compare("link mass", h, r.mass, &ref->link_mass[n][direction], 1e-11);
        }
}

static bool same_scores(const mha_head_measures *a, int64_t g, const mha_head_measures *b,
                        int64_t h)
{
    for (int which = 0; which < MHA_MEASURES; which++) {
        const mha_head_score x = mha_head_measures_score(a, 0, g, (mha_head_measure)which),
                             y = mha_head_measures_score(b, 0, h, (mha_head_measure)which);
        if (memcmp(&x, &y, sizeof x) != 0) return false;
    }
    for (int n = 0; n < 2 * REF_HEAD_RELATIONS; n++) {
        const mha_head_relation x = mha_head_measures_relation(a, 0, g, n / 2, n % 2),
                                y = mha_head_measures_relation(b, 0, h, n / 2, n % 2);
        if (memcmp(&x, &y, sizeof x) != 0) return false;
    }
    return true;
}

static bool same_head(const mha_head_measures *a, int64_t g, const mha_head_measures *b, int64_t h)
{
    if (!same_scores(a, g, b, h)) return false;
    const mha_head_details x = mha_head_measures_details(a, 0, g),
                           y = mha_head_measures_details(b, 0, h);
    return memcmp(&x, &y, sizeof x) == 0;
}

static void make_bundle(text *texts, rng *r)
{
    for (int n = 0; n < TEXTS; n++) make_text(&texts[n], r);
}

static text texts[TEXTS];

static void test_reference(void)
{
    for (number = 0; number < rng_cases(SAMPLE, ALL); number++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)number);
        make_bundle(texts, &r);
        mha_head_measures *m = measure(texts, &(manner){.context = one}, &r);
        for (int64_t h = 0; h < HEADS; h++) {
            static ref_head ref;
            static double wide[MOST * MOST];
            memset(&ref, 0, sizeof ref);
            for (int n = 0; n < TEXTS; n++) {
                const text *x = &texts[n];
                const int64_t cells = x->given.queries * x->given.keys;
                for (int64_t c = 0; c < cells; c++) wide[c] = (double)x->map[h * cells + c];
                ref_head_add(&ref, &x->given, x->has_window ? &x->window : NULL, wide,
                             x->has_inputs ? x->inputs : NULL, WIDTH);
            }
            compare_head(m, h, &ref);
        }
        mha_head_measures_destroy(m);
    }
}

/* Blocks, threads, types of elements and a reversed order of heads change no bit. */
static void test_bits(void)
{
    const manner manners[] = {{.context = several, .block = 1},
                              {.context = several, .f64 = true},
                              {.context = one, .block = 7},
                              {.context = several, .block = MOST, .reversed = true}};
    for (int n = 0; n < rng_cases(SAMPLE / 4, ALL / 4); n++) {
        rng r = rng_make(rng_run_seed(), 1000000 + (uint64_t)n);
        make_bundle(texts, &r);
        mha_head_measures *m = measure(texts, &(manner){.context = one, .block = MOST}, &r);
        for (size_t k = 0; k < sizeof manners / sizeof manners[0]; k++) {
            mha_head_measures *other = measure(texts, &manners[k], &r);
            for (int64_t h = 0; h < HEADS; h++)
                if (!same_head(m, h, other, manners[k].reversed ? HEADS - 1 - h : h))
                    fail_msg("case %d: head %lld differs in manner %zu", n, (long long)h, k);
            mha_head_measures_destroy(other);
        }
        mha_head_measures_destroy(m);
    }
}

/* Measures only texts first .. first+count-1 of an order. */
static mha_head_measures *measure_some(const int *order, int first, int count, rng *r)
{
    const manner how = {.context = rng_chance(r, 0.5) ? one : several};
    mha_head_measures *m = make(how.context);
    for (int n = first; n < first + count; n++) feed(m, &texts[order[n]], &how, r);
    return m;
}

static void merge(mha_head_measures *m, mha_head_measures *from)
{
    if (mha_head_measures_merge(m, from) != MHA_OK) fail_msg("%s", mha_error_detail());
}

/* Texts in any order, divided anywhere, and merged in any order, give the same bits. Details name
 * texts by number, and are equal if the order of texts is kept. */
static void test_merged(void)
{
    for (int n = 0; n < rng_cases(SAMPLE / 2, ALL / 2); n++) {
        rng r = rng_make(rng_run_seed(), 2000000 + (uint64_t)n);
        int order[TEXTS] = {0, 1, 2};
        make_bundle(texts, &r);
        mha_head_measures *whole = measure_some(order, 0, TEXTS, &r);
        if (n % 2)
            for (int k = TEXTS - 1; k > 0; k--) {
                const int other = (int)rng_between(&r, 0, k), kept = order[k];
                order[k] = order[other];
                order[other] = kept;
            }
        const int cut = (int)rng_between(&r, 0, TEXTS), end = (int)rng_between(&r, cut, TEXTS);
        mha_head_measures *a = measure_some(order, 0, cut, &r),
                          *b = measure_some(order, cut, end - cut, &r),
                          *c = measure_some(order, end, TEXTS - end, &r);
        const bool right = rng_chance(&r, 0.5); /* merge a (b c), otherwise (a b) c */
        if (right) merge(b, c);
        merge(a, b);
        if (!right) merge(a, c);
        for (int64_t h = 0; h < HEADS; h++)
            if (!(n % 2 ? same_scores : same_head)(whole, h, a, h))
                fail_msg("case %d: head %lld differs when merged at %d, %d", n, (long long)h, cut,
                         end);
        mha_head_measures_destroy(a);
        mha_head_measures_destroy(b);
        mha_head_measures_destroy(c);
        mha_head_measures_destroy(whole);
    }
}

static int make_contexts(void **state)
{
    (void)state;
    one = context_with(1);
    several = context_with(3);
    return 0;
}

RUN_TESTS_BETWEEN(make_contexts, NULL, TEST(test_reference), TEST(test_bits), TEST(test_merged))
