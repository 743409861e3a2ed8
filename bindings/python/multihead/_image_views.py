"""Pictures of the attention over an image."""
from __future__ import annotations

import ctypes as C
import html
import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from . import _abi, _tensor
from ._images import Grid, raw_patches
from ._library import check, default_context, model_library, render_library, show_library
from ._model import Model
from ._views import View, _finish, _font_into, _text


class ImageView(View):
    """Maps over an image. `save()` writes the page that shows every query as .html, and the maps of one query as .svg,
    .png or .pdf."""

    def __init__(self, model: Model, image: Any, layers: Sequence[int] | None, query: Any, dark: bool) -> None:
        self._stack, self._shown_in, self._static = ExitStack(), None, False
        self._maps, self._show_struct = _abi.Maps(), _abi.PictureShow()
        on = np.zeros((model.layers, model.num_heads), np.uint8)
        on[:] = 1 if layers is None else 0
        if layers is not None:
            wanted = _tensor.int64s(layers, "layers")
            if len(wanted) == 0 or wanted.min() < 0 or wanted.max() >= model.layers:
                raise ValueError(f"layers: {list(layers)} are not all in 0 .. {model.layers - 1}")
            on[wanted] = 1
        tokens = self._stack.enter_context(raw_patches(model._handle, image))
        p = tokens.picture.contents
        options = _abi.ShowOptions(flags=_abi.SHOW_FLAGS["dark"] * dark + _abi.SHOW_FLAGS["mean"] * (query == "mean"))
        at = _position(Grid(p.rows, p.cols, p.first, p.registers, p.patch), query)
        self._maps.name = _text(model.name)
        self._maps.text[0] = _text(os.fspath(image)) if isinstance(image, (str, os.PathLike)) else b"image"
        desc = _abi.MapsDesc(tokens=C.pointer(tokens), on=on.ctypes.data)
        with default_context() as handle:
            check(model_library().mha_maps_run(handle, model._handle, C.byref(desc), C.byref(self._maps)))
            self._stack.callback(model_library().mha_maps_free, C.byref(self._maps))
            check(show_library().mha_picture_show_make(handle, C.byref(self._maps), C.byref(options), at,
                                                       C.byref(self._show_struct)))
        self._stack.callback(show_library().mha_picture_show_free, C.byref(self._show_struct))

    def __del__(self) -> None:
        self._stack.close()

    def _write_html(self, sink: Any, whole_file: bool = True) -> int:
        return int(render_library().mha_render_picture_page(C.byref(self._show_struct.page), sink))

    def _write_svg(self, sink: Any) -> int:
        return int(render_library().mha_render_svg(C.byref(self._show_struct.figure), sink))

    def _write_png(self, sink: Any, writer: str = "mha_render_png") -> int:
        figure = self._show_struct.figure
        _font_into(figure)
        return int(getattr(render_library(), writer)(C.byref(figure), sink))

    @property
    def data(self) -> str:
        """The page in a frame, for a notebook."""
        return (f'<iframe srcdoc="{html.escape(self.html())}" style="width:100%;height:820px;border:0" '
                'title="attention over an image"></iframe>')

    def __repr__(self) -> str:
        return f"<multihead.ImageView of {self._show_struct.figure.panel_count} maps: .save('maps.html') writes it>"


def _position(grid: Grid, query: Any) -> int:
    """The token of a query; -1: CLS, or the mean of all patches."""
    if query is None or query == "mean":
        return -1
    if isinstance(query, tuple):
        return grid.position(*query)
    names = {"CLS": grid.cls, **{f"REG{n}": at for n, at in enumerate(grid.register_positions)}}
    if not isinstance(query, str) or names.get(query) is None:
        raise ValueError(f"query: {query!r} is none of (row, column), 'mean', "
                         f"{', '.join(repr(name) for name, at in names.items() if at is not None)}")
    return int(names[query] or 0)


def image_view(model: Model, image: Any, *, query: Any = None, layers: Sequence[int] | None = None, dark: bool = False,
               html_action: str = "view") -> View:
    """Where the heads of a vision transformer attend, over the image.

        model        a `Model` that `sees`
        image        a PNG or JPEG file, or uint8 pixels [height,width,3]
        query        of .svg, .png and .pdf: (row, column) of a patch, "CLS", "REG0" or "mean"; default: CLS, or the mean
        layers       default: all
        html_action  "view": display it in a notebook; "return": only return it
    """
    return _finish(ImageView(model, image, layers, query, dark), html_action)


__all__ = ["ImageView", "image_view"]
