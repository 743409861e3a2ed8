"""Training, heads over texts, and models that are spread, on several ranks, started by mpirun: the model, the scores,
the text and the page of one process, byte by byte; what rank 0 alone says; errors of one rank, told once; ranks that
are killed, and what continues from there with any number of ranks.

Skipped where there is no mpirun or the program has no libmultihead-mpi beside it. MHA_TEST_LONG=1 kills 30 times.
"""
import hashlib
import json
import os
import pathlib
import random
import shutil
import signal
import struct
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from harness import *  # noqa: E402,F403
import mpirun  # noqa: E402

LONG = os.environ.get("MHA_TEST_LONG", "0") not in ("", "0")
SEED = int(os.environ.get("MHA_TEST_SEED", "0")) or random.randrange(1 << 30)
TRAIN = [PROGRAM, "train", "sentences", "--threads", "1", "--no-report", "--steps", "30", "--every", "5", "--tries",
         "1", "-o"]
MOST = 10 if LONG else 600  # seconds until all ranks are gone, where nothing else runs; else it is no hang
chance = random.Random(SEED)


def bits(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def alone(folder, *more):
    return subprocess.run([*TRAIN, folder, *more], capture_output=True, text=True, env=environment())


def ranks(count, program, **more):
    done = mpirun.run(count, program, timeout=1200, **more)
    done.stderr = "\n".join(line for line in done.stderr.splitlines() if line.strip())
    return done


def same_bits(whole):
    for count in (2, 3) if not LONG else (1, 2, 3, 5, 8, 11):
        folder = FOLDER / f"ranks-{count}"
        done = ranks(count, [*TRAIN, folder])
        if check(done.returncode == 0, f"{count} ranks: {done}"):
            check(bits(folder) == bits(whole), f"{count} ranks: other bits")
            check(files(folder) == files(whole), f"{count} ranks: {files(folder)}")
            check(done.stdout.count("Goal missed after 30 steps") == 1, f"{count} ranks: {done.stdout}")
            check(done.stderr.count("step 30/30") == 1, f"{count} ranks: {done.stderr}")


def other_numbers_of_ranks(whole):
    """A training that stops, and continues with more or fewer ranks."""
    folder = FOLDER / "moved"
    alone(folder, "--steps", "10")
    for count, steps in ((3, 20), (2, 25)):
        done = ranks(count, [*TRAIN, folder, "--steps", steps])
        check(done.returncode == 0, f"resumed with {count}: {done}")
    alone(folder)
    check(bits(folder) == bits(whole), "resumed with 1, 3, 2, 1 ranks: other bits")
    reverse = [PROGRAM, "train", "reverse", "--threads", "1", "--no-report", "--every", "4", "--dropout", "0.1",
               "--quiet", "-o"]
    for number, name in ((1, "encoder-1"), (3, "encoder-3")):
        for steps in ("4", "8"):
            more = [*reverse, FOLDER / name, "--steps", steps]
            done = ranks(number, more) if number > 1 else subprocess.run(more, capture_output=True, text=True)
            check(done.returncode == 0, f"reverse, {number} ranks: {done}")
    for part in ("encoder", "decoder"):
        check(bits(FOLDER / "encoder-1" / part) == bits(FOLDER / "encoder-3" / part), f"reverse: another {part}")


def text_of_ranks():
    text = FOLDER / "text.txt"
    text.write_text("the cat sat on the mat , and the dog sat on the log .\n" * 200)
    folders = [FOLDER / "text-1", FOLDER / "text-2"]
    more = [PROGRAM, "train", "--text", text, "--threads", "1", "--no-report", "--quiet", "--steps", "10", "--every",
            "2", "-o"]
    one = subprocess.run([*more, folders[0]], capture_output=True, text=True)
    two = ranks(2, [*more, folders[1]])
    check(one.returncode == two.returncode == 0 and bits(folders[0]) == bits(folders[1]), f"--text: {one} {two}")


def heads():
    """The scores of 200 texts: the JSON and the page of one process, byte by byte."""
    words = "the cat sat on a mat and it was too tired to cross street because dog ran".split()
    texts, few = FOLDER / "texts.txt", FOLDER / "few.txt"
    lines = [" ".join(chance.choices(words, k=chance.randrange(3, 25))) for _ in range(200)]
    texts.write_text("\n".join(lines) + "\n")
    few.write_text("\n".join(lines[:2]) + "\n")
    for text, counts, random_texts in ((texts, (2, 3, 5), 7), (few, (4,), 1)):
        more = [PROGRAM, "heads", MODEL, "--text", text, "--random", random_texts, "--json", "--corpus", "--threads",
                "1", "-q", "-o"]
        whole = subprocess.run(list(map(str, [*more, FOLDER / "one.html"])), capture_output=True, text=True)
        check(whole.returncode == 0, f"heads: {whole.stderr}")
        for count in counts:
            done = ranks(count, [*more, FOLDER / "ranks.html"])
            check(done.returncode == 0 and done.stdout == whole.stdout, f"heads, {count} ranks: {done.stderr}")
            check((FOLDER / "ranks.html").read_bytes() == (FOLDER / "one.html").read_bytes(), f"{count} ranks: the page")
    more = [PROGRAM, "heads", MODEL, "--text", texts, "--random", "0", "--csv", "-q", "--pictures"]
    check(ranks(3, [*more, FOLDER / "three"]).returncode == 0, "heads --pictures, 3 ranks")
    run(*more[1:], FOLDER / "alone")
    drawn = [{path.name: path.read_bytes() for path in (FOLDER / name).glob("*")} for name in ("three", "alone")]
    check(len(drawn[0]) > 10 and drawn[0] == drawn[1], f"pictures of ranks: {sorted(drawn[0])}")
    killed_at_work(3, ["heads", MODEL, "--text", texts, "--random", "10000", "-q"])


def prune(whole):
    """Which heads go, and what the model is worth then: all but how long passes take; and the smaller model."""
    words = "the cat sat on a mat and it was too tired to cross street because dog ran".split()
    texts = FOLDER / "pruned.txt"
    texts.write_text("".join(" ".join(chance.choices(words, k=chance.randrange(3, 25))) + "\n" for _ in range(40)))
    measures = ["gradient", "gradient-token", "ablation", "mean-ablation"]
    rows = [([whole, "--task", "sentences", "--lines", "60", "--measure", measures[i], "--step", "1"], n)
            for i, n in enumerate((2, 3, 5, 2))] + [([MODEL, "--text", texts], 3)]
    for i, (row, count) in enumerate(rows if LONG else chance.sample(rows[:-1], 2) + rows[-1:]):
        told = []
        for name in ("one", "ranks"):
            more = [PROGRAM, "prune", *row, "-q", "--threads", "1", "--json", FOLDER / f"pruned-{name}.json", "-o",
                    FOLDER / f"pruned-{name}-{i}"]
            done = ranks(count if name == "ranks" else 1, more)
            check(done.returncode == 0 and done.stderr == "", f"prune, {row}, {count} ranks: {done}")
            report = (FOLDER / f"pruned-{name}.json").read_text()
            told.append([line for line in report.splitlines() if "seconds" not in line])
        check(len(told[0]) > 10 and told[0] == told[1], f"prune, {row}, {count} ranks: another curve")
        check(bits(FOLDER / f"pruned-one-{i}") == bits(FOLDER / f"pruned-ranks-{i}"), f"prune, {row}: another model")


def large_model(folder):
    """156 MB of a decoder."""
    width, inner, layers, vocabulary = 512, 1408, 12, 512
    shapes = {"model.embed_tokens.weight": (vocabulary, width), "lm_head.weight": (vocabulary, width),
              "model.norm.weight": (width,)}
    for i in range(layers):
        at = f"model.layers.{i}."
        shapes.update({f"{at}self_attn.{name}_proj.weight": (width, width) for name in "qkvo"})
        shapes.update({f"{at}mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")})
        shapes.update({f"{at}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")})
        shapes[f"{at}mlp.down_proj.weight"] = (width, inner)
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    block = struct.pack("<65521f", *(chance.gauss(0, 0.05) for _ in range(65521)))  # a prime: no two rows alike
    folder.mkdir()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for left in range(end, 0, -len(block)):
            file.write(block[:left])
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": width, "hidden_act": "silu",
         "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": 8, "num_key_value_heads": 8,
         "vocab_size": vocabulary, "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
         "tie_word_embeddings": False}))
    return folder


RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
MEASURED = """import os, resource, subprocess, sys
code = subprocess.call(sys.argv[2:], close_fds=False)  # MPICH's ranks inherit a socket
rank = os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ.get("PMI_RANK", "0")
open(sys.argv[1] + rank, "w").write(str(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10))
sys.exit(code)"""


def spread(whole, large):
    """Texts, maps and losses of a model whose layers are spread, also over more ranks than it has."""
    text = FOLDER / "perplexity.txt"
    text.write_text("the animal didn't cross the street because it was too tired . " * 4)
    sampled = ["--ids", "--max-tokens", "100", "--temperature", "1.5", "--seed", "7"]
    measured = ["heads", whole, "--spread", "--text", text, "--cut", "16", "--random", "2"]
    rows = (["generate", large, "1 2 3 4 5", *sampled],
            ["generate", whole, "1 2 3", "--ids", "--max-tokens", "20", "--window", "8", "--cache", "int8"],
            ["view", whole, "the animal didn't cross the street because it was too tired .", "--json", "-"],
            ["view", whole, "the animal was tired .", "--desk", "0", "--json", "-"],
            ["view", whole, "the animal was tired .", "--from", "tired", "--to", "animal", "--json", "-"],
            ["view", whole, "the animal was tired .", "--contrast", "the animal was wide .", "-o", "-"],
            ["view", whole, "the animal was tired .", "-o", "-"],
            ["view", MODEL, "The cat sat.", "It slept.", "--npy", FOLDER / "maps.npy", "--json", "-"],
            ["perplexity", whole, "--text", text, "--json"],
            [*measured, "--json", "--corpus", "--composition", "--circuits", "--without", "L0H1"],
            [*measured, "-o", "-"])
    for i, row in enumerate(rows):
        program = [PROGRAM, *row, "-q", "--threads", "1"]
        one = subprocess.run(list(map(str, program)), capture_output=True, text=True)
        check(one.returncode == 0 and one.stdout, f"{row}: {one.stderr}")
        few = [chance.choice((2, 3)), 5]
        for count in (2, 3, 5) if i == 0 or LONG else few[i % 2:][:1] if row[0] == "heads" else few:
            done = ranks(count, program)
            check(done.returncode == 0 and steady(done.stdout) == steady(one.stdout),
                  f"{row}, {count} ranks: exit {done.returncode}, {differs(one.stdout, done.stdout)}: {done.stderr}")


def differs(one, many):
    pairs = zip(steady(one).splitlines(), steady(many).splitlines())
    first = next((f"'{a[:200]}' and '{b[:200]}'" for a, b in pairs if a != b), "the end")
    return f"{len(one)} and {len(many)} characters, {first}"


def steady(text):
    """Without times, which two runs differ in."""
    return "\n".join(line for line in text.splitlines() if "second" not in line)


def memory_of_ranks(large):
    """A rank has the weights of its layers: a quarter of 156 MB, and what every process has."""
    for row in (["generate", large, "1 2", "--ids", "--max-tokens", "2"],
                ["heads", large, "the animal was tired .", "--spread", "--random", "0"]):
        most = {}
        for count in (1, 4):
            name = FOLDER / f"memory-{row[0]}-{count}-"
            done = ranks(count, [sys.executable, "-c", MEASURED, name, PROGRAM, *row, "-q", "--threads", "1"])
            check(done.returncode == 0, f"memory: {done.stderr}")
            most[count] = max(int(path.read_text()) for path in FOLDER.glob(name.name + "*"))
        print(f"{row[0]}: MiB of one process {most[1]}, of each of 4 ranks at most {most[4]}")
        check(most[1] > 150 and most[4] < most[1] / 4 + 40, f"memory: {row[0]} {most}")


def files_that_differ(large):
    """Rank 1 finds another file under the same name."""
    for rank in "012":
        (FOLDER / f"files-{rank}").mkdir()
        (FOLDER / f"files-{rank}/m").symlink_to(large)
    other = FOLDER / "files-1/m"
    other.unlink()
    shutil.copytree(large, other)
    there = ["sh", "-c", f'cd "{FOLDER}/files-{RANK}"; exec "$0" "$@"', os.path.abspath(PROGRAM)]

    def refused(code, line, command="generate", *more):
        done = ranks(3, [*there, command, "m", *(more or ("1 2", "--ids"))])
        said = [text for text in done.stderr.splitlines() if text.startswith("multihead")]
        check(done.returncode == code and len(said) == 1 and said[0].startswith(f"multihead: {command}: rank 1: {line}"),
              f"{line}: {done.returncode} {done.stderr}")

    weights = other / "model.safetensors"
    with open(weights, "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.truncate(file.tell() - 5)
    refused(4, "m/model.safetensors: ")
    refused(4, "m/model.safetensors: ", "heads", "the animal .", "--spread")
    weights.unlink()
    refused(3, "m/model.safetensors: no such file")
    shutil.rmtree(other)
    shutil.copytree(FOLDER / "whole", other)
    refused(2, "has another model than rank 0")


def killed_while_spread(large):
    for row in (["generate", large, "1 2", "--ids", "--max-tokens", "8000"],
                ["heads", large, "--spread", "--random", "10000"]):
        killed_at_work(3, [*row, "-q"])


def refusals():
    """(ranks, what is started, exit code, the only line on stderr)."""
    one_differs = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 1 ]; then exec "$0" "$@" --seed 7; else exec "$0" "$@"; fi'
    no_memory = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" = 2 ]; then ulimit -v 800000; fi; exec "$0" "$@"'
    large = [PROGRAM, "train", "sentences", "--threads", "1", "--steps", "5", "--batch", "8", "--embed", "1024",
             "--layers", "6", "--quiet", "--no-report"]
    rows = (
        (3, [PROGRAM, "explain", MODEL], 2, "explain: started on 3 ranks, but this subcommand runs on one"),
        (2, [PROGRAM, "prune", MODEL, "--text", FOLDER / "none.txt"], 3, "prune: "),
        (2, [PROGRAM, "prune", MODEL, "--text", FOLDER / "text.txt", "-o", MODEL], 2, "prune: -o "),
        (2, [PROGRAM, "train", "sentenced"], 2, "train: unknown task 'sentenced'; did you mean 'sentences'?"),
        (2, [PROGRAM, "train", "sentences", "-o", "/proc/none"], 6, "train: rank 0: /proc/none: cannot make"),
        (2, ["sh", "-c", one_differs, *TRAIN[:-1]], 2, "rank 1: has another command line than rank 0"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--clusters", "0.2"], 2, "heads: --clusters runs on one rank"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--spread", "--state", FOLDER / "s"], 2, "heads: --state takes one"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--state", "/proc/none/s"], 6, "heads: rank 0: /proc/none/s: cannot"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--spread", "--ablate", "zero"], 2, "heads: --ablate takes one process"),
        (2, [PROGRAM, "heads", MODEL, "--text", FOLDER / "none.txt"], 3, "heads: "),
        (3, ["sh", "-c", no_memory, *large], 7, "train: rank 2: "))
    for count, program, code, line in rows:
        done = ranks(count, program)
        said = [text for text in done.stderr.splitlines() if text.startswith("multihead")]
        check(done.returncode == code, f"{line}: exit {done.returncode}: {done.stderr}")
        check(len(said) == 1 and said[0].startswith(f"multihead: {line}"), f"{line}: {done.stderr}")
        check(done.stdout == "", f"{line}: {done.stdout}")
    done = ranks(2, TRAIN[:-1], MHA_MPI_LIBRARY="/nowhere/libmultihead-mpi.so")
    check(done.returncode == 5 and done.stderr.count("MHA_MPI_LIBRARY") in (1, 2), f"no library: {done}")
    done = ranks(2, [PROGRAM, "--version"])
    check(done.stdout.count("multihead") == 1, f"--version: {done}")


def texts_that_differ():
    """Each rank in a folder of its own, where another text is, or none: all are told soon, and which rank it is."""
    here = 'cd "$0/own${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" && exec "$@"'
    lines = [f"the cat sat on mat {n} .\n" for n in range(30)]
    heads = [PROGRAM, "heads", MODEL, "--text", "t.txt", "--json", "-q", "--random", "0"]
    prune = [PROGRAM, "prune", MODEL, "--text", "t.txt", "-q"]
    other = "has another text or model than rank 0"
    for program, texts, line in (
            (heads, (lines, lines[:7], lines), f"heads: rank 1: {other}"),
            ([*heads, "--state", "s", "--save-every", "0"], (lines[:7], lines, lines), f"heads: rank 1: {other}"),
            ([*heads, "--state", "s"], (lines, lines, [*lines[:9], "a dog .\n", *lines[10:]]), f"heads: rank 2: {other}"),
            (prune, (lines, lines, [*lines[:9], "the dog sat on mat 9 .\n", *lines[10:]]), "prune: rank 2: has another"),
            (prune, (None, lines, lines), "prune: "), (prune, (lines, lines, None), "prune: rank 2: t.txt"),
            (heads, (None, lines, lines), "heads: "), (heads, (lines, None, lines), "heads: rank 1: t.txt")):
        for rank, text in enumerate(texts):
            folder = FOLDER / f"own{rank}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if text:
                (folder / "t.txt").write_text("".join(text))
        done = ranks(3, ["sh", "-c", here, FOLDER, *program], MHA_MPI_DEADLINE="600")
        said = [text for text in done.stderr.splitlines() if text.startswith("multihead")]
        check(done.returncode not in (0, 8) and len(said) == 1 and said[0].startswith(f"multihead: {line}"),
              f"{line}: exit {done.returncode}: {done.stderr}")


def children(process):
    """Processes of the program below a launcher."""
    found, todo = [], [process]
    while todo:
        for path in pathlib.Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                below = [int(number) for number in path.read_text().split()]
            except OSError:
                continue
            todo += below
            found += below
    return [number for number in found if is_program(number)]


def is_program(number):
    try:
        return os.path.realpath(f"/proc/{number}/exe") == os.path.realpath(PROGRAM)
    except OSError:
        return False


def all_started(running, count):
    """The ranks, once there are so many, or none where the work ends before; launchers need seconds on some machines."""
    while running.poll() is None:
        if len(found := children(running.pid)) == count:
            return found
        time.sleep(0.005)
    return []


def killed_at_work(count, row):
    """Work that is too long to end: a rank is killed, and all are gone soon."""
    running = mpirun.start(count, [PROGRAM, *row])
    found = all_started(running, count)
    if check(found, f"{row[0]} ended: exit {running.poll()}"):
        time.sleep(chance.uniform(0, 2))
        check(running.poll() is None, f"{row[0]} ended: exit {running.poll()}")
        os.kill(chance.choice(found), signal.SIGKILL)
    begun = time.monotonic()
    running.communicate(timeout=1200)
    check(running.returncode != 0 and time.monotonic() - begun < MOST, f"{row[0]}: a rank that is killed ends all")
    check(not [number for number in found if is_program(number)], f"{row[0]}: a rank is left")


def kill_one(name, count, program, latest, after=None):
    """A rank is killed at a random moment, or soon after a file is there, if the work is not over before: all are gone
    soon. The launcher's exit status, what it printed, and whether one was killed."""
    running = mpirun.start(count, program)
    all_started(running, count)
    while after and not after.exists() and running.poll() is None:
        time.sleep(0.005)
    begun = time.monotonic()
    until = begun + chance.uniform(0, latest)
    while time.monotonic() < until and running.poll() is None:
        time.sleep(0.02)
    found = children(running.pid)
    was_running = running.poll() is None and found
    if was_running:
        os.kill(chance.choice(found), signal.SIGKILL)
        begun = time.monotonic()
    try:
        printed, _ = running.communicate(timeout=1200)
    except subprocess.TimeoutExpired:
        check(False, f"{name}: a hang")
        os.killpg(running.pid, signal.SIGKILL)
        printed, _ = running.communicate()
    check(time.monotonic() - begun < MOST or not found, f"{name}: {time.monotonic() - begun:.1f} s")
    check(not [number for number in found if is_program(number)], f"{name}: a rank is left")
    return running.returncode, printed, bool(was_running)


def killed(whole, times):
    """What is there is whole, and goes on."""
    folder, done, ended = FOLDER / "killed-0", 0, 0
    while done < times:
        code, _, hit = kill_one(f"kill {done}", chance.choice((2, 3)), [*TRAIN, folder, "--quiet"], 2.5)
        done += hit
        if code == 0:  # it was over before
            check(bits(folder) == bits(whole), f"after {done} kills: other bits")
            ended += 1
            folder = FOLDER / f"killed-{ended}"
    last = ranks(chance.choice((1, 2, 3)), [*TRAIN, folder])
    check(last.returncode == 0 and bits(folder) == bits(whole), f"after {done} kills: {last}")
    print(f"{done} kills, {ended + 1} trainings")


def heads_that_are_killed(times):
    """With --state, measured on by any number of ranks, to the bytes of one process that never stopped."""
    words = "the cat sat on a mat and it was too tired to cross street because dog ran".split()
    text, state = FOLDER / "measured.txt", FOLDER / "measured.state"
    text.write_text("".join(" ".join(chance.choices(words, k=chance.randrange(3, 60))) + "\n" for _ in range(400)))
    more = [PROGRAM, "heads", MODEL, "--text", text, "--random", "40", "--json", "--corpus", "-q", "--threads", "1"]
    whole = subprocess.run(list(map(str, [*more, "--state", FOLDER / "whole.state"])), capture_output=True, text=True)
    done = ended = taken = 0
    while (done < times or ended == 0 or taken == 0) and ended < 40:
        program = [*more, "--state", state, "--save-every", chance.choice(("0", "0", "1"))]
        # The first kill waits for the first save, so that there is work to take up.
        taken += state.exists()
        if done < times or taken == 0:
            first = [0.2, state] if taken == 0 else [2]
            code, printed, hit = kill_one(f"heads, kill {done}", chance.choice((2, 3, 5)), program, *first)
        else:
            last = ranks(chance.choice((1, 2, 4)), program)
            code, printed, hit = last.returncode, last.stdout, False
        done += hit
        if hit:
            continue
        check(leftovers() == [], f"heads, after {done} kills: {leftovers()}")
        check(code == 0 and printed == whole.stdout, f"heads, after {done} kills: exit {code}, another result")
        check(state.read_bytes() == (FOLDER / "whole.state").read_bytes(), f"heads, after {done} kills: another state")
        state.unlink()
        ended += 1
    print(f"{done} kills of heads, taken up {taken} times, {ended} results")


def stopped_by_a_signal(whole):
    """SIGTERM to one rank: all stop after the same step, and rank 0 saves."""
    folder = FOLDER / "stopped"
    running = mpirun.start(2, [*TRAIN, folder, "--steps", "100000", "--every", "100000"])
    while not (folder / "training.safetensors").exists() and running.poll() is None:
        time.sleep(0.02)
    os.kill(max(children(running.pid)), signal.SIGTERM)
    _, errors = running.communicate(timeout=1200)
    check("interrupted after step" in errors, f"SIGTERM: {errors}")


def main():
    why = mpirun.missing()
    library = pathlib.Path(PROGRAM).parent / "libmultihead-mpi.so.0"
    if why or not library.exists():
        print(f"skipped: {why or f'there is no {library}'}")
        return 77
    whole = FOLDER / "whole"
    alone(whole)
    same_bits(whole)
    other_numbers_of_ranks(whole)
    text_of_ranks()
    heads()
    prune(whole)
    large = large_model(FOLDER / "large")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(whole / name, large)
    spread(whole, large)
    memory_of_ranks(large)
    files_that_differ(large)
    killed_while_spread(large)
    refusals()
    texts_that_differ()
    stopped_by_a_signal(whole)
    killed(whole, 30 if LONG else 3)
    heads_that_are_killed(30 if LONG else 4)
    print(f"seed {SEED}")
    return finish()


if __name__ == "__main__":
    sys.exit(main())
