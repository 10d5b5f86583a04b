"""Every test starts without settings from outside, and leaves the process as it found it."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

_OUTSIDE = ("TENSORTAP", "THING_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_", "MASTER_")
_LAUNCHER = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"}
_KEPT = "TENSORTAP_STRICT"


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Asks for no other fixture, so that it is set up first and looks last."""
    before, sockets = _touchable(), _sockets()
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name != _KEPT and (name in _LAUNCHER or name.startswith(_OUTSIDE)):
                environment.delenv(name)
        yield
        _end_the_dumper()
    assert _touchable() == before
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("tensortap-")] == []
    assert _sockets() <= sockets


def _touchable() -> dict[str, object]:
    """What a tool of this kind could change for the whole process."""
    return {
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "threads' trace": threading.gettrace(),
        "threads' profile": threading.getprofile(),
        "excepthook": sys.excepthook,
        "threads' excepthook": threading.excepthook,
        "working directory": os.getcwd(),
    }


def _end_the_dumper() -> None:
    dumper = sys.modules.get("tensortap.faces.tensor_dumper")
    if dumper is not None:
        dumper.enable()
        dumper.close()


def _sockets() -> set[str]:
    """The open sockets of this process; none where the system does not tell."""
    found = set()
    for entry in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:  # the descriptor that listed the folder
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found
