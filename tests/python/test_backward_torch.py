"""Gradients of attention compared with torch autograd in float64.

tests/unit/test_backward.c has the sharp bounds. Here the largest error of each gradient must be at most four times that
of torch in float32 on the same numbers, plus a millionth of the largest gradient (or of the terms
of its sum), because a single number may happen to be exact.
"""
import itertools
import zlib

import numpy as np
import pytest
import torch

import backward_ctypes as backward
import multihead_ctypes as mha

ISAS = mha.AVAILABLE
SHAPES = [(1, 4, 4, 17, 23, 16, 16), (2, 4, 2, 130, 70, 32, 24), (1, 6, 1, 40, 300, 64, 64)]


@pytest.fixture(params=ISAS, scope="module")
def context(request):
    return mha.Context(num_threads=2, isa=request.param)


def attend(q, k, v, keep, extra):
    """The formula of attention.h in torch operations; `extra` has further inputs with gradients."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(2, 3) * extra["scale"]
    if "cap" in extra:
        scores = extra["cap"] * torch.tanh(scores / extra["cap"])
    if "bias" in extra:
        scores = scores + extra["bias"]
    if "alibi_slopes" in extra:
        T, S = scores.shape[2:]
        away = (torch.arange(S) - torch.arange(T)[:, None]).abs()
        scores = scores - extra["alibi_slopes"][:, None, None] * away
    scores = scores.masked_fill(~keep, -torch.inf)
    if "sink_logits" in extra:
        sinks = extra["sink_logits"][None, :, None, None].expand(*scores.shape[:3], 1)
        weights = torch.softmax(torch.cat([scores, sinks], -1), -1)[..., :-1]
    else:
        weights = torch.softmax(scores, -1)
    out = weights @ v
    return out * extra["gates"][:, :, None, None] if "gates" in extra else out


def torch_gradients(inputs, g, keep, cap, dtype):
    leaves = {name: torch.tensor(x, dtype=dtype, requires_grad=True) for name, x in inputs.items()}
    extra = {name: x for name, x in leaves.items() if name not in "qkv"}
    if cap:
        extra["cap"] = cap
    out = attend(leaves["q"], leaves["k"], leaves["v"], torch.tensor(keep), extra)
    found = torch.autograd.grad(out, list(leaves.values()), torch.tensor(g, dtype=dtype))
    return {name: x.numpy() for name, x in zip(leaves, found)}


@pytest.mark.parametrize("shape,kind", list(itertools.product(SHAPES, range(4))))
def test_against_autograd(context, shape, kind):
    B, H, Hk, T, S, D, Dv = shape
    rng = np.random.default_rng(zlib.crc32(repr((shape, kind)).encode()))

    def normal(*size):
        return rng.standard_normal(size, np.float32)

    inputs = {"q": normal(B, H, T, D), "k": normal(B, Hk, S, D), "v": normal(B, Hk, S, Dv),
              "scale": np.float32(0.25)}
    keep, settings, cap = np.ones((T, S), bool), {}, 0.0
    if kind == 1:
        settings = {"causal": True, "q_offset": 3}
        keep = np.arange(S) <= np.arange(T)[:, None] + 3
        inputs |= {"bias": normal(1, H, T, S)}
    if kind == 2:
        cap = 2.0
        settings = {"softcap": cap}
        inputs |= {"bias": normal(B, 1, 1, S), "sink_logits": normal(H), "gates": normal(B, H)}
    if kind == 3:
        keep = rng.random((T, S)) < 0.7
        keep[:, 0] = True
        settings = {"keep_mask": keep}
        inputs |= {"alibi_slopes": normal(H) * np.float32(0.1)}
    g = normal(B, H, T, Dv)
    q, k, v = inputs["q"], inputs["k"], inputs["v"]
    settings |= {name: x for name, x in inputs.items() if name not in "qkv" and name != "scale"}
    o, extra = mha.attention(q, k, v, outputs=("lse",), context=context, scale=0.25, **settings)
    ours = backward.attention_backward(q, k, v, o, extra["lse"], g, wanted=tuple(inputs),
                                       context=context, scale=0.25, **settings)
    exact = torch_gradients(inputs, g, keep, cap, torch.float64)
    single = torch_gradients(inputs, g, keep, cap, torch.float32)
    # Magnitudes of the terms of these two sums, which nearly cancel.
    sizes = {"scale": np.abs(q * exact["q"]).sum() / 0.25, "sink_logits": np.abs(g * o).sum()}
    for name in inputs:
        error = np.abs(ours[name] - exact[name]).max()
        theirs = np.abs(single[name] - exact[name]).max()
        limit = 4 * theirs + 1e-6 * max(np.abs(exact[name]).max(), sizes.get(name, 0))
        assert error <= limit, f"d{name}: error {error:.2g}, torch in f32 {theirs:.2g}"


def test_rows_without_keys():
    """torch returns NaN for the whole batch; the library returns 0."""
    q, k = (np.ones((1, 1, n, 4), np.float32) for n in (3, 2))
    keep = np.array([[1, 1], [0, 0], [1, 0]], bool)
    o, extra = mha.attention(q, k, k, outputs=("lse",), keep_mask=keep)
    g = np.full_like(q, np.nan)
    g[0, 0, 0] = g[0, 0, 2] = 1
    found = backward.attention_backward(q, k, k, o, extra["lse"], g, keep_mask=keep)
    assert (found["q"][0, 0, 1] == 0).all()
    assert all(np.isfinite(x).all() for x in found.values())
