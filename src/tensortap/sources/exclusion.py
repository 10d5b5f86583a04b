"""What `!patterns` leave of what others select."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensortap.core.patterns import Pattern
from tensortap.sources.sites import ModuleSite, Wanted


def excludes(pattern: Any) -> bool:
    return isinstance(pattern, Pattern) and pattern.excludes


def without(wanted: Wanted, excluded: Sequence[Wanted]) -> Wanted | None:
    """What is left of a site; excluding a module's output excludes all of that module, and excluding what a
    function without a model returns all of that function."""
    site = wanted.site
    if site.function is not None:
        return _function_without(wanted, [one for one in excluded if _is_in_function(one.site, site)])
    here = [one for one in excluded if one.site.path == site.path and _concerns(one, site)]
    if any(not one.items and one.call is None and one.site.parameter in ("", site.parameter) for one in here):
        return None
    return wanted._replace(excluded=tuple(here))


def _concerns(excluded: Wanted, site: ModuleSite) -> bool:
    is_whole_module = excluded.site.kind == "output" and not excluded.items and excluded.call is None
    is_same_kind = excluded.site.kind == site.kind and excluded.site.is_after_step == site.is_after_step
    return is_whole_module or is_same_kind


def _function_without(wanted: Wanted, here: Sequence[Wanted]) -> Wanted | None:
    if any(not one.items and one.call is None for one in here):
        return None
    same = [one._replace(site=wanted.site) for one in here if one.site.kind == wanted.site.kind]
    return wanted._replace(excluded=tuple(same))


def _is_in_function(excluded: ModuleSite, site: ModuleSite) -> bool:
    name, _, nth = excluded.parameter.partition("#")
    its_name, _, its_nth = site.parameter.partition("#")
    if excluded.path != site.path:
        return False
    if excluded.kind == "return":
        return name == its_name.partition(".")[0]
    return excluded.kind == site.kind and name == its_name and nth in ("", its_nth)
