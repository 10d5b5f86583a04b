"""A session in a process of its own, to be stopped and killed: python live_session.py JOB PATTERN."""

import sys

import tensortap as tt

with tt.attach(sys.argv[1]) as session:
    tapped = session.tap(sys.argv[2], timeout=10)
    for number, _ in enumerate(tapped):
        print(number, flush=True)
