"""Long commands report progress and the remaining time: on a terminal in a temporary line,
elsewhere after one second and then every ten seconds. -q suppresses the report. The test's clock
advances 0.3 seconds per reading. (train.py tests the line of train.)"""
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import watched  # noqa: E402

TIME = rb"[0-9.]+ (s|min|h)"


def shows(what, *arguments):
    """`what` is the first line, which appears immediately. Later lines depend on time."""
    code, output = on_terminal(*arguments)
    lines = re.findall(rb"\r\x1b\[K([^\r]*)", output)
    check(code == 0 and any(re.match(what, line) for line in lines), f"{arguments[0]}: {code}, {lines}")
    check(lines and not re.match(what, lines[-1]), f"{arguments[0]}: the last line stays: {lines}")
    quiet = on_terminal(*arguments, "-q")[1]
    check(b"\x1b[K" not in quiet, f"{arguments[0]} -q: {quiet!r}")


folder = FOLDER / "model"
check_good(run("train", "sentences", "--steps", "2", "--tries", "1", "--no-report", "-q", "-o", folder),
           "train")
prune = ["prune", folder, "--task", "sentences", "--lines", "20"]
shows(rb"measuring heads: 1 of 1, " + TIME + b", about " + TIME + b" left$", *prune)
shows(rb"problem 1 of 3, " + TIME + b"$", "selftest", "--problems", "3")
shows(rb"measuring on held-out data, " + TIME + b"$", "train", "ioi", "--steps", "2", "--tries", "1")
shows(rb"text 1 of 1, layer 1 of 2, " + TIME, "heads", folder, "the animal was tired .", "--random", "0")
shows(rb"without head 1 of 8, " + TIME, "view", folder, "the animal was tired .", "--from", "tired", "--to", "animal")
shows(rb"composition of heads, 1 of 1 pairs of layers, " + TIME, "circuits", folder, "--composition")
# If stdout and stderr are one file, output keeps its order.
both = subprocess.run([PROGRAM, "train", "induction", "--steps", "2", "--tries", "1"], stdout=subprocess.PIPE,
                      stderr=subprocess.STDOUT, check=True).stdout.splitlines()
check(both[-1].startswith(b"nothing was saved"), f"the note is last: {both[-3:]}")
deep = FOLDER / "deep"
check_good(run("train", "sentences", "--steps", "2", "--tries", "1", "--layers", "4", "--heads", "2", "--embed", "16",
               "--no-report", "-q", "-o", deep), "train")
sentence = "the animal didn't cross the street because it was too tired ."
(FOLDER / "texts.txt").write_text(f"{sentence}\n" * 12)
(FOLDER / "task.tsv").write_text("the animal\t didn't\t was\nthe street\t was\t didn't\n")
texts = ["--text", FOLDER / "texts.txt"]
LONG_WORK = [
    ["view", deep, sentence, "-o", "a.html"],
    ["view", deep, sentence, "--from", "tired", "--to", "animal", "--sort", "effect"],
    ["heads", deep, *texts], ["heads", deep, *texts, "-o", "b.html"], ["heads", deep, *texts, "--npy", "a"],
    ["heads", deep, *texts, "--pictures", "b"], ["heads", deep, *texts, "--headvis", "c"],
    ["ablate", deep, *texts], ["ablate", deep, "--task", "task.tsv"], ["ablate", deep, *texts, "-o", "c.html"],
    ["circuits", deep], ["circuits", deep, "--composition"], ["circuits", deep, "-o", "d.html"],
    ["prune", deep, *texts], ["prune", deep, "--task", "sentences", "--lines", "20", "--fraction", "0.5", "-o", "d"],
    ["perplexity", deep, *texts], ["selftest", "--problems", "20"],
    ["train", "sentences", "--steps", "2", "--tries", "1"]]
for command in LONG_WORK:
    name = " ".join(map(str, command))
    piped = run(*command, **watched(pace=300))
    lines = [line for line in piped.err.split(b"\n") if re.search(b", " + TIME + b", about " + TIME + b" left$", line)]
    check(piped.code in (0, 1) and b"\x1b[K" not in piped.err and lines, f"{name}, no terminal: {piped.code} {piped.err!r}")
    for made in ("a", "b", "c", "d"):
        shutil.rmtree(FOLDER / made, ignore_errors=True)
    silent = run(*command, "-q", **watched(pace=300))
    check(silent.code == piped.code, f"{name} -q: {silent.code} {silent.err!r}")
    check(b" left" not in silent.err, f"{name} -q: {silent.err!r}")
finish()
