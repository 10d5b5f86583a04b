"""The command `tensortap`: says what it is; its sub-commands live in files of their own."""

import sys

import tensortap


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments in (["--version"], ["-V"]):
        print(f"tensortap {tensortap.__version__}")
        return 0
    if arguments in ([], ["--help"], ["-h"]):
        print("usage: tensortap --version\n\nThe tools are used from Python: import tensortap as tt")
        return 0
    print(f"tensortap: unknown arguments {' '.join(arguments)}; try tensortap --help", file=sys.stderr)
    return 2
