/* Bit-identity of equivalent descriptors on every path and instruction set: symbolic and dense masks, ragged and padded
 * batches, grouped and repeated heads, features with no effect, any number of threads, biases of hidden pairs.
 * test_nonfinite.c tests keys, values and queries that are not finite. */
#include "reference/kinds_reference.h"
#include "support/expect.h"
#include "support/kinds.h"
#include "support/machines.h"
#include "support/suite.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

/* ---- pairs of runs --------------------------------------------------------------------------- */

static void must(bool condition, const machine *m, const kinds_case *c, int number,
                 const char *what)
{
    if (condition) return;
    fail_msg("%s: %s\n  %s\n  case %d of seed %llu", m->name, what, c->text, number,
             (unsigned long long)rng_run_seed());
}

static outcome run(const machine *m, const kinds_case *c, rng *r, int number)
{
    outcome x = kinds_outcome(c, r, LAYOUT_CONTIGUOUS);
    must(kinds_run(m->context, c, m->path, &x) == MHA_OK, m, c, number, mha_error_detail());
    return x;
}

/* Run a random case with its own and another descriptor. Both must give the same bits on every
 * machine. */
static void expect_same(kinds_case *c, rng *r, int number, const mha_attention_desc *other,
                        const machines *all, const char *what)
{
    const mha_attention_desc own = c->desc;
    for (int i = 0; i < all->count; i++) {
        outcome x = run(&all->each[i], c, r, number);
        c->desc = *other;
        outcome y = run(&all->each[i], c, r, number);
        c->desc = own;
        must(outcome_same(&x, &y, false), &all->each[i], c, number, what);
        outcome_free(&x);
        outcome_free(&y);
    }
}

static kinds_case *make(rng *r, uint64_t stream, unsigned with, unsigned without)
{
    kinds_case *c = test_malloc(sizeof *c);
    *r = rng_make(rng_run_seed(), stream);
    kinds_shape n = kinds_some_shape(r);
    n.kinds = (n.kinds | with) & ~without;
    if (n.T == 0) n.T = 5;
    if (n.S == 0) n.S = 9;
    kinds_make(c, r, &n);
    return c;
}

static void discard(kinds_case *c)
{
    kinds_free(c);
    test_free(c);
}

/* ---- masks ----------------------------------------------------------------------------------- */

/* The pairs that are visible in the reference, as a dense mask. */
static guarded dense_mask(const kinds_case *c, rng *r)
{
    ref_attention a = kinds_reference(c);
    const problem_shape *n = &c->result;
    guarded mask = guarded_make(r, MHA_U8, 4, (int64_t[]){n->B, n->H, n->T, n->S}, 0);
    if (guarded_is_empty(&mask.view)) return mask;
    memset(mask.view.data, 0, (size_t)(n->B * n->H * n->T * n->S));
    for (int64_t b = 0; b < kinds_sequences(&a); b++) {
        kinds_sequence at = kinds_sequence_at(&a, b);
        for (int64_t h = 0; h < n->H; h++)
            for (int64_t t = 0; t < at.T; t++)
                for (int64_t s = 0; s < at.S; s++)
                    *(uint8_t *)guarded_element(&mask.view,
                                                (int64_t[]){at.batch, h, at.q0 + t, s}) =
                        kinds_sees(&a, b, h, t, s);
    }
    return mask;
}

/* The descriptor without its symbolic masks. */
static mha_attention_desc only_dense(const mha_attention_desc *desc, const mha_tensor *mask)
{
    mha_attention_desc d = *desc;
    d.flags &= ~(uint32_t)(MHA_ATTENTION_CAUSAL | MHA_ATTENTION_WINDOW);
    d.left_keys = d.right_keys = d.sink_keys = d.block_queries = d.block_keys = 0;
    d.key_lengths = NULL;
    d.global_keys = d.global_queries = d.query_documents = d.key_documents = d.keep_blocks = NULL;
    d.keep_callback = NULL;
    d.keep_mask = mask;
    if (!d.alibi_slopes && !d.t5_table && !d.shaw_keys && !d.shaw_values) {
        d.q_offset = 0;
        d.q_offsets = NULL;
    }
    return d;
}

static void symbolic_is_dense(void)
{
    machines all = machines_make(1);
    rng r;
    for (int i = 0; i < rng_cases(120, 4000); i++) {
        /* Each kind of mask separately, then combinations. */
        static const unsigned each[] = {KIND_CAUSAL,
                                        KIND_LENGTHS,
                                        KIND_BEGINS,
                                        KIND_WINDOW,
                                        KIND_WINDOW | KIND_SINK_KEYS,
                                        KIND_WINDOW | KIND_GLOBAL_KEYS,
                                        KIND_WINDOW | KIND_GLOBAL_QUERIES,
                                        KIND_DOCUMENTS,
                                        KIND_BLOCKS,
                                        KIND_CALLBACK};
        enum { EACH = sizeof each / sizeof each[0] };
        kinds_case *c = i < 2 * EACH ? make(&r, 1000 + (uint64_t)i, each[i % EACH],
                                            KINDS_SYMBOLIC & ~each[i % EACH])
                                     : make(&r, 1000 + (uint64_t)i, each[i % EACH], 0);
        guarded mask = dense_mask(c, &r);
        mha_attention_desc dense = only_dense(&c->desc, &mask.view);
        expect_same(c, &r, i, &dense, &all, "a symbolic mask is not the dense one");
        guarded_free(&mask);
        discard(c);
    }
}

static void open_window(void)
{
    machines all = machines_make(1);
    rng r;
    for (int i = 0; i < rng_cases(40, 1000); i++) {
        kinds_case *c = make(&r, 20000 + (uint64_t)i, 0, KIND_WINDOW);
        memset(c->offsets, 0, sizeof c->offsets);
        c->desc.q_offset = 0; /* so that distances stay within the longer length */
        mha_attention_desc wide = c->desc;
        int64_t longest = c->shape.T > c->shape.S ? c->shape.T : c->shape.S;
        wide.flags |= MHA_ATTENTION_WINDOW;
        wide.left_keys = i % 2 ? longest : -1;
        wide.right_keys = wide.flags & MHA_ATTENTION_CAUSAL ? 0 : i % 4 / 2 ? longest : -1;
        expect_same(c, &r, i, &wide, &all, "a window of everything hides something");
        discard(c);
    }
}

/* ---- ragged ---------------------------------------------------------------------------------- */

/* Copy the rows of sequence b in x (on `axis`) to row b of the padded tensor. With a broadcast axis
 * all sequences get the same rows. */
static void pad_rows(const mha_tensor *x, const mha_tensor *out, int axis, int64_t b, int64_t from,
                     int64_t count)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    mha_tensor part = guarded_slice(out, axis, 0, count), own = guarded_slice(&part, 0, b, 1);
    if (guarded_is_empty(&own)) return;
    do {
        int64_t at[MHA_MAX_DIMS];
        for (int i = 0; i < x->ndim; i++)
            at[i] = x->shape[i] == 1 ? 0 : index[i + out->ndim - x->ndim];
        int mine = axis - (out->ndim - x->ndim);
        if (mine >= 0 && x->shape[mine] != 1) at[mine] += from;
        memcpy(guarded_element(&own, index), guarded_element(x, at), mha_dtype_size(x->dtype));
    } while (guarded_next(&own, index));
}

/* A ragged case as a padded batch; memory between the sequences stays NaN. */
typedef struct padded {
    mha_attention_desc desc;
    guarded q, k, v, dense[2], rows[4];
    int64_t lengths[KINDS_MOST_SEQUENCES];
} padded;

static const mha_tensor *pad_input(const kinds_case *c, rng *r, const mha_tensor *x, int ndim,
                                   const int64_t *shape, int axis, const int64_t *starts,
                                   guarded *out)
{
    if (!x) return NULL;
    *out = guarded_make(r, x->dtype, ndim, shape, LAYOUT_CONTIGUOUS);
    for (int64_t b = 0; b < c->shape.B; b++)
        pad_rows(x, &out->view, axis, b, starts[b], starts[b + 1] - starts[b]);
    return &out->view;
}

static void pad(const kinds_case *c, rng *r, padded *p)
{
    const kinds_shape *n = &c->shape;
    const int64_t *queries = c->query_starts, *keys = c->key_starts;
    const int64_t q[] = {n->B, n->H, n->T, n->D}, k[] = {n->B, n->Hk, n->S, n->D};
    const int64_t v[] = {n->B, n->Hk, n->S, n->Dv}, dense[] = {n->B, n->H, n->T, n->S};
    const int64_t by_query[] = {n->B, n->T}, by_key[] = {n->B, n->S};
    mha_attention_desc *d = &p->desc;
    memset(p, 0, sizeof *p);
    *d = c->desc;
    pad_input(c, r, &c->q.view, 4, q, 2, queries, &p->q);
    pad_input(c, r, &c->k.view, 4, k, 2, keys, &p->k);
    pad_input(c, r, &c->v.view, 4, v, 2, keys, &p->v);
    d->keep_mask = pad_input(c, r, d->keep_mask, 4, dense, 2, queries, &p->dense[0]);
    d->bias = pad_input(c, r, d->bias, 4, dense, 2, queries, &p->dense[1]);
    d->global_queries = pad_input(c, r, d->global_queries, 2, by_query, 1, queries, &p->rows[0]);
    d->global_keys = pad_input(c, r, d->global_keys, 2, by_key, 1, keys, &p->rows[1]);
    d->query_documents = pad_input(c, r, d->query_documents, 2, by_query, 1, queries, &p->rows[2]);
    d->key_documents = pad_input(c, r, d->key_documents, 2, by_key, 1, keys, &p->rows[3]);
    for (int64_t b = 0; b < n->B; b++)
        p->lengths[b] = d->key_lengths ? d->key_lengths[b] : keys[b + 1] - keys[b];
    d->key_lengths = p->lengths;
    d->query_starts = d->key_starts = NULL;
    d->sequences = 0;
}

static void padded_free(padded *p)
{
    guarded *all[] = {&p->q,       &p->k,       &p->v,       &p->dense[0], &p->dense[1],
                      &p->rows[0], &p->rows[1], &p->rows[2], &p->rows[3]};
    for (int i = 0; i < 9; i++) guarded_free(all[i]);
}

/* Whether a part of the row axis is equal in both results. */
static bool same_rows(const guarded *a, const guarded *b, int64_t from, int64_t sequence,
                      int64_t count)
{
    mha_tensor x = guarded_slice(&a->view, 2, from, count);
    mha_tensor y = guarded_slice(&b->view, 2, 0, count);
    y = guarded_slice(&y, 0, sequence, 1);
    return guarded_same_bits(&x, &y, false);
}

static void ragged_is_padded(void)
{
    machines all = machines_make(1);
    rng r;
    for (int i = 0; i < rng_cases(80, 3000); i++) {
        kinds_case *c =
            make(&r, 30000 + (uint64_t)i, KIND_RAGGED, i % 3 ? 0 : KINDS_ALL ^ KIND_RAGGED);
        const kinds_shape *n = &c->shape;
        padded p;
        pad(c, &r, &p);
        problem_shape shape = {.B = n->B, .H = n->H, .T = n->T, .S = n->S, .Dv = n->Dv};
        for (int m = 0; m < all.count; m++) {
            outcome x = run(&all.each[m], c, &r, i), y = outcome_make(&r, &shape, OUTCOME_ALL, 0);
            p.desc.path = all.each[m].path;
            must(outcome_run(all.each[m].context, &p.desc, &p.q.view, &p.k.view, &p.v.view, &y) ==
                     MHA_OK,
                 &all.each[m], c, i, mha_error_detail());
            for (int64_t b = 0; b < n->B; b++) {
                int64_t from = c->query_starts[b], count = c->query_starts[b + 1] - from;
                must(same_rows(&x.o, &y.o, from, b, count) &&
                         same_rows(&x.lse, &y.lse, from, b, count) &&
                         same_rows(&x.p, &y.p, from, b, count),
                     &all.each[m], c, i, "a ragged batch is not the padded one");
            }
            outcome_free(&x);
            outcome_free(&y);
        }
        padded_free(&p);
        discard(c);
    }
}

/* ---- heads ----------------------------------------------------------------------------------- */

static guarded repeat_heads(const mha_tensor *x, rng *r, int64_t heads)
{
    int64_t shape[4] = {x->shape[0], heads, x->shape[2], x->shape[3]}, index[4] = {0};
    guarded out = guarded_make(r, MHA_F32, 4, shape, LAYOUT_SWAP);
    if (guarded_is_empty(&out.view)) return out;
    do {
        int64_t at[4] = {index[0], index[1] / (heads / x->shape[1]), index[2], index[3]};
        memcpy(guarded_element(&out.view, index), guarded_element(x, at), sizeof(float));
    } while (guarded_next(&out.view, index));
    return out;
}

static void grouped_is_repeated(void)
{
    machines all = machines_make(1);
    rng r;
    for (int i = 0; i < rng_cases(40, 1500); i++) {
        kinds_case *c = make(&r, 50000 + (uint64_t)i, 0, 0);
        guarded k = repeat_heads(&c->k.view, &r, c->shape.H);
        guarded v = repeat_heads(&c->v.view, &r, c->shape.H);
        for (int m = 0; m < all.count; m++) {
            outcome x = run(&all.each[m], c, &r, i), y = kinds_outcome(c, &r, 0);
            mha_attention_desc desc = c->desc;
            desc.path = all.each[m].path;
            must(outcome_run(all.each[m].context, &desc, &c->q.view, &k.view, &v.view, &y) ==
                     MHA_OK,
                 &all.each[m], c, i, mha_error_detail());
            must(outcome_same(&x, &y, false), &all.each[m], c, i, "repeated heads differ");
            outcome_free(&x);
            outcome_free(&y);
        }
        guarded_free(&k);
        guarded_free(&v);
        discard(c);
    }
}

/* ---- features without an effect -------------------------------------------------------------- */

static mha_tensor constants(float *memory, int64_t count, float value)
{
    for (int64_t i = 0; i < count; i++) memory[i] = value;
    return mha_tensor_contiguous(memory, MHA_F32, 1, &count);
}

static void idle_features(void)
{
    machines all = machines_make(1);
    rng r;
    float memory[3][16];
    for (int i = 0; i < rng_cases(40, 1000); i++) {
        kinds_case *c = make(&r, 60000 + (uint64_t)i, 0,
                             KIND_GATES | KIND_DROPOUT | KIND_SINK_LOGITS | KIND_ALIBI);
        mha_tensor ones = constants(memory[0], c->shape.H, 1);
        mha_tensor none = constants(memory[1], c->shape.H, -INFINITY);
        mha_tensor flat = constants(memory[2], c->shape.H, 0);
        mha_attention_desc idle = c->desc;
        idle.gates = &ones;
        expect_same(c, &r, i, &idle, &all, "gates of 1 change something");
        idle = c->desc;
        idle.sink_logits = &none;
        expect_same(c, &r, i, &idle, &all, "sinks of -inf change something");
        idle = c->desc;
        idle.dropout_seed ^= 0x123456789u;
        expect_same(c, &r, i, &idle, &all, "a seed without dropout changes something");
        idle = c->desc;
        idle.alibi_slopes = &flat;
        expect_same(c, &r, i, &idle, &all, "slopes of 0 change something");
        discard(c);
    }
}

static bool all_zero(const mha_tensor *x)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    uint32_t bits;
    if (guarded_is_empty(x)) return true;
    do {
        memcpy(&bits, guarded_element(x, index), sizeof bits);
        if (bits != 0) return false; /* not even -0 */
    } while (guarded_next(x, index));
    return true;
}

/* Gates of 0 and dropout of 1 give +0 and do not change lse and p. */
static void shut_off(void)
{
    machines all = machines_make(1);
    rng r;
    float memory[16];
    for (int i = 0; i < rng_cases(30, 500); i++) {
        kinds_case *c = make(&r, 70000 + (uint64_t)i, 0, KIND_GATES | KIND_DROPOUT);
        mha_tensor zeros = constants(memory, c->shape.H, 0);
        for (int m = 0; m < all.count; m++) {
            outcome x = run(&all.each[m], c, &r, i);
            c->desc.gates = &zeros;
            outcome gated = run(&all.each[m], c, &r, i);
            c->desc.gates = NULL;
            c->desc.dropout = 1;
            outcome dropped = run(&all.each[m], c, &r, i);
            c->desc.dropout = 0;
            must(all_zero(&gated.o.view), &all.each[m], c, i, "a gate of 0 lets something through");
            must(all_zero(&dropped.o.view), &all.each[m], c, i,
                 "dropout of 1 lets something through");
            must(guarded_same_bits(&x.lse.view, &gated.lse.view, false) &&
                     guarded_same_bits(&x.p.view, &gated.p.view, false) &&
                     guarded_same_bits(&x.lse.view, &dropped.lse.view, false) &&
                     guarded_same_bits(&x.p.view, &dropped.p.view, false),
                 &all.each[m], c, i, "gates or dropout change lse or p");
            outcome_free(&x);
            outcome_free(&gated);
            outcome_free(&dropped);
        }
        discard(c);
    }
}

/* ---- dropout --------------------------------------------------------------------------------- */

/* If v is the identity, o is p after dropout. Count the zeros. */
static int64_t count_dropped(const machine *m, float rate, uint64_t seed, int64_t *total)
{
    enum { T = 40, S = 256, H = 3 };
    static float q[H * T], k[H * S], v[H * S * S], o[H * T * S];
    memset(q, 0, sizeof q);
    memset(k, 0, sizeof k);
    memset(v, 0, sizeof v);
    for (int64_t i = 0; i < (int64_t)H * S; i++) v[i * S + i % S] = 1;
    const mha_tensor qt = mha_tensor_contiguous(q, MHA_F32, 4, (int64_t[]){1, H, T, 1});
    const mha_tensor kt = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, H, S, 1});
    const mha_tensor vt = mha_tensor_contiguous(v, MHA_F32, 4, (int64_t[]){1, H, S, S});
    const mha_tensor ot = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, H, T, S});
    const mha_attention_desc desc = {
        .struct_size = sizeof desc, .path = m->path, .dropout = rate, .dropout_seed = seed};
    expect_ok(mha_attention_forward(m->context, &desc, &qt, &kt, &vt, &ot, NULL));
    int64_t dropped = 0;
    const double kept = 1.0 / S / (1 - (double)rate);
    *total = (int64_t)H * T * S;
    for (int64_t i = 0; i < *total; i++) {
        dropped += o[i] == 0;
        assert_true(o[i] == 0 || fabs((double)o[i] / kept - 1) < 1e-6);
    }
    return dropped;
}

/* The rate is within six standard deviations of the binomial distribution, for any seed. */
static void dropout_rate(void)
{
    static const float rates[] = {0.01f, 0.1f, 0.5f, 0.9f};
    machines all = machines_make(1);
    rng r = rng_make(rng_run_seed(), 80000);
    for (int m = 0; m < all.count; m++)
        for (int i = 0; i < 4; i++) {
            int64_t total, dropped = count_dropped(&all.each[m], rates[i], rng_next(&r), &total);
            double p = (double)rates[i], n = (double)total;
            if (fabs((double)dropped - n * p) > 6 * sqrt(n * p * (1 - p)))
                fail_msg("%s: %lld of %lld dropped at rate %g", all.each[m].name,
                         (long long)dropped, (long long)total, p);
        }
}

/* ---- threads, and outputs -------------------------------------------------------------------- */

static void any_threads(void)
{
    static const int threads[] = {1, 2, 3, 8};
    machines all[4];
    rng r;
    for (int i = 0; i < 4; i++) all[i] = machines_make(threads[i]);
    for (int i = 0; i < rng_cases(40, 1000); i++) {
        kinds_case *c = make(&r, 90000 + (uint64_t)i, i % 2 ? KIND_DROPOUT : 0, 0);
        for (int m = 0; m < all[0].count; m++) {
            outcome x = run(&all[0].each[m], c, &r, i);
            for (int j = 1; j < 4; j++) {
                outcome y = run(&all[j].each[m], c, &r, i);
                must(outcome_same(&x, &y, false), &all[j].each[m], c, i, "threads change the bits");
                outcome_free(&y);
            }
            outcome alone = outcome_make(&r, &c->result, OUTCOME_O, 0);
            must(kinds_run(all[0].each[m].context, c, all[0].each[m].path, &alone) == MHA_OK,
                 &all[0].each[m], c, i, mha_error_detail());
            must(outcome_same(&x, &alone, false), &all[0].each[m], c, i, "outputs change o");
            outcome_free(&alone);
            outcome_free(&x);
        }
        discard(c);
    }
}

/* ---- non-finite values ----------------------------------------------------------------------- */

/* A bias has one value per pair. Values of masked pairs have no effect. */
static void garbage_in_unseen_bias(void)
{
    machines all = machines_make(1);
    rng r;
    for (int i = 0; i < rng_cases(40, 1000); i++) {
        static const float garbage[] = {NAN, INFINITY, -INFINITY, 3e38f};
        kinds_case *c = make(&r, 130000 + (uint64_t)i, 1u << (i % 12), KIND_BIAS);
        guarded seen = dense_mask(c, &r);
        guarded bias = guarded_make(&r, MHA_F32, 4, seen.view.shape, LAYOUT_CONTIGUOUS);
        guarded dirty = guarded_make(&r, MHA_F32, 4, seen.view.shape, LAYOUT_CONTIGUOUS);
        int64_t index[MHA_MAX_DIMS] = {0};
        bool some = !guarded_is_empty(&seen.view);
        while (some) {
            float *clean = guarded_element(&bias.view, index);
            bool hidden = *(uint8_t *)guarded_element(&seen.view, index) == 0;
            *clean = hidden ? 0 : rng_normal(&r);
            *(float *)guarded_element(&dirty.view, index) = hidden ? RNG_PICK(&r, garbage) : *clean;
            some = guarded_next(&seen.view, index);
        }
        mha_attention_desc other = c->desc;
        c->desc.bias = &bias.view;
        other.bias = &dirty.view;
        expect_same(c, &r, i, &other, &all, "a bias of an unseen key reaches the result");
        guarded_free(&seen);
        guarded_free(&bias);
        guarded_free(&dirty);
        discard(c);
    }
}

/* ---- skipped tiles --------------------------------------------------------------------------- */

static void count_cells(void *user, int64_t b, int64_t h, int64_t query, int64_t queries,
                        int64_t key, int64_t keys, uint8_t *keep, int64_t keep_stride)
{
    (void)b, (void)h, (void)query, (void)key;
    atomic_fetch_add((_Atomic int64_t *)user, queries * keys);
    for (int64_t i = 0; i < queries; i++) memset(keep + i * keep_stride, 1, (size_t)keys);
}

/* A callback is called for the tiles that no other mask hides, and for few other cells. */
static int64_t cells_asked(const machine *m, const mha_attention_desc *given, int64_t length)
{
    rng r = rng_make(1, 1);
    const problem_shape n = {
        .B = 1, .H = 1, .Hk = 1, .T = length, .S = length, .D = 4, .Dv = 4, .plain_layout = true};
    problem p;
    _Atomic int64_t cells = 0;
    problem_make(&p, &r, &n);
    p.desc = *given;
    p.desc.struct_size = sizeof p.desc;
    p.desc.keep_callback = count_cells;
    p.desc.keep_callback_user = &cells;
    outcome x = outcome_make(&r, &n, OUTCOME_O, 0);
    if (problem_run(m->context, &p, m->path, &x) != MHA_OK) fail_msg("%s", mha_error_detail());
    outcome_free(&x);
    problem_free(&p);
    return cells;
}

static void hidden_tiles_are_skipped(void)
{
    enum { N = 2048, W = 100, BLOCK = 64, STRIP = 16, PANEL = 32 };
    machines all = machines_make(1);
    static uint8_t diagonal[N / BLOCK][N / BLOCK];
    for (int i = 0; i < N / BLOCK; i++) diagonal[i][i] = 1;
    const mha_tensor blocks =
        mha_tensor_contiguous(diagonal, MHA_U8, 2, (int64_t[]){N / BLOCK, N / BLOCK});
    const mha_attention_desc window = {.flags = MHA_ATTENTION_WINDOW, .left_keys = W};
    const mha_attention_desc pattern = {
        .keep_blocks = &blocks, .block_queries = BLOCK, .block_keys = BLOCK};
    const mha_attention_desc causal = {.flags = MHA_ATTENTION_CAUSAL};
    for (int m = 0; m < all.count; m++) {
        if (all.each[m].path == MHA_PATH_PLAIN) continue; /* the plain path queries complete rows */
        int64_t cells = cells_asked(&all.each[m], &window, N);
        printf("  %s: window %lld, ", all.each[m].name, (long long)cells);
        assert_in_range(cells, (N - W) * (W + 1), N * (W + 1 + STRIP + PANEL));
        cells = cells_asked(&all.each[m], &pattern, N);
        printf("blocks %lld, ", (long long)cells);
        /* A strip across an edge of the pattern queries both blocks. */
        assert_in_range(cells, N * BLOCK, N * BLOCK + N / BLOCK * STRIP * (BLOCK + PANEL));
        cells = cells_asked(&all.each[m], &causal, N);
        printf("causal %lld of %d pairs\n", (long long)cells, N * N);
        assert_in_range(cells, (int64_t)N * (N + 1) / 2, (int64_t)N * (N + 1) / 2 + N * STRIP);
    }
}

/* A global key before and after a window, adjacent to it and at gaps of 1 and 2. The keys in the
 * gap remain hidden. There is one query, because mask bytes for one row of a strip are bytes for
 * all its rows. */
static void beside_the_window(void)
{
    enum { N = 12, WIDTH = 8, QUERY = 6 }; /* the query sees keys 5, 6, 7 */
    rng r = rng_make(rng_run_seed(), 900);
    machines all = machines_make(1);
    float numbers[N * WIDTH], out[WIDTH], weights[N];
    for (int i = 0; i < N * WIDTH; i++) numbers[i] = rng_normal(&r);
    const mha_tensor x = mha_tensor_contiguous(numbers, MHA_F32, 4, (int64_t[]){1, 1, N, WIDTH});
    const mha_tensor q = mha_tensor_contiguous(numbers, MHA_F32, 4, (int64_t[]){1, 1, 1, WIDTH});
    const mha_tensor o = mha_tensor_contiguous(out, MHA_F32, 4, (int64_t[]){1, 1, 1, WIDTH});
    const mha_tensor p = mha_tensor_contiguous(weights, MHA_F32, 4, (int64_t[]){1, 1, 1, N});
    for (int key = 0; key < N; key++)
        for (int m = 0; m < all.count; m++) {
            uint8_t global[N] = {0};
            global[key] = 1;
            const mha_tensor view = mha_tensor_contiguous(global, MHA_U8, 1, (int64_t[]){N});
            const mha_attention_desc desc = {.struct_size = sizeof desc,
                                             .flags = MHA_ATTENTION_WINDOW,
                                             .path = all.each[m].path,
                                             .q_offset = QUERY,
                                             .left_keys = 1,
                                             .right_keys = 1,
                                             .global_keys = &view};
            const mha_attention_outputs wanted = {.struct_size = sizeof wanted,
                                                  .probabilities = &p};
            expect_ok(mha_attention_forward(all.each[m].context, &desc, &q, &x, &x, &o, &wanted));
            for (int s = 0; s < N; s++)
                if ((weights[s] > 0) != (s == key || (s >= QUERY - 1 && s <= QUERY + 1)))
                    fail_msg("%s: key %d is global, weight of key %d is %g", all.each[m].name, key,
                             s, (double)weights[s]);
        }
}

RUN_TESTS(TEST(symbolic_is_dense), TEST(open_window), TEST(ragged_is_padded),
          TEST(grouped_is_repeated), TEST(idle_features), TEST(shut_off), TEST(dropout_rate),
          TEST(any_threads), TEST(garbage_in_unseen_bias), TEST(hidden_tiles_are_skipped),
          TEST(beside_the_window))
