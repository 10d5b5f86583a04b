"""Installed distributions of this and of other interpreters, their origin, and the package indexes."""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, distributions
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from tensortap.core.dtypes import ARRAY_LIBRARIES
from tensortap.core.launch_spec import environment_without_launch_spec
from tensortap.metadata.redaction import without_credentials

# Listed whenever they are installed, imported or not.
ALWAYS_LISTED = tuple(library.name for library in ARRAY_LIBRARIES if library.is_always_recorded)
_VENDORED = os.path.join("setuptools", "_vendor")
_FIELD = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_TOP_LEVEL = re.compile(r"^([^/,\n]+)[/,]", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """An installed distribution; files are read on demand."""

    name: str
    version: str
    source: Distribution

    @property
    def key(self) -> str:
        return normalise_name(self.name)

    @cached_property
    def origin(self) -> dict[str, Any]:
        """The content of direct_url.json (editable, VCS or archive); empty if installed from an index."""
        try:
            origin = json.loads(_read_file(self.source, "direct_url.json") or "{}")
        except ValueError:
            return {}
        if not isinstance(origin, dict) or not isinstance(origin.get("url"), str):
            return {}
        return origin | {"url": without_credentials(origin["url"])}

    @property
    def installer(self) -> str:
        return _read_file(self.source, "INSTALLER").strip()

    @property
    def is_editable(self) -> bool:
        return bool(self.origin.get("dir_info", {}).get("editable"))

    @property
    def root(self) -> str | None:
        """The source folder of an editable install."""
        parts = urlsplit(self.origin.get("url", ""))
        return url2pathname(unquote(parts.path)) if parts.scheme == "file" else None

    @cached_property
    def import_names(self) -> set[str]:
        """The top-level names of its modules."""
        names_listed = _read_file(self.source, "top_level.txt").split()
        if names_listed:
            return set(names_listed)
        names = _TOP_LEVEL.findall(_read_file(self.source, "RECORD"))
        return {name.partition(".")[0] for name in names} | {self.name.replace("-", "_")}

    @property
    def location(self) -> str:
        """The folder of the package, where it was imported from or else where it is installed."""
        for top in sorted(self.import_names, key=lambda top: normalise_name(top) != self.key):
            if (location := module_location(sys.modules.get(top))) is not None:
                return location
        folder = Path(str(self.source.locate_file(self.name.replace("-", "_"))))
        return str(folder if folder.exists() else self.source.locate_file(""))


def list_installed() -> list[Package]:
    """Every distribution once, sorted by name; the first on sys.path is the one imports find."""
    packages: dict[str, Package] = {}
    for package in map(_read_package, distributions(path=_installation_folders())):
        if package is not None:
            packages.setdefault(package.key, package)
    return [packages[key] for key in sorted(packages)]


def _installation_folders() -> list[str]:
    """sys.path without what setuptools, once imported, appends: copies of libraries for its own use."""
    return [folder for folder in sys.path if not str(folder).endswith(_VENDORED)]


def packages_info(packages: list[Package]) -> dict[str, Any]:
    """The content of packages.json."""
    return {
        "python_version": platform.python_version(),
        "platform": sys.platform,
        "all_packages": {package.name: package.version for package in packages},
        "packages": {
            package.name: {"version": package.version, "location": package.location}
            for package in imported_packages(packages)
        },
    }


def package_details(packages: Iterable[Package]) -> list[dict[str, Any]]:
    """Name, version, installer, location and origin of each package, for environment.json."""
    return [_package_facts(package) for package in packages]


def packages_digest(packages: Iterable[Package]) -> str:
    """The digest of all names and versions: equal for equal environments."""
    return versions_digest((package.key, package.version) for package in packages)


def versions_digest(versions: Iterable[tuple[str, str]]) -> str:
    """The digest of normalised names and versions."""
    lines = "\n".join(sorted(f"{name}=={version}" for name, version in versions))
    return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()


def imported_packages(packages: Iterable[Package]) -> Iterator[Package]:
    """The packages with a loaded module, and those always listed."""
    loaded = {name for name in sys.modules if "." not in name}
    for package in packages:
        if package.key in ALWAYS_LISTED or package.import_names & loaded or _is_loaded_from(package, loaded):
            yield package


def module_location(module: ModuleType | None) -> str | None:
    """The folder of a package, or the file of a single module."""
    paths = list(getattr(module, "__path__", None) or ())
    location = paths[0] if paths else getattr(module, "__file__", None)
    return str(location) if location else None


def normalise_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _read_package(source: Distribution) -> Package | None:
    # Reading two fields is ten times faster than parsing the file as e-mail, as `.metadata` does.
    text = _read_file(source, "METADATA") or _read_file(source, "PKG-INFO")
    fields = dict(reversed(_FIELD.findall(text.split("\n\n", 1)[0])))
    if "Name" not in fields:
        return None
    return Package(fields["Name"], fields.get("Version", ""), source)


def _read_file(source: Distribution, name: str) -> str:
    """A metadata file of the distribution; empty if it is missing or damaged."""
    try:
        return source.read_text(name) or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _is_loaded_from(package: Package, loaded: Iterable[str]) -> bool:
    if not package.is_editable or not package.root:
        return False
    folder = os.path.join(package.root, "")
    locations = (module_location(sys.modules.get(top)) for top in loaded)
    return any(
        location.startswith(folder) and "site-packages" not in location for location in locations if location
    )


def _package_facts(package: Package) -> dict[str, Any]:
    details: dict[str, Any] = {"name": package.name, "version": package.version}
    details["installer"] = package.installer
    details["location"] = str(package.source.locate_file(""))
    if package.origin:
        details["direct_url"] = package.origin
    return details


# Compatible with Python 3.8: it is run by whatever interpreter the program had.
_PROBE = """
import json, platform, sys
sys.path[:] = [path for path in sys.path if path]
from importlib.metadata import distributions
def read(package, name):
    try:
        return package.read_text(name) or ""
    except (OSError, ValueError):
        return ""
def describe(package):
    facts = {"name": package.metadata["Name"], "version": package.version}
    facts["installer"] = read(package, "INSTALLER").strip()
    location, direct_url = str(package.locate_file("")), read(package, "direct_url.json")
    return {**facts, "location": location, "direct_url": direct_url}
print(json.dumps({
    "python_version": platform.python_version(),
    "platform": sys.platform,
    "interpreter": {
        "implementation": platform.python_implementation(),
        "version": sys.version,
        "build": list(platform.python_build()),
        "compiler": platform.python_compiler(),
        "path": [str(path) for path in sys.path],
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
    },
    "packages": [describe(package) for package in distributions() if package.metadata["Name"]],
}))
"""
_QUERY_TIMEOUT = 60.0


def is_current_interpreter(python: str) -> bool:
    """Whether it is the interpreter of this process under any name; a link in another folder is not, because
    it has packages of its own."""
    current = os.path.abspath(sys.executable)
    is_beside = os.path.dirname(os.path.abspath(python)) == os.path.dirname(current)
    return is_beside and os.path.realpath(python) == os.path.realpath(current)


def query_interpreter(python: str, *, is_isolated: bool = False) -> dict[str, Any] | None:
    """Version and packages of another interpreter; None if it fails. `is_isolated` runs it with -I."""
    try:
        process = subprocess.run(
            [python, *(["-I"] if is_isolated else []), "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_QUERY_TIMEOUT,
            check=True,
            stdin=subprocess.DEVNULL,
            env=environment_without_launch_spec(),
        )
        facts: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return {**facts, "packages": _deduplicate(facts["packages"])}


def packages_info_of(facts: dict[str, Any]) -> dict[str, Any]:
    """The content of packages.json for another interpreter, whose imports are not known."""
    packages = facts["packages"]
    always = [package for package in packages if normalise_name(package["name"]) in ALWAYS_LISTED]
    return {
        "python_version": facts["python_version"],
        "platform": facts["platform"],
        "all_packages": {package["name"]: package["version"] for package in packages},
        "packages": {
            package["name"]: {
                "version": package["version"],
                "location": os.path.join(package["location"], package["name"]),
            }
            for package in always
        },
    }


def _deduplicate(distributions_listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each package once, sorted: the first on sys.path is the one imports find."""
    packages: dict[str, dict[str, Any]] = {}
    for package in distributions_listed:
        origin = _parse_origin(package.pop("direct_url"))
        packages.setdefault(
            normalise_name(package["name"]), {**package, **({"direct_url": origin} if origin else {})}
        )
    return [packages[key] for key in sorted(packages)]


def _parse_origin(text: str) -> dict[str, Any]:
    try:
        origin = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(origin, dict) or not isinstance(origin.get("url"), str):
        return {}
    return {**origin, "url": without_credentials(origin["url"])}


_INDEX_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "default-index", "index")
_INDEX_VARIABLES = tuple(
    f"{tool}_{option.upper().replace('-', '_')}" for tool in ("PIP", "UV") for option in _INDEX_OPTIONS
)


def package_indexes() -> dict[str, list[str]]:
    """URLs by option, from pip's configuration files and then from the environment."""
    urls_by_option: dict[str, list[str]] = {}
    for option, value in [*_indexes_from_files(), *_indexes_from_variables()]:
        urls = urls_by_option.setdefault(option, [])
        urls += [url for url in map(without_credentials, value.split()) if url not in urls]
    return urls_by_option


def _indexes_from_variables() -> Iterator[tuple[str, str]]:
    for name in _INDEX_VARIABLES:
        if os.environ.get(name):
            yield name.partition("_")[2].lower().replace("_", "-"), os.environ[name]


def _indexes_from_files() -> Iterator[tuple[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read([path for path in _pip_config_files() if path != os.devnull], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return
    for section in ("global", "install"):
        for option in _INDEX_OPTIONS:
            if parser.has_option(section, option):
                yield option, parser.get(section, option)


def _pip_config_files() -> list[str]:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    user_files = [str(home / "pip" / "pip.conf"), os.path.expanduser("~/.pip/pip.conf")]
    paths = ["/etc/pip.conf", *user_files, os.path.join(sys.prefix, "pip.conf")]
    return [*paths, os.environ.get("PIP_CONFIG_FILE") or os.devnull]
