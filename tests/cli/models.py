"""Every kind of model folder that 'multihead train' writes, and errors for folders without a model.
view.py tests BERT folders.
"""
import base64
import ctypes
import json
import math
import os
import random
import re
import shutil
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED = 2, 3, 4, 5


def trained(task, *options):
    """A model folder of a task after a few steps."""
    folder = FOLDER / f"trained-{task}"
    if not folder.exists():
        result = run("train", task, "--steps", "3", "--tries", "1", "--no-report", "-q", "-o", folder,
                     *options)
        check(result.code == 0 and (folder / "curve.csv").exists(), f"{task}: {result.errors}")
    return folder


def maps_of(folder, *texts):
    result = view(folder, *texts, "--json", "-", "-q")
    return json.loads(result.out) if check_good(result, f"view {folder.name}") else None


def weights_of(maps):
    return [head["weights"] for layer in maps["layers"] for head in layer["heads"]]


def rows_sum_to_one(maps, name):
    for weights in weights_of(maps):
        for row in weights:
            check(abs(sum(row) - 1) < 1e-5, f"{name}: a row sums to {sum(row)}")


def causal_folders():
    sentence = "the animal didn't cross the street because it was too tired ."
    for task, text, kind in (("ioi", "B A B", "multihead"), ("sentences", sentence, "llama")):
        folder = trained(task)
        words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
        if task == "ioi":
            text = " ".join(list(words)[:3])
        maps = maps_of(folder, text)
        if not maps:
            continue
        check(maps["source"]["architecture"] == kind, f"{task}: {maps['source']}")
        tokens = maps["tokens"]
        check([t["token"] for t in tokens] == ["<s>"] + text.split(), f"{task}: {tokens}")
        check([t["special"] for t in tokens] == [True] + [False] * len(text.split()),
              f"{task}: special tokens")
        for token in tokens[1:]:
            check(text.encode()[token["begin"]:token["end"]].decode() == token["token"],
                  f"{task}: the bytes of {token}")
        rows_sum_to_one(maps, task)
        for weights in weights_of(maps):
            for i, row in enumerate(weights):
                check(not any(row[i + 1:]), f"{task}: a token sees what comes behind it")
        report = view(folder, text, "-o", FOLDER / f"{task}.html", "--svg", "-")
        check_good(report, f"{task}: report")
        check(run("count", folder, "--json").code == 0, f"{task}: count")
        check(run("explain", folder).code == 0, f"{task}: explain")


def as_people_type():
    """Word models accept capitals and attached punctuation, and list their words."""
    folder, text = trained("sentences"), FOLDER / "typed.txt"
    typed = "The animal, didn't cross the street because it was too tired."
    apart = "the animal , didn't cross the street because it was too tired ."
    maps, same = maps_of(folder, typed), maps_of(folder, apart)
    if maps and same:
        tokens = maps["tokens"]
        check([t["token"] for t in tokens] == ["<s>", *apart.split()], f"typed: {tokens}")
        check([typed.encode()[t["begin"]:t["end"]].decode() for t in tokens[1:]] ==
              ["The"] + apart.split()[1:], f"typed: where the tokens are: {tokens}")
        check(weights_of(maps) == weights_of(same), "typed: the same maps")
    text.write_text(typed + "\n")
    check_good(view(folder, "--example", "animal"), "view --example animal")
    for arguments in (["generate", folder, typed, "--max-tokens", "2"], ["heads", folder, typed, "--random", "2"],
                      ["perplexity", folder, "--text", text], ["heads", folder, "--text", text, "--random", "2"],
                      ["prune", folder, "--text", text, "-q"]):
        result = run(*arguments)
        check(result.code == 0, f"{arguments[0]} of a typed sentence: {result.errors}")
    continued = run("generate", folder, "The King", "--max-tokens", "0").lines
    check(continued == ["<s> the king"], f"generate: {continued}")
    text.write_text("The cat, so tired" + "." * 12)
    check_good(run("heads", folder, "--text", text), "a run of marks")
    text.write_text("The cat, so tired" + "." * 100000)  # the cost is linear in the length
    check_error(run("heads", folder, "--text", text), BAD_INPUT, "too many tokens, the limit is 48", command="heads")
    every = run("heads", folder, "--example", "all")
    check(every.code == 0 and "4 of the sentences" in every.errors[0] and
          "1 text, 13 tokens" in every.lines[0], f"--example all: {every.lines[:1]} {every.errors}")
    words = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    check(run("heads", folder, "--words").lines == sorted(words, key=words.get), "heads --words")
    check(len(run("heads", MODEL, "--words").lines) ==
          len((MODEL / "vocab.txt").read_text().splitlines()), "heads --words of WordPiece")
    check(run("heads", trained("reverse"), "--words").code == 0, "--words of an encoder-decoder")
    for wrong, named in (("The streat", "'streat'"), ("tired!", "'!'"), ("(the", "'(the'")):
        for command in ("view", "heads", "generate"):
            check_error(run(command, folder, wrong), BAD_INPUT, named, f"heads {folder} --words",
                        command=command)
    check_error(view(folder, "streat"), BAD_INPUT, "did you mean 'street'?")
    check_error(run("heads", trained("induction"), "--example", "all"), BAD_INPUT, "--words",
                command="heads")


def strongest_heads():
    """In each layer, the first head attends to the first token, and the second one attends less
    sharply to "w". The default figure has one head per layer. Weight on the first token is not
    informative if it is the only token that every row sees."""
    words, V, D = "uvwxyzpq", 8, 4

    def rows(place, value, word=None):
        """A projection of every word, or of one word, to a place."""
        return [[value * (word is None or i == word) if j == place else 0.0 for i in range(V)]
                for j in range(V)]

    def total(*parts):
        return [[sum(entries) for entries in zip(*lines)] for lines in zip(*parts)]

    nothing = rows(0, 0.0)
    matrices = {"embed_tokens.weight": [[float(i == j) for j in range(V)] for i in range(V)]}
    for layer in range(2):
        for part, matrix in (("q", total(rows(0, 1.0), rows(D, 1.0))), ("v", nothing), ("o", nothing),
                             ("k", total(rows(0, 20.0, 0), rows(D, 8.0, 2)))):
            matrices[f"layers.{layer}.self_attn.{part}_proj.weight"] = matrix
    for causal, wanted in ((True, ["L0H1", "L1H1"]), (False, ["L0H0", "L1H0"])):
        folder = FOLDER / f"sharp-{causal}"
        folder.mkdir()
        write_matrices(folder, matrices)
        write_config(folder, model_type="multihead", vocab_size=V, max_length=8, embed_dim=V,
                     num_layers=2, num_heads=2, ff_dim=0, norm="none", positions="none", tied=True,
                     causal=causal)
        (folder / "tokenizer.json").write_text(json.dumps(dict(
            pre_tokenizer=dict(type="WhitespaceSplit"),
            model=dict(type="WordLevel", unk_token="<unk>", vocab={w: i for i, w in enumerate(words)}))))
        maps = maps_of(folder, "u v w x y")
        if not maps:
            continue
        last = [head[-1] for head in weights_of(maps)[:2]]  # row of "y"
        check(last[0][0] > 0.99 and 0.8 < last[1][2] < last[0][0], f"the maps: {last}")
        shown = view(folder, "u v w x y")
        names = re.findall(r"L\dH\d", shown.out.decode())
        check(names == wanted, f"causal {causal}: {names}, wanted {wanted}; {shown.errors}")


def encoder_folder():
    folder = trained("pronouns")
    maps = maps_of(folder, "the dog crossed the road because it was tired")
    if not maps:
        return
    check(maps["source"]["architecture"] == "bert", "pronouns: kind")
    rows_sum_to_one(maps, "pronouns")
    first = weights_of(maps)[0]
    check(all(w > 0 for row in first for w in row), "pronouns: all tokens see all")


def encoder_decoder():
    folder = trained("reverse")
    maps = maps_of(folder, "a b c", "c b")
    if maps:
        check([t["token"] for t in maps["tokens"]] == ["<s>", "c", "b"], "reverse: the target")
        check([t["token"] for t in maps["key_tokens"]] == ["a", "b", "c"], "reverse: the source")
        rows_sum_to_one(maps, "reverse")
    check(maps_of(folder / "encoder", "a b c") is not None, "the encoder alone")
    check_error(view(folder, "a b"), USAGE, "two texts")
    check_error(view(folder / "decoder", "a b"), UNSUPPORTED, "needs its encoder")
    other = FOLDER / "mixed"
    shutil.copytree(folder, other)
    shutil.rmtree(other / "encoder")
    check_error(view(other, "a", "b"), NO_INPUT, "config.json")
    shutil.copytree(trained("pronouns"), other / "encoder")
    check_error(view(other, "a", "b"), BAD_INPUT, "belong together")


def pruned_folder():
    """Pruned layers show their remaining heads."""
    small = FOLDER / "small"
    result = run("prune", trained("sentences"), "--task", "sentences", "--keep", "3", "--lines",
                 "20", "-q", "-o", small)
    if not check_good(result, "prune"):
        return
    text = "the animal was tired"
    maps = maps_of(small, text)
    names = [head["name"] for layer in maps["layers"] for head in layer["heads"]]
    check(len(names) == 3, f"three heads are left: {names}")
    rows_sum_to_one(maps, "pruned")
    table = run("heads", small, text, "--random", "0", "--csv", "-q")
    check([f"L{line.split(',')[0]}H{line.split(',')[1]}" for line in table.lines[1:]] == names,
          f"heads: {table.lines}")
    check_good(view(small, text, "-o", FOLDER / "small.html"), "a pruned model's report")


def bad_folders():
    folder = trained("ioi")
    check_error(view(folder, "nonsense"), BAD_INPUT, "'nonsense' is not one of the model's")
    check_error(view(folder, ""), BAD_INPUT, "empty")
    check_error(view(folder, "b" * 3, "a"), UNSUPPORTED, "no second text")
    for name, part, damage in (("no-words", "tokenizer.json", None),
                               ("bad-words", "tokenizer.json", b"{"),
                               ("bad-config", "config.json", b'{"model_type": "multihead"}'),
                               ("other-kind", "config.json", b'{"model_type": "mamba"}'),
                               ("short", "model.safetensors", b"\x08")):
        copy = FOLDER / name
        shutil.copytree(folder, copy)
        if damage is None:
            (copy / part).unlink()
        else:
            (copy / part).write_bytes(damage)
        result = view(copy, "a")
        check(result.code in (NO_INPUT, BAD_INPUT, UNSUPPORTED) and len(result.errors) == 1 and
              not result.out, f"{name}: exit {result.code}, {result.errors}")


def long_text():
    """Maps of a long text show blocks, with the largest weight of each."""
    source = random.Random(1)
    words = [f"w{source.randint(1, 60)}" for _ in range(8400)]
    (FOLDER / "words.txt").write_text(" ".join(words))
    folder = FOLDER / "long"
    made = run("train", "--text", FOLDER / "words.txt", "--context", "1640", "--steps", "1",
               "--heads", "12", "--layers", "2", "--embed", "24", "--ff", "0", "--batch", "1",
               "--no-report", "-q", "-o", folder)
    if not check_good(made, "train --text"):
        return
    n, cell, rows = 1639, 4, 410
    (FOLDER / "text.txt").write_text(" ".join(words[:n - 1]))
    report = view(folder, "--text-file", FOLDER / "text.txt", "-o", FOLDER / "long.html")
    check_good(report, "a long text")
    check("1639 x 1639 tokens, in blocks of 4 x 4" in report.errors[0], f"{report.errors}")
    check((FOLDER / "long.html").stat().st_size < 10e6, "under 10 MB")
    page = (FOLDER / "long.html").read_text()
    data = json.loads(re.search(r'type="application/json"[^>]*>(.*?)</script>', page, re.S)[1])
    check(data["cell_tokens"] == cell and data["token_count"] == n and data["rows"] == rows, "blocks")
    check("largest weight of 4 x 4 tokens" in page, "the page says what a cell is")
    check_good(view(folder, "--text-file", FOLDER / "text.txt", "--head", "L1H7", "--npy",
                    FOLDER / "one.npy"), "one head as a whole")
    whole = memoryview((FOLDER / "one.npy").read_bytes()[-4 * n * n:]).cast("f")
    panel = data["panels"][12 + 7]
    codes = base64.b64decode(panel["data"])
    most, top = panel["greatest"], 253
    for r, c in [(0, 0), (rows - 1, 0), (rows - 1, rows - 1),
                 *((source.randrange(rows), source.randrange(rows)) for _ in range(3000))]:
        if c > r:
            continue
        block = max(whole[i * n + j] for i in range(r * cell, min((r + 1) * cell, n))
                    for j in range(c * cell, min((c + 1) * cell, n)))
        shown = most * (codes[r * rows + c] / top) ** 2
        check(abs(shown - block) <= math.sqrt(block * most) / top + most / (4 * top * top) + 1e-6,
              f"block {r}, {c}: {shown}, expected {block}")


def opened(path, *arguments):
    """The number of times that the program opens a file, counted by inotify(7)."""
    libc = ctypes.CDLL(None, use_errno=True)
    is_opened, is_closed = 0x20, 0x10  # a close event prevents the merging of two open events
    watch = libc.inotify_init1(os.O_NONBLOCK)
    if watch < 0 or libc.inotify_add_watch(watch, os.fsencode(path), is_opened | is_closed) < 0:
        return None
    check_good(view(*arguments), "a watched run")
    events = os.read(watch, 4096)
    os.close(watch)
    return sum(mask & is_opened != 0 for _, mask, _, _ in struct.iter_unpack("=iIII", events))


def opened_once():
    """Every report loads its model only once."""
    folder = shutil.copytree(ROOT / "tests/golden/tiny-bert", FOLDER / "watched")
    for options in ((), ("--from", "tired", "--to", "animal"), ("--desk", "0"),
                    ("--contrast", "The animal was wide.")):
        count = opened(folder / "model.safetensors", folder, "The animal was tired.", "-o",
                       FOLDER / "watched.html", *options)
        if count is None:
            print("skipped: no inotify here")
            return
        check(count == 1, f"a report with {options} opens its weights {count} times")


opened_once()
causal_folders()
as_people_type()
strongest_heads()
long_text()
encoder_folder()
encoder_decoder()
pruned_folder()
bad_folders()
finish()
