"""The PyTorch presets against torch in float64, over their whole argument spaces at random.

Each case is drawn from (seed, number); the seed is printed and MHA_TEST_SEED repeats a run. A fresh
sample of CASES by default, all with MHA_TEST_LONG=1. The judges are those of
test_attention_torch.py: a priori bounds of docs/numerics.md for every element.
"""
import copy
import ctypes as C

import numpy as np
import pytest
from safetensors import torch as safetensors
import torch

import multihead_ctypes as mha
import presets_ctypes as presets
from shared import DEEP, SEED, amount
from test_attention_torch import U, attention_error, linear_error, ratio, score_error

LOWEST = np.finfo(np.float32).min
sdpa = torch.nn.functional.scaled_dot_product_attention


def math_sdpa(*tensors, **keywords):
    """The kernel that takes everything; flash gives NaN for is_causal with a scale of 0 or less."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return sdpa(*tensors, **keywords)


def double(array):
    """For torch: float64, or bool as it is."""
    return torch.from_numpy(array if array.dtype == np.bool_ else array.astype(np.float64))


def normal(rng, shape):
    """float32 numbers, in memory in a random order, sometimes with gaps."""
    order = rng.permutation(len(shape) - 1) if rng.random() < 0.3 else np.arange(len(shape) - 1)
    memory = rng.standard_normal([*np.asarray(shape, int)[order], shape[-1] + rng.integers(2)],
                                 np.float32)[..., :shape[-1]]
    return memory.transpose([*np.argsort(order), len(shape) - 1])


def mask_values(rng, shape, kind):
    """A mask in the sense that True attends: bool, or float with -inf or lowest numbers."""
    keep = rng.random(shape) < rng.choice([0.3, 0.8])
    if rng.random() < 0.4 and keep.ndim > 1:
        keep[..., rng.integers(shape[-2]), :] = False  # a row that sees nothing
    if kind == "bool":
        return keep
    values = rng.standard_normal(shape, np.float32)
    return np.where(keep, values, {"float": -np.inf, "lowest": LOWEST}[kind]).astype(np.float32)


def split_mask(mask, shape):
    """(keep, bias) of the rule that lowest numbers count only where a row has nothing else, and
    then all the same."""
    mask = np.broadcast_to(mask, shape)
    if mask.dtype == np.bool_:
        return mask, np.zeros(shape, np.float32)
    mask = mask.astype(np.float64)
    top = mask.max(-1, keepdims=True, initial=-np.inf)
    keep = (mask > -1e38) | ((mask > -np.inf) & (top <= -1e38))
    return keep, np.where(keep & (mask > -1e38), mask, 0).astype(np.float32)


def bound_of(q, k, v, scale, keep, bias):
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    error, _, _ = attention_error(score_error(q, k, scale, bias), keep, v)
    return np.broadcast_to(error, (*keep.shape[:-1], v.shape[-1]))


# ---- scaled_dot_product_attention ---------------------------------------------------------------

SDPA_CASES = amount(50, 150, 600)
LENGTHS = [1, 2, 3, 7, 16, 33, 64]


def draw_sdpa(number):
    """query, key, value, keywords."""
    rng = np.random.default_rng([SEED, 1, number])
    dims = int(rng.integers(2, 7))
    lead = [int(rng.integers(1, 4)) for _ in range(dims - 2)]
    T, S = (int(rng.choice(LENGTHS)) for _ in range(2))
    if rng.random() < 0.05:
        S = int(rng.choice([0, 600, 1100]))
    D = int(rng.choice([1, 5, 8, 16, 40, 64]))
    Dv = D if rng.random() < 0.5 else int(rng.choice([1, 6, 24, 33]))
    groups = dims > 2 and rng.random() < 0.3
    shapes = []
    for size, width in ((T, D), (S, D), (S, Dv)):
        own = [1 if rng.random() < 0.1 and S > 0 else n for n in lead]
        shapes.append([*own, size, width])
    if groups:
        shared, each = int(rng.integers(1, 4)), int(rng.integers(1, 5))
        for shape, heads in zip(shapes, (shared * each, shared, shared)):
            shape[-3] = heads
    elif rng.random() < 0.1 and dims > 2 and S > 0:
        shapes = [shape[rng.integers(0, dims - 1):] for shape in shapes]
    q, k, v = (normal(rng, shape) for shape in shapes)
    keywords = {"enable_gqa": bool(groups)}
    if rng.random() < 0.4:
        keywords["scale"] = float(np.float32(rng.choice([0, -0.4, 0.01, 1, 2])))
    full = [*presets.broadcast_leading((q, k, v), 3 if groups else 2)]
    full += ([shapes[0][-3]] if groups else []) + [T, S]
    kind = rng.choice(["none", "causal", "bool", "float", "lowest"])
    if kind == "causal":
        keywords["is_causal"] = True
    elif kind != "none":
        scores = [*presets.broadcast_leading((q, k), 3 if groups else 2)] + full[-2 - groups:]
        shape = scores[rng.integers(0, len(scores) - 1):]
        shape = [1 if rng.random() < 0.2 else n for n in shape]
        keywords["attn_mask"] = mask_values(rng, shape, kind)
    if rng.random() < 0.15:
        q, k, v = (x.astype(np.float16) for x in (q, k, v))
        if kind == "float" and rng.random() < 0.5:
            keywords["attn_mask"] = keywords["attn_mask"].astype(np.float16)
    return q, k, v, full, keywords


def judge_sdpa(q, k, v, full, keywords, got, exact):
    keep, bias = np.ones(full, bool), np.zeros(full, np.float32)
    if keywords.get("is_causal"):
        keep &= np.arange(full[-1]) <= np.arange(full[-2])[:, None]
    if keywords.get("attn_mask") is not None:
        keep, bias = split_mask(keywords["attn_mask"], full)
    if keywords["enable_gqa"]:
        k, v = (np.repeat(x, q.shape[-3] // x.shape[-3], -3) for x in (k, v))
    k, v = (np.broadcast_to(x, (*full[:-2], *x.shape[-2:])) for x in (k, v))
    scale = keywords.get("scale", q.shape[-1] ** -0.5)
    bound = bound_of(np.broadcast_to(q, (*full[:-1], q.shape[-1])), k, v, scale, keep, bias)
    if got.dtype == np.float16:  # rounded to it in the end
        bound = bound + 2.0**-11 * np.abs(exact) + 2.0**-25
    return ratio(got, exact, bound)


def test_sdpa_by_chance(contexts):
    worst, masks, ours, torchs = 0.0, set(), 0.0, 0.0
    print(f"\n  seed {SEED}, {SDPA_CASES} cases", end="")
    for number in range(SDPA_CASES):
        q, k, v, full, keywords = draw_sdpa(number)
        text = f"seed {SEED} case {number}: {q.shape} {k.shape} {v.shape} " + str(
            {n: x if n != "attn_mask" else (x.dtype, x.shape) for n, x in keywords.items()})
        context = contexts[number % len(contexts)]
        theirs = {n: double(x) if n == "attn_mask" else x for n, x in keywords.items()}
        try:
            exact = math_sdpa(double(q.copy()), double(k.copy()), double(v.copy()), **theirs).numpy()
        except RuntimeError as error:
            raise AssertionError(text) from error
        got = presets.pytorch_sdpa(q, k, v, context=context, **keywords)
        assert got.shape == exact.shape, text
        assert np.isfinite(got).all() and np.isfinite(exact).all(), text
        if got.size:
            found = judge_sdpa(q, k, v, full, keywords, got, exact)
            assert found <= 1, f"{text}: error / bound {found}"
            worst = max(worst, found)
            if q.dtype == np.float32:
                single = math_sdpa(*(torch.from_numpy(x.copy()) for x in (q, k, v)), **{
                    n: x.float() if n == "attn_mask" and x.dtype != torch.bool else x
                    for n, x in theirs.items()}).numpy()
                ours += np.square(got - exact).sum()
                torchs += np.square(single - exact).sum()
        masks.add(str(keywords["attn_mask"].dtype) if "attn_mask" in keywords else "none")
    versus = (ours / torchs) ** 0.5
    print(f", largest error / bound {worst:.3f}, root of squared errors / torch float32's "
          f"{versus:.2f}, masks {sorted(masks)}")
    assert worst > 0.001 and len(masks) >= 3
    assert versus <= 2


def test_sdpa_special_rows(contexts):
    """What torch 2.13 gives in rows without keys, for no keys at all, and for scale 0."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 2, n, 8), np.float32) for n in (3, 5, 5))
    mask = np.ones((3, 5), bool)
    mask[1] = False
    for keep in (mask, np.where(mask, 0, -np.inf).astype(np.float32)):
        for values in (v, v[..., :6]):  # torch's flash and math kernels
            got = presets.pytorch_sdpa(q, k, values, attn_mask=keep)
            exact = sdpa(*(torch.from_numpy(x.copy()) for x in (q, k, values)),
                         attn_mask=torch.from_numpy(keep))
            assert not got[:, :, 1].any() and not exact.numpy()[:, :, 1].any()
            assert np.abs(got - exact.numpy()).max() < 1e-5
    none = presets.pytorch_sdpa(q, k[:, :, :0], v[:, :, :0])
    assert none.shape == (1, 2, 3, 8) and not none.any()
    equal = presets.pytorch_sdpa(q, k, v, scale=0.0)
    assert np.abs(equal - v.mean(2, keepdims=True)).max() < 1e-6
    low = np.full((3, 5), LOWEST, np.float32)
    assert np.abs(presets.pytorch_sdpa(q, k, v, attn_mask=low) - v.mean(2, keepdims=True)
                  ).max() < 1e-6


def test_sdpa_refuses_what_torch_refuses(contexts):
    rng = np.random.default_rng(2)
    q, k, v = (rng.standard_normal((1, 4, 5, 6), np.float32) for _ in range(3))
    narrow = v[..., :4]  # torch's math kernel, which is strict
    cases = [
        (q, k, narrow, {"attn_mask": np.ones((5, 5), bool), "is_causal": True}, 2),
        (q, k[:, :2], narrow[:, :2], {}, 10),  # grouped heads without enable_gqa
        (q, k[:, :3], narrow[:, :3], {"enable_gqa": True}, 10),
        (q[:, :2], k, narrow, {"enable_gqa": True}, 10),
        (q[0, 0], k[0, 0], narrow[0, 0], {"enable_gqa": True}, 10),
        (q[0, 0, 0], k, narrow, {}, 10),
        (q, k[..., :5], narrow, {}, 10),
        (q, k[:, :, :4], narrow, {}, 10),
        (q, k, narrow, {"attn_mask": np.ones((5, 4), bool)}, 10),
        (q, k, narrow, {"attn_mask": np.ones((2, 4, 5, 5), bool)}, 10),
        (q, k, narrow, {"attn_mask": np.ones((1, 1, 4, 5, 5), bool)}, 10),
        (q, k, narrow, {"attn_mask": np.ones((5, 5), np.int32)}, 11),
        (q, k, narrow, {"dropout_p": 1.5}, 2),
    ]
    for *tensors, keywords, status in cases:
        theirs = {n: torch.from_numpy(x) if n == "attn_mask" else x for n, x in keywords.items()}
        with pytest.raises((RuntimeError, IndexError)):
            sdpa(*(torch.from_numpy(x.copy()) for x in tensors), **theirs)
        with pytest.raises((mha.MultiheadError, ValueError, IndexError)) as error:
            presets.pytorch_sdpa(*tensors, **keywords)
        assert getattr(error.value, "status", status) == status, str(error.value)


# ---- nn.MultiheadAttention ----------------------------------------------------------------------

MHA_CASES = amount(30, 100, 500)


def draw_module(rng):
    """A torch module in float64 with parameters that float32 holds; one of ours that is empty."""
    heads, each = int(rng.integers(1, 7)), int(rng.choice([1, 4, 8, 12]))
    options = {"bias": rng.random() < 0.8, "add_bias_kv": rng.random() < 0.3,
               "add_zero_attn": rng.random() < 0.3, "batch_first": rng.random() < 0.5}
    options = {name: bool(x) for name, x in options.items()}
    for name in ("kdim", "vdim"):
        if rng.random() < 0.3:
            options[name] = int(rng.integers(1, 50))
    torch.manual_seed(int(rng.integers(2**31)))
    theirs = torch.nn.MultiheadAttention(heads * each, heads, **options).double()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.normal_()
            parameter.copy_(parameter.float())
    ours = {"qkv_bias": options["bias"], "out_bias": options["bias"],
            "bias_kv": options["add_bias_kv"], "zero_attn": options["add_zero_attn"],
            "key_dim": theirs.kdim, "value_dim": theirs.vdim}
    return theirs, lambda context: mha.Module(heads * each, heads, context=context, **ours)


def draw_masks(rng, B, H, T, S, lone):
    """attn_mask, key_padding_mask and is_causal in PyTorch's sense: True masks."""
    keywords = {}
    kind = rng.choice(["none", "bool", "float", "lowest", "causal"], p=[0.2, 0.25, 0.25, 0.1, 0.2])
    if kind == "causal":
        keywords["attn_mask"] = np.arange(S) > np.arange(T)[:, None]
        if rng.random() < 0.4:
            keywords["attn_mask"] = np.where(keywords["attn_mask"], -np.inf, 0).astype(np.float32)
        keywords["is_causal"] = bool(rng.random() < 0.7)
    elif kind != "none":
        shape = (T, S) if rng.random() < 0.5 else (H if lone else B * H, T, S)
        mask = mask_values(rng, shape, kind)
        keywords["attn_mask"] = ~mask if kind == "bool" else mask
    padding = rng.choice(["none", "bool", "infinite", "float"])
    keep = np.arange(S) < rng.integers(0 if rng.random() < 0.2 else 1, S + 1, (B, 1))
    if padding == "bool":
        keywords["key_padding_mask"] = ~keep
    elif padding != "none":
        values = rng.standard_normal((B, S)) if padding == "float" else 0
        keywords["key_padding_mask"] = np.where(keep, values, -np.inf).astype(np.float32)
    if lone and padding != "none":
        keywords["key_padding_mask"] = keywords["key_padding_mask"][0]
    return keywords


def draw_mha(number):
    """theirs, how to make ours, inputs in the module's own layout, keywords."""
    rng = np.random.default_rng([SEED, 2, number])
    theirs, make = draw_module(rng)
    lone = rng.random() < 0.2
    B, T, S = 1 if lone else int(rng.integers(1, 5)), *(int(rng.choice(LENGTHS)) for _ in range(2))
    itself = rng.random() < 0.3 and theirs.kdim == theirs.vdim == theirs.embed_dim
    S = T if itself else S
    shapes = [(B, T, theirs.embed_dim), (B, S, theirs.kdim), (B, S, theirs.vdim)]
    if lone:
        shapes = [shape[1:] for shape in shapes]
    elif not theirs.batch_first:
        shapes = [(n, b, e) for b, n, e in shapes]
    inputs = [normal(rng, shape) for shape in shapes]
    if itself:
        inputs = [inputs[0]] * 3
    keywords = draw_masks(rng, B, theirs.num_heads, T, S, lone)
    keywords["need_weights"] = bool(rng.random() < 0.6)
    keywords["average_attn_weights"] = bool(rng.random() < 0.5)
    return theirs, make, inputs, keywords


def added_mask(mask, lone, B, H):
    """A mask of PyTorch's as what is added to [B,H,T,S], in float64."""
    if mask is None:
        return 0.0
    if mask.dtype == np.bool_:
        mask = np.where(mask, -np.inf, 0)
    mask = mask.astype(np.float64)
    return mask if mask.ndim == 2 else mask.reshape(B, H, *mask.shape[1:])


def mha_bounds(theirs, inputs, keywords):
    """Bounds of out [B,T,E] and of weights [B,H,T,S'], and which rows see no key."""
    lone, H, E = inputs[0].ndim == 2, theirs.num_heads, theirs.embed_dim
    x = [a[None] if lone else a if theirs.batch_first else a.swapaxes(0, 1) for a in inputs]
    parts = {n: p.detach().numpy() for n, p in theirs.named_parameters()}
    weights = (np.split(parts["in_proj_weight"], 3) if "in_proj_weight" in parts
               else [parts[f"{n}_proj_weight"] for n in "qkv"])
    biases = np.split(parts["in_proj_bias"], 3) if "in_proj_bias" in parts else [None] * 3
    B, T, S = x[0].shape[0], x[0].shape[1], x[1].shape[1]
    values, errors = [], []
    for a, weight, bias in zip((a.astype(np.float64) for a in x), weights, biases):
        shape = (B, a.shape[1], H, E // H)
        values.append((a @ weight.T + (0 if bias is None else bias)).reshape(shape).swapaxes(1, 2))
        errors.append(linear_error(a, 0 * a, weight, bias).reshape(shape).swapaxes(1, 2))
    padding = keywords.get("key_padding_mask")
    if padding is not None:  # as [B,1,1,S]; two dimensions are the other mask's
        padding = added_mask(padding.reshape(B, S), lone, B, H)[:, None, None]
    mask = np.broadcast_to(added_mask(keywords.get("attn_mask"), lone, B, H)
                           + (0 if padding is None else padding), (B, H, T, S))
    keep, bias = split_mask(mask, mask.shape)
    lowest_only = (mask <= -1e38).all(-1, keepdims=True)  # absorb the scores: equal weights
    for name in ("bias_k", "zero"):
        if name == "bias_k" and theirs.bias_k is None or name == "zero" and not theirs.add_zero_attn:
            continue
        for i, which in ((1, "bias_k"), (2, "bias_v")):
            row = np.zeros((1, H, 1, E // H))
            if name == "bias_k":
                row = parts[which].reshape(1, H, 1, E // H)
            row = np.broadcast_to(row, (B, H, 1, E // H))
            values[i] = np.concatenate([values[i], row], 2)
            errors[i] = np.concatenate([errors[i], 0 * row], 2)
        keep = np.concatenate([keep, np.ones((B, H, T, 1), bool)], -1)
        bias = np.concatenate([bias, np.zeros((B, H, T, 1), np.float32)], -1)
        if lowest_only.any():  # a learned key outweighs lowest floats
            lowest = np.concatenate([mask <= -1e38, np.zeros((*keep.shape[:-1],
                                                              keep.shape[-1] - S), bool)], -1)
            keep = keep & ~lowest
    return finish_bounds(theirs, parts, values, errors, keep, bias, lowest_only)


def finish_bounds(theirs, parts, values, errors, keep, bias, lowest_only):
    (q, k, v), (q_error, k_error, v_error) = values, errors
    scale = q.shape[-1] ** -0.5
    with np.errstate(all="ignore"):
        score = np.where(lowest_only, 0, q @ k.swapaxes(-1, -2) * scale + bias)
        score = np.where(keep, score, -np.inf)
        top = score.max(-1, keepdims=True, initial=-np.inf)
        p = np.exp(score - np.where(np.isfinite(top), top, 0))
        total = p.sum(-1, keepdims=True)
        lse = np.where(total > 0, top + np.log(total), 0)
        p = p / np.where(total > 0, total, 1)
        distance = np.where(keep, top - score, 0)
    delta = score_error(q, k, scale, bias, q_error, k_error)
    if theirs.bias_k is not None:
        delta = delta + U * np.abs(lse)
    error, p_error, _ = attention_error(delta, keep, v, v_error)
    joined, wrong = (a.swapaxes(1, 2).reshape(q.shape[0], q.shape[2], -1)
                     for a in (p @ v, np.broadcast_to(error, q.shape)))
    out = linear_error(joined, wrong, parts["out_proj.weight"], parts.get("out_proj.bias"))
    return out, p * (p_error + U * distance) * 1.01 + 1e-37, ~keep.any(-1)


def judge_mha(theirs, inputs, keywords, got, exact, text):
    """The largest error / bound of out and weights; NaN stands where torch has it."""
    out_bound, p_bound, blind = mha_bounds(theirs, inputs, keywords)
    lone, per_head = inputs[0].ndim == 2, not keywords["average_attn_weights"]
    if not per_head:
        p_bound = p_bound.mean(1) + theirs.num_heads * U
    if lone:
        out_bound, p_bound = out_bound[0], p_bound[0]
    elif not theirs.batch_first:
        out_bound = out_bound.swapaxes(0, 1)
    worst = []
    for name, mine, right, bound in (("out", got[0], exact[0], out_bound),
                                     ("weights", got[1], exact[1], p_bound)):
        if right is None:
            assert mine is None
            continue
        right = right.detach().numpy()
        assert mine.shape == right.shape, f"{text}: {name} is {mine.shape}, not {right.shape}"
        assert np.array_equal(np.isnan(mine), np.isnan(right)), f"{text}: NaN in {name}"
        worst.append(ratio(np.nan_to_num(mine), np.nan_to_num(right), bound))
        assert worst[-1] <= 1, f"{text}: {name}: error / bound {worst[-1]}"
    assert not np.isnan(exact[0].detach().numpy()).any() or (keywords["need_weights"]
                                                              and blind.any()), text
    return max(worst)


@pytest.fixture(scope="module")
def state_library():
    """Of state.h; None in a build without model folders."""
    path = mha.LIBRARY_DIR / "libmultihead-model.so"
    return C.CDLL(str(path)) if path.exists() else None


def carry_parameters(library, folder, theirs, ours):
    """torch's state_dict in safetensors to ours; what ours saves loads strictly, with its bits."""
    if library is None:
        ours.load_state_dict(theirs.state_dict())
        return
    there, back = folder / "torch.safetensors", folder / "ours.safetensors"
    state = {name: value.float() for name, value in theirs.state_dict().items()}
    safetensors.save_file(state, there)
    mha.check(library.mha_module_load_state(ours.handle, str(there).encode(), None))
    mha.check(library.mha_module_save_state(ours.handle, str(back).encode(), None))
    again = safetensors.load_file(back)
    theirs.load_state_dict(again, strict=True)
    assert list(again) and all(torch.equal(again[name], value) for name, value in state.items())


def test_multihead_attention_by_chance(contexts, state_library, tmp_path):
    worst, blind, seen, mine, torchs = 0.0, 0, set(), 0.0, 0.0
    print(f"\n  seed {SEED}, {MHA_CASES} modules", end="")
    for number in range(MHA_CASES):
        theirs, make, inputs, keywords = draw_mha(number)
        text = f"seed {SEED} case {number}: {theirs} {[x.shape for x in inputs]} " + str(
            {n: x if "mask" not in n else (x.dtype.name, x.shape) for n, x in keywords.items()})
        ours = make(contexts[number % len(contexts)])
        carry_parameters(state_library, tmp_path, theirs, ours)
        tensors = [double(x.copy()) for x in inputs]
        right = {n: double(x) if "mask" in n else x for n, x in keywords.items()}
        if ours.extra_keys:  # presets.h says so: with learned keys the hint is not the mask
            right.pop("is_causal", None)
        with torch.no_grad():  # in training mode, so that no fast path is taken; dropout is 0
            exact = theirs(*tensors, **right)
            single = copy.deepcopy(theirs).float()(*[x.float() for x in tensors], **{
                n: x.float() if "mask" in n and x.dtype != torch.bool else x
                for n, x in right.items()})
        got = presets.pytorch_mha(ours, *inputs, batch_first=theirs.batch_first, **keywords)
        worst = max(worst, judge_mha(theirs, inputs, keywords, got, exact, text))
        mine += np.nansum(np.square(got[0] - exact[0].numpy()))
        torchs += np.nansum(np.square(single[0].numpy() - exact[0].numpy()))
        blind += bool(np.isnan(got[0]).any())
        seen.add(tuple(x.dtype.name if x is not None else None for x in (
            keywords.get("attn_mask"), keywords.get("key_padding_mask"))))
    versus = (mine / torchs) ** 0.5
    print(f", largest error / bound {worst:.3f}, root of squared errors / torch float32's "
          f"{versus:.2f}; {blind} with rows of NaN, {len(seen)} of 9 pairs of masks")
    assert worst > 0.001
    assert not DEEP or len(seen) >= 8 and blind > 0  # rare in few cases
    assert versus <= 2


def test_multihead_attention_dropout(contexts):
    """Weights are those after dropout, as PyTorch returns them, and out is made of them."""
    torch.manual_seed(5)
    rng = np.random.default_rng(6)
    for extra in (False, True):
        ours = mha.Module(24, 3, bias_kv=extra, zero_attn=extra, context=contexts[-1])
        for name, shape in ours.parameter_shapes().items():
            ours.set(name, rng.standard_normal(shape, np.float32) / 5)
        ours.set("out_proj.weight", np.eye(24, dtype=np.float32))
        ours.set("out_proj.bias", np.zeros(24, np.float32))
        x = rng.standard_normal((2, 40, 24), np.float32)
        keywords = {"batch_first": True, "average_attn_weights": False, "dropout": 0.25,
                    "dropout_seed": 9, "key_padding_mask": np.arange(40) >= [[40], [33]]}
        out, dropped = presets.pytorch_mha(ours, x, x, x, training=True, **keywords)
        _, mean = presets.pytorch_mha(ours, x, x, x, training=True,
                                      **{**keywords, "average_attn_weights": True})
        quiet, weights = presets.pytorch_mha(ours, x, x, x, **keywords)
        kept = dropped != 0
        assert np.allclose(dropped, np.where(kept, weights / 0.75, 0), rtol=1e-6, atol=0)
        share = kept[weights > 0].mean()
        assert abs(share - 0.75) < 5 * (0.75 * 0.25 / (weights > 0).sum()) ** 0.5
        assert np.allclose(mean, dropped.mean(1), rtol=1e-6)
        values = (x @ ours.state_dict()["in_proj_weight"][48:].T + ours.state_dict()
                  ["in_proj_bias"][48:]).reshape(2, 40, 3, 8).swapaxes(1, 2)
        if extra:
            learned = np.broadcast_to(ours.state_dict()["bias_v"].reshape(1, 3, 1, 8), (2, 3, 1, 8))
            values = np.concatenate([values, learned, 0 * learned], 2)
        assert np.allclose(out, (dropped @ values).swapaxes(1, 2).reshape(x.shape), atol=1e-5)
        assert np.allclose(quiet, (weights @ values).swapaxes(1, 2).reshape(x.shape), atol=1e-5)
        assert np.allclose(weights.sum(-1), 1, atol=1e-5)


def test_multihead_attention_refusals(contexts):
    """What torch refuses, and a sentence for it."""
    theirs = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    ours = mha.Module(8, 2, context=contexts[0])
    x, y = np.ones((3, 4, 8), np.float32), np.ones((3, 5, 8), np.float32)
    cases = [
        ((x, y, y[:, :4]), {}, 10), ((x, y[:2], y[:2]), {}, 10), ((x, y[0], y[0]), {}, 10),
        ((x[..., :7], y, y), {}, 10),
        ((x, y, y), {"attn_mask": np.ones((1, 5), bool)}, 10),
        ((x, y, y), {"attn_mask": np.ones((1, 4, 5), bool)}, 10),
        ((x, y, y), {"attn_mask": np.ones((3, 2, 4, 5), bool)}, 10),
        ((x[0], y[0], y[0]), {"attn_mask": np.ones((6, 4, 5), bool)}, 10),
        ((x, y, y), {"key_padding_mask": np.ones((3, 4), bool)}, 10),
        ((x, y, y), {"key_padding_mask": np.ones((1, 5), bool)}, 10),
        ((x, y, y), {"key_padding_mask": np.ones(5, bool)}, 10),
        ((x[0], y[0], y[0]), {"key_padding_mask": np.ones((1, 5), bool)}, 10),
        ((x, y, y), {"is_causal": True}, 2),
        ((x, y, y), {"attn_mask": np.ones((4, 5), np.int32)}, 11),
    ]
    for inputs, keywords, status in cases:
        with pytest.raises((RuntimeError, AssertionError)):
            theirs(*(torch.from_numpy(a.copy()) for a in inputs), **{
                n: torch.from_numpy(a) if isinstance(a, np.ndarray) else a
                for n, a in keywords.items()})
        with pytest.raises(mha.MultiheadError) as error:
            presets.pytorch_mha(ours, *inputs, batch_first=True, **keywords)
        assert error.value.status == status, f"{keywords}: {error.value}"
