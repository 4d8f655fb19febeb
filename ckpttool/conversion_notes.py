"""What a person should know about a conversion: sentences for the report, kept apart from what is done."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .assets import left_out, missing
from .beside import holders, weights_beside
from .checkpoint import Asset, Checkpoint, Notice, TensorSpec
from .default_names import migrated_name
from .migration.generation import is_keras1, takes_text
from .registry import holds_assets
from .source import Source, SourceOptions
from .transforms import model_config
from .wrapping import Evidence, command_line

if TYPE_CHECKING:
    from .migration.planning import NotMigratedError

Assets = dict[str, tuple[tuple[str, ...], Asset]]  # see Checkpoint.all_assets


def order_note(source: Source, template: Checkpoint) -> list[str]:
    """Inside a flat list frozen layers stand last, so without a configuration the order of layers is not known."""
    if source.wrapper is None or source.whole.config is not None:
        return []
    return [
        "layers are named and ordered as they are stored: load this file by name (load_weights(…, by_name=True)), "
        "or give the model's JSON with --config for its own order and nesting"
    ]


def keras3_note(source: Source, template: Checkpoint, output: Path, options: SourceOptions) -> list[str]:
    """Where Keras 3 could not load what is written, the command whose output it loads."""
    major = template.written_by.keras_major
    if template.config is None or (major is not None and major >= 3):
        return []
    if is_keras1(template):
        return [
            "for Keras 1: neither tf_keras nor Keras 3 opens its configurations, and migrate has no rules for them; "
            "for the weights alone write '.npz' or '.safetensors'"
        ]
    model = model_config(template)
    if model is not None and takes_text(model):
        return ["for tf_keras and the old Keras; migrate has no rules for inputs of text"]
    name = migrated_name(output.stem, source.path)
    line = command_line("ckpttool", "migrate", os.fspath(source.path), *options.words(), "-o", name)
    return [f"for tf_keras and the old Keras; Keras 3 refuses most configurations of its age, so for Keras 3: {line}"]


def not_rebuilt(error: NotMigratedError, kept: Evidence | None, files: Sequence[str], output: Path) -> str:
    """Why no `.keras` file is written, and the command that writes one: without its wrapper, or by own layers."""
    if not error.needs:
        return error.message
    if kept is not None:
        line = command_line("ckpttool", "unwrap", *files, "-o", os.fspath(output))
        return f"Keras 3 cannot hold its wrapper ({kept.kind}), whose layers hold Python code; to take it out: {line}"
    return f"{error.message}, with {command_line('ckpttool', 'migrate', *files, '-o', os.fspath(output))}"


def left_behind(source: Source, written: Sequence[TensorSpec]) -> list[Notice]:
    """Weights outside the template; a proven wrapper has none but copies."""
    kept = {spec.locator for spec in written}
    if source.wrapper is not None:
        kept |= {twin.locator for spec, twins in source.wrapper.twins if spec.locator in kept for twin in twins}
    left = [spec.name for spec in source.whole.weights() if spec.locator not in kept]
    if not left:
        return []
    shown = ", ".join(left[:3]) + (" …" if len(left) > 3 else "")
    return [Notice("weights-left-out", f"{len(left)} tensors outside of the template are left out: {shown}")]


def empty(source: Source) -> str:
    """That there is nothing to write, and which file of the folder has weights."""
    return f"holds no weights, so there is nothing to write{holders(weights_beside(source.path))}"


def assets_written(format_name: str, written: Checkpoint, *, rebuilt: bool) -> Assets:
    """The asset files that an output holds, by locator; none where the format has no place for them.

    Parameters
    ----------
    format_name : of the output
    written : what is written
    rebuilt : whether Keras makes the model anew from a configuration of Keras 1 or 2
    """
    return written.all_assets() if holds_assets(format_name) and not rebuilt else {}


def asset_notices(source: Source, format_name: str, written: Checkpoint, kept: Assets) -> list[Notice]:
    """Which asset files stay behind, and which layers of an archive are without theirs."""
    whole = source.whole.all_assets()
    inside = written.all_assets()
    why = f"{format_name} has no place for them; a '.keras' file has"
    notices = left_out(whole, kept, why) if not kept else left_out(whole, inside, "they are outside of the template")
    if holds_assets(format_name):
        notices.extend(missing(written))
    return notices
