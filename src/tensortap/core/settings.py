"""Every environment variable tensortap reads, in one table."""

import os

DEFAULTS = {
    "TENSORTAP": "1",  # 0 turns every call into a no-op
    "TENSORTAP_STRICT": "0",  # 1 raises failures that are otherwise logged
    "TENSORTAP_TZ": "Asia/Shanghai",  # time zone of run folders and timestamps
}


def setting(name: str) -> str:
    """The value in the environment, else its default."""
    return os.environ.get(name) or DEFAULTS[name]


def is_on() -> bool:
    return setting("TENSORTAP") != "0"


def is_strict() -> bool:
    return setting("TENSORTAP_STRICT") != "0"
