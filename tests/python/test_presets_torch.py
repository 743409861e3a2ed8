"""The PyTorch presets against torch in float64, over their whole argument spaces by chance.

Each case is drawn from (seed, number); the seed is printed and MHA_TEST_SEED repeats a run. A fresh
sample of CASES by default, all with MHA_TEST_LONG=1. The judges are those of
test_attention_torch.py: a priori bounds of docs/numerics.md for every element.
"""
import os
import time

import pytest

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")
import multihead_ctypes as mha  # noqa: E402
import presets_ctypes as presets  # noqa: E402
from test_attention_torch import U, attention_error, ratio, score_error  # noqa: E402

SEED = int(os.environ.get("MHA_TEST_SEED") or time.time())
LONG = os.environ.get("MHA_TEST_LONG", "0") != "0"
LOWEST = np.finfo(np.float32).min
sdpa = torch.nn.functional.scaled_dot_product_attention


def math_sdpa(*tensors, **keywords):
    """The kernel that takes everything; flash gives NaN for is_causal with a scale of 0 or less."""
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return sdpa(*tensors, **keywords)


@pytest.fixture(scope="module")
def contexts():
    isas = [isa for isa in ("portable", "avx2", "avx512") if mha.isa_available(isa)]
    return [mha.Context(num_threads=2, isa=isa) for isa in isas]


def double(array):
    """For torch: float64, or bool as it is."""
    return torch.from_numpy(array if array.dtype == np.bool_ else array.astype(np.float64))


def normal(rng, shape):
    """float32 numbers, in memory in an order by chance, sometimes with gaps."""
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

SDPA_CASES = 600 if LONG else 150
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
