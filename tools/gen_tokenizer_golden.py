#!/usr/bin/env python3
"""Write tests/golden/tokenizer: three small folders and the tokens of Hugging Face's tokenizer.

Needs the packages transformers and tokenizers, whose versions go into the files. Every line of cases.tsv is one call.
Tabs separate fields; bytes outside 21..7E and '%' are written as %XX:

    folder  text  pair ("-": none)  max_length  truncation (0..3, mha_truncation)  tokens

tokens are "id,type,begin,end,special", separated by blanks. begin and end count bytes; -1 marks
added special tokens. If the call fails, "error" replaces the tokens.
"""
import json
import pathlib
import random

import tokenizers
import transformers

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUT = ROOT / "tests/golden/tokenizer"
TRUNCATIONS = [False, "longest_first", "only_first", "only_second"]
LETTERS = "abcdefghijklmnopqrstuvwxyz"
VOCABULARY = list(dict.fromkeys(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + list(LETTERS + "ABCS0123456789")
    + ["##" + c for c in LETTERS + "SE0123456789"] + list("!?.,'-[](){}#$")
    + "the animal did ##n cross street because it was too tired una ##ffa ##ble café cafe Straße "
      "stra ##ße über 你 好 カ ##タ 한 \u1112\u1161\u11ab 😀 i\u0307 σ ﬁ ½ שלום שלומ ##\u0e33".split()))
ADDED = [("Foo", True), ("Bar", False), ("foobar", True), ("<ent>", False)]
TEXTS = [
    "", " ", "The animal didn't cross the street because it was too tired.", "unaffable Unaffable!",
    "Café CAFE\u0301 café", "STRASSE Straße straße", "你好abc世カタ カタ 한글 \ud55c", "İ I i\u0307 Σς ﬁ ½",
    "a\u0000b\u200bc\ufffdd\te\r\nf\u00a0g\u3000h\u2028i\u0085j", "[CLS] a [SEP]b[MASK] [mask] [MASK", "[[SEP]]",
    "שָׁלוֹם", "😀😀 👩\u200d👩\u200d👧", "a" * 100, "a" * 101, "é" * 100 + " " + "é" * 101, "a" * 99 + "!" + "b" * 99,
    "q\u0301\u0323 q\u0323\u0301 \u0344 \u0f73\u0f71 \u302e\u0301\u302f", "\U0001d15e\U0001d1bb \u0dde \uf900\U0002f800",
    "$5+3=8 ~x~ `y` a|b <c>", "#ing ##ing a#b", "xfoo fooBAR BarFoo bar FOOBARfoo f\u200boo <ent><ENT>",
    "\u0e01\u0e33 a\u0e33", "\u1734\u1735 \u111c9a \u08d4b \U00011938c", "\ua7cb\u1c89\u2c2f\U00010d50",
]


def write(folder, name, content):
    (OUT / folder).mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(
        content, ensure_ascii=False, indent=0, sort_keys=False) + "\n"
    (OUT / folder / name).write_text(text, encoding="utf-8", newline="")


def added_token(number, content, normalized, special):
    return {"id": number, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": normalized, "special": special}


def tokenizer_json():
    def part(kind, name, type_id):
        return {kind: {"id": name, "type_id": type_id}}

    single = [part("SpecialToken", "[CLS]", 0), part("Sequence", "A", 0),
              part("SpecialToken", "[SEP]", 0)]
    pair = single + [part("Sequence", "B", 1), part("SpecialToken", "[SEP]", 1)]
    added = [added_token(i, VOCABULARY[i], False, True) for i in range(5)]
    added += [added_token(len(VOCABULARY) + i, text, normalized, False)
              for i, (text, normalized) in enumerate(ADDED)]
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": {"type": "BertNormalizer", "clean_text": False, "handle_chinese_chars": False,
                       "strip_accents": False, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                               "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {token: i for i, token in enumerate(VOCABULARY)}}}


def write_folders():
    names = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]",
             "cls_token": "[CLS]", "mask_token": "[MASK]"}
    lines = "".join(token + "\n" for token in VOCABULARY)
    write("uncased", "vocab.txt", lines)
    write("uncased", "tokenizer_config.json",
          {"do_lower_case": True, "strip_accents": None, "tokenizer_class": "BertTokenizer",
           "model_max_length": 512, **names})
    write("cased", "vocab.txt", lines)
    write("cased", "tokenizer_config.json", {"do_lower_case": False})
    write("added", "tokenizer.json", tokenizer_json())
    write("added", "tokenizer_config.json",
          {"tokenizer_class": "PreTrainedTokenizerFast",
           "model_max_length": 1000000000000000019884624838656, **names})


def escape(text):
    return "".join(chr(b) if 0x21 <= b <= 0x7E and b != 0x25 else f"%{b:02X}"
                   for b in text.encode())


def describe(backend, text, pair, length, how):
    backend.no_padding()
    if length:
        backend.enable_truncation(length, strategy=TRUNCATIONS[how])
    else:
        backend.no_truncation()
    try:
        encoding = backend.encode(text, pair)
    except Exception:  # tokenizers raises a bare Exception if max_length is too small
        return "error"
    texts, out = [text, pair or ""], []
    for number, kind, special, sequence, (begin, end) in zip(
            encoding.ids, encoding.type_ids, encoding.special_tokens_mask, encoding.sequence_ids,
            encoding.offsets):
        begin, end = (-1, -1) if sequence is None else (
            len(texts[sequence][:begin].encode()), len(texts[sequence][:end].encode()))
        out.append(f"{number},{kind},{begin},{end},{special}")
    return " ".join(out)


def calls():
    rng = random.Random(20)
    for text in TEXTS:
        yield text, None, 0, 0
    for text in TEXTS[:12]:
        yield text, rng.choice(TEXTS), 0, 0
    yield "a", "", 0, 0
    for length in list(range(3, 24)):
        for how in (1, 2, 3):
            yield TEXTS[2], TEXTS[3] if length % 2 else TEXTS[9], length, how
        yield TEXTS[2], None, length, 1


def main():
    write_folders()
    lines = [f"# tools/gen_tokenizer_golden.py, transformers {transformers.__version__}, "
             f"tokenizers {tokenizers.__version__}"]
    for folder in ("uncased", "cased", "added"):
        source = OUT / folder
        loader = transformers.AutoTokenizer if folder == "added" else transformers.BertTokenizer
        backend = loader.from_pretrained(str(source))._tokenizer
        for text, pair, length, how in calls():
            if length and folder != "uncased":
                continue
            lines.append("\t".join([
                folder, escape(text), "-" if pair is None else escape(pair) or "%", str(length),
                str(how), describe(backend, text, pair, length, how)]))
    (OUT / "cases.tsv").write_text("\n".join(lines) + "\n", newline="")
    print(f"{len(lines) - 1} cases in {OUT}")


if __name__ == "__main__":
    main()
