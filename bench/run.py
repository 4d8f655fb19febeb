"""Time ckpttool against what people would use instead, in interleaved pairs of whole processes.

Imports nothing large: a child's peak memory cannot read below that of the process that started it.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
OLD_ENVIRONMENT = "keras-2.3.1"
LEGACY_ENVS = Path(os.environ.get("CKPTTOOL_LEGACY_ENVS") or ROOT / ".legacy-envs")


@dataclass(frozen=True)
class Case:
    """A command of ckpttool and its yardstick; `limit` is the ratio of CPU that it should stay within."""

    title: str
    command: list[str]
    yardstick_name: str
    yardstick: list[str]
    limit: float
    outputs: list[Path] = field(default_factory=list)
    missing: str | None = None
    runs: int | None = None


@dataclass(frozen=True)
class Run:
    """One finished process."""

    cpu: float  # seconds
    wall: float  # seconds
    peak: int  # bytes


def timed(command: list[str], outputs: list[Path]) -> Run:
    """Run a command to its end, its outputs removed before; the operating system's own accounting."""
    for output in outputs:
        output.unlink(missing_ok=True)
    started = datetime.datetime.now()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT)
    drain = subprocess.Popen(["cat"], stdin=process.stdout, stdout=subprocess.DEVNULL)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    said = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = (datetime.datetime.now() - started).total_seconds()
    process.returncode = os.waitstatus_to_exitcode(status)
    drain.wait()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit {process.returncode}\n{said.decode()[-2000:]}")
    return Run(usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss * 1024)


def pairs(case: Case, runs: int) -> list[tuple[Run, Run]]:
    """Runs in turn, after one of each that warms the caches."""
    for command in (case.command, case.yardstick):
        timed(command, case.outputs)
    return [(timed(case.command, case.outputs), timed(case.yardstick, case.outputs)) for _ in range(runs)]


def ckpttool(*arguments: object) -> list[str]:
    """The command line, without the console script's own start."""
    return [sys.executable, "-m", "ckpttool", *map(str, arguments)]


def script(name: str, *arguments: object) -> list[str]:
    """One of the yardstick scripts."""
    return [sys.executable, str(HERE / name), *map(str, arguments)]


def cases(inputs: dict[str, Path], folder: Path) -> Iterator[Case]:
    """Every comparison, in the order of the table."""
    out, copy, array = folder / "out", folder / "copy.h5", folder / "kernel.npy"
    many, wrapped, large = inputs["many"], inputs["wrapped"], inputs["large"]
    for form in ("--json", "--flat"):
        yield Case(f"list 20,000 tensors, `{form}`", ckpttool("inspect", form, many), "bare h5py walk",
                   script("h5py_walk.py", many), 1.2)  # fmt: skip
    h5ls = None if shutil.which("h5ls") else "h5ls (hdf5-tools) is not installed"
    yield Case("list 20,000 tensors, `--flat`", ckpttool("inspect", "--flat", many), "h5ls -r",
               ["h5ls", "-r", str(many)], 10, missing=h5ls)  # fmt: skip
    yield from _file_editor(inputs, folder)
    for source, size, limits in ((wrapped, "98 MB", (8, 8)), (large, "1 GB", (2.5, 2))):
        for suffix, limit in zip((".h5", ".safetensors"), limits, strict=True):
            target = out.with_suffix(suffix)
            yield Case(f"unwrap {size} to `{suffix}`", ckpttool("unwrap", "-q", source, "-o", target), "cp",
                       ["cp", str(source), str(copy)], limit, [target, copy])  # fmt: skip
    yield from _old_keras(folder)
    dataset = "model_weights/model_2/dense_64/kernel:0"
    extract = ckpttool("extract", "-q", large, "--layer", "dense_64", "-o", array)
    yield Case("extract 8 MB out of 1 GB to `.npy`", extract, "bare h5py script",
               script("h5py_extract.py", large, dataset, array), 1.5, [array])  # fmt: skip
    yield Case("statistics of 1 GB", ckpttool("inspect", "--stats", "--json", large), "reading it once (cat)",
               ["cat", str(large)], 2.5)  # fmt: skip
    yield Case("statistics of 1 GB", ckpttool("inspect", "--stats", "--json", large), "reading it once (h5py)",
               script("h5py_read.py", large), 2.5)  # fmt: skip
    yield from _tensorflow(folder)
    yield from _conversions(inputs, folder)


def _installed(package: str) -> str | None:
    """Why a yardstick cannot be run; None where it can."""
    import importlib.util

    return None if importlib.util.find_spec(package) else f"{package} is not installed"


def _conversions(inputs: dict[str, Path], folder: Path) -> Iterator[Case]:
    """1 GB from one container to another; `.keras` and TensorFlow's files are made by their own libraries."""
    archive, prefix = folder / "keras-1gb.keras", folder / "tf-large"
    no_keras = _installed("keras")
    if no_keras is None and not archive.exists():
        subprocess.run(script("keras_saves.py", "make", archive), capture_output=True, check=True)
    data = Path(f"{prefix}.data-00000-of-00001")
    sources = (("`.h5`", inputs["large"], inputs["large"], None), ("`.keras`", archive, archive, no_keras),
               ("a TensorFlow checkpoint", prefix, data, _installed("tensorflow")))  # fmt: skip
    copy = folder / "copy"
    for name, source, copied, missing in sources:
        for suffix, options, limit in ((".safetensors", (), 2), (".safetensors", ("--no-checksum",), 1.5),
                                       (".h5", (), 2.5), (".weights.h5", (), 2.5)):  # fmt: skip
            if suffix == ".weights.h5" and source == prefix:
                continue  # needs a configuration, which this file does not hold
            target = folder / f"out{suffix}"
            command = ckpttool("convert", "-q", "--no-wrapper", *options, source, "-o", target)
            said = ", `--no-checksum`" if options else ""
            yield Case(f"convert 1 GB from {name} to `{suffix}`{said}", command, "cp", ["cp", str(copied), str(copy)],
                       limit, [target, copy], missing)  # fmt: skip
    target, theirs = folder / "out.weights.h5", folder / "theirs.weights.h5"
    yield Case("convert 1 GB from `.keras` to `.weights.h5`", ckpttool("convert", "-q", archive, "-o", target),
               "KerasFileEditor, open and save", script("keras_saves.py", "edit", archive, theirs), 1 / 3,
               [target, theirs], no_keras, 3)  # fmt: skip
    target, theirs = folder / "out.keras", folder / "theirs.keras"
    yield Case("convert 1 GB from `.keras` to `.keras`", ckpttool("convert", "-q", archive, "-o", target),
               "Keras, load and save", script("keras_saves.py", "load", archive, theirs), 1 / 6,
               [target, theirs], no_keras, 3)  # fmt: skip


def _tensorflow(folder: Path) -> Iterator[Case]:
    """The same questions about TensorFlow checkpoints, to TensorFlow's own reader."""
    missing = _installed("tensorflow")
    prefixes = {name: folder / f"tf-{name}" for name in ("large", "many-names", "many-objects")}
    if missing is None:
        for name, prefix in prefixes.items():
            if not Path(f"{prefix}.index").exists():
                subprocess.run(script("tensorflow_reads.py", "make", name, prefix), capture_output=True, check=True)
    ours, theirs = folder / "out.npy", folder / "theirs.npy"
    for name, text, limit in (
        ("large", "1 GB", 1 / 30), ("many-names", "20,000 tensors by name", 1 / 6),
        ("many-objects", "20,000 tensors by object", 1 / 6),
    ):  # fmt: skip
        yield Case(f"list a TensorFlow checkpoint of {text}, `--json`", ckpttool("inspect", "--json", prefixes[name]),
                   "tf.train.load_checkpoint", script("tensorflow_reads.py", "list", name, prefixes[name]), limit,
                   missing=missing, runs=3)  # fmt: skip
    extract = ckpttool("extract", "-q", prefixes["large"], "--layer", "block_64", "--tensor", "kernel", "-o", ours)
    yield Case("extract 8 MB out of a checkpoint of 1 GB to `.npy`", extract, "tf.train.load_checkpoint",
               script("tensorflow_reads.py", "extract", "large", prefixes["large"], theirs), 1 / 15, [ours, theirs],
               missing=missing, runs=3)  # fmt: skip


def _file_editor(inputs: dict[str, Path], folder: Path) -> Iterator[Case]:
    """KerasFileEditor opens Keras 3 weights only, so both list such a file of the same model."""
    weights = folder / "many.weights.h5"
    missing = _installed("keras")
    if missing is None and not weights.exists():
        made = subprocess.run(ckpttool("convert", "-q", inputs["many"], "-o", weights), capture_output=True, cwd=ROOT)
        if made.returncode:
            missing = "the input could not be made"
    yield Case("list 20,000 tensors of Keras 3 weights, `--flat`", ckpttool("inspect", "--flat", weights),
               "KerasFileEditor", script("file_editor.py", weights), 0.5, missing=missing, runs=1)  # fmt: skip


def _old_keras(folder: Path) -> Iterator[Case]:
    """The file that Keras 2.3.1 itself saved, and what it takes to unwrap it there."""
    python, source = LEGACY_ENVS / OLD_ENVIRONMENT / "bin" / "python", folder / "keras-2.3.1-resnet50.h5"
    out, other = folder / "out.h5", folder / "old.h5"
    missing = None if python.exists() else f"no environment {OLD_ENVIRONMENT} (CKPTTOOL_LEGACY_ENVS)"
    if missing is None and not source.exists():
        made = subprocess.run([str(python), str(HERE / "old_keras.py"), "make", str(source)], capture_output=True)
        if made.returncode:
            missing = f"{OLD_ENVIRONMENT} could not make the file"
    yield Case("unwrap a ResNet50 of Keras 2.3.1 (98 MB) to `.h5`", ckpttool("unwrap", "-q", source, "-o", out),
               "the same in Keras 2.3.1", [str(python), str(HERE / "old_keras.py"), "unwrap", str(source), str(other)],
               1 / 40, [out, other], missing, 1)  # fmt: skip


def ratio(value: float) -> str:
    """Three digits, or one over a number where it is small."""
    return f"1/{1 / value:.0f}" if value < 0.1 else f"{value:.2f}"


def row(case: Case, runs: int) -> str:
    """One line of the table."""
    if case.missing is not None:
        return f"| {case.title} | {case.yardstick_name} | not run: {case.missing} | {ratio(case.limit)} | | |"
    found = pairs(case, case.runs or runs)
    cpu = statistics.median(ours.cpu / theirs.cpu for ours, theirs in found)
    wall = statistics.median(ours.wall / theirs.wall for ours, theirs in found)
    ours, theirs = (statistics.median(pair[side].peak for pair in found) / 2**20 for side in (0, 1))
    return (
        f"| {case.title} | {case.yardstick_name} | {ratio(cpu)} | {ratio(case.limit)} | {ratio(wall)} | "
        f"{ours:.0f} / {theirs:.0f} |"
    )


def machine() -> str:
    """Processor kind, cores, memory, system: no names and no paths."""
    model = "unknown processor"
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (OSError, StopIteration, ValueError):
        memory = 0
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GB; {platform.system()} {platform.machine()}"


def versions(inputs: Path) -> str:
    """Of Python, NumPy, h5py and HDF5, asked of a child; the inputs are built there too."""
    text = (
        "import sys; sys.path.insert(0, sys.argv[1]); import inputs; from pathlib import Path; import h5py, numpy;"
        "inputs.build(Path(sys.argv[2]));"
        "print(f'Python {sys.version.split()[0]}, NumPy {numpy.__version__}, h5py {h5py.__version__}, "
        "HDF5 {h5py.version.hdf5_version}')"
    )
    done = subprocess.run(
        [sys.executable, "-c", text, str(HERE), str(inputs)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def main() -> None:
    """Build, time, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5, help="pairs of each comparison")
    parser.add_argument("--only", default="", help="only comparisons whose title holds this; nothing is written")
    parser.add_argument("--inputs", type=Path, default=HERE / "inputs", help="where the inputs are and outputs go")
    options = parser.parse_args()
    about = versions(options.inputs)
    names = {"wrapped": "wrapped-98mb.h5", "large": "wrapped-1gb.h5", "many": "many-20000.h5"}
    inputs = {name: options.inputs / file for name, file in names.items()}
    lines = [
        "# Results of `make bench`",
        "",
        f"{datetime.date.today().isoformat()}; {machine()}; {about}.",
        f"Ratios of ckpttool over the yardstick, medians of {options.runs} interleaved pairs of whole processes (rows "
        "of Keras and TensorFlow: one or three); peak memory of ckpttool / the yardstick. See `bench/README.md`.",
        "",
        "| what | against | CPU | should be within | wall | peak MB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for case in cases(inputs, options.inputs):
        if options.only in case.title:
            lines.append(row(case, options.runs))
            print(lines[-1], flush=True)
    if not options.only:
        import dot_product

        lines += [
            "",
            "The dot product, 1,000 × 256 against 1,000,000 × 256 in float32:",
            "",
            *dot_product.HEADER.split("\n"),
        ]
        for line in dot_product.rows(options.inputs):
            lines.append(line)
            print(line, flush=True)
        (HERE / "RESULTS.md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
