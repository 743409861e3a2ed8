/* Prints one line per computation: its name and a hash of its bits. Instruction sets with fused multiply-adds must
 * print the same lines on every machine: .ci/run compares NEON under qemu with AVX2. Inputs do not depend on functions
 * of the C library, which differ between machines.
 *
 *   bits_digest [ISA]     portable, neon, avx2, avx512, amx; default: the best one */
#include "support/backward_call.h"
#include "support/rng.h"

#include <multihead/multihead.h>
#include <multihead/optimizer.h>
#include <multihead/patterns.h>
#include <multihead/transformer.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { B = 2, H = 4, HK = 2, T = 67, S = 549, D = 48, DV = 40 }; /* more than a block of 512 keys */

static void stop_if(mha_status status)
{
    if (!status) return;
    fprintf(stderr, "bits_digest: %s: %s\n", mha_status_text(status), mha_error_detail());
    exit(1);
}

static float *floats(int64_t count)
{
    float *x = calloc((size_t)count, sizeof *x);
    if (!x) {
        fprintf(stderr, "bits_digest: out of memory\n");
        exit(1);
    }
    return x;
}

/* Uniform in [-2, 2), by integer arithmetic. */
static float *some_floats(uint64_t stream, int64_t count)
{
    rng r = rng_make(1, stream);
    float *x = floats(count);
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)(int64_t)(rng_next(&r) >> 40) * 0x1p-22f - 2.0f;
    return x;
}

/* FNV-1a, 64 bits. */
static void say(const char *name, const void *data, int64_t bytes)
{
    const uint8_t *at = data;
    uint64_t hash = 0xCBF29CE484222325u;
    for (int64_t i = 0; i < bytes; i++) hash = (hash ^ at[i]) * 0x100000001B3u;
    printf("%-24s %016" PRIx64 "\n", name, hash);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct attention_data {
    float *q, *k, *v, *o, *lse, *do_, *dq, *dk, *dv;
    mha_tensor Q, K, V, O, L, DO, DQ, DK, DV;
} attention_data;

static mha_tensor view(float *data, int64_t heads, int64_t rows, int64_t size)
{
    return mha_tensor_contiguous(data, MHA_F32, 4, (int64_t[]){B, heads, rows, size});
}

static void attention_make(attention_data *a)
{
    a->Q = view(a->q = some_floats(1, B * H * T * D), H, T, D);
    a->K = view(a->k = some_floats(2, B * HK * S * D), HK, S, D);
    a->V = view(a->v = some_floats(3, B * HK * S * DV), HK, S, DV);
    a->O = view(a->o = floats(B * H * T * DV), H, T, DV);
    a->L = mha_tensor_contiguous(a->lse = floats(B * H * T), MHA_F32, 3, (int64_t[]){B, H, T});
    a->DO = view(a->do_ = some_floats(4, B * H * T * DV), H, T, DV);
    a->DQ = view(a->dq = floats(B * H * T * D), H, T, D);
    a->DK = view(a->dk = floats(B * HK * S * D), HK, S, D);
    a->DV = view(a->dv = floats(B * HK * S * DV), HK, S, DV);
}

static void attention_free(attention_data *a)
{
    float *all[] = {a->q, a->k, a->v, a->o, a->lse, a->do_, a->dq, a->dk, a->dv};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}

static void attention_both_ways(mha_context *context, attention_data *a, const char *name,
                                const mha_attention_desc *desc)
{
    char text[64];
    mha_attention_outputs outputs = {.struct_size = sizeof outputs, .lse = &a->L};
    stop_if(mha_attention_forward(context, desc, &a->Q, &a->K, &a->V, &a->O, &outputs));
    say(name, a->o, B * H * T * DV * (int64_t)sizeof(float));
    snprintf(text, sizeof text, "%s lse", name);
    say(text, a->lse, B * H * T * (int64_t)sizeof(float));
    mha_attention_gradients gradients = {
        .struct_size = sizeof gradients, .q = &a->DQ, .k = &a->DK, .v = &a->DV};
    stop_if(mha_attention_backward(
        context, BACKWARD_CALL(desc, &a->Q, &a->K, &a->V, &a->O, &a->L, &a->DO, &gradients)));
    snprintf(text, sizeof text, "%s dq", name);
    say(text, a->dq, B * H * T * D * (int64_t)sizeof(float));
    snprintf(text, sizeof text, "%s dk", name);
    say(text, a->dk, B * HK * S * D * (int64_t)sizeof(float));
    snprintf(text, sizeof text, "%s dv", name);
    say(text, a->dv, B * HK * S * DV * (int64_t)sizeof(float));
}

static void attention_digest(mha_context *context)
{
    float slopes[H] = {0.5f, 0.25f, 0.125f, 0.0625f};
    static const int64_t lengths[B] = {S, 520};
    const mha_tensor alibi = mha_tensor_contiguous(slopes, MHA_F32, 1, (int64_t[]){H});
    const mha_attention_desc descs[] = {
        {.struct_size = sizeof descs[0]},
        {.struct_size = sizeof descs[0], .flags = MHA_ATTENTION_CAUSAL, .q_offset = S - T},
        {.struct_size = sizeof descs[0], .softcap = 3, .key_lengths = lengths},
        {.struct_size = sizeof descs[0],
         .alibi_slopes = &alibi,
         .dropout = 0.25f,
         .dropout_seed = 7},
        {.struct_size = sizeof descs[0], .path = MHA_PATH_PLAIN, .softcap = 3},
    };
    static const char *const names[] = {"attention", "causal", "softcap, lengths", "alibi, dropout",
                                        "plain"};
    attention_data a;
    attention_make(&a);
    for (size_t i = 0; i < sizeof descs / sizeof descs[0]; i++)
        attention_both_ways(context, &a, names[i], &descs[i]);
    const mha_attention_desc bf16 = {.struct_size = sizeof bf16,
                                     .compute = MHA_COMPUTE_BF16,
                                     .flags = MHA_ATTENTION_CAUSAL,
                                     .q_offset = S - T,
                                     .alibi_slopes = &alibi};
    stop_if(mha_attention_forward(context, &bf16, &a.Q, &a.K, &a.V, &a.O, NULL));
    say("bf16, causal, alibi", a.o, B * H * T * DV * (int64_t)sizeof(float));
    attention_free(&a);
}

/* A few queries read keys and values in place. Tests each number of rows over many blocks of keys,
 * with one key/value head, so that threads share keys. */
static void few_queries_digest(mha_context *context)
{
    enum { FEW = 9, KEYS = 4101, SIZE = 64 };
    for (int64_t t = 1; t <= FEW; t += 2) {
        char name[32];
        snprintf(name, sizeof name, "%d queries", (int)t);
        float *q = some_floats(5, t * SIZE), *k = some_floats(6, KEYS * SIZE),
              *v = some_floats(7, KEYS * SIZE), *o = floats(t * SIZE);
        const mha_tensor Q = mha_tensor_contiguous(q, MHA_F32, 4, (int64_t[]){1, 1, t, SIZE}),
                         K = mha_tensor_contiguous(k, MHA_F32, 4, (int64_t[]){1, 1, KEYS, SIZE}),
                         V = mha_tensor_contiguous(v, MHA_F32, 4, (int64_t[]){1, 1, KEYS, SIZE}),
                         O = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, t, SIZE});
        stop_if(mha_attention_forward(context, NULL, &Q, &K, &V, &O, NULL));
        say(name, o, t * SIZE * (int64_t)sizeof(float));
        float *all[] = {q, k, v, o};
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    }
}

/* bf16 storage with an odd head size, in f32 and bf16 arithmetic. */
static void stored_digest(mha_context *context)
{
    enum { ROWS = 19, KEYS = 545, SIZE = 33 };
    const int64_t counts[] = {ROWS * SIZE, KEYS * SIZE, KEYS * SIZE};
    uint16_t *stored[3];
    mha_tensor x[3];
    float *o = floats(ROWS * SIZE);
    const mha_tensor O = mha_tensor_contiguous(o, MHA_F32, 4, (int64_t[]){1, 1, ROWS, SIZE});
    for (int i = 0; i < 3; i++) {
        float *from = some_floats(20 + (uint64_t)i, counts[i]);
        stored[i] = (uint16_t *)floats(counts[i]);
        const mha_tensor f32 =
            mha_tensor_contiguous(from, MHA_F32, 4, (int64_t[]){1, 1, counts[i] / SIZE, SIZE});
        x[i] = mha_tensor_contiguous(stored[i], MHA_BF16, 4, f32.shape);
        stop_if(mha_tensor_convert(&f32, &x[i]));
        free(from);
    }
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const mha_attention_desc desc = {.struct_size = sizeof desc,
                                         .flags = MHA_ATTENTION_CAUSAL,
                                         .q_offset = KEYS - ROWS,
                                         .compute = bf16 ? MHA_COMPUTE_BF16 : MHA_COMPUTE_F32};
        stop_if(mha_attention_forward(context, &desc, &x[0], &x[1], &x[2], &O, NULL));
        say(bf16 ? "stored bf16, in bf16" : "stored bf16, in f32", o,
            ROWS * SIZE * (int64_t)sizeof(float));
    }
    for (int i = 0; i < 3; i++) free(stored[i]);
    free(o);
}

/* Inputs of angles and powers. */
static void positions_digest(mha_context *context)
{
    enum { ROWS = 300, SIZE = 96, HEADS = 12 };
    float *table = floats(ROWS * SIZE), *x = some_floats(8, ROWS * SIZE), slopes[HEADS];
    const mha_tensor encoding = mha_tensor_contiguous(table, MHA_F32, 2, (int64_t[]){ROWS, SIZE});
    const mha_tensor turned = mha_tensor_contiguous(x, MHA_F32, 4, (int64_t[]){1, 1, ROWS, SIZE});
    const mha_rope_desc rope = {.struct_size = sizeof rope, .positions.start = 12345678};
    stop_if(mha_sinusoidal_encoding(context, INT64_C(1) << 40, &encoding));
    say("sinusoidal", table, ROWS * SIZE * (int64_t)sizeof(float));
    stop_if(mha_rope_apply(context, &rope, &turned, &turned));
    say("rotary", x, ROWS * SIZE * (int64_t)sizeof(float));
    stop_if(mha_alibi_slopes(HEADS, slopes));
    say("alibi slopes", slopes, sizeof slopes);
    free(table), free(x);
}

/* ---- training -------------------------------------------------------------------------------- */

enum { VOCABULARY = 37, LENGTH = 45, SEQUENCES = 4, STEPS = 8 };

static void some_tokens(int32_t *tokens, int32_t *targets, rng *r)
{
    for (int i = 0; i < SEQUENCES * LENGTH; i++) {
        tokens[i] = (int32_t)rng_between(r, 0, VOCABULARY - 1);
        targets[i] = (tokens[i] * 5 + 3) % VOCABULARY;
    }
}

/* A few steps of AdamW on random data: every layer, forward and backward, and the optimizer. */
static void training_digest(mha_context *context, const char *name, mha_transformer_desc desc)
{
    enum { ROWS = SEQUENCES * LENGTH };
    desc.struct_size = sizeof desc;
    desc.vocab_size = VOCABULARY, desc.max_length = LENGTH, desc.embed_dim = 48;
    desc.num_layers = 2, desc.num_heads = 4, desc.ff_dim = 80;
    mha_transformer *net = NULL;
    mha_activations *kept = NULL;
    stop_if(mha_transformer_create(context, &desc, &net));
    mha_transformer_init init = {.struct_size = sizeof init, .seed = 11, .position_std = 0.5};
    stop_if(mha_transformer_initialise(context, net, &init));
    stop_if(mha_activations_create(context, net, ROWS, 0, &kept));

    const int64_t size = mha_transformer_size(net);
    float *gradient = floats(size), *m = floats(size), *v = floats(size);
    float *logits = floats(ROWS * VOCABULARY);
    int32_t tokens[ROWS], targets[ROWS];
    const mha_tensor X = mha_tensor_contiguous(tokens, MHA_I32, 2, (int64_t[]){SEQUENCES, LENGTH});
    const mha_tensor Y = mha_tensor_contiguous(targets, MHA_I32, 1, (int64_t[]){ROWS});
    const mha_tensor wide =
        mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){SEQUENCES, LENGTH, VOCABULARY});
    const mha_tensor flat =
        mha_tensor_contiguous(logits, MHA_F32, 2, (int64_t[]){ROWS, VOCABULARY});
    rng r = rng_make(1, 99);
    for (int64_t step = 1; step <= STEPS; step++) {
        some_tokens(tokens, targets, &r);
        mha_transformer_input input = {.struct_size = sizeof input,
                                       .tokens = &X,
                                       .dropout = 0.125f,
                                       .dropout_seed = (uint64_t)step};
        double loss;
        stop_if(mha_transformer_forward(context, net, &input, kept, &wide, NULL, NULL));
        stop_if(mha_cross_entropy(context, &flat, &Y, NULL, &loss, NULL, &flat));
        memset(gradient, 0, (size_t)size * sizeof *gradient);
        mha_transformer_gradients into = {.struct_size = sizeof into, .parameters = gradient};
        stop_if(mha_transformer_backward(context, net, &input, kept, &wide, &into));
        mha_adamw settings = {
            .struct_size = sizeof settings, .learning_rate = 0x1p-8, .step = step};
        stop_if(
            mha_adamw_step(context, &settings, size, mha_transformer_data(net), gradient, m, v));
        stop_if(mha_transformer_update(context, net));
    }
    say(name, mha_transformer_data(net), size * (int64_t)sizeof(float));
    mha_activations_destroy(kept);
    mha_transformer_destroy(net);
    free(gradient), free(m), free(v), free(logits);
}

/* ---- linear layers in other arithmetics ------------------------------------------------------ */

enum { INPUTS = 544, OUTPUTS = 83, TOKENS = 17 };

/* Parameter 0 is the token table, and the last parameter is the output. Numbers are hashes of their
 * index. */
static uint32_t place_hash(int64_t row, int64_t column)
{
    return ((uint32_t)row * 2654435761u ^ (uint32_t)column * 2246822519u) * 3266489917u;
}

static void read_table(const void *user, int64_t parameter, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, float *to)
{
    (void)user, (void)parameter;
    for (int64_t i = 0; i < rows * columns; i++)
        to[i] = (float)(int32_t)place_hash(row + i / columns, column + i % columns) * 0x1p-30f;
}

static bool read_coded(const void *user, int64_t parameter, int64_t row, int64_t rows,
                       int64_t column, int64_t columns, mha_coded *to)
{
    if (parameter == 0) return false;
    to->run = *(const int32_t *)user;
    to->has_offsets = to->run == 32;
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t r = i / columns, c = i % columns, run = c / to->run;
        const uint32_t hash = place_hash(row + r, (column + c) / to->run * to->run + 7);
        to->number[c / 4][r][c % 4] = (int8_t)(place_hash(row + r, column + c) >> 24);
        to->scale[run][r] = (float)(hash >> 16) * 0x1p-20f;
        to->offset[run][r] = to->has_offsets ? (float)(hash & 65535) * 0x1p-14f : -0.0f;
    }
    return true;
}

static void linear_digest(mha_context *context, const char *name, mha_compute compute, int32_t run)
{
    static const int64_t no_heads[] = {0};
    const mha_transformer_desc desc = {.struct_size = sizeof desc,
                                       .vocab_size = OUTPUTS,
                                       .max_length = TOKENS,
                                       .embed_dim = INPUTS,
                                       .num_layers = 1,
                                       .num_heads = 1,
                                       .head_dim = 8,
                                       .layer_heads = no_heads};
    const mha_transformer_source source = {.struct_size = sizeof source,
                                           .read = read_table,
                                           .read_coded =
                                               compute == MHA_COMPUTE_INT8 ? read_coded : NULL,
                                           .user = &run,
                                           .compute = compute};
    mha_transformer *net = NULL;
    int32_t ids[TOKENS];
    for (int32_t i = 0; i < TOKENS; i++) ids[i] = 3 * i;
    float *y = floats(TOKENS * OUTPUTS);
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, TOKENS});
    const mha_tensor out = mha_tensor_contiguous(y, MHA_F32, 3, (int64_t[]){1, TOKENS, OUTPUTS});
    const mha_transformer_input input = {.struct_size = sizeof input, .tokens = &tokens};
    stop_if(mha_transformer_create_from(context, &desc, &source, &net));
    stop_if(mha_transformer_update(context, net));
    stop_if(mha_transformer_forward(context, net, &input, NULL, &out, NULL, NULL));
    say(name, y, TOKENS * OUTPUTS * (int64_t)sizeof(float));
    mha_transformer_destroy(net);
    free(y);
}

int main(int count, char **arguments)
{
    mha_context_desc desc = {.struct_size = sizeof desc};
    for (int isa = MHA_ISA_PORTABLE; count > 1 && isa <= MHA_ISA_AMX; isa++)
        if (!strcmp(arguments[1], mha_isa_name((mha_isa)isa))) desc.isa = (mha_isa)isa;
    mha_context *context = NULL;
    stop_if(mha_context_create(&desc, &context));
    if (count > 1 && strcmp(arguments[1], mha_isa_name(mha_context_isa(context))) != 0) {
        fprintf(stderr, "bits_digest: '%s' does not run here\n", arguments[1]);
        return 1;
    }
    attention_digest(context);
    few_queries_digest(context);
    stored_digest(context);
    positions_digest(context);
    training_digest(context, "llama, trained",
                    (mha_transformer_desc){.flags = MHA_TRANSFORMER_CAUSAL,
                                           .kv_heads = 2,
                                           .norm = MHA_NORM_RMS,
                                           .positions = MHA_ENCODING_ROTARY,
                                           .feed_forward = MHA_FEED_FORWARD_SWIGLU});
    training_digest(context, "bert, trained",
                    (mha_transformer_desc){.flags = MHA_TRANSFORMER_POST_NORM |
                                                    MHA_TRANSFORMER_EMBEDDING_NORM |
                                                    MHA_TRANSFORMER_BIAS | MHA_TRANSFORMER_TIED,
                                           .norm = MHA_NORM_LAYER,
                                           .positions = MHA_ENCODING_LEARNED});
    const mha_layer_desc layers[2] = {
        {.struct_size = sizeof layers[0],
         .flags = MHA_LAYER_WINDOW | MHA_LAYER_QK_NORM | MHA_LAYER_SINKS,
         .left_keys = 7,
         .softcap = 8,
         .rotary_dim = 6,
         .rope_base = 500},
        {.struct_size = sizeof layers[0], .flags = MHA_LAYER_ALIBI, .t5_buckets = 8}};
    training_digest(context, "layers, trained",
                    (mha_transformer_desc){.flags = MHA_TRANSFORMER_CAUSAL,
                                           .norm = MHA_NORM_RMS,
                                           .positions = MHA_ENCODING_ROTARY,
                                           .layers = layers});
    linear_digest(context, "int8, linear, runs of 16", MHA_COMPUTE_INT8, 16);
    linear_digest(context, "int8, linear, runs of 32", MHA_COMPUTE_INT8, 32);
    linear_digest(context, "bf16, linear", MHA_COMPUTE_BF16, 32);
    linear_digest(context, "tiles, linear", MHA_COMPUTE_TILES, 32);
    mha_context_destroy(context);
    return 0;
}
