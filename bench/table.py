#!/usr/bin/env python3
"""Print a processor's table from the output of `multihead bench all --json`; docs/speed.md has some of its rows.

    build/multihead bench all --threads 1 --json > build/one.json
    build/multihead bench all --threads 2 --json > build/two.json
    python3 bench/table.py build/one.json build/two.json

The heading names the processor, its caches (if the table is made on that processor), the instruction set, the date of
the measurement and this folder's commit. Make the table on the machine and at the commit of the measurement.

Each file is a column: the median, and in percent of the machine's limit the median and (best). ~ marks a row that
includes busy turns. Targets, in percent with one and two threads, are the project's own.
"""
import json
import re
import sys

import common

# The first pattern that matches a row's name sets its target.
TARGETS = (
    (r"forward h8 d64 n512$", "83 / 82"), (r"forward h8 d64 n2048$", "85 / 83"),
    (r"forward h8 d128 n2048$", "87 / 85"), (r"forward h32 d128 n512$", "84 / 82"),
    (r"forward h12 d64 n128( b16)?$", "74 / 74"), (r"forward h8 d64 n10 b2$", "25 / as fast as 1"),
    (r"forward h8 d64 n2048 bthd", "81 / 79"), (r"forward h8 d128 n2048 bthd", "83 / 81"),
    (r"forward h32 d128 n512 bthd", "80 / 78"), (r"forward h12 d64 n128 bthd", "70 / 70"),
    (r"forward .* causal$", "80 / 78"), (r"forward .* (window256|blocks)$", "60 / 60"),
    (r"forward .* (lengths|keep|bias)$", "72 / 71"), (r"backward", "78 / 78"),
    (r"decode h32/1 ", "70 / 70"), (r"decode", "90 / 90"), (r"module h8 d64 n10 ", ""),
    (r"module", "78 / 78"), (r"gemm 1x", "95 / 95"), (r"gemm 16x", "80 / 80"), (r"gemm", "86 / 86"),
)


def target(name):
    return next((percent for pattern, percent in TARGETS if re.match(pattern, name)), "")


def cells(row):
    """Rate and percent."""
    slack = "" if row["gated"] else "~"
    rate = f"{row['gbs']:.3g} GB/s" if row["bytes"] else f"{row['gflops']:.3g} GFLOP/s"
    part = row["percent_of_roofline"]
    if part is None:
        return f"{slack}{rate}", ""
    return f"{slack}{rate}", f"{part:.0f} ({row['best_percent_of_roofline']:.0f})"


def limits(run):
    said = [f"{common.plural(run['threads'], 'thread')}: "]
    for name, unit in (("peak_gflops", "GFLOP/s of multiply-adds"),
                       ("peak_bf16_gflops", "GFLOP/s of bf16 products"), ("bandwidth_gbs", "GB/s read")):
        if run.get(name):
            said.append(f"{run[name]:.3g} {unit}")
    return said[0] + ", ".join(said[1:])


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__.strip())
    runs = []
    for path in sys.argv[1:]:
        try:
            with open(path, encoding="utf-8") as file:
                run = json.load(file)
        except OSError as problem:
            common.fail(f"{path}: {problem.strerror}")
        except ValueError as problem:
            common.fail(f"{path}: no JSON ({problem})")
        if not isinstance(run, dict) or run.get("format") != "multihead-bench":
            common.fail(f"{path}: not written by multihead bench --json")
        runs.append((run, {row["name"]: row for row in run.get("rows", [run])}))
    for field in ("processor_id", "isa"):
        found = list(dict.fromkeys(str(run.get(field)) for run, _ in runs))
        if len(found) > 1:
            common.fail(f"{' and '.join(found)}: make a table for each")
    print(common.heading(runs[0][0]) + "\n")
    print("; ".join(limits(run) for run, _ in runs) + ".\n")
    heads = [f"{common.plural(run['threads'], 'thread')} | % (best)" for run, _ in runs]
    print(f"| work | {' | '.join(heads)} | target % |\n|---|{'---|' * (2 * len(runs) + 1)}")
    for name in dict.fromkeys(name for _, rows in runs for name in rows):
        parts = [" | ".join(cells(rows[name]) if name in rows else ("", "")) for _, rows in runs]
        print(f"| {name} | {' | '.join(parts)} | {target(name)} |")


if __name__ == "__main__":
    main()
