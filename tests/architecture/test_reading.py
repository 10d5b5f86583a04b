"""How much a reader has to open: folders that can be looked over, few files on the way of a comparison."""

import collections
import sys
from pathlib import Path

import numpy as np

import tensortap as tt

MOST_MODULES, MOST_IN_A_FOLDER, MOST_SMALL, SMALL = 300, 15, 15, 60
MOST_ENTERED = 25


def test_folders_can_be_looked_over(modules):
    lengths = {name: path.read_text(encoding="utf-8").count("\n") for name, path in modules.items()}
    written = {name: length for name, length in lengths.items() if length}
    assert len(written) <= MOST_MODULES
    assert sum(length < SMALL for length in written.values()) <= MOST_SMALL
    folders = collections.Counter(Path(name).parent for name in written)
    assert max(folders.values()) <= MOST_IN_A_FOLDER


def test_a_plain_comparison_enters_few_files(source, tmp_path):
    for side, shift in (("a", 0.0), ("b", 1e-3)):
        generator = np.random.default_rng(0)
        with tt.Tap(sinks=[tt.RunDirectory(tmp_path / side)]) as tap:
            for order in range(5):
                value = generator.standard_normal((4, 8)).astype("f4") + (shift if order > 2 else 0)
                tap.emit(tt.Record(f"layers.{order}", value, order=order))
    tt.compare_runs(tmp_path / "a", tmp_path / "b")  # what is imported on the way is not entered again
    entered = set()
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, argument: entered.add(frame.f_code.co_filename))
    try:
        str(tt.compare_runs(tmp_path / "a", tmp_path / "b"))
    finally:
        sys.setprofile(before)
    ours = {file for file in entered if file.startswith(str(source))}
    assert 5 < len(ours) <= MOST_ENTERED, sorted(ours)
