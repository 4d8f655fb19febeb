"""Which kernels of a file Theano may have trained: it convolves where TensorFlow correlates.

A kernel that Theano trained computes the same in TensorFlow when every spatial axis is reversed. Keras 2 states the
backend and turns kernels while it loads them; Keras 1 states nothing, so only its user knows.
Source: keras/engine/topology.py, `preprocess_weights_for_loading`, keras/utils/conv_utils.py, `convert_kernel` (Keras
2.0.9); the kernels of Keras 1 are channels first where `dim_ordering` is "th" (keras/layers/convolutional.py, 1.2.2).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .checkpoint import Checkpoint, Notice, TensorSpec
from .errors import UsageError
from .keras_config import LayerConfig, accepted_config

# Separable and locally connected layers are not among them: Theano's backend reverses or never convolves these.
_CONVOLUTIONS = frozenset(
    """Conv1D Conv2D Conv3D Conv2DTranspose Conv3DTranspose ConvLSTM2D Convolution1D Convolution2D Convolution3D
    AtrousConvolution1D AtrousConvolution2D Deconvolution2D""".split()
)
_KERNELS = ("kernel", "recurrent_kernel")
MAX_SHOWN = 5


@dataclass(frozen=True, slots=True)
class Turn:
    """How one kernel is turned: axes reversed as stored, then the axes' new order (None: as it is)."""

    spec: TensorSpec
    flipped: tuple[int, ...]
    order: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the turned kernel."""
        return self.spec.shape if self.order is None else tuple(self.spec.shape[axis] for axis in self.order)


def turns(checkpoint: Checkpoint, *, keep_layout: bool, path: object = None) -> list[Turn]:
    """What turns the convolution kernels of a description into those that TensorFlow would have.

    Parameters
    ----------
    checkpoint : named and nested, with its configuration
    keep_layout : leave channels where the configuration has them; else channels-first kernels become channels last
    path : the file, for messages

    Raises
    ------
    UsageError : there is no configuration, so which layers convolve is not known
    """
    if checkpoint.config is None:
        raise UsageError("--theano needs the layers' classes, which the file does not hold; give --config", path=path)
    return [
        _turn(spec, config, keep_layout)
        for spec, config in _kernels(checkpoint)
        if len(spec.shape) >= 3 and spec.dtype != "string"
    ]


def _kernels(checkpoint: Checkpoint) -> Iterator[tuple[TensorSpec, LayerConfig]]:
    if checkpoint.config is None:
        return
    prefix = checkpoint.config_of
    configs = {(*prefix, *where): layer for where, layer in accepted_config(checkpoint.config).walk()}
    for where, layer in checkpoint.walk():
        config = configs.get(where)
        while config is not None and config.inner is not None:
            config = config.inner
        if config is None or config.class_name not in _CONVOLUTIONS:
            continue
        for spec in layer.tensors:
            if spec.path[-1] in _KERNELS or spec.path[-1][:2] in ("W_", "U_"):
                yield spec, config


def _turn(spec: TensorSpec, config: LayerConfig, keep_layout: bool) -> Turn:
    rank = len(spec.shape)
    if not _channels_first(spec, config):
        return Turn(spec, tuple(range(rank - 2)))
    spatial = tuple(range(2, rank))
    return Turn(spec, spatial, None if keep_layout else (*spatial, 1, 0))


def _channels_first(spec: TensorSpec, config: LayerConfig) -> bool:
    """Keras 1 stores kernels by `dim_ordering`; its Convolution1D before 1.2 as `(filters, input, length, 1)`."""
    arguments = config.config
    if config.class_name in ("Convolution1D", "AtrousConvolution1D"):
        filters, length = arguments.get("nb_filter"), arguments.get("filter_length")
        rows = spec.shape
        return len(rows) == 4 and (rows[0], rows[2], rows[3]) == (filters, length, 1) and rows[1::2] != (1, filters)
    return "nb_filter" in arguments and arguments.get("dim_ordering") == "th"


def theano_notice(checkpoint: Checkpoint) -> Notice | None:
    """Say that convolution kernels are, or may be, Theano's; None where they are not or there are none."""
    written_by = checkpoint.written_by
    old = written_by.keras_major in (None, 1) and written_by.backend is None
    if written_by.backend != "theano" and not old:
        return None
    if checkpoint.config is None:
        kernels = [spec for spec in checkpoint.weights() if spec.path[-1] == "kernel" and len(spec.shape) in (4, 5)]
    else:
        kernels = [spec for spec, _ in _kernels(checkpoint)]
    if not kernels:
        return None
    layers = list(dict.fromkeys("/".join(spec.path[:-1]) for spec in kernels))
    named = ", ".join(layers[:MAX_SHOWN]) + (f" and {len(layers) - MAX_SHOWN} more" if len(layers) > MAX_SHOWN else "")
    if written_by.backend == "theano":
        reason = "the file was written on Theano"
    elif all(not spec.locator.endswith(":0") for spec in kernels):
        reason = "Keras 1 does not state its backend, but the names are without ':0', as Theano's are"
    else:
        reason = "Keras 1 does not state its backend"
    sure = "are" if written_by.backend == "theano" else "may be"
    return Notice(
        "theano-kernels",
        f"{named}: convolution kernels {sure} those of Theano, which TensorFlow needs turned ({reason}); "
        "--theano turns them",
        layers[0],
    )
