"""A random allocation of every subcommand fails (support/memory.c). The command must end with exit
code 7 and a message about memory, or with the bytes of an undisturbed run if the allocation is
optional. Files are the older or the complete new ones. With MHA_TEST_LONG=1, 2,000 allocations
fail: half of them as the only one, half with all later ones.
"""
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import SANITIZED, allocating, beside_older  # noqa: E402

NO_MEMORY = 7
PLACE, WORDS, LINES = FOLDER / "place", FOLDER / "words", FOLDER / "texts.txt"
OLDER = b"older"
COMMANDS = (  # commands, and the files that they replace
    (["view", MODEL, TEXT, "-o", "a.html"], ["a.html"]),
    (["view", MODEL, TEXT, "--svg", "a.svg", "--png", "a.png", "--pdf", "a.pdf", "--json", "a.json",
      "--npy", "a.npy"],
     ["a.svg", "a.png", "a.pdf", "a.json", "a.npy"]),
    (["view", WORDS, "Ada Bob Cem", "--from", "Cem", "--to", "Ada", "--json", "a.json"], ["a.json"]),
    (["view", "--attention", FOLDER / "maps.npy", "--tokens", FOLDER / "tokens.json", "-o", "a.html"], ["a.html"]),
    (["heads", MODEL, "--text", LINES, "--random", "1", "-o", "a.html", "--json"], ["a.html"]),
    (["circuits", WORDS, "--composition", "--details"], []),
    (["ablate", WORDS, "--text", FOLDER / "names.txt", "--random", "1", "--heads", "2", "-o", "a.html"], ["a.html"]),
    (["ablate", WORDS, "--task", FOLDER / "task.jsonl", "--heads", "1"], []),
    (["heads", MODEL, "--text", LINES, "--random", "1", "--npy", "folder"], []),
    (["prune", MODEL, "--text", LINES, "--step", "4", "--keep", "4", "--svg", "a.svg", "-o", "folder"], ["a.svg"]),
    (["perplexity", WORDS, "--text", FOLDER / "names.txt"], []),
    (["generate", WORDS, "Ada", "--max-tokens", "4"], []),
    (["train", "ioi", "--steps", "2", "--every", "1", "--tries", "1", "--embed", "16", "-o", "folder"], []),
    (["run", "--example", "--json", "a.json", "--out", "a.npy"], ["a.json", "a.npy"]),
    (["explain", "--like", "gpt2", "--svg", "a.svg"], ["a.svg"]),
    (["explain", MODEL], []),
    (["count", "--like", "gpt2", "--json"], []),
    (["help", "view"], []),
)
NUMBERS = re.compile(rb"[0-9][0-9.e+-]*")
chance = seeded()


def started(arguments, files, **changes):
    """Run the command in a folder with only the older files, and return its result and the folder's
    contents."""
    more = {"help": [], "explain": [], "count": [], "run": ["-q"]}.get(arguments[0], ["-q", "--threads", "1"])
    done = beside_older(PLACE, files, OLDER, *arguments, *more, **changes)
    timed = arguments[0] in ("prune", "train", "perplexity")

    def steady(data):
        return NUMBERS.sub(b"#", data) if timed else data

    done.stdout = steady(done.stdout)
    return Result(done), {str(path.relative_to(PLACE)): steady(path.read_bytes())
                          for path in PLACE.rglob("*") if path.is_file()}


def refused(arguments, files, whole, out, fail):
    result, found = started(arguments, files, **allocating(fail=fail))
    what = f"{' '.join(map(str, arguments))}: allocation {fail}: exit {result.code}, {result.errors}"
    if result.code == 0:
        check(found == whole and result.out == out, f"{what}: another result")
        return
    check(result.code == NO_MEMORY and len(result.errors) == 1 and "memory" in result.errors[0], what)
    for name, data in found.items():
        training = arguments[0] == "train" and name in whole  # its state and curve are rewritten repeatedly
        check(training or data in (OLDER, whole.get(name)), f"{what}: {name} is neither old nor new")
    check(all(name in found for name in files), f"{what}: {sorted(found)}")
    check(not [path for path in PLACE.rglob("*") if ".part" in path.name], f"{what}: {sorted(found)}")


def last_of_ablate():
    """Allocations of the part that writes, which draws numbers from the texts."""
    arguments, count = ["ablate", WORDS, "--text", FOLDER / "names.txt", "--heads", "4", "--json"], FOLDER / "count"
    result, whole = started(arguments, [], **allocating(count=count))
    last = int(count.read_text())
    for k in range(last - 24, last + 1, 3):
        refused(arguments, [], whole, result.out, k)


def header_of_weights():
    """jansson omits a key if its allocation fails. Each of prune's last allocations, which write a
    model, fails here."""
    arguments, files = next(command for command in COMMANDS if command[0][0] == "prune")
    count = FOLDER / "count"
    result, whole = started(arguments, files, **allocating(count=count))
    last = int(count.read_text())
    for k in range(last - 100, last + 1):
        refused(arguments, files, whole, result.out, k)


def every_command(most):
    for arguments, files in COMMANDS:
        count = FOLDER / "count"
        result, whole = started(arguments, files, **allocating(count=count))
        check_good(result, f"{arguments}: undisturbed")
        last = int(count.read_text())
        for i in range(most // len(COMMANDS)):
            k = chance.randint(1, last)
            refused(arguments, files, whole, result.out, -k if i % 2 else k)


if SANITIZED:
    print("skipped: a sanitizer allocates itself")
    sys.exit(77)
LINES.write_text("The cat sat on the mat .\nThe dog ran across the street .\n" * 4)
(FOLDER / "names.txt").write_text("Ada Bob Cem\n" * 4)
(FOLDER / "task.jsonl").write_text(json.dumps(  # most allocations are for JSON
    {"prompt": "Ada Bob", "right": " Cem", "wrong": " Ada", "notes": ["note"] * 3000}))
write_npy(FOLDER / "maps.npy", (1, 2, 3, 3), [1.0 if i % 4 == 0 else 0.0 for i in range(9)] * 2)
(FOLDER / "tokens.json").write_text(json.dumps(["a longer token than sixteen bytes", "b", "c"]))
check_good(run("train", "ioi", "--steps", 2, "--every", 1, "--tries", 1, "--embed", 16, "-q", "--no-report", "-o", WORDS),
           "a model")
last_of_ablate()
header_of_weights()
every_command(2000 if LONG else 160)
finish()
