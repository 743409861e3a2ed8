#!/usr/bin/env python3
"""Compare attention with its peers on a CPU in one run: torch, onnxruntime, OpenVINO, JAX, OpenBLAS.

    python3 bench/peers.py [--threads 1,2] [--seconds 3] [--rows REGEX] [--out NAME]
    python3 bench/peers.py --draw [SEED] [--draw-count 40] [--draw-kinds forward,backward,module,gemm] ...

The first call creates build/peers, a virtual environment with the peers, and continues there; --here uses the current
Python. The measured library is build/libmultihead.so, which is built first, or the one in MHA_LIBRARY_DIR. Both numbers
of threads take 20 minutes.

Every peer computes the same row from the same numbers; its result is first compared with ours. Then all implementations
alternate, and a probe (a small attention, or 16 MB read) runs between turns. A turn is quiet if the probes before and
after it took at most 5 % longer than the third fastest probe. A pause precedes each probe, since some libraries'
threads spin while waiting for the next call; warm-up calls precede each turn. Prints the median over quiet turns and
the ratio of the fastest peer's time to ours: median and quartiles over turns. With fewer than five quiet turns the
median includes all turns and is marked ~. Slow rows have three turns; calls that take more than 0.1 seconds and three
times ours also have three. Each number of threads runs in a separate process with as many processors. Decoding steps
and products of one row read from memory: calls cycle through copies of at least 128 MB in total.

Each peer uses its fastest method for a row. Windows and blocks: torch's compiled flex_attention (computing the mask's
blocks is not timed), onnxruntime's GroupQueryAttention with a window; otherwise a dense mask. Causal: onnxruntime's
GroupQueryAttention where it is faster than its other operator. Lengths: onnxruntime supports them, the others take a
dense mask. Grouped heads: peers without them get repeated keys and values; repeating is not timed. JAX's backward
includes a forward pass, since it stores nothing between calls.

--draw measures random shapes instead of the list, by default 40 of each kind: 1 to 40 heads of size 8 to 256, 1 to
3,000 tokens, batches, grouped heads, causal or not, other numbers of keys; products with up to 3,000 rows and 8,192
outputs and inputs. SEED defaults to today's date, such as 20261123. A row below 0.97 is measured again at the end,
four times as long; it is behind if its upper quartile is also below.

--out writes the output to NAME.md, for docs/speed.md, and a plot to NAME.svg.
"""
import argparse
import json
import os
import pathlib
import re
import shlex
import statistics
import sys
import time

import common

QUIET, FEW = 5, 3  # turns
REST, WARM, SLOW = 0.05, 0.1, 0.1  # seconds
DRAWN = ("forward", "backward", "module", "gemm")
AGAIN = 4


def parse():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=common.thread_counts, default="1", metavar="N,...",
                        help="one number, or several: 1,2")
    parser.add_argument("--seconds", type=float, default=3, help="minimum for a row")
    parser.add_argument("--rows", metavar="REGEX", type=common.pattern, default="",
                        help="rows whose names match")
    parser.add_argument("--draw", metavar="SEED", type=int, nargs="?",
                        const=int(time.strftime("%Y%m%d")), help="random shapes; default: today's date")
    parser.add_argument("--draw-count", metavar="N", type=int, default=40, help="how many of each kind")
    parser.add_argument("--draw-kinds", metavar="KIND,...", default=",".join(DRAWN),
                        help="default: %(default)s")
    parser.add_argument("--out", metavar="NAME")
    parser.add_argument("--json", metavar="FILE", help="medians and ratios")
    parser.add_argument("--here", action="store_true")
    options = parser.parse_args()
    for place in filter(None, (options.out, options.json)):
        if not pathlib.Path(place).absolute().parent.is_dir():
            parser.error(f"'{place}': there is no such folder")
    if options.draw_count < 1:
        parser.error("--draw-count is less than 1")
    options.draw_kinds = options.draw_kinds.split(",")
    if unknown := set(options.draw_kinds) - set(DRAWN):
        parser.error(f"--draw-kinds: '{unknown.pop()}' is none of {', '.join(DRAWN)}")
    return options


if __name__ == "__main__":
    OPTIONS = parse()
    common.start(OPTIONS.here, "numpy", "torch")
    if len(OPTIONS.threads) == 1:
        common.use_processors(OPTIONS.threads[0])
        os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np  # noqa: E402
import torch  # noqa: E402

import multihead_ctypes as mha  # noqa: E402
import peers_calls  # noqa: E402
import peers_report as report  # noqa: E402

# ---- measuring -----------------------------------------------------------------------------------


def make_probe(context, memory_bound):
    if memory_bound:
        memory = np.ones(4 << 20, np.float32)
        return lambda _: memory.sum()
    return peers_calls.ours_attention(peers_calls.Row("probe", 8, 64, 256), context)


def timed(call, repeats=1, first=0):
    start = time.perf_counter()
    for i in range(repeats):
        call(first + i)
    return (time.perf_counter() - start) / repeats


def rested(probe):
    """A probe, after the threads of earlier calls have gone to sleep: some spin for 20 ms and slow the next call."""
    time.sleep(REST)
    return timed(probe)


def warm_up(call, first):
    """Warm up, so that threads are awake on separate processors: after a pause the scheduler takes milliseconds to
    spread them. Returns the number of the next call."""
    begun = time.monotonic()
    while time.monotonic() - begun < WARM:
        call(first)
        first += 1
    return first


def enough(found, slow):
    return all(quiet for name, (_, quiet) in summary(found)["times"].items() if name not in slow)


def measure(calls, probe, seconds, least=QUIET, patience=0):
    """{name: [(seconds, longer of its two probes)]}, of at least `turns` turns unless they are slow, until enough are
    quiet or time is up"""
    once = {}
    for name, call in calls.items():
        call(0)
        once[name] = timed(call, 1, 1)
    repeats = {name: max(1, int(2e-3 / (took + 1e-7))) for name, took in once.items()}
    slow = {name for name, took in once.items() if took > max(SLOW, 3 * once["ours"])}
    found, turn, at = {name: [] for name in calls}, 0, dict.fromkeys(calls, 2)
    begun = time.monotonic()
    before = rested(probe)
    while True:
        spent = time.monotonic() - begun
        if spent > seconds and turn >= (least if spent < 4 * seconds else FEW) and (
                spent > patience or enough(found, slow)):
            break
        for name, call in calls.items():
            if name in slow and turn >= FEW:
                continue
            at[name] = warm_up(call, at[name])  # cycle through the copies, so that none is cached
            took = timed(call, repeats[name], at[name])
            at[name] += repeats[name]
            after = rested(probe)
            found[name].append((took, max(before, after)))
            before = after
        turn += 1
    return found


def summary(found):
    """A row of peers_report."""
    probes = sorted(p for turns in found.values() for _, p in turns)
    level = 1.05 * probes[min(2, len(probes) - 1)]

    def that_count(values, noise):
        quiet = [value for value, p in zip(values, noise) if p <= level]
        return (quiet, True) if len(quiet) >= QUIET else (values, False)

    times, ratios = {}, {}
    for name, turns in found.items():
        values, enough = that_count(*zip(*turns))
        times[name] = (statistics.median(values), enough)
        if name != "ours":
            both = list(zip(turns, found["ours"]))
            values, _ = that_count([peer[0] / ours[0] for peer, ours in both],
                                   [max(peer[1], ours[1]) for peer, ours in both])
            ratios[name] = statistics.quantiles(values, n=4, method="inclusive")
    return {"times": times, "ratios": ratios}


def agree(name, peer, ours, theirs):
    error = np.abs(theirs - ours).max() / np.abs(ours).max()
    if not error < 1e-3:
        common.fail(f"{name}: {peer} differs from ours by {error:.1e} of the largest value")


def run_row(row, context, threads, seconds, least=QUIET):
    make_ours, peers = peers_calls.KINDS[row.kind]
    calls = {"ours": make_ours(row, context)}
    expected = calls["ours"](0).copy()
    for name, make in peers.items():
        try:
            call = make(row, threads)
            result = None if call is None else call(0)
        except Exception as problem:  # peers raise exceptions of any type
            print(f"   {name}: {str(problem).splitlines()[0][:100]}", file=sys.stderr)
            continue
        if result is not None:
            agree(row.name, name, expected, result)
            calls[name] = call
    return summary(measure(calls, make_probe(context, row.memory_bound), seconds, least))


def run(options):
    """The instruction set and {name: row} for one number of threads."""
    threads, = options.threads
    torch.set_num_threads(threads)
    context = mha.Context(num_threads=threads)
    rows = peers_calls.ROWS if options.draw is None else peers_calls.draw(
        options.draw, options.draw_count, options.draw_kinds)
    chosen = {name: make for name, make in rows if options.rows.search(name)}
    results, begun = {}, time.monotonic()
    if not chosen:
        common.fail(f"--rows: no name matches '{options.rows.pattern}'; names are such as '{rows[0][0]}'")

    def tell(number, name):
        print(f"[{number}, {time.monotonic() - begun:.0f} s, {common.plural(threads, 'thread')}] "
              f"{report.line(name, results[name])}", file=sys.stderr, flush=True)

    for number, (name, make) in enumerate(chosen.items(), 1):
        results[name] = run_row(make(), context, threads, options.seconds)
        tell(f"{number} of {len(chosen)}", name)
    for name in report.below(results) if options.draw is not None else ():
        first = report.ratio(results[name])
        results[name] = run_row(chosen[name](), context, threads, AGAIN * options.seconds, AGAIN * QUIET)
        results[name]["first"] = first
        tell("again", name)
    return {"isa": context.isa, "rows": results}


# ---- main ----------------------------------------------------------------------------------------


def arguments(options, threads):
    """The command that repeats this, or a part of it with some numbers of threads."""
    said = ["--threads", ",".join(map(str, threads)), "--seconds", f"{options.seconds:g}"]
    if options.rows.pattern:
        said += ["--rows", options.rows.pattern]
    if options.draw is not None:
        said += ["--draw", str(options.draw), "--draw-count", str(options.draw_count),
                 "--draw-kinds", ",".join(options.draw_kinds)]
    return said


def main(options):
    several = len(options.threads) > 1
    found = common.run_each(options.threads, lambda n: arguments(options, [n])) if several else {str(options.threads[0]): run(options)}
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found))
        return
    command = shlex.join(["python3", "bench/peers.py", *arguments(options, options.threads)])
    text = report.page(found, command, options.draw)
    print(text, end="")
    if options.out:
        pathlib.Path(options.out + ".md").write_text(text)
        pathlib.Path(options.out + ".svg").write_text(report.plot(found, options.draw))


if __name__ == "__main__":
    try:
        main(OPTIONS)
    except KeyboardInterrupt:
        sys.exit(130)
