"""The tables of formats, wrappers and exports: names and modules. Nothing is imported until it is used.

This is the only place that imports by name, and only names that stand here.
"""

from __future__ import annotations

import importlib
from types import ModuleType

FORMATS: dict[str, str] = {
    "keras-h5": "ckpttool.formats.keras_h5",
    "keras-archive": "ckpttool.formats.keras_archive",
    "keras-weights": "ckpttool.formats.keras_weights",
    "safetensors": "ckpttool.formats.safetensors",
    "npz": "ckpttool.formats.npz",
    "tf-checkpoint": "ckpttool.formats.tf_checkpoint",
    "tf-checkpoint-v1": "ckpttool.formats.tf_checkpoint_v1",
    "saved-model": "ckpttool.formats.saved_model",
}

# What files of a format begin with (`Probe.container`), so that only modules that may fit are imported and asked. One
# that does not stand here is always asked.
CONTAINERS: dict[str, tuple[str, ...]] = {
    "keras-h5": ("hdf5",),
    "keras-archive": ("zip", "folder"),
    "keras-weights": ("hdf5", "json"),
    "safetensors": ("other", "json"),  # a length may look like an opening brace
    "npz": ("zip",),
}

# A name that a folder of a format holds: without it the format's module is not imported for a folder.
FOLDER_SIGNS: dict[str, str] = {"keras-archive": "config.json"}

# What TensorFlow saves has several files, which `Probe.tensorflow` finds, whichever of them is named.
TENSORFLOW_FORMATS = frozenset({"tf-checkpoint", "tf-checkpoint-v1", "saved-model"})

OUTPUT_SUFFIXES: dict[str, str] = {
    ".weights.h5": "keras-weights",
    ".keras": "keras-archive",
    ".h5": "keras-h5",
    ".hdf5": "keras-h5",
    ".safetensors": "safetensors",
    ".npz": "npz",
}

SAME_SUFFIX: dict[str, str] = {  # of a default output, where the source is not legacy HDF5
    "keras-archive": ".keras",
    "keras-weights": ".weights.h5",
}

FORMAT_SIGNS: dict[str, str] = {
    "keras-h5": "HDF5 with 'layer_names', 'model_weights' or 'model_config'",
    "keras-archive": "zip or folder with config.json and model.weights.h5",
    "keras-weights": "HDF5 with groups 'vars' of numbered datasets; JSON with 'weight_map' to such files",
    "safetensors": "a header length and a JSON object with data_offsets",
    "npz": "zip whose members end in '.npy'",
    "tf-checkpoint": "'.index' table with a bundle header, and '.data-' files",
    "tf-checkpoint-v1": "one table file with a version 1 header",
    "saved-model": "folder with saved_model.pb",
}

FORMAT_EXTRAS: dict[str, tuple[str, ...]] = {  # optional packages: migration and proofs, compiled checksums
    "keras-h5": ("keras", "tf_keras"),
    "keras-archive": ("keras", "zlib_ng"),
    "keras-weights": ("keras",),
    "npz": ("zlib_ng",),
    "tf-checkpoint": ("crc32c", "tensorflow"),
    "tf-checkpoint-v1": ("crc32c", "tensorflow"),
    "saved-model": ("crc32c", "tensorflow"),
}

WRAPPERS: dict[str, str] = {
    "multi_gpu_model": "ckpttool.wrappers.multi_gpu_model",
    "mirrored": "ckpttool.wrappers.mirrored",
    "data_parallel": "ckpttool.wrappers.data_parallel",
}

EXPORTS: dict[str, str] = {
    "npy": "ckpttool.exports.npy",
    "csv": "ckpttool.exports.csv",
    "dot-product": "ckpttool.exports.dot_product_module",
    "dot-product-onnx": "ckpttool.exports.dot_product_onnx",
    "dot-product-keras": "ckpttool.exports.dot_product_keras",
    "dot-product-saved-model": "ckpttool.exports.dot_product_saved_model",
}


def format_module(name: str) -> ModuleType:
    """The module of a format; KeyError for a name that is not in the table."""
    return importlib.import_module(FORMATS[name])


def holds_assets(name: str) -> bool:
    """Whether a format has a place for the files that layers keep beside their weights."""
    return bool(getattr(format_module(name), "HOLDS_ASSETS", False))


def wrapper_module(name: str) -> ModuleType:
    """The module of a wrapper; KeyError for a name that is not in the table."""
    return importlib.import_module(WRAPPERS[name])


def export_module(name: str) -> ModuleType:
    """The module of an export; KeyError for a name that is not in the table."""
    return importlib.import_module(EXPORTS[name])
