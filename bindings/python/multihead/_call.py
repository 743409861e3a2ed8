"""Calls of attention: options and prepared structs.

The structs, checks and result shapes of a call depend only on layouts and options. They are
prepared once per thread. Each call then writes addresses and a few numbers into them. A call
therefore costs a few microseconds of Python.
"""
from __future__ import annotations

import ctypes as C
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

import numpy as np

from . import _abi, _tensor
from ._library import Callbacks, Context, check, chosen, thread, value_of

Function = TypeVar("Function", bound=Callable[..., Any])
Keep = Callable[[int, int, Any, Any], Any]
Numbers = Sequence[int] | np.ndarray[Any, Any]


class AttentionOptions(TypedDict, total=False):
    """The options of attention, by the names of `mha_attention_desc`; `attention` explains them."""

    causal: bool
    scale: float | None
    q_offset: int | Numbers
    key_lengths: Numbers | None
    key_begins: Numbers | None
    keep_mask: Any
    bias: Any
    window: tuple[int, int] | None
    sink_keys: int
    global_keys: Any
    global_queries: Any
    query_documents: Any
    key_documents: Any
    keep_blocks: Any
    block_queries: int
    block_keys: int
    keep_callback: Keep | None
    softcap: float
    dropout: float
    dropout_seed: int
    first_head: int
    alibi_slopes: Any
    t5_table: Any
    t5_max_distance: int
    t5_one_sided: bool
    shaw_keys: Any
    shaw_values: Any
    sink_logits: Any
    gates: Any
    query_starts: Numbers | None
    key_starts: Numbers | None
    path: str
    strict: bool
    compute: str


# ---- Options -------------------------------------------------------------------------------------

REAL = ("f32", "f16", "bf16")
# The element types that each array may have. Lists become arrays of the first type.
_ARRAYS: dict[str, tuple[str, ...]] = {
    "keep_mask": ("u8",), "bias": REAL, "global_keys": ("u8",), "global_queries": ("u8",),
    "query_documents": ("i32",), "key_documents": ("i32",), "keep_blocks": ("u8",),
    "alibi_slopes": ("f32",), "t5_table": ("f32",), "shaw_keys": ("f32",), "shaw_values": ("f32",),
    "sink_logits": ("f32",), "gates": ("f32",)}
_LIST_TYPES = {"u8": np.bool_, "f32": np.float32, "i32": np.int32}
# Sequences of whole numbers, with their length minus B.
_INT64S = {"key_lengths": 0, "key_begins": 0, "q_offsets": 0, "query_starts": 1, "key_starts": 1}
_FLAGS = ("causal", "strict", "t5_one_sided")
_NAMES = {"path": _abi.PATHS, "compute": _abi.COMPUTE}
_INTEGERS = ("sink_keys", "block_queries", "block_keys", "t5_max_distance", "first_head")
_REALS = ("softcap", "dropout")
# Written at every call, so that a new offset or seed reuses the prepared call.
_CHANGING = {"q_offset": C.c_int64, "dropout_seed": C.c_uint64}
_LIMITS = {C.c_int64: (-(1 << 63), (1 << 63) - 1), C.c_uint64: (0, (1 << 64) - 1)}
# Defaults other than None.
_DEFAULTS = {"causal": False, "q_offset": 0, "sink_keys": 0, "block_queries": 0, "block_keys": 0,
             "softcap": 0.0, "dropout": 0.0, "dropout_seed": 0, "first_head": 0, "t5_max_distance": 128,
             "t5_one_sided": False, "path": "auto", "strict": False, "compute": "f32"}


def with_options(function: Function) -> Function:
    """Give a function with **options a signature that lists them, for help() and completion."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())[:-1]
    for name, annotation in AttentionOptions.__annotations__.items():
        parameters.append(inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS.get(name),
            annotation=getattr(annotation, "__forward_arg__", annotation)))
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


# Names that other libraries use, and the corresponding option.
_MASK = "keep_mask (True keeps a key), or bias for numbers that are added"
MEANT = {
    "attn_mask": _MASK, "attention_mask": _MASK, "mask": _MASK, "attn_bias": "bias", "position_bias": "bias",
    "key_padding_mask": "key_lengths, or keep_mask (True keeps a key)", "is_causal": "causal",
    "dropout_p": "dropout", "scaling": "scale", "softmax_scale": "scale", "sm_scale": "scale",
    "window_size": "window", "sliding_window": "window=(n - 1, 0)", "logits_soft_cap": "softcap",
    "sinks": "sink_logits", "s_aux": "sink_logits", "cu_seqlens_q": "query_starts",
    "cu_seqlens_k": "key_starts", "alibi": "alibi_slopes", "need_weights": 'outputs="probabilities"',
    "return_weights": 'outputs="probabilities"'}


def unknown_option(name: str, of: str = "attention", options: Iterable[str] = AttentionOptions.__annotations__,
                   meant: Mapping[str, str] = MEANT) -> TypeError:
    """The error for an unknown option."""
    near = difflib.get_close_matches(name, options, 1)
    guess = meant.get(name, near[0] if near else "")
    return TypeError(f"{name!r} is not an option of {of}" + (f"; did you mean {guess}?" if guess else ".")
                     + f" The options are {', '.join(options)}")


def integer(value: Any, name: str, kind: Any = C.c_int64) -> int:
    """A whole number within the limits of a C type; `name` identifies it in errors."""
    try:
        number = value.__index__()
    except AttributeError:
        raise TypeError(f"{name}: a whole number is expected, not {value!r:.60}") from None
    low, high = _LIMITS[kind]
    if not low <= number <= high:
        raise ValueError(f"{name}: {number} is not in {low} .. {high}")
    return int(number)


def truth(value: Any, name: str) -> bool:
    """True or False; 0 and 1 are accepted, texts are not."""
    if type(value) is bool or isinstance(value, (np.bool_, int)) and value in (0, 1):
        return bool(value)
    raise TypeError(f"{name}: True or False is expected, not {value!r:.60}")


def real(value: Any, name: str) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: a number is expected, not {value!r:.60}") from None


class _KeepCallback(Callbacks):
    """A Python function as mha_keep_fn. If it fails, all keys are hidden."""

    def __init__(self, function: Keep) -> None:
        super().__init__()

        def keep(user: int, b: int, h: int, query: int, queries: int, key: int, keys: int,
                 out: int, stride: int) -> None:
            def fill(value: Any) -> None:
                memory = (C.c_uint8 * ((queries - 1) * stride + keys)).from_address(out)
                cells = np.lib.stride_tricks.as_strided(
                    np.frombuffer(memoryview(memory), np.uint8), (queries, keys), (stride, 1),
                    writeable=True)
                cells[...] = value

            self.guarded(lambda: fill(np.asarray(function(
                b, h, np.arange(query, query + queries)[:, None], np.arange(key, key + keys)),
                np.bool_)), lambda: fill(0))

        self.function = _abi.KeepFn(keep)
        self.address = C.cast(self.function, C.c_void_p).value


class Inputs:
    """The arguments of one call. Preparation depends on `key`; `values` change from call to call, in the order of the
    slots; `alive` keeps memory valid."""

    __slots__ = ("key", "values", "alive", "callback")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.values: list[Any] = []
        self.alive: list[Any] = []
        self.callback: _KeepCallback | None = None

    def array(self, name: str, array: Any) -> None:
        layout, address = _tensor.look(array, name)
        self.key.append((name, layout))
        self.values.append(address)

    def options(self, options: Mapping[str, Any]) -> None:
        for name, value in options.items():
            if name not in AttentionOptions.__annotations__:
                raise unknown_option(name)
            if value is None:
                continue
            if name in _ARRAYS:
                if isinstance(value, (list, tuple, int, float)):
                    value = np.asarray(value, _LIST_TYPES[_ARRAYS[name][0]])
                    self.alive.append(value)
                self.array(name, value)
            elif name in _INT64S or name == "q_offset" and hasattr(value, "__len__"):
                self.numbers("q_offsets" if name == "q_offset" else name, value)
            elif name in _CHANGING:
                self.key.append((name, None))
                self.values.append(integer(value, name, _CHANGING[name]))
            elif name == "keep_callback":
                if not callable(value):
                    raise TypeError(f"keep_callback: {type(value).__name__} is not a function "
                                    "f(b, h, t, s) -> bool")
                self.callback = _KeepCallback(value)
                self.key.append((name, None))
                self.values.append(self.callback.address)
            elif name == "window":
                if not isinstance(value, (tuple, list)) or len(value) != 2:
                    raise TypeError(f"window: {value!r:.60} is not (keys before, keys after), e.g. (255, 0)")
                self.key.append((name, tuple(value)))
            elif hasattr(value, "item"):
                if getattr(value, "size", 1) != 1 and not callable(value.size):
                    raise TypeError(f"{name}: one number is expected, not {value!r:.60}")
                self.key.append((name, value.item()))
            else:
                self.key.append((name, value))

    def numbers(self, name: str, value: Any) -> None:
        array = _tensor.int64s(value, name)
        self.alive.append(array)
        self.key.append((name, len(array)))
        self.values.append(_tensor.look(array, name)[1])


# ---- Prepared calls ------------------------------------------------------------------------------


def check_axes(name: str, ndim: int) -> None:
    """Reject arrays that do not have 4 axes."""
    if ndim != 4:
        advice = {2: f"{name}[None, None] if yours are [length, size]",
                  3: f"{name}[None] if yours are [heads, length, size], {name}[:, None] if [batch, length, "
                     "size]"}.get(ndim, f"reshape {name}")
        raise ValueError(f"{name}: {ndim} dimensions, expected 4, [batch, heads, length, size]: {advice}")


class Prepared:
    """The structs of calls with one key. Each call writes its values to the slots."""

    def __init__(self) -> None:
        self.desc = _abi.AttentionDesc()
        self.tensors: dict[str, _abi.Tensor] = {}
        self.slots: list[Any] = []
        self.dtypes: dict[str, str] = {}

    def shape(self, name: str) -> tuple[int, ...]:
        tensor = self.tensors[name]
        return tuple(tensor.shape[:tensor.ndim])

    def add(self, name: str, layout: _tensor.Layout, types: tuple[str, ...],
            last: bool = False) -> _abi.Tensor:
        """A tensor with a slot for its address. If `last`, the last axis must be contiguous."""
        tensor = _tensor.describe(layout, name)
        code = _tensor.code_of(layout, name)
        if code not in types:
            found, conversion = _tensor.conversion(layout, name, types[0])
            remedy = ("True keeps a key; numbers that are added to scores are bias=" if "float" in found
                      and name == "keep_mask" else f"convert it, e.g. {conversion}")
            raise TypeError(f"{name}: {found} is not supported, expected "
                            f"{_tensor.readable(types)}: {remedy}")
        if last:
            _tensor.check_last(layout, tensor, name)
        self.tensors[name] = tensor
        self.dtypes[name] = code
        self.slots.append(C.c_void_p.from_buffer(tensor, _abi.Tensor.data.offset))
        return tensor

    def slot(self, name: str, kind: Any) -> None:
        self.slots.append(kind.from_buffer(self.desc, getattr(_abi.AttentionDesc, name).offset))

    def take(self, key: Sequence[tuple[str, Any]]) -> None:
        """The options of a call, in the order of Inputs.options()."""
        desc, counts = self.desc, {}
        for name, value in key:
            if name in _ARRAYS:
                setattr(desc, name, C.pointer(self.add(name, value, _ARRAYS[name])))
            elif name in _INT64S:
                counts[name] = value
                self.slot(name, C.c_void_p)
            elif name in _CHANGING:
                self.slot(name, _CHANGING[name])
            elif name == "keep_callback":
                self.slot(name, C.c_void_p)
            elif name in _FLAGS:
                desc.flags |= _abi.ATTENTION_FLAGS[name] * truth(value, name)
            elif name in _NAMES:
                setattr(desc, name, value_of(_NAMES[name], value, name))
            elif name in _INTEGERS:
                setattr(desc, name, integer(value, name))
            elif name in _REALS:
                setattr(desc, name, real(value, name))
            elif name == "scale":
                desc.scale = real(value, name)
                desc.flags |= _abi.ATTENTION_FLAGS["scale_given"]
            elif name == "window":
                desc.left_keys, desc.right_keys = (integer(side, name) for side in value)
                desc.flags |= _abi.ATTENTION_FLAGS["window"]
        self._check_counts(counts)

    def _check_counts(self, counts: dict[str, int]) -> None:
        """Check the lengths of sequences of numbers, which the library reads without their length."""
        if ("query_starts" in counts) != ("key_starts" in counts):
            raise ValueError("query_starts and key_starts belong together: give both")
        sequences = self.shape("q")[0]
        if "query_starts" in counts:
            sequences = self.desc.sequences = counts["query_starts"] - 1
            if sequences < 0:
                raise ValueError("query_starts: at least one number is expected, where the last "
                                 "sequence ends")
        for name, count in counts.items():
            if count != sequences + _INT64S[name]:
                raise ValueError(f"{name.replace('offsets', 'offset')}: {count} numbers given, expected "
                                 f"{sequences + _INT64S[name]}, for a batch of {sequences}")

    def check_axes(self, *names: str) -> None:
        for name in names:
            check_axes(name, self.tensors[name].ndim)


_MOST_CALLS = 256  # per thread, about 2 KiB each


def prepared(key: tuple[Any, ...]) -> Any:
    """Take the prepared call of a key out of the thread's store, because its callback may make the
    same call. None if there is none. finish() puts it back."""
    try:
        return thread.calls.pop(key, None)
    except TypeError:  # not hashable: preparing the call reports the error
        return None


def run(function: Callable[..., int], context: Context | None, inputs: Inputs,
        arguments: tuple[Any, ...]) -> int:
    """Call the library and return its status."""
    with chosen(context) as handle:
        if inputs.callback is None:
            return function(handle, *arguments)
        return inputs.callback.call(function, handle, *arguments)


def finish(key: tuple[Any, ...], call: Any, inputs: Inputs, status: int,
           names: Mapping[str, str] = {}) -> None:  # noqa: B006, read only
    """Store a call for reuse, and raise its errors."""
    calls = thread.calls
    if len(calls) >= _MOST_CALLS:
        calls.clear()
    calls[key] = call
    if inputs.callback is not None:
        inputs.callback.raise_error()
    if status:
        check(status, names)
