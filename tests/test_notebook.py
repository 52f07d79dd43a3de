"""The notebook of the course runs from top to bottom: its own assertions hold, and it draws what it promises."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).parent.parent
PATH = ROOT / "course" / "notebook.ipynb"


def notebook() -> nbformat.NotebookNode:
    return nbformat.read(PATH, as_version=4)


def test_it_is_stored_without_outputs() -> None:
    """So that a change shows in a diff, and nothing of a machine is in it."""
    cells = [cell for cell in notebook().cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in cells), "clear all outputs"
    nbformat.validate(notebook())


def test_it_reviews_every_exercise() -> None:
    code = "\n".join(cell.source for cell in notebook().cells if cell.cell_type == "code")
    exercises = [path.stem.partition("_")[0] for path in (ROOT / "course" / "solutions").glob("ex*.py")]
    assert [name for name in exercises if f"{name}_" not in code] == ["ex04"]  # it is in ex05 and ex08


@pytest.mark.slow
def test_it_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    done = NotebookClient(notebook(), timeout=60, resources={"metadata": {"path": PATH.parent}}).execute()
    outputs = [output for cell in done.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.get("name") == "stderr"]  # no warnings
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    assert len(pictures) == 12
