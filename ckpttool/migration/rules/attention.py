"""Attention layers.

Source: tensorflow/python/keras/layers/dense_attention.py (TF 1.15, 2.4), keras/layers/attention (Keras 2.10),
keras/src/layers/attention (Keras 3.15).
"""

from __future__ import annotations

from ._rule import Arguments, Context, NotMigratableError, Rule, Ruled, table

_OLD = "tensorflow/python/keras/layers/dense_attention.py (TF 1.15)"


def _attention(arguments: Arguments, context: Context) -> Ruled:
    arguments.require("use_scale")
    arguments.keep("use_scale")
    arguments.keep("dropout")
    if arguments.class_name == "Attention":
        arguments.keep("score_mode", "seed")
    causal = arguments.value("causal", False)
    ruled = Ruled(arguments.finish(arguments.class_name))
    if causal:
        ruled.call_keywords["use_causal_mask"] = True
        ruled.notes.append("causal=True becomes the call argument use_causal_mask=True")
    return ruled


def _multi_head_attention(arguments: Arguments, context: Context) -> Ruled:
    arguments.require("num_heads", "key_dim")
    arguments.keep("num_heads", "key_dim", "value_dim", "dropout", "use_bias", "seed")
    for key in ("attention_axes", "output_shape"):
        value = arguments.value(key)
        if value is not None:
            arguments.set(key, tuple(value) if isinstance(value, list) else value)
    arguments.for_variables("kernel", "bias")
    arguments.common_regularizer()
    for key in ("query_shape", "key_shape", "value_shape", "sliding_window", "flash_attention", "use_gate"):
        arguments.drop(key, *((None, False) if key in ("sliding_window", "use_gate") else ()))
    return Ruled(arguments.finish("MultiHeadAttention"))


def _no_counterpart(arguments: Arguments, context: Context) -> Ruled:
    raise NotMigratableError(f"{arguments.class_name} has no counterpart in Keras 3")


RULES = table(
    Rule(
        ("Attention", "AdditiveAttention"),
        "the same",
        "causal=False is dropped; causal=True becomes the call argument use_causal_mask",
        _OLD,
        _attention,
    ),
    Rule(
        ("MultiHeadAttention",),
        "MultiHeadAttention",
        "query_shape, key_shape and value_shape are dropped: the calls give them",
        "keras/layers/attention/multi_head_attention.py (Keras 2.10)",
        _multi_head_attention,
    ),
    Rule(
        ("LocallyConnected1D", "LocallyConnected2D"),
        "none",
        "stops: Keras 3 has no such layer",
        "keras/layers/local.py (Keras 2.2.4)",
        _no_counterpart,
    ),
)
