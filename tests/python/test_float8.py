"""Folders with 8-bit floats: models are bit-identical to models of float32 numbers, which torch and transformers
convert from the same bytes."""
import copy
import json

import numpy as np
import pytest
import safetensors.torch
import torch
from transformers.integrations import finegrained_fp8

import multihead_ctypes as mha
from test_checkpoint_hf import some_ids, their_family
from test_gguf_models import OPTIONS, Model

E4M3, E5M2, E8M0 = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [8, 16]}
GROUP = {"targets": ["Linear"], "output_activations": None,
         "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
         "input_activations": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}}
COMPRESSED = {"quant_method": "compressed-tensors", "format": "float-quantized", "kv_cache_scheme": None,
              "config_groups": {"group_0": GROUP}, "ignore": ["lm_head"], "quantization_status": "compressed"}


def write(folder, model, tensors, quantization=None):
    """Writes these tensors and the model's configuration to a folder."""
    folder.mkdir(exist_ok=True)
    config = json.loads(model.config.to_json_string())
    if quantization:
        config["quantization_config"] = quantization
    (folder / "config.json").write_text(json.dumps(config))
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return folder


def grid(shape, block):
    """The number of blocks per axis of a matrix. A step of None is the whole axis."""
    return tuple(-(-size // step) if step else 1 for size, step in zip(shape, block))


def spread(scales, shape, block):
    """The scale of every element."""
    for axis, step in enumerate(block):
        scales = scales.repeat_interleave(step or shape[axis], axis).narrow(axis, 0, shape[axis])
    return scales


def quantised(model, block, suffix, kind=E4M3, scale_type=torch.float32, seed=1):
    """(the file's tensors, the same numbers in float32). Matrices of layers have 8 bits and random scales."""
    draw, stored, plain = torch.Generator().manual_seed(seed), {}, {}
    for name, weight in model.state_dict().items():
        if ".layers." not in name or weight.ndim != 2:
            stored[name] = plain[name] = weight.clone()
            continue
        scales = torch.rand(grid(weight.shape, block), generator=draw) * .05 + .01
        if scale_type == E8M0:
            scales = torch.exp2(torch.floor(torch.log2(scales)))
        scales = scales.to(scale_type)
        every = spread(scales.float(), weight.shape, block)
        stored[name] = (weight / every).to(kind)
        stored[name + suffix] = scales
        plain[name] = stored[name].float() * every
    return stored, plain


def expect_same(tmp_path, model, tensors, quantization):
    stored, plain = tensors
    small = write(tmp_path / "small", model, stored, quantization)
    wide = write(tmp_path / "wide", model, plain)
    found, want = (Model(folder)(some_ids(3)) for folder in (small, wide))
    assert np.isfinite(want).all() and np.array_equal(found, want)
    assert np.array_equal(Model(small, 3)(some_ids(3)), want)  # in an array


@pytest.mark.parametrize("kind", [E4M3, E5M2], ids=str)
def test_every_number(tmp_path, kind):
    """Matrices that hold every finite number, without scales."""
    model = their_family("llama", OPTIONS["llama"], 60)
    codes = np.arange(256, dtype=np.uint8)
    numbers = codes[np.isfinite(torch.from_numpy(codes).view(kind).float().numpy())]
    stored = {}
    for name, weight in model.state_dict().items():
        if weight.ndim == 2 and ".layers." in name:
            assert weight.numel() >= numbers.size
            stored[name] = torch.from_numpy(np.resize(numbers, tuple(weight.shape))).view(kind)
        else:
            stored[name] = weight.clone()
    expect_same(tmp_path, model, (stored, {name: weight.float() for name, weight in stored.items()}), None)


@pytest.mark.parametrize("scale_type", [torch.float32, torch.bfloat16, torch.float16, E8M0], ids=str)
@pytest.mark.parametrize("block", [(8, 16), (5, 7), (128, 128), (1, 32), None], ids=str)
def test_blocks(tmp_path, block, scale_type):
    """DeepSeek's and Qwen's folders. Blocks at the edges of a matrix may be smaller."""
    model = their_family("llama", OPTIONS["llama"], 61)
    config = {**FP8, "weight_block_size": list(block) if block else None}
    expect_same(tmp_path, model, quantised(model, block or (None, None), "_scale_inv", scale_type=scale_type), config)


@pytest.mark.parametrize("kind", ["phi3", "qwen3", "gemma2", "mixtral"])
def test_families(tmp_path, kind):
    """Rows that are parts of a fused matrix have the right scales too."""
    model = their_family(kind, OPTIONS[kind], 62)
    expect_same(tmp_path, model, quantised(model, (8, 16), "_scale_inv", E5M2), FP8)


@pytest.mark.parametrize("strategy, block", [("tensor", (None, None)), ("channel", (1, None)), ("block", (8, 16))])
def test_compressed_tensors(tmp_path, strategy, block):
    model, config = their_family("llama", OPTIONS["llama"], 63), copy.deepcopy(COMPRESSED)
    config["config_groups"]["group_0"]["weights"] |= {"strategy": strategy, "block_structure": [8, 16]}
    stored, plain = quantised(model, block, "_scale", scale_type=torch.bfloat16)
    expect_same(tmp_path, model, (stored, plain), config)
    stored = {name: weight.flatten() if name.endswith("_scale") and strategy != "block" else weight
              for name, weight in stored.items()}
    expect_same(tmp_path, model, (stored, plain), config)


def test_scales_in_another_file(tmp_path):
    model = their_family("llama", OPTIONS["llama"], 66)
    stored, plain = quantised(model, (8, 16), "_scale_inv")
    folder = write(tmp_path / "parts", model, {}, FP8)
    (folder / "model.safetensors").unlink()
    files = {name: f"{'ab'[name.endswith('_scale_inv')]}.safetensors" for name in stored}
    for file in set(files.values()):
        safetensors.torch.save_file({name: stored[name] for name in stored if files[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert np.array_equal(Model(folder)(some_ids(3)), Model(write(tmp_path / "wide", model, plain))(some_ids(3)))


def test_the_numbers_of_transformers():
    """The reference above equals transformers' own conversion, where that is defined."""
    draw = torch.Generator().manual_seed(4)
    weight = torch.randn((32, 48), generator=draw).to(E4M3)
    scales = torch.rand((4, 3), generator=draw)
    theirs = finegrained_fp8.Fp8Dequantize(None)._dequantize_one(weight, scales, torch.float32)
    assert torch.equal(theirs, weight.float() * spread(scales, weight.shape, (8, 16)))


def changed(config, path, value):
    """A copy with another value at a path of keys. If the value is None, the last key is removed."""
    made = copy.deepcopy(config)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return made


WEIGHTS = ("config_groups", "group_0", "weights")


@pytest.mark.parametrize("config, words", [
    (changed(FP8, ["quant_method"], "mxfp4"), "quant_method 'mxfp4' is not supported; known: fp8, compressed-tensors"),
    (changed(FP8, ["activation_scheme"], "static"), "activation_scheme 'static' is not supported"),
    (changed(FP8, ["expert_dtype"], "fp4"), "expert_dtype 'fp4' is not supported"),
    (changed(FP8, ["weight_block_size"], [128]), "'weight_block_size' is not a list of two numbers"),
    (changed(FP8, ["weight_block_size"], [0, 128]), "'weight_block_size' is not a list of two numbers"),
    (changed(FP8, ["weight_block_size"], ["a", 128]), "'weight_block_size' is not a list of two numbers"),
    (changed(FP8, ["weight_block_size"], [8, 8]), "scales of weight .* are .*, expected floats of shape"),
    (changed(FP8, ["weight_block_size"], None), r"scales of weight .* expected floats of shape \[1, 1\]"),
    ({"quant_method": 3}, "'quantization_config' is set"),
    (changed(COMPRESSED, ["format"], "pack-quantized"), "format 'pack-quantized' is not supported"),
    (changed(COMPRESSED, ["kv_cache_scheme"], {"num_bits": 8}), "'kv_cache_scheme' is set"),
    (changed(COMPRESSED, ["config_groups"], {}), "'config_groups' has 0 groups"),
    (changed(COMPRESSED, ["config_groups"], {"a": GROUP, "b": GROUP}), "'config_groups' has 2 groups"),
    (changed(COMPRESSED, ["config_groups"], [GROUP]), "'config_groups' is not a JSON object"),
    (changed(COMPRESSED, [*WEIGHTS, "num_bits"], 4), "'num_bits' is 4"),
    (changed(COMPRESSED, [*WEIGHTS, "type"], "int"), "type 'int' is not supported"),
    (changed(COMPRESSED, [*WEIGHTS, "strategy"], "group"), "strategy 'group' is not supported"),
    (changed(COMPRESSED, [*WEIGHTS, "symmetric"], False), "'symmetric' is false"),
    (changed(COMPRESSED, ["config_groups", "group_0", "input_activations", "dynamic"], False), "'dynamic' is false"),
    (COMPRESSED, "has no scales 'model.layers.0.self_attn.q_proj.weight_scale'")], ids=str)
def test_refused_settings(tmp_path, config, words):
    model = their_family("llama", OPTIONS["llama"], 64)
    write(tmp_path / "x", model, quantised(model, (8, 16), "_scale_inv")[0], config)
    with pytest.raises(mha.MultiheadError, match=words):
        Model(tmp_path / "x")


def test_refused_scales(tmp_path):
    model = their_family("llama", OPTIONS["llama"], 65)
    whole = quantised(model, (8, 16), "_scale_inv")[0]
    name = "model.layers.1.mlp.up_proj.weight"
    scales = whole[name + "_scale_inv"]
    for wrong, words in ((None, f"weight '{name}' has no scales"), (scales[:-1], "expected floats of shape"),
                         (scales.to(torch.int32), "are i32 .*, expected floats"),
                         (scales[None], r"are f32 \[1, .*, expected floats"), (scales.to(torch.complex64), "C64")):
        tensors = {key: weight for key, weight in whole.items() if key != name + "_scale_inv"}
        if wrong is not None:
            tensors[name + "_scale_inv"] = wrong.contiguous()
        write(tmp_path / "x", model, tensors, FP8)
        with pytest.raises(mha.MultiheadError, match=words):
            Model(tmp_path / "x")
    write(tmp_path / "x", model, whole)  # without quantization_config
    with pytest.raises(mha.MultiheadError, match="weight_scale_inv', which .* does not imply"):
        Model(tmp_path / "x")
