"""The diagram from a token to the next token on the page of `multihead serve`: its numbers equal
those of the maps and the library, a head expands to its steps, and all of it is accessible by keys
and screen readers.

Needs playwright and a Chromium, like test_serve.py; test_explorer.py compares the answers in a page without a
server."""
import base64
import json

import numpy as np
from playwright import sync_api
import pytest
from safetensors.numpy import load_file, save_file

import multihead
import live_page
from shared import TINY

pytestmark = pytest.mark.gate(4)
TEXT = "the animal didn't cross the street because it was too tired"
expect = sync_api.expect


@pytest.fixture(scope="module")
def mixed(trained, tmp_path_factory):
    """The trained model with branch norms in its second layer."""
    folder, weights = tmp_path_factory.mktemp("mixed"), {}
    for name, weight in load_file(trained / "model.safetensors").items():
        post = "_post" if ".1." in name else ""
        for old, new in (("model.", ""), ("input_layernorm", f"self_attn{post}_norm"),
                         ("post_attention_layernorm", f"mlp{post}_norm")):
            name = name.replace(old, new)
        weights[name] = weight
    save_file(weights, folder / "model.safetensors")
    config = {"model_type": "multihead", "vocab_size": len(weights["lm_head.weight"]), "max_length": 48,
              "embed_dim": 64, "num_layers": 2, "num_heads": 4, "ff_dim": 128, "feed_forward": "swiglu",
              "norm": "rms", "positions": "rotary", "causal": True, "layers": [{}, {"branch_norm": True}]}
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((trained / name).read_bytes())
    return folder


@pytest.fixture(scope="module")
def urls(serve, trained, mixed):
    return {"decoder": serve(trained), "encoder": serve(TINY), "mixed": serve(mixed)}


@pytest.fixture
def visit(watched_page, urls):
    """Opens a page with its diagram."""
    def opener(model="decoder", text=TEXT, **options):
        page = watched_page(urls[model], f"#text={text.replace(' ', '+')}", **options)
        live_page.settled(page)
        page.locator("#diagram-box > summary").click()
        settled(page)
        return page
    return opener


def settled(page):
    page.locator("#diagram:not([data-busy]) .dg-step").first.wait_for()


def trace(page, **body):
    return json.loads(live_page.post(page, "trace", body))


def floats(text):
    return np.frombuffer(base64.b64decode(text), np.float32)


def open_head(page, name):
    page.locator(f'[data-dg="{name}"]').click()
    page.locator("#diagram-head").wait_for()
    settled(page)


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_weights_are_those_of_the_map(visit, kind):
    page, text = visit(kind), TEXT if kind == "decoder" else "the cat sat on the mat"
    for off in [], ["L0H0"]:
        given = trace(page, text=text, off=off, head="L1H1", cell=[4, 2])
        cells = np.frombuffer(live_page.post(page, "map", {"text": text, "off": off, "head": "L1H1"}), np.float32)
        row = cells.reshape(given["tokens"], -1)[4]
        assert np.array_equal(floats(given["head"]["weights"]), np.nan_to_num(row, nan=0)), "to the bit"
        assert given["key"] == 2 and np.argmax(np.abs(given["head"]["products"])) == given["head"]["channel"]
        asked = json.loads(live_page.post(page, "look", {"text": text, "off": off, "row": 4, "maps": False}))
        assert asked["next"] == given["next"]


def test_the_stream_ends_in_the_logits(visit, trained):
    model, page = multihead.Model(trained), visit()
    given = trace(page, text=TEXT)
    assert "head" not in given and given["row"] == len(model.tokenize(TEXT)) - 1
    for before, after in zip(given["layers"], given["layers"][1:]):
        assert before["next"] == after["stream"]
    weights = load_file(trained / "model.safetensors")
    out = weights.get("lm_head.weight", weights["model.embed_tokens.weight"]).astype(float)
    last = floats(given["last"]).astype(float)
    for token in given["next"]["tokens"]:
        assert token["logit"] == pytest.approx(out[token["id"]] @ last, abs=1e-4)


def test_a_head_opens_to_its_steps(visit):
    page = visit()
    open_head(page, "L1H2")
    panel = page.locator("#diagram-head")
    assert panel.locator(".dg-steps > li").count() == 9
    row = trace(page, text=TEXT, head="L1H2")
    weights, tokens = floats(row["head"]["weights"]), page.locator("#strip .chip bdi").all_inner_texts()
    expect(panel.locator("h4 bdi").last).to_have_text(tokens[int(np.argmax(weights))])
    shown = [line.locator("td.number").last.inner_text() for line in panel.locator(".dg-table tr:has(.dg-bar)").all()]
    assert [float(text.strip("< ")) for text in shown] == pytest.approx([max(w, 0.0001) for w in weights], abs=5.1e-5)
    panel.locator('[data-dg="key 3"]').focus()
    page.keyboard.press("Enter")
    settled(page)
    expect(page.locator("#diagram-head h4 bdi").last).to_have_text(tokens[3])
    assert page.evaluate("document.activeElement.dataset.dg") == "key 3", "the focus stays"
    page.locator("#diagram-token").select_option("5")
    settled(page)
    expect(page.locator("#diagram-head h4 bdi").first).to_have_text(tokens[5])
    page.locator('[data-dg="key 9"]').click()
    settled(page)
    expect(page.locator("#diagram-head")).to_contain_text("does not see")
    page.locator('[data-dg="close"]').click()
    expect(page.locator("#diagram-head")).to_have_count(0)


def test_it_follows_the_text_and_the_heads_that_are_off(visit):
    page = visit()
    open_head(page, "L0H1")
    page.locator("#live-text").fill("the king was tired")
    expect(page.locator("#diagram-token option").last).to_contain_text("tired")
    settled(page)
    page.locator("#cell").focus()
    page.keyboard.press("x")
    expect(page.locator(".dg-head.off b")).to_have_text("L0H1")
    settled(page)
    expect(page.locator("#diagram-head")).to_contain_text("The head is off")
    page.locator("#cell").focus()
    for key in ("Home", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    settled(page)
    chosen = page.locator("#strip .chip.looking bdi").inner_text()
    expect(page.locator("#diagram-head h4 bdi").first).to_have_text(chosen)


def test_what_a_model_has_not_is_absent(visit):
    page = visit("encoder", "the cat sat")
    flow = page.locator("#diagram-flow")
    expect(flow).to_contain_text("row of position 4")
    expect(flow).to_contain_text("row of the segment")
    expect(flow).to_contain_text("encoder")
    open_head(page, "L0H0")
    assert page.locator("#diagram-head .dg-steps > li").count() == 8, "nothing is rotated"


def test_norms_are_drawn_where_layers_have_them(visit):
    page = visit("mixed")
    given = trace(page, text=TEXT)["layers"]
    assert [(layer["norms_input"], layer["norms_branch"]) for layer in given] == [(True, False), (False, True)]
    blocks = page.locator("#diagram-flow .dg-open .dg-block").all()
    assert len(blocks) == 4, "attention and feed-forward of two layers"
    for i, block in enumerate(blocks):
        expect(block.locator(".dg-operation").get_by_text("norm", exact=True)).to_have_count(1 if i < 2 else 0)
        expect(block).to_contain_text("adds to the stream" if i < 2 else "is normed, then added")
    for head, normed in ("L0H0", True), ("L1H0", False):
        open_head(page, head)
        steps = page.locator("#diagram-head .dg-steps > li")
        assert ("normed" in steps.first.inner_text()) == normed
        assert ("is normed, then added" in steps.last.inner_text()) != normed


# ---- queries and keys in a plane -------------------------------------------------------------------

@pytest.mark.parametrize("off", [[], ["L0H2"]], ids=["all", "off"])
def test_points_are_the_principal_components(visit, off):
    """The shown plane equals NumPy's decomposition of the queries and keys of the steps."""
    page = visit()
    tokens = trace(page, text=TEXT)["tokens"]
    heads = [trace(page, text=TEXT, off=off, head="L1H3", cell=[t, t])["head"] for t in range(tokens)]
    rows = np.array([floats(head[name]) for name in ("query", "key") for head in heads], float)
    rows -= rows.mean(axis=0)
    _, sizes, vectors = np.linalg.svd(rows)
    given = json.loads(live_page.post(page, "plane", {"text": TEXT, "off": off, "head": "L1H3"}))
    assert given["shares"] == pytest.approx(sizes[:2] ** 2 / (sizes ** 2).sum(), rel=1e-8)
    signs = [np.sign(vector[np.argmax(np.abs(vector))]) for vector in vectors[:2]]
    points = np.concatenate([floats(given[name]).reshape(-1, 2) for name in ("queries", "keys")])
    assert points == pytest.approx(rows @ vectors[:2].T * signs, abs=1e-5 * float(np.abs(points).max()))


@pytest.mark.parametrize("width", [390, 1280])
def test_points_are_joined_by_the_weights(visit, width):
    page = visit(width=width)
    page.locator("#plane-box > summary").click()
    page.locator("#plane-picture svg").wait_for()
    tokens = page.locator("#strip .chip bdi").all_inner_texts()
    assert page.locator("#plane-picture .query:not(text)").count() == len(tokens) \
        == page.locator("#plane-picture .key:not(text)").count()
    page.locator("#plane-query").select_option("5")
    expect(page.locator("#plane-about bdi").first).to_have_text(tokens[5])
    expect(page.locator("#strip .chip.looking bdi")).to_have_text(tokens[5])
    head = page.locator("#plane-about").inner_text()[:4]
    row = floats(trace(page, text=TEXT, head=head, cell=[5, 0])["head"]["weights"])
    widths = [float(line.get_attribute("stroke-width")) for line in page.locator("#plane-picture line.chosen").all()]
    assert widths == pytest.approx(sorted((max(9 * w, 0.5) for w in row if w >= 0.02), reverse=True), abs=0.006)
    page.locator("#plane-picture circle.query").nth(2).dispatch_event("click")
    expect(page.locator("#plane-about bdi").first).to_have_text(tokens[2])
    assert tokens[2] in page.locator("#plane-picture svg").get_attribute("aria-label")
    page.locator('.thumb[title^="L1H1"]').click()
    expect(page.locator("#plane-about")).to_contain_text("L1H1: the horizontal")
    page.locator("#live-text").fill("the king was")
    expect(page.locator("#plane-picture circle.query")).to_have_count(4)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


CONTRASTS = """() => {
    const rgb = text => text.match(/[0-9.]+/g).map(Number);
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [.2126, .7152, .0722][i], 0);
    const behind = node => {
        for (; node; node = node.parentElement) {
            const colour = rgb(getComputedStyle(node).backgroundColor);
            if (colour.length < 4 || colour[3] === 1) return colour;
        }
    };
    const walk = document.createTreeWalker(document.getElementById("diagram"), NodeFilter.SHOW_TEXT), poor = [];
    while (walk.nextNode()) {
        const node = walk.currentNode.parentElement;
        if (!walk.currentNode.data.trim() || !node.checkVisibility()) continue;
        const [a, b] = [light(rgb(getComputedStyle(node).color)), light(behind(node))].sort((x, y) => y - x);
        if ((a + .05) / (b + .05) < 4.5) poor.push(node.textContent);
    }
    return poor;
}"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_sizes_and_names(visit, width, scheme):
    page = visit(width=width, color_scheme=scheme)
    open_head(page, "L1H0")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CONTRASTS) == []
    nameless = page.evaluate("""() => [...document.querySelectorAll("#diagram button, #diagram [role=img], #diagram select")]
        .filter(node => !(node.getAttribute("aria-label") ?? node.labels?.[0]?.textContent ?? node.textContent).trim())
        .map(node => node.outerHTML)""")
    assert nameless == []
    arrows = page.locator(".dg-arrow").all()
    assert len(arrows) > 10 and all(any(c.isdigit() for c in arrow.inner_text()) for arrow in arrows), "a shape on each"
