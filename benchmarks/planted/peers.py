"""What other tools go by, at their defaults: the first value in execution order that fails the rule.

The rules are written here again from the tools' own descriptions; users of the tools can adjust them."""

from collections.abc import Callable
from typing import Any

import torch

import tensortap as tt
from planted.harmless import Records

Rule = Callable[[torch.Tensor, torch.Tensor], bool]  # whether the two pass as equal


def same_hash(a: torch.Tensor, b: torch.Tensor) -> bool:
    """torch's DebugMode and torchtitan: equal to the last bit."""
    one, other = (side.contiguous().reshape(-1).view(torch.uint8) for side in (a, b))
    return torch.equal(one, other)


def assert_close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """torch.testing: tolerances by the number type."""
    try:
        torch.testing.assert_close(b, a)
    except AssertionError:
        return False
    return True


def polygraphy(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Each element within 1e-5, absolutely or relatively."""
    apart = (b.double() - a.double()).abs()
    is_off = ~(apart <= 1e-5) & ~(apart / a.double().abs().clamp_min(1e-300) <= 1e-5)
    return not bool(is_off.any())


def sglang(a: torch.Tensor, b: torch.Tensor) -> bool:
    """One minus a cosine that also sees the length, at most 1e-3."""
    x, y = a.double(), b.double()
    size = float((x * x + y * y).sum())
    return size == 0 or 1 - 2 * float((x * y).sum()) / size <= 1e-3


RULES: dict[str, Rule] = {
    "equal hashes": same_hash,
    "assert_close": assert_close,
    "Polygraphy 1e-5": polygraphy,
    "sglang rel 1e-3": sglang,
}


def first_failure(a: Records, b: Records, rule: Rule) -> tt.Record | None:
    """What is on one side only is passed over, as the tools do; of several ranks each is looked at."""
    others: dict[tuple[Any, ...], list[Any]] = {}
    for one in b:
        others.setdefault((one.name, one.step, one.call), []).append(one.value)
    for one in a:
        known = others.get((one.name, one.step, one.call), ())
        if isinstance(one.value, torch.Tensor) and not all(
            _passes(one.value, other, rule) for other in known
        ):
            return one
    return None


def blamed(record: tt.Record) -> str:
    """The module of a value; of what comes into a module, the code around it: as generous as to ourselves."""
    name = record.name
    name = name.removesuffix(".grad")
    if record.kind in ("output", "grad_output"):
        return "" if name.startswith("out.") else name.partition("[")[0]
    if record.kind in ("param", "grad_param"):
        return name.rpartition(".")[0]
    if record.kind == "input" and name.startswith("in."):
        return name
    module = name.partition(".in.")[0].removesuffix(".in")
    return _around(module)


def _around(module: str) -> str:
    """The module that calls it; a list of layers is not called itself."""
    parent = module.rpartition(".")[0]
    return _around(parent) if module.rpartition(".")[2].isdecimal() and parent else parent


def _passes(a: torch.Tensor, b: Any, rule: Rule) -> bool:
    if isinstance(b, torch.Tensor) and (a.dtype == torch.bool) != (b.dtype == torch.bool):
        return True  # a mask that is written in another way: nobody would compare it
    return isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype and rule(a, b)
