"""Long commands report progress and the time left: on a terminal in a temporary line, elsewhere only after ten seconds;
-q suppresses it. (train.py and perplexity.py test their own lines.)"""
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

TIME = rb"[0-9.]+ (s|min|h)"


def shows(what, *arguments):
    """what: the first line, which appears at once; later ones depend on time."""
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
piped = run(*prune)
check(piped.code == 0 and b"\x1b[K" not in piped.err and len(piped.errors) == 1,
      f"no terminal: {piped.err!r}")
finish()
