"""GGUF models. A file from gguf's own writer, with the rules of llama.cpp's converters, must give the
same bits as the model's folder. A real model, if installed (tools/get-smollm2), is compared with
transformers."""
import contextlib
import copy
import ctypes as C
import itertools
import json
import math
import subprocess

import gguf
import numpy as np
import pytest
import torch

import checkpoint_ctypes as ck
import multihead
from multihead import _tensor
from multihead._abi import ModelDigests, ModelOptions, ModelShape
import multihead_ctypes as mha
from shared import SMOLLM2, rounds_like
from test_checkpoint_hf import some_ids, their_family

LIBRARY = ck.LIBRARY
COMMON = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
         "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
         "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
         "mlp.down_proj": "ffn_down"}
LATER = {**LAYER, "post_attention_layernorm": "post_attention_norm",
         "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
GPT2 = {"ln_1": "attn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output",
        "ln_2": "ffn_norm", "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
NEOX = {"input_layernorm": "attn_norm", "attention.query_key_value": "attn_qkv",
        "attention.dense": "attn_output", "post_attention_layernorm": "ffn_norm",
        "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down"}
LFM2 = {**LAYER, "operator_norm": "attn_norm", "self_attn.out_proj": "attn_output",
        "self_attn.q_layernorm": "attn_q_norm", "self_attn.k_layernorm": "attn_k_norm", "ffn_norm": "ffn_norm",
        "feed_forward.w1": "ffn_gate", "feed_forward.w3": "ffn_up", "feed_forward.w2": "ffn_down",
        "conv.in_proj": "shortconv.in_proj", "conv.conv": "shortconv.conv", "conv.out_proj": "shortconv.out_proj"}
QWEN35 = {**LAYER, "post_attention_layernorm": "post_attention_norm", "linear_attn.in_proj_qkv": "attn_qkv",
          "linear_attn.in_proj_z": "attn_gate", "linear_attn.in_proj_b": "ssm_beta", "linear_attn.in_proj_a": "ssm_alpha",
          "linear_attn.conv1d": "ssm_conv1d", "linear_attn.norm": "ssm_norm", "linear_attn.out_proj": "ssm_out"}
EXPERTS = {"mlp.gate": "ffn_gate_inp", "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
           "mlp.shared_expert.gate_proj": "ffn_gate_shexp", "mlp.shared_expert.up_proj": "ffn_up_shexp",
           "mlp.shared_expert.down_proj": "ffn_down_shexp"}
NEXT = {**QWEN35, **EXPERTS, "linear_attn.in_proj_qkvz": "ssm_in", "linear_attn.in_proj_ba": "ssm_ba"}
GRANITE_EXPERTS = {"block_sparse_moe.router": "ffn_gate_inp"}
GRANITE = {**LAYER, "block_sparse_moe.router": "ffn_gate_inp",
           "mamba.in_proj": "ssm_in", "mamba.conv1d": "ssm_conv1d", "mamba.norm": "ssm_norm",
           "mamba.out_proj": "ssm_out"}
MIXER = {"norm": "attn_norm", "mixer.in_proj": "ssm_in", "mixer.conv1d": "ssm_conv1d", "mixer.norm": "ssm_norm",
         "mixer.out_proj": "ssm_out", "mixer.q_proj": "attn_q", "mixer.k_proj": "attn_k", "mixer.v_proj": "attn_v",
         "mixer.o_proj": "attn_output", "mixer.up_proj": "ffn_up", "mixer.down_proj": "ffn_down"}
GLM4 = {**LAYER, "post_self_attn_layernorm": "post_attention_norm", "post_mlp_layernorm": "post_ffw_norm",
        "mlp.gate_up_proj": "ffn_up"}
OSS = {**LAYER, "post_attention_layernorm": "post_attention_norm", "mlp.router": "ffn_gate_inp"}
PHI3 = {**LAYER, "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}


def paired(weight, heads):
    """Rows of each head, with the halves of a rotation interleaved."""
    return weight.reshape(heads, 2, -1, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def llama(name, weight, config):
    if ".q_proj" in name:
        return paired(weight, config.num_attention_heads)
    return paired(weight, config.num_key_value_heads) if ".k_proj" in name else weight


def gemma(name, weight, config):
    return weight + 1 if "norm" in name else weight


def gpt2(name, weight, config):
    fused = any(part in name for part in ("c_attn", "c_proj", "c_fc"))
    return weight.T if fused and weight.ndim == 2 else weight


def neox(name, weight, config):
    if "query_key_value" not in name:
        return weight
    heads = weight.reshape(config.num_attention_heads, 3, -1, *weight.shape[1:])
    return np.concatenate([heads[:, part].reshape(-1, *weight.shape[1:]) for part in range(3)])


def squeezed(name, weight, config):
    return weight[:, 0] if "conv" in name and weight.ndim == 3 else weight


def qwen35(name, weight, config):
    if name.endswith("A_log"):
        return -np.exp(weight)
    plus = name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight")
    return squeezed(name, weight + 1 if plus else weight, config)


def granite(name, weight, config):
    if name.endswith(("A_log", ".D")):
        return (-np.exp(weight) if name.endswith("A_log") else weight)[:, None]
    if name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
        return weight.reshape(getattr(config, "mamba_n_groups", None) or config.n_groups, -1)
    return squeezed(name, llama(name, weight, config), config)


def same(name, weight, config):
    return weight


def falcon(name, weight, config):
    if "query_key_value" not in name:
        return weight
    groups, D = config.num_kv_heads if config.new_decoder_architecture else 1, head_dim(config)
    rows = weight.reshape(groups, -1, D, *weight.shape[1:])
    return np.concatenate([part.reshape(-1, *weight.shape[1:]) for part in (rows[:, :-2], rows[:, -2:-1], rows[:, -1:])])


def nemotron(name, weight, config):
    return weight + 1 if name.endswith("norm.weight") else weight


def ernie(name, weight, config):
    return weight[0] if name.endswith("correction_bias") else weight


FALCON = {"input_layernorm": "attn_norm", "ln_attn": "attn_norm_2", "ln_mlp": "attn_norm",
          "self_attention.query_key_value": "attn_qkv", "self_attention.dense": "attn_output",
          "mlp.dense_h_to_4h": "ffn_up", "mlp.dense_4h_to_h": "ffn_down", "post_attention_layernorm": "ffn_norm"}
MPT = {"norm_1": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.out_proj": "attn_output", "norm_2": "ffn_norm",
       "ffn.up_proj": "ffn_up", "ffn.down_proj": "ffn_down"}
CODE = {**LAYER, "mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"}
PHI = {**LAYER, "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"}
SHARED = {**LAYER, **EXPERTS, **{f"mlp.shared_experts.{part}_proj": f"ffn_{part}_shexp" for part in ("gate", "up", "down")}}
KINDS = {  # family in transformers: (architecture, names of a layer, prefix of layers, rule)
    "llama": ("llama", LAYER, "model.layers.", llama),
    "mistral": ("llama", LAYER, "model.layers.", llama),
    "qwen2": ("qwen2", LAYER, "model.layers.", same),
    "qwen3": ("qwen3", LAYER, "model.layers.", same),
    "gemma": ("gemma", LAYER, "model.layers.", gemma),
    "gemma2": ("gemma2", LATER, "model.layers.", gemma),
    "gemma3_text": ("gemma3", LATER, "model.layers.", gemma),
    "phi3": ("phi3", PHI3, "model.layers.", same),
    "lfm2": ("lfm2", LFM2, "model.layers.", squeezed),
    "qwen3_5_text": ("qwen35", QWEN35, "model.layers.", qwen35),
    "mixtral": ("llama", {**LAYER, **EXPERTS}, "model.layers.", llama),
    "qwen3_moe": ("qwen3moe", {**LAYER, **EXPERTS}, "model.layers.", same),
    "olmoe": ("olmoe", {**LAYER, **EXPERTS}, "model.layers.", same),
    "lfm2_moe": ("lfm2moe", {**LFM2, "feed_forward.gate": "ffn_gate_inp"}, "model.layers.", squeezed),
    "qwen3_next": ("qwen3next", NEXT, "model.layers.", qwen35),
    "qwen3_5_moe_text": ("qwen35moe", {**QWEN35, **EXPERTS}, "model.layers.", qwen35),
    "granitemoehybrid": ("granitehybrid", GRANITE, "model.layers.", granite),
    "mamba2": ("mamba2", MIXER, "backbone.layers.", granite),
    "nemotron_h": ("nemotron_h", MIXER, "model.layers.", granite),
    "smollm3": ("smollm3", LAYER, "model.layers.", llama),
    "stablelm": ("stablelm", LAYER, "model.layers.", same),
    "olmo2": ("olmo2", {**LATER, "post_attention_layernorm": "post_attention_norm"}, "model.layers.", same),
    "olmo3": ("olmo2", {**LATER, "post_attention_layernorm": "post_attention_norm"}, "model.layers.", same),
    "granite": ("granite", LAYER, "model.layers.", llama),
    "granitemoe": ("granitemoe", {**LAYER, **GRANITE_EXPERTS}, "model.layers.", llama),
    "granitemoeshared": ("granitemoe", {**LAYER, **GRANITE_EXPERTS}, "model.layers.", llama),
    "glm4": ("glm4", GLM4, "model.layers.", same),
    "gpt_oss": ("gpt-oss", OSS, "model.layers.", same),
    "cohere": ("command-r", LAYER, "model.layers.", same),
    "cohere2": ("cohere2", LAYER, "model.layers.", same),
    "falcon": ("falcon", FALCON, "transformer.h.", falcon),
    "bloom": ("bloom", FALCON, "transformer.h.", neox),
    "mpt": ("mpt", MPT, "transformer.blocks.", same),
    "gpt_bigcode": ("starcoder", GPT2, "transformer.h.", same),
    "starcoder2": ("starcoder2", CODE, "model.layers.", same),
    "phi": ("phi2", PHI, "model.layers.", same),
    "olmo": ("olmo", LAYER, "model.layers.", llama),
    "exaone4": ("exaone4", {**LATER, "post_attention_layernorm": "post_attention_norm"}, "model.layers.", same),
    "seed_oss": ("seed_oss", OSS, "model.layers.", same),
    "arcee": ("arcee", LAYER, "model.layers.", llama),
    "nemotron": ("nemotron", LAYER, "model.layers.", nemotron),
    "ernie4_5": ("ernie4_5", LAYER, "model.layers.", same),
    "ernie4_5_moe": ("ernie4_5-moe", SHARED, "model.layers.", ernie),
    "qwen2_moe": ("qwen2moe", SHARED, "model.layers.", same),
    "glm4_moe": ("glm4moe", {**SHARED, "post_attention_layernorm": "post_attention_norm"}, "model.layers.", same),
    "dots1": ("dots1", SHARED, "model.layers.", same),
    "minimax_m2": ("minimax-m2", SHARED, "model.layers.", same),
    "gpt2": ("gpt2", GPT2, "transformer.h.", gpt2),
    "gpt_neox": ("gptneox", NEOX, "gpt_neox.layers.", neox)}
OTHERS = {"transformer.wte": "token_embd", "transformer.wpe": "position_embd",
          "transformer.ln_f": "output_norm", "gpt_neox.embed_in": "token_embd",
          "gpt_neox.final_layer_norm": "output_norm", "embed_out": "output",
          "transformer.word_embeddings": "token_embd", "transformer.word_embeddings_layernorm": "token_embd_norm",
          "transformer.norm_f": "output_norm", "model.final_layernorm": "output_norm",
          "model.embedding_norm": "token_embd_norm", "backbone.embeddings": "token_embd", "backbone.norm_f": "output_norm",
          "model.embeddings": "token_embd", "model.norm_f": "output_norm", **COMMON}


def gguf_name(name, layers, prefix):
    stem, kind = name.rsplit(".", 1)
    if not stem.startswith(prefix):
        return f"{OTHERS[stem]}.{kind}"
    number, part = stem[len(prefix):].split(".", 1)
    if part == "feed_forward" or kind == "e_score_correction_bias":
        return f"blk.{number}.exp_probs_b.bias"
    if part.endswith(".experts"):
        return (f"blk.{number}.ffn_{kind.removesuffix('_bias').removesuffix('_proj')}_exps."
                f"{'bias' if kind.endswith('_bias') else 'weight'}")
    if kind == "sinks":
        return f"blk.{number}.attn_sinks.weight"
    if part in ("linear_attn", "mamba", "mixer"):
        return f"blk.{number}." + {"A_log": "ssm_a", "dt_bias": "ssm_dt.bias", "D": "ssm_d"}[kind]
    return f"blk.{number}.{layers[part]}.{kind}"


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def tensors(model, config, in_order):
    """Tensors in the converters' form. Gate and up of experts are in one table each. In Qwen3-Next,
    q, k and v are together or in the folder's form."""
    for name, weight in model.state_dict().items():
        data = weight.numpy()
        if config.model_type == "gpt_oss" and ".experts." in name:
            rows = data if name.endswith("bias") else data.transpose(0, 2, 1)
            for i, part in enumerate(("gate", "up") if "gate_up" in name else ("down",)):
                yield name.replace("gate_up", part), rows[:, i::2] if part != "down" else rows
        elif name.endswith("gate_up_proj") and data.ndim == 3:
            for part, half in zip(("gate", "up"), np.split(data, 2, 1)):
                yield name.replace("gate_up", part), half
        elif "in_proj_qkvz" in name and not in_order:
            k, ratio = config.linear_key_head_dim, config.linear_num_value_heads // config.linear_num_key_heads
            v = ratio * config.linear_value_head_dim
            q, k, v, z = np.split(data.reshape(config.linear_num_key_heads, -1, data.shape[1]), (k, 2 * k, 2 * k + v), 1)
            rows = [part.reshape(-1, data.shape[1]) for part in (q, k, v, z)]
            yield name.replace("qkvz", "qkv"), np.concatenate(rows[:3])
            yield name.replace("qkvz", "z"), rows[3]
        else:
            yield name, data


def write(path, model, factors=None, in_order=False, encode=None, each=0, extra=None, **changes):
    """A file in a converter's form. `factors` is rope_freqs.weight, `encode` returns the type and
    content of a matrix, `each` is the number of tensors per part, `extra` has further tensors, and
    `changes` has keys with different values, or None to omit them."""
    config = model.config
    architecture, layers, prefix, rule = KINDS[config.model_type]
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=each)
    get = lambda *names: next((getattr(config, n) for n in names if getattr(config, n, None)), None)
    keys = {"block_count": get("num_hidden_layers"), "context_length": get("max_position_embeddings", "max_seq_len") or 64,
            "embedding_length": get("hidden_size"), "attention.head_count": get("num_attention_heads"),
            "feed_forward_length": get("ffn_hidden_size", "intermediate_size", "n_inner") or 4 * config.hidden_size,
            "attention.layer_norm_rms_epsilon": get("rms_norm_eps"),
            "attention.layer_norm_epsilon": get("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps"),
            "attn_logit_softcapping": get("attn_logit_softcapping"),
            "final_logit_softcapping": get("final_logit_softcapping"), "logit_scale": get("logit_scale")}
    if config.model_type not in ("gpt2", "gpt_neox", "mamba2", "bloom", "mpt"):
        keys["attention.head_count_kv"] = get("num_key_value_heads", "num_kv_heads")
        keys["attention.key_length"] = head_dim(config)
    if config.model_type in ("gemma2", "gemma3_text", "olmo3", "cohere2", "gpt_oss", "exaone4"):
        keys["attention.sliding_window"] = config.sliding_window
    if config.model_type == "olmo3":
        keys["attention.sliding_window_pattern"] = [kind == SLIDING for kind in config.layer_types]
    if config.model_type == "lfm2_moe":
        keys |= {"attention.head_count_kv": [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types],
                 "attention.key_length": None, "shortconv.l_cache": config.conv_L_cache,
                 "attention.layer_norm_rms_epsilon": config.norm_eps}
    if config.model_type == "lfm2":
        keys |= {"attention.head_count_kv": [config.num_key_value_heads * (kind != "conv") for kind in config.layer_types],
                 "attention.key_length": None, "shortconv.l_cache": config.conv_L_cache,
                 "attention.layer_norm_rms_epsilon": config.norm_eps,
                 "feed_forward_length": model.model.layers[0].feed_forward.w1.out_features}
    if get("num_experts", "num_local_experts"):
        keys |= {"expert_count": get("num_experts", "num_local_experts"),
                 "expert_used_count": config.num_experts_per_tok,
                 "expert_feed_forward_length": get("moe_intermediate_size"),
                 "expert_shared_feed_forward_length": get("shared_expert_intermediate_size"),
                 "leading_dense_block_count": get("num_dense_layers", "first_k_dense_replace", "moe_layer_start_index"),
                 "expert_gating_func": dict.fromkeys(("lfm2_moe", "glm4_moe", "dots1", "minimax_m2"), 2).get(
                     config.model_type, None if config.model_type == "gpt_oss" else 1)}
    if config.model_type in ("glm4_moe", "dots1", "ernie4_5_moe"):
        keys |= {"expert_shared_count": get("n_shared_experts", "moe_num_shared_experts"),
                 "expert_weights_scale": get("routed_scaling_factor"), "expert_weights_norm": True}
    if config.model_type == "glm4_moe":  # and a layer that predicts a further token
        keys |= {"block_count": config.num_hidden_layers + 1, "nextn_predict_layers": 1}
    if config.model_type == "mpt":
        keys["attention.max_alibi_bias"] = 8.0
    if "_next" in config.model_type or "qwen3_5" in config.model_type:
        keys |= {"ssm.conv_kernel": config.linear_conv_kernel_dim, "ssm.state_size": config.linear_key_head_dim,
                 "ssm.group_count": config.linear_num_key_heads, "ssm.time_step_rank": config.linear_num_value_heads,
                 "ssm.inner_size": config.linear_value_head_dim * config.linear_num_value_heads,
                 "full_attention_interval": 2, "rope.dimension_count": config.head_dim // 4}
    if config.model_type in ("granite", "granitemoe", "granitemoeshared"):
        keys |= {"expert_shared_feed_forward_length": get("shared_intermediate_size"),
                 "embedding_scale": config.embedding_multiplier, "residual_scale": config.residual_multiplier,
                 "attention.scale": config.attention_multiplier, "logit_scale": config.logits_scaling}
    if config.model_type == "granitemoehybrid":
        keys |= {"ssm.conv_kernel": config.mamba_d_conv, "ssm.state_size": config.mamba_d_state,
                 "ssm.group_count": config.mamba_n_groups, "ssm.time_step_rank": config.mamba_n_heads,
                 "ssm.inner_size": config.mamba_expand * config.hidden_size,
                 "attention.head_count_kv": [config.num_key_value_heads * (kind == "full_attention")
                                             for kind in config.layer_types],
                 "expert_shared_feed_forward_length": config.shared_intermediate_size,
                 "embedding_scale": float(config.embedding_multiplier),
                 "residual_scale": float(config.residual_multiplier),
                 "attention.scale": float(config.attention_multiplier), "logit_scale": float(config.logits_scaling),
                 "rope.scaling.finetuned": config.position_embedding_type == "rope"}
    if config.model_type == "mamba2":
        keys |= {"attention.head_count": 0, "feed_forward_length": 0, "context_length": 1 << 20,
                 "ssm.conv_kernel": config.conv_kernel, "ssm.state_size": config.state_size,
                 "ssm.group_count": config.n_groups, "ssm.time_step_rank": config.num_heads,
                 "ssm.inner_size": config.expand * config.hidden_size, "attention.layer_norm_epsilon": None,
                 "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon}
    if config.model_type == "nemotron_h":
        kinds = config.layers_block_type
        keys = {key: value for key, value in keys.items() if not key.startswith("expert")}  # no layer has them
        keys |= {"attention.head_count_kv": [config.num_key_value_heads * (kind == "full_attention") for kind in kinds],
                 "feed_forward_length": [config.intermediate_size * (kind == "mlp") for kind in kinds],
                 "ssm.conv_kernel": config.conv_kernel, "ssm.state_size": config.ssm_state_size,
                 "ssm.group_count": config.n_groups, "ssm.time_step_rank": config.mamba_num_heads,
                 "ssm.inner_size": config.mamba_num_heads * config.mamba_head_dim,
                 "attention.layer_norm_rms_epsilon": config.layer_norm_epsilon}
    rope = getattr(config, "rope_parameters", None) or {}
    keys["rope.freq_base"] = rope.get("full_attention", rope).get("rope_theta")
    if config.model_type in ("gpt_neox", "stablelm", "glm4", "phi", "nemotron", "glm4_moe"):
        keys["rope.dimension_count"] = int(head_dim(config) * config.rope_parameters["partial_rotary_factor"])
    if rope.get("rope_type") == "yarn":
        keys |= {"rope.scaling.type": "yarn", "rope.scaling.factor": rope["factor"],
                 "rope.scaling.original_context_length": rope["original_max_position_embeddings"]}
    keys.update(changes)
    for key, value in keys.items():
        if value is None:
            continue
        full = key if key.startswith(("tokenizer.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, (list, str)):
            (writer.add_array if isinstance(value, list) else writer.add_string)(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_uint32(full, value)
    if config.model_type in ("gpt_neox", "stablelm"):  # llama.cpp ignores StableLM's
        writer.add_bool(f"{architecture}.use_parallel_residual",
                        config.use_parallel_residual or config.model_type == "stablelm")
    for name, weight in tensors(model, config, in_order):
        tied = name == "lm_head.weight" and config.tie_word_embeddings
        if tied or name.endswith(("inv_freq", ".attn.bias", ".attn.masked_bias")):
            continue
        if "shared_mlp.input_linear" in name:
            kind = "_shexp" if config.num_local_experts else ""
            for part, half in zip(("gate", "up"), np.split(weight, 2)):
                writer.add_tensor(f"blk.{name.split('.')[2]}.ffn_{part}{kind}.weight", np.ascontiguousarray(half))
            continue
        if "shared_mlp.output_linear" in name:
            kind = "_shexp" if config.num_local_experts else ""
            writer.add_tensor(f"blk.{name.split('.')[2]}.ffn_down{kind}.weight", weight)
            continue
        data = np.ascontiguousarray(rule(name, weight, config))
        kv = keys.get("attention.head_count_kv")
        if isinstance(kv, list) and keys["attention.key_length"] and (".k_proj" in name or ".v_proj" in name):
            data = data[:kv[int(name.split(".")[2])] * keys["attention.key_length"]]
        kind, data = encode(data) if encode and data.ndim == 2 else (None, data)
        writer.add_tensor(gguf_name(name, layers, prefix), data, raw_dtype=kind)
    if factors is not None:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    for name, data in (extra or {}).items():
        writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Model(ck.Transformer):
    """The transformer of a model without a tokenizer, a folder or a file."""

    def __init__(self, path, flags=1):
        self.context, self.model, self.handle = mha.Context(num_threads=1), C.c_void_p(), None
        mha.check(LIBRARY.mha_model_load(self.context.handle, str(path).encode(),
                                              C.byref(ModelOptions(flags=flags)),
                                              C.byref(self.model)))
        self.handle = C.c_void_p(LIBRARY.mha_model_transformer(self.model))
        self.desc = ck.TransformerDesc()
        mha.LIBRARY.mha_transformer_describe(self.handle, C.byref(self.desc))

    def __del__(self):
        LIBRARY.mha_model_destroy(self.model)


ROUTED = dict(n_routed_experts=6, num_experts_per_tok=3, moe_intermediate_size=20, n_shared_experts=1,
              first_k_dense_replace=1)
SCALED = dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.25, logits_scaling=4.0)
OPTIONS = {"llama": dict(head_dim=6), "mistral": dict(sliding_window=None), "qwen2": {},
           "qwen3": dict(head_dim=6, tie_word_embeddings=True), "gemma": dict(head_dim=6),
           "gemma2": dict(head_dim=6, sliding_window=5, query_pre_attn_scalar=6),
           "gemma3_text": dict(head_dim=6, sliding_window=4, num_hidden_layers=7,
                               query_pre_attn_scalar=6),
           "phi3": {}, "gpt2": {},
           "qwen3_5_text": dict(head_dim=16, full_attention_interval=2, linear_num_key_heads=3, linear_num_value_heads=3,
                                linear_key_head_dim=6, linear_value_head_dim=10),
           "lfm2": dict(full_attn_idxs=[1], block_multiple_of=16, conv_L_cache=4),
           "mixtral": dict(num_local_experts=5, num_experts_per_tok=2),
           "qwen3_moe": dict(head_dim=6, num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
                             norm_topk_prob=True, mlp_only_layers=[1]),
           "olmoe": dict(num_experts=6, num_experts_per_tok=3),
           "lfm2_moe": dict(layer_types=["conv", "full_attention", "conv"], num_experts=6, num_experts_per_tok=3,
                            moe_intermediate_size=20, num_dense_layers=1, conv_L_cache=4, tie_word_embeddings=True),
           "qwen3_next": dict(head_dim=16, layer_types=["linear_attention", "full_attention", "linear_attention"],
                              linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=6,
                              linear_value_head_dim=10, num_experts=7, num_experts_per_tok=2,
                              moe_intermediate_size=20, shared_expert_intermediate_size=12),
           "qwen3_5_moe_text": dict(head_dim=16, full_attention_interval=2, linear_num_key_heads=3,
                                    linear_num_value_heads=3, linear_key_head_dim=6, linear_value_head_dim=10,
                                    num_experts=7, num_experts_per_tok=2, moe_intermediate_size=20,
                                    shared_expert_intermediate_size=12),
           "granitemoehybrid": dict(
               num_local_experts=0, shared_intermediate_size=56, mamba_n_heads=4, mamba_n_groups=2, mamba_d_state=6,
               layer_types=["linear_attention", "full_attention", "linear_attention"], embedding_multiplier=12,
               residual_multiplier=.25, attention_multiplier=.125, logits_scaling=4, position_embedding_type="rope"),
           "mamba2": dict(num_heads=4, head_dim=16, state_size=6, n_groups=2),
           "nemotron_h": dict(hybrid_override_pattern="M-*", head_dim=8, mamba_num_heads=4, mamba_head_dim=7,
                              ssm_state_size=6, n_groups=2, time_step_min=1e-30),
           "smollm3": dict(num_hidden_layers=5), "stablelm": dict(use_qkv_bias=True), "glm4": dict(head_dim=8), "olmo2": {},
           "granitemoe": dict(SCALED, num_local_experts=5),
           "granitemoeshared": dict(SCALED, num_local_experts=6, num_experts_per_tok=3, shared_intermediate_size=20),
           "gpt_oss": dict(num_local_experts=5, num_experts_per_tok=2, head_dim=6, sliding_window=5, rope_parameters=dict(
               rope_type="yarn", rope_theta=1.5e5, factor=4., truncate=False, original_max_position_embeddings=16)),
           "cohere": dict(logit_scale=0.5), "cohere2": dict(num_hidden_layers=5, sliding_window=5, logit_scale=2.0),
           "granite": dict(embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.25,
                           logits_scaling=4.0),
           "olmo3": dict(num_hidden_layers=5, sliding_window=5, layer_types=["sliding_attention"] * 2 +
                         ["full_attention"] * 2 + ["sliding_attention"]),
           "gpt_neox": dict(num_key_value_heads=4, use_parallel_residual=False),
           "falcon": dict(num_kv_heads=2, new_decoder_architecture=True, bias=True), "bloom": {}, "mpt": {},
           "gpt_bigcode": {}, "starcoder2": {}, "phi": {}, "olmo": {}, "nemotron": {}, "ernie4_5": dict(head_dim=8),
           "exaone4": dict(num_hidden_layers=5, sliding_window=5), "seed_oss": dict(head_dim=6), "arcee": dict(head_dim=6),
           "ernie4_5_moe": dict(moe_num_experts=5, moe_k=2, moe_intermediate_size=20, moe_num_shared_experts=1),
           "qwen2_moe": dict(num_experts=6, num_experts_per_tok=3, moe_intermediate_size=20,
                             shared_expert_intermediate_size=12),
           "glm4_moe": dict(ROUTED, use_qk_norm=True, routed_scaling_factor=2.5),
           "dots1": dict(ROUTED, norm_topk_prob=True, sliding_window=None),
           "minimax_m2": dict(num_local_experts=5, num_experts_per_tok=2, head_dim=8)}


def digest_of(path):
    """The digests of a model's configuration, weights and tokenizer."""
    context, digests = mha.Context(num_threads=1), ModelDigests()
    mha.check(LIBRARY.mha_model_digest(context.handle, str(path).encode(), 0, C.byref(digests)))
    return digests.configuration, digests.weights, digests.tokenizer


def shape_of(path):
    shape = ModelShape()
    mha.check(LIBRARY.mha_model_read_shape(str(path).encode(), C.byref(shape)))
    return {name: getattr(shape, name) for name, _ in ModelShape._fields_}


@pytest.mark.gate(12)
@pytest.mark.parametrize("kind", KINDS)
def test_the_bits_of_the_folder(tmp_path, kind):
    model = their_family(kind, OPTIONS[kind], 31)
    model.save_pretrained(tmp_path / "folder")
    write(tmp_path / "model.gguf", model)
    folder, file = Model(tmp_path / "folder"), Model(tmp_path / "model.gguf")
    given, wanted = file(some_ids(32)), folder(some_ids(32))
    if "linear_num_key_heads" in OPTIONS[kind] or kind in ("granitemoehybrid", "mamba2", "nemotron_h"):  # A_log is stored as -exp(A_log)
        assert np.abs(given - wanted).max() < 1e-5 * np.abs(wanted).max()
    else:
        assert np.array_equal(given, wanted)
    shapes = [shape_of(tmp_path / name) for name in ("folder", "model.gguf")]
    if kind in ("mistral", "granitemoe"):  # llama.cpp has one name for two kinds
        shapes = [{**shape, "architecture": None} for shape in shapes]
    assert shapes[0] == shapes[1]


def test_a_hybrid_with_experts(tmp_path):
    model = their_family("granitemoehybrid", {**OPTIONS["granitemoehybrid"], "num_local_experts": 5}, 46)
    model.save_pretrained(tmp_path / "folder")
    write(tmp_path / "model.gguf", model)
    given, wanted = (Model(tmp_path / name)(some_ids(47)) for name in ("model.gguf", "folder"))
    assert np.abs(given - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("options, in_order", [({}, True), (dict(num_experts=0), False)])
def test_other_files_of_qwen3_next(tmp_path, options, in_order):
    """Dense models in older files, which keep q, k, v and z of each key head together."""
    model = their_family("qwen3_next", {**OPTIONS["qwen3_next"], **options}, 46)
    model.save_pretrained(tmp_path / "folder")
    write(tmp_path / "model.gguf", model, in_order=in_order)
    given, wanted = (Model(tmp_path / name)(some_ids(47)) for name in ("model.gguf", "folder"))
    assert np.abs(given - wanted).max() < 1e-5 * np.abs(wanted).max()


@pytest.mark.parametrize("kind, changes, words", [
    ("mixtral", {"expert_used_count": 6}, "'llama.expert_used_count' is 6, expected 1..5"),
    ("mixtral", {"expert_used_count": None}, "num_experts_per_tok' is missing"),
    ("mixtral", {"expert_count": 4}, "blk.0.ffn_gate_inp.weight' has shape"),
    ("mixtral", {"expert_weights_norm": False}, "'llama.expert_weights_norm' is false"),
    ("olmoe", {"expert_gating_func": 2}, "'olmoe.expert_gating_func' has a value"),
    ("olmoe", {"expert_group_count": 2}, "'olmoe.expert_group_count' has a value"),
    ("qwen3_moe", {"expert_weights_scale": 2.5}, "'qwen3moe.expert_weights_scale' has a value"),
    ("qwen3_moe", {"expert_feed_forward_length": 21}, "holds .* numbers|blk.0.ffn_gate_exps.weight' has shape"),
    ("qwen3_moe", {"feed_forward_length": None, "expert_feed_forward_length": None}, "feed_forward_length' is missing"),
    ("lfm2_moe", {"expert_gating_func": 1}, "'lfm2moe.expert_gating_func' has a value"),
    ("lfm2_moe", {"leading_dense_block_count": 0}, "blk.0.ffn_gate_inp.weight' is missing|holds .* numbers"),
    ("granitemoe", {"expert_weights_norm": False}, "'granitemoe.expert_weights_norm' is false"),
    ("granitemoe", {"rope.scaling.finetuned": False}, "'granitemoe.rope.scaling.finetuned' is false"),
    ("granitemoe", {"expert_count": 0}, "'num_local_experts' is 0|expert_count' is 0"),
    ("granitemoeshared", {"expert_shared_feed_forward_length": None}, "has weight .*ffn_.*_shexp.weight"),
    ("granitemoeshared", {"expert_shared_feed_forward_length": 21}, "ffn_gate_shexp.weight' has shape|holds .* numbers"),
    ("granitemoehybrid", {"expert_count": 4}, "num_experts_per_tok' is missing|holds .* numbers|expert_used"),
    ("qwen3", {"expert_count": 4}, "'qwen3.expert_count' is 4: experts are not supported in it")], ids=str)
def test_refused_experts(tmp_path, kind, changes, words):
    write(tmp_path / "model.gguf", their_family(kind, OPTIONS[kind], 48), **changes)
    with pytest.raises(mha.MultiheadError, match=words):
        Model(tmp_path / "model.gguf")


def llama3_factors(factor, base, width):
    """The formula of llama.cpp's converter, in float32."""
    turns = 8192 / (2 * math.pi / (1 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)))
    fast = ((turns - 1) / 3).clamp(0, 1)
    return (1 / ((1 - fast) / factor + fast)).numpy()


LINEAR = dict(rope_type="linear", factor=2.5)
YARN = dict(rope_type="yarn", factor=4.0)
YARN_KEYS = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}
LLAMA3 = dict(rope_type="llama3", rope_theta=5e5, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8192)


@pytest.mark.parametrize("kind, rope, changes", [
    ("llama", LINEAR, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.5}),
    ("llama", LINEAR, {"rope.scaling.factor": 2.5}),  # llama.cpp's defaults
    ("llama", LINEAR, {"rope.scale_linear": 2.5}),  # files of 2023
    ("llama", YARN, YARN_KEYS),
    ("qwen2", {**YARN, "original_max_position_embeddings": 8, "beta_fast": 4.0, "beta_slow": 0.5},
     {**YARN_KEYS, "rope.scaling.original_context_length": 8, "rope.scaling.yarn_beta_fast": 4.0,
      "rope.scaling.yarn_beta_slow": 0.5, "rope.scaling.yarn_ext_factor": 1.0,
      "rope.scaling.yarn_log_multiplier": 0.0, "rope.scaling.attn_factor": 1.0}),
    ("qwen2", {**YARN, "attention_factor": 0.5 * (0.1 * math.log(4) + 1)},
     {**YARN_KEYS, "rope.scaling.attn_factor": 0.5}),
    ("llama", {**LLAMA3, "factor": 8.0},
     dict(factors=llama3_factors(8, 5e5, 46), **{"rope.freq_base": 5e5})),
    ("llama", {**LLAMA3, "factor": 32.0},
     dict(factors=llama3_factors(32, 5e5, 46), **{"rope.freq_base": 5e5})),
    ("phi3", dict(partial_rotary_factor=0.57), {"rope.dimension_count": 26}),  # 46 * (26 / 46) < 26
    ("phi3", dict(partial_rotary_factor=0.6), {"rope.dimension_count": 27}),
    ("gpt_neox", dict(partial_rotary_factor=0.34), {"rope.dimension_count": 15}),
    ("gpt_neox", dict(partial_rotary_factor=1.0, rope_theta=777.0),
     {"rope.dimension_count": None, "rope.freq_base": 777.0})],
    ids=lambda value: str(value)[:80])
def test_rotations(tmp_path, kind, rope, changes):
    model = their_family(kind, dict(hidden_size=184, **({"num_key_value_heads": 4} if kind == "gpt_neox" else {})),
                         35)
    model.save_pretrained(tmp_path / "folder")
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    config["rope_parameters"].update(rope)
    (tmp_path / "folder" / "config.json").write_text(json.dumps(config))
    write(tmp_path / "model.gguf", model, **changes)
    folder, file = Model(tmp_path / "folder"), Model(tmp_path / "model.gguf")
    assert np.array_equal(file(some_ids(36)), folder(some_ids(36)))


def test_factors(tmp_path):
    """Factors of Llama 3.1 and 3.2 in float32, for any head size and base. Similar factors are
    rejected."""
    for factor, base, width in itertools.product((8, 32), (1e4, 5e5, 1e6), (46, 64, 128)):
        factors = llama3_factors(factor, base, width)
        model = their_family("llama", dict(hidden_size=2 * width, num_attention_heads=2,
                                           num_hidden_layers=1, intermediate_size=8), 38)
        known = factors[-1] == factor  # with a small base, no pair is slow enough
        between = np.flatnonzero((factors > 1) & (factors < factor))
        for at, size in ((None, 1), (between[0], 1 + 1e-4), (0, 1 + 1e-4), (len(factors) - 2, 0.99)):
            changed = factors.copy()
            if at is not None:
                changed[at] *= size
            write(tmp_path / "model.gguf", model, changed, **{"rope.freq_base": base})
            with contextlib.nullcontext() if known and at is None else pytest.raises(
                    mha.MultiheadError, match="'rope_freqs.weight' are not those of Llama 3.1"):
                Model(tmp_path / "model.gguf")
    assert known


SLIDING, FULL = "sliding_attention", "full_attention"


@pytest.mark.parametrize("kind, options, changes", [
    ("llama", {}, {"feed_forward_length": [56] * 3, "attention.head_count": [4] * 3,
                   "attention.head_count_kv": [2] * 3, "attention.layer_norm_rms_epsilon": [1e-6] * 3}),
    ("qwen2", dict(num_key_value_heads=4), {"attention.head_count_kv": None,
                                            "attention.key_length": None}),
    ("qwen3", dict(head_dim=8), {"attention.key_length": None}),
    ("phi3", {}, {"attention.sliding_window": 0}),  # Phi 4 from llama.cpp's converter
    ("llama", dict(mlp_bias=True), {}),
    ("gemma3_text", dict(layer_types=[FULL, SLIDING, SLIDING]),
     {"attention.sliding_window_pattern": [False, True, True]}),
    ("gemma3_text", dict(layer_types=[SLIDING, FULL, SLIDING]), {"attention.sliding_window_pattern": 2}),
    ("gemma3_text", dict(layer_types=[FULL] * 3), {"attention.sliding_window": None}),
    ("gemma3_text", dict(rope_parameters={FULL: dict(rope_type="default", rope_theta=1e6),
                                          SLIDING: dict(rope_type="default", rope_theta=500.0)}),
     {"rope.freq_base_swa": 500.0}),
    ("gemma2", dict(layer_types=[SLIDING] * 3), {"attention.sliding_window_pattern": [True] * 3})],
    ids=str)
def test_layers(tmp_path, kind, options, changes):
    """Values per layer, and llama.cpp's defaults for missing keys."""
    model = their_family(kind, {**OPTIONS[kind], **(dict(
        num_hidden_layers=3, sliding_window=4, head_dim=8, query_pre_attn_scalar=8)
        if kind.startswith("gemma") else {}), **options}, 39)
    model.save_pretrained(tmp_path / "folder")
    write(tmp_path / "model.gguf", model, **changes)
    folder, file = Model(tmp_path / "folder"), Model(tmp_path / "model.gguf")
    assert np.array_equal(file(some_ids(40)), folder(some_ids(40)))


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_heads_by_layer(tmp_path, kind):
    """A key/value head that a layer stores twice is one head for both groups."""
    model = their_family(kind, OPTIONS[kind], 42)
    attention = model.model.layers[1].self_attn
    with torch.no_grad():
        for weight in (attention.k_proj.weight, attention.v_proj.weight):
            weight[len(weight) // 2:] = weight[:len(weight) // 2]
    model.save_pretrained(tmp_path / "folder")
    write(tmp_path / "model.gguf", model, **{"attention.head_count_kv": [2, 1, 2]})
    folder, file = Model(tmp_path / "folder"), Model(tmp_path / "model.gguf")
    assert file.desc.layer_kv_heads[:3] == [2, 1, 2] and file.desc.kv_heads == 2
    assert np.array_equal(file(some_ids(43)), folder(some_ids(43)))
    assert shape_of(tmp_path / "model.gguf") == shape_of(tmp_path / "folder")


def test_parts(tmp_path):
    """A model that gguf's writer split is opened by the name of any part."""
    model = their_family("llama", OPTIONS["llama"], 50)
    write(tmp_path / "whole.gguf", model)
    write(tmp_path / "model.gguf", model, each=7)
    parts = sorted(tmp_path.glob("model-*-of-*.gguf"))
    assert len(parts) > 3
    want, digests = Model(tmp_path / "whole.gguf")(some_ids(51)), set()
    for part in parts:
        assert np.array_equal(Model(part)(some_ids(51)), want)
        digests.add(digest_of(part))
    assert len(digests) == 1
    data = bytearray(parts[-1].read_bytes())
    data[-1] ^= 1
    parts[-1].write_bytes(data)
    assert digest_of(parts[0]) not in digests
    parts[-1].unlink()
    with pytest.raises(mha.MultiheadError, match=f"{parts[-1].name}: no such file; all {len(parts)} parts"):
        Model(parts[0])


@pytest.mark.parametrize("changes, words", [
    ({"block_count": None}, "key 'llama.block_count' is missing"),
    ({"block_count": 2}, "which .* does not imply|has weight 'blk.2."),
    ({"block_count": 9}, "weight 'blk.3.*' is missing|holds .* numbers"),
    ({"embedding_length": 16}, "token_embd.weight' has shape"),
    ({"attention.head_count_kv": [2] * 4}, "'llama.attention.head_count_kv' has 4 elements, expected 3"),
    ({"attention.head_count": None}, "key 'llama.attention.head_count' is missing"),
    ({"feed_forward_length": [56, 56, 48]}, "'llama.feed_forward_length' differs from layer to layer"),
    ({"feed_forward_length": [56, 56]}, "'llama.feed_forward_length' has 2 elements, expected 3"),
    ({"attention.sliding_window_pattern": 2}, "'llama.*pattern' is not supported in this architecture"),
    ({"attention.max_alibi_bias": float("nan")}, "max_alibi_bias' has a value that is not supported"),
    ({"attention.causal": False}, "'llama.attention.causal' is false"),
    ({"attention.head_count": "four"}, "head_count"),
    ({"rope.scaling.type": "yarn"}, "'llama.rope.scaling.type' is not supported here"),
    ({"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0}, "'llama.rope.scaling.type' is not"),
    ({**YARN_KEYS, "factors": llama3_factors(8, 1e6, 8), "rope.freq_base": 1e6}, "without rope_freqs"),
    ({**YARN_KEYS, "rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier' is not supported"),
    ({**YARN_KEYS, "rope.scaling.yarn_attn_factor": 1.0}, "yarn_attn_factor' is not supported"),
    ({**YARN_KEYS, "rope.scaling.yarn_ext_factor": 0.5}, "yarn_ext_factor' is not supported"),
    ({"rope.scaling.attn_factor": 1.5}, "attn_factor' is not supported"),
    ({"rope.scaling.alpha": 2.0}, "alpha' is not supported"),
    ({"factors": [1.0, 1.0, 8.0]}, "'rope_freqs.weight' are not those"),
    ({"extra": {"rope_factors_short.weight": np.ones(4, np.float32)}}, "has weight 'rope_factors_short.weight'"),
    ({"expert_count": 6, "expert_used_count": 2}, "weight 'blk.0.ffn_gate_inp.weight' is missing|holds .* numbers"),
    ({"split.count": 3, "split.no": 1}, "is part 2 of 3 of a model.* its name must end in -00002-of-00003.gguf"),
    ({"rope.dimension_count": 0}, "rope.dimension_count"),
    ({"rope.dimension_count": 4}, "'llama.rope.dimension_count' rotates 4 of a head's 8 .*whole heads"),
    ({"rope.dimension_count": 64}, "is 64, expected 1..8, the size of a head")], ids=str)
def test_refused(tmp_path, changes, words):
    write(tmp_path / "model.gguf", their_family("llama", {}, 33), **changes)
    with pytest.raises(mha.MultiheadError, match=words) as error:
        Model(tmp_path / "model.gguf")
    assert "again" not in str(error.value)  # the file is complete


def test_an_unknown_variant(tmp_path):
    """A weight that no family has. The message must not call the file damaged."""
    model = their_family("qwen2", {}, 44)
    model.model.layers[0].mlp.gate_proj.bias = torch.nn.Parameter(torch.zeros(model.config.intermediate_size))
    write(tmp_path / "model.gguf", model)
    with pytest.raises(mha.MultiheadError, match="weight 'blk.0.ffn_gate.bias', .* is not supported") as error:
        Model(tmp_path / "model.gguf")
    assert "again" not in str(error.value)


@pytest.mark.parametrize("keys, names, ends", [
    ({"eos_token_id": 3}, {}, [3]), ({"eos_token_id": 3, "eot_token_id": 7, "eom_token_id": 3}, {}, [3, 7]),
    ({"eot_token_id": 60, "eom_token_id": 61}, {}, [60]), ({}, {9: "<|im_end|>", 4: "<|endoftext|>"}, [4, 9]),
    ({"eos_token_id": 2}, {5: "<end_of_turn>", 2: "<eos>", 6: "<|im_start|>"}, [2, 5]), ({}, {}, [])], ids=str)
def test_end_tokens(tmp_path, keys, names, ends):
    """End tokens are exactly llama.cpp's. Ids without a token are ignored."""
    tokens = [names.get(i, f"token{i}") for i in range(61)]
    write(tmp_path / "model.gguf", their_family("llama", {}, 45), **{"tokenizer.ggml.tokens": tokens},
          **{f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    model, ids = Model(tmp_path / "model.gguf"), C.c_void_p()
    count = LIBRARY.mha_model_end_tokens(model.model, C.byref(ids))
    assert _tensor.numbers(ids.value, count, np.int32).tolist() == ends


@pytest.mark.parametrize("kind, key, value, words", [
    ("llama", "block_count", 0, "is 0, expected 1..4096"),
    ("llama", "context_length", 1 << 21, "is 2097152, expected 1..1048576"),
    ("gpt2", "context_length", 0, "is 0, expected 1.."),
    ("llama", "embedding_length", 0, "is 0, expected 1.."),
    ("gpt2", "feed_forward_length", 0, "is 0, expected 1.."),
    ("gpt_neox", "attention.head_count", 5, "embedding_length 32 is not a multiple of gptneox.*count 5"),
    ("llama", "attention.head_count_kv", 0, "is 0, expected 1.."),
    ("llama", "attention.head_count_kv", 3, "is 3, which does not divide 'llama.attention.head_count' 4"),
    ("qwen3", "attention.key_length", 0, "is 0, expected 1.."),
    ("gemma2", "attention.sliding_window", 0, "is 0, expected 1.."),
    ("olmo3", "attention.sliding_window", 0, "is 0, expected 1.."),
    ("olmo3", "rope.freq_base", 1e4, "is 10000; move it into rope_parameters"),
    ("qwen2", "attention.layer_norm_rms_epsilon", 0.0, "is 0, expected more than 0, at most 1"),
    ("gpt2", "attention.layer_norm_epsilon", -1.0, "is -1, expected a finite number from 0 on"),
    ("phi3", "attention.head_count_kv", [2, 2, 1], "differs from layer to layer"),
    ("llama", "attention.head_count_kv", [2, 5, 2], "number 1 is not a whole number from 0 to 4"),
    ("phi3", "rope.freq_base", 0.5, "is 0.5, expected 1 or more"),
    ("gemma3_text", "rope.freq_base_swa", 0.5, "is 0.5, expected 1 or more"),
    ("gemma2", "attn_logit_softcapping", 0.0, "is 0, expected at least 1e-06"),
    ("gemma3_text", "attn_logit_softcapping", 5.0, "is set, and models that use it"),
    ("gemma2", "final_logit_softcapping", 0.0, "is 0, expected at least 1e-06"),
    ("llama", "rope.scale_linear", 0.0, "is 0, expected at least 1e-06"),
    ("llama", "rope.scaling.original_context_length", 0, "is 0, expected 1.."),
    ("llama", "rope.scaling.factor", 0.0, "is 0, expected at least 1e-06"),
    ("llama", "rope.scaling.yarn_beta_fast", 0.5, "is 0.5, expected at least .*beta_slow' 1"),
    ("llama", "rope.scaling.attn_factor", -1.0, "is -1.13863, expected a finite number"),
    ("qwen3_5_text", "ssm.inner_size", 31, "is 31, which qwen35.ssm.time_step_rank 3 does not divide"),
    ("qwen3_5_text", "ssm.group_count", 1, "differs from ssm.time_step_rank, which is not supported"),
    ("qwen3_5_text", "nextn_predict_layers", 1, "counts layers that are not supported"),
    ("granitemoehybrid", "ssm.inner_size", 65, "is 65, which granitehybrid.ssm.time_step_rank 4 does not divide"),
    ("granitemoehybrid", "ssm.inner_size", 68, "is not a multiple of embedding_length, which is not supported"),
    ("granitemoehybrid", "ssm.group_count", 3, "is 4, expected a multiple of 'granitehybrid.ssm.group_count', 3"),
    ("granitemoehybrid", "ssm.state_size", 0, "is 0, expected 1.."),
    ("granitemoehybrid", "residual_scale", 0.0, "is 0, expected at least 1e-09"),
    ("granitemoehybrid", "rope.dimension_count", 4, "rotates 4 of a head's 8"),
    ("mamba2", "ssm.inner_size", 68, "is not a multiple of embedding_length, which is not supported"),
    ("mamba2", "ssm.state_size", 0, "is 0, expected 1.."),
    ("nemotron_h", "feed_forward_length", [0, 56, 56], "differs from layer to layer"),
    ("nemotron_h", "feed_forward_length", [56, 57, 0], "differs from layer to layer"),
    ("nemotron_h", "feed_forward_length", 0, "is 0, expected 1.."),
    ("nemotron_h", "ssm.time_step_rank", 3, "which nemotron_h.ssm.time_step_rank 3 does not divide"),
    ("gpt_neox", "rope.dimension_count", 9, "is 9, expected 1..8, the size of a head")], ids=str)
def test_messages(tmp_path, kind, key, value, words):
    """Errors of metadata name its key, not the internal config.json."""
    scaled = YARN_KEYS if "rope.scaling" in key else {}
    write(tmp_path / "model.gguf", their_family(kind, OPTIONS[kind], 41), **{**scaled, key: value})
    with pytest.raises(mha.MultiheadError, match=words) as error:
        Model(tmp_path / "model.gguf")
    assert f"{KINDS[kind][0]}.{key}" in str(error.value) and "config" not in str(error.value)


def test_other_architectures(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(mha.MultiheadError, match="'mamba' is not supported; known: llama, qwen2"):
        Model(tmp_path / "x.gguf")




@pytest.mark.gate(0)
def test_smollm2(smollm2):
    """Logits and all maps of a real model have at most twice torch's error relative to float64."""
    ours = Model(SMOLLM2)
    ids = np.random.default_rng(34).integers(0, 49152, (1, 24))
    with torch.no_grad():
        single = smollm2(torch.from_numpy(ids), output_attentions=True)
        exact = copy.deepcopy(smollm2).double()(torch.from_numpy(ids), output_attentions=True)
    maps, _ = ours.look(ids)
    for mine, wanted, theirs in [(ours(ids), exact.logits, single.logits)] + list(
            zip(maps, exact.attentions, single.attentions)):
        assert rounds_like(mine, theirs.numpy(), wanted.numpy())


@pytest.mark.skipif(not (mha.LIBRARY_DIR / "multihead").exists(), reason="no program")
def test_program(tmp_path):
    """prune reports unsupported output before it measures. Metadata of a wrong type is bad
    input."""
    tokens = ["<s>", "</s>", *"abcdefgh"]
    own = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
           "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": ["a b"]}
    own["tokenizer.ggml.tokens"].append("ab")
    path = tmp_path / "model.gguf"
    (tmp_path / "text").write_text("abc abd")
    write(path, their_family("llama", {}, 37), **own)
    run = lambda *arguments: subprocess.run([mha.LIBRARY_DIR / "multihead", *arguments], text=True,
                                            capture_output=True)
    found = run("prune", path, "--text", tmp_path / "text", "-o", tmp_path / "smaller")
    assert found.returncode == 5 and "is a GGUF file" in found.stderr and not found.stdout
    for key, value in {"tokenizer.ggml.bos_token_id": "one", "block_count": "three",
                       "tokenizer.ggml.tokens": list(range(len(tokens)))}.items():
        write(path, their_family("llama", {}, 37), **{**own, key: value})
        found = run("generate", path, "abc")
        assert found.returncode == 4 and "is of type" in found.stderr, (key, found)


CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")


@pytest.mark.parametrize("name", ["gpt-4o", "tekken"])
def test_splitters(tmp_path, name):
    """A vocabulary in a file gives the tokens of its tokenizer.json."""
    bpe = pytest.importorskip("test_tokenizer_bpe_hf")
    splitter = bpe.pre_tokenizers.Sequence([bpe.isolate(CASED if name == "tekken" else bpe.GPT4O),
                                            bpe.byte_level(regex=False)])
    reference = bpe.rebuild(bpe.train(None, splitter, []), None, splitter, ignore_merges=name == "tekken")
    vocabulary = reference.get_vocab()
    tokens = sorted(vocabulary, key=vocabulary.get)
    merges = [" ".join(pair) for pair in json.loads(reference.to_str())["model"]["merges"]]
    write(tmp_path / "model.gguf", their_family(
        "llama", dict(vocab_size=len(tokens), max_position_embeddings=2048), 49), **{
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": name, "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": merges, "tokenizer.ggml.add_bos_token": False})
    model = multihead.Model(tmp_path / "model.gguf")
    for text in [*bpe.CORPUS, "HTMLParser isn't XMLish; DON'T shout\u01c5ab 12345 a//b/\n\n  caf\u00e9 \u0130stanbul"]:
        assert model.tokenize(text).ids.tolist() == reference.encode(text).ids
