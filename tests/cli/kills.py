"""Kill a training repeatedly at file operations, on a tmpfs and on a disk. Its result must be
bit-identical to that of an uninterrupted training, without extra files. The state after a kill
depends only on the last operation and on a possible partial write, so these are all distinct
moments."""
import hashlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import operations, watched  # noqa: E402

TASK = [PROGRAM, "train", "ioi", "--every", "2", "--steps", "8", "--tries", "1", "--quiet",
        "--embed", "64", "-o"]
chance = seeded()


def train(folder, **settings):
    return subprocess.run([*TASK, folder], capture_output=True, text=True, timeout=HANGS,
                          env=environment(**(watched(**settings) if settings else {})))


def bits(folder):
    """The model and the names of all files."""
    return (hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
            sorted(path.name for path in folder.iterdir()))


def is_as(whole, folder, what):
    result = train(folder)
    return check(result.returncode == 0, f"{what}: exit {result.returncode}: {result.stderr}") and \
        check(bits(folder) == whole, f"{what}: {bits(folder)}, not {whole}")


def has_strays(folder):
    return folder.exists() and any(path.suffix == ".part" for path in folder.iterdir())


def again_and_again(place, whole, count, kills):
    """A training in one folder is killed at every resumption."""
    folder, strays = place / "again", 0
    for done in range(kills):
        result = train(folder, file=chance.randint(1, count // 4))
        check(result.returncode in (0, -signal.SIGKILL), f"killed {done} times: {result.returncode}: {result.stderr}")
        strays += has_strays(folder)
        if result.returncode == 0:
            check(bits(folder) == whole, f"killed {done} times: {bits(folder)}, not {whole}")
            folder = place / f"again-{done}"
    is_as(whole, folder, f"killed {kills} times")
    check(strays > 0 or kills < 20, "no kill left a file behind: nothing was tested")


def at_each_operation(place, whole, count, most):
    """Kills before an operation, or during a write."""
    numbers = range(1, count + 1)
    strays = 0
    for number in numbers if LONG else sorted(chance.sample(numbers, most)):
        folder = place / f"operation-{number}"
        result = train(folder, file=number)
        check(result.returncode == -signal.SIGKILL, f"operation {number}: {result.returncode}")
        strays += has_strays(folder)
        is_as(whole, folder, f"killed at operation {number} of {count}")
    check(strays > 0 or not LONG, "no kill left a file behind: nothing was tested")


def on_a_shared_disk(folder, whole):
    """Without reliable locks, leftover files are never removed, because another machine may be
    writing them. This also holds if the folder is local to that machine."""
    left = ["training.safetensors.mha-shared-0.part"]
    check(train(folder, shared=1, file=4).returncode == -signal.SIGKILL, "shared: not killed")
    for where in ({"shared": 1}, {}):
        check([path.name for path in folder.glob("*.part")] == left, f"shared: {where}")
        check(train(folder, **where).returncode == 0, f"shared: {where}")
    check(bits(folder) == (whole[0], sorted(whole[1] + left)), f"shared: {bits(folder)}")


def stopped_while_saving(place, done):
    """After Ctrl-C during the second save, the save is completed, and the program then ends like a
    stopped one."""
    renames = [number for number, (kind, *fields) in enumerate(done)
               if kind == "rename" and fields[1].endswith("/training.safetensors")]
    for number in range(renames[0] + 2, renames[1] + 3):
        folder = place / f"stopped-{number}"
        result = train(folder, file=number, signal=signal.SIGINT)
        check(result.returncode == -signal.SIGINT, f"Ctrl-C: exit {result.returncode}: {result.stderr}")
        check((folder / "model.safetensors").exists() and not has_strays(folder),
              f"Ctrl-C: {sorted(path.name for path in folder.iterdir())}")


log = FOLDER / "log"
check(train(FOLDER / "whole", log=log).returncode == 0, "undisturbed")
whole, done = bits(FOLDER / "whole"), operations(log)
check(len(done) > 50, f"{len(done)} operations")
places = [FOLDER]
if os.access("/dev/shm", os.W_OK):
    places.append(pathlib.Path("/dev/shm"))
for place in places:
    with tempfile.TemporaryDirectory(prefix="multihead-kills-", dir=place) as folder:
        again_and_again(pathlib.Path(folder), whole, len(done), 100 if LONG else 4)
        at_each_operation(pathlib.Path(folder), whole, len(done), 4)
stopped_while_saving(FOLDER, done)
on_a_shared_disk(FOLDER / "shared", whole)
finish()
