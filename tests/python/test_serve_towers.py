"""`multihead serve` of an encoder-decoder: maps of both kinds of attention, predictions without heads, generation, the page,
and requests that it rejects. The library is the reference; the model is random."""
import ctypes as C
import json
import re
import urllib.error
import urllib.request

import numpy as np
import pytest
from playwright import sync_api

import multihead
from html_report import choose
from live_page import settled
from multihead import _abi, _tensor
from multihead._library import check, default_context, library
from test_towers_hf import net_of, write_tokenizer

SOURCE, TARGET = "the cat sat; on a mat.", "die katze"
expect = sync_api.expect


class Served:
    def __init__(self, model, url):
        self.model, self.url = model, url

    def ask(self, place, **fields):
        """(status, body)"""
        fields = {"text": TARGET, "source": SOURCE, **fields}
        request = urllib.request.Request(self.url + place, json.dumps({k: v for k, v in fields.items() if v is not None}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, place, **fields):
        status, body = self.ask(place, **fields)
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module")
def served(serve, tmp_path_factory):
    folder = tmp_path_factory.mktemp("towers")
    net_of("marian, never").save_pretrained(folder)
    write_tokenizer(folder)
    return Served(multihead.Model(folder), serve(folder))


def test_maps_are_those_of_the_library(served):
    seen = served.model.attention(TARGET, source=SOURCE, outputs=("probabilities", "cross_probabilities"))
    for attention, exact in ("cross", seen.cross_probabilities), ("self", seen.probabilities):
        answer = served.get("look", attention=attention, head="L1H2")
        assert answer["tokens"] == len(seen.tokens) and len(answer["maps"]["panels"]) == 12 and answer["cache"] is None
        assert answer["maps"]["cols"] == exact[0].shape[-1] and answer["maps"]["same_labels"] == (attention == "self")
        for layer in range(2):
            for head in (0, 2, 5):
                status, body = served.ask("map", attention=attention, head=f"L{layer}H{head}")
                found = np.frombuffer(body, np.float32).reshape(exact[layer][head].shape)
                assert status == 200 and np.array_equal(np.nan_to_num(found), exact[layer][head])


def logits_without(model, off, cross):
    """Logits of the last row, with the gates of these heads closed."""
    rows, gates = model._encode(SOURCE)[1], np.ones((model.layers, model.num_heads), np.float32)
    for layer, head in off:
        gates[layer, head] = 0
    tokens = model.tokenize(TARGET)
    logits = np.zeros((1, len(tokens), model.vocab_size), np.float32)
    given = _abi.TransformerInput(tokens=_tensor.pointer(tokens.ids[None]), memory=_tensor.pointer(rows),
                                  **{"cross_gates" if cross else "gates": _tensor.pointer(gates)})
    with default_context() as handle:
        check(library.mha_transformer_forward(handle, model._net, C.byref(given), None,
                                              C.byref(_tensor.tensor(logits)), None, None))
    return logits[0, -1]


@pytest.mark.parametrize("attention", ["cross", "self"])
def test_heads_off_give_the_logits_without_them(served, attention):
    model = served.model
    whole, without = (logits_without(model, off, attention == "cross") for off in ((), ((0, 1), (1, 4))))
    assert np.array_equal(whole, model.logits(TARGET, source=SOURCE)[-1]) and not np.array_equal(whole, without)
    tokens = served.get("look", attention=attention, off=["L0H1", "L1H4"])["next"]["tokens"]
    assert tokens[0]["id"] == without.argmax()
    for token in tokens:
        assert abs(token["logit"] - without[token["id"]]) < 1e-5 and abs(token["logit_whole"] - whole[token["id"]]) < 1e-5


def test_generation_is_that_of_the_library(served):
    text = ""
    for _ in range(12):
        step = served.get("generate", text=text)
        assert step["cache"] is None and step["id"] not in (40, 96)  # bad_words_ids
        text += step["appended"]
    ids = served.model.tokenize(text).ids[1:].tolist()
    assert served.model.generate(source=SOURCE, max_tokens=len(ids)).startswith(text[:len(ids)])


@pytest.mark.gate(5)
@pytest.mark.parametrize("place, fields, error", [
    ("look", {"source": None}, "source: an encoder-decoder needs a text"), ("look", {"source": "  "}, ""),
    ("look", {"source": ""}, "the text is empty"), ("look", {"source": 3}, "source: expected a text"),
    ("look", {"attention": "both"}, "attention: expected one of"), ("look", {"text": None}, "text: expected a text"),
    ("look", {"patched": ["L0H0"], "other": "x"}, "switched off, but not patched"),
    ("look", {"noise": 1, "noisy": "L0H0"}, "switched off, but not patched"),
    ("look", {"window": 3}, "architecture of an encoder-decoder"), ("look", {"off": ["L0H9"]}, "no head L0H9"),
    ("look", {"source": "x" * 90}, "too many tokens"), ("look", {"text": "x" * 90}, "too many tokens"),
    ("look", {"row": 900}, "row: the text has"), ("map", {"head": "L7H0"}, "no such head"),
    ("trace", {"head": "L0H0"}, "neither this trace"), ("plane", {"head": "L0H0"}, "neither this trace")], ids=str)
def test_wrong_requests_are_named(served, place, fields, error):
    status, body = served.ask(place, **fields)
    assert (status in (400, 422, 500, 501) and error in json.loads(body)["error"]) or (status == 200 and not error), body


def test_the_page(served, watched_page):
    page = watched_page(served.url, "#source=the+cat&text=a")
    settled(page)
    expect(page.locator("#live-source")).to_have_value("the cat")
    assert page.locator("#row-strip .chip").count() == 2 and page.locator("#strip .chip").count() == 7
    for hidden in ("#live-second", "#knobs", "#plane", "#diagram"):
        expect(page.locator(hidden)).to_be_hidden()
    assert page.locator("#live-click input").count() == 2
    expect(page.locator("#live-text-name")).to_have_text("Target")
    page.locator("#live-source").fill("a dog ran")
    settled(page)
    assert page.locator("#strip .chip").count() == 9
    page.locator("#generate-box summary").click()
    page.locator("#generate-next").click()
    expect(page.locator("#live-text")).to_have_value(re.compile("^a.+"))
    settled(page)
    choose(page.locator("#live-attention input[value=self]"))
    settled(page)
    expect(page.locator("#row-strip")).to_be_hidden()
    assert page.locator("#strip .chip").count() >= 3
    expect(page).to_have_url(re.compile("attention=self"))  # written with a delay
    page.locator('.thumb[title="L0H1"]').click(modifiers=["Alt"])
    settled(page)
    expect(page.locator("#live-chips button")).to_have_text("L0H1")
    choose(page.locator("#live-attention input[value=cross]"))
    settled(page)
    assert page.locator("#live-chips button").count() == 0 and page.locator("#strip .chip").count() == 9
    page.locator("#live-text").fill("")
    settled(page)
    assert page.locator("#row-strip .chip").count() == 1  # the start token
    expect(page).to_have_url(re.compile("source=a.dog.ran$"))
    page.reload()
    settled(page)
    expect(page.locator("#live-source")).to_have_value("a dog ran")


def test_the_report(served):
    status, page = served.ask("save", head="L1H0", cell=[1, 2])
    assert status == 200 and f"cross-attention; source: {SOURCE} | target: {TARGET}" in page.decode()
