"""Linear attention: forward with a running state, and its gradients."""
from __future__ import annotations

import ctypes as C
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np

from . import _abi, _tensor
from ._call import Numbers, check_axes, integer, truth
from ._library import Callbacks, Context, check, chosen, library

Array = TypeVar("Array")
FeatureMap = Callable[[Any], Any]
FeatureMapGradient = Callable[[Any, Any], Any]


class LinearAttentionState(NamedTuple):
    """The running state of linear attention, float32; its size does not depend on the number of keys."""

    s: Any
    """[B,Hk,F,Dv]: sum_s phi(k[s]) v[s]^T."""
    z: Any
    """[B,Hk,F]: sum_s phi(k[s])."""


@dataclass
class LinearAttentionGradients:
    """Gradients, f32, each with the shape of its input; None if not requested."""

    q: Any = None
    k: Any = None
    v: Any = None
    state_s: Any = None
    state_z: Any = None


def _rows(address: int, count: int, width: int) -> Any:
    """The memory of a callback as an array [count,width]."""
    return np.frombuffer(memoryview((C.c_float * (count * width)).from_address(address)),
                         np.float32).reshape(count, width) if count * width else np.empty(
                             (count, width), np.float32)


class _FeatureMaps(Callbacks):
    """Python functions as the library's callbacks. After a failure features and gradients are 0."""

    def __init__(self, forward: FeatureMap | None, backward: FeatureMapGradient | None) -> None:
        super().__init__()
        self.forward = _abi.FeatureMapFn(self._forward(forward)) if forward else None
        self.backward = _abi.FeatureMapGradientFn(self._backward(backward)) if backward else None

    def _fill(self, rows: Callable[[], Any], compute: Callable[[], Any]) -> None:
        def fill(value: Any) -> None:
            rows()[...] = value

        self.guarded(lambda: fill(compute()), lambda: fill(0))

    def _forward(self, function: FeatureMap) -> Callable[..., None]:
        def features(user: int, rows: int, count: int, width: int, out: int, size: int) -> None:
            self._fill(lambda: _rows(out, count, size), lambda: function(_rows(rows, count, width)))
        return features

    def _backward(self, function: FeatureMapGradient) -> Callable[..., None]:
        def gradient(user: int, rows: int, count: int, width: int, given: int, size: int,
                     out: int) -> None:
            self._fill(lambda: _rows(out, count, width), lambda: function(
                _rows(rows, count, width), _rows(given, count, size)))
        return gradient

    def run(self, function: Callable[..., int], context: Context | None, *arguments: Any) -> None:
        with chosen(context) as handle:
            status = self.call(function, handle, *arguments) if self.forward else \
                function(handle, *arguments)
        self.raise_error()
        check(status, {"o": "out"})


def _address(function: Any) -> int | None:
    return None if function is None else C.cast(function, C.c_void_p).value


class _Call:
    """The descriptor of a call and the memory that it borrows."""

    def __init__(self, q: Any, k: Any, v: Any, causal: bool, q_offset: Any, key_lengths: Any,
                 state: Any, query_starts: Any, key_starts: Any, callbacks: _FeatureMaps,
                 feature_dim: int) -> None:
        self.q, self.k, self.v = (_tensor.tensor(x, name, last=True)
                                  for x, name in ((q, "q"), (k, "k"), (v, "v")))
        for name in "qkv":
            check_axes(name, getattr(self, name).ndim)
        desc = self.desc = _abi.LinearAttentionDesc(
            flags=_abi.LINEAR_FLAGS["causal"] * truth(causal, "causal"),
            feature_map=_address(callbacks.forward), feature_dim=integer(feature_dim, "feature_dim"))
        if (query_starts is None) != (key_starts is None):
            raise ValueError("query_starts and key_starts belong together: give both")
        self.sequences = self.q.shape[0]
        if query_starts is not None:
            self.sequences = desc.sequences = len(query_starts) - 1
        if hasattr(q_offset, "__len__"):
            self._numbers("q_offsets", q_offset, 0)
        else:
            desc.q_offset = integer(q_offset, "q_offset")
        self._numbers("key_lengths", key_lengths, 0)
        self._numbers("query_starts", query_starts, 1)
        self._numbers("key_starts", key_starts, 1)
        if state is not None:
            desc.state_s = _tensor.pointer(state[0], "state.s")
            desc.state_z = _tensor.pointer(state[1], "state.z")

    def _numbers(self, name: str, values: Any, more: int) -> None:
        if values is None:
            return
        array = _tensor.int64s(values, name)
        if len(array) != self.sequences + more:
            raise ValueError(f"{name}: {len(array)} numbers given, expected {self.sequences + more}, for a "
                             f"batch of {self.sequences}")
        setattr(self.desc, name, (C.c_int64 * max(1, len(array)))(*array.tolist()))


@overload
def linear_attention(q: Array, k: Any, v: Any, *, causal: bool = False, q_offset: int | Numbers = 0,
                     key_lengths: Numbers | None = None, state: Sequence[Any] | None = None,
                     query_starts: Numbers | None = None, key_starts: Numbers | None = None,
                     feature_map: FeatureMap | None = None, feature_dim: int = 0,
                     out: Array | None = None, context: Context | None = None) -> Array: ...


@overload
def linear_attention(q: Array, k: Any, v: Any, *, return_state: bool | Sequence[Any],
                     causal: bool = False, q_offset: int | Numbers = 0,
                     key_lengths: Numbers | None = None, state: Sequence[Any] | None = None,
                     query_starts: Numbers | None = None, key_starts: Numbers | None = None,
                     feature_map: FeatureMap | None = None, feature_dim: int = 0,
                     out: Array | None = None, context: Context | None = None
                     ) -> tuple[Array, LinearAttentionState]: ...


def linear_attention(q: Any, k: Any, v: Any, *, causal: bool = False, q_offset: int | Numbers = 0,
                     key_lengths: Numbers | None = None, state: Sequence[Any] | None = None,
                     return_state: bool | Sequence[Any] = False, query_starts: Numbers | None = None,
                     key_starts: Numbers | None = None, feature_map: FeatureMap | None = None,
                     feature_dim: int = 0, out: Any = None, context: Context | None = None) -> Any:
    """Linear attention with a positive feature map (Katharopoulos et al. 2020): a matrix and a vector summarise all
    keys, so time is O((T + S) F Dv) and memory does not depend on T or S.

        s = sum_s phi(k[s]) v[s]^T      z = sum_s phi(k[s])      o[t] = phi(q[t]) s / (phi(q[t]) . z)

    over the keys that query t sees. Letters, shapes and types of q, k, v and o are those of `attention`; F is the
    number of features. By default phi(x) = elu(x) + 1 and F = D.

        causal, q_offset            key s is visible if s <= t + q_offset
        key_lengths                 [B]: s < key_lengths[b]
        state                       (s [B,Hk,F,Dv], z [B,Hk,F]), float32, of earlier keys, which every query sees
        return_state                True: return (o, LinearAttentionState); a pair of arrays: write the state there.
                                    They may be the arrays of `state`
        query_starts, key_starts    ragged batches, as in `attention`
        feature_map                 f(rows [n,D]) -> [n, feature_dim], not negative; called from several
                                    threads
        out, context                as in `attention`

    A sequence may be split into calls anywhere, each with the state of the previous call; the result is bit-identical.
    A decoding step is a causal call with T = S = 1.

    Raises the errors of `attention` and of feature_map.

        >>> o = linear_attention(q, k, v, causal=True)
        >>> o, state = linear_attention(q, k, v, return_state=True)
        >>> state.z.shape == k.shape[:2] + k.shape[3:]
        True
    """
    kind = _tensor.kind_of(q, "q")
    callbacks = _FeatureMaps(feature_map, None)
    call = _Call(q, k, v, causal, q_offset, key_lengths, state, query_starts, key_starts, callbacks,
                 feature_dim)
    if out is None:
        code = _tensor.code_of(_tensor.look(q, "q")[0], "q")
        out = kind.empty((*call.q.shape[:3], call.v.shape[3]), code)
    else:
        _tensor.look_writable(out, "out")
    wanted, after = None, None
    if return_state is not False:
        features = feature_dim or call.k.shape[3]
        shape = (call.sequences, call.k.shape[1], features)
        after = LinearAttentionState(*(
            (kind.empty((*shape, call.v.shape[3]), "f32"), kind.empty(shape, "f32"))
            if return_state is True else return_state))
        for name, array in zip(("return_state.s", "return_state.z"), after):
            _tensor.look_writable(array, name)
        wanted = _abi.LinearAttentionOutputs(state_s=_tensor.pointer(after.s, "return_state.s"),
                                             state_z=_tensor.pointer(after.z, "return_state.z"))
    callbacks.run(library.mha_linear_attention_forward, context, C.byref(call.desc),
                  C.byref(call.q), C.byref(call.k), C.byref(call.v),
                  C.byref(_tensor.tensor(out, "out")), C.byref(wanted) if wanted else None)
    return out if after is None else (out, after)


def linear_attention_backward(
        q: Any, k: Any, v: Any, o_gradient: Any, *,
        wanted: str | Sequence[str] | Mapping[str, Any] = ("q", "k", "v"), accumulate: bool = False,
        causal: bool = False, q_offset: int | Numbers = 0, key_lengths: Numbers | None = None,
        state: Sequence[Any] | None = None, query_starts: Numbers | None = None,
        key_starts: Numbers | None = None, feature_map: FeatureMap | None = None,
        feature_map_gradient: FeatureMapGradient | None = None, feature_dim: int = 0,
        context: Context | None = None) -> LinearAttentionGradients:
    """The gradients of linear attention, given o_gradient [B,H,T,Dv]; o is recomputed.

    wanted, accumulate and context work as in `attention_backward`, with the fields of `LinearAttentionGradients`;
    state_s and state_z are the gradients of the initial state. The other arguments are those of the call of
    `linear_attention`. A feature_map needs feature_map_gradient: f(rows [n,D], feature_gradients [n,F]) -> row
    gradients [n,D].

    Returns `LinearAttentionGradients`, float32. Raises the errors of `attention_backward`.

        >>> g = linear_attention_backward(q, k, v, o_gradient, causal=True)
        >>> g.k.shape == k.shape
        True
    """
    kind = _tensor.kind_of(q, "q")
    callbacks = _FeatureMaps(feature_map, feature_map_gradient)
    call = _Call(q, k, v, causal, q_offset, key_lengths, state, query_starts, key_starts, callbacks,
                 feature_dim)
    inputs = {"q": q, "k": k, "v": v}
    if state is not None:
        inputs |= {"state_s": state[0], "state_z": state[1]}
    names = (wanted,) if isinstance(wanted, str) else tuple(wanted)
    given = wanted if isinstance(wanted, Mapping) else {}
    if accumulate and not given:
        raise ValueError("accumulate: pass the arrays to add to, wanted={'q': array, ...}")
    gradients = _abi.LinearAttentionGradients(
        flags=_abi.GRADIENT_FLAGS["accumulate"] * truth(accumulate, "accumulate"),
        feature_map_gradient=_address(callbacks.backward))
    found = {}
    for name in names:
        if name not in LinearAttentionGradients.__dataclass_fields__:
            raise ValueError(f"wanted: {name!r} is not one of "
                             f"{', '.join(LinearAttentionGradients.__dataclass_fields__)}")
        if name not in inputs:
            raise ValueError(f"wanted: {name} is not an input of this call")
        if name in given:
            _tensor.look_writable(given[name], f"wanted[{name!r}]")
        found[name] = given[name] if name in given else kind.empty(
            _tensor.look(inputs[name], name)[0][1], "f32")
        setattr(gradients, name, _tensor.pointer(found[name], f"gradient of {name}"))
    callbacks.run(library.mha_linear_attention_backward, context, C.byref(call.desc),
                  C.byref(call.q), C.byref(call.k), C.byref(call.v),
                  C.byref(_tensor.tensor(o_gradient, "o_gradient")), C.byref(gradients))
    return LinearAttentionGradients(**found)
