"""Placements of Megatron-style parallel layers, which use no DTensors."""

from __future__ import annotations

import sys
from typing import Any, Literal

from tensortap.core.record import Placement
from tensortap.frameworks.dtensor import placement_at

_GROUP_ATTRIBUTES = ("tensor_parallel_group", "process_group", "tensor_model_parallel_group", "tp_group")
_SEQUENCE_PARALLEL_ATTRIBUTES = ("sequence_parallel", "sequence_parallel_enabled")
_COLUMN, _ROW = 0, 1


def megatron_placement(
    module: Any, value: Any, which: Literal["output", "input"] = "output"
) -> Placement | None:
    """The placement of a plain output (or input) of a column- or row-parallel layer.

    The weight declares how it is split (`tensor_model_parallel`, `partition_dim`), the module what it does
    about it (`gather_output`; `reduce_output` or `input_is_parallel`). None for every other module, for
    contradicting sizes, and before `torch.distributed` is initialised.
    """
    weight = _parallel_weight(module)
    rank_and_size = None if weight is None else _group_rank_and_size(module, weight)
    if rank_and_size is None or not hasattr(value, "shape") or not len(value.shape):
        return None
    find = {
        (_COLUMN, "output"): _column_output,
        (_COLUMN, "input"): _column_input,
        (_ROW, "output"): _row_output,
        (_ROW, "input"): _row_input,
    }.get((weight.partition_dim, which))
    part = None if find is None else find(module, weight, len(value.shape))
    return (
        None
        if part is None
        else _build_placement(part, rank_and_size, value.shape, _declared_size(module, weight, which))
    )


def megatron_parameter_placement(module: Any, parameter: Any) -> Placement | None:
    """The placement of a rank's shard of a weight or bias marked `tensor_model_parallel`."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return None
    rank_and_size, dimension = (
        _group_rank_and_size(module, parameter),
        getattr(parameter, "partition_dim", -1),
    )
    if rank_and_size is None or not 0 <= dimension < len(parameter.shape):
        return None
    return _build_placement(_format_shard(dimension, parameter), rank_and_size, parameter.shape, None)


def _parallel_weight(module: Any) -> Any:
    for name in ("weight", "bias"):
        parameter = getattr(module, name, None)
        is_parallel = getattr(parameter, "tensor_model_parallel", False)
        if is_parallel and getattr(parameter, "partition_dim", None) in (_COLUMN, _ROW):
            return parameter
    return None


def _group_rank_and_size(module: Any, parameter: Any) -> tuple[int, int] | None:
    """The rank within the layer's process group, and the group's size."""
    distributed: Any = sys.modules.get("torch.distributed")
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    group = next(
        (candidate for name in _GROUP_ATTRIBUTES if (candidate := getattr(module, name, None)) is not None),
        None,
    )
    if group is not None and not isinstance(group, distributed.ProcessGroup):
        return None
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    is_stated_otherwise = getattr(parameter, "num_partitions", size) not in (size, 0, None)
    return None if rank < 0 or is_stated_otherwise else (rank, size)


def _column_output(module: Any, weight: Any, ndim: int) -> str | None:
    gathers = getattr(module, "gather_output", None)
    if gathers is None:
        return None
    return "replicate" if gathers else _format_shard(ndim - 1, weight)


def _column_input(module: Any, weight: Any, ndim: int) -> str | None:
    if not hasattr(module, "gather_output"):
        return None
    return _sequence_shard(module) or "replicate"


def _row_output(module: Any, weight: Any, ndim: int) -> str | None:
    reduces = getattr(module, "reduce_output", None)
    if getattr(module, "explicit_expert_comm", False):
        return None
    if reduces is None and not hasattr(module, "input_is_parallel"):
        return None
    return "partial(sum)" if reduces is False else _sequence_shard(module) or "replicate"


def _row_input(module: Any, weight: Any, ndim: int) -> str | None:
    is_parallel = getattr(module, "input_is_parallel", None)
    if is_parallel is None:
        return None
    return _format_shard(ndim - 1, weight) if is_parallel else "replicate"


def _format_shard(dimension: int, weight: Any) -> str:
    # Each of the fused weights is sharded separately: a rank holds a shard of every one.
    stride = getattr(weight, "partition_stride", 1)
    return f"shard({dimension})" if stride == 1 else f"strided_shard({dimension}, {stride})"


def _sequence_shard(module: Any) -> str | None:
    if not any(getattr(module, name, False) for name in _SEQUENCE_PARALLEL_ATTRIBUTES):
        return None
    return f"shard({getattr(module, 'sequence_dimension', None) or 0})"


def _declared_size(module: Any, weight: Any, which: str) -> int | None:
    """The full size of the last dimension, if the module declares it."""
    size = getattr(module, f"{which}_size", None)
    return size if isinstance(size, int) else None


def _build_placement(
    part: str, rank_and_size: tuple[int, int], shape: Any, declared_size: int | None
) -> Placement | None:
    rank, size = rank_and_size
    full_shape = list(shape)
    if "shard(" in part:
        full_shape[int(part.partition("(")[2].rstrip(")").split(",")[0])] *= size
    if declared_size is not None and declared_size != full_shape[-1]:
        return None
    return placement_at((size,), (rank,), (part,), tuple(full_shape))
