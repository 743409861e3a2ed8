"""multihead train: output and saved files, the same model from the same seed with any number of
threads, resumption after Ctrl-C and kills, and bad input."""
import json
import os
import pathlib
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import operations, watched  # noqa: E402

chance = seeded()


def train(*arguments, **changes):
    return subprocess.run([PROGRAM, "train", *arguments], capture_output=True, text=True,
                          timeout=HANGS, env=environment(**changes))


def tensors(path):
    """Header and bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__")
    body = data[8 + length:]
    return metadata, {name: body[slice(*entry["data_offsets"])] for name, entry in header.items()}


def learned(folder):
    """Data that must not depend on interruptions: the step, the attempt and every number."""
    metadata, found = tensors(folder / "training.safetensors")
    return metadata["step"], metadata["try"], metadata["done"], found


def quick(folder, *more):
    """A short training."""
    return train("ioi", "--seed", "4", "--no-report", "-o", str(folder), *more)


def reaches_goal(folder):
    result = train("ioi", "--seed", "2", "-o", str(folder))
    check(result.returncode == 0, f"ioi: exit {result.returncode}: {result.stderr}")
    check("Goal reached after" in result.stdout, "ioi: the goal is not reached")
    check("Right on held-out data: 100.0 %" in result.stdout, "ioi: not all sequences are right")
    check("without it" in result.stdout, "ioi: no ablation")
    names = {path.name for path in folder.iterdir()}
    check({"training.safetensors", "curve.csv", "report.html", "config.json", "model.safetensors",
           "tokenizer.json"} <= names, f"ioi: kept {names}")
    curve = (folder / "curve.csv").read_text().splitlines()
    check(curve[0] == "step,loss,right,right_kind_0,right_kind_1,right_kind_2,best_head,"
          "held_out_loss",
          "curve.csv: its head")
    check(float(curve[-1].split(",")[2]) == 1, "curve.csv: its last line")
    check("step" in result.stderr and "tokens/s" in result.stderr, "no progress on stderr")
    check(train("ioi", "--quiet", "--no-report").stderr == "", "--quiet: something on stderr")


def same_bits(folder):
    results = []
    few = ["--tries", "1", "--steps", "60"]
    for threads in (1, 2, 3):
        target = folder / f"threads{threads}"
        quick(target, "--threads", str(threads), *few)
        results.append(learned(target))
    check(results[0] == results[1] == results[2], "another model with another number of threads")
    wide = []  # AVX2 and AVX-512, if the machine has both
    for isa in ("avx2", "avx512"):
        target = folder / isa
        if train("ioi", "--seed", "4", "--no-report", "-o", str(target), *few,
                 MHA_ISA=isa).returncode == 0:
            wide.append(learned(target))
    check(all(one == wide[0] for one in wide), "another model on AVX2 than on AVX-512")
    other = folder / "other"
    train("ioi", "--seed", "5", "--no-report", "-o", str(other), *few)
    check(learned(other) != results[0], "another seed gives the same model")


def goes_on_after(number, folder, tries):
    """A training that is interrupted repeatedly at file operations and then completed is
    bit-identical to an undisturbed run."""
    task = ["induction", "--steps", "45", "--every", "5", "--no-report", "--embed", "16", "--batch", "2"]
    whole, log = folder / "whole", FOLDER / "log"
    check(train(*task, "-o", str(whole), **watched(log=log)).returncode == 0, "the undisturbed run fails")
    count = len(operations(log))
    for i in range(tries):
        target = folder / f"stopped{i}"
        for _ in range(3):
            result = train(*task, "-o", str(target), **watched(file=chance.randint(3, count // 2), signal=number))
            check(result.returncode in (0, -number), f"{number.name}: exit {result.returncode}: {result.stderr}")
            state = target / "training.safetensors"
            check(not state.exists() or tensors(state)[0]["task"] == "induction", "half a state of training")
        result = train(*task, "-o", str(target))
        check(result.returncode == 0, f"going on fails: {result.stderr}")
        check(learned(target) == learned(whole), "going on ends in other bits")
        rest = [path.name for path in target.iterdir() if path.name.endswith(".part")]
        check(not rest, f"left behind: {rest}")


def pictures(folder):
    """Curve and snapshots survive kills and do not affect the training."""
    task = ["ioi", "--steps", "60", "--every", "2", "--tries", "1"]
    train(*task, "--no-report", "-o", str(folder / "bare"))
    log = folder / "log"
    result = train(*task, "-o", str(folder / "whole"), **watched(log=log))
    check(result.returncode == 0, f"pictures: {result.stderr}")
    count = len(operations(log))
    for number in chance.sample(range(count // 6, count + 1), 5 if LONG else 1):
        target = folder / f"stopped{number}"
        train(*task, "-o", str(target), **watched(file=number))
        train(*task, "-o", str(target))
        check(learned(target) == learned(folder / "whole"), f"killed at operation {number}: curve or snapshots are others")
    _, found = tensors(folder / "whole" / "training.safetensors")
    _, bare = tensors(folder / "bare" / "training.safetensors")
    steps = struct.unpack(f"<{len(found['frame_steps']) // 8}d", found["frame_steps"])
    # 31 snapshots exceed the limit: every second one was removed once
    check(steps == tuple(range(0, 61, 4)), f"snapshots: {steps}")
    check("frames" not in bare and all(found[name] == bare[name] for name in bare),
          "snapshots change what is learned")
    rows = (folder / "whole" / "curve.csv").read_text().splitlines()
    page = (folder / "whole" / "report.html").read_text()
    check(len(rows) == 31 and page.count('"label":"step ') == 16, "report: its snapshots")
    for word in ('"title":"Loss"', '"held out"', '"without it"', '"timeline":1'):
        check(word in page, f"report: no {word}")


def bad_input(folder):
    kept = folder / "kept"
    quick(kept)
    state = (kept / "training.safetensors").read_bytes()
    cases = [
        ([], 2, "Usage"),
        (["sentence"], 2, "did you mean 'sentences'"),
        (["sentences", "ioi"], 2, "-o ioi writes there"),
        (["ioi", "--heads", "3"], 2, "a divisor of the width"),
        (["ioi", "--learning-rate", "7"], 2, "--learning-rate is 7"),
        (["ioi", "--layers", "0"], 2, "--layers"),
        (["ioi", "--dropout", "1.5"], 2, "--dropout is 1.5"),
        (["ioi", "-o", str(kept), "--seed", "4", "--dropout", "0.5"], 4, "other settings"),
        (["sentences", "--heads", "5"], 2, "a divisor of the width 64"),
        (["ioi", "-o", str(folder / "no" / "where")], 6, "cannot create the folder"),
        (["ioi", "-o", str(kept / "curve.csv")], 6, "not a folder"),
        (["ioi", "-o", str(kept)], 4, "begun with --seed 4"),
        (["induction", "-o", str(kept), "--seed", "4"], 4, "a training of 'ioi'"),
        (["ioi", "-o", str(kept), "--seed", "4", "--embed", "32"], 4, "other settings"),
        (["ioi", "--mixer", "gdn"], 2, "the goal of the task ioi is for attention"),
        (["induction", "--mixer", "gdn,mamba"], 2, "expected up to 12 of attention, gdn, mamba2,"),
        *((["induction", "--mixer", mixers], 2, "expected up to 12") for mixers in ("gdn,,gdn", "gdn,", ",gdn")),
        (["induction", "--mixer", "gdn," * 12 + "gdn"], 2, "expected up to 12"),
        (["induction", "--mixer", "gdn,attention", "--layers", "3"], 2, "2 mixers for 3 layers"),
    ]
    for arguments, code, word in cases:
        result = train(*arguments)
        text = result.stderr
        check(result.returncode == code, f"{arguments}: exit {result.returncode}, not {code}: {text}")
        check(word in text, f"{arguments}: no '{word}' in: {text}")
    for cut in (0, 7, 100, len(state) // 2, len(state) - 1):
        (kept / "training.safetensors").write_bytes(state[:cut])
        result = train("ioi", "-o", str(kept), "--seed", "4")
        check(result.returncode in (3, 4), f"a state cut at {cut}: exit {result.returncode}")
        check("training.safetensors" in result.stderr and "--fresh" in result.stderr,
              f"a state cut at {cut}: {result.stderr}")
    generator = random.Random(1)
    for _ in range(200 if LONG else 40):
        broken = bytearray(state)
        for _ in range(generator.randrange(1, 4)):
            broken[generator.randrange(min(len(broken), 700))] = generator.randrange(256)
        (kept / "training.safetensors").write_bytes(broken)
        result = train("ioi", "-o", str(kept), "--seed", "4", "--no-report")
        check(result.returncode in (0, 3, 4), f"a damaged state: exit {result.returncode}")
    (kept / "training.safetensors").write_bytes(b"no training")
    check(quick(kept, "--fresh").returncode == 0, "--fresh: does not begin anew")


def links(folder):
    """Links in the folder to any file or subfolder are replaced, and nothing outside changes."""
    outside = folder / "outside"
    outside.mkdir(parents=True)
    for task, subfolders in (("ioi", [""]), ("reverse", ["encoder", "decoder"])):
        target = folder / task
        command = [task, "--steps", "4", "--every", "2", "--tries", "1", "-o", str(target)]
        check(train(*command).returncode == 0, f"links, {task}")
        names = sorted(path.relative_to(target) for path in target.rglob("*") if path.is_file())
        check(len(names) > 6, f"links: {names}")
        for name in names:
            (target / name).unlink()
            (target / name).symlink_to(outside / name.name)
            (outside / name.name).write_text("precious")
        if task == "reverse":  # also a subfolder
            for path in (target / "encoder").iterdir():
                path.unlink()
            (target / "encoder").rmdir()
            (target / "encoder").symlink_to(outside)
        kept = {path: path.read_bytes() for path in outside.iterdir()}
        result = train(*command, "--fresh")
        check(result.returncode == 0, f"links, {task}: {result.stderr}")
        check({path: path.read_bytes() for path in outside.iterdir()} == kept,
              f"links, {task}: written outside of the folder")
        check(not any(path.is_symlink() for path in target.rglob("*")), f"links, {task}: are left")
        check(all((target / name).is_file() for name in names), f"links, {task}: files are missing")
    state = folder / "ioi" / "training.safetensors"
    state.unlink()
    state.symlink_to("training.safetensors")  # a link loop, which must not be overwritten
    result = quick(folder / "ioi", "--steps", "2")
    check(result.returncode == 3 and "training.safetensors" in result.stderr and state.is_symlink(),
          f"a state that cannot be looked at: exit {result.returncode}: {result.stderr}")
    (folder / "alias").symlink_to(folder / "ioi")  # the folder itself may be a link
    check(quick(folder / "alias", "--fresh", "--steps", "2").returncode == 0 and
          (folder / "alias").is_symlink(), "links: the folder itself")


def shared_memory(folder):
    """A folder below /dev is an ordinary folder, in which an existing training can be resumed."""
    place = pathlib.Path("/dev/shm")
    if not os.access(place, os.W_OK):
        return
    with tempfile.TemporaryDirectory(prefix="multihead-train-", dir=place) as other:
        few = ["ioi", "--every", "1", "--tries", "1", "--no-report", "-o"]
        for more in (["8"], ["4", "--fresh"], ["8"]):  # long, shorter, resumed
            result = train(*few, other + "/t", "--steps", *more)
            check(result.returncode == 0, f"/dev/shm: {result.stderr}")
        check(train(*few, str(folder), "--steps", "8").returncode == 0, "beside /dev/shm")
        check(learned(pathlib.Path(other) / "t") == learned(folder), "/dev/shm: other bits")


def full_disk(folder):
    """The disk is full for the state, or for the longer report after it. The error names train."""
    def limit(size):
        def before():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        return before
    task = ["ioi", "--steps", "4", "--every", "2", "--tries", "1", "--quiet", "-o"]
    check(train(*task, str(folder / "roomy")).returncode == 0, "full disk: with room")
    sizes = {path.name: path.stat().st_size for path in (folder / "roomy").iterdir()}
    report = sizes.pop("report.html")
    check(max(sizes.values()) + 1 < report, f"full disk: the report is the longest of {sizes}")
    for size, name in ((1000, "training.safetensors"), (max(sizes.values()) + 1, "report.html")):
        target = folder / name
        result = subprocess.run([PROGRAM, "train", *task, str(target)], capture_output=True,
                                text=True, timeout=HANGS, env=environment(),
                                preexec_fn=limit(size))
        text = result.stderr
        check(result.returncode == 6, f"full disk, {name}: exit {result.returncode}: {text}")
        check(text.startswith("multihead: train: ") and f"/{name}: cannot write: File too large"
              in text and len(text.splitlines()) == 1, f"full disk, {name}: {text}")
        left = {path.name for path in target.iterdir()}
        check(name not in left and not any(".part" in one for one in left), f"full disk: {left}")
    if os.path.exists("/dev/full"):
        result = train("ioi", "--steps", "2", "--tries", "1", "-o", "/dev/full")
        check(result.returncode == 6 and "multihead: train: /dev/full: exists and is not a folder"
              in result.stderr, f"/dev/full: {result.stderr}")


def fewer_steps(folder):
    """A resumption with fewer steps than the completed ones is reported in any state of the
    training."""
    task = ["induction", "--embed", "16", "--batch", "4", "--every", "5", "--no-report",
            "-o", str(folder)]
    train(*task, "--steps", "15")
    result = train(*task, "--steps", "10")
    check(result.returncode == 2 and "already at step 15" in result.stderr,
          f"fewer steps: exit {result.returncode}: {result.stderr}")
    check(train(*task, "--steps", "15").returncode == 0, "as many steps as were done")


def hybrids(folder):
    """With mixers other than attention, threads and interruptions change no bit, and other commands
    open the model."""
    task = ["induction", "--mixer", "gdn,attention", "--every", "2", "--embed", "16", "--batch", "4", "-o"]
    whole, parts = folder / "whole", folder / "parts"
    result = train(*task, str(whole), "--steps", "6", "--threads", "1")
    check(result.returncode == 0 and "  goal:     98.5 % of the repeats\n" in result.stdout, f"hybrids: {result}")
    for steps in ("2", "6"):
        check(train(*task, str(parts), "--steps", steps, "--threads", "3").returncode == 0, f"hybrids, {steps} steps")
    check(learned(parts) == learned(whole), "hybrids: resuming with 3 threads ends in other bits")
    result = train("induction", "--mixer", "gdn", *task[3:], str(whole), "--steps", "6")
    check(result.returncode == 4 and "begun with other settings" in result.stderr and
          "mixer gdn,attention" in result.stderr, f"hybrids: {result}")
    spaces = train("induction", "--mixer", "mamba2,attention", *task[3:-1], "--steps", "2", "-o", str(folder / "spaces"))
    check(spaces.returncode == 0, f"hybrids: {spaces}")
    text = " ".join("abcdefgh" * 3)
    for command, more in (("view", ["--layer", "0", "--npy", str(folder / "maps.npy")]), ("heads", ["--json"]),
                          ("ablate", ["--json", "--random", "2", "--paths", "L1H0.k,L1H1.q", "--task", "TASK"])):
        if command == "ablate":
            (folder / "task").write_text("a b c d e a b\t c\t d\ta d c b e a b\n")
            more[-1] = str(folder / "task")
        else:
            more = [text, *more]
        result = subprocess.run([PROGRAM, command, str(whole), *more], capture_output=True, text=True, timeout=HANGS,
                                env=environment())
        check(result.returncode == 0 and ("--json" not in more or json.loads(result.stdout)),
              f"hybrids: {command}: {result.stderr}")
    result = subprocess.run([PROGRAM, "prune", str(whole), "--text", str(folder / "task")], capture_output=True, text=True,
                            timeout=HANGS, env=environment())
    check(result.returncode != 0 and "layer 0 is a gated delta net" in result.stderr, f"hybrids: prune: {result}")


def new_tasks():
    """Agreement and brackets: a few steps and their output."""
    for name, kinds, words in (("agreement", "(none", ("fixed offset", "fixed position")),
                               ("brackets", "(near", ("last bracket opened", "fixed offset"))):
        result = train(name, "--steps", "4", "--every", "2", "--embed", "16", "--batch", "4",
                       "--layers", "1", "--heads", "1", "--tries", "1", "--dropout", "0.1",
                       "--seconds", "9999")
        check(result.returncode == 0, f"{name}: exit {result.returncode}: {result.stderr}")
        for word in (kinds, "Goal missed", "\n  goal:     ", "\n  reached:  ", "on the right tokens",
                     "largest weight is on a right token", *words):
            check(word in result.stdout, f"{name}: no '{word}' in: {result.stdout}")


def goal_and_reached():
    """The reached value is printed with the goal, and equals the last evaluation's."""
    result = train("induction", "--steps", "2", "--every", "1", "--batch", "4", "--layers", "2",
                   "--heads", "2", "--tries", "1", "--embed", "16")
    last = re.findall(r"right (\d+\.\d) %", result.stderr)
    check(result.returncode == 0 and last and
          "  goal:     98.5 % of the repeats" in result.stdout and
          f"  reached:  {last[-1]} %" in result.stdout, f"{result.stdout} {result.stderr}")
    check("Without the least important head:" in result.stdout and "the 1 least" not in result.stdout,
          f"one head is switched off: {result.stdout}")


def not_finite(folder):
    """Diverging numbers end the training with an error, and it does not continue with NaN."""
    task = ["ioi", "--tries", "1", "--no-report", "-o", str(folder)]
    train(*task, "--steps", "10")
    path = folder / "training.safetensors"
    state = path.read_bytes()
    _, found = tensors(path)
    spoiled = struct.pack("<f", float("nan")) * (len(found["parameters"]) // 4)
    path.write_bytes(state.replace(found["parameters"], spoiled))
    result = train(*task, "--steps", "20")
    check(result.returncode == 4 and "not finite after step 11" in result.stderr,
          f"NaN: exit {result.returncode}: {result.stderr}")


def interrupted(folder):
    """After Ctrl-C, the training is saved, and the program ends by the signal."""
    state, task = folder / "training.safetensors", ["induction", "--every", "5", "--fresh", "--embed", "16",
                                                    "--batch", "2", "-o", str(folder)]

    def ends(what, first, code, out, err):
        check(code == -signal.SIGINT, f"{what}: exit {code}")
        check("Goal" not in out and "interrupted after step" in err, f"{what}: {out} {err}")
        check(first <= int(tensors(state)[0]["step"]), f"{what}: nothing is saved")

    for first, number in ((0, 7), (5, 9)):  # after the file of step 0, and during the next one
        result = train(*task, "--steps", "60", **watched(file=number, signal=signal.SIGINT))
        ends(f"Ctrl-C at operation {number}", first, result.returncode, result.stdout, result.stderr)
    # Ctrl-C during computation. The training learns nothing, so that it does not finish by itself.
    with subprocess.Popen([PROGRAM, "train", *task, "--steps", "1000000000", "--learning-rate", "1e-9"], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as running:
        said = [running.stderr.readline() for _ in range(2)]
        running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=HANGS)
    ends(f"Ctrl-C after {said}", 5, running.returncode, out, err)


def on_terminals():
    """One redrawn line with a bar if the terminal supports it; otherwise one line per evaluation."""
    arguments = ["train", "ioi", "--steps", "4", "--every", "2", "--embed", "16", "--tries", "1",
                 "--no-report"]
    for term, drawn in (("xterm-256color", True), ("dumb", False), (None, False)):
        code, output = on_terminal(*arguments, TERM=term)
        check(code == 0 and (b"\x1b[K" in output) == drawn and (b"####" in output) == drawn,
              f"train on a terminal, TERM {term}: exit {code}: {output}")


def tasks():
    text, help_text = (ROOT / "docs" / "training.md").read_text(), train("--help").stdout
    for name in ("sentences", "pronouns", "induction", "ioi", "reverse", "agreement", "brackets"):
        check(name in help_text and f"`{name}`" in text, f"task {name} is not explained")


def all_sequences():
    """Every batch of ioi has its 60 sequences, so other batch sizes are rejected."""
    for batch in ("4", "59", "61"):
        check_error(run("train", "ioi", "--steps", "1", "--batch", batch), 2, f"--batch is {batch}", "60 sequences",
                    command="train")


with tempfile.TemporaryDirectory(prefix="multihead-train-") as place:
    root = pathlib.Path(place)
    for part in ("goal", "bits", "SIGKILL", "SIGINT", "bad"):
        (root / part).mkdir()
    same_bits(root / "bits")
    interrupted(root / "stop")
    if os.environ.get("MHA_SANITIZE") != "thread":  # the other cases have one thread
        reaches_goal(root / "goal" / "ioi")
        for number in (signal.SIGKILL, signal.SIGINT):
            goes_on_after(number, root / number.name, 10 if LONG else 1)
        bad_input(root / "bad")
        (root / "pictures").mkdir()
        pictures(root / "pictures")
        links(root / "links")
        shared_memory(root / "beside")
        (root / "full").mkdir()
        full_disk(root / "full")
        fewer_steps(root / "fewer")
        (root / "hybrids").mkdir()
        hybrids(root / "hybrids")
        new_tasks()
        goal_and_reached()
        not_finite(root / "nan")
        on_terminals()
        tasks()
        all_sequences()
finish()
