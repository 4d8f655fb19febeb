"""`--keep-optimizer`: a parallel model's optimizer state beside its template, or the reason why it is not there."""

from __future__ import annotations

from dataclasses import replace

from .checkpoint import Checkpoint, Notice
from .optimizer_slots import carried, optimizer_of
from .source import Source

WITHIN = ("keras-h5", "keras-archive")  # formats that hold their own generation's state, each in its own order


def with_optimizer(source: Source, template: Checkpoint, format_name: str, *, weights_only: bool) -> Checkpoint:
    """The template with the optimizer's state in its own order, or with a warning that says why not."""
    optimizer = optimizer_of(source.whole.training_config)
    notices: list[Notice] = []
    if weights_only:
        reason: str | None = "weights alone were asked for"
    elif source.whole.format != format_name or format_name not in WITHIN:
        reason = f"it cannot go from {source.whole.format} to {format_name}"
    else:
        found = carried(source.whole, source.template)
        reason = found.reason
        if found.reason is None:
            template = replace(template, loose=(*template.loose, *found.entries), training_config=found.training_config)
        if found.reason is None and optimizer is not None and optimizer.wrappers:
            around = ", ".join(optimizer.wrappers)
            notices.append(
                Notice("optimizer-reduced", f"{optimizer.class_name} was inside {around}; it is written without")
            )
    if reason is not None:
        notices.append(Notice("optimizer-left-out", f"the optimizer state is left out: {reason}"))
    return template.with_warnings(*notices)
