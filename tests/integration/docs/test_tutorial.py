"""The tutorial notebook, executed from start to end in an empty folder."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[3] / "examples" / "notebooks" / "tutorial.ipynb"


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Isolate the kernels from the user's settings and history."""
    for name in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))


def test_notebook_has_no_outputs() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)


@pytest.mark.usefixtures("kernels")
@pytest.mark.timeout(900)
@pytest.mark.full
async def test_notebook_runs_and_the_model_learns(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    folder = tmp_path / "empty"
    folder.mkdir()
    client = NotebookClient(
        notebook, timeout=700, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    await client.async_execute()

    def said(source: str) -> str:
        """Return the output of the cell whose source contains this text."""
        [cell] = [cell for cell in notebook.cells if cell.cell_type == "code" and source in cell.source]
        return "".join(str(output.get("text") or output.get("data")) for output in cell.outputs)

    assert "MetricsTable(25 steps to 25" in said("steps = grpo.metrics()")
    assert "application/vnd.plotly" in said("make_subplots")
    assert "advantage" in said("token_values")
    right = int(said("load_result").split(" of 100 sums")[0].split()[-1])
    assert right > 30
