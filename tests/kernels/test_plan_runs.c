/* Plans match the executed kernels: the test counts calls of kernels for the shapes of
 * docs/speed.md on each instruction set. mha_attention_explain() returns the plan. */
#include "attention/attn_plan.h"
#include "kernels/kernels.h"
#include "support/machines.h"
#include "support/rng.h"
#include "support/suite.h"

#include <multihead/attention.h>
#include <multihead/component.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 2, BLOCK = 64 };

/* ---- counting ------------------------------------------------------------------------------ */

static struct {
    atomic_int packs, tiles, in_place, one_block, shared, most_rows, most_keys;
} seen;

static const mhai_kernels *real;

static void raise_to(atomic_int *most, int value)
{
    int old = atomic_load(most);
    while (old < value && !atomic_compare_exchange_weak(most, &old, value)) continue;
}

static void see_tile(const mhai_tile *tile)
{
    raise_to(&seen.most_rows, tile->rows);
    raise_to(&seen.most_keys, tile->end);
}

static void pack_panels(const mhai_pack *pack)
{
    seen.packs++;
    real->pack_panels(pack);
}

static void tile_forward(const mhai_tile *tile)
{
    seen.tiles++;
    see_tile(tile);
    real->tile_forward(tile);
}

static void tile_rows_forward(const mhai_tile *const *tiles, const mhai_tile_rows *rows, bool *done)
{
    seen.in_place++;
    for (int i = 0; i < rows->tiles; i++) see_tile(tiles[i]);
    real->tile_rows_forward(tiles, rows, done);
}

/* Packs, and divides rows into even strips like the walk. */
static void one_block_forward(const mhai_one_block *block, bool *done)
{
    const int64_t strips = (block->rows + real->tile_rows - 1) / real->tile_rows;
    seen.one_block++;
    seen.packs++;
    seen.tiles++;
    raise_to(&seen.most_rows, (int)((block->rows + strips - 1) / strips));
    raise_to(&seen.most_keys, block->keys);
    real->one_block_forward(block, done);
}

static void lanes_forward(const mhai_lanes *lanes, bool *done)
{
    seen.one_block++;
    seen.packs++;
    seen.tiles++;
    raise_to(&seen.most_rows, lanes->rows);
    raise_to(&seen.most_keys, lanes->keys);
    real->lanes_forward(lanes, done);
}

static void tile_rows_scores(const mhai_tile *const *tiles, const mhai_tile_rows *rows,
                             bool *finite)
{
    seen.shared++;
    for (int i = 0; i < rows->tiles; i++) see_tile(tiles[i]);
    real->tile_rows_scores(tiles, rows, finite);
}

/* The same kernels, counted. */
static mhai_kernels counted(const mhai_kernels *kernels)
{
    mhai_kernels counting = *kernels;
    real = kernels;
    counting.pack_panels = pack_panels;
    counting.tile_forward = tile_forward;
    counting.tile_rows_forward = tile_rows_forward;
    counting.one_block_forward = one_block_forward;
    counting.lanes_forward = lanes_forward;
    counting.tile_rows_scores = tile_rows_scores;
    memset(&seen, 0, sizeof seen);
    return counting;
}

/* ---- the shapes ------------------------------------------------------------------------------ */

typedef enum kind { FULL, CAUSAL, WINDOW, BLOCKS, LENGTHS, KEEP, BIAS, AVERAGE } kind;

typedef struct shape {
    kind kind;
    int64_t B, H, Hk, T, S, D;
    bool by_token;
} shape;

static const shape shapes[] = {
    {FULL, 1, 8, 8, 512, 512, 64, false},      {FULL, 1, 8, 8, 2048, 2048, 64, false},
    {FULL, 1, 8, 8, 2048, 2048, 128, false},   {FULL, 1, 32, 32, 512, 512, 128, false},
    {FULL, 1, 12, 12, 128, 128, 64, false},    {FULL, 16, 12, 12, 128, 128, 64, false},
    {FULL, 2, 8, 8, 10, 10, 64, false},        {CAUSAL, 1, 16, 4, 3, 5, 40, false},
    {FULL, 1, 8, 8, 512, 512, 64, true},       {CAUSAL, 2, 8, 2, 100, 300, 64, true},
    {LENGTHS, 1, 8, 8, 128, 128, 64, false},   {KEEP, 1, 8, 8, 128, 128, 64, false},
    {FULL, 1, 8, 8, 128, 513, 64, false},      {CAUSAL, 1, 8, 8, 2048, 2048, 64, false},
    {CAUSAL, 1, 8, 8, 2048, 2048, 128, false}, {WINDOW, 1, 8, 8, 16384, 16384, 64, false},
    {BLOCKS, 1, 8, 8, 8192, 8192, 64, false},  {LENGTHS, 1, 8, 8, 2048, 2048, 64, false},
    {KEEP, 1, 8, 8, 2048, 2048, 64, false},    {BIAS, 1, 8, 8, 2048, 2048, 64, false},
    {FULL, 1, 32, 8, 1, 4096, 128, false},     {FULL, 1, 32, 32, 1, 4096, 128, false},
    {FULL, 1, 32, 1, 1, 4096, 128, false},     {FULL, 1, 32, 8, 1, 32768, 128, false},
    {FULL, 1, 32, 1, 1, 32768, 128, false},    {AVERAGE, 1, 12, 12, 128, 128, 64, true},
    {AVERAGE, 1, 8, 8, 512, 512, 64, true},    {AVERAGE, 1, 8, 8, 2048, 2048, 64, true},
    {FULL, 1, 8, 8, 0, 128, 64, false},        {FULL, 1, 8, 8, 128, 0, 64, false},
    {FULL, 0, 8, 8, 128, 128, 64, false},      {FULL, 1, 8, 8, 0, 4096, 64, false},
    {FULL, 1, 8, 8, 1, 0, 64, false},
};

typedef struct problem {
    const shape *shape;
    mha_attention_desc desc;
    mha_attention_outputs outputs;
    mha_tensor q, k, v, o, extra;
    int64_t lengths[1];
    void *memory, *mask;
} problem;

static mha_tensor tensor_of(float **at, const shape *s, int64_t heads, int64_t n)
{
    mha_tensor x = mha_tensor_contiguous(*at, MHA_F32, 4, (int64_t[]){s->B, heads, n, s->D});
    if (s->by_token) {
        x.stride[1] = s->D;
        x.stride[2] = heads * s->D;
    }
    *at += s->B * heads * n * s->D;
    return x;
}

static void set_mask(problem *p)
{
    const shape *s = p->shape;
    const int64_t blocks = s->T / BLOCK, pairs = s->B * s->T * s->S;
    p->desc = (mha_attention_desc){.struct_size = sizeof p->desc};
    p->outputs = (mha_attention_outputs){.struct_size = sizeof p->outputs};
    if (s->kind == CAUSAL || s->kind == WINDOW) p->desc.flags = MHA_ATTENTION_CAUSAL;
    if (s->kind == WINDOW) {
        p->desc.flags |= MHA_ATTENTION_WINDOW;
        p->desc.left_keys = 255;
    }
    if (s->kind == LENGTHS) {
        p->lengths[0] = s->S - 100;
        p->desc.key_lengths = p->lengths;
    }
    if (s->kind != BLOCKS && s->kind != KEEP && s->kind != BIAS && s->kind != AVERAGE) return;
    uint8_t *bytes = p->mask = calloc((size_t)pairs, sizeof(float));
    assert_non_null(bytes);
    p->extra = mha_tensor_contiguous(p->mask, MHA_F32, 3, (int64_t[]){s->B, s->T, s->S});
    if (s->kind == AVERAGE) p->outputs.average_probabilities = &p->extra;
    if (s->kind == AVERAGE) return;
    const int64_t rows = s->kind == BLOCKS ? blocks : s->T;
    p->extra = mha_tensor_contiguous(p->mask, s->kind == BIAS ? MHA_F32 : MHA_U8, 4,
                                     (int64_t[]){1, 1, rows, rows});
    for (int64_t i = 0; s->kind != BIAS && i < rows * rows; i++)
        bytes[i] = s->kind == KEEP ? i % 7 != 0 : i % 5 == 0 || i % (rows + 1) == 0;
    if (s->kind == KEEP) p->desc.keep_mask = &p->extra;
    if (s->kind == BIAS) p->desc.bias = &p->extra;
    if (s->kind != BLOCKS) return;
    p->desc.keep_blocks = &p->extra;
    p->desc.block_queries = p->desc.block_keys = BLOCK;
}

static void make(problem *p, const shape *s)
{
    *p = (problem){.shape = s};
    const int64_t queries = s->B * s->H * s->T, keys = s->B * s->Hk * s->S;
    const int64_t count = 2 * (queries + keys) * s->D;
    float *x = p->memory = malloc((size_t)count * sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; i < count; i++) x[i] = (float)(i * 7919 % 1001) / 1001 - 0.5f;
    p->q = tensor_of(&x, s, s->H, s->T);
    p->o = tensor_of(&x, s, s->H, s->T);
    p->k = tensor_of(&x, s, s->Hk, s->S);
    p->v = tensor_of(&x, s, s->Hk, s->S);
    set_mask(p);
}

static void unmake(problem *p)
{
    free(p->memory);
    free(p->mask);
}

/* ---- plans and calls ------------------------------------------------------------------------- */

#define SAME(said, done)                                                                      \
    do {                                                                                      \
        if ((int64_t)(said) != (int64_t)(done))                                               \
            fail_msg("%s, kind %d h%d/%d n%d k%d d%d: " #said " is %lld, in truth %lld",      \
                     mha_isa_name(plan->isa), (int)s->kind, (int)s->H, (int)s->Hk, (int)s->T, \
                     (int)s->S, (int)s->D, (long long)(said), (long long)(done));             \
    } while (0)

static void check(mha_context *context, const problem *p)
{
    const shape *s = p->shape;
    const mhai_attn_call call = {&p->desc, &p->q, &p->k, &p->v, &p->o, &p->outputs, NULL, NULL};
    mhai_attn_plan made;
    const mha_attention_plan *plan = &made.account;
    assert_int_equal(mhai_attn_plan_call(context, &call, true, &made), MHA_OK);
    const mhai_kernels counting = counted(made.kernels);
    made.kernels = &counting;
    const mha_scratch_mark mark = mha_scratch_top(context);
    assert_int_equal(made.backend->run(context, &made), MHA_OK);
    mha_scratch_release(context, mark);
    const int64_t keys = s->kind == LENGTHS ? p->lengths[0] : s->S;
    const int64_t all = keys < plan->key_block ? keys : plan->key_block;
    const bool in_place = plan->flags & MHA_PLAN_KEYS_IN_PLACE;
    const bool nothing = s->B * s->T * s->S == 0;
    SAME(plan->path, MHA_PATH_TILED);
    SAME((plan->flags & MHA_PLAN_KEYS_SHARED) != 0, seen.shared > 0);
    SAME((plan->flags & MHA_PLAN_ONE_BLOCK) != 0, seen.one_block > 0);
    SAME(in_place, seen.in_place + seen.shared > 0);
    SAME(!in_place && !nothing, seen.packs > 0);
    SAME(!in_place && !nothing, seen.tiles > 0);
    SAME(nothing ? 0 : all, seen.most_keys);
    if (s->kind != BLOCKS && !nothing) SAME(plan->row_block, seen.most_rows);
    assert_true(seen.most_rows <= plan->row_block);
}

/* Portable C and sanitized code run only the small shapes. */
static bool is_affordable(const shape *s, mha_isa isa)
{
    const double work = 4.0 * (double)(s->B * s->H * s->T) * (double)s->S * (double)s->D;
    const bool slow = isa == MHA_ISA_PORTABLE || isa == MHA_ISA_NEON || !rng_whole_sample();
    return work < (slow ? 1.2e9 : 1e12);
}

static void said_is_done(void)
{
    machines all = machines_make(THREADS);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        problem p;
        make(&p, &shapes[i]);
        for (int m = 0; m < all.count; m++) {
            if (all.each[m].path != MHA_PATH_TILED) continue;
            if (!is_affordable(&shapes[i], all.each[m].isa)) continue;
            check(all.each[m].context, &p);
        }
        unmake(&p);
    }
}

RUN_TESTS(TEST(said_is_done))
