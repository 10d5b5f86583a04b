"""Class, config, weight digests.

What a model is when its capture begins: classes and their code, configuration, digests of all weights.

Where the code of a model's modules lies: of each class its forward, and all of its own functions.
"""

from __future__ import annotations

import inspect
import json
import logging
import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numpy as np

from tensortap.core.ranks import rank_info
from tensortap.core.settings import is_strict
from tensortap.formats.run_layout import INTERNAL_FOLDER, MODEL_FILE
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.dtensor import wait_local
from tensortap.kernels.hashing import checksum
from tensortap.sources.sites import class_name, unwrapped, walk

log = logging.getLogger("tensortap.capture")


def write_model_facts(model: Any, run: Path) -> None:
    """Write them into our corner of the run. Each weight is read once, which takes as long as a copy of it;
    whatever fails is logged, and the capture goes on."""
    if rank_info().rank != 0:
        return
    try:
        content = json.dumps(describe_model(model), default=str)
        path = run / INTERNAL_FOLDER / MODEL_FILE
        draft = path.with_suffix(f".{os.getpid()}.tmp")
        draft.write_text(content, encoding="utf-8")
        draft.replace(path)
    except Exception:
        if is_strict():
            raise
        log.warning("the facts of the model were not written to %s", run, exc_info=True)


def describe_model(model: Any) -> dict[str, Any]:
    inner = unwrapped(model)
    return {
        "class": class_name(inner),
        "training": bool(getattr(inner, "training", False)),
        "modules": {".".join(names): class_name(module) for names, module in walk(model)},
        "settings": {
            ".".join(names): settings for names, module in walk(model) if (settings := _settings(module))
        },
        "code": collect_module_code(model),
        "config": _config(inner),
        "weights": dict(_weights(model)),
    }


def _settings(module: Any) -> str:
    """What a module prints of itself: an eps, a number of heads, a share of dropout."""
    try:
        return str(module.extra_repr())
    except Exception:  # noqa: BLE001  of any class, and worth less than all the rest
        return ""


def _config(model: Any) -> dict[str, Any]:
    """What a model of transformers, or of a like library, says of itself."""
    config = getattr(model, "config", None)
    if config is None:
        return {}
    attributes = config.to_dict() if hasattr(config, "to_dict") else getattr(config, "__dict__", {})
    # An implementation that was chosen while loading is not part of the written form.
    attention = getattr(config, "_attn_implementation", None)
    facts = dict(attributes) if isinstance(attributes, dict) else {}
    return {**facts, "_attn_implementation": attention} if attention is not None else facts


def _weights(model: Any) -> Iterator[tuple[str, list[Any]]]:
    """Of each parameter and buffer: its type, its shape, and the digest of its bytes."""
    known: dict[int, list[Any]] = {}  # one that several modules share is read once
    for names, module in walk(model):
        for name, value in chain(module._parameters.items(), module._buffers.items()):
            if value is not None:
                if id(value) not in known:
                    known[id(value)] = _describe_weight(wait_local(value))
                yield ".".join((*names, name)), known[id(value)]


def _describe_weight(shard: Any) -> list[Any]:
    """A weight that has no values, or none yet, has no digest."""
    if hasattr(type(shard), "cls_to_become"):  # torch's word for a parameter that the first forward will make
        return ["", [], None]
    framework = framework_of(shard)
    description = framework.describe(shard)
    try:
        digest = checksum(np.ascontiguousarray(framework.bits(shard)))
    except Exception:  # noqa: BLE001  lazy, on no device, of a class of its own: each fails differently
        digest = None
    return [description.dtype, list(description.shape), digest]


LineRange = list[Any]  # file, first line, last line


def collect_module_code(model: Any) -> list[dict[str, Any]]:
    """One entry for each class, with the modules of it. No source is read: functions know their lines."""
    by_class: dict[type, dict[str, Any]] = {}
    for names, module in walk(model):
        kind: type = type(module)
        if kind not in by_class:
            by_class[kind] = {**_code_of(kind, class_name(module)), "modules": []}
        by_class[kind]["modules"].append(".".join(names))
    return [entry for entry in by_class.values() if "forward" in entry]


def _code_of(kind: type, name: str) -> dict[str, Any]:
    forward = _plain_function(getattr(kind, "forward", None))
    if forward is None:
        return {}
    defining = next((base for base in kind.__mro__ if base.__name__ == name), kind)
    own = [
        _line_range(function.__code__)
        for attribute in vars(defining).values()
        if (function := _plain_function(attribute))
    ]
    return {
        "function": forward.__qualname__,
        "forward": _line_range(forward.__code__),
        "class": _span([lines for lines in own if lines[0] == own[0][0]]),
    }


def _plain_function(attribute: Any) -> FunctionType | None:
    """What was decorated, where it says so."""
    try:
        unwrapped = inspect.unwrap(getattr(attribute, "__func__", attribute))
    except ValueError:  # it wraps itself
        return None
    return unwrapped if isinstance(unwrapped, FunctionType) else None


def _line_range(code: CodeType) -> LineRange:
    file = code.co_filename
    last = max((line for part in _nested_codes(code) for *_, line in part.co_lines() if line), default=0)
    return [
        file if file.startswith("<") else os.path.abspath(file),
        code.co_firstlineno,
        max(last, code.co_firstlineno),
    ]


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """Functions within a function have lines of their own."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _span(ranges: list[LineRange]) -> LineRange | None:
    if not ranges:
        return None
    return [ranges[0][0], min(lines[1] for lines in ranges), max(lines[2] for lines in ranges)]
