"""`multihead serve` with routed experts, gated delta nets, state spaces and short convolutions: maps, experts,
predictions without heads and with patched heads, and generation that continues, goes back and branches. The library is
the reference; the models are random."""
import base64
import json
import urllib.error
import urllib.request

import numpy as np
import pytest
from playwright import sync_api

import multihead
from html_report import choose
from live_page import settled
from test_experts_hf import TEXT, make, save

KINDS = ("qwen3_moe", "qwen3_next", "lfm2_moe", "granitemoehybrid")
OTHER = "the dog ran to the cat. the cat sat on the mat."  # as long, with the same last token
MASKED, TOKENS = 0x7FC0A5A5, 31  # a token for each of the tokenizer's characters


class Served:
    def __init__(self, model, url):
        self.model, self.url = model, url
        self.heads = [f"L{layer}H{head}" for layer, count in enumerate(model.heads_of_layers) for head in range(count)]

    def ask(self, place, text=TEXT, **fields):
        """(status, body)"""
        request = urllib.request.Request(self.url + place, json.dumps({"text": text, **fields}).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request) as reply:
                return reply.status, reply.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def get(self, place, text=TEXT, **fields):
        status, body = self.ask(place, text, **fields)
        assert status == 200, body
        return json.loads(body)


@pytest.fixture(scope="module", params=KINDS)
def served(request, serve, tmp_path_factory):
    folder = save(make(request.param), tmp_path_factory.mktemp("served"))
    return Served(multihead.Model(folder), serve(folder))


def is_plain(served):
    return set(served.model.heads_of_layers) == {4}


def test_maps_are_those_of_the_library(served):
    exact = served.model.attention(TEXT).probabilities
    for name in served.heads[::3]:
        layer, head = map(int, name[1:].split("H"))
        status, body = served.ask("map", head=name)
        found = np.frombuffer(body, np.float32).reshape(exact[layer][head].shape)
        assert status == 200 and np.array_equal(np.tril(found), exact[layer][head]), name
        assert (found.view(np.uint32)[np.triu_indices(len(found), 1)] == MASKED).all()


def choices_of(answer):
    return {int(choice["name"].split()[1]): choice for choice in answer["maps"]["choices"]}


def test_experts_of_each_token(served):
    """Heads that are off change the experts of their own and of later layers only."""
    plain = choices_of(served.get("look"))
    exact = served.model.experts(TEXT)
    assert list(plain) == [layer for layer, routes in enumerate(exact) if routes]
    for layer, choice in plain.items():
        routes = exact[layer]
        assert (choice["count"], choice["used"]) == (routes.total, routes.numbers.shape[1])
        assert choice["numbers"] == routes.numbers.reshape(-1).tolist()
        assert np.abs(np.array(choice["weights"]) / 1000 - routes.weights.reshape(-1)).max() < 0.00051
    off = [name for name in served.heads if not name.startswith("L0H")]
    first = int(off[0][1:].split("H")[0])
    changed = choices_of(served.get("look", off=off))
    for layer, choice in plain.items():
        assert (choice == changed[layer]) == (layer < first), layer


def test_heads_off_give_the_logits_without_them(served):
    off = served.heads[::4]
    logits = served.model.logits(TEXT, without=off)[-1]
    found = served.get("look", off=off, maps=False)["next"]["tokens"]
    assert not np.array_equal(logits, served.model.logits(TEXT)[-1])
    assert all(np.float32(line["logit"]) == logits[line["id"]] for line in found)


def test_heads_are_patched(served):
    """With all heads of the other text, the last token is as in that text, unless convolutions read earlier tokens."""
    own, other = (served.model.logits(text)[-1] for text in (TEXT, OTHER))
    for text in TEXT, OTHER:
        found = served.get("look", other=text, patched=served.heads, maps=False)["next"]["tokens"]
        wanted, tolerance = (own, 0) if text == TEXT else (other, 1e-5 * np.abs(other).max())
        error = max(abs(np.float32(line["logit"]) - wanted[line["id"]]) for line in found)
        assert error <= tolerance or (text == OTHER and 0 in served.model.heads_of_layers)
        assert text == TEXT or any(np.float32(line["logit"]) != own[line["id"]] for line in found)
    for name in served.heads[0], served.heads[-1]:
        moved = served.get("look", noisy=name, noise=0.5)["moved"]
        before = sum(int(head[1:].split("H")[0]) <= int(name[1:].split("H")[0]) for head in served.heads)
        assert not any(moved[:before]) and all(moved[before:])


def test_generation_continues_goes_back_and_branches(served):
    """A text that goes back or branches is computed again from the last copy of its states: here, from its first token."""
    plain, text = is_plain(served), TEXT
    for i in range(6):
        step = served.get("generate", text)
        assert step["kept"] + step["computed"] == len(TEXT) + i and (i == 0 or step["computed"] == 1)
        assert step["cache"]["heads"] == [4 * (heads == 4) for heads in served.model.heads_of_layers]
        assert (step["cache"]["state_bytes"] == 0) == plain
        text += step["appended"]
    assert text == TEXT + served.model.generate(TEXT, max_tokens=6)
    for branch, kept, kept_plain in (text[:20], 0, 19), (text[:30] + "dog", 20, 20), (text, 0, 30):
        step = served.get("generate", branch)
        logits = served.model.logits(branch)[-1].astype(float)
        chances = np.exp(logits - logits.max())
        assert step["id"] == logits[:TOKENS].argmax()
        assert step["p"] == pytest.approx(chances[step["id"]] / chances.sum(), rel=1e-6)
        assert step["kept"] == (kept_plain if plain else kept)
    assert served.get("generate", text, cache="int8")["kept"] == 0


def test_going_back_repeats_at_most_64_tokens(served):
    plain, text = is_plain(served), TEXT * 4
    first = served.get("generate", text)
    for branch in text[:150], text[:140] + OTHER, text[:129], text[:100]:
        common = min(len(branch) - 1, next((i for i, (a, b) in enumerate(zip(branch, text)) if a != b), len(branch)))
        step = served.get("generate", branch)
        assert step["id"] == served.model.logits(branch)[-1][:TOKENS].argmax()
        assert step["kept"] == (common if plain else common // 64 * 64), branch
        text = branch
    one, sets = (served.get("look", text, maps=False)["cache"] for text in (TEXT, TEXT * 4))
    assert sets["state_bytes"] == one["state_bytes"] * (1 + len(TEXT) * 4 // 64)
    for cache in one, sets, first["cache"]:
        heads = sum(cache["kv_heads"])
        assert cache["bytes"] - cache["state_bytes"] == cache["tokens"] * heads * cache["head_bytes"]


def test_steps_of_a_token(served):
    status, body = served.ask("trace", head=served.heads[-1])
    if not is_plain(served):
        assert status == 422 and "layer 0 is a " in json.loads(body)["error"]
        return
    trace = json.loads(body)
    for layer in trace["layers"]:
        middle, added, after = (np.frombuffer(base64.b64decode(layer[name]), np.float32)
                                for name in ("middle", "feed_forward", "next"))
        assert np.array_equal(middle + added, after) and np.abs(added).min() > 0


@pytest.mark.gate(1)
def test_the_page(served, watched_page):
    page = watched_page(served.url, f"#text={TEXT.replace(' ', '+')}&head={served.heads[0]}", allowed=("422",))
    settled(page)
    assert page.locator(".thumb").count() == len(served.heads)
    page.locator("#strip .chip").nth(3).click()
    experts = [routes for routes in served.model.experts(TEXT) if routes]
    sync_api.expect(page.locator(".choices tr")).to_have_count(len(experts))
    page.locator("#diagram-box > summary").click()
    told = page.locator("#diagram-failed")
    if is_plain(served):
        sync_api.expect(page.locator("#diagram-box .dg-flow > *").first).to_be_visible()
        sync_api.expect(told).to_be_hidden()
    else:
        sync_api.expect(told).to_contain_text("layer 0 is a ")
    choose(page.locator("#live-click input[value=off]"))
    page.locator(f'.thumb[title="{served.heads[0]}"]').click()
    settled(page)
    sync_api.expect(page.locator("#live-chips .live-chip")).to_have_text([served.heads[0]])
