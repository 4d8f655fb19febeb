"""Find the data-parallel wrapper of a description, as far as the file proves it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .checkpoint import Checkpoint
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
    own = getattr(wrapper_module(evidence.kind), "unwrap", None) if evidence.kind in WRAPPERS else None
    if own is not None:
        single: Checkpoint = own(checkpoint)
        return single
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
    replicas = None
    if outer.replicas is not None and inner.replicas is not None:
        replicas = outer.replicas * inner.replicas
    return Evidence(
        outer.kind,
        (*outer.template, *inner.template),
        replicas,
        outer.certain and inner.certain,
        (*outer.reasons, *inner.reasons),
        outer.depth + inner.depth,
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
        return replace(found, certain=True, reasons=(*found.reasons, "taken as given (--assume-wrapper)"))
    return Evidence("data_parallel", exact[0], None, True, ("taken as given (--assume-wrapper)",))


def require_proof(evidence: Evidence | None, path: str, command: str, output: str) -> None:
    """Refuse a wrapper that is not proven, with the command that takes it out.

    Raises
    ------
    UnprovenWrapperError : the evidence is not certain
    """
    if evidence is None or evidence.certain:
        return
    template = "/".join(evidence.template)
    over = f" over {evidence.replicas}" if evidence.replicas else ""
    raise UnprovenWrapperError(
        f"looks like {evidence.kind}{over} ({', '.join(evidence.reasons)}); "
        f"to take it out: {command_line('ckpttool', command, path, '--assume-wrapper', template, '-o', output)}",
        path=path,
    )


def command_line(*words: str) -> str:
    """Words as a line that can be pasted into a shell."""
    import shlex

    return shlex.join(words)
