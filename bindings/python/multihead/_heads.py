"""What every head of a model does over texts: scores, chance levels and roles."""
from __future__ import annotations

import ctypes as C
import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _abi, _tensor
from ._library import Context, check, library, name_of
from ._tokens import Pieces, Tokens, Words

if TYPE_CHECKING:
    from ._model import Model

Doubles = np.ndarray[Any, np.dtype[np.float64]]

_BLOCK, _REPEATS, _LEAST_BLOCK, _RARE_RANK = 25, 4, 4, 500  # as in `multihead heads`
_ON_RANDOM = ("duplicate", "induction", "induction_mean")
_TOLD_BY_RANDOM = ("duplicate token", "induction")
_RESTS = ("first token", "separator", "broad")
_MOST_ROLES = 64


@dataclass(frozen=True)
class Measure:
    """What a score counts."""

    name: str
    text: str
    kind: str
    """share, plain, nats, tokens or correlation."""


def _all_measures() -> dict[str, Measure]:
    found: dict[str, Measure] = {}
    number = 0
    while (info := library.mha_measure_describe(number)).name != b"?":
        name = info.name.decode()
        found[name] = Measure(name, info.text.decode(), name_of(_abi.MEASURE_KINDS, info.kind))
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
    """Where the threshold comes from."""

    def __str__(self) -> str:
        return self.name


@dataclass
class HeadScores:
    """The scores of all heads: `scores["induction"]` is [L,H], NaN for heads that a layer does not have
    and where no row counted.

    `random_duplicate`, `random_induction` and `random_induction_mean` are those on repeated random
    tokens. chance(), corrected() and rows() have the shape of the values; roles[layer][head] is a list.
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
        """(value - chance) / (1 - chance) of shares, else the value."""
        return self._of(self.corrections, name)  # type: ignore[no-any-return]

    def rows(self, name: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The number of rows that a score rests on."""
        return self._of(self.counts, name)  # type: ignore[no-any-return]

    def best(self, name: str, count: int = 10) -> list[tuple[int, int, float]]:
        """The heads with the highest scores: (layer, head, value), the highest first."""
        values = self[name]
        order = np.argsort(-np.where(np.isnan(values), -np.inf, values), axis=None, kind="stable")
        places = [np.unravel_index(int(i), values.shape) for i in order[:count]]
        return [(int(a), int(b), float(values[a, b])) for a, b in places
                if not np.isnan(values[a, b])]

    def table(self) -> list[dict[str, Any]]:
        """One dict a head (for pandas.DataFrame): layer, head, roles, and every score by its name."""
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


class _Measures:
    """mha_head_measures of a model."""

    def __init__(self, handle: C.c_void_p, heads: Sequence[int], rare_rank: int,
                 gates: np.ndarray[Any, Any] | None) -> None:
        self.gates = gates
        counts = np.array(heads, np.int64)
        desc = _abi.HeadMeasuresDesc(layers=len(heads), rare_rank=rare_rank,
                                     heads=counts.ctypes.data_as(_abi.Int64Pointer))
        self.handle = C.c_void_p()
        check(library.mha_head_measures_create(handle, C.byref(desc), C.byref(self.handle)))

    def __del__(self, destroy: Any = library.mha_head_measures_destroy) -> None:
        if getattr(self, "handle", None):
            destroy(self.handle)

    def add(self, handle: C.c_void_p, model: Model, tokens: Tokens,
            ranks: np.ndarray[Any, Any] | None) -> None:
        """Run a text through the model. Sentences are segments: they end at a special token other than
        the first, and at . ! ? ;"""
        special = np.ascontiguousarray(tokens.special, np.uint8)
        separators = np.array([bool(s) and i > 0 if s else text in tuple(".!?;")
                               for i, (s, text) in enumerate(zip(special, tokens.texts))], np.uint8)
        segments = np.concatenate([[0], np.cumsum(separators[:-1], dtype=np.int64)]).astype(np.int64)
        ranked = None if ranks is None else np.ascontiguousarray(ranks[tokens.ids])
        text = _abi.HeadsText(separators=separators.ctypes.data, special=special.ctypes.data,
                              segments=segments.ctypes.data_as(_abi.Int64Pointer),
                              ranks=None if ranked is None else ranked.ctypes.data_as(_abi.Int64Pointer))
        ids, types = tokens.ids[None], np.ascontiguousarray(tokens.segments[None], np.int32)
        given = _abi.TransformerInput(
            tokens=_tensor.pointer(ids),
            token_types=_tensor.pointer(types) if model._desc.type_count else None,
            gates=None if self.gates is None else _tensor.pointer(self.gates))
        run = _abi.HeadPass(measures=self.handle)
        check(library.mha_head_pass_run(handle, model._net, C.byref(given), C.byref(text),
                                        C.byref(run)))

    def score(self, layer: int, head: int, measure: int) -> _abi.HeadScore:
        return library.mha_head_measures_score(self.handle, layer, head, measure)

    def roles(self, layer: int, head: int) -> list[tuple[int, Role]]:
        room = (_abi.HeadRole * _MOST_ROLES)()
        count = library.mha_head_measures_roles(self.handle, layer, head, room, _MOST_ROLES)
        found = []
        for role in room[:min(count, _MOST_ROLES)]:
            info = library.mha_role_describe(role.role)
            found.append((int(role.role), Role(
                info.name.decode(), role.score.value, role.score.chance, role.score.rows,
                role.evidence.decode(), info.text.decode(), info.source.decode())))
        return found


def _measure_texts(handle: C.c_void_p, model: Model, heads: Sequence[int],
                   texts: Sequence[Tokens],
                   gates: np.ndarray[Any, Any] | None) -> _Measures | None:
    """Which tokens are rare is known when all texts are."""
    if not texts:
        return None
    counts = np.zeros(model.vocab_size, np.int64)
    for tokens in texts:
        np.add.at(counts, tokens.ids[~tokens.special], 1)
    ranks, kinds = np.zeros(len(counts), np.int64), C.c_int64()
    check(library.mha_head_pass_ranks(handle, len(counts), counts.ctypes.data, ranks.ctypes.data,
                                      C.byref(kinds)))
    measures = _Measures(handle, heads, max(min(kinds.value // 2, _RARE_RANK), 1), gates)
    for tokens in texts:
        measures.add(handle, model, tokens, ranks)
    return measures


def _measure_random(handle: C.c_void_p, model: Model, heads: Sequence[int], reader: Pieces | Words,
                    sequences: int, gates: np.ndarray[Any, Any] | None) -> _Measures | None:
    if isinstance(reader, Words):
        first, last = reader.begin, -1
    else:
        around = reader.encode("", None, 0, False).ids.tolist()
        first, last = (around[0] if around else -1), (around[-1] if len(around) > 1 else -1)
    words = min(reader.count, model.vocab_size)
    pool = np.array([i for i in range(words) if reader.is_word(i)], np.int32)
    block, repeats, most = min(_BLOCK, len(pool)), _REPEATS, model.max_positions - 2
    while block * repeats > most and block > 0:
        if repeats > 2:
            repeats -= 1
        else:
            block -= 1
    if sequences == 0 or block < _LEAST_BLOCK:
        return None
    measures = _Measures(handle, heads, _RARE_RANK, gates)
    drawn = np.zeros(block * repeats + 2, np.int32)
    special = np.zeros(len(drawn), np.uint8)
    for sequence in range(sequences):
        how = _abi.RepeatedTokens(block=block, repeats=repeats, first=first, last=last, seed=1,
                                  sequence=sequence)
        count = C.c_int64()
        check(library.mha_head_pass_repeated(C.byref(how), len(pool), pool.ctypes.data,
                                             drawn.ctypes.data, special.ctypes.data, C.byref(count)))
        n = count.value
        tokens = Tokens(drawn[:n].copy(), [""] * n, special[:n].astype(np.bool_),
                        np.zeros(n, np.int32), [None] * n)
        measures.add(handle, model, tokens, None)
    return measures


def _roles(texts: _Measures | None, random: _Measures | None, layer: int, head: int) -> list[Role]:
    """Those on texts, but duplicates and induction from random tokens, where they are: texts repeat
    words for many reasons. Roles of heads that rest somewhere come last."""
    found = [role for role in (texts.roles(layer, head) if texts else [])
             if random is None or role[1].name not in _TOLD_BY_RANDOM]
    found += [role for role in (random.roles(layer, head) if random else [])
              if role[1].name in _TOLD_BY_RANDOM]
    return [role for _, role in sorted(found, key=lambda r: (r[1].name in _RESTS, r[0]))]


def measure_heads(model: Model, reader: Pieces | Words, texts: Sequence[Tokens], random: int,
                  context: Context, gates: np.ndarray[Any, Any] | None = None) -> HeadScores:
    if random < 0:
        raise ValueError(f"random: {random} is not a number of sequences")
    if not texts and random == 0:
        raise ValueError("texts: there is none; give one, or random above 0")
    heads = model.heads_of_layers
    with context as handle:
        on_texts = _measure_texts(handle, model, heads, texts, gates)
        on_random = _measure_random(handle, model, heads, reader, random, gates)
    columns = [(name, number, on_texts) for number, name in enumerate(MEASURES)]
    columns += [(f"random_{name}", list(MEASURES).index(name), on_random) for name in _ON_RANDOM]
    shape = (len(heads), max(heads, default=0))
    made: tuple[dict[str, Any], dict[str, Any], dict[str, Any], dict[str, Any]] = ({}, {}, {}, {})
    for name, measure, source in columns:
        values, chances, corrections = (np.full(shape, np.nan) for _ in range(3))
        rows = np.zeros(shape, np.int64)
        for layer, count in enumerate(heads):
            for head in range(count if source else 0):
                assert source is not None
                score = source.score(layer, head, measure)
                rows[layer, head] = score.rows
                if score.rows:
                    values[layer, head], chances[layer, head] = score.value, score.chance
                    corrections[layer, head] = score.corrected
        for of, array in zip(made, (values, chances, corrections, rows)):
            of[name] = array
    roles = [[_roles(on_texts, on_random, layer, head) for head in range(count)]
             for layer, count in enumerate(heads)]
    return HeadScores(model.name, len(texts), sum(map(len, texts)), *made, roles)
