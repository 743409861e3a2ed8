"""Encoder-decoders from folders of transformers, compared with it in float64: encoder rows, logits, all three kinds of
maps, steps, greedy tokens, and rejected models. The models are random."""
import itertools
import json
import re
import subprocess

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import multihead
from decoder_checks import doubled
from shared import PROGRAM, rounds_like

VOCAB = 97
BART = {"vocab_size": VOCAB, "d_model": 48, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 6, "encoder_ffn_dim": 40, "decoder_ffn_dim": 56, "max_position_embeddings": 80}
MARIAN = {**BART, "pad_token_id": 96, "decoder_start_token_id": 96, "eos_token_id": 0, "scale_embedding": True,
          "activation_function": "swish"}
T5 = {"vocab_size": VOCAB, "d_model": 48, "d_kv": 10, "d_ff": 60, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
      "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
KINDS = {"bart": ("Bart", BART),
         "bart, scaled": ("Bart", {**BART, "scale_embedding": True, "activation_function": "relu", "encoder_layers": 4,
                                   "decoder_layers": 1}),
         "bart, tanh": ("Bart", {**BART, "activation_function": "gelu_new", "decoder_attention_heads": 2,
                                 "decoder_start_token_id": 5}),
         "marian": ("Marian", MARIAN),
         "marian, own embeddings": ("Marian", {**MARIAN, "share_encoder_decoder_embeddings": False,
                                               "scale_embedding": False, "activation_function": "gelu"}),
         "marian, never": ("Marian", {**MARIAN, "d_model": 60, "decoder_layers": 2, "encoder_layers": 1}),
         "t5": ("T5", T5),
         "t5, gated, own output": ("T5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False,
                                          "num_decoder_layers": 1, "relative_attention_num_buckets": 12,
                                          "relative_attention_max_distance": 40}),
         "t5, flan": ("T5", {**T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False, "num_heads": 6,
                             "layer_norm_epsilon": 1e-3}),
         "t5, silu": ("T5", {**T5, "feed_forward_proj": "gated-silu", "num_heads": 3, "d_kv": 16}),
         "mt5": ("MT5", {**T5, "num_decoder_layers": None})}


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
    if family in ("T5", "MT5"):
        with torch.no_grad():
            net.shared.weight[1] = 0 if "silu" in kind else net.shared.weight[1]
    if "own output" in kind:
        net.lm_head.weight = torch.nn.Parameter(torch.randn(VOCAB, 48))
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
    with doubled(net):
        return run(net, source, target)


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


def test_the_alignment_is_that_of_all_paths(made):
    """The best of all paths that never go back, tried one by one over five rows and six columns."""
    source, target = (ids[0].tolist() for ids in texts())
    found = made[1].attention(target[:5], source=source[:6], outputs="cross_probabilities")
    for reach in (0, 1):
        scores, columns = found.alignment(reach)
        for layer, maps in enumerate(found.cross_probabilities):
            for head, p in enumerate(maps.astype(float)):
                w = np.stack([p[:, max(0, j - reach):j + reach + 1].sum(1) for j in range(6)], 1)
                sums = {path: sum(w[range(5), path]) for path in itertools.combinations_with_replacement(range(6), 5)}
                best = max(sums.values())
                assert abs(scores[layer, head] - (best - w.sum(0).max()) / 5) < 1e-6
                assert abs(sums[tuple(columns[layer, head])] - best) < 1e-9
    with pytest.raises(multihead.Error, match="reach is -1"):
        found.alignment(-1)
    with pytest.raises(ValueError, match="cross_probabilities"):
        made[1].attention(target[:5], source=source[:6]).alignment()


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
    # transformers 5.23 sizes the cache of a T5 by the layers of its encoder
    cached = net.config.model_type[-2:] != "t5" or net.config.num_decoder_layers <= net.config.num_layers
    theirs = net.generate(source, max_new_tokens=50, do_sample=False, num_beams=1, forced_eos_token_id=None,
                          use_cache=cached)[0]
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


def test_a_decoder_without_its_output_layer(folders, tmp_path):
    for file in folders["bart"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": False}
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = multihead.Model(tmp_path)
    assert not model.predicts and model.attention([5], source=[6], outputs="cross_probabilities")
    for call in (lambda: model.logits([5], source=[6]), lambda: model.decoder(source=[6]),
                 lambda: model.generate(source=[6])):
        with pytest.raises(multihead.Unsupported, match="saved without its output layer"):
            call()


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


HOSTILE = [
    ("bart", {"d_model": 0}, "'d_model' is 0"), ("bart", {"encoder_layers": None}, "'encoder_layers' is missing"),
    ("bart", {"decoder_layers": 2**40}, "'decoder_layers' is 1099511627776"),
    ("bart", {"decoder_layers": 2}, "has weight 'model.decoder.layers.2."),
    ("bart", {"encoder_layers": 3}, "weight 'model.encoder.layers.2."),
    ("bart", {"decoder_attention_heads": 5}, "'decoder_attention_heads' is 5, which does not divide d_model 48"),
    ("bart", {"encoder_attention_heads": 5}, "d_model 48 is not a multiple of encoder_attention_heads 5"),
    ("bart", {"encoder_ffn_dim": 41}, "fc1.weight' has shape"), ("bart", {"decoder_ffn_dim": "x"}, "'decoder_ffn_dim'"),
    ("bart", {"max_position_embeddings": 81}, "embed_positions.weight' has shape"),
    ("bart", {"activation_function": "tanh"}, "activation_function 'tanh' is not supported"),
    ("bart", {"scale_embedding": 2}, "'scale_embedding' is neither"), ("bart", {"is_decoder": True}, "'is_decoder' is set"),
    ("bart", {"is_encoder_decoder": 1}, "'is_encoder_decoder' is neither"),
    *((kind, {"is_encoder_decoder": False}, "'is_encoder_decoder' is false, but the weights have a decoder, '")
      for kind in ("bart", "marian", "t5")),
    ("bart", {"normalize_before": True}, "'normalize_before' is set"),
    ("bart", {"tie_word_embeddings": "no"}, "'tie_word_embeddings' is neither"),
    ("bart", {"decoder_start_token_id": 97}, "'decoder_start_token_id' is not a token of 0..96"),
    ("bart", {"forced_bos_token_id": [1]}, "'forced_bos_token_id' is not a token"),
    ("bart", {"bad_words_ids": [["a"]]}, "'bad_words_ids' is neither"),
    ("bart", {"vocab_size": 98}, "shared.weight' has shape"), ("bart", {"num_hidden_layers": 3}, "'num_hidden_layers' is 3"),
    ("marian", {"decoder_vocab_size": 98}, "'decoder_vocab_size' is 98, 'vocab_size' is 97"),
    ("marian", {"max_position_embeddings": 2**21}, "'max_position_embeddings' is 2097152"),
    ("t5", {"d_kv": None}, "'d_kv' is missing"), ("t5", {"d_kv": 11}, "SelfAttention.q.weight' has shape"),
    ("t5", {"feed_forward_proj": "gated-tanh"}, "feed_forward_proj 'gated-tanh' is not supported"),
    ("t5", {"feed_forward_proj": "gated-gelu", "dense_act_fn": None, "is_gated_act": None},
     "DenseReluDense.wi_0.weight' is missing"),
    ("t5", {"feed_forward_proj": "silu"}, "'dense_act_fn' is 'relu', 'feed_forward_proj' is 'silu'; remove"),
    ("t5", {"is_gated_act": True}, "'is_gated_act' is 'true', 'feed_forward_proj' is 'relu'; remove"),
    ("t5", {"relative_attention_num_buckets": 33}, "relative_attention_bias.weight' has shape"),
    ("t5", {"relative_attention_max_distance": 7}, "t5_max_distance"),
    ("t5", {"num_decoder_layers": 0}, "'num_decoder_layers' is 0"),
    ("t5", {"num_decoder_layers": 4}, "weight 'decoder.block.3."),
    ("t5", {"scale_decoder_outputs": 1}, "'scale_decoder_outputs' is neither"),
    ("t5", {"layer_norm_epsilon": -1}, "'layer_norm_epsilon'")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder for each family, read-only."""
    saved = {kind: tmp_path_factory.mktemp(kind) for kind in ("bart", "marian", "t5")}
    for kind, folder in saved.items():
        net_of(kind).save_pretrained(folder)
        write_tokenizer(folder)
    return saved


@pytest.mark.parametrize("kind, fields, error", HOSTILE, ids=str)
def test_wrong_fields_are_named(folders, tmp_path, kind, fields, error):
    for file in folders[kind].iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = json.loads((folders[kind] / "config.json").read_text()) | fields
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    (tmp_path / "generation_config.json").unlink()
    with pytest.raises(multihead.Error, match=re.escape(error)) as found:
        multihead.Model(tmp_path)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize("family", ["T5", "MT5"])
def test_an_encoder_alone(tmp_path, family):
    """As saved by T5EncoderModel, for example of a Sentence-T5."""
    torch.manual_seed(3)
    net = getattr(transformers, f"{family}EncoderModel")(getattr(transformers, f"{family}Config")(**T5)).eval()
    net.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model, source = multihead.Model(tmp_path), texts()[0]
    assert model.encoder is None and not model.predicts and model.start_tokens == []
    with torch.no_grad():
        states = net(source, output_hidden_states=True).hidden_states
    assert np.abs(model.hidden_states(source[0].tolist())[:2] - torch.stack(states[:2])[:, 0].numpy()).max() < 1e-4


def test_weights_of_other_files(folders, tmp_path):
    """Files of older versions hold tied weights several times, and positions of Marian; a missing weight is named."""
    weights = load_file(folders["marian"] / "model.safetensors")
    ids, wanted = list(range(9)), multihead.Model(folders["marian"]).logits([5, 6], source=list(range(9)))
    for file in folders["marian"].iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).symlink_to(file)
    shared = weights.pop("model.shared.weight")
    older = {f"model.{part}.embed_tokens.weight": shared.clone() for part in ("encoder", "decoder")}
    net = net_of("marian")
    older |= {f"model.{part}.embed_positions.weight": getattr(net.model, part).embed_positions.weight.clone()
              for part in ("encoder", "decoder")}
    save_file({**weights, **older, "lm_head.weight": shared.clone()}, tmp_path / "model.safetensors")
    model = multihead.Model(tmp_path)
    assert np.abs(model.logits([5, 6], source=ids) - wanted).max() < 1e-5
    save_file({**weights, **older, "lm_head.weight": shared + 1}, tmp_path / "model.safetensors")
    with pytest.raises(multihead.Error, match="'tie_word_embeddings' is true"):
        multihead.Model(tmp_path)
    del older["model.encoder.embed_tokens.weight"]
    save_file({**weights, **older}, tmp_path / "model.safetensors")
    with pytest.raises(multihead.Error, match="'encoder.embed_tokens.weight' is missing"):
        multihead.Model(tmp_path)


@pytest.mark.parametrize("kind", ["bart", "marian", "t5", "mt5"])
def test_towers_with_embeddings_of_their_own(tmp_path, kind):
    """They are preferred to the shared ones that the file also has, as in transformers."""
    net_of(kind).save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    weights, prefix = load_file(tmp_path / "model.safetensors"), "model." * (kind in ("bart", "marian"))
    for name in (f"{prefix}encoder.embed_tokens.weight", f"{prefix}decoder.embed_tokens.weight", "lm_head.weight"):
        weights[name] = torch.randn(VOCAB, 48)
    save_file(weights, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text()) | {"tie_word_embeddings": False}
    if kind == "t5":
        config["scale_decoder_outputs"] = None  # not scaled
    (tmp_path / "config.json").write_text(json.dumps(config))
    net = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    source, target = texts()
    rounded, exact = run(net, source, target)[1], in_double(net, source, target)[1]
    ours = multihead.Model(tmp_path).logits(target[0].tolist(), source=source[0].tolist())
    assert rounds_like(ours, rounded.numpy(), exact.numpy())


def program(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, check=False)


def test_the_program(folders, tmp_path):
    """view shows all three kinds of maps and says which, generate reads the encoder's text."""
    folder, source, target = folders["t5"], "the cat sat", "a dog"
    model = multihead.Model(folder)
    encoder = multihead.Model(folder / "encoder")
    assert np.array_equal(encoder.hidden_states(source), model.encoder.hidden_states(source))
    seen = model.attention(target, source=source, outputs=("probabilities", "cross_probabilities"))
    wanted = {(): seen.cross_probabilities, ("--self",): seen.probabilities}
    for more, maps in wanted.items():
        done = program("view", folder, source, target, *more, "--npy", tmp_path / "maps.npy", "-o", tmp_path / "a.html")
        assert done.returncode == 0, done.stderr
        assert np.array_equal(np.load(tmp_path / "maps.npy"), np.stack(maps))
        name, other = ("decoder self-attention", "target") if more else ("cross-attention", "source")
        page = (tmp_path / "a.html").read_text()
        assert f">{name}<" in page and f"{other} (attended to)" in page and "target (attending)" in page
        done = program("view", folder, source, target, *more, "--json", "-")
        assert json.loads(done.stdout)["source"]["attention"] == name and ("key_tokens" in done.stdout) == (not more)
        done = program("view", folder, source, target, *more, "-q")
        assert f"{name}; source: {source} | target: {target}" in done.stdout
    assert seen.tokens.ids[0] == 0 and seen.source.ids[0] != 0 and len(seen.tokens) == 1 + len(target)
    done = program("view", folder / "encoder", source, "--npy", tmp_path / "maps.npy", "-q")
    assert np.array_equal(np.load(tmp_path / "maps.npy"), encoder.attention(source).stack())
    for more, sampling in (((), {}), (("--temperature", "1.5", "--seed", "4"), {"temperature": 1.5, "seed": 4})):
        done = program("generate", folder, source, "--max-tokens", "20", *more)
        assert done.stdout == model.generate(source=source, max_tokens=20, **sampling) + "\n", done.stderr
    ids = " ".join(map(str, model.encoder.tokenize(source).ids))
    done = program("generate", folder, "--ids", ids, "--max-tokens", "20")
    made = [int(i) for i in done.stdout.split()]
    assert made and model.detokenize(made) == model.generate(source=source, max_tokens=20)
    assert program("heads", folder / "encoder", source).returncode == 0
    (tmp_path / "text.txt").write_text("the cat sat. a dog ran to the mat and the cat.\n" * 20)
    done = program("prune", folder / "encoder", "--text", tmp_path / "text.txt", "--keep", "6", "-o", tmp_path / "small")
    assert done.returncode == 0, done.stderr
    small = multihead.Model(tmp_path / "small")
    assert sum(small.heads_of_layers) == 6 and small.tokenize(source).ids.tolist() == encoder.tokenize(source).ids.tolist()


def test_the_texts_of_both_towers(tmp_path):
    """The tokenizer of BART puts its marks around texts: a target begins with the start token and has no end."""
    net_of("bart").save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    made = json.loads(path.read_text())
    mark = lambda token: {"SpecialToken": {"id": token, "type_id": 0}}
    made["post_processor"] = {
        "type": "TemplateProcessing", "single": [mark("!"), {"Sequence": {"id": "A", "type_id": 0}}, mark("#")],
        "pair": [mark("!"), {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {token: {"id": token, "ids": [i], "tokens": [token]} for token, i in (("!", 0), ("#", 2))}}
    path.write_text(json.dumps(made))
    model = multihead.Model(tmp_path)
    assert model.encoder.tokenize("$%").ids.tolist() == [0, 3, 4, 2]
    assert model.tokenize("$%").ids.tolist() == [2, 0, 3, 4] and model.tokenize("$%").special.tolist() == [
        True, True, False, False]
    assert model._prompt("") == [2] and model._prompt("$") == [2, 0, 3]
    for start in (0, 3):  # a tokenizer that adds the start token, as Whisper's does, and another one
        config = json.loads((tmp_path / "config.json").read_text()) | {"decoder_start_token_id": start}
        (tmp_path / "config.json").write_text(json.dumps(config))
        (tmp_path / "generation_config.json").unlink(missing_ok=True)
        model = multihead.Model(tmp_path)
        assert model.tokenize("$%").ids.tolist() == [3] * (start == 3) + [0, 3, 4]
        assert model._prompt("") == [start]


SOURCES = ["the cat sat; on the mat.", "a dog? no!", "it ran", "abcdefghij klmnop qrstuv"]
TARGETS = ["die katze", "ein hund nein!", "es lief. und lief; weiter", "ab"]


def cross_scores(net, pairs):
    """Scores of cross-attention from the maps of transformers in float64; {name: [L,H]}."""
    sums = {}

    def add(name, of_row, chance):
        had = sums.setdefault(name, [0, 0, 0])
        sums[name] = [had[0] + of_row, had[1] + chance, had[2] + 1]

    for source, target, ends in pairs:
        maps = np.stack([x.numpy() for x in in_double(net, torch.tensor([source]), torch.tensor([target]))[4]])
        T, S = maps.shape[2:]
        ends = np.asarray(ends)
        for t in range(T):
            p = maps[:, :, t]
            entropy = -(p * np.log(np.maximum(p, 1e-300))).sum(-1)
            near = np.abs(np.arange(S) - t * (S - 1) / max(T - 1, 1)) <= 2 + 1e-9
            for name, keys in (("first", [0]), ("last", [S - 1]), ("separator", np.flatnonzero(ends)),
                               ("monotone", np.flatnonzero(near) if T > 1 else [])):
                if 0 < len(keys) < S:
                    add(name, p[..., keys].sum(-1), len(keys) / S)
            add("sink", p[..., 0], 1 / S)
            add("entropy", entropy, np.log(S))
            add("evenness", entropy / np.log(S), 1)
            add("confidence", p[..., ~ends].max(-1), 1 / S)
            for o in range(-8, 9):
                if 0 <= t + o < S:
                    add(("offset", o), p[..., t + o], 1 / S)
    found = {name: (value / rows, chance / rows, rows) for name, (value, chance, rows) in sums.items()}
    offsets = [name for name in found if name[0] == "offset"]
    most = max(found[name][2] for name in offsets)
    usable = [found[name] for name in offsets if 2 * found[name][2] >= most]
    corrected = np.stack([(value - chance) / (1 - chance) for value, chance, _ in usable])
    found["diagonal"] = np.take_along_axis(np.stack([value for value, _, _ in usable]), corrected.argmax(0)[None], 0)[0], \
        np.array([chance for _, chance, _ in usable])[corrected.argmax(0)], None
    return {name: value for name, value in found.items() if name[0] != "offset"}


UNDEFINED = ["previous", "next", "self", "near", "distance", "segment", "block", "cut", "duplicate", "induction",
             "induction_mean", "induction_latest", "cosine", "negative", "random_induction"]


@pytest.mark.gate(2)
@pytest.mark.parametrize("kind", ["bart", "marian", "t5", "mt5"])
def test_scores_of_cross_attention(tmp_path, kind):
    net = net_of(kind)
    net.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    model = multihead.Model(tmp_path)
    read = [model.encoder.tokenize(text) for text in SOURCES]
    marks = [np.isin(tokens.texts, list(".!?;")) for tokens in read]
    wanted = cross_scores(net, [(s.ids.tolist(), model.tokenize(t).ids.tolist(), ends)
                                for s, t, ends in zip(read, TARGETS, marks)])
    found = model.heads(TARGETS, source=SOURCES)
    assert found.texts == 4 and found.tokens == sum(map(len, read))
    for name, (value, chance, rows) in wanted.items():
        assert np.abs(found[name] - value).max() < 2e-6, name
        assert np.abs(found.chance(name) - chance).max() < 1e-12, name
        assert rows is None or (found.rows(name) == rows).all(), name
    for name in UNDEFINED:
        assert np.isnan(found[name]).all(), name
    # the decoder's self-attention, and targets that the model writes
    own = model.heads(TARGETS, source=SOURCES, attention="self")
    maps = [model.attention(t, source=s).probabilities for s, t in zip(SOURCES, TARGETS)]
    assert np.abs(own["previous"] - np.concatenate([
        np.diagonal(np.stack(p), -1, 2, 3)[:, :, :].astype(float) for p in maps], -1).mean(-1)).max() < 1e-6
    assert np.isnan(own["monotone"]).all() and own.tokens == sum(len(model.tokenize(t)) for t in TARGETS)
    ids = model.start_tokens
    logits = (decoder := model.decoder(source=SOURCES[0])).prefill(ids)
    while len(ids) < 30 and int(logits.argmax()) not in model.end_tokens:
        ids.append(int(logits.argmax()))
        logits = decoder.step(ids[-1:])[0]
    written = model.heads(None, source=SOURCES[0], max_tokens=30)
    maps = np.stack(model.attention(ids, source=SOURCES[0], outputs="cross_probabilities").cross_probabilities)
    assert (written.rows("sink") == len(ids)).all()
    assert np.abs(written["sink"] - maps[..., 0].astype(float).mean(-1)).max() < 1e-6
    # without a head of the first layer, later layers change
    gated = model.heads(TARGETS, source=SOURCES, without="L0H1")
    assert np.array_equal(gated["entropy"][0], found["entropy"][0]) and (gated["entropy"][1:] != found["entropy"][1:]).any()


def test_heads_of_pairs(folders, tmp_path):
    """The program's scores are those of the package; it writes missing targets, and says so in all its outputs."""
    folder, pairs = folders["t5"], tmp_path / "pairs.tsv"
    model = multihead.Model(folder)
    pairs.write_text("".join(f"{s}\t{t}\n" for s, t in zip(SOURCES, TARGETS)))
    for more, attention, name in (((), "cross", "cross-attention"), (("--self",), "self", "decoder self-attention")):
        done = program("heads", folder, "--text", pairs, "--json", "-q", *more)
        made, found = json.loads(done.stdout), model.heads(TARGETS, source=SOURCES, attention=attention)
        assert made["source"]["attention"] == name and made["generated_targets"] == 0 and made["texts"] == 4
        assert made["tokens"] == found.tokens and len(made["heads"]) == 12
        for head in made["heads"]:
            for score, value in head["scores"].items():
                theirs = found[score][head["layer"], head["head"]]
                assert value is None and np.isnan(theirs) or abs(value["value"] - theirs) < 1e-8, score
            assert [role["role"] for role in head["roles"]] == [r.name for r in found.roles[head["layer"]][head["head"]]]
        done = program("heads", folder, "--text", pairs, "-o", tmp_path / "heads.html", *more)
        page = (tmp_path / "heads.html").read_text()
        assert done.returncode == 0 and f">{name}<" in page and ("source tokens" in page) == (not more), done.stderr
        assert program("heads", folder, "--text", pairs, "-q", *more).stdout.startswith(f"{folder.name}: {name}, 4 texts, ")
    pairs.write_text("the cat sat\nit ran\t \nxy\tcd\n")
    done = program("heads", folder, "--text", pairs, "--max-tokens", "30", "--json", "-o", tmp_path / "heads.html")
    made, found = json.loads(done.stdout), model.heads(None, source=["the cat sat", "it ran"], max_tokens=30)
    assert "2 of 3 texts without a target" in done.stderr and made["generated_targets"] == 2
    assert "targets written by the model" in (tmp_path / "heads.html").read_text()
    rows = made["heads"][0]["scores"]["entropy"]["rows"]
    assert rows == found.rows("entropy")[0, 0] + len(model.tokenize("cd"))


@pytest.mark.gate(4)
@pytest.mark.parametrize("kind, lines, more, error", [
    ("bart", "a\tb\nc\td\te\n", (), "line 2: more than one tab"), ("bart", "\tb\n", (), "the text is empty"),
    ("t5", "a\tb\n", ("--whole",), "--whole is not available for the heads of an encoder-decoder"),
    ("t5", "a\tb\n", ("--cut", "20"), "--cut is not"), ("t5", "a\tb\n", ("--state", "x.state"), "--state is not"),
    ("t5", "a\tb\n", ("--random", "3"), "--random is not"), ("t5", "a\tb\n", ("--clusters", "0.2"), "--clusters is not"),
    ("t5", "a\tb\n", ("--pictures", "new"), "--pictures is not"), ("t5", "a\tb\n", ("--headvis", "new"), "--headvis is not"),
    ("t5", None, ("--image", __file__), "the model reads texts, not images; omit --image"),
    ("marian", None, (), "with a source, a tab and a target"), ("bart", "a\t" + "b" * 90 + "\n", (), "too many tokens"),
    ("bart", "a" * 90 + "\n", (), "too many tokens")], ids=str)
def test_wrong_pairs_are_named(folders, tmp_path, kind, lines, more, error):
    (tmp_path / "pairs.tsv").write_text(lines or "")
    given = ("--text", tmp_path / "pairs.tsv") if lines else ()
    done = subprocess.run([PROGRAM, "heads", folders[kind], *map(str, given), *more], capture_output=True, text=True,
                          check=False, cwd=tmp_path)
    assert done.returncode in (2, 3, 4, 5) and error in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_wrong_pairs_of_the_package(folders):
    model = multihead.Model(folders["marian"])
    for call, error in ((lambda: model.heads("a"), "give source"), (lambda: model.heads("a", source=["a", "b"]), "2 texts"),
                        (lambda: model.heads("a", source="b", attention="x"), "neither"),
                        (lambda: model.heads([], source=[]), "at least one|expected 0"),
                        (lambda: model.heads("a", source="b", random=2), "random: it has no effect .* an encoder-decoder"),
                        (lambda: model.encoder.heads("a", attention="self"), "attention: it has no effect"),
                        (lambda: model.encoder.heads("a", source="b"), "has no encoder")):
        with pytest.raises(ValueError, match=error):
            call()


@pytest.mark.parametrize("arguments, error", [
    (("generate", "", "--chat", "x"), "--chat: "), (("generate", ""), "give TEXT, which its encoder reads"),
    (("view", "", "x"), "takes two texts, a source and a target"), (("perplexity", "", "--text", __file__), "does not predict"),
    (("view", "encoder", "x", "--self"), "--self: "), (("generate", "encoder", "x"), "does not predict the next token"),
    (("prune", "", "--text", __file__, "--keep", "2"), "cannot be pruned; give"),
    (("ablate", "", "x"), "is an encoder-decoder, whose heads cannot be ablated; 'multihead prune"),
    (("circuits", ""), "circuits reads self-attention: give"),
    (("view", "", "x", "--from", "x", "--to", "x"), "give the encoder alone"),
    (("view", "", "x", "--desk", "0"), "give the encoder alone")], ids=str)
def test_the_program_refuses_by_name(folders, arguments, error):
    done = program(arguments[0], folders["bart"] / arguments[1], *arguments[2:])
    assert done.returncode in (2, 3, 5) and error in done.stderr and done.stderr.count("\n") == 1, done.stderr
