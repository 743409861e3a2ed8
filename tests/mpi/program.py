"""The program on ranks that mpirun starts. tests/cli/ranks.py covers the cases in detail with
sockets; this test makes one pass over MPI. A training, scores and a text must be bit-identical to
one process, an error of one rank must be reported once, and all ranks must exit if a rank is killed
or interrupted.

The variable MULTIHEAD names the program, MPIEXEC the launcher. The test is skipped under a
sanitizer, which would report leaks and races in MPI's own libraries.
"""
import hashlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "support"))
import mpirun  # noqa: E402

PROGRAM = os.environ["MULTIHEAD"]
MODEL = ROOT / "tests" / "golden" / "tiny-bert"
TRAIN = (PROGRAM, "train", "sentences", "--threads", "1", "--no-report", "--every", "3", "--tries", "1")
RANK = "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"


def bits(folder):
    return hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()


def one(*program):
    return subprocess.run([*map(str, program)], capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd=ROOT)


def ranks(count, *program, **more):
    return mpirun.run(count, program, **more)


def training(folder):
    one(*TRAIN, "--steps", 12, "-o", folder / "whole")
    done = ranks(3, *TRAIN, "--steps", 12, "-o", folder / "ranks")
    assert done.returncode == 0 and bits(folder / "ranks") == bits(folder / "whole"), done
    assert done.stdout.count("Goal missed after 12 steps") == 1 and done.stderr.count("step 12/12") == 1, done
    names = [sorted(path.name for path in (folder / name).iterdir()) for name in ("whole", "ranks")]
    assert names[0] == names[1], names
    return "training: the bits of one process"


def measured(folder):
    text = folder / "texts.txt"
    text.write_text("the cat sat on a mat\nand it was too tired to cross\na dog ran\n" * 5)
    heads = (PROGRAM, "heads", MODEL, "--text", text, "--random", 5, "--json", "--corpus", "--threads", 1, "-q", "-o")
    single, done = one(*heads, folder / "one.html"), ranks(3, *heads, folder / "ranks.html")
    assert single.returncode == done.returncode == 0 and done.stdout == single.stdout, (single, done)
    assert (folder / "ranks.html").read_bytes() == (folder / "one.html").read_bytes(), "heads: another page"
    generate = (PROGRAM, "generate", folder / "whole", "1 2 3", "--ids", "--max-tokens", 12, "-q", "--threads", 1)
    single, done = one(*generate), ranks(2, *generate)
    assert single.returncode == done.returncode == 0 and done.stdout == single.stdout, (single, done)
    return "heads, and a text by a model whose layers are spread: the bytes of one process"


def reported(done):
    return [line for line in done.stderr.splitlines() if line.startswith("multihead")]


def errors(folder):
    (folder / "own1").mkdir()
    for rank in "02":
        (folder / f"own{rank}").symlink_to(folder / "whole")
    there = ("sh", "-c", f'cd "$0/own{RANK}" && exec "$@"', folder)
    done = ranks(3, *there, PROGRAM, "generate", ".", "1 2", "--ids")
    said = reported(done)
    assert done.returncode == 3 and len(said) == 1 and said[0].startswith("multihead: generate: rank 1: "), done
    differs = f'if [ "{RANK}" = 1 ]; then exec "$0" "$@" --seed 7; else exec "$0" "$@"; fi'
    done = ranks(2, "sh", "-c", differs, *TRAIN)
    said = reported(done)
    assert done.returncode == 2 and len(said) == 1, done
    assert said[0].startswith("multihead: rank 1: has another command line than rank 0"), done
    done = ranks(2, *TRAIN, MHA_MPI_LIBRARY="/nowhere/libmultihead-mpi.so")
    assert done.returncode == 5 and done.stderr.count("MHA_MPI_LIBRARY") in (1, 2) and done.stdout == "", done
    return "a model that rank 1 lacks, another command line, no library: reported once"


def is_program(number):
    try:
        return os.path.realpath(f"/proc/{number}/exe") == os.path.realpath(PROGRAM)
    except OSError:
        return False


def children(process):
    """The program's processes under a launcher."""
    found, todo = [], [process]
    while todo:
        for path in pathlib.Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            try:
                below = [int(number) for number in path.read_text().split()]
            except OSError:
                continue
            todo += below
            found += below
    return sorted(number for number in found if is_program(number))


def signalled(folder, count, place, number):
    """Run an endless training, and signal one rank after the first step that rank 0 reports. Return
    its folder, the launcher's exit status and its output after all ranks have exited."""
    program = (*TRAIN, "--steps", 10000000, "-o", folder)
    with tempfile.TemporaryFile() as nothing:
        running = mpirun.start(count, program, stdout=nothing)
        said = ""
        while not re.search(r"step \d+/", said):
            line = running.stderr.readline()
            assert line, f"ended: exit {running.wait()}: {said}"
            said += line
        found = children(running.pid)
        assert len(found) == count, (found, said)
        os.kill(found[place], number)
        said += running.stderr.read()
        running.wait()
    while any(is_program(left) for left in found):
        time.sleep(0.01)
    return running.returncode, said


def killed(folder):
    """All ranks exit, and the resumed training is bit-identical to an uninterrupted one."""
    code, said = signalled(folder / "killed", 3, 1, signal.SIGKILL)
    assert code != 0, said
    steps = ("--steps", int(re.findall(r"step (\d+)/", said)[-1]) + 6)
    done = ranks(2, *TRAIN, *steps, "-o", folder / "killed")
    one(*TRAIN, *steps, "-o", folder / "never")
    assert done.returncode == 0 and bits(folder / "killed") == bits(folder / "never"), done
    _, said = signalled(folder / "interrupted", 2, 1, signal.SIGTERM)
    assert said.count("interrupted after step") == 1, said
    return "a rank killed: all end, and two continue; a rank interrupted: all stop after the same step"


def missing():
    if os.environ.get("MHA_SANITIZE"):
        return "MPI's own libraries leak and race under a sanitizer"
    library = pathlib.Path(PROGRAM).parent / "libmultihead-mpi.so.0"
    return mpirun.missing() or ("" if library.exists() else f"there is no {library}")


def main():
    why = missing()
    if why:
        print(f"skipped: {why}")
        return 77
    with tempfile.TemporaryDirectory(prefix="mha-program-") as name:
        for part in (training, measured, errors, killed):
            print(part(pathlib.Path(name)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
