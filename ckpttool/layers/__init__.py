"""Keras layers that use another layer's live weights. No framework is imported until a layer is made."""

from __future__ import annotations

from typing import Any

from ._scoring import library_of

__all__ = ["EmbeddingDotProduct"]


class _Picking(type):
    """Makes `isinstance` true for the layers of every library."""

    def __instancecheck__(cls, instance: Any) -> bool:
        from .keras2 import DotProductOfKeras2
        from .keras3 import DotProductOfKeras3

        return isinstance(instance, DotProductOfKeras2 | DotProductOfKeras3)


class EmbeddingDotProduct(metaclass=_Picking):
    """A layer that scores its input against the live kernel of another layer, in the library that made that one.

    The kernel is the other layer's own variable: nothing is copied, the scores follow training.

    Parameters
    ----------
    layer : a Dense (kernel), an Embedding (table), or another layer with one matrix `kernel` of shape (rows, dim);
        of Keras 3, tf_keras or Keras 2; built, unless it is an Embedding
    axis : "rows" for vectors (…, dim) -> scores (…, rows): vectors @ kernel.T, one score for each row;
        "columns" for (…, rows) -> (…, dim): vectors @ kernel
    normalize : cosines, without unit; a zero vector, row or column scores 0
    name : of the new layer
    trainable_kernel : False stops gradients: the scores do not train the kernel
    kwargs : of any Keras layer: dtype, trainable

    Returns
    -------
    a layer of the library that made `layer`: an instance of the class in `ckpttool.layers.keras3` or `.keras2`

    Raises
    ------
    TypeError : `layer` is no layer of Keras
    ValueError : an unknown axis; when called: no kernel yet, none that is a matrix, or vectors of another width

    Notes
    -----
    Scores have the layer's compute dtype; norms are taken in float32 (float64 where that is the compute dtype).
    """

    def __new__(
        cls,
        layer: Any,
        axis: str = "rows",
        normalize: bool = False,
        name: str | None = None,
        *,
        trainable_kernel: bool = True,
        **kwargs: Any,
    ) -> Any:
        from . import keras2, keras3

        library, major = library_of(layer)
        made = keras3.layer_class() if major >= 3 else keras2.layer_class(library)
        return made(layer, axis, normalize, name, trainable_kernel=trainable_kernel, **kwargs)
