"""multihead view --from --to: the heads that attend from one word to another. Weights are compared
with view --json; further tests are for ranks, words and their errors, and printing.
tests/python/test_ask_torch.py compares the numbers with PyTorch."""
import json
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

TWICE = "The cat didn't see the other cat: it was 12:30."


def ask(from_, to, *more, text=TEXT, model=MODEL, **keywords):
    return view(model, text, "--from", from_, "--to", to, *more, **keywords)


def answer(*arguments, **keywords):
    result = ask(*arguments, "--json", "-", **keywords)
    check_good(result, f"ask {arguments}")
    return json.loads(result.out) if result.code == 0 else {}


def weights_are_those_of_the_maps():
    data = answer("sat", "mat")
    check(data["format"] == "multihead-ask" and data["from"]["word"] == "sat", "what it is")
    row, column = data["from"]["tokens"][0], data["to"]["tokens"][0]
    check([data["tokens"][i] for i in (row, column)] == ["sat", "mat"], "tokens of the words")
    check(abs(data["chance"] - 1 / len(data["tokens"])) < 1e-9, "chance: one of all")
    maps = json.loads(view(MODEL, TEXT, "--json", "-").out)
    every = [(layer["layer"], head["head"], head["weights"][row][column])
             for layer in maps["layers"] for head in layer["heads"]]
    got = [(head["layer"], head["head"], head["weight"]) for head in data["heads"]]
    check([g[:2] for g in got] == [e[:2] for e in every], "all heads, in order")
    # Both run the model in f32, with different orders of summation
    check(all(abs(g[2] - e[2]) <= 2e-6 for g, e in zip(got, every)), "the same weights")
    for by in ("weight", "share", "effect"):
        order = sorted(data["heads"], key=lambda head: head[by + "_rank"])
        check([head[by + "_rank"] for head in order] == list(range(1, len(order) + 1)), "ranks")
        check(all(a[by] >= b[by] for a, b in zip(order, order[1:])), f"ranks fall by {by}")
    check(all(0 <= head["share"] <= 1 and head["effect"] >= -1e-6 for head in data["heads"]),
          "shares of a whole, turns that are none or some")
    check(data["effect"]["of"] == "hidden state", "an encoder without output")
    picked = answer("sat", "mat", "--head", "L1H2,0.1")
    check([h["name"] for h in picked["heads"]] == ["L0H1", "L1H2"], "--head")
    check(picked["heads"][1]["share"] == data["heads"][5]["share"], "the same for fewer heads")


def words():
    """Rows of several tokens are averaged, and columns are summed."""
    data = answer("didn't", "cat:2", text=TWICE)
    rows, columns_ = data["from"]["tokens"], data["to"]["tokens"]
    texts = [data["tokens"][i].replace("##", "") for i in rows]
    check("".join(texts) == "didn't" and len(rows) > 1, f"didn't: {texts}")
    check(columns_[0] > rows[-1], "the second cat")
    maps = json.loads(view(MODEL, TWICE, "--json", "-").out)
    for head in data["heads"]:
        map_ = maps["layers"][head["layer"]]["heads"][head["head"]]["weights"]
        mean = sum(map_[r][c] for r in rows for c in columns_) / len(rows)
        check(abs(head["weight"] - mean) < 2e-6, f"{head['name']}: mean of rows, sum of columns")
    check(answer("CAT:1", "[CLS]", text=TWICE)["from"]["tokens"][0] < rows[0], "capitals, [CLS]")
    whole = answer("12:30", ".", text=TWICE)
    check("".join(whole["tokens"][i] for i in whole["from"]["tokens"]).replace("##", "") == "12:30",
          "a word with a colon")


def word_errors():
    check_error(ask("dog", "cat"), 4, "--from dog", "no such word", TEXT)
    check_error(ask("cat", "ca"), 4, "--to ca", "no such word")
    check_error(ask("cat", "it", text=TWICE), 2, "--from cat", "2 times", "cat:1 .. cat:2")
    check_error(ask("cat:3", "it", text=TWICE), 2, "--from cat:3", "2 times")
    check_error(ask("cat:0", "it", text=TWICE), 2, "counted from 1")
    check_error(ask("cat:99999999999999999999", "it", text=TWICE), 2, "2 times")
    check_error(ask("\u00e9", "it", text=TWICE), 4, "no such word")
    check_error(view(MODEL, TEXT, "--from", "cat"), 2, "--from requires --to")
    check_error(view(MODEL, TEXT, "--to", "cat"), 2, "--to requires --from")
    check_error(view(MODEL, TEXT, "--sort", "effect"), 2, "--sort")
    check_error(view(MODEL, TEXT, TEXT, "--from", "a", "--to", "b"), 2, "one text")
    check_error(ask("cat", "mat", "--contrast", TEXT), 2, "exclude each other")
    check_error(view("--attention", "a.npy", "--tokens", "t", "--from", "a", "--to", "b"), 2,
                "--attention")
    check_error(ask("cat", "mat", "--sort", "size"), 2, "--sort")
    check_error(ask("cat", "mat", "--json", "/nowhere/x.json"), 6, "/nowhere/x.json")


def printed():
    result = ask("sat", "mat")
    text = result.out.decode()
    check_good(result, "table")
    for part in ("tiny-bert", TEXT, "sat (token", "mat (token", "uniform attention", "weight", "arrives",
                 "effect", "#1", "1 - cosine"):
        check(part in text, f"the table must say {part!r}")
    rows = [line.split() for line in result.lines if re.match(r"L\d+H\d+ ", line)]
    check(len(rows) == 6 and [r[2] for r in rows] == [f"#{i}" for i in range(1, 7)], "by weight")
    check(all(line == line.rstrip() for line in result.lines), "no blanks at line ends")
    rows = [line.split() for line in ask("sat", "mat", "--sort", "effect").lines
            if re.match(r"L\d+H\d+ ", line)]
    check([r[6] for r in rows] == [f"#{i}" for i in range(1, 7)], "--sort effect")
    for changes in ({"NO_COLOR": "1"}, {"TERM": "dumb"}, {"CLICOLOR_FORCE": "1"}):
        check(b"\x1b" not in ask("sat", "mat", **changes).out, f"no colours: {changes}")
    for width in (20, 40, 80):
        narrow = ask("sat", "mat", "--width", width)
        widest = max(map(columns, narrow.lines))
        # The table has 34 columns.
        check(narrow.code == 0 and widest <= max(width, 34), f"{width} columns: {widest}")
    check(ask("sat", "mat", "-q").errors == [], "--quiet")
    check(ask("sat", "mat").out == ask("sat", "mat", "--threads", "1").out, "the same again")


def with_maps():
    page = FOLDER / "ask.html"
    result = ask("sat", "mat", "-o", page, "--json", FOLDER / "ask.json", "--sort", "effect")
    check_good(result, "report")
    check([line.split(":")[0] for line in result.errors][:2] ==
          [f"wrote {FOLDER / 'ask.json'}", f"wrote {page}"], f"what was written: {result.errors}")
    text = page.read_text()
    check("Effect of removing the head on the first word's row." in text, "scores in the report")
    check(json.loads((FOLDER / "ask.json").read_text())["format"] == "multihead-ask", "the JSON")
    piped = ask("sat", "mat", "-o", "-", text="-", stdin=TEXT.encode())
    check_good(piped, "the text from a pipe, which is read once")
    check(piped.out == ask("sat", "mat", "-o", "-").out, "the same report")


def twins():
    """Reports of one text through a model have a norm-based map for each map."""
    one = view(MODEL, TEXT, "-o", "-").out.decode()
    check("norm-based" in one and '"twin' in one, "a twin of each map")
    check(one == view(MODEL, TEXT, "-o", "-", "--threads", "1").out.decode(), "the same bytes")
    hidden = view(MODEL, TEXT, "-o", "-", "--hide", "special", "--renormalise")
    check(hidden.code == 0 and len(hidden.out) < len(one.encode()), "twins without hidden tokens")
    pair = view(MODEL, TEXT, TEXT, "-o", "-")
    check(pair.code == 0 and len(pair.out) > 1000, "a pair")
    long = view(MODEL, "the cat " * 25, "-o", "-")
    check(long.code == 0, "a longer text")


def decoder():
    """A predicting model: effects concern the row's prediction, and rows do not see later tokens."""
    folder = FOLDER / "ioi"
    done = run("train", "ioi", "--steps", "20", "--no-report", "-o", folder)
    check(done.code in (0, 1), f"train: {done.errors}")
    names = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    first, second = [name for name in names if name[0] not in "<["][:2]
    text = f"{first} {second} {first}"
    data = answer(f"{first}:2", second, text=text, model=folder)
    check(data["effect"]["of"] == "log-probability" and 0 < data["effect"]["probability"] <= 1 and
          data["effect"]["predicted"] in names, f"what is predicted: {data.get('effect')}")
    rows = len(data["tokens"])
    check(abs(data["chance"] - 1 / rows) < 1e-9, "the last row sees all tokens")
    shown = ask(f"{first}:2", second, text=text, model=folder).out.decode()
    check("that row predicts:" in shown and "log-probability" in shown, "the table says so")
    check_error(ask(second, f"{first}:2", text=text, model=folder), 2, "comes after")


weights_are_those_of_the_maps()
words()
word_errors()
printed()
with_maps()
twins()
decoder()
finish()
