"""Models with gated delta nets, state spaces or short convolutions compared with transformers in
float64: logits, steps, greedy tokens, maps, removed heads, and rejected models. The models are
random."""
import json
import subprocess

import numpy as np
import pytest
import safetensors.torch
import torch
import transformers
from safetensors.torch import save_file

import multihead
from decoder_checks import check_logits
from shared import PROGRAM

SIZES = {"vocab_size": 97, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 5,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "linear_num_key_heads": 2,
         "linear_num_value_heads": 6, "linear_key_head_dim": 12, "linear_value_head_dim": 20,
         "max_position_embeddings": 256, "pad_token_id": None, "bos_token_id": None,
         "eos_token_id": None}
SPACES = {"head_dim": 12, "mamba_n_heads": 6, "mamba_d_state": 20, "mamba_n_groups": 2}
OLMO = {"head_dim": 12, "linear_num_value_heads": 6,
        "layer_types": ["linear_attention", "full_attention"] * 2 + ["linear_attention"]}
GRANITE = {**SPACES, "num_local_experts": 0, "shared_intermediate_size": 80, "embedding_multiplier": 12,
           "residual_multiplier": .22, "attention_multiplier": .15, "logits_scaling": 6,
           "layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention",
                           "linear_attention"]}
PURE = {"num_heads": 6, "num_attention_heads": 6, "state_size": 20, "n_groups": 2}
NEMOTRON = {"hybrid_override_pattern": "M-M*-", "mamba_num_heads": 6, "mamba_head_dim": 10, "ssm_state_size": 20,
            "n_groups": 2, "time_step_min": 1e-30}
KINDS = {"qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM", {"num_experts": 0}),
         "qwen3_next, biases, three heads": ("Qwen3NextConfig", "Qwen3NextForCausalLM",
                                             {"num_experts": 0, "attention_bias": True, "linear_num_key_heads": 3,
                                              "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3}),
         "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM", {"tie_word_embeddings": True}),
         "olmo_hybrid": ("OlmoHybridConfig", "OlmoHybridForCausalLM", {**OLMO, "rope_parameters": {
             "rope_type": "default", "rope_theta": None}}),
         "olmo_hybrid, rotated": ("OlmoHybridConfig", "OlmoHybridForCausalLM",
                                  {**OLMO, "linear_allow_neg_eigval": False, "linear_num_key_heads": 3,
                                   "linear_conv_kernel_dim": 3, "attention_bias": True, "tie_word_embeddings": True,
                                   "rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.5}}),
         "olmo_hybrid, usual sizes": ("OlmoHybridConfig", "OlmoHybridForCausalLM",
                                      {"head_dim": 12, "num_key_value_heads": 4, "rms_norm_eps": 1e-3,
                                       **{f"linear_{size}": None for size in ("num_key_heads", "num_value_heads",
                                                                              "key_head_dim", "value_head_dim")}}),
         "lfm2": ("Lfm2Config", "Lfm2ForCausalLM", {"full_attn_idxs": [2, 4], "block_multiple_of": 16}),
         "lfm2, untied": ("Lfm2Config", "Lfm2ForCausalLM",
                          {"layer_types": ["conv", "full_attention", "conv", "full_attention", "conv"],
                           "conv_L_cache": 5, "block_ffn_dim_multiplier": 1.3, "num_key_value_heads": 4,
                           "tie_word_embeddings": False}),
         "lfm2, as published": ("Lfm2Config", "Lfm2ForCausalLM",
                                {"full_attn_idxs": [1], "conv_L_cache": 2, "block_ff_dim": 90, "norm_eps": 1e-3,
                                 "block_auto_adjust_ff_dim": False, "num_key_value_heads": 1,
                                 "rope_parameters": {"rope_type": "linear", "rope_theta": 5e3, "factor": 2.5}}),
         "bamba": ("BambaConfig", "BambaForCausalLM", {**SPACES, "attn_layer_indices": [1, 3]}),
         "bamba, one group": ("BambaConfig", "BambaForCausalLM",
                              {**SPACES, "attn_layer_indices": [2], "mamba_n_groups": 1, "mamba_d_conv": 2,
                               "time_step_limit": [.5, 1.], "mlp_bias": True, "attention_bias": True}),
         "bamba, a group for each head": ("BambaConfig", "BambaForCausalLM",
                                          {**SPACES, "attn_layer_indices": [0], "mamba_n_groups": 6, "mamba_expand": 3,
                                           "tie_word_embeddings": True, "rms_norm_eps": 1e-3}),
         "granitemoehybrid": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM", GRANITE),
         "granitemoehybrid, rotated": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
                                       {**GRANITE, "position_embedding_type": "rope", "mamba_n_groups": 3,
                                        "attention_bias": True, "tie_word_embeddings": True}),
         "granitemoehybrid, plain": ("GraniteMoeHybridConfig", "GraniteMoeHybridForCausalLM",
                                     {**SPACES, "num_local_experts": 0, "mamba_d_conv": 5,
                                      "layer_types": ["full_attention"] + ["linear_attention"] * 4}),
         "mamba2": ("Mamba2Config", "Mamba2ForCausalLM", PURE),
         "mamba2, one group": ("Mamba2Config", "Mamba2ForCausalLM",
                               {**PURE, "n_groups": 1, "conv_kernel": 3, "time_step_limit": [.5, 1.],
                                "tie_word_embeddings": True}),
         "mamba2, a group for each head": ("Mamba2Config", "Mamba2ForCausalLM",
                                           {**PURE, "n_groups": 6, "expand": 1, "head_dim": 8, "state_size": 33,
                                            "layer_norm_epsilon": 1e-3}),
         "nemotron_h": ("NemotronHConfig", "NemotronHForCausalLM", NEMOTRON),
         "nemotron_h, clipped": ("NemotronHConfig", "NemotronHForCausalLM",
                                 {**NEMOTRON, "hybrid_override_pattern": "*-M-M", "n_groups": 1, "mlp_bias": True,
                                  "time_step_min": .6, "num_key_value_heads": 4, "layer_norm_epsilon": 1e-3}),
         "nemotron_h, a group for each head": ("NemotronHConfig", "NemotronHForCausalLM",
                                               {**NEMOTRON, "hybrid_override_pattern": "-MM*M", "n_groups": 6,
                                                "head_dim": 12, "mamba_head_dim": 7, "conv_kernel": 2})}
NETS = [kind for kind in KINDS if not kind.startswith("lfm2")]
TEXT = "the cat sat on the mat. the dog ran to the cat."


def mixer_of(net):
    """The last layer with another mixer, the first one, and the library's message about it."""
    layers = [i for i, kind in enumerate(net.config.layer_types) if kind in ("linear_attention", "conv")]
    kind = {"qwen": "gated delta net", "olmo": "gated delta net", "lfm2": "short convolution"}.get(
        net.config.model_type[:4], "state space")
    return layers[-1], f"layer {layers[0]} is a {kind}"


def mixing_part(net, layer):
    """The norm before a layer's mixer, and the mixer."""
    layer = (getattr(net, "model", None) or net.backbone).layers[layer]
    own = (getattr(layer, name, None) for name in ("linear_attn", "mamba", "mixer"))
    return getattr(layer, "input_layernorm", None) or layer.norm, next(part for part in own if part is not None)


def write_tokenizer(folder):
    tokenizers = pytest.importorskip("tokenizers")
    marks = list("abcdefghijklmnopqrstuvwxyz.,!?") + ["\u0120"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(marks)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    config, net, more = KINDS[request.param]
    if not hasattr(transformers, net):
        pytest.skip(f"this transformers has no {net}")
    torch.manual_seed(7)
    net = getattr(transformers, net)(getattr(transformers, config)(**{**SIZES, **more})).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if p.ndim > 1:
                p.normal_(0, .3 if "embed" in name else .5 if "conv" in name else .8 / p.shape[-1] ** .5)
            elif "norm" in name or "bias" in name:
                p += torch.randn_like(p) * .2
    folder = tmp_path_factory.mktemp("hybrid")
    net.save_pretrained(folder)
    write_tokenizer(folder)
    return net, multihead.Model(folder)


def test_logits_are_those_of_transformers_in_double(made):
    check_logits(*made)


def test_steps_of_any_sizes_have_the_bits_of_the_whole(made):
    ids = torch.randint(0, 97, (2, 150)).tolist()
    model = made[1]
    whole = [model.logits(row) for row in ids]
    for size in (1, 7, 90):
        decoder = model.decoder(batch=2)
        for at in range(0, 150, size):
            counts = [len(row[at:at + size]) for row in ids]
            got = decoder.step([row[at:at + size] for row in ids], counts)
            for b in range(2):
                assert np.array_equal(got[b], whole[b][at:at + size])
    with pytest.raises(multihead.Error, match=f"{mixer_of(made[0])[1]}, and the decoder keeps no copy of its state at 20"):
        decoder.truncate(20)
    assert decoder.restorable(149) == 0
    decoder.fork(0, 1, 150)
    assert np.array_equal(*decoder.step([[5], [5]]))
    decoder.truncate(0)
    assert np.array_equal(decoder.step([row[:9] for row in ids])[1], whole[1][:9])


def test_decoders_go_back_to_copies_of_states(made):
    ids = torch.randint(0, 97, (150,)).tolist()
    model = made[1]
    decoder = model.decoder(batch=2, state_interval=32, state_copies=3)
    whole = model.logits(ids)
    decoder.step([ids[:140]] * 2, [140, 9])
    decoder.keep(1)
    assert [decoder.restorable(n) for n in (150, 139, 127, 64, 63)] == [140, 128, 96, 64, 0]
    assert decoder.restorable(9, 1) == 9 and decoder.cache_bytes > model.decoder(batch=2).cache_bytes
    decoder.truncate(96, 0)
    assert np.array_equal(decoder.step([ids[96:]] * 2, [54, 0])[0], whole[96:])
    decoder.fork(0, 1, 64)
    assert np.array_equal(decoder.step([ids[64:84]] * 2, [0, 20])[1], whole[64:84])
    with pytest.raises(multihead.Error, match="keeps no copy of its state at 63"):
        decoder.truncate(63, 1)
    with pytest.raises(ValueError, match="sequence: 2"):
        decoder.restorable(1, 2)


def test_greedy_tokens_are_those_of_transformers(made):
    net, model = made
    ids = torch.randint(0, 97, (1, 9))
    # transformers clips step sizes only without a cache
    limits = [tuple(part.time_step_limit) for part in net.modules() if hasattr(part, "time_step_limit")]
    cached = all(limit[0] < 1e-9 and limit[1] == np.inf for limit in limits)
    theirs = net.generate(ids, max_new_tokens=50, do_sample=False, use_cache=cached)[0, 9:].tolist()
    decoder = model.decoder()
    logits = decoder.prefill(ids[0].tolist())
    ours = []
    for _ in theirs:
        ours.append(int(logits.argmax()))
        logits = decoder.step([ours[-1]])[0]
    assert ours == theirs


@pytest.mark.parametrize("made", NETS, indirect=True)
def test_maps_are_signed_and_exact(made):
    whole, model = made
    at = mixer_of(whole)[0]
    delta = model.attention(TEXT, layers=[at], outputs=("probabilities", "v", "q", "k", "heads"))
    p = delta.probabilities[0]
    assert (p < 0).any() and np.array_equal(p, np.tril(p))
    if "full_attention" in whole.config.layer_types:
        other = model.attention(TEXT, layers=[whole.config.layer_types.index("full_attention")]).probabilities[0]
        assert np.abs(other.sum(-1) - 1).max() < 1e-5
    # a head's output is the gated norm of M v; the direction of M v follows from o_norm and the
    # gate
    mixed = torch.tensor(p @ delta.v[0]).transpose(0, 1).float()  # [T,H,Dv]
    norm, net = mixing_part(whole, at)
    before = at - (whole.config.model_type == "mamba2")  # whose states begin after the first layer
    width = mixed.shape[-1] if whole.config.model_type[:4] in ("qwen", "olmo") else net.intermediate_size
    with torch.no_grad():
        x = norm(whole(torch.tensor([model.tokenize(TEXT).ids.tolist()]),
                                        output_hidden_states=True).hidden_states[before])
        if width == net.__dict__.get("intermediate_size"):
            z = net.in_proj(x)[..., :width]
        elif hasattr(net, "g_proj"):
            z = net.g_proj(x)
        elif hasattr(net, "in_proj_qkvz"):
            z = net.fix_query_key_value_ordering(net.in_proj_qkvz(x), net.in_proj_ba(x))[3]
        else:
            z = net.in_proj_z(x)
        norm = net.o_norm if hasattr(net, "o_norm") else net.norm
        expected = norm(mixed.reshape(-1, width), z.reshape(-1, width)).reshape(mixed.shape).transpose(0, 1).numpy()
    assert np.abs(expected - delta.heads[0]).max() < 1e-4


@pytest.mark.parametrize("made", NETS, indirect=True)
def test_heads_of_recurrent_mixers_are_switched_off(made):
    net, model = made
    at = mixer_of(net)[0]
    ids = torch.randint(0, 97, (1, 40))
    with torch.no_grad():
        mixer = mixing_part(net, at)[1]
        weight = (mixer.o_proj if hasattr(mixer, "o_proj") else mixer.out_proj).weight
        kept, size = weight.clone(), weight.shape[1] // model.heads_of_layers[at]
        weight[:, size:2 * size] = 0
        theirs = net(ids).logits[0].numpy()
        weight.copy_(kept)
    assert np.abs(model.logits(ids[0].tolist(), without=[f"L{at}H1"]) - theirs).max() < 1e-2
    assert np.abs(model.logits(ids[0].tolist()) - theirs).max() > 1e-2


@pytest.mark.parametrize("made", [kind for kind in KINDS if kind not in NETS], indirect=True)
def test_short_convolutions_have_no_heads(made):
    net, model = made
    attends = [kind == "full_attention" for kind in net.config.layer_types]
    assert list(model.heads_of_layers) == [4 * attend for attend in attends]
    seen = model.attention(TEXT, outputs=("probabilities", "v", "heads"))
    for p, v, heads, attend in zip(seen.probabilities, seen.v, seen.heads, attends):
        assert len(p) == 4 * attend
        if attend:
            assert np.abs(p @ v.repeat(4 // len(v), 0) - heads).max() < 1e-5 * np.abs(heads).max()


@pytest.mark.parametrize("names", ["q k v", "one"])
def test_convolutions_of_olmo_hybrid_in_parts(tmp_path, names):
    """Published files keep the convolutions of q, k and v apart."""
    config, net, more = KINDS["olmo_hybrid"]
    torch.manual_seed(7)
    net = getattr(transformers, net)(getattr(transformers, config)(**{**SIZES, **more})).eval()
    net.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    wanted, weights = multihead.Model(tmp_path).logits(list(range(40))), net.state_dict()
    for name in [name for name in weights if "linear_attn.conv1d" in name]:
        if names == "one":
            continue
        size = 2 * SIZES["linear_key_head_dim"]
        parts = weights.pop(name).split([size, size, 6 * SIZES["linear_value_head_dim"]])
        weights |= {name.replace("conv1d", f"{part}_conv1d"): x for part, x in zip("qkv", parts)}
    save_file({name: x.clone() for name, x in weights.items()}, tmp_path / "model.safetensors")
    assert np.array_equal(multihead.Model(tmp_path).logits(list(range(40))), wanted)
    if names == "one":
        return
    first = next(name for name in weights if "v_conv1d" in name)
    cut = {**weights, first: weights[first][1:]}
    save_file({name: x.clone() for name, x in cut.items()}, tmp_path / "model.safetensors")
    with pytest.raises(multihead.Error, match="v_conv1d.weight' has shape"):
        multihead.Model(tmp_path)
    save_file({name: x.clone() for name, x in weights.items() if name != first}, tmp_path / "model.safetensors")
    with pytest.raises(multihead.Error, match="v_conv1d.weight' is missing"):
        multihead.Model(tmp_path)


IMAGES = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": 48,
          "num_position_embeddings": 16}


def with_images(tmp_path, **changes):
    """A model with images, whose text part is a text model that is returned."""
    torch.manual_seed(3)
    text = {**SIZES, "model_type": "qwen3_5_text", "eos_token_id": 5, "tie_word_embeddings": True,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
                                "mrope_section": [2, 1, 1], "mrope_interleaved": True}, **changes}
    config = transformers.Qwen3_5Config(text_config=text, vision_config=IMAGES, **{
        "tie_word_embeddings": text["tie_word_embeddings"], "image_token_id": 90, "video_token_id": 91,
        "vision_start_token_id": 92, "vision_end_token_id": 93})
    whole = transformers.Qwen3_5ForConditionalGeneration(config).eval()
    whole.save_pretrained(tmp_path / "whole")
    write_tokenizer(tmp_path / "whole")
    return whole


@pytest.mark.parametrize("tied", [True, False])
def test_the_text_part_of_a_model_with_images(tmp_path, tied):
    whole, ids = with_images(tmp_path, tie_word_embeddings=tied), torch.randint(0, 89, (1, 60))
    text = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "whole")
    assert type(text).__name__ == "Qwen3_5ForCausalLM"
    text.save_pretrained(tmp_path / "text")
    write_tokenizer(tmp_path / "text")
    models = [multihead.Model(tmp_path / name) for name in ("whole", "text")]
    logits = [model.logits(ids[0].tolist()) for model in models]
    assert np.array_equal(*logits) and models[0].end_tokens == [5]
    with torch.no_grad():
        assert np.abs(whole(ids).logits[0].numpy() - logits[0]).max() < 1e-5


@pytest.mark.parametrize("level, field, value, error", [
    ("", "text_config", None, "'text_config' is not a JSON object"),
    ("", "tie_word_embeddings", False, "'tie_word_embeddings' is false and in text_config true"),
    ("", "quantization_config", {"bits": 4}, "'quantization_config' is set"),
    ("text_config", "model_type", "qwen3_5_moe_text", "'model_type' of text_config is 'qwen3_5_moe_text'"),
    ("text_config", "model_type", None, "'model_type' is missing"),
    ("text_config", "linear_key_head_dim", -1, "'linear_key_head_dim' is -1"),
    ("text_config", "num_hidden_layers", 4, "has weight 'model.language_model.layers.4.")])
def test_hostile_fields_of_parts_are_refused(tmp_path, level, field, value, error):
    with_images(tmp_path)
    path = tmp_path / "whole/config.json"
    config = json.loads(path.read_text())
    (config[level] if level else config)[field] = value
    if field == "num_hidden_layers":
        config[level]["layer_types"].pop()
    path.write_text(json.dumps(config))
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(tmp_path / "whole")


def run(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_program_shows_and_refuses(made, tmp_path):
    folder = made[1].path
    text = tmp_path / "text.txt"
    text.write_text(TEXT + "\n")
    layer = next(i for i, heads in enumerate(made[1].heads_of_layers) if heads)
    done = run("view", folder, TEXT, "--layer", layer, "--npy", tmp_path / "maps.npy", "-o", tmp_path / "x.html", "-q")
    assert done.returncode == 0, done.stderr
    done = run("heads", folder, "--text", text, "--csv", "--random", 0)
    assert done.returncode == 0 and done.stdout.count("\n") == 1 + sum(made[1].heads_of_layers), done.stderr
    kind = mixer_of(made[0])[1]
    done = run("ablate", folder, "--text", text, "--heads", 3, "--pairs", 2, "--random", 0, "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["pairs"], done.stderr

    assert kind in run("prune", folder, "--text", text).stderr
    assert kind in run("circuits", folder).stderr


@pytest.mark.parametrize("made", NETS, indirect=True)
def test_measures_of_signed_maps(made, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT + "\n")
    done = run("heads", made[1].path, "--text", text, "--random", 0, "--json")
    assert done.returncode == 0, done.stderr
    for head in json.loads(done.stdout)["heads"]:
        delta, scores = made[0].config.layer_types[head["layer"]] != "full_attention", head["scores"]
        assert (scores["sink"] is None) == delta == (scores["negative"] is not None)
        assert scores["evenness"] and (not delta or 0 < scores["negative"]["value"] < 1)


REFUSED = {
    "qwen3_next": [
        ("linear_num_value_heads", 5, "expected a multiple of 'linear_num_key_heads', 2"),
        ("linear_key_head_dim", 1 << 20, "describes at least"),
        ("linear_value_head_dim", -1, "'linear_value_head_dim' is -1"),
        ("linear_conv_kernel_dim", 65, "'linear_conv_kernel_dim' is 65"),
        ("linear_conv_kernel_dim", 5, "linear_attn.conv1d.weight"),
        ("linear_key_head_dim", 13, "linear_attn.in_proj"),
        ("layer_types", ["linear_attention"], "'layer_types' is not a list of 5"),
        ("layer_types", ["mamba"] * 5, "'layer_types' of layer 0 is 'mamba'")],
    "olmo_hybrid": [
        ("linear_num_value_heads", 5, "expected a multiple of 'linear_num_key_heads', 2"),
        ("linear_num_key_heads", 0, "'linear_num_key_heads' is 0"),
        ("linear_key_head_dim", 1 << 20, "describes at least"),
        ("linear_key_head_dim", 13, "linear_attn"),
        ("linear_conv_kernel_dim", 5, "linear_attn.(q_)?conv1d.weight"),
        ("linear_allow_neg_eigval", 2, "'linear_allow_neg_eigval'"),
        ("layer_types", ["full_attention"] * 5, "weight .* is missing|describes at least"),
        ("rope_parameters", {"rope_theta": -1}, "'rope_theta' is -1")],
    "lfm2": [
        ("conv_bias", True, "'conv_bias' is set"),
        ("conv_L_cache", 0, "'conv_L_cache' is 0"),
        ("conv_L_cache", 4, "conv.conv.weight"),
        ("block_ffn_dim_multiplier", 1e9, "'block_ffn_dim_multiplier' is 1e\\+09, which makes .* wide"),
        ("block_ffn_dim_multiplier", 0.5, "feed_forward.w1.weight"),
        ("block_multiple_of", 0, "'block_multiple_of' is 0"),
        ("block_ff_dim", 1 << 21, "'block_ff_dim' is 2097152"),
        ("full_attn_idxs", 3, "'full_attn_idxs' is not a list"),
        ("full_attn_idxs", [1], "weight .* is missing"),
        ("layer_types", ["linear_attention"] * 5, "'layer_types' of layer 0 is 'linear_attention'; known: .*, conv"),
        ("num_key_value_heads", None, "'num_key_value_heads' is missing")],
    "bamba": [
        ("mamba_n_groups", 0, "'mamba_n_groups' is 0"),
        ("mamba_n_groups", -1, "'mamba_n_groups' is -1"),
        ("mamba_n_groups", 4, "'mamba_n_heads' is 6, expected a multiple of 'mamba_n_groups', 4"),
        ("mamba_n_heads", 1 << 21, "'mamba_n_heads' is 2097152"),
        ("mamba_n_heads", 1 << 20, "'mamba_d_head' is 16 and 'mamba_n_heads' 1048576; their product"),
        ("mamba_d_head", 17, "'mamba_d_head' is 17 and 'mamba_n_heads' 6; their product must be 'mamba_expand' 2"),
        ("mamba_d_head", -16, "'mamba_d_head' is -16"),
        ("mamba_d_head", "many", "'mamba_d_head' is not a whole number"),
        ("mamba_d_state", 1 << 20, "describes at least"),
        ("mamba_d_state", 21, "mamba.in_proj.weight"),
        ("mamba_d_conv", 65, "'mamba_d_conv' is 65"),
        ("mamba_d_conv", 3, "mamba.conv1d.weight"),
        ("mamba_conv_bias", False, "'mamba_conv_bias' is false, which is not supported"),
        ("mamba_proj_bias", True, "'mamba_proj_bias' is set"),
        ("mamba_expand", 1 << 40, "'mamba_expand' is 1099511627776"),
        ("time_step_limit", [0.5], "'time_step_limit' is not a list of two numbers"),
        ("time_step_limit", [0.5, 0.1], "'time_step_limit' is not a list of two numbers"),
        ("time_step_limit", [-1, {"__float__": "Infinity"}], "'time_step_limit' is not a list of two numbers"),
        ("time_step_limit", [0, {"__float__": "NaN"}], "'time_step_limit' is not a list of two numbers"),
        ("attn_layer_indices", 3, "'attn_layer_indices' is not a list"),
        ("attn_layer_indices", [2, 4], "weight .* is missing")],
    "granitemoehybrid": [
        ("num_local_experts", 4, "describes at least|weight .*router"),
        ("num_local_experts", None, "'num_local_experts' is missing"),
        ("shared_intermediate_size", 81, "shared_mlp.input_linear.weight"),
        ("position_embedding_type", "alibi", "position_embedding_type 'alibi' is not supported"),
        ("residual_multiplier", 0, "'residual_multiplier' is 0"),
        ("logits_scaling", -1, "'logits_scaling' is -1, expected a finite number from 0 on"),
        ("embedding_multiplier", "12", "'embedding_multiplier' is not a number"),
        ("attention_multiplier", 1e30, "'attention_multiplier' is 1e\\+30"),
        ("layer_types", ["mamba"] * 4, "'layer_types' is not a list of 5"),
        ("layer_types", ["mamba"] * 4 + ["moe"], "'layer_types' of layer 4 is 'moe'")],
    "mamba2": [
        ("num_heads", 5, "'num_heads' is 5"),
        ("n_groups", 4, "'num_heads' is 6, expected a multiple of 'n_groups', 4"),
        ("head_dim", 15, "'head_dim' is 15 and 'num_heads' 6; their product must be 'expand' 2 times"),
        ("head_dim", "auto", "'head_dim' is not a whole number"),
        ("state_size", 21, "mixer.in_proj.weight"),
        ("conv_kernel", 65, "'conv_kernel' is 65"),
        ("use_conv_bias", False, "'use_conv_bias' is false, which is not supported"),
        ("use_bias", True, "'use_bias' is set"),
        ("hidden_act", "gelu", "hidden_act 'gelu' is not supported"),
        ("rescale_prenorm_residual", True, "'rescale_prenorm_residual' is set"),
        ("layer_norm_epsilon", 0, "'layer_norm_epsilon' is 0"),
        ("time_step_limit", [1, 0], "'time_step_limit' is not a list of two numbers"),
        ("layer_types", ["full_attention"] * 5, "weight .* is missing")],
    "nemotron_h": [
        ("layers_block_type", ["mamba", "mlp", "attention", "moe", "mlp"],
         "'layers_block_type' of layer 3 is 'moe'; known: full_attention, linear_attention, mlp"),
        ("layers_block_type", ["mamba", "mlp", "mamba", "mlp", "mlp"], "mixer.up_proj.weight|holds .* numbers"),
        ("layers_block_type", [], "'layers_block_type' is not a list of 1..4096 layers"),
        ("layers_block_type", "M-M*-", "'layers_block_type' is not a list of 1..4096 layers"),
        ("layers_block_type", None, "num_hidden_layers' is missing"),
        ("mamba_head_dim", 11, "mixer.in_proj.weight"),
        ("mamba_num_heads", 1 << 20, "describes at least|mamba_num_heads' is"),
        ("mlp_hidden_act", "silu", "mlp_hidden_act 'silu' is not supported"),
        ("mamba_hidden_act", "gelu", "mamba_hidden_act 'gelu' is not supported"),
        ("mlp_bias", True, "up_proj.bias"),
        ("time_step_min", -1, "'time_step_min' is -1"),
        ("time_step_min", 1e300, "'time_step_min' is 1e\\+300, expected at most"),
        ("use_bias", True, "'use_bias' is set")]}


@pytest.mark.parametrize("kind, field, value, error", [(kind, *row) for kind in REFUSED for row in REFUSED[kind]])
def test_hostile_fields_are_refused(tmp_path, kind, field, value, error):
    config, net, more = KINDS[kind]
    if not hasattr(transformers, net):
        pytest.skip(f"this transformers has no {net}")
    getattr(transformers, net)(getattr(transformers, config)(**{**SIZES, **more})).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    path = tmp_path / "config.json"
    written = json.loads(path.read_text())
    if field.endswith(("idxs", "indices")):
        written.pop("layer_types", None)
    path.write_text(json.dumps({**written, field: value}))
    with pytest.raises(multihead.Error, match=error):
        multihead.Model(tmp_path)


@pytest.mark.parametrize("pattern, error", [("M-M*-", None), ("M-ME-", "letter other than M"),
                                            ("M-M*", "'hybrid_override_pattern' has 4 layers, 'num_hidden_layers' is"),
                                            ("", "'hybrid_override_pattern' is not a text of 1..4096 layers")])
def test_patterns_of_older_files(tmp_path, pattern, error):
    """Published folders have a pattern and weights of `backbone`."""
    torch.manual_seed(9)
    config, net, more = KINDS["nemotron_h"]
    net = getattr(transformers, net)(getattr(transformers, config)(**{**SIZES, **more})).eval()
    net.save_pretrained(tmp_path / "new")
    weights = {name.replace("model.", "backbone."): value for name, value in net.state_dict().items()}
    (tmp_path / "old").mkdir()
    safetensors.torch.save_file(weights, tmp_path / "old/model.safetensors")
    written = json.loads((tmp_path / "new/config.json").read_text())
    del written["layers_block_type"]
    (tmp_path / "old/config.json").write_text(json.dumps({**written, "hybrid_override_pattern": pattern,
                                                          "num_hidden_layers": 5}))
    for folder in ("new", "old"):
        write_tokenizer(tmp_path / folder)
    if error:
        with pytest.raises(multihead.Error, match=error):
            multihead.Model(tmp_path / "old")
    else:
        new, old = (multihead.Model(tmp_path / folder).logits([5, 6, 7, 5]) for folder in ("new", "old"))
        assert np.array_equal(new, old)
