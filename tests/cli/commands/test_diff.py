"""`tensortap diff` tells how two runs were made, and what of it differs."""

import tarfile

import numpy as np
import pytest

PATCH = b"""diff --git a/model.py b/model.py
index 1..2 100644
--- a/model.py
+++ b/model.py
@@ -1,3 +1,3 @@
 import torch
-scale = 1.0
+scale = 2.0
 bias = 0
"""


@pytest.fixture
def pair(make_run, tell):
    def make(a=None, b=None):
        return tell(make_run("a"), **(a or {})), tell(make_run("b"), **(b or {}))

    return make


def test_runs_made_alike_are_the_same(pair, tensortap):
    said = tensortap("diff", *pair())
    assert (said.code, said.err) == (0, "")
    assert "code           the same (3 facts)" in said.out
    assert "environment    the same (3 facts)" in said.out
    assert "randomness     not recorded on both sides" in said.out


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"commit": "b" * 40}, f"project commit: {'a' * 40} -> {'b' * 40}"),
        ({"packages": {"torch": "2.10"}}, "torch: 2.9 -> 2.10"),
        ({"packages": {"torch": "2.9", "einops": "0.8"}}, "einops: - -> 0.8"),
        ({"command": "train.py --lr 2"}, "command: train.py -> train.py --lr 2"),
        ({"variables": {"OMP_NUM_THREADS": "8", "HOME": "/home/me"}}, "OMP_NUM_THREADS: 1 -> 8"),
    ],
)
def test_what_differs_is_told_and_the_code_is_one(pair, tensortap, other, told):
    said = tensortap("diff", *pair(b=other))
    assert said.code == 1
    assert f"  {told}\n" in said.out
    assert "1 difference" in said.out


def test_the_lines_that_were_not_committed_are_shown(pair, tensortap):
    a, b = pair({"patch": PATCH}, {"patch": PATCH.replace(b"2.0", b"3.0")})
    said = tensortap("diff", a, b)
    assert said.code == 1
    assert "  model.py +1 -1, in both, not the same\n" in said.out
    assert "    -+scale = 2.0\n" in said.out
    assert "    ++scale = 3.0\n" in said.out
    assert "scale" not in tensortap("diff", a, b, "--no-hunks").out


def test_a_file_that_only_one_changed_is_shown_with_its_hunk(pair, tensortap):
    said = tensortap("diff", *pair(b={"patch": PATCH}))
    assert "  model.py +1 -1, only in B\n" in said.out
    assert "    +scale = 2.0\n" in said.out


def test_many_changed_lines_are_left_out_until_asked_for(pair, tensortap):
    body = b"".join(b"+line %d\n" % number for number in range(300))
    a, b = pair(b={"patch": PATCH.replace(b"+scale = 2.0\n", body)})
    said = tensortap("diff", a, b)
    assert "line 7" not in said.out
    assert "--hunks shows them" in said.err
    assert "    +line 7\n" in tensortap("diff", a, b, "--hunks").out


def test_a_binary_change_is_one_line(pair, tensortap):
    patch = b"diff --git a/x.bin b/x.bin\nindex 1..2\nGIT binary patch\nliteral 4\nLcmZ?wbhEHb\n\n"
    said = tensortap("diff", *pair(b={"patch": patch}))
    assert "  x.bin, only in B\n    binary, " in said.out


def test_a_secret_is_told_as_changed_and_never_shown(pair, tensortap):
    a, b = ({"variables": {"API_KEY": f"<redacted:{digest}>", "X": "1"}} for digest in ("1234", "5678"))
    said = tensortap("diff", *pair(a, b))
    assert said.code == 1
    assert "API_KEY: changed (the values are not recorded)" in said.out
    assert "1234" not in said.out


def test_noise_of_the_shell_is_no_difference(pair, tensortap):
    a, b = ({"variables": {"X": "1", "SHLVL": level, "PWD": level, "_": level}} for level in "12")
    assert tensortap("diff", *pair(a, b)).code == 0


def test_json_has_both_sides_of_each_difference(pair, tensortap):
    told = tensortap("diff", *pair(b={"packages": {"torch": "2.10"}}), "--json").json
    assert (told["schema"], told["exit_code"]) == ("tensortap.diff/1", 1)
    topics = {topic["name"]: topic for topic in told["topics"]}
    assert list(topics) == ["code", "packages", "environment", "configuration", "hardware", "randomness"]
    assert topics["packages"]["facts"] == [{"key": "torch", "a": "2.9", "b": "2.10"}]
    assert topics["code"]["state"] == "same"


def test_runs_that_tell_nothing_are_missing_data(make_run, tensortap):
    said = tensortap("diff", make_run("a"), make_run("b", x=[np.ones(2)]))
    assert said.code == 3
    assert "does not tell how it was made" in said.err


def test_damaged_facts_and_no_run_are_missing_data(pair, tensortap, tmp_path):
    a, b = pair()
    (a / "packages.json").write_text("{")
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert "packages.json is not whole" in said.err
    assert tensortap("diff", b, tmp_path / "nowhere").code == 3


@pytest.mark.parametrize("content", ["{", "", "[]", "null", "\udcff"])
def test_facts_that_cannot_be_read_are_told_beside_the_differences_of_the_others(pair, tensortap, content):
    a, b = pair(b={"command": "train.py --lr 2"})
    (a / "packages.json").write_text(content, errors="surrogateescape")
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert f"tensortap diff: {a / 'packages.json'} is not whole (" in said.err
    lines = {line.split()[0]: line for line in said.out.splitlines()}
    assert lines["packages"].endswith("cannot be read")
    assert lines["command:"].endswith("train.py -> train.py --lr 2")
    told = tensortap("diff", a, b, "--json").json
    assert told["exit_code"] == 3
    assert len(told["problems"]) == 1
    assert {topic["name"]: topic["state"] for topic in told["topics"]}["packages"] == "cannot be read"


def test_what_one_side_has_lost_is_no_difference(pair, tensortap):
    a, b = pair()
    for run in (a, b):
        (run / ".tensortap" / "code").mkdir()
    with tarfile.open(a / ".tensortap" / "code" / "sources.tar", "w") as tar:
        tar.add(a / "packages.json", "train.py")
    (b / ".tensortap" / "code" / "sources.tar").write_bytes(b"no tar")
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert "sources.tar is not whole" in said.err
    assert "train.py" not in said.out
    assert "; others cannot be read)" in said.out


def test_a_damaged_description_of_the_model_costs_the_other_topics_nothing(pair, tensortap):
    a, b = pair()
    (b / ".tensortap" / "model.json").write_text("{")
    said = tensortap("diff", a, b)
    assert said.code == 3
    assert "configuration  the same (1 fact; others cannot be read)\n" in said.out
    assert "code           the same (3 facts)\n" in said.out
    assert "model.json is not whole" in said.err
