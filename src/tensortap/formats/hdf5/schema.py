"""The datasets of a trace file: one per name and form of its values, with companion datasets; key
encoding."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import numpy as np

from tensortap.core.errors import MissingExtraError, UnsupportedValueError
from tensortap.formats.hdf5.ordered_file import OrderedFile
from tensortap.formats.hdf5.values import Array, StoredCell, is_storable_text

try:
    import h5py
except ImportError:
    raise MissingExtraError("traces in HDF5 need h5py, so: pip install 'tensortap[hdf5]'") from None

VERSION_ATTRIBUTE = "tensortap_trace"  # an attribute of the file
_SHARED_CHUNK_NBYTES = 128 << 10  # a chunk shared by several values; rewritten with every flush
_MAX_ROWS_PER_CHUNK = 1024
_LARGE_CHUNK_NBYTES = 1 << 20  # a chunk that is one value, or a slab of it
_CHUNK_CACHE_NBYTES = 2 << 20  # per dataset
_FILL_VALUE = -1


def create_file(path: Path, stream: OrderedFile) -> h5py.File:
    """The oldest file format, no reuse of freed space, no metadata writes between flushes: what
    OrderedFile needs to keep the file consistent."""
    library = h5py.File(
        path,
        "w",
        driver="fileobj",
        fileobj=stream,
        libver=("earliest", "v110"),
        fs_strategy="none",
        track_order=False,
    )
    config = library.id.get_mdc_config()
    config.evictions_enabled = False
    config.incr_mode = config.decr_mode = config.flash_incr_mode = 0
    library.id.set_mdc_config(config)
    library.attrs[VERSION_ATTRIBUTE] = 1
    return library


def open_file(path: Path) -> h5py.File:
    """For reading, without a lock so that nobody is kept from writing; every state on disk is consistent."""
    return h5py.File(path, "r", locking=False)


def load_filters() -> None:
    """Let h5py find the filters of hdf5plugin, if installed."""
    with contextlib.suppress(ImportError):
        import hdf5plugin  # noqa: F401


def is_dataset(node: Any) -> bool:
    return isinstance(node, h5py.Dataset)


def is_string_dataset(dataset: h5py.Dataset) -> bool:
    return h5py.check_string_dtype(dataset.dtype) is not None


def has_fill_value(dataset: h5py.Dataset) -> bool:
    """Whether a fill value was set explicitly."""
    return bool(dataset.id.get_create_plist().fill_value_defined() == h5py.h5d.FILL_VALUE_USER_DEFINED)


class StorageOptions(NamedTuple):
    """How datasets are created."""

    iterations: np.dtype[Any]
    filters: dict[str, Any]


class StepAndRank(NamedTuple):
    """Step and rank of a value; arrays if several were stacked."""

    step: Array
    rank: Array


class ValueDataset:
    """The dataset of one name's values of one form, with its companions. Rows are buffered until written."""

    def __init__(
        self,
        group: h5py.Group,
        name: str,
        number: int,
        cell: StoredCell,
        at: StepAndRank,
        how: StorageOptions,
    ) -> None:
        self.key = encode_key(name) + (f"~{number}" if number > 1 else "")
        self._group, self._options, self.form = group, how, cell.form
        self._depths = at.step.ndim, at.rank.ndim
        self.shape = shape = np.shape(cell.content) if cell.form.kind == "numbers" else ()
        self._chunk = choose_chunk(shape, self._itemsize)
        self.values = self._create_values(name)
        self._iterations = self._create(ITERATIONS, how.iterations, at.step.shape)
        self._ranks = self._create(RANKS, np.dtype(np.int64), at.rank.shape)
        self._positions = self._create(POSITIONS, np.dtype(np.int64), ()) if number > 1 else None
        self._shapes: h5py.Dataset | None = None
        self._rows: list[tuple[Any, StepAndRank, int]] = []
        self._written = 0
        self.pending_nbytes = 0

    @property
    def is_full(self) -> bool:
        """Whether the buffered rows reach the end of a chunk."""
        return self._written % self._chunk[0] + len(self._rows) >= self._chunk[0]

    @property
    def leaves_hole(self) -> bool:
        """Whether writing now leaves a hole: a compressed chunk is moved for less than its size."""
        begun = self._written % self._chunk[0]
        return bool(self._options.filters) and begun > len(self._rows) and not self.is_full

    @property
    def chunk_bytes(self) -> int:
        return math.prod(self._chunk) * self._itemsize

    def accepts(self, cell: StoredCell, at: StepAndRank) -> bool:
        if cell.form != self.form or self._depths != (at.step.ndim, at.rank.ndim):
            return False
        shape = np.shape(cell.content)
        return cell.form.kind != "numbers" or (len(shape) == len(self.shape) and self._fills_chunks(shape))

    def add(self, cell: StoredCell, at: StepAndRank, position: int) -> None:
        """A value that fills a chunk is written at once; others are copied and buffered."""
        is_shared = self._chunk[0] > 1
        content = cell.content
        if is_shared and isinstance(content, np.ndarray):
            content = content.copy()
            self.pending_nbytes += max(1, content.nbytes)
        elif is_shared:
            self.pending_nbytes += max(1, len(content))
        self._rows.append((content, at, position))
        if self.is_full:
            self.write()

    def write(self) -> None:
        """Write the buffered rows to the library."""
        rows, self._rows, self.pending_nbytes = self._rows, [], 0
        if not rows:
            return
        self._write_values([content for content, _, _ in rows])
        _append_rows(self._iterations, self._written, [at.step for _, at, _ in rows])
        _append_rows(self._ranks, self._written, [at.rank for _, at, _ in rows])
        if self._positions is not None:
            _append_rows(self._positions, self._written, [np.asarray(position) for *_, position in rows])
        self._written += len(rows)

    @property
    def _itemsize(self) -> int:
        return np.dtype(self.form.stored).itemsize if self.form.kind == "numbers" else 16

    def _fills_chunks(self, shape: tuple[int, ...]) -> bool:
        """Whether a value of this shape roughly fills the chunks it touches; otherwise it would cost many
        times its size, or a cache of all those chunks."""
        touched = math.prod(-(-size // chunk) for size, chunk in zip(shape, self._chunk[1:], strict=True))
        if self._chunk[0] > 1:
            return touched * self.chunk_bytes <= _CHUNK_CACHE_NBYTES
        return touched * self.chunk_bytes <= 4 * math.prod(shape) * self._itemsize + _SHARED_CHUNK_NBYTES

    def _create_values(self, name: str) -> h5py.Dataset:
        is_text = self.form.kind != "numbers"
        dtype = h5py.string_dtype() if is_text else np.dtype(self.form.stored)
        filters = {} if is_text else self._options.filters
        dataset = self._create("", dtype, self.shape, self._chunk, **filters)
        if is_storable_text(name):
            dataset.attrs["name"] = name
        for attribute in ("kind", "framework", "dtype"):
            dataset.attrs[attribute] = getattr(self.form, attribute)
        return dataset

    def _create(
        self,
        suffix: str,
        dtype: Any,
        shape: tuple[int, ...],
        chunk: tuple[int, ...] | None = None,
        **options: Any,
    ) -> h5py.Dataset:
        if suffix in (ITERATIONS, RANKS) and shape:
            options["fillvalue"] = np.array(_FILL_VALUE).astype(dtype)
        return self._group.create_dataset(
            self.key + suffix,
            (0, *shape),
            dtype,
            maxshape=(None,) * (len(shape) + 1),
            chunks=chunk
            or (max(1, _MAX_ROWS_PER_CHUNK // math.prod(shape or (1,))), *(max(1, n) for n in shape)),
            rdcc_nbytes=_CHUNK_CACHE_NBYTES if chunk is None or chunk[0] > 1 else 0,
            track_order=False,
            **options,
        )

    def _write_values(self, contents: list[Any]) -> None:
        end = self._written + len(contents)
        if self.form.kind != "numbers":
            self.values.resize(end, 0)
            self.values[self._written :] = np.array(contents, object)
            return
        shapes = [content.shape for content in contents]
        if self._shapes is not None or any(shape != self.shape for shape in shapes):
            self._write_shapes(shapes)
        self.shape = tuple(map(max, zip(self.shape, *shapes, strict=True))) if self.shape else ()
        self.values.resize((end, *self.shape))
        _write_rows(self.values, self._written, contents, self.shape)

    def _write_shapes(self, shapes: list[tuple[int, ...]]) -> None:
        if self._shapes is None:
            self._shapes = self._create(SHAPES, np.dtype(np.int64), (len(self.shape),))
            self._shapes.resize(self._written, 0)
            self._shapes[...] = self.shape
        _append_rows(self._shapes, self._written, [np.asarray(shape) for shape in shapes])


def choose_chunk(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """A chunk of several small values, of one value, or of an even slab of a large one."""
    sizes = [max(1, size) for size in shape]
    nbytes = math.prod(sizes) * itemsize
    if nbytes <= _SHARED_CHUNK_NBYTES:
        return (min(_MAX_ROWS_PER_CHUNK, max(1, _SHARED_CHUNK_NBYTES // nbytes)), *sizes)
    for axis, size in enumerate(sizes):
        below = math.prod(sizes[axis + 1 :]) * itemsize
        slabs = -(-size // max(1, _LARGE_CHUNK_NBYTES // below))
        sizes[axis] = -(-size // slabs)
        if below <= _LARGE_CHUNK_NBYTES:
            break
    return (1, *sizes)


def resolve_filters(compression: Any, options: Any, shuffle: bool) -> dict[str, Any]:
    """The compression arguments for h5py, tested on an in-memory file; hdf5plugin filters also by name."""
    if compression is None:
        arguments: dict[str, Any] = {"shuffle": True} if shuffle else {}
    elif isinstance(compression, Mapping):
        arguments = {**compression, "shuffle": shuffle}
    elif isinstance(compression, str) and compression not in ("gzip", "lzf", "szip"):
        arguments = {**_plugin_filter(compression, options), "shuffle": shuffle}
    else:
        arguments = {"compression": compression, "compression_opts": options, "shuffle": shuffle}
    try:
        with h5py.File("probe", "w", driver="core", backing_store=False) as probe:
            probe.create_dataset("x", (1, 4), "f4", chunks=(1, 4), **arguments)
    except (ValueError, TypeError, OSError) as error:
        raise ValueError(
            f"HDF5 cannot compress with compression={compression!r}, compression_opts={options!r} ({error}); "
            "give 'gzip', 'lzf' or a filter of hdf5plugin"
        ) from None
    return arguments


def _plugin_filter(name: str, options: Any) -> Mapping[str, Any]:
    try:
        import hdf5plugin
    except ImportError:
        raise MissingExtraError(
            f"compression={name!r} is a filter of hdf5plugin, so: pip install hdf5plugin"
        ) from None
    known = {
        candidate.__name__.lower(): candidate
        for candidate in vars(hdf5plugin).values()
        if _is_filter(candidate)
    }
    if name.lower() not in known:
        raise ValueError(
            f"no compression {name!r}; known are gzip, lzf, szip, and in hdf5plugin {', '.join(known)}"
        )
    keywords = options if isinstance(options, Mapping) else {} if options is None else {"clevel": options}
    arguments: Mapping[str, Any] = known[name.lower()](**keywords)
    return arguments


def _is_filter(candidate: Any) -> bool:
    return isinstance(candidate, type) and issubclass(candidate, h5py.filters.FilterRefBase)


def _append_rows(dataset: h5py.Dataset, start: int, rows: list[Array]) -> None:
    shape = dataset.shape[1:]
    if shape:
        shape = tuple(map(max, zip(shape, *(row.shape for row in rows), strict=True)))
    dataset.resize((start + len(rows), *shape))
    _write_rows(dataset, start, rows, shape)


def _write_rows(dataset: h5py.Dataset, start: int, rows: list[Array], shape: tuple[int, ...]) -> None:
    if math.prod(shape) == 0:
        return
    if all(row.shape == shape for row in rows):
        dataset[start : start + len(rows)] = rows[0][None] if len(rows) == 1 else np.stack(rows)
        return
    for offset, row in enumerate(rows):
        if row.size:
            dataset[(start + offset, *(slice(size) for size in row.shape))] = row


ITERATIONS, RANKS, SHAPES, POSITIONS = "_iterations", "_ranks", "_shapes", "_positions"
COMPANION_SUFFIXES = (ITERATIONS, RANKS, SHAPES, POSITIONS)
_PART = re.compile(r"~(\d+)$")
_COMPANION = re.compile(rf"_(?={'|'.join(suffix[1:] + '$' for suffix in COMPANION_SUFFIXES)})")
_UNSAFE_IN_KEY = re.compile(r"[%/\x00-\x1f\x7f\ud800-\udfff]|^\.{1,2}$")
_MAX_KEY_NBYTES = 30_000  # h5py fails on links and attributes of 64 KiB


def encode_key(name: str) -> str:
    """The name inside the file: unchanged for ordinary names, `%XX` for what HDF5 or this schema would
    misread. `unquote` reverses it."""
    key = _UNSAFE_IN_KEY.sub(_percent_encode, name)
    key = _COMPANION.sub("%5F", _PART.sub(r"%7E\1", key)) or "%"
    if len(key.encode("utf-8")) > _MAX_KEY_NBYTES:
        raise UnsupportedValueError(f"a name of {len(name)} characters is too long for an HDF5 file")
    return key


def decode_key(key: str) -> str:
    """The name of this key, without the part number."""
    key = _PART.sub("", key)
    return "" if key == "%" else unquote(key, errors="surrogatepass")


def is_companion(key: str) -> bool:
    return key.endswith(COMPANION_SUFFIXES)


def part_number(key: str) -> int:
    match = _PART.search(key)
    return int(match[1]) if match else 1


def _percent_encode(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode("utf-8", "surrogatepass"))
