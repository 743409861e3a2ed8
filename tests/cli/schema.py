"""docs/schema.json is the JSON Schema of the program's JSON output, and the objects of this test
must match it. --update generates it from these objects."""
import json
import shutil
import struct
import sys
import zlib

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

FILE = ROOT / "docs" / "schema.json"
# The data name these members. Their values share one schema.
NAMED = {"measures", "scores", "places", "relations", "estimate", "direct", "effect", "interaction", "distributions",
         "luck"}
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


def picture(path):
    """A grey PNG of 4 x 4 pixels."""
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(b"\0\0\x50\xa0\xf0" * 4)) + chunk(b"IEND", b""))
    return path


def write_vit(folder):
    """A vision transformer without weights: one layer of two heads, 2 x 2 patches."""
    layer, sizes = "encoder.layer.0.", {"attention.output.dense": [4, 4], "intermediate.dense": [8, 4], "output.dense": [4, 8]}
    sizes |= {f"attention.attention.{name}": [4, 4] for name in ("query", "key", "value")}
    shapes = {"embeddings.cls_token": [1, 1, 4], "embeddings.position_embeddings": [1, 5, 4],
              "embeddings.patch_embeddings.projection.weight": [4, 3, 2, 2], "embeddings.patch_embeddings.projection.bias": [4]}
    for name, shape in sizes.items():
        shapes |= {f"{layer}{name}.weight": shape, f"{layer}{name}.bias": shape[:1]}
    for norm in f"{layer}layernorm_before", f"{layer}layernorm_after", "layernorm":
        shapes |= {f"{norm}.weight": [4], f"{norm}.bias": [4]}
    write_weights(folder, shapes)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "vit", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
        "image_size": 4, "patch_size": 2}))
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "image_processor_type": "ViTImageProcessor", "size": {"height": 4, "width": 4}, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3}))
    return folder


def write_t5(folder):
    """An encoder-decoder without weights, and with the special tokens of MODEL."""
    shapes = {"shared.weight": [len((MODEL / "vocab.txt").read_text().splitlines()), 4]}
    for side, blocks in ("encoder", ["SelfAttention", ""]), ("decoder", ["SelfAttention", "EncDecAttention", ""]):
        shapes[f"{side}.final_layer_norm.weight"] = [4]
        shapes[f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = [32, 2]
        for number, block in enumerate(blocks):
            layer = f"{side}.block.0.layer.{number}."
            shapes[f"{layer}layer_norm.weight"] = [4]
            shapes |= {f"{layer}{block}.{name}.weight": [4, 4] for name in "qkvo" if block}
            shapes |= {f"{layer}DenseReluDense.{name}.weight": shape for name, shape in (("wi", [8, 4]), ("wo", [4, 8]))
                       if not block}
    write_weights(folder, shapes)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "t5", "vocab_size": shapes["shared.weight"][0], "d_model": 4, "d_kv": 2, "d_ff": 8, "num_layers": 1,
        "num_heads": 2, "decoder_start_token_id": 0, "pad_token_id": 0, "eos_token_id": 1}))
    for name in "vocab.txt", "tokenizer_config.json":
        shutil.copy(MODEL / name, folder)
    return folder


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
    yield "view", written("view", write_t5(FOLDER / "t5"), TEXT, TEXT, "--json", "-")
    vit, image = write_vit(FOLDER / "vit"), picture(FOLDER / "a.png")
    yield "view", written("view", vit, "--image", image, "--json", "-")
    for more in (), ("--corpus",):
        yield "heads", written("heads", vit, "--image", image, "--json", *more)
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
