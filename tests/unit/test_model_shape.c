/* The shape of a model's attention from config.json: every architecture's names and biases,
 * optional fields, and errors with their statuses. Errors leave the caller's struct unchanged.
 */
#include <multihead/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/expect.h"
#include "support/suite.h"
#include "support/temp_files.h"

enum { C = MHA_MODEL_SHAPE_CAUSAL, Q = MHA_MODEL_SHAPE_QKV_BIAS, O = MHA_MODEL_SHAPE_OUT_BIAS };

#define USUAL "\"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 8"

/* The result of mha_model_read_shape() for a config.json with this text. */
static mha_status read_text(const char *text, size_t size, mha_model_shape *shape)
{
    temp_write("config.json", text, size);
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", temp_path("config.json"));
    *strrchr(folder, '/') = 0;
    return mha_model_read_shape(folder, shape);
}

static mha_status read_fields(const char *fields, mha_model_shape *shape)
{
    char text[1024];
    int length = snprintf(text, sizeof text, "{%s}", fields);
    return read_text(text, (size_t)length, shape);
}

static void architectures(void)
{
    static const struct {
        const char *fields, *name;
        int64_t layers, heads, kv_heads, embed, head_dim, positions, window;
        uint32_t flags;
    } cases[] = {
        {"\"model_type\": \"bert\", " USUAL ", \"max_position_embeddings\": 512", "bert", 3, 8, 8,
         64, 8, 512, 0, Q | O},
        {"\"model_type\": \"bert\", " USUAL ", \"is_decoder\": true", "bert", 3, 8, 8, 64, 8, 0, 0,
         C | Q | O},
        {"\"model_type\": \"distilbert\", \"dim\": 48, \"n_layers\": 6, \"n_heads\": 12",
         "distilbert", 6, 12, 12, 48, 4, 0, 0, Q | O},
        {"\"model_type\": \"gpt2\", \"n_embd\": 48, \"n_layer\": 2, \"n_head\": 4, "
         "\"n_positions\": 32",
         "gpt2", 2, 4, 4, 48, 12, 32, 0, C | Q | O},
        {"\"model_type\": \"gpt_neox\", " USUAL, "gpt_neox", 3, 8, 8, 64, 8, 0, 0, C | Q | O},
        {"\"model_type\": \"gpt_neox\", " USUAL ", \"attention_bias\": false", "gpt_neox", 3, 8, 8,
         64, 8, 0, 0, C},
        {"\"model_type\": \"llama\", " USUAL ", \"num_key_value_heads\": 2", "llama", 3, 8, 2, 64,
         8, 0, 0, C},
        {"\"model_type\": \"llama\", " USUAL ", \"attention_bias\": true, "
         "\"num_key_value_heads\": null",
         "llama", 3, 8, 8, 64, 8, 0, 0, C | Q | O},
        {"\"model_type\": \"mistral\", " USUAL ", \"sliding_window\": 16, \"head_dim\": 32",
         "mistral", 3, 8, 8, 64, 32, 0, 16, C},
        {"\"model_type\": \"mixtral\", " USUAL ", \"sliding_window\": null", "mixtral", 3, 8, 8, 64,
         8, 0, 0, C},
        {"\"model_type\": \"qwen2\", " USUAL
         ", \"sliding_window\": 16, \"use_sliding_window\": false",
         "qwen2", 3, 8, 8, 64, 8, 0, 0, C | Q},
        {"\"model_type\": \"gemma\", \"hidden_size\": 65, \"num_hidden_layers\": 3, "
         "\"num_attention_heads\": 8, \"num_key_value_heads\": 1, \"head_dim\": 16",
         "gemma", 3, 8, 1, 65, 16, 0, 0, C},
        {"\"model_type\": \"bart\", \"d_model\": 48, \"encoder_layers\": 2, \"decoder_layers\": 3, "
         "\"encoder_attention_heads\": 4, \"decoder_attention_heads\": 6, "
         "\"max_position_embeddings\": 80",
         "bart", 2, 4, 4, 48, 12, 80, 0, Q | O},
        {"\"model_type\": \"multihead\", \"embed_dim\": 64, \"num_layers\": 3, \"num_heads\": 8, "
         "\"kv_heads\": 4, \"head_dim\": 8, \"max_length\": 48, \"causal\": true",
         "multihead", 3, 8, 4, 64, 8, 48, 0, C},
        {"\"model_type\": \"multihead\", \"embed_dim\": 64, \"num_layers\": 3, \"num_heads\": 8, "
         "\"bias\": true",
         "multihead", 3, 8, 8, 64, 8, 0, 0, Q | O},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mha_model_shape s = {.struct_size = sizeof s};
        mha_status status = read_fields(cases[i].fields, &s);
        if (status) fail_msg("%s: %s", cases[i].fields, mha_error_detail());
        assert_string_equal(s.architecture, cases[i].name);
        assert_int_equal(s.layers, cases[i].layers);
        assert_int_equal(s.heads, cases[i].heads);
        assert_int_equal(s.kv_heads, cases[i].kv_heads);
        assert_int_equal(s.embed_dim, cases[i].embed);
        assert_int_equal(s.head_dim, cases[i].head_dim);
        assert_int_equal(s.max_positions, cases[i].positions);
        assert_int_equal(s.window, cases[i].window);
        assert_int_equal(s.flags, cases[i].flags);
        assert_int_equal(s.struct_size, sizeof s);
    }
}

/* Checks the status, a word of the message, and that the caller's struct is unchanged. */
static void refused(const char *fields, mha_status wanted, const char *word)
{
    mha_model_shape s, before;
    memset(&s, 0x5a, sizeof s);
    s.struct_size = sizeof s;
    before = s;
    mha_status status = read_fields(fields, &s);
    if (status != wanted || !strstr(mha_error_detail(), word))
        fail_msg("%s: %s: %s", fields, mha_status_text(status), mha_error_detail());
    assert_memory_equal(&s, &before, sizeof s);
}

static void refusals(void)
{
    refused("", MHA_ERR_MODEL, "model_type");
    refused("\"model_type\": 3", MHA_ERR_MODEL, "model_type");
    refused("\"model_type\": \"hopfield\", " USUAL, MHA_ERR_UNSUPPORTED, "is not known");
    refused("\"model_type\": \"bert\", \"hidden_size\": 64", MHA_ERR_MODEL, "num_hidden_layers");
    refused("\"model_type\": \"llama\", \"hidden_size\": 65, \"num_hidden_layers\": 3, "
            "\"num_attention_heads\": 8",
            MHA_ERR_MODEL, "multiple");
    refused("\"model_type\": \"llama\", " USUAL ", \"num_key_value_heads\": 3", MHA_ERR_MODEL,
            "evenly");
    refused("\"model_type\": \"llama\", " USUAL ", \"num_key_value_heads\": 16", MHA_ERR_MODEL,
            "evenly");
    refused("\"model_type\": \"llama\", " USUAL ", \"num_key_value_heads\": 0", MHA_ERR_MODEL,
            "num_key_value_heads");
    refused("\"model_type\": \"llama\", " USUAL ", \"head_dim\": 2.5", MHA_ERR_MODEL, "head_dim");
    refused("\"model_type\": \"llama\", " USUAL ", \"head_dim\": 99999999999", MHA_ERR_MODEL,
            "head_dim");
    refused("\"model_type\": \"llama\", " USUAL ", \"attention_bias\": \"no\"", MHA_ERR_MODEL,
            "attention_bias");
    refused("\"model_type\": \"mistral\", " USUAL ", \"sliding_window\": -1", MHA_ERR_MODEL,
            "sliding_window");
    refused("\"model_type\": ", MHA_ERR_FORMAT, "config.json");
}

static void arguments(void)
{
    mha_model_shape s = {.struct_size = sizeof s};
    assert_int_equal(mha_model_read_shape(NULL, &s), MHA_ERR_NULL);
    assert_int_equal(mha_model_read_shape(".", NULL), MHA_ERR_NULL);
    assert_int_equal(mha_model_read_shape("no-such-folder", &s), MHA_ERR_FILE);
    assert_non_null(strstr(mha_error_detail(), "no-such-folder"));
    s.struct_size = 8;
    assert_int_equal(mha_model_read_shape(".", &s), MHA_ERR_ARGUMENT);
    const char list[] = "[1, 2]";
    s.struct_size = sizeof s;
    assert_int_equal(read_text(list, sizeof list - 1, &s), MHA_ERR_MODEL);
    struct newer {
        mha_model_shape shape;
        int64_t more;
    } newer = {.shape = {.struct_size = sizeof newer}, .more = 7};
    expect_ok(read_fields("\"model_type\": \"llama\", " USUAL, &newer.shape));
    assert_int_equal(newer.more, 0); /* fields unknown to this library are zero */
    assert_int_equal(newer.shape.struct_size, sizeof newer);
}

/* Replaces every byte of a valid file, one at a time. The call must not crash, and must return a
 * documented status. */
static void mutations(void)
{
    const char good[] = "{\"model_type\": \"mistral\", " USUAL
                        ", \"num_key_value_heads\": 2, \"sliding_window\": 16}";
    for (size_t i = 0; i < sizeof good - 1; i++)
        for (int kind = 0; kind < 3; kind++) {
            char text[sizeof good];
            memcpy(text, good, sizeof good);
            text[i] = kind == 0 ? '9' : kind == 1 ? '"' : '\xff';
            mha_model_shape s = {.struct_size = sizeof s};
            mha_status status = read_text(text, sizeof good - 1, &s);
            if (status != MHA_OK && status != MHA_ERR_MODEL && status != MHA_ERR_FORMAT &&
                status != MHA_ERR_UNSUPPORTED)
                fail_msg("byte %zu: %s", i, mha_error_detail());
        }
}

RUN_TESTS_BETWEEN(temp_begin, temp_end, TEST(architectures), TEST(refusals), TEST(arguments),
                  TEST(mutations))
