"""The model layer compared with transformers: equal token ids, and attention weights of every layer
and last hidden states with at most twice the error of torch in float32 relative to float64 (eager
attention) for the same inputs. Run with -s to see the table.

Each text of at least FEW tokens is judged separately. In shorter texts, the largest of few errors
is random, so they are judged together; the table shows each.

Uses the real model of MHA_MODEL_DIR (default build/models/all-MiniLM-L6-v2; skipped if missing)
and the tiny one. The libraries are in MHA_LIBRARY_DIR (default build).
"""
import ctypes as C

import numpy as np
import pytest
import torch
import transformers

from multihead import _tensor
from multihead._abi import Batch, EncodeOptions, Encoding, Int64Pointer, ModelInfo, ModelOutputs
from multihead._library import model_library
import multihead_ctypes as mha
from shared import MINILM, MODEL_LIBRARY, TINY, needs

needs(MODEL_LIBRARY)
LONG = " ".join(
    f"Paragraph {i} of a long text: the river rose, the bank gave way and {i * 37} people, who had "
    f"waited on the {'north' if i % 2 else 'south'} side, crossed the bridge; nobody was hurt."
    for i in range(40))
TEXTS = {
    "sentence": ("The animal didn't cross the street because it was too tired.", None),
    "one word": ("Hello", None),
    "nothing": ("", None),
    "rare word": ("Antidisestablishmentarianism, floccinaucinihilipilification", None),
    "accents": ("Où l'été naïf coûte-t-il à Zürich, São Paulo, Tromsø et Łódź?", None),
    "CJK": ("我们在北京喝茶。東京で寿司を食べる 한국어 문장", None),
    "emoji": ("I \u2764\ufe0f pizza \U0001f355\U0001f600 and \U0001f468\u200d\U0001f469\u200d\U0001f467!", None),
    "punctuation": ("(a+b)*c != d/e; \"quoted\" -- it's 50% off @ $3.99... [really?] {x_y}", None),
    "numbers": ("On 2026-11-20 at 19:05 it was -3.5 degrees, 1,234,567 units, 0x1F.", None),
    "Greek, Cyrillic": ("Ἐν ἀρχῇ ἦν ὁ λόγος. Съешь же ещё этих мягких булок.", None),
    "repetition": ("the cat the cat the cat the cat", None),
    "blanks": ("  tabs\tand\nnew lines \u00a0 and\u3000wide ones  ", None),
    "pair": ("Who flew the plane to Paris?", "The pilot flew the plane to Paris in the night."),
    "longest": (LONG, None),
    "longest pair": (LONG, LONG[::-1]),
}
TEXTS |= {f"short {n}": (text, None) for n, text in enumerate(
    ("Paris", "The cat sat.", "42", "?!", "too tired", "naïve", "北京", "a b c d e f g"))}
FEW = 16
BATCH = ("sentence", "one word", "punctuation", "pair")


class Ours:
    """A model in the library."""

    def __init__(self, folder):
        self.lib = model_library()
        self.context, self.model = mha.default_context().handle, C.c_void_p()
        mha.check(self.lib.mha_model_load(self.context, str(folder).encode(), None,
                                          C.byref(self.model)))
        self.info = ModelInfo()
        mha.check(self.lib.mha_model_describe(self.model, C.byref(self.info)))

    def encode(self, text, pair):
        options = EncodeOptions(max_length=self.info.max_positions, truncation=1)
        encoding = Encoding()
        texts = [(t.encode(), len(t.encode())) if t is not None else (None, 0) for t in (text, pair)]
        mha.check(self.lib.mha_tokenizer_encode(
            self.lib.mha_model_tokenizer(self.model), C.byref(options), *texts[0], *texts[1], C.byref(encoding)))
        ids, type_ids = (_tensor.numbers(at, encoding.count, np.int32).tolist()
                         for at in (encoding.ids, encoding.type_ids))
        self.lib.mha_encoding_free(C.byref(encoding))
        return ids, type_ids

    def forward(self, ids, type_ids, lengths):
        """attention [L,B,H,T,T] and last hidden state [B,T,E], float32."""
        info, (B, T) = self.info, ids.shape
        ids, type_ids = (np.ascontiguousarray(a, dtype=np.int32) for a in (ids, type_ids))
        lengths = np.ascontiguousarray(lengths, dtype=np.int64)
        attention = np.full((info.layers, B, info.heads, T, T), np.nan, dtype=np.float32)
        hidden = np.full((B, T, info.hidden_size), np.nan, dtype=np.float32)
        maps = [mha.tensor(a) for a in attention]
        wants = [mha.ModuleOutputs(probabilities=C.pointer(m)) for m in maps]
        wants = (C.POINTER(mha.ModuleOutputs) * info.layers)(*[C.pointer(w) for w in wants])
        last = mha.tensor(hidden)
        batch = Batch(batch=B, length=T, ids=ids.ctypes.data, type_ids=type_ids.ctypes.data,
                      lengths=lengths.ctypes.data_as(Int64Pointer))
        outputs = ModelOutputs(last_hidden=C.pointer(last), attention=wants)
        mha.check(self.lib.mha_model_forward(self.context, self.model, C.byref(batch),
                                              C.byref(outputs)))
        return attention, hidden


class Theirs:
    """The same model in transformers, in float64 and float32."""

    def __init__(self, folder):
        transformers.utils.logging.disable_progress_bar()
        self.tokenizer = transformers.BertTokenizerFast.from_pretrained(folder)
        self.models = {
            dtype: transformers.BertModel.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager", add_pooling_layer=False).eval()
            for dtype in (torch.float64, torch.float32)}

    def encode(self, text, pair, most):
        encoded = self.tokenizer(text, pair, truncation="longest_first", max_length=most)
        return encoded["input_ids"], encoded["token_type_ids"]

    def forward(self, dtype, ids, type_ids, lengths):
        mask = np.arange(ids.shape[1])[None, :] < np.array(lengths)[:, None]
        with torch.no_grad():
            out = self.models[dtype](
                torch.tensor(ids), token_type_ids=torch.tensor(type_ids),
                attention_mask=torch.tensor(mask.astype(np.int64)), output_attentions=True)
        attention = torch.stack(out.attentions).double().numpy()
        return attention, out.last_hidden_state.double().numpy()


@pytest.fixture(scope="module", params=["tiny", "real"])
def models(request):
    folder = {"tiny": TINY, "real": MINILM}[request.param]
    if not (folder / "model.safetensors").exists():
        pytest.skip(f"{folder} is missing; tools/get-minilm fetches it")
    ours = Ours(folder)
    theirs = Theirs(folder)
    return ours, theirs


def pad(rows):
    longest = max(map(len, rows))
    return np.array([row + [0] * (longest - len(row)) for row in rows], dtype=np.int64)


def errors(got, exact, lengths):
    """The largest error of each layer's attention, and of the last hidden state. Padding rows are skipped."""
    arrays = list(zip(got[0], exact[0])) + [(got[1], exact[1])]
    return np.array([max(np.abs(a[b][..., :n, :] - e[b][..., :n, :]).max()
                         for b, n in enumerate(lengths)) for a, e in arrays])


def compare(name, ours, theirs, ids, type_ids, lengths):
    """Print and return the library's errors and torch's."""
    exact = theirs.forward(torch.float64, ids, type_ids, lengths)
    single = theirs.forward(torch.float32, ids, type_ids, lengths)
    got = ours.forward(ids, type_ids, lengths)
    pair = errors(got, exact, lengths), errors(single, exact, lengths)
    show(name, lengths.max(), *pair)
    return pair


def show(name, length, own, torch_own):
    names = [f"attention {layer}" for layer in range(len(own) - 1)] + ["last hidden"]
    for what, a, b in zip(names, own, torch_own):
        print(f"  {name:16} {length:4} {what:12} {a:10.2e} {b:10.2e} {a / b:6.2f}")


def header(ours):
    print(f"\n  {ours.info.layers} layers, {ours.info.heads} heads, largest absolute error against "
          f"float64\n  {'text':16} {'len':>4} {'what':12} {'ours':>10} {'torch f32':>10}  ratio")


def test_same_token_ids(models):
    ours, theirs = models
    for name, (text, pair) in TEXTS.items():
        assert ours.encode(text, pair) == theirs.encode(text, pair, ours.info.max_positions), name
    assert len(ours.encode(*TEXTS["longest"])[0]) == ours.info.max_positions


def test_numbers(models):
    ours, theirs = models
    found, short = {}, []
    header(ours)
    for name, (text, pair) in TEXTS.items():
        ids, type_ids = theirs.encode(text, pair, ours.info.max_positions)
        pair = compare(name, ours, theirs, np.array([ids]), np.array([type_ids]),
                       np.array([len(ids)]))
        if len(ids) < FEW:
            short.append(pair)
        else:
            found[name] = pair
    found["all short ones"] = tuple(np.max(errors, axis=0) for errors in zip(*short))
    show("all short ones", FEW - 1, *found["all short ones"])
    assert all((own <= 2 * torch_own).all() for own, torch_own in found.values())


def test_padded_batch(models):
    ours, theirs = models
    encoded = [theirs.encode(*TEXTS[name], ours.info.max_positions) for name in BATCH]
    ids, type_ids = pad([e[0] for e in encoded]), pad([e[1] for e in encoded])
    lengths = np.array([len(e[0]) for e in encoded])
    header(ours)
    own, torch_own = compare("padded batch", ours, theirs, ids, type_ids, lengths)
    assert (own <= 2 * torch_own).all()
    attention, hidden = ours.forward(ids, type_ids, lengths)
    for b, n in enumerate(lengths):  # the same bits as a separate sequence
        alone = ours.forward(ids[b:b + 1, :n], type_ids[b:b + 1, :n], lengths[b:b + 1])
        assert np.array_equal(attention[:, b, :, :n, :n], alone[0][:, 0])
        assert np.array_equal(hidden[b, :n], alone[1][0])
        assert not attention[:, b, :, :, n:].any()
