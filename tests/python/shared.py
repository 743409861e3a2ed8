"""Shared by the tests of this folder: paths, built files, and the amount of a run.

A run has one of three amounts: the gate (every change), the deep form (MHA_TEST_DEEP=1), or
everything (MHA_TEST_LONG=1). @pytest.mark.gate(N) on a test or a file limits it to N random cases
in the gate, which MHA_TEST_SEED determines. A test's mark overrides its file's.
"""
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bindings/python"))
LIBRARY_DIR = pathlib.Path(os.environ.setdefault("MHA_LIBRARY_DIR", str(ROOT / "build")))
MODEL_LIBRARY = LIBRARY_DIR / "libmultihead-model.so"
PROGRAM = os.environ.get("MULTIHEAD", str(ROOT / "build/multihead"))
TINY = ROOT / "tests/golden/tiny-bert"
MINILM = pathlib.Path(os.environ.get("MHA_MODEL_DIR") or ROOT / "build/models/all-MiniLM-L6-v2")
SMOLLM2 = ROOT / "build/models/smollm2-135m-instruct-q4_1.gguf"
CHROMIUM = os.environ.get("MHA_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
HANGS = 900  # seconds; longer than any test on a slow machine


def is_set(name):
    return os.environ.get(name, "0") not in ("", "0")


LONG = is_set("MHA_TEST_LONG")
DEEP = LONG or is_set("MHA_TEST_DEEP")
SEED = int(os.environ.get("MHA_TEST_SEED") or time.time())


def amount(gate, deep, everything):
    return everything if LONG else deep if DEEP else gate


def rounds_like(mine, theirs, exact):
    """Errors are at most twice those of a calculation in float32, by root mean square. The largest of many depends on
    chance (2.9 times where the squares agree), so it may be eight times as large."""
    assert mine.shape == theirs.shape == exact.shape and exact.dtype == "float64"
    own, others = abs(mine - exact), abs(theirs - exact)
    return (own ** 2).sum() <= 4 * (others ** 2).sum() and own.max() <= 8 * others.max()


def interrupt(command, folder, event):
    """Run a command until the folder has a file that matches the pattern, then send Ctrl-C;
    immediately for ""."""
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while event and process.poll() is None and not any(folder.glob(event)):
            pass
        process.send_signal(signal.SIGINT)


def needs(path, why="was not built"):
    """Skip the whole file if a path is missing."""
    if not os.path.exists(path):
        import pytest
        pytest.skip(f"{path} {why}", allow_module_level=True)
