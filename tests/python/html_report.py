"""Reports written by libmultihead-render in MHA_LIBRARY_DIR, for tests that open them."""
import ctypes as C
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY_DIR = pathlib.Path(os.environ.get("MHA_LIBRARY_DIR") or ROOT / "build")
Texts = C.POINTER(C.c_char_p)
Doubles = C.POINTER(C.c_double)


class Measure(C.Structure):
    _fields_ = [("name", C.c_char_p), ("value", C.c_double), ("chance", C.c_double),
                ("most", C.c_double), ("count", C.c_int64), ("note", C.c_char_p)]


class Panel(C.Structure):
    _fields_ = [("values", C.c_void_p), ("row_stride", C.c_int64), ("name", C.c_char_p),
                ("note", C.c_char_p), ("detail", C.c_char_p), ("group", C.c_int64),
                ("masked", C.c_void_p), ("mask_stride", C.c_int64), ("badge", C.c_char_p),
                ("measures", C.POINTER(Measure)), ("measure_count", C.c_int64),
                ("twin", C.c_void_p), ("twin_stride", C.c_int64), ("queries", C.c_void_p),
                ("keys", C.c_void_p), ("channels", C.c_int64)]


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


class Series(C.Structure):
    _fields_ = [("name", C.c_char_p), ("x", Doubles), ("y", Doubles), ("count", C.c_int64),
                ("baseline", C.c_bool)]


class Curve(C.Structure):
    _fields_ = [("title", C.c_char_p), ("caption", C.c_char_p), ("x_axis", C.c_char_p),
                ("y_axis", C.c_char_p), ("series", C.POINTER(Series)), ("series_count", C.c_int64),
                ("timeline", C.c_bool)]


class Frame(C.Structure):
    _fields_ = [("label", C.c_char_p), ("at", C.c_double), ("maps", C.POINTER(C.c_void_p))]


class Column(C.Structure):
    _fields_ = [("name", C.c_char_p), ("about", C.c_char_p), ("values", Doubles),
                ("ascending", C.c_bool)]


class Report(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("text", C.c_char_p), ("facts", C.c_void_p),
                ("fact_count", C.c_int64), ("producer", C.c_char_p), ("same_labels", C.c_bool),
                ("most_bytes", C.c_int64), ("special", Texts), ("special_count", C.c_int64),
                ("first_panel", C.c_int64), ("curve_size", C.c_uint32),
                ("curves", C.POINTER(Curve)), ("curve_count", C.c_int64),
                ("columns", C.POINTER(Column)), ("column_count", C.c_int64),
                ("frames", C.POINTER(Frame)), ("frame_count", C.c_int64),
                ("twin_name", C.c_char_p), ("twin_value", C.c_char_p), ("cell_tokens", C.c_int64),
                ("tokens", Texts), ("token_count", C.c_int64), ("guide", C.c_char_p),
                ("first_cell", C.c_bool), ("first_row", C.c_int64), ("first_col", C.c_int64),
                ("view", C.c_int), ("only_view", C.c_bool), ("line_panels", C.POINTER(C.c_int64)),
                ("line_panel_count", C.c_int64), ("second_row", C.c_int64),
                ("second_col", C.c_int64), ("score_scale", C.c_double)]


class InsetPage(C.Structure):
    _fields_ = [("name", C.c_char_p), ("figure", C.POINTER(Figure)), ("report", C.POINTER(Report))]


class Inset(C.Structure):
    _fields_ = [("struct_size", C.c_uint32), ("page_size", C.c_uint32),
                ("pages", C.POINTER(InsetPage)), ("page_count", C.c_int64), ("width", C.c_int64),
                ("height", C.c_int64), ("whole_file", C.c_bool)]


class Sink(C.Structure):
    _fields_ = [("write", C.c_void_p), ("user", C.c_void_p)]


class Buffer(C.Structure):
    _fields_ = [("data", C.c_void_p), ("size", C.c_size_t), ("capacity", C.c_size_t)]


def available():
    return (LIBRARY_DIR / "libmultihead-render.so").exists()


def load():
    C.CDLL(str(LIBRARY_DIR / "libmultihead.so"), mode=C.RTLD_GLOBAL)
    render = C.CDLL(str(LIBRARY_DIR / "libmultihead-render.so"))
    render.mha_buffer_sink.restype = Sink
    render.mha_error_detail.restype = C.c_char_p
    render.mha_cmap_color.argtypes = [C.c_int, C.c_bool, C.c_double, C.c_char_p]
    render.mha_cmap_color.restype = None
    return render


RENDER = load() if available() else None


def encoded(text):
    return text if text is None or isinstance(text, bytes) else text.encode()


def texts(strings):
    return (C.c_char_p * len(strings))(*[encoded(s) for s in strings])


def doubles(values):
    return (C.c_double * len(values))(*[float("nan") if v is None else v for v in values])


def matrix(rows):
    return (C.c_float * max(sum(map(len, rows)), 1))(*[v for row in rows for v in row])


class Matrices:
    """Every list of rows once, however often it is used; keeps them alive."""

    def __init__(self):
        self.known = {}

    def __call__(self, rows):
        if id(rows) not in self.known:
            self.known[id(rows)] = (matrix(rows), rows)
        return C.cast(self.known[id(rows)][0], C.c_void_p)


def measures_of(measures):
    """measures: (name, value, chance, most, count, note) each, as in mha_measure."""
    return (Measure * len(measures))(*[
        Measure(encoded(name), value, chance, most, count, encoded(note))
        for name, value, chance, most, count, note in measures])


def curve_of(curve):
    """curve: a dict of title, caption, x_axis, y_axis, timeline, and series: (name, x, y, baseline)."""
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
    """maps: a list of [rows][cols] lists; badges, details, measures, twins, queries and keys: one a
    map. columns: (name, about, values, ascending); frames: (label, at, maps). Returns a figure and a
    report, with what they point to."""
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
    figure = Figure(struct_size=C.sizeof(Figure), panel_size=C.sizeof(Panel), title=encoded(title),
                    row_axis=b"query (looking)", col_axis=b"key (looked at)", rows=rows, cols=cols,
                    row_labels=row_texts, col_labels=col_texts, panels=panels,
                    panel_count=len(maps), group_names=texts([f"layer {g}" for g in range(groups)]),
                    group_count=groups, value_name=b"weight", **options)
    fact_texts = texts([word for fact in facts for word in fact])
    report = Report(struct_size=C.sizeof(Report), text=encoded(text), producer=b"test",
                    facts=C.cast(fact_texts, C.c_void_p), fact_count=len(facts),
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
    sink = RENDER.mha_buffer_sink(C.byref(buffer))
    if call(*map(C.byref, arguments), C.byref(sink)) != 0:
        raise ValueError(RENDER.mha_error_detail().decode())
    path.write_bytes(C.string_at(buffer.data, buffer.size))
    RENDER.mha_buffer_free(C.byref(buffer))
    return path


def write_report(path, *arguments, **options):
    figure, report, _alive = make_report(*arguments, **options)
    return write(path, RENDER.mha_render_html, figure, report)


def write_inset(path, pages, **options):
    """pages: (name, arguments of make_report(), its options)."""
    made = [(name, *make_report(*arguments, **chosen)) for name, arguments, chosen in pages]
    array = (InsetPage * len(made))(*[
        InsetPage(encoded(name), C.pointer(figure), C.pointer(report))
        for name, figure, report, _alive in made])
    inset = Inset(struct_size=C.sizeof(Inset), page_size=C.sizeof(InsetPage), pages=array,
                  page_count=len(made), whole_file=True, **options)
    return write(path, RENDER.mha_render_inset, inset)
