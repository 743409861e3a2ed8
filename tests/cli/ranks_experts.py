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
finish()
