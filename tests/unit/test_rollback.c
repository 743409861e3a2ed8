/* Decoders that keep copies of recurrent states: after any steps, truncations, forks and copies, the
 * next outputs equal those of a forward call of the whole text, and other lengths are rejected. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/rng.h"
#include "support/shared_context.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <multihead/transformer.h>

#include <string.h>

enum { L = 3, B = 3, T = 80, V = 19, BORDER = 30 };

static const mha_layer_desc mixers[] = {
    {.struct_size = sizeof(mha_layer_desc),
     .mixer = MHA_MIXER_GATED_DELTA,
     .conv_kernel = 4,
     .key_dim = 6,
     .value_dim = 5},
    {.struct_size = sizeof(mha_layer_desc),
     .mixer = MHA_MIXER_STATE_SPACE,
     .conv_kernel = 3,
     .key_dim = 5,
     .value_dim = 6},
    {.struct_size = sizeof(mha_layer_desc), .mixer = MHA_MIXER_SHORT_CONVOLUTION, .conv_kernel = 3},
    /* Keys are computed again when a text grows across BORDER tokens, or shrinks below. */
    {.struct_size = sizeof(mha_layer_desc),
     .rope_scaling = MHA_ROPE_SCALING_LONG,
     .rope_factor = 1,
     .rope_original_length = BORDER},
    {.struct_size = sizeof(mha_layer_desc)},
    {.struct_size = sizeof(mha_layer_desc), .flags = MHA_LAYER_WINDOW, .left_keys = 9},
};
enum { KINDS = sizeof mixers / sizeof *mixers, STATES = 3 }; /* the first STATES have states */

/* Layers of this kind around one of the next kind. */
static mha_transformer *make(mha_context *context, int kind)
{
    const mha_layer_desc layers[L] = {mixers[kind], mixers[(kind + 1) % KINDS], mixers[kind]};
    static const float factors[] = {1, 1.5f, 2, 5};
    int64_t heads[L], kv[L];
    for (int l = 0; l < L; l++) {
        const bool none = layers[l].mixer == MHA_MIXER_SHORT_CONVOLUTION;
        heads[l] = none ? 0 : 2;
        kv[l] = none ? 0 : 1;
    }
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = V,
                                    .max_length = T,
                                    .embed_dim = 8,
                                    .num_layers = L,
                                    .num_heads = 2,
                                    .head_dim = 4,
                                    .ff_dim = 8,
                                    .norm = MHA_NORM_RMS,
                                    .positions = MHA_ENCODING_ROTARY,
                                    .rope_factors = factors,
                                    .layer_heads = heads,
                                    .layer_kv_heads = kv,
                                    .layers = layers};
    return normal_transformer(context, rng_make(5, (uint64_t)kind), 0.4f, &d);
}

/* A decoder, and what it should hold. */
typedef struct program {
    mha_context *context;
    mha_transformer *t;
    mha_decoder *decoder;
    bool states, rotates,
        beyond[B]; /* rotates: by the length; beyond the border in the last step */
    int64_t interval, copies, room;
    int64_t length[B], count[B], kept[B][2 * T]; /* kept: ascending lengths with a copy */
    int32_t ids[B][T];
    rng r;
} program;

static void note(program *p, int b, int64_t length)
{
    int64_t *kept = p->kept[b];
    if (!p->states || length == 0) return;
    if (p->count[b] > 0 && kept[p->count[b] - 1] == length) return;
    if (p->count[b] == p->room) memmove(kept, kept + 1, (size_t)--p->count[b] * sizeof *kept);
    kept[p->count[b]++] = length;
}

/* The greatest length, up to this one, to which the sequence can return. */
static int64_t nearest(const program *p, int b, int64_t length)
{
    int64_t found = 0;
    if (!p->states || length >= p->length[b]) return length < p->length[b] ? length : p->length[b];
    for (int64_t i = 0; i < p->count[b]; i++)
        if (p->kept[b][i] <= length) found = p->kept[b][i];
    return found;
}

static void cut(program *p, int b, int64_t length)
{
    while (p->count[b] > 0 && p->kept[b][p->count[b] - 1] > length) p->count[b]--;
    p->length[b] = length;
}

static void step(program *p)
{
    static float rows[B * T * V], whole[T * V];
    int32_t ids[B * T];
    int64_t firsts[B], counts[B];
    const int64_t n = rng_between(&p->r, 1, rng_chance(&p->r, 0.5) ? 4 : T);
    for (int b = 0; b < B; b++) {
        const int64_t left = T - p->length[b], most = left < n ? left : n;
        counts[b] = rng_between(&p->r, 0, most);
        firsts[b] = rng_between(&p->r, 0, n - counts[b]);
        for (int64_t i = 0; i < n; i++) ids[b * n + i] = (int32_t)rng_between(&p->r, 0, V - 1);
    }
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){B, n});
    const mha_tensor out = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){B, n, V});
    expect_ok(mha_decoder_step_rows(p->context, p->decoder, &tokens, firsts, counts, &out));
    for (int b = 0; b < B; b++) {
        const int64_t before = p->length[b], after = before + counts[b];
        if (counts[b] == 0) continue;
        memcpy(p->ids[b] + before, ids + b * n + firsts[b], (size_t)counts[b] * sizeof *ids);
        const bool again = p->rotates && before > 0 && p->beyond[b] != (after > BORDER);
        if (again) p->count[b] = 0;
        p->beyond[b] = after > BORDER;
        for (int64_t i = again ? 1 : before + 1; i <= after && p->interval > 0; i++)
            if (i % p->interval == 0) note(p, b, i);
        p->length[b] = after;
        const mha_tensor text =
            mha_tensor_contiguous(p->ids[b], MHA_I32, 2, (const int64_t[]){1, after});
        const mha_tensor all =
            mha_tensor_contiguous(whole, MHA_F32, 3, (const int64_t[]){1, after, V});
        mha_transformer_input input = MHA_INIT(mha_transformer_input);
        input.tokens = &text;
        expect_ok(mha_transformer_forward(p->context, p->t, &input, NULL, &all, NULL, NULL));
        assert_memory_equal(rows + (b * n + firsts[b]) * V, whole + before * V,
                            (size_t)(counts[b] * V) * sizeof *rows);
    }
}

static void go_back(program *p)
{
    const int b = (int)rng_between(&p->r, 0, B - 1);
    int64_t length = rng_between(&p->r, 0, p->length[b]);
    const int64_t found = nearest(p, b, length);
    assert_int_equal(mha_decoder_restorable(p->decoder, b, length), found);
    if (found != length)
        expect_error(mha_decoder_truncate_sequence(p->decoder, b, length), MHA_ERR_UNSUPPORTED,
                     "keeps no copy of its state at ");
    if (rng_chance(&p->r, 0.5)) length = found;
    if (length != found) return;
    expect_ok(mha_decoder_truncate_sequence(p->decoder, b, length));
    cut(p, b, length);
}

static void go_back_together(program *p)
{
    bool possible = true;
    const int64_t length = rng_between(&p->r, 0, mha_decoder_length(p->decoder));
    for (int b = 0; b < B; b++)
        possible = possible && (p->length[b] <= length || nearest(p, b, length) == length);
    const mha_status status = mha_decoder_truncate(p->decoder, length);
    assert_int_equal(status, possible ? MHA_OK : MHA_ERR_UNSUPPORTED);
    for (int b = 0; b < B && possible; b++)
        if (p->length[b] > length) cut(p, b, length);
}

static void branch(program *p)
{
    const int from = (int)rng_between(&p->r, 0, B - 1), to = (from + 1) % B;
    const int64_t length = nearest(p, from, rng_between(&p->r, 0, p->length[from]));
    expect_ok(mha_decoder_fork(p->decoder, from, to, length));
    memcpy(p->ids[to], p->ids[from], sizeof p->ids[to]);
    memcpy(p->kept[to], p->kept[from], sizeof p->kept[to]);
    p->count[to] = p->count[from];
    p->beyond[to] = p->beyond[from];
    cut(p, to, length);
}

static void keep(program *p)
{
    const int b = (int)rng_between(&p->r, 0, B - 1);
    const mha_status status = mha_decoder_keep(p->context, p->decoder, b);
    assert_int_equal(status, p->room > 0 || !p->states ? MHA_OK : MHA_ERR_ARGUMENT);
    if (status == MHA_OK) note(p, b, p->length[b]);
}

static void run(int kind, uint64_t number)
{
    static const int64_t intervals[] = {0, 1, 3, 7, 16, 64, 1000}, copies[] = {0, 1, 2, 5, 1000};
    static program p;
    p = (program){.context = context_with(1 + (int)number % 3),
                  .r = rng_make(rng_run_seed(), number)};
    p.interval = RNG_PICK(&p.r, intervals);
    p.copies = RNG_PICK(&p.r, copies);
    p.room = p.copies == 0 && p.interval > 0 ? T / p.interval : p.copies < T ? p.copies : T;
    p.t = make(p.context, kind);
    p.rotates = kind == STATES || kind + 1 == STATES;
    p.states = kind < STATES || (kind + 1) % KINDS < STATES;
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    how.batch = B;
    how.state_interval = p.interval;
    how.state_copies = p.copies;
    expect_ok(mha_decoder_create(p.context, p.t, &how, &p.decoder));
    for (int i = 0; i < 40; i++) {
        static void (*const steps[])(program *) = {
            step, step, step, go_back, go_back, go_back_together, branch, keep};
        RNG_PICK(&p.r, steps)(&p);
        for (int b = 0; b < B; b++)
            assert_int_equal(mha_decoder_lengths(p.decoder)[b], p.length[b]);
    }
    mha_decoder_destroy(p.decoder);
    mha_transformer_destroy(p.t);
}

static void random_programs_have_the_bits_of_the_whole(void)
{
    int first, end;
    if (!rng_range(60, 2000, &first, &end)) return;
    for (int i = first; i < end; i++) run(i % KINDS, (uint64_t)i);
}

/* Going back and repeating the tokens from the nearest copy costs fewer than state_interval tokens. */
static void going_back_costs_less_than_an_interval(void)
{
    mha_context *context = context_with(1);
    static int32_t ids[T];
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    how.state_interval = 8;
    for (int kind = 0; kind < STATES; kind++) {
        mha_transformer *t = make(context, kind);
        mha_decoder *decoder = NULL;
        const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){1, T});
        expect_ok(mha_decoder_create(context, t, &how, &decoder));
        expect_ok(mha_decoder_step(context, decoder, &tokens, NULL));
        for (int64_t length = T; length >= 0; length--)
            assert_int_equal(mha_decoder_restorable(decoder, 0, length), length - length % 8);
        assert_int_equal(mha_decoder_restorable(decoder, 0, INT64_MAX), T);
        assert_int_equal(mha_decoder_restorable(decoder, 0, INT64_MIN), 0);
        assert_int_equal(mha_decoder_restorable(decoder, 1, 8), 0);
        assert_int_equal(mha_decoder_restorable(decoder, -1, 8), 0);
        assert_int_equal(mha_decoder_restorable(NULL, 0, 8), 0);
        mha_decoder_destroy(decoder);
        mha_transformer_destroy(t);
    }
}

static void misuse_is_refused(void)
{
    static const char *const said[STATES] = {"layer 0 is a gated delta net",
                                             "layer 0 is a state space",
                                             "layer 0 is a short convolution"};
    mha_context *context = context_with(1);
    int32_t ids[12] = {0};
    for (int kind = 0; kind < STATES; kind++) {
        mha_transformer *t = make(context, kind);
        mha_decoder *decoder = NULL;
        mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
        mha_decoder_sizes one = MHA_INIT(mha_decoder_sizes), all = MHA_INIT(mha_decoder_sizes);
        how.state_interval = -1;
        expect_error(mha_decoder_create(context, t, &how, &decoder), MHA_ERR_ARGUMENT,
                     "state_interval is -1");
        how.state_interval = 0, how.state_copies = INT64_MIN;
        expect_error(mha_decoder_create(context, t, &how, &decoder), MHA_ERR_ARGUMENT,
                     "state_copies is ");
        how.state_copies = 0;
        expect_ok(mha_decoder_count(t, &how, &one));
        how.state_interval = 16;
        expect_ok(mha_decoder_count(t, &how, &all));
        assert_true(one.state_bytes > 0);
        assert_int_equal(all.state_bytes, one.state_bytes * (1 + T / 16));
        assert_int_equal(all.total_bytes - all.state_bytes, one.total_bytes - one.state_bytes);
        how.state_interval = INT64_MAX, how.state_copies = INT64_MAX, how.batch = 2;
        expect_ok(mha_decoder_count(t, &how, &all));
        assert_int_equal(all.state_bytes, 2 * one.state_bytes * (1 + T));
        how.state_copies = 0;
        expect_ok(mha_decoder_create(context, t, &how, &decoder));
        const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){2, 6});
        expect_ok(mha_decoder_step(context, decoder, &tokens, NULL));
        expect_error(mha_decoder_truncate(decoder, 5), MHA_ERR_UNSUPPORTED, said[kind]);
        expect_error(mha_decoder_fork(decoder, 0, 1, 5), MHA_ERR_UNSUPPORTED, said[kind]);
        expect_error(mha_decoder_keep(context, decoder, 0), MHA_ERR_ARGUMENT, "state_copies is 0");
        expect_error(mha_decoder_keep(context, decoder, 2), MHA_ERR_ARGUMENT, "no sequence 2");
        expect_error(mha_decoder_keep(context, decoder, -1), MHA_ERR_ARGUMENT, "no sequence -1");
        expect_error(mha_decoder_keep(context, NULL, 0), MHA_ERR_NULL, "decoder");
        expect_error(mha_decoder_keep(NULL, decoder, 0), MHA_ERR_NULL, "context");
        mha_decoder_destroy(decoder);
        mha_transformer_destroy(t);
    }
}

/* Append the tokens that each of two sequences of 30 lacks. */
static mha_status append_missing(mha_context *context, mha_decoder *decoder, const int32_t *ids,
                                 const mha_tensor *out)
{
    int64_t counts[2];
    const int64_t firsts[] = {mha_decoder_lengths(decoder)[0], mha_decoder_lengths(decoder)[1]};
    for (int b = 0; b < 2; b++) counts[b] = 30 - firsts[b];
    const mha_tensor tokens =
        mha_tensor_contiguous((void *)(uintptr_t)ids, MHA_I32, 2, (const int64_t[]){2, 30});
    return mha_decoder_step_rows(context, decoder, &tokens, firsts, counts, out);
}

/* After a failed step or copy, a step succeeds, and its copies give the outputs of the whole text. */
static mha_status with_failures(mha_context *context, failing_alloc *memory, void *user)
{
    mha_transformer *t = make(context, *(int *)user);
    mha_decoder *decoder = NULL;
    static float rows[2 * 30 * V], whole[2 * 30 * V];
    int32_t ids[2 * 30];
    mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
    how.batch = 2;
    how.state_interval = 7;
    for (int i = 0; i < 60; i++) ids[i] = i % V;
    const mha_tensor all = mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){2, 30});
    const mha_tensor y = mha_tensor_contiguous(whole, MHA_F32, 3, (const int64_t[]){2, 30, V});
    const mha_tensor out = mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){2, 30, V});
    mha_transformer_input input = MHA_INIT(mha_transformer_input);
    input.tokens = &all;
    expect_ok(mha_decoder_create(context, t, &how, &decoder));
    mha_tensor tokens = all;
    tokens.shape[1] = 10;
    expect_ok(mha_decoder_step(context, decoder, &tokens, NULL));
    failing_from_here(memory);
    mha_status status = append_missing(context, decoder, ids, NULL);
    if (status == MHA_OK) status = mha_decoder_keep(context, decoder, 0);
    assert_true(status == MHA_OK || status == MHA_ERR_NOMEM);
    assert_int_equal(mha_decoder_restorable(decoder, 0, 9),
                     mha_decoder_lengths(decoder)[0] == 0 ? 0 : 7);
    if (memory->calls <= memory->fail_at) memory->fail_at = INT64_MAX;
    if (status == MHA_OK || !memory->fail_after) {
        expect_ok(mha_transformer_forward(context, t, &input, NULL, &y, NULL, NULL));
        expect_ok(append_missing(context, decoder, ids, NULL));
        expect_ok(mha_decoder_truncate(decoder, 14));
        expect_ok(append_missing(context, decoder, ids, &out));
        for (int b = 0; b < 2; b++)
            assert_memory_equal(rows + (b * 30 + 14) * V, whole + (b * 30 + 14) * V,
                                (size_t)(16 * V) * sizeof *rows);
    }
    mha_decoder_destroy(decoder);
    mha_transformer_destroy(t);
    return status;
}

static void failed_allocations_lose_no_copy(void)
{
    for (int kind = 0; kind < STATES; kind++) assert_true(failing_each(with_failures, &kind) > 6);
}

/* Windows of caches and copies of states limit the lengths together: no greater length is possible. */
static void restorable_lengths_are_the_greatest(void)
{
    mha_context *context = context_with(1);
    static int32_t ids[T];
    rng r = rng_make(rng_run_seed(), 9);
    for (int i = 0; i < 200; i++) {
        const int kind = i % 2 ? KINDS - 1 : KINDS - 2; /* with a gated delta net, or without */
        mha_transformer *t = make(context, kind);
        mha_decoder *decoder = NULL;
        mha_decoder_desc how = MHA_INIT(mha_decoder_desc);
        how.flags = MHA_DECODER_WINDOWS;
        how.page_size = rng_between(&r, 1, 12);
        how.max_step = rng_between(&r, 1, 9);
        how.state_interval = rng_between(&r, 1, 20);
        expect_ok(mha_decoder_create(context, t, &how, &decoder));
        const int64_t end = rng_between(&r, 1, T), length = rng_between(&r, 0, end);
        for (int64_t at = 0, n; at < end; at += n) {
            n = how.max_step < end - at ? how.max_step : end - at;
            const mha_tensor tokens =
                mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){1, n});
            expect_ok(mha_decoder_step(context, decoder, &tokens, NULL));
        }
        const int64_t found = mha_decoder_restorable(decoder, 0, length);
        assert_in_range(found, 0, length);
        for (int64_t other = found + 1; other <= length; other++)
            assert_true(mha_decoder_truncate(decoder, other) != MHA_OK);
        expect_ok(mha_decoder_truncate(decoder, found));
        mha_decoder_destroy(decoder);
        mha_transformer_destroy(t);
    }
}

RUN_TESTS(TEST(restorable_lengths_are_the_greatest),
          TEST(random_programs_have_the_bits_of_the_whole),
          TEST(going_back_costs_less_than_an_interval), TEST(misuse_is_refused),
          TEST(failed_allocations_lose_no_copy))
