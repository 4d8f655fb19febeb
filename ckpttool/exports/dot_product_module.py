"""Write a dot product as a program of its own: NAME.py, which needs NumPy alone, and its kernel NAME.npy.

NAME.py is made of a few constants and of two files of this package: dot_product.py, the product, as it is,
and dot_product_program.py, the lazily mapped kernel and the command line. It can be imported or run, on any
machine to which both files are copied.

Source of the .npy format: numpy/lib/format.py (NumPy 2.4).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CorruptCheckpointError, OutputError, UnsupportedError, UsageError
from ..output import check_output, output_file
from .dot_product import SMALL_TYPES

FUTURE = "from __future__ import annotations\n"
LEFT_OUT = "# What follows is left out of a written module"
GOES_ON = "# A written module goes on here.\n"

HEADER = '''"""Dot products of vectors with the kernel of one layer; needs Python 3.8 or later and NumPy.

    import NAME                                   # this file; its kernel lies beside it, in NAME.npy
    NAME.dot_product(vectors)                     # (n, dim) -> (n, rows): vectors @ KERNEL.T
    NAME.dot_product(vectors, axis="columns")     # (n, rows) -> (n, dim): vectors @ KERNEL
    NAME.dot_product(vectors, normalize=True)     # cosines
    NAME.dot_product.top(vectors, 10)             # indices and scores of the 10 best rows, best first

    python NAME.py vectors.npy -o scores.npy --top 10

Written by ckpttool (Apache-2.0). LAYER and SOURCE, below, say where the kernel comes from.
"""

{future}
import os
import sys
from contextlib import contextmanager
from typing import BinaryIO

LAYER = {layer}
SOURCE = {source}
SHAPE = {shape}  # (rows, dim)
DTYPE = {dtype}
'''


def write_dot_product(
    path: str | Path,
    blocks: Iterable[np.ndarray],
    *,
    layer: str,
    source: str,
    shape: Sequence[int],
    dtype: str | np.dtype[Any],
    overwrite: bool = False,
    inputs: Sequence[Path] = (),
) -> tuple[Path, Path]:
    """Write NAME.py and NAME.npy; both appear whole, the kernel first.

    Parameters
    ----------
    path : NAME.py
    blocks : the kernel's values in C order, in pieces of any shape; only one of them is held
    layer, source : the layer's path and the file's name, for the reader of NAME.py
    shape : (rows, dim) of the kernel
    dtype : of the kernel, by name ("bfloat16") or NumPy's own; how it is written, `stored_dtype` says
    overwrite : replace files that exist
    inputs : files that the output must not be

    Returns
    -------
    the paths of NAME.py and NAME.npy

    Raises
    ------
    UsageError : no suffix .py; a name that would hide a module that NumPy needs; not two axes
    UnsupportedError : a kernel of bool, complex, text or objects
    OutputExistsError, OutputIsInputError, OutputError : of either file
    CorruptCheckpointError : the blocks hold more or fewer values than the shape says
    """
    module = Path(path)
    kernel = module.with_suffix(".npy")
    _check(module, kernel, shape, layer)
    stored, size = stored_dtype(dtype), (int(shape[0]), int(shape[1]))
    text = module_text(layer=layer, source=source, shape=size, dtype=stored.name)
    check_output(kernel, overwrite=overwrite, inputs=inputs)
    with (
        output_file(module, overwrite=overwrite, inputs=inputs) as temporary,  # put in place last
        output_file(kernel, overwrite=overwrite, inputs=inputs) as beside,
    ):
        temporary.write_text(text, encoding="utf-8")
        with beside.open("wb") as stream:
            _write_array(stream, blocks, size, stored, layer)
    return module, kernel


def stored_dtype(dtype: str | np.dtype[Any]) -> np.dtype[Any]:
    """Give the dtype in which a kernel is written to .npy: float32, exactly, for bfloat16 and float8.

    All others stay what they are, in little-endian order.

    Raises
    ------
    UnsupportedError : bool, complex, text or objects
    """
    name = dtype if isinstance(dtype, str) else dtype.name
    if name.startswith(SMALL_TYPES):
        return np.dtype("<f4")
    try:
        stored = np.dtype(name).newbyteorder("<")
    except TypeError:
        stored = np.dtype(np.void)
    if stored.kind not in "iuf" or stored.itemsize > 8:
        raise UnsupportedError(f"a kernel of {name} has no dot product; it needs integers or floats")
    return stored


def module_text(*, layer: str, source: str, shape: tuple[int, int], dtype: str) -> str:
    """Give the text of NAME.py; names go in as ASCII literals, so that no name can be code."""
    package = resources.files(__package__)
    product = package.joinpath("dot_product.py").read_text(encoding="utf-8")
    program = package.joinpath("dot_product_program.py").read_text(encoding="utf-8")
    constants = {
        "layer": ascii(str(layer)),
        "source": ascii(str(source)),
        "shape": shape,
        "dtype": ascii(dtype),
    }
    header = HEADER.format(future=FUTURE, **constants)
    body = product[product.index(FUTURE) + len(FUTURE) : product.index(LEFT_OUT)]
    return header + body + program[program.index(GOES_ON) + len(GOES_ON) :]


def _check(module: Path, kernel: Path, shape: Sequence[int], layer: str) -> None:
    if module.suffix != ".py":
        raise UsageError("a dot-product module needs a name that ends in .py", path=module)
    if module.stem == "numpy" or module.stem in sys.stdlib_module_names:
        raise UsageError(f"would hide the module '{module.stem}' from NumPy; choose another name", path=module)
    if len(shape) != 2:
        raise UsageError(f"layer '{layer}' has a kernel of shape {tuple(shape)}; a dot product needs two axes")
    for output in (module, kernel):
        if output.is_dir():
            raise OutputError("is a folder; choose another name", path=output)


def _write_array(
    stream: BinaryIO, blocks: Iterable[np.ndarray], shape: tuple[int, int], dtype: np.dtype[Any], layer: str
) -> None:
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    expected, written = prod(shape), 0
    for block in blocks:
        written += block.size
        if written > expected:
            break
        stream.write(np.ascontiguousarray(block, dtype=dtype).data)
    if written != expected:
        raise CorruptCheckpointError(f"layer '{layer}' should hold {expected} values, its blocks {written}")
