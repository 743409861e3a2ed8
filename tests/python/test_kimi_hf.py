"""Kimi Linear compared with transformers in float64: logits, steps, greedy tokens, maps, gradients, removed heads, and
rejected models. The models are random."""
import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoint_ctypes as ck
import multihead
from decoder_checks import check_bits, check_gradients, check_greedy, check_logits, check_without_head
from test_experts_hf import make_net, save
from test_hybrid_hf import TEXT, run
from test_latent_hf import LATENT, RENAMED, as_ours as latent_as_ours, changed

KIMI = {**LATENT, "q_lora_rank": None, "num_local_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24,
        "n_shared_experts": 2, "linear_head_dim": 12, "linear_num_heads": 6,
        "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"]}
KINDS = {"kimi_linear": KIMI,
         "usual layers, groups": {**KIMI, "layer_types": None, "n_group": 4, "topk_group": 2, "linear_num_heads": 3,
                                  "linear_conv_kernel_dim": 2, "rms_norm_eps": 1e-3, "n_shared_experts": 1,
                                  "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"]},
         "query latents, tables": {**KIMI, "q_lora_rank": 28, "attention_bias": True, "norm_topk_prob": False,
                                   "routed_scaling_factor": 1.5, "linear_head_dim": 20, "linear_num_heads": 2,
                                   "v_head_dim": 24},
         "dense": {**KIMI, "mlp_layer_types": ["dense"] * 5, "linear_head_dim": 7}}
TRAINED = {**KIMI, "mlp_layer_types": ["dense"] * 5}


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net = make_net("KimiLinear", KINDS[request.param])
    return net, multihead.Model(save(net, tmp_path_factory.mktemp("kimi"), "tables" in request.param))


def test_logits_are_those_of_transformers_in_double(made):
    check_logits(*made)


def test_threads_batches_and_steps_change_no_bit(made):
    decoder = check_bits(made[1], [(1, False), (7, True), (90, False)])
    with pytest.raises(multihead.Error, match="layer 0 is Kimi delta attention, and the decoder keeps no copy"):
        decoder.truncate(20)


def test_greedy_tokens_are_those_of_transformers(made):
    check_greedy(*made)


def test_maps_are_signed_and_exact(made):
    net, model = made
    net.set_attn_implementation("eager")
    ids = torch.tensor([model.tokenize(TEXT).ids.tolist()])
    seen = model.attention(TEXT, outputs=("probabilities", "v", "heads"))
    with torch.no_grad():
        out = net(ids, output_attentions=True, output_hidden_states=True)
        attentions = iter(out.attentions)
        for i, layer in enumerate(net.model.layers):
            p, v, heads = seen.probabilities[i], seen.v[i], seen.heads[i]
            if net.config.layer_types[i] == "full_attention":
                assert np.abs(p - next(attentions)[0].numpy()).max() < 1e-5
                assert np.abs(p @ v - heads).max() < 1e-5 * np.abs(heads).max()
                continue
            own = layer.self_attn
            assert (p < 0).any() and np.array_equal(p, np.tril(p))
            gate = own.g_b_proj(own.g_a_proj(layer.input_layernorm(out.hidden_states[i])))[0]
            mixed = torch.tensor(p @ v).transpose(0, 1).float()
            exact = own.o_norm(mixed, gate.reshape(mixed.shape)).transpose(0, 1).numpy()
            assert np.abs(exact - heads).max() < 1e-4


def test_heads_are_switched_off(made):
    net, model = made
    for i in 0, net.config.layer_types.index("full_attention"):
        assert model.heads_of_layers[i] == (net.config.num_attention_heads if i else net.config.linear_num_heads)
        check_without_head(net, model, i, net.model.layers[i].self_attn.o_proj)


def test_own_folders_preserve_the_bits(made, tmp_path):
    ids, ours = torch.randint(0, 97, (1, 60)).numpy(), ck.Transformer(made[1].path)
    ours.save(tmp_path)
    assert np.array_equal(ck.Transformer(tmp_path)(ids), ours(ids))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save(make_net("KimiLinear", KIMI), tmp_path_factory.mktemp("folder"))


def test_a_published_folder_names_layers_in_an_object(folder, tmp_path):
    """The fields of Kimi-Linear-48B-A3B, whose sizes of nets are in linear_attn_config."""
    config = json.loads((folder / "config.json").read_text())
    for field in "layer_types", "mlp_layer_types", "linear_head_dim", "linear_num_heads", "linear_conv_kernel_dim":
        del config[field]
    published = {"linear_attn_config": {"full_attn_layers": [2, 4], "kda_layers": [1, 3, 5], "head_dim": 12,
                                        "num_heads": 6, "short_conv_kernel_size": 4},
                 "first_k_dense_replace": 1, "mla_use_nope": True, "moe_layer_freq": 1, "use_grouped_topk": True,
                 "moe_router_activation_func": "sigmoid", "num_nextn_predict_layers": 0, "rope_scaling": None,
                 "rope_theta": 1e4}
    changed({**config, **published}, folder, tmp_path)
    assert np.array_equal(multihead.Model(tmp_path).logits(list(range(40))),
                          multihead.Model(folder).logits(list(range(40))))


def test_the_program_reads_it(folder, tmp_path):
    (text := tmp_path / "text.txt").write_text((TEXT + "\n") * 3)
    for command in (["view", folder, TEXT, "--layer", 0, "--npy", tmp_path / "maps.npy", "--quiet"],
                    ["view", folder, TEXT, "-o", tmp_path / "maps.html", "--quiet"],
                    ["heads", folder, "--text", text, "--csv", "--random", 0],
                    ["generate", folder, "the cat", "--max-tokens", 5],
                    ["ablate", folder, "--text", text, "--heads", 3, "--pairs", 2, "--random", 0]):
        done = run(*command)
        assert done.returncode == 0, done.stderr


def as_ours(net, name, x):
    """{our names: parts} of a parameter of transformers, or of its gradient."""
    if ".layers." not in name or net.config.layer_types[int(name.split(".")[2])] != "linear_attention":
        return latent_as_ours(net, name, x)
    for pair in (*RENAMED, ("forget_gate.", ""), ("conv1d", "conv"), ("self_attn.", "delta_net.")):
        name = name.replace(*pair)
    return {name: x}


def test_gradients_are_those_of_autograd(tmp_path):
    net = make_net("KimiLinear", TRAINED)
    check_gradients(net, ck.Transformer(save(net, tmp_path)), as_ours)


HOSTILE = [
    ("kv_lora_rank", 0, "'kv_lora_rank' is 0, expected 1..1048576"),
    ("linear_head_dim", 0, "'linear_head_dim' is 0, expected 1..1048576"),
    ("linear_head_dim", 11, "has shape"),
    ("linear_head_dim", 1 << 20, "describes at least"),
    ("linear_num_heads", -1, "'linear_num_heads' is -1"),
    ("linear_num_heads", 7, "has shape|describes at least"),
    ("linear_num_heads", 1 << 20, "describes at least"),
    ("linear_conv_kernel_dim", 65, "'linear_conv_kernel_dim' is 65, expected 1..64"),
    ("linear_conv_kernel_dim", 3, "q_conv1d.weight' has shape"),
    ("linear_attn_config", {"head_dim": "many"}, "'head_dim' is not a whole number"),
    ("linear_attn_config", [12, 6], "'linear_attn_config' is not an object"),
    ("linear_attn_config", {"num_heads": 0}, "'num_heads' is 0"),
    ("layer_types", ["full_attention"], "'layer_types' is not a list of 5"),
    ("layer_types", ["mamba"] * 5, "'layer_types' of layer 0 is 'mamba'; known: full_attention, linear_attention"),
    ("layer_types", ["linear_attention"] * 5, "weight .* is missing|describes at least"),
    ("mlp_layer_types", ["dense"] * 4, "'mlp_layer_types' is not a list of 5 names"),
    ("model_max_length", 0, "'model_max_length' is 0"),
    ("mla_use_nope", False, "'mla_use_nope' is false, which is not supported"),
    ("moe_layer_freq", 2, "'moe_layer_freq' is 2"),
    ("moe_router_activation_func", "softmax", "moe_router_activation_func 'softmax' is not supported"),
    ("num_expert_group", 3, "'num_expert_group' is 3, expected a divisor of 'num_experts' 8"),
    ("num_experts", 7, "has shape|not 7"),
    ("num_experts_per_token", 9, "'num_experts_per_token' is 9"),
    ("num_key_value_heads", 2, "'num_key_value_heads' is 2, expected 4"),
    ("num_shared_experts", None, "'num_shared_experts' is missing"),
    ("routed_scaling_factor", None, "'routed_scaling_factor' is missing"),
    ("attention_bias", True, "supported only with a 'q_lora_rank'"),
    ("tie_word_embeddings", True, "'tie_word_embeddings' is true, but the file has a weight"),
    ("hidden_act", "gelu", "hidden_act 'gelu' is not supported")]


@pytest.mark.parametrize("field, value, error", HOSTILE)
def test_hostile_fields_are_refused(folder, tmp_path, field, value, error):
    changed({**json.loads((folder / "config.json").read_text()), field: value}, folder, tmp_path)
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(tmp_path)


@pytest.mark.parametrize("full, delta, place", [([2, 4], [1, 3], "none"), ([2, 4, 5], [1, 3, 5], "both")])
def test_a_layer_in_both_lists_or_in_none_is_an_error(folder, tmp_path, full, delta, place):
    config = json.loads((folder / "config.json").read_text())
    config |= {"layer_types": None, "linear_attn_config": {"full_attn_layers": full, "kda_layers": delta}}
    changed(config, folder, tmp_path)
    with pytest.raises(multihead.Error, match=f"has layer 5 in {place} of full_attn_layers and kda_layers"):
        multihead.Model(tmp_path)


def test_hostile_weights_are_refused(folder, tmp_path):
    weights, config = load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    rates, first = "model.layers.0.self_attn.A_log", "model.layers.0.self_attn.f_a_proj.weight"
    for name, x, error in ((rates, weights[rates].reshape(6), "A_log' has shape"), (first, None, "is missing"),
                           (first, weights[first][1:], "f_a_proj.weight' has shape")):
        own = {**weights, name: x.contiguous() if x is not None else None}
        save_file({n: x for n, x in own.items() if x is not None}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(multihead.Error, match=error):
            multihead.Model(tmp_path)
