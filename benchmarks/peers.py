"""Other tools that capture module outputs or variables, in an environment of their own, as contestants."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

from torch import Tensor

from encoder import Encoder, build, called
from harness import tell
from rounds import Contestant, Entry, Times

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".venv-peers"
CONSTRAINTS, REQUIREMENTS = ROOT / "constraints.txt", Path(__file__).with_name("peers.txt")
REFUSED, MADE = HOME / "refused.json", HOME / "made"


def move_in() -> None:
    """Go on as the same program in the peers' environment, made first where it is missing."""
    if Path(sys.prefix) == HOME:
        return
    wanted = CONSTRAINTS.read_text() + REQUIREMENTS.read_text()
    if not MADE.exists() or MADE.read_text() != wanted:
        make()
        MADE.write_text(wanted)
    python = str(HOME / "bin" / "python")
    os.execv(python, [python, *sys.argv])


def make() -> None:
    print(f"making {HOME.name}: some minutes, once", flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    (HOME / ".gitignore").write_text("*\n")
    # torch first and pinned: what comes after finds it satisfied and fetches no other build.
    for needed in (["torch"], ["numpy"], ["--no-deps", "-e", str(ROOT)]):
        if reason := install(*needed):
            raise SystemExit(f"{HOME.name} cannot be made: {' '.join(needed)}: {reason}")
    lines = [line.strip() for line in REQUIREMENTS.read_text().splitlines()]
    wanted = [line for line in lines if line and not line.startswith("#")]
    reasons = {line.partition("==")[0]: install(line) for line in wanted}
    REFUSED.write_text(json.dumps({name: reason for name, reason in reasons.items() if reason}))


def install(*what: str) -> str:
    """Why pip could not, or nothing."""
    pip = [str(HOME / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [*pip, "-q", "install", "-c", str(CONSTRAINTS), *what], capture_output=True, text=True, check=False
    )
    return (done.stderr.strip().splitlines() or ["pip failed"])[-1] if done.returncode else ""


def contestants(
    enlisted: "dict[str, Enlist]", size: str, model: Encoder, batch: Tensor
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Those that can run, and for each of the others why it cannot."""
    able: dict[str, Contestant] = {}
    unable: dict[str, str] = {}
    for name, enlist in enlisted.items():
        try:
            able[name] = enlist(size, model, batch)
        except ImportError as error:
            unable[name] = refused().get(name.split()[0]) or WHERE.get(name) or str(error)
    return able, unable


def show(head: str, times: Times, present: list[str], absent: dict[str, str]) -> None:
    for name in present:
        tell(f"{head}: {name} / plain", times.ratio(name, "plain"))
        tell(f"{head}: {name} / ours", times.ratio(name, "ours"))
    for name, reason in absent.items():
        print(f"     {head}: {name}: not measured: {reason}")


def refused() -> dict[str, str]:
    reasons: dict[str, str] = json.loads(REFUSED.read_text()) if REFUSED.exists() else {}
    return reasons


def baukit(size: str, model: Encoder, batch: Tensor) -> Contestant:
    trace_dict: Any = import_module("baukit").TraceDict

    @contextmanager
    def contestant() -> Iterator[Entry]:
        with trace_dict(model, list(called(model))) as traces:

            def clear() -> None:
                for trace in traces.values():
                    trace.output = None

            yield Entry(lambda: model(batch), clear)

    return contestant


def nnsight(size: str, model: Encoder, batch: Tensor) -> Contestant:
    own, _ = build(size)  # it leaves its wrapping on the modules
    wrapped: Any = import_module("nnsight").NNsight(own)

    def run(kept: list[object]) -> None:
        with wrapped.trace(batch) as tracer:
            cache = tracer.cache()
        kept.append(cache)

    check(len(called(own)), lambda kept: len(kept[0].keys()), run)
    return partial(holding, run)


def transformer_lens(size: str, model: Encoder, batch: Tensor) -> Contestant:
    own: Any = build(size, import_module("lens").LensEncoder)[0]
    own.load_state_dict(model.state_dict())

    def run(kept: list[object]) -> None:
        kept.append(own.run_with_cache(batch))

    check(len(called(model)), lambda kept: len(kept[0][1]), run)
    return partial(holding, run)


@contextmanager
def holding(run: Callable[[list[object]], object]) -> Iterator[Entry]:
    kept: list[object] = []
    yield Entry(lambda: run(kept), kept.clear)


def nnsight_source(names: tuple[str, ...], size: str, model: Encoder, batch: Tensor) -> Contestant:
    own: Any = import_module("nnsight").NNsight(build(size, type(model))[0])
    counted = [f"{name}_{number}" for name in names[1:] or names for number in range(1 + (name == "scores"))]
    has_all = len(names) > 1  # the argument, which comes first, is the module's input there

    def run(kept: list[object]) -> None:
        with own.trace(batch):
            for block in own.blocks:
                if has_all:
                    kept.append(block.attn.input)
                for name in counted:
                    kept.append(getattr(block.attn.source, name).output)

    check(len(model.blocks) * (len(counted) + has_all), len, run)
    return partial(holding, run)


def snoop(names: tuple[str, ...], size: str, model: Encoder, batch: Tensor) -> Contestant:
    """It writes what every variable of the function holds, whichever are wanted."""
    own: Any = build(size, type(model))[0]
    lines: list[str] = []
    watched = import_module("snoop").Config(out=lines.append, color=False).snoop
    forward = watched(type(own.blocks[0].attn).forward)
    for block in own.blocks:
        block.attn.forward = MethodType(forward, block.attn)

    @contextmanager
    def contestant() -> Iterator[Entry]:
        yield Entry(lambda: own(batch), lines.clear)

    own(batch)
    for name in names:
        assert f"{name} = tensor" in "".join(lines) or name == "heads", f"snoop did not write {name}"
    return contestant


def check(wanted: int, count: Callable[[Any], int], run: Callable[[list[object]], object]) -> None:
    kept: list[object] = []
    run(kept)
    assert count(kept) == wanted, f"{count(kept)} values were kept where {wanted} were wanted"


def of_variables(names: tuple[str, ...]) -> "dict[str, Enlist]":
    able: dict[str, Enlist] = {"nnsight .source": partial(nnsight_source, names)}
    # It knows no selection: once is enough.
    return able | ({"snoop": partial(snoop, names)} if len(names) > 1 else {})


Enlist = Callable[[str, Encoder, Tensor], Contestant]
OF_OUTPUTS: dict[str, Enlist] = {
    "baukit TraceDict": baukit,
    "nnsight tracer.cache()": nnsight,
    "transformer-lens run_with_cache": transformer_lens,
}
SLOW = {"snoop"}  # a thousand times the plain forward: no part of many rounds
WHERE = {"baukit TraceDict": "not on PyPI, only a Git repository; installed by hand it would be measured"}
