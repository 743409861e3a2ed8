"""Positions compared with the code of trained models: rotary embedding of Llama, GPT-NeoX and
GPT-J, T5's buckets, ALiBi's slopes from Bloom, sinusoidal tables, and norms of heads. References in
float32 may have float32's errors: an angle of a radians is the product of two rounded factors and
has an error of 2 u a, plus u = 2^-24 for each further rounding. With the reference's cosines and
sines in the library's tables, only single roundings remain.

Skipped without numpy, torch or transformers. The libraries are in MHA_LIBRARY_DIR (default build).
"""
import ctypes as C
import math

import numpy as np
import pytest
import torch
import transformers

import multihead_ctypes as mha
from multihead._abi import Positions, RopeDesc, Tensor

U = 2.0**-24
INTERLEAVED, HALVES = 0, 1
INVERSE = 1
RMS, L2 = 0, 1


def view(x):
    """The Tensor of a NumPy array with any strides. It keeps the array alive."""
    dtype = {"float32": 0, "int64": 7}[str(x.dtype)]
    tensor = Tensor(x.ctypes.data, dtype, x.ndim, (C.c_int64 * 6)(*x.shape),
                    (C.c_int64 * 6)(*(s // x.itemsize for s in x.strides)))
    tensor.array = x
    return tensor


class Library:
    def __init__(self):
        self.so = mha.LIBRARY
        self.context = C.c_void_p()
        self.check(self.so.mha_context_create(None, C.byref(self.context)))

    def check(self, status):
        assert status == 0, self.so.mha_error_detail().decode()

    def rope(self, x, pairing, rotary_dim=0, base=0.0, factor=0.0, ids=None, start=0, tables=None,
             flags=0):
        y = np.empty_like(x)
        desc = RopeDesc(flags=flags, pairing=pairing,
                        rotary_dim=rotary_dim, base=base, factor=factor)
        kept = [view(a) for a in (tables or ())]
        if ids is not None:
            kept.append(view(ids))
            desc.positions.ids = C.pointer(kept[-1])
        desc.positions.start = start
        if tables:
            desc.cos_table, desc.sin_table = C.pointer(kept[0]), C.pointer(kept[1])
        self.check(self.so.mha_rope_apply(self.context, C.byref(desc), C.byref(view(x)),
                                          C.byref(view(y))))
        return y

    def norm(self, x, kind, epsilon, weight=None):
        y = np.empty_like(x)
        self.check(self.so.mha_qk_norm(self.context, kind, C.c_float(epsilon), C.byref(view(x)),
                                       C.byref(view(weight)) if weight is not None else None,
                                       C.byref(view(y))))
        return y

    def sinusoid(self, rows, width, start=0):
        table = np.empty((rows, width), np.float32)
        self.check(self.so.mha_sinusoidal_encoding(self.context, C.c_int64(start),
                                                   C.byref(view(table))))
        return table

    def add(self, x, table, ids):
        y = np.empty_like(x)
        ids_view = view(ids)
        positions = Positions(ids=C.pointer(ids_view))
        self.check(self.so.mha_add_positions(self.context, C.byref(positions), C.byref(view(x)),
                                             C.byref(view(table)), C.byref(view(y))))
        return y

    def slopes(self, heads):
        slopes = np.empty(heads, np.float32)
        self.check(self.so.mha_alibi_slopes(C.c_int64(heads), slopes.ctypes.data_as(C.c_void_p)))
        return slopes

    def bucket(self, relative, buckets, max_distance, one_sided):
        bucket = C.c_int64()
        self.check(self.so.mha_t5_bucket(C.c_int64(relative), C.c_int64(buckets),
                                         C.c_int64(max_distance), C.c_bool(one_sided),
                                         C.byref(bucket)))
        return bucket.value


@pytest.fixture(scope="module")
def library():
    return Library()


@pytest.fixture
def random():
    return np.random.default_rng(20261120)


def normal(random, *shape):
    return random.standard_normal(shape).astype(np.float32)


def worst(got, want, bound):
    """The largest error / bound. Fails above 1."""
    ratio = np.max(np.abs(got.astype(np.float64) - want) / bound)
    assert ratio <= 1, ratio
    return ratio


def pair_sizes(x, pairing, rotary):
    """|x_j| + |x_k| of each element's pair, or 0 without rotation."""
    size, turned = np.zeros(x.shape), np.abs(x[..., :rotary]).astype(np.float64)
    if pairing == HALVES:
        size[..., :rotary] = turned + np.roll(turned, rotary // 2, -1)
    else:
        size[..., :rotary] = turned + turned.reshape(*x.shape[:-1], -1, 2)[..., ::-1].reshape(
            turned.shape)
    return size


def llama_tables(head_dim, base, ids, factor=1.0):
    """transformers' cos, sin [B, T, head_dim / 2] in float32 for Llama."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
    scaling = {"rope_type": "default", "rope_theta": base}
    if factor != 1:
        scaling = {"rope_type": "linear", "factor": factor, "rope_theta": base}
    config = transformers.LlamaConfig(hidden_size=2 * head_dim, num_attention_heads=2,
                                      head_dim=head_dim, rope_parameters=scaling)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.from_numpy(ids))
    half = head_dim // 2
    return cos[..., :half].contiguous().numpy(), sin[..., :half].contiguous().numpy()


def peer_bound(x, pairing, rotary, largest_angle):
    """The float32 error of a reference: two roundings in the angle, its power and its division, and
    the roundings of cosine, two products and a sum."""
    return pair_sizes(x, pairing, rotary) * U * (6 * largest_angle + 4) + 1e-30


@pytest.mark.parametrize("head_dim,base,factor", [(64, 10000.0, 1.0), (128, 500000.0, 1.0),
                                                  (80, 10000.0, 4.0), (96, 1e6, 2.0)])
def test_llama(library, random, head_dim, base, factor):
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb
    ids = np.stack([np.arange(50), np.arange(950, 1000)]).astype(np.int64)
    x = normal(random, 2, 3, 50, head_dim)
    cos, sin = llama_tables(head_dim, base, ids, factor)
    both = [torch.from_numpy(np.concatenate([a, a], -1)).double() for a in (cos, sin)]
    exact = apply_rotary_pos_emb(torch.from_numpy(x).double(), torch.from_numpy(x).double(),
                                 *both)[0].numpy()
    tables = library.rope(x, HALVES, tables=(cos, sin))
    assert worst(tables, exact, np.abs(exact) * U + pair_sizes(x, HALVES, head_dim) * 2**-51) > 0.5
    own = library.rope(x, HALVES, base=base, factor=factor, ids=ids)
    worst(own, exact, peer_bound(x, HALVES, head_dim, 1000 / factor))
    back = library.rope(own, HALVES, base=base, factor=factor, ids=ids, flags=INVERSE)
    worst(back, x, pair_sizes(x, HALVES, head_dim) * 4 * U)


def test_neox_partial(library, random):
    """GPT-NeoX rotates the first quarter of a head in halves and does not change the other
    elements."""
    from transformers.models.gpt_neox import modeling_gpt_neox as neox
    head_dim, rotary = 64, 16
    x = normal(random, 2, 4, 30, head_dim)
    cos, sin = llama_tables(rotary, 10000.0, np.arange(30, dtype=np.int64)[None])
    both = [torch.from_numpy(np.concatenate([a, a], -1)).double() for a in (cos, sin)]
    exact = neox.apply_rotary_pos_emb(torch.from_numpy(x).double(), torch.from_numpy(x).double(),
                                      *both)[0].numpy()
    worst(library.rope(x, HALVES, rotary_dim=rotary, tables=(cos[0], sin[0])), exact,
          np.abs(exact) * U + 1e-30 + pair_sizes(x, HALVES, rotary) * 2**-51)
    own = library.rope(x, HALVES, rotary_dim=rotary)
    worst(own, exact, peer_bound(x, HALVES, rotary, 30))
    assert np.array_equal(own[..., rotary:], x[..., rotary:])


def test_gptj(library, random):
    """GPT-J rotates pairs of neighbours."""
    from transformers.models.gptj import modeling_gptj as gptj
    head_dim, rotary, start, tokens = 64, 32, 7, 40
    table = gptj.create_sinusoidal_positions(2048, rotary)[start:start + tokens]  # sines, cosines
    sin, cos = table[:, :rotary // 2].contiguous(), table[:, rotary // 2:].contiguous()
    x = normal(random, 2, tokens, 3, head_dim)  # GPT-J's order is [B,T,H,D]
    turned = gptj.apply_rotary_pos_emb(torch.from_numpy(x[..., :rotary]).double(),
                                       sin[None].double(), cos[None].double()).numpy()
    exact = np.concatenate([turned, x[..., rotary:]], -1).transpose(0, 2, 1, 3)
    heads = x.transpose(0, 2, 1, 3)
    ours = library.rope(heads, INTERLEAVED, rotary_dim=rotary, tables=(cos.numpy(), sin.numpy()))
    worst(ours, exact, np.abs(exact) * U + 1e-30 + pair_sizes(heads, INTERLEAVED, rotary) * 2**-51)
    own = library.rope(heads, INTERLEAVED, rotary_dim=rotary, start=start)
    worst(own, exact, peer_bound(heads, INTERLEAVED, rotary, start + tokens))


def test_pairings_are_permutations(library, random):
    """The conversion of Llama's published weights: even elements first, then odd ones."""
    x = normal(random, 1, 2, 20, 32)
    order = np.r_[0:32:2, 1:32:2]
    halves = library.rope(np.ascontiguousarray(x[..., order]), HALVES)
    assert np.array_equal(halves, library.rope(x, INTERLEAVED)[..., order])


def test_far_positions(library):
    """Positions up to 10^7, where angles in float32 would have errors of whole radians."""
    ids = np.array([1, 4095, 131071, 1000003, 9999991], np.int64)
    x = np.zeros((1, 1, len(ids), 64), np.float32)
    x[..., 0::2] = 1
    y = library.rope(x, INTERLEAVED, ids=ids)[0, 0]
    for row, position in enumerate(ids.tolist()):
        for i in range(32):
            angle = position * 10000.0 ** (-i / 32)
            slack = (15 * angle + 4) * 2**-52
            assert abs(y[row, 2 * i] - math.cos(angle)) <= U + slack
            assert abs(y[row, 2 * i + 1] - math.sin(angle)) <= U + slack


# T5's 32 and 128, and unusual numbers, some of which are not powers of two.
@pytest.mark.parametrize("buckets,max_distance", [(32, 128), (32, 256), (64, 128), (16, 64), (8, 20),
                                                  (4, 10), (12, 100), (20, 300), (128, 128)])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_t5_buckets(library, buckets, max_distance, bidirectional):
    """Every distance from -300 to 300; transformers computes the logarithm in float32."""
    from transformers.models.t5.modeling_t5 import T5Attention
    relative = torch.arange(-300, 301)
    theirs = T5Attention._relative_position_bucket(relative, bidirectional, buckets, max_distance)
    ours = [library.bucket(r, buckets, max_distance, not bidirectional) for r in relative.tolist()]
    assert ours == theirs.tolist()


def test_alibi(library):
    """1 to 128 heads, compared with the formula of the authors' code, which transformers
    contains."""
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    def published(n):
        def powers(n):
            start = 2 ** (-(2 ** -(math.log2(n) - 3)))
            return [start * start**i for i in range(n)]
        if math.log2(n).is_integer():
            return powers(n)
        closest = 2 ** math.floor(math.log2(n))
        return powers(closest) + published(2 * closest)[0::2][:n - closest]

    for heads in range(1, 129):
        ours = library.slopes(heads)
        assert np.allclose(ours, published(heads), rtol=1.01 * U, atol=0)
        bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1].numpy()
        # transformers has float32 powers of a rounded base, whose error grows with each factor.
        assert np.allclose(ours, bloom, rtol=2 * U * (heads + 4), atol=0)


@pytest.mark.parametrize("rows,width,start", [(60, 512, 0), (40, 7, 3), (5, 1, 100), (9, 64, 5000)])
def test_sinusoid(library, rows, width, start):
    position = torch.arange(start, start + rows, dtype=torch.float64)[:, None]
    even = torch.arange(0, width, 2, dtype=torch.float64)
    angle = position / 10000 ** (even / width)
    exact = torch.stack([angle.sin(), angle.cos()], -1).flatten(1)[:, :width].numpy()
    bound = np.abs(exact) * U + (15 * (start + rows) + 4) * 2**-52
    assert worst(library.sinusoid(rows, width, start), exact, bound) > 0.05


def test_learned(library, random):
    x, table = normal(random, 2, 9, 33), normal(random, 20, 33)
    ids = random.integers(0, 20, (2, 9))
    want = torch.from_numpy(x) + torch.nn.functional.embedding(torch.from_numpy(ids),
                                                               torch.from_numpy(table))
    assert np.array_equal(library.add(x, table, ids), want.numpy())


def test_norms(library, random):
    x, weight = normal(random, 2, 3, 5, 64), normal(random, 64)
    wide = torch.from_numpy(x).double()
    # The library's epsilon is a float.
    epsilon = float(np.float32(1e-6))
    for own, weights in ((None, 1), (weight, weight.astype(np.float64))):
        rms = torch.nn.functional.rms_norm(wide, (64,), eps=epsilon).numpy() * weights
        worst(library.norm(x, RMS, 1e-6, own), rms, np.abs(rms) * U * 1.001)
        l2 = torch.nn.functional.normalize(wide, dim=-1).numpy() * weights
        worst(library.norm(x, L2, 1e-12, own), l2, np.abs(l2) * U * 1.001)
    llama = transformers.models.llama.modeling_llama.LlamaRMSNorm(64, eps=1e-6)
    llama.weight.data = torch.from_numpy(weight)
    theirs = llama(torch.from_numpy(x)).detach().numpy()
    worst(library.norm(x, RMS, 1e-6, weight), theirs.astype(np.float64), np.abs(theirs) * U * 40)
