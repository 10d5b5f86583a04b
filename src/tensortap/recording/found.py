"""What a capture holds under one name or pattern, when it is more than one value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tensortap.core.record import Record
from tensortap.frameworks.base import framework_of


class CapturedMany:
    """Several values, in the order in which they were seen.

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
        """All values as one, along a new first dimension."""
        shapes = {tuple(getattr(value, "shape", ())) for value in self.values}
        if len(shapes) > 1:
            raise ValueError(f"values of different shapes cannot be stacked: {sorted(shapes)}")
        if framework_of(self.values[0]).name == "torch":
            import sys

            return sys.modules["torch"].stack(self.values)
        import numpy as np

        return np.stack([framework_of(value).to_numpy(value) for value in self.values])

    def df(self) -> Any:
        """A pandas table with one row per value."""
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
