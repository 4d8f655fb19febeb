"""Arguments whose default in Keras 3 differs from what a legacy file means.

A model rebuilt by hand from its layer names would load the weights and compute something else.
Source: the constructors of Keras 2.2.4 and Keras 3.15 (keras/src/layers/rnn/gru.py, lstm.py; activations.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .checkpoint import Checkpoint, Notice
from .transforms import model_config

if TYPE_CHECKING:
    from .keras_config import Json, LayerConfig

_GATED = ("LSTM", "GRU", "LSTMCell", "GRUCell", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D")
_GRU = ("GRU", "GRUCell")


def changed_defaults(template: Checkpoint) -> tuple[Notice, ...]:
    """One notice a layer, naming each argument; none for files of Keras 3."""
    if (template.written_by.keras_major or 2) >= 3:
        return ()
    model = model_config(template)
    if model is None:
        return ()
    notices = []
    for path, layer in model.walk():
        found = list(dict.fromkeys(_of_layer(layer)))
        if found:
            name = "/".join(path)
            notices.append(Notice("defaults-changed", f"{name} ({layer.class_name}): {'; '.join(found)}", name))
    return tuple(notices)


def _of_layer(layer: LayerConfig) -> Iterator[str]:
    if layer.model is None:
        yield from _of_entry(layer.class_name, layer.config)


def _of_entry(class_name: str, config: Json) -> Iterator[str]:
    if class_name in _GATED:
        key = "inner_activation" if "inner_activation" in config else "recurrent_activation"
        value = config.get(key, "hard_sigmoid")
        if value != "sigmoid":
            yield f"recurrent_activation is {_named(value)} here, 'sigmoid' by default in Keras 3"
    if class_name in _GRU and not config.get("reset_after", False):
        yield "reset_after is False here, True by default in Keras 3"
    for key, value in config.items():
        if key.endswith("activation") and value == "hard_sigmoid":
            yield "hard_sigmoid has another slope in Keras 3 (0.7 at 1 here, 0.6667 there)"
    for key in ("layer", "backward_layer", "cell"):
        yield from _of_inner(config.get(key))
    cells = config.get("cells")
    if isinstance(cells, list):
        for cell in cells:
            yield from _of_inner(cell)


def _of_inner(entry: Any) -> Iterator[str]:
    if isinstance(entry, Mapping) and isinstance(entry.get("config"), Mapping):
        if "layers" not in entry["config"]:
            yield from _of_entry(str(entry.get("class_name")), entry["config"])


def _named(value: Any) -> str:
    return repr(value) if isinstance(value, str) else "not a plain name"
