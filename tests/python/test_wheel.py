"""The users' wheels: script/wheel builds them, and the test installs them into an empty environment
without a compiler on PATH, in which the page docs/python.md runs.

This downloads build tools and NumPy, so it runs only with MHA_TEST_WHEEL=1. It packs build/.
MHA_TEST_LONG=1 adds the source archive, which pip builds and installs, and the wheels of a release
for this machine and for aarch64, which runs under qemu. Their results are bit-identical to build/.
"""
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
import zipfile

import pytest

from shared import LIBRARY_DIR, LONG, ROOT, is_set

pytestmark = [pytest.mark.gate(0), pytest.mark.skipif(
    not is_set("MHA_TEST_WHEEL"), reason="set MHA_TEST_WHEEL=1 to make and install the wheel")]
BUILD = LIBRARY_DIR.resolve()


def run(*command, **keywords):
    found = subprocess.run([str(word) for word in command], capture_output=True, text=True, **keywords)
    assert found.returncode == 0, f"{command}: {found.stdout[-4000:]}{found.stderr[-4000:]}"
    return found.stdout


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """The folder with the output of script/wheel for a release."""
    out = tmp_path_factory.mktemp("dist")
    found = subprocess.run([ROOT / "script/wheel", "--out", out], capture_output=True, text=True)
    if found.returncode == 77:
        pytest.skip("script/wheel: " + found.stderr.strip().splitlines()[-1])
    assert found.returncode == 0, found.stdout[-4000:] + found.stderr[-4000:]
    return out


def of_release(release, arch):
    (found,) = release.glob(f"multihead-*_{arch}.whl")
    return found


LONG_ONLY = pytest.mark.skipif(not LONG, reason="what a release has takes minutes: MHA_TEST_LONG=1")


@pytest.fixture(scope="module", params=["prebuilt", pytest.param("release", marks=LONG_ONLY),
                                        pytest.param("source", marks=LONG_ONLY)])
def wheel(request, tmp_path_factory):
    """The file that pip installs: a wheel of build/, a wheel of a release, or the source
    archive."""
    if request.param == "prebuilt":
        out = tmp_path_factory.mktemp("dist")
        run(ROOT / "script/wheel", "--out", out, "--build", BUILD)
        assert not list(out.glob("*.tar.gz"))
        (found,) = out.glob("multihead-*.whl")
        return found
    release = request.getfixturevalue("release")
    if request.param == "source":
        (found,) = release.glob("multihead-*.tar.gz")
        return found
    return of_release(release, platform.machine())


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """(the environment's folder, variables), with only the environment on PATH."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", folder)
    variables = {name: value for name, value in os.environ.items()
                 if not name.startswith(("MHA_", "PYTHON", "LD_"))}
    only = [] if wheel.suffix == ".gz" else ["--only-binary=:all:"]
    run(folder / "bin/python", "-m", "pip", "install", *only, wheel, env=variables)
    variables["PATH"] = str(folder / "bin")
    assert not shutil.which("cc", path=variables["PATH"])
    return folder, variables


def check_tag_and_contents(wheel, newest, arch):
    name = re.fullmatch(r"multihead-([\d.]+)-py3-none-manylinux_2_(\d+)_(\w+)\.whl", wheel.name)
    assert name, wheel.name
    assert int(name[2]) <= newest and name[3] == arch
    files = zipfile.ZipFile(wheel).namelist()
    for part in ("multihead/__init__.py", "multihead/py.typed", "multihead/bin/multihead",
                 "multihead/lib/libmultihead.so.0", "multihead/lib/libmultihead-model.so.0",
                 "multihead/lib/libmultihead-render.so.0", "multihead/lib/libmultihead-show.so.0",
                 "multihead/fonts/DejaVuSans.ttf"):
        assert part in files
    licences = [pathlib.PurePath(file).name for file in files if "/licenses/" in file]
    own = ["zlib"] if int(name[2]) == 28 else []  # a library of this machine; auditwheel permits it
    for name in ("jansson", "utf8proc", "pcre2", "png", "freetype", "cairo", "pixman", "dejavu", "LICENSE", *own):
        assert any(name in licence for licence in licences), licences


def test_tag_and_contents(wheel):
    if wheel.suffix == ".gz":
        pytest.skip("an archive of sources has no tag")
    # The C library of this machine sets the minimum version.
    check_tag_and_contents(wheel, int(os.confstr("CS_GNU_LIBC_VERSION").split(".")[1]), platform.machine())


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


def test_program_serves(installed, tmp_path):
    folder, variables = installed
    with subprocess.Popen([folder / "bin/multihead", "serve", ROOT / "tests/golden/tiny-bert"], cwd=tmp_path,
                          env=variables, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            with urllib.request.urlopen(server.stdout.readline().strip()) as page:
                assert b"tiny-bert" in page.read()
        finally:
            server.terminate()


# ---- the wheels of a release: old C libraries, another architecture, the same bits --------------------


@LONG_ONLY
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_release_runs_with_old_c_libraries(release, arch, tmp_path):
    wheel = of_release(release, arch)
    check_tag_and_contents(wheel, 28, arch)
    zipfile.ZipFile(wheel).extractall(tmp_path)
    files = [*(tmp_path / "multihead/lib").iterdir(), tmp_path / "multihead/bin/multihead"]
    assert len(files) == 5
    for file in files:
        versions = re.findall(r"GLIBC_2\.(\d+)", run("readelf", "-VW", file))
        assert versions and max(map(int, versions)) <= 28, (file, versions)


@pytest.fixture(scope="module")
def arm(tmp_path_factory):
    """(command that runs 64-bit Arm programs, its Python). Both are Debian's, unpacked into a
    folder."""
    root, qemu = tmp_path_factory.mktemp("arm64"), shutil.which("qemu-aarch64")
    if not qemu:
        pytest.skip("there is no qemu-aarch64 (Debian: qemu-user)")
    depends = subprocess.run(["apt-cache", "depends", "python3-minimal:arm64"], capture_output=True, text=True)
    version = re.search(r"Depends: (python3\.\d+)-minimal", depends.stdout)
    if not version:
        pytest.skip("apt knows no python3-minimal:arm64 (dpkg --add-architecture arm64; apt-get update)")
    packages = [f"{version[1]}-minimal", f"lib{version[1]}-minimal", f"lib{version[1]}-stdlib", "libc6",
                "libexpat1", "zlib1g", "libffi8", "libstdc++6", "libgcc-s1"]
    fetched = subprocess.run(["apt-get", "download", *(name + ":arm64" for name in packages)], cwd=root,
                             capture_output=True, text=True)
    if fetched.returncode != 0:
        pytest.skip("apt-get download: " + fetched.stderr.strip().splitlines()[-1])
    for package in root.glob("*.deb"):
        run("dpkg-deb", "--extract", package, root)
    return [qemu, "-L", root], root / "usr/bin" / version[1]


def runner(arch, request):
    if arch == platform.machine():
        return []
    if arch != "aarch64":
        pytest.skip(f"programs of {arch} do not run on {platform.machine()}")
    return request.getfixturevalue("arm")[0]


@LONG_ONLY
@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_release_has_the_bits_of_this_build(release, arch, request, tmp_path):
    here = BUILD / "tests/bits_digest"
    if not here.exists():
        pytest.skip(f"{here} is not built")
    emulator = runner(arch, request)
    zipfile.ZipFile(of_release(release, arch)).extractall(tmp_path)
    library, there = tmp_path / "multihead/lib/libmultihead.so.0", tmp_path / "digest"
    run(ROOT / "build/wheel" / arch / "cc", "-std=c17", "-O1", "-ffp-contract=off", "-D_POSIX_C_SOURCE=200809L",
        f"-I{ROOT}/tests", f"-I{ROOT}/include", ROOT / "tests/bits/digest.c", ROOT / "tests/support/rng.c",
        library, f"-Wl,-rpath,{library.parent}", "-lm", "-o", there,
        env=os.environ | {f"ZIG_{kind}_CACHE_DIR": str(tmp_path / "zig") for kind in ("LOCAL", "GLOBAL")})
    fused = [isa for isa in ("avx2", "avx512", "amx", "neon") if subprocess.run(
        [here, isa], capture_output=True).returncode == 0]
    pairs = [("portable", "portable")]
    if arch == platform.machine():
        pairs += [(isa, isa) for isa in fused]
    else:  # NEON is bit-identical to all others with fused multiply-adds
        pairs += [("neon", isa) for isa in fused[:1]]
    print("  compared:", arch, pairs)
    for isa, isa_here in pairs:
        expected = run(here, isa_here)
        assert expected.count("\n") > 40
        assert run(*emulator, there, isa) == expected, (arch, isa)
    # The wheel must select the best instruction set: without the detection of the processor, it
    # would only be slow.
    program = tmp_path / "multihead/bin/multihead"
    program.chmod(0o755)
    explained = run(*emulator, program, "explain", "--heads", "1", "--head-dim", "16", "--json")
    assert f'"isa": "{pairs[-1][0]}"' in explained


PROBE = """
import hashlib, numpy, multihead
rng = numpy.random.default_rng(1)
q, k, v = (numpy.float32(rng.integers(-4096, 4096, (2, 4, 37, 24))) / 2048 for _ in range(3))
o, extra = multihead.attention(q, k, v, causal=True, outputs=("lse", "entropy"))
g = multihead.attention_backward(q, k, v, o, extra.lse, numpy.ones_like(o), causal=True)
for array in (o, extra.lse, extra.entropy, g.q, g.k, g.v):
    print(hashlib.sha256(array.tobytes()).hexdigest())
print(multihead.explain(q, k, v).isa)
"""


@LONG_ONLY
def test_package_on_arm(release, arm, tmp_path):
    emulator, python = arm
    version = python.name.removeprefix("python")
    site, numpy = tmp_path / "site", tmp_path / "numpy"
    run(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--dest", numpy,
        "--python-version", version, "--platform", "manylinux_2_28_aarch64",
        "--platform", "manylinux_2_27_aarch64", "--platform", "manylinux2014_aarch64", "numpy")
    for wheel in (of_release(release, "aarch64"), *numpy.iterdir()):
        zipfile.ZipFile(wheel).extractall(site)
    found = run(*emulator, python, "-c", PROBE, env={"PYTHONPATH": str(site), "PATH": os.environ["PATH"]}).split()
    assert len(found) == 7 and found[-1] == "neon"
    program = site / "multihead/bin/multihead"
    program.chmod(0o755)
    assert "all checks pass" in run(*emulator, program, "selftest", "--problems", "3")
    here = run(sys.executable, "-c", PROBE, env=os.environ | {"PYTHONPATH": str(ROOT / "bindings/python"),
                                                               "MHA_LIBRARY_DIR": str(BUILD)}).split()
    if here[-1] == "portable":
        pytest.skip("no fused multiply-adds here: the bits of Arm's cannot be compared")
    assert found[:-1] == here[:-1]
