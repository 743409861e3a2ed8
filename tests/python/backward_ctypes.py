"""mha_attention_backward() and mha_module_backward() with multihead_ctypes.py, only for tests and
measurements."""
import ctypes as C

import numpy as np

from multihead._abi import AttentionBackwardCall, AttentionGradients, ModuleGradients
import multihead_ctypes as mha

NAMES = ("q", "k", "v", "bias", "alibi_slopes", "t5_table", "shaw_keys", "shaw_values",
         "sink_logits", "gates", "scale")
ADD = 1
KEPT = ("q", "k", "v", "heads", "lse")


def prepared_backward(q, k, v, o, lse, o_gradient, wanted=("q", "k", "v"), context=None, into=None,
                      **keywords):
    """A function that makes the call, and the {name: array} of the wanted gradients that it fills. Keywords
    are those of attention_desc() in the forward call. The gradients are written to the arrays of `into`, if
    given."""
    context = context or mha.default_context()
    desc = mha.attention_desc(**keywords)
    shapes = {"q": q.shape, "k": k.shape, "v": v.shape, "scale": ()} | {
        name: value.shape for name, value in keywords.items() if isinstance(value, np.ndarray)}
    found = into or {name: np.full(shapes[name], np.nan, np.float32) for name in wanted}
    gradients = AttentionGradients(C.sizeof(AttentionGradients), 0)
    for name, array in found.items():
        setattr(gradients, name, C.pointer(mha.tensor(array)))
    tensors = {"q": q, "k": k, "v": v, "o": o, "lse": lse, "o_gradient": o_gradient}
    call = AttentionBackwardCall(attention=C.pointer(desc), gradients=C.pointer(gradients),
                                 **{name: C.pointer(mha.tensor(x)) for name, x in tensors.items()})
    return lambda: mha.check(mha.LIBRARY.mha_attention_backward(context.handle, C.byref(call))), found


def attention_backward(*tensors, **keywords):
    """The gradients, as for prepared_backward()."""
    run, found = prepared_backward(*tensors, **keywords)
    run()
    return found


def module_backward(module, query, key, value, kept, out_gradient, attention=(), context=None,
                    into=None, flags=0, **keywords):
    """{name: array} of the gradients of the inputs and of every parameter. The sums begin with
    zeros or with the arrays of `into`. `kept` has the forward call's outputs of KEPT, `attention`
    is {name: array} for mha_attention_gradients, and keywords are those of attention_desc() in the
    forward call."""
    context = context or module.context
    shapes = {"query": query.shape, "key": key.shape, "value": value.shape}
    names = module.parameter_shapes()
    found = {name: np.zeros(shape, np.float32) for name, shape in (shapes | names).items()}
    found |= into or {}

    def pointer(array):
        return C.pointer(mha.tensor(array))

    desc = mha.attention_desc(**keywords)
    outputs = mha.ModuleOutputs(**{name: pointer(kept[name]) for name in KEPT})
    call = mha.ModuleCall(attention=C.pointer(desc),
                          query=pointer(query), key=pointer(key), value=pointer(value),
                          outputs=C.pointer(outputs))
    parameters = (mha.TensorPointer * len(names))(*(pointer(found[name]) for name in names))
    inner = AttentionGradients(C.sizeof(AttentionGradients), 0,
                               **{name: pointer(array) for name, array in dict(attention).items()})
    gradients = ModuleGradients(
        flags=flags, parameters=parameters,
        parameters_count=len(names), attention=C.pointer(inner),
        **{name: pointer(found[name]) for name in shapes})
    mha.check(mha.LIBRARY.mha_module_backward(context.handle, module.handle, C.byref(call),
                                              C.byref(mha.tensor(out_gradient)),
                                              C.byref(gradients)))
    return found
