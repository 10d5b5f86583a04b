"""The results of a capture, read by name or pattern, and printed as a tree."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tensortap.core.errors import UnknownNameError
from tensortap.core.patterns import closest_names, parse_pattern, pattern_regex
from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of
from tensortap.recording.destination import Destination, fetch_pending_summaries
from tensortap.render import html
from tensortap.render.value_rows import value_rows
from tensortap.render.value_tree import render_value_tree, stream_limits
from tensortap.sources.selection.missing import Missing


class Captured:
    """The reading side of a capture."""

    _destination: Destination

    @property
    def missing(self) -> list[Missing]:
        raise NotImplementedError

    @property
    def records(self) -> list[Record]:
        """All records that are kept, in the order in which they were captured."""
        records = self._destination.records()
        fetch_pending_summaries(records)
        return records

    @property
    def names(self) -> list[str]:
        """All names, in the order of their first records."""
        return list(dict.fromkeys(record.name for record in self._destination.records()))

    @property
    def run(self) -> Path | None:
        """The run directory that `to="folder/"` creates."""
        return self._destination.run

    @property
    def dropped(self) -> int:
        """The number of oldest records dropped because of the limit."""
        return self._destination.memory.dropped if self._destination.memory else 0

    def clear(self) -> None:
        """Drop all records kept in memory."""
        if self._destination.memory is not None:
            self._destination.memory.clear()

    def first(self, predicate: Callable[[Record], bool]) -> Record | None:
        """The first record for which the predicate is true: `cap.first(tt.nonfinite)`."""
        return next((record for record in self.records if predicate(record)), None)

    def find(self, name: str) -> list[Record]:
        """All records of that name, else those it matches as a pattern, else leaves of a nested value."""
        records = self.records
        named = [record for record in records if record.name == name]
        if named:
            return named
        pattern, expression = parse_pattern(name), re.compile(pattern_regex(name))
        matching = [
            record
            for record in records
            if (expression.fullmatch(record.name) is not None) is not pattern.excludes
            and pattern.call in (None, record.call)
        ]
        return matching or [
            record for record in records if record.name.startswith((f"{name}[", f"{name}.out."))
        ]

    def __getitem__(self, name: str) -> Any:
        """The value of that name; a `CapturedMany` where there are several."""
        records = self.find(name)
        if not records:
            raise UnknownNameError(self._explain_unknown(name))
        return records[0].value if len(records) == 1 else CapturedMany(records)

    def __contains__(self, name: str) -> bool:
        return bool(self.find(name))

    def _ipython_key_completions_(self) -> list[str]:
        return self.names

    def __len__(self) -> int:
        memory = self._destination.memory
        return len(memory.records) if memory is not None else len(self._destination.records())

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __repr__(self) -> str:
        if self._destination.elsewhere_note:
            return "\n".join(
                [self._destination.elsewhere_note, *(f"missing: {entry}" for entry in self.missing)]
            )
        width, is_ascii = stream_limits(sys.stdout)
        rows = value_rows(self.records)
        return render_value_tree(rows, self._title(), self.missing, width, is_ascii, classes=self._classes())

    def _repr_html_(self) -> str:
        from tensortap.render.value_tree_html import render_value_tree_html

        if self._destination.elsewhere_note:
            return html.pre(repr(self))
        rows = value_rows(self.records, histogram=True)
        return render_value_tree_html(rows, self._title(), self.missing, classes=self._classes())

    @property
    def classes(self) -> dict[str, str]:
        """The class of each module by its path, where there is a model."""
        return self._classes()

    def _classes(self) -> dict[str, str]:
        """The class of each module by its path."""
        return {}

    def _title(self) -> str:
        return f"{self.dropped} older ones dropped" if self.dropped else ""

    def _explain_unknown(self, name: str) -> str:
        known = self.names
        reason = next((entry.reason for entry in self.missing if entry.name == name), None)
        if reason is not None:
            return f"{name!r} was selected but gave no record: {reason}"
        if self._destination.elsewhere_note:
            return f"no record {name!r}: {self._destination.elsewhere_note}"
        if not known:
            return f"no record {name!r}: nothing was captured; .missing says why, for each selected site"
        near = closest_names(name, known)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        return f"no record {name!r} in this capture; {hint}.names lists all {len(known)}"


class CapturedMany:
    """Several values, in the order in which they were captured.

    >>> cap["layers.*"].stack()
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)

    @property
    def values(self) -> list[Any]:
        return [record.value for record in self.records]

    @property
    def names(self) -> list[str]:
        return [record.name for record in self.records]

    @property
    def steps(self) -> list[Any]:
        return [record.step for record in self.records]

    @property
    def calls(self) -> list[int]:
        return [record.call for record in self.records]

    @property
    def ranks(self) -> list[Any]:
        return [record.rank for record in self.records]

    def stack(self) -> Any:
        """All values stacked along a new first dimension."""
        shapes = {tuple(getattr(value, "shape", ())) for value in self.values}
        if len(shapes) > 1:
            raise ValueError(f"values of different shapes cannot be stacked: {sorted(shapes)}")
        if framework_of(self.values[0]).name == "torch":
            import sys

            return sys.modules["torch"].stack(self.values)
        import numpy as np

        return np.stack([framework_of(value).to_numpy(value) for value in self.values])

    def df(self) -> Any:
        """A pandas DataFrame with one row per value."""
        try:
            import pandas as pd
        except ImportError:
            from tensortap.core.errors import MissingExtraError

            raise MissingExtraError("df() needs pandas: pip install pandas") from None
        columns = {"name": self.names, "step": self.steps, "call": self.calls, "rank": self.ranks}
        return pd.DataFrame({**columns, "value": self.values})

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values)

    def __getitem__(self, position: int) -> Any:
        return self.records[position].value

    def __repr__(self) -> str:
        shown = ", ".join(dict.fromkeys(self.names[:4]))
        return f"{len(self)} values of {shown}{', ...' if len(set(self.names)) > 4 else ''}"
