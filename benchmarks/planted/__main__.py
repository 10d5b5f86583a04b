"""The benchmark of planted bugs: `python -m planted` in `benchmarks/`, which writes docs/planted.md."""

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any

# Before torch is loaded, here and in every worker: idle threads of one must not take the time of another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("GOMP_SPINCOUNT", "0")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import tensortap
from planted import page, results, shapes, units
from planted.answers import Limits
from planted.placements import SEEDS, placements
from planted.units import DTYPES, Unit, Worst
from planted.zoo import CALIBRATED, SCORED
from tensortap.comparison.values.noise import DEFAULT_LIMIT

CALIBRATED_SEEDS, SCORED_SEEDS, SHORT_SEED = (100, 101), (0, 1, 2), 200
SHORT_MODELS = ("llama", "mixtral", "mamba")
MARGIN = 1.5
ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "planted.md"


def main() -> int:
    given = _arguments()
    start = time.monotonic()
    with _pool(given) as pool:
        made = measured(pool, given)
    page.show(made)
    print(f"\n{time.monotonic() - start:.0f} s")
    is_all = set(given.models) == set(SCORED) and not given.bugs
    if is_all and not given.short:
        PAGE.write_text(page.written(made), encoding="utf-8")
        print(f"written: {PAGE.relative_to(ROOT)}")
    return sum(not one.is_met for one in results.bars(made)) if is_all or given.short else 0


def decide() -> int:
    """What `python -m planted.noise` does: the list of bugs above noise is written, and nothing compared."""
    given = _arguments()
    with _pool(given) as pool:
        _above_noise(pool, _units(given), given.work)
    print(f"written: {_list(given.work)}")
    return 0


def _pool(given: argparse.Namespace) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(given.workers, multiprocessing.get_context("spawn"))


def measured(pool: Executor, given: argparse.Namespace) -> results.Results:
    """First what is above noise, then the limits, then the score: nothing that is scored decides anything."""
    chosen = _units(given)
    above = _above_noise(pool, chosen, given.work)
    worst = dict.fromkeys(DTYPES, (Worst(), Worst())) if given.short else _calibrated(pool)
    limits = {dtype: limits_from(*both) for dtype, both in worst.items()}
    made = results.Results(limits, worst)
    tasks = [(unit, limits[unit.dtype], tuple(above[unit.key])) for unit in chosen]
    for scored in _scored(pool, tasks, given.work):
        made.cases += scored.cases
        made.several += scored.several
    made.placed = placements(SEEDS[:100] if given.short else SEEDS)
    found = shapes.told()
    made.shapes, made.detectors = shapes.by_what_was_done(found), shapes.by_detector(found)
    return made


def limits_from(*worst: Worst) -> Limits:
    return Limits(*(max(DEFAULT_LIMIT, MARGIN * one.ratio) for one in worst))


def _units(given: argparse.Namespace) -> list[Unit]:
    """The largest first: nobody waits for one at the end."""
    seeds = (SHORT_SEED,) if given.short else SCORED_SEEDS[: given.seeds]
    return [
        Unit(name, seed, dtype, seed == SCORED_SEEDS[0], tuple(given.bugs))
        for seed in seeds
        for dtype in DTYPES
        for name in given.models
        if not given.short or dtype == DTYPES[0] or name == SHORT_MODELS[0]
    ]


def _above_noise(pool: Executor, chosen: Sequence[Unit], work: Path) -> dict[str, list[str]]:
    """The list that was written before; only what is not in it is decided now."""
    file = _list(work)
    known: dict[str, list[str]] = json.loads(file.read_text()) if file.exists() else {}
    missing = [unit for unit in chosen if unit.key not in known]
    work.mkdir(parents=True, exist_ok=True)
    for unit, names in zip(missing, _all(pool, units.find_above_noise, missing, "noise"), strict=True):
        known[unit.key] = names
        file.write_text(json.dumps(known, indent=1))
    return known


def _list(work: Path) -> Path:
    return work / f"above-noise-{_digest()}.json"


def _scored(pool: Executor, tasks: Sequence[Any], work: Path) -> Iterator[units.Scored]:
    """What an interrupted run had done already is taken from there."""
    folder = work / f"scored-{_digest()}"
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{_short(task)}.pickle" for task in tasks]
    return _all(pool, units.kept, list(zip(files, tasks, strict=True)), "scored")


def _digest() -> str:
    """Of the bugs, the models, how they are measured, and tensortap: with any other it is another run."""
    folders = (Path(__file__).parent, Path(tensortap.__file__).parent)
    sources = [one for folder in folders for one in sorted(folder.rglob("*.py"))]
    return _short(*(one.read_bytes() for one in sources))


def _short(*things: Any) -> str:
    return hashlib.sha256(repr(things).encode()).hexdigest()[:12]


def _calibrated(pool: Executor) -> dict[str, tuple[Worst, Worst]]:
    chosen = [Unit(name, seed, dtype) for name in CALIBRATED for seed in CALIBRATED_SEEDS for dtype in DTYPES]
    found = list(zip(chosen, _all(pool, units.calibrate, chosen, "calibrated"), strict=True))
    return {
        dtype: tuple(max(ratios[at] for unit, ratios in found if unit.dtype == dtype) for at in (0, 1))
        for dtype in DTYPES
    }  # type: ignore[return-value]


def _all(pool: Executor, work: Callable[..., Any], tasks: Sequence[Any], word: str) -> Iterator[Any]:
    """In the order of the tasks, told one by one."""
    futures = [pool.submit(work, *(task if isinstance(task, tuple) else (task,))) for task in tasks]
    for number, future in enumerate(futures, 1):
        yield future.result()
        print(f"{word} {number} of {len(futures)}", file=sys.stderr, flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(SCORED), help="only these")
    parser.add_argument("--bugs", nargs="+", default=[], help="only these, and nothing else")
    parser.add_argument("--seeds", type=int, default=3, choices=(1, 2, 3), help="how many seeds are scored")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--short", action="store_true", help="three models, one of them in both types; no page"
    )
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "planted", help="for what is decided first"
    )
    given = parser.parse_args()
    given.models = given.models or list(SHORT_MODELS if given.short else SCORED)
    return given


if __name__ == "__main__":
    sys.exit(main())
