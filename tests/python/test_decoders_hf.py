"""Decoders that differ from Llama or GPT-2 in few settings, compared with transformers in float64: logits,
maps, greedy tokens, gradients, and their own folders. The models are random."""
import re

import numpy as np
import pytest
import torch

import checkpoint_ctypes as ck
import multihead
from decoder_checks import check_bits, check_gradients, check_greedy, check_logits
from test_experts_hf import EXPERTS, make_net, save
from test_hybrid_hf import SIZES as HYBRID, TEXT

COMMON = {name: HYBRID[name] for name in ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")}
PLAIN = {**COMMON, "hidden_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": 256}
SIZES = {**PLAIN, "intermediate_size": 80, "num_key_value_heads": 2}
GPT = {**COMMON, "n_embd": 48, "n_layer": 4, "n_head": 4, "n_positions": 256}
BLOOM = {**COMMON, "hidden_size": 48, "n_layer": 3}
MPT = {**COMMON, "d_model": 48, "n_layers": 3, "n_heads": 4, "max_seq_len": 256}
NEO = {**COMMON, "hidden_size": 48, "num_layers": 4, "num_heads": 4, "max_position_embeddings": 256,
       "attention_types": [[["global", "local"], 2]]}
SLIDING, FULL = "sliding_attention", "full_attention"
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e3, "factor": 8., "original_max_position_embeddings": 64,
          "low_freq_factor": 1., "high_freq_factor": 4.}
YARN = {"rope_type": "yarn", "rope_theta": 5e3, "factor": 4., "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.5}
PART = {"rope_type": "default", "rope_theta": 5e3, "partial_rotary_factor": .75}
ROUTED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 1}
M2 = {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16}
ERNIE = {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 2}
SWA = {"embedding_multiplier": 12, "residual_multiplier": .22, "attention_multiplier": .15, "logits_scaling": 6,
       "layer_types": [SLIDING, FULL] * 2, "sliding_window": 9}
KINDS = {
    "opt": ("OPT", {**PLAIN, "ffn_dim": 80}),
    "opt, post-norm": ("OPT", {**PLAIN, "ffn_dim": 96, "do_layer_norm_before": False, "tie_word_embeddings": False}),
    "opt, gelu": ("OPT", {**PLAIN, "ffn_dim": 64, "activation_function": "gelu", "enable_bias": False}),
    "biogpt": ("BioGpt", {**PLAIN, "intermediate_size": 80}),
    "biogpt, unscaled": ("BioGpt", {**PLAIN, "intermediate_size": 64, "scale_embedding": False, "hidden_act": "relu",
                                    "tie_word_embeddings": False}),
    "bloom": ("Bloom", {**BLOOM, "n_head": 8}),
    "bloom, six heads": ("Bloom", {**BLOOM, "n_head": 6, "layer_norm_epsilon": 1e-3}),
    "bloom, one head": ("Bloom", {**BLOOM, "n_head": 1, "tie_word_embeddings": False}),
    "mpt": ("Mpt", MPT),
    "mpt, three heads": ("Mpt", {**MPT, "n_heads": 3, "attn_config": {"softmax_scale": .4}}),
    "mpt, twelve heads": ("Mpt", {**MPT, "n_heads": 12, "tie_word_embeddings": False, "layer_norm_epsilon": 1e-3}),
    "gpt_neo": ("GPTNeo", {**NEO, "window_size": 9}),
    "gpt_neo, wide": ("GPTNeo", {**NEO, "window_size": 1, "intermediate_size": 100, "activation_function": "relu"}),
    "gpt_neo, global": ("GPTNeo", {**NEO, "attention_types": [[["local"], 1], [["global"], 3]], "window_size": 40,
                                   "tie_word_embeddings": False}),
    "gpt_bigcode": ("GPTBigCode", GPT),
    "gpt_bigcode, all heads": ("GPTBigCode", {**GPT, "multi_query": False, "n_inner": 100}),
    "gpt_bigcode, unscaled": ("GPTBigCode", {**GPT, "scale_attn_weights": False, "activation_function": "gelu",
                                             "tie_word_embeddings": False}),
    "gptj": ("GPTJ", {**GPT, "rotary_dim": 8}),
    "gptj, whole heads": ("GPTJ", {**GPT, "rotary_dim": 12, "n_inner": 100, "activation_function": "gelu"}),
    "gptj, two": ("GPTJ", {**GPT, "rotary_dim": 2, "layer_norm_epsilon": 1e-3}),
    "phi": ("Phi", {**SIZES, "num_key_value_heads": 4}),
    "phi, grouped": ("Phi", {**SIZES, "hidden_act": "relu", "rope_parameters": {**PART, "partial_rotary_factor": 1.}}),
    "phi, part": ("Phi", {**SIZES, "num_attention_heads": 6, "rope_parameters": PART}),
    "falcon": ("Falcon", PLAIN),
    "falcon, groups": ("Falcon", {**PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2, "bias": True}),
    "falcon, one norm": ("Falcon", {**PLAIN, "new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 90,
                                    "num_ln_in_parallel_attn": 1, "rope_parameters": LINEAR}),
    "falcon, alibi": ("Falcon", {**PLAIN, "num_attention_heads": 8, "alibi": True, "multi_query": False,
                                 "parallel_attn": False, "bias": True, "tie_word_embeddings": False}),
    "starcoder2": ("Starcoder2", {**SIZES, "sliding_window": 9}),
    "starcoder2, unbiased": ("Starcoder2", {**SIZES, "use_bias": False, "hidden_act": "gelu"}),
    "starcoder2, yarn": ("Starcoder2", {**SIZES, "num_key_value_heads": 1, "rope_parameters": YARN,
                                        "tie_word_embeddings": False, "norm_epsilon": 1e-3}),
    "qwen2_moe": ("Qwen2Moe", {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen2_moe, dense layers": ("Qwen2Moe", {
        **SIZES, **EXPERTS, "shared_expert_intermediate_size": 7, "mlp_only_layers": [1], "norm_topk_prob": True,
        "qkv_bias": False, "use_sliding_window": True, "sliding_window": 9, "layer_types": [SLIDING, FULL] * 2}),
    "qwen2_moe, tables": ("Qwen2Moe", {**SIZES, **EXPERTS, "shared_expert_intermediate_size": 32, "num_experts": 12,
                                       "decoder_sparse_step": 2, "rope_parameters": YARN}),
    "glm": ("Glm", {**SIZES, "head_dim": 12}),
    "glm, unbiased": ("Glm", {**SIZES, "head_dim": 16, "attention_bias": False, "rope_parameters": PART}),
    "glm, yarn": ("Glm", {**SIZES, "head_dim": 8, "rope_parameters": {**YARN, "partial_rotary_factor": .5}}),
    "glm4_moe": ("Glm4Moe", {**SIZES, **ROUTED, "use_qk_norm": True}),
    "glm4_moe, groups": ("Glm4Moe", {**SIZES, **ROUTED, "head_dim": 16, "attention_bias": True, "n_group": 4,
                                     "topk_group": 2, "first_k_dense_replace": 2, "routed_scaling_factor": 2.5}),
    "glm4_moe, tables": ("Glm4Moe", {**SIZES, **ROUTED, "n_shared_experts": 2, "norm_topk_prob": False}),
    "dots1": ("Dots1", {**SIZES, **ROUTED}),
    "dots1, window": ("Dots1", {**SIZES, **ROUTED, "sliding_window": 9, "max_window_layers": 2, "n_group": 2,
                                "topk_group": 1, "norm_topk_prob": True}),
    "dots1, tables": ("Dots1", {**SIZES, **ROUTED, "first_k_dense_replace": 1, "attention_bias": True}),
    "minimax_m2": ("MiniMaxM2", {**SIZES, **M2, "rotary_dim": 8}),
    "minimax_m2, whole heads": ("MiniMaxM2", {**SIZES, **M2, "num_experts_per_tok": 1}),
    "minimax_m2, tables": ("MiniMaxM2", {**SIZES, **M2, "num_local_experts": 3, "rope_parameters": {
        **YARN, "partial_rotary_factor": .5}}),
    "ernie4_5": ("Ernie4_5", {**SIZES, "head_dim": 16}),
    "ernie4_5, biases": ("Ernie4_5", {**SIZES, "head_dim": None, "use_bias": True, "tie_word_embeddings": False}),
    "ernie4_5, linear": ("Ernie4_5", {**SIZES, "head_dim": 8, "rope_parameters": LINEAR}),
    "ernie4_5_moe": ("Ernie4_5_Moe", {**SIZES, **ERNIE}),
    "ernie4_5_moe, some layers": ("Ernie4_5_Moe", {**SIZES, **ERNIE, "moe_layer_start_index": 0,
                                                   "moe_layer_end_index": 2, "moe_layer_interval": 2}),
    "ernie4_5_moe, tables": ("Ernie4_5_Moe", {**SIZES, **ERNIE, "moe_k": 6, "tie_word_embeddings": False}),
    "exaone4": ("Exaone4", {**SIZES, "sliding_window": 9}),
    "exaone4, no window": ("Exaone4", {**SIZES, "sliding_window": None, "layer_types": [FULL] * 4}),
    "exaone4, llama3": ("Exaone4", {**SIZES, "sliding_window": 20, "sliding_window_pattern": 2, "head_dim": 16,
                                    "rope_parameters": LLAMA3}),
    "seed_oss": ("SeedOss", {**SIZES, "head_dim": 16}),
    "seed_oss, unbiased": ("SeedOss", {**SIZES, "head_dim": None, "attention_bias": False, "mlp_bias": True}),
    "seed_oss, yarn": ("SeedOss", {**SIZES, "head_dim": 10, "rope_parameters": YARN}),
    "arcee": ("Arcee", SIZES),
    "arcee, biases": ("Arcee", {**SIZES, "attention_bias": True, "mlp_bias": True, "rope_parameters": YARN}),
    "arcee, narrow": ("Arcee", {**SIZES, "head_dim": 6, "hidden_act": "gelu", "tie_word_embeddings": True}),
    "nemotron": ("Nemotron", SIZES),
    "nemotron, biases": ("Nemotron", {**SIZES, "attention_bias": True, "mlp_bias": True, "norm_eps": 1e-3}),
    "nemotron, whole heads": ("Nemotron", {**SIZES, "head_dim": 8, "rope_parameters": {
        **LINEAR, "partial_rotary_factor": 1.}}),
    "jais2": ("Jais2", SIZES),
    "jais2, unbiased": ("Jais2", {**SIZES, "attention_bias": False, "mlp_bias": False, "head_dim": 12}),
    "jais2, yarn": ("Jais2", {**SIZES, "num_key_value_heads": 4, "rope_parameters": YARN, "layer_norm_eps": 1e-3}),
    "helium": ("Helium", {**SIZES, "head_dim": 12}),
    "helium, biases": ("Helium", {**SIZES, "head_dim": 12, "attention_bias": True, "mlp_bias": True}),
    "helium, yarn": ("Helium", {**SIZES, "head_dim": 12, "rope_parameters": YARN, "tie_word_embeddings": True}),
    "cwm": ("Cwm", {**SIZES, "bos_token_id": 1, "head_dim": 16, "sliding_window": 9, "rope_parameters": LLAMA3}),
    "cwm, biases": ("Cwm", {**SIZES, "bos_token_id": 1, "head_dim": 12, "sliding_window": 5, "mlp_bias": True, "rope_parameters": LINEAR,
                            "layer_types": [SLIDING] * 3 + [FULL]}),
    "granite_swa": ("GraniteSWA", {**SIZES, **SWA}),
    "granite_swa, some rotate": ("GraniteSWA", {**SIZES, **SWA, "layer_rope_theta": [1e4, 0, 1e4, 0],
                                                "attention_bias": True, "tie_word_embeddings": False}),
    "olmo": ("Olmo", SIZES),
    "olmo, biases": ("Olmo", {**SIZES, "attention_bias": True, "tie_word_embeddings": True}),
    "olmo, yarn": ("Olmo", {**SIZES, "num_key_value_heads": 4, "rope_parameters": YARN})}
FAMILIES = [kind for kind in KINDS if "," not in kind]
TRAINED = [kind for kind in FAMILIES if kind != "olmo" and "moe" not in kind and kind not in ("dots1", "minimax_m2")]
# Names of transformers: the library's, after the prefix of the model or of a layer.
OUTER = {"wte": "embed_tokens", "word_embeddings": "embed_tokens", "wpe": "embed_positions", "ln_f": "norm",
         "word_embeddings_layernorm": "embed_norm", "norm_f": "norm", "final_layer_norm": "norm",
         "final_layernorm": "norm", "layer_norm": "norm", "output_projection": "lm_head"}
LAYER = {"ln_1": "self_attn_norm", "norm_1": "self_attn_norm", "input_layernorm": "self_attn_norm",
         "ln_attn": "self_attn_norm", "self_attn_layer_norm": "self_attn_norm", "ln_2": "mlp_norm", "norm_2": "mlp_norm",
         "post_attention_layernorm": "mlp_norm", "ln_mlp": "mlp_norm", "final_layer_norm": "mlp_norm"}
LAYER |= {f"{attention}.{theirs}": f"self_attn.{ours}" for attention in ("attn", "attn.attention", "self_attn")
          for theirs, ours in dict(q_proj="q_proj", k_proj="k_proj", v_proj="v_proj", out_proj="o_proj", dense="o_proj",
                                   c_proj="o_proj", o_proj="o_proj").items()} | {"self_attention.dense": "self_attn.o_proj"}
LAYER |= dict.fromkeys(("fc1", "mlp.fc1", "mlp.c_fc", "mlp.fc_in", "mlp.dense_h_to_4h", "ffn.up_proj"), "mlp.up_proj")
LAYER |= dict.fromkeys(("fc2", "mlp.fc2", "mlp.c_proj", "mlp.fc_out", "mlp.dense_4h_to_h", "ffn.down_proj"),
                       "mlp.down_proj")


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net = make_net(*KINDS[request.param])
    return net, multihead.Model(save(net, tmp_path_factory.mktemp("decoder"), "tables" in request.param))


@pytest.mark.gate(8)
def test_logits_are_those_of_transformers_in_double(made):
    check_logits(*made)


@pytest.mark.gate(4)
def test_greedy_tokens_are_those_of_transformers(made):
    check_greedy(*made)


@pytest.mark.gate(2)
def test_threads_batches_and_steps_change_no_bit(made):
    check_bits(made[1], [(1, False), (90, False)])


@pytest.mark.gate(4)
@pytest.mark.parametrize("made", [kind for kind in KINDS if not kind.startswith("falcon")], indirect=True)
def test_maps_are_those_of_transformers(made):
    """Not of Falcon, whose logits differ with output_attentions. Granite's maps omit the sink."""
    net, model = made
    net.set_attn_implementation("eager")
    ids = torch.tensor([model.tokenize(TEXT).ids.tolist()])
    with torch.no_grad():
        theirs = [p[0].numpy() for p in net(ids, output_attentions=True).attentions]
    ours = model.attention(TEXT).probabilities
    assert len(theirs) == len(ours) == model.layers
    assert all(np.abs(mine / mine.sum(-1, keepdims=True) - other).max() < 1e-5 for mine, other in zip(ours, theirs))


@pytest.mark.gate(3)
@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_own_folders_preserve_the_bits(made, tmp_path):
    ids, ours = torch.randint(0, 97, (1, 60)).numpy(), ck.Transformer(made[1].path)
    ours.save(tmp_path / "own")
    assert np.array_equal(ck.Transformer(tmp_path / "own")(ids), ours(ids))


def split_fused(net, stem, x):
    """Rows of q, k and v: in MPT in this order, else for each head of k."""
    config = net.config
    heads = config.num_attention_heads
    D, kinds = config.hidden_size // heads, [f"self_attn.{part}_proj" for part in "qkv"]
    if stem.endswith("Wqkv"):
        return dict(zip(kinds, x.chunk(3)))
    shared = config.model_type == "falcon" and not config.new_decoder_architecture or stem.endswith("c_attn")
    groups = 1 if shared and config.multi_query else getattr(config, "num_kv_heads", heads)
    rows = x.reshape(groups, heads // groups + 2, D, *x.shape[1:])
    return {kind: part.reshape(-1, *x.shape[1:]) for kind, part in zip(kinds, (rows[:, :-2], rows[:, -2], rows[:, -1]))}


def as_ours(net, name, x):
    name = re.sub(r"^(transformer|model\.decoder|model|biogpt)\.", "", name)
    layer, stem, kind = re.fullmatch(r"((?:h|blocks|layers)\.\d+\.)?(.+)\.(\w+)", name).groups()
    layer = layer and re.sub(r"^\w+", "layers", layer)
    if stem.endswith(("query_key_value", "c_attn", "Wqkv")):
        return {f"{layer}{part}.{kind}": rows for part, rows in split_fused(net, stem, x).items()}
    if stem == "mlp.gate_up_proj":
        return {f"{layer}mlp.{part}_proj.{kind}": rows for part, rows in zip(("gate", "up"), x.chunk(2))}
    if kind == "sinks":
        return {f"{layer}self_attn.sinks": x}
    ours = (LAYER if layer else OUTER).get(stem, stem)
    if net.config.model_type == "exaone4" and "layernorm" in stem:
        ours = {"post_attention_layernorm": "self_attn_post_norm", "post_feedforward_layernorm": "mlp_post_norm"}[stem]
    return {f"{layer or ''}{ours}.{kind}": x[2:] if stem == "embed_positions" else x}


@pytest.mark.gate(2)
@pytest.mark.parametrize("made", [*TRAINED, "falcon, groups", "falcon, alibi", "gpt_bigcode, all heads"], indirect=True)
def test_gradients_are_those_of_torch(made):
    check_gradients(made[0], ck.Transformer(made[1].path), as_ours)
