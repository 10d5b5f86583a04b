"""Which variables stand out: names, patterns, and parts of what they hold."""

from types import SimpleNamespace

import pytest

from tensortap.recording.snoop import WatchTargets, split_name


def inside(pattern, name, value):
    return dict(WatchTargets([pattern]).parts_within(name, value))


@pytest.mark.parametrize(
    ("pattern", "name", "is_one"),
    [
        ("video", "video", True),
        ("video", "videos", False),
        ("mask_*", "mask_2", True),
        ("self.cache", "self.cache", True),
        ("self.cache", "self", False),
        ("batch", "batch['mask']", True),
        ("batch.mask", "batch['mask']", True),
        ("batch.*.mask", "batch[0]['mask']", True),
        ("batch.*.mask", "batch[0]", False),
    ],
)
def test_a_name_is_a_target_or_a_part_of_one(pattern, name, is_one):
    assert (name in WatchTargets([pattern])) is is_one


def test_a_name_in_brackets_has_the_same_steps_as_one_with_dots():
    assert split_name("a['b.c'][0].d") == ("a", "b.c", "0", "d")


def test_a_target_is_looked_up_in_what_a_variable_holds():
    assert inside("x.shape", "x", SimpleNamespace(shape=(2,))) == {"x.shape": (2,)}
    assert inside("b.*.m", "b", [{"m": 1}, {"n": 2}, {"m": 3}]) == {"b[0]['m']": 1, "b[2]['m']": 3}
    assert inside("b.m", "b", {"m": 1}) == {"b['m']": 1}
    assert inside("b.m.shape", "b['m']", SimpleNamespace(shape=5)) == {"b['m'].shape": 5}


def test_a_property_that_raises_is_no_part():
    class Odd:
        @property
        def shape(self):
            raise RuntimeError("no")

    assert inside("x.shape", "x", Odd()) == {}


def test_what_never_came_is_told_with_the_nearest_name(caplog):
    targets = WatchTargets(["vdieo", "audio"])
    targets.warn_missing()
    assert caplog.messages == []  # the function was never called
    targets.calls = 1
    assert "video" not in targets
    assert "audio" in targets
    targets.warn_missing()
    assert caplog.messages == [
        "'vdieo' never appeared in the watched calls; did you mean 'video'? seen were video, audio"
    ]


def test_very_many_names_are_not_all_remembered():
    targets = WatchTargets(["rows"])
    for position in range(25_000):
        assert f"rows[{position}]" in targets
    assert len(targets._is_target) <= 10_000
