"""`extract`: one layer's tensors as arrays, as files, and as a dot-product function."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .checkpoint import Checkpoint, Layer, Notice, TensorSpec, notices_json
from .embeddings import embedding_candidates
from .errors import AmbiguousLayerError, LayerNotFoundError, UnsupportedError, UsageError
from .exports.dot_product_forms import dot_product_form, files_beside
from .output import check_distinct, check_output, output_file, output_folder
from .reading import BLOCK_BYTES, OnProgress, Reader
from .registry import export_module, format_module
from .reporting import megabytes
from .selecting import describe_layers, find_layer, flattened
from .source import Source, SourceOptions, open_source
from .transforms import only
from .views import transposed
from .weight_names import strip_suffix
from .wrapping import Evidence

if TYPE_CHECKING:
    import numpy as np

    from .statistics import Statistics

CONTAINERS = {".npz": "npz", ".safetensors": "safetensors", ".h5": "keras-h5", ".hdf5": "keras-h5"}
SINGLE = {".npy": "npy", ".csv": "csv"}  # outputs that hold one tensor
KERNEL_NAMES = ("kernel", "embeddings", "depthwise_kernel", "W", "embeddings_W")


@dataclass(frozen=True)
class ExtractedLayer(Mapping[str, "np.ndarray"]):
    """A layer's tensors by variable name: `layer["kernel"]`, `layer.kernel`. Values are read when asked for.

    Arrays have the stored shape and dtype (bfloat16 by ml_dtypes) and are the caller's own.
    """

    source: str
    path: tuple[str, ...]
    class_name: str | None
    tensors: tuple[TensorSpec, ...]
    wrapper: Evidence | None
    warnings: tuple[Notice, ...]
    outputs: tuple[str, ...]
    notes: tuple[str, ...]
    options: SourceOptions
    statistics: Mapping[str, Statistics | None]
    written: tuple[TensorSpec, ...] = ()  # what went into the outputs
    of_tensors: int = 0  # of the layer

    def sentence(self) -> str:
        """The receipt, the same in the terminal, the API and the JSON."""
        parameters, nbytes = sum(spec.size for spec in self.written), sum(spec.nbytes for spec in self.written)
        count = f"{len(self.written)} of {self.of_tensors} tensors"
        return f"{self.name}: {count}, {parameters:,} parameters, {megabytes(nbytes)}"

    def _names(self) -> dict[str, TensorSpec]:
        return {"/".join(spec.path[len(self.path) :]) or spec.path[-1]: spec for spec in self.tensors}

    def __getitem__(self, name: str) -> np.ndarray:
        spec = self._names()[name]
        with open_source(self.source, self.options) as source:
            return source.reader.read(spec).copy()

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def name(self) -> str:
        """The layer's path as users write it."""
        return "/".join(self.path)

    @property
    def kernel(self) -> np.ndarray:
        """The kernel, or the table of an Embedding.

        Raises
        ------
        UsageError : the layer has none, or several
        """
        spec = main_tensor(self.tensors, self.path)
        with open_source(self.source, self.options) as source:
            return source.reader.read(spec).copy()

    def to_json(self) -> dict[str, Any]:
        """As `extract --json` prints it."""
        return {
            "schema": 1,
            "path": self.source,
            "layer": self.name,
            "class_name": self.class_name,
            "wrapper": None if self.wrapper is None else self.wrapper.to_json(),
            "tensors": [
                {
                    "path": spec.name,
                    "shape": list(spec.shape),
                    "dtype": spec.dtype,
                    "parameters": spec.size,
                    "bytes": spec.nbytes,
                    "stored_as": spec.locator,
                    "stats": None if (found := self.statistics.get(spec.name)) is None else found.to_json(),
                }
                for spec in self.tensors
            ],
            "outputs": list(self.outputs),
            "receipt": self.sentence() if self.outputs else None,
            "notes": list(self.notes),
            "warnings": notices_json(self.warnings),
        }


def extract(
    path: str | os.PathLike[str],
    layer: str | None = None,
    output: str | os.PathLike[str] | None = None,
    *,
    tensor: str | None = None,
    transpose: bool = False,
    dot_product: str | os.PathLike[str] | None = None,
    with_statistics: bool = False,
    overwrite: bool = False,
    options: SourceOptions = SourceOptions(),
    on_progress: OnProgress | None = None,
) -> ExtractedLayer:
    """One layer's tensors, looked up inside the wrapper, proven or not.

    Parameters
    ----------
    path : the source; opened read-only
    layer : name, path from the end, or glob; None takes the only embedding candidate
    output : `.npy` for one tensor, or a new folder for all
    tensor : which variable; None takes all, or the kernel where just one fits
    transpose : reverse the axes in the files written, and of the kernel of the dot product
    dot_product : a new `.py` file: a NumPy-only module that scores vectors against the kernel; or the same function
        as `.onnx`, as `.keras`, or, where the name has no suffix or ends in a slash, as a SavedModel folder
    with_statistics : compute statistics of each tensor
    overwrite : replace existing outputs
    options : how to read the source
    on_progress : called as values move

    Returns
    -------
    a Mapping by variable name, with `.kernel`

    Raises
    ------
    LayerNotFoundError, AmbiguousLayerError : none, or several layers with weights fit
    UsageError : no such tensor, or several where one is needed
    OutputExistsError, OutputIsInputError, OutputError : an output cannot be written
    CheckpointError : whatever is wrong with the source
    """
    with open_source(path, options) as source:
        where, found = _chosen(source.template, layer, path)
        specs = tuple(found.tensors)
        if tensor is not None:
            specs = (named_tensor(specs, where, tensor),)
        outputs = [Path(each) for each in (output, dot_product) if each is not None]
        beside = [] if dot_product is None else files_beside(os.fspath(dot_product))
        check_distinct([*outputs, *beside])
        for each in (*outputs, *beside):
            option = "-o" if output is not None and each == Path(output) else "--dot-product"
            check_output(each, overwrite=overwrite, inputs=[source.path], option=option)
        job = _Job(source, where, found, specs, transpose, overwrite, on_progress)
        matrix = None if dot_product is None else job.matrix()
        notes: list[str] = []
        written: tuple[TensorSpec, ...] = () if matrix is None else (matrix,)
        if output is not None:
            into_file = job.goes_into(Path(output))
            notes += job.write(Path(output), into_file, text=os.fspath(output))
            written = tuple(dict.fromkeys((*into_file, *written)))
        if dot_product is not None and matrix is not None:
            notes += job.write_dot_product(os.fspath(dot_product), matrix)
        warnings = (*source.template.warnings, *_uncertain(source), *_numbered_alike(source, where))
        measured = _statistics(source.reader, specs) if with_statistics else {}
        return ExtractedLayer(
            os.fspath(path), where, found.class_name, specs, source.wrapper, warnings,
            tuple(os.fspath(each) for each in outputs), tuple(notes), options, measured, written, len(found.tensors),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Job:
    """One layer on its way into files."""

    source: Source
    where: tuple[str, ...]
    layer: Layer
    specs: tuple[TensorSpec, ...]
    transpose: bool
    overwrite: bool
    on_progress: OnProgress | None

    def goes_into(self, output: Path) -> tuple[TensorSpec, ...]:
        """The tensors that an output of that name holds: one, or all that were asked for."""
        if output.suffix.lower() in SINGLE and len(self.specs) > 1:
            return (main_tensor(self.specs, self.where),)
        return self.specs

    def write(self, output: Path, chosen: tuple[TensorSpec, ...], *, text: str) -> list[str]:
        """Write one tensor, a file of all or a folder; returns what a person should know about it."""
        npy = export_module("npy")
        inputs = [self.source.path]
        one = SINGLE.get(output.suffix.lower())
        if one is not None:
            (spec,) = chosen
            with output_file(output, overwrite=self.overwrite, inputs=inputs) as temporary:
                export_module(one).write(
                    self.source.reader, spec, temporary, transpose=self.transpose, on_progress=self.on_progress
                )
            others = [each.name for each in self.specs if each is not spec]
            notes = [f"left out: {', '.join(others)} (--tensor NAME, or a folder for everything)"] if others else []
            return notes + self._casts([spec])
        if output.name.lower().endswith(".weights.h5"):  # what Keras loads from a name like this has another layout
            raise UsageError(
                "'.weights.h5' is for whole models; for one layer use '.h5', '.npz' or a folder", path=output
            )
        if output.suffix.lower() in CONTAINERS and not output.is_dir():
            return self._write_container(output, CONTAINERS[output.suffix.lower()])
        if output.suffix and not output.is_dir() and not text.endswith(os.sep):
            known = ", ".join([".npy", ".csv", *CONTAINERS])
            raise UsageError(f"its suffix names no array format; use {known}, or a folder's name", path=output)
        about = {"source": self.source.path.name, "layer": "/".join(self.where), "class_name": self.layer.class_name}
        with output_folder(output, overwrite=self.overwrite, inputs=inputs) as folder:
            npy.write_folder(
                self.source.reader, self.specs, self.where, folder,
                transpose=self.transpose, about=about, on_progress=self.on_progress,
            )  # fmt: skip
        return self._casts(self.specs)

    def _write_container(self, output: Path, format_name: str) -> list[str]:
        """The layer's tensors by their full names in a file of one of the formats."""
        kept = {spec.locator for spec in self.specs}
        path = self.source.path
        chosen = only(self.source.template, kept, self.where)
        chosen = replace(chosen, metadata=(("source", path.name), ("source_bytes", str(path.stat().st_size))))
        module = format_module(format_name)
        reader = self.source.reader
        if self.transpose:
            reader = transposed(reader, chosen)
            chosen = reader.describe()
        with output_file(output, overwrite=self.overwrite, inputs=[path]) as temporary:
            module.write(reader, chosen, temporary, on_progress=self.on_progress)
        return self._casts(self.specs) if hasattr(module, "becomes_float32") else []

    def _casts(self, specs: tuple[TensorSpec, ...] | list[TensorSpec]) -> list[str]:
        changed = [spec for spec in specs if spec.dtype.startswith(("bfloat", "float8"))]
        return [f"{spec.name}: {spec.dtype} is written as float32, exactly" for spec in changed]

    def matrix(self) -> TensorSpec:
        """The tensor for a dot product.

        Raises
        ------
        UnsupportedError : the tensor is no matrix
        """
        spec = main_tensor(self.specs, self.where)
        if len(spec.shape) != 2:
            raise UnsupportedError(f"{spec.name} has shape {spec.shape}; a dot product needs a matrix (rows, dim)")
        return spec

    def write_dot_product(self, output: str, spec: TensorSpec) -> list[str]:
        """Write the dot product in the form that the name tells; with `transpose`, of the transposed kernel."""
        blocks = self.source.reader.iter_blocks(spec, BLOCK_BYTES)
        if self.transpose:
            blocks = iter([self.source.reader.read(spec).T])
        export_module(dot_product_form(output)).write_dot_product(
            Path(output), blocks, layer="/".join(self.where), source=self.source.path.name,
            shape=spec.shape[::-1] if self.transpose else spec.shape, dtype=spec.dtype, overwrite=self.overwrite,
            inputs=[self.source.path],
        )  # fmt: skip
        return self._casts([spec])


def _chosen(template: Checkpoint, layer: str | None, path: object) -> tuple[tuple[str, ...], Layer]:
    if layer is not None:
        where, found = find_layer(template, layer, path=path)
        return where, flattened((where, found))
    candidates = embedding_candidates(template)
    if len(candidates) == 1:
        where, found = candidates[0]
        return where, flattened((where, found))
    if not candidates:
        with_weights = [(where, each) for where, each in template.walk() if each.tensors]
        raise LayerNotFoundError(
            f"no layer looks like an embedding; give one with --layer: {describe_layers(with_weights) or 'none'}",
            path=path,
        )
    raise AmbiguousLayerError(
        f"{len(candidates)} layers look like an embedding; give one with --layer: {describe_layers(candidates)}",
        path=path,
    )


def main_tensor(specs: tuple[TensorSpec, ...], layer: tuple[str, ...]) -> TensorSpec:
    """The kernel or the embedding table; the only tensor of a layer that has one.

    Raises
    ------
    UsageError : none, or several
    """
    quantized = next((spec.name for spec in specs if spec.is_quantized), None)
    if quantized is not None:
        raise UsageError(
            f"'{quantized}' is quantized: its integers are no kernel (float weight ≈ integer / scale); take them as "
            "they are with --tensor, or the whole layer into a folder"
        )
    if len(specs) == 1:
        return specs[0]
    fitting = [spec for spec in specs if spec.path[-1] in KERNEL_NAMES]
    if len(fitting) == 1:
        return fitting[0]
    names = ", ".join("/".join(spec.path[len(layer) :]) for spec in specs)
    what = "several kernels" if fitting else "no kernel"
    raise UsageError(f"layer '{'/'.join(layer)}' has {what}; choose with --tensor: {names}")


def named_tensor(specs: tuple[TensorSpec, ...], layer: tuple[str, ...], name: str) -> TensorSpec:
    """The tensor of that variable name, or of that name at the end of its path.

    Raises
    ------
    UsageError : none, or several
    """
    relative = {"/".join(spec.path[len(layer) :]): spec for spec in specs}
    if name in relative:
        return relative[name]
    fitting = [spec for text, spec in relative.items() if text.endswith(f"/{name}")]
    if len(fitting) == 1:
        return fitting[0]
    what = "several tensors" if fitting else "no tensor"
    raise UsageError(f"layer '{'/'.join(layer)}' has {what} '{name}'; it has {', '.join(relative)}")


def _uncertain(source: Source) -> tuple[Notice, ...]:
    if source.wrapper is None or source.wrapper.certain:
        return ()
    message = f"looked inside '{'/'.join(source.wrapper.template)}', which looks like a wrapped template; not proven"
    return (Notice("wrapper-not-proven", message, "/".join(source.wrapper.template)),)


def _numbered_alike(source: Source, where: tuple[str, ...]) -> tuple[Notice, ...]:
    """Without a configuration the layers of a template have the names of their scopes, numbered where two are equal.

    So have those of an object graph; but there two layers of one model are seen to be so, and have different names.
    """
    nested = source.whole.format == "tf-checkpoint"
    flat = source.whole.format == "keras-h5" and source.wrapper is not None
    if source.template.config is not None or not (nested or flat):
        return ()
    alike = [
        path[-1]
        for path, layer in source.template.walk()
        if layer.tensors and path[-1] != where[-1] and strip_suffix(path[-1]) == where[-1]
        if flat or path[:-1] != where[:-1]
    ]
    if not alike:
        return ()
    more = f" and {len(alike) - 1} more" if len(alike) > 1 else ""
    message = (
        f"'{alike[0]}'{more} may be a layer called '{where[-1]}' too: without a configuration layers have the names of "
        "their scopes, which TensorFlow numbers; --config tells"
    )
    return (Notice("numbered-alike", message, "/".join(where)),)


def _statistics(reader: Reader, specs: tuple[TensorSpec, ...]) -> dict[str, Statistics | None]:
    from .statistics import statistics

    return {spec.name: statistics(reader, spec) for spec in specs}
