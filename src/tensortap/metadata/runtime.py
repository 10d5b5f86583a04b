"""Describe how the program was started: its command, environment, folder and time."""

import os
import shlex
import sys
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from tensortap.core.launch_spec import environment_without_launch_spec
from tensortap.core.settings import setting
from tensortap.metadata.redact import Policy, Redactor

# China has kept this offset since 1991, so it serves where the zone files are missing.
_SHANGHAI = timezone(timedelta(hours=8), "Asia/Shanghai")


def timestamp_zone(name: str | None) -> tzinfo:
    """The zone of run folders and timestamps: "local", "UTC" or a zone name; None asks TENSORTAP_TZ."""
    name = name or setting("TENSORTAP_TZ")
    if name.lower() == "local":
        return datetime.now().astimezone().tzinfo or UTC
    if name.upper() == "UTC":
        return UTC
    return _named_zone(name)


def _named_zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # unknown, malformed, or a folder such as "Asia"
        if name == "Asia/Shanghai":
            return _SHANGHAI
        raise ValueError(
            f"no time zone {name!r} on this machine; give 'local', 'UTC' or a zone such as 'Asia/Shanghai'"
        ) from None


def timestamp(moment: datetime) -> str:
    """The moment to the second with its offset, `2025-10-28T14:30:41+08:00`."""
    return moment.isoformat(timespec="seconds")


def runtime_info(redactor: Redactor, policy: Policy, folder: str, moment: datetime) -> dict[str, Any]:
    """The content of runtime_info.json."""
    return {
        "command": command(redactor),
        "environment_variables": redactor.variables(environment_without_launch_spec(), policy),
        "working_directory": folder,
        "timestamp": timestamp(moment),
    }


def command(redactor: Redactor) -> dict[str, Any]:
    argv = redactor.arguments(_arguments())
    return {"executable": sys.executable, "argv": argv, "full_command": shlex.join(argv)}


def _arguments() -> list[str]:
    """Those of the program; code that was given with -c, which Python leaves out of them, is told too."""
    words = list(getattr(sys, "argv", []))
    is_code = words[:1] == ["-c"] and len(sys.orig_argv) > len(words)
    return ["-c", sys.orig_argv[-len(words)], *words[1:]] if is_code else words


def working_directory() -> str:
    """The current folder, or nothing once it has been removed under the program."""
    try:
        return os.getcwd()
    except OSError:
        return ""
