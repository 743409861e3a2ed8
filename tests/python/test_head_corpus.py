"""multihead heads --corpus compared with a direct computation from attention and values of
transformers (float64, eager), with loops over rows. Deciles must agree within a histogram bin, and
other numbers within 1e-4."""
import json
import math
import subprocess

import numpy as np
import pytest
import torch
import transformers

from shared import MINILM, PROGRAM, TINY

TEXTS = ["The cat sat on the mat near the river.", "The dog saw the cat. The cat saw the dog and the river.",
         "A bank by the river was flooded, and the bank by the road was not.", "It sat.",
         "The pilot flew the plane to Paris, and the plane flew back without the pilot."]
TOLERANCE, FEWEST_KEYS = 1e-4, 8


@pytest.fixture(scope="module", params=["tiny-bert", "MiniLM"])
def case(request, tmp_path_factory):
    """The program's result, and for each text its tokens, maps [layers][H,T,T] and norms [layers][H,T]."""
    folder = TINY if request.param == "tiny-bert" else MINILM
    if not folder.exists():
        pytest.skip(f"{folder} is not there: tools/get-minilm fetches it")
    path = tmp_path_factory.mktemp("corpus") / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    done = subprocess.run([PROGRAM, "heads", folder, "--text", path, "--corpus", "--json", "--random", "0", "--quiet"],
                          capture_output=True, text=True, check=True)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    values = {}
    hooks = [layer.attention.self.value.register_forward_hook(
        lambda module, given, out, l=l: values.__setitem__(l, out[0].detach().numpy()))
        for l, layer in enumerate(model.encoder.layer)]
    texts = []
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            maps = [a[0].numpy() for a in model(**ids, output_attentions=True).attentions]
        norms = []
        for l, layer in enumerate(model.encoder.layer):
            W = layer.attention.output.dense.weight.detach().numpy()
            H = len(maps[l])
            v = values[l].reshape(len(values[l]), H, -1)
            w = W.reshape(len(W), H, -1)
            norms.append(np.linalg.norm(np.einsum("ehd,thd->hte", w, v), axis=2))
        texts.append((ids["input_ids"][0].tolist(), maps, norms))
    for hook in hooks:
        hook.remove()
    return json.loads(done.stdout), texts, set(tokenizer.all_special_ids)


def rows_of(texts, layer, head, score):
    """[(value, text, row, largest key)] of all rows."""
    return [(score(text[1][layer][head], i), number, i, int(np.argmax(text[1][layer][head][i])))
            for number, text in enumerate(texts) for i in range(len(text[0]))]


def entropy(a, i):
    return -(a[i] * np.log(a[i])).sum()


def distance(a, i):
    return (a[i] * abs(np.arange(len(a)) - i)).sum()


SCORES = {"self": lambda a, i: a[i, i], "entropy": entropy, "distance": distance,
          "previous": lambda a, i: a[i, i - 1] if i else None, "first": lambda a, i: a[i, 0]}
BIN = {"entropy": lambda v: 1 / 16, "distance": lambda v: 1 / 16 + v / 16}


@pytest.mark.parametrize("name", SCORES)
def test_distributions_and_places(case, name):
    said, texts, _ = case
    for head in said["heads"]:
        rows = [r for r in rows_of(texts, head["layer"], head["head"], SCORES[name]) if r[0] is not None]
        d, values = head["distributions"][name], np.sort([r[0] for r in rows])
        assert d["rows"] == len(rows) and d["texts"] == len(texts)
        assert abs(d["mean"] - values.mean()) < TOLERANCE * max(1, values.mean())
        assert d["low"] <= d["mean"] + 1e-12 and d["mean"] - 1e-12 <= d["high"]
        for i, decile in enumerate(d["deciles"]):
            rank = (len(rows) - 1) * i / 10
            low, high = values[math.floor(rank)], values[math.ceil(rank)]
            off = BIN.get(name, lambda v: 1 / 256)(high) if 0 < i < 10 else 0
            assert low - off - TOLERANCE <= decile <= high + off + TOLERANCE * max(1, high)
        best = {}
        for value, text, row, key in rows:
            if len(texts[text][0]) >= FEWEST_KEYS and value > best.get(text, (-1,))[0]:
                best[text] = value, text, row, key
        expected = sorted(best.values(), key=lambda r: -r[0])
        places = head["places"][name]
        assert len(places) == len(expected)
        for place, (value, *_) in zip(places, expected):
            assert abs(place["value"] - value) < TOLERANCE * max(1, value)
            # Values are equal up to rounding, so a different row may be first.
            there = SCORES[name](texts[place["text"]][1][head["layer"]][head["head"]], place["row"])
            assert abs(there - value) < TOLERANCE * max(1, value)


def test_positions_tokens_and_the_first_token(case):
    said, texts, special = case
    tokens = {}
    for head in said["heads"]:
        l, h = head["layer"], head["head"]
        for bin_ in head["positions"]:
            rows = [(i, text) for text in texts for i in range(len(text[0])) if bin_["first"] <= i <= bin_["last"]]
            assert bin_["rows"] == len(rows)
            for name in ("entropy", "distance"):
                mean = np.mean([SCORES[name](text[1][l][h], i) for i, text in rows]) if rows else 0
                # fixed point, 2^-10 tokens per row
                assert abs(bin_[name] - mean) < 1e-3 * max(1, mean)
        mass, moved, read, counts = [], [], {}, {}
        for ids, maps, norms in texts:
            a, n = maps[l][h], norms[l][h]
            for i in range(1, len(ids)):
                arrives = a[i] * n
                mass.append(a[i, 0])
                moved.append(arrives[0] / arrives.sum())
                counts[ids[i]] = counts.get(ids[i], 0) + 1
            for j in range(1, len(ids)):
                read[ids[j]] = read.get(ids[j], 0) + a[:, j].sum()
        assert head["first_token"]["rows"] == len(mass)
        assert abs(head["first_token"]["mass"] - np.mean(mass)) < TOLERANCE
        assert abs(head["first_token"]["moved"] - np.mean(moved)) < TOLERANCE
        for token in head["reads"]:
            if token["id"] < 0:
                continue
            tokens[token["id"]] = token
            assert token["count"] == counts[token["id"]] >= 3
            assert abs(token["mass"] - read[token["id"]]) < TOLERANCE * max(1, read[token["id"]])
    assert len(tokens) >= 2 and not special & set(tokens)


def test_luck_is_between_the_mean_and_the_best(case):
    said, _, _ = case
    for name in SCORES:
        means = [head["distributions"][name]["mean"] for head in said["heads"]]
        assert np.mean(means) - 1e-9 <= said["luck"][name] <= max(
            head["distributions"][name]["deciles"][10] for head in said["heads"]) + 1e-9
