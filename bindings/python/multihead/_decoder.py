"""Decoding step by step, with caches of keys and values."""
from __future__ import annotations

import ctypes as C
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from . import _abi, _tensor
from ._call import truth
from ._library import check, default_context, library

if TYPE_CHECKING:
    from ._model import Model

# Type and scales of keys, by the names of `multihead generate --cache`.
_TYPES = {"f32": ("f32", "position"), "f16": ("f16", "position"), "bf16": ("bf16", "position"),
          "int8": ("i8", "position"), "int8-channel": ("i8", "channel")}
_MOST_STEP = 512  # tokens per piece of a prompt


class DecoderOptions(TypedDict, total=False):
    """The options of `Decoder`."""

    batch: int
    capacity: int
    type: str
    page: int
    pages: int
    window: int
    sinks: int
    streaming: bool
    latent: bool
    state_interval: int
    state_copies: int


def describe(type: str = "f32", page: int = 0, pages: int = 0, window: int = 0, sinks: int | None = None,
             streaming: bool = False, batch: int = 0, capacity: int = 0, max_step: int = 0,
             memory_capacity: int = 0, latent: bool = False, state_interval: int = 0, state_copies: int = 0) -> Any:
    """The caches of a decoder."""
    if type not in _TYPES:
        raise ValueError(f"type: {type!r} is not one of {', '.join(_TYPES)}")
    code, scales = _TYPES[type]
    return _abi.DecoderDesc(
        flags=_abi.DECODER_FLAGS["windows"] | _abi.DECODER_FLAGS["streaming"] * truth(streaming, "streaming")
        | _abi.DECODER_FLAGS["latent"] * truth(latent, "latent"),
        cache_type=_abi.DTYPES[code], key_scales=_abi.KV_SCALES[scales], page_size=page, pages=pages, window=window,
        sink_keys=(4 if window else 0) if sinks is None else sinks, batch=batch, capacity=capacity, max_step=max_step,
        memory_capacity=memory_capacity, state_interval=state_interval, state_copies=state_copies)


class Decoder:
    """The caches of a decoding model, for `batch` sequences of different lengths.

        capacity   maximum tokens of a sequence; default: the model's positions
        type       element type of the cache: "f32", "f16", "bf16", "int8", "int8-channel"
        page       positions per page of the caches; 0: one page per sequence
        pages      pages of each layer for all sequences; 0: enough for `capacity`
        window     number of last tokens that a token attends to, including itself; 0: all
        sinks      number of first tokens that it also attends to; default 4 with a window
        streaming  count positions within the cache (StreamingLLM), so that a text may exceed the model's positions
        latent     cache the latents of latent attention, not the keys and values that they expand to: less memory, but
                   each step expands them again
        state_interval  copy the states of recurrent layers whenever the number of tokens becomes a multiple of this, so
                   that `truncate` and `fork` can go back there; 0: only in `keep`
        state_copies  maximum number of copies of a sequence. A further copy replaces the oldest. Default: as many
                   as state_interval needs
        memory     [1,S,E] the rows of an encoder (`Model.decoder` gives them), for every sequence

    With type "f32" and no window, logits are bit-identical to one pass over the whole text. Calls from several threads
    wait for each other. docs/caches.md lists the costs of types and windows.
    """

    def __init__(self, model: Model, *, batch: int = 1, capacity: int = 0, type: str = "f32",
                 page: int = 0, pages: int = 0, window: int = 0, sinks: int | None = None,
                 streaming: bool = False, latent: bool = False, state_interval: int = 0, state_copies: int = 0,
                 memory: np.ndarray[Any, Any] | None = None) -> None:
        if batch < 1:
            raise ValueError(f"batch: {batch} is not a number of sequences from 1 on")
        self.model = model
        self.batch = batch
        self._handle = C.c_void_p()
        self._lock = threading.Lock()
        self._vocab_size = int(model._desc.vocab_size)
        self.capacity = most = capacity or model.max_positions
        self.max_step = min(most, _MOST_STEP)
        desc = describe(type, page, pages, window, sinks, streaming, batch, capacity, self.max_step,
                        0 if memory is None else memory.shape[1], latent, state_interval, state_copies)
        with default_context() as handle:
            check(library.mha_decoder_create(handle, model._net, C.byref(desc),
                                             C.byref(self._handle)))
            if memory is not None:
                rows = np.ascontiguousarray(np.repeat(memory, batch, 0))
                check(library.mha_decoder_set_memory(handle, self._handle, C.byref(_tensor.tensor(rows)), None))

    def __del__(self, destroy: Any = library.mha_decoder_destroy) -> None:
        if getattr(self, "_handle", None):
            destroy(self._handle)

    @property
    def lengths(self) -> list[int]:
        """The number of tokens in each sequence."""
        return [int(n) for n in library.mha_decoder_lengths(self._handle)[:self.batch]]

    @property
    def cache_bytes(self) -> int:
        """The size of the caches in bytes. Unused bytes are address space only."""
        return int(library.mha_decoder_cache_bytes(self._handle))

    def step(self, tokens: Sequence[int] | Sequence[Sequence[int]] | np.ndarray[Any, Any],
             counts: Sequence[int] | None = None) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Process the next tokens of every sequence and return their logits.

            tokens  [n] for one sequence, or [batch,n]; row b has counts[b] tokens, then padding
            counts  [batch]; default: all

        Returns [n,V], or [batch,n,V]; rows of padding are meaningless.
        """
        ids, single = self._ids(tokens), np.ndim(tokens) == 1
        logits = np.zeros((*ids.shape, self._vocab_size), np.float32)
        self._run(ids, logits, counts)
        return logits[0] if single else logits

    def _ids(self, tokens: Any) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Tokens as [batch,n]."""
        ids = np.asarray(tokens)
        if ids.ndim == 1:
            ids = ids[None]
        if ids.ndim != 2 or ids.shape[0] != self.batch or ids.dtype.kind not in "iu":
            raise ValueError(f"tokens: whole numbers [n] or [{self.batch},n] are expected, not "
                             f"{ids.dtype} {list(ids.shape)}")
        if ids.size and not (0 <= ids.min() and ids.max() < self._vocab_size):
            raise ValueError(f"tokens: not all are in 0 .. {self._vocab_size - 1}")
        return np.ascontiguousarray(ids, np.int32)

    def _run(self, ids: np.ndarray[Any, Any], logits: np.ndarray[Any, Any] | None,
             counts: Sequence[int] | None = None) -> None:
        numbers = None if counts is None else _tensor.int64s(counts, "counts")
        if numbers is not None and len(numbers) != self.batch:
            raise ValueError(f"counts: {len(numbers)} numbers, expected {self.batch}")
        with self._lock, default_context() as handle:
            check(library.mha_decoder_step_rows(
                handle, self._handle, C.byref(_tensor.tensor(ids)), None,
                None if numbers is None else numbers.ctypes.data_as(_abi.Int64Pointer),
                None if logits is None else C.byref(_tensor.tensor(logits))))

    def prefill(self, tokens: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Process the tokens of one sequence in pieces and return the logits of the last, [V]."""
        if np.ndim(tokens) != 1 or len(tokens) == 0:
            raise ValueError("tokens: at least one is expected, [n]")
        ids = self._ids(tokens)[0]
        held = self.lengths[0]
        if held + len(ids) > self.capacity:
            raise ValueError(f"tokens: {len(ids)} after {held} are more than the capacity of "
                             f"{self.capacity}; nothing was processed")
        for at in range(0, len(ids) - 1, self.max_step):
            self._run(ids[None, at:min(at + self.max_step, len(ids) - 1)], None)
        last: np.ndarray[Any, np.dtype[np.float32]] = self.step(ids[-1:])[0]
        return last

    def truncate(self, length: int, sequence: int | None = None) -> None:
        """Truncate a sequence, or all longer ones, to its first tokens, for example after a rejected draft. Length 0
        starts a new text. Recurrent layers return only to lengths with a copy of their states: see `restorable`."""
        with self._lock:
            check(library.mha_decoder_truncate(self._handle, length) if sequence is None else
                  library.mha_decoder_truncate_sequence(self._handle, sequence, length))

    def keep(self, sequence: int = 0) -> None:
        """Copy the states of recurrent layers, so that `truncate` and `fork` can go back to the present length."""
        with self._lock, default_context() as handle:
            check(library.mha_decoder_keep(handle, self._handle, sequence))

    def restorable(self, length: int, sequence: int = 0) -> int:
        """The greatest length, at most `length`, to which a sequence can be truncated. Repeat the tokens after it to
        reach another length."""
        if not 0 <= sequence < self.batch:
            raise ValueError(f"sequence: {sequence} is not in 0 .. {self.batch - 1}")
        with self._lock:
            return int(library.mha_decoder_restorable(self._handle, sequence, length))

    def fork(self, source: int, target: int, length: int) -> None:
        """Replace sequence `target` by the first tokens of `source`: a branch, or a shared prompt. The two share pages
        until one of them writes."""
        with self._lock:
            check(library.mha_decoder_fork(self._handle, source, target, length))


class Generation:
    """A prompt that a model continues: the pieces of text."""

    def __init__(self, model: Model, prompt: list[int], max_tokens: int, stops: list[bytes],
                 sampling: _abi.Sampling, cache: _abi.DecoderDesc, rows: np.ndarray[Any, Any] | None) -> None:
        self._model, self._library, self._handle = model, model._library, C.c_void_p()
        ids, memory = np.array(prompt, np.int32), None if rows is None else _tensor.pointer(rows)
        texts = (C.c_char_p * len(stops))(*stops)
        desc = _abi.GenerationDesc(prompt=ids.ctypes.data, prompt_count=len(ids), max_tokens=max_tokens,
                                   stops=C.cast(texts, C.POINTER(C.c_char_p)), stop_count=len(stops), sampling=C.pointer(sampling),
                                   cache=C.pointer(cache), memory=memory)
        with default_context() as handle:
            check(self._library.mha_generation_create(handle, model._handle, C.byref(desc), C.byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.mha_generation_destroy(self._handle)

    def __iter__(self) -> Iterator[str]:
        step = _abi.GenerationStep()
        text = C.c_void_p.from_buffer(step, _abi.GenerationStep.text.offset)
        while step.state == _abi.GENERATION["continues"]:
            with default_context() as handle:
                check(self._library.mha_generation_next(handle, self._handle, C.byref(step)))
            if step.bytes:
                yield C.string_at(text.value or 0, step.bytes).decode()
