"""Secrets that only the program they are given to makes known: `curl -u me:SECRET`, `mysql -pSECRET`."""

import os
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Option(NamedTuple):
    """How a program is given a secret: by which words, behind which mark, also in the next word or not."""

    names: tuple[str, ...]
    mark: str = ""
    is_apart: bool = True


_CURL = Option(("-u", "--user", "-U", "--proxy-user"), ":")
_MYSQL = Option(("-p",), is_apart=False)  # a word after it is the name of a database
_OPTIONS = {
    "curl": _CURL,
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"), _MYSQL),
    "sshpass": Option(("-p",)),
    "redis-cli": Option(("-a",)),
}


def secret_parts(words: Iterable[str]) -> Iterator[tuple[int, int] | None]:
    """For each word of a command, where a secret begins and ends in it; None where there is none."""
    option, before = None, ""
    for word in words:
        yield _part(option, before, word) if option is not None else None
        option = _OPTIONS.get(os.path.basename(word), option)
        before = word


def _part(option: Option, before: str, word: str) -> tuple[int, int] | None:
    start = _start(option, before, word)
    if start is None:
        return None
    if option.mark:
        start = word.find(option.mark, start) + 1 or len(word)
    return (start, len(word)) if start < len(word) else None


def _start(option: Option, before: str, word: str) -> int | None:
    """Where the value of such an option begins in the word."""
    if option.is_apart and before in option.names:
        return 0
    for name in option.names:
        is_long = name.startswith("--")
        if word.startswith(f"{name}=" if is_long else name):
            return len(name) + is_long
    return None
