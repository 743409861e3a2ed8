"""attn_implementation="multihead" in a tiny random model of every family of transformers.

The reference is a model's own eager attention in float64. The error may be twice that of eager in float32, plus a
millionth of the largest number; or the model is rejected with a message that names the argument.
Tests run without padding, with padding on either side, with generation from a growing and a static
cache, and with gradients. Padding rows are not compared. The gate has two random classes.
"""
import collections
import random
import time

import pytest

import interface_models
import multihead.transformers as ours
from shared import SEED

REFUSED = dict.fromkeys(("MiniMaxM3VLForCausalLM", "MiniMaxM3VLModel"), "block_indices")
"""Classes, and the argument that this package does not support."""
LEAST = 390
"""The number of classes of transformers 5.23 that can be created and are correct."""


@pytest.fixture(scope="module")
def passed():
    """Arguments that models pass: {name: families}."""
    ours.register()
    found, forward = collections.defaultdict(set), ours.attention_forward

    def watched(module, *tensors, **options):
        for name, value in options.items():
            if value is not None and value is not False:
                found[name].add(type(module).__name__)
        interface_models.calls += 1
        return forward(module, *tensors, **options)

    interface_models.transformers.AttentionInterface.register("multihead", watched)
    yield found
    ours.register()


def examine(name):
    """The verdict of a class over its modes, and a line about them."""
    results = interface_models.examine(name)
    verdicts = {verdict for verdict, _ in results.values()}
    verdict = next(v for v in ("wrong", "refused", "right", "not judged", "not run", "not made", "left out") if v in verdicts)
    if verdict == "refused":
        expected = f"passes {REFUSED.get(name)}, which is not supported"
        if not all(of == verdict and expected in text for of, text in results.values()):
            verdict = "wrong"
    elif name in REFUSED:
        verdict = "wrong"
    texts = [f"{mode or 'model'}: {text if of == 'right' else f'{of}, {text}'}" for mode, (of, text) in results.items()]
    return verdict, f"{name:38} {verdict:8} {'; '.join(texts)}"


CLASSES = interface_models.classes()
# The first class is rejected, and the second adds its masks.
FIXED = ["MiniMaxM3VLForCausalLM", "BigBirdPegasusForConditionalGeneration"]
DRAWN = random.Random(SEED).sample(list(CLASSES), 24)


def test_drawn_families(passed):
    """FIXED, and the first two random classes that can be created."""
    count = -1
    for name in FIXED + DRAWN:
        verdict, line = examine(name)
        print(f"\n{line}", end="")
        assert verdict != "wrong", line
        count += verdict == "right"
        if count == 2:
            break


@pytest.mark.gate(0)
def test_every_family(passed):
    """All classes, with a table of errors (the library's, and eager's in float32) and counts."""
    lines, began = collections.defaultdict(list), time.process_time()
    for name in CLASSES:
        verdict, line = examine(name)
        lines[verdict].append(line)
        if verdict != "left out":
            print(line[:240])
    counts = {verdict: len(of) for verdict, of in lines.items()}
    families = {CLASSES[line.split()[0]][0] for line in lines["right"]}
    print(f"{counts} classes, {len(families)} families right, in {time.process_time() - began:.0f} CPU seconds")
    for argument, modules in sorted(passed.items()):
        print(f"{argument:18} reaches {len(modules)} kinds of layers, such as {min(modules)}")
    check(lines)


def check(lines):
    """Raise if any class is wrong, fewer than LEAST classes are right, or the rejected classes are
    not exactly those in REFUSED."""
    assert not lines["wrong"], "\n".join(lines["wrong"])
    counts = len(lines["right"]), len(lines["refused"])
    assert counts[0] >= LEAST and counts[1] == len(REFUSED), counts


def test_fewer_classes_than_the_limit_fail():
    def lines(**counts):
        return collections.defaultdict(list, {verdict: ["line"] * count for verdict, count in counts.items()})

    refused = len(REFUSED)
    check(lines(right=LEAST, refused=refused))
    for short in (lines(right=LEAST - 1, refused=refused), lines(refused=refused), lines(right=LEAST),
                  lines(right=LEAST, refused=refused + 1), lines(right=LEAST, refused=refused, wrong=1)):
        with pytest.raises(AssertionError):
            check(short)
