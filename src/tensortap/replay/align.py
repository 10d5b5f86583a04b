"""Tt.align.

Each part of a model judged by itself: it gets what a reference had, and gives what it makes of it.

Which values of a reference a replay asks for, and what of the candidate's modules they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensortap.comparison.alignment.padding import drop_padding
from tensortap.comparison.diagnosis.preconditions import explain_setup_differences
from tensortap.comparison.diagnosis.ties import annotate_decision_margins
from tensortap.comparison.diagnosis.verdict import Finding, judge, make_finding
from tensortap.comparison.matching.match import EntryPair, Matching, MatchMethod, match
from tensortap.comparison.matching.rules import Rules, load_rules
from tensortap.comparison.noise.floor import Floor, check_limit, resolve_floor
from tensortap.comparison.runs.compare import Comparison, Coverage, add_weight_note
from tensortap.comparison.sharding.group_ranks import group_shards
from tensortap.comparison.sharding.placement import DeclaredPlacement
from tensortap.comparison.sides.alignment_note import describe_gaps
from tensortap.comparison.sides.entry import Entry, Side
from tensortap.comparison.sides.load import load_side, side_from_capture
from tensortap.comparison.sides.module_names import split_name
from tensortap.comparison.values.measure import measure_pairs
from tensortap.core.patterns import parse_pattern
from tensortap.core.ranks import rank_info
from tensortap.core.record import Kind
from tensortap.core.settings import is_on
from tensortap.recording.capture import capture
from tensortap.replay.isolate import preserved_state
from tensortap.replay.layouts import (
    Fused,
    FusionGuess,
    check_fused,
    concatenate_fused,
    guess_fused,
    missing_parts,
    split_fused,
)
from tensortap.replay.reference import ReferenceActivations
from tensortap.replay.report import (
    describe_replay,
    describe_step_gaps,
    find_origins,
    keep_replayed_steps,
    mark_shape_mismatch,
)
from tensortap.replay.rounding import (
    IsolatedRounding,
    coarsest_dtype,
    coarsest_output_dtype,
    convert_batch,
    floor_from_isolated_runs,
)
from tensortap.replay.teacher_forced import (
    TeacherForcedRun,
    collect_model_facts,
    is_model,
    run_batch,
    run_teacher_forced,
    weight_dtypes,
)
from tensortap.sources.selection.select import select, selection
from tensortap.sources.sites import class_name, require_module, unwrapped, walk

_DEFAULT_PATTERNS = ("**", "**.in")


def align(
    reference: Any,
    candidate: Any,
    batch: Any,
    *patterns: Any,
    map: Any = None,
    floor: Any = None,
    fused: Fused | None = None,
    step: int | None = None,
    rank: int | None = None,
    limit: float | None = None,
) -> Comparison:
    """Every fault of a model at once: it runs with the reference's values, each part of it by itself.

    >>> found = tt.align(trusted, mine, batch)                      # two models
    >>> found = tt.align("runs/good", mine, batch, map="rules.toml")  # a run on disk, other names
    >>> [origin.name for origin in found.origins]

    Every selected input and output of the candidate (all of them, unless patterns say otherwise) is recorded
    and then replaced by what the reference had there, so that no part inherits the fault of another.

    `reference`: a model, which is run on the batch first, or whatever `tt.compare_runs` takes.
    `batch`: a dict is `model(**batch)`, a tuple or list `model(*batch)`, a function `batch(model)`.
    `map`: rules from the reference's names to the candidate's, as for `tt.compare_runs`.
    `floor`: as for `tt.compare_runs`; measured here otherwise. `limit`: how many times the noise counts.
    `fused`: modules that do in one what the reference does in several, `{"qkv": ["q", "k", "v"]}`.
    `step`, `rank`: of the reference alone. Both models are afterwards what they were before.
    """
    require_module(candidate)
    if not is_on():
        return Comparison("", "", (), (), (), Coverage(0), Floor())
    _check_patterns(candidate, patterns)
    limit = None if limit is None else check_limit(limit)
    parts = check_fused(fused, [".".join(names) for names, _ in walk(candidate)])
    replay = _TeacherForcedComparison(
        reference, candidate, batch, patterns or _DEFAULT_PATTERNS, load_rules(map)
    )
    return replay.compare(floor, limit, parts, step, rank)


@dataclass(slots=True)
class _TeacherForcedComparison:
    """A reference, a model that gets its values, and what is known of both."""

    reference: Any
    candidate: Any
    batch: Any
    patterns: Sequence[Any]
    rules: Rules
    ignored: list[Entry] = field(default_factory=list)  # values of the reference that a rule leaves out

    def compare(
        self,
        floor: Any,
        limit: float | None,
        fused: Fused,
        step: int | None,
        rank: int | None,
    ) -> Comparison:
        side = _select_rank(self.load_reference(), step, rank, self.rules.placements)
        noise_floor = None if floor is None else resolve_floor(floor, side)
        selected = side = self.select_reference(side, fused)
        run, shelf, matched, guess = self.replay(side)
        if not fused and any(guess):
            side = split_fused(concatenate_fused(side, guess.fused), guess.split_up)
            side = replace(side, notes=[*side.notes, str(guess)])
            run, shelf, matched, _ = self.replay(side)
        noise_floor = noise_floor or self.measure_floor(
            side, run, shelf.names, is_own=not fused and side is selected
        )
        noise_floor = noise_floor if limit is None else replace(noise_floor, limit=limit)
        table = annotate_decision_margins(
            [mark_shape_mismatch(finding) for finding in _judge_pairs(matched.pairs, noise_floor)]
        )
        other = Side(f"{_model_label(self.candidate)}, replayed", [pair.b for pair in matched.pairs])
        model = self.reference if is_model(self.reference) else side.metadata.get("model")
        facts = collect_model_facts(model, self.candidate)
        facts = [self.rules.drop_ignored_weights(facts_of_side) for facts_of_side in facts]
        sides = [
            replace(one_side, metadata=side_facts)
            for one_side, side_facts in zip((side, other), facts, strict=True)
        ]
        explanations = explain_setup_differences(sides[0], sides[1], matched)
        return Comparison(
            side.label,
            other.label,
            tuple(table),
            tuple(add_weight_note(origin, explanations) for origin in find_origins(table, matched.only_b)),
            explanations,
            _summarise_coverage(matched, table, [*side.problems, *describe_step_gaps(shelf)]),
            noise_floor,
            (*matched.notes, *side.notes, *describe_replay(run, shelf), *self.compile_notes()),
        )

    def load_reference(self) -> Side:
        """The reference's values; a model is run on the batch first."""
        if not is_model(self.reference):
            return load_side(self.reference)
        with capture(self.reference, *self.reference_patterns()) as cap, preserved_state(self.reference):
            run_batch(self.reference, self.batch)
        return Side(_model_label(self.reference), side_from_capture(cap).entries)

    def reference_patterns(self) -> Sequence[Any]:
        """The patterns, as far as they mean anything in the reference, whose names may be others."""
        return [
            pattern for pattern in self.patterns if _selects_any(self.reference, pattern)
        ] or _DEFAULT_PATTERNS

    def replay(self, side: Side) -> tuple[TeacherForcedRun, ReferenceActivations, Matching, FusionGuess]:
        """Once with the names that are known; once more where guesses make pairs of others."""
        names = {name: self.rules.rename(name) for name in side.names}
        run, shelf = self.run_candidate(ReferenceActivations(side, names))
        ours = Side("", [*(own for _, own in run.pairs), *run.unmatched])
        matching = match(_matched_reference(side, run, shelf, self.ignored), ours, self.rules)
        guesses = {pair.a.name: pair for pair in matching.pairs if pair.how in ("class", "content")}
        if guesses and not (shelf.is_cut or shelf.is_joined):
            names |= {name: pair.b.name for name, pair in guesses.items()}
            run, shelf = self.run_candidate(ReferenceActivations(side, names))
        pairs = [
            replace(_make_pair(a, b, names, guesses), alignment=run.plans.get(id(b))) for a, b in run.pairs
        ]
        left = [entry for entry in side.entries if id(entry) not in shelf.used]
        alone = self.rules.drop_ignored(run.unmatched)
        unmatched = keep_replayed_steps(left, shelf), keep_replayed_steps(alone, shelf)
        run.missing = [
            site_message
            for site_message in run.missing
            if _is_in_reference(site_message, unmatched[0], self.rules)
        ]
        matched = Matching(pairs, *unmatched, matching.messages, matching.ignored)
        matched = drop_padding(matched) if shelf.is_cut or shelf.is_joined else matched
        return run, shelf, matched, _guess_fused(matching, self.rules)

    def run_candidate(self, shelf: ReferenceActivations) -> tuple[TeacherForcedRun, ReferenceActivations]:
        return run_teacher_forced(self.candidate, self.candidate_batch(), self.patterns, shelf), shelf

    def candidate_batch(self) -> Any:
        """The batch in the candidate's own type, where the reference has another."""
        if not is_model(self.reference):
            return self.batch
        own_dtypes, reference_dtypes = weight_dtypes(self.candidate), weight_dtypes(self.reference)
        return (
            convert_batch(self.batch, own_dtypes.pop())
            if len(own_dtypes) == 1 and own_dtypes != reference_dtypes
            else self.batch
        )

    def select_reference(self, side: Side, fused: Fused) -> Side:
        """The values of the reference that the patterns mean: what they do not is not missed."""
        side = infer_kinds(side, self.rules.rename)
        side = replace(concatenate_fused(side, fused), problems=[*side.problems, *missing_parts(side, fused)])
        is_whole = tuple(self.patterns) == _DEFAULT_PATTERNS
        wanted_sites = [] if is_whole else selection(self.candidate, self.patterns)
        sites = None if is_whole else {(wanted.site.path, wanted.site.kind) for wanted in wanted_sites}
        entries = select_entries(side.entries, self.rules.rename, sites)
        kept = self.rules.drop_ignored(entries)
        kept_ids = set(map(id, kept))
        self.ignored = [entry for entry in entries if id(entry) not in kept_ids]
        return replace(side, entries=kept)

    def measure_floor(
        self, side: Side, run: TeacherForcedRun, names: Mapping[str, str], *, is_own: bool
    ) -> Floor:
        """The rounding of each part alone: of the reference, which is right, or else of the candidate."""
        reference_dtype, candidate_dtype = (
            coarsest_output_dtype(side.entries),
            coarsest_output_dtype(own for _, own in run.pairs),
        )
        lowest, skipped = coarsest_dtype(candidate_dtype, reference_dtype), list[str]()
        candidates: list[tuple[Any, Any, Any, tuple[str, str], Mapping[str, str], TeacherForcedRun | None]]
        candidates = [
            (
                self.candidate,
                self.candidate_batch(),
                self.patterns,
                (candidate_dtype, reference_dtype),
                names,
                run,
            )
        ]
        if is_own and is_model(self.reference):
            # A reference that rounds more has rounded its weights too, of which only the candidate can show
            # the effect; it comes first then.
            place = 0 if lowest == candidate_dtype else 1
            candidates.insert(
                place,
                (
                    self.reference,
                    self.batch,
                    self.reference_patterns(),
                    (reference_dtype, candidate_dtype),
                    {},
                    None,
                ),
            )
        for model, batch, patterns, types, names_in_model, base in candidates:
            rounding = IsolatedRounding(model, batch, patterns)
            runs = rounding.twin(*types, functools.partial(ReferenceActivations, side, names_in_model))
            skipped += rounding.skipped
            if runs is not None:
                return floor_from_isolated_runs(
                    runs, base, skipped, lowest=lowest, are_mixed=reference_dtype != candidate_dtype
                )
        return Floor(skipped=tuple(skipped))

    def compile_notes(self) -> list[str]:
        model = self.candidate
        if type(model).__name__ != "OptimizedModule" and model._compiled_call_impl is None:
            return []
        return [
            "the candidate is compiled and ran as plain Python, since nothing can be replaced in a graph: "
            "this judges its code; tt.capture(..., compiled='graph') and tt.compare_runs judge the compiler"
        ]


def _guess_fused(matching: Matching, rules: Rules) -> FusionGuess:
    """Guessed inputs say nothing against it: a fused module has that of its parts."""
    outputs = [
        pair for pair in matching.pairs if pair.how in ("class", "content") and pair.a.kind == "output"
    ]
    only_a = [*matching.only_a, *(pair.a for pair in outputs)]
    return guess_fused(Matching([], only_a, [*matching.only_b, *(pair.b for pair in outputs)]), rules.rename)


def _check_patterns(candidate: Any, patterns: Sequence[Any]) -> None:
    wanted = selection(candidate, patterns) if patterns else []
    gradient = next((wanted_site.site.name for wanted_site in wanted if wanted_site.site.is_gradient), None)
    if gradient is not None:
        raise ValueError(
            f"{gradient!r} is a gradient, and a replay runs forwards only; tt.compare_runs compares gradients"
        )


def _selects_any(model: Any, pattern: Any) -> bool:
    return bool(select(model, parse_pattern(pattern) if isinstance(pattern, str) else pattern))


def _model_label(model: Any) -> str:
    return class_name(unwrapped(model))


def _select_rank(
    side: Side, step: int | None, rank: int | None, declarations: Sequence[DeclaredPlacement]
) -> Side:
    """A replay is of one rank: of this one, where the reference has several and so has this job. One process
    alone is set against all of them put together."""
    here = rank_info()
    if rank is None and len(side.ranks) > 1 and here.world_size > 1 and here.rank in side.ranks:
        rank = here.rank
    side = side if step is None and rank is None else side.select(step=step, rank=rank)
    return side if len(side.ranks) < 2 else group_shards(side, 0, None, declarations)


def _matched_reference(
    side: Side, run: TeacherForcedRun, shelf: ReferenceActivations, ignored: Sequence[Entry]
) -> Side:
    """The reference, with the steps and calls at which its values were used, and what rules leave out."""
    unused = [entry for entry in side.entries if id(entry) not in shelf.used]
    return Side(side.label, [*(a for a, _ in run.pairs), *unused, *ignored])


def _is_in_reference(message: str, unused: Sequence[Entry], rules: Rules) -> bool:
    """Whether the reference has a value at a site of the candidate that never came."""
    site = message.split(" ")[0]
    names = [rules.rename(entry.name) for entry in unused]
    return any(name == site or name.startswith((f"{site}.", f"{site}[")) for name in names)


def _make_pair(a: Entry, b: Entry, names: Mapping[str, str], guesses: Mapping[str, EntryPair]) -> EntryPair:
    guess = guesses.get(a.name)
    if guess is not None:
        return EntryPair(a, b, guess.how, guess.score)
    how: MatchMethod = "map" if names.get(a.name, a.name) != a.name else "name"
    return EntryPair(a, b, how)


def _judge_pairs(pairs: Sequence[EntryPair], floor: Floor) -> Iterator[Finding]:
    for pair, measurement in zip(pairs, measure_pairs([(pair.a, pair.b) for pair in pairs]), strict=True):
        noise = floor.of(pair.a, dtype=coarsest_dtype(pair.a.dtype, pair.b.dtype))
        noise = noise.intrinsic_only() or noise
        yield make_finding(pair, measurement, noise, judge(measurement, noise, pair))


def _summarise_coverage(matched: Matching, table: Sequence[Finding], problems: Sequence[str]) -> Coverage:
    gaps = {
        verdict: tuple(f"{finding.pair.a}: {finding.note}" for finding in table if finding.verdict == verdict)
        for verdict in ("unreadable", "unaligned")
    }
    return Coverage(
        pairs=len(table),
        only_a=tuple(matched.only_a),
        only_b=tuple(matched.only_b),
        unreadable=gaps["unreadable"],
        unaligned=gaps["unaligned"],
        opaque=sum(finding.is_opaque and finding.verdict != "identical" for finding in table),
        ignored=matched.ignored,
        uncalibrated=sum(
            not finding.noise.is_measured and finding.verdict != "identical" for finding in table
        ),
        problems=(*problems, *describe_gaps(finding.pair.alignment for finding in table)),
    )


_REPLAYED = ("output", "input", "value")


def infer_kinds(side: Side, renamed: Callable[[str], str]) -> Side:
    """The same; of a side that knows names alone, as a dict or what was dumped, each value is the output of
    the module of its name, or the input where the candidate's name says so."""
    if any(entry.kind in ("output", "input") for entry in side.entries):
        return side
    return replace(side, entries=[_infer_kind(entry, renamed(entry.name)) for entry in side.entries])


def select_entries(
    entries: Sequence[Entry], renamed: Callable[[str], str], sites: Collection[tuple[str, str]] | None
) -> list[Entry]:
    """The values that are meant: those of these sites, or whatever can be replayed."""
    if sites is None:
        return [entry for entry in entries if entry.kind in _REPLAYED]
    modules = [split_name(renamed(entry.name), entry.kind)[0] for entry in entries]
    return [entry for entry, module in zip(entries, modules, strict=True) if (module, entry.kind) in sites]


def _infer_kind(entry: Entry, name: str) -> Entry:
    if entry.kind != "value":
        return entry
    port = split_name(name, "value")[1].lstrip(".").partition(".")[0].partition("[")[0]
    kinds: dict[str, Kind] = {"in": "input", "forward": "value"}
    return replace(entry, kind=kinds.get(port, "output"))
