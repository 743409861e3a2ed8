"""Gradients of the module compared with torch autograd in float64.

The reference is the float64 gradient of random nn.MultiheadAttention modules with every constructor argument, for every
input, every parameter and a float mask. (seed, number) determines each case; MHA_TEST_SEED repeats
a run. The default is a random sample, and MHA_TEST_LONG=1 tests all 200.

The largest error of a gradient must be at most four times that of torch in float32 on the same
numbers, plus 2^-20 of the largest gradient of its kind and 2^-21 (1 + sqrt(pairs) / 4) of the
largest of all, because some gradients cancel to 0 and only roundings of their terms remain. A
gradient is a sum over query-key pairs, and roundings of n terms add up to about sqrt(n) roundings
(Higham, Mary 2019, theorem 2.4). torch's own error is no reliable measure for few numbers.
"""
import copy

import numpy as np
import pytest
import torch

import backward_ctypes as backward
import multihead_ctypes as mha
from shared import DEEP, SEED, amount
import transformer_torch as plain

CASES = amount(15, 50, 200)
INPUTS = ("query", "key", "value")


def judge(ours, exact, single, pairs, text):
    """The largest error / limit. `pairs` is the number of query-key pairs of the whole batch."""
    all_of = max(float(np.abs(x).max(initial=0)) for x in exact.values())
    worst = 0.0
    for name, right in exact.items():
        assert ours[name].shape == right.shape, f"{text}: {name}"
        error = np.abs(ours[name] - right).max(initial=0)
        theirs = np.abs(single[name] - right).max(initial=0)
        limit = 4 * theirs + 2.0 ** -20 * np.abs(right).max(initial=0)
        limit += 2.0 ** -21 * (1 + pairs ** 0.5 / 4) * all_of
        assert error <= limit, f"{text}: d{name} {error:.2g}, torch in float32 {theirs:.2g}"
        worst = max(worst, error / limit)
    return worst


def draw(number):
    """torch's module in float32; query, key, value; keywords of its call; and the gradient of
    out."""
    rng = np.random.default_rng([SEED, 7, number])

    def maybe(chance=0.5):
        return bool(rng.random() < chance)

    heads, size = int(rng.choice([1, 2, 3, 4, 8])), int(rng.choice([1, 4, 5, 8, 16, 32]))
    width = heads * size
    alone = maybe(0.4)  # self-attention: the same tensor three times
    settings = {"bias": maybe(0.7), "add_bias_kv": maybe(0.3), "add_zero_attn": maybe(0.3),
                "kdim": None if alone or maybe() else int(rng.integers(1, 40)),
                "vdim": None if alone or maybe() else int(rng.integers(1, 40)),
                "batch_first": maybe()}
    torch.manual_seed(int(rng.integers(1 << 30)))
    theirs = torch.nn.MultiheadAttention(width, heads, **settings)
    with torch.no_grad():
        for p in theirs.parameters():
            p.add_(0.1 * torch.randn(p.shape))
    T, S = (int(rng.choice([1, 2, 7, 18, 33, 70])) for _ in range(2))
    S = T if alone else S
    B = 1 if maybe(0.2) else int(rng.integers(1, 5))
    batched = B > 1 or maybe()

    def tensor(length, last):
        shape = (B, length, last) if theirs.batch_first else (length, B, last)
        x = rng.standard_normal(shape if batched else (length, last), np.float32)
        return x

    query = tensor(T, width)
    key = query if alone else tensor(S, theirs.kdim)
    value = query if alone else tensor(S, theirs.vdim)
    keywords, kind = {}, rng.integers(4)
    if kind == 1:
        hidden = rng.random((T, S)) < 0.4
        hidden[:, 0] = False
        keywords["attn_mask"] = hidden
    if kind == 2:
        keywords["attn_mask"] = rng.standard_normal((T, S), np.float32)
    if kind == 3:
        keywords["attn_mask"] = rng.standard_normal((B * heads, T, S), np.float32)
    if batched and maybe(0.3):
        hidden = rng.random((B, S)) < 0.3
        hidden[:, 0] = False
        if not (kind > 1):  # torch requires the same type for both
            keywords["key_padding_mask"] = hidden
    return theirs, (query, key, value), keywords, tensor(T, width), batched


def torch_gradients(theirs, inputs, keywords, g, dtype):
    module = copy.deepcopy(theirs).to(dtype)
    leaves = {name: torch.tensor(x, dtype=dtype, requires_grad=True)
              for name, x in zip(INPUTS, inputs)}
    masks = {}
    for name, mask in keywords.items():
        real = mask.dtype == np.float32
        masks[name] = torch.tensor(mask, dtype=dtype if real else torch.bool, requires_grad=real)
        if real:
            leaves["bias"] = masks[name]
    out, _ = module(*(leaves[name] for name in INPUTS), need_weights=True, **masks)
    leaves |= dict(module.named_parameters())
    found = torch.autograd.grad(out, list(leaves.values()), torch.tensor(g, dtype=dtype))
    return {name: x.numpy() for name, x in zip(leaves, found)}


def carry(theirs, context):
    """The library's module with the parameters of torch's."""
    ours = mha.Module(theirs.embed_dim, theirs.num_heads, key_dim=theirs.kdim,
                      value_dim=theirs.vdim, qkv_bias=theirs.in_proj_bias is not None,
                      out_bias=theirs.out_proj.bias is not None,
                      bias_kv=theirs.bias_k is not None, zero_attn=theirs.add_zero_attn,
                      context=context)
    ours.load_state_dict(theirs.state_dict())
    return ours


def our_gradients(theirs, inputs, keywords, g, batched, context):
    turned = batched and not theirs.batch_first
    inputs = [x.swapaxes(0, 1) if turned else x for x in inputs]
    g = g.swapaxes(0, 1) if turned else g
    ours, settings, attention = carry(theirs, context), {}, {}
    B, T, S = (g.shape[0] if batched else 1), g.shape[-2], inputs[1].shape[-2]
    keep = np.ones((B, 1, T, S), bool)
    mask = keywords.get("attn_mask")
    if mask is not None and mask.dtype == np.bool_:
        keep &= ~mask
    elif mask is not None:
        settings["bias"] = mask if mask.ndim == 2 else mask.reshape(B, -1, T, S)
        attention["bias"] = np.full(settings["bias"].shape, np.nan, np.float32)
    if "key_padding_mask" in keywords:
        keep &= ~keywords["key_padding_mask"][:, None, None]
    if not keep.all():
        settings["keep_mask"] = keep
    _, kept = ours(*inputs, outputs=backward.KEPT, **settings)
    found = backward.module_backward(ours, *inputs, kept, g, attention=attention, **settings)
    for name in INPUTS:
        found[name] = found[name].swapaxes(0, 1) if turned else found[name]
    if attention:
        found["bias"] = attention["bias"].reshape(mask.shape)
    return found


def test_modules_by_chance(contexts):
    worst, seen = 0.0, set()
    print(f"\n  seed {SEED}, {CASES} modules", end="")
    for number in range(CASES):
        theirs, inputs, keywords, g, batched = draw(number)
        text = f"seed {SEED} case {number}: {theirs} {[x.shape for x in inputs]} " + str(
            {name: (x.dtype.name, x.shape) for name, x in keywords.items()})
        exact, single = (torch_gradients(theirs, inputs, keywords, g, dtype)
                         for dtype in (torch.float64, torch.float32))
        ours = our_gradients(theirs, inputs, keywords, g, batched,
                             contexts[number % len(contexts)])
        assert ours.keys() == exact.keys(), text
        queries = g.size // theirs.embed_dim
        keys = inputs[1].shape[0 if not batched or not theirs.batch_first else 1]
        worst = max(worst, judge(ours, exact, single, queries * keys, text))
        seen |= set(exact)
    print(f", largest error / limit {worst:.3f}")
    assert worst > 0.001
    assert not DEEP or {"bias_k", "bias_v", "k_proj_weight", "bias"} <= seen


def grouped(p, inputs, keep, cap, gates, base, epsilon, H, Hk):
    """The formulas of module.h that nn.MultiheadAttention lacks."""
    B, T = inputs[0].shape[:2]

    def heads(name, x, count):
        y = x @ p[f"{name}_proj_weight"].T
        lengths = torch.tensor([p[f"{k}_proj_weight"].shape[0] for k in "qkv"])
        begin = int(lengths[:"qkv".index(name)].sum())
        y = y + p["in_proj_bias"][begin:begin + y.shape[-1]]
        return y.view(B, -1, count, y.shape[-1] // count).transpose(1, 2)

    def place(name, x):
        x = x / torch.sqrt((x * x).mean(-1, keepdim=True) + epsilon) * p[f"{name}_norm.weight"]
        return plain.turn(x, base)

    q, k, v = (heads(n, x, H if n == "q" else Hk) for n, x in zip("qkv", inputs))
    q, k = place("q", q), place("k", k)
    k, v = (x.repeat_interleave(H // Hk, 1) for x in (k, v))
    D = q.shape[-1]

    def capped(x):
        return cap * torch.tanh(x / D ** 0.5 / cap)

    learned, value = (p[n].view(1, Hk, 1, -1).repeat_interleave(H // Hk, 1)
                      for n in ("bias_k", "bias_v"))
    scores = capped(q @ k.transpose(2, 3)).masked_fill(~keep, -torch.inf)
    sinks = p["sinks"][None, :, None, None].expand(B, H, T, 1)
    scores = torch.cat([scores, capped((q * learned).sum(-1, keepdim=True)), sinks,
                        torch.zeros(B, H, T, 1, dtype=q.dtype)], -1)
    weights = torch.softmax(scores, -1)
    S = k.shape[2]
    out = (weights[..., :S] @ v + weights[..., S:S + 1] * value) * gates[:, None, None]
    return out.transpose(1, 2).reshape(B, T, -1) @ p["out_proj.weight"].T + p["out_proj.bias"]


@pytest.mark.parametrize("number", range(4))
def test_what_torch_lacks(contexts, number):
    """Grouped heads, values of a different width, QK-norm, RoPE, sinks, a learned key, a zero key,
    softcap, gates and a causal mask in combination."""
    rng = np.random.default_rng([SEED, 8, number])
    H, Hk, D, Dv, E, Ek, Ev = 6, (1, 2, 3, 6)[number], 8, 12, 20, 14, 9
    module = mha.Module(E, H, kv_heads=Hk, head_dim=D, value_head_dim=Dv, key_dim=Ek, value_dim=Ev,
                        bias_kv=True, zero_attn=True, sinks=True, rope=True, norm=True,
                        rope_pairing=1, context=contexts[number % len(contexts)])
    parameters = {name: rng.standard_normal(shape, np.float32) * np.float32(0.4)
                  for name, shape in module.parameter_shapes().items()}
    module.load_state_dict(parameters)
    B, T, S = 2, 11, 15
    inputs = [rng.standard_normal((B, length, width), np.float32)
              for length, width in ((T, E), (S, Ek), (S, Ev))]
    g = rng.standard_normal((B, T, E), np.float32)
    gates = rng.uniform(0.5, 1.5, H).astype(np.float32)
    settings = {"causal": True, "softcap": 1.5, "gates": gates}
    _, kept = module(*inputs, outputs=backward.KEPT, **settings)
    ours = backward.module_backward(module, *inputs, kept, g, **settings)

    def torch_side(dtype):
        leaves = {name: torch.tensor(x, dtype=dtype, requires_grad=True)
                  for name, x in {**dict(zip(INPUTS, inputs)), **parameters}.items()}
        keep = torch.tensor(np.arange(S) <= np.arange(T)[:, None])
        out = grouped(leaves, [leaves[n] for n in INPUTS], keep, 1.5, torch.tensor(gates), 1e4,
                      1e-6, H, Hk)
        found = torch.autograd.grad(out, list(leaves.values()), torch.tensor(g, dtype=dtype))
        return {name: x.numpy() for name, x in zip(leaves, found)}

    exact, single = (torch_side(dtype) for dtype in (torch.float64, torch.float32))
    assert judge(ours, exact, single, B * T * S, f"case {number}") > 0


def test_added_into_one_tensor(contexts):
    """In self-attention, the gradients of the three inputs are summed in one array. Gradients of
    parameters accumulate."""
    rng = np.random.default_rng(3)
    module = mha.Module(12, 3, context=contexts[0])
    for name, shape in module.parameter_shapes().items():
        module.set(name, rng.standard_normal(shape, np.float32))
    x, g = (rng.standard_normal((2, 5, 12), np.float32) for _ in range(2))
    _, kept = module(x, outputs=backward.KEPT)
    alone = backward.module_backward(module, x, x, x, kept, g)
    total, before = np.ones_like(x), np.full((36, 12), 3, np.float32)
    into = {name: total for name in INPUTS} | {"in_proj_weight": before}
    backward.module_backward(module, x, x, x, kept, g, into=into, flags=backward.ADD)
    assert np.allclose(total, 1 + sum(alone[name] for name in INPUTS), atol=1e-5)
    assert np.allclose(before, 3 + alone["in_proj_weight"], atol=1e-5)
