"""`multihead serve` in headless Chromium: maps follow typed text, and the prediction without heads
equals the prediction of the model without them. Further tests are for patches from a second text,
the shared address, and the saved report.

Needs playwright and a Chromium, like test_html_browser.py. The library's gates and pruned
transformers are the reference."""
import ctypes as C
import json
import re
import subprocess

import numpy as np
from playwright import sync_api
import pytest

import multihead
from multihead import _abi, _tensor
from multihead._library import check, default_context, library
from html_report import choose, wait_for_timers
from live_page import post, settled
from shared import PROGRAM

pytestmark = pytest.mark.gate(4)
TEXT = "The animal didn't cross the street because it was too"
OTHER = "The king didn't cross the river because it was too"
expect = sync_api.expect


@pytest.fixture(scope="module")
def model(trained):
    return multihead.Model(trained)


@pytest.fixture(scope="module")
def url(serve, trained):
    return serve(trained)


@pytest.fixture
def visit(watched_page, url):
    def opener(fragment="", **options):
        page = watched_page(url, fragment, **options)
        settled(page)
        return page
    return opener


def type_text(page, text, box="#live-text"):
    page.locator(box).fill(text)
    settled(page)


def click_means(page, what):
    choose(page.locator(f"#live-click input[value={what}]"))


def thumb(page, name):
    return page.locator(f'.thumb[title="{name}"]')


def tokens_of(page):
    return page.locator("#strip .chip bdi").all_inner_texts()


def shares(page):
    """{token: (current, with all heads)}, in percent, from the page."""
    if page.locator("#live-more").is_visible() and "all" in page.locator("#live-more").inner_text():
        page.locator("#live-more").click()
    rows = page.locator("#live-tokens tbody tr").all()
    texts = [[cell.inner_text() for cell in row.locator("td").all()] for row in rows]
    return {cells[0]: tuple(float(c.split()[0]) for c in cells[2:4]) for cells in texts}


def logits_of(model, text, off=(), row=-1):
    """Logits of the library with the gates of these heads closed."""
    tokens = model.tokenize(text)
    d = model._desc
    gates = np.ones((int(d.num_layers), int(d.num_heads)), np.float32)
    for layer, head in off:
        gates[layer, head] = 0
    logits = np.zeros((1, len(tokens), int(d.vocab_size)), np.float32)
    given = _abi.TransformerInput(tokens=_tensor.pointer(tokens.ids[None]), gates=_tensor.pointer(gates))
    with default_context() as handle:
        check(library.mha_transformer_forward(handle, model._net, C.byref(given), None,
                                              C.byref(_tensor.tensor(logits)), None, None))
    return logits[0, row]


def pruned_logits(model, text, off):
    """The same for a transformer without these heads, as from `multihead prune`."""
    d = model._desc
    keep = np.ones((int(d.num_layers), int(d.num_heads)), np.float32)
    for layer, head in off:
        keep[layer, head] = 0
    tokens = model.tokenize(text)
    logits = np.zeros((1, len(tokens), int(d.vocab_size)), np.float32)
    small = C.c_void_p()
    given = _abi.TransformerInput(tokens=_tensor.pointer(tokens.ids[None]))
    with default_context() as handle:
        check(library.mha_transformer_prune(handle, model._net, C.byref(_tensor.tensor(keep)),
                                            C.byref(small)))
        check(library.mha_transformer_forward(handle, small, C.byref(given), None,
                                              C.byref(_tensor.tensor(logits)), None, None))
        library.mha_transformer_destroy(small)
    return logits[0, -1]


@pytest.mark.gate(1)
def test_types_and_maps_follow(visit, model):
    page = visit(f"#text={TEXT.replace(' ', '+')}", allowed=("422",))  # a partial word is unknown
    words = tokens_of(page)
    assert len(words) == len(model.tokenize(TEXT)) and "animal" in words
    drawn = page.evaluate("document.querySelector('.thumb canvas').width")
    page.locator("#live-text").press("End")
    page.locator("#live-text").press_sequentially(" tired")
    expect(page.locator("#strip .chip bdi").last).to_have_text("tired")
    settled(page)
    assert page.evaluate("document.querySelector('.thumb canvas').width") == drawn + 1
    expect(page.locator("#live-next-title bdi")).to_have_text("tired")
    page.wait_for_function("performance.getEntriesByName('live-latency').length > 0")
    assert page.evaluate("document.querySelectorAll('.thumb').length") == 8


def test_heads_off_give_the_logits_without_them(visit, model):
    page = visit(f"#text={TEXT.replace(' ', '+')}")
    before = shares(page)
    click_means(page, "off")
    off = [(0, 2), (1, 1)]
    for layer, head in off:
        thumb(page, f"L{layer}H{head}").click()
        expect(thumb(page, f"L{layer}H{head}")).to_have_class(re.compile(r"\boff\b"))
        settled(page)
    logits, whole = logits_of(model, TEXT, off), logits_of(model, TEXT)
    assert np.array_equal(logits, pruned_logits(model, TEXT, off)), "gates and pruning"
    assert not np.array_equal(logits, whole)
    answer = json.loads(post(page, "look", {"text": TEXT, "off": ["L0H2", "L1H1"], "maps": False}))["next"]
    for line in answer["tokens"]:
        assert np.float32(line["logit"]) == logits[line["id"]], "to the bit"
        assert np.float32(line["logit_whole"]) == whole[line["id"]]
    chance, chance_whole = (np.exp(x.astype(float) - x.max()) for x in (logits, whole))
    chance, chance_whole = chance / chance.sum(), chance_whole / chance_whole.sum()
    assert answer["divergence"] == pytest.approx(
        float(np.sum(chance_whole * np.log(chance_whole / chance))), rel=1e-6)
    shown = shares(page)
    for line in answer["tokens"]:
        now, all_on = shown[line["text"]]
        assert now == pytest.approx(100 * chance[line["id"]], abs=0.06)
        assert all_on == pytest.approx(100 * chance_whole[line["id"]], abs=0.06)
        if line["text"] in before:
            assert all_on == before[line["text"]][0]
    expect(page.locator("#live-chips .live-chip")).to_have_text(["L0H2", "L1H1"])
    page.locator("#live-all-on").click()
    settled(page)
    assert shares(page) == before
    page.keyboard.press("Escape")
    page.locator("#cell").focus()
    page.keyboard.press("x")
    settled(page)
    expect(page.locator("#live-chips .live-chip")).to_have_text(["L1H1"])
    page.keyboard.press("X")
    settled(page)
    expect(page.locator(".thumb.off")).to_have_count(4)


def test_heads_are_patched_from_a_second_text(visit, model):
    page = visit(f"#text={TEXT.replace(' ', '+')}")
    whole = shares(page)
    click_means(page, "patch")
    thumb(page, "L0H1").click()
    expect(page.locator("#live-status")).to_contain_text("second text")
    type_text(page, OTHER, "#live-other")
    for i in range(8):
        thumb(page, f"L{i // 4}H{i % 4}").click()
        settled(page)
    expect(page.locator(".thumb.patched")).to_have_count(8)
    patched = shares(page)
    assert all(patched[t][1] == whole[t][0] for t in whole if t in patched)
    assert any(now != all_on for now, all_on in patched.values())
    # If every head of every layer is from the other text, only the last token's own stream could
    # differ, and the word is the same in both texts. The prediction is therefore the other text's.
    other = logits_of(model, OTHER)
    answer = json.loads(post(page, "look", {"text": TEXT, "other": OTHER, "maps": False,
                                            "patched": [f"L{i // 4}H{i % 4}" for i in range(8)]}))["next"]
    for line in answer["tokens"]:
        assert line["logit"] == pytest.approx(float(other[line["id"]]), abs=1e-5)
    choose(page.locator("#live-at input[value=last]"))
    settled(page)
    assert "at=last" in hash_of(page)


def hash_of(page):
    """The address, after the page's timer has written it: 0.4 s after a change (REMEMBER_MS), which
    is before this timer."""
    wait_for_timers(page, 401)
    return page.evaluate("location.hash")


def test_every_state_is_an_address(visit):
    page = visit()
    type_text(page, TEXT)
    click_means(page, "off")
    thumb(page, "L0H3").click()
    settled(page)
    page.locator("#live-second summary").click()
    type_text(page, OTHER, "#live-other")
    click_means(page, "patch")
    thumb(page, "L1H2").click()
    settled(page)
    choose(page.locator("#view input[value=lines]"))
    choose(page.locator("#live-row input[value=chosen]"))
    page.locator("#strip .chip").nth(3).click()
    settled(page)
    again = visit(hash_of(page))
    assert hash_of(again) == hash_of(page)
    for name in ("#live-chips", "#live-tokens", "#live-next-title", "#strip", "#name", "#readout"):
        assert again.locator(name).inner_text() == page.locator(name).inner_text(), name
    assert again.locator("#live-text").input_value() == TEXT
    assert again.locator("#live-other").input_value() == OTHER
    assert again.locator("#lines").is_visible()
    again.evaluate("location.hash = '#text=The+king&off=L1H0'")
    expect(again.locator("#live-chips .live-chip")).to_have_text(["L1H0"])
    expect(again.locator("#strip .chip bdi").last).to_have_text("king")
    settled(again)


def test_the_saved_report_shows_the_same(visit, new_page, tmp_path):
    page = visit(f"#text={TEXT.replace(' ', '+')}&off=L0H0&head=L1H3&view=map")
    page.locator("#save summary").click()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save report as HTML").click()
    path = tmp_path / "heads.html"
    download.value.save_as(path)
    assert "page.js" not in path.read_text() and TEXT in path.read_text().replace("&#39;", "'")
    report, asked = new_page(), []
    report.on("request", lambda r: asked.append(r.url))
    report.goto(path.as_uri())
    for name in ("#name", "#readout", "#strip", "#detail"):
        assert report.locator(name).inner_text() == page.locator(name).inner_text(), name
    assert "heads off" in report.locator(".facts").inner_text()
    assert "L0H0" in report.locator(".facts").inner_text()
    assert asked == [path.as_uri()]


def test_errors_are_said_and_pass(visit):
    page = visit(f"#text={TEXT.replace(' ', '+')}", allowed=("422",))
    type_text(page, "The unicorn")
    expect(page.locator("#live-status.wrong")).to_contain_text("unicorn")
    type_text(page, "The king")
    expect(page.locator("#live-status.wrong")).to_have_count(0)
    expect(page.locator("#strip .chip bdi").last).to_have_text("king")
    expect(page.locator("#live-next")).to_be_visible()
    type_text(page, "")
    expect(page.locator("#live-status")).to_contain_text("Type a text")
    expect(page.locator("#live-next")).to_be_hidden()
    type_text(page, "The king")
    expect(page.locator("#live-next")).to_be_visible()


def test_bars_are_chances_and_the_end_is_at_the_end(visit):
    """Full width is 100 %, also with disabled heads. The stop button is the last element of the
    page."""
    page = visit(f"#text={TEXT.replace(' ', '+')}&off=L0H0,L0H1")
    for row in page.locator("#live-tokens tbody tr").all():
        whole = row.locator(".live-bar").bounding_box()
        now, all_on = (float(cell.split()[0]) for cell in row.locator("td.number").all_inner_texts()[:2])
        assert row.locator(".live-bar i").bounding_box()["width"] == pytest.approx(whole["width"] * now / 100, abs=1)
        mark = row.locator(".live-bar b").bounding_box()
        assert mark["x"] - whole["x"] + 1 == pytest.approx(whole["width"] * all_on / 100, abs=1)
    end = page.locator("#live-quit").bounding_box()
    assert end["y"] + end["height"] + 80 > page.evaluate("document.documentElement.scrollHeight")
    assert end["y"] > page.locator("#app").bounding_box()["y"] + page.locator("#app").bounding_box()["height"]


@pytest.mark.parametrize("width", [360, 900, 1600])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sizes(visit, width, scheme):
    page = visit(f"#text={TEXT.replace(' ', '+')}&off=L0H1", width=width, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("#live-text", "#live-tokens", "#live-click"):
        box = page.locator(name).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= width + 0.5, name
    pixel = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (pixel == "rgb(255, 255, 255)") == (scheme == "light")


def test_axe_finds_nothing(visit, axe):
    page = visit(f"#text={TEXT.replace(' ', '+')}&off=L0H1", width=1280)
    for part in page.locator("details:not(.menu) > summary").all():
        part.click()
    settled(page)
    assert axe(page) == []


def test_other_pages_cannot_ask(visit, new_page, url, tmp_path):
    """A page of another origin with the address cannot read the page, send requests or frame the
    page."""
    evil = tmp_path / "evil.html"
    evil.write_text(f"<iframe src='{url}'></iframe><script src='{url}page.js'></script>")
    page = new_page()
    page.goto(evil.as_uri())
    told = page.evaluate("""async url => {
        const said = [];
        for (const options of [{}, {mode: "no-cors"}, {method: "POST", body: '{"text":"The king"}'},
                {method: "POST", body: "{}", headers: {"Content-Type": "application/json"}},
                {method: "POST", mode: "no-cors", body: '{"text":"The king"}'}])
            for (const place of ["", "look", "quit"])
                try {
                    const reply = await fetch(url + place, options);
                    said.push(reply.type === "opaque" ? "" : await reply.text());
                } catch (error) { said.push(""); }
        return said.join("");
    }""", url)
    assert told == ""
    assert all(frame.name == "" and "live-panel" not in (frame.content() if frame.url.startswith(url) else "")
               for frame in page.frames)
    assert tokens_of(visit("#text=The+king"))[-1] == "king", "nobody ended it"


def test_the_server_ends_when_asked(new_page, trained):
    with subprocess.Popen([PROGRAM, "serve", "-q", str(trained)], stdout=subprocess.PIPE, text=True) as server:
        page = new_page()
        page.goto(server.stdout.readline().strip() + "#text=The+king")
        settled(page)
        page.locator("#live-quit").click()
        expect(page.locator("#live-status")).to_contain_text("has ended")
        assert server.wait() == 0
