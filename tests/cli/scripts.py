"""The scripts of the project: their progress, reports of skipped tests, and messages about missing
packages. script/demo must build everything that `cmake --install` copies."""
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

BENCH, BUILD = ROOT / "bench", pathlib.Path(PROGRAM).resolve().parent


def shell(text, **changes):
    """Run `text` after script/lib.sh in a separate folder."""
    done = subprocess.run(["sh", "-euc", f". {ROOT}/script/lib.sh\n{text}"], capture_output=True,
                          check=False, cwd=FOLDER, env=environment(**changes), timeout=HANGS)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


# sleep returns when the command requests it, two seconds later on the fake clock.
CLOCK = """rm -f asleep wake; mkfifo asleep wake; echo 0 >now
date() { cat now; }
sleep() { echo >asleep; read -r _ <wake; echo $(($(cat now) + 2)) >now; }
"""


def steps():
    """A long step reports progress and the remaining time, also without a terminal."""
    command = "read x <asleep; for i in %s; do echo \"[$i/4] x\"; echo >wake; read x <asleep; done"
    for numbers, told in (("1 2 3 4", "1 of 4 steps, 2 s\n  2 of 4 steps, 4 s, about 4 s left\n"
                           "  3 of 4 steps, 6 s, about 2 s left\n  4 of 4 steps, 8 s, about 0 s left\n  done in 8 s"),
                          ("0", "2 s\n  done in 2 s")):
        code, out, err = shell(f"{CLOCK}step log Building sh -c '{command % numbers}'", MHA_WATCH="1")
        check(code == 0 and not out and err == f"Building ...\n  {told}\n", err)
    code, out, err = shell("step log Building sh -c 'echo what is wrong; exit 3'")
    check(code == 3 and "what is wrong\n" in err and "build/log.log" in err, f"{code}: {err}")


def skipped_tests():
    """Each skipped test is listed with its reason. Without skipped tests, nothing is printed."""
    if not shutil.which("ctest"):
        return
    tests = FOLDER / "tests"
    tests.mkdir()
    made = {"one": "echo skipped: no valgrind; exit 77", "two": "echo skipped in passing",
            "three": "echo 'SKIPPED [1] x.py:3: no torch'; echo; echo 1 skipped; exit 77",
            "four": "exit 77", "five": "true"}
    (tests / "CTestTestfile.cmake").write_text("".join(
        f'add_test({name} sh -c "{text}")\n'
        f"set_tests_properties({name} PROPERTIES SKIP_RETURN_CODE 77)\n" for name, text in made.items()))
    subprocess.run(["ctest", "--test-dir", tests], capture_output=True, check=False)
    code, _, err = shell("skipped_tests tests")
    check(code == 0 and err == "Skipped, and why:\n  one: no valgrind\n  three: x.py:3: no torch\n"
          "  four: it does not say why\n", err)
    # A skipped test does not count as passed.
    code, _, err = shell("count_tests tests '; more'")
    check(code == 0 and err == "2 tests passed, 0 failed, 3 skipped; more\n", err)
    check(shell("skipped_tests .") == (0, "", ""), "no test was run")
    script = (ROOT / "script" / "test").read_text()
    check(re.search(r"skipped_tests build\n.*--all.*\ncount_tests build \S+\n\[", script), "script/test lists them, and counts them last")


def packages():
    """script/test --all and .ci/run create the same environment, which has one definition."""
    made = {}
    for name in ("script/lib.sh", "script/test", ".ci/run"):
        text = (ROOT / name).read_text()
        made[name] = (len(re.findall(r"pip install", text)), len(re.findall(r"\bmake_venv\b(?!\(\)|:)", text)))
    check(made["script/lib.sh"][0] == 2 and not made["script/test"][0] and not made[".ci/run"][0], f"said once: {made}")
    check(made["script/test"][1] and made[".ci/run"][1], f"both call it: {made}")
    code, _, err = shell("""mkdir -p build/venv/bin tools
printf '#!/bin/sh\\necho "$*" >>made; [ "$5" != torch==2.13.0 ] || exit ${BAD:-0}\\n' >build/venv/bin/python
printf '#!/bin/sh\\necho model >>made\\n' >tools/get-minilm
for name in smollm2 rxnmapper; do cp tools/get-minilm tools/get-$name; done
chmod +x build/venv/bin/python tools/*; make_venv; ! (export BAD=1; make_venv)""")
    lines = (FOLDER / "made").read_text().splitlines()
    check(code == 0 and [line.split()[-1] for line in lines] == [
        "torch==2.13.0", "tests/python/requirements.txt", "model", "model", "model", "torch==2.13.0"], f"{code}: {err} {lines}")


def missing():
    """A message of one line names the missing packages and the command that installs them."""
    for script, arguments, words in (
            ("peers.py", ["--here"], ("numpy", "torch", "without --here")),
            ("caches_peers.py", ["--here"], ("onnxruntime", "without --here")),
            ("training.py", ["--here"], ("torch", "without --here")),
            ("long_torch.py", [], ("torch", "pip install torch")),
            ("long_backward_torch.py", [], ("torch", "pip install torch")),
            ("long_torch.py", ["x"], ("LENGTH", "'x'")),
            ("long_plot.py", ["none.md", "x.svg"], ("none.md", "No such file")),
            ("table.py", ["none.json"], ("none.json", "No such file"))):
        with_library = {"MHA_LIBRARY_DIR": str(BUILD)}
        done = subprocess.run([sys.executable, "-S", BENCH / script, *arguments], capture_output=True,
                              check=False, cwd=FOLDER, env=environment(**with_library), timeout=HANGS)
        err = done.stderr.decode()
        check(done.returncode in (1, 2) and "Traceback" not in err and
              all(word in err for word in words), f"{script} {arguments}: {done.returncode} {err}")
    seen = subprocess.run(["sh", "-c", f"{sys.executable} {ROOT}/tools/sentences.py | head -n 1"],
                          capture_output=True, check=False, env=environment(), timeout=HANGS)
    check(seen.stdout == b"# sent_id = 1\n" and not seen.stderr, f"a closed pipe: {seen.stderr}")


def installed():
    """The target of script/demo includes every library and program of the install rules."""
    check(re.search(r"^build installed\b", (ROOT / "script" / "demo").read_text(), re.M), "the demo")
    if not (BUILD / "build.ninja").exists():
        return
    rules = "".join(path.read_text() for path in BUILD.rglob("cmake_install.cmake"))
    copied = {pathlib.Path(name).name for name in re.findall(rf'"{BUILD}/([^"/]+)"', rules)
              if not name.endswith((".cmake", ".pc")) and "$" not in name}
    copied = {re.sub(r"\.so\.[0-9.]+$", ".so", name) for name in copied}
    asked = subprocess.run(["ninja", "-C", BUILD, "-t", "query", "installed"], capture_output=True,
                           text=True, check=False).stdout
    built = {line.strip() for line in asked.splitlines() if line.startswith("    ")}
    check(copied and copied <= built, f"copied, but not built: {sorted(copied - built)} of {sorted(copied)}")


steps()
skipped_tests()
packages()
missing()
installed()
finish()
