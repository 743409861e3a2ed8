"""Models from Hugging Face folders and GGUF files: attention maps, predictions, generation."""
from __future__ import annotations

import ctypes as C
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import _abi, _tensor
from ._audio import audio_input_of, encode_audio
from ._call import integer, real, truth, unknown_option
from ._decoder import Decoder, DecoderOptions, Generation, describe
from ._images import MEASURES_OF_GRIDS, Doubles, Patches, measure_grid, read_patches
from ._heads import HeadScores, measure_heads, measure_images, measure_towers
from ._library import (Context, Unsupported, check, default_context, file_name, library,
                       model_library, value_of)
from ._tokens import Tokens, Writer, label, read, utf8
from ._transcript import Transcript, alignment_heads, transcribe

Floats = np.ndarray[Any, np.dtype[np.float32]]
OUTPUTS = ("probabilities", "average_probabilities", "q", "k", "v", "heads", "lse")
_TOWER_OUTPUTS = ("probabilities", "cross_probabilities")
_SAMPLING = ("max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop")
_CACHE = tuple(name for name in DecoderOptions.__annotations__ if name not in ("batch", "capacity"))
_MEANT = {"max_new_tokens": "max_tokens", "max_length": "max_tokens", "do_sample": "temperature",
          "stop_strings": "stop"}


@dataclass(repr=False)
class ModelAttention:
    """Attention of a model over a text. Each requested output is a list with one array per selected layer, with that
    layer's heads; others are None. T tokens, H heads, Hk key/value heads of sizes D and Dv.

    `attention[layer, head]` is one map, [T,T]. `stack()` returns all maps if every layer has the same number of heads.
    """

    tokens: Tokens
    layers: list[int]
    """Indices of the layers, from 0."""
    probabilities: list[Floats] | None = None
    """[H,T,T] weights: row t holds the weights of token t and sums to 1."""
    average_probabilities: list[Floats] | None = None
    """[T,T] the mean weights over the heads of a layer."""
    q: list[Floats] | None = None
    """[H,T,D] queries after rotation and normalisation."""
    k: list[Floats] | None = None
    """[Hk,T,D] keys after rotation and normalisation."""
    v: list[Floats] | None = None
    """[Hk,T,Dv] values."""
    heads: list[Floats] | None = None
    """[H,T,Dv] the heads' outputs before W_o."""
    lse: list[Floats] | None = None
    """[H,T] natural logarithm of the sum of exp(score)."""
    cross_probabilities: list[Floats] | None = None
    """[H,T,S] weights of cross-attention, in the decoder of an encoder-decoder: row t sums to 1."""
    source: Tokens | None = None
    """The S tokens of the encoder's text."""
    model: str = ""
    """The name of the model."""
    scales: list[float] | None = None
    """The factor of q . k in the scores, per layer."""

    def __repr__(self) -> str:
        given = ", ".join(name for name in (*OUTPUTS, "cross_probabilities") if getattr(self, name) is not None)
        return (f"<multihead.ModelAttention of {self.model!r}: {given} of {len(self.layers)} layers, "
                f"{len(self.tokens)} tokens>")

    def _maps(self) -> list[Floats]:
        if self.probabilities is None:
            raise ValueError("the probabilities were not asked for: pass outputs='probabilities'")
        return self.probabilities

    def __getitem__(self, at: tuple[int, int]) -> Floats:
        layer, head = at
        if layer not in self.layers:
            raise IndexError(f"layer {layer} is not one of {self.layers}")
        maps = self._maps()[self.layers.index(layer)]
        if not 0 <= head < len(maps):
            raise IndexError(f"layer {layer} has heads 0 to {len(maps) - 1}, not {head}")
        map_: Floats = maps[head]
        return map_

    def _repr_html_(self) -> str:
        """The display in a notebook: `multihead.head_view`."""
        from ._views import head_view

        return head_view(self, html_action="return").data

    def alignment(self, reach: int = 5) -> tuple[Floats, np.ndarray[Any, np.dtype[np.int64]]]:
        """How well the cross-attention of each head moves forward through the source (`mha_align_rows`): scores
        [layers,H], and the column of each row [layers,H,T]. Row t is that of the token at t, which predicts t + 1. For
        Whisper a column is 0.02 s."""
        if self.cross_probabilities is None:
            raise ValueError("the cross-attention was not asked for: pass outputs='cross_probabilities'")
        shape = (len(self.layers), len(self.cross_probabilities[0]), len(self.tokens))
        scores, columns = np.zeros(shape[:2], np.float32), np.zeros(shape, np.int64)
        value = C.c_double()
        for layer, maps in enumerate(self.cross_probabilities):
            for head, map_ in enumerate(maps):
                check(model_library().mha_align_rows(C.byref(_tensor.tensor(map_)), min(reach, map_.shape[1] - 1),
                                                     C.byref(value), columns[layer, head].ctypes.data_as(_abi.Int64Pointer)))
                scores[layer, head] = value.value
        return scores, columns

    def grid_measures(self) -> tuple[dict[str, Doubles], dict[str, Doubles]]:
        """Of an image: the measures of each head's map, [layers,H] by name, and their chance levels. The names are
        distance, local, same_row, same_col, cls and registers (docs/heads.md)."""
        if not isinstance(self.tokens, Patches):
            raise ValueError("the maps are those of a text, not of an image")
        grid, maps = self.tokens.grid, self.stack()
        pairs = [[measure_grid(grid, map_) for map_ in layer] for layer in maps]
        found = [{name: np.array([[pair[i][name] for pair in layer] for layer in pairs]) for name in MEASURES_OF_GRIDS}
                 for i in range(2)]
        return found[0], found[1]

    def stack(self) -> Floats:
        """All maps as one array [layers,H,T,T]."""
        maps = self._maps()
        if len({len(m) for m in maps}) > 1:
            raise ValueError("layers have different numbers of heads (the model is pruned): use "
                             "probabilities[layer]")
        return np.stack(maps) if maps else np.zeros((0, 0, 0, 0), np.float32)


class Experts(NamedTuple):
    """The experts of a layer that T tokens use, `used` for each token."""

    total: int
    """The number of experts of the layer."""
    numbers: np.ndarray[Any, np.dtype[np.int32]]
    """[T,used] indices from 0, ascending."""
    weights: Floats
    """[T,used] the factors of their outputs."""


def _check_ids(text: Any, name: str) -> None:
    """Bytes iterate as numbers, which are not token ids."""
    if text is None or isinstance(text, (bytes, bytearray)):
        raise TypeError(f"{name}: a str or token ids are expected, not {type(text).__name__}")


class Model:
    """A transformer and its tokenizer.

        path     a Hugging Face folder (config.json, model.safetensors, tokenizer.json or vocab.txt), a GGUF file, or a
                 folder saved by 'multihead train -o'; docs/model-folders.md lists the families
        images   of a model of texts and images (CLIP), open the part that reads images
        compute  arithmetic of linear layers: "f32"; "int8" (for weights stored in blocks) or "bf16" are faster and less
                 accurate; "tiles": bf16 as AMX computes it

    Weights are mapped from their files and keep their element type. A model is immutable, so any number of threads may
    share it.

    Raises `FileError` (no such file), ValueError (malformed), `Unsupported` (a family or setting that is not
    implemented; the message names it), `OutOfMemory`.
    """

    def __init__(self, path: str | os.PathLike[str], *, compute: str = "f32", images: bool = False) -> None:
        self._library = model_library()
        self._handle = C.c_void_p()
        self.path = pathlib.Path(path)
        options = _abi.ModelOptions(compute=value_of(_abi.COMPUTE, compute, "compute"),
                                    flags=_abi.MODEL_FLAGS["images"] if truth(images, "images") else 0)
        with default_context() as handle:
            check(self._library.mha_model_load(handle, file_name(self.path), C.byref(options),
                                               C.byref(self._handle)))
        self._owner: Model | None = None
        self._describe()

    def _describe(self) -> None:
        info = _abi.ModelInfo()
        check(self._library.mha_model_describe(self._handle, C.byref(info)))
        self._info = info
        self._net: int = self._library.mha_model_transformer(self._handle)
        self._desc = _abi.TransformerDesc()
        library.mha_transformer_describe(self._net, C.byref(self._desc))
        self._words: int = self._library.mha_token_count(self._handle)
        ends = C.c_void_p()
        count = self._library.mha_model_end_tokens(self._handle, C.byref(ends))
        self._ends = _tensor.numbers(ends.value, count, np.int32).tolist()
        self._encoder = self._library.mha_model_encoder(self._handle)
        self._audio_input = audio_input_of(self)

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and not self._owner:
            self._library.mha_model_destroy(self._handle)

    def __repr__(self) -> str:
        return (f"<multihead.Model {self.name!r}: {self.architecture}, {self.layers} layers of "
                f"{self.num_heads} heads, {self.parameters:,} parameters>")

    def __reduce__(self) -> Any:
        raise TypeError("a model belongs to its process: open its path in the other process")

    # ---- Properties ------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The folder's or file's name."""
        path = self.path.absolute()
        return path.stem if path.is_file() else path.name

    @property
    def architecture(self) -> str:
        """The family: "bert", "llama", ..."""
        return str(self._info.architecture.decode())

    @property
    def layers(self) -> int:
        """The number of layers, L."""
        return int(self._info.layers)

    @property
    def num_heads(self) -> int:
        """The number of query heads of a layer, H; in a pruned model the largest."""
        return int(self._info.heads)

    @property
    def heads_of_layers(self) -> list[int]:
        """The number of query heads of each layer, [L]."""
        if self._desc.layer_heads:
            return [int(n) for n in self._desc.layer_heads[:self.layers]]
        return [self.num_heads] * self.layers

    @property
    def kv_heads(self) -> int:
        """The number of key/value heads of a layer, Hk."""
        return int(self._info.kv_heads)

    @property
    def hidden_size(self) -> int:
        """The width of the hidden states, E."""
        return int(self._info.hidden_size)

    @property
    def head_dim(self) -> int:
        """The size of a head's queries and keys, D."""
        return int(self._info.head_dim)

    @property
    def max_positions(self) -> int:
        """The maximum number of tokens in a text."""
        return int(self._info.max_positions)

    @property
    def vocab_size(self) -> int:
        """The size of the vocabulary, V."""
        return int(self._info.vocab_size)

    @property
    def end_tokens(self) -> list[int]:
        """The tokens that end a text, according to the model's files (`mha_model_end_tokens`)."""
        return list(self._ends)

    @property
    def encoder(self) -> Model | None:
        """The encoder of an encoder-decoder (BART, T5, Marian), whose decoder is the model itself; None for others. Its
        `attention` and `hidden_states` are those of a source."""
        if not self._encoder:
            return None
        part = object.__new__(Model)
        part._library, part._handle, part.path, part._owner = self._library, C.c_void_p(self._encoder), self.path, self
        part._describe()
        return part

    @property
    def reads_audio(self) -> bool:
        """Whether the model is an audio encoder, or an encoder-decoder with one (Whisper). A source is then a wav file
        or its samples, [N] at 16 kHz."""
        encoder = self.encoder
        return self._audio_input is not None or (encoder is not None and encoder.reads_audio)

    @property
    def sees(self) -> bool:
        """Whether the model reads images. An image, in place of a text, is a path or uint8 pixels [height,width,3]."""
        return bool(self._info.patch_size)

    @property
    def start_tokens(self) -> list[int]:
        """The tokens with which the decoder of an encoder-decoder begins (`mha_model_start_tokens`)."""
        ids = C.c_void_p()
        count = self._library.mha_model_start_tokens(self._handle, C.byref(ids))
        return [int(i) for i in _tensor.numbers(ids.value, count, np.int32)] if count else []

    @property
    def parameters(self) -> int:
        """The number of parameters."""
        return int(self._info.parameters)

    @property
    def causal(self) -> bool:
        """True for a decoder: a token attends to itself and earlier tokens."""
        return self._has("causal")

    @property
    def predicts(self) -> bool:
        """True if the model predicts the next token: `generate` and `logits` work."""
        if self._encoder:
            return not self._has("no_output")
        return bool(library.mha_transformer_predicts(C.byref(self._desc)))

    def _has(self, flag: str) -> bool:
        return bool(self._desc.flags & _abi.TRANSFORMER_FLAGS[flag])

    # ---- Texts and tokens ------------------------------------------------------------------------

    def tokenize(self, text: str, pair: str | None = None, *, max_tokens: int | None = None,
                 truncate: bool = False) -> Tokens:
        """The tokens of a text, or of a text and its pair, with the model's special tokens.

            max_tokens  maximum number of tokens; default `max_positions`
            truncate    truncate longer texts instead of raising ValueError
        """
        return read(self._handle, text, pair, *self._limit(max_tokens, truncate))

    def patches(self, image: Any) -> Patches:
        """The tokens of an image: a PNG or JPEG file, or uint8 pixels [height,width,3]. They are those of transformers'
        image processor."""
        return read_patches(self._handle, image)

    def _limit(self, max_tokens: int | None, truncate: bool) -> list[Any]:
        most = 0 if max_tokens is None else integer(max_tokens, "max_tokens")
        if max_tokens is not None and most < 1:
            raise ValueError(f"max_tokens: {most} is not a number of tokens from 1 on")
        return [most, *["truncate"] * truth(truncate, "truncate")]

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of tokens, without special tokens. WordPiece words are joined without a space."""
        writer = Writer(self._handle)
        return "".join([writer.add(self._token(i)) for i in ids]) + writer.end()

    def _token(self, token: Any) -> int:
        number = integer(token, "token")
        if not 0 <= number < self.vocab_size:
            raise ValueError(f"token {number} is not in 0 .. {self.vocab_size - 1}")
        return number

    def _tokens(self, text: str | Sequence[int] | Tokens | np.ndarray[Any, Any], pair: str | None,
                max_tokens: int | None, truncate: bool) -> Tokens:
        if isinstance(text, str) and not self.sees:
            return self.tokenize(text, pair, max_tokens=max_tokens, truncate=truncate)
        _check_ids(text, "text")
        for name, used in (("pair", pair is not None), ("max_tokens", max_tokens is not None), ("truncate", truncate)):
            if used:
                raise TypeError(f"{name}: only together with a text")
        if isinstance(text, Tokens):
            if self.sees != isinstance(text, Patches):
                raise ValueError(f"{self.name}: the model reads {'images' if self.sees else 'texts'}")
            return text
        if self.sees:
            return self.patches(text)
        given = np.asarray(text)
        if given.ndim == 2 and len(given) == 1:
            given = given[0]  # a batch of one, as the tokenizers of transformers return
        if given.ndim != 1:
            raise ValueError(f"token ids of one text are expected, [T], not {list(given.shape)}: pass the "
                             "texts one by one")
        ids = np.array([self._token(i) for i in given], np.int32)
        labels = [label(self._handle, int(i)) if self._words else str(i) for i in ids]
        return Tokens(ids, labels, np.zeros(len(ids), np.bool_), np.zeros(len(ids), np.int32),
                      [None] * len(ids))

    def _batch(self, tokens: Tokens) -> tuple[_abi.Batch, list[Any]]:
        if len(tokens) == 0:
            raise ValueError("the text is empty: give at least one token")
        if self._encoder:
            raise Unsupported(f"{self.name}: an encoder-decoder has no hidden states of one text; use its .encoder",
                              _abi.STATUS["err_unsupported"])
        ids = np.ascontiguousarray(tokens.ids, np.int32)
        types = np.ascontiguousarray(tokens.segments, np.int32)
        features = np.ascontiguousarray(tokens.features, np.float32) if isinstance(tokens, Patches) else None
        batch = _abi.Batch(batch=1, length=len(ids), ids=ids.ctypes.data,
                           type_ids=types.ctypes.data if self._info.type_vocab_size > 1 else None,
                           features=None if features is None else features.ctypes.data)
        return batch, [ids, types, features]

    def _forward(self, tokens: Tokens, outputs: _abi.ModelOutputs, context: Context | None) -> None:
        batch, keep = self._batch(tokens)
        with context or default_context() as handle:
            check(self._library.mha_model_forward(handle, self._handle, C.byref(batch),
                                                  C.byref(outputs)))
        del keep

    # ---- Attention and logits --------------------------------------------------------------------

    def _encode(self, source: Any,
                context: Context | None = None) -> tuple[Tokens | None, Floats | None]:
        """The tokens of a source, and the encoder's rows of them, [1,S,E]."""
        encoder = self.encoder
        if encoder is None:
            if source is not None:
                raise ValueError(f"source: {self.name} has no encoder")
            return None, None
        if source is None:
            raise ValueError(f"{self.name}: an encoder-decoder needs the text of its encoder: give source")
        if encoder._audio_input is not None:
            return encode_audio(encoder, encoder._audio_input, source, False, context)[:2]
        tokens = encoder._tokens(source, None, None, False)
        rows = np.zeros((1, len(tokens), encoder.hidden_size), np.float32)
        batch, keep = encoder._batch(tokens)
        with context or default_context() as handle:
            check(self._library.mha_model_forward(handle, encoder._handle, C.byref(batch), C.byref(
                _abi.ModelOutputs(last_hidden=_tensor.pointer(rows)))))
        del keep
        return tokens, rows

    def _attention_of_towers(self, tokens: Tokens, source: Any, names: tuple[str, ...], layers: list[int],
                             context: Context | None) -> ModelAttention:
        """`attention` of a decoder with cross-attention."""
        for name in names:
            if name not in _TOWER_OUTPUTS:
                raise Unsupported(f"outputs: {name!r} is not available for an encoder-decoder, only "
                                  f"{', '.join(_TOWER_OUTPUTS)}", _abi.STATUS["err_unsupported"])
        if len(tokens) == 0:
            raise ValueError("the text is empty: give at least one token")
        read_, rows = self._encode(source, context)
        maps = {name: np.zeros((self.layers, 1, self.num_heads, len(tokens), len(keys)), np.float32)
                for name, keys in zip(_TOWER_OUTPUTS, (tokens, read_ or tokens)) if name in names}
        given = _abi.TransformerInput(tokens=_tensor.pointer(tokens.ids[None]), memory=_tensor.pointer(rows))
        pointers = [C.byref(_tensor.tensor(maps[name])) if name in maps else None for name in _TOWER_OUTPUTS]
        with context or default_context() as handle:
            check(library.mha_transformer_forward(handle, self._net, C.byref(given), None, None, *pointers))
        return ModelAttention(tokens, layers, source=read_, model=self.name,
                              scales=[self._scale(n) for n in layers],
                              **{name: [array[n, 0] for n in layers] for name, array in maps.items()})

    def attention(self, text: str | Sequence[int] | Tokens, pair: str | None = None, *,
                  source: Any = None, layers: Sequence[int] | None = None, outputs: str | Sequence[str] = "probabilities",
                  max_tokens: int | None = None, truncate: bool = False,
                  context: Context | None = None) -> ModelAttention:
        """The attention of every head in a text.

            text     a text, its `Tokens`, or token ids; an image if the model `sees`
            pair     a second text, for models trained on pairs (BERT)
            source   the encoder's text, for an encoder-decoder, whose decoder reads `text`; audio if the model `reads_audio`
            layers   indices from 0; default: all
            outputs  any of probabilities, average_probabilities, q, k, v, heads, lse; `ModelAttention` explains them.
                     probabilities takes 4 H T T bytes per layer. Of an encoder-decoder: probabilities,
                     cross_probabilities
        """
        names = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        for name in names:
            if name not in (*OUTPUTS, *_TOWER_OUTPUTS[1:] * bool(self._encoder)):
                raise ValueError(f"outputs: {name!r} is not one of {', '.join(OUTPUTS)}")
        wanted = list(range(self.layers)) if layers is None else _tensor.int64s(layers, "layers").tolist()
        for layer in wanted:
            if not 0 <= layer < self.layers:
                raise ValueError(f"layers: {layer} is not in 0 .. {self.layers - 1}")
        if self._audio_input is not None:
            if names != ("probabilities",):
                raise Unsupported("outputs: only probabilities are available for audio", _abi.STATUS["err_unsupported"])
            tokens, _, maps = encode_audio(self, self._audio_input, text, True, context)
            return ModelAttention(tokens, wanted, model=self.name, scales=[self._scale(n) for n in wanted],
                                  probabilities=[maps[n, 0] for n in wanted] if maps is not None else None)
        tokens = self._tokens(text, pair, max_tokens, truncate)
        if self._encoder or source is not None:
            return self._attention_of_towers(tokens, source, names, wanted, context)
        found = ModelAttention(tokens, wanted, model=self.name, scales=[self._scale(n) for n in wanted])
        structs = {layer: _abi.ModuleOutputs() for layer in set(wanted)}
        arrays: dict[tuple[int, str], Floats] = {}
        keep: list[Any] = []
        for layer, struct in structs.items():
            for name in names:
                array = np.zeros(self._shape(name, layer, len(tokens)), np.float32)
                arrays[layer, name] = array
                if array.size:
                    keep.append(_tensor.pointer(array[None]))
                    setattr(struct, name, keep[-1])
        pointers = (C.POINTER(_abi.ModuleOutputs) * max(self.layers, 1))()
        for layer, struct in structs.items():
            pointers[layer] = C.pointer(struct)
        self._forward(tokens, _abi.ModelOutputs(
            attention=C.cast(pointers, C.POINTER(C.POINTER(_abi.ModuleOutputs)))), context)
        for name in names:
            setattr(found, name, [arrays[layer, name] for layer in wanted])
        return found

    def _scale(self, layer: int) -> float:
        given = float(self._desc.layers[layer].scale) if self._desc.layers else 0.0
        return given or self._head_dim(layer)**-0.5

    def _head_dim(self, layer: int) -> int:
        return int(self._desc.layers[layer].head_dim) if self._desc.layers and self._desc.layers[layer].head_dim \
            else self.head_dim

    def _shape(self, name: str, layer: int, length: int) -> tuple[int, ...]:
        heads, size = self.heads_of_layers[layer], self._head_dim(layer)
        if name in ("k", "v"):
            heads = int(self._desc.layer_kv_heads[layer]) if self._desc.layer_kv_heads \
                else self.kv_heads
        mixer = self._desc.layers[layer] if self._desc.layers else None
        if mixer is not None and mixer.key_dim:  # a mixer with a state
            size = int(mixer.key_dim if name in ("q", "k") else mixer.value_dim)
            heads = int(self._desc.layer_kv_heads[layer]) if name in ("q", "k") and \
                self._desc.layer_kv_heads else self.heads_of_layers[layer]
        elif mixer is not None and mixer.latent_dim and name not in ("q", "k"):
            size = int(mixer.value_dim)
        return {"probabilities": (heads, length, length), "average_probabilities": (length, length),
                "lse": (heads, length)}.get(name, (heads, length, size))

    def experts(self, text: str | Sequence[int] | Tokens, *, context: Context | None = None) -> list[Experts | None]:
        """The experts that each token of a text uses, for each layer; None: the layer has no experts."""
        tokens = self._tokens(text, None, None, False)
        ids = np.ascontiguousarray(tokens.ids, np.int32)
        types = np.ascontiguousarray(tokens.segments, np.int32)
        given = _abi.Tokens(count=len(ids), ids=ids.ctypes.data, types=types.ctypes.data)
        found = _abi.Routes()
        with context or default_context() as handle:
            check(self._library.mha_routes_measure(handle, self._net, C.byref(given), C.byref(found)))
        try:
            layers = [found.layer[n] for n in range(found.layers)]
            size = [len(ids) * layer.used for layer in layers]
            return [Experts(int(layer.count), _tensor.numbers(layer.experts, n, np.int32).reshape(-1, layer.used),
                            _tensor.numbers(layer.weights, n, np.float32).reshape(-1, layer.used))
                    if layer.count else None for layer, n in zip(layers, size)] or [None] * self.layers
        finally:
            self._library.mha_routes_free(C.byref(found))

    def hidden_states(self, text: str | Sequence[int] | Tokens, pair: str | None = None, *,
                      context: Context | None = None) -> Floats:
        """The residual stream [L + 1,T,E]: x_0 .. x_L, before the final norm."""
        tokens = self._tokens(text, pair, None, False)
        states = np.zeros((self.layers + 1, len(tokens), self.hidden_size), np.float32)
        keep = [_tensor.pointer(states[n:n + 1]) for n in range(self.layers + 1)]
        pointers = (_abi.TensorPointer * len(keep))(*keep)
        self._forward(tokens, _abi.ModelOutputs(
            hidden=C.cast(pointers, C.POINTER(_abi.TensorPointer))), context)
        return states

    def _gates(self, without: Iterable[str | tuple[int, int]]) -> Floats | None:
        """[layers, heads], 0 at each head of `without`, given as "L16H0", "16.0" or (16, 0). None if no head is
        named."""
        gates = np.ones((self.layers, self.num_heads), np.float32)
        for name in [without] if isinstance(without, str) else without:
            match = re.fullmatch(r"L(\d+)H(\d+)|(\d+)\.(\d+)", name, re.I) if isinstance(name, str) else None
            pair = [int(n) for n in match.groups() if n] if match else name
            if isinstance(pair, str) or len(pair) != 2:
                raise ValueError(f"without: {name!r} names no head; give 'L16H0' or (16, 0)")
            layer, head = pair
            if not (0 <= layer < self.layers and 0 <= head < self.heads_of_layers[layer]):
                raise ValueError(f"without: {name!r} is no head of this model, which has {self.layers} "
                                 f"layers of {self.num_heads} heads, counted from 0")
            gates[layer, head] = 0
        return gates if (gates == 0).any() else None

    def logits(self, text: str | Sequence[int] | Tokens, *, source: Any = None,
               without: Iterable[str | tuple[int, int]] = (), context: Context | None = None) -> Floats:
        """The model's logits at each token: [T,V]. Row t predicts token t + 1.

            source   the encoder's text, for an encoder-decoder
            without  heads whose output becomes 0: "L16H0", or (16, 0); one or several
        """
        self._must_predict()
        tokens = self._tokens(text, None, None, False)
        if len(tokens) == 0:
            raise ValueError("the text is empty: give at least one token")
        logits = np.zeros((1, len(tokens), int(self._desc.vocab_size)), np.float32)
        gates = self._gates(without)
        memory = self._encode(source, context)[1]
        given = _abi.TransformerInput(tokens=_tensor.pointer(tokens.ids[None]),
                                      memory=None if memory is None else _tensor.pointer(memory),
                                      gates=None if gates is None else _tensor.pointer(gates))
        with context or default_context() as handle:
            check(library.mha_transformer_forward(handle, self._net, C.byref(given), None,
                                                  C.byref(_tensor.tensor(logits)), None, None))
        rows: Floats = logits[0]
        return rows

    def heads(self, texts: Any, *, source: str | Iterable[str] | None = None,
              attention: str | None = None, random: int | None = None, max_tokens: int | None = None, truncate: bool = False,
              without: Iterable[str | tuple[int, int]] = (), context: Context | None = None) -> HeadScores:
        """Score every head over texts. The numbers are those of `multihead heads`.

            texts   one text or several; may be empty if random is not 0. None: those that an encoder-decoder writes.
                    Paths of images or their pixels, if the model `sees`; the next five do not apply
            source  of an encoder-decoder: the encoder's text for each of them
            attention  of an encoder-decoder: "cross" (default), or "self" for the decoder's self-attention
            random  number of sequences of repeated random tokens, which detect induction heads (Olsson et al. 2022) and
                    duplicate-token heads; default: 10. Not of an encoder-decoder
            without heads whose output becomes 0, as for `logits`; the scores of later heads show the effect

        Each score has a chance level and the number of rows that it averages.
        """
        if self.sees or self._encoder:
            self._must_apply(random=random)
        if self.sees:
            self._must_apply(source=source, attention=attention, max_tokens=max_tokens, truncate=truncate or None)
            images = [texts] if isinstance(texts, (str, os.PathLike)) or getattr(texts, "ndim", 0) == 3 else list(texts or ())
            return measure_images(self, images, context or default_context(), self._gates(without))
        several = [texts] if isinstance(texts, str) else None if texts is None else list(texts)
        limit, *flags = self._limit(max_tokens, truncate)
        gates = self._gates(without)
        if self._encoder:
            if source is None:
                raise ValueError(f"{self.name}: an encoder-decoder needs the text of its encoder: give source")
            sources = [source] if isinstance(source, str) else list(source)
            return measure_towers(self, sources, several, attention or "cross", limit, flags, context or default_context(), gates)
        if source is not None or several is None:
            raise ValueError(f"source: {self.name} has no encoder" if several is not None else "texts: there is none")
        self._must_apply(attention=attention)
        return measure_heads(self, several, 10 if random is None else integer(random, "random"), limit, flags, context or default_context(), gates)

    def _must_apply(self, **given: Any) -> None:
        """Refuse arguments that have no effect on this model."""
        for name, value in given.items():
            if value is not None:
                kind = "a model that sees" if self.sees else "an encoder-decoder" if self._encoder else "a model of one text"
                raise ValueError(f"{name}: it has no effect on the heads of {kind}")

    # ---- Generation ------------------------------------------------------------------------------

    def _must_predict(self) -> None:
        if not self.predicts:
            raise Unsupported(f"{self.name}: the model does not predict the next token (an encoder, or saved "
                              "without its output layer)", _abi.STATUS["err_unsupported"])

    def decoder(self, *, source: Any = None, **options: Any) -> Decoder:
        """A decoder with key/value caches, for processing texts token by token. The options are those of `Decoder`;
        an encoder-decoder also needs the encoder's text, which is encoded once."""
        self._must_predict()
        return Decoder(self, memory=self._encode(source)[1], **options)

    def stream(self, prompt: str | Sequence[int] = "", *, source: Any = None, max_tokens: int = 64,
               temperature: float | None = None, top_k: int = 0, top_p: float | None = None,
               min_p: float | None = None, seed: int | None = None, stop: str | Sequence[str] = (),
               **cache: Any) -> Iterator[str]:
        """`generate`, yielding each piece of text as soon as it is complete."""
        self._must_predict()
        for name in cache:
            if name not in _CACHE:
                raise unknown_option(name, "generate", (*_SAMPLING, *_CACHE), _MEANT)
        narrows = bool(top_k) or top_p is not None or min_p is not None
        if seed is not None and temperature is None and not narrows:
            raise ValueError("seed has no effect without temperature, top_k, top_p or min_p")
        share = 1.0 if top_p is None else real(top_p, "top_p")
        if not 0 < share <= 1:
            raise ValueError(f"top_p: {top_p} is not above 0 and at most 1")
        if integer(max_tokens, "max_tokens") < 0:
            raise ValueError(f"max_tokens: {max_tokens} is not a number of tokens")
        sampling = _abi.Sampling(
            temperature=float(narrows) if temperature is None else real(temperature, "temperature"),
            top_k=integer(top_k, "top_k"), top_p=share, min_p=0 if min_p is None else real(min_p, "min_p"),
            seed=integer(seed or 0, "seed", C.c_uint64))
        stops = [utf8(text, "stop") for text in ((stop,) if isinstance(stop, str) else stop)]
        if b"" in stops:
            raise ValueError("stop: a text is empty")
        return iter(Generation(self, self._prompt(prompt), max_tokens, stops, sampling, describe(**cache),
                               self._encode(source)[1]))

    def _prompt(self, prompt: str | Sequence[int]) -> list[int]:
        _check_ids(prompt, "prompt")
        if not isinstance(prompt, str) and not len(prompt) and self.start_tokens:
            return self.start_tokens
        ids = ([] if isinstance(prompt, str) else [self._token(i) for i in prompt]) or \
            read(self._handle, prompt if isinstance(prompt, str) else "", None, -1, "prompt").ids.tolist()
        if not ids:
            raise ValueError("nothing to begin with: this model has no beginning-of-text token; give "
                             "a prompt")
        return ids

    @property
    def alignment_heads(self) -> list[tuple[int, int]]:
        """The published heads (layer, head) of Whisper whose cross-attention follows the audio; may be empty."""
        return alignment_heads(self)

    def transcribe(self, source: Any, *, prompt: str | Sequence[int] = "", word_timestamps: bool = False,
                   timestamps: bool | None = None, max_tokens: int = 0, heads: Sequence[tuple[int, int]] | None = None,
                   context: Context | None = None) -> Transcript:
        """Transcribe audio of any length with Whisper, greedily (`mha_transcribe`).

            source           a wav file, or its samples [N] at 16 kHz
            prompt           special tokens with which each window's text begins, as a text or ids; default: the model's
            word_timestamps  also find the times of tokens and words by dynamic time warping over alignment heads
            timestamps       let the decoder write timestamps; default: with word_timestamps. Always for audio longer than
                             a window (30 s)
            max_tokens       maximum number of tokens of a window; 0: as many as there are positions
            heads            (layer, head) for the times; default `alignment_heads`, otherwise the heads with the highest
                             scores
        """
        ids = self._prompt(prompt) if len(prompt) else []
        if heads is not None and not word_timestamps:
            raise ValueError("heads: they have no effect without word_timestamps")
        stamps = truth(word_timestamps, "word_timestamps") if timestamps is None else truth(timestamps, "timestamps")
        return transcribe(self, source, ids, word_timestamps, stamps, max_tokens, heads, context)

    def generate(self, prompt: str | Sequence[int] = "", *, source: Any = None,
                 max_tokens: int = 64,
                 temperature: float | None = None, top_k: int = 0, top_p: float | None = None,
                 min_p: float | None = None, seed: int | None = None, stop: str | Sequence[str] = (), **cache: Any) -> str:
        """Continue a text and return the continuation. Generates the same tokens as `multihead generate`.

            prompt       a text or token ids; "": from the beginning-of-text token
            source       the encoder's text, for an encoder-decoder; `prompt` is then the beginning of the result
            max_tokens   maximum number of new tokens
            temperature  0: the most likely token each time; else softmax(logits / temperature). Default: 1 with top_k,
                         top_p or min_p, else 0
            top_k        sample from the top_k most likely tokens only; 0: all
            top_p        sample from the most likely tokens whose probabilities add up to top_p
            min_p        sample from tokens with at least min_p times the highest probability
            seed         seed of the sampling
            stop         end before this text, or before any of several
            cache        options of `Decoder`: type="f32", "f16", "bf16" or "int8", page=16, window=1024, sinks=4,
                         streaming=True, ...

        Generation ends at one of `end_tokens`, before a stop text, or when the model's positions are used up.
        """
        return "".join(self.stream(prompt, source=source, max_tokens=max_tokens, temperature=temperature,
                                   top_k=top_k, top_p=top_p, min_p=min_p, seed=seed, stop=stop,
                                   **cache))


__all__ = ["Decoder", "DecoderOptions", "Experts", "Model", "ModelAttention"]
