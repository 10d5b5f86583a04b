"""Rank and world size of this process: from the process group, the launcher's variables, or jax."""

import os
import sys
from dataclasses import dataclass
from typing import Any

from tensortap.core.launchers import LAUNCHERS


@dataclass(frozen=True, slots=True)
class RankInfo:
    rank: int = 0
    world_size: int = 1


SINGLE = RankInfo()


def rank_info() -> RankInfo:
    """This process's rank and world size, as far as they are known now."""
    return from_process_group() or from_launcher() or _from_jax() or SINGLE


def current_rank_info(launched: RankInfo) -> RankInfo:
    """The process group's ranks, else the launcher's; cheap enough to call for every record."""
    return from_process_group() or launched


def from_process_group() -> RankInfo | None:
    distributed: Any = sys.modules.get("torch.distributed")
    # A torch without distributed support has the module, but not this function.
    is_initialized = getattr(distributed, "is_initialized", None)
    if is_initialized is None or not is_initialized():
        return None
    return RankInfo(distributed.get_rank(), distributed.get_world_size())


def from_launcher() -> RankInfo | None:
    for rank_variable, world_variable in (pair for launcher in LAUNCHERS for pair in launcher.ranks):
        info = _parse_rank_info(os.environ.get(rank_variable), os.environ.get(world_variable))
        if info is not None:
            return info
    return None


def launch_id() -> str:
    """A string that all processes of one launch share and no other launch has.

    Under a single torchrun agent it includes the agent's pid and start time: a fixed port and the run id
    `none` recur in the next launch, the agent does not.
    """
    known = [
        f"{name}={os.environ[name]}"
        for launcher in LAUNCHERS
        for name in launcher.identity
        if name in os.environ
    ]
    if is_single_agent():
        known.append(f"agent={os.getppid()}@{_start_time(os.getppid())}")
    return "\n".join(known)


def is_single_agent() -> bool:
    """Whether every process of the launch is a child of the same agent on this host."""
    local = os.environ.get("LOCAL_WORLD_SIZE")
    return local is not None and local == os.environ.get("WORLD_SIZE")


def broadcast_from_rank_zero(value: Any) -> Any:
    """Rank 0's value on every rank of the process group; a collective."""
    box = [value]
    sys.modules["torch.distributed"].broadcast_object_list(box, src=0)
    return box[0]


def _parse_rank_info(rank: str | None, world: str | None) -> RankInfo | None:
    if rank is None or world is None or not (rank.isdecimal() and world.isdecimal()):
        return None
    return RankInfo(int(rank), int(world))


def _from_jax() -> RankInfo | None:
    distributed = getattr(sys.modules.get("jax"), "distributed", None)
    # jax.process_index() would initialise the backends; if distributed, they are initialised already.
    if distributed is None or not getattr(distributed, "is_initialized", bool)():
        return None
    jax = sys.modules["jax"]
    return RankInfo(jax.process_index(), jax.process_count())


def _start_time(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()[19].decode()
    except (OSError, IndexError):
        return "unknown"
