/* Encoders and models of two towers in the metadata of GGUF files (gguf_reading.h). */
#include "io/file.h"
#include "model/gguf_reading.h"

#include <multihead/component.h>

#include <string.h>

/* Give a field a second name, which the family reads. */
static bool rename_field(const mhai_gguf_reading *r, const char *from, const char *to)
{
    json_t *value = json_object_get(r->root, from);
    const char *key = json_string_value(json_object_get(r->names, from));
    return !value || (mhai_put(r->root, to, json_incref(value)) &&
                      (!key || mhai_put_text(r->names, to, key)));
}

static bool rename_all(const mhai_gguf_reading *r, const char *const names[][2], int count)
{
    bool good = true;
    for (int i = 0; i < count; i++) good = good && rename_field(r, names[i][0], names[i][1]);
    return good;
}

/* The number of rows of a table; `usual` if the file lacks it. */
static mha_status count_rows(const mhai_gguf_reading *r, const char *name, int64_t usual,
                             int64_t *rows)
{
    const int64_t at = mha_gguf_find(r->file, name);
    mha_gguf_tensor table;
    *rows = usual;
    if (at < 0) return MHA_OK;
    MHA_TRY(mha_gguf_describe(r->file, at, &table));
    *rows = table.dims[1];
    return MHA_OK;
}

mha_status mhai_gguf_encoder(const mhai_gguf_reading *r)
{
    static const char *const names[][2] = {{"sliding_window", "local_attention"},
                                           {"rope_theta", "global_rope_theta"},
                                           {"rope_local_base_freq", "local_rope_theta"}};
    const bool biased = mha_gguf_find(r->file, "token_embd_norm.bias") >= 0;
    mha_gguf_value value;
    bool causal = false;
    int64_t types;
    if (mhai_gguf_key(r, "attention.causal", &value)) MHA_TRY(mha_gguf_bool(&value, 0, &causal));
    if (causal) return mhai_gguf_refuse(r, &value, "is true, which is not supported");
    MHA_TRY(count_rows(r, "token_types.weight", 1, &types));
    bool good = mhai_put_count(r->root, "type_vocab_size", types) &&
                mhai_put_bool(r->root, "norm_bias", biased) &&
                mhai_put_bool(r->root, "use_bidirectional_attention", true);
    if (!(r->traits & MHAI_GGUF_FIRST)) return good ? MHA_OK : MHA_NO_MEMORY("model");
    good = good && rename_all(r, names, 3);
    json_object_del(r->root, "sliding_window");
    return good ? MHA_OK : MHA_NO_MEMORY("model");
}

mha_status mhai_gguf_towers(const mhai_gguf_reading *r)
{
    static const char *const names[][2] = {{"hidden_size", "d_model"},
                                           {"num_hidden_layers", "num_layers"},
                                           {"num_attention_heads", "num_heads"},
                                           {"head_dim", "d_kv"},
                                           {"intermediate_size", "d_ff"}};
    static const struct {
        const char *key, *field;
    } counts[] = {{"decoder_block_count", "num_decoder_layers"},
                  {"attention.relative_buckets_count", "relative_attention_num_buckets"}};
    const bool gated = mha_gguf_find(r->file, "enc.blk.0.ffn_gate.weight") >= 0;
    /* the first version scales the input of its output, the token table, and has no gates */
    const bool scaled = !gated && mha_gguf_find(r->file, "output.weight") < 0;
    mha_gguf_value value;
    for (int i = 0; i < 2; i++)
        if (mhai_gguf_key(r, counts[i].key, &value))
            MHA_TRY(mhai_gguf_take(r, &value, false, r->root, counts[i].field));
    return rename_all(r, names, 5) &&
                   mhai_put_text(r->root, "feed_forward_proj", gated ? "gated-gelu" : "relu") &&
                   mhai_put_bool(r->root, "scale_decoder_outputs", scaled) &&
                   mhai_put_bool(r->root, "is_encoder_decoder", strcmp(r->name, "t5encoder") != 0)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}
