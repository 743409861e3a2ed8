"""The Python package declares the C interface of the lists in abi/, and the tests' layer works."""
import ctypes as C

import numpy as np
import pytest

from multihead import _abi
import multihead_ctypes as mha
from shared import ROOT


def test_declarations():
    """Structs of ctypes have the layout that check_abi.py measured with the compiler, and ctypes
    has every type."""
    rows = [line.split(" ", 4) for path in (ROOT / "abi").glob("*.abi") for line in path.read_text().splitlines()]
    structs = {name: rest[0] for _, kind, name, *rest in rows if kind == "struct"}
    fields = {name: rest[0] for _, kind, name, *rest in rows if kind == "field"}
    assert structs == {name: str(C.sizeof(_abi.named(name))) for name in structs}
    assert fields == {name: str(getattr(_abi.named(name.split(".")[0]), name.split(".")[1]).offset)
                      for name in fields}
    for text in _abi._functions.values():
        _abi._signature(text)
    assert len(structs) > 90 and len(fields) > 700 and _abi.STATUS["err_rank"] == 61


def plain(q, k, v, keep):
    scores = np.where(keep, q.astype(np.float64) @ k.swapaxes(2, 3) / q.shape[3] ** 0.5, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def test_attention_of_strided_arrays():
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((2, length, 3, 16), np.float32).swapaxes(1, 2)
               for length in (5, 9, 9))
    keep = np.arange(9) <= np.arange(5)[:, None] + 4
    o, extra = mha.attention(q, k, v, causal=True, q_offset=4, outputs=("lse", "probabilities"))
    assert np.abs(o - plain(q, k, v, keep)).max() < 1e-5
    assert np.abs(extra["probabilities"].sum(-1) - 1).max() < 1e-5
    assert np.array_equal(o, mha.attention(q[:, :, ::-1], k, v, keep_mask=keep[::-1])[:, :, ::-1])
    assert mha.explain(q, k, v, path="plain").path == mha.PATHS["plain"]


def test_other_fields_by_name():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 2, 6, 8), np.float32) for _ in range(3))
    near = np.abs(np.arange(6) - np.arange(6)[:, None]) <= 1
    near[:, 0] = True
    gates = np.array([1, 0.5], np.float32)
    o = mha.attention(q, k, v, window=(1, 1), sink_keys=1, gates=gates)
    assert np.abs(o - plain(q, k, v, near) * gates[:, None, None]).max() < 1e-5


def test_errors_carry_the_library_s_line():
    x = np.zeros((1, 1, 2, 4), np.float32)
    with pytest.raises(mha.MultiheadError, match="k: dim 3 is 3, expected 4") as error:
        mha.attention(x, x[..., :3], x)
    assert error.value.status == 10
    with pytest.raises(mha.MultiheadError, match="embed_dim 10 is not a multiple"):
        mha.Module(10, 3)


def test_module_shapes():
    module = mha.Module(12, 4, kv_heads=2, key_dim=7, value_dim=5, value_head_dim=6)
    rng = np.random.default_rng(2)
    module.set("q_proj.weight", rng.standard_normal((12, 12)))
    names = ("probabilities", "average_probabilities", "q", "k", "v", "heads", "lse")
    out, extra = module(np.ones((2, 3, 12), np.float32), np.ones((2, 8, 7), np.float32),
                        np.ones((2, 8, 5), np.float32), outputs=names)
    assert out.shape == (2, 3, 12) and not out.any()  # out_proj is 0
    assert extra["heads"].shape == (2, 4, 3, 6) and extra["k"].shape == (2, 2, 8, 3)
    assert np.allclose(extra["average_probabilities"], 1 / 8)
