"""The tokenizer compared with Hugging Face's: equal words, ids, offsets and flags, for every code
point and for thousands of random texts.

Needs the packages transformers, tokenizers and numpy. The folder of a real model, MHA_MODEL_DIR or
build/models/all-MiniLM-L6-v2, is used if it exists; the test creates all other files.
"""
import json
import random
import time
import unicodedata

import numpy as np
import pytest
import tokenizers
import transformers

from shared import DEEP, LONG, MINILM, ROOT, SEED, amount
from tokenizer_ctypes import ERR_SIZE, Failure, Ours, byte_offsets

KNOWN = ROOT / "tests/golden/tokenizer/known_differences.txt"

# --------------------------------------------------------------------------------------------------
# Hugging Face's
# --------------------------------------------------------------------------------------------------
def theirs(tokenizer, text, pair=None, truncation=False, max_length=0, special=True):
    """The output of tokenizer in the form of Ours.encode()."""
    if pair == "" and not truncation:  # transformers ignores an empty pair; tokenizers does not
        tokenizer._tokenizer.no_truncation()
        tokenizer._tokenizer.no_padding()
        encoding = tokenizer._tokenizer.encode(text, pair, add_special_tokens=special)
    else:
        encoding = tokenizer(text, pair, add_special_tokens=special, truncation=truncation,
                             max_length=max_length or None).encodings[0]
    result = {"ids": np.array(encoding.ids, np.int64),
              "type_ids": np.array(encoding.type_ids, np.int64),
              "special": np.array(encoding.special_tokens_mask, np.int64),
              "sequence": np.array([-1 if s is None else s for s in encoding.sequence_ids],
                                   np.int64)}
    bytes_of = [byte_offsets(text), byte_offsets(pair or "")]
    offsets = [(-1, -1) if s < 0 else (bytes_of[s][a], bytes_of[s][b])
               for s, (a, b) in zip(result["sequence"], encoding.offsets)]
    result["begin"] = np.array([a for a, _ in offsets], np.int64)
    result["end"] = np.array([b for _, b in offsets], np.int64)
    return result


def assert_same(ours, want, what):
    for name in want:
        assert np.array_equal(ours[name], want[name]), \
            f"{name} of {what!r}: {ours[name].tolist()}, Hugging Face gives {want[name].tolist()}"


# --------------------------------------------------------------------------------------------------
# Folders
# --------------------------------------------------------------------------------------------------
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = list(dict.fromkeys(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(LETTERS + LETTERS.upper() + "0123456789")
    + ["##" + c for c in LETTERS + LETTERS.upper() + "0123456789"] + list("!?.,'-[](){}#$+<=>|~^_\"")
    + "the quick brown fox jump ##ed ##ing ##s over lazy dog un ##aff ##able café cafe naïve naive "
      "Straße stra ##sse ##ß über Über 你 好 世 界 カ ##タ か ##\u3099 \u0e01 ##\u0e33 שלום الله ##\u0301 "
      "😀 👩 ##\u200d 한 국 \u1112\u1161\u11ab і ї ё е й и ##ы i\u0307 σ ς ##ς ##σ ﬁ ½ № € ² ##²".split()))
FLAGS = ("clean_text", "handle_chinese_chars", "strip_accents", "lowercase")


def tokenizer_json(vocabulary, flags, added=()):
    special = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False, "special": True} for i, t in enumerate(vocabulary[:5])]
    cls, sep = vocabulary.index("[CLS]"), vocabulary.index("[SEP]")

    def part(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    single = [part("SpecialToken", "[CLS]", 0), part("Sequence", "A", 0),
              part("SpecialToken", "[SEP]", 0)]
    pair = single + [part("Sequence", "B", 1), part("SpecialToken", "[SEP]", 1)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": special + list(added),
        "normalizer": {"type": "BertNormalizer", **dict(zip(FLAGS, flags))},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [cls], "tokens": ["[CLS]"]},
                               "[SEP]": {"id": "[SEP]", "ids": [sep], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {token: i for i, token in enumerate(vocabulary)}}}


NAMES = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
         "mask_token": "[MASK]"}


def write_folder(path, files):
    path.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": {"model_type": "bert"}, **files}.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (path / name).write_bytes(text.encode())
    return path


def flags_folder(path, flags, added=()):
    """A folder whose tokenizer.json has all settings, with any combination of flags."""
    return write_folder(path, {
        "tokenizer.json": tokenizer_json(VOCABULARY, flags, added),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}})


def load_both(folder):
    return Ours(folder), transformers.AutoTokenizer.from_pretrained(str(folder))


def real_model():
    if not (MINILM / "vocab.txt").exists() and not (MINILM / "tokenizer.json").exists():
        pytest.skip(f"no model folder {MINILM}: tools/get-minilm gets one, MHA_MODEL_DIR names one")
    return load_both(MINILM)


# --------------------------------------------------------------------------------------------------
# Every code point
# --------------------------------------------------------------------------------------------------
CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
ASSIGNED = [c for c in CODE_POINTS if unicodedata.category(c) not in ("Cn", "Co")]
CHUNK = 8192
# Separately and between letters; before, between and after marks, which are sorted by class.
FORMS = {"letters": "\n{0}\na{0}b", "marks": "\nq{0}\u0345\u0334q\u0345{0}\u0334{0}q"}
RULES = {"uncased": (True, True, None, True), "cased": (True, True, False, False),
         "lower, accents stay": (True, True, False, True), "strip only": (False, False, True, False),
         "lower only": (False, False, False, True), "nothing": (False, False, False, False)}


def known_differences():
    """Exceptions: code point, rules, form, reason. There are none, and none should be added."""
    lines = KNOWN.read_text().splitlines()
    return {tuple(line.split("\t")[:3]) for line in lines if line and not line.startswith("#")}


def differing(points, form, compare):
    """The code points for which compare(text) is false, tested in chunks and singly where needed."""
    found = []
    for at in range(0, len(points), CHUNK):
        chunk = points[at:at + CHUNK]
        if not compare("".join(form.format(c) for c in chunk)):
            single = [c for c in chunk if not compare(form.format(c))]
            assert single, f"code points from {chunk[0]!r} differ together but not alone"
            found += single
    return found


def check_sweep(name, points, compare, capsys):
    """`points` has the code points for each form."""
    begun, found = time.monotonic(), set()
    for form, some in points.items():
        found |= {(f"U+{ord(c):04X}", name, form) for c in differing(some, FORMS[form], compare)}
    known = {line for line in known_differences() if line[1] == name}
    with capsys.disabled():
        counts = ", ".join(f"{len(some)} code points in form {form}"
                           for form, some in points.items())
        print(f"\n  {name}: {counts}: {len(found)} differences, {time.monotonic() - begun:.1f} s")
    assert found == known


def some_points(*forms):
    points = CODE_POINTS if LONG else ASSIGNED[SEED % (step := amount(8, 1, 1))::step]
    return dict.fromkeys(FORMS if LONG else forms, points)


@pytest.mark.parametrize("name", RULES)
def test_every_code_point_gives_the_same_words(name, tmp_path, capsys):
    ours = Ours(flags_folder(tmp_path, RULES[name]))
    normalizer = tokenizers.normalizers.BertNormalizer(*RULES[name])
    splitter = tokenizers.pre_tokenizers.BertPreTokenizer()

    def compare(text):
        normal = normalizer.normalize_str(text)
        return ours.words(text) == (normal, [w for w, _ in splitter.pre_tokenize_str(normal)])

    points = some_points("letters", *(["marks"] if RULES[name][2] is not False else []))
    if name == "uncased" and DEEP:
        points["letters"] = CODE_POINTS
    check_sweep(name, points, compare, capsys)


def test_every_code_point_gives_the_same_ids_and_offsets(capsys):
    ours, reference = real_model()
    backend = reference._tokenizer
    backend.no_truncation()
    backend.no_padding()

    def compare(text):
        want, got = backend.encode(text, add_special_tokens=False), ours.encode(text, special=False)
        bytes_of = byte_offsets(text)
        offsets = bytes_of[np.array(want.offsets, np.int64).reshape(-1, 2)]
        return (np.array_equal(got["ids"], want.ids) and np.array_equal(got["begin"], offsets[:, 0])
                and np.array_equal(got["end"], offsets[:, 1]))

    check_sweep("ids", some_points("letters", "marks"), compare, capsys)


# --------------------------------------------------------------------------------------------------
# Random texts
# --------------------------------------------------------------------------------------------------
WORDS = ("the quick brown fox jumped over lazy dogs unaffable Unaffable's e-mail 3.14 $5 x=y "
         "café CAFÉ naïve Straße İstanbul ΣΊΣΥΦΟΣ Ёлка Привет שָׁלוֹם السَّلَامُ नमस्ते ประเทศไทย 你好世界 東京タワー "
         "カタカナ が한국어 각 각 ǆ Ǆ ﬁn Å Å ẛ̣ q̣̇ q̣̇ 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ☃️ ½ № № ﷺ ∑ ́ ̈ n̈́ 𝔘𝔫𝔦 𠀀𪜀 豈更 ꙮ ᾳ ᾼ ǅ "
         "[CLS] [SEP] [MASK] [PAD] [UNK] [MASK [mask] [[SEP]] SEP] ##ing # ## \u0000 \u200b \ufffd "
         "\u00ad \u2028 \u00a0 \u3000 \u0085 \ufeff \ue000 \u180e \u1680 \x7f \t \r\n").split(" ")


def random_text(rng, most=30):
    parts = []
    for _ in range(rng.randrange(most)):
        kind = rng.random()
        if kind < 0.55:
            parts.append(rng.choice(WORDS))
        elif kind < 0.65:
            parts.append(chr(rng.choice([0x20, 0x300, 0x590, 0x900, 0x1D00, 0x2000, 0x3000, 0x1F300])
                             + rng.randrange(256)))
        elif kind < 0.70:
            parts.append(rng.choice(CODE_POINTS))
        elif kind < 0.73:  # near the length of the longest word that is looked up
            parts.append(rng.choice("aé你\u0301") * rng.choice([99, 100, 101, 102, 250]))
        elif kind < 0.78:
            parts.append("".join(rng.choice("\u0301\u0323\u0345\u0334\u302e\U0001d165\u05b0\u0f73")
                                 for _ in range(rng.randrange(1, 40))))
        else:
            parts.append("".join(rng.choice(LETTERS) for _ in range(rng.randrange(1, 12))))
        parts.append(rng.choice(["", " ", " ", " ", "\n", ", ", "."]))
    return "".join(parts)


def compare_random(ours, reference, seed, count):
    rng = random.Random(f"{SEED} {seed}")
    for _ in range(count):
        text = random_text(rng)
        pair = random_text(rng) if rng.random() < 0.4 else None
        special = rng.random() < 0.9
        assert_same(ours.encode(text, pair, special=special),
                    theirs(reference, text, pair, special=special), (text, pair, special))


def test_random_texts_with_the_real_vocabulary():
    ours, reference = real_model()
    compare_random(ours, reference, 1, 2500)


@pytest.mark.parametrize("name", RULES)
def test_random_texts_with_all_rules(name, tmp_path):
    ours, reference = load_both(flags_folder(tmp_path, RULES[name]))
    compare_random(ours, reference, name, 500)


def test_truncation(tmp_path):
    ours, reference = load_both(flags_folder(tmp_path, RULES["uncased"]))
    rng, errors = random.Random(3), 0
    for _ in range(1500):
        text, pair = random_text(rng, 12), random_text(rng, 12) if rng.random() < 0.7 else None
        special = rng.random() < 0.8
        added = 0 if not special else 2 if pair is None else 3
        length = rng.randrange(max(added, 1), 60)
        how = rng.choice(["longest_first", "longest_first", "only_first", "only_second"])
        arguments = (text, pair, how, length, special)
        if not pair and (how == "only_second" or pair == ""):
            continue
        try:
            want = theirs(reference, *arguments)
        except Exception:  # tokenizers raises a bare Exception if max_length is too small
            errors += 1
            with pytest.raises(Failure) as failure:
                ours.encode(*arguments)
            assert failure.value.status == ERR_SIZE
            continue
        assert_same(ours.encode(*arguments), want, arguments)
    assert errors > 10


# --------------------------------------------------------------------------------------------------
# Folders of several kinds
# --------------------------------------------------------------------------------------------------
def added_token(number, content, normalized, special=False):
    return {"id": number, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": normalized, "special": special}


SIZE = len(VOCABULARY)
ADDED = [added_token(SIZE, "Foo", True), added_token(SIZE + 1, "Bar", False),
         added_token(SIZE + 2, "foobar", True), added_token(SIZE + 3, "<ent>", False, True),
         added_token(SIZE + 4, "Él é", True), added_token(SIZE + 5, "[MASK]s", False, True)]
LINES = "\n".join(VOCABULARY)
DECODER = {str(t["id"]): {k: v for k, v in t.items() if k != "id"}
           for t in ADDED + [added_token(i, t, False, True) for i, t in enumerate(VOCABULARY[:5])]}
FOLDERS = {
    "vocab.txt alone": {"vocab.txt": LINES + "\n"},
    "no last newline": {"vocab.txt": LINES},
    "other line ends and blanks": {"vocab.txt": LINES.replace("\n", " \t\r\n") + "\u00a0\n\n"},
    "cased": {"vocab.txt": LINES, "tokenizer_config.json": {"do_lower_case": False}},
    "accents stay": {"vocab.txt": LINES, "tokenizer_config.json": {"strip_accents": False, **NAMES}},
    "accents go, case stays": {"vocab.txt": LINES, "tokenizer_config.json": {
        "strip_accents": True, "do_lower_case": False, "tokenize_chinese_chars": False}},
    "both": {"vocab.txt": LINES, "tokenizer.json": tokenizer_json(VOCABULARY, RULES["uncased"]),
             "tokenizer_config.json": {"tokenizer_class": "BertTokenizer", "do_lower_case": True,
                                       "model_max_length": 1000000000000000019884624838656}},
    "added tokens in tokenizer.json": {
        "tokenizer.json": tokenizer_json(VOCABULARY, RULES["uncased"], ADDED)},
    "added tokens in tokenizer_config.json": {
        "vocab.txt": LINES, "tokenizer_config.json": {"added_tokens_decoder": DECODER}},
    "added tokens, generic class": {
        "tokenizer.json": tokenizer_json(VOCABULARY, RULES["cased"], ADDED),
        "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", **NAMES}},
    "additional special tokens": {"vocab.txt": LINES, "tokenizer_config.json": {
        "additional_special_tokens": ["fox", "😀"], "my_own_token": "##ing"}},
    "special_tokens_map.json": {"vocab.txt": LINES, "special_tokens_map.json": {
        **NAMES, "mask_token": {"content": "[MASK]", "single_word": False, "lstrip": False,
                                "rstrip": False, "normalized": True}}},
    "other names": {"vocab.txt": LINES.replace("[UNK]", "<unk>").replace("[CLS]", "<s>"),
                    "tokenizer_config.json": {"unk_token": "<unk>", "cls_token": "<s>"}},
}
EXTRA = ["xfoo fooBAR BarFoo bar foobar FOOBARfoo f\u200boo", "Él é el e EL\u00a0É él  é", "[MASK]s[MASK]",
         "<ent><s><unk>[UNK]", "fox foxes jumping ##ing 😀😀", "", " ", "F\u0301oo Fo\u0323o"]


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(name, tmp_path):
    ours, reference = load_both(write_folder(tmp_path, FOLDERS[name]))
    for text, number in reference.get_vocab().items():
        assert ours.token(number) == text
    assert ours.token(-1) is None
    for text in EXTRA:
        assert_same(ours.encode(text), theirs(reference, text), text)
        assert_same(ours.encode("a", text), theirs(reference, "a", text), ("a", text))
    compare_random(ours, reference, name, 150)


@pytest.mark.parametrize("name", FOLDERS)
def test_folders_that_transformers_saved(name, tmp_path):
    """A typical use: load, add tokens, save, load again."""
    _, reference = load_both(write_folder(tmp_path / "first", FOLDERS[name]))
    reference.add_tokens(["Newword", "<new>"])
    reference.add_tokens(["[NEW]"], special_tokens=True)
    reference.save_pretrained(str(tmp_path / "second"))
    (tmp_path / "second/config.json").write_text('{"model_type": "bert"}')
    ours, again = load_both(tmp_path / "second")
    for text in EXTRA + ["a newword NEWWORDS <new>[NEW] [new]"]:
        assert_same(ours.encode(text), theirs(again, text), text)
    compare_random(ours, again, name, 50)
