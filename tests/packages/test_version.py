#!/usr/bin/env python3
"""A release candidate: MHA_VERSION_SUFFIX "-rc1" is in every version, in the form that sorts before
the release. Usage: test_version.py CMAKE"""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PARTS = ("CMakeLists.txt", "CHANGELOG.md", "pyproject.toml", "abi", "cmake", "examples", "include",
         "packaging", "script", "src", "tools")


def main():
    failures = []

    def check(truth, what):
        if not truth:
            failures.append(what)
            print(f"FAILED: {what}")

    with tempfile.TemporaryDirectory() as name:
        tree = pathlib.Path(name) / "tree"
        for part in PARTS:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            tree.mkdir(exist_ok=True)
            copy(ROOT / part, tree / part)
        header = tree / "include/multihead/multihead.h"
        text = header.read_text().replace('SUFFIX ""', 'SUFFIX "-rc1"')
        for part, number in (("MAJOR", 1), ("MINOR", 2), ("PATCH", 3)):
            text = re.sub(rf"(#define MHA_VERSION_{part}) \d+", rf"\1 {number}", text)
        header.write_text(text)

        told = subprocess.run([tree / "script/version"], capture_output=True, text=True, check=True)
        check(told.stdout == "1.2.3-rc1\n", f"script/version: {told.stdout}")
        build = tree / "build"
        subprocess.run([sys.argv[1], "-G", "Ninja", "-S", tree, "-B", build, "-DMHA_PACKAGES=ON", "-DMHA_TESTS=OFF",
                        "-DMHA_PROGRAM=OFF", "-DMHA_MODEL=OFF", "-DMHA_RENDER=OFF", "-DMHA_CIRCUITS=OFF", "-DMHA_MPI=OFF",
                        "-DCMAKE_INSTALL_PREFIX=/usr"], check=True, stdout=subprocess.DEVNULL)
        database = (build / "compile_commands.json").read_text()
        check("1.2.3-rc1" in database, "mha_version()")
        packages = (build / "CPackConfig.cmake").read_text()
        check('"1.2.3~rc1"' in packages and "libmultihead1" in packages, "the version of the .debs")
        check("libmultihead.so.1 libmultihead1" in (build / "debian/library/symbols").read_text(),
              "the SONAME of the .debs' symbols")
        check("Version: 1.2.3\n" in (build / "multihead.pc").read_text(), "multihead.pc")

        project = (tree / "pyproject.toml").read_text()
        match = re.search(re.search(r"(?s)regex = '''(.*?)'''", project).group(1), text)
        pattern = re.search(r'result = "(.*)"', project).group(1)
        wheel = pattern.format(**match.groupdict()) if match else None
        # PEP 440 normalises 1.2.3-rc1 to 1.2.3rc1, the version in the wheel's name.
        check(wheel in ("1.2.3rc1", "1.2.3-rc1"), f"the wheel's version: {wheel}")
    print("a candidate's version reaches all places" if not failures else f"{len(failures)} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
