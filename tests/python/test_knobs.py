"""The knobs on the page of `multihead serve`: sampling, and attention with changed settings. Changes are marked, and
the answers follow from the maps.

Needs playwright and a Chromium, like test_serve.py."""
import base64
import json
import re
import subprocess

import numpy as np
from playwright import sync_api
import pytest

from shared import PROGRAM, TINY

pytestmark = pytest.mark.gate(4)
if "without serve" in subprocess.run([PROGRAM, "--version"], capture_output=True, text=True,
                                     check=True).stdout:
    pytest.skip("this program was built without serve", allow_module_level=True)
TEXT = "the animal didn't cross the street because it was too tired"
expect = sync_api.expect


@pytest.fixture(scope="module")
def urls(trained):
    servers = {kind: subprocess.Popen([PROGRAM, "serve", "-q", str(model)], stdout=subprocess.PIPE, text=True)
               for kind, model in (("decoder", trained), ("encoder", TINY))}
    yield {kind: server.stdout.readline().strip() for kind, server in servers.items()}
    for server in servers.values():
        server.terminate()
        server.wait()
        server.stdout.close()


@pytest.fixture
def visit(new_page, urls):
    """Opens a page with its knobs; fails at the end if there were errors."""
    complaints = []

    def opener(kind="decoder", text=TEXT, place="", **options):
        page = new_page(**options)
        page.on("pageerror", lambda e: complaints.append(f"error: {e}"))
        page.goto(f"{urls[kind]}#text={text.replace(' ', '+')}{place}")
        settled(page)
        if not place:
            page.locator("#knobs-box > summary").click()
        return page

    yield opener
    assert complaints == []


def settled(page):
    page.locator("#live-panel[data-answers]:not([data-busy])").wait_for()


def post(page, place, **body):
    reply = page.evaluate("""async ([place, body]) => {
        const reply = await fetch(place, {method: "POST", body: JSON.stringify(body),
            headers: {"Content-Type": "application/json"}});
        return btoa(Array.from(new Uint8Array(await reply.arrayBuffer()), byte => String.fromCharCode(byte)).join(""));
    }""", [place, {"text": TEXT, **body}])
    return base64.b64decode(reply)


def look(page, **body):
    return json.loads(post(page, "look", **body))


def cells(page, head="L0H1", **body):
    flat = np.frombuffer(post(page, "map", head=head, **body), np.float32)
    return flat.reshape(int(np.sqrt(flat.size)), -1).astype(float)


def test_sampling(visit):
    page = visit()
    tokens = look(page, temperature=0.5, top_k=3, maps=False)["next"]["tokens"]
    logits = np.array([token["logit"] for token in tokens[:3]])
    weights = np.exp(2 * (logits - logits[0]))
    assert [token["p_drawn"] for token in tokens] == pytest.approx([*weights / weights.sum(), *[0] * 7], abs=1e-8)
    page.get_by_label("top-k").select_option("1")
    first = page.locator("#live-tokens tbody tr").first
    expect(first.locator("td.number").nth(1)).to_have_text("100.0 %")
    page.get_by_role("button", name="reset all knobs").click()
    expect(page.locator("#live-tokens th.for-drawn")).to_be_hidden()


def test_descriptions(visit):
    page = visit()
    whole, window, open_ = cells(page), cells(page, window=2), cells(page, causal=False)
    assert np.isnan(whole[0, 1]) and not np.isnan(open_).any(), "nothing is masked"
    assert np.all((np.nan_to_num(window) > 0).sum(axis=1) <= 2)
    two = np.nan_to_num(whole[1:, :]) * (np.nan_to_num(window[1:]) > 0)
    assert window[1] == pytest.approx(whole[1], nan_ok=True) and (two.sum(axis=1) <= 1 + 1e-6).all()
    tokens = len(whole)
    answer = look(page, window=2)
    moved = np.abs(np.nan_to_num(whole) - np.nan_to_num(window)).sum() / 2 / tokens
    names = [panel["name"] for panel in answer["maps"]["panels"]]
    assert answer["moved"][names.index("L0H1")] == pytest.approx(moved, abs=1e-6)
    assert answer["next"]["changed"] and answer["next"]["tokens"][0]["p_whole"] >= 0
    plain = look(page, maps=False)["next"]["tokens"][0]
    assert [t["p_whole"] for t in answer["next"]["tokens"] if t["id"] == plain["id"]] == [plain["p"]]
    same = look(page, positions=answer["model"]["positions"])
    assert max(same["moved"]) == 0 and same["next"]["divergence"] == pytest.approx(0, abs=1e-8)
    for change in {"scaled": False}, {"positions": "none"}, {"rope_base": 100}, {"noisy": "L0H1", "noise": 1}:
        assert max(look(page, **change)["moved"]) > 0, change
    for change, words in ({"window": 0}, "at least 1"), ({"rope_base": 1}, "above 1"), ({"noise": 1}, "noisy"), \
            ({"positions": "odd"}, "positions"), ({"temperature": -1}, "temperature"):
        assert words in look(page, **change)["error"]
    assert "window of 2 tokens" in post(page, "save", window=2, noisy="L0H1", noise=1).decode()


def test_what_changes_is_marked(visit):
    page = visit()
    page.get_by_label("window (tokens)").fill("2")
    page.keyboard.press("Enter")
    expect(page.locator("#knobs-moved")).to_contain_text("largest first: L")
    expect(page.locator("#live-tokens th.for-change").first).to_have_text("original")
    settled(page)
    assert page.locator(".thumb.moved").count() > 0
    assert "of the weight moved" in page.locator(".thumb.moved").first.get_attribute("title")
    page.get_by_label("causal mask").uncheck()
    settled(page)
    expect(page).to_have_url(re.compile("knobs=window%3A2,causal%3Afalse"))
    page.get_by_role("button", name="reset all knobs").click()
    expect(page.locator(".thumb.moved")).to_have_count(0)
    expect(page.locator("#live-tokens th.for-change").first).to_be_hidden()


def test_the_address_has_the_knobs(visit):
    page = visit(place="&knobs=window:3,scaled:false,noise:0.5,noisy:L1H0")
    expect(page.get_by_label("window (tokens)")).to_have_value("3")
    expect(page.get_by_label("scores divided by")).not_to_be_checked()
    expect(page.get_by_role("combobox", name="head", exact=True)).to_have_value("L1H0")
    expect(page.locator(".thumb.moved")).not_to_have_count(0)


def test_an_encoder(visit):
    page = visit("encoder", "the cat sat")
    page.get_by_label("causal mask").check()
    expect(page.locator("#knobs-moved")).to_contain_text("largest first")
    page.get_by_label("causal mask").uncheck()
    expect(page.locator("#knobs-moved")).to_have_text("")


@pytest.mark.parametrize("width", [390, 1280])
def test_sizes_and_names(visit, width):
    page = visit(width=width)
    page.get_by_label("temperature").press("ArrowLeft")
    page.get_by_label("positions").select_option("none")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("""() => [...document.querySelectorAll("#knobs input, #knobs select")]
        .filter(node => !node.labels?.[0]?.textContent.trim()).length""") == 0
