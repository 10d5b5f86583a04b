"""Every test starts without settings from outside, and leaves the process as it found it."""

import gc
import os
import signal
import sys
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.proof import IS_WHOLE, register_profiles

_OUTSIDE = ("TENSORTAP", "THING_", "TORCHELASTIC_", "SLURM_", "OMPI_", "PMIX_", "MASTER_")
_LAUNCHER = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK"}
_KEPT = "TENSORTAP_STRICT"
_TESTS = Path(__file__).parent
_BY_ROOM = {"browser": ("browser", "process"), "distributed": ("distributed", "process")}
_started: list[Any] = []  # Python processes of the test that runs
_sockets: weakref.WeakSet[Any] = weakref.WeakSet()  # those made in Python: gloo keeps its own for good


def _remember(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.__new__":
        _sockets.add(arguments[0])
    elif event == "subprocess.Popen" and _is_python(os.fsdecode(arguments[0] or "")):
        _started.append(arguments[0])


def _is_python(program: str) -> bool:
    """Whether it is an interpreter, or a script beside this one."""
    folder, name = os.path.split(program)
    return name.startswith("python") or folder == os.path.dirname(sys.executable)


sys.addaudithook(_remember)
register_profiles()
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So does a shell with what it starts in the background, and the programs of tests would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)  # before the groups are read
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by room and group by file, and leave out what only a whole proof runs."""
    for item in items:
        path = item.path.relative_to(_TESTS)
        for name in (name for room in path.parts for name in _BY_ROOM.get(room, ())):
            item.add_marker(name)
        if not item.get_closest_marker("xdist_group"):  # what the tests of a file share is made by one worker
            item.add_marker(pytest.mark.xdist_group(path.as_posix()))
    if not IS_WHOLE:
        left_out = [item for item in items if item.get_closest_marker("proof")]
        items[:] = [item for item in items if not item.get_closest_marker("proof")]
        config.hook.pytest_deselected(items=left_out)


def pytest_collection_finish() -> None:
    """Whatever the test files have imported is not looked through at each collection of garbage."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _started.clear()


@pytest.fixture(autouse=True)
def nothing_is_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
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
    # A compiler has workers of its own.
    is_marked = any(map(request.node.get_closest_marker, ("process", "compile")))
    assert is_marked or not _started, f"not marked as process, and starts {_started}"


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
