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
    format_count,
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


def _parse_pairs(
    ctx: click.Context, parameter: click.Parameter, arguments: tuple[str, ...]
) -> dict[str, str]:
    pairs = [argument.partition("=") for argument in arguments]
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
@click.option(
    "--set-env", callback=_parse_pairs, multiple=True, metavar="NAME=VALUE", help="A hidden variable."
)
@click.option(
    "--set-arg", callback=_parse_pairs, multiple=True, metavar="NAME=VALUE", help="A hidden argument."
)
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
def command(**options: Any) -> int:
    as_json = options["as_json"]
    will_run = options["go"] or options["verify"]
    with _sigterm_as_interrupt():
        try:
            plan = ReproductionPlan(options["run"], _reproduction_options(options, may_ask=will_run))
            if not will_run:
                return _print_plan(plan, options["into"], as_json)
            result = plan.go(options["into"], lambda line: note(line, _NAME))
        except MissingRequirementError as error:
            return _report_missing(error.missing, as_json)
        except GitError as error:
            note(f"the code was not restored: {error}", _NAME)
            return MISSING
    return (
        _report_verification(plan, result, options)
        if options["verify"]
        else _report_result(plan, result, as_json)
    )


def _reproduction_options(options: dict[str, Any], *, may_ask: bool) -> ReproductionOptions:
    env: Literal["auto", "current", "fresh"] = options["env"]
    can_prompt = may_ask and sys.stdin is not None and sys.stdin.isatty()
    ask = _prompt_for_secret if can_prompt else _no_prompt
    secrets = ProvidedSecrets(options["set_env"], options["set_arg"], frozenset(options["unset"]), ask)
    return ReproductionOptions(
        env, options["repo"], options["trust"], options["link"], options["apply"], secrets
    )


def _prompt_for_secret(secret: RedactedValue) -> str | None:
    prompt = f"{secret.kind} {secret.name} was hidden; its value (nothing: run without it)"
    answer: str = click.prompt(prompt, default="", hide_input=True, show_default=False, err=True)
    return answer or None


def _no_prompt(secret: RedactedValue) -> str | None:
    return None


def _print_plan(plan: ReproductionPlan, into: Path | None, as_json: bool) -> int:
    script = "" if plan.refusal else plan.script(into)
    if as_json:
        write_json(_NAME, {**_plan_facts(plan), "refusal": plan.refusal, "script": script})
    else:
        # Each a line of its own: what an untrusted run contains must not become a command.
        comments = [f"# {printable(line)}" for line in _plan_lines(plan)]
        write("\n".join(["#!/bin/sh", *comments, "", script]).rstrip("\n"))
    return REFUSED if plan.refusal else OK


def _plan_lines(plan: ReproductionPlan) -> Iterator[str]:
    """The plan as lines; each becomes a comment of the script."""
    recorded = plan.recorded
    yield f"{recorded.path}, of {recorded.runtime.get('timestamp', 'unknown time')}"
    for repository in recorded.repositories:
        commit = f"commit {repository.commit[:12]}" if repository.commit else "no commit"
        patch = f", patch of {repository.patch.stat().st_size:,} bytes" if repository.patch else ""
        yield f"{repository.label}: {commit} of {repository.root}{patch}"
    if recorded.sources or recorded.sources_target == "code":
        files = format_count(len(recorded.sources.get("files", [])), "file")
        yield f"{recorded.sources_target}: {files} kept beside the run"
    yield _describe_packages(plan)
    yield f"in {recorded.working_directory}"
    yield from (f"note: {line}" for line in plan.notes)
    yield from (f"missing: {requirement.what}: {requirement.remedy}" for requirement in plan.missing)
    if plan.refusal:
        yield f"refused: {plan.refusal}"
    if not plan.is_trusted:
        yield "made by another user: --go needs --trust"


def _describe_packages(plan: ReproductionPlan) -> str:
    count = format_count(len(plan.recorded.distributions), "package")
    requirement = f"Python {plan.recorded.python_version} and {count}"
    if plan.interpreter is None:
        return f"{requirement}: a new environment ({plan.differences.words()})"
    comparison = f"differs: {plan.differences.words()}" if plan.differences else "has the same"
    return f"{requirement}: {plan.interpreter.python} {comparison}"


def _plan_facts(plan: ReproductionPlan) -> dict[str, Any]:
    return {
        "run": plan.recorded.path,
        "parts": [
            {
                "name": repository.label,
                "root": repository.root,
                "commit": repository.commit,
                "tree": repository.tree,
            }
            for repository in plan.recorded.repositories
        ],
        "environment": "fresh" if plan.is_fresh else "current",
        "differences": plan.differences.words(),
        "notes": plan.notes,
        "missing": [_requirement_facts(requirement) for requirement in plan.missing],
        "is_trusted": plan.is_trusted,
    }


def _requirement_facts(requirement: MissingRequirement) -> dict[str, Any]:
    return {"what": requirement.what, "remedy": requirement.remedy, "stops": requirement.is_blocking}


def _report_missing(missing: tuple[MissingRequirement, ...], as_json: bool) -> int:
    if as_json:
        write_json(_NAME, {"missing": [_requirement_facts(requirement) for requirement in missing]})
    for requirement in missing:
        note(f"missing: {requirement.what}: {requirement.remedy}", _NAME)
    return MISSING


def _report_result(plan: ReproductionPlan, result: ReproductionResult, as_json: bool) -> int:
    _write_notes(plan, result)
    if as_json:
        write_json(_NAME, {**_plan_facts(plan), **_result_facts(result)})
    else:
        write(_describe_result(result))
    return _exit_code(plan, result)


def _exit_code(plan: ReproductionPlan, result: ReproductionResult) -> int:
    return OK if plan.recorded.exit_code in (result.exit_code, None) else DIFFERENT


def _describe_result(result: ReproductionResult) -> str:
    run = f"run: {result.run}" if result.run else "the program began no run"
    return f"{run}\nfolder: {result.into}\nto remove it: {result.removal}"


def _result_facts(result: ReproductionResult) -> dict[str, Any]:
    omitted = [f"{requirement.what}: {requirement.remedy}" for requirement in result.missing]
    return {
        "into": result.into,
        "removal": result.removal,
        "exit_code": result.exit_code,
        "new_run": result.run,
        "left_out": omitted,
    }


def _write_notes(plan: ReproductionPlan, result: ReproductionResult) -> None:
    """Notes on the plan and the result, to stderr."""
    for line in plan.notes:
        note(line, _NAME)
    for requirement in result.missing:
        note(f"left out: {requirement.what}: {requirement.remedy}", _NAME)
    recorded_exit = plan.recorded.exit_code
    if result.exit_code or recorded_exit:
        earlier = "" if recorded_exit is None else f", and before with {describe_exit(recorded_exit)}"
        note(f"the program ended with {describe_exit(result.exit_code)}{earlier}", _NAME)


def _report_verification(plan: ReproductionPlan, result: ReproductionResult, options: dict[str, Any]) -> int:
    _write_notes(plan, result)
    if result.run is None:
        note(f"the program began no run in {result.into}, so there is nothing to compare", _NAME)
        return MISSING
    comparison = compare_runs(plan.recorded.path, result.run, floor=options["floor"])
    if options["as_json"]:
        verdict_facts = {"verdict": verdict(comparison), "comparison": comparison.to_json()}
        write_json(_NAME, {**_plan_facts(plan), **_result_facts(result), **verdict_facts})
    else:
        write(_verdict_sentence(comparison))
        write(_describe_result(result))
        if comparison.is_different:
            write(f"\n{comparison}")
    return comparison.exit_code or _exit_code(plan, result)


def verdict(comparison: Comparison) -> str:
    """`bitwise`, `noise`, `different`, or `incomplete` where not everything could be compared."""
    if comparison.is_different:
        return "different"
    if not comparison.coverage.is_whole:
        return "incomplete"
    return "bitwise" if set(comparison.counts) <= {"identical"} else "noise"


def _verdict_sentence(comparison: Comparison) -> str:
    values = format_count(comparison.coverage.pairs, "value")
    location = (comparison.first and comparison.first.name) or "the model itself"
    sentences = {
        "bitwise": f"BITWISE EQUAL: all {values}",
        "noise": f"WITHIN NOISE: {values}, of which some differ by rounding",
        "incomplete": f"INCOMPLETE: nothing differs among {values}, but not everything could be compared",
        "different": f"DIFFERENT: the runs part at {location}",
    }
    return sentences[verdict(comparison)]


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM cleans up as Ctrl-C does."""
    try:
        previous_handler = signal.signal(signal.SIGTERM, _interrupt)
    except ValueError:  # only the main thread may set handlers
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
