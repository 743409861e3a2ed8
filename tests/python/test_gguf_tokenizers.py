"""Unigram and WordPiece tokenizers of GGUF files, in the form of llama.cpp's converters, compared with the packages
sentencepiece and tokenizers over random texts, and rejected metadata. The models are tiny and random."""
import io
import random
import subprocess

import numpy as np
import pytest

import multihead
import multihead_ctypes as mha
from shared import PROGRAM, SEED, amount
from test_gguf_encoders import ARCH, ENCODERS, encoder_keys, gguf, write_file
from test_encoders_hf import their_model
from test_tokenizer_unigram_hf import CORPUS

NORMAL, UNKNOWN, CONTROL, USER, BYTE = 1, 2, 3, 4, 6
PARTS = ["a", "B", " ", "  ", "\n", "\t", "é", "ﬁ", "Ａ", "½", "京", "😀", "the ", "ing", "1", "23", "́", " ", "'s", ".", "▁",
         "quick", "Straße", "​", "<s>", "[SEP]", "##ing"]


def texts(name, count):
    rng = random.Random(f"{SEED} {name}")
    for _ in range(count):
        yield "".join(rng.choice(PARTS) for _ in range(rng.randint(0, 12))) + rng.choice(["", rng.choice(CORPUS)[:40]])


def model_of(tmp_path, keys, count):
    """A BERT of one layer with this tokenizer."""
    net = their_model("bert", dict(vocab_size=count, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                   num_attention_heads=1, max_position_embeddings=512), 3)
    state = {name: data.numpy() for name, data in net.state_dict().items()
             if "pooler" not in name and "position_ids" not in name and "token_type_ids" not in name}
    own = {f"/tokenizer.ggml.{key}": value for key, value in keys.items()}
    return multihead.Model(write_file(tmp_path / "model.gguf", ARCH.BERT, {**encoder_keys(net.config, ARCH.BERT), **own}, state))


def sentencepiece_model(**options):
    sentencepiece = pytest.importorskip("sentencepiece")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, vocab_size=600, hard_vocab_limit=False, minloglevel=9,
        **options)
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    proto.ParseFromString(written.getvalue())
    return sentencepiece.SentencePieceProcessor(model_proto=written.getvalue()), proto


def unigram_keys(proto, **changes):
    spec = proto.normalizer_spec
    return {"model": "t5", "pre": "default", "tokens": [piece.piece for piece in proto.pieces],
            "scores": [piece.score for piece in proto.pieces], "token_type": [int(piece.type) for piece in proto.pieces],
            "add_space_prefix": spec.add_dummy_prefix, "remove_extra_whitespaces": spec.remove_extra_whitespaces,
            "precompiled_charsmap": list(spec.precompiled_charsmap) or None, "unknown_token_id": 0, "bos_token_id": 1,
            "eos_token_id": 2, "padding_token_id": 2, **changes}


@pytest.mark.parametrize("options", [
    dict(normalization_rule_name="nmt_nfkc"), dict(normalization_rule_name="nmt_nfkc_cf", byte_fallback=True),
    dict(normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=False)], ids=str)
def test_unigram_models_agree_with_sentencepiece(tmp_path, options):
    theirs, proto = sentencepiece_model(**options)
    ours = model_of(tmp_path, unigram_keys(proto), len(proto.pieces))
    for text in texts(f"unigram {options}", amount(150, 600, 4000)):
        text = text.replace("<s>", "")
        assert ours.tokenize(text).ids.tolist() == [*theirs.encode(text), 2], repr(text)


def test_xlm_roberta_has_two_special_tokens(tmp_path):
    theirs, proto = sentencepiece_model(normalization_rule_name="nmt_nfkc")
    keys = unigram_keys(proto, add_bos_token=True, add_eos_token=True)
    ours = model_of(tmp_path, keys, len(proto.pieces))
    assert ours.tokenize("the quick").ids.tolist() == [1, *theirs.encode("the quick"), 2]
    assert ours.tokenize("a <s>b").ids.tolist() == [1, *theirs.encode("a"), *theirs.encode(" "), 1, *theirs.encode("b"), 2]


@pytest.mark.parametrize("change, error", [
    (dict(scores=None), "a unigram vocabulary without scores"), (dict(unknown_token_id=9999), "unknown_token_id"),
    (dict(precompiled_charsmap=[1, 2, 3]), "charsmap"), (dict(precompiled_charsmap=[300]), "precompiled_charsmap"),
    (dict(eos_token_id=None), "begin or end with a token that is not named"), (dict(model="rwkv"), "tokenizer 'rwkv'")], ids=str)
def test_hostile_unigram_models_are_refused(tmp_path, change, error):
    _, proto = sentencepiece_model(normalization_rule_name="nmt_nfkc")
    with pytest.raises(mha.MultiheadError, match=error):
        model_of(tmp_path, unigram_keys(proto, **change), len(proto.pieces))


def wordpiece(cased):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.BertWordPieceTokenizer(lowercase=not cased)
    made.train_from_iterator(CORPUS, vocab_size=500, show_progress=False)
    made = tokenizers.BertWordPieceTokenizer(made.get_vocab(), lowercase=not cased)
    tokens = [token for token, _ in sorted(made.get_vocab().items(), key=lambda pair: pair[1])]
    special = [token.startswith("[") and token.endswith("]") and len(token) > 2 for token in tokens]
    ids = {name: tokens.index(f"[{name}]") for name in ("UNK", "CLS", "SEP", "PAD", "MASK")}
    keys = {"model": "bert", "pre": "default", "token_type": [CONTROL if mark else NORMAL for mark in special],
            "tokens": [token if mark else token[2:] if token.startswith("##") else "▁" + token
                       for token, mark in zip(tokens, special)],
            "unknown_token_id": ids["UNK"], "cls_token_id": ids["CLS"], "seperator_token_id": ids["SEP"],
            "padding_token_id": ids["PAD"], "mask_token_id": ids["MASK"], "add_bos_token": True}
    return made, keys


@pytest.mark.parametrize("cased", [False, True])
def test_wordpiece_agrees_with_tokenizers(tmp_path, cased):
    theirs, keys = wordpiece(cased)
    ours = model_of(tmp_path, keys, len(keys["tokens"]))
    for text in texts(f"wordpiece {cased}", amount(150, 600, 4000)):
        assert ours.tokenize(text).ids.tolist() == theirs.encode(text).ids, repr(text)


@pytest.mark.parametrize("change, error", [
    (dict(cls_token_id=None), "'tokenizer.ggml.cls_token_id' is missing"), (dict(unknown_token_id=None), "unknown_token_id' is missing"),
    (dict(mask_token_id=9999), "mask_token_id"), (dict(tokens=["▁a", "▁a"] * 9), "elements|occurs twice")], ids=str)
def test_hostile_wordpiece_models_are_refused(tmp_path, change, error):
    _, keys = wordpiece(False)
    with pytest.raises(mha.MultiheadError, match=error):
        model_of(tmp_path, {**keys, **change}, len(keys["tokens"]))


def test_texts_of_unknown_tokens_are_reported(tmp_path):
    _, keys = wordpiece(False)
    model_of(tmp_path, keys, len(keys["tokens"]))
    for text, warning in ("\u16a0 \u16a2 a", "2 of 3 tokens of the text are unknown to the tokenizer, which lowercases"), ("a b", ""):
        done = subprocess.run([PROGRAM, "view", tmp_path / "model.gguf", text], capture_output=True, text=True)
        assert done.returncode == 0 and warning in done.stderr and ("unknown" in done.stderr) == bool(warning)
    done = subprocess.run([PROGRAM, "heads", tmp_path / "model.gguf", "\u16a0", "\u16a1"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr.count("are unknown") == 1, done.stderr
