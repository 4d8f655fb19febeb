"""The classes that loading a model needs and Keras does not bring along."""

from __future__ import annotations

from .checkpoint import Checkpoint, Notice
from .keras_config import LayerConfig
from .keras_variables import expected_variables, is_keras_class, is_stored_otherwise
from .transforms import model_config
from .wrappers._op_nodes import is_op

_OF_KERAS = frozenset(
    """Model Functional Sequential Graph TimeDistributed Bidirectional RNN StackedRNNCells Normalization
    Discretization CategoryEncoding CategoryCrossing Hashing HashedCrossing StringLookup IntegerLookup
    TextVectorization Resizing CenterCrop RandomCrop RandomFlip RandomRotation RandomZoom RandomTranslation
    RandomContrast RandomHeight RandomWidth RandomBrightness Highway MaxoutDense SReLU ParametricSoftplus
    TimeDistributedDense DenseFeatures EinsumDense SpectralNormalization GroupQueryAttention GroupedQueryAttention
    LocallyConnected1D LocallyConnected2D RMSNormalization ReversibleEmbedding AdaptiveAveragePooling1D
    AdaptiveAveragePooling2D AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D
    AugMix AutoContrast ContrastLimitedAdaptiveHistogramEqualization CutMix Equalization MaxNumBoundingBoxes
    MelSpectrogram MixUp Pipeline RandAugment RandomColorDegeneration RandomColorJitter RandomElasticTransform
    RandomErasing RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization
    RandomSaturation RandomSharpness RandomShear STFTSpectrogram Solarization""".split()
)  # Keras 3.15 and before


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
    if layer.model is None and is_keras_class(layer.class_name) and is_stored_otherwise(layer.config):
        return False  # quantized, or with LoRA
    return layer.model is not None or expected_variables(layer) is None


def stored_notices(template: Checkpoint) -> tuple[Notice, ...]:
    """Warnings about layers of legacy files whose kernels are not their weights: integers, or with LoRA beside them."""
    if template.format != "keras-h5":
        return ()  # Keras 3's own layout is told where its variables get their names
    notices: list[Notice] = []
    for path, layer in template.walk():
        name = "/".join(path)
        if any(spec.is_quantized for spec in layer.tensors):
            from .keras3_unnamed import quantized_notice

            notices.append(quantized_notice(name))
        if any(spec.path[-1].startswith("lora_") for spec in layer.tensors):
            message = f"{name}: LoRA's factors stand beside what they change (weight = stored + alpha/rank·a·b)"
            notices.append(Notice("lora", message, name))
    return tuple(notices)
