"""Texts as a model reads them: its tokenizer, or its words where 'multihead train' made it."""
from __future__ import annotations

import ctypes as C
import re
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
    """[T], as people read them: "##ing" of WordPiece; of BPE what a token adds to a text, without the
    space in front."""
    special: np.ndarray[Any, np.dtype[np.bool_]]
    """[T]: True for tokens that the text does not have, such as [CLS]."""
    segments: Ids
    """[T]: 0 for the text, 1 for its pair, as the model is told."""
    spans: list[tuple[int, int] | None]
    """[T]: characters (begin, end) of the text or its pair; None of special tokens."""
    text: str = ""
    pair: str | None = None

    def __post_init__(self) -> None:
        if np.ndim(self.ids) != 1 or len(self.ids) and np.asarray(self.ids).dtype.kind not in "iu":
            raise ValueError("ids: whole numbers [T] are expected")
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


def _utf8(text: str, name: str) -> bytes:
    if not isinstance(text, str):
        raise TypeError(f"{name}: a str is expected, not {type(text).__name__}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name}: character {error.start} is half of a surrogate pair, which is "
                         "no text") from None


def _label(data: bytes) -> str:
    """Bytes of a token as a reader sees them: without the space in front, blanks made visible."""
    if data.strip(b" "):
        data = data[1:] if data[:1] == b" " else data
    else:
        return "\u2423" * len(data)
    text = data.decode(errors="surrogateescape")
    for blank, shown in (("\n", "\\n"), ("\t", "\\t"), ("\r", "\\r")):
        text = text.replace(blank, shown)
    return "".join(f"<0x{ord(c) - 0xDC00:02X}>" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in text)


def _too_long(most: int) -> ValueError:
    return ValueError(f"the text has too many tokens, the limit is {most}: shorten it, or pass "
                      "truncate=True")


class Pieces:
    """A tokenizer of WordPiece or BPE. It belongs to the model."""

    def __init__(self, handle: int) -> None:
        self._library = model_library()
        self._handle = handle
        info = _abi.TokenizerInfo()
        check(self._library.mha_tokenizer_describe(handle, C.byref(info)))
        self.count: int = info.vocab_size
        self.begin: int = info.bos_id
        self.end: int = info.eos_id
        self._wordpiece = info.kind == 0
        self.joins = ""

    def name(self, token: int) -> str:
        found = self._library.mha_tokenizer_token(self._handle, token)
        return "?" if found is None else str(found.decode(errors="replace"))

    def added(self, token: int) -> tuple[bytes, bool]:
        """What a token adds to a text, and whether it is a special one, which adds nothing."""
        at, size, special = C.c_char_p(), C.c_size_t(), C.c_int()
        check(self._library.mha_tokenizer_token_bytes(self._handle, token, C.byref(at),
                                                      C.byref(size), C.byref(special)))
        return C.string_at(at, size.value) if size.value else b"", bool(special.value)

    def label(self, token: int) -> str:
        if not self._wordpiece and 0 <= token < self.count:
            data, special = self.added(token)
            if not special:
                return _label(data)
        return self.name(token)

    def is_word(self, token: int) -> bool:
        """Whether a token is a word of small letters, at least two."""
        if self._wordpiece:
            word = self.name(token).encode()
        else:
            word, special = self.added(token)
            if special or word[:1] != b" ":
                return False
            word = word[1:]
        return re.fullmatch(rb"[a-z]{2,}", word) is not None

    def encode(self, text: str, pair: str | None, max_tokens: int, truncate: bool) -> Tokens:
        data = _utf8(text, "text")
        second = None if pair is None else _utf8(pair, "pair")
        options = _abi.EncodeOptions(max_length=max_tokens, truncation=1,
                                     flags=0 if truncate else _abi.ENCODE_FLAGS["stop"])
        found = _abi.Encoding()
        check(self._library.mha_tokenizer_encode(
            self._handle, C.byref(options), data, len(data), second, len(second or b""),
            C.byref(found)))
        try:
            n = found.count
            if sum(found.dropped) and not truncate:
                raise _too_long(max_tokens)
            ids = _tensor.numbers(found.ids, n, np.int32)
            sequence = _tensor.numbers(found.sequence, n, np.int8)
            spans: list[tuple[int, int] | None] = [None] * n
            for number, (of, raw) in enumerate(((text, data), (pair or "", second or b""))):
                at = [i for i in range(n) if sequence[i] == number and found.begin[i] >= 0]
                converted = _character_spans(of, raw, (found.begin[i] for i in at),
                                             (found.end[i] for i in at))
                for i, span in zip(at, converted):
                    spans[i] = span
            return Tokens(ids, [self.label(int(i)) for i in ids],
                          _tensor.numbers(found.special, n, np.bool_),
                          _tensor.numbers(found.type_ids, n, np.int32), spans, text, pair)
        finally:
            self._library.mha_encoding_free(C.byref(found))


class Words:
    """The words of a model that 'multihead train' saved. They belong to the model."""

    def __init__(self, handle: int) -> None:
        self._library = model_library()
        self._handle = handle
        self.count: int = self._library.mha_vocabulary_count(handle)
        self.begin: int = self._library.mha_vocabulary_begin(handle)
        self.end: int = self._library.mha_vocabulary_end(handle)
        splitting = self._library.mha_vocabulary_splitting(handle)
        self.joins = "" if splitting == _abi.SPLITTING["characters"] else " "

    def name(self, token: int) -> str:
        found = self._library.mha_vocabulary_word(self._handle, token)
        return "?" if found is None else str(found.decode(errors="replace"))

    label = name

    def added(self, token: int) -> tuple[bytes, bool]:
        return self.name(token).encode(), token in (self.begin, self.end)

    def is_word(self, token: int) -> bool:
        return not self.name(token).startswith("<")

    def _locate(self, data: bytes) -> tuple[list[int], list[int], list[int]]:
        room = len(data) + 1
        ids = np.empty(room, np.int32)
        begin, end = np.empty(room, np.int64), np.empty(room, np.int64)
        count = C.c_int64()
        check(self._library.mha_vocabulary_locate_normalised(
            self._handle, data, len(data), ids.ctypes.data, begin.ctypes.data, end.ctypes.data,
            room, C.byref(count)))
        n = count.value
        return ids[:n].tolist(), begin[:n].tolist(), end[:n].tolist()

    def encode(self, text: str, pair: str | None, max_tokens: int, truncate: bool) -> Tokens:
        data = _utf8(text, "text")
        ids, begin, end = self._locate(data)
        if 0 < max_tokens < len(ids) and not truncate:
            raise _too_long(max_tokens)
        spans = _character_spans(text, data, begin, end)
        if truncate:
            ids, spans = ids[:max_tokens], spans[:max_tokens]
        labels = [self.label(i) for i in ids]
        special = [i == 0 and token == self.begin for i, token in enumerate(ids)]
        return Tokens(np.array(ids, np.int32), labels, np.array(special, np.bool_),
                      np.zeros(len(ids), np.int32),
                      [None if first else span for first, span in zip(special, spans)], text)


def _shown(data: bytes, last: bool) -> tuple[str, int]:
    """Bytes as text, and how many of them it has: all but those that may still become a character."""
    text, at, broken = "", 0, C.c_size_t(1)
    while at < len(data) and broken.value:
        rest = data[at:]
        whole = model_library().mha_utf8_span(rest, len(rest), C.byref(broken))
        if last and broken.value == 0:
            broken.value = len(rest) - whole
        text += rest[:whole].decode() + "\ufffd" * bool(broken.value)
        at += whole + broken.value
    return text, at


class Writer:
    """A text that grows by tokens: whole characters as they come, and nothing of a stop text."""

    def __init__(self, tokenizer: Pieces | Words, stops: tuple[str, ...]) -> None:
        self._tokenizer = tokenizer
        self._stops = [_utf8(stop, "stop") for stop in stops if stop]
        self._rest = b""  # not shown yet
        self._joint = b""
        self.stopped = False

    def add(self, token: int) -> str:
        """The part of the text that is certain now."""
        data, special = self._tokenizer.added(token)
        if special:
            return ""
        self._rest += self._joint + data
        self._joint = self._tokenizer.joins.encode()
        places = [at for stop in self._stops if (at := self._rest.find(stop)) >= 0]
        if places:
            self.stopped = True
            self._rest = self._rest[:min(places)]
            return self.end()
        held = max((size for stop in self._stops for size in range(1, len(stop))
                    if self._rest.endswith(stop[:size])), default=0)
        return self._show(len(self._rest) - held, False)

    def _show(self, end: int, last: bool) -> str:
        text, shown = _shown(self._rest[:end], last)
        self._rest = self._rest[shown:]
        return text

    def end(self) -> str:
        """What is left; bytes of a character that never ended become U+FFFD."""
        return self._show(len(self._rest), True)
