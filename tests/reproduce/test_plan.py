"""A run is run again from repositories in every state, and nothing of the user's is touched."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensortap.core.errors import CorruptRunError, NoRunError, RefusedError
from tensortap.readers.run import Run
from tensortap.reproduce.plan import ReproductionOptions, ReproductionPlan, ReproductionResult
from tensortap.reproduce.recorded import MissingRequirementError

pytestmark = pytest.mark.process

# Dumps the bytes of every file it was started beside, so that equal values mean equal files.
PROGRAM = b"""
import os, sys
import numpy as np
import tensortap as tt
tt.init("out", timezone="UTC")
for folder, folders, files in os.walk("."):
    folders[:] = sorted(name for name in folders if name not in ("out", ".git", "__pycache__"))
    for name in sorted(files):
        path = os.path.join(folder, name)
        if name != ".git" and os.path.getsize(path) < 2_000_000:
            tt.dump(np.fromfile(path, np.uint8), path)
tt.dump(np.frombuffer(" ".join(sys.argv[1:]).encode(), np.uint8), "arguments")
"""


@dataclass
class Project:
    path: Path

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        command = ["git", "-c", "protocol.file.allow=always", *arguments]
        done = subprocess.run(command, cwd=cwd or self.path, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape").strip()

    def write(self, name: str, content: bytes) -> Path:
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def commit(self, message: str = "a commit") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", message)

    def record(self, *arguments: str, python: str = sys.executable) -> Path:
        """Run the program here; the run it made."""
        subprocess.run([python, "job.py", *arguments], cwd=self.path, check=True)
        return max((self.path / "out").iterdir(), key=lambda run: run.stat().st_mtime_ns)

    def fingerprint(self) -> dict[str, str]:
        """All that belongs to the user: files, index, references, configuration."""
        skipped = (
            ".git/worktrees",
            ".git/objects",
            ".git/modules/vendor/worktrees",
            ".git/modules/vendor/objects",
        )
        files = (path for path in sorted(self.path.rglob("*")) if path.is_file() or path.is_symlink())
        names = {str(path.relative_to(self.path)): path for path in files}
        return {name: _content(path) for name, path in names.items() if not name.startswith(skipped)}


def _content(path: Path) -> str:
    return os.readlink(path) if path.is_symlink() else hashlib.blake2b(path.read_bytes()).hexdigest()


def surroundings(home: Path) -> dict[str, str]:
    """No configuration or key of the machine reaches a test."""
    return {
        "GIT_CONFIG_GLOBAL": str(home / "gitconfig"),
        "GIT_CONFIG_NOSYSTEM": "1",
        "XDG_STATE_HOME": str(home / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return _furnished(tmp_path, monkeypatch)


def _furnished(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    config = "[user]\n\tname = A B\n\temail = a@b\n[init]\n\tdefaultBranch = main\n"
    (home / "gitconfig").write_text(config)
    (home / "tmp").mkdir()
    for name, value in surroundings(home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("tempfile.tempdir", str(home / "tmp"))
    return home


@pytest.fixture
def make_project(home: Path) -> Callable[[str], Project]:
    return lambda name="project": _begun(home / name)


def _begun(path: Path) -> Project:
    project = Project(path)
    project.path.mkdir()
    project.git("init", "-q")
    project.write("job.py", PROGRAM)
    return project


@pytest.fixture
def project(make_project: Callable[..., Project]) -> Project:
    return _changed(make_project())


def _changed(project: Project) -> Project:
    """A repository with one commit, and changes of every kind that are not in it."""
    project.write("model.py", b"x = 1\n")
    project.write("gone.py", b"x = 1\n")
    project.commit()
    project.write("model.py", b"x = 2\n")
    project.write("new/untracked.py", b"y = 1\n")
    project.write("weights.bin", bytes(range(256)) * 9)
    (project.path / "gone.py").unlink()
    return project


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, Path]:
    """Such a project and its run, for tests that change neither."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        project = _changed(_begun(_furnished(tmp_path_factory.mktemp("kept"), monkeypatch) / "project"))
        return project, project.record("--lr", "0.1")


@pytest.fixture
def copied(kept: tuple[Project, Path], home: Path) -> Path:
    """A copy of its run, which a test may damage."""
    return Path(shutil.copytree(kept[1], home / "copied"))


def again(run: Path, into: Path | None = None, **choices: Any) -> ReproductionResult:
    return ReproductionPlan(run, ReproductionOptions(**choices)).go(into, lambda line: None)


def values(run: Path | None) -> dict[str, bytes]:
    assert run is not None
    return {stored.name: np.asarray(stored.load()).tobytes() for stored in Run(run)}


def assert_same(run: Path, done: ReproductionResult) -> None:
    assert done.exit_code == 0
    assert values(done.run) == values(run)
    assert len(values(run)) > 1


def test_uncommitted_untracked_deleted_and_binary_files_are_restored(kept: tuple[Project, Path]) -> None:
    project, run = kept
    before = project.fingerprint()
    done = again(run)
    assert_same(run, done)
    assert {"./new/untracked.py", "./weights.bin"} <= set(values(done.run))
    assert "./gone.py" not in values(done.run)
    assert project.fingerprint() == before


def test_the_new_run_names_the_one_it_repeats(kept: tuple[Project, Path]) -> None:
    _, run = kept
    done = again(run)
    assert done.run is not None
    assert Run(done.run).metadata["environment"]["parent"] == str(run)
    assert Run(run).metadata["environment"]["parent"] is None


def test_what_the_user_changed_since_does_not_matter(project: Project) -> None:
    run = project.record()
    project.write("model.py", b"x = 3\n")
    project.commit("later")
    assert_same(run, again(run))


def test_a_repository_without_commits_is_restored(make_project: Any) -> None:
    project = make_project()
    project.write("a.py", b"x\n")
    run = project.record()
    assert_same(run, again(run))


def test_a_detached_head_is_restored(project: Project) -> None:
    project.git("checkout", "-q", "--detach")
    project.commit("on no branch")
    run = project.record()
    project.git("checkout", "-q", "main")
    assert_same(run, again(run))


def test_spaces_quotes_and_unicode_are_restored(make_project: Any) -> None:
    project = make_project("my 'projet' é")
    project.write("ä b/c d.py", b"x\n")
    project.commit()
    project.write('ä b/"q".txt', b"y\n")
    run = project.record("--name", "a b'c é")
    assert_same(run, again(run))


def test_links_inside_the_code_are_restored(project: Project) -> None:
    (project.path / "new" / "link.py").symlink_to("../model.py")
    run = project.record()
    done = again(run)
    assert_same(run, done)
    assert os.readlink(done.into / "code" / "new" / "link.py") == "../model.py"


@pytest.mark.parametrize("setting", ["core.autocrlf=true", "core.autocrlf=false", "attributes"])
def test_line_ends_are_restored(setting: str, make_project: Any) -> None:
    project = make_project()
    if setting == "attributes":
        project.write(".gitattributes", b"*.txt text eol=crlf\n*.csv -text\n")
    else:
        project.git("config", *setting.split("="))
    project.write("a.txt", b"one\r\ntwo\r\n")
    project.write("b.csv", b"one\r\ntwo\n")
    project.git("config", "core.safecrlf", "false")
    project.commit()
    for path in ("job.py", "a.txt", "b.csv"):  # as git writes them
        (project.path / path).unlink()
    project.git("checkout", "-q", "--", ".")
    project.write("a.txt", b"one\r\ntwo\r\nthree\r\n")
    run = project.record()
    done = again(run)
    assert (done.into / "code" / "a.txt").read_bytes() == b"one\r\ntwo\r\nthree\r\n"
    assert_same(run, done)


def test_a_submodule_with_changes_of_its_own_is_restored(project: Project, home: Path) -> None:
    library = Project(home / "library")
    library.path.mkdir()
    library.git("init", "-q")
    library.write("lib.py", b"x = 1\n")
    library.commit()
    project.git("submodule", "--quiet", "add", str(library.path), "vendor")
    project.commit("with a submodule")
    project.write("vendor/lib.py", b"x = 2\n")
    project.git("commit", "-qam", "not pushed", cwd=project.path / "vendor")
    project.write("vendor/lib.py", b"x = 3\n")
    project.write("vendor/more.py", b"untracked\n")
    run = project.record()
    before = project.fingerprint()
    done = again(run)
    assert_same(run, done)
    assert (done.into / "code" / "vendor" / "lib.py").read_bytes() == b"x = 3\n"
    assert project.fingerprint() == before


def test_a_large_untracked_file_comes_from_where_it_was(project: Project) -> None:
    large = project.path / "large.bin"
    with open(large, "wb") as file:
        file.write(b"begin")
        file.truncate(100 << 20)
    run = project.record()
    assert not any(path.stat().st_size > 1 << 20 for path in run.rglob("*") if path.is_file())
    done = again(run)
    assert (done.into / "code" / "large.bin").stat().st_size == 100 << 20
    large.write_bytes(b"another")
    (lack,) = again(run).missing
    assert "large.bin (104,857,600 bytes)" in lack.what


def test_what_was_left_out_can_be_linked(project: Project) -> None:
    project.write(".env", b"TOKEN=x\n")
    run = project.record()
    plain = again(run)
    assert [lack.remedy for lack in plain.missing] == [f"--link .env takes it from {project.path}"]
    done = again(run, links=(".env",))
    assert (done.into / "code" / ".env").read_bytes() == b"TOKEN=x\n"


@pytest.mark.parametrize("has_remote", [False, True])
def test_a_repository_that_is_gone_is_made_from_the_bundle(
    has_remote: bool, project: Project, home: Path
) -> None:
    if has_remote:
        project.git("clone", "-q", "--bare", str(project.path), str(home / "remote.git"))
        project.git("remote", "add", "origin", str(home / "remote.git"))
        project.git("fetch", "-q", "origin")
        project.git("commit", "-qam", "not pushed")
    run = project.record()
    moved = home / "kept"
    run.parent.rename(moved)
    subprocess.run(["rm", "-rf", str(project.path)], check=True)
    assert_same(moved / run.name, again(moved / run.name))
    script = ReproductionPlan(moved / run.name, ReproductionOptions()).script(home / "by hand")
    subprocess.run(["sh"], input=script, text=True, check=True)
    (found,) = (home / "by hand" / "code" / "out").iterdir()
    assert values(found) == values(moved / run.name)


def test_a_commit_that_nobody_has_is_named_with_a_remedy(project: Project, home: Path) -> None:
    run = project.record()
    for bundle in run.rglob("*.bundle"):
        bundle.unlink()
    run.rename(home / "kept")
    subprocess.run(["rm", "-rf", str(project.path)], check=True)
    with pytest.raises(MissingRequirementError, match=r"commit [0-9a-f]{12} of project: .* give --repo DIR"):
        again(home / "kept")


def test_another_clone_can_be_named(project: Project, home: Path) -> None:
    project.git("clone", "-q", str(project.path), str(home / "clone"))
    run = project.record()
    run.rename(home / "kept")
    subprocess.run(["rm", "-rf", str(project.path)], check=True)
    assert_same(home / "kept", again(home / "kept", repo=str(home / "clone")))


def test_a_patch_that_makes_another_tree_is_an_error_and_leaves_nothing(
    kept: tuple[Project, Path], copied: Path, home: Path
) -> None:
    before = kept[0].git("worktree", "list")
    patch = copied / "project.patch"
    patch.write_bytes(patch.read_bytes().replace(b"+x = 2", b"+x = 9"))
    with pytest.raises(CorruptRunError, match="but the run had"):
        again(copied)
    assert list((home / "tmp").iterdir()) == []
    assert kept[0].git("worktree", "list") == before


def _new_file(path: str, mode: str = "100644", line: str = "y\n") -> bytes:
    a, b = (f'"{side}/{path}"' if "\\" in path else f"{side}/{path}" for side in "ab")
    head = f"diff --git {a} {b}\nnew file mode {mode}\n--- /dev/null\n+++ {b}\n"
    return f"{head}@@ -0,0 +1 @@\n+{line}".encode()


UNENDED = "\n\\ No newline at end of file\n"
HOSTILE = {
    "upwards": _new_file("../x"),
    "absolute": _new_file("/etc/x"),
    "quoted": _new_file("..\\057x"),
    "git's own": _new_file(".git/hooks/x", "100755"),
    "renamed": b"diff --git a/model.py b/../xxxx.py\nrename from model.py\nrename to ../xxxx.py\n",
    "link": _new_file("l", "120000", "/etc" + UNENDED),
    "link upwards": _new_file("d/l", "120000", "../../x" + UNENDED),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_path_that_leads_out_is_refused(name: str, copied: Path) -> None:
    (copied / "project.patch").write_bytes(HOSTILE[name])
    with pytest.raises(RefusedError):
        again(copied)


def test_a_link_out_of_the_code_is_restored_on_trust(project: Project, home: Path) -> None:
    (home / "data").mkdir()
    (project.path / "data").symlink_to(home / "data")
    run = project.record()
    with pytest.raises(RefusedError, match=r"points out of the code, to '.*data'; --trust restores it"):
        again(run)
    assert os.readlink(again(run, trust=True).into / "code" / "data") == str(home / "data")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_the_command_of_a_stranger_is_not_run_without_trust(copied: Path) -> None:
    os.chown(copied / "runtime_info.json", 12345, 12345)
    plan = ReproductionPlan(copied, ReproductionOptions())
    assert "job.py" in plan.script(None)
    with pytest.raises(RefusedError, match="made by another user"):
        plan.go(None, lambda line: None)
    assert_same(copied, again(copied, trust=True))


def test_the_checkout_is_refused_as_the_new_folder(kept: tuple[Project, Path]) -> None:
    project, run = kept
    with pytest.raises(RefusedError, match="which is not touched"):
        again(run, into=project.path / "again")
    assert not (project.path / "again").exists()


def test_a_folder_that_is_not_empty_is_not_used(kept: tuple[Project, Path], home: Path) -> None:
    _, run = kept
    (home / "full").mkdir()
    (home / "full" / "mine").write_text("kept")
    with pytest.raises(ValueError, match="is not empty; give a new folder"):
        again(run, into=home / "full")
    assert (home / "full" / "mine").read_text() == "kept"


def test_files_without_a_repository_are_restored(home: Path) -> None:
    project = Project(home / "plain")
    project.path.mkdir()
    project.write("job.py", b"import tensortap as tt\ntt.init('out')\nimport late\ntt.dump(late.x, 'x')\n")
    project.write("late.py", b"import numpy as np\nx = np.arange(5)\n")
    project.write("small.yaml", b"lr: 1\n")
    run = project.record("--config", "small.yaml")
    done = again(run)
    assert values(done.run) == values(run)
    assert (done.into / "code" / "small.yaml").exists()
    assert done.messages[0] == "code: restored job.py, late.py, small.yaml, digest as recorded"


@pytest.fixture
def editable(project: Project, home: Path) -> tuple[Project, str]:
    """A package in a repository of its own, and an interpreter in which it is installed from there."""
    library = Project(home / "mylib")
    library.path.mkdir()
    library.git("init", "-q")
    library.write("src/mylib.py", b"x = 1\n")
    library.commit()
    library.write("src/mylib.py", b"x = 2\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home / "env")], check=True)
    (packages,) = (home / "env").glob("lib/python*/site-packages")
    for name in ("numpy", "numpy.libs", f"numpy-{np.__version__}.dist-info"):
        (packages / name).symlink_to(Path(np.__file__).parents[1] / name)
    (packages / "tensortap").symlink_to(Path(sys.modules["tensortap"].__file__ or "").parent)
    (packages / "mylib.pth").write_text(f"{library.path / 'src'}\n")
    facts = packages / "mylib-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Name: mylib\nVersion: 1.0\n")
    origin = {"url": library.path.as_uri(), "dir_info": {"editable": True}}
    (facts / "direct_url.json").write_text(json.dumps(origin))
    program = b"import tensortap as tt, mylib\ntt.init('out'); tt.dump([mylib.x], 'x')\n"
    project.write("job.py", program + b"tt.dump(mylib.__file__, 'file')\n")
    return library, str(home / "env" / "bin" / "python")


@pytest.mark.parametrize("is_changed", [False, True])
def test_an_editable_package_is_what_it_was(
    is_changed: bool, project: Project, editable: tuple[Project, str]
) -> None:
    library, python = editable
    run = project.record(python=python)
    if is_changed:
        library.write("src/mylib.py", b"x = 3\n")
    done = again(run)
    assert done.run is not None
    assert Run(done.run).load("x") == Run(run).load("x") == [2]
    place = done.into / "packages" / "mylib" if is_changed else library.path
    assert Run(done.run).load("file") == str(place / "src" / "mylib.py")


def test_a_run_of_the_second_init_is_set_against_the_second(project: Project) -> None:
    project.write(
        "job.py", b"import tensortap as tt\nfor n in range(2):\n    tt.init('out'); tt.dump(n, 'n')\n"
    )
    project.record()
    _, second = sorted((project.path / "out").iterdir())
    done = again(second)
    assert done.run is not None
    assert Run(done.run).load("n") == Run(second).load("n") == 1


def test_a_folder_without_facts_is_no_run(home: Path) -> None:
    with pytest.raises(NoRunError, match=r"has no runtime_info\.json"):
        ReproductionPlan(home, ReproductionOptions())


@pytest.mark.parametrize("name", ["runtime_info.json", ".tensortap/environment.json"])
@pytest.mark.parametrize("content", [b"{", b"[]", b"[" * 100_000])
def test_damaged_facts_are_named(name: str, content: bytes, home: Path) -> None:
    run = home / "one"
    (run / ".tensortap").mkdir(parents=True)
    (run / "runtime_info.json").write_bytes(b"{}")
    (run / name).write_bytes(content)
    with pytest.raises(CorruptRunError, match=Path(name).name):
        ReproductionPlan(run, ReproductionOptions())
