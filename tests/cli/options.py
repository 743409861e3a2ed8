#!/usr/bin/env python3
"""No option is ignored. Each option is added separately, with a non-default value, to every kind of
command of its subcommand. It must change the output or be rejected; options without an effect are
listed here with the reason. An option that needs others is also rejected if it repeats the default.
Every option with a numeric value or a list of permitted words rejects a wrong value. Output names
have the suffixes of their formats."""
import json
import re
import signal
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE = 2
DEMO = FOLDER / "demo"
FILES = {
    "text.txt": "the animal didn't cross the street because it was too tired\nthe animal was too tired\n" * 9,
    "task.tsv": "the animal\t didn't\t was\nthe street\t was\t didn't\n",
    "tokens.txt": "a\nb\nc\n",
}
for name, text in FILES.items():
    (FOLDER / name).write_text(text)
(FOLDER / "module").write_bytes(b"\x1f\x8b")
QUICK = ["--samples", "1", "--seconds", "0", "--patience", "0", "--threads", "1", "--json"]
check_good(run("train", "sentences", "--steps", "2", "--layers", "2", "--heads", "2", "--embed", "16", "--no-report",
               "--quiet", "-o", DEMO), "a model")
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
    "serve": {"a model": [MODEL], "a text": [MODEL, TEXT]},
    "page": {"a model": [MODEL, "--module", "module"], "a text": [MODEL, TEXT, "--module", "module"]},
    "bench": {"forward": ["forward", "--heads", "4", "--head-dim", "8", "--length", "16", *QUICK],
              "a cache": ["decode", "--heads", "4", "--head-dim", "8", "--keys", "16", "--cache", "f32", *QUICK],
              "module": ["module", "--heads", "4", "--head-dim", "8", "--length", "16", *QUICK],
              "gemm": ["gemm", "--rows", "4", "--outputs", "8", *QUICK]},
    "selftest": {"few": ["--problems", "2"], "a seed": ["--seed", "3"]},
    "help": {"everything": [], "a topic": ["view"], "a man page": ["view", "--format", "man"]},
}
if "without serve" in run("--version").out.decode():
    del BASES["serve"]
VALUES = {"N": "2", "X": "0.4", "LIST": "1", "FILE": "new", "NAME": "cat", "TEXT": "the", "FOLDER": "new", "W": "3",
          "ADDRESS": "127.0.0.2"}


def options_of(command):
    """[(option, letter of its value or choices or None)]"""
    text = run(command, "--help").out.decode().split("Usage:")[1]
    return re.findall(r"^ {2,6}(?:-\w, )?--([a-z][\w-]*)(?: (\S+))?", text, re.M)


def snapshot():
    return {path.name for path in FOLDER.iterdir()}


def served(arguments):
    """The result of a server that is interrupted after it has printed its address. The token and
    the free port of the address are replaced."""
    with subprocess.Popen([PROGRAM, "serve", *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=environment(), cwd=FOLDER) as process:
        line = process.stdout.readline()
        if line.startswith(b"http:"):
            process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=HANGS)
    shown = re.sub(rb":\d{4,5}/", b":any/", re.sub(rb"/[0-9a-f]{32}/", b"/token/", line)) + rest
    code = 0 if line.startswith(b"http:") else process.returncode
    return Result(subprocess.CompletedProcess([], code, shown, errors))


def unmeasured(out):
    """The rows of bench without measured numbers."""
    row = json.loads(out)
    return repr({name: value for name, value in row.items() if type(value) in (str, int, bool) and name not in
                 ("gated", "quiet_samples")} | {"flops": row["flops"], "compared": row["older_median_seconds"] is not None})


def outcome(command, arguments):
    before = snapshot()
    result = served(arguments) if command == "serve" else run(command, *arguments)
    made = {}
    for name in sorted(snapshot() - before):
        path = FOLDER / name
        made[name] = None if path.is_dir() else path.read_bytes()
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if command == "bench" and result.code == 0 and "--help" not in arguments:
        return result, unmeasured(result.out), made
    text = re.sub(rb"\d+\.\d+ m?s|\d+ threads?|\"(seconds|milliseconds|threads)\": [\d.e-]+", b"", result.out)
    return result, text, made


# Options that may leave the output unchanged, and the reasons.
ANYWHERE = {"quiet": "messages", "threads": "the same bits", "isa": "the same bits", "strict": "no other path is taken",
            "ascii": "the output may be ASCII", "truncate": "the texts are short", "help": "prints the help"}
DRAWING = dict.fromkeys(("cmap", "scale", "hide", "values", "dark", "light", "color", "terminal"), "no picture is drawn")
SAME = {
    "view": DRAWING, "heads": {"spread": "one rank"}, "ablate": {"max-texts": "fewer are given"},
    "count": dict.fromkeys(("no-bias", "no-causal", "causal", "page"), "the default, or what the model has"),
    "explain": {"no-causal": "the default"},
    "train": dict.fromkeys(("layers", "heads", "seconds", "every", "tries"), "the default, or reached by no single step"),
    "prune": {"dry-run": "no folder is named"},
    "generate": dict.fromkeys(("page", "stats", "cache", "compute", "seed"), "the text is the same, or by chance"),
    "perplexity": {"page": "the same bits", "chunk": "the same bits"},
    "run": dict.fromkeys(("trace", "trace-head", "path", "seed", "documents", "gates"), "the values of the example"),
}


def cases():
    """All (subcommand, name of the base, option, value), or a random sample of them."""
    found = [(command, base, option, value) for command, bases in BASES.items() for base, arguments in bases.items()
             for option, value in options_of(command) if f"--{option}" not in arguments]
    return found if LONG else seeded().sample(found, 40)


def ignored():
    plain = {}
    for command, base, option, value in cases():
        arguments = BASES[command][base]
        if (command, base) not in plain:
            plain[command, base] = outcome(command, arguments)
            check_good(plain[command, base][0], f"{command} {base}")
        chosen = value.split("|")[-1] if "|" in value else VALUES.get(value.split(".")[0], "1")
        result, *shown = outcome(command, [*arguments, f"--{option}", *([chosen] if value else [])])
        same = result.code == 0 and shown == list(plain[command, base][1:])
        check(not same or option in ANYWHERE or option in SAME.get(command, ()),
              f"{command}, {base}: --{option} {chosen if value else ''} changes nothing and is not refused")


def defaults():
    """The default value, without the options that the option needs."""
    for command, arguments, needs in (("heads", [MODEL, TEXT, "--save-every", "0"], "--state"),
                                      ("generate", [DEMO, "--seed", "0"], "--temperature"),
                                      ("ablate", [DEMO, "--task", "task.tsv", "--cut", "8"], "a text"),
                                      ("prune", [DEMO, "--task", "sentences", "--kv-heads", "1", "--seed", "0"], "exclude"),
                                      ("train", ["sentences", "--fresh"], "--output"),
                                      ("run", ["--x", "random:3x4", "--trace-sequence", "0"], "--trace")):
        check_error(run(command, *arguments), USAGE, needs, command=command)


def wrong_values():
    count, chance = 0, seeded()
    for command, bases in BASES.items():
        for option, value in options_of(command):
            if value and (value in ("N", "X") or "|" in value):
                values = ["x", "2x", "", *(["-1"] if value == "N" else [])]
                for wrong in values if LONG else [chance.choice(values)]:
                    count += 1
                    check_error(run(command, *next(iter(bases.values())), f"--{option}", wrong), USAGE, option,
                                command=command, name=f"{command} --{option} '{wrong}'")
    print(f"{count} wrong values")


def complete():
    listed = re.findall(r"^  (\w+) +\S", run("--help").out.decode().split("Subcommands:")[1].split("Options:")[0], re.M)
    check(set(listed) - {"serve"} == set(BASES) - {"serve"}, f"swept: {sorted(BASES)}, subcommands: {listed}")


def endings():
    for command, arguments in (("view", [MODEL, TEXT]), ("explain", ["--embed", "8", "--heads", "2"]),
                               ("prune", [DEMO, "--task", "sentences"]), ("heads", [MODEL, TEXT])):
        for option, ending in (("svg", ".svg"), ("pdf", ".pdf"), ("png", ".png"), ("json", ".json"), ("csv", ".csv"),
                               ("html", ".html"), ("output", ".html"), ("npy", ".npy")):
            takes = [value for name, value in options_of(command) if name == option]
            if takes and takes[0].startswith("FILE"):
                check_error(run(command, *arguments, f"--{option}", "x.svg" if ending != ".svg" else "x.pdf"), USAGE,
                            f"must end in {ending}", command=command)


complete()
ignored()
defaults()
wrong_values()
endings()
finish()
