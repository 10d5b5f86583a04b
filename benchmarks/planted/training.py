"""Bugs of training: two steps with an optimizer, gradients and weights captured, one thing of it wrong."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

import tensortap as tt
from planted import peers
from planted.answers import FLOOR, THE_MODEL, WITHOUT, Answer, Answers, Limits, of_peers
from planted.harmless import Records, otherwise
from planted.models import Batch, Kind, batch, build
from planted.planting import replaced
from planted.score import ALONE, SCENES, Case, name_of

PATTERNS = ("**", "**.in", "**.grad", "**.in.grad", "**.weight.grad", "**.weight.after_step")
STEPS = 2
TRAINED = ("llama", "gpt2", "mixtral", "mamba2", "bert", "t5", "vit")
AFTER = ".after_step"


@dataclass(frozen=True)
class Recipe:
    """How a model is trained."""

    rate: float = 1e-3
    clip: float = 1.0
    decay: float = 0.1
    parts: int = 2  # by which the loss is divided, as many as the batch is cut into
    forgets: bool = False  # the state of the optimizer, after the first step
    spared: str = ""  # a module whose weight the optimizer does not know


@dataclass(frozen=True)
class TrainingBug:
    """`located` is a module whose backward is wrong; or weights after an optimizer's step, the first that
    are wrong, at that step."""

    name: str
    role: str = ""  # of the module, where it is one
    plant: Callable[[nn.Module], None] = lambda module: None
    recipe: Callable[[Recipe, str], Recipe] = lambda recipe, path: recipe
    step: int | None = None

    def located(self, kind: Kind) -> str:
        if self.step is not None:
            return f"weights after step {self.step}"
        return kind.parts[self.role]

    def fits(self, kind: Kind) -> bool:
        return not self.role or self.role in kind.parts

    def is_hit(self, kind: Kind, found: tt.Comparison) -> bool:
        first = found.first
        if first is None:
            return False
        if self.step is None:
            return first.name == kind.parts[self.role] and not first.seen_at.endswith(AFTER)
        return first.seen_at.endswith(AFTER) and first.step == self.step


def is_trainable(kind: Kind) -> bool:
    return kind.name in TRAINED


def train(model: nn.Module, given: Batch, recipe: Recipe) -> None:
    """Afterwards the weights are what they were: a floor does it several times."""
    named = dict(model.named_parameters())
    kept = {name: parameter.detach().clone() for name, parameter in named.items()}
    known = [one for name, one in named.items() if name != f"{recipe.spared}.weight"]
    optimizer = torch.optim.AdamW(known, lr=recipe.rate, weight_decay=recipe.decay, betas=(0.9, 0.95))
    for _ in range(STEPS):
        model.zero_grad()
        (model(**given).loss / recipe.parts).backward()
        if recipe.clip:
            nn.utils.clip_grad_norm_(named.values(), recipe.clip)
        optimizer.step()
        if recipe.forgets:
            optimizer.state.clear()
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(kept[name])
    model.zero_grad()


def trained(model: nn.Module, given: Batch, recipe: Recipe) -> Records:
    with tt.capture(model, *PATTERNS) as cap:
        train(model, given, recipe)
    return cap.records


class _Passed(torch.autograd.Function):
    """What goes through it stays; its gradient is changed."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, change: Any) -> torch.Tensor:
        context.change = change
        return value.clone()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return context.change(gradient), None


def _passing(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[nn.Module], None]:
    """Behind what the module computes, and still within it."""

    def plant(module: nn.Module) -> None:
        replaced(module, lambda original, x: _Passed.apply(original(x), change))

    return plant


def _nan_at(gradient: torch.Tensor) -> torch.Tensor:
    gradient = gradient.clone()
    gradient.view(-1)[7] = float("nan")
    return gradient


TRAINING_BUGS = (
    TrainingBug("learning_rate_off_by_a_percent", recipe=lambda r, _: replace(r, rate=1.01 * r.rate), step=0),
    TrainingBug("gradients_are_not_clipped", recipe=lambda r, _: replace(r, clip=0.0), step=0),
    TrainingBug("weights_do_not_decay", recipe=lambda r, _: replace(r, decay=0.0), step=0),
    TrainingBug("optimizer_forgets_its_state", recipe=lambda r, _: replace(r, forgets=True), step=1),
    TrainingBug("one_weight_is_not_trained", "down", recipe=lambda r, path: replace(r, spared=path)),
    TrainingBug("loss_divided_by_too_little", "model", recipe=lambda r, _: replace(r, parts=1)),
    TrainingBug("gradient_is_halved", "down", _passing(lambda gradient: gradient / 2)),
    TrainingBug("gradient_in_bfloat16", "norm", _passing(lambda gradient: gradient.bfloat16().to(gradient))),
    TrainingBug("nan_in_the_backward_pass_only", "out", _passing(_nan_at)),
)


@dataclass(frozen=True)
class CleanTraining:
    """A model that is trained as it should be, and how noisy that is."""

    given: Batch
    records: Records
    floor: tt.Floor

    def against(self, other: Records, limit: float) -> tt.Comparison:
        return tt.compare_runs(self.records, other, floor=self.floor, limit=limit)


def clean_training(kind: Kind, seed: int, dtype: torch.dtype) -> CleanTraining:
    given, model = batch(kind, seed, dtype), build(kind, seed, dtype)
    right = trained(model, given, Recipe())
    floor = tt.floor(model, lambda twin: train(twin, _like(given, twin), Recipe()), *PATTERNS)
    return CleanTraining(given, right, floor)


def trained_otherwise(kind: Kind, seed: int, dtype: torch.dtype, given: Batch) -> Records:
    """By another implementation, which does no harm."""
    return trained(otherwise(build(kind, seed, dtype, "sdpa")), given, Recipe())


def training_cases(
    kind: Kind, seed: int, dtype: torch.dtype, limits: Limits, above: set[str]
) -> Iterator[Case]:
    """With a floor alone: a replay runs forwards."""
    clean, limit = clean_training(kind, seed, dtype), limits.floor
    given, right = clean.given, clean.records
    other = trained_otherwise(kind, seed, dtype, given)
    found = clean.against(other, limit)
    told = () if found.first is None else (found.first.name,)
    answers = of_peers(right, other, None) | {FLOOR: Answer(told)}
    yield Case(kind.name, seed, name_of(dtype), "training", "harmless", "harmless", None, False, answers)
    for one in fitting_training(kind):
        for scene in SCENES:
            plain = (
                build(kind, seed, dtype) if scene == ALONE else otherwise(build(kind, seed, dtype, "sdpa"))
            )
            answers = _answers(one, kind, clean, wrongly(one, kind, plain, given), limit)
            is_above, located = one.name in above, one.located(kind)
            yield Case(
                kind.name, seed, name_of(dtype), one.name, "training", scene, located, is_above, answers
            )


def fitting_training(kind: Kind) -> list[TrainingBug]:
    return [one for one in TRAINING_BUGS if one.fits(kind)]


def _like(given: Batch, model: nn.Module) -> Batch:
    """In the type of the model: a twin has another."""
    dtype = next(model.parameters()).dtype
    return {name: value.to(dtype) if value.is_floating_point() else value for name, value in given.items()}


def wrongly(one: TrainingBug, kind: Kind, model: nn.Module, given: Batch) -> Records:
    path = kind.parts.get(one.role, "")
    one.plant(model.get_submodule(path))
    return trained(model, given, one.recipe(Recipe(), path))


def _answers(one: TrainingBug, kind: Kind, clean: CleanTraining, other: Records, limit: float) -> Answers:
    answers = _of_peers(one, kind, clean.records, other)
    for tool, found in (
        (FLOOR, clean.against(other, limit)),
        (WITHOUT, tt.compare_runs(clean.records, other)),
    ):
        first = found.first
        told = () if first is None else (_told(first),)
        answers[tool] = Answer(told, one.is_hit(kind, found))
    return answers


def _told(first: Any) -> str:
    where = first.seen_at if first.seen_at.endswith(AFTER) else first.name or THE_MODEL
    return f"{where} in step {first.step}"


def _of_peers(one: TrainingBug, kind: Kind, right: Records, other: Records) -> Answers:
    """By the first value that fails: one of the module, or weights after the step."""
    answers = {}
    for tool, rule in peers.RULES.items():
        failure = peers.first_failure(right, other, rule)
        told = () if failure is None else (f"{failure.name} in step {failure.step}",)
        answers[tool] = Answer(told, failure is not None and _is_there(one, kind, failure))
    return answers


def _is_there(one: TrainingBug, kind: Kind, failure: tt.Record) -> bool:
    if one.step is not None:
        return failure.name.endswith(AFTER) and failure.step == one.step
    return not failure.name.endswith(AFTER) and peers.blamed(failure).startswith(kind.parts[one.role])
