"""Commands over several paths: every path is answered, the highest code wins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from ..errors import CheckpointError
from . import render


class JsonSource(Protocol):
    """A result that gives its JSON as text, piece by piece."""

    def json_chunks(self, *, one_line: bool) -> Iterable[str]: ...


def each_path(
    paths: Sequence[str],
    show: Callable[[str], JsonSource | dict[str, Any] | None],
    json_form: str | None,
    *,
    apart: bool = True,
) -> int:
    """Call `show` for each path; a path that failed becomes an error line, or an error object in JSON.

    What `show` returns is the JSON of that path, as a dict or in pieces; without JSON it is not looked at. With
    `apart`, an empty line stands between the answers.
    """
    highest = 0
    as_list = json_form == "document" and len(paths) > 1
    for number, path in enumerate(paths):
        if number and apart and json_form is None:
            render.out("")
        document: JsonSource | dict[str, Any] | None
        try:
            document = show(path)
        except CheckpointError as error:
            highest = max(highest, error.code)
            document = error_json(path, error)
            render.say(f"ckpttool: {error if error.path is not None else f'{path}: {error}'}")
        if json_form is not None and document is not None:
            if as_list:
                render.text_out(",\n" if number else "[\n")
            render.json_document(document, one_line=json_form == "lines", end="" if as_list else "\n")
    if as_list:
        render.text_out("\n]\n")
    return highest


def one_path(path: str, show: Callable[[str], dict[str, Any]], json_form: str | None) -> int:
    """Call `show` for the only path of a command; an error is the command's own."""
    document = show(path)
    if json_form is not None:
        render.json_out([document], json_form)
    return 0


def error_json(path: str, error: CheckpointError) -> dict[str, Any]:
    """A path that failed, as JSON shows it."""
    return {
        "schema": 1,
        "path": path,
        "error": {"code": error.code, "type": type(error).__name__, "message": error.message},
    }
