"""A signal at a random moment of every command that writes. Each file must be the older or the
complete new one, without leftover files, and the program must end by the signal (a shell reports
130, 143, 129). The test has every option of --help that writes.

A moment is a counted file operation (support/watch.c) or allocation (support/memory.c), and is
therefore the same on every machine. MHA_TEST_LONG=1 tests 40 moments per command and signal.
"""
import signal
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import SANITIZED, allocating, beside_older, operations, watched  # noqa: E402

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PLACE = FOLDER / "place"
OLDER = b"older"
VIEW, HEADS = ["view", MODEL, TEXT], ["heads", MODEL, "--text", FOLDER / "texts.txt", "--random", "1"]


def writing_options(command):
    """The options that --help lists under headings of outputs."""
    return [name for part in run(command, "--help").out.decode().split("\n\n") if re.match("Output|Long runs", part)
            for name in re.findall(r"^ {2,6}(?:-\w, )?--([a-z][\w-]*) F(?:ILE|OLDER)", part, re.M) if name != "compare"]


CAUSAL, ARRAYS = FOLDER / "causal", [name for name in writing_options("run") if name != "json"]
EFFECTS = ["ablate", CAUSAL, "--text", FOLDER / "words.txt", "--random", "1", "--heads", "2", "--pairs", "2"]
# The command, the files that it replaces, and the folder that it creates.
WRITERS = [
    ([*VIEW, "-o", "a.html"], ["a.html"], None),
    ([*VIEW, "--svg", "a.svg", "--png", "a.png", "--pdf", "a.pdf", "--json", "a.json", "--npy", "a.npy"],
     ["a.svg", "a.png", "a.pdf", "a.json", "a.npy"], None),
    ([*VIEW, "--contrast", "The dog sat on the mat", "-o", "a.html"], ["a.html"], None),
    ([*VIEW, "--from", "cat", "--to", "sat", "--json", "a.json", "-o", "a.html"], ["a.json", "a.html"], None),
    ([*VIEW, "--desk", "1", "--json", "a.json", "--svg", "a.svg"], ["a.json", "a.svg"], None),
    ([*HEADS, "-o", "a.html"], ["a.html"], None),
    ([*HEADS, "--npy", "folder"], [], "folder"),
    ([*HEADS, "--pictures", "folder"], [], "folder"),
    ([*HEADS, "--headvis", "folder"], [], "folder"),
    ([*HEADS, "--state", "a.state", "--save-every", "0"], [], "a.state"),
    ([*EFFECTS, "-o", "a.html"], ["a.html"], None),
    ([*EFFECTS, "--npy", "folder"], [], "folder"),
    ([*EFFECTS, "--state", "a.state", "--save-every", "0", "-o", "a.html"], ["a.html"], "a.state"),
    (["page", MODEL, "--module", FOLDER / "module", "-o", "a.html"], ["a.html"], None),
    (["circuits", MODEL, "-o", "a.html"], ["a.html"], None),
    (["circuits", MODEL, "--npy", "folder"], [], "folder"),
    (["prune", MODEL, "--text", FOLDER / "texts.txt", "--step", "4", "--csv", "a.csv", "--json", "a.json", "--svg",
      "a.svg", "--pdf", "a.pdf", "--html", "a.html", "--keep", "4", "-o", "folder"],
     ["a.csv", "a.json", "a.svg", "a.pdf", "a.html"], "folder"),
    (["run", "--example", "--json", "a.json", *sum(([f"--{name}", f"{name}.npy"] for name in ARRAYS), [])],
     ["a.json", *(f"{name}.npy" for name in ARRAYS)], None),
    (["explain", "--like", "gpt2", "--svg", "a.svg", "--pdf", "a.pdf"], ["a.svg", "a.pdf"], None),
    (["train", "ioi", "--steps", "4", "--every", "2", "--tries", "1", "--embed", "16", "-o", "folder"], [], "folder")]
if LONG:
    WRITERS.append((["bench", "forward", "--length", "64", "--seconds", "0.01", "--samples", "5", "--patience", "0.01",
                     "--svg", "a.svg", "--pdf", "a.pdf"], ["a.svg", "a.pdf"], None))
NUMBERS = re.compile(rb"[0-9][0-9.e+-]*")
chance = seeded()


def complete():
    """WRITERS has every option that writes."""
    commands = re.findall(r"^  (\S+)", run("--help").out.decode().split("Subcommands:\n")[1].split("\n\n")[0], re.M)
    count = 0
    for command in commands:
        given = {str(word) for arguments, *_ in WRITERS for word in arguments if arguments[0] == command}
        for name in writing_options(command) if command != "bench" or LONG else ():
            count += 1
            check(f"--{name}" in given or name in ("output", "out") and "-o" in given, f"{command} --{name} is not in WRITERS")
    print(f"{len(WRITERS)} commands with {count} options that write, {len(SIGNALS)} signals")
    check(count > 40, f"{count} options that write")


def started(arguments, files, **changes):
    """Run the command in a folder with only the older files."""
    threads = [] if arguments[0] in ("explain", "page", "run") else ["--threads", "1"]
    return Result(beside_older(PLACE, files, OLDER, *arguments, "-q", *threads, **changes))


def content(arguments):
    """The folder's contents, without numbers if they include times. For a picture of times, only
    its end is kept."""
    def steady(data):
        return data[-8:] if arguments[0] == "bench" else NUMBERS.sub(b"#", data) if arguments[0] == "prune" else data
    return {str(path.relative_to(PLACE)): steady(path.read_bytes()) for path in PLACE.rglob("*") if path.is_file()}


def undisturbed(arguments, files):
    """The written files, and the number of moments of each kind."""
    log, count = FOLDER / "log", FOLDER / "count"
    check_good(started(arguments, files, **watched(log=log)), f"{arguments}: undisturbed")
    numbers = {"file": len(operations(log))}
    if not SANITIZED:
        check_good(started(arguments, files, **allocating(count=count)), f"{arguments}: counted")
        numbers["allocation"] = int(count.read_text())
    return content(arguments), numbers


def interrupted(writer, whole, kind, moment, number):
    arguments, files, folder = writer
    changes = watched(file=moment, signal=number) if kind == "file" else allocating(signal=moment, number=number)
    result, found = started(arguments, files, **changes), content(arguments)
    what = f"{' '.join(map(str, arguments))}: {number.name} at {kind} {moment}: exit {result.code}, {result.errors}"
    check(result.code == -number, what)
    for name, data in found.items():
        # The state and curve of a training and a state of scores are rewritten repeatedly.
        learning = (arguments[0] == "train" or name == folder) and name in whole
        check(learning or data in (OLDER, whole.get(name)), f"{what}: {name} is neither old nor new")
    check(all(name in found for name in files), f"{what}: {sorted(found)}")
    if folder == "folder" and arguments[0] != "train":
        check(not any(name.startswith("folder") for name in found) or set(found) == set(whole), f"{what}: {sorted(found)}")
    check(not [path for path in PLACE.rglob("*") if ".part" in path.name], f"{what}: {sorted(found)}")


def every_writer():
    for writer in WRITERS:
        whole, numbers = undisturbed(*writer[:2])
        for number in SIGNALS:
            for kind, count in numbers.items():
                for _ in range(1 if not LONG else 3 if writer[0][0] == "bench" else 20):
                    interrupted(writer, whole, kind, chance.randint(1, count), number)


def while_roles_are_measured():
    """A page is not written from partial results after the first text."""
    whole, numbers = undisturbed(*WRITERS[0][:2])
    for part in () if SANITIZED else range(80, 100, 4):
        interrupted(WRITERS[0], whole, "allocation", numbers["allocation"] * part // 100, chance.choice(SIGNALS))


def ignored():
    """A program that nohup starts survives its terminal."""
    arguments, files, _ = WRITERS[0]
    whole, numbers = undisturbed(arguments, files)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for moment in (1, numbers["file"]):
        check_good(started(arguments, files, **watched(file=moment, signal=signal.SIGHUP)), "SIGHUP that is ignored")
        check(content(arguments) == whole, "SIGHUP that is ignored: another file")
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


(FOLDER / "texts.txt").write_text("The cat sat on the mat .\nThe dog ran across the street .\n" * 4)
(FOLDER / "words.txt").write_text("the animal was too tired .\nthe street was too wide .\n" * 2)
(FOLDER / "module").write_bytes(b"\x1f\x8b")
check_good(run("train", "sentences", "--steps", "2", "--tries", "1", "--layers", "1", "--heads", "2", "--embed", "16",
               "--no-report", "-q", "-o", CAUSAL), "a model")
complete()
every_writer()
while_roles_are_measured()
ignored()
finish()
