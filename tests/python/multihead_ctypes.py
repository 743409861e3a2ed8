"""A thin NumPy layer for libmultihead.so with ctypes, without copies, only for tests.

    import multihead_ctypes as mha
    o = mha.attention(q, k, v, causal=True)                  # arrays [B,H,T,D], float32
    o, extra = mha.attention(q, k, v, outputs=("lse", "probabilities"))
    module = mha.Module(embed_dim=64, num_heads=8)
    module.load_state_dict(torch_module.state_dict())        # tensors or arrays
    out, extra = module(query, key, value, outputs=("average_probabilities",))

Arrays are passed with their strides. The library is in MHA_LIBRARY_DIR (default: build/); the structs come from the
package (bindings/python/multihead/_abi.py).
"""
import ctypes as C

import numpy as np

from shared import LIBRARY_DIR, ROOT  # noqa: F401  (before the package, which it finds)
import multihead
from multihead import _library
from multihead._abi import (MAX_DIMS, PATHS, SCORE_STAGES, AttentionDesc, AttentionOutputs, AttentionPlan,
                            ModuleCall, ModuleDesc, ModuleOutputs, ModuleParameter, Positions, Tensor,
                            TensorPointer)

# NumPy has no bfloat16: bit patterns are uint16.
DTYPES = {"float32": 0, "float64": 1, "float16": 2, "uint16": 3, "int8": 4, "uint8": 5,
          "int32": 6, "int64": 7}
DROPPED_PROBABILITIES = 1
CAUSAL, SCALE_GIVEN, STRICT, WINDOW = 1, 2, 4, 8
NO_QKV_BIAS, NO_OUT_BIAS, BIAS_KV, ZERO_ATTN, SINKS, ROPE, QK_NORM = 1, 2, 4, 8, 16, 32, 64
MultiheadError = multihead.Error
LIBRARY = _library.library
check = _library.check
isa_available = multihead.isa_available
AVAILABLE = [isa for isa in ("portable", "avx2", "avx512") if isa_available(isa)]


def tensor(array):
    """The library's view of an array, or None for None. Keep the array alive."""
    if array is None:
        return None
    if array.ndim > MAX_DIMS or array.dtype.name not in DTYPES:
        raise TypeError(f"no tensor for {array.ndim} dimensions of {array.dtype}")
    if any(stride % array.itemsize for stride in array.strides):
        raise TypeError("a stride is not a whole number of elements")
    strides = [stride // array.itemsize for stride in array.strides]
    pad = [0] * (MAX_DIMS - array.ndim)
    return Tensor(array.ctypes.data, DTYPES[array.dtype.name], array.ndim,
                  (C.c_int64 * MAX_DIMS)(*array.shape, *pad),
                  (C.c_int64 * MAX_DIMS)(*strides, *pad))


def _pointer(array):
    return None if array is None else C.pointer(tensor(array))


def _int64s(values):
    return None if values is None else (C.c_int64 * len(values))(*[int(x) for x in values])


class Context(multihead.Context):
    """Threads, scratch memory and instruction set."""

    def __init__(self, num_threads=0, isa="auto"):
        super().__init__(num_threads, isa)


_default = []


def default_context():
    if not _default:
        _default.append(Context())
    return _default[0]


def attention_desc(scale=None, causal=False, q_offset=0, key_lengths=None, keep_mask=None,
                   bias=None, path="auto", strict=False, window=None, **fields):
    """mha_attention_desc from keywords. q_offset is one number, or one per sequence; window is
    (left_keys, right_keys). `fields` are other fields by name: a number, or an array of
    attention.h's dtype. The returned struct keeps the arrays alive."""
    flags = CAUSAL * bool(causal) | SCALE_GIVEN * (scale is not None) | STRICT * bool(strict)
    flags |= WINDOW * (window is not None)
    each = np.ndim(q_offset) > 0
    if keep_mask is not None and keep_mask.dtype == np.bool_:
        keep_mask = keep_mask.view(np.uint8)
    desc = AttentionDesc(C.sizeof(AttentionDesc), flags, PATHS[path], scale or 0.0,
                         0 if each else int(q_offset), _int64s(q_offset if each else None),
                         _int64s(key_lengths), _pointer(keep_mask), _pointer(bias))
    desc.left_keys, desc.right_keys = window or (0, 0)
    for name, value in fields.items():
        setattr(desc, name, _pointer(value) if isinstance(value, np.ndarray) else value)
    desc.arrays = (keep_mask, bias, fields)
    return desc


def _output_shapes(q, k, heads, rows, offsets, top):
    """The shapes of mha_attention_outputs by name; largest_key and top_keys are i64."""
    batch, all_heads, queries = q.shape[:3]
    row = (batch, all_heads, queries)
    chosen = (batch, all_heads if heads is None else len(heads),
              queries if rows is None else len(rows), k.shape[2])
    shapes = {name: row for name in ("lse", "entropy", "largest_weight", "largest_key",
                                     "first_token", "diagonal")}
    shapes |= {"probabilities": chosen, "scores": chosen,
               "average_probabilities": (batch, queries, k.shape[2]),
               "column_sums": (batch, all_heads, k.shape[2]),
               "offset_mass": (*row, len(offsets or ())),
               "top_keys": (*row, top), "top_weights": (*row, top)}
    return shapes


def attention(q, k, v, outputs=(), context=None, heads=None, rows=None, offsets=None, top=1,
              score_stage="raw", dropped=False, o_type=np.float32, **keywords):
    """Attention of arrays [B,H,T,D], with the keywords of attention_desc(). Returns o of o_type, or
    (o, {name: array}) if `outputs` names fields of mha_attention_outputs. heads and rows select
    those of probabilities and scores; score_stage is raw, capped or biased; dropped selects
    probabilities after dropout; top is the K of top_keys and top_weights. Ragged batches are not
    supported."""
    context = context or default_context()
    desc = attention_desc(**keywords)
    unset = 0x7FFF if o_type == np.uint16 else np.nan
    o = np.full((*q.shape[:3], v.shape[3]), unset, o_type)
    shapes = _output_shapes(q, k, heads, rows, offsets, top)
    extra = {}
    wanted = AttentionOutputs(C.sizeof(AttentionOutputs), DROPPED_PROBABILITIES * bool(dropped))
    for name in outputs:
        keys = name in ("largest_key", "top_keys")
        extra[name] = (np.full(shapes[name], -9, np.int64) if keys
                       else np.full(shapes[name], np.nan, np.float32))
        setattr(wanted, name, _pointer(extra[name]))
    wanted.score_stage = SCORE_STAGES[score_stage]
    for name, chosen in (("heads", heads), ("rows", rows), ("offsets", offsets)):
        if chosen is not None:
            setattr(wanted, name, _int64s(chosen))
            setattr(wanted, name + "_count", len(chosen))
    check(LIBRARY.mha_attention_forward(context.handle, C.byref(desc), C.byref(tensor(q)),
                                        C.byref(tensor(k)), C.byref(tensor(v)),
                                        C.byref(tensor(o)), C.byref(wanted)))
    return (o, extra) if outputs else o


def explain(q, k, v, context=None, **keywords):
    """The plan of the same call, as AttentionPlan."""
    plan = AttentionPlan()
    desc = attention_desc(**keywords)
    check(LIBRARY.mha_attention_explain((context or default_context()).handle, C.byref(desc),
                                        C.byref(tensor(q)), C.byref(tensor(k)),
                                        C.byref(tensor(v)), None, None, C.byref(plan)))
    return plan


class Module:
    """mha_module; keywords are the fields of mha_module_desc."""

    def __init__(self, embed_dim, num_heads, qkv_bias=True, out_bias=True, bias_kv=False,
                 zero_attn=False, sinks=False, rope=False, norm=False, context=None, **sizes):
        self.context = context or default_context()
        flags = NO_QKV_BIAS * (not qkv_bias) | NO_OUT_BIAS * (not out_bias)
        flags |= BIAS_KV * bool(bias_kv) | ZERO_ATTN * bool(zero_attn) | SINKS * bool(sinks)
        flags |= ROPE * bool(rope) | QK_NORM * bool(norm)
        self.extra_keys = bool(bias_kv) + bool(zero_attn)
        desc = ModuleDesc(flags=flags, embed_dim=embed_dim,
                          num_heads=num_heads, **sizes)
        self.handle = C.c_void_p()
        check(LIBRARY.mha_module_create(self.context.handle, C.byref(desc), C.byref(self.handle)))
        self.desc = ModuleDesc()
        LIBRARY.mha_module_describe(self.handle, C.byref(self.desc))

    def set(self, name, value):
        """Set one parameter by its PyTorch name from an array or a torch tensor."""
        if hasattr(value, "detach"):
            value = value.detach().numpy()
        value = value.astype(np.float32, copy=False)
        check(LIBRARY.mha_module_set_parameter(self.handle, name.encode(),
                                               C.byref(tensor(value))))

    def load_state_dict(self, parameters):
        for name, value in parameters.items():
            self.set(name, value)

    def parameter_shapes(self):
        """{name: shape} in the order of a state_dict."""
        found, shapes = ModuleParameter(), {}
        while LIBRARY.mha_module_parameter_at(self.handle, len(shapes), C.byref(found)):
            shapes[found.name.decode()] = tuple(found.shape[:found.ndim])
        return shapes

    def state_dict(self):
        """{name: array}, the inverse of load_state_dict()."""
        result = {}
        for name, shape in self.parameter_shapes().items():
            result[name] = np.full(shape, np.nan, np.float32)
            check(LIBRARY.mha_module_get_parameter(self.handle, name.encode(),
                                                   C.byref(tensor(result[name]))))
        return result

    def _output_shapes(self, batch, length, keys):
        d = self.desc
        columns = keys + self.extra_keys
        return {"probabilities": (batch, d.num_heads, length, columns),
                "average_probabilities": (batch, length, columns),
                "q": (batch, d.num_heads, length, d.head_dim),
                "k": (batch, d.kv_heads, keys, d.head_dim),
                "v": (batch, d.kv_heads, keys, d.value_head_dim),
                "heads": (batch, d.num_heads, length, d.value_head_dim),
                "lse": (batch, d.num_heads, length)}

    def prepared(self, query, key=None, value=None, outputs=(), context=None, **keywords):
        """A function that makes the call, and the arrays that it fills: out [B,T,E] and {name: array}. The
        default of key is query, and the default of value is key. All may omit the batch axis."""
        key = query if key is None else key
        value = key if value is None else value
        desc = attention_desc(**keywords)
        batch = query.shape[0] if query.ndim == 3 else 1
        shapes = self._output_shapes(batch, query.shape[-2], key.shape[-2])
        if query.ndim == 2:
            shapes = {name: shape[1:] for name, shape in shapes.items()}
        extra = {name: np.full(shapes[name], np.nan, np.float32) for name in outputs}
        wanted = ModuleOutputs(**{name: _pointer(array) for name, array in extra.items()})
        out = np.full((*query.shape[:-1], self.desc.embed_dim), np.nan, np.float32)
        call = ModuleCall(attention=C.pointer(desc), query=_pointer(query), key=_pointer(key),
                          value=_pointer(value), out=_pointer(out), outputs=C.pointer(wanted))
        handle = (context or self.context).handle
        return lambda: check(LIBRARY.mha_module_run(handle, self.handle, C.byref(call))), out, extra

    def __call__(self, *inputs, outputs=(), **keywords):
        """out, or (out, {name: array}), as for prepared()."""
        run, out, extra = self.prepared(*inputs, outputs=outputs, **keywords)
        run()
        return (out, extra) if outputs else out

    def step(self, cache, tokens, counts=None, positions=None, context=None, **keywords):
        """out [B,n,E] of n new tokens, which are appended to the cache; attention is causal.
        `positions` is one start for all sequences, by default after the cached tokens."""
        desc = attention_desc(**keywords)
        out = np.full((*tokens.shape[:-1], self.desc.embed_dim), np.nan, np.float32)
        where = None if positions is None else Positions(start=positions)
        pointer = C.pointer(where) if where else None
        call = ModuleCall(attention=C.pointer(desc),
                          query=_pointer(tokens), key=_pointer(tokens), value=_pointer(tokens),
                          out=_pointer(out), query_positions=pointer, key_positions=pointer,
                          cache=cache.handle, counts=_int64s(counts))
        check(LIBRARY.mha_module_run((context or self.context).handle, self.handle,
                                     C.byref(call)))
        return out

    def __del__(self):
        if getattr(self, "handle", None):
            LIBRARY.mha_module_destroy(self.handle)
            self.handle = None


class Cache:
    """mha_kv_cache of a module."""

    def __init__(self, module, batch, capacity):
        self.handle = C.c_void_p()
        self.batch = batch
        check(LIBRARY.mha_module_cache_create(module.context.handle, module.handle,
                                              C.c_int64(batch), C.c_int64(capacity),
                                              C.byref(self.handle)))

    @property
    def lengths(self):
        return LIBRARY.mha_kv_cache_lengths(self.handle)[:self.batch]

    def __del__(self):
        if getattr(self, "handle", None):
            LIBRARY.mha_kv_cache_destroy(self.handle)
            self.handle = None
