"""What the tests of followed functions share: a source that tells short lines to a list."""

from tensortap.core.tap import Tap
from tensortap.sources.calls.functions import TracedFunctions


class Told:
    """A sink of one line per record: its depth as dots, kind, name, and the value where it is small."""

    def __init__(self):
        self.records = []

    def write(self, record):
        self.records.append(record)

    def flush(self):
        pass

    def close(self):
        pass

    @property
    def lines(self):
        return [shown(record) for record in self.records]

    def of(self, *kinds):
        return [shown(record) for record in self.records if record.kind in kinds]

    @property
    def changes(self):
        return [record.name.split(".", 1)[1] for record in self.records if record.kind == "local"]


def shown(record):
    value = record.value
    text = f" {value!r}" if type(value) in (int, str, float, bool, list, dict, type(None)) else ""
    return f"{'.' * record.site.depth}{record.kind} {record.name}{'' if record.kind == 'call' else text}"


def following(**options):
    """The source and what it tells; end it with `source.stop()`."""
    source, told = TracedFunctions(**options), Told()
    Tap(sinks=[told]).attach(source)
    return source, told
