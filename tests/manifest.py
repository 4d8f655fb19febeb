"""The fixtures and what the old libraries said about each: read once, at collection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckpttool.checkpoint import TensorSpec
from ckpttool.copying import little_endian_bytes
from ckpttool.reading import Reader
from fixtures.manifest_file import read_manifest

FIXTURES = Path(__file__).parent.parent / "fixtures"
FILES = FIXTURES / "files"


ENTRIES = read_manifest(FIXTURES / "MANIFEST.json")

# Own wrappers, odd names and optimizers have tests of their own, in tests/wrappers.
OWN_MAKERS = ("make/own_wrappers.py", "make/wrapped_names.py", "make/optimizers.py", "make/crops_and_ensembles.py")
KERAS3_NAMES = {"depthwise_kernel": "kernel"}  # Keras 3 calls a DepthwiseConv2D's kernel so; ckpttool keeps one name


@dataclass(frozen=True, order=True)
class Truth:
    """One tensor as the library held it in memory."""

    path: str
    shape: tuple[int, ...]
    dtype: str
    sha256: str


def entry(name: str) -> dict[str, Any]:
    """The manifest's entry of a file."""
    return ENTRIES[name]


def names(keep: Callable[[str, dict[str, Any]], bool]) -> list[str]:
    """The files of the manifest that `keep` accepts, sorted; for `parametrize`."""
    return sorted(name for name, each in ENTRIES.items() if keep(name, each))


def legacy_hdf5(kind: str) -> list[str]:
    """HDF5 files of Keras 2 and later, of one kind: `model`, `weights` or `broken`."""
    return names(
        lambda name, each: (
            name.endswith((".h5", ".hdf5", ".keras")) and each["kind"] == kind
            and not {"keras-1", "keras3-layout"} & set(each["tags"])
            and not (name.endswith(".weights.h5") and "mirrored" in each["tags"])  # the layout of Keras 3
            and each["maker"] not in OWN_MAKERS
            and (FILES / name).read_bytes()[:4] == b"\x89HDF"
        )
    )  # fmt: skip


def tagged(*tags: str, without: Iterable[str] = (), suffix: str = ".h5") -> list[str]:
    """Files that have all of some tags and none of others."""
    return names(
        lambda name, each: (
            name.endswith(suffix)
            and set(tags) <= set(each["tags"])
            and not set(without) & set(each["tags"])
            and each["maker"] not in OWN_MAKERS
        )
    )


def truth(name: str) -> list[Truth]:
    """The template's tensors, in template order."""
    return [Truth(t["path"], tuple(t["shape"]), t["dtype"], t["sha256"]) for t in entry(name)["tensors"]]


def sha256(reader: Reader, spec: TensorSpec) -> str:
    """Of a tensor's values, little-endian, in C order."""
    return hashlib.sha256(little_endian_bytes(reader.read(spec))).hexdigest()


def read(reader: Reader, specs: Iterable[TensorSpec]) -> list[Truth]:
    """What ckpttool reads, in the form of the manifest."""
    return [Truth(spec.name, spec.shape, spec.dtype, sha256(reader, spec)) for spec in specs]


def template_json(name: str, folder: Path) -> Path:
    """The template's `to_json()` as a file, to be given as `--config`."""
    path = folder / "template.json"
    path.write_text(json.dumps(entry(name)["template"]["json"]), "utf-8")
    return path
