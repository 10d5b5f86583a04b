"""What can be selected in a model, or in a function, without running it."""

from __future__ import annotations

from typing import Any

from tensortap.core.errors import UnknownNameError
from tensortap.recording.capture import Selector
from tensortap.render import html
from tensortap.render.text import format_table
from tensortap.render.words import pluralize
from tensortap.sources.function_names import is_inspectable
from tensortap.sources.selection.function_sites import describe_binding, resolve_without_model
from tensortap.sources.selection.select import resolve_patterns
from tensortap.sources.sites import (
    ModuleSite,
    forward_signature,
    require_module,
    sites_of,
    state_names,
    walk_modules,
)


class Sites(list[ModuleSite]):
    """Sites of a model, printed as a table with the inputs, parameters and buffers of their modules; and of
    functions, with the lines that bind them."""

    @property
    def names(self) -> list[str]:
        return [site.name for site in self]

    def __repr__(self) -> str:
        return "\n".join(
            line for headline, table in self._tables() for line in (headline, format_table(table))
        )

    def _repr_html_(self) -> str:
        return "".join(html.table(table, headline) for headline, table in self._tables())

    def _tables(self) -> list[tuple[str, list[list[str]]]]:
        of_functions = [site for site in self if site.function is not None]
        of_modules = [site for site in self if site.function is None]
        tables = []
        if of_modules or not of_functions:
            count = pluralize(len({site.path for site in of_modules}), "module")
            tables.append((f"{pluralize(len(of_modules), 'site')} of {count}", self._table(of_modules)))
        if of_functions:
            count = pluralize(len({site.function for site in of_functions}), "function")
            rows = [[site.name, *describe_binding(site)] for site in of_functions]
            tables.append((f"{pluralize(len(rows), 'site')} of {count}", [["site", "is", "in"], *rows]))
        return tables

    def _table(self, sites: list[ModuleSite]) -> list[list[str]]:
        modules = {site.path: site for site in sites}
        shown: dict[str, list[str]] = {path: [] for path in modules}
        for site in sites:
            shown[site.path].append(site.name)
        rows = [
            [", ".join(_first_name_only(names)), *_describe_module(modules[path])]
            for path, names in shown.items()
        ]
        return [["site", "class", ".in", "parameters and buffers"], *rows]


def sites(model: Any = None, *patterns: Selector) -> Sites:
    """What the patterns select, in the model's order; without patterns everything but gradients.

    >>> tt.sites(model, "encoder.layers.0.**")
    >>> tt.sites(None, "pkg.mod:func.*")        # of a function; or tt.sites(func)
    """
    if is_inspectable(model) or (model is None and patterns):
        selected = resolve_without_model(model, patterns)
        if not selected:
            raise UnknownNameError(
                f"{patterns[0]!r} names no function; without a model give 'pkg.mod:func.var'"
            )
        return Sites(wanted.site for wanted in selected)
    require_module(model)
    if patterns:
        return Sites(wanted.site for wanted in resolve_patterns(model, patterns))
    of_modules = (sites_of(".".join(names), module, gradients=False) for names, module in walk_modules(model))
    return Sites(site for of_module in of_modules for site in of_module)


def _first_name_only(names: list[str]) -> list[str]:
    return names[:1] if len(names) > 1 else names


def _describe_module(site: ModuleSite) -> list[str]:
    state = [f"{name}{_format_shape(getattr(site.module, name))}" for name in state_names(site.module)]
    return [site.module_class, ", ".join(forward_signature(site.module).names), ", ".join(state)]


def _format_shape(value: Any) -> str:
    return f"[{','.join(map(str, value.shape))}]" if hasattr(value, "shape") else ""
