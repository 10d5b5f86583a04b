"""Which sink an address means: a folder for runs, or a scheme that a plug-in has added."""

from collections.abc import Callable
from pathlib import Path

from tensortap.core.errors import UnknownFormatError
from tensortap.core.parts import Sink
from tensortap.core.registry import Registry
from tensortap.formats.run_layout import create_run
from tensortap.metadata.runtime import timestamp_zone
from tensortap.sinks.run_directory import RunDirectory

sinks: Registry[Callable[[str], Sink]] = Registry("sinks")


def register_sink(scheme: str, make: Callable[[str], Sink]) -> None:
    """Let `scheme://rest` mean the sink that `make("scheme://rest")` gives."""
    sinks.add(scheme, make)


def open_sink(address: str) -> Sink:
    """The sink behind an address; a plain path is a folder in which a timestamped run is made."""
    scheme, mark, _ = address.partition("://")
    if not mark:
        return RunDirectory(create_run(Path(address), timestamp_zone(None)))
    make = sinks.get(scheme)
    if make is None:
        raise UnknownFormatError(
            f"no sink is known for {scheme}:// (in {address!r}); give a folder, or add one with register_sink"
        )
    return make(address)
