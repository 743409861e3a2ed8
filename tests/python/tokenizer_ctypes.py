"""The C tokenizer through ctypes, for the tests that compare it with Hugging Face's."""
import ctypes
import os

import numpy as np

from shared import MODEL_LIBRARY, needs

needs(MODEL_LIBRARY)

I8P, I32P, I64P = (ctypes.POINTER(t) for t in (ctypes.c_int8, ctypes.c_int32, ctypes.c_int64))
U8P = ctypes.POINTER(ctypes.c_uint8)


class EncodeOptions(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("flags", ctypes.c_uint32),
                ("max_length", ctypes.c_int64), ("truncation", ctypes.c_int),
                ("reserved", ctypes.c_int32)]


class Encoding(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("count", ctypes.c_int64), ("ids", I32P), ("type_ids", I32P), ("begin", I64P),
                ("end", I64P), ("sequence", I8P), ("special", U8P), ("dropped", ctypes.c_int64 * 2),
                ("memory", ctypes.c_void_p)]


class Words(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("reserved", ctypes.c_uint32),
                ("text", ctypes.c_void_p), ("text_bytes", ctypes.c_int64),
                ("count", ctypes.c_int64), ("start", I64P), ("stop", I64P), ("begin", I64P),
                ("end", I64P), ("memory", ctypes.c_void_p)]


class Info(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_uint32), ("cls_id", ctypes.c_int32),
                ("sep_id", ctypes.c_int32), ("pad_id", ctypes.c_int32), ("unk_id", ctypes.c_int32),
                ("mask_id", ctypes.c_int32), ("vocab_size", ctypes.c_int64),
                ("max_length", ctypes.c_int64), ("clean_text", ctypes.c_uint8),
                ("handle_chinese_chars", ctypes.c_uint8), ("strip_accents", ctypes.c_uint8),
                ("lowercase", ctypes.c_uint8), ("kind", ctypes.c_int), ("bos_id", ctypes.c_int32),
                ("eos_id", ctypes.c_int32)]


TRUNCATIONS = {False: 0, "longest_first": 1, "only_first": 2, "only_second": 3}
ERR_SIZE, ERR_MODEL, ERR_UNSUPPORTED = 41, 24, 50

C = ctypes.CDLL(str(MODEL_LIBRARY))
C.mha_error_detail.restype = ctypes.c_char_p
C.mha_tokenizer_load.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)]
C.mha_tokenizer_destroy.argtypes = [ctypes.c_void_p]
C.mha_tokenizer_token.argtypes = [ctypes.c_void_p, ctypes.c_int32]
C.mha_tokenizer_token.restype = ctypes.c_char_p
C.mha_tokenizer_encode.argtypes = [
    ctypes.c_void_p, ctypes.POINTER(EncodeOptions), ctypes.c_char_p, ctypes.c_size_t,
    ctypes.c_char_p, ctypes.c_size_t, ctypes.POINTER(Encoding)]
C.mha_tokenizer_words.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t,
                                  ctypes.POINTER(Words)]
C.mha_tokenizer_describe.argtypes = [ctypes.c_void_p, ctypes.POINTER(Info)]
C.mha_tokenizer_token_bytes.argtypes = [
    ctypes.c_void_p, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_int)]
C.mha_encoding_free.argtypes = [ctypes.POINTER(Encoding)]
C.mha_words_free.argtypes = [ctypes.POINTER(Words)]


class Failure(Exception):
    def __init__(self, status):
        super().__init__(f"{status}: {C.mha_error_detail().decode()}")
        self.status = status


def column(pointer, count):
    kind = np.dtype(pointer._type_)
    return np.frombuffer(ctypes.string_at(pointer, count * kind.itemsize), kind)


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
        out = Encoding(struct_size=ctypes.sizeof(Encoding))
        first = text.encode() if isinstance(text, str) else text
        second = None if pair is None else pair.encode()
        self.check(C.mha_tokenizer_encode(self.handle, ctypes.byref(options), first, len(first),
                                          second, len(second or b""), ctypes.byref(out)))
        result = {name: column(getattr(out, name), out.count)
                  for name in ("ids", "type_ids", "begin", "end", "sequence", "special")}
        C.mha_encoding_free(ctypes.byref(out))
        return result

    def words(self, text):
        """The normalised text and its words."""
        out = Words(struct_size=ctypes.sizeof(Words))
        data = text.encode()
        self.check(C.mha_tokenizer_words(self.handle, data, len(data), ctypes.byref(out)))
        normal = ctypes.string_at(out.text, out.text_bytes)
        start, stop = column(out.start, out.count), column(out.stop, out.count)
        C.mha_words_free(ctypes.byref(out))
        return normal.decode(), [normal[a:b].decode() for a, b in zip(start, stop)]

    def describe(self):
        info = Info(struct_size=ctypes.sizeof(Info))
        self.check(C.mha_tokenizer_describe(self.handle, ctypes.byref(info)))
        return info

    def token_bytes(self, number):
        """The bytes that a token stands for, and whether it is special."""
        at, count, special = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_int()
        self.check(C.mha_tokenizer_token_bytes(self.handle, number, ctypes.byref(at),
                                               ctypes.byref(count), ctypes.byref(special)))
        return ctypes.string_at(at, count.value), bool(special.value)

    def token(self, number):
        text = C.mha_tokenizer_token(self.handle, number)
        return None if text is None else text.decode()


def byte_offsets(text):
    """The byte at which each character begins, and the length."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    sizes = 1 + (points >= 0x80).astype(np.int64) + (points >= 0x800) + (points >= 0x10000)
    return np.concatenate([[0], np.cumsum(sizes)])
