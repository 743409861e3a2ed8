"""The controls on the page of `multihead serve` for sampling and for attention with changed
settings. Changes are marked, and the answers follow from the maps.

Needs playwright and a Chromium, like test_serve.py."""
import json
import re
import shutil
import subprocess

import numpy as np
from playwright import sync_api
import pytest

from live_page import post, settled
from shared import PROGRAM, TINY

pytestmark = pytest.mark.gate(4)
TEXT = "the animal didn't cross the street because it was too tired"
expect = sync_api.expect


@pytest.fixture(scope="module")
def urls(serve, trained):
    return {"decoder": serve(trained), "encoder": serve(TINY)}


@pytest.fixture
def visit(watched_page, urls):
    """Opens a page with its controls; the server may reject them."""
    def opener(kind="decoder", text=TEXT, place="", **options):
        page = watched_page(urls[kind], f"#text={text.replace(' ', '+')}{place}", allowed=("422",), **options)
        settled(page)
        if not place:
            page.locator("#knobs-box > summary").click()
        return page
    return opener


def ask(page, place, **body):
    return post(page, place, {"text": TEXT, **body})


def look(page, **body):
    return json.loads(ask(page, "look", **body))


def cells(page, head="L0H1", **body):
    flat = np.frombuffer(ask(page, "map", head=head, **body), np.float32)
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
    for wrong, words in ({}, "such as L3H11"), ({"head": "L9H0"}, "no head L9H0"), ({"head": "L0H9"}, "no head L0H9"):
        assert words in json.loads(ask(page, "plane", **wrong))["error"]
    assert "window of 2 tokens" in ask(page, "save", window=2, noisy="L0H1", noise=1).decode()


def test_heads_are_merged(visit, trained, tmp_path):
    """A merge averages rows of W_k and W_v. It equals a model whose heads all have these means."""
    from safetensors.numpy import load_file, save_file
    page, weights = visit(), load_file(trained / "model.safetensors")
    for name, x in weights.items():
        if ".k_proj." in name or ".v_proj." in name:
            x[:] = x.reshape(2, 2, -1, *x.shape[1:]).mean(axis=1, keepdims=True, dtype=np.float64).repeat(2, axis=1) \
                .reshape(x.shape)
    shutil.copytree(trained, tmp_path / "merged", ignore=shutil.ignore_patterns("training*"))
    save_file(weights, tmp_path / "merged/model.safetensors", metadata={"format": "pt"})
    said = subprocess.run([PROGRAM, "generate", "--max-tokens", "1", "-q", tmp_path / "merged", TEXT], check=True,
                          capture_output=True, text=True).stdout
    answer, plain = look(page, kv_heads=2), look(page)
    assert said.split()[-1] == answer["next"]["tokens"][0]["text"] == generate(page, TEXT, kv_heads=2)["text"]
    assert answer["cache"]["kv_heads"] == [2, 2] and max(answer["moved"]) > 0 and answer["next"]["changed"]
    assert answer["cache"]["bytes"] == plain["cache"]["bytes"] / 2 and plain["model"]["kv_heads"] == 4
    assert answer["cache"]["bytes_loaded"] == answer["cache"]["bytes_all_heads"] == plain["cache"]["bytes"]
    assert max(look(page, kv_heads=4)["moved"]) == 0
    both = look(page, kv_heads=2, window=2)
    assert both["cache"]["kv_heads"] == [2, 2] and both["next"] != answer["next"]
    for wrong in 3, 0, 8:
        assert "head" in look(page, kv_heads=wrong)["error"]
    page.locator("#knobs select").nth(2).select_option("1")
    expect(page.locator("#knobs-bytes")).to_contain_text(f"{plain['cache']['bytes'] // 4:,} bytes, before")
    expect(page.locator("#knobs-moved")).to_contain_text("largest first: L")
    expect(page).to_have_url(re.compile("kv_heads%3A1"))


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


# ---- generation ------------------------------------------------------------------------------------

def generate(page, text, **body):
    return json.loads(ask(page, "generate", text=text, **body))


@pytest.mark.parametrize("more", [[], ["--cache", "int8"]], ids=["f32", "int8"])
def test_generation_is_the_programs(visit, trained, more):
    """Steps of single tokens with the page's cache give the tokens of `multihead generate` and the
    library's bytes."""
    page, text, cache = visit(), TEXT, more[-1] if more else "f32"
    said = subprocess.run([PROGRAM, "generate", *more, "--max-tokens", "5", "-q", trained, TEXT], check=True,
                          capture_output=True, text=True).stdout
    for step in range(5):
        made = generate(page, text, cache=cache)
        tokens = made["kept"] + made["computed"]
        assert (made["computed"] == 1) == (step > 0)
        bytes_of_head = 2 * (16 * 4 if cache == "f32" else 16 + 4)
        assert made["cache"]["bytes"] == tokens * 2 * 4 * bytes_of_head and made["cache"]["tokens"] == tokens
        if not made["appended"]:
            break
        text += made["appended"]
    assert said.removeprefix("<s> ").split(" <s>")[0].strip() == text and made["kept"] > 0
    back = generate(page, TEXT, cache=cache)
    assert text.startswith(TEXT + back["appended"]) and back["kept"] > 0, "a shorter text keeps what it shares"
    drawn = {generate(page, TEXT, draws=True, temperature=2, seed=seed)["id"] for seed in range(8)}
    assert len(drawn) > 2 and {generate(page, TEXT, draws=True, top_k=1, seed=5)["id"]} == {back["id"]}


def test_what_cannot_be_cached(visit):
    page = visit()
    plain = generate(page, TEXT)
    for change in {"off": ["L0H0"]}, {"noisy": "L0H1", "noise": 0.1}, {"causal": False}:
        made = generate(page, TEXT, **change)
        assert made["cache"] is None and made["kept"] == 0 and made["computed"] == plain["cache"]["tokens"], change
        assert made["id"] == look(page, maps=False, **change)["next"]["tokens"][0]["id"], change
    window = generate(page, TEXT, window=3)
    assert window["cache"] and window["id"] == look(page, maps=False, window=3)["next"]["tokens"][0]["id"]
    assert look(page, maps=False, causal=False)["cache"] is None
    assert "cache" in generate(page, TEXT, cache="f64")["error"]
    encoder = visit("encoder", "the cat sat")
    assert "encoder" in generate(encoder, "the cat sat")["error"]
    expect(encoder.locator("#generate")).to_be_hidden()


def test_tokens_are_generated(visit):
    page = visit()
    page.locator("#generate-box > summary").click()
    before = page.locator("#live-text").input_value()
    page.locator("#cell").focus()
    page.keyboard.press("g")
    page.locator("#generate-steps tbody tr").wait_for()
    settled(page)
    page.get_by_role("button", name="Generate the next token").click()
    expect(page.locator("#generate-steps tbody tr")).to_have_count(2)
    settled(page)
    last = page.locator("#generate-steps tbody tr").first.locator("td").all_inner_texts()
    text = page.locator("#live-text").input_value()
    assert text.startswith(before) and text.endswith(last[1]) and last[3] == "1"
    tokens = page.locator("#strip .chip").count()
    expect(page.locator("#generate-formula")).to_contain_text(
        f"2 × 2 layers × 4 key/value heads × 16 numbers × 4 bytes × {tokens} tokens = {1024 * tokens:,} bytes")
    assert int(last[5].replace(",", "")) == 1024 * (tokens - 1), "the last token comes with the next step"
    page.locator("#generate select").select_option("f16")
    expect(page.locator("#generate-formula")).to_contain_text(f"= {512 * tokens:,} bytes")
    page.get_by_role("button", name="take the last one back").click()
    settled(page)
    expect(page.locator("#generate-steps tbody tr")).to_have_count(1)
    page.locator("#live-text").fill("the king")
    expect(page.locator("#generate-steps")).to_be_hidden()


@pytest.mark.parametrize("width", [390, 1280])
def test_sizes_and_names(visit, width):
    page = visit(width=width)
    page.locator("#generate-box > summary").click()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.locator("#generate-steps tbody tr").wait_for()
    page.get_by_label("temperature").press("ArrowLeft")
    page.get_by_label("positions").select_option("none")
    settled(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("""() => [...document.querySelectorAll(":is(#knobs, #generate) :is(input, select)")]
        .filter(node => !node.labels?.[0]?.textContent.trim()).length""") == 0
