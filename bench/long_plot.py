#!/usr/bin/env python3
"""Draw the table that bench/long.c prints: long_plot.py TABLE.md PICTURE.svg

Two panels with logarithmic axes: time and memory over length. Needs no package. Slope 1 is linear growth, slope 2
quadratic.
"""
import math
import sys

import common

COLORS = ("#d55e00", "#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#777777")
PANEL_W, PANEL_H, LEFT, TOP, GAP = 330, 300, 64, 56, 196
WIDTH, HEIGHT = LEFT + 2 * PANEL_W + 2 * GAP, TOP + PANEL_H + 56


def read_table(path):
    """[(kind, [(n, seconds, MB of arguments, MB beyond, MB of an n x n array), ...]), ...]"""
    kinds = {}
    with open(path, encoding="utf-8") as file:
        head = file.readline().strip()
        for line in file:
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if len(cells) != 7 or not cells[1].isdigit():
                continue
            n, seconds, _, arguments, beyond, square = map(float, cells[1:])
            kinds.setdefault(cells[0], []).append((n, seconds, arguments, beyond, square))
    return head, list(kinds.items())


def text(x, y, what, anchor="start", size=12, color="#222222", rotate=False):
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotate else ""
    return (f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" '
            f'text-anchor="{anchor}"{turn}>{what}</text>')


def line(x1, y1, x2, y2, color="#dddddd"):
    return (f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
            f'stroke="{color}" stroke-width="1"/>')


def spread(wanted, gap):
    """Positions of labels near the wanted ones, in the same order, at least gap apart."""
    order = sorted(range(len(wanted)), key=wanted.__getitem__)
    places = list(wanted)
    for before, after in zip(order, order[1:]):
        places[after] = max(places[after], places[before] + gap)
    return places


def number(value):
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def panel(left, title, series):
    """series: [(label, color, dashed, [(n, value), ...]), ...]"""
    values = [v for s in series for _, v in s[3]]
    lengths = sorted({n for s in series for n, _ in s[3]})
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    first, last = math.log2(lengths[0]), math.log2(lengths[-1])

    def at_x(n):
        return left + (math.log2(n) - first) / max(last - first, 1) * PANEL_W

    def at_y(value):
        return TOP + PANEL_H - (math.log10(value) - low) / (high - low) * PANEL_H

    out = [text(left, TOP - 14, title, size=14)]
    for power in range(low, high + 1):
        y = at_y(10.0**power)
        out += [line(left, y, left + PANEL_W, y),
                text(left - 6, y + 4, number(10.0**power), "end")]
    for n in lengths:
        out += [line(at_x(n), TOP, at_x(n), TOP + PANEL_H),
                text(at_x(n), TOP + PANEL_H + 18, number(n), "middle")]
    out.append(text(left + PANEL_W / 2, TOP + PANEL_H + 40, "length n (queries and keys)", "middle"))
    ends = spread([at_y(s[3][-1][1]) for s in series], 15)
    for (label, color, dashed, points), end in zip(series, ends):
        path = " ".join(f"{at_x(n):.1f},{at_y(v):.1f}" for n, v in points)
        dash = ' stroke-dasharray="5 4"' if dashed else ""
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" '
                   f'stroke-width="2"{dash}/>')
        out += [f'<circle cx="{at_x(n):.1f}" cy="{at_y(v):.1f}" r="3" fill="{color}"/>'
                for n, v in points if not dashed]
        out += [line(left + PANEL_W + 4, at_y(points[-1][1]), left + PANEL_W + 16, end, color),
                text(left + PANEL_W + 20, end + 4, label, color=color)]
    return out


def draw(head, kinds):
    times, memory = [], []
    for (name, rows), color in zip(kinds, COLORS):
        times.append((name, color, False, [(n, seconds) for n, seconds, *_ in rows]))
        memory.append((name, color, False, [(n, a + b) for n, _, a, b, _ in rows]))
    memory.append(("an n × n array", COLORS[-1], True, [(r[0], r[4]) for r in kinds[0][1]]))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
           f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
           text(LEFT, 22, head, color="#555555")]
    out += panel(LEFT, "processor seconds a call", times)
    out += panel(LEFT + PANEL_W + GAP, "peak MB: q, k, v, o and all else", memory)
    return "\n".join(out + ["</svg>"]) + "\n"


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__.strip())
    try:
        head, kinds = read_table(sys.argv[1])
        if not kinds:
            common.fail(f"{sys.argv[1]}: no rows of a table of bench/long.c")
        with open(sys.argv[2], "w", encoding="utf-8") as file:
            file.write(draw(head, kinds))
    except OSError as problem:
        common.fail(f"{problem.filename}: {problem.strerror}")
    except ValueError:
        common.fail(f"{sys.argv[1]}: not a table of bench/long.c")


if __name__ == "__main__":
    main()
