#!/usr/bin/env python3
"""Compare prompts and decoding of a model with transformers and llama.cpp, from the same GGUF file.

    python3 bench/models.py [--threads 1,2] [--rounds 5] [MODEL.gguf]

prompt    500 random ids at once; tokens per second
decode    64 more, one at a time, always the most likely; tokens per second
MB        peak memory after loading, including mapped parts of the file
same      number of the 64 tokens that equal ours, before the first difference

The default MODEL is SmolLM2-135M-Instruct in Q4_1, downloaded by tools/get-smollm2. `ours` is `multihead generate` with
stored weights and f32 arithmetic; ours-int8 adds --compute int8, which rounds activations to 8 bits like llama.cpp;
ours-bf16 adds --compute bf16. transformers has dense f32 or bf16 weights. Each runs in its own process, and all
alternate. Prints medians with quartiles, and the ratios of ours to each. The environment is build/models-peers;
compiling llama-cpp-python there takes about ten minutes and needs a C++ compiler. --only ours,transformers-f32 selects
implementations; packages of others are not installed.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import common

PROMPT, NEW = 500, 64
MODEL = common.BUILD / "models" / "smollm2-135m-instruct-q4_1.gguf"
NAMES = ("ours", "ours-int8", "ours-bf16", "transformers-f32", "transformers-bf16", "llama.cpp")
NEEDED = {"ours": ["numpy"],
          "transformers": ["torch==2.13.0", "transformers", "gguf", "accelerate", "numpy"],
          "llama.cpp": ["llama-cpp-python"]}  # source only in PyPI


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=pathlib.Path, default=MODEL, metavar="MODEL.gguf")
    parser.add_argument("--threads", type=common.thread_counts, metavar="N,...",
                        default="1,2" if len(os.sched_getaffinity(0)) > 1 else "1")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(NAMES),
                        metavar="NAME,...", help="some of " + ", ".join(NAMES))
    parser.add_argument("--here", action="store_true", help="use the Python that runs this script")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)  # NAME THREADS: one of the peers
    options = parser.parse_args()
    for name in options.only:
        if name not in NAMES:
            parser.error(f"'{name}' is none of {', '.join(NAMES)}")
    if options.rounds < 1:
        parser.error("--rounds: give 1 or more")
    return options


# ---- one implementation per process --------------------------------------------------------------


def prompt():
    """Reproducible ids that every vocabulary has; none ends a text."""
    return [(7919 * i + 104729) % 20000 + 300 for i in range(PROMPT)]


def transformers_model(kind, threads, model):
    import torch
    import transformers
    torch.set_num_threads(threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
    made = transformers.AutoModelForCausalLM.from_pretrained(
        model.parent, gguf_file=model.name, dtype=dtype,
        quantization_config=transformers.GgufConfig(dequantize=True))  # otherwise blocks, if it has kernels for them
    for name, part in made.named_modules():
        if name.endswith(("_proj", "lm_head")) and (
                type(part) is not torch.nn.Linear or part.weight.dtype is not dtype):
            common.fail(f"transformers has {name} as {type(part).__name__}, not as dense {kind}")
    past = None

    def step(ids, begin):
        nonlocal past
        with torch.inference_mode():
            out = made(torch.tensor([ids]), past_key_values=None if begin else past, use_cache=True,
                       logits_to_keep=1)
        past = out.past_key_values
        return int(out.logits[0, -1].argmax())
    return step


def llama_model(threads, model):
    import llama_cpp
    made = llama_cpp.Llama(str(model), n_ctx=PROMPT + NEW + 8, n_batch=PROMPT + 8, n_ubatch=PROMPT + 8,
                           n_threads=threads, n_threads_batch=threads, verbose=False)

    def step(ids, begin):
        if begin:
            made.reset()
        made.eval(ids)
        return made.sample(temp=0)
    return step


def status_mb(field):
    return int(re.search(rf"^{field}:\s+(\d+)", pathlib.Path("/proc/self/status").read_text(), re.M)[1]) / 1024


def serve(name, threads, model):
    """A line of figures for each line of input."""
    step = (llama_model(threads, model) if name == "llama.cpp" else
            transformers_model(name.split("-")[1], threads, model))
    step(prompt()[:8], True)
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # reset VmHWM
    print("ready", flush=True)
    for _ in sys.stdin:
        times = [time.perf_counter()]
        token = step(prompt(), True)
        times.append(time.perf_counter())
        tokens = []
        for _ in range(NEW):
            tokens.append(token)
            token = step([token], False)
        times.append(time.perf_counter())
        print(json.dumps({"prompt": PROMPT / (times[1] - times[0]), "decode": NEW / (times[2] - times[1]),
                          "MB": status_mb("VmHWM"), "tokens": tokens}), flush=True)


class Peer:
    def __init__(self, name, threads, model):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--here", "--serve", name, str(threads), str(model)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self):
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
            if line == "ready\n":
                return None
        return common.fail(f"{self.name} ended, for the reason above; --only leaves it out")

    def turn(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self):
        self.process.stdin.close()
        self.process.wait()


class Ours:
    def __init__(self, name, threads, model):
        compute = name.partition("-")[2] or "f32"
        self.command = [common.BUILD / "multihead", "generate", "--ids", "--stats", "--compute", compute,
                        "--threads", str(threads), "--max-tokens", str(NEW), str(model),
                        " ".join(map(str, prompt()))]

    def turn(self):
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        out, said = process.stdout.read(), process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        found = re.search(r"prompt: (\d+) tokens in ([\d.]+) s .*generated: (\d+) in ([\d.]+) s", said)
        if status or not found:
            common.fail(f"multihead generate failed: {said.strip()}")
        if int(found[3]) != NEW:
            common.fail(f"the text ended after {found[3]} tokens; this needs a model that goes on for {NEW}")
        return {"prompt": PROMPT / float(found[2]), "decode": NEW / float(found[4]),
                "MB": usage.ru_maxrss / 1024, "tokens": [int(i) for i in out.split()][-NEW:]}

    def end(self):
        pass


# ---- requirements --------------------------------------------------------------------------------


def need_program():
    common.BUILD.mkdir(exist_ok=True)
    with open(common.BUILD / "program.log", "w") as log:
        if not (common.BUILD / "CMakeCache.txt").exists():
            common.build_step(log, "cmake", "-S", str(common.ROOT), "-B", str(common.BUILD),
                              "-DCMAKE_BUILD_TYPE=Release", "-DMHA_TESTS=OFF")
        common.build_step(log, "cmake", "--build", str(common.BUILD), "--target", "multihead")


def need_model(model):
    if model == MODEL and not model.exists():
        subprocess.run([common.ROOT / "tools" / "get-smollm2"])
    if not model.is_file():
        common.fail(f"{model}: no such file" + ("" if model != MODEL else ", for the reason above"))


def enter_environment(names):
    place = common.BUILD / "models-peers"
    python = place / "bin" / "python"
    if not python.exists() and subprocess.run([sys.executable, "-m", "venv", place]).returncode:
        common.fail(f"no virtual environment in {place}: install python3-venv (Debian's name)")
    for peer, packages in NEEDED.items():
        ready = place / f"{peer}.ready"
        if ready.exists() or not any(name.startswith(peer) for name in names):
            continue
        print(f"installing {', '.join(packages)} into {place}", file=sys.stderr)
        if subprocess.run([python, "-m", "pip", "install", "-q", *packages]).returncode:
            common.fail(f"pip could not install {', '.join(packages)}, for the reason above; --only leaves "
                        f"{peer} out")
        ready.touch()
    os.execv(python, [str(python), sys.argv[0], "--here", *sys.argv[1:]])


# ---- the table -----------------------------------------------------------------------------------


def spread(values):
    if len(values) == 1:
        return f"{values[0]:.3g}"
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{middle:.3g} ({low:.3g}-{high:.3g})"


def run(options, threads):
    runners = {name: (Ours if name.startswith("ours") else Peer)(name, threads, options.model)
               for name in options.only}
    found = {name: [] for name in runners}
    for _ in range(options.rounds):
        for name, runner in runners.items():
            found[name].append(runner.turn())
    for name, turns in found.items():
        runners[name].end()
        cells = [spread([turn[key] for turn in turns]) for key in ("prompt", "decode")]
        cells.append(f"{max(turn['MB'] for turn in turns):.0f}")
        for key in ("prompt", "decode"):
            if name == "ours" or "ours" not in found:
                cells.append("")
            else:
                cells.append(spread([a[key] / b[key] for a, b in zip(found["ours"], turns)]))
        if "ours" in found:
            pairs = zip(found["ours"][0]["tokens"], turns[0]["tokens"])
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), NEW)
            cells.append(str(same))
        print(f"| {name} | {threads} | " + " | ".join(cells) + " |", flush=True)


def main(options):
    if options.serve:
        serve(options.serve[0], int(options.serve[1]), options.model)
        return
    need_model(options.model)
    need_program()
    common.need_library()
    if not options.here:
        enter_environment(options.only)
    common.need_modules("numpy")
    sys.path.insert(0, str(common.ROOT / "tests" / "python"))
    import multihead_ctypes
    measured = {**common.processor(), "isa": multihead_ctypes.Context().isa, "date": common.today()}
    print(common.heading(measured, options.model.name) + "\n")
    print("| | threads | prompt, tokens/s | decode, tokens/s | MB | ours / it, prompt | decode | same |"
          "\n|---|---|---|---|---|---|---|---|")
    for threads in options.threads:
        run(options, threads)


if __name__ == "__main__":
    main(parse())
