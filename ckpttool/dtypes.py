"""Logical dtype names as NumPy's. Importing this imports no NumPy, so that listings need not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a logical dtype name; bfloat16 and float8 come from ml_dtypes, text is an object."""
    import numpy as np

    if name == "string":
        return np.dtype(object)
    if name.startswith(("bfloat16", "float8")):
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return extended
    return np.dtype(name)
