/* The metadata of routed experts (gguf_reading.h). */
#include "io/file.h"
#include "model/gguf_reading.h"

#include <multihead/component.h>

#include <stdio.h>

int64_t mhai_gguf_expert_count(const mhai_gguf_reading *r)
{
    mha_gguf_value value;
    int64_t count;
    if (!mhai_gguf_key(r, "expert_count", &value)) return 0;
    return mha_gguf_integer(&value, 0, 0, INT64_MAX, &count) == MHA_OK ? count : 1;
}

bool mhai_gguf_sigmoid(const mhai_gguf_reading *r)
{
    mha_gguf_value value;
    int64_t kind;
    return mhai_gguf_key(r, "expert_gating_func", &value) &&
           mha_gguf_integer(&value, 0, 0, INT64_MAX, &kind) == MHA_OK && kind == 2;
}

/* Reject a key whose number differs from the architecture's. */
static mha_status expect(const mhai_gguf_reading *r, const char *key, bool real, double expected)
{
    mha_gguf_value value;
    json_t *number;
    if (!mhai_gguf_key(r, key, &value)) return MHA_OK;
    MHA_TRY(mhai_gguf_number(r, &value, real, &number));
    const double x = json_number_value(number);
    json_decref(number);
    if (x <= expected && x >= expected) return MHA_OK;
    return mhai_gguf_refuse(r, &value, "has a value that is not supported");
}

/* Layers without a router are dense. */
static mha_status list_dense(const mhai_gguf_reading *r)
{
    const int64_t layers = mhai_gguf_count(r, "num_hidden_layers");
    json_t *dense = json_array();
    if (!mhai_put(r->root, "mlp_only_layers", dense)) return MHA_NO_MEMORY("model");
    for (int64_t i = 0; i < layers && i < MHAI_MOST_LAYERS; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%lld.ffn_gate_inp.weight", (long long)i);
        if (mha_gguf_find(r->file, name) < 0 && json_array_append_new(dense, json_integer(i)) != 0)
            return MHA_NO_MEMORY("model");
    }
    return MHA_OK;
}

mha_status mhai_gguf_experts(const mhai_gguf_reading *r, mhai_gguf_routing routing)
{
    static const char norm[] = "expert_weights_norm", dense[] = "intermediate_size";
    const int64_t count = mhai_gguf_expert_count(r);
    const int64_t width = mhai_gguf_count(r, "moe_intermediate_size");
    bool normalises = routing != MHAI_GGUF_ROUTING_PLAIN;
    mha_gguf_value value;
    if (count == 0)
        return mhai_put_count(r->root, "num_experts", 0) &&
                       mhai_put_count(r->root, "num_local_experts", 0)
                   ? MHA_OK
                   : MHA_NO_MEMORY("model");
    const bool latent = r->traits & MHAI_GGUF_LATENT;
    MHA_TRY(expect(r, "expert_gating_func", false, routing == MHAI_GGUF_ROUTING_SIGMOID ? 2 : 1));
    if (!latent) MHA_TRY(expect(r, "expert_group_count", false, 1));
    if (routing != MHAI_GGUF_ROUTING_SIGMOID && !latent)
        MHA_TRY(expect(r, "expert_weights_scale", true, 1));
    if (mhai_gguf_key(r, norm, &value)) MHA_TRY(mha_gguf_bool(&value, 0, &normalises));
    if (!normalises && routing == MHAI_GGUF_ROUTING_SUM)
        return mhai_gguf_refuse(r, &value, "is false, which is not supported");
    if (!mhai_gguf_key(r, "expert_shared_feed_forward_length", &value) &&
        !mhai_put_count(r->root, "shared_intermediate_size", 0))
        return MHA_NO_MEMORY("model");
    if (width > 0 && !json_object_get(r->root, dense) && !mhai_put_count(r->root, dense, width))
        return MHA_NO_MEMORY("model"); /* there may be no dense layer */
    if (!mhai_put_bool(r->root, "norm_topk_prob", normalises) ||
        !mhai_put_bool(r->root, "use_expert_bias", true))
        return MHA_NO_MEMORY("model");
    return list_dense(r);
}
