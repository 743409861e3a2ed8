#!/usr/bin/env python3
"""Plot the computation and waiting times of each host: timeline.py TIMELINE PICTURE.svg

TIMELINE is written by run.py --timeline. Packing and agreement take no simulated time and stay blank.
"""
import sys

WIDTH, ROW, LEFT, TOP = 900, 26, 64, 44
COLORS = {"compute": "#0072b2", "wait": "#e69f00"}


def read(path):
    """{rank: [(what, begin, end), ...]}"""
    rows = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            rank, what, begin, end = line.split()
            rows.setdefault(int(rank), []).append((what, float(begin), float(end)))
    return rows


def columns(spans, scale, count):
    """Runs of pixels, (activity, first, end), by the dominant activity of each pixel."""
    shares = [dict.fromkeys(COLORS, 0.0) for _ in range(count)]
    for what, begin, end in spans:
        first, last = begin * scale, end * scale
        for i in range(int(first), min(count, int(last) + 1)):
            shares[i][what] += min(i + 1, last) - max(i, first)
    runs = []
    for i, share in enumerate(shares):
        what = max(share, key=share.get) if max(share.values()) > 0.5 else ""
        if runs and runs[-1][0] == what:
            runs[-1] = (what, runs[-1][1], i + 1)
        else:
            runs.append((what, i, i + 1))
    return [run for run in runs if run[0]]


def text(x, y, what, anchor="start"):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="12" fill="#222222" text-anchor="{anchor}">{what}</text>'


def draw(rows):
    last = max(end for spans in rows.values() for _, _, end in spans)
    scale, height = (WIDTH - LEFT - 16) / last, TOP + ROW * len(rows) + 28
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>']
    for i, (what, color) in enumerate(COLORS.items()):
        out += [f'<rect x="{LEFT + 100 * i}" y="14" width="12" height="12" fill="{color}"/>',
                text(LEFT + 100 * i + 18, 24, what)]
    for row, (rank, spans) in enumerate(sorted(rows.items())):
        y = TOP + ROW * row
        out.append(text(LEFT - 8, y + 14, f"rank {rank}", "end"))
        out += [f'<rect x="{LEFT + first}" y="{y}" width="{end - first}" height="{ROW - 6}" fill="{COLORS[what]}"/>'
                for what, first, end in columns(spans, scale, WIDTH - LEFT - 16)]
    out += [text(LEFT, height - 8, "0 s"), text(WIDTH - 16, height - 8, f"{last:.1f} s", "end"), "</svg>"]
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(read(sys.argv[1])))


if __name__ == "__main__":
    main()
