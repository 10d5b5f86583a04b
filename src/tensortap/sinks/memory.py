"""A sink that keeps records in memory, as one series per name."""

from tensortap.core.record import Record, Series
from tensortap.frameworks.nested import snapshot


class Memory:
    """Keeps what it is given; `series` is what a reader looks at."""

    def __init__(self) -> None:
        self.series: dict[str, Series] = {}

    def write(self, record: Record) -> None:
        series = self.series.setdefault(record.name, Series(record.name))
        series.values.append(snapshot(record.value))
        series.steps.append(record.step)
        series.ranks.append(record.rank)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
