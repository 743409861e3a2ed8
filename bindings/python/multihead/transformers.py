"""attn_implementation="multihead" for the models of transformers.

    import multihead.transformers
    multihead.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="multihead")

For a loaded model, call `model.set_attn_implementation("multihead")`.
"""
from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers import masking_utils
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.utils import TransformersKwargs, output_capturing

from .torch import _attention, _masks, _operator

__all__ = ["Mask", "attention_forward", "attention_mask", "register"]

NAME = "multihead"

# ---- Masks ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pattern:
    """The part of a mask that depends on positions, as options of attention. Positions are those of transformers, whose
    cache may have dropped the first keys."""

    causal: bool = False
    window: tuple[int, int] | None = None
    documents: torch.Tensor | None = None  # [B, positions]: equal numbers attend to each other


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(function.__code__.co_freevars, cells)}


def _joined(a: _Pattern | None, b: _Pattern | None) -> _Pattern | None:
    """The intersection of two patterns; None if it has no symbolic form."""
    if a is None or b is None or a.documents is not None and b.documents is not None:
        return None
    window = a.window or b.window
    if a.window and b.window:
        (left_a, right_a), (left_b, right_b) = a.window, b.window
        window = (_least(left_a, left_b), _least(right_a, right_b))
    documents = a.documents if a.documents is not None else b.documents
    return _Pattern(a.causal or b.causal, window, documents)


def _least(a: int, b: int) -> int:
    return max(a, b) if min(a, b) < 0 else min(a, b)


def _pattern(function: Callable[..., Any], batch: int, positions: int) -> _Pattern | None:
    """The symbolic form of a mask function of transformers, which is a closure from masking_utils;
    None for any other function."""
    if function is masking_utils.causal_mask_function:
        return _Pattern(causal=True)
    if function is masking_utils.bidirectional_mask_function:
        return _Pattern()
    if getattr(function, "__module__", None) != masking_utils.__name__:
        return None
    held = _closure(function)
    maker = function.__qualname__.partition(".")[0]
    if maker == "and_masks":
        found: _Pattern | None = _Pattern()
        for part in held["mask_functions"]:
            found = _joined(found, _pattern(part, batch, positions))
        return found
    if maker == "sliding_window_overlay":
        return _Pattern(window=(held["sliding_window"] - 1, -1))
    if maker == "sliding_window_bidirectional_overlay":
        return _Pattern(window=(held["sliding_window"],) * 2)
    if maker == "chunked_overlay":
        begin = held["left_padding"].reshape(-1, 1).expand(batch, 1)
        return _Pattern(documents=(torch.arange(positions, device=begin.device) - begin).div(
            held["chunk_size"], rounding_mode="floor"))
    if maker == "packed_sequence_mask_function":
        return _Pattern(documents=held["packed_sequence_mask"])
    if maker == "remap_positions_for_packed_sequence":
        # Within one sequence of a packed row, positions and indices have the same differences.
        return _pattern(held["mask_function"], batch, positions)
    return None


class Mask(torch.Tensor):
    """A mask as options of attention: [B,1,T,S], bool (True attends) or floating (added).

    Models that inspect or change their masks see a tensor, whose elements are computed on demand. The attention of this
    module reads `options` instead, so no T x S array is made.
    """

    options: dict[str, Any]
    _dense: Callable[[], torch.Tensor]

    @staticmethod
    def __new__(cls, shape: tuple[int, ...], dtype: torch.dtype, options: dict[str, Any],
                dense: Callable[[], torch.Tensor]) -> Mask:
        made: Mask = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, shape, dtype=dtype, device="cpu")
        made.options, made._dense = options, dense
        return made

    def dense(self) -> torch.Tensor:
        """The mask as an ordinary tensor."""
        return self._dense()

    def __repr__(self, **formats: Any) -> str:
        return f"multihead.transformers.Mask(shape={tuple(self.shape)}, {sorted(self.options)})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.dense().__reduce_ex__(protocol)

    def __deepcopy__(self, memory: Any) -> torch.Tensor:
        return self.dense()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (),
                           options: Any = None) -> Any:
        def plain(x: Any) -> Any:
            return x.dense() if isinstance(x, Mask) else x

        return function(*torch.utils._pytree.tree_map(plain, arguments),
                        **torch.utils._pytree.tree_map(plain, options or {}))


def _padding(padding: torch.Tensor | None, kv_length: int, kv_offset: int) -> dict[str, Any]:
    """The keys that a 2-D mask of all positions keeps."""
    if padding is None:
        return {}
    keep = masking_utils.prepare_padding_mask(padding, kv_length, kv_offset)
    return _masks.padding(keep[:, kv_offset:kv_offset + kv_length])


_not_ready: dict[tuple[int, int], set[type]] = {}
"""Configurations of models without SDPA support, with the number of modules and models that were inspected."""


@torch.compiler.assume_constant_result
def _adds_masks(config: type) -> bool:
    """True if models of a configuration add their masks to scores: transformers passes bool masks to classes with SDPA
    support; all others expect the masks of "eager". Inspecting all classes takes milliseconds, so it is repeated only
    if classes were added."""
    loaded = len(sys.modules), len(PreTrainedModel.__subclasses__())
    found = _not_ready.get(loaded)
    if found is None:
        classes = [PreTrainedModel]
        for model in classes:
            classes += model.__subclasses__()
        found = {model.config_class for model in classes if not model._supports_sdpa}
        _not_ready.clear()
        _not_ready[loaded] = found
    return config in found


def attention_mask(batch_size: int, q_length: int, kv_length: int, q_offset: Any = 0,
                   kv_offset: int = 0,
                   mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
                   attention_mask: torch.Tensor | None = None, local_size: int | None = None,
                   allow_is_causal_skip: bool = True, allow_is_bidirectional_skip: bool = False,
                   use_vmap: bool = False, device: Any = "cpu", dtype: torch.dtype = torch.float32,
                   config: Any = None, **others: Any) -> Any:
    """The function that `AttentionMaskInterface` calls for a model of this implementation, once per kind of layer.
    Returns a `Mask`, None if every query sees every key, or a tensor if the mask has no symbolic form and under
    torch.compile. Masks are additive and of `dtype` for models without SDPA support, bool for all others."""
    added = _adds_masks(type(config))
    tracing = use_vmap or torch.compiler.is_compiling() or torch.device(device).type != "cpu"
    if not tracing:
        q_offset = int(q_offset)  # a static cache updates it in place before a model may inspect its mask

    def dense(causal_skip: bool = False, bidirectional_skip: bool = False) -> Any:
        found = masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
            local_size, causal_skip, bidirectional_skip, use_vmap, device)
        if found is None or not added:
            return found
        return torch.zeros(found.shape, dtype=dtype, device=device).masked_fill_(
            ~found, torch.finfo(dtype).min)

    if tracing:
        return dense(allow_is_causal_skip and not added, allow_is_bidirectional_skip)
    positions = max(q_offset + q_length, kv_offset + kv_length)
    pattern = _pattern(mask_function, batch_size, positions)
    if pattern is None:
        return dense(False, allow_is_bidirectional_skip)
    options = _padding(attention_mask, kv_length, kv_offset)
    window = pattern.window
    if window is not None and pattern.causal:
        window = (window[0], 0)
    if pattern.causal:
        options["causal"] = True
    if window is not None:
        options["window"] = window
    if (pattern.causal or window) and q_offset != kv_offset:
        options["q_offset"] = q_offset - kv_offset
    if pattern.documents is not None:
        documents = pattern.documents.to(torch.int32)
        options["query_documents"] = documents[:, q_offset:q_offset + q_length]
        options["key_documents"] = documents[:, kv_offset:kv_offset + kv_length]
    if not options and allow_is_bidirectional_skip:
        return None
    return Mask((batch_size, 1, q_length, kv_length), dtype if added else torch.bool, options, dense)


# ---- Attention --------------------------------------------------------------------------------------


def _wants_weights(module: torch.nn.Module, options: dict[str, Any]) -> bool:
    """True if the caller of the model requested attentions."""
    collected = output_capturing._active_collector.get()
    if collected is not None:
        return any("attentions" in name for name in collected)
    return bool(options.get("output_attentions"))


_WITHOUT_EFFECT = (
    {"cache_position", "deterministic", "grid_thw", "input_ids", "inputs_embeds", "labels", "logits_to_keep",
     "past_key_values", "return_dict", "token_type_ids", "use_cache",
     "sliding_window"}  # included in the mask
    | TransformersKwargs.__annotations__.keys() | FlashAttentionKwargs.__annotations__.keys())
"""Arguments without effect on the formula, or taken by attention_forward."""


def _selected(indices: torch.Tensor, keys: int) -> torch.Tensor:
    """The mask [B,1,T,S] of keys [B,T,n] selected by a layer."""
    kept = indices.new_zeros((*indices.shape[:-1], keys), dtype=torch.bool)
    return kept.scatter_(-1, indices.long(), True).unsqueeze(1)


def attention_forward(module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor,
                      value: torch.Tensor, attention_mask: torch.Tensor | None,
                      dropout: float = 0.0, scaling: float | None = None,
                      is_causal: bool | None = None, softcap: float | None = None,
                      position_bias: torch.Tensor | None = None,
                      s_aux: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
                      indices: torch.Tensor | None = None,
                      **others: Any) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The function that `AttentionInterface` calls for each layer: (out [B,T,H,Dv], weights or None).

    s_aux or sinks are logits of an extra key without a value, [H] or [B,H,T,1]; indices [B,T,n] are the keys that a
    query sees. Weights [B,H,T,S] are computed if the model was called with output_attentions=True; as with "eager",
    they are taken after dropout and have gradients.

    Raises NotImplementedError with the argument's name for any other argument, except those known to have no effect.
    """
    if others.get("cache") is not None:
        raise NotImplementedError("attn_implementation=\"multihead\": continuous batching with paged "
                                  "caches is not supported; use \"sdpa\" for it")
    for name, given in others.items():
        if given is not None and given is not False and name not in _WITHOUT_EFFECT:
            raise NotImplementedError(
                f"attn_implementation=\"multihead\": {type(module).__name__} passes {name}, which is not "
                "supported; use \"eager\" for this model")
    options: dict[str, Any] = {}
    if isinstance(attention_mask, Mask) and (indices is not None or attention_mask.shape != (
            query.shape[0], 1, query.shape[2], key.shape[2])):
        attention_mask = attention_mask.dense()  # combined with another mask, or broadcast
    if isinstance(attention_mask, Mask):
        options = dict(attention_mask.options)
    elif attention_mask is not None:
        name = "keep_mask" if attention_mask.dtype is torch.bool else "bias"
        options[name] = attention_mask
    elif query.shape[2] > 1 and (
            getattr(module, "is_causal", True) if is_causal is None else is_causal) and not _adds_masks(
                type(getattr(module, "config", None))):
        options["causal"] = True  # as with "sdpa"; models without its support mean no mask
    if indices is not None:
        kept = _selected(indices, key.shape[2])
        options["keep_mask"] = kept & options["keep_mask"] if "keep_mask" in options else kept
    if position_bias is not None:
        bias = options.get("bias")
        options["bias"] = position_bias if bias is None else position_bias + bias
    sinks = s_aux if sinks is None else sinks
    varies = sinks is not None and sinks.dim() > 1  # varying by query
    outputs = _operator.LSE * varies
    weights_wanted = _wants_weights(module, others)
    if weights_wanted:
        outputs |= _operator.PROBABILITIES | _operator.DROPPED * bool(dropout)
    found = _attention.call(
        *(_attention._last_contiguous(x) for x in (query, key, value)), dropout=dropout,
        scale=scaling, sink_logits=None if varies else sinks, softcap=softcap,
        outputs=outputs or None, **options)
    out, weights = found[0], found[-1] if weights_wanted else None
    if sinks is not None and varies:
        share = torch.sigmoid(found[1].unsqueeze(-1) - sinks)  # of the keys, without the sink
        out = (out * share).to(query.dtype)
        weights = None if weights is None else weights * share
    return out.transpose(1, 2), None if weights is None else weights.to(query.dtype)


def register(name: str = NAME) -> None:
    """Register `attn_implementation="multihead"` with transformers, for every model that uses AttentionInterface, in
    training and generation, with dynamic and static caches.

    Causal masks, windows, chunks, packed sequences and padding on either side are passed symbolically; a mask composed
    by the model is passed as an array. Soft caps, sinks, position biases and grouped heads are supported. `model(...,
    output_attentions=True)` returns the weights, which transformers otherwise supports with "eager" only; without it
    they are not computed.

    Idempotent. Raises nothing.
    """
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
