"""Large archives stream: the memory of a conversion does not grow with the file."""

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
MAX_RSS_BYTES = 128 * 2**20

pytestmark = pytest.mark.slow

_CHILD = """
import sys
from ckpttool.cli.main import run
code = run(sys.argv[1:])
with open("/proc/self/status") as status:  # getrusage begins at the parent's peak
    lines = dict(line.split(":", 1) for line in status)
print(int(lines["VmHWM"].split()[0]) * 1024, file=sys.stderr)
sys.exit(code)
"""


def peak(*arguments: str) -> int:
    """Peak resident bytes of one command, which must succeed."""
    done = subprocess.run([sys.executable, "-c", _CHILD, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.split()[-1])


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1 GB of weights and their configuration, as Keras 3 lays them out."""
    folder = tmp_path_factory.mktemp("large")
    dense = [{"class_name": "Dense", "config": {"name": f"d{n}", "units": 8192}} for n in range(4)]
    first = {"class_name": "InputLayer", "config": {"name": "i", "batch_shape": [None, 8192]}}
    config = {"module": "keras", "class_name": "Sequential", "config": {"name": "large", "layers": [first, *dense]}}
    (folder / "large.json").write_text(json.dumps(config))
    block = np.arange(2**22, dtype=np.float32).reshape(512, 8192)
    with h5py.File(folder / "large.weights.h5", "w") as file:
        for number in range(4):
            group = file.create_group(f"layers/dense{f'_{number}' if number else ''}/vars")
            table = group.create_dataset("0", (8192, 8192), np.float32)
            for row in range(0, 8192, 512):
                table[row : row + 512] = block + number
            group["1"] = block[0]
    return folder


def test_a_large_archive_streams_through_every_container(large: Path) -> None:
    source = os.fspath(large / "large.weights.h5")
    archive = os.fspath(large / "large.keras")
    assert peak("convert", source, "--config", os.fspath(large / "large.json"), "-o", archive, "-q") < MAX_RSS_BYTES
    for suffix in (".h5", ".weights.h5", ".safetensors", ".keras"):
        output = large / f"out{suffix}"
        assert peak("convert", archive, "-o", os.fspath(output), "-q") < MAX_RSS_BYTES
        assert output.stat().st_size > 2**30
        output.unlink()
    half = large / "half.weights.h5"
    assert peak("convert", archive, "-o", os.fspath(half), "-q", "--dtype", "bfloat16") < MAX_RSS_BYTES
    half.unlink()
