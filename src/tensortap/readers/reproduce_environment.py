"""The packages of a run: whether an interpreter here has the same, or a fresh environment that gets them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.metadata import another
from tensortap.metadata.packages import installed, normalised
from tensortap.readers.reproduce_recorded import Lack, LackingError, Recorded

OWN_PACKAGE = "tensortap"  # the recorder of the new run is the present one
RECORDER = Path(__file__).parents[1]
_NOT_FOUND = re.compile(r"No matching distribution found for (\S+)")
_OTHERS = re.compile(r"satisfies the requirement (\S+) \(from versions: ([^)]*)\)")
_MOST_RETRIES = 30
Versions = dict[str, str]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python and what it has."""

    python: str
    version: str
    packages: Versions


@dataclass(frozen=True, slots=True)
class Differences:
    """How a set of packages differs from the recorded one."""

    missing: Versions = field(default_factory=dict)
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    extra: Versions = field(default_factory=dict)
    python: tuple[str, str] | None = None

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.extra or self.python)

    def words(self, most: int = 6) -> str:
        python = [f"Python {self.python[0]} -> {self.python[1]}"] if self.python else []
        changed = [f"{name} {was} -> {now}" for name, (was, now) in self.changed.items()]
        missing = [f"{name}=={version} is missing" for name, version in self.missing.items()]
        extra = [f"{name}=={version} was not there" for name, version in self.extra.items()]
        every = [*python, *changed, *missing, *extra]
        more = f" and {len(every) - most} more" if len(every) > most else ""
        return ", ".join(every[:most]) + more


def present() -> Interpreter:
    """The interpreter that runs this, without starting another."""
    packages = {package.name: package.version for package in installed()}
    return Interpreter(sys.executable, sys.version.split()[0], packages)


def ask(python: str) -> Interpreter | None:
    """What another interpreter has; None when it does not answer."""
    told = another.ask(python, alone=True)
    if told is None:
        return None
    packages = {one["name"]: one["version"] for one in told["packages"]}
    return Interpreter(python, told["python_version"], packages)


def differences(recorded: Recorded, found: Interpreter) -> Differences:
    """By name and version, the recorder itself aside."""
    wanted = {normalised(one["name"]): str(one.get("version", "")) for one in recorded.distributions}
    has = {normalised(name): version for name, version in found.packages.items()}
    for versions in (wanted, has):
        versions.pop(OWN_PACKAGE, None)
    return Differences(
        {name: version for name, version in wanted.items() if name not in has},
        {n: (version, has[n]) for n, version in wanted.items() if n in has and has[n] != version},
        {name: version for name, version in has.items() if name not in wanted},
        (recorded.python_version, found.version) if recorded.python_version != found.version else None,
    )


def requirements(recorded: Recorded, editable: dict[str, str]) -> list[str]:
    """A line for each package, exact; `editable` names where those of working folders are now."""
    lines = []
    for one in recorded.distributions:
        if normalised(one["name"]) != OWN_PACKAGE:
            lines.append(_requirement(one, editable.get(one["name"])))
    return sorted(lines, key=str.lower)


def _requirement(one: dict[str, Any], folder: str | None) -> str:
    told = one.get("direct_url")
    origin: dict[str, Any] = told if isinstance(told, dict) else {}
    control, place = origin.get("vcs_info"), origin.get("dir_info")
    url = "".join(str(origin.get("url", "")).split())  # one word: anything else would be an option to pip
    if folder:
        return f"-e {folder}"
    if isinstance(control, dict):
        commit = re.sub(r"\W", "", str(control.get("commit_id", "")))
        return f"{one['name']} @ git+{url}@{commit}" if control.get("vcs") == "git" else _exact(one)
    if isinstance(place, dict) and place.get("editable"):
        return f"-e {url.removeprefix('file://')}"
    if url.startswith(("http://", "https://")):
        return f"{one['name']} @ {url}"
    return _exact(one)  # a file of this machine is had by its version, wherever the index is now


def _exact(one: dict[str, Any]) -> str:
    return f"{one['name']}=={one.get('version', '')}"


def make_environment(
    recorded: Recorded, into: Path, editable: dict[str, str], tell: Callable[[str], None]
) -> str:
    """A fresh environment below `into` with exactly the recorded packages; the path of its Python."""
    folder = into / "env"
    wanted = requirements(recorded, editable)
    listed = into / "requirements.txt"
    listed.write_text("".join(f"{line}\n" for line in wanted), encoding="utf-8")
    python = _create(recorded.python_version, folder)
    tell(f"environment: {folder}, packages to install: {len(wanted)}")
    if wanted and not _by_uv(python, listed):
        _by_pip(python, wanted, listed, recorded)
    _add_recorder(folder)
    found = ask(python)
    apart = differences(recorded, found) if found is not None else None
    if found is None or apart is None or apart.missing or apart.changed or apart.extra:
        told = apart.words() if apart is not None else "its Python does not answer"
        raise LackingError(Lack(f"the recorded packages in {folder}", f"after installing them: {told}"))
    return python


def _create(version: str, folder: Path) -> str:
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    if uv and _runs([uv, "venv", "--quiet", "--python", version, str(folder)]) == "":
        return python
    shutil.rmtree(folder, ignore_errors=True)
    base = find_python(version)
    if base is None:
        raise LackingError(python_lack(version))
    failure = _runs([base, "-m", "venv", "--without-pip", str(folder)])
    if failure:
        raise LackingError(Lack(f"an environment in {folder}", failure))
    return python


def find_python(version: str) -> str | None:
    """An interpreter of that version: the same minor version counts, and the difference is told."""
    minor = ".".join(version.split(".")[:2])
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    return shutil.which(f"python{minor}")


def python_lack(version: str) -> Lack:
    return Lack(f"Python {version}", f"uv python install {version}, or put a python{version} on PATH")


def _by_uv(python: str, listed: Path) -> bool:
    uv = shutil.which("uv")
    command = ["pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(listed)]
    return uv is not None and _runs([uv, *command]) == ""


def _by_pip(python: str, wanted: list[str], listed: Path, recorded: Recorded) -> None:
    """All at once; pip stops at the first it cannot have, so that one is noted and the rest tried again."""
    lacks: list[Lack] = []
    for _ in range(_MOST_RETRIES):
        failure = _runs([*_pip(python), "--no-deps", "-r", str(listed)])
        absent = _NOT_FOUND.search(failure)
        if not failure or absent is None or absent[1] not in wanted:
            break
        lacks.append(_package_lack(absent[1], failure, recorded))
        wanted.remove(absent[1])
        listed.write_text("".join(f"{line}\n" for line in wanted), encoding="utf-8")
        # Enough to know what else is missing; installing what can be had would only take time.
    if lacks:
        raise LackingError(*lacks)
    if failure:
        raise LackingError(Lack("the recorded packages", f"pip says: {_last_line(failure)}"))


def _pip(python: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--no-input"),
        *("install", "--quiet", "--no-warn-script-location"),
    ]


def _package_lack(wanted: str, failure: str, recorded: Recorded) -> Lack:
    others = dict(_OTHERS.findall(failure)).get(wanted, "")
    known = [version for version in others.split(", ") if version and version != "none"]
    near = f"the nearest there is {nearest_version(wanted, known)}" if known else "it has no version of it"
    indexes = recorded.environment.get("indexes")
    places = sorted({url for urls in indexes.values() for url in urls}) if isinstance(indexes, dict) else []
    asked = f"; the run had {', '.join(places)}" if places else ""
    return Lack(
        wanted,
        f"no file in the configured index; {near}{asked}; set PIP_EXTRA_INDEX_URL, or --env current",
    )


def nearest_version(wanted: str, known: list[str]) -> str:
    """The one that shares the longest beginning with the wanted; the later one of two."""
    version = wanted.partition("==")[2]
    return max(reversed(known), key=lambda one: _alike(one, version))


def _alike(one: str, other: str) -> int:
    return next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _add_recorder(folder: Path) -> None:
    """Let the new environment import the present tensortap, and nothing else from here."""
    recorder = folder / "recorder"
    recorder.mkdir()
    (recorder / RECORDER.name).symlink_to(RECORDER)
    for place in folder.glob("lib/python*/site-packages"):
        (place / "tensortap-recorder.pth").write_text(f"{recorder}\n", encoding="utf-8")


def _runs(command: list[str]) -> str:
    """Nothing when it worked, else what it said."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except OSError as error:
        return str(error)
    return (done.stderr or done.stdout or f"exit code {done.returncode}") if done.returncode else ""


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
