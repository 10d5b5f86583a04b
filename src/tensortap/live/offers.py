"""What a job offers to live sessions: its exposed models, and those of the captures that are on."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from tensortap.core.first_call import listen_if_requested
from tensortap.core.settings import is_on
from tensortap.recording import entered
from tensortap.recording.capture import Capture
from tensortap.sources.sites import class_name, require_module, sites_of, takes_hooks, unwrapped, walk

M = TypeVar("M")


class Place(NamedTuple):
    """A site as the catalog has it: with its shape where that is known."""

    name: str
    kind: str
    module_class: str = ""
    dtype: str = ""
    shape: tuple[int, ...] | None = None


class Offer:
    """A model that sessions may look into; held weakly. Counts its forwards and says when one begins."""

    is_resting = is_special = False

    def __init__(self, model: Any, tell: Callable[[Offer], None]) -> None:
        self._model = weakref.ref(model)
        self._tell = tell
        self.forwards = 0
        self._places: list[Place] | None = None
        # On a compiled model's wrapper, where it has one: there it is outside of the graph.
        outer = model if class_name(model) == "OptimizedModule" else unwrapped(model)
        self._handle = (
            outer.register_forward_pre_hook(_hook(self), prepend=True) if takes_hooks(outer) else None
        )

    @property
    def model(self) -> Any:
        return self._model()

    @property
    def is_compiled(self) -> bool:
        """Whether some of it runs as a graph; a survey would make it plain Python for a step."""
        found = (
            (type(one).__name__, getattr(one, "_compiled_call_impl", None)) for one in self.model.modules()
        )
        return any(kind == "OptimizedModule" or call is not None for kind, call in found)

    def begin_step(self) -> None:
        self._tell(self)
        self.forwards += 1

    @property
    def places(self) -> list[Place]:
        if self._places is None:
            model = self.model
            self._places = list(_places(model)) if model is not None else []
        return self._places

    def withdraw(self) -> None:
        if self._handle is not None:
            self._handle.remove()


class Offers:
    """All offers of a process, in the order in which they were made."""

    def __init__(self) -> None:
        self._exposed: list[Offer] = []
        self._entered: weakref.WeakKeyDictionary[Any, Offer] = weakref.WeakKeyDictionary()
        self.tell: Callable[[Offer], None] | None = None  # set while the job listens

    def __iter__(self) -> Iterator[Offer]:
        models: list[Any] = []
        for offer in [*self._exposed, *list(self._entered.values())]:
            model = offer.model
            if model is not None and not any(one is model for one in models):
                models.append(model)
                yield offer

    def expose(self, model: Any) -> None:
        self._exposed = [one for one in self._exposed if one.model is not None]
        if not any(one.model is model for one in self._exposed):
            self._exposed.append(Offer(model, self._begin))

    def open(self, tell: Callable[[Offer], None]) -> None:
        self.tell = tell
        entered.observe_captures(self._see_capture)

    def close(self) -> None:
        self.tell = None
        entered.unobserve_captures(self._see_capture)
        for offer in list(self._entered.values()):
            offer.withdraw()
        self._entered.clear()

    def _begin(self, offer: Offer) -> None:
        if self.tell is not None:
            self.tell(offer)

    def _see_capture(self, capture: Capture, is_on: bool) -> None:
        if not is_on:
            offer = self._entered.pop(capture, None)
            if offer is not None:
                offer.withdraw()
        elif capture.model is not None and not any(one.model is capture.model for one in self):
            self._entered[capture] = Offer(capture.model, self._begin)


def expose(model: M) -> M:
    """Offer a model to live sessions, and return it; nothing is captured before one asks.

    >>> tt.listen()
    >>> tt.expose(model)
    """
    if is_on():
        require_module(model)
        listen_if_requested()
        offers.expose(model)
    return model


# One for the process, like its models: what is exposed before the job listens is offered when it does.
offers = Offers()


def _hook(offer: Offer) -> Any:
    from tensortap.sources.hooks import OfferHook  # late: it imports torch, which a model has done

    return OfferHook(offer).see


def _places(model: Any) -> Iterator[Place]:
    for names, module in walk(model):
        for site in sites_of(".".join(names), module, gradients=False):
            dtype, shape = _form(module, site.parameter) if site.kind == "param" else ("", None)
            yield Place(site.name, site.kind, site.module_class, dtype, shape)


def _form(module: Any, name: str) -> tuple[str, tuple[int, ...] | None]:
    with contextlib.suppress(AttributeError, RuntimeError):  # a parameter that has no shape yet
        value = getattr(module, name)
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    return "", None
