"""What the old model computes, by tf_keras, and what a new file computes, by Keras in a fresh process.

tensorflow, tf_keras and keras are imported here inside functions; a stored file is never given to a loader.
"""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .checkpoint import Checkpoint, Layer
from .errors import CheckpointError, MissingDependencyError
from .keras_config import ModelConfig
from .migration.generation import holds_masked_steps
from .reading import Reader
from .reference import NoReferenceError, reference_entry
from .sample_inputs import LENGTHS, SERIES_LENGTHS, Case, cases, input_kinds
from .transforms import model_config

TIMEOUT_SECONDS = 3600  # a fresh process: a model of gigabytes on a slow disk; longer means that it hangs
_FLIPPED = ("Conv1D", "Conv2D", "Conv3D", "Conv2DTranspose", "Conv3DTranspose", "ConvLSTM2D")


class FreshProcessError(CheckpointError):
    """The fresh process could not load the file; the message is its last line."""

    code = 1


Outputs = list[list[np.ndarray]]  # one list a case, one array an output, float64


@dataclass(frozen=True, slots=True)
class OldModel:
    """The old model as tf_keras (or Keras 3, for its own files) builds it, with the stored weights."""

    library: str  # "tf_keras 2.21.0"
    model: Any
    config: ModelConfig
    dtypes: frozenset[str]

    def shapes(self) -> list[tuple[tuple[int | None, ...], str]]:
        """Shape with the batch axis, and dtype, of each input."""
        return [(tuple(each.shape), _dtype_name(each.dtype)) for each in self.model.inputs]


def _dtype_name(dtype: Any) -> str:
    return str(getattr(dtype, "name", dtype))


def old_model(template: Checkpoint, reader: Reader, *, generation: int) -> OldModel:
    """Build the template from its cleaned configuration and give it the stored weights.

    Raises
    ------
    NoReferenceError : a class that is not on the list, or the library refuses the configuration
    MissingDependencyError : tf_keras is not installed
    """
    config = model_config(template)
    if config is None:
        raise NoReferenceError("there is no configuration")
    library, model = _keras_3(config) if generation == 3 else _tf_keras(config)
    if generation == 2 and holds_masked_steps(template.written_by):
        _hold_masked_steps(model)
    try:
        for layer in template.layers:
            _give(model, layer, reader, template.written_by.backend, generation)
    except (ValueError, TypeError, AttributeError, IndexError) as error:
        raise NoReferenceError(f"{library} does not take its weights: {_line(error)}") from error
    return OldModel(library, model, config, frozenset(_dtypes(model)))


def _tf_keras(config: ModelConfig) -> tuple[str, Any]:
    entry = reference_entry(config.raw)
    from .frameworks import quiet_tensorflow

    try:
        with quiet_tensorflow():
            import tf_keras
    except ImportError as error:
        raise MissingDependencyError(
            f"tf_keras is needed to run the old model ({error}); pip install 'ckpttool[tensorflow]'"
        ) from error
    kind = tf_keras.Sequential if not config.functional else tf_keras.Model
    try:
        model = kind.from_config(entry["config"])
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, NotImplementedError) as error:
        raise NoReferenceError(f"tf_keras refuses its configuration: {_line(error)}") from error
    if not model.built or not model.inputs:
        raise NoReferenceError("the shape of its input is not stored")
    return f"tf_keras {tf_keras.__version__}", model


def _hold_masked_steps(model: Any) -> None:
    """tf_keras gives 0 at masked steps of a Bidirectional; the old library gave the state before."""
    for layer in model.submodules:
        for part in (getattr(layer, "forward_layer", None), getattr(layer, "backward_layer", None)):
            if part is not None and getattr(part, "zero_output_for_mask", None) is not None:
                part.zero_output_for_mask = False


def _keras_3(config: ModelConfig) -> tuple[str, Any]:
    """A file that Keras 3 wrote is built by Keras 3, whose safe mode refuses code."""
    from .migration.build import import_keras
    from .migration.rules import RULES

    for path, layer in config.walk():
        if layer.model is None and layer.class_name not in RULES:
            raise NoReferenceError(f"{'/'.join(path)}: {layer.class_name} is not built here for comparison")
    keras = import_keras()
    try:
        kind = keras.Model if config.functional else keras.Sequential
        model = kind.from_config(json.loads(json.dumps(config.raw["config"])))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NoReferenceError(f"Keras refuses its configuration: {_line(error)}") from error
    if not model.built:
        raise NoReferenceError("the shape of its input is not stored")
    return f"keras {keras.__version__}", model


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _give(model: Any, layer: Layer, reader: Reader, backend: str | None, generation: int) -> None:
    """Set the weights of one stored layer and of all inside it."""
    if not any(True for _ in layer.all_tensors()):
        return
    made = model.get_layer(layer.name)
    if layer.layers:
        if layer.class_name == "TimeDistributed":
            made, layer = made.layer, layer.layers[0]
            while not hasattr(made, "get_layer"):
                made, layer = made.layer, layer.layers[0]
        for inner in layer.layers:
            _give(made, inner, reader, backend, generation)
        return
    specs = layer.tensors
    if generation < 3:  # cells that are frozen come last there
        specs = tuple(sorted(specs, key=lambda spec: not spec.trainable))
    arrays = [reader.read(spec) for spec in specs]
    if generation < 3:
        arrays = _converted(made, arrays, backend)
    made.set_weights(arrays)
    if hasattr(made, "finalize_state"):
        made.finalize_state()  # Normalization keeps what it computes from its weights


def _converted(made: Any, arrays: list[np.ndarray], backend: str | None) -> list[np.ndarray]:
    """By tf_keras's own conversion, which knows the kernels of CuDNN layers; Theano's kernels are turned around."""
    from tf_keras.src.saving.legacy.hdf5_format import preprocess_weights_for_loading

    if backend == "theano" and type(made).__name__ in _FLIPPED:
        count = 2 if type(made).__name__ == "ConvLSTM2D" else 1
        turned = [np.flip(array, axis=tuple(range(array.ndim - 2))) for array in arrays[:count]]
        arrays = [*turned, *arrays[count:]]
    converted: list[np.ndarray] = preprocess_weights_for_loading(made, arrays, "2", "tensorflow")
    return converted


def _dtypes(model: Any) -> Iterator[str]:
    for layer in model._flatten_layers():  # not `submodules`: it trips over the mask caches of cells (tf_keras 2.21)
        dtype = getattr(layer, "compute_dtype", None)
        if isinstance(dtype, str):
            yield dtype


def old_outputs(old: OldModel, *, seed: int) -> tuple[list[Case], Outputs]:
    """Random inputs that the old model accepts, and its outputs for them.

    Raises
    ------
    NoReferenceError : it accepts none of the sizes tried
    """
    import tensorflow as tf

    kinds = input_kinds(old.config, old.shapes())
    problem: Exception | None = None
    open_axes = any(None in kind.shape[1:] for kind in kinds)
    series = all(len(kind.shape) <= 3 for kind in kinds)
    lengths = (*LENGTHS, *SERIES_LENGTHS) if series else LENGTHS
    for length in lengths if open_axes else LENGTHS[:1]:
        made = cases(kinds, seed=seed, length=length)
        try:
            outputs = run_cases(old, made)
            if all(output.size for case in outputs for output in case):
                return made, outputs
            problem = ValueError("its outputs are empty for inputs of the sizes tried")
        except (ValueError, TypeError, tf.errors.OpError) as error:
            problem = error
    raise NoReferenceError(f"{old.library} does not run it: {_line(problem) if problem else ''}")


def outputs_of(other: OldModel, made: Sequence[Case]) -> Outputs:
    """The outputs of another model for the inputs that the first one took.

    Raises
    ------
    NoReferenceError : it does not take them: it is another model
    """
    import tensorflow as tf

    try:
        return run_cases(other, made)
    except (ValueError, TypeError, tf.errors.OpError) as error:
        reason = _line(error).partition(" Inputs received:")[0]  # behind it all of their values
        raise NoReferenceError(f"the second model does not take the first one's inputs: {reason}") from error


def run_cases(old: OldModel, made: Sequence[Case]) -> Outputs:
    """A model's outputs for each case."""
    with _without_advice():
        return [_run(old.model, case.arrays) for case in made]


@contextmanager
def _without_advice() -> Iterator[None]:
    """TensorFlow's logger advises how to write faster models; ours are run six times and thrown away."""
    logger = logging.getLogger("tensorflow")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _run(model: Any, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    import tensorflow as tf

    if hasattr(model, "reset_states"):
        model.reset_states()
    given: Any = list(arrays) if len(arrays) > 1 else arrays[0]
    try:
        outputs = model(given, training=False)
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError):
        # channels_first: the CPU's own kernels lack it, compiled ones have it
        outputs = tf.function(lambda inputs: model(inputs, training=False), jit_compile=True)(given)
    listed = outputs if isinstance(outputs, list | tuple) else [outputs]
    return [np.asarray(each).astype("float64") for each in listed]


@dataclass(frozen=True, slots=True)
class FreshResult:
    """What a fresh process found in a `.keras` file."""

    library: str
    layers: dict[tuple[str, ...], list[dict[str, Any]]]
    outputs: Outputs


class FreshProcess:
    """Stock Keras 3 that loads a `.keras` file in safe mode, in a process of its own; a context manager.

    It starts at once and loads while the caller does other work.
    """

    def __init__(self, path: Path, *, custom_objects: str | None = None, modules: Sequence[str] = ()) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ckpttool-")
        folder = Path(self._folder.name)
        job = {
            "model": os.path.abspath(path),
            "outputs": str(folder / "outputs.npz"),
            "result": str(folder / "result.json"),
            "custom": None if custom_objects is None else os.path.abspath(custom_objects),
            "modules": list(modules),
            "path": [os.getcwd()] if modules else [],
        }
        source = Path(__file__).with_name("migration").joinpath("fresh.py").read_text("utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", source, json.dumps(job)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, errors="replace",
        )  # fmt: skip

    def __enter__(self) -> FreshProcess:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    def run(self, made: Sequence[Case]) -> FreshResult:
        """Wait for the file to be loaded and described, and let it predict each case.

        Raises
        ------
        FreshProcessError : Keras does not load the file in safe mode, or does not run it
        """
        folder = Path(self._folder.name)
        inputs = folder / "inputs.npz"
        if made:
            _store(inputs, made)
        _, stderr = self._process.communicate(f"{inputs if made else ''}\n", timeout=TIMEOUT_SECONDS)
        if self._process.returncode:
            lines = [line for line in stderr.splitlines() if line.strip()]
            raise FreshProcessError(
                "Keras does not load or run it in a fresh process "
                f"(exit {self._process.returncode}): {_last_error(lines)}"
            )
        found = json.loads((folder / "result.json").read_text("utf-8"))
        layers = {tuple(each["path"]): each["variables"] for each in found["layers"]}
        return FreshResult(f"keras {found['keras']} on {found['backend']}", layers, _outputs(folder, len(made)))


_LOG_LINE = re.compile(r"[IWEF]\d{4} |WARNING: |20\d\d-\d\d-\d\d ")  # how TensorFlow's C++ library begins its lines


def _last_error(lines: Sequence[str]) -> str:
    """What went wrong, of a traceback: Keras wraps the reason in a longer message."""
    told = [line for line in lines if not _LOG_LINE.match(line)]
    for line in reversed(told):
        _, found, reason = line.partition("Exception encountered: ")
        if found:
            return reason[:300]
    named = [
        line for line in told if line.split(":", 1)[0].endswith(("Error", "Exception")) and not line.startswith(" ")
    ]
    return (named or told or ["it ended without a word"])[-1][:300]


def _store(path: Path, made: Sequence[Case]) -> None:
    arrays: dict[str, Any] = {}
    names = []
    for number, case in enumerate(made):
        names.append([f"{number}/{place}" for place in range(len(case.arrays))])
        arrays.update(zip(names[-1], case.arrays, strict=True))
    np.savez(path, cases=json.dumps(names), **arrays)


def _outputs(folder: Path, count: int) -> Outputs:
    if not count:
        return []
    with np.load(folder / "outputs.npz") as stored:
        listed: Outputs = []
        for number in range(count):
            places = sorted(int(name.split("/")[1]) for name in stored.files if name.startswith(f"{number}/"))
            listed.append([stored[f"{number}/{place}"] for place in places])
        return listed
