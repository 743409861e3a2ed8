"""examples/first_hour.ipynb runs from beginning to end, in a separate kernel.

Needs nbclient, ipykernel, torch, and the model of tools/get-smollm2; the library and the program are those in
MHA_LIBRARY_DIR. The cells assert their own claims.
"""
import nbclient
import nbformat
import pytest

from shared import HANGS, LIBRARY_DIR, ROOT, SMOLLM2, needs

pytest.importorskip("ipykernel")

NOTEBOOK = ROOT / "examples/first_hour.ipynb"
needs(SMOLLM2, "is missing: tools/get-smollm2 fetches it")


@pytest.mark.gate(0)
def test_runs(monkeypatch):
    monkeypatch.setenv("MHA_LIBRARY_DIR", str(LIBRARY_DIR.resolve()))
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "bindings/python"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=HANGS, kernel_name="python3",
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
