#!/usr/bin/env python3
"""The in-context learning that a language model loses without heads: the mean loss at tokens 40 to 60 of texts minus
that at tokens 450 to 550 (Olsson et al. 2022: token 50 and token 500).

    bench/ablation.py MODEL BOOK.txt [--texts 12] [--seed 1]

Removes the five heads with the highest induction score, five random ones (three draws), and the five with the lowest.
Prints a table with 95 % bootstrap intervals over texts.
"""
import argparse
import os
import pathlib
import sys

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bindings/python"))
os.environ.setdefault("MHA_LIBRARY_DIR", str(ROOT / "build"))
import multihead  # noqa: E402

EARLY, LATE, LENGTH = slice(40, 61), slice(450, 551), 552


def losses(model, ids, without):
    logits = model.logits(ids, without=without).astype(np.float64)
    logits -= logits.max(1, keepdims=True)
    return np.log(np.exp(logits).sum(1))[:-1] - logits[np.arange(len(ids) - 1), ids[1:]]


def measure(model, texts, without):
    """[texts, 2]: in-context learning and the mean loss."""
    found = [losses(model, ids, without) for ids in texts]
    return np.array([[x[EARLY].mean() - x[LATE].mean(), x.mean()] for x in found])


def interval(values, rng):
    means = np.sort([values[rng.integers(0, len(values), len(values))].mean() for _ in range(2000)])
    return f"{values.mean():+.3f} ({means[50]:+.3f} to {means[1949]:+.3f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("book")
    parser.add_argument("--texts", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    model = multihead.Model(options.model)
    rng = np.random.default_rng(options.seed)
    text = pathlib.Path(options.book).read_text(encoding="utf-8", errors="replace")
    texts = []
    for start in rng.permutation(len(text) // 4000)[:options.texts] * 4000:
        ids = model.tokenize(text[start:start + 4000]).ids
        if len(ids) >= LENGTH:
            texts.append(ids[:LENGTH])
    order = model.heads([], random=10).best("random_induction", model.layers * model.num_heads)
    heads = [(layer, head) for layer, head, _ in order]
    rest = heads[5:-5]
    draws = [[rest[i] for i in rng.choice(len(rest), 5, replace=False)] for _ in range(3)]
    whole = measure(model, texts, [])
    name = lambda some: " ".join(f"L{a}H{b}" for a, b in some)  # noqa: E731
    print(f"{model.name}, {len(texts)} texts of {LENGTH} tokens\n")
    print("| without | in-context learning | change | loss | change |\n|---|---|---|---|---|")
    print(f"| nothing | {interval(whole[:, 0], rng)} | | {whole[:, 1].mean():.3f} | |")
    for what, some in [("five best", heads[:5]), *(("five random", draw) for draw in draws),
                       ("five least", heads[-5:])]:
        found = measure(model, texts, some)
        print(f"| {what}: {name(some)} | {interval(found[:, 0], rng)} | {interval((found - whole)[:, 0], rng)} | "
              f"{found[:, 1].mean():.3f} | {interval((found - whole)[:, 1], rng)} |", flush=True)


if __name__ == "__main__":
    main()
