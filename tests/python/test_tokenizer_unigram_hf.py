"""Unigram tokenizers compared with Hugging Face's `tokenizers`: equal ids, offsets, segments and
flags for every code point, for random texts and for long runs. The vocabularies are trained here by
`tokenizers`. The charsmap of nmt_nfkc is the one that the trainer of the package `sentencepiece`
writes into its models. MHA_UNIGRAM_DIR may name a folder with the tokenizer.json of a real model,
which is then compared too.
"""
import base64
import io
import json
import os
import random
import re
import struct

import pytest
import transformers
from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers,
                        trainers)

from shared import DEEP, LONG, SEED, amount
from test_tokenizer_bpe_hf import (ASSIGNED, CODE_POINTS, CORPUS, ERR_UTF8, SPACES, check, compare_random, differs,
                                   template)
from test_tokenizer_bpe_hf import test_long_runs, test_random_texts, test_texts_that_are_not_utf8  # with `both` from here
from tokenizer_ctypes import ERR_SIZE, ERR_UNSUPPORTED, Failure, Ours

ERR_FORMAT, ERR_MODEL = 21, 24
UNIGRAM_KIND = 3
NAMES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


# --------------------------------------------------------------------------------------------------
# Charsmaps
# --------------------------------------------------------------------------------------------------
def charsmap(keys):
    """A charsmap from a dictionary: a double array in which each node has 256 units of its own."""
    texts, nodes = b"", [{}]
    for key, text in keys.items():
        node = nodes[0]
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node["value"] = len(texts)
        texts += text.encode() + b"\0"
    blocks = {id(nodes[0]): 1}
    for node in nodes:
        for name, child in node.items():
            if name != "value":
                nodes.append(child)
                blocks[id(child)] = len(nodes)
    units = [0] * (256 * (len(nodes) + 1))

    def link(at, node):
        offset = at ^ (256 * blocks[id(node)])
        assert offset < 1 << 21
        return offset << 10
    units[0] = link(0, nodes[0])
    for node in nodes:
        base = 256 * blocks[id(node)]
        for byte, child in node.items():
            if byte == "value":
                units[base] = node["value"] | 1 << 31
            else:
                units[base ^ byte] = link(base ^ byte, child) | byte | ("value" in child) << 8

    data = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(data)) + data + texts


def own_charsmap():
    """Keys that begin, are and follow grapheme clusters; replacements that add and remove."""
    keys = {"a": "b", "b": "", "e\u0301": "é", "\r": " ", "\n": " ", "\u0600": "<", "\u1161": "V",
            "\u00a9": "(c)", "\u0958": "qa", "\u0301": "'", "\u200d": "", "ﬁ": "fi", "１": "1", "中": "",
            "Ａ": "A", "\u2026": "...", "1": "11", "2": "2\u0301", "é": "e", "\ufdfa": "x" * 18}
    return charsmap(keys)


@pytest.fixture(scope="session")
def nmt_nfkc():
    sentencepiece = pytest.importorskip("sentencepiece")
    model_pb2 = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, vocab_size=700, hard_vocab_limit=False,
        normalization_rule_name="nmt_nfkc", minloglevel=9)
    proto = model_pb2.ModelProto()
    proto.ParseFromString(written.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


# --------------------------------------------------------------------------------------------------
# Tokenizers
# --------------------------------------------------------------------------------------------------
def metaspace(scheme="always", split=True):
    return pre_tokenizers.Metaspace(SPACES, prepend_scheme=scheme, split=split)


def words(scheme="always"):
    return pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace(scheme)])


def train(normalizer, splitter, names, unk, byte_fallback=False, size=500):
    tok = Tokenizer(models.Unigram())
    if normalizer:
        tok.normalizer = normalizer
    if splitter:
        tok.pre_tokenizer = splitter
    tok.train_from_iterator(CORPUS[:6], trainers.UnigramTrainer(
        vocab_size=size, special_tokens=names, unk_token=unk, show_progress=False))
    vocab = [tuple(pair) for pair in json.loads(tok.to_str())["model"]["vocab"]]
    if byte_fallback:
        vocab += [(f"<0x{b:02X}>", 0.0) for b in range(256)]
    tok = Tokenizer(models.Unigram(vocab, unk_id=names.index(unk), byte_fallback=byte_fallback))
    if normalizer:
        tok.normalizer = normalizer
    if splitter:
        tok.pre_tokenizer = splitter
    tok.add_special_tokens(names)
    return tok


def xlm_roberta(charsmap):
    tok = train(normalizers.Precompiled(charsmap), words(), NAMES[:4], "<unk>")
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    tok.post_processor = template("<s> $A </s>", "<s> $A </s> </s> $B </s>", [("<s>", 0), ("</s>", 2)])
    return tok


def t5(charsmap):
    names = ["<pad>", "</s>", "<unk>"]
    normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap),
                                       normalizers.Strip(left=False, right=True),
                                       normalizers.Replace(Regex(" {2,}"), SPACES)])
    tok = train(normalizer, metaspace(), names, "<unk>")
    tok.add_special_tokens([f"<extra_id_{i}>" for i in range(3)])
    tok.post_processor = template("$A </s>", "$A </s> $B </s>", [("</s>", 1)])
    return tok


def albert(charsmap):
    names = ["<pad>", "<unk>", "[CLS]", "[SEP]"]
    normalizer = normalizers.Sequence([
        normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(),
        normalizers.StripAccents(), normalizers.Lowercase(), normalizers.Precompiled(charsmap)])
    tok = train(normalizer, words(), names, "<unk>")
    tok.post_processor = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1",
                                  [("[CLS]", 2), ("[SEP]", 3)])
    return tok


def marian(charsmap):
    """Without words: a text is one lattice."""
    normalizer = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(" ", SPACES)])
    tok = train(normalizer, None, ["</s>", "<unk>"], "<unk>")
    tok.post_processor = template("$A </s>", "$A $B </s>", [("</s>", 0)])
    return tok


DEBERTA = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]


def deberta(charsmap):
    """DeBERTa 2 and 3, as transformers converts their SentencePiece models."""
    tok = train(normalizers.Sequence([normalizers.Strip(), normalizers.Precompiled(charsmap),
                                      normalizers.Replace(Regex(" {2,}"), " ")]),
                pre_tokenizers.Sequence([metaspace()]), DEBERTA, "[UNK]")
    tok.add_special_tokens(["[MASK]"])
    tok.post_processor = template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 1), ("[SEP]", 2)])
    return tok


def with_bytes(charsmap):
    normalizer = normalizers.Sequence([normalizers.Strip(), normalizers.NFKC(), normalizers.Lowercase()])
    tok = train(normalizer, metaspace("first", split=False), NAMES, "<unk>", byte_fallback=True)
    tok.add_tokens([AddedToken("word", single_word=True), AddedToken("Right", rstrip=True)])
    return tok


def without_normalizer(charsmap):
    return train(None, metaspace("never"), ["<unk>"], "<unk>")


def accents(charsmap):
    normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])
    return train(normalizer, words("first"), ["<unk>"], "<unk>")


MAKERS = [xlm_roberta, t5, albert, marian, with_bytes, without_normalizer, accents]


@pytest.fixture(scope="module", params=[(make, own) for make in MAKERS for own in (True, False)
                                        if own or make in MAKERS[:4]],
                ids=lambda p: p[0].__name__ + ("-own" if p[1] else "-nmt_nfkc"))
def both(request, tmp_path_factory):
    make, own = request.param
    folder = tmp_path_factory.mktemp(make.__name__)
    reference = make(own_charsmap() if own else request.getfixturevalue("nmt_nfkc"))
    reference.save(str(folder / "tokenizer.json"))
    ours = Ours(folder)
    assert ours.describe().kind == UNIGRAM_KIND
    return ours, reference


# --------------------------------------------------------------------------------------------------
# Comparing
# --------------------------------------------------------------------------------------------------
def test_every_code_point(both, request):
    """Code points alone, between letters, before and after combining marks, and twice. The long
    tier tests all; otherwise, those of Unicode 14 are distributed over the tokenizers."""
    turn = list(both[1].get_vocab()).index("<unk>") % 6
    form = "a{0}b 1{0}2 {0} e{0}\u0301 {0}a{0}\u094d{0}\n{0}{0}"
    points = CODE_POINTS if LONG else ASSIGNED[turn::6] if DEEP else ASSIGNED[(turn + SEED) % 48::48]
    step = 8192
    for at in range(0, len(points), step):
        chunk = points[at:at + step]
        if differs(both, "".join(form.format(c) for c in chunk)):
            single = [f"U+{ord(c):04X}" for c in chunk if differs(both, form.format(c))]
            pytest.fail(f"{len(single)} code points differ: {single[:20]}")


def test_grapheme_clusters(tmp_path):
    """A cluster of up to five bytes loses what follows its key, so every boundary shows."""
    reference = Tokenizer(models.Unigram([("<unk>", 0.0)], 0, False))
    reference.normalizer = normalizers.Precompiled(charsmap({"a": "X", "\u0301": "'", "中": "Y"}))
    reference.save(str(tmp_path / "tokenizer.json"))
    ours, points = Ours(tmp_path), [c for c in (CODE_POINTS if DEEP else CODE_POINTS[SEED % 16::16]) if c != "\x01"]
    for form in ("{0}a\u0301", "a{0}", "{0}\u0301", "a{0}\u0301", "中{0}", "{0}中", "\u0600{0}\u0301a"):
        text = "\x01".join(form.format(c) for c in points)
        got, want = ours.words(text)[0].split("\x01"), reference.normalizer.normalize_str(text).split("\x01")
        assert not [(form, f"U+{ord(c):04X}") for c, x, y in zip(points, got, want, strict=True) if x != y][:20]


def test_names_and_bytes_of_tokens(both):
    ours, reference = both
    added = {t.content for t in reference.get_added_tokens_decoder().values()}
    for text, number in reference.get_vocab().items():
        assert ours.token(number) == text
        if text in added:
            assert ours.token_bytes(number)[0] == text.encode()
        elif not re.fullmatch("<0x..>", text):
            assert ours.token_bytes(number)[0] == (text.encode() if ours.describe().kind != UNIGRAM_KIND
                                                   else text.replace(SPACES, " ").encode())


# --------------------------------------------------------------------------------------------------
# Models
# --------------------------------------------------------------------------------------------------
def load(folder, vocab, unk=0, byte_fallback=False, change=lambda data: None):
    tok = Tokenizer(models.Unigram(vocab, unk_id=unk, byte_fallback=byte_fallback))
    data = json.loads(tok.to_str())
    change(data)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return Ours(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_random_models(tmp_path):
    """Few letters, coarse scores: many ties, fused unknown characters that spell a piece."""
    rng = random.Random(f"{SEED} models")
    for turn in range(amount(60, 300, 2000)):
        pieces = {"".join(rng.choice("abcé") for _ in range(rng.randint(1, 4))) for _ in range(rng.randint(1, 14))}
        vocab = [("<unk>", float(rng.choice([0, -3, -30])))]
        vocab += [(piece, float(rng.choice([-1, -2, -4, -1.5, 2.5]))) for piece in sorted(pieces)]
        fallback = rng.random() < 0.5
        if fallback:
            vocab += [(f"<0x{b:02X}>", -1.0) for b in range(256) if b != 0x61 or rng.random() < 0.5]
        pair = load(tmp_path / f"m{turn}", vocab, 0, fallback)
        for _ in range(20):
            check(pair, "".join(rng.choice("abcéxy\u4e00") for _ in range(rng.randrange(14))))


@pytest.mark.parametrize("make, kind, more", [
    (xlm_roberta, "XLMRobertaTokenizer", ["<mask>"]), (albert, "AlbertTokenizer", ["[MASK]"]),
    (deberta, "DebertaV2Tokenizer", ["[MASK]"]),
    (t5, "T5Tokenizer", [f"<extra_id_{i}>" for i in range(99, -1, -1)])], ids=lambda p: getattr(p, "__name__", p))
def test_folders_of_transformers(tmp_path, nmt_nfkc, make, kind, more):
    vocab = json.loads(make(nmt_nfkc).to_str())["model"]["vocab"]
    vocab = [tuple(pair) for pair in vocab] + [(name, 0.0) for name in more]
    theirs = getattr(transformers, kind)(vocab=vocab, _spm_precompiled_charsmap=nmt_nfkc)
    theirs.save_pretrained(tmp_path)
    ours = Ours(tmp_path)
    compare_random((ours, Tokenizer.from_file(str(tmp_path / "tokenizer.json"))), 6, 50)
    assert ours.encode(f"a {more[0]} b")["ids"].tolist() == theirs(f"a {more[0]} b")["input_ids"]
    assert ours.describe().pad_id == theirs.pad_token_id and ours.describe().unk_id == theirs.unk_token_id


def test_deberta_as_converted(tmp_path, nmt_nfkc):
    reference = deberta(nmt_nfkc)
    reference.save(str(tmp_path / "tokenizer.json"))
    compare_random((Ours(tmp_path), reference), 8, 60)


def test_old_form_without_type(tmp_path):
    pair = load(tmp_path / "old", [("<unk>", 0.0), ("ab", -1.0), ("a", -2.0)],
                change=lambda data: data["model"].pop("type"))
    check((pair[0], Tokenizer(models.Unigram([("<unk>", 0.0), ("ab", -1.0), ("a", -2.0)], 0, False))), "abaxab")


REFUSED = {
    "a Unigram without unk_id": (ERR_UNSUPPORTED, lambda d: d["model"].update(unk_id=None)),
    "unk_id is 3, the vocabulary has 3 pieces": (ERR_MODEL, lambda d: d["model"].update(unk_id=3)),
    "'unk_id' must be an integer": (ERR_FORMAT, lambda d: d["model"].update(unk_id=-1)),
    "entry 1 is not [piece, score]": (ERR_FORMAT, lambda d: d["model"]["vocab"].__setitem__(1, ["a"])),
    "entry 2 is not [piece, score]": (ERR_FORMAT, lambda d: d["model"]["vocab"].__setitem__(2, ["a", "b"])),
    "must be a list of [piece, score]": (ERR_FORMAT, lambda d: d["model"].update(vocab={"a": 0})),
    "the vocabulary is empty": (ERR_FORMAT, lambda d: d["model"].update(vocab=[])),
    "'a' occurs twice": (ERR_FORMAT, lambda d: d["model"]["vocab"].__setitem__(2, ["a", 0.0])),
    "token 1 has 257 bytes": (ERR_UNSUPPORTED, lambda d: d["model"]["vocab"].__setitem__(1, ["a" * 257, 0.0])),
    "ByteLevel with Unigram": (ERR_UNSUPPORTED, lambda d: d.update(pre_tokenizer={"type": "ByteLevel"})),
    "must be base64": (ERR_FORMAT, lambda d: d.update(normalizer={"type": "Precompiled",
                                                                  "precompiled_charsmap": "AA"})),
    "must be base64 ": (ERR_FORMAT, lambda d: d.update(normalizer={"type": "Precompiled"})),
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused_by_name(tmp_path, text):
    data = json.loads(Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -2.0)], 0, False)).to_str())
    status, change = REFUSED[text]
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(Failure, match=re.escape(text.strip())) as failure:
        Ours(tmp_path)
    assert failure.value.status == status


def blob(units, texts=b"", trie=None):
    return struct.pack("<I", 4 * len(units) if trie is None else trie) + struct.pack(f"<{len(units)}I", *units) + texts


BAD_MAPS = {
    "a trie of 0 bytes in a map of 0": (ERR_FORMAT, b""),
    "a trie of 0 bytes in a map of 4": (ERR_FORMAT, blob([])),
    "a trie of 6 bytes": (ERR_FORMAT, blob([0, 0], trie=6)),
    "a trie of 12 bytes in a map of 12": (ERR_FORMAT, blob([0, 0], trie=12)),
    "unit 1 refers to byte 9 of 3": (ERR_FORMAT, blob([0, 1 << 31 | 9], b"a\0")),
    "unit 1 refers to byte 1 of 4": (ERR_FORMAT, blob([0, 1 << 31 | 1], "é\0".encode())),
    "byte 1 of the replacements": (ERR_UTF8, blob([0], b"a\xff")),
}


@pytest.mark.parametrize("text", BAD_MAPS)
def test_charsmaps_that_are_refused(tmp_path, text):
    status, data = BAD_MAPS[text]
    with pytest.raises(Failure, match=re.escape(text)) as failure:
        load_map(tmp_path, data)
    assert failure.value.status == status


def load_map(folder, data):
    tok = json.loads(Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False)).to_str())
    tok["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(data).decode()}
    (folder / "tokenizer.json").write_text(json.dumps(tok))
    return Ours(folder)


def test_charsmaps_of_random_units(tmp_path):
    """A walk stays inside: every text is encoded."""
    rng = random.Random(f"{SEED} units")
    for _ in range(60):
        units = [rng.getrandbits(31) for _ in range(rng.randint(1, 700))]
        ours = load_map(tmp_path, blob(units, b"a\0bc\0"))
        for text in ("", "a", "ab\u0301c", "\x00a", "é" * 9, bytes(range(1, 128)).decode()):
            ours.encode(text)


def test_a_charsmap_that_fills_memory(tmp_path):
    ours = load_map(tmp_path, charsmap({"a": "b" * 20000}))
    ours.encode("b")
    with pytest.raises(Failure, match="give the model a simpler normalizer") as failure:
        ours.encode("a" * 5)
    assert failure.value.status == ERR_SIZE


def test_a_real_model():
    folder = os.environ.get("MHA_UNIGRAM_DIR")
    if not folder:
        pytest.skip("MHA_UNIGRAM_DIR names no folder with a real tokenizer.json")
    compare_random((Ours(folder), Tokenizer.from_file(f"{folder}/tokenizer.json")), 5, 1000)
