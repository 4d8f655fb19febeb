"""Load a `.keras` file as any user of stock Keras 3 would, in a process of its own: no line of ckpttool takes part.

This module's source is handed to `python -c`; it imports nothing but keras and NumPy. It writes what it found (each
variable's name, shape, dtype and checksum, by the path of its layer) and what the model predicts.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
from collections.abc import Iterator
from typing import Any


def main(job: dict[str, Any]) -> None:
    """Run one job: {"model", "outputs", "result", "custom", "modules", "path"}; stdin says where inputs are, if any."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    sys.path[:0] = job["path"]
    for name in job["modules"]:
        importlib.import_module(name)  # named by the user with --replace: registers their classes
    custom = _custom_objects(job["custom"])
    model = keras.saving.load_model(job["model"], custom_objects=custom or None, compile=False, safe_mode=True)
    layers = [{"path": list(path), "variables": [_described(each) for each in layer.weights]}
              for path, layer in _leaves(model, ())]  # fmt: skip
    found: dict[str, Any] = {"keras": keras.__version__, "backend": keras.config.backend(), "layers": layers}
    outputs: dict[str, Any] = {}
    inputs = sys.stdin.readline().rstrip("\n")
    if inputs:
        with np.load(inputs) as stored:
            cases = json.loads(str(stored["cases"]))
            for number, names in enumerate(cases):
                arrays = [stored[name] for name in names]
                for place, output in enumerate(_predicted(keras, model, arrays)):
                    outputs[f"{number}/{place}"] = output
        np.savez(job["outputs"], **outputs)
    with open(job["result"], "w", encoding="utf-8") as file:
        json.dump(found, file)


def _custom_objects(path: str | None) -> dict[str, Any]:
    """Classes and functions of the user's own file, which they named."""
    if path is None:
        return {}
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("ckpttool_custom_objects", path)
    if spec is None or spec.loader is None:
        return {}
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}


def _leaves(model: Any, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Layers that are no models, with their paths; a model inside a TimeDistributed is a level of its own."""
    for layer in model.layers:
        path = (*prefix, layer.name)
        if hasattr(layer, "layers"):
            yield from _leaves(layer, path)
            continue
        inner = getattr(layer, "layer", None)
        while inner is not None and not hasattr(inner, "layers"):
            inner = getattr(inner, "layer", None)
        if inner is not None:
            yield from _leaves(inner, (*path, inner.name))
        else:
            yield path, layer


def _described(variable: Any) -> dict[str, Any]:
    import keras
    import numpy as np

    array = np.ascontiguousarray(keras.ops.convert_to_numpy(variable))
    return {
        "name": variable.name,
        "shape": list(array.shape),
        "dtype": str(array.dtype),
        "sha256": hashlib.sha256(array.tobytes()).hexdigest(),
    }


def _predicted(keras: Any, model: Any, arrays: list[Any]) -> Iterator[Any]:
    """The outputs, in order, as float64; from zero states where the model keeps some."""
    import numpy as np

    _reset(model)
    given = arrays if len(arrays) > 1 else arrays[0]
    try:
        outputs = model(given, training=False)
    except Exception:  # whatever the backend raises about an operation its eager mode lacks (channels_first)
        if keras.config.backend() != "tensorflow":
            raise
        import tensorflow as tf

        outputs = tf.function(lambda inputs: model(inputs, training=False), jit_compile=True)(given)
    for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
        yield np.asarray(keras.ops.convert_to_numpy(output)).astype("float64")


def _reset(model: Any) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) and hasattr(layer, "reset_state"):
            layer.reset_state()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
    os._exit(0)  # all is written; taking a framework down takes a second, and has been seen to fail
