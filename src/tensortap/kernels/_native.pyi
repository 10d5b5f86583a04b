from collections.abc import Sequence
from typing import Any

BINS: int

def statistics(bits: Any, code: int, table: Any, start: int, stop: int, /) -> tuple[Any, ...]: ...
def differences(
    a: Any, a_code: int, a_table: Any,
    b: Any, b_code: int, b_table: Any,
    start: int, stop: int, atol: float, rtol: float,
    equal_nan: bool, until_mismatch: bool, are_integers: bool, with_ulps: bool, /,
) -> tuple[Any, ...]: ...  # fmt: skip
def along(
    a: Any, a_code: int, a_table: Any,
    b: Any, b_code: int, b_table: Any,
    start: int, stop: int, length: int, inner: int, scale: float, gaps: Any, bases: Any, /,
) -> None: ...  # fmt: skip
def axes(
    a: Any, a_code: int, a_table: Any,
    b: Any, b_code: int, b_table: Any,
    start: int, stop: int, rows: int, columns: int, are_finite: bool,
    row_gaps: Any, row_bases: Any, column_gaps: Any, column_bases: Any, /,
) -> None: ...  # fmt: skip
def measured(pairs: list[tuple[object, ...]], /) -> list[tuple[Any, ...] | None]: ...
def variants() -> Sequence[str]: ...
def choose(name: str, /) -> None: ...
