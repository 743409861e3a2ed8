"""A module's state_dict to torch.nn.MultiheadAttention and back, in safetensors, and the results of both."""
import ctypes as C
import itertools

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
import torch

from multihead._library import model_library
import multihead_ctypes as mha
from shared import MODEL_LIBRARY, needs
from test_attention_torch import module_bound, ratio

needs(MODEL_LIBRARY)
lib = model_library()

E, HEADS, B, T, S = 48, 4, 2, 9, 13
OPTIONS = [dict(bias=bias, add_bias_kv=kv, add_zero_attn=zero, **widths)
           for bias, kv, zero, widths in itertools.product(
               (True, False), (True, False), (True, False), ({}, {"kdim": 20, "vdim": 31}))]


def pair(options):
    """Two modules of the same shape. torch's is in float64, with parameters that are exact in
    f32."""
    theirs = torch.nn.MultiheadAttention(E, HEADS, batch_first=True, **options).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() != 2:
                parameter.normal_()
            parameter.copy_(parameter.float())
    ours = mha.Module(E, HEADS, qkv_bias=options["bias"], out_bias=options["bias"],
                      bias_kv=options["add_bias_kv"], zero_attn=options["add_zero_attn"],
                      key_dim=options.get("kdim", 0), value_dim=options.get("vdim", 0))
    return ours, theirs


def load(module, path, prefix=None):
    mha.check(lib.mha_module_load_state(module.handle, str(path).encode(),
                                        prefix and prefix.encode()))


def save(module, path, prefix=None):
    mha.check(lib.mha_module_save_state(module.handle, str(path).encode(),
                                        prefix and prefix.encode()))


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_from_torch(tmp_path, options):
    torch.manual_seed(1)
    rng = np.random.default_rng(2)
    ours, theirs = pair(options)
    state = {name: value.float() for name, value in theirs.state_dict().items()}
    assert {name: tuple(value.shape) for name, value in state.items()} == ours.parameter_shapes()
    assert list(state) == list(ours.parameter_shapes())
    save_file(state, tmp_path / "torch.safetensors")
    load(ours, tmp_path / "torch.safetensors")
    x, y, z = (rng.standard_normal(shape, np.float32) for shape in
               ((B, T, E), (B, S, options.get("kdim", E)), (B, S, options.get("vdim", E))))
    lengths = np.array([S, 4])
    keep = np.broadcast_to(np.arange(S) < lengths[:, None, None, None], (B, HEADS, T, S))
    bias = np.zeros((B, HEADS, T, S), np.float32)
    out, extra = ours(x, y, z, key_lengths=lengths,
                      outputs=("probabilities", "average_probabilities"))
    inputs = [torch.from_numpy(a.astype(np.float64)) for a in (x, y, z)]
    padding = torch.from_numpy(~keep[:, 0, 0])
    with torch.no_grad():
        exact, mean = theirs(*inputs, key_padding_mask=padding)
        _, weights = theirs(*inputs, key_padding_mask=padding, average_attn_weights=False)
    worst = ratio(out, exact.numpy(), module_bound(theirs, x, y, z, keep, bias, HEADS))
    print(f"\n  {options}: error / bound {worst:.4f}", end="")
    assert worst <= 1
    assert np.abs(extra["probabilities"] - weights.numpy()).max() < 1e-5
    assert np.abs(extra["average_probabilities"] - mean.numpy()).max() < 1e-5
    with torch.no_grad():  # without a batch axis
        exact, mean = theirs(*[a[0] for a in inputs])
    out, extra = ours(x[0], y[0], z[0], outputs=("average_probabilities",))
    bound = module_bound(theirs, x[:1], y[:1], z[:1], np.ones((1, HEADS, T, S), bool), bias[:1],
                         HEADS)
    assert ratio(out, exact.numpy(), bound[0]) <= 1
    assert np.abs(extra["average_probabilities"] - mean.numpy()).max() < 1e-5


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_to_torch(tmp_path, options):
    rng = np.random.default_rng(3)
    ours, theirs = pair(options)
    theirs = theirs.float()
    ours.load_state_dict({name: rng.standard_normal(shape, np.float32)
                          for name, shape in ours.parameter_shapes().items()})
    save(ours, tmp_path / "ours.safetensors")
    theirs.load_state_dict(load_file(tmp_path / "ours.safetensors"), strict=True)
    mine = ours.state_dict()
    for name, value in theirs.state_dict().items():
        assert np.array_equal(value.numpy(), mine.pop(name))
    assert not mine


def test_a_layer_of_an_encoder(tmp_path):
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(E, HEADS, batch_first=True), 2, enable_nested_tensor=False)
    save_file(encoder.half().state_dict(), tmp_path / "encoder.safetensors")
    ours = mha.Module(E, HEADS)
    load(ours, tmp_path / "encoder.safetensors", "layers.1.self_attn.")
    wanted = encoder.layers[1].self_attn.float().state_dict()
    for name, value in ours.state_dict().items():
        assert np.array_equal(value, wanted[name].numpy())
    with pytest.raises(mha.MultiheadError, match="layers.2.self_attn.in_proj_weight.*missing"):
        load(ours, tmp_path / "encoder.safetensors", "layers.2.self_attn.")
    with pytest.raises(mha.MultiheadError, match="is missing"):
        load(ours, tmp_path / "encoder.safetensors")
