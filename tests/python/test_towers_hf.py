"""Encoder-decoders from folders of transformers, compared with it in float64: encoder rows, logits, all three kinds of
maps, steps, greedy tokens, and rejected models. The models are random."""
import importlib
import json
import subprocess

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import multihead
from shared import PROGRAM, rounds_like
from test_hybrid_hf import Double

VOCAB = 97
BART = {"vocab_size": VOCAB, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_ffn_dim": 56, "max_position_embeddings": 80}
MARIAN = {**BART, "pad_token_id": 96, "decoder_start_token_id": 96, "eos_token_id": 0, "scale_embedding": True,
          "activation_function": "swish"}
KINDS = {"bart": ("Bart", BART),
         "bart, scaled": ("Bart", {**BART, "scale_embedding": True, "activation_function": "relu", "encoder_layers": 4,
                                   "decoder_layers": 1}),
         "bart, tanh": ("Bart", {**BART, "activation_function": "gelu_new", "decoder_attention_heads": 2,
                                 "decoder_start_token_id": 5}),
         "marian": ("Marian", MARIAN),
         "marian, own embeddings": ("Marian", {**MARIAN, "share_encoder_decoder_embeddings": False,
                                               "scale_embedding": False, "activation_function": "gelu"}),
         "marian, never": ("Marian", {**MARIAN, "d_model": 60, "decoder_layers": 2, "encoder_layers": 1})}


def write_tokenizer(folder):
    """A token for each character, VOCAB in all."""
    tokenizers = pytest.importorskip("tokenizers")
    marks = [chr(code) for code in range(33, 127)] + ["\u0120", "ab", "cd"]
    made = tokenizers.Tokenizer(tokenizers.models.BPE({c: i for i, c in enumerate(marks)}, [("a", "b"), ("c", "d")]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))


def net_of(kind):
    family, fields = KINDS[kind]
    name = {"Marian": "MarianMTModel"}.get(family, f"{family}ForConditionalGeneration")
    torch.manual_seed(7)
    config = getattr(transformers, f"{family}Config")(**fields)
    config._attn_implementation = "eager"
    net = getattr(transformers, name)(config).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            if "embed_positions" in name and not p.requires_grad:
                continue
            if p.ndim > 1:
                p.normal_(0, .3 if "embed" in name or "shared" in name or "relative" in name else
                          .8 / p.shape[-1] ** .5)
            elif "norm" in name or "bias" in name:
                p += torch.randn_like(p) * .2
        if hasattr(net, "final_logits_bias"):
            net.final_logits_bias.normal_()[:, net.config.eos_token_id] -= 30 * ("tanh" not in kind)
    if "never" in kind:
        net.generation_config.bad_words_ids = [[40], [41, 42], [96]]
    if "scaled" in kind:
        net.generation_config.forced_bos_token_id = 7
    return net


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    net, folder = net_of(request.param), tmp_path_factory.mktemp("towers")
    net.save_pretrained(folder)
    write_tokenizer(folder)
    return net, multihead.Model(folder), request.param


def texts(seed=1):
    torch.manual_seed(seed)
    return torch.randint(0, VOCAB, (1, 60)), torch.randint(0, VOCAB, (1, 70))


def run(net, source, target):
    with torch.no_grad():
        out = net(input_ids=source, decoder_input_ids=target, output_attentions=True, use_cache=False)
    return [out.encoder_last_hidden_state[0], out.logits[0], *([x[0] for x in part] for part in (
        out.encoder_attentions, out.decoder_attentions, out.cross_attentions))]


def in_double(net, source, target):
    module, own = importlib.import_module(type(net).__module__), torch.Tensor.float
    module.torch, torch.Tensor.float = Double(), torch.Tensor.double
    try:
        return run(net.double(), source, target)
    finally:
        module.torch, torch.Tensor.float = torch, own
        net.float()


def test_rows_logits_and_maps_are_those_of_transformers_in_double(made):
    net, model, _ = made
    source, target = texts()
    rounded, exact = run(net, source, target), in_double(net, source, target)
    read, written = source[0].tolist(), target[0].tolist()
    seen = model.attention(written, source=read, outputs=("probabilities", "cross_probabilities"))
    encoder = model.encoder
    states = encoder.hidden_states(read)
    ours = [model._encode(read)[1][0], model.logits(written, source=read), encoder.attention(read).probabilities,
            seen.probabilities, seen.cross_probabilities]
    for mine, theirs, wanted in zip(ours[:2], rounded, exact):
        assert rounds_like(mine, theirs.numpy(), wanted.numpy())
    for layers in zip(ours[2:], rounded[2:], exact[2:]):
        assert len({len(maps) for maps in layers}) == 1
        for mine, theirs, wanted in zip(*layers):
            assert rounds_like(mine, theirs.numpy(), wanted.numpy())
    assert states.shape == (encoder.layers + 1, 60, encoder.hidden_size)


def test_steps_of_any_sizes_have_the_bits_of_the_whole(made):
    _, model, _ = made
    source, target = (ids[0].tolist() for ids in texts(2))
    whole = model.logits(target, source=source)
    for size in (1, 9, 70):
        decoder = model.decoder(source=source, batch=2)
        got = [decoder.step([target[at:at + size]] * 2) for at in range(0, 70, size)]
        assert np.array_equal(np.concatenate(got, 1), np.stack([whole, whole]))


def test_greedy_tokens_are_those_of_transformers(made):
    net, model, kind = made
    source = texts(3)[0]
    theirs = net.generate(source, max_new_tokens=50, do_sample=False, num_beams=1, forced_eos_token_id=None)[0]
    forced = "scaled" in kind
    assert model.start_tokens == theirs[:1 + forced].tolist()
    logits = (decoder := model.decoder(source=source[0].tolist())).prefill(model.start_tokens)
    never = [40, 96] if "never" in kind else []
    ours = model.start_tokens
    while len(ours) < len(theirs):
        logits[never] = -np.inf
        ours.append(int(logits.argmax()))
        logits = decoder.step(ours[-1:])[0]
    assert ours == theirs.tolist()
    # without a cache, and by the library's own loop
    rows = model.logits(ours[:-1], source=source[0].tolist())
    rows[:, never] = -np.inf
    assert rows[forced:].argmax(-1).tolist() == ours[1 + forced:]
    text = ours[1 + forced:-1] if ours[-1] in model.end_tokens else ours[1 + forced:]
    assert model.generate([], source=source[0].tolist(), max_tokens=50 - forced) == model.detokenize(text)


def test_a_source_is_required_and_refused(made):
    _, model, _ = made
    for call in (lambda: model.logits([1, 2]), lambda: model.attention([1]), lambda: model.decoder(),
                 lambda: model.generate("")):
        with pytest.raises(ValueError, match="give source"):
            call()
    with pytest.raises(multihead.Unsupported, match="'q' is not available for an encoder-decoder"):
        model.attention([1], source=[2], outputs="q")
    with pytest.raises(ValueError, match="has no encoder"):
        model.encoder.attention([1], source=[2])
