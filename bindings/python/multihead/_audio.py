"""Audio for Whisper: wav files, log-mel features and the rows of an encoder."""
from __future__ import annotations

import ctypes as C
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _abi, _tensor
from ._library import Context, check, default_context, file_name, model_library
from ._tokens import Tokens

if TYPE_CHECKING:
    from ._model import Model

Floats = np.ndarray[Any, np.dtype[np.float32]]


def read_audio(path: str | os.PathLike[str]) -> Floats:
    """The samples of a wav file, [N] from -1 to 1: mono, 16 kHz, PCM of 16, 24 or 32 bits or floats."""
    found = _abi.Audio()
    check(model_library().mha_audio_read(file_name(path), C.byref(found)))
    try:
        return np.ctypeslib.as_array(C.cast(found.samples, C.POINTER(C.c_float)), (found.count,)).copy() \
            if found.count else np.zeros(0, np.float32)
    finally:
        model_library().mha_audio_free(C.byref(found))


def samples_of(source: Any, name: str) -> Floats:
    """The samples [N] of a wav file or of an array. Integers are rejected: their scale is unknown."""
    given = np.asarray(read_audio(source) if isinstance(source, (str, os.PathLike)) else source)
    if given.dtype.kind != "f" or given.ndim != 1:
        raise ValueError(f"{name}: {given.dtype} {list(given.shape)}, expected a path, or one channel of floats [N] "
                         "from -1 to 1")
    return np.ascontiguousarray(given, np.float32)


def log_mel(samples: Any, *, bins: int = 80, frames: int = 3000, context: Context | None = None) -> Floats:
    """The log-mel features [bins,frames] of samples at 16 kHz, as WhisperFeatureExtractor of transformers computes
    them. Shorter audio is padded with silence."""
    given = samples_of(samples, "samples")
    features = np.zeros((bins, frames), np.float32)
    with context or default_context() as handle:
        check(model_library().mha_log_mel(handle, given.ctypes.data, len(given), C.byref(_tensor.tensor(features))))
    return features


def audio_input_of(model: Model) -> _abi.Struct | None:
    """The sizes of an encoder of audio; None: the model reads tokens."""
    found = _abi.AudioInput()
    status = model_library().mha_model_audio_input(model._handle, C.byref(found))
    return found if status == 0 else None


def encode_audio(encoder: Model, audio_input: Any, source: Any, maps: bool,
         context: Context | None) -> tuple[Tokens, Floats, Floats | None]:
    """The rows [1,S,E] of a wav file or of samples, labelled by their times, and the maps of self-attention [L,1,H,S,S]
    if `maps`."""
    features = log_mel(samples_of(source, "source"), bins=audio_input.bins, frames=audio_input.frames, context=context)
    size = int(audio_input.rows)
    rows = np.zeros((1, size, encoder.hidden_size), np.float32)
    seen = np.zeros((encoder.layers, 1, encoder.num_heads, size, size), np.float32) if maps else None
    with context or default_context() as handle:
        check(model_library().mha_model_encode_audio(
            handle, encoder._handle, C.byref(_tensor.tensor(features)), C.byref(_tensor.tensor(rows)),
            None if seen is None else C.byref(_tensor.tensor(seen))))
    tokens = Tokens(np.zeros(size, np.int32), [f"{n / 50:.2f}" for n in range(size)], np.zeros(size, np.bool_),
                    np.zeros(size, np.int32), [None] * size)
    return tokens, rows, seen


__all__ = ["log_mel", "read_audio"]
