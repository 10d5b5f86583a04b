"""The command `tensortap`: says what it is; its sub-commands live in files of their own."""

import sys
from importlib import import_module

import tensortap

# Each has a file of its own with `main(arguments) -> int`, which is imported when it is called.
_COMMANDS = {
    "compare": "two runs or files: where they part, and whether that is more than noise",
    "serve": "receive what catch() sends: show it, and record it with --to runs/",
    "jobs": "list the programs that listen for live sessions",
    "attach": "watch a running program: rate, drops, lag and overhead",
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["--version"], ["-V"]):
        print(f"tensortap {tensortap.__version__}")
        return 0
    if arguments in ([], ["--help"], ["-h"]):
        print(_usage())
        return 0
    if arguments[0] in _COMMANDS:
        return int(import_module(f"tensortap.cli.{arguments[0]}").main(arguments[1:]))
    print(f"tensortap: unknown arguments {' '.join(arguments)}; try tensortap --help", file=sys.stderr)
    return 2


def _usage() -> str:
    commands = "\n".join(f"  {name:<8} {what}" for name, what in _COMMANDS.items())
    return (
        f"usage: tensortap --version\n       tensortap COMMAND ...\n\n{commands}\n\n"
        "The tools are used from Python: import tensortap as tt"
    )
