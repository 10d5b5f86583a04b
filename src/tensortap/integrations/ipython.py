"""`%load_ext tensortap`: captures in a notebook by `%tap model layers.*`."""

from __future__ import annotations

import argparse
import inspect
import shlex
from typing import Any, NoReturn

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class

from tensortap.core.errors import TensortapError
from tensortap.core.patterns import closest_names
from tensortap.recording.capture import Capture, capture
from tensortap.stages.select import every

_USAGE = "%tap MODEL [PATTERN...], %tap to look, %tap off to end; %%tap MODEL [PATTERN...] for one cell"
_HELP = ("--help", "-h")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What `%load_ext tensortap` calls."""
    shell.register_magics(TapMagics(shell))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """What `%unload_ext tensortap` calls: remove the magic, and end a capture that is on."""
    magics = shell.magics_manager.registry.pop("TapMagics", None)
    if magics is not None:
        magics.end()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tap", None)


@magics_class
class TapMagics(Magics):
    """Owns the capture that is on, from `%tap model` until `%tap off`."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)
        self._notebook: Any = shell
        self._capture: Capture | None = None

    @line_cell_magic
    def tap(self, line: str, cell: str | None = None) -> Capture | None:
        """Capture what a model of this notebook computes, into `cap`.

        %tap model layers.* --every 10   begin; patterns as in tt.capture, none means every module output
        %tap                             look at what came so far
        %tap off                         end; `cap` stays
        %%tap model layers.*.in          this cell alone

        --every N      of that many steps one
        --keep stats   statistics instead of values
        --to runs/     write them there
        """
        arguments = shlex.split(line, comments=True)
        if cell is not None:
            return self._capture_cell(arguments, cell)
        if not arguments:
            return self._current_capture()
        if arguments == ["off"]:
            return self.end()
        if set(arguments) & {*_HELP}:
            print(inspect.getdoc(TapMagics.tap))
            return None
        new_capture = self._make_capture(arguments)
        self._end_previous()
        self._capture = new_capture
        new_capture.start()
        return None

    def _end_previous(self) -> None:
        """End the capture that is on, and print so, because `cap` is replaced."""
        previous = self.end()
        if previous is not None:
            count = f"{len(previous):,} record{'' if len(previous) == 1 else 's'}"
            print(f"the tap that was on has ended, with {count}; `cap` is the new one")

    def end(self) -> Capture | None:
        """End the capture that is on, and return it."""
        ended, self._capture = self._capture, None
        if ended is not None:
            ended.stop()
        return ended

    def _capture_cell(self, words: list[str], cell: str) -> Capture:
        new_capture = self._make_capture(words)
        with new_capture:
            # The shell itself shows errors of the cell.
            self._notebook.run_cell(cell)
        return new_capture

    def _current_capture(self) -> Capture:
        if self._capture is None:
            raise UsageError(f"nothing is tapped; {_USAGE}")
        return self._capture

    def _make_capture(self, words: list[str]) -> Capture:
        arguments = _parse_arguments(words)
        model = self._resolve_variable(arguments.model)
        try:
            when = every(arguments.every) if arguments.every else None
            new_capture = capture(model, *arguments.patterns, keep=arguments.keep, when=when, to=arguments.to)
        except (TensortapError, ValueError, TypeError, OSError) as error:
            raise UsageError(str(error)) from None
        self._notebook.user_ns["cap"] = new_capture
        return new_capture

    def _resolve_variable(self, path: str) -> Any:
        """A variable of the notebook, or an attribute of one: `trainer.model`. Nothing is evaluated."""
        first, *rest = path.split(".")
        names = self._notebook.user_ns
        if first not in names:
            near = closest_names(first, [name for name in names if not name.startswith("_")])
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"no variable {first!r} in this notebook{hint}")
        attribute = names[first]
        for name in rest:
            if not hasattr(attribute, name):
                raise UsageError(f"{first!r} has no {name!r} on the way to {path!r}")
            attribute = getattr(attribute, name)
        return attribute


class _MagicParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {_USAGE}")


def _parse_arguments(words: list[str]) -> argparse.Namespace:
    parser = _MagicParser(prog="%tap", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--every", type=int)
    parser.add_argument("--keep")
    parser.add_argument("--to")
    arguments = parser.parse_intermixed_args(words)
    if not arguments.words:
        parser.error("there is no model")
    arguments.model, *arguments.patterns = arguments.words
    return arguments
