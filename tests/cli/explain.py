"""multihead explain: figures by the formulas, the picture's XML and shapes, each cell of the mask,
reproducible bytes, and rejected input.
"""
import json
import sys
import xml.etree.ElementTree as xml

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6
SVG = "{http://www.w3.org/2000/svg}"
SMALL = ["--heads", 4, "--head-dim", 8, "--length", 12]


def explain(*arguments, **changes):
    return run("explain", *arguments, **changes)


def explained(*arguments):
    result = explain(*arguments, "--json")
    if not check_good(result, arguments):
        return None, None
    data = json.loads(result.out)
    return data["problem"], data["plan"]


def plans():
    problem, plan = explained("--embed", 512, "--heads", 8, "--length", 10, "--batch", 2)
    check((problem["head_dim"], problem["kv_heads"], problem["embed"]) == (64, 8, 512), f"{problem}")
    check(plan["path"] == "tiled" and plan["visible_pairs"] == plan["pairs"] == 2 * 8 * 100, f"{plan}")
    check(plan["flops"] == 2 * 128 * 1600, f"flops {plan['flops']}")
    check(plan["bytes"] == 4 * 4 * 2 * 8 * 10 * 64, f"bytes {plan['bytes']}")
    check(plan["matrix_bytes"] == 4 * 1600 and plan["scratch_bytes"] > 0, f"{plan}")
    check(plan["isa"] in ("portable", "avx2", "avx512", "amx", "neon") and plan["threads"] >= 1, f"{plan}")
    _, half = explained("--embed", 512, "--heads", 8, "--length", 10, "--batch", 2, "--dtype", "f16")
    check(half["bytes"] == plan["bytes"] / 2, f"f16: {half}")
    _, more = explained("--embed", 512, "--heads", 8, "--length", 10, "--batch", 2, "--scores",
                        "--statistics")
    check(more["bytes"] == plan["bytes"] + 4 * 1600 + (4 * 4 + 8) * 160, f"outputs: {more}")
    _, plan = explained("--heads", 2, "--head-dim", 16, "--length", 100, "--causal")
    check(plan["visible_pairs"] == 2 * 5050 and plan["pairs"] == 2 * 10000, f"causal: {plan}")
    _, plan = explained("--heads", 2, "--head-dim", 16, "--length", 100, "--causal", "--window", 10)
    check(plan["visible_pairs"] == 2 * (100 * 10 - 45), f"window: {plan}")
    _, plan = explained("--heads", 2, "--head-dim", 16, "--length", 100, "--window", "3,4")
    check(plan["visible_pairs"] == 2 * (800 - 6 - 10), f"two sides: {plan}")
    n, size = 30, 4
    for blocks, causal, window, sinks in ((1, 0, 0, 0), (0, 1, 5, 3), (1, 1, 5, 3), (0, 0, 5, 3)):
        arguments = ["--heads", 3, "--head-dim", 8, "--length", n] + ["--causal"] * causal
        arguments += ["--blocks", "local=1,global=1", "--block-size", size] if blocks else []
        arguments += ["--window", f"{window},{0 if causal else window}"] if window else []
        arguments += ["--sink-keys", sinks] if sinks else []
        _, plan = explained(*arguments)
        def seen(t, s):
            r, c = t // size, s // size
            return ((not causal or s <= t) and (not window or abs(t - s) <= window or s < sinks)
                    and (not blocks or r == 0 or c == 0 or 0 <= r - c <= 1
                         or (not causal and c - r == 1)))
        wanted = 3 * sum(seen(t, s) for t in range(n) for s in range(n))
        check(plan["mask_pairs"] == wanted, f"{arguments}: {plan['mask_pairs']}, not {wanted}")
    problem, plan = explained("--heads", 32, "--kv-heads", 8, "--head-dim", 128, "--queries", 1,
                              "--keys", 4096, "--causal", "--offset", 4095, "--threads", 3)
    check(plan["visible_pairs"] == 32 * 4096 and plan["threads"] == 3, f"decode: {plan}")
    check((problem["queries"], problem["keys"], problem["offset"]) == (1, 4096, 4095), f"{problem}")


def told_costs():
    """In text output, pairs that blocks keep have separate lines, and unknown counts are
    reported."""
    sizes = ("--heads", 2, "--head-dim", 16, "--length", 256)
    text = run("explain", *sizes, "--blocks", "local=0").out.decode()
    check("131,072 of 131,072, 100%, blocks not counted" in text, text)
    check("of the mask     32,768, 25%, by blocks too" in text, text)
    check("of the mask     2.10 MFLOP; tiles" in text, text)
    text = run("explain", *sizes, "--dense-mask").out.decode()
    check("100%, pairs that the dense mask hides included" in text and "of the mask" not in text, text)
    text = run("explain", "--heads", 1, "--head-dim", 16, "--length", 9).out.decode()
    check("The head has its own" in text, text)


def sentences():
    """The sentences are true for the given problem."""
    def said(*arguments, **changes):
        return " ".join(explain("--head-dim", 64, "--threads", 2, *arguments, **changes)
                        .out.decode().split())

    tiny, long = ("--heads", 8, "--length", 10), ("--heads", 8, "--length", 2048)
    for arguments, *parts in (
            ((*tiny, "--causal"), "Causal: a token sees itself and earlier tokens, and none after it",
             "all keys as one block", "here it exceeds the matrix of all scores.",
             "all data fit in the L2 cache, so memory is not the limit"),
            ((*long, "--causal"), "limited by arithmetic", "does not see are not computed",
             "512 keys at a time", "times the scratch"),
            (("--heads", 32, "--queries", 1, "--keys", 65536, "--causal", "--offset", 65535),
             "a step of decoding from a cache", "limited by the bandwidth of memory or a shared cache"),
            ((*long, "--causal", "--window", 128, "--sink-keys", 4), "the 127 keys before its position "
             "and its own, and the first keys.", "length times the window"),
            ((*tiny, "--window", "20,20"), "The window covers all keys"),
            (("--heads", 8, "--queries", 2, "--keys", 10, "--causal"), "no query sees the last 8 keys",
             "--offset 8"),
            ((*tiny, "--causal", "--offset", "-3"), "the first 3 queries are before all keys and see "
             "none, so their output is 0"),
            (("--heads", 8, "--queries", 20, "--keys", 6, "--causal"), "from query 5 on, queries see every key"),
            (("--heads", 8, "--kv-heads", 1, "--length", 9), "All 8 query heads share one key/value "
             "head: the cache of keys and values is 8x smaller"),
            (("--heads", 8, "--kv-heads", 2, "--length", 9), "4 query heads share each of the 2 "
             "key/value heads"),
            ((*tiny, "--softcap", 30, "--shaw", 4, "--gates", "--dropout", 0.25), "their product, with "
             "a learned vector for their distance added to the key, divided by sqrt(64), capped by 30 "
             "tanh(score / 30).", "times the gate of the head. Dropout sets weights to 0 with "
             "probability 0.25, and divides the others by 0.75."),
            ((*long, "--path", "plain"), "limited by arithmetic in double precision")):
        text = said(*arguments)
        for part in parts:
            check(part in text, f"{arguments} must say {part!r}: {text}")
    for arguments, part in (((*tiny, "--causal"), "memory bandwidth"),
                            ((*tiny, "--causal"), "not computed"),
                            ((*long, "--causal", "--window", 128), "half"),
                            ((*tiny, "--window", "20,20"), "length times the window"),
                            (("--heads", 1, "--length", 9), "look for different things"),
                            (tiny, "Causal")):
        check(part not in said(*arguments), f"{arguments} must not say {part!r}")
    # The same bytes with a cache that is large enough for them and one that is not.
    arguments = ("--heads", 8, "--length", 60)
    check("memory is not the limit" in said(*arguments, MHA_L2_KIB="2048"), "a large L2")
    check("limited by the bandwidth" in said(*arguments, MHA_L2_KIB="64"), "a small L2")


def ways():
    """The explanations for the shapes of docs/speed.md. tests/kernels/test_plan_runs.c compares
    them with the executed path."""
    d64, decode = ["--head-dim", 64], ["--head-dim", 128, "--queries", 1, "--keys", 4096]
    for arguments, in_place, pieces in (
            (["--heads", 8, *d64, "--length", 512], False, 8),
            (["--heads", 8, *d64, "--length", 10], None, 1),
            (["--heads", 32, "--kv-heads", 8, *decode], True, 8),
            (["--heads", 32, "--kv-heads", 1, *decode], None, None),
            (["--heads", 8, *d64, "--length", 16384, "--window", 256, "--causal"], False, None)):
        _, plan = explained(*arguments, "--threads", 2)
        check(plan["path"] == "tiled" and plan["key_block"] == 512, f"{arguments}: {plan}")
        check(1 <= plan["row_block"] <= 14, f"{arguments}: {plan}")
        if in_place is not None:
            check(plan["keys_in_place"] is in_place, f"{arguments}: {plan}")
        if pieces is not None:
            check(pieces == plan["work_items"], f"{arguments}: {plan}")
        text = " ".join(explain(*arguments, "--threads", 2).out.decode().split())
        check(("read in place" if plan["keys_in_place"] else "512, packed") in text, text)
        check(("no other thread is woken" in text) == (plan["work_items"] == 1), text)


def paths():
    for more in ((), ("--length", 1, "--keys", 2048), ("--average",), ("--statistics",)):
        _, plan = explained("--heads", 2, "--head-dim", 16, "--length", 64, *more)
        check(plan["path"] == "tiled" and "up to 256" in plan["reason"] and "tiled" not in plan["reason"],
              f"the reason is a property of the problem: {plan}")
    _, plan = explained("--heads", 2, "--head-dim", 300, "--length", 8)
    check(plan["path"] == "plain" and "256" in plan["reason"], f"wide heads: {plan}")
    check_error(explain("--heads", 2, "--head-dim", 300, "--length", 8, "--strict"), UNSUPPORTED,
                "plain", command="explain")
    _, plan = explained(*SMALL, "--path", "plain", "--isa", "portable", "--threads", 1)
    check(plan["path"] == "plain" and plan["key_block"] == 12, f"asked for: {plan}")
    _, plan = explained(*SMALL, "--compute", "bf16", "--softcap", 3)
    check(plan["compute"] == "bf16" and "bf16" in plan["reason"], f"bf16: {plan}")
    text = explain(*SMALL, "--compute", "bf16").out.decode()
    check("computed in bf16" in text and "8 significant bits" in " ".join(text.split()), text)
    check_error(explain(*SMALL, "--compute", "bf16", "--shaw", 4), UNSUPPORTED, "Shaw",
                command="explain")
    _, plan = explained(*SMALL, "--isa", "portable")
    check(plan["isa"] == "portable", f"isa: {plan}")
    everything = ["--softcap", 30, "--dropout", 0.1, "--alibi", "--t5", 32, "--shaw", 4,
                  "--dense-mask", "--dense-bias", "--sink-logits", "--gates", "--sink-keys", 2,
                  "--window", 4, "--causal", "--blocks", "local=1,global=1,random=1",
                  "--block-size", 4, "--lse", "--probabilities", "--average", "--scores",
                  "--statistics", "--column-sums", "--dtype", "bf16"]
    text = explain(*SMALL, *everything)
    check_good(text, "everything at once")
    for part in ("softcap 30", "dropout 0.1", "ALiBi", "T5", "Shaw", "dense mask", "dense bias",
                 "sink logits", "gates", "first 2 keys", "blocks of 4 x 4", "causal", "In words",
                 "averaged over heads", "statistics", "total weight of each key", "bf16"):
        check(part in " ".join(text.out.decode().split()), f"the account must say {part!r}")
    check(max(map(columns, text.lines)) <= 90, "lines fit 90 columns")


def words():
    text = " ".join(explain("--like", "llama-2-70b").out.decode().split())
    for part in ("[1, 64, 4096, 128]", "[1, 8, 4096, 128]", "537,001,984", "4 GiB", "Llama 2",
                 "8x smaller", "tiled"):
        check(part in text, f"llama-2-70b: must say {part!r}")
    text = explain("--heads", 4, "--head-dim", 8, "--queries", 1, "--keys", 64, "--causal")
    check("--offset 63" in text.out.decode(), "the offset of a decoding step is suggested")
    check("[1, 3, " in explain(MODEL).out.decode(), "a model folder")


def arrays():
    write_npy(FOLDER / "q.npy", (2, 4, 3, 8), [0.0] * 192)
    write_npy(FOLDER / "k.npy", (2, 2, 5, 8), [0.0] * 160)
    write_npy(FOLDER / "v.npy", (2, 2, 5, 6), [0.0] * 120)
    problem, plan = explained("--q", "q.npy", "--k", "k.npy", "--v", "v.npy")
    check([problem[n] for n in ("batch", "heads", "kv_heads", "queries", "keys", "head_dim",
                                "value_dim")] == [2, 4, 2, 3, 5, 8, 6], f"arrays: {problem}")
    check(plan["pairs"] == 2 * 4 * 3 * 5, f"arrays: {plan}")
    check_good(explain("--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--svg", "arrays.svg"), "svg")
    swapped = explain("--q", "k.npy", "--k", "q.npy")
    check(swapped.code != 0 and len(swapped.errors) == 1, f"2 query heads, 4 to share: {swapped.err}")
    write_npy(FOLDER / "narrow.npy", (2, 2, 5, 6), [0.0] * 120)
    check_error(explain("--q", "q.npy", "--k", "narrow.npy"), BAD_INPUT, "k: dim 3 is 6, expected 8",
                command="explain")
    check_error(explain("--q", "none.npy"), NO_INPUT, "none.npy", command="explain")
    write_npy(FOLDER / "flat.npy", (4,), [0.0] * 4)
    check_error(explain("--q", "flat.npy"), BAD_INPUT, "flat.npy", "axes", command="explain")
    check_error(explain("--q", "q.npy", "--heads", 4), USAGE, "sizes", command="explain")
    check_error(explain(*SMALL, "--k", "k.npy"), USAGE, "--q", command="explain")


def texts_of(svg):
    return ["".join(node.itertext()) for node in svg.iter(SVG + "text")]


def picture(name, *arguments):
    result = explain(*arguments, "--svg", f"{name}.svg")
    check_good(result, name)
    data = (FOLDER / f"{name}.svg").read_bytes()
    again = explain(*arguments, "--svg", "-", "--threads", 1, MHA_ISA="portable")
    check(again.out == data, f"{name}: the bytes depend on the machine, or on the threads")
    check(b"<script" not in data and b"http" not in data.replace(b"http://www.w3.org", b""),
          f"{name}: nothing may be fetched")
    return xml.fromstring(data)


def pictures():
    svg = picture("grouped", "--embed", 4096, "--heads", 32, "--kv-heads", 8, "--length", 10,
                  "--batch", 2)
    texts = texts_of(svg)
    check(svg.get("width") == "1200", "1200 wide")
    for part in ("[2, 10, 4096]", "[4096, 4096]", "[4096, 1024]", "[2, 32, 10, 128]",
                 "[2, 8, 10, 128]", "[2, 32, 10, 10]", "W_q", "W_o", "out", "41,943,040",
                 "GQA, this one", "MHA", "MQA", "8,192 numbers kept per token",
                 "2,048 numbers kept per token", "256 numbers kept per token"):
        check(any(part in text for text in texts), f"grouped: the picture must hold {part!r}")
    check(len(list(svg.iter(SVG + "image"))) == 2, "the table and its colour bar")
    dark = explain("--like", "gpt2", "--svg", "-", "--dark").out
    light = explain("--like", "gpt2", "--svg", "-").out
    check(b"#0e1014" in dark and b"#0e1014" not in light, "two papers")
    for name, arguments in (("one", ["--embed", 64, "--heads", 1]),
                            ("long", ["--like", "mistral-7b", "--length", 1 << 20]),
                            ("many", ["--like", "t5-11b"]),
                            ("step", ["--like", "llama-3-8b", "--queries", 1, "--offset", 8191]),
                            ("odd", ["--heads", 7, "--head-dim", 3, "--length", 1]),
                            ("blocks", [*SMALL, "--blocks", "local=1", "--block-size", 2])):
        svg = picture(name, *arguments)
        box = list(map(float, svg.get("viewBox").split()))
        for node in svg.iter(SVG + "rect"):
            x, y, width, height = (float(node.get(a, 0)) for a in ("x", "y", "width", "height"))
            check(x >= 0 and y >= 0 and x + width <= box[2] + 0.01 and y + height <= box[3] + 0.01,
                  f"{name}: a box leaves the page: {node.attrib}")
    check("MQA" not in texts_of(picture("one2", "--embed", 8, "--heads", 1)), "one head shares none")


def mask():
    """Each cell of a small mask: blue is visible, orange is exempt, and other cells are hidden."""
    n, window, sinks = 12, 4, 2
    svg = picture("mask", *SMALL, "--causal", "--window", window, "--sink-keys", sinks)
    groups = [list(g) for g in svg.iter(SVG + "g") if len(list(g)) == n * n]
    if not check(len(groups) == 1, f"mask: {len(groups)} grids of {n} x {n} cells"):
        return
    fills = [node.get("fill") for node in groups[0]]
    for t in range(n):
        for s in range(n):
            seen = s <= t and t - s < window
            wanted = "#7db0e8" if seen else "#f0b06a" if s <= t and s < sinks else "#f2f3f5"
            check(fills[t * n + s] == wanted, f"mask: query {t}, key {s}: {fills[t * n + s]}")


def refusals():
    for arguments, parts in (
            (["--heads", 8], ("--embed is missing",)),
            (["--embed", 512, "--heads", 7], ("512", "--head-dim")),
            ([*SMALL, "--window", 4], ("--causal", "2,2")),
            ([*SMALL, "--isa", "sse"], ("portable",)),
            ([*SMALL, "--blocks", "locl=1"], ("'locl'", "local=N")),
            ([*SMALL, "--blocks", "local"], ("local=N",)),
            ([*SMALL, "--blocks", "local=-1"], ("local=N",)),
            ([*SMALL, "--blocks", "local=1,"], ("local=N",)),
            ([*SMALL, "--block-size", 4], ("--blocks",)),
            ([*SMALL, "--softcap", "x"], ("number",)),
            ([*SMALL, "--softcap", "-3"], ("softcap",)),
            ([*SMALL, "--dropout", 2], ("dropout",)),
            ([*SMALL, "--dark"], ("--svg",)),
            ([*SMALL, "--json", "--svg", "-"], ("stdout",)),
            ([*SMALL, "--batch", 1 << 30], ("2^31",)),
            (["--heads", 1 << 20, "--head-dim", 1, "--queries", 1 << 20, "--keys", 1 << 40],
             ("2^63",)),
            ([*SMALL, "--lenght", 3], ("--length",)),
            ([MODEL, MODEL], ("one argument too many",))):
        check_error(explain(*arguments), USAGE, *parts, command="explain")
    check_error(explain(*SMALL, "--svg", "no-such-folder/x.svg"), NO_OUTPUT, "no-such-folder",
                command="explain")
    (FOLDER / "older.svg").write_text("as it was")
    check(explain("--heads", 2, "--head-dim", 300, "--strict", "--svg", "older.svg").code != 0
          and (FOLDER / "older.svg").read_text() == "as it was", "a failed run changed an older file")
    check(explain().code == USAGE and b"Examples:" in explain().err, "explain without arguments")


plans()
told_costs()
sentences()
ways()
paths()
words()
arrays()
pictures()
mask()
refusals()
finish()
