#!/usr/bin/env python3
"""Compare a decoding step from a key/value cache with its peers on a CPU: torch, onnxruntime, and ggml, the library of
llama.cpp.

    python3 bench/caches_peers.py [--threads 1,2] [--seconds 3] [--rows REGEX] [--ggml FOLDER]

One query of each head against 4,096 or 32,768 keys of size 128, in f32, f16, bf16 and int8. All caches are read from
memory in huge pages: calls cycle through copies of at least 128 MB in total. Each result is first compared with NumPy's
in double precision. Then the implementations alternate as in bench/peers.py, with the same environment and the same
meaning of quiet turns and of ~. A row is measured until each implementation has five quiet turns, or for --patience
seconds. All rows with one and two threads take about 10 minutes.

Each peer uses its fastest method, selected per row by a few calls and named in the table:

torch         scaled_dot_product_attention: gqa, with enable_gqa; repeated, with keys and values repeated for each query
              head (not timed); grouped, with the query heads of a key/value head as rows of one attention. No int8
onnxruntime   GroupQueryAttention, past and present in one buffer. int8: one scale per channel or per tensor. No bf16
ggml          flash: flash_attn_ext on llama.cpp's cache layout, and flash heads on contiguous heads; products: mul_mat,
              soft_max_ext, mul_mat; grouped: the same with query heads as rows of one product, which llama.cpp does not
              do. int8 is Q8_0, one scale per 32 numbers, in flash only. Default of --ggml: the package llama_cpp, if
              installed

%: the machine's minimum time divided by the measured time. The minimum is the larger of two: bytes of keys and values
over read bandwidth, or 4 H S D operations over peak multiply-adds. `multihead bench` measures both before and after
each row. Ratio: the fastest peer's time over ours, the median over turns, with quartiles. --page and --key-scales apply
to ours. An example of a row's name is 'h32/8 k4096 f16': --rows 'k4096 (f32|int8)'.
"""
import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import time

import common

PLACES = [(h, hk, keys) for keys in (4096, 32768) for h, hk in ((8, 8), (32, 8), (32, 4))]


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=common.thread_counts, default="1", metavar="N,...",
                        help="one number, or several: 1,2")
    parser.add_argument("--seconds", type=float, default=3, help="minimum for a row")
    parser.add_argument("--patience", type=float, default=6,
                        help="maximum seconds for a row, unless its calls are slow")
    parser.add_argument("--rows", metavar="REGEX", type=common.pattern, default="",
                        help="rows whose names match")
    parser.add_argument("--page", metavar="N", type=int, default=0, help="page size of ours; default: one page")
    parser.add_argument("--key-scales", choices=("position", "channel"), default="position",
                        help="key scales of ours in int8")
    parser.add_argument("--ggml", metavar="FOLDER", type=pathlib.Path,
                        help="folder with libggml-base.so and libggml-cpu.so")
    parser.add_argument("--out", metavar="FILE", help="also write the output to FILE")
    parser.add_argument("--json", metavar="FILE",
                        help="write medians, ratios, methods and errors; print nothing unless --out is given")
    parser.add_argument("--here", action="store_true")
    options = parser.parse_args()
    for place in filter(None, (options.out, options.json)):
        if not pathlib.Path(place).absolute().parent.is_dir():
            parser.error(f"'{place}': there is no such folder")
    return options


if __name__ == "__main__":
    OPTIONS = parse()
    common.huge_pages()
    common.start(OPTIONS.here, "numpy", "torch", "onnxruntime", "onnx", program=True)
    if len(OPTIONS.threads) == 1:
        common.use_processors(OPTIONS.threads[0])

import torch  # noqa: E402

import caches_calls as calls_of  # noqa: E402
import ggml_ctypes  # noqa: E402
import multihead_ctypes as mha  # noqa: E402
import peers  # noqa: E402
import peers_report as report  # noqa: E402

# ---- measuring -----------------------------------------------------------------------------------


def machine(threads):
    """The result of `multihead bench`: bytes read and multiply-adds per second."""
    command = [mha.LIBRARY_DIR / "multihead", "bench", "decode", "--heads", "1", "--kv-heads", "1",
               "--keys", "16", "--threads", str(threads), "--json", "--quiet", "--samples", "1",
               "--seconds", "0", "--patience", "0.25"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        common.fail(done.stderr.strip())
    said = json.loads(done.stdout)
    return said["bandwidth_gbs"] * 1e9, said["peak_gflops"] * 1e9


class Probe:
    """Reads the next 32 MB of 256."""

    def __init__(self):
        self.pieces, self.count = torch.ones(8, 8 << 20), 0

    def __call__(self, _):
        self.count += 1
        return self.pieces[self.count % 8].sum()


def run_row(row, context, options, ggml, probe):
    """A row of peers_report, with methods and errors of the results."""
    threads, = options.threads
    try:
        calls = {"ours": calls_of.Ours(row, context, options.page, options.key_scales)}
    except mha.MultiheadError as problem:
        common.fail(f"{row.name}: {problem}")
    ways, errors = {}, {"ours": row.check(calls["ours"](0), peer=False)}
    for name, ways_of in calls_of.peers(row, threads, ggml).items():
        found = calls_of.fastest_way(row, name, ways_of)
        if found:
            ways[name], calls[name], errors[name] = found
    measured = peers.measure(calls, probe, options.seconds, patience=options.patience)
    return peers.summary(measured) | {"ways": ways, "errors": errors}


def limit(row, roofs):
    """The minimum seconds, by the mean of two measurements of the machine."""
    bandwidth, peak = (statistics.mean(values) for values in zip(*roofs))
    return max(row.bytes / bandwidth, row.flops / peak)


def run(options):
    """The instruction set, machine limits and {name: row} for one number of threads."""
    threads, = options.threads
    torch.set_num_threads(threads)
    context, probe = mha.Context(num_threads=threads), Probe()
    rows = [calls_of.Step(*place, kind) for place in PLACES for kind in calls_of.SIZES]
    chosen = [row for row in rows if options.rows.search(row.name)]
    if not chosen:
        common.fail(f"--rows: no name matches '{options.rows.pattern}'; names are such as "
                    f"'{rows[0].name}'")
    place, missing = ggml_ctypes.folder(options.ggml)
    if missing:
        print(f"   ggml is left out: {missing}", file=sys.stderr)
    ggml = ggml_ctypes.Library(place, threads) if place else None
    results, roofs, begun = {}, [machine(threads)], time.monotonic()
    for number, row in enumerate(chosen, 1):
        found = run_row(row, context, options, ggml, probe)
        roofs.append(machine(threads))
        results[row.name] = found | {"limit": limit(row, roofs[-2:])}
        print(f"[{number} of {len(chosen)}, {time.monotonic() - begun:.0f} s, "
              f"{common.plural(threads, 'thread')}] {line(row.name, results[row.name])}",
              file=sys.stderr, flush=True)
    return {"isa": context.isa, "rows": results, "roofs": roofs,
            "ggml": f"ggml {ggml.version}" if ggml else f"ggml left out: {missing}"}


# ---- the page ------------------------------------------------------------------------------------


def said_time(row, name):
    return f"{report.cell(row, name)} {name} {row['ways'][name]}".strip()


def line(name, row):
    percent = f"{100 * row['limit'] / row['times']['ours'][0]:.0f}"
    best = report.fastest(row)
    others = ", ".join(said_time(row, peer) for peer in row["ways"] if peer != best) or "-"
    first = f"{said_time(row, best)} | {report.said_ratio(row)}" if best else "- | -"
    return f"| {name} | {report.cell(row, 'ours')} | {percent} | {first} | {others} |"


def section(threads, found):
    bandwidth, peak = (statistics.median(values) / 1e9 for values in zip(*found["roofs"]))
    return "\n".join([
        f"{common.plural(threads, 'thread')}, {bandwidth:.3g} GB/s read, {peak:.3g} GFLOP/s:\n",
        "| row, milliseconds | ours | % | fastest peer | it / ours | others |", "|---|---|---|---|---|---|",
        *(line(name, row) for name, row in found["rows"].items())])


def arguments(options, threads):
    """The command that repeats this, or a part of it with some numbers of threads."""
    said = ["--threads", ",".join(map(str, threads)), "--seconds", f"{options.seconds:g}",
            "--patience", f"{options.patience:g}"]
    for name, value in (("--rows", options.rows.pattern), ("--page", options.page),
                        ("--ggml", options.ggml)):
        said += [name, str(value)] if value else []
    return said + (["--key-scales", "channel"] if options.key_scales == "channel" else [])


def main(options):
    several = len(options.threads) > 1
    found = (common.run_each(options.threads, lambda n: arguments(options, [n])) if several
             else {str(options.threads[0]): run(options)})
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found))
        if not options.out:
            return
    first = next(iter(found.values()))
    measured = {**common.processor(), "isa": first["isa"], "date": common.today()}
    versions = report.versions((("torch", "torch"), ("onnxruntime", "onnxruntime")))
    command = shlex.join(["python3", "bench/caches_peers.py", *arguments(options, options.threads)])
    text = "\n\n".join([common.heading(measured, versions, first["ggml"]), f"    {command}",
                        *(section(*each) for each in found.items())]) + "\n"
    print(text, end="")
    if options.out:
        pathlib.Path(options.out).write_text(text)


if __name__ == "__main__":
    try:
        main(OPTIONS)
    except KeyboardInterrupt:
        sys.exit(130)
