#!/usr/bin/env python3
"""Write the initial inputs of fuzzing: seeds.py FOLDER creates FOLDER/TARGET/NAME.

A few small valid inputs of each kind, and inputs that once caused faults. Only this script is stored.
"""
import base64
import json
import pathlib
import random
import struct
import sys
import zlib

CUT = b"\n=8<=\n"


def parts(*pieces):
    return CUT.join(piece.encode() if isinstance(piece, str) else piece for piece in pieces)


# ---- states of heads --------------------------------------------------------------------------

def of_state():
    """Kind 0 is a measured state with some overwritten words; kind 1 is a state of given bytes."""
    yield "whole", bytes([0, 1, 1, 1, 2, 1, 1, 2])
    yield "no-heads", bytes([0, 0, 0, 1, 1, 0, 0, 0])
    yield "means", bytes([0, 2, 1, 0, 2, 0, 0, 0])
    # places 3, ... of the head: scores, layers, offsets, near, rank, relations, corpus, heads
    for at in range(3, 14):
        yield f"word-{at}", bytes([0, 1, 1, 1, 2, 1, 1, 2, 1, at, 33, 2, at % 2])
    for at, bit in ((500, 62), (3000, 53), (7000, 63), (9000, 61)):
        yield f"far-{at}", bytes([0, 1, 0, 1, 3, 0, 1, 3, 0]) + struct.pack(">I", at) + bytes([bit, 1, 0])
    yield "short", bytes([0, 1, 1, 1, 2, 1, 1, 2, 1, 40, 5, 2, 0, 0, 0, 0, 200, 1])
    words = [0x534441454841484D, 1, 0, 29, 1, 1, 2, 1, 0, 0, 0, 0, 0]
    yield "bytes", b"\1" + struct.pack(f"<{len(words)}Q", *words)
    yield "none", b"\1"


# ---- safetensors, .npy ------------------------------------------------------------------------

def floats(count, seed=0):
    draw = random.Random(seed)
    return struct.pack(f"<{count}f", *(draw.gauss(0, 1) for _ in range(count)))


def as_floats(size, kind=None):
    """For fill of gguf(): finite numbers in float32."""
    return floats(size // 4)


def product(shape):
    count = 1
    for n in shape:
        count *= n
    return count


def safetensors(tensors, metadata=None, pad=0):
    """`tensors` maps names to (dtype, shape, bytes); `pad` is the number of spaces after the
    header."""
    header, data = {}, b""
    if metadata:
        header["__metadata__"] = metadata
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape),
                        "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header, separators=(",", ":")).encode() + b" " * pad
    return struct.pack("<Q", len(text)) + text + data


def f32(*shape, seed=0):
    return "F32", shape, floats(product(shape), seed)


def npy(shape, dtype="<f4", content=None, version=1, fortran=False):
    size = int(dtype[2:])
    if content is None:
        content = floats(product(shape)) if dtype == "<f4" else bytes(size * product(shape))
    text = repr({"descr": dtype, "fortran_order": fortran, "shape": tuple(shape)}).encode()
    width = 2 if version == 1 else 4
    text += b" " * (-(len(text) + 9 + width) % 64) + b"\n"
    return (b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text
            + content)


def of_safetensors():
    yield "empty", safetensors({})
    yield "some", safetensors({"a": f32(2, 3), "b": ("I64", (1,), bytes(8)),
                               "c": ("BOOL", (3,), b"\1\0\1"), "d": ("BF16", (), b"\0\0")},
                              {"format": "pt", "": "x"})
    yield "zero", safetensors({"a": f32(0, 3), "b": f32(2)})
    yield "unknown", safetensors({"a": ("F8_E4M3", (3,), bytes(3)), "b": f32(1, 1, 1, 1, 1, 1, 1)})
    for pad in (1, 2, 4):  # every tensor has an odd offset
        yield f"unaligned-{pad}", safetensors({"a": f32(5), "b": ("F64", (2,), bytes(16))}, pad=pad)
    yield "many", safetensors({f"layer.{i}.weight": f32(1) for i in range(300)})
    yield "escapes", safetensors({"a\u0000b\u20ac\"\\": f32(1)})


def png(colour, depth, channels, interlace=0, width=5, height=3, more=b""):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    row = b"\1" + bytes(i % 256 for i in range((width * channels * depth + 7) // 8))
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + more + chunk(b"IDAT", zlib.compress(row * height * 2)) +
            chunk(b"IEND", b""))


def jpeg(kind, components, more=b""):
    """Blocks of 8 x 8 whose coefficients are all 0, each of two bits."""
    def segment(marker, data):
        return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data
    tables = segment(0xDB, b"\0" + b"\1" * 64) + b"".join(
        segment(0xC4, bytes([table, 1]) + bytes(15) + b"\0") for table in (0, 0x10))
    frame = struct.pack(">BHHB", 8, 8, 8, components) + b"".join(bytes([i, 0x11, 0]) for i in range(components))
    scan = bytes([components]) + b"".join(bytes([i, 0]) for i in range(components)) + (b"\0\0\0" if kind == 0xC2 else b"\0\x3f\0")
    return b"\xff\xd8" + more + tables + segment(kind, frame) + segment(0xDA, scan) + bytes([255 >> 2 * components]) + b"\xff\xd9"


def of_image():
    for name, colour, depth, channels in (("grey", 0, 8, 1), ("bits", 0, 1, 1), ("wide", 0, 16, 1), ("rgb", 2, 8, 3),
                                          ("alpha", 6, 8, 4), ("grey-alpha", 4, 16, 2)):
        yield name, png(colour, depth, channels)
    palette = struct.pack(">I", 6) + b"PLTE\0\1\2\3\4\5" + struct.pack(">I", zlib.crc32(b"PLTE\0\1\2\3\4\5"))
    yield "palette", png(3, 8, 1, more=palette)
    yield "interlaced", png(2, 8, 3, interlace=1)
    yield "huge", png(0, 1, 1, width=30000)[:60]
    exif = b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\6\0\0"
    chunk = b"eXIf" + exif
    yield "turned", png(2, 8, 3, more=struct.pack(">I", len(exif)) + chunk + struct.pack(">I", zlib.crc32(chunk)))
    yield "turned-jpeg", jpeg(0xC0, 3, b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif)
    for name, kind, components in (("jpeg", 0xC0, 1), ("colours", 0xC0, 3), ("progressive", 0xC2, 1), ("cmyk", 0xC0, 4)):
        yield name, jpeg(kind, components)


def wav(encoding, bits, data, channels=1, rate=16000, more=b""):
    head = struct.pack("<HHIIHH", encoding, channels, rate, rate * bits // 8, bits // 8, bits)
    chunks = b"WAVEfmt " + struct.pack("<I", len(head)) + head + more + b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


def of_audio():
    yield "16", wav(1, 16, bytes(range(200)))
    yield "24", wav(1, 24, bytes(range(90)))
    yield "32", wav(1, 32, bytes(range(80)))
    yield "floats", wav(3, 32, struct.pack("<4f", 0, .5, -1, 3))
    yield "not-finite", wav(3, 32, struct.pack("<2f", 0, float("inf")))
    yield "list", wav(1, 16, bytes(40), more=b"LIST" + struct.pack("<I", 3) + b"abc\0")
    yield "stereo", wav(1, 16, bytes(40), channels=2)
    yield "empty", wav(1, 16, b"")


def of_npy():
    for dtype in ("<f2", "<f4", "<f8", "|i1", "<i4", "<i8", "|u1", "|b1"):
        yield dtype[1:], npy((2, 3), dtype)
    yield "scalar", npy(())
    yield "empty", npy((0, 4))
    yield "six", npy((1, 2, 1, 2, 1, 1))
    yield "fortran", npy((2, 3, 4), fortran=True)
    yield "version-2", npy((3,), version=2)
    yield "version-3", npy((3,), version=3)
    yield "big-endian", npy((3,), ">f4", bytes(12))


# ---- GGUF -------------------------------------------------------------------------------------

# Types that the library decodes, and one that it does not: number, elements and bytes per block.
BLOCKS = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q4_1": (3, 32, 20),
          "Q5_0": (6, 32, 22), "Q5_1": (7, 32, 24), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144),
          "Q5_K": (13, 256, 176), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2), "Q2_K": (10, 256, 84),
          "Q3_K": (11, 256, 110), "IQ1_S": (19, 256, 50), "IQ1_M": (29, 256, 56), "IQ2_XXS": (16, 256, 66),
          "IQ2_XS": (17, 256, 74), "IQ2_S": (22, 256, 82), "IQ3_XXS": (18, 256, 98), "IQ3_S": (21, 256, 110),
          "IQ4_NL": (20, 32, 18), "IQ4_XS": (23, 256, 136), "TQ1_0": (34, 256, 54), "TQ2_0": (35, 256, 66),
          "MXFP4": (39, 32, 17), "NVFP4": (40, 64, 36), "Q8_K": (15, 256, 292)}
# Type of a value: number and form.
NUMBERS = {"u8": (0, "B"), "i8": (1, "b"), "u16": (2, "H"), "i16": (3, "h"), "u32": (4, "I"),
           "i32": (5, "i"), "f32": (6, "f"), "bool": (7, "?"), "u64": (10, "Q"), "i64": (11, "q"),
           "f64": (12, "d")}


def gguf_string(text):
    return struct.pack("<Q", len(text.encode())) + text.encode()


def gguf_value(kind, value):
    number, form = (8, "") if kind == "string" else NUMBERS[kind]
    items = value if isinstance(value, list) else [value]
    head = struct.pack("<IIQ", 9, number, len(items)) if items is value else struct.pack("<I", number)
    return head + b"".join(struct.pack("<" + form, item) if form else gguf_string(item) for item in items)


def gguf(tensors=(), metadata=(), version=3, alignment=32, fill=None):
    """`tensors` has (name, type, dims), `metadata` has (key, kind, value or list). fill(bytes, type)
    returns a tensor's content, by default random bytes."""
    if alignment != 32:
        metadata = [*metadata, ("general.alignment", "u32", alignment)]
    text = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, kind, value in metadata:
        text += gguf_string(key) + gguf_value(kind, value)
    data = b""
    for name, kind, dims in tensors:
        number, elements, size = BLOCKS[kind]
        data += bytes(-len(data) % alignment)
        text += gguf_string(name)
        text += struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, len(data))
        bytes_ = product(dims) // elements * size
        data += fill(bytes_, kind) if fill else random.Random(number).randbytes(bytes_)
    return text + bytes(-len(text) % alignment) + data


def gguf_parts(tensors, metadata, parts, fill=None):
    """The files of a split model, as llama.cpp writes them: the first has the metadata."""
    for part in range(parts):
        place = [("split.no", "u16", part), ("split.count", "u16", parts), ("split.tensors.count", "i32", len(tensors))]
        yield gguf(tensors[part::parts], [*metadata, *place] if part == 0 else place, fill=fill)


def experts_of(blocks, width, count, shared, together, inner=32):
    """Tables of experts that begin with GGUF's dimensions, columns first. together: gate and up in one table."""
    tables = {"gate_up_exps": (width, 2 * inner, count)} if together else {
        "gate_exps": (width, inner, count), "up_exps": (width, inner, count)}
    tables |= {"down_exps": (inner, width, count)}
    if shared:
        tables |= {"gate_shexp": (width, inner), "up_shexp": (width, inner), "down_shexp": (inner, width)}
    return {"ffn_gate_inp": ("F32", (width, count)),
            **{f"ffn_{name}": (blocks, shape) for name, shape in tables.items()}}


def gguf_model(kind="llama", blocks="F32", width=4, fill=None, layers=1, experts=0, shared=False, together=False,
               parts=0, **changes):
    """A model with a byte-level tokenizer. `blocks` stores matrices in blocks, and `parts` returns a
    list of files."""
    if experts:
        changes = {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": 32,
                   "feed_forward_length": 32, **({"expert_shared_feed_forward_length": 32} if shared else {}), **changes}
    sizes = {"block_count": layers, "context_length": 8, "embedding_length": width, "feed_forward_length": 6,
             "attention.head_count": 2, "attention.head_count_kv": 1, "attention.key_length": 2,
             "rope.dimension_count": 2}
    keys = [("general.architecture", "string", kind)]
    keys += [(f"{kind}.{key}", "u32", value) for key, value in {**sizes, **changes}.items()]
    keys += [(f"{kind}.attention.layer_norm_rms_epsilon", "f32", 1e-5),
             ("tokenizer.ggml.model", "string", "gpt2"), ("tokenizer.ggml.pre", "string", "smollm"),
             ("tokenizer.ggml.tokens", "string", ["<s>", "a", "b", "\u0120", "\u0120b"]),
             ("tokenizer.ggml.token_type", "i32", [3, 1, 1, 1, 1]),
             ("tokenizer.ggml.merges", "string", ["\u0120 b"]),
             ("tokenizer.ggml.bos_token_id", "u32", 0), ("tokenizer.ggml.add_bos_token", "bool", 1)]
    shapes = {"attn_output": (4, width), "ffn_down": (6, width), "attn_norm": (width,),
              "ffn_norm": (width,), "attn_q": (width, 4), "attn_k": (width, 2), "attn_v": (width, 2),
              "ffn_gate": (width, 6), "ffn_up": (width, 6)}
    if kind == "qwen3moe":
        shapes |= {"attn_q_norm": (2,), "attn_k_norm": (2,)}
    if experts:
        shapes = {name: shape for name, shape in shapes.items() if name not in ("ffn_gate", "ffn_up", "ffn_down")}
    tables = {name: (blocks if len(shape) > 1 and shape[0] == width else "F32", shape) for name, shape in shapes.items()}
    if experts:
        tables |= experts_of(blocks, width, experts, shared, together)
    tensors = [("output_norm.weight", "F32", (width,)), ("token_embd.weight", blocks, (width, 5))]
    tensors += [(f"blk.{layer}.{name}.weight", *table) for layer in range(layers) for name, table in tables.items()]
    return list(gguf_parts(tensors, keys, parts, fill)) if parts else gguf(tensors, keys, fill=fill)


def of_gguf():
    yield "model", gguf_model()
    for kind in ("Q4_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4"):
        model = gguf_model(blocks=kind, width=32)
        yield f"model-of-{kind}", model[:-1] + b"\0"  # the last byte selects the arithmetic
        yield f"model-of-{kind}-int8", model[:-1] + b"\1"
    yield "parts", CUT.join(gguf_model(parts=2))
    for kind, more in (("llama", {}), ("qwen3moe", {"together": True}), ("granitemoe", {"shared": True})):
        yield f"experts-{kind}", gguf_model(kind, experts=3, **more)
        for blocks in ("Q4_0", "Q8_0"):
            model = gguf_model(kind, blocks, 32, experts=3, **more)
            yield f"experts-{kind}-{blocks}", model[:-1] + b"\0"
            yield f"experts-{kind}-{blocks}-int8", model[:-1] + b"\1"
    yield "experts-of-another-number", gguf_model("llama", experts=3, expert_count=4)
    yield "more-experts-used-than-there-are", gguf_model("llama", experts=3, expert_used_count=9)
    yield "model-of-two-layers", gguf_model(block_count=2)
    yield "model-of-another-kind", gguf_model("gemma2")
    yield "empty", gguf()
    yield "version-2", gguf([("a", "F32", (3,))], version=2)
    yield "numbers", gguf(metadata=[(kind, kind, 1) for kind in NUMBERS])
    yield "arrays", gguf(metadata=[(kind, kind, [0, 1, 1]) for kind in NUMBERS])
    yield "strings", gguf(metadata=[("general.name", "string", "tiny"), ("none", "string", []),
                                    ("tokens", "string", ["<s>", "", "a", "\u0120b"])])
    yield "shapes", gguf([(f"a{n}", "F16", (2,) * n) for n in range(5)])
    yield "alignment", gguf([("a", "BF16", (3,)), ("b", "F32", (2, 2))], alignment=1)
    for kind, (_, elements, _) in BLOCKS.items():
        yield kind, gguf([("a", kind, (elements, 2)), ("b", "F32", (1,))],
                         [("general.architecture", "string", "llama")])


# ---- folders ----------------------------------------------------------------------------------

VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "##s", "a", "##b", "!", "\u4e2d"]


def wordpiece():
    return {"version": "1.0", "truncation": None, "padding": None,
            "added_tokens": [{"id": i, "content": VOCAB[i], "single_word": False, "lstrip": False,
                              "rstrip": False, "normalized": False, "special": True}
                             for i in range(5)],
            "normalizer": {"type": "BertNormalizer", "clean_text": True,
                           "handle_chinese_chars": True, "strip_accents": None, "lowercase": True},
            "pre_tokenizer": {"type": "BertPreTokenizer"},
            "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
            "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                      "max_input_chars_per_word": 100, "vocab": {w: i for i, w in enumerate(VOCAB)}}}


def wordlevel(pre):
    return {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": pre,
            "post_processor": None, "decoder": None,
            "model": {"type": "WordLevel", "unk_token": "<unk>",
                      "vocab": {"<s>": 0, "<unk>": 1, "a": 2, "b": 3, ".": 4, " ": 5}}}


FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")


def bpe(pre, merges, tokens, added=(("<s>", *FLAGS),), settings=None, **more):
    """A BPE tokenizer: tokens, then the results of merges, then added tokens with their flags."""
    names = tokens + ["".join(pair) for pair in merges]
    names += [text for text, *_ in added if text not in names]
    added_tokens = [{"id": names.index(text), "content": text,
                     **{flag: flag in flags for flag in FLAGS}} for text, *flags in added]
    start = names.index("<s>")
    parts_of = [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {"version": "1.0", "added_tokens": added_tokens, "normalizer": None, "pre_tokenizer": pre,
            "post_processor": {"type": "Sequence", "processors": [
                {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
                {"type": "TemplateProcessing", "single": parts_of,
                 "pair": parts_of + [{"Sequence": {"id": "B", "type_id": 1}}],
                 "special_tokens": {"<s>": {"id": "<s>", "ids": [start], "tokens": ["<s>"]}}}]},
            "decoder": None, **more,
            "model": {"type": "BPE", "unk_token": tokens[0], "fuse_unk": True, "byte_fallback": False,
                      "ignore_merges": True, "vocab": {t: i for i, t in enumerate(names)},
                      "merges": merges, **(settings or {})}}


def bpe_kinds():
    letters = ["?", "a", "b", "t", "h", "e", "\u0120", "\u00c3", "\u00a9", "1"]
    merges = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("a", "a"), ("aa", "aa")]
    split = {"type": "Split", "behavior": "Isolated", "invert": False,
             "pattern": {"Regex": r"(?i:'s)|[^\r\n\p{L}]?\p{L}+|\p{N}{1,3}| ?[^\s]+|\s+(?!\S)|\s+"}}
    yield "bytes", bpe({"type": "Sequence", "pretokenizers": [
        {"type": "Digits", "individual_digits": True}, split,
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}]},
        merges, letters, normalizer={"type": "NFC"})
    yield "pieces", bpe({"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                         "split": True}, [("\u2581", "a"), ("a", "b")], ["?", "\u2581", "a", "b"],
                        normalizer={"type": "Sequence", "normalizers": [
                            {"type": "Prepend", "prepend": "\u2581"},
                            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]})
    # Added tokens of every kind, in the text and in the normalized text; some are prefixes of others.
    added = [("<s>", "special"), ("  ", "normalized"), ("th", "single_word", "normalized"),
             ("the", "rstrip"), ("<mask>", "lstrip", "special"), ("\u00e9!", "normalized", "lstrip")]
    roberta = bpe({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                   "use_regex": True}, merges, letters, added, normalizer={
                       "type": "Replace", "pattern": {"Regex": "[A-Z]+?x{2,}|(?<!a)b"}, "content": "\u00e9"})
    roberta["post_processor"] = {"type": "RobertaProcessing", "sep": ["<s>", 15], "cls": ["<s>", 15],
                                 "trim_offsets": True, "add_prefix_space": False}
    yield "bytes-added", roberta
    yield "suffix", bpe({"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
                        [("t", "h"), ("th", "e</w>")], [*letters, "e</w>", "a</w>"],
                        settings={"end_of_word_suffix": "</w>", "ignore_merges": False}, normalizer={"type": "Lowercase"})
    yield "fallback", bpe({"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious",
                           "invert": False}, [("\u2581", "a"), ("a", "b")],
                          ["<unk>", "\u2581", "a", "b", *(f"<0x{b:02X}>" for b in range(256))],
                          [("<s>", "special"), ("\n\n",), ("\u2581\u2581", "normalized")],
                          {"byte_fallback": True, "ignore_merges": False},
                          normalizer={"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"})


def unigram():
    """Every step of unigram models. The charsmap writes "b" for "a" and nothing for U+0301."""
    units, first, second = [0] * 1024, 256, 512
    units[0] = first << 10
    units[first ^ 0x61] = (first ^ 0x61 ^ second) << 10 | 1 << 8 | 0x61
    units[first ^ 0xCC] = (first ^ 0xCC ^ 768) << 10 | 0xCC
    units[768 ^ 0x81] = (768 ^ 0x81 ^ second) << 10 | 1 << 8 | 0x81
    units[second] = 1 << 31
    charsmap = struct.pack("<1025I", 4096, *units) + b"b\0"
    tokens = ["<unk>", "\u2581", "a", "b", "ab", "\u2581the", "<s>", *(f"<0x{b:02X}>" for b in range(0xC0, 0xD0))]
    normalizers = [{"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "NFKD"},
                   {"type": "StripAccents"}, {"type": "Lowercase"},
                   {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}]
    return {"added_tokens": [{"id": 6, "content": "<s>", "special": True}],
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}]},
            "model": {"type": "Unigram", "unk_id": 0, "byte_fallback": True,
                      "vocab": [[token, -1.5 * i] for i, token in enumerate(tokens)]}}


def of_tokenizer():
    text = "The cats, a\u0301b \u4e2d [MASK]! \ufffd\u200d"
    config = json.dumps({"do_lower_case": True, "model_max_length": 512, "unk_token": "[UNK]"})
    yield "json", parts("j\0", json.dumps(wordpiece()), config, text)
    yield "pair", parts("j\xff".encode("latin-1"), json.dumps(wordpiece()), "", text)
    yield "vocab", parts("v\x2a", "\n".join(VOCAB) + "\n", config, text)
    yield "both", parts("b\x06", "\n".join(VOCAB), "", text)
    for name, made in bpe_kinds():
        yield name, parts("j\0", json.dumps(made), "", "the  aaaa\u00e9 <s> e\u0301 123's\n\n \U0001d165 <mask>ab")
        yield f"{name}-pair", parts("j\xff".encode("latin-1"), json.dumps(made), "", "a <s>  the")
    for flags in "\0", "\xff":
        yield f"unigram-{ord(flags)}", parts(f"j{flags}".encode("latin-1"), json.dumps(unigram()), "",
                                             "The  aabx\u00e9\ufb01 <s> e\u0301\r\n\U0001d165 ")
    for name, pre in {"space": {"type": "WhitespaceSplit"},
                      "characters": {"type": "Split", "pattern": {"Regex": "."},
                                     "behavior": "Isolated", "invert": False},
                      "none": None}.items():
        yield f"words-{name}", parts("j\0", json.dumps(wordlevel(pre)), "{}", "a b . <unk> c")


def bert(width=4, layers=1, heads=2, ff=6, vocabulary=len(VOCAB), positions=16, types=2):
    config = {"architectures": ["BertModel"], "model_type": "bert", "hidden_size": width,
              "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": ff,
              "vocab_size": vocabulary, "max_position_embeddings": positions,
              "type_vocab_size": types, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
              "pad_token_id": 0, "position_embedding_type": "absolute"}
    tensors = {"embeddings.word_embeddings.weight": f32(vocabulary, width),
               "embeddings.position_embeddings.weight": f32(positions, width),
               "embeddings.token_type_embeddings.weight": f32(types, width),
               "embeddings.LayerNorm.weight": f32(width), "embeddings.LayerNorm.bias": f32(width)}
    for layer in range(layers):
        at = f"encoder.layer.{layer}."
        for name, rows, cols in (("attention.self.query", width, width),
                                 ("attention.self.key", width, width),
                                 ("attention.self.value", width, width),
                                 ("attention.output.dense", width, width),
                                 ("intermediate.dense", ff, width),
                                 ("output.dense", width, ff)):
            tensors[at + name + ".weight"] = f32(rows, cols)
            tensors[at + name + ".bias"] = f32(rows)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            tensors[at + name + ".weight"] = f32(width)
            tensors[at + name + ".bias"] = f32(width)
    return config, tensors


def towers():
    """An encoder and a decoder in one folder: Marian, whose positions are computed, BART and T5."""
    sizes = {"vocab_size": len(VOCAB), "d_model": 4}
    bart = {**sizes, "max_position_embeddings": 14, "decoder_start_token_id": 2, "bad_words_ids": [[1]], "forced_bos_token_id": 3,
            **{f"{part}_{name}": size for part in ("encoder", "decoder")
               for name, size in dict(layers=1, attention_heads=2, ffn_dim=3).items()}}
    shapes = {"model.shared.weight": (len(VOCAB), 4), "final_logits_bias": (1, len(VOCAB))}
    for part, attention in (("encoder", ["self_attn"]), ("decoder", ["self_attn", "encoder_attn"])):
        at = f"model.{part}.layers.0."
        for name, size in {**{f"{of}.{p}_proj": (4, 4) for of in attention for p in ("q", "k", "v", "out")},
                           "fc1": (3, 4), "fc2": (4, 3), "final_layer_norm": (4,),
                           **{f"{of}_layer_norm": (4,) for of in attention}}.items():
            shapes |= {f"{at}{name}.weight": size, f"{at}{name}.bias": size[:1]}
    ones = {name: f32(*shape) for name, shape in shapes.items()}
    yield {"model_type": "marian", "scale_embedding": True, "activation_function": "swish", **bart}, ones
    own = {f"model.{part}.{name}": f32(*shape) for part in ("encoder", "decoder")
           for name, shape in {"embed_positions.weight": (16, 4), "layernorm_embedding.weight": (4,),
                               "layernorm_embedding.bias": (4,)}.items()}
    yield {"model_type": "bart", **bart}, {**ones, **own}
    shapes = {"shared.weight": (len(VOCAB), 4), "lm_head.weight": (len(VOCAB), 4)}
    for part, attention in (("encoder", ["SelfAttention"]), ("decoder", ["SelfAttention", "EncDecAttention"])):
        at = f"{part}.block.0.layer."
        for i, name in enumerate(attention):
            shapes |= {f"{at}{i}.{name}.{p}.weight": (4, 4) for p in "qkvo"} | {f"{at}{i}.layer_norm.weight": (4,)}
        feed = f"{at}{len(attention)}."
        shapes |= {f"{feed}layer_norm.weight": (4,), f"{feed}DenseReluDense.wi.weight": (3, 4),
                   f"{feed}DenseReluDense.wo.weight": (4, 3), f"{part}.final_layer_norm.weight": (4,),
                   f"{at}0.SelfAttention.relative_attention_bias.weight": (4, 2)}
    yield {"model_type": "t5", **sizes, "d_kv": 2, "d_ff": 3, "num_layers": 1, "num_heads": 2,
           "relative_attention_num_buckets": 4, "relative_attention_max_distance": 9}, {
        name: f32(*shape) for name, shape in shapes.items()}


def encoders():
    """Layers that share weights or a table, embeddings that are projected, windows on both sides."""
    V, sizes = len(VOCAB), {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 4, "intermediate_size": 6,
                            "vocab_size": len(VOCAB), "max_position_embeddings": 14}

    def made(tables, before, layers, linear, norms, extra):
        shapes = {f"{name}.weight": (rows, width) for name, rows, width in tables} | extra
        for layer in layers:
            for name, rows, cols in linear:
                shapes |= {f"{before}{layer}{name}.weight": (rows, cols), f"{before}{layer}{name}.bias": (rows,)}
            for name in norms:
                shapes |= {f"{before}{layer}{name}.{part}": (4,) for part in ("weight", "bias")}
        return {name: f32(*shape) for name, shape in shapes.items()}
    norm, at = ("embeddings.LayerNorm.weight", "embeddings.LayerNorm.bias"), "encoder.embedding_hidden_mapping_in."
    yield {"model_type": "albert", "embedding_size": 3, **sizes}, made(
        [("embeddings.word_embeddings", V, 3), ("embeddings.position_embeddings", 14, 3),
         ("embeddings.token_type_embeddings", 2, 3)], "encoder.albert_layer_groups.0.albert_layers.0.", [""],
        [(f"attention.{name}", 4, 4) for name in ("query", "key", "value", "dense")] + [("ffn", 6, 4), ("ffn_output", 4, 6)],
        ["attention.LayerNorm", "full_layer_layer_norm"],
        {norm[0]: (3,), norm[1]: (3,), f"{at}weight": (4, 3), f"{at}bias": (4,)})
    yield {"model_type": "mpnet", **sizes}, made(
        [("embeddings.word_embeddings", V, 4), ("embeddings.position_embeddings", 14, 4),
         ("encoder.relative_attention_bias", 32, 2)], "encoder.layer.", ["0.", "1."],
        [(f"attention.attn.{name}", 4, 4) for name in "qkvo"] + [("intermediate.dense", 6, 4), ("output.dense", 4, 6)],
        ["attention.LayerNorm", "output.LayerNorm"], {name: (4,) for name in norm})
    yield {"model_type": "deberta-v2", "relative_attention": True, "pos_att_type": "c2p|p2c", "position_buckets": 4,
           "norm_rel_ebd": "layer_norm", "position_biased_input": False, **sizes}, made(
        [("embeddings.word_embeddings", V, 4), ("encoder.rel_embeddings", 8, 4)], "encoder.layer.", ["0.", "1."],
        [(f"attention.self.{name}_proj", 4, 4) for name in ("query", "key", "value", "pos_key", "pos_query")]
        + [("attention.output.dense", 4, 4), ("intermediate.dense", 6, 4), ("output.dense", 4, 6)],
        ["attention.output.LayerNorm", "output.LayerNorm"],
        {name: (4,) for name in (*norm, "encoder.LayerNorm.weight", "encoder.LayerNorm.bias")})
    tensors = made([("embeddings.tok_embeddings", V, 4)], "layers.", ["0.", "1."],
                   [("attn.Wqkv", 12, 4), ("attn.Wo", 4, 4), ("mlp.Wi", 12, 4), ("mlp.Wo", 4, 6)],
                   ["attn_norm", "mlp_norm"], {"embeddings.norm.weight": (4,), "final_norm.weight": (4,)})
    drop = [name for name in tensors if name.endswith("bias") or name.startswith("layers.0.attn_norm")]
    yield {"model_type": "modernbert", "local_attention": 4, "global_attn_every_n_layers": 2, **sizes}, {
        name: tensor for name, tensor in tensors.items() if name not in drop}


def of_model():
    for config, tensors in encoders():
        yield config["model_type"], parts(json.dumps(config), safetensors(tensors), "\n".join(VOCAB) + "\n", "the cats a")
    for config, tensors in towers():
        yield config["model_type"], parts(json.dumps(config), safetensors(tensors), "\n".join(VOCAB) + "\n", "the cats a")
    config, tensors = bert()
    vocabulary = "\n".join(VOCAB) + "\n"
    whole = safetensors(tensors)
    yield "bert", parts(json.dumps(config), whole, vocabulary, "the cats a")
    yield "unaligned", parts(json.dumps(config), safetensors(tensors, pad=1), vocabulary, "the cat")
    config, tensors = bert(positions=4)
    yield "too-long", parts(json.dumps(config), safetensors(tensors), vocabulary, "the cats a")
    half = {name: ("F16", shape, bytes(len(content) // 2))
            for name, (_, shape, content) in tensors.items()}
    yield "half", parts(json.dumps(config), safetensors(half), vocabulary, "the")
    shapes = {
        "gpt2": {"n_layer": 1, "n_head": 2, "n_embd": 4, "n_positions": 8},
        "llama": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                  "hidden_size": 4, "head_dim": 2, "max_position_embeddings": 8},
        "mistral": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "hidden_size": 4, "sliding_window": 3},
        "mixtral": {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
                    "hidden_size": 4, "max_position_embeddings": 8},
        "distilbert": {"n_layers": 1, "n_heads": 2, "dim": 4}}
    for name, fields in shapes.items():
        yield name, parts(json.dumps({"model_type": name, **fields}), b"", b"", b"")


def own():
    """A model in the library's own format, with every setting of layers, and with different numbers
    of heads per layer."""
    config = {"architectures": ["MultiheadTransformer"], "model_type": "multihead", "vocab_size": 5,
              "max_length": 8, "embed_dim": 4, "num_layers": 2, "num_heads": 2, "kv_heads": 2,
              "head_dim": 2, "norm": "rms", "positions": "rotary", "causal": True,
              "layer_heads": [2, 1], "layer_kv_heads": [2, 1],
              "layers": [{"window": True, "left_keys": 3, "sink_keys": 1, "softcap": 2.5,
                          "qk_norm": True, "qk_norm_kind": "rms", "qk_norm_epsilon": 1e-5,
                          "sinks": True, "rotary_dim": 2, "rope_base": 500.0, "rope_factor": 2.0},
                         {"alibi": True, "t5_buckets": 4, "t5_max_distance": 9, "no_rope": True,
                          "scale": 0.5, "scale_given": True}]}
    tensors = {"embed_tokens.weight": f32(5, 4), "norm.weight": f32(4), "lm_head.weight": f32(5, 4)}
    for layer, width in ((0, 4), (1, 2)):
        at = f"layers.{layer}.self_attn"
        tensors |= {f"{at}_norm.weight": f32(4), f"{at}.o_proj.weight": f32(4, width),
                    **{f"{at}.{name}_proj.weight": f32(width, 4) for name in "qkv"}}
    for name, shape in {"0.self_attn.q_norm.weight": (2,), "0.self_attn.k_norm.weight": (2,),
                        "0.self_attn.sinks": (2,), "1.self_attn.alibi_slopes": (1,),
                        "1.self_attn.relative_attention_bias.weight": (4, 1)}.items():
        tensors[f"layers.{name}"] = f32(*shape)
    return config, tensors


def with_experts():
    """Experts in separate tensors, with a norm of each head, or experts in tables, with a norm of
    all heads."""
    config = {"hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
              "head_dim": 2, "intermediate_size": 3, "moe_intermediate_size": 3, "vocab_size": 5,
              "max_position_embeddings": 8, "num_experts": 2, "num_experts_per_tok": 1, "tie_word_embeddings": True}
    at = "model.layers.0."
    shared = {"model.embed_tokens.weight": f32(5, 4), "model.norm.weight": f32(4),
              **{f"{at}{name}_layernorm.weight": f32(4) for name in ("input", "post_attention")},
              **{f"{at}self_attn.{name}_proj.weight": f32(*shape)
                 for name, shape in dict(q=(4, 4), k=(2, 4), v=(2, 4), o=(4, 4)).items()},
              f"{at}mlp.gate.weight": f32(2, 4)}
    each = {f"{at}mlp.experts.{i}.{name}_proj.weight": f32(*shape) for i in range(2)
            for name, shape in dict(gate=(3, 4), up=(3, 4), down=(4, 3)).items()}
    yield {"model_type": "qwen3_moe", **config}, {
        **shared, **each, f"{at}self_attn.q_norm.weight": f32(2), f"{at}self_attn.k_norm.weight": f32(2)}
    scales = {"embedding_multiplier": 2.0, "residual_multiplier": .5, "attention_multiplier": .5, "logits_scaling": 2.0}
    granite = {name.replace("mlp.gate", "block_sparse_moe.router"): tensor for name, tensor in shared.items()}
    yield {"model_type": "granitemoeshared", **config, **scales, "num_local_experts": 2,
           "shared_intermediate_size": 3}, {
        **granite, f"{at}block_sparse_moe.experts.gate_up_proj": f32(2, 6, 4),
        f"{at}block_sparse_moe.experts.down_proj": f32(2, 4, 3), f"{at}shared_mlp.input_linear.weight": f32(6, 4),
        f"{at}shared_mlp.output_linear.weight": f32(4, 3)}
    yield {"model_type": "olmoe", **config}, {
        **shared, f"{at}mlp.experts.gate_up_proj": f32(2, 6, 4), f"{at}mlp.experts.down_proj": f32(2, 4, 3),
        f"{at}self_attn.q_norm.weight": f32(4), f"{at}self_attn.k_norm.weight": f32(2)}


def olmo_hybrid(in_parts):
    """A gated delta net, and attention with norms after its blocks. in_parts: three convolutions."""
    config = {"model_type": "olmo_hybrid", "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2,
              "intermediate_size": 3, "vocab_size": 5, "max_position_embeddings": 8, "tie_word_embeddings": True,
              "linear_key_head_dim": 2, "linear_value_head_dim": 3, "linear_conv_kernel_dim": 2,
              "rope_parameters": {"rope_theta": None}}
    net, layer = "model.layers.0.linear_attn.", "model.layers.1."
    shapes = {**{f"{net}{name}_proj.weight": (rows, 4) for name, rows in dict(q=4, k=4, v=6, g=6, a=2, b=2).items()},
              f"{net}o_proj.weight": (4, 6), f"{net}o_norm.weight": (3,), f"{net}A_log": (2,), f"{net}dt_bias": (2,),
              "model.layers.0.input_layernorm.weight": (4,), "model.layers.0.post_attention_layernorm.weight": (4,),
              **{f"{layer}self_attn.{name}_proj.weight": (4, 4) for name in "qkvo"},
              **{f"{layer}self_attn.{name}_norm.weight": (4,) for name in "qk"},
              **{f"{layer}post_{name}_layernorm.weight": (4,) for name in ("attention", "feedforward")},
              **{f"model.layers.{i}.mlp.{name}_proj.weight": shape for i in range(2)
                 for name, shape in dict(gate=(3, 4), up=(3, 4), down=(4, 3)).items()},
              "model.embed_tokens.weight": (5, 4), "model.norm.weight": (4,)}
    shapes |= {f"{net}{name}_conv1d.weight": (rows, 1, 2) for name, rows in dict(q=4, k=4, v=6).items()} \
        if in_parts else {f"{net}conv1d.weight": (14, 1, 2)}
    return config, {name: f32(*shape) for name, shape in shapes.items()}


def kimi_linear():
    """Kimi delta attention, and latent attention with an expert, by published names."""
    config = {"model_type": "kimi_linear", "hidden_size": 4, "num_hidden_layers": 2, "num_attention_heads": 2,
              "num_key_value_heads": 2, "intermediate_size": 3, "vocab_size": 5, "model_max_length": 8,
              "q_lora_rank": None, "kv_lora_rank": 3, "qk_nope_head_dim": 2, "qk_rope_head_dim": 2, "v_head_dim": 3,
              "num_experts": 1, "num_experts_per_token": 1, "num_shared_experts": 1, "moe_intermediate_size": 3,
              "moe_renormalize": True, "num_expert_group": 1, "topk_group": 1, "routed_scaling_factor": 1.5,
              "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1], "head_dim": 2, "num_heads": 2,
                                     "short_conv_kernel_size": 2}}
    net, layer = "model.layers.0.self_attn.", "model.layers.1.self_attn."
    experts = "model.layers.1.block_sparse_moe."
    shapes = {**{f"{net}{name}_proj.weight": (4, 4) for name in "qkvo"}, f"{net}b_proj.weight": (2, 4),
              **{f"{net}{name}_conv1d.weight": (4, 1, 2) for name in "qkv"},
              **{f"{net}{name}_a_proj.weight": (2, 4) for name in "fg"},
              **{f"{net}{name}_b_proj.weight": (4, 2) for name in "fg"},
              f"{net}A_log": (1, 1, 2, 1), f"{net}dt_bias": (4,), f"{net}o_norm.weight": (2,),
              f"{layer}q_proj.weight": (8, 4), f"{layer}kv_a_proj_with_mqa.weight": (5, 4),
              f"{layer}kv_a_layernorm.weight": (3,), f"{layer}kv_b_proj.weight": (10, 3), f"{layer}o_proj.weight": (4, 6),
              **{f"model.layers.0.mlp.{name}_proj.weight": shape
                 for name, shape in dict(gate=(3, 4), up=(3, 4), down=(4, 3)).items()},
              **{f"{experts}experts.0.w{i}.weight": (4, 3) if i == 2 else (3, 4) for i in (1, 2, 3)},
              **{f"{experts}shared_experts.{name}_proj.weight": shape
                 for name, shape in dict(gate=(3, 4), up=(3, 4), down=(4, 3)).items()},
              f"{experts}gate.weight": (1, 4), f"{experts}gate.e_score_correction_bias": (1,),
              **{f"model.layers.{i}.{name}_layernorm.weight": (4,) for i in range(2)
                 for name in ("input", "post_attention")},
              "model.embed_tokens.weight": (5, 4), "model.norm.weight": (4,), "lm_head.weight": (5, 4)}
    return config, {name: f32(*shape) for name, shape in shapes.items()}


def in_float8(tensors):
    """(quantization_config, tensors) with the matrices of layers in 8 bits and scales of their blocks."""
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    compressed = {"quant_method": "compressed-tensors", "format": "float-quantized",
                  "config_groups": {"a": {"weights": weights}}}
    for config, suffix, rows, columns in (
            ({"quant_method": "fp8", "weight_block_size": [3, 2]}, "_scale_inv", 3, 2), (compressed, "_scale", 1, 9)):
        small = dict(tensors)
        for name, (_, shape, _) in tensors.items():
            if ".layers." in name and len(shape) == 2:
                small[name] = ("F8_E4M3", shape, bytes([0x38]) * product(shape))
                small[name + suffix] = f32(-(-shape[0] // rows), -(-shape[1] // columns))
        yield config, small


def of_checkpoint():
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
              "head_dim": 2, "intermediate_size": 6, "vocab_size": 5, "max_position_embeddings": 8,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
              "tie_word_embeddings": False}
    tensors = {"model.embed_tokens.weight": f32(5, 4), "model.norm.weight": f32(4),
               "lm_head.weight": f32(5, 4)}
    at = "model.layers.0."
    for name, shape in {"input_layernorm": (4,), "post_attention_layernorm": (4,),
                        "self_attn.q_proj": (4, 4), "self_attn.k_proj": (2, 4),
                        "self_attn.v_proj": (2, 4), "self_attn.o_proj": (4, 4),
                        "mlp.gate_proj": (6, 4), "mlp.up_proj": (6, 4),
                        "mlp.down_proj": (4, 6)}.items():
        tensors[at + name + ".weight"] = f32(*shape)
    yield "llama", parts(json.dumps(config), safetensors(tensors))
    yield "unaligned", parts(json.dumps(config), safetensors(tensors, pad=1))
    for method, small in in_float8(tensors):
        yield method["quant_method"], parts(json.dumps({**config, "quantization_config": method}), safetensors(small))
    bert_config, bert_tensors = bert()
    yield "bert", parts(json.dumps(bert_config), safetensors(bert_tensors))
    for config_of, tensors in (*with_experts(), olmo_hybrid(False), olmo_hybrid(True), kimi_linear()):
        yield config_of["model_type"] + "-parts" * any("q_conv" in name for name in tensors), parts(
            json.dumps(config_of), safetensors(tensors))
    own_config, own_tensors = own()
    yield "own", parts(json.dumps(own_config), safetensors(own_tensors))
    yield "module", parts("{}", safetensors({"in_proj_weight": f32(12, 4), "in_proj_bias": f32(12),
                                             "out_proj.weight": f32(4, 4),
                                             "out_proj.bias": f32(4)}))
    yield "module-prefix", parts("{}", safetensors({
        "m.in_proj_weight": ("F64", (12, 4), bytes(48 * 8)), "m.in_proj_bias": f32(12),
        "m.out_proj.weight": f32(4, 4), "m.out_proj.bias": f32(4), "x": f32(1)}, pad=3))


# ---- inputs of the program -----------------------------------------------------------------------

def of_training():
    yield "none", parts(b"\0", safetensors({}))
    yield "foreign", parts(b"\1", safetensors({"curve": ("F64", (1, 8), bytes(64))},
                                              {"task": "induction", "seed": "0"}))


CONLLU = """# text = The cats sleep .
1\tThe\tthe\tDET\t_\t_\t2\tdet\t_\t_
2-3\tcatsa\t_\t_\t_\t_\t_\t_\t_\t_
2\tcats\tcat\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsleep\tsleep\tVERB\t_\t_\t0\troot\t_\tSpaceAfter=No|Coref=2
3.1\tx\tx\tX\t_\t_\t_\t_\t_\t_
4\t.\t.\tPUNCT\t_\t_\t3\tpunct\t_\t_

"""


def of_texts():
    words = "the animal didn't cross the street because it was too tired ."
    for way in range(4):
        yield f"conllu-{way}", parts(bytes([way]), CONLLU, "")
    # 16 words fill the first allocation, so a HEAD beyond them is beyond it, too.
    full = "".join(f"{word}\tthe\t_\t_\t_\t_\t16\tdet\t_\t_\n" for word in range(1, 17))
    yield "conllu-full", parts(b"\0", full + "\n", "")
    for way in range(4, 10):
        yield f"text-{way}", parts(bytes([way, 1]), words + "\nthe animal was tired .\n", "animal")
    yield "escapes", parts(bytes([8]), "the \x1b[31m animal \u202e \u009b2J\n", "")
    yield "ask", parts(bytes([6]), "the \x1b[31m animal \x1b", "[")
    yield "names", parts(bytes([1]), CONLLU.replace("cats", "c\x1b[1mat\u202es"), "")
    yield "generate", parts(bytes([10]), "", "the animal")
    yield "ids", parts(bytes([11]), "", "1 2 3")


def of_serve():
    def ask(place, state, host=2, origin=0, texts=("", "127.0.0.1:8000", "http://127.0.0.1:8000")):
        body = state if isinstance(state, str) else json.dumps(state)
        return parts(bytes([place, 0, 0, host, origin, 0, 0]), body, *texts)

    words = "the animal was too tired"
    for place in range(3):
        yield f"page-{place}", ask(place, "")
    yield "look", ask(3, {"text": words})
    yield "off", ask(3, {"text": words, "off": ["L0H1"], "row": 2, "maps": False})
    for at in ("all", "last"):
        yield f"patch-{at}", ask(3, {"text": words, "patched": ["L0H0"], "other": "the animal", "at": at})
    yield "map", ask(4, {"text": words, "head": "L0H1"})
    yield "save", ask(5, {"text": words, "head": "L0H1", "cell": [2, 1], "view": "lines", "dark": True,
                          "cmap": "blues", "scale": "sqrt", "off": ["L0H0"]})
    yield "quit", ask(6, "{}")
    yield "trace", ask(7, {"text": words, "head": "L0H1", "cell": [2, -1]})
    yield "origin", ask(3, {"text": words}, host=0, origin=1)
    yield "strangers", ask(10, {"text": words}, host=0, origin=1, texts=(
        "0123456789abcdef0123456789abcdee/look", "evil:8000", "null"))
    yield "deep", ask(3, "[" * 900)
    yield "no-utf8", parts(bytes([3, 0, 0, 2, 0, 0, 0]), b'{"text":"\xff\xfe"}', "", "", "")


def of_tokens():
    yield "lines", parts(b"\0\0", "a\nb\nc\n")
    for output in range(4):
        yield f"list-{output}", parts(bytes([1, output]), '["[CLS]", "b\\u20ac\\n", "\\ud83d\\ude00"]')
    yield "hide", parts(bytes([0, 0, 1, 1, 0]), "[CLS]\r\na\nb")
    yield "escapes", parts(b"\0\1", "\x1b[31m\n\u009b\n\u202e")


def of_run():
    def run(way, choices, text="", a=npy((3, 3), "|b1", b"\1" * 9), x=npy((1, 2, 3, 4))):
        return parts(bytes([way, *choices]), text, x, x, x, a,
                     safetensors({"x": f32(1, 2, 3, 4)}, pad=1))

    yield "explain", run(0, [])
    yield "x", run(1, [0])
    yield "safetensors", run(2, [0b01000000, 0])
    yield "mask", run(3, [0b01000001, 0, 2])
    yield "bias", run(3, [0b10000001, 1, 0, 1], a=npy((3, 3)))
    yield "lengths", run(4, [0b10000010, 2, 4, 9], "2")
    yield "batch", run(1, [0b10000010, 2, 4, 9], "2,1", x=npy((2, 1, 3, 4)))
    yield "offsets", run(4, [0b00000110, 3, 0], "1")
    yield "documents", run(4, [1, 6], a=npy((1, 3), "<i8"))
    yield "blocks", run(4, [0b00010001, 7, 4], a=npy((1, 2, 2, 2), "|b1", b"\1" * 8))
    yield "starts", run(4, [2, 8], "0,1,3")
    yield "slopes", run(4, [1, 9], a=npy((2,)))
    yield "t5", run(4, [1, 10], a=npy((4, 2)))
    yield "shaw", run(4, [1, 11], a=npy((5, 4)))
    yield "sinks", run(4, [2, 13], "1,-2.5")
    yield "gates", run(4, [2, 14], "1e3,nan")
    yield "positions", run(4, [0b00000110, 15, 2], "7,8,9")
    yield "linear", run(4, [0b00000100, 1])
    yield "trace", run(4, [0b00001000, 0, 5])
    yield "outputs", run(4, [0b11000000, 3, 6, 8])


def of_compare():
    text = {"format": "multihead-bench", "version": 1, "isa": "avx2", "threads": 1,
            "peak_gflops": 50.5, "rows": [{"name": "gemm 1x1x1", "median_seconds": 1e-6}]}
    yield "whole", json.dumps(text).encode()
    yield "other", json.dumps({**text, "version": 2}).encode()
    yield "no-rows", json.dumps({**text, "rows": None, "isa": 3}).encode()
    yield "list", b"[1, 2]"


# ---- problems built from choices -----------------------------------------------------------------

def of_choices(count, size, seed):
    draw = random.Random(seed)
    for i in range(count):
        yield f"draw-{i}", bytes(draw.randrange(256) for _ in range(size))
    yield "zeros", bytes(size)
    yield "ones", b"\xff" * size


def main():
    folder = pathlib.Path(sys.argv[1])
    chosen = {name[3:]: make for name, make in globals().items()
              if name.startswith("of_") and name != "of_choices"}
    for seed, name in enumerate(("attention", "module", "render", "cache")):
        chosen[name] = lambda seed=seed: of_choices(24, 400, seed)
    for target, make in chosen.items():
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        for name, content in make():
            (place / name).write_bytes(content)


if __name__ == "__main__":
    main()
