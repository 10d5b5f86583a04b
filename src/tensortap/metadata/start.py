"""Where the program began, and with which file: it may have gone to another folder since."""

import os
import sys
from dataclasses import dataclass
from typing import Any

from tensortap.metadata.runtime import working_directory

_INSTALLED = ("bin", "lib", "lib64", "Scripts")
_PACKAGES = ("/site-packages/", "/dist-packages/")


@dataclass(frozen=True, slots=True)
class Start:
    """`folder` is where the command was given, or nothing once that is gone."""

    folder: str
    script: str | None = None

    @property
    def folders(self) -> list[str]:
        """Where the project may be: the folder, else that of the main script."""
        folders = [self.folder, os.path.dirname(self.script) if self.script else ""]
        return list(dict.fromkeys(folder for folder in folders if folder))


def program_start(*, here: str = "", folder: str = "") -> Start:
    """`here` is where this process began, if somebody saw it; `folder`, where a command was given that
    started this process and perhaps others."""
    began = here or _began_in() or working_directory()
    return Start(folder or began, _main_script(began))


def _main_script(folder: str) -> str | None:
    """The file that runs as `__main__`; Python forgets it before the end of the program, its first argument
    then still tells."""
    file = _main_file() or next(iter(sys.argv), "")
    path = os.path.join(folder, file) if isinstance(file, str) and file else ""
    if not os.path.isabs(path):  # the folder is gone
        return None
    path = os.path.realpath(path)
    return path if os.path.isfile(path) and not is_of_environment(path) else None


def is_of_environment(file: str) -> bool:
    """A program that was installed beside the interpreter, and is no part of a project."""
    places = (os.path.join(prefix, one, "") for prefix in (sys.prefix, sys.base_prefix) for one in _INSTALLED)
    return file.startswith(tuple(places)) or any(part in file for part in _PACKAGES)


def is_below(path: str, folder: str) -> bool:
    """Whether a path is the folder, or lies in it."""
    return os.path.join(path, "").startswith(os.path.join(folder, ""))


def _began_in() -> str:
    """By the script's path as the command names it and as Python completed it then; nothing where they do
    not tell."""
    file = _main_file()
    if not isinstance(file, str) or not os.path.isabs(file) or is_of_environment(file):
        return ""
    word = next(iter(sys.argv), "")
    if word in sys.orig_argv and not os.path.isabs(word) and file.endswith(os.sep + word):
        return file.removesuffix(os.sep + word)
    return _began_with_module(file)


def _began_with_module(file: str) -> str:
    """With -m, the shell's folder if the module was found from there."""
    spec, shell = getattr(sys.modules.get("__main__"), "__spec__", None), os.environ.get("PWD", "")
    if spec is None or not os.path.isabs(shell) or shell not in sys.path:
        return ""
    place = os.path.join(shell, *spec.name.split("."))
    return shell if file == f"{place}.py" else ""


def _main_file() -> Any:
    return getattr(sys.modules.get("__main__"), "__file__", None)
