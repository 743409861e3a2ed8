"""attn_implementation="multihead" in a tiny random model of every text family of transformers.

Judge: a family's own eager attention in float64. An error may be twice that of eager in float32, plus a
millionth of the largest number; or the model is refused with a message that names the argument. Without
padding, padded on either side, generating with a cache that grows and with a static one. Rows of padding
are not compared. The gate takes two families of its own draw.
"""
import collections
import random
import time

import pytest

pytest.importorskip("transformers")
import interface_models
import multihead.transformers as ours
from shared import SEED

REFUSED = {"minimax_m3_vl": "block_indices", "minimax_m3_vl_text": "block_indices"}
"""Families, and the argument that this package does not know."""
LEAST = 220
"""Families of transformers 5.23 that are made and right; 239 in 2026."""


@pytest.fixture(scope="module")
def passed():
    """The arguments that models pass: {name: families}."""
    ours.register()
    found, forward = collections.defaultdict(set), ours.attention_forward

    def watched(module, *tensors, **options):
        for name, value in options.items():
            if value is not None and value is not False:
                found[name].add(type(module).__name__)
        return forward(module, *tensors, **options)

    interface_models.transformers.AttentionInterface.register("multihead", watched)
    yield found
    ours.register()


def examine(family):
    """The verdict of a family over its modes; what is wrong is an assertion."""
    results = interface_models.examine(family)
    verdicts = {verdict for verdict, _ in results.values()}
    assert "wrong" not in verdicts, f"{family}: {results}"
    if family in REFUSED:
        assert verdicts == {"refused"}, f"{family}: {results}"
        assert all(f"passes {REFUSED[family]}, which is not supported" in text for _, text in results.values())
    else:
        assert "refused" not in verdicts, f"{family}: {results}"
    return next(v for v in ("refused", "right", "not run", "not made", "left out") if v in verdicts), results


DRAWN = ["minimax_m3_vl_text", *random.Random(SEED).sample(sorted(interface_models.families()), 24)]


def test_drawn_families(passed):
    """One that is refused, and the first two of a draw that can be made."""
    count = 0
    for family in DRAWN:
        verdict, results = examine(family)
        print(f"\n{family}: {verdict} {results}", end="")
        count += verdict == "right"
        if count == 2:
            break


@pytest.mark.gate(0)
def test_every_family(passed):
    """All, with a table of errors (ours, eager's in float32) and counts."""
    counts, began = collections.Counter(), time.process_time()
    for family in interface_models.families():
        verdict, results = examine(family)
        counts[verdict] += 1
        if verdict != "left out":
            texts = [f"{mode or 'model'}: {text}" if of == "right" else f"{mode or 'model'}: {of}, {text}"
                     for mode, (of, text) in results.items()]
            print(f"{family:28} {verdict:8} {'; '.join(texts)[:220]}")
    print(f"{dict(counts)} in {time.process_time() - began:.0f} CPU seconds")
    for name, modules in sorted(passed.items()):
        print(f"{name:18} reaches {len(modules)} kinds of layers, such as {min(modules)}")
    assert counts["right"] >= LEAST and counts["refused"] == len(REFUSED)
    takes = ours.attention_forward.__code__
    known = {*takes.co_varnames[:takes.co_argcount], *ours._WITHOUT_EFFECT, *REFUSED.values()}
    assert passed.keys() <= known
