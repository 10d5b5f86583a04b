"""Where packages are had from: the indexes that pip and uv are configured with, without credentials."""

import configparser
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tensortap.metadata.redact import without_credentials

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
