"""What is hung on a module while it is captured; copies and pickles of the model leave it behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import time
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor, is_grad_enabled
from torch.compiler import is_compiling

from tensortap.core.errors import UnsupportedValueError
from tensortap.core.record import Record
from tensortap.core.steps import next_order
from tensortap.sources.ports import Port
from tensortap.sources.recomputed import NO_GRAPH_TASK, graph_task, is_recomputing
from tensortap.sources.sites import inputs_of

if TYPE_CHECKING:
    from tensortap.sources.modules import Modules

_NO_KEYWORDS: Mapping[str, Any] = {}


class Hook:
    """Hung up as `hook.see`, a method, which torch calls quicker than an object. A copy of the model gets a
    hook that rests for ever."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def __deepcopy__(self, memo: Any) -> Hook:
        return _resting(type(self))

    def __reduce__(self) -> tuple[Callable[..., Hook], tuple[type[Hook]]]:
        return _resting, (type(self),)


class Source(Protocol):
    is_resting: bool

    def begin_step(self) -> None: ...


class Resting:
    """What stands for the source of a hook that was copied with its model."""

    is_resting = is_special = True

    def begin_step(self) -> None: ...


def _resting(hook_class: type[Hook]) -> Hook:
    hook = hook_class.__new__(hook_class)
    Hook.__init__(hook, Resting())
    return hook


class StepHook(Hook):
    """Before the outermost model's forward."""

    def see(self, module: Any, arguments: Any) -> None:
        if not is_recomputing():
            self._source.begin_step()


class OfferHook(StepHook):
    """The same on a model that is only offered: in a compiled graph nothing is left of it, since the compiler
    knows the answer to its question."""

    def see(self, module: Any, arguments: Any) -> None:
        if not is_compiling():
            super().see(module, arguments)


class OutputHook(Hook):
    """After a module's forward: its output under each of its names, then its parameters."""

    def __init__(self, source: Modules, points: Sequence[Port], parameters: Sequence[Port]) -> None:
        super().__init__(source)
        self._ports, self._parameters = points, parameters

    def see(self, module: Any, arguments: Any, output: Any) -> None:
        source: Any = self._source
        if source.is_resting:
            return
        try:
            for point in self._ports:
                point.see_output(output)
                point.raw = None
            for point in self._parameters:
                point.see_stored(module)
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()
        if source.may_stop:
            source.passed([*self._ports, *self._parameters])


class SimpleHook(OutputHook):
    """The same where all of an output is wanted under one name, its value or its gradient or both: the usual
    case, so it is written out."""

    def __init__(self, source: Modules, point: Port) -> None:
        super().__init__(source, [point], [])
        self.port, self.name, self.rank = point, point.name(""), source.rank
        self.take, self.pour = source.take_tensor, source.pour_directly
        self._has_values, self._again = bool(point.values), point.again

    def see(self, module: Any, arguments: Any, output: Any) -> None:
        source: Any = self._source
        if source.is_special or type(output) is not Tensor or graph_task() != NO_GRAPH_TASK:
            super().see(module, arguments, output)
            return
        recomputation = self._again
        if recomputation is not None and (
            recomputation.hidden or not output.requires_grad or not is_grad_enabled()
        ):
            super().see(module, arguments, output)
            return
        try:
            point, step, name = self.port, source.step, self.name
            if point.step != step:
                point.begin(step)
            call = point.calls
            point.calls = call + 1
            if self._has_values:
                point.has_emitted = True
                retained, rank = self.take(output), self.rank
                self.pour(
                    Record(name, retained, "output", step, rank, call, next_order(), time(), None, None)
                )
            if recomputation is not None:
                handle = output.register_hook(_SimpleGradient(self, step, call))  # type: ignore[no-untyped-call]
                source.keep_handle(handle, output.is_leaf)
        except UnsupportedValueError as error:
            source.refused.setdefault(self.name, str(error))
        except Exception:  # noqa: BLE001 - a guest in someone's forward pass
            source.fail()


class _SimpleGradient:
    """Waits for the gradient of one whole output."""

    __slots__ = ("_call", "_hook", "_step")
    __torch_unserializable__ = True

    def __init__(self, hook: SimpleHook, step: int, call: int) -> None:
        self._hook, self._step, self._call = hook, step, call

    def __call__(self, gradient: Tensor) -> None:
        hook, step, call = self._hook, self._step, self._call
        try:
            point, name = hook.port, hook.name + ".grad"
            if point.source.is_over:
                return
            if type(gradient) is not Tensor:
                point.take_gradient(point.gradients, name, gradient, step, call)
                return
            point.has_gradient = True
            retained, rank = hook.take(gradient), hook.rank
            hook.pour(
                Record(name, retained, "grad_output", step, rank, call, next_order(), time(), None, None)
            )
        except UnsupportedValueError as error:
            point.source.refused.setdefault(name, str(error))
        except Exception:  # noqa: BLE001 - a guest in someone's backward pass
            point.source.fail()


class InputHook(Hook):
    """Before a module's forward: what it was given, by the names of its parameters or by position."""

    def __init__(self, source: Modules, points: Sequence[Port], module: Any) -> None:
        super().__init__(source)
        self._ports = points
        self._positional, _, self._rest, _ = inputs_of(module)
        self._named = self._by_position if source.by_position else self._by_name

    # Torch calls a hook that was removed amid a call without the keywords.
    def see(
        self, module: Any, arguments: tuple[Any, ...], keywords: Mapping[str, Any] = _NO_KEYWORDS
    ) -> None:
        source: Any = self._source
        if source.is_resting:
            return
        try:
            for point in self._ports:
                point.see_inputs(self._named(arguments, keywords))
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

    def __init__(self, source: Modules, points: Sequence[Port]) -> None:
        super().__init__(source)
        self._ports = points

    def see(self, module: Any, arguments: Any, output: Any) -> None:
        if self._source.is_resting:
            return
        for point in self._ports:
            point.raw = output
