"""multihead view --contrast: the weights in one text minus those in another of the same length."""
import json
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

OTHER = "The dog sat on the mat"


def weights(text):
    return [head["weights"] for layer in json.loads(view(MODEL, text, "--json", "-").out)["layers"]
            for head in layer["heads"]]


def differences():
    result = view(MODEL, TEXT, "--contrast", OTHER, "--json", "-")
    check_good(result, "contrast as JSON")
    data = json.loads(result.out)
    check(data["quantity"] == "difference" and data["texts"] == [TEXT, OTHER], "what it holds")
    check([t["token"] for t in data["tokens"]][2] == "cat", "tokens of the first text")
    check([t["token"] for t in data["contrast_tokens"]][2] == "dog", "tokens of the second")
    got = [head["weights"] for layer in data["layers"] for head in layer["heads"]]
    worst = most = 0
    for first, second, map_ in zip(weights(TEXT), weights(OTHER), got):
        for a, b, c in zip(first, second, map_):
            worst = max([worst] + [abs(x - y - z) for x, y, z in zip(a, b, c)])
            most = max(most, max(map(abs, c)))
    # The difference of two floats below 1 rounds by 2^-25, their nine digits by less.
    check(worst < 6e-8 < 1e-3 < most, f"differences: {worst} of {most}")
    check("contrast_tokens" not in json.loads(view(MODEL, TEXT, "--json", "-").out), "no contrast")


def pictures():
    drawn = view(MODEL, TEXT, "--contrast", OTHER, "--svg", "-", "--head", "L1H0").out.decode()
    for part in ("cat/dog", "less The dog sat", "difference"):
        check(part in drawn, f"the picture must say {part!r}")
    low, zero, high = [float(x) for x in
                       re.findall(r">(-?[0-9.e-]+)</text>", drawn)[:3]] or (0, 1, 0)
    check(zero == 0 and low == -high < 0, f"a range about 0: {low} {zero} {high}")
    page = view(MODEL, TEXT, "--contrast", OTHER, "-o", "-").out.decode()
    check("cat/dog" in page and "attends less to" in page, "the report")
    again = view(MODEL, TEXT, "--contrast", OTHER, "-o", "-").out.decode()
    check(page == again, "the same bytes again")
    png = view(MODEL, TEXT, "--contrast", OTHER, "--png", "-", "--head", "0.0")
    check(png.out[:4] == b"\x89PNG", "a PNG")


def terminal():
    result = view(MODEL, TEXT, "--contrast", OTHER)
    text = result.out.decode()
    check_good(result, "terminal")
    for part in ("change most", "cat/dog", "most: L", "difference"):
        check(part in text, f"the terminal must say {part!r}")
    for changes in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = view(MODEL, TEXT, "--contrast", OTHER, CLICOLOR_FORCE="1", **changes)
        check(plain.code == 0 and b"\x1b" not in plain.out, f"no colours with {changes}")
    for width in (20, 40):
        narrow = view(MODEL, TEXT, "--contrast", OTHER, "--width", width)
        check(max(map(columns, narrow.lines)) <= width, f"{width} columns")
    hidden = view(MODEL, TEXT, "--contrast", OTHER, "--hide", "special").out.decode()
    check("hidden: [CLS] [SEP]" in hidden and "hold" not in hidden, "nothing is a share of nothing")


def errors():
    check_error(view(MODEL, TEXT, "--contrast", "The cat sat on the mat!"), 4, "has 8 tokens",
                "the other 9", "first differ at token 7", "'[SEP]' against '!'")
    check_error(view(MODEL, TEXT, TEXT, "--contrast", OTHER), 2, "one text")
    check_error(view(MODEL, TEXT, "--contrast", OTHER, "--hide", "the", "--renormalise"), 2,
                "--renormalise")
    check_error(view("--attention", "x.npy", "--tokens", "t", "--contrast", OTHER), 2, "--attention")
    check_error(view(MODEL, TEXT, "--contrast", " "), 4, "empty")
    same = view(MODEL, TEXT, "--contrast", TEXT, "-q")
    check(same.code == 0 and "same tokens" in same.errors[0], f"the same text: {same.errors}")


differences()
pictures()
terminal()
errors()
finish()
