"""What bench/caches_peers.py measures: a decoding step from a cache of some type, how ours computes it,
and the ways in which each peer does."""
import ctypes as C
import functools

import numpy as np
import torch
import torch.nn.functional as F

import ggml_ctypes
import multihead_ctypes as mha
import peers_calls

SCALES = ("position", "channel")
# Of the largest value of the result, by a reference in double precision: several times what the types
# round, and in f16 and bf16 what peers round their weights and sums to.
TOLERANCES = {"f32": 1e-4, "f16": 3e-2, "bf16": 3e-2, "int8": 5e-2}


def reference(row):
    """[1, H, 1, D] in double precision."""
    group, k, v = row.h // row.hk, row.k[0], row.v[0]
    q = row.q.reshape(row.hk, group, row.d).astype(np.float64) / np.sqrt(row.d)
    o = np.empty_like(q)
    for head in range(row.hk):
        scores = q[head] @ k[head].T.astype(np.float64)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        o[head] = weights @ v[head].astype(np.float64) / weights.sum(1, keepdims=True)
    return o.reshape(row.q.shape)


# ---- ours ----------------------------------------------------------------------------------------


class CacheDesc(C.Structure):
    """mha_kv_cache_desc"""
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32), ("batch", C.c_int64),
                ("kv_heads", C.c_int64), ("capacity", C.c_int64), ("head_dim", C.c_int64),
                ("value_head_dim", C.c_int64), ("type", C.c_int), ("reserved", C.c_uint32),
                ("page_size", C.c_int64), ("pages", C.c_int64), ("window", C.c_int64),
                ("sink_keys", C.c_int64), ("max_append", C.c_int64), ("key_scales", C.c_int),
                ("reserved2", C.c_uint32)]


class Ours:
    def __init__(self, row, kind, context, page, scales):
        lib, self.context = mha.LIBRARY, context
        desc = CacheDesc(C.sizeof(CacheDesc), 0, 1, row.hk, row.keys, row.d,
                         type={"f32": 0, "f16": 2, "bf16": 3, "int8": 4}[kind], page_size=page,
                         key_scales=SCALES.index(scales) if kind == "int8" else 0)
        self.caches, self.desc = [], mha.attention_desc()
        for _, k, v in row.copies:
            cache = C.c_void_p()
            mha.check(lib.mha_kv_cache_create(context.handle, C.byref(desc), C.byref(cache)))
            self.caches.append(cache)
            mha.check(lib.mha_kv_cache_append(cache, C.byref(mha.tensor(k)), C.byref(mha.tensor(v)),
                                              None))
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


# ---- peers: {what the way is called: how to make it} ---------------------------------------------


def torch_call(row, dtype, way):
    group = row.h // row.hk
    copies = []
    for q, k, v in row.copies:
        q, k, v = (torch.from_numpy(x).to(dtype) for x in (q, k, v))
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


def torch_ways(row, kind):
    dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}.get(kind)
    if dtype is None:
        return {}
    names = ("gqa", "repeated", "grouped") if row.h > row.hk else ("",)
    return {name: functools.partial(torch_call, row, dtype, name) for name in names}


def onnx_quantized(x, per_channel):
    """Integers and scales of [B, Hk, S, D]."""
    scale = np.abs(x).max((0, 2) if per_channel else None, keepdims=True).astype(np.float32) / 127
    return np.rint(x / scale).astype(np.int8), scale if per_channel else scale.reshape(1)


class OnnxGrouped:
    """GroupQueryAttention; the last key and value are the new token's, which it writes into the cache
    that it gets: past and present are one buffer."""

    def __init__(self, row, kind, quantized, threads):
        import onnxruntime
        real = np.float16 if kind == "f16" else np.float32
        attributes, names = {}, ["q", "k", "v", "pk", "pv", "last", "all"]
        if kind == "int8":
            attributes = dict(k_quant_type=quantized, v_quant_type=quantized, kv_cache_bit_width=8)
            names += [""] * 5 + ["ks", "vs"]
        self.bound, session, value = [], None, onnxruntime.OrtValue.ortvalue_from_numpy
        self.o = value(np.empty((1, 1, row.h * row.d), real))
        for q, k, v in row.copies:
            inputs = {"q": q.reshape(1, 1, -1).astype(real),
                      "k": k[:, :, -1].reshape(1, 1, -1).astype(real),
                      "v": v[:, :, -1].reshape(1, 1, -1).astype(real)}
            if kind == "int8":
                for name, x in (("k", k), ("v", v)):
                    inputs["p" + name], inputs[name + "s"] = onnx_quantized(
                        x, quantized == "PER_CHANNEL")
            else:
                inputs |= {"pk": k.astype(real), "pv": v.astype(real)}
            inputs |= {"last": np.full(1, row.keys - 1, np.int32),
                       "all": np.full((), row.keys, np.int32)}
            session = session or peers_calls.onnx_session(
                threads, "GroupQueryAttention", inputs,
                {"o": real, "nk": inputs["pk"].dtype, "nv": inputs["pk"].dtype}, names,
                num_heads=row.h, kv_num_heads=row.hk, **attributes)
            binding = session.io_binding()
            values = {name: value(x) for name, x in inputs.items()}
            for name, x in values.items():
                binding.bind_ortvalue_input(name, x)
            for name, x in (("o", self.o), ("nk", values["pk"]), ("nv", values["pv"])):
                binding.bind_ortvalue_output(name, x)
            self.bound.append((binding, values))
        self.session, self.shape = session, row.q.shape

    def __call__(self, i):
        self.session.run_with_iobinding(self.bound[i % len(self.bound)][0])
        return self.o.numpy().reshape(self.shape)


def onnx_ways(row, kind, threads):
    if kind == "bf16":
        return {}
    modes = ("PER_CHANNEL", "PER_TENSOR") if kind == "int8" else ("",)
    return {mode.lower().replace("_", " "): functools.partial(OnnxGrouped, row, kind, mode, threads)
            for mode in modes}


def peers(row, kind, threads, ggml):
    """{name: {way: how to make it}}"""
    found = {"torch": torch_ways(row, kind), "onnxruntime": onnx_ways(row, kind, threads)}
    if kind == "f32":
        found["OpenVINO"] = {"": lambda: peers_calls.openvino_attention(row, threads)}
        found["JAX"] = {"": lambda: peers_calls.jax_attention(row, threads)}
    if ggml:
        found["ggml"] = {way: functools.partial(ggml_ctypes.Attention, ggml, row, kind, way)
                         for way in ggml_ctypes.ways(row, kind)}
    return found
