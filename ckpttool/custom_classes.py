"""The classes that loading a model needs and Keras does not bring along."""

from __future__ import annotations

from .checkpoint import Checkpoint, Notice
from .keras_config import LayerConfig
from .keras_variables import expected_variables
from .transforms import model_config
from .wrappers._op_nodes import is_op

_OF_KERAS = frozenset(
    """Model Functional Sequential Graph TimeDistributed Bidirectional RNN StackedRNNCells Normalization Discretization
    CategoryEncoding CategoryCrossing Hashing HashedCrossing StringLookup IntegerLookup TextVectorization Resizing
    CenterCrop RandomCrop RandomFlip RandomRotation RandomZoom RandomTranslation RandomContrast RandomHeight RandomWidth
    RandomBrightness Highway MaxoutDense SReLU ParametricSoftplus TimeDistributedDense DenseFeatures EinsumDense
    SpectralNormalization GroupQueryAttention LocallyConnected1D LocallyConnected2D""".split()
)


def custom_classes(template: Checkpoint) -> list[str]:
    """Names of the classes of layers and models that are not known as Keras's own, each once, in model order."""
    model = model_config(template)
    if model is None:
        return []
    found = [] if model.class_name in _OF_KERAS else [model.class_name]
    found += [layer.class_name for _, layer in model.walk() if _is_custom(layer)]
    return list(dict.fromkeys(found))


def custom_notices(template: Checkpoint) -> tuple[Notice, ...]:
    """A warning that lists them, where the model has any; what stands in the configuration stays as it is."""
    classes = custom_classes(template)
    if not classes:
        return ()
    message = f"loading the model needs classes that are not Keras's own: {', '.join(classes)}; its weights need none"
    return (Notice("custom-classes", message),)


def _is_custom(layer: LayerConfig) -> bool:
    if layer.class_name in _OF_KERAS or is_op(layer):
        return False
    return layer.model is not None or expected_variables(layer) is None
