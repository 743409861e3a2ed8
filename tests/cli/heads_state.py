"""multihead heads --state: a measurement that is stopped, killed or out of disk space can be
resumed, and its bytes equal those of an uninterrupted one. States of different inputs are rejected,
and the error names the difference."""
import json
import os
import random
import resource
import signal
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import operations, watched  # noqa: E402

USAGE, NO_INPUT, BAD_INPUT, NO_OUTPUT = 2, 3, 4, 6
chance = seeded()
TEXTS = 150 if LONG else 20  # texts of interrupted runs
WORDS = "the cat dog sat on a mat and saw it by river bank near old tree . !".split()
GOLD = """1\tThe\t_\t_\t_\t_\t2\tdet\t_\t_
2\tcat\t_\t_\t_\t_\t3\tnsubj\t_\t_
3\tsat\t_\t_\t_\t_\t0\troot\t_\t_

1\tdogs\t_\t_\t_\t_\t2\tnsubj\t_\t_
2\tsee\t_\t_\t_\t_\t0\troot\t_\t_
3\tit\t_\t_\t_\t_\t2\tobj\t_\t_
"""


def heads(*arguments, **keywords):
    return run("heads", *arguments, **keywords)


def corpus(name, texts, seed=1, words=(5, 30)):
    draw = random.Random(seed)
    path = FOLDER / name
    path.write_text("".join(" ".join(draw.choices(WORDS, k=draw.randint(*words))) + "\n"
                            for _ in range(texts)))
    return path


def measured(text, *more):
    result = heads(MODEL, "--text", text, "--json", "--corpus", "--random", 3, *more)
    check_good(result, f"{text} {more}")
    return result


def same_with_and_without():
    text, state = corpus("some.txt", 12), FOLDER / "some.state"
    plain = measured(text)
    first = measured(text, "--state", state)
    check(first.out == plain.out, "a state changes no number")
    check(first.errors == [], f"{first.errors}")
    size, when = state.stat().st_size, state.stat().st_mtime_ns
    again = measured(text, "--state", state)
    check(again.out == plain.out, "read back, the same")
    check("continues after 12 of 12 texts and 3 random sequences" in " ".join(again.errors), f"{again.errors}")
    check((state.stat().st_size, state.stat().st_mtime_ns) == (size, when), "nothing new, not written")
    check(measured(text, "--state", state, "-q").errors == [], "--quiet")
    for options in ([], ["--csv"], ["--json"], ["--details"], ["--threads", 5]):
        options = [MODEL, "--text", text, "--random", 3, *options]
        check(heads(*options, "--state", state).out == heads(*options).out, f"{options}")
    pages = [FOLDER / "state.html", FOLDER / "plain.html"]
    for page, more in zip(pages, (["--state", state], [])):
        check_good(heads(MODEL, "--text", text, "--random", 3, "-o", page, *more), "-o")
    check(pages[0].read_bytes() == pages[1].read_bytes(), "the page of a state")
    check(heads(MODEL, "--text", text, "--random", 5, "--json", "--state", state).out ==
          heads(MODEL, "--text", text, "--random", 5, "--json").out, "more random sequences go on")
    empty = FOLDER / "empty.state"
    empty.write_bytes(b"")
    check(measured(text, "--state", empty).out == plain.out and empty.stat().st_size == size,
          "an empty file is a new state")
    alone = FOLDER / "random.state"
    for _ in range(2):
        check(heads(MODEL, "--json", "--state", alone).out == heads(MODEL, "--json").out, "random alone")


def shown_alone():
    """Without texts, the state is shown and exported; nothing is measured or written."""
    text, gold, state = corpus("shown.txt", 8), FOLDER / "shown.conllu", FOLDER / "shown.state"
    gold.write_text(GOLD)
    texts = [MODEL, "--text", text, "--conllu", gold, "--random", 12]
    check_good(heads(*texts, "--state", state), "measured")
    kept = state.read_bytes()
    for more in (["--json", "--corpus"], ["--csv"], ["--details", "--role", "det"], ["--sort", "induction"],
                 ["--npy", FOLDER / "arrays"]):
        found, plain = ([*map(str, more)], [*map(str, more)])
        if more[0] == "--npy":
            found[1], plain[1] = f"{more[1]}-a", f"{more[1]}-b"
        alone = heads(MODEL, "--state", state, *found)
        check_good(alone, f"{more}")
        check(alone.out == heads(*texts, *plain).out, f"{more}: the output of its texts")
        check("10 texts and 12 random sequences; nothing is measured" in alone.errors[0], f"{alone.errors}")
    for path in (FOLDER / "arrays-a").iterdir():
        check(path.read_bytes() == (FOLDER / "arrays-b" / path.name).read_bytes(), f"{path.name}")
    check_good(heads(MODEL, "--state", state, "-o", FOLDER / "shown.html"), "-o")
    check('"entropy"' in (FOLDER / "shown.html").read_text(), "the page")
    for option in ("--pictures", "--headvis"):
        check_error(heads(MODEL, "--state", state, option, FOLDER / "none"), USAGE, "requires texts", command="heads")
    check(state.read_bytes() == kept, "the state is as it was")


def special_files():
    """Of a folder's weight files, only the model's are read: one file, or the files of an index."""
    text = corpus("special.txt", 4)
    for shards in (False, True):
        folder = FOLDER / f"special-{shards}"
        shutil.copytree(MODEL, folder)
        weights, state = folder / "model.safetensors", folder / "kept.state"
        if shards:
            data = weights.read_bytes()
            names = json.loads(data[8:8 + int.from_bytes(data[:8], "little")])
            weights = weights.rename(folder / "part-1.safetensors")
            (folder / "model.safetensors.index.json").write_text(json.dumps(
                {"weight_map": {name: weights.name for name in names if name != "__metadata__"}}))
        os.mkfifo(folder / "pipe.safetensors")
        (folder / "device.safetensors").symlink_to("/dev/zero")
        (folder / "unused.safetensors").write_bytes(b"no model at all")
        for said in ("", "continues after 4 of 4 texts"):
            result = heads(folder, "--text", text, "--json", "--state", state)
            check_good(result, f"shards {shards}")
            check(said in " ".join(result.errors), f"{result.errors}")
        data = bytearray(weights.read_bytes())
        data[-2] ^= 1
        weights.write_bytes(data)
        check_error(heads(folder, "--text", text, "--json", "--state", state), USAGE, "another model", command="heads")


def gold_links():
    gold, state = FOLDER / "gold.conllu", FOLDER / "gold.state"
    gold.write_text(GOLD)
    options = [MODEL, "--conllu", gold, "--json", "--without", "L0H1", "-q"]
    plain = heads(*options)
    for _ in range(2):
        check(heads(*options, "--state", state).out == plain.out, "gold links and --without")
    check_error(heads(*options, "--predict", "--state", state), USAGE, "options of gold links",
                command="heads")
    gold.write_text(GOLD.replace("2\tobj", "1\tobj"))
    check_error(heads(*options, "--state", state), USAGE, "text 2 differs", command="heads")


def saving(text, state, *more):
    """Arguments with which the state is saved after each text."""
    return ("heads", MODEL, "--text", text, "--json", "--corpus", "--random", TEXTS, "--state", state,
            "--save-every", 0, *more)


def progress(state):
    """The numbers of texts and random sequences in a state."""
    if not state.exists():
        return 0
    words = struct.unpack("<13Q", state.read_bytes()[:104])
    return words[7] + words[10]


def stopped(number, plain, text, count):
    """Interrupt repeatedly at random operations on the file, until the run completes. Returns the
    number of resumptions."""
    state, log, taken = FOLDER / f"{number.name}.state", FOLDER / "log", 0
    while True:
        done = progress(state)
        result = run(*saving(text, state), **watched(file=chance.randint(1, count * 2 // 5), signal=number, log=log))
        told = re.search(rb"continues after (\d+) of %d texts and (\d+)" % TEXTS, result.err)
        check(done == 0 or (told and int(told[1]) + int(told[2]) == done), f"after {done}: {result.errors}")
        taken += done > 0
        saves = sum(kind == "rename" for kind, *_ in operations(log))
        check(progress(state) == done + saves, f"{number.name}: {progress(state)}, after {saves} from {done} on")
        if result.code == 0:
            check(result.out == plain, f"{number.name}: another result, taken up {taken} times")
            break
        if not check(result.code == -number, f"{number.name}: exit {result.code}, {result.errors}"):
            break
        said = re.search(rb"interrupted: (\d+) of (\d+) (texts|random)", result.err)
        if check(said or number == signal.SIGKILL, f"{result.errors}") and said:
            texts = json.loads(result.out)["texts"]
            check(texts == (TEXTS if said[3] == b"random" else int(said[1])), f"{result.errors}")
            check(progress(state) == int(said[1]) + (TEXTS if said[3] == b"random" else 0), f"not saved: {result.errors}")
    check(number == signal.SIGKILL or leftovers() == [], f"{number.name}: {leftovers()}")
    return taken


def stopped_at_any_moment():
    text = corpus("many.txt", TEXTS, words=(10, 60))
    log = FOLDER / "log"
    result = run(*saving(text, FOLDER / "whole.state", "--quiet"), **watched(log=log))
    check(result.code == 0 and result.err == b"", f"{result.errors}")
    plain = heads(MODEL, "--text", text, "--json", "--corpus", "--random", TEXTS)
    check(result.out == plain.out, "saved after each text")
    count = len(operations(log))
    asking = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in (*(asking if LONG else chance.sample(asking, 2)), signal.SIGKILL):
        check(stopped(number, plain.out, text, count) > 0, f"{number.name}: never stopped in the middle; the test is worth nothing")


def something_else():
    text, state = corpus("else.txt", 10), FOLDER / "else.state"
    measured(text, "--state", state)
    kept = state.read_bytes()

    def refused(*parts, arguments=(), model=MODEL, file=text):
        check_error(heads(model, "--text", file, "--random", 3, *arguments, "--state", state), USAGE,
                    "else.state: ", *parts, "remove it to start over", command="heads")
        check(state.read_bytes() == kept, f"{parts}: the state is changed")

    lines = text.read_text().splitlines(True)
    other = FOLDER / "other.txt"
    other.write_text("".join([*lines[:4], lines[4].replace("\n", " cat\n"), *lines[5:]]))
    refused("other texts: text 5 differs", file=other)
    other.write_text("".join(lines[:7]))
    refused("has 10 texts, but 7 are given", file=other)
    other.write_text("".join([*lines, "the old cat .\n"]))
    refused("other texts after those", "ranks", file=other)
    refused("other texts: text 1 differs", arguments=["--cut", 8])
    refused("other heads ablated", arguments=["--without", "L0H0"])
    refused("3 random sequences, but 2 are requested", arguments=["--random", 2])
    model = copy_model("other-model")
    check_good(heads(model, "--text", text, "--random", 3, "--state", state), "a copy of the model")
    header, weights = read_safetensors(model / "model.safetensors")
    (model / "model.safetensors").write_bytes(safetensors_bytes(header, weights[:-1] + b"\x01"))
    refused("another model", model=model)
    model = copy_model("other-config")
    change_config(model, layer_norm_eps=1e-5)
    refused("another model", model=model)
    check_error(heads(MODEL, "the cat", "--state", state, "--random", 3), USAGE, "10 texts, but 1",
                command="heads")
    check_error(heads(MODEL, "--state", state, "--random", 3), USAGE, "10 texts, but 0", command="heads")


def mix(h, word):
    h = (h ^ word) * 0x9E3779B97F4A7C15 & (1 << 64) - 1
    return h ^ h >> 32


def sealed(head, rest, states):
    """A file of words with a valid checksum, and states."""
    check_of = 0xCBF29CE484222325
    for word in (*head, *rest):
        check_of = mix(check_of, word)
    return struct.pack(f"<{len(head) + len(rest) + 1}Q", *head, *rest, check_of) + states


def damaged():
    text, state = corpus("damaged.txt", 6), FOLDER / "damaged.state"
    measured(text, "--state", state)
    kept = state.read_bytes()

    def refused(what, content, exit_code=BAD_INPUT):
        state.write_bytes(content)
        check_error(heads(MODEL, "--text", text, "--random", 3, "--state", state), exit_code,
                    "damaged.state", "remove it", command="heads", name=what)
        check(state.read_bytes() == content, f"{what}: changed")

    for size in (1, 7, 103, 104, 200, len(kept) // 2, len(kept) - 8, len(kept) - 1):
        refused(f"cut at {size}", kept[:size])
    refused("longer", kept + b"\0" * 8)
    of_random = len(kept) - struct.unpack("<14Q", kept[:112])[13]
    picked = [of_random + 40, len(kept) - 9, *(chance.randrange(176, len(kept)) for _ in range(10))]
    for at in [*range(24, 176, 7), *picked]:
        refused(f"byte {at}", kept[:at] + bytes([kept[at] ^ chance.randrange(1, 256)]) + kept[at + 1:])
    refused("another version", kept[:8] + b"\1" + kept[9:], USAGE)
    refused("another file", b"What heads do.\n" * 200)

    # Places of long texts with the fingerprints of short ones, and valid checksums.
    short, brief = FOLDER / "short.txt", FOLDER / "short.state"
    lines = [line.split() for line in text.read_text().splitlines()]
    kinds = sorted({word for line in lines for word in line})
    short.write_text("".join(f"{' '.join(kinds[i * 3:i * 3 + 3])}\n" for i in range(6)))
    measured(short, "--state", brief)
    made, words = brief.read_bytes(), struct.unpack("<14Q", brief.read_bytes()[:112])
    head = [*words[:12], *struct.unpack("<2Q", kept[96:112])]
    rest = struct.unpack(f"<{7 + words[11]}Q", made[112:112 + 8 * (7 + words[11])])
    states = kept[-sum(head[12:]):]
    state.write_bytes(sealed(head, rest, states))
    check_error(heads(MODEL, "--text", short, "--random", 3, "--state", state), BAD_INPUT, "damaged",
                command="heads", name="places beyond a text")
    check_good(heads(MODEL, "--state", state, "--json", "--corpus"), "numbers alone look up no text")
    state.write_bytes(sealed(head, [*rest[:-1], 1 << 40], states))
    check_error(heads(MODEL, "--state", state, "--json", "--corpus"), BAD_INPUT, "damaged", command="heads",
                name="a token that the model does not have")

    # Scores of a different model with this model's fingerprint.
    other, small = FOLDER / "other", FOLDER / "other.state"
    check_good(run("train", "sentences", "--steps", 1, "--layers", 1, "--heads", 2, "--embed", 16, "--no-report",
                   "--quiet", "-o", other), "another model")
    check_good(heads(other, "the animal was tired", "--random", 0, "--state", small), "its scores")
    foreign = small.read_bytes()
    states = foreign[-struct.unpack("<14Q", foreign[:112])[12]:]
    state.write_bytes(sealed([*head[:12], len(states), 0], rest, states))
    check_error(heads(MODEL, "--state", state), BAD_INPUT, "damaged", command="heads", name="another shape")


def places():
    text = corpus("place.txt", 3)

    def refused(state, code, *parts, arguments=()):
        check_error(heads(MODEL, "--text", text, *arguments, "--state", state), code, *parts,
                    command="heads")

    refused("/dev/full", USAGE, "not a regular file")
    refused("-", USAGE, "not a regular file")
    refused(FOLDER, USAGE, "not a regular file")
    refused(FOLDER / "none" / "x", NO_OUTPUT, "no such folder")
    refused(text, USAGE, "the same file")
    refused("page.html", USAGE, "the same file", arguments=["-o", "./page.html"])
    refused("x.state", USAGE, "--clusters", arguments=["--clusters", "0.2"])
    check_error(heads(MODEL, "--text", text, "--save-every", 3), USAGE, "requires --state", command="heads")
    check_error(heads("--attention", "maps.npy", "--state", "x.state"), USAGE, "no model to run",
                command="heads")
    check(not (FOLDER / "x.state").exists(), "nothing is written by what is refused")
    if os.geteuid() != 0:
        closed = FOLDER / "closed.state"
        closed.write_bytes(b"")
        closed.chmod(0o400)
        refused(closed, NO_OUTPUT, "cannot write")


def disk_full():
    """With a limit of 64 KB per file, nothing is saved; warnings and results are still printed."""
    text, state = corpus("full.txt", 8), FOLDER / "full.state"
    measured(corpus("full-before.txt", 8), "--state", state)
    kept = state.read_bytes()
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))  # noqa: E731
    for what in (state, FOLDER / "full-new.state"):
        # restore_signals=False: child processes inherit that Python ignores SIGXFSZ
        result = run(*saving(text, what), started=dict(preexec_fn=limit, restore_signals=False))
        check(result.code == NO_OUTPUT, f"exit {result.code}: {result.errors}")
        check(result.err.count(b"warning: ") >= 8 and b"measuring continues" in result.err, f"{result.errors}")
        check(json.loads(result.out)["texts"] == 8, "the result is told")
    check(state.read_bytes() == kept, "the older state is unchanged")
    check(not (FOLDER / "full-new.state").exists() and leftovers() == [], f"{leftovers()}")


same_with_and_without()
shown_alone()
special_files()
gold_links()
stopped_at_any_moment()
something_else()
damaged()
places()
disk_full()
finish()
