"""Which layers of a model are its embeddings, as far as its description tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .checkpoint import Checkpoint, Layer
from .transforms import model_config

if TYPE_CHECKING:
    from .keras_config import ModelConfig

_MATRIX_NAMES = ("kernel", "embeddings", "W")


def embedding_candidates(template: Checkpoint) -> list[tuple[tuple[str, ...], Layer]]:
    """Embedding layers, and layers with one 2-D kernel whose name holds `embed` or ends in `_emb`.

    Where there is none of these: the template's last Dense without activation. In model order.
    """
    layers = [(path, layer) for path, layer in template.walk() if layer.tensors]
    found = [(path, layer) for path, layer in layers if _is_embedding(layer)]
    if found:
        return found
    last = _last_linear_dense(template)
    return [(path, layer) for path, layer in layers if path == last and not any(s.is_quantized for s in layer.tensors)]


def _is_embedding(layer: Layer) -> bool:
    if any(spec.is_quantized for spec in layer.tensors):
        return False  # scaled or packed integers are not the embedding
    if layer.class_name == "Embedding":
        return True
    names = [spec.path[-1] for spec in layer.tensors]
    if layer.class_name is None and names == ["embeddings"]:
        return True
    matrices = [spec for spec in layer.tensors if spec.path[-1] in _MATRIX_NAMES and len(spec.shape) == 2]
    kernels = [spec for spec in layer.tensors if spec.path[-1] in (*_MATRIX_NAMES, "recurrent_kernel")]
    name = layer.name.lower()
    return len(matrices) == len(kernels) == 1 and ("embed" in name or name.endswith("_emb"))


def _last_linear_dense(template: Checkpoint) -> tuple[str, ...] | None:
    model: ModelConfig | None = model_config(template)
    if model is None:
        return None
    last = None
    for path, layer in model.walk():
        if layer.class_name == "Dense" and layer.config.get("activation", "linear") in ("linear", None):
            last = path
    return last
