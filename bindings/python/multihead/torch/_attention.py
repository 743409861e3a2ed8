"""scaled_dot_product_attention with the arguments of torch and of the library."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import torch
from torch.nn.attention.bias import CausalBias, CausalVariant

from .._call import MEANT, unknown_option
from . import _operator

if TYPE_CHECKING:
    from typing_extensions import Unpack

Numbers: TypeAlias = Sequence[int] | torch.Tensor


class AttentionOptions(TypedDict, total=False):
    """The options of `multihead.attention` that torch does not have; its documentation explains them."""

    bias: torch.Tensor | None
    q_offset: int | Numbers
    key_lengths: Numbers | None
    key_begins: Numbers | None
    window: tuple[int, int] | None
    sink_keys: int
    global_keys: torch.Tensor | None
    global_queries: torch.Tensor | None
    query_documents: torch.Tensor | None
    key_documents: torch.Tensor | None
    keep_blocks: torch.Tensor | None
    block_queries: int
    block_keys: int
    softcap: float
    alibi_slopes: torch.Tensor | None
    t5_table: torch.Tensor | None
    t5_max_distance: int
    t5_one_sided: bool
    shaw_keys: torch.Tensor | None
    shaw_values: torch.Tensor | None
    sink_logits: torch.Tensor | None
    gates: torch.Tensor | None
    query_starts: Numbers | None
    key_starts: Numbers | None


_OPTIONS = tuple(AttentionOptions.__annotations__)
_MEANT = MEANT | {
    "causal": "is_causal", "dropout": "dropout_p", "keep_mask": "attn_mask", "mask": "attn_mask",
    "attention_mask": "attn_mask", "key_padding_mask": "key_lengths, or attn_mask (True attends)"}
_SINGLE = {"alibi_slopes", "t5_table", "shaw_keys", "shaw_values", "sink_logits", "gates"}
_DOCUMENTS = {"query_documents", "key_documents"}
_PLACES = {name: i for i, name in enumerate(_operator.TENSORS)}
_BYTES = {"global_keys", "global_queries", "keep_blocks", "keep_mask"}


def _numbers(values: Any) -> torch.Tensor:
    if isinstance(values, torch.Tensor):
        return values.to(torch.int64).contiguous()
    return torch.tensor(values, dtype=torch.int64, device="cpu")


def _converted(name: str, value: torch.Tensor) -> torch.Tensor:
    """An option converted to the operator's element type; gradients pass through."""
    if name in _SINGLE:
        return value if value.dtype is torch.float32 else value.to(torch.float32)
    if name in _DOCUMENTS:
        return value if value.dtype is torch.int32 else value.to(torch.int32)
    if name in _BYTES and value.dtype not in (torch.bool, torch.uint8):
        raise TypeError(f"{name}: {value.dtype}, a tensor of bool is expected")
    return value


def dropout_seed() -> torch.Tensor:
    """A seed drawn from torch's generator, so that torch.manual_seed() repeats a run."""
    return torch.randint(0, (1 << 63) - 1, (), dtype=torch.int64, device="cpu")


def call(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, dropout: float = 0.0,
         **options: Any) -> list[torch.Tensor]:
    """Call the operator with options by name, without those that are None. Tensors have 4 axes."""
    tensors: list[torch.Tensor | None] = []
    numbers: dict[str, Any] = {}
    for name, x in zip(_operator.MAIN, (query, key, value)):
        _operator.check_kind(name, x)
    if dropout:
        options["dropout_seed"] = dropout_seed()
        numbers["dropout"] = dropout
    for name, value_of in options.items():
        if value_of is None:
            continue
        if name == "q_offset" and not isinstance(value_of, (int, torch.SymInt)):
            name = "q_offsets"
        at = _PLACES.get(name)
        if at is None:
            numbers[name] = list(value_of) if name == "window" else value_of
            continue
        if isinstance(value_of, torch.Tensor):
            _operator.check_kind(name, value_of)
        if at >= len(tensors):
            tensors += [None] * (at + 1 - len(tensors))
        tensors[at] = (_numbers(value_of) if name in _operator.NUMBERS
                       else _converted(name, value_of))
    found: list[torch.Tensor] = _operator.attention(query, key, value, *tensors, **numbers)
    return found


# ---- Shapes -----------------------------------------------------------------------------------------


def _last_contiguous(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _broadcast(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               grouped: bool) -> tuple[list[torch.Tensor], list[int]]:
    """query, key and value with 4 axes, and the result's axes before [T, Dv]."""
    own = 3 if grouped else 2
    for name, x in zip(_operator.MAIN, (query, key, value)):
        if x.dim() < own:
            raise ValueError(f"{name}: {x.dim()} dimensions, at least {own} are expected, "
                             f"[..., {'heads, ' if grouped else ''}length, size]")
    try:
        lead = list(torch.broadcast_shapes(*(x.shape[:-own] for x in (query, key, value))))
    except RuntimeError:
        raise ValueError("query, key and value: dimensions before the last "
                         f"{'three' if grouped else 'two'}, {tuple(query.shape[:-own])}, "
                         f"{tuple(key.shape[:-own])} and {tuple(value.shape[:-own])}, do not "
                         "broadcast" + ("" if grouped else ": pass enable_gqa=True for grouped "
                                        "heads")) from None
    heads = [query.shape[-3]] if grouped else []
    found = []
    for x in (query, key, value):
        x = x.expand(*lead, *x.shape[-own:])
        batch = lead if grouped else lead[:-1]
        middle = [x.shape[-3]] if grouped or lead else [1]
        found.append(x.reshape(math.prod(batch), *middle, *x.shape[-2:]))
    return found, lead + heads


def causal_offset(mask: CausalBias) -> int:
    """The q_offset of torch's causal masks."""
    lower = mask.variant == CausalVariant.LOWER_RIGHT
    return mask.seq_len_kv - mask.seq_len_q if lower else 0


def _mask(mask: torch.Tensor, lead: list[int], queries: int, keys: int) -> torch.Tensor:
    """A mask that broadcasts to [*lead, T, S], with at most 4 axes."""
    shape = (*lead, queries, keys)
    try:
        whole = mask.expand(shape)
    except RuntimeError:
        raise ValueError(f"attn_mask: {list(mask.shape)} does not broadcast to {list(shape)}") from None
    if mask.dim() <= 4 and len(lead) <= 2:
        return mask
    return whole.reshape(math.prod(lead[:-1]), lead[-1], queries, keys)


def scaled_dot_product_attention(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
        attn_mask: torch.Tensor | None = None, dropout_p: float = 0.0, is_causal: bool = False,
        scale: float | None = None, enable_gqa: bool = False, *, return_lse: bool = False,
        return_weights: bool | str = False, **options: Unpack[AttentionOptions]) -> Any:
    """`torch.nn.functional.scaled_dot_product_attention` on the CPU, with the options of `multihead.attention`.

        query [..., H, T, D]     key [..., Hk, S, D]     value [..., Hk, S, Dv]
        returns [..., H, T, Dv], of query's type; float32, float16 or bfloat16

    As in torch, dimensions before the last two broadcast. attn_mask broadcasts to [..., H, T, S] and is bool (True
    attends) or float (added), or a CausalBias of torch.nn.attention.bias. is_causal keeps keys s <= t; with
    q_offset=S-T the last query sees all keys. enable_gqa allows H to be a multiple of Hk. dropout_p always applies:
    pass 0 outside training. Its seed is drawn from torch's generator.

    Beyond torch's:
        return_lse      also return [..., H, T] f32, the logarithm of the sum of exp of the scores
        return_weights  True: also return [..., H, T, S] f32, before dropout; "dropped": after dropout, as torch's
                        modules return; "average": [..., T, S], the mean over heads
        options         those of `multihead.attention`: window, softcap, sink_logits, alibi_slopes,
                        key_lengths, key_begins, q_offset, query_documents, key_documents, bias
                        (beside attn_mask), t5_table, shaw_keys, gates, ...

    With return_lse or return_weights the result is a tuple: (out, lse), (out, weights) or (out, lse, weights). Options
    with one entry per sequence have B entries.

    Query, key, value, a float attn_mask, bias, alibi_slopes, t5_table, shaw_keys, shaw_values, sink_logits and gates
    have first derivatives, through all results. Memory is O(T + S) in both directions, also with dropout and masks.
    torch.compile and torch.export see one operator, multihead::attention. Nothing is copied if the last axes are
    contiguous, as in every model. The number of threads is torch.get_num_threads(), unless multihead.set_threads() or
    MHA_THREADS sets it. Under autocast, query, key and value are converted as in torch.

    Differences from torch: a query that sees no key always gives 0 (torch: the mean of the values if a float mask holds
    the lowest number everywhere). NaN in keys and values that no query sees has no effect (torch: NaN). is_causal and
    attn_mask apply together (torch: depends on the kernel). Gradients are deterministic. float64 raises TypeError.

    Raises TypeError, ValueError, NotImplementedError (other devices, second derivatives).

        >>> out = scaled_dot_product_attention(q, k, v, is_causal=True, window=(255, 0))
        >>> out, weights = scaled_dot_product_attention(q, k, v, return_weights=True)
    """
    if torch.is_autocast_enabled("cpu") and query.device.type == "cpu":
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = (x if x.dtype == torch.float64 else x.to(dtype)
                             for x in (query, key, value))
    for name, x in zip(_operator.MAIN, (query, key, value)):
        _operator.check_kind(name, x)
    of_q, of_k, of_v = query.shape, key.shape, value.shape
    batched = len(of_q) == len(of_k) == len(of_v) == 4 and (
        of_q[0] == of_k[0] == of_v[0] and of_k[1] == of_v[1]
        and (enable_gqa or of_k[1] in (1, of_q[1])))
    lead = [of_q[0], of_q[1]] if batched else []
    if not batched:
        (query, key, value), lead = _broadcast(query, key, value, enable_gqa)
    query, key, value = _last_contiguous(query), _last_contiguous(key), _last_contiguous(value)
    if not options and attn_mask is None and batched and not (return_lse or return_weights
                                                              or dropout_p):
        if scale is None:  # the dispatcher looks up every argument passed
            plain: torch.Tensor = _operator.attention(query, key, value, causal=is_causal)[0]
            return plain
        scaled: torch.Tensor = _operator.attention(query, key, value, causal=is_causal, scale=scale)[0]
        return scaled
    for name in options:
        if name not in _OPTIONS:
            raise unknown_option(name, "scaled_dot_product_attention, beyond torch's arguments", _OPTIONS,
                                 _MEANT)
    given: dict[str, Any] = dict(options)
    if isinstance(attn_mask, CausalBias):
        queries, keys = query.shape[2], key.shape[2]
        if (attn_mask.seq_len_q, attn_mask.seq_len_kv) != (queries, keys):
            raise ValueError(f"attn_mask: a CausalBias of {attn_mask.seq_len_q} queries and "
                             f"{attn_mask.seq_len_kv} keys, for {queries} queries and {keys} keys")
        if is_causal or "q_offset" in given:
            raise ValueError(f"attn_mask: a CausalBias and {'is_causal' if is_causal else 'q_offset'} given; "
                             "pass one of them")
        given |= {"causal": True, "q_offset": causal_offset(attn_mask)}
    elif attn_mask is not None:
        _operator.check_kind("attn_mask", attn_mask)
        if not query.is_meta:
            _operator.check_here("attn_mask", attn_mask)
        if attn_mask.dtype not in (torch.bool, torch.float32, torch.float16, torch.bfloat16):
            raise TypeError(f"attn_mask: {attn_mask.dtype}; bool, where true attends, or float32, "
                            "float16 or bfloat16, which is added, is expected")
        mask = _mask(attn_mask, lead, query.shape[2], key.shape[2])
        if attn_mask.dtype is torch.bool:
            given["keep_mask"] = mask
        elif given.get("bias") is not None:
            given["bias"] = given["bias"] + mask
        else:
            given["bias"] = mask
    outputs = _operator.LSE * return_lse
    if return_weights:
        outputs |= _weights_of(return_weights)
        if given.get("query_starts") is not None:
            raise NotImplementedError("return_weights: not for ragged batches; multihead.attention "
                                      "returns them, without gradients")
    if is_causal:
        given["causal"] = True
    if outputs:
        given["outputs"] = outputs
    found = call(query, key, value, dropout=dropout_p, scale=scale, **given)
    if not batched:
        found = _unflattened(found, lead, return_lse, return_weights)
    return tuple(found) if outputs else found[0]


def _weights_of(wanted: bool | str) -> int:
    kinds = {True: _operator.PROBABILITIES, "dropped": _operator.PROBABILITIES | _operator.DROPPED,
             "average": _operator.AVERAGE,
             "dropped average": _operator.AVERAGE | _operator.DROPPED}
    if wanted not in kinds:
        raise ValueError(f"return_weights: {wanted!r} is not one of {', '.join(map(repr, kinds))}")
    return kinds[wanted]


def _unflattened(found: list[torch.Tensor], lead: list[int], return_lse: bool,
                 return_weights: bool | str) -> list[torch.Tensor]:
    """Results with the axes that query, key and value broadcast to."""
    average = isinstance(return_weights, str) and "average" in return_weights
    shaped = []
    for i, x in enumerate(found):
        axes = lead[:-1] if average and i == len(found) - 1 else lead
        shaped.append(x.reshape(*axes, *x.shape[1 if axes is not lead else 2:]))
    return shaped
