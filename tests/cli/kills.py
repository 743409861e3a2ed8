"""A training killed again and again while its files are written, slowly, on a tmpfs and on a disk:
it ends in the bits of an undisturbed one, and leaves no file that that one does not have."""
import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from disk import disk, operations  # noqa: E402

LONG = os.environ.get("MHA_TEST_LONG", "0") not in ("", "0")
SEED = int(os.environ.get("MHA_TEST_SEED", "0")) or random.randrange(1 << 30)
TASK = [PROGRAM, "train", "ioi", "--every", "2", "--steps", "8", "--tries", "1", "--quiet", "-o"]
MICROSECONDS = 10000  # that an operation waits
chance = random.Random(SEED)


def train(folder, **settings):
    return subprocess.run([*TASK, folder], capture_output=True, text=True, timeout=HANGS,
                          env=environment(**(disk(**settings) if settings else {})))


def bits(folder):
    """The model, and the names of all files."""
    return (hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
            sorted(path.name for path in folder.iterdir()))


def is_as(whole, folder, what):
    result = train(folder)
    return check(result.returncode == 0, f"{what}: exit {result.returncode}: {result.stderr}") and \
        check(bits(folder) == whole, f"{what}: {bits(folder)}, not {whole}")


def at_random_moments(place, whole, kills, lasts):
    """From outside, while files are slow. Most of the time goes into them. All folders end as they
    should; some of the kills leave a file behind, or the test is worth nothing."""
    done = finished = strays = 0
    folder = place / "random-0"
    while done < kills:
        begun = time.monotonic()
        running = subprocess.Popen([*TASK, folder], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE,
                                   env=environment(**disk(delay=MICROSECONDS)))
        try:
            code = running.wait(chance.uniform(0, lasts))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGKILL)
            code = running.wait()
        errors = running.stderr.read().decode("utf-8", "replace")
        running.stderr.close()
        if not check(code in (0, -signal.SIGKILL), f"killed {done} times: exit {code}: {errors}"):
            return
        done += code != 0
        strays += any(path.suffix == ".part" for path in folder.iterdir()) if folder.exists() else 0
        if code == 0:
            check(bits(folder) == whole, f"killed {done} times: {bits(folder)}, not {whole}")
            finished += 1
            lasts = min(lasts, time.monotonic() - begun)  # it was measured on a busier machine
            folder = place / f"random-{finished}"
    is_as(whole, folder, f"killed {done} times")
    check(strays > 0 or kills < 20, "no kill left a file behind: nothing was tested")
    print(f"{place}: {done} kills at random, {finished + 1} trainings, {strays} files left behind")


def at_each_operation(place, whole, count, most):
    """By itself, before an operation or in the middle of a write."""
    numbers = range(1, count + 1)
    strays = 0
    for number in numbers if LONG else sorted(chance.sample(numbers, most)):
        folder = place / f"operation-{number}"
        result = train(folder, kill=number)
        check(result.returncode == -signal.SIGKILL, f"operation {number}: {result.returncode}")
        strays += any(path.suffix == ".part" for path in folder.iterdir()) if folder.exists() else 0
        is_as(whole, folder, f"killed at operation {number} of {count}")
    check(strays > 0 or not LONG, "no kill left a file behind: nothing was tested")


def on_a_shared_disk(folder, whole):
    """Where locks say nothing, what is left behind is removed by nobody: another machine may be
    writing it. Neither here, nor where the same folder is local."""
    left = ["training.safetensors.mha-shared-0.part"]
    check(train(folder, shared=1, kill=4).returncode == -signal.SIGKILL, "shared: not killed")
    for where in ({"shared": 1}, {}):
        check([path.name for path in folder.glob("*.part")] == left, f"shared: {where}")
        check(train(folder, **where).returncode == 0, f"shared: {where}")
    check(bits(folder) == (whole[0], sorted(whole[1] + left)), f"shared: {bits(folder)}")


def stopped_while_saving(folder):
    """Ctrl-C in the middle of a save: it is finished, and the program ends as if stopped."""
    big = ["ioi", "--embed", "512", "--every", "2", "--steps", "100000", "--quiet", "-o", folder]
    running = subprocess.Popen([PROGRAM, "train", *big], stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env=environment(**disk(delay=100000)))
    while running.poll() is None and not ((folder / "training.safetensors").exists()
                                          and list(folder.glob("training.*.part"))):
        time.sleep(0.001)
    running.send_signal(signal.SIGINT)
    errors = running.communicate()[1].decode("utf-8", "replace")
    check((folder / "training.safetensors").stat().st_size > 1 << 18, "a state in several writes")
    check(running.returncode == -signal.SIGINT, f"Ctrl-C: exit {running.returncode}: {errors}")
    check((folder / "model.safetensors").exists() and not list(folder.glob("*.part")),
          f"Ctrl-C: {sorted(path.name for path in folder.iterdir())}")


print(f"seed {SEED}")
log = FOLDER / "log"
begun = time.monotonic()
check(train(FOLDER / "slow", delay=MICROSECONDS, log=log).returncode == 0, "slow")
lasts = time.monotonic() - begun
check(train(FOLDER / "whole").returncode == 0, "undisturbed")
whole = bits(FOLDER / "whole")
check(bits(FOLDER / "slow") == whole, "slow files change something")
count = len(operations(log))
check(count > 50, f"{count} operations")
places = [FOLDER]
if os.access("/dev/shm", os.W_OK):
    places.append(pathlib.Path("/dev/shm"))
for place in places:
    with tempfile.TemporaryDirectory(prefix="multihead-kills-", dir=place) as folder:
        at_random_moments(pathlib.Path(folder), whole, 100 if LONG else 4, lasts)
        at_each_operation(pathlib.Path(folder), whole, count, 4)
stopped_while_saving(FOLDER / "stopped")
on_a_shared_disk(FOLDER / "shared", whole)
finish()
