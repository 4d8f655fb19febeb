"""The programs and the notebook of examples/ run, and write the pictures that they promise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PICTURES = {
    "train_and_extract.py": ("training.png", "embedding.png"),
    "score_inside_the_model.py": ("ranking.png",),
}


def _run(*arguments: str | Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLES.parent), "MPLBACKEND": "Agg", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=EXAMPLES, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("name", sorted(PICTURES))
def test_a_program_runs_and_draws(name: str, tmp_path: Path) -> None:
    _run(name, tmp_path)
    for picture in PICTURES[name]:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")


def test_every_program_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PICTURES)


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.name)
def test_a_notebook_prints_what_it_shows(path: Path, tmp_path: Path) -> None:
    notebook = json.loads(path.read_text("utf-8"))
    assert notebook["nbformat"] == 4
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    shown = [
        "".join(output["text"]) for cell in cells for output in cell["outputs"] if output["output_type"] == "stream"
    ]
    program = tmp_path / "notebook.py"
    program.write_text("\n\n".join("".join(cell["source"]) for cell in cells), "utf-8")
    assert _run(program) == "".join(shown)
    pictures = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "display_data"]
    assert all("image/png" in output["data"] for output in pictures)
    assert pictures
