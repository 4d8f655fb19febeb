"""The exact changes of tensors, against the old layers written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from ckpttool.migration.transformations import apply, cudnn, flip_spatial, scale_all, scale_gates

RNG = np.random.default_rng(7)


def hard_sigmoid_of_keras_2(x: np.ndarray) -> np.ndarray:
    """keras/backend/tensorflow_backend.py (Keras 2.2.4)."""
    return np.clip(0.2 * x + 0.5, 0, 1)


def hard_sigmoid_of_keras_3(x: np.ndarray) -> np.ndarray:
    """keras/src/ops/nn.py (Keras 3.15): relu6(x + 3) / 6."""
    return np.clip(x / 6 + 0.5, 0, 1)


def test_scaling_makes_the_new_hard_sigmoid_the_old_one() -> None:
    kernel, inputs = RNG.normal(size=(6, 5)).astype("float32"), 3 * RNG.normal(size=(20, 6)).astype("float32")
    scaled = apply((scale_all(),), kernel)
    assert scaled.dtype == kernel.dtype
    old = hard_sigmoid_of_keras_2(inputs @ kernel)
    assert np.abs(hard_sigmoid_of_keras_3(inputs @ scaled) - old).max() < 1e-6
    assert np.abs(hard_sigmoid_of_keras_3(inputs @ kernel) - old).max() > 0.02


def test_only_the_columns_of_the_named_gates_are_scaled() -> None:
    kernel = np.arange(16, dtype="float32").reshape(2, 8)
    scaled = apply((scale_gates((0, 3), 4),), kernel)
    assert np.array_equal(scaled[:, 2:6], kernel[:, 2:6])
    assert np.array_equal(scaled[:, [0, 1, 6, 7]], (kernel[:, [0, 1, 6, 7]].astype("float64") * 1.2).astype("float32"))
    assert np.array_equal(kernel, np.arange(16, dtype="float32").reshape(2, 8))


def test_columns_that_make_no_gates_are_refused() -> None:
    with pytest.raises(ValueError, match="7 columns do not make 4 gates"):
        apply((scale_gates((0,), 4),), np.zeros((2, 7), "float32"))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def cudnn_gates(kernel: np.ndarray, gates: int, units: int, rows: int) -> list[np.ndarray]:
    """A CuDNN kernel's gates as matrices (rows, units): each is the buffer of a (units, rows) matrix, to transpose."""
    flat = [kernel[:, gate * units : (gate + 1) * units] for gate in range(gates)]
    return [np.ascontiguousarray(part).reshape(-1).reshape(units, rows).T for part in flat]


def test_cudnn_lstm_weights_compute_the_same_in_the_plain_layer() -> None:
    inputs, units, steps = 3, 4, 6
    kernel, recurrent = RNG.normal(size=(inputs, 4 * units)), RNG.normal(size=(units, 4 * units))
    bias, series = RNG.normal(size=8 * units), RNG.normal(size=(steps, inputs))
    w = cudnn_gates(kernel, 4, units, inputs)
    # the recurrent kernel is square: its gates are kept transposed, not as another matrix's buffer
    u = [recurrent[:, gate * units : (gate + 1) * units].T for gate in range(4)]
    b, c = bias[: 4 * units].reshape(4, units), bias[4 * units :].reshape(4, units)

    new = {name: apply((cudnn(name, 4),), array) for name, array in
           {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}.items()}  # fmt: skip
    h = h2 = np.zeros(units)
    state = state2 = np.zeros(units)
    for x in series:
        i, f, g, o = (x @ w[gate] + h @ u[gate] + b[gate] + c[gate] for gate in range(4))
        state = sigmoid(f) * state + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(state)
        i, f, g, o = np.split(x @ new["kernel"] + h2 @ new["recurrent_kernel"] + new["bias"], 4)
        state2 = sigmoid(f) * state2 + sigmoid(i) * np.tanh(g)
        h2 = sigmoid(o) * np.tanh(state2)
    assert np.allclose(h, h2, rtol=1e-12)


def test_cudnn_gru_weights_compute_the_same_in_the_plain_layer() -> None:
    inputs, units, steps = 3, 4, 6
    kernel, recurrent = RNG.normal(size=(inputs, 3 * units)), RNG.normal(size=(units, 3 * units))
    bias, series = RNG.normal(size=6 * units), RNG.normal(size=(steps, inputs))
    w = cudnn_gates(kernel, 3, units, inputs)
    u = [recurrent[:, gate * units : (gate + 1) * units].T for gate in range(3)]
    b, c = bias[: 3 * units].reshape(3, units), bias[3 * units :].reshape(3, units)

    new = {name: apply((cudnn(name, 3),), array) for name, array in
           {"kernel": kernel, "recurrent_kernel": recurrent, "bias": bias}.items()}  # fmt: skip
    assert new["bias"].shape == (2, 3 * units)
    h = h2 = np.zeros(units)
    for x in series:
        z = sigmoid(x @ w[0] + b[0] + h @ u[0] + c[0])
        r = sigmoid(x @ w[1] + b[1] + h @ u[1] + c[1])
        h = z * h + (1 - z) * np.tanh(x @ w[2] + b[2] + r * (h @ u[2] + c[2]))
        xz, xr, xh = np.split(x @ new["kernel"] + new["bias"][0], 3)
        hz, hr, hh = np.split(h2 @ new["recurrent_kernel"] + new["bias"][1], 3)
        z2, r2 = sigmoid(xz + hz), sigmoid(xr + hr)
        h2 = z2 * h2 + (1 - z2) * np.tanh(xh + r2 * hh)
    assert np.allclose(h, h2, rtol=1e-12)


def test_a_kernel_is_turned_in_its_spatial_axes_only() -> None:
    kernel = RNG.normal(size=(2, 3, 4, 5))
    assert np.array_equal(apply((flip_spatial(),), kernel), kernel[::-1, ::-1])
