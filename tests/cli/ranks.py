"""Training, heads over texts, and spread models on several ranks.

Model, scores, text and page are byte-identical to those of one process, only rank 0 prints, and
errors of one rank are reported once. Further tests are for killed ranks and resumption with any
number of ranks.

Ranks are processes that sockets connect (tests/support/socket_ranks.py); tests/mpi/program.py runs
some cases with mpirun. The seed selects the message at which a rank is killed. MHA_TEST_LONG=1 uses
full samples and kills 60 times. Under a sanitizer, samples are smaller, and memory is neither
measured nor limited.
"""
import hashlib
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import struct
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
from harness import *  # noqa: E402,F403
from socket_ranks import run as ranks  # noqa: E402

LONG = os.environ.get("MHA_TEST_LONG", "0") not in ("", "0")
SEED = int(os.environ.get("MHA_TEST_SEED", "0")) or random.randrange(1 << 30)
SANITIZED = os.environ.get("MHA_SANITIZE", "") != ""
STEPS, EVERY = (30, 5) if LONG else (6, 2) if SANITIZED else (12, 3)
TRAIN = [PROGRAM, "train", "sentences", "--threads", "1", "--no-report", "--steps", STEPS, "--every", EVERY, "--tries",
         "1", *(["--batch", "4", "--embed", "16"] if SANITIZED else []), "-o"]
SIGNALS = (signal.SIGKILL, signal.SIGTERM)
LOST = 8  # the exit status of ranks that lost a peer
chance = random.Random(SEED)


def bits(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def one(program):
    """Run the command in one process."""
    return subprocess.run([*map(str, program)], capture_output=True, text=True, env=environment(), cwd=ROOT,
                          stdin=subprocess.DEVNULL)


def random_texts(name, count, most):
    words = "the cat sat on a mat and it was too tired to cross street because dog ran".split()
    path = FOLDER / name
    path.write_text("".join(" ".join(chance.choices(words, k=chance.randrange(3, most))) + "\n" for _ in range(count)))
    return path


def killed(name, count, program, messages, earliest=0.0, number=signal.SIGKILL):
    """Signal a rank at one of its messages, after the fraction `earliest` of `messages`, the number
    in an undisturbed run. The signal ends the rank. Each of the others exits by itself: it reports
    the lost rank, or has finished without it."""
    rank = chance.randrange(count)
    k = chance.randint(1 + int(earliest * messages[rank]), messages[rank])
    done = ranks(count, program, signalled=(rank, k, number))
    if -number not in done.codes:
        return done  # the run resumed a saved state and finished before the signal
    name = f"{name}, rank {rank} of {count} ended by {number.name} at message {k} of {messages[rank]}"
    lost = [r for r, code in enumerate(done.codes) if code == LOST]
    check(done.codes[rank] == -number and set(done.codes) <= {0, LOST, -number}, f"{name}: {done}")
    said = [re.match(r"multihead: (?:\w+: )?rank (\d+): rank \d+ is lost: ", line) for line in done.stderr.splitlines()
            if line.startswith("multihead")]
    check(all(said) and sorted(int(match[1]) for match in said) == lost, f"{name}: {done}")
    check(not lost or f": rank {rank} is lost: " in done.stderr, f"{name}: nobody names it: {done}")
    return done


def same_bits(whole):
    """The numbers of messages for each number of ranks."""
    messages = {}
    for count in (1, 2, 3, 5, 8, 11) if LONG else (2,) if SANITIZED else (2, 3):
        folder = FOLDER / f"ranks-{count}"
        done = ranks(count, [*TRAIN, folder])
        messages[count] = done.messages
        if check(done.returncode == 0, f"{count} ranks: {done}"):
            check(bits(folder) == bits(whole), f"{count} ranks: other bits")
            check(files(folder) == files(whole), f"{count} ranks: {files(folder)}")
            check(done.stdout.count(f"Goal missed after {STEPS} steps") == 1, f"{count} ranks: {done.stdout}")
            check(done.stderr.count(f"step {STEPS}/{STEPS}") == 1, f"{count} ranks: {done.stderr}")
    return messages


def other_numbers_of_ranks(whole):
    """A training that stops and resumes with more or fewer ranks."""
    folder = FOLDER / "moved"
    one([*TRAIN, folder, "--steps", STEPS // 3])
    for count, steps in ((3, STEPS * 2 // 3), (2, STEPS * 5 // 6)):
        done = ranks(count, [*TRAIN, folder, "--steps", steps])
        check(done.returncode == 0, f"resumed with {count}: {done}")
    one([*TRAIN, folder])
    check(bits(folder) == bits(whole), "resumed with 1, 3, 2, 1 ranks: other bits")
    reverse = [PROGRAM, "train", "reverse", "--threads", "1", "--no-report", "--every", "4", "--dropout", "0.1",
               "--quiet", "-o"]
    for number, name in ((1, "encoder-1"), (3, "encoder-3")):
        for steps in ("4", "8") if LONG else ("4", "6"):
            done = ranks(number, [*reverse, FOLDER / name, "--steps", steps])
            check(done.returncode == 0, f"reverse, {number} ranks: {done}")
    for part in ("encoder", "decoder"):
        check(bits(FOLDER / "encoder-1" / part) == bits(FOLDER / "encoder-3" / part), f"reverse: another {part}")


def text_of_ranks():
    text = FOLDER / "text.txt"
    text.write_text("the cat sat on the mat , and the dog sat on the log .\n" * 200)
    folders = [FOLDER / "text-1", FOLDER / "text-2"]
    more = [PROGRAM, "train", "--text", text, "--mixer", "gdn,attention", "--threads", "1", "--no-report", "--quiet",
            "--steps", "10" if LONG else "4", "--every", "2", "-o"]
    single, two = one([*more, folders[0]]), ranks(2, [*more, folders[1]])
    check(single.returncode == two.returncode == 0 and bits(folders[0]) == bits(folders[1]), f"--text: {single} {two}")


def heads():
    """Scores of texts: JSON and page are byte-identical to one process."""
    texts, few = random_texts("texts.txt", 200 if LONG else 20 if SANITIZED else 60, 25), random_texts("few.txt", 2, 25)
    for text, counts, random_texts_too in ((texts, (2, 3, 5) if LONG else (2, 5), 7), (few, (4,), 1)):
        more = [PROGRAM, "heads", MODEL, "--text", text, "--random", random_texts_too, "--json", "--corpus", "--threads",
                "1", "-q", "-o"]
        whole = one([*more, FOLDER / "one.html"])
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
    killed_at_work(3, [PROGRAM, "heads", MODEL, "--text", few, "--random", "9", "-q"], SIGNALS * 2)


def killed_at_work(count, program, numbers=(signal.SIGKILL,) * 2):
    """Commands that save nothing; each signal ends them."""
    whole = ranks(count, program)
    check(whole.returncode == 0, f"{program[1]}: {whole}")
    for number in numbers * (20 if LONG else 1):
        done = killed(program[1], count, program, whole.messages, number=number)
        check(-number in done.codes, f"{program[1]}: {number.name} ended no rank: {done}")


def prune(whole):
    """The removed heads and the model's quality, without times of passes, and the smaller model."""
    texts = random_texts("pruned.txt", 40 if LONG else 10, 25)
    measures = ["gradient", "gradient-token", "ablation", "mean-ablation"]
    lines = "60" if LONG else "12"
    rows = [([whole, "--task", "sentences", "--lines", lines, "--measure", measures[i], "--step", "1"], n)
            for i, n in enumerate((2, 3, 5, 2))] + [([MODEL, "--text", texts], 3)]
    for i, (row, count) in enumerate(rows if LONG else chance.sample(rows[:-1], 1 if SANITIZED else 2) + rows[-1:]):
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
    killed_at_work(3, [PROGRAM, "prune", MODEL, "--text", FOLDER / "few.txt", "-q"], SIGNALS * 2)


def decoder(folder, width):
    """A model of 12 layers: 156 MB at width 512."""
    inner, layers, vocabulary = width * 11 // 4, 12, 512
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
    block = struct.pack("<65521f", *(chance.gauss(0, 0.05) for _ in range(65521)))  # a prime: no two rows are equal
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


def spread(whole, deep):
    """Texts, maps and losses of a model whose layers are spread, also over more ranks than layers."""
    text = FOLDER / "perplexity.txt"
    text.write_text("the animal didn't cross the street because it was too tired . " * 4)
    sampled = ["--ids", "--max-tokens", "100", "--temperature", "1.5", "--seed", "7"]
    measured = ["heads", whole, "--spread", "--text", text, "--cut", "16", "--random", "2"]
    rows = (["generate", deep, "1 2 3 4 5", *sampled],
            ["generate", whole, "1 2 3", "--ids", "--max-tokens", "20", "--window", "8", "--cache", "int8"],
            ["view", whole, "the animal didn't cross the street because it was too tired .", "--json", "-"],
            ["view", whole, "the animal was tired .", "--desk", "0", "--json", "-"],
            ["view", whole, "the animal was tired .", "--from", "tired", "--to", "animal", "--json", "-"],
            ["view", whole, "the animal was tired .", "--contrast", "the animal was wide .", "-o", "-"],
            ["view", whole, "the animal was tired .", "-o", "-"],
            ["view", MODEL, "The cat sat.", "It slept.", "--npy", FOLDER / "maps.npy", "--json", "-"],
            ["perplexity", whole, "--text", text, "--json"],
            [*measured, "--json", "--corpus", "--without", "L0H1"],
            ["circuits", whole, "--composition", "--json"],
            [*measured, "-o", "-"])
    for i, row in enumerate(rows):
        program = [PROGRAM, *row, "-q", "--threads", "1"]
        single = one(program)
        check(single.returncode == 0 and single.stdout, f"{row}: {single.stderr}")
        few = [chance.choice((2, 3)), 5]
        for count in (2, 3, 5) if LONG else few if i == 0 else few[(SEED + i) % 2:][:1]:
            done = ranks(count, program)
            check(done.returncode == 0 and steady(done.stdout) == steady(single.stdout),
                  f"{row}, {count} ranks: exit {done.returncode}, {differs(single.stdout, done.stdout)}: {done.stderr}")


def differs(single, many):
    pairs = zip(steady(single).splitlines(), steady(many).splitlines())
    first = next((f"'{a[:200]}' and '{b[:200]}'" for a, b in pairs if a != b), "the end")
    return f"{len(single)} and {len(many)} characters, {first}"


def steady(text):
    """The output without times, which differ between runs."""
    return "\n".join(line for line in text.splitlines() if "second" not in line)


def memory_of_ranks(large):
    """A rank has the weights of its layers: a quarter of 156 MB, plus the base of every process."""
    for row in (["generate", large, "1 2", "--ids", "--max-tokens", "2"],
                ["heads", large, "the animal was tired .", "--spread", "--random", "0"]):
        most = {}
        for count in (1, 4):
            done = ranks(count, [PROGRAM, *row, "-q", "--threads", "1"])
            check(done.returncode == 0, f"memory: {done.stderr}")
            most[count] = max(done.peaks)
        print(f"{row[0]}: MiB of one process {most[1]}, of each of 4 ranks at most {most[4]}")
        check(most[1] > 150 and most[4] < most[1] / 4 + 40, f"memory: {row[0]} {most}")


def files_that_differ(deep):
    """Rank 1 has a different file with the same name."""
    for rank in "012":
        (FOLDER / f"files-{rank}").mkdir()
        (FOLDER / f"files-{rank}/m").symlink_to(deep)
    other = FOLDER / "files-1/m"
    other.unlink()
    shutil.copytree(deep, other)
    there = ["sh", "-c", f'cd "{FOLDER}/files-$OMPI_COMM_WORLD_RANK"; exec "$0" "$@"', os.path.abspath(PROGRAM)]

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
    refused(2, "m: has another configuration than at rank 0")


def killed_while_spread(deep):
    for row in (["generate", deep, "1 2", "--ids", "--max-tokens", "8"],
                ["heads", deep, "--spread", "--random", "1"]):
        killed_at_work(3, [PROGRAM, *row, "-q"])


def refusals():
    """(ranks, command, exit code, the only line on stderr)."""
    one_differs = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ]; then exec "$0" "$@" --seed 7; else exec "$0" "$@"; fi'
    # With a limit of 100 MB, the creation of the model fails; with 200 MB, the training fails.
    no_memory = 'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then ulimit -v {}; fi; exec "$0" "$@"'
    large = [PROGRAM, "train", "sentences", "--threads", "1", "--steps", "5", "--batch", "3", "--embed", "256",
             "--layers", "4", "--quiet", "--no-report"]
    rows = (
        (3, [PROGRAM, "explain", MODEL], 2, "explain: started on 3 ranks, but this subcommand runs on one"),
        (2, [PROGRAM, "prune", MODEL, "--text", FOLDER / "none.txt"], 3, "prune: "),
        (2, [PROGRAM, "prune", MODEL, "--text", FOLDER / "text.txt", "-o", MODEL], 2, "prune: -o "),
        (2, [PROGRAM, "train", "sentenced"], 2, "train: unknown task 'sentenced'; did you mean 'sentences'?"),
        (2, [PROGRAM, "train", "sentences", "-o", "/proc/none"], 6, "train: rank 0: /proc/none: cannot create"),
        (2, ["sh", "-c", one_differs, *TRAIN[:-1]], 2, "rank 1: has another command line than rank 0"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--clusters", "0.2"], 2, "heads: --clusters runs on one rank"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--spread", "--state", FOLDER / "s"], 2, "heads: --spread and --state exclude"),
        (2, [PROGRAM, "heads", MODEL, "a text", "--state", "/proc/none/s"], 6, "heads: rank 0: /proc/none/s: cannot"),
        (2, [PROGRAM, "ablate", MODEL, "a text"], 2, "ablate: started on 2 ranks, but this subcommand runs on one"),
        (2, [PROGRAM, "heads", MODEL, "--text", FOLDER / "none.txt"], 3, "heads: "),
        *((3, ["sh", "-c", no_memory.format(kilobytes), *large], 7, "train: rank 2: ")
          for kilobytes in ([] if SANITIZED else [100000, 200000])))
    for count, program, code, line in rows:
        done = ranks(count, program)
        said = [text for text in done.stderr.splitlines() if text.startswith("multihead")]
        check(done.returncode == code, f"{line}: exit {done.returncode}: {done.stderr}")
        check(len(said) == 1 and said[0].startswith(f"multihead: {line}"), f"{line}: {done.stderr}")
        check(done.stdout == "", f"{line}: {done.stdout}")
    done = ranks(2, TRAIN[:-1], MHA_MPI_LIBRARY="/nowhere/libmultihead-mpi.so")
    check(done.returncode == 5 and done.stderr.count("MHA_MPI_LIBRARY") == 1, f"no library: {done}")
    done = ranks(2, [PROGRAM, "--version"])
    check(done.stdout.count("multihead") == 1, f"--version: {done}")
    done = ranks(2, TRAIN[:-1], OMPI_COMM_WORLD_SIZE="3")
    check(done.codes == [5, 5] and "started 3 ranks, but sockets of a test sees 2" in done.stderr, f"launcher: {done}")


def texts_that_differ():
    """Each rank has its own folder with a different text or none. All ranks soon report the error
    and its rank."""
    here = 'cd "$0/own$OMPI_COMM_WORLD_RANK" && exec "$@"'
    lines = [f"the cat sat on mat {n} .\n" for n in range(30)]
    heads = [PROGRAM, "heads", MODEL, "--text", "t.txt", "--json", "-q", "--random", "0"]
    prune = [PROGRAM, "prune", MODEL, "--text", "t.txt", "-q"]
    other = "has another text than rank 0"
    for program, texts, line in (
            (heads, (lines, lines[:7], lines), f"heads: rank 1: {other}"),
            ([*heads, "--state", "s", "--save-every", "0"], (lines[:7], lines, lines), f"heads: rank 1: {other}"),
            ([*heads, "--state", "s"], (lines, lines, [*lines[:9], "a dog .\n", *lines[10:]]), f"heads: rank 2: {other}"),
            (prune, (lines, lines, [*lines[:9], "the dog sat on mat 9 .\n", *lines[10:]]), f"prune: rank 2: {other}"),
            (prune, (None, lines, lines), "prune: "), (prune, (lines, lines, None), "prune: rank 2: t.txt"),
            (heads, (None, lines, lines), "heads: "), (heads, (lines, None, lines), "heads: rank 1: t.txt")):
        for rank, text in enumerate(texts):
            folder = FOLDER / f"own{rank}"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if text:
                (folder / "t.txt").write_text("".join(text))
        done = ranks(3, ["sh", "-c", here, FOLDER, *program])
        said = [text for text in done.stderr.splitlines() if text.startswith("multihead")]
        check(done.returncode not in (0, 8) and len(said) == 1 and said[0].startswith(f"multihead: {line}"),
              f"{line}: exit {done.returncode}: {done.stderr}")


def trainings_that_are_killed(whole, messages, times):
    """The saved state is complete and can be resumed."""
    folder, done, ended = FOLDER / "killed-0", 0, 0
    while done < times:
        count = chance.choice([number for number in messages if number > 1])
        end = killed("train", count, [*TRAIN, folder, "--quiet"], messages[count])
        done += end.returncode != 0
        if end.returncode == 0:  # finished before the signal
            check(bits(folder) == bits(whole), f"after {done} kills: other bits")
            ended += 1
            folder = FOLDER / f"killed-{ended}"
    last = ranks(chance.choice((1, 2, 3)), [*TRAIN, folder])
    check(last.returncode == 0 and bits(folder) == bits(whole), f"after {done} kills: {last}")
    print(f"{done} kills, {ended + 1} trainings")


def heads_that_are_killed(times):
    """A state that is resumed with any number of ranks is byte-identical to one uninterrupted
    process."""
    text, state = random_texts("measured.txt", 400 if LONG else 20 if SANITIZED else 60, 60), FOLDER / "measured.state"
    more = [PROGRAM, "heads", MODEL, "--text", text, "--random", "40" if LONG else "2" if SANITIZED else "6", "--json", "--corpus", "-q",
            "--threads", "1"]
    whole = one([*more, "--state", FOLDER / "whole.state"])
    messages = {}
    for count in (2, 3, 5):
        messages[count] = ranks(count, [*more, "--state", FOLDER / f"{count}.state", "--save-every", "0"]).messages
    done = ended = taken = 0
    while done < times or ended == 0 or taken == 0:
        program = [*more, "--state", state, "--save-every", "0"]
        taken += state.exists()
        if done < times or taken == 0:
            count = chance.choice((2, 3, 5))
            end = killed("heads", count, program, messages[count], earliest=0 if taken else 0.5)
        else:
            end = ranks(chance.choice((1, 2, 4)), program)
        done += -signal.SIGKILL in end.codes
        if -signal.SIGKILL in end.codes:
            continue
        check(leftovers() == [], f"heads, after {done} kills: {leftovers()}")
        check(end.returncode == 0 and end.stdout == whole.stdout, f"heads, after {done} kills: {end}")
        check(state.read_bytes() == (FOLDER / "whole.state").read_bytes(), f"heads, after {done} kills: another state")
        state.unlink()
        ended += 1
    print(f"{done} kills of heads, taken up {taken} times, {ended} results")


def stopped_by_a_signal(whole, messages):
    """After SIGTERM to one rank, all ranks stop after the same step, rank 0 saves, and the training
    can be resumed."""
    folder, rank = FOLDER / "stopped", chance.randrange(2)
    k = chance.randint(messages[2][rank] // 3, messages[2][rank] * 2 // 3)
    done = ranks(2, [*TRAIN, folder], signalled=(rank, k, signal.SIGTERM))
    check(done.stderr.count("interrupted after step") == 1, f"SIGTERM to rank {rank} at message {k}: {done}")
    check((folder / "training.safetensors").exists(), f"SIGTERM: {files(folder)}")
    done = ranks(3, [*TRAIN, folder])
    check(done.returncode == 0 and bits(folder) == bits(whole), f"after SIGTERM: {done}")


def main():
    parts = {}

    def part(function, *arguments):
        before = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        result = function(*arguments)
        after = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        parts[function.__name__] = after - before
        return result

    print(f"seed {SEED}", flush=True)
    whole = FOLDER / "whole"
    one([*TRAIN, whole])
    messages = part(same_bits, whole)
    part(other_numbers_of_ranks, whole)
    part(text_of_ranks)
    part(heads)
    part(prune, whole)
    deep = part(decoder, FOLDER / "deep", 64)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(whole / name, deep)
    part(spread, whole, deep)
    if not SANITIZED:
        large = decoder(FOLDER / "large", 512)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(whole / name, large)
        part(memory_of_ranks, large)
        shutil.rmtree(large)
    part(files_that_differ, deep)
    part(killed_while_spread, deep)
    part(refusals)
    part(texts_that_differ)
    part(stopped_by_a_signal, whole, messages)
    part(trainings_that_are_killed, whole, messages, 30 if LONG else 2 if SANITIZED else 3)
    part(heads_that_are_killed, 30 if LONG else 2 if SANITIZED else 4)
    print("processor seconds:", ", ".join(f"{name} {seconds:.1f}" for name, seconds in parts.items()))
    return finish()


if __name__ == "__main__":
    sys.exit(main())
