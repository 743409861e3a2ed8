"""Every kind of bad input has its exit code and a message of one line that names the error and its
place, and leaves no partly written file.
"""
import os
import re
import struct
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

USAGE, NO_INPUT, BAD_INPUT, UNSUPPORTED, NO_OUTPUT = 2, 3, 4, 5, 6


def missing_files():
    check_error(view("no-such-folder", TEXT), NO_INPUT, "no-such-folder")
    check_error(view(MODEL / "config.json", TEXT), NO_INPUT, "config.json")
    check_error(view(MODEL / "config.json" / "x", TEXT), NO_INPUT, "Not a directory")
    check_error(view(copy_model("no-config", ["config.json"]), TEXT), NO_INPUT, "config.json")
    check_error(view(copy_model("no-weights", ["model.safetensors"]), TEXT), NO_INPUT,
                "model.safetensors")
    check_error(view(copy_model("no-vocab", ["vocab.txt"]), TEXT), NO_INPUT, "vocab.txt")
    check_error(view(MODEL, "--text-file", "nowhere.txt"), NO_INPUT, "nowhere.txt", "no such file")
    check_error(view(MODEL, "--text-file", FOLDER), NO_INPUT, str(FOLDER))
    for name, content, part in (("latin-1.txt", b"caf\xe9 au lait", "byte 3 is not valid UTF-8"),
                                ("blank.txt", b"\xef\xbb\xbf \n\t\r\n", "the text is empty")):
        (FOLDER / name).write_bytes(content)
        for folder in (MODEL, "no-such-folder"):  # the folder must not be opened
            check_error(view(folder, "--text-file", FOLDER / name), BAD_INPUT, name, part)
        check_error(view(MODEL, TEXT, "--text-file", FOLDER / name), BAD_INPUT, name, part)
    check_error(view("no-such-folder", TEXT, "--contrast", b"caf\xe9"), BAD_INPUT, "--contrast", "byte 3")
    for option in ("--hide", "--layer", "--head", "--contrast", "--svg"):
        check_error(view(MODEL, TEXT, option, ""), USAGE, f"{option}: its value is empty")
    check_error(view("", TEXT), USAGE, "MODEL is missing")
    check_error(view("--attention", "nowhere.npy", "--tokens", "t"), NO_INPUT, "nowhere.npy")


def lying_headers():
    """Every kind of malformed safetensors file replaces the model's."""
    header, data = read_safetensors(MODEL / "model.safetensors")
    names = [name for name in header if name != "__metadata__"]
    a, b = names[0], names[1]

    def changed(**change):
        copy = {name: dict(entry) for name, entry in header.items()}
        copy[a].update(change)
        return safetensors_bytes(copy, data)

    text = json.dumps(header).encode()
    offsets = header[a]["data_offsets"]
    shape = header[a]["shape"]
    whole = safetensors_bytes(header, data)
    twice = text[:-1] + b", " + json.dumps({a: header[a]}).encode()[1:]
    cases = {
        "empty": b"",
        "ten bytes": whole[:10],
        "cut in the header": whole[:100],
        "cut in the data": whole[:-100],
        "one byte short": whole[:-1],
        "one byte long": whole + b"\0",
        "header longer than the file": struct.pack("<Q", len(whole)) + whole[8:],
        "header of 2^63 bytes": struct.pack("<Q", 1 << 63) + whole[8:],
        "header of 2^64 - 1 bytes": struct.pack("<Q", (1 << 64) - 1) + whole[8:],
        "header of 0 bytes": struct.pack("<Q", 0) + whole[8:],
        "no JSON": safetensors_bytes(b"{" + text[2:], data),
        "no object": safetensors_bytes(b"[1, 2]", data),
        "not UTF-8": safetensors_bytes(text.replace(a.encode(), b"\xff\xfe", 1), data),
        "a name twice": safetensors_bytes(twice, data),
        "offsets beyond the file": changed(data_offsets=[offsets[0], len(data) + 4]),
        "offsets the wrong way round": changed(data_offsets=offsets[::-1]),
        "negative offset": changed(data_offsets=[-4, offsets[1]]),
        "offset of 2^63": changed(data_offsets=[1 << 63, (1 << 63) + 4]),
        "offset 1e300": changed(data_offsets=[0, 1e300]),
        "overlap": changed(data_offsets=header[b]["data_offsets"], shape=header[b]["shape"]),
        "hole": changed(data_offsets=[offsets[0], offsets[1] - 4]),
        "wrong dtype": changed(dtype="F64"),
        "unknown dtype": changed(dtype="F128"),
        "dtype is a number": changed(dtype=32),
        "shape of 2^63": changed(shape=[1 << 63]),
        "shape whose product overflows": changed(shape=[1 << 32, 1 << 32]),
        "negative shape": changed(shape=[-shape[0]] + shape[1:]),
        "shape is a text": changed(shape="36"),
        "no shape": safetensors_bytes({**header, a: {"dtype": "F32", "data_offsets": offsets}}, data),
        "nothing but a name": safetensors_bytes({**header, a: {}}, data),
    }
    for name, content in cases.items():
        folder = copy_model("lie", ["model.safetensors"])
        (folder / "model.safetensors").write_bytes(content)
        check_error(view(folder, TEXT, "-o", "never.html"), BAD_INPUT, "model.safetensors",
                    name=f"safetensors: {name}")
        check(not (FOLDER / "never.html").exists(), f"{name}: never.html exists")
        shutil.rmtree(folder)


def contradicting_models():
    header, data = read_safetensors(MODEL / "model.safetensors")
    cases = [
        ("hidden_size", dict(hidden_size=48), BAD_INPUT, "48"),
        ("more layers than weights", dict(num_hidden_layers=3), BAD_INPUT, "numbers"),
        ("heads do not divide", dict(num_attention_heads=5), BAD_INPUT, "num_attention_heads"),
        ("vocabulary", dict(vocab_size=500), BAD_INPUT, "500"),
        ("positions", dict(max_position_embeddings=64), BAD_INPUT, "64"),
        ("no heads", dict(num_attention_heads=0), BAD_INPUT, "num_attention_heads"),
        ("heads are missing", dict(num_attention_heads=None), BAD_INPUT, "num_attention_heads"),
        ("negative layers", dict(num_hidden_layers=-1), BAD_INPUT, "num_hidden_layers"),
        ("absurd width", dict(hidden_size=1 << 62), BAD_INPUT, "hidden_size"),
        ("width is a text", dict(hidden_size="wide"), BAD_INPUT, "hidden_size"),
        ("unknown architecture", dict(model_type="parrot"), UNSUPPORTED, "parrot"),
        ("unknown activation", dict(hidden_act="swish9"), UNSUPPORTED, "swish9"),
        ("positions", dict(position_embedding_type="rotary"), UNSUPPORTED,
         "rotary"),
    ]
    for name, changes, code, part in cases:
        folder = copy_model("wrong")
        change_config(folder, **changes)
        check_error(view(folder, TEXT), code, "config.json" if code == UNSUPPORTED else "", part,
                    name=f"config: {name}")
        shutil.rmtree(folder)
    folder = copy_model("no-json")
    (folder / "config.json").write_text('{"model_type": "bert", ')
    check_error(view(folder, TEXT), BAD_INPUT, "config.json")
    folder = copy_model("no-tensor")
    name = next(name for name in header if name.endswith("query.weight"))
    renamed = {("other" if key == name else key): value for key, value in header.items()}
    (folder / "model.safetensors").write_bytes(safetensors_bytes(renamed, data))
    check_error(view(folder, TEXT), BAD_INPUT, "query.weight")
    entry = header[name]["data_offsets"]
    damaged = data[:entry[0]] + struct.pack("<f", float("nan")) + data[entry[0] + 4:]
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, damaged))
    result = view(folder, TEXT, "--npy", FOLDER / "nan.npy", "-q")
    check(result.code == 0 and len(result.errors) == 1 and "NaN" in result.errors[0],
          f"NaN in a weight: {result.errors!r}")
    one_segment = {key: dict(value) for key, value in header.items()}
    name = next(name for name in header if "token_type" in name)
    begin, end = header[name]["data_offsets"]
    half = (end - begin) // 2
    one_segment[name].update(shape=[1, header[name]["shape"][1]])
    for key, value in one_segment.items():
        if key != "__metadata__":
            value["data_offsets"] = [at - half if at >= end else at for at in
                                     header[key]["data_offsets"]]
    (folder / "model.safetensors").write_bytes(
        safetensors_bytes(one_segment, data[:begin + half] + data[end:]))
    change_config(folder, type_vocab_size=1)
    check_good(view(folder, TEXT), "a model of one segment")
    check_error(view(folder, TEXT, TEXT), UNSUPPORTED, "second text", "type_vocab_size")


HUGE = 36 * 180 << 20  # bytes; sparse, so that long files cost nothing
ENOUGH = 1 << 30  # bytes of memory, including a sanitizer's, for calls that do not read the zeros


def sparse(path, head, size=HUGE):
    """Write a file of these bytes and `zeros` zeros. Returns False if the file system does not
    support it."""
    try:
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(len(head) + size)
        return path.stat().st_blocks * 512 < ENOUGH
    except OSError:
        return False


def cheap(arguments, code, *parts, command="view", name, enough=ENOUGH):
    """Check for low memory use and this message."""
    result, most = peak(*arguments)
    check(most < enough, f"{name}: {most >> 20} MB of memory")
    if code:
        check_error(result, code, *parts, command=command, name=name)
    else:
        check_good(result, name)


def huge_tensor(name, change):
    """A folder with a tensor of 6 GB after a header of odd length, so that the tensor is unaligned.
    change(header, size of the other data) adds it."""
    folder = copy_model(name, ["model.safetensors"])
    header, data = read_safetensors(MODEL / "model.safetensors")
    change(header, len(data))
    text = json.dumps(header).encode()
    text += b" " * (1 - len(text) % 2)
    made = sparse(folder / "model.safetensors", struct.pack("<Q", len(text)) + text + data)
    return folder if made else None


def huge_files():
    def beside(header, end):
        header["beside"] = {"dtype": "F32", "shape": [HUGE // 4], "data_offsets": [end, end + HUGE]}

    def embeddings(dtype, size):
        def change(header, end):
            name = next(name for name in header if name.endswith("word_embeddings.weight"))
            header["old"] = dict(header[name])
            header[name] = {"dtype": dtype, "shape": [HUGE // size // 36, 36],
                            "data_offsets": [end, end + HUGE]}
        return change

    folder = huge_tensor("huge", beside)
    if not folder:
        print("skipped: huge files (no sparse files here)")
        return
    cheap(["view", folder, TEXT], 0, name="a huge tensor that is not needed")
    for dtype, size in (("F32", 4), ("F16", 2)):
        folder = huge_tensor(f"huge-{dtype}", embeddings(dtype, size))
        cheap(["view", folder, TEXT], BAD_INPUT, "word_embeddings", "config.json",
              name=f"a huge table of {dtype}")
        change_config(folder, model_type="bert", multihead_output="none")
        cheap(["generate", folder, "a"], BAD_INPUT, command="generate",
              name=f"a huge table of {dtype} to generate with")
    rows = HUGE // 4 // 64
    head = repr({"descr": "<f4", "fortran_order": False, "shape": (1, 1, rows, 64)}).encode()
    head = b"\x93NUMPY\x02\0" + struct.pack("<I", len(head)) + head
    array, tokens = FOLDER / "huge.npy", FOLDER / "three.txt"
    sparse(array, head)
    tokens.write_text("a\nb\nc\n")
    cheap(["explain", "--q", array], 0, name="explain")
    cheap(["view", "--attention", array, "--tokens", tokens], BAD_INPUT, str(rows), "3 tokens",
          name="view --attention")
    small = FOLDER / "small.npy"
    write_npy(small, (1, 1, 4, 32), [0] * 128)
    for options, *parts in (
            (["--q", array, "--k", small, "--v", small], "small.npy", "64"),
            (["--x", small, "--bias", array], "huge.npy"),
            (["--x", small, "--keep-mask", array], "huge.npy", "f32"),
            (["--x", small, "--documents", array], "huge.npy", "f32"),
            (["--x", small, "--lengths", array], "huge.npy", "f32"),
            (["--x", array, "--rope", "--heads", "4"], "huge.npy")):
        cheap(["run", *options], BAD_INPUT, *parts, command="run", name=f"run {options[-2]}")
    array.unlink()


def many_layers():
    """A depth beyond every published model, in a file of 2 MB. tests/growth checks that the work is not quadratic."""
    layers = 1000
    folder = copy_model("deep", ["model.safetensors", "config.json"])
    write_bert(folder, layers, words=462)
    cheap(["view", folder, TEXT, "--layer", layers], USAGE, f"no layer {layers}",
          name="a model of 1000 layers")
    for claim in (layers + 1, 10**9):
        change_config(folder, num_hidden_layers=claim)
        cheap(["view", folder, TEXT], BAD_INPUT, "layer", name=f"{claim} layers")
    change_config(folder, num_hidden_layers=layers, vocab_size=2**31 - 1,
                  max_position_embeddings=2**20)
    cheap(["view", folder, TEXT], BAD_INPUT, "word_embeddings", name="2^31 words")


def many_positions():
    """A million positions in a file of 67 kB. Only the text's positions are computed."""
    width = 64
    shapes = {f"layers.0.self_attn.{part}_proj.weight": [width, width] for part in "qkvo"}
    folder = write_weights(FOLDER / "far", {"embed_tokens.weight": [2, width], **shapes})
    (folder / "tokenizer.json").write_text(json.dumps(dict(
        pre_tokenizer=dict(type="WhitespaceSplit"),
        model=dict(type="WordLevel", unk_token="a", vocab=dict(a=0, b=1)))))
    for positions in ("rotary", "sinusoidal"):
        write_config(folder, model_type="multihead", vocab_size=2, max_length=1 << 20, num_layers=1,
                     embed_dim=width, num_heads=1, norm="none", positions=positions, tied=True,
                     causal=True)
        for command in ("view", "generate", "heads"):
            cheap([command, folder, "a b a"], 0, name=f"{command}, {positions}", enough=300 << 20)


def texts():
    for empty in ("", "   ", "\t\n"):
        check_error(view(MODEL, empty), BAD_INPUT, "the text is empty")
    check_error(view(MODEL, "-"), BAD_INPUT, "the text is empty")
    check_error(view(MODEL, TEXT, ""), BAD_INPUT, "second text is empty")
    check_error(view(MODEL, b"caf\xe9"), BAD_INPUT, "UTF-8", "byte 3")
    check_error(view(MODEL, "-", stdin=b"ok \xff\xfe"), BAD_INPUT, "UTF-8", "byte 3")
    check_error(view(MODEL, "-", stdin=b"the " * 9998), BAD_INPUT, "too many tokens", "the limit is 128",
                "--truncate")
    check_error(view(MODEL, TEXT, "--max-tokens", "5"), BAD_INPUT, "too many tokens", "the limit is 5;")
    check_error(view(MODEL, TEXT, TEXT, "--truncate", "--max-tokens", "3"), USAGE, "--truncate",
                "raise --max-tokens")
    check_error(view(MODEL, TEXT, "--max-tokens", "500"), USAGE, "500", "128")
    check_error(view(MODEL), USAGE, "text is missing", "--example")
    check_error(view(MODEL, "The", "cat", "sat"), USAGE, "3 texts", "quotes")
    check_error(view(MODEL, "--example", "dog"), USAGE, "dog", "animal")
    check_error(view(MODEL, "--example", "animl"), USAGE, "did you mean 'animal'")


def command_lines():
    cases = [
        (["--layr", "1"], "did you mean '--layer'"),
        (["--layer", "2"], "no layer 2", "0 to 1"),
        (["--layer", "1-0"], "--layer 1-0"),
        (["--layer", "1,"], "--layer 1,"),
        (["--layer", "x"], "--layer x"),
        (["--layer", "99999999999999999999"], "no layer"),
        (["--head", "3"], "no head 3", "0 to 2"),
        (["--head", "L0"], "--head L0"),
        (["--head", "2.1"], "no layer 2"),
        (["--head", "L1H1", "--layer", "0"], "names its layer"),
        (["--head"], "--head", "missing"),
        (["--cmap", "jet"], "viridis"),
        (["--scale", "cubic"], "linear, sqrt, log, rank"),
        (["--range", "1:0"], "LO:HI"),
        (["--range", "nan:1"], "LO:HI"),
        (["--range", "wide"], "LO:HI"),
        (["--threads", "0"], "1 to 1024"),
        (["--threads", "many"], "1 to 1024"),
        (["--threads", " 2"], "1 to 1024"),
        (["--threads", "+2"], "1 to 1024"),
        (["--threads", "0x2"], "1 to 1024"),
        (["--range", " 0:1"], "LO:HI"),
        (["--range", "0:+1"], "LO:HI"),
        (["--range", "0:0x1"], "LO:HI"),
        (["--width", "5"], "20 to"),
        (["--dark=yes"], "takes no value"),
        (["--renormalise"], "--hide"),
        (["--tokens", "x"], "--attention"),
        (["-o", "a.html", "-o", "b.html"], "given twice"),
        (["-o", ""], "empty"),
        (["-o", "maps.svg"], "use --svg maps.svg"),
        (["--svg", "same", "--png", "same"], "both write 'same'"),
        (["--svg", "same", "--png", "./same"], "both write './same'"),
        (["--svg", FOLDER / "same", "--json", f"../{FOLDER.name}/same"], "both write"),
        (["--svg", "-", "--json", "-"], "both write to stdout"),
        (["--svg", "-", "--terminal"], "both write to stdout"),
        (["--npy", "a.npy", "--head", "0.1,1.2"], "same heads of every layer"),
        (["--hide", "special,the,cat,sat,on,mat"], "all 8 tokens"),
        (["-z"], "unknown option '-z'"),
        (["-5 degrees"], "put '--' before it"),
    ]
    for arguments, *parts in cases:
        check_error(view(MODEL, TEXT, *arguments), USAGE, *parts)
    check_error(run("veiw"), USAGE, "did you mean 'view'", command=None)
    check_error(run("paint"), USAGE, "unknown subcommand 'paint'", command=None)
    check_error(run("help", "paint"), USAGE, "unknown subcommand 'paint'", command=None)
    check_error(run("--verbose"), USAGE, "unknown option '--verbose'", command=None)
    check_error(run("selftest", "--problem", "3"), USAGE, "--problems", command="selftest")
    check_error(view(MODEL, TEXT, MHA_ISA="sse9"), USAGE, "MHA_ISA")


def arrays():
    tokens = FOLDER / "tokens.txt"
    tokens.write_text("a\nb\nc\n")
    array = FOLDER / "maps.npy"
    write_npy(array, (3, 3), [1 / 3] * 9)
    good = ["--attention", array, "--tokens", tokens]
    check_good(view(*good), "array")

    def bad(code, *parts, arguments=None):
        check_error(view(*(arguments or good)), code, *parts, name=f"array: {parts}")

    tokens.write_text("a\nb\n")
    bad(BAD_INPUT, "3 rows", "2 tokens")
    tokens.write_text("a\nb\nc")
    bad(BAD_INPUT, "3 keys", "4 tokens", arguments=good + ["--key-tokens", four_tokens()])
    write_npy(array, (3, 2), [0.5] * 6)
    bad(BAD_INPUT, "2 columns", "3 tokens", "--key-tokens")
    write_npy(array, (9,), [0.5] * 9)
    bad(BAD_INPUT, "1 dimensions")
    write_npy(array, (0, 3), [])
    bad(BAD_INPUT, "no weights")
    array.write_bytes(array.read_bytes()[:40])
    bad(BAD_INPUT, "maps.npy")
    array.write_bytes(b"")
    bad(BAD_INPUT, "maps.npy")
    array.write_bytes(b"\x93NUMPY\x01\x00\x46\x00{'descr': '<i8', 'fortran_order': False, "
                      b"'shape': (3, 3), }          \n" + bytes(72))
    bad(UNSUPPORTED, "i64", "float32")
    write_npy(array, (3, 3), [1 / 3] * 9)
    tokens.write_bytes(b"a\nb\nc\xff\n")
    bad(BAD_INPUT, "tokens.txt", "byte 5", "UTF-8")
    listed = FOLDER / "tokens.json"
    for text in ('["a", "b", 3]', '["a", "b", "c"', '{"a": 1}', '["a" "b"]', '["a", "b", "c"] x',
                 '["a", "\\ud800", "c"]', '["a\nb"]', '', '["a", "b", "c",]'):
        listed.write_text(text)
        bad(BAD_INPUT, "tokens.json", "JSON list", arguments=good[:3] + [listed])
    bad(USAGE, "--tokens", arguments=good[:2])
    bad(USAGE, "one argument too many", arguments=good + [MODEL])
    bad(USAGE, "takes no text", arguments=good + ["--example", "cat"])


def four_tokens():
    path = FOLDER / "four.txt"
    path.write_text("a\nb\nc\nd\n")
    return path


def unwritable():
    for option in ("-o", "--svg", "--png", "--json", "--npy"):
        check_error(view(MODEL, TEXT, option, "no-such-folder/x"), NO_OUTPUT, "no-such-folder/x",
                    name=option)
        check_error(view(MODEL, TEXT, option, "/dev/full"), NO_OUTPUT, "/dev/full", "space",
                    name=option)
        check_error(view(MODEL, TEXT, option, FOLDER), NO_OUTPUT, str(FOLDER), name=option)
    odd = view(MODEL, TEXT, "--svg", FOLDER / "odd\x1b[31m\n.svg")
    check(odd.code == 0 and odd.err.count(b"\n") == 2 and b"\x1b" not in odd.err,
          f"a note quotes control characters: {odd.err!r}")
    for name in ("turned\u202ename", "mark\u200f", "isolate\u2066", "letter\u061c", "csi\u009b"):
        shown = view(name, TEXT)
        mark = next(character for character in name if not character.isascii())
        check_error(shown, NO_INPUT, f"\\u{ord(mark):04x}", name=f"{ord(mark):x}")
        check(mark.encode() not in shown.err, f"an error escapes U+{ord(mark):04X}")
    letters = "caf\u00e9 \u6771\u4eac"
    check(letters in view(letters, TEXT).err.decode(), "letters stay as they are")
    with open("/dev/full", "wb") as full:
        for arguments in ([], ["--json", "-"], ["--npy", "-"], ["--help"]):
            result = Result(subprocess.run([PROGRAM, "view", MODEL, TEXT, *arguments], stdout=full,
                                           stderr=subprocess.PIPE, check=False, env=environment()))
            result.out = b""
            check_error(result, NO_OUTPUT, "stdout", "space", command=None, name=arguments)
    if os.geteuid() != 0:
        closed = FOLDER / "closed"
        closed.mkdir(mode=0o555)
        check_error(view(MODEL, TEXT, "--svg", closed / "x.svg"), NO_OUTPUT, "x.svg")
    older = FOLDER / "older.svg"
    older.write_text("as it was")
    check_error(view(MODEL, "", "--svg", older), BAD_INPUT, "empty")
    check(older.read_text() == "as it was", "a failed run changed an older file")


def full_disk():
    """On a file system of 16 kB, output that does not fit leaves no file, and older files are
    unchanged."""
    disk = FOLDER / "disk"
    disk.mkdir()
    mounted = os.geteuid() == 0 and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", disk], check=False,
        stderr=subprocess.DEVNULL).returncode == 0
    if not mounted:
        print("skipped: a full disk (this user cannot mount a tmpfs)")
        return
    try:
        for option in ("-o", "--svg", "--png", "--json"):
            target = disk / "x"
            target.write_text("as it was")
            text = " ".join(["cat"] * 100)
            check_error(view(MODEL, text, option, target), NO_OUTPUT, "space", name=option)
            check(target.read_text() == "as it was", f"{option}: the older file changed")
            check([path.name for path in disk.iterdir()] == ["x"], f"{option}: leftovers")
    finally:
        subprocess.run(["umount", disk], check=True)


def file_size_limit():
    """With ulimit -f, the kernel's signal must not kill the program or leave a partial file."""
    for option in ("-o", "--svg", "--png", "--json", "--npy"):
        target = FOLDER / "limited"
        target.write_text("as it was")
        before = sorted(FOLDER.iterdir())
        text = " ".join(["cat"] * 100)
        done = subprocess.run(["sh", "-c", 'ulimit -f 1; exec "$0" "$@"', PROGRAM, "view", MODEL,
                               text, option, target], capture_output=True, check=False,
                              env=environment())
        check_error(Result(done), NO_OUTPUT, "limited", "too large", name=option)
        check(target.read_text() == "as it was", f"{option}: the older file changed")
        check(sorted(FOLDER.iterdir()) == before, f"{option}: leftovers")


def closed_pipe():
    """If the reader closes the pipe, the exit code is 6, and there is no message."""
    for arguments in ["view"], ["view", "--json", "-"], ["heads", "--csv"], ["heads", "--json", "--corpus"]:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([PROGRAM, *arguments, MODEL, TEXT], stdout=write,
                              stderr=subprocess.PIPE, check=False, env=environment())
        os.close(write)
        check(done.returncode == NO_OUTPUT and done.stderr == b"",
              f"closed pipe: {arguments}: {done.returncode} {done.stderr!r}")
    done = subprocess.run(["sh", "-c", '"$0" view "$1" cat --svg x.svg 1>&- 2>&-', PROGRAM, MODEL],
                          check=False, env=environment(), cwd=FOLDER)
    check(done.returncode == 0 and (FOLDER / "x.svg").read_text().startswith("<"),
          "closed stdout and stderr must not mix into a file")


def marked():
    """In every command that reads a file or stdin, a byte order mark is not part of the text, and a
    zero byte does not end the text."""
    causal, some = FOLDER / "causal", ["--steps", "2", "--tries", "1", "--layers", "1", "--heads", "2", "--embed", "16"]
    check_good(run("train", "sentences", *some, "--no-report", "-q", "-o", causal), "a model")
    write_npy(FOLDER / "maps.npy", (2, 2), [1, 0, 0.5, 0.5])
    texts = "the animal was too tired .\nthe street was too wide .\n"
    gold = "1\tthe\t_\t_\t_\t_\t2\tdet\t_\t_\n2\tanimal\t_\t_\t_\t_\t0\troot\t_\t_\n\n"
    task = "the animal\t didn't\t was\nthe street\t was\t didn't\n"
    readers = [
        (["view", MODEL, "--text-file"], texts), (["view", causal, "--text-file"], texts),
        (["view", "--attention", "maps.npy", "--tokens"], "a\nb\n"), (["heads", MODEL, "--random", "0", "--text"], texts),
        (["heads", causal, "--random", "0", "--text"], texts), (["heads", causal, "--whole", "--text"], texts),
        (["heads", causal, "--random", "0", "--conllu"], gold), (["ablate", causal, "--random", "0", "--text"], texts),
        (["ablate", causal, "--task"], task), (["prune", causal, "--csv", "-", "--text"], texts),
        (["prune", MODEL, "--csv", "-", "--text"], texts), (["perplexity", causal, "--json", "--text"], texts),
        (["train", *some, "-q", "-o", "learned", "--no-report", "--text"], texts * 9)]
    times = re.compile(rb'"seconds": [\d.e-]+|"tokens_per_second": [\d.e-]+|,[\d.e-]+\n')  # a curve
    for arguments, text in readers:
        outputs = []
        for mark in ("", "\ufeff"):
            path = FOLDER / "marked.txt"
            path.write_text(mark + text)
            sources = [(path, b"")] if arguments[0] == "train" else [(path, b""), ("-", path.read_bytes())]
            for source, stdin in sources:
                result = run(*arguments, source, stdin=stdin)
                check_good(result, f"{arguments} {mark!r} {source}")
                model = FOLDER / "learned" / "tokenizer.json"
                outputs.append(model.read_bytes() if arguments[0] == "train" else times.sub(b"", result.out))
                shutil.rmtree(FOLDER / "learned", ignore_errors=True)
        check(len(set(outputs)) == 1, f"{arguments}: a byte order mark, or stdin, changes the output: {outputs}")
        path.write_text(text.replace("animal", "ani\0mal").replace("a\nb", "a\n\0b"))
        result = run(*arguments, path)
        shown = arguments[1] == MODEL  # WordPiece removes zero bytes
        check(shown == (result.code == 0) and b"\0" not in result.out + result.err, f"{arguments}: a zero byte: {result.code}")
        check(shown or "zero byte" in " ".join(result.errors), f"{arguments}: a zero byte: {result.errors}")


missing_files()
marked()
lying_headers()
contradicting_models()
huge_files()
many_layers()
many_positions()
texts()
command_lines()
arrays()
unwritable()
full_disk()
file_size_limit()
closed_pipe()
finish()
