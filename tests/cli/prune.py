"""multihead prune: a model that needs both heads, a model with many heads, and an encoder; saving
and loading of masked and smaller models; shared keys and values; every output; bad input."""
import csv
import io
import json
import re
import sys
import xml.etree.ElementTree as ElementTree

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6
LINES = "The cat sat on the mat\n\n  \nthe dog sat\nA cat and a dog .\r\nthe mat"


def prune(*arguments, **keywords):
    return run("prune", *arguments, **keywords)


def measured(*arguments):
    """The JSON on stdout."""
    result = prune(*arguments, "--json", "-", "-q")
    check_good(result, f"prune {arguments}")
    check(not result.err, f"prune -q {arguments}: {result.errors}")
    return json.loads(result.out)


def timeless(found):
    for point in found["curve"]:
        del point["seconds"]
    return found


def train(name, *arguments):
    folder = FOLDER / name
    check_good(run("train", *arguments, "--no-report", "-q", "-o", folder), f"train {name}")
    return folder


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def kept(found):
    return [(head["layer"], head["head"]) for head in found["heads"] if head["kept"]]


def both_are_needed(model):
    """One layer of two heads (ioi): without either head, 38 to 58 % remain (docs/training.md)."""
    found = measured(model, "--task", "ioi")
    check(found["quality"] == "accuracy" and found["measure"] == "gradient", "ioi: measures")
    curve = found["curve"]
    check([point["heads"] for point in curve] == [2, 1, 0], "ioi: one head per round")
    check(curve[0]["importance"]["quality"] == 1, "ioi: all right with all heads")
    check(curve[1]["importance"]["quality"] < 0.7, "ioi: one head is not enough")
    check(found["kept"] == 2 and len(kept(found)) == 2, "ioi: nothing can go")
    sizes = [point["parameters"] for point in curve]
    check(sizes[0] - sizes[1] == sizes[1] - sizes[2] > 0, "ioi: every head costs as much")
    for measure in ("gradient-token", "gradient-batch", "gradient-signed", "ablation",
                    "mean-ablation"):
        found = measured(model, "--task", "ioi", "--measure", measure, "--normalise")
        check(found["measure"] == measure, f"measure {measure}")
    alone = measured(model, "--task", "ioi", "--measure", "ablation")["heads"]
    check(all(head["importance"] > 0.1 for head in alone), "ioi: each head is missed")


def many_heads(model):
    """Two layers of four heads: the floor, orders, threads, and pruning a pruned folder."""
    text = FOLDER / "words.txt"
    words = run("generate", model, "--max-tokens", 12, "--temperature", 1).out
    text.write_bytes(words.replace(b"<s> ", b"") + b"\n" + words.replace(b"<s> ", b""))
    found = measured(model, "--text", text, "--min-per-layer", 1, "--stop", 0, "--step", 2)
    check(found["kept"] == 2 and {layer for layer, _ in kept(found)} == {0, 1}, "a head a layer")
    check([point["heads"] for point in found["curve"]] == [8, 6, 4, 2], "two heads a round")
    check(all(len(point["random"]) == 5 for point in found["curve"]), "five random orders")
    gone = sorted(head["goes"] for head in found["heads"] if "goes" in head)
    check(gone == list(range(6)), "six heads go, one after the other")
    again = measured(model, "--text", text, "--min-per-layer", 1, "--stop", 0, "--step", 2,
                     "--threads", 1)
    check(timeless(found) == timeless(again), "the same with one thread")
    check(timeless(measured(model, "--text", text, "--seed", 5)) !=
          timeless(measured(model, "--text", text)), "--seed changes the random orders")
    small = FOLDER / "small"
    result = prune(model, "--text", text, "--keep", 3, "-o", small)
    check_good(result, "--keep 3 -o")
    check(any("kept: 3 of 8" in line for line in result.lines), "--keep 3 is said")
    check(f"wrote {small}" in result.errors[-1], "what was written is said")
    config = config_of(small)
    check(config["model_type"] == "multihead" and sum(config["layer_heads"]) == 3, "heads a layer")
    check(config["bos_token_id"] == config_of(model)["bos_token_id"], "ids of special tokens")
    check_good(run("generate", small, "--max-tokens", 3), "a pruned model generates")
    chosen = [p for p in measured(model, "--text", text, "--keep", 3)["curve"] if p["heads"] == 3]
    smaller = measured(small, "--text", text)["curve"][0]
    check(smaller["heads"] == 3 and smaller["parameters"] == chosen[0]["parameters"], "sizes")
    check(smaller["importance"] == chosen[0]["importance"], "removed is as good as masked, exactly")


def as_ordinary_llama(model):
    """With two remaining heads per layer, the result is an ordinary Llama folder."""
    text = FOLDER / "words.txt"
    folder = FOLDER / "even"
    for seed in range(4):
        check_good(prune(model, "--text", text, "--keep", 4, "--min-per-layer", 2, "-q", "--seed",
                         seed, "-o", folder), "--keep 4 --min-per-layer 2")
    config = config_of(folder)
    check(config["model_type"] == config_of(model)["model_type"] == "llama", "stays a Llama")
    check((config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) ==
          (2, 2, config_of(model)["head_dim"]), "two heads of the old size")
    check("layer_heads" not in config, "all layers alike")


def encoder():
    text = FOLDER / "lines.txt"
    text.write_text(LINES)
    found = measured(MODEL, "--text", text, "--fraction", 0.5)
    check(found["quality"] == "cosine" and found["sequences"] == 4, "an encoder, four lines")
    check(abs(found["curve"][0]["importance"]["quality"] - 1) < 1e-9, "the whole is itself")
    check(found["kept"] == 3, "half of six heads")
    half, masked = FOLDER / "half", FOLDER / "masked"
    for folder, more in ((half, ()), (masked, ("--mask",))):
        check_good(prune(MODEL, "--text", text, "--fraction", 0.5, "-o", folder, *more), "-o")
        check((folder / "vocab.txt").read_bytes() == (MODEL / "vocab.txt").read_bytes()
              if (MODEL / "vocab.txt").exists() else True, "the tokenizer comes along")
        check_good(run("view", folder, TEXT, "--svg", FOLDER / "x.svg"), f"view {folder.name}")
    precious = FOLDER / "precious"
    precious.write_text("precious")
    names = sorted(path.name for path in half.iterdir())
    for name in names:
        (half / name).unlink()
        (half / name).symlink_to(precious)
    check_good(prune(MODEL, "--text", text, "--fraction", 0.5, "-o", half), "-o with links")
    check(precious.read_bytes() == b"precious", "-o: files outside of the folder are left alone")
    check(sorted(path.name for path in half.iterdir() if not path.is_symlink()) == names,
          "-o: links are replaced")
    check(config_of(half)["model_type"] == "multihead", "BERT has no way to say it")
    shape = ("model_type", "hidden_size", "num_attention_heads", "num_hidden_layers")
    check([config_of(masked)[k] for k in shape] ==
          [json.loads((MODEL / "config.json").read_text())[k] for k in shape], "the old shape")
    silent = [(head["layer"], head["head"]) for head in
              measured(masked, "--text", text, "--measure", "ablation")["heads"]
              if head["importance"] == 0]
    gone = {(head["layer"], head["head"]) for head in found["heads"]} - set(kept(found))
    check(set(silent) == gone, f"masked heads do nothing: {silent}, {gone}")


def shared_keys(model):
    text = FOLDER / "words.txt"
    grouped = FOLDER / "grouped"
    result = prune(model, "--text", text, "--kv-heads", 2, "-o", grouped)
    check_good(result, "--kv-heads 2")
    check(any(line.startswith("loss") for line in result.lines), "the loss before and after")
    check(config_of(grouped)["num_key_value_heads"] == 2, "two key/value heads")
    found = measured(model, "--text", text, "--kv-heads", 1)
    check(found["kv_heads"] == 1 and found["parameters_after"] < found["parameters"], "smaller")
    same = measured(model, "--text", text, "--kv-heads", 4)
    check(same["before"] == same["after"], "four of four changes nothing")
    after = measured(grouped, "--text", text)["curve"][0]["importance"]
    check(after == measured(model, "--text", text, "--kv-heads", 2)["after"], "as was said")


def outputs(model):
    text = FOLDER / "words.txt"
    curve, picture, pdf = FOLDER / "curve.csv", FOLDER / "curve.svg", FOLDER / "curve.pdf"
    report = FOLDER / "report.html"
    result = prune(model, "--text", text, "--csv", curve, "--svg", picture, "--pdf", pdf, "--html", report)
    check_good(result, "--csv --svg --html")
    check(pdf.read_bytes().startswith(b"%PDF"), "--pdf")
    page = report.read_text()
    check(all(word in page for word in ("Removable heads", "mean of 5 random orders",
                                        "heads left", "when removed")), "the report's charts")
    data = json.loads(re.search(r'id="data">(.*?)</script', page, re.S).group(1))
    check([len(c["series"]) for c in data["curves"]] == [3, 3, 1, 1], "series of the charts")
    heads = data["curves"][0]["series"][0]["x"]
    check(heads == sorted(heads) and len(heads) == 9, "heads left, ascending")
    by_heads = {int(row["heads"]): float(row["quality"]) for row in
                csv.DictReader(io.StringIO(curve.read_text())) if row["order"] == "importance"}
    check(all(abs(by_heads[int(x)] - y) < 1e-6 for x, y in
              zip(heads, data["curves"][0]["series"][0]["y"])), "the numbers of the CSV")
    check("nothing was written; -o FOLDER" in result.errors[-1], "what -o would do is said")
    rows = list(csv.DictReader(io.StringIO(curve.read_text())))
    check(len(rows) == 9 * 7 and {row["order"] for row in rows} ==
          {"importance", "reversed"} | {f"random-{i}" for i in range(5)}, "seven orders")
    check(all(0 <= float(row["quality"]) <= 1 for row in rows), "accuracies")
    root = ElementTree.fromstring(picture.read_text())
    check(len(root.findall(".//{*}path[@fill='none']")) == 7 + 3, "seven lines, three of the legend")
    check("href" not in picture.read_text(), "the picture needs nothing else")
    before = sorted(FOLDER.iterdir())
    check_good(prune(model, "--text", text, "-n", "-o", FOLDER / "never"), "--dry-run")
    check(sorted(FOLDER.iterdir()) == before, "--dry-run writes nothing")
    check(not prune(model, "--text", text, "--json", "-", "-q").out.startswith(b"small"), "JSON")


def refusals(model):
    text = FOLDER / "words.txt"
    blank, strange = FOLDER / "blank.txt", FOLDER / "strange.txt"
    blank.write_text(" \n\t\n")
    strange.write_bytes(b"the cat sat\n\xff\xfe\n")
    pair = train("pair", "reverse", "--steps", 1, "--tries", 1)
    for arguments, code, parts in (
            ([], USAGE, None),
            (["--text", text], USAGE, ("MODEL is missing",)),
            ([model], USAGE, ("--text FILE or --task",)),
            ([model, "--text", text, "--task", "ioi"], USAGE, ("--text and --task exclude",)),
            ([model, "more", "--text", text], USAGE, ("one argument too many",)),
            ([model, "--text", text, "--keep", 3, "--stop", 0.5], USAGE, ("exclude each other",)),
            ([model, "--text", text, "--keep", 9], USAGE, ("8 heads",)),
            ([model, "--text", text, "--keep", 1, "--min-per-layer", 1], USAGE, ("at most 6",)),
            ([model, "--text", text, "--fraction", 1.5], USAGE, ("--fraction is 1.5",)),
            ([model, "--text", text, "--stop", "nan"], USAGE, ("--stop",)),
            ([model, "--text", text, "--kv-heads", 3], USAGE, ("divisor",)),
            ([model, "--text", text, "--kv-heads", 2, "--mask"], USAGE, ("--mask",)),
            ([model, "--text", text, "--measure", "guess"], USAGE, ("guess",)),
            ([model, "--task", "sentence"], USAGE, ("sentences",)),
            ([model, "--task", "ioi"], BAD_INPUT, ("train ioi",)),
            ([model, "--text", FOLDER / "none.txt"], NO_INPUT, ("none.txt",)),
            ([model, "--text", blank], BAD_INPUT, ("no line",)),
            ([MODEL, "--text", strange], BAD_INPUT, ("strange.txt: line 2: ", "UTF-8")),
            ([FOLDER / "none", "--text", text], NO_INPUT, ("none",)),
            ([pair, "--text", text], UNSUPPORTED, ("encoder-decoder",)),
            ([pair / "decoder", "--text", text], UNSUPPORTED, ("encoder",)),
            ([model, "--text", text, "-o", model / "no" / "folder", "-q"], NO_OUTPUT, ("folder",)),
            ([model, "--text", text, "-o", text], NO_OUTPUT, ("words.txt", "Not a directory")),
            ([model, "--text", text, "--csv", FOLDER / "no" / "x.csv"], NO_OUTPUT, ("x.csv",)),
            ([model, "--text", text, "--csv", "-", "--json", "-"], USAGE, ("only one",)),
            ([model, "--text", text, "--csv", "a", "--svg", "./a"], USAGE, ("twice",))):
        result = prune(*arguments)
        if parts is None:
            check(result.code == code and b"Examples:" in result.err, "without arguments")
        else:
            check_error(result, code, *parts, command="prune")
    result = prune(model, "--text", text, "-q", "-o", model)
    check_error(result, USAGE, "name another", command="prune")  # without a preceding table
    check(config_of(model)["model_type"] == "llama", "the model is as it was")


def gguf_files():
    """The heads of a GGUF file are measured. -o is rejected before the file is opened as a
    model."""
    sys.path.insert(0, str(ROOT / "tests/fuzz"))
    import seeds
    model, text, broken = FOLDER / "small.gguf", FOLDER / "ab.txt", FOLDER / "broken.gguf"
    model.write_bytes(seeds.gguf_model(fill=seeds.as_floats))
    broken.write_bytes(model.read_bytes()[:99])
    text.write_text("a b ab\n")
    found = measured(model, "--text", text)
    check([(head["layer"], head["head"]) for head in found["heads"]] == [(0, 0), (0, 1)]
          and [point["heads"] for point in found["curve"]] == [2, 1, 0], f"the curve of a GGUF file: {found}")
    for name in (model, broken):
        check_error(prune(name, "--text", text, "-o", FOLDER / "from-gguf"), UNSUPPORTED,
                    f"{name} is a GGUF file", "Hugging Face folder", command="prune")
    check_error(prune(text, "--text", text, "-o", FOLDER / "from-gguf"), NO_INPUT,
                "neither a folder nor a GGUF file", command="prune")
    check(not (FOLDER / "from-gguf").exists(), "nothing is written for a GGUF file")


both_are_needed(train("ioi", "ioi", "--seed", 4))
many = train("many", "sentences", "--steps", 1, "--tries", 1)
many_heads(many)
as_ordinary_llama(many)
encoder()
shared_keys(many)
outputs(many)
refusals(many)
gguf_files()
finish()
