"""A session in a process of its own: serves, and answers each line on its standard input."""

import json
import sys

import tensortap as tt
from tensortap.compat import thing


def main() -> None:
    port, *options = sys.argv[1:]
    tt.serve(port=int(port), **json.loads(options[0] if options else "{}"))
    print(thing._session.listener.port, flush=True)
    for name in map(str.strip, sys.stdin):
        print(json.dumps([int(value) for value in tt.get_all(name)] if name in _names() else []), flush=True)


def _names() -> list[str]:
    return thing._session.history.names


if __name__ == "__main__":
    main()
