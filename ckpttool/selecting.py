"""Find the layer that a user names: by name, by a path from the end, or by a glob."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from .checkpoint import Checkpoint, Layer, TensorSpec
from .errors import AmbiguousLayerError, LayerNotFoundError
from .weight_names import strip_suffix

Found = tuple[tuple[str, ...], Layer]
MAX_SHOWN = 20  # candidates in one message: more do not help


def fits(path: tuple[str, ...], pattern: str) -> bool:
    r"""Whether a layer's path fits a name, a path from the end, a path from the top (`/a/b`) or a glob.

    A slash inside of a name may be written `\/`, to tell layer `a/b` from layer `b` of model `a`.
    """
    if "\\/" in pattern:
        parts = tuple(part.replace("\\/", "/") for part in re.split(r"(?<!\\)/", pattern.removeprefix("/")))
        return path == parts if pattern.startswith("/") else path[-len(parts) :] == parts
    text = "/".join(path)
    if pattern.startswith("/"):
        return text == pattern[1:] or fnmatchcase(text, pattern[1:])
    if path[-1] == pattern or text == pattern or text.endswith(f"/{pattern}"):
        return True
    return any(sign in pattern for sign in "*?[") and (fnmatchcase(text, pattern) or fnmatchcase(path[-1], pattern))


def find_layer(checkpoint: Checkpoint, pattern: str, *, path: object = None) -> Found:
    """The one layer with weights that fits.

    A layer with tensors of its own comes before a model that only holds others. Where no layer fits, the parts of
    wrapper layers are tried (`bi/forward_lstm`), then names with TensorFlow's `_<n>` behind, if just one fits.

    Parameters
    ----------
    checkpoint : the template
    pattern : see `fits`
    path : the file, for messages

    Returns
    -------
    path and layer; for a nested model a Layer with all tensors inside it

    Raises
    ------
    LayerNotFoundError : none fits; the message offers close spellings
    AmbiguousLayerError : several fit; the message lists them with their shapes
    """
    layers = [(where, layer) for where, layer in checkpoint.walk() if any(True for _ in layer.all_tensors())]
    for fitting in (
        [(where, layer) for where, layer in layers if layer.tensors and fits(where, pattern)],
        [(where, layer) for where, layer in layers if fits(where, pattern)],
        [each for each in _parts(layers) if fits(each[0], pattern)],
        [(where, layer) for where, layer in layers if layer.tensors and strip_suffix(where[-1]) == pattern],
    ):
        if len(fitting) > 1 and pattern.startswith("/"):  # `/a/b` is b of a before it is a layer called `a/b`
            fitting = [each for each in fitting if each[0] == tuple(pattern[1:].split("/"))] or fitting
        if len(fitting) == 1:
            return fitting[0]
        if fitting:
            raise AmbiguousLayerError(
                f"{len(fitting)} layers with weights fit '{pattern}': {describe_layers(fitting)}; give one's path",
                path=path,
            )
    why = "".join(f" ({notice.message})" for notice in checkpoint.warnings if notice.code == "no-object-graph")
    raise LayerNotFoundError(f"no layer with weights fits '{pattern}'{why}; {_offer(layers, pattern)}", path=path)


def _parts(layers: Sequence[Found]) -> list[Found]:
    """The layers inside wrapper layers, which the model counts as one: forward and backward, cells, the inner layer."""
    parts: dict[tuple[str, ...], list[TensorSpec]] = {}
    for where, layer in layers:
        for spec in layer.tensors:
            for end in range(len(where) + 1, len(spec.path)):
                parts.setdefault(spec.path[:end], []).append(spec)
    return [(where, Layer(where[-1], tensors=tuple(tensors))) for where, tensors in parts.items()]


def describe_layers(found: Sequence[Found]) -> str:
    """Paths with shapes, in a form that can be given to `--layer`."""
    texts = ["/".join(where) for where, _ in found]
    shown = []
    for (where, layer), text in list(zip(found, texts, strict=True))[:MAX_SHOWN]:
        shapes = ", ".join("×".join(map(str, spec.shape)) or "scalar" for spec in list(layer.all_tensors())[:4])
        unclear = any(other != text and other.endswith(f"/{text}") for other in texts)
        if texts.count(text) > 1:
            unclear, text = True, "/".join(part.replace("/", "\\/") for part in where)
        shown.append(f"{'/' if unclear else ''}{text} ({shapes})")
    more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
    return ", ".join(shown) + more


def _offer(layers: Sequence[Found], pattern: str) -> str:
    from difflib import get_close_matches

    leaves = [each for each in layers if each[1].tensors]
    if not leaves:
        return "no layer has weights"
    names = {"/".join(where): (where, layer) for where, layer in leaves}
    by_name = {where[-1].lower(): text for text, (where, _) in names.items()}
    close = [by_name[name] for name in get_close_matches(pattern.split("/")[-1].lower(), list(by_name), 3, 0.6)]
    ordered = [*close, *(text for text in names if text not in close)]
    return f"layers with weights: {describe_layers([names[text] for text in ordered])}"


def flattened(found: Found) -> Layer:
    """The layer with all tensors inside it as its own, in model order."""
    _, layer = found
    return replace(layer, tensors=tuple(layer.all_tensors()), layers=())
