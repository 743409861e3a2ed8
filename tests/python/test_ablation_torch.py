"""Ablation (ablation.h) compared with torch in float64, with hooks in the formulas of
transformer_torch.py: sets of heads with every kind of ablation, gradients by autograd, direct
effects, activation and path patching. The models are small random ones, and SmolLM2 if installed
(tools/get-smollm2). Only a few heads of SmolLM2 are tested, with one kind of ablation unless
MHA_TEST_LONG=1. Every number must agree within 1e-4 of the largest number of its kind.
"""
import ctypes as C

import numpy as np
import pytest
import torch

import ablation_ctypes as ab
import checkpoint_ctypes as ck
import multihead_ctypes as mha
from shared import LONG, SMOLLM2
import training_ctypes as training
import transformer_torch as plain

TOLERANCE, PARTS = 1e-4, "zqkv"
KINDS = [dict(norm="layer", positions="learned", bias=True, num_heads=4, feed_forward="gelu"),
         dict(norm="rms", positions="rotary", num_heads=4, kv_heads=2, feed_forward="swiglu",
              tied=True),
         dict(norm="none", positions="learned", num_heads=2, feed_forward="relu"),
         dict(norm="rms", positions="rotary", num_heads=4, kv_heads=1, ff_dim=0)]


def small(kind, seed=0):
    fields = dict(vocab_size=23, max_length=16, embed_dim=24, num_layers=3, head_dim=6, ff_dim=20,
                  causal=True, max_tokens=64)
    model = training.Transformer(**{**fields, **kind})
    model.initialise(seed, embedding_std=1.0, position_std=0.5)
    model.data[:] += 0.1 * np.random.default_rng(seed).standard_normal(model.data.size, np.float32)
    model.update()
    return model


def smol():
    """SmolLM2's numbers from its file as an array, read once."""
    if not SMOLLM2.exists():
        pytest.skip("SmolLM2 was not fetched")
    if not hasattr(smol, "made"):
        loaded = ck.Transformer(SMOLLM2)
        handle = C.c_void_p()
        mha.check(mha.LIBRARY.mha_transformer_copy(loaded.context.handle, loaded.handle, C.byref(handle)))
        mha.LIBRARY.mha_transformer_destroy(loaded.handle)
        loaded.handle = handle
        smol.made = loaded
    return smol.made


class Reference:
    """Measures of texts in float64, with replacements for heads."""

    def __init__(self, model, texts, measures):
        self.model, self.texts, self.measures = model, texts, measures
        self.H = model.desc.num_heads
        parameters = model.parameters()
        self.p = {name: torch.tensor(value, dtype=torch.float64) for name, value in parameters.items()}

    def run(self, tokens, lengths=None, patches=(), gradient=False):
        """Logits, and every part: {(layer, part): [B,H,T,D]}. patches: (layer, part, head, values, rows)
        in order; values [B,T,D], rows [B,T] of bool or None."""
        seen = {}

        def hook(name, part, x):
            if name == "stream":
                seen["end"] = x
                return x
            layer = int(name.split(".")[1])
            for at, what, head, values, rows in patches:
                if at != layer or what != part:
                    continue
                keep = torch.ones(x.shape[0], x.shape[2], dtype=torch.bool) if rows is None else rows
                old = x[:, head]
                x = x.clone()
                x[:, head] = torch.where(keep[:, :, None], values, old)
            if gradient:
                x = x.detach().requires_grad_() if part == "z" and layer == 0 else x
                if part == "z":
                    x.retain_grad()
            seen[layer, part] = x
            return x

        logits = plain.forward(self.model, self.p, torch.as_tensor(tokens).long(), lengths, hook=hook)
        return logits, seen

    def score(self, logits, terms):
        """[M], with NaN for measures without terms."""
        log_p = torch.log_softmax(logits, -1).reshape(-1, logits.shape[-1])
        values = [None] * self.measures
        for factor, row, token, measure in terms:
            value = factor * log_p[row, token]
            values[measure] = value if values[measure] is None else values[measure] + value
        return values

    def numbers(self, logits, terms):
        return [np.nan if value is None else float(value) for value in self.score(logits, terms)]

    def measure(self, text, patches=(), tokens=None):
        own, lengths, terms = text
        logits, _ = self.run(own if tokens is None else tokens, lengths, patches)
        return self.numbers(logits, terms)

    def others(self, seed):
        """For each text, the text whose heads replace its heads."""
        mask, found = 2**64 - 1, []
        for i in range(len(self.texts)):
            z = (seed + 0xD1342543DE82EF95 * i + 0x9E3779B97F4A7C15) & mask
            z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            found.append((i + 1 + (z ^ z >> 31) % (len(self.texts) - 1)) % len(self.texts))
        return found

    def replacements(self, kind, seed):
        """{layer: [B,H,T,D]} for each text, the replacement of z."""
        kept = [self.run(tokens, lengths)[1] for tokens, lengths, _ in self.texts]
        layers = range(self.model.desc.num_layers)
        valid = [torch.as_tensor(np.arange(tokens.shape[1]) < np.reshape(
            lengths if lengths is not None else [tokens.shape[1]] * len(tokens), (-1, 1)))
            for tokens, lengths, _ in self.texts]
        made = []
        for i, (tokens, _, _) in enumerate(self.texts):
            row = {}
            for layer in layers:
                z = kept[i][layer, "z"]
                if kind == ab.ZERO:
                    row[layer] = torch.zeros_like(z)
                elif kind == ab.MEAN:
                    every = torch.cat([kept[k][layer, "z"].transpose(1, 2)[valid[k]]
                                       for k in range(len(kept))])
                    row[layer] = every.mean(0)[None, :, None].expand(z.shape)
                else:
                    other = self.others(seed)[i]
                    source, lengths = kept[other][layer, "z"], valid[other].sum(1)
                    new = torch.empty_like(z)
                    for b in range(z.shape[0]):
                        for t in range(z.shape[2]):
                            c = b % source.shape[0]
                            new[b, :, t] = source[c, :, t % int(lengths[c])]
                    row[layer] = new
            made.append(row)
        return made


def some_texts(model, seed, batches=True):
    r, V = np.random.default_rng(seed), model.desc.vocab_size
    texts = []
    for i in range(4):
        B, T = (int(r.integers(1, 4)) if batches else 1), int(r.integers(5, 14))
        tokens, lengths = r.integers(0, V, (B, T)), r.integers(2, T + 1, B)
        terms = []
        for _ in range(20):
            b = int(r.integers(B))
            terms.append((float(r.normal()) / 8, b * T + int(r.integers(lengths[b])), int(r.integers(V)),
                          1 if i == 3 else int(r.integers(2))))
        texts.append((tokens, list(lengths), terms))
    return texts


def smol_texts():
    """Repeated tokens, and a text of them with a loss and a difference."""
    r = np.random.default_rng(3)
    texts = []
    for _ in range(2):
        block = r.integers(1000, 40000, 12)
        tokens = np.concatenate([[1], block, block])[None]
        terms = [(-1 / 12, t - 1, int(tokens[0, t]), 0) for t in range(13, 25)]
        terms += [(1.0, 23, int(tokens[0, 24]), 1), (-1.0, 23, int(tokens[0, 5]), 1)]
        texts.append((tokens, None, terms))
    return texts


def close(got, wanted, what=""):
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert (np.isnan(got) == np.isnan(wanted)).all()
    scale = max(1.0, float(np.nanmax(np.abs(wanted))))
    worst = float(np.nanmax(np.abs(got - wanted))) / scale
    print(f"{what}: largest difference {worst:.2g} of {scale:.3g}")
    assert worst <= TOLERANCE


def patches_of(reference, row, heads):
    H = reference.H
    return [(head // H, "z", head % H, row[head // H][:, head % H], None) for head in heads]


@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("kind", [ab.ZERO, ab.MEAN, ab.RESAMPLE])
def test_sets(kind, number):
    model = small(KINDS[number], number)
    texts = some_texts(model, number)
    run, reference = ab.Run(model, texts, 2), Reference(model, texts, 2)
    heads = range(run.heads)
    sets = [[k] for k in heads] + [[0, run.heads - 1], [1, 2, 3], [], list(heads)]
    whole, without = run.sets(kind, sets, seed=5)
    rows = reference.replacements(kind, 5)
    close(whole, [reference.measure(text) for text in texts], "whole")
    close(without, [[reference.measure(text, patches_of(reference, row, chosen))
                     for text, row in zip(texts, rows)] for chosen in sets], "without")


def gradient_of(reference, text, row):
    """[heads, M] of sum (r - z) dM/dz."""
    tokens, lengths, terms = text
    found = np.full((reference.model.desc.num_layers * reference.H, reference.measures), np.nan)
    for measure in range(reference.measures):
        logits, seen = reference.run(tokens, lengths, gradient=True)
        value = reference.score(logits, terms)[measure]
        if value is None:
            continue
        value.backward()
        for layer, new in row.items():
            z = seen[layer, "z"]
            slope = ((new - z) * z.grad).sum((0, 2, 3)).detach().numpy()
            found[layer * reference.H:(layer + 1) * reference.H, measure] = slope
    return found


@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("kind", [ab.ZERO, ab.MEAN, ab.RESAMPLE])
def test_gradients(kind, number):
    model = small(KINDS[number], 10 + number)
    texts = some_texts(model, 10 + number)
    run, reference = ab.Run(model, texts, 2), Reference(model, texts, 2)
    rows = reference.replacements(kind, 9)
    wanted = np.stack([gradient_of(reference, text, row) for text, row in zip(texts, rows)], 1)
    close(run.gradients(kind, seed=9), wanted, "estimates")


def direct_of(reference, text):
    """[heads, M]: the negated contribution of each head's term in the centred logits to the measures."""
    model, (tokens, lengths, terms) = reference.model, text
    d, p, H, D = model.desc, reference.p, reference.H, reference.model.desc.head_dim
    _, seen = reference.run(tokens, lengths)
    out = p["embed_tokens.weight" if d.flags & training.FLAGS["tied"] else "lm_head.weight"]
    x = seen["end"].reshape(-1, d.embed_dim)
    found = np.full((d.num_layers * H, reference.measures), np.nan)
    for factor, row, token, measure in terms:
        if np.isnan(found[0, measure]):
            found[:, measure] = 0
        for layer in range(d.num_layers):
            z = seen[layer, "z"].transpose(1, 2).reshape(-1, H, D)[row]
            written = torch.einsum("ehd,hd->he", p[f"layers.{layer}.self_attn.o_proj.weight"].view(-1, H, D), z)
            if d.norm:
                centred = d.norm == training.NORMS["layer"]
                deviation = torch.sqrt(((x[row] - centred * x[row].mean()) ** 2).mean() + d.norm_epsilon)
                written = (written - centred * written.mean(1, keepdim=True)) / deviation * p["norm.weight"]
            logits = written @ (out[token] - out.mean(0))
            found[layer * H:(layer + 1) * H, measure] -= factor * logits.numpy()
    return found


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_direct_effects(number):
    model = small(KINDS[number], 20 + number)
    texts = some_texts(model, 20 + number)
    wanted = np.stack([direct_of(Reference(model, texts, 2), text) for text in texts], 1)
    close(ab.Run(model, texts, 2).direct(), wanted, "direct")


@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("part", [ab.OUTPUT, ab.QUERY, ab.KEY, ab.VALUE])
def test_activation_patching(part, number):
    model = small(KINDS[number], 30 + number)
    texts = some_texts(model, 30 + number)[:1]
    run, reference = ab.Run(model, texts, 2), Reference(model, texts, 2)
    tokens, lengths, _ = texts[0]
    r = np.random.default_rng(number)
    source, rows = r.integers(0, model.desc.vocab_size, tokens.shape), r.random(tokens.shape) < 0.5
    to, other, values = run.patching(source, part, rows.reshape(-1))
    _, seen = reference.run(source, lengths)
    close(to, reference.measure(texts[0]), "to")
    close(other, reference.measure(texts[0], tokens=source), "from")
    wanted = np.full(values.shape, np.nan)
    for head in range(run.heads):
        layer, h = divmod(head, reference.H)
        x = seen[layer, PARTS[part]]
        if h < x.shape[1]:
            wanted[head] = reference.measure(
                texts[0], [(layer, PARTS[part], h, x[:, h], torch.as_tensor(rows))])
    close(values, wanted, "patched")


def path_of(reference, text, seen_to, seen_from, sender, receivers, rows=None):
    """Path patching of Wang et al. 2023: the sender is from the other prompt, and all other heads
    are unchanged; the receivers are patched next."""
    tokens, lengths, terms = text
    layers, H = range(reference.model.desc.num_layers), reference.H
    frozen = [(layer, "z", h, seen_to[layer, "z"][:, h], None) for layer in layers for h in range(H)]
    layer, h = divmod(sender, H)
    logits, sent = reference.run(tokens, lengths,
                                 [*frozen, (layer, "z", h, seen_from[layer, "z"][:, h], rows)])
    if not receivers:
        return reference.numbers(logits, terms)
    return reference.measure(text, [(at, PARTS[part], k, sent[at, PARTS[part]][:, k], None)
                                    for at, k, part in receivers])


@pytest.mark.parametrize("number", range(len(KINDS)))
@pytest.mark.parametrize("receivers", [[], [(2, 0, ab.QUERY), (2, 1, ab.QUERY)],
                                       [(1, 0, ab.KEY), (2, 0, ab.VALUE), (2, 1, ab.QUERY)]])
def test_path_patching(receivers, number):
    model = small(KINDS[number], 40 + number)
    texts = some_texts(model, 40 + number)[:1]
    run, reference = ab.Run(model, texts, 2), Reference(model, texts, 2)
    tokens, lengths, _ = texts[0]
    source = np.random.default_rng(number).integers(0, model.desc.vocab_size, tokens.shape)
    _, seen_to = reference.run(tokens, lengths)
    _, seen_from = reference.run(source, lengths)
    *_, values = run.patching(source, receivers=receivers)
    close(values, [path_of(reference, texts[0], seen_to, seen_from, head, receivers)
                   for head in range(run.heads)], "paths")


def test_intervals():
    """Quantiles equal those of a bootstrap in NumPy, within the error of 2,000 draws."""
    model = small(KINDS[0])
    r = np.random.default_rng(0)
    values = r.normal(1.0, 2.0, 60)
    found = ab.Run(model, some_texts(model, 0), 2).interval(values, seed=3)
    draws = values[r.integers(0, 60, (20000, 60))].mean(1)
    assert found.mean == pytest.approx(values.mean(), abs=1e-12) and found.texts == 60
    assert found.low == pytest.approx(np.quantile(draws, 0.025), abs=0.06)
    assert found.high == pytest.approx(np.quantile(draws, 0.975), abs=0.06)


@pytest.mark.gate(0)
def test_smollm2():
    model, texts = smol(), smol_texts()
    run, reference = ab.Run(model, texts, 2), Reference(model, texts, 2)
    heads = [[3], [9 * 20 + 4], [97, 9 * 29 + 8]]
    for kind in (ab.ZERO, ab.MEAN, ab.RESAMPLE) if LONG else (ab.RESAMPLE,):
        whole, without = run.sets(kind, heads, seed=1)
        rows = reference.replacements(kind, 1)
        close(whole, [reference.measure(text) for text in texts], "SmolLM2 whole")
        close(without, [[reference.measure(text, patches_of(reference, row, chosen))
                         for text, row in zip(texts, rows)] for chosen in heads], "SmolLM2 without")
    close(run.gradients(ab.MEAN)[:, 0], gradient_of(reference, texts[0], reference.replacements(
        ab.MEAN, 0)[0]), "SmolLM2 estimates")
    close(run.direct()[:, 0], direct_of(reference, texts[0]), "SmolLM2 direct")
