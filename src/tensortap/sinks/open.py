"""Open the sink for a path or URL: a folder, an HDF5 file, the call tree, a session, a plug-in's scheme."""

import re
from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from tensortap.core.errors import UnknownFormatError
from tensortap.core.protocols import Sink
from tensortap.core.ranks import rank_info
from tensortap.core.registry import Registry
from tensortap.core.settings import setting
from tensortap.formats.run_layout import agree_on_run, write_failed_error
from tensortap.metadata.collect import Metadata
from tensortap.metadata.process import timestamp_zone
from tensortap.sinks.run_directory import RunDirectory
from tensortap.sinks.tree_log import TreeLog

if TYPE_CHECKING:
    from tensortap.sinks.stream import Stream


_SCHEME = re.compile(r"\.[^/.]+|[A-Za-z][\w+.-]*")
_STREAM_SCHEMES = ("tcp", "tls")
_HDF5_SUFFIXES = (".h5", ".hdf5")  # never meant as the name of a folder
sinks: Registry[Callable[[str], Sink]] = Registry("sinks")
# Ranks without a process group agree on a run by the number of the call, which is the same on all of them.
# Counts down, because init() counts up in the same folder and the two must not collide.
_attempts: defaultdict[Path, "count[int]"] = defaultdict(lambda: count(-1, -1))


def register_sink(scheme: str, make: Callable[[str], Sink]) -> None:
    """Register `make` to open `scheme://rest`, as `make("scheme://rest")`; a suffix such as `.zarr` opens
    every path that ends so, as `make("path.zarr")`."""
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme):
        raise ValueError(f"{scheme!r} is neither a scheme such as 's3' nor a suffix such as '.zarr'")
    sinks.add(scheme, make)


def open_sink(address: str) -> Sink:
    """The sink for an address: `.h5` and `.hdf5` open a trace file, `tree` the call tree log, any other
    plain path a new timestamped run in that folder; `tcp://host:port` streams to a serving session.

    All ranks share one run, so every rank opens it."""
    if address == "tree":
        return TreeLog()
    scheme, separator, _ = address.partition("://")
    suffix = Path(address).suffix
    factory = sinks.get(scheme if separator else suffix)
    if factory is not None:
        return factory(address)
    if not separator:
        return (
            _open_trace_file(address) if suffix in _HDF5_SUFFIXES else _open_new_run(Path(address).absolute())
        )
    if scheme in _STREAM_SCHEMES:
        return open_stream(address)
    raise UnknownFormatError(
        f"no sink is known for {scheme}:// (in {address!r}); give a folder or a .h5 file, "
        "or add one with register_sink"
    )


def open_stream(address: str, port: int | None = None) -> "Stream":
    """A stream to `host`, `host:port`, `tcp://host:port` or `tls://host:port`; `port` is the default port."""
    from tensortap.sinks.stream import Stream
    from tensortap.transport.handshake import read_token
    from tensortap.transport.tls import client_tls  # imported lazily: most programs send nothing

    scheme, separator, host = address.rpartition("://")
    if separator and scheme not in _STREAM_SCHEMES:
        raise UnknownFormatError(f"a session is at tcp://host:port or tls://host:port, not at {address!r}")
    tls = client_tls(setting("THING_FINGERPRINT")) if scheme == "tls" else None
    return Stream(_add_default_port(host, port), token=read_token(), tls=tls)


def _add_default_port(host: str, port: int | None) -> str:
    if port is None or "/" in host:
        return host
    if host.count(":") > 1 and not host.startswith("["):  # a bare IPv6 address
        return f"[{host}]:{port}"
    return host if ":" in host.rpartition("]")[2] else f"{host}:{port}"


def _open_trace_file(address: str) -> Sink:
    from tensortap.sinks.hdf5 import HDF5  # imported lazily: h5py is optional

    return HDF5(address)


def _open_new_run(base: Path) -> RunDirectory:
    process_ranks = rank_info()
    run = agree_on_run(base, timestamp_zone(None), process_ranks, next(_attempts[base]))
    if process_ranks.rank == 0:
        try:
            Metadata(run).write()
        except OSError as error:
            raise write_failed_error("the metadata", run, error) from error
    return RunDirectory(run)
