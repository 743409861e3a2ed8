"""Images for vision transformers: files, patches, and measures of their grids."""
from __future__ import annotations

import ctypes as C
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _abi, _tensor
from ._library import check, file_name, library, model_library
from ._tokens import Tokens

Floats = np.ndarray[Any, np.dtype[np.float32]]
Doubles = np.ndarray[Any, np.dtype[np.float64]]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
MEASURES_OF_GRIDS = tuple(name for name, _ in _abi.GridMeasures._fields_)


@dataclass(frozen=True)
class Grid:
    """The tokens of an image: CLS, if there is one, registers, then patches in rows from the top."""

    rows: int
    cols: int
    first: int
    """Tokens before the patches."""
    registers: int
    """Of them; the last ones before the patches."""
    patch: int
    """Pixels of a patch's edge."""

    @property
    def cls(self) -> int | None:
        """The position of CLS; None if the model has none."""
        return 0 if self.first > self.registers else None

    @property
    def register_positions(self) -> range:
        return range(self.first - self.registers, self.first)

    def position(self, row: int, col: int) -> int:
        """The token of a patch."""
        if not (0 <= row < self.rows and 0 <= col < self.cols):
            raise IndexError(f"patch {row},{col} is not in 0,0 to {self.rows - 1},{self.cols - 1}")
        return self.first + row * self.cols + col


@dataclass(frozen=True, repr=False)
class Patches(Tokens):
    """The tokens of an image, for a model that `sees`. texts are "[CLS]", "[REG0]" and "2,5" (row and column, from 0)."""

    grid: Grid = Grid(0, 0, 0, 0, 0)
    pixels: Pixels | None = None
    """[rows patch, cols patch, 3]: what the model sees, before normalisation."""
    features: Floats | None = None
    """[T, 3 patch^2]: what the model reads."""

    def __repr__(self) -> str:
        return f"<{self.grid.rows} x {self.grid.cols} patches after {self.grid.first} tokens>"


def read_image(path: str | os.PathLike[str]) -> Pixels:
    """The pixels of a PNG or JPEG file, [H,W,3] uint8, turned by the orientation in EXIF."""
    image = _abi.Image()
    check(model_library().mha_image_load(file_name(path), C.byref(image)))
    try:
        pixels = _tensor.numbers(image.pixels, image.height * image.width * 3, np.uint8)
        return pixels.reshape(image.height, image.width, 3).copy()
    finally:
        model_library().mha_image_free(C.byref(image))


def _pixels(source: Any) -> Pixels:
    if isinstance(source, (str, os.PathLike)):
        return read_image(source)
    given = np.asarray(source)
    if given.dtype != np.uint8 or given.ndim != 3 or given.shape[2] != 3:
        raise ValueError(f"image: {given.dtype} {list(given.shape)}, expected a path, or pixels uint8 [height,width,3]")
    return np.ascontiguousarray(given)


@contextmanager
def raw_patches(model: C.c_void_p, source: Any) -> Iterator[Any]:
    """An image as the library's tokens."""
    pixels = _pixels(source)
    image = _abi.Image(width=pixels.shape[1], height=pixels.shape[0], pixels=pixels.ctypes.data)
    found = _abi.Tokens()
    check(model_library().mha_tokens_read_image(model, C.byref(image), C.byref(found)))
    try:
        yield found
    finally:
        model_library().mha_tokens_free(C.byref(found))


def read_patches(model: C.c_void_p, source: Any) -> Patches:
    with raw_patches(model, source) as found:
        n, p = int(found.count), found.picture.contents
        shape = (p.rows * p.patch, p.cols * p.patch, 3)
        return Patches(
            _tensor.numbers(found.ids, n, np.int32), [text.decode() for text in found.labels[:n]],
            _tensor.numbers(found.special, n, np.bool_), np.zeros(n, np.int32), [None] * n,
            grid=Grid(p.rows, p.cols, p.first, p.registers, p.patch),
            pixels=_tensor.numbers(p.pixels, int(np.prod(shape)), np.uint8).reshape(shape).copy(),
            features=_tensor.numbers(p.features, n * p.feature_dim, np.float32).reshape(n, -1).copy())


def measure_grid(grid: Grid, map_: Floats) -> tuple[dict[str, float], dict[str, float]]:
    """The measures of one map [T,T] (`mha_grid_measure`), and their chance levels."""
    sizes = _abi.Grid(grid.rows, grid.cols, grid.first, grid.registers)
    found, chance = _abi.GridMeasures(), _abi.GridMeasures()
    check(library.mha_grid_measure(C.byref(sizes), C.byref(_tensor.tensor(map_)), C.byref(found), C.byref(chance)))
    value, uniform = ({name: float(getattr(of, name)) for name in MEASURES_OF_GRIDS} for of in (found, chance))
    return value, uniform


__all__ = ["Grid", "Patches", "read_image"]
