"""What is hung on a module while it is captured; copies and pickles of the model leave it behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tensortap.sources.ports import Port
from tensortap.sources.sites import inputs_of

if TYPE_CHECKING:
    from tensortap.sources.modules import Modules


class Hook:
    """A hook that does nothing in a copy of the model."""

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return ignore

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _ignoring, ()


def ignore(*arguments: Any, **keywords: Any) -> None:
    """What a hook becomes in a copy of the model."""


def _ignoring() -> Callable[..., None]:
    return ignore


class StepHook(Hook):
    """Before the outermost model's forward."""

    def __init__(self, begin: Callable[[], None]) -> None:
        self._begin = begin

    def __call__(self, module: Any, arguments: Any) -> None:
        self._begin()


class OutputHook(Hook):
    """After a module's forward: its output under each of its names, then its parameters."""

    def __init__(self, source: Modules, ports: Sequence[Port], parameters: Sequence[Port]) -> None:
        self._source, self._ports, self._parameters = source, ports, parameters

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        source = self._source
        if source.is_resting:
            return
        try:
            for port in self._ports:
                port.see_output(output)
                port.raw = None
            for port in self._parameters:
                port.see_stored(module)
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()
        if source.may_stop:
            source.passed([*self._ports, *self._parameters])


class InputHook(Hook):
    """Before a module's forward: what it was given, by the names of its parameters or by position."""

    def __init__(self, source: Modules, ports: Sequence[Port], module: Any) -> None:
        self._source, self._ports = source, ports
        self._positional, _, self._rest, _ = inputs_of(module)
        self._named = self._by_position if source.by_position else self._by_name

    def __call__(self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> None:
        source = self._source
        if source.is_resting:
            return
        try:
            for port in self._ports:
                port.see_inputs(self._named(arguments, keywords))
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()
        if source.may_stop:
            source.passed(self._ports)

    def _by_name(self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        names = self._positional
        yield from zip(names, arguments, strict=False)
        if len(arguments) > len(names):
            yield self._rest or "args", arguments[len(names) :]
        yield from keywords.items()

    def _by_position(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        """As the caller passed them: `0`, `1`, `kwargs.mask`."""
        for position, value in enumerate(arguments):
            yield str(position), value
        for name, value in keywords.items():
            yield f"kwargs.{name}", value


class RawHook(Hook):
    """Before the other forward hooks: what a parallel layer computed, before it is made local."""

    def __init__(self, ports: Sequence[Port]) -> None:
        self._ports = ports

    def __call__(self, module: Any, arguments: Any, output: Any) -> None:
        for port in self._ports:
            port.raw = output
