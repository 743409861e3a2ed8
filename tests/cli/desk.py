"""multihead view --desk: the outputs of a layer's heads. tests/unit/test_attribution.c compares the numbers with their
definitions; this test checks that every output shows them."""
import json
import math
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

HEADS = 3


def numbers():
    result = view(MODEL, TEXT, "--desk", 1, "--json", "-")
    check_good(result, "JSON")
    data = json.loads(result.out)
    heads, after = data["heads"], data["after"]
    check(data["layer"] == 1 and [h["name"] for h in heads] == ["L1H0", "L1H1", "L1H2"], "heads")
    check(data["tokens"][0] == "[CLS]" and len(after) == len(data["tokens"]), "tokens")
    size, width = len(data["before"][0]) // HEADS, len(after[0])
    # The output minus the heads' terms is the bias, which is equal for all tokens.
    left = [[after[t][e] - sum(h["terms"][t][e] for h in heads) for e in range(width)]
            for t in range(len(after))]
    check(all(abs(left[t][e] - left[0][e]) < 1e-6 for t in range(len(left)) for e in range(width)),
          "terms and bias make the output")
    header, values = read_safetensors(MODEL / "model.safetensors")
    name = next(n for n in header if n.endswith("layer.1.attention.output.dense.bias"))
    begin, end = header[name]["data_offsets"]
    if header[name]["dtype"] == "F32":
        bias = struct.unpack(f"<{width}f", values[begin:end])
        check(all(abs(a - b) < 1e-6 for a, b in zip(left[0], bias)), "the bias of the file")
    for h in heads:
        for t, row in enumerate(h["terms"]):
            check(abs(math.hypot(*row) - h["norms"][t]) < 1e-6, "norms are of the terms")
        check(len(h["weight_norms"]) == width and min(h["weight_norms"]) >= 0, "norms of weights")
        check(abs(h["cosines"][h["head"]] - 1) < 1e-6, "each is like itself")
    for t in range(len(after)):
        check(abs(sum(h["shares"][t] for h in heads) - 1) < 1e-6, "shares of a whole")
    shape, dtype, flat = read_npy(view(MODEL, TEXT, "--desk", 1, "--npy", "-").out)
    check(tuple(shape) == (HEADS, len(after), width) and dtype == "<f4", f"npy: {shape} {dtype}")
    check(abs(flat[-1] - heads[-1]["terms"][-1][-1]) < 1e-7, "npy holds the terms")
    check(size * HEADS == len(data["before"][0]), "heads side by side")


def pictures():
    names = ["d.html", "d.svg", "d.png", "d.npy"]
    result = view(MODEL, TEXT, "--desk", 0, "-o", names[0], "--svg", names[1], "--png", names[2],
                  "--npy", names[3])
    check_good(result, "pictures")
    check([line.split(":")[0] for line in result.errors] == [f"wrote {n}" for n in names],
          f"notes: {result.errors}")
    drawn = (FOLDER / "d.svg").read_text()
    for part in ("before", "after", "L0H2", "feature", "term"):
        check(part in drawn, f"the picture must say {part!r}")
    check("The heads side by side" in (FOLDER / "d.html").read_text(), "the report")
    again = view(MODEL, TEXT, "--desk", 0, "-o", "-").out
    check(again == (FOLDER / "d.html").read_bytes(), "the same bytes again")


def printed():
    result = view(MODEL, TEXT, "--desk", 0)
    check_good(result, "table")
    check([line.split()[0] for line in result.lines if line.startswith("L0H")] ==
          ["L0H0", "L0H1", "L0H2"], f"one line per head: {result.lines}")
    for width in (40, 80):
        narrow = view(MODEL, TEXT, "--desk", 0, "--width", width, NO_COLOR="1")
        check(max(map(columns, narrow.lines)) <= width, f"{width} columns")
        check(b"\x1b" not in narrow.out, "no colours")


def errors():
    check_error(view(MODEL, TEXT, "--desk", 2), 2, "--desk 2", "0 to 1")
    check_error(view(MODEL, TEXT, "--desk", "x"), 2, "expected a layer")
    check_error(view(MODEL, TEXT, TEXT, "--desk", 0), 2, "one text")
    check_error(view(MODEL, TEXT, "--desk", 0, "--head", 1), 2, "--desk and --head exclude")
    check_error(view(MODEL, TEXT, "--desk", 0, "--contrast", TEXT), 2, "--contrast")
    check_error(view("--attention", "a.npy", "--tokens", "t", "--desk", 0), 2, "--attention")


numbers()
pictures()
printed()
errors()
finish()
