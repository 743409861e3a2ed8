"""multihead circuits: scores between -1 and 1, both ends of every direction, keys by offset,
earlier heads that a head reads, and the scores of a state. test_circuits_numpy.py compares the
numbers with NumPy.
"""
import json
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED = 2, 3, 4, 5
LAYERS, HEADS = 2, 3


def circuits(*arguments, **keywords):
    return run("circuits", *arguments, **keywords)


def bad(code, *parts, arguments):
    check_error(circuits(*arguments), code, *parts, command="circuits", name=str(arguments))


def names(result):
    return [line.split()[0] for line in result.lines if re.match(r"L\d+H\d+ ", line)]


def page_of(path):
    return json.loads(re.search(r'type="application/json"[^>]*>(.*?)</script>', path.read_text(), re.S)[1])


def weights():
    result = circuits(MODEL)
    check_good(result, "circuits")
    every = [f"L{l}H{h}" for l in range(LAYERS) for h in range(HEADS)]
    check(names(result) == every and all("→" in line for line in result.lines), f"a row for each head: {result.lines}")
    check("->" in circuits(MODEL, "--ascii").out.decode(), "--ascii")
    for width in (20, 40, 80, 133):
        wide = circuits(MODEL, "--composition", "--details", "--width", width)
        check(max(map(len, wide.lines)) <= width, f"{width} columns: {max(map(len, wide.lines))}")
    more = circuits(MODEL, "--details", "--head", "L1H2").out.decode()
    check(more.count("\n  QK ") == 4 and more.count("\n  OV ") == 4, f"both ends of two directions: {more}")
    found = json.loads(circuits(MODEL, "--json").out)
    check(circuits(MODEL, "--json", "--threads", "1").out == circuits(MODEL, "--json").out, "of any number of threads")
    check(found["offsets"] == [0, 0] and found["normed_tokens"] and found["source"]["heads"] == 6, f"{found['source']}")
    for head in found["heads"]:
        check(abs(head["copying"]) <= 1 and abs(head["matching"]) <= 1, f"{head['name']}: scores")
        for circuit, sides in (("qk", ("queries", "keys")), ("ov", ("reads", "writes"))):
            values = head[circuit]["values"]
            check(values == sorted(values, reverse=True) and values[-1] >= 0, f"{head['name']}: {values}")
            check(len(head[circuit]["directions"]) == 2, "two directions")
            for direction in head[circuit]["directions"]:
                for side in sides:
                    most, least = ([t["value"] for t in direction[side][end]] for end in ("most", "least"))
                    check(most == sorted(most, reverse=True) and least == sorted(least) and least[0] < most[0]
                          and len(most) == len(least) == 8, f"{head['name']} {side}: {most} {least}")
    one = json.loads(circuits(MODEL, "--json", "--head", "L0H1").out)
    check(one["heads"] == [found["heads"][1]], "of one head as of all")
    best = sorted(found["heads"], key=lambda head: -head["copying"])
    check(names(circuits(MODEL, "--sort", "copying")) == [head["name"] for head in best], "--sort copying")
    check(names(circuits(MODEL, "--sort", "copying", "--min", best[1]["copying"] - 1e-6)) ==
          [head["name"] for head in best[:2]], "--min")


def composition():
    """Earlier heads that each head reads, in descending order."""
    found = json.loads(circuits(MODEL, "--composition", "--json").out)
    check(0 < found["composition_chance"] < 1, f"chance {found['composition_chance']}")
    for head in found["heads"]:
        for writers in head["composition"].values():
            values = [writer["value"] for writer in writers]
            check(values == sorted(values, reverse=True) and len(values) == (3 if head["layer"] else 0),
                  f"{head['name']}: {values}")
            check(all(int(re.match(r"L(\d+)H", writer["head"])[1]) < head["layer"] for writer in writers), "earlier")
    text = circuits(MODEL, "--composition", "--layer", "1").out.decode()
    check("reads keys from L0H" in " ".join(text.split()), f"below the row: {text[:200]}")


def pages():
    """The page with only weights, and the page with the scores of a state."""
    path, state, text = FOLDER / "circuits.html", FOLDER / "text.state", FOLDER / "text.txt"
    text.write_text("The cat sat on the mat.\nThe dog saw the cat near the river.\n")
    check_good(circuits(MODEL, "--composition", "-o", path, "-q"), "-o")
    alone = page_of(path)
    check([column["name"] for column in alone["columns"]] == ["copying", "matching"], f"{alone['columns']}")
    check(all(card["arrows"] for card in alone["heads"] if card["layer"]), "arrows from earlier heads")
    check("Weights: read of" in path.read_text(), "lists of tokens")
    bad(NO_INPUT, "holds no scores", arguments=(MODEL, "--state", state))
    check(not state.exists(), "no state is made")
    check_good(run("heads", MODEL, "--text", text, "--state", state), "heads --state")
    kept = state.read_bytes()
    check_good(circuits(MODEL, "--state", state, "-o", path), "--state")
    columns = {column["name"]: column["values"] for column in page_of(path)["columns"]}
    check({"copying", "previous", "random_induction"} <= set(columns), f"{list(columns)}")
    scores = json.loads(run("heads", MODEL, "--text", text, "--json").out)["heads"]
    for value, head in zip(columns["previous"], scores):
        check(abs(value[0] - head["scores"]["previous"]["value"]) < 1e-4, f"{head['name']}: {value}")
    by = sorted(scores, key=lambda head: -head["scores"]["entropy"]["value"])
    check(names(circuits(MODEL, "--state", state, "--sort", "entropy")) == [head["name"] for head in by], "--sort")
    check(state.read_bytes() == kept, "the state is read only")


def rotated():
    """With rotary positions, only the QK circuit depends on offsets."""
    folder = FOLDER / "rotary"
    done = run("train", "induction", "--steps", "2", "--no-report", "--embed", "16", "--batch", "4", "-o", folder, "-q")
    check_good(done, "train")
    found = {offset: json.loads(circuits(folder, "--json", *offset).out)
             for offset in ((), ("--offset", "0-63"), ("--offset", "1"))}
    check(found[()]["offsets"] == [0, 63] and found["--offset", "1"]["offsets"] == [1, 1], "offsets")
    check(found[()] == found["--offset", "0-63"], "the default")
    for a, b in zip(found[()]["heads"], found["--offset", "1"]["heads"]):
        check(a["ov"] == b["ov"] and a["copying"] == b["copying"], "OV")
        check(a["qk"]["values"] != b["qk"]["values"], "QK")


def bad_input():
    for offset in ("x", "3-1", "-1", "1-", "0-2000000", "1 ", ""):
        bad(USAGE, "--offset", arguments=(MODEL, f"--offset={offset}"))
    bad(USAGE, "takes no text", arguments=(MODEL, "a text"))
    bad(USAGE, "--role requires --state", arguments=(MODEL, "--role", "induction"))
    bad(USAGE, "expected copying or matching", arguments=(MODEL, "--sort", "induction"))
    bad(USAGE, "--details and --json", arguments=(MODEL, "--details", "--json"))
    bad(USAGE, "MODEL is missing", arguments=("--json",))
    bad(USAGE, "--head", arguments=(MODEL, "--head", "L9H9"))


composition()
bad_input()
if circuits(MODEL).code == UNSUPPORTED:
    check("MHA_CIRCUITS" in circuits(MODEL).err.decode(), "what is missing")
else:
    weights()
    pages()
    rotated()
finish()
