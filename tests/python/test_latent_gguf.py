"""GGUF files with latent attention, in the form of llama.cpp's converters: the bits of the folder, W_kb and W_vb apart
or together, and rejected metadata. The models are random."""
import numpy as np
import pytest
import torch

import multihead
import multihead_ctypes as mha
from decoder_checks import in_double
from shared import rounds_like
from test_experts_hf import make_net, save
from test_latent_hf import KINDS, YARN
from test_gguf_models import Model

gguf = pytest.importorskip("gguf")

LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
         "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
         "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm",
         "self_attn.kv_b_proj": "attn_kv_b", "self_attn.o_proj": "attn_output", "mlp.gate": "ffn_gate_inp",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
         "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp",
         "mlp.shared_experts.down_proj": "ffn_down_shexp"}
OTHERS = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
# llama.cpp has one number for mscale and mscale_all_dim
SAME = {**YARN, "mscale": .7, "mscale_all_dim": .7}
MODELS = {"deepseek_v2": ("DeepseekV2", {**KINDS["deepseek_v2"][1], "rope_parameters": SAME}),
          "deepseek_v2, lite": ("DeepseekV2", {**KINDS["deepseek_v2, lite"][1], "rope_parameters": {
              **SAME, "mscale": 1., "mscale_all_dim": 1.}}),
          "deepseek_v3": ("DeepseekV3", {**KINDS["deepseek_v3"][1], "rope_parameters": SAME}),
          "deepseek_v3, one group": ("DeepseekV3", {**KINDS["deepseek_v3"][1], "n_group": 1, "topk_group": 1,
                                                    "rope_parameters": SAME}),
          "glm4_moe_lite": KINDS["glm4_moe_lite"], "youtu": KINDS["youtu"]}


def tensors(net, apart):
    own = net.config
    for name, weight in net.state_dict().items():
        data, (stem, kind) = weight.numpy(), name.rsplit(".", 1)
        if name == "lm_head.weight" and own.tie_word_embeddings:
            continue
        if stem in OTHERS:
            yield f"{OTHERS[stem]}.{kind}", data
            continue
        number, part = stem.removeprefix("model.layers.").split(".", 1)
        block = f"blk.{number}"
        if kind == "e_score_correction_bias":
            yield f"{block}.exp_probs_b.bias", data
        elif kind == "gate_up_proj":
            for side, half in zip(("gate", "up"), np.split(data, 2, 1)):
                yield f"{block}.ffn_{side}_exps.weight", half
        elif kind == "down_proj":
            yield f"{block}.ffn_down_exps.weight", data
        elif part == "self_attn.kv_b_proj" and apart:
            heads = data.reshape(own.num_attention_heads, -1, data.shape[-1])
            k, v = np.split(heads, [own.qk_nope_head_dim], 1)
            yield f"{block}.attn_k_b.weight", k.transpose(0, 2, 1)
            yield f"{block}.attn_v_b.weight", v
        else:
            yield f"{block}.{LAYER[part]}.{kind}", data


def write(path, net, apart=True, encode=None, **changes):
    """apart: the form of files since W_kb and W_vb are two tensors, and keys describe one key/value head."""
    own, rope = net.config, net.config.rope_parameters
    writer = gguf.GGUFWriter(path, "deepseek2")
    latent, part, size = own.kv_lora_rank, own.qk_rope_head_dim, own.qk_head_dim
    keys = {"block_count": own.num_hidden_layers, "context_length": own.max_position_embeddings,
            "embedding_length": own.hidden_size, "attention.head_count": own.num_attention_heads,
            "feed_forward_length": own.intermediate_size, "attention.layer_norm_rms_epsilon": own.rms_norm_eps,
            "rope.freq_base": rope["rope_theta"], "rope.dimension_count": part, "attention.kv_lora_rank": latent,
            "attention.q_lora_rank": own.q_lora_rank, "attention.head_count_kv": 1 if apart else own.num_attention_heads,
            "attention.key_length": latent + part if apart else size,
            "attention.value_length": latent if apart else own.v_head_dim,
            "attention.key_length_mla": size if apart else None,
            "attention.value_length_mla": own.v_head_dim if apart else None}
    if own.model_type != "youtu":
        keys |= {"expert_count": own.n_routed_experts, "expert_used_count": own.num_experts_per_tok,
                 "expert_shared_count": own.n_shared_experts, "expert_feed_forward_length": own.moe_intermediate_size,
                 "expert_weights_scale": own.routed_scaling_factor, "expert_weights_norm": own.norm_topk_prob,
                 "leading_dense_block_count": getattr(own, "first_k_dense_replace", 1),
                 "expert_gating_func": 1 if own.model_type == "deepseek_v2" else 2}
        if (own.n_group or 1) > 1:
            keys |= {"expert_group_count": own.n_group, "expert_group_used_count": own.topk_group}
    if rope["rope_type"] == "yarn":
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
                 "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
                 "rope.scaling.yarn_log_multiplier": .1 * rope["mscale_all_dim"]}
    for key, value in {**keys, **changes}.items():
        add = {bool: writer.add_bool, str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
        if value is not None:
            add[type(value)](f"deepseek2.{key}", value)
    for name, data in tensors(net, apart):
        kind, data = encode(np.ascontiguousarray(data)) if encode and data.ndim > 1 else (None, data)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def logits(path, ids):
    return Model(path)(np.array([ids]))[0]


@pytest.fixture(scope="module", params=MODELS)
def net(request):
    return make_net(*MODELS[request.param])


def test_the_bits_of_the_folder(net, tmp_path):
    """Cosines and sines, and their factors, are computed from rounded numbers, so those with YaRN differ."""
    ids = torch.randint(0, 97, (1, 120))
    wanted = multihead.Model(save(net, tmp_path)).logits(ids[0].tolist())
    for apart in True, False:
        given = logits(write(tmp_path / f"{apart}.gguf", net, apart), ids[0].tolist())
        if net.config.rope_parameters["rope_type"] == "default":
            assert np.array_equal(given, wanted)
        else:
            with torch.no_grad():
                rounded = net(ids).logits[0].numpy()
            assert rounds_like(given, rounded, in_double(net, ids))


def test_blocks_of_eight_bits(tmp_path):
    """Rows of turned heads are read from blocks that cross them."""
    name, sizes = KINDS["youtu"]
    net = make_net(name, {**sizes, "hidden_size": 64, "intermediate_size": 96, "kv_lora_rank": 32, "q_lora_rank": 32,
                          "qk_nope_head_dim": 32, "v_head_dim": 16})
    kind = gguf.GGMLQuantizationType.Q8_0
    path = write(tmp_path / "model.gguf", net, encode=lambda x: (kind, gguf.quants.quantize(x, kind)))
    state = {}
    for tensor in gguf.GGUFReader(path).tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        state[tensor.name] = data.reshape(*reversed(tensor.shape.tolist()))
    plain = gguf.GGUFWriter(tmp_path / "plain.gguf", "deepseek2")
    for field in gguf.GGUFReader(path).fields.values():
        if field.name.startswith("deepseek2."):
            value = field.contents()
            add = {str: plain.add_string, float: plain.add_float32, int: plain.add_uint32}[type(value)]
            add(field.name, value)
    for name, data in state.items():
        plain.add_tensor(name, np.ascontiguousarray(data.astype(np.float32)))
    plain.write_header_to_file()
    plain.write_kv_data_to_file()
    plain.write_tensors_to_file()
    plain.close()
    ids = list(range(60))
    assert np.array_equal(logits(path, ids), logits(tmp_path / "plain.gguf", ids))


@pytest.mark.parametrize("key, value, error", [
    ("attention.kv_lora_rank", None, "'kv_lora_rank' is missing"),
    ("attention.kv_lora_rank", 19, "'blk.0.attn_kv_a_mqa.weight' has shape"),
    ("attention.key_length_mla", 8, "'deepseek2.rope.dimension_count' is 8, expected less than 8"),
    ("attention.key_length_mla", 22, "attn_q_b.weight' has shape|describes at least"),
    ("attention.value_length_mla", 0, "value_length_mla"),
    ("rope.dimension_count", None, "key 'deepseek2.rope.dimension_count' is missing"),
    ("expert_group_count", 3, "'deepseek2.expert_group_count' is 3, expected a divisor"),
    ("expert_gating_func", 3, "'deepseek2.expert_gating_func' has a value"),
    ("rope.scaling.yarn_log_multiplier", -1.0, "yarn_log_multiplier' is not a number of 0 or more"),
    ("rope.scaling.attn_factor", 2.0, "attn_factor' is not supported")])
def test_hostile_keys_are_refused(tmp_path, key, value, error):
    path = write(tmp_path / "model.gguf", make_net(*MODELS["deepseek_v3"]), **{key: value})
    with pytest.raises(mha.MultiheadError, match=error):
        Model(path)
