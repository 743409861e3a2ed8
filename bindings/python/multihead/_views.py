"""Pictures of attention for notebooks and files: head view, model view, neuron view, heat maps."""
from __future__ import annotations

import ctypes as C
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _abi, _tensor
from ._library import check, file_name, font, library, render_library, value_of, version
from ._tokens import Tokens

if TYPE_CHECKING:
    from ._model import Model, ModelAttention

Floats = np.ndarray[Any, np.dtype[np.float32]]


# ---- Maps and labels -----------------------------------------------------------------------------


@dataclass
class _Maps:
    """Maps of one size: a list of layers, [heads,T,S] each, with the model's layer numbers."""

    name: str | None
    layers: list[Floats]
    numbers: list[int]
    rows: list[str]
    cols: list[str]
    same: bool
    second: tuple[int, int] = (0, 0)
    queries: list[Floats] = field(default_factory=list)
    keys: list[Floats] = field(default_factory=list)
    scales: list[float] | None = None
    head_numbers: list[int] | None = None
    special: list[str] = field(default_factory=list)


def _array(values: Any, name: str) -> Floats:
    """A NumPy or torch array as float32, without a batch axis of 1."""
    if type(values).__module__.partition(".")[0] == "torch":
        values = values.detach().cpu().float().numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name}: numbers are expected, not {array.dtype}")
    return np.ascontiguousarray(array, np.float32)


def _layers(values: Any, name: str, include: Sequence[int] | None,
            heads: Sequence[int] | None = None) -> tuple[list[Floats], list[int]]:
    """The layers of attention: a list of [H,T,S] or [1,H,T,S], as transformers returns, or one array [L,H,T,S]."""
    if not hasattr(values, "__len__"):
        raise TypeError(f"{name}: weights of layers are expected, not {type(values).__name__}; "
                        "Model.attention(text) computes them")
    if len(values) == 0:
        raise ValueError(f"{name}: there is no layer; pass .attentions of what the model returned "
                         "(its last element is something else since transformers 5)")
    numbers = list(range(len(values))) if include is None else [int(n) for n in include]
    if not numbers:
        raise ValueError("include_layers: at least one layer is expected")
    made = []
    for number in numbers:
        if not 0 <= number < len(values):
            raise ValueError(f"include_layers: {number} is not in 0 .. {len(values) - 1}")
        if values[number] is None:
            raise ValueError(f"{name}: layer {number} is None: models of transformers give attention "
                             'if they are loaded with attn_implementation="eager" or "multihead" '
                             "and called with output_attentions=True")
        layer = _array(values[number], name)
        if layer.ndim == 4:
            if layer.shape[0] != 1:
                raise ValueError(f"{name}: a batch of {layer.shape[0]}; choose one text, e.g. "
                                 "[layer[:1] for layer in attention]")
            layer = layer[0]
        if layer.ndim != 3:
            raise ValueError(f"{name}: layer {number} has {layer.ndim} dimensions, expected [heads, "
                             "queries, keys], with or without a batch of 1 in front")
        if heads is not None:
            if not all(0 <= head < len(layer) for head in heads):
                raise ValueError(f"include_heads: {list(heads)} are not all in 0 .. {len(layer) - 1}")
            layer = layer[list(heads)]
        made.append(layer)
    shapes = {layer.shape[1:] for layer in made}
    if len(shapes) > 1:
        raise ValueError(f"{name}: layers have maps of different sizes, {sorted(shapes)}")
    return made, numbers


def _labels(tokens: Any, count: int, prettify: bool, name: str) -> list[str]:
    if isinstance(tokens, str):
        raise TypeError(f"{name}: a list of texts is expected, one for each row or column, not one text")
    texts = tokens.texts if isinstance(tokens, Tokens) else [str(token) for token in tokens]
    if len(texts) != count:
        raise ValueError(f"{name}: {len(texts)} tokens for {count} rows or columns of the maps")
    if not prettify or isinstance(tokens, Tokens):
        return texts
    return [_piece(text) for text in texts]


def _special(tokens: Any) -> set[str]:
    """The labels of special tokens. A click hides them; no picture selects one at first."""
    if isinstance(tokens, Tokens):
        return {text for text, special in zip(tokens.texts, tokens.special) if special}
    return {str(t) for t in tokens if re.fullmatch(r"\[[A-Z]+\]|<[^<>]+>", str(t))}


def _piece(text: str) -> str:
    """A vocabulary piece as readable text: "the" of "\u0120the"."""
    data = _text(text)
    room = C.create_string_buffer(len(data) + 1)
    render_library().mha_text_piece(data, room, len(room))
    return room.value.decode(errors="replace")


def _maps(name: str | None, argument: str, attention: Any, rows: Any, cols: Any, same: bool,
          prettify: bool, include: Sequence[int] | None, heads: Sequence[int] | None = None,
          second: int | None = None) -> _Maps:
    layers, numbers = _layers(attention, argument, include, heads)
    if second is not None and not 0 <= second <= layers[0].shape[1]:
        raise ValueError(f"sentence_b_start: {second} is not in 0 .. {layers[0].shape[1]}")
    at = second or 0
    return _Maps(name, layers, numbers, _labels(rows, layers[0].shape[1], prettify, "tokens"),
                 _labels(cols, layers[0].shape[2], prettify, "tokens"), same, (at, at),
                 head_numbers=None if heads is None else list(heads),
                 special=sorted(_special(rows) | _special(cols)))


# ---- Figures and reports -------------------------------------------------------------------------


def _text(value: str) -> bytes:
    """A text in the library's encoding."""
    return value.encode(errors="replace").replace(b"\0", b" ")


def _texts(values: Sequence[str], keep: list[Any]) -> Any:
    array = (C.c_char_p * max(len(values), 1))(*map(_text, values))
    keep.append(array)
    return C.cast(array, C.POINTER(C.c_char_p))


class _Page:
    """mha_figure and mha_report of maps, and the memory that they borrow."""

    def __init__(self, maps: _Maps, view: str, layer: int | None, heads: Sequence[int] | None,
                 dark: bool, options: dict[str, Any]) -> None:
        self.keep: list[Any] = [maps]
        panels: list[_abi.Panel] = []
        first: dict[int, int] = {}
        for group, (number, layer_maps) in enumerate(zip(maps.numbers, maps.layers)):
            first[number] = len(panels)
            for head, values in enumerate(layer_maps):
                shown = head if maps.head_numbers is None else maps.head_numbers[head]
                panel = _abi.Panel(values=values.ctypes.data, name=f"L{number}H{shown}".encode(),
                                   group=group)
                if maps.queries:
                    q, k = maps.queries[group], maps.keys[group]
                    panel.queries = q[head].ctypes.data
                    panel.keys = k[head * len(k) // len(q)].ctypes.data
                    panel.channels = q.shape[2]
                    panel.score_scale = maps.scales[group] if maps.scales else 0
                panels.append(panel)
        self.panels = (_abi.Panel * max(len(panels), 1))(*panels)
        names = _texts([f"layer {number}" for number in maps.numbers], self.keep)
        rows, cols = maps.layers[0].shape[1:]
        self.figure = _abi.Figure(
            panel_size=C.sizeof(_abi.Panel), rows=rows, cols=cols,
            row_labels=_texts(maps.rows, self.keep), col_labels=_texts(maps.cols, self.keep),
            panels=self.panels, panel_count=len(panels), group_names=names,
            group_count=len(maps.numbers), dark=dark, value_name=b"weight",
            row_axis=b"from", col_axis=b"to", **options)
        self.report = _abi.Report(
            special=_texts(maps.special, self.keep), special_count=len(maps.special),
            same_labels=maps.same, producer=f"multihead {version()}".encode(),
            view=_abi.VIEWS[view], only_view=True,
            second_row=maps.second[0], second_col=maps.second[1])
        chosen = maps.numbers[panels[self._strongest()].group if panels else 0] if layer is None else layer
        if chosen not in first:
            raise ValueError(f"layer: {chosen} is not one of {maps.numbers}")
        count = len(maps.layers[maps.numbers.index(chosen)])
        lines = list(range(count)) if heads is None else _tensor.int64s(heads, "heads").tolist()
        if not all(0 <= head < count for head in lines):
            raise ValueError(f"heads: {lines} are not all in 0 .. {count - 1}")
        self.line_panels = (C.c_int64 * max(len(lines), 1))(*[first[chosen] + n for n in lines])
        self.report.first_panel = first[chosen] + (lines[0] if lines else 0)
        self.report.line_panels, self.report.line_panel_count = self.line_panels, len(lines)

    def _strongest(self) -> int:
        """The map that a report of `view` shows first."""
        links, found = (_abi.Link * self.figure.panel_count)(), C.c_int64()
        check(render_library().mha_figure_links(C.byref(self.figure), C.byref(self.report), links,
                                                C.byref(found)))
        return found.value


def _font_into(figure: Any) -> None:
    """Use the packaged font, if there is one."""
    if (path := font()) is not None:
        figure.font_file = os.fsencode(path)


class View:
    """A picture. A notebook displays it; `save()` writes it to a file.

    As in BertViz, a notebook displays a view when it is created, unless html_action="return".
    """

    def __init__(self, maps: Sequence[_Maps], view: str, *, layer: int | None = None,
                 heads: Sequence[int] | None = None, dark: bool = False, width: int = 0,
                 height: int = 0, figure: dict[str, Any] | None = None) -> None:
        self._pages = [_Page(m, view, layer, heads, dark, figure or {}) for m in maps]
        self._names = [m.name for m in maps]
        self._size = (width, height)
        self._static = view == "map"
        self._shown_in: Any = None

    def _in_memory(self, write: Callable[[Any], int]) -> bytes:
        buffer = _abi.Buffer()
        sink = library.mha_buffer_sink(C.byref(buffer))
        try:
            check(write(C.byref(sink)))
            return C.string_at(buffer.data, buffer.size) if buffer.size else b""
        finally:
            library.mha_buffer_free(C.byref(buffer))

    def _write_html(self, sink: Any, whole_file: bool = True) -> int:
        pages = (_abi.InsetPage * len(self._pages))(*[
            _abi.InsetPage(name.encode() if name else None, C.pointer(page.figure),
                           C.pointer(page.report))
            for name, page in zip(self._names, self._pages)])
        inset = _abi.Inset(page_size=C.sizeof(_abi.InsetPage), pages=pages, page_count=len(pages),
                           width=self._size[0], height=self._size[1], whole_file=whole_file)
        return int(render_library().mha_render_inset(C.byref(inset), sink))

    def _write_svg(self, sink: Any) -> int:
        return int(render_library().mha_render_svg(C.byref(self._pages[0].figure), sink))

    def _write_png(self, sink: Any, writer: str = "mha_render_png") -> int:
        figure = self._pages[0].figure
        _font_into(figure)
        return int(getattr(render_library(), writer)(C.byref(figure), sink))

    def _write_pdf(self, sink: Any) -> int:
        return self._write_png(sink, "mha_render_pdf")

    @property
    def data(self) -> str:
        """Self-contained HTML for a notebook. (BertViz's name.)"""
        return self.svg() if self._static else self._in_memory(
            lambda sink: self._write_html(sink, False)).decode()

    def svg(self) -> str:
        """The maps of the first page as SVG."""
        return self._in_memory(self._write_svg).decode()

    def png(self) -> bytes:
        """The maps of the first page as PNG."""
        return self._in_memory(self._write_png)

    def pdf(self) -> bytes:
        """The maps of the first page as PDF."""
        return self._in_memory(self._write_pdf)

    def html(self) -> str:
        """A self-contained HTML file."""
        return self._in_memory(self._write_html).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the picture: the interactive page as .html, the maps as .svg, .png or .pdf. Files are replaced
        atomically; links are followed and permissions kept."""
        writers = {".html": self._write_html, ".svg": self._write_svg, ".png": self._write_png,
                   ".pdf": self._write_pdf}
        write = writers.get(pathlib.Path(path).suffix.lower())
        if write is None:
            raise ValueError(f"{os.fspath(path)}: the end of the name says what is written: "
                             f"{', '.join(writers)}")
        file, status = C.c_void_p(), _abi.STATUS["err_write"]
        check(library.mha_file_create(file_name(path), C.byref(file)))
        try:
            status = write(library.mha_file_sink(file))
        finally:
            status = library.mha_file_finish(file, status)
        check(status)

    def _repr_html_(self) -> str:
        return self.data

    def _show(self) -> View:
        """Display the picture in a notebook now."""
        shell = _notebook()
        if shell is not None:
            from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

            display(HTML(self.data))  # type: ignore[no-untyped-call,unused-ignore]
            self._shown_in = shell.execution_count
        return self

    def _ipython_display_(self) -> None:
        """The last expression of the creating cell is already displayed."""
        shell = _notebook()
        if shell is not None and self._shown_in == shell.execution_count:
            self._shown_in = None
        else:
            from IPython.display import HTML, display

            display(HTML(self.data))  # type: ignore[no-untyped-call,unused-ignore]

    def __repr__(self) -> str:
        maps = sum(page.figure.panel_count for page in self._pages)
        return f"<multihead.View of {maps} maps: .save('picture.html') writes it>"


def _notebook() -> Any:
    """The notebook's shell; None outside a notebook."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    return shell if shell is not None and getattr(shell, "kernel", None) is not None else None


def _finish(view: View, html_action: str) -> View:
    if html_action not in ("view", "return"):
        raise ValueError(f"html_action: {html_action!r} is neither 'view' nor 'return'")
    return view._show() if html_action == "view" else view


# ---- Views of weights -----------------------------------------------------------------------------


def _all_maps(attention: Any, tokens: Any, sentence_b_start: int | None, prettify: bool,
              include_layers: Sequence[int] | None, include_heads: Sequence[int] | None,
              encoder_attention: Any, decoder_attention: Any, cross_attention: Any,
              encoder_tokens: Any, decoder_tokens: Any) -> list[_Maps]:
    """BertViz's arguments as maps, with one page each for encoder, decoder and cross-attention."""
    others = {"encoder": encoder_attention, "decoder": decoder_attention, "cross": cross_attention}
    if attention is not None:
        if any(value is not None for value in (*others.values(), encoder_tokens, decoder_tokens)):
            raise ValueError("attention is that of a self-attention model; leave it out beside the "
                             "arguments of an encoder-decoder")
        attention, tokens, sentence_b_start, numbers = _of_model(attention, tokens, sentence_b_start)
        if tokens is None:
            raise ValueError("tokens are missing: a list of texts, one for each row of the maps")
        made = _maps(None, "attention", attention, tokens, tokens, True, prettify, include_layers,
                     include_heads, sentence_b_start)
        if numbers is not None:
            made.numbers = [numbers[n] for n in made.numbers]
        return [made]
    pages = []
    for name, argument, rows, cols in (
            ("Encoder", "encoder", encoder_tokens, encoder_tokens),
            ("Decoder", "decoder", decoder_tokens, decoder_tokens),
            ("Cross", "cross", decoder_tokens, encoder_tokens)):
        if others[argument] is None:
            continue
        if rows is None or cols is None:
            raise ValueError(f"{argument}_attention needs " +
                             ("encoder_tokens and decoder_tokens" if argument == "cross"
                              else f"{argument}_tokens"))
        pages.append(_maps(name, f"{argument}_attention", others[argument], rows, cols,
                           argument != "cross", prettify, include_layers, include_heads))
    if not pages:
        raise ValueError("attention is missing: maps of a model, or multihead.Model.attention(text)")
    return pages


def _of_model(attention: Any, tokens: Any,
              second: int | None) -> tuple[Any, Any, int | None, list[int] | None]:
    """Results of multihead.Model.attention() include their tokens."""
    from ._model import ModelAttention

    if not isinstance(attention, ModelAttention):
        return attention, tokens, second, None
    own = attention.tokens
    if second is None and own.pair is not None:
        second = int(np.argmax(own.segments == 1)) if (own.segments == 1).any() else None
    return attention._maps(), own if tokens is None else tokens, second, attention.layers


def head_view(attention: Any = None, tokens: Any = None, sentence_b_start: int | None = None,
              prettify_tokens: bool = True, layer: int | None = None,
              heads: Sequence[int] | None = None, encoder_attention: Any = None,
              decoder_attention: Any = None, cross_attention: Any = None,
              encoder_tokens: Any = None, decoder_tokens: Any = None,
              include_layers: Sequence[int] | None = None, html_action: str = "view", *,
              dark: bool = False, width: int = 0, height: int = 0) -> View:
    """Attention as lines between two columns of tokens, with one colour per head of a layer.

    The arguments are those of BertViz: to run its notebooks, change the import.

        attention         `Model.attention(text)`, which includes tokens; or a list of layers [1,H,T,T], such as
                          .attentions of transformers; or an array [L,H,T,T]. NumPy or torch
        tokens            [T] texts
        sentence_b_start  index of the first token of a second text
        prettify_tokens   write BPE and SentencePiece tokens as plain text: "the", not "\u0120the"
        layer, heads      initial selection; default: all heads of the layer with the strongest link between two words,
                          as in a report of `view`
        encoder_...       for an encoder-decoder, in place of attention and tokens: encoder_attention with
                          encoder_tokens, decoder_attention with decoder_tokens, cross_attention [1,H,T,S] with both
        include_layers    the layers that can be selected
        html_action       "view": display it in a notebook; "return": only return it
        dark, width, height   of the picture; 0: full width, and the height of its content
    """
    pages = _all_maps(attention, tokens, sentence_b_start, prettify_tokens, include_layers, None,
                      encoder_attention, decoder_attention, cross_attention, encoder_tokens,
                      decoder_tokens)
    return _finish(View(pages, "lines", layer=layer, heads=heads, dark=dark, width=width,
                        height=height), html_action)


def model_view(attention: Any = None, tokens: Any = None, sentence_b_start: int | None = None,
               prettify_tokens: bool = True, display_mode: str = "dark",
               encoder_attention: Any = None, decoder_attention: Any = None,
               cross_attention: Any = None, encoder_tokens: Any = None, decoder_tokens: Any = None,
               include_layers: Sequence[int] | None = None,
               include_heads: Sequence[int] | None = None, html_action: str = "view", *,
               width: int = 0, height: int = 0) -> View:
    """Every head of a model as a thumbnail of lines; a click enlarges one.

    The arguments are those of BertViz; `head_view` explains them. display_mode is "dark" or "light";
    include_heads are the heads to draw.
    """
    pages = _all_maps(attention, tokens, sentence_b_start, prettify_tokens, include_layers,
                      include_heads, encoder_attention, decoder_attention, cross_attention,
                      encoder_tokens, decoder_tokens)
    return _finish(View(pages, "model", dark=_dark(display_mode), width=width, height=height),
                   html_action)


def _dark(display_mode: str) -> bool:
    if display_mode not in ("dark", "light"):
        raise ValueError(f"display_mode: {display_mode!r} is neither 'dark' nor 'light'")
    return display_mode == "dark"


def neuron_view(model: Model | ModelAttention | None = None, text: str | None = None,
                pair: str | None = None, *, q: Any = None, k: Any = None, tokens: Any = None,
                causal: bool = False, scale: float | None = None, layer: int | None = None,
                head: int | None = None, layers: Sequence[int] | None = None,
                display_mode: str = "dark", html_action: str = "view", width: int = 0,
                height: int = 0) -> View:
    """The steps of a weight for one query against every key: q, k, their product per channel, its sum, and the weight.

        model, text   a `Model` and a text, or a text and its `pair`; or, as model, the result of `model.attention(text,
                      outputs=("probabilities", "q", "k"))`; or:
        q, k, tokens  queries [H,T,D] and keys [Hk,T,D] of one layer, or a list of layers, and [T] texts. causal and
                      scale (default 1 / sqrt(D)) apply to these only; a model has its own
        layer, head   initial selection
        layers        the layers that can be selected. Many layers make a large picture. Default: layer, or all up to 12
    """
    from ._model import Model

    if model is not None and (causal or scale is not None):
        raise ValueError(f"{'causal' if causal else 'scale'}: only together with q and k; a model has its own")
    if scale == 0:
        raise ValueError("scale: 0 gives every key the same weight, which no query or key explains")
    if isinstance(model, Model):
        if text is None:
            raise ValueError("text is missing: what the model reads")
        wanted = layers if layers is not None else [layer] if layer is not None else \
            range(min(model.layers, 12))
        model = model.attention(text, pair, layers=list(wanted),
                                outputs=("probabilities", "q", "k"))
    if model is not None:
        if model.q is None or model.k is None:
            raise ValueError('q and k are missing: model.attention(text, outputs=("probabilities", '
                             '"q", "k"))')
        maps = _all_maps(model, tokens, None, True, None, None, None, None, None, None, None)[0]
        maps.queries, maps.keys = _vectors(model.q, model.k)
        maps.scales = model.scales
        shapes = [(len(q), q.shape[1], k.shape[1]) for q, k in zip(maps.queries, maps.keys)]
        if shapes != [layer.shape for layer in maps.layers]:
            raise ValueError("q and k do not belong to the probabilities: they have other layers, "
                             "heads or lengths")
    else:
        maps = _maps_of_vectors(q, k, tokens, causal, scale)
    return _finish(View([maps], "neurons", layer=layer, heads=None if head is None else [head],
                        dark=_dark(display_mode), width=width, height=height), html_action)


def _vectors(q: Any, k: Any) -> tuple[list[Floats], list[Floats]]:
    """The queries and keys of layers."""
    if len(q) != len(k):
        raise ValueError(f"q has {len(q)} layers, k {len(k)}")
    queries, keys = [_array(x, "q") for x in q], [_array(x, "k") for x in k]
    for layer_q, layer_k in zip(queries, keys):
        if layer_q.ndim != 3 or layer_k.ndim != 3 or layer_q.shape[2] != layer_k.shape[2] or \
                len(layer_q) % max(len(layer_k), 1) or bool(len(layer_q)) > bool(len(layer_k)):
            raise ValueError(f"q {list(layer_q.shape)} and k {list(layer_k.shape)} do not fit: [H,T,D] "
                             "and [Hk,T,D] are expected, H a multiple of Hk")
    return queries, keys


def _maps_of_vectors(q: Any, k: Any, tokens: Any, causal: bool, scale: float | None) -> _Maps:
    if q is None or k is None or tokens is None:
        raise ValueError("give a model and a text, or q, k and tokens")
    several = isinstance(q, (list, tuple)) or np.ndim(q) == 4
    queries, keys = _vectors(q if several else [q], k if several else [k])
    weights = [_weights(layer_q, layer_k, causal, scale) for layer_q, layer_k in zip(queries, keys)]
    maps = _maps(None, "q and k", weights, tokens, tokens, True, True, None)
    maps.queries, maps.keys = queries, keys
    maps.scales = None if scale is None else [scale] * len(queries)
    return maps


def _weights(q: Floats, k: Floats, causal: bool, scale: float | None) -> Floats:
    from ._attention import attention

    _, found = attention(q[None], k[None], np.zeros((1, *k.shape[:2], 1), np.float32),
                         causal=causal, scale=scale, outputs=("probabilities",))
    maps: Floats = found.probabilities[0]
    return maps


def heatmap(attention: Any, tokens: Any = None, key_tokens: Any = None, *, layer: int | None = None,
            heads: Sequence[int] | None = None, title: str | None = None, cmap: str = "viridis",
            scale: str = "linear", numbers: str = "auto", dark: bool = False,
            prettify_tokens: bool = True) -> View:
    """Attention as heat maps side by side, with one shared colour bar: a static picture.

        attention   one map [T,S], or maps [H,T,S]; or, with a layer, anything that `head_view` takes
        tokens      [T] texts of the rows, and of the columns unless key_tokens [S] is given; default: indices
        layer       a layer of a model's attention; heads selects the heads to draw, default all
        cmap        "viridis", "blues", "greys", "cividis", "magma", "plasma"; "diverging" around 0
        scale       "linear", "sqrt", "log" or "rank"
        numbers     in the cells: "auto" (small maps only), "always", "never"
    """
    own: list[int] | None = None
    if type(attention).__name__ == "ModelAttention" or layer is not None:
        attention, tokens, _, own = _of_model(attention, tokens, None)
        chosen = layer if layer is not None else (own or [0])[0]
        if own is not None and chosen not in own:
            raise ValueError(f"layer: {chosen} is not one of {own}")
        if own is None and np.ndim(attention[0]) < 3:
            raise ValueError("layer: only together with a model's attention, a list of layers [1,H,T,T]")
        if own is None and not 0 <= chosen < len(attention):
            raise ValueError(f"layer: {chosen} is not in 0 .. {len(attention) - 1}")
        stack = [attention[own.index(chosen) if own else chosen]]
    else:
        chosen = 0
        array = _array(attention, "attention")
        if array.ndim == 4 and array.shape[0] == 1:
            array = array[0]
        if array.ndim not in (2, 3):
            raise ValueError(f"attention: {array.ndim} dimensions; one map [T,S], maps [H,T,S], or a "
                             "model's with layer=")
        stack = [array if array.ndim == 3 else array[None]]
    rows, cols = (np.shape(stack[0])[-2], np.shape(stack[0])[-1])
    row_tokens = [str(i) for i in range(rows)] if tokens is None else tokens
    col_tokens = key_tokens if key_tokens is not None else \
        row_tokens if rows == cols else [str(i) for i in range(cols)]
    maps = _maps(None, "attention", stack, row_tokens, col_tokens, key_tokens is None and
                 rows == cols, prettify_tokens, None, heads)
    maps.numbers = [chosen]
    figure = {"cmap": value_of(_abi.CMAPS, cmap, "cmap"), "scale": value_of(_abi.SCALES, scale, "scale"),
              "print_values": value_of(_abi.VALUES, numbers, "numbers"),
              "title": _text(title) if title else None}
    return View([maps], "map", dark=dark, figure=figure)
