/* A module's parameters as a state_dict in safetensors: saving, loading, and every error.
 */
#include "support/expect.h"
#include "support/guarded.h"
#include "support/one_context.h"
#include "support/suite.h"
#include "support/temp_files.h"

#include <multihead/io.h>
#include <multihead/state.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static mha_module *make(mha_module_desc d)
{
    mha_module *module = NULL;
    d.struct_size = sizeof d;
    expect_ok(mha_module_create(context, &d, &module));
    return module;
}

/* Parameter i of the module; the caller frees the data. */
static mha_tensor get(const mha_module *module, int64_t i, mha_module_parameter *p)
{
    int64_t count;
    assert_true(mha_module_parameter_at(module, i, p));
    mha_tensor t = mha_tensor_contiguous(NULL, MHA_F32, p->ndim, p->shape);
    expect_ok(mha_tensor_count(&t, &count));
    t.data = malloc((size_t)count * sizeof(float));
    assert_non_null(t.data);
    expect_ok(mha_module_get_parameter(module, p->name, &t));
    return t;
}

static void set_by_chance(mha_module *module, uint64_t stream)
{
    rng r = rng_make(rng_run_seed(), stream);
    mha_module_parameter p;
    for (int64_t i = 0; mha_module_parameter_at(module, i, &p); i++) {
        mha_tensor t = get(module, i, &p);
        int64_t count;
        expect_ok(mha_tensor_count(&t, &count));
        for (int64_t n = 0; n < count; n++) ((float *)t.data)[n] = rng_normal(&r);
        expect_ok(mha_module_set_parameter(module, p.name, &t));
        free(t.data);
    }
}

static bool same_parameters(const mha_module *a, const mha_module *b)
{
    mha_module_parameter p;
    bool same = true;
    for (int64_t i = 0; same && mha_module_parameter_at(a, i, &p); i++) {
        mha_tensor x = get(a, i, &p), y = get(b, i, &p);
        same = guarded_same_bits(&x, &y, false);
        free(x.data);
        free(y.data);
    }
    return same;
}

/* ---- saving and loading --------------------------------------------------------------------- */

static void round_trips(void)
{
    const mha_module_desc descs[] = {
        {.embed_dim = 12, .num_heads = 3},
        {.embed_dim = 12, .num_heads = 3, .flags = MHA_MODULE_BIAS_KV | MHA_MODULE_NO_OUT_BIAS},
        {.embed_dim = 12, .num_heads = 6, .kv_heads = 2, .value_head_dim = 3},
        {.embed_dim = 7, .num_heads = 1, .key_dim = 5, .flags = MHA_MODULE_NO_QKV_BIAS},
    };
    for (size_t i = 0; i < sizeof descs / sizeof descs[0]; i++) {
        mha_module *from = make(descs[i]), *to = make(descs[i]);
        set_by_chance(from, i);
        expect_ok(mha_module_save_state(from, temp_path("state.safetensors"), "a.b."));
        assert_false(same_parameters(from, to));
        expect_ok(mha_module_load_state(to, temp_path("state.safetensors"), "a.b."));
        assert_true(same_parameters(from, to));
        expect_ok(mha_module_save_state(from, temp_path("plain.safetensors"), NULL));
        set_by_chance(to, 100);
        expect_ok(mha_module_load_state(to, temp_path("plain.safetensors"), NULL));
        assert_true(same_parameters(from, to));
        mha_module_destroy(from);
        mha_module_destroy(to);
    }
}

/* The file has names in a state_dict's order, f32 tensors, and the metadata that readers of
 * safetensors require. */
static void file_contents(void)
{
    mha_module *module =
        make((mha_module_desc){.embed_dim = 4, .num_heads = 2, .flags = MHA_MODULE_BIAS_KV});
    expect_ok(mha_module_save_state(module, temp_path("state.safetensors"), "x."));
    mha_safetensors *file;
    expect_ok(mha_safetensors_open(temp_path("state.safetensors"), &file));
    static const char *const names[] = {"x.in_proj_weight", "x.in_proj_bias",    "x.bias_k",
                                        "x.bias_v",         "x.out_proj.weight", "x.out_proj.bias"};
    assert_int_equal(mha_safetensors_count(file), 6);
    for (int i = 0; i < 6; i++) {
        mha_tensor t;
        int64_t at = mha_safetensors_find(file, names[i]);
        assert_true(at >= 0);
        expect_ok(mha_safetensors_tensor(file, at, &t));
        assert_int_equal(t.dtype, MHA_F32);
    }
    assert_string_equal(mha_safetensors_metadata(file, "format"), "pt");
    mha_safetensors_close(file);
    mha_module_destroy(module);
}

/* Other floating types are converted: each element is exact or rounded once. */
static void other_types(void)
{
    static const mha_dtype types[] = {MHA_F16, MHA_BF16, MHA_F64};
    static const char *const names[] = {"in_proj_weight", "out_proj.weight"};
    mha_module_desc d = {.embed_dim = 2, .num_heads = 1};
    d.flags = MHA_MODULE_NO_QKV_BIAS | MHA_MODULE_NO_OUT_BIAS;
    for (int i = 0; i < 3; i++) {
        mha_module *module = make(d);
        float in[12], out[12];
        double wide[12];
        for (int n = 0; n < 12; n++) in[n] = 0.5f * (float)n, wide[n] = (double)in[n] * (1 + 1e-12);
        uint16_t half[12];
        const mha_tensor from = mha_tensor_contiguous(in, MHA_F32, 2, (int64_t[]){6, 2});
        mha_tensor to = mha_tensor_contiguous(half, types[i], 2, (int64_t[]){6, 2});
        if (types[i] == MHA_F64)
            to.data = wide;
        else
            expect_ok(mha_tensor_convert(&from, &to));
        mha_tensor tensors[2] = {to, to};
        tensors[1].shape[0] = 2;
        expect_ok(mha_safetensors_write(temp_path("t.safetensors"), names, tensors, 2, NULL));
        expect_ok(mha_module_load_state(module, temp_path("t.safetensors"), ""));
        const mha_tensor got = mha_tensor_contiguous(out, MHA_F32, 2, (int64_t[]){6, 2});
        expect_ok(mha_module_get_parameter(module, "in_proj_weight", &got));
        assert_memory_equal(in, out, sizeof in);
        mha_module_destroy(module);
    }
}

/* ---- errors --------------------------------------------------------------------------------- */

/* The tensors of a file that is valid except for one of them. */
typedef struct content {
    const char *name[5];
    mha_tensor tensor[5];
    int64_t count;
} content;

static void misuse_is_refused(void)
{
    static float memory[64];
    static int32_t numbers[64];
    const mha_module_desc d = {.embed_dim = 4, .num_heads = 2};
    mha_module *module = make(d), *before = make(d);
    set_by_chance(module, 7);
    set_by_chance(before, 7);
    const content right = {
        {"p.in_proj_weight", "p.in_proj_bias", "p.out_proj.weight", "p.out_proj.bias", "p.bias_k"},
        {mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){12, 4}),
         mha_tensor_contiguous(memory, MHA_F32, 1, (int64_t[]){12}),
         mha_tensor_contiguous(memory, MHA_F32, 2, (int64_t[]){4, 4}),
         mha_tensor_contiguous(memory, MHA_F32, 1, (int64_t[]){4}),
         mha_tensor_contiguous(memory, MHA_F32, 3, (int64_t[]){1, 1, 4})},
        4};
    const char *path = temp_path("wrong.safetensors");
#define LOAD(prefix)                                                          \
    (expect_ok(mha_safetensors_write(path, c.name, c.tensor, c.count, NULL)), \
     mha_module_load_state(module, path, prefix))
#define ROW(...) expect_spoiled(c, LOAD("p."), __VA_ARGS__)
    content c = right;
    expect_error(mha_module_load_state(NULL, path, ""), MHA_ERR_NULL, "module");
    expect_error(mha_module_load_state(module, NULL, ""), MHA_ERR_NULL, "path");
    expect_error(mha_module_load_state(module, temp_path("none"), ""), MHA_ERR_FILE, "none");
    ROW(MHA_ERR_MODEL, "'p.bias_k' is unexpected", c.count = 5);
    ROW(MHA_ERR_MODEL, "'p.out_proj.bias' is missing", c.count = 3);
    expect_error(LOAD("q."), MHA_ERR_MODEL, "'q.in_proj_weight' is missing");
    expect_error(LOAD(NULL), MHA_ERR_MODEL, "'in_proj_weight' is missing");
    expect_error(LOAD("p"), MHA_ERR_MODEL, "'pin_proj_weight' is missing");
    ROW(MHA_ERR_MODEL, "'p.out_proj.bias' has shape [3], the module has [4]",
        c.tensor[3].shape[0] = 3);
    ROW(MHA_ERR_MODEL, "has shape [4], the module has [4, 4]", c.tensor[2].ndim = 1);
    ROW(MHA_ERR_UNSUPPORTED, "'p.out_proj.bias' is i32", c.tensor[3].dtype = MHA_I32,
        c.tensor[3].data = numbers);
    const char *broken = temp_write("broken.safetensors", "garbage", 7);
    expect_error(mha_module_load_state(module, broken, ""), MHA_ERR_FORMAT, "broken");
    assert_true(same_parameters(module, before)); /* after every error */
    c = right;
    expect_ok(LOAD("p."));
    assert_false(same_parameters(module, before));
#undef ROW
#undef LOAD
    expect_error(mha_module_save_state(NULL, path, ""), MHA_ERR_NULL, "module");
    expect_error(mha_module_save_state(module, NULL, ""), MHA_ERR_NULL, "path");
    expect_error(mha_module_save_state(module, temp_path("no/such/folder"), ""), MHA_ERR_WRITE,
                 "folder");
    expect_error(mha_module_save_state(module, path, "\xFF"), MHA_ERR_UTF8, "UTF-8");
    expect_ok(mha_module_load_state(module, path, "p.")); /* the older file is unchanged */
    mha_module_destroy(module);
    mha_module_destroy(before);
}

/* A file with flipped bits gives an error or its numbers, never a partly loaded module. */
static void hostile_files(void)
{
    const mha_module_desc d = {.embed_dim = 4, .num_heads = 2, .flags = MHA_MODULE_BIAS_KV};
    mha_module *module = make(d), *before = make(d);
    set_by_chance(before, 1);
    expect_ok(mha_module_save_state(before, temp_path("good.safetensors"), "p."));
    size_t size;
    char *good = temp_read(temp_path("good.safetensors"), &size);
    int loaded = 0;
    for (int i = 0; i < rng_cases(300, 20000); i++) {
        unsigned char *bad = malloc(size);
        size_t length = size;
        assert_non_null(bad);
        memcpy(bad, good, size);
        mutate(bad, &length, (uint32_t)i);
        set_by_chance(module, 2);
        set_by_chance(before, 2);
        if (mha_module_load_state(module, temp_write("bad.safetensors", bad, length), "p."))
            assert_true(same_parameters(module, before));
        else
            loaded++;
        free(bad);
    }
    printf("  %d of them could be loaded\n", loaded);
    free(good);
    mha_module_destroy(module);
    mha_module_destroy(before);
}

RUN_TESTS_BETWEEN(context_and_folder_begin, context_and_folder_end, TEST(round_trips),
                  TEST(file_contents), TEST(other_types), TEST(misuse_is_refused),
                  TEST(hostile_files))
