"""DTensors, async collectives and non-strided layouts of torch.

Their classes are looked up among the loaded modules: a program that has not imported
`torch.distributed.tensor` holds none, and should not pay for the import.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Placement

_Index = np.ndarray[Any, Any]
_SHARD_PATTERN = re.compile(r"(?:strided_)?shard\((-?\d+)(?:, (\d+))?\)")


def is_distributed(kind: type) -> bool:
    return _is_loaded_class(kind, "torch.distributed.tensor", "DTensor")


def is_simulated(kind: type) -> bool:
    """Whether such a tensor holds the shards of many ranks, as under torch's `LocalTensorMode`."""
    return _is_loaded_class(kind, "torch.distributed._local_tensor", "LocalTensor")


def wait_local(value: Any) -> Any:
    """The local tensor of this process; waits for an async collective."""
    if is_distributed(type(value)):
        value = value._local_tensor
    return value.wait() if _is_async_collective(type(value)) else value


def wrap_local(value: Any, local: Any) -> Any:
    """A DTensor like this one around another local tensor, without communication."""
    mesh, placements = value.device_mesh, value.placements
    shape, stride = value.shape, value.stride()
    return type(value).from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)


def dtensor_placement(value: Any) -> Placement:
    """The placement of a DTensor's local tensor; for simulated ranks, the lowest rank's."""
    return _placement_of(value, value.device_mesh, value.placements, value.shape)


def simulated_ranks(
    value: Any, known: Placement | None = None
) -> list[tuple[int, Any, Placement | None]] | None:
    """Each simulated rank with its plain tensor and placement; None if nothing is simulated.

    `known` is the placement of the lowest rank's shard of a tensor that is not a DTensor.
    """
    local = wait_local(value)
    if not is_simulated(type(local)):
        return None
    shards = sorted(local._local_tensors.items())
    if is_distributed(type(value)):
        mesh, parts, shape = value.device_mesh, _format_placements(value.placements), tuple(value.shape)
        return [
            (rank, shard, placement_at(tuple(mesh.shape), _simulated_coordinate(mesh, rank), parts, shape))
            for rank, shard in shards
        ]
    if known is not None and prod(known.mesh) == len(shards):
        return [(rank, shard, _at_position(known, position)) for position, (rank, shard) in enumerate(shards)]
    return [(rank, shard, None) for rank, shard in shards]


def placement_of_former_dtensor(raw: Any, local: Any, module: Any = None) -> Placement | None:
    """The placement of a plain tensor that left a module, if it was a DTensor before.

    `raw` is the output of the module's own forward, before the hooks of a parallel style made it local.
    Sources are tried in order: the autograd graph, the output layout of the module's parallel style, shared
    memory. The shape decides only if it leaves one answer; None if there are several.
    """
    if is_distributed(type(local)):
        return None
    for mesh, placements, shape in _layout_candidates(raw, local, module):
        placement = _placement_of(local, mesh, placements, shape)
        if is_simulated(type(local)) or local_shape(placement) == tuple(local.shape):
            return placement
    return _infer_from_shape(raw, local) if is_distributed(type(raw)) else None


@lru_cache(maxsize=4096)
def placement_at(
    mesh: tuple[int, ...], coordinate: tuple[int, ...], parts: tuple[str, ...], shape: tuple[int, ...]
) -> Placement:
    """The placement of the shard at that mesh coordinate, with its offset."""
    if not coordinate:
        # A process outside the mesh holds an empty shard, without an offset.
        return Placement(mesh, (), parts, shape, (0,) * len(shape))
    where = global_indices(Placement(mesh, coordinate, parts, shape, ()))
    offset = tuple(int(at[0]) if len(at) else size for at, size in zip(where, shape, strict=True))
    return Placement(mesh, coordinate, parts, shape, offset)


def global_indices(placement: Placement) -> list[_Index]:
    """For each dimension, the indices into the full tensor that the shard holds, in its order.

    Torch splits from the first mesh dimension to the last, into chunks of equal size as far as they go.
    """
    where = [np.arange(size) for size in placement.shape]
    for ranks, at, part in zip(placement.mesh, placement.coordinate, placement.parts, strict=True):
        shard = parse_shard(part)
        if shard is not None:
            dimension, groups = shard
            split = [_chunk(rows, ranks, at) for rows in _chunk_all(where[dimension], groups)]
            where[dimension] = np.concatenate(split)
    return where


def local_shape(placement: Placement) -> tuple[int, ...]:
    """The shape of the shard that a placement implies."""
    return tuple(map(len, global_indices(placement))) if placement.coordinate else ()


def parse_shard(part: str) -> tuple[int, int] | None:
    """The sharded dimension and the number of groups it was split into before; None if not a shard."""
    match = _SHARD_PATTERN.fullmatch(part)
    return None if match is None else (int(match[1]), int(match[2] or 1))


def _placement_of(value: Any, mesh: Any, placements: Sequence[Any], shape: Any) -> Placement:
    # Not waited for: the program may overlap the collective with computation.
    local = value._local_tensor if is_distributed(type(value)) else value
    local = local.elem if _is_async_collective(type(local)) else local
    words = _format_placements(placements, len(shape))
    return placement_at(tuple(mesh.shape), _coordinate(mesh, local), words, tuple(map(int, shape)))


def _coordinate(mesh: Any, local: Any) -> tuple[int, ...]:
    """The mesh coordinate of the local tensor's process; for simulated ranks, the lowest that holds a
    shard."""
    if is_simulated(type(local)):
        return _simulated_coordinate(mesh, min(local._local_tensors))
    coordinate = tuple(mesh.get_coordinate() or ())
    # A plain tensor among simulated ranks is the same for all; torch then returns one number per rank.
    return coordinate if all(type(number) is int for number in coordinate) else (0,) * len(coordinate)


def _format_placements(placements: Sequence[Any], ndim: int = 0) -> tuple[str, ...]:
    return tuple(_format_placement(part, ndim) for part in placements)


def _format_placement(part: Any, ndim: int) -> str:
    """Torch's own names differ between versions; these do not."""
    kind = type(part).__name__
    # A parallel style may use -1.
    dimension = part.dim + ndim if getattr(part, "dim", 0) < 0 else getattr(part, "dim", 0)
    if kind == "_StridedShard":
        return f"strided_shard({dimension}, {part.split_factor})"
    if part.is_shard():
        return f"shard({dimension})"
    if part.is_replicate():
        return "replicate"
    # Its subclasses are not reduced by their operation alone: a masked one hides rows first.
    return f"partial({part.reduce_op})" if kind == "Partial" else kind.strip("_").lower()


def _chunk_all(rows: _Index, count: int) -> list[_Index]:
    return [_chunk(rows, count, number) for number in range(count)]


def _chunk(rows: _Index, count: int, number: int) -> _Index:
    size = -(-len(rows) // count)
    return rows[size * number : size * (number + 1)]


def _simulated_coordinate(mesh: Any, rank: int) -> tuple[int, ...]:
    """The mesh coordinate of a simulated rank; torch exposes it only as one number per rank."""
    # The first dimension enumerates the copies: a submesh exists once per group of ranks.
    copies = np.asarray(mesh._layout.remap_to_tensor(mesh._rank_map).tolist())
    positions = np.argwhere(copies == rank)
    return tuple(int(number) for number in positions[0][1:]) if len(positions) else ()


def _at_position(known: Placement, position: int) -> Placement:
    coordinate = tuple(int(number) for number in np.unravel_index(position, known.mesh))
    return placement_at(known.mesh, coordinate, known.parts, known.shape)


def _layout_candidates(raw: Any, local: Any, module: Any) -> Iterator[tuple[Any, Sequence[Any], Any]]:
    """Mesh, placements and shape, the most reliable source first."""
    kept = getattr(local.grad_fn, "dtensor_spec", None)  # set by to_local()
    if kept is not None:
        yield kept.mesh, kept.placements, kept.shape
    if not is_distributed(type(raw)):
        return
    placements = _parallel_style_layout(module)
    if placements is not None and len(placements) == raw.device_mesh.ndim:
        yield raw.device_mesh, placements, raw.shape
    if _shares_memory(raw._local_tensor, local):
        yield raw.device_mesh, raw.placements, raw.shape


def _parallel_style_layout(module: Any) -> Sequence[Any] | None:
    """The output layout that ColwiseParallel or RowwiseParallel gave the module; None without one."""
    for hook in getattr(module, "_forward_hooks", {}).values():
        names = getattr(getattr(hook, "__code__", None), "co_freevars", ())
        if "output_fn" in names:
            ask = hook.__closure__[names.index("output_fn")].cell_contents
            arguments = getattr(ask, "args", ())
            if arguments and isinstance(arguments[0], tuple):
                layout: Sequence[Any] = arguments[0]
                return layout
    return None


def _shares_memory(a: Any, b: Any) -> bool:
    is_alike = a.shape == b.shape and a.stride() == b.stride() and b.numel() > 0
    return is_alike and 0 != _address(a) == _address(b)


def _address(tensor: Any) -> int:
    """The data pointer; 0 for a tensor that only wraps others."""
    if is_simulated(type(tensor)):
        return 0
    try:
        return int(tensor.data_ptr())
    except RuntimeError:
        return 0


def _infer_from_shape(raw: Any, local: Any) -> Placement | None:
    """The placement, if the local shape allows exactly one."""
    shape, mesh = tuple(raw.shape), raw.device_mesh
    if is_simulated(type(local)) or any(part.is_partial() for part in raw.placements):
        return None
    ways = [("replicate",) * mesh.ndim]
    if mesh.ndim == 1:
        ways += [(f"shard({dimension})",) for dimension in range(len(shape))]
    coordinate = tuple(mesh.get_coordinate() or ())
    candidates = [placement_at(tuple(mesh.shape), coordinate, parts, shape) for parts in ways]
    fitting = [
        candidate for candidate in candidates if coordinate and local_shape(candidate) == tuple(local.shape)
    ]
    return fitting[0] if len(fitting) == 1 else None


def _is_async_collective(kind: type) -> bool:
    return _is_loaded_class(kind, "torch.distributed._functional_collectives", "AsyncCollectiveTensor")


def _is_loaded_class(kind: type, module: str, name: str) -> bool:
    known = getattr(sys.modules.get(module), name, None)
    return known is not None and issubclass(kind, known)


_COMPONENT_METHODS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def layout_of(tensor: Any) -> str:
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    return str(tensor.layout).removeprefix("torch.").lstrip("_")


def component_tensors(tensor: Any) -> list[Any]:
    """The strided tensors that a tensor of another layout consists of."""
    layout = layout_of(tensor)
    if layout in _COMPONENT_METHODS:
        return [getattr(tensor, part)() for part in _COMPONENT_METHODS[layout]]
    if layout == "quantized":
        return [tensor.int_repr()]
    if layout == "nested":
        # A jagged tensor keeps its components as attributes; the older kind has one buffer.
        jagged = getattr(tensor, "_values", None)
        return [jagged, tensor._offsets] if hasattr(jagged, "layout") else [tensor.values()]
    return [tensor.to_dense()]


def tensor_nbytes(tensor: Any) -> int:
    """The bytes of the tensor or of all its components; 0 if a size is symbolic."""
    parts = [tensor] if layout_of(tensor) in ("strided", "quantized", "mkldnn") else component_tensors(tensor)
    counts = [part.numel() for part in parts]
    if not all(isinstance(count, int) for count in counts):
        return 0
    return sum(count * int(part.element_size()) for count, part in zip(counts, parts, strict=True))


def require_strided(tensor: Any) -> None:
    layout = layout_of(tensor)
    if layout != "strided":
        raise UnsupportedValueError(
            f"a {layout} tensor of shape {static_shape(tensor)} is not one block of bytes; "
            "make it dense first, or capture the tensors it is made of"
        )


def static_shape(tensor: Any) -> list[int]:
    """The sizes, -1 where a nested tensor is ragged or a size is symbolic.

    Not `tensor.shape`: an uninitialised parameter refuses that.
    """
    return [_static_size(tensor, dimension) for dimension in range(tensor.dim())]


def _static_size(tensor: Any, dimension: int) -> int:
    try:
        size = tensor.size(dimension)
    except RuntimeError:
        return -1
    # Reading a symbolic size would add a guard to the program being traced.
    return size if type(size) is int else -1
