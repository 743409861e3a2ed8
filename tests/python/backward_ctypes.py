"""mha_attention_backward() over multihead_ctypes.py, for tests and measurements only."""
import ctypes as C

import numpy as np

import multihead_ctypes as mha

NAMES = ("q", "k", "v", "bias", "alibi_slopes", "t5_table", "shaw_keys", "shaw_values",
         "sink_logits", "gates", "scale")


class AttentionGradients(C.Structure):
    c_name = "mha_attention_gradients"
    _fields_ = [("struct_size", C.c_uint32), ("flags", C.c_uint32)] + [
        (name, mha.TensorPointer) for name in NAMES]


STRUCTS = [AttentionGradients]


def attention_backward(q, k, v, o, lse, o_gradient, wanted=("q", "k", "v"), context=None,
                       into=None, **keywords):
    """{name: array} of the wanted gradients; keywords as attention_desc() takes them, those of the
    forward call. into: arrays to write to instead of new ones."""
    context = context or mha.default_context()
    desc = mha.attention_desc(**keywords)
    shapes = {"q": q.shape, "k": k.shape, "v": v.shape, "scale": ()} | {
        name: value.shape for name, value in keywords.items() if isinstance(value, np.ndarray)}
    found = into or {name: np.full(shapes[name], np.nan, np.float32) for name in wanted}
    gradients = AttentionGradients(C.sizeof(AttentionGradients), 0)
    for name, array in found.items():
        setattr(gradients, name, C.pointer(mha.tensor(array)))
    mha.check(mha.LIBRARY.mha_attention_backward(
        context.handle, C.byref(desc), *(C.byref(mha.tensor(x)) for x in
                                         (q, k, v, o, lse, o_gradient)), C.byref(gradients)))
    return found
