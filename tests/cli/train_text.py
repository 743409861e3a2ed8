"""multihead train --text: learning of a text, generation from the folder, resumption, and files
that are not text.

The test needs no packages. $MULTIHEAD is the program; the default is build/multihead.
"""
import json
import pathlib
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import operations, watched  # noqa: E402

chance = seeded()
SMALL = ["--embed", "16", "--ff", "16", "--heads", "2", "--batch", "4", "--every", "10"]


def run(*arguments, **changes):
    return subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=HANGS,
                          env=environment(**changes))


def train(path, *arguments, **changes):
    return run("train", "--text", str(path), *SMALL, *arguments, **changes)


def story(sentences, seed=1):
    """Sentences with partly predictable words, order and punctuation."""
    generator = random.Random(seed)
    who, where = ["cat", "dog", "king", "queen"], ["mat", "road", "hill"]
    return "".join(
        f"The {generator.choice(who)} sat on the {generator.choice(where)}"
        f"{generator.choice('.!?')}{generator.choice([' ', chr(10)])}" for _ in range(sentences))


def state(folder):
    data = (folder / "training.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__")
    metadata.pop("seconds")
    return metadata, {name: data[8 + length:][slice(*entry["data_offsets"])]
                      for name, entry in header.items()}


def learns_words(folder):
    text = folder / "story.txt"
    text.write_text(story(300))
    result = train(text, "--steps", "60", "--context", "16", "-o", str(folder / "words"))
    check(result.returncode == 0, f"words: exit {result.returncode}: {result.stderr}")
    check("(perplexity" in result.stderr and "tokens/s" in result.stderr, "words: no progress")
    for word in ("the vocabulary has 14", "0.0 % of the text is <unk>", "from pairs of them",
                 "perplexity without it", "is the most important"):
        check(word in result.stdout, f"words: no '{word}' in: {result.stdout}")
    line = [line for line in result.stdout.splitlines() if "On test text" in line][0]
    alone = [line for line in result.stdout.splitlines() if "Without attention" in line][0]
    check(float(line.split("perplexity")[1].split()[0]) < float(alone.split()[3]) / 2,
          f"no better than half of the perplexity of single words: {line}, {alone}")
    lowest = min(re.findall(r"perplexity (\d+\.\d)\)", result.stderr), key=float)
    kept = re.search(r"the saved model is that after (\d+) steps, with the lowest perplexity, (\d+\.\d\d),",
                     result.stdout)
    check(kept and abs(float(kept[2]) - float(lowest)) <= 0.051,
          f"the lowest on the way is {lowest}: {result.stdout}")
    curve = (folder / "words" / "curve.csv").read_text().splitlines()
    check(curve[0].endswith(",held_out_loss") and len(curve) == 7, f"curve.csv: {curve}")
    check((folder / "words" / "report.html").exists(), "words: no report")
    result = run("generate", str(folder / "words"), "The cat sat", "--max-tokens", "2")
    check(result.stdout == "<s> The cat sat on the\n", f"generate: {result.stdout!r}")
    result = run("generate", str(folder / "words"), "The zebra, sat", "--max-tokens", "0")
    check(result.stdout == "<s> The <unk> <unk> sat\n", f"unknown words: {result.stdout!r}")
    result = run("view", str(folder / "words"), "The cat,the dog.!?", "--head", "L0H0")
    check(result.returncode == 0 and "9 x 9" in result.stdout, f"view: {result.stderr}")
    config = json.loads((folder / "words" / "config.json").read_text())
    check(config["model_type"] == "llama" and config["tie_word_embeddings"], f"config: {config}")


def learns_characters(folder):
    text = folder / "chars.txt"
    text.write_text("abc\n" * 400)
    result = train(text, "--chars", "--steps", "60", "--learning-rate", "0.01", "-o",
                   str(folder / "chars"))
    check(result.returncode == 0, f"characters: exit {result.returncode}: {result.stderr}")
    check("the vocabulary has 4," in result.stdout and " bits)" in result.stdout,
          f"characters: {result.stdout}")
    result = run("generate", str(folder / "chars"), "abc\na", "--max-tokens", "4")
    check(result.stdout == "abc\nabc\na\n", f"generate: {result.stdout!r}")
    result = run("view", str(folder / "chars"), "abcabc", "--head", "L0H0")
    check(result.returncode == 0 and "7 x 7" in result.stdout, f"view: {result.stderr}")


def keeps_the_best(folder):
    """On a random, unpredictable text, training stops by itself and keeps its best model."""
    generator = random.Random(3)
    text = folder / "noise.txt"
    text.write_text(" ".join(str(generator.randrange(60)) for _ in range(600)))
    result = train(text, "--learning-rate", "0.02", "--steps", "1000", "--no-report", "-o",
                   str(folder / "noise"))
    metadata, tensors = state(folder / "noise")
    check("the saved model is that after" in result.stdout, f"patience: {result.stdout}")
    check(int(metadata["step"]) == int(metadata["best_step"]) + 60 and metadata["done"] == "yes",
          f"patience: {metadata}")
    model = (folder / "noise" / "model.safetensors").read_bytes()
    first = tensors["best"][:64]
    check(first in model and tensors["parameters"][:64] not in model, "the model is not the best")


def goes_on(folder):
    """A training that is killed at a file operation and then completed is bit-identical to an
    undisturbed run. A different text or number of steps is a different training."""
    text = folder / "again.txt"
    text.write_text(story(200, seed=2))
    options = ["--steps", "40", "--no-report", "--threads", "1"]
    log = folder / "log"
    train(text, *options, "-o", str(folder / "whole"), **watched(log=log))
    count = len(operations(log))
    for number in chance.sample(range(3, count + 1), 6 if LONG else 2):
        target = folder / f"stopped{number}"
        result = train(text, *options, "-o", str(target), **watched(file=number))
        check(result.returncode == -signal.SIGKILL, f"killed at operation {number}: exit {result.returncode}")
        result = train(text, *options, "-o", str(target))
        check(result.returncode == 0, f"going on: {result.stderr}")
        check(state(target) == state(folder / "whole"), f"going on after operation {number}: other bits")
    other = folder / "other.txt"
    other.write_text(story(200, seed=3))
    result = train(other, *options, "-o", str(folder / "whole"))
    check(result.returncode == 4 and "other settings" in result.stderr, f"another text: {result.stderr}")


def no_texts(folder):
    def file(name, data):
        (folder / name).write_bytes(data)
        return str(folder / name)
    text = file("text", story(100).encode())
    cases = [
        (["--text", str(folder / "none")], 3, "no such file"),
        (["--text", str(folder)], 3, "a folder"),
        (["--text", "/dev/null"], 3, "is a device, expected a regular file"),
        (["--text", file("empty", b"")], 4, "is empty"),
        (["--text", file("blank", b" \n\t")], 4, "too few"),
        (["--text", file("short", b"a few words only")], 4, "at least 45"),
        (["--text", text, "--context", "500"], 4, "for such a --context"),
        (["--text", file("latin", b"caf\xe9 " * 200)], 4, "byte 3"),
        (["--text", file("zero", b"words \0 " * 200)], 4, "byte 6"),
        (["--text", text, "ioi"], 2, "give a task or a text"),
        (["ioi", "--chars"], 2, "--chars requires --text"),
        (["ioi", "--context", "9"], 2, "--context requires --text"),
        (["--text", text, "--words", "2"], 2, "--words"),
    ]
    for arguments, code, word in cases:
        result = run("train", *arguments, "--steps", "1", "--no-report")
        check(result.returncode == code and word in result.stderr,
              f"{arguments}: exit {result.returncode}, not {code}, no '{word}' in: {result.stderr}")
        check(result.stdout == "", f"{arguments}: something on stdout")
    new = file("new", " ".join(f"w{i}" for i in range(100)).encode())
    result = run("train", "--text", new, "--steps", "1")
    check(result.returncode == 4 and result.stdout == "" and "none of the 60 words" in result.stderr
          and "--chars" in result.stderr, f"no word twice: {result.returncode} {result.stderr}")
    half = file("half", " ".join(f"the w{i}" for i in range(100)).encode())
    result = run("train", "--text", half, "--steps", "2", *SMALL)
    check(result.returncode == 0 and "50 % of the text is <unk>" in result.stderr,
          f"half of the words are unknown: {result.returncode} {result.stderr}")
    shortest = file("shortest", b"one two three " * 15)
    result = run("train", "--text", shortest, "--steps", "2", *SMALL)
    check(result.returncode == 0, f"45 words: {result.stderr}")
    few = run("train", "--text", text, "--words", "8", "--steps", "2", *SMALL)
    check("the vocabulary has 6," in few.stdout, f"--words 8: {few.stdout}")


with tempfile.TemporaryDirectory(prefix="multihead-text-") as place:
    root = pathlib.Path(place)
    for part in (learns_words, learns_characters, keeps_the_best, goes_on, no_texts):
        (root / part.__name__).mkdir()
        part(root / part.__name__)
finish()
