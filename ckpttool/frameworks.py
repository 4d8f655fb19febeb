"""Import the libraries of the extras: with an error that names the extra, and without TensorFlow's chatter."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from .errors import MissingDependencyError

HOW = {  # package -> how to get it
    "keras": "pip install 'ckpttool[keras]', and tensorflow, jax or torch",
    "onnx": "pip install 'ckpttool[onnx]'",
    "tensorflow": "pip install 'ckpttool[tensorflow]'",
}


def require(package: str, *, path: object = None) -> None:
    """Refuse early what needs a package that is not there; imports nothing.

    Raises
    ------
    MissingDependencyError : with the command that installs it
    """
    if package not in sys.modules and find_spec(package) is None:
        raise MissingDependencyError(f"needs the package {package}: {HOW[package]}", path=path)


def load(package: str, *, path: object = None) -> Any:
    """Import a package.

    Raises
    ------
    MissingDependencyError : it is not installed, or what it needs itself, as Keras its backend
    """
    try:
        with quiet_tensorflow():
            return _IMPORTS[package]()
    except ImportError as error:
        raise MissingDependencyError(f"needs the package {package} ({error}): {HOW[package]}", path=path) from error


def _keras() -> Any:
    import keras

    return keras


def _onnx() -> Any:
    import onnx

    return onnx


def _tensorflow() -> Any:
    import tensorflow

    return tensorflow


_IMPORTS: dict[str, Callable[[], Any]] = {"keras": _keras, "onnx": _onnx, "tensorflow": _tensorflow}


@contextlib.contextmanager
def quiet_tensorflow() -> Iterator[None]:
    """Import TensorFlow without its chatter, unless the user set its log level.

    Its C++ library writes to the process's stderr before any level applies, so that is turned away meanwhile.
    """
    if os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3") != "3" or "tensorflow" in sys.modules:
        yield
        return
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
