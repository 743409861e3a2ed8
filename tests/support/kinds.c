#include "support/kinds.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- values ---------------------------------------------------------------------------------- */

static void fill_bytes(rng *r, const mha_tensor *x, double zeros)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do
        *(uint8_t *)guarded_element(x, index) =
            (uint8_t)(rng_chance(r, zeros) ? 0 : rng_between(r, 1, 255));
    while (guarded_next(x, index));
}

/* Fill with runs of equal documents, as in practice, or in any order. */
static void fill_documents(rng *r, const mha_tensor *x)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    bool runs = rng_chance(r, 0.7);
    int32_t document = 0;
    if (guarded_is_empty(x)) return;
    do {
        if (x->ndim > 0 && index[x->ndim - 1] == 0) document = (int32_t)rng_between(r, -1, 1);
        if (!runs || rng_chance(r, 0.05)) document = (int32_t)rng_between(r, -1, 2);
        *(int32_t *)guarded_element(x, index) = document;
    } while (guarded_next(x, index));
}

static void scatter_infinity(rng *r, const mha_tensor *x, double often)
{
    int64_t index[MHA_MAX_DIMS] = {0};
    if (guarded_is_empty(x)) return;
    do
        if (rng_chance(r, often)) *(float *)guarded_element(x, index) = -INFINITY;
    while (guarded_next(x, index));
}

/* ---- inputs ---------------------------------------------------------------------------------- */

static const mha_tensor *input(kinds_case *c, rng *r, mha_dtype dtype, int ndim,
                               const int64_t *shape, bool last_contiguous)
{
    static const unsigned layouts[] = {LAYOUT_CONTIGUOUS, LAYOUT_CONTIGUOUS, LAYOUT_PAD,
                                       LAYOUT_PAD | LAYOUT_NEGATIVE | LAYOUT_LAST};
    unsigned layout = c->shape.plain_layout ? LAYOUT_CONTIGUOUS : RNG_PICK(r, layouts);
    if (last_contiguous) layout &= ~(unsigned)LAYOUT_LAST;
    guarded *g = &c->inputs[c->input_count++];
    *g = guarded_make(r, dtype, ndim, shape, layout);
    return &g->view;
}

/* A shape that broadcasts to the last `axes` of full[4]: any number of axes, each full or 1. */
static const mha_tensor *spread(kinds_case *c, rng *r, mha_dtype dtype, int axes,
                                const int64_t *full)
{
    int64_t shape[4] = {0};
    int ndim = rng_chance(r, 0.5) ? axes : (int)rng_between(r, 0, axes);
    for (int i = 0; i < ndim; i++) shape[i] = rng_chance(r, 0.75) ? full[axes - ndim + i] : 1;
    return input(c, r, dtype, ndim, shape, false);
}

/* ---- masks ----------------------------------------------------------------------------------- */

void kinds_callback(void *user, int64_t b, int64_t h, int64_t query, int64_t queries, int64_t key,
                    int64_t keys, uint8_t *keep, int64_t keep_stride)
{
    const kinds_hash *hash = user;
    for (int64_t i = 0; i < queries; i++)
        for (int64_t j = 0; j < keys; j++) {
            uint64_t x = hash->seed +
                         (uint64_t)(b * 131 + h * 31 + (query + i) * 7919) * 2654435761u +
                         (uint64_t)(key + j) * 40503u;
            x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9u;
            keep[i * keep_stride + j] =
                (x >> 40) % 8 < hash->keep_of_8 ? (uint8_t)((x & 127) + 1) : 0;
        }
}

static int64_t some_offset(rng *r, const kinds_shape *n)
{
    bool far = !(n->kinds & KIND_ALIBI); /* far scores would lose all precision with ALiBi */
    switch (rng_between(r, 0, 7)) {
    case 0: return 0;
    case 1:
    case 2: return n->S - n->T;
    case 3: return rng_between(r, -n->T - 1, 0);
    case 4: return far ? (rng_chance(r, 0.5) ? 1 : -1) * ((int64_t)1 << 60) : 0;
    default: return rng_between(r, -n->T / 2, n->S);
    }
}

static int64_t some_side(rng *r, int64_t S)
{
    switch (rng_between(r, 0, 5)) {
    case 0: return -1;
    case 1: return 0;
    case 2: return rng_chance(r, 0.1) ? INT64_MAX : S + 1;
    default: return rng_between(r, 0, rng_chance(r, 0.5) ? 8 : S);
    }
}

static void add_window(kinds_case *c, rng *r, const int64_t *by_query, const int64_t *by_key)
{
    const kinds_shape *n = &c->shape;
    if (!(n->kinds & KIND_WINDOW)) return;
    c->desc.flags |= MHA_ATTENTION_WINDOW;
    c->desc.left_keys = some_side(r, n->S);
    c->desc.right_keys = n->kinds & KIND_CAUSAL ? -(int64_t)rng_chance(r, 0.5) : some_side(r, n->S);
    if (n->kinds & KIND_SINK_KEYS)
        c->desc.sink_keys = rng_between(r, 1, rng_chance(r, 0.8) ? 5 : n->S + 3);
    if (n->kinds & KIND_GLOBAL_KEYS) {
        c->desc.global_keys = spread(c, r, MHA_U8, 2, by_key);
        fill_bytes(r, c->desc.global_keys, 0.9);
    }
    if (n->kinds & KIND_GLOBAL_QUERIES) {
        c->desc.global_queries = spread(c, r, MHA_U8, 2, by_query);
        fill_bytes(r, c->desc.global_queries, 0.9);
    }
}

static void add_blocks(kinds_case *c, rng *r)
{
    static const int64_t sizes[] = {1, 2, 3, 16, 17, 32, 64, 128, 1000};
    kinds_shape *n = &c->shape;
    if (!(n->kinds & KIND_BLOCKS)) return;
    c->desc.block_queries = RNG_PICK(r, sizes);
    c->desc.block_keys = RNG_PICK(r, sizes);
    const int64_t full[4] = {n->B, n->H, (n->T + c->desc.block_queries - 1) / c->desc.block_queries,
                             (n->S + c->desc.block_keys - 1) / c->desc.block_keys};
    c->desc.keep_blocks = spread(c, r, MHA_U8, 4, full);
    fill_bytes(r, c->desc.keep_blocks, rng_chance(r, 0.5) ? 0.5 : 0.8);
}

static void add_masks(kinds_case *c, rng *r, const int64_t *dense, const int64_t *by_query,
                      const int64_t *by_key)
{
    static const double drops[] = {0.02, 0.5, 0.9};
    const kinds_shape *n = &c->shape;
    if (n->kinds & KIND_CAUSAL) c->desc.flags |= MHA_ATTENTION_CAUSAL;
    for (int64_t b = 0; b < n->B; b++) {
        int64_t most = n->kinds & KIND_RAGGED ? c->key_starts[b + 1] - c->key_starts[b] : n->S;
        c->lengths[b] = rng_chance(r, 0.2) ? most : rng_between(r, 0, most);
    }
    if (n->kinds & KIND_LENGTHS) c->desc.key_lengths = c->lengths;
    for (int64_t b = 0; n->kinds & KIND_BEGINS && b < n->B; b++) {
        const int64_t most =
            n->kinds & KIND_RAGGED ? c->key_starts[b + 1] - c->key_starts[b] : n->S;
        c->begins[b] =
            rng_chance(r, 0.2) ? 0 : rng_between(r, 0, rng_chance(r, 0.3) ? most : most / 2);
    }
    if (n->kinds & KIND_BEGINS) c->desc.key_begins = c->begins;
    add_window(c, r, by_query, by_key);
    add_blocks(c, r);
    if (n->kinds & KIND_DOCUMENTS) {
        c->desc.query_documents = spread(c, r, MHA_I32, 2, by_query);
        c->desc.key_documents = spread(c, r, MHA_I32, 2, by_key);
        fill_documents(r, c->desc.query_documents);
        fill_documents(r, c->desc.key_documents);
    }
    if (n->kinds & KIND_KEEP) {
        c->desc.keep_mask = spread(c, r, MHA_U8, 4, dense);
        fill_bytes(r, c->desc.keep_mask, RNG_PICK(r, drops));
    }
    if (n->kinds & KIND_BIAS) {
        c->desc.bias = spread(c, r, MHA_F32, 4, dense);
        guarded_fill(r, c->desc.bias, 2);
        scatter_infinity(r, c->desc.bias, rng_chance(r, 0.5) ? 0 : 0.2);
    }
    if (n->kinds & KIND_CALLBACK) {
        c->hash = (kinds_hash){rng_next(r), (unsigned)rng_between(r, 1, 7)};
        c->desc.keep_callback = kinds_callback;
        c->desc.keep_callback_user = &c->hash;
    }
}

/* ---- scores ---------------------------------------------------------------------------------- */

static void add_t5(kinds_case *c, rng *r)
{
    static const int64_t even[] = {4, 6, 8, 32, 64}, any[] = {2, 3, 7, 32};
    const kinds_shape *n = &c->shape;
    if (!(n->kinds & KIND_T5)) return;
    bool one_sided = rng_chance(r, 0.4);
    int64_t buckets = one_sided ? RNG_PICK(r, any) : RNG_PICK(r, even);
    if (one_sided) c->desc.flags |= MHA_ATTENTION_T5_ONE_SIDED;
    if (rng_chance(r, 0.5)) c->desc.t5_max_distance = buckets / 2 + rng_between(r, 1, 200);
    c->desc.t5_table = input(c, r, MHA_F32, 2, (int64_t[]){buckets, n->H}, false);
    guarded_fill(r, c->desc.t5_table, 2);
}

static const mha_tensor *shaw_table(kinds_case *c, rng *r, int64_t width)
{
    static const int64_t reach[] = {0, 1, 2, 7, 16, 40, 130, 300};
    int64_t k = RNG_PICK(r, reach);
    const mha_tensor *table = input(c, r, MHA_F32, 2, (int64_t[]){2 * k + 1, width}, true);
    guarded_fill(r, table, 1);
    return table;
}

static void add_scores(kinds_case *c, rng *r)
{
    static const float caps[] = {0.5f, 5.0f, 30.0f, 50.0f},
                       rates[] = {0.1f, 0.5f, 0.9f, 1.0f, 1e-3f};
    const kinds_shape *n = &c->shape;
    const int64_t by_head[2] = {n->B, n->H};
    if (n->kinds & KIND_SOFTCAP) c->desc.softcap = RNG_PICK(r, caps);
    if (n->kinds & KIND_DROPOUT) c->desc.dropout = RNG_PICK(r, rates);
    c->desc.dropout_seed = rng_next(r);
    if (n->kinds & KIND_ALIBI) {
        c->desc.alibi_slopes = spread(c, r, MHA_F32, 2, by_head);
        guarded_fill(r, c->desc.alibi_slopes, 0.3);
    }
    add_t5(c, r);
    if (n->kinds & KIND_SHAW_KEYS) c->desc.shaw_keys = shaw_table(c, r, n->D);
    if (n->kinds & KIND_SHAW_VALUES) c->desc.shaw_values = shaw_table(c, r, n->Dv);
    if (n->kinds & KIND_SINK_LOGITS) {
        c->desc.sink_logits = input(c, r, MHA_F32, 1, &n->H, false);
        guarded_fill(r, c->desc.sink_logits, rng_chance(r, 0.8) ? 3 : 50);
        scatter_infinity(r, c->desc.sink_logits, 0.2);
    }
    if (n->kinds & KIND_GATES) {
        c->desc.gates = spread(c, r, MHA_F32, 2, by_head);
        guarded_fill(r, c->desc.gates, 1);
    }
}

/* An offset needs an option that reads it; some of these options do not allow an offset. */
static void add_offset(kinds_case *c, rng *r)
{
    const kinds_shape *n = &c->shape;
    const unsigned readers =
        KIND_CAUSAL | KIND_WINDOW | KIND_ALIBI | KIND_T5 | KIND_SHAW_KEYS | KIND_SHAW_VALUES;
    if (!(n->kinds & readers)) return;
    for (int64_t b = 0; b < n->B; b++) c->offsets[b] = some_offset(r, n);
    if (n->kinds & KIND_OFFSETS)
        c->desc.q_offsets = c->offsets;
    else
        c->desc.q_offset = some_offset(r, n);
}

/* ---- cases ----------------------------------------------------------------------------------- */

static void draw_starts(kinds_case *c, rng *r)
{
    const kinds_shape *n = &c->shape;
    for (int64_t b = 0; b < n->B; b++) {
        bool longest = rng_chance(r, 0.3);
        c->query_starts[b + 1] = c->query_starts[b] + (longest ? n->T : rng_between(r, 0, n->T));
        c->key_starts[b + 1] = c->key_starts[b] + (longest ? n->S : rng_between(r, 0, n->S));
    }
    c->desc.query_starts = c->query_starts;
    c->desc.key_starts = c->key_starts;
    c->desc.sequences = n->B;
}

static int64_t longest(const int64_t *starts, int64_t count)
{
    int64_t most = 0;
    for (int64_t b = 0; b < count; b++)
        if (starts[b + 1] - starts[b] > most) most = starts[b + 1] - starts[b];
    return most;
}

static void describe(kinds_case *c)
{
    static const char *const names[KINDS_COUNT] = {
#define KINDS_NAME(name, bit) [bit] = #name,
        KINDS_LIST(KINDS_NAME)
#undef KINDS_NAME
    };
    const kinds_shape *n = &c->shape;
    const mha_attention_desc *d = &c->desc;
    size_t size = sizeof c->text;
    int used = snprintf(c->text, size, "B%lld H%lld/%lld T%lld S%lld D%lld/%lld flags 0x%x",
                        (long long)n->B, (long long)n->H, (long long)n->Hk, (long long)n->T,
                        (long long)n->S, (long long)n->D, (long long)n->Dv, (unsigned)d->flags);
    for (int i = 0; i < KINDS_COUNT; i++)
        if (n->kinds & (1u << i))
            used += snprintf(c->text + used, size - (size_t)used, " %s", names[i]);
    used += snprintf(c->text + used, size - (size_t)used,
                     "; scale %g offset %lld (%lld ..) lengths %lld .. begins %lld .. window "
                     "%lld/%lld sinks %lld "
                     "blocks %lldx%lld cap %g dropout %g",
                     (double)d->scale, (long long)d->q_offset, (long long)c->offsets[0],
                     (long long)c->lengths[0], (long long)c->begins[0], (long long)d->left_keys,
                     (long long)d->right_keys, (long long)d->sink_keys, (long long)d->block_queries,
                     (long long)d->block_keys, (double)d->softcap, (double)d->dropout);
    for (int64_t b = 0; d->query_starts && b < n->B && b < 4; b++)
        used += snprintf(c->text + used, size - (size_t)used, " [%lld x %lld]",
                         (long long)(c->query_starts[b + 1] - c->query_starts[b]),
                         (long long)(c->key_starts[b + 1] - c->key_starts[b]));
}

static void make_consistent(kinds_shape *n)
{
    if (!(n->kinds & KIND_WINDOW))
        n->kinds &= ~(unsigned)(KIND_SINK_KEYS | KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES);
    if (n->kinds & KIND_RAGGED) n->kinds &= ~(unsigned)KIND_BLOCKS;
}

void kinds_make(kinds_case *c, rng *r, const kinds_shape *shape)
{
    memset(c, 0, sizeof *c);
    c->shape = *shape;
    kinds_shape *n = &c->shape;
    make_consistent(n);
    c->desc.struct_size = sizeof c->desc;
    int64_t batch = n->B, rows = n->T, keys = n->S;
    if (n->kinds & KIND_RAGGED) {
        draw_starts(c, r);
        batch = 1, rows = c->query_starts[n->B], keys = c->key_starts[n->B];
        n->T = longest(c->query_starts, n->B), n->S = longest(c->key_starts, n->B);
    }
    c->result = (problem_shape){.B = batch, .H = n->H, .T = rows, .S = n->S, .Dv = n->Dv};
    unsigned layout[3] = {0};
    for (int i = 0; i < 3 && !n->plain_layout; i++) layout[i] = guarded_random_layout(r, true);
    c->q = guarded_make(r, MHA_F32, 4, (int64_t[]){batch, n->H, rows, n->D}, layout[0]);
    c->k = guarded_make(r, MHA_F32, 4, (int64_t[]){batch, n->Hk, keys, n->D}, layout[1]);
    c->v = guarded_make(r, MHA_F32, 4, (int64_t[]){batch, n->Hk, keys, n->Dv}, layout[2]);
    static const double sizes[] = {1, 1, 0.1, 6};
    static const float scales[] = {0.125f, -0.25f, 1.0f, 0.0f};
    guarded_fill(r, &c->q.view, RNG_PICK(r, sizes));
    guarded_fill(r, &c->k.view, 1);
    guarded_fill(r, &c->v.view, rng_chance(r, 0.8) ? 1 : 1e4);
    if (rng_chance(r, 0.3)) {
        c->desc.scale = RNG_PICK(r, scales);
        c->desc.flags |= MHA_ATTENTION_SCALE_GIVEN;
    }
    const int64_t dense[4] = {batch, n->H, rows, n->S};
    const int64_t by_query[2] = {batch, rows}, by_key[2] = {batch, keys};
    add_masks(c, r, dense, by_query, by_key);
    add_scores(c, r);
    add_offset(c, r);
    describe(c);
}

void kinds_free(kinds_case *c)
{
    guarded_free(&c->q);
    guarded_free(&c->k);
    guarded_free(&c->v);
    for (int i = 0; i < c->input_count; i++) guarded_free(&c->inputs[i]);
}

kinds_shape kinds_some_shape(rng *r)
{
    static const int64_t head_sizes[] = {1, 3, 8, 16, 32, 33, 40, 64}, groups[] = {1, 1, 2, 3, 5};
    static const int64_t long_keys[] = {511, 512, 513, 700, 1024, 1040};
    kinds_shape n = {.B = rng_between(r, 1, 4), .Hk = rng_between(r, 1, 2)};
    n.H = n.Hk * RNG_PICK(r, groups);
    n.T = rng_chance(r, 0.1) ? rng_between(r, 0, 3) : rng_between(r, 1, 40);
    n.S = rng_chance(r, 0.1) ? rng_between(r, 0, 3) : rng_between(r, 1, 90);
    n.D = RNG_PICK(r, head_sizes);
    n.Dv = rng_chance(r, 0.5) ? n.D : RNG_PICK(r, head_sizes);
    if (rng_chance(r, 0.12)) n.S = RNG_PICK(r, long_keys);
    if (rng_chance(r, 0.02)) { /* also long queries: several chunks, which contain ends of heads */
        n.T = RNG_PICK(r, long_keys);
        n.B = 1, n.Hk = 1;
        n.H = rng_between(r, 1, 3);
        n.D = rng_between(r, 1, 16);
        if (rng_chance(r, 0.7)) n.S = rng_between(r, 1, 90);
    }
    if (rng_chance(r, 0.005)) n.D = RNG_PICK(r, ((const int64_t[]){128, 250, 256, 257, 300}));
    switch (rng_between(r, 0, 3)) {
    case 0: n.kinds = 1u << rng_between(r, 0, KINDS_COUNT - 1); break;
    case 1: n.kinds = (unsigned)rng_next(r) & (unsigned)rng_next(r) & KINDS_ALL; break;
    case 2: n.kinds = (unsigned)rng_next(r) & KINDS_ALL; break;
    default: /* two or three */
        for (int i = 0; i < 3; i++) n.kinds |= 1u << rng_between(r, 0, KINDS_COUNT - 1);
    }
    if (n.kinds & (KIND_SINK_KEYS | KIND_GLOBAL_KEYS | KIND_GLOBAL_QUERIES)) n.kinds |= KIND_WINDOW;
    n.plain_layout = rng_chance(r, 0.4);
    return n;
}

/* ---- calls ----------------------------------------------------------------------------------- */

outcome kinds_outcome(const kinds_case *c, rng *r, unsigned layout)
{
    return outcome_make(r, &c->result, OUTCOME_ALL, layout);
}

mha_status kinds_run(mha_context *context, const kinds_case *c, mha_path path, outcome *x)
{
    mha_attention_desc desc = c->desc;
    desc.path = path;
    return outcome_run(context, &desc, &c->q.view, &c->k.view, &c->v.view, x);
}
