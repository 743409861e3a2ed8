"""Attention over arrays, and its plan."""
from __future__ import annotations

import ctypes as C
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import numpy as np

from . import _abi, _tensor
from ._call import (REAL, AttentionOptions, Inputs, Numbers, Prepared, finish, integer, prepared,
                    run, truth, with_options)
from ._library import Context, check, chosen, library, name_of, value_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

Array = TypeVar("Array")
"""The kind of the arrays. Results have the kind of q."""

@dataclass
class AttentionOutputs:
    """The requested outputs besides o; others are None. Letters as in `attention`; heads and rows are the selected
    ones, by default all."""

    lse: Any = None
    """[B,H,T] f32: natural logarithm of the sum of exp(score)."""
    probabilities: Any = None
    """[B,heads,rows,S] f32: the weights p. Without a sink, a row sums to 1 or is 0."""
    average_probabilities: Any = None
    """[B,T,S] f32: the mean weight over all heads."""
    scores: Any = None
    """[B,heads,rows,S] f32: scores at `score_stage`."""
    entropy: Any = None
    """[B,H,T] f32: -sum_s p log p, natural."""
    largest_weight: Any = None
    """[B,H,T] f32: max_s p."""
    largest_key: Any = None
    """[B,H,T] i64: the first key of the largest p; -1 if all p are 0."""
    first_token: Any = None
    """[B,H,T] f32: p of key 0, or of key_begins[b]."""
    diagonal: Any = None
    """[B,H,T] f32: p of key i = t + q_offset; 0 outside the sequence."""
    offset_mass: Any = None
    """[B,H,T,offsets] f32: p of key i + offsets[n]."""
    top_keys: Any = None
    """[B,H,T,top] i64: the keys with the largest p > 0, descending; padded with -1."""
    top_weights: Any = None
    """[B,H,T,top] f32: p of top_keys. Requesting either computes both."""
    column_sums: Any = None
    """[B,H,S] f32: sum_t p, the weight that each key receives."""


OUTPUTS = tuple(field.name for field in fields(AttentionOutputs))
_PAIRS = {"top_keys": "top_weights", "top_weights": "top_keys"}


class _Request(NamedTuple):
    """The requested outputs and their options; hashable."""

    names: tuple[str, ...]
    heads: tuple[int, ...] | None
    rows: tuple[int, ...] | None
    offsets: tuple[int, ...] | None
    top: int
    score_stage: str
    dropped: bool
    longest: int  # keys of the longest sequence of a ragged batch; -1: not ragged


# The outputs that each argument describes.
_MAPS = {"probabilities", "scores"}
_CHOICES = {"heads": _MAPS, "rows": _MAPS, "offsets": {"offset_mass"}, "top": {"top_keys", "top_weights"},
            "score_stage": {"scores"}, "dropped_probabilities": {"probabilities", "average_probabilities"}}


def _request(outputs: Sequence[str] | Mapping[str, Any], options: Mapping[str, Any],
             heads: Numbers | None, rows: Numbers | None, offsets: Numbers | None, top: int,
             score_stage: str, dropped: bool) -> _Request | None:
    names = dict.fromkeys((outputs,) if isinstance(outputs, str) else outputs)
    for name in tuple(names):
        if name not in OUTPUTS:
            raise ValueError(f"outputs: {name!r} is not one of {', '.join(OUTPUTS)}")
        if name in _PAIRS:
            names[_PAIRS[name]] = None
    dropped = truth(dropped, "dropped_probabilities")
    for choice, given in (("heads", heads is not None), ("rows", rows is not None), ("offsets", offsets is not None),
                          ("top", top != 1), ("score_stage", score_stage != "raw"), ("dropped_probabilities", dropped)):
        if given and not names.keys() & _CHOICES[choice]:
            raise ValueError(f"{choice} requires {' or '.join(sorted(_CHOICES[choice]))} in outputs")
    if not names:
        return None
    longest = -1
    if options.get("key_starts") is not None:
        starts = _tensor.int64s(options["key_starts"], "key_starts")
        longest = int(np.diff(starts).max(initial=0))
    return _Request(tuple(names), _chosen(heads, "heads"), _chosen(rows, "rows"),
                    _chosen(offsets, "offsets"), integer(top, "top"), score_stage, dropped, longest)


def _chosen(numbers: Numbers | None, name: str) -> tuple[int, ...] | None:
    return None if numbers is None else tuple(_tensor.int64s(numbers, name).tolist())


def _output_shape(name: str, call: Prepared, request: _Request) -> tuple[int, ...]:
    batch, heads, queries = call.shape("q")[:3]
    keys = call.shape("k")[2]
    longest = keys if request.longest < 0 else min(request.longest, keys)
    row = (batch, heads, queries)
    if name in ("probabilities", "scores"):
        return (batch, heads if request.heads is None else len(request.heads),
                queries if request.rows is None else len(request.rows), longest)
    if name == "average_probabilities":
        return (batch, queries, longest)
    if name == "column_sums":
        return (batch, heads, keys)
    if name == "offset_mass":
        return (*row, len(request.offsets or ()))
    if name in _PAIRS:
        return (*row, request.top)
    return row


def _output_type(name: str) -> str:
    return "i64" if name in ("largest_key", "top_keys") else "f32"


class _Forward:
    """A prepared forward call. Slots: q, k, v, options, o, outputs."""

    def __init__(self, key: Sequence[Any], o: _tensor.Layout | None, request: _Request | None,
                 given: Mapping[str, _tensor.Layout]) -> None:
        call = self.prepared = Prepared()
        for name, layout in key[:3]:
            call.add(name, layout, REAL, last=True)
        call.check_axes("q", "k", "v")
        call.take(key[3:])
        self.o_shape = (*call.shape("q")[:3], call.shape("v")[3])
        self.o_type = call.dtypes["q"]
        call.add("out", o or _tensor.contiguous(self.o_shape, self.o_type), REAL, last=True)
        self.outputs: list[tuple[str, tuple[int, ...], str]] = []
        self.wanted = _abi.AttentionOutputs()
        if request is not None:
            self._request(request, given)
        self.slots = call.slots
        self.arguments = (C.byref(call.desc),
                          *(C.byref(call.tensors[name]) for name in ("q", "k", "v", "out")),
                          C.byref(self.wanted) if request is not None else None)

    def _request(self, request: _Request, given: Mapping[str, _tensor.Layout]) -> None:
        wanted, call = self.wanted, self.prepared
        wanted.score_stage = value_of(_abi.SCORE_STAGES, request.score_stage, "score_stage")
        wanted.flags = _abi.OUTPUT_FLAGS["dropped_probabilities"] * request.dropped
        for name in ("heads", "rows", "offsets"):
            if (numbers := getattr(request, name)) is not None:
                # An empty list still has an address that is not NULL.
                setattr(wanted, name, (C.c_int64 * max(1, len(numbers)))(*numbers))
                setattr(wanted, name + "_count", len(numbers))
        if "top_keys" in request.names and request.top < 1:
            raise ValueError(f"top: {request.top} is not a number of keys of at least 1")
        for name in request.names:
            shape, code = _output_shape(name, call, request), _output_type(name)
            layout = given.get(name) or _tensor.contiguous(shape, code)
            setattr(wanted, name, C.pointer(call.add(name, layout, (code,))))
            self.outputs.append((name, shape, code))


# With declared argument types, ctypes would check the arguments again at every call.
_library_forward = library["mha_attention_forward"]


@overload
def attention(q: Array, k: Any, v: Any, *, out: Array | None = None, outputs: tuple[()] = (),
              context: Context | None = None, **options: Unpack[AttentionOptions]) -> Array: ...


@overload
def attention(q: Array, k: Any, v: Any, *, out: Array | None = None,
              outputs: str | Sequence[str] | Mapping[str, Any], heads: Numbers | None = None,
              rows: Numbers | None = None, offsets: Numbers | None = None, top: int = 1,
              score_stage: str = "raw", dropped_probabilities: bool = False,
              context: Context | None = None,
              **options: Unpack[AttentionOptions]) -> tuple[Array, AttentionOutputs]: ...


@with_options
def attention(q: Any, k: Any, v: Any, *, out: Any = None,
              outputs: str | Sequence[str] | Mapping[str, Any] = (), heads: Numbers | None = None,
              rows: Numbers | None = None, offsets: Numbers | None = None, top: int = 1,
              score_stage: str = "raw", dropped_probabilities: bool = False,
              context: Context | None = None, **options: Any) -> Any:
    """Scaled dot-product attention with all its variants.

    Letters: B batch, T queries and S keys of a sequence, H heads of queries, Hk heads of keys and
    values, D size of queries and keys, Dv of values; b h t s d count them, and hk = h / (H / Hk).

        q [B,H,T,D]     k [B,Hk,S,D]     v [B,Hk,S,Dv]     returns o [B,H,T,Dv]

    Each array is float32, float16 or bfloat16. The last axis must be contiguous, other strides are free: pass a model's
    [B,T,H,D] as `x.swapaxes(1, 2)`. Nothing is copied. H must be a multiple of Hk. With i = t + q_offset:

        score = scale * sum_d q[b,h,t,d] (k[b,hk,s,d] + shaw_keys[clip(s-i),d])
        score = softcap * tanh(score / softcap)
        score = score + bias[b,h,t,s] - alibi_slopes[b,h] |s - i| + t5_table[bucket(s-i),h]
        p     = softmax over the keys that every mask keeps, exp(sink_logits[h]) in the denominator
        p     = p * kept / (1 - dropout)
        o     = gates[b,h] * sum_s p (v[b,hk,s,:] + shaw_values[clip(s-i),:])

    Positions and lengths
        causal          s <= i
        q_offset        position of query 0, one number or one per sequence; S - T aligns the last query with the last
                        key
        key_lengths     [B] whole numbers: s < key_lengths[b]
        key_begins      [B]: s >= key_begins[b], for batches padded on the left
        window          (left, right): i - left <= s <= i + right; -1: unlimited
        sink_keys       number of initial keys that the window does not hide
        global_keys, global_queries    bool, to [B,S] and [B,T]: exempt from the window
    Masks; True keeps a key
        keep_mask       bool, broadcasts to [B,H,T,S]
        query_documents, key_documents    int32, broadcast to [B,T] and [B,S]: equal numbers see
                        each other
        keep_blocks     bool, broadcasts to [B,H,rows,columns] of blocks of block_queries x block_keys
        keep_callback   f(b, h, t, s) -> bool that broadcasts to [len(t), len(s)], for position arrays t [n,1] and s
                        [m]; called from several threads, any number of times
    Terms of the score and the result
        scale           default 1 / sqrt(D)
        softcap         0: none
        bias            float32, float16 or bfloat16, broadcasts to [B,H,T,S]; -inf hides a key
        alibi_slopes    float32, broadcasts to [B,H]
        t5_table        float32 [buckets,H]; t5_max_distance (128), t5_one_sided for decoders
        shaw_keys       float32 [2 n + 1, D], shaw_values [2 n + 1, Dv]: distances clipped to +-n
        sink_logits     float32 [H]
        gates           float32, broadcasts to [B,H]
        dropout         probability that a p becomes 0; dropout_seed selects the pattern
        first_head      index of head 0 in dropout and keep_callback, for calls on a part of the heads
    Ragged batches: B is 1, sequences are concatenated
        query_starts, key_starts    [sequences + 1]: the start of each sequence, then the end of the last
    How
        path            "auto", "tiled" or "plain"; strict: fail instead of using another path
        compute         "f32" or "bf16": arithmetic of the matrix products
        context         a `Context`; default: the thread's own

    Every option accepts a list in place of an array. `out` is an array to write o to, of any of the three types;
    default: a new array of q's kind and type. `outputs` names fields of `AttentionOutputs`, or is {name: array} to
    write to; the result is then (o, AttentionOutputs). `heads` and `rows` select the heads and rows of probabilities
    and scores. `score_stage` is "raw", "capped" or "biased". `offsets` and `top` configure offset_mass and top_keys.
    `dropped_probabilities` returns p after dropout.

    A query that sees no key gives 0. Keys that a query does not see never affect its result, even if they are NaN.
    Results are bit-identical for every number of threads, batch size and padding. The header attention.h is the
    reference.

    Raises `InvalidArgument` or ValueError (shapes, strides, values, overlapping memory), `DTypeError` or TypeError
    (element types, arguments that are not arrays), `Unsupported`, `OutOfMemory`; nothing is written then. The call
    releases the GIL; any number of threads may call it.

        >>> o = attention(q, k, v, causal=True)
        >>> o, extra = attention(q, k, v, outputs=("lse", "probabilities"), heads=[3])  # B, T, S = 2, 7, 9
        >>> extra.probabilities.shape
        (2, 1, 7, 9)
    """
    inputs = Inputs()
    inputs.array("q", q)
    inputs.array("k", k)
    inputs.array("v", v)
    if options:
        inputs.options(options)
    key, values = tuple(inputs.key), inputs.values
    o, request, layouts = None, None, {}
    given: Mapping[str, Any] = {}
    if out is not None:
        o, address = _tensor.look_writable(out, "out")
    if outputs or heads is not None or rows is not None or offsets is not None or top != 1 or score_stage != "raw" or \
            dropped_probabilities:
        request = _request(outputs, options, heads, rows, offsets, top, score_stage,
                           dropped_probabilities)
        if isinstance(outputs, Mapping):
            given = outputs
            layouts = {name: _tensor.look_writable(array, name)[0]
                       for name, array in given.items()}
    whole = ("forward", key, o, request, *layouts.items())
    call = prepared(whole) or _Forward(key, o, request, layouts)
    kind = _tensor.kind_of(q, "q")
    if out is None:
        out = kind.empty(call.o_shape, call.o_type)
        address = _tensor.look(out, "out")[1]
    values.append(address)
    found = {}
    for name, shape, code in call.outputs:
        found[name] = given[name] if name in given else kind.empty(shape, code)
        values.append(_tensor.look(found[name], name)[1])
    for slot, value in zip(call.slots, values):
        slot.value = value
    status = run(_library_forward, context, inputs, call.arguments)
    finish(whole, call, inputs, status, {"o": "out"})
    return (out, AttentionOutputs(**found)) if request is not None else out


# ---- The plan ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AttentionPlan:
    """How `attention` would compute the same arguments. str() gives a readable table."""

    path: str
    """"tiled" or "plain"."""
    isa: str
    """The instruction set."""
    reason: str
    """One sentence on why this path was selected."""
    compute: str
    """Arithmetic of the matrix products: "f32", "int8" or "bf16"."""
    threads: int
    """Number of threads of the context."""
    key_block: int
    """Keys per softmax step."""
    row_block: int
    """Maximum number of query rows that one pass over the keys serves."""
    work_items: int
    """Work items that the threads share; 1: too small to wake another thread."""
    visible_pairs: int
    """Query-key pairs over batch and heads that causal, lengths, window and sink_keys allow."""
    flops: float
    """2 (D + Dv) visible_pairs, plus 2 D per pair for each additional pass."""
    bytes: float
    """Bytes of inputs and outputs, each counted once."""
    scratch_bytes: int
    """Scratch bytes of the context, over all threads."""
    keys_in_place: bool
    """True if keys and values are read in place; otherwise blocks are packed."""
    keys_shared: bool
    """True if work items are blocks of keys, because there are too few queries for all threads."""
    one_block: bool
    """True if the keys of a sequence are one block, and each row is finished in one step."""

    def __str__(self) -> str:
        width = max(len(field.name) for field in fields(self))
        return "\n".join(f"{field.name:{width}}  {_plan_text(getattr(self, field.name))}"
                         for field in fields(self))


def _plan_text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value)


@with_options
def explain(q: Any, k: Any, v: Any, *, outputs: str | Sequence[str] = (),
            heads: Numbers | None = None, rows: Numbers | None = None,
            offsets: Numbers | None = None, top: int = 1, score_stage: str = "raw",
            dropped_probabilities: bool = False, context: Context | None = None,
            **options: Unpack[AttentionOptions]) -> AttentionPlan:
    """Check the arguments of `attention` and return the plan of the call without computing it.

    Returns an `AttentionPlan`. Raises what `attention` raises.
    """
    inputs = Inputs()
    for name, array in (("q", q), ("k", k), ("v", v)):
        inputs.array(name, array)
    inputs.options(options)
    request = _request(outputs, options, heads, rows, offsets, top, score_stage,
                       dropped_probabilities)
    call = _Forward(inputs.key, None, request, {})
    for slot, value in zip(call.slots, inputs.values):
        slot.value = value
    desc, q_, k_, v_, _, wanted = call.arguments
    plan = _abi.AttentionPlan()
    context = chosen(context)
    with context as handle:
        check(library.mha_attention_explain(handle, desc, q_, k_, v_, None, wanted, C.byref(plan)))
    found: dict[str, Any] = {name: getattr(plan, name) for name, *_ in plan._fields_
                             if name != "flags"}
    found |= {name: bool(plan.flags & bit) for name, bit in _abi.PLAN_FLAGS.items()}
    found |= {"path": name_of(_abi.PATHS, plan.path), "isa": name_of(_abi.ISAS, plan.isa),
              "reason": plan.reason.decode(), "threads": context.threads,
              "compute": name_of(_abi.COMPUTE, plan.compute)}
    return AttentionPlan(**found)
