"""The meaning of a config.json field that is present, absent, null, misplaced or duplicated. For
every family, each field is deleted, set to null, changed, and moved or copied to other levels
(config.json itself, rope_parameters, rope_scaling, their objects for kinds of layers) and to its
other names. Fields of other families are added. The model of transformers' AutoConfig in float64
must then have the library's numbers, or the library rejects the file and names the field. The gate
tests some cases of each family, MHA_TEST_DEEP=1 tests more, and MHA_TEST_LONG=1 tests all."""
import copy
import json
import random
import re
from collections import Counter

import numpy as np
import pytest
import torch
import transformers

import checkpoint_ctypes as ck
import multihead
import multihead_ctypes as mha
from shared import ROOT, SEED, amount
from test_encoders_hf import OLD_NOMIC  # swept there

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

VOCAB, LENGTH, LAYERS = 61, 32, 2
IDS = np.random.default_rng(5).integers(3, VOCAB, (1, LENGTH - 2))
IDS[0, [4, 5, 11]] = 4  # the padding token of some families
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=LAYERS, num_attention_heads=4,
             max_position_embeddings=LENGTH)
GROUPED = dict(SIZES, num_key_value_heads=2)
SLIDING, FULL = "sliding_attention", "full_attention"
TYPES = [SLIDING, FULL]
DEFAULT = dict(rope_type="default", rope_theta=5e3)
LINEAR = dict(rope_type="linear", rope_theta=5e3, factor=2.5)
YARN = dict(rope_type="yarn", rope_theta=5e3, factor=4.0, original_max_position_embeddings=8, beta_fast=4.0,
            beta_slow=0.5, mscale=0.7, mscale_all_dim=0.3, truncate=True)
LLAMA3 = dict(rope_type="llama3", rope_theta=5e3, factor=8.0, original_max_position_embeddings=8,
              low_freq_factor=1.0, high_freq_factor=4.0)
DYNAMIC = dict(rope_type="dynamic", rope_theta=5e3, factor=2.0)
SPACES = dict(mamba_n_heads=4, mamba_d_state=8)
GRANITE = dict(SPACES, num_local_experts=0, shared_intermediate_size=40, embedding_multiplier=3.0,
               residual_multiplier=0.6, attention_multiplier=0.4, logits_scaling=2.0)
SCALED = dict(num_local_experts=5, num_experts_per_tok=2, embedding_multiplier=3.0, residual_multiplier=0.6,
              attention_multiplier=0.4, logits_scaling=2.0)
OLMO = dict(layer_types=["linear_attention", FULL], linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=6, linear_value_head_dim=10)
OSS = dict(num_local_experts=5, num_experts_per_tok=2)
PURE = dict(num_heads=4, head_dim=16, state_size=8)
NEMOTRON = dict(mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=2, head_dim=8)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=24)
NETS = dict(shared_expert_intermediate_size=20, head_dim=16, linear_num_key_heads=2, linear_num_value_heads=4,
            linear_key_head_dim=6, linear_value_head_dim=10)
LATENT = dict(num_key_value_heads=4, kv_lora_rank=12, q_lora_rank=14, qk_nope_head_dim=6, qk_rope_head_dim=4,
              v_head_dim=10)
DIRECT = dict(LATENT, q_lora_rank=None)
GEMMA4 = dict(num_hidden_layers=4, layer_types=[SLIDING, FULL] * 2, head_dim=6, global_head_dim=10, sliding_window=5,
              vocab_size_per_layer_input=VOCAB, rope_parameters={
                  FULL: dict(rope_type="proportional", rope_theta=5e3, partial_rotary_factor=.5, factor=2.0),
                  SLIDING: dict(rope_type="default", rope_theta=200.0)})
GROUPS = dict(n_routed_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, n_shared_experts=1, n_group=4,
              topk_group=2)
ERNIE = dict(moe_num_experts=5, moe_k=2, moe_intermediate_size=24, moe_num_shared_experts=1)
KIMI = dict(num_local_experts=8, num_experts_per_tok=2, moe_intermediate_size=24, linear_head_dim=6,
            linear_num_heads=3, pad_token_id=0)
DEBERTA = dict(relative_attention=True, pos_att_type=["p2c", "c2p"])
BASES = {  # settings of each family with which more of its fields matter
    "llama": [dict(rope_parameters=rope) for rope in (DEFAULT, LINEAR, YARN, LLAMA3, DYNAMIC)],
    "mistral": [dict(sliding_window=5), dict(sliding_window=None, rope_parameters=LINEAR)],
    "qwen2": [dict(use_sliding_window=True, sliding_window=6, max_window_layers=1, rope_parameters=DEFAULT),
              dict(rope_parameters=YARN)],
    "qwen3": [dict(head_dim=6, use_sliding_window=True, sliding_window=6, max_window_layers=1),
              dict(head_dim=128, attention_bias=True, rope_parameters=LLAMA3)],
    "gemma": [dict(head_dim=6, rope_parameters=DEFAULT), dict(head_dim=8, attention_bias=True, rope_parameters=LINEAR)],
    "gemma2": [dict(head_dim=6, sliding_window=5, query_pre_attn_scalar=9, rope_parameters=DEFAULT),
               dict(head_dim=8, sliding_window=5, rope_parameters=YARN)],
    "gemma3_text": [dict(head_dim=6, sliding_window=5, layer_types=TYPES, query_pre_attn_scalar=9, rope_parameters={
                        FULL: {**LINEAR, "rope_theta": 3e4}, SLIDING: dict(DEFAULT, rope_theta=900.0)}),
                    dict(head_dim=8, sliding_window=5, layer_types=TYPES, rope_parameters={
                        FULL: YARN, SLIDING: DEFAULT})],
    "phi3": [dict(sliding_window=6, pad_token_id=0, rope_parameters=DEFAULT),
             dict(pad_token_id=0, original_max_position_embeddings=16, rope_parameters=dict(
                 rope_type="longrope", rope_theta=5e3, short_factor=[1.0, 1.1, 1.2, 1.3],
                 long_factor=[2.0, 3.0, 4.0, 5.0])),
             dict(pad_token_id=0, rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5))],
    "gpt2": [{}, dict(n_inner=40, activation_function="gelu", scale_attn_weights=False)],
    "gpt_neox": [dict(rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
                 dict(use_parallel_residual=False, rope_parameters={**LINEAR, "partial_rotary_factor": 0.75})],
    "lfm2": [dict(layer_types=["conv", FULL], block_multiple_of=8, conv_L_cache=4, rope_parameters=DEFAULT),
             dict(layer_types=[FULL, "conv"], block_auto_adjust_ff_dim=False, tie_word_embeddings=False,
                  rope_parameters=YARN)],
    "bamba": [dict(SPACES, attn_layer_indices=[1], mamba_n_groups=2, rope_parameters=DEFAULT),
              dict(SPACES, attn_layer_indices=[0], mamba_d_head=16, time_step_limit=[.1, .7], mlp_bias=True,
                   rope_parameters=YARN)],
    "granitemoehybrid": [dict(GRANITE, mamba_n_groups=2, layer_types=["linear_attention", FULL]),
                         dict(GRANITE, layer_types=[FULL, "linear_attention"], position_embedding_type="rope",
                              attention_bias=True, time_step_limit=[.1, .7], rope_parameters=LINEAR),
                         dict(GRANITE, num_local_experts=5, layer_types=["linear_attention", FULL])],
    "olmo_hybrid": [dict(OLMO, pad_token_id=0, rope_parameters=DEFAULT),
                    dict(OLMO, pad_token_id=0, layer_types=[FULL, "linear_attention"], linear_allow_neg_eigval=False,
                         attention_bias=True, rope_parameters=dict(rope_type="default", rope_theta=None))],
    "granitemoe": [dict(SCALED, rope_parameters=DEFAULT),
                   dict(SCALED, num_local_experts=3, num_experts_per_tok=3, attention_bias=True, rope_parameters=YARN)],
    "granitemoeshared": [dict(SCALED, shared_intermediate_size=40),
                         dict(SCALED, shared_intermediate_size=0, rope_parameters=LINEAR)],
    "smollm3": [dict(no_rope_layers=[1, 0], pad_token_id=0, rope_parameters=DEFAULT),
                dict(pad_token_id=0, use_sliding_window=True, sliding_window=5, layer_types=TYPES, mlp_bias=True,
                     no_rope_layers=None, no_rope_layer_interval=2, rope_parameters=YARN)],
    "stablelm": [dict(rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
                 dict(use_qkv_bias=True, rope_parameters={**LINEAR, "partial_rotary_factor": 0.75})],
    "granite": [dict(embedding_multiplier=3.0, residual_multiplier=0.4, attention_multiplier=0.2, logits_scaling=4.0),
                dict(attention_bias=True, mlp_bias=True, rope_parameters=YARN)],
    "olmo2": [dict(pad_token_id=0, rope_parameters=DEFAULT),
              dict(pad_token_id=0, attention_bias=True, rope_parameters=YARN)],
    "olmo3": [dict(pad_token_id=0, sliding_window=5, layer_types=TYPES, rope_parameters={
                  FULL: {**YARN, "rope_theta": 5e5}, SLIDING: dict(DEFAULT, rope_theta=5e5)}),
              dict(pad_token_id=0, sliding_window=5, layer_types=TYPES[::-1], rope_parameters={
                  FULL: {**LINEAR, "rope_theta": 5e5}, SLIDING: dict(DEFAULT, rope_theta=5e5)})],
    "glm4": [dict(head_dim=8, pad_token_id=0, rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
             dict(head_dim=16, pad_token_id=0, attention_bias=False,
                  rope_parameters={**YARN, "partial_rotary_factor": 0.75})],
    "gpt_oss": [dict(OSS, head_dim=8, sliding_window=5, layer_types=TYPES, rope_parameters={**YARN, "truncate": False}),
                dict(OSS, head_dim=6, sliding_window=6, layer_types=TYPES[::-1], attention_bias=False,
                     rope_parameters=LINEAR)],
    "ministral": [dict(sliding_window=5, head_dim=8, layer_types=TYPES, rope_parameters=DEFAULT),
                  dict(sliding_window=6, head_dim=6, rope_parameters=LINEAR)],
    "ministral3": [dict(head_dim=8, rope_parameters=dict(YARN, original_max_position_embeddings=40,
                                                         llama_4_scaling_beta=0.1)),
                   dict(head_dim=6, sliding_window=5, rope_parameters=dict(YARN, llama_4_scaling_beta=0.0))],
    "cohere": [dict(logit_scale=0.5, rope_parameters=DEFAULT),
               dict(attention_bias=True, tie_word_embeddings=False, rope_parameters=YARN)],
    "cohere2": [dict(sliding_window=5, layer_types=TYPES, logit_scale=0.5, rope_parameters=DEFAULT),
                dict(sliding_window=6, layer_types=TYPES[::-1], attention_bias=True, rope_parameters=LINEAR)],
    "qwen3_moe": [dict(EXPERTS, head_dim=6, mlp_only_layers=[1], use_sliding_window=True, sliding_window=6),
                  dict(EXPERTS, head_dim=8, decoder_sparse_step=2, norm_topk_prob=True, rope_parameters=YARN)],
    "mixtral": [dict(num_local_experts=5, sliding_window=6, rope_parameters=DEFAULT),
                dict(num_local_experts=2, num_experts_per_tok=1, head_dim=6, rope_parameters=LINEAR)],
    "olmoe": [dict(num_experts=5, num_experts_per_tok=2, rope_parameters=DEFAULT, pad_token_id=0),
              dict(num_experts=4, num_experts_per_tok=4, norm_topk_prob=True, attention_bias=True, pad_token_id=0)],
    "lfm2_moe": [dict(EXPERTS, layer_types=["conv", FULL], num_dense_layers=1, conv_L_cache=4, rope_parameters=DEFAULT),
                 dict(EXPERTS, layer_types=[FULL, "conv"], num_dense_layers=0, use_expert_bias=False,
                      routed_scaling_factor=2.5, tie_word_embeddings=False, rope_parameters=LLAMA3)],
    "qwen3_next": [dict(EXPERTS, **NETS, layer_types=["linear_attention", FULL], mlp_only_layers=[1]),
                   dict(num_experts=0, **NETS, layer_types=[FULL, "linear_attention"])],
    "qwen3_5_moe_text": [dict(EXPERTS, **NETS, layer_types=["linear_attention", FULL]),
                         dict(EXPERTS, **NETS, layer_types=[FULL, "linear_attention"], attention_bias=True)],
    "deepseek_v2": [dict(LATENT, **GROUPS, topk_method="group_limited_greedy", first_k_dense_replace=1,
                         routed_scaling_factor=1.5, rope_parameters=YARN),
                    dict(DIRECT, **GROUPS, rope_parameters=DEFAULT)],
    "deepseek_v3": [dict(LATENT, **GROUPS, first_k_dense_replace=1, rope_parameters=YARN),
                    dict(DIRECT, **GROUPS, first_k_dense_replace=0, rope_interleave=False, norm_topk_prob=False,
                         rope_parameters=LINEAR)],
    "glm4_moe_lite": [dict(LATENT, **GROUPS, rope_parameters=DEFAULT),
                      dict(DIRECT, **GROUPS, mlp_layer_types=["sparse", "dense"], rope_parameters=YARN)],
    "minicpm3": [dict(LATENT, dim_model_base=16, rope_parameters=YARN),
                 dict(DIRECT, rope_parameters=dict(rope_type="longrope", rope_theta=5e3, short_factor=[1.0, 1.1],
                                                   long_factor=[2.0, 3.0], original_max_position_embeddings=16)),
                 dict(DIRECT, scale_depth=None, dim_model_base=None, mlp_bias=True, rope_parameters=DEFAULT)],
    # embeddings of layers are small, so that epsilons matter
    "gemma4_text": [dict(GEMMA4, num_kv_shared_layers=2, use_double_wide_mlp=True, hidden_size_per_layer_input=6),
                    dict(GEMMA4, attention_k_eq_v=True, num_global_key_value_heads=1, attention_bias=True,
                         hidden_size_per_layer_input=0, final_logit_softcapping=1.5)],
    # transformers zeroes the row of pad_token_id, which is also that of a tied output
    "youtu": [dict(LATENT, attention_bias=True, tie_word_embeddings=False, rope_parameters=LINEAR),
              dict(DIRECT, tie_word_embeddings=False, rope_parameters=DEFAULT)],
    "kimi_linear": [dict(DIRECT, **KIMI, layer_types=["linear_attention", FULL], mlp_layer_types=["dense", "sparse"]),
                    dict(LATENT, **KIMI, num_hidden_layers=5, n_group=4, topk_group=2, attention_bias=True)],
    "opt": [dict(ffn_dim=48), dict(ffn_dim=48, do_layer_norm_before=False, enable_bias=False)],
    "biogpt": [{}, dict(scale_embedding=False, tie_word_embeddings=False)],
    "bloom": [{}, dict(tie_word_embeddings=False, pretraining_tp=2)],
    "mpt": [{}, dict(attn_config=dict(softmax_scale=0.4))],
    "gpt_neo": [dict(attention_types=[[["global", "local"], 1]], window_size=5),
                dict(attention_types=[[["local"], 2]], window_size=4, intermediate_size=40)],
    "gpt_bigcode": [{}, dict(multi_query=False, n_inner=40, scale_attn_weights=False)],
    "gptj": [dict(rotary_dim=4), dict(rotary_dim=8, n_inner=40)],
    "phi": [dict(rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
            dict(rope_parameters={**LINEAR, "partial_rotary_factor": 0.75})],
    "falcon": [dict(rope_parameters=DEFAULT), dict(new_decoder_architecture=True, num_kv_heads=2, bias=True),
               dict(parallel_attn=False, multi_query=False)],
    "starcoder2": [dict(sliding_window=5, rope_parameters=DEFAULT),
                   dict(use_bias=False, rope_parameters=YARN)],
    "qwen2_moe": [dict(EXPERTS, shared_expert_intermediate_size=20, mlp_only_layers=[1], rope_parameters=DEFAULT),
                  dict(EXPERTS, shared_expert_intermediate_size=20, norm_topk_prob=True, use_sliding_window=True,
                       sliding_window=6, layer_types=TYPES, qkv_bias=False)],
    "glm": [dict(head_dim=8, pad_token_id=0, rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
            dict(head_dim=16, pad_token_id=0, attention_bias=False,
                 rope_parameters={**YARN, "partial_rotary_factor": 0.75})],
    "glm4_moe": [dict(GROUPS, use_qk_norm=True, first_k_dense_replace=1,
                      rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
                 dict(GROUPS, attention_bias=True, head_dim=16, first_k_dense_replace=0, norm_topk_prob=False,
                      rope_parameters={**YARN, "partial_rotary_factor": 0.5})],
    "dots1": [dict(GROUPS, first_k_dense_replace=1, rope_parameters=DEFAULT),
              dict(GROUPS, max_window_layers=1, sliding_window=5, norm_topk_prob=True, rope_parameters=LINEAR)],
    "minimax_m2": [dict(OSS, head_dim=8, rotary_dim=4), dict(OSS, head_dim=16, rope_parameters=DEFAULT)],
    "ernie4_5": [dict(head_dim=8, pad_token_id=0, rope_parameters=DEFAULT),
                 dict(head_dim=16, pad_token_id=0, use_bias=True, rope_parameters=LINEAR)],
    "ernie4_5_moe": [dict(ERNIE, pad_token_id=0, moe_layer_start_index=1, rope_parameters=DEFAULT),
                     dict(ERNIE, pad_token_id=0, moe_layer_start_index=0, moe_layer_end_index=0)],
    "exaone4": [dict(sliding_window=5, layer_types=TYPES, rope_parameters=DEFAULT),
                dict(sliding_window=None, layer_types=[FULL] * 2, rope_parameters=LLAMA3)],
    "seed_oss": [dict(head_dim=8, rope_parameters=DEFAULT),
                 dict(head_dim=16, attention_bias=False, mlp_bias=True, rope_parameters=YARN)],
    "arcee": [dict(rope_parameters=YARN), dict(attention_bias=True, mlp_bias=True, head_dim=6)],
    "nemotron": [dict(rope_parameters=dict(DEFAULT, partial_rotary_factor=0.5)),
                 dict(attention_bias=True, mlp_bias=True, head_dim=16)],
    "jais2": [dict(rope_parameters=DEFAULT), dict(attention_bias=False, mlp_bias=False, rope_parameters=LINEAR)],
    "helium": [dict(head_dim=8, pad_token_id=0, rope_parameters=DEFAULT),
               dict(head_dim=8, pad_token_id=0, attention_bias=True, mlp_bias=True)],
    "internlm3": [dict(head_dim=8, pad_token_id=0, rope_parameters=DEFAULT),
                  dict(head_dim=16, pad_token_id=0, attention_bias=True, mlp_bias=True)],
    "cwm": [dict(head_dim=8, sliding_window=5, layer_types=TYPES, rope_parameters=LLAMA3),
            dict(head_dim=16, sliding_window=6, layer_types=TYPES[::-1], mlp_bias=True, rope_parameters=LINEAR)],
    "granite_swa": [dict(sliding_window=5, layer_types=TYPES, rope_parameters=DEFAULT),
                    dict(sliding_window=5, layer_types=TYPES[::-1], layer_rope_theta=[0, 5e3], attention_bias=True,
                         attention_multiplier=0.2, rope_parameters=DEFAULT)],
    "olmo": [dict(pad_token_id=0, rope_parameters=DEFAULT), dict(pad_token_id=0, attention_bias=True)],
    "mamba2": [dict(PURE, n_groups=2), dict(PURE, n_groups=1, time_step_limit=[.1, .7], tie_word_embeddings=True)],
    "nemotron_h": [dict(NEMOTRON, layers_block_type=["linear_attention", FULL]),
                   dict(NEMOTRON, layers_block_type=["mlp", "linear_attention", FULL], mlp_bias=True, time_step_min=.4)],
    "bert": [{}], "electra": [dict(embedding_size=32), dict(embedding_size=20)], "distilbert": [{}],
    "xlm-roberta": [dict(max_position_embeddings=LENGTH + 6)], "albert": [dict(embedding_size=20)],
    "mpnet": [dict(max_position_embeddings=LENGTH + 6)], "nomic_bert": [{}],
    "modernbert": [dict(local_attention=6, layer_types=TYPES, pad_token_id=0)],
    "deberta-v2": [dict(DEBERTA, share_att_key=True, norm_rel_ebd="layer_norm", position_buckets=8,
                        position_biased_input=False), dict(DEBERTA, max_relative_positions=12)],
    "deberta": [dict(DEBERTA, position_biased_input=False)],
    "roberta": [dict(max_position_embeddings=LENGTH + 6), dict(max_position_embeddings=LENGTH + 6, pad_token_id=4)]}
GPT = dict(vocab_size=VOCAB, n_embd=32, n_layer=LAYERS, n_head=4, n_positions=LENGTH)
PLAIN = {name: size for name, size in SIZES.items() if name != "intermediate_size"}
OWN_SIZES = {"gpt2": GPT, "gpt_bigcode": GPT, "gptj": GPT, "opt": PLAIN, "falcon": PLAIN, "biogpt": SIZES,
             "bloom": dict(vocab_size=VOCAB, hidden_size=32, n_layer=LAYERS, n_head=4),
             "mpt": dict(vocab_size=VOCAB, d_model=32, n_layers=LAYERS, n_heads=4, max_seq_len=LENGTH),
             "gpt_neo": dict(vocab_size=VOCAB, hidden_size=32, num_layers=LAYERS, num_heads=4,
                             max_position_embeddings=LENGTH),
             "distilbert": dict(vocab_size=VOCAB, dim=32, hidden_dim=48, n_layers=LAYERS, n_heads=4,
                                max_position_embeddings=LENGTH),
             "mamba2": dict(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=LAYERS)}
ENCODERS = ("bert", "roberta", "electra", "distilbert", "xlm-roberta", "albert", "mpnet", "modernbert", "nomic_bert",
            "deberta-v2", "deberta")
# Fields and their other names in some version of transformers.
ALIASES = {"gpt2": [("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads"),
                    ("n_positions", "max_position_embeddings"), ("n_positions", "n_ctx"),
                    ("activation_function", "hidden_act")],
           "bloom": [("hidden_size", "n_embed"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")],
           "mpt": [("d_model", "hidden_size"), ("n_layers", "num_hidden_layers"), ("n_heads", "num_attention_heads")],
           "falcon": [("hidden_size", "n_embed")], "gptj": [("n_embd", "hidden_size")],
           "gpt_neo": [("num_layers", "num_hidden_layers"), ("num_heads", "num_attention_heads")],
           "glm4_moe": [("n_routed_experts", "num_local_experts")],
           "ernie4_5_moe": [("moe_num_experts", "num_experts"), ("moe_k", "num_experts_per_tok")],
           "internlm3": [("attention_bias", "qkv_bias"), ("mlp_bias", "bias")],
           "distilbert": [("dim", "hidden_size"), ("n_layers", "num_hidden_layers"), ("n_heads", "num_attention_heads"),
                          ("hidden_dim", "intermediate_size"), ("activation", "hidden_act")],
           "gpt_neox": [("rope_theta", "rotary_emb_base"), ("partial_rotary_factor", "rotary_pct")],
           "lfm2": [("tie_word_embeddings", "tie_embedding"), ("intermediate_size", "block_ff_dim")],
           "bamba": [("layer_types", "layers_block_type")],
           "granitemoehybrid": [("layer_types", "layers_block_type")],
           "qwen3_moe": [("num_local_experts", "num_experts")], "mixtral": [("num_local_experts", "num_experts")],
           "olmoe": [("num_experts", "num_local_experts")], "gpt_oss": [("num_local_experts", "num_experts")], "lfm2_moe": [("tie_word_embeddings", "tie_embedding")],
           "gemma": [("hidden_act", "hidden_activation")], "gemma2": [("hidden_activation", "hidden_act")],
           "gemma3_text": [("hidden_activation", "hidden_act"), ("rope_theta", "rope_local_base_freq")]}
ROPE = ("rope_theta", "rope_type", "type", "partial_rotary_factor", "factor", "original_max_position_embeddings",
        "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "low_freq_factor",
        "high_freq_factor", "truncate")
# A different value for each field, also for families without the field.
OTHER = {"vocab_size": 62, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
         "hidden_act": "gelu", "hidden_activation": "gelu", "activation_function": "relu", "activation": "relu",
         "rms_norm_eps": 1e-2, "layer_norm_eps": 1e-2, "layer_norm_epsilon": 1e-2, "rope_theta": 70.0,
         "rope_local_base_freq": 70.0, "rotary_emb_base": 70.0, "rotary_pct": 1.0, "partial_rotary_factor": 1.0,
         "rope_type": "linear", "type": "linear", "factor": 3.0, "original_max_position_embeddings": 16,
         "sliding_window": 3, "layer_types": TYPES[::-1], "sliding_window_pattern": 1, "max_window_layers": 0,
         "query_pre_attn_scalar": 30, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 0.5,
         "no_rope_layers": [0, 1], "no_rope_layer_interval": 1, "use_qkv_bias": True, "qk_layernorm": True,
         "num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 1, "norm_topk_prob": True, "clip_qkv": 2.0,
         "mlp_only_layers": [0], "decoder_sparse_step": 2, "num_dense_layers": 1, "use_expert_bias": False,
         "n_inner": 44, "n_embed": 16, "talking_head": True, "conv_kernel_size": 3, "attention_head_size": 4, "block_ff_dim": 60, "tie_embedding": False, "full_attn_idxs": [1], "pad_token_id": 2, "embedding_size": 16, "position_embedding_type": "rotary",
         "quantization_config": {"bits": 4}, "pruned_heads": {"0": [1]}, "per_layer_config": {"0": {"head_dim": 4}},
         "rope_scaling": LINEAR, "attention_factor": 0.5, "low_freq_factor": 0.5, "high_freq_factor": 9.0,
         "scale_attn_by_inverse_layer_idx": True, "is_decoder": True, "add_cross_attention": True,
         "is_encoder_decoder": True, "use_bidirectional_attention": True, "attention_bias": True, "mlp_bias": True,
         "tie_word_embeddings": True, "use_sliding_window": True, "use_parallel_residual": False,
         "mamba_n_groups": 4, "mamba_d_head": 32, "time_step_limit": [.3, .5], "attn_layer_indices": [0],
         "num_local_experts": 4, "shared_intermediate_size": 44, "embedding_multiplier": 2.0, "residual_multiplier": 0.5,
         "attention_multiplier": 0.3, "logits_scaling": 3.0,
         "logit_scale": 0.3, "use_qk_norm": True, "swiglu_limit": 5.0, "swiglu_alpha": 1.5, "mamba_dt_min": .2,
         "topk_method": "greedy", "moe_layer_freq": 2, "mlp_layer_types": ["dense", "sparse"], "rope_interleave": False,
         "mla_use_nope": False, "moe_router_activation_func": "softmax", "linear_attn_config": {"num_heads": 2},
         "global_head_dim": 12, "num_global_key_value_heads": 2, "attention_k_eq_v": True, "num_kv_shared_layers": 1,
         "use_double_wide_mlp": True, "hidden_size_per_layer_input": 5, "enable_moe_block": True,
         "vocab_size_per_layer_input": 62, "scale_attn_weights": False, "sinusoidal_pos_embds": True, "global_attn_every_n_layers": 2}
# Fields that change no family's numbers.
IDLE = re.compile(r".*(drop|summary|transformers_version|architectures|dtype|label|problem|initializer|output_hidden"
                  r"|output_attentions|return_dict|use_cache|_name_or_path|model_type|bos_token|eos_token|cache).*")


def other(key, value):
    found = OTHER.get(key)
    if found is None or found == value:
        found = {bool: lambda: not value, int: lambda: value + 3, float: lambda: value * 2.5,
                 str: lambda: "silu" if "act" in key else "default", list: lambda: value[::-1],
                 type(None): lambda: 3, dict: lambda: {}}[type(value)]()
    return found


def make(kind, options):
    """A model whose numbers depend on every field. With small embeddings, epsilons matter."""
    sizes = OWN_SIZES.get(kind, SIZES if kind in ENCODERS + ("gpt_neox",) else GROUPED)
    # for_model() changes dicts.
    config = transformers.AutoConfig.for_model(kind, **copy.deepcopy({**sizes, **options}))
    auto = transformers.AutoModel if kind in ENCODERS else transformers.AutoModelForCausalLM
    model = auto.from_config(config)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, p in model.named_parameters():
            noise = torch.randn(p.shape, generator=generator)
            p.copy_(0.03 * noise if "emb" in name or "wte" in name or "wpe" in name
                    else 1.5 * noise / p.shape[-1] ** 0.5 if p.dim() > 1 else (not kind.startswith("gemma") or kind == "gemma4_text") + 0.3 * noise)
    return model


def olden(kind, config):
    """The same configuration in the form of transformers 4."""
    config = copy.deepcopy(config)
    if kind == "gemma4_text":  # the fields of published folders
        own = config.pop("per_layer_config")["1"]
        return {**config, "global_head_dim": own["head_dim"],
                "num_global_key_value_heads": own.get("num_key_value_heads")}
    rope = config.pop("rope_parameters", None)
    if rope is None:
        return None
    if SLIDING in rope:
        if kind == "gemma3_text":
            config["rope_local_base_freq"] = rope[SLIDING]["rope_theta"]
        rope = rope[FULL]
    config["rotary_emb_base" if kind == "gpt_neox" else "rope_theta"] = rope.pop("rope_theta")
    if "partial_rotary_factor" in rope:
        config["rotary_pct" if kind == "gpt_neox" else "partial_rotary_factor"] = rope.pop("partial_rotary_factor")
    config["rope_scaling"] = None if rope == {"rope_type": "default"} else rope
    return config


def levels(config):
    """{path: object}, beginning with config.json itself."""
    found = {(): config}
    for name in ("rope_parameters", "rope_scaling"):
        if isinstance(config.get(name), dict):
            found[name,] = config[name]
            found.update({(name, key): value for key, value in config[name].items() if isinstance(value, dict)})
    return found


def at(config, path):
    for name in path:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    return config


def edits(kind, config):
    """(edit, fields that an error may name, edited configuration)"""
    def edit(what, names, change):
        made = copy.deepcopy(config)
        change(made)
        cases.append((what, tuple(names), made))

    cases = []
    for path, level in levels(config).items():
        for key, value in level.items():
            if IDLE.fullmatch(key) or isinstance(value, dict) and path:
                continue
            where = "/".join((*path, key))
            edit(f"{where} deleted", [key], lambda c: at(c, path).pop(key))
            edit(f"{where} null", [key], lambda c: at(c, path).update({key: None}))
            names = [key, *(ROPE if key == "rope_scaling" else ())]
            edit(f"{where} changed", names, lambda c: at(c, path).update({key: other(key, value)}))
            if key not in ROPE and key != "sliding_window":
                continue
            targets = set(levels(config)) | {("rope_parameters",), ("rope_scaling",), ()}
            for target in sorted(targets - {path}):
                there = "/".join((*target, key))
                names = [key, *target, *ROPE]
                edit(f"{where} moved to {there}", names, lambda c: at(c, target).update({key: at(c, path).pop(key)}))
                edit(f"{where} copied to {there}", names, lambda c: at(c, target).setdefault(key, value))
                edit(f"{where} other at {there}", names, lambda c: at(c, target).update({key: other(key, value)}))
    for name, alias in ALIASES.get(kind, ()):
        for path, level in levels(config).items():
            if name not in level:
                continue
            names, value = [name, alias], level[name]
            edit(f"{name} moved to {alias}", names, lambda c: c.update({alias: at(c, path).pop(name)}))
            edit(f"{name} copied to {alias}", names, lambda c: c.update({alias: value}))
            edit(f"{name} other at {alias}", names, lambda c: c.update({alias: other(name, value)}))
    for key, value in OTHER.items():
        if key not in config:
            edit(f"{key} added", [key, *(ROPE if key == "rope_scaling" else ())], lambda c: c.update({key: value}))
    for source, target in (("rope_parameters", "rope_scaling"), ("rope_scaling", "rope_parameters")):
        if isinstance(config.get(source), dict):
            names = ["rope_parameters", "rope_scaling", *config[source]]
            edit(f"{source} moved to {target}", names, lambda c: c.update({target: c.pop(source)}))
            edit(f"{source} copied to {target}", names, lambda c: c.update({target: c[source]}))
            edit(f"{source} empty", names, lambda c: c.update({source: {}}))
            for rope in (LINEAR, YARN, LLAMA3, dict(YARN, rope_theta=70.0), dict(type="linear", factor=3.0)):
                edit(f"{source} and {target} {rope}", [*names, *rope], lambda c: c.update({target: dict(rope)}))
    return cases


def theirs(kind, folder, ids):
    """The numbers of transformers, or the reason for their absence."""
    auto = transformers.AutoModel if kind in ENCODERS else transformers.AutoModelForCausalLM
    try:
        # Falcon's eager attention adds ALiBi twice.
        attention = "sdpa" if kind == "falcon" else "eager"
        model, report = auto.from_pretrained(folder, dtype=torch.float64, attn_implementation=attention,
                                             experts_implementation="eager", output_loading_info=True)
        with torch.no_grad():
            out = model.eval()(torch.from_numpy(ids))
    except Exception as error:  # any exception
        return f"{type(error).__name__}: {error}"
    if any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")):
        return f"other weights: {report}"
    return (out.last_hidden_state if kind in ENCODERS else out.logits)[0].numpy()


def ours(folder, ids=IDS):
    try:
        return ck.Transformer(folder)(ids)[0]
    except mha.MultiheadError as error:
        return str(error).replace(str(folder), "")


def length_before_scales(folder, refusal):
    """Queries are scaled (llama_4_scaling_beta) from original_max_position_embeddings on: longer texts are rejected."""
    config, taken = json.loads((folder / "config.json").read_text()), re.search(r"takes at most (\d+)", refusal)
    ropes = [config[name] for name in ("rope_parameters", "rope_scaling") if isinstance(config.get(name), dict)]
    scaled = any((rope.get("llama_4_scaling_beta") or 0) > 0 for rope in ropes)
    ends = [rope.get("original_max_position_embeddings") for rope in ropes]
    return int(taken[1]) if taken and scaled and int(taken[1]) in ends else None


total, largest = Counter(), [0.0]


def judge(kind, folder, what, names):
    """(outcome, error or None)"""
    mine, ids = ours(folder), IDS
    if isinstance(mine, str) and any(
            re.search(rf"'{name}'|\b{name} ['\d]", mine) for name in names):
        return "refused by name", None
    if isinstance(mine, str) and kind == "ministral3" and (length := length_before_scales(folder, mine)):
        ids = IDS[:, :length]
        mine = ours(folder, ids)
    wanted = theirs(kind, folder, ids)
    if isinstance(wanted, str):
        return "transformers fails", None
    if isinstance(mine, str):
        return "wrong", f"{what}: refused without its name: {mine}"
    if mine.shape != wanted.shape:
        return "wrong", f"{what}: numbers of shape {mine.shape}, {wanted.shape} expected"
    error = np.abs(mine - wanted).max() / np.abs(wanted).max()
    # Delta nets are float32 in transformers.
    limit = 1e-4 if re.search("linear_(key_)?head_dim", (folder / "config.json").read_text()) else 1e-5
    largest[0] = max(largest[0], min(error, limit))
    return ("equal", None) if error < limit else ("wrong", f"{what}: relative error {error:.1e}")


@pytest.mark.gate(15)
@pytest.mark.parametrize("kind", BASES)
def test_fields(tmp_path, kind):
    cases = []
    for number, options in enumerate(BASES[kind]):
        model = make(kind, options)
        model.save_pretrained(tmp_path / f"{number}")
        config = {**model.config.to_dict(), "model_type": kind}
        config = json.loads(json.dumps({k: v for k, v in config.items() if not k.startswith("_")}, default=str),
                            parse_constant=lambda name: {"__float__": name})
        config["dtype"] = "float32"
        for form, start in (("", config), (", older form", olden(kind, config))):
            if start is None:
                continue
            (tmp_path / f"{number}/config.json").write_text(json.dumps(start))
            label = f"{kind}, settings {number}{form}"
            assert judge(kind, tmp_path / f"{number}", label, ()) == ("equal", None)
            cases += [(number, f"{label}: {what}", names, made) for what, names, made in edits(kind, start)]
    fields = {name for _, _, names, _ in cases for name in names}
    chosen = random.Random(f"{SEED} {kind}").sample(cases, min(len(cases), amount(8, 200, len(cases))))
    went, wrong = Counter(), []
    for number, what, names, made in chosen:
        (tmp_path / f"{number}/config.json").write_text(json.dumps(made))
        how, why = judge(kind, tmp_path / f"{number}", what, names)
        went[how] += 1
        wrong += [why] if why else []
    total.update(went)
    print(f"\n  {kind}: {len(fields)} fields, {len(chosen)} of {len(cases)} cases: {dict(went)}", end="")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("part, count", [(0.2, 1), (0.4, 3)])
def test_odd_rotations_of_stablelm_are_refused(tmp_path, part, count):
    """transformers multiplies `count` elements by count + 1 cosines, which is an error or, for 1,
    gives a wider head."""
    make("stablelm", BASES["stablelm"][0]).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["rope_parameters"]["partial_rotary_factor"] = part
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert f"rotates an odd number, {count}," in ours(tmp_path)


def test_every_field_is_swept():
    """Every field of config.json that the code reads is in the cases above."""
    read = set()
    for path in (ROOT / "src/model/arch").glob("*.c"):
        others = "bart", "t5", "whisper"  # test_towers_hf.py
        images = "vision", "vit", "dinov2", "dinov3", "clip", "siglip"  # test_pictures_hf.py
        text = path.read_text() if path.stem not in ("multihead", *others, *images) else ""
        read |= set(re.findall(r'mhai_config_(?!name)\w+\(\w+,\s*"(\w+)"', text))
        read |= set(re.findall(r'(?:mhai_read_(?:flag|softcap)\(\w+,|\.(?:act|bias|ff_bias|norm)_key =|\.inner =)\s*"(\w+)"', text))
        for names in re.findall(r'(?:refused\[\]|shape_keys \w+|rope_kind \w+|experts_kind \w+) = {(.*?)}', text, re.S):
            read |= set(re.findall(r'"(\w+)"', names))
    swept = {"rope_parameters", "model_type", *OTHER, *ROPE, *OLD_NOMIC}
    for kind, options in BASES.items():
        swept |= set(make(kind, options[0]).config.to_dict())
    assert len(read) > 40 and read - swept == {"multihead_output", "full_attention_interval"}
    print(f"\n  in all: {dict(total)}, largest error taken for equal {largest[0]:.1e}", end="")


@pytest.mark.gate(2)
@pytest.mark.parametrize("config, generation", [(1, None), ([3, 1], None), (None, [2, 5]), (None, 3), ([2], [2, 1]),
                                                (None, None)], ids=str)
def test_end_tokens(tmp_path, config, generation):
    """Numbers are ids of end tokens in the order of the unlimited text. The text ends at the token
    at which transformers ends it, and at the tokenizer's eos_token."""
    import tokenizers
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES, eos_token_id=None, bos_token_id=None))
    torch.manual_seed(8)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * (0.5 if p.dim() > 1 else 1))
    model.save_pretrained(tmp_path)
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())[1:VOCAB + 1]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    files = {name: json.loads((tmp_path / name).read_text()) for name in ("config.json", "generation_config.json")}

    def continued(**ends):
        for name, values in files.items():
            (tmp_path / name).write_text(json.dumps({**values, "eos_token_id": ends.get(name)}))
        if generation is None:
            (tmp_path / "generation_config.json").unlink()
        theirs_ = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
        ids = theirs_.generate(torch.tensor([[5, 7, 9, 8]]), max_new_tokens=12, do_sample=False, pad_token_id=0)
        ours_ = multihead.Model(tmp_path)
        return ids[0, 4:].tolist(), ours_.generate([5, 7, 9, 8], max_tokens=12), ours_.end_tokens

    free, text, ends = continued()
    assert text == "".join(letters[i] for i in free) and ends == []
    order = list(dict.fromkeys(free))
    tokens = lambda places: [order[i] for i in places] if isinstance(places, list) else places and order[places]
    chosen = {"config.json": tokens(config), "generation_config.json": tokens(generation)}
    ids, text, ends = continued(**chosen)
    assert text == "".join(letters[i] for i in ids if i not in ends)
    flat = {i for value in chosen.values() if value is not None for i in (value if isinstance(value, list) else [value])}
    assert set(ends) == flat and (ids[-1] in flat) == bool(flat)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": letters[free[0]]}))
    ours_ = multihead.Model(tmp_path)
    assert ours_.generate([5, 7, 9, 8]) == "" and set(ours_.end_tokens) == flat | {free[0]}
