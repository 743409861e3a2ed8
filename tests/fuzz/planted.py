#!/usr/bin/env python3
"""Plant a fault in each parser and count how many inputs fuzzing needs to find it.

  tests/fuzz/planted.py [--seconds N] [TARGET ...]

Works in a copy of the tree (build/planted), one fault at a time, starting from the initial inputs only. It fails if a
fault's text is no longer in its file, or if the fault is not found in N seconds (120): choose another fault, or fix the
target.
"""
import argparse
import importlib.machinery
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
COPY = ROOT / "build/planted"
sys.path.insert(0, str(ROOT / "tools"))
import altered_tree  # pylint: disable=wrong-import-position,wrong-import-order
LOADER = importlib.machinery.SourceFileLoader("run", str(HERE / "run"))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", LOADER))
LOADER.exec_module(run)

# Target, file, original text, planted text. The planted text lacks a check, or its check is off by
# one.
FAULTS = [
    ("safetensors", "src/io/safetensors.c", "if (tensor->end - tensor->begin != bytes)",
     "if (tensor->end - tensor->begin > bytes)"),
    ("npy", "src/io/npy.c", "if (h->ndim == MHA_MAX_DIMS)", "if (h->ndim == MHA_MAX_DIMS + 1)"),
    ("gguf", "src/io/gguf_header.c", "bytes > size - data - offset)",
     "bytes > size - data)"),
    ("tokenizer", "src/tokenizer/tokenizer_vocab.c", "if ((size_t)id >= count)",
     "if ((size_t)id > count)"),
    ("tokenizer", "src/tokenizer/bpe_build.c",
     "if (t->templates[which].parts[i].id >= t->count)",
     "if (t->templates[which].parts[i].id > t->count)"),
    ("model", "src/model/arch/family.c", "i < FAMILIES; i++) {",
     "i <= FAMILIES; i++) {"),
    ("checkpoint", "src/model/stored.c",
     "MHA_TRY(mhai_weights_check(weights, name, &expected, &index));",
     "if (mhai_weights_check(weights, name, &expected, &index) == MHA_ERR_SIZE) return MHA_ERR_SIZE;"),
    ("training", "cli/train/train_save.c", "if (!name || !saved || !done || !seconds || !loss || !best_loss ||",
     "if ("),
    ("texts", "cli/heads/conllu.c", "if (to > r->count) {", "if (to > MOST_WORDS) {"),
    ("tokens", "cli/common/token_files.c", "length > 0 && text[at + length - 1]",
     "text[at + length - 1]"),
    ("run", "cli/run/run_problem.c", "if (*count >= 0 && given != *count)",
     "if (*count >= 0 && given > *count)"),
    ("compare", "cli/bench/bench_out.c", "if (!format || strcmp(", "if (strcmp("),
    ("render", "src/render/figure.c", "if (panel.group < 0 || panel.group >= f->group_count)",
     "if (panel.group > f->group_count)"),
    ("attention", "src/attention/attn_check.c", "all[i].of[b], 0, most)",
     "all[i].of[b], 0, most + 60)"),
    ("cache", "src/cache/kv_cache.c", "if (count > capacity - cache->lengths[b])",
     "if (count > capacity - cache->lengths[b] + 1)"),
    ("cache", "src/cache/kv_pages.c", "if (used == 0 || cache->references[*entry] == 1) return;",
     "if (used == 0 || cache->references[*entry] <= 2) return;"),
    ("module", "src/module/module_parameters.c", "MHA_TRY(mhai_tensor_check_last(name, value));",
     "(void)mhai_tensor_check_last;"),
    ("module", "src/attention/attn_rope.c", "if (rotary < 0 || rotary > D ||", "if (rotary < 0 || rotary > D + 8 ||"),
]


def build(targets):
    log = COPY / "build.log"
    for command in (["cmake", "-S", COPY, "-B", COPY / "build/fuzz", "-G", "Ninja",
                     "-DMHA_FUZZ=ON", "-DCMAKE_C_COMPILER=clang", "-DCMAKE_BUILD_TYPE=None"],
                    ["cmake", "--build", COPY / "build/fuzz", "--target",
                     *(f"fuzz_{target}" for target in targets)]):
        with log.open("a") as out:
            if subprocess.run(command, stdout=out, stderr=out, check=False).returncode != 0:
                print("".join(log.read_text().splitlines(True)[-20:]), file=sys.stderr)
                sys.exit(f"error: the build failed; the log is {log}")


def hunt(target, seconds):
    """Inputs, seconds and the report. Inputs are -1 if the fault was not found."""
    with tempfile.TemporaryDirectory(prefix="multihead-planted-") as place:
        began = time.monotonic()
        command = [COPY / "build/fuzz" / f"fuzz_{target}", *run.LIMITS,
                   f"-max_len={run.TARGETS[target]}", f"-max_total_time={seconds}", "-seed=1",
                   "-print_final_stats=1", f"-artifact_prefix={place}/", place,
                   COPY / "seeds" / target]
        done = subprocess.run([*map(str, command)], cwd=ROOT, capture_output=True, check=False,
                              env={**os.environ, **run.SANITIZERS, "MHA_FUZZ_FOLDER": place})
    text = done.stderr.decode(errors="replace")
    units = re.search(r"number_of_executed_units: (\d+)", text)
    what = re.search(r"^(finding: .*|.*runtime error: .*|SUMMARY: .*)$", text, re.M)
    return (int(units[1]) if units and done.returncode != 0 else -1, time.monotonic() - began,
            what[1].strip() if what else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("targets", nargs="*", metavar="TARGET")
    options = parser.parse_args()
    faults = [fault for fault in FAULTS if not options.targets or fault[0] in options.targets]
    failed = 0
    altered_tree.copy_tree(COPY)
    build([fault[0] for fault in faults])
    subprocess.run([sys.executable, HERE / "seeds.py", COPY / "seeds"], check=True)
    for target, name, right, wrong in faults:
        path = COPY / name
        if not altered_tree.holds_once(path, right):
            print(f"{target}: {name} does not hold '{right}' once: choose another fault")
            failed += 1
            continue
        with altered_tree.altered(path, right, wrong):
            build([target])
            inputs, seconds, what = hunt(target, options.seconds)
        failed += inputs < 0
        print(f"{target}: {name}: " + (f"found after {inputs} inputs, {seconds:.0f} s: {what[:120]}"
                                       if inputs >= 0 else f"NOT found in {seconds:.0f} s"),
              flush=True)
    print(f"{len(faults) - failed} planted faults found, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
