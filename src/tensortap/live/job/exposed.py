"""The models that a job exposes to live sessions: those of `tt.expose`, and of active captures."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tensortap.core.settings import is_on
from tensortap.core.steps import listen_if_requested
from tensortap.live.protocol import CatalogEntry
from tensortap.recording import manual_taps
from tensortap.recording.capture import Capture
from tensortap.sources.sites import class_name, require_module, sites_of, supports_hooks, unwrap, walk_modules

M = TypeVar("M")


class ExposedModel:
    """A weakly referenced model that sessions may tap; counts its forwards, and reports their starts."""

    is_idle = is_special = False

    def __init__(self, model: Any, on_forward: Callable[[ExposedModel], None]) -> None:
        self._model = weakref.ref(model)
        self._on_forward = on_forward
        self.forwards = 0
        self._catalog_entries: list[CatalogEntry] | None = None
        # On the wrapper of a compiled model, if any: there it is outside of the graph.
        outer = model if class_name(model) == "OptimizedModule" else unwrap(model)
        self._handle = (
            outer.register_forward_pre_hook(_make_hook(self), prepend=True) if supports_hooks(outer) else None
        )

    @property
    def model(self) -> Any:
        return self._model()

    @property
    def is_compiled(self) -> bool:
        """Is any module compiled? A survey would run it as plain Python for a step."""
        modules = (
            (type(module).__name__, getattr(module, "_compiled_call_impl", None))
            for module in self.model.modules()
        )
        return any(kind == "OptimizedModule" or call is not None for kind, call in modules)

    def begin_step(self) -> None:
        self._on_forward(self)
        self.forwards += 1

    @property
    def catalog_entries(self) -> list[CatalogEntry]:
        if self._catalog_entries is None:
            model = self.model
            self._catalog_entries = list(_catalog_entries(model)) if model is not None else []
        return self._catalog_entries

    def remove_hook(self) -> None:
        if self._handle is not None:
            self._handle.remove()


class ExposedModels:
    """All exposed models of a process, in order."""

    def __init__(self) -> None:
        self._exposed: list[ExposedModel] = []
        self._captured: weakref.WeakKeyDictionary[Any, ExposedModel] = weakref.WeakKeyDictionary()
        self.on_forward: Callable[[ExposedModel], None] | None = None  # set while the job listens

    def __iter__(self) -> Iterator[ExposedModel]:
        models: list[Any] = []
        for exposed in [*self._exposed, *list(self._captured.values())]:
            model = exposed.model
            if model is not None and not any(known is model for known in models):
                models.append(model)
                yield exposed

    def expose(self, model: Any) -> None:
        self._exposed = [exposed for exposed in self._exposed if exposed.model is not None]
        if not any(exposed.model is model for exposed in self._exposed):
            self._exposed.append(ExposedModel(model, self._begin_forward))

    def open(self, on_forward: Callable[[ExposedModel], None]) -> None:
        self.on_forward = on_forward
        manual_taps.observe_captures(self._on_capture_change)

    def close(self) -> None:
        self.on_forward = None
        manual_taps.unobserve_captures(self._on_capture_change)
        for exposed in list(self._captured.values()):
            exposed.remove_hook()
        self._captured.clear()

    def _begin_forward(self, exposed: ExposedModel) -> None:
        if self.on_forward is not None:
            self.on_forward(exposed)

    def _on_capture_change(self, capture: Capture, is_on: bool) -> None:
        if not is_on:
            exposed = self._captured.pop(capture, None)
            if exposed is not None:
                exposed.remove_hook()
        elif capture.model is not None and not any(
            exposed_model.model is capture.model for exposed_model in self
        ):
            self._captured[capture] = ExposedModel(capture.model, self._begin_forward)


def expose(model: M) -> M:
    """Expose a model to live sessions, and return it; nothing is captured before one requests it.

    >>> tt.listen()
    >>> tt.expose(model)
    """
    if is_on():
        require_module(model)
        listen_if_requested()
        exposed_models.expose(model)
    return model


# One per process, so that models can be exposed before the job listens.
exposed_models = ExposedModels()


def _make_hook(exposed: ExposedModel) -> Any:
    # Imported lazily: it imports torch, which is loaded once there is a model.
    from tensortap.sources.hooks.modules import ExposedModelHook

    return ExposedModelHook(exposed).run


def _catalog_entries(model: Any) -> Iterator[CatalogEntry]:
    for names, module in walk_modules(model):
        for site in sites_of(".".join(names), module, gradients=False):
            dtype, shape = _dtype_and_shape(module, site.parameter) if site.kind == "param" else ("", None)
            yield CatalogEntry(site.name, site.kind, site.module_class, dtype, shape)


def _dtype_and_shape(module: Any, name: str) -> tuple[str, tuple[int, ...] | None]:
    with contextlib.suppress(AttributeError, RuntimeError):  # a lazy parameter
        value = getattr(module, name)
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    return "", None
