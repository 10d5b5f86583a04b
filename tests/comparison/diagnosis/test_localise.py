"""Which difference is the origin, and which are inherited: by hand-made records of a small dataflow."""

import copy
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.proof import examples

import tensortap as tt
from tensortap.comparison.noise.floor import Floor
from tensortap.comparison.values.noise import Noise
from tensortap.core.record import Record, Site

# A block of two parts, called by a model: what is computed, in its order.
FLOW = [
    ("in.x", "input"),
    ("block.in.x", "input"),
    ("block.first.in.input", "input"),
    ("block.first", "output"),
    ("block.second.in.input", "input"),
    ("block.second", "output"),
    ("block", "output"),
    ("head.in.input", "input"),
    ("head", "output"),
    ("out", "output"),
]
BACK = [
    ("out.grad", "grad_output"),
    ("head.grad", "grad_output"),
    ("head.in.input.grad", "grad_input"),
    ("block.grad", "grad_output"),
    ("block.second.grad", "grad_output"),
    ("block.second.in.input.grad", "grad_input"),
    ("block.first.grad", "grad_output"),
    ("block.first.in.input.grad", "grad_input"),
    ("block.first.weight.grad", "grad_param"),
]


def values(flow, seed=0):
    random = torch.Generator().manual_seed(seed)
    return {name: torch.randn(8, 8, generator=random, dtype=torch.float64) for name, _ in flow}


def records(flow, bad=(), size=1e-3, step=0, rank=0, scale=1.0, prefix="", sizes=None, sites=None):
    """One record for each place; those that are bad differ by `size`, or by what `sizes` says."""
    found = []
    for order, (name, kind) in enumerate(flow):
        value = values(flow)[name] * scale
        if name in bad:
            value = value * (1 + (sizes or {}).get(name, size))
        called = prefix + name if prefix and name.split(".")[0] not in ("in", "out") else name
        site = (sites or {}).get(name)
        found.append(Record(called, value, kind, step, rank, 0, order, site=site))
    return found


def floor(names, limit=4.0):
    noise = {
        (name, step, 0, rank): Noise(1e-7, 1e-7, 1e-7, "ulp")
        for name in names
        for step in (0, 1)
        for rank in (0, 1)
    }
    return Floor(noise, limit, ("ulp",))


def compared(a, b, **options):
    names = {record.name for side in (a, b) for record in side}
    return tt.compare_runs(a, b, **{"floor": floor(names), **options})


def after(name, flow=FLOW):
    """Everything from this place on."""
    names = [one for one, _ in flow]
    return names[names.index(name) :]


def verdicts(found):
    return {one.name: one.verdict for one in found.table}


@pytest.mark.parametrize(
    ("first_bad", "module", "kind"),
    [
        ("block.first", "block.first", "output"),
        ("block.second", "block.second", "output"),
        ("block.second.in.input", "block", "own code"),
        ("block.first.in.input", "block", "own code"),
        ("block", "block", "output"),
        ("head.in.input", "", "own code"),
        ("head", "head", "output"),
        ("out", "", "output"),
        ("in.x", "in.x", "data"),
    ],
)
def test_the_first_that_differs_while_what_it_was_made_of_does_not_is_the_origin(first_bad, module, kind):
    found = compared(records(FLOW), records(FLOW, after(first_bad)))
    assert (found.first.name, found.first.kind, found.first.seen_at) == (module, kind, first_bad)
    assert len(found.origins) == 1
    later = after(first_bad)[1:]
    assert {verdicts(found)[name] for name in later} <= {"drift"}
    assert found.exit_code == 1


def test_nothing_beyond_noise_has_no_origin():
    found = compared(records(FLOW), records(FLOW, after("block.first"), size=3e-7))
    assert found.first is None
    assert found.counts == {"identical": 3, "within noise": 7}
    assert found.exit_code == 0


def test_the_ratio_is_a_multiple_of_the_noise():
    found = compared(records(FLOW), records(FLOW, after("head"), size=1e-4))
    assert found.first.ratio == pytest.approx(1000, rel=0.01)


def test_what_comes_in_wrong_and_goes_out_right_is_healed():
    found = compared(records(FLOW), records(FLOW, ["block.first", "block.second.in.input"]))
    assert found.first.name == "block.first"
    assert verdicts(found)["block.second"] == "healed"
    assert "heals what came in with block.second.in.input" in found.explain("block.second")


def test_what_a_model_gives_does_not_come_from_what_else_it_gives():
    flow = [*FLOW[:-1], ("out['x']", "output"), ("out['y']", "output"), ("out['z']", "output")]
    found = compared(records(flow), records(flow, ["out['x']", "out['z']"]))
    assert verdicts(found)["out['y']"] == "identical"
    assert [verdicts(found)[f"out['{name}']"] for name in "xz"] == ["origin", "origin"]
    assert [(one.name, one.seen_at) for one in found.origins] == [("", "out['x']")]


def test_a_model_that_is_called_again_with_what_it_gave_inherits():
    def called(bad, bad_again):
        second = (
            Record(one.name, one.value, one.kind, call=1, order=100 + one.order)
            for one in records(FLOW, bad_again)
        )
        return [*records(FLOW, bad), *second]

    found = compared(called([], []), called(after("head"), after("in.x")))
    assert [one.name for one in found.origins] == ["head"]
    found = compared(called([], []), called([], after("in.x")))
    assert [(one.name, one.kind, one.call) for one in found.origins] == [("in.x", "data", 1)]


def test_what_is_computed_from_the_result_of_a_model_inherits():
    flow = [*FLOW, ("loss", "value")]
    found = compared(records(flow), records(flow, after("head", flow)))
    assert [one.name for one in found.origins] == ["head"]
    assert verdicts(found)["loss"] == "drift"


def test_a_second_cause_shows_where_the_first_cannot_explain_it():
    sizes = dict.fromkeys(after("block.first"), 1e-6) | dict.fromkeys(after("head"), 1e-2)
    found = compared(records(FLOW), records(FLOW, after("block.first"), sizes=sizes))
    assert [one.name for one in found.origins] == ["block.first", "head"]


def test_two_causes_with_clean_values_between_are_both_found():
    found = compared(records(FLOW), records(FLOW, ["block.first", *after("head")]))
    assert [one.name for one in found.origins] == ["block.first", "head"]


def test_without_inputs_the_module_is_named_with_a_doubt():
    flow = [(name, kind) for name, kind in FLOW if kind == "output"]
    found = compared(records(flow), records(flow, after("block.second", flow)))
    assert found.first.name == "block.second"
    assert "'**.in'" in found.first.note
    assert len(found.origins) == 1


def test_a_local_names_the_variable_and_its_line():
    flow = [*FLOW[:5], ("block.second.forward.scores", "local"), *FLOW[5:]]
    site = Site("forward", "model.py", 17)
    sites = {"block.second.forward.scores": site}
    bad = after("block.second.forward.scores", flow)
    found = compared(records(flow, sites=sites), records(flow, bad, sites=sites))
    assert (found.first.name, found.first.kind) == ("block.second", "local")
    assert found.first.seen_at == "block.second.forward.scores"
    assert found.first.site == "model.py:17"


class Named(torch.nn.Module):
    """Its parts, and what it computes, are called as places of a model are."""

    def __init__(self, bug=""):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.inner = torch.nn.ModuleDict({"out": torch.nn.Linear(8, 8)})
            self.out = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
        self.bug = bug

    def times(self, bug):
        return 1.01 if bug == self.bug else 1.0

    def forward(self, out):
        given = self.inner["out"](out) * self.times("own code")
        result = self.out(given) * self.times("end")
        return {"result": result}


@pytest.mark.parametrize("patterns", [("**",), ("**", "**.in")], ids=["outputs", "inputs too"])
@pytest.mark.parametrize("bug", ["inner.out", "out.0", "out.1", "own code", "end", "data"])
def test_a_module_that_is_called_out_is_named(bug, patterns):
    sides = []
    for model in (Named(), Named(bug)):
        if "out" in model.bug:
            model.get_submodule(model.bug).weight.data *= 1.01
        x = torch.ones(4, 8) * (1.01 if model.bug == "data" else 1.0)
        with tt.capture(model, *patterns) as cap, torch.no_grad():
            model(x)
        sides.append(cap)
    found = tt.compare_runs(*sides)
    named = {"own code": "" if "**.in" in patterns else "out.0", "end": ""}
    named["data"] = "in.out" if "**.in" in patterns else "inner.out"
    (origin,) = found.origins
    assert origin.name == named.get(bug, bug)
    assert origin.class_name == {"": "Named", "in.out": ""}.get(origin.name, "Linear")


def test_a_replay_names_a_module_that_is_called_out_too():
    model = Named()
    model.get_submodule("out.1").weight.data *= 1.01
    found = tt.align(Named(), model, (torch.ones(4, 8),))
    assert [(one.name, one.class_name) for one in found.origins] == [("out.1", "Linear")]


def test_a_weight_comes_before_what_it_does():
    flow = [*FLOW, ("block.first.weight", "param")]  # captured at the end of the call
    found = compared(records(flow), records(flow, [*after("block.first"), "block.first.weight"]))
    assert (found.first.name, found.first.kind, found.first.seen_at) == (
        "block.first",
        "param",
        "block.first.weight",
    )
    assert len(found.origins) == 1
    assert "its weights differ: block.first.weight" in found.first.note


def test_a_nan_is_an_origin_where_its_inputs_are_finite():
    a, b = records(FLOW), records(FLOW)
    for place, record in enumerate(b):
        if record.name in after("block.second"):
            record.value[0, 0] = math.nan
            b[place] = record
    found = compared(a, b)
    assert (found.first.name, found.first.verdict) == ("block.second", "nonfinite")
    assert len(found.origins) == 1
    assert verdicts(found)["out"] == "nonfinite"


def test_plain_values_by_name_part_where_they_first_differ():
    a = {name: torch.full((4,), float(place + 1)) for place, name in enumerate(["one", "two", "three"])}
    b = {**a, "two": a["two"] * 1.01, "three": a["three"] * 1.01}
    found = tt.compare_runs(a, b)
    assert (found.first.name, found.first.kind) == ("two", "value")
    assert verdicts(found) == {"one": "identical", "two": "origin", "three": "drift"}


@pytest.mark.parametrize(
    ("first_bad", "module"),
    [
        ("head.in.input.grad", "head"),
        ("block.second.in.input.grad", "block.second"),
        ("block.first.in.input.grad", "block.first"),
        ("block.first.weight.grad", "block.first"),
        ("block.second.grad", "block"),
    ],
)
def test_a_wrong_gradient_names_the_module_whose_backward_made_it(first_bad, module):
    flow = [*FLOW, *BACK]
    found = compared(records(flow), records(flow, after(first_bad, flow)))
    assert (found.first.name, found.first.kind) == (module, "backward")
    assert len(found.origins) == 1


def test_a_wrong_gradient_of_the_input_of_a_model_names_the_module_that_took_it():
    flow = [*FLOW, *BACK, ("block.in.x.grad", "grad_input"), ("in.x.grad", "grad_input")]
    wrong = ["block.first.in.input.grad", "block.in.x.grad", "in.x.grad"]

    def sides():
        for bad in ((), wrong):
            found = {record.name: record for record in records(flow, bad)}
            one = found["block.first.in.input.grad"].value  # the same tensor, which hooks see in any order
            yield [
                *(record for name, record in found.items() if name not in wrong),
                *(found[name].with_value(one) for name in reversed(wrong)),
            ]

    (origin,) = compared(*sides()).origins
    assert (origin.name, origin.kind, origin.note) == ("block.first", "backward", "")


def test_what_would_tell_more_is_not_asked_for_where_it_was_captured():
    flow = [*FLOW, *BACK]
    found = compared(records(flow), records(flow, after("block.second.grad", flow)))
    assert (found.first.name, found.first.note) == ("block", "")
    flow = [one for one in flow if not one[0].endswith("in.input.grad")]
    found = compared(records(flow), records(flow, after("block.second.grad", flow)))
    assert "'**.in.grad' would tell" in found.first.note


def test_gradients_of_a_wrong_forward_are_inherited():
    flow = [*FLOW, *BACK]
    found = compared(records(flow), records(flow, after("head", flow)))
    assert [one.name for one in found.origins] == ["head"]
    assert verdicts(found)["block.first.grad"] == "drift"


def test_later_steps_inherit_from_the_first_that_went_wrong():
    a = [*records(FLOW), *records(FLOW, step=1)]
    b = [*records(FLOW, after("head")), *records(FLOW, after("block.first"), step=1)]
    found = compared(a, b)
    assert [(one.name, one.step) for one in found.origins] == [("head", 0)]


def test_a_later_step_can_be_the_first_that_goes_wrong():
    a = [*records(FLOW), *records(FLOW, step=1)]
    found = compared(a, [*records(FLOW), *records(FLOW, after("block.second"), step=1)])
    assert (found.first.name, found.first.step) == ("block.second", 1)


def test_of_two_ranks_the_one_that_is_wrong_earlier_comes_first():
    a = [*records(FLOW), *records(FLOW, rank=1)]
    b = [*records(FLOW, after("head")), *records(FLOW, after("block.first"), rank=1)]
    found = compared(a, b)
    assert (found.first.name, found.first.rank) == ("block.first", 1)
    assert [(one.name, one.rank) for one in found.origins] == [("block.first", 1), ("head", 0)]


def own_floor(names):
    noise = Noise(1e-3, 1e-3, 1e-3, "ulp", intrinsic=(1e-6, 1e-6, 1e-6))
    return Floor({(name, step, 0, 0): noise for name in names for step in (0, 1)}, 4.0, ("ulp",))


def test_where_all_before_is_identical_only_its_own_rounding_is_noise():
    names = [name for name, _ in FLOW]
    a, b = records(FLOW), records(FLOW, after("block.second"), size=1e-4)
    found = compared(a, b, floor=own_floor(names))
    assert found.first.name == "block.second"
    assert found.first.ratio == pytest.approx(100, rel=0.01)
    assert verdicts(found)["head"] == "within noise"
    assert "only its own rounding is noise" in str(found)


def test_after_anything_that_is_not_identical_all_of_the_noise_counts():
    names = [name for name, _ in FLOW]
    sizes = dict.fromkeys(names, 1e-4) | {"block.first": 2e-6}
    found = compared(records(FLOW), records(FLOW, after("block.first"), sizes=sizes), floor=own_floor(names))
    assert found.first is None
    a = [*records(FLOW), *records(FLOW, step=1)]
    b = [*records(FLOW, ["out"], size=2e-6), *records(FLOW, after("block.first"), size=1e-4, step=1)]
    assert compared(a, b, floor=own_floor(names)).first is None


def test_a_value_that_was_made_of_one_without_a_partner_is_not_measured_by_its_rounding_alone():
    names = [name for name, _ in FLOW]
    a = records(FLOW)
    b = records(FLOW, after("block"), size=1e-4)
    assert compared(a, b, floor=own_floor(names)).first.name == "block"
    without = [one for one in b if one.name != "block.first"]
    found = compared(a, without, floor=own_floor(names))
    assert found.first is None
    assert found.exit_code == 3


def test_a_module_with_a_part_that_only_one_side_has_is_blamed_with_a_doubt():
    b = [one for one in records(FLOW, after("block.second.in.input")) if one.name != "block.first"]
    found = compared(records(FLOW), b)
    assert (found.first.name, found.first.kind) == ("block", "own code")
    assert found.first.note == "block.first has no partner, and the fault may be there"
    later = [one for one in records(FLOW, after("block.second")) if one.name != "block"]
    assert compared(records(FLOW), later).first.note == ""


def test_in_another_type_rounding_is_no_measure():
    names = [name for name, _ in FLOW]
    b = [one.with_value(one.value.float()) if one.name in after("head") else one for one in records(FLOW)]
    noise = Noise(1e-3, 1e-3, 1e-3, "bfloat16", intrinsic=(1e-16, 1e-16, 1e-16))
    floor = Floor({(name, 0, 0, 0): noise for name in names}, 4.0, ("float32",))
    assert compared(records(FLOW), b, floor=floor).first is None


places = st.sampled_from([name for name, _ in FLOW])


@settings(max_examples=examples(25), deadline=None)
@given(places, st.floats(1e-5, 1e-1))
def test_the_origin_is_the_same_seen_from_b(place, size):
    a, b = records(FLOW), records(FLOW, after(place), size=size)
    one, other = compared(a, b).first, compared(b, a).first
    assert (one.name, one.kind, one.seen_at) == (other.name, other.kind, other.seen_at)
    assert one.ratio == pytest.approx(other.ratio, rel=1e-6)


@settings(max_examples=examples(25), deadline=None)
@given(places, st.floats(1e-8, 1e-1), st.sampled_from([2.0**-30, 0.5, 7.0, 1e5]))
def test_verdicts_do_not_change_under_a_common_scale(place, size, scale):
    plain = compared(records(FLOW), records(FLOW, after(place), size=size))
    scaled = compared(records(FLOW, scale=scale), records(FLOW, after(place), size=size, scale=scale))
    ratios = [one.ratio for one in plain.table]
    if all(abs(ratio - 4) > 1e-3 for ratio in ratios):
        assert verdicts(plain) == verdicts(scaled)


@settings(max_examples=examples(15), deadline=None)
@given(places, st.sampled_from(["model.", "a.b.c."]))
def test_verdicts_do_not_change_under_another_name(place, prefix):
    plain = compared(records(FLOW), records(FLOW, after(place)))
    renamed = compared(records(FLOW, prefix=prefix), records(FLOW, after(place), prefix=prefix))
    assert [one.verdict for one in plain.table] == [one.verdict for one in renamed.table]
    if plain.first.name and plain.first.kind != "data":
        assert renamed.first.name == prefix + plain.first.name


@pytest.mark.parametrize("pattern", ["layers.{}", "layer_{}", "encoder.part.{}", "h{}", "blocks.b{}"])
@pytest.mark.parametrize(("gain", "is_seen"), [(2e-5, False), (9e-5, True)])
def test_without_a_floor_verdicts_do_not_change_under_another_name(pattern, gain, is_seen):
    random = np.random.default_rng(0)
    values = [random.standard_normal((8, 8)).astype(np.float32) for _ in range(16)]
    sides = [
        [
            Record(
                pattern.format(place),
                value * np.float32(1 + (last if place == 15 else 0)),
                "output",
                order=place,
            )
            for place, value in enumerate(values)
        ]
        for last in (0, gain)
    ]
    assert tt.compare_runs(*sides).is_different is is_seen


@settings(max_examples=examples(15), deadline=None)
@given(places, st.sampled_from(["model.", "a.b.c.", "layers.7."]), st.floats(1e-13, 1e-11))
def test_without_a_floor_verdicts_do_not_change_under_a_prefix(place, prefix, size):
    plain = tt.compare_runs(records(FLOW), records(FLOW, after(place), size=size))
    sides = records(FLOW, prefix=prefix), records(FLOW, after(place), size=size, prefix=prefix)
    assert [one.verdict for one in plain.table] == [one.verdict for one in tt.compare_runs(*sides).table]


def test_values_beside_each_other_make_none_of_them_deeper():
    a = {f"w{place}": torch.linspace(1, 2, 64) for place in range(400)}
    b = a | {"w399": a["w399"] * (1 + 5e-5)}
    assert [one.name for one in tt.compare_runs(a, b).origins] == ["w399"]


SHAPES = st.one_of(st.just(()), arrays.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=4))
NUMBERS = st.one_of(
    arrays.boolean_dtypes(),
    arrays.integer_dtypes(endianness="="),
    arrays.unsigned_integer_dtypes(endianness="="),
    arrays.floating_dtypes(endianness="="),
    arrays.complex_number_dtypes(endianness="="),
    arrays.datetime64_dtypes(endianness="="),
    arrays.unicode_string_dtypes(endianness="=", max_len=3),
)
ARRAYS = arrays.arrays(NUMBERS, SHAPES)  # with NaN and infinity among them
PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text())
LONG = st.integers(-(2**200), 2**200)
OBJECTS = st.builds(lambda held: np.array([*held, None], object), st.lists(st.one_of(PLAIN, LONG)))
MASKED = st.builds(lambda value, seed: np.ma.array(value, mask=_mask(value, seed)), ARRAYS, st.integers(0, 9))
TENSORS = st.builds(
    lambda shape, dtype: torch.linspace(-9, 9, math.prod(shape)).reshape(shape).to(dtype),
    SHAPES,
    st.sampled_from([torch.bfloat16, torch.float16, torch.float8_e5m2, torch.complex64, torch.int8]),
)
LEAVES = st.one_of(PLAIN, LONG, ARRAYS, OBJECTS, MASKED, TENSORS)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.tuples(inner), st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)


def _mask(value, seed):
    return np.random.default_rng(seed).random(value.shape) < 0.5


@pytest.mark.law
@settings(max_examples=examples(75), deadline=None)
@given(VALUES)
def test_anything_is_identical_to_itself(value):
    side = {"x": value, "y": torch.ones(2)}
    found = tt.compare_runs(side, copy.deepcopy(side))
    assert set(verdicts(found).values()) == {"identical"}
    assert found.exit_code == 0
    assert str(found).count("IDENTICAL") == 1


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_are_compared_piece_by_piece(layout):
    a, b = (
        torch.nested.nested_tensor([torch.ones(2, 2), last], layout=layout)
        for last in torch.eye(3)[:2, None, :2]
    )
    assert verdicts(tt.compare_runs({"x": a}, {"x": a})) == {"x": "identical"}
    found = tt.compare_runs({"x": a}, {"x": b})
    assert (found.exit_code, found.table[0].metrics.part) == (1, "[1]")


@settings(max_examples=examples(50), deadline=None)
@given(st.permutations(range(4)), st.permutations(range(3)), st.sampled_from([np.float32, np.float64]))
def test_what_is_only_in_another_order_differs_as_much_seen_from_b(rows, columns, dtype):
    value = np.arange(1.0, 13.0, dtype=dtype).reshape(4, 3) ** 2
    given_in = [np.ones((4, 3), dtype), np.ones((4, 3), dtype) * dtype(1.1236)]
    sides = [
        [Record("in.x", given_in[0], "input"), Record("a.in.x", came, "input"), Record("a", made, "output")]
        for came, made in zip(given_in, (value, value[rows][:, columns]), strict=True)
    ]
    one, other = tt.compare_runs(*sides), tt.compare_runs(*sides[::-1])
    assert [(o.name, o.seen_at) for o in one.origins] == [(o.name, o.seen_at) for o in other.origins]
    assert [found.ratio for found in one.table] == pytest.approx([found.ratio for found in other.table])
