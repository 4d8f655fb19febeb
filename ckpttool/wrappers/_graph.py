"""The wrapper in a TF1 graph beside a checkpoint, whose variables are the template's already."""

from __future__ import annotations

from dataclasses import replace

from ..checkpoint import Checkpoint
from ..transforms import GRAPH_REPLICAS
from ..wrapping import Evidence


def by_graph(checkpoint: Checkpoint, kind: str) -> Evidence | None:
    """What the format's reader found in the graph; variables carry no name of the template: nothing is lifted."""
    text = dict(checkpoint.metadata).get(GRAPH_REPLICAS)
    if text is None or any(layer.name.startswith("replica_") for layer in checkpoint.layers):
        return None
    template, count, slices, joins = text.rsplit(" ", 3)
    return Evidence(
        kind,
        (),
        int(count),
        True,
        (
            f"the graph in the .meta file computes '{template}' {count} times, in the scopes replica_0 to "
            f"replica_{int(count) - 1}, which hold no variables",
            f"{slices} slices of the inputs before the calls, {joins} ConcatV2 behind them",
        ),
    )


def without_graph(checkpoint: Checkpoint) -> Checkpoint:
    """The same without what is known of the graph: the wrapper was taken out."""
    return replace(checkpoint, metadata=tuple(item for item in checkpoint.metadata if item[0] != GRAPH_REPLICAS))
