"""`multi_gpu_model` under TF1's Saver: the graph in the `.meta` file proves it, the variables show nothing of it."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckpttool.cli.main import run
from ckpttool.formats._meta_replicas import replicas_in_meta
from ckpttool.opening import open_checkpoint
from ckpttool.wrapping import Evidence, detect, look_inside

from ..manifest import FILES, entry, tagged
from ..tensorflow_files import message, write_bundle

NAME = "keras-2.2.4-multi-gpu-graph"
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    for path in FILES.glob(f"{NAME}.*"):
        shutil.copy(path, tmp_path / path.name.replace(NAME, "m.ckpt-3"))
    return tmp_path / "m.ckpt-3"


def evidence(path: Path) -> Evidence | None:
    with open_checkpoint(path) as reader:
        return detect(reader.describe())


def test_the_graph_proves_the_wrapper(prefix: Path) -> None:
    found = evidence(prefix)
    assert found is not None
    assert (found.kind, found.replicas, found.template, found.certain) == ("multi_gpu_model", 2, (), True)
    assert found.reasons == (
        "the graph in the .meta file computes 'tower' 2 times, in the scopes replica_0 to replica_1, which hold no "
        "variables",
        "2 slices of the inputs before the calls, 1 ConcatV2 behind them",
    )
    with open_checkpoint(prefix) as reader:
        template, total = look_inside(reader.describe())
    assert total == found
    assert [spec.name for spec in template.weights()] == ["image_embedding/kernel", "image_embedding/bias"]


def test_unwrap_and_inspect_say_so(prefix: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["inspect", str(prefix), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["wrapper"]["replicas"] == 2
    assert run(["unwrap", str(prefix), "-o", str(tmp_path / "out.npz")]) == 0
    assert "2 replicas removed" in capsys.readouterr().err
    with np.load(tmp_path / "out.npz") as arrays:
        truth = {each["path"]: each["shape"] for each in entry(f"{NAME}.index")["tensors"]}
        assert {name: list(arrays[name].shape) for name in arrays.files} == truth


def test_without_the_graph_nothing_is_said_and_names_are_the_same(prefix: Path) -> None:
    with open_checkpoint(prefix) as reader:
        before = [spec.name for spec in reader.describe().weights()]
    Path(f"{prefix}.meta").unlink()
    assert evidence(prefix) is None
    with open_checkpoint(prefix) as reader:
        assert [spec.name for spec in reader.describe().weights()] == before


@pytest.mark.parametrize("name", [each for each in tagged("name-based", suffix=".index") if each != f"{NAME}.index"])
def test_other_name_based_checkpoints_have_no_such_graph(name: str) -> None:
    assert replicas_in_meta(FILES / f"{name.removesuffix('.index')}.meta") is None


def test_a_damaged_graph_is_no_proof_and_no_error(prefix: Path) -> None:
    meta = Path(f"{prefix}.meta")
    whole = meta.read_bytes()
    chance = random.Random(1)
    for _ in range(150):
        copy = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            copy[chance.randrange(len(copy))] = chance.randrange(256)
        meta.write_bytes(bytes(copy[: chance.randrange(len(copy))] if chance.random() < 0.3 else copy))
        found = replicas_in_meta(meta)
        assert found is None or found.calls == 2
    meta.write_bytes(b"")
    assert replicas_in_meta(meta) is None
    assert evidence(prefix) is None


def node(name: str, kind: str, *inputs: str) -> bytes:
    return message(
        1, message(1, name.encode()), message(2, kind.encode()), *(message(3, each.encode()) for each in inputs)
    )


SLICES = (node("replica_0/a/Slice", "Slice", "x", "b", "s"), node("replica_1/b/Slice", "Slice", "x", "b", "s"))
JOIN = node("out/concat", "ConcatV2", "replica_0/net/top/Add", "replica_1/net/top/Add", "axis")
VARIABLE = node("dense/kernel", "VarHandleOp")


@pytest.mark.parametrize(
    ("nodes", "proven"),
    [
        ((*SLICES, JOIN), True),
        ((*SLICES, JOIN, node("other/concat", "ConcatV2", "replica_0/net/x", "replica_1/net/x", "axis")), True),
        ((*SLICES, node("c", "ConcatV2", "a", "b", "axis"), JOIN), True),
        (SLICES, False),
        ((JOIN,), False),
        ((SLICES[0], node("replica_1/b/Slice", "Slice", "x", "replica_1/b/Slice/begin", "s"), JOIN), False),  # channels
        ((SLICES[0], JOIN), False),  # a call without its slice
        ((SLICES[0], node("replica_1/b/Slice", "Slice", "y"), JOIN), False),  # of another input
        ((*SLICES, node("replica_2/c/Slice", "Slice", "x"), JOIN), False),  # a slice without its call
        ((*SLICES, node("c", "ConcatV2", "replica_0/net/a", "replica_1/net/b", "axis")), False),
        ((*SLICES, node("c", "ConcatV2", "replica_0/net/a", "replica_1/other/a", "axis")), False),
        ((*SLICES, node("c", "ConcatV2", "replica_1/net/a", "replica_0/net/a", "axis")), False),
        ((*SLICES, JOIN, node("c", "ConcatV2", "replica_0/two/a", "replica_1/two/a", "axis")), False),
    ],
)
def test_what_a_graph_must_hold(tmp_path: Path, nodes: tuple[bytes, ...], proven: bool) -> None:
    write_bundle(tmp_path / "m", {"dense/kernel": ((2,), bytes(8))})
    (tmp_path / "m.meta").write_bytes(message(2, VARIABLE, *nodes))
    assert (evidence(tmp_path / "m") is not None) == proven


def test_variables_in_the_replicas_scopes_are_no_wrapper(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m", {"replica_0/kernel": ((2,), bytes(8)), "replica_1/kernel": ((2,), bytes(8))})
    (tmp_path / "m.meta").write_bytes(message(2, *SLICES, JOIN))
    assert evidence(tmp_path / "m") is None


@pytest.mark.parametrize(
    ("variables", "proven"),
    [
        ((VARIABLE,), True),
        ((node("dense/kernel", "VariableV2"), node("other/kernel", "VariableV2")), True),
        ((node("dense/kernel/part_0", "VariableV2"), node("dense/kernel/part_1", "VariableV2")), True),
        ((node("dense/kernel_1", "VarHandleOp"),), False),
        ((node("dense/kernel", "Const"),), False),
        ((), False),
    ],
)
def test_the_graph_of_another_model_proves_nothing(tmp_path: Path, variables: tuple[bytes, ...], proven: bool) -> None:
    write_bundle(tmp_path / "m", {"dense/kernel": ((2,), bytes(8))})
    (tmp_path / "m.meta").write_bytes(message(2, *SLICES, *variables, JOIN))
    assert (evidence(tmp_path / "m") is not None) == proven


CALLS = [f"replica_{number}/net/x" for number in range(100_000)]
HOSTILE = {
    "nodes": message(1) * 3_000_000,
    "slices": node("replica_0/a/Slice", "Slice", "x") * 500_000,
    "joins": node("c", "ConcatV2", "replica_0/a/b", "x") * 500_000,
    "inputs": node("replica_0/a/Slice", "Slice", *(["x"] * 2_000_000)),
    "calls": node("c", "ConcatV2", *CALLS, "axis"),
    "name": node("n" * 30_000_000, "ConcatV2", "replica_0/a/b"),
    "input": node("c", "ConcatV2", "replica_0/" + "n" * 30_000_000),
}
MEASURE = """
import resource, sys, time
from pathlib import Path
from ckpttool.formats._meta_replicas import replicas_in_meta
before, started = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
print(replicas_in_meta(Path(sys.argv[1]), ["dense/kernel"]))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, time.process_time() - started)
"""


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_graphs_take_bounded_time_and_memory(kind: str, tmp_path: Path) -> None:
    """Besides the file itself, which is mapped."""
    meta = tmp_path / "m.meta"
    meta.write_bytes(message(2, *SLICES, VARIABLE, HOSTILE[kind], JOIN))
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(meta)], capture_output=True, text=True, cwd=ROOT, timeout=120, check=True
    )
    grown, seconds = map(float, run.stdout.splitlines()[1].split())
    assert grown * 1024 < meta.stat().st_size + 40 * 2**20
    assert seconds < 20


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a\x80",
        b"\x12\xff\xff\xff\xff\x0f",
        b"\x12\x80\x80\x80\x80\x08",
        b"\x0a" + b"\xff" * 11,
        b"\x0b" * 1000,
        b"\0" * 1000,
    ],
)
def test_what_is_no_graph_proves_nothing(tmp_path: Path, data: bytes) -> None:
    write_bundle(tmp_path / "m", {"dense/kernel": ((2,), bytes(8))})
    for content in (data, data + message(2, *SLICES, VARIABLE, JOIN), message(1) + data + b"replica_0/replica_1/"):
        (tmp_path / "m.meta").write_bytes(content)
        assert evidence(tmp_path / "m") is None


def test_names_across_the_pieces_that_are_searched_are_found(tmp_path: Path) -> None:
    """A file is searched for them in pieces of a megabyte."""
    start = len(message(2, SLICES[0], b"")) - SLICES[0].index(b"replica_0/")
    for shift in range(-3, 24):
        filler = message(1, message(5, bytes(2**20 - start - 60 + shift)))
        (tmp_path / "m.meta").write_bytes(message(2, filler, *SLICES, VARIABLE, JOIN))
        assert replicas_in_meta(tmp_path / "m.meta", ["dense/kernel"]) is not None
