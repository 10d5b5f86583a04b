"""What a Python that is not this one has installed: asked of it, by a few lines that need nothing of ours."""

import json
import os
import subprocess
import sys
from typing import Any

from tensortap.core.launch_spec import environment_without_launch_spec
from tensortap.metadata.packages import ALWAYS, normalised
from tensortap.metadata.redact import without_credentials

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
    return {**told, "packages": _details(told["packages"])}


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


def _details(listed: list[dict[str, Any]]) -> list[dict[str, Any]]:
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
