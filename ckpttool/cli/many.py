"""Commands over several paths: every path is answered, the highest code wins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CheckpointError
from . import render


def each_path(paths: Sequence[str], show: Callable[[str], dict[str, Any]], json_form: str | None) -> int:
    """Call `show` for each path; a path that failed becomes an error line, or an error object in JSON."""
    highest = 0
    documents = []
    for number, path in enumerate(paths):
        if number and json_form is None:
            render.out("")
        try:
            document = show(path)
        except CheckpointError as error:
            highest = max(highest, error.code)
            document = error_json(path, error)
            render.say(f"ckpttool: {error if error.path is not None else f'{path}: {error}'}")
        if json_form == "lines":
            render.json_out([document], json_form)
        documents.append(document)
    if json_form == "document":
        render.json_out(documents, json_form, many=len(paths) > 1)
    return highest


def error_json(path: str, error: CheckpointError) -> dict[str, Any]:
    """A path that failed, as JSON shows it."""
    return {
        "schema": 1,
        "path": path,
        "error": {"code": error.code, "type": type(error).__name__, "message": error.message},
    }
