"""multihead count: numbers are exact by formulas in Python integers. Further tests are for textbook
cases, published models, model folders, and rejected input.
"""
import json
import random
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED = 2, 3, 4, 5
BYTES = {"f16": 2, "bf16": 2, "f32": 4, "int8": 1}


def count(*arguments):
    return run("count", *arguments)


def counted(*arguments):
    result = count(*arguments, "--json")
    if not check_good(result, arguments) or not check(not result.err, f"{arguments}: {result.errors}"):
        return None
    return json.loads(result.out)


def visible(n, left, right):
    return sum(min(n - 1, t + (n if right is None else right))
               - max(0, t - (n if left is None else left)) + 1 for t in range(n))


def up(x, step):
    return -(-x // step) * step


def allocated(hk, d, batch, n, size, page, window):
    """Bytes of a cache: pages of runs of 16 positions, and tables (cache.h)."""
    page = min(n, page or (32 if window else n))
    entries = -(-n // page)
    kept = min(entries, -(-(2 * window - 1) // page) + 1) if window else entries
    run = up(16 * d * size, 64) + (64 if size == 1 else 0)
    tables = up(16 * batch + 8 * batch * kept + 4 * batch * entries, 64)
    return tables + (batch * kept + bool(window)) * -(-page // 16) * hk * 2 * run


def expected(e, h, hk, d, layers, batch, n, size, bias, left, right, page=None):
    q, k = h * d * e, hk * d * e
    biases = (h * d + 2 * hk * d + e) if bias else 0
    pairs = batch * h * visible(n, left, right)
    flops = {"q": 2 * batch * n * q, "k": 2 * batch * n * k, "v": 2 * batch * n * k,
             "scores": 2 * d * pairs, "softmax": 5 * pairs, "weighted_sum": 2 * d * pairs,
             "out": 2 * batch * n * q}
    flops["all"] = sum(flops.values())
    cache = 2 * batch * n * hk * d * size
    kept = n if left is None else min(n, left + 1)
    parameters = {"W_q": q, "W_k": k, "W_v": k, "W_o": q, "biases": biases,
                  "all": 2 * q + 2 * k + biases}
    matrix = batch * h * n * n * size
    layer = {"parameters": parameters, "flops": flops, "pairs": n * n,
             "visible_pairs": visible(n, left, right), "matrix_bytes": matrix,
             "cache_bytes": cache, "window_cache_bytes": cache // n * kept,
             "allocated_cache_bytes": allocated(hk, d, batch, n, size, page, 0)}
    layer["allocated_window_cache_bytes"] = min(
        layer["allocated_cache_bytes"],
        allocated(hk, d, batch, n, size, page, kept if kept < n else 0))
    model = {"parameters": layers * parameters["all"], "flops": layers * flops["all"],
             "matrix_bytes": layers * matrix, "cache_bytes": layers * cache,
             "window_cache_bytes": layers * layer["window_cache_bytes"],
             "allocated_cache_bytes": layers * layer["allocated_cache_bytes"],
             "allocated_window_cache_bytes": layers * layer["allocated_window_cache_bytes"],
             "cache_bytes_of_a_token": layers * 2 * hk * d * size}
    return layer, model


def by_formula():
    draw = random.Random(20261120)
    for _ in range(60):
        hk = draw.choice((1, 2, 3, 8))
        h, d, n = hk * draw.choice((1, 2, 5)), draw.choice((1, 16, 64, 96)), draw.randint(1, 70)
        e, layers, batch = draw.randint(1, 5000), draw.randint(1, 90), draw.randint(1, 9)
        dtype, bias = draw.choice(list(BYTES)), draw.random() < 0.5
        arguments = ["--embed", e, "--heads", h, "--kv-heads", hk, "--head-dim", d, "--layers",
                     layers, "--batch", batch, "--length", n, "--dtype", dtype,
                     "--bias" if bias else "--no-bias"]
        page = draw.choice((None, 1, 5, 16, 64))
        arguments += ["--page", page] if page else []
        left = right = None
        if draw.random() < 0.5:
            arguments.append("--causal")
            right = 0
        if draw.random() < 0.6:
            left = draw.randint(0, 80)
            if right == 0:
                arguments += ["--window", left + 1]
            else:
                right = draw.randint(0, 80)
                arguments += ["--window", f"{left},{right}"]
        data = counted(*arguments)
        layer, model = expected(e, h, hk, d, layers, batch, n, BYTES[dtype], bias, left, right,
                                page)
        check(data["layer"] == layer, f"{arguments}: {data['layer']} instead of {layer}")
        check(data["model"] == model, f"{arguments}: {data['model']} instead of {model}")


def textbook():
    for arguments, parameters, w_o in (
            (["--embed", 512, "--heads", 8], 1_048_576, 262_144),
            (["--embed", 768, "--heads", 12], 2_359_296, 589_824),
            (["--embed", 12288, "--heads", 96], 603_979_776, 150_994_944),
            (["--embed", 4096, "--heads", 32, "--kv-heads", 8], 41_943_040, 16_777_216)):
        data = counted(*arguments)["layer"]["parameters"]
        check(data["all"] == parameters and data["W_o"] == w_o, f"{arguments}: {data}")
        text = count(*arguments).out.decode()
        check(f"{parameters:,}" in text and f"{w_o:,}" in text, f"{arguments}: digits in threes")
    check(counted("--embed", 512, "--heads", 8, "--bias")["layer"]["parameters"]["biases"] == 2048,
          "four biases of 512")


def comparisons():
    data = counted("--like", "llama-2-70b")
    names = [row["name"] for row in data["sharing"]]
    check(names == ["MHA", "GQA", "MQA"], f"sharing: {names}")
    mha, gqa, mqa = data["sharing"]
    check(mha["cache_bytes"] == 8 * gqa["cache_bytes"] == 64 * mqa["cache_bytes"], "8x and 64x")
    check(gqa["asked"] and not mha["asked"], "the one asked about is marked")
    check(data["model"]["cache_bytes_of_a_token"] == 327_680, "320 KiB per token")
    check("8x" in count("--like", "llama-2-70b").out.decode(), "the factor is printed")
    for name in ("gpt3", "llama-2-7b", "llama-3-70b", "mistral-7b"):
        shape = counted("--like", name)["configuration"]
        check(shape["heads"] == shape["embed"] // 128, f"{name}: h = d / 128")
    for arguments in (["--embed", 512, "--heads", 8], ["--embed", 60, "--heads", 12]):
        rows = counted(*arguments)["one_head_against_many"]
        first = rows[0]
        check(first["heads"] == 1 and [r["heads"] for r in rows if r["asked"]] == [arguments[3]],
              f"{arguments}: {rows}")
        for row in rows:
            check(row["parameters"] == first["parameters"], "parameters do not depend on heads")
            check(row["heads"] * row["head_dim"] == first["head_dim"], "the width is shared out")
            check(row["matrix_bytes"] == row["heads"] * first["matrix_bytes"], "a matrix a head")


def published():
    listing = count("--like", "list")
    check_good(listing, "--like list")
    rows = [line.split(None, 7) for line in listing.lines[1:]]
    check(len(rows) > 20 and all(len(row) == 8 and re.search(r"20\d\d", row[7]) for row in rows),
          "every model has a source with its year")
    for name, layers, embed, heads, kv_heads, head_dim, length, _ in rows:
        data = counted("--like", name)
        shape = data["configuration"]
        check([shape[key] for key in ("layers", "embed", "heads", "kv_heads", "head_dim", "length")]
              == list(map(int, (layers, embed, heads, kv_heads, head_dim, length))), name)
        check(0 < data["model"]["parameters"] < shape["published_parameters"],
              f"{name}: attention is a part of the whole")
    gpt3 = counted("--like", "gpt3")["model"]["parameters"]
    check(gpt3 == 96 * (603_979_776 + 4 * 12288), f"gpt3: {gpt3}")
    changed = counted("--like", "llama-2-70b", "--kv-heads", 64)
    check(changed["model"]["cache_bytes_of_a_token"] == 8 * 327_680, "sizes can be changed")
    check("changed" in changed["configuration"]["name"]
          and changed["configuration"]["published_parameters"] is None, "and that is said")
    window = counted("--like", "mistral-7b", "--length", 16384)["model"]
    check(window["cache_bytes"] == 4 * window["window_cache_bytes"], "a window keeps 4096 of 16384")
    check(count("--like", "gpt2").out == count("--like", "gpt2").out, "the same every time")


def folder(name, **config):
    path = FOLDER / name
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def folders():
    data = counted(MODEL)["configuration"]
    check(data["heads"] == 3 and data["layers"] == 2 and data["qkv_bias"], f"tiny-bert: {data}")
    usual = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 8}
    llama = counted(folder("llama", model_type="llama", num_key_value_heads=2, **usual,
                           max_position_embeddings=128))["configuration"]
    check((llama["kv_heads"], llama["head_dim"], llama["length"], llama["qkv_bias"],
           llama["causal"]) == (2, 8, 128, False, True), f"llama: {llama}")
    gpt2 = counted(folder("gpt2", model_type="gpt2", n_embd=48, n_layer=2, n_head=4,
                          n_positions=32))["configuration"]
    check((gpt2["embed"], gpt2["heads"], gpt2["out_bias"]) == (48, 4, True), f"gpt2: {gpt2}")
    mistral = counted(folder("mistral", model_type="mistral", sliding_window=16, head_dim=32,
                             **usual))["configuration"]
    check((mistral["left_keys"], mistral["right_keys"], mistral["head_dim"]) == (15, 0, 32),
          f"mistral: {mistral}")
    qwen = counted(folder("qwen", model_type="qwen2", sliding_window=16, use_sliding_window=False,
                          **usual))["configuration"]
    check("left_keys" not in qwen and qwen["qkv_bias"] and not qwen["out_bias"], f"qwen: {qwen}")
    for arguments, code, part in (
            ({"model_type": "llama", **usual, "num_key_value_heads": 3}, BAD_INPUT, "evenly"),
            ({"model_type": "llama", **usual, "hidden_size": 65}, BAD_INPUT, "multiple"),
            ({"model_type": "llama", **usual, "hidden_size": -1}, BAD_INPUT, "hidden_size"),
            ({"model_type": "llama", **usual, "attention_bias": 1}, BAD_INPUT, "attention_bias"),
            ({"model_type": "bert", "hidden_size": 64}, BAD_INPUT, "num_hidden_layers"),
            ({"model_type": "hopfield", **usual}, UNSUPPORTED, "hopfield")):
        path = folder(f"bad{len(list(FOLDER.iterdir()))}", **arguments)
        check_error(count(path), code, part, command="count")
    (path / "config.json").write_text("[1, 2]")
    check_error(count(path), BAD_INPUT, "object", command="count")
    (path / "config.json").write_text("{")
    check_error(count(path), BAD_INPUT, "config.json", command="count")
    check_error(count("nowhere"), NO_INPUT, "nowhere", command="count")


def refusals():
    shape = ["--embed", 512, "--heads", 8]
    for arguments, parts in (
            ([*shape[:2]], ("--heads is missing", "--like")),
            ([*shape[2:]], ("--embed is missing",)),
            (["--embed", 512, "--heads", 7], ("512", "7", "--head-dim")),
            ([*shape, "--kv-heads", 3], ("--kv-heads", "8", "3")),
            ([*shape, "--kv-heads", 16], ("--kv-heads",)),
            (["--embed", 0, "--heads", 8], ("--embed 0", "1")),
            ([*shape, "--dtype", "f64"], ("f64", "f16", "int8")),
            (["--like", "lama-2-70b"], ("did you mean 'llama-2-70b'",)),
            (["--like", "zebra"], ("--like list",)),
            (["--like", "gpt2", MODEL], ("one of them",)),
            ([MODEL, MODEL], ("one argument too many",)),
            ([*shape, "--causal", "--window", 0], ("--window 0",)),
            ([*shape, "--causal", "--window", "4,4"], ("later key",)),
            ([*shape, "--window", 8], ("4,4", "--causal")),
            ([*shape, "--window", "x,y"], ("x,y",)),
            ([*shape, "--length", 1 << 40], ("2^63",)),
            (["--embed", 1 << 40, "--heads", 1], ("2^63",)),
            ([*shape, "--layers", 1 << 40, "--batch", 1 << 20], ("2^63",)),
            ([*shape, "--lenght", 8], ("--length",))):
        check_error(count(*arguments), USAGE, *parts, command="count")
    check(count().code == USAGE and b"Examples:" in count().err, "count without arguments")


by_formula()
textbook()
comparisons()
published()
folders()
refusals()
finish()
