"""`TENSORTAP=0` and `disable()`: every call returns at once, whatever it is given."""

import pytest

import tensortap as tt

CALLS = """
    import sys, threading
    from pathlib import Path
    import tensortap as tt

    tt.dump(lambda: 1)
    tt.dump(object(), 7, update_metadata=None)
    assert tt.init(sys.argv[1], background=True) is None
    tt.dump(open, "x")
    tt.update_metadata()
    tt.flush()
    tt.enable()
    tt.dump(iter([]), "y")
    tt.disable()
    tt.close()
    assert not Path(sys.argv[1]).exists()
    assert threading.active_count() == 1
    assert "torch" not in sys.modules
    assert tt.compare([1.0], [1.0])
    print("done")
"""


@pytest.mark.process
def test_zero_in_the_environment_turns_every_call_into_nothing(run_python, tmp_path):
    assert run_python(CALLS, TENSORTAP="0").stdout == "done\n"
    assert {entry.name for entry in tmp_path.iterdir()} == {"program.py"}


def test_a_disabled_dump_accepts_anything_even_before_init():
    tt.disable()
    tt.dump(lambda: 1, object())
    tt.dump(1)
    tt.enable()
    with pytest.raises(tt.TensortapError, match=r"dump\(\) needs a run"):
        tt.dump(1)


def test_what_is_dumped_between_disable_and_enable_is_not_kept(tmp_path):
    run = tt.init(tmp_path)
    tt.dump(1, "before")
    tt.disable()
    tt.dump(2, "between")
    tt.enable()
    tt.dump(3, "after")
    assert tt.Run(run).names == ["after", "before"]


def test_a_disabled_dumper_still_begins_a_run(tmp_path):
    tt.disable()
    run = tt.init(tmp_path)
    tt.dump(1, "x")
    assert (run / "runtime_info.json").exists()
    assert len(tt.Run(run)) == 0
