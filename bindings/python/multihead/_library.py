"""The shared libraries, errors, and contexts: one per thread, and those that a program creates."""
from __future__ import annotations

import ctypes as C
import os
import pathlib
import re
import shutil
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from . import _abi

# ---- Errors --------------------------------------------------------------------------------------


class Error(Exception):
    """A call of the library failed. str() is one line that names the wrong value, its place and the remedy.

    Every error is also an instance of the usual built-in class: `InvalidArgument` is a
    ValueError, `DTypeError` a TypeError, `FileError` an OSError, `OutOfMemory` a MemoryError,
    `Unsupported` a NotImplementedError, `CallbackError` a RuntimeError.
    """

    status: int
    """The number of `mha_status`, base.h."""

    def __init__(self, detail: str = "", status: int = 0) -> None:
        super().__init__(detail)
        self.status = status


class InvalidArgument(Error, ValueError):
    """A value, shape, stride, number or text is invalid, or memory overlaps."""


class DTypeError(Error, TypeError):
    """An array has an unexpected element type."""


class FileError(Error, OSError):
    """A file cannot be opened, read or written."""


class OutOfMemory(Error, MemoryError):
    """Memory is exhausted; nothing was changed."""


class Unsupported(Error, NotImplementedError):
    """Valid, but not supported in this combination or on this machine."""


class CallbackError(Error, RuntimeError):
    """A callback reported failure."""


for _class in (Error, InvalidArgument, DTypeError, FileError, OutOfMemory, Unsupported, CallbackError):
    _class.__module__ = "multihead"  # the source of these names

_CLASSES: dict[int, type[Error]] = {
    _abi.STATUS["err_dtype"]: DTypeError,
    _abi.STATUS["err_file"]: FileError,
    _abi.STATUS["err_write"]: FileError,
    _abi.STATUS["err_nomem"]: OutOfMemory,
    _abi.STATUS["err_unsupported"]: Unsupported,
    _abi.STATUS["err_callback"]: CallbackError,
}


def check(status: int, names: Mapping[str, str] = {}) -> None:  # noqa: B006, read only
    """Raise the error of a status other than 0, with the library's details. `names` maps the library's argument names
    to the caller's; flags become the options of the same name."""
    if status:
        detail = library.mha_error_detail().decode(errors="replace")
        detail = re.sub(r"^mha_\w+(?:\(\))?: ", "", detail)
        detail = re.sub(r"(?:the flag )?\bMHA_(?:ATTENTION|OUTPUT|LINEAR|DECODER)_([A-Z0-9_]+)",
                        lambda flag: flag[1].lower(), detail)
        for theirs, ours in names.items():
            detail = re.sub(rf"\b{theirs}\b", ours, detail)
        raise _CLASSES.get(status, InvalidArgument)(detail, status)


# ---- Libraries -----------------------------------------------------------------------------------

_SONAME_VERSION = 0  # of the interface in abi/


def _find(folder: str, *patterns: str) -> str:
    """A built file, in $MHA_LIBRARY_DIR or in a folder of the installed package."""
    build = os.environ.get("MHA_LIBRARY_DIR")
    folders = [pathlib.Path(build)] if build else [
        pathlib.Path(path) / folder for path in sys.modules[__package__ or "multihead"].__path__]
    for where in folders:
        for pattern in patterns:
            if found := sorted(where.glob(pattern)):
                return str(found[0])
    raise ImportError(f"{patterns[0]} is not in {', '.join(map(str, folders))}: install the package "
                      "with pip, or set MHA_LIBRARY_DIR to the folder of a build")


def program() -> str:
    """The path of the program: the package's own, or the system's."""
    try:
        return _find("bin", "multihead")
    except ImportError:
        found = shutil.which("multihead")
        if found is None or os.path.realpath(found) == os.path.realpath(sys.argv[0]):
            raise  # none, or the command that searches for it
        return found


def _open(name: str) -> _abi.Library:
    """The package's own library, or the system's if there is none, as in Debian's
    python3-multihead."""
    try:
        return _abi.Library(_find("lib", f"lib{name}.so", f"lib{name}.so.*"))
    except ImportError:
        if "MHA_LIBRARY_DIR" in os.environ:
            raise
        try:
            return _abi.Library(f"lib{name}.so.{_SONAME_VERSION}")
        except OSError:
            pass
        raise


def file_name(path: str | os.PathLike[str]) -> bytes:
    """A path in the form that the library takes."""
    name = os.fsencode(path)
    if b"\0" in name:
        raise ValueError(f"{os.fspath(path)!r} has a NUL, which the name of a file cannot have")
    return name


def font() -> str | None:
    """The packaged font, for pictures on systems without DejaVu Sans; None if the environment variable MHA_FONT names a
    font, or the package has none."""
    try:
        return None if os.environ.get("MHA_FONT") else _find("fonts", "*.ttf")
    except ImportError:
        return None


library = _open("multihead")
"""libmultihead. Every call releases the GIL."""


def version() -> str:
    """The version of the library, "0.1.0"."""
    return str(library.mha_version().decode())


_companions: dict[str, _abi.Library] = {}
_loading = threading.Lock()


def _companion(name: str) -> _abi.Library:
    with _loading:
        if name not in _companions:
            _companions[name] = _open(name)
        return _companions[name]


def model_library() -> _abi.Library:
    """libmultihead-model, loaded lazily."""
    return _companion("multihead-model")


def show_library() -> _abi.Library:
    """libmultihead-show, loaded lazily."""
    return _companion("multihead-show")


def render_library() -> _abi.Library:
    """libmultihead-render, loaded lazily."""
    return _companion("multihead-render")


# ---- Contexts ------------------------------------------------------------------------------------


def name_of(values: dict[str, int], value: int) -> str:
    """The name of an enumeration's value."""
    return next(name for name, number in values.items() if number == value)


def value_of(values: dict[str, int], name: object, what: str) -> int:
    """The value of a name. Raises ValueError with the valid names for any other."""
    if not isinstance(name, str) or name not in values:
        raise ValueError(f"{what}: {name!r} is not one of {', '.join(map(repr, values))}")
    return values[name]


class Context:
    """Threads, scratch memory and instruction set of calls.

    Each thread has its own context, created at its first call. Create another to set the instruction set or the number
    of threads of a call: `attention(q, k, v, context=Context(threads=1))`. Results are bit-identical for every number
    of threads.

        threads  number of threads; 0: the environment variable MHA_THREADS, else the number of processors that the
                 process may use
        isa      "auto", "portable", "neon", "avx2", "avx512" or "amx"; auto is the best available, limited by the environment
                 variable MHA_ISA

    Several threads may share a context; their calls then wait for each other. A context remains usable after a fork.

    Raises ValueError (number or name), `Unsupported` (instruction set not available on this machine), `OutOfMemory`.
    """

    def __init__(self, threads: int = 0, isa: str = "auto") -> None:
        self._desc = _abi.ContextDesc(num_threads=_count(threads),
                                      isa=value_of(_abi.ISAS, isa, "isa"))
        self._open()
        _contexts.add(self)

    def _open(self) -> None:
        handle = C.c_void_p()
        check(library.mha_context_create(C.byref(self._desc), C.byref(handle)))
        self.handle = handle
        self._lock = threading.Lock()
        self._holder = 0

    @property
    def threads(self) -> int:
        """The number of threads in use, at least 1."""
        return int(library.mha_context_threads(self.handle))

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return name_of(_abi.ISAS, library.mha_context_isa(self.handle))

    def __enter__(self) -> C.c_void_p:
        """The handle, for one call: `with context as handle: check(library.mha_...(handle, ...))`."""
        if not self._lock.acquire(blocking=False):
            if self._holder in (threading.get_ident(), *thread.served):
                raise RuntimeError("a callback cannot call the library with the context of the call "
                                   "that it serves: pass another one, context=multihead.Context()")
            self._lock.acquire()
        self._holder = threading.get_ident()
        return self.handle

    def __exit__(self, *exception: object) -> None:
        self._holder = 0
        self._lock.release()

    def __repr__(self) -> str:
        return f"multihead.Context(threads={self.threads}, isa={self.isa!r})"

    def __reduce__(self) -> Any:
        raise TypeError("a context belongs to its process: make one in the other process")

    def __del__(self, destroy: Any = library.mha_context_destroy) -> None:
        if getattr(self, "handle", None):
            destroy(self.handle)


_contexts: weakref.WeakSet[Context] = weakref.WeakSet()
_default_threads = 0
_generation = 0  # counts changes of the default; contexts from before are replaced


class _Thread(threading.local):
    """The thread's own context and prepared calls (_call.py)."""

    def __init__(self) -> None:
        self.context: Context | None = None
        self.generation = -1
        self.calls: dict[Any, Any] = {}
        self.served: tuple[int, ...] = ()  # threads whose call waits for the callback running here


thread = _Thread()


def _count(threads: int) -> int:
    if isinstance(threads, bool) or not isinstance(threads, int) or not 0 <= threads < 1 << 31:
        raise ValueError(f"threads: {threads!r} is not a number of threads (0: all processors)")
    return threads


def set_threads(threads: int) -> None:
    """Set the number of threads of calls without a context, in every thread of the process. 0: the environment variable
    MHA_THREADS, else the number of processors that the process may use. Use 1 in a program that itself keeps all
    processors busy."""
    global _default_threads, _generation
    _default_threads = _count(threads)
    _generation += 1


def get_threads() -> int:
    """The number of threads of calls without a context."""
    return default_context().threads


def default_context() -> Context:
    """The context of the calling thread."""
    if thread.context is None or thread.generation != _generation:
        generation = _generation
        thread.context = Context(_default_threads)
        thread.generation = generation
    return thread.context


def chosen(context: Context | None) -> Context:
    """The context passed to a call, or the thread's."""
    if context is None:
        return default_context()
    if not isinstance(context, Context):
        raise TypeError(f"context: {type(context).__name__} is not a multihead.Context")
    return context


# ---- Callbacks -----------------------------------------------------------------------------------


class Callbacks:
    """Python callbacks of a library call, from several threads. raise_error() raises the first exception after the
    call."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._served = (threading.get_ident(), *thread.served)

    def guarded(self, compute: Callable[[], Any], fallback: Callable[[], Any]) -> None:
        """Run compute(), or fallback() after a failure."""
        before = thread.served
        try:
            thread.served = self._served
            if self.error is None:
                compute()
        except BaseException as error:  # noqa: BLE001, raised by raise_error()
            self.error = self.error or error
        finally:
            thread.served = before
        if self.error is not None:
            fallback()

    def call(self, function: Callable[..., int], *arguments: Any) -> int:
        """Call the library. Ctrl+C during the call is stored as a failure of a callback. An
        exception raised inside a callback would be lost, because the caller is C."""
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            return function(*arguments)
        raises = handler

        def keep(number: int, frame: Any) -> None:
            try:
                raises(number, frame)
            except BaseException as error:  # noqa: BLE001, raised by raise_error()
                self.error = self.error or error

        signal.signal(signal.SIGINT, keep)
        try:
            return function(*arguments)
        finally:
            signal.signal(signal.SIGINT, handler)

    def raise_error(self) -> None:
        if self.error is not None:
            raise self.error


def isa_available(isa: str) -> bool:
    """True if this build has kernels for an instruction set and this machine can run them."""
    return bool(library.mha_isa_available(value_of(_abi.ISAS, isa, "isa")))


def _after_fork() -> None:
    """Only this thread exists in the child. A context that another thread was using is lost: it can
    be neither used nor freed. Other contexts work."""
    for context in list(_contexts):
        if context._lock.locked():
            context.handle = C.c_void_p()
            context._open()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
