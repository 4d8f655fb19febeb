"""Write a dot product as an ONNX model: NAME.onnx, for ONNX Runtime and whatever else reads opset 17.

    session = onnxruntime.InferenceSession("NAME.onnx")
    (scores,) = session.run(["scores"], {"vectors": vectors})                   # (n, dim) -> (n, rows)
    (cosines,) = session.run(["scores"], {"vectors": vectors, "normalize": np.array(True)})

`vectors` and `scores` are float32, or float64 for a kernel of float64 or of integers of 32 or 64 bits; n is dynamic.
`normalize` may be left out. The kernel lies in the file, as it is, or beside it in NAME.onnx.data if it is large.
Source: the operators Gemm, If, ReduceL2 of ONNX's docs/Operators.md, external data of docs/ExternalData.md (1.23).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..frameworks import load
from ..output import check_output, output_file, staging_folder
from ._kernel import Norms, checked_blocks, score_dtype

OPSET = 17
IR_VERSION = 8  # of that opset's time: ONNX Runtime 1.12 and later reads it
INLINE_BYTES = 1 << 30  # a protobuf message holds less than 2 GiB; larger kernels lie in a file of their own


def write_dot_product(
    path: str | Path,
    blocks: Iterable[np.ndarray],
    *,
    layer: str,
    source: str,
    shape: Sequence[int],
    dtype: str,
    overwrite: bool = False,
    inputs: Sequence[Path] = (),
) -> tuple[Path, ...]:
    """Write NAME.onnx, and for a large kernel NAME.onnx.data, before it.

    Parameters
    ----------
    path : NAME.onnx
    blocks : the kernel's values in C order, in pieces of any shape
    layer, source : where the kernel comes from, for the model's metadata
    shape : (rows, dim) of the kernel
    dtype : of the kernel, by name
    overwrite : replace files that exist
    inputs : files that the output must not be

    Returns
    -------
    the files written

    Raises
    ------
    MissingDependencyError : the package onnx is not installed
    UnsupportedError : a kernel of bool, complex, text or objects
    OutputExistsError, OutputIsInputError, OutputError : of either file
    CorruptCheckpointError : the blocks hold more or fewer values than the shape says
    """
    onnx = load("onnx", path=path)
    target, size, scores = Path(path), (int(shape[0]), int(shape[1])), score_dtype(dtype)
    external = target.with_name(f"{target.name}.data") if size[0] * size[1] * scores.itemsize > INLINE_BYTES else None
    targets = (target,) if external is None else (target, external)
    for each in targets:
        check_output(each, overwrite=overwrite, inputs=inputs)
    with staging_folder(target) as folder:
        kernel, norms = folder / "kernel", Norms(*size)
        with kernel.open("wb") as stream:
            for block in checked_blocks(blocks, size, scores, layer):
                norms.add(block)
                stream.write(block.data)
        about = {"layer": layer, "source": source, "writer": f"ckpttool {__version__}", "opset": str(OPSET)}
        model = _model(onnx, kernel, external, size, scores, norms.divisors().astype(scores), about)
        if external is not None:
            kernel.rename(folder / external.name)
        (folder / target.name).write_bytes(model.SerializeToString())
        onnx.checker.check_model(os.fspath(folder / target.name))
        for each in reversed(targets):
            with output_file(each, overwrite=overwrite, inputs=inputs) as temporary:
                (folder / each.name).rename(temporary)
    return targets


def _model(
    onnx: Any,
    kernel: Path,
    external: Path | None,
    shape: tuple[int, int],
    dtype: np.dtype[Any],
    norms: np.ndarray,
    about: dict[str, str],
) -> Any:
    """The model: scores = vectors @ kernel.T; where `normalize` is true, of unit vectors."""
    helper, rows, dim = onnx.helper, *shape
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    tensor = onnx.TensorProto(name="kernel", data_type=kind, dims=[rows, dim])
    if external is None:
        tensor.raw_data = kernel.read_bytes()
    else:
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", external.name), ("offset", "0"), ("length", str(kernel.stat().st_size))):
            tensor.external_data.add(key=key, value=value)
    constants = {"norms": norms.reshape(1, rows), "one": np.ones((), dtype), "minus_one": -np.ones((), dtype)}
    constants |= {"zero_norm": np.zeros((), np.float64), "one_norm": np.ones((), np.float64)}
    arrays = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    scores = helper.make_tensor_value_info("scores", kind, ["n", rows])
    plain = helper.make_tensor_value_info("plain", kind, ["n", rows])
    cosines = helper.make_tensor_value_info("cosines", kind, ["n", rows])
    as_they_are = [helper.make_node("Gemm", ["vectors", "kernel"], ["plain"], transB=1)]
    branches = {
        "then_branch": helper.make_graph(_normalized(onnx, kind), "cosines", [], [cosines]),
        "else_branch": helper.make_graph(as_they_are, "plain", [], [plain]),
    }
    graph = helper.make_graph(
        [helper.make_node("If", ["normalize"], ["scores"], **branches)],
        "dot_product",
        [
            helper.make_tensor_value_info("vectors", kind, ["n", dim]),
            helper.make_tensor_value_info("normalize", onnx.TensorProto.BOOL, []),
        ],
        [scores],
        [onnx.numpy_helper.from_array(np.array(False), "normalize"), tensor, *arrays],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="ckpttool"
    )
    helper.set_model_props(model, about)
    return model


def _normalized(onnx: Any, kind: int) -> list[Any]:
    """Nodes for cosines; norms in float64, since the square of a large float32 is none."""
    node, double = onnx.helper.make_node, onnx.TensorProto.DOUBLE
    return [
        node("Cast", ["vectors"], ["exact"], to=double),
        node("ReduceL2", ["exact"], ["lengths"], axes=[1], keepdims=1),
        node("Equal", ["lengths", "zero_norm"], ["empty"]),
        node("Where", ["empty", "one_norm", "lengths"], ["divisors"]),
        node("Div", ["exact", "divisors"], ["units"]),
        node("Cast", ["units"], ["unit"], to=kind),
        node("Gemm", ["unit", "kernel"], ["products"], transB=1),
        node("Div", ["products", "norms"], ["quotients"]),
        node("Clip", ["quotients", "minus_one", "one"], ["cosines"]),
    ]
