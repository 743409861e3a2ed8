/* Latent attention in the metadata of GGUF files (gguf_reading.h). */
#include "io/file.h"
#include "model/gguf_reading.h"

#include <multihead/component.h>

/* Read the first of two keys that the file has. New files describe the absorbed form, one key/value
 * head as wide as the latent, and keep the sizes of heads in keys of their own. */
static mha_status read_size(const mhai_gguf_reading *r, const char *key, const char *older,
                            int64_t *size)
{
    mha_gguf_value value;
    if (!mhai_gguf_key(r, key, &value) && !mhai_gguf_key(r, older, &value))
        return mhai_gguf_missing(r, key);
    return mha_gguf_integer(&value, 0, 1, MHAI_MOST_WIDTH, size);
}

static bool put_usual(const mhai_gguf_reading *r, const char *field, int64_t usual)
{
    return json_object_get(r->root, field) || mhai_put_count(r->root, field, usual);
}

mha_status mhai_gguf_latent(const mhai_gguf_reading *r)
{
    static const char turned[] = "rope.dimension_count";
    const int64_t heads = mhai_gguf_count(r, "num_attention_heads");
    const bool groups = mhai_gguf_count(r, "n_group") > 1;
    mha_gguf_value found;
    int64_t key, rotated, value;
    MHA_TRY(read_size(r, "attention.key_length_mla", "attention.key_length", &key));
    if (mhai_gguf_key(r, "attention.value_length_mla", &found) ||
        mhai_gguf_key(r, "attention.value_length", &found) || heads < 1)
        MHA_TRY(read_size(r, "attention.value_length_mla", "attention.value_length", &value));
    else
        value = mhai_gguf_count(r, "hidden_size") / heads; /* llama.cpp's default */
    MHA_TRY(read_size(r, turned, turned, &rotated));
    if (rotated >= key)
        return mhai_path_fail(MHA_ERR_MODEL, r->path,
                              "'%s.%s' is %lld, expected less than %lld, the size of a key",
                              r->name, turned, (long long)rotated, (long long)key);
    if (!json_object_get(r->root, "q_lora_rank") && !mhai_put(r->root, "q_lora_rank", json_null()))
        return MHA_NO_MEMORY("model");
    return mhai_put_count(r->root, "head_dim", rotated) && /* of the rotation */
                   mhai_put_count(r->root, "qk_rope_head_dim", rotated) &&
                   mhai_put_count(r->root, "qk_nope_head_dim", key - rotated) &&
                   mhai_put_count(r->root, "v_head_dim", value) &&
                   mhai_put_count(r->root, "num_key_value_heads", heads) &&
                   mhai_put_text(r->root, "topk_method",
                                 groups ? "group_limited_greedy" : "greedy") &&
                   put_usual(r, "n_group", 1) && put_usual(r, "topk_group", 1) &&
                   put_usual(r, "routed_scaling_factor", 1) &&
                   put_usual(r, "first_k_dense_replace", 0)
               ? MHA_OK
               : MHA_NO_MEMORY("model");
}
