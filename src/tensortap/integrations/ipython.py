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
from tensortap.core.paths import closest_names
from tensortap.recording.capture import Capture, capture
from tensortap.stages.select import every

_USAGE = "%tap MODEL [PATTERN...], %tap to look, %tap off to end; %%tap MODEL [PATTERN...] for one cell"
_HELP = ("--help", "-h")


def load_ipython_extension(shell: InteractiveShell) -> None:
    """What `%load_ext tensortap` calls."""
    shell.register_magics(TapMagics(shell))


def unload_ipython_extension(shell: InteractiveShell) -> None:
    """What `%unload_ext tensortap` calls: the magic goes, and so do the hooks of a capture that is on."""
    found = shell.magics_manager.registry.pop("TapMagics", None)
    if found is not None:
        found.end()
    for kind in ("line", "cell"):
        shell.magics_manager.magics[kind].pop("tap", None)


@magics_class
class TapMagics(Magics):
    """Holds the capture that is on, from `%tap model` until `%tap off`."""

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
        words = shlex.split(line, comments=True)
        if cell is not None:
            return self._one_cell(words, cell)
        if not words:
            return self._looked_at()
        if words == ["off"]:
            return self.end()
        if set(words) & {*_HELP}:
            print(inspect.getdoc(TapMagics.tap))
            return None
        made = self._made(words)
        self._give_way()
        self._capture = made
        made.start()
        return None

    def _give_way(self) -> None:
        """Told, because `cap` is another from now on."""
        before = self.end()
        if before is not None:
            count = f"{len(before):,} record{'' if len(before) == 1 else 's'}"
            print(f"the tap that was on has ended, with {count}; `cap` is the new one")

    def end(self) -> Capture | None:
        """End the capture that is on, and give it."""
        found, self._capture = self._capture, None
        if found is not None:
            found.stop()
        return found

    def _one_cell(self, words: list[str], cell: str) -> Capture:
        made = self._made(words)
        with made:
            # The shell itself shows what goes wrong in the cell.
            self._notebook.run_cell(cell)
        return made

    def _looked_at(self) -> Capture:
        if self._capture is None:
            raise UsageError(f"nothing is tapped; {_USAGE}")
        return self._capture

    def _made(self, words: list[str]) -> Capture:
        given = _parsed(words)
        model = self._found(given.model)
        try:
            when = every(given.every) if given.every else None
            made = capture(model, *given.patterns, keep=given.keep, when=when, to=given.to)
        except (TensortapError, ValueError, TypeError, OSError) as error:
            raise UsageError(str(error)) from None
        self._notebook.user_ns["cap"] = made
        return made

    def _found(self, path: str) -> Any:
        """A variable of the notebook, or an attribute of one: `trainer.model`. Nothing is evaluated."""
        first, *rest = path.split(".")
        names = self._notebook.user_ns
        if first not in names:
            near = closest_names(first, [name for name in names if not name.startswith("_")])
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise UsageError(f"no variable {first!r} in this notebook{hint}")
        found = names[first]
        for name in rest:
            if not hasattr(found, name):
                raise UsageError(f"{first!r} has no {name!r} on the way to {path!r}")
            found = getattr(found, name)
        return found


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {_USAGE}")


def _parsed(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="%tap", add_help=False, allow_abbrev=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--every", type=int)
    parser.add_argument("--keep")
    parser.add_argument("--to")
    given = parser.parse_intermixed_args(words)
    if not given.words:
        parser.error("there is no model")
    given.model, *given.patterns = given.words
    return given
