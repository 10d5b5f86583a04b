"""Every environment variable tensortap reads, in one table."""

import os

DEFAULTS = {
    "TENSORTAP": "1",  # 0 turns every call into a no-op
    "TENSORTAP_STRICT": "0",  # 1 raises failures that are otherwise logged
    "TENSORTAP_TZ": "Asia/Shanghai",  # time zone of run folders and timestamps
    "TENSORTAP_LANG": "",  # language of a tree's labels: en or zh; else what the locale says
    "TENSORTAP_LIVE": "0",  # 1 opens the job to live sessions at the first call
    "TENSORTAP_LIVE_MB": "256",  # megabytes of snapshots that may wait for live sessions
    "TENSORTAP_RUN": "",  # what `tensortap run` asks of the programs it starts; not set by hand
    "TENSORTAP_PARENT": "",  # the run that this program repeats; its own runs name it
    "TENSORTAP_RUN_LIST": "",  # a file that gets a line for each run this program begins
    "XDG_RUNTIME_DIR": "",  # where the sockets of live jobs lie; else /tmp/tensortap-<uid>
    "LTAG": "NOTAG",  # the folder under ./logs of the files that h4logger() makes
    "THING_SERVER": "127.0.0.1",  # where catch() sends to: host or host:port
    "THING_PORT": "2875",  # the port of serve(), and of catch() where the server names none
    "THING_TOKEN": "",  # the secret that both sides know; else the file ~/.config/tensortap/token
    "THING_FINGERPRINT": "",  # of the certificate that a server behind tls:// has to show
    "NO_COLOR": "",  # anything: trees are not coloured on a terminal
}


def setting(name: str) -> str:
    """The value in the environment, else its default."""
    return os.environ.get(name) or DEFAULTS[name]


def is_on() -> bool:
    return setting("TENSORTAP") != "0"


def is_strict() -> bool:
    return setting("TENSORTAP_STRICT") != "0"


def is_chinese() -> bool:
    """Whether labels are Chinese: by the setting, else by the locale."""
    locale = (os.environ.get(name) for name in ("LC_ALL", "LC_MESSAGES", "LANG"))
    return (setting("TENSORTAP_LANG") or next(filter(None, locale), "")).lower().startswith("zh")
