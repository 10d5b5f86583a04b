"""Values are paired by name, by rule, by class and by content, and what has no partner is always listed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tensortap as tt
from tensortap.comparison.matching.match import match
from tensortap.comparison.matching.rules import load_rules
from tensortap.comparison.sides.entry import module_of, split_name
from tensortap.comparison.sides.load import load_side
from tensortap.core.record import Record


def side(*names, value=None, **facts):
    one = np.ones(3) if value is None else value
    return load_side([Record(name, one, order=n, **facts) for n, name in enumerate(names)])


def told(matched):
    return [(pair.a.name, pair.b.name, pair.how) for pair in matched.pairs]


def test_names_pair_by_step_rank_and_call():
    moments = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0)]
    records = [
        Record("x", np.ones(1), step=s, rank=r, call=c, order=n) for n, (s, r, c) in enumerate(moments)
    ]
    matched = match(load_side(records), load_side(records[::-1]))
    assert [(pair.a.step, pair.a.rank, pair.a.call) for pair in matched.pairs] == sorted(
        moments, key=moments.index
    )
    assert all((p.a.step, p.a.rank, p.a.call) == (p.b.step, p.b.rank, p.b.call) for p in matched.pairs)
    assert {(pair.how, pair.score) for pair in matched.pairs} == {("name", 1.0)}


def test_what_only_one_side_has_is_listed():
    matched = match(side("x", "a"), side("x", "b"))
    assert told(matched) == [("x", "x", "name")]
    assert [entry.name for entry in matched.only_a] == ["a"]
    assert [entry.name for entry in matched.only_b] == ["b"]


def test_values_of_the_same_name_and_moment_pair_one_by_one():
    again = [Record("x", np.full(1, n)) for n in range(3)]
    matched = match(load_side(again), load_side(again[:2]))
    assert [(pair.a.load()[0], pair.b.load()[0]) for pair in matched.pairs] == [(0, 0), (1, 1)]
    assert len(matched.only_a) == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2), st.integers(0, 1)), max_size=12))
def test_a_side_is_paired_with_itself_whole(moments):
    records = [Record(n, np.ones(1), step=s, rank=r, order=i) for i, (n, s, r) in enumerate(moments)]
    matched = match(load_side(records), load_side(records))
    assert len(matched.pairs) == len(records)
    assert all(pair.a.order == pair.b.order for pair in matched.pairs)
    assert (matched.only_a, matched.only_b, matched.notes) == ([], [], [])


def test_steps_that_are_counted_differently_are_paired_in_order_and_that_is_said():
    a = [Record("x", np.ones(1), step=step) for step in (0, 1)]
    b = [Record("x", np.ones(1), step=step) for step in (100, 200)]
    matched = match(load_side(a), load_side(b))
    assert [(pair.a.step, pair.b.step, pair.how) for pair in matched.pairs] == [
        (0, 100, "order"),
        (1, 200, "order"),
    ]
    assert matched.notes == ["A has the steps 0 to 1, B 100 to 200: they are paired in their order"]


def test_steps_that_overlap_are_not_shifted():
    a, b = ([Record("x", np.ones(1), step=step) for step in steps] for steps in ((0, 1), (1, 2)))
    matched = match(load_side(a), load_side(b))
    assert [(pair.a.step, pair.b.step) for pair in matched.pairs] == [(1, 1)]
    assert [entry.step for entry in matched.only_a + matched.only_b] == [0, 2]


RENAMED = [
    ("layers", "h", "layers.3.attn.in.x", "h.3.attn.in.x"),
    ("layers.*.attn", "h.*.attention", "layers.3.attn[0].grad", "h.3.attention[0].grad"),
    ("**.self_attn", "**.attn", "model.layers.3.self_attn.q", "model.layers.3.attn.q"),
    ("**.self_attn", "**.attn", "self_attn", "attn"),
    ("model", "", "model.layers.0", "layers.0"),
    ("model", "", "model", "out"),
    ("model", "", "model['logits']", "out['logits']"),
    ("model", "", "model.in.x", "in.x"),
    ("", "model", "layers.0", "model.layers.0"),
    ("", "model", "out['logits']", "model['logits']"),
    ("*.{q,k}_proj", "*.w{q,k}", "attn.k_proj", "attn.wk"),
    ("layer_*", "layers.*", "layer_12.x", "layers.12.x"),
    ("a.*.b.*", "*.*", "a.1.b.2", "1.2"),
    ("layers", "h", "layers_of.0", "layers_of.0"),
]


@pytest.mark.parametrize(("source", "target", "name", "renamed"), RENAMED, ids=range(len(RENAMED)))
def test_a_rule_renames_a_module_and_all_below_it(source, target, name, renamed):
    assert load_rules({"rule": [{"from": source, "to": target}]}).rename(name) == renamed


def test_rules_apply_one_after_the_other():
    rules = load_rules(
        {"rule": [{"from": "model.layers", "to": "h"}, {"from": "h.*.self_attn", "to": "h.*.attn"}]}
    )
    assert rules.rename("model.layers.7.self_attn") == "h.7.attn"


def test_rules_come_from_a_file(tmp_path):
    path = tmp_path / "map.toml"
    path.write_text('ignore = ["rotary.**"]\n[[rule]]\nfrom = "layers.*"\nto = "h.*"\n')
    matched = match(side("layers.0", "rotary.x"), side("h.0", "rotary.y"), path)
    assert told(matched) == [("layers.0", "h.0", "map")]
    assert (matched.only_a, matched.only_b, matched.notes, matched.ignored) == ([], [], [], 2)


def test_a_dict_of_names_and_a_function_are_maps_too():
    a, b = side("x", "y"), side("p", "y")
    for rules in ({"x": "p"}, lambda name: {"x": "p"}.get(name, name)):
        assert told(match(a, b, rules)) == [("x", "p", "map"), ("y", "y", "name")]


def test_a_dict_of_modules_speaks_of_what_is_below_them_too():
    rules = load_rules({"fc1": "fc2", "fc2": "fc1", "fc1.in.x": "y", "h.*": "layers.*", "h.0": "first"})
    names = ("fc1", "fc2.in.input", "fc1[0]", "fc1.in.x", "fc10.in.x", "h.0", "h.0.mlp", "h.1.mlp")
    renamed = ["fc2", "fc1.in.input", "fc2[0]", "y", "fc10.in.x", "first", "layers.0.mlp", "layers.1.mlp"]
    assert [rules.rename(name) for name in names] == renamed
    assert load_rules({"": "model"}).rename("out['logits']") == "model['logits']"
    assert match(side("fc.in.x"), side("up.in.x"), {"fc": "up"}).notes == []


def test_a_rule_wins_over_a_name_in_common():
    matched = match(side("x", "y"), side("x", "y"), {"x": "y"})
    assert told(matched) == [("x", "y", "map")]
    assert [entry.name for entry in matched.only_a + matched.only_b] == ["y", "x"]


def test_a_rule_that_matches_nothing_is_reported_with_what_is_near():
    rules = {"rule": [{"from": "layer.*", "to": "h.*"}]}
    (note,) = match(side("layers.0"), side("layers.0"), rules).notes
    assert note == "rule 1 (from 'layer.*') matches no name of A; nearest is 'layers.0'"


def test_what_is_ignored_and_nowhere_is_reported():
    rules = {"ignore": ["rotary.**", "**.x"]}
    assert match(side("layers.x"), side("layers.0"), rules).messages == [
        "ignore 'rotary.**' matches no name of either side"
    ]


def test_a_rule_the_wrong_way_round_is_recognised():
    rules = {"rule": [{"from": "h", "to": "layers"}]}
    notes = match(side("layers.0", "x"), side("h.0", "x"), rules).notes
    assert notes == [
        "rule 1 (from 'h') matches no name of A, but names of B: its from and to may be the wrong way round"
    ]


def test_a_rule_that_leads_nowhere_is_reported():
    (note,) = match(side("layers.0", "x"), side("h.0.attn", "x"), {"layers.0": "h.0.attm"}).notes
    assert note == "the map sends 'layers.0' to 'h.0.attm', which B does not have; nearest is 'h.0.attn'"


def test_what_is_ignored_does_not_count_as_led_nowhere():
    rules = {"ignore": ["model.in**"], "rule": [{"from": "model", "to": ""}]}
    assert match(side("model.in.x", "model.up"), side("up"), rules).notes == []


def test_two_names_cannot_become_one():
    with pytest.raises(ValueError, match="the map sends both 'a' and 'b' to 'c'"):
        match(side("a", "b"), side("c"), {"a": "c", "b": "c"})


BAD_RULES = [
    ({"rule": [{"from": "x"}]}, "write .*rule.* tables"),
    ({"rule": [{"from": "x", "to": "*"}]}, "more stars in its target"),
    ({"rule": [{"from": "{a,b}", "to": "{c,d,e}"}]}, "2 choices on one side and 3 on the other"),
    ({"rule": [], "rules": []}, "'rules', which means nothing here"),
]


@pytest.mark.parametrize(("rules", "words"), BAD_RULES, ids=range(len(BAD_RULES)))
def test_a_bad_rule_says_how_to_write_it(rules, words):
    with pytest.raises(ValueError, match=words):
        load_rules(rules)


def test_a_map_that_is_not_there_or_not_toml_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist; give a TOML file of rules"):
        load_rules(tmp_path / "no.toml")
    (tmp_path / "bad.toml").write_text("[[rule")
    with pytest.raises(ValueError, match="is not TOML"):
        load_rules(tmp_path / "bad.toml")
    with pytest.raises(TypeError, match="a map is a TOML file"):
        load_rules(3)


class One(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(3)])
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Other(torch.nn.Module):
    def __init__(self, one):
        super().__init__()
        self.h = torch.nn.ModuleList(one.layers)
        self.ln_f = one.norm

    def forward(self, hidden):
        for block in self.h:
            hidden = block(hidden)
        return self.ln_f(hidden)


def captured(model, x, *patterns):
    with tt.capture(model, *patterns) as cap:
        model(x)
    return load_side(cap)


def test_modules_of_one_class_pair_in_the_order_in_which_they_ran():
    torch.manual_seed(0)
    one, x = One(), torch.randn(2, 4)
    matched = match(captured(one, x, "layers.*", "norm"), captured(Other(one), x + 5, "h.*", "ln_f"))
    expected = [(f"layers.{n}", f"h.{n}", "class") for n in range(3)]
    assert told(matched) == [*expected, ("norm", "ln_f", "class")]
    assert all(pair.score < 1 for pair in matched.pairs)
    (guess, strangers) = matched.notes
    assert "4 by class and order" in guess
    assert '[[rule]]\nfrom = "layers"\nto = "h"\n[[rule]]\nfrom = "norm"\nto = "ln_f"' in guess
    assert strangers.startswith("no name is on both sides")


def test_inputs_with_other_names_pair_by_their_place():
    a, b = torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.Sequential(torch.nn.Linear(2, 2))
    one, other = captured(a, torch.ones(1, 2), "0.in"), captured(b, torch.ones(1, 2), "0.in")
    renamed = [Record(f"fc.in.{n}", entry.load(), entry.kind) for n, entry in enumerate(other.entries)]
    moved = load_side(renamed)
    classes = [type(entry)(**{**_fields(entry), "class_name": "Linear"}) for entry in moved.entries]
    matched = match(one, type(moved)("b", classes))
    assert told(matched) == [("0.in.input", "fc.in.0", "class")]


def _fields(entry):
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__}


def test_classes_that_are_not_equally_many_are_not_paired_by_class():
    one = One()
    a = captured(one, torch.randn(2, 4), "layers.*")
    b = captured(torch.nn.Sequential(torch.nn.Linear(4, 4)), torch.randn(2, 4), "0")
    assert not [pair for pair in match(a, b).pairs if pair.how == "class"]


def values(names, seed=0, apart=0.0, bad=()):
    rng = np.random.default_rng(seed)
    made = {}
    for name in names:
        made[name] = rng.standard_normal((8, 16))
    return {
        name: value
        + apart * np.random.default_rng(7).standard_normal(value.shape)
        + (100 if name in bad else 0)
        for name, value in made.items()
    }


def test_values_pair_by_shape_and_content_where_nothing_else_is_known():
    a = values([f"layers.{n}.q" for n in range(4)])
    b = dict(zip([f"h.{n}.wq" for n in range(4)], values("abcd", apart=1e-4).values(), strict=True))
    matched = match(load_side(a), load_side(b))
    assert told(matched) == [(f"layers.{n}.q", f"h.{n}.wq", "content") for n in range(4)]
    assert '[[rule]]\nfrom = "layers.*.q"\nto = "h.*.wq"' in matched.notes[0]


def test_what_holds_other_numbers_is_found_by_analogy():
    a = values([f"layers.{n}.q" for n in range(4)])
    b = dict(zip([f"h.{n}.wq" for n in range(4)], a.values(), strict=True))
    b["h.2.wq"] = b["h.2.wq"] * -3
    matched = match(load_side(a), load_side(b))
    scores = {pair.a.name: pair.score for pair in matched.pairs}
    assert told(matched) == [(f"layers.{n}.q", f"h.{n}.wq", "content") for n in range(4)]
    assert scores["layers.2.q"] < scores["layers.1.q"] < 1


def test_content_does_not_pair_what_is_the_same_number_throughout():
    matched = match(side("a", value=np.ones(9)), side("b", value=np.ones(9)))
    assert matched.pairs == []


def test_content_does_not_pair_values_of_a_module_that_both_sides_have():
    x = np.random.default_rng(0).standard_normal(9)
    matched = match(side("m", "m[0]", value=x), side("m", "m[1]", value=x))
    assert told(matched) == [("m", "m", "name")]


def test_no_name_in_common_tells_the_nearest_and_how_to_map():
    a, b = side("encoder.layers.0", value=np.ones(2)), side("encoder.layer.0", value=np.ones(3))
    (note,) = match(a, b).notes
    assert note.startswith("no name is on both sides: A has 'encoder.layers.0', B has 'encoder.layer.0'")
    assert note.endswith('[[rule]]\nfrom = "encoder.layers"\nto = "encoder.layer"')


@pytest.mark.parametrize(
    ("mine", "others", "rule"),
    [
        (
            ["model.layers.0.self_attn.q_proj"],
            ["transformer.h.0.attn.q"],
            ("model.layers.*.self_attn.q_proj", "transformer.h.*.attn.q"),
        ),
        (["transformer.wte"], ["embed_tokens"], ("transformer.wte", "embed_tokens")),
        (
            ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"],
            ["transformer.h.0.attn.c_attn", "transformer.h.0.mlp.c_proj_up", "transformer.h.1.mlp.c_proj_up"],
            ("model.layers.*.mlp.up_proj", "transformer.h.*.mlp.c_proj_up"),
        ),
        (["x"], ["ÿ"], ("x", "ÿ")),
    ],
)
def test_names_of_another_implementation_come_with_a_rule_to_begin_with(mine, others, rule):
    random = np.random.default_rng(0)
    a, b = (load_side({name: random.standard_normal((4, 6)) for name in names}) for names in (mine, others))
    (note,) = match(a, b).notes
    assert note.startswith("no name is on both sides")
    assert f"nearest is {mine[0]!r} to " in note
    assert f'from = "{rule[0]}"\nto = "{rule[1]}"' in note


def test_a_name_on_both_sides_that_a_map_tells_apart_is_not_called_a_stranger():
    a = load_side({"x": np.arange(3.0)})
    notes = match(a, load_side({"x": np.ones((4, 2))}), {"x": "y"}).notes
    assert any("the map sends 'x' to 'y', which B does not have" in note for note in notes)
    assert any(note.startswith("no value has a partner, although 'x' is on both sides") for note in notes)
    assert not any("no name is on both sides" in note for note in notes)


NAMES = [
    ("layers.0.attn", "output", ("layers.0.attn", "")),
    ("layers.0.attn[0]", "output", ("layers.0.attn", "[0]")),
    ("layers.0.attn[0].grad", "grad_output", ("layers.0.attn", "[0].grad")),
    ("layers.0.attn.in.x", "input", ("layers.0.attn", ".in.x")),
    ("layers.0.attn.in.x['in.y']", "input", ("layers.0.attn", ".in.x['in.y']")),
    ("layers.0.forward.scores", "local", ("layers.0", ".forward.scores")),
    ("layers.0.weight", "param", ("layers.0", ".weight")),
    ("layers.0.weight.grad", "grad_param", ("layers.0", ".weight.grad")),
    ("in.x", "input", ("", "in.x")),
    ("out['logits']", "output", ("", "out['logits']")),
    ("in.proj.in.x", "input", ("in.proj", ".in.x")),
    ("layers.0.attn.out", "output", ("layers.0.attn.out", "")),
    ("layers.0.attn.out.0[1].grad", "grad_output", ("layers.0.attn.out.0", "[1].grad")),
    ("layers.0.attn.forward.out", "local", ("layers.0.attn", ".forward.out")),
    ("layers.0.attn.in.out", "input", ("layers.0.attn", ".in.out")),
    ("layers.0.in", "output", ("layers.0.in", "")),
    ("layers.0.grad", "output", ("layers.0.grad", "")),
    ("layers.0.grad.grad", "grad_output", ("layers.0.grad", ".grad")),
    ("out.logits", "output", ("", "out.logits")),
    ("model.out.hidden", "output", ("model", ".out.hidden")),
    ("attn.out.out.hidden.grad", "grad_output", ("attn.out", ".out.hidden.grad")),
    ("<Net>['logits']", "output", ("", "<Net>['logits']")),
    ("<Net>.grad", "grad_output", ("", "<Net>.grad")),
]


@pytest.mark.parametrize(("name", "kind", "parts"), NAMES, ids=range(len(NAMES)))
def test_a_name_belongs_to_a_module(name, kind, parts):
    assert split_name(name, kind) == parts
    assert module_of(name, kind) == parts[0]
