"""The import hook that `tensortap run` installs: observes models, optimizers, functions and `tt.tap`.

It runs in every Python that the program starts, so it imports little. Functions of the script itself are
found by tracing its definitions; a model passed to torch.jit, which cannot follow hooks, is released first.
"""

from __future__ import annotations

import atexit
import os
import sys
from _thread import RLock
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from types import FrameType
from typing import TYPE_CHECKING, Any
from weakref import WeakSet, ref

from tensortap.core.filesystem import working_directory
from tensortap.core.launch_spec import REACHED_MARKER, VARIABLE, LaunchSpec, current_launch_spec
from tensortap.core.settings import is_on

if TYPE_CHECKING:
    from tensortap.launcher.program import Program


_MODULES, _OPTIMIZERS = "torch.nn.modules.module", "torch.optim.optimizer"
_TAPPING = "tensortap.recording.manual_taps"
_MAIN = "__main__"


def install_import_hook() -> None:
    """Start observing; called while the interpreter starts, before the program."""
    spec = current_launch_spec()
    if spec is None or not is_on():
        return
    # At the start, where the command can be repeated; the program may change it.
    spec = spec._replace(here=working_directory())
    hook = ImportHook(spec)
    if not spec.is_inner:
        spec.write_marker(REACHED_MARKER, sys.executable)
        os.environ[VARIABLE] = spec._replace(is_inner=True).text
        atexit.register(hook.at_exit, os.getpid())
    sys.meta_path.insert(0, hook)
    if any(_module_in_pattern(pattern) == _MAIN for pattern in spec.patterns):
        await_definitions(
            spec.patterns, lambda: hook.run_guarded(lambda: hook.program.capture_functions_of(_MAIN))
        )


class ImportHook:
    """A meta path finder that finds nothing itself: hooks torch, selected functions and `tt.tap` on import.

    That torch's modules are loaded is noticed when they import the next one, so that no frame of ours is on
    the stack of an import.
    """

    def __init__(self, spec: LaunchSpec) -> None:
        self._spec = spec
        self._awaited_modules = {_TAPPING, *filter(None, map(_module_in_pattern, spec.patterns))} - {_MAIN}
        self._program: Program | None = None
        self._creation_lock = RLock()
        self._access_hooks: dict[str, MethodAccessHook] = {}
        self._scripting_hook: ScriptingHook | None = None
        self._optimizers: WeakSet[Any] = WeakSet()

    @property
    def program(self) -> Program:
        if self._program is None:
            # Imported before the lock is acquired: a thread that imports something else may wait for it.
            from tensortap.launcher.program import Program

            with self._creation_lock:
                self._program = self._program or Program(self._spec, self._optimizers)
        return self._program

    def at_exit(self, process: int) -> None:
        """Write the facts of a program without a model when it exits; not in a forked child."""
        has_model = self._program is not None and self._program.has_model
        if process == os.getpid() and not has_model:
            from tensortap.launcher.outcome import write_program_facts_at_exit

            self.run_guarded(write_program_facts_at_exit, self._spec)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name in self._awaited_modules:
            self._awaited_modules.discard(name)
            return self._find_and_notify(name, path, target)
        if name.startswith("torch"):
            self._hook_torch()
        return None

    def run_guarded(self, action: Callable[..., Any], *arguments: Any) -> Any:
        """Run an action in the user's program: on failure log, and uninstall all hooks."""
        try:
            return action(*arguments)
        except Exception:  # a guest in the program's imports
            from tensortap.core.settings import is_strict

            self._uninstall()
            if is_strict():
                raise
            from logging import getLogger

            getLogger("tensortap.run").exception("watching failed and is given up; the program goes on")
            return None

    def _hook_torch(self) -> None:
        module = getattr(sys.modules.get(_MODULES), "Module", None)
        if module is not None and "models" not in self._access_hooks:
            self._access_hooks["models"] = MethodAccessHook(module, "__call__", self._on_module_call)
        optimizer = getattr(sys.modules.get(_OPTIMIZERS), "Optimizer", None)
        if optimizer is not None and "optimizers" not in self._access_hooks:
            self._access_hooks["optimizers"] = MethodAccessHook(
                optimizer, "__init__", self._register_optimizer
            )
        if self._spec.observes_models and self._scripting_hook is None:
            self._hook_scripting()

    def _hook_scripting(self) -> None:
        if is_jit_imported():
            self._scripting_hook = ScriptingHook(lambda model: self.run_guarded(self._release, model))

    def _release(self, model: Any) -> None:
        if self._program is not None:
            self._program.release(model)

    def _on_module_call(self, model: Any) -> Iterable[Any]:
        """Register a module that is being called; without submodules and parameters it is no model."""
        if not model._modules and not model._parameters:
            return ()
        return self.run_guarded(self._register_model, model) or ()

    def _register_model(self, model: Any) -> Iterable[Any]:
        if is_scripting():
            return ()
        known_modules = self.program.register(model)
        if not self.program.watches_later_models:
            self._uninstall()
        return known_modules

    def _register_optimizer(self, optimizer: Any) -> Iterable[Any]:
        self._optimizers.add(optimizer)
        return ()

    def _uninstall(self) -> None:
        for hook in self._access_hooks.values():
            hook.remove()
        if self._scripting_hook is not None:
            self._scripting_hook.remove()
        if self in (sys.meta_path or ()):
            sys.meta_path.remove(self)

    def _find_and_notify(self, name: str, path: Any, target: Any) -> Any:
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                self._notify_after_load(name, spec)
                return spec
        return None

    def _notify_after_load(self, name: str, spec: Any) -> None:
        execute = getattr(spec.loader, "exec_module", None)

        def execute_and_notify(module: Any) -> None:
            execute(module)  # type: ignore[misc]
            if name == _TAPPING:
                self._listen_for_taps(module)
            else:
                self.run_guarded(lambda: self.program.capture_functions_of(name))

        try:
            spec.loader.exec_module = execute_and_notify
        except AttributeError:  # a loader of the program's own, with slots
            pass

    def _listen_for_taps(self, tapping: Any) -> None:
        """Import nothing before the first value is tapped: this may run during an import of ours."""

        def on_first_tap(value: Any, name: str, site: Any) -> None:
            if not self.run_guarded(lambda: self.program.receive_tap(value, name, site, on_first_tap)):
                tapping.remove_tap_listener(on_first_tap)

        tapping.add_tap_listener(on_first_tap)


class MethodAccessHook:
    """A descriptor in place of a method: calls `on_access(instance)` on lookup, and returns the method.

    No frame of ours is on the stack while the method runs, and the class still shows its own method.
    `on_access` returns the objects whose lookups need not be reported again.
    """

    __slots__ = ("_class", "_known", "_method", "_name", "_on_access")

    def __init__(self, owner: type, name: str, on_access: Callable[[Any], Iterable[Any]]) -> None:
        self._class, self._name, self._on_access = owner, name, on_access
        self._method: Any = vars(owner)[name]
        self._known: dict[int, Any] = {}
        setattr(owner, name, self)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is None:
            return self._method
        if id(instance) not in self._known:
            for known in self._on_access(instance):
                self._mark_known(known)
        return self._method.__get__(instance, owner)

    def _mark_known(self, instance: Any) -> None:
        # An id is reused once its object is collected, so the entry must go with it.
        key, known = id(instance), self._known
        known[key] = ref(instance, lambda _: known.pop(key, None))

    def remove(self) -> None:
        if vars(self._class).get(self._name) is self:
            setattr(self._class, self._name, self._method)


def _module_in_pattern(pattern: str) -> str:
    """`pkg.mod` of a pattern `pkg.mod:func.var`, else an empty string."""
    above, colon, _ = pattern.removeprefix("!").partition(":")
    return above if colon else ""


_MAIN_OF_CHILD = "__mp_main__"  # the name of the script while a spawned child of multiprocessing executes it

TraceFunction = Callable[[FrameType, str, Any], Any]


def await_definitions(patterns: Sequence[str], notify: Callable[[], object]) -> None:
    """Call `notify` once every name that the patterns start with is defined in the script's namespace.

    No import announces them, so the lines of the script are traced until then. Names that its source does not
    define are not awaited; with a wildcard, `notify` is called at the first call of a function of the script.
    """
    names = {
        _first_name(pattern) for pattern in patterns if pattern.removeprefix("!").startswith(f"{_MAIN}:")
    }
    plain = {name for name in names if name.isidentifier()}
    defined = _names_defined_in_script()
    awaited = plain if defined is None else plain & defined
    if awaited or names != plain:
        DefinitionTracer(awaited, has_wildcard=names != plain, notify=notify).start()


class DefinitionTracer:
    """A trace function for the lines of the script's module frame; all other frames run untraced."""

    def __init__(self, names: set[str], *, has_wildcard: bool, notify: Callable[[], object]) -> None:
        self._names, self._has_wildcard, self._notify = names, has_wildcard, notify
        self._previous_trace: Any = None

    def start(self) -> None:
        self._previous_trace = sys.gettrace()
        sys.settrace(self.trace_call)

    def trace_call(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        if frame.f_globals.get("__name__") not in (_MAIN, _MAIN_OF_CHILD):
            return None
        if frame.f_code.co_name == "<module>":
            return self.trace_line
        if self._has_wildcard and self._names <= frame.f_globals.keys():
            self._finish()
        return None

    def trace_line(self, frame: FrameType, event: str, argument: Any) -> TraceFunction | None:
        are_defined = not self._has_wildcard and self._names <= frame.f_globals.keys()
        if are_defined or event == "return":
            self._finish()
            return None
        return self.trace_line

    def _finish(self) -> None:
        if sys.gettrace() == self.trace_call:  # else a debugger has replaced it
            sys.settrace(self._previous_trace)
        with _script_as_main():
            self._notify()


@contextmanager
def _script_as_main() -> Iterator[None]:
    """In a spawned child, use the script as `__main__` already while it is being executed."""
    main, script = sys.modules[_MAIN], sys.modules.get(_MAIN_OF_CHILD)
    sys.modules[_MAIN] = script or main
    try:
        yield
    finally:
        sys.modules[_MAIN] = main


def _first_name(pattern: str) -> str:
    return pattern.partition(":")[2].partition(".")[0]


def _names_defined_in_script() -> set[str] | None:
    """Names of the functions, classes and imports in the script's source; None where there is no source."""
    import ast  # imported lazily: few programs need it, and this module loads in every Python

    try:
        with open(sys.argv[0], "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, IndexError, SyntaxError, ValueError):
        return None
    imported = (node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom))
    aliases = {alias.asname or alias.name for node in imported for alias in node.names}
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return aliases | {node.name for node in ast.walk(tree) if isinstance(node, definitions)}


# Where script() and trace() turn a module into a ScriptModule; both take the module as their first argument.
_ENTRY_POINTS = {"torch.jit._recursive": "create_script_module", "torch.jit._trace": "make_module"}


def is_jit_imported() -> bool:
    return all(hasattr(sys.modules.get(module_name), name) for module_name, name in _ENTRY_POINTS.items())


class ScriptingHook:
    """Wraps these entry points: `release(module)` is called before the original function."""

    def __init__(self, release: Callable[[Any], object]) -> None:
        self._functions = {
            module_name: getattr(sys.modules[module_name], name)
            for module_name, name in _ENTRY_POINTS.items()
        }
        self._wrappers = {
            module_name: _release_before(function, release)
            for module_name, function in self._functions.items()
        }
        for entry_module, name in _ENTRY_POINTS.items():
            setattr(sys.modules[entry_module], name, self._wrappers[entry_module])

    def remove(self) -> None:
        for module_name, name in _ENTRY_POINTS.items():
            if getattr(sys.modules[module_name], name) is self._wrappers[module_name]:
                setattr(sys.modules[module_name], name, self._functions[module_name])


def _release_before(function: Callable[..., Any], release: Callable[[Any], object]) -> Callable[..., Any]:
    @wraps(function)
    def wrapper(module: Any, *arguments: Any, **options: Any) -> Any:
        release(module)
        return function(module, *arguments, **options)

    return wrapper


def is_scripting() -> bool:
    """Is torch.jit scripting or tracing a module in this thread?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch.jit."):
            return True
        frame = frame.f_back
    return False
