"""f16 and bf16 tensors compared with torch's scaled_dot_product_attention in the same type, and in
float64 with the same numbers.

There are two criteria. Each element is within the bound of docs/numerics.md 3.11: the error of f32
arithmetic, and half an ulp of the type. The largest error, in units of the type's rounding of the
largest value, is at most torch's in the same type.
"""
import numpy as np
import pytest
import torch

import multihead_ctypes as mha
from test_attention_torch import ISAS, attention_error, score_error, sdpa

# Half the spacing at 1, half the least subnormal, and the type of an array of bit patterns.
TYPES = {torch.float16: (2.0**-11, 2.0**-25, np.float16),
         torch.bfloat16: (2.0**-8, 2.0**-134, np.uint16)}


@pytest.fixture(params=ISAS, scope="module")
def context(request):
    return mha.Context(num_threads=2, isa=request.param)


def array_of(x):
    """The same elements, with bfloat16 as bit patterns."""
    return x.view(torch.uint16).numpy() if x.dtype == torch.bfloat16 else x.numpy()


def values_of(o, dtype):
    return torch.from_numpy(o).view(dtype).double().numpy()


def draw(rng, dtype, shape, size):
    return torch.from_numpy(rng.standard_normal(shape) * size).to(dtype)


@pytest.mark.gate(8)
@pytest.mark.parametrize("path", ["tiled", "plain"])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_rounded_once(context, dtype, causal, path):
    rng = np.random.default_rng(7 + causal)
    half, least, array_type = TYPES[dtype]
    for heads, length, width in [(1, 1, 8), (4, 33, 64), (2, 257, 40), (8, 129, 16), (1, 700, 128)]:
        q, k, v = (draw(rng, dtype, (2, heads, length, width), size) for size in (2, 1, 1))
        got = values_of(mha.attention(*(array_of(x) for x in (q, k, v)), causal=causal, path=path,
                                      o_type=array_type, context=context), dtype)
        keep = np.tril(np.ones((length, length), bool)) if causal else np.ones((length, length), bool)
        exact = sdpa(q.double(), k.double(), v.double(), is_causal=causal).numpy()
        wide = [x.double().numpy() for x in (q, k, v)]
        delta = score_error(wide[0], wide[1], width**-0.5, 0.0)
        error = attention_error(delta, keep, wide[2])[0]
        bound = error + np.maximum(half * (np.abs(exact) + error), least)
        assert (np.abs(got - exact) <= bound).all()
        theirs = sdpa(q, k, v, is_causal=causal).double().numpy()
        ours = np.abs(got - exact).max()
        # Near a midpoint, f32 errors may change the last bit, by at most `error`.
        assert ours <= np.abs(theirs - exact).max() + error.max()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_mixtures(context, dtype):
    """f32 queries with keys and values of a different type, which torch needs widened."""
    rng = np.random.default_rng(11)
    q = draw(rng, torch.float32, (2, 4, 50, 32), 1)
    k, v = (draw(rng, dtype, (2, 2, 90, 32), 1) for _ in range(2))
    mixed = mha.attention(q.numpy(), array_of(k), array_of(v), context=context)
    wide = mha.attention(q.numpy(), k.float().numpy(), v.float().numpy(), context=context)
    assert mixed.tobytes() == wide.tobytes()


def test_overflow_is_infinity(context):
    """torch's rounding of f32 to float16: above 65504 plus half a step, the result is infinite."""
    one = np.zeros((1, 1, 1, 1), np.float32)
    v = np.float32([65519, 65520, -1e6, 1e-8]).reshape(1, 1, 1, 4)
    got = mha.attention(one, one, v, o_type=np.float16, context=context)
    assert (got == torch.from_numpy(v).half().numpy()).all()
