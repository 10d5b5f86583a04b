"""Lines that come again and again, as a loop makes them, told once with a count."""

from __future__ import annotations

from collections import deque

from tensortap.formats.call_tree_labels import Labels, Line
from tensortap.formats.tree_words import format_number

LONGEST_BLOCK = 64
_START = "│├└┌─ "


class Fold:
    """Passes lines on; what repeats the block before it, line by line, is counted instead. A block of one
    line may repeat at once, a longer one is written twice before its third time is held back. What came only
    once more is written after all: the count would take as much room.

    Single numbers may differ: the counter of a loop would keep everything apart. Where they went is told
    with the count.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._last: dict[str, int] = {}  # when a line was seen last, by its likeness
        self._now = 0
        self._period = self._alike = 0
        self._block: deque[Line] = deque(maxlen=2 * LONGEST_BLOCK)  # the latest, whether written or held
        self._held = 0
        self._before: dict[str, float | None] = {}  # the numbers when holding back began

    def add(self, line: Line) -> list[Line]:
        """What is to be written now."""
        likeness = line.likeness()
        period = self._now - self._last.get(likeness, -(1 << 60))
        self._last[likeness] = self._now
        self._now += 1
        if period == self._period:
            self._alike += 1
        else:
            done, self._period, self._alike = self._release(), period, 1
            self._block.append(line)
            return [*done, *self._first(line)]
        if self._alike <= self._period or self._period > LONGEST_BLOCK:
            self._block.append(line)
            return [line]
        return self._hold(line)

    def end(self) -> list[Line]:
        """What is still to be told."""
        done = self._release()
        self._period = self._alike = 0
        self._last.clear()
        return done

    def _first(self, line: Line) -> list[Line]:
        if len(self._last) > 4 * LONGEST_BLOCK:
            oldest = self._now - 2 * LONGEST_BLOCK
            self._last = {known: at for known, at in self._last.items() if at >= oldest}
        if self._period != 1:
            return [line]
        self._block.pop()
        return self._hold(line)

    def _hold(self, line: Line) -> list[Line]:
        if not self._held:
            self._before = {one.likeness(): one.number for one in list(self._block)[-self._period :]}
        self._held += 1
        self._block.append(line)
        return []

    def _release(self) -> list[Line]:
        if not self._held:
            return []
        times, left = divmod(self._held, self._period)
        latest, held, self._held = list(self._block), self._held, 0
        if times < 2:
            return latest[-held:]
        block = latest[-self._period - left : len(latest) - left]
        return [self._told(block, times), *latest[len(latest) - left :]]

    def _told(self, block: list[Line], times: int) -> Line:
        first = min((line.text for line in block), key=_indentation)
        start = first[: _indentation(first)].rstrip("├└┌─ ")
        form = self._labels.again if len(block) == 1 else self._labels.above
        counted = ", ".join(self._counted(line) for line in block if self._has_counted(line))
        words = form.format(lines=len(block), times=times) + (f" ({counted})" if counted else "")
        return Line(f"{start}   ⋮ {words}" if start else f"⋮ {words}")

    def _has_counted(self, line: Line) -> bool:
        return line.number is not None and self._before.get(line.likeness()) != line.number

    def _counted(self, line: Line) -> str:
        ends = self._before.get(line.likeness()), line.number
        return f"{line.counts} {' … '.join(format_number(end) for end in ends if end is not None)}"


def _indentation(text: str) -> int:
    return len(text) - len(text.lstrip(_START))
