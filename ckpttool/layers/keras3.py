"""The dot-product layer for Keras 3, any backend. Keras is imported when the class is asked for.

Source: keras/src/layers/layer.py, keras/src/saving/serialization_lib.py, object sharing (Keras 3.15).
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

from ..errors import UnsupportedError
from ._scoring import (
    ON_ITS_OWN,
    PACKAGE,
    called_on,
    check_axis,
    check_width,
    find_same_layer,
    inner_entries,
    is_entry_of,
    kernel_of,
)


class DotProductOfKeras3:
    """Scores its input against another layer's live kernel; see `ckpttool.layers.EmbeddingDotProduct`."""

    layer: Any
    name: str
    compute_dtype: str
    _tracker: Any

    def __init__(
        self,
        layer: Any,
        axis: str = "rows",
        normalize: bool = False,
        name: str | None = None,
        *,
        trainable_kernel: bool = True,
        **kwargs: Any,
    ) -> None:
        kwargs["autocast"] = False  # the kernel is cast here: for cosines only after its norms are taken
        super().__init__(name=name, **kwargs)  # type: ignore[call-arg]
        self.axis = check_axis(axis)
        self.normalize = bool(normalize)
        self.trainable_kernel = bool(trainable_kernel)
        self.layer = layer
        self.supports_masking = True
        self._from_config = False

    def build(self, input_shape: Any) -> None:
        """Check the width of the vectors."""
        check_width(input_shape, kernel_of(self.layer), self.axis, self.layer.name)
        self.built = True

    def __call__(self, vectors: Any, *args: Any, **kwargs: Any) -> Any:
        """Find the shared source layer again where only a copy came out of a configuration, then call."""
        if self._from_config and hasattr(vectors, "_keras_history"):
            self._share(vectors)
        result: Any = super().__call__(vectors, *args, **kwargs)  # type: ignore[misc]
        return result

    def _share(self, vectors: Any) -> None:
        self._from_config = False
        found = find_same_layer([vectors], self.layer)
        if found is self.layer:
            return
        if found is not None:
            self._tracker.unlock()
            self._tracker.untrack(self.layer)
            self.layer = found
            self._tracker.lock()
        elif _state("shared_objects/id_to_obj_map") is None:
            warnings.warn(ON_ITS_OWN.format(name=self.name, source=self.layer.name), stacklevel=3)

    def call(self, vectors: Any) -> Any:
        """Score vectors of shape (…, dim), with axis="columns" (…, rows); gives the compute dtype."""
        from keras import ops

        kernel = ops.convert_to_tensor(kernel_of(self.layer))
        if not self.trainable_kernel:
            kernel = ops.stop_gradient(kernel)
        if self.axis == "rows":
            kernel = ops.transpose(kernel)
        if self.normalize:
            exact = "float64" if self.compute_dtype == "float64" else "float32"
            vectors = _unit(ops.cast(vectors, exact), -1)
            kernel = _unit(ops.cast(kernel, exact), 0)
        return ops.matmul(ops.cast(vectors, self.compute_dtype), ops.cast(kernel, self.compute_dtype))

    def compute_output_shape(self, input_shape: Any) -> tuple[int | None, ...]:
        """(…, rows), with axis="columns" (…, dim)."""
        rows, dim = kernel_of(self.layer).shape
        return (*input_shape[:-1], rows if self.axis == "rows" else dim)

    def get_config(self) -> dict[str, Any]:
        """Arguments, and the source layer, which Keras writes once and gives back as one object.

        Raises
        ------
        UnsupportedError : asked for by the legacy HDF5 format, which makes two layers of a shared one
        """
        import keras

        if _state("use_legacy_config"):  # keras/src/legacy/saving/saving_options.py
            raise UnsupportedError(
                f"layer '{self.name}' shares the kernel of '{self.layer.name}', which legacy HDF5 cannot hold; "
                "save the model as NAME.keras"
            )
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        config.pop("autocast", None)
        source = keras.saving.serialize_keras_object(self.layer)
        self._mark_shared(source)
        return {
            **config,
            "layer": source,
            "axis": self.axis,
            "normalize": self.normalize,
            "trainable_kernel": self.trainable_kernel,
        }

    def _mark_shared(self, source: dict[str, Any]) -> None:
        """Give the source layer's entry inside a nested model the number by which Keras knows shared objects.

        Keras does so for layers of one model; a nested one's configuration is copied before the second use is seen
        (keras/src/models/functional.py, get_config, Keras 3.15).
        """
        recorded = _state("shared_objects/id_to_config_map")
        if recorded is None or "shared_object_id" not in source:
            return
        alike = [entry for entry in recorded.values() if is_entry_of(entry, source)]
        if len(alike) == 1:
            for entry in recorded.values():
                for inner in inner_entries(entry):
                    if is_entry_of(inner, source):
                        inner["shared_object_id"] = source["shared_object_id"]
        elif find_same_layer(called_on(self), self.layer) is None:
            raise UnsupportedError(
                f"layer '{self.name}' shares the kernel of '{self.layer.name}', and {len(alike)} layers are called so; "
                "give each a name of its own, or save the weights alone as NAME.weights.h5"
            )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make the layer; in a model file its source layer is the model's own."""
        import keras

        source = keras.saving.deserialize_keras_object(config["layer"])
        made = cls(**{**config, "layer": source})
        made._from_config = True
        return made


def _unit(lines: Any, axis: int) -> Any:
    """Divide by the L2 norms along an axis; zeros stay zeros, and so do their gradients."""
    from keras import ops

    squares = ops.sum(ops.square(lines), axis=axis, keepdims=True)
    return lines / ops.sqrt(ops.where(squares == 0, ops.ones_like(squares), squares))


def _state(name: str) -> Any:
    """What Keras notes for the time of a save or load; None where a release keeps it elsewhere."""
    try:
        from keras.src.backend.common import global_state
    except ImportError:
        return None
    return global_state.get_global_attribute(name)


@functools.cache
def layer_class() -> type:
    """The class, registered as `ckpttool>EmbeddingDotProduct`, so that safe mode loads it."""
    import keras

    made = type("EmbeddingDotProduct", (DotProductOfKeras3, keras.layers.Layer), {"__module__": __name__})
    registered: type = keras.saving.register_keras_serializable(PACKAGE)(made)
    return registered


def __getattr__(name: str) -> Any:
    if name == "EmbeddingDotProduct":
        return layer_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
