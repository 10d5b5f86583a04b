"""Installed distributions.

List the installed distributions, and those the program has imported, with their origin.

What a Python that is not this one has installed: asked of it, by a few lines that need nothing of ours.

Where packages are had from: the indexes that pip and uv are configured with, without credentials.
"""

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

from tensortap.core.launch_spec import environment_without_launch_spec
from tensortap.metadata.redaction import without_credentials

# Listed whenever they are installed, imported or not.
ALWAYS = ("torch", "numpy")
_FIELD = re.compile(r"^(Name|Version):[ \t]*(.*?)[ \t]*$", re.MULTILINE)
_TOP = re.compile(r"^([^/,\n]+)[/,]", re.MULTILINE)


@dataclass(frozen=True)
class Package:
    """One installed distribution; what costs a read is read when asked."""

    name: str
    version: str
    source: Distribution

    @property
    def key(self) -> str:
        return normalised(self.name)

    @cached_property
    def origin(self) -> dict[str, Any]:
        """What direct_url.json says: editable, version control or archive; empty for an index."""
        try:
            origin = json.loads(_read(self.source, "direct_url.json") or "{}")
        except ValueError:
            return {}
        if not isinstance(origin, dict) or not isinstance(origin.get("url"), str):
            return {}
        return origin | {"url": without_credentials(origin["url"])}

    @property
    def installer(self) -> str:
        return _read(self.source, "INSTALLER").strip()

    @property
    def is_editable(self) -> bool:
        return bool(self.origin.get("dir_info", {}).get("editable"))

    @property
    def root(self) -> str | None:
        """The source folder of an editable install."""
        parts = urlsplit(self.origin.get("url", ""))
        return url2pathname(unquote(parts.path)) if parts.scheme == "file" else None

    @cached_property
    def tops(self) -> set[str]:
        """The names under which its modules are imported."""
        listed = _read(self.source, "top_level.txt").split()
        if listed:
            return set(listed)
        names = _TOP.findall(_read(self.source, "RECORD"))
        return {name.partition(".")[0] for name in names} | {self.name.replace("-", "_")}

    @property
    def location(self) -> str:
        """The folder of the package, where it was imported from or else where it is installed."""
        for top in sorted(self.tops, key=lambda top: normalised(top) != self.key):
            if (found := module_location(sys.modules.get(top))) is not None:
                return found
        folder = Path(str(self.source.locate_file(self.name.replace("-", "_"))))
        return str(folder if folder.exists() else self.source.locate_file(""))


def installed() -> list[Package]:
    """Every distribution once, sorted by name; the first on sys.path is the one imports find."""
    found: dict[str, Package] = {}
    for package in map(_package, distributions()):
        if package is not None:
            found.setdefault(package.key, package)
    return [found[key] for key in sorted(found)]


def packages_info(packages: list[Package]) -> dict[str, Any]:
    """The content of packages.json."""
    return {
        "python_version": platform.python_version(),
        "platform": sys.platform,
        "all_packages": {package.name: package.version for package in packages},
        "packages": {
            package.name: {"version": package.version, "location": package.location}
            for package in imported(packages)
        },
    }


def package_details(packages: Iterable[Package]) -> list[dict[str, Any]]:
    """Name, version, installer, place and origin of each, for environment.json."""
    return [_details(package) for package in packages]


def package_set(packages: Iterable[Package]) -> str:
    """The digest of all names and versions: equal for equal environments."""
    return versions_digest((package.key, package.version) for package in packages)


def versions_digest(versions: Iterable[tuple[str, str]]) -> str:
    """Of names as `normalised` gives them, and their versions."""
    lines = "\n".join(sorted(f"{name}=={version}" for name, version in versions))
    return hashlib.blake2b(lines.encode(), digest_size=16).hexdigest()


def imported(packages: Iterable[Package]) -> Iterator[Package]:
    """The packages of which a module is loaded, and those always listed."""
    loaded = {name for name in sys.modules if "." not in name}
    for package in packages:
        if package.key in ALWAYS or package.tops & loaded or _is_loaded_from(package, loaded):
            yield package


def module_location(module: ModuleType | None) -> str | None:
    """The folder of a package, or the file of a single module."""
    paths = list(getattr(module, "__path__", None) or ())
    place = paths[0] if paths else getattr(module, "__file__", None)
    return str(place) if place else None


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _package(source: Distribution) -> Package | None:
    # Reading two lines is ten times faster than parsing the whole file as mail, which `.metadata` does.
    text = _read(source, "METADATA") or _read(source, "PKG-INFO")
    fields = dict(reversed(_FIELD.findall(text.split("\n\n", 1)[0])))
    if "Name" not in fields:
        return None
    return Package(fields["Name"], fields.get("Version", ""), source)


def _read(source: Distribution, name: str) -> str:
    """A file of the distribution's own facts; nothing when it is missing or damaged."""
    try:
        return source.read_text(name) or ""
    except (OSError, UnicodeDecodeError):
        return ""


def _is_loaded_from(package: Package, loaded: Iterable[str]) -> bool:
    if not package.is_editable or not package.root:
        return False
    folder = os.path.join(package.root, "")
    places = (module_location(sys.modules.get(top)) for top in loaded)
    return any(place.startswith(folder) and "site-packages" not in place for place in places if place)


def _details(package: Package) -> dict[str, Any]:
    details: dict[str, Any] = {"name": package.name, "version": package.version}
    details["installer"] = package.installer
    details["location"] = str(package.source.locate_file(""))
    if package.origin:
        details["direct_url"] = package.origin
    return details


# As old as Python 3.8: it is read by whatever interpreter the program had.
_PROBE = """
import json, platform, sys
sys.path[:] = [one for one in sys.path if one]
from importlib.metadata import distributions
def read(one, name):
    try:
        return one.read_text(name) or ""
    except Exception:
        return ""
def told(one):
    facts = {"name": one.metadata["Name"], "version": one.version}
    facts["installer"] = read(one, "INSTALLER").strip()
    return {**facts, "location": str(one.locate_file("")), "direct_url": read(one, "direct_url.json")}
print(json.dumps({
    "python_version": platform.python_version(),
    "platform": sys.platform,
    "interpreter": {
        "implementation": platform.python_implementation(),
        "version": sys.version,
        "build": list(platform.python_build()),
        "compiler": platform.python_compiler(),
        "path": [str(one) for one in sys.path],
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
    },
    "packages": [told(one) for one in distributions() if one.metadata["Name"]],
}))
"""
_PATIENCE = 60.0


def is_this(python: str) -> bool:
    """Whether it is the interpreter of this process, by whatever name; a link in another folder is not,
    because it has packages of its own."""
    here = os.path.abspath(sys.executable)
    is_beside = os.path.dirname(os.path.abspath(python)) == os.path.dirname(here)
    return is_beside and os.path.realpath(python) == os.path.realpath(here)


def ask(python: str, *, alone: bool = False) -> dict[str, Any] | None:
    """Version and packages of it; None when it does not answer. `alone`: without what variables add to it."""
    try:
        done = subprocess.run(
            [python, *(["-I"] if alone else []), "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
            check=True,
            stdin=subprocess.DEVNULL,
            env=environment_without_launch_spec(),
        )
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    return {**told, "packages": _details_another(told["packages"])}


def packages_of(told: dict[str, Any]) -> dict[str, Any]:
    """As packages.json has them; of what was imported nothing is known but what is listed always."""
    found = told["packages"]
    always = [one for one in found if normalised(one["name"]) in ALWAYS]
    return {
        "python_version": told["python_version"],
        "platform": told["platform"],
        "all_packages": {one["name"]: one["version"] for one in found},
        "packages": {
            one["name"]: {"version": one["version"], "location": os.path.join(one["location"], one["name"])}
            for one in always
        },
    }


def _details_another(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each once, sorted: the first on the path is the one imports find."""
    found: dict[str, dict[str, Any]] = {}
    for one in listed:
        origin = _origin(one.pop("direct_url"))
        found.setdefault(normalised(one["name"]), {**one, **({"direct_url": origin} if origin else {})})
    return [found[key] for key in sorted(found)]


def _origin(text: str) -> dict[str, Any]:
    try:
        origin = json.loads(text or "{}")
    except ValueError:
        return {}
    if not isinstance(origin, dict) or not isinstance(origin.get("url"), str):
        return {}
    return {**origin, "url": without_credentials(origin["url"])}


_OPTIONS = ("index-url", "extra-index-url", "find-links", "no-index", "default-index", "index")
_VARIABLES = tuple(
    f"{tool}_{option.upper().replace('-', '_')}" for tool in ("PIP", "UV") for option in _OPTIONS
)


def indexes() -> dict[str, list[str]]:
    """The addresses of each option, from pip's files and then from the environment."""
    found: dict[str, list[str]] = {}
    for option, addresses in [*_from_files(), *_from_variables()]:
        known = found.setdefault(option, [])
        known += [address for address in map(without_credentials, addresses.split()) if address not in known]
    return found


def _from_variables() -> Iterator[tuple[str, str]]:
    for name in _VARIABLES:
        if os.environ.get(name):
            yield name.partition("_")[2].lower().replace("_", "-"), os.environ[name]


def _from_files() -> Iterator[tuple[str, str]]:
    parser = configparser.RawConfigParser()
    try:
        parser.read([path for path in _files() if path != os.devnull], encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError):
        return
    for section in ("global", "install"):
        for option in _OPTIONS:
            if parser.has_option(section, option):
                yield option, parser.get(section, option)


def _files() -> list[str]:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    own = [str(home / "pip" / "pip.conf"), os.path.expanduser("~/.pip/pip.conf")]
    every = ["/etc/pip.conf", *own, os.path.join(sys.prefix, "pip.conf")]
    return [*every, os.environ.get("PIP_CONFIG_FILE") or os.devnull]
