"""Models with latent attention compared with transformers in float64: logits, maps, steps, greedy tokens,
removed heads, and rejected models. The models are random."""
import json
import pathlib

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import checkpoint_ctypes as ck
import circuits_ctypes as circuits
import multihead
import multihead_ctypes as mha
from decoder_checks import check_bits, check_gradients, check_greedy, check_logits, check_without_head
from test_experts_hf import make_net, save
from test_hybrid_hf import SIZES as HYBRID, TEXT, run

SIZES = {name: size for name, size in HYBRID.items() if "head" not in name and "linear" not in name}
LATENT = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 20, "q_lora_rank": 28,
          "qk_nope_head_dim": 12, "qk_rope_head_dim": 8, "v_head_dim": 14}
PLAIN = {**LATENT, "q_lora_rank": None, "qk_nope_head_dim": 10, "qk_rope_head_dim": 6, "v_head_dim": 24}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 40., "beta_fast": 32., "beta_slow": 1., "mscale": .9,
        "mscale_all_dim": .7, "original_max_position_embeddings": 64}
V2 = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 2,
      "first_k_dense_replace": 1, "routed_scaling_factor": 1.5}
V3 = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "n_shared_experts": 1,
      "n_group": 4, "topk_group": 2, "first_k_dense_replace": 2}
GLM = {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
KINDS = {
    "deepseek_v2": ("DeepseekV2", {**LATENT, **V2, "topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2,
                                   "rope_parameters": YARN}),
    "deepseek_v2, lite": ("DeepseekV2", {**PLAIN, **V2, "rope_parameters": {**YARN, "mscale": 1., "mscale_all_dim": 1.}}),
    "deepseek_v2, tables, biases": ("DeepseekV2", {**LATENT, **V2, "attention_bias": True, "first_k_dense_replace": 0,
                                                   "v_head_dim": 5, "tie_word_embeddings": True}),
    "deepseek_v3": ("DeepseekV3", {**LATENT, **V3, "rope_parameters": YARN}),
    "deepseek_v3, halves": ("DeepseekV3", {**PLAIN, **V3, "rope_interleave": False, "n_group": 1, "topk_group": 1,
                                           "norm_topk_prob": False}),
    "deepseek_v3, tables, biases": ("DeepseekV3", {
        **LATENT, **V3, "attention_bias": True, "first_k_dense_replace": 0, "n_group": 2, "topk_group": 1,
        "qk_nope_head_dim": 7, "rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.5,
                                                   "mscale_all_dim": 1.}}),
    "glm4_moe_lite": ("Glm4MoeLite", {**LATENT, **GLM}),
    "glm4_moe_lite, no query latent": ("Glm4MoeLite", {
        **PLAIN, **GLM, "mlp_layer_types": ["sparse", "dense", "sparse", "sparse", "dense"], "num_attention_heads": 5,
        "num_key_value_heads": 5, "n_group": 3, "topk_group": 2}),
    "glm4_moe_lite, tables": ("Glm4MoeLite", {**LATENT, **GLM, "rope_interleave": False, "attention_bias": True,
                                              "norm_topk_prob": False, "routed_scaling_factor": 1.}),
    "minicpm3": ("MiniCPM3", {**LATENT, "scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16}),
    "minicpm3, unscaled": ("MiniCPM3", {**PLAIN, "scale_depth": None, "dim_model_base": None, "v_head_dim": None,
                                        "tie_word_embeddings": False, "mlp_bias": True}),
    "minicpm3, yarn": ("MiniCPM3", {**LATENT, "attention_bias": True, "rope_parameters": YARN}),
    "youtu": ("Youtu", LATENT),
    "youtu, no query latent": ("Youtu", {**PLAIN, "tie_word_embeddings": False, "rope_interleave": False}),
    "youtu, yarn": ("Youtu", {**LATENT, "attention_bias": True, "rope_parameters": YARN})}
FAMILIES = [kind for kind in KINDS if "," not in kind]


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net = make_net(*KINDS[request.param])
    return net, multihead.Model(save(net, tmp_path_factory.mktemp("latent"), "tables" in request.param))


def test_logits_are_those_of_transformers_in_double(made):
    check_logits(*made)


@pytest.mark.parametrize("length", [60, 61, 140])
def test_a_rotation_by_the_length_of_a_text(tmp_path, length):
    """MiniCPM3's, below and above the border."""
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1., 1.1, 1.2, 1.3],
            "long_factor": [2., 3., 5., 9.], "original_max_position_embeddings": 60}
    net = make_net("MiniCPM3", {**LATENT, "rope_parameters": rope})
    check_logits(net, multihead.Model(save(net, tmp_path)), length)


@pytest.mark.gate(5)
def test_threads_batches_and_steps_change_no_bit(made):
    check_bits(made[1], [(1, False), (7, False), (90, False), (7, True), (90, True)])


@pytest.mark.gate(5)
def test_greedy_tokens_are_those_of_transformers(made):
    check_greedy(*made)


@pytest.mark.gate(3)
def test_sequences_are_forked_and_rolled_back(made):
    model, ids = made[1], torch.randint(0, 97, (60,)).tolist()
    whole, decoder = model.logits(ids), model.decoder(batch=2)
    decoder.step([ids[:50], ids[:50]])
    decoder.truncate(20)
    decoder.fork(0, 1, 20)
    got = decoder.step([ids[20:], ids[20:]])
    assert np.array_equal(got[0], whole[20:]) and np.array_equal(got[1], whole[20:])


@pytest.mark.gate(6)
def test_maps_and_heads_are_those_of_transformers(made):
    net, model = made
    net.set_attn_implementation("eager")
    ids = torch.tensor([model.tokenize(TEXT).ids.tolist()])
    with torch.no_grad():
        theirs = [p[0].numpy() for p in net(ids, output_attentions=True).attentions]
    ours = model.attention(TEXT, outputs=("probabilities", "v", "heads"))
    assert len(theirs) == len(ours.probabilities) == model.layers
    for p, v, heads, other in zip(ours.probabilities, ours.v, ours.heads, theirs):
        assert np.abs(p - other).max() < 1e-5
        assert v.shape[-1] == net.model.layers[0].self_attn.v_head_dim
        assert np.abs(p @ v - heads).max() < 1e-5 * np.abs(heads).max()


@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_own_folders_and_16_bits_preserve_the_bits(made, tmp_path):
    """Our own folders describe every setting. 16-bit rows are those of the same numbers in 32 bits."""
    net, model = made
    ids = torch.randint(0, 97, (1, 60)).numpy()
    ours = ck.Transformer(model.path)
    ours.save(tmp_path / "own")
    assert np.array_equal(ck.Transformer(tmp_path / "own")(ids), ours(ids))
    weights = {name: p.bfloat16() for name, p in load_file(f"{model.path}/model.safetensors").items()}
    logits = []
    for kind in torch.bfloat16, torch.float32:
        folder = tmp_path / str(kind)
        folder.mkdir()
        save_file({name: p.to(kind) for name, p in weights.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text((pathlib.Path(model.path) / "config.json").read_text())
        logits.append(ck.Transformer(folder)(ids))
    assert np.array_equal(*logits)


@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_heads_are_switched_off(made):
    net, model = made
    check_without_head(net, model, 3, net.model.layers[3].self_attn.o_proj)


@pytest.mark.gate(2)
@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_the_program_shows_heads_and_refuses_the_rest(made, tmp_path):
    model, text = made[1], tmp_path / "text.txt"
    text.write_text((TEXT + "\n") * 3)
    for command in (["view", model.path, TEXT, "--layer", 0, "--npy", tmp_path / "maps.npy", "--quiet"],
                    ["view", model.path, TEXT, "-o", tmp_path / "maps.html", "--quiet"],
                    ["heads", model.path, "--text", text, "--csv", "--random", 0],
                    ["generate", model.path, "the cat", "--max-tokens", 5],
                    ["ablate", model.path, "--text", text, "--heads", 3, "--pairs", 2, "--random", 0]):
        done = run(*command)
        assert done.returncode == 0, done.stderr
    assert run("circuits", model.path).returncode == 0
    done = run("prune", model.path, "--text", text, "-o", tmp_path / "x")
    assert done.returncode and "layer 0 has latent attention" in done.stderr, done.stderr
    for command in "count", "explain":
        assert "'kv_lora_rank' describes latent attention" in run(command, model.path).stderr


@pytest.mark.skipif(circuits.library() is None, reason="built without MHA_CIRCUITS")
@pytest.mark.parametrize("made", ["youtu", "youtu, no query latent"], indirect=True)
def test_circuits_are_products_of_weights(made):
    """Singular values of W_Q^T W_K and W_O W_V with the norms of latents folded in. Products are rounded to f32."""
    net, found = made[0], ck.Transformer(made[1].path)
    own, D = net.config, net.config.qk_head_dim
    if own.v_head_dim > D:
        with pytest.raises(mha.MultiheadError, match="layer 0: value_dim is 24, expected at most head_dim, 16"):
            circuits.circuits(found.handle, found.desc)
        return
    found = circuits.circuits(found.handle, found.desc)
    for i, layer in enumerate(net.model.layers):
        a = {name: p.detach().double().numpy() for name, p in layer.self_attn.named_parameters()}
        norm, r = layer.input_layernorm.weight.detach().double().numpy(), own.kv_lora_rank
        down = a["kv_a_proj_with_mqa.weight"] * norm
        q = (a["q_b_proj.weight"] * a["q_a_layernorm.weight"] @ (a["q_a_proj.weight"] * norm)).reshape(4, D, -1)
        kv = (a["kv_b_proj.weight"] * a["kv_a_layernorm.weight"] @ down[:r]).reshape(4, -1, 48)
        for h in range(4):
            k = np.concatenate([kv[h, :own.qk_nope_head_dim], down[r:]])
            o = a["o_proj.weight"][:, h * own.v_head_dim:(h + 1) * own.v_head_dim]
            for name, product in (("qk_values", q[h].T @ k), ("ov_values", o @ kv[h, own.qk_nope_head_dim:])):
                wanted = np.linalg.svd(product)[1][:D]
                assert np.abs(found[name][i, h] - wanted).max() < 1e-5 * wanted[0]


RENAMED = (("model.", ""), ("input_layernorm", "self_attn_norm"), ("post_attention_layernorm", "mlp_norm"),
           ("kv_a_proj_with_mqa", "kv_a_proj"), ("q_a_layernorm", "q_a_norm"), ("kv_a_layernorm", "kv_a_norm"))


def as_ours(net, name, x):
    """{our names: parts} of a parameter of transformers, or of its gradient."""
    for theirs, ours in RENAMED:
        name = name.replace(theirs, ours)
    own, part = net.config, net.config.qk_rope_head_dim
    if name.endswith(("q_proj.weight", "q_b_proj.weight")):  # what rotates comes first
        return {name: x.reshape(own.num_attention_heads, own.qk_head_dim, -1).roll(part, 1).flatten(0, 1)}
    if not name.endswith("kv_b_proj.weight"):
        return {name: x}
    parts = x.reshape(own.num_attention_heads, -1, x.shape[-1]).split([own.qk_nope_head_dim, own.v_head_dim], 1)
    return {name.replace("kv_b", both): half.flatten(0, 1) for both, half in zip(("k_b", "v_b"), parts)}


@pytest.mark.parametrize("made", [kind for kind in KINDS if kind.startswith(("minicpm3", "youtu"))], indirect=True)
def test_gradients_are_those_of_autograd(made):
    net, model = made
    check_gradients(net, ck.Transformer(model.path), as_ours)


REFUSED = {
    "deepseek_v2": [
        ("kv_lora_rank", None, "'kv_lora_rank' is missing"),
        ("kv_lora_rank", 0, "'kv_lora_rank' is 0, expected 1..1048576"),
        ("kv_lora_rank", 19, "kv_a_proj_with_mqa.weight' has shape \\[28, 48\\], .* \\[27, 48\\]"),
        ("kv_lora_rank", 1 << 20, "describes at least"),
        ("q_lora_rank", "many", "'q_lora_rank' is not a whole number"),
        ("q_lora_rank", 27, "q_a_proj.weight' has shape"),
        ("q_lora_rank", None, "q_proj.weight' is missing|describes at least"),
        ("qk_rope_head_dim", 7, "heads have 7 numbers, an odd one"),
        ("qk_rope_head_dim", 1 << 21, "'qk_rope_head_dim' is 2097152"),
        ("qk_nope_head_dim", -1, "'qk_nope_head_dim' is -1"),
        ("qk_nope_head_dim", 11, "q_b_proj.weight' has shape"),
        ("v_head_dim", None, "'v_head_dim' is missing"),
        ("v_head_dim", 13, "kv_b_proj.weight' has shape|o_proj.weight' has shape"),
        ("num_key_value_heads", 2, "'num_key_value_heads' is 2, expected 4"),
        ("num_attention_heads", 8, "'num_key_value_heads' is 4, expected 8"),
        ("topk_method", "noaux_tc", "topk_method 'noaux_tc' is not supported"),
        ("moe_layer_freq", 2, "'moe_layer_freq' is 2"),
        ("norm_topk_prob", True, "'norm_topk_prob' is set"),
        ("mlp_bias", True, "'mlp_bias' is set"),
        ("n_group", 3, "'n_group' is 3, expected a divisor of 'n_routed_experts' 8"),
        ("topk_group", 5, "'topk_group' is 5, expected 1..4"),
        ("topk_group", 1, "'topk_group' is 1, whose groups have fewer than 'num_experts_per_tok' 3"),
        ("n_shared_experts", None, "'n_shared_experts' is missing"),
        ("n_shared_experts", 1, "shared_experts.gate_proj.weight' has shape"),
        ("first_k_dense_replace", 2, "weight .*layers.1.mlp.gate_proj.weight' is missing")],
    "deepseek_v3": [
        ("n_group", 8, "'n_group' is 8, expected a divisor of 'n_routed_experts' 8, with 2 or more"),
        ("rope_interleave", 1, "'rope_interleave'")],
    "glm4_moe_lite": [
        ("head_dim", 20, "'head_dim' is 20, expected 8"),
        ("mlp_layer_types", ["sparse"] * 4, "'mlp_layer_types' is not a list of 5 names, dense or sparse"),
        ("mlp_layer_types", ["dense"] * 4 + ["none"], "'mlp_layer_types' is not a list of 5 names")],
    "minicpm3": [
        ("scale_depth", -1, "'scale_depth' is -1"),
        ("dim_model_base", 0, "'dim_model_base' is 0"),
        ("attention_bias", True, "a_proj.*bias' is missing")],
    "youtu": [
        ("mlp_bias", True, "'mlp_bias' is set"),
        ("rope_parameters", {**YARN, "mscale_all_dim": 1e300}, r"'mscale_all_dim' is 1e\+300, expected at most 1e\+06")],
    "youtu, no query latent": [("attention_bias", True, "supported only with a 'q_lora_rank'")]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save(make_net(*KINDS[kind]), tmp_path_factory.mktemp("refused")) for kind in REFUSED}


def changed(config, folder, to):
    """Link a folder's files beside another config.json."""
    for name in "model.safetensors", "tokenizer.json":
        (to / name).symlink_to(folder / name)
    (to / "config.json").write_text(json.dumps(config))


@pytest.mark.gate(12)
@pytest.mark.parametrize("kind, field, value, error", [(kind, *row) for kind in REFUSED for row in REFUSED[kind]])
def test_hostile_fields_are_refused(folders, tmp_path, kind, field, value, error):
    changed({**json.loads((folders[kind] / "config.json").read_text()), field: value}, folders[kind], tmp_path)
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(tmp_path)


def test_a_missing_query_rank_is_an_error(folders, tmp_path):
    """Its default in transformers is not null."""
    config = json.loads((folders["deepseek_v2"] / "config.json").read_text())
    del config["q_lora_rank"]
    changed(config, folders["deepseek_v2"], tmp_path)
    with pytest.raises(multihead.Error, match="'q_lora_rank' is missing; null: queries have no latent"):
        multihead.Model(tmp_path)


def test_layers_that_predict_further_tokens_are_ignored(folders, tmp_path):
    folder = folders["deepseek_v3"]
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "model.layers.5.embed_tokens.weight": torch.zeros(97, 48)}, tmp_path / "model.safetensors")
    for name in "config.json", "tokenizer.json":
        (tmp_path / name).write_text((folder / name).read_text())
    assert np.array_equal(multihead.Model(tmp_path).logits([1, 2, 3]), multihead.Model(folder).logits([1, 2, 3]))
