"""Pictures from Python: contents, BertViz's arguments, files, notebooks, errors."""
import base64
import dataclasses
import html
import json
import os
import re
import subprocess
import sys
import types

import numpy as np
import pytest

import multihead
from shared import PROGRAM, TINY

TOKENS = ["[CLS]", "\u0120the", "cat", "</script>", "[SEP]"]


def maps(layers=2, heads=3, rows=5, cols=5, seed=0):
    return [np.random.default_rng([seed, n]).dirichlet(np.ones(cols), (1, heads, rows)).astype(np.float32)
            for n in range(layers)]


def pages(view):
    """The data of a view's pages, extracted from its iframe."""
    inner = html.unescape(re.search(r'srcdoc="([^"]*)"', view.data)[1])
    found = re.findall(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>', inner, re.S)
    if not found:
        found = re.findall(r'type="application/json"[^>]*>(.*?)</script>', html.unescape(inner), re.S)
    return [json.loads(text) for text in found]


@pytest.fixture(scope="module")
def attention():
    return multihead.Model(TINY).attention(
        "the cat sat on the mat", outputs=("probabilities", "q", "k"))


def test_a_view_holds_the_maps_and_labels():
    attention = maps()
    view = multihead.head_view(attention, TOKENS, layer=1, heads=[2, 0])
    (page,) = pages(view)
    text = json.dumps(page)
    assert "the" in text and "\\u0120" not in text and "L1H2" in text
    assert "</script>" in text  # a label that does not end the data
    assert re.match(r"<iframe[^>]*sandbox=", view.data.strip())


def test_every_kind_of_array_draws_the_same():
    attention = maps()
    data = multihead.head_view(attention, TOKENS).data
    assert multihead.head_view([layer[0] for layer in attention], TOKENS).data == data
    assert multihead.head_view(np.stack(attention)[:, 0], TOKENS).data == data
    assert multihead.head_view(tuple(layer.astype(np.float64) for layer in attention), TOKENS).data == data
    torch = pytest.importorskip("torch")
    given = tuple(torch.tensor(layer, requires_grad=True) for layer in attention)
    assert multihead.head_view(given, TOKENS).data == data


def test_layers_heads_and_second_texts_can_be_chosen():
    attention = maps(layers=4)
    names = re.findall(r"L\dH\d", json.dumps(pages(multihead.model_view(
        attention, TOKENS, include_layers=[3, 1], include_heads=[2]))))
    assert set(names) == {"L3H2", "L1H2"}
    one = multihead.head_view(attention, TOKENS, sentence_b_start=2).data
    assert one != multihead.head_view(attention, TOKENS).data
    assert multihead.head_view(attention, TOKENS, prettify_tokens=False).data != \
        multihead.head_view(attention, TOKENS).data


def test_views_open_on_the_layer_of_the_strongest_link():
    """The default shows all layers. Only in layer 2 does "bank" attend to "river"."""
    tokens = ["[CLS]", "bank", "by", "the", "river", "flooded"]
    attention = [np.full((2, 6, 6), 1 / 6, np.float32) for _ in range(3)]
    attention[2][1, 1] = [0, 0, 0, 0, 1, 0]
    (page,) = pages(multihead.head_view(attention, tokens))
    assert page["line_panels"] == [4, 5]
    assert pages(multihead.head_view(attention, tokens, include_layers=[0, 2]))[0]["line_panels"] == [2, 3]
    assert pages(multihead.head_view(attention, tokens, layer=0))[0]["line_panels"] == [0, 1]


def test_encoder_decoders_have_a_page_each():
    view = multihead.head_view(
        encoder_attention=maps(rows=4, cols=4), decoder_attention=maps(rows=3, cols=3),
        cross_attention=maps(rows=3, cols=4), encoder_tokens=list("abcd"), decoder_tokens=list("xyz"))
    for name in ("Encoder", "Decoder", "Cross"):
        assert name in view.data
    assert "18 maps" in repr(view)


def test_a_model_s_attention_knows_its_tokens(attention):
    data = multihead.head_view(attention).data
    assert data == multihead.head_view(attention.probabilities, attention.tokens).data
    assert attention._repr_html_() == data
    assert multihead.model_view(attention, display_mode="light").data != data


def test_neurons_hold_queries_and_keys(attention):
    one = multihead.neuron_view(attention, layer=1, head=2)
    assert "L1H2" in one.data
    q, k = (np.stack(attention.q)[1], np.stack(attention.k)[1])
    own = multihead.neuron_view(q=q, k=k, tokens=attention.tokens, display_mode="light")
    assert "L0H0" in own.data
    weights = multihead._views._weights(q, k, False, None)
    assert np.abs(weights - attention.probabilities[1]).max() < 1e-5
    causal = multihead._views._weights(q, k[:1], True, 0.5)
    assert not np.triu(causal, 1).any() and np.abs(causal.sum(-1) - 1).max() < 1e-6


def test_files_are_whole(attention, tmp_path):
    view = multihead.heatmap(attention, layer=0, heads=[1], title="one head")
    view.save(tmp_path / "a.svg")
    view.save(tmp_path / "a.png")
    view.save(tmp_path / "a.html")
    assert (tmp_path / "a.svg").read_text() == view.svg() == view._repr_html_()
    assert "one head" in view.svg() and "L0H1" in view.svg()
    view.save(tmp_path / "a.pdf")
    assert (tmp_path / "a.pdf").read_bytes() == view.pdf() and view.pdf().startswith(b"%PDF")
    png = (tmp_path / "a.png").read_bytes()
    assert png.startswith(b"\x89PNG") and png == view.png()
    assert (tmp_path / "a.html").read_text().startswith("<!")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.pdf", "a.png", "a.svg"]
    (tmp_path / "any").touch()
    assert (tmp_path / "a.svg").stat().st_mode == (tmp_path / "any").stat().st_mode
    with pytest.raises(ValueError, match=".html, .svg, .png"):
        view.save(tmp_path / "a.gif")
    with pytest.raises(OSError):
        view.save(tmp_path / "none" / "a.svg")


def test_files_are_those_of_the_library(tmp_path):
    """Links are followed, permissions are kept, and a write-protected file is unchanged."""
    view = multihead.heatmap(np.eye(3))
    target, link = tmp_path / "target.svg", tmp_path / "link.svg"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target.name)
    view.save(link)
    assert link.is_symlink() and target.read_text() == view.svg()
    assert target.stat().st_mode & 0o777 == 0o640
    if os.geteuid() != 0:  # root may write to every file
        target.chmod(0o440)
        with pytest.raises(multihead.FileError, match="target.svg"):
            view.save(target)
    with pytest.raises(ValueError, match="has a NUL"):
        view.save(f"{tmp_path}/cut.png\0.svg")
    assert {path.name for path in tmp_path.iterdir()} == {"target.svg", "link.svg"}
    assert "a b?" in multihead.heatmap(np.eye(3), title="a\0b\ud800").svg()


def test_neuron_views_read_only_what_is_there(attention):
    """The library reads H T D numbers of 32 bits."""
    def changed(**given):
        return multihead.neuron_view(dataclasses.replace(attention, **given), html_action="return").data

    whole = changed()
    pruned = {name: [x[:0] if n else x for n, x in enumerate(getattr(attention, name))]
              for name in ("probabilities", "q", "k")}
    assert "L1H2" in whole and "L0H2" in changed(**pruned) and "L1H2" not in changed(**pruned)
    assert changed(q=[q.astype(np.float64) for q in attention.q],
                   k=[np.asfortranarray(k) for k in attention.k]) == whole
    for given in ({"q": [q[:, :1] for q in attention.q]}, {"k": [k[:, :1] for k in attention.k]},
                  {"q": [q[:1] for q in attention.q]},
                  {"q": attention.q[:1], "k": attention.k[:1]}):
        with pytest.raises(ValueError, match="do not belong to the probabilities|do not fit"):
            changed(**given)
    for given in ({"k": [k[..., :1] for k in attention.k]}, {"k": [k[:0] for k in attention.k]}):
        with pytest.raises(ValueError, match="do not fit"):
            changed(**given)
    with pytest.raises(ValueError, match="q has 1 layers, k 2"):
        changed(q=attention.q[:1])


def test_a_choice_of_no_layer_is_an_error():
    with pytest.raises(TypeError, match=r"attention: weights of layers are expected, not object; Model\.attention"):
        multihead.model_view(object(), ["a"])
    given = [np.full((1, 2, 3, 3), 0.5, np.float32)]
    for call, match in ((lambda: multihead.head_view(given, "abc"), "tokens: a list of texts is expected"),
                        (lambda: multihead.head_view(given, list("abc"), heads=1), "heads: a sequence of whole numbers")):
        with pytest.raises(TypeError, match=match):
            call()
    with pytest.raises(ValueError, match="layer: only together with a model's attention"):
        multihead.heatmap(given[0][0, 0], list("abc"), layer=1)
    with pytest.raises(ValueError, match="include_layers: at least one"):
        multihead.head_view(maps(), TOKENS, include_layers=[])
    with pytest.raises(ValueError, match=r"layer: 7 is not in 0 \.\. 1"):
        multihead.heatmap(maps(), TOKENS, layer=7)


def test_heatmaps_of_plain_arrays():
    array = np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4)
    assert "<svg" in multihead.heatmap(array).svg()
    assert "0.09" in multihead.heatmap(array, numbers="always").svg()
    assert multihead.heatmap(array[None, None], ["a", "b", "c"], list("wxyz")).svg() == \
        multihead.heatmap(array, ["a", "b", "c"], list("wxyz")).svg()


def test_a_notebook_shows_a_view_once(monkeypatch, attention):
    shown = []
    display = types.ModuleType("IPython.display")
    display.HTML, display.display = lambda text: text, shown.append
    shell = types.SimpleNamespace(kernel=object(), execution_count=1)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    view = multihead.head_view(attention)
    assert shown == [view.data]
    view._ipython_display_()  # the view is the last expression of its cell
    assert len(shown) == 1
    shell.execution_count = 2
    view._ipython_display_()  # a later cell shows the view
    assert len(shown) == 2
    multihead.head_view(attention, html_action="return")
    assert len(shown) == 2


@pytest.mark.parametrize("call, match", [
    (lambda a: multihead.head_view(), "attention is missing"),
    (lambda a: multihead.head_view(maps()), "tokens are missing"),
    (lambda a: multihead.head_view(maps(), ["a"]), "1 tokens for 5"),
    (lambda a: multihead.head_view([], []), "no layer"),
    (lambda a: multihead.head_view([None], ["a"]), "output_attentions=True"),
    (lambda a: multihead.head_view([np.zeros((2, 1, 5, 5))], TOKENS), "a batch of 2"),
    (lambda a: multihead.head_view([np.zeros((5, 5))], TOKENS), "2 dimensions"),
    (lambda a: multihead.head_view(maps(), TOKENS, layer=2), "layer: 2"),
    (lambda a: multihead.head_view(maps(), TOKENS, heads=[3]), "heads: "),
    (lambda a: multihead.head_view(maps(), TOKENS, sentence_b_start=9), "sentence_b_start"),
    (lambda a: multihead.head_view(maps(), TOKENS, include_layers=[7]), "include_layers"),
    (lambda a: multihead.head_view(maps(), TOKENS, html_action="show"), "html_action"),
    (lambda a: multihead.head_view(maps(), TOKENS, encoder_tokens=["a"]), "encoder-decoder"),
    (lambda a: multihead.head_view(cross_attention=maps(), encoder_tokens=TOKENS), "decoder_tokens"),
    (lambda a: multihead.model_view(a, display_mode="blue"), "display_mode"),
    (lambda a: multihead.model_view(a, include_heads=[5]), "include_heads"),
    (lambda a: multihead.neuron_view(q=np.zeros((2, 3, 4)), k=np.zeros((2, 3, 5)), tokens="abc"), "do not fit"),
    (lambda a: multihead.neuron_view(), "give a model"),
    (lambda a: multihead.heatmap(np.zeros(3)), "1 dimensions"),
    (lambda a: multihead.heatmap(np.zeros((2, 2)), cmap="jet"), "viridis"),
    (lambda a: multihead.heatmap(a, layer=9), "layer: 9"),
])
def test_errors_say_what_is_wrong(attention, call, match):
    with pytest.raises(ValueError, match=match):
        call(attention)


def test_pages_open_without_an_error(attention, new_page, tmp_path):
    made = {"lines": multihead.head_view(attention), "model": multihead.model_view(attention),
            "neurons": multihead.neuron_view(attention)}
    for name, view in made.items():
        page, errors = new_page(), []
        page.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        view.save(tmp_path / f"{name}.html")
        page.goto((tmp_path / f"{name}.html").as_uri())
        frame = page.frame_locator("iframe").first
        frame.get_by_text(name, exact=True).first.wait_for()
        assert not errors


def test_neurons_have_the_scale_of_their_layer(tmp_path):
    """Weights are softmax(score_scale q . k) of the shown q and k in every panel, for different
    layers and for the default. The program's page has the same numbers."""
    import checkpoint_ctypes as files
    from multihead._abi import LayerDesc
    scales = [0.7, 0.0, -0.05]
    layers = (LayerDesc * 3)(*[LayerDesc(scale=scale) for scale in scales])
    words = ["<s>", *"abcdefg"]
    made = files.Transformer(flags=files.CAUSAL, vocab_size=8, max_length=16, embed_dim=24, num_layers=3,
                             num_heads=4, kv_heads=2, head_dim=10, ff_dim=8, layers=layers)
    made.randomise(1)
    made.save(tmp_path, words, bos_word="<s>")
    model = multihead.Model(tmp_path)
    (page,) = pages(multihead.neuron_view(model, "a c b d g a", html_action="return"))
    subprocess.run([PROGRAM, "view", tmp_path, "a c b d g a", "--neurons", "-o", tmp_path / "page.html", "-q"],
                   check=True)
    theirs = json.loads(re.search(r'<script[^>]*type="application/json"[^>]*>(.*?)</script>',
                                  (tmp_path / "page.html").read_text(), re.S)[1])
    assert [p["name"] for p in page["panels"]] == [f"L{n // 4}H{n % 4}" for n in range(12)]
    shape = (page["rows"], 10)
    for n, (panel, other) in enumerate(zip(page["panels"], theirs["panels"], strict=True)):
        expected = np.float32(scales[n // 4]) or 10**-0.5
        assert panel["score_scale"] == other["score_scale"] == pytest.approx(expected, rel=1e-8)
        assert panel["queries"] == other["queries"] and panel["keys"] == other["keys"]
        q, k, weights = (np.frombuffer(base64.b64decode(part["data"]), np.float32).astype(np.float64)
                         for part in (panel["queries"], panel["keys"], panel))
        scores = np.exp(panel["score_scale"] * q.reshape(shape) @ k.reshape(shape).T) * np.tri(*shape[:1] * 2)
        exact = scores / scores.sum(-1, keepdims=True)
        assert np.abs(exact - weights.reshape(exact.shape)).max() < 1e-5, panel["name"]
    with pytest.raises(ValueError, match="scale: only together with q and k"):
        multihead.neuron_view(model, "a b", scale=1.0)
    vectors = model.attention("a b", outputs=("q", "k"))
    (page,) = pages(multihead.neuron_view(q=vectors.q[0], k=vectors.k[0], tokens=vectors.tokens, scale=0.3))
    assert {panel["score_scale"] for panel in page["panels"]} == {0.3}
    with pytest.raises(ValueError, match="scale: 0 gives every key the same weight"):
        multihead.neuron_view(q=vectors.q[0], k=vectors.k[0], tokens=vectors.tokens, scale=0)
