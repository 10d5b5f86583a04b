"""What can be selected in a model, without running it."""

from __future__ import annotations

from typing import Any

from tensortap.formats.table import table_html, table_text
from tensortap.formats.tree_words import plural
from tensortap.recording.capture import Selector
from tensortap.sources.selection import selection
from tensortap.sources.sites import ModuleSite, inputs_of, require_module, sites_of, stored, walk


class Sites(list[ModuleSite]):
    """Sites of a model; shown as a table with what their modules take and hold."""

    @property
    def names(self) -> list[str]:
        return [site.name for site in self]

    def __repr__(self) -> str:
        return "\n".join([self._headline(), table_text(self._table())])

    def _repr_html_(self) -> str:
        return table_html(self._headline(), self._table())

    def _headline(self) -> str:
        return f"{plural(len(self), 'site')} of {plural(len({site.path for site in self}), 'module')}"

    def _table(self) -> list[list[str]]:
        modules = {site.path: site for site in self}
        shown: dict[str, list[str]] = {path: [] for path in modules}
        for site in self:
            shown[site.path].append(site.name)
        rows = [[", ".join(_brief(names)), *_about(modules[path])] for path, names in shown.items()]
        return [["site", "class", ".in", "parameters and buffers"], *rows]


def sites(model: Any, *patterns: Selector) -> Sites:
    """What the patterns select, in the model's order; without patterns everything but gradients.

    >>> tt.sites(model, "encoder.layers.0.**")
    """
    require_module(model)
    if patterns:
        return Sites(wanted.site for wanted in selection(model, patterns))
    found = (sites_of(".".join(names), module, gradients=False) for names, module in walk(model))
    return Sites(site for of_module in found for site in of_module)


def _brief(names: list[str]) -> list[str]:
    return names[:1] if len(names) > 1 else names


def _about(site: ModuleSite) -> list[str]:
    held = [f"{name}{_shape(getattr(site.module, name))}" for name in stored(site.module)]
    return [site.module_class, ", ".join(inputs_of(site.module).names), ", ".join(held)]


def _shape(value: Any) -> str:
    return f"[{','.join(map(str, value.shape))}]" if hasattr(value, "shape") else ""
