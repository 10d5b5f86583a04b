"""The sites of a model: outputs, inputs, parameters and buffers, gradients of each; exclusion of some."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from tensortap.core.patterns import items_match
from tensortap.core.record import Kind

# Wrappers are transparent: the path shows the module they wrap.
_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "ActivationWrapper": "_checkpoint_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}
_BRACKETS = re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|([^\]]*))\]")
AFTER_STEP = "after_step"
_GRADIENT_KINDS: dict[Kind, Kind] = {
    "output": "grad_output",
    "input": "grad_input",
    "param": "grad_param",
    "local": "grad_local",
    "return": "grad_return",
}
VARIABLES: tuple[Kind, ...] = ("local", "return")  # observed inside functions
_GRADIENT_TARGETS: dict[Kind, Kind] = {gradient: kind for kind, gradient in _GRADIENT_KINDS.items()}


class ModuleSite(NamedTuple):
    """A site of a model where a value can be recorded; `path` is the module's, `parameter` names an input,
    a parameter or buffer, or a variable (`forward.scores`).

    For a function without a model, `module` is the Python module or class that holds it, and `path` its name
    up to the colon (`pkg.mod:`) or class (`pkg.mod:Class`)."""

    path: str
    kind: Kind
    module: Any
    parameter: str = ""
    is_after_step: bool = False
    function: Any = None
    is_own_call: Callable[[Any], bool] | None = None  # by the first argument, if the function is shared

    @property
    def name(self) -> str:
        """The name of its records, as far as it is known before the model runs."""
        own = model_output_name(self.module) if self.function is None else ""
        stem = site_stem(self.path, self.kind, self.parameter, own)
        if self.is_after_step:
            return f"{stem}.{AFTER_STEP}"
        return f"{stem}.grad" if self.is_gradient else stem

    @property
    def is_gradient(self) -> bool:
        return self.kind.startswith("grad_")

    @property
    def of(self) -> Kind:
        """The kind it is a gradient of; otherwise its own kind."""
        return _GRADIENT_TARGETS.get(self.kind, self.kind)

    @property
    def module_class(self) -> str:
        return class_name(self.module)


class ForwardSignature(NamedTuple):
    """The parameters of a forward."""

    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    varargs: str  # the name of `*args`
    is_variadic: bool  # has `*args` or `**kwargs`

    @property
    def names(self) -> tuple[str, ...]:
        return self.positional + self.keywords


class SelectedSite(NamedTuple):
    """A selected site, optionally narrowed to items of its value and to the n-th call."""

    site: ModuleSite
    items: str = ""
    call: int | None = None
    excluded: tuple[SelectedSite, ...] = ()

    @property
    def takes_all(self) -> bool:
        is_one_of_several = bool(self.site.parameter) and self.site.of not in VARIABLES
        return not (self.items or is_one_of_several or self.excluded) and self.call is None

    def accepts(self, parameter: str, item: str, call: int) -> bool:
        return self._covers(parameter, item, call) and not any(
            exclusion._covers(parameter, item, call) for exclusion in self.excluded
        )

    def _covers(self, parameter: str, item: str, call: int) -> bool:
        return (
            (self.call is None or self.call == call)
            and self.site.parameter in ("", parameter)
            and (items_match(self.items, item) or items_match(self.items, with_dotted_keys(item)))
        )


def with_dotted_keys(item: str) -> str:
    """`.k.0` for `['k'][0]`: keys and indices may be written like fields."""
    return _BRACKETS.sub(lambda match: "." + (match[1] or match[2] or match[3] or ""), item)


def require_module(model: Any) -> Any:
    """The model, or a TypeError if it is not a torch.nn.Module."""
    if hasattr(getattr(model, "_modules", None), "items") and hasattr(model, "register_forward_hook"):
        return model
    raise TypeError(
        f"a {type(model).__name__} is no model; give a torch.nn.Module, or None for tt.tap and for variables "
        "of functions ('pkg.mod:func.var')"
    )


def model_output_name(model: Any) -> str:
    """The name of a model's own output: `out`, or its class if a child module is named `out`."""
    return f"<{class_name(model)}>" if "out" in model._modules else "out"


def site_stem(path: str, kind: Kind, parameter: str, own: str) -> str:
    dotted = f"{path}." if path and not path.endswith(":") else path
    if kind in ("input", "grad_input"):
        return f"{dotted}in.{parameter}" if parameter else f"{dotted}in"
    if kind in ("param", "grad_param") or _GRADIENT_TARGETS.get(kind, kind) in VARIABLES:
        return dotted + parameter
    return path or own


def unwrap(module: Any) -> Any:
    """The module inside parallel, compile and checkpoint wrappers."""
    while True:
        attribute = _wrapped_name(_class_of(module))
        inner_module = module._modules.get(attribute) if attribute else None
        if inner_module is None:
            return module
        module = inner_module


@lru_cache(maxsize=4096)
def _wrapped_name(module_class: type) -> str | None:
    return next((_WRAPPERS[name] for name in _class_names(module_class) if name in _WRAPPERS), None)


def walk_modules(model: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every module under each of its names, the model first."""
    yield from _walk((), unwrap(model), frozenset())


def class_names(module: Any) -> tuple[str, ...]:
    """The names of its class and all base classes."""
    return _class_names(_class_of(module))


def _class_of(module: Any) -> type:
    module_class: type = type(module)
    return module_class


@lru_cache(maxsize=4096)
def _class_names(module_class: type) -> tuple[str, ...]:
    return tuple(base.__name__ for base in module_class.__mro__)


def class_name(module: Any) -> str:
    """The user's class name: FSDP2 prepends its own class."""
    names = class_names(module)
    return names[1] if "FSDPModule" in names and names[0].startswith("FSDP") else names[0]


def supports_hooks(module: Any) -> bool:
    """Whether Python hooks run: not inside scripted modules, but on a traced top-level module."""
    names = class_names(module)
    return "ScriptModule" not in names or "TopLevelTracedModule" in names


def forward_signature(module: Any) -> ForwardSignature:
    """The signature of its forward; one set on the instance takes precedence."""
    own, module_class = module.__dict__.get("forward"), _class_of(module)
    return _class_forward_signature(module_class) if own is None else _read_signature(own, False)


def has_forward(module: Any) -> bool:
    """Whether it can be called, unlike a ModuleList."""
    return "forward" in module.__dict__ or _class_has_forward(_class_of(module))


@lru_cache(maxsize=4096)
def _class_has_forward(module_class: type) -> bool:
    return getattr(_class_forward(module_class), "__name__", "") != "_forward_unimplemented"


@lru_cache(maxsize=4096)
def _class_forward_signature(module_class: type) -> ForwardSignature:
    forward = _class_forward(module_class)
    is_method = hasattr(forward, "__get__") and not isinstance(forward, staticmethod)
    return _read_signature(forward, is_method)


def _class_forward(module_class: type) -> Any:
    """Read statically: getattr on a traced module's class raises."""
    return inspect.getattr_static(module_class, "forward", None)


def _read_signature(function: Any, is_method: bool) -> ForwardSignature:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return ForwardSignature((), (), "", True)
    if is_method and parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]  # self, unless the `*args` of a decorator takes it
    named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    positional = tuple(parameter.name for parameter in parameters if parameter.kind in named)
    keywords = tuple(parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY)
    varargs = next(
        (parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), ""
    )
    is_variadic = bool(varargs) or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
    return ForwardSignature(positional, keywords, varargs, is_variadic)


def sites_of(path: str, module: Any, *, gradients: bool = True) -> Iterator[ModuleSite]:
    """All sites of one module."""
    callable_sites = _callable_sites(path, module) if has_forward(module) else []
    sites = callable_sites + [ModuleSite(path, "param", module, name) for name in state_names(module)]
    yield from sites
    if gradients:
        yield from (gradient_of(site) for site in sites if site.parameter not in module._buffers)


def gradient_of(site: ModuleSite) -> ModuleSite:
    return site._replace(kind=gradient_kind(site.kind), is_after_step=False)


def gradient_kind(kind: Kind) -> Kind:
    return _GRADIENT_KINDS[kind]


def _callable_sites(path: str, module: Any) -> list[ModuleSite]:
    inputs = [ModuleSite(path, "input", module, name) for name in forward_signature(module).names]
    return [ModuleSite(path, "output", module), *inputs]


def site_names(model: Any) -> list[str]:
    """The names of all sites except gradients, for messages."""
    return [
        site.name
        for names, module in walk_modules(model)
        for site in sites_of(".".join(names), module, gradients=False)
    ]


def _walk(
    names: tuple[str, ...], module: Any, above: frozenset[int]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield names, module
    above |= {id(module)}
    for name, child in child_modules(module):
        if id(child) not in above:
            yield from _walk((*names, name), child, above)


def child_modules(module: Any) -> Iterator[tuple[str, Any]]:
    for name, child in module._modules.items():
        if child is not None:
            yield name, unwrap(child)


def state_names(module: Any) -> list[str]:
    tensors = {**module._parameters, **module._buffers}
    return [name for name, value in tensors.items() if value is not None]


def subtract_exclusions(selected: SelectedSite, excluded: Sequence[SelectedSite]) -> SelectedSite | None:
    """The rest of a selected site, or None. Excluding a module's output excludes all of that module;
    excluding the return value of a function without a model excludes all of that function."""
    site = selected.site
    if site.function is not None:
        return _subtract_from_function(
            selected, [exclusion for exclusion in excluded if _is_in_function(exclusion.site, site)]
        )
    applicable = [
        exclusion
        for exclusion in excluded
        if exclusion.site.path == site.path and _applies_to(exclusion, site)
    ]
    if any(
        not exclusion.items and exclusion.call is None and exclusion.site.parameter in ("", site.parameter)
        for exclusion in applicable
    ):
        return None
    return selected._replace(excluded=tuple(applicable))


def _applies_to(excluded: SelectedSite, site: ModuleSite) -> bool:
    is_whole_module = excluded.site.kind == "output" and not excluded.items and excluded.call is None
    is_same_kind = excluded.site.kind == site.kind and excluded.site.is_after_step == site.is_after_step
    return is_whole_module or is_same_kind


def _subtract_from_function(
    selected: SelectedSite, applicable: Sequence[SelectedSite]
) -> SelectedSite | None:
    if any(not exclusion.items and exclusion.call is None for exclusion in applicable):
        return None
    same_kind = [
        exclusion._replace(site=selected.site)
        for exclusion in applicable
        if exclusion.site.kind == selected.site.kind
    ]
    return selected._replace(excluded=tuple(same_kind))


def _is_in_function(excluded: ModuleSite, site: ModuleSite) -> bool:
    name, _, nth = excluded.parameter.partition("#")
    site_name, _, site_nth = site.parameter.partition("#")
    if excluded.path != site.path:
        return False
    if excluded.kind == "return":
        return name == site_name.partition(".")[0]
    return excluded.kind == site.kind and name == site_name and nth in ("", site_nth)
