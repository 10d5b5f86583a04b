"""Importing does nothing, imports go downwards only, and optional libraries stay optional."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

LINT = Path(sys.executable).with_name("lint-imports")

WATCHED = """
    import sys, threading
    opened, starting = [], threading.active_count()
    def watch(event, arguments):
        if event == "open" and not str(arguments[0]).endswith((".py", ".pyc")):
            opened.append(str(arguments[0]))
    sys.addaudithook(watch)
    import tensortap
    loaded = sorted({name for name in sys.modules if name.split(".")[0] in ("numpy", "torch", "jax")})
    rooms = sorted(name for name in sys.modules if name.startswith("tensortap."))
    assert not loaded, f"loaded {loaded[:3]}"
    assert not rooms, f"loaded {rooms[:3]}"
    assert not opened, f"opened {opened}"
    assert threading.active_count() == starting, "started a thread"
"""
FAULTS = {
    "loaded ['numpy'": "import numpy",
    "loaded ['tensortap.core'": "import tensortap.core",
    "opened": "open('left behind', 'w').close()",
    "started a thread": "from threading import *; Thread(target=Event().wait, daemon=True).start()",
}


def test_importing_tensortap_loads_no_room_no_library_opens_no_file_and_starts_no_thread(ask, tmp_path):
    done = ask(WATCHED)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("told", FAULTS)
def test_the_test_above_can_fail(ask, source, tmp_path_factory, told):
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(source, copy / "tensortap")
    with open(copy / "tensortap" / "__init__.py", "a", encoding="utf-8") as front_door:
        front_door.write(FAULTS[told] + "\n")
    done = ask(WATCHED, copy)
    assert done.returncode != 0
    assert told in done.stderr


def lint(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [LINT, "--no-cache"],
        cwd=project,
        env={"PYTHONPATH": str(project / "src"), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def project(source, tmp_path):
    """A copy of the project, to be spoilt."""
    shutil.copytree(source, tmp_path / "src" / "tensortap", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source.parent.parent / "pyproject.toml", tmp_path)
    return tmp_path


def test_imports_go_downwards_and_libraries_stay_in_their_homes(source):
    done = lint(source.parent.parent)
    assert done.returncode == 0, done.stdout


def test_a_home_that_no_longer_needs_its_library_is_reported(project):
    declared = project / "pyproject.toml"
    home = '    "tensortap.formats.pt -> torch",\n'
    declared.write_text(declared.read_text().replace(home, home + '    "tensortap.sinks.stream -> torch",\n'))
    done = lint(project)
    assert done.returncode != 0
    assert "No matches for ignored import tensortap.sinks.stream -> torch" in done.stdout + done.stderr


VIOLATIONS = {
    "upwards": ("core/spoilt.py", "import tensortap.compat.tensor_dumper\n"),
    "between strangers": ("metadata/spoilt.py", "import tensortap.formats.atomic_files\n"),
    "torch outside its homes": ("sinks/spoilt.py", "import torch\n"),
    "jax outside its home": ("readers/spoilt.py", "import jax\n"),
    "a room without a floor": ("unplaced/__init__.py", ""),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_the_contracts_can_be_broken(project, violation):
    file, code = VIOLATIONS[violation]
    path = project / "src" / "tensortap" / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code)
    done = lint(project)
    assert done.returncode != 0
    assert "BROKEN" in done.stdout or "unplaced" in done.stdout + done.stderr


# All are about torch models or torch's own files; a room stands for its modules.
NEED_TORCH = (
    "formats.pt",
    "frameworks.torch",
    "frameworks.torch_precision",
    "frameworks.torch_snapshots",
    "frameworks.torch_summary",
    "replay",
    "sources.hooks.compiled",
    "sources.hooks.editing",
    "sources.hooks.modules",
    "sources.observation.checkpointing",
    "stages.collective",
    # Import one of those above on purpose: their callers hold a model already.
    "compat.tensor_capture",
    "compat.tensortrace",
    "recording.edit",
    "recording.last_forward",
    "recording.tracer",
)
WITHOUT_TORCH = """
    import importlib, pkgutil, sys
    sys.modules["torch"] = None
    import tensortap
    for module in pkgutil.walk_packages(tensortap.__path__, "tensortap."):
        try:
            importlib.import_module(module.name)
        except ImportError:
            print(module.name.removeprefix("tensortap."))
"""


def test_only_what_is_about_torch_needs_torch(ask):
    done = ask(WITHOUT_TORCH)
    assert done.returncode == 0, done.stderr
    needing = {name if name in NEED_TORCH else name.split(".")[0] for name in done.stdout.split()}
    assert needing == set(NEED_TORCH), done.stdout


def test_a_module_that_begins_to_need_torch_would_be_found(ask, source, tmp_path_factory):
    copy = tmp_path_factory.mktemp("copy")
    shutil.copytree(source, copy / "tensortap", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "tensortap" / "stages" / "spoilt.py").write_text("import tensortap.frameworks.torch\n")
    assert "stages.spoilt" in ask(WITHOUT_TORCH, copy).stdout.split()


def test_without_torch_and_jax_everything_works_on_arrays(ask, tmp_path):
    done = ask("""
        import sys
        for name in ("torch", "jax", "transformers", "xxhash", "isal", "h5py", "click", "rich"):
            sys.modules[name] = None
        import numpy as np
        import tensortap as tt
        run = tt.init("runs", background=True)
        tt.dump(np.arange(3.0), "x")
        tt.dump({"a": [np.ones(2), 1, None]}, "nested")
        tt.update_metadata()
        tt.close()
        opened = tt.Run(run)
        assert opened.names == ["nested", "x"]
        assert opened.load("x").tolist() == [0, 1, 2]
        assert opened.find("x").statistics.max == 2
        assert tt.compare(run / "x.npy", np.arange(3.0))
        assert not tt.compare(np.zeros(3), np.ones(3))
        assert str(tt.difference(np.zeros(3), np.ones(3)))
        with tt.Tap(sinks=[tt.Memory(), tt.RunDirectory("packed")]) as tap:
            tap.emit(tt.Record("y", np.ones(3)))
        assert tt.Run("packed").load("y").tolist() == [1, 1, 1]
        print("done")
    """)
    assert done.stdout == "done\n", done.stderr


def test_a_tensor_can_be_read_where_torch_is_not_installed(ask, tmp_path):
    wrote = ask("import torch, tensortap as tt; print(tt.init('runs')); tt.dump(torch.ones(3), 'x')")
    assert wrote.returncode == 0, wrote.stderr
    read = ask(f"""
        import sys
        sys.modules["torch"] = None
        import tensortap as tt
        print(tt.Run({wrote.stdout.strip()!r}).load("x"))
    """)
    assert read.stdout == "[1. 1. 1.]\n", read.stderr
