"""The gradients of attention."""
from __future__ import annotations

import ctypes as C
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from . import _abi, _tensor
from ._call import REAL, AttentionOptions, Inputs, Prepared, finish, prepared, run, truth, with_options
from ._library import Context, library

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclass
class AttentionGradients:
    """Gradients, f32, each with the shape of its input; None if not requested."""

    q: Any = None
    k: Any = None
    v: Any = None
    bias: Any = None
    alibi_slopes: Any = None
    t5_table: Any = None
    shaw_keys: Any = None
    shaw_values: Any = None
    sink_logits: Any = None
    gates: Any = None
    scale: Any = None
    """Of shape []."""


_TYPES = {"q": REAL, "k": REAL, "v": REAL, "o": REAL, "lse": ("f32",), "o_gradient": REAL,
          "lse_gradient": ("f32",), "probabilities_gradient": ("f32",),
          "average_probabilities_gradient": ("f32",)}
GRADIENTS = tuple(field.name for field in fields(AttentionGradients))


class _Backward:
    """A prepared backward call. Slots: the inputs, options, gradients."""

    INPUTS = ("q", "k", "v", "o", "lse", "o_gradient")

    def __init__(self, key: Sequence[Any], wanted: Sequence[str], accumulate: bool, dropped: bool,
                 given: Mapping[str, _tensor.Layout]) -> None:
        call = self.prepared = Prepared()
        gradients = self.gradients = _abi.AttentionGradients()
        gradients.flags = (_abi.GRADIENT_FLAGS["accumulate"] * truth(accumulate, "accumulate")
                           | _abi.GRADIENT_FLAGS["dropped_probabilities"] * truth(dropped, "dropped_probabilities"))
        count = 0
        for count, (name, layout) in enumerate(key):
            if name not in _TYPES:
                break
            tensor = call.add(name, layout, _TYPES[name], last=_TYPES[name] is REAL)
            if name not in self.INPUTS:
                setattr(gradients, name, C.pointer(tensor))
        else:
            count = len(key)
        call.check_axes("q", "k", "v", "o", "o_gradient")
        call.take(key[count:])
        self.shapes: list[tuple[str, tuple[int, ...]]] = []
        for name in wanted:
            if name not in GRADIENTS:
                raise ValueError(f"wanted: {name!r} is not one of {', '.join(GRADIENTS)}")
            if name != "scale" and name not in call.tensors:
                raise ValueError(f"wanted: {name} is not an input of this call")
            shape = () if name == "scale" else call.shape(name)
            layout = given.get(name) or _tensor.contiguous(shape, "f32")
            setattr(gradients, name, C.pointer(call.add(f"gradient of {name}", layout, ("f32",))))
            self.shapes.append((name, shape))
        self.call = _abi.AttentionBackwardCall(
            attention=C.pointer(call.desc), gradients=C.pointer(gradients),
            **{name: C.pointer(call.tensors[name]) for name in self.INPUTS})
        self.arguments = (C.byref(self.call),)


@with_options
def attention_backward(q: Any, k: Any, v: Any, o: Any, lse: Any, o_gradient: Any, *,
                       wanted: str | Sequence[str] | Mapping[str, Any] = ("q", "k", "v"),
                       accumulate: bool = False, lse_gradient: Any = None,
                       probabilities_gradient: Any = None,
                       average_probabilities_gradient: Any = None,
                       dropped_probabilities: bool = False, context: Context | None = None,
                       **options: Unpack[AttentionOptions]) -> AttentionGradients:
    """The gradients of a loss with respect to the inputs of attention, given its gradient o_gradient with respect to o.

        o [B,H,T,Dv], lse [B,H,T]    from `attention(..., outputs="lse")` with the same options
        o_gradient [B,H,T,Dv]        last axis contiguous
        wanted                       names of `AttentionGradients`, or {name: array} to write to
        accumulate                   add to these arrays instead
        lse_gradient [B,H,T], probabilities_gradient [B,H,T,S],
        average_probabilities_gradient [B,T,S]
                                     float32, if the loss depends on these outputs too;
                                 dropped_probabilities as in the call of `attention`
        options                      those of the call of `attention`, including dropout_seed

    Returns `AttentionGradients`: float32, with the shapes of the inputs; a broadcast bias has a gradient of its own
    shape. p is recomputed from lse, so memory never holds a T x S array. The header backward.h has the formulas.
    compute="bf16" is not supported.

    Raises the errors of `attention`, and ValueError for the gradient of an input that is not given.

        >>> o, extra = attention(q, k, v, causal=True, outputs="lse")
        >>> g = attention_backward(q, k, v, o, extra.lse, o_gradient, causal=True)
        >>> g.q.shape == q.shape
        True
    """
    kind = _tensor.kind_of(q, "q")
    inputs = Inputs()
    for name, array in zip(_TYPES, (q, k, v, o, lse, o_gradient, lse_gradient,
                                    probabilities_gradient, average_probabilities_gradient)):
        if array is not None or name in _Backward.INPUTS:
            inputs.array(name, array)
    inputs.options(options)
    if isinstance(wanted, str):
        wanted = (wanted,)
    given = wanted if isinstance(wanted, Mapping) else {}
    if accumulate and not given:
        raise ValueError("accumulate: pass the arrays to add to, wanted={'q': array, ...}")
    looked = {name: _tensor.look_writable(array, f"wanted[{name!r}]")[0]
              for name, array in given.items()}
    inner = tuple(inputs.key)
    key = ("backward", inner, tuple(wanted), accumulate, dropped_probabilities, *looked.values())
    call = prepared(key) or _Backward(inner, tuple(wanted), accumulate, dropped_probabilities,
                                      looked)
    found = {name: given[name] if name in given else kind.empty(shape, "f32")
             for name, shape in call.shapes}
    inputs.values += [_tensor.look(array, name)[1] for name, array in found.items()]
    for slot, value in zip(call.prepared.slots, inputs.values):
        slot.value = value
    status = run(library.mha_attention_backward, context, inputs, call.arguments)
    finish(key, call, inputs, status)
    return AttentionGradients(**found)
