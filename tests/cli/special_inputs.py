#!/usr/bin/env python3
"""Devices, FIFOs, folders, sockets and sparse files of up to 8 EB replace every file that a command
reads. Each gives an error of one line that names the file, in bounded memory, and no command waits.
A text may be read from a FIFO, like in `cat`; an endless text is an error."""
import os
import re
import socket
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

ENOUGH = 1 << 30  # bytes of memory, including a sanitizer's
DEMO = FOLDER / "demo"
LARGE = pathlib.Path(tempfile.mkdtemp(prefix="multihead-cli-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))
atexit.register(shutil.rmtree, LARGE, ignore_errors=True)
check_good(run("train", "sentences", "--steps", "2", "--layers", "2", "--heads", "2", "--embed", "16", "--no-report",
               "--quiet", "-o", DEMO), "a model")
check_good(run("run", "--x", "random:2x3x4", "--quiet", "--out", "x.npy", "--probabilities", "maps.npy"), "arrays")
(FOLDER / "text.txt").write_text("the animal was too tired\n" * 3)
(FOLDER / "tokens.txt").write_text("a\nb\nc\n")

# {subcommand: {option: the other arguments}}; TEXTS are streams.
X = ["--x", "random:2x3x4", "--out", "new.npy"]
TEXTS = {"text", "text-file", "conllu", "task", "tokens", "key-tokens", "compare"}
READERS = {
    "view": {"text-file": [MODEL], "attention": ["--tokens", "tokens.txt"], "tokens": ["--attention", "maps.npy"],
             "key-tokens": ["--attention", "maps.npy", "--tokens", "tokens.txt"], "image": [MODEL], "audio": [MODEL]},
    "generate": {"audio": [MODEL]},
    "heads": {"text": [MODEL], "conllu": [MODEL], "attention": [], "tokens": ["--attention", "maps.npy"],
              "state": [MODEL, "--text", "text.txt"], "image": [MODEL]},
    "ablate": {"text": [DEMO], "task": [DEMO], "state": [DEMO, "--text", "text.txt", "-o", "new.html", "-q"]},
    "circuits": {"state": [DEMO]},
    "explain": {"q": [], "k": ["--q", "x.npy"], "v": ["--q", "x.npy"]},
    "train": {"text": []},
    "prune": {"text": [DEMO]},
    "perplexity": {"text": [DEMO]},
    "run": {"q": ["--k", "x.npy", "--v", "x.npy"], "k": ["--q", "x.npy", "--v", "x.npy"],
            "v": ["--q", "x.npy", "--k", "x.npy"], "x": [], "memory": [*X, "--module", "--heads", "2"],
            **dict.fromkeys(("offsets", "lengths", "begins", "documents", "query-starts", "keep-mask", "bias", "global-keys",
                             "global-queries", "alibi-slopes",
                             "t5-table", "shaw-keys", "shaw-values", "sink-logits", "gates"), X),
            "key-starts": [*X, "--query-starts", "0,4"], "query-documents": [*X, "--key-documents", "1,1,1"],
            "key-documents": [*X, "--query-documents", "1,1,1"],
            "keep-blocks": [*X, "--block-size", "2x2"], "positions": [*X, "--rope"], "key-positions": [*X, "--rope"],
            "mass-offsets": [*X, "--offset-mass", "mass.npy"]},
    "page": {"module": [MODEL]},
    "bench": {"compare": ["forward", "--heads", "1", "--head-dim", "8", "--length", "16", "--samples", "1", "--seconds", "0",
                          "--patience", "0", "--threads", "1"]},
}
# The files of a folder, and the suffixes that determine a format.
FILES = ("config.json", "model.safetensors", "model.safetensors.index.json", "vocab.txt", "tokenizer.json",
         "tokenizer_config.json")
SUFFIX = {"attention": ".npy", "q": ".npy", "k": ".npy", "v": ".npy", "x": ".npy"}


def writes(command):
    """The options that --help lists under headings of outputs."""
    return [name for part in run(command, "--help").out.decode().split("\n\n") if re.match("Output", part)
            for name in re.findall(r"^ {2,6}(?:-\w, )?--([a-z][\w-]*) F(?:ILE|OLDER)", part, re.M) if name != "compare"]


def complete():
    """READERS has every option that reads."""
    commands = re.findall(r"^  (\S+)", run("--help").out.decode().split("Subcommands:\n")[1].split("\n\n")[0], re.M)
    count = 0
    for command in commands:
        text = run(command, "--help").out.decode()
        named = re.findall(r"^ {2,6}(?:-\w, )?--([a-z][\w-]*) (?:FILE|ARRAY|FOLDER)", text, re.M)
        reads = set(named) - set(writes(command))
        count += len(reads)
        check(reads == set(READERS.get(command, {})), f"{command}: {reads ^ set(READERS.get(command, {}))} in READERS")
    print(f"{count} options that read, {len(FILES)} files of a folder, {len(KINDS)} kinds")


def endless(path):
    path.symlink_to("/dev/zero")


def listening(path):
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(str(path))


def sparse(path):
    """The longest file of zeros that the file system can hold: 8 EB - 1 on tmpfs and XFS, 16 TB on ext4."""
    target = LARGE / str(len(list(LARGE.iterdir())))
    target.touch()
    path.symlink_to(target)
    for bits in range(63, 30, -1):
        try:
            return os.truncate(target, (1 << bits) - 1)
        except OSError:
            pass


def zeros(path):
    path.touch()
    os.truncate(path, 2 << 30)  # above the limit of every text


KINDS = {"a device": endless, "a FIFO": os.mkfifo, "a folder": os.mkdir, "a socket": listening, "a sparse file": sparse,
         "2 GB of zeros": zeros}


def refused(command, arguments, path, kind, text=False):
    """The command ends with an error of one line that names the file, and uses little memory."""
    if text and kind == "a FIFO":
        return  # a stream, like <(...) of a shell
    name = f"{command} {' '.join(map(str, arguments))} {kind}"
    result, most = peak(command, *arguments)
    check(result.code in (3, 4, 5, 7) or result.code == 2 and "--state" in arguments, f"{name}: exit {result.code}, {result.errors}")
    check(len(result.errors) == 1 and os.path.basename(path) in result.errors[0], f"{name}: {result.errors}")
    check(most < ENOUGH, f"{name}: {most >> 20} MB")
    check(leftovers() == [], f"{name}: {leftovers()}")


def options():
    for command, readers in READERS.items():
        for option, others in readers.items():
            for n, (kind, make) in enumerate(KINDS.items()):
                path = FOLDER / f"{command}-{option}-{n}{SUFFIX.get(option, '')}"
                make(path)
                refused(command, [*others, f"--{option}", path], path, kind, option in TEXTS)


def folders():
    """Each file of a model's folder, and the folder's own name, with and without the suffix of GGUF."""
    for n, (kind, make) in enumerate(KINDS.items()):
        for file in FILES:
            folder = copy_model(f"{file}-{n}", [file, *(["model.safetensors"] if "index" in file else [])])
            make(folder / file)
            for command, others in (("view", [TEXT]), ("heads", [TEXT]), ("count", []), ("prune", ["--text", "text.txt"])):
                if command == "count" and file != "config.json":
                    continue
                if kind == "a folder" and file.startswith("token"):
                    continue  # absent
                refused(command, [folder, *others], folder / file, kind)
        for suffix in ("", ".gguf"):
            if kind != "a folder":
                path = FOLDER / f"model-{n}{suffix}"
                make(path)
                refused("view", [path, TEXT], path, kind)
                refused("count", [path], path, kind)


complete()
options()
folders()
finish()
