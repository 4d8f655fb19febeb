"""The second half of a written dot-product module: its own kernel, and its command line.

The first half is dot_product.py; dot_product_module.py joins them. What stands above the line "A written
module goes on here" makes this file whole for type checkers; a written module has its own constants there.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from .dot_product import DotProduct

if TYPE_CHECKING:
    from collections.abc import Iterator

LAYER, SOURCE, SHAPE, DTYPE = "layer", "model.h5", (0, 0), "float32"

# A written module goes on here.
WRITE_BYTES = 64 << 20  # of scores in memory, while all of them are written to a file


class FileError(OSError, ValueError):
    """A file that is no .npy array of numbers, or is damaged."""


def __getattr__(name: str) -> Any:
    """Map the kernel when it is first asked for: `KERNEL`, read-only, and `dot_product` with it."""
    if name not in ("KERNEL", "dot_product"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    path = os.path.splitext(os.path.abspath(__file__))[0] + ".npy"
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file; it belongs beside {os.path.basename(__file__)}")
    kernel = read_array(path)
    if kernel.shape != SHAPE:
        raise FileError(f"{path}: has shape {kernel.shape}, not {SHAPE}: it was not written with this module")
    globals().update(KERNEL=kernel, dot_product=DotProduct(kernel))
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), "KERNEL", "dot_product"})


def read_array(path: str) -> np.ndarray:
    """Memory-map a .npy file, read-only; nothing in it is unpickled.

    Raises
    ------
    FileNotFoundError : there is no such file
    FileError : no .npy file, damaged, or of objects
    """
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path}: no such file")
    with open(path, "rb") as stream:
        if stream.read(6) != b"\x93NUMPY":
            raise FileError(f"{path}: not a .npy file; write it with numpy.save")
    try:
        with np.errstate(all="ignore"):  # a shape whose size overflows is an error, and needs no warning too
            array: np.ndarray = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, OverflowError) as error:  # what a header can lead to
        raise FileError(f"{path}: damaged, or not an array of numbers: {error}") from error
    return array


def _options(arguments: list[str] | None) -> Any:
    import argparse  # here, since `import NAME` needs none of it

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> Any:
            raise ValueError(f"{message}; see --help")

    name = os.path.basename(__file__)
    parser = Parser(
        prog=f"python {name}",
        description=f"Dot products with layer {LAYER!a} of {SOURCE!a}: kernel of shape {SHAPE}, {DTYPE}.",
        epilog=f"example: python {name} vectors.npy -o scores.npy --top 10",
        allow_abbrev=False,
    )
    rows, dim = SHAPE
    parser.add_argument("vectors", metavar="VECTORS.npy", help=f"shape (n, {dim}), with --axis columns (n, {rows})")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="OUT.npy gets the scores, and with --top OUT.indices.npy the rows they belong to; OUT.npz gets "
        "arrays named scores and, with --top, indices; without -o they are printed, with --top as lines of "
        "vector, row, score",
    )
    parser.add_argument("--top", type=int, metavar="K", help="the K best rows of each vector, best first")
    parser.add_argument(
        "--axis",
        choices=("rows", "columns"),
        default="rows",
        help="score the rows (vectors @ kernel.T, default) or the columns (vectors @ kernel)",
    )
    parser.add_argument("--normalize", action="store_true", help="cosines; a zero vector scores 0")
    parser.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
    return parser.parse_args(arguments)


def _outputs(options: Any) -> list[str]:
    """Give the paths to write, after a look at what is there.

    Raises
    ------
    FileExistsError : one exists, and --overwrite was not given
    ValueError : another suffix; no such folder; an output that is an input
    """
    stem, suffix = os.path.splitext(options.output)
    if suffix not in (".npy", ".npz"):
        raise ValueError(f"{options.output}: give a name that ends in .npy or .npz")
    folder = os.path.dirname(options.output) or "."
    if not os.path.isdir(folder):
        raise ValueError(f"{options.output}: there is no folder {folder}")
    paths = [options.output]
    if suffix == ".npy" and options.top is not None:
        paths.append(f"{stem}.indices.npy")
    kernel = os.path.splitext(os.path.abspath(__file__))[0] + ".npy"
    for path in paths:
        if any(os.path.realpath(path) == os.path.realpath(source) for source in (options.vectors, kernel)):
            raise ValueError(f"{path}: the output is an input; give another name")
        if os.path.lexists(path) and not options.overwrite:
            raise FileExistsError(f"{path}: exists; give another name, or --overwrite")
    return paths


def _score(product: DotProduct, vectors: np.ndarray, options: Any) -> Iterator[np.ndarray]:
    """Yield all scores, some vectors at a time: one block, an empty one, where there are none."""
    candidates = SHAPE[0] if options.axis == "rows" else SHAPE[1]
    step = max(64, WRITE_BYTES // (8 * max(1, candidates)))
    for start in range(0, max(1, vectors.shape[0]), step):
        yield product(vectors[start : start + step], options.axis, normalize=options.normalize)


@contextmanager
def _output(path: str) -> Iterator[BinaryIO]:
    """Open a temporary sibling to write; put it in place when the block ends well, remove it when not."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "xb") as stream:
            yield stream
        os.replace(temporary, path)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _write(path: str, lines: int, blocks: Iterator[np.ndarray]) -> None:
    """Write blocks of shape (some, m), together (lines, m), as one .npy file."""
    first = next(blocks)
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": (lines, first.shape[1])}
    with _output(path) as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        stream.write(first.tobytes())
        for block in blocks:
            stream.write(block.tobytes())


def _run(options: Any) -> None:
    paths = _outputs(options) if options.output is not None else []
    vectors, product = read_array(options.vectors), __getattr__("dot_product")
    if vectors.ndim != 2:
        product(vectors, options.axis)  # raises
    if options.top is None:
        blocks = _score(product, vectors, options)
        if not paths:
            for block in blocks:
                for line in block:
                    print(*line, sep="\t")
        elif paths[0].endswith(".npy"):
            _write(paths[0], vectors.shape[0], blocks)
        else:
            scores = np.concatenate(list(blocks))
            with _output(paths[0]) as stream:
                np.savez(stream, scores=scores)
        return
    indices, scores = product.top(vectors, options.top, options.axis, normalize=options.normalize)
    if not paths:
        for number, row in enumerate(indices):
            for place, index in enumerate(row):
                print(number, index, scores[number, place], sep="\t")
    elif len(paths) == 2:
        _write(paths[1], len(indices), iter([indices]))
        _write(paths[0], len(scores), iter([scores]))
        print(f"{paths[0]}: scores; {paths[1]}: the {options.axis} they belong to", file=sys.stderr)
    else:
        with _output(paths[0]) as stream:
            np.savez(stream, indices=indices, scores=scores)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; give its exit code: 0 done, 2 wrong use, 3 unreadable or unwritable."""
    try:
        _run(_options(arguments))
        sys.stdout.flush()
        return 0
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the flush at the exit fails too
        return 0
    except (ValueError, FileNotFoundError, FileExistsError) as error:
        code, message = 3 if isinstance(error, FileError) else 2, str(error)
    except OSError as error:
        code, message = 3, f"{error.filename}: {error.strerror}"
    except MemoryError:
        code, message = 3, "not enough memory"
    except KeyboardInterrupt:
        code, message = 130, "interrupted"
    print(f"{os.path.basename(__file__)}: {' '.join(message.split())}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
