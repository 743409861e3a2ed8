"""Arrays of NumPy, torch and any DLPack producer, passed to the library without a copy.

An array is a hashable layout (element type, shape, strides) and the address of its first element. Calls are prepared
per layout and then receive addresses (_call.py).
"""
from __future__ import annotations

import ctypes as C
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ._abi import DTYPES, MAX_DIMS, Tensor

# Conversions of unsupported element types, by name.
_ADVICE = {"float64": "float32", "longdouble": "float32", "int64": "int32", "uint16": "int32",
           "uint32": "int32", "uint64": "int64", "int16": "int32", "complex64": "float32",
           "complex128": "float32"}


_READABLE = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "u8": "bool", "i32": "int32",
             "i64": "int64", "i8": "int8", "f64": "float64"}


Layout = tuple[Any, tuple[int, ...], tuple[int, ...]]
"""An array without its contents: element type, shape and strides. NumPy counts strides in bytes,
other libraries in elements."""


class Kind(NamedTuple):
    """A kind of arrays: how to inspect one, and how to create one."""

    look: Callable[[Any, str], tuple[Layout, int]]
    empty: Callable[[tuple[int, ...], str], Any]
    writable: Callable[[Any], bool]


# ---- NumPy ---------------------------------------------------------------------------------------


def numbers(address: int | None, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    """A copy of an array in the library's memory."""
    copy = np.empty(count, dtype)
    C.memmove(copy.ctypes.data, address or 0, copy.nbytes)
    return copy


def _bfloat16() -> Any:
    """NumPy's dtype for bf16, from the package ml_dtypes; None if it is missing."""
    try:
        import ml_dtypes
    except ImportError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


# dtype of NumPy or torch, type of DLPack, or our own name: (value of mha_dtype, bytes that a stride
# counts)
_CODES: dict[Any, tuple[int, int]] = {
    np.dtype(name): (DTYPES[code], np.dtype(name).itemsize)
    for name, code in (("float32", "f32"), ("float16", "f16"), ("int8", "i8"), ("uint8", "u8"),
                       ("bool", "u8"), ("int32", "i32"), ("int64", "i64"), ("float64", "f64"))}
_CODES.update({code: (value, 1) for code, value in DTYPES.items()})
_NUMPY_TYPES: dict[str, Any] = {"f32": np.float32, "f16": np.float16, "i64": np.int64}


def numpy_dtype(code: str) -> Any:
    """NumPy's dtype of an element type of the library."""
    if code in _NUMPY_TYPES:
        return _NUMPY_TYPES[code]
    if code == "bf16":
        if (found := _bfloat16()) is None:
            raise TypeError("NumPy has no bfloat16: pip install ml_dtypes, or pass out=")
        return found
    raise TypeError(f"no array of {code}")


# In CPython's NumPy, an array's address follows the object header. Reading it there takes a tenth of the time of
# array.ctypes.data.
_BEGIN = object.__basicsize__
_pointer_at = C.c_void_p.from_address


def _read_address(array: Any) -> int:
    return _pointer_at(id(array) + _BEGIN).value or 0


def _ask_address(array: Any) -> int:
    return int(array.ctypes.data)


def _can_read() -> bool:
    """True if this interpreter stores addresses there, tested on known arrays."""
    if sys.implementation.name != "cpython":
        return False
    arrays = [np.zeros(size, np.int8)[at:] for size, at in ((1, 0), (9, 1), (4096, 7))]
    return all(_read_address(array) == _ask_address(array) for array in arrays)


_address = _read_address if _can_read() else _ask_address


def _look_numpy(array: Any, name: str) -> tuple[Layout, int]:
    address = _address(array)
    if address & 7 and address % array.itemsize:
        raise ValueError(f"{name}: the array's address is not a multiple of its elements' size: pass "
                         f"{name}.copy()")
    return (array.dtype, array.shape, array.strides), address


def _empty_numpy(shape: tuple[int, ...], code: str) -> Any:
    return np.empty(shape, numpy_dtype(code))


_NUMPY = Kind(_look_numpy, _empty_numpy, lambda array: bool(array.flags.writeable))

# ---- torch ---------------------------------------------------------------------------------------


def _torch_kind() -> Kind:
    import torch

    _CODES.update({torch.float32: (DTYPES["f32"], 1), torch.float16: (DTYPES["f16"], 1),
                   torch.bfloat16: (DTYPES["bf16"], 1), torch.float64: (DTYPES["f64"], 1),
                   torch.int8: (DTYPES["i8"], 1), torch.uint8: (DTYPES["u8"], 1),
                   torch.bool: (DTYPES["u8"], 1), torch.int32: (DTYPES["i32"], 1),
                   torch.int64: (DTYPES["i64"], 1)})
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
             "i64": torch.int64}

    def look(tensor: Any, name: str) -> tuple[Layout, int]:
        if tensor.requires_grad and torch.is_grad_enabled():
            raise TypeError(f"{name}: the tensor requires a gradient, which this call does not "
                            f"record: use multihead.torch, or pass {name}.detach()")
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.is_nested:
            remedy = "cpu" if tensor.device.type != "cpu" else "to_dense"
            raise TypeError(f"{name}: a dense tensor in the CPU's memory is expected, not one of "
                            f"{tensor.device}, {'nested' if tensor.is_nested else tensor.layout}: pass "
                            f"{name}.{remedy}()")
        if tensor.is_neg():
            raise TypeError(f"{name}: the negative of a tensor in memory: pass {name}.resolve_neg()")
        return (tensor.dtype, tensor.shape, tensor.stride()), tensor.data_ptr()

    return Kind(look, lambda shape, code: torch.empty(shape, dtype=types[code], device="cpu"),
                lambda tensor: True)


def check_class(kind: Any, name: str, dispatched: bool) -> None:
    """Reject tensor classes whose memory need not hold their elements, because they redefine torch's functions, or its
    operators unless `dispatched`."""
    import torch

    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    if function not in (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl) or \
            not dispatched and kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise TypeError(f"{name}: {kind.__module__}.{kind.__qualname__} redefines torch's functions, which "
                        f"multihead does not use: pass an ordinary tensor, e.g. {name}.as_subclass(torch.Tensor) "
                        "if that has the elements")


# ---- DLPack --------------------------------------------------------------------------------------


class _DlTensor(C.Structure):
    _fields_ = [("data", C.c_void_p), ("device_type", C.c_int32), ("device_id", C.c_int32),
                ("ndim", C.c_int32), ("code", C.c_uint8), ("bits", C.c_uint8),
                ("lanes", C.c_uint16), ("shape", C.POINTER(C.c_int64)),
                ("strides", C.POINTER(C.c_int64)), ("byte_offset", C.c_uint64)]


# (code, bits) of DLPack
_CODES.update({(2, 32): (DTYPES["f32"], 1), (2, 16): (DTYPES["f16"], 1),
               (4, 16): (DTYPES["bf16"], 1), (2, 64): (DTYPES["f64"], 1), (0, 8): (DTYPES["i8"], 1),
               (1, 8): (DTYPES["u8"], 1), (6, 8): (DTYPES["u8"], 1), (0, 32): (DTYPES["i32"], 1),
               (0, 64): (DTYPES["i64"], 1)})
_capsule_pointer = C.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = C.c_void_p, [C.py_object, C.c_char_p]
_CPU, _CPU_PINNED = 1, 3


def _look_dlpack(array: Any, name: str) -> tuple[Layout, int]:
    if array.__dlpack_device__()[0] not in (_CPU, _CPU_PINNED):
        raise TypeError(f"{name}: the array is not in the CPU's memory: copy it there")
    capsule = array.__dlpack__()
    # Not renamed, so that the capsule's destructor releases the view when the address is dropped.
    found = _DlTensor.from_address(_capsule_pointer(capsule, b"dltensor"))
    if found.lanes != 1:
        raise TypeError(f"{name}: vectors of {found.lanes} numbers are not supported")
    shape = tuple(found.shape[:found.ndim])
    strides = tuple(found.strides[:found.ndim]) if found.strides else _contiguous(shape)
    address = _Borrowed((found.data or 0) + found.byte_offset)
    address.owner = capsule
    return ((found.code, found.bits), shape, strides), address


class _Borrowed(int):
    """An address and the owner of its memory."""

    owner: Any


_DLPACK = Kind(_look_dlpack, _empty_numpy, lambda array: False)

# ---- All kinds -----------------------------------------------------------------------------------

_KINDS: dict[type, Kind] = {np.ndarray: _NUMPY, np.memmap: _NUMPY}


def kind_of(array: Any, name: str) -> Kind:
    """The kind of an array; TypeError for anything else."""
    kind = _KINDS.get(type(array))
    return kind if kind is not None else _learn(array, name)


def _learn(array: Any, name: str) -> Kind:
    torch = sys.modules.get("torch")
    if isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray):
        kind = _NUMPY
    elif torch is not None and isinstance(array, torch.Tensor):
        check_class(type(array), name, dispatched=False)
        kind = next((known for of, known in _KINDS.items() if issubclass(of, torch.Tensor)),
                    None) or _torch_kind()
    elif hasattr(array, "__dlpack__") and not isinstance(array, np.ndarray):
        kind = _DLPACK
    else:
        raise TypeError(f"{name}: {type(array).__name__} is not an array: pass one of NumPy, torch "
                        f"or another library with DLPack, e.g. numpy.asarray({name}, numpy.float32)")
    _KINDS[type(array)] = kind
    return kind


def look(array: Any, name: str) -> tuple[Layout, int]:
    """Layout and address of an array; `name` identifies it in errors."""
    return kind_of(array, name).look(array, name)


def look_writable(array: Any, name: str) -> tuple[Layout, int]:
    """Layout and address of an array that a call writes to."""
    kind = kind_of(array, name)
    if not kind.writable(array):
        raise ValueError(f"{name}: the array is read-only, and the call writes to it")
    return kind.look(array, name)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def contiguous(shape: tuple[int, ...], code: str) -> Layout:
    """The layout of a new array of any kind."""
    return code, shape, _contiguous(shape)


def readable(codes: tuple[str, ...]) -> str:
    """NumPy's names of element types: "float32, float16 or bfloat16"."""
    names = [_READABLE[code] for code in codes]
    return " or ".join([", ".join(names[:-1]), names[-1]] if names[1:] else names)


def conversion(layout: Layout, name: str, code: str) -> tuple[str, str]:
    """The element type of a layout, and the expression that converts the array."""
    dtype, wanted = layout[0], readable((code,))
    if isinstance(dtype, np.dtype):  # numpy.bool is missing from 1.24 to 1.26
        return str(dtype), f"{name}.astype({'bool' if wanted == 'bool' else f'numpy.{wanted}'})"
    if (text := str(dtype)).startswith("torch."):
        return text, f"{name}.to({text[:6]}{wanted})"
    return readable((code_of(layout, name),)), f"to {wanted}"


def _entry(dtype: Any, name: str) -> tuple[int, int]:
    """The element type's value of mha_dtype, and the number of bytes per unit of a stride."""
    if dtype not in _CODES:
        found = _bfloat16()
        if found is None or dtype != found:
            raise TypeError(_unsupported(dtype, name))
        _CODES[found] = (DTYPES["bf16"], 2)
    return _CODES[dtype]


def code_of(layout: Layout, name: str) -> str:
    """The library's name of a layout's element type."""
    value = _entry(layout[0], name)[0]
    return next(code for code, number in DTYPES.items() if number == value)


def _unsupported(dtype: Any, name: str) -> str:
    text = str(dtype)
    if isinstance(dtype, np.dtype) and not dtype.isnative:
        return f"{name}: {text} has the other byte order: pass {name}.astype({name}.dtype.newbyteorder('='))"
    plain = text.replace("torch.", "")
    advice = f"; convert it, e.g. to {_ADVICE[plain]}" if plain in _ADVICE else ""
    if plain != text and not advice:
        advice = f": pass {name}.{'dequantize' if plain.startswith(('qint', 'quint')) else 'float'}()"
    if plain == "uint16":
        advice += ", or view it as ml_dtypes.bfloat16 if that is what it holds"
    return f"{name}: {text} is not supported{advice}"


def describe(layout: Layout, name: str) -> Tensor:
    """The struct of a layout, without an address."""
    dtype, shape, strides = layout
    code, unit = _entry(dtype, name)
    ndim = len(shape)
    if ndim > MAX_DIMS:
        raise ValueError(f"{name}: {ndim} dimensions, at most {MAX_DIMS} are supported")
    if 0 in shape:
        strides = _contiguous(shape)
    elif unit > 1:
        if any(stride % unit for stride in strides):
            raise ValueError(f"{name}: a stride of {strides} bytes is not a whole number of "
                             f"elements of {unit}: pass {name}.copy()")
        strides = tuple(stride // unit for stride in strides)
    pad = (0,) * (MAX_DIMS - ndim)
    return Tensor(None, code, ndim, (*shape, *pad), (*strides, *pad))


def check_last(layout: Layout, made: Tensor, name: str) -> None:
    """Reject an array whose last axis is not contiguous."""
    last = made.ndim - 1
    if last >= 0 and made.shape[last] > 1 and made.stride[last] != 1:
        copy = (f"numpy.ascontiguousarray({name})" if isinstance(layout[0], np.dtype)
                else f"{name}.contiguous()" if str(layout[0]).startswith("torch.") else "a copy")
        if name == "out":
            copy = "an array whose last axis is contiguous"
        raise ValueError(f"{name}: the last axis has stride {made.stride[last]}, it must be contiguous: "
                         f"pass {copy}")


def tensor(array: Any, name: str = "array", last: bool = False) -> Tensor:
    """The struct of an array. If `last`, the last axis must be contiguous. The struct borrows the memory: keep the
    array alive."""
    layout, address = look(array, name)
    made = describe(layout, name)
    if last:
        check_last(layout, made, name)
    made.data = address
    return made


def pointer(array: Any, name: str = "array") -> Any:
    """A pointer to the struct of an array, for a field of another struct; None for None."""
    return None if array is None else C.pointer(tensor(array, name))


def int64s(values: Any, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Whole numbers, a sequence or an array of any kind, as a contiguous array of int64."""
    if type(values) is np.ndarray:
        found = values
        if found.dtype == np.int64 and found.ndim == 1 and found.flags.c_contiguous:
            return found
    elif hasattr(values, "__dlpack__"):
        try:
            found = np.from_dlpack(values)
        except (BufferError, RuntimeError, TypeError) as error:  # of another device
            raise TypeError(f"{name}: {error}: pass numbers in the CPU's memory") from None
    else:
        found = np.asarray(values)
        found = found if found.size else np.empty(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(f"{name}: a sequence of whole numbers is expected, not {values!r:.60}")
    return np.ascontiguousarray(found, np.int64)
