"""Names of outputs where the user gives none: what the source is called, and the suffix that fits it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from .registry import OUTPUT_SUFFIXES, SAME_SUFFIX, TENSORFLOW_FORMATS

_TENSORFLOW_SUFFIX = r"(\.index|\.meta|\.data-\d{5}-of-\d{5}|-\d{5}-of-\d{5})$"


def stem_of(path: str | os.PathLike[str]) -> str:
    """The name that outputs of a source begin with: a file's without suffix; of a folder or prefix the whole name."""
    source = Path(path)
    if re.search(_TENSORFLOW_SUFFIX, source.name):
        stem = re.sub(_TENSORFLOW_SUFFIX, "", source.name)
    else:
        stem = source.stem if source.is_file() or source.suffix in (".h5", ".keras") else source.name
    return stem.removesuffix(".weights") or source.resolve().parent.name or "model"


def default_name(path: str | os.PathLike[str], format_name: str, with_config: bool, *, to: str | None = None) -> Path:
    """The output's name where none is given: `<stem>-single` with the suffix of `to`, else that which fits.

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
