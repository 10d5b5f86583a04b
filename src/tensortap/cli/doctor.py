"""`tensortap doctor`: what is installed, what is missing and how to get it, what is in the way."""

import os
import platform
import shutil
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import click

import tensortap
from tensortap.cli.output import (
    DIFFERENT,
    OK,
    counted,
    json_option,
    printable,
    size,
    styled,
    write,
    write_json,
)
from tensortap.core.errors import TensortapError
from tensortap.core.settings import DEFAULTS, is_on, is_strict
from tensortap.live.discovery import jobs, stale_files
from tensortap.metadata.process import timestamp_zone

# What each extra brings, by the name it is imported with; and by its name in the package index.
_EXTRAS = {
    "torch": {"torch": "torch"},
    "jax": {"jax": "jax"},
    "hdf5": {"h5py": "h5py"},
    "safetensors": {"safetensors": "safetensors"},
    "cli": {"click": "click", "rich": "rich"},
    "view": {"starlette": "starlette", "uvicorn": "uvicorn", "plotly": "plotly"},
    "notebook": {"IPython": "ipython"},
    "fast": {"xxhash": "xxhash", "isal": "isal"},
}
_SECRET = {"THING_TOKEN", "THING_FINGERPRINT"}
_LITTLE = 1 << 30  # bytes that are free
_HELP = """What is installed, what is missing and the line that installs it, what is set, what is in the way.

\b
exit codes:
  0  nothing is in the way
  1  something is; its line begins with !"""


class Line(NamedTuple):
    """`is_wrong` is for what keeps tensortap from working; a missing extra does not."""

    topic: str
    name: str
    text: str
    is_wrong: bool = False


@click.command(help=_HELP)
@json_option
def command(as_json: bool) -> int:
    lines = [*_program(), *_extras(), *_kernels(), *_settings(), *_live(), *_disk()]
    code = DIFFERENT if any(line.is_wrong for line in lines) else OK
    if as_json:
        write_json("doctor", {"exit_code": code, "lines": [line._asdict() for line in lines]})
        return code
    wide = max(len(line.name) for line in lines)
    for line in lines:
        text = f"{'!' if line.is_wrong else ' '} {line.topic:<9} {line.name:<{wide}}  {line.text}"
        write(styled(text, "yellow") if line.is_wrong else text)
    return code


def _program() -> list[Line]:
    git = shutil.which("git")
    without = "not found: runs are written without the state of their code"
    return [
        Line("program", "tensortap", f"{tensortap.__version__} in {Path(tensortap.__file__).parent}"),
        Line("program", "python", f"{platform.python_version()} at {sys.executable}"),
        Line("program", "system", platform.platform()),
        Line("program", "numpy", _version("numpy") or "not installed", not _version("numpy")),
        Line("program", "git", git or without),
    ]


def _extras() -> list[Line]:
    return [_extra(name, packages) for name, packages in _EXTRAS.items()]


def _extra(extra: str, packages: dict[str, str]) -> Line:
    """By looking for them: importing torch to know its version would take seconds."""
    told = [f"{package} {_version(package)}" for name, package in packages.items() if _is_there(name)]
    missing = [package for name, package in packages.items() if not _is_there(name)]
    if missing:
        told.append(f"{' and '.join(missing)} missing: pip install 'tensortap[{extra}]'")
    return Line("extra", extra, ", ".join(told))


def _kernels() -> list[Line]:
    from tensortap.kernels import native

    return [Line("kernels", "compiled", "yes" if native.available else native.unavailable_reason)]


def _settings() -> list[Line]:
    """What is set; of a secret only that it is."""
    told = {name: os.environ[name] for name in DEFAULTS if os.environ.get(name)}
    lines = [
        Line("setting", name, "set" if name in _SECRET else value) for name, value in told.items() if value
    ]
    if not is_on():
        lines.append(
            Line("setting", "off", "TENSORTAP=0: every call returns at once, nothing is recorded", True)
        )
    if is_strict():
        lines.append(
            Line("setting", "strict", "failures in the background are raised, and may end the program")
        )
    return [*lines, *_zone()]


def _zone() -> list[Line]:
    try:
        return [Line("setting", "time zone", str(timestamp_zone(None)))]
    except ValueError as error:
        return [Line("setting", "time zone", str(error), True)]


def _live() -> list[Line]:
    left = stale_files()
    try:
        listening = jobs()
    except TensortapError as error:
        return [Line("live", "jobs", str(error), True)]
    names = ", ".join(dict.fromkeys(printable(job.name) for job in listening))
    told = f"{counted(len(listening), 'program')} listening{': ' if names else ''}{names}"
    lines = [Line("live", "jobs", told)]
    if left:
        lines.append(Line("live", "sockets", f"{counted(len(left), 'file')} of ended jobs, now removed"))
    return lines


def _disk() -> list[Line]:
    return [_space("here", Path.cwd()), _space("temporary", Path(os.environ.get("TMPDIR") or "/tmp"))]


def _space(name: str, folder: Path) -> Line:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return Line("disk", name, f"{folder}: {(error.strerror or str(error)).lower()}", True)
    return Line("disk", name, f"{size(free)} free in {folder}", free < _LITTLE)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ValueError, ImportError):  # None in sys.modules: kept from being imported
        return False
