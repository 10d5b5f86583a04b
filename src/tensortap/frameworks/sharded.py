"""Torch values that stand for something else: distributed tensors and collectives under way.

Their classes are looked up among the loaded modules: a program that has not imported
`torch.distributed.tensor` holds none, and should not pay for the import.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tensortap.core.record import Placement


def is_distributed(kind: type) -> bool:
    return _is_a(kind, "torch.distributed.tensor", "DTensor")


def local(value: Any) -> Any:
    """The piece that this process holds, waited for."""
    if is_distributed(type(value)):
        value = value._local_tensor
    if _is_a(type(value), "torch.distributed._functional_collectives", "AsyncCollectiveTensor"):
        value = value.wait()
    return value


def around(value: Any, piece: Any) -> Any:
    """A distributed tensor like this one around another piece; nothing is sent."""
    mesh, placements = value.device_mesh, value.placements
    shape, stride = value.shape, value.stride()
    return type(value).from_local(piece, mesh, placements, run_check=False, shape=shape, stride=stride)


def placement(value: Any) -> Placement:
    """How the local piece of a distributed tensor sits in the whole."""
    mesh = value.device_mesh
    coordinate = mesh.get_coordinate()
    shape = tuple(value.shape)
    return Placement(
        mesh=tuple(mesh.shape),
        coordinate=tuple(coordinate or ()),
        parts=tuple(_word(part) for part in value.placements),
        shape=shape,
        # A process outside the mesh holds an empty piece, which begins nowhere.
        offset=(0,) * len(shape) if coordinate is None else _offset(shape, mesh, value.placements),
    )


def _word(part: Any) -> str:
    """Torch's own names differ between versions; these do not."""
    kind = type(part).__name__
    if kind == "_StridedShard":
        return f"strided_shard({part.dim}, {part.split_factor})"
    if part.is_shard():
        return f"shard({part.dim})"
    if part.is_replicate():
        return "replicate"
    return f"partial({part.reduce_op})" if part.is_partial() else kind.lower()


def _offset(shape: tuple[int, ...], mesh: Any, placements: Sequence[Any]) -> tuple[int, ...]:
    """Torch knows how it splits unevenly and in strides; only its private module says it."""
    torch_layout = sys.modules["torch.distributed.tensor._utils"]
    _, offset = torch_layout.compute_local_shape_and_global_offset(shape, mesh, placements)
    return tuple(int(start) for start in offset)


def _is_a(kind: type, module: str, name: str) -> bool:
    known = getattr(sys.modules.get(module), name, None)
    return known is not None and issubclass(kind, known)
