"""In a program that `tensortap run` started: wait for what is worth watching, at no cost until it comes.

Little is imported here, because this runs in every Python that the program starts.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import RLock
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from tensortap.core.errand import ARRIVED, VARIABLE, Errand, errand
from tensortap.core.settings import is_on

if TYPE_CHECKING:
    from tensortap.recording.program import Program
    from tensortap.recording.scripting import Scripting

_MODULES, _OPTIMIZERS = "torch.nn.modules.module", "torch.optim.optimizer"
_TAPPING = "tensortap.recording.tapping"
_MAIN = "__main__"


def begin() -> None:
    """Called while Python starts, before the program."""
    asked = errand()
    if asked is None or not is_on():
        return
    asked = asked._replace(here=_folder())
    watch = Watch(asked)
    if not asked.is_inner:
        asked.leave_word(ARRIVED, sys.executable)
        os.environ[VARIABLE] = asked._replace(is_inner=True).text
        atexit.register(watch.end, os.getpid())
    sys.meta_path.insert(0, watch)
    if any(_module_of(one) == _MAIN for one in asked.patterns):
        from tensortap.recording.main_functions import await_definitions

        await_definitions(asked.patterns, lambda: watch.guarded(lambda: watch.program.place(_MAIN)))


class Watch:
    """Looks on while the program imports: models, optimizers, functions that are wanted, and `tt.tap`.

    It never finds a module itself. That torch's own modules are there is noticed when they import the next
    one, so that no frame of ours is in the way of an import.
    """

    def __init__(self, asked: Errand) -> None:
        self._asked = asked
        self._awaited = {_TAPPING, *filter(None, map(_module_of, asked.patterns))} - {_MAIN}
        self._program: Program | None = None
        self._one_begins = RLock()
        self._bells: dict[str, Doorbell] = {}
        self._scripting: Scripting | None = None
        self._optimizers: WeakSet[Any] = WeakSet()

    @property
    def program(self) -> Program:
        if self._program is None:
            # Imported before the lock is taken: whoever imports something else may wait for it.
            from tensortap.recording.program import Program

            with self._one_begins:
                self._program = self._program or Program(self._asked, self._optimizers)
        return self._program

    def end(self, process: int) -> None:
        """A program without a model is described when it is over; a forked child is not this program."""
        has_model = self._program is not None and self._program.has_model
        if process == os.getpid() and not has_model:
            from tensortap.recording.described import describe_at_end

            self.guarded(describe_at_end, self._asked)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in self._awaited:
            self._awaited.discard(name)
            return self._told_when_loaded(name, path, target)
        if name.startswith("torch"):
            self._look_at_torch()
        return None

    def guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """A guest in someone's program: whatever fails is logged, and nothing more is watched."""
        try:
            return action(*arguments)
        except Exception:
            from tensortap.core.settings import is_strict

            self._leave()
            if is_strict():
                raise
            from logging import getLogger

            getLogger("tensortap.run").exception("watching failed and is given up; the program goes on")
            return None

    def _look_at_torch(self) -> None:
        module = getattr(sys.modules.get(_MODULES), "Module", None)
        if module is not None and "models" not in self._bells:
            self._bells["models"] = Doorbell(module, "__call__", self._meet)
        optimizer = getattr(sys.modules.get(_OPTIMIZERS), "Optimizer", None)
        if optimizer is not None and "optimizers" not in self._bells:
            self._bells["optimizers"] = Doorbell(optimizer, "__init__", self._meet_optimizer)
        if self._asked.looks_inside and self._scripting is None:
            self._look_at_scripting()

    def _look_at_scripting(self) -> None:
        from tensortap.recording.scripting import Scripting, is_there

        if is_there():
            self._scripting = Scripting(lambda model: self.guarded(self._let_go, model))

    def _let_go(self, model: Any) -> None:
        if self._program is not None:
            self._program.let_go(model)

    def _meet(self, model: Any) -> Iterable[Any]:
        """A module is called; one that has neither parts nor parameters is no model."""
        if not model._modules and not model._parameters:
            return ()
        return self.guarded(self._meet_model, model) or ()

    def _meet_model(self, model: Any) -> Iterable[Any]:
        from tensortap.recording.scripting import is_scripting

        if is_scripting():
            return ()
        met = self.program.meet(model)
        if not self.program.wants_more:
            self._leave()
        return met

    def _meet_optimizer(self, optimizer: Any) -> Iterable[Any]:
        self._optimizers.add(optimizer)
        return ()

    def _leave(self) -> None:
        for bell in self._bells.values():
            bell.take_down()
        if self._scripting is not None:
            self._scripting.take_down()
        if self in (sys.meta_path or ()):
            sys.meta_path.remove(self)

    def _told_when_loaded(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._tell_when_loaded(name, spec)
                return spec
        return None

    def _tell_when_loaded(self, name: str, spec: Any) -> None:
        execute = getattr(spec.loader, "exec_module", None)

        def execute_and_tell(module: Any) -> None:
            execute(module)  # type: ignore[misc]
            if name == _TAPPING:
                self._listen(module)
            else:
                self.guarded(lambda: self.program.place(name))

        try:
            spec.loader.exec_module = execute_and_tell
        except AttributeError:  # a loader of the program's own, with slots
            pass

    def _listen(self, tapping: Any) -> None:
        """Nothing is imported before the first value is tapped: this may be amid an import of ours."""

        def hear_first(value: Any, name: str, site: Any) -> None:
            if not self.guarded(lambda: self.program.hear(value, name, site, hear_first)):
                tapping.unlisten(hear_first)

        tapping.listen(hear_first)


class Doorbell:
    """Stands where a class has a method, rings when an object is asked for it, and gives the method.

    No frame of ours is on the stack while the method runs, and whoever looks at the class sees the method.
    `ring` gives the objects that need not ring again.
    """

    __slots__ = ("_kind", "_known", "_method", "_name", "_ring")

    def __init__(self, kind: type, name: str, ring: Callable[[Any], Iterable[Any]]) -> None:
        self._kind, self._name, self._ring = kind, name, ring
        self._method: Any = vars(kind)[name]
        self._known: dict[int, Any] = {}
        setattr(kind, name, self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._method
        if id(instance) not in self._known:
            for one in self._ring(instance):
                self._know(one)
        return self._method.__get__(instance, owner)

    def _know(self, instance: Any) -> None:
        # The number of an object is given again when it is gone; then it must be forgotten here, too.
        key, known = id(instance), self._known
        known[key] = ref(instance, lambda _: known.pop(key, None))

    def take_down(self) -> None:
        if vars(self._kind).get(self._name) is self:
            setattr(self._kind, self._name, self._method)


def _folder() -> str:
    """Where the program begins; it may go elsewhere, and its command is to be given here again."""
    try:
        return os.getcwd()
    except OSError:
        return ""


def _module_of(pattern: str) -> str:
    """`pkg.mod` of a pattern `pkg.mod:func.var`; nothing of any other."""
    above, colon, _ = pattern.removeprefix("!").partition(":")
    return above if colon else ""
