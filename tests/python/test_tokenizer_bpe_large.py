"""BPE tokenizers with realistic vocabularies, compared with Hugging Face's `tokenizers`.

The vocabularies of more than 30,000 tokens are trained on the sources of Python's standard library, the names of all
Unicode characters and sentences of many scripts. The long tier trains one for each splitter on all
of this text. Otherwise, one byte-level and one piece-based tokenizer are trained on a part.
"""
import collections
import ctypes
import functools
import glob
import json
import random
import sysconfig
import unicodedata

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from test_tokenizer_bpe_hf import (ASSIGNED, CODE_POINTS, CORPUS, ERR_UTF8, LLAMA, LONG, QWEN, SPACES,
                                   byte_level, check, compare_random, differs, isolate, rebuild, template)
from tokenizer_ctypes import C, EncodeOptions, Encoding, Failure, Ours, column

pytestmark = pytest.mark.gate(0)  # the vocabularies take half a minute to train
SIZE = 32000
ALPHABET = 8000  # characters of the pieces; other characters are bytes
# Like in SentencePiece, spaces belong to the next word, and runs of spaces and of line ends are
# kept together.
PIECES = isolate(SPACES + "+[^" + SPACES + "\n]*|[^" + SPACES + "\n]+|\n+")


# --------------------------------------------------------------------------------------------------
# Texts and vocabularies
# --------------------------------------------------------------------------------------------------
@functools.cache
def sources():
    """The standard library as blocks of text in a fixed order, or a part of it unless LONG."""
    root, most, blocks = sysconfig.get_paths()["stdlib"], 60_000_000 if LONG else 1_000_000, []
    for path in sorted(glob.glob(f"{root}/**/*.py", recursive=True)):
        if "site-packages" in path:
            continue
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        blocks += [text[at:at + 10000] for at in range(0, len(text), 10000)]
        most -= len(text)
        if most < 0:
            break
    return blocks


def sentences():
    yield from sources()
    yield from (f"{c} {unicodedata.name(c, 'control').title()}\n" for c in ASSIGNED[::1 if LONG else 16])
    yield from CORPUS


def train(splitter, normalizer=None, special=(), **settings):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = splitter
    if normalizer:
        tok.normalizer = normalizer
    tok.train_from_iterator(sentences(), trainers.BpeTrainer(
        vocab_size=SIZE, special_tokens=list(special), show_progress=False, **settings))
    return json.loads(tok.to_str())["model"]


SPLITTERS = {
    "gpt2": byte_level(),
    "llama3": pre_tokenizers.Sequence([isolate(LLAMA), byte_level(regex=False)]),
    "qwen2": pre_tokenizers.Sequence([isolate(QWEN), byte_level(regex=False)]),
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()]),
}


@functools.cache
def byte_model(name):
    return train(SPLITTERS[name], initial_alphabet=pre_tokenizers.ByteLevel.alphabet())


@functools.cache
def piece_model():
    names = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256))]
    # The most frequent characters, chosen here because the trainer breaks ties at random.
    counts = collections.Counter(c for text in sentences() for c in text.replace(" ", SPACES))
    del counts["\0"]  # must not be a token
    letters = sorted(counts, key=lambda c: (-counts[c], c))[:ALPHABET]
    return train(PIECES, normalizers.Replace(" ", SPACES), names, initial_alphabet=letters,
                 limit_alphabet=ALPHABET)


def of_bytes(name, normalizer=None, **settings):
    tok = rebuild(byte_model(name if LONG else "llama3"), normalizer, SPLITTERS[name], **settings)
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>"])
    return tok


def gpt2():
    tok = of_bytes("gpt2")
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    return tok


def llama3():
    tok = of_bytes("llama3", ignore_merges=True)
    begin = tok.token_to_id("<|endoftext|>")
    tok.post_processor = template("<|endoftext|> $A", "<|endoftext|> $A $B:1",
                                  [("<|endoftext|>", begin)])
    return tok


def qwen2():
    return of_bytes("qwen2", normalizers.NFC())


def smollm():
    return of_bytes("smollm")


def of_pieces(normalizer, splitter):
    tok = rebuild(piece_model(), normalizer, splitter, unk_token="<unk>", fuse_unk=True,
                  byte_fallback=True)
    tok.add_special_tokens(["<unk>", "<s>", "</s>"])
    tok.post_processor = template("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    return tok


def llama2():
    return of_pieces(normalizers.Sequence([normalizers.Prepend(SPACES),
                                           normalizers.Replace(" ", SPACES)]), None)


def mistral():
    return of_pieces(None, pre_tokenizers.Metaspace(SPACES, prepend_scheme="first", split=False))


def gemma():
    tok = of_pieces(normalizers.Replace(" ", SPACES),
                    pre_tokenizers.Split(" ", "merged_with_previous"))
    tok.add_tokens([AddedToken("\n" * n, normalized=False) for n in range(2, 8)])
    tok.add_tokens([AddedToken(SPACES * n, normalized=False) for n in range(2, 8)])
    return tok


FAMILIES = [gpt2, llama3, qwen2, smollm, llama2, mistral, gemma]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda make: make.__name__)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.__name__)
    reference = request.param()
    assert reference.get_vocab_size() > 30000
    reference.save(str(folder / "tokenizer.json"))
    return Ours(folder), reference


# --------------------------------------------------------------------------------------------------
# Comparing
# --------------------------------------------------------------------------------------------------
def ids_of(ours, text):
    """Compare only ids, which is fast."""
    options, out = EncodeOptions(), Encoding()
    data = text.encode()
    ours.check(C.mha_tokenizer_encode(ours.handle, ctypes.byref(options), data, len(data), None, 0,
                                      ctypes.byref(out)))
    ids = column(out, "ids").tolist()
    C.mha_encoding_free(ctypes.byref(out))
    return ids


def compare_ids(both, texts):
    ours, reference = both
    wrong = [text for text, want in zip(texts, reference.encode_batch_fast(texts))
             if ids_of(ours, text) != want.ids]
    if wrong:
        check(both, wrong[0])
        pytest.fail(f"{len(wrong)} texts differ: {wrong[:20]!r}")


def test_every_code_point(both, request):
    """Separate code points: all in the long tier, otherwise those of Unicode 14, distributed over
    runs. In sentences: the code points of Unicode 14, or otherwise an eighth of the share."""
    turn = [make.__name__ for make in FAMILIES].index(request.node.callspec.id)
    form = "The {0}, or {0}{0}s of {0}x; don't{0}t 12{0}34: \t{0}  {0}\n \u00e9{0}\u0301{0}\u3042{0}."
    points = CODE_POINTS if LONG else ASSIGNED[turn::len(FAMILIES)]
    for at in range(0, len(points), 8192):
        compare_ids(both, points[at:at + 8192])
    points = ASSIGNED if LONG else points[::8]
    for at in range(0, len(points), 8192):
        chunk = points[at:at + 8192]
        if differs(both, "".join(form.format(c) for c in chunk)):
            for c in chunk:
                check(both, form.format(c))
            check(both, "".join(form.format(c) for c in chunk))


def test_random_texts(both):
    compare_random(both, 6, 10000 if LONG else 200)


def test_sources(both):
    """Texts of the training data with their offsets, and names of characters."""
    rng = random.Random(7)
    for block in rng.sample(sources(), 400 if LONG else 12):
        check(both, block)
    compare_ids(both, [unicodedata.name(c, "").lower() for c in ASSIGNED[::1 if LONG else 50]])


@pytest.mark.parametrize("unit", ["a", " ", "\n", "\U0001f44d", "\u0301", "7", "\u4e00", "- "])
def test_long_runs(both, unit):
    check(both, unit * (1_000_000 if LONG else 20_000))


def test_damaged_texts(both):
    """Exactly the bytes that are not UTF-8 are rejected, and the message names the first."""
    rng, refused = random.Random(8), 0
    for _ in range(20000 if LONG else 500):
        data = bytearray("".join(rng.choice(CORPUS)[:40]).encode() or b"a")
        for _ in range(rng.randrange(3)):
            at = rng.randrange(len(data))
            data[at:at + rng.randrange(2)] = bytes([rng.choice(b"\x00a\x80\xbf\xc0\xc3\xe0\xed\xf0\xf4\xff")])
        try:
            text = bytes(data).decode()
        except UnicodeDecodeError as error:
            refused += 1
            with pytest.raises(Failure, match=rf"\bbyte {error.start}\b") as failure:
                both[0].encode(bytes(data))
            assert failure.value.status == ERR_UTF8
        else:
            check(both, text)
    assert refused > 100
