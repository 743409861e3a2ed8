"""The wheel, as a user gets it: made by script/wheel, installed into an empty environment without a
compiler on PATH, and the page docs/python.md run there.

It fetches build tools and NumPy, so it runs only with MHA_TEST_WHEEL=1. It packs what build/ holds; with
MHA_TEST_LONG=1 also the source archive is made, and the wheel built from it.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

if os.environ.get("MHA_TEST_WHEEL", "0") in ("", "0"):
    pytest.skip("set MHA_TEST_WHEEL=1 to make and install the wheel", allow_module_level=True)
ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("MHA_LIBRARY_DIR") or ROOT / "build").resolve()
LONG = os.environ.get("MHA_TEST_LONG", "0") not in ("", "0")


def run(*command, **keywords):
    found = subprocess.run([str(word) for word in command], capture_output=True, text=True, **keywords)
    assert found.returncode == 0, f"{command}: {found.stdout[-4000:]}{found.stderr[-4000:]}"
    return found.stdout


@pytest.fixture(scope="module", params=["prebuilt", pytest.param("source", marks=pytest.mark.skipif(
    not LONG, reason="the wheel of the source archive takes minutes: MHA_TEST_LONG=1"))])
def wheel(request, tmp_path_factory):
    out = tmp_path_factory.mktemp("dist")
    run(ROOT / "script/wheel", "--out", out, *(
        ["--build", BUILD] if request.param == "prebuilt" else []))
    archives = list(out.glob("multihead-*.tar.gz"))
    assert len(archives) == (request.param == "source")
    (found,) = out.glob("multihead-*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """(environment's folder, variables): nothing on PATH but what the environment has."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    variables = {name: value for name, value in os.environ.items()
                 if not name.startswith(("MHA_", "PYTHON", "LD_"))}
    run(folder / "bin/python", "-m", "pip", "install", "--only-binary=:all:", wheel, env=variables)
    variables["PATH"] = str(folder / "bin")
    assert not shutil.which("cc", path=variables["PATH"])
    return folder, variables


def test_tag_and_contents(wheel):
    # The C library of this machine bounds how old one may be.
    name = re.fullmatch(r"multihead-([\d.]+)-py3-none-manylinux_2_(\d+)_(\w+)\.whl", wheel.name)
    assert name, wheel.name
    assert int(name[2]) <= int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1])
    files = zipfile.ZipFile(wheel).namelist()
    for part in ("multihead/__init__.py", "multihead/py.typed", "multihead/bin/multihead",
                 "multihead/lib/libmultihead.so.0", "multihead/lib/libmultihead-model.so.0",
                 "multihead/lib/libmultihead-render.so.0", "multihead/fonts/DejaVuSans.ttf",
                 "multihead/lib/libmultihead-circuits.so.0"):
        assert part in files
    licences = [pathlib.PurePath(file).name for file in files if "/licenses/" in file]
    for name in ("jansson", "utf8proc", "pcre2", "png", "freetype", "dejavu", "LICENSE"):
        assert any(name in licence for licence in licences), licences


def test_readme_lines_run_without_a_compiler(installed, tmp_path):
    folder, variables = installed
    for script in ("page_examples.py",):
        shutil.copy(ROOT / "tests/python" / script, tmp_path)
    shutil.copy(ROOT / "docs/python.md", tmp_path)
    printed = run(folder / "bin/python", "page_examples.py", "python.md", cwd=tmp_path, env=variables)
    assert re.search(r"python.md: \d\d+ examples, 0 failed", printed)
    where = run(folder / "bin/python", "-c", "import multihead; print(multihead.__file__)",
                cwd=tmp_path, env=variables)
    assert where.startswith(str(folder))


def test_companions_load(installed, tmp_path):
    folder, variables = installed
    run(folder / "bin/python", "-c", "from multihead import _library as l; l.model_library(); "
        "l.render_library(); assert l.font().endswith('DejaVuSans.ttf')", cwd=tmp_path, env=variables)


def test_program_is_a_command(installed, tmp_path):
    folder, variables = installed
    for command in ([folder / "bin/multihead"], [folder / "bin/python", "-m", "multihead"]):
        assert run(*command, "--version", cwd=tmp_path, env=variables).startswith("multihead 0.")
    found = subprocess.run([folder / "bin/multihead", "nonsense"], capture_output=True, text=True,
                           cwd=tmp_path, env=variables)
    assert found.returncode != 0 and "nonsense" in found.stderr
