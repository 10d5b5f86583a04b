"""Facts of a model when its capture starts: classes and their code, configuration, digests of all weights."""

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

from tensortap.core.filesystem import replace_file
from tensortap.core.ranks import rank_info
from tensortap.core.settings import is_strict
from tensortap.formats.run_layout import INTERNAL_FOLDER, MODEL_FILE
from tensortap.frameworks.base import framework_of
from tensortap.frameworks.dtensor import wait_local
from tensortap.kernels.hashing import checksum
from tensortap.sources.sites import class_name, unwrap, walk_modules

log = logging.getLogger("tensortap.capture")


def write_model_facts(model: Any, run: Path) -> None:
    """Write the facts into the run. Each weight is read once, which takes as long as copying it; a failure is
    logged, and the capture goes on."""
    if rank_info().rank != 0:
        return
    try:
        content = json.dumps(describe_model(model), default=str)
        replace_file(run / INTERNAL_FOLDER / MODEL_FILE, content.encode())
    except Exception:  # a guest: the model's own config may raise anything
        if is_strict():
            raise
        log.warning("the facts of the model were not written to %s", run, exc_info=True)


def describe_model(model: Any) -> dict[str, Any]:
    inner = unwrap(model)
    return {
        "class": class_name(inner),
        "training": bool(getattr(inner, "training", False)),
        "modules": {".".join(names): class_name(module) for names, module in walk_modules(model)},
        "settings": {
            ".".join(names): settings
            for names, module in walk_modules(model)
            if (settings := _settings(module))
        },
        "code": collect_module_code(model),
        "config": _config(inner),
        "weights": dict(_weights(model)),
    }


def _settings(module: Any) -> str:
    """The module's `extra_repr()`: eps, number of heads, dropout probability."""
    try:
        return str(module.extra_repr())
    except Exception:  # a module's own extra_repr may raise anything, and the rest matters more
        log.debug("the extra_repr of a %s failed", type(module).__name__, exc_info=True)
        return ""


def _config(model: Any) -> dict[str, Any]:
    """The configuration of a model from transformers or a similar library."""
    config = getattr(model, "config", None)
    if config is None:
        return {}
    attributes = config.to_dict() if hasattr(config, "to_dict") else getattr(config, "__dict__", {})
    # The attention implementation is chosen at load time, and not part of to_dict().
    attention = getattr(config, "_attn_implementation", None)
    facts = dict(attributes) if isinstance(attributes, dict) else {}
    return {**facts, "_attn_implementation": attention} if attention is not None else facts


def _weights(model: Any) -> Iterator[tuple[str, list[Any]]]:
    """The dtype, shape and digest of each parameter and buffer."""
    known: dict[int, list[Any]] = {}  # shared weights are read once
    for names, module in walk_modules(model):
        for name, value in chain(module._parameters.items(), module._buffers.items()):
            if value is not None:
                if id(value) not in known:
                    known[id(value)] = _describe_weight(wait_local(value))
                yield ".".join((*names, name)), known[id(value)]


def _describe_weight(shard: Any) -> list[Any]:
    """Dtype, shape and digest of this rank's shard; the digest is None where there are no values yet."""
    if hasattr(type(shard), "cls_to_become"):  # a lazy parameter, which the first forward initialises
        return ["", [], None]
    framework = framework_of(shard)
    description = framework.describe(shard)
    try:
        digest = checksum(np.ascontiguousarray(framework.bits(shard)))
    except Exception:  # meta device, a tensor subclass's own code: each fails differently
        log.debug("a weight has no digest: %s", description, exc_info=True)
        digest = None
    return [description.dtype, list(description.shape), digest]


LineRange = list[Any]  # file, first line, last line


def collect_module_code(model: Any) -> list[dict[str, Any]]:
    """One entry per module class: where its code is, and its modules. Line numbers come from code objects."""
    by_class: dict[type, dict[str, Any]] = {}
    for names, module in walk_modules(model):
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
    """The function behind decorators and bound methods, if it is one."""
    try:
        inner = inspect.unwrap(getattr(attribute, "__func__", attribute))
    except ValueError:  # it wraps itself
        return None
    return inner if isinstance(inner, FunctionType) else None


def _line_range(code: CodeType) -> LineRange:
    file = code.co_filename
    last = max((line for part in _nested_codes(code) for *_, line in part.co_lines() if line), default=0)
    return [
        file if file.startswith("<") else os.path.abspath(file),
        code.co_firstlineno,
        max(last, code.co_firstlineno),
    ]


def _nested_codes(code: CodeType) -> Iterator[CodeType]:
    """The code object and those nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested_codes(constant)


def _span(ranges: list[LineRange]) -> LineRange | None:
    if not ranges:
        return None
    return [ranges[0][0], min(lines[1] for lines in ranges), max(lines[2] for lines in ranges)]
