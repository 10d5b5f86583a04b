"""The layout of a run directory: its folders, safe file names, and our internal folder."""

import errno
import hashlib
import logging
import os
import re
import time
from collections.abc import Mapping
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any

from tensortap.core.errors import WriteFailedError
from tensortap.core.ranks import (
    RankInfo,
    broadcast_from_rank_zero,
    from_process_group,
    is_single_agent,
    launch_id,
)

INTERNAL_FOLDER = ".tensortap"  # everything in a run that is ours
PACKS_FOLDER = "packs"
CACHE_FOLDER = "cache"
MODEL_FILE = "model.json"  # the model at the start of the run
ENVIRONMENT_FILE = "environment.json"  # machine, packages, randomness and tags
LAUNCHES_FOLDER = ".tensortap-launches"  # beside the runs: how ranks without a process group find theirs
_MAX_STEM_NBYTES = 180  # bytes; leaves room for a rank, a number and a suffix within 255
_UNSAFE = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|%\ud800-\udfff]|^\.')
_WAIT_SECONDS = 30.0
_LAUNCH_SKEW_SECONDS = 300.0
log = logging.getLogger("tensortap.runs")


def file_stem(name: str) -> str:
    """A readable file name: characters that a file system cannot hold become %XX, long names end in a
    digest. The index has the true name."""
    if len(name) * 4 <= _MAX_STEM_NBYTES and name and name.isascii() and not _UNSAFE.search(name):
        return name
    stem = _UNSAFE.sub(lambda match: f"%{ord(match.group()):02X}", name) or "%empty"
    encoded = stem.encode()
    if len(encoded) <= _MAX_STEM_NBYTES:
        return encoded.decode()
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()
    return encoded[: _MAX_STEM_NBYTES - 13].decode(errors="ignore") + "~" + digest


def ranked_stem(name: str, ranks: RankInfo) -> str:
    return file_stem(name) + (f"_rank{ranks.rank}" if ranks.world_size > 1 else "")


def is_own_run(path: Path) -> bool:
    """Whether the file is in a run directory that the current user created."""
    path = path.absolute()
    folder = path.parents[2] if path.parts[-3:-1] == (INTERNAL_FOLDER, PACKS_FOLDER) else path.parent
    try:
        return (
            folder / INTERNAL_FOLDER
        ).is_dir() and path.stat().st_uid == folder.stat().st_uid == os.getuid()
    except (OSError, AttributeError):
        return False


def create_run(base: Path, zone: tzinfo) -> Path:
    """A new folder named after the current time; a second one in the same second gets a suffix."""
    stamp = datetime.now(zone).strftime("%Y%m%d_%H%M%S")
    number = 1
    while True:
        run = base / (stamp if number == 1 else f"{stamp}_{number}")
        try:
            base.mkdir(parents=True, exist_ok=True)
            run.mkdir()
            (run / INTERNAL_FOLDER).mkdir()
        except FileExistsError as error:
            if not base.is_dir():
                raise create_failed_error(run, error) from None
            number += 1
            continue
        except OSError as error:
            raise create_failed_error(run, error) from None
        return run


def agree_on_run(base: Path, zone: tzinfo, ranks: RankInfo, attempt: int) -> Path:
    """One folder for all ranks: rank 0 creates it, the others receive or find it."""
    if ranks.world_size == 1:
        return create_run(base, zone)
    if from_process_group() is not None:
        return _agree_in_group(base, zone, ranks)
    meeting = base / LAUNCHES_FOLDER / f"{_digest(launch_id())}-{attempt}"
    return (
        _publish_run(meeting, create_run(base, zone))
        if ranks.rank == 0
        else _wait_for_run(meeting, base, zone, ranks)
    )


def _agree_in_group(base: Path, zone: tzinfo, ranks: RankInfo) -> Path:
    # Rank 0's failure is broadcast too: no rank may be left waiting in the collective.
    answer: str | WriteFailedError = ""
    if ranks.rank == 0:
        try:
            answer = str(create_run(base, zone).absolute())
        except WriteFailedError as error:
            answer = error
    answer = broadcast_from_rank_zero(answer)
    if isinstance(answer, WriteFailedError):
        raise answer
    return Path(answer)


def _publish_run(meeting: Path, run: Path) -> Path:
    draft = meeting.with_suffix(f".{os.getpid()}")
    try:
        meeting.parent.mkdir(exist_ok=True)
        draft.write_text(run.name, encoding="utf-8")
        draft.replace(meeting)
    except OSError as error:
        raise create_failed_error(run, error) from None
    return run


def _wait_for_run(meeting: Path, base: Path, zone: tzinfo, ranks: RankInfo) -> Path:
    """Wait for rank 0's folder; without it, create our own rather than stop the job."""
    oldest = 0.0 if is_single_agent() else _process_start() - _LAUNCH_SKEW_SECONDS
    deadline = time.monotonic() + _WAIT_SECONDS
    while time.monotonic() < deadline:
        try:
            if meeting.stat().st_mtime >= oldest:
                return base / meeting.read_text(encoding="utf-8")
        except (NotADirectoryError, PermissionError) as error:
            raise create_failed_error(base, error) from None
        except OSError:
            pass  # not there yet, or a lagging network file system
        time.sleep(0.02)
    log.warning(
        "rank %d waited %d s for rank 0 to create a run under %s and makes a folder of its own; "
        "call init() on every rank, or after the process group exists",
        ranks.rank,
        _WAIT_SECONDS,
        base,
    )
    return create_run(base, zone)


def _process_start() -> float:
    """When this process started: rank 0 may have published long before we ask, but not long before we
    started."""
    try:
        ticks = int(Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return time.time()
    return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def create_failed_error(run: Path, error: OSError) -> WriteFailedError:
    failed = WriteFailedError(
        f"cannot create the run folder {run}: {_reason(error)}; init() with a folder you can write to"
    )
    failed.errno = error.errno
    return failed


def write_failed_error(what: str, run: Path, error: OSError) -> WriteFailedError:
    reason, remedy = _reason(error), "check the folder"
    if error.errno == errno.ENOSPC:
        remedy = "free some space"
    elif error.errno == errno.ENOENT:
        reason, remedy = "the run folder is gone", "call init() again"
    safe = "" if error.errno == errno.ENOENT else ", what was written before is safe"
    failed = WriteFailedError(f"cannot write {what} to {run}: {reason}; {remedy}{safe}")
    failed.errno = error.errno
    return failed


def _reason(error: OSError) -> str:
    return (error.strerror or str(error)).lower()


def nested_dict(facts: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The dict at these nested keys of a run's facts; empty if there is none."""
    value: Any = facts
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return dict(value) if isinstance(value, Mapping) else {}
