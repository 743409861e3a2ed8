"""Kinds of attention compared with the code of published models: Gemma-2's softcap, gpt-oss's
sinks, T5's bias, Bloom's ALiBi, Shaw's relative keys in wav2vec2-BERT, Mistral's window, Llama's
grouped heads.

Their functions get the same numbers in float64 (most compute the softmax in float32, which the
bounds include). The library must agree within the a-priori bounds of docs/numerics.md 3.8 and 3.10.
Shaw's relative values, which none of these models has, are compared with the paper's formula in
float64.
"""
import types
import zlib

import numpy as np
import pytest
import torch
import transformers

import multihead_ctypes as mha
from test_attention_torch import attention_error, ratio, score_error

U = 2.0**-24
# The slowest and the best instruction set. Others are bit-identical to the best
# (test_attention_bits.c).
ISAS = mha.AVAILABLE
ISAS = ISAS[:1] + ISAS[1:][-1:]
# B, H, Hk, T, S, D: the queries are the last T of S positions
SHAPES = [(1, 1, 1, 7, 7, 8), (2, 4, 4, 33, 33, 64), (2, 8, 2, 5, 130, 40), (1, 6, 3, 20, 600, 32)]


@pytest.fixture(params=ISAS, scope="module")
def context(request):
    return mha.Context(num_threads=2, isa=request.param)


def draw(name, shape):
    B, H, Hk, T, S, D = shape
    rng = np.random.default_rng(zlib.crc32(repr((name, shape)).encode()))
    q, k, v = (rng.standard_normal((B, heads, n, D)).astype(np.float32)
               for heads, n in ((H, T), (Hk, S), (Hk, S)))
    return rng, q, k, v


def doubles(*arrays):
    return [torch.from_numpy(x.astype(np.float64)) for x in arrays]


def causal(T, S):
    return np.arange(S) <= np.arange(T)[:, None] + S - T


def dropped(keep):
    """The additive mask of the eager functions."""
    return torch.from_numpy(np.where(keep, 0.0, -np.inf))[None, None]


def repeated(x, heads):
    return np.repeat(x.astype(np.float64), heads // x.shape[1], axis=1)


def judge(name, context, call, theirs, keep, delta, v, heads):
    """`call` computes the library's o and probabilities. `theirs` has o as [B,T,H,Dv], and
    weights."""
    o, extra = call
    want, weights = theirs[0].numpy().swapaxes(1, 2), theirs[1].numpy()
    keep = np.broadcast_to(keep, weights.shape)
    values = repeated(v, heads)
    o_bound, p_bound, _ = attention_error(delta, keep, values)
    single = 2 * (keep.shape[-1] + 8) * U  # a softmax in float32
    o_bound = o_bound + single * np.abs(values).max(-2, keepdims=True)
    # p of far keys has the distance from the largest score, which is below 2 max |score| + 200 here
    p_bound = weights * (p_bound + single + 400 * U) + 1e-37
    ratios = ratio(o, want, o_bound), ratio(extra["probabilities"], weights, p_bound)
    print(f"\n  {context.isa:8} {name}: error / bound o {ratios[0]:.3f}, p {ratios[1]:.3f}", end="")
    assert max(ratios) <= 1 and ratios[0] > 1e-4


def ours(context, q, k, v, **keywords):
    return mha.attention(q, k, v, context=context, outputs=("probabilities",), **keywords)


def plain_delta(q, k, heads, scale, added=0.0):
    return score_error(q.astype(np.float64), repeated(k, heads), scale, added)


def eager(module):
    return __import__(f"transformers.models.{module}.modeling_{module}", fromlist=["x"])


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("cap", [50.0, 2.0])
def test_gemma2_softcap(context, shape, cap):
    B, H, Hk, T, S, D = shape
    _, q, k, v = draw("gemma2", shape)
    scale, keep = float(np.float32(1 / np.sqrt(D))), causal(T, S)
    module = types.SimpleNamespace(num_key_value_groups=H // Hk, training=False, head_dim=D)
    theirs = eager("gemma2").eager_attention_forward(module, *doubles(q, k, v), dropped(keep),
                                                     scaling=scale, softcap=cap)
    call = ours(context, q, k, v, causal=True, q_offset=S - T, scale=scale, softcap=cap)
    delta = plain_delta(q, k, H, scale) + 10.8 * U * cap
    judge(f"softcap {cap} {shape}", context, call, theirs, keep, delta, v, H)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gpt_oss_sinks(context, shape):
    B, H, Hk, T, S, D = shape
    rng, q, k, v = draw("gpt_oss", shape)
    scale = float(np.float32(1 / np.sqrt(D)))
    sinks = (2 * rng.standard_normal(H)).astype(np.float32)
    window = 128
    keep = causal(T, S) & (np.arange(S) > np.arange(T)[:, None] + S - T - window)
    module = types.SimpleNamespace(num_key_value_groups=H // Hk, training=False,
                                   sinks=torch.from_numpy(sinks.astype(np.float64)))
    theirs = eager("gpt_oss").eager_attention_forward(module, *doubles(q, k, v), dropped(keep),
                                                      scaling=scale)
    call = ours(context, q, k, v, causal=True, q_offset=S - T, window=(window - 1, 0), scale=scale,
                sink_logits=sinks)
    delta = plain_delta(q, k, H, scale) + 2 * U * np.abs(sinks)[:, None, None]
    judge(f"sinks {shape}", context, call, theirs, keep, delta, v, H)
    assert (theirs[1].sum(-1) < 1 - 1e-4).any()  # the sink has a share


@pytest.mark.parametrize("shape", [x for x in SHAPES if x[1] == x[2]], ids=str)
@pytest.mark.parametrize("decoder", [False, True])
def test_t5_bias(context, shape, decoder):
    """Scale 1, a table of 32 buckets, and all of T5Attention.compute_bias."""
    B, H, _, T, S, D = shape
    _, q, k, v = draw("t5", shape)
    t5 = eager("t5")
    config = transformers.T5Config(d_model=H * D, d_kv=D, num_heads=H, is_decoder=decoder)
    torch.manual_seed(3)
    layer = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0).eval()
    table = layer.relative_attention_bias.weight.detach().numpy() * np.float32(8)
    layer.relative_attention_bias.weight.data = torch.from_numpy(table)
    with torch.no_grad():
        bias = layer.compute_bias(T, S, past_seen_tokens=S - T).double()
    keep = causal(T, S) if decoder else np.ones((T, S), bool)
    q = q * np.float32(D**-0.5)  # like T5's initialisation
    theirs = t5.eager_attention_forward(types.SimpleNamespace(training=False), *doubles(q, k, v),
                                        dropped(keep), scaling=1.0, position_bias=bias)
    call = mha.attention_desc(scale=1.0, causal=decoder, q_offset=S - T, t5_table=table)
    call.flags |= 16 if decoder else 0  # MHA_ATTENTION_T5_ONE_SIDED
    call = run_desc(context, call, q, k, v)
    judge(f"T5 {shape}", context, call, theirs, keep,
          plain_delta(q, k, H, 1.0, np.abs(bias.numpy())), v, H)


def run_desc(context, desc, q, k, v):
    """o and probabilities of an existing descriptor."""
    o = np.empty((*q.shape[:3], v.shape[3]), np.float32)
    p = np.empty((*q.shape[:3], k.shape[2]), np.float32)
    views = [mha.tensor(x) for x in (q, k, v, o, p)]
    wanted = mha.AttentionOutputs(struct_size=mha.C.sizeof(mha.AttentionOutputs),
                                  probabilities=mha.C.pointer(views[4]))
    by = mha.C.byref
    mha.check(mha.LIBRARY.mha_attention_forward(context.handle, by(desc), *map(by, views[:4]),
                                                by(wanted)))
    return o, {"probabilities": p}


@pytest.mark.parametrize("shape", [x for x in SHAPES if x[1] == x[2]], ids=str)
def test_bloom_alibi(context, shape):
    """Bloom adds slope * key; the library adds -slope * distance. They differ by a constant per
    row, so weights are equal."""
    B, H, _, T, S, D = shape
    _, q, k, v = draw("bloom", shape)
    bloom = eager("bloom")
    slopes = np.empty(H, np.float32)
    mha.check(mha.LIBRARY.mha_alibi_slopes(mha.C.c_int64(H),
                                           slopes.ctypes.data_as(mha.C.c_void_p)))
    alibi = bloom.build_alibi_tensor(torch.ones(B, S), H, torch.float64)  # [B H, 1, S]
    keep, scale = causal(T, S), float(np.float32(1 / np.sqrt(D)))
    qd, kd, vd = doubles(q, k, v)
    scores = alibi.baddbmm(qd.reshape(B * H, T, D), kd.reshape(B * H, S, D).transpose(1, 2),
                           beta=1.0, alpha=scale).view(B, H, T, S) + dropped(keep)
    weights = torch.softmax(scores, -1)
    theirs = (weights @ vd).transpose(1, 2), weights
    call = ours(context, q, k, v, causal=True, q_offset=S - T, scale=scale, alibi_slopes=slopes)
    # Bloom's slopes are powers in float32; the library's are rounded once. A term has H + 4
    # additional roundings.
    added = np.abs(slopes)[:, None, None] * S * (H + 6)
    judge(f"ALiBi {shape}", context, call, theirs, keep, plain_delta(q, k, H, scale, added), v, H)


@pytest.mark.parametrize("shape", [x for x in SHAPES if x[1] == x[2]] + [(1, 2, 2, 90, 90, 24)],
                         ids=str)
@pytest.mark.parametrize("clip", [3, 16, 128])
def test_shaw_keys(context, shape, clip):
    """wav2vec2-BERT's relative_key with equal sides is Shaw's term on keys."""
    B, H, _, T, _, D = shape
    rng, q, k, v = draw("shaw", (B, H, H, T, T, D))
    w2v = eager("wav2vec2_bert")
    table = rng.standard_normal((2 * clip + 1, D)).astype(np.float32)
    scale = float(np.float32(1 / np.sqrt(D)))
    embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(table.astype(np.float64)))
    module = types.SimpleNamespace(left_max_position_embeddings=clip, training=False,
                                   right_max_position_embeddings=clip, head_size=D, scaling=scale,
                                   distance_embedding=embedding)
    qd, kd, vd = doubles(q, k, v)
    turned, bias = w2v._apply_relative_key_position_encoding(module, qd, kd)
    theirs = w2v.eager_attention_forward(module, turned, kd, vd, None, scaling=scale,
                                         position_bias=bias)
    call = ours(context, q, k, v, scale=scale, shaw_keys=table)
    delta = plain_delta(q, k, H, scale) + (D + 5) * U * scale * (
        np.abs(q.astype(np.float64)).sum(-1)[..., None] * np.abs(table).max())
    judge(f"Shaw {clip} {shape}", context, call, theirs, np.ones((T, T), bool), delta, v, H)


@pytest.mark.parametrize("clip", [1, 4, 128])
def test_shaw_values(context, clip):
    """Equations 3 and 4 of Shaw et al. 2018 with both tables, in float64."""
    B, H, T, D = 2, 3, 60, 16
    rng, q, k, v = draw("shaw values", (B, H, H, T, T, D))
    keys, values = (rng.standard_normal((2 * clip + 1, D)).astype(np.float32) for _ in range(2))
    index = torch.arange(T)[None] - torch.arange(T)[:, None]
    index = index.clamp(-clip, clip) + clip
    qd, kd, vd = doubles(q, k, v)
    ak, av = (x[index] for x in doubles(keys, values))
    scale = float(np.float32(1 / np.sqrt(D)))
    scores = (qd @ kd.transpose(-1, -2) + torch.einsum("bhid,ijd->bhij", qd, ak)) * scale
    weights = torch.softmax(scores, -1)
    o = weights @ vd + torch.einsum("bhij,ijd->bhid", weights, av)
    call = ours(context, q, k, v, scale=scale, shaw_keys=keys, shaw_values=values)
    delta = plain_delta(q, k, H, scale) + (D + 5) * U * scale * (
        np.abs(q.astype(np.float64)).sum(-1)[..., None] * np.abs(keys).max())
    # o is a mean of values plus table rows; the bound has the sum of their sizes.
    large = np.broadcast_to(np.abs(v).max() + np.abs(values).max(), v.shape)
    judge(f"Shaw values {clip}", context, call, (o.transpose(1, 2), weights),
          np.ones((T, T), bool), delta, large, H)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("window", [2, 4, 100])
def test_mistral_window(context, shape, window):
    """sliding_window includes the query's own position; the library counts the keys before it."""
    from transformers.masking_utils import sliding_window_causal_mask_function
    B, H, Hk, T, S, D = shape
    _, q, k, v = draw("mistral", shape)
    sees = sliding_window_causal_mask_function(window)
    rows, columns = torch.arange(T)[:, None] + S - T, torch.arange(S)[None]
    keep = (sees(0, 0, rows, columns) & torch.ones(T, S, dtype=torch.bool)).numpy()
    scale = float(np.float32(1 / np.sqrt(D)))
    module = types.SimpleNamespace(num_key_value_groups=H // Hk, training=False)
    theirs = eager("mistral").eager_attention_forward(module, *doubles(q, k, v), dropped(keep),
                                                      scaling=scale)
    call = ours(context, q, k, v, causal=True, q_offset=S - T, window=(window - 1, 0), scale=scale)
    judge(f"window {window} {shape}", context, call, theirs, keep, plain_delta(q, k, H, scale), v,
          H)
    assert not call[1]["probabilities"][..., ~keep].any()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_llama_groups(context, shape):
    B, H, Hk, T, S, D = shape
    _, q, k, v = draw("llama", shape)
    scale, keep = float(np.float32(1 / np.sqrt(D))), causal(T, S)
    module = types.SimpleNamespace(num_key_value_groups=H // Hk, training=False)
    theirs = eager("llama").eager_attention_forward(module, *doubles(q, k, v), dropped(keep),
                                                    scaling=scale)
    call = ours(context, q, k, v, causal=True, q_offset=S - T, scale=scale)
    judge(f"groups {shape}", context, call, theirs, keep, plain_delta(q, k, H, scale), v, H)
