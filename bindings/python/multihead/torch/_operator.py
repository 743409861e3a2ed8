"""The operators of torch: multihead::attention and multihead::attention_backward.

Both take the arguments of `multihead.attention` in one order: differentiable tensors, other tensors, numbers. Under
autograd the first calls the second; torch.compile and export see two operators with known shapes. The kernels are
Python over the C library, without copies.

The dispatcher is the largest cost of a call. The autograd kernel therefore calls the CPU kernel
directly if no mode, tensor subclass or transform is active.
"""
from __future__ import annotations

import ctypes as C
import os
import threading
from typing import Any

import torch
from torch.autograd import forward_ad

from .. import _abi, _library, _tensor
from .._call import REAL, Prepared
from .._library import Context, check, default_context, library, thread

# ---- Arguments --------------------------------------------------------------------------------------

MAIN = ("query", "key", "value")
SMOOTH = ("bias", "alibi_slopes", "t5_table", "shaw_keys", "shaw_values", "sink_logits", "gates")
"""Optional tensors with gradients."""
NUMBERS = ("key_lengths", "key_begins", "q_offsets", "query_starts", "key_starts")
"""Tensors of int64 with one number per sequence."""
FIXED = ("keep_mask", "global_keys", "global_queries", "query_documents", "key_documents",
         "keep_blocks", *NUMBERS, "dropout_seed")
"""Optional tensors without gradients."""
TENSORS = (*SMOOTH, *FIXED)

# The results of an operator besides o: bits of its argument `outputs`, in this order.
LSE, PROBABILITIES, AVERAGE, DROPPED = 1, 2, 4, 8

_OPTIONAL = "".join(f", Tensor? {name}=None" for name in TENSORS)
_OPTIONS = ("*, bool causal=False, float? scale=None, SymInt q_offset=0, SymInt[]? window=None, "
            "SymInt sink_keys=0, float softcap=0.0, float dropout=0.0, SymInt t5_max_distance=0, "
            "bool t5_one_sided=False, SymInt block_queries=0, SymInt block_keys=0, int outputs=0")

_registry = torch.library.Library("multihead", "DEF")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides)
_registry.define("attention(Tensor query, Tensor key, Tensor value"
                 f"{_OPTIONAL}, {_OPTIONS}) -> Tensor[]", tags=_TAGS)
_registry.define("attention_backward(Tensor query, Tensor key, Tensor value, Tensor o, Tensor lse, "
                 "Tensor? o_gradient=None, Tensor? lse_gradient=None, "
                 "Tensor? probabilities_gradient=None, Tensor? average_gradient=None"
                 f"{_OPTIONAL}, {_OPTIONS}, bool[] wanted) -> Tensor[]", tags=_TAGS)
attention = torch.ops.multihead.attention.default
attention_backward = torch.ops.multihead.attention_backward.default

# ---- Threads ----------------------------------------------------------------------------------------


class _Contexts(threading.local):
    """The context of a thread, with torch's number of threads."""

    def __init__(self) -> None:
        self.count = 0
        self.context: Context | None = None


_contexts = _Contexts()
_from_environment = "MHA_THREADS" in os.environ


def _context() -> Context:
    """The number of threads of multihead.set_threads() or MHA_THREADS, or
    torch.get_num_threads()."""
    if _from_environment or _library._default_threads:
        return default_context()
    count = torch.get_num_threads()
    if _contexts.context is None or _contexts.count != count:
        _contexts.context, _contexts.count = Context(count), count
    return _contexts.context


# ---- Memory of results ------------------------------------------------------------------------------


def _empty_output(query: torch.Tensor, size: int) -> torch.Tensor:
    """[B,H,T,size] in memory as [B,T,H,size], or [T,B,H,size] if the query has that layout, so that joining the heads
    copies nothing."""
    batch, heads, queries, _ = query.shape
    if batch > 1 and queries > 1 and query.stride(0) < query.stride(2):
        return query.new_empty((queries, batch, heads, size)).permute(1, 2, 0, 3)
    return query.new_empty((batch, queries, heads, size)).transpose(1, 2)


def _empty_gradient(of: torch.Tensor) -> torch.Tensor:
    """f32 with the shape and memory order of an input; the last axis is contiguous."""
    like = torch.empty_like(of, dtype=torch.float32)
    if like.dim() and like.stride(-1) != 1:
        return torch.empty(of.shape, dtype=torch.float32, device=of.device)
    return like


def _empty_outputs(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                   outputs: int) -> list[torch.Tensor]:
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    found = [_empty_output(query, value.shape[3])]
    for bit, shape in ((LSE, (batch, heads, queries)),
                       (PROBABILITIES, (batch, heads, queries, keys)),
                       (AVERAGE, (batch, queries, keys))):
        if outputs & bit:
            found.append(query.new_empty(shape, dtype=torch.float32))
    return found


# ---- Kernels of the CPU -----------------------------------------------------------------------------


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.dtype, tensor.shape, tensor.stride()


_NAMES = {"q": "query", "k": "key", "v": "value", "o": "out"}


class _Call:
    """A prepared call: structs, and the slots for addresses and numbers."""

    def __init__(self, names: tuple[str, ...], tensors: tuple[Any, ...], rest: tuple[Any, ...],
                 options: dict[str, Any], results: tuple[tuple[str, torch.Tensor], ...]) -> None:
        for name, tensor in zip(MAIN, tensors):
            _tensor.kind_of(tensor, name)  # registers torch's element types
            _check(tensor, name)
        call = self.prepared = Prepared()
        for name, tensor in zip(names, tensors):
            call.add(name, _layout(tensor),
                     ("f32",) if name.startswith(("lse", "probabilities", "average")) else REAL)
        call.tensors.update(q=call.tensors["query"], k=call.tensors["key"],
                            v=call.tensors["value"])
        call.check_axes("query", "key", "value")
        given = [(name, _entry(name, tensor))
                 for name, tensor in zip(TENSORS, rest) if tensor is not None]
        call.take([*given, *_numbers(options)])
        for name, result in results:
            call.add(name, _layout(result),
                     REAL if name == "o" else ("f32",))

    def pointer(self, name: str) -> Any:
        found = self.prepared.tensors.get(name)
        return None if found is None else C.pointer(found)

    def run(self, function: Any, arguments: tuple[Any, ...], values: list[Any]) -> None:
        for slot, value in zip(self.prepared.slots, values, strict=True):
            slot.value = value
        with _context() as handle:
            status = function(handle, *arguments)
        if status:
            check(status, _NAMES)


def check_here(name: str, x: torch.Tensor) -> None:
    """Reject tensors of other devices."""
    if not x.is_cpu:
        raise NotImplementedError(f"{name}: multihead computes in the CPU's memory, not on {x.device}: pass "
                                  f"{name}.cpu(), or move the whole model by model.to(\"cpu\")")


def check_kind(name: str, x: torch.Tensor) -> None:
    """Reject tensors that are not one array in the CPU's memory: other devices ("meta" tensors have shapes and pass),
    nested, sparse and quantised tensors, and classes that redefine torch's functions, which this package does not
    use."""
    if not x.is_cpu and not x.is_meta:
        check_here(name, x)
    if x.is_nested:
        raise TypeError(f"{name}: a nested tensor; pass its sequences one after the other, with query_starts "
                        "and key_starts, or use multihead.torch.MultiheadAttention")
    if x.layout is not torch.strided:
        raise NotImplementedError(f"{name}: multihead computes on dense tensors in the CPU's memory, not on "
                                  f"{x.layout}: pass {name}.to_dense()")
    if x.is_quantized:
        raise TypeError(f"{name}: {x.dtype} is not supported: pass {name}.dequantize()")
    kind = type(x)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        _tensor.check_class(kind, name, dispatched=True)


def _check(tensor: torch.Tensor, name: str) -> None:
    """The checks that the dispatcher does not make."""
    if tensor.dtype is torch.float64:
        raise TypeError(f"{name}: torch.float64 is not supported: use {name}.float(), or "
                        "torch.nn.functional.scaled_dot_product_attention for double precision")
    if tensor.dim() == 4 and tensor.stride(3) != 1 and tensor.shape[3] > 1 and tensor.numel():
        raise ValueError(f"{name}: the last axis is not contiguous, strides {tensor.stride()}: "
                         f"pass {name}.contiguous()")


def _entry(name: str, tensor: torch.Tensor) -> Any:
    """A tensor as Prepared.take() expects it."""
    if name not in (*NUMBERS, "dropout_seed"):
        return _layout(tensor)
    if tensor.dtype is not torch.int64 or not tensor.is_contiguous():
        raise TypeError(f"{name}: {tensor.dtype} with strides {tensor.stride()}; a contiguous tensor "
                        "of torch.int64 is expected")
    if name != "dropout_seed" and tensor.dim() != 1:
        raise ValueError(f"{name}: {tensor.dim()} dimensions, one number for each sequence is expected")
    return tensor.numel()


_SAME = ("causal", "sink_keys", "softcap", "dropout", "t5_max_distance", "t5_one_sided",
         "block_queries", "block_keys", "scale")


def _numbers(options: dict[str, Any]) -> list[tuple[str, Any]]:
    """Options that are fixed for every call of a layout."""
    found = [(name, options[name]) for name in _SAME if options.get(name)]
    if options.get("scale") == 0:
        found.append(("scale", 0.0))
    if options.get("q_offset"):
        found.append(("q_offset", None))
    if (window := options.get("window")) is not None:
        found.append(("window", tuple(window)))
    return found


def _values(tensors: tuple[Any, ...], rest: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
    """The values for the slots of a call: addresses, the seed, the offset."""
    values = [tensor.data_ptr() for tensor in tensors]
    for name, tensor in zip(TENSORS, rest):
        if tensor is not None:
            values.append(tensor.data_ptr() if name != "dropout_seed" else tensor.item())
    if options.get("q_offset"):
        values.append(options["q_offset"])
    return values


def _key(kind: str, tensors: tuple[Any, ...], rest: tuple[Any, ...],
         options: dict[str, Any]) -> tuple[Any, ...]:
    """The key of a prepared call. An offset may change from call to call."""
    key: list[Any] = [kind]
    for x in tensors:
        key += (x.dtype, x.shape, x.stride())
    for x in rest:
        key.append(x is not None and _layout(x))
    for name, value in options.items():
        key += (name, True if name == "q_offset" and value
                else tuple(value) if name == "window" and value is not None else value)
    return tuple(key)


class _Forward(_Call):
    NAMES = {LSE: "lse", PROBABILITIES: "probabilities", AVERAGE: "average_probabilities"}

    def __init__(self, tensors: tuple[Any, ...], rest: tuple[Any, ...], options: dict[str, Any],
                 results: list[torch.Tensor]) -> None:
        outputs = options.get("outputs", 0)
        names = ["o", *(name for bit, name in self.NAMES.items() if outputs & bit)]
        super().__init__(MAIN, tensors, rest, options, tuple(zip(names, results)))
        call = self.prepared
        wanted = _abi.AttentionOutputs()
        wanted.flags = _abi.OUTPUT_FLAGS["dropped_probabilities"] * bool(outputs & DROPPED)
        for name in names[1:]:
            setattr(wanted, name, self.pointer(name))
        self.arguments = (C.byref(call.desc),
                          *(C.byref(call.tensors[name]) for name in (*MAIN, "o")),
                          C.byref(wanted) if names[1:] else None)


def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
            **options: Any) -> list[torch.Tensor]:
    """The kernel of multihead::attention."""
    tensors = (query, key, value)
    if not query.dim() == key.dim() == value.dim() == 4:
        _four_axes(tensors)
    results = _empty_outputs(query, key, value, options.get("outputs", 0))
    name = _key("torch", tensors, rest, options)
    call = thread.calls.pop(name, None) or _Forward(tensors, rest, options, results)
    values = _values(tensors, rest, options)
    values += [result.data_ptr() for result in results]
    call.run(library.mha_attention_forward, call.arguments, values)
    _keep(name, call)
    return results


def _four_axes(tensors: tuple[torch.Tensor, ...]) -> None:
    for name, tensor in zip(MAIN, tensors):
        if tensor.dim() != 4:
            raise ValueError(f"{name}: {tensor.dim()} dimensions, expected 4, [batch, heads, length, "
                             "size]")


def _keep(name: tuple[Any, ...], call: _Call) -> None:
    if len(thread.calls) >= 256:
        thread.calls.clear()
    thread.calls[name] = call


_GRADIENTS = ("o_gradient", "lse_gradient", "probabilities_gradient", "average_gradient")
_FIELDS = {"query": "q", "key": "k", "value": "v"}


class _Backward(_Call):
    def __init__(self, names: tuple[str, ...], tensors: tuple[Any, ...], rest: tuple[Any, ...],
                 options: dict[str, Any], results: list[tuple[str, torch.Tensor]]) -> None:
        super().__init__(names, tensors, rest, options,
                         tuple((f"gradient of {name}", result) for name, result in results))
        call = self.prepared
        gradients = _abi.AttentionGradients()
        if options.get("outputs", 0) & DROPPED:
            gradients.flags = _abi.GRADIENT_FLAGS["dropped_probabilities"]
        for name, _ in results:
            setattr(gradients, _FIELDS.get(name, name), self.pointer(f"gradient of {name}"))
        gradients.lse_gradient = self.pointer("lse_gradient")
        gradients.probabilities_gradient = self.pointer("probabilities_gradient")
        gradients.average_probabilities_gradient = self.pointer("average_gradient")
        self.call = _abi.AttentionBackwardCall(
            attention=C.pointer(call.desc), gradients=C.pointer(gradients),
            **{_FIELDS.get(name, name): C.pointer(call.tensors[name])
               for name in (*MAIN, "o", "lse", "o_gradient")})
        self.arguments = (C.byref(self.call),)


def backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, o: torch.Tensor,
             lse: torch.Tensor, *optional: Any, wanted: list[bool],
             **options: Any) -> list[torch.Tensor]:
    """The kernel of multihead::attention_backward: the wanted gradients of MAIN and SMOOTH."""
    found = dict(zip(_GRADIENTS, optional))
    rest = optional[len(_GRADIENTS):]
    o_gradient = found.get("o_gradient")
    if o_gradient is None:
        o_gradient = o.new_zeros(o.shape[3]).expand(o.shape)
    elif o_gradient.stride(3) != 1:
        o_gradient = o_gradient.contiguous()
    found["o_gradient"] = o_gradient
    names = [*MAIN, "o", "lse", *(name for name, tensor in found.items() if tensor is not None)]
    tensors = (query, key, value, o, lse,
               *(tensor for tensor in found.values() if tensor is not None))
    inputs = (query, key, value, *rest)
    results = [(name, _empty_gradient(inputs[i]))
               for i, name in enumerate((*MAIN, *SMOOTH)) if i < len(wanted) and wanted[i]]
    kind = _key("torch backward", tensors, rest, options | {"wanted": tuple(wanted),
                                                            "names": tuple(names)})
    call = thread.calls.pop(kind, None) or _Backward(tuple(names), tensors, rest, options, results)
    values = _values(tensors, rest, options)
    values += [result.data_ptr() for _, result in results]
    call.run(library.mha_attention_backward, call.arguments, values)
    _keep(kind, call)
    types = dict(zip((*MAIN, *TENSORS), inputs))
    return [result.to(types[name].dtype) for name, result in results]


def _elsewhere(*arguments: Any, **options: Any) -> Any:
    names = (*MAIN, "o", "lse", *_GRADIENTS, *TENSORS) if "wanted" in options else (*MAIN, *TENSORS)
    for name, x in zip(names, arguments):
        if x is not None:
            check_kind(name, x)
    raise NotImplementedError("multihead computes on dense tensors in the CPU's memory")


_registry.impl("attention", forward, "CPU")
_registry.impl("attention_backward", backward, "CPU")
_registry.impl("attention", _elsewhere, "CompositeExplicitAutograd")
_registry.impl("attention_backward", _elsewhere, "CompositeExplicitAutograd")

# ---- Shape inference -----------------------------------------------------------------------------


@torch.library.register_fake("multihead::attention", lib=_registry)
def _fake(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *rest: Any,
          **options: Any) -> list[torch.Tensor]:
    _four_axes((query, key, value))
    for name, x in zip((*MAIN, *TENSORS), (query, key, value, *rest)):
        if x is not None and x.is_meta and not query.is_meta:
            check_here(name, x)
    return _empty_outputs(query, key, value, options.get("outputs", 0))


@torch.library.register_fake("multihead::attention_backward", lib=_registry)
def _fake_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, o: torch.Tensor,
                   lse: torch.Tensor, *optional: Any, wanted: list[bool],
                   **options: Any) -> list[torch.Tensor]:
    inputs = (query, key, value, *optional[len(_GRADIENTS):])
    return [_empty_gradient(tensor).to(tensor.dtype)
            for tensor, want in zip(inputs, wanted) if want]


# ---- Autograd ---------------------------------------------------------------------------------------

_after_autograd = torch._C._after_autograd_keyset
_plain = (torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
          | torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)).raw_repr()


def _below(keyset: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> list[torch.Tensor]:
    """The operator without autograd."""
    if keyset.raw_repr() == _plain:
        return forward(*arguments, **options)
    with torch._C._AutoDispatchBelowAutograd():
        found: list[torch.Tensor] = attention.redispatch(keyset & _after_autograd, *arguments,
                                                         **options)
    return found


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, options: dict[str, Any],
                *arguments: Any) -> tuple[torch.Tensor, ...]:
        outputs = options.get("outputs", 0)
        o, lse, *others = _below(keyset, arguments, options | {"outputs": outputs | LSE})
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*arguments, o, lse)
        ctx.options = options
        return (o, lse, *others) if outputs & LSE else (o, *others)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
        *arguments, o, lse = ctx.saved_tensors
        given = list(gradients)
        outputs = ctx.options.get("outputs", 0)
        of = [given.pop(0), *(given.pop(0) if outputs & bit else None
                              for bit in (LSE, PROBABILITIES, AVERAGE))]
        if all(gradient is None for gradient in of):
            return (None,) * len(ctx.needs_input_grad)
        wanted = list(ctx.needs_input_grad[2:2 + len(MAIN) + len(SMOOTH)])
        found = iter(attention_backward(*arguments[:3], o, lse, *of, *arguments[3:],
                                        wanted=wanted, **ctx.options))
        return (None, None, *(next(found) if want else None for want in wanted),
                *(None,) * (len(arguments) - len(wanted)))


_NO_TRANSFORMS = ("multihead::attention has a backward pass, and no rules for the transforms of "
                  "torch.func (grad, vmap, jvp) and forward-mode derivatives: use requires_grad and "
                  "torch.autograd.grad, and batch axes in place of vmap")


def _differentiated(arguments: tuple[Any, ...]) -> bool:
    if forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None:
        raise NotImplementedError(_NO_TRANSFORMS)
    return torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments)


def _autograd(keyset: Any, *arguments: Any, **options: Any) -> list[torch.Tensor]:
    if _differentiated(arguments):
        return list(_Attention.apply(keyset, options, *arguments))  # type: ignore[no-untyped-call]
    return _below(keyset, arguments, options)


class _SecondDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keyset: Any, options: dict[str, Any],
                *arguments: Any) -> tuple[torch.Tensor, ...]:
        with torch._C._AutoDispatchBelowAutograd():
            return tuple(attention_backward.redispatch(keyset & _after_autograd, *arguments,
                                                       **options))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise NotImplementedError(
            "multihead has no second derivatives of attention: use torch's own under "
            "torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH)")


def _autograd_backward(keyset: Any, *arguments: Any, **options: Any) -> list[torch.Tensor]:
    if _differentiated(arguments):
        return list(_SecondDerivative.apply(keyset, options,  # type: ignore[no-untyped-call]
                                            *arguments))
    if keyset.raw_repr() == _plain:
        return backward(*arguments, **options)
    with torch._C._AutoDispatchBelowAutograd():
        found: list[torch.Tensor] = attention_backward.redispatch(keyset & _after_autograd,
                                                                  *arguments, **options)
    return found


def _no_batches(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError(_NO_TRANSFORMS)


torch.library.register_vmap("multihead::attention", _no_batches, lib=_registry)
torch.library.register_vmap("multihead::attention_backward", _no_batches, lib=_registry)
_registry.impl("attention", _autograd, "Autograd", with_keyset=True)
_registry.impl("attention_backward", _autograd_backward, "Autograd", with_keyset=True)
