"""ckpttool: open anything that Keras or TensorFlow saved, and take the single-device model out of it.

Every name below is imported when it is first used, so that `import ckpttool` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _keras_hook

if TYPE_CHECKING:
    from .checkpoint import Checkpoint, Layer, TensorSpec
    from .comparing import verify
    from .converting import convert, unwrap
    from .errors import CheckpointError
    from .exports.dot_product import dot_product
    from .extracting import extract
    from .format_table import list_formats
    from .inspecting import inspect
    from .limits import Limits
    from .live import TransferReport, transfer_weights, unwrap_model
    from .migration.run import migrate
    from .opening import open_checkpoint
    from .source import SourceOptions

__version__ = "0.1.0"

_PLACES = {
    "Checkpoint": "checkpoint",
    "CheckpointError": "errors",
    "Layer": "checkpoint",
    "Limits": "limits",
    "SourceOptions": "source",
    "TensorSpec": "checkpoint",
    "TransferReport": "live",
    "convert": "converting",
    "dot_product": "exports.dot_product",
    "extract": "extracting",
    "inspect": "inspecting",
    "list_formats": "format_table",
    "migrate": "migration.run",
    "open_checkpoint": "opening",
    "transfer_weights": "live",
    "unwrap": "converting",
    "unwrap_model": "live",
    "verify": "comparing",
}

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Layer",
    "Limits",
    "SourceOptions",
    "TensorSpec",
    "TransferReport",
    "convert",
    "dot_product",
    "extract",
    "inspect",
    "list_formats",
    "migrate",
    "open_checkpoint",
    "transfer_weights",
    "unwrap",
    "unwrap_model",
    "verify",
]


def __getattr__(name: str) -> Any:
    place = _PLACES.get(name)
    if place is None:
        raise AttributeError(f"module 'ckpttool' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"ckpttool.{place}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_keras_hook.install()  # a saved model that holds a layer of ckpttool loads once this package is imported
