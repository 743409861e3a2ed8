"""File formats compared with their reference implementations: .npy with NumPy, safetensors with its
package."""
import ctypes as C

import numpy as np
import pytest
import safetensors
from safetensors import numpy as safetensors_numpy

from multihead._library import model_library
import multihead_ctypes as mha
from shared import MODEL_LIBRARY, needs

needs(MODEL_LIBRARY)
lib = model_library()
NAMES = {number: name for name, number in mha.DTYPES.items()}


def path_of(path):
    return str(path).encode()


def array_of(tensor):
    """A copy of a contiguous tensor."""
    shape = tensor.shape[:tensor.ndim]
    dtype = np.dtype(NAMES[tensor.dtype])
    size = int(np.prod(shape)) * dtype.itemsize
    data = C.string_at(tensor.data, size) if size else b""
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def arrays():
    generator = np.random.default_rng(1)
    for name in mha.DTYPES:
        if name == "uint16":  # bit patterns of bfloat16, which NumPy lacks
            continue
        for shape in ((), (0,), (5,), (3, 0, 2), (2, 3, 4), (2, 1, 3, 1, 2, 5)):
            yield np.array(generator.normal(size=shape) * 100, dtype=float).astype(name)


def views(array):
    yield array
    yield np.asfortranarray(array)
    yield array.T
    if array.ndim and array.shape[0]:
        yield array[::-1]
    if array.ndim > 1:
        yield array[:, ::2]


def read_npy(path):
    handle = C.c_void_p()
    mha.check(lib.mha_npy_read(path_of(path), C.byref(handle)))
    array = array_of(lib.mha_npy_tensor(handle))
    lib.mha_npy_destroy(handle)
    return array


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def test_reads_what_numpy_writes(tmp_path):
    path = tmp_path / "x.npy"
    for array in arrays():
        for view in views(array):
            np.save(path, view)
            assert same(read_npy(path), view), (view.dtype, view.shape)
    np.save(path, np.array([True, False]))
    assert same(read_npy(path), np.array([1, 0], dtype=np.uint8))
    for version in ((1, 0), (2, 0), (3, 0)):
        with open(path, "wb") as file:
            np.lib.format.write_array(file, np.arange(7.0), version)
        assert same(read_npy(path), np.arange(7.0))


def test_numpy_reads_what_we_write(tmp_path):
    path = tmp_path / "x.npy"
    for array in arrays():
        for view in views(array):
            mha.check(lib.mha_npy_write(path_of(path), C.byref(mha.tensor(view))))
            assert same(np.load(path), view), (view.dtype, view.shape)


@pytest.mark.parametrize("array", [np.arange(3, dtype=">f4"), np.arange(3, dtype="u4"),
                                   np.arange(3) * 1j, np.array(["a"]),
                                   np.zeros(2, dtype=[("a", "f4")]), np.zeros((1,) * 7)])
def test_refuses_what_it_does_not_know(tmp_path, array):
    np.save(tmp_path / "x.npy", array)
    with pytest.raises(mha.MultiheadError, match="x.npy") as error:
        read_npy(tmp_path / "x.npy")
    assert error.value.status == 50


def test_safetensors_reads_what_we_write(tmp_path):
    path = tmp_path / "x.safetensors"
    named = {f"tensor {n}": array for n, array in enumerate(arrays())}
    names = (C.c_char_p * len(named))(*[name.encode() for name in named])
    tensors = (mha.Tensor * len(named))(*[mha.tensor(array) for array in named.values()])
    metadata = (C.c_char_p * 3)(b"made by", "multihead \u00e9".encode(), None)
    mha.check(lib.mha_safetensors_write(path_of(path), names, tensors, C.c_int64(len(named)),
                                        metadata))
    got = safetensors_numpy.load_file(path)
    assert got.keys() == named.keys()
    assert all(same(got[name], array) for name, array in named.items())
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata() == {"made by": "multihead \u00e9"}


def test_reads_what_safetensors_writes(tmp_path):
    path = tmp_path / "x.safetensors"
    named = {f"tensor {n}": array for n, array in enumerate(arrays())}
    safetensors_numpy.save_file(named, path, metadata={"k": "v"})
    handle, tensor = C.c_void_p(), mha.Tensor()
    mha.check(lib.mha_safetensors_open(path_of(path), C.byref(handle)))
    assert lib.mha_safetensors_metadata(handle, b"k") == b"v"
    assert lib.mha_safetensors_count(handle) == len(named)
    for index in range(len(named)):
        name = lib.mha_safetensors_name(handle, C.c_int64(index)).decode()
        mha.check(lib.mha_safetensors_tensor(handle, C.c_int64(index), C.byref(tensor)))
        assert same(array_of(tensor), named[name]), name
    lib.mha_safetensors_close(handle)
