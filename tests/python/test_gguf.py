"""GGUF files compared with the package gguf: elements to the bit, metadata and descriptions."""
import ctypes as C

import gguf
import numpy as np
import pytest

import multihead_ctypes as mha
from multihead._abi import GgufTensor, GgufValue
from multihead._library import model_library
from shared import MODEL_LIBRARY, SMOLLM2, needs

needs(MODEL_LIBRARY)
lib = model_library()
TYPES = gguf.GGMLQuantizationType
VALUES = gguf.GGUFValueType
DECODED = [TYPES[name] for name in
           ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
            "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS", "TQ1_0", "TQ2_0",
            "MXFP4", "NVFP4")]
BLOCKS = [kind for kind in DECODED if gguf.GGML_QUANT_SIZES[kind][0] > 1]
# Zeros, the smallest subnormal, the largest number, infinities and NaN as f16.
SPECIAL = np.array([0, 0x8000, 1, 0x8001, 0x3FF, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00], np.uint16)


class File:
    def __init__(self, path):
        self.handle = C.c_void_p()
        mha.check(lib.mha_gguf_open(str(path).encode(), C.byref(self.handle)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        lib.mha_gguf_close(self.handle)

    def tensors(self):
        for index in range(lib.mha_gguf_count(self.handle)):
            tensor = GgufTensor()
            mha.check(lib.mha_gguf_describe(self.handle, C.c_int64(index), C.byref(tensor)))
            assert lib.mha_gguf_find(self.handle, tensor.name) == index
            yield index, tensor

    def read(self, index, first, count):
        to = np.full(count, 7, np.float32)
        mha.check(lib.mha_gguf_read(self.handle, C.c_int64(index), C.c_int64(first),
                                    C.c_int64(count), C.c_void_p(to.ctypes.data)))
        return to

    def metadata(self):
        """{key: (type, value or list of values)}"""
        found = {}
        for index in range(lib.mha_gguf_key_count(self.handle)):
            value = GgufValue()
            mha.check(lib.mha_gguf_value_at(self.handle, C.c_int64(index), C.byref(value)))
            assert lib.mha_gguf_key_find(self.handle, value.key) == index
            items = [element(value, i) for i in range(value.count)]
            found[value.key.decode()] = (VALUES(value.type), items if value.array else items[0])
        return found


def element(value, i):
    at = (C.byref(value), C.c_int64(i))
    if value.type == VALUES.STRING:
        text, size = C.c_char_p(), C.c_size_t()
        mha.check(lib.mha_gguf_string(*at, C.byref(text), C.byref(size)))
        return C.string_at(text, size.value)
    if value.type == VALUES.BOOL:
        boolean = C.c_bool()
        mha.check(lib.mha_gguf_bool(*at, C.byref(boolean)))
        return boolean.value
    if value.type in (VALUES.FLOAT32, VALUES.FLOAT64):
        real = C.c_double()
        mha.check(lib.mha_gguf_real(*at, C.byref(real)))
        return real.value
    integer = C.c_int64()
    mha.check(lib.mha_gguf_integer(*at, C.c_int64(-2**63), C.c_int64(2**63 - 1), C.byref(integer)))
    return integer.value


def same(got, want):
    """The same bits, or both NaN."""
    nan = np.isnan(want)
    return (np.array_equal(np.isnan(got), nan) and
            np.array_equal(got[~nan].view(np.uint32), want[~nan].view(np.uint32)))


def write(path, tensors, metadata=()):
    """`tensors` is {name: (type, bytes as an array [rows, bytes per row])}. `metadata` has (key,
    type, value) or, for an array, (key, element type, list)."""
    writer = gguf.GGUFWriter(path, "test")
    for key, kind, value in metadata:
        if isinstance(value, list):
            writer.add_key_value(key, value, VALUES.ARRAY, kind)
        else:
            writer.add_key_value(key, value, kind)
    for name, (kind, blocks) in tensors.items():
        writer.add_tensor(name, blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def random_blocks(kind, seed, rows=37, blocks=3):
    """All bit patterns. In every third row the first and last four bytes of a block, where scales are, are special."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    draw = np.random.default_rng(seed)
    made = draw.integers(0, 256, (rows, blocks, size), dtype=np.uint8)
    if size > 8:
        for ends in (made[::3, :, :4], made[::3, :, -4:]):
            ends[:] = draw.choice(SPECIAL, ends.shape[:2] + (2,)).view(np.uint8)
    return made.reshape(rows, blocks * size)


@pytest.mark.parametrize("kind", DECODED, ids=lambda kind: kind.name)
def test_elements(tmp_path, kind):
    path = tmp_path / "x.gguf"
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(kind)
    for seed in range(20):
        blocks = random_blocks(kind, seed)
        write(path, {"first": (kind, random_blocks(kind, 99, 1, 1)), "x": (kind, blocks)})
        with np.errstate(invalid="ignore", over="ignore"):
            want = np.concatenate([gguf.quants.dequantize(row, kind) for row in blocks])
        with File(path) as file:
            assert same(file.read(1, 0, want.size), want), seed
            for _ in range(20):
                first = int(draw.integers(0, want.size))
                count = int(draw.integers(0, want.size - first + 1))
                assert same(file.read(1, first, count), want[first:first + count]), (first, count)
            [_, (_, tensor)] = file.tensors()
            assert list(tensor.dims) == [3 * elements, 37, 1, 1]
            assert tensor.bytes == 37 * 3 * size and tensor.type_name == kind.name.encode()
            assert C.string_at(tensor.data, tensor.bytes) == blocks.tobytes()


def test_all_types_are_known(tmp_path):
    path = tmp_path / "x.gguf"
    write(path, {kind.name: (kind, random_blocks(kind, kind)) for kind in TYPES})
    with File(path) as file:
        for (index, tensor), kind in zip(file.tensors(), TYPES, strict=True):
            elements, size = gguf.GGML_QUANT_SIZES[kind]
            assert (tensor.type, tensor.type_name) == (kind, kind.name.encode())
            assert (tensor.count, tensor.bytes) == (37 * 3 * elements, 37 * 3 * size)
            if kind in DECODED:
                continue
            with pytest.raises(mha.MultiheadError, match=rf"x\.gguf.*{kind.name}") as error:
                file.read(index, 0, 1)
            assert error.value.status == 50


def test_metadata(tmp_path):
    path = tmp_path / "x.gguf"
    draw = np.random.default_rng(5)
    metadata = [("name", VALUES.STRING, "a b\u00e9"), ("empty", VALUES.STRING, ""),
                ("yes", VALUES.BOOL, True), ("no", VALUES.BOOL, False),
                ("tokens", VALUES.STRING, ["<s>", "", "\u0120a", "\U0001f600"] * 300),
                ("flags", VALUES.BOOL, [True, False, True])]
    for kind, code in ((VALUES.UINT8, "u1"), (VALUES.INT8, "i1"), (VALUES.UINT16, "u2"),
                       (VALUES.INT16, "i2"), (VALUES.UINT32, "u4"), (VALUES.INT32, "i4"),
                       (VALUES.INT64, "i8"), (VALUES.FLOAT32, "f4"), (VALUES.FLOAT64, "f8")):
        numbers = draw.integers(0, 256, 800, dtype=np.uint8).view(code)
        numbers = numbers[np.isfinite(numbers)].tolist()
        metadata += [(kind.name + ".array", kind, numbers), (kind.name, kind, numbers[0])]
    write(path, {"x": (TYPES.F32, np.zeros((2, 4), np.uint8))}, metadata)
    check_against_reader(path)


def check_against_reader(path):
    """Compare descriptions and metadata with gguf's own reader, and return the reader."""
    reader = gguf.GGUFReader(path)
    with File(path) as file:
        found = file.metadata()
        fields = {key: field for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert list(found) == list(fields)
        for key, field in fields.items():
            kind, value = found[key]
            want = field.contents()
            if kind == VALUES.STRING:
                want = [w.encode() for w in want] if isinstance(want, list) else want.encode()
            assert kind == field.types[-1] and value == want, key
        for (_, tensor), other in zip(file.tensors(), reader.tensors, strict=True):
            assert tensor.name.decode() == other.name and tensor.type == other.tensor_type
            assert list(tensor.dims[:tensor.ndim]) == other.shape.tolist(), other.name
            assert (tensor.count, tensor.offset, tensor.bytes) == (
                other.n_elements, other.data_offset, other.n_bytes)
    return reader


@pytest.mark.gate(0)
def test_smollm2():
    """A complete third-party model."""
    needs(SMOLLM2, "is missing: tools/get-smollm2 fetches it")
    reader = check_against_reader(SMOLLM2)
    with File(SMOLLM2) as file:
        for (index, tensor), other in zip(file.tensors(), reader.tensors, strict=True):
            want = gguf.quants.dequantize(other.data, other.tensor_type).ravel()
            got = file.read(index, 0, tensor.count)
            assert np.array_equal(got.view(np.uint32), want.view(np.uint32)), other.name
    print(f"{SMOLLM2.name}: {len(reader.tensors)} tensors bit for bit")
