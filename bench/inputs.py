"""Build the inputs of the benchmark, in the layout of files that Keras 2.2.4 wrote.

Synthetic, after keras/engine/saving.py and keras/utils/multi_gpu_utils.py (Keras 2.2.4): the layout is the library's,
the values are random. Real files of this size would take minutes and old Pythons to make; the tests use real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

Json = dict[str, Any]
Shapes = dict[str, tuple[int, ...]]  # stored weight name -> shape, in `weight_names` order
ATTRIBUTE_LIMIT_BYTES = 64_512  # of HDF5; Keras cuts a longer list into name0, name1
RESNET_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))  # (filters, blocks): keras_applications/resnet50.py, 1.0.8
CLASSES = 1000
LARGE_LAYERS, LARGE_SHAPE = 128, (1024, 2048)  # 8 MB of float32 each, 1 GB together
MANY_LAYERS = 10_000  # two tensors each

NAMES = {"wrapped": "wrapped-98mb.h5", "large": "wrapped-1gb.h5", "many": "many-20000.h5"}


def build(folder: Path) -> dict[str, Path]:
    """Make the files that are not there yet; returns their paths by name."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / file for name, file in NAMES.items()}
    makers = {"wrapped": _wrapped_resnet, "large": _large, "many": _many}
    for name, make in makers.items():
        if not paths[name].exists():
            unfinished = paths[name].with_suffix(".part")
            make(unfinished)
            unfinished.rename(paths[name])
    return paths


class Graph:
    """A functional model as it grows: its layers' entries and the shapes of their weights."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.name = name
        self.layers: list[Json] = []
        self.weights: dict[str, Shapes] = {}
        self.frozen: dict[str, Shapes] = {}
        self.shape = shape
        self.add("InputLayer", "input_1", [], {"batch_input_shape": [None, *shape], "dtype": "float32"})

    def add(self, class_name: str, name: str, inputs: list[str], config: Json) -> str:
        """Append a layer that takes the outputs of others."""
        nodes = [[[each, 0, 0, {}] for each in inputs]] if inputs else []
        entry = {"name": name, "class_name": class_name, "config": {"name": name, **config}, "inbound_nodes": nodes}
        self.layers.append(entry)
        return name

    def convolution(self, source: str, name: str, inputs: int, filters: int, size: int) -> str:
        """A Conv2D with bias, then its BatchNormalization."""
        self.weights[name] = {f"{name}/kernel:0": (size, size, inputs, filters), f"{name}/bias:0": (filters,)}
        config = {"filters": filters, "kernel_size": [size, size], "padding": "same", "use_bias": True}
        self.add("Conv2D", name, [source], {"trainable": True, "activation": "linear", **config})
        norm = name.replace("conv", "bn") if "conv" in name else f"bn_{name}"
        self.weights[norm] = {f"{norm}/{each}:0": (filters,) for each in ("gamma", "beta")}
        self.frozen[norm] = {f"{norm}/{each}:0": (filters,) for each in ("moving_mean", "moving_variance")}
        return self.add(
            "BatchNormalization", norm, [name], {"trainable": True, "axis": 3, "scale": True, "center": True}
        )

    def dense(self, source: str, name: str, inputs: int, units: int) -> str:
        """A Dense layer with bias."""
        self.weights[name] = {f"{name}/kernel:0": (inputs, units), f"{name}/bias:0": (units,)}
        return self.add("Dense", name, [source], {"trainable": True, "units": units, "use_bias": True})

    def config(self) -> Json:
        """`{"class_name", "config"}` with one input and one output."""
        first, last = self.layers[0]["name"], self.layers[-1]["name"]
        inside = {
            "name": self.name,
            "layers": self.layers,
            "input_layers": [[first, 0, 0]],
            "output_layers": [[last, 0, 0]],
        }
        return {"class_name": "Model", "config": inside}

    def flat(self) -> Shapes:
        """All weights as one group holds them: trainable ones, then moving statistics."""
        found: Shapes = {}
        for part in (self.weights, self.frozen):
            for shapes in part.values():
                found.update(shapes)
        return found


def _resnet50() -> Graph:
    graph = Graph("resnet50", (224, 224, 3))
    last, width = graph.convolution("input_1", "conv1", 3, 64, 7), 64
    for stage, (filters, blocks) in enumerate(RESNET_STAGES, 2):
        for block in range(blocks):
            base = f"res{stage}{chr(ord('a') + block)}_branch"
            shortcut = last
            inner = graph.convolution(last, f"{base}2a_conv", width, filters, 1)
            inner = graph.convolution(inner, f"{base}2b_conv", filters, filters, 3)
            inner = graph.convolution(inner, f"{base}2c_conv", filters, 4 * filters, 1)
            if block == 0:
                shortcut = graph.convolution(last, f"{base}1_conv", width, 4 * filters, 1)
            last, width = graph.add("Add", f"add_{stage}_{block}", [inner, shortcut], {}), 4 * filters
    pooled = graph.add("GlobalAveragePooling2D", "avg_pool", [last], {})
    graph.dense(pooled, "fc1000", width, CLASSES)
    return graph


def _parallel(template: Graph, replicas: int) -> tuple[Json, list[str]]:
    """The configuration of `multi_gpu_model(template, replicas)` and its layers' names in order."""
    outer = Graph("model_1", template.shape)
    lambdas = []
    for number in range(replicas):
        payload = ["4wEAAAAAAAAA", None, None]
        config = {"function": payload, "function_type": "lambda", "arguments": {"i": number, "parts": replicas}}
        lambdas.append(outer.add("Lambda", f"lambda_{number + 1}", ["input_1"], config))
    inner = template.config()
    outer.layers.append({
        "name": template.name, "class_name": inner["class_name"], "config": inner["config"],
        "inbound_nodes": [[[each, 0, 0, {}]] for each in lambdas],
    })  # fmt: skip
    merge = template.layers[-1]["name"]
    outer.add("Concatenate", merge, [], {"axis": 0})
    outer.layers[-1]["inbound_nodes"] = [[[template.name, call + 1, 0, {}] for call in range(replicas)]]
    return outer.config(), [layer["name"] for layer in outer.layers]


def _wrapped_resnet(path: Path) -> None:
    template = _resnet50()
    config, names = _parallel(template, 4)
    _write(path, config, names, {template.name: template.flat()})


def _large(path: Path) -> None:
    template = Graph("model_2", (LARGE_SHAPE[0],))
    last, width = "input_1", LARGE_SHAPE[0]
    for number in range(LARGE_LAYERS):
        units = LARGE_SHAPE[1] if width == LARGE_SHAPE[0] else LARGE_SHAPE[0]
        last, width = template.dense(last, f"dense_{number + 1}", width, units), units
    config, names = _parallel(template, 2)
    _write(path, config, names, {template.name: template.flat()})


def _many(path: Path) -> None:
    graph = Graph("model_1", (4,))
    last = "input_1"
    for number in range(MANY_LAYERS):
        last = graph.dense(last, f"dense_{number + 1}", 4, 4)
    _write(path, graph.config(), [layer["name"] for layer in graph.layers], graph.weights)


def _write(path: Path, config: Json, layer_names: list[str], groups: dict[str, Shapes]) -> None:
    random = np.random.default_rng(7)
    with h5py.File(path, "w") as file:
        for holder in (file, file.create_group("model_weights")):
            holder.attrs["keras_version"], holder.attrs["backend"] = b"2.2.4", b"tensorflow"
        file.attrs["model_config"] = json.dumps(config).encode()
        root = file["model_weights"]
        _write_names(root, "layer_names", layer_names)
        for name in layer_names:
            shapes = groups.get(name, {})
            group = root.create_group(name)
            _write_names(group, "weight_names", list(shapes))
            for weight, shape in shapes.items():
                group.create_dataset(weight, data=random.random(shape, np.float32))


def _write_names(group: h5py.Group, attribute: str, names: list[str]) -> None:
    if not names:
        group.attrs[attribute] = np.array([], np.float64)
        return
    pieces = list(_pieces(np.array([name.encode() for name in names])))
    for number, piece in enumerate(pieces):
        group.attrs[attribute if len(pieces) == 1 else f"{attribute}{number}"] = piece


def _pieces(names: np.ndarray) -> Iterator[np.ndarray]:
    parts = 1
    while any(piece.nbytes > ATTRIBUTE_LIMIT_BYTES for piece in np.array_split(names, parts)):
        parts += 1
    yield from np.array_split(names, parts)
