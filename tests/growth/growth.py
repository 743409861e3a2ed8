"""Measures the growth of the cost of reading with the input size: callgrind counts instructions at
1, 4 and 16 times a size. Constant costs, such as the start of the program, cancel in differences.
The exponent is log((I16 - I4) / (I4 - I1)) to the base 4, which is 1 for linear growth. Sorting has
up to 1.17 at these sizes (n log n from n = 30 on), and quadratic growth has 2. The limit is 1.2.
MHA_TEST_LONG=1 uses four times the sizes. Foreign tokenizers have an additional bound in
instructions per byte of text.

GROWTH names the program of growth.c, MULTIHEAD the program itself.
"""
import math
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 2)[0] + "/cli/support")
from harness import *  # noqa: E402,F403

MOST = 1.2
GROWTH = os.environ.get("GROWTH", str(ROOT / "build" / "tests" / "growth"))
SCALE = 4 if os.environ.get("MHA_TEST_LONG", "0") not in ("", "0") else 1


# ---- files of n times the size -------------------------------------------------------------------

def tensors(folder, n):
    return write_weights(folder, {f"layers.{i}.weight": [1] for i in range(n)}) / "model.safetensors"


def long_name(folder, n):
    return write_weights(folder, {"x" * 16 * n: [1]}) / "model.safetensors"


def metadata(folder, n):
    pairs = {"__metadata__": {f"key {i}": "text" for i in range(n)}}
    return write_weights(folder, {"x": [1]}, pairs) / "model.safetensors"


def gguf_string(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf(tensors=lambda n: [], keys=lambda n: []):
    """A maker of GGUF files with one scalar per name and these values."""
    def make(folder, n):
        folder.mkdir()
        names, values = tensors(n), keys(n)
        text = b"GGUF" + struct.pack("<IQQ", 3, len(names), len(values))
        text += b"".join(gguf_string(key) + value for key, value in values)
        text += b"".join(gguf_string(name) + struct.pack("<IIQ", 0, 0, 32 * i)
                         for i, name in enumerate(names))
        (folder / "x.gguf").write_bytes(text + bytes(-len(text) % 32 + 32 * len(names)))
        return folder / "x.gguf"
    return make


def gguf_words(n):
    return [("tokens", struct.pack("<IIQ", 9, 8, n) + b"".join(gguf_string(f"word{i}") for i in range(n)))]


def state(folder, n):
    shapes = {"own.in_proj_weight": [6, 2], "own.in_proj_bias": [6],
              "own.out_proj.weight": [2, 2], "own.out_proj.bias": [2]}
    shapes.update({f"other.{i}.weight": [1] for i in range(n)})
    return write_weights(folder, shapes) / "model.safetensors"


def own(folder, layers):
    width, words = 2, 8
    shapes = {"embed_tokens.weight": [words, width]}
    for i in range(layers):
        for part in "qkvo":
            shapes[f"layers.{i}.self_attn.{part}_proj.weight"] = [width, width]
    return write_config(write_weights(folder, shapes), model_type="multihead", vocab_size=words,
                        max_length=4, embed_dim=width, num_layers=layers, num_heads=1,
                        layer_heads=[1] * layers, layer_kv_heads=[1] * layers, norm="none",
                        positions="none", tied=True)


def deep(folder, n):
    """Nested lists in an unused field; the parser's limit is 2048."""
    folder.mkdir()
    text = (MODEL / "config.json").read_text().strip()
    (folder / "config.json").write_text(text[:-1] + ', "x": ' + "[" * n + "]" * n + "}")
    return folder


def wide(folder, n):
    return write_config(folder if folder.mkdir() else folder, **json.loads(
        (MODEL / "config.json").read_text()), **{f"field {i}": i for i in range(n)})


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def vocabulary(n):
    return SPECIAL + list("abc") + ["##a", "##b", "##c"] + [f"word{i}" for i in range(n)]


def vocab_txt(folder, n, text=""):
    folder.mkdir()
    (folder / "vocab.txt").write_text("\n".join(vocabulary(n)) + "\n")
    (folder / "text.txt").write_text(text)
    return folder


def tokenizer_json(folder, n, added=0, normal=False, text=""):
    folder.mkdir()
    tokens = vocabulary(n)
    extra = [dict(id=i, content=word, special=not normal, normalized=normal) for i, word in
             enumerate([f"added{i}" for i in range(added)], len(tokens))]
    (folder / "tokenizer.json").write_text(json.dumps(dict(
        added_tokens=extra, normalizer=dict(type="BertNormalizer"),
        pre_tokenizer=dict(type="BertPreTokenizer"),
        model=dict(type="WordPiece", unk_token="[UNK]", continuing_subword_prefix="##",
                   max_input_chars_per_word=100,
                   vocab={word: i for i, word in enumerate(tokens)}))))
    (folder / "text.txt").write_text(text)
    return folder


def both_files(folder, n):
    tokenizer_json(folder, n)
    (folder / "vocab.txt").write_text("\n".join(vocabulary(n)) + "\n")
    return folder


def named(folder, n):
    vocab_txt(folder, 0)
    (folder / "special_tokens_map.json").write_text(json.dumps(dict(
        additional_special_tokens=["[MASK]"] * n)))
    return folder


WORDS = (r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
         r"|\s+(?!\S)|\s+")
CASES = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|" + WORDS)
BYTES = dict(type="ByteLevel", add_prefix_space=False, use_regex=False)


def splits(pattern):
    return dict(type="Sequence", pretokenizers=[
        dict(type="Split", pattern=dict(Regex=pattern), behavior="Isolated", invert=False), BYTES])


SPLITTERS = {
    "GPT-2": dict(BYTES, use_regex=True),
    "Llama 3, Qwen 2": splits("(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + WORDS),
    "GPT-4o": splits(CASES),
    "SmolLM": dict(type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True),
                                                   dict(BYTES, use_regex=True)]),
    "pieces": dict(type="Metaspace", replacement="\u2581", prepend_scheme="first", split=False),
}


def bpe(folder, n, text="", splitter=SPLITTERS["GPT-2"], added=(), normalizer=dict(type="NFC")):
    """A byte-level or piece-based tokenizer. Every merge extends the previous token by an a or a
    b."""
    folder.mkdir()
    first = ["<unk>", "a", "b", "\u2581" if splitter is SPLITTERS["pieces"] else "\u0120"]
    made = ["a"]
    for i in range(n):
        made.append(made[i // 2] + "ab"[i % 2])
    merges = [[token[:-1], token[-1]] for token in dict.fromkeys(made[1:])]
    tokens = list(dict.fromkeys(first + made))
    extra = [dict(id=i, content=word, special=False, normalized=True)
             for i, word in enumerate(added, len(tokens))]
    (folder / "tokenizer.json").write_text(json.dumps(dict(
        normalizer=normalizer, pre_tokenizer=splitter, added_tokens=extra,
        model=dict(type="BPE", unk_token="<unk>", merges=merges,
                   vocab={t: i for i, t in enumerate(tokens)}))))
    (folder / "text.txt").write_text(text)
    return folder


def bpe_text(text, **settings):
    return lambda folder, n: bpe(folder, 30, text(n), **settings)


def bpe_runs():
    """Runs of one character for every splitter."""
    units = {"letters": "a", "spaces": " ", "line ends": "\n", "emoji": "\U0001f44d"}
    return [(f"a run of {name}, BPE of {kind}", "encode_pieces", 1000,
             bpe_text(lambda n, unit=unit: unit * n, splitter=splitter))
            for kind, splitter in SPLITTERS.items() for name, unit in units.items()]


def literal(folder, n):
    """A text that matches a long literal except its last letter, at every position."""
    return bpe(folder, 30, "a" * 2 * n, dict(type="Sequence", pretokenizers=[
        dict(type="Split", pattern=dict(String="a" * n + "b"), behavior="Isolated", invert=False), BYTES]))


def replace(content):
    return dict(type="Replace", pattern=dict(String="a"), content=content)


def word_level(folder, n, text=""):
    folder.mkdir()
    tokens = ["<unk>", "a"] + [f"word{i}" for i in range(n)]
    (folder / "tokenizer.json").write_text(json.dumps(dict(
        pre_tokenizer=dict(type="Sequence", pretokenizers=[
            dict(type="WhitespaceSplit"), dict(type="Punctuation", behavior="Isolated")]),
        model=dict(type="WordLevel", unk_token="<unk>", vocab={w: i for i, w in enumerate(tokens)}))))
    (folder / "text.txt").write_text(text)
    return folder


def head(folder, n):
    """A .npy file whose header is padded with n spaces, at most 64 KB."""
    folder.mkdir()
    text = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }" + b" " * n + b"\n"
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x02\0" + struct.pack("<I", len(text)) + text +
                                   bytes(4))
    return folder / "x.npy"


def fortran(folder, n):
    """A .npy file in Fortran order."""
    folder.mkdir()
    text = repr({"descr": "<f4", "fortran_order": True, "shape": (n, 8)}).encode()
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x02\0" + struct.pack("<I", len(text)) + text +
                                   bytes(4 * 8 * n))
    return folder / "x.npy"


def texts(make, text):
    return lambda folder, n: make(folder, 0, text=text(n))


# name, kind of growth.c, 1x, maker
READ = [
    ("tensors of a safetensors file", "names", 120, tensors),
    ("a tensor's name", "names", 1000, long_name),
    ("metadata", "names", 200, metadata),
    ("tensors of a GGUF file", "gguf", 120, gguf(tensors=lambda n: [f"blk.{i}.w" for i in range(n)])),
    ("keys of a GGUF file", "gguf", 200,
     gguf(keys=lambda n: [(f"key {i}", struct.pack("<IB", 0, 1)) for i in range(n)])),
    ("strings of a GGUF file", "gguf", 200, gguf(keys=gguf_words)),
    ("tensors beside a module's state", "state", 120, state),
    ("layers of a BERT model", "model", 8, write_bert),
    ("layers of a checkpoint", "checkpoint", 12, own),
    ("depth of config.json", "shape", 120, deep),
    ("fields of config.json", "shape", 200, wide),
    ("lines of vocab.txt", "pieces", 250, vocab_txt),
    ("tokens of tokenizer.json", "pieces", 200, tokenizer_json),
    ("tokens of both", "pieces", 150, both_files),
    ("added tokens", "pieces", 60, lambda f, n: tokenizer_json(f, 0, added=n)),
    ("normalized added tokens", "pieces", 60, lambda f, n: tokenizer_json(f, 0, n, True)),
    ("special tokens named again", "pieces", 60, named),
    ("words of a WordLevel vocabulary", "words", 200, word_level),
    ("words of a text", "encode_pieces", 200, texts(vocab_txt, lambda n: "ab cab, " * n)),
    ("length of a word", "encode_pieces", 500, texts(vocab_txt, lambda n: "abc" * n)),
    ("combining marks", "encode_pieces", 300, texts(vocab_txt, lambda n: "a" + "\u0301\u0323" * n)),
    ("special tokens of a text", "encode_pieces", 200, texts(vocab_txt, lambda n: "[SEP]" * n)),
    ("almost special tokens", "encode_pieces", 200, texts(vocab_txt, lambda n: "[SE" * n)),
    ("a text with normalized added tokens", "encode_pieces", 100,
     lambda f, n: tokenizer_json(f, 0, 3, True, "added1 ADDED2 " * n)),
    ("words of a text, WordLevel", "encode_words", 200, texts(word_level, lambda n: "a word, " * n)),
    ("length of a word, WordLevel", "encode_words", 500, texts(word_level, lambda n: "abc" * n)),
    ("punctuation, WordLevel", "encode_words", 300, texts(word_level, lambda n: ",." * n)),
    ("merges of BPE", "pieces", 200, bpe),
    ("words of a text, BPE", "encode_pieces", 300, bpe_text(lambda n: "aba ab, " * n)),
    ("length of a word, BPE", "encode_pieces", 2000, bpe_text(lambda n: "a" * n)),
    ("white space, BPE", "encode_pieces", 2000, bpe_text(lambda n: "a" + " " * n + "\n b")),
    ("combining marks, BPE", "encode_pieces", 600, bpe_text(lambda n: "a" + "\u0301\u0323" * n)),
    ("length of a text, BPE of pieces", "encode_pieces", 1000,
     bpe_text(lambda n: "aab ba" * n, splitter=SPLITTERS["pieces"])),
    ("normalized added tokens of a text, BPE", "encode_pieces", 200,
     bpe_text(lambda n: "\u3042a  " * n, added=["  "], splitter=SPLITTERS["GPT-4o"])),
    ("a letter of either case, BPE", "encode_pieces", 2000,
     bpe_text(lambda n: "a" * n, splitter=splits("(?i:a)"))),
    *bpe_runs(),
    ("a literal that nearly matches, BPE", "encode_pieces", 1000, literal),
    ("a normalizer that writes more, BPE", "encode_pieces", 600,
     bpe_text(lambda n: "ab" * n, normalizer=replace("bbb"))),
    ("head of a .npy file", "npy", 1000, head),
    ("a .npy file in Fortran order", "npy", 300, fortran),
]


# name, kind, bytes of a text, maximum instructions per additional byte, maker
HOSTILE = [
    ("a text beyond the most tokens", "encode_first", 4000, 100, texts(vocab_txt, lambda n: "cab " * (n // 4))),
    ("a text beyond the most tokens, BPE", "encode_first", 4000, 200, bpe_text(lambda n: "aab " * (n // 4))),
    ("ways that match the same", "encode_refused", 300, 100_000,
     bpe_text(lambda n: ("a" * 13 + "c") * (n // 14), splitter=splits("(?:a|a){14}[bd]|a"))),
    ("ways back", "encode_refused", 300, 100_000,
     bpe_text(lambda n: "a" * n, splitter=splits("(?:aa?)+[bd]|a"))),
    ("a normalizer that fills memory", "encode_refused", 40_000, 200,
     bpe_text(lambda n: "a" * n, normalizer=replace("b" * 60))),
]


def conllu(word, last="no word\n"):
    """Sentences by word(n), then a line at which the program stops after it has read all
    sentences."""
    def make(folder, n):
        folder.mkdir()
        (folder / "x.conllu").write_text(word(n) + last)
        return ["heads", MODEL, "--conllu", folder / "x.conllu"], BAD_INPUT
    return make


def line(i, head=0, relation="nsubj", misc="_"):
    return f"{i}\tcat\t_\t_\t_\t_\t{head}\t{relation}\t_\t{misc}\n"


def token_file(name, write):
    def make(folder, n):
        folder.mkdir()
        write_npy(folder / "x.npy", (1, 1), [1])
        (folder / name).write_text(write(n))
        return ["view", "--attention", folder / "x.npy", "--tokens", folder / name], BAD_INPUT
    return make


def starts(folder, n):
    """Sequences whose starts decrease repeatedly. Only the descriptor's check rejects them."""
    folder.mkdir()
    write_npy(folder / "x.npy", (2 * n, 2), [0] * 4 * n)
    return ["run", "--x", folder / "x.npy", "--rope", "--query-starts",
            ",".join(["0", str(2 * n)] * n)], USAGE


USAGE, BAD_INPUT = 2, 4
# name, 1x, maker of arguments and exit code
RUN = [
    ("sentences of CoNLL-U", 100, conllu(lambda n: (line(1) + line(2, 1) + "\n") * n)),
    ("words of a sentence", 200, conllu(lambda n: "".join(line(i, i - 1) for i in
                                                          range(1, n + 1)) + "\n")),
    ("fields in MISC", 500, conllu(lambda n: line(1, misc="Coref=1|" * n) + "\n")),
    ("lines of a tokens file", 300, token_file("x.txt", lambda n: "cat\n" * n)),
    ("tokens of a JSON list", 300, token_file("x.json", lambda n: json.dumps(["cat"] * n))),
    ("sequences that begin again", 20, starts),
]


# ---- counting -------------------------------------------------------------------------------------

def callgrind(program, *arguments, code=0, options=()):
    """Run a program under callgrind, check its exit code, and return the output files."""
    out = FOLDER / "callgrind"
    done = subprocess.run(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options, program,
         *map(str, arguments)], capture_output=True, check=False, cwd=FOLDER, timeout=HANGS,
        env=environment(MHA_THREADS="1", MHA_ISA="portable"))
    result = Result(done)
    said = [text for text in result.errors if not text.startswith("==")]
    return out, check(result.code == code, f"{program}: exit {result.code}, {said}")


def total(path):
    return int(re.search(r"^(?:summary|totals): (\d+)", path.read_text(), re.M).group(1))


def judge(name, counts):
    a, b, c = counts
    exponent = math.log((c - b) / max(b - a, 1), 4) if c > b else 0.0
    print(f"{exponent:5.2f}  {name}: " + ", ".join(f"{count:,}" for count in counts))
    check(exponent <= MOST, f"{name} grow with exponent {exponent:.2f}, at most {MOST} is right")
    check(c - b > 10000, f"{name}: {c - b} instructions more: nothing is measured")


def sizes(least):
    return [least * SCALE * factor for factor in (1, 4, 16)]


def hostile():
    arguments = []
    for place, (_, kind, least, _, make) in enumerate(HOSTILE):
        for n in (least, least, 2 * least):  # the first run tidies the heap after the previous one
            arguments += [kind, make(FOLDER / f"hostile-{place}-{len(arguments)}", n)]
    out, good = callgrind(GROWTH, *arguments, options=["--dump-after=mark"])
    for place, (name, _, least, most, _) in enumerate(HOSTILE if good else []):
        a, b = (total(FOLDER / f"{out.name}.{3 * place + i}") for i in (3, 4))
        print(f"{(b - a) / least:9,.0f} instructions a byte, {name}")
        check(b - a <= most * least, f"{name}: {(b - a) / least:,.0f} instructions a byte, at most {most:,} are right")


def read_all():
    arguments = []
    for place, (_, kind, least, make) in enumerate(READ):
        limit = 1900 if make is deep else 65000 if make is head else math.inf
        for n in sizes(least):
            path = make(FOLDER / f"{place}-{n}", n if n <= limit else n // SCALE)
            # Run the first of three twice: it tidies the heap after the previous one.
            arguments += [kind, path] * (2 if n == sizes(least)[0] else 1)
    out, good = callgrind(GROWTH, *arguments, options=["--dump-after=mark"])
    if not good:
        return
    # The first dump is the start of the program.
    parts = [total(FOLDER / f"{out.name}.{i + 2}") for i in range(len(arguments) // 2)]
    for place, (name, *_) in enumerate(READ):
        judge(name, parts[4 * place + 1:4 * place + 4])


def run_all():
    for place, (name, least, make) in enumerate(RUN):
        counts = []
        for n in sizes(least):
            arguments, code = make(FOLDER / f"run-{place}-{n}", n)
            out, _ = callgrind(PROGRAM, *arguments, code=code)
            counts.append(total(out))
        judge(name, counts)


if not shutil.which("valgrind"):
    print("skipped: valgrind is not installed (a package of Debian); nothing is counted")
    sys.exit(77)
read_all()
hostile()
run_all()
finish()
