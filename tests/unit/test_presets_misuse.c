/* The presets called wrongly: every tensor spoiled in every way, every contradiction, memory that
 * runs out. Each gives its status and a sentence; nothing is written. */
#include "support/expect.h"
#include "support/failing_alloc.h"
#include "support/guarded.h"
#include "support/shared_context.h"
#include "support/suite.h"

#include <multihead/presets.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { B = 2, H = 4, HK = 2, T = 3, S = 5, P = 2, D = 8, DV = 6, E = 8 };

/* Everything that the calls of one preset point to. The tensors come first, in one array. */
enum { MOST_TENSORS = 11 };
typedef struct call {
    mha_context *context;
    mha_module *module;
    int count, inputs; /* tensors; the first ones are inputs */
    mha_tensor tensor[MOST_TENSORS];
    const mha_tensor *at[MOST_TENSORS]; /* what is passed */
    mha_pytorch_sdpa_args sdpa;
    mha_pytorch_mha_args mha;
    mha_onnx_attention_attributes attributes;
    mha_onnx_attention_inputs in;
    mha_onnx_attention_outputs out;
} call;

typedef struct preset {
    const char *name;
    void (*fill)(call *c); /* structs point at the tensors */
    mha_status (*run)(call *c);
    struct {
        const char *name;
        mha_dtype dtype;
        int ndim;
        int64_t shape[4];
        bool optional;
    } tensor[MOST_TENSORS];
    int count, inputs;
} preset;

static void fill_sdpa(call *c)
{
    c->sdpa = (mha_pytorch_sdpa_args){
        .struct_size = sizeof c->sdpa, .flags = MHA_SDPA_ENABLE_GQA, .attn_mask = c->at[3]};
}
static mha_status run_sdpa(call *c)
{
    return mha_pytorch_sdpa_forward(c->context, &c->sdpa, c->at[0], c->at[1], c->at[2], c->at[4]);
}

static void fill_mha(call *c)
{
    c->mha = (mha_pytorch_mha_args){.struct_size = sizeof c->mha,
                                    .flags = MHA_PYTORCH_BATCH_FIRST,
                                    .query = c->at[0],
                                    .key = c->at[1],
                                    .value = c->at[2],
                                    .attn_mask = c->at[3],
                                    .key_padding_mask = c->at[4]};
}
static mha_status run_mha(call *c)
{
    return mha_pytorch_mha_forward(c->context, c->module, &c->mha, c->at[5], c->at[6]);
}

static void fill_onnx(call *c)
{
    c->attributes = (mha_onnx_attention_attributes){.struct_size = sizeof c->attributes};
    c->in = (mha_onnx_attention_inputs){.struct_size = sizeof c->in,
                                        .q = c->at[0],
                                        .k = c->at[1],
                                        .v = c->at[2],
                                        .attn_mask = c->at[3],
                                        .past_key = c->at[4],
                                        .past_value = c->at[5]};
    c->out = (mha_onnx_attention_outputs){.struct_size = sizeof c->out,
                                          .y = c->at[6],
                                          .present_key = c->at[7],
                                          .present_value = c->at[8],
                                          .qk_matmul_output = c->at[9]};
}
static void fill_lengths(call *c)
{
    fill_onnx(c);
    c->in.past_key = c->in.past_value = NULL;
    c->out = (mha_onnx_attention_outputs){.struct_size = sizeof c->out, .y = c->at[5]};
    c->in.nonpad_kv_seqlen = c->at[4];
    c->attributes.flags = MHA_ONNX_IS_CAUSAL;
}
static mha_status run_onnx(call *c)
{
    return mha_onnx_attention(c->context, &c->attributes, &c->in, &c->out);
}

static const preset presets[] = {
    {"sdpa",
     fill_sdpa,
     run_sdpa,
     {{"query", MHA_F32, 4, {B, H, T, D}, false},
      {"key", MHA_F32, 4, {B, HK, S, D}, false},
      {"value", MHA_F32, 4, {B, HK, S, DV}, false},
      {"attn_mask", MHA_F32, 4, {B, 1, T, S}, true},
      {"out", MHA_F32, 4, {B, H, T, DV}, false}},
     5,
     4},
    {"mha",
     fill_mha,
     run_mha,
     {{"query", MHA_F32, 3, {B, T, E}, false},
      {"key", MHA_F32, 3, {B, S, E}, false},
      {"value", MHA_F32, 3, {B, S, E}, false},
      {"attn_mask", MHA_F32, 3, {B * H, T, S}, true},
      {"key_padding_mask", MHA_F32, 2, {B, S}, true},
      {"out", MHA_F32, 3, {B, T, E}, false},
      {"weights", MHA_F32, 3, {B, T, S}, true}},
     7,
     5},
    {"onnx",
     fill_onnx,
     run_onnx,
     {{"q", MHA_F32, 4, {B, H, T, D}, false},
      {"k", MHA_F32, 4, {B, HK, S, D}, false},
      {"v", MHA_F32, 4, {B, HK, S, DV}, false},
      {"attn_mask", MHA_F32, 4, {B, 1, T, P + S}, true},
      {"past_key", MHA_F32, 4, {B, HK, P, D}, false},
      {"past_value", MHA_F32, 4, {B, HK, P, DV}, false},
      {"y", MHA_F32, 4, {B, H, T, DV}, false},
      {"present_key", MHA_F32, 4, {B, HK, P + S, D}, true},
      {"present_value", MHA_F32, 4, {B, HK, P + S, DV}, true},
      {"qk_matmul_output", MHA_F32, 4, {B, H, T, P + S}, true}},
     10,
     6},
    {"onnx lengths",
     fill_lengths,
     run_onnx,
     {{"q", MHA_F32, 4, {B, H, T, D}, false},
      {"k", MHA_F32, 4, {B, HK, S, D}, false},
      {"v", MHA_F32, 4, {B, HK, S, DV}, false},
      {"attn_mask", MHA_U8, 2, {T, S - 1}, true},
      {"nonpad_kv_seqlen", MHA_I64, 1, {B}, true},
      {"y", MHA_F32, 4, {B, H, T, DV}, false}},
     6,
     5},
};
enum { PRESETS = sizeof presets / sizeof presets[0] };

/* ---- good calls --------------------------------------------------------------------------------
 */

typedef struct stage {
    const preset *p;
    guarded memory[MOST_TENSORS];
    mha_context *context;
    mha_module *module;
} stage;

static stage stage_make(const preset *p, rng *r, mha_context *context)
{
    stage s = {.p = p, .context = context};
    for (int i = 0; i < p->count; i++) {
        s.memory[i] = guarded_make(r, p->tensor[i].dtype, p->tensor[i].ndim, p->tensor[i].shape, 0);
        int64_t index[MHA_MAX_DIMS] = {0};
        do {
            void *x = guarded_element(&s.memory[i].view, index);
            if (p->tensor[i].dtype == MHA_F32) *(float *)x = rng_normal(r);
            if (p->tensor[i].dtype == MHA_I64) *(int64_t *)x = rng_between(r, 0, S);
        } while (guarded_next(&s.memory[i].view, index));
        guarded_snapshot(&s.memory[i]);
    }
    const mha_module_desc desc = {.struct_size = sizeof desc, .embed_dim = E, .num_heads = H};
    assert_int_equal(mha_module_create(context, &desc, &s.module), MHA_OK);
    return s;
}

static void stage_free(stage *s)
{
    for (int i = 0; i < s->p->count; i++) guarded_free(&s->memory[i]);
    mha_module_destroy(s->module);
}

/* In place: structs point into the call. */
static void call_make(call *c, const stage *s)
{
    *c = (call){
        .context = s->context, .module = s->module, .count = s->p->count, .inputs = s->p->inputs};
    for (int i = 0; i < c->count; i++) {
        c->tensor[i] = s->memory[i].view;
        c->at[i] = &c->tensor[i];
    }
    s->p->fill(c);
}

static void check_refused(const stage *s, const char *what, mha_status status, int expected)
{
    const char *detail = mha_error_detail();
    if (status == MHA_OK || (expected >= 0 && (int)status != expected))
        fail_msg("%s, %s: status %d, expected %d (%s)", s->p->name, what, (int)status, expected,
                 detail);
    if (!*detail || strchr(detail, '\n')) fail_msg("%s, %s: '%s'", s->p->name, what, detail);
    for (int i = 0; i < s->p->count; i++)
        if (!guarded_unchanged(&s->memory[i]))
            fail_msg("%s, %s: changed %s", s->p->name, what, s->p->tensor[i].name);
}

/* ---- tensors -----------------------------------------------------------------------------------
 */

/* Ways to spoil a tensor, each with the status it must give; -1: any error. */
#define SPOIL(name, ...) SPOILER(mha_tensor *x, name, __VA_ARGS__)
SPOIL(no_data, x->data = NULL)
SPOIL(unknown_type, x->dtype = (mha_dtype)99)
SPOIL(integers, x->dtype = MHA_I32)
SPOIL(fewest_dims, x->ndim = -1)
SPOIL(many_dims, x->ndim = 1000)
SPOIL(negative, x->shape[x->ndim - 1] = -1)
SPOIL(longer, x->shape[x->ndim - 1] += 2) /* a mask may be short by one */
SPOIL(first_longer, x->shape[0] += 1)
SPOIL(huge, x->shape[0] = INT64_MAX)
SPOIL(far, x->stride[0] = INT64_MIN)
SPOIL(misaligned, x->data = (char *)x->data + 1)

static const struct {
    const char *name;
    void (*spoil)(mha_tensor *);
    int status;
} spoilers[] = {
    {"data NULL", no_data, MHA_ERR_NULL},
    {"unknown type", unknown_type, MHA_ERR_DTYPE},
    {"integers", integers, MHA_ERR_DTYPE},
    {"-1 dimensions", fewest_dims, MHA_ERR_SHAPE},
    {"1000 dimensions", many_dims, MHA_ERR_SHAPE},
    {"a negative length", negative, MHA_ERR_SHAPE},
    {"a longer last axis", longer, MHA_ERR_SHAPE},
    {"a longer first axis", first_longer, MHA_ERR_SHAPE},
    {"a huge first axis", huge, -1},
    {"a far stride", far, MHA_ERR_SIZE},
    {"misaligned", misaligned, -1},
};

static void every_tensor(void **state)
{
    (void)state;
    mha_context *context = context_with(0);
    rng r = rng_make(rng_run_seed(), 1);
    for (int p = 0; p < PRESETS; p++) {
        stage s = stage_make(&presets[p], &r, context);
        call c;
        for (int i = 0; i < s.p->count; i++)
            for (size_t j = 0; j < sizeof spoilers / sizeof spoilers[0]; j++) {
                char what[80];
                call_make(&c, &s);
                if (spoilers[j].spoil == misaligned && c.tensor[i].dtype == MHA_U8) continue;
                spoilers[j].spoil(&c.tensor[i]);
                snprintf(what, sizeof what, "%s: %s", s.p->tensor[i].name, spoilers[j].name);
                check_refused(&s, what, s.p->run(&c), spoilers[j].status);
            }
        for (int i = 0; i < s.p->count; i++) { /* NULL where it must be there */
            call_make(&c, &s);
            if (s.p->tensor[i].optional) continue;
            c.at[i] = NULL;
            s.p->fill(&c);
            check_refused(&s, s.p->tensor[i].name, s.p->run(&c), -1);
        }
        call_make(&c, &s); /* and nothing was wrong with the rest */
        if (s.p->run(&c) != MHA_OK) fail_msg("%s: %s", s.p->name, mha_error_detail());
        stage_free(&s);
    }
}

/* Outputs in the memory of inputs and of each other. */
static void every_overlap(void **state)
{
    (void)state;
    mha_context *context = context_with(0);
    rng r = rng_make(rng_run_seed(), 2);
    for (int p = 0; p < PRESETS; p++) {
        stage s = stage_make(&presets[p], &r, context);
        for (int i = s.p->inputs; i < s.p->count; i++)
            for (int j = 0; j < i; j++) {
                call c;
                char what[80];
                call_make(&c, &s);
                /* the other tensor, wherever it was, is now at the output's first element */
                c.tensor[j].data = c.tensor[i].data;
                snprintf(what, sizeof what, "%s in %s", s.p->tensor[i].name, s.p->tensor[j].name);
                bool lengths = c.tensor[j].dtype == MHA_I64; /* which are nonsense then */
                check_refused(&s, what, s.p->run(&c), lengths ? -1 : MHA_ERR_OVERLAP);
            }
        stage_free(&s);
    }
}

/* ---- arguments ---------------------------------------------------------------------------------
 */

#define CHANGE(name, change)  \
    static void name(call *c) \
    {                         \
        change;               \
    }
CHANGE(sdpa_flags, c->sdpa.flags |= 1u << 30)
CHANGE(sdpa_size, c->sdpa.struct_size = 0)
CHANGE(sdpa_dropout, c->sdpa.dropout_p = 1.5f)
CHANGE(sdpa_scale, (c->sdpa.scale = NAN, c->sdpa.flags |= MHA_SDPA_SCALE_GIVEN))
CHANGE(sdpa_causal, c->sdpa.flags |= MHA_SDPA_IS_CAUSAL)
CHANGE(sdpa_groups, c->sdpa.flags &= ~(uint32_t)MHA_SDPA_ENABLE_GQA)
CHANGE(sdpa_context, c->context = NULL)
CHANGE(mha_flags, c->mha.flags |= 1u << 30)
CHANGE(mha_size, c->mha.struct_size = 4)
CHANGE(mha_reserved, c->mha.reserved = 1)
CHANGE(mha_dropout, c->mha.dropout = -0.1f)
CHANGE(mha_hint, (c->mha.flags |= MHA_PYTORCH_IS_CAUSAL, c->mha.attn_mask = NULL))
CHANGE(mha_layout, c->mha.flags &= ~(uint32_t)MHA_PYTORCH_BATCH_FIRST)
CHANGE(mha_module_null, c->module = NULL)
CHANGE(onnx_flags, c->attributes.flags |= 1u << 30)
CHANGE(onnx_size, c->in.struct_size = 0)
CHANGE(onnx_in, c->in.reserved = 1)
CHANGE(onnx_out, c->out.reserved = 1)
CHANGE(onnx_opset, c->attributes.opset = 22)
CHANGE(onnx_later, c->attributes.opset = 26)
CHANGE(onnx_precision, c->attributes.softmax_precision = 7)
CHANGE(onnx_mode, c->attributes.qk_matmul_output_mode = (mha_onnx_qk_mode)4)
CHANGE(onnx_scale, c->attributes.scale = -1)
CHANGE(onnx_nan, c->attributes.scale = NAN)
CHANGE(onnx_softcap, c->attributes.softcap = -1)
CHANGE(onnx_heads, c->attributes.q_num_heads = H)
CHANGE(onnx_window, c->attributes.left_window_size = 3)
CHANGE(onnx_left, (c->attributes.flags |= MHA_ONNX_WINDOW, c->attributes.left_window_size = -2))
CHANGE(onnx_early, (c->attributes.flags |= MHA_ONNX_WINDOW, c->attributes.opset = 24))
CHANGE(onnx_half_past, c->in.past_value = NULL)
CHANGE(lengths_early, c->attributes.opset = 23)
CHANGE(lengths_past, (c->in.past_key = &c->tensor[1], c->in.past_value = &c->tensor[2]))
CHANGE(lengths_negative, ((int64_t *)c->tensor[4].data)[1] = -1)
CHANGE(lengths_beyond, ((int64_t *)c->tensor[4].data)[1] = S + 1)

static const struct {
    int preset;
    void (*change)(call *);
    int status;
    const char *word;
} contradictions[] = {
    {0, sdpa_flags, MHA_ERR_UNSUPPORTED, "flags"},
    {0, sdpa_size, MHA_ERR_ARGUMENT, "struct_size"},
    {0, sdpa_dropout, MHA_ERR_ARGUMENT, "dropout_p is 1.5"},
    {0, sdpa_scale, MHA_ERR_ARGUMENT, "scale"},
    {0, sdpa_causal, MHA_ERR_ARGUMENT, "is_causal"},
    {0, sdpa_groups, MHA_ERR_SHAPE, "MHA_SDPA_ENABLE_GQA"},
    {0, sdpa_context, MHA_ERR_NULL, "context"},
    {1, mha_flags, MHA_ERR_UNSUPPORTED, "flags"},
    {1, mha_size, MHA_ERR_ARGUMENT, "struct_size"},
    {1, mha_reserved, MHA_ERR_UNSUPPORTED, "reserved is 1"},
    {1, mha_dropout, MHA_ERR_ARGUMENT, "dropout is -0.1"},
    {1, mha_hint, MHA_ERR_ARGUMENT, "is_causal"},
    {1, mha_layout, MHA_ERR_SHAPE, "5"},
    {1, mha_module_null, MHA_ERR_NULL, "module"},
    {2, onnx_flags, MHA_ERR_UNSUPPORTED, "flags"},
    {2, onnx_size, MHA_ERR_ARGUMENT, "struct_size"},
    {2, onnx_in, MHA_ERR_UNSUPPORTED, "reserved"},
    {2, onnx_out, MHA_ERR_UNSUPPORTED, "reserved"},
    {2, onnx_opset, MHA_ERR_UNSUPPORTED, "opset is 22"},
    {2, onnx_later, MHA_ERR_UNSUPPORTED, "opset is 26"},
    {2, onnx_precision, MHA_ERR_ARGUMENT, "softmax_precision is 7"},
    {2, onnx_mode, MHA_ERR_ARGUMENT, "qk_matmul_output_mode is 4"},
    {2, onnx_scale, MHA_ERR_ARGUMENT, "scale is -1"},
    {2, onnx_nan, MHA_ERR_ARGUMENT, "scale"},
    {2, onnx_softcap, MHA_ERR_ARGUMENT, "softcap is -1"},
    {2, onnx_heads, MHA_ERR_ARGUMENT, "4 dimensions"},
    {2, onnx_window, MHA_ERR_ARGUMENT, "MHA_ONNX_WINDOW"},
    {2, onnx_left, MHA_ERR_ARGUMENT, "left_window_size is -2"},
    {2, onnx_early, MHA_ERR_UNSUPPORTED, "opset 24"},
    {2, onnx_half_past, MHA_ERR_ARGUMENT, "past_value"},
    {3, lengths_early, MHA_ERR_UNSUPPORTED, "opset 23"},
    {3, lengths_past, MHA_ERR_ARGUMENT, "nonpad_kv_seqlen"},
    {3, lengths_negative, MHA_ERR_ARGUMENT, "nonpad_kv_seqlen[1] is -1"},
    {3, lengths_beyond, MHA_ERR_ARGUMENT, "nonpad_kv_seqlen[1] is 6"},
};

static void every_contradiction(void **state)
{
    (void)state;
    mha_context *context = context_with(0);
    rng r = rng_make(rng_run_seed(), 3);
    for (size_t i = 0; i < sizeof contradictions / sizeof contradictions[0]; i++) {
        stage s = stage_make(&presets[contradictions[i].preset], &r, context);
        call c;
        call_make(&c, &s);
        contradictions[i].change(&c);
        for (int j = 0; j < s.p->count; j++) guarded_snapshot(&s.memory[j]);
        mha_status status = s.p->run(&c);
        check_refused(&s, contradictions[i].word, status, contradictions[i].status);
        printf("  %2d %s\n", (int)status, mha_error_detail());
        if (!strstr(mha_error_detail(), contradictions[i].word))
            fail_msg("%s: '%s' does not say '%s'", s.p->name, mha_error_detail(),
                     contradictions[i].word);
        stage_free(&s);
    }
}

/* ---- memory ------------------------------------------------------------------------------------
 */

/* What makes a call take scratch of its own: several slices and lowest floats; two float masks and
 * dropout; a past without presents; a short mask. */
static void call_hungry(call *c, const stage *s)
{
    call_make(c, s);
    if (s->p->fill == fill_sdpa) {
        for (int i = 0; i < c->count; i++) { /* a fifth dimension, so that the batch is walked */
            mha_tensor *x = &c->tensor[i];
            memmove(x->shape + 1, x->shape, 4 * sizeof(int64_t));
            memmove(x->stride + 1, x->stride, 4 * sizeof(int64_t));
            x->ndim = 5, x->shape[1] = 1;
        }
    }
    if (s->p->fill == fill_mha) c->mha.flags |= MHA_PYTORCH_TRAINING, c->mha.dropout = 0.5f;
    if (s->p->fill == fill_onnx) c->out.present_key = c->out.present_value = NULL;
}

static void failed_allocations_are_reported(void **state)
{
    (void)state;
    for (int p = 0; p < PRESETS; p++) {
        int64_t refused = 0;
        for (int64_t n = 0;; n++) {
            failing_alloc memory = failing_alloc_make();
            mha_context *context;
            assert_int_equal(failing_context(&memory, 1, MHA_ISA_AUTO, &context), MHA_OK);
            rng r = rng_make(rng_run_seed(), 4);
            stage s = stage_make(&presets[p], &r, context);
            call c;
            call_hungry(&c, &s);
            if (c.tensor[3].dtype == MHA_F32) {
                *(float *)c.tensor[3].data = -3e38f;
                guarded_snapshot(&s.memory[3]);
            }
            memory.fail_at = memory.calls + n;
            memory.fail_after = true;
            mha_status status = s.p->run(&c);
            if (status != MHA_OK) check_refused(&s, "no memory", status, MHA_ERR_NOMEM);
            refused += status != MHA_OK;
            stage_free(&s);
            mha_context_destroy(context);
            assert_int_equal(memory.live, 0);
            assert_int_equal(memory.mistakes, 0);
            if (status == MHA_OK) break;
        }
        printf("  %s: %lld allocations\n", presets[p].name, (long long)refused);
        assert_true(refused > 0);
    }
}

/* A second call allocates nothing. */
static void steady_state(void **state)
{
    (void)state;
    for (int p = 0; p < PRESETS; p++) {
        failing_alloc memory = failing_alloc_make();
        mha_context *context;
        assert_int_equal(failing_context(&memory, 1, MHA_ISA_AUTO, &context), MHA_OK);
        rng r = rng_make(rng_run_seed(), 5);
        stage s = stage_make(&presets[p], &r, context);
        call c;
        int64_t before = 0;
        for (int i = 0; i < 3; i++) {
            call_hungry(&c, &s);
            assert_int_equal(s.p->run(&c), MHA_OK);
            if (i == 1) before = memory.calls;
        }
        assert_int_equal(memory.calls, before);
        stage_free(&s);
        mha_context_destroy(context);
    }
}

RUN_TESTS(TEST(every_tensor), TEST(every_overlap), TEST(every_contradiction),
          TEST(failed_allocations_are_reported), TEST(steady_state))
