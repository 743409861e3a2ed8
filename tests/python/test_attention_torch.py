"""Attention and the module compared with torch in float64, within a derived bound for each element.

There are two criteria. The bounds are the a-priori ones of docs/numerics.md, from each row's own
scores and values. They hold always, but are far above usual errors. So the largest error must also
be at most four times that of torch in float32 with the same numbers. Usually it is about as large,
and larger only if few rows sum over many keys. Run with -s to see both. tests/unit has sharp
bounds.
"""
import itertools
import zlib

import numpy as np
import pytest
import torch

import multihead_ctypes as mha

U = 2.0**-24
ISAS = mha.AVAILABLE
sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(params=ISAS, scope="module")
def context(request):
    return mha.Context(num_threads=2, isa=request.param)


def ratio(got, exact, bound):
    """The largest error / bound. Exact zeros and -inf must be equal."""
    got, exact = np.asarray(got, np.float64), np.asarray(exact, np.float64)
    same = (got == exact) | (bound == np.inf)
    error = np.abs(np.where(same, 0, got - np.where(same, 0, exact)))
    assert np.isfinite(error).all()
    return float(np.max(np.where(same, 0, error / np.maximum(bound, 1e-300)), initial=0))


def single(got, exact, torch32):
    """The library's largest error divided by that of torch in float32."""
    ours = np.abs(got.astype(np.float64) - exact).max(initial=0)
    return ours / max(np.abs(torch32.astype(np.float64) - exact).max(initial=0), 1e-9)


def linear_error(x, x_error, weight, bias):
    """The bound of the error of x W^T + b: blocks of 128 inputs, which are added to the bias."""
    blocks = -(-weight.shape[1] // 128)
    size = (np.abs(x) + x_error) @ np.abs(weight).T
    result = (128 + blocks) * U * size + x_error @ np.abs(weight).T
    return (result + (0 if bias is None else blocks * U * np.abs(bias))) * 1.001


def score_error(q, k, scale, added, q_error=0.0, k_error=0.0):
    """delta of numerics.md for every pair. `added` is the term of the scores, with 0 for hidden
    keys."""
    size = abs(scale) * np.abs(q) @ np.abs(k).swapaxes(-1, -2)
    moved = abs(scale) * (np.abs(q) + q_error) @ (np.abs(k) + k_error).swapaxes(-1, -2) - size
    return (q.shape[-1] + 3) * U * size + moved + U * (size + 2.3 * np.abs(added))


def attention_error(delta, keep, v, v_error=0.0):
    """Bounds of o, p and lse for rows of scores; the bound of p is relative."""
    keys = delta.shape[-1]
    blocks = -(-keys // 512)
    worst = np.max(np.where(keep, delta, 0), -1, initial=0, keepdims=True)
    log = np.log(max(keys, 2))
    most = np.abs(v).max(-2, keepdims=True, initial=0)
    o = (np.expm1(2 * worst) + (548 + 10 * blocks + 2 * log) * U) * most
    o = o + np.max(v_error + 0 * v, -2, keepdims=True, initial=0)
    lse = (worst + (40 + log + 5 * blocks) * U)[..., 0]
    return o * 1.01 + 1e-44, np.expm1(2 * worst) + (60 + log + 5 * blocks) * U, lse * 1.01


def heads_of(x, heads):
    return np.repeat(x, heads // x.shape[1], axis=1)


def exact_attention(q, k, v, scale, keep, bias):
    """The formula in torch in float64; also returns the probabilities and lse."""
    q, k, v = (torch.from_numpy(x.astype(np.float64)) for x in (q, k, v))
    scores = q @ k.transpose(-1, -2) * scale + torch.from_numpy(bias.copy())
    scores = scores.masked_fill(~torch.from_numpy(keep), -torch.inf)
    lse = torch.logsumexp(scores, -1)
    p = torch.exp(scores - torch.where(lse == -torch.inf, 0, lse)[..., None])
    return (p @ v).numpy(), p.numpy(), lse.numpy(), scores.numpy()


CASES = list(itertools.product(
    [(1, 1, 1, 1, 1, 8, 8), (2, 4, 4, 17, 33, 64, 64), (2, 6, 2, 65, 129, 40, 24),
     (1, 4, 1, 3, 1025, 128, 128), (3, 2, 2, 100, 100, 7, 7), (1, 2, 2, 30, 600, 256, 256)],
    ["none", "causal", "bool", "float", "lengths", "all"]))


@pytest.mark.parametrize("shape,masks", CASES, ids=lambda x: str(x).replace(" ", ""))
def test_sdpa(context, shape, masks):
    B, H, Hk, T, S, D, Dv = shape
    rng = np.random.default_rng(zlib.crc32(repr((shape, masks)).encode()))
    q = rng.standard_normal((B, T, H, D), np.float32).swapaxes(1, 2)
    k = rng.standard_normal((B, S, Hk, D), np.float32).swapaxes(1, 2)
    v = rng.standard_normal((B, Hk, S, Dv), np.float32)
    keep, bias = np.ones((B, H, T, S), bool), np.zeros((B, H, T, S), np.float32)
    keywords = {}
    if masks in ("causal", "all"):
        keywords.update(causal=True, q_offset=S - T)
        keep &= np.arange(S) <= np.arange(T)[:, None] + S - T
    if masks in ("bool", "all"):
        chosen = rng.random((B, 1, T, S)) < 0.7
        chosen[:, :, T // 2] = False  # a row without visible keys
        keywords.update(keep_mask=chosen)
        keep &= chosen
    if masks in ("float", "all"):
        added = rng.standard_normal((1, H, T, S), np.float32)
        added[rng.random(added.shape) < 0.1] = -np.inf
        keywords.update(bias=added)
        keep &= added > -np.inf
        bias = bias + np.where(added == -np.inf, 0, added)
    if masks in ("lengths", "all"):
        lengths = rng.integers(1, S + 1, B)
        keywords.update(key_lengths=lengths)
        keep &= np.arange(S) < lengths[:, None, None, None]
    scale = 0.3 if masks == "bool" else None
    o, extra = mha.attention(q, k, v, scale=scale, context=context,
                             outputs=("lse", "probabilities"), **keywords)
    real_scale = D**-0.5 if scale is None else float(np.float32(scale))
    ks, vs = heads_of(k, H), heads_of(v, H)
    exact, p, lse, scores = exact_attention(q, ks, vs, real_scale, keep, bias)
    # torch's own call agrees with the formula, also in fully masked rows.
    whole = sdpa(*(torch.from_numpy(x.astype(np.float64)) for x in (q, ks, vs)),
                 attn_mask=torch.from_numpy(np.where(keep, bias, -np.inf).astype(np.float64)),
                 scale=real_scale)
    assert np.abs(whole.numpy() - exact).max(initial=0) < 1e-12
    mask = np.where(keep, bias, -np.inf).astype(np.float32)
    single_o = sdpa(*(torch.from_numpy(x.copy()) for x in (q, ks, vs)),
                    attn_mask=torch.from_numpy(mask), scale=real_scale)
    versus = single(o, exact, single_o.numpy())
    delta = score_error(q.astype(np.float64), ks.astype(np.float64), real_scale, bias)
    o_bound, p_bound, lse_bound = attention_error(delta, keep, vs.astype(np.float64))
    top = np.max(np.where(keep, scores, -np.inf), -1, initial=-np.inf, keepdims=True)
    distance = np.where(keep, top - np.where(keep, scores, 0), 0)
    ratios = {"o": ratio(o, exact, o_bound),
              "p": ratio(extra["probabilities"], p, p * (p_bound + U * distance) + 1e-37),
              "lse": ratio(extra["lse"], lse, lse_bound + U * np.abs(lse))}
    print(f"\n  {context.isa:8} {shape} {masks:7} error / bound:",
          "  ".join(f"{name} {x:.3f}" for name, x in ratios.items()),
          f" error / torch float32's {versus:.2f}", end="")
    assert max(ratios.values()) <= 1
    assert versus <= 4
    assert not extra["probabilities"][~keep].any()


def module_bound(module, x, y, z, keep, bias, heads):
    """The exact out of a torch module in float64 (as NumPy), and the bound of the library's error
    from each step."""
    E = module.embed_dim
    parts = {n: p.detach().numpy().astype(np.float64) for n, p in module.named_parameters()}
    if "in_proj_weight" in parts:
        weights = np.split(parts["in_proj_weight"], 3)
    else:
        weights = [parts[f"{n}_proj_weight"] for n in "qkv"]
    biases = np.split(parts["in_proj_bias"], 3) if "in_proj_bias" in parts else [None] * 3

    def project(inputs, i):
        value = inputs @ weights[i].T + (0 if biases[i] is None else biases[i])
        error = linear_error(inputs, 0 * inputs, weights[i], biases[i])
        shape = (*inputs.shape[:2], heads, E // heads)
        return value.reshape(shape).swapaxes(1, 2), error.reshape(shape).swapaxes(1, 2)

    (q, qe), (k, ke), (v, ve) = (project(a.astype(np.float64), i) for i, a in enumerate((x, y, z)))
    scale = (E // heads) ** -0.5
    for more in ["bias"] * ("bias_k" in parts) + ["zero"] * module.add_zero_attn:
        learned = [np.broadcast_to(parts.get(f"bias_{n}", np.zeros(E)).reshape(1, heads, 1, -1)
                                   * (more == "bias"), (len(x), heads, 1, E // heads))
                   for n in "kv"]
        k, v = (np.concatenate((a, b), 2) for a, b in zip((k, v), learned))
        ke, ve = (np.pad(a, ((0, 0), (0, 0), (0, 1), (0, 0))) for a in (ke, ve))
        keep = np.pad(keep, ((0, 0),) * 3 + ((0, 1),), constant_values=True)
        bias = np.pad(bias, ((0, 0),) * 3 + ((0, 1),))
    exact, _, lse, _ = exact_attention(q, k, v, scale, keep, bias)
    delta = score_error(q, k, scale, bias, qe, ke)
    if "bias_k" in parts:  # merged by the logarithms of the denominators
        delta = delta + 2 * U * np.abs(lse)[..., None]
    error, _, _ = attention_error(delta, keep, v, ve)
    error = np.broadcast_to(error, exact.shape)
    joined, wrong = (a.swapaxes(1, 2).reshape(*x.shape[:2], E) for a in (exact, error))
    weight, offset = parts["out_proj.weight"], parts.get("out_proj.bias")
    return linear_error(joined, wrong, weight, offset)


@pytest.mark.parametrize("options", [
    {}, {"bias": False}, {"kdim": 24, "vdim": 40}, {"kdim": 24, "vdim": 40, "bias": False}],
    ids=str)
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "float", "per head"])
def test_multihead_attention(context, options, masks):
    E, heads, B, T, S = 96, 6, 3, 21, 21 if masks == "causal" else 34
    torch.manual_seed(len(masks) + 10 * len(options))
    rng = np.random.default_rng(3)
    reference = torch.nn.MultiheadAttention(E, heads, batch_first=True, **options).double()
    with torch.no_grad():  # parameters are exact in float32; biases are not zero
        for parameter in reference.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
            parameter.copy_(parameter.float())
    kdim, vdim = options.get("kdim", E), options.get("vdim", E)
    x, y, z = (rng.standard_normal(shape, np.float32)
               for shape in ((B, T, E), (B, S, kdim), (B, S, vdim)))
    keep, bias = np.ones((B, heads, T, S), bool), np.zeros((B, heads, T, S), np.float32)
    ours, theirs = {}, {}
    if masks == "padding":
        lengths = np.array([S, 5, 1])
        ours["key_lengths"] = lengths
        keep &= np.arange(S) < lengths[:, None, None, None]
        theirs["key_padding_mask"] = torch.from_numpy(np.arange(S) >= lengths[:, None])
    if masks == "causal":
        ours["causal"] = True
        keep &= np.tril(np.ones((T, S), bool))
        theirs["attn_mask"] = torch.from_numpy(~keep[0, 0])
    if masks == "float":
        bias = np.broadcast_to(rng.standard_normal((T, S), np.float32), bias.shape)
        ours["bias"] = np.ascontiguousarray(bias[0, 0])
        theirs["attn_mask"] = torch.from_numpy(bias[0, 0].astype(np.float64))
    if masks == "per head":
        keep = rng.random(keep.shape) < 0.8
        ours["keep_mask"] = keep
        theirs["attn_mask"] = torch.from_numpy(~keep.reshape(B * heads, T, S))
    module = mha.Module(E, heads, qkv_bias=options.get("bias", True),
                        out_bias=options.get("bias", True), key_dim=kdim, value_dim=vdim,
                        context=context)
    state = reference.state_dict()
    if options.get("kdim") and "in_proj_bias" in state:
        for name, part in zip("qkv", state.pop("in_proj_bias").chunk(3)):
            module.set(f"{name}_proj.bias", part)
    module.load_state_dict(state)
    out, extra = module(x, y, z, outputs=("probabilities", "average_probabilities"),
                        **ours)
    inputs = [torch.from_numpy(a.astype(np.float64)) for a in (x, y, z)]
    with torch.no_grad():
        exact, mean = reference(*inputs, **theirs)
        _, weights = reference(*inputs, average_attn_weights=False, **theirs)
    bound = module_bound(reference, x, y, z, keep, bias, heads)
    worst = ratio(out, exact.numpy(), bound)
    floats = {n: m.float() if m.is_floating_point() else m for n, m in theirs.items()}
    with torch.no_grad():
        single_out, _ = reference.float()(*[i.float() for i in inputs], **floats)
    versus = single(out, exact.numpy(), single_out.numpy())
    print(f"\n  {context.isa:8} {options} {masks}: error / bound {worst:.4f}",
          f" error / torch float32's {versus:.2f}", end="")
    assert worst <= 1
    assert versus <= 4
    assert np.abs(extra["probabilities"] - weights.numpy()).max() < 1e-5
    assert np.abs(extra["average_probabilities"] - mean.numpy()).max() < 1e-5
    assert not extra["probabilities"][~keep].any()


def test_parameters_whole_or_in_parts():
    """in_proj_weight may be loaded as a whole or in parts, and calls may have one tensor or three:
    the results are equal."""
    torch.manual_seed(1)
    reference = torch.nn.MultiheadAttention(32, 4, batch_first=True)
    whole, parts = mha.Module(32, 4), mha.Module(32, 4)
    whole.load_state_dict(reference.state_dict())
    state = reference.state_dict()
    for name, w, b in zip("qkv", state["in_proj_weight"].chunk(3), state["in_proj_bias"].chunk(3)):
        parts.set(f"{name}_proj.weight", w)
        parts.set(f"{name}_proj.bias", b)
    parts.set("out_proj.weight", state["out_proj.weight"])
    parts.set("out_proj.bias", state["out_proj.bias"])
    x = np.random.default_rng(4).standard_normal((2, 9, 32), np.float32)
    assert np.array_equal(whole(x), parts(x, x.copy(), x.copy()))
