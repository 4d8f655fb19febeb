"""Names of outputs: which format a suffix names, and the name where the user gives none."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .errors import UsageError
from .registry import FORMATS, OUTPUT_SUFFIXES, SAME_SUFFIX, TENSORFLOW_FORMATS

_TENSORFLOW_SUFFIX = r"(\.index|\.meta|\.data-\d{5}-of-\d{5}|-\d{5}-of-\d{5})$"


def stem_of(path: str | os.PathLike[str]) -> str:
    """The name that outputs of a source begin with: a file's without suffix; of a folder or prefix the whole name."""
    source = Path(path)
    if re.search(_TENSORFLOW_SUFFIX, source.name):
        stem = re.sub(_TENSORFLOW_SUFFIX, "", source.name)
    else:
        stem = source.stem if source.is_file() or source.suffix in (".h5", ".keras") else source.name
    return stem.removesuffix(".weights") or source.resolve().parent.name or "model"


def migrated_name(stem: str, source: str | os.PathLike[str]) -> str:
    """The `.keras` file to propose for Keras 3; another name than the source's own, which is never overwritten."""
    name = f"{stem}.keras"
    return name if Path(source).name != name else f"{stem}-keras3.keras"


def default_name(path: str | os.PathLike[str], format_name: str, with_config: bool, *, to: str | None = None) -> Path:
    """The output's name where none is given: `<stem>-single` with the suffix of `to`, else that which fits.

    That is `.keras` or `.weights.h5` where the source is one, `.safetensors` for TensorFlow's without JSON, else `.h5`.

    Parameters
    ----------
    path : the source
    format_name : the source's format
    with_config : whether it holds a configuration
    to : the output's format; None where nobody chose one

    Returns
    -------
    a name in the current folder
    """
    suffix = SAME_SUFFIX.get(format_name, ".h5")
    if format_name in TENSORFLOW_FORMATS and not with_config:
        suffix = ".safetensors"
    if to is not None:
        suffix = next((each for each, name in OUTPUT_SUFFIXES.items() if name == to), suffix)
    return Path(f"{stem_of(path)}-single{suffix}")


def output_format(output: Path, to: str | None) -> str:
    """The format that `to` or the suffix names.

    Raises
    ------
    UsageError : unknown, or not one that can be written
    """
    if to is not None:
        if to not in OUTPUT_SUFFIXES.values():
            raise UsageError(f"cannot write '{to}'; --to takes {', '.join(sorted(set(OUTPUT_SUFFIXES.values())))}")
        return to
    name = output.name.lower()
    for suffix, format_name in OUTPUT_SUFFIXES.items():
        if name.endswith(suffix):
            return format_name
    raise UsageError(
        f"its suffix names no format; use {', '.join(OUTPUT_SUFFIXES)}, or --to with one of "
        f"{', '.join(name for name in FORMATS if name in OUTPUT_SUFFIXES.values())}",
        path=output,
    )
