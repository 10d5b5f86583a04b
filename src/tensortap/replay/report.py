"""The result of a replay: every module that is wrong by itself, and what could not be replayed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tensortap.comparison.diagnosis.backward import ModuleParents
from tensortap.comparison.diagnosis.verdict import Finding, Origin, resolve_out_modules
from tensortap.comparison.sides.entry import Entry, module_of
from tensortap.replay.reference import ReferenceActivations
from tensortap.replay.teacher_forced import TeacherForcedRun

_MAX_SHOWN = 3


def find_origins(findings: Sequence[Finding], unmatched: Sequence[Entry] = ()) -> list[Origin]:
    """One origin per module, in execution order: with the reference's inputs, any difference beyond noise is
    the module's own, unless it depends on `unmatched` values, which were not replaced."""
    findings = resolve_out_modules(findings)
    parents = ModuleParents(finding.module for finding in findings)
    classes = {finding.module: finding.pair.b.class_name for finding in findings}
    unaligned = [finding.pair.b for finding in findings if finding.verdict == "unaligned"]
    origins: dict[str, Origin] = {}
    for finding in findings:
        if finding.is_beyond and not finding.source:
            name, kind = _blame(finding, parents)
            doubt = _describe_uncertainty(finding.pair.b, unmatched, unaligned) if kind == "own code" else ""
            origins.setdefault(name, _make_origin(finding, name, kind, classes.get(name, ""), doubt))
    return list(origins.values())


def _describe_uncertainty(own: Entry, unmatched: Sequence[Entry], unaligned: Sequence[Entry]) -> str:
    """Names the sibling outputs before the value that were not replaced."""
    notes = []
    for entries, singular, plural in (
        (unmatched, "has no counterpart", "have no counterpart"),
        (unaligned, "was not replaced", "were not replaced"),
    ):
        siblings = _siblings_before(own, entries)
        if siblings:
            predicate = singular if len(siblings) == 1 else plural
            notes.append(f"{', '.join(siblings[-_MAX_SHOWN:])} {predicate}, and the fault may be there")
    return "; ".join(notes)


def _siblings_before(own: Entry, entries: Sequence[Entry]) -> list[str]:
    path = module_of(own.name, own.kind).rpartition(".")[0]
    return [
        entry.name
        for entry in entries
        if (entry.kind, entry.first_step) == ("output", own.first_step)
        and entry.order < own.order
        and module_of(entry.name, entry.kind).rpartition(".")[0] == path
    ]


def mark_shape_mismatch(finding: Finding) -> Finding:
    """A shape mismatch counts as unaligned: it says nothing about the computation."""
    if finding.verdict != "structure":
        return finding
    return replace(finding, verdict="unaligned", ratio=0.0, note=f"{finding.note}; it was not replaced")


def describe_step_gaps(activations: ReferenceActivations) -> list[str]:
    """Messages about steps that only one side has, or that were replayed in part."""
    expected, actual = len(activations.steps), len(activations.candidate_steps)
    if activations.is_sliced:
        return _describe_unfinished_steps(activations)
    if activations.is_concatenated or expected == actual:
        return []
    if expected > actual:
        missing = ", ".join(map(str, activations.steps[actual : actual + _MAX_SHOWN]))
        more = f" and {expected - actual - _MAX_SHOWN} more" if expected - actual > _MAX_SHOWN else ""
        steps = f"the reference has {expected} steps, the candidate ran {actual}"
        return [f"{steps}: {missing}{more} were not replayed"]
    return [f"the candidate ran {actual} steps, the reference has {expected}: the others were not compared"]


def _describe_unfinished_steps(activations: ReferenceActivations) -> list[str]:
    unmatched = f"{activations.unmatched_steps} of the candidate's {len(activations.candidate_steps)} steps"
    are = "is" if activations.unmatched_steps == 1 else "are"
    return [
        *(
            f"{name}: only the first {covered} of {length} were compared"
            for name, covered, length in activations.incomplete_inputs()
        ),
        *([f"{unmatched} {are} no piece of the reference's one"] if activations.unmatched_steps else []),
    ]


def describe_replay(run: TeacherForcedRun, activations: ReferenceActivations) -> list[str]:
    """Notes on a replay: values that were not replaced, assembled shards, how steps were paired."""
    notes = [
        f"{name} was not replaced: {reason}" for name, reason in list(run.not_replaced.items())[:_MAX_SHOWN]
    ]
    more = len(run.not_replaced) - _MAX_SHOWN
    notes += [f"{more} more values were not replaced"] if more > 0 else []
    notes += run.missing[:_MAX_SHOWN]
    if run.assembled:
        methods = ", ".join(f"{count} {description}" for description, count in run.assembled.items())
        notes.append(f"the pieces of the reference's ranks were put together: {methods}")
    if activations.is_sliced and activations.has_matching_inputs and not activations.unmatched_steps:
        count = len(activations.candidate_steps)
        steps = f"each of the candidate's {count} steps" if count > 1 else "the candidate's step"
        notes.append(f"{steps} is a piece of the reference's one")
    if activations.is_concatenated:
        notes.append(f"the candidate's step is the reference's {len(activations.steps)} put together")
    return notes


def keep_replayed_steps(entries: Sequence[Entry], activations: ReferenceActivations) -> list[Entry]:
    """The entries of steps that both sides have; the other steps are reported once."""
    replayed = set(activations.steps[: len(activations.candidate_steps)])
    return [entry for entry in entries if entry.first_step in replayed or activations.is_concatenated]


def _blame(finding: Finding, parents: ModuleParents) -> tuple[str, str]:
    module = finding.module
    if finding.kind == "input":
        # A wrong input computed from right values is the fault of the calling module.
        return (parents[module], "own code") if module else (finding.name, "data")
    if finding.kind == "value":
        return finding.name, "value"
    return module, {"param": "param", "output": "output"}.get(finding.kind, "local")


def _make_origin(finding: Finding, name: str, kind: str, class_name: str, doubt: str) -> Origin:
    candidate_name = finding.pair.b.name
    name_note = f"the candidate calls it {candidate_name}" if candidate_name != finding.name else ""
    note = "; ".join(filter(None, [finding.note, doubt, name_note]))
    ratio = finding.ratio if not math.isnan(finding.ratio) else math.inf
    return Origin(
        name,
        finding.verdict,
        ratio,
        finding.step,
        finding.rank,
        kind,
        finding.name,
        finding.call,
        finding.axis,
        class_name,
        "",
        note,
    )
