"""A sink that keeps records in memory, as one series per name."""

from dataclasses import replace

from tensortap.core.record import Record, Series
from tensortap.frameworks.nested import snapshot


class Memory:
    """Keeps what it is given; `series` is what a reader looks at."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}

    def write(self, record: Record) -> None:
        series = self.series.setdefault(record.name, Series(record.name))
        series.add(replace(record, value=snapshot(record.value)))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
