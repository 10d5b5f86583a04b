"""The group of all commands: lists them without importing any, and turns errors into exit codes."""

import errno
import linecache
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class, shell_complete

import tensortap
from tensortap.cli.output import MISSING, REFUSED, USAGE, note, printable, write
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

_PACKAGE_FOLDER = os.path.dirname(tensortap.__file__) + os.sep
_WRITE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)
_COMPLETION_VARIABLE = "_TENSORTAP_COMPLETE"
_PROGRAM_NAMES = ("tensortap", "tt")
_INTERRUPTED, _BROKEN_PIPE = 130, 141  # as a shell reports SIGINT and SIGPIPE
_EXIT_CODES: tuple[tuple[tuple[type[Exception], ...], int], ...] = (
    ((RefusedError, UntrustedFileError), REFUSED),
    ((NoRunError, CorruptRunError, UnknownNameError, NotWholeError, NotServingError), MISSING),
    ((TensortapError,), USAGE),
    ((OSError,), MISSING),
    ((ValueError,), USAGE),
)
# Advice in the words of Python, and its equivalent on the command line.
_SHELL_WORDING = {"pass trust=True": "say --trust", "init() with a folder": "--to takes a folder"}
_EPILOG = "The tools are used from Python too: import tensortap as tt"
_CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"], "max_content_width": 110}


def run_command(commands: Mapping[str, str], arguments: list[str]) -> int:
    """Run a command line and return its exit code; errors become one sentence on stderr."""
    command_name = arguments[0] if arguments and arguments[0] in commands else ""
    _open_closed_streams()
    try:
        code = int(_invoke(commands, arguments) or 0)
        sys.stdout.flush()  # here a full disk can still be reported
        return code
    except click.UsageError as error:
        note(_describe_usage_error(error), command_name)
        return USAGE
    except (KeyboardInterrupt, click.Abort):
        return _INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return _BROKEN_PIPE
    except (TensortapError, OSError, ValueError) as error:
        _discard_output()
        if is_strict() and not is_expected(error):
            raise
        return report_error(error, command_name)


def _discard_output() -> None:
    """Discard buffered output that cannot be written, which would fail again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def is_expected(error: Exception) -> bool:
    """Whether the error is about the user's input or files. A ValueError not raised by our own code is a bug
    of ours, which one sentence would hide."""
    if isinstance(error, TensortapError | OSError):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    file = trace.tb_frame.f_code.co_filename
    return file.startswith(_PACKAGE_FOLDER) and linecache.getline(file, trace.tb_lineno).lstrip().startswith(
        "raise "
    )


def report_error(error: Exception, command: str) -> int:
    """Write the message of an error to stderr; return its exit code."""
    note(_describe_error(error), command)
    return next(code for kinds, code in _EXIT_CODES if isinstance(error, kinds))


def _open_closed_streams() -> None:
    """Open /dev/null for streams that the shell has closed (`>&-`)."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - until the end


def _describe_error(error: Exception) -> str:
    text = str(error)
    if isinstance(error, OSError) and not isinstance(error, TensortapError) and error.strerror:
        location = (
            f" {printable(os.fsdecode(error.filename))}" if isinstance(error.filename, str | bytes) else ""
        )
        verb = "write" if error.errno in _WRITE_ERRORS else "open"
        return f"cannot {verb}{location}: {error.strerror.lower()}"
    for python_wording, shell_wording in _SHELL_WORDING.items():
        text = text.replace(python_wording, shell_wording)
    return text


class CommandGroup(click.Group):
    """A click group that imports only the command that is called."""

    def __init__(self, table: Mapping[str, str]) -> None:
        super().__init__(
            "tensortap",
            help="Catch, keep, compare and reproduce the tensors of a running model.",
            epilog=_EPILOG,
            context_settings=_CONTEXT_SETTINGS,
            invoke_without_command=True,
            no_args_is_help=False,
            callback=_print_help_without_command,
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
        if cmd_name == completion.name:
            return completion
        command: click.Command = import_module(f"tensortap.cli.commands.{cmd_name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not ctx.resilient_parsing:
            raise click.UsageError(_describe_unknown(args[0], self.table))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(self.table.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [CompletionItem(name, help=description) for name, description in self.table.items()]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [suggestion for suggestion in names if suggestion.value.startswith(incomplete)] + options


def _invoke(commands: Mapping[str, str], arguments: list[str]) -> int | None:
    """Like click's `main`, which would exit the process on a broken pipe."""
    script_name = Path(sys.argv[0]).name
    program, group = (
        script_name if script_name in _PROGRAM_NAMES else _PROGRAM_NAMES[0],
        CommandGroup(commands),
    )
    instruction = os.environ.get(_COMPLETION_VARIABLE)
    if instruction:
        return shell_complete(group, {}, program, _COMPLETION_VARIABLE, instruction)
    try:
        with group.make_context(program, list(arguments)) as ctx:
            exit_code: int | None = group.invoke(ctx)
    except click.exceptions.Exit as exit_request:
        exit_code = exit_request.exit_code
    sys.stdout.flush()  # here, where a broken pipe is handled
    return exit_code


_COMPLETION_HELP = """Print what a shell needs to complete tensortap and tt.

\b
  bash  eval "$(tensortap completion bash)"        in ~/.bashrc
  zsh   eval "$(tensortap completion zsh)"         in ~/.zshrc
  fish  tensortap completion fish > ~/.config/fish/completions/tensortap.fish"""


@click.command(help=_COMPLETION_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    completion_class = get_completion_class(shell)
    assert completion_class is not None  # click ships all three
    for name in _PROGRAM_NAMES:
        shell_completion = completion_class(click.Command(name), {}, name, _COMPLETION_VARIABLE)
        # Not source(): it starts the shell to get its version.
        write(shell_completion.source_template % shell_completion.source_vars())


@click.pass_context
def _print_help_without_command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def _describe_unknown(typed: str, table: Mapping[str, str]) -> str:
    near = closest_names(typed, table)
    hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    return f"no command {printable(typed)!r}; {hint}tensortap --help lists all {len(table)}"


def _describe_usage_error(error: click.UsageError) -> str:
    """Click's message in the style of ours: lower case, with a hint at --help."""
    text = error.format_message().strip().removesuffix(".")
    sentence = text[:1].lower() + text[1:]
    command_path = error.ctx.command_path if error.ctx is not None else ""
    return f"{sentence}; {command_path} --help tells more" if command_path else sentence
