"""`tt.align`: run a candidate with the activations of a reference, and judge every module by itself."""

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
from tensortap.comparison.runs.compare import Comparison, add_weight_note
from tensortap.comparison.runs.result import Coverage
from tensortap.comparison.sharding.group_ranks import group_shards
from tensortap.comparison.sharding.placement import DeclaredPlacement
from tensortap.comparison.sides.entry import Entry, Side, describe_gaps, split_name
from tensortap.comparison.sides.load import load_side, side_from_capture
from tensortap.comparison.values.measure import measure_pairs
from tensortap.core.patterns import parse_pattern
from tensortap.core.ranks import rank_info
from tensortap.core.record import Kind
from tensortap.core.settings import is_on
from tensortap.frameworks.torch_precision import convert_batch
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
from tensortap.sources.selection.select import resolve_pattern, resolve_patterns
from tensortap.sources.sites import class_name, require_module, unwrap, walk_modules

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
    parts = check_fused(fused, [".".join(names) for names, _ in walk_modules(candidate)])
    replay = _TeacherForcedComparison(
        reference, candidate, batch, patterns or _DEFAULT_PATTERNS, load_rules(map)
    )
    return replay.compare(floor, limit, parts, step, rank)


@dataclass(slots=True)
class _TeacherForcedComparison:
    """One comparison of a candidate that runs on the activations of a reference."""

    reference: Any
    candidate: Any
    batch: Any
    patterns: Sequence[Any]
    rules: Rules
    ignored: list[Entry] = field(default_factory=list)  # reference values that a rule excludes

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
        run, activations, matched, guess = self.replay(side)
        if not fused and any(guess):
            side = split_fused(concatenate_fused(side, guess.fused), guess.split_up)
            side = replace(side, notes=[*side.notes, str(guess)])
            run, activations, matched, _ = self.replay(side)
        noise_floor = noise_floor or self.measure_floor(
            side, run, activations.names, is_unfused=not fused and side is selected
        )
        noise_floor = noise_floor if limit is None else replace(noise_floor, limit=limit)
        table = annotate_decision_margins(
            [mark_shape_mismatch(finding) for finding in _judge_pairs(matched.pairs, noise_floor)]
        )
        candidate = Side(f"{_model_label(self.candidate)}, replayed", [pair.b for pair in matched.pairs])
        model = self.reference if is_model(self.reference) else side.metadata.get("model")
        facts = [
            self.rules.drop_ignored_weights(model_facts)
            for model_facts in collect_model_facts(model, self.candidate)
        ]
        explanations = explain_setup_differences(
            replace(side, metadata=facts[0]), replace(candidate, metadata=facts[1]), matched
        )
        return Comparison(
            side.label,
            candidate.label,
            tuple(table),
            tuple(add_weight_note(origin, explanations) for origin in find_origins(table, matched.only_b)),
            explanations,
            _summarise_coverage(matched, table, [*side.problems, *describe_step_gaps(activations)]),
            noise_floor,
            (*matched.notes, *side.notes, *describe_replay(run, activations), *self.compile_notes()),
        )

    def load_reference(self) -> Side:
        """The reference's values; a reference model is run on the batch first."""
        if not is_model(self.reference):
            return load_side(self.reference)
        with capture(self.reference, *self.reference_patterns()) as cap, preserved_state(self.reference):
            run_batch(self.reference, self.batch)
        return Side(_model_label(self.reference), side_from_capture(cap).entries)

    def reference_patterns(self) -> Sequence[Any]:
        """The patterns that select anything in the reference model, whose module names may differ."""
        return [
            pattern for pattern in self.patterns if _selects_any(self.reference, pattern)
        ] or _DEFAULT_PATTERNS

    def replay(self, side: Side) -> tuple[TeacherForcedRun, ReferenceActivations, Matching, FusionGuess]:
        """Run the candidate with known names; run it again if matching guesses pairs of other names."""
        names = {name: self.rules.rename(name) for name in side.names}
        run, activations = self.run_candidate(ReferenceActivations(side, names))
        candidate = Side("", [*(own for _, own in run.pairs), *run.unmatched])
        matching = match(_matched_reference(side, run, activations, self.ignored), candidate, self.rules)
        guesses = {pair.a.name: pair for pair in matching.pairs if pair.how in ("class", "content")}
        if guesses and not (activations.is_sliced or activations.is_concatenated):
            names |= {name: pair.b.name for name, pair in guesses.items()}
            run, activations = self.run_candidate(ReferenceActivations(side, names))
        pairs = [
            replace(_make_pair(a, b, names, guesses), alignment=run.alignments.get(id(b)))
            for a, b in run.pairs
        ]
        only_reference = [entry for entry in side.entries if id(entry) not in activations.used_ids]
        only_candidate = self.rules.drop_ignored(run.unmatched)
        unmatched = (
            keep_replayed_steps(only_reference, activations),
            keep_replayed_steps(only_candidate, activations),
        )
        run.missing = [
            message for message in run.missing if _is_in_reference(message, unmatched[0], self.rules)
        ]
        matched = Matching(pairs, *unmatched, matching.messages, matching.ignored)
        matched = drop_padding(matched) if activations.is_sliced or activations.is_concatenated else matched
        return run, activations, matched, _guess_fused(matching, self.rules)

    def run_candidate(
        self, activations: ReferenceActivations
    ) -> tuple[TeacherForcedRun, ReferenceActivations]:
        return run_teacher_forced(
            self.candidate, self.candidate_batch(), self.patterns, activations
        ), activations

    def candidate_batch(self) -> Any:
        """The batch, converted to the candidate's dtype if the reference's differs."""
        if not is_model(self.reference):
            return self.batch
        own_dtypes, reference_dtypes = weight_dtypes(self.candidate), weight_dtypes(self.reference)
        return (
            convert_batch(self.batch, own_dtypes.pop())
            if len(own_dtypes) == 1 and own_dtypes != reference_dtypes
            else self.batch
        )

    def select_reference(self, side: Side, fused: Fused) -> Side:
        """The reference entries that the patterns select; others do not count as missing."""
        side = infer_kinds(side, self.rules.rename)
        side = replace(concatenate_fused(side, fused), problems=[*side.problems, *missing_parts(side, fused)])
        is_default = tuple(self.patterns) == _DEFAULT_PATTERNS
        wanted_sites = [] if is_default else resolve_patterns(self.candidate, self.patterns)
        sites = None if is_default else {(wanted.site.path, wanted.site.kind) for wanted in wanted_sites}
        entries = select_entries(side.entries, self.rules.rename, sites)
        kept = self.rules.drop_ignored(entries)
        kept_ids = set(map(id, kept))
        self.ignored = [entry for entry in entries if id(entry) not in kept_ids]
        return replace(side, entries=kept)

    def measure_floor(
        self, side: Side, run: TeacherForcedRun, names: Mapping[str, str], *, is_unfused: bool
    ) -> Floor:
        """The noise floor of isolated modules: of the reference model if possible, else of the candidate."""
        reference_dtype = coarsest_output_dtype(side.entries)
        candidate_dtype = coarsest_output_dtype(own for _, own in run.pairs)
        lowest, skipped = coarsest_dtype(candidate_dtype, reference_dtype), list[str]()
        candidate = IsolatedRounding(self.candidate, self.candidate_batch(), self.patterns)
        attempts: list[tuple[IsolatedRounding, tuple[str, str], Mapping[str, str], TeacherForcedRun | None]]
        attempts = [(candidate, (candidate_dtype, reference_dtype), names, run)]
        if is_unfused and is_model(self.reference):
            # A reference of lower precision has rounded its weights too, and only the candidate shows the
            # effect of that, so the candidate comes first then.
            position = 0 if lowest == candidate_dtype else 1
            reference = IsolatedRounding(self.reference, self.batch, self.reference_patterns())
            attempts.insert(position, (reference, (reference_dtype, candidate_dtype), {}, None))
        for rounding, dtypes, names_in_model, base in attempts:
            runs = rounding.rerun(*dtypes, functools.partial(ReferenceActivations, side, names_in_model))
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
    """Guess fused modules from unmatched outputs and from pairs that were only guessed.

    Guessed pairs of inputs are no evidence against fusion: a fused module has the input of its parts."""
    outputs = [
        pair for pair in matching.pairs if pair.how in ("class", "content") and pair.a.kind == "output"
    ]
    only_a = [*matching.only_a, *(pair.a for pair in outputs)]
    return guess_fused(Matching([], only_a, [*matching.only_b, *(pair.b for pair in outputs)]), rules.rename)


def _check_patterns(candidate: Any, patterns: Sequence[Any]) -> None:
    wanted = resolve_patterns(candidate, patterns) if patterns else []
    gradient = next((wanted_site.site.name for wanted_site in wanted if wanted_site.site.is_gradient), None)
    if gradient is not None:
        raise ValueError(
            f"{gradient!r} is a gradient, and a replay runs forwards only; tt.compare_runs compares gradients"
        )


def _selects_any(model: Any, pattern: Any) -> bool:
    return bool(resolve_pattern(model, parse_pattern(pattern) if isinstance(pattern, str) else pattern))


def _model_label(model: Any) -> str:
    return class_name(unwrap(model))


def _select_rank(
    side: Side, step: int | None, rank: int | None, declarations: Sequence[DeclaredPlacement]
) -> Side:
    """The reference's entries of one rank: of this rank in a distributed job, else of all ranks assembled."""
    current = rank_info()
    if rank is None and len(side.ranks) > 1 and current.world_size > 1 and current.rank in side.ranks:
        rank = current.rank
    side = side if step is None and rank is None else side.select(step=step, rank=rank)
    return side if len(side.ranks) < 2 else group_shards(side, 0, None, declarations)


def _matched_reference(
    side: Side, run: TeacherForcedRun, activations: ReferenceActivations, ignored: Sequence[Entry]
) -> Side:
    """The reference's entries as they were used (step, call), with the unused and the ignored ones."""
    unused = [entry for entry in side.entries if id(entry) not in activations.used_ids]
    return Side(side.label, [*(a for a, _ in run.pairs), *unused, *ignored])


def _is_in_reference(message: str, unused: Sequence[Entry], rules: Rules) -> bool:
    """Whether the reference has a value for the candidate's site that the message says was never reached."""
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


_REPLAYED_KINDS = ("output", "input", "value")


def infer_kinds(side: Side, rename: Callable[[str], str]) -> Side:
    """Set the kinds of a side that has names only (a dict, a dump): output, or input if the name says so."""
    if any(entry.kind in ("output", "input") for entry in side.entries):
        return side
    return replace(side, entries=[_infer_kind(entry, rename(entry.name)) for entry in side.entries])


def select_entries(
    entries: Sequence[Entry], rename: Callable[[str], str], sites: Collection[tuple[str, str]] | None
) -> list[Entry]:
    """The entries at these sites; without sites, every entry that can be replayed."""
    if sites is None:
        return [entry for entry in entries if entry.kind in _REPLAYED_KINDS]
    modules = [split_name(rename(entry.name), entry.kind)[0] for entry in entries]
    return [entry for entry, module in zip(entries, modules, strict=True) if (module, entry.kind) in sites]


def _infer_kind(entry: Entry, name: str) -> Entry:
    if entry.kind != "value":
        return entry
    site = split_name(name, "value")[1].lstrip(".").partition(".")[0].partition("[")[0]
    kinds: dict[str, Kind] = {"in": "input", "forward": "value"}
    return replace(entry, kind=kinds.get(site, "output"))
