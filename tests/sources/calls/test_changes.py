"""Each change of a variable is told once, with the line that made it, and nothing else is."""

import sys
from collections import UserDict, deque
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from tests.sources.calls.followed import following
from torch import nn

source, told = following()
followed = source.wrap


@pytest.fixture(autouse=True)
def fresh():
    told.records.clear()
    yield
    assert sys.gettrace() is None


def changes(function, *arguments):
    """Each path with its line, counted from the def."""
    followed(function)(*arguments)
    first = function.__code__.co_firstlineno
    found = [record for record in told.records if record.kind == "local" and record.site.depth == 0]
    name = function.__qualname__
    return [f"{record.name.removeprefix(name + '.')}@{record.site.line - first}" for record in found]


# Bindings


def test_statements_that_bind():
    def function(values):
        a = b = 1
        (c, *d), e = (2, 3), 4
        f: int = 5
        a += 1
        if (g := a) > 1:
            h = g
        for i, j in enumerate(values):  # noqa: B007
            pass
        with open(__file__) as k:
            pass
        import os as m

        del h
        return b, c, d, e, f, k, m, i, j

    assert changes(function, "xy") == [
        "a@1", "b@1", "c@2", "d@2", "e@2", "f@3", "a@4", "g@5", "h@6", "i@7", "j@7", "i@7", "j@7", "k@9",
        "m@11",
    ]  # fmt: skip


def test_match_binds():
    def function(value):
        match value:
            case [first, *others]:  # noqa: F841
                return first
            case {"k": kept, **more}:
                return kept, more

    assert changes(function, [1, 2]) == ["first@2", "others@2"]
    told.records.clear()
    assert sorted(changes(function, {"k": 1})) == ["kept@4", "more@4"]


def test_several_lines_of_one_statement_count_as_its_first():
    def function(x):
        y = max(
            x,
            2,
        )
        return y  # noqa: RET504

    assert changes(function, 1) == ["y@1"]


def test_what_a_line_that_fails_had_done_is_told():
    def function(values):
        try:
            values.append(1)
            values[5] += 1
        except IndexError as error:
            y = str(error)
        return y

    assert changes(function, []) == ["values@2", "error@4", "y@5"]


def test_a_global_is_told():
    scope = {}
    exec("count = 0\ndef function():\n    global count\n    count += 1\n    count += 0\n", scope)
    assert changes(scope["function"]) == ["count@2"]


# Content


NAN = float("nan")


@pytest.mark.parametrize(
    ("one", "other", "is_told"),
    [
        (lambda: 1000 + 7, lambda: 1000 + 7, False),
        (lambda: 1, lambda: True, True),
        (lambda: 0.0, lambda: -0.0, True),
        (lambda: float("nan"), lambda: float("nan"), False),
        (lambda: "a" * 9, lambda: "a" * 9, False),
        (lambda: [1, [2]], lambda: [1, [2]], False),
        (lambda: [1, [2]], lambda: [1, [3]], True),
        (lambda: {"a": 1}, lambda: {"b": 1}, True),
        (lambda: [], lambda: {}, True),
        (lambda: {1, 2}, lambda: {2, 1}, False),
        (lambda: {1, 2}, lambda: {2, 3}, True),
        (lambda: object(), lambda: object(), True),
        (lambda: np.arange(3), lambda: np.arange(3), False),
        (lambda: np.arange(3), lambda: np.arange(3.0), True),
        (lambda: np.arange(999), lambda: np.append(np.arange(998), 0), True),
        (lambda: np.array([NAN]), lambda: np.array([NAN]), False),
        (lambda: np.float32(1), lambda: np.float32(1), False),
        (lambda: torch.ones(3, 2), lambda: torch.ones(3, 2), False),
        (lambda: torch.ones(3, 2), lambda: torch.ones(2, 3), True),
        (lambda: torch.ones(3, 2), lambda: torch.ones(3, 2).half(), True),
        (lambda: torch.ones(3000), lambda: torch.ones(3000).index_fill_(0, torch.tensor([2999]), 2), True),
        (lambda: torch.full((3,), NAN), lambda: torch.full((3,), NAN), False),
        (lambda: torch.ones(3, 2).t(), lambda: torch.ones(2, 3), False),
        (lambda: torch.ones(3, dtype=torch.bfloat16), lambda: torch.ones(3, dtype=torch.bfloat16), False),
        (lambda: torch.ones(3), lambda: nn.Parameter(torch.ones(3)), True),
        (lambda: torch.empty(3, device="meta"), lambda: torch.empty(3, device="meta"), True),
        (lambda: torch.ones(3).to_sparse(), lambda: torch.ones(3).to_sparse(), True),
        (lambda: {"x": torch.ones(3)}, lambda: {"x": torch.zeros(3)}, True),
    ],
)
def test_a_new_binding_is_a_change_only_by_its_content(one, other, is_told):
    def function():
        x = one()
        x = other()
        return x  # noqa: RET504

    assert changes(function) == (["x@1", "x@2"] if is_told else ["x@1"])


class Hostile:
    """Nobody may ask it anything."""

    def __eq__(self, other):
        raise AssertionError("eq")

    __hash__ = __repr__ = __len__ = __bool__ = __iter__ = __getattr__ = __eq__

    @property
    def prop(self):
        raise AssertionError("property")


def test_objects_are_never_asked():
    def function(x, y):
        held = [x, {"k": y}]
        x = y
        other = Hostile()
        x.attribute = 3
        held.append(x)
        list(map(id, (x, other)))

    assert changes(function, Hostile(), Hostile()) == ["held@1", "x@2", "other@3", "x.attribute@4", "held@5"]


# In place


def test_containers_changed_in_place():
    def function(values, table, some, queue):
        values.append(1)
        values.count(1)
        len(values)
        table["k"] = values
        table["k"] = values
        table.update(n=2)
        some.add(3)
        some.add(3)
        queue.appendleft(4)
        del table["n"]
        values[0] = 1
        values[0] = 2
        values.sort()
        values += [5]

    assert changes(function, [], {}, set(), deque()) == [
        "values@1", "table['k']@4", "table@6", "some@7", "queue@9", "table@10", "values[0]@12", "values@14",
    ]  # fmt: skip


def test_items_and_attributes_are_told_by_their_path():
    class Holder:
        slot = None

    def function(self, batch, key, i):
        self.cache = torch.ones(2)
        self.cache = torch.ones(2)
        self.cache = self.cache + 1
        self.inner.x = 1
        batch[key] = 2
        batch["deep"]["n"] = 3
        batch["list"][i] = 4
        batch["list"][-1] += 1
        self.inner.table[key] = 5
        self.total = self.other = 6

    holder = Holder()
    holder.inner = Holder()
    holder.inner.table = {}
    batch = {"deep": {}, "list": [0, 1, 2]}
    assert changes(function, holder, batch, "mask", 1) == [
        "self.cache@1", "self.cache@3", "self.inner.x@4", "batch['mask']@5", "batch['deep']['n']@6",
        "batch['list'][1]@7", "batch['list'][-1]@8", "self.inner.table['mask']@9", "self.total@10",
        "self.other@10",
    ]  # fmt: skip


def test_slots_dataclasses_user_dicts_and_modules_hold_what_is_stored():
    class Slots:
        __slots__ = ("x",)

    @dataclass
    class Data:
        x: int = 0
        more: list = field(default_factory=list)

    def function(slots, data, table, module):
        slots.x = 1
        data.x = 2
        data.more.append(3)
        table["k"] = 4
        module.weight = nn.Parameter(torch.ones(2, 2))
        module.plain = 5

    assert changes(function, Slots(), Data(), UserDict(), nn.Linear(2, 2)) == [
        "slots.x@1", "data.x@2", "data@3", "table['k']@4", "module.weight@5", "module.plain@6",
    ]  # fmt: skip


def test_what_slots_hold_is_seen_to_change_in_place():
    class Slots:
        __slots__ = ("_hidden", "empty", "rows", "x")

        def __init__(self):
            self.x, self.rows, self._hidden = torch.ones(2), [], 0

    class Both(Slots):
        """Has a dictionary besides."""

    def function(slots, both):
        slots.x.mul_(2)
        slots.rows.append(1)
        both.x.add_(1)
        return len(slots.rows)

    assert changes(function, Slots(), Both()) == ["slots.x@1", "slots.rows@2", "both.x@3"]


def test_an_object_whose_method_changes_it_tells_which_attribute():
    import random
    import threading

    def function(noise, event, local):
        noise.gauss(0, 1)
        event.set()
        local.x = 1

    # What libraries hide behind an underscore stays hidden.
    found = changes(function, random.Random(0), threading.Event(), threading.local())
    assert found in (["noise.gauss_next@1"], ["noise.gauss_next@1", "local.x@3"])


def test_what_a_followed_method_stored_is_told_there_only():
    class Holder:
        def store(self, x):
            self.x = x

    def function(holder):
        holder.store(1)
        return holder

    assert changes(function, Holder()) == []
    assert [name.split(".")[-1] for name in told.of("local")] == ["x 1"]


TENSOR_LINES = [
    ("x.add_(1)", "x"),
    ("x.add_(0)", ""),
    ("x += 1", "x"),
    ("x[0] = 5", "x"),
    ("x[0] = 0", ""),
    ("x[:, 0] = 5", "x"),
    ("x.data.add_(1)", "x"),
    ("x.detach().add_(1)", "x"),
    ("x.numpy()[0] = 7", "x"),
    ("np.asarray(x)[0] = 7", "x"),
    ("y = x.view(-1)", "y"),
    ("x.view(-1).fill_(2)", "x"),
    ("torch.add(x, 1, out=x)", "x"),
    ("nn.init.ones_(x)", "x"),
    ("x.requires_grad_(False)", ""),
    ("x.sum(); x.clone().add_(1)", ""),
    ("changes_it(x)", "x"),
    ("changes_it([x])", "x"),
    ("(lambda: x.add_(1))()", "x"),
    ("x = x.add_(1)", "x"),
    ("x = x.add_(1)[:]", "x"),
    ("x = x[:]", ""),
]


@pytest.mark.parametrize(("line", "expected"), TENSOR_LINES)
def test_a_tensor_changed_in_place_is_told_and_an_untouched_one_is_not(line, expected):
    scope = {"torch": torch, "np": np, "nn": nn, "changes_it": changes_it}
    exec(f"def function(x, z):\n    {line}\n    return z", scope)
    found = changes(scope["function"], torch.zeros(2, 2), torch.zeros(2, 2))
    assert found == ([f"{expected}@1"] if expected else [])


def changes_it(value):
    (value[0] if isinstance(value, list) else value).add_(1)


def test_aliases_and_views_change_together_and_disjoint_views_do_not():
    def function(x):
        row, other, same = x[0], x[1], x
        row.add_(1)
        row[0] = 9
        x.mul_(2)
        return other, same

    assert changes(function, torch.ones(2, 2)) == [
        "row@1", "other@1", "same@1",
        "x@2", "row@2", "same@2", "x@3", "row@3", "same@3", "x@4", "row@4", "other@4", "same@4",
    ]  # fmt: skip


def test_memory_known_under_other_names_changes_with_it():
    def function(x):
        secret = x.data
        array = x.numpy()
        secret.add_(1)
        array[0] = 5
        array += 1
        x.mul_(2)
        back = torch.from_numpy(array)
        back.zero_()

    every = ["x", "secret", "array"]
    assert changes(function, torch.ones(2)) == [
        "secret@1", "array@2",
        *[f"{name}@{line}" for line in (3, 4, 5, 6) for name in every],
        "back@7", *[f"{name}@8" for name in (*every, "back")],
    ]  # fmt: skip


def test_arrays_changed_in_place_and_through_views():
    def function(a, untouched):
        view = a[1:]
        a[0] = 0
        view[0] = 7
        a += 1
        np.add(a, 1, out=a)
        a.sort()
        a.sum()
        np.random.default_rng(0).shuffle(untouched)

    assert changes(function, np.arange(4), np.arange(9)) == [
        "view@1", "a@3", "view@3", "a@4", "view@4", "a@5", "view@5", "a@6", "view@6", "untouched@8",
    ]  # fmt: skip


def test_inference_tensors_subclasses_and_modes_are_looked_at_without_being_disturbed():
    class Sub(torch.Tensor):
        pass

    seen = []

    class Mode(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    def function(x, sub):
        x.add_(1)
        sub.add_(1)
        y = x + 1
        return y  # noqa: RET504

    with torch.inference_mode():
        assert changes(function, torch.zeros(2), torch.zeros(2).as_subclass(Sub)) == ["x@1", "sub@2", "y@3"]
    told.records.clear()
    with Mode():
        assert changes(function, torch.zeros(2), torch.zeros(2).as_subclass(Sub)) == ["x@1", "sub@2", "y@3"]
    assert seen == ["zeros", "zeros", "add_", "add_", "add"]


# Modules


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        return self.linear(x).relu()


def test_forwards_of_modules_in_library_containers_are_one_level_down():
    net = nn.Sequential(Block(), nn.Sequential(Block()))

    def function(x):
        y = net(x)
        return y  # noqa: RET504

    assert changes(function, torch.ones(1, 2)) == ["y@1"]
    assert told.of("call")[1:] == [".call Block.forward"] * 2
    assert told.of("local")[0].startswith(".local Block.forward.self.seen")


def test_values_told_are_the_programs_own():
    def function(x):
        y = x + 1
        return y  # noqa: RET504

    x = torch.ones(2)
    y = followed(function)(x)
    values = [record.value for record in told.records]
    assert [value is one for value, one in zip(values[1:], (x, y, y), strict=True)] == [True] * 3


def test_no_array_is_kept_alive():
    import weakref

    freed = []

    def function():
        x = torch.ones(1000)
        found = weakref.ref(x)
        array = np.ones(1000)
        second = weakref.ref(array)
        held = [torch.ones(3)]
        third = weakref.ref(held[0])
        print(x, array, held, file=open("/dev/null", "w"))  # noqa: SIM115
        told.records.clear()
        del x, array, held
        freed.extend((found() is None, second() is None, third() is None))

    with pytest.warns(ResourceWarning):
        followed(function)()
    assert freed == [True, True, True]


def test_a_large_list_is_not_walked_on_every_line():
    def function(values):
        values.append(1)
        values.pop(0)
        return len(values)

    assert changes(function, list(range(1_000_000))) == ["values@1", "values@2"]


def test_a_container_that_holds_itself_is_no_trap():
    def function(values):
        values.append(values)
        values.append(1)

    assert changes(function, []) == ["values@1", "values@2"]
