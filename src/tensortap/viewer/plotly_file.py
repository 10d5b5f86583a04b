"""Where the installed plotly package keeps its script."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path


@lru_cache(maxsize=1)
def plotly_script_path() -> Path | None:
    """None where the package is not installed; it is not imported for it."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path if path.is_file() else None
