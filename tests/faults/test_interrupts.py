"""Ctrl-C may come between any two lines of ours: what was acknowledged is there, and nothing hangs."""

import pytest

pytestmark = pytest.mark.process

INTERRUPTED = """
import random, signal, sys, time
import numpy as np, tensortap as tt

def interrupt(*_): raise KeyboardInterrupt

run = tt.init(sys.argv[1], layout=sys.argv[2], background=sys.argv[3] == "True")
tt.dump(np.ones(10), "warm")
signal.signal(signal.SIGALRM, interrupt)
chance, interrupts, known = random.Random(1), 0, []
deadline = time.monotonic() + 30
number = 0
while interrupts < 300 and time.monotonic() < deadline:
    number += 1
    value = np.full(chance.choice([10, 1000, 20_000]), float(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.random() * 3e-4 + 2e-5)
        try:
            tt.dump(value, "v", update_metadata=False)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        known.append(float(number))
    except KeyboardInterrupt:
        interrupts += 1
tt.flush()
tt.close()
found = [stored.load() for stored in tt.Run(run).filter("v")]
assert all((value == value[0]).all() for value in found), "a value is torn"
firsts = [value[0] for value in found]
assert len(set(firsts)) == len(firsts), "a value is listed twice"
assert set(known) <= set(firsts), "an acknowledged value is missing"
print(interrupts)
"""


@pytest.mark.parametrize("background", [False, True], ids=["at once", "background"])
@pytest.mark.parametrize("layout", ["files", "pack"])
def test_an_interrupt_inside_dump_loses_and_tears_nothing(run_python, layout, background):
    done = run_python(INTERRUPTED, layout, str(background))
    assert int(done.stdout) >= 100
