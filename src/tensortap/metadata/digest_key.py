"""Keep the key of the redaction digests: one per user, readable by that user alone."""

import os
import secrets
from functools import cache
from pathlib import Path

_LENGTH = 32


def digest_key() -> bytes:
    """The user's key, made on first use; a key of this process alone where none can be kept."""
    path = _path()
    try:
        return _read(path) or _create(path) or _process_key()
    except (OSError, ValueError, RuntimeError):
        return _process_key()


def _path() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path("~/.local/state").expanduser()
    return base / "tensortap" / "key"


def _read(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return b""
    return key if len(key) == _LENGTH else _process_key()


def _create(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(_LENGTH) + "\n")
        _keep_first(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return _read(path)


def _keep_first(temporary: Path, path: Path) -> None:
    # A link, unlike a rename, never replaces the key that another process has just made.
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass


@cache
def _process_key() -> bytes:
    return secrets.token_bytes(_LENGTH)
