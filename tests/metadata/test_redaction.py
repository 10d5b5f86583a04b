"""Secrets are hidden, everything else stays, and digests say same or changed."""

import importlib.util
import os
import re
import stat
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.proof import examples

from tensortap.metadata.redaction import (
    NOT_RECORDED,
    Redactor,
    count_secrets,
    digest_key,
    secret_spans,
    without_credentials,
)


def _corpus() -> Any:
    # Test folders are not packages, so a neighbour is loaded by its path.
    spec = importlib.util.spec_from_file_location(
        "secrets_corpus", Path(__file__).parent / "secrets_corpus.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


corpus = _corpus()
redactor = Redactor(lambda: b"a key")
relaxed = settings(deadline=None, max_examples=examples(50))
HIDDEN = re.compile(r"<redacted:[0-9a-f]{16}>")
words = st.text(string.ascii_letters + string.digits + " _-./:=@", max_size=60)
bodies = st.text(string.ascii_letters + string.digits, min_size=24, max_size=40)


@pytest.mark.parametrize(("name", "value"), corpus.SECRET_VARIABLES)
def test_a_secret_variable_is_hidden(name: str, value: str) -> None:
    assert HIDDEN.fullmatch(redactor.variables({name: value})[name])


def test_the_corpus_is_large_enough_to_speak_of_percent() -> None:
    assert len(corpus.SECRET_VARIABLES) >= 60
    assert len(corpus.HARMLESS_VARIABLES) >= 60


def test_few_harmless_variables_are_hidden() -> None:
    variables = dict(corpus.HARMLESS_VARIABLES)
    hidden = [name for name, value in redactor.variables(variables).items() if value != variables[name]]
    assert len(hidden) <= len(variables) * 0.1, hidden


@pytest.mark.parametrize(
    "name", ["TOKENIZERS_PARALLELISM", "MAX_TOKENS", "MONKEY", "KEYBOARD_LAYOUT", "PWD", "OLDPWD"]
)
def test_a_name_is_judged_by_whole_words(name: str) -> None:
    assert redactor.variables({name: "/some/value"}) == {name: "/some/value"}


@pytest.mark.parametrize(("command", "secret"), corpus.SECRET_COMMANDS)
def test_a_secret_argument_is_hidden_and_the_rest_stays(command: list[str], secret: str) -> None:
    hidden = redactor.arguments(command)
    assert secret not in " ".join(hidden)
    assert [HIDDEN.sub(secret, argument) for argument in hidden] == command


@pytest.mark.parametrize("command", corpus.HARMLESS_COMMANDS, ids=" ".join)
def test_a_harmless_command_stays(command: list[str]) -> None:
    assert redactor.arguments(command) == command


@pytest.mark.parametrize("line", corpus.HARMLESS_LINES)
def test_an_ordinary_line_of_code_holds_no_secret(line: str) -> None:
    assert secret_spans(line) == []


def test_secrets_of_a_long_text_are_counted() -> None:
    lines = [*corpus.HARMLESS_LINES, "password = 'hunter2'", "x", "GITHUB = 'ghp_" + corpus.BODY + "'"]
    assert count_secrets("\n".join(lines)) == 2


def test_only_the_span_is_hidden_in_a_text() -> None:
    shown = redactor.text("see postgres://me:s3cret@db/app for more")
    assert re.fullmatch(r"see postgres://me:<redacted:[0-9a-f]{16}>@db/app for more", shown)


def test_everything_is_kept_on_request() -> None:
    assert redactor.variables({"HF_TOKEN": "x1"}, "all") == {"HF_TOKEN": "x1"}


def test_only_names_are_kept_on_request() -> None:
    assert redactor.variables({"HOME": "/root"}, "names") == {"HOME": NOT_RECORDED}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("https://u:p@h/x", "https://h/x"),
        ("https://token@h/x", "https://h/x"),
        ("https://u:p@ss@h/x", "https://h/x"),
        ("ssh://git@h/x", "ssh://git@h/x"),
        ("ssh://git:p@h/x", "ssh://git@h/x"),
        ("git@h:x", "git@h:x"),
        ("/local/p@th", "/local/p@th"),
        ("file:///a/b", "file:///a/b"),
    ],
)
def test_an_address_loses_its_credentials(address: str, shown: str) -> None:
    assert without_credentials(address) == shown


@relaxed
@given(words, bodies, words)
def test_a_token_is_hidden_wherever_it_stands(before: str, body: str, after: str) -> None:
    token = "ghp_" + body
    assert token not in redactor.text(f"{before} {token} {after}")


@relaxed
@given(words, bodies, words)
def test_hiding_twice_is_hiding_once(before: str, body: str, after: str) -> None:
    once = redactor.text(f"{before} hf_{body} {after}")
    assert redactor.text(once) == once
    variables = redactor.variables({"A_TOKEN": before, "OTHER": after})
    assert redactor.variables(variables) == variables


@relaxed
@given(words)
def test_a_text_without_secrets_is_unchanged(text: str) -> None:
    if not secret_spans(text):
        assert redactor.text(text) == text


@relaxed
@given(words, words)
def test_digests_are_equal_exactly_when_the_secrets_are(one: str, other: str) -> None:
    assert (redactor.redact(one) == redactor.redact(other)) is (one == other)


def test_another_key_gives_another_digest() -> None:
    assert redactor.redact("x") != Redactor(lambda: b"another").redact("x")


def test_spans_of_a_hostile_text_are_found_in_time() -> None:
    for text in ("a." * 200_000, "a://b:" * 50_000, "sk-" * 100_000, "token=" * 50_000, "eyJ" * 100_000):
        assert isinstance(secret_spans(text), list)


def test_the_key_is_kept_for_the_user_alone(home: Path) -> None:
    key = digest_key()
    path = home / "state" / "tensortap" / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert digest_key() == key
    assert len(key) == 32


@pytest.mark.process
def test_two_processes_share_the_key(home: Path) -> None:
    code = "from tensortap.metadata.redaction import digest_key; print(digest_key().hex())"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert bytes.fromhex(printed) == digest_key()


@pytest.mark.parametrize("content", [None, b"", b"not hex", b"abcd"])
def test_a_key_that_cannot_be_kept_is_of_this_process(
    content: bytes | None, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = home / "state" / "tensortap"
    if content is None:
        monkeypatch.setenv("XDG_STATE_HOME", os.devnull)
    else:
        folder.mkdir(parents=True)
        (folder / "key").write_bytes(content)
    assert digest_key() == digest_key()
    assert len(digest_key()) == 32
