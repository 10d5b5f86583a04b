"""The patch restores the working tree exactly, and the repository is not touched."""

import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

CHANGES = {
    "text": lambda repo: repo.write("model.py", b"def forward(x):\n    return x * 3\n"),
    "no newline at the end": lambda repo: repo.write("model.py", b"x = 1"),
    "crlf": lambda repo: repo.write("data/table.csv", b"a,b\r\n1,3\r\nmixed\nlines\r\n"),
    "crlf to lf": lambda repo: repo.write("data/table.csv", b"a,b\n1,2\n"),
    "latin-1 content": lambda repo: repo.write("model.py", "é = 1\n".encode("latin-1")),
    "binary": lambda repo: repo.write("model.py", bytes(range(256)) * 20),
    "untracked": lambda repo: repo.write("new/deep/file.py", b"print(1)\n"),
    "untracked binary": lambda repo: repo.write("weights.bin", b"\0\1\2" * 1000),
    "untracked empty": lambda repo: repo.write("__init__.py", b""),
    "latin-1 name": lambda repo: repo.write(b"caf\xe9.txt", b"coffee\n"),
    "quotes and newline in a name": lambda repo: repo.write('a "b"\nc\t.txt', b"x\n"),
    "leading dash and colon": lambda repo: repo.write("-:(top)x", b"x\n"),
    "deleted": lambda repo: (repo.path / "model.py").unlink(),
    "mode": lambda repo: (repo.path / "model.py").chmod(0o755),
    "symlink": lambda repo: (repo.path / "link").symlink_to("no/such target"),
    "file to symlink": lambda repo: (
        (repo.path / "model.py").unlink(),
        (repo.path / "model.py").symlink_to("data"),
    ),
    "file to folder": lambda repo: (
        (repo.path / "model.py").unlink(),
        repo.write("model.py/inner.py", b"x\n"),
    ),
    "folder to file": lambda repo: (
        (repo.path / "data/table.csv").unlink(),
        (repo.path / "data").rmdir(),
        repo.write("data", b"x\n"),
    ),
    "renamed": lambda repo: (repo.path / "model.py").rename(repo.path / "net.py"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_restores_exactly(name: str, repo: Any, write_run: Any, restored_tree: Any) -> None:
    CHANGES[name](repo)
    run = write_run()
    assert run.project["status"] == "dirty"
    assert run.project["git_diff"] == "See project.patch"
    assert restored_tree(repo, run) == run.environment["git"]["tree"]


def test_all_changes_together_restore_exactly(repo: Any, write_run: Any, restored_tree: Any) -> None:
    for name in ("crlf", "untracked", "untracked binary", "latin-1 name", "symlink", "deleted"):
        CHANGES[name](repo)
    run = write_run()
    expected = Path("data/table.csv").read_bytes()
    assert restored_tree(repo, run) == run.environment["git"]["tree"]
    assert (repo.path.parent / "clone/data/table.csv").read_bytes() == expected


def test_staged_and_unstaged_changes_are_both_in_the_patch(
    repo: Any, write_run: Any, restored_tree: Any
) -> None:
    repo.write("staged.py", b"one\n")
    repo.git("add", "staged.py")
    repo.write("staged.py", b"two\n")
    repo.git("rm", "-q", "--cached", "model.py")
    run = write_run()
    assert b"+two" in run.patch
    assert b"+one" not in run.patch
    assert restored_tree(repo, run) == run.environment["git"]["tree"]


def test_a_clean_tree_has_no_patch(repo: Any, write_run: Any) -> None:
    run = write_run()
    assert run.project["status"] == "clean"
    assert run.project["git_diff"] == ""
    assert not (run.folder / "project.patch").exists()
    assert run.environment["git"]["tree"] == repo.git("rev-parse", "HEAD^{tree}")


def test_the_patch_goes_when_the_tree_becomes_clean(repo: Any, write_run: Any) -> None:
    repo.write("model.py", b"x\n")
    run = write_run()
    assert run.patch
    repo.git("checkout", "-q", "--", "model.py")
    run.metadata.write()
    assert not (run.folder / "project.patch").exists()


def test_ignored_files_are_not_in_the_patch(repo: Any, write_run: Any) -> None:
    repo.write(".gitignore", b"*.log\n")
    repo.commit()
    repo.write("a.log", b"x\n")
    assert write_run().project["status"] == "clean"


def test_the_repository_is_untouched(repo: Any, write_run: Any) -> None:
    repo.write("model.py", b"changed\n")
    repo.write("staged.py", b"x\n")
    repo.git("add", "staged.py")
    repo.write("untracked.py", b"y\n")
    # A file that only looks changed would tempt git to refresh the index.
    os.utime("data/table.csv", ns=(1, 1))
    before = _fingerprint(repo.path)
    write_run().metadata.write()
    assert _fingerprint(repo.path) == before


def test_a_change_in_the_same_instant_as_the_index_is_seen(repo: Any, write_run: Any) -> None:
    path = repo.write("model.py", b"def forward(x):\n    return x * 2\n")
    repo.git("add", "model.py")
    index = os.stat(".git/index")
    path.write_bytes(b"def forward(x):\n    return x * 9\n")
    os.utime(path, ns=(index.st_mtime_ns, index.st_mtime_ns))
    assert b"+    return x * 9" in write_run().patch


def test_the_patch_is_whole_from_a_folder_below(
    repo: Any, write_run: Any, restored_tree: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHANGES["text"](repo)
    repo.write("data/more/new.csv", b"x\n")
    monkeypatch.chdir(repo.path / "data")
    run = write_run()
    assert restored_tree(repo, run) == run.environment["git"]["tree"]
    assert b"model.py" in run.patch


def test_the_run_folder_is_not_in_the_patch(repo: Any, write_run: Any) -> None:
    run = write_run(repo.path / "experiments" / "one")
    repo.write("experiments/one/loss.pt", b"tensor")
    run.metadata.write()
    assert run.project["status"] == "clean"
    assert not run.patch


def test_earlier_runs_are_not_in_the_patch(repo: Any, write_run: Any) -> None:
    write_run(repo.path / "experiments" / "one")
    repo.write("experiments/one/loss.pt", b"tensor")
    repo.write("experiments/notes.txt", b"kept\n")
    second = write_run(repo.path / "experiments" / "two")
    assert b"loss.pt" not in second.patch
    assert b"notes.txt" in second.patch
    assert second.environment["git"]["skipped"] == [{"path": "experiments/one", "reason": "a run folder"}]


@pytest.mark.parametrize(
    "name", [".env", ".env.local", "deep/server.pem", "id_rsa", "aws_credentials.json", "vault.kdbx", "a.key"]
)
def test_an_untracked_secret_file_is_left_out_and_listed(name: str, repo: Any, write_run: Any) -> None:
    repo.write(name, b"hunter2\n")
    run = write_run()
    assert not run.patch
    assert run.project["status"] == "dirty"
    assert run.environment["git"]["skipped"] == [{"path": name, "reason": "looks like a secret", "size": 8}]


def test_an_untracked_private_key_is_known_by_its_content(repo: Any, write_run: Any) -> None:
    repo.write("notes", b"-----BEGIN OPENSSH PRIVATE KEY-----\nabc\n")
    run = write_run()
    assert not run.patch
    assert run.environment["git"]["skipped"][0]["path"] == "notes"


@pytest.mark.parametrize("name", [".env.example", "environment.yml", "keyboard.py", "id_ed25519.pub"])
def test_a_file_that_only_sounds_secret_stays(name: str, repo: Any, write_run: Any) -> None:
    repo.write(name, b"x\n")
    assert os.fsencode(name) in write_run().patch


def test_a_large_untracked_file_is_listed_with_size_and_hash(repo: Any, write_run: Any) -> None:
    repo.write("big.bin", bytes(1_048_577))
    repo.write("huge.bin", bytes(9 << 20))
    big, huge = write_run().environment["git"]["skipped"]
    assert (big["path"], big["size"], big["reason"]) == ("big.bin", 1_048_577, "larger than 1 MB")
    assert big["hash"] == hashlib.blake2b(bytes(1_048_577), digest_size=16).hexdigest()
    assert (big["hash_of"], huge["hash_of"]) == ("all", "first and last MB")


def test_untracked_files_stop_at_twenty_megabytes(repo: Any, write_run: Any) -> None:
    for number in range(22):
        repo.write(f"part{number:02}.bin", bytes(1 << 20))
    skipped = write_run().environment["git"]["skipped"]
    assert [entry["path"] for entry in skipped] == ["part20.bin", "part21.bin"]
    assert {entry["reason"] for entry in skipped} == {"beyond 20 MB in total"}


def test_a_tracked_secret_is_kept_and_flagged(repo: Any, write_run: Any, restored_tree: Any) -> None:
    repo.write("model.py", b'API_KEY = "sk-proj-a8Fk2Lm9Qx7Rt5Zw3Yv1"\n')
    repo.write("plain.py", b"x = 1\n")
    run = write_run()
    assert b"sk-proj-a8Fk2Lm9Qx7Rt5Zw3Yv1" in run.patch
    assert [entry["path"] for entry in run.environment["git"]["flagged"]] == ["model.py"]
    assert restored_tree(repo, run) == run.environment["git"]["tree"]


def test_an_untracked_repository_is_listed_not_added(repo: Any, write_run: Any) -> None:
    (repo.path / "inner").mkdir()
    subprocess.run(["git", "init", "-q", "inner"], check=True)
    repo.write("inner/a.py", b"x\n")
    run = write_run()
    assert not run.patch
    assert run.environment["git"]["skipped"] == [{"path": "inner/", "reason": "a repository of its own"}]


HOSTILE = """
[diff]
\tnoprefix = true
\tmnemonicPrefix = true
\trenames = copies
\texternal = /bin/false
\tcontext = 0
\trelative = true
\tsubmodule = log
\talgorithm = patience
[color]
\tui = always
[core]
\tquotePath = false
\tsafecrlf = true
\tpager = /bin/false
[log]
\tshowSignature = true
[apply]
\twhitespace = nowarn
"""


@pytest.mark.parametrize("autocrlf", ["true", "input", "false"])
def test_the_configuration_of_the_user_does_not_break_the_patch(
    autocrlf: str, repo: Any, home: Path, write_run: Any, restored_tree: Any
) -> None:
    config = home / "gitconfig"
    config.write_text(config.read_text() + HOSTILE + f"[core]\n\tautocrlf = {autocrlf}\n")
    repo.write(".git/info/attributes", b"*.py diff=odd\n")
    repo.git("config", "diff.odd.textconv", "/bin/false")
    CHANGES["text"](repo)
    CHANGES["crlf"](repo)
    CHANGES["latin-1 name"](repo)
    repo.write("new_crlf.txt", b"a\r\nb\r\n")
    run = write_run()
    assert run.environment["problems"] == []
    assert restored_tree(repo, run) == run.environment["git"]["tree"]


def test_hooks_and_monitors_of_the_repository_do_not_run(repo: Any, write_run: Any) -> None:
    trace = repo.path.parent / "ran"
    hook = repo.write(".git/hooks/post-index-change", f"#!/bin/sh\ntouch {trace}\n".encode())
    hook.chmod(0o755)
    repo.git("config", "core.fsmonitor", str(hook))
    CHANGES["text"](repo)
    assert write_run().patch
    assert not trace.exists()


def _fingerprint(root: Path) -> dict[str, Any]:
    """Every file of .git with its content, and its time: except objects, whose time git renews on a look."""
    files = [path for path in sorted((root / ".git").rglob("*")) if path.is_file()]
    return {
        str(path): (path.read_bytes(), 0 if "objects" in path.parts else path.stat().st_mtime_ns)
        for path in files
    }
