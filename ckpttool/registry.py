"""The tables of formats, wrappers and exports: names and modules. Nothing is imported until it is used.

This is the only place that imports by name, and only names that stand here.
"""

from __future__ import annotations

import importlib
from types import ModuleType

FORMATS: dict[str, str] = {
    "keras-h5": "ckpttool.formats.keras_h5",
}

OUTPUT_SUFFIXES: dict[str, str] = {
    ".keras": "keras-archive",
    ".h5": "keras-h5",
    ".hdf5": "keras-h5",
}

WRAPPERS: dict[str, str] = {
    "multi_gpu_model": "ckpttool.wrappers.multi_gpu_model",
}

EXPORTS: dict[str, str] = {
    "npy": "ckpttool.exports.npy",
    "dot-product": "ckpttool.exports.dot_product_module",
    "dot-product-onnx": "ckpttool.exports.dot_product_onnx",
    "dot-product-keras": "ckpttool.exports.dot_product_keras",
    "dot-product-saved-model": "ckpttool.exports.dot_product_saved_model",
}


def format_module(name: str) -> ModuleType:
    """The module of a format; KeyError for a name that is not in the table."""
    return importlib.import_module(FORMATS[name])


def wrapper_module(name: str) -> ModuleType:
    """The module of a wrapper; KeyError for a name that is not in the table."""
    return importlib.import_module(WRAPPERS[name])


def export_module(name: str) -> ModuleType:
    """The module of an export; KeyError for a name that is not in the table."""
    return importlib.import_module(EXPORTS[name])
