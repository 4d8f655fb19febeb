"""What the formats of TensorFlow have in common as modules: how a path is recognised, and how layers get names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..checkpoint import Checkpoint
from ..probe import Probe
from ..reading import Match

if TYPE_CHECKING:
    from ..keras_config import ModelConfig


def matched(probe: Probe, format_name: str, kind: str) -> Match | None:
    """The format, where the path leads to a place of that kind.

    Parameters
    ----------
    probe : the path
    format_name : what the match is called
    kind : one of the kinds of `_tf_places`
    """
    place = probe.tensorflow()
    if place is None or place.kind != kind:
        return None
    return Match(format_name, place.reason)


def assign(checkpoint: Checkpoint, model: ModelConfig | None, *, path: object = None) -> Checkpoint:
    """Name the layers after a configuration; see `tf_assignment`, which is imported only where there is one."""
    if model is None:
        return checkpoint
    from ..tf_assignment import assign as assign_by

    return assign_by(checkpoint, model, path=path)
