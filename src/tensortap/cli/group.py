"""The group of all commands: lists them without importing any, and turns errors into exit codes."""

import errno
import linecache
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem, shell_complete

import tensortap
from tensortap.cli.output import MISSING, REFUSED, USAGE, note, printable
from tensortap.core.errors import (
    CorruptRunError,
    NoRunError,
    NotServingError,
    NotWholeError,
    RefusedError,
    TensortapError,
    UnknownNameError,
    UntrustedFileError,
)
from tensortap.core.patterns import closest_names
from tensortap.core.settings import is_strict

_HOME = os.path.dirname(tensortap.__file__) + os.sep
_WRITING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
COMPLETE = "_TENSORTAP_COMPLETE"
NAMES = ("tensortap", "tt")
_INTERRUPTED, _NOBODY_READS = 130, 141  # what a shell sees of a program that SIGINT or SIGPIPE ended
_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((RefusedError, UntrustedFileError), REFUSED),
    ((NoRunError, CorruptRunError, UnknownNameError, NotWholeError, NotServingError), MISSING),
    ((TensortapError,), USAGE),
    ((OSError,), MISSING),
    ((ValueError,), USAGE),
)
# What an error advises, and what it means for whoever typed a command.
_IN_A_SHELL = {"pass trust=True": "say --trust", "init() with a folder": "--to takes a folder"}
_FOOT = "The tools are used from Python too: import tensortap as tt"
_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def run(commands: Mapping[str, str], arguments: list[str]) -> int:
    """Run what was typed; say in one sentence what is wrong with it."""
    called = arguments[0] if arguments and arguments[0] in commands else ""
    _open_what_is_closed()
    try:
        code = int(_invoked(commands, arguments) or 0)
        sys.stdout.flush()  # here a full disk can still be told
        return code
    except click.UsageError as error:
        note(_usage_text(error), called)
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        _give_up_output()
        return _NOBODY_READS
    except (TensortapError, OSError, ValueError) as error:
        _give_up_output()
        if is_strict() and not is_on_purpose(error):
            raise
        return failed(error, called)


def _give_up_output() -> None:
    """Where it cannot be written, what is still buffered would fail once more at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_on_purpose(error: Exception) -> bool:
    """Whether it tells of what was typed or found. A ValueError that no line of ours raises is a mistake of
    ours, which its one sentence would hide."""
    if isinstance(error, TensortapError | OSError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    file = trace.tb_frame.f_code.co_filename
    return file.startswith(_HOME) and linecache.getline(file, trace.tb_lineno).lstrip().startswith("raise ")


def failed(error: Exception, command: str) -> int:
    """Say an error in its own words; the exit code that fits it."""
    note(_sentence(error), command)
    return next(code for kinds, code in _CODES if isinstance(error, kinds))


def _open_what_is_closed() -> None:
    """A shell can start a program without an output (`>&-`); what is written there goes nowhere."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end


def _sentence(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, TensortapError) and error.strerror:
        where = (
            f" {printable(os.fsdecode(error.filename))}" if isinstance(error.filename, str | bytes) else ""
        )
        verb = "write" if error.errno in _WRITING else "open"
        return f"cannot {verb}{where}: {error.strerror.lower()}"
    for in_python, in_a_shell in _IN_A_SHELL.items():
        text = text.replace(in_python, in_a_shell)
    return text


class Commands(click.Group):
    """Knows the name of every command, and imports the one that is called."""

    def __init__(self, table: Mapping[str, str]) -> None:
        super().__init__(
            "tensortap",
            help="Catch, keep, compare and reproduce the tensors of a running model.",
            epilog=_FOOT,
            context_settings=_SETTINGS,
            invoke_without_command=True,
            no_args_is_help=False,
            callback=_help_if_nothing_is_asked,
        )
        self.table = table
        version = click.version_option(
            tensortap.__version__, "-V", "--version", message="tensortap %(version)s"
        )
        version(self)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        command: click.Command = import_module(f"tensortap.cli.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not ctx.resilient_parsing:
            raise click.UsageError(_unknown(args[0], self.table))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=what) for name, what in self.table.items()]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [item for item in names if item.value.startswith(incomplete)] + options


def _invoked(commands: Mapping[str, str], arguments: list[str]) -> int | None:
    """As click's own `main` does, which would end the process where nobody reads what is written."""
    typed = Path(sys.argv[0]).name
    program, group = typed if typed in NAMES else NAMES[0], Commands(commands)
    asked = os.environ.get(COMPLETE)
    if asked:
        return shell_complete(group, {}, program, COMPLETE, asked)
    try:
        with group.make_context(program, list(arguments)) as ctx:
            answer: int | None = group.invoke(ctx)
    except click.exceptions.Exit as ended:
        answer = ended.exit_code
    sys.stdout.flush()  # here, where a reader that has gone is no surprise
    return answer


@click.pass_context
def _help_if_nothing_is_asked(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _unknown(typed: str, table: Mapping[str, str]) -> str:
    near = closest_names(typed, table)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"no command {printable(typed)!r}; {hint}tensortap --help lists all {len(table)}"


def _usage_text(error: click.UsageError) -> str:
    """Click's sentence, begun and ended as ours are."""
    text = error.format_message().strip().removesuffix(".")
    begun = text[:1].lower() + text[1:]
    where = error.ctx.command_path if error.ctx is not None else ""
    return f"{begun}; {where} --help tells more" if where else begun
