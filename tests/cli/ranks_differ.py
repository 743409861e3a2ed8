"""Ranks with different inputs, in every subcommand that runs on several ranks: one bit of a weight,
a field of the configuration, a word of the tokenizer, the text, an option, or the version differs.
All ranks reject this at the start, before any pass, and rank 0 reports the rank and the difference
once.

Ranks are processes that sockets connect (tests/support/socket_ranks.py), each in its own folder.
"""
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from harness import *  # noqa: E402,F403
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
import seeds  # noqa: E402
from socket_ranks import run as ranks  # noqa: E402

GGUF = seeds.gguf_model(fill=seeds.as_floats)
COUNT, MOST_MESSAGES = 3, 50  # most messages of a rank before the rejection
MINE = 'cd "$0/own$OMPI_COMM_WORLD_RANK" && exec ./multihead "$@"'
SAYING = "the animal didn't cross the street because it was too tired ."
COMMANDS = (
    ("view", "m", SAYING, "--json", "-"), ("view", "m", SAYING, "-o", "-"),
    ("view", "m", SAYING, "--from", "tired", "--to", "animal", "--json", "-"),
    ("generate", "m", "the animal", "--max-tokens", "4"), ("perplexity", "m", "--text", "t.txt"),
    ("heads", "m", "--text", "t.txt", "--random", "1", "--json"),
    ("heads", "m", "--text", "t.txt", "--random", "1", "--json", "--spread"), ("circuits", "m", "--json"),
    ("prune", "m", "--text", "t.txt", "--step", "4", "--json", "-"))
chance = seeded()


def own(rank):
    return FOLDER / f"own{rank}"


def flip_a_bit(rank):
    path = own(rank) / "m" / "model.safetensors"
    data = bytearray(path.read_bytes())
    at = chance.randrange(8 + struct.unpack("<Q", data[:8])[0], len(data))
    data[at] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def change_a_field(rank):
    config = json.loads((own(rank) / "m" / "config.json").read_text())
    name = chance.choice(("rms_norm_eps", "max_position_embeddings"))
    change_config(own(rank) / "m", **{name: config[name] * 2})


def swap_two_words(rank):
    path = own(rank) / "m" / "tokenizer.json"
    path.write_text(re.sub(r'"(animal|street)"', lambda word: {'"animal"': '"street"'}.get(word[0], '"animal"'),
                           path.read_text()))


def change_the_text(rank):
    path = own(rank) / "t.txt"
    path.write_text(path.read_text().replace("tired", "wide", 1))


def another_version(rank):
    path = own(rank) / "multihead"
    version = run("--version").out.split()[1]
    data = pathlib.Path(PROGRAM).read_bytes()
    path.unlink()
    path.write_bytes(data.replace(version, version[:-1] + (b"1" if version[-1:] != b"1" else b"2")))
    path.chmod(0o755)


def another_option(rank):
    path = own(rank) / "multihead"
    path.unlink()
    path.write_text(f'#!/bin/sh\nexec "{PROGRAM}" "$@" --threads 2\n')
    path.chmod(0o755)


def flip_a_bit_of_gguf(rank):
    data = bytearray((own(rank) / "m.gguf").read_bytes())
    data[-1 - chance.randrange(60)] ^= 1 << chance.randrange(8)
    (own(rank) / "m.gguf").write_bytes(data)


def change_a_field_of_gguf(rank):
    data = bytearray((own(rank) / "m.gguf").read_bytes())
    key = b"layer_norm_rms_epsilon"
    data[data.index(key) + len(key) + 4] ^= 1  # the byte follows the number's type
    (own(rank) / "m.gguf").write_bytes(data)


DIFFERENCES = ((flip_a_bit, "m: has other weights than at rank 0"),
               (change_a_field, "m: has another configuration than at rank 0"),
               (swap_two_words, "m: has another tokenizer than at rank 0"), (change_the_text, "has another text than rank 0"),
               (another_version, "has another version of multihead than rank 0"),
               (another_option, "has another command line than rank 0"))


def prepare():
    for rank in range(COUNT):
        shutil.rmtree(own(rank), ignore_errors=True)
        own(rank).mkdir()
        shutil.copytree(FOLDER / "m", own(rank) / "m")
        (own(rank) / "t.txt").write_text(f"{SAYING}\n" * 3)
        (own(rank) / "m.gguf").write_bytes(GGUF)
        (own(rank) / "multihead").symlink_to(PROGRAM)


def started(command):
    return ranks(COUNT, ["sh", "-c", MINE, FOLDER, *command, "-q"])


def refused(command, differ, line):
    """Rank 0 names the rank that differs, or the first other rank if rank 0 differs."""
    prepare()
    rank = chance.randrange(COUNT)
    differ(rank)
    done = started(command)
    said = [text for text in done.stderr.splitlines() if text.startswith("multihead")]
    what = f"{command}, {differ.__name__} at rank {rank}: {done}"
    check(done.codes == [2] * COUNT and len(said) == 1 and f" rank {rank or 1}: {line}" in said[0], what)
    check(done.stdout == "" and max(done.messages.values()) <= MOST_MESSAGES, f"{what}: {done.messages}")


one = run("train", "sentences", "--steps", 1, "--every", 1, "--tries", 1, "--batch", 4, "--embed", 16, "--no-report",
          "-q", "-o", FOLDER / "m")
check_good(one, "a model")
for command in COMMANDS:
    prepare()
    done = started(command)
    check(done.returncode == 0 and done.stdout, f"{command}: {done}")
    for differ, line in DIFFERENCES:
        if differ is not change_the_text or "t.txt" in command:
            refused(command, differ, line)
refused(("generate", "m.gguf", "a b"), flip_a_bit_of_gguf, "m.gguf: has other weights than at rank 0")
refused(("generate", "m.gguf", "a b"), change_a_field_of_gguf, "m.gguf: has another header than at rank 0")
refused(("generate", "m", "animal " * 1000), *DIFFERENCES[-1])  # far from the beginning of the command line
finish()
