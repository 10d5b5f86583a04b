"""Files of one value, written the way a run writes them."""

import itertools

import numpy as np
import pytest

from tensortap.formats.atomic_files import AtomicFolder, contiguous_bytes
from tensortap.formats.serializers import encode


@pytest.fixture
def saved(tmp_path):
    """Write a value to a file that lies in no run; give its path."""
    numbers = itertools.count()

    def save(value, name=None, **options):
        payload = encode(value, **options).payload
        folder = AtomicFolder(str(tmp_path), str(tmp_path))
        names = [f"{name or f'value{next(numbers)}'}{payload.suffix}"]
        file, _ = folder.write_new(names, payload, contiguous_bytes(np.ascontiguousarray(payload.bits)))
        return tmp_path / file

    return save
