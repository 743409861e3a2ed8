"""Tables and plots of bench/peers.py.

A row is {"times": {name: [seconds, whether enough turns were quiet]}, "ratios": {peer: the quartiles of
its time over ours}}, and "first", the quartiles of the first try of a repeated row.
"""
import importlib.metadata
import math
import statistics

import common

PEERS = ("torch", "torch flex", "onnxruntime", "OpenVINO", "JAX", "OpenBLAS")
BEHIND = 0.97


def fastest(row):
    return min(row["ratios"], key=lambda peer: row["ratios"][peer][1], default=None)


def ratio(row):
    """Quartiles of the fastest peer's ratio; None if no peer supports the row."""
    return row["ratios"].get(fastest(row))


def said_ratio(row):
    low, middle, high = ratio(row)
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def cell(row, name):
    if name not in row["times"]:
        return "-"
    seconds, enough = row["times"][name]
    return f"{'' if enough else '~'}{1e3 * seconds:.3g}"


def line(name, row, peers=PEERS):
    said = f"{said_ratio(row)} {fastest(row)}" if ratio(row) else "-"
    return f"| {name} | {cell(row, 'ours')} | {' | '.join(cell(row, p) for p in peers)} | {said} |"


def table(rows):
    """The columns of peers with a result."""
    peers = [peer for peer in PEERS if any(peer in row["times"] for row in rows.values())]
    return "\n".join([f"| row, milliseconds | ours | {' | '.join(peers)} | fastest peer / ours |",
                      f"|---|---|{'---|' * len(peers)}---|",
                      *(line(name, row, peers) for name, row in rows.items())])


# ---- a draw --------------------------------------------------------------------------------------


def by_ratio(rows):
    """Only the rows that a peer supports."""
    compared = [name for name in rows if ratio(rows[name])]
    return {name: rows[name] for name in sorted(compared, key=lambda name: ratio(rows[name])[1])}


def below(rows):
    return [name for name, row in rows.items() if ratio(row) and ratio(row)[1] < BEHIND]


def group_of(name):
    """forward and backward rows: also whether causal"""
    kind = name.split()[0]
    return kind + (" causal" if name.endswith(" causal") else " full" if kind in ("forward", "backward") else "")


def group_summary(group, rows, behind):
    middles = [ratio(row)[1] for row in rows.values()]
    return (f"- {group}: {len(rows)} shapes, median {statistics.median(middles):.2f}, {min(middles):.2f} to "
            f"{max(middles):.2f}; {sum(m < 1 for m in middles)} below 1, "
            f"{sum(name in behind for name in rows)} below {BEHIND} beyond the spread")


def draw_summary(rows):
    """The medians, and each row below 0.97; it is behind if its upper quartile is also below."""
    rows = by_ratio(rows)
    if not rows:
        return "No row has a peer."
    low = {name: row for name, row in rows.items() if "first" in row or ratio(row)[1] < BEHIND}
    behind = [name for name, row in low.items() if ratio(row)[2] < BEHIND]
    groups = {}
    for name, row in sorted(rows.items(), key=lambda item: group_of(item[0])):
        groups.setdefault(group_of(name), {})[name] = row
    said = ["Fastest peer / ours:"] + [group_summary(group, some, behind) for group, some in groups.items()]
    said += ["", "Measured again:"] if low else []
    for name, row in low.items():
        verdict = ("behind" if name in behind else
                   "within the spread" if ratio(row)[1] < BEHIND else f"not below {BEHIND}")
        first = "first {1:.2f} ({0:.2f}-{2:.2f}), again ".format(*row["first"]) if "first" in row else ""
        said.append(f"- {name}: {first}{said_ratio(row)} {fastest(row)}: {verdict}")
    return "\n".join(said)


# ---- plots ---------------------------------------------------------------------------------------

STYLE = """<style>
text { font: 12px sans-serif; fill: #1f2328 } .faint { fill: #59636e } .paper { fill: #fff }
.grid { stroke: #d1d9e0 } .even { stroke: #59636e; stroke-dasharray: 3 3 }
.c0 { stroke: #0969da } .c1 { stroke: #bc4c00 } .c0.full { fill: #0969da } .c1.full { fill: #bc4c00 }
.open { fill: #fff }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .faint { fill: #9198a1 } .paper, .open { fill: #0d1117 }
.grid { stroke: #30363d } .even { stroke: #9198a1 }
.c0 { stroke: #58a6ff } .c1 { stroke: #f0883e } .c0.full { fill: #58a6ff } .c1.full { fill: #f0883e }
}
</style>"""
STEP, LEFT, WIDE, TOP = 20, 260, 440, 74
TICKS = (0.2, 0.3, 0.5, 0.7, 1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)


def dot(mark, x, y):
    return f'<circle class="{mark}" cx="{x:.1f}" cy="{y}" r="4" stroke-width="2"/>'


def picture(title, legend, rows, lines):
    """Dots with quartiles on a logarithmic axis. legend: {class: text}; rows: [(label, note, [(class,
    quartiles)])]; lines: marked ticks."""
    ends = [end for *_, dots in rows for _, (low, _, high) in dots for end in (low, high)]
    low, high = min([0.7, *ends]) / 1.1, max([2.0, *ends]) * 1.1

    def x(value):
        return LEFT + WIDE * math.log(value / low) / math.log(high / low)

    bottom, width = TOP + STEP * len(rows), LEFT + WIDE + 150
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{bottom + 34}" '
           f'viewBox="0 0 {width} {bottom + 34}">', STYLE,
           '<rect class="paper" width="100%" height="100%"/>',
           '<text x="12" y="20">The fastest peer\'s time / ours, with quartiles: right of 1 ours is '
           f'faster</text><text class="faint" x="12" y="38">{title}</text>']
    for i, (mark, text) in enumerate(legend.items()):
        out += [dot(mark, 18 + 160 * i, 54), f'<text x="{28 + 160 * i}" y="58">{text}</text>']
    for tick in (t for t in TICKS if low <= t <= high):
        out.append(f'<path class="{"even" if tick in lines else "grid"}" d="M{x(tick):.1f} {TOP - 6}V'
                   f'{bottom + 4}"/><text class="faint" x="{x(tick):.1f}" y="{bottom + 20}" '
                   f'text-anchor="middle">{tick:g}</text>')
    for number, (label, note, dots) in enumerate(rows):
        y = TOP + STEP * number + 8
        out.append(f'<text x="{LEFT - 10}" y="{y + 4}" text-anchor="end">{label}</text>'
                   f'<text class="faint" x="{LEFT + WIDE + 12}" y="{y + 4}">{note}</text>')
        out += [f'<path class="{mark}" d="M{x(q[0]):.1f} {y}H{x(q[2]):.1f}"/>{dot(mark, x(q[1]), y)}'
                for mark, q in reversed(dots)]
    return "\n".join(out) + "\n</svg>\n"


def threads_picture(title, runs):
    """A row for each piece of work, a dot for each number of threads. runs: {threads: rows}"""
    marks = ("c0 full", "c1 open", "c0 open", "c1 full")
    legend = {mark: common.plural(threads, "thread") for mark, threads in zip(marks, runs)}
    rows = []
    for name in dict.fromkeys(name for run in runs.values() for name in run):
        found = [(mark, run[name]) for mark, run in zip(marks, runs.values())
                 if name in run and ratio(run[name])]
        if found:
            note = ", ".join(dict.fromkeys(fastest(row) for _, row in found))
            rows.append((name, note, [(mark, ratio(row)) for mark, row in found]))
    return picture(title, legend, rows, (1,))


def draw_picture(title, runs):
    """Every shape of a draw, sorted, per number of threads."""
    legend, rows = {}, []
    for i, (threads, run) in enumerate(runs.items()):
        for name, row in by_ratio(run).items():
            causal = name.endswith(" causal")
            mark = f"c{int(causal)} {'open' if i else 'full'}"
            text = "causal" if causal else "not causal"
            legend[mark] = text + (f", {common.plural(threads, 'thread')}" if len(runs) > 1 else "")
            label = name.removeprefix("forward ").removesuffix(" causal")
            rows.append((label, fastest(row), [(mark, ratio(row))]))
    rows.sort(key=lambda row: row[2][0][1][1])
    return picture(title, dict(sorted(legend.items())), rows, (1, 1.2))


# ---- the page ------------------------------------------------------------------------------------


PACKAGES = (("torch", "torch"), ("onnxruntime", "onnxruntime"), ("OpenVINO", "openvino"), ("JAX", "jax"),
            ("NumPy", "numpy"))


def versions(packages=PACKAGES):
    def version(name):
        try:
            return importlib.metadata.version(name).split("+")[0].split("-")[0]
        except importlib.metadata.PackageNotFoundError:
            return "missing"
    return ", ".join(f"{said} {version(name)}" for said, name in packages)


def page(found, command, draw):
    """found: {threads: {"isa": ..., "rows": ...}}; draw: its seed, or None."""
    measured = {**common.processor(), "isa": next(iter(found.values()))["isa"], "date": common.today()}
    said = [common.heading(measured, versions()), f"    {command}"]
    for threads, results in found.items():
        rows = results["rows"] if draw is None else by_ratio(results["rows"])
        said.append(f"{common.plural(threads, 'thread')}:")
        said += ([] if draw is None else [draw_summary(rows)]) + [table(rows)]
    return "\n\n".join(said) + "\n"


def plot(found, draw):
    here = common.processor()
    name = here["microarchitecture"] or here["processor"] or here["processor_id"] or "?"
    runs = {threads: results["rows"] for threads, results in found.items()}
    title = f"{name}, {next(iter(found.values()))['isa']}, {common.today()}"
    if draw is None:
        return threads_picture(title, runs)
    threads = f", {common.plural(*runs, 'thread')}" if len(runs) == 1 else ""
    return draw_picture(f"{title}, draw {draw}{threads}", runs)
