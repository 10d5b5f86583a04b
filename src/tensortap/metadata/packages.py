"""List the installed distributions, and those the program has imported, with their origin."""

import hashlib
import json
import os
import platform
import re
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

from tensortap.metadata.redact import without_credentials

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
