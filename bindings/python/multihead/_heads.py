"""Scores, chance levels and roles of every head of a model over texts."""
from __future__ import annotations

import ctypes as C
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _abi, _tensor
from ._library import Context, check, library, model_library, name_of
from ._images import raw_patches
from ._tokens import read_raw

if TYPE_CHECKING:
    from ._model import Model

Doubles = np.ndarray[Any, np.dtype[np.float64]]

@dataclass(frozen=True)
class Measure:
    """The definition of a score."""

    name: str
    text: str
    kind: str
    """share, plain, nats, tokens or correlation."""
    label: str
    """The name on pages: "previous token"."""
    source: str
    """"Clark 2019"; "ours"."""


def _all_measures() -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    number = 0
    while (info := library.mha_measure_describe(number)).name != b"?":
        name = info.name.decode()
        found[name] = Measure(name, info.text.decode(), name_of(_abi.MEASURE_KINDS, info.kind),
                              info.label.decode(), info.source.decode())
        number += 1
    return found


MEASURES: dict[str, Measure] = _all_measures()
"""All measures, by name; docs/heads.md has their formulas and sources."""


@dataclass(frozen=True)
class Role:
    """A role of a head: a score above its threshold."""

    name: str
    value: float
    chance: float
    rows: int
    evidence: str
    """One line: "previous token 0.94, chance 0.06, 63 rows"."""
    meaning: str
    source: str
    """The source of the threshold."""

    def __str__(self) -> str:
        return self.name


@dataclass
class HeadScores:
    """The scores of all heads: `scores["induction"]` is [L,H]. It is NaN for heads that a layer does not have, and for
    scores without eligible rows.

    `random_duplicate`, `random_induction` and `random_induction_mean` are measured on repeated random tokens. chance(),
    corrected() and rows() return [L,H]; roles[layer][head] is a list.
    """

    model: str
    texts: int
    tokens: int
    values: dict[str, Doubles] = field(repr=False)
    chances: dict[str, Doubles] = field(repr=False)
    corrections: dict[str, Doubles] = field(repr=False)
    counts: dict[str, np.ndarray[Any, np.dtype[np.int64]]] = field(repr=False)
    roles: list[list[list[Role]]] = field(repr=False)

    def _of(self, what: dict[str, Any], name: str) -> Any:
        if name not in what:
            raise KeyError(f"{name!r} is not one of {', '.join(what)}")
        return what[name]

    @property
    def names(self) -> list[str]:
        """The names of all scores."""
        return list(self.values)

    def __getitem__(self, name: str) -> Doubles:
        return self._of(self.values, name)  # type: ignore[no-any-return]

    def chance(self, name: str) -> Doubles:
        """The score of uniform attention over the same rows."""
        return self._of(self.chances, name)  # type: ignore[no-any-return]

    def corrected(self, name: str) -> Doubles:
        """(value - chance) / (1 - chance) for shares, otherwise the value."""
        return self._of(self.corrections, name)  # type: ignore[no-any-return]

    def rows(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of rows that the score averages."""
        return self._of(self.counts, name)  # type: ignore[no-any-return]

    def best(self, name: str, count: int = 10) -> list[tuple[int, int, float]]:
        """The heads with the highest scores: (layer, head, value), descending."""
        values = self[name]
        order = np.argsort(-np.where(np.isnan(values), -np.inf, values), axis=None, kind="stable")
        places = [np.unravel_index(int(i), values.shape) for i in order[:count]]
        return [(int(a), int(b), float(values[a, b])) for a, b in places
                if not np.isnan(values[a, b])]

    def table(self) -> list[dict[str, Any]]:
        """One dict per head (for pandas.DataFrame): layer, head, roles, and every score by its name."""
        return [{"layer": layer, "head": head, "roles": ", ".join(map(str, roles)),
                 **{name: float(values[layer, head]) for name, values in self.values.items()}}
                for layer, heads in enumerate(self.roles) for head, roles in enumerate(heads)]

    def _repr_html_(self) -> str:
        rows = []
        for layer, heads in enumerate(self.roles):
            cells = []
            for head, roles in enumerate(heads):
                name = html.escape(str(roles[0])) if roles else "&ndash;"
                note = html.escape("; ".join(role.evidence for role in roles), quote=True)
                cells.append(f'<td title="L{layer}H{head}: {note or "no role"}">{name}</td>')
            rows.append(f"<tr><th>L{layer}</th>{''.join(cells)}</tr>")
        most = max(map(len, self.roles), default=0)
        head_names = "".join(f"<th>H{head}</th>" for head in range(most))
        return (f"<table><caption>{html.escape(self.model)}: the first role of each head, over "
                f"{self.texts} texts of {self.tokens} tokens</caption><tr><th></th>{head_names}</tr>"
                f"{''.join(rows)}</table>")


def _score_names(found: Any) -> list[str]:
    names, room = [], C.create_string_buffer(_abi.STUDY["name_bytes"])
    for number in range(model_library().mha_study_score_count(found)):
        model_library().mha_study_score_name(found, number, room)
        names.append(room.value.decode())
    return names


def _roles(found: Any, layer: int, head: int) -> list[Role]:
    room = (_abi.HeadRole * _abi.STUDY["most_roles"])()
    roles = []
    for role in room[:model_library().mha_study_roles(found, layer, head, room)]:
        info = library.mha_role_describe(role.role)
        roles.append(Role(info.name.decode(), role.score.value, role.score.chance, role.score.rows,
                          role.evidence.decode(), info.text.decode(), info.source.decode()))
    return roles


def _scores(model: Model, found: Any) -> HeadScores:
    heads = model.heads_of_layers
    shape = (len(heads), max(heads, default=0))
    made: tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {}, {})
    for number, name in enumerate(_score_names(found)):
        values, chances, corrections = (np.full(shape, np.nan) for _ in range(3))
        rows = np.zeros(shape, np.int64)
        for layer, head in ((layer, head) for layer, n in enumerate(heads) for head in range(n)):
            score = model_library().mha_study_score(found, layer, head, number)
            rows[layer, head] = score.rows
            if score.rows:
                values[layer, head], chances[layer, head] = score.value, score.chance
                corrections[layer, head] = score.corrected
        for of, array in zip(made, (values, chances, corrections, rows)):
            of[name] = array
    roles = [[_roles(found, layer, head) for head in range(n)] for layer, n in enumerate(heads)]
    return HeadScores(model.name, found.contents.text_count, found.contents.token_count, *made, roles)


def measure_heads(model: Model, texts: Sequence[str], random: int, max_tokens: int, flags: list[str],
                  context: Context, gates: np.ndarray[Any, Any] | None = None) -> HeadScores:
    if random < 0:
        raise ValueError(f"random: {random} is not a number of sequences")
    if not texts and random == 0:
        raise ValueError("texts: there is none; give one, or random above 0")
    models, study = model_library(), C.c_void_p()
    read = (_abi.Tokens * len(texts))()
    desc = _abi.StudyDesc(gates=None if gates is None else _tensor.pointer(gates))
    with context as handle:
        try:
            for number, text in enumerate(texts):
                read[number] = read_raw(model._handle, text, None, max_tokens, *flags)
            check(models.mha_study_create(handle, model._handle, C.byref(desc), C.byref(study)))
            check(models.mha_study_measure(study, read, len(texts), None, random))
            return _scores(model, models.mha_study_results(study))
        finally:
            models.mha_study_destroy(study)
            for tokens in read:
                models.mha_tokens_free(C.byref(tokens))


def measure_towers(model: Model, sources: Sequence[str], targets: Sequence[str] | None, attention: str, max_tokens: int,
                   flags: list[str], context: Context, gates: np.ndarray[Any, Any] | None) -> HeadScores:
    """`measure_heads` of an encoder-decoder. targets None: those that the model writes."""
    if attention not in ("cross", "self"):
        raise ValueError(f'attention: {attention!r} is neither "cross" nor "self"')
    if not sources or targets is not None and len(targets) != len(sources):
        raise ValueError(f"source: {len(sources)} texts, expected {'at least one' if targets is None else len(targets)}")
    models, study = model_library(), C.c_void_p()
    read, made = (_abi.Tokens * len(sources))(), (_abi.Tokens * len(sources))()
    visits = [_abi.StudyVisit(source=C.pointer(tokens)) for tokens in read]
    desc = _abi.StudyDesc(gates=None if gates is None else _tensor.pointer(gates),
                          flags=_abi.STUDY["cross"] if attention == "cross" else 0)
    with context as handle:
        try:
            for number, text in enumerate(sources):
                read[number] = read_raw(C.c_void_p(model._encoder), text, None, max_tokens, *flags)
                if targets is not None:
                    made[number] = read_raw(model._handle, targets[number], None, max_tokens, *flags)
                else:
                    made[number] = _abi.Tokens()
                    check(models.mha_tokens_generate(handle, model._handle, C.byref(read[number]), max_tokens,
                                                     C.byref(made[number])))
            check(models.mha_study_create(handle, model._handle, C.byref(desc), C.byref(study)))
            listed = (C.POINTER(_abi.StudyVisit) * len(visits))(*map(C.pointer, visits))
            check(models.mha_study_measure(study, made, len(sources), listed, 0))
            return _scores(model, models.mha_study_results(study))
        finally:
            models.mha_study_destroy(study)
            for tokens in (*read, *made):
                models.mha_tokens_free(C.byref(tokens))


def measure_images(model: Model, images: Sequence[Any], context: Context,
                   gates: np.ndarray[Any, Any] | None = None) -> HeadScores:
    """`measure_heads` over images, which are read twice: once to count their tokens."""
    if not images:
        raise ValueError("texts: there is no image")
    models, study = model_library(), C.c_void_p()
    desc = _abi.StudyDesc(gates=None if gates is None else _tensor.pointer(gates))
    number = C.c_int64()
    with context as handle:
        try:
            check(models.mha_study_create(handle, model._handle, C.byref(desc), C.byref(study)))
            for image in images:
                with raw_patches(model._handle, image) as tokens:
                    check(models.mha_study_count(study, C.byref(tokens), None))
            check(models.mha_study_begin(study))
            for image in images:
                check(models.mha_study_next(study, C.byref(number)))
                with raw_patches(model._handle, image) as tokens:
                    check(models.mha_study_text(study, C.byref(tokens), None))
            return _scores(model, models.mha_study_results(study))
        finally:
            models.mha_study_destroy(study)
