"""The dot-product layer for tf_keras, and for Keras 2 as TensorFlow up to 2.15 has it.

Source: tf_keras/src/engine/base_layer.py, tf_keras/src/saving/serialization_lib.py (tf_keras 2.21).
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from typing import Any

from ..errors import UnsupportedError
from ._scoring import ON_ITS_OWN, PACKAGE, called_on, check_axis, check_width, find_same_layer, kernel_of

HDF5_WRITER = "save_model_to_hdf5"  # keras/src/saving/legacy/hdf5_format.py


class DotProductOfKeras2:
    """Scores its input against another layer's live kernel; see `ckpttool.layers.EmbeddingDotProduct`."""

    library: str  # "tf_keras" or "keras"
    layer: Any
    name: str
    compute_dtype: str

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
        super().build(input_shape)  # type: ignore[misc]

    def __call__(self, vectors: Any, *args: Any, **kwargs: Any) -> Any:
        """Find the shared source layer again where only a copy came out of a configuration, then call."""
        if self._from_config and hasattr(vectors, "_keras_history"):
            self._from_config = False
            found = find_same_layer([vectors], self.layer)
            if found is not None:
                self.layer = found
            elif self._recorded() is None:
                warnings.warn(ON_ITS_OWN.format(name=self.name, source=self.layer.name), stacklevel=2)
        result: Any = super().__call__(vectors, *args, **kwargs)  # type: ignore[misc]
        return result

    def call(self, vectors: Any) -> Any:
        """Score vectors of shape (…, dim), with axis="columns" (…, rows); gives the compute dtype."""
        import tensorflow as tf

        kernel = tf.convert_to_tensor(kernel_of(self.layer))
        if not self.trainable_kernel:
            kernel = tf.stop_gradient(kernel)
        if self.axis == "rows":
            kernel = tf.transpose(kernel)
        if self.normalize:
            exact = "float64" if self.compute_dtype == "float64" else "float32"
            vectors = _unit(tf.cast(vectors, exact), -1)
            kernel = _unit(tf.cast(kernel, exact), 0)
        return tf.matmul(tf.cast(vectors, self.compute_dtype), tf.cast(kernel, self.compute_dtype))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """(…, rows), with axis="columns" (…, dim)."""
        import tensorflow as tf

        rows, dim = kernel_of(self.layer).shape
        return tf.TensorShape((*input_shape[:-1], rows if self.axis == "rows" else dim))

    def get_config(self) -> dict[str, Any]:
        """Arguments, and the source layer; found again as one object where the graph leads to it.

        Raises
        ------
        UnsupportedError : asked for by a format that makes two layers of the shared one
        """
        self._refuse_what_loses_the_sharing()
        config: dict[str, Any] = super().get_config()  # type: ignore[misc]
        config.pop("autocast", None)
        return {
            **config,
            "layer": _saving(sys.modules[self.library]).serialize_keras_object(self.layer),
            "axis": self.axis,
            "normalize": self.normalize,
            "trainable_kernel": self.trainable_kernel,
            "rows": kernel_of(self.layer).shape[0] if self.layer.built else None,
        }

    def _refuse_what_loses_the_sharing(self) -> None:
        """Keras 2 gives a shared built-in layer back twice from `.keras`, and from HDF5 a source layer not at all.

        Source: tf_keras/src/saving/serialization_lib.py, deserialize_keras_object with module_objects (2.21).
        """
        recorded = self._recorded()
        apart = recorded is not None and id(self.layer) in recorded and not self._leads_to_its_source()
        if apart or _called_from(HDF5_WRITER):
            what = "a .keras file" if apart else "legacy HDF5"
            raise UnsupportedError(
                f"layer '{self.name}' shares the kernel of '{self.layer.name}', which {what} of {self.library} cannot "
                "hold; save the model as a SavedModel: model.save('FOLDER', save_format='tf')"
            )

    def _leads_to_its_source(self) -> bool:
        return find_same_layer(called_on(self), self.layer) is not None

    def _recorded(self) -> Any:
        """What a save as `.keras` has written so far, by object; None outside of one."""
        for place in (f"{self.library}.src.saving.serialization_lib", f"{self.library}.saving.serialization_lib"):
            shared = getattr(sys.modules.get(place), "SHARED_OBJECTS", None)
            if shared is not None:
                return shared.id_to_config_map if getattr(shared, "enabled", False) else None
        return None

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        """Make the layer; in a model file its source layer is the model's own."""
        library, stored = sys.modules[cls.library], config["layer"]
        # A SavedModel holds the older form, without "module"; only `layers.deserialize` knows Keras's classes for it.
        read = _saving(library).deserialize_keras_object if "module" in stored else library.layers.deserialize
        arguments = {**config, "layer": read(stored)}
        rows = arguments.pop("rows", None)
        if rows is not None and not arguments["layer"].built:
            arguments["layer"].build((None, rows))  # a SavedModel does not say how to build it
        made = cls(**arguments)
        made._from_config = True
        return made


def _called_from(name: str) -> bool:
    """Whether a function of that name is running; get_config is not told which format it is asked for."""
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name == name:
            return True
        frame = frame.f_back
    return False


def _saving(library: Any) -> Any:
    """Where the library has its functions for serialization: `keras.utils` up to 2.12."""
    return library.saving if hasattr(library.saving, "register_keras_serializable") else library.utils


def _unit(lines: Any, axis: int) -> Any:
    """Divide by the L2 norms along an axis; zeros stay zeros, and so do their gradients."""
    import tensorflow as tf

    squares = tf.reduce_sum(tf.square(lines), axis=axis, keepdims=True)
    return lines / tf.sqrt(tf.where(squares == 0, tf.ones_like(squares), squares))


@functools.cache
def layer_class(library: str) -> type:
    """The class for "tf_keras", or for "keras" of major version 2, once imported; registered for safe mode."""
    keras = sys.modules[library]
    own = {"__module__": __name__, "library": library}
    made = type("EmbeddingDotProduct", (DotProductOfKeras2, keras.layers.Layer), own)
    registered: type = _saving(keras).register_keras_serializable(PACKAGE)(made)
    return registered


def __getattr__(name: str) -> Any:
    if name == "EmbeddingDotProduct":
        import tf_keras

        return layer_class(tf_keras.__name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
