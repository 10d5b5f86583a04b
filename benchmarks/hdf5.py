"""What writing a trace to HDF5 costs, as ratios to plain h5py with the file open, in the same chunks."""

import itertools
import os
import shutil
import sys
import tempfile
from pathlib import Path

import h5py
import numpy as np

from harness import Table, finish, medians
from tensortap.formats.hdf5.schema import choose_chunk
from tensortap.sinks.hdf5 import HDF5

KB, MB = 1 << 10, 1 << 20
PER_CALL = 4  # values of each call that is measured
table = Table("hdf5")


class Plain:
    """What one would write by hand: three datasets that grow."""

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: str, flushes: bool) -> None:
        self.file = h5py.File(path, "w")
        chunks = choose_chunk(shape, np.dtype(dtype).itemsize)
        self.values = self.file.create_dataset(
            "x", (0, *shape), dtype, maxshape=(None, *shape), chunks=chunks
        )
        self.numbers = [
            self.file.create_dataset(f"x_{what}", (0,), "i8", maxshape=(None,), chunks=(1024,))
            for what in ("iterations", "ranks")
        ]
        self.flushes = flushes

    def append(self, array: np.ndarray, step: int) -> None:
        count = len(self.values)
        for dataset, row in zip((self.values, *self.numbers), (array, step, 0), strict=True):
            dataset.resize(count + 1, 0)
            dataset[count] = row
        if self.flushes:
            self.file.flush()


def compare(size: int, rounds: int, per_call: int, limit: float, *, flushes: bool = False) -> None:
    base = Path(tempfile.mkdtemp(prefix="tensortap-bench-", dir=os.environ.get("BENCH_DIR")))
    array = np.random.default_rng(0).standard_normal(size // 4).astype(np.float32)
    made = itertools.count()
    state: dict[str, object] = {}

    def renew() -> None:
        """A new file for each call, so that neither is slowed down by the other's."""
        for one in state.values():
            (one.file if isinstance(one, Plain) else one).close()  # type: ignore[attr-defined]
        for file in base.iterdir():
            file.unlink()
        number = next(made)
        state["plain"] = Plain(base / f"plain{number}.h5", array.shape, "f4", flushes)
        state["ours"] = sink = HDF5(base / f"ours{number}.h5")
        sink.append("x", [array], [0], [0])
        state["plain"].append(array, 0)  # type: ignore[attr-defined]

    def plain() -> None:
        for step in range(per_call):
            state["plain"].append(array, step)  # type: ignore[attr-defined]

    def ours() -> None:
        sink = state["ours"]
        for step in range(per_call):
            sink.append("x", [array], [step], [0])  # type: ignore[attr-defined]
            if flushes:
                sink.flush()  # type: ignore[attr-defined]

    renew()
    found = medians({"plain": plain, "ours": ours}, rounds, renew)
    shown = f"{size // MB} MB" if size >= MB else f"{size // KB} KB" if size >= KB else f"{size} B"
    flushed = ", flushed after each" if flushes else ""
    print(
        f"     {shown}: plain {found['plain'] / per_call * 1e6:.0f} us a value, ours "
        f"{found['ours'] / per_call * 1e6:.0f} us"
    )
    table.add(f"append {shown} to HDF5{flushed}, against h5py", found["ours"] / found["plain"], limit)
    for one in state.values():
        (one.file if isinstance(one, Plain) else one).close()  # type: ignore[attr-defined]
    shutil.rmtree(base)


if __name__ == "__main__":
    compare(64 * MB, 15, 4, 1.2)
    compare(64 * MB, 9, 4, 1.2, flushes=True)
    compare(MB, 30, 32, 1.2)
    compare(4 * KB, 30, 200, 1.2)
    compare(4, 30, 500, 1.2)
    sys.exit(finish([table]) > 0)
