"""Outputs of one run at one place, or of which one cannot be, are refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckpttool.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("unwrap", "-o", "a.h5", "--report", "a.h5"), "a.h5: two outputs would be written here"),
        (("unwrap", "--report", "keras-2.2.4-sequential-single.h5"), "two outputs would be written here"),
        (("extract", "-o", "a.npy", "--dot-product", "a.py"), "a.npy: two outputs would be written here"),
        (("extract", "-o", "a.npy", "--dot-product", "b.txt"), "b.txt: a dot product ends in .py, .onnx, .keras"),
        (("extract", "-o", "a.npy", "--dot-product", "b.py", "--tensor", "bias"), "a dot product needs a matrix"),
    ],
    ids=["report and output", "report and default output", "weights beside the module", "no module", "no matrix"],
)
def test_nothing_is_written_when_one_of_two_outputs_cannot_be(
    arguments: tuple[str, ...],
    message: str,
    fixture_files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    command, *rest = arguments
    code = run([command, str(fixture_files / "keras-2.2.4-sequential.h5"), *rest])
    assert code in (2, 3)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_existing_weights_beside_a_module_are_kept(fixture_files: Path, tmp_path: Path) -> None:
    (tmp_path / "scores.npy").write_text("mine", "utf-8")
    source = str(fixture_files / "keras-2.2.4-sequential.h5")
    assert run(["extract", source, "-o", str(tmp_path / "all"), "--dot-product", str(tmp_path / "scores.py")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["scores.npy"]
    assert (tmp_path / "scores.npy").read_text("utf-8") == "mine"
