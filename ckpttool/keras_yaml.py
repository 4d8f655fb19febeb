"""Model configurations as `to_yaml()` of Keras 1 and 2 wrote them, read with a loader that can build plain values only.

Keras dumped Python's tuples as `!!python/tuple`; they become lists, as in the JSON of the same model. Every other
Python tag is refused. Needs PyYAML (the extra `yaml`).
"""

from __future__ import annotations

import json
import re
from typing import Any

from .errors import CheckpointError, ConfigError, LimitExceededError, MissingDependencyError
from .limits import Limits

_KEYS = rb"backend|class_name|config|keras_version|model_config"
_BEGINS = re.compile(rb"\s*((---|%%YAML|#)[^\n]*\n\s*)*['\"]?(%b)['\"]?\s*:" % _KEYS)


def looks_like_yaml(head: bytes) -> bool:
    """Whether a file's first bytes are those of a model's YAML."""
    return _BEGINS.match(head) is not None and b"\0" not in head


def to_json(text: str, limits: Limits = Limits(), *, path: object = None) -> str:
    """The JSON of a model's YAML.

    Parameters
    ----------
    text : the YAML, one document
    limits : bounds on its size, aliases followed
    path : the file it comes from, for messages

    Raises
    ------
    MissingDependencyError : PyYAML is not installed
    ConfigError : not YAML, a tag that is not plain data, or a value that JSON has no form for
    LimitExceededError : larger or deeper than the limits
    """
    try:
        import yaml
    except ModuleNotFoundError:
        raise MissingDependencyError(
            "reading YAML needs PyYAML: pip install 'ckpttool[yaml]'; or give the model's JSON", path=path
        ) from None

    class PlainLoader(yaml.SafeLoader):  # type: ignore[misc]
        """SafeLoader, and tuples as lists."""

    def sequence(loader: Any, node: Any) -> list[Any]:
        values: list[Any] = loader.construct_sequence(node, deep=True)
        return values

    PlainLoader.add_constructor("tag:yaml.org,2002:python/tuple", sequence)
    try:
        loader = PlainLoader(text)
        try:
            document = loader.get_single_data()
        finally:
            loader.dispose()
        if _expanded(document, {}, set()) > limits.max_nodes * 16:  # values of one call's entry: 16 leave room
            raise LimitExceededError("the model configuration repeats itself too often", path=path)
        return json.dumps(document)
    except CheckpointError:
        raise
    except RecursionError:
        raise LimitExceededError("the model configuration is nested too deep", path=path) from None
    except (yaml.YAMLError, TypeError, ValueError) as error:
        reason = " ".join(str(error).partition("\n")[0].split())[:200]
        raise ConfigError(f"neither model JSON nor plain YAML ({reason})", path=path) from error


def _expanded(value: Any, known: dict[int, int], inside: set[int]) -> int:
    """How many values there are with aliases written out; each object is looked at once.

    Raises
    ------
    ValueError : a value that contains itself
    """
    if not isinstance(value, list | dict):
        return 1
    if id(value) in inside:
        raise ValueError("a value contains itself")
    if id(value) not in known:
        inside.add(id(value))
        children = value if isinstance(value, list) else [*value.values()]
        known[id(value)] = 1 + sum(_expanded(child, known, inside) for child in children)
        inside.discard(id(value))
    return known[id(value)]
