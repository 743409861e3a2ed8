"""MultiheadAttention: torch's module and its functional form."""
from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention.bias import CausalBias

from . import _attention, _masks, _operator

_torch_forward = functional.multi_head_attention_forward


@dataclass
class _Weights:
    """The parameters of a module, under torch's names."""

    in_proj_weight: torch.Tensor | None
    in_proj_bias: torch.Tensor | None
    q_proj_weight: torch.Tensor | None
    k_proj_weight: torch.Tensor | None
    v_proj_weight: torch.Tensor | None
    bias_k: torch.Tensor | None
    bias_v: torch.Tensor | None
    out_proj_weight: torch.Tensor
    out_proj_bias: torch.Tensor | None
    add_zero_attn: bool
    sizes: tuple[int, int, int]  # rows of the projections of q, k and v

    @property
    def more_keys(self) -> int:
        """Extra keys that every query sees."""
        return (self.bias_k is not None) + self.add_zero_attn


def _project(w: _Weights, query: torch.Tensor, key: torch.Tensor,
             value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k and v, computed by one product if inputs are the same tensor."""
    linear, sizes = functional.linear, w.sizes
    weight, bias = w.in_proj_weight, w.in_proj_bias
    if weight is not None and query is key and key is value:
        return linear(query, weight, bias).split(sizes, -1)
    biases = (None,) * 3 if bias is None else bias.split(sizes)
    if weight is None:
        weights = (w.q_proj_weight, w.k_proj_weight, w.v_proj_weight)
    elif key is value:
        q_weight, kv_weight = weight.split([sizes[0], sizes[1] + sizes[2]])
        kv_bias = None if bias is None else bias.split([sizes[0], sizes[1] + sizes[2]])[1]
        return (linear(query, q_weight, biases[0]),
                *linear(key, kv_weight, kv_bias).split(sizes[1:], -1))
    else:
        weights = weight.split(sizes)
    for name, given in zip("qkv", weights):
        if given is None:
            raise AssertionError(f"{name}_proj_weight is None, and there is no in_proj_weight")
    return tuple(linear(x, y, z) for x, y, z in zip((query, key, value), weights, biases))


# ---- Masks ------------------------------------------------------------------------------------------


def _attn_mask(mask: torch.Tensor, batch: int, heads: int, queries: int, keys: int) -> torch.Tensor:
    """[T,S] or [B,H,T,S]."""
    expected = (queries, keys) if mask.dim() == 2 else (batch * heads, queries, keys)
    if tuple(mask.shape) != expected:
        raise RuntimeError(f"The shape of the {mask.dim()}D attn_mask is {mask.shape}, but should be "
                           f"{expected}.")
    return mask if mask.dim() == 2 else mask.unflatten(0, (batch, heads))


def _real(name: str, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype is not torch.bool and not torch.is_floating_point(mask):
        raise AssertionError(f"only bool and floating types of {name} are supported")
    return mask.float() if mask.dtype is torch.float64 else mask


def _mask_options(attn_mask: torch.Tensor | None, padding: torch.Tensor | None,
                  more: int) -> dict[str, Any]:
    """Convert torch's masks (True hides, or numbers are added) to options of attention; `more` keys
    follow."""
    options: dict[str, Any] = {}
    biases = []
    if attn_mask is not None:
        if attn_mask.dtype is torch.bool:
            options["keep_mask"] = functional.pad(~attn_mask, (0, more), value=True)
        else:
            biases.append(functional.pad(attn_mask, (0, more)) if more else attn_mask)
    if padding is not None and padding.dtype is not torch.bool:
        biases.append(functional.pad(padding, (0, more))[:, None, None, :])
    elif padding is not None and more:
        keep = functional.pad(~padding, (0, more), value=True)
        options |= _beside(options, {"keep_mask": keep[:, None, None, :]})
    elif padding is not None:
        options |= _beside(options, _masks.padding(~padding))
    if biases:
        options["bias"] = biases[0] if len(biases) == 1 else biases[0] + biases[1]
    return options


def _beside(options: dict[str, Any], padding: dict[str, Any]) -> dict[str, Any]:
    """Padding in combination with a keep_mask. It is marked as another document, which avoids a T x
    S mask."""
    if "keep_mask" not in options or "keep_mask" not in padding:
        return padding
    hidden = ~padding["keep_mask"][:, 0, 0, :]
    return {"key_documents": hidden.to(torch.int32),
            "query_documents": torch.zeros((1, 1), dtype=torch.int32, device="cpu")}


# ---- Heads ------------------------------------------------------------------------------------------


def _heads(x: torch.Tensor, size: int, batch_axis: int) -> torch.Tensor:
    """[B,H,L,size], a view of [B,L,H*size] or [L,B,H*size]."""
    x = x.unflatten(-1, (-1, size))
    return x.permute(0, 2, 1, 3) if batch_axis == 0 else x.permute(1, 2, 0, 3)


def _more_keys(w: _Weights, x: torch.Tensor, extra: torch.Tensor | None) -> torch.Tensor:
    """Keys or values [B,Hk,S,size], followed by the learned key or value and by zeros."""
    batch, heads, _, size = x.shape
    parts = [x]
    if extra is not None:
        parts.append(extra.reshape(1, heads, 1, size).to(x.dtype).expand(batch, -1, -1, -1))
    if w.add_zero_attn:
        parts.append(x.new_zeros(batch, heads, 1, size))
    return torch.cat(parts, 2) if parts[1:] else x


@dataclass
class _Call:
    """Settings of one forward call apart from its projections."""

    head_dim: int
    batch_axis: int
    dropout: float
    need_weights: bool
    average: bool
    nan_rows: bool
    options: dict[str, Any]
    static_k: torch.Tensor | None = None
    static_v: torch.Tensor | None = None
    prepare: Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]] | None = None


def _static(name: str, x: torch.Tensor, batch: int, size: int) -> torch.Tensor:
    """[B,H,S,D] of [B*H,S,D]."""
    if x.size(0) % max(batch, 1):
        raise AssertionError(f"expecting {name}.size(0) to be a multiple of the batch {batch}, but got "
                             f"{x.size(0)}")
    if x.size(2) != size:
        raise AssertionError(f"expecting {name}.size(2) of {size}, but got {x.size(2)}")
    return x.unflatten(0, (batch, -1))


def _attend(w: _Weights, call: _Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
            masks: Callable[[int, int, int, int], dict[str, Any]]
            ) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The formula: projections, heads, attention, W_o. masks maps B, H, T, S to options."""
    projected = _project(w, query, key, value)
    q, k, v = (_heads(x, call.head_dim, call.batch_axis) for x in projected)
    batch = q.shape[0]
    if call.static_k is not None:
        k = _static("static_k", call.static_k, batch, call.head_dim)
    if call.static_v is not None:
        v = _static("static_v", call.static_v, batch, call.head_dim)
    if call.prepare is not None:
        q, k = call.prepare(q, k)
    options = call.options | masks(batch, q.shape[1], q.shape[2], k.shape[2])
    k, v = _more_keys(w, k, w.bias_k), _more_keys(w, v, w.bias_v)
    outputs = 0
    if call.need_weights:
        outputs = _operator.AVERAGE if call.average else _operator.PROBABILITIES
        outputs |= _operator.DROPPED * bool(call.dropout) | _operator.LSE * call.nan_rows
    found = _attention.call(*(_attention._last_contiguous(x) for x in (q, k, v)),
                            dropout=call.dropout, outputs=outputs or None, **options)
    o, weights = found[0], found[-1] if call.need_weights else None
    if weights is not None:
        if call.nan_rows:
            hidden = found[1].isneginf()
            o = o.masked_fill(hidden[..., None], math.nan)
            weights = weights.masked_fill((hidden.any(1) if call.average else hidden)[..., None],
                                          math.nan)
        weights = weights.to(o.dtype)
    o = o.permute(0, 2, 1, 3) if call.batch_axis == 0 else o.permute(2, 0, 1, 3)
    return functional.linear(o.flatten(2), w.out_proj_weight, w.out_proj_bias), weights


def _checked(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, same: bool) -> None:
    if key.shape[:2] != value.shape[:2] or same and key.shape != value.shape:
        raise AssertionError(f"key shape {key.shape} does not match value shape {value.shape}")


def _forward(w: _Weights, call: _Call, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
             num_heads: int, key_padding_mask: torch.Tensor | None,
             attn_mask: torch.Tensor | None,
             is_causal: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The checks and reshapes of torch's forward before and after the formula."""
    if isinstance(attn_mask, CausalBias):
        offset = _attention.causal_offset(attn_mask)
        attn_mask = ~torch.ones(attn_mask.seq_len_q, attn_mask.seq_len_kv, dtype=torch.bool,
                                device="cpu").tril(offset)
    for name, x in (("query", query), ("key", key), ("value", value), ("attn_mask", attn_mask),
                    ("key_padding_mask", key_padding_mask), ("out_proj.weight", w.out_proj_weight)):
        if x is not None:
            _operator.check_here(name, x)
            if not x.is_nested or "mask" in name:
                _operator.check_kind(name, x)
    batched = functional._mha_shape_check(  # type: ignore[attr-defined]
        query, key, value, key_padding_mask, attn_mask, num_heads)
    if is_causal and attn_mask is None:
        raise RuntimeError("Need attn_mask if specifying the is_causal hint. You may use the "
                           "Transformer module method `generate_square_subsequent_mask` to create "
                           "this mask.")
    if attn_mask is not None:
        attn_mask = _real("attn_mask", attn_mask)
    if key_padding_mask is not None:
        key_padding_mask = _real("key_padding_mask", key_padding_mask)
    if query.is_nested or key.is_nested or value.is_nested:
        if attn_mask is not None or key_padding_mask is not None:
            raise ValueError("attn_mask, key_padding_mask: nested tensors have no padding; give none")
        return _nested(w, call, query, key, value), None
    if not batched:
        same_kv, same_q = key is value, query is key
        query = query.unsqueeze(call.batch_axis)
        key = query if same_q else key.unsqueeze(call.batch_axis)
        value = key if same_kv else value.unsqueeze(call.batch_axis)
        if key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
    _checked(query, key, value, w.in_proj_weight is not None)
    hint = (is_causal and key_padding_mask is None and not call.need_weights
            and not w.more_keys)

    def masks(batch: int, heads: int, queries: int, keys: int) -> dict[str, Any]:
        if hint:
            return {"causal": True}
        mask = None if attn_mask is None else _attn_mask(attn_mask, batch, heads, queries, keys)
        if key_padding_mask is not None and tuple(key_padding_mask.shape) != (batch, keys):
            raise AssertionError(f"key_padding_mask: expected shape {(batch, keys)}, but got "
                                 f"{tuple(key_padding_mask.shape)}")
        return _mask_options(mask, key_padding_mask, w.more_keys)

    out, weights = _attend(w, call, query, key, value, masks)
    if not batched:
        out = out.squeeze(call.batch_axis)
        weights = None if weights is None else weights.squeeze(0)
    return out, weights


# ---- Nested tensors ---------------------------------------------------------------------------------


def _flat(x: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    parts = x.unbind()
    return torch.cat(parts)[None], [part.shape[0] for part in parts]


def _starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device="cpu").cumsum(0)


def _nested(w: _Weights, call: _Call, query: torch.Tensor, key: torch.Tensor,
            value: torch.Tensor) -> torch.Tensor:
    """A ragged batch: concatenated sequences without padding."""
    if call.batch_axis != 0:
        raise ValueError("nested tensors need batch_first=True")
    flat_q, queries = _flat(query)
    flat_k, keys = (flat_q, queries) if key is query else _flat(key)
    flat_v, values = (flat_k, keys) if value is key else _flat(value)
    if keys != values or len(queries) != len(keys):
        raise ValueError(f"nested tensors: lengths {queries}, {keys} and {values} of query, key and "
                         "value: keys and values need the same, queries as many")
    q, k, v = (_heads(x, call.head_dim, 0) for x in _project(w, flat_q, flat_k, flat_v))
    if call.prepare is not None:
        raise ValueError("nested tensors: not with rope_base or qk_norm")
    if w.more_keys:
        k, v = (torch.cat([_more_keys(w, part, extra) for part in x.split(keys, 2)], 2)
                for x, extra in ((k, w.bias_k), (v, w.bias_v)))
    o = _attention.call(*(_attention._last_contiguous(x) for x in (q, k, v)),
                        dropout=call.dropout, query_starts=_starts(queries),
                        key_starts=_starts([n + w.more_keys for n in keys]), **call.options)[0]
    out = functional.linear(o.permute(0, 2, 1, 3).flatten(2)[0], w.out_proj_weight, w.out_proj_bias)
    if query.layout is torch.jagged:
        found: torch.Tensor = torch.nested.nested_tensor_from_jagged(out, query.offsets())
        return found
    return torch.nested.as_nested_tensor(list(out.split(queries)))


# ---- torch's interfaces -----------------------------------------------------------------------------

_DOUBLE = ("multihead has no float64: torch computes this module. Use .float(), or torch's own module "
           "if double precision is wanted")


@torch.compiler.assume_constant_result  # torch.compile calls it while it traces
def _warn_of_double() -> int:
    warnings.warn(_DOUBLE, stacklevel=3)
    return 0



def multi_head_attention_forward(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, embed_dim_to_check: int,
        num_heads: int, in_proj_weight: torch.Tensor | None, in_proj_bias: torch.Tensor | None,
        bias_k: torch.Tensor | None, bias_v: torch.Tensor | None, add_zero_attn: bool,
        dropout_p: float, out_proj_weight: torch.Tensor, out_proj_bias: torch.Tensor | None,
        training: bool = True, key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True, attn_mask: torch.Tensor | None = None,
        use_separate_proj_weight: bool = False, q_proj_weight: torch.Tensor | None = None,
        k_proj_weight: torch.Tensor | None = None, v_proj_weight: torch.Tensor | None = None,
        static_k: torch.Tensor | None = None, static_v: torch.Tensor | None = None,
        average_attn_weights: bool = True, is_causal: bool = False, *,
        nan_rows: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
    """`torch.nn.functional.multi_head_attention_forward`, with its arguments, shapes and errors. Inputs are [T,B,E] or
    [T,E]. `MultiheadAttention` lists the differences.

    static_k, static_v [B*H,S,D] replace the projected keys and values; H may then be smaller than the number of query
    heads.
    """
    if query.dtype is torch.float64:
        _warn_of_double()
        return _torch_forward(
            query, key, value, embed_dim_to_check, num_heads, in_proj_weight, in_proj_bias, bias_k,
            bias_v, add_zero_attn, dropout_p, out_proj_weight, out_proj_bias, training,
            key_padding_mask, need_weights, attn_mask, use_separate_proj_weight, q_proj_weight,
            k_proj_weight, v_proj_weight, static_k, static_v, average_attn_weights, is_causal)
    if (bias_k is None) != (bias_v is None):
        raise AssertionError("bias_k and bias_v belong together: one of them is None")
    if bias_k is not None and static_k is not None:
        raise AssertionError("bias cannot be added to static key.")
    if bias_v is not None and static_v is not None:
        raise AssertionError("bias cannot be added to static value.")
    embed_dim = query.shape[-1]
    if query.dim() in (2, 3) and embed_dim != embed_dim_to_check:
        raise AssertionError(f"was expecting embedding dimension of {embed_dim_to_check}, but got "
                             f"{embed_dim}")
    if embed_dim % num_heads:
        raise AssertionError(f"embed_dim {embed_dim} not divisible by num_heads {num_heads}")
    if not use_separate_proj_weight:
        q_proj_weight = k_proj_weight = v_proj_weight = None
    else:
        in_proj_weight = None
    weights = _Weights(in_proj_weight, in_proj_bias, q_proj_weight, k_proj_weight, v_proj_weight,
                       bias_k, bias_v, out_proj_weight, out_proj_bias, add_zero_attn,
                       (embed_dim,) * 3)
    call = _Call(embed_dim // num_heads, 1, dropout_p if training else 0.0, need_weights,
                 average_attn_weights, nan_rows, {}, static_k, static_v)
    return _forward(weights, call, query, key, value, num_heads, key_padding_mask, attn_mask,
                    is_causal)


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`, computed by this library: the same constructor, forward and state_dict, and the
    same results and gradients within rounding. Memory is O(T + S) unless weights are requested.

        mha = MultiheadAttention(512, 8, batch_first=True)
        mha.load_state_dict(torch_module.state_dict())

    Additional arguments:
        kv_heads    number of key/value heads, a divisor of num_heads; the parameters are then q_proj_weight,
                    k_proj_weight, v_proj_weight
        window      (left, right): number of keys visible before and after a query's position; -1: all
        softcap     scores become softcap tanh(score / softcap); 0: none
        sinks       a learned logit per head in the softmax's denominator: parameter sinks [H]
        rope_base   base of rotary positions of q and k, with halves paired as in Llama; None: none
        qk_norm     RMS norm of q and k over the head: parameters q_norm.weight, k_norm.weight
        nan_rows    a query that sees no key gives NaN where torch gives NaN

    Nested tensors (batch_first, both layouts) are ragged batches, in training too; the returned weights are then None.
    A query that sees no key has weights and heads of 0, so out is out_proj.bias; torch gives NaN if need_weights,
    otherwise the same. The hint is_causal works as in torch: it requires attn_mask, and replaces it if neither weights
    nor padding are given. float64 uses torch's own code, with a warning; combined with an additional argument it raises
    TypeError.

    In eval mode torch.nn.TransformerEncoderLayer bypasses this module and calls its own kernel, unless an additional
    argument is set; torch.backends.mha.set_fastpath_enabled(False) prevents that.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True,
                 add_bias_kv: bool = False, add_zero_attn: bool = False, kdim: int | None = None,
                 vdim: int | None = None, batch_first: bool = False, device: Any = None,
                 dtype: Any = None, *, kv_heads: int | None = None,
                 window: tuple[int, int] | None = None, softcap: float = 0.0, sinks: bool = False,
                 rope_base: float | None = None, qk_norm: bool = False,
                 nan_rows: bool = False) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, add_bias_kv, add_zero_attn, kdim, vdim,
                         batch_first, device, dtype)
        factory = {"device": device, "dtype": dtype}
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.window, self.softcap, self.rope_base = window, softcap, rope_base
        self.nan_rows = nan_rows
        if self.kv_heads < 1 or num_heads % self.kv_heads:
            raise ValueError(f"kv_heads: {kv_heads} does not divide num_heads {num_heads}")
        if rope_base is not None and self.head_dim % 2:
            raise ValueError(f"rope_base: the head size {self.head_dim} is odd")
        if self.kv_heads != num_heads:
            self._group(add_bias_kv, **factory)
        self.sinks = torch.nn.Parameter(torch.zeros(num_heads, **factory)) if sinks else None
        self.q_norm = torch.nn.RMSNorm(self.head_dim, 1e-6, **factory) if qk_norm else None
        self.k_norm = torch.nn.RMSNorm(self.head_dim, 1e-6, **factory) if qk_norm else None
        self.extras = bool(window or softcap or sinks or qk_norm or rope_base
                           or self.kv_heads != num_heads)
        if self.extras:
            self._qkv_same_embed_dim = False  # prevents torch's layers from calling their own kernel

    def _group(self, add_bias_kv: bool, **factory: Any) -> None:
        """Parameters for fewer key/value heads."""
        rows = self.kv_heads * self.head_dim
        shapes = {"q_proj_weight": (self.embed_dim, self.embed_dim),
                  "k_proj_weight": (rows, self.kdim), "v_proj_weight": (rows, self.vdim)}
        for name, shape in shapes.items():
            parameter = torch.nn.Parameter(torch.empty(shape, **factory))
            torch.nn.init.xavier_uniform_(parameter)
            self.register_parameter(name, parameter)
        self.register_parameter("in_proj_weight", None)
        if self.in_proj_bias is not None:
            self.register_parameter("in_proj_bias", torch.nn.Parameter(
                torch.zeros(self.embed_dim + 2 * rows, **factory)))
        if add_bias_kv:
            for name in ("bias_k", "bias_v"):
                parameter = torch.nn.Parameter(torch.empty((1, 1, rows), **factory))
                torch.nn.init.xavier_normal_(parameter)
                self.register_parameter(name, parameter)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        half = self.head_dim // 2
        steps = torch.arange(half, dtype=torch.float32, device=x.device)
        rates = self.rope_base ** (-steps / half)  # type: ignore[operator]
        angles = torch.arange(x.shape[2], dtype=torch.float32, device=x.device)[:, None] * rates
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def _prepare(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        if self.rope_base is not None:
            q, k = self._rotated(q), self._rotated(k)
        return q, k

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
                key_padding_mask: torch.Tensor | None = None, need_weights: bool = True,
                attn_mask: torch.Tensor | None = None, average_attn_weights: bool = True,
                is_causal: bool = False) -> tuple[torch.Tensor, torch.Tensor | None]:
        """(out, weights or None), with the shapes of torch's forward."""
        if query.dtype is torch.float64:
            if self.extras:
                raise TypeError("float64 is not supported: call .float() on the module and its input")
            _warn_of_double()
            return super().forward(query, key, value, key_padding_mask, need_weights, attn_mask,
                                   average_attn_weights, is_causal)
        rows = self.kv_heads * self.head_dim
        weights = _Weights(self.in_proj_weight, self.in_proj_bias, self.q_proj_weight,
                           self.k_proj_weight, self.v_proj_weight, self.bias_k, self.bias_v,
                           self.out_proj.weight, self.out_proj.bias, self.add_zero_attn,
                           (self.embed_dim, rows, rows))
        options: dict[str, Any] = {"window": self.window, "softcap": self.softcap or None,
                                   "sink_logits": self.sinks}
        prepare = self._prepare if self.q_norm is not None or self.rope_base is not None else None
        call = _Call(self.head_dim, 0 if self.batch_first else 1,
                     self.dropout if self.training else 0.0, need_weights, average_attn_weights,
                     self.nan_rows, options, prepare=prepare)
        return _forward(weights, call, query, key, value, self.num_heads, key_padding_mask,
                        attn_mask, is_causal)
