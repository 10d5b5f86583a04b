"""Which bugs are above the noise of a number type: decided here, before anything is compared.

`python -m planted.noise` writes the list; `python -m planted` reads it, and has it made where it is missing.
A bug is above noise where the part that has it, alone and on the very same inputs, is off by more than moving
these inputs by one place of their last digit makes of it, or running it again. Of training, what counts is
the weights after the step in question, or the gradients of the module, beside those of a run whose embeddings
were moved in that way."""

import copy
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

import tensortap as tt
from planted import attention_bugs, bugs, part_bugs, weight_bugs  # noqa: F401 - each adds its own to the list
from planted.answers import Clean
from planted.harmless import Records
from planted.models import Batch, Kind, batch, build
from planted.parallel import fitting_parallel, is_divisible, run
from planted.planting import Bug, fitting
from planted.training import AFTER, Recipe, TrainingBug, fitting_training, is_trainable, trained, wrongly
from tensortap.comparison.values.metrics import Metrics, measure
from tensortap.frameworks.torch_precision import perturb_by_one_ulp

Given = tuple[tuple[Any, ...], dict[str, Any]]


def above_noise(kind: Kind, seed: int, dtype: torch.dtype, *, is_whole: bool = True) -> list[str]:
    """The bugs of one model that are; those of training and of two ranks where they are scored."""
    given = batch(kind, seed, dtype)
    found = [one.name for one in fitting(kind) if is_above_noise(kind, seed, dtype, given, one)]
    if not is_whole:
        return found
    return [*found, *_of_training(kind, seed, dtype), *_of_ranks(kind, seed, dtype, given)]


def is_above_noise(kind: Kind, seed: int, dtype: torch.dtype, given: Batch, one: Bug) -> bool:
    path = one.located(kind)
    right, inputs = _with_inputs(build(kind, seed, dtype), path, given)
    wrong = one.into(build(kind, seed, dtype), kind).get_submodule(path)
    plain = _given_by(right, inputs)
    noise = [measure(plain, _given_by(right, other)) for other in (inputs, _moved(inputs))]
    return _exceeds(measure(plain, _given_by(wrong, inputs)), noise)


def _of_training(kind: Kind, seed: int, dtype: torch.dtype) -> Iterable[str]:
    if not is_trainable(kind):
        return
    given, model = batch(kind, seed, dtype), build(kind, seed, dtype)
    right = trained(model, given, Recipe())
    with tt.edit(model, {_first(kind): perturb_by_one_ulp}):
        nearly = trained(model, given, Recipe())
    for one in fitting_training(kind):
        wrong = wrongly(one, kind, build(kind, seed, dtype), given)
        if any(_exceeds(measure(a, b), [measure(a, c)]) for a, b, c in _at(one, kind, right, wrong, nearly)):
            yield one.name


def _first(kind: Kind) -> str:
    return kind.parts["embedding"]


def _at(one: TrainingBug, kind: Kind, *runs: Records) -> Iterable[tuple[Any, ...]]:
    """The values that show it, of each run."""
    by_key = [{(record.name, record.step, record.call): record.value for record in run} for run in runs]
    path = kind.parts.get(one.role, "")
    for key in by_key[0]:
        name, step, _ = key
        is_weight = name.endswith(AFTER) and step == one.step
        is_gradient = one.step is None and name.endswith(".grad") and name.startswith(path)
        if (is_weight or is_gradient) and all(key in known for known in by_key):
            yield tuple(known[key] for known in by_key)


def _of_ranks(kind: Kind, seed: int, dtype: torch.dtype, given: Batch) -> Iterable[str]:
    """All before the part is the same, bit for bit, so what it gives can be set side by side."""
    if not is_divisible(kind):
        return
    base = Clean(kind, seed, dtype, given, [], tt.Floor(), tt.Floor())
    right = run(base)
    for one in fitting_parallel(base):
        path = kind.parts[one.role]
        module, inputs = _with_inputs(build(kind, seed, dtype), path, given)
        noise = [measure(_given_by(module, inputs), _given_by(module, _moved(inputs)))]
        pairs = zip(_outputs(right, path), _outputs(run(base, one.made(kind)), path), strict=True)
        if any(_exceeds(measure(a, b), noise) for a, b in pairs):
            yield one.name


def _outputs(records: Records, path: str) -> list[Any]:
    return [one.value for one in records if one.name == path and one.kind == "output"]


def _with_inputs(model: nn.Module, path: str, given: Batch) -> tuple[nn.Module, Given]:
    """The module, and what it is called with."""
    module, seen = model.get_submodule(path), list[Given]()
    handle = module.register_forward_pre_hook(
        lambda _, positional, named: seen.append(copy.deepcopy((positional, named))), with_kwargs=True
    )
    with torch.no_grad():
        model(**given)
    handle.remove()
    return module, seen[0]


def _given_by(module: nn.Module, given: Given) -> Any:
    positional, named = copy.deepcopy(given)
    torch.manual_seed(0)
    with torch.no_grad():
        made = module(*positional, **named)
    held = list(made.values()) if hasattr(made, "values") and not isinstance(made, torch.Tensor) else made
    return held if isinstance(held, torch.Tensor) else [one for one in held if isinstance(one, torch.Tensor)]


def _moved(given: Given) -> Given:
    positional, named = given
    return tuple(map(perturb_by_one_ulp, positional)), {
        name: perturb_by_one_ulp(value) for name, value in named.items()
    }


def _exceeds(found: Metrics, noise: list[Metrics]) -> bool:
    if found.reason or found.is_nonfinite or found.mismatches:
        return True
    sizes = ((found.relative_l2, "relative_l2"), (found.row, "row"), (found.column, "column"))
    least = torch.finfo(torch.float32).eps / 2
    return any(size > max(least, *(getattr(one, name) for one in noise)) for size, name in sizes)


if __name__ == "__main__":
    from planted.__main__ import decide

    sys.exit(decide())
