#!/usr/bin/env python3
"""No option is ignored. To a command of each kind every option of its subcommand is added alone, with a value other
than the default. It must change what is printed or written, or be rejected; those that are to change nothing are
listed here with the reason. An option that needs others is rejected if its default is spelled out, too. Names of
outputs end as their formats do."""
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE = 2
DEMO = FOLDER / "demo"
FILES = {
    "text.txt": "the animal didn't cross the street because it was too tired\nthe animal was too tired\n" * 3,
    "task.tsv": "the animal\t didn't\t was\nthe street\t was\t didn't\n",
    "tokens.txt": "a\nb\nc\n", "pairs.conllu": "1\tthe\tthe\tDET\t_\t_\t2\tdet\t_\t_\n2\tcat\tcat\tNOUN\t_\t_\t0\troot\t_\t_\n\n",
}
for name, text in FILES.items():
    (FOLDER / name).write_text(text)
check_good(run("train", "sentences", "--steps", "2", "--layers", "2", "--heads", "2", "--embed", "16", "--no-report", "--quiet", "-o", DEMO), "a model")
check_good(run("run", "--x", "random:2x3x4", "--quiet", "--probabilities", "maps.npy", "--out", "x.npy"), "maps")

# {subcommand: {name: arguments}}
BASES = {
    "view": {"a text": [MODEL, TEXT, "--json", "-"], "two": [MODEL, TEXT, "The dog", "--json", "-"],
             "picture": [MODEL, TEXT, "--svg", "-"],
             "a question": [MODEL, TEXT, "--from", "cat", "--to", "mat"], "the desk": [MODEL, TEXT, "--desk", "0"],
             "maps": ["--attention", "maps.npy", "--tokens", "tokens.txt", "--json", "-"]},
    "heads": {"a text": [MODEL, TEXT], "a file": [MODEL, "--text", "text.txt", "--json"], "words": [DEMO, "--words"],
              "maps": ["--attention", "maps.npy"]},
    "ablate": {"a text": [DEMO, "--text", "text.txt", "--json"], "a task": [DEMO, "--task", "task.tsv", "--json"]},
    "circuits": {"a model": [DEMO]},
    "count": {"sizes": ["--embed", "64", "--heads", "4"], "a published model": ["--like", "gpt2"], "a folder": [MODEL]},
    "explain": {"sizes": ["--embed", "64", "--heads", "4", "--length", "600"], "a folder": [MODEL],
                "arrays": ["--q", "x.npy"]},
    "train": {"a task": ["induction", "--steps", "1"], "a text": ["--text", "text.txt", "--steps", "1"],
              "sentences": ["sentences", "--print", "2"]},
    "prune": {"a task": [DEMO, "--task", "sentences", "--lines", "4", "--csv", "-"],
              "a text": [DEMO, "--text", "text.txt", "--csv", "-"],
              "shared": [DEMO, "--task", "sentences", "--lines", "4", "--kv-heads", "1"]},
    "generate": {"a text": [DEMO, "the animal"], "sampled": [DEMO, "the animal", "--temperature", "1"]},
    "perplexity": {"a text": [DEMO, "--text", "text.txt"]},
    "run": {"the example": ["--example"], "random": ["--x", "random:2x6x4", "--out", "new.npy"],
            "linear": ["--x", "random:2x6x4", "--linear", "--out", "new.npy"]},
}
VALUES = {"N": "2", "X": "0.3", "LIST": "1", "FILE": "new", "NAME": "cat", "TEXT": "the", "FOLDER": "new", "W": "3"}


def options_of(command):
    """[(option, letter of its value or choices or None)]"""
    text = run(command, "--help").out.decode().split("Usage:")[1]
    return re.findall(r"^ {2,6}(?:-\w, )?--([a-z][\w-]*)(?: (\S+))?", text, re.M)


def snapshot():
    return {path.name for path in FOLDER.iterdir()}


def outcome(command, arguments):
    before = snapshot()
    result = run(command, *arguments)
    made = {}
    for name in sorted(snapshot() - before):
        path = FOLDER / name
        made[name] = None if path.is_dir() else path.read_bytes()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    text = re.sub(rb"\d+\.\d+ m?s|\d+ threads?|\"(seconds|milliseconds|threads)\": [\d.e-]+", b"", result.out)
    return result, text, made


for command, bases in BASES.items():
    for base, arguments in bases.items():
        plain, text, made = outcome(command, arguments)
        check_good(plain, f"{command} {base}")
        for option, value in options_of(command):
            if f"--{option}" in arguments or option in ("help",):
                continue
            chosen = value.split("|")[-1] if "|" in value else VALUES.get(value.split(".")[0], "1")
            with_it, other, more = outcome(command, [*arguments, f"--{option}", *([chosen] if value else [])])
            if with_it.code == 0 and other == text and more == made:
                print(f"SAME {command} | {base} | --{option} {chosen if value else ''}")
            elif with_it.code != 0:
                print(f"refused {command} | {base} | --{option} {chosen if value else ''} {with_it.code} {with_it.errors}")
finish()
