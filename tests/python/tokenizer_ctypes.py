"""The C tokenizer with ctypes, for the tests that compare it with Hugging Face's."""
import ctypes
import os

import numpy as np

from multihead import _tensor
from multihead._abi import EncodeOptions, Encoding, TokenizerInfo, Words
from multihead._library import model_library
from shared import MODEL_LIBRARY, needs

needs(MODEL_LIBRARY)

TRUNCATIONS = {False: 0, "longest_first": 1, "only_first": 2, "only_second": 3}
ERR_SIZE, ERR_MODEL, ERR_UNSUPPORTED = 41, 24, 50

C = model_library()


class Failure(Exception):
    def __init__(self, status):
        super().__init__(f"{status}: {C.mha_error_detail().decode()}")
        self.status = status


def column(found, name):
    """The numbers of a field of an encoding, or of words."""
    at = ctypes.c_void_p.from_buffer(found, getattr(type(found), name).offset)
    kind = {"ids": np.int32, "type_ids": np.int32, "sequence": np.int8, "special": np.uint8}.get(name, np.int64)
    return _tensor.numbers(at.value, found.count, kind)


class Ours:
    def __init__(self, folder):
        self.handle = ctypes.c_void_p()
        self.check(C.mha_tokenizer_load(os.fsencode(folder), None, ctypes.byref(self.handle)))

    def __del__(self):
        C.mha_tokenizer_destroy(self.handle)

    @staticmethod
    def check(status):
        if status:
            raise Failure(status)

    def encode(self, text, pair=None, truncation=False, max_length=0, special=True):
        options = EncodeOptions(ctypes.sizeof(EncodeOptions), 0 if special else 1, max_length,
                                TRUNCATIONS[truncation], 0)
        out = Encoding()
        first = text.encode() if isinstance(text, str) else text
        second = None if pair is None else pair.encode()
        self.check(C.mha_tokenizer_encode(self.handle, ctypes.byref(options), first, len(first),
                                          second, len(second or b""), ctypes.byref(out)))
        result = {name: column(out, name)
                  for name in ("ids", "type_ids", "begin", "end", "sequence", "special")}
        C.mha_encoding_free(ctypes.byref(out))
        return result

    def words(self, text):
        """The normalised text and its words."""
        out = Words()
        data = text.encode()
        self.check(C.mha_tokenizer_words(self.handle, data, len(data), ctypes.byref(out)))
        normal = ctypes.string_at(ctypes.c_void_p.from_buffer(out, Words.text.offset), out.text_bytes)
        start, stop = column(out, "from"), column(out, "to")
        C.mha_words_free(ctypes.byref(out))
        return normal.decode(), [normal[a:b].decode() for a, b in zip(start, stop)]

    def describe(self):
        info = TokenizerInfo()
        self.check(C.mha_tokenizer_describe(self.handle, ctypes.byref(info)))
        return info

    def token_bytes(self, number):
        """The bytes of a token, and whether it is special."""
        at, count, special = ctypes.c_char_p(), ctypes.c_size_t(), ctypes.c_int()
        self.check(C.mha_tokenizer_token_bytes(self.handle, number, ctypes.byref(at),
                                               ctypes.byref(count), ctypes.byref(special)))
        return ctypes.string_at(at, count.value), bool(special.value)

    def token(self, number):
        text = C.mha_tokenizer_token(self.handle, number)
        return None if text is None else text.decode()


def byte_offsets(text):
    """The byte offset of each character, and the length."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])
