"""Saves that were broken off: parts that TensorFlow wrote and nothing merged are read as one checkpoint."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ckpttool.checkpoint import Checkpoint
from ckpttool.cli.main import run
from ckpttool.errors import CheckpointError, CorruptCheckpointError, UnreadableError, UsageError
from ckpttool.formats import _tf_unmerged
from ckpttool.opening import open_checkpoint
from ckpttool.reading import ReadOptions

from ..manifest import FILES, entry
from ..tensorflow_files import entry as bundle_entry
from ..tensorflow_files import header, number, table, write_bundle
from .test_tf_checkpoint import described, digest, paths, read_all

TF1, KERAS3 = "tf-1.15-unfinished", "keras-3.15-unfinished"
PREFIX = {TF1: "model.ckpt-7", KERAS3: "ckpt-3"}
COUNT = {TF1: 3, KERAS3: 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a save of five parts: `run [1]/ckpt-3_temp/part-…`."""
    return Path(shutil.copytree(FILES / KERAS3, tmp_path / "run [1]"))


def truth(name: str) -> dict[str, str]:
    main_file = next(path for path in (FILES / name).rglob("part-00000-*.index"))
    return {each["key"]: each["sha256"] for each in entry(str(main_file.relative_to(FILES)))["stored"]}


def codes(checkpoint: Checkpoint) -> dict[str, str]:
    return {notice.code: notice.message for notice in checkpoint.warnings}


@pytest.mark.parametrize("name", [TF1, KERAS3])
def test_all_ways_in_give_what_tensorflow_gives_after_its_merge(name: str) -> None:
    folder = FILES / name
    parts = next(path for path in folder.iterdir())
    for path in (folder, folder / PREFIX[name], parts, parts / "part"):
        found = read_all(path)
        assert {key: checksum for key, (_, _, checksum) in found.items()} == truth(name)
        message = codes(described(path))["unfinished-save"]
        assert f"'{parts.name}' were never merged; all {COUNT[name]} parts are there" in message
    assert any(path.endswith("image_embedding/kernel") for path in paths(described(folder)))


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", [TF1, KERAS3])
def test_tensorflow_merges_the_same(name: str, tmp_path: Path) -> None:
    import tensorflow as tf

    parts = next(path for path in (FILES / name).iterdir())
    copies = Path(shutil.copytree(parts, tmp_path / "copies"))
    prefixes = sorted(str(path.with_suffix("")) for path in copies.glob("*.index"))
    tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=prefixes, destination_prefix=str(tmp_path / "m"), delete_old_dirs=False
    )
    reader = tf.train.load_checkpoint(str(tmp_path / "m"))
    ours = read_all(FILES / name)
    assert {key: list(shape) for key, (shape, _, _) in ours.items()} == reader.get_variable_to_shape_map()
    for key, (_, _, checksum) in ours.items():
        values = reader.get_tensor(key)
        if not isinstance(values, bytes):
            assert checksum == digest(values)


def test_the_tool_reads_and_writes_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = folder.parent / "clean.npz"
    assert run(["unwrap", str(folder), "-o", str(out)]) == 0
    assert "the save was not finished" in capsys.readouterr().err
    assert len(read_all(out)) == 8


def test_a_missing_part_is_named_and_the_others_are_read(folder: Path) -> None:
    for path in (folder / "ckpt-3_temp").glob("part-00003-*"):
        path.unlink()
    checkpoint = described(folder / "ckpt-3")
    assert (
        "4 of 5 parts are there and read as one; missing: part-00003-of-00005" in codes(checkpoint)["unfinished-save"]
    )
    with open_checkpoint(folder) as reader:
        specs = {spec.name: spec for spec in checkpoint.weights()}
        cut = specs.pop("image_embedding/kernel")  # one of its slices was there
        with pytest.raises(CorruptCheckpointError, match="1 of 5 parts of the save are missing"):
            reader.read(cut)
        assert len(specs) == 7
        for spec in specs.values():
            assert digest(reader.read(spec)) == truth(KERAS3)[spec.locator]


def test_without_the_part_of_the_object_graph_keys_give_the_names(folder: Path) -> None:
    for path in (folder / "ckpt-3_temp").glob("part-00004-*"):
        path.unlink()
    checkpoint = described(folder)
    assert "no-object-graph" in codes(checkpoint)
    assert "model/_operations/1/_kernel" in paths(checkpoint)


def test_a_variable_whose_slices_are_missing_is_an_error_that_says_so(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(FILES / TF1, tmp_path / "run"))
    parts = next(folder.iterdir())
    for path in parts.glob("part-00001-*"):
        path.unlink()
    with open_checkpoint(folder) as reader:
        specs = {spec.name: spec for spec in reader.describe().weights()}
        assert set(specs) == {"table", "tower/hidden/kernel", "tower/image_embedding/kernel"}
        assert specs["table"].shape == (10, 4)
        reader.read(specs["tower/hidden/kernel"])
        with pytest.raises(CorruptCheckpointError, match=r"table: .*: 1 of 3 parts of the save are missing"):
            reader.read(specs["table"])


def test_a_missing_data_file_is_told_and_the_rest_is_read(folder: Path) -> None:
    (folder / "ckpt-3_temp" / "part-00000-of-00005.data-00000-of-00001").unlink()
    checkpoint = described(folder)
    assert "part-00000-of-00005.data-00000-of-00001" in codes(checkpoint)["missing-shard"]
    with open_checkpoint(folder) as reader, pytest.raises(UnreadableError, match="missing"):
        for spec in checkpoint.weights():
            reader.read(spec)


def test_a_merge_that_was_broken_off_after_it_moved_the_data(folder: Path) -> None:
    """MergeV2Checkpoints renames the data files first and writes the index last."""
    for number_ in range(4):
        part = folder / "ckpt-3_temp" / f"part-0000{number_}-of-00005.data-00000-of-00001"
        part.rename(folder / f"ckpt-3.data-0000{number_}-of-00005")
    found = read_all(folder / "ckpt-3")
    assert {key: checksum for key, (_, _, checksum) in found.items()} == truth(KERAS3)
    assert "missing-shard" not in codes(described(folder / "ckpt-3"))


def test_one_part_by_its_own_path_says_that_there_are_more(folder: Path) -> None:
    part = folder / "ckpt-3_temp" / "part-00001-of-00005"
    for path in (part, Path(f"{part}.index")):
        message = codes(described(path))["one-part"]
        assert "one of 5 parts" in message
        assert "'ckpt-3_temp'" in message


def test_finished_checkpoints_come_first_and_the_others_are_told(folder: Path, tmp_path: Path) -> None:
    write_bundle(folder / "ckpt-2", {"a": ((2,), bytes(8))})
    checkpoint = described(folder)
    assert paths(checkpoint) == ["a"]
    assert "'ckpt-3'" in codes(checkpoint)["unfinished-beside"]
    (folder / "checkpoint").write_text('model_checkpoint_path: "ckpt-2"\n')
    assert "'ckpt-3'" in codes(described(folder))["unfinished-beside"]
    for path, options in ((folder, ReadOptions(step=3)), (folder / "ckpt-3", ReadOptions())):
        with open_checkpoint(path, read=options) as reader:
            assert "image_embedding/kernel" in [spec.name for spec in reader.describe().weights()]
    write_bundle(folder / "ckpt-3", {"b": ((2,), bytes(8))})  # finished after all
    assert "unfinished-beside" not in codes(described(folder))


def test_the_folder_of_a_saved_model_whose_save_was_broken_off(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(folder / "ckpt-3_temp", model / "variables" / "variables_temp")
    for path in (model, model / "variables", model / "variables" / "variables"):
        assert "image_embedding/kernel" in paths(described(path))


def test_parts_beside_each_other_as_on_s3(folder: Path) -> None:
    for path in list((folder / "ckpt-3_temp").iterdir()):
        path.rename(folder / f"ckpt-3.{path.name}")
    (folder / "ckpt-3_temp").rmdir()
    for path in (folder / "ckpt-3", folder):
        assert "image_embedding/kernel" in paths(described(path))


def parts(folder: Path, *tensors: dict[str, tuple[tuple[int, ...], bytes]], count: int | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    for place, each in enumerate(tensors):
        write_bundle(folder / f"part-{place:05d}-of-{count or len(tensors):05d}", each)
    return folder


def test_the_same_tensor_in_two_parts(tmp_path: Path) -> None:
    one, other = ((2,), bytes(8)), ((2,), bytes(7) + b"\1")
    path = parts(tmp_path / "equal_temp", {"a": one, "b": other}, {"a": one})
    assert sorted(read_all(path)) == ["a", "b"]
    path = parts(tmp_path / "values_temp", {"a": one}, {"a": other})
    with pytest.raises(CorruptCheckpointError, match="a: two parts hold different values"):
        described(path)
    path = parts(tmp_path / "shapes_temp", {"a": one}, {"a": ((1, 2), bytes(8))})
    with pytest.raises(CorruptCheckpointError, match="a: two parts describe it differently"):
        described(path)


def test_parts_of_several_saves(tmp_path: Path) -> None:
    one = {"a": ((2,), bytes(8))}
    folder = parts(tmp_path / "m_temp", one, count=2)
    parts(folder, one, count=3)
    with pytest.raises(UsageError, match="parts of several saves: 1 of 2, 1 of 3"):
        described(folder)
    parts(folder, one, {"b": ((2,), bytes(8))})
    assert sorted(read_all(folder)) == ["a", "b"]  # the one that is whole
    parts(tmp_path / f"m_temp_{'0' * 32}", one)
    with pytest.raises(UsageError, match=f"several saves of it were not finished: m_temp, m_temp_{'0' * 32}"):
        described(tmp_path / "m")


def test_a_folder_of_parts_without_any_index(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (folder / "ckpt-3_temp").glob("*.index"):
        path.unlink()
    with pytest.raises(CorruptCheckpointError, match="before any part had its index"):
        described(folder / "ckpt-3_temp")
    assert run(["inspect", str(folder)]) == 3
    assert run(["inspect", str(folder / "ckpt-3")]) == 3


def test_a_damaged_part_is_an_error_with_its_name(folder: Path) -> None:
    index = folder / "ckpt-3_temp" / "part-00002-of-00005.index"
    whole = index.read_bytes()
    for place in range(0, len(whole), 7):
        index.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        with pytest.raises(CheckpointError) as caught:
            described(folder)
        assert caught.value.code == 3
    assert index.name in str(caught.value)


def test_parts_of_different_orders_of_bytes_are_an_error(tmp_path: Path) -> None:
    folder = parts(tmp_path / "m_temp", {"a": ((2,), bytes(8))}, {"b": ((2,), bytes(8))})
    entries = [(b"", header(1, number(2, 1))), (b"b", bundle_entry((0,), 0, 2726488792))]
    (folder / "part-00001-of-00002.index").write_bytes(table([entries]))
    with pytest.raises(CorruptCheckpointError, match="different orders of bytes"):
        described(folder)


def test_other_folders_and_names_are_left_alone(tmp_path: Path) -> None:
    write_bundle(tmp_path / "part-1", {"a": ((2,), bytes(8))})
    assert described(tmp_path).layers
    assert "one-part" not in codes(described(tmp_path / "part-1"))
    assert not _tf_unmerged.is_temporary("m_temperature")
    (tmp_path / "other_temp").mkdir()
    assert "unfinished-beside" not in codes(described(tmp_path))
    assert _tf_unmerged.part_of("x/part-00005-of-00002") is None


@pytest.mark.parametrize(
    "name", ["P_temp/part-00000-of-00001.index", "P/x.index", "P/x-00000-of-00002", "P/checkpoint"]
)
def test_pipes_are_not_waited_for(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    os.mkfifo(path)
    with pytest.raises(CheckpointError):
        described(path.parent)
    with pytest.raises(CheckpointError):
        described(tmp_path / "P")


def test_only_plain_digits_number_a_part(tmp_path: Path) -> None:
    folder = parts(tmp_path / "P_temp", {"dense/kernel": ((2,), bytes(8))})
    shutil.copy(folder / "part-00000-of-00001.index", folder / "part-0000\u0660-of-00002.index")
    assert paths(described(tmp_path / "P")) == ["dense/kernel"]


def test_the_steps_of_unfinished_saves_are_named_too(tmp_path: Path) -> None:
    write_bundle(tmp_path / "m-5", {"dense/kernel": ((2,), bytes(8))})
    parts(tmp_path / "m-7_temp", {"dense/kernel": ((2,), bytes(8))})
    with (
        pytest.raises(UsageError, match="no checkpoint of step 9; it holds 5, 7"),
        open_checkpoint(tmp_path, read=ReadOptions(step=9)),
    ):
        pass


def test_hundreds_of_parts_and_a_declared_flood(tmp_path: Path) -> None:
    parts(tmp_path / "P_temp", *({f"dense_{number}/kernel": ((2,), bytes(8))} for number in range(300)))
    assert len(paths(described(tmp_path / "P"))) == 300
    parts(tmp_path / "Q_temp", {"dense/kernel": ((2,), bytes(8))}, count=99_999)
    assert len(codes(described(tmp_path / "Q"))["unfinished-save"]) < 400


def test_links_in_a_circle(tmp_path: Path) -> None:
    folder = parts(tmp_path / "P_temp", {"dense/kernel": ((2,), bytes(8))})
    (folder / "P_temp").symlink_to(folder)
    (folder / "part-00000-of-00002.index").symlink_to("part-00000-of-00002.index")
    for path in (tmp_path / "P", folder, folder / "P_temp" / "P_temp", tmp_path):
        assert paths(described(path)) == ["dense/kernel"]
