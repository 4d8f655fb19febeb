"""Time and peak memory of the dot product against numpy.matmul, and of a written module against `import numpy`.

1,000 vectors against 1,000,000 rows of 256, float32. Each case runs in a process of its own, since peak memory never
falls, and by turns with numpy.matmul on a kernel in memory. Prints rows of a table: the ratio of the least wall times,
the ratio of peak resident memory (kernel included) to that of matmul, and what they should stay within. Needs 8 GB.

    python bench/dot_product.py [--rows N] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).resolve().parent
ROWS, DIM, VECTORS = 1_000_000, 256, 1000
HEADER = (
    "| what | against | time | should be within | memory | should be within |\n| --- | --- | --- | --- | --- | --- |"
)
CASES = {  # title -> (operation, where the kernel is, limit of time, limit of memory)
    "all scores": ("full", "memory", 1.1, None),
    "all scores, kernel mapped": ("full", "mapped", None, None),
    "all cosines": ("cosines", "memory", None, None),
    "`top(10)`, kernel mapped": ("top", "mapped", 2.0, 0.2),
    "`top(10)`": ("top", "memory", 2.0, None),
    "`top(10)` of cosines, kernel mapped": ("top cosines", "mapped", None, None),
    "`top(10)`, float16 kernel": ("top", "float16", None, None),
}


def write_kernel(path: Path, rows: int) -> None:
    """Write a kernel in pieces: the peak memory of this process would count for those that it starts."""
    import numpy as np

    rng = np.random.default_rng(0)
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, DIM)})
        for start in range(0, rows, 8192):
            stream.write(rng.standard_normal((min(8192, rows - start), DIM), dtype=np.float32).data)


def measure(operation: str, place: str, path: str) -> None:
    """Run one case, then by turns with numpy.matmul in float32, and print JSON."""
    import numpy as np

    from ckpttool import dot_product

    mode: Literal["r"] | None = "r" if place == "mapped" else None
    kernel: Any = np.load(path, mmap_mode=mode, allow_pickle=False)
    if place == "float16":
        kernel = kernel.astype(np.float16)
    vectors = np.random.default_rng(1).standard_normal((VECTORS, DIM), dtype=np.float32)
    score = dot_product(kernel)
    keys = kernel

    def matmul() -> Any:
        return np.matmul(vectors, keys.T)

    run: Callable[[], Any] = {
        "full": lambda: score(vectors),
        "cosines": lambda: score(vectors, normalize=True),
        "top": lambda: score.top(vectors, 10),
        "top cosines": lambda: score.top(vectors, 10, normalize=True),
        "matmul": matmul,
    }[operation]
    seconds(run)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    keys = np.load(path, allow_pickle=False)
    turns = [(seconds(matmul), seconds(run)) for _ in range(3)]
    print(
        json.dumps({"peak": peak, "matmul": min(turn[0] for turn in turns), "seconds": min(turn[1] for turn in turns)})
    )


def seconds(run: Callable[[], Any]) -> float:
    """Time one run."""
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def rows(folder: Path, count: int = ROWS) -> Iterator[str]:
    """Every row of the table, as it is measured."""
    folder.mkdir(parents=True, exist_ok=True)
    kernel = folder / f"kernel-{count}x{DIM}.npy"
    if not kernel.exists():
        subprocess.run([sys.executable, __file__, "--write", str(kernel), "--rows", str(count)], check=True)
    matmul_peak = _measured("matmul", "memory", kernel)["peak"]
    for title, (operation, place, time_limit, memory_limit) in CASES.items():
        found = _measured(operation, place, kernel)
        yield _row(title, "numpy.matmul", found["seconds"] / found["matmul"], time_limit, found["peak"] / matmul_peak,
                   memory_limit)  # fmt: skip
    yield _row("a written module, one vector, cold", '`python -c "import numpy"`', _cold(folder), 1.6)


def _measured(operation: str, place: str, kernel: Path) -> dict[str, float]:
    command = [sys.executable, __file__, "--case", operation, place, str(kernel)]
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    done = subprocess.run(command, check=True, capture_output=True, env=environment)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _cold(folder: Path) -> float:
    """The median ratio of whole processes, by turns."""
    code = (
        "import sys, numpy; from ckpttool.exports.dot_product_module import write_dot_product;"
        "kernel = numpy.random.default_rng(0).standard_normal((1000, 256), numpy.float32);"
        "write_dot_product(sys.argv[1], [kernel], layer='image_embedding', source='model.h5', shape=kernel.shape,"
        "dtype='float32', overwrite=True); numpy.save(sys.argv[2], kernel[:1])"
    )
    module, vector = folder / "scores.py", folder / "vector.npy"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    subprocess.run([sys.executable, "-c", code, str(module), str(vector)], check=True, env=environment)
    commands = ([sys.executable, str(module), str(vector)], [sys.executable, "-c", "import numpy"])

    def run(command: list[str]) -> float:
        return seconds(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))

    for command in commands:
        run(command)
    return statistics.median(run(commands[0]) / run(commands[1]) for _ in range(9))


def _row(title: str, against: str, time_ratio: float, time_limit: float | None, memory_ratio: float | None = None,
         memory_limit: float | None = None) -> str:  # fmt: skip
    cells = [title, against, f"{time_ratio:.2f}", time_limit, memory_ratio and f"{memory_ratio:.2f}", memory_limit]
    return f"| {' | '.join('' if cell is None else str(cell) for cell in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--folder", type=Path, default=HERE / "inputs")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--case", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        write_kernel(options.write, options.rows)
    elif options.case:
        measure(*options.case)
    else:
        print(HEADER)
        for row in rows(options.folder, options.rows):
            print(row, flush=True)


if __name__ == "__main__":
    main()
