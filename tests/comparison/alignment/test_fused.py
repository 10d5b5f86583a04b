"""Values that one side keeps as one and the other as several, among many that are neither."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from tensortap.comparison.alignment.fused import find_fused
from tensortap.comparison.matching.match import Matching
from tensortap.comparison.matching.similarity import suggest_rules
from tensortap.comparison.sides.entry import Entry, numeric_operand
from tensortap.comparison.sides.leaf import Operand


@dataclass
class Held:
    value: Any

    def load(self) -> Any:
        return self.value

    def operand(self) -> Operand | None:
        return numeric_operand(self.value)


def entry(name, value, step=0):
    return Entry(name, Held(value), "output", step, dtype="float32", shape=value.shape, nbytes=value.nbytes)


def test_what_belongs_together_is_found_among_thousands_without_looking_at_each_pair():
    draw = np.random.default_rng(0)
    whole = draw.standard_normal((4, 12)).astype(np.float32)
    a = [entry(f"here.{number}.x", whole[:, :5], number % 9) for number in range(6000)]
    b = [entry(f"there.{number}.x", whole[:, :5], number % 9) for number in range(6000)]
    a.append(entry("attn.qkv", whole))
    b += [entry(f"attn.{name}", whole[:, 4 * at : 4 * at + 4]) for at, name in enumerate("qkv")]
    before = time.process_time()
    (made,) = find_fused(Matching([], a, b))
    assert time.process_time() - before < 5
    assert made.full.name == "attn.qkv"
    assert [part.name for part in made.parts] == ["attn.q", "attn.k", "attn.v"]


def test_a_value_is_part_of_one_other_only():
    whole = np.random.default_rng(1).standard_normal((4, 8)).astype(np.float32)
    a = [entry("m.one", whole), entry("m.two", whole)]
    b = [entry("m.left", whole[:, :3]), entry("m.right", whole[:, 3:])]
    assert [made.full.name for made in find_fused(Matching([], a, b))] == ["m.one"]


def test_rules_that_are_proposed_are_toml_whatever_the_names_hold():
    import tomllib

    names = ('attn["k"].x', "back\\slash.y")
    told = tomllib.loads(suggest_rules([names]))
    assert (told["rule"][0]["from"], told["rule"][0]["to"]) == names
