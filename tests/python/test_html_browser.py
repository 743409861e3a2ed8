"""The HTML report in headless Chromium: what it shows, its keys, its downloads, what it never does.

Needs playwright (its own browsers are not needed) and a Chromium: $MHA_CHROMIUM, or chromium on the
PATH. The figures come from libmultihead-render in MHA_LIBRARY_DIR, whose colours are the oracle.
"""
import csv
import ctypes as C
import io
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import xml.dom.minidom

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = (os.environ.get("MHA_CHROMIUM") or shutil.which("chromium")
            or shutil.which("chromium-browser"))
if not CHROMIUM:
    pytest.skip("no Chromium: install the package chromium, or set MHA_CHROMIUM",
                allow_module_level=True)
ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY_DIR = pathlib.Path(os.environ.get("MHA_LIBRARY_DIR") or ROOT / "build")
if not (LIBRARY_DIR / "libmultihead-render.so").exists():
    pytest.skip("this build has no libmultihead-render.so", allow_module_level=True)

Texts = C.POINTER(C.c_char_p)


class Panel(C.Structure):
    _fields_ = [("values", C.c_void_p), ("row_stride", C.c_int64), ("name", C.c_char_p),
                ("note", C.c_char_p), ("detail", C.c_char_p), ("group", C.c_int64),
                ("masked", C.c_void_p), ("mask_stride", C.c_int64)]


class Figure(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("panel_size", C.c_uint32), ("title", C.c_char_p),
                ("subtitle", C.c_char_p), ("footnote", C.c_char_p), ("row_axis", C.c_char_p),
                ("col_axis", C.c_char_p), ("rows", C.c_int64), ("cols", C.c_int64),
                ("row_labels", Texts), ("col_labels", Texts), ("panels", C.POINTER(Panel)),
                ("panel_count", C.c_int64), ("group_names", Texts), ("group_count", C.c_int64),
                ("columns", C.c_int64), ("cmap", C.c_int), ("range", C.c_int), ("lo", C.c_double),
                ("hi", C.c_double), ("scale", C.c_int), ("dark", C.c_bool),
                ("print_values", C.c_int), ("pixel_ratio", C.c_double), ("font_file", C.c_char_p),
                ("value_name", C.c_char_p)]


class Report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("text", C.c_char_p), ("facts", C.c_void_p),
                ("fact_count", C.c_int64), ("producer", C.c_char_p), ("same_labels", C.c_bool),
                ("most_bytes", C.c_int64), ("special", Texts), ("special_count", C.c_int64)]


class Sink(C.Structure):
    _fields_ = [("write", C.c_void_p), ("user", C.c_void_p)]


class Buffer(C.Structure):
    _fields_ = [("data", C.c_void_p), ("size", C.c_size_t), ("capacity", C.c_size_t)]


def load():
    C.CDLL(str(LIBRARY_DIR / "libmultihead.so"), mode=C.RTLD_GLOBAL)
    render = C.CDLL(str(LIBRARY_DIR / "libmultihead-render.so"))
    render.mha_buffer_sink.restype = Sink
    render.mha_cmap_color.argtypes = [C.c_int, C.c_bool, C.c_double, C.c_char_p]
    render.mha_cmap_color.restype = None
    return render


RENDER = load()
SCALES = ["linear", "sqrt", "log", "rank"]


def texts(strings):
    return (C.c_char_p * len(strings))(
        *[s if isinstance(s, bytes) else s.encode() for s in strings])


def write_report(path, maps, labels, col_labels=None, masked=None, special=(), groups=1,
                 **options):
    """maps: a list of [rows][cols] lists. Returns path."""
    rows, cols = len(maps[0]), len(maps[0][0]) if maps[0] else 0
    arrays = {id(m): (C.c_float * max(rows * cols, 1))(*[v for row in m for v in row])
              for m in {id(m): m for m in maps}.values()}
    mask = (C.c_uint8 * (rows * cols))(*[v for row in masked for v in row]) if masked else None
    panels = (Panel * len(maps))()
    each = len(maps) // groups
    for i, panel in enumerate(panels):
        panel.values = C.cast(arrays[id(maps[i])], C.c_void_p)
        panel.name = f"L{i // each}H{i % each}".encode()
        panel.group = i // each
        panel.masked = C.cast(mask, C.c_void_p) if mask else None
    row_texts, special_texts = texts(labels), texts(special)
    col_texts = texts(col_labels) if col_labels else row_texts
    names = texts([f"Layer {g}" for g in range(groups)])
    figure = Figure(struct_size=C.sizeof(Figure), panel_size=C.sizeof(Panel), title=b"Test maps",
                    row_axis=b"query (looking)", col_axis=b"key (looked at)", rows=rows, cols=cols,
                    row_labels=row_texts, col_labels=col_texts, panels=panels,
                    panel_count=len(maps), group_names=names, group_count=groups,
                    value_name=b"weight", **options)
    report = Report(struct_size=C.sizeof(Report), text=b"a text", producer=b"test",
                    same_labels=col_labels is None, special=special_texts,
                    special_count=len(special))
    buffer = Buffer()
    sink = RENDER.mha_buffer_sink(C.byref(buffer))
    assert RENDER.mha_render_html(C.byref(figure), C.byref(report), C.byref(sink)) == 0
    path.write_bytes(C.string_at(buffer.data, buffer.size))
    RENDER.mha_buffer_free(C.byref(buffer))
    return path


def as_float(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def attention(seed, rows, cols):
    """Rows that sum to 1, a few large weights and many small ones."""
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
def browser():
    with sync_api.sync_playwright() as playwright:
        engine = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield engine
        engine.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def plain(folder):
    return write_report(folder / "plain.html", MAPS, TOKENS, special=["[CLS]", "[SEP]"], groups=2)


@pytest.fixture
def open_page(browser):
    """Opens a file; at the end nothing must have been said, asked for or gone wrong."""
    contexts, complaints = [], []

    def opener(path, width=1400, height=1000, **options):
        context = browser.new_context(viewport={"width": width, "height": height},
                                      accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10000)
        # Reading pixels back is the test's own doing.
        page.on("console", lambda m: None if "willReadFrequently" in m.text
                else complaints.append(f"console {m.type}: {m.text}"))
        page.on("pageerror", lambda e: complaints.append(f"error: {e}"))
        page.on("dialog", lambda d: complaints.append(f"dialog: {d.message}"))
        own = path.as_uri()
        page.on("request", lambda r: None if r.url == own or r.url.startswith(("data:", "blob:"))
                else complaints.append(f"request: {r.url}"))
        page.goto(own)
        return page

    yield opener
    for context in contexts:
        context.close()
    assert complaints == []


def box(page):
    """Where the cells lie in the window: x, y, width, height."""
    page.locator("#map").scroll_into_view_if_needed()
    return page.locator("#grid").bounding_box()


def center(page, row, col, rows=N, cols=N):
    b = box(page)
    return b["x"] + (col + 0.5) * b["width"] / cols, b["y"] + (row + 0.5) * b["height"] / rows


def point_at(page, row, col, rows=N, cols=N):
    page.mouse.move(*center(page, row, col, rows, cols))


def resize(page, width):
    """Change the window's width and wait until the map follows."""
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_function("""() => {
        const right = id => document.getElementById(id).getBoundingClientRect().right;
        return right("map") >= right("cells") - 1;
    }""")


def expect_text(page, selector, *parts):
    """Wait until the element holds all parts."""
    for part in parts:
        sync_api.expect(page.locator(selector)).to_contain_text(part)


def rank(row, col):
    return 1 + sum(v > row[col] for v in row)


def cell_color(page, row, col, rows=N, cols=N):
    """The colour of a cell near its corner, where no number stands."""
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


def test_opens_and_says_what_it_is(open_page, plain):
    page = open_page(plain)
    assert page.title() == "Test maps"
    expect_text(page, "h1", "Test maps")
    assert page.locator(".thumb").count() == 6
    assert page.locator(".group-name", has_text="Layer 1").count() == 1
    expect_text(page, "#name", "L0H0")
    expect_text(page, "#tick-0", "0")
    assert float(page.locator("#tick-2").inner_text()) == pytest.approx(HI, rel=0.006)
    assert page.evaluate("performance.getEntriesByName('report-ready').length") == 1
    # The first cell chosen is the strongest one without a special token.
    inner = [(MAPS[0][r][c], r, c) for r in range(1, N - 1) for c in range(1, N - 1)]
    _, r, c = max(inner)
    expect_text(page, "#readout", TOKENS[r], TOKENS[c], f"{MAPS[0][r][c]:.4f}")


def test_hover_and_lock(open_page, plain):
    page = open_page(plain)
    point_at(page, 3, 7)
    for place in ("#tip", "#readout"):
        expect_text(page, place, "did", "street", f"{MAPS[0][3][7]:.4f}",
                    f"rank {rank(MAPS[0][3], 7)} of {N}")
    # The strip has the colours of the row.
    chip = page.locator("#strip .chip").nth(7)
    want = color_of(MAPS[0][3][7] / HI)
    assert chip.evaluate("e => getComputedStyle(e).backgroundColor") == css_color(want)
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
    # The thumbnails are one tab stop with arrows.
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
        page.locator(f"#scale input[value={kind}]").check(force=True)
        for r, c in ((0, 0), (3, 7), (8, 8), (4, 1)):
            got, want = cell_color(page, r, c), color_of(shapes[kind](MAPS[0][r][c]))
            assert all(abs(g - w) <= 3 for g, w in zip(got, want)), (kind, r, c, got, want)
    page.locator("#scale input[value=linear]").check(force=True)
    page.locator("#range input[value=panel]").check(force=True)
    own = max(v for row in MAPS[0] for v in row)
    assert cell_color(page, 3, 7) == color_of(MAPS[0][3][7] / own)
    assert float(page.locator("#tick-2").inner_text()) == pytest.approx(own, rel=0.006)
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
    # Any other label can be hidden too, all of one kind at once; and all come back.
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
    assert name == "L0H0.svg" and {"animal", "street", "L0H0", "key (looked at)"} <= set(drawn)
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
            sheet = page.locator(f"{menu} .sheet").bounding_box()
            assert sheet["x"] >= 0 and sheet["x"] + sheet["width"] <= width
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
    assert page.locator("#tick-1").inner_text() == "0"
    for r, c in ((0, 0), (1, 2), (3, 3)):
        want = color_of((values[r][c] + reach) / (2 * reach), cmap=6)
        assert cell_color(page, r, c, 4, 4) == want
    assert page.locator("#scale input").count() == 3  # no logarithm of negative values


def test_many_heads_of_512_tokens(open_page, folder):
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
