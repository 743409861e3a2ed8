"""A copy of the tree with one text of one file altered; shared by planted faults and mutants."""
import contextlib
import filecmp
import pathlib
import shutil

ROOT = pathlib.Path(__file__).resolve().parent.parent
KEPT = ("CMakeLists.txt", "README.md", "bindings", "cli", "cmake", "docs", "examples", "include", "src", "tests", "tools")


def copy_tree(to):
    """Copy the files that the tests need. Unchanged files keep their times to avoid rebuilding; altered ones are
    written again."""
    wanted = set()
    for name in KEPT:
        whole = [ROOT / name] if (ROOT / name).is_file() else (ROOT / name).rglob("*")
        for source in whole:
            if not source.is_file() or "__pycache__" in source.parts:
                continue
            own = to / source.relative_to(ROOT)
            wanted.add(own)
            if own.is_file() and filecmp.cmp(source, own, shallow=False):
                continue
            own.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, own)
            shutil.copymode(source, own)
    for name in KEPT:
        for own in (to / name).rglob("*"):
            if own.is_file() and own not in wanted:
                own.unlink()


def holds_once(path, text):
    return path.is_file() and path.read_text().count(text) == 1


@contextlib.contextmanager
def altered(path, right, wrong):
    """Replace `right`, which the file contains once, by `wrong` while the context is open."""
    whole = path.read_text()
    path.write_text(whole.replace(right, wrong))
    try:
        yield
    finally:
        path.write_text(whole)
