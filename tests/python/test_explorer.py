"""`multihead page` in headless Chromium, from disk: the library and the model in the page compute the program's
results, there are no requests, and other models can be opened.

Needs playwright, a Chromium, and the output of script/page."""
import base64
import importlib.util
import json
import os
import re
import shutil
import subprocess

import numpy as np
from playwright import sync_api
import pytest

from html_report import choose
from shared import LIBRARY_DIR, PROGRAM, ROOT, SMOLLM2, TINY, needs

CARRIER = LIBRARY_DIR / "tests/live_carrier"
needs(LIBRARY_DIR / "page/explorer.wasm.gz", "is missing: script/page makes it")
needs(CARRIER)
TEXT = "the animal didn't cross the street because it was too tired"
MOST_BYTES = 1_500_000  # limit for a page with the demo's model
expect = sync_api.expect


def write(model, path, *more):
    subprocess.run([PROGRAM, "page", model, *more, "-q", "-o", path], check=True)
    return path


@pytest.fixture(scope="module")
def explorer(trained, tmp_path_factory):
    return write(trained, tmp_path_factory.mktemp("pages") / "explorer.html")


@pytest.fixture
def visit(open_page, explorer):
    def opener(path=explorer, **options):
        page = open_page(path, **options)
        settled(page)
        return page
    return opener


def settled(page):
    """Wait until all requests are answered and drawn."""
    page.locator("#live-panel[data-answers]:not([data-busy])").wait_for()


def type_text(page, text):
    page.locator("#live-text").fill(text)
    settled(page)


def tokens_of(page):
    return page.locator("#strip .chip bdi").all_inner_texts()


def said(page):
    """The page's message about an opened model."""
    page.wait_for_function("() => !/^(opening|reading) /.test(document.getElementById('explorer-text').textContent)")
    return page.locator("#explorer-text").inner_text()


# ---- the numbers equal the program's -------------------------------------------------------------

ASK = """async requests => {
    const parts = window.multihead, worker = new Worker(parts.worker), module = await parts.module;
    const call = message => new Promise(resolve => {
        worker.onmessage = ({data}) => { if (data.reading === undefined) resolve(data); };
        worker.postMessage(message);
    });
    const opened = await call({open: {module, ...parts.model}});
    if (opened.status !== 0) throw new Error(new TextDecoder().decode(opened.bytes));
    const all = [];
    for (const [place, request] of requests) {
        const {status, bytes, lost} = await call({place, request});
        if (lost) throw new Error(lost);
        all.push([status, btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""))]);
    }
    return all;
}"""


SECONDS = re.compile(rb'"seconds":[0-9.e-]+')


def native(model, requests):
    """The answers of the portable kernels with the transport without a socket."""
    asked = b"".join(b"%s %d\n%s" % (place.encode(), len(body.encode()), body.encode()) for place, body in requests)
    given = subprocess.run([CARRIER, model, model.name], check=True, capture_output=True, input=asked,
                           env={**os.environ, "MHA_ISA": "portable"}).stdout
    while given:
        line, _, given = given.partition(b"\n")
        status, size = map(int, line.split())
        yield status, given[:size]
        given = given[size:]


def same_answers(page, model, texts):
    heads = ["L0H0", "L1H1"]
    requests = [(place, json.dumps({"text": texts[0], **more})) for place in ("look", "map", "trace", "generate", "plane") for more in (
        {"head": "L1H2"}, {"off": heads, "row": 3, "head": "L0H1"}, {"off": heads, "maps": False},
        {"patched": heads, "other": texts[1], "head": "L1H0"}, {"cache": "int8", "draws": True}, {"text": ""})]
    answers = page.evaluate(ASK, requests)
    for request, (status, text), (own_status, own) in zip(requests, answers, native(model, requests), strict=True):
        assert status == own_status, request
        assert SECONDS.sub(b"", base64.b64decode(text)) == SECONDS.sub(b"", own), request


@pytest.mark.gate(1)
def test_maps_and_logits_are_the_programs(visit, trained):
    same_answers(visit(), trained, [TEXT, TEXT.replace("tired", "wide")])


@pytest.mark.gate(1)
@pytest.mark.parametrize("model", [TINY, SMOLLM2], ids=lambda path: path.name)
def test_models_of_other_kinds(visit, tmp_path, model):
    if not model.exists():
        pytest.skip(f"{model} is missing")
    page = visit(write(model, tmp_path / "page.html", "the cat sat"))
    assert tokens_of(page)[-2 if model is TINY else -1].strip(" \u2423\u0120") == "sat"
    same_answers(page, model, ["the cat sat on the mat", "the dog sat on a mat"])


# ---- the page --------------------------------------------------------------------------------------

@pytest.mark.parametrize("width", [390, 1280])
def test_it_works_from_the_disk(visit, explorer, width):
    page = visit(width=width)
    assert explorer.stat().st_size <= MOST_BYTES
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    type_text(page, "the king was")
    assert tokens_of(page)[-1] == "was"
    whole = page.locator("#live-tokens td.number").first.inner_text()
    choose(page.locator("#live-click input[value=off]"))
    page.locator('.thumb[title="L1H0"]').click()
    settled(page)
    expect(page.locator("#live-chips .live-chip")).to_have_text(["L1H0"])
    assert page.locator("#live-tokens td.whole").count() and whole
    type_text(page, "the unicorn")
    expect(page.locator("#live-status.wrong")).to_contain_text("unicorn")


def test_a_report_is_saved(visit, open_page, tmp_path):
    page = visit()
    page.locator("#save summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save report as HTML").click()
    download.value.save_as(tmp_path / "heads.html")
    report = open_page(tmp_path / "heads.html")
    assert report.locator("#readout").inner_text() == page.locator("#readout").inner_text()


def test_nothing_may_be_fetched(new_page, explorer):
    page = new_page()
    page.goto(explorer.as_uri())
    settled(page)
    refused = page.evaluate("""() => Promise.allSettled([fetch("data:,x"), fetch("https://localhost/"),
        new Promise((done, failed) => { const i = new Image(); i.onload = done; i.onerror = failed;
            i.src = "https://localhost/x.png"; })]).then(all => all.map(one => one.status))""")
    assert refused == ["rejected"] * 3


# ---- languages -------------------------------------------------------------------------------------

# The page's texts with letters, except tokens, names and typed input.
READ = r"""() => {
    const own = "script, style, bdi, textarea, kbd, sub, h1, dd, [id=live-language], [id=cmap], .thumb-name, " +
        ".chip, .live-chip, [id=name], [id=overview-now], .save-line button, noscript, footer";
    const all = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode())
        if (!walk.currentNode.parentElement.closest(own)) all.push(walk.currentNode.data);
    for (const node of document.querySelectorAll("[title], [aria-label], [placeholder]"))
        for (const name of ["title", "aria-label", "placeholder"])
            if (!node.matches(".thumb")) all.push(node.getAttribute(name) ?? "");
    return all.filter(text => /\p{L}{2}/u.test(text) && !/[\u27e6\u27e7]/.test(text));
}"""


def marked(texts):
    """The same texts with each piece in brackets."""
    def mark(found):
        pieces = re.split(r"(\{[^{}|]*\})", found[2])
        return found[1] + "".join(piece if piece.startswith("{") and "|" not in piece else
                                  re.sub(r"(\{\w+\|)?([^{}|]+)", "\\1\u27e6\\2\u27e7", piece)
                                  for piece in pieces) + '"'
    return re.sub(r'(": +"|^(?="[^"\n]*"(?: \+|,)?$)")((?:[^"\\\n]|\\.)*)"', mark, texts, flags=re.M)


def test_every_text_is_translated(visit, explorer, tmp_path):
    page_text = explorer.read_text()
    start = page_text.index("texts.de = {")
    end = page_text.index("\n};\n", start)
    (tmp_path / "marked.html").write_text(page_text[:start] + marked(page_text[start:end]) + page_text[end:])
    page = visit(tmp_path / "marked.html", locale="de-CH")
    assert page.evaluate("document.documentElement.lang") == "de"
    for view in page.locator("#view input").all():
        choose(view)
        assert page.evaluate(READ) == []
    page.keyboard.press("x")
    page.locator("#help").click()
    settled(page)
    assert page.evaluate(READ) == []


def test_the_language_is_chosen(visit):
    page = visit()
    page.locator('.thumb[title="L1H2"]').click()
    page.keyboard.press("x")
    settled(page)
    page.mouse.move(0, 0)
    page.locator("#live-language").select_option("de")
    expect(page.locator("#live-next-title")).to_contain_text("Nächstes Token nach")
    settled(page)
    assert (page.locator("#name").inner_text(), page.locator("#live-chips").inner_text()) == ("L1H2", "L1H2")
    page.locator("#live-language").select_option("en")
    expect(page.locator("#live-next-title")).to_contain_text("Next token after")


# ---- the guided tour -------------------------------------------------------------------------------

def at_station(page, name):
    """Open a station by its link, and return its question's options and the correct one."""
    page.evaluate("name => { location.hash = `station=${name}`; }", name)
    page.locator(f"#tour[data-ready]:has(#tour-link[href='#station={name}'])").wait_for()
    settled(page)
    options = page.locator("#tour-options label")
    right = []
    for option in options.all():
        choose(option.locator("input"))
        if page.locator("#tour-answer.right").count():
            right.append(option.inner_text())
    assert len(right) == 1, f"{name}: {options.all_inner_texts()}"
    return options.all_inner_texts(), right[0]


def test_every_station_has_one_right_answer(visit, trained):
    page = visit()
    page.locator("#tour-open").click()
    names = page.evaluate("() => document.getElementById('tour-link').hash") and re.findall(
        r'\{name: "(\w+)", view', (ROOT / "src/render/page/stations.js").read_text())
    assert len(names) == 12
    right = {name: at_station(page, name)[1] for name in names}
    text = page.locator("#live-text").input_value()
    tokens = len(tokens_of(page))
    assert right["masks"] == str(tokens * (tokens - 1) // 2)
    assert right["cache"] == f"{2 * 4 * 2 * 16 * 4 * tokens:,}"
    assert (right["projections"], right["concat"], right["positions"]) == ("1,024", "8", "the same")

    # The head whose removal changes the program's prediction most.
    heads = [f"L{layer}H{head}" for layer in range(2) for head in range(4)]
    without = native(trained, [("look", json.dumps({"text": text, "off": [head], "maps": False})) for head in heads])
    change = [json.loads(answer)["next"]["divergence"] for _, answer in without]
    assert right["it"] == heads[change.index(max(change))]


def test_a_station_is_an_address(visit, new_page):
    page = visit()
    at_station(page, "window")
    page.locator("#live-text").fill("the king was too old")
    settled(page)
    page.locator("#tour[data-ready]").wait_for()
    page.wait_for_function("() => location.hash.includes('too+old')")
    address = page.url
    again = new_page()
    again.goto(address)
    settled(again)
    assert again.locator("#live-text").input_value() == "the king was too old"
    assert again.locator("#tour-link").get_attribute("href") == "#station=window"


def test_the_training_plays_back(visit, new_page, trained):
    """The station shows the snapshots that `train` recorded, and an address restores one."""
    from safetensors.numpy import load_file
    page, state = visit(reduced_motion="reduce"), load_file(trained / "training.safetensors")
    assert at_station(page, "roles") == (["0", "3"], "3") and state["frame_steps"].tolist() == [0, 3]
    text = page.locator("#live-text").input_value()
    answer = json.loads(next(native(trained, [("look", json.dumps({"text": text}))]))[1])
    side, first = answer["maps"]["rows"], state["frames"].reshape(2, 8, -1)[0]
    assert answer["training"] == text and len(state["example"]) == side and first.shape[1] == side ** 2
    for coded, weights in zip(answer["maps"]["frames"][0]["maps"], first, strict=True):
        codes, seen = np.frombuffer(base64.b64decode(coded["data"]), np.uint8), np.tri(side, dtype=bool).ravel()
        assert ((codes == 255) == ~seen).all() and coded["greatest"] == 1
        assert np.abs(codes[seen] / 253 - np.sqrt(weights[seen])).max() <= 0.5 / 253 + 1e-6
    page.locator("#tour-play").click()
    page.keyboard.press(".")
    expect(page.locator("#frame-label")).to_have_text("step 3")
    page.keyboard.press(",")
    expect(page.locator("#frame-label")).to_have_text("step 0")
    shown = page.locator("#readout").inner_text()
    page.wait_for_function("() => location.hash.includes('frame=0')")
    again = new_page(locale="de")
    again.goto(page.evaluate("location.href"))
    settled(again)
    expect(again.locator("#frame-label")).to_have_text("Schritt 0")
    again.locator("#live-language").select_option("en")
    settled(again)
    expect(again.locator("#readout")).to_have_text(shown, use_inner_text=True)
    type_text(page, f"{text} was")
    expect(page.locator("#player")).to_be_hidden()


def test_trainings_of_others_are_ignored_or_rejected(trained, tmp_path):
    """The state of a different model has no snapshots; a damaged state is an error."""
    from safetensors.numpy import load_file, save
    state, folder = load_file(trained / "training.safetensors"), tmp_path / "model"
    shutil.copytree(trained, folder)
    body = b'{"text": "the king", "maps": false}'

    def opened(data):
        (folder / "training.safetensors").write_bytes(data)
        said = subprocess.run([CARRIER, folder, "model"], input=b"look %d\n%s" % (len(body), body), capture_output=True)
        assert said.returncode in (0, 1)
        return said.returncode == 0 and "training" in json.loads(said.stdout.partition(b"\n")[2]), said.returncode

    assert opened(save(state)) == (True, 0)
    for value in np.nan, -0.1, 2:
        assert opened(save({**state, "frames": np.full_like(state["frames"], value)})) == (False, 0), value
    for name, value in {"frames": state["frames"][:, :-1].copy(), "frame_steps": state["frame_steps"][::-1].copy(),
                        "example": state["example"][:-1].copy()}.items():
        assert opened(save({**state, name: value})) == (False, 0), name
        assert opened(save({**state, name: value.astype(np.int64)})) == (False, 0), name
        assert opened(save({own: x for own, x in state.items() if own != name})) == (False, 0), name
    for ids in state["example"] + np.int32(1 << 20), -1 - state["example"]:
        assert opened(save({**state, "example": ids})) == (False, 0)
    assert opened(save(state)[:-8]) == (False, 1)


def test_a_station_says_how_to_record(visit, tmp_path):
    page = visit(write(TINY, tmp_path / "page.html", "the cat sat"))
    at_station(page, "roles")
    expect(page.locator("#tour-text")).to_contain_text("multihead train")
    expect(page.locator("#tour-play")).to_be_hidden()


# ---- accessibility ---------------------------------------------------------------------------------

@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_axe_finds_nothing(visit, axe, width, scheme):
    page = visit(width=width, color_scheme=scheme)
    page.locator("#tour-open").click()
    page.locator("#tour[data-ready]").wait_for()
    for part in page.locator("details:not(.menu) > summary").all():
        part.click()
    settled(page)
    for view in page.locator("#view input").all():
        choose(view)
        settled(page)
        assert axe(page) == []


def test_all_is_reached_by_keys(visit):
    """Tab visits all controls in page order, and each shows its focus."""
    page = visit()
    page.evaluate("() => { const top = document.querySelector('h1'); top.tabIndex = -1; top.focus(); }")
    seen = []
    while len(seen) < 100:
        page.keyboard.press("Tab")
        now = page.evaluate("""() => {
            const node = document.activeElement;
            if (node === document.body) return null;
            window.numbered ??= [...document.querySelectorAll("*")];
            return [node.id || node.className || node.name, window.numbered.indexOf(node), node.matches(":focus-visible")];
        }""")
        if now is None or now in seen:
            break
        seen.append(now)
    assert {"explorer-file", "explorer-folder", "tour-open", "live-text", "live-language", "cmap", "find", "help",
            "cell"} <= {name for name, _, _ in seen}
    assert [at for _, at, _ in seen] == sorted(at for _, at, _ in seen)
    assert all(visible for _, _, visible in seen)
    page.locator("#tour-open").focus()
    page.keyboard.press("Enter")
    page.locator("#tour[data-ready]").wait_for()
    assert page.evaluate("document.activeElement.id") == "tour-station"


# ---- the user's own model ------------------------------------------------------------------------

def seeds():
    spec = importlib.util.spec_from_file_location("seeds", ROOT / "tests/fuzz/seeds.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def small_gguf():
    """A model with weights of 1/64."""
    return seeds().gguf_model(fill=lambda size, _: b"\0\0\x80\x3c" * (size // 4))


def test_another_model_is_opened(visit, tmp_path):
    page = visit()
    (tmp_path / "small.gguf").write_bytes(small_gguf())
    page.locator("#explorer-file").set_input_files(tmp_path / "small.gguf")
    expect(page.locator("h1")).to_have_text("small.gguf")
    type_text(page, "a b")
    expect(page.locator(".thumb")).to_have_count(2)
    page.locator("#explorer-file").set_input_files([path for path in TINY.iterdir() if path.suffix != ".md"])
    expect(page.locator(".facts")).to_contain_text("bert")
    type_text(page, "the cat")
    assert tokens_of(page)[1:3] == ["the", "cat"]


# A browser's event for a dropped folder. Scripts cannot put a real folder into a DataTransfer.
DROP = """files => {
    const entries = files.map(([name, data]) => {
        const file = new File([Uint8Array.from(atob(data), c => c.charCodeAt(0))], name);
        return {isFile: true, isDirectory: false, name, file: done => done(file)};
    });
    const folder = {isFile: false, isDirectory: true, name: "tiny", createReader() {
        const parts = [entries.slice(0, 1), entries.slice(1), []];
        return {readEntries: done => done(parts.shift())};
    }};
    const event = new Event("drop", {cancelable: true, bubbles: true});
    event.dataTransfer = {files: [], items: [{webkitGetAsEntry: () => folder}]};
    document.body.dispatchEvent(event);
    return event.defaultPrevented;
}"""


def test_a_folder_is_chosen_or_dropped(visit, tmp_path):
    page = visit()
    (tmp_path / "tiny/more").mkdir(parents=True)
    for path in TINY.iterdir():
        if path.suffix != ".md":
            (tmp_path / "tiny" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tiny/more/vocab.txt").write_text("ignored: it is in a folder of the folder")
    page.locator("#explorer-folder").set_input_files(tmp_path / "tiny")
    expect(page.locator("h1")).to_have_text("tiny")
    expect(page.locator(".facts")).to_contain_text("bert")
    page.locator("#live-language").select_option("de")
    expect(page.locator(".facts")).to_contain_text("Köpfe")
    page = visit()
    files = [(path.name, base64.b64encode(path.read_bytes()).decode()) for path in (tmp_path / "tiny").iterdir()
             if path.is_file()]
    assert page.evaluate(DROP, files)
    expect(page.locator("h1")).to_have_text("tiny")
    type_text(page, "the cat")
    assert tokens_of(page)[1:3] == ["the", "cat"]


def test_a_file_is_dropped(visit):
    page = visit()
    dropped = page.evaluate_handle("""data => {
        const given = new DataTransfer();
        given.items.add(new File([Uint8Array.from(atob(data), c => c.charCodeAt(0))], "small.gguf"));
        return given;
    }""", base64.b64encode(small_gguf()).decode())
    page.dispatch_event("body", "drop", {"dataTransfer": dropped})
    expect(page.locator("h1")).to_have_text("small.gguf")


def test_hostile_files_give_a_sentence(visit, tmp_path):
    """For every bad file, the page reports the error, and its own model answers again."""
    page, model = visit(), seeds().gguf_model()
    files = {name: data for name, data in seeds().of_gguf() if not name.startswith(("model", "experts"))}
    files |= {f"cut-{size}": model[:size] for size in (0, 3, 20, 700, len(model) - 40)}
    files |= {"not-a-model": b"\0" * 100, "wide": seeds().gguf_model(embedding_length=1 << 30)}
    for name, data in files.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(data)
        page.locator("#explorer-file").set_input_files(path)
        assert said(page) and "stopped" not in said(page), name
    type_text(page, "the king")
    assert tokens_of(page)[-1] == "king"


def test_files_that_no_page_can_hold_are_refused(visit, tmp_path):
    page = visit()
    with open(tmp_path / "large.gguf", "wb") as file:
        file.truncate(5 << 30)
    page.locator("#explorer-file").set_input_files(tmp_path / "large.gguf")
    assert "5.4 GB" in said(page)
    type_text(page, "the king")
    assert tokens_of(page)[-1] == "king"


def test_a_worker_without_memory_is_started_again(visit):
    page = visit()
    page.workers[0].evaluate("() => { for (let size = 2 ** 30; size >= 1; size /= 2) while (wasm.take(size)); }")
    type_text(page, "the unicorn")
    expect(page.locator("#live-status.wrong")).to_contain_text("no memory")
    type_text(page, "the king")
    assert tokens_of(page)[-1] == "king"
