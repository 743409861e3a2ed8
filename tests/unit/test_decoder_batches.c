/* Decoding sequences of different lengths. In random programs of steps with padding, pauses, cuts,
 * branches and memories, every sequence is bit-identical to decoding it separately and to one full
 * pass. Also tested: sizes, windows, misuse, failures. */
#include "support/decoded.h"
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/layers.h"
#include "support/one_context.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, MEMORY = 7, STEP = 9, MEMORY_WIDTH = WIDTH };

static const mha_dtype types[] = {MHA_F32, MHA_F16, MHA_BF16, MHA_I8};

/* The expected sequence: its tokens, their outputs, and its memory. */
typedef struct story {
    int64_t length, memory_length;
    int32_t ids[LENGTH];
    float rows[LENGTH][WIDTH], memory[MEMORY * MEMORY_WIDTH];
    mha_decoder *alone;
} story;

typedef struct program {
    rng r;
    const mha_transformer *t;
    bool cross, few_pages;
    bool channels; /* have scales, so bits depend on the division into steps */
    int64_t width; /* width of the output */
    mha_decoder *decoder;
    story of[BATCH];
} program;

static mha_tensor tokens_of(int32_t *ids, int64_t batch, int64_t n)
{
    return mha_tensor_contiguous(ids, MHA_I32, 2, (const int64_t[]){batch, n});
}

static mha_tensor rows_of(float *rows, int64_t batch, int64_t n, int64_t width)
{
    return mha_tensor_contiguous(rows, MHA_F32, 3, (const int64_t[]){batch, n, width});
}

static void check_lengths(const program *p)
{
    int64_t longest = 0;
    for (int b = 0; b < BATCH; b++) {
        assert_int_equal(mha_decoder_lengths(p->decoder)[b], p->of[b].length);
        assert_int_equal(mha_decoder_length(p->of[b].alone), p->of[b].length);
        if (p->of[b].length > longest) longest = p->of[b].length;
    }
    assert_int_equal(mha_decoder_length(p->decoder), longest);
}

/* ---- the steps of a program ---------------------------------------------------------------- */

static void step_alone(program *p, int b, const int32_t *ids, int64_t count, const float *got)
{
    story *s = &p->of[b];
    float rows[STEP * WIDTH];
    int64_t done = 0;
    memcpy(s->ids + s->length, ids, (size_t)count * sizeof *ids);
    while (done < count) { /* in steps of other sizes */
        const int64_t n = p->channels ? count : rng_between(&p->r, 1, count - done);
        mha_tensor tokens = tokens_of(s->ids + s->length + done, 1, n);
        mha_tensor out = rows_of(rows + done * p->width, 1, n, p->width);
        expect_ok(mha_decoder_step(context, s->alone, &tokens, &out));
        done += n;
    }
    assert_memory_equal(rows, got, (size_t)(count * p->width) * sizeof *rows);
    for (int64_t i = 0; i < count; i++)
        memcpy(s->rows[s->length + i], got + i * p->width, (size_t)p->width * sizeof *got);
    s->length += count;
}

/* Rows of every sequence, with padding on either side that is not read; some sequences have no
 * rows. */
static void draw_rows(program *p, int64_t n, int32_t *ids, int64_t *firsts, int64_t *counts)
{
    const int side = (int)rng_between(&p->r, 0, 2);
    for (int b = 0; b < BATCH; b++) {
        const int64_t room = LENGTH - p->of[b].length, most = room < n ? room : n;
        counts[b] = rng_chance(&p->r, 0.15) ? 0 : rng_between(&p->r, 0, most);
        firsts[b] = side == 0   ? n - counts[b]
                    : side == 1 ? 0
                                : rng_between(&p->r, 0, n - counts[b]);
        for (int64_t t = 0; t < n; t++)
            ids[b * n + t] = t >= firsts[b] && t < firsts[b] + counts[b]
                                 ? (int32_t)rng_between(&p->r, 0, VOCAB - 1)
                                 : (int32_t)rng_between(&p->r, -3, VOCAB + 3);
    }
}

/* A step with an invalid token, which must not change anything. */
static void spoiled_step(program *p, mha_tensor *tokens, const int64_t *firsts,
                         const int64_t *counts)
{
    const int b = (int)rng_between(&p->r, 0, BATCH - 1);
    if (counts[b] == 0) return;
    ((int32_t *)tokens->data)[b * tokens->shape[1] + firsts[b] + counts[b] - 1] = VOCAB;
    expect_error(mha_decoder_step_rows(context, p->decoder, tokens, firsts, counts, NULL),
                 MHA_ERR_ARGUMENT, "tokens[");
}

static void step(program *p)
{
    int32_t ids[BATCH * STEP];
    float rows[BATCH * STEP * WIDTH];
    int64_t firsts[BATCH], counts[BATCH];
    const int64_t n = rng_between(&p->r, 1, STEP);
    mha_tensor tokens = tokens_of(ids, BATCH, n), out = rows_of(rows, BATCH, n, p->width);
    draw_rows(p, n, ids, firsts, counts);
    bool left = true, right = true;
    for (int b = 0; b < BATCH; b++) {
        left = left && firsts[b] + counts[b] == n;
        right = right && firsts[b] == 0;
    }
    const mha_status status = mha_decoder_step_rows(
        context, p->decoder, &tokens, right ? NULL : firsts, left ? NULL : counts, &out);
    if (p->few_pages && status == MHA_ERR_NOMEM) return;
    expect_ok(status);
    for (int b = 0; b < BATCH; b++)
        step_alone(p, b, ids + b * n + firsts[b], counts[b], rows + (b * n + firsts[b]) * p->width);
    if (p->few_pages || rng_chance(&p->r, 0.9)) return;
    draw_rows(p, n, ids, firsts, counts);
    spoiled_step(p, &tokens, firsts, counts);
}

static void truncate(program *p)
{
    const int b = (int)rng_between(&p->r, 0, BATCH - 1);
    const int64_t length = rng_between(&p->r, 0, p->of[b].length);
    if (rng_chance(&p->r, 0.7)) {
        expect_ok(mha_decoder_truncate_sequence(p->decoder, b, length));
        expect_ok(mha_decoder_truncate(p->of[b].alone, length));
        p->of[b].length = length;
        return;
    }
    expect_ok(mha_decoder_truncate(p->decoder, length));
    for (int i = 0; i < BATCH; i++) {
        if (p->of[i].length <= length) continue;
        expect_ok(mha_decoder_truncate(p->of[i].alone, length));
        p->of[i].length = length;
    }
}

static void remember(program *p, int b)
{
    story *s = &p->of[b];
    mha_tensor memory = rows_of(s->memory, 1, s->memory_length, MEMORY_WIDTH);
    expect_ok(mha_decoder_set_memory(context, s->alone, &memory, NULL));
}

/* A new memory, for new sequences. */
static void new_memory(program *p)
{
    float rows[BATCH * MEMORY * MEMORY_WIDTH];
    int64_t lengths[BATCH];
    const int64_t S = rng_between(&p->r, 0, MEMORY);
    mha_tensor memory = rows_of(rows, BATCH, S, MEMORY_WIDTH);
    for (int64_t i = 0; i < BATCH * S * MEMORY_WIDTH; i++) rows[i] = rng_normal(&p->r);
    expect_ok(mha_decoder_truncate(p->decoder, 0));
    for (int b = 0; b < BATCH; b++) {
        story *s = &p->of[b];
        lengths[b] = s->memory_length = rng_between(&p->r, 0, S);
        memcpy(s->memory, rows + b * S * MEMORY_WIDTH,
               (size_t)(s->memory_length * MEMORY_WIDTH) * sizeof *rows);
        expect_ok(mha_decoder_truncate(s->alone, 0));
        s->length = 0;
        remember(p, b);
    }
    expect_ok(mha_decoder_set_memory(context, p->decoder, &memory, lengths));
}

static void branch(program *p)
{
    const int from = (int)rng_between(&p->r, 0, BATCH - 1), to = (from + 1) % BATCH;
    const int64_t length = rng_between(&p->r, 0, p->of[from].length);
    story *s = &p->of[to];
    mha_decoder *alone = s->alone;
    expect_ok(mha_decoder_fork(p->decoder, from, to, length));
    *s = p->of[from];
    s->alone = alone;
    s->length = length;
    expect_ok(mha_decoder_truncate(alone, 0));
    if (p->cross) remember(p, to);
    mha_tensor tokens = tokens_of(s->ids, 1, length);
    if (length > 0) expect_ok(mha_decoder_step(context, alone, &tokens, NULL));
}

/* ---- programs ------------------------------------------------------------------------------ */

static void compare_with_the_whole(program *p, const story *s)
{
    float rows[LENGTH * WIDTH];
    story whole = *s;
    mha_tensor tokens = tokens_of(whole.ids, 1, s->length);
    mha_tensor out = rows_of(rows, 1, s->length, p->width);
    mha_tensor memory = rows_of(whole.memory, 1, s->memory_length, MEMORY_WIDTH);
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .memory = p->cross ? &memory : NULL};
    expect_ok(mha_transformer_forward(context, p->t, &input, NULL, &out, NULL, NULL));
    for (int64_t i = 0; i < s->length; i++)
        assert_memory_equal(rows + i * p->width, s->rows[i], (size_t)p->width * sizeof *rows);
}

static void run(program *p, mha_dtype type)
{
    p->channels = type == MHA_I8 && rng_chance(&p->r, 0.5);
    const mha_decoder_desc alone = {.struct_size = sizeof alone,
                                    .cache_type = type,
                                    .memory_capacity = p->cross ? MEMORY : 0,
                                    .key_scales = p->channels ? MHA_KV_SCALES_CHANNEL
                                                              : MHA_KV_SCALES_POSITION};
    mha_decoder_desc desc = alone;
    desc.batch = BATCH;
    desc.max_step = STEP;
    desc.page_size = p->channels ? 16 * rng_between(&p->r, 0, 2) : rng_between(&p->r, 0, 20);
    p->few_pages = desc.page_size > 0 && rng_chance(&p->r, 0.5);
    if (p->few_pages) desc.pages = (2 * LENGTH + desc.page_size - 1) / desc.page_size;
    mha_decoder_sizes sizes = {.struct_size = sizeof sizes};
    expect_ok(mha_decoder_count(p->t, &desc, &sizes));
    expect_ok(mha_decoder_create(context, p->t, &desc, &p->decoder));
    assert_int_equal(mha_decoder_cache_bytes(p->decoder), sizes.total_bytes);
    for (int b = 0; b < BATCH; b++)
        expect_ok(mha_decoder_create(context, p->t, &alone, &p->of[b].alone));
    if (p->cross) new_memory(p);
    for (int i = 0; i < 24; i++) {
        const double kind = rng_uniform(&p->r);
        if (kind < 0.65)
            step(p);
        else if (kind < 0.8)
            truncate(p);
        else if (kind > 0.95 && p->cross)
            new_memory(p);
        else if (!p->channels)
            branch(p);
        check_lengths(p);
    }
    for (int b = 0; b < BATCH; b++) {
        if (type == MHA_F32) compare_with_the_whole(p, &p->of[b]);
        mha_decoder_destroy(p->of[b].alone);
    }
    mha_decoder_destroy(p->decoder);
}

static void random_programs(void)
{
    int first, end;
    rng_range(60, 2000, &first, &end);
    for (int i = first; i < end; i++) {
        static program p;
        p = (program){.r = rng_make(rng_run_seed(), (uint64_t)i), .cross = i % 3 == 0};
        mha_transformer_desc d = decoded_draw(&p.r, p.cross);
        mha_transformer *t = decoded_make(&d, rng_next(&p.r));
        mha_transformer_describe(t, &d);
        p.t = t;
        p.width = d.flags & MHA_TRANSFORMER_NO_OUTPUT ? d.embed_dim : d.vocab_size;
        run(&p, rng_chance(&p.r, 0.4) ? MHA_F32 : RNG_PICK(&p.r, types));
        mha_transformer_destroy(t);
    }
}

/* ---- windows ------------------------------------------------------------------------------- */

/* The layers of a transformer whose attention equals that of a decoder's window. */
static void narrow(mha_transformer_desc *d, int64_t window, int64_t sinks, mha_layer_desc *layers)
{
    for (int64_t i = 0; i < d->num_layers; i++) {
        mha_layer_desc *l = &layers[i];
        *l = d->layers ? d->layers[i] : (mha_layer_desc){.struct_size = sizeof *l};
        const bool own = l->flags & MHA_LAYER_WINDOW && l->left_keys >= 0;
        if (own && l->left_keys < window) continue;
        l->sink_keys = own && l->sink_keys > sinks ? l->sink_keys : sinks;
        l->flags |= MHA_LAYER_WINDOW;
        l->left_keys = window - 1;
        l->right_keys = 0;
    }
    d->layers = layers;
}

/* Steps of all sequences, padded, until one has LENGTH tokens, and truncations, which windows may
 * reject. */
static int64_t run_windowed(program *p, bool discards)
{
    int64_t refused = 0;
    for (;;) {
        int32_t ids[BATCH * STEP];
        float rows[BATCH * STEP * WIDTH];
        int64_t firsts[BATCH], counts[BATCH];
        const int64_t n = rng_between(&p->r, 1, STEP);
        mha_tensor tokens = tokens_of(ids, BATCH, n), out = rows_of(rows, BATCH, n, p->width);
        draw_rows(p, n, ids, firsts, counts);
        expect_ok(mha_decoder_step_rows(context, p->decoder, &tokens, firsts, counts, &out));
        for (int b = 0; b < BATCH; b++) {
            story *s = &p->of[b];
            for (int64_t t = firsts[b]; t < firsts[b] + counts[b]; t++, s->length++) {
                s->ids[s->length] = ids[b * n + t];
                memcpy(s->rows[s->length], rows + (b * n + t) * p->width,
                       (size_t)p->width * sizeof *rows);
            }
            assert_int_equal(mha_decoder_lengths(p->decoder)[b], s->length);
        }
        const int b = (int)rng_between(&p->r, 0, BATCH - 1);
        if (p->of[b].length == LENGTH) return refused;
        if (rng_chance(&p->r, 0.7)) continue;
        const int64_t length = rng_between(&p->r, 0, p->of[b].length);
        const mha_status cut = mha_decoder_truncate_sequence(p->decoder, b, length);
        if (cut == MHA_OK)
            p->of[b].length = length;
        else
            expect_error(mha_decoder_fork(p->decoder, b, (b + 1) % BATCH, length), MHA_ERR_ARGUMENT,
                         "has discarded positions");
        assert_true(cut == MHA_OK || discards);
        refused += cut != MHA_OK;
    }
}

/* A decoder with a window is bit-identical to a transformer whose layers have the window. A decoder
 * that keeps only visible positions is bit-identical to one that keeps all positions. */
static void windows(void)
{
    int64_t refused = 0, smaller = 0;
    for (uint64_t round = 0; round < 40; round++) {
        static program p;
        mha_layer_desc layers[LAYERS];
        p = (program){.r = rng_make(rng_run_seed(), 5000 + round)};
        mha_transformer_desc d = decoded_draw(&p.r, false);
        const uint64_t seed = rng_next(&p.r);
        mha_decoder_desc desc = {.struct_size = sizeof desc,
                                 .flags = round % 2 ? MHA_DECODER_WINDOWS : 0,
                                 .batch = BATCH,
                                 .max_step = STEP,
                                 .page_size = rng_between(&p.r, 1, 5),
                                 .window = round % 4 < 3 ? rng_between(&p.r, 1, 12) : 0};
        if (rng_chance(&p.r, 0.2)) desc.page_size = 0, desc.window *= 4;
        desc.sink_keys = desc.window ? RNG_PICK(&p.r, ((const int64_t[]){0, 1, 3, LENGTH + 2})) : 0;
        mha_transformer *t = decoded_make(&d, seed);
        p.width = d.flags & MHA_TRANSFORMER_NO_OUTPUT ? WIDTH : VOCAB;
        mha_decoder_sizes sizes = {.struct_size = sizeof sizes}, all = sizes;
        expect_ok(mha_decoder_count(t, &desc, &sizes));
        expect_ok(mha_decoder_create(context, t, &desc, &p.decoder));
        assert_int_equal(mha_decoder_cache_bytes(p.decoder), sizes.total_bytes);
        if (desc.window) narrow(&d, desc.window, desc.sink_keys, layers);
        const mha_decoder_desc open = {
            .struct_size = sizeof open, .batch = BATCH, .page_size = desc.page_size};
        expect_ok(mha_decoder_count(t, &open, &all));
        smaller += sizes.total_bytes < all.total_bytes;
        mha_transformer *whole = decoded_make(&d, seed);
        p.t = whole;
        refused += run_windowed(&p, desc.window > 0 || round % 2);
        for (int b = 0; b < BATCH; b++) compare_with_the_whole(&p, &p.of[b]);
        mha_decoder_destroy(p.decoder);
        mha_transformer_destroy(whole);
        mha_transformer_destroy(t);
    }
    assert_true(refused > 0 && smaller > 5);
}

/* ---- rotations that depend on the length ----------------------------------------------------- */

static mha_transformer *turning(rng *r, int64_t *width)
{
    mha_layer_desc layers[LAYERS];
    float factors[2 * LAYERS_PAIRS];
    mha_transformer_desc d = decoded_draw(r, false);
    factors_draw(r, factors);
    d.positions = MHA_ENCODING_ROTARY;
    d.rope_factors = factors;
    layers_draw(r, &d, layers);
    d.layers = layers;
    *width = d.flags & MHA_TRANSFORMER_NO_OUTPUT ? WIDTH : VOCAB;
    return decoded_make(&d, rng_next(r));
}

/* A step of all sequences, whose outputs are those of forward calls of the sequences as they then
 * are. */
static void turning_step(program *p, int64_t n)
{
    int32_t ids[BATCH * STEP];
    float rows[BATCH * STEP * WIDTH], whole[LENGTH * WIDTH];
    int64_t firsts[BATCH], counts[BATCH];
    mha_tensor tokens = tokens_of(ids, BATCH, n), out = rows_of(rows, BATCH, n, p->width);
    draw_rows(p, n, ids, firsts, counts);
    expect_ok(mha_decoder_step_rows(context, p->decoder, &tokens, firsts, counts, &out));
    for (int b = 0; b < BATCH; b++) {
        story *s = &p->of[b];
        if (counts[b] == 0) continue;
        memcpy(s->ids + s->length, ids + b * n + firsts[b], (size_t)counts[b] * sizeof *ids);
        s->length += counts[b];
        assert_int_equal(mha_decoder_lengths(p->decoder)[b], s->length);
        mha_tensor all = tokens_of(s->ids, 1, s->length);
        mha_tensor logits = rows_of(whole, 1, s->length, p->width);
        const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &all};
        expect_ok(mha_transformer_forward(context, p->t, &input, NULL, &logits, NULL, NULL));
        assert_memory_equal(whole + (s->length - counts[b]) * p->width,
                            rows + (b * n + firsts[b]) * p->width,
                            (size_t)(counts[b] * p->width) * sizeof *rows);
    }
}

/* Forks and truncations to either side of the border, steps of one token and of several. */
static void rotations_that_depend_on_the_length(void)
{
    int64_t forks[2][2] = {{0}};
    for (uint64_t round = 0; round < 30; round++) {
        static program p;
        p = (program){.r = rng_make(rng_run_seed(), 7000 + round)};
        mha_transformer *t = turning(&p.r, &p.width);
        const mha_decoder_desc desc = {.struct_size = sizeof desc,
                                       .batch = BATCH,
                                       .max_step = round % 3 ? STEP : 3,
                                       .page_size = rng_between(&p.r, 0, 5)};
        expect_ok(mha_decoder_create(context, t, &desc, &p.decoder));
        p.t = t;
        for (int i = 0; i < 20; i++) {
            const int from = (int)rng_between(&p.r, 0, BATCH - 1), to = (from + 1) % BATCH;
            const int64_t length = rng_between(&p.r, 0, p.of[from].length);
            if (rng_chance(&p.r, 0.2)) {
                expect_ok(mha_decoder_truncate_sequence(p.decoder, from, length));
                p.of[from].length = length;
            } else if (rng_chance(&p.r, 0.4)) {
                forks[p.of[from].length > LAYERS_BORDER][length > LAYERS_BORDER]++;
                expect_ok(mha_decoder_fork(p.decoder, from, to, length));
                p.of[to] = p.of[from];
                p.of[to].length = length;
            }
            turning_step(&p, rng_chance(&p.r, 0.5) ? 1 : rng_between(&p.r, 1, desc.max_step));
        }
        mha_decoder_destroy(p.decoder);
        mha_transformer_destroy(t);
    }
    assert_true(forks[0][0] > 0 && forks[1][0] > 0 && forks[1][1] > 0);
}

/* ---- misuse -------------------------------------------------------------------------------- */

static mha_transformer *plain(uint32_t flags)
{
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL | flags,
                                    .vocab_size = VOCAB,
                                    .max_length = LENGTH,
                                    .embed_dim = WIDTH,
                                    .num_layers = 2,
                                    .num_heads = 4};
    return decoded_make(&d, 3);
}

static void descriptions_are_checked(void)
{
    mha_transformer *t = plain(0), *cross = plain(MHA_TRANSFORMER_CROSS);
    mha_decoder *made = NULL;
    mha_decoder_sizes sizes = {.struct_size = sizeof sizes};
    mha_decoder_desc d = {.struct_size = sizeof d};
#define REFUSED(transformer, status, part, ...)                                          \
    expect_spoiled(d, mha_decoder_create(context, transformer, &d, &made), status, part, \
                   __VA_ARGS__);                                                         \
    expect_spoiled(d, mha_decoder_count(transformer, &d, &sizes), status, part, __VA_ARGS__)
    REFUSED(t, MHA_ERR_UNSUPPORTED, "flags 0x8", d.flags = 8);
    REFUSED(t, MHA_ERR_UNSUPPORTED, "reserved is 4", d.reserved2 = 4);
    REFUSED(t, MHA_ERR_UNSUPPORTED, "reserved is 5", d.reserved3 = 5);
    REFUSED(t, MHA_ERR_ARGUMENT, "page_size is -1", d.page_size = -1);
    REFUSED(t, MHA_ERR_ARGUMENT, "pages is -1", d.pages = -1);
    REFUSED(t, MHA_ERR_ARGUMENT, "window is -1", d.window = -1);
    REFUSED(t, MHA_ERR_ARGUMENT, "sink_keys is -1", d.window = 4, d.sink_keys = -1);
    REFUSED(t, MHA_ERR_ARGUMENT, "sink_keys is 2, but there is no window", d.sink_keys = 2);
    REFUSED(t, MHA_ERR_ARGUMENT, "no cross-attention, leave it 0", d.memory_capacity = 2);
    REFUSED(cross, MHA_ERR_ARGUMENT, "memory_capacity is 0; this transformer has cross-attention",
            d.batch = 1);
    REFUSED(cross, MHA_ERR_ARGUMENT, "memory_capacity is -1", d.memory_capacity = -1);
    REFUSED(t, MHA_ERR_DTYPE, "i32", d.cache_type = MHA_I32);
    assert_null(made);
    expect_error(mha_decoder_count(NULL, &d, &sizes), MHA_ERR_NULL, "transformer");
    expect_error(mha_decoder_count(t, &d, NULL), MHA_ERR_NULL, "sizes");
    expect_ok(mha_decoder_count(t, NULL, &sizes));
    sizes.struct_size = 0;
    expect_error(mha_decoder_count(t, &d, &sizes), MHA_ERR_ARGUMENT, "struct_size is 0");
    mha_transformer_destroy(t);
    mha_transformer_destroy(cross);
}

static mha_decoder *ready(const mha_transformer *t, int64_t memory)
{
    mha_decoder *made = NULL;
    const mha_decoder_desc d = {.struct_size = sizeof d,
                                .batch = BATCH,
                                .capacity = 12,
                                .page_size = 2,
                                .pages = 7,
                                .memory_capacity = memory};
    expect_ok(mha_decoder_create(context, t, &d, &made));
    return made;
}

static void calls_are_checked(void)
{
    mha_transformer *t = plain(0);
    mha_decoder *d = ready(t, 0);
    int32_t ids[BATCH * 5] = {0};
    float rows[BATCH * 5 * WIDTH];
    int64_t firsts[BATCH] = {0, 2, 5}, counts[BATCH] = {5, 3, 0};
    const mha_tensor tokens = tokens_of(ids, BATCH, 5);
    const mha_tensor out = rows_of(rows, BATCH, 5, VOCAB), memory = rows_of(rows, BATCH, 1, WIDTH);
#define STEP_ROWS mha_decoder_step_rows(context, d, &tokens, firsts, counts, &out)
    expect_spoiled(firsts, STEP_ROWS, MHA_ERR_ARGUMENT, "firsts[1] is -1", firsts[1] = -1);
    expect_spoiled(firsts, STEP_ROWS, MHA_ERR_ARGUMENT, "firsts[2] is 6, expected 0..5",
                   firsts[2] = 6);
    expect_spoiled(counts, STEP_ROWS, MHA_ERR_ARGUMENT, "counts[1] is 4, expected 0..3",
                   counts[1] = 4);
    expect_spoiled(counts, STEP_ROWS, MHA_ERR_ARGUMENT, "counts[0] is -1", counts[0] = -1);
    assert_int_equal(mha_decoder_length(d), 0);
    expect_ok(STEP_ROWS);
    expect_error(STEP_ROWS, MHA_ERR_NOMEM, "3 pages are needed, 2 of 7 are free");
    expect_ok(mha_decoder_truncate_sequence(d, 1, 1));
    expect_ok(STEP_ROWS);
    expect_error(STEP_ROWS, MHA_ERR_SIZE, "sequence 0 holds 10, 5 more exceed");
    expect_error(mha_decoder_truncate_sequence(d, 3, 0), MHA_ERR_ARGUMENT, "no sequence 3");
    expect_error(mha_decoder_truncate_sequence(d, -1, 0), MHA_ERR_ARGUMENT, "no sequence -1");
    expect_error(mha_decoder_truncate_sequence(d, 1, 5), MHA_ERR_ARGUMENT, "5, expected 0..4");
    expect_error(mha_decoder_truncate_sequence(NULL, 1, 5), MHA_ERR_NULL, "decoder");
    expect_error(mha_decoder_truncate(d, -1), MHA_ERR_ARGUMENT, "expected 0..10");
    expect_error(mha_decoder_fork(NULL, 0, 1, 5), MHA_ERR_NULL, "decoder");
    expect_error(mha_decoder_fork(d, 0, 3, 5), MHA_ERR_ARGUMENT, "no sequence 3");
    expect_error(mha_decoder_fork(d, 3, 0, 5), MHA_ERR_ARGUMENT, "no sequence 3");
    expect_error(mha_decoder_fork(d, 1, 1, 2), MHA_ERR_ARGUMENT, "cannot be forked to itself");
    expect_error(mha_decoder_fork(d, 1, 0, 5), MHA_ERR_ARGUMENT, "5, expected 0..4");
    expect_error(mha_decoder_set_memory(context, d, &memory, NULL), MHA_ERR_ARGUMENT,
                 "no cross-attention");
    assert_int_equal(mha_decoder_lengths(d)[0], 10);
    assert_int_equal(mha_decoder_lengths(d)[1], 4);
    assert_int_equal(mha_decoder_lengths(d)[2], 0);
    mha_decoder_destroy(d);
    mha_transformer_destroy(t);
}

static void memories_are_checked(void)
{
    mha_transformer *t = plain(MHA_TRANSFORMER_CROSS);
    mha_decoder *d = ready(t, MEMORY);
    int32_t ids[BATCH] = {0};
    float rows[BATCH * (MEMORY + 1) * WIDTH] = {0}, got[2][BATCH * VOCAB];
    int64_t lengths[BATCH] = {0, MEMORY, 1};
    const mha_tensor tokens = tokens_of(ids, BATCH, 1), out = rows_of(got[0], BATCH, 1, VOCAB);
    const mha_tensor again = rows_of(got[1], BATCH, 1, VOCAB);
    mha_tensor memory = rows_of(rows, BATCH, MEMORY, WIDTH);
#define SET mha_decoder_set_memory(context, d, &memory, lengths)
    for (int i = 0; i < BATCH * MEMORY * WIDTH; i++) rows[i] = (float)(i % 17) - 8;
    expect_error(mha_decoder_step(context, d, &tokens, &out), MHA_ERR_ARGUMENT,
                 "call mha_decoder_set_memory() first");
    expect_ok(SET);
    expect_ok(mha_decoder_step(context, d, &tokens, &out));
    expect_spoiled(memory, SET, MHA_ERR_SIZE,
                   "8 rows of a sequence are more than memory_capacity, 7",
                   memory = rows_of(rows, BATCH, MEMORY + 1, WIDTH));
    expect_spoiled(memory, SET, MHA_ERR_SHAPE, "memory", memory.shape[2] = WIDTH - 1);
    expect_spoiled(memory, SET, MHA_ERR_STRIDE, "gaps", memory.stride[0] += WIDTH);
    expect_spoiled(lengths, SET, MHA_ERR_ARGUMENT, "memory_lengths[1] is 8",
                   lengths[1] = MEMORY + 1);
    expect_error(mha_decoder_set_memory(context, d, NULL, NULL), MHA_ERR_NULL, "memory");
    expect_error(mha_decoder_set_memory(context, NULL, &memory, NULL), MHA_ERR_NULL, "decoder");
    expect_error(mha_decoder_set_memory(NULL, d, &memory, NULL), MHA_ERR_NULL, "context");
    expect_ok(mha_decoder_truncate(d, 0)); /* the memory remains, also after errors */
    expect_ok(mha_decoder_step(context, d, &tokens, &again));
    assert_memory_equal(got[0], got[1], sizeof got[0]);
    mha_decoder_destroy(d);
    mha_transformer_destroy(t);
}

/* ---- failures ------------------------------------------------------------------------------ */

/* If any allocation fails, memory and tokens are unchanged, and the calls succeed afterwards. */
static mha_status with_memory(mha_context *own, failing_alloc *alloc, void *user)
{
    const mha_transformer *t = user;
    int32_t ids[BATCH * 3] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    float rows[BATCH * MEMORY * WIDTH] = {0}, got[BATCH * 3 * VOCAB];
    const int64_t firsts[BATCH] = {0, 1, 3};
    const mha_tensor tokens = tokens_of(ids, BATCH, 3), out = rows_of(got, BATCH, 3, VOCAB);
    const mha_tensor memory = rows_of(rows, BATCH, MEMORY, WIDTH);
    mha_decoder *d = NULL;
    const mha_decoder_desc desc = {
        .struct_size = sizeof desc, .batch = BATCH, .max_step = 3, .memory_capacity = MEMORY};
    failing_from_here(alloc);
    mha_status status = mha_decoder_create(own, t, &desc, &d);
    if (status != MHA_OK) return status;
    status = mha_decoder_set_memory(own, d, &memory, NULL);
    if (status == MHA_OK) status = mha_decoder_step_rows(own, d, &tokens, firsts, NULL, &out);
    for (int b = 0; b < BATCH; b++)
        assert_int_equal(mha_decoder_lengths(d)[b], status == MHA_OK ? 3 - firsts[b] : 0);
    mha_decoder_destroy(d);
    return status;
}

static void failed_allocations_change_nothing(void)
{
    mha_transformer *t = plain(MHA_TRANSFORMER_CROSS);
    assert_true(failing_each(with_memory, t) > 8);
    mha_transformer_destroy(t);
}

RUN_TESTS_BETWEEN(context_begin, NULL, TEST(random_programs), TEST(windows),
                  TEST(rotations_that_depend_on_the_length), TEST(descriptions_are_checked),
                  TEST(calls_are_checked), TEST(memories_are_checked),
                  TEST(failed_allocations_change_nothing))
