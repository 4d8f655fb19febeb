"""The configuration that goes into a legacy `.h5`: the template's own, and no library may read it as another model.

Keras 2, tf_keras and Keras 3 all try to open such a file, and four things in it mean different things to them. What
is added here says what the file always meant, or stops the one library that would compute something else:

- Keras 3 takes the `batch_input_shape` of a Sequential's first layer for the shape of one sample
  (keras/src/legacy/saving/saving_utils.py, 3.15), so every prediction fails. With the InputLayer written out, as
  tf.keras writes it since TF 2.3, all of them agree.
- `hard_sigmoid` has another slope in Keras 3 (keras/src/activations/activations.py), so predictions would differ. Its
  layers get `"weights": null`: every Keras 2 and tf_keras accepts that argument of `Layer` and ignores the null
  (keras/engine/base_layer.py, 2.2.4), Keras 3 refuses it as unknown. The same stops Keras 3 where kernels are Theano's.
- A `Bidirectional` that returns sequences held its last state at masked steps in Keras up to 2.3 and tf.keras 1.12;
  tf_keras and Keras 3 give 0 there. Keras 3 is stopped in the same way, and it is said for tf_keras.
- A GRU without `reset_after` was written before Keras 2.1.4, where it was always False; tf_keras and Keras 3 take a
  missing one for True.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from .checkpoint import Checkpoint, Notice
from .keras3_groups import KERAS3_FORMATS
from .keras_variables import is_keras_class

_THEANO_FLIPS = frozenset({"Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "ConvLSTM2D"})
_GRU = ("GRU", "GRUCell")


def written_config(template: Checkpoint) -> tuple[str | None, tuple[Notice, ...]]:
    """The template's configuration as a legacy file should hold it, and what there is to say about it.

    Parameters
    ----------
    template : its `config` may be None, or that of any Keras

    Returns
    -------
    the configuration, unchanged where no library would misread it; one notice a reason
    """
    if (template.written_by.keras_major or 2) != 2:
        return template.config, ()
    if template.config is None:
        return None, tuple(_notices([], _turned_kernels(template), []))
    document = json.loads(template.config)
    if not isinstance(document, dict):
        return template.config, ()
    theano = template.written_by.backend == "theano"
    changed = _write_inputs_out(document)
    hard, flipped, gated, held = [], [], [], []
    masked = _holds_masked_steps(template, document)
    for name, entry in _layers(document):
        config = entry["config"]
        if not is_keras_class(str(entry.get("class_name"))):
            continue  # an own class may take no `weights`; Keras 3 knows it by the user's code alone
        if any(key.endswith("activation") and value == "hard_sigmoid" for key, value in config.items()):
            hard.append(name)
            config["weights"] = None
        if theano and entry["class_name"] in _THEANO_FLIPS:
            flipped.append(name)
            config["weights"] = None
        if masked and entry["class_name"] == "Bidirectional" and (inner := _returning_sequences(config)) is not None:
            held.append(name)
            inner["weights"] = None
        if entry["class_name"] in _GRU and "reset_after" not in config:
            gated.append(name)
            config["reset_after"] = False
    if not (changed or hard or flipped or gated or held):
        return template.config, ()
    return json.dumps(document), (*_notices(hard, flipped, gated), *_masked_notice(held))


def without_lora(checkpoint: Checkpoint) -> Checkpoint:
    """The description for a legacy file: Keras 3 merges LoRA's factors when it saves a `.keras` file, and stores none.

    A legacy file with `lora_rank` in its configuration is refused where it does not hold them. Source:
    keras/src/layers/core/dense.py, `save_own_variables`, and keras/src/legacy/saving/legacy_h5_format.py (Keras 3.15).
    """
    if checkpoint.format not in KERAS3_FORMATS or checkpoint.config is None or '"lora_rank"' not in checkpoint.config:
        return checkpoint
    document = json.loads(checkpoint.config)
    merged = [name for name, entry in _layers(document) if entry["config"].pop("lora_rank", None) is not None]
    for _, entry in _layers(document):
        entry["config"].pop("lora_alpha", None)
    if not merged:
        return checkpoint
    message = f"{_listed(merged)}: the factors of LoRA are merged into the kernels; the file asks for none"
    return replace(checkpoint, config=json.dumps(document)).with_warnings(Notice("lora-merged", message, merged[0]))


def _holds_masked_steps(template: Checkpoint, document: dict[str, Any]) -> bool:
    """Whether the writer held states at masked steps, and the model makes masks."""
    from .migration.generation import holds_masked_steps

    return holds_masked_steps(template.written_by) and any(
        entry.get("class_name") == "Masking" or entry["config"].get("mask_zero") is True
        for _, entry in _layers(document)
    )


def _returning_sequences(config: dict[str, Any]) -> dict[str, Any] | None:
    """The configuration of the layer that a Bidirectional runs both ways, if it returns sequences."""
    layer = config.get("layer")
    inner = layer.get("config") if isinstance(layer, dict) else None
    return inner if isinstance(inner, dict) and inner.get("return_sequences") is True else None


def _masked_notice(held: list[str]) -> Iterator[Notice]:
    if held:
        yield Notice(
            "masked-steps",
            f"{_listed(held)}: where a mask comes in, tf_keras gives 0 at masked steps, this Keras its last state; "
            "'ckpttool migrate' rebuilds that for Keras 3, which is kept from opening this file",
            held[0],
        )


def _turned_kernels(template: Checkpoint) -> list[str]:
    """Layers of a weights-only file whose kernels Theano keeps the other way round."""
    if template.written_by.backend != "theano":
        return []
    return [
        "/".join(path)
        for path, layer in template.walk()
        if layer.class_name in _THEANO_FLIPS
        or (
            layer.class_name is None
            and any(each.path[-1] == "kernel" and len(each.shape) > 2 for each in layer.tensors)
        )
    ]


def _notices(hard: list[str], flipped: list[str], gated: list[str]) -> Iterator[Notice]:
    if hard:
        yield Notice(
            "keras3-refuses",
            f"{_listed(hard)}: hard_sigmoid has another slope in Keras 3, which would compute something else; "
            "the file is marked so that Keras 3 refuses it",
            hard[0],
        )
    if flipped:
        yield Notice(
            "theano-kernels",
            f"{_listed(flipped)}: the kernels are those of Theano, which Keras 2 turns while it loads the file; "
            "tf_keras does not, so it would predict something else, and Keras 3 is kept from opening a full model",
            flipped[0],
        )
    if gated:
        yield Notice(
            "reset-after-written",
            f"{_listed(gated)}: reset_after=False is written out, which tf_keras needs; "
            "Keras before 2.1.4 and tf.keras before 1.9 do not know the argument",
            gated[0],
        )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _entries(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """The stored layers of a model's entry; none for a layer that is no model."""
    config = entry.get("config")
    listed = config.get("layers") if isinstance(config, dict) else config
    return [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []


def _layers(entry: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every layer that is no model, with its path: those inside of models and of wrapper layers, and cells."""
    inside = _entries(entry)
    config = entry.get("config")
    if not inside and isinstance(config, dict):
        yield prefix, entry
        inside = [config[key] for key in ("layer", "backward_layer", "cell") if isinstance(config.get(key), dict)]
        cells = config.get("cells")
        inside += [each for each in cells if isinstance(each, dict)] if isinstance(cells, list) else []
        for each in inside:
            yield from _layers(each, prefix)
        return
    for each in inside:
        own = each.get("config")
        name = each.get("name") or (own.get("name") if isinstance(own, dict) else None) or str(each.get("class_name"))
        yield from _layers(each, f"{prefix}/{name}" if prefix else str(name))


def _write_inputs_out(entry: dict[str, Any]) -> bool:
    """Put the InputLayer in front of a Sequential, and of Sequentials in it, that has none; True where one was put.

    Keras up to 2.1 and TF up to 1.8 list a Sequential's layers without a name, which Keras 3 refuses: left alone.
    """
    config = entry.get("config")
    if entry.get("class_name") != "Sequential" or not isinstance(config, dict) or "name" not in config:
        return False
    layers = _entries(entry)
    changed = sum(_write_inputs_out(each) for each in layers) > 0
    first = layers[0].get("config") if layers else None
    if not isinstance(first, dict) or layers[0].get("class_name") == "InputLayer" or "layers" in first:
        return changed
    if not isinstance(first.get("batch_input_shape"), list):
        return changed
    name = first.get("name") or layers[0].get("name") or str(layers[0].get("class_name")).lower()
    source = {"batch_input_shape": first["batch_input_shape"], "dtype": _dtype(first), "sparse": False}
    config["layers"].insert(0, {"class_name": "InputLayer", "config": {**source, "name": f"{name}_input"}})
    return True


def _dtype(first: dict[str, Any]) -> str:
    """Of the input that Keras makes for a first layer: the layer's own, where it is a name."""
    dtype = first.get("dtype")
    return dtype if isinstance(dtype, str) else "float32"
