/* Generation with a module and its cache: steps of any size are bit-identical to the whole
 * sequence, with every option of a module. Further tests are for positions and norms, and errors
 * leave the cache unchanged. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/guarded.h"
#include "support/machines.h"
#include "support/module_call.h"
#include "support/suite.h"

#include <multihead/module.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_B = 3 };

static guarded filled(rng *r, int ndim, const int64_t *shape, double factor)
{
    return guarded_filled(r, ndim, shape, LAYOUT_PAD, factor);
}

static void set_all(rng *r, mha_module *module)
{
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        guarded value = filled(r, p.ndim, p.shape, p.ndim == 2 ? 1 / sqrt((double)p.shape[1]) : 1);
        expect_ok(mha_module_set_parameter(module, p.name, &value.view));
        guarded_free(&value);
    }
}

/* Rows from .. from+count-1 of sequence b. */
static mha_tensor rows_of(const mha_tensor *x, int64_t b, int64_t from, int64_t count)
{
    mha_tensor one = guarded_slice(x, 0, b, 1);
    return guarded_slice(&one, 1, from, count);
}

/* ---- every option of a module ---------------------------------------------------------------- */

static mha_module_desc some_desc(rng *r)
{
    static const int64_t heads[][2] = {{1, 1}, {4, 2}, {6, 2}, {4, 1}, {3, 3}};
    static const int64_t dims[] = {2, 4, 8, 16, 34};
    static const mha_rope_pairing pairings[] = {MHA_ROPE_INTERLEAVED, MHA_ROPE_HALVES};
    int64_t pair = rng_between(r, 0, 4);
    mha_module_desc d = {.struct_size = sizeof d,
                         .flags = (uint32_t)rng_between(r, 0, 127),
                         .embed_dim = rng_between(r, 1, 40),
                         .num_heads = heads[pair][0],
                         .kv_heads = heads[pair][1],
                         .head_dim = RNG_PICK(r, dims)};
    d.value_head_dim = rng_chance(r, 0.6) ? 0 : RNG_PICK(r, dims);
    if (d.flags & MHA_MODULE_ROPE) {
        d.rope_pairing = RNG_PICK(r, pairings);
        d.rotary_dim = rng_chance(r, 0.5) ? 0 : 2 * rng_between(r, 1, d.head_dim / 2);
        d.rope_base = rng_chance(r, 0.5) ? 0 : 500000;
        d.rope_factor = rng_chance(r, 0.7) ? 0 : 4;
    }
    if (d.flags & MHA_MODULE_QK_NORM) {
        d.qk_norm = rng_chance(r, 0.5) ? MHA_QK_NORM_RMS : MHA_QK_NORM_L2;
        d.qk_norm_epsilon = rng_chance(r, 0.5) ? 0 : 1e-3f;
    }
    return d;
}

/* A causal descriptor with random window, cap and distance terms, and its memory. */
typedef struct kind {
    mha_attention_desc desc;
    guarded slopes, table;
} kind;

static void kind_make(kind *k, rng *r, const mha_module_desc *d)
{
    *k = (kind){.desc = {.struct_size = sizeof k->desc, .flags = MHA_ATTENTION_CAUSAL}};
    k->slopes = filled(r, 1, &d->num_heads, 0.2);
    k->table = filled(r, 2, (int64_t[]){8, d->num_heads}, 0.5);
    if (rng_chance(r, 0.4)) {
        k->desc.flags |= MHA_ATTENTION_WINDOW;
        k->desc.left_keys = rng_between(r, 0, 30);
        k->desc.sink_keys = rng_chance(r, 0.5) ? 0 : 3;
    }
    if (rng_chance(r, 0.3)) k->desc.softcap = 3;
    if (rng_chance(r, 0.3)) k->desc.alibi_slopes = &k->slopes.view;
    if (rng_chance(r, 0.3)) k->desc.t5_table = &k->table.view;
}

static void kind_free(kind *k)
{
    guarded_free(&k->slopes);
    guarded_free(&k->table);
}

/* ---- steps and whole sequences --------------------------------------------------------------- */

typedef struct story {
    mha_module *module;
    mha_module_desc d;
    kind k;
    int64_t B, length[MOST_B], longest;
    guarded x;
} story;

static void story_make(story *s, rng *r, mha_context *context)
{
    *s = (story){.d = some_desc(r), .B = rng_between(r, 1, MOST_B)};
    for (int64_t b = 0; b < s->B; b++) {
        s->length[b] = rng_chance(r, 0.1) ? rng_between(r, 500, 530) : rng_between(r, 0, 60);
        s->longest = s->length[b] > s->longest ? s->length[b] : s->longest;
    }
    expect_ok(mha_module_create(context, &s->d, &s->module));
    set_all(r, s->module);
    kind_make(&s->k, r, &s->d);
    s->x = filled(r, 3, (int64_t[]){s->B, s->longest, s->d.embed_dim}, 1);
}

static void story_free(story *s)
{
    mha_module_destroy(s->module);
    kind_free(&s->k);
    guarded_free(&s->x);
}

/* Passes each sequence separately, in one call. */
static void run_whole(mha_context *context, const story *s, mha_path path, const mha_tensor *out)
{
    mha_attention_desc desc = s->k.desc;
    desc.path = path;
    for (int64_t b = 0; b < s->B; b++) {
        const mha_tensor x = rows_of(&s->x.view, b, 0, s->length[b]);
        const mha_tensor y = rows_of(out, b, 0, s->length[b]);
        expect_ok(mha_module_run(context, s->module, MODULE_CALL(&desc, &x, &x, &x, &y, NULL)));
    }
}

/* Creates the module's default cache, or a paged one that keeps the keys for steps of at most
 * `most` tokens. */
static void make_cache(mha_context *context, const story *s, rng *r, int64_t most,
                       mha_kv_cache **cache)
{
    expect_ok(mha_module_cache_create(context, s->module, s->B, s->longest + 1, cache));
    mha_kv_cache_desc d;
    mha_kv_cache_describe(*cache, &d);
    if (rng_chance(r, 0.4)) return;
    mha_kv_cache_destroy(*cache);
    d.page_size = rng_between(r, 1, 40);
    d.pages = 0;
    if (s->k.desc.flags & MHA_ATTENTION_WINDOW) {
        d.window = s->k.desc.left_keys + 1;
        d.sink_keys = s->k.desc.sink_keys;
        d.max_append = most;
    }
    expect_ok(mha_kv_cache_create(context, &d, cache));
}

/* Makes steps of at most `most` tokens until all sequences end. Missing tokens of a sequence are
 * NaN, and its rows of out are NaN before the call. */
static void run_steps(mha_context *context, const story *s, mha_path path, rng *r, int64_t most,
                      const mha_tensor *out)
{
    mha_kv_cache *cache;
    mha_attention_desc desc = s->k.desc;
    desc.path = path;
    if (rng_chance(r, 0.5)) desc.flags &= ~(uint32_t)MHA_ATTENTION_CAUSAL; /* causal anyway */
    make_cache(context, s, r, most, &cache);
    const int64_t *held = mha_kv_cache_lengths(cache);
    for (int64_t done = 0; done < s->longest;) {
        const int64_t n = rng_between(r, 1, most);
        const int64_t shape[] = {s->B, n, s->d.embed_dim};
        guarded x = guarded_make(r, MHA_F32, 3, shape, LAYOUT_PAD); /* all NaN */
        guarded y = guarded_make(r, MHA_F32, 3, shape, LAYOUT_PAD);
        int64_t counts[MOST_B], before[MOST_B];
        for (int64_t b = 0; b < s->B; b++) {
            const int64_t left = s->length[b] - held[b];
            before[b] = held[b];
            counts[b] = left < n ? left : n;
            for (int64_t i = 0; i < counts[b] * shape[2]; i++) {
                int64_t from[] = {b, held[b] + i / shape[2], i % shape[2]};
                int64_t to[] = {b, i / shape[2], i % shape[2]};
                *(float *)guarded_element(&x.view, to) =
                    *(float *)guarded_element(&s->x.view, from);
            }
        }
        const mha_module_call call = {.struct_size = sizeof call,
                                      .attention = &desc,
                                      .query = &x.view,
                                      .key = &x.view,
                                      .value = &x.view,
                                      .out = &y.view,
                                      .cache = cache,
                                      .counts = counts};
        expect_ok(mha_module_run(context, s->module, &call));
        done += n;
        for (int64_t b = 0; b < s->B; b++) {
            assert_int_equal(held[b], before[b] + counts[b]);
            for (int64_t i = 0; i < counts[b] * shape[2]; i++) {
                int64_t to[] = {b, before[b] + i / shape[2], i % shape[2]};
                int64_t from[] = {b, i / shape[2], i % shape[2]};
                *(float *)guarded_element(out, to) = *(float *)guarded_element(&y.view, from);
            }
        }
        guarded_free(&x);
        guarded_free(&y);
    }
    mha_kv_cache_destroy(cache);
}

static void steps_are_the_whole(void)
{
    machines one = machines_make(1), two = machines_make(2);
    for (int i = 0; i < rng_cases(80, 2000); i++) {
        rng r = rng_make(rng_run_seed(), (uint64_t)i);
        story s;
        story_make(&s, &r, one.each[0].context);
        const int64_t shape[] = {s.B, s.longest, s.d.embed_dim};
        for (int m = 0; m < one.count; m++) {
            static const int64_t most[] = {1, 7, 40, 600};
            guarded whole = guarded_make(&r, MHA_F32, 3, shape, 0);
            guarded steps = guarded_make(&r, MHA_F32, 3, shape, 0);
            run_whole(one.each[m].context, &s, one.each[m].path, &whole.view);
            run_steps(two.each[m].context, &s, one.each[m].path, &r, RNG_PICK(&r, most),
                      &steps.view);
            for (int64_t b = 0; b < s.B; b++) {
                const mha_tensor w = rows_of(&whole.view, b, 0, s.length[b]);
                const mha_tensor t = rows_of(&steps.view, b, 0, s.length[b]);
                if (!guarded_same_bits(&w, &t, false))
                    fail_msg("case %d, %s, sequence %lld of length %lld: flags 0x%x, steps differ",
                             i, one.each[m].name, (long long)b, (long long)s.length[b],
                             (unsigned)s.d.flags);
            }
            guarded_free(&whole);
            guarded_free(&steps);
        }
        story_free(&s);
    }
}

/* Cross-attention: a cache is filled in two pieces, then queried row by row, and compared with one
 * call. */
static void cross_attention(void)
{
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(40, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 10000 + (uint64_t)i);
        mha_module_desc d = some_desc(&r);
        d.key_dim = rng_between(&r, 1, 30), d.value_dim = rng_between(&r, 1, 30);
        const int64_t B = rng_between(&r, 1, MOST_B), T = rng_between(&r, 1, 9);
        const int64_t S = rng_between(&r, 1, 60), first = rng_between(&r, 0, S);
        mha_module *module;
        expect_ok(mha_module_create(all.each[0].context, &d, &module));
        set_all(&r, module);
        guarded x = filled(&r, 3, (int64_t[]){B, T, d.embed_dim}, 1);
        guarded k = filled(&r, 3, (int64_t[]){B, S, d.key_dim}, 1);
        guarded v = filled(&r, 3, (int64_t[]){B, S, d.value_dim}, 1);
        guarded whole = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, T, d.embed_dim}, 0);
        guarded rows = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, T, d.embed_dim}, 0);
        int64_t lengths[MOST_B], counts[2][MOST_B];
        for (int64_t b = 0; b < B; b++) {
            counts[0][b] = rng_between(&r, 0, first);
            lengths[b] = counts[0][b];
            counts[1][b] = lengths[b] == first ? rng_between(&r, 0, S - first) : 0;
            lengths[b] += counts[1][b];
        }
        for (int m = 0; m < all.count; m++) {
            mha_context *context = all.each[m].context;
            mha_kv_cache *cache;
            mha_attention_desc desc = {.struct_size = sizeof desc, .path = all.each[m].path};
            expect_ok(mha_module_cache_create(context, module, B, S, &cache));
            for (int part = 0; part < 2; part++) {
                mha_tensor kp =
                    guarded_slice(&k.view, 1, part ? first : 0, part ? S - first : first);
                mha_tensor vp =
                    guarded_slice(&v.view, 1, part ? first : 0, part ? S - first : first);
                expect_ok(mha_module_run(context, module,
                                         &(mha_module_call){.struct_size = sizeof(mha_module_call),
                                                            .key = &kp,
                                                            .value = &vp,
                                                            .cache = cache,
                                                            .counts = counts[part]}));
            }
            for (int64_t t = 0; t < T; t++) {
                mha_tensor q = guarded_slice(&x.view, 1, t, 1);
                mha_tensor o = guarded_slice(&rows.view, 1, t, 1);
                const mha_positions at = {.start = t};
                expect_ok(mha_module_run(
                    context, module,
                    &(mha_module_call){.struct_size = sizeof(mha_module_call),
                                       .attention = &desc,
                                       .query = &q,
                                       .out = &o,
                                       .query_positions = d.flags & MHA_MODULE_ROPE ? &at : NULL,
                                       .cache = cache}));
            }
            assert_memory_equal(mha_kv_cache_lengths(cache), lengths, (size_t)B * sizeof(int64_t));
            desc.key_lengths = lengths;
            expect_ok(mha_module_run(
                context, module, MODULE_CALL(&desc, &x.view, &k.view, &v.view, &whole.view, NULL)));
            assert_true(guarded_same_bits(&whole.view, &rows.view, false));
            mha_kv_cache_destroy(cache);
        }
        guarded *tensors[] = {&x, &k, &v, &whole, &rows};
        for (int n = 0; n < 5; n++) guarded_free(tensors[n]);
        mha_module_destroy(module);
    }
}

/* Outputs of a step equal the last rows of a full pass; maps cover the entire cache. */
static void step_outputs(void)
{
    enum { T = 9, E = 12, H = 4, Hk = 2, D = 6, LAST = 4 };
    rng r = rng_make(rng_run_seed(), 20000);
    machines all = machines_make(2);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = H, .kv_heads = Hk};
    d.head_dim = D;
    d.flags = MHA_MODULE_ROPE | MHA_MODULE_QK_NORM | MHA_MODULE_SINKS | MHA_MODULE_BIAS_KV;
    for (int m = 0; m < all.count; m++) {
        mha_context *context = all.each[m].context;
        mha_module *module;
        mha_kv_cache *cache;
        expect_ok(mha_module_create(context, &d, &module));
        expect_ok(mha_module_cache_create(context, module, 1, T, &cache));
        set_all(&r, module);
        guarded x = filled(&r, 3, (int64_t[]){1, T, E}, 1);
        guarded y = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, T, E}, 0);
        guarded p = guarded_make(&r, MHA_F32, 4, (int64_t[]){1, H, T, T + 1}, 0);
        guarded k = guarded_make(&r, MHA_F32, 4, (int64_t[]){1, Hk, T, D}, 0);
        guarded p2 = guarded_make(&r, MHA_F32, 4, (int64_t[]){1, H, LAST, T + 1}, 0);
        guarded k2 = guarded_make(&r, MHA_F32, 4, (int64_t[]){1, Hk, LAST, D}, 0);
        mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
        desc.path = all.each[m].path;
        mha_module_outputs wanted = {
            .struct_size = sizeof wanted, .probabilities = &p.view, .k = &k.view};
        expect_ok(mha_module_run(context, module,
                                 MODULE_CALL(&desc, &x.view, &x.view, &x.view, &y.view, &wanted)));
        for (int part = 0; part < 2; part++) {
            mha_tensor xp = guarded_slice(&x.view, 1, part ? T - LAST : 0, part ? LAST : T - LAST);
            mha_tensor yp = guarded_slice(&y.view, 1, part ? T - LAST : 0, part ? LAST : T - LAST);
            wanted.probabilities = part ? &p2.view : NULL;
            wanted.k = part ? &k2.view : NULL;
            const mha_module_call call = {.struct_size = sizeof call,
                                          .attention = &desc,
                                          .query = &xp,
                                          .key = &xp,
                                          .value = &xp,
                                          .out = &yp,
                                          .outputs = &wanted,
                                          .cache = cache};
            expect_ok(mha_module_run(context, module, &call));
        }
        /* a second query without new keys: the queries are at the last positions */
        mha_tensor xp = guarded_slice(&x.view, 1, T - LAST, LAST);
        mha_tensor yp = guarded_slice(&y.view, 1, T - LAST, LAST);
        guarded again = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, LAST, E}, 0);
        expect_ok(mha_module_run(context, module,
                                 &(mha_module_call){.struct_size = sizeof(mha_module_call),
                                                    .attention = &desc,
                                                    .query = &xp,
                                                    .out = &again.view,
                                                    .cache = cache}));
        assert_true(guarded_same_bits(&yp, &again.view, false));
        guarded_free(&again);
        mha_tensor last = guarded_slice(&p.view, 2, T - LAST, LAST);
        assert_true(guarded_same_bits(&last, &p2.view, false));
        last = guarded_slice(&k.view, 2, T - LAST, LAST);
        assert_true(guarded_same_bits(&last, &k2.view, false));
        guarded *tensors[] = {&x, &y, &p, &k, &p2, &k2};
        for (int n = 0; n < 6; n++) guarded_free(tensors[n]);
        mha_kv_cache_destroy(cache);
        mha_module_destroy(module);
    }
}

/* ---- norm and rotation ----------------------------------------------------------------------- */

/* Makes a module, and the same module without norm and rotation. */
static void pair_make(rng *r, mha_context *context, mha_module_desc *d, mha_module **module,
                      mha_module **plain)
{
    expect_ok(mha_module_create(context, d, module));
    set_all(r, *module);
    mha_module_describe(*module, d);
    mha_module_desc bare = *d;
    bare.flags &= ~(uint32_t)(MHA_MODULE_ROPE | MHA_MODULE_QK_NORM);
    bare.rope_pairing = MHA_ROPE_INTERLEAVED, bare.qk_norm = MHA_QK_NORM_RMS;
    bare.rotary_dim = 0, bare.rope_base = bare.rope_factor = 0, bare.qk_norm_epsilon = 0;
    expect_ok(mha_module_create(context, &bare, plain));
    mha_module_parameter p;
    for (int64_t n = 0; mha_module_parameter_at(*plain, n, &p); n++) {
        guarded value = guarded_make(r, MHA_F32, p.ndim, p.shape, 0);
        expect_ok(mha_module_get_parameter(*module, p.name, &value.view));
        expect_ok(mha_module_set_parameter(*plain, p.name, &value.view));
        guarded_free(&value);
    }
}

/* Applies norm, then rotation, to q or k with the functions of position.h. */
static void norm_and_rotate(rng *r, mha_context *context, const mha_module *module, bool keys,
                            const mha_tensor *ids, const mha_tensor *x)
{
    mha_module_desc d;
    mha_module_describe(module, &d);
    if (d.flags & MHA_MODULE_QK_NORM) {
        guarded w = guarded_make(r, MHA_F32, 1, &d.head_dim, 0);
        expect_ok(
            mha_module_get_parameter(module, keys ? "k_norm.weight" : "q_norm.weight", &w.view));
        expect_ok(mha_qk_norm(context, d.qk_norm, d.qk_norm_epsilon, x, &w.view, x));
        guarded_free(&w);
    }
    const mha_rope_desc turn = {.struct_size = sizeof turn,
                                .pairing = d.rope_pairing,
                                .rotary_dim = d.rotary_dim,
                                .base = d.rope_base,
                                .factor = d.rope_factor,
                                .positions = {.ids = ids}};
    if (d.flags & MHA_MODULE_ROPE) expect_ok(mha_rope_apply(context, &turn, x, x));
}

/* Positions of the tokens [B,length], either random or consecutive from first[b] on. The second
 * sequence of a ragged batch begins at token `second`. */
static guarded some_ids(rng *r, int64_t batch, int64_t length, const int64_t *first, bool anywhere,
                        int64_t second)
{
    guarded ids = guarded_make(r, MHA_I64, 2, (int64_t[]){batch, length}, 0);
    for (int64_t i = 0; i < batch * length; i++) {
        int64_t b = i / length, t = i % length, place = first[b] + t;
        if (second >= 0 && t >= second) place = first[1] + t - second;
        *(int64_t *)guarded_element(&ids.view, (int64_t[]){b, t}) =
            anywhere ? rng_between(r, -50, 5000) : place;
    }
    return ids;
}

/* Makes one call of both modules: q and k of one, normalised and rotated here, equal q and k of the
 * other. */
static void check_pair(rng *r, mha_context *context, mha_module_desc d, bool ragged, bool given)
{
    static const int64_t offsets[MOST_B] = {7, -3, 40}, none[MOST_B] = {0};
    const int64_t batch = ragged ? 1 : rng_between(r, 1, MOST_B), rows = rng_between(r, 1, 20);
    const int64_t keys = rng_between(r, 1, 20), lengths[2] = {rows, keys};
    const int64_t starts[2][3] = {{0, rows / 3, rows}, {0, keys / 2, keys}};
    mha_module *module, *plain;
    pair_make(r, context, &d, &module, &plain);
    guarded x = filled(r, 3, (int64_t[]){batch, rows, d.embed_dim}, 1);
    guarded y = filled(r, 3, (int64_t[]){batch, keys, d.embed_dim}, 1);
    guarded o = guarded_make(r, MHA_F32, 3, (int64_t[]){batch, rows, d.embed_dim}, 0);
    guarded out[2][2], ids[2]; /* [with or without][q or k] */
    for (int n = 0; n < 2; n++) {
        ids[n] =
            some_ids(r, batch, lengths[n], n ? none : offsets, given, ragged ? starts[n][1] : -1);
        for (int m = 0; m < 2; m++) {
            int64_t heads = n ? d.kv_heads : d.num_heads;
            out[m][n] =
                guarded_make(r, MHA_F32, 4, (int64_t[]){batch, heads, lengths[n], d.head_dim}, 0);
        }
    }
    mha_attention_desc desc = {.struct_size = sizeof desc, .flags = MHA_ATTENTION_CAUSAL};
    desc.q_offsets = offsets;
    if (ragged) desc.query_starts = starts[0], desc.key_starts = starts[1], desc.sequences = 2;
    const mha_positions at[2] = {{.ids = &ids[0].view}, {.ids = &ids[1].view}};
    for (int m = 0; m < 2; m++) {
        const mha_module_outputs wanted = {
            .struct_size = sizeof wanted, .q = &out[m][0].view, .k = &out[m][1].view};
        const bool chosen = m && given && d.flags & MHA_MODULE_ROPE;
        const mha_module_call call = {.struct_size = sizeof call,
                                      .attention = &desc,
                                      .query = &x.view,
                                      .key = &y.view,
                                      .value = &y.view,
                                      .out = &o.view,
                                      .outputs = &wanted,
                                      .query_positions = chosen ? &at[0] : NULL,
                                      .key_positions = chosen ? &at[1] : NULL};
        expect_ok(mha_module_run(context, m ? module : plain, &call));
    }
    for (int n = 0; n < 2; n++) {
        norm_and_rotate(r, context, module, n, &ids[n].view, &out[0][n].view);
        assert_true(guarded_same_bits(&out[0][n].view, &out[1][n].view, false));
        guarded_free(&ids[n]);
        for (int m = 0; m < 2; m++) guarded_free(&out[m][n]);
    }
    guarded_free(&x);
    guarded_free(&y);
    guarded_free(&o);
    mha_module_destroy(module);
    mha_module_destroy(plain);
}

/* Positions are indices, indices with an offset, or the caller's, also in a ragged batch. The
 * functions of position.h have their own reference. */
static void norm_then_rotate(void)
{
    machines all = machines_make(2);
    for (int i = 0; i < rng_cases(60, 1000); i++) {
        rng r = rng_make(rng_run_seed(), 30000 + (uint64_t)i);
        mha_module_desc d = some_desc(&r);
        d.flags &= ~(uint32_t)(MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN);
        check_pair(&r, all.each[all.count - 1].context, d, rng_chance(&r, 0.3),
                   rng_chance(&r, 0.4));
    }
}

/* The module's sinks are those of the descriptor. */
static void sinks(void)
{
    enum { T = 6, E = 8, H = 4 };
    rng r = rng_make(rng_run_seed(), 40000);
    machines all = machines_make(2);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = H};
    for (int m = 0; m < all.count; m++) {
        mha_context *context = all.each[m].context;
        mha_module *with, *without;
        d.flags = MHA_MODULE_SINKS;
        expect_ok(mha_module_create(context, &d, &with));
        set_all(&r, with);
        d.flags = 0;
        expect_ok(mha_module_create(context, &d, &without));
        mha_module_parameter p;
        for (int64_t n = 0; mha_module_parameter_at(without, n, &p); n++) {
            guarded value = guarded_make(&r, MHA_F32, p.ndim, p.shape, 0);
            expect_ok(mha_module_get_parameter(with, p.name, &value.view));
            expect_ok(mha_module_set_parameter(without, p.name, &value.view));
            guarded_free(&value);
        }
        guarded logits = guarded_make(&r, MHA_F32, 1, (int64_t[]){H}, 0);
        expect_ok(mha_module_get_parameter(with, "sinks", &logits.view));
        guarded x = filled(&r, 3, (int64_t[]){1, T, E}, 1);
        guarded a = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, T, E}, 0);
        guarded b = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, T, E}, 0);
        mha_attention_desc desc = {.struct_size = sizeof desc, .path = all.each[m].path};
        expect_ok(mha_module_run(context, with,
                                 MODULE_CALL(&desc, &x.view, &x.view, &x.view, &a.view, NULL)));
        desc.sink_logits = &logits.view;
        expect_ok(mha_module_run(context, without,
                                 MODULE_CALL(&desc, &x.view, &x.view, &x.view, &b.view, NULL)));
        assert_true(guarded_same_bits(&a.view, &b.view, false));
        expect_error(mha_module_run(context, with,
                                    MODULE_CALL(&desc, &x.view, &x.view, &x.view, &b.view, NULL)),
                     MHA_ERR_ARGUMENT, "its own sinks");
        guarded *tensors[] = {&logits, &x, &a, &b};
        for (int n = 0; n < 4; n++) guarded_free(tensors[n]);
        mha_module_destroy(with);
        mha_module_destroy(without);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void create_errors(void)
{
    mha_context *context = machines_context(1, 0);
    const mha_module_desc right = {.struct_size = sizeof right, .embed_dim = 12, .num_heads = 2};
    mha_module *module = NULL;
    mha_module_desc d = right;
#define CREATE mha_module_create(context, &d, &module)
#define ROW(...) expect_spoiled(d, CREATE, __VA_ARGS__)
    ROW(MHA_ERR_ARGUMENT, "MHA_MODULE_ROPE", d.rotary_dim = 4);
    ROW(MHA_ERR_ARGUMENT, "MHA_MODULE_ROPE", d.rope_factor = 1);
    ROW(MHA_ERR_ARGUMENT, "MHA_MODULE_QK_NORM", d.qk_norm_epsilon = 1);
    ROW(MHA_ERR_UNSUPPORTED, "reserved is 1", d.reserved = 1);
    ROW(MHA_ERR_ARGUMENT, "rotary_dim is 5", d.flags = MHA_MODULE_ROPE, d.rotary_dim = 5);
    ROW(MHA_ERR_ARGUMENT, "head size 6", d.flags = MHA_MODULE_ROPE, d.rotary_dim = 8);
    ROW(MHA_ERR_ARGUMENT, "rotary_dim is 5", d.flags = MHA_MODULE_ROPE, d.head_dim = 5);
    ROW(MHA_ERR_ARGUMENT, "base is 0.5", d.flags = MHA_MODULE_ROPE, d.rope_base = 0.5);
    ROW(MHA_ERR_ARGUMENT, "factor is -1", d.flags = MHA_MODULE_ROPE, d.rope_factor = -1);
    ROW(MHA_ERR_ARGUMENT, "pairing is 7", d.flags = MHA_MODULE_ROPE,
        d.rope_pairing = (mha_rope_pairing)7);
    ROW(MHA_ERR_ARGUMENT, "epsilon is -1", d.flags = MHA_MODULE_QK_NORM, d.qk_norm_epsilon = -1);
    ROW(MHA_ERR_ARGUMENT, "kind is 3", d.flags = MHA_MODULE_QK_NORM,
        d.qk_norm = (mha_qk_norm_kind)3);
    assert_null(module);
    d = right, d.flags = MHA_MODULE_ROPE | MHA_MODULE_QK_NORM;
    expect_ok(CREATE);
    mha_module_describe(module, &d);
    assert_int_equal(d.rotary_dim, 6);
    assert_true(d.rope_base == 10000 && d.rope_factor == 1 && d.qk_norm_epsilon == 1e-6f);
    mha_module_destroy(module);
    expect_ok(CREATE); /* the module's own description */
    float w[6];
    const mha_tensor weight = mha_tensor_contiguous(w, MHA_F32, 1, (int64_t[]){6});
    expect_ok(mha_module_get_parameter(module, "k_norm.weight", &weight));
    for (int i = 0; i < 6; i++) assert_true(w[i] == 1);
    mha_module_destroy(module);
    d = right, d.struct_size = offsetof(mha_module_desc, rope_pairing); /* first version */
    expect_ok(CREATE);
    mha_module_destroy(module);
#undef ROW
#undef CREATE
}

/* Invalid offsets of a ragged batch are rejected by whichever step reads them first. */
static void ragged_errors(void)
{
    enum { ROWS = 6, WIDTH = 8 };
    rng r = rng_make(rng_run_seed(), 45000);
    mha_context *context = machines_context(1, 0);
    const mha_module_desc d = {.struct_size = sizeof d,
                               .flags = MHA_MODULE_ROPE | MHA_MODULE_BIAS_KV,
                               .embed_dim = WIDTH,
                               .num_heads = 2};
    mha_module *module;
    expect_ok(mha_module_create(context, &d, &module));
    guarded x = filled(&r, 3, (int64_t[]){1, ROWS, WIDTH}, 1);
    guarded y = guarded_make(&r, MHA_F32, 3, (int64_t[]){1, ROWS, WIDTH}, 0);
    guarded_snapshot(&y);
    static const int64_t wrong[][3] = {{0, INT64_MIN, ROWS}, {INT64_MIN, 2, ROWS},
                                       {0, INT64_MAX, ROWS}, {0, 7, ROWS},
                                       {0, 2, INT64_MAX},    {INT64_MAX, INT64_MIN, ROWS}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        for (int both = 0; both < 2; both++) {
            static const int64_t right[3] = {0, 2, ROWS};
            const mha_attention_desc desc = {.struct_size = sizeof desc,
                                             .query_starts = both ? wrong[i] : right,
                                             .key_starts = wrong[i],
                                             .sequences = 2};
            expect_error(
                mha_module_run(context, module,
                               MODULE_CALL(&desc, &x.view, &x.view, &x.view, &y.view, NULL)),
                MHA_ERR_ARGUMENT, both ? "query_starts" : "key_starts");
            assert_true(guarded_unchanged(&y));
        }
    const mha_positions both = {.start = 1, .starts = wrong[0]};
    const mha_module_call call = {.struct_size = sizeof call,
                                  .query = &x.view,
                                  .key = &x.view,
                                  .value = &x.view,
                                  .out = &y.view,
                                  .key_positions = &both};
    expect_error(mha_module_run(context, module, &call), MHA_ERR_ARGUMENT, "positions");
    assert_true(guarded_unchanged(&y));
    mha_module_destroy(module);
    guarded_free(&x);
    guarded_free(&y);
}

/* The arguments of a step; each case makes one invalid. */
enum { B = 2, T = 3, E = 8, H = 4, Hk = 2, D = 4, HELD = 5, CAPACITY = 9 };

typedef struct step {
    mha_module_call call;
    mha_attention_desc desc;
    mha_tensor x, other, y;
    mha_module_outputs wanted;
    int64_t counts[B], lengths[B];
    mha_positions positions;
    mha_tensor map, gates, sink;
    float values[H];
} step;

#define ROWS                                                                                      \
    MISUSE(MHA_ERR_SIZE, "holds 5 of 9 positions, 5 more", s->x.shape[1] = 5; s->x.stride[1] = 0; \
           s->y.shape[1] = 5; s->call.counts = NULL);                                             \
    MISUSE(MHA_ERR_ARGUMENT, "counts[1] is -1", s->counts[1] = -1);                               \
    MISUSE(MHA_ERR_ARGUMENT, "counts[1] is 4, expected 0..3", s->counts[1] = T + 1);              \
    MISUSE(MHA_ERR_SHAPE, "batch is 2, this call has 1", s->x.shape[0] = 1; s->y.shape[0] = 1);   \
    MISUSE(MHA_ERR_ARGUMENT, "key_lengths", s->desc.key_lengths = s->lengths);                    \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset", s->desc.q_offset = 2);                                   \
    MISUSE(MHA_ERR_ARGUMENT, "q_offset", s->desc.q_offsets = s->lengths);                         \
    MISUSE(MHA_ERR_UNSUPPORTED, "ragged", s->desc.sequences = 2;                                  \
           s->desc.query_starts = s->desc.key_starts = s->lengths);                               \
    MISUSE(MHA_ERR_SHAPE, "query has length 3, key has length 2", s->other.shape[1] = 2;          \
           s->call.key = s->call.value = &s->other);                                              \
    MISUSE(MHA_ERR_NULL, "value", s->call.value = NULL);                                          \
    MISUSE(MHA_ERR_NULL, "key", s->call.key = NULL);                                              \
    MISUSE(MHA_ERR_NULL, "out", s->call.out = NULL);                                              \
    MISUSE(MHA_ERR_NULL, "query", s->call.query = NULL);                                          \
    MISUSE(MHA_ERR_ARGUMENT, "counts require key and value", s->call.key = s->call.value = NULL); \
    MISUSE(MHA_ERR_ARGUMENT, "projects no keys", s->call.key = s->call.value = NULL;              \
           s->call.counts = NULL; s->wanted.k = &s->map; s->wanted.probabilities = NULL);         \
    MISUSE(MHA_ERR_ARGUMENT, "right_keys is 2", s->desc.flags = MHA_ATTENTION_WINDOW;             \
           s->desc.right_keys = 2);                                                               \
    MISUSE(MHA_ERR_SHAPE, "probabilities: dim 3 is 9, expected 8", s->map.shape[3]++);            \
    MISUSE(MHA_ERR_NUMERIC, "gates[0,1]", s->values[1] = NAN; s->desc.gates = &s->gates);         \
    MISUSE(MHA_ERR_NUMERIC, "sink_logits[1]", s->values[1] = INFINITY;                            \
           s->desc.sink_logits = &s->sink);                                                       \
    MISUSE(MHA_ERR_ARGUMENT, "MHA_MODULE_ROPE", s->call.query_positions = &s->positions);         \
    MISUSE(MHA_ERR_OVERLAP, "out overlaps query", s->y.data = s->x.data);                         \
    MISUSE(MHA_ERR_OVERLAP, "probabilities overlaps out", s->map.data = s->y.data);               \
    MISUSE(MHA_ERR_ARGUMENT, "softcap is -1", s->desc.softcap = -1);                              \
    MISUSE(MHA_ERR_ARGUMENT, "dropout is 2", s->desc.dropout = 2);
DEFINE_SPOIL(step *s, spoil, ROWS)

static void step_make(step *s, mha_kv_cache *cache, const mha_tensor *x, const mha_tensor *y,
                      float *map)
{
    *s = (step){.desc = {.struct_size = sizeof s->desc}, .x = *x, .other = *x, .y = *y};
    s->counts[0] = s->counts[1] = T;
    s->map = mha_tensor_contiguous(map, MHA_F32, 4, (int64_t[]){B, H, T, HELD + T});
    s->gates = mha_tensor_contiguous(s->values, MHA_F32, 2, (int64_t[]){1, H});
    s->sink = mha_tensor_contiguous(s->values, MHA_F32, 1, (int64_t[]){H});
    s->wanted = (mha_module_outputs){.struct_size = sizeof s->wanted, .probabilities = &s->map};
    s->call = (mha_module_call){.struct_size = sizeof s->call,
                                .attention = &s->desc,
                                .query = &s->x,
                                .key = &s->x,
                                .value = &s->x,
                                .out = &s->y,
                                .outputs = &s->wanted,
                                .cache = cache,
                                .counts = s->counts};
}

/* After every error the cache is unchanged, and no output byte is written. */
static void step_errors(void)
{
    rng r = rng_make(rng_run_seed(), 50000);
    mha_context *context = machines_context(1, 0);
    mha_module_desc d = {.struct_size = sizeof d, .embed_dim = E, .num_heads = H, .kv_heads = Hk};
    d.head_dim = D;
    mha_module *module, *other;
    mha_kv_cache *cache, *wide;
    expect_ok(mha_module_create(context, &d, &module));
    set_all(&r, module);
    expect_ok(mha_module_cache_create(context, module, B, CAPACITY, &cache));
    d.head_dim = D + 1;
    expect_ok(mha_module_create(context, &d, &other));
    expect_ok(mha_module_cache_create(context, other, B, CAPACITY, &wide));
    guarded first = filled(&r, 3, (int64_t[]){B, HELD, E}, 1),
            x = filled(&r, 3, (int64_t[]){B, T, E}, 1);
    guarded y = guarded_make(&r, MHA_F32, 3, (int64_t[]){B, 5, E}, 0);
    mha_tensor out = guarded_slice(&y.view, 1, 0, T);
    float map[B * H * T * (HELD + T)], before[B * H * T * (HELD + T)];
    step s;
    step_make(&s, cache, &x.view, &out, map);
    s.call.counts = NULL, s.call.outputs = NULL, s.call.query = s.call.out = NULL;
    s.call.key = s.call.value = &first.view;
    expect_ok(mha_module_run(context, module, &s.call));
    guarded_snapshot(&y);
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++) before[i] = map[i] = 0.5f;
    const int64_t *held = mha_kv_cache_lengths(cache);
    for (size_t i = 0, rows = spoil(NULL, SIZE_MAX).rows; i < rows; i++) {
        step_make(&s, cache, &x.view, &out, map);
        const expected_refusal wrong = spoil(&s, i);
        expect_row(i, mha_module_run(context, module, &s.call), wrong.status, wrong.part);
        assert_int_equal(held[0], HELD);
        assert_int_equal(held[1], HELD);
        assert_true(guarded_unchanged(&y));
        assert_memory_equal(map, before, sizeof map);
    }
    step_make(&s, wide, &x.view, &out, map);
    expect_error(mha_module_run(context, module, &s.call), MHA_ERR_SHAPE, "head_dim is 5");
    step_make(&s, NULL, &x.view, &out, map);
    expect_error(mha_module_run(context, module, &s.call), MHA_ERR_ARGUMENT,
                 "counts require a cache");
    expect_error(mha_module_cache_create(context, NULL, 1, 1, &cache), MHA_ERR_NULL, "module");
    expect_error(mha_module_cache_create(context, module, 0, 1, &cache), MHA_ERR_ARGUMENT, "batch");
    step_make(&s, cache, &x.view, &out, map);
    expect_ok(mha_module_run(context, module, &s.call));
    assert_int_equal(held[1], HELD + T);
    mha_kv_cache_destroy(cache);
    mha_kv_cache_destroy(wide);
    mha_module_destroy(module);
    mha_module_destroy(other);
    guarded_free(&first);
    guarded_free(&x);
    guarded_free(&y);
}

/* Makes all calls from context to the second step while allocation n fails. Returns whether no call
 * failed. */
static bool survives(mha_path path, int64_t n, bool later)
{
    rng r = rng_make(rng_run_seed(), 60000);
    failing_alloc memory = failing_alloc_make();
    memory.fail_at = n;
    memory.fail_after = later;
    const mha_context_desc desc = {.struct_size = sizeof desc,
                                   .num_threads = 2,
                                   .allocator = failing_alloc_interface(&memory)};
    const uint32_t flags = MHA_MODULE_ROPE | MHA_MODULE_QK_NORM | MHA_MODULE_SINKS |
                           MHA_MODULE_BIAS_KV | MHA_MODULE_ZERO_ATTN;
    const mha_module_desc d = {
        .struct_size = sizeof d, .flags = flags, .embed_dim = 64, .num_heads = 8, .kv_heads = 4};
    const mha_attention_desc attention = {.struct_size = sizeof attention, .path = path};
    mha_context *context = NULL;
    mha_module *module = NULL;
    mha_kv_cache *cache = NULL;
    guarded x = filled(&r, 3, (int64_t[]){2, 40, 64}, 1);
    guarded y = guarded_make(&r, MHA_F32, 3, (int64_t[]){2, 40, 64}, 0);
    guarded mean = guarded_make(&r, MHA_F32, 3, (int64_t[]){2, 40, 42}, 0);
    const mha_module_outputs wanted = {.struct_size = sizeof wanted,
                                       .average_probabilities = &mean.view};
    guarded_snapshot(&y);
    guarded_snapshot(&mean);
    mha_status status = mha_context_create(&desc, &context);
    if (status == MHA_OK) status = mha_module_create(context, &d, &module);
    if (status == MHA_OK) status = mha_module_cache_create(context, module, 2, 50, &cache);
    const mha_module_call call = {.struct_size = sizeof call,
                                  .attention = &attention,
                                  .query = &x.view,
                                  .key = &x.view,
                                  .value = &x.view,
                                  .out = &y.view,
                                  .outputs = &wanted,
                                  .cache = cache};
    if (status == MHA_OK) status = mha_module_run(context, module, &call);
    if (status != MHA_OK) {
        assert_int_equal(status, MHA_ERR_NOMEM);
        assert_true(guarded_unchanged(&y));
        assert_true(guarded_unchanged(&mean));
        for (int b = 0; cache && b < 2; b++) assert_int_equal(mha_kv_cache_lengths(cache)[b], 0);
    }
    bool failed = memory.calls > n;
    if (!failed) { /* the second call allocates nothing */
        size_t bytes = 0;
        int64_t calls = memory.calls;
        memory.fail_at = -1;
        mha_kv_cache_reset(cache);
        expect_ok(mha_module_run(context, module, &call));
        assert_int_equal(memory.calls, calls);
        mha_kv_cache_reset(cache);
        expect_ok(mha_module_scratch(context, module, &call, &bytes));
        mha_context_destroy(context); /* the reported sizes suffice for a new context */
        expect_ok(mha_context_create(&desc, &context));
        expect_ok(mha_context_reserve(context, bytes));
        calls = memory.calls;
        expect_ok(mha_module_run(context, module, &call));
        assert_int_equal(memory.calls, calls);
    }
    mha_kv_cache_destroy(cache);
    mha_module_destroy(module);
    mha_context_destroy(context);
    assert_int_equal(memory.live, 0);
    assert_int_equal(memory.mistakes, 0);
    guarded_free(&x);
    guarded_free(&y);
    guarded_free(&mean);
    return !failed && status == MHA_OK;
}

static void failed_allocations_are_reported(void)
{
    for (int path = MHA_PATH_TILED; path <= MHA_PATH_PLAIN; path++)
        for (int later = 0; later < 2; later++) {
            int64_t n = 0;
            while (!survives((mha_path)path, n, later)) n++;
            printf("  path %d: %lld allocations, each one refused%s\n", path, (long long)n,
                   later ? " with all later ones" : "");
            assert_true(n >= 20);
        }
}

RUN_TESTS(TEST(steps_are_the_whole), TEST(cross_attention), TEST(step_outputs),
          TEST(norm_then_rotate), TEST(sinks), TEST(create_errors), TEST(ragged_errors),
          TEST(step_errors), TEST(failed_allocations_are_reported))
