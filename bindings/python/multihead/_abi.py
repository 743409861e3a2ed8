"""The C interface in ctypes: every struct, callback, enumeration and function that abi/ lists.

tools/check_abi.py writes these lists from the headers and compares them with a build. The names of structs and
callbacks omit the prefix mha_: mha_attention_desc is `AttentionDesc`. Pointers to structs and texts are typed,
and inside structs also pointers to int64_t and double. Handles and NumPy arrays are addresses.
"""
from __future__ import annotations

import ctypes as C
import pathlib
import re
import sys
import threading
from typing import Any


_functions: dict[str, str] = {}
_callbacks: dict[str, str] = {}
_fields: dict[str, list[tuple[str, str]]] = {}  # of each struct
_constants: dict[str, tuple[int, str]] = {}  # value, enumeration


def _read(line: str) -> None:
    _, kind, name, rest = line.split(" ", 3)
    if kind == "function":
        _functions[name] = rest
    elif kind == "callback":
        _callbacks[name] = rest
    elif kind == "struct":
        _fields[name] = []
    elif kind == "field":
        struct, _, field = name.partition(".")
        _fields[struct].append((field, rest.partition(" ")[2]))
    else:
        number, _, enumeration = rest.partition(" ")
        _constants[name] = int(number), enumeration


def _find() -> pathlib.Path:
    """The lists installed with the package, or those of the source tree."""
    places = [pathlib.Path(path) / "abi" for path in sys.modules[__package__ or "multihead"].__path__]
    places.append(pathlib.Path(__file__).resolve().parents[3] / "abi")
    for place in places:
        if place.is_dir():
            return place
    raise ImportError(f"no lists of the C interface in {', '.join(map(str, places))}: install the package with pip")


for _file in _find().glob("*.abi"):
    for _line in _file.read_text().splitlines():
        if not _line.startswith("#"):
            _read(_line)

# ---- Enumerations: {name: value} -----------------------------------------------------------------


def _values(prefix: str, enumeration: str | None = None) -> dict[str, int]:
    """Constants whose names begin with the prefix, by the rest of their names in lower case. If
    `enumeration` is given, only its constants."""
    return {name[len(prefix):].lower(): value for name, (value, of) in _constants.items()
            if name.startswith(prefix) and enumeration in (None, of)}


MAX_DIMS = _constants["MHA_MAX_DIMS"][0]
STATUS = _values("MHA_", "mha_status")
DTYPES = _values("MHA_", "mha_dtype")
ISAS = _values("MHA_ISA_")
COMPUTE = _values("MHA_COMPUTE_")
PATHS = _values("MHA_PATH_", "mha_path")
SCORE_STAGES = _values("MHA_SCORES_")
ATTENTION_FLAGS = _values("MHA_ATTENTION_")
OUTPUT_FLAGS = _values("MHA_OUTPUT_")
PLAN_FLAGS = _values("MHA_PLAN_")
GRADIENT_FLAGS = _values("MHA_GRADIENTS_")
LINEAR_FLAGS = _values("MHA_LINEAR_ATTENTION_")
KV_SCALES = _values("MHA_KV_SCALES_")
TRANSFORMER_FLAGS = _values("MHA_TRANSFORMER_")
DECODER_FLAGS = _values("MHA_DECODER_")
GENERATION = _values("MHA_GENERATION_", "mha_generation_state")
MODEL_FLAGS = _values("MHA_MODEL_")
SHOW_FLAGS = _values("MHA_SHOW_")
TOKENS_FLAGS = _values("MHA_TOKENS_")
STUDY = _values("MHA_STUDY_")
TRANSCRIBE_FLAGS = _values("MHA_TRANSCRIBE_")
CMAPS = _values("MHA_CMAP_")
SCALES = _values("MHA_SCALE_")
VALUES = _values("MHA_VALUES_")
VIEWS = _values("MHA_VIEW_")
MEASURE_KINDS = _values("MHA_KIND_")

# ---- Types ---------------------------------------------------------------------------------------

_NUMBERS: dict[str, Any] = {
    "char": C.c_char, "_Bool": C.c_bool, "int": C.c_int, "float": C.c_float, "double": C.c_double, "size_t": C.c_size_t,
} | {f"{sign}int{bits}_t": getattr(C, f"c_{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)}
_ENUMERATIONS = {enumeration for _, enumeration in _constants.values()}


class Struct(C.Structure):
    """A struct of the headers. Sets struct_size if the struct has it."""

    def __init__(self, *values: Any, **fields: Any) -> None:
        if not values and self._fields_[0][0] == "struct_size":
            fields.setdefault("struct_size", C.sizeof(self))
        super().__init__(*values, **fields)


def _type(text: str, argument: bool = False) -> Any:
    """The ctypes class of a C type. Arguments that point to numbers accept addresses."""
    kind: Any
    if "(*" in text:
        return C.c_void_p
    text, _, sizes = text.partition("[")
    if sizes:
        kind = _type(text.rstrip())
        for size in reversed(sizes.rstrip("]").split("][")):
            kind *= int(size)
        return kind
    base, stars = text.removeprefix("const ").split(" ")[0], text.count("*")
    if text.startswith("const char *"):
        kind, stars = C.c_char_p, stars - 1
    elif base in _fields:
        kind = named(base)
    elif base in _ENUMERATIONS:
        kind = C.c_int
    elif base in _NUMBERS and (not stars or not argument and base in ("int64_t", "double")):
        kind = _NUMBERS[base]
    else:  # a callback, a handle, numbers of an array
        kind, stars = C.c_void_p, max(stars - 1, 0)
    for _ in range(stars):
        kind = C.POINTER(kind)
    return kind


def _signature(text: str) -> tuple[Any, list[Any]]:
    """Set the result and argument types of a function. A pointer to floats is typed in a result only."""
    result, _, arguments = text.partition("(")
    kinds = [_type(one, argument=True) for one in arguments.rstrip(")").split(", ") if one != "void"]
    known: dict[str, Any] = {"void ": None, "float *": C.POINTER(C.c_float)}
    return known[result] if result in known else _type(result.rstrip()), kinds


_named: dict[str, Any] = {}
_begun: dict[str, Any] = {}  # types of the outermost call, which may refer to each other
_making = threading.RLock()


def _make(name: str) -> None:
    if name in _callbacks:
        result, arguments = _signature(_callbacks[name])
        _begun[name] = C.CFUNCTYPE(result, *arguments)
    elif name in _fields:
        _begun[name] = type(name, (Struct,), {})  # before its fields, which may refer to it
        _begun[name]._fields_ = [(field, _type(text)) for field, text in _fields[name]]
    else:
        raise AttributeError(f"abi/ lists no struct or callback {name}")


def named(name: str) -> Any:
    """The class of a struct or callback, by its C name. Other threads see it only when it is complete."""
    if name in _named:
        return _named[name]
    with _making:
        known = {**_begun, **_named}
        if name in known:
            return known[name]
        outermost = not _begun
        try:
            _make(name)
            if outermost:
                _named.update(_begun)
            return _begun[name]
        finally:
            if outermost:
                _begun.clear()


def __getattr__(name: str) -> Any:
    if not name[:1].isupper():
        raise AttributeError(name)
    return named("mha" + re.sub("[A-Z]", lambda letter: "_" + letter.group(0).lower(), name))


class Library(C.CDLL):
    """A shared library with the function types that abi/ lists."""

    def __getattr__(self, name: str) -> Any:
        if name not in _functions:
            return super().__getattr__(name)
        function = self[name]
        function.restype, function.argtypes = _signature(_functions[name])
        setattr(self, name, function)  # last, because other threads find the function from here on
        return function

Int64Pointer = C.POINTER(C.c_int64)
TensorPointer = C.POINTER(named("mha_tensor"))
