"""The stack required by docs/program.md suffices for the most demanding commands."""
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403

KILOBYTES = 256


def small(*arguments):
    command = f'ulimit -s {KILOBYTES} && exec "$0" "$@"'
    done = subprocess.run(["sh", "-c", command, PROGRAM, *map(str, arguments)],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False,
                          env=environment(), timeout=HANGS, cwd=FOLDER)
    check_good(Result(done), f"{arguments}")


def main():
    program = pathlib.Path(PROGRAM).read_bytes()
    if b"__asan_init" in program or b"__tsan_init" in program:
        print("skipped: sanitizers make frames larger")
        sys.exit(77)
    check(f"{KILOBYTES} KiB" in (ROOT / "docs/program.md").read_text(), "the manual says so")
    small("view", MODEL, TEXT, "-o", "report.html", "--png", "maps.png", "--svg", "maps.svg")
    small("heads", MODEL, TEXT)
    small("explain", "--like", "gpt2", "--svg", "explain.svg")
    for task in ("sentences", "pronouns", "induction", "ioi", "reverse", "agreement", "brackets"):
        small("train", task, "--layers", 1, "--heads", 2, "--embed", 16, "--steps", 4, "--every", 2,
              "--tries", 1, "-o", task)
    small("generate", "sentences", "the", "--max-tokens", 4)
    (FOLDER / "text.txt").write_text("the king didn't leave .\n" * 40)
    small("perplexity", "sentences", "--text", "text.txt")


main()
finish()
