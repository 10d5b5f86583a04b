"""A reproduction as a shell script, to read, keep or run by hand; it contains no secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tensortap.metadata.redaction import is_secret, secret_spans
from tensortap.reproduce.code import fetch_sources, has_commit, private_repository
from tensortap.reproduce.command import Command, RedactedValue, is_session_variable
from tensortap.reproduce.environment import RECORDER
from tensortap.reproduce.recorded import RecordedRepository, RecordedRun

quote = shlex.quote
_VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def shell_script(
    recorded: RecordedRun,
    repositories: list[RecordedRepository],
    sources: dict[str, str],
    into: Path,
    command: Command,
    python: str,
    requirements: list[str] | None,
    secrets: list[RedactedValue],
) -> str:
    """The steps of `--go` as a sh script; `requirements` are the packages of a new environment, if any."""
    lines = ["set -eu", f"mkdir -p {quote(str(into))}"]
    names = sorted(
        secret.name
        for secret in secrets
        if secret.kind == "variable" and _VARIABLE_NAME.fullmatch(secret.name)
    )
    lines += [f': "${{{name}:?was hidden when the run was written}}"' for name in names]
    for repository in repositories:
        lines += _restore_lines(repository, sources.get(repository.label, repository.root), into)
    if recorded.tar is not None:
        target = quote(str(into / recorded.sources_target))
        lines += [f"mkdir -p {target}", f"tar -xf {quote(str(recorded.tar))} -C {target}"]
    lines += _environment_lines(requirements, into, python, recorded.python_version)
    lines += [f"mkdir -p {quote(command.folder)}", f"cd {quote(command.folder)}"]
    return "\n".join([*lines, *_run_lines(command, set(names))]) + "\n"


def _restore_lines(repository: RecordedRepository, source: str, into: Path) -> Iterator[str]:
    target = quote(str(into / repository.target))
    yield ""
    yield f"# {_one_line(repository.label)}"
    if repository.commit is None:
        yield f"git init --quiet {target}"
    else:
        if not has_commit(source, repository.commit):
            private = private_repository(into, repository)
            yield from _fetch_lines(repository, source, private)
            source = str(private)
        add = f"git -C {quote(source)} worktree add --quiet --detach --no-checkout"
        yield f"{add} {target} {quote(repository.commit)}"
        yield f"git -C {target} read-tree HEAD"
    if repository.patch is not None:
        yield f"git -C {target} apply --cached --binary --whitespace=nowarn {quote(str(repository.patch))}"
    if repository.tree is not None:
        yield f'test "$(git -C {target} write-tree)" = {quote(repository.tree)}'
    yield f"git -C {target} checkout-index --all --force --index"


def _fetch_lines(repository: RecordedRepository, source: str, private: Path) -> Iterator[str]:
    quoted = quote(str(private))
    yield f"git init --quiet --bare {quoted}"
    for url, refspec in fetch_sources(repository, [source]):
        yield f"git -C {quoted} fetch --quiet --no-tags {quote(url)} {quote(refspec)} || true"


def _environment_lines(
    requirements: list[str] | None, into: Path, python: str, version: str
) -> Iterator[str]:
    yield ""
    if requirements is None:
        yield f"# packages: {_one_line(python)} has those of the run"
        return
    folder, requirements_file = into / "env", quote(str(into / "requirements.txt"))
    minor = ".".join(version.split(".")[:2])
    yield f"cat > {requirements_file} <<'END_OF_PACKAGES'"
    yield from requirements
    yield "END_OF_PACKAGES"
    yield f"{quote(f'python{minor}')} -m venv {quote(str(folder))}"
    yield f"{quote(python)} -m pip install --no-deps -r {requirements_file}"
    yield f"mkdir {quote(str(folder / 'recorder'))}"
    yield f"ln -s {quote(str(RECORDER))} {quote(str(folder / 'recorder' / RECORDER.name))}"
    path_file = folder / f"lib/python{minor}/site-packages/tensortap-recorder.pth"
    yield f"echo {quote(str(folder / 'recorder'))} > {quote(str(path_file))}"


def _run_lines(command: Command, hidden: set[str]) -> Iterator[str]:
    yield ""
    yield "exec env -i \\"
    for name in sorted({*command.variables, *hidden}):
        value = command.variables.get(name, "")
        is_hidden = name in hidden or is_secret(name, value) or bool(secret_spans(value))
        if _VARIABLE_NAME.fullmatch(name):
            shown_value = f'"${{{name}-}}"' if is_hidden or is_session_variable(name) else quote(value)
            yield f"  {name}={shown_value} \\"
    yield "  " + " ".join(map(_quote_argument, command.words))


def _quote_argument(word: str) -> str:
    """A shell-quoted argument; redacted parts become variables named after their digest."""
    parts = re.split(r"<redacted:([0-9a-f]{16})>", word)
    if len(parts) == 1:
        return quote(word)
    references = ['"${HIDDEN_' + digest + ':?is an argument that was hidden}"' for digest in parts[1::2]]
    plain = [quote(part) if part else "" for part in parts[::2]]
    return "".join(a + b for a, b in zip(plain, [*references, ""], strict=True))


def _one_line(text: str) -> str:
    return " ".join(text.split())
