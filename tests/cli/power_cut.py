"""A power cut at every moment of a training, which is then resumed from the disk.

The file operations of a training are logged (support/watch.c) and replayed on a model of a disk, up
to each of them. Unsynced data may be lost or incomplete: a file's content may be empty, half of the
data, zeros of the correct length, or complete. Any subset of the changes to names in a folder may
be done, but a renamed file is never at both places or at none. Each file must then be the last
synced one, or one that was begun later, and the resumed training must be bit-identical to an
undisturbed run.
"""
import itertools
import pathlib
import shutil
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, __file__.rsplit("/", 1)[0] + "/support")
from harness import *  # noqa: E402,F403
from watch import operations, watched  # noqa: E402

TASK = ["train", "ioi", "--every", "2", "--tries", "1", "--quiet", "--steps"]


class File:
    """The synced content, and later data."""

    def __init__(self, content=b"", synced=True):
        self.safe, self.now, self.synced = content, content, synced

    def write(self, at, data):
        self.now = self.now[:at].ljust(at, b"\0") + data + self.now[at + len(data):]
        self.synced = False

    def sync(self):
        self.safe, self.synced = self.now, True

    def after_cut(self):
        """Every possible content after a power cut."""
        if self.synced:
            return [self.safe]
        return [self.safe, self.now[:len(self.now) // 2], bytes(len(self.now)), self.now]


class Folder:
    """Synced names and later changes: each {name: file or None}."""

    def __init__(self, names):
        self.safe, self.changes = dict(names), []

    def change(self, names):
        self.changes.append(names)

    def sync(self):
        for names in self.changes:
            self.safe.update(names)
        self.changes = []

    def after_cut(self):
        """Every possible set of names after a power cut."""
        for kept in itertools.product((False, True), repeat=len(self.changes)):
            names = dict(self.safe)
            for change, is_kept in zip(self.changes, kept):
                if is_kept:
                    names.update(change)
            yield {name: file for name, file in names.items() if file is not None}


class Disk:
    """A folder and its parent. Syncs of objects in `lies` have no effect."""

    def __init__(self, path, before, lies=()):
        self.path, self.lies = str(path), lies
        self.root = Folder({"": True} if before is not None else {})
        self.folder = Folder({name: File(data) for name, data in (before or {}).items()})
        self.names = dict(self.folder.safe)  # names for a running program
        self.inodes = {}
        self.told = {name: [file.now] for name, file in self.names.items()}  # possible names
        self.renamed = []  # names renamed after the last sync of the folder

    def name_of(self, path):
        folder, name = path.rsplit("/", 1)
        assert folder == self.path, path
        return name

    def change(self, names):
        self.folder.change(names)
        self.names.update(names)

    def do(self, kind, *fields):
        if kind == "make":
            assert fields[0] == self.path, fields
            self.root.change({"": True})
        elif kind == "create":
            self.inodes[fields[0]] = File()
            self.change({self.name_of(fields[1]): self.inodes[fields[0]]})
        elif kind == "write":
            self.inodes[fields[0]].write(*fields[1:])
        elif kind == "sync":
            self.sync(*fields)
        elif kind == "rename":
            old, new = map(self.name_of, fields)
            file = self.names[old]
            self.told.setdefault(new, [None]).append(file.now)
            self.renamed.append(new)
            self.change({old: None, new: file})
        elif kind == "remove":
            self.change({self.name_of(fields[0]): None})

    def sync(self, inode, path):
        if path == self.path:
            what, synced = "folder", self.folder
            for name in self.renamed:  # the program assumes the new name
                self.told[name] = self.told[name][-1:]
            self.renamed = []
        elif path == str(pathlib.Path(self.path).parent):
            what, synced = "root", self.root
        else:
            what, synced = "file", self.inodes[inode]
        if what not in self.lies:
            synced.sync()

    def after_cut(self):
        """Every possible folder after a power cut: {name: content}, or None."""
        for root in self.root.after_cut():
            if not root:
                yield None
                continue
            for names in self.folder.after_cut():
                contents = [file.after_cut() for file in names.values()]
                for chosen in itertools.product(*contents):
                    yield dict(zip(names, chosen))

    def wrong(self, left):
        """Names of files whose content is neither the old nor the new version."""
        left = left or {}
        return [name for name, good in self.told.items() if left.get(name) not in good] + \
            [name for name in left if name not in self.told and not name.endswith(".part")]


def cuts(path, before, done):
    """Each distinct folder after a power cut during these operations, and its errors. The loop
    stops after many errors."""
    found, model = {}, Disk(path, before)
    for number in range(len(done) + 1):
        if len(model.folder.changes) > 8 or sum(len(wrong) for _, wrong in found.values()) > 8:
            check(False, f"operation {number}: names are not synced, or too much is wrong")
            break
        for left in model.after_cut():
            wrong = [f"{name} before operation {number}" for name in model.wrong(left)]
            key = None if left is None else tuple(sorted(left.items()))
            if key not in found or wrong:
                found[key] = (left, wrong)
        if number < len(done):
            model.do(*done[number])
    return list(found.values())


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def record(folder, steps):
    """The file operations of a training in a new or existing folder."""
    log = FOLDER / f"log-{steps}"
    check_good(run(*TASK, steps, "-o", folder, **watched(log=log)), f"recorded, {steps} steps")
    return operations(log)


def check_record(done, saves):
    """Check that the log contains all written data."""
    kinds = [kind for kind, *_ in done]
    renamed = [fields[1].rsplit("/", 1)[1] for kind, *fields in done if kind == "rename"]
    check(renamed.count("training.safetensors") == saves, f"the record: {saves} saves of {renamed}")
    check(set(renamed) == {"training.safetensors", "curve.csv", "config.json", "tokenizer.json",
                           "tokenizer_config.json", "model.safetensors", "report.html"},
          f"the record: {renamed}")
    check(kinds.count("sync") >= 2 * len(renamed) and kinds.count("create") == len(renamed),
          f"the record: {kinds}")


def go_on(number, left, steps, whole):
    """Run the program on the folder after a power cut."""
    target = FOLDER / f"cut-{number}"
    if left is not None:
        target.mkdir()
        for name, data in left.items():
            (target / name).write_bytes(data)
    result = run(*TASK, steps, "-o", target)
    if check_good(result, f"after a power cut that left {sorted(left or [])}"):
        model = target / "model.safetensors"
        check(model.read_bytes() == whole["model.safetensors"], f"power cut {number}: other bits")
        check(set(contents(target)) == set(whole), f"power cut {number}: {set(contents(target))}")
    shutil.rmtree(target)


def some(all_of_them, most):
    """A sample with even distances."""
    step = 1 if LONG else -(-len(all_of_them) // most)
    return all_of_them[::step]


def is_noticed(path, before, done, lie):
    """Whether errors occur if these syncs are omitted."""
    model = Disk(path, before, (lie,))
    for op in done:
        model.do(*op)
        if any(model.wrong(left) for left in model.after_cut()):
            return True
    return False


folder = FOLDER / "training"
first = record(folder, 4)
whole_first = contents(folder)
second = record(folder, 8)
whole_second = contents(folder)
check_record(first, 4)  # saved before step 1, at two evaluations, and at the end
check_record(second, 3)
check(whole_first["model.safetensors"] != whole_second["model.safetensors"], "another model")
numbers = itertools.count()
for before, done, steps, whole in ((None, first, 4, whole_first),
                                   (whole_first, second, 8, whole_second)):
    states = cuts(folder, before, done)
    for left, wrong in states:
        check(not wrong, f"a power cut leaves neither old nor new: {wrong}")
    check(len(states) > 40, f"{len(states)} states")
    sample = some(states, 12)
    for left, _ in sample:
        go_on(next(numbers), left, steps, whole)
    print(f"{len(done)} operations leave {len(states)} different folders; {len(sample)} gone on with")
    for lie in ("file", "folder") if before else ("file", "folder", "root"):
        check(is_noticed(folder, before, done, lie), f"control: no sync of the {lie} goes unnoticed")
finish()
