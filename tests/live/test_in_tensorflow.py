"""Live models of Keras 3 and tf_keras, in one process: unwrapping, transfer, the layer, and the written models."""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckpttool
from ckpttool.layers import EmbeddingDotProduct
from tests.live_models import (
    WIDTH,
    base_model,
    embedding_of,
    fill,
    multi_gpu_model,
    scoring_model,
    sliced_by_hand,
)

pytestmark = [pytest.mark.tensorflow, pytest.mark.filterwarnings("ignore")]
X = np.random.default_rng(1).standard_normal((6, WIDTH), np.float32)


@pytest.fixture(params=["keras", "tf_keras"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    keras = importlib.import_module(request.param)
    policy = keras.mixed_precision.global_policy() if request.param == "tf_keras" else keras.config.dtype_policy()
    yield keras
    keras.mixed_precision.set_global_policy(policy)


def _arrays(outputs: Any) -> list[np.ndarray]:
    return [np.asarray(each) for each in (outputs if isinstance(outputs, list | tuple) else [outputs])]


def _equal(a: Any, b: Any, rtol: float = 1e-5) -> None:
    for one, other in zip(_arrays(a), _arrays(b), strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-6)


# unwrap_model


def test_the_base_model_comes_out_of_multi_gpu_model_and_has_layers_at_any_depth(library: Any) -> None:
    base = base_model(library)
    found = ckpttool.unwrap_model(multi_gpu_model(library, base, 3))
    assert found is base
    layer = found.get_layer("image_embedding")
    assert layer is found.get_layer("tower/image_embedding") is base.get_layer("tower").get_layer("image_embedding")
    assert found.get_layer(index=1) is base.layers[1]
    with pytest.raises(ValueError, match=r"no layers fit 'embedding'; there are: x, hidden, .*tower/image_embedding"):
        found.get_layer("embedding")
    again = pickle.loads(pickle.dumps(found))
    _equal(again(X), base(X))


def test_slices_without_numbers_are_tried_out(library: Any) -> None:
    base = base_model(library)
    assert ckpttool.unwrap_model(sliced_by_hand(library, base, 2)) is base
    turned = sliced_by_hand(library, base, 2, turned=True)
    assert ckpttool.unwrap_model(turned) is turned


def test_what_only_calls_another_model_is_unwrapped_and_what_does_more_is_not(library: Any) -> None:
    base, layers = base_model(library), library.layers
    x, y = layers.Input((WIDTH,)), layers.Input((WIDTH,))
    assert ckpttool.unwrap_model(library.models.Model(x, base(x))) is base
    tower = base.get_layer("tower")
    assert ckpttool.unwrap_model(library.models.Sequential([layers.Input((5,)), tower])) is tower
    for other in (
        library.models.Model(x, layers.Activation("relu")(base(x)[0])),
        library.models.Model(x, base(x)[::-1]),
        library.models.Model([x, y], layers.Dot(1)([base(x)[0], base(y)[0]])),
        library.models.Model(x, layers.Dense(1)(base(x)[0])),
    ):
        assert ckpttool.unwrap_model(other) is other
        assert other.get_layer("image_embedding") is embedding_of(base)


def test_a_subclassed_wrapper_is_unwrapped_when_told(library: Any) -> None:
    class Parallel(library.models.Model):
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base

        def call(self, x: Any) -> Any:
            return self.base(x)

    wrapper = Parallel(base_model(library))
    wrapper(X)
    assert ckpttool.unwrap_model(wrapper) is wrapper
    assert ckpttool.unwrap_model(wrapper, assume_wrapper="base") is wrapper.base
    with pytest.raises(LookupError, match=r"models inside: base, base/tower"):
        ckpttool.unwrap_model(wrapper, assume_wrapper="template")
    with pytest.raises(TypeError, match="Dense is no Keras model"):
        ckpttool.unwrap_model(library.layers.Dense(1))


# transfer_weights


def test_weights_go_from_a_wrapped_model_into_another_of_either_library(library: Any) -> None:
    other = importlib.import_module("tf_keras" if library.__name__ == "keras" else "keras")
    for named in (True, False):
        trained, base = fill(base_model(library, named=named), 5), base_model(other, named=named)
        report = ckpttool.transfer_weights(multi_gpu_model(library, trained, 2), base)
        _equal(trained(X), base(X))
        assert report.sentence().startswith("10 of 10 tensors, 81 parameters, matched by ")
        assert ("tower/image_embedding/kernel", (5, 3)) in [(each.target, each.shape) for each in report.tensors]


def test_all_weights_go_or_none(library: Any) -> None:
    trained, head = base_model(library), library.layers.Dense(7, name="head")
    x = library.layers.Input((WIDTH,))
    target = fill(library.models.Model(x, head(library.models.clone_model(trained)(x)[0])), 9)
    before = [np.array(value) for value in target.get_weights()]
    with pytest.raises(ckpttool.CheckpointError, match=r"4 of 5 layers .*only in the target: head \(3×7, 7\)"):
        ckpttool.transfer_weights(trained, target)
    assert all(map(np.array_equal, before, target.get_weights()))
    report = ckpttool.transfer_weights(trained, target, partial=True)
    assert report.left_in_target == ("head",)
    assert report.sentence().startswith("10 of 12 tensors")
    np.testing.assert_array_equal(target.layers[1](X)[1], trained(X)[1])


def test_a_value_that_cannot_be_read_changes_nothing(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, target = fill(base_model(library), 5), base_model(library)
    before, read = [np.array(value) for value in target.get_weights()], ckpttool.live._value

    def fails(variable: Any) -> np.ndarray:
        if variable is trained.weights[-1]:
            raise ckpttool.CheckpointError("damaged")
        return read(variable)

    monkeypatch.setattr(ckpttool.live, "_value", fails)
    with pytest.raises(ckpttool.CheckpointError, match="damaged"):
        ckpttool.transfer_weights(trained, target)
    assert all(map(np.array_equal, before, target.get_weights()))


def test_weights_go_from_a_file_of_a_wrapped_model(library: Any, fixture_files: Path, manifest: Any) -> None:
    name = "keras-2.3.1-two-towers.h5"
    layers, width = library.layers, {"user": 6, "item": 6}
    features = layers.Input((6,))
    hidden = layers.BatchNormalization(name="tower_bn")(
        layers.Dense(8, activation="relu", name="tower_hidden")(features)
    )
    tower = library.models.Model(features, layers.Dense(5, name="image_embedding")(hidden), name="tower")
    inputs = [layers.Input((size,), name=name) for name, size in width.items()]
    both = layers.Concatenate()([tower(each) for each in inputs])
    target = library.models.Model(inputs, layers.Dense(3, name="kind")(both))
    report = ckpttool.transfer_weights(fixture_files / name, target)
    assert report.sentence() == "10 of 10 tensors, 166 parameters, matched by name"
    stored = {spec["path"]: spec["sha256"] for spec in manifest[name]["tensors"]}
    import hashlib

    for layer, tensor in ((tower.get_layer("image_embedding"), "tower/image_embedding"), (target.layers[-1], "kind")):
        assert hashlib.sha256(layer.get_weights()[0].tobytes()).hexdigest() == stored[f"{tensor}/kernel"]


def test_a_target_without_weights_is_refused(library: Any) -> None:
    with pytest.raises(ckpttool.CheckpointError, match="has no weights yet"):
        ckpttool.transfer_weights(base_model(library), library.models.Sequential([library.layers.Dense(2)]))


# EmbeddingDotProduct


@pytest.mark.parametrize("axis", ["rows", "columns"])
@pytest.mark.parametrize("normalize", [False, True])
def test_the_layer_scores_as_numpy_does_and_follows_the_kernel(library: Any, axis: str, normalize: bool) -> None:
    for source in (library.layers.Dense(3), library.layers.Embedding(WIDTH, 3)):
        source(X if "Dense" in type(source).__name__ else np.array([[1, 2]]))
        layer = EmbeddingDotProduct(source, axis, normalize=normalize)
        vectors = np.random.default_rng(2).standard_normal((4, 3 if axis == "rows" else WIDTH), np.float32)
        vectors[1] = 0
        for seed in (0, 1):
            fill(source, seed)
            score = ckpttool.dot_product(source.get_weights()[0])
            _equal(layer(vectors), score(vectors, axis, normalize=normalize))
            _equal(layer(vectors[:, None]), score(vectors, axis, normalize=normalize)[:, None])
        assert layer(vectors[:0]).shape == (0, WIDTH if axis == "rows" else 3)
        assert len(layer.weights) == len(source.weights)
        with pytest.raises(ValueError, match=r"takes \(…, 3\) with axis=\"rows\" or \(…, 6\) with axis=\"columns\""):
            EmbeddingDotProduct(source, axis)(np.zeros((2, 4), np.float32))


def test_the_name_picks_the_class_of_the_library(library: Any) -> None:
    source = library.layers.Embedding(4, 2)
    layer = EmbeddingDotProduct(source, name="scores", dtype="float32")
    assert isinstance(layer, EmbeddingDotProduct)
    assert isinstance(layer, library.layers.Layer)
    assert layer.name == "scores"
    with pytest.raises(TypeError, match="no layer of keras or tf_keras"):
        EmbeddingDotProduct(object())
    with pytest.raises(ValueError, match="axis is 'both'"):
        EmbeddingDotProduct(source, "both")
    with pytest.raises(ValueError, match="no kernel yet; call it"):
        EmbeddingDotProduct(library.layers.Dense(3, name="d"))(X)
    with pytest.raises(ValueError, match="no kernel and no embedding table"):
        EmbeddingDotProduct(base_model(library).layers[2])(X)


def test_gradients_flow_unless_stopped_also_from_a_zero_vector(library: Any) -> None:
    import tensorflow as tf

    source = library.layers.Embedding(4, 3)
    for normalize in (False, True):
        for trainable in (True, False):
            layer = EmbeddingDotProduct(source, normalize=normalize, trainable_kernel=trainable)
            vectors = tf.constant([[0.0, 0, 0], [1, 2, 3]])
            with tf.GradientTape() as tape:
                tape.watch(vectors)
                total = tf.reduce_sum(layer(vectors) ** 2)
            variable = source.weights[0]
            by_vectors, by_kernel = tape.gradient(
                total, [vectors, variable.value if library.__name__ == "keras" else variable]
            )
            assert np.isfinite(by_vectors).all()
            assert (by_kernel is None) is not trainable
            if trainable:
                assert np.isfinite(tf.convert_to_tensor(by_kernel)).all()


def test_under_mixed_precision_scores_are_float16_and_norms_are_taken_in_float32(library: Any) -> None:
    library.mixed_precision.set_global_policy("mixed_float16")
    source = library.layers.Embedding(4, 2)
    source(np.array([0]))
    source.weights[0].assign(np.array([[300, 400], [0, 0], [1, 0], [0, 2]], np.float32))
    vectors = np.array([[600, 800], [0, 0]], np.float32)
    cosines = EmbeddingDotProduct(source, normalize=True)(vectors)
    assert "float16" in str(cosines.dtype)
    np.testing.assert_allclose(cosines, [[1, 0, 0.6, 0.8], [0, 0, 0, 0]], atol=1e-3)
    assert "float32" in str(source.weights[0].dtype)


def test_the_layer_works_inside_of_a_subclassed_model(library: Any, tmp_path: Path) -> None:
    class Scoring(library.models.Model):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            self.embedding = library.layers.Embedding(5, 3)
            self.scores = EmbeddingDotProduct(self.embedding)

        def call(self, numbers: Any) -> Any:
            return self.scores(self.embedding(numbers))

    model = Scoring()
    numbers = np.array([[1, 4]])
    expected = np.asarray(model(numbers))
    assert expected.shape == (1, 2, 5)
    assert len(model.trainable_variables) == 1
    model.compile(optimizer=library.optimizers.SGD(1.0), loss="mse")
    model.fit(numbers, np.ones((1, 2, 5)), verbose=0)
    kernel = model.embedding.get_weights()[0]
    _equal(model(numbers), kernel[[[1, 4]]] @ kernel.T)
    assert not np.allclose(model(numbers), expected)
    model.save_weights(tmp_path / "w.weights.h5")
    again = Scoring()
    again(numbers)
    again.load_weights(tmp_path / "w.weights.h5")
    _equal(again(numbers), model(numbers))


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("apart", [False, True])
def test_a_saved_model_comes_back_with_one_shared_kernel(
    library: Any, nested: bool, apart: bool, tmp_path: Path
) -> None:
    model = scoring_model(library, nested=nested, apart=apart, normalize=True)
    given = [X, X[:, :3]] if apart else X
    assert len(model.weights) == 2
    path = tmp_path / "model.keras"
    if library.__name__ == "tf_keras" and apart:
        with pytest.raises(ckpttool.CheckpointError, match=r"save the model as a SavedModel"):
            model.save(path)
        path = tmp_path / "model"
    model.save(path)
    again = library.models.load_model(path)
    assert len(again.weights) == 2
    assert again.get_layer("scores").layer is embedding_of(again)
    assert again.get_layer("scores").normalize
    _equal(again(given), model(given))
    if path.suffix:
        assert _stored_arrays(path) == 2


def _stored_arrays(path: Path) -> int:
    """How many arrays with values the weights inside of a `.keras` file hold."""
    import io
    import zipfile

    import h5py

    found: list[str] = []
    with zipfile.ZipFile(path) as archive, h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file:
        file.visititems(lambda name, item: found.append(name) if isinstance(item, h5py.Dataset) else None)
    return len(found)


def test_legacy_hdf5_is_refused_in_one_line_that_names_a_format(library: Any, tmp_path: Path) -> None:
    model = scoring_model(library)
    better = r"save the model as NAME\.keras" if library.__name__ == "keras" else "save the model as a SavedModel"
    with pytest.raises(ckpttool.CheckpointError, match=rf"^layer 'scores' shares .*cannot hold; {better}[^\n]*$"):
        model.save(tmp_path / "model.h5")


def test_a_clone_shares_its_own_kernel_and_says_where_it_cannot(library: Any) -> None:
    for nested in (False, True):
        model = scoring_model(library, nested=nested)
        for again in (library.models.clone_model(model), library.models.model_from_json(model.to_json())):
            assert again.get_layer("scores").layer is embedding_of(again) is not embedding_of(model)
            again.set_weights(model.get_weights())
            _equal(again(X), model(X))
    with pytest.warns(UserWarning, match="has a copy of 'image_embedding' of its own"):
        library.models.clone_model(scoring_model(library, apart=True))


# The written dot product


def test_the_written_models_agree_with_numpy(tmp_path: Path, fixture_files: Path) -> None:
    import keras
    import tensorflow as tf

    source = fixture_files / "keras-2.3.1-two-towers.h5"
    score = ckpttool.dot_product(ckpttool.extract(source, "image_embedding").kernel)
    for name in ("scores.keras", "scores"):
        ckpttool.extract(source, "image_embedding", dot_product=tmp_path / name)
    model = keras.models.load_model(tmp_path / "scores.keras")
    serving = tf.saved_model.load(tmp_path / "scores" / "1").signatures
    by_rows = np.random.default_rng(0).standard_normal((4, 8), np.float32)
    for n in (0, 1, 4):
        vectors = np.random.default_rng(n).standard_normal((n, 5), np.float32)
        _equal(model(vectors), score(vectors))
        _equal(serving["serving_default"](vectors=vectors)["scores"], score(vectors))
        _equal(serving["cosines"](vectors=vectors)["scores"], score(vectors, normalize=True))
        _equal(serving["columns"](vectors=by_rows[:n])["scores"], score(by_rows[:n], axis="columns"))
        best = serving["top"](vectors=vectors, k=np.int32(3))
        _equal(best["scores"], score.top(vectors, 3)[1])
        np.testing.assert_array_equal(best["indices"], score.top(vectors, 3)[0])
    with pytest.raises(FileExistsError):
        ckpttool.extract(source, "image_embedding", dot_product=tmp_path / "scores")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["scores", "scores.keras"]
