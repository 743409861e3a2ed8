"""multihead heads compared with a direct computation of the same definitions (docs/heads.md), from
attention of transformers in float64 (eager), with loops over rows and without shared code. Every
score of every head over the sentences of tools/sentences.py must agree within 1e-4, and every
number of rows must be equal. Run with -s to see the largest differences. The default tests every
13th head of the real model, and MHA_TEST_LONG=1 tests all (about ten minutes).

Counts (position of the largest weight, broad rows) jump if two numbers are equal. Rows within 1e-5
of a jump in float64 may or may not count, and their number is recorded.

Uses the real model of MHA_MODEL_DIR (default build/models/all-MiniLM-L6-v2; skipped if missing) and
the tiny one of the tests. The program is $MULTIHEAD (default build/multihead).
"""
import collections
import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

from shared import MINILM, PROGRAM, ROOT, SEED, TINY, amount, needs

NEAR, FARTHEST, MARGIN, TOLERANCE = 2, 8, 1e-5, 1e-4

needs(PROGRAM)


# ---- sentences ---------------------------------------------------------------------------------

def read_conllu(text):
    """[(text, [(begin, end) of each word], [(from, to, relation)])], with multiword tokens as one
    word."""
    sentences = []
    for block in text.strip().split("\n\n"):
        rows = [line.split("\t") for line in block.split("\n") if not line.startswith("#")]
        unit_of, units, covered = {}, [], 0
        for row in rows:
            if "-" in row[0]:
                covered = int(row[0].split("-")[1])
                units.append((row[1], "SpaceAfter=No" in row[9]))
            else:
                number = int(row[0])
                if number > covered:
                    units.append((row[1], "SpaceAfter=No" in row[9]))
                unit_of[number] = len(units) - 1
        line, spans = "", []
        for form, joined in units:
            spans.append((len(line), len(line) + len(form)))
            line += form + ("" if joined else " ")
        links = []
        for row in rows:
            if "-" in row[0]:
                continue
            here = unit_of[int(row[0])]
            pairs = [(int(row[6]), row[7])] if row[7] not in ("root", "punct", "_") else []
            pairs += [(int(field[6:]), "coref") for field in row[9].split("|")
                      if field.startswith("Coref=")]
            links += [(here, unit_of[to], name) for to, name in pairs if unit_of[to] != here]
        sentences.append((line.rstrip(" "), spans, links))
    return sentences


class Text:
    """Tokens of a sentence with their annotations, and the model's maps."""

    def __init__(self, model, tokenizer, sentence):
        line, spans, links = sentence
        coded = tokenizer(line, return_offsets_mapping=True)
        self.ids = coded["input_ids"]
        n = len(self.ids)
        offsets = coded["offset_mapping"]
        names = tokenizer.convert_ids_to_tokens(self.ids)
        self.special = [i in (0, n - 1) for i in range(n)]
        self.separator = [i > 0 if self.special[i] else names[i] in ".!?;" for i in range(n)]
        self.segment, here = [], 0
        for i in range(n):
            self.segment.append(here)
            here += self.separator[i]
        numbers, self.word = {}, []
        for i, (begin, _) in enumerate(offsets):
            word = next((w for w, (a, b) in enumerate(spans) if a <= begin < b), None)
            self.word.append(-1 if self.special[i] or word is None
                             else numbers.setdefault(word, len(numbers)))
        self.links = [(numbers[a], numbers[b], name) for a, b, name in links]
        self.words = len(numbers)
        with torch.no_grad():
            out = model(torch.tensor([self.ids]), output_attentions=True, output_hidden_states=True)
        self.maps = torch.cat(out.attentions).numpy()  # [L, H, n, n]
        self.inputs = [h[0].numpy() for h in out.hidden_states[:-1]]
        self.ranks = None


def rank_tokens(texts):
    counts = collections.Counter(i for t in texts for i, s in zip(t.ids, t.special) if not s)
    order = sorted(counts, key=lambda i: (-counts[i], i))
    ranks = {token: rank for rank, token in enumerate(order)}
    for t in texts:
        t.ranks = [ranks.get(i, 0) for i in t.ids]
    return max(1, min(500, len(order) // 2))


# ---- the definitions ---------------------------------------------------------------------------

class Sums:
    """The value, chance and rows of each score, and the number of rows too near a jump."""

    def __init__(self):
        self.value = collections.Counter()
        self.chance = collections.Counter()
        self.rows = collections.Counter()
        self.open = collections.Counter()

    def add(self, name, value, chance, rows=1, undecided=0):
        self.value[name] += value * rows
        self.chance[name] += chance * rows
        self.rows[name] += rows
        self.open[name] += undecided

    def mean(self, name):
        rows = self.rows[name]
        return (self.value[name] / rows, self.chance[name] / rows) if rows else (0, 0)

    def corrected(self, name):
        value, chance = self.mean(name)
        return (value - chance) / (1 - chance) if chance < 1 else 0


def entropy(row):
    return -sum(a * math.log(a) for a in row if a > 0)


def even_mass(row):
    mass = sum(row)
    if len(row) < 2 or mass <= 0:
        return 0
    return mass * entropy([a / mass for a in row]) / math.log(len(row))


def is_undecided(weights):
    best = sorted(weights)[-2:]
    return len(best) == 2 and best[1] - best[0] < MARGIN


def share(sums, name, row, targets):
    """The mass on targets, for rows with targets and other keys."""
    if 1 <= len(targets) < len(row):
        sums.add(name, sum(row[j] for j in targets), len(targets) / len(row))


def measure_repeats(sums, text, i, row):
    n = len(row)
    same = [j for j in range(n) if j != i and text.ids[j] == text.ids[i]
            and not text.special[j] and not text.special[i]]
    after = [j + 1 for j in same if j < i and j + 1 < n and j + 1 != i
             and text.ids[j + 1] != text.ids[i]]
    share(sums, "duplicate", row, same)
    share(sums, "induction", row, after)
    if 1 <= len(after) < n:
        sums.add("induction_mean", sum(row[j] for j in after) / len(after), 1 / n)
    if 1 < len(after):
        sums.add("induction_latest", row[max(after)], 1 / n)


def measure_row(sums, text, i, row, cosine, rarest):
    n = len(row)
    keys = range(n)
    for name, offset in (("previous", -1), ("next", 1), ("self", 0)):
        share(sums, name, row, [j for j in keys if j == i + offset])
    share(sums, "near", row, [j for j in keys if abs(j - i) <= NEAR])
    share(sums, "first", row, [0])
    sums.add("sink", row[0], 1 / n)
    share(sums, "separator", row, [j for j in keys if text.separator[j]])
    own = [j for j in keys if text.segment[j] == text.segment[i]]
    share(sums, "segment", row, own)
    if 1 < len(own) < n:
        sums.add("block", even_mass([row[j] for j in own]), len(own) / n)
    measure_repeats(sums, text, i, row)
    if rarest:
        share(sums, "rare", row, rarest)
    sums.add("confidence", max(row[j] for j in keys if not text.separator[j]), 1 / n)
    h = entropy(row)
    sums.add("entropy", h, math.log(n))
    sums.add("evenness", h / math.log(n), 1)
    sums.add("broad", h / math.log(n) > 0.78, 1, 1, abs(h / math.log(n) - 0.78) < MARGIN)
    sums.add("distance", sum(row[j] * abs(j - i) for j in keys), sum(abs(j - i) for j in keys) / n)
    others = [j for j in keys if j != i]
    if len(others) > 1:
        sums.add("cosine", np.corrcoef([row[j] for j in others], [cosine[j] for j in others])[0, 1],
                 0)
    for offset in range(-FARTHEST, FARTHEST + 1):
        if 0 <= i + offset < n:
            sums.add(("mass", offset), row[i + offset], 1 / n)
            sums.add(("largest", offset), int(np.argmax(row)) == i + offset, 1 / n, 1,
                     is_undecided(row))


def measure_columns(sums, text, a, rare_rank):
    n = len(a)
    column = a.sum(0)
    order = sorted(range(n), key=lambda j: (-column[j], j))
    best, found = -1, None
    for k in range(1, min(3, n - 1) + 1):
        value, chance = column[order[:k]].sum() / n, k / n
        if (value - chance) / (1 - chance) > best:
            best, found = (value - chance) / (1 - chance), (value, chance)
    if found:
        sums.add("vertical", *found, n)
    words = [j for j in order if not text.special[j] and not text.separator[j]]
    ranks = sorted((text.ranks[j] for j in words), reverse=True)
    if len(words) >= 2 and ranks[0] >= rare_rank:
        undecided = column[words[0]] - column[words[1]] < MARGIN
        sums.add("rarest", text.ranks[words[0]] == ranks[0], 1 / len(words), 1, undecided)
        sums.add("rarest_two", text.ranks[words[0]] >= ranks[1], 2 / len(words), 1, undecided)


def measure_cuts(sums, a):
    n, best, found = len(a), -1, None
    for cut in range(4, n - 3):
        parts = [(range(cut), cut), (range(cut, n), n - cut)]
        value = sum(even_mass([a[i][j] for j in keys]) for keys, _ in parts for i in keys) / n
        chance = sum(size * size for _, size in parts) / n / n
        if (value - chance) / (1 - chance) > best:
            best, found = (value - chance) / (1 - chance), (value, chance)
    if found:
        sums.add("cut", *found, n)


def measure_families(sums, a):
    n = len(a)
    if n * n < 8:
        return
    places = {"vertical": lambda i, j: j, "diagonal": lambda i, j: j - i,
              "block": lambda i, j: (i * 16 // n, j * 16 // n)}
    for name, place in places.items():
        mass, area = collections.Counter(), collections.Counter()
        for i in range(n):
            for j in range(n):
                mass[place(i, j)] += a[i][j]
                area[place(i, j)] += 1
        left, total = n * n / 8, 0
        for part in sorted(mass, key=lambda p: -mass[p] / area[p]):
            taken = min(left, area[part])
            total += mass[part] / area[part] * taken
            left -= taken
        sums.add("family_" + name, total / n, 1 / 8, n)


def measure_horizontal(sums, a):
    n = len(a)
    evenness = [entropy(row) / math.log(n) for row in a]
    sharp = 2 * sum(e < 0.6 for e in evenness) > n
    near = any(abs(e - 0.6) < MARGIN for e in evenness)
    undecided = n if near else sum(abs(e - 0.9) < MARGIN for e in evenness)
    sums.add("horizontal", sum(e > 0.9 for e in evenness) / n if sharp else 0, 0, n, undecided)


def measure_links(sums, text, a):
    n = len(a)
    opened = [all(not text.special[j] and not text.separator[j] for j in range(n)
                  if text.word[j] == w) for w in range(text.words)]
    pairs = [(x, y, name, 0) for x, y, name in text.links]
    pairs += [(y, x, name, 1) for x, y, name in text.links]
    for query, key, name, direction in pairs:
        rows = [i for i in range(n) if text.word[i] == query]
        weight = [sum(a[i][j] for i in rows for j in range(n) if text.word[j] == w)
                  for w in range(text.words)]
        candidates = [w for w in range(text.words) if opened[w] and w != query]
        if not opened[key] or len(candidates) < 2:
            continue
        best = max(candidates, key=lambda w: weight[w])
        slot = (name, direction)
        sums.add(("accuracy", slot), best == key, 1 / len(candidates), 1,
                 is_undecided([weight[w] for w in candidates]))
        sums.add(("mass of", slot), weight[key] / len(rows), 1 / text.words)
        sums.add(("offset", slot, key - query), 1, 0)


def measure_head(texts, layer, head, rare_rank):
    sums = Sums()
    for text in texts:
        a = text.maps[layer, head]
        n = len(a)
        x = text.inputs[layer]
        norm = np.linalg.norm(x, axis=1)
        cosine = x @ x.T / np.outer(norm, norm)
        top = max((text.ranks[j] for j in range(n)
                   if not text.special[j] and not text.separator[j]), default=-1)
        rarest = [j for j in range(n) if text.ranks[j] == top and not text.special[j]
                  and not text.separator[j]] if top >= rare_rank else []
        for i in range(n):
            measure_row(sums, text, i, list(a[i]), cosine[i], rarest)
        measure_columns(sums, text, a, rare_rank)
        measure_cuts(sums, a)
        measure_families(sums, a)
        measure_horizontal(sums, a)
        measure_links(sums, text, a)
    return sums


def best_offset(sums, kind):
    """Considers offsets with at least half as many rows as the most frequent offset."""
    most = max(sums.rows[(kind, o)] for o in range(-FARTHEST, FARTHEST + 1))
    order = sorted(range(-FARTHEST, FARTHEST + 1), key=lambda o: (abs(o), o))
    order = [o for o in order if 2 * sums.rows[(kind, o)] >= most and sums.rows[(kind, o)]]
    return max(order, key=lambda o: sums.corrected((kind, o)))


# ---- the comparison ----------------------------------------------------------------------------

def compare(worst, name, ours, sums, key):
    rows = sums.rows[key]
    assert (ours or {"rows": 0})["rows"] == rows, (name, ours, rows)
    if not rows:
        return
    value, chance = sums.mean(key)
    allowed = TOLERANCE + sums.open[key] / rows
    error = abs(ours["value"] - value)
    assert error <= allowed, f"{name}: {ours['value']}, expected {value}"
    assert abs(ours["chance"] - chance) <= TOLERANCE, f"{name}: chance {ours}, expected {chance}"
    worst[name] = max(worst[name], error)


def compare_head(worst, ours, sums):
    for name, kind in (("diagonal", "mass"), ("positional", "largest")):
        offset = best_offset(sums, kind)
        if ours[f"{name}_offset"] == offset or sums.open[(kind, offset)] == 0:
            assert ours[f"{name}_offset"] == offset
            compare(worst, name, ours["scores"][name], sums, (kind, offset))
    for name, score in ours["scores"].items():
        if not name.startswith("random_") and name not in ("diagonal", "positional"):
            compare(worst, name, score, sums, name)
    for relation, both in ours["relations"].items():
        for direction, found in enumerate((both["forward"], both["backward"])):
            slot = (relation, direction)
            compare(worst, "accuracy of links", found["accuracy"], sums, ("accuracy", slot))
            compare(worst, "mass of links", found["mass"], sums, ("mass of", slot))
            counts = [sums.rows[k] for k in sums.rows if k[0] == "offset" and k[1] == slot]
            links = sums.rows[("accuracy", slot)]
            assert abs(found["baseline"] - (max(counts) / links if links else 0)) < 1e-9


@pytest.mark.parametrize("folder", [TINY, MINILM], ids=["tiny", "MiniLM"])
def test_scores(folder, tmp_path):
    if not folder.exists():
        pytest.skip(f"{folder} is missing; tools/get-minilm fetches it")
    count = str(amount(60, 240, 240) if folder == MINILM else 40)
    gold = subprocess.run([sys.executable, ROOT / "tools/sentences.py", "--count", count],
                          capture_output=True, check=True, text=True).stdout
    path = tmp_path / "gold.conllu"
    path.write_text(gold)
    done = subprocess.run([PROGRAM, "heads", folder, "--conllu", path, "--random", "0", "--json"],
                          capture_output=True, check=True)
    ours = json.loads(done.stdout)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").double()
    texts = [Text(model.eval(), tokenizer, sentence) for sentence in read_conllu(gold)]
    assert ours["texts"] == len(texts) and ours["tokens"] == sum(len(t.ids) for t in texts)
    rare_rank = rank_tokens(texts)
    worst = collections.Counter()
    step = 1 if folder == TINY else amount(36, 13, 1)
    for head in ours["heads"][SEED % step::step]:
        compare_head(worst, head, measure_head(texts, head["layer"], head["head"], rare_rank))
    for name, error in sorted(worst.items(), key=lambda item: -item[1]):
        print(f"{name:20} {error:.1e}")
