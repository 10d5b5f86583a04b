"""`tensortap jobs`: the programs of this user that listen for live sessions."""

import argparse
import json
from dataclasses import asdict

from tensortap.live.discovery import jobs


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tensortap jobs", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    given = parser.parse_args(arguments)
    found = jobs()
    if given.json:
        for job in found:
            print(json.dumps(asdict(job)))
        return 0
    print(found)
    return 0
