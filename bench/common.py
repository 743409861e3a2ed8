"""Shared by the scripts of this folder: building the library, an environment with torch and other peers, and headings
with machine, date and commit."""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
SYSTEM_CPUS = pathlib.Path("/sys/devices/system/cpu")
PACKAGES = (["torch==2.13.0"], ["onnx", "onnxruntime", "openvino", "jax", "numpy"])


def fail(message):
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {message}")


def plural(count, noun):
    return f"{count} {noun}{'' if int(count) == 1 else 's'}"


def pattern(text):
    """The type of an option: a regular expression."""
    try:
        return re.compile(text)
    except re.error as problem:
        raise argparse.ArgumentTypeError(f"'{text}' is no regular expression: {problem}") from None


def thread_counts(text):
    """Of an option: "1,2"."""
    try:
        counts = [int(number) for number in text.split(",")]
    except ValueError:
        counts = []
    here = len(os.sched_getaffinity(0))
    if not 1 <= len(set(counts)) == len(counts) <= 4 or not 1 <= min(counts) <= max(counts) <= here:
        raise argparse.ArgumentTypeError(
            f"'{text}': give one to four different numbers such as 1,2, each from 1 to {here} (the "
            "processors that this process may use)")
    return counts


# ---- requirements --------------------------------------------------------------------------------


def build_step(log, *command):
    try:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        fail(f"{command[0]} is missing; script/demo installs what a build needs")
    if done.returncode:
        tail = pathlib.Path(log.name).read_text(errors="replace").splitlines()[-15:]
        print("\n".join(tail), file=sys.stderr)
        fail(f"building the shared library failed; the whole log is {log.name}. script/demo installs what "
             "a build needs; MHA_LIBRARY_DIR names the folder of a library built elsewhere")


def need_library(program=False):
    """Build or update build/libmultihead.so, and the program if requested. With MHA_LIBRARY_DIR, use that folder."""
    given = os.environ.get("MHA_LIBRARY_DIR")
    files = ["libmultihead.so"] + ["multihead"] * program
    if given:
        for name in files:
            if not (pathlib.Path(given) / name).exists():
                fail(f"MHA_LIBRARY_DIR: '{given}' has no {name}; without the variable it is built")
        return
    configured = (BUILD / "CMakeCache.txt").exists()
    missing = [name for name in files if not (BUILD / name).exists()]
    if configured or missing:
        if missing:
            print(f"building {' and '.join(missing)} in {BUILD}", file=sys.stderr)
        BUILD.mkdir(exist_ok=True)
        with open(BUILD / "library.log", "w") as log:
            if not configured:  # as in script/demo
                generator = ["-G", "Ninja"] if shutil.which("ninja") else []
                build_step(log, "cmake", "-S", str(ROOT), "-B", str(BUILD), *generator,
                           "-DCMAKE_BUILD_TYPE=Release", "-DMHA_TESTS=OFF")
            build_step(log, "cmake", "--build", str(BUILD), "--target", "multihead_shared",
                       *["multihead_program"] * program)
    os.environ["MHA_LIBRARY_DIR"] = str(BUILD)  # child processes need not search again


def enter_environment():
    """Restart with --here in build/peers, a virtual environment that the first call creates."""
    place = BUILD / "peers"
    python = place / "bin" / "python"
    if not (place / "ready").exists():
        print(f"installing {', '.join(sum(PACKAGES, []))} into {place}", file=sys.stderr)
        if subprocess.run([sys.executable, "-m", "venv", place]).returncode:
            fail(f"no virtual environment in {place}: install python3-venv (Debian's name)")
        for packages in PACKAGES:
            if subprocess.run([python, "-m", "pip", "install", "-q", *packages]).returncode:
                fail(f"pip could not install {', '.join(packages)}, for the reason above; run this again, "
                     "or with --here and a Python that has them")
        (place / "ready").touch()
    try:
        os.execv(python, [str(python), sys.argv[0], "--here", *sys.argv[1:]])
    except OSError as problem:
        fail(f"{python} cannot be started ({problem.strerror}); remove {place} and run this again")


def need_modules(*names, way="without --here an environment that has them is made"):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        fail(f"{sys.executable} has no {' and no '.join(missing)}; {way}")


def need_torch():
    """For scripts that create no environment."""
    need_modules("torch", way="'python3 -m venv build/torch && build/torch/bin/pip install torch' makes an "
                              f"environment that has it: build/torch/bin/python {sys.argv[0]}")


def run_main(main):
    """Run main(); Ctrl-C ends it without a traceback."""
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)


def start(here, *modules, program=False):
    """The library, and the Python that has the modules: this one if here, else that of build/peers."""
    need_library(program)
    if not here:
        enter_environment()
    need_modules(*modules)
    sys.path.insert(0, str(ROOT / "tests" / "python"))


def huge_pages():
    """Restart if needed, so that malloc requests huge pages, as multihead and NumPy do."""
    if "GLIBC_TUNABLES" not in os.environ:
        os.environ["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
        os.execv(sys.executable, [sys.executable, *sys.argv])


def use_processors(count):
    """Call this before any thread starts, so that all peers have the same processors."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(count)


def run_each(counts, arguments):
    """{number of threads: result of this script}, each from a separate process with arguments(n)."""
    found = {}
    for threads in counts:
        with tempfile.TemporaryDirectory(prefix="multihead-peers-") as place:
            path = pathlib.Path(place) / "found.json"
            done = subprocess.run([sys.executable, sys.argv[0], "--here", "--json", path,
                                   *arguments(threads)])
            if done.returncode:
                sys.exit(done.returncode)  # it reported the reason
            found.update(json.loads(path.read_text()))
    return found


# ---- machine -------------------------------------------------------------------------------------


def known_processors():
    """(vendor, family, first and last model, first and last stepping, name)"""
    text = (ROOT / "cli" / "bench" / "processors.inc").read_text()
    for row in re.findall(r"^PROCESSOR\((.*)\)$", text, re.M):
        vendor, *numbers, name = (part.strip() for part in row.split(",", 6))
        yield (vendor.strip('"'), *(int(n, 0) for n in numbers), name.strip('"'))


def processor():
    """The processor's name in `multihead bench --json`."""
    fields = {}
    try:
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            label, _, value = line.partition(":")
            fields.setdefault(label.strip(), value.strip())
    except OSError:
        pass

    def number(*labels):
        return next((int(fields[label], 0) for label in labels if label in fields), -1)

    vendor = fields.get("vendor_id") or fields.get("CPU implementer")
    family = number("cpu family", "CPU architecture")
    model, stepping = number("model", "CPU part"), number("stepping", "CPU revision")
    return {
        "processor": fields.get("model name"),
        "microarchitecture": next(
            (name for who, which, m0, m1, s0, s1, name in known_processors()
             if who == vendor and which == family and m0 <= model <= m1 and s0 <= stepping <= s1), None),
        "processor_id": f"{vendor} family {family} model {model} stepping {stepping}" if vendor else None}


def cpus_in(text):
    """How many "0-3,8" are."""
    ranges = [[int(end) for end in part.split("-")] for part in text.strip().split(",")]
    return sum(ends[-1] - ends[0] + 1 for ends in ranges)


def caches():
    """["L1 32 KB", "L2 512 KB", "L3 32 MB for 2 processors"]; empty if Linux does not report them."""
    said = []
    for place in sorted(SYSTEM_CPUS.glob("cpu0/cache/index*")):
        try:
            level, kind, size, shared = ((place / name).read_text().strip() for name in
                                         ("level", "type", "size", "shared_cpu_list"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            kilo, count = int(size[:-1]), cpus_in(shared)
            said.append(f"L{level} " + (f"{kilo // 1024} MB" if kilo % 1024 == 0 else f"{kilo} KB") +
                        (f" for {count} processors" if count > 1 else ""))
    return said


def commit():
    def git(*arguments):
        found = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True)
        return found.stdout.strip() if found.returncode == 0 else ""
    try:
        name = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--untracked-files=no")
    except OSError:
        name = changed = ""
    return (f"commit {name}" + (" with changes" if changed else "")) if name else "commit not known"


def heading(measured, *more):
    """The beginning of a Markdown section. measured: processor(), the instruction set and the date, or the output of
    `multihead bench --json`; more: further facts."""
    here = processor()
    name, kind, which = (measured.get(key) for key in here)
    title = ", ".join(filter(None, (kind, name))) or which or "a processor that is not known"
    facts = [which, *(caches() if which and which == here["processor_id"] else []), measured["isa"]]
    when = [measured.get("date") or "no date", commit(), *more]
    return f"## {title}\n\n{', '.join(filter(None, facts))}; {', '.join(when)}."


def today():
    return time.strftime("%Y-%m-%d")
