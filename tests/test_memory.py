"""Memory stays flat whatever the file's size, and no command loads a deep-learning library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
MEGABYTE = 2**20
PEAK_MB = 150

PEAK = """
import json, sys
from ckpttool.cli.main import run
code = run(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage begins at the parent's peak
    peak = int(dict(line.split(":", 1) for line in status)["VmHWM"].split()[0]) // 1024
loaded = sorted({name.partition(".")[0] for name in sys.modules} & {"tensorflow", "keras", "tf_keras", "torch", "jax"})
print(json.dumps({"code": code, "peak_mb": peak, "loaded": loaded}), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wrapped full model of 600 MB: one table of 500 MB, and Dense layers."""
    path = tmp_path_factory.mktemp("large") / "large.h5"
    source = ROOT / "fixtures" / "files" / "keras-2.2.4-sequential.h5"
    with h5py.File(source) as old, h5py.File(path, "w") as file:
        config = json.loads(old.attrs["model_config"])
        for key, value in old.attrs.items():
            file.attrs[key] = value.encode()
        base = next(layer for layer in config["config"]["layers"] if layer["name"] == "sequential_1")
        rows = 500 * MEGABYTE // 4 // 256
        table = {"class_name": "Embedding", "config": {"name": "table", "trainable": True, "input_dim": rows,
                                                       "output_dim": 256, "batch_input_shape": [None, 3]}}  # fmt: skip
        dense = base["config"]["layers"][-1]
        stack = [{**dense, "config": {**dense["config"], "name": f"d{n}", "units": 1024}} for n in range(24)]
        base["config"]["layers"] = [table, *stack]
        file.attrs["model_config"] = json.dumps(config).encode()
        group = file.create_group("model_weights")
        names = [layer["name"] for layer in config["config"]["layers"]]
        group.attrs["layer_names"] = np.array([name.encode() for name in names])
        for name in names:
            group.create_group(name).attrs["weight_names"] = np.array([])
        weights = [("table/embeddings:0", (rows, 256))]
        weights += [w for n in range(24) for w in ((f"d{n}/kernel:0", (1024, 1024)), (f"d{n}/bias:0", (1024,)))]
        group["sequential_1"].attrs["weight_names"] = np.array([name.encode() for name, _ in weights])
        for place, (name, shape) in enumerate(weights):
            dataset = group["sequential_1"].create_dataset(name, shape, "f4")
            step = max(1, 4 * MEGABYTE // int(np.prod(shape[1:], initial=1)))
            for start in range(0, shape[0], step):
                dataset[start : start + step] = np.full(
                    (min(step, shape[0] - start), *shape[1:]), place * 1000 + start, "f4"
                )
    assert path.stat().st_size > 590 * MEGABYTE
    return path


def measured(*arguments: str, folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, *arguments], cwd=folder, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    result: dict[str, object] = json.loads(done.stderr.splitlines()[-1])
    return result


@pytest.mark.parametrize(
    "command",
    [
        ("unwrap", "-o", "out.h5", "--overwrite"),
        ("unwrap", "-o", "out.h5", "--report", "report.json", "--overwrite"),
        ("inspect",),
        ("extract", "--layer", "table", "-o", "table.npy", "--overwrite"),
        pytest.param(("extract", "--layer", "table"), marks=pytest.mark.slow),
    ],
    ids=["unwrap", "unwrap with report", "inspect", "extract", "extract to the terminal"],
)
def test_peak_memory_stays_under_150_mb(command: tuple[str, ...], large: Path) -> None:
    first, *rest = command
    found = measured(first, str(large), *rest, folder=large.parent)
    assert found["code"] == 0
    assert found["loaded"] == []
    assert isinstance(found["peak_mb"], int)
    assert found["peak_mb"] < PEAK_MB


def test_the_large_output_is_right(large: Path) -> None:
    output = large.parent / "out.h5"
    if not output.exists():
        assert measured("unwrap", str(large), "-o", "out.h5", folder=large.parent)["code"] == 0
    with h5py.File(output) as file, h5py.File(large) as source:
        written, stored = file["model_weights"], source["model_weights/sequential_1"]
        assert (written["table/table/embeddings:0"][12345::50000] == stored["table/embeddings:0"][12345::50000]).all()
        assert (written["d23/d23/kernel:0"][()] == stored["d23/kernel:0"][()]).all()


def test_compressed_tensors_are_read_block_by_block(tmp_path: Path) -> None:
    path = tmp_path / "packed.h5"
    with h5py.File(path, "w") as file:
        file.attrs["layer_names"] = np.array([b"table"])
        file.create_group("table").attrs["weight_names"] = np.array([b"table/embeddings:0"])
        dataset = file["table"].create_dataset(
            "table/embeddings:0", (2**19, 128), "f4", chunks=(1024, 128), compression="gzip", compression_opts=1
        )
        for start in range(0, 2**19, 2**15):
            dataset[start : start + 2**15] = np.arange(start, start + 2**15, dtype="f4").repeat(128).reshape(-1, 128)
    found = measured("unwrap", str(path), "-o", "out.h5", folder=tmp_path)
    assert found["code"] == 0
    assert isinstance(found["peak_mb"], int)
    assert found["peak_mb"] < PEAK_MB
