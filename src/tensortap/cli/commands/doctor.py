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
    format_count,
    json_option,
    printable,
    size,
    style_text,
    write,
    write_json,
)
from tensortap.core.dtypes import OPTIONAL_ARRAY_LIBRARIES
from tensortap.core.errors import TensortapError
from tensortap.core.settings import DEFAULTS, is_on, is_strict
from tensortap.live.discovery import jobs, stale_files
from tensortap.metadata.process import timestamp_zone

# The packages of each extra: import name to name in the package index.
_EXTRAS = {
    **{library: {library: library} for library in OPTIONAL_ARRAY_LIBRARIES},
    "hdf5": {"h5py": "h5py"},
    "safetensors": {"safetensors": "safetensors"},
    "cli": {"click": "click", "rich": "rich"},
    "view": {"starlette": "starlette", "uvicorn": "uvicorn", "plotly": "plotly"},
    "notebook": {"IPython": "ipython"},
    "fast": {"xxhash": "xxhash", "isal": "isal"},
}
_SECRET_SETTINGS = {"THING_TOKEN", "THING_FINGERPRINT"}
_MIN_FREE_BYTES = 1 << 30  # bytes that are free
_HELP = """What is installed, what is missing and the line that installs it, what is set, what is in the way.

\b
exit codes:
  0  nothing is in the way
  1  something is; its line begins with !"""


class DoctorLine(NamedTuple):
    """`is_wrong` marks what keeps tensortap from working; a missing extra does not."""

    topic: str
    name: str
    text: str
    is_wrong: bool = False


@click.command(help=_HELP)
@json_option
def command(as_json: bool) -> int:
    lines = [
        *_program_lines(),
        *_extra_lines(),
        *_kernel_lines(),
        *_setting_lines(),
        *_live_lines(),
        *_disk_lines(),
    ]
    code = DIFFERENT if any(line.is_wrong for line in lines) else OK
    if as_json:
        write_json("doctor", {"exit_code": code, "lines": [line._asdict() for line in lines]})
        return code
    name_width = max(len(line.name) for line in lines)
    for line in lines:
        text = f"{'!' if line.is_wrong else ' '} {line.topic:<9} {line.name:<{name_width}}  {line.text}"
        write(style_text(text, "yellow") if line.is_wrong else text)
    return code


def _program_lines() -> list[DoctorLine]:
    git = shutil.which("git")
    no_git = "not found: runs are written without the state of their code"
    return [
        DoctorLine("program", "tensortap", f"{tensortap.__version__} in {Path(tensortap.__file__).parent}"),
        DoctorLine("program", "python", f"{platform.python_version()} at {sys.executable}"),
        DoctorLine("program", "system", platform.platform()),
        DoctorLine("program", "numpy", _version("numpy") or "not installed", not _version("numpy")),
        DoctorLine("program", "git", git or no_git),
    ]


def _extra_lines() -> list[DoctorLine]:
    return [_extra_line(name, packages) for name, packages in _EXTRAS.items()]


def _extra_line(extra: str, packages: dict[str, str]) -> DoctorLine:
    """Found by their specs: importing torch to get its version would take seconds."""
    descriptions = [
        f"{package} {_version(package)}" for name, package in packages.items() if _is_installed(name)
    ]
    missing = [package for name, package in packages.items() if not _is_installed(name)]
    if missing:
        descriptions.append(f"{' and '.join(missing)} missing: pip install 'tensortap[{extra}]'")
    return DoctorLine("extra", extra, ", ".join(descriptions))


def _kernel_lines() -> list[DoctorLine]:
    from tensortap.kernels import native

    return [DoctorLine("kernels", "compiled", "yes" if native.available else native.unavailable_reason)]


def _setting_lines() -> list[DoctorLine]:
    """The settings; the values of secrets are not shown."""
    values = {name: os.environ[name] for name in DEFAULTS if os.environ.get(name)}
    lines = [
        DoctorLine("setting", name, "set" if name in _SECRET_SETTINGS else value)
        for name, value in values.items()
        if value
    ]
    if not is_on():
        lines.append(
            DoctorLine("setting", "off", "TENSORTAP=0: every call returns at once, nothing is recorded", True)
        )
    if is_strict():
        lines.append(
            DoctorLine("setting", "strict", "failures in the background are raised, and may end the program")
        )
    return [*lines, *_time_zone_line()]


def _time_zone_line() -> list[DoctorLine]:
    try:
        return [DoctorLine("setting", "time zone", str(timestamp_zone(None)))]
    except ValueError as error:
        return [DoctorLine("setting", "time zone", str(error), True)]


def _live_lines() -> list[DoctorLine]:
    stale = stale_files()
    try:
        listening = jobs()
    except TensortapError as error:
        return [DoctorLine("live", "jobs", str(error), True)]
    names = ", ".join(dict.fromkeys(printable(job.name) for job in listening))
    description = f"{format_count(len(listening), 'program')} listening{': ' if names else ''}{names}"
    lines = [DoctorLine("live", "jobs", description)]
    if stale:
        lines.append(
            DoctorLine("live", "sockets", f"{format_count(len(stale), 'file')} of ended jobs, now removed")
        )
    return lines


def _disk_lines() -> list[DoctorLine]:
    return [_disk_line("here", Path.cwd()), _disk_line("temporary", Path(os.environ.get("TMPDIR") or "/tmp"))]


def _disk_line(name: str, folder: Path) -> DoctorLine:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        return DoctorLine("disk", name, f"{folder}: {(error.strerror or str(error)).lower()}", True)
    return DoctorLine("disk", name, f"{size(free)} free in {folder}", free < _MIN_FREE_BYTES)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ValueError, ImportError):  # None in sys.modules blocks an import
        return False
