"""Recognise secrets in variables, commands and URLs, and replace them with a keyed digest."""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Literal, NamedTuple

EnvironmentPolicy = Literal["all", "redact", "names"]

NOT_RECORDED = "<not recorded>"

_SECRET_WORDS = frozenset((
    "TOKEN", "TOKENS", "SECRET", "SECRETS", "PASSWORD", "PASSWORDS", "PASSWD", "PASSPHRASE", "PASS", "PWD",
    "PW", "PASSCODE", "PIN", "OTP",
    "CREDENTIAL", "CREDENTIALS", "CREDS", "KEY", "KEYS", "APIKEY", "APIKEYS", "PAT", "AUTH", "AUTHORIZATION",
    "COOKIE", "COOKIES", "BEARER", "JWT", "SSHPASS", "DBPASS", "USERPASS", "PRIVATEKEY",
))  # fmt: skip
_SECRET_ENDINGS = (
    "PASSWORD",
    "PASSWD",
    "APIKEY",
    "SECRETKEY",
    "ACCESSKEY",
    "AUTHTOKEN",
    "ACCESSTOKEN",
    "PWD",
)
# Beside these, a word is about text or tables, not about access: MAX_TOKENS, EOS_TOKEN, SORT_KEY.
_ABOUT_TEXT = frozenset((
    "MAX", "MIN", "NUM", "N", "PAD", "EOS", "BOS", "UNK", "MASK", "CLS", "SEP", "SPECIAL", "STOP", "PER",
    "NEW", "IMAGE", "BUDGET", "TOTAL", "PROMPT",
))  # fmt: skip
_ABOUT_TABLES = frozenset((
    "PUBLIC", "SORT", "PRIMARY", "FOREIGN", "PARTITION", "CACHE", "HOT", "GROUP", "LOOKUP", "INDEX",
    "STEP", "MONITOR", "METRIC", "DICT", "STATE", "COLUMN", "FIELD", "QUERY", "VALUE", "ATTN", "ATTENTION",
))  # fmt: skip
_HARMLESS_BESIDE = {
    "TOKEN": _ABOUT_TEXT,
    "TOKENS": _ABOUT_TEXT,
    "KEY": _ABOUT_TABLES,
    "KEYS": _ABOUT_TABLES,
    "PIN": frozenset(("MEMORY", "MEM")),
}
# Beside these, even a number may be a secret: API_KEY=1234, but not KEY_DIM=64.
_ABOUT_ACCESS = frozenset(("API", "ACCESS", "AUTH", "SECRET", "PRIVATE", "BOT", "BEARER", "SESSION", "LOGIN"))
_COUNTABLE_WORDS = frozenset(("TOKEN", "TOKENS", "KEY", "KEYS"))
_NUMBER = re.compile(r"-?\d{1,7}(?:\.\d*)?(?:e-?\d+)?")
# A name that ends in one of these describes a secret, but its value is not one.
_HARMLESS_ENDINGS = frozenset((
    "FILE", "PATH", "DIR", "SOCK", "SOCKET", "HOST", "PORT", "TYPE", "METHOD", "MODE", "COUNT", "LIMIT",
    "LENGTH", "SIZE", "TTL", "ENABLED", "DISABLED", "TIMEOUT", "BACKEND", "PROVIDER", "PARALLELISM",
    "VERSION", "ENDPOINT", "URL", "URI", "REGION", "ALGORITHM", "EXPIRY", "IGNORE",
))  # fmt: skip
_HARMLESS_VALUES = frozenset(("", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"))
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

# Each pattern with hints, of which one must occur (in lower case) before it is worth trying.
_URL = r"\b[A-Za-z][A-Za-z0-9+.-]{0,20}://"
_START = r"(?<![A-Za-z0-9])"
_PATTERNS = tuple(
    (hints.split(), re.compile(pattern))
    for hints, pattern in (
        (
            "-----begin",
            r"(?P<secret>-----BEGIN [A-Z ]*PRIVATE KEY[A-Z ]*-----[\s\S]*?(?:-----END [A-Z ]*-----|\Z))",
        ),
        # Not a port: http://host:80/a@b.
        ("://", _URL + r"[^\s/:@'\"<>]{0,200}:(?!\d{1,5}(?:[/?#]|$))(?P<secret>[^\s'\"<>]{1,500})@"),
        ("://", _URL + r"(?P<secret>[A-Za-z0-9_-]{20,500})@"),
        (
            "eyj",
            r"(?<![A-Za-z0-9_-])(?P<secret>eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?)",
        ),
        ("akia asia abia acca", _START + r"(?P<secret>A(?:KIA|SIA|BIA|CCA)[0-9A-Z]{16})(?![A-Za-z0-9])"),
        ("ghp_ gho_ ghu_ ghs_ ghr_", _START + r"(?P<secret>gh[pousr]_[A-Za-z0-9]{16,})"),
        ("github_pat_", _START + r"(?P<secret>github_pat_[A-Za-z0-9_]{16,})"),
        ("glpat- gldt- glrt- glptt-", _START + r"(?P<secret>gl(?:pat|dt|rt|ptt)-[A-Za-z0-9_-]{20,})"),
        ("hf_ npm_ gsk_ r8_ rpa_", _START + r"(?P<secret>(?:hf|npm|gsk|r8|rpa)_[A-Za-z0-9]{16,})"),
        (
            "dckr_pat_ dop_v1_ lin_api_",
            _START + r"(?P<secret>(?:dckr_pat|dop_v1|lin_api)_[A-Za-z0-9_-]{16,})",
        ),
        ("sk- rk- pk-", _START + r"(?P<secret>[srp]k-(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,})"),
        ("nvapi- xapp- pypi- tskey-", _START + r"(?P<secret>(?:nvapi|xapp|pypi|tskey)-[A-Za-z0-9_-]{16,})"),
        ("sk_ rk_ whsec_", _START + r"(?P<secret>(?:sk|rk|whsec)_(?:live_|test_)?[A-Za-z0-9]{16,})"),
        ("xox", _START + r"(?P<secret>xox[abeoprs]-[A-Za-z0-9-]{10,})"),
        ("aiza", _START + r"(?P<secret>AIza[0-9A-Za-z_-]{30,})"),
        ("ya29. sg.", _START + r"(?P<secret>ya29\.[0-9A-Za-z_-]{16,}|SG\.[\w-]{16,}\.[\w-]{16,})"),
        ("hvs. hvb.", _START + r"(?P<secret>hv[sb]\.[A-Za-z0-9_-]{20,})"),
        (
            "tvly- pplx- xai- gocspx-",
            _START + r"(?P<secret>(?:tvly|pplx|xai|GOCSPX)-(?=[A-Za-z_-]{0,60}\d)[A-Za-z0-9_-]{16,})",
        ),
        (
            "sbp_ fw_ shpat_ shpss_ shpca_",
            _START + r"(?P<secret>(?:sbp|fw|shp(?:at|ss|ca))_[A-Za-z0-9]{20,})",
        ),
        ("dapi", _START + r"(?P<secret>dapi[0-9a-f]{32})"),
        ("akcp", _START + r"(?P<secret>AKCp[A-Za-z0-9]{30,})"),
        ("machine", r"\bmachine\s+\S{1,200}\s.{0,200}?\bpassword\s+(?!<)(?P<secret>\S+)"),
        ("age-secret-key-", r"(?P<secret>AGE-SECRET-KEY-1[0-9A-Z]{40,})"),
        (":aa", r"(?<!\d)(?P<secret>\d{8,10}:AA[A-Za-z0-9_-]{30,})"),
        ("api/webhooks/", r"api/webhooks/\d+/(?P<secret>[A-Za-z0-9_-]{16,})"),
        ("curl", r"\bcurl\b.{0,200}?\s(?:-u|--user)[ =][^\s:]{1,100}:(?P<secret>[^\s'\"]+)"),
        ("mysql mariadb", r"\b(?:mysql|mariadb)[\w-]*\s(?:.{0,200}?\s)?-p(?P<secret>[^\s'\"]+)"),
        (
            "--pass --token --api --secret",
            r"--(?:passw(?:or)?d|passphrase|token|api[-_]key|secret)[ =](?!<)(?P<secret>[^\s'\"-][^\s'\"]*)",
        ),
        ("hooks.slack.com", r"hooks\.slack\.com/services/(?P<secret>[A-Za-z0-9/]{16,})"),
        (
            "authorization",
            r"(?i)authorization[\"']?\s*[:=]\s*[\"']?(?:\w+\s+)?(?!<)(?P<secret>[\w+/.~=-]{6,})",
        ),
        ("bearer basic", r"(?i)\b(?:bearer|basic)\s+(?=\S{0,80}\d)(?!<)(?P<secret>[\w+/.~=-]{16,})"),
        (
            "auth passw secret token key",
            r"(?i)\"(?:auth|passw(?:or)?d|secret|token|api_?key|identitytoken)\"\s*:\s*\"(?!<)(?P<secret>[^\"]+)\"",
        ),
    )
)
_PASSWORD_HINTS = ("passw", "passphrase", "pwd", "secret")
_PASSWORD_PAIR = re.compile(
    r"(?i)(?:passw(?:or)?d|passphrase|(?<![a-z])(?:pwd|secret))[\"']?\s*[=:]\s*[\"']?"
    r"(?P<secret>[^\s\"';&,<>${}()\[\]]{4,})"
)
_KEY_HINTS = ("key", "token", "secret", "password", "sig")
_KEY_PAIR = re.compile(
    r"(?i)(?:key|token|secret|password|signature|sig)[\"']?\s*[=:]\s*[\"']?"
    r"(?P<secret>[A-Za-z0-9+/_.=%-]{16,})"
)
_HINTS = {hint for hints, _ in _PATTERNS for hint in hints} | {*_PASSWORD_HINTS, *_KEY_HINTS}
_REDACTED = re.compile(r"<redacted:[0-9a-f]{16}>")
_USERINFO = re.compile(r"(?P<scheme>^[A-Za-z][A-Za-z0-9+.-]*://)(?P<userinfo>\S*)@")


class Redactor:
    """Replace secrets with `<redacted:DIGEST>`: equal secrets, equal digests, under one key."""

    def __init__(self, find_key: Callable[[], bytes]) -> None:
        self._find_key = find_key

    @cached_property
    def _key(self) -> bytes:
        # Created for the first secret, so that a program without secrets leaves no key file.
        return self._find_key()

    def redact(self, secret: str) -> str:
        if _REDACTED.fullmatch(secret):
            return secret
        message = secret.encode("utf-8", "surrogatepass")
        return f"<redacted:{hmac.new(self._key, message, hashlib.blake2b).hexdigest()[:16]}>"

    def text(self, text: str) -> str:
        """The string with every secret span redacted."""
        parts, end = [], 0
        for start, stop in secret_spans(text):
            parts += [text[end:start], self.redact(text[start:stop])]
            end = stop
        return "".join(parts) + text[end:]

    def variables(self, variables: Mapping[str, str], policy: EnvironmentPolicy = "redact") -> dict[str, str]:
        """The variables, sorted; the value of one that looks secret is redacted entirely."""
        if policy == "all":
            return dict(sorted(variables.items()))
        if policy == "names":
            return dict.fromkeys(sorted(variables), NOT_RECORDED)
        return {name: self._redact_variable(name, value) for name, value in sorted(variables.items())}

    def arguments(self, arguments: Iterable[str]) -> list[str]:
        """A command line with the values of secret options redacted: `--token=V`, `--api-key V`, `key=V`."""
        redacted: list[str] = []
        option, words = "", list(map(str, arguments))
        for argument, span in zip(words, secret_option_spans(words), strict=True):
            redacted.append(
                self._redact_argument(option, argument) if span is None else self._redact_span(argument, span)
            )
            option = argument if argument.startswith("-") and "=" not in argument else ""
        return redacted

    def _redact_variable(self, name: str, value: str) -> str:
        return self.redact(value) if is_secret(name, value) or secret_spans(value) else value

    def _redact_span(self, argument: str, span: tuple[int, int]) -> str:
        start, stop = span
        return argument[:start] + self.redact(argument[start:stop]) + argument[stop:]

    def _redact_argument(self, option: str, argument: str) -> str:
        is_value = bool(option) and not argument.startswith("--")
        if is_value and is_secret(option, argument):
            return self.redact(argument)
        name, equals, value = argument.partition("=")
        if equals and re.fullmatch(r"[-+~]*[\w.@/-]+", name) and is_secret(name, value):
            return f"{name}={self.redact(value)}"
        return self.text(argument)


def is_secret(name: str, value: str) -> bool:
    """Whether a variable or option holds a secret, by whole words of its name."""
    if value.lower() in _HARMLESS_VALUES:
        return False
    words = [word.upper() for word in _NAME_WORD.findall(name)]
    if not words or words in (["PWD"], ["OLDPWD"]) or words[-1] in _HARMLESS_ENDINGS:
        return False
    is_number = _NUMBER.fullmatch(value) is not None and not _ABOUT_ACCESS & set(words)
    return any(
        _is_secret_word(word, words) and not (is_number and word in _COUNTABLE_WORDS) for word in words
    )


def secret_spans(text: str) -> list[tuple[int, int]]:
    """(start, end) of each secret in a string, sorted and without overlaps."""
    if len(text) < 6:
        return []
    lowered = text.lower()
    patterns = [pattern for hints, pattern in _PATTERNS if _contains_any(hints, lowered)]
    spans = [match.span("secret") for pattern in patterns for match in pattern.finditer(text)]
    if _contains_any(_PASSWORD_HINTS, lowered):
        spans += [
            match.span("secret") for match in _PASSWORD_PAIR.finditer(text) if _is_literal(match["secret"])
        ]
    if _contains_any(_KEY_HINTS, lowered):
        spans += [match.span("secret") for match in _KEY_PAIR.finditer(text) if looks_random(match["secret"])]
    return _merge_spans(span for span in spans if not _REDACTED.search(text[slice(*span)]))


def count_secrets(text: str) -> int:
    """The number of secrets in a long string; only lines that contain a hint are searched."""
    lowered = text.lower()
    present = [hint for hint in _HINTS if hint in lowered]
    lines = zip(text.split("\n"), lowered.split("\n"), strict=True)
    return sum(len(secret_spans(line)) for line, low in lines if _contains_any(present, low))


def looks_random(text: str) -> bool:
    """Whether the entropy is too high for words: digits and letters, over 3.2 bits per character."""
    if not any(character.isdigit() for character in text) or not any(
        character.isalpha() for character in text
    ):
        return False
    counts = Counter(text).values()
    return -sum(count / len(text) * math.log2(count / len(text)) for count in counts) > 3.2


def without_credentials(url: str) -> str:
    """A URL without user and password: `https://u:p@host/x` becomes `https://host/x`.

    The user of an ssh URL (`ssh://git@host`) is part of the address and stays.
    """
    match = _USERINFO.match(url)
    if match is None:
        return url
    user = match["userinfo"].partition(":")[0] if match["scheme"].startswith(("ssh", "git+ssh")) else ""
    return match["scheme"] + (f"{user}@" if user else "") + url[match.end() :]


def _contains_any(hints: Iterable[str], text: str) -> bool:
    return any(hint in text for hint in hints)


def _is_secret_word(word: str, words: list[str]) -> bool:
    if word not in _SECRET_WORDS and not word.endswith(_SECRET_ENDINGS):
        return False
    return not _HARMLESS_BESIDE.get(word, frozenset()) & set(words)


def _is_literal(value: str) -> bool:
    # `password=os.environ...` and `password: str` in code are not passwords.
    return not re.match(
        r"(?:os\.|self\.|args\.|config\.|getpass|None\b|True\b|False\b|str\b|\*+$|\.\.\.)", value
    )


def _merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return merged


class SecretOption(NamedTuple):
    """How a program takes a secret: option names, a separator before it, whether also as the next word."""

    names: tuple[str, ...]
    separator: str = ""
    is_separate_word: bool = True


_CURL = SecretOption(("-u", "--user", "-U", "--proxy-user"), ":")
_MYSQL = SecretOption(("-p",), is_separate_word=False)  # a separate word would be the name of a database
_SECRET_OPTIONS = {
    "curl": _CURL,
    **dict.fromkeys(("mysql", "mysqldump", "mysqladmin", "mysqlimport", "mariadb", "mariadb-dump"), _MYSQL),
    "sshpass": SecretOption(("-p",)),
    "redis-cli": SecretOption(("-a",)),
}


def secret_option_spans(words: Iterable[str]) -> Iterator[tuple[int, int] | None]:
    """For each word of a command, the (start, end) of a secret in it, or None."""
    option, previous = None, ""
    for word in words:
        yield _secret_span(option, previous, word) if option is not None else None
        option = _SECRET_OPTIONS.get(os.path.basename(word), option)
        previous = word


def _secret_span(option: SecretOption, previous: str, word: str) -> tuple[int, int] | None:
    start = _value_start(option, previous, word)
    if start is None:
        return None
    if option.separator:
        start = word.find(option.separator, start) + 1 or len(word)
    return (start, len(word)) if start < len(word) else None


def _value_start(option: SecretOption, previous: str, word: str) -> int | None:
    """Where the value of the option starts in the word; None if it has none."""
    if option.is_separate_word and previous in option.names:
        return 0
    for name in option.names:
        is_long = name.startswith("--")
        if word.startswith(f"{name}=" if is_long else name):
            return len(name) + is_long
    return None


_KEY_LENGTH = 32


def digest_key() -> bytes:
    """The user's key, created on first use; a key of this process if none can be stored."""
    path = _key_path()
    try:
        return _read_key(path) or _create_key(path) or _process_key()
    except (OSError, ValueError, RuntimeError):
        return _process_key()


def _key_path() -> Path:
    state = os.environ.get("XDG_STATE_HOME")
    base = Path(state) if state else Path("~/.local/state").expanduser()
    return base / "tensortap" / "key"


def _read_key(path: Path) -> bytes:
    try:
        key = bytes.fromhex(path.read_text(encoding="utf-8").strip())
    except FileNotFoundError:
        return b""
    return key if len(key) == _KEY_LENGTH else _process_key()


def _create_key(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = path.with_name(f"key.{os.getpid()}.{secrets.token_hex(4)}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(secrets.token_hex(_KEY_LENGTH) + "\n")
        _link_if_absent(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return _read_key(path)


def _link_if_absent(temporary: Path, path: Path) -> None:
    # A link, unlike a rename, never replaces a key that another process has just created.
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass


@cache
def _process_key() -> bytes:
    return secrets.token_bytes(_KEY_LENGTH)
