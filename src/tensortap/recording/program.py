"""One process of a program that `tensortap run` started: its models, what is captured of them, its report."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from tensortap.core.errand import Errand
from tensortap.core.errors import TensortapError, UnsupportedValueError
from tensortap.core.paths import nearest, parse
from tensortap.core.ranks import ranks
from tensortap.core.record import Record, Site
from tensortap.core.tap import Tap
from tensortap.recording import tapping
from tensortap.recording.capture import Capture
from tensortap.recording.counting import Counting
from tensortap.recording.described import describe
from tensortap.recording.hearing import Heard
from tensortap.recording.met import Met, Models, QuietCapture, is_within
from tensortap.recording.model_facts import keep_facts
from tensortap.recording.tapping import Listener
from tensortap.sinks.run_directory import RunDirectory
from tensortap.sources.function_sites import is_of_function
from tensortap.sources.named_functions import split
from tensortap.sources.selection import select
from tensortap.sources.sites import site_names
from tensortap.stages.select import When, changed, every, first, nonfinite, predicates_of

_MOST_TOLD = 50
_INNER = ("tensortap", "torch")


class Program:
    """Meets models as they are called for the first time, and captures what was asked for."""

    def __init__(self, asked: Errand, optimizers: Collection[Any]) -> None:
        self._asked = asked
        self._models = Models()
        self._lock = threading.RLock()
        self._is_over = False
        self._counting: Counting | None = None
        self._optimizers = optimizers
        self._sink: Shelf | None = None
        self._functions: list[Capture] = []
        self._hearing: Tap | None = None
        self._heard: Heir | None = None
        self._matched: set[str] = set()
        self._problems: dict[str, str] = {}
        self._near: dict[str, list[str]] = {}
        atexit.register(self.end)
        os.register_at_fork(after_in_child=self._begin_child)
        _end_with_child(self, self.end)

    @property
    def has_model(self) -> bool:
        return self._counting is not None

    @property
    def wants_more(self) -> bool:
        """Whether models that come later matter."""
        return self._asked.looks_inside

    def meet(self, model: Any) -> Iterable[Any]:
        """A model is about to be called that was not met before; which modules are known from now on."""
        if is_within():  # a part of another, which is met or will be
            return (model,)
        with self._lock:
            self._begin()
            met = self._models.meet(model, _caller())
            if met is not None:
                self._look_into(met, model)
            return list(model.modules())

    def let_go(self, model: Any) -> None:
        """It is about to be scripted, which fails where there are hooks."""
        with self._lock:
            self._models.let_go(model)

    def place(self, module: str) -> None:
        """Look into functions of a Python module that was imported just now."""
        for text in self._asked.patterns:
            if is_of_function(parse(text)) and (split(parse(text).ways[0]) or ("",))[0] == module:
                self._attempt(text, lambda text=text: self._look_into_function(text))  # type: ignore[misc]

    def hear(self, value: Any, name: str, site: Site | None, first: Listener) -> bool:
        """The program taps a value by hand, for the first time; several threads may do so at once."""
        with self._lock:
            if self._heard is None:
                self._heard = self._heir(first)
        self._heard.hear(value, name, site)
        return True

    def end(self) -> None:
        """At the end of the process: everything to disk, and a word about it to whoever started it."""
        if self._is_over:
            return
        self._is_over = True
        missing = [(one.name, one.reason) for capture in self._captures() for one in capture.missing]
        refused = list(self._sink.refused.items()) if self._sink is not None else []
        for capture in self._captures():
            capture.stop()
        if self._hearing is not None:
            self._hearing.close()
        if self._sink is not None:
            self._sink.close()
        unmatched = [text for text in self._asked.patterns if text not in self._matched]
        report = {
            "pid": os.getpid(),
            "rank": ranks().rank,
            "models": self._models.facts(),
            "steps": self._counting.count if self._counting is not None else 0,
            "records": self._sink.count if self._sink is not None else 0,
            "dropped": self._sink.inner.dropped if self._sink is not None else 0,
            "matched": sorted(self._matched),
            "unmatched": {text: self._why(text) for text in unmatched},
            "missing": missing[:_MOST_TOLD],
            "missing_count": len(missing),
            "refused": refused[:_MOST_TOLD],
            "let_go": self._models.gone,
        }
        self._asked.leave_word(f"process-{os.getpid()}.json", json.dumps(report))

    def _begin_child(self) -> None:
        """In a forked process: what was written before, its parent tells."""
        if self._sink is not None:
            self._sink.count = 0
        util = sys.modules.get("multiprocessing.util")
        if util is not None:  # it forgets what was to be done at the end, and calls this when it has
            util.register_after_fork(self, lambda _: _end_with_child(self, self._end_child))

    def _end_child(self) -> None:
        """One that wrote nothing, as most that load data, has nothing to tell."""
        if self._sink is not None and self._sink.count:
            self.end()

    def _begin(self) -> None:
        """The first model: from here on this process is part of the run."""
        if self._counting is not None:
            return
        torch = sys.modules["torch"]
        self._counting = Counting(self._optimizers, torch.is_grad_enabled)
        sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(
            self._counting.end_optimizer_step
        )
        describe(self._asked)
        if self._asked.live:
            # Through the front door: what listens is floors above.
            sys.modules["tensortap"].listen(self._asked.live, dump_to=self._asked.run)

    def _look_into(self, met: Met, model: Any) -> None:
        patterns, capture = self._patterns_of(met, model), None
        if patterns:
            capture = met.capture(model, patterns, self._options(), self._shelf)
            if met.label == "":
                keep_facts(model, Path(self._asked.run))
        if self._asked.live:
            sys.modules["tensortap"].expose(model)
        if self.wants_more and self._counting is not None:
            met.count(model, self._counting, capture)

    def _patterns_of(self, met: Met, model: Any) -> list[str]:
        """Those that mean something in this model; one that excludes is no reason to look."""
        wanted = [text for text in self._asked.patterns if not is_of_function(parse(text))]
        found = [own for text in wanted if (own := met.own(text)) and self._selects(model, own, text)]
        is_wanted = any(not text.startswith("!") for text in found)
        return found if is_wanted or all(text.startswith("!") for text in wanted) else []

    def _selects(self, model: Any, own: str, text: str) -> bool:
        found = self._attempt(text, lambda: select(model, parse(own)))
        if not found:
            names = site_names(model)
            self._near[text] = nearest(own.lstrip("!"), names) or names[:3]
        return bool(found)

    def _look_into_function(self, text: str) -> bool:
        capture = QuietCapture(None, [text], **self._options(), to=self._shelf)
        capture.start_within(self._counting.step if self._counting is not None else 0, False)
        self._functions.append(capture)
        return True

    def _attempt(self, text: str, action: Callable[[], Any]) -> Any:
        """What cannot be found is told at the end; the program goes on without it."""
        try:
            found = action()
        except (TensortapError, ValueError, TypeError) as error:
            self._problems[text] = str(error)
            return None
        if found:
            self._matched.add(text)
        return found

    def _why(self, text: str) -> dict[str, Any]:
        return {"reason": self._problems.get(text, ""), "near": self._near.get(text, [])}

    def _captures(self) -> list[Capture]:
        return [*self._functions, *self._models.captures()]

    def _options(self) -> dict[str, Any]:
        keep = None if self._asked.keep == "values" else self._asked.keep
        return {"keep": keep, "when": self._when(), "limit": None, "stop": False, "compiled": "eager"}

    def _when(self) -> list[Any]:
        known = {"nonfinite": nonfinite, "changed": changed}
        steps = [every(self._asked.every)] if self._asked.every > 1 else []
        steps += [first(self._asked.first)] if self._asked.first is not None else []
        return [*steps, *(known[name] for name in self._asked.when)]

    def _predicates(self) -> list[Any]:
        return predicates_of(self._when())

    def _heir(self, first: Listener) -> Heir:
        excluding = [one for one in self._asked.patterns if one.startswith("!")]
        heard = Heir(excluding, self._predicates(), first)
        others = [one for one in self._predicates() if not hasattr(one, "wants")]
        stages = [When(*others)] if others else []
        self._hearing = Tap(stages=stages, sinks=[self._shelf], on_error="log").attach(heard)
        return heard

    @property
    def _shelf(self) -> Shelf:
        if self._sink is None:
            self._sink = Shelf(Path(self._asked.run))
        return self._sink


class Heir(Heard):
    """Hears what `tt.tap` shows from the moment on when nobody waits for the first value any more."""

    def __init__(self, excluding: Sequence[str], predicates: Sequence[Any], first: Listener) -> None:
        super().__init__(excluding, predicates, None)
        self._first = first

    def start(self, tap: Tap) -> None:
        self.join(tap)
        tapping.hand_over(self._first, self.hear)


class Shelf:
    """The run that all captures of a process write to, and how much they did."""

    def __init__(self, run: Path) -> None:
        # What is given to it is written soon: programs that are watched end in many ways.
        self.inner = RunDirectory(run, background=True, write_through=True)
        self.count = 0
        self.refused: dict[str, str] = {}

    def write(self, record: Record) -> None:
        """What has no values, as all that passes while a model is exported, is told once for its name."""
        try:
            self.inner.write(record)
            self.count += 1
        except UnsupportedValueError as error:
            self.refused.setdefault(record.name, str(error))

    def flush(self) -> None:
        self.inner.flush()

    def close(self) -> None:
        self.inner.close()


def _caller() -> FrameType | None:
    """Who calls the model: the first frame that is neither ours nor torch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _INNER:
        frame = frame.f_back
    return frame


def _end_with_child(owner: Program, end: Callable[[], None]) -> None:
    """A child of multiprocessing that was forked ends without the usual exit, but runs these; what it was
    told before it began it forgets, and asks again."""
    util = sys.modules.get("multiprocessing.util")
    if util is None:
        return
    processes = sys.modules["multiprocessing.process"]
    is_starting = getattr(processes.current_process(), "_inheriting", False)
    if is_starting or processes.parent_process() is not None:
        util.Finalize(None, end, exitpriority=0)
    if is_starting:
        util.register_after_fork(owner, lambda _: util.Finalize(None, end, exitpriority=0))
