"""Models with routed experts in every subcommand: f32, int8 and bf16 arithmetic, weights in f32 and in blocks of 8
bits, several ranks, which print the bytes of one process, saved states; and the subcommands that reject such models
by name.

Ranks are processes joined by sockets (tests/support/socket_ranks.py).
"""
import pathlib
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from harness import *  # noqa: E402,F403
sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
import seeds  # noqa: E402
from socket_ranks import run as ranks  # noqa: E402

UNSUPPORTED = 5
chance = seeded()
WORDS = "a b b a b a a b " * 5


def numbers(size, kind):
    """Weights near 0.3. A block of 8 bits stores multiples of 1 / 200."""
    if kind == "F32":
        return b"".join(struct.pack("<f", chance.gauss(0, 0.3)) for _ in range(size // 4))
    return b"".join(struct.pack("<e32b", 0.005, *(chance.randrange(-100, 101) for _ in range(32)))
                    for _ in range(size // 34))


def write(name, kind, blocks, **more):
    path = FOLDER / name
    path.write_bytes(seeds.gguf_model(kind, blocks, 32, numbers, layers=3, experts=5, context_length=64, **more))
    return path


def out_of(*command):
    done = run(*command, "--threads", 1, "--quiet")
    check(done.code == 0, f"{command}: {done.errors}")
    return done.out.decode()


def loss(model, compute):
    return json.loads(out_of("perplexity", model, "--text", TEXT_FILE, "--compute", compute, "--json"))["loss"]


def arithmetic(plain, coded):
    """Rounding changes little; it depends on neither threads nor steps."""
    for model in (plain, coded):
        exact = loss(model, "f32")
        for compute in ("int8", "bf16"):
            if (model, compute) == (plain, "int8"):
                done = run("perplexity", model, "--text", TEXT_FILE, "--compute", compute)
                check(done.code == UNSUPPORTED and "no weight is stored in blocks" in done.errors[-1], f"{done.errors}")
                continue
            rounded = loss(model, compute)
            check(rounded != exact and abs(rounded - exact) < 0.05 * exact, f"{model} {compute}: {rounded}, {exact}")
        parts = {steady(out_of("perplexity", model, "--text", TEXT_FILE, "--compute", "bf16", "--json", "--chunk", size))
                 for size in (1, 7)}
        check(len(parts) == 1, f"{model}: other losses in other steps")


def on_ranks(model, computes):
    """Every rank prints nothing or the bytes of one process."""
    commands = [["view", model, "a b b a", "--json", "-"], ["view", model, "a b b a", "--experts"],
                ["heads", model, "--text", TEXT_FILE, "--random", 0, "--json"],
                ["heads", model, "--text", TEXT_FILE, "--random", 0, "--json", "--spread"]]
    commands += [[name, model, *more, "--compute", compute] for compute in computes for name, more in (
        ("perplexity", ["--text", TEXT_FILE, "--json"]), ("generate", ["a b", "--max-tokens", 9]))]
    for command in commands:
        command = [*map(str, command), "--threads", "1", "--quiet"]
        alone = run(*[part for part in command if part != "--spread"])
        for count in (2, 5):
            done = ranks(count, [PROGRAM, *command])
            check(done.returncode == 0, f"{count} ranks, {command}: {done}")
            check(steady(done.stdout) == steady(alone.out.decode()), f"{count} ranks, {command}: another output")


def steady(text):
    """Without times and speeds."""
    return re.sub(r'"(seconds|tokens_per_second)": [0-9.e+-]+', "", text)


def saved(model):
    state = FOLDER / f"{model.name}.state"
    more = ["heads", model, "--text", TEXT_FILE, "--random", 0, "--json"]
    whole = out_of(*more)
    check(out_of(*more, "--state", state) == whole == out_of(*more, "--state", state), "heads --state: another output")
    for command in (["ablate", model, "--text", TEXT_FILE, "--random", 0, "--pairs", 0], ["circuits", model],
                    ["explain", model]):
        out_of(*command)


def convolutions():
    """A model whose first two layers are short convolutions; the first is dense, the others have 3 experts."""
    table = {"attn_norm": (4,), "ffn_norm": (4,)}
    convolution = {"shortconv.conv": (3, 4), "shortconv.in_proj": (4, 12), "shortconv.out_proj": (4, 4)}
    attention = {"attn_q": (4, 4), "attn_k": (4, 2), "attn_v": (4, 2), "attn_output": (4, 4), "attn_q_norm": (2,),
                 "attn_k_norm": (2,)}
    dense = {"ffn_gate": (4, 6), "ffn_up": (4, 6), "ffn_down": (6, 4)}
    sparse = {name: shape for name, (_, shape) in seeds.experts_of("F32", 4, 3, False, False).items()}
    layers = [{**table, **convolution, **dense}, {**table, **convolution, **sparse}, {**table, **attention, **sparse}]
    tensors = [("token_embd_norm.weight", "F32", (4,)), ("token_embd.weight", "F32", (4, 5))]
    for i, layer in enumerate(layers):
        tensors += [(f"blk.{i}.{name}.weight", "F32", shape) for name, shape in layer.items()]
        tensors += [(f"blk.{i}.exp_probs_b.bias", "F32", (3,))] if "ffn_gate_inp" in layer else []
    sizes = {"block_count": 3, "context_length": 8, "embedding_length": 4, "feed_forward_length": 6,
             "attention.head_count": 2, "attention.head_count_kv": [0, 0, 1], "shortconv.l_cache": 3, "expert_count": 3,
             "expert_used_count": 2, "expert_feed_forward_length": 32, "leading_dense_block_count": 1,
             "expert_gating_func": 2, "vocab_size": 5}
    keys = [("general.architecture", "string", "lfm2moe")]
    keys += [(f"lfm2moe.{key}", "u32", value) for key, value in sizes.items()]
    keys += [("lfm2moe.attention.layer_norm_rms_epsilon", "f32", 1e-5), ("lfm2moe.rope.freq_base", "f32", 1e4),
             ("tokenizer.ggml.model", "string", "gpt2"), ("tokenizer.ggml.pre", "string", "smollm"),
             ("tokenizer.ggml.tokens", "string", ["<s>", "a", "b", "\u0120", "\u0120b"]),
             ("tokenizer.ggml.token_type", "i32", [3, 1, 1, 1, 1]), ("tokenizer.ggml.merges", "string", ["\u0120 b"]),
             ("tokenizer.ggml.bos_token_id", "u32", 0), ("tokenizer.ggml.add_bos_token", "bool", 1)]
    path = FOLDER / "convolutions.gguf"
    path.write_bytes(seeds.gguf(tensors, keys, fill=numbers))
    return path


def without_heads(model):
    """Layers without heads have experts too."""
    def tables(*more):
        done = run("view", model, "a b", "--experts", *more)
        check(done.code == 0 and not any("next:" in line for line in done.errors), f"--experts {more}: {done.errors}")
        return [line.split(":")[0] for line in done.out.decode().splitlines() if line.startswith("layer")]

    for more, layers in (([], [1, 2]), (["--layer", "1"], [1]), (["--layer", "0-1"], [1]), (["--layer", "1-2"], [1, 2]),
                         (["--head", "L2H1"], [2])):
        shown = tables(*more)
        check(shown == [f"layer {i}" for i in layers], f"--experts {more}: {shown}")
    done = run("view", model, "a b", "--experts", "--layer", "0")
    check(done.code == 2 and "the selected layers have no experts" in done.errors[-1], f"{done.code}: {done.errors}")
    done = run("view", model, "a b", "--experts", "--terminal")
    check(done.code == 2 and "--experts" in done.errors[-1] and "--terminal" in done.errors[-1], f"{done.errors}")


def rejected(model):
    for command in (["prune", model, "--text", TEXT_FILE], ["prune", model, "--text", TEXT_FILE, "--keep", 2]):
        done = run(*command)
        check(done.code == UNSUPPORTED and "layer 0 has routed experts" in done.errors[-1], f"{command}: {done.errors}")


TEXT_FILE = FOLDER / "text.txt"
TEXT_FILE.write_text((WORDS + "\n") * 8)
PLAIN, CODED = write("plain.gguf", "qwen3moe", "F32", together=True), write("coded.gguf", "granitemoe", "Q8_0", shared=True)
arithmetic(PLAIN, CODED)
on_ranks(PLAIN, ("f32", "bf16"))
on_ranks(CODED, ("f32", "int8", "bf16"))
saved(PLAIN)
saved(CODED)
rejected(CODED)
without_heads(convolutions())
finish()
