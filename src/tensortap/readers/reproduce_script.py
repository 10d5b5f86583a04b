"""A reproduction as a shell script, to be read, kept or run by hand; it holds no secret."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tensortap.metadata.redact import is_secret, secret_spans
from tensortap.readers.reproduce_code import fetches, has_commit, private_place
from tensortap.readers.reproduce_command import Command, Secret, is_of_session
from tensortap.readers.reproduce_environment import RECORDER
from tensortap.readers.reproduce_recorded import Part, Recorded

quote = shlex.quote
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def script(
    recorded: Recorded,
    parts: list[Part],
    given: dict[str, str],
    into: Path,
    command: Command,
    python: str,
    wanted: list[str] | None,
    hidden: list[Secret],
) -> str:
    """The steps of `--go` in the words of sh; `wanted` are the packages of a fresh environment."""
    lines = ["set -eu", f"mkdir -p {quote(str(into))}"]
    names = sorted(one.name for one in hidden if one.kind == "variable" and _NAME.fullmatch(one.name))
    lines += [f': "${{{name}:?was hidden when the run was written}}"' for name in names]
    for part in parts:
        lines += _code(part, given.get(part.label, part.root), into)
    if recorded.tar is not None:
        target = quote(str(into / recorded.sources_target))
        lines += [f"mkdir -p {target}", f"tar -xf {quote(str(recorded.tar))} -C {target}"]
    lines += _environment(wanted, into, python, recorded.python_version)
    lines += [f"mkdir -p {quote(command.folder)}", f"cd {quote(command.folder)}"]
    return "\n".join([*lines, *_run(command, set(names))]) + "\n"


def _code(part: Part, source: str, into: Path) -> Iterator[str]:
    target = quote(str(into / part.target))
    yield ""
    yield f"# {_comment(part.label)}"
    if part.commit is None:
        yield f"git init --quiet {target}"
    else:
        if not has_commit(source, part.commit):
            private = private_place(into, part)
            yield from _fetched(part, source, private)
            source = str(private)
        add = f"git -C {quote(source)} worktree add --quiet --detach --no-checkout"
        yield f"{add} {target} {quote(part.commit)}"
        yield f"git -C {target} read-tree HEAD"
    if part.patch is not None:
        yield f"git -C {target} apply --cached --binary --whitespace=nowarn {quote(str(part.patch))}"
    if part.tree is not None:
        yield f'test "$(git -C {target} write-tree)" = {quote(part.tree)}'
    yield f"git -C {target} checkout-index --all --force --index"


def _fetched(part: Part, source: str, private: Path) -> Iterator[str]:
    place = quote(str(private))
    yield f"git init --quiet --bare {place}"
    for address, wanted in fetches(part, [source]):
        yield f"git -C {place} fetch --quiet --no-tags {quote(address)} {quote(wanted)} || true"


def _environment(wanted: list[str] | None, into: Path, python: str, version: str) -> Iterator[str]:
    yield ""
    if wanted is None:
        yield f"# packages: {_comment(python)} has those of the run"
        return
    folder, listed = into / "env", quote(str(into / "requirements.txt"))
    minor = ".".join(version.split(".")[:2])
    yield f"cat > {listed} <<'END_OF_PACKAGES'"
    yield from wanted
    yield "END_OF_PACKAGES"
    yield f"{quote(f'python{minor}')} -m venv {quote(str(folder))}"
    yield f"{quote(python)} -m pip install --no-deps -r {listed}"
    yield f"mkdir {quote(str(folder / 'recorder'))}"
    yield f"ln -s {quote(str(RECORDER))} {quote(str(folder / 'recorder' / RECORDER.name))}"
    path_file = folder / f"lib/python{minor}/site-packages/tensortap-recorder.pth"
    yield f"echo {quote(str(folder / 'recorder'))} > {quote(str(path_file))}"


def _run(command: Command, hidden: set[str]) -> Iterator[str]:
    yield ""
    yield "exec env -i \\"
    for name in sorted({*command.variables, *hidden}):
        value = command.variables.get(name, "")
        is_hidden = name in hidden or is_secret(name, value) or bool(secret_spans(value))
        if _NAME.fullmatch(name):
            told = f'"${{{name}-}}"' if is_hidden or is_of_session(name) else quote(value)
            yield f"  {name}={told} \\"
    yield "  " + " ".join(map(_word, command.words))


def _word(word: str) -> str:
    """An argument; what was hidden in it is to come from a variable named after its digest."""
    pieces = re.split(r"<redacted:([0-9a-f]{16})>", word)
    if len(pieces) == 1:
        return quote(word)
    told = ['"${HIDDEN_' + one + ':?is an argument that was hidden}"' for one in pieces[1::2]]
    plain = [quote(one) if one else "" for one in pieces[::2]]
    return "".join(a + b for a, b in zip(plain, [*told, ""], strict=True))


def _comment(text: str) -> str:
    return " ".join(text.split())
