"""The benchmark of planted bugs: `python -m planted` in `benchmarks/`, about a quarter of an hour."""

import argparse
import logging
import sys
import time

import torch

from planted.models import KINDS
from planted.score import OURS, SCENES, TOOLS, Case, Score, calibrate, misses, score

CALIBRATED = (100, 101)
SCORED = (0, 1, 2)
BARS = {torch.float32: 0.97, torch.bfloat16: 0.60}
LEAST_PAIRS = 40


def main() -> int:
    given = _arguments()
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)  # the models are small: threads would only wait for each other
    kinds = [KINDS[name] for name in given.models]
    start, failed = time.monotonic(), []
    for dtype in (torch.float32, torch.bfloat16):
        limit = calibrate(kinds, CALIBRATED, dtype)
        made = score(kinds, SCORED[: given.seeds], dtype, limit)
        show(made, dtype)
        failed += shortfalls(made, dtype)
    print(f"\n{'all bars are met' if not failed else '; '.join(failed)} ({time.monotonic() - start:.0f} s)")
    return len(failed)


def show(made: Score, dtype: torch.dtype) -> None:
    print(f"\n{str(dtype).removeprefix('torch.')}: beyond noise from {made.limit:.2f} times the floor on")
    print(f"(fixed on harmless pairs of seeds {CALIBRATED}; scored on seeds {SCORED})\n")
    above = made.planted(above_noise=True)
    heads = [f"{scene}: located/seen" for scene in SCENES]
    print(f"{'':<22}{'false alarms':>14}{heads[0]:>28}{heads[1]:>42}{'of those above noise':>24}")
    for tool in TOOLS:
        alarms = sum(one.is_seen(tool) for one in made.harmless)
        cells = [_counted(made.planted(scene), tool) for scene in SCENES]
        told = f"{sum(one.is_hit(tool) for one in above)} of {len(above)}"
        print(
            f"{tool:<22}{f'{alarms} of {len(made.harmless)}':>14}{cells[0]:>28}{cells[1]:>42}{told:>24}",
            flush=True,
        )
    lines = misses(made)
    print("".join(f"\n  missed {line}" for line in lines))
    alarmed = [one for one in made.harmless if one.is_seen(OURS)]
    print("".join(f"\n  false alarm: {one.what} in {one.kind} at {one.blamed[OURS]}" for one in alarmed))


def shortfalls(made: Score, dtype: torch.dtype) -> list[str]:
    """fp32: of all that was planted. bf16: of what is above the noise of that type."""
    chosen = made.planted(above_noise=dtype != torch.float32)
    share = sum(one.is_hit(OURS) for one in chosen) / len(chosen)
    alarms = sum(one.is_seen(OURS) for one in made.harmless)
    told = []
    print(f"{dtype}: located {share:.1%} of {len(chosen)}, bar {BARS[dtype]:.0%}; {alarms} false alarms")
    if share < BARS[dtype]:
        told.append(f"{dtype}: located {share:.1%}, less than {BARS[dtype]:.0%}")
    if alarms or len(made.harmless) < LEAST_PAIRS:
        told.append(f"{dtype}: {alarms} false alarms on {len(made.harmless)} harmless pairs")
    return told


def _counted(cases: list[Case], tool: str) -> str:
    hits, seen = sum(one.is_hit(tool) for one in cases), sum(one.is_seen(tool) for one in cases)
    return f"{hits}/{seen} of {len(cases)}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="planted", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--seeds", type=int, default=len(SCORED), help="how many seeds are scored")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
