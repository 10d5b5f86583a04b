"""Found first by every Python that `tensortap run` starts: begin to watch, then go on as without it."""

import os
import sys
from importlib.machinery import PathFinder

_HERE = os.path.dirname(os.path.abspath(__file__))


def _leave_the_path() -> None:
    """The program finds its path as it would be; its children find this file by their environment."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _HERE]
    sys.path_importer_cache.pop(_HERE, None)


def _begin() -> None:
    try:
        from tensortap.launcher.import_hook import install_import_hook
    except ImportError:
        _tell_absence()
        return
    try:
        install_import_hook()
    except Exception as error:  # noqa: BLE001 - a guest: the program starts, whatever fails here
        sys.stderr.write(f"tensortap run: nothing is watched in this process: {error!r}\n")


def _tell_absence() -> None:
    """Another interpreter, which has no tensortap: whoever started all this will say so, once."""
    import json

    try:
        notes = json.loads(os.environ["TENSORTAP_RUN"])["notes"]
        with open(os.path.join(notes, "absent"), "x") as file:
            file.write(sys.executable)
    except (KeyError, ValueError, OSError):
        pass


def _hand_over() -> None:
    """Import the sitecustomize that this one hides, if there is one: it becomes the one that Python found."""
    if PathFinder.find_spec("sitecustomize", sys.path) is not None:
        del sys.modules["sitecustomize"]
        __import__("sitecustomize")


_leave_the_path()
try:
    _begin()
finally:
    _hand_over()
