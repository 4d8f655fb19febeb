"""Keras's own ways to the same output: make the file, edit and save it, load and save it.

Usage: `make OUT`, `edit SOURCE OUT` (`KerasFileEditor`, weights only), `load SOURCE OUT`; 1 GB in 128 Dense layers.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras

LAYERS, WIDTHS = 128, (1024, 2048)  # kernels of 8 MB of float32 each, 1 GB together


def make(target: str) -> None:
    """Save a model with random weights: a `.keras` archive."""
    layers = [keras.layers.Dense(WIDTHS[(place + 1) % 2], name=f"block_{place}") for place in range(LAYERS)]
    keras.Sequential([keras.layers.Input(WIDTHS[:1]), *layers]).save(target)


def main() -> None:
    """Run one of three actions."""
    action, *paths = sys.argv[1:]
    if action == "make":
        make(paths[0])
    elif action == "edit":
        keras.saving.KerasFileEditor(paths[0]).save(paths[1])
    else:
        keras.saving.load_model(paths[0], compile=False).save(paths[1])


main()
