"""multihead.torch: operators, scaled_dot_product_attention and MultiheadAttention, compared with
torch's.

Results must agree with torch in float64 within the bounds of docs/numerics.md (attention_error). A
gradient's largest error must be at most four times that of torch in float32, plus a millionth of
the largest gradient, like in test_backward_torch.py. MHA_TEST_LONG=1 tests more problems, and
compiles with inductor, which needs a C++ compiler.
"""
import contextlib
import copy
import pickle
import threading
import warnings

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import multihead
import multihead.torch as mt
from multihead.torch import _operator
from shared import LONG, ROOT, SEED, amount
from test_attention_torch import U, attention_error, ratio, score_error
from test_backward_torch import attend

ours = mt.scaled_dot_product_attention


def theirs(*tensors, **keywords):
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*tensors, **keywords)


def tensors(*shapes, seed=0, grad=False, dtype=torch.float32):
    made = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=made).to(dtype).requires_grad_(grad) for shape in shapes]


def close(found, exact, single):
    """Check gradients against float64 by the criterion at the top of this file."""
    for name, x in found.items():
        error = (x.double() - exact[name]).abs().max().item() if x.numel() else 0.0
        other = (single[name].double() - exact[name]).abs().max().item() if x.numel() else 0.0
        most = exact[name].abs().max().item() if x.numel() else 0.0
        assert error <= 4 * other + 1e-6 * most, f"d{name}: {error:.2g}, torch in f32 {other:.2g}"


def gradients(loss, inputs):
    found = torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
    return {name: torch.zeros_like(inputs[name]) if g is None else g
            for name, g in zip(inputs, found)}


# ---- scaled_dot_product_attention -------------------------------------------------------------------

SHAPES = [
    ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 6)), ((5, 8), (7, 8), (7, 4)),
    ((3, 5, 8), (3, 7, 8), (3, 7, 8)), ((2, 2, 3, 5, 8), (3, 7, 8), (1, 3, 7, 8)),
    ((2, 3, 5, 8), (1, 3, 7, 8), (2, 1, 7, 8)), ((2, 4, 5, 8), (1, 1, 7, 8), (1, 1, 7, 8)),
    ((0, 3, 5, 8), (0, 3, 5, 8), (0, 3, 5, 8)), ((2, 3, 0, 8), (2, 3, 5, 8), (2, 3, 5, 8)),
    ((2, 3, 5, 8), (2, 3, 0, 8), (2, 3, 0, 8)), ((1, 2, 5, 260), (1, 2, 520, 260), (1, 2, 520, 9))]


@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float", "scale"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_as_torch(shapes, mask):
    q, k, v = tensors(*shapes, grad=True)
    T, S = q.shape[-2], k.shape[-2]
    keywords, learned = {"is_causal": mask == "causal"}, {}
    keep, bias, scale = torch.ones(T, S, dtype=torch.bool), torch.zeros(T, S), q.shape[-1]**-0.5
    if mask == "causal":
        keep = keep.tril()
    if mask == "bool":
        keep = keywords["attn_mask"] = torch.rand(T, S) < 0.6
    if mask == "float":
        bias = keywords["attn_mask"] = learned["attn_mask"] = tensors((T, S), grad=True, seed=3)[0]
    if mask == "scale":
        scale = keywords["scale"] = 0.0
    inputs = {"q": q, "k": k, "v": v} | learned
    out = ours(q, k, v, **keywords)
    wide = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    more = {"attn_mask": wide["attn_mask"]} if learned else {}
    exact = theirs(wide["q"], wide["k"], wide["v"], **(keywords | more))
    assert out.shape == exact.shape and out.dtype == torch.float32
    arrays = [x.detach().double().numpy() for x in (q, k, v)]
    bound, _, _ = attention_error(score_error(arrays[0], arrays[1], scale, bias.detach().numpy()),
                                  keep.numpy(), arrays[2])
    assert ratio(out.detach().numpy(), exact.detach().numpy(),
                 np.broadcast_to(bound, exact.shape)) <= 1
    g = torch.randn(out.shape, generator=torch.Generator().manual_seed(5))
    single = {name: x.detach().requires_grad_() for name, x in inputs.items()}
    more = {"attn_mask": single["attn_mask"]} if learned else {}
    other = theirs(single["q"], single["k"], single["v"], **(keywords | more))
    close(gradients((out * g).sum(), inputs), gradients((exact * g.double()).sum(), wide),
          gradients((other * g).sum(), single))


def losses(q, k, v, keep, extra, g):
    """A loss that depends on o, lse and the weights, by the formula."""
    out = attend(q, k, v, keep, extra)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    scores = q @ k.transpose(2, 3) * extra["scale"]
    if "cap" in extra:
        scores = extra["cap"] * torch.tanh(scores / extra["cap"])
    scores = scores + extra.get("bias", 0)
    if "alibi_slopes" in extra:
        away = (torch.arange(scores.shape[3]) - torch.arange(scores.shape[2])[:, None]).abs()
        scores = scores - extra["alibi_slopes"][:, None, None] * away
    scores = scores.masked_fill(~keep, -torch.inf)
    if "sink_logits" in extra:
        sinks = extra["sink_logits"][None, :, None, None].expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, sinks], -1)
    lse, p = scores.logsumexp(-1), scores.softmax(-1)[..., :keep.shape[-1]]
    return (out * g).sum() + lse.square().sum() + (p**3).sum() + p.mean(1).sin().sum()


@pytest.mark.parametrize("kind", ["plain", "bias and sinks", "cap and gates", "slopes"])
def test_gradients_of_everything(kind):
    """Gradients of every learned input, from o, lse, weights and their average."""
    B, H, Hk, T, S, D = 2, 4, 2, 9, 13, 8
    inputs = dict(zip("qkv", tensors((B, H, T, D), (B, Hk, S, D), (B, Hk, S, D))))
    extra, keep = {"scale": 0.3}, torch.ones(T, S, dtype=torch.bool)
    if kind == "bias and sinks":
        inputs |= dict(zip(("bias", "sink_logits"), tensors((1, H, T, S), (H,), seed=1)))
    if kind == "cap and gates":
        extra["cap"] = 2.0
        inputs |= {"gates": tensors((B, H), seed=2)[0]}
    if kind == "slopes":
        keep = keep.tril()
        inputs |= {"alibi_slopes": tensors((H,), seed=3)[0] / 10}
    [g] = tensors((B, H, T, D), seed=4)

    def formula(dtype):
        x = {name: value.to(dtype).requires_grad_() for name, value in inputs.items()}
        more = extra | {name: value for name, value in x.items() if name not in "qkv"}
        return gradients(losses(x["q"], x["k"], x["v"], keep, more, g.to(dtype)), x)

    mine = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    options = {name: x for name, x in mine.items() if name not in "qkv"}
    if kind == "slopes":
        options["is_causal"] = True
    if "cap" in extra:
        options["softcap"] = 2.0
    call = dict(scale=0.3, enable_gqa=True, return_lse=True, **options)
    out, lse, p = ours(mine["q"], mine["k"], mine["v"], return_weights=True, **call)
    average = ours(mine["q"], mine["k"], mine["v"], return_weights="average", **call)[2]
    loss = (out * g).sum() + lse.square().sum() + (p**3).sum() + average.sin().sum()
    close(gradients(loss, mine), formula(torch.float64), formula(torch.float32))


def t5_buckets(distance, buckets, farthest, one_sided):
    """The row of T5's table for s - i."""
    first = torch.zeros_like(distance)
    if one_sided:
        away = (-distance).clamp(min=0)
    else:
        buckets //= 2
        first, away = (distance > 0) * buckets, distance.abs()
    exact = buckets // 2
    # Exact powers may be rounded below an integer. No other quotient is so close to an integer.
    steps = (torch.log(away.clamp(min=exact) / exact) / np.log(farthest / exact)
             * (buckets - exact) + 1e-4).floor()
    far = exact + steps.clamp(max=buckets - exact - 1).long()
    return first + torch.where(away < exact, away, far)


@pytest.mark.parametrize("kind", ["t5", "t5 of decoders", "shaw keys", "shaw values", "all"])
def test_gradients_of_tables(kind):
    """T5's relative table and Shaw's tables of keys and values, from o, lse, weights and their average."""
    B, H, Hk, T, S, D, Dv, offset = 2, 4, 2, 9, 30, 8, 6, 14
    inputs = dict(zip("qkv", tensors((B, H, T, D), (B, Hk, S, D), (B, Hk, S, Dv), seed=5)))
    options, distance = {"q_offset": offset}, torch.arange(S) - offset - torch.arange(T)[:, None]
    if kind.startswith("t5") or kind == "all":
        inputs["t5_table"] = tensors((8, H), seed=6)[0]
        options |= {"t5_max_distance": 16, "t5_one_sided": kind == "t5 of decoders"}
    if kind in ("shaw keys", "all"):
        inputs["shaw_keys"] = tensors((7, D), seed=7)[0]
    if kind in ("shaw values", "all"):
        inputs["shaw_values"] = tensors((11, Dv), seed=8)[0]
    if kind in ("t5 of decoders", "shaw keys"):
        options["is_causal"] = True
    keep = distance <= 0 if "is_causal" in options else torch.ones(T, S, dtype=torch.bool)
    [g] = tensors((B, H, T, Dv), seed=9)
    bucket = t5_buckets(distance, 8, 16, options.get("t5_one_sided", False))

    def formula(dtype):
        x = {name: value.to(dtype).requires_grad_() for name, value in inputs.items()}
        k, v = (x[name].repeat_interleave(H // Hk, 1) for name in "kv")
        scores = x["q"] @ k.transpose(2, 3)
        if "shaw_keys" in x:
            rows = x["shaw_keys"][distance.clamp(-3, 3) + 3]
            scores = scores + torch.einsum("bhtd,tsd->bhts", x["q"], rows)
        scores = scores * 0.3
        if "t5_table" in x:
            scores = scores + x["t5_table"][bucket].permute(2, 0, 1)
        scores = scores.masked_fill(~keep, -torch.inf)
        lse, p = scores.logsumexp(-1), scores.softmax(-1)
        out = p @ v
        if "shaw_values" in x:
            out = out + torch.einsum("bhts,tsd->bhtd", p, x["shaw_values"][distance.clamp(-5, 5) + 5])
        loss = (out * g.to(dtype)).sum() + lse.square().sum() + (p**3).sum() + p.mean(1).sin().sum()
        return gradients(loss, x)

    mine = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    options |= {name: x for name, x in mine.items() if name not in "qkv"}
    call = dict(scale=0.3, enable_gqa=True, return_lse=True, **options)
    out, lse, p = ours(mine["q"], mine["k"], mine["v"], return_weights=True, **call)
    average = ours(mine["q"], mine["k"], mine["v"], return_weights="average", **call)[2]
    loss = (out * g).sum() + lse.square().sum() + (p**3).sum() + average.sin().sum()
    found, exact = gradients(loss, mine), formula(torch.float64)
    for name in inputs:
        assert found[name].shape == inputs[name].shape and exact[name].abs().max() > 0.01, name
    close(found, exact, formula(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    q, k, v = tensors(*[(2, 3, 9, 16)] * 3, dtype=dtype, grad=True)
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    out, exact = ours(q, k, v), theirs(*wide)
    assert out.dtype == dtype
    rounding = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    assert (out.double() - exact).abs().max() <= rounding * exact.abs().max() + 1e-5
    out.sum().backward()
    exact.sum().backward()
    for x, y in zip((q, k, v), wide):
        # Sums of dO and the rounded o (delta of backward.h), then the rounding of the gradient.
        size = exact.abs().max() * q.shape[-1] + y.grad.abs().max()
        assert x.grad.dtype == dtype and (x.grad.double() - y.grad).abs().max() <= 4 * rounding * size


def test_masks_apply_together():
    q, k, v = tensors(*[(2, 2, 6, 8)] * 3)
    mask, keep = torch.rand(6, 6) < 0.7, torch.ones(6, 6, dtype=torch.bool).tril()
    lengths = torch.arange(6) < torch.tensor([3, 6])[:, None, None, None]
    found = ours(q, k, v, mask, is_causal=True, key_lengths=[3, 6], window=(2, 0))
    exact = theirs(q.double(), k.double(), v.double(), mask & keep & keep.mT.tril(2).mT & lengths
                   & ~torch.ones(6, 6, dtype=torch.bool).tril(-3))
    assert (found - exact).abs().max() < 1e-5
    same = ours(q, k, v, q_offset=torch.tensor([1, 2]), is_causal=True)
    assert torch.equal(same[1], ours(q[1:], k[1:], v[1:], q_offset=2, is_causal=True)[0])
    documents = torch.tensor([[0, 0, 1, 1, 1, 2]])
    found = ours(q, k, v, query_documents=documents, key_documents=documents)
    exact = theirs(q.double(), k.double(), v.double(), documents[0] == documents[0][:, None])
    assert (found - exact).abs().max() < 1e-5


def test_dropout_follows_torchs_generator():
    q, k, v = tensors(*[(2, 2, 40, 8)] * 3, grad=True)
    torch.manual_seed(3)
    first, p = ours(q, k, v, dropout_p=0.3, return_weights="dropped")
    torch.manual_seed(3)
    assert torch.equal(first, ours(q, k, v, dropout_p=0.3))
    assert not torch.equal(first, ours(q, k, v, dropout_p=0.3))
    assert (first - p @ v).abs().max() < 1e-5
    kept = (p > 0).float().mean().item()  # within six standard deviations of 6,400 draws
    assert abs(kept - 0.7) < 6 * (0.21 / 6400)**0.5
    # The backward pass drops the same weights.
    full = (q @ k.mT / 8**0.5).softmax(-1)
    exact = torch.where(p > 0, full / 0.7, 0) @ v
    [g] = tensors(first.shape, seed=9)
    for x, y in zip(torch.autograd.grad((first * g).sum(), (q, k, v)),
                    torch.autograd.grad((exact * g).sum(), (q, k, v))):
        assert (x - y).abs().max() <= 2e-5 * y.abs().max()
    assert not ours(q, k, v, dropout_p=1.0).any()


def test_queries_without_keys_and_nan():
    q, k, v = tensors(*[(1, 2, 4, 8)] * 3)
    keep = torch.ones(4, 4, dtype=torch.bool)
    keep[2], keep[:, 3] = False, False
    k[:, :, 3], v[:, :, 3] = torch.nan, torch.inf
    for x in (q, k, v):
        x.requires_grad_()
    out, lse, p = ours(q, k, v, keep, return_lse=True, return_weights=True)
    assert not out[:, :, 2].any() and lse[0, 0, 2] == -torch.inf and not p[:, :, 2].any()
    assert out.isfinite().all()
    out.sum().backward()
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert not q.grad[:, :, 2].any() and not k.grad[:, :, 3].any()


# ---- Hostile arguments ---------------------------------------------------------------------------


def test_strides():
    """Expanded, transposed, sliced and reversed tensors; gradients have the shapes of the inputs."""
    wide = tensors((2, 6, 3, 3 * 8))[0].requires_grad_()  # [B,T,H,3 D]
    q, k, v = (x.transpose(1, 2) for x in wide.chunk(3, -1))
    copied = [x.detach().contiguous().requires_grad_() for x in (q, k, v)]
    out, same = ours(q, k, v), ours(*copied)
    assert torch.equal(out, same) and out.transpose(1, 2).is_contiguous()
    [g] = torch.autograd.grad(out.square().sum(), wide)
    parts = torch.autograd.grad(same.square().sum(), copied)
    assert torch.equal(g, torch.cat([x.transpose(1, 2) for x in parts], -1))
    first = q.permute(2, 0, 1, 3).detach().contiguous().permute(1, 2, 0, 3)  # [T,B,H,D] in memory
    assert torch.equal(ours(first, k, v), out)
    assert ours(first, k, v).permute(2, 0, 1, 3).is_contiguous()
    turned = q.detach().mT.contiguous().mT  # copied, because the last axis is not contiguous
    assert torch.equal(ours(turned, k, v), out)
    one = tensors((1, 1, 1, 8), grad=True)[0]
    spread = one.expand(2, 3, 5, 8)
    ours(q, spread, spread).sum().backward()
    assert one.grad.shape == one.shape and (one.grad - 36).abs().max() < 1e-4  # 36 rows of ones
    mask = torch.zeros(6, 1).expand(6, 6)
    assert torch.equal(ours(q, k, v, mask), out)


@pytest.mark.parametrize("which", range(1, 8))
def test_some_need_gradients(which):
    q, k, v = tensors(*[(1, 2, 5, 8)] * 3)
    every = [x.clone().requires_grad_() for x in (q, k, v)]
    some = [x.clone().requires_grad_(bool(which >> i & 1)) for i, x in enumerate((q, k, v))]
    ours(*every).square().sum().backward()
    ours(*some).square().sum().backward()
    for x, y in zip(some, every):
        assert (x.grad is None) != x.requires_grad
        assert x.grad is None or torch.equal(x.grad, y.grad)


def test_modes():
    q, k, v = tensors(*[(1, 2, 5, 8)] * 3, grad=True)
    plain = ours(q, k, v)
    with torch.no_grad():
        assert not ours(q, k, v).requires_grad
    with torch.inference_mode():
        assert torch.equal(ours(q, k, v), plain)
    inside = plain.detach()
    with torch.autocast("cpu", torch.bfloat16):
        low = ours(q, k, v)
        assert low.dtype == torch.bfloat16 and (low.float() - plain).abs().max() < 0.05
        low.sum().backward()
    assert q.grad.dtype == torch.float32
    assert torch.equal(torch.utils.checkpoint.checkpoint(ours, q, k, v, use_reentrant=False), inside)


def test_errors_say_what_to_do():
    q, k, v = tensors(*[(1, 2, 5, 8)] * 3, grad=True)
    with pytest.raises(TypeError, match="float64 is not supported.*query.float()"):
        ours(q.double(), k, v)
    with pytest.raises(TypeError, match="int32"):
        ours(q.int(), k, v)
    with pytest.raises(NotImplementedError, match="CPU's memory"):
        _operator.attention(q.detach()[0].to_sparse(), k, v)
    assert ours(*(x.detach().to("meta") for x in (q, k, v))).shape == q.shape
    with pytest.raises(ValueError, match="enable_gqa=True"):
        ours(q, torch.randn(1, 3, 5, 8), v)
    for dtype in (torch.uint8, torch.float64):
        with pytest.raises(TypeError, match=f"attn_mask: {dtype}; bool, where true attends"):
            ours(q, k, v, torch.ones(5, 5, dtype=dtype))
    for mask in (torch.zeros(4, 5), torch.ones(3, 1, 5, 5, dtype=torch.bool), torch.zeros(1, 1, 1, 5, 5)):
        with pytest.raises(ValueError, match=r"attn_mask: \[.*5\] does not broadcast to \[1, 2, 5, 5\]"):
            ours(q, k, v, mask)
    with pytest.raises(ValueError, match="key: dim 3 is 7, expected 8"):
        ours(q, torch.randn(1, 2, 5, 7), v)
    for name, meant in (("causal", "is_causal"), ("keep_mask", "attn_mask"), ("windows", "window")):
        with pytest.raises(TypeError, match=f"'{name}' is not an option .*; did you mean {meant}?"):
            ours(q, k, v, **{name: None})
    with pytest.raises(ValueError, match="right_keys is 2"):
        ours(q, k, v, is_causal=True, window=(1, 2))
    with pytest.raises(ValueError, match="key_lengths"):
        ours(q, k, v, key_lengths=[9])
    with pytest.raises(ValueError, match="2 numbers given, expected 1"):
        ours(q, k, v, key_lengths=[1, 2])
    with pytest.raises(ValueError, match="return_weights: 'all'"):
        ours(q, k, v, return_weights="all")
    for value in ((1, 2), None):
        with pytest.raises(TypeError, match="'windows' is not an option .*window, sink_keys"):
            ours(q, k, v, windows=value)
    with pytest.raises(TypeError, match=r"bias: torch.int64 is not .*bias.to\(torch.float32\)"):
        ours(q, k, v, bias=torch.zeros(5, 5, dtype=torch.int64))
    with pytest.raises(NotImplementedError, match="no second derivatives"):
        [first] = torch.autograd.grad(ours(q, k, v).square().sum(), q, create_graph=True)
        first.sum().backward()
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.func.grad(lambda q: ours(q, k.detach(), v.detach()).sum())(q.detach())
    with pytest.raises(NotImplementedError, match="torch.func"):
        torch.vmap(lambda q: ours(q, k.detach(), v.detach()))(q.detach()[None])
    with torch.autograd.forward_ad.dual_level(), pytest.raises(NotImplementedError, match="torch.func"):
        ours(torch.autograd.forward_ad.make_dual(q.detach(), q.detach()), k, v)


@pytest.mark.filterwarnings("ignore:Lower right causal bias")
@pytest.mark.parametrize("T, S", [(7, 7), (4, 12), (12, 5), (1, 9), (33, 70)])
@pytest.mark.parametrize("make", [causal_upper_left, causal_lower_right])
def test_causal_biases(make, T, S):
    """Results and gradients equal torch's math with the equivalent bool mask, also in a module and
    with torch.compile. A query without keys has the result 0."""
    bias = make(T, S)
    keep = torch.ones(T, S, dtype=torch.bool).tril(S - T if make is causal_lower_right else 0)
    q, k, v = tensors((2, 1, 6, T, 8), (2, 1, 3, S, 8), (1, 3, S, 5), grad=True)
    found, exact = (ours(q, k, v, mask, enable_gqa=True) for mask in (bias, keep))
    assert torch.equal(found, exact) and not found[..., ~keep.any(-1), :].any()
    wide = theirs(q.double(), k.double(), v.double(), keep, enable_gqa=True)
    assert (found - wide)[..., keep.any(-1), :].abs().max() < 1e-5
    for x, y in zip(*(torch.autograd.grad(out.sin().sum(), (q, k, v)) for out in (found, exact))):
        assert (x - y).abs().max() <= 1e-5 * y.abs().max()
    assert torch.equal(ours(q, k, v, bias, enable_gqa=True, window=(2, -1)),
                       ours(q, k, v, keep.triu((S - T if make is causal_lower_right else 0) - 2), enable_gqa=True))
    if T == 4:
        torch.compiler.reset()
        traced = torch.compile(lambda *x: ours(*x, enable_gqa=True), fullgraph=True, backend="aot_eager")
        assert torch.equal(traced(q, k, v, bias), found)
    for wrong, says in (({"is_causal": True}, "a CausalBias and is_causal"), ({"q_offset": 1}, "and q_offset")):
        with pytest.raises(ValueError, match=says):
            ours(q, k, v, bias, enable_gqa=True, **wrong)
    with pytest.raises(ValueError, match=f"a CausalBias of {T} queries and {S + 1} keys, for {T} queries and {S} keys"):
        ours(q, k, v, make(T, S + 1), enable_gqa=True)
    for more in ({}, {"add_bias_kv": True}):
        mha = mt.MultiheadAttention(8, 2, batch_first=True, **more)
        x, y = tensors((3, T, 8), (3, S, 8))
        pad = torch.arange(S) >= torch.tensor([[S], [S], [max(S - 2, 1)]])
        out, p = mha(x, y, y, attn_mask=bias, key_padding_mask=pad)
        exact, q_ = mha(x, y, y, attn_mask=~keep, key_padding_mask=pad)
        assert torch.equal(out, exact) and torch.equal(p, q_)


class Redefining(torch.Tensor):
    """A class for which torch's functions report elements that differ from memory."""

    @classmethod
    def __torch_function__(cls, function, types, arguments=(), options=None):
        return super().__torch_function__(function, types, arguments, options or {})


class Harmless(torch.Tensor):
    """A class that changes nothing."""


@pytest.mark.filterwarnings("ignore:.*nested tensors", "ignore:.*MaskedTensor", "ignore:.*prototype")
def test_tensors_that_are_no_arrays_are_refused_by_name():
    """Any argument may be a nested, sparse or masked tensor, or an instance of a class that
    redefines torch's functions."""
    q, mask, count = tensors((2, 2, 5, 8))[0], torch.ones(5, 5), 0
    parts = list(q.transpose(1, 2))
    kinds = {
        "nested": (lambda x: torch.nested.nested_tensor(list(x)), TypeError, "a nested tensor.*query_starts"),
        "jagged": (lambda x: torch.nested.nested_tensor(parts, layout=torch.jagged).transpose(1, 2), TypeError,
                   "a nested tensor.*MultiheadAttention"),
        "sparse": (lambda x: x.to_sparse(), NotImplementedError, r"torch.sparse_coo: pass \w+.to_dense"),
        "quantised": (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), TypeError, r"qint8 .*pass \w+.dequantize\(\)"),
        "masked": (lambda x: torch.masked.as_masked_tensor(x, x > 0), TypeError, "MaskedTensor redefines torch's functions"),
        "redefined": (lambda x: x.as_subclass(Redefining), TypeError, r"Redefining redefines .*as_subclass\(torch.Tensor\)")}
    for kind, (of, error, says) in kinds.items():
        for name, given in (("query", (of(q), q, q)), ("key", (q, of(q), q)), ("value", (q, q, of(q))),
                            ("attn_mask", (q, q, q, of(mask)))):
            for more in ({}, {"window": (1, 0)}):
                with pytest.raises(error, match=f"^{name}: .*{says}"):
                    ours(*given, **more)
                count += 1
        with pytest.raises(error, match=f"^bias: .*{says}"):
            ours(q, q, q, bias=of(mask))
        with pytest.raises(error, match=f"^attn_mask: .*{says}"):
            mt.MultiheadAttention(8, 2, batch_first=True)(q[0], q[0], q[0], attn_mask=of(mask))
        for given in ({"q": of(q)}, {"bias": of(mask)}):  # the function of arrays
            with pytest.raises(TypeError, match="^(q|bias): .*(dense tensor .*(nested|sparse)|redefines|dequantize)"):
                multihead.attention(**{"q": q, "k": q, "v": q} | given)
    print(f"\n{len(kinds)} kinds of tensors: {count} calls of scaled_dot_product_attention refused")
    with pytest.raises(TypeError, match="^bias: torch.nn.attention.bias.CausalBias redefines"):
        multihead.attention(q, q, q, bias=causal_upper_left(5, 5))
    exact = ours(q, q, q, mask)
    assert torch.equal(ours(q.as_subclass(Harmless), q, q, torch.nn.Parameter(mask)), exact)


def test_other_devices_are_refused_by_name():
    """One argument is on a different device, and the others are in memory. Only "meta" supports
    shapes; tensors without memory have the names of real devices."""
    q, x = torch.empty(1, 4, 5, 8), torch.empty(2, 5, 32)
    options = {"attn_mask": torch.empty(5, 5), "bias": torch.empty(5, 5), "alibi_slopes": torch.empty(4),
               "sink_logits": torch.empty(4), "key_lengths": torch.ones(1, dtype=torch.int64)}
    mha = mt.MultiheadAttention(32, 4, batch_first=True)
    count = 0

    def refused(name, device, function, *given, **more):
        nonlocal count
        with pytest.raises(NotImplementedError, match=rf"^{name}: .* not on {device}.*pass {name}.cpu\(\).*model.to\(\"cpu\"\)"):
            function(*given, **more)
        count += 1

    for device in ("meta", "cuda", "mps", "xpu"):
        fake = FakeTensorMode(allow_non_fake_inputs=True) if device != "meta" else contextlib.nullcontext()
        with fake:
            def there(tensor):
                return torch.empty(tensor.shape, dtype=tensor.dtype, device=device)

            if device != "meta":
                refused("query", device, ours, *[there(q)] * 3)
                refused("query", device, ours, *[there(q)] * 3, window=(1, 0))
            refused("key", device, ours, q, there(q), q)
            refused("value", device, ours, q, q, there(q))
            for name, value in options.items():
                refused(name, device, ours, q, q, q, **{name: there(value)})
            for name, given in (("query", [there(x)] * 3), ("key", (x, there(x), x)), ("value", (x, x, there(x)))):
                refused(name, device, mha, *given)
            for name in ("attn_mask", "key_padding_mask"):
                mask = torch.zeros((5, 5) if name == "attn_mask" else (2, 5), dtype=torch.bool, device=device)
                refused(name, device, mha, x, x, x, **{name: mask})
    refused("out_proj.weight", "meta", copy.deepcopy(mha).to("meta"), x, x, x)
    with pytest.raises(TypeError, match=r"^key_lengths: .*meta: pass numbers in the CPU's memory"):
        multihead.attention(q, q, q, key_lengths=options["key_lengths"].to("meta"))
    print(f"\n{count} arguments on other devices refused")


def test_default_device_is_not_used():
    """CPU tensors remain on the CPU under torch.set_default_device()."""
    q, = tensors((2, 4, 5, 8))
    lengths = torch.tensor([3, 5])
    mha = mt.MultiheadAttention(8, 2, batch_first=True, rope_base=1e4, sinks=True)
    numpy_like = multihead.attention(q, q, q)
    slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.1, 0.05]))
    exact = [ours(q, q, q, key_lengths=lengths), ours(q, q, q, alibi_slopes=slopes), ours(q, q, q), mha(*[q[0]] * 3, attn_mask=causal_upper_left(5, 5))[0]]
    with torch.device("meta"):
        found = [ours(q, q, q, key_lengths=[3, 5]), ours(q, q, q, alibi_slopes=slopes), ours(q, q, q, dropout_p=1e-30),
                 mha(*[q[0]] * 3, attn_mask=causal_upper_left(5, 5))[0]]
        assert torch.equal(multihead.attention(q, q, q), numpy_like)
    assert all(map(torch.equal, found, exact))


def test_threads_are_torchs():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert multihead._library._default_threads or _operator._context().threads == 3
        torch.set_num_threads(1)
        assert multihead._library._default_threads or _operator._context().threads == 1
    finally:
        torch.set_num_threads(before)
    q, k, v = tensors(*[(2, 4, 50, 16)] * 3, grad=True)
    exact = torch.autograd.grad(ours(q, k, v).square().sum(), (q, k, v))
    wrong = []

    def work():
        for _ in range(5):
            found = torch.autograd.grad(ours(q, k, v).square().sum(), (q, k, v))
            wrong.extend(x for x, y in zip(found, exact) if not torch.equal(x, y))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


class Rows(torch.utils.data.Dataset):
    """Attention in the processes of a DataLoader."""

    def __init__(self):
        self.x = tensors((4, 2, 5, 8))[0]

    def __len__(self):
        return 4

    def __getitem__(self, i):
        x = self.x[i:i + 1]
        return ours(x, x, x)[0]


def test_forks_of_a_data_loader():
    rows = Rows()
    exact = ours(rows.x, rows.x, rows.x)  # uses the library before the fork
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this process has threads
        loader = torch.utils.data.DataLoader(rows, 2, num_workers=2,
                                             multiprocessing_context="fork")
        assert torch.equal(torch.cat(list(loader)), exact)


# ---- Operators --------------------------------------------------------------------------------------


def test_operator_keeps_torchs_rules():
    """Schema, fake kernel and its strides, autograd, tracing with dynamic shapes."""
    q, k, v = tensors((2, 4, 5, 8), (2, 2, 7, 8), (2, 2, 7, 6), grad=True)
    bias = tensors((5, 7), grad=True)[0]
    found = torch.library.opcheck(_operator.attention, (q, k, v, bias),
                                  {"outputs": 7, "window": [2, 1]})
    assert set(found.values()) == {"SUCCESS"}


def test_compile():
    q, k, v = tensors(*[(2, 4, 10, 16)] * 3, grad=True)

    def function(q, k, v):
        out, lse = ours(q * 2, k, v, is_causal=True, window=(3, 0), key_lengths=torch.tensor([4, 10]),
                        return_lse=True)
        return out + 1, lse

    eager = function(q, k, v)
    torch.compiler.reset()
    traced = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)(q, k, v)
    assert all(torch.equal(x, y) for x, y in zip(eager, traced))
    loss = [x.square().sum() + y.sin().sum() for x, y in (eager, traced)]
    for x, y in zip(*(torch.autograd.grad(one, (q, k, v)) for one in loss)):
        assert torch.equal(x, y)
    dropped = torch.compile(lambda: ours(q, k, v, dropout_p=0.5), fullgraph=True,
                            backend="aot_eager")
    torch.manual_seed(1)
    first = dropped()
    assert not torch.equal(first, dropped())
    torch.manual_seed(1)
    assert torch.equal(first, dropped())


@pytest.mark.skipif(not LONG, reason="inductor compiles C++ for a minute: MHA_TEST_LONG=1")
def test_inductor():
    mha = mt.MultiheadAttention(32, 4, batch_first=True)
    [x] = tensors((2, 9, 32))
    out = torch.compile(mha, fullgraph=True)(x, x, x, need_weights=False)[0]
    exact = mha(x, x, x, need_weights=False)[0]
    assert (out - exact).abs().max() <= 64 * U * exact.abs().max()


def test_export():
    mha = mt.MultiheadAttention(32, 4, batch_first=True)
    [x] = tensors((2, 9, 32))
    found = torch.export.export(mha, (x, x, x), {"need_weights": False})
    assert [n for n in found.graph.nodes if n.target is _operator.attention]
    assert torch.equal(found.module()(x, x, x, need_weights=False)[0],
                       mha(x, x, x, need_weights=False)[0])


# ---- MultiheadAttention -----------------------------------------------------------------------------


def draw_module(number):
    """Constructor arguments, inputs, and arguments of forward."""
    rng = np.random.default_rng([7, number])
    flag = lambda p=0.5: bool(rng.random() < p)  # noqa: E731
    heads = int(rng.choice([1, 2, 4]))
    width, first = heads * int(rng.choice([3, 8])), flag()
    apart = 7 if flag() else None
    made = dict(bias=flag(0.7), add_bias_kv=flag(0.3), add_zero_attn=flag(0.3), kdim=apart, vdim=apart,
                batch_first=first)
    B, T, S = 3, int(rng.choice([1, 5])), int(rng.choice([1, 6]))
    alone, itself = flag(0.2), flag(0.4) and apart is None
    S = T if itself else S

    def tensor(length, size, seed):
        shape = (length, size) if alone else (B, length, size) if first else (length, B, size)
        return tensors(shape, seed=seed, grad=True)[0]

    query = tensor(T, width, 1)
    key = query if itself else tensor(S, apart or width, 2)
    value = query if itself else key if flag() else tensor(S, apart or width, 3)
    call = dict(need_weights=flag(), average_attn_weights=flag())
    if (kind := rng.choice(["none", "bool", "float"])) != "none":
        shape = (T, S) if flag() else (heads * (1 if alone else B), T, S)
        mask = torch.from_numpy(rng.standard_normal(shape).astype(np.float32))
        call["attn_mask"] = (mask > 1).index_fill(-1, torch.tensor([0]), False) if kind == "bool" else mask
    if (kind := rng.choice(["none", "bool", "float"])) != "none":
        mask = torch.from_numpy(rng.standard_normal((S,) if alone else (B, S)).astype(np.float32))
        call["key_padding_mask"] = ((mask > 1).index_fill(-1, torch.tensor([0]), False)
                                    if kind == "bool" else mask)
    return (width, heads), made, (query, key, value), call


def test_module_as_torchs():
    for number in range(400 if LONG else 60)[SEED % (step := amount(3, 1, 1))::step]:
        sizes, made, inputs, call = draw_module(number)
        module = mt.MultiheadAttention(*sizes, **made)
        other = torch.nn.MultiheadAttention(*sizes, **made)
        assert other.load_state_dict(module.state_dict())
        leaves = {id(x): x for x in inputs}
        results = {}
        wide = copy.deepcopy(other).double()
        for dtype, m in ((torch.float32, module), (None, other), (torch.float64, wide)):
            wanted = dtype or torch.float32
            cast = {i: x.detach().to(wanted).requires_grad_() for i, x in leaves.items()}
            masks = {name: x.to(wanted) if isinstance(x, torch.Tensor) and x.is_floating_point() else x
                     for name, x in call.items()}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's warning about masks of two types
                out, weights = m(*(cast[id(x)] for x in inputs), **masks)
            loss = out.sin().sum() + (weights.square().sum() if weights is not None else 0)
            names = dict(m.named_parameters()) | {str(i): x for i, x in enumerate(cast.values())}
            found = gradients(loss, names) | {"out": out}
            results[dtype] = found | ({"weights": weights} if weights is not None else {})
        text = f"module {number}: {sizes} {made} {sorted(call)}"
        assert {n: x.shape for n, x in results[torch.float32].items()} == {
            n: x.shape for n, x in results[torch.float64].items()}, text
        for name, exact in results[torch.float64].items():
            error = (results[torch.float32][name].double() - exact).abs().max().item()
            single = (results[None][name].double() - exact).abs().max().item()
            size = max(exact.abs().max().item(), results[torch.float64]["out"].abs().max().item())
            assert error <= 4 * single + 1e-6 * size, f"{text}: {name} {error:.2g} {single:.2g}"


def test_rows_without_keys_in_modules():
    mha = mt.MultiheadAttention(8, 2, batch_first=True)
    [x] = tensors((2, 3, 8))
    mask = torch.zeros(3, 3, dtype=torch.bool)
    mask[1] = True
    out, p = mha(x, x, x, attn_mask=mask)
    assert torch.equal(out[:, 1], mha.out_proj.bias.expand(2, 8)) and not p[:, 1].any()
    assert torch.equal(mha(x, x, x, attn_mask=mask, need_weights=False)[0], out)
    mha.nan_rows = True
    out, p = mha(x, x, x, attn_mask=mask)
    other = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    other.load_state_dict(mha.state_dict())
    exact, q = other(x, x, x, attn_mask=mask)
    assert torch.equal(out.isnan(), exact.isnan()) and torch.equal(p.isnan(), q.isnan())


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided], ids=str)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_ragged_batches(layout):
    mha = mt.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    parts = tensors((4, 8), (6, 8), grad=True)
    nested = torch.nested.as_nested_tensor(parts, layout=layout)
    out, weights = mha(nested, nested, nested)
    alone = [mha(x[None], x[None], x[None])[0][0] for x in parts]
    assert weights is None and out.layout is layout
    for x, y in zip(out.unbind(), alone):
        assert (x - y).abs().max() <= 64 * U * y.abs().max()
    for x, y in zip(*(torch.autograd.grad(sum(x.square().sum() for x in some), parts)
                      for some in (out.unbind(), alone))):
        assert (x - y).abs().max() <= 256 * U * y.abs().max()
    if layout is torch.jagged:
        assert (nested + out).shape == nested.shape  # a residual connection
    with pytest.raises(ValueError, match="no padding"):
        mha(nested, nested, nested, key_padding_mask=torch.zeros(2, 6, dtype=torch.bool))


def test_module_beyond_torchs():
    """kv_heads, window, softcap, sinks, rotary positions and norms, by the formula."""
    mha = mt.MultiheadAttention(24, 4, kv_heads=2, window=(3, 0), softcap=2.0, sinks=True,
                                rope_base=100.0, qk_norm=True, batch_first=True)
    torch.nn.init.normal_(mha.sinks)
    [x] = tensors((2, 7, 24))
    out = mha(x, x, x, need_weights=False)[0]
    wide, y = copy.deepcopy(mha).double(), x.double()
    biases = wide.in_proj_bias.split([24, 12, 12])
    q, k, v = (torch.nn.functional.linear(y, w, b).unflatten(2, (-1, 6)).transpose(1, 2)
               for w, b in zip((wide.q_proj_weight, wide.k_proj_weight, wide.v_proj_weight), biases))
    angles = torch.arange(7.0)[:, None] * 100.0**(-torch.arange(3.0) / 3)
    turn = torch.polar(torch.ones(7, 3), angles).to(torch.complex128)

    def rotated(x, norm):
        x = x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm.weight
        z = torch.complex(x[..., :3], x[..., 3:]) * turn
        return torch.cat([z.real, z.imag], -1)

    away = torch.arange(7)[:, None] - torch.arange(7)
    o = attend(rotated(q, wide.q_norm), rotated(k, wide.k_norm), v, (away >= 0) & (away <= 3),
               {"scale": 6**-0.5, "cap": 2.0, "sink_logits": wide.sinks})
    exact = wide.out_proj(o.transpose(1, 2).flatten(2))
    assert (out - exact).abs().max() <= 512 * U * exact.abs().max()
    out.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in mha.parameters())
    for module in (copy.deepcopy(mha), pickle.loads(pickle.dumps(mha))):
        assert torch.equal(module(x, x, x, need_weights=False)[0], out)
    # torch's layers must not replace it by a kernel that does not support these options.
    layer = torch.nn.TransformerEncoderLayer(24, 4, 48, batch_first=True, dropout=0.0).eval()
    layer.self_attn = mha.eval()
    with torch.no_grad():
        fast, slow = layer(x), layer.norm1(x + mha(x, x, x)[0])
        slow = layer.norm2(slow + layer.linear2(torch.relu(layer.linear1(slow))))
    assert (fast - slow).abs().max() < 1e-5


def test_float64_modules_are_torchs_and_say_so():
    mha = mt.MultiheadAttention(8, 2, batch_first=True).double()
    x = tensors((2, 3, 8))[0].double()
    with pytest.warns(UserWarning, match="no float64: torch computes"):
        out = mha(x, x, x)[0]
    assert torch.equal(out, torch.nn.MultiheadAttention.forward(mha, x, x, x)[0])
    torch.compiler.reset()
    with pytest.warns(UserWarning, match="no float64"):
        traced = torch.compile(mha, fullgraph=True, backend="aot_eager")(x, x, x)[0]
    assert torch.equal(traced, out)
    with pytest.raises(TypeError, match="float64"):
        mt.MultiheadAttention(8, 2, sinks=True).double()(x, x, x)


def test_static_keys_and_values():
    mha = mt.MultiheadAttention(8, 2)
    [x] = tensors((3, 2, 8))
    k, v = tensors((4, 5, 4), (4, 5, 4), seed=1)
    arguments = (x, x, x, 8, 2, mha.in_proj_weight, mha.in_proj_bias, None, None, True, 0.0,
                 mha.out_proj.weight, mha.out_proj.bias)
    found = mt.multi_head_attention_forward(*arguments, static_k=k, static_v=v)
    exact = torch.nn.functional.multi_head_attention_forward(*arguments, static_k=k, static_v=v)
    for a, b in zip(found, exact):
        assert (a - b).abs().max() <= 64 * U * b.abs().max()


def test_examples_of_the_page():
    import page_examples
    found = page_examples.run(ROOT / "docs/python-torch.md")
    assert found.failed == 0 and found.attempted > 10
