"""What all cases come to: counts, bars, misses."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from planted.answers import FLOOR, REPLAY, TOOLS, Limits
from planted.score import ALONE, IN_PARTS, IN_RANKS, ON_TOP, Case
from planted.several import Several
from planted.shapes import Shapes
from planted.units import DTYPES, Worst

ARRANGED = "arrangements"
# By number type: of all bugs in single precision, of those above noise in half.
BARS = {
    ("float32", FLOOR): 0.97,
    ("float32", REPLAY): 0.99,
    ("bfloat16", FLOOR): 0.65,
    ("bfloat16", REPLAY): 0.90,
}
SEVERAL_BAR, PLACED_BAR = 0.90, 0.99


def is_innocent(one: Case) -> bool:
    """Nobody may be accused."""
    return one.located is None or one.family == ARRANGED


@dataclass
class Results:
    """All of one run."""

    limits: dict[str, Limits]
    worst: dict[str, tuple[Worst, Worst]]  # of harmless pairs, where limits were fixed
    cases: list[Case] = field(default_factory=list)
    several: list[Several] = field(default_factory=list)
    placed: Counter[str] = field(default_factory=Counter)
    shapes: Shapes = field(default_factory=dict)  # of differences, by what was done
    detectors: Shapes = field(default_factory=dict)  # by who tells them

    def planted(self, dtype: str, tool: str, *, above_noise: bool = False) -> list[Case]:
        """Bugs that the tool was asked about; arrangements are no bugs."""
        return [
            one
            for one in self.cases
            if one.located is not None
            and (one.dtype, one.family != ARRANGED) == (dtype, True)
            and tool in one.answers
            and (one.is_above_noise or not above_noise)
        ]

    def arranged(self, dtype: str, tool: str) -> list[Case]:
        """What has to be told as equal up to something."""
        chosen = [one for one in self.cases if one.family == ARRANGED and one.dtype == dtype]
        return [one for one in chosen if tool in one.answers]

    def innocent(self, dtype: str, tool: str) -> list[Case]:
        return [one for one in self.cases if one.dtype == dtype and is_innocent(one) and tool in one.answers]

    @property
    def kinds(self) -> dict[str, set[str]]:
        """Kinds of bugs, by family."""
        found: dict[str, set[str]] = {}
        for one in self.cases:
            if one.located is not None:
                found.setdefault(one.family, set()).add(one.what)
        return found


@dataclass(frozen=True)
class Bar:
    """A promise, and what came of it."""

    what: str
    wanted: str
    found: str
    is_met: bool


def located(cases: Sequence[Case], tool: str) -> int:
    return sum(one.is_hit(tool) for one in cases)


def seen(cases: Sequence[Case], tool: str) -> int:
    return sum(one.is_seen(tool) for one in cases)


def accused(cases: Sequence[Case], tool: str) -> int:
    return sum(one.answers[tool].accuses for one in cases)


def share(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.1f} %)" if whole else "")


def bars(made: Results) -> list[Bar]:
    """Of what was run."""
    found = [*_false_alarms(made), *_located(made), *_several(made), *_placed(made)]
    return [one for one in found if "0 of 0" not in one.found]


def _false_alarms(made: Results) -> Iterable[Bar]:
    for tool in (FLOOR, REPLAY):
        for dtype in DTYPES:
            pairs = made.innocent(dtype, tool)
            alarms = accused(pairs, tool)
            what = f"false alarms, {dtype}, {tool.partition(', ')[2]}"
            yield Bar(what, "0", f"{alarms} of {len(pairs)}", alarms == 0 and bool(pairs))


def _located(made: Results) -> Iterable[Bar]:
    for (dtype, tool), least in BARS.items():
        is_half = dtype != "float32"
        cases = [*made.planted(dtype, tool, above_noise=is_half), *made.arranged(dtype, tool)]
        hits = located(cases, tool)
        how = {FLOOR: "with a floor", REPLAY: "by replay"}[tool]
        what = f"located {how}, {dtype}{', above noise' if is_half else ''}"
        is_met = bool(cases) and hits / len(cases) >= least
        yield Bar(what, f"{100 * least:.0f} %", share(hits, len(cases)), is_met)


def _several(made: Results) -> Iterable[Bar]:
    for dtype in DTYPES:
        for count, words in ((2, "two"), (3, "three")):
            cases = [one for one in made.several if one.dtype == dtype and len(one.bugs) == count]
            hits = sum(one.are_found for one in cases)
            is_met = bool(cases) and hits / len(cases) >= SEVERAL_BAR
            what = f"{words} bugs at once, all named by replay, {dtype}"
            yield Bar(what, f"{100 * SEVERAL_BAR:.0f} %", share(hits, len(cases)), is_met)


def _placed(made: Results) -> Iterable[Bar]:
    total, right = made.placed.total(), made.placed["right"]
    is_met = bool(total) and right / total >= PLACED_BAR
    yield Bar("placements found", f"{100 * PLACED_BAR:.0f} %", share(right, total), is_met)
    wrong = made.placed["wrong and certain"]
    yield Bar("placements wrong and called certain", "0", str(wrong), wrong == 0)


def families(made: Results, dtype: str) -> dict[str, list[str]]:
    return {family: _cells(made, dtype, family=family) for family in made.kinds}


def on_top(made: Results, dtype: str) -> dict[str, list[str]]:
    """By what the bug is on top of."""
    return {scene: _cells(made, dtype, scene=scene) for scene in (ON_TOP, IN_PARTS, IN_RANKS)}


def _cells(made: Results, dtype: str, **which: str) -> list[str]:
    """Located by both of ours; of half precision those above noise."""
    cells = []
    for tool in (FLOOR, REPLAY):
        chosen = made.planted(dtype, tool, above_noise=dtype != "float32")
        chosen += made.arranged(dtype, tool) if "family" in which else []
        chosen = [
            one for one in chosen if all(getattr(one, name) == wanted for name, wanted in which.items())
        ]
        cells.append(f"{located(chosen, tool)} of {len(chosen)}" if chosen else "")
    return cells


def table(made: Results, dtype: str) -> list[list[str]]:
    """One row for each tool."""
    rows = []
    for tool in TOOLS:
        pairs, cases = made.innocent(dtype, tool), made.planted(dtype, tool)
        alone, others = ([one for one in cases if (one.scene == ALONE) is wanted] for wanted in (True, False))
        above = [one for one in cases if one.is_above_noise]
        cells = [f"{located(some, tool)} / {seen(some, tool)} of {len(some)}" for some in (alone, others)]
        rows.append(
            [tool, f"{accused(pairs, tool)} of {len(pairs)}", *cells, share(located(above, tool), len(above))]
        )
    return rows


def misses(made: Results, dtype: str, tool: str) -> list[tuple[str, str, str, int]]:
    """Bug, models and scenes, what was answered instead, how often; those below noise are not listed."""
    found: Counter[tuple[str, str]] = Counter()
    where: dict[tuple[str, str], dict[str, None]] = {}
    for one in made.planted(dtype, tool, above_noise=dtype != "float32"):
        if not one.is_hit(tool):
            key = one.what, _in_general(str(one.answers[tool]))
            found[key] += 1
            where.setdefault(key, {})[f"{one.kind} ({one.scene})"] = None
    return [(what, told, ", ".join(where[what, told]), count) for (what, told), count in found.most_common()]


def _in_general(told: str) -> str:
    return told if len(told) <= 90 else f"{told[:87]}..."
