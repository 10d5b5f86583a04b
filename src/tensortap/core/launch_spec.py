"""What `tensortap run` passes to the programs it starts, in one environment variable."""

from __future__ import annotations

import json
import os
from typing import Any, NamedTuple

VARIABLE = "TENSORTAP_RUN"
REACHED_MARKER, NO_TENSORTAP_MARKER = (
    "arrived",
    "absent",
)  # marker files: a Python was reached; one had no tensortap


class LaunchSpec(NamedTuple):
    """Plain, JSON-serializable fields only; `notes` is the folder that processes write marker files to."""

    run: str
    notes: str
    startup: str  # the folder prepended to PYTHONPATH
    patterns: tuple[str, ...] = ()
    every: int = 1
    first: int | None = None
    keep: str = "values"
    when: tuple[str, ...] = ()
    live: str = ""  # the name under which sessions find the program
    folder: str = ""  # working directory of the command
    here: str = ""  # working directory of this process at its start
    is_inner: bool = False  # inherited from a Python process that has it already

    @property
    def observes_models(self) -> bool:
        """Whether models are observed beyond finding the first one."""
        return bool(self.patterns or self.live)

    def write_marker(self, name: str, content: str = "") -> bool:
        """Create a marker file; False if it exists already, or if the folder is gone."""
        try:
            with open(os.path.join(self.notes, name), "x", encoding="utf-8", errors="replace") as file:
                file.write(content)
        except OSError:
            return False
        return True

    def environment(self) -> dict[str, str]:
        """This process's environment, extended so that child processes receive the spec."""
        path = filter(None, [self.startup, os.environ.get("PYTHONPATH")])
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path), VARIABLE: self.text}

    @property
    def text(self) -> str:
        return json.dumps(self._asdict())


def current_launch_spec() -> LaunchSpec | None:
    """The launch spec in this process's environment, if any."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        fields: dict[str, Any] = json.loads(text)
        lists = {name: tuple(fields[name]) for name in ("patterns", "when")}
        return LaunchSpec(**{**fields, **lists})
    except (ValueError, TypeError, KeyError):  # written by another version or program
        return None


def environment_without_launch_spec() -> dict[str, str]:
    """This process's environment variables without those that a launch spec added."""
    variables, spec = dict(os.environ), current_launch_spec()
    if spec is None:
        return variables
    del variables[VARIABLE]
    path = [folder for folder in variables.pop("PYTHONPATH", "").split(os.pathsep) if folder != spec.startup]
    return {**variables, "PYTHONPATH": os.pathsep.join(path)} if any(path) else variables
