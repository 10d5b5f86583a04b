"""Which sink an address means: a folder for runs, an HDF5 file, or a scheme that a plug-in has added."""

from collections import defaultdict
from collections.abc import Callable
from itertools import count
from pathlib import Path

from tensortap.core.errors import UnknownFormatError
from tensortap.core.parts import Sink
from tensortap.core.ranks import ranks
from tensortap.core.registry import Registry
from tensortap.formats.run_layout import agree_on_run, cannot_write
from tensortap.metadata.collect import Metadata
from tensortap.metadata.runtime import timestamp_zone
from tensortap.sinks.run_directory import RunDirectory

_FILES = (".h5", ".hdf5")  # never meant as the name of a folder
sinks: Registry[Callable[[str], Sink]] = Registry("sinks")
# Ranks without a process group meet under the number of the call, so all of them count alike. Downwards:
# init() counts upwards in the same folder, and the two must not meet.
_attempts: defaultdict[Path, "count[int]"] = defaultdict(lambda: count(-1, -1))


def register_sink(scheme: str, make: Callable[[str], Sink]) -> None:
    """Let `scheme://rest` mean the sink that `make("scheme://rest")` gives; `.h5` is a scheme too."""
    sinks.add(scheme, make)


def open_sink(address: str) -> Sink:
    """The sink behind an address: `.h5` and `.hdf5` mean a trace file, any other plain path a folder in which
    a timestamped run is made.

    All ranks share one run, so every rank opens it."""
    scheme, mark, _ = address.partition("://")
    suffix = Path(address).suffix
    key = scheme if mark else suffix if suffix in _FILES else None
    if key is None:
        return _new_run(Path(address).absolute())
    make = sinks.get(key)
    if make is not None:
        return make(address)
    if key == suffix:
        return _trace_file(address)
    raise UnknownFormatError(
        f"no sink is known for {scheme}:// (in {address!r}); give a folder or a .h5 file, "
        "or add one with register_sink"
    )


def _trace_file(address: str) -> Sink:
    from tensortap.sinks.hdf5 import HDF5  # late: h5py is optional

    return HDF5(address)


def _new_run(base: Path) -> RunDirectory:
    here = ranks()
    run = agree_on_run(base, timestamp_zone(None), here, next(_attempts[base]))
    if here.rank == 0:
        try:
            Metadata(run).write()
        except OSError as error:
            raise cannot_write("the metadata", run, error) from error
    return RunDirectory(run)
