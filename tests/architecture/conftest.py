"""Ask a fresh interpreter, and know where the source lies."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

import tensortap

SOURCE = Path(tensortap.__file__).parent


@pytest.fixture(scope="session")
def source() -> Path:
    return SOURCE


@pytest.fixture(scope="session")
def modules() -> dict[str, Path]:
    """Every module of the package by its path inside it."""
    return {str(path.relative_to(SOURCE)): path for path in sorted(SOURCE.rglob("*.py"))}


@pytest.fixture
def ask(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a few lines in a fresh interpreter, in an empty folder."""

    def run(code: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            # The interpreter's own cache (-B) is no file that an import of ours opens.
            [sys.executable, "-B", "-W", "error", "-c", textwrap.dedent(code)],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(path or "")},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    return run
