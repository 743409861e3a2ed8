"""BPE tokenizers compared with Hugging Face's `tokenizers`: equal ids, offsets, segments and flags
for every code point, for random texts and for long runs. The test builds each family's tokenizer
with its normalizer, pattern, template and added tokens, and a small vocabulary trained on sentences
of many scripts. MHA_BPE_DIR may name a folder with the tokenizer.json of a real model, which is
then compared too.
"""
import json
import os
import random
import re
import unicodedata

import numpy as np
import pytest
from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors,
                        trainers)

from shared import DEEP, LONG, SEED, amount
from tokenizer_ctypes import ERR_SIZE, ERR_UNSUPPORTED, Failure, Ours, byte_offsets

ERR_UTF8 = 23
CODE_POINTS = [chr(c) for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
ASSIGNED = [c for c in CODE_POINTS if unicodedata.category(c) not in ("Cn", "Co")]
BYTE_KIND, PIECE_KIND = 1, 2

CORPUS = """The quick brown fox jumps over the lazy dog. It's what we'll do, isn't it? They've gone; I'd stay.
In 1984 there were 123,456,789 of them: 3.14159, $5.00, 50 %, x = y + 2; for (i = 0; i < n; i++) {
    return table[i] == NULL ? -1 : table[i]->next;   /* spaces   and\ttabs */
}
L'été, où le cœur naïf a goûté aux crêpes. Größe, Straße, Äpfel, Übermut; ¿qué pasó, señor? Łódź, İstanbul.
Съешь же ещё этих мягких французских булок. Ξεσκεπάζω την ψυχοφθόρα βδελυγμία. Ես կարող եմ ապակի ուտել.
כל אדם נולד בן חורין. يولد جميع الناس أحرارا متساوين. सभी मनुष्यों को गौरव और अधिकारों में समानता प्राप्त है।
มนุษย์ทั้งหลายเกิดมามีอิสระ 人人生而自由,在尊严和权利上一律平等。 すべての人間は、生まれながらにして自由である。カタカナ
모든 인간은 태어날 때부터 자유로우며 그 존엄과 권리에 있어 동등하다. 👩‍👩‍👧‍👦 👍🏽 🇩🇪 ☃️ ∑ ∫ √2 ≠ ½ №5 𝔘𝔫𝔦𝔠𝔬𝔡𝔢
""".splitlines(True) * 4
SPACES = "\u2581"
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA = QWEN.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
         r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")

CLIP = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"


# --------------------------------------------------------------------------------------------------
# Tokenizers
# --------------------------------------------------------------------------------------------------
def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def isolate(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated", invert=False)


def template(single, pair, tokens):
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=tokens)


def train(normalizer, splitter, special, size=700, byte_tokens=False):
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizer
    if splitter:
        tok.pre_tokenizer = splitter
    alphabet = [] if byte_tokens else pre_tokenizers.ByteLevel.alphabet()
    if byte_tokens:
        special = special + [f"<0x{b:02X}>" for b in range(256)]
        size += 256
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(
        vocab_size=size, special_tokens=special, initial_alphabet=alphabet, show_progress=False))
    return json.loads(tok.to_str())["model"]


def rebuild(model, normalizer, splitter, **settings):
    merges = [tuple(pair) for pair in model["merges"]]
    tok = Tokenizer(models.BPE(vocab=model["vocab"], merges=merges, **settings))
    if normalizer:
        tok.normalizer = normalizer
    if splitter:
        tok.pre_tokenizer = splitter
    return tok


def gpt2():
    tok = rebuild(train(None, byte_level(), ["<|endoftext|>"]), None, byte_level())
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.add_special_tokens(["<|endoftext|>"])
    return tok


def roberta():
    names = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    tok = rebuild(train(None, byte_level(), names), None, byte_level())
    tok.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True,
                                                      add_prefix_space=False)
    tok.add_special_tokens([*names[:4], AddedToken("<mask>", lstrip=True, normalized=False)])
    return tok


def roberta_with_prefix():
    splitter = byte_level(prefix=True)
    names = ["<s>", "<pad>", "</s>", "<unk>"]
    tok = rebuild(train(None, splitter, names), None, splitter)
    tok.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True,
                                                      add_prefix_space=True)
    tok.add_special_tokens(names)
    return tok


def llama3():
    splitter = pre_tokenizers.Sequence([isolate(LLAMA), byte_level(regex=False)])
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    tok = rebuild(train(None, splitter, [], 900), None, splitter, ignore_merges=True)
    tok.add_special_tokens(names)
    bos = tok.token_to_id(names[0])
    tok.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        template(f"{names[0]} $A", f"{names[0]} $A {names[0]}:1 $B:1", [(names[0], bos)])])
    return tok


def qwen2():
    splitter = pre_tokenizers.Sequence([isolate(QWEN), byte_level(regex=False)])
    tok = rebuild(train(normalizers.NFC(), splitter, []), normalizers.NFC(), splitter)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    return tok


def smollm2():
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level()])
    names = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tok = rebuild(train(None, splitter, names), None, splitter)
    tok.add_special_tokens(names)
    return tok


def pythia():
    tok = rebuild(train(normalizers.NFC(), byte_level(), ["<|endoftext|>"]), normalizers.NFC(),
                  byte_level())
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    tok.add_special_tokens(["<|endoftext|>"])
    tok.add_tokens([AddedToken(" " * n, normalized=True) for n in range(24, 1, -1)])
    return tok


def bloom():
    splitter = pre_tokenizers.Sequence([isolate(r" ?[^(\s|[.,!?…。，、।۔،])]+"), byte_level(regex=False)])
    tok = rebuild(train(None, splitter, ["<unk>", "<s>", "</s>"]), None, splitter)
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    tok.add_special_tokens(["<s>", "</s>"])
    return tok


def falcon():
    """Digits behind ByteLevel also splits at bytes whose letters are numeric, such as 0xBC, the letter ¼."""
    splitter = pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(individual_digits=False),
        isolate("[0-9][0-9][0-9]")])
    tok = rebuild(train(None, splitter, ["<|endoftext|>"]), None, splitter)
    tok.post_processor = processors.ByteLevel(trim_offsets=True)
    tok.add_special_tokens(["<|endoftext|>"])
    return tok


def gpt4o():
    splitter = pre_tokenizers.Sequence([isolate(GPT4O), byte_level(regex=False)])
    tok = rebuild(train(None, splitter, []), None, splitter)
    tok.add_tokens([AddedToken("word", single_word=True), AddedToken("right", rstrip=True),
                    AddedToken("both", lstrip=True, rstrip=True, normalized=False)])
    return tok


def clip():
    normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(CLIP), "removed", invert=True), byte_level()])
    tok = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tok.normalizer, tok.pre_tokenizer = normalizer, splitter
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tok.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=1200, initial_alphabet=alphabet, show_progress=False,
                                                        end_of_word_suffix="</w>"))
    model = json.loads(tok.to_str())["model"]
    for name in [letter + "</w>" for letter in alphabet] + ["<|startoftext|>", "<|endoftext|>"]:
        model["vocab"].setdefault(name, len(model["vocab"]))
    names = ["<|startoftext|>", "<|endoftext|>"]
    tok = rebuild(model, normalizer, splitter, end_of_word_suffix="</w>", unk_token=names[1])
    first, last = ((name, tok.token_to_id(name)) for name in names)
    tok.post_processor = processors.RobertaProcessing(last, first, trim_offsets=False, add_prefix_space=False)
    tok.add_special_tokens(names)
    return tok


def llama2():
    normalizer = normalizers.Sequence([normalizers.Prepend(SPACES), normalizers.Replace(" ", SPACES)])
    names = ["<unk>", "<s>", "</s>"]
    model = train(normalizer, None, names, byte_tokens=True)
    tok = rebuild(model, normalizer, None, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok.add_special_tokens(names)
    tok.post_processor = template("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    return tok


def mistral():
    splitter = pre_tokenizers.Metaspace(SPACES, prepend_scheme="first", split=False)
    names = ["<unk>", "<s>", "</s>", "[INST]"]
    model = train(None, splitter, names, byte_tokens=True)
    tok = rebuild(model, None, splitter, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok.add_special_tokens(names)
    tok.post_processor = template("<s> $A", "<s> $A <s>:1 $B:1", [("<s>", 1)])
    return tok


def gemma():
    normalizer = normalizers.Replace(" ", SPACES)
    splitter = pre_tokenizers.Split(" ", "merged_with_previous")
    names = ["<pad>", "<eos>", "<bos>", "<unk>"]
    model = train(normalizer, splitter, names + ["\n\n", "<start_of_turn>"], byte_tokens=True)
    tok = rebuild(model, normalizer, splitter, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tok.add_special_tokens([*names, "<start_of_turn>"])
    tok.add_tokens([AddedToken("\n\n", normalized=False)])
    tok.post_processor = template("<bos> $A", "<bos> $A <bos>:1 $B:1", [("<bos>", 2)])
    return tok


def pieces_without_bytes():
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(SPACES, prepend_scheme="always"),
                                        pre_tokenizers.Digits(individual_digits=False)])
    model = train(None, splitter, ["<unk>"], byte_tokens=True)
    return rebuild(model, None, splitter, unk_token="<unk>")


BYTES = [gpt2, roberta, roberta_with_prefix, llama3, qwen2, smollm2, pythia, gpt4o, bloom, falcon, clip]
PIECES = [llama2, mistral, gemma, pieces_without_bytes]


@pytest.fixture(scope="module", params=BYTES + PIECES, ids=lambda make: make.__name__)
def both(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param.__name__)
    reference = request.param()
    reference.save(str(folder / "tokenizer.json"))
    ours = Ours(folder)
    assert ours.describe().kind == (BYTE_KIND if request.param in BYTES else PIECE_KIND)
    return ours, reference


# --------------------------------------------------------------------------------------------------
# Comparing
# --------------------------------------------------------------------------------------------------
def wanted(reference, text, pair=None, special=True):
    encoding = reference.encode(text, pair, add_special_tokens=special)
    result = {"ids": np.array(encoding.ids, np.int64),
              "type_ids": np.array(encoding.type_ids, np.int64),
              "special": np.array(encoding.special_tokens_mask, np.int64)}
    starts = [byte_offsets(text), byte_offsets(pair or "")]
    places = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    # Without a template sequence_ids are missing: the second text follows the first.
    sequence = np.zeros(len(encoding.ids), np.int64)
    sequence[result["special"] == 1] = -1
    if pair is not None:
        first = len(reference.encode(text, add_special_tokens=False).ids)
        sequence[np.cumsum(sequence == 0) > first] = 1
        sequence[result["special"] == 1] = -1
    for column, name in enumerate(("begin", "end")):
        both_texts = [s[np.minimum(places[:, column], len(s) - 1)] for s in starts]
        result[name] = np.where(sequence < 0, -1, np.where(sequence == 1, both_texts[1],
                                                           both_texts[0]))
    result["sequence"] = sequence
    return result


def differs(both, text, pair=None, special=True):
    """The first column in which the two differ, or None."""
    ours, want = both[0].encode(text, pair, special=special), wanted(both[1], text, pair, special)
    return next((name for name in want if not np.array_equal(ours[name], want[name])), None)


def check(both, text, pair=None, special=True):
    name = differs(both, text, pair, special)
    if name:
        ours, want = both[0].encode(text, pair, special=special), wanted(both[1], text, pair, special)
        pytest.fail(f"{name} of {text!r}, {pair!r}: {ours[name].tolist()}, "
                    f"Hugging Face gives {want[name].tolist()}")


def test_every_code_point(both, request):
    """Code points between letters, digits and spaces, after an apostrophe and before marks. The
    long tier tests all; otherwise, the code points of Unicode 14 are distributed over the
    families."""
    turn = [make.__name__ for make in BYTES + PIECES].index(request.node.callspec.id) % 6
    form = "a{0}b 1{0}2 {0} '{0}\n{0}\u0301"
    points = CODE_POINTS if LONG else ASSIGNED[turn::6] if DEEP else ASSIGNED[(turn + SEED) % 48::48]
    step = 8192
    for at in range(0, len(points), step):
        chunk = points[at:at + step]
        if differs(both, "".join(form.format(c) for c in chunk)):
            single = [f"U+{ord(c):04X}" for c in chunk if differs(both, form.format(c))]
            pytest.fail(f"{len(single)} code points differ: {single[:20]}")


WORDS = ("the quick fox's They'LL we'Ve 1234567 ³ ½ Ⅷ it's Straße café cafe\u0301 Å \u212b ﬁ ǆ 각 \u1112\u1161\u11ab "
         "Привет שלום नमस्ते 你好 東京 👩‍👩‍👧‍👦 🇩🇪 \u0344 \u0f73\u0f71 \u0301\u0323 q\u0323\u0307 "
         "<|endoftext|> <|im_start|> <s> </s> <mask> <mask <unk> [INST] <0x0A> <0x0a> word words right both "
         "<|begin_of_text|> \u2581 \u2581\u2581a \u0120 Ġthe ſ 'ſ \u180e \u200b \u0085 \u00a0 \u3000 \ufeff "
         "\r\n \n\n \t  \u0000 \u0004 \U00013456 \U000e0041 ##ing ![ ]( // -- == <> \u0378 \U0001c9f0 "
         "\U00010d6f \U00011de0 \U00016ff4").split(" ")


def random_text(rng, most=24):
    parts = []
    for _ in range(rng.randrange(most)):
        kind = rng.random()
        if kind < 0.6:
            parts.append(rng.choice(WORDS))
        elif kind < 0.7:
            parts.append(chr(rng.choice([0x20, 0x300, 0x590, 0x900, 0x1D00, 0x2000, 0x3000, 0x1F300])
                             + rng.randrange(256)))
        elif kind < 0.75:
            parts.append(rng.choice(CODE_POINTS))
        elif kind < 0.8:
            parts.append(rng.choice(" \n\té1a.'") * rng.randrange(1, 60))
        elif kind < 0.85:
            parts.append("".join(rng.choice("\u0301\u0323\u0345\u0334\u302e\U0001d165\u05b0\u0f73\u1161")
                                 for _ in range(rng.randrange(1, 12))))
        else:
            parts.append("".join(rng.choice("etaoin shrdlu") for _ in range(rng.randrange(1, 14))))
        parts.append(rng.choice(["", " ", " ", "  ", "\n", ", "]))
    return "".join(parts)


def compare_random(both, seed, count):
    rng = random.Random(f"{SEED} {seed}")
    for _ in range(count):
        text = random_text(rng)
        pair = random_text(rng) if rng.random() < 0.3 else None
        check(both, text, pair, rng.random() < 0.8)


def test_random_texts(both):
    compare_random(both, 1, amount(100, 700, 10000))


@pytest.mark.parametrize("unit", ["a", " ", "\n", "é", "👍", "1", "\u0301", "ab", " a", SPACES, "\x00", "中", "\ufdfa"])
def test_long_runs(both, unit):
    check(both, unit * 3000)
    check(both, "x" + unit * 1023 + "y")


def test_texts_that_are_not_utf8(both):
    for text in (b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xc0\x80"):
        with pytest.raises(Failure) as failure:
            both[0].encode(text)
        assert failure.value.status == ERR_UTF8


def test_names_and_bytes_of_tokens(both):
    """The tokens of a text decode to the text, except for normalization."""
    ours, reference = both
    for text, number in reference.get_vocab().items():
        assert ours.token(number) == text
    added = {t.content: t.special for t in reference.get_added_tokens_decoder().values()}
    for text, number in reference.get_vocab().items():
        data, special = ours.token_bytes(number)
        assert special == added.get(text, False)
        assert text not in added or data == text.encode()
    if reference.model.unk_token and not reference.model.byte_fallback:
        return
    for text in CORPUS[:9]:
        normal = reference.normalizer.normalize_str(text) if reference.normalizer else text
        ids = ours.encode(text, special=False)["ids"]
        data = b"".join(ours.token_bytes(int(i))[0] for i in ids).decode()
        assert data.lstrip(" ") == normal.replace(SPACES, " ").lstrip(" ")


# --------------------------------------------------------------------------------------------------
# Other forms of the same file, and rejected ones
# --------------------------------------------------------------------------------------------------
def changed(folder, reference, change):
    data = json.loads(reference.to_str())
    change(data)
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return Ours(folder), Tokenizer.from_file(str(folder / "tokenizer.json"))


def test_old_form_of_merges(tmp_path):
    def change(data):
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
        del data["model"]["ignore_merges"]
    compare_random(changed(tmp_path / "old", gpt2(), change), 2, 50)


@pytest.mark.parametrize("behavior", ["Isolated", "Removed", "MergedWithPrevious", "MergedWithNext",
                                      "Contiguous"])
@pytest.mark.parametrize("invert", [False, True])
def test_behaviors_of_split(tmp_path, behavior, invert):
    def change(data):
        split = {"type": "Split", "pattern": {"Regex": r"\p{L}+|\d"}, "behavior": behavior,
                 "invert": invert}
        literal = {"type": "Split", "pattern": {"String": ", "}, "behavior": behavior, "invert": invert}
        data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            split, literal, {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                             "use_regex": False}]}
    compare_random(changed(tmp_path / "split", gpt2(), change), 3, 150)


def test_normalizers_in_a_row(tmp_path):
    def change(data):
        data["normalizer"] = {"type": "Sequence", "normalizers": [
            {"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": "[aeiou]+"}, "content": "<é>"},
            {"type": "Prepend", "prepend": "«»"},
            {"type": "Replace", "pattern": {"String": " t"}, "content": ""}]}
        data["pre_tokenizer"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                                 "use_regex": True}
    compare_random(changed(tmp_path / "normal", gpt2(), change), 4, 300)


def test_single_word_beside_code_points(tmp_path):
    reference = gpt2()
    reference.add_tokens([AddedToken("word", single_word=True)])
    ours = changed(tmp_path / "single", reference, lambda data: None)[0]
    points = CODE_POINTS[::amount(971, 97, 1)]
    wrong = [text for c in points for text in (f"{c}word", f"word{c}")
             if ours.encode(text)["ids"].tolist() != reference.encode(text).ids]
    assert not wrong, f"{len(wrong)} texts differ: {wrong[:20]!r}"


REFUSED = {
    "BertNormalizer": lambda d: d.update(normalizer={"type": "BertNormalizer"}),
    "Whitespace": lambda d: d.update(pre_tokenizer={"type": "Whitespace"}),
    "behind ByteLevel": lambda d: d.update(pre_tokenizer={"type": "Sequence", "pretokenizers": [
        d["pre_tokenizer"], {"type": "Punctuation", "behavior": "Isolated"}]}),
    "inside a class,": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "[a[^b]]"},
                                                         "behavior": "Isolated", "invert": False}),
    "the open class": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "[[a]"},
                                                        "behavior": "Isolated", "invert": False}),
    r"\w": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\w+"},
                                             "behavior": "Isolated", "invert": False}),
    r"\p{Han}": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": r"\p{Han}"},
                                                  "behavior": "Isolated", "invert": False}),
    "(?i:": lambda d: d.update(pre_tokenizer={"type": "Split", "pattern": {"Regex": "(?i:x|ss)"},
                                              "behavior": "Isolated", "invert": False}),
    "end_of_word_suffix": lambda d: d["model"].update(end_of_word_suffix="</w>", ignore_merges=True),
    "such an end_of_word_suffix": lambda d: d["model"].update(end_of_word_suffix="/" * 17),
    "continuing_subword_prefix": lambda d: d["model"].update(continuing_subword_prefix="##"),
    "dropout": lambda d: d["model"].update(dropout=0.1),
    "WordLevel": lambda d: d["model"].update(type="WordLevel"),
    "BertProcessing": lambda d: d.update(post_processor={"type": "BertProcessing"}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(tmp_path, name):
    data = json.loads(gpt2().to_str())
    REFUSED[name](data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(Failure, match=re.escape(name)) as failure:
        Ours(tmp_path)
    assert failure.value.status == ERR_UNSUPPORTED


def test_a_pattern_with_too_many_ways(tmp_path):
    data = json.loads(gpt2().to_str())
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"(?:a|aa|aaa)+b|(?:a+)+c"}, "behavior": "Isolated",
         "invert": False}, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(Failure, match=r"json: pre_tokenizer Split: the pattern '\(\?:a.* too many ways") as failure:
        Ours(tmp_path).encode("a" * 200)
    assert failure.value.status == ERR_SIZE


SLOW = {
    "(?:a|aa|aaa)+[bd]": "aa",                # ways
    "(?:b|(?:a|a){20})[cd]": "a" * 19,        # of a group whose repetitions are never complete
    "(?:a(?:a|a(?=a)))+[bd]": "aaa",          # in a group in a group
    "[a-c]+[bd]x": "ab",                      # backtracking over a long run
}


@pytest.mark.parametrize("pattern", SLOW)
def test_patterns_that_try_too_much(tmp_path, pattern):
    """Without a complete match, the search restarts at every position, and failed attempts
    count."""
    data = json.loads(gpt2().to_str())
    data["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern + "|a"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    ours = Ours(tmp_path)
    with pytest.raises(Failure, match="has too many ways to match the text") as failure:
        ours.encode(SLOW[pattern] * 4000)
    assert failure.value.status == ERR_SIZE


@pytest.mark.parametrize("pattern", ["|".join(["a{999}b"] * 3), "|".join("pq" * 600), r"(?:\p{Lu}{700}|x)\d{400}",
                                     "|".join(["[%s]+" % "".join(map(chr, range(0x4E00, 0x4E00 + 350)))] * 3)])
def test_patterns_too_dear_at_one_character(tmp_path, pattern):
    data = json.loads(gpt2().to_str())
    data["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(Failure, match="steps at one character, at most 1024 are supported") as failure:
        Ours(tmp_path)
    assert failure.value.status == ERR_UNSUPPORTED


def test_an_unknown_token_that_is_long(tmp_path):
    data = json.loads(gpt2().to_str())
    data["model"]["unk_token"] = "\u0120" * 300
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(Failure, match="an unk_token of so many bytes"):
        Ours(tmp_path)


def test_a_normalizer_that_fills_memory(tmp_path):
    data = json.loads(gpt2().to_str())
    longer = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    data["normalizer"] = {"type": "Sequence", "normalizers": [longer] * 2}
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(Failure, match="of a text of 4; give the model a simpler") as failure:
        Ours(tmp_path).encode("aaaa")
    assert failure.value.status == ERR_SIZE
    for content, fits in (("bbbb", True), ("bbbbb", False)):
        data["normalizer"] = dict(longer, content=content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(data))
        ours = Ours(tmp_path)
        if fits:
            ours.encode("a" * 9000)
        else:
            with pytest.raises(Failure, match="more than 40096 bytes of a text of 9000"):
                ours.encode("a" * 9000)


def test_a_real_model():
    folder = os.environ.get("MHA_BPE_DIR")
    if not folder:
        pytest.skip("MHA_BPE_DIR names no folder with a real tokenizer.json")
    compare_random((Ours(folder), Tokenizer.from_file(f"{folder}/tokenizer.json")), 5, 1000)


def test_added_tokens_that_share_white_space(tmp_path):
    """A token that begins with white space is found even if the previous one includes it."""
    rng = random.Random(f"{SEED} shared white space")
    names = ["<x>", "<y>", "<xx>", " <w>", "q "]
    letters = dict.fromkeys([*map(chr, range(33, 127)), SPACES, "<unk>"])
    for turn in range(amount(20, 100, 500)):
        reference = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, [], unk_token="<unk>"))
        reference.normalizer = normalizers.Replace(" ", SPACES)
        for name in names:
            options = {key: rng.random() < .4 for key in ("lstrip", "rstrip", "single_word", "normalized", "special")}
            reference.add_tokens([AddedToken(name, **options)])
        folder = tmp_path / str(turn)
        folder.mkdir()
        reference.save(str(folder / "tokenizer.json"))
        ours = Ours(folder)
        for _ in range(20):
            check((ours, reference), "".join(rng.choice(["a", " ", "\n", "\u00a0", "_", *names]) for _ in range(rng.randint(1, 9))))
