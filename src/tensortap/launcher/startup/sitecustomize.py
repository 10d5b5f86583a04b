"""Imported first by every Python that `tensortap run` starts: install the import hook, then step aside."""

import os
import sys
from importlib.machinery import PathFinder

_FOLDER = os.path.dirname(os.path.abspath(__file__))


def _remove_from_path() -> None:
    """Restore the program's `sys.path`; its children find this file through their environment."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != _FOLDER]
    sys.path_importer_cache.pop(_FOLDER, None)


def _install_hook() -> None:
    try:
        from tensortap.launcher.import_hook import install_import_hook
    except ImportError:
        _write_absent_marker()
        return
    try:
        install_import_hook()
    except Exception as error:  # noqa: BLE001 - the program must start, whatever fails here
        sys.stderr.write(f"tensortap run: nothing is watched in this process: {error!r}\n")


def _write_absent_marker() -> None:
    """Mark that this interpreter has no tensortap, for `tensortap run` to report once."""
    import json

    try:
        notes = json.loads(os.environ["TENSORTAP_RUN"])["notes"]
        with open(os.path.join(notes, "absent"), "x") as file:
            file.write(sys.executable)
    except (KeyError, ValueError, OSError):
        pass


def _import_shadowed_sitecustomize() -> None:
    """Import the sitecustomize that this one shadows, if any, in its place."""
    if PathFinder.find_spec("sitecustomize", sys.path) is not None:
        del sys.modules["sitecustomize"]
        __import__("sitecustomize")


_remove_from_path()
try:
    _install_hook()
finally:
    _import_shadowed_sitecustomize()
