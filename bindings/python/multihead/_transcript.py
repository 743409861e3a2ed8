"""Transcripts of audio by Whisper, with times of words."""
from __future__ import annotations

import ctypes as C
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from . import _abi, _tensor
from ._audio import Floats, samples_of
from ._call import integer
from ._library import Context, check, default_context, model_library

if TYPE_CHECKING:
    from ._model import Model


class Segment(NamedTuple):
    """A part of the audio between two timestamps; times are in seconds."""

    start: float
    end: float
    tokens: list[int]


class Word(NamedTuple):
    """A word and its times in seconds."""

    text: str
    start: float
    end: float
    tokens: list[int]


@dataclass(frozen=True, repr=False)
class Transcript:
    """The text of audio."""

    text: str
    """Without timestamps."""
    tokens: list[int]
    """All tokens that the decoder wrote, timestamps included, without end tokens."""
    segments: list[Segment]
    """One for each pair of timestamps; without timestamps one in all."""
    words: list[Word] | None = None
    """With word_timestamps."""
    times: np.ndarray[Any, np.dtype[np.float64]] | None = None
    """With word_timestamps: the end of each token in seconds, like transformers' token_timestamps."""
    scores: Floats | None = None
    """With word_timestamps: how well the cross-attention of each head moves forward through the audio [layers,H]
    (`mha_align_rows`)."""
    heads: list[tuple[int, int]] | None = None
    """With word_timestamps: the heads that gave the times."""
    full: bool = False
    """Whether a window ended at max_tokens or at the last position."""

    def __repr__(self) -> str:
        return f"<multihead.Transcript: {len(self.segments)} segments, {len(self.tokens)} tokens>"


def alignment_heads(model: Model) -> list[tuple[int, int]]:
    """The published heads of a model that transcribes."""
    found = _abi.SpeechSettings()
    check(model_library().mha_model_speech_settings(model._handle, C.byref(found)))
    return _pairs(found.heads, found.head_count)


def _pairs(address: int | None, count: int) -> list[tuple[int, int]]:
    numbers = _tensor.numbers(address, 2 * count, np.int32).reshape(-1, 2).tolist() if count else []
    return [(layer, head) for layer, head in numbers]


def _made(model: Model, found: Any, words: bool) -> Transcript:
    tokens = _tensor.numbers(found.tokens, found.count, np.int32).tolist() if found.count else []
    parts = [found.segments[i] for i in range(found.segment_count)]
    spoken = [found.words[i] for i in range(found.word_count)]
    scores = None
    if words:
        scores = np.zeros((model.layers, model.num_heads), np.float32)
        if found.scores:
            scores[:] = np.ctypeslib.as_array(found.scores, scores.shape)
    return Transcript(
        found.text.decode(), tokens,
        [Segment(s.start, s.end, tokens[s.first:s.first + s.count]) for s in parts],
        [Word(w.text.decode(), w.start, w.end, tokens[w.first:w.first + w.count]) for w in spoken] if words else None,
        np.array([found.times[i] for i in range(found.count)]) if words else None, scores,
        _pairs(found.heads, found.head_count) if words else None, bool(found.full))


def transcribe(model: Model, source: Any, prompt: list[int], words: bool, timestamps: bool, max_tokens: int,
               heads: Sequence[tuple[int, int]] | None, context: Context | None) -> Transcript:
    """See `Model.transcribe`."""
    samples = samples_of(source, "source")
    if integer(max_tokens, "max_tokens") < 0:
        raise ValueError(f"max_tokens: {max_tokens} is not a number of tokens")
    given, chosen = np.array(prompt, np.int32), np.array(heads or [], np.int32).reshape(-1, 2)
    flags = _abi.TRANSCRIBE_FLAGS
    desc = _abi.TranscriptionDesc(
        flags=flags["words"] * words | flags["timestamps"] * timestamps, samples=samples.ctypes.data,
        count=len(samples), prompt=given.ctypes.data, prompt_count=len(given), max_tokens=max_tokens,
        heads=chosen.ctypes.data, head_count=len(chosen))
    found = _abi.Transcript()
    with context or default_context() as handle:
        check(model_library().mha_transcribe(handle, model._handle, C.byref(desc), C.byref(found)))
    try:
        return _made(model, found, words)
    finally:
        model_library().mha_transcript_free(C.byref(found))


__all__ = ["Segment", "Transcript", "Word"]
