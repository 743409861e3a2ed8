"""The cases of bench/caches_peers.py: a decoding step from a cache of some type, computed by multihead and by each
method of each peer."""
import copy
import ctypes as C
import functools
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F

import ggml_ctypes
from multihead._abi import KvCacheDesc
import multihead_ctypes as mha
import peers_calls

SCALES = ("position", "channel")
NUMBERS = ("q", "k", "v", "expected")
SIZES = {"f32": 4, "f16": 2, "bf16": 2, "int8": 1}
# Tolerances relative to the largest value of a double-precision reference: several times the rounding of the types.
# Peers also round weights, sums and queries. ggml's flash attention sums f16 values in f16; its errors are 1 % for 4,096
# keys and 6 % for 32,768.
TOLERANCES = {"f32": (1e-5, 1e-4), "f16": (2e-3, 0.15), "bf16": (1e-2, 3e-2), "int8": (3e-2, 5e-2)}


@functools.lru_cache(maxsize=1)
def numbers(h, hk, d, keys):
    """q [1, H, 1, D], k and v [1, Hk, S, D], and the result in double precision."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, heads, n, d), np.float32)
               for heads, n in ((h, 1), (hk, keys), (hk, keys)))
    o, scaled = np.empty((hk, h // hk, d)), q.reshape(hk, h // hk, d) / np.sqrt(d)
    for head in range(hk):
        scores = scaled[head] @ k[0, head].T.astype(np.float64)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        o[head] = weights @ v[0, head].astype(np.float64) / weights.sum(1, keepdims=True)
    return q, k, v, o.reshape(q.shape)


class Step:
    """One query of each head against the keys of a cache. Every implementation cycles through `copies` of the cache,
    more than the processor's caches hold."""

    def __init__(self, h, hk, keys, kind, d=128):
        self.h, self.hk, self.keys, self.kind, self.d = h, hk, keys, kind, d
        self.name = f"h{h}/{hk} k{keys} {kind}" if h > hk else f"h{h} k{keys} {kind}"
        self.flops, self.bytes = 4 * h * keys * d, 2 * SIZES[kind] * hk * keys * d
        self.copies = peers_calls.copies_of(self.bytes)

    def __getattr__(self, name):
        """q, k, v and the expected result, stored for one shape at a time."""
        if name not in NUMBERS:
            raise AttributeError(name)
        return numbers(self.h, self.hk, self.d, self.keys)[NUMBERS.index(name)]

    def check(self, o, peer=True):
        """The error of a result."""
        o = o.float().numpy() if isinstance(o, torch.Tensor) else o
        error = np.abs(o - self.expected).max() / np.abs(self.expected).max()
        if not error < TOLERANCES[self.kind][peer]:
            raise ValueError(f"off by {error:.1e} of the largest value")
        return float(error)


# ---- multihead -----------------------------------------------------------------------------------


class Ours:
    def __init__(self, row, context, page, scales):
        lib, self.context, self.caches, self.desc = mha.LIBRARY, context, [], mha.attention_desc()
        desc = KvCacheDesc(C.sizeof(KvCacheDesc), 0, 1, row.hk, row.keys, row.d,
                         type={"f32": 0, "f16": 2, "bf16": 3, "int8": 4}[row.kind], page_size=page,
                         key_scales=SCALES.index(scales) if row.kind == "int8" else 0)
        k, v = mha.tensor(row.k), mha.tensor(row.v)
        for _ in range(row.copies):
            cache = C.c_void_p()
            mha.check(lib.mha_kv_cache_create(context.handle, C.byref(desc), C.byref(cache)))
            self.caches.append(cache)
            mha.check(lib.mha_kv_cache_append(cache, C.byref(k), C.byref(v), None))
        self.o = np.empty_like(row.q)
        self.tensors = [C.byref(mha.tensor(x)) for x in (row.q, self.o)]

    def __call__(self, i):
        mha.check(mha.LIBRARY.mha_kv_cache_attention(
            self.context.handle, self.caches[i % len(self.caches)], C.byref(self.desc),
            *self.tensors, None))
        return self.o

    def __del__(self):
        for cache in self.caches:
            mha.LIBRARY.mha_kv_cache_destroy(cache)


# ---- peers: {name of the method: function from a row to a call} ----------------------------------


def torch_call(dtype, way, row):
    group = row.h // row.hk
    copies = []
    for _ in range(row.copies):
        q, k, v = (torch.from_numpy(x).to(dtype, copy=True) for x in (row.q, row.k, row.v))
        if way == "repeated":
            k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        elif way == "grouped":
            q = q.view(1, row.hk, group, row.d)
        copies.append((q, k, v))

    def call(i):
        with torch.inference_mode():
            o = F.scaled_dot_product_attention(*copies[i % len(copies)], enable_gqa=way == "gqa")
            return o.reshape(row.q.shape)
    return call


def torch_ways(row):
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(row.kind)
    if dtype is None:
        return {}
    names = ("gqa", "repeated", "grouped") if row.h > row.hk else ("",)
    return {name: functools.partial(torch_call, dtype, name) for name in names}


def onnx_quantized(x, per_channel):
    """Integers and scales of [B, Hk, S, D]."""
    scale = np.abs(x).max((0, 2) if per_channel else None, keepdims=True).astype(np.float32) / 127
    return np.rint(x / scale).astype(np.int8), scale if per_channel else scale.reshape(1)


class OnnxGrouped:
    """GroupQueryAttention. It writes the new token's key and value last into the cache passed to it: past and present
    are one buffer."""

    def __init__(self, quantized, threads, row):
        import onnxruntime
        real = np.float16 if row.kind == "f16" else np.float32
        inputs = {"q": row.q.reshape(1, 1, -1).astype(real)}
        for name, x in (("k", row.k), ("v", row.v)):
            inputs[name] = x[:, :, -1].reshape(1, 1, -1).astype(real)
        for name, x in (("k", row.k), ("v", row.v)):
            if quantized:
                inputs["p" + name], inputs[name + "s"] = onnx_quantized(x, quantized == "PER_CHANNEL")
            else:
                inputs["p" + name] = x.astype(real, copy=False)
        inputs |= {"last": np.full(1, row.keys - 1, np.int32), "all": np.full((), row.keys, np.int32)}
        names = ["q", "k", "v", "pk", "pv", "last", "all"]
        attributes = {"num_heads": row.h, "kv_num_heads": row.hk}
        if quantized:
            names += [""] * 5 + ["ks", "vs"]
            attributes |= dict(k_quant_type=quantized, v_quant_type=quantized, kv_cache_bit_width=8)
        stored = inputs["pk"].dtype
        self.session = peers_calls.onnx_session(threads, "GroupQueryAttention", inputs,
                                                {"o": real, "nk": stored, "nv": stored}, names,
                                                **attributes)
        value = onnxruntime.OrtValue.ortvalue_from_numpy  # without a copy
        self.o, self.shape = value(np.empty((1, 1, row.h * row.d), real)), row.q.shape
        self.bindings = []
        for _ in range(row.copies):
            binding = self.session.io_binding()
            values = {name: value(x.copy()) for name, x in inputs.items()}
            for name, x in values.items():
                binding.bind_ortvalue_input(name, x)
            for name, x in (("o", self.o), ("nk", values["pk"]), ("nv", values["pv"])):
                binding.bind_ortvalue_output(name, x)
            self.bindings.append((binding, values))

    def __call__(self, i):
        self.session.run_with_iobinding(self.bindings[i % len(self.bindings)][0])
        return self.o.numpy().reshape(self.shape)


def onnx_ways(row, threads):
    if row.kind == "bf16":
        return {}  # not on CPUs
    modes = ("PER_CHANNEL", "PER_TENSOR") if row.kind == "int8" else ("",)
    return {mode.lower().replace("_", " "): functools.partial(OnnxGrouped, mode, threads)
            for mode in modes}


def peers(row, threads, ggml):
    """{name: {method: function from a row to a call}}"""
    found = {"torch": torch_ways(row), "onnxruntime": onnx_ways(row, threads)}
    if ggml:
        found["ggml"] = {way: functools.partial(ggml_ctypes.Attention, ggml, way)
                         for way in ggml_ctypes.ways(row)}
    return found


def best_time(call, most):
    """The shortest of three calls, or the first if it exceeds `most`."""
    found = []
    for i in range(1, 4):
        begun = time.perf_counter()
        call(i)
        found.append(time.perf_counter() - begun)
        if found[0] > most:
            break
    return min(found)


def fastest_way(row, name, ways):
    """(name, call, error) of the fastest correct method, or None."""
    tried, few = {}, copy.copy(row)
    few.copies = min(row.copies, max(1, peers_calls.COLD // row.bytes))
    for way, make in ways.items():
        try:
            call = make(few)
            error = row.check(call(0))
            least = min((taken for taken, _ in tried.values()), default=float("inf"))
            tried[way] = best_time(call, 3 * least), error
        except Exception as problem:  # peers raise exceptions of any type
            print(f"   {row.name}, {name} {way}: {str(problem).splitlines()[0][:160]}", file=sys.stderr)
        call = None
    if not tried:
        return None
    way = min(tried, key=lambda way: tried[way][0])
    return way, ways[way](row), tried[way][1]
