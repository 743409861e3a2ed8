/* Patches of heads and of the first layers of a forward call: a head's own output, queries, keys
 * and values change no bit, and zeros equal a closed gate. Patches of queries, keys and values are
 * compared with weights that produce them. A call that begins with a later layer is bit-identical
 * to the whole call. Further tests are for single rows and misuse. */
#include "support/expect.h"
#include "support/machines.h"
#include "support/small_model.h"
#include "support/suite.h"

#include <stdlib.h>
#include <string.h>

enum {
    ALL_HEADS = SMALL_LAYERS * SMALL_HEADS,
    ALL_PATCHES = 4 * ALL_HEADS,
    ALL_STREAM = SMALL_ROWS * 24
};

/* A call's results for every layer. */
typedef struct seen {
    small_model *m;
    mha_layer_view views[SMALL_LAYERS]; /* views of the arrays below */
    float heads[SMALL_LAYERS][4][SMALL_ROWS * SMALL_HEADS * SMALL_SIZE];
    float stream[SMALL_LAYERS][ALL_STREAM];
    int layers;
} seen;

static const mha_tensor *part_of(const mha_layer_view *v, mha_patch_part part)
{
    const mha_tensor *all[] = {&v->heads, &v->q, &v->k, &v->v};
    return all[part];
}

/* A head [B,T,D] of [B,H,T,D]. */
static mha_tensor head_of(const mha_tensor *x, int64_t head)
{
    mha_tensor one = *x;
    one.ndim = 3;
    one.data = (float *)x->data + head * x->stride[1];
    for (int i = 1; i < 3; i++) one.shape[i] = x->shape[i + 1], one.stride[i] = x->stride[i + 1];
    return one;
}

static mha_tensor copy_of(const mha_tensor *x, float *to)
{
    mha_tensor made = mha_tensor_contiguous(to, MHA_F32, x->ndim, x->shape);
    for (int64_t b = 0; b < x->shape[0]; b++)
        for (int64_t h = 0; h < x->shape[1]; h++)
            for (int64_t i = 0; x->ndim == 4 && i < x->shape[2]; i++)
                memcpy(to + b * made.stride[0] + h * made.stride[1] + i * made.stride[2],
                       (float *)x->data + b * x->stride[0] + h * x->stride[1] + i * x->stride[2],
                       (size_t)x->shape[3] * sizeof *to);
    return made;
}

static mha_status see(void *user, const mha_activations *activations, int64_t layer)
{
    seen *s = user;
    mha_layer_view v = {.struct_size = sizeof v};
    expect_ok(mha_activations_layer(activations, layer, MHA_PART_SELF_ATTENTION, &v));
    s->views[layer] = v;
    if (v.heads.ndim) {
        s->views[layer].heads = copy_of(&v.heads, s->heads[layer][MHA_PATCH_OUTPUT]);
        s->views[layer].q = copy_of(&v.q, s->heads[layer][MHA_PATCH_QUERY]);
        s->views[layer].k = copy_of(&v.k, s->heads[layer][MHA_PATCH_KEY]);
        s->views[layer].v = copy_of(&v.v, s->heads[layer][MHA_PATCH_VALUE]);
    }
    memcpy(s->stream[layer], v.stream.data,
           (size_t)(s->m->B * s->m->T * s->m->desc.embed_dim) * sizeof(float));
    s->views[layer].stream.data = s->stream[layer];
    s->layers++;
    return MHA_OK;
}

static seen *look(mha_context *context, small_model *m)
{
    seen *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->m = m;
    m->input.after_layer = see;
    m->input.after_layer_user = s;
    small_model_run(context, m, NULL);
    m->input.after_layer = NULL;
    assert_int_equal(s->layers, m->desc.num_layers);
    return s;
}

static size_t output_bytes(const small_model *m)
{
    return (size_t)(m->B * m->T * m->width) * sizeof(float);
}

static small_model *draw(mha_context *context, rng *r)
{
    return small_model_make(context, r,
                            (rng_chance(r, 0.5) ? (uint32_t)MHA_TRANSFORMER_CAUSAL : 0) |
                                (rng_chance(r, 0.3) ? (uint32_t)MHA_TRANSFORMER_NO_OUTPUT : 0));
}

/* Every part of every head, separately and together, in a call with and without activations. */
static void own_numbers_change_no_bit(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 100 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        small_model *m = draw(context, &r);
        seen *s = look(context, m);
        float wanted[SMALL_ROWS * SMALL_WIDTH];
        mha_head_patch patches[ALL_PATCHES];
        mha_tensor values[ALL_PATCHES];
        mha_activations *a = NULL;
        int64_t count = 0;
        memcpy(wanted, m->output_data, sizeof wanted);
        for (int64_t l = 0; l < m->desc.num_layers; l++)
            for (int part = 0; part < 4; part++) {
                const mha_tensor *x = part_of(&s->views[l], (mha_patch_part)part);
                for (int64_t h = 0; h < x->shape[1]; h++, count++) {
                    values[count] = head_of(x, h);
                    patches[count] = (mha_head_patch){.struct_size = sizeof patches[0],
                                                      .part = (mha_patch_part)part,
                                                      .layer = l,
                                                      .head = h,
                                                      .values = &values[count]};
                }
            }
        m->input.patches = patches;
        m->input.patch_count = count;
        memset(m->output_data, 0, sizeof m->output_data);
        small_model_run(context, m, NULL);
        assert_memory_equal(wanted, m->output_data, output_bytes(m));
        expect_ok(mha_activations_create(context, m->t, m->B * m->T, 0, &a));
        m->input.patch_count = 1;
        m->input.patches = &patches[rng_between(&r, 0, count - 1)];
        memset(m->output_data, 0, sizeof m->output_data);
        small_model_run(context, m, a);
        assert_memory_equal(wanted, m->output_data, output_bytes(m));
        mha_activations_destroy(a);
        free(s);
        small_model_free(m);
    }
}

static int64_t draw_heads(rng *r, const small_model *m, mha_head_patch *patches,
                          const mha_tensor *values, float *gates)
{
    int64_t count = 0;
    for (int64_t k = 0; k < m->desc.num_layers * m->desc.num_heads; k++) {
        gates[k] = 1;
        if (rng_chance(r, 0.6)) continue;
        gates[k] = 0;
        patches[count++] = (mha_head_patch){.struct_size = sizeof patches[0],
                                            .layer = k / m->desc.num_heads,
                                            .head = k % m->desc.num_heads,
                                            .values = values};
    }
    return count;
}

/* Strides of 0 give all tokens one row: zeros are a closed gate, and other numbers are a mean. */
static void patches_are_closed_gates(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 2000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        small_model *m = draw(context, &r);
        const int64_t L = m->desc.num_layers, H = m->desc.num_heads, D = m->desc.head_dim;
        float gates[ALL_HEADS], means[ALL_HEADS * SMALL_SIZE] = {0}, row[SMALL_SIZE] = {0};
        float wanted[SMALL_ROWS * SMALL_WIDTH];
        mha_head_patch patches[ALL_HEADS];
        mha_tensor values = mha_tensor_contiguous(row, MHA_F32, 3, (int64_t[]){m->B, m->T, D});
        mha_tensor gate = mha_tensor_contiguous(gates, MHA_F32, 2, (int64_t[]){L, H});
        mha_tensor mean = mha_tensor_contiguous(means, MHA_F32, 2, (int64_t[]){L, H * D});
        const bool zeros = i % 2;
        values.stride[0] = values.stride[1] = 0;
        for (int64_t k = 0; !zeros && k < D; k++) row[k] = rng_normal(&r);
        for (int64_t k = 0; k < L * H * D; k++) means[k] = row[k % D];
        const int64_t count = draw_heads(&r, m, patches, &values, gates);
        m->input.gates = &gate;
        m->input.head_means = zeros ? NULL : &mean;
        small_model_run(context, m, NULL);
        memcpy(wanted, m->output_data, sizeof wanted);
        m->input.gates = m->input.head_means = NULL;
        m->input.patches = patches;
        m->input.patch_count = count;
        small_model_run(context, m, NULL);
        assert_memory_equal(wanted, m->output_data, output_bytes(m));
        small_model_free(m);
    }
}

/* Rows without a patch are unchanged, the later of two patches applies, and attention reads patched
 * queries, keys and values. The test compares the layer's heads. */
static void rows_and_parts(void)
{
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 4000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        small_model *m = draw(context, &r);
        seen *before = look(context, m), *after;
        const int64_t l = rng_between(&r, 0, m->desc.num_layers - 1), D = m->desc.head_dim;
        const mha_patch_part part = (mha_patch_part)rng_between(&r, 0, 3);
        const mha_tensor *old = part_of(&before->views[l], part);
        const int64_t head = rng_between(&r, 0, old->shape[1] - 1);
        float first[SMALL_SIZE], other[SMALL_ROWS * SMALL_SIZE];
        uint8_t rows[SMALL_ROWS];
        mha_tensor one = mha_tensor_contiguous(first, MHA_F32, 3, (int64_t[]){m->B, m->T, D});
        mha_tensor many = mha_tensor_contiguous(other, MHA_F32, 3, (int64_t[]){m->B, m->T, D});
        one.stride[0] = one.stride[1] = 0;
        for (int k = 0; k < SMALL_SIZE; k++) first[k] = rng_normal(&r);
        for (int k = 0; k < SMALL_ROWS * SMALL_SIZE; k++) other[k] = rng_normal(&r);
        for (int k = 0; k < SMALL_ROWS; k++) rows[k] = rng_chance(&r, 0.5);
        const mha_head_patch patches[] = {
            {sizeof patches[0], part, l, head, &one, NULL},
            {sizeof patches[0], part, l, head, &many, rows},
        };
        m->input.patches = patches + 1;
        m->input.patch_count = 1;
        if (i % 2) m->input.patches = patches, m->input.patch_count = 2;
        after = look(context, m);
        const mha_tensor *now = part_of(&after->views[l], part);
        for (int64_t k = 0; k < m->B * old->shape[1] * m->T; k++) {
            const int64_t b = k / (old->shape[1] * m->T), h = k / m->T % old->shape[1],
                          t = k % m->T;
            const float *kept = (float *)old->data + k * D, *put = other + (b * m->T + t) * D;
            const float *wanted = h != head            ? kept
                                  : rows[b * m->T + t] ? put
                                  : i % 2              ? first
                                                       : kept;
            assert_memory_equal((float *)now->data + k * D, wanted, (size_t)D * sizeof(float));
        }
        /* The stream before this layer, and its own q, k and v, are not affected. */
        assert_memory_equal(before->stream[l], after->stream[l],
                            (size_t)(m->B * m->T * m->desc.embed_dim) * sizeof(float));
        for (int other_part = MHA_PATCH_QUERY; other_part <= MHA_PATCH_VALUE; other_part++)
            if ((mha_patch_part)other_part != part)
                assert_memory_equal(
                    part_of(&before->views[l], (mha_patch_part)other_part)->data,
                    part_of(&after->views[l], (mha_patch_part)other_part)->data,
                    (size_t)(m->B *
                             part_of(&before->views[l], (mha_patch_part)other_part)->shape[1] *
                             m->T * D) *
                        sizeof(float));
        free(before);
        free(after);
        small_model_free(m);
    }
}

/* A zero query attends uniformly. Without position biases, its output is the mean of the values,
 * also of patched ones. A causal case of 5 tokens is computed by hand. */
static void parts_reach_attention(void)
{
    enum { T = 5, D = 2 };
    mha_context *context = machines_context(1, 0);
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .flags = MHA_TRANSFORMER_CAUSAL,
                                    .vocab_size = 4,
                                    .max_length = T,
                                    .embed_dim = 4,
                                    .num_layers = 1,
                                    .num_heads = 2};
    mha_transformer *t = NULL;
    mha_activations *a = NULL;
    int32_t ids[T] = {0, 1, 2, 3, 0};
    float zero[D] = {0}, numbers[T * D] = {1, 10, 2, 20, 3, 30, 4, 40, 5, 50}, logits[T * 4];
    mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, T});
    mha_tensor output = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, T, 4});
    mha_tensor zeros = mha_tensor_contiguous(zero, MHA_F32, 3, (int64_t[]){1, T, D});
    mha_tensor values = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){1, T, D});
    zeros.stride[1] = 0;
    const mha_head_patch patches[] = {
        {sizeof patches[0], MHA_PATCH_QUERY, 0, 1, &zeros, NULL},
        {sizeof patches[0], MHA_PATCH_VALUE, 0, 1, &values, NULL},
    };
    const mha_transformer_input input = {
        .struct_size = sizeof input, .tokens = &tokens, .patches = patches, .patch_count = 2};
    const mha_transformer_init init = {.struct_size = sizeof init, .embedding_std = 1};
    mha_layer_view view = {.struct_size = sizeof view};
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_transformer_initialise(context, t, &init));
    expect_ok(mha_activations_create(context, t, T, 0, &a));
    expect_ok(mha_transformer_forward(context, t, &input, a, &output, NULL, NULL));
    expect_ok(mha_activations_layer(a, 0, MHA_PART_SELF_ATTENTION, &view));
    const mha_tensor head = head_of(&view.heads, 1);
    for (int i = 0; i < T; i++) {
        const float *z = (float *)head.data + i * head.stride[1];
        assert_float_equal(z[0], 1 + 0.5f * (float)i, 1e-6f);
        assert_float_equal(z[1], 10 + 5.0f * (float)i, 1e-5f);
    }
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

/* Calls begin with each layer, with and without activations. Outputs and results of later layers
 * are compared. */
static void later_beginnings_change_no_bit(void)
{
    int begun = 0;
    for (int i = 0; i < rng_cases(60, 600); i++) {
        rng r = rng_make(rng_run_seed(), 6000 + (uint64_t)i);
        mha_context *context = machines_context(2, i);
        small_model *m = draw(context, &r);
        seen *s = look(context, m);
        mha_activations *a = NULL;
        float wanted[SMALL_ROWS * SMALL_WIDTH];
        memcpy(wanted, m->output_data, sizeof wanted);
        expect_ok(mha_activations_create(context, m->t, m->B * m->T, 0, &a));
        for (int64_t l = 0; l < m->desc.num_layers; l++, begun++) {
            mha_stream_view ends = {.struct_size = sizeof ends};
            mha_layer_view view = {.struct_size = sizeof view};
            m->input.first_layer = l;
            m->input.stream = &s->views[l].stream;
            memset(m->output_data, 0, sizeof m->output_data);
            small_model_run(context, m, NULL);
            assert_memory_equal(wanted, m->output_data, output_bytes(m));
            memset(m->output_data, 0, sizeof m->output_data);
            small_model_run(context, m, a);
            assert_memory_equal(wanted, m->output_data, output_bytes(m));
            expect_ok(mha_activations_stream(a, &ends));
            assert_int_equal(ends.embedded.ndim, 0);
            assert_int_equal(ends.first.ndim, l == 0 ? 3 : 0);
            for (int64_t k = 0; k < m->desc.num_layers; k++) {
                if (k < l) {
                    assert_int_equal(mha_activations_layer(a, k, MHA_PART_SELF_ATTENTION, &view),
                                     MHA_ERR_ARGUMENT);
                    continue;
                }
                expect_ok(mha_activations_layer(a, k, MHA_PART_SELF_ATTENTION, &view));
                assert_memory_equal(view.stream.data, s->stream[k],
                                    (size_t)(m->B * m->T * m->desc.embed_dim) * sizeof(float));
            }
        }
        m->input.stream = NULL; /* activations do not remember their first layer */
        m->input.first_layer = 0;
        small_model_run(context, m, a);
        mha_stream_view ends = {.struct_size = sizeof ends};
        expect_ok(mha_activations_stream(a, &ends));
        assert_int_equal(ends.embedded.ndim, 3);
        mha_activations_destroy(a);
        free(s);
        small_model_free(m);
    }
    if (rng_whole_sample()) assert_true(begun > 90);
}

static void misuse(void)
{
    mha_context *context = machines_context(1, 0);
    const mha_transformer_desc d = {.struct_size = sizeof d,
                                    .vocab_size = 5,
                                    .max_length = 4,
                                    .embed_dim = 8,
                                    .num_layers = 2,
                                    .num_heads = 4,
                                    .kv_heads = 2};
    mha_transformer *t = NULL;
    mha_activations *a = NULL;
    int32_t ids[3] = {0};
    float logits[15], numbers[3 * 8] = {0};
    const mha_tensor tokens = mha_tensor_contiguous(ids, MHA_I32, 2, (int64_t[]){1, 3});
    const mha_tensor output = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, 3, 5});
    const mha_tensor slope = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){1, 3, 5});
    mha_tensor values = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){1, 3, 2});
    mha_tensor stream = mha_tensor_contiguous(numbers, MHA_F32, 3, (int64_t[]){1, 3, 8});
    mha_tensor wrong = mha_tensor_contiguous(logits, MHA_F32, 3, (int64_t[]){1, 3, 2});
    mha_head_patch p = {.struct_size = sizeof p, .layer = 1, .head = 3, .values = &values};
    mha_transformer_input in = {
        .struct_size = sizeof in, .tokens = &tokens, .patches = &p, .patch_count = 1};
    const mha_transformer_gradients gradients = {.struct_size = sizeof gradients};
    expect_ok(mha_transformer_create(context, &d, &t));
    expect_ok(mha_activations_create(context, t, 3, 0, &a));
#define CALL mha_transformer_forward(context, t, &in, NULL, &output, NULL, NULL)
#define BAD_PATCH(...) expect_spoiled(p, CALL, __VA_ARGS__)
#define BAD_INPUT(...) expect_spoiled(in, CALL, __VA_ARGS__)
    expect_ok(CALL);
    BAD_PATCH(MHA_ERR_ARGUMENT, "struct_size is 3", p.struct_size = 3);
    BAD_PATCH(MHA_ERR_ARGUMENT, "patches[0]: part 4", p.part = (mha_patch_part)4);
    BAD_PATCH(MHA_ERR_ARGUMENT, "patches[0]: layer is 2, expected 0..1", p.layer = 2);
    BAD_PATCH(MHA_ERR_ARGUMENT, "patches[0]: layer is -1", p.layer = -1);
    BAD_PATCH(MHA_ERR_ARGUMENT, "patches[0]: head is 4, layer 1 has 4", p.head = 4);
    BAD_PATCH(MHA_ERR_ARGUMENT, "has 2 key/value heads", p.part = MHA_PATCH_KEY, p.head = 2);
    BAD_PATCH(MHA_ERR_NULL, "patches[0]", p.values = NULL);
    expect_spoiled(values, CALL, MHA_ERR_SHAPE, "patches[0]", values.shape[2] = 3);
    expect_spoiled(values, CALL, MHA_ERR_STRIDE, "patches[0]", values.stride[2] = 2);
    BAD_PATCH(MHA_ERR_OVERLAP, "the values of a patch", p.values = &wrong);
    BAD_INPUT(MHA_ERR_ARGUMENT, "patch_count is -1", in.patch_count = -1);
    BAD_INPUT(MHA_ERR_NULL, "patches is NULL", in.patches = NULL);
    BAD_INPUT(MHA_ERR_ARGUMENT, "first_layer is 2", in.first_layer = 2);
    BAD_INPUT(MHA_ERR_ARGUMENT, "first_layer is -1", in.first_layer = -1);
    BAD_INPUT(MHA_ERR_NULL, "stream, which it reads, is NULL", in.first_layer = 1);
    in.stream = &stream;
    expect_spoiled(stream, CALL, MHA_ERR_SHAPE, "stream", stream.shape[2] = 7);
    expect_spoiled(stream, CALL, MHA_ERR_OVERLAP, "stream", stream.data = logits);
    p.layer = 0;
    BAD_INPUT(MHA_ERR_ARGUMENT, "layer is 0, expected 1..1", in.first_layer = 1);
    in.patch_count = 0;
    expect_ok(mha_transformer_forward(context, t, &in, a, &output, NULL, NULL));
    expect_error(mha_transformer_backward(context, t, &in, a, &slope, &gradients),
                 MHA_ERR_UNSUPPORTED, "forward calls");
    in.stream = NULL;
    expect_error(mha_transformer_backward(context, t, &in, a, &slope, &gradients),
                 MHA_ERR_UNSUPPORTED, "forward calls");
    mha_activations_destroy(a);
    mha_transformer_destroy(t);
}

RUN_TESTS(TEST(own_numbers_change_no_bit), TEST(patches_are_closed_gates), TEST(rows_and_parts),
          TEST(parts_reach_attention), TEST(later_beginnings_change_no_bit), TEST(misuse))
