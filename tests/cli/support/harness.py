"""Shared by the tests of the program: runs it, checks its output, and creates files.

Uses Python without packages. A test file collects failures with check() and ends with finish().
"""
import ast
import atexit
import fcntl
import json
import math
import os
import pathlib
import pty
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent.parent
PROGRAM = os.environ.get("MULTIHEAD", str(ROOT / "build" / "multihead"))
MODEL = ROOT / "tests" / "golden" / "tiny-bert"
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="multihead-cli-"))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)
TEXT = "The cat sat on the mat"
LONG = os.environ.get("MHA_TEST_LONG", "0") not in ("", "0")
HANGS = 850  # seconds; only a hang takes this time, even with a sanitizer on a busy machine

# Background jobs inherit an ignored SIGINT from the shell, and SIGHUP from nohup: restore both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

_failures = []
_checks = 0


PROGRESS = re.compile(r", [0-9.]+ (s|min|h)(, about [0-9.]+ (s|min|h) left)?$")


class Result:
    def __init__(self, done):
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr

    @property
    def lines(self):
        return self.out.decode().splitlines()

    @property
    def errors(self):
        """stderr without progress lines, which the program prints after one second."""
        return [line for line in self.err.decode("utf-8", "replace").splitlines()
                if not PROGRESS.search(line)]


def environment(**changes):
    """An environment without terminal and colours that does not depend on the caller's."""
    keep = {name: os.environ[name] for name in
            ("PATH", "HOME", "TMPDIR", "ASAN_OPTIONS", "UBSAN_OPTIONS", "LSAN_OPTIONS",
             "TSAN_OPTIONS", "MHA_ISA") if name in os.environ}
    keep.update(LANG="C.UTF-8", TERM="xterm-256color")
    keep.update(changes)
    return {name: value for name, value in keep.items() if value is not None}


def run(*arguments, stdin=b"", stdout=subprocess.PIPE, started=None, **changes):
    """Run the program and return its result. `changes` modify its environment; `started` has
    further arguments of subprocess."""
    done = subprocess.run([PROGRAM, *map(os.fsencode, map(str_or_bytes, arguments))],
                          stdout=stdout, stderr=subprocess.PIPE, input=stdin, check=False,
                          env=environment(**changes), timeout=HANGS, cwd=FOLDER, **(started or {}))
    return Result(done)


def on_terminal(*arguments, columns=None, **changes):
    """Exit status and output of the program with both streams on one pseudo-terminal."""
    parent, child = pty.openpty()
    if columns:
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    with subprocess.Popen([PROGRAM, *map(os.fsencode, map(str_or_bytes, arguments))],
                          stdin=subprocess.DEVNULL, stdout=child, stderr=child, cwd=FOLDER,
                          env=environment(**changes)) as process:
        os.close(child)
        output = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:
                break
            if not piece:
                break
            output += piece
    os.close(parent)
    return process.returncode, output


def peak(*arguments):
    """Run the program and return its result and its peak memory in bytes."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([PROGRAM, *map(os.fsencode, map(str_or_bytes, arguments))],
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=err,
                                   env=environment(), cwd=FOLDER)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        err.seek(0)
        process.returncode = os.waitstatus_to_exitcode(status)
        return (Result(subprocess.CompletedProcess([], process.returncode, out.read(), err.read())),
                usage.ru_maxrss * 1024)


def seeded():
    """A random generator for the test. Prints its seed."""
    seed = int(os.environ.get("MHA_TEST_SEED", "0")) or random.randrange(1 << 30)
    print(f"seed {seed} (repeat with MHA_TEST_SEED={seed})")
    return random.Random(seed)


def str_or_bytes(argument):
    return argument if isinstance(argument, bytes) else str(argument)


def view(*arguments, **keywords):
    return run("view", *arguments, **keywords)


def check(truth, message):
    global _checks
    _checks += 1
    if not truth:
        _failures.append(message)
        print(f"FAILED: {message}")
    return truth


def check_error(result, code, *parts, command="view", name=""):
    """Check for one line with all parts on stderr, nothing on stdout, and this exit code."""
    what = f"{name or parts}: exit {result.code}, {result.errors!r}"
    check(result.code == code, f"{what}: exit code {code} expected")
    check(len(result.errors) == 1, f"{what}: one line expected")
    prefix = f"multihead: {command}: " if command else "multihead: "
    check(result.errors[:1] and result.errors[0].startswith(prefix), f"{what}: prefix {prefix!r}")
    for part in parts:
        check(part in " ".join(result.errors), f"{what}: must say {part!r}")
    check(not result.out, f"{what}: nothing on stdout expected")
    check(leftovers() == [], f"{what}: half-written files {leftovers()}")


def check_good(result, name):
    return check(result.code == 0, f"{name}: exit {result.code}, {result.errors!r}")


def leftovers():
    return sorted(path.name for path in FOLDER.rglob("*")
                  if path.name.endswith((".part", ".tmp")) or ".tmp" in path.name)


def copy_model(name, without=()):
    """A private copy of the tiny model; `without` names files to omit."""
    target = FOLDER / name
    shutil.copytree(MODEL, target, ignore=shutil.ignore_patterns(*without))
    return target


def change_config(folder, **changes):
    """Set fields of config.json; None removes one."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config.update(changes)
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


def read_safetensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def safetensors_bytes(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def write_weights(folder, shapes, extra=None):
    """Write model.safetensors with zero tensors of these shapes."""
    header, at = dict(extra or {}), 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, bytes(at)))
    return folder


def write_matrices(folder, matrices):
    """Write model.safetensors with these matrices, given as lists of rows."""
    header, data = {}, b""
    for name, rows in matrices.items():
        flat = [x for row in rows for x in row]
        header[name] = {"dtype": "F32", "shape": [len(rows), len(rows[0])],
                        "data_offsets": [len(data), len(data) + 4 * len(flat)]}
        data += struct.pack(f"<{len(flat)}f", *flat)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(header, data))


def write_words(folder, words, begins):
    """A tokenizer of these words, including <unk> and </s>; optionally prepends <s> to each text."""
    first = {"type": "TemplateProcessing",
             "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                        {"Sequence": {"id": "A", "type_id": 0}}]}
    (folder / "tokenizer.json").write_text(json.dumps(
        {"pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": first if begins else None,
         "model": {"type": "WordLevel", "vocab": {w: i for i, w in enumerate(words)},
                   "unk_token": "<unk>"}}))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"eos_token": "</s>", "model_max_length": 10 ** 30}))
    return folder


def write_config(folder, **fields):
    (folder / "config.json").write_text(json.dumps(fields))
    return folder


def write_bert(folder, layers, words=8):
    """A BERT encoder of width 2 with any number of layers."""
    width, sizes = 2, dict(vocab_size=words, max_position_embeddings=128, type_vocab_size=2)
    shapes = {f"embeddings.{name}_embeddings.weight": [rows, width] for name, rows in
              zip(("word", "position", "token_type"), sizes.values())}

    def add(name, *shape):
        shapes[name + ".weight"] = list(shape)
        shapes[name + ".bias"] = [width]

    add("embeddings.LayerNorm", width)
    for i in range(layers):
        for part in ("attention.self.query", "attention.self.key", "attention.self.value",
                     "attention.output.dense", "intermediate.dense", "output.dense"):
            add(f"encoder.layer.{i}.{part}", width, width)
        for part in ("attention.output.LayerNorm", "output.LayerNorm"):
            add(f"encoder.layer.{i}.{part}", width)
    return write_config(write_weights(folder, shapes), model_type="bert", hidden_size=width,
                        num_hidden_layers=layers, num_attention_heads=1, intermediate_size=width,
                        **sizes)


_FORMATS = {"<f4": "f", "<f8": "d", "<f2": "e", "<i8": "q", "<i4": "i", "|b1": "?", "|u1": "B"}


def write_npy(path, shape, values, dtype="<f4", fortran=False):
    header = repr({"descr": dtype, "fortran_order": fortran, "shape": tuple(shape)}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header +
                     struct.pack(f"<{len(values)}{_FORMATS[dtype]}", *values))


def read_npy(data):
    """(shape, dtype, values) of a version 1 .npy file."""
    assert data[:8] == b"\x93NUMPY\x01\x00", data[:8]
    size = struct.unpack("<H", data[8:10])[0]
    header = ast.literal_eval(data[10:10 + size].decode().strip())
    count = (len(data) - 10 - size) // struct.calcsize(_FORMATS[header["descr"]])
    values = struct.unpack(f"<{count}{_FORMATS[header['descr']]}", data[10 + size:])
    return header["shape"], header["descr"], values


def columns(line):
    """Terminal columns of a line without escape sequences: combining 0, wide 2, else 1."""
    import re
    import unicodedata
    text = re.sub(r"\x1b\[[0-9;]*m", "", line)
    return sum(0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF"
               else 1 for c in text)


def finish():
    print(f"{_checks} checks, {len(_failures)} failed")
    sys.exit(1 if _failures else 0)
