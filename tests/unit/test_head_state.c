/* States: a loaded state is bit-identical to the saved one, and continues and merges like the saved
 * one, for random divisions of random texts. Altered or truncated bytes are rejected. With a
 * corrected checksum, they are rejected or harmless. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/state_words.h"
#include "support/suite.h"

#include <multihead/component.h>
#include <multihead/head_state.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 3, MOST_HEADS = 3, MOST = 14, VOCAB = 5, RELATIONS = 2, MOST_LINKS = 6 };

static const int64_t head_counts[LAYERS] = {2, 0, MOST_HEADS};
static const char *const names[RELATIONS] = {"nsubj", "a name of 19 bytes"};

typedef struct text {
    int64_t n, ids[MOST], segments[MOST], ranks[MOST];
    mha_heads_link links[MOST_LINKS];
    float map[LAYERS][MOST_HEADS][MOST][MOST], v[LAYERS][MOST_HEADS][MOST][2];
} text;

typedef struct object {
    mha_head_measures *measures;
    mha_head_corpus *corpus;
} object;

static mha_context *context;

/* ---- texts and objects ----------------------------------------------------------------------- */

static void text_make(rng *r, text *x)
{
    x->n = rng_between(r, 2, MOST);
    for (int64_t i = 0; i < x->n; i++) {
        x->ids[i] = rng_between(r, 0, VOCAB - 1);
        x->ranks[i] = x->ids[i];
        x->segments[i] = i / 4;
    }
    for (int i = 0; i < MOST_LINKS; i++)
        x->links[i] = (mha_heads_link){rng_between(r, 0, x->n - 1), rng_between(r, 0, x->n - 1),
                                       rng_between(r, 0, RELATIONS - 1)};
    for (int i = 0; i < MOST_LINKS; i++) /* a word is not linked with itself */
        if (x->links[i].query == x->links[i].key) x->links[i].key = (x->links[i].key + 1) % x->n;
    for (int l = 0; l < LAYERS; l++)
        for (int h = 0; h < MOST_HEADS; h++)
            for (int64_t i = 0; i < x->n; i++) {
                double sum = 0;
                for (int64_t j = 0; j <= i; j++)
                    sum += x->map[l][h][i][j] = (float)exp(3 * (double)rng_normal(r));
                for (int64_t j = 0; j <= i; j++)
                    x->map[l][h][i][j] = (float)((double)x->map[l][h][i][j] / sum);
                for (int64_t j = i + 1; j < MOST; j++) x->map[l][h][i][j] = 0;
                for (int d = 0; d < 2; d++) x->v[l][h][i][d] = rng_normal(r);
            }
}

static object object_make(mha_context *of, bool with_corpus, int64_t replicates)
{
    const mha_head_measures_desc d = {.struct_size = sizeof d,
                                      .layers = LAYERS,
                                      .heads = head_counts,
                                      .farthest_offset = 3,
                                      .rare_rank = 2,
                                      .names = names,
                                      .relations = RELATIONS};
    const mha_head_corpus_desc c = {.struct_size = sizeof c,
                                    .vocab_size = VOCAB,
                                    .places = 3,
                                    .replicates = replicates,
                                    .permutations = replicates,
                                    .seed = UINT64_MAX - 3};
    object o = {0};
    expect_ok(mha_head_measures_create(of, &d, &o.measures));
    if (!with_corpus) return o;
    expect_ok(mha_head_corpus_create(of, o.measures, &c, &o.corpus));
    expect_ok(mha_head_corpus_attach(o.measures, o.corpus));
    return o;
}

static void object_free(object *o)
{
    mha_head_corpus_destroy(o->corpus);
    mha_head_measures_destroy(o->measures);
}

static void feed(const object *o, const text *x, int64_t number)
{
    static const float weight[2 * MOST_HEADS * 2] = {1, -1, 2, 0.5F, 0, 1, -2, 1, 1, 1, 0.25F, 3};
    const mha_heads_text t = {.struct_size = sizeof t,
                              .flags = MHA_HEADS_CAUSAL,
                              .queries = x->n,
                              .keys = x->n,
                              .ids = x->ids,
                              .ranks = x->ranks,
                              .segments = x->segments,
                              .links = x->links,
                              .links_count = MOST_LINKS};
    if (o->corpus) expect_ok(mha_head_corpus_number(o->corpus, number));
    expect_ok(mha_head_measures_begin(o->measures, &t));
    for (int l = 0; l < LAYERS; l++) {
        const int64_t H = head_counts[l];
        if (H == 0) continue;
        mha_tensor v =
            mha_tensor_contiguous((void *)(uintptr_t)x->v[l], MHA_F32, 3, (int64_t[]){H, x->n, 2});
        const mha_tensor w =
            mha_tensor_contiguous((void *)(uintptr_t)weight, MHA_F32, 2, (int64_t[]){2, H * 2});
        mha_tensor p = mha_tensor_contiguous((void *)(uintptr_t)x->map[l], MHA_F32, 3,
                                             (int64_t[]){H, x->n, x->n});
        v.stride[0] = (int64_t)MOST * 2;
        p.stride[0] = (int64_t)MOST * MOST;
        p.stride[1] = MOST;
        if (o->corpus) expect_ok(mha_head_corpus_values(o->corpus, l, &v, &w));
        expect_ok(mha_head_measures_rows(o->measures, l, 0, &p));
    }
    expect_ok(mha_head_measures_end(o->measures));
}

/* ---- bytes ----------------------------------------------------------------------------------- */

static mha_buffer written(const mha_head_measures *m)
{
    mha_buffer b = {0};
    const mha_sink sink = mha_buffer_sink(&b);
    expect_ok(mha_head_state_write(m, &sink));
    assert_int_equal((int64_t)b.size, mha_head_state_bytes(m));
    return b;
}

static object read_from(const void *bytes, size_t size)
{
    object o = {0};
    expect_ok(mha_head_state_read(context, bytes, size, NULL, &o.measures, &o.corpus));
    return o;
}

/* The object as another process would load it. */
static object carried(const object *o)
{
    mha_buffer b = written(o->measures);
    object again = read_from(b.data, b.size);
    mha_buffer_free(&b);
    return again;
}

static void expect_same(const object *a, const object *b)
{
    mha_buffer x = written(a->measures), y = written(b->measures);
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    mha_buffer_free(&x);
    mha_buffer_free(&y);
}

/* A hash of every public reading call. It must not depend on data that a state omits. Places are
 * sorted. */
static double everything(const object *o)
{
    double sum = 0;
    for (int l = 0; l < LAYERS; l++)
        for (int64_t h = 0; h < head_counts[l]; h++) {
            mha_head_role roles[64];
            const int64_t count = mha_head_measures_roles(o->measures, l, h, roles, 64);
            for (int64_t i = 0; i < count && i < 64; i++)
                sum += (double)(strlen(roles[i].evidence) + (unsigned)roles[i].role);
            for (int n = 0; n < MHA_MEASURES; n++) {
                const mha_head_measure which = (mha_head_measure)n;
                const mha_head_score s = mha_head_measures_score(o->measures, l, h, which);
                const mha_head_distribution d =
                    mha_head_corpus_distribution(o->corpus, l, h, which);
                mha_head_place places[4];
                sum += s.value + s.chance + s.corrected + (double)s.rows + d.mean + d.low + d.high;
                for (int i = 0; i < 11; i++) sum += d.deciles[i];
                for (int least = 0; least < 2; least++) {
                    const int64_t held =
                        mha_head_corpus_places(o->corpus, l, h, which, least, places, 4);
                    for (int64_t i = 0; i < held && i < 4; i++) {
                        const double before = i > 0 ? places[i - 1].value : places[i].value;
                        assert_true(least ? before <= places[i].value : before >= places[i].value);
                        sum += places[i].value;
                    }
                    sum += (double)held;
                }
                sum += mha_head_corpus_luck(o->corpus, which);
            }
            for (int64_t r = 0; r < RELATIONS; r++)
                for (int way = 0; way < 2; way++) {
                    const mha_head_relation x =
                        mha_head_measures_relation(o->measures, l, h, r, way);
                    assert_true(x.accuracy.value >= 0 && x.accuracy.value <= 1);
                    sum += x.accuracy.value + x.mass.value + x.baseline;
                }
            mha_head_token tokens[VOCAB];
            mha_head_position bins[MHA_HEAD_CORPUS_POSITIONS];
            for (int list = 0; list < 2; list++)
                sum += (double)mha_head_corpus_tokens(o->corpus, l, h, (mha_head_token_list)list, 1,
                                                      tokens, VOCAB);
            sum += (double)mha_head_corpus_positions(o->corpus, l, h, bins);
            sum += mha_head_corpus_rest(o->corpus, l, h).mass;
            const mha_head_details d = mha_head_measures_details(o->measures, l, h);
            sum += (double)d.diagonal_offset + (double)d.positional_offset;
        }
    return sum;
}

/* ---- properties ------------------------------------------------------------------------------ */

static void going_on_is_as_never_stopping(void)
{
    rng r = rng_make(rng_run_seed(), 1);
    for (int trial = 0; trial < 12; trial++) {
        const bool with_corpus = trial % 3 != 0;
        object whole = object_make(context, with_corpus, trial % 2 ? 7 : -1);
        object stopped = object_make(context, with_corpus, trial % 2 ? 7 : -1);
        text x;
        for (int64_t k = 0; k < 9; k++) {
            text_make(&r, &x);
            feed(&whole, &x, k);
            feed(&stopped, &x, k);
            if (rng_between(&r, 0, 1)) continue;
            object again = carried(&stopped);
            expect_same(&again, &stopped);
            assert_true(everything(&again) == everything(&stopped));
            object_free(&stopped);
            stopped = again;
        }
        expect_same(&whole, &stopped);
        assert_true(everything(&whole) == everything(&stopped));
        object_free(&whole);
        object_free(&stopped);
    }
}

/* Texts are distributed over a few processes, which send their states in any order. */
static void merging_what_was_read_is_merging(void)
{
    enum { PROCESSES = 4 };
    rng r = rng_make(rng_run_seed(), 2);
    for (int trial = 0; trial < 8; trial++) {
        object there[PROCESSES], whole = object_make(context, true, 5);
        text x;
        for (int p = 0; p < PROCESSES; p++) there[p] = object_make(context, true, 5);
        for (int64_t k = 0; k < 10; k++) {
            text_make(&r, &x);
            feed(&whole, &x, k);
            feed(&there[rng_between(&r, 0, PROCESSES - 1)], &x, k);
        }
        object merged = object_make(context, true, 5), of_read = object_make(context, true, 5);
        const int64_t first = rng_between(&r, 0, PROCESSES - 1);
        for (int p = 0; p < PROCESSES; p++) {
            const object *from = &there[(first + p) % PROCESSES];
            object sent = carried(from);
            expect_ok(mha_head_measures_merge(merged.measures, from->measures));
            expect_ok(mha_head_corpus_merge(merged.corpus, from->corpus));
            expect_ok(mha_head_measures_merge(of_read.measures, sent.measures));
            expect_ok(mha_head_corpus_merge(of_read.corpus, sent.corpus));
            object_free(&sent);
        }
        expect_same(&merged, &of_read);
        assert_true(everything(&merged) == everything(&whole));
        for (int p = 0; p < PROCESSES; p++) object_free(&there[p]);
        object_free(&whole);
        object_free(&merged);
        object_free(&of_read);
    }
}

/* ---- altered bytes --------------------------------------------------------------------------- */

/* The step to the next tested byte: 1, or a random one with mean 8 in short runs. */
static size_t step(rng *r)
{
    return rng_long_run() ? 1 : (size_t)rng_between(r, 1, rng_whole_sample() ? 3 : 15);
}

/* One head, so that every byte can be tested. */
static mha_buffer small_state(bool with_corpus)
{
    static const int64_t single[] = {1};
    const mha_head_measures_desc d = {.struct_size = sizeof d,
                                      .layers = 1,
                                      .heads = single,
                                      .farthest_offset = 1,
                                      .rare_rank = -1,
                                      .names = names,
                                      .relations = 1};
    const mha_head_corpus_desc c = {
        .struct_size = sizeof c, .vocab_size = 2, .places = 2, .replicates = 2, .permutations = 1};
    object o = {0};
    expect_ok(mha_head_measures_create(context, &d, &o.measures));
    if (with_corpus) {
        expect_ok(mha_head_corpus_create(context, o.measures, &c, &o.corpus));
        expect_ok(mha_head_corpus_attach(o.measures, o.corpus));
    }
    for (int n = 9; n < 11; n++) {
        float map[11 * 11] = {0};
        int64_t ids[11];
        const mha_heads_link link = {3, 1, 0};
        for (int i = 0; i < n; i++) {
            ids[i] = i % 2;
            for (int j = 0; j <= i; j++)
                map[i * n + j] = (float)(j + 1) / (float)((i + 1) * (i + 2) / 2);
        }
        const mha_heads_text t = {.struct_size = sizeof t,
                                  .flags = MHA_HEADS_CAUSAL,
                                  .queries = n,
                                  .keys = n,
                                  .ids = ids,
                                  .links = &link,
                                  .links_count = 1};
        const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, n, n});
        expect_ok(mha_head_measures_begin(o.measures, &t));
        expect_ok(mha_head_measures_rows(o.measures, 0, 0, &p));
        expect_ok(mha_head_measures_end(o.measures));
    }
    mha_buffer b = written(o.measures);
    object_free(&o);
    return b;
}

static mha_status try_read(const void *bytes, size_t size)
{
    object o = {0};
    const mha_status status =
        mha_head_state_read(context, bytes, size, NULL, &o.measures, &o.corpus);
    assert_true((status == MHA_OK) == (o.measures != NULL));
    object_free(&o);
    return status;
}

/* Two weights of 1/e each: the sink has the rest of the row, and the entropy is above that of two
 * weights of 1/2. */
static void rows_that_a_sink_shares_are_read(void)
{
    enum { N = 8 };
    static const int64_t single[] = {1};
    const mha_head_measures_desc d = {.struct_size = sizeof d, .layers = 1, .heads = single};
    const mha_heads_text t = {.struct_size = sizeof t,
                              .flags = MHA_HEADS_CAUSAL | MHA_HEADS_WINDOW,
                              .queries = N,
                              .keys = N,
                              .left_keys = 1,
                              .right_keys = -1};
    float map[N * N] = {0};
    for (int i = 0; i < N; i++)
        for (int j = i > 0 ? i - 1 : 0; j <= i; j++) map[i * N + j] = 0x1.78b564p-2f;
    const mha_tensor p = mha_tensor_contiguous(map, MHA_F32, 3, (int64_t[]){1, N, N});
    object o = {0};
    expect_ok(mha_head_measures_create(context, &d, &o.measures));
    expect_ok(mha_head_measures_begin(o.measures, &t));
    expect_ok(mha_head_measures_rows(o.measures, 0, 0, &p));
    expect_ok(mha_head_measures_end(o.measures));
    assert_true(mha_head_measures_score(o.measures, 0, 0, MHA_MEASURE_EVENNESS).value > 1.06);
    mha_buffer b = written(o.measures);
    expect_ok(try_read(b.data, b.size));
    mha_buffer_free(&b);
    object_free(&o);
}

static void every_altered_byte_is_noticed(void)
{
    rng r = rng_make(rng_run_seed(), 3);
    for (int corpus = 0; corpus < 2; corpus++) {
        mha_buffer b = small_state(corpus == 1);
        for (size_t at = 0; at < b.size; at += step(&r)) {
            const char kept = b.data[at];
            b.data[at] = (char)(kept ^ rng_between(&r, 1, 255));
            const mha_status status = try_read(b.data, b.size);
            assert_true(status == MHA_ERR_FORMAT ||
                        (status == MHA_ERR_UNSUPPORTED && at >= 8 && at < 16));
            b.data[at] = kept;
        }
        expect_ok(try_read(b.data, b.size));
        mha_buffer_free(&b);
    }
}

static void every_truncation_is_noticed(void)
{
    rng r = rng_make(rng_run_seed(), 5);
    for (int corpus = 0; corpus < 2; corpus++) {
        mha_buffer b = small_state(corpus == 1);
        for (size_t size = 0; size < b.size; size += step(&r)) {
            char *cut =
                malloc(size ? size : 1); /* so that a sanitizer detects reads beyond the end */
            assert_non_null(cut);
            memcpy(cut, b.data, size);
            assert_int_equal(try_read(cut, size), MHA_ERR_FORMAT);
            free(cut);
        }
        mha_buffer_free(&b);
    }
}

/* A state truncated at a word, with corrected length and checksum, lacks data to which its words
 * refer. */
static void sealed_truncations_are_noticed(void)
{
    rng r = rng_make(rng_run_seed(), 6);
    mha_buffer b = small_state(true);
    const size_t words = b.size / 8;
    for (size_t count = 4; count < words; count += step(&r)) {
        uint8_t *cut = malloc(8 * count);
        assert_non_null(cut);
        memcpy(cut, b.data, 8 * count);
        state_set_word(cut, 2, 8 * count);
        state_seal(cut, count);
        assert_int_equal(try_read(cut, 8 * count), MHA_ERR_FORMAT);
        free(cut);
    }
    mha_buffer_free(&b);
}

/* Whether a state is rejected or harmless. A harmless state is within all ranges: it can be merged
 * with itself until the merge is rejected, it can be read, and it is written to the same bytes. */
static bool survives(const uint8_t *bytes, size_t size)
{
    object o = {0}, other = {0};
    const mha_status status =
        mha_head_state_read(context, bytes, size, NULL, &o.measures, &o.corpus);
    assert_true(status == MHA_OK || status == MHA_ERR_FORMAT || status == MHA_ERR_UNSUPPORTED ||
                status == MHA_ERR_ARGUMENT || status == MHA_ERR_SIZE || status == MHA_ERR_NOMEM);
    if (status != MHA_OK) return false;
    mha_buffer b = written(o.measures);
    assert_int_equal(b.size, size);
    assert_memory_equal(b.data, bytes, size);
    mha_buffer_free(&b);
    expect_ok(mha_head_state_read(context, bytes, size, NULL, &other.measures, &other.corpus));
    for (int i = 0; i < 4; i++) {
        const mha_status merged = mha_head_measures_merge(o.measures, other.measures);
        assert_true(merged == MHA_OK || merged == MHA_ERR_SIZE);
        const mha_status joined = mha_head_corpus_merge(o.corpus, other.corpus);
        assert_true(joined == MHA_OK || joined == MHA_ERR_SIZE);
    }
    const double sum = everything(&o);
    assert_true(isfinite(sum));
    object_free(&o);
    object_free(&other);
    return true;
}

static void sealed_lies_do_no_harm(void)
{
    static const uint64_t lies[] = {0,
                                    1,
                                    UINT64_MAX,
                                    UINT64_C(1) << 20,
                                    UINT64_C(1) << 31,
                                    UINT64_C(1) << 53,
                                    (UINT64_C(1) << 53) + 1,
                                    UINT64_C(1) << 62,
                                    (UINT64_C(1) << 62) + 1,
                                    INT64_MAX,
                                    UINT64_C(1) << 63,
                                    UINT64_C(0x7FF0000000000000)};
    enum { LIES = sizeof lies / sizeof *lies };
    rng r = rng_make(rng_run_seed(), 4);
    int64_t read = 0, refused = 0;
    mha_buffer b = small_state(true);
    uint8_t *bytes = (uint8_t *)b.data;
    const size_t words = b.size / 8;
    for (size_t at = 0; at + 1 < words; at += step(&r)) {
        const uint64_t kept = state_word(bytes, at);
        /* all sums, and a random part of the bins and tokens, which are similar */
        const bool all = at < 350 || rng_between(&r, 0, 31) == 0;
        for (int i = 0; i < LIES; i++) {
            if (!rng_takes((int64_t)at * LIES + i, all ? 3 : 3 * LIES)) continue;
            state_set_word(bytes, at, lies[i]);
            state_seal(bytes, words);
            if (survives(bytes, b.size))
                read++;
            else
                refused++;
        }
        state_set_word(bytes, at, kept);
    }
    if (rng_whole_sample()) assert_true(read > 30 && refused > 300);
    mha_buffer_free(&b);
}

/* ---- calls ------------------------------------------------------------------------------------ */

static mha_status refuse(void *user, const void *bytes, size_t count)
{
    int64_t *left = user;
    (void)bytes;
    *left -= (int64_t)count;
    return *left < 0 ? mha_fail(MHA_ERR_WRITE, "no room") : MHA_OK;
}

/* The file has the sum of a histogram after its bins, so one row more or less in a bin is
 * rejected. */
static void bins_that_do_not_add_up_are_refused(void)
{
    mha_buffer b = small_state(true);
    uint8_t *bytes = (uint8_t *)b.data;
    const size_t words = b.size / 8;
    int found = 0;
    for (size_t at = 0; at + MHA_HEAD_CORPUS_BINS + 1 < words && found < 20; at++) {
        const uint64_t first = state_word(bytes, at);
        uint64_t sum = 0;
        for (size_t i = 0; i < MHA_HEAD_CORPUS_BINS; i++) sum += state_word(bytes, at + i);
        if (first == 0 || sum != state_word(bytes, at + MHA_HEAD_CORPUS_BINS)) continue;
        found++;
        for (int more = -1; more <= 1; more++) {
            state_set_word(bytes, at, first + (uint64_t)(int64_t)more);
            state_seal(bytes, words);
            assert_int_equal(try_read(bytes, b.size), more == 0 ? MHA_OK : MHA_ERR_FORMAT);
        }
        state_set_word(bytes, at, first);
    }
    assert_true(found > 0);
    mha_buffer_free(&b);
}

static void calls_are_refused(void)
{
    object o = object_make(context, true, 3), got = {0};
    mha_buffer b = written(o.measures);
    size_t used = 0;
    int64_t room = 10000;
    const mha_sink sink = mha_buffer_sink(&b), small = {refuse, &room};
    expect_error(mha_head_state_write(NULL, &sink), MHA_ERR_NULL, "measures is NULL");
    expect_error(mha_head_state_write(o.measures, NULL), MHA_ERR_NULL, "sink is NULL");
    expect_error(mha_head_state_write(o.measures, &small), MHA_ERR_WRITE, "no room");
    assert_true(room < 0 && room > -8193); /* the sink is not called after an error */
    assert_int_equal(mha_head_state_bytes(NULL), 0);
#define READ(size, used) \
    mha_head_state_read(context, b.data, size, used, &got.measures, &got.corpus)
    expect_error(mha_head_state_read(NULL, b.data, b.size, NULL, &got.measures, &got.corpus),
                 MHA_ERR_NULL, "context is NULL");
    expect_error(mha_head_state_read(context, NULL, 8, NULL, &got.measures, &got.corpus),
                 MHA_ERR_NULL, "bytes is NULL");
    expect_error(mha_head_state_read(context, b.data, b.size, NULL, &got.measures, NULL),
                 MHA_ERR_NULL, "corpus is NULL");
    expect_error(mha_head_state_read(context, NULL, 0, NULL, &got.measures, &got.corpus),
                 MHA_ERR_FORMAT, "too short");
    expect_error(READ(b.size - 1, NULL), MHA_ERR_FORMAT, "truncated");
    b.data[8]++;
    expect_error(READ(b.size, NULL), MHA_ERR_UNSUPPORTED, "version 2");
    b.data[8]--;
    b.data[0]++;
    expect_error(READ(b.size, NULL), MHA_ERR_FORMAT, "does not begin with MHAHEADS");
    b.data[0]--;
    state_set_word((uint8_t *)b.data, 3, 99);
    state_seal((uint8_t *)b.data, b.size / 8);
    expect_error(READ(b.size, NULL), MHA_ERR_UNSUPPORTED, "has 99 scores");
    mha_buffer_free(&b);

    /* two states in succession */
    b = written(o.measures);
    const size_t one = b.size;
    expect_ok(mha_head_state_write(o.measures, &sink));
    expect_error(READ(b.size, NULL), MHA_ERR_FORMAT, "too long");
    expect_ok(READ(b.size, &used));
    assert_int_equal(used, one);
    expect_same(&o, &got);
    object_free(&got);
    got = read_from(b.data + used, b.size - used);
    expect_same(&o, &got);
    const mha_heads_text t = {.struct_size = sizeof t, .queries = 1, .keys = 1};
    expect_ok(mha_head_measures_begin(o.measures, &t));
    expect_error(mha_head_state_write(o.measures, &sink), MHA_ERR_ARGUMENT, "a text is open");
    object_free(&o);
    object_free(&got);
    mha_buffer_free(&b);
}

static mha_status read_without_memory(mha_context *of, failing_alloc *memory, void *user)
{
    const mha_buffer *b = user;
    object o = {0};
    failing_from_here(memory);
    const mha_status status =
        mha_head_state_read(of, b->data, b->size, NULL, &o.measures, &o.corpus);
    object_free(&o);
    return status;
}

static void memory_that_is_missing_is_a_status(void)
{
    mha_buffer b = small_state(true);
    assert_true(failing_each(read_without_memory, &b) > 10);
    mha_buffer_free(&b);
}

static int begin(void **state)
{
    (void)state;
    const mha_context_desc d = {.struct_size = sizeof d, .num_threads = 2};
    return mha_context_create(&d, &context) != MHA_OK;
}

static int end(void **state)
{
    (void)state;
    mha_context_destroy(context);
    return 0;
}

RUN_TESTS_BETWEEN(begin, end, TEST(going_on_is_as_never_stopping),
                  TEST(merging_what_was_read_is_merging), TEST(rows_that_a_sink_shares_are_read),
                  TEST(every_altered_byte_is_noticed), TEST(every_truncation_is_noticed),
                  TEST(sealed_truncations_are_noticed), TEST(sealed_lies_do_no_harm),
                  TEST(bins_that_do_not_add_up_are_refused), TEST(calls_are_refused),
                  TEST(memory_that_is_missing_is_a_status))
