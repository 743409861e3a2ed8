#!/usr/bin/env python3
"""tools/check_abi.py reports incompatible changes and distinguishes them from compatible ones."""
import pathlib
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import check_abi  # noqa: E402

# An edit of a header, and the expected report: (incompatible, part of the message).
EDITS = (
    ("base.h", "    int32_t ndim;", "    int64_t ndim;", (True, "field mha_tensor.ndim")),
    ("base.h", "    mha_dtype dtype;\n    int32_t ndim;", "    int32_t ndim;\n    mha_dtype dtype;",
     (True, "field mha_tensor.dtype")),
    ("base.h", 'X(MHA_ERR_ARGUMENT, 2, ', 'X(MHA_ERR_ARGUMENT, 9, ', (True, "value MHA_ERR_ARGUMENT")),
    ("base.h", "} mha_tensor;", "    int64_t more;\n} mha_tensor;", (True, "struct mha_tensor")),
    ("base.h", "} mha_context_desc;", "    int64_t more;\n} mha_context_desc;",
     (False, "field mha_context_desc.more is new")),
    ("attention.h", "MHA_ATTENTION_CAUSAL = 1 << 0", "MHA_ATTENTION_CAUSAL = 1 << 9",
     (True, "value MHA_ATTENTION_CAUSAL")),
    ("attention.h", "(*mha_rows_fn)(void *user, int64_t b,", "(*mha_rows_fn)(void *user, int b,",
     (True, "callback mha_rows_fn")),
)


def types_of(folder):
    check_abi.ROOT, check_abi.HEADERS = folder, folder / "include/multihead"
    return {entry: value for _, entry, value in check_abi.types()}


def main():
    if not shutil.which("gcc"):
        print("skipped: no gcc")
        return 77
    bad = 0
    old = {entry: (value, "0.1.0") for entry, value in types_of(ROOT).items()}
    for header, text, edited, expected in EDITS:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            shutil.copytree(ROOT / "include", folder / "include")
            path = folder / "include/multihead" / header
            before = path.read_text()
            path.write_text(before.replace(text, edited, 1))
            told = list(check_abi.compare("multihead", old, types_of(folder)))
            breaks = any(worst for worst, _ in told)
            if before == path.read_text() or breaks != expected[0] or not any(
                    expected[1] in sentence for _, sentence in told):
                bad += 1
                print(f"FAILED: {edited!r}: {told}")
    functions = {"function mha_f": ("int (void)", "0.1.0"), "function mha_g": ("int (int)", "0.1.0")}
    told = list(check_abi.compare("multihead", functions, {"function mha_g": "int (long)"}))
    if [breaks for breaks, _ in told] != [True, True]:
        bad += 1
        print(f"FAILED: a function that is gone, and one that changed: {told}")
    print(f"{len(EDITS) + 1} changes, {bad} not recognised")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
