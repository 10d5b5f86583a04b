"""The errors a user can meet; each is also the built-in error that fits."""

from typing import Any


class TensortapError(Exception):
    """The root: `except tt.TensortapError` catches whatever tensortap raises on purpose."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument, which would put quotes around our sentence.
        return str(self.args[0]) if len(self.args) == 1 else super().__str__()


class NotInitialisedError(TensortapError, RuntimeError):
    """`dump()` before `init()`."""


class UnknownModuleError(TensortapError, ValueError):
    """A module name is not in the model."""


class UnknownNameError(TensortapError, KeyError):
    """There is no record of that name."""


class UnknownFormatError(TensortapError, ValueError):
    """No serializer reads or writes that suffix."""


class UnsupportedValueError(TensortapError, TypeError):
    """The value cannot be written or sent."""


class UntrustedFileError(TensortapError, PermissionError):
    """A pickle of unknown origin, read without `trust=True`."""


class CorruptRunError(TensortapError, ValueError):
    """Part of a run or a file is damaged: says what, and what can still be read."""


def damaged_file_error(label: str, kind: str, reason: str, remedy: str = "dump it again") -> CorruptRunError:
    return CorruptRunError(f"{label} is not a whole {kind} ({reason}); {remedy}")


class NoRunError(TensortapError, FileNotFoundError):
    """The folder is not a run directory."""


class WriteFailedError(TensortapError, OSError):
    """A value could not be written (full disk, no permission, folder gone); `errno` says why."""

    def __reduce__(self) -> tuple[Any, ...]:
        # It is pickled from rank 0 to the others, and OSError would drop its errno.
        return type(self), self.args, {**self.__dict__, "errno": self.errno}


class NotWholeError(TensortapError, ValueError):
    """The pieces do not make one value: some are missing, or they contradict each other."""


class GatherError(TensortapError, RuntimeError):
    """A callback failed, or a rank did not come; what was gathered is kept."""


class NotServingError(TensortapError, RuntimeError):
    """`get()` without `serve()`, or no job to attach to."""


class RefusedError(TensortapError, PermissionError):
    """A token, a peer or a request that is not allowed."""


class MissingExtraError(TensortapError, ImportError):
    """An optional library is needed: the message holds the `pip install` line."""
