"""Gemma 4 (text) compared with transformers in float64: logits, maps, steps, greedy tokens, removed heads, and rejected
models. The models are random."""
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoint_ctypes as ck
import multihead
import multihead_ctypes as mha
from decoder_checks import check_bits, check_gradients, check_greedy, check_logits, check_without_head, doubled
from shared import rounds_like
from test_experts_hf import make_net, save
from test_hybrid_hf import TEXT, run

SIZES = {"vocab_size": 97, "vocab_size_per_layer_input": 97, "hidden_size": 48, "intermediate_size": 56,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12, "global_head_dim": 20,
         "num_hidden_layers": 7, "max_position_embeddings": 256, "sliding_window": 11, "pad_token_id": None,
         "bos_token_id": None, "eos_token_id": None,
         "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                         "full_attention", "sliding_attention", "full_attention"]}
ROPE = {"sliding_attention": {"rope_type": "linear", "rope_theta": 5e3, "factor": 1.5},
        "full_attention": {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": .45, "factor": 2.}}
KINDS = {
    # as E2B: inputs of layers, shared keys, wide feed-forward layers
    "Gemma4": {**SIZES, "hidden_size_per_layer_input": 10, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
               "num_key_value_heads": 1},
    # as 31B: values that are keys
    "Gemma4, keys as values": {**SIZES, "hidden_size_per_layer_input": 0, "attention_k_eq_v": True,
                               "num_global_key_value_heads": 1, "final_logit_softcapping": 3.,
                               "tie_word_embeddings": False, "use_bidirectional_attention": "vision"},
    "Gemma4, biases": {**SIZES, "hidden_size_per_layer_input": 6, "num_kv_shared_layers": 2, "attention_bias": True,
                       "attention_k_eq_v": True, "rope_parameters": ROPE}}


def text_net(sizes):
    net = make_net("Gemma4", sizes)
    with torch.no_grad():
        for layer in net.model.layers:
            layer.layer_scalar.copy_(.7 + .6 * torch.rand(1))
    return net


@pytest.fixture(scope="module")
def nets():
    return {kind: text_net(sizes) for kind, sizes in KINDS.items()}


@pytest.fixture(scope="module")
def saved(nets, tmp_path_factory):
    return {kind: save(net, tmp_path_factory.mktemp("gemma")) for kind, net in nets.items()}


@pytest.fixture(scope="module", params=KINDS)
def made(request, nets, saved):
    return nets[request.param], multihead.Model(saved[request.param])


def test_logits_are_those_of_transformers_in_double(made):
    check_logits(*made)


def test_threads_batches_and_steps_change_no_bit(made):
    check_bits(made[1], [(1, False), (7, False), (90, False)])


def test_greedy_tokens_are_those_of_transformers(made):
    check_greedy(*made)


RENAMED = (("model.", ""), ("input_layernorm", "self_attn_norm"), ("post_attention_layernorm", "self_attn_post_norm"),
           ("pre_feedforward_layernorm", "mlp_norm"), ("post_feedforward_layernorm", "mlp_post_norm"),
           ("post_per_layer_input_norm", "input_post_norm"), ("per_layer_input_gate", "input.gate_proj"),
           ("per_layer_projection.", "input.o_proj."))
OF_ALL = {"embed_tokens_per_layer.weight": ("table", 1), "per_layer_model_projection.weight": ("proj", 0)}


def as_ours(net, name, x):
    """{our names: parts} of a parameter of transformers, or of its gradient."""
    for theirs, ours in RENAMED:
        name = name.replace(theirs, ours)
    if name not in OF_ALL:
        return {name: x}
    part, axis = OF_ALL[name]
    return {f"layers.{i}.input.{part}.weight": own for i, own in enumerate(x.chunk(net.config.num_hidden_layers, axis))}


class Joined:
    """Gradients as transformers has them: one of keys that are values, and one of the norm of all layers' inputs."""
    def __init__(self, net, path):
        self.names, self.model = dict(net.named_parameters()), ck.Transformer(path)

    def __call__(self, *batch):
        return self.model(*batch)

    def parameters(self, data):
        found = {name: x for name, x in self.model.parameters(data).items() if not name.endswith("output.scale")}
        for name in list(found):
            if "v_proj" in name and "model." + name not in self.names:
                found[name.replace("v_proj", "k_proj")] += found.pop(name)
        norms = [found.pop(name) for name in list(found) if name.endswith("input.norm.weight")]
        return {**found, **({"per_layer_projection_norm.weight": sum(norms)} if norms else {})}


def test_gradients_are_those_of_autograd(made):
    net, model = made
    check_gradients(net, Joined(net, model.path), as_ours)


def test_sequences_are_forked(made):
    """Layers cache only their windows."""
    model, ids = made[1], torch.randint(0, 97, (60,)).tolist()
    for type_ in "f32", "bf16":
        whole = model.decoder(type=type_).step([ids])[0]
        decoder = model.decoder(batch=2, type=type_)
        decoder.step([ids[:50], ids[10:]])
        decoder.fork(0, 1, 50)
        got = decoder.step([ids[50:], ids[50:]])
        assert np.array_equal(got[0], whole[50:]) and np.array_equal(got[1], whole[50:])


def test_maps_and_heads_are_those_of_transformers(made):
    net, model = made
    net.set_attn_implementation("eager")
    ids = torch.tensor([model.tokenize(TEXT).ids.tolist()])
    wanted = {"output_attentions": True, "output_hidden_states": True}
    with torch.no_grad():
        rounded = net(ids, **wanted)
        with doubled(net):
            exact = net(ids, **wanted)
    ours = model.attention(TEXT, outputs=("probabilities", "k", "v", "heads"))
    for i, (p, v, heads) in enumerate(zip(ours.probabilities, ours.v, ours.heads, strict=True)):
        assert rounds_like(p, rounded.attentions[i][0].numpy(), exact.attentions[i][0].numpy())
        assert np.abs(p @ v.repeat(len(p) // len(v), 0) - heads).max() < 1e-5 * np.abs(heads).max()
    for i, x in enumerate(model.hidden_states(TEXT)[:-1]):
        assert rounds_like(x, rounded.hidden_states[i][0].numpy(), exact.hidden_states[i][0].numpy())
    modes = net.config.kv_sharing_modes
    for layer, mode in enumerate(modes):  # the last layer of its kind with keys of its own
        kinds = net.config.layer_types[layer]
        last = max(i for i, other in enumerate(modes) if other != "reuse" and net.config.layer_types[i] == kinds)
        assert mode != "reuse" or np.array_equal(ours.k[layer], ours.k[last])


def test_own_folders_preserve_the_bits(made, tmp_path):
    ids = torch.randint(0, 97, (1, 60)).numpy()
    ours = ck.Transformer(made[1].path)
    ours.save(tmp_path / "own")
    assert np.array_equal(ck.Transformer(tmp_path / "own")(ids), ours(ids))


def test_heads_are_switched_off(made):
    net, model = made
    for layer in 3, 4:
        check_without_head(net, model, layer, net.model.layers[layer].self_attn.o_proj)


def test_the_program_shows_heads_and_refuses_the_rest(made, tmp_path):
    model, text = made[1], tmp_path / "text.txt"
    text.write_text((TEXT + "\n") * 3)
    for command in (["view", model.path, TEXT, "--layer", 6, "--npy", tmp_path / "maps.npy", "--quiet"],
                    ["view", model.path, TEXT, "-o", tmp_path / "maps.html", "--quiet"],
                    ["heads", model.path, "--text", text, "--csv", "--random", 0],
                    ["generate", model.path, "the cat", "--max-tokens", 5],
                    ["ablate", model.path, "--text", text, "--heads", 3, "--pairs", 2, "--random", 0]):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    for command in ["prune", model.path, "--text", text, "-o", tmp_path / "x"], ["circuits", model.path]:
        done = run(*command)
        words = "has an input beside" if made[0].config.hidden_size_per_layer_input else "scales"
        assert done.returncode and f"layer 0 {words} the stream" in done.stderr, done.stderr
    for command in "count", "explain":
        assert "'global_head_dim' gives some layers other heads" in run(command, model.path).stderr


@pytest.mark.parametrize("kind, field, value, words", [
    ("Gemma4", "enable_moe_block", True, "'enable_moe_block' is set"),
    ("Gemma4", "use_bidirectional_attention", "all", "use_bidirectional_attention 'all' is not supported"),
    ("Gemma4", "vocab_size_per_layer_input", 98, "'vocab_size_per_layer_input' is 98, expected 97"),
    ("Gemma4", "hidden_size_per_layer_input", 9, "embed_tokens_per_layer.weight' has shape"),
    ("Gemma4", "hidden_size_per_layer_input", 1 << 20, "describes at least"),
    ("Gemma4", "num_kv_shared_layers", 7, "'num_kv_shared_layers' is 7, expected 0..6"),
    ("Gemma4", "num_kv_shared_layers", 6, "'num_kv_shared_layers' is 6, but no layer before these"),
    ("Gemma4", "num_kv_shared_layers", 2, "layers.4.self_attn.k_proj.weight' is missing"),
    ("Gemma4", "use_double_wide_mlp", False, "layers.4.mlp.gate_proj.weight' has shape"),
    ("Gemma4", "per_layer_config", {"1": {"head_dim": 20, "hidden_size": 4}}, "'per_layer_config' sets more than"),
    ("Gemma4", "per_layer_config", {"9": {"head_dim": 20}}, "'per_layer_config' sets more than"),
    ("Gemma4", "per_layer_config", {"1": {"head_dim": 20}}, "heads of layers 1 and 4, which rotate alike"),
    ("Gemma4", "per_layer_config", [], "sets more than|has shape|rotate alike"),
    ("Gemma4", "rope_parameters", None, "'rope_parameters' has no 'full_attention'"),
    ("Gemma4", "sliding_window", None, "'sliding_window' is missing"),
    ("Gemma4", "hidden_activation", "silu", "hidden_activation 'silu'"),
    ("Gemma4, biases", "rope_parameters", {**ROPE, "full_attention": {**ROPE["full_attention"],
                                                                      "partial_rotary_factor": 1.1}}, "is 1.1, expected"),
    ("Gemma4, biases", "rope_parameters", {**ROPE, "sliding_attention": {
        "rope_type": "yarn", "rope_theta": 5e3, "factor": 4., "original_max_position_embeddings": 64,
        "truncate": False}}, "'truncate' of 'sliding_attention' is not true"),
    ("Gemma4, keys as values", "attention_k_eq_v", False, "layers.1.self_attn.v_proj.weight' is missing"),
    ("Gemma4, keys as values", "final_logit_softcapping", 0, "'final_logit_softcapping' is 0")])
def test_rejected_models(saved, tmp_path, kind, field, value, words):
    config = json.loads((saved[kind] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    (tmp_path / "model.safetensors").symlink_to(saved[kind] / "model.safetensors")
    with pytest.raises(mha.MultiheadError, match=words):
        ck.Transformer(tmp_path)


def test_unused_keys_of_files(saved, tmp_path):
    """Files may have weights of keys and values that a layer does not use, but no others."""
    folder, ids = saved["Gemma4"], torch.randint(0, 97, (1, 9)).numpy()
    weights = load_file(folder / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    more = {f"model.layers.6.self_attn.{name}.weight": torch.ones(3) for name in ("k_proj", "v_proj", "k_norm")}
    save_file({**weights, **more}, tmp_path / "model.safetensors")
    assert np.array_equal(ck.Transformer(tmp_path)(ids), ck.Transformer(folder)(ids))
    for name in "layers.6.self_attn.x_proj", "layers.0.self_attn.k_proj2", "layers.0.self_attn.q_proj2":
        save_file({**weights, f"model.{name}.weight": torch.ones(3)}, tmp_path / "model.safetensors")
        with pytest.raises(mha.MultiheadError, match=name):
            ck.Transformer(tmp_path)
