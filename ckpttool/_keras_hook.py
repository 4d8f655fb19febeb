"""Make the layers of ckpttool known to Keras as soon as both are imported, in whichever order.

Keras 3 loads a file's own classes in safe mode only if they are registered, and Keras cannot be imported here only to
register one: `import ckpttool` costs nothing. So where Keras is not yet there, a finder waits for its import. It finds
nothing itself; it takes itself away when both libraries have come.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec

LIBRARIES = ("keras", "tf_keras")


def register_layers(library: str) -> None:
    """Register the layer classes with a library that is imported."""
    module = sys.modules[library]
    if library == "keras" and not str(getattr(module, "__version__", "")).startswith(("0", "1", "2")):
        from .layers import keras3

        keras3.layer_class()
    else:
        from .layers import keras2

        keras2.layer_class(library)


class _Loader:
    """A library's own loader, and the registration after it."""

    def __init__(self, loader: Any, finder: _Finder) -> None:
        self._loader = loader
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._finder.has_come(module.__name__)
        register_layers(module.__name__)


class _Finder:
    """Asks the other finders for a library, and puts the registration behind what they find."""

    def __init__(self, waiting_for: set[str]) -> None:
        self._waiting_for = waiting_for

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in self._waiting_for:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = cast("Loader", _Loader(spec.loader, self))
                return spec
        return None

    def has_come(self, name: str) -> None:
        """A library is imported; after the last one there is nothing to wait for."""
        self._waiting_for.discard(name)
        if not self._waiting_for and self in sys.meta_path:
            sys.meta_path.remove(self)


def install() -> None:
    """Register the layers with each library: now where it is imported, else after its import."""
    for library in LIBRARIES:
        if library in sys.modules:
            register_layers(library)
    waiting_for = {library for library in LIBRARIES if library not in sys.modules}
    if waiting_for:
        sys.meta_path.insert(0, _Finder(waiting_for))
