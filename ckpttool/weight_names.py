"""What a stored weight name tells: the layer's scope and the variable. Names are hints, never the whole proof.

TensorFlow makes scopes unique by a suffix, so the weights of layer `conv1d_1` may be stored as `conv1d_1_1/kernel:0`
(a second model in one process, or `cpu_relocation`). Keras 1 joins with an underscore: `dense_1_W:0`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_SUFFIX = re.compile(r"_\d+$")
_INDEX = re.compile(r":\d+$")
_BYTES_LITERAL = re.compile(r"b'(.*)'_\d+")  # Keras 2.3.1 writes a name met twice as the text b'name'_2
_REPLICA = re.compile(r"(replica|tower|gpu)_\d+")  # scopes of data-parallel wrappers
_CELL = re.compile(r"(simple_rnn|lstm|gru|conv_lstm\dd|conv_lst_m\dd|rnn)_cell(_\d+)?")

# Keras 1 names of variables, and today's. Its `running_std` is a variance (keras/layers/normalization.py, 1.2.2).
KERAS1_VARIABLES = {
    "W": "kernel",
    "b": "bias",
    "U": "recurrent_kernel",
    "running_mean": "moving_mean",
    "running_std": "moving_variance",
    "alphas": "alpha",
}
_GATES = frozenset(f"{part}_{gate}" for part in "WUb" for gate in "icfozrh")  # arrays of one gate keep their names
_KERAS1 = re.compile(
    r"(.+)_(W|U|b|gamma|beta|running_mean|running_std|alphas|betas|[ta]_left|[ta]_right|depthwise_kernel"
    r"|pointwise_kernel|[WUb]_[icfozrh]|[Wb]_carry)(?:_\d+)?"
)
_DIRECTIONS = ("forward_", "backward_")  # parts of a Bidirectional
_EMBEDDING = re.compile(r"embedding(_\d+)?")  # the name that Keras 1 gives an Embedding by itself

VARIABLE_NAMES = _GATES | frozenset(
    """kernel bias recurrent_kernel gamma beta moving_mean moving_variance embeddings depthwise_kernel pointwise_kernel
    alpha scale concat_score_weight W_carry b_carry t_left a_left t_right a_right betas""".split()
)


_ALSO_KERNELS = ("depthwise_kernel", "embeddings")


def strip_suffix(name: str) -> str:
    """Without one `_<n>`: stripping every one would merge `conv1d_1` and `conv1d_2` of one model."""
    return _SUFFIX.sub("", name)


def clean(parts: Sequence[str]) -> tuple[str, ...]:
    """The parts of a stored weight name without `:0` and without the text form of a byte string."""
    text = "/".join(parts)
    if text.startswith("b'"):
        literal = _BYTES_LITERAL.fullmatch(text)
        if literal:
            text = literal.group(1)
    text = text[:-2] if text.endswith(":0") else _INDEX.sub("", text)
    split = tuple(text.split("/"))
    return split if len(split) > 1 else of_keras1(split)


def of_keras1(parts: Sequence[str]) -> tuple[str, ...]:
    """Names as Keras 1 joins them, in today's form: `("dense_1_W",)` is `("dense_1", "kernel")`; others as they are.

    Keras 1 puts a TensorFlow scope in front where there was one: `global/shared/dense_1_W`.
    """
    found = _KERAS1.fullmatch(parts[-1])
    if found is None or parts[-1] in VARIABLE_NAMES:
        return tuple(parts)
    layer, name = found.group(1), found.group(2)
    today = KERAS1_VARIABLES.get(name, name)
    if name == "W" and _EMBEDDING.fullmatch(layer):
        today = "embeddings"
    return (*parts[:-1], layer, today)


def is_keras1_array(name: str) -> bool:
    """Whether a variable's name is one that Keras 1 alone gives: the kernel of one gate, `W_i`."""
    return name in _GATES


def is_met_again(parts: Sequence[str]) -> bool:
    """Whether Keras 2.3.1 met the variable a second time: the layer is shared, so both hold the same values."""
    return _BYTES_LITERAL.fullmatch("/".join(parts)) is not None


def direction_agrees(parts: Sequence[str], expected: Sequence[str]) -> bool:
    """Whether a stored name's `forward_` or `backward_` scope, where it has one, is that of the expected variable."""
    wanted = next((prefix for part in expected[:-1] for prefix in _DIRECTIONS if part.startswith(prefix)), None)
    found = {prefix for part in parts[:-1] for prefix in _DIRECTIONS if part.startswith(prefix)}
    return wanted is None or not found or wanted in found


def variable(parts: Sequence[str]) -> str | None:
    """Today's name of the variable that a cleaned stored name ends in, or None where it is none of Keras's own."""
    last = parts[-1]
    if last in VARIABLE_NAMES:
        return last
    if strip_suffix(last) in VARIABLE_NAMES:
        return strip_suffix(last)
    split = of_keras1(parts)
    return split[-1] if len(split) > len(parts) else None


def agrees(stored: str | None, expected: str) -> bool:
    """Whether a stored variable name can be the expected variable; one that says nothing can be any.

    Keras 3 calls the kernel of a DepthwiseConv2D `kernel` (keras/src/layers/convolutional/base_depthwise_conv.py);
    Keras 1 calls the table of an Embedding `W`, as it does every kernel (keras/layers/embeddings.py).
    """
    return stored is None or stored == expected or (stored == "kernel" and expected in _ALSO_KERNELS)


def matches(parts: Sequence[str], layer: Sequence[str], *, loosely: bool) -> int | None:
    """Where the layer's name stands among the scopes of a cleaned stored name, or None.

    Parameters
    ----------
    parts : scopes and variable, `("model", "dense_1", "kernel")`
    layer : the layer's name split at "/"
    loosely : allow one `_<n>` more or less on the last part, as TensorFlow's scopes do

    Returns
    -------
    index of the first scope of the outermost occurrence; scopes further in are the layer's own
    """
    start = _scope(parts, layer, loosely)
    if start is None:
        start = _scope(of_keras1(parts), layer, loosely)
    if start is not None:
        return start
    if len(parts) == 1 and len(layer) == 1:
        last = parts[0]
        if last.startswith(f"{layer[0]}_") or (loosely and last.lower().startswith(f"{layer[0].lower()}_")):
            return 0
    return None


def _scope(parts: Sequence[str], layer: Sequence[str], loosely: bool) -> int | None:
    scopes, width = parts[:-1], len(layer)
    for start in range(len(scopes) - width + 1):
        window = tuple(scopes[start : start + width])
        if window == tuple(layer) or (loosely and _alike(window, layer)):
            return start
    return None


def _alike(window: Sequence[str], layer: Sequence[str]) -> bool:
    if tuple(window[:-1]) != tuple(layer[:-1]):
        return False
    stored, name = window[-1], layer[-1]  # a scope is unique ignoring case, but it keeps the case of its layer
    return stored == name or strip_suffix(stored) == name or strip_suffix(stored) == strip_suffix(name)


def without_cells(parts: Sequence[str]) -> tuple[str, ...]:
    """Without the scope of an RNN's cell: `lstm/lstm_cell/kernel` (TF 2) is `lstm/kernel` (Keras 2) again."""
    return tuple(part for part in parts[:-1] if not _CELL.fullmatch(part)) + (parts[-1],)


def inside(parts: Sequence[str], layer: Sequence[str]) -> tuple[str, ...]:
    """What follows the layer's own scope in a cleaned stored name: `("kernel",)`, `("forward_lstm", "kernel")`."""
    parts = without_cells(parts)
    if _scope(parts, layer, True) is None and _scope(of_keras1(parts), layer, True) is not None:
        parts = of_keras1(parts)
    for loosely in (False, True):
        start = matches(parts, layer, loosely=loosely)
        if start is None:
            continue
        if len(parts) == 1:
            rest = parts[0][len(layer[0]) + 1 :]
            return (rest,) if rest else tuple(parts)
        return tuple(parts[start + len(layer) :])
    return tuple(parts)


def numbered(name: str) -> tuple[str, int]:
    """A name without its number, in small letters, and the number: `("dense", 3)`; 0 where it has none."""
    match = re.fullmatch(r"(.*?)_(\d{1,18})", name.lower())
    return (match.group(1), int(match.group(2))) if match else (name.lower(), 0)


def scopes_in_front(named: Sequence[Sequence[str]], group: Sequence[str]) -> int:
    """How many scopes stand in front of every name of a group: two in `replica_0/tower/dense/kernel` of group `tower`.

    TensorFlow puts them there where a model is built while it is called. They end with the group's own name, where
    that follows; a layer and a variable must remain.
    """
    if not named or not all(_REPLICA.fullmatch(parts[0]) for parts in named if len(parts) > 2):
        return 0
    shared = 0
    while all(len(parts) > shared + 2 and parts[shared] == named[0][shared] for parts in named):
        shared += 1
    common = list(named[0][:shared])
    width = len(group)
    for start in range(shared - width, -1, -1):
        if _alike(common[start : start + width], group):
            return start + width
    return 1 if shared else 0


def inversions(suffixed: Sequence[str]) -> int:
    """How often a scope's number falls below the one before it, among scopes that differ in their number only.

    TensorFlow numbers equal scopes as they are made: along the order in which a model was built they rise.
    """
    last: dict[str, int] = {}
    count = 0
    for scope in suffixed:
        base, number = numbered(scope)
        if number < last.get(base, number):
            count += 1
        last[base] = number
    return count
