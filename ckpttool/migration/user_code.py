"""The user's own code: imported only because they named it, never because a file does."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError

OWN_MODULE = "ckpttool_custom_objects"  # what the file of --custom-objects is called while it is imported


@dataclass(slots=True)
class UserCode:
    """The user's own code, imported only because they named it."""

    replace: Mapping[str, str] = field(default_factory=dict)
    namespace: dict[str, Any] = field(default_factory=dict)

    def names(self) -> frozenset[str]:
        """Classes and functions that the file itself defines, not those that it imports."""
        return frozenset(
            name
            for name, value in self.namespace.items()
            if callable(value) and getattr(value, "__module__", None) == OWN_MODULE
        )


def load_user_code(replace: Mapping[str, str], custom_objects: str | os.PathLike[str] | None) -> UserCode:
    """Import the file of `--custom-objects`, whole.

    Raises
    ------
    UsageError : there is no such file
    """
    namespace: dict[str, Any] = {}
    if custom_objects is not None:
        from importlib.util import module_from_spec, spec_from_file_location

        from .build import import_keras

        import_keras()  # first, so that its chatter is kept off
        path = Path(custom_objects)
        spec = spec_from_file_location(OWN_MODULE, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise UsageError("--custom-objects takes a Python file", path=path)
        module = module_from_spec(spec)
        sys.modules[spec.name] = module  # Keras looks a saved class up by its module
        spec.loader.exec_module(module)
        namespace = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    return UserCode(replace, namespace)


def imported(target: str) -> Any:
    """The callable of `module:callable`, with the current folder importable as for `python -m`."""
    module, _, name = target.partition(":")
    if not module or not name:
        raise UsageError(f"--replace takes LAYER=module:callable, not '{target}'")
    with _current_folder():
        try:
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise UsageError(f"--replace: cannot import '{target}' ({error})") from error
    return found


@contextlib.contextmanager
def _current_folder() -> Iterator[None]:
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
