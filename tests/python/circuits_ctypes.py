"""libmultihead-circuits with multihead_ctypes.py, only for tests, because the Python package does
not include it.

    found = circuits.circuits(net, desc, directions=4)    # arrays by the fields of mha_circuits
    ids, values = circuits.tokens(net, directions, side="embedding", most=10)
"""
import ctypes as C

import numpy as np

import multihead_ctypes as mha
from multihead._abi import Circuits, CircuitsDesc, DirectionDesc, LayerDesc, Library  # noqa: F401

NORMED_TOKENS = 1
SIDES = {"embedding": 0, "unembedding": 1}
VECTORS = ("queries", "keys", "reads", "writes")


def library():
    """The library, or None if the build disabled it."""
    path = mha.LIBRARY_DIR / "libmultihead-circuits.so"
    return Library(str(path)) if path.exists() else None


def circuits(net, desc, context=None, first_offset=0, last_offset=0, directions=1, flags=0, heads=None):
    """{field: array}, with NaN for omitted heads."""
    L, H, D, E = desc.num_layers, desc.num_heads, desc.head_dim, desc.embed_dim
    found = {name: np.full((L, H, D), np.nan) for name in ("qk_values", "ov_values")}
    found |= {name: np.full((L, H, directions, E), np.nan, np.float32) for name in VECTORS}
    found |= {name: np.full((L, H), np.nan) for name in ("copying", "matching")}
    asked = CircuitsDesc(C.sizeof(CircuitsDesc), flags, first_offset, last_offset, directions,
                         None if heads is None else heads.ctypes.data)
    out = Circuits(**{name: C.cast(array.ctypes.data, dict(Circuits._fields_)[name])
                      for name, array in found.items()})
    mha.check(library().mha_transformer_circuits((context or mha.default_context()).handle, net, C.byref(asked),
                                                 C.byref(out)))
    return found


def tokens(net, directions, most, side="embedding", context=None, flags=0):
    """ids and values [M,2,N] of directions [M,E]."""
    directions = np.ascontiguousarray(directions, np.float32)
    ids = np.full((len(directions), 2, most), -1, np.int32)
    values = np.full(ids.shape, np.nan, np.float32)
    asked = DirectionDesc(C.sizeof(DirectionDesc), flags, SIDES[side], 0, len(directions), most)
    mha.check(library().mha_direction_tokens(
        (context or mha.default_context()).handle, net, C.byref(asked), directions.ctypes.data_as(C.c_void_p), ids.ctypes.data_as(C.c_void_p),
        values.ctypes.data_as(C.c_void_p)))
    return ids, values
