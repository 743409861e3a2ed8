"""Reports that libmultihead-render in MHA_LIBRARY_DIR writes, for tests that open them."""
import ctypes as C

from multihead._abi import (Buffer, Column, Curve, Fact, Figure, Frame, Inset, InsetPage, Measure, Panel, Report,
                            Series)
from multihead._library import check, library, render_library
from shared import LIBRARY_DIR, needs

needs(LIBRARY_DIR / "libmultihead-render.so")
RENDER = render_library()


def wait_for_frames(page):
    """Size observers are called after a frame's layout; at the second frame they have finished."""
    page.evaluate("() => new Promise(f => requestAnimationFrame(() => requestAnimationFrame(f)))")


def wait_for_timers(page, milliseconds):
    """Wait until earlier timers of the page with at most this delay have fired."""
    page.evaluate("ms => new Promise(f => setTimeout(f, ms))", milliseconds)


def choose(radio):
    """Click the label of a radio button, which covers it."""
    from playwright import sync_api
    radio.locator("xpath=..").click()
    sync_api.expect(radio).to_be_checked()


def encoded(text):
    return text if text is None or isinstance(text, bytes) else text.encode()


def texts(strings):
    return (C.c_char_p * len(strings))(*[encoded(s) for s in strings])


def doubles(values):
    return (C.c_double * len(values))(*[float("nan") if v is None else v for v in values])


def matrix(rows):
    return (C.c_float * max(sum(map(len, rows)), 1))(*[v for row in rows for v in row])


class Matrices:
    """Converts every list of rows once and keeps it alive."""

    def __init__(self):
        self.known = {}

    def __call__(self, rows):
        if id(rows) not in self.known:
            self.known[id(rows)] = (matrix(rows), rows)
        return C.cast(self.known[id(rows)][0], C.c_void_p)


def measures_of(measures):
    """`measures` has (name, value, chance, most, count, note), the fields of mha_measure."""
    return (Measure * len(measures))(*[
        Measure(encoded(name), value, chance, most, count, encoded(note))
        for name, value, chance, most, count, note in measures])


def curve_of(curve):
    """`curve` is a dict with title, caption, x_axis, y_axis, timeline, and series, which has (name,
    x, y, baseline)."""
    series = (Series * len(curve["series"]))(*[
        Series(encoded(name), doubles(x), doubles(y), len(x), baseline)
        for name, x, y, baseline in curve["series"]])
    words = {k: encoded(curve.get(k)) for k in ("title", "caption", "x_axis", "y_axis")}
    return Curve(series=series, series_count=len(series), timeline=curve.get("timeline", False),
                 **words)


def frame_of(label, at, maps, arrays):
    pointers = (C.c_void_p * len(maps))(*[arrays(m) if m else None for m in maps])
    return Frame(encoded(label), at, pointers)


def make_report(maps, labels, col_labels=None, masked=None, special=(), groups=1, names=None,
                badges=None, details=None, measures=None, twins=None, curves=(), columns=(),
                frames=(), tokens=None, cell_tokens=0, first_panel=0, text="a text", facts=(),
                twin_name=None, twin_value=None, most_bytes=0, title="Test maps", queries=None,
                keys=None, first_cell=None, line_panels=(), view=0, only_view=False, guide=None,
                second=(0, 0), **options):
    """`maps` is a list of [rows][cols] lists. badges, details, measures, twins, queries and keys
    have one element per map. `columns` has (name, about, values, ascending), and `frames` has
    (label, at, maps). Returns a figure and a report, and the memory that they borrow."""
    rows, cols = len(maps[0]), len(maps[0][0]) if maps[0] else 0
    arrays = Matrices()
    mask = (C.c_uint8 * (rows * cols))(*[v for row in masked for v in row]) if masked else None
    panels = (Panel * len(maps))()
    each = len(maps) // groups
    for i, panel in enumerate(panels):
        panel.values = arrays(maps[i])
        panel.name = encoded(names[i] if names else f"L{i // each}H{i % each}")
        panel.group = i // each
        panel.masked = C.cast(mask, C.c_void_p) if mask else None
        panel.badge = encoded(badges[i]) if badges else None
        panel.detail = encoded(details[i]) if details else None
        if measures and measures[i]:
            panel.measures = measures_of(measures[i])
            panel.measure_count = len(measures[i])
        if twins:
            panel.twin = arrays(twins[i])
        if queries:
            panel.queries, panel.keys = arrays(queries[i]), arrays(keys[i])
            panel.channels = len(queries[i][0])
    row_texts, special_texts = texts(labels), texts(special)
    col_texts = texts(col_labels) if col_labels else row_texts
    figure = Figure(panel_size=C.sizeof(Panel), title=encoded(title),
                    row_axis=b"query (attending)", col_axis=b"key (attended to)", rows=rows, cols=cols,
                    row_labels=row_texts, col_labels=col_texts, panels=panels,
                    panel_count=len(maps), group_names=texts([f"layer {g}" for g in range(groups)]),
                    group_count=groups, value_name=b"weight", **options)
    report = Report(text=encoded(text), producer=b"test",
                    facts=(Fact * len(facts))(*[Fact(encoded(name), encoded(value)) for name, value in facts]), fact_count=len(facts),
                    same_labels=col_labels is None, special=special_texts,
                    special_count=len(special), first_panel=first_panel, most_bytes=most_bytes,
                    curve_size=C.sizeof(Curve),
                    curves=(Curve * len(curves))(*[curve_of(c) for c in curves]),
                    curve_count=len(curves),
                    columns=(Column * len(columns))(*[
                        Column(encoded(name), encoded(about), doubles(values), ascending)
                        for name, about, values, ascending in columns]),
                    column_count=len(columns),
                    frames=(Frame * len(frames))(*[frame_of(*f, arrays) for f in frames]),
                    frame_count=len(frames), twin_name=encoded(twin_name),
                    twin_value=encoded(twin_value), cell_tokens=cell_tokens, view=view,
                    only_view=only_view, guide=encoded(guide),
                    line_panels=(C.c_int64 * len(line_panels))(*line_panels),
                    line_panel_count=len(line_panels), second_row=second[0], second_col=second[1])
    if first_cell:
        report.first_cell, (report.first_row, report.first_col) = True, first_cell
    if tokens:
        report.tokens, report.token_count = texts(tokens), len(tokens)
    return figure, report, (arrays, mask)


def write(path, call, *arguments):
    buffer = Buffer()
    sink = library.mha_buffer_sink(C.byref(buffer))
    check(call(*map(C.byref, arguments), C.byref(sink)))
    path.write_bytes(C.string_at(buffer.data, buffer.size))
    library.mha_buffer_free(C.byref(buffer))
    return path


def write_report(path, *arguments, **options):
    figure, report, _alive = make_report(*arguments, **options)
    return write(path, RENDER.mha_render_html, figure, report)


def write_inset(path, pages, **options):
    """`pages` has (name, arguments of make_report(), its options)."""
    made = [(name, *make_report(*arguments, **chosen)) for name, arguments, chosen in pages]
    array = (InsetPage * len(made))(*[
        InsetPage(encoded(name), C.pointer(figure), C.pointer(report))
        for name, figure, report, _alive in made])
    inset = Inset(page_size=C.sizeof(InsetPage), pages=array,
                  page_count=len(made), whole_file=True, **options)
    return write(path, RENDER.mha_render_inset, inset)
