"""examples/first_hour.ipynb runs from beginning to end, in a kernel of its own.

Needs nbclient, ipykernel, torch, and the model that tools/get-smollm2 fetches; the library and the
program are those in MHA_LIBRARY_DIR. What the cells claim they assert themselves.
"""
import os
import pathlib

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed")
pytest.importorskip("ipykernel", reason="ipykernel is not installed")
pytest.importorskip("torch", reason="torch is not installed")

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples/first_hour.ipynb"
if not (ROOT / "build/models/smollm2-135m-instruct-q4_1.gguf").exists():
    pytest.skip("the model is missing: tools/get-smollm2 fetches it", allow_module_level=True)


def test_runs(monkeypatch):
    library = pathlib.Path(os.environ.get("MHA_LIBRARY_DIR", ROOT / "build")).resolve()
    monkeypatch.setenv("MHA_LIBRARY_DIR", str(library))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "bindings/python"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3",
                                     resources={"metadata": {"path": str(NOTEBOOK.parent)}})
    client.execute()
    shown = "".join(output.get("data", {}).get("text/html", "") for cell in notebook.cells
                    for output in cell.get("outputs", []))
    assert "<svg" in shown and shown.count("<iframe title") == 1  # the heat map, the lines
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs, f"prints nothing: {cell.source}"


def test_is_kept_without_outputs():
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs") and cell.get("execution_count") is None
