"""Models with routed experts compared with transformers in float64: logits, steps, greedy tokens,
heads, routing, both layouts of files, threads, and rejected models. The models are random."""
import json

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import multihead
from decoder_checks import check_bits, check_greedy, check_logits, check_without_head
from test_hybrid_hf import SIZES as HYBRID, TEXT, run, write_tokenizer

SIZES = {name: size for name, size in HYBRID.items() if "head_dim" not in name and "linear" not in name}
EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
SHARED = {**HYBRID, **EXPERTS, "shared_expert_intermediate_size": 32}
SCALES = {"num_local_experts": 6, "num_experts_per_tok": 2, "embedding_multiplier": 12, "residual_multiplier": .22,
          "attention_multiplier": .15, "logits_scaling": 6}
SPACES = {"mamba_n_heads": 6, "mamba_d_state": 20, "mamba_n_groups": 2, "layer_types": [
    "linear_attention", "full_attention", "linear_attention", "full_attention", "linear_attention"]}
OSS = {"num_local_experts": 6, "num_experts_per_tok": 2, "head_dim": 16, "sliding_window": 9, "rope_parameters": {
    "rope_type": "yarn", "rope_theta": 1.5e5, "factor": 32., "beta_fast": 32., "beta_slow": 1., "truncate": False,
    "original_max_position_embeddings": 64}}
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
    "gpt_oss": ("GptOss", {**SIZES, **OSS}),
    "gpt_oss, all heads, no biases": (
        "GptOss", {**SIZES, **OSS, "num_key_value_heads": 4, "head_dim": 10, "attention_bias": False, "sliding_window": 3,
                   "layer_types": ["full_attention"] + ["sliding_attention"] * 4, "rope_parameters": {
                       "rope_type": "default", "rope_theta": 5e3}}),
    "gpt_oss, one expert": (
        "GptOss", {**SIZES, **OSS, "num_local_experts": 3, "num_experts_per_tok": 1, "tie_word_embeddings": True,
                   "rope_parameters": {"rope_type": "yarn", "rope_theta": 1.5e5, "factor": 4., "truncate": True,
                                       "original_max_position_embeddings": 32}}),
    "lfm2_moe": ("Lfm2Moe", {**SIZES, **CONV}),
    "lfm2_moe, tables": ("Lfm2Moe", {**SIZES, **CONV, "routed_scaling_factor": 2.5, "num_experts": 12,
                                     "num_dense_layers": 3, "tie_word_embeddings": False}),
    "granitemoe": ("GraniteMoe", {**SIZES, **SCALES}),
    "granitemoe, biases": ("GraniteMoe", {**SIZES, **SCALES, "num_local_experts": 9, "num_experts_per_tok": 4,
                                          "attention_bias": True, "tie_word_embeddings": True}),
    "granitemoe, tables": ("GraniteMoe", {**SIZES, "num_local_experts": 33, "num_experts_per_tok": 33}),
    "granitemoeshared": ("GraniteMoeShared", {**SIZES, **SCALES, "shared_intermediate_size": 28}),
    "granitemoeshared, none": ("GraniteMoeShared", {**SIZES, **SCALES, "num_experts_per_tok": 1}),
    "granitemoehybrid": ("GraniteMoeHybrid", {**SIZES, **SCALES, **SPACES, "shared_intermediate_size": 28}),
    "granitemoehybrid, rotated": ("GraniteMoeHybrid", {
        **SIZES, **SCALES, **SPACES, "mamba_n_groups": 3, "shared_intermediate_size": 7, "num_experts_per_tok": 1,
        "position_embedding_type": "rope", "tie_word_embeddings": True}),
    "granitemoehybrid, tables": ("GraniteMoeHybrid", {**SIZES, **SPACES, "num_local_experts": 12,
                                                      "num_experts_per_tok": 5, "attention_bias": True}),
    "lfm2_moe, without bias": ("Lfm2Moe", {**SIZES, **CONV, "use_expert_bias": False, "norm_topk_prob": False,
                                           "num_dense_layers": 0})}
FAMILIES = [kind for kind in KINDS if "," not in kind]


def make_net(name, sizes):
    """A random model in float32."""
    config = name + ("TextConfig" if name in ("Qwen3_5Moe", "Gemma4") else "Config")
    if not hasattr(transformers, config):
        pytest.skip(f"this transformers has no {config}")
    torch.manual_seed(7)
    config = getattr(transformers, config)(**sizes)
    config._experts_implementation = "eager"  # the default supports only float32
    net = getattr(transformers, name + "ForCausalLM")(config).eval()
    with torch.no_grad():
        biases = [(name, b) for name, b in net.named_buffers() if "bias" in name and b.is_floating_point()]
        for name, p in [*net.named_parameters(), *biases]:
            if p.ndim > 1:
                p.normal_(0, .3 if "embed" in name else .5 if "conv" in name else .8 / p.shape[-1] ** .5)
            elif "norm" in name or "bias" in name or "sinks" in name:
                p += torch.randn_like(p) * .2
            if name.endswith("gate_up_proj") and config.model_type == "gpt_oss":
                p *= 4  # so that some units are clamped
    return net


def make(kind, **changes):
    name, sizes = KINDS[kind]
    return make_net(name, {**sizes, **changes})


def save(net, folder, tables=False):
    net.save_pretrained(folder, **({"save_original_format": False} if tables else {}))
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net = make(request.param)
    folder = save(net, tmp_path_factory.mktemp("experts"), "tables" in request.param)
    names = load_file(folder / "model.safetensors")
    assert any(name.endswith("gate_up_proj") for name in names) == ("tables" in request.param or "oss" in request.param)
    return net, multihead.Model(folder)


def test_logits_are_those_of_transformers_in_double(made):
    check_logits(*made)


def test_threads_batches_and_steps_change_no_bit(made):
    check_bits(made[1], [(1, False), (7, False), (90, False)])


def test_greedy_tokens_are_those_of_transformers(made):
    check_greedy(*made)


@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_heads_are_switched_off(made):
    net, model = made
    layer = max(i for i, heads in enumerate(model.heads_of_layers) if heads == 4)
    attention = net.model.layers[layer].self_attn
    check_without_head(net, model, layer, attention.out_proj if hasattr(attention, "out_proj") else attention.o_proj)


@pytest.mark.parametrize("made", [kind for kind in FAMILIES if not kind.startswith("qwen3_")] + ["qwen3_moe"],
                         indirect=True)
def test_the_program_shows_heads_and_refuses_the_rest(made, tmp_path):
    model, text = made[1], tmp_path / "text.txt"
    text.write_text((TEXT + "\n") * 3)
    layer = next(i for i, heads in enumerate(model.heads_of_layers) if heads)
    for command in (["view", model.path, TEXT, "--layer", layer, "--npy", tmp_path / "maps.npy", "--quiet"],
                    ["heads", model.path, "--text", text, "--csv", "--random", 0]):
        assert run(*command).returncode == 0
    assert run("ablate", model.path, "--text", text, "--quiet").returncode == 0
    refused = [["prune", model.path, "--text", text, "-o", tmp_path / "x"]]
    kinds = getattr(made[0].config, "layer_types", None) or ()
    if all(kind in ("full_attention", "sliding_attention") for kind in kinds):
        assert run("circuits", model.path).returncode == 0
    else:
        refused.append(["circuits", model.path])
    for command in refused:
        done = run(*command)
        assert done.returncode and "layer 0 " in done.stderr, done.stderr


@pytest.mark.parametrize("made", FAMILIES, indirect=True)
def test_the_experts_of_each_token(made, tmp_path):
    """As routed by transformers, in Python, JSON, the terminal and the report."""
    net, model = made
    routed, T = [], len(model.tokenize(TEXT).ids)
    hooks = [module.register_forward_hook(lambda *call: routed.append(call[2]))
             for module in net.modules() if "Router" in type(module).__name__]
    with torch.no_grad():
        net(torch.tensor([model.tokenize(TEXT).ids.tolist()]))
    for hook in hooks:
        hook.remove()
    ours = model.experts(TEXT)
    assert len(ours) == model.layers
    some = [layer for layer in ours if layer]
    for layer, out in zip(some, routed, strict=True):
        weights, chosen = out[-2:]
        order = chosen.argsort(-1)
        assert np.array_equal(chosen.gather(1, order).numpy(), layer.numbers)
        assert np.abs(weights.gather(1, order).numpy() - layer.weights).max() < 1e-4
    for layer in some:
        assert layer.numbers.shape == layer.weights.shape and len(layer.numbers) == T
        assert (np.diff(layer.numbers) > 0).all() and 0 <= layer.numbers.min() and layer.numbers.max() < layer.total
    done = run("view", model.path, TEXT, "--json", "-", "--quiet")
    written = {layer["layer"]: layer for layer in json.loads(done.stdout)["experts"]}
    assert sorted(written) == [i for i, layer in enumerate(ours) if layer]
    for i, layer in written.items():
        assert (layer["count"], layer["used"]) == (ours[i].total, ours[i].numbers.shape[1])
        assert np.array_equal(layer["experts"], ours[i].numbers)
        assert np.array_equal(np.array(layer["weights"], np.float32), ours[i].weights)
    done = run("view", model.path, TEXT, "--experts", "-o", tmp_path / "report.html", "--quiet")
    assert done.returncode == 0 and done.stdout.count(" experts per token") == len(some), done.stderr
    assert len(done.stdout.splitlines()) == len(some) * (T + 1)
    page = (tmp_path / "report.html").read_text()
    assert '"choice_title":"Experts"' in page and page.count('"name":"layer ') >= len(some)


def test_models_without_experts_have_none(tmp_path):
    torch.manual_seed(7)
    folder = save(transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SIZES)), tmp_path)
    assert multihead.Model(folder).experts(TEXT) == [None] * SIZES["num_hidden_layers"]
    assert "experts" not in json.loads(run("view", folder, TEXT, "--json", "-", "--quiet").stdout)
    done = run("view", folder, TEXT, "--experts")
    assert done.returncode == 5 and "no layer of" in done.stderr


REFUSED = {
    "qwen3_next": [
        ("num_experts_per_tok", 7, "'num_experts_per_tok' is 7, expected 1..6"),
        ("num_experts_per_tok", 0, "'num_experts_per_tok' is 0, expected 1..6"),
        ("num_experts_per_tok", None, "'num_experts_per_tok' is missing"),
        ("num_experts", -1, "'num_experts' is -1, expected 0..65536"),
        ("num_experts", 7, "describes at least"),
        ("num_experts", 5, "layers.0.mlp.gate.weight' has shape \\[6, 48\\], config.json requires \\[5, 48\\]"),
        ("moe_intermediate_size", 23, "experts.0.gate_proj.weight' has shape \\[24, 48\\]"),
        ("moe_intermediate_size", 1 << 21, "'moe_intermediate_size' is 2097152"),
        ("shared_expert_intermediate_size", 31, "shared_expert.gate_proj.weight' has shape"),
        ("decoder_sparse_step", 0, "'decoder_sparse_step' is 0"),
        ("mlp_only_layers", 1, "'mlp_only_layers' is not a list"),
        ("mlp_only_layers", [], "describes at least"),
        ("mlp_only_layers", [1, 2], "weight .*layers.2.mlp.gate_proj.weight' is missing"),
        ("norm_topk_prob", 1, "'norm_topk_prob'")],
    "qwen3_5_moe": [
        ("num_experts", 0, "'num_experts' is 0, expected 1..65536"),
        ("num_experts", None, "'num_experts' is missing")],
    "qwen3_moe": [
        ("num_experts", 5, "'num_experts' is 5, 'num_local_experts' is 6|'num_local_experts' is 6, 'num_experts' is 5"
                           "|'num_experts' is 5, .*remove the one that does not match"),
        ("num_local_experts", None, "'num_experts' is missing")],
    "mixtral": [
        ("num_local_experts", 0, "'num_local_experts' is 0, expected 1..65536"),
        ("num_experts_per_tok", 9, "'num_experts_per_tok' is 9, expected 1..8")],
    "olmoe": [
        ("clip_qkv", 8.0, "'clip_qkv' is set"),
        ("num_key_value_heads", 1, "k_proj.weight' has shape|k_norm.weight' has shape")],
    "gpt_oss": [
        ("swiglu_limit", 5.0, "'swiglu_limit' is 5, which is not supported; known: 7"),
        ("swiglu_alpha", 1.0, "'swiglu_alpha' is 1, which is not supported; known: 1.702"),
        ("num_experts_per_tok", 7, "'num_experts_per_tok' is 7, expected 1..6"),
        ("num_local_experts", 5, "router.weight' has shape \\[6, 48\\]"),
        ("intermediate_size", 79, "gate_up_proj' has shape \\[6, 48, 160\\], .* \\[6, 48, 158\\]"),
        ("rope_parameters", None, "'rope_parameters' and 'rope_scaling' are both missing"),
        ("quantization_config", {"quant_method": "awq"}, "quant_method 'awq' is not supported")],
    "lfm2_moe": [
        ("use_expert_bias", False, "has weight .*expert_bias"),
        ("num_dense_layers", 2, "weight .*layers.1.feed_forward.w1.weight' is missing"),
        ("routed_scaling_factor", -1.0, "'routed_scaling_factor' is -1")]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: save(make(kind), tmp_path_factory.mktemp("refused")) for kind in REFUSED}


@pytest.mark.parametrize("kind, field, value, error", [(kind, *row) for kind in REFUSED for row in REFUSED[kind]])
def test_hostile_fields_are_refused(folders, kind, field, value, error):
    path = folders[kind] / "config.json"
    written = path.read_text()
    path.write_text(json.dumps({**json.loads(written), field: value}))
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(folders[kind])
    path.write_text(written)


@pytest.mark.parametrize("name, change, error", [
    ("mlp.experts.gate_up_proj", lambda w: w[:-1], "gate_up_proj' has shape \\[5, 48, 48\\], .* \\[6, 48, 48\\]"),
    ("mlp.experts.gate_up_proj", lambda w: w[:, :-1], "gate_up_proj' has shape"),
    ("mlp.experts.down_proj", lambda w: w.transpose(1, 2), "down_proj' has shape"),
    ("mlp.experts.down_proj", lambda w: w.flatten(0, 1), "down_proj' has shape"),
    ("mlp.experts.down_proj", lambda w: w.long(), "down_proj' is i64"),
    ("mlp.experts.down_proj", None, "experts.down_proj' is missing"),
    ("mlp.gate.weight", None, "gate.weight' is missing"),
    ("mlp.shared_expert_gate.weight", None, "shared_expert_gate.weight' is missing")])
def test_hostile_tables_are_refused(tmp_path, name, change, error):
    folder = save(make("qwen3_5_moe"), tmp_path, tables=True)
    weights, full = load_file(folder / "model.safetensors"), f"model.layers.1.{name}"
    if change:
        weights[full] = change(weights[full]).contiguous()
    else:
        del weights[full]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(folder)


def test_heads_below_wide_norms_stay(tmp_path):
    """Without some heads, a norm over the queries of all heads would be a different norm. prune
    rejects layers with this norm before it measures; ablate closes gates."""
    torch.manual_seed(7)
    folder = save(transformers.Olmo2ForCausalLM(transformers.Olmo2Config(**SIZES)), tmp_path)
    text = tmp_path / "text.txt"
    text.write_text(TEXT + "\n")
    done = run("ablate", folder, "--text", text, "--random", 0, "--pairs", 0)
    assert done.returncode == 0, done.stderr
    for option in ["--keep", 2], ["--keep", 2, "--mask"], ["--keep", 2, "--measure", "ablation"], ["--kv-heads", 1]:
        done = run("prune", folder, "--text", text, *option)
        assert done.returncode and "layer 0 has a norm across" in done.stderr, done.stderr


E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def in_blocks(net):
    """Random blocks of MXFP4 in place of the experts, {name: blocks or scales}; the net gets their numbers."""
    made, generator = {}, np.random.default_rng(9)
    for name, p in net.named_parameters():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            continue
        count, inputs, outputs = p.shape
        blocks = generator.integers(0, 256, (count, outputs, inputs // 32, 16), np.uint8)
        scales = generator.integers(120, 125, (count, outputs, inputs // 32), np.uint8)
        numbers = E2M1[np.stack([blocks & 15, blocks >> 4], -1).reshape(*blocks.shape[:3], 32)]
        numbers *= np.exp2(scales.astype(np.float32) - 127)[..., None]
        with torch.no_grad():
            p.copy_(torch.from_numpy(numbers.reshape(count, outputs, inputs)).transpose(1, 2))
        made[f"{name}_blocks"], made[f"{name}_scales"] = torch.from_numpy(blocks), torch.from_numpy(scales)
    return made


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The folder of a net in blocks, and of the same numbers in float32."""
    net = make("gpt_oss", hidden_size=64, intermediate_size=96)
    made = in_blocks(net)
    plain, folder = (save(net, tmp_path_factory.mktemp(name)) for name in ("plain", "packed"))
    weights = {name: w for name, w in load_file(folder / "model.safetensors").items()
               if not name.endswith(("experts.gate_up_proj", "experts.down_proj"))}
    save_file({**weights, **made}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "mxfp4"}}))
    return net, made, plain, folder


def test_blocks_of_mxfp4_are_the_numbers_of_transformers(packed):
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    net, made, plain, folder = packed
    for name, p in net.named_parameters():
        if f"{name}_blocks" in made:
            theirs = convert_moe_packed_tensors(made[f"{name}_blocks"], made[f"{name}_scales"], dtype=torch.float32)
            assert torch.equal(theirs, p)
    ids = torch.randint(0, 97, (60,)).tolist()
    assert np.array_equal(multihead.Model(folder).logits(ids), multihead.Model(plain).logits(ids))


@pytest.mark.parametrize("name, change, error", [
    ("down_proj_scales", None, "down_proj_scales' is missing"),
    ("down_proj_blocks", lambda w: w[:, :, :2], "down_proj_blocks' has shape \\[6, 64, 2, 16\\], .* \\[6, 64, 3, 16\\]"),
    ("gate_up_proj_scales", lambda w: w[:, 1:], "gate_up_proj_scales' has shape"),
    ("gate_up_proj_blocks", lambda w: w.float(), "gate_up_proj_blocks' is f32, expected u8")])
def test_hostile_blocks_are_refused(packed, tmp_path, name, change, error):
    weights, full = load_file(packed[3] / "model.safetensors"), f"model.layers.1.mlp.experts.{name}"
    if change:
        weights[full] = change(weights[full]).contiguous()
    else:
        del weights[full]
    save_file(weights, tmp_path / "model.safetensors")
    for other in "config.json", "tokenizer.json":
        (tmp_path / other).write_text((packed[3] / other).read_text())
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(tmp_path)
