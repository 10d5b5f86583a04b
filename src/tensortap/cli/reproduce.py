"""`tensortap reproduce RUN`: what running it again takes; with --go do it, with --verify compare."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import click

from tensortap.cli.output import (
    DIFFERENT,
    MISSING,
    OK,
    REFUSED,
    counted,
    json_option,
    note,
    printable,
    write,
    write_json,
)
from tensortap.comparison.runs.compare import Comparison, compare_runs
from tensortap.metadata.git import GitError
from tensortap.reproduce.command import ProvidedSecrets, RedactedValue
from tensortap.reproduce.plan import ReproductionOptions, ReproductionPlan, ReproductionResult
from tensortap.reproduce.recorded import MissingRequirement, MissingRequirementError, describe_exit

_NAME = "reproduce"
_HELP = """Run a run again, in a folder of its own.

Prints what that takes, as a shell script, and does nothing. With --go it restores the code (a worktree and
the patch, the tree checked) and the packages, and runs the recorded command; with --verify it then says
whether the numbers are the same, bit by bit or within noise, or where they part. The checkout is never
touched."""
_EPILOG = """\b
exit codes:
  0  printed; or it ran, and with --verify gave the same within noise
  1  the program failed; or its numbers differ
  2  the command or its arguments are wrong
  3  something is missing: a commit, a package, a hidden value, a captured value
  4  refused: a path that leads out of the folder, or a run of somebody else without --trust"""


def _pairs(ctx: click.Context, parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if any(not name or not equals for name, equals, _ in pairs):
        raise click.BadParameter("give NAME=VALUE")
    return {name: value for name, _, value in pairs}


@click.command(help=_HELP, epilog=_EPILOG)
@click.argument("run", metavar="RUN", type=click.Path())
@click.option("--go", is_flag=True, help="Do it.")
@click.option("--verify", is_flag=True, help="Do it, and compare the values with those of RUN.")
@click.option("--into", type=click.Path(path_type=Path), help="The new folder; else one under the temporary.")
@click.option(
    "--env",
    type=click.Choice(["auto", "current", "fresh"]),
    default="auto",
    help="Packages: of the Python at hand if it has the same (auto), whatever it has, or a new environment.",
)
@click.option("--repo", metavar="DIR", help="A clone that has the commit, if it is not where it was.")
@click.option("--set-env", callback=_pairs, multiple=True, metavar="NAME=VALUE", help="A hidden variable.")
@click.option("--set-arg", callback=_pairs, multiple=True, metavar="NAME=VALUE", help="A hidden argument.")
@click.option(
    "--unset", multiple=True, metavar="NAME", help="Run without this hidden variable; `all` for all."
)
@click.option("--link", multiple=True, metavar="PATH", help="Link a file or folder that the run left out.")
@click.option("--apply", multiple=True, metavar="PATCH", help="Change the restored code before it runs.")
@click.option(
    "--floor", metavar="PATH", help="The noise that --verify allows: a floor, or a run that repeats RUN."
)
@click.option("--trust", is_flag=True, help="Run the command of somebody else's run, follow its links.")
@json_option
def command(**given: Any) -> int:
    as_json = given["as_json"]
    is_wanted = given["go"] or given["verify"]
    with _ended_like_an_interruption():
        try:
            plan = ReproductionPlan(given["run"], _choices(given, may_ask=is_wanted))
            if not is_wanted:
                return _printed(plan, given["into"], as_json)
            done = plan.go(given["into"], lambda line: note(line, _NAME))
        except MissingRequirementError as error:
            return _lacking(error.missing, as_json)
        except GitError as error:
            note(f"the code was not restored: {error}", _NAME)
            return MISSING
    return _verified(plan, done, given) if given["verify"] else _ran(plan, done, as_json)


def _choices(given: dict[str, Any], *, may_ask: bool) -> ReproductionOptions:
    env: Literal["auto", "current", "fresh"] = given["env"]
    is_asking = may_ask and sys.stdin is not None and sys.stdin.isatty()
    ask = _asked if is_asking else _unasked
    answers = ProvidedSecrets(given["set_env"], given["set_arg"], frozenset(given["unset"]), ask)
    return ReproductionOptions(env, given["repo"], given["trust"], given["link"], given["apply"], answers)


def _asked(secret: RedactedValue) -> str | None:
    text = f"{secret.kind} {secret.name} was hidden; its value (nothing: run without it)"
    answer: str = click.prompt(text, default="", hide_input=True, show_default=False, err=True)
    return answer or None


def _unasked(secret: RedactedValue) -> str | None:
    return None


def _printed(plan: ReproductionPlan, into: Path | None, as_json: bool) -> int:
    text = "" if plan.refusal else plan.script(into)
    if as_json:
        write_json(_NAME, {**_facts(plan), "refusal": plan.refusal, "script": text})
    else:
        # A line of its own each: what a stranger wrote into the run must not become a command.
        words = [f"# {printable(line)}" for line in _words(plan)]
        write("\n".join(["#!/bin/sh", *words, "", text]).rstrip("\n"))
    return REFUSED if plan.refusal else OK


def _words(plan: ReproductionPlan) -> Iterator[str]:
    """The plan for eyes; each line is a comment of the script."""
    recorded = plan.recorded
    yield f"{recorded.path}, of {recorded.runtime.get('timestamp', 'unknown time')}"
    for part in recorded.repositories:
        commit = f"commit {part.commit[:12]}" if part.commit else "no commit"
        patch = f", patch of {part.patch.stat().st_size:,} bytes" if part.patch else ""
        yield f"{part.label}: {commit} of {part.root}{patch}"
    if recorded.sources or recorded.sources_target == "code":
        files = counted(len(recorded.sources.get("files", [])), "file")
        yield f"{recorded.sources_target}: {files} kept beside the run"
    yield _packages(plan)
    yield f"in {recorded.working_directory}"
    yield from (f"note: {line}" for line in plan.notes)
    yield from (f"missing: {lack.what}: {lack.remedy}" for lack in plan.missing)
    if plan.refusal:
        yield f"refused: {plan.refusal}"
    if not plan.is_trusted:
        yield "made by another user: --go needs --trust"


def _packages(plan: ReproductionPlan) -> str:
    count = counted(len(plan.recorded.distributions), "package")
    wanted = f"Python {plan.recorded.python_version} and {count}"
    if plan.interpreter is None:
        return f"{wanted}: a new environment ({plan.differences.words()})"
    told = f"differs: {plan.differences.words()}" if plan.differences else "has the same"
    return f"{wanted}: {plan.interpreter.python} {told}"


def _facts(plan: ReproductionPlan) -> dict[str, Any]:
    return {
        "run": plan.recorded.path,
        "parts": [
            {"name": p.label, "root": p.root, "commit": p.commit, "tree": p.tree}
            for p in plan.recorded.repositories
        ],
        "environment": "fresh" if plan.is_fresh else "current",
        "differences": plan.differences.words(),
        "notes": plan.notes,
        "missing": [_lack(lack) for lack in plan.missing],
        "is_trusted": plan.is_trusted,
    }


def _lack(lack: MissingRequirement) -> dict[str, Any]:
    return {"what": lack.what, "remedy": lack.remedy, "stops": lack.is_blocking}


def _lacking(lacks: tuple[MissingRequirement, ...], as_json: bool) -> int:
    if as_json:
        write_json(_NAME, {"missing": [_lack(lack) for lack in lacks]})
    for lack in lacks:
        note(f"missing: {lack.what}: {lack.remedy}", _NAME)
    return MISSING


def _ran(plan: ReproductionPlan, done: ReproductionResult, as_json: bool) -> int:
    _note_circumstances(plan, done)
    if as_json:
        write_json(_NAME, {**_facts(plan), **_result(done)})
    else:
        write(_places(done))
    return _end(plan, done)


def _end(plan: ReproductionPlan, done: ReproductionResult) -> int:
    return OK if plan.recorded.exit_code in (done.exit_code, None) else DIFFERENT


def _places(done: ReproductionResult) -> str:
    run = f"run: {done.run}" if done.run else "the program began no run"
    return f"{run}\nfolder: {done.into}\nto remove it: {done.removal}"


def _result(done: ReproductionResult) -> dict[str, Any]:
    told = [f"{lack.what}: {lack.remedy}" for lack in done.missing]
    return {
        "into": done.into,
        "removal": done.removal,
        "exit_code": done.exit_code,
        "new_run": done.run,
        "left_out": told,
    }


def _note_circumstances(plan: ReproductionPlan, done: ReproductionResult) -> None:
    """What stands beside the answer, never hidden."""
    for line in plan.notes:
        note(line, _NAME)
    for lack in done.missing:
        note(f"left out: {lack.what}: {lack.remedy}", _NAME)
    before = plan.recorded.exit_code
    if done.exit_code or before:
        earlier = "" if before is None else f", and before with {describe_exit(before)}"
        note(f"the program ended with {describe_exit(done.exit_code)}{earlier}", _NAME)


def _verified(plan: ReproductionPlan, done: ReproductionResult, given: dict[str, Any]) -> int:
    _note_circumstances(plan, done)
    if done.run is None:
        note(f"the program began no run in {done.into}, so there is nothing to compare", _NAME)
        return MISSING
    found = compare_runs(plan.recorded.path, done.run, floor=given["floor"])
    if given["as_json"]:
        answer = {"verdict": verdict(found), "comparison": found.to_json()}
        write_json(_NAME, {**_facts(plan), **_result(done), **answer})
    else:
        write(_answer(found))
        write(_places(done))
        if found.is_different:
            write(f"\n{found}")
    return found.exit_code or _end(plan, done)


def verdict(found: Comparison) -> str:
    """`bitwise`, `noise`, `different`, or `incomplete` where not everything could be compared."""
    if found.is_different:
        return "different"
    if not found.coverage.is_whole:
        return "incomplete"
    return "bitwise" if set(found.counts) <= {"identical"} else "noise"


def _answer(found: Comparison) -> str:
    values = counted(found.coverage.pairs, "value")
    place = (found.first and found.first.name) or "the model itself"
    words = {
        "bitwise": f"BITWISE EQUAL: all {values}",
        "noise": f"WITHIN NOISE: {values}, of which some differ by rounding",
        "incomplete": f"INCOMPLETE: nothing differs among {values}, but not everything could be compared",
        "different": f"DIFFERENT: the runs part at {place}",
    }
    return words[verdict(found)]


@contextmanager
def _ended_like_an_interruption() -> Iterator[None]:
    """A request to end cleans up as Ctrl-C does."""
    try:
        before = signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:  # not the main thread, which alone is told
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
