"""The examples in --help of run, explain and count succeed if their files exist.
"""
import shlex
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

T, WIDTH = 8, 64


def files():
    numbers = [(i * 37 % 17 - 8) / 8 for i in range(2 * T * WIDTH)]
    for name in "qkv":
        write_npy(FOLDER / f"{name}.npy", (2, 1, T, WIDTH), numbers)
    write_npy(FOLDER / "x.npy", (T, WIDTH), numbers[:T * WIDTH])
    header = {"x": {"dtype": "F32", "shape": [T, WIDTH], "data_offsets": [0, 4 * T * WIDTH]}}
    data = struct.pack(f"<{T * WIDTH}f", *numbers[:T * WIDTH])
    (FOLDER / "w.safetensors").write_bytes(safetensors_bytes(header, data))
    (FOLDER / "path" / "to").mkdir(parents=True)
    (FOLDER / "path" / "to" / "model-folder").symlink_to(MODEL)


def examples(command):
    page = run("help", command).out.decode()
    lines = page.split("Examples:\n")[1].split("\n\n")[0].replace("\\\n", " ")
    return [shlex.split(line)[1:] for line in lines.splitlines()]


def they_work():
    for command, least in (("run", 8), ("explain", 5), ("count", 5)):
        found = examples(command)
        check(len(found) >= least, f"{command}: {len(found)} examples")
        for arguments in found:
            result = run(*arguments)
            check(result.code == 0, f"{' '.join(arguments)}: exit {result.code}, {result.errors}")


files()
they_work()
finish()
