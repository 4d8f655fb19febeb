"""Find the data-parallel wrapper of a description, as far as the file proves it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import Checkpoint, TensorSpec
from .errors import AmbiguousLayerError, LayerNotFoundError, UnprovenWrapperError
from .registry import WRAPPERS, wrapper_module
from .transforms import lift

MAX_WRAPPER_DEPTH = 8  # wrappers of wrappers: two were seen; a hostile file may nest more


@dataclass(frozen=True, slots=True)
class Evidence:
    """Why a description is thought to be a parallel model."""

    kind: str  # "multi_gpu_model", "data_parallel" or "mirrored"
    template: tuple[str, ...]  # path of the template layer
    replicas: int | None
    certain: bool
    reasons: tuple[str, ...]
    depth: int = 1  # how many wrappers are around the template
    assumed: bool = False  # named by the user: that layer is lifted, whatever is around it
    in_place: bool = False  # the template stays inside a larger model: its path is that in the stored whole
    twins: tuple[tuple[TensorSpec, tuple[TensorSpec, ...]], ...] = ()  # tensors of N bodies that must be equal

    @property
    def template_name(self) -> str:
        """The template's own name."""
        return self.template[-1] if self.template else ""

    def to_json(self) -> dict[str, Any]:
        """As the JSON outputs show it."""
        return {
            "kind": self.kind,
            "replicas": self.replicas,
            "template": "/".join(self.template),
            "certain": self.certain,
            "evidence": list(self.reasons),
            "depth": self.depth,
        }


def detect(checkpoint: Checkpoint) -> Evidence | None:
    """Ask every wrapper module; the first certain answer wins over an uncertain one."""
    found = [evidence for name in WRAPPERS if (evidence := wrapper_module(name).detect(checkpoint)) is not None]
    return min(found, key=_uncertain, default=None)


def _uncertain(evidence: Evidence) -> bool:
    return not evidence.certain


def unwrap(checkpoint: Checkpoint, evidence: Evidence) -> Checkpoint:
    """The template as a description of its own: its layers, names and configuration."""
    if evidence.kind in WRAPPERS and not evidence.assumed:
        template: Checkpoint = wrapper_module(evidence.kind).unwrap(checkpoint, evidence)
        return template
    return lift(checkpoint, evidence.template)


def look_inside(
    checkpoint: Checkpoint, *, assume: str | None = None, never: bool = False
) -> tuple[Checkpoint, Evidence | None]:
    """The innermost template and the evidence for it, proven or not.

    Parameters
    ----------
    checkpoint : the whole
    assume : name or path of the layer that is the template, where the caller knows
    never : take the description as it is

    Raises
    ------
    LayerNotFoundError, AmbiguousLayerError : no nested layer, or several, have the assumed name
    """
    if never:
        return checkpoint, None
    if assume is not None:
        assumed = _assumed(checkpoint, assume)
        return unwrap(checkpoint, assumed), assumed
    total: Evidence | None = None
    for _ in range(MAX_WRAPPER_DEPTH):
        evidence = detect(checkpoint)
        if evidence is None:
            break
        checkpoint = unwrap(checkpoint, evidence)
        total = evidence if total is None else _joined(total, evidence)
    return checkpoint, total


def _joined(outer: Evidence, inner: Evidence) -> Evidence:
    """Two wrappers as one answer: of a wrapper in a wrapper the replicas multiply; of two side by side the first's."""
    replicas, template, depth = outer.replicas, outer.template, max(outer.depth, inner.depth)
    if not outer.in_place:
        depth = outer.depth + inner.depth
        template = (*outer.template, *inner.template)
        known = outer.replicas is not None and inner.replicas is not None
        replicas = (outer.replicas or 0) * (inner.replicas or 0) if known else None
    return Evidence(
        outer.kind,
        template,
        replicas,
        outer.certain and inner.certain,
        (*outer.reasons, *inner.reasons),
        depth,
        in_place=outer.in_place or inner.in_place,
        twins=(*outer.twins, *inner.twins),
    )


def _assumed(checkpoint: Checkpoint, name: str) -> Evidence:
    wanted = tuple(name.split("/"))
    fitting = [
        path
        for path, layer in checkpoint.walk()
        if (path == wanted or path == (name,) or path[-1] == name or "/".join(path) == name)
        and any(True for _ in layer.all_tensors())
    ]
    if not fitting:
        holders = ", ".join("/".join(path) for path, layer in checkpoint.walk() if layer.layers) or "none"
        raise LayerNotFoundError(f"no layer '{name}' with weights to take out; layers that hold others: {holders}")
    exact = [path for path in fitting if path == wanted] or fitting
    if len(exact) > 1:
        raise AmbiguousLayerError(
            f"several layers are called '{name}': {', '.join('/'.join(path) for path in exact)}; give one's path"
        )
    found = detect(checkpoint)
    if found is not None and found.template == exact[0]:
        given = (*found.reasons, "taken as given (--assume-wrapper)")
        return replace(found, certain=True, assumed=found.certain, reasons=given)
    return Evidence("data_parallel", exact[0], None, True, ("taken as given (--assume-wrapper)",), assumed=True)


def require_proof(
    evidence: Evidence | None, path: str, command: str, output: str, *, config_beside: str | None = None
) -> None:
    """Refuse a wrapper that is not proven, with the command that takes it out.

    Parameters
    ----------
    evidence : what was found
    path, command, output : of the command line that is offered
    config_beside : a file that may hold the configuration; it is offered, never used unasked

    Raises
    ------
    UnprovenWrapperError : the evidence is not certain
    """
    if evidence is None or evidence.certain:
        return
    template = "/".join(evidence.template)
    over = f" over {evidence.replicas}" if evidence.replicas else ""
    beside = "" if config_beside is None else f"'{config_beside}' beside it may prove it (--config {config_beside}); "
    raise UnprovenWrapperError(
        f"looks like {evidence.kind}{over} ({', '.join(evidence.reasons)}); {beside}"
        f"to take it out: {command_line('ckpttool', command, path, '--assume-wrapper', template, '-o', output)}",
        path=path,
    )


def command_line(*words: str) -> str:
    """Words as a line that can be pasted into a shell."""
    import shlex

    return shlex.join(words)
