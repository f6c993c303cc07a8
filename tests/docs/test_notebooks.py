"""Both notebooks run from top to bottom, and are kept without what they printed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SHORTER = {"8, 70, 5": "2, 2, 1", "SEEDS, ITERATIONS = 4, 40": "SEEDS, ITERATIONS = 1, 30"}
"""What a reader runs for minutes, cut short: each stands in one of the notebooks."""


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def test_nothing_printed_is_kept():
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        for cell in read(path).cells:
            if cell.cell_type == "code":
                assert (cell.outputs, cell.execution_count) == ([], None), f"{path.name}: clear the outputs"


@pytest.fixture(scope="module")
def played() -> dict[str, str]:
    """What each notebook printed."""
    from nbclient import NotebookClient

    printed = {}
    for path in NOTEBOOKS:
        notebook = read(path)
        for cell in notebook.cells:
            for usual, short in SHORTER.items():
                cell.source = cell.source.replace(usual, short)
        client = NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
        )
        client.execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        printed[path.stem] = "".join(output.get("text", "") for output in outputs)
        assert any("image/png" in output.get("data", {}) for output in outputs), "a picture"
    return printed


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # of the kernel's packages
def test_they_run_and_what_is_learned_shows(played):
    assert "decisions in each of 16 areas" in played["many_seeds"]
    last = played["look_inside"].strip().splitlines()[-1]
    assert last.startswith("return ") and float(last.split()[1]) > 0.8, played["look_inside"]


def test_what_is_cut_short_stands_there():
    text = "".join(path.read_text(encoding="utf-8") for path in NOTEBOOKS)
    assert all(text.count(usual) == 1 for usual in SHORTER)
