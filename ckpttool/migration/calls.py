"""How a layer was called: the stored node as arguments, its tensors as references to the new model.

Keras 1 and 2 store a node as a list of `[layer, call, tensor, {arguments}]`, TF 2.4 and later store calls of operators
as one such entry without the outer list, Keras 3 stores `{"args": …, "kwargs": …}` with marked tensors. The parsed
`Node.inputs` holds the same references in the same order, counted from 0.
Source: keras/engine/network.py (Keras 2.2.4), keras/engine/node.py (Keras 2.10), keras/src/ops/node.py (Keras 3.15).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..keras_config import LayerConfig, Node, TensorRef, is_reference
from .plan import Call, JoinedMask
from .rules._rule import NotMigratableError

CONSTANT = "_CONSTANT_VALUE"  # marks a constant first argument of an operator (keras/engine/node.py, Keras 2.4–2.15)

_RECURRENT = frozenset(
    """SimpleRNN LSTM GRU RNN ConvLSTM1D ConvLSTM2D ConvLSTM3D CuDNNLSTM CuDNNGRU Bidirectional""".split()
)
_KEYWORDS: dict[str, frozenset[str]] = {
    **{name: frozenset({"initial_state"}) for name in _RECURRENT},
    "Attention": frozenset({"return_attention_scores", "use_causal_mask"}),
    "AdditiveAttention": frozenset({"return_attention_scores", "use_causal_mask"}),
    "MultiHeadAttention": frozenset(
        {"query", "value", "key", "attention_mask", "return_attention_scores", "use_causal_mask", "query_mask",
         "value_mask", "key_mask"}
    ),
}  # fmt: skip


class _References:
    """The node's references in order, under the new layers' names."""

    def __init__(self, node: Node, names: Mapping[str, str]) -> None:
        self._left: Iterator[TensorRef] = iter(node.inputs)
        self._names = names

    def next(self) -> TensorRef:
        ref = next(self._left)
        return ref._replace(layer=self._names[ref.layer])

    def knows(self, name: str) -> bool:
        return name in self._names


def stored_call(node: Node, names: Mapping[str, str]) -> Call:
    """A node as positional and keyword arguments, whatever the layer.

    Parameters
    ----------
    node : one call, as parsed
    names : name of each layer of the model -> its name in the new model
    """
    references = _References(node, names)
    raw = node.raw
    if isinstance(raw, Mapping) and "args" in raw:
        positional = tuple(_marked(each, references) for each in raw.get("args") or ())
        return Call(positional, {key: _marked(each, references) for key, each in (raw.get("kwargs") or {}).items()})
    first = _positional(raw, references)
    keywords = {key: _listed(each, references) for key, each in _stored_keywords(raw).items()}
    return Call((first,), keywords)


def _positional(raw: Any, references: _References) -> Any:
    if is_reference(raw):
        return references.next()
    if isinstance(raw, list) and len(raw) >= 3 and raw[0] == CONSTANT:
        return raw[2]
    if isinstance(raw, list):
        found = [_positional(each, references) for each in raw]
        return found[0] if len(found) == 1 and isinstance(found[0], TensorRef) else found
    raise NotMigratableError("one of its calls is stored in an unknown form", replaceable=False)


def _stored_keywords(raw: Any) -> Mapping[str, Any]:
    """The arguments that every entry of a node repeats."""
    stack = [raw]
    while stack:
        item = stack.pop()
        if isinstance(item, list) and len(item) == 4 and isinstance(item[0], str) and isinstance(item[3], Mapping):
            return item[3]
        if isinstance(item, list):
            stack.extend(reversed(item))
    return {}


def _listed(value: Any, references: _References) -> Any:
    """A keyword argument of Keras 2: references look like lists of a layer's name and two numbers."""
    if is_reference(value) and references.knows(value[0]):
        return references.next()
    if isinstance(value, list):
        return [_listed(each, references) for each in value]
    if isinstance(value, Mapping):
        return {key: _listed(each, references) for key, each in value.items()}
    return value


def _marked(value: Any, references: _References) -> Any:
    """An argument of Keras 3: tensors are marked."""
    if isinstance(value, Mapping):
        if value.get("class_name") == "__keras_tensor__":
            return references.next()
        return {key: _marked(each, references) for key, each in value.items()}
    if isinstance(value, list):
        return [_marked(each, references) for each in value]
    return value


def layer_call(layer: LayerConfig, node: Node, names: Mapping[str, str], extra: Mapping[str, Any]) -> Call:
    """One call of a layer of Keras's own, as Keras 3 takes it.

    Raises
    ------
    NotMigratableError : a call argument that Keras 3 does not take
    """
    call = stored_call(node, names)
    keywords = dict(_kept_keywords(layer.class_name, call.keywords))
    keywords.update(extra)
    positional = call.positional
    if layer.class_name in _RECURRENT and len(positional) == 1 and isinstance(positional[0], list):
        sequence, *states = positional[0]
        positional = (sequence,)
        if states:
            keywords["initial_state"] = states
    return Call(positional, keywords)


def _kept_keywords(class_name: str, keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    known = _KEYWORDS.get(class_name, frozenset())
    for key, value in keywords.items():
        if value is None or (key == "constants" and value == []):
            continue
        if key == "training" and isinstance(value, bool | int):
            yield key, bool(value)
        elif key in known or (key == "mask" and _holds_tensors(value)):
            yield key, value
        else:
            raise NotMigratableError(f"it is called with {key}={value!r:.40}, which Keras 3 does not take")


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, list):
        return any(_holds_tensors(each) for each in value)
    return isinstance(value, TensorRef)


def tensors_of(call: Call) -> Iterator[TensorRef]:
    """Every tensor that goes into a call."""
    stack: list[Any] = [*call.positional, *call.keywords.values()]
    while stack:
        item = stack.pop()
        if isinstance(item, TensorRef):
            yield item
        elif isinstance(item, JoinedMask):
            stack.extend(item.tensors)
        elif isinstance(item, list | tuple):
            stack.extend(item)
        elif isinstance(item, Mapping):
            stack.extend(item.values())
