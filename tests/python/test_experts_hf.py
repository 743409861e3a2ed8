"""Models with routed experts against transformers in float64: logits, steps, greedy tokens, heads, routing, both layouts
of files, threads, and rejected models. The models are random."""
import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import multihead
from test_hybrid_hf import SIZES as HYBRID, TEXT, in_double, run, write_tokenizer

SIZES = {name: size for name, size in HYBRID.items() if "head_dim" not in name and "linear" not in name}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 32}
CONV = {**EXPERTS, "num_dense_layers": 1, "layer_types": ["conv", "full_attention", "conv", "conv", "full_attention"]}
KINDS = {
    "qwen3_next": ("Qwen3Next", {**SHARED, "mlp_only_layers": [1]}),
    "qwen3_next, every second layer, plain weights": (
        "Qwen3Next", {**SHARED, "num_experts": 5, "num_experts_per_tok": 5, "decoder_sparse_step": 2,
                      "norm_topk_prob": False}),
    "qwen3_next, tables, biases": ("Qwen3Next", {**SHARED, "num_experts": 33, "num_experts_per_tok": 7,
                                                 "attention_bias": True}),
    "qwen3_5_moe": ("Qwen3_5Moe", {**SHARED, "tie_word_embeddings": True}),
    "qwen3_5_moe, tables": ("Qwen3_5Moe", {**SHARED, "moe_intermediate_size": 7}),
    "qwen3_5_moe, one expert": ("Qwen3_5Moe", {**SHARED, "num_experts": 1, "num_experts_per_tok": 1}),
    "qwen3_moe": ("Qwen3Moe", {**SIZES, **EXPERTS, "head_dim": 16}),
    "qwen3_moe, window, some dense": (
        "Qwen3Moe", {**SIZES, **EXPERTS, "head_dim": 8, "norm_topk_prob": True, "mlp_only_layers": [0, 3],
                     "use_sliding_window": True, "sliding_window": 9, "attention_bias": True}),
    "qwen3_moe, tables": ("Qwen3Moe", {**SIZES, **EXPERTS, "head_dim": 12, "num_experts": 40,
                                       "num_experts_per_tok": 8, "tie_word_embeddings": True}),
    "mixtral": ("Mixtral", {**SIZES, "num_local_experts": 8}),
    "mixtral, window": ("Mixtral", {**SIZES, "num_local_experts": 3, "num_experts_per_tok": 1, "head_dim": 10,
                                    "sliding_window": 12}),
    "mixtral, tables": ("Mixtral", {**SIZES, "num_local_experts": 4, "num_experts_per_tok": 3,
                                    "rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.5}}),
    "olmoe": ("Olmoe", {**SIZES, "num_experts": 6, "num_experts_per_tok": 3}),
    "olmoe, one group, biases": ("Olmoe", {**SIZES, "num_experts": 9, "num_experts_per_tok": 2, "norm_topk_prob": True,
                                           "num_key_value_heads": 1, "attention_bias": True}),
    "olmoe, tables": ("Olmoe", {**SIZES, "num_experts": 16, "num_experts_per_tok": 8, "num_key_value_heads": 4}),
    "lfm2_moe": ("Lfm2Moe", {**SIZES, **CONV}),
    "lfm2_moe, tables": ("Lfm2Moe", {**SIZES, **CONV, "routed_scaling_factor": 2.5, "num_experts": 12,
                                     "num_dense_layers": 3, "tie_word_embeddings": False}),
    "lfm2_moe, without bias": ("Lfm2Moe", {**SIZES, **CONV, "use_expert_bias": False, "norm_topk_prob": False,
                                           "num_dense_layers": 0})}
FAMILIES = [kind for kind in KINDS if "," not in kind]


def make(kind, **changes):
    name, sizes = KINDS[kind]
    config = name + ("TextConfig" if name == "Qwen3_5Moe" else "Config")
    if not hasattr(transformers, config):
        pytest.skip(f"this transformers has no {config}")
    torch.manual_seed(7)
    config = getattr(transformers, config)(**{**sizes, **changes})
    config._experts_implementation = "eager"  # the usual one is for float32 alone
    net = getattr(transformers, name + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, p in [*net.named_parameters(), *net.named_buffers()]:
            if p.ndim > 1:
                p.normal_(0, .3 if "embed" in name else .5 if "conv" in name else .8 / p.shape[-1] ** .5)
            elif "norm" in name or "bias" in name:
                p += torch.randn_like(p) * .2
    return net


def save(net, folder, tables=False):
    net.save_pretrained(folder, **({"save_original_format": False} if tables else {}))
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net = make(request.param)
    folder = save(net, tmp_path_factory.mktemp("experts"), "tables" in request.param)
    names = load_file(folder / "model.safetensors")
    assert any(name.endswith("gate_up_proj") for name in names) == ("tables" in request.param)
    return net, multihead.Model(folder)


def test_logits_are_those_of_transformers_in_double(made):
    net, model = made
    torch.manual_seed(1)
    ids = torch.randint(0, 97, (1, 150))
    with torch.no_grad():
        rounded = net(ids).logits[0].numpy()
    exact, ours = in_double(net, ids), model.logits(ids[0].tolist())
    error, theirs = (np.linalg.norm(x - exact) for x in (ours, rounded))
    assert error <= 2 * theirs


def test_threads_batches_and_steps_change_no_bit(made):
    ids, model = torch.randint(0, 97, (2, 150)).tolist(), made[1]
    whole = [model.logits(row) for row in ids]
    threads = multihead.get_threads()
    for count in (1, 3):
        multihead.set_threads(count)
        assert np.array_equal(model.logits(ids[0]), whole[0])
    multihead.set_threads(threads)
    for size in (1, 7, 90):
        decoder = model.decoder(batch=2)
        for at in range(0, 150, size):
            got = decoder.step([row[at:at + size] for row in ids], [len(row[at:at + size]) for row in ids])
            for b in range(2):
                assert np.array_equal(got[b], whole[b][at:at + size])


def test_greedy_tokens_are_those_of_transformers(made):
    net, model = made
    ids = torch.randint(0, 97, (1, 9))
    theirs = net.generate(ids, max_new_tokens=50, do_sample=False)[0, 9:].tolist()
    uncached = net.generate(ids, max_new_tokens=50, do_sample=False, use_cache=False)[0, 9:].tolist()
    decoder, ours = model.decoder(), []
    logits = decoder.prefill(ids[0].tolist())
    for _ in theirs:
        ours.append(int(logits.argmax()))
        logits = decoder.step([ours[-1]])[0]
    assert ours == theirs == uncached
    assert [int(row.argmax()) for row in model.logits(ids[0].tolist() + ours)[8:-1]] == ours
