"""The packages of a run: compare those of an interpreter, or install them into a new environment."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensortap.metadata import packages as package_facts
from tensortap.metadata.packages import list_installed, normalise_name
from tensortap.reproduce.recorded import MissingRequirement, MissingRequirementError, RecordedRun

OWN_PACKAGE = "tensortap"  # the new run is recorded by the current version
RECORDER = Path(__file__).parents[1]
_NO_DISTRIBUTION = re.compile(r"No matching distribution found for (\S+)")
_OTHER_VERSIONS = re.compile(r"satisfies the requirement (\S+) \(from versions: ([^)]*)\)")
_MAX_RETRIES = 30
Versions = dict[str, str]


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python executable, its version and packages."""

    python: str
    version: str
    packages: Versions


@dataclass(frozen=True, slots=True)
class PackageDifferences:
    """How a set of packages differs from the recorded one."""

    missing: Versions = field(default_factory=dict)
    changed: dict[str, tuple[str, str]] = field(default_factory=dict)
    extra: Versions = field(default_factory=dict)
    python: tuple[str, str] | None = None

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.extra or self.python)

    def words(self, limit: int = 6) -> str:
        python = [f"Python {self.python[0]} -> {self.python[1]}"] if self.python else []
        changed = [f"{name} {was} -> {now}" for name, (was, now) in self.changed.items()]
        missing = [f"{name}=={version} is missing" for name, version in self.missing.items()]
        extra = [f"{name}=={version} was not there" for name, version in self.extra.items()]
        all_differences = [*python, *changed, *missing, *extra]
        more = f" and {len(all_differences) - limit} more" if len(all_differences) > limit else ""
        return ", ".join(all_differences[:limit]) + more


def current_interpreter() -> Interpreter:
    """The running interpreter, without a subprocess."""
    packages = {package.name: package.version for package in list_installed()}
    return Interpreter(sys.executable, sys.version.split()[0], packages)


def query_interpreter(python: str) -> Interpreter | None:
    """Another interpreter's version and packages; None when it does not answer."""
    facts = package_facts.query_interpreter(python, is_isolated=True)
    if facts is None:
        return None
    packages = {package["name"]: package["version"] for package in facts["packages"]}
    return Interpreter(python, facts["python_version"], packages)


def compare_packages(recorded: RecordedRun, interpreter: Interpreter) -> PackageDifferences:
    """How the packages of an interpreter differ from the recorded ones, except for tensortap itself."""
    expected = {
        normalise_name(package["name"]): str(package.get("version", "")) for package in recorded.distributions
    }
    actual = {normalise_name(name): version for name, version in interpreter.packages.items()}
    for versions in (expected, actual):
        versions.pop(OWN_PACKAGE, None)
    return PackageDifferences(
        {name: version for name, version in expected.items() if name not in actual},
        {
            name: (version, actual[name])
            for name, version in expected.items()
            if name in actual and actual[name] != version
        },
        {name: version for name, version in actual.items() if name not in expected},
        (recorded.python_version, interpreter.version)
        if recorded.python_version != interpreter.version
        else None,
    )


def pip_requirements(recorded: RecordedRun, editable: dict[str, str]) -> list[str]:
    """A requirement line per package, with exact versions; `editable` maps packages to restored folders."""
    lines = []
    for package in recorded.distributions:
        if normalise_name(package["name"]) != OWN_PACKAGE:
            lines.append(_requirement(package, editable.get(package["name"])))
    return sorted(lines, key=str.lower)


def _requirement(package: dict[str, Any], folder: str | None) -> str:
    direct_url = package.get("direct_url")
    origin: dict[str, Any] = direct_url if isinstance(direct_url, dict) else {}
    vcs_info, dir_info = origin.get("vcs_info"), origin.get("dir_info")
    url = "".join(
        str(origin.get("url", "")).split()
    )  # without spaces: anything else could be an option to pip
    if folder:
        return f"-e {folder}"
    if isinstance(vcs_info, dict):
        commit = re.sub(r"\W", "", str(vcs_info.get("commit_id", "")))
        return (
            f"{package['name']} @ git+{url}@{commit}"
            if vcs_info.get("vcs") == "git"
            else _exact_version(package)
        )
    if isinstance(dir_info, dict) and dir_info.get("editable"):
        return f"-e {url.removeprefix('file://')}"
    if url.startswith(("http://", "https://")):
        return f"{package['name']} @ {url}"
    return _exact_version(package)  # a local file is taken by its version from the index


def _exact_version(package: dict[str, Any]) -> str:
    return f"{package['name']}=={package.get('version', '')}"


def make_environment(
    recorded: RecordedRun, into: Path, editable: dict[str, str], notify: Callable[[str], None]
) -> str:
    """Create an environment below `into` with exactly the recorded packages; return its Python."""
    folder = into / "env"
    requirements = pip_requirements(recorded, editable)
    requirements_file = into / "requirements.txt"
    requirements_file.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    python = _create_venv(recorded.python_version, folder)
    notify(f"environment: {folder}, packages to install: {len(requirements)}")
    if requirements and not _install_with_uv(python, requirements_file):
        _install_with_pip(python, requirements, requirements_file, recorded)
    _add_recorder(folder)
    interpreter = query_interpreter(python)
    differences = compare_packages(recorded, interpreter) if interpreter is not None else None
    if (
        interpreter is None
        or differences is None
        or differences.missing
        or differences.changed
        or differences.extra
    ):
        reason = differences.words() if differences is not None else "its Python does not answer"
        raise MissingRequirementError(
            MissingRequirement(f"the recorded packages in {folder}", f"after installing them: {reason}")
        )
    return python


def _create_venv(version: str, folder: Path) -> str:
    python = str(folder / "bin" / "python")
    uv = shutil.which("uv")
    if uv and _run_for_error([uv, "venv", "--quiet", "--python", version, str(folder)]) == "":
        return python
    shutil.rmtree(folder, ignore_errors=True)
    base = find_python(version)
    if base is None:
        raise MissingRequirementError(missing_python(version))
    failure = _run_for_error([base, "-m", "venv", "--without-pip", str(folder)])
    if failure:
        raise MissingRequirementError(MissingRequirement(f"an environment in {folder}", failure))
    return python


def find_python(version: str) -> str | None:
    """An interpreter of the same minor version; a different micro version is reported elsewhere."""
    minor = ".".join(version.split(".")[:2])
    if minor == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    return shutil.which(f"python{minor}")


def missing_python(version: str) -> MissingRequirement:
    return MissingRequirement(
        f"Python {version}", f"uv python install {version}, or put a python{version} on PATH"
    )


def _install_with_uv(python: str, requirements_file: Path) -> bool:
    uv = shutil.which("uv")
    command = ["pip", "install", "--quiet", "--no-deps", "--python", python, "-r", str(requirements_file)]
    return uv is not None and _run_for_error([uv, *command]) == ""


def _install_with_pip(
    python: str, requirements: list[str], requirements_file: Path, recorded: RecordedRun
) -> None:
    """Install all at once; pip stops at the first it cannot find, so note that one and retry the rest."""
    missing: list[MissingRequirement] = []
    for _ in range(_MAX_RETRIES):
        failure = _run_for_error([*_pip_install_command(python), "--no-deps", "-r", str(requirements_file)])
        absent = _NO_DISTRIBUTION.search(failure)
        if not failure or absent is None or absent[1] not in requirements:
            break
        missing.append(_missing_package(absent[1], failure, recorded))
        requirements.remove(absent[1])
        requirements_file.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
        # Only to learn what else is missing; the reproduction fails anyway.
    if missing:
        raise MissingRequirementError(*missing)
    if failure:
        raise MissingRequirementError(
            MissingRequirement("the recorded packages", f"pip says: {_last_line(failure)}")
        )


def _pip_install_command(python: str) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "--no-input"),
        *("install", "--quiet", "--no-warn-script-location"),
    ]


def _missing_package(requirement: str, failure: str, recorded: RecordedRun) -> MissingRequirement:
    versions = dict(_OTHER_VERSIONS.findall(failure)).get(requirement, "")
    known = [version for version in versions.split(", ") if version and version != "none"]
    near = (
        f"the nearest there is {nearest_version(requirement, known)}" if known else "it has no version of it"
    )
    indexes = recorded.environment.get("indexes")
    index_urls = (
        sorted({url for urls in indexes.values() for url in urls}) if isinstance(indexes, dict) else []
    )
    recorded_indexes = f"; the run had {', '.join(index_urls)}" if index_urls else ""
    return MissingRequirement(
        requirement,
        f"no file in the configured index; {near}{recorded_indexes}; "
        "set PIP_EXTRA_INDEX_URL, or --env current",
    )


def nearest_version(requirement: str, known: list[str]) -> str:
    """The version with the longest common prefix; the later one of a tie."""
    version = requirement.partition("==")[2]
    return max(reversed(known), key=lambda candidate: _common_prefix_length(candidate, version))


def _common_prefix_length(a: str, b: str) -> int:
    pairs = enumerate(zip(a, b, strict=False))
    return next((i for i, (x, y) in pairs if x != y), min(len(a), len(b)))


def _add_recorder(folder: Path) -> None:
    """Make the current tensortap importable in the new environment, and nothing else from here."""
    recorder = folder / "recorder"
    recorder.mkdir()
    (recorder / RECORDER.name).symlink_to(RECORDER)
    for site_packages in folder.glob("lib/python*/site-packages"):
        (site_packages / "tensortap-recorder.pth").write_text(f"{recorder}\n", encoding="utf-8")


def _run_for_error(command: list[str]) -> str:
    """Run a command; return an empty string if it succeeded, else its output."""
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        return str(error)
    return (
        (process.stderr or process.stdout or f"exit code {process.returncode}") if process.returncode else ""
    )


def _last_line(text: str) -> str:
    return next((line for line in reversed(text.splitlines()) if line.strip()), "nothing")
