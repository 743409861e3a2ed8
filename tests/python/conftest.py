"""Skipped tests, the selection of cases for the gate, and shared fixtures."""
import importlib.util
import os
import pathlib
import random
import re
import signal
import subprocess

# Background jobs inherit an ignored SIGINT from the shell, and programs under test would inherit it
# too.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Two processes share two cores, so threads of torch and NumPy would compete.
for name, value in {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false",
                    "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1",
                    "TRANSFORMERS_VERBOSITY": "error"}.items():
    os.environ.setdefault(name, value)

import pytest

from shared import CHROMIUM, DEEP, HANGS, PROGRAM, ROOT, SEED, SMOLLM2, needs

PACKAGES = {"torch", "markdown_it", "nbformat", *re.findall(
    r"^\w+", (ROOT / "tests/python/requirements.txt").read_text(), re.M)}


def pytest_configure(config):
    config.addinivalue_line("markers", "gate(cases): how many cases of a test, or of a file, the gate takes")


class Module(pytest.Module):
    """A file of tests, which is skipped if one of PACKAGES is missing."""

    def collect(self):
        try:
            return super().collect()
        except self.CollectError as error:
            name = (getattr(error.__cause__, "name", None) or "").split(".")[0]
            if isinstance(error.__cause__, ModuleNotFoundError) and name in PACKAGES:
                pytest.skip(f"{self.path.name}: {name} is not installed", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path, parent):
    return Module.from_parent(parent, path=module_path)


def pytest_collection_modifyitems(config, items):
    """Without MHA_TEST_DEEP, keep only random cases of tests and files with the mark `gate`."""
    cases = {}
    for item in items:
        for node, mark in [] if DEEP else item.iter_markers_with_node("gate"):
            cases.setdefault((node.nodeid.split("[")[0], *mark.args), []).append(item)
            break  # a test's own mark precedes its file's
    left_out = set()
    for (name, count), of_one in cases.items():
        random.Random(f"{SEED} {name}").shuffle(of_one)
        left_out.update(of_one[count:])
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    if left_out := len(terminalreporter.stats.get("deselected", ())):
        terminalreporter.write_line(
            f"gate: {left_out} cases left to MHA_TEST_DEEP=1; MHA_TEST_SEED={SEED} takes the same ones again")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    """Exit with 77, which ctest counts as skipped, if nothing could run."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if exitstatus in (0, 5) and reporter.stats.get("skipped") and not reporter.stats.get("passed"):
        session.exitstatus = 77


@pytest.fixture(scope="session")
def browser():
    """Chromium, for all tests of the process."""
    from playwright import sync_api
    if not CHROMIUM:
        pytest.skip("no Chromium: install the package chromium, or set MHA_CHROMIUM")
    sync_api.expect.set_options(timeout=1000 * HANGS)
    with sync_api.sync_playwright() as playwright:
        engine = playwright.chromium.launch(executable_path=CHROMIUM, timeout=1000 * HANGS,
                                            args=["--no-sandbox", "--disable-gpu"])
        yield engine
        engine.close()


@pytest.fixture
def new_page(browser):
    """Opens pages in separate contexts, which close when the test ends."""
    contexts = []

    def opener(width=1400, height=1000, **options):
        contexts.append(browser.new_context(viewport={"width": width, "height": height},
                                            accept_downloads=True, **options))
        page = contexts[-1].new_page()
        page.set_default_timeout(1000 * HANGS)
        return page

    yield opener
    for context in contexts:
        context.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reports")


@pytest.fixture
def watched_page(new_page):
    """Opens an address; fails at the end on errors, console messages that are not allowed, and requests elsewhere."""
    complaints = []

    def opener(own, fragment="", allowed=(), **options):
        page = new_page(**options)
        # The test itself reads pixels back.
        page.on("console", lambda m: None if any(part in m.text for part in ("willReadFrequently", *allowed))
                else complaints.append(f"console {m.type}: {m.text}"))
        page.on("pageerror", lambda e: complaints.append(f"error: {e}"))
        page.on("dialog", lambda d: complaints.append(f"dialog: {d.message}"))
        page.on("request", lambda r: None if r.url.startswith((own, "data:", "blob:"))
                else complaints.append(f"request: {r.url}"))
        page.goto(own + fragment)
        return page

    yield opener
    assert complaints == []


@pytest.fixture
def open_page(watched_page):
    """Opens a file."""
    from html_report import wait_for_frames

    def opener(path, width=1400, height=1000, **options):
        page = watched_page(path.as_uri(), width=width, height=height, **options)
        if options.get("java_script_enabled", True):
            wait_for_frames(page)
        return page
    return opener


@pytest.fixture(scope="module")
def serve():
    """Starts `multihead serve` with a model; the result is its address."""
    servers = []

    def start(model):
        servers.append(subprocess.Popen([PROGRAM, "serve", "-q", str(model)], stdout=subprocess.PIPE, text=True))
        return servers[-1].stdout.readline().strip()
    yield start
    for server in servers:
        server.terminate()
        server.wait()
        server.stdout.close()


@pytest.fixture
def axe():
    """Returns the accessibility faults of a page, each with its elements."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None:
        pytest.skip("axe-playwright-python is not installed")
    script = (pathlib.Path(found.origin).parent / "axe.min.js").read_text()

    def check(page):
        page.evaluate(script)
        return [(one["id"], [node["html"] for node in one["nodes"]])
                for one in page.evaluate("() => axe.run()")["violations"]]
    return check


@pytest.fixture(scope="session")
def contexts():
    import multihead_ctypes as mha
    return [mha.Context(num_threads=2, isa=isa) for isa in mha.AVAILABLE]


@pytest.fixture(scope="session")
def smollm2():
    """SmolLM2 in transformers, in float32. All tests of the process share it and must not modify
    it."""
    needs(SMOLLM2, "is missing: tools/get-smollm2 fetches it")
    for name in ("torch", "transformers", "gguf", "accelerate"):
        pytest.importorskip(name)
    import torch
    import transformers
    return transformers.AutoModelForCausalLM.from_pretrained(
        SMOLLM2.parent, gguf_file=SMOLLM2.name, attn_implementation="eager", dtype=torch.float32).eval()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """The folder of a word model with two layers of four heads, after a few steps of training."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    subprocess.run([PROGRAM, "train", "sentences", "--steps", "3", "--quiet", "-o", str(folder)],
                   check=True, stdout=subprocess.DEVNULL)
    return folder
