"""Which difference is the origin, and which are only inherited: inputs and outputs judged together."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tensortap.comparison.backward import BACKWARD, Gradients, Modules
from tensortap.comparison.entries import Entry
from tensortap.comparison.findings import Finding, Origin, placed, worse
from tensortap.comparison.floor import OWN
from tensortap.comparison.own_rounding import OwnRounding
from tensortap.comparison.ties import in_some_rows, is_tie
from tensortap.comparison.unseen import Unseen, maker
from tensortap.comparison.verdict import AFTER_STEP, BEYOND, Verdict

# A difference that grows by more than this on its way, in multiples of the noise, has a cause of its own.
_GROWTH = 16.0
_INSIDE = ("local", "call", "return", "yield", "raise")
_OWN: frozenset[Verdict] = frozenset(("flip", "nonfinite", "structure"))
_SORTABLE: frozenset[Verdict] = frozenset(("origin", "structure"))
_OF_WEIGHTS = ("param", "grad_param")  # which have no rows that anything could sort


@dataclass(slots=True)
class _Scope:
    """What has been seen in a module's own code: what came in, and what its parts gave."""

    worst: Finding | None = None
    has_inputs: bool = False
    call: int = 0
    sorting: Finding | None = None  # decisions that came in and fall otherwise, though no more than in a twin

    def add(self, found: Finding) -> None:
        self.worst = worse(self.worst, found)
        if found.pair.a.kind == "input" and is_tie(found):
            self.sorting = found


@dataclass(slots=True)
class _Walk:
    """One step of one rank, value by value in the order in which they were computed."""

    modules: Modules
    classes: dict[str, str]
    gradients: Gradients
    unseen: Unseen
    own: OwnRounding
    has_own_weights: bool  # those it began with: no step before can have changed them
    scopes: defaultdict[str, _Scope] = field(default_factory=lambda: defaultdict(_Scope))
    weights: dict[str, Finding] = field(default_factory=dict)
    given: Finding | None = None  # by the model, to whoever called it: it may come in again
    worst: Finding | None = None  # of all so far, the backward pass among them
    tie: Finding | None = None  # decisions that fell otherwise within noise: what follows moves in leaps

    def parent_of(self, found: Finding) -> Finding | None:
        """The worst of what the value was computed from, as far as was captured."""
        kind = found.kind
        if kind in BACKWARD or found.name.endswith(AFTER_STEP):
            return self.worst
        if kind == "value":
            return worse(self.scopes[""].worst, self.given)
        module = found.module
        if kind == "input":
            return self._around(module)
        return worse(self._within(module), self.weights.get(module))

    def _within(self, module: str) -> Finding | None:
        """Of a result: what came into the module and what its parts gave; else what is around it."""
        scope = self.scopes[module]
        if scope.has_inputs or not module:
            return scope.worst
        return worse(scope.worst, self._around(module))

    def _around(self, module: str) -> Finding | None:
        """Of what comes into a module: what was seen in the code that calls it."""
        if module:
            return self._within(self.modules[module])
        # What the model was called with is given to it, unless it comes from what the model gave before.
        return self.given if self.given is not None and self.given.is_beyond else None

    def sorting_of(self, found: Finding) -> Finding | None:
        """The decisions by which a module around it sorts its rows, where they differ within noise."""
        if found.kind in _OF_WEIGHTS:
            return None
        module = found.module
        while module:
            module = self.modules[module]
            if self.scopes[module].sorting is not None:
                return self.scopes[module].sorting
        return None

    def register(self, found: Finding) -> None:
        """Let it be seen by what comes after."""
        self.worst = worse(self.worst, found)
        self.tie = self.tie or (found if is_tie(found) else None)
        module, kind = found.module, found.kind
        if kind in BACKWARD:
            self.gradients.pass_by(found)
        elif kind == "input":
            scope = self.scopes[module]
            if found.call != scope.call or not scope.has_inputs:
                scope = self.scopes[module] = _Scope(has_inputs=True, call=found.call)
            scope.add(found)
        elif kind in _INSIDE:
            self.scopes[module].add(found)
        elif kind == "param":
            self.weights[module] = worse(self.weights.get(module), found) or found
        elif kind == "output" and not module:
            self.given = worse(self.given, found)
        else:
            around = self.modules[module] if kind == "output" else ""
            self.scopes[around].add(found)

    def blamed(self, found: Finding) -> tuple[str, str]:
        """The module, and what of it."""
        module = found.module
        if found.kind in BACKWARD:
            return self.gradients.blamed(found), "backward"
        if found.kind == "input":
            # What comes in wrong, from what is right, was made by the code around.
            return (self.modules[module], "own code") if module else (found.name, "data")
        if found.kind == "value":
            return found.name, "value"
        named = {"param": "param", "output": "output"}
        return module, named.get(found.kind, "local")


def localise(
    findings: Sequence[Finding], alone: Sequence[Entry] = (), measured: Collection[str] = ()
) -> tuple[list[Finding], list[Origin]]:
    """The findings with their final verdicts, in the same order, and the origins, first things first; `alone`
    is what has no partner, and may be at fault too; `measured` are the names that the floor knows."""
    walked = placed(findings) if any(map(_may_change, findings)) else ()
    table = list(walked or findings)
    origins: list[tuple[tuple[int, int, int], Origin]] = []
    by_rank: dict[int, list[_Place]] = {}
    for place, one in enumerate(walked):
        by_rank.setdefault(one.rank, []).append((place, one))
    for rank, of_rank in by_rank.items():
        for position, place, found, origin in _of_rank(of_rank, alone, measured):
            table[place] = found
            if origin is not None:
                origins.append(((found.step, position, rank), origin))
    # Of one module the first value that shows it is enough.
    ordered: dict[tuple[str, int, int], Origin] = {}
    for _, origin in sorted(origins, key=lambda one: one[0]):
        ordered.setdefault((origin.name, origin.step, origin.rank), origin)
    return table, list(ordered.values())


_Place = tuple[int, Finding]


def _may_change(found: Finding) -> bool:
    """Whether its surroundings may make something else of it, or it of them: of few, where runs are alike."""
    return found.verdict in BEYOND or found.noise.own is not None


def _of_rank(
    findings: list[_Place], alone: Sequence[Entry], measured: Collection[str]
) -> Iterable[tuple[int, int, Finding, Origin | None]]:
    earlier: Finding | None = None
    are_same = True  # all steps so far, bit for bit
    by_step: dict[int, list[_Place]] = {}
    for one in findings:
        by_step.setdefault(one[1].step, []).append(one)
    if all(found.noise.own is None for _, found in findings):  # else it counts what the steps before were
        changing = {found.step for _, found in findings if _may_change(found)}
        by_step = {step: by_step[step] for step in changing}
    known = Modules(found.module for _, found in findings)
    classes = {found.module: found.pair.a.class_name for _, found in findings if found.pair.a.class_name}
    unseen = Unseen(alone, known)
    own = OwnRounding(measured, (found for _, found in findings), alone, known)
    for step in sorted(by_step):
        gradients = Gradients([found for _, found in by_step[step]], known, classes)
        walk = _Walk(known, classes, gradients, unseen, own, are_same)
        begun: Finding | None = None
        for position, (place, found) in enumerate(_in_order(by_step[step])):
            judged, origin = _judged(walk, found, earlier)
            begun = begun or (judged if origin is not None else None)
            walk.register(judged)
            yield position, place, judged, origin
        earlier = earlier or begun
        are_same = are_same and (walk.worst is None or walk.worst.verdict == "identical")


def _in_order(findings: list[_Place]) -> list[_Place]:
    """As computed: a module's weights before what it does, what an optimizer made of them at the end."""
    if not any(_is_elsewhere(found) for _, found in findings):
        return findings
    firsts: dict[str, int] = {}
    for position, (_, found) in enumerate(findings):
        firsts.setdefault(found.module, position)

    def key(numbered: tuple[int, _Place]) -> tuple[int, int, int]:
        position, (_, found) = numbered
        if found.name.endswith(AFTER_STEP):
            return 2, position, 0
        if found.kind == "param":
            return 0, firsts[found.module], -1
        return int(found.kind in BACKWARD), position, 0

    return [one for _, one in sorted(enumerate(findings), key=key)]


def _is_elsewhere(found: Finding) -> bool:
    """Whether it was computed at another place than where it was seen."""
    entry = found.pair.a
    return entry.kind == "param" or entry.kind in BACKWARD or entry.name.endswith(AFTER_STEP)


def _judged(walk: _Walk, found: Finding, earlier: Finding | None) -> tuple[Finding, Origin | None]:
    if found.verdict in ("unreadable", "uncovered", "unaligned"):
        return found, None
    parent = walk.parent_of(found)
    if walk.has_own_weights and walk.unseen.before(found) is None:
        has_inputs = walk.scopes[maker(found, walk.modules)].has_inputs
        found = walk.own.judged(found, parent, has_inputs=has_inputs)
    if not found.is_beyond:
        return _healed(found, parent), None
    sorting = walk.sorting_of(found) if found.verdict in _SORTABLE else None
    if sorting is not None:
        return _resorted(found, sorting), None
    if found.source:  # of ties, see there
        return found, None
    if earlier is not None:
        return _inherited(found, earlier), None
    if parent is not None and parent.is_beyond and not _is_new(found, parent):
        return _inherited(found, parent), None
    if walk.tie is not None and found.ratio <= _GROWTH and in_some_rows(found):
        return _inherited(found, walk.tie), None
    return found, _origin(walk, found)


def _is_new(found: Finding, parent: Finding) -> bool:
    """Whether the difference is more than what its parents explain."""
    if math.isinf(found.ratio):
        return found.verdict != "flip" and not math.isinf(parent.ratio)
    return found.ratio > _GROWTH * parent.ratio


def _resorted(found: Finding, sorting: Finding) -> Finding:
    """Row by row it compares what does not belong together; what the sorting module gives is judged."""
    note = f"its rows are sorted by {sorting.name}, which falls otherwise within its noise"
    return replace(found, verdict="within noise", ratio=0.0, note=note, source=sorting.name)


def _healed(found: Finding, parent: Finding | None) -> Finding:
    if found.kind != "output" or parent is None or not parent.is_beyond:
        return found
    if found.verdict != "identical" and parent.noise.source == OWN:  # it may well be there, below the noise
        return found
    return replace(found, verdict="healed", source=parent.name)


def _inherited(found: Finding, parent: Finding) -> Finding:
    verdict: Verdict = found.verdict if found.verdict in _OWN else "drift"
    return replace(found, verdict=verdict, source=parent.name)


def _origin(walk: _Walk, found: Finding) -> Origin:
    name, kind = walk.blamed(found)
    site = found.pair.a.site
    return Origin(
        name,
        found.verdict,
        found.ratio,
        found.step,
        found.rank,
        kind,
        found.name,
        found.call,
        found.axis,
        walk.classes.get(name, ""),
        f"{site.file}:{site.line}" if site is not None else "",
        found.note or _unsure(walk, found),
    )


def _unsure(walk: _Walk, found: Finding) -> str:
    missing = walk.unseen.before(found)
    if missing is not None:
        return f"{missing.name} has no partner, and the fault may be there"
    if found.kind == "output" and not walk.scopes[found.module].has_inputs:
        return "its inputs were not captured; '**.in' would tell it from what comes before"
    return walk.gradients.doubt(found) if found.kind in BACKWARD else ""
