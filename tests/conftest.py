"""Every test starts without settings from outside, and leaves the process as it found it."""

import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

_OUTSIDE = ("TENSORTAP", "THING_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_", "MASTER_")
_LAUNCHER = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"}
_KEPT = "TENSORTAP_STRICT"
_sockets: weakref.WeakSet[Any] = weakref.WeakSet()  # those made in Python: gloo keeps its own for good


def _remember_sockets(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        _sockets.add(arguments[0])


sys.addaudithook(_remember_sockets)
# How long one example takes says nothing on a machine that others use too.
settings.register_profile("tensortap", deadline=None)
settings.load_profile("tensortap")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So does a shell with what it starts in the background, and the programs of tests would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def nothing_is_left_behind() -> Iterator[None]:
    """Asks for no other fixture, so that it is set up first and looks last."""
    before, sockets = _touchable(), _open_sockets()
    with pytest.MonkeyPatch.context() as environment:
        for name in list(os.environ):
            if name != _KEPT and (name in _LAUNCHER or name.startswith(_OUTSIDE)):
                environment.delenv(name)
        yield
        _end_the_dumper()
        _forget_steps()
    assert _touchable() == before
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("tensortap-")] == []
    assert _open_sockets() <= sockets


def _touchable() -> dict[str, object]:
    """What a tool of this kind could change for the whole process."""
    return {
        "trace": sys.gettrace(),
        "profile": sys.getprofile(),
        "threads' trace": threading.gettrace(),
        "threads' profile": threading.getprofile(),
        "excepthook": _excepthook(),
        "threads' excepthook": threading.excepthook,
        "working directory": os.getcwd(),
    }


def _excepthook() -> object:
    """The hook in charge; the one that torch puts there with every process group is not ours to judge."""
    hook = sys.excepthook
    return sys.__excepthook__ if hook.__module__.startswith("torch.") else hook


def _end_the_dumper() -> None:
    dumper = sys.modules.get("tensortap.compat.tensor_dumper")
    if dumper is not None:
        dumper.enable()
        dumper.close()


def _forget_steps() -> None:
    steps = sys.modules.get("tensortap.core.steps")
    if steps is not None:
        steps.reset_steps()


def _open_sockets() -> set[Any]:
    return {socket for socket in _sockets if socket.fileno() != -1}
