"""Make TensorFlow checkpoints, list one, take one tensor out: with TensorFlow itself."""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf

LARGE_LAYERS, LARGE_SHAPE = 128, (1024, 2048)  # 8 MB of float32 each, 1 GB together
MANY_LAYERS, NAMES = 5_000, ("kernel", "bias", "gamma", "beta")
KERNEL = "model/blocks/64/kernel/.ATTRIBUTES/VARIABLE_VALUE"


def module(name: str, **shapes: tuple[int, ...]) -> tf.Module:
    """A module with variables of its own."""
    made = tf.Module()
    random = np.random.default_rng(0)
    for each, shape in shapes.items():
        values = random.standard_normal(shape, np.float32)
        setattr(made, each, tf.Variable(values, name=f"{name}/{each}"))
    return made


def make(kind: str, prefix: str) -> None:
    """Write one of three checkpoints."""
    if kind == "large":
        root = tf.Module()
        root.blocks = [
            module(f"block_{place}", kernel=LARGE_SHAPE, bias=LARGE_SHAPE[1:]) for place in range(LARGE_LAYERS)
        ]
        tf.train.Checkpoint(model=root).write(prefix)
    elif kind == "many-objects":
        root = tf.Module()
        for place in range(MANY_LAYERS):
            layer = module(f"layer_{place}", **dict.fromkeys(NAMES, (8,)))
            setattr(root, f"layer_with_weights-{place}", layer)
            setattr(root, f"layer-{place}", layer)
        tf.train.Checkpoint(root).write(prefix)
    else:
        names = [f"layer_{place}/{each}" for place in range(MANY_LAYERS) for each in NAMES]
        values = [tf.constant(np.full(8, place, np.float32)) for place in range(len(names))]
        tf.raw_ops.SaveV2(prefix=prefix, tensor_names=names, shape_and_slices=[""] * len(names), tensors=values)


def main() -> None:
    """`make KIND PREFIX`, `list KIND PREFIX`, `extract KIND PREFIX OUT`."""
    action, kind, prefix = sys.argv[1:4]
    if action == "make":
        make(kind, prefix)
        return
    reader = tf.train.load_checkpoint(prefix)
    if action == "extract":
        np.save(sys.argv[4], reader.get_tensor(KERNEL))
        return
    shapes, types = reader.get_variable_to_shape_map(), reader.get_variable_to_dtype_map()
    for name in sorted(shapes):
        print(name, shapes[name], types[name].name)


main()
