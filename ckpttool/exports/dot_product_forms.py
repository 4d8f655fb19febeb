"""In which form a dot product is written, by the name of the output."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import UsageError
from ..frameworks import require

FORMS = {".py": "dot-product", ".onnx": "dot-product-onnx", ".keras": "dot-product-keras"}
FOLDER = "dot-product-saved-model"
NEEDS = {"dot-product-onnx": "onnx", "dot-product-keras": "keras", FOLDER: "tensorflow"}


def dot_product_form(output: str) -> str:
    """The export for a name: by its suffix; a SavedModel where it has none, or ends in a slash.

    Raises
    ------
    UsageError : another suffix
    """
    suffix = Path(output).suffix.lower()
    if not suffix or output.endswith(os.sep):
        return FOLDER
    if suffix not in FORMS:
        raise UsageError(f"a dot product ends in {', '.join(FORMS)}, or names the folder of a SavedModel", path=output)
    return FORMS[suffix]


def files_beside(output: str) -> list[Path]:
    """The files that are written beside the output in any case; nothing may be in the way of any.

    Raises
    ------
    UsageError : as `dot_product_form`
    MissingDependencyError : what the form needs is not installed
    """
    form = dot_product_form(output)
    if form in NEEDS:
        require(NEEDS[form], path=output)
    return [Path(output).with_suffix(".npy")] if form == "dot-product" else []
