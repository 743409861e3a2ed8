#!/usr/bin/env python3
"""Draw when each host computes and when it waits: timeline.py TIMELINE PICTURE.svg

TIMELINE is what run.py --timeline wrote. What a row leaves white is packing and agreeing, which take no time there.
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


def joined(spans, least):
    """Spans of one kind that follow each other closer than a tenth of a pixel are one."""
    done = []
    for what, begin, end in spans:
        if done and done[-1][0] == what and begin - done[-1][2] < least:
            done[-1] = (what, done[-1][1], end)
        else:
            done.append((what, begin, end))
    return done


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
        out += [f'<rect x="{LEFT + begin * scale:.1f}" y="{y}" width="{(end - begin) * scale:.1f}" height="{ROW - 6}" '
                f'fill="{COLORS[what]}"/>' for what, begin, end in joined(spans, 0.1 / scale)
                if (end - begin) * scale >= 0.1]
    out += [text(LEFT, height - 8, "0 s"), text(WIDTH - 16, height - 8, f"{last:.1f} s", "end"), "</svg>"]
    return "\n".join(out) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(read(sys.argv[1])))


if __name__ == "__main__":
    main()
