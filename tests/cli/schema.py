"""docs/schema.json is the JSON Schema of the program's JSON output, and the objects of this test
must match it. --update generates it from these objects."""
import json
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

FILE = ROOT / "docs" / "schema.json"
# The data name these members. Their values share one schema.
NAMED = {"measures", "scores", "relations", "estimate", "direct", "effect", "interaction", "distributions", "luck"}
# Members that depend on the machine.
UNKNOWN = ("processor", "microarchitecture", "processor_id", "l2_bytes", "peak_gflops", "peak_bf16_gflops", "bandwidth_gbs",
           "percent_of_peak", "percent_of_roofline", "best_percent_of_roofline", "peak_gflops_beside", "bandwidth_gbs_beside",
           "older_median_seconds", "quiet_probe_seconds")
QUICK = ("--seconds", "0.01", "--patience", "0.01", "--samples", "1", "--threads", "1", "--json", "-q")
GOLD = ("1\tThe\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tcat\t_\t_\t_\t_\t3\tnsubj\t_\t_\n"
        "3\tsat\t_\t_\t_\t_\t0\troot\t_\t_\n\n")
TRAIN = ("train sentences --layers 2 --heads 2 --embed 16 --steps 4 --every 4 --tries 1 --no-report -q -o").split()
LINES = ["the animal didn't cross the street because it was too tired .",
         "the animal didn't cross the street because it was too wide ."]


def schema_of(value, name=""):
    if isinstance(value, dict):
        if name in NAMED:
            return {"type": "object", "additionalProperties": merge_all(schema_of(each) for each in value.values())}
        return {"type": "object", "properties": {key: schema_of(each, key) for key, each in value.items()},
                "required": sorted(value)}
    if isinstance(value, list):
        return {"type": "array", "items": merge_all(schema_of(each) for each in value)}
    return {"type": {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null"}[type(value)]}


def merge_all(schemas):
    merged = {}
    for schema in schemas:
        merged = merge(merged, schema)
    return merged


def types_of(schema):
    kind = schema.get("type", [])
    return {kind} if isinstance(kind, str) else set(kind)


def merge(a, b):
    """The narrowest schema that both match: an integer is a number, and a member that one lacks is
    not required."""
    if not a or not b:
        return a or b
    types = types_of(a) | types_of(b)
    if "number" in types:
        types.discard("integer")
    merged = {"type": sorted(types) if len(types) > 1 else types.pop()}
    for key in ("items", "additionalProperties"):
        if key in a or key in b:
            merged[key] = merge(a.get(key, {}), b.get(key, {}))
    objects = [each for each in (a, b) if "properties" in each]
    if objects:
        names = [name for each in objects for name in each["properties"]]
        merged["properties"] = {name: merge_all(each["properties"].get(name, {}) for each in objects)
                                for name in dict.fromkeys(names)}
        merged["required"] = sorted(set.intersection(*(set(each["required"]) for each in objects)))
    return merged


def written(*arguments):
    result = run(*arguments)
    check_good(result, str(arguments))
    return json.loads(result.out)


def lines_of(schema, indent=0):
    """JSON with short values on one line."""
    short = json.dumps(schema)
    if len(short) + indent <= 110 or not isinstance(schema, dict):
        return short
    rows = [f'{" " * indent} {json.dumps(key)}: {lines_of(each, indent + 1)}' for key, each in schema.items()]
    return "{\n" + ",\n".join(rows) + "\n" + " " * indent + "}"


def objects():
    """(name, object) of every kind of JSON."""
    demo, lines = FOLDER / "demo", FOLDER / "lines.txt"
    lines.write_text("\n".join(LINES) + "\n")
    check_good(run(*TRAIN, demo), "train")
    for model, text, other, pair in (MODEL, TEXT, "The dog sat on the mat", ("cat", "mat")), (demo, *LINES, ("it", "animal")):
        yield "view", written("view", model, text, "--json", "-")
        yield "view", written("view", model, text, "--contrast", other, "--json", "-")
        yield "ask", written("view", model, text, "--from", pair[0], "--to", pair[1], "--json", "-")
        yield "desk", written("view", model, text, "--desk", 0, "--json", "-")
        yield "heads", written("heads", model, text, "--json", "--corpus", "--clusters", "0.2")
        yield "heads", written("heads", model, text, other, "--json", "--random", 0)
        yield "circuits", written("circuits", model, "--composition", "--json")
        yield "count", written("count", model, "--json")
        yield "explain", written("explain", model, "--json", "--threads", 1, "--isa", "portable")
    pairs, both = FOLDER / "pairs.tsv", FOLDER / "reverse"
    check_good(run("train", "reverse", *TRAIN[2:], both), "train reverse")
    pairs.write_text("a b c\tc b a\nb a\n")
    for more in (), ("--self",):
        yield "view", written("view", both, "a b c", "c b a", *more, "--json", "-")
        yield "heads", written("heads", both, "--text", pairs, *more, "--json", "--corpus")
    yield "ablate", written("ablate", demo, "--text", lines, "--json")
    yield "perplexity", written("perplexity", demo, "--text", lines, "--json")
    yield "prune", written("prune", demo, "--text", lines, "--json", "-")
    yield "prune", written("prune", demo, "--text", lines, "--kv-heads", 1, "--json", "-")
    gold = FOLDER / "gold.conllu"
    gold.write_text(GOLD)
    yield "heads", written("heads", MODEL, "--conllu", gold, "--without", "L0H0", "--json")
    yield "count", written("count", "--embed", 64, "--heads", 4, "--json")
    yield "run", written("run", "--example", "--out", FOLDER / "o.npy", "--json", "-")
    older = FOLDER / "older.json"
    for work in ("gemm", "--rows", 1, "--outputs", 64, "--inputs", 64), ("forward", "--heads", 1, "--length", 64):
        bench = written("bench", *work, *QUICK)
        older.write_text(json.dumps(bench))
        yield "bench", bench
        yield "bench", {name: None if name in UNKNOWN else value for name, value in bench.items()}
        yield "bench", written("bench", *work, "--compare", older, *QUICK)


def main():
    made = {}
    for name, value in objects():
        made[name] = merge(made.get(name, {}), schema_of(value))
    if "--update" in sys.argv:
        whole = {"$schema": "https://json-schema.org/draft/2020-12/schema",
                 "title": "JSON that the program multihead writes, by subcommand", "$defs": made}
        FILE.write_text(lines_of(whole) + "\n")
        return
    kept = json.loads(FILE.read_text())["$defs"]
    check(kept.keys() == made.keys(), f"{sorted(kept)} against {sorted(made)}")
    for name, schema in made.items():
        check(merge(kept[name], schema) == kept[name], f"{name}: not as docs/schema.json says; run this test with --update")


main()
finish()
