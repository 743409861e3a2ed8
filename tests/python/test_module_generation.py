"""A module with a cache compared with the attention layers of Llama and Qwen 3: grouped heads,
RoPE, QK-norm, a prompt in pieces and then single tokens. The layers run in float64 (except the
norm, which is always float32). The module must be within the a-priori bound, have at most four
times the error of PyTorch in float32, and be bit-identical for any pieces."""
import importlib

import numpy as np
import pytest
import torch

import multihead_ctypes as mha
from test_attention_torch import attention_error, linear_error, ratio, score_error, single

pytest.importorskip("transformers")
U = 2.0**-24
E, H, Hk, D, B, T, BASE = 96, 6, 2, 32, 2, 37, 500000.0
ISAS = mha.AVAILABLE


def turns():
    """Cosines and sines of every position in double, [T, D], with repeated halves."""
    angle = np.arange(T)[:, None] * BASE ** (-np.arange(0, D, 2) / D)
    return np.tile(np.cos(angle), 2), np.tile(np.sin(angle), 2)


def rotate(x):
    cosine, sine = turns()
    half = np.concatenate((-x[..., D // 2:], x[..., :D // 2]), -1)
    return x * cosine + half * sine


def theirs(name):
    """The layer with parameters that are exact in float32."""
    model = importlib.import_module(f"transformers.models.{name}.modeling_{name}")
    prefix = {"llama": "Llama", "qwen3": "Qwen3"}[name]
    config = getattr(importlib.import_module(f"transformers.models.{name}"), prefix + "Config")(
        hidden_size=E, num_attention_heads=H, num_key_value_heads=Hk, head_dim=D,
        attention_bias=False, num_hidden_layers=1, attn_implementation="eager")
    torch.manual_seed(4)
    layer = getattr(model, prefix + "Attention")(config, 0).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((parameter + 0.1 * torch.randn_like(parameter)).float())
    return layer


def ours(layer, context):
    norm = hasattr(layer, "q_norm")
    options = {"qk_norm_epsilon": layer.q_norm.variance_epsilon} if norm else {}
    module = mha.Module(E, H, qkv_bias=False, out_bias=False, rope=True, norm=norm, kv_heads=Hk,
                        head_dim=D, rope_pairing=1, rope_base=BASE, context=context, **options)
    module.load_state_dict({name.replace("o_proj", "out_proj"): value
                            for name, value in layer.state_dict().items()})
    return module


def projected(x, layer, which, heads):
    """The q or k of attention in double, and the bound of the library's error."""
    weight = getattr(layer, which + "_proj").weight.detach().numpy()
    value, wrong = (y.reshape(B, T, heads, D).swapaxes(1, 2)
                    for y in (x @ weight.T, linear_error(x, 0 * x, weight, None)))
    if which != "v" and hasattr(layer, "q_norm"):
        norm = getattr(layer, which + "_norm")
        scale = norm.weight.detach().numpy() / np.sqrt(
            np.mean(value**2, -1, keepdims=True) + norm.variance_epsilon)
        # the vector, its length, and float32 roundings of both libraries
        length = np.sqrt(np.mean(wrong**2, -1, keepdims=True) / np.mean(value**2, -1, keepdims=True))
        wrong = np.abs(scale) * (wrong + np.abs(value) * length) * 1.01
        value = value * scale
        wrong = wrong + (D + 10) * U * np.abs(value)
    if which != "v":
        wrong = wrong + np.roll(wrong, D // 2, -1) + 2 * U * np.abs(rotate(value))
        value = rotate(value)
    return value, wrong


def bound(x, layer):
    x = x.astype(np.float64)
    (q, qe), (k, ke), (v, ve) = (projected(x, layer, which, heads)
                                 for which, heads in (("q", H), ("k", Hk), ("v", Hk)))
    k, ke, v, ve = (np.repeat(y, H // Hk, axis=1) for y in (k, ke, v, ve))
    keep = np.broadcast_to(np.tril(np.ones((T, T), bool)), (B, H, T, T))
    error, _, _ = attention_error(score_error(q, k, D**-0.5, 0.0, qe, ke), keep, v, ve)
    scores = np.where(keep, q @ k.swapaxes(-1, -2) * D**-0.5, -np.inf)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    heads = p / p.sum(-1, keepdims=True) @ v
    # transformers' softmax is in float32
    error = np.broadcast_to(error + 2 * (T + 8) * U * np.abs(v).max(-2, keepdims=True), heads.shape)
    joined, wrong = (y.swapaxes(1, 2).reshape(B, T, H * D) for y in (heads, error))
    return linear_error(joined, wrong, layer.o_proj.weight.detach().numpy(), None)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_generation(name, isa):
    context = mha.Context(num_threads=2, isa=isa)
    layer = theirs(name)
    module = ours(layer, context)
    x = np.random.default_rng(5).standard_normal((B, T, E)).astype(np.float32)
    cosine, sine = (torch.from_numpy(y)[None] for y in turns())
    mask = torch.from_numpy(np.where(np.tril(np.ones((T, T), bool)), 0.0, -np.inf))[None, None]
    with torch.no_grad():
        exact = layer(torch.from_numpy(x.astype(np.float64)), (cosine, sine), mask)[0].numpy()
    whole = module(x, causal=True)
    worst = ratio(whole, exact, bound(x, layer))
    with torch.no_grad():
        rounded = layer.float()(torch.from_numpy(x), (cosine.float(), sine.float()), mask.float())
    versus = single(whole, exact, rounded[0].numpy())
    print(f"\n  {isa:8} {name}: error / bound {worst:.1e}, error / torch float32's {versus:.2f}",
          end="")
    assert worst <= 1
    assert versus <= 4  # far below the bound of five consecutive steps
    for pieces in ([T], [1] * T, [20, 1, 1, 8, 7]):
        cache, at = mha.Cache(module, B, T), 0
        for n in pieces:
            step = module.step(cache, np.ascontiguousarray(x[:, at:at + n]))
            assert np.array_equal(step, whole[:, at:at + n])
            at += n
        assert cache.lengths == [T, T]
    cache = mha.Cache(module, B, T)  # prompts of two lengths, then one token each
    lengths = np.array([9, 4])
    module.step(cache, np.ascontiguousarray(x[:, :9]), counts=lengths)
    step = module.step(cache, np.stack([x[b, n:n + 1] for b, n in enumerate(lengths)]))
    for b, n in enumerate(lengths):
        assert np.array_equal(step[b, 0], whole[b, n])
