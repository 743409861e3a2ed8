"""The HTML report in headless Chromium: contents, keys, downloads, and forbidden actions.

Needs playwright (without its browsers) and a Chromium: $MHA_CHROMIUM, or chromium on the PATH.
libmultihead-render in MHA_LIBRARY_DIR writes the figures; its colours are the reference.
"""
import csv
import ctypes as C
import io
import json
import math
import pathlib
import random
import re
import struct
import xml.dom.minidom

from playwright import sync_api
import pytest

from html_report import RENDER, choose, wait_for_frames, write_report
from shared import ROOT

pytestmark = pytest.mark.gate(9)
SCALES = ["linear", "sqrt", "log", "rank"]


def as_float(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def attention(seed, rows, cols):
    """Rows that sum to 1, with a few large weights and many small ones."""
    numbers = random.Random(seed)
    result = []
    for _ in range(rows):
        row = [numbers.random() ** 6 + 0.004 for _ in range(cols)]
        total = sum(row)
        result.append([as_float(v / total) for v in row])
    return result


TOKENS = ["[CLS]", "the", "animal", "did", "not", "cross", "the", "street", "[SEP]"]
N = len(TOKENS)
MAPS = [attention(seed, N, N) for seed in range(6)]
HI = max(v for m in MAPS for row in m for v in row)


@pytest.fixture(scope="module")
def plain(folder):
    return write_report(folder / "plain.html", MAPS, TOKENS, special=["[CLS]", "[SEP]"], groups=2)


def box(page):
    """The rectangle of the cells in the window: x, y, width, height."""
    page.locator("#map").scroll_into_view_if_needed()
    return page.locator("#grid").bounding_box()


def center(page, row, col, rows=N, cols=N):
    b = box(page)
    return b["x"] + (col + 0.5) * b["width"] / cols, b["y"] + (row + 0.5) * b["height"] / rows


def point_at(page, row, col, rows=N, cols=N):
    page.mouse.move(*center(page, row, col, rows, cols))


def resize(page, width):
    """Change the window's width and wait until the page is redrawn."""
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_function("width => innerWidth === width", arg=width)
    wait_for_frames(page)


def wait_until_complete(page):
    """Thumbnails are drawn in slices of time."""
    page.wait_for_function("performance.getEntriesByName('report-complete').length > 0")


def expect_text(page, selector, *parts):
    """Wait until the element contains all parts."""
    for part in parts:
        sync_api.expect(page.locator(selector)).to_contain_text(part)


def rank(row, col):
    return 1 + sum(v > row[col] for v in row)


def cell_color(page, row, col, rows=N, cols=N):
    """The colour of a cell near its corner, where it has no digits."""
    return page.evaluate("""([row, col, rows, cols]) => {
        const canvas = document.getElementById("cells");
        const grid = document.getElementById("grid").style;
        const k = canvas.width / parseFloat(canvas.style.width);
        const x = parseFloat(grid.left) + (col + 0.12) * parseFloat(grid.width) / cols;
        const y = parseFloat(grid.top) + (row + 0.12) * parseFloat(grid.height) / rows;
        const at = [Math.floor(x * k), Math.floor(y * k), 1, 1];
        return [...canvas.getContext("2d").getImageData(...at).data].slice(0, 3);
    }""", [row, col, rows, cols])


def color_of(t, cmap=0, dark=False):
    rgb = C.create_string_buffer(3)
    RENDER.mha_cmap_color(cmap, dark, round(255 * t) / 255, rgb)
    return list(rgb.raw)


def css_color(rgb):
    return f"rgb({rgb[0]}, {rgb[1]}, {rgb[2]})"


def bar_end(page):
    """The greatest value of the colour bar."""
    return float(page.locator("#legend").get_attribute("aria-label").split()[-1])


@pytest.mark.gate(1)
def test_opens_and_says_what_it_is(open_page, plain):
    page = open_page(plain)
    assert page.title() == "Test maps"
    expect_text(page, "h1", "Test maps")
    assert page.locator(".thumb").count() == 6
    assert page.locator(".group-name", has_text="Layer 1").count() == 1
    expect_text(page, "#name", "L0H0")
    assert page.locator("#ticks span").first.inner_text() == "0"
    assert bar_end(page) == pytest.approx(HI, rel=0.006)
    for text in page.locator("#ticks span").all_inner_texts():
        assert len(text.lstrip("0.").rstrip("0")) <= 2, "ticks are round"
    assert page.evaluate("performance.getEntriesByName('report-ready').length") == 1
    # The initially chosen cell is the map's link (defined in test_html_views.py).
    r, c = map(int, re.search(r'"link":\[(\d+),(\d+)\]', plain.read_text()).groups())
    expect_text(page, "#readout", TOKENS[r], TOKENS[c], f"{MAPS[0][r][c]:.4f}")


def test_hover_and_lock(open_page, plain):
    page = open_page(plain)
    point_at(page, 3, 7)
    for place in ("#tip", "#readout"):
        expect_text(page, place, "did", "street", f"{MAPS[0][3][7]:.4f}",
                    f"rank {rank(MAPS[0][3], 7)} of {N}")
    # The strip shows the colours of the row.
    chip = page.locator("#strip .chip").nth(7)
    want = color_of(MAPS[0][3][7] / HI)
    sync_api.expect(chip).to_have_css("background-color", css_color(want))  # it fades in
    assert "looking" in page.locator("#strip .chip").nth(3).get_attribute("class")
    page.mouse.click(*center(page, 3, 7))
    expect_text(page, "#readout", "locked")
    point_at(page, 5, 2)
    expect_text(page, "#tip", "cross", "animal")
    expect_text(page, "#readout", "did", "street", "locked")
    page.keyboard.press("Escape")
    point_at(page, 5, 1)
    expect_text(page, "#readout", "cross", f"{MAPS[0][5][1]:.4f}")
    assert "locked" not in page.locator("#readout").inner_text()
    page.mouse.move(2, 2)
    sync_api.expect(page.locator("#tip")).to_be_hidden()
    # A click on a token locks its row.
    page.locator("#strip .chip").nth(2).click()
    expect_text(page, "#readout", "animal", "locked")


def test_thumbnails(open_page, plain):
    page = open_page(plain)
    page.locator(".thumb").nth(4).hover()
    expect_text(page, "#name", "L1H1")
    page.mouse.move(2, 2)
    expect_text(page, "#name", "L0H0")
    page.locator(".thumb").nth(4).click()
    page.mouse.move(2, 2)
    expect_text(page, "#name", "L1H1")
    assert page.locator(".thumb").nth(4).get_attribute("aria-current") == "true"
    wait_until_complete(page)
    drawn = page.locator(".thumb canvas").nth(5).evaluate(
        "c => [...c.getContext('2d').getImageData(0, 0, 1, 1).data].slice(0, 3)")
    assert drawn == color_of(MAPS[5][0][0] / HI)


def live(page):
    return page.locator("#live").inner_text()


def test_keyboard(open_page, plain):
    page = open_page(plain)
    page.focus("#cell")
    page.keyboard.press("Control+Home")
    value, place = MAPS[0][0][0], rank(MAPS[0][0], 0)
    assert live(page) == f"query 0 '[CLS]' → key 0 '[CLS]': {value:.4f}, rank {place} of {N}"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert live(page).startswith("query 2 'animal' → key 1 'the'")
    page.keyboard.press("End")
    assert live(page).startswith("query 2 'animal' → key 8 '[SEP]'")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowLeft")
    assert live(page).startswith("query 2 'animal' → key 0")
    page.keyboard.press("PageDown")
    assert live(page).startswith("query 8")
    page.keyboard.press("Control+End")
    assert live(page).startswith("query 8 '[SEP]' → key 8")
    assert page.get_attribute("#grid-row", "aria-rowindex") == "9"
    assert page.get_attribute("#grid", "aria-rowcount") == "9"
    page.keyboard.press("Enter")
    assert live(page).startswith("Locked: query 8")
    assert page.get_attribute("#cell", "aria-selected") == "true"
    page.keyboard.press("Escape")
    assert live(page).startswith("Unlocked")
    for key, name in (("]", "L0H1"), ("]", "L0H2"), ("}", "L1H2"), ("[", "L1H1"), ("{", "L0H1"),
                      ("{", "L0H1")):
        page.keyboard.press(key)
        expect_text(page, "#name", name)
    page.keyboard.press("?")
    assert page.locator("#help-sheet").is_visible()
    page.keyboard.press("Escape")
    assert not page.locator("#help-sheet").is_visible()
    # The thumbnails are one tab stop with navigation by arrow keys.
    assert page.locator(".thumb[tabindex='0']").count() == 1
    page.locator(".thumb[tabindex='0']").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    expect_text(page, "#name", "L1H2")
    assert page.evaluate("document.activeElement.dataset.panel") == "5"


def test_tab_reaches_everything_once(open_page, plain):
    page = open_page(plain)
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        stop = page.evaluate("""() => {
            const e = document.activeElement;
            if (e === document.body) return "";
            return e.id || e.name || e.dataset.panel || e.textContent.trim();
        }""")
        if stop in stops or not stop:
            break
        stops.append(stop)
    for want in ("cmap", "scale", "range", "Hide tokens", "find", "theme", "help", "0", "cell",
                 "Save"):
        assert want in stops, stops


def test_scales_and_ranges(open_page, plain):
    page = open_page(plain)
    every = sorted(v for m in MAPS for row in m for v in row)
    lowest = HI / 1e4
    shapes = {
        "linear": lambda v: v / HI,
        "sqrt": lambda v: math.sqrt(v / HI),
        "log": lambda v: math.log(max(v, lowest) / lowest) / math.log(HI / lowest),
        "rank": lambda v: sum(o < v for o in every) / (len(every) - 1),
    }
    for kind in SCALES:
        choose(page.locator(f"#scale input[value={kind}]"))
        for r, c in ((0, 0), (3, 7), (8, 8), (4, 1)):
            got, want = cell_color(page, r, c), color_of(shapes[kind](MAPS[0][r][c]))
            assert all(abs(g - w) <= 3 for g, w in zip(got, want)), (kind, r, c, got, want)
    choose(page.locator("#scale input[value=linear]"))
    choose(page.locator("#range input[value=panel]"))
    own = max(v for row in MAPS[0] for v in row)
    assert cell_color(page, 3, 7) == color_of(MAPS[0][3][7] / own)
    assert bar_end(page) == pytest.approx(own, rel=0.006)
    page.keyboard.press("s")
    assert page.locator("#scale input[value=sqrt]").is_checked()
    page.keyboard.press("r")
    assert page.locator("#range input[value=shared]").is_checked()
    page.select_option("#cmap", "blues")
    assert cell_color(page, 3, 7) == color_of(math.sqrt(MAPS[0][3][7] / HI), cmap=1)


def hidden_share(row):
    return (row[0] + row[8]) / sum(row)


def test_hiding_tokens(open_page, plain):
    page = open_page(plain)
    page.locator("#hide summary").click()
    page.locator("#special").check()
    page.keyboard.press("Escape")
    assert page.get_attribute("#grid", "aria-rowcount") == "7"
    page.focus("#cell")
    page.keyboard.press("Control+Home")
    row = MAPS[0][1]
    left = row[1] / sum(row[1:8])
    assert f"query 1 'the' → key 1 'the': {left:.4f}" in live(page)
    expect_text(page, "#readout", f"{100 * hidden_share(row):.1f} % of the row hidden")
    shares = [hidden_share(r) for r in MAPS[0][1:8]]
    expect_text(page, "#notes", f"{100 * sum(shares) / 7:.1f} %", f"{100 * min(shares):.1f} %",
                f"{100 * max(shares):.1f} %", "“[CLS]”, “[SEP]”", "rescaled")
    most = max(v / sum(r[1:8]) for m in MAPS for r in m[1:8] for v in r[1:8])
    assert cell_color(page, 0, 0, 7, 7) == color_of(left / most)
    page.locator("#hide summary").click()
    page.locator("#renorm").uncheck()
    page.keyboard.press("Escape")
    expect_text(page, "#notes", "rows are not rescaled")
    expect_text(page, "#readout", f"{row[1]:.4f}")
    # Any other label can be hidden too. All equal labels are hidden together, and all can be
    # restored.
    page.locator("#hide summary").click()
    page.fill("#hide-filter", "the")
    page.locator("#hide-labels label:visible", has_text="the").first.click()
    assert page.get_attribute("#grid", "aria-rowcount") == "5"
    page.locator("#hide-none").click()
    assert page.get_attribute("#grid", "aria-rowcount") == "9"
    page.keyboard.press("Escape")
    page.keyboard.press("h")
    assert page.get_attribute("#grid", "aria-rowcount") == "7"


def test_finding(open_page, plain):
    page = open_page(plain)
    page.keyboard.press("/")
    page.keyboard.type("THE")
    assert live(page) == "2 tokens found"
    page.keyboard.press("Enter")
    assert live(page).startswith("query 1 'the'")
    page.keyboard.press("Enter")
    assert live(page).startswith("query 6 'the'")
    page.keyboard.press("Shift+Enter")
    assert live(page).startswith("query 1 'the'")
    assert page.locator("#strip .chip.found").count() == 2
    page.keyboard.press("Escape")
    assert page.input_value("#find") == ""


def save(page, what):
    page.locator("#save summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name=f"Save {what}", exact=True).click()
    return download.value.suggested_filename, pathlib.Path(download.value.path()).read_bytes()


def test_downloads_are_the_data(open_page, plain):
    page = open_page(plain)
    name, content = save(page, "this map as CSV")
    table = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert name == "L0H0.csv"
    assert table[0][1:] == TOKENS and [line[0] for line in table[1:]] == TOKENS
    assert [[as_float(float(v)) for v in line[1:]] for line in table[1:]] == MAPS[0]
    name, content = save(page, "all maps as JSON")
    data = json.loads(content)
    assert data["row_labels"] == TOKENS and data["hidden"] == [] and name == "maps.json"
    assert [m["name"] for m in data["maps"]] == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    assert [[[as_float(v) for v in row] for row in m["values"]] for m in data["maps"]] == MAPS
    _, content = save(page, "all maps as CSV")
    table = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert len(table) == 1 + 6 * N and table[-1][:2] == ["L1H2", "[SEP]"]
    assert [as_float(float(v)) for v in table[-1][2:]] == MAPS[5][8]
    name, content = save(page, "this map as SVG")
    document = xml.dom.minidom.parseString(content)
    drawn = ["".join(node.data for node in text.childNodes)
             for text in document.getElementsByTagName("text")]
    assert name == "L0H0.svg" and {"animal", "street", "L0H0", "key (attended to)"} <= set(drawn)
    want = color_of(MAPS[0][3][7] / HI)
    assert f"rgb({want[0]},{want[1]},{want[2]})" in content.decode()
    name, content = save(page, "this map as PNG")
    assert name == "L0H0.png" and content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert width > 600 and height > 600


def test_themes(open_page, plain):
    page = open_page(plain, color_scheme="dark")
    background = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(background) == "rgb(21, 23, 27)"
    page.select_option("#cmap", "blues")
    assert cell_color(page, 3, 7) == color_of(MAPS[0][3][7] / HI, cmap=1, dark=True)
    page.locator("#theme").click()
    assert page.evaluate(background) == "rgb(255, 255, 255)"
    assert cell_color(page, 3, 7) == color_of(MAPS[0][3][7] / HI, cmap=1)
    page.keyboard.press("d")
    assert page.evaluate(background) == "rgb(21, 23, 27)"


def test_widths(open_page, plain):
    page = open_page(plain)
    for width in (1400, 900, 400, 320):
        resize(page, width)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        b = box(page)
        assert b["x"] >= 0 and b["x"] + b["width"] <= width
        assert b["width"] > min(width, 500) * 0.4
        point_at(page, 2, 3)
        expect_text(page, "#readout", "animal", "did")
        for menu in ("#hide", "#save"):
            page.locator(f"{menu} summary").click()
            # The event that moves the sheet follows the click.
            page.wait_for_function("""menu => {
                const b = document.querySelector(`${menu} .sheet`).getBoundingClientRect();
                return b.width > 0 && b.left >= 0 && b.right <= innerWidth;
            }""", arg=menu)
        page.locator("h1").click()
        assert page.locator("details[open]").count() == 0


NASTY = ["</script><script>alert(1)</script>", "\"q\" 'q' \\",
         "\U0001F600\U0001F469\u200D\U0001F52C", "שלום עולם", "\u202eabc", "a b\tc\n",
         b"\xff\xfe", "<img src=x onerror=alert(1)>", "", "x" * 300]


def test_labels_stay_labels(open_page, folder):
    n = len(NASTY)
    path = write_report(folder / "nasty.html", [attention(1, n, n)], NASTY)
    page = open_page(path)
    assert page.evaluate("document.querySelectorAll('#app script, #app img').length") == 0
    shown = page.locator("#strip .chip").all_inner_texts()
    assert shown[:4] == [NASTY[0], "\"q\"·'q'·\\", NASTY[2], "שלום·עולם"]
    assert shown[4:7] == ["<U+202E>abc", "a·b␉c⏎", "\ufffd\ufffd"]
    point_at(page, 4, 5, n, n)
    expect_text(page, "#tip", "<U+202E>abc", '"\\u{202e}abc"', '"a b\\tc\\n"')
    name, content = save(page, "this map as CSV")
    head = next(csv.reader(io.StringIO(content.decode(), newline="")))
    assert head[1:6] == NASTY[:5] and head[10] == NASTY[9]
    _, content = save(page, "this map as SVG")
    xml.dom.minidom.parseString(content)
    resize(page, 400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_csv_holds_no_formula(open_page, folder):
    """Texts that a spreadsheet would execute get a leading quote in every field. Numbers remain
    numbers."""
    raw = ["=1+1", "+cmd|' /C calc'!A0", "-x", "@SUM(1,2)", "\t=1", "\r=1", "\n=1", "\uff1d1",
           "-0.5", "+1e-3", "-.5", "a=b", "5;=1"]
    safe = ["'" + text for text in raw[:8]] + raw[8:]
    n = len(raw)
    values = attention(1, n, n)
    values[0][0] = -0.5
    path = write_report(folder / "formulas.html", [values, values], raw, names=["=A", "-1"],
                        badges=["@B", None], columns=[("=C", "", [-0.5, 1e-9], False)])
    page = open_page(path)

    def table(what):
        content = save(page, what)[1].decode()
        return list(csv.reader(io.StringIO(content, newline="")))
    one = table("this map as CSV")
    assert one[0][1:] == safe and [line[0] for line in one[1:]] == safe
    assert [[as_float(float(v)) for v in line[1:]] for line in one[1:]] == values
    both = table("all maps as CSV")
    assert both[0][2:] == safe and {line[0] for line in both[1:]} == {"'=A", "-1"}
    assert [line[1] for line in both[1:n + 1]] == safe and both[1][2] == "-0.5"
    assert table("scores as CSV") == [["map", "role", "'=C"], ["'=A", "'@B", "-0.5"],
                                      ["-1", "", "1e-9"]]


def test_masked_and_not_finite(open_page, folder):
    values = attention(3, 5, 5)
    values[4][1] = math.nan
    values[4][2] = math.inf
    masked = [[int(c > r) for c in range(5)] for r in range(5)]
    path = write_report(folder / "causal.html", [values], list("abcde"), masked=masked)
    page = open_page(path)
    assert page.locator("#key-masked").is_visible() and page.locator("#key-bad").is_visible()
    point_at(page, 1, 3, 5, 5)
    expect_text(page, "#tip", "masked")
    assert "rank" not in page.locator("#tip").inner_text()
    point_at(page, 2, 0, 5, 5)
    expect_text(page, "#tip", "of 3 in the row")
    point_at(page, 4, 1, 5, 5)
    expect_text(page, "#tip", "NaN")
    point_at(page, 4, 2, 5, 5)
    expect_text(page, "#tip", "Infinity")
    _, content = save(page, "this map as JSON")
    rows = json.loads(content)["maps"][0]["values"]
    assert rows[0][1] is None and rows[4][1] == "nan" and as_float(rows[4][0]) == values[4][0]


@pytest.mark.parametrize("rows,cols", [(1, 1), (3, 40), (40, 3), (1, 300)])
def test_shapes(open_page, folder, rows, cols):
    maps = [attention(i, rows, cols) for i in range(2)]
    path = write_report(folder / f"shape{rows}x{cols}.html", maps, [f"r{i}" for i in range(rows)],
                        col_labels=[f"c{i}" for i in range(cols)])
    page = open_page(path)
    row, col = rows - 1, cols // 2
    point_at(page, row, col, rows, cols)
    expect_text(page, "#readout", f"r{row}", f"c{col}", f"{maps[0][row][col]:.4f}")
    page.keyboard.press("s")
    page.keyboard.press("]")
    expect_text(page, "#name", "L0H1")


def test_signed_values(open_page, folder):
    values = [[as_float(v - 0.2) for v in row] for row in attention(5, 4, 4)]
    path = write_report(folder / "signed.html", [values], list("abcd"), cmap=6)
    page = open_page(path)
    reach = max(abs(v) for row in values for v in row)
    assert "0" in page.locator("#ticks span").all_inner_texts()
    for r, c in ((0, 0), (1, 2), (3, 3)):
        want = color_of((values[r][c] + reach) / (2 * reach), cmap=6)
        assert cell_color(page, r, c, 4, 4) == want
    assert page.locator("#scale input").count() == 3  # no logarithm of negative values


def test_many_heads_of_512_tokens(open_page, folder, capsys):
    n, heads = 512, 72
    numbers = random.Random(9)
    row = [numbers.random() ** 8 for _ in range(n)]
    total = sum(row)
    values = [[as_float(v / total) for v in row[i:] + row[:i]] for i in range(n)]
    values[101][201] = 0.875
    path = write_report(folder / "large.html", [values] * heads, [f"t{i}" for i in range(n)],
                        groups=6, special=["t0"])
    assert path.stat().st_size <= 10_000_000
    page = open_page(path)
    tell_times(page, capsys, f"{n} tokens, {heads} maps")
    assert box(page)["width"] == pytest.approx(box(page)["height"], abs=1.5)
    expect_text(page, "#notes", "1 cell = 2×2 tokens, max", "8 bits")
    point_at(page, 50, 100, 256, 256)
    expect_text(page, "#readout", "t100 t101", "t200 t201", "±", "rank 1 of 256")
    got = float(re.search(r"(0\.\d+) ±", page.locator("#readout").inner_text()).group(1))
    assert abs(got - 0.875) <= 0.005
    page.locator("#hide summary").click()
    expect_text(page, "#hide-refused", "2×2 tokens")
    page.keyboard.press("Escape")
    for _ in range(4):
        page.keyboard.press("+")
    expect_text(page, "#zoom-text", "16×")
    page.focus("#cell")
    page.keyboard.press("Control+End")
    assert live(page).startswith("query 510–511")
    page.keyboard.press("s")
    page.keyboard.press("}")
    expect_text(page, "#name", "L1H0")


def test_without_scripts(open_page, plain, folder):
    page = open_page(plain, java_script_enabled=False)
    assert page.locator("noscript svg").is_visible()
    assert "L1H2" in page.locator(".panels").inner_text()
    assert not page.locator("#app").is_visible()
    big = write_report(folder / "big.html", [attention(1, 300, 300)] * 8,
                       [str(i) for i in range(300)])
    page = open_page(big, java_script_enabled=False)
    assert page.locator(".panels img").count() == 8
    assert page.locator(".panels img").first.evaluate("i => i.naturalWidth") > 0


def test_forced_colors_and_print(open_page, plain):
    page = open_page(plain, forced_colors="active")
    point_at(page, 3, 7)
    expect_text(page, "#readout", "street")
    page = open_page(plain, color_scheme="dark")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator(".controls").is_visible() and page.locator("#cells").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 23, 27)"


# -- data of the maps: cards, roles, orders, scores, twins, charts, playback -----------------------

BADGES = ["previous token", "first token", None, "previous token", "it → animal", None]
IMPORTANCE = [0.5, 0.125, None, 0.75, 0.25, 0.0]
ENTROPY = [1.5, 2.5, 0.5, 3.0, 1.0, 2.0]
STEPS = [0, 100, 200, 300]
LOSS = [2.5, None, 1.0, 0.25]
TWINS = [[[as_float(v * (1 + (r + c) % 4)) for c, v in enumerate(row)] for r, row in enumerate(m)]
         for m in MAPS]
FLAT = [[1 / N] * N for _ in range(N)]
EARLY = [[as_float(0.5 * v + 0.5 / N) for v in row] for row in MAPS[0]]
TWIN_HI = max(v for m in TWINS for row in m for v in row)


def write_evidence(path, **options):
    measures = [[("on the previous token", 0.94, 1 / 9, 0, 63, "rows"),
                 ("entropy", ENTROPY[i], math.log2(9), 4, 0, "bits"),
                 ("missing", math.nan, 0, 0, 0, None)] +
                [(f"measure {k}", k / 10, 0, 0, 0, None) for k in range(6)] if i == 0 else []
                for i in range(6)]
    curves = [dict(title="Training", caption="64 sentences", x_axis="step", y_axis="loss",
                   timeline=True, series=[("loss", STEPS, LOSS, False),
                                          ("accuracy", [0, 300], [0.0, 0.75], False)]),
              dict(title="Pruning", x_axis="heads kept", y_axis="accuracy",
                   series=[("by importance", [0, 3, 6], [0.1, 0.9, 1.0], False),
                           ("random", [0, 3, 6], [0.1, 0.4, 1.0], True)]),
              dict(title="Size", x_axis="heads kept", y_axis="parameters",
                   series=[("all", [0, 6], [64192.0, 97088.0], False)])]
    frames = [("step 0", 0, [FLAT] * 6), ("step 100", 100, [EARLY] + [None] * 5),
              ("step 200", 200, [MAPS[0]] + [FLAT] * 5)]
    columns = [("importance", "What is lost without the head.", IMPORTANCE, False),
               ("entropy", None, ENTROPY, True)]
    return write_report(path, MAPS, TOKENS, special=["[CLS]", "[SEP]"], groups=2, badges=BADGES,
                        details=["First sentence.\nSecond one."] + [None] * 5, measures=measures,
                        twins=TWINS, twin_name="norm of what arrives", twin_value="norm",
                        curves=curves, columns=columns, frames=frames, **options)


@pytest.fixture(scope="module")
def evidence(folder):
    return write_evidence(folder / "evidence.html")


def thumbs_in_order(page):
    return [int(i) for i in page.eval_on_selector_all(".thumb", "e => e.map(t => t.dataset.panel)")]


def test_cards(open_page, evidence):
    page = open_page(evidence)
    expect_text(page, "#badge", "previous token")
    assert page.locator("#detail p").all_inner_texts() == ["First sentence.", "Second one."]
    names = page.locator("#measures dt").all_inner_texts()
    assert names[:3] == ["on the previous token", "entropy", "missing"] and len(names) == 6
    numbers = page.locator("#measures .number").all_inner_texts()
    assert numbers[:3] == ["0.940", "1.50", "–"]
    about = page.locator("#measures .about").all_inner_texts()
    assert about[:3] == ["chance 0.111 · 63 rows", "chance 3.17 · bits", ""]
    gauge = page.locator("#measures .gauge").first
    part = gauge.evaluate("g => g.firstChild.offsetWidth / g.offsetWidth")
    tick = gauge.evaluate("g => g.lastChild.style.left")
    assert part == pytest.approx(0.94, abs=0.02) and tick == f"{100 / 9:.4f}%"
    assert page.locator("#measures .gauge").nth(2).locator(".chance").count() == 0
    page.locator("#measures-more").click()
    assert page.locator("#measures dt").count() == 9
    page.keyboard.press("]")
    expect_text(page, "#badge", "first token")
    assert not page.locator("#card").is_visible()
    page.keyboard.press("]")
    assert not page.locator("#badge").is_visible()
    badges = page.locator(".thumb .badge-line").all_inner_texts()
    assert all(shown in (badge, badge.split()[0]) if badge else not shown
               for shown, badge in zip(badges, BADGES))


def test_roles(open_page, evidence):
    page = open_page(evidence)
    chips = page.locator("#roles .role")
    assert chips.all_inner_texts() == ["previous token\n2", "first token\n1", "it → animal\n1"]
    chips.first.click()
    assert live(page) == "previous token: 2 maps"
    assert page.locator(".thumb.other").count() == 4
    assert page.locator("#scores-body tr.other").count() == 4
    for name in ("L1H0", "L1H0"):  # keys stay within the role and stop at its end
        page.keyboard.press("]")
        expect_text(page, "#name", name)
    page.keyboard.press("[")
    expect_text(page, "#name", "L0H0")
    chips.nth(2).click()
    expect_text(page, "#name", "L1H1")
    chips.nth(2).click()
    assert live(page) == "all roles" and page.locator(".thumb.other").count() == 0


def test_orders(open_page, evidence):
    page = open_page(evidence)
    options = page.locator("#order option").all_inner_texts()
    assert options == ["index", "role", "importance", "entropy"]
    orders = {"role": [1, 4, 0, 3, 2, 5], "0": [3, 0, 4, 1, 5, 2], "1": [2, 4, 0, 5, 1, 3],
              "index": [0, 1, 2, 3, 4, 5]}
    for order, want in orders.items():
        page.select_option("#order", order)
        assert thumbs_in_order(page) == want, order
    page.focus(".thumb")
    for order in ("role", "0", "1"):
        page.keyboard.press("o")
        assert thumbs_in_order(page) == orders[order]
    page.focus(".thumb[tabindex='0']")
    page.keyboard.press("Home")
    expect_text(page, "#name", "L0H2")
    page.keyboard.press("ArrowRight")
    expect_text(page, "#name", "L1H1")
    page.keyboard.press("]")
    expect_text(page, "#name", "L0H0")
    page.keyboard.press("End")
    page.keyboard.press("End")
    assert page.evaluate("document.activeElement.classList.contains('thumb')")
    expect_text(page, "#name", "L1H0")


def test_scores(open_page, evidence):
    page = open_page(evidence)
    rows = page.locator("#scores-body tr")
    assert rows.first.locator("th, td").all_inner_texts() == [
        "L0H0", "previous token", "0.500", "1.50"]
    expect_text(page, "#scores-about", "What is lost without the head.")

    def order():
        return [text.split("\t")[0] for text in rows.all_inner_texts()]

    def sort(name):
        page.locator("#scores-head").get_by_role("button", name=name).click()
        return order()

    by_importance = ["L1H0", "L0H0", "L1H1", "L0H1", "L1H2", "L0H2"]
    assert sort("importance") == by_importance
    assert page.locator("th[aria-sort=descending]").inner_text().startswith("importance")
    assert sort("importance") == by_importance[4::-1] + ["L0H2"]  # missing values stay last
    assert sort("entropy") == ["L0H2", "L1H1", "L0H0", "L1H2", "L0H1", "L1H0"]
    assert sort("role")[:4] == ["L0H1", "L1H1", "L0H0", "L1H0"]
    name, content = save(page, "scores as CSV")
    lines = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert name == "scores.csv" and lines[0] == ["map", "role", "importance", "entropy"]
    assert lines[1] == ["L0H1", "first token", "0.125", "2.5"]
    assert lines[-2] == ["L0H2", "", "", "0.5"]
    rows.nth(1).click()
    expect_text(page, "#name", "L1H1")
    assert page.locator("#scores-body tr.here").count() == 1
    button = rows.nth(2).get_by_role("button")
    button.focus()
    page.keyboard.press("Enter")
    expect_text(page, "#name", "L0H0")


def test_twins(open_page, evidence):
    page = open_page(evidence)
    expect_text(page, "#map-head", "weight", "0", f"{HI:.3g}")
    expect_text(page, "#twin-head", "norm of what arrives", "norm", f"{TWIN_HI:.3g}")
    main, twin = page.locator("#cells").bounding_box(), page.locator("#twin-cells").bounding_box()
    assert twin["x"] > main["x"] + main["width"] - 1 and twin["y"] == main["y"]
    # The same cell is shown in both maps, for the pointer on either map, each with its own colours
    # and rank.
    value, other = MAPS[0][3][7], TWINS[0][3][7]
    want = color_of(other / TWIN_HI)
    grid = box(page)
    size = grid["width"] / N
    x = twin["x"] + 2 + 7.12 * size
    got = page.evaluate("""([x, y]) => {
        const canvas = document.getElementById("twin-cells"), b = canvas.getBoundingClientRect();
        const k = canvas.width / b.width;
        const at = [Math.floor((x - b.left) * k), Math.floor((y - b.top) * k), 1, 1];
        return [...canvas.getContext("2d").getImageData(...at).data].slice(0, 3);
    }""", [x, grid["y"] + 3.12 * size])
    assert all(abs(g - w) <= 3 for g, w in zip(got, want))
    page.mouse.move(x + 0.4 * size, grid["y"] + 3.5 * size)
    for spot in ("#tip", "#readout"):
        expect_text(page, spot, "did", "street", f"{value:.4f}", f"norm {other:.4f}",
                    f"rank {rank(TWINS[0][3], 7)}")
    page.mouse.click(x + 0.4 * size, grid["y"] + 3.5 * size)
    assert live(page).startswith("Locked: query 3 'did' → key 7 'street'")
    assert f"; norm {other:.4f}, rank {rank(TWINS[0][3], 7)}" in live(page)
    expect_text(page, "#row-body", "norm", f"{other:.4f}")
    page.keyboard.press("n")
    assert not page.locator("#twin").is_visible() and not page.locator("#map-head").is_visible()
    page.keyboard.press("n")
    choose(page.locator("#range input[value=panel]"))
    own = max(v for row in TWINS[0] for v in row)
    expect_text(page, "#twin-head", f"{own:.3g}")
    page.keyboard.press("h")  # hiding tokens hides them in both
    assert page.get_attribute("#grid", "aria-rowcount") == "7"
    resize(page, 400)
    main, twin = page.locator("#cells").bounding_box(), page.locator("#twin-cells").bounding_box()
    assert twin["y"] >= main["y"] + main["height"]


def test_row_only(open_page, evidence):
    page = open_page(evidence)
    point_at(page, 3, 7)
    page.mouse.click(*center(page, 3, 7))
    veil = """row => {
        const canvas = document.getElementById("marks"), g = document.getElementById("grid").style;
        const k = canvas.width / parseFloat(canvas.style.width), h = parseFloat(g.height) / 9;
        const at = [(parseFloat(g.left) + 2.5 * h) * k, (parseFloat(g.top) + (row + 0.5) * h) * k];
        return canvas.getContext("2d").getImageData(...at.map(Math.floor), 1, 1).data[3];
    }"""
    assert page.evaluate(veil, 1) == 0
    page.keyboard.press("f")
    assert page.evaluate(veil, 1) > 150 and page.evaluate(veil, 3) == 0
    assert page.get_attribute("#row-only", "aria-pressed") == "true"
    page.locator("#row-only").click()
    assert page.evaluate(veil, 1) == 0


def test_charts(open_page, evidence):
    page = open_page(evidence)
    first = page.locator(".curve").first
    expect_text(page, ".curve h3 >> nth=0", "Training", "loss")
    assert first.locator(".chart").get_attribute("aria-label") == (
        "Training, loss: loss ends at 0.25; accuracy ends at 0.75")
    assert first.locator("figcaption").inner_text() == "64 sentences"
    # A missing point is a gap, with a dot before it and a line after it.
    assert first.locator(".chart > circle.line-0").count() == 1
    assert first.locator(".chart > polyline.line-0").count() == 1
    assert page.locator(".curve").nth(1).locator("polyline.baseline").count() == 1
    chart = first.locator(".chart")
    chart.scroll_into_view_if_needed()
    b = chart.bounding_box()
    left = b["x"] + 46
    page.mouse.move(left + (b["width"] - 58) * 0.68, b["y"] + 60)
    expect_text(page, ".chart-legend >> nth=0", "step 200", "loss 1", "accuracy –")
    page.mouse.move(2, 2)
    expect_text(page, ".chart-legend >> nth=0", "loss 0.25")
    expect_text(page, ".chart-legend >> nth=2", "97088")  # a count is not rounded
    chart.focus()
    page.keyboard.press("Home")
    assert live(page) == "step 0, loss 2.5, accuracy 0"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert live(page) == "step 200, loss 1, accuracy –"
    assert first.locator(".overlay circle").count() == 1
    point = first.locator(".overlay circle")
    x = (float(point.get_attribute("cx")) - 46) / (b["width"] - 58)
    y = (float(point.get_attribute("cy")) - 10) / 146
    assert x == pytest.approx(2 / 3, abs=0.01) and y == pytest.approx(1 - 1 / 2.5, abs=0.01)


def test_playback(open_page, evidence):
    page = open_page(evidence)
    expect_text(page, "#frame-label", "now")
    expect_text(page, "#player-about", "3 snapshots, to step 200")
    page.keyboard.press(",")
    page.keyboard.press(",")
    assert live(page) == "step 100"
    assert page.input_value("#frame") == "1"
    assert page.get_attribute("#frame", "aria-valuetext") == "step 100"
    expect_text(page, "#notes", "step 100, in 8 bits")
    assert not page.locator("#twin").is_visible()
    point_at(page, 3, 7)
    expect_text(page, "#readout", "±")
    got = float(re.search(r"(0\.\d+) ±", page.locator("#readout").inner_text()).group(1))
    assert got == pytest.approx(EARLY[3][7], abs=0.01)
    # The figure and all frames have one range, so that a colour has the same meaning at every step.
    want = color_of(EARLY[3][7] / HI)
    assert all(abs(g - w) <= 6 for g, w in zip(cell_color(page, 3, 7), want))
    page.keyboard.press(".")
    expect_text(page, "#player-about", "loss 1")  # the chart's value at step 200
    page.locator(".chart").first.focus()
    for key in ("Home", "ArrowRight", "Enter"):  # its points are the steps 0, 100, 200, 300
        page.keyboard.press(key)
    expect_text(page, "#frame-label", "step 100")
    chart = page.locator(".chart").first.bounding_box()
    page.mouse.click(chart["x"] + 46 + 0.99 * (chart["width"] - 58), chart["y"] + 60)
    expect_text(page, "#frame-label", "step 200")
    page.keyboard.press(",")
    expect_text(page, "#frame-label", "step 100")
    now = page.locator(".curve").first.locator(".now")
    assert now.count() == 1 and page.locator(".curve").nth(1).locator(".now").count() == 0
    page.keyboard.press("]")  # this map has no frame there: the figure's map is shown
    point_at(page, 2, 6)
    point_at(page, 3, 7)
    expect_text(page, "#readout", f"{MAPS[1][3][7]:.4f}")
    page.keyboard.press("[")
    page.locator("#frame").focus()
    page.keyboard.press("Home")
    expect_text(page, "#frame-label", "step 0")
    want = color_of(1 / N / HI)
    assert all(abs(g - w) <= 6 for g, w in zip(cell_color(page, 0, 0), want))
    page.clock.install()  # the test controls the clock
    page.locator("#play").click()
    assert page.get_attribute("#play", "aria-label") == "Stop the training"
    page.clock.run_for(60_000)
    expect_text(page, "#frame-label", "now")
    assert page.get_attribute("#play", "aria-label") == "Play the training"
    assert now.count() == 0 and page.locator("#twin").is_visible()
    page.keyboard.press("p")
    assert page.get_attribute("#play", "aria-label") == "Stop the training"
    page.keyboard.press("p")
    assert page.get_attribute("#play", "aria-label") == "Play the training"


def test_playback_with_reduced_motion(open_page, evidence):
    page = open_page(evidence, reduced_motion="reduce")
    for label in ("step 0", "step 100", "step 200", "now"):
        page.locator("#play").click()
        expect_text(page, "#frame-label", label)
        assert page.get_attribute("#play", "aria-label") == "Play the training"  # not playing


def test_frames_that_are_left_out(open_page, folder):
    frames = [(f"step {k}", k, [FLAT] * 6) for k in range(400)]
    path = write_report(folder / "many.html", MAPS, TOKENS, frames=frames, most_bytes=400000)
    assert path.stat().st_size <= 400000
    page = open_page(path)
    about = page.locator("#player-about").inner_text()
    kept = int(re.match(r"(\d+) of 400 snapshots are kept, to step 399", about).group(1))
    assert 8 <= kept < 400 and page.get_attribute("#frame", "max") == str(kept)


def test_keyboard_from_end_to_end(open_page, evidence):
    """Everything that the pointer can reach. Tab visits each control once; then each key is
    tested."""
    page = open_page(evidence)
    stops = []
    for _ in range(80):
        page.keyboard.press("Tab")
        stop = page.evaluate("""() => {
            const e = document.activeElement;
            if (e === document.body) return "";
            return e.id || e.name || e.getAttribute("class") + " " + e.textContent.trim();
        }""")
        if not stop:
            break
        stops.append(stop)
    for want in ("cmap", "scale", "range", "find", "theme", "help", "play", "frame", "order",
                 "role previous token2", "thumb L0H0previous token", "twin-button", "row-only",
                 "numbers", "measures-more", "cell", "chart loss", "sort importance", "link L1H2"):
        assert any(stop.startswith(want) for stop in stops) or want.startswith(("chart", "thumb")), (
            want, stops)
    assert sum(stop.startswith("thumb ") for stop in stops) == 1
    assert sum(stop.startswith("chart") for stop in stops) == 3
    page.keyboard.press("?")
    keys = page.locator("#help-keys dt").all_inner_texts()
    assert {"[", "]", "{", "}", "s", "c", "r", "h", "v", "f", "n", "o", "p", ",", ".", "t", "/", "+",
            "-", "d", "?", "Enter", "Esc"} <= set(keys)
    manual = (ROOT / "docs" / "report.md").read_text()
    for key in re.findall(r"`([^`])`", manual.split("## Keys")[1].split("\n## ")[0]):
        assert key in keys, "the manual names a key that does nothing"
    page.keyboard.press("Escape")
    for key in keys:  # none fails, in any order
        if len(key) == 1 and key not in "/?":
            page.keyboard.press(key)
    assert page.locator("#name").inner_text()


def png_size(content):
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def test_downloads_of_everything(open_page, evidence):
    page = open_page(evidence)
    _, content = save(page, "this map as JSON")
    data = json.loads(content)
    found = data["maps"][0]
    assert data["twin_name"] == "norm of what arrives" and data["cell_tokens"] == 1
    assert [[as_float(v) for v in row] for row in found["twin"]] == TWINS[0]
    assert found["badge"] == "previous token" and found["scores"]["importance"] == 0.5
    assert found["measures"][0]["value"] == 0.94 and found["measures"][2]["value"] is None
    name, content = save(page, "all maps as PNG")
    assert name == "maps.png"
    width, height = png_size(content)
    assert width >= 720 and height >= 500
    name, content = save(page, "all maps as SVG")
    document = xml.dom.minidom.parseString(content)
    words = ["".join(node.data for node in text.childNodes)
             for text in document.getElementsByTagName("text")]
    assert name == "maps.svg" and {"L0H0", "L1H2", "Test maps"} <= set(words)
    assert len(document.getElementsByTagName("image")) == 6
    first = [save(page, what)[1] for what in ("all maps as SVG", "all maps as PNG")]
    again = [save(page, what)[1] for what in ("all maps as SVG", "all maps as PNG")]
    assert first == again
    page.keyboard.press(",")
    _, content = save(page, "this map as JSON")
    data = json.loads(content)
    assert data["frame"] == "step 200" and "twin" not in data["maps"][0]
    assert data["maps"][0]["values"][3][7] == pytest.approx(MAPS[0][3][7], abs=0.01)


def test_evidence_in_a_narrow_dark_window(open_page, evidence):
    for scheme in ("dark", "light"):
        page = open_page(evidence, color_scheme=scheme)
        for width in (1400, 900, 400, 320):
            resize(page, width)
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            for place in ("#measures", "#roles", "#player", ".curve >> nth=0", "#twin-cells"):
                b = page.locator(place).bounding_box()
                if place == "#roles" and width <= 400:  # on a phone, maps precede them
                    assert b is None
                    continue
                assert b["x"] >= 0 and b["x"] + b["width"] <= width + 1, (place, width)
    page = open_page(evidence, forced_colors="active")
    expect_text(page, "#badge", "previous token")
    page.emulate_media(media="print")
    assert not page.locator("#player").is_visible() and page.locator("#scores").is_visible()
    assert page.locator("#scores-body .link").first.is_visible()


def test_hostile_texts_everywhere(open_page, folder):
    evil = "</script><img src=x onerror=alert(1)>&amp;\u202e\"'"
    curve = dict(title=evil, caption=evil, x_axis=evil, y_axis=evil,
                 series=[(evil, [0, 1], [math.nan, math.inf], False)])
    path = write_report(folder / "evil.html", [MAPS[0]] * 2, [evil] * 8 + [b"\xc0\x80\x01"],
                        badges=[evil, None], details=[evil + "\n" + evil, None],
                        measures=[[(evil, 0.5, 0.1, 0, 1, evil)], []], twins=[TWINS[0]] * 2,
                        twin_name=evil, twin_value=evil, curves=[curve],
                        columns=[(evil, evil, [math.nan, -math.inf], False)],
                        frames=[(evil, 0, [FLAT, FLAT])], names=[evil, "b"], text=evil, title=evil)
    page = open_page(path)
    assert page.locator("img").count() == 0 and page.locator("script").count() == 2
    expect_text(page, "#badge", "</script><img src=x")
    expect_text(page, "#detail", "onerror=alert(1)")
    expect_text(page, "#scores-body", "</script>", "–")
    page.keyboard.press(",")
    expect_text(page, "#frame-label", "</script>")
    for what in ("all maps as SVG", "this map as SVG"):
        xml.dom.minidom.parseString(save(page, what)[1])
    json.loads(save(page, "all maps as JSON")[1])
    resize(page, 400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400


def test_blocks_of_a_long_text(open_page, folder, capsys):
    n, side, heads = 4096, 512, 12
    numbers = random.Random(4)
    row = [numbers.random() ** 8 for _ in range(side)]
    values = [[as_float(v) for v in row[i:] + row[:i]] for i in range(side)]
    path = write_report(folder / "long.html", [values] * heads, ["?"] * side, cell_tokens=8,
                        tokens=[f"t{i}" for i in range(n)])
    assert path.stat().st_size <= 10_000_000
    page = open_page(path)
    expect_text(page, "#notes", "1 cell = 8×8 tokens, max")
    point_at(page, 50, 100, side, side)
    expect_text(page, "#readout", "t400 … t407", "t800 … t807", "rank")
    page.keyboard.press("/")
    page.keyboard.type("t4095")
    page.keyboard.press("Enter")
    assert live(page).startswith("query 4088–4095")
    tell_times(page, capsys, f"{n} tokens in {side} blocks, {heads} maps")


def tell_times(page, capsys, what):
    """Print the page's own timing marks. Times must not make a test fail on a busy machine."""
    wait_until_complete(page)
    marks = page.evaluate("""performance.getEntriesByType("mark").map(
        m => [m.name.replace("report-", ""), Math.round(m.startTime)])""")
    assert [name for name, _ in marks] == ["parse", "start", "ready", "complete"]
    with capsys.disabled():
        print(f"\n{what}: " + ", ".join(f"{name} {ms} ms" for name, ms in marks))
