"""Texts as tokens: by the model's tokenizer, or by words in models from 'multihead train'."""
from __future__ import annotations

import ctypes as C
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _abi, _tensor
from ._library import check, model_library

Ids = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True, repr=False)
class Tokens:
    """The tokens of a text, or of a text and its pair. len() is T."""

    ids: Ids
    """[T] int32."""
    texts: list[str]
    """[T], readable: "##ing" in WordPiece; in BPE the text of the token without its leading space."""
    special: np.ndarray[Any, np.dtype[np.bool_]]
    """[T]: True for tokens added by the tokenizer, such as [CLS]."""
    segments: Ids
    """[T]: the token types, 0 for the text and 1 for its pair."""
    spans: list[tuple[int, int] | None]
    """[T]: characters (begin, end) in the text or its pair; None for special tokens."""
    text: str = ""
    pair: str | None = None

    def __post_init__(self) -> None:
        if np.ndim(self.ids) != 1 or len(self.ids) and np.asarray(self.ids).dtype.kind not in "iu":
            raise ValueError("ids: whole numbers [T] are expected")
        for name in ("ids", "segments"):
            numbers = np.asarray(getattr(self, name))
            if numbers.size and not -2**31 <= numbers.min() <= numbers.max() < 2**31:
                raise ValueError(f"{name}: a number is beyond 32 bits")
        for name in ("texts", "special", "segments", "spans"):
            if len(getattr(self, name)) != len(self.ids):
                raise ValueError(f"{name}: {len(getattr(self, name))} for {len(self.ids)} tokens")

    def __repr__(self) -> str:
        return f"<{len(self)} tokens: {' '.join(self.texts)}>"

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.texts)


def _character_spans(text: str, data: bytes, begin: Iterable[int],
                     end: Iterable[int]) -> list[tuple[int, int]]:
    """Spans of bytes as spans of characters."""
    if len(text) == len(data):
        return list(zip(begin, end))
    number = np.cumsum([(byte & 0xC0) != 0x80 for byte in data] + [True]) - 1
    return [(int(number[a]), int(number[b])) for a, b in zip(begin, end)]


def utf8(text: str, name: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{name}: a str is expected, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: character {error.start} is half of a surrogate pair, which is "
                         "no text") from None


def read_raw(model: C.c_void_p, text: str, pair: str | None, max_tokens: int, *flags: str) -> _abi.Tokens:
    """A text as the library's arrays, for `mha_tokens_free`."""
    data = utf8(text, "text")
    second = None if pair is None else utf8(pair, "pair")
    how = _abi.TokensOptions(flags=sum(_abi.TOKENS_FLAGS[flag] for flag in flags),
                             max_tokens=max_tokens, advise_long=b"or pass truncate=True")
    found = _abi.Tokens()
    check(model_library().mha_tokens_read(model, C.byref(how), data, len(data), second,
                                          len(second or b""), C.byref(found)))
    return found


def read(model: C.c_void_p, text: str, pair: str | None = None, max_tokens: int = -1,
         *flags: str) -> Tokens:
    """The tokens of a text and its pair. max_tokens 0: the model's positions; -1: unlimited."""
    found = read_raw(model, text, pair, max_tokens, *flags)
    try:
        n = found.count
        sequence = _tensor.numbers(found.sequence, n, np.int8)
        spans: list[tuple[int, int] | None] = [None] * n
        for number, of in enumerate((text, pair or "")):
            at = [i for i in range(n) if sequence[i] == number and found.begin[i] >= 0]
            converted = _character_spans(of, of.encode(), (found.begin[i] for i in at),
                                         (found.end[i] for i in at))
            for i, span in zip(at, converted):
                spans[i] = span
        return Tokens(_tensor.numbers(found.ids, n, np.int32),
                      [text.decode(errors="replace") for text in found.labels[:n]] if n else [],
                      _tensor.numbers(found.special, n, np.bool_),
                      _tensor.numbers(found.types, n, np.int32), spans, text, pair)
    finally:
        model_library().mha_tokens_free(C.byref(found))


def label(model: C.c_void_p, token: int) -> str:
    """A token in readable form."""
    size = model_library().mha_token_label(model, token, None, 0) + 1
    text = C.create_string_buffer(size)
    model_library().mha_token_label(model, token, text, size)
    return text.value.decode(errors="replace")


class Writer:
    """Text assembled from tokens: yields whole characters."""

    def __init__(self, model: C.c_void_p) -> None:
        self._library = model_library()
        self._handle = C.c_void_p()
        check(self._library.mha_text_writer_create(model, None, 0, C.byref(self._handle)))

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.mha_text_writer_destroy(self._handle)

    def _new(self, function: Any, *arguments: Any) -> str:
        at, size = C.c_char_p(), C.c_size_t()
        check(function(self._handle, *arguments[:1], C.byref(at), C.byref(size), *arguments[1:]))
        return C.string_at(at, size.value).decode() if size.value else ""

    def add(self, token: int) -> str:
        """The part of the text that later tokens cannot change."""
        return self._new(self._library.mha_text_writer_add, token, C.byref(C.c_bool()))

    def end(self) -> str:
        """The rest of the text. Bytes of an incomplete character become U+FFFD."""
        return self._new(self._library.mha_text_writer_end)
