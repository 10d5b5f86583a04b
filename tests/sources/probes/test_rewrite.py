"""A rewritten function does what it did, and tells every value that it binds."""

# The functions below bind names for the sake of binding them.
# ruff: noqa: B007, E702, F841, RET504, RUF059, SIM223

import asyncio
import contextlib
import functools
import linecache
import traceback

import pytest
import torch

from tensortap.sources.function_names import unwrap_function
from tensortap.sources.probes.install import find_bindings, install_probe
from tensortap.sources.probes.rewrite import Binding

counter = 0


def watch(function, names, returns=False):
    """A probe, and the (name, value) pairs that it is told."""
    told = []

    def seen(at, value):
        told.append((probe.bindings[at].name, value))

    probe = install_probe(function, names, lambda first: seen, returns=returns)
    return probe, told


def outcome(function, *arguments, drive=None, **keywords):
    """What a call gives, or how and where it fails."""
    try:
        result = function(*arguments, **keywords)
        return drive(result) if drive else result
    except Exception as error:  # noqa: BLE001 - any failure is an outcome
        last = traceback.extract_tb(error.__traceback__)[-1]
        return repr(error), last.filename, last.lineno


def told_by(function, names, *arguments, returns=False, how="rewritten", **keywords):
    """The values told by a call, which has the same outcome with and without the probe."""
    before = unwrap_function(function).__code__
    plain = outcome(function, *arguments, **keywords)
    probe, told = watch(function, names, returns)
    assert (probe.how, bool(probe.why)) == (how, how != "rewritten")
    assert outcome(function, *arguments, **keywords) == plain
    probe.remove()
    assert unwrap_function(function).__code__ is before
    return told


# Pitfalls: the functions


def closing(a):
    b = 1

    def inner(x):
        y = x + a

        def further():
            nonlocal b
            b = b + 0
            return y + b

        z = further()
        return z

    return inner


def changes_what_it_closes_over(total=0):
    def inner(x):
        nonlocal total
        total = x
        y = total + 1
        return y

    return inner


class Base:
    def run(self, x):
        twice = x * 2
        return twice


class Child(Base):
    def __init__(self):
        self.__hidden = 5

    def run(self, x):
        y = super().run(x)
        z = y + self.__hidden
        return z

    def mangled(self, __x):
        __y = __x + self.__hidden
        return __y

    @staticmethod
    def static(x): y = x + 1; return y  # fmt: skip

    @classmethod
    def of_class(cls, x): y = x + 1; return y  # fmt: skip

    @property
    def stored(self):
        y = 3
        return y


def local_class(k):
    class Inner(Base):
        def run(self, x):
            y = super().run(x) + k
            return y

    return Inner


def unpacking(pair, rest):
    a, (b, c) = pair
    first, *others = rest
    [d, *_] = _, _ = others
    return a + b + c + d


def augmented(x):
    x += 1
    x = y = x * 2
    y += 1
    return x + y


def annotated(x):
    later: int
    y: int = x + 1
    later = y
    return later


def walrus(values):
    if (n := len(values)) > 2:
        while (n := n * 2) < 5:
            pass
    text = f"{(shown := n)}" + (lambda default=(m := 1): str(default))()
    return text, [w for v in values if (w := v)], n if False and (never := 1) else shown + m


def looping(k):
    s = 0
    for i, (j, *_) in enumerate([[k], [k]]):
        s = s + i + j
        if s > 100:
            break
    else:
        s = -s
    return s


def catching(d):
    with contextlib.nullcontext(4) as v, contextlib.nullcontext(v + 1) as v, contextlib.nullcontext() as (w):
        try:
            w = 1 / d
        except ZeroDivisionError as error:
            w = str(error)
        else:
            w = None
        finally:
            v += 1
    return v, w, "error" in locals()


def catching_groups():
    try:
        raise ExceptionGroup("several", [ValueError(1), KeyError(2)])
    except* ValueError as some:
        count = len(some.exceptions)
    except* KeyError as others:
        count += len(others.exceptions)
    return count


def matching(x):
    match x:
        case [p, *rest] if p > 10:
            return p, rest
        case [p, q] | (p, q, _):
            return p + q
        case {"a": [*many], "b": Base() as whole, **more}:
            return len(many), whole is x["b"], more
        case anything:
            return anything


def importing():
    import os.path
    import os.path as path
    from os import curdir as here
    from os import sep  # fmt: skip

    return os.path is path, sep, here


def defining(n):
    @functools.lru_cache
    def fib(k):
        below = fib(k - 1) if k > 1 else 0
        return k if k < 2 else below + fib(k - 2)

    class Local(int):
        size = 3

    return Local(fib(n)).size + fib(n)


def signature(a, /, *args, b=5, c, **kw):
    """doc"""
    return a, args, b, c, kw


def through(function):
    @functools.wraps(function)
    def wrapper(*arguments):
        result = function(*arguments)
        return result

    return wrapper


@through
def decorated(x):
    y = x + 1
    return y


@torch.no_grad()
def without_gradients(x):
    y = x + 1
    return y


def generating(n):
    for i in range(n):
        got = yield i * i
        v = got or i
    return v


async def awaiting(n):
    v = n + 1
    await asyncio.sleep(0)
    v = await asyncio.sleep(0, v * 2)
    async for v in numbers(1):
        pass
    async with contextlib.AsyncExitStack() as stack:
        v = stack is not None
    return v


async def numbers(n):
    for i in range(n):
        yield i
    return


def counting(x):
    global counter
    counter = x
    t = x + counter
    counter = 0
    return t


def comprehending(n):
    x = [x * x for x in range(n) if (lambda z: z)(x) >= 0]
    total = sum(y for y in x)
    return x, total


def failing(x):
    y = x + 1
    y = (
        y /
        0
    )  # fmt: skip
    return y


def forgetting(x):
    y = x
    del x
    y = str(y)
    del y
    return "x" in locals()


def finding(n):
    for i in range(n):
        try:
            if i == 2:
                return i
        finally:
            n = 0
    return None


def only_text():
    """Nothing else."""


def leaving(x):
    if x:
        return
    x = 1


CHILD, INNER = Child(), local_class(7)()
PITFALLS = {
    "closure": (closing(10), "y z b further", (1,), [("y", 11), ("further", ...), ("z", 12)]),
    "nonlocal": (changes_what_it_closes_over(), "total y", (1,), [("y", 2)]),
    "super and mangled attribute": (Child.run, "y z", (CHILD, 3), [("y", 6), ("z", 11)]),
    "mangled names": (CHILD.mangled, "__x __y", (3,), [("__x", 3), ("__y", 8)]),
    "super in a local class": (INNER.run, "y x", (1,), [("x", 1), ("y", 9)]),
    "unpacking": (
        unpacking,
        "a b c first others d _",
        ((1, (2, 3)), [4, 5, 6]),
        [*zip("abc", (1, 2, 3), strict=True), ("first", 4), ("others", [5, 6]), ("d", 5), ("_", 6)],
    ),
    "augmented and chained": (
        augmented,
        "x y",
        (1,),
        [("x", 1), ("x", 2), ("x", 4), ("y", 4), ("y", 5)],
    ),
    "annotated": (annotated, "y later", (1,), [("y", 2), ("later", 2)]),
    "walrus": (
        walrus,
        "n m w shown never",
        ([1, 2, 3],),
        [("n", 3), ("n", 6), ("shown", 6), ("m", 1)],
    ),
    "loop": (
        looping,
        "i j s _",
        (3,),
        [
            ("s", 0),
            *[("i", 0), ("j", 3), ("_", []), ("s", 3)],
            *[("i", 1), ("j", 3), ("_", []), ("s", 7)],
            ("s", -7),
        ],
    ),
    "with and try": (
        catching,
        "v w error",
        (0,),
        [("v", 4), ("v", 5), ("w", None), ("error", ...), ("w", "division by zero"), ("v", 6)],
    ),
    "groups": (
        catching_groups,
        "some others count",
        (),
        [("some", ...), ("count", 1), ("others", ...), ("count", 2)],
    ),
    "match": (matching, "p q", ([1, 2],), [("p", 1), ("p", 1), ("q", 2)]),
    "match with a guard": (matching, "p rest", ([11, 2],), [("p", 11), ("rest", [2])]),
    "match of a mapping": (
        matching,
        "many whole more",
        ({"a": [1], "b": CHILD, "c": 2},),
        [("many", [1]), ("whole", CHILD), ("more", {"c": 2})],
    ),
    "match of anything": (matching, "anything", (5,), [("anything", 5)]),
    "imports": (
        importing,
        "os path sep here",
        (),
        [("os", ...), ("path", ...), ("here", "."), ("sep", "/")],
    ),
    "definitions": (defining, "fib Local k below size", (4,), [("fib", ...), ("Local", ...)]),
    "functools.wraps": (decorated, "y", (1,), [("y", 2)]),
    "torch.no_grad": (without_gradients, "y", (1,), [("y", 2)]),
    "static method": (Child.static, "y", (1,), [("y", 2)]),
    "class method": (Child.of_class, "y cls", (1,), [("cls", Child), ("y", 2)]),
    "global": (counting, "t counter", (5,), [("t", 10)]),
    "comprehension": (comprehending, "x y total", (3,), [("x", [0, 1, 4]), ("total", 5)]),
    "exception": (failing, "y", (2,), [("y", 3)]),
    "deleted": (forgetting, "x y", (2,), [("x", 2), ("y", 2), ("y", "2")]),
}


@pytest.mark.parametrize("pitfall", PITFALLS)
def test_every_binding_is_told_and_nothing_else_changes(pitfall):
    function, names, arguments, expected = PITFALLS[pitfall]
    told = told_by(function, names.split(), *arguments)
    assert [name for name, _ in told] == [name for name, _ in expected]
    assert [value for (_, value), (_, known) in zip(told, expected, strict=True) if known is not ...] == [
        value for _, value in expected if value is not ...
    ]


def test_arguments_of_every_kind_are_told_in_the_order_of_the_signature():
    told = told_by(signature, None, 1, 2, 3, c=9, d=4)
    assert told == [("a", 1), ("args", (2, 3)), ("b", 5), ("c", 9), ("kw", {"d": 4})]
    assert signature.__doc__ == signature.__code__.co_consts[0] == "doc"


def test_a_property_is_rewritten_behind_its_name():
    probe, told = watch(Child.stored, ["y"])
    assert (CHILD.stored, told) == (3, [("y", 3)])
    probe.remove()


def test_a_generator_tells_each_value_as_it_is_bound_and_begins_with_its_first_next():
    probe, told = watch(generating, ["n", "i", "v", "got"], returns=True)
    generator = generating(2)
    assert told == []
    assert (next(generator), told) == (0, [("n", 2), ("i", 0)])
    assert generator.send(7) == 1
    assert told[2:] == [("got", 7), ("v", 7), ("i", 1)]
    with pytest.raises(StopIteration) as stop:
        next(generator)
    assert stop.value.value == 1
    assert told[5:] == [("got", None), ("v", 1), ("return", 1)]
    probe.remove()


def test_coroutines_and_asynchronous_loops_are_told():
    told = told_by(awaiting, ["v", "stack"], 3, drive=asyncio.run, returns=True)
    assert [value for name, value in told if name != "stack"] == [4, 8, 0, True, True]
    assert told_by(numbers, ["i"], 2, returns=True, drive=lambda it: asyncio.run(listed(it))) == [
        ("i", 0), ("i", 1), ("return", None),
    ]  # fmt: skip


async def listed(generator):
    return [one async for one in generator]


def test_every_way_out_is_a_return():
    assert told_by(leaving, [], 1, returns=True) == [("return", None)]
    assert told_by(leaving, ["x"], 0, returns=True) == [("x", 0), ("x", 1), ("return", None)]
    assert told_by(only_text, None, returns=True) == [("return", None)]
    assert told_by(finding, [], 5, returns=True) == [("return", 2)]
    assert told_by(finding, [], 0, returns=True) == [("return", None)]
    assert told_by(failing, [], 0, returns=True) == []
    assert told_by(closing(10), [], 1, returns=True) == [("return", 12)]


def test_locals_shows_a_name_that_nobody_can_have():
    def shown(x):
        return sorted(locals())

    probe, _ = watch(shown, None, returns=True)
    assert shown(1) == ["@tap", "x"]
    probe.remove()


def kinds(function):
    return {spot.kind for spot in find_bindings(function)}


def test_spots_say_where_and_how_a_name_is_bound():
    first = catching.__code__.co_firstlineno
    assert [spot for spot in find_bindings(catching) if spot.name in ("d", "v", "error")] == [
        Binding("d", first, 0, "argument"),
        Binding("v", first + 1, 0, "with"),
        Binding("v", first + 1, 1, "with"),
        Binding("error", first + 4, 0, "except"),
        Binding("v", first + 9, 2, "augmented"),
    ]
    assert kinds(walrus) == {"argument", "walrus", "assign"}
    assert kinds(matching) == {"argument", "match"}
    assert kinds(importing) == {"import"}
    assert kinds(looping) == {"argument", "assign", "loop"}
    assert [spot.kind for spot in find_bindings(annotated)] == ["argument", "annotated", "assign"]
    assert [(spot.name, spot.kind) for spot in find_bindings(defining)][1:] == [
        ("fib", "def"),
        ("Local", "def"),
    ]
    assert [spot.kind for spot in find_bindings(unpacking)][2:5] == ["unpack"] * 3


def test_the_spots_of_a_probe_are_those_of_its_names():
    probe, _ = watch(looping, ["s", "k"], returns=True)
    *wanted, last = probe.bindings
    assert wanted == [spot for spot in find_bindings(looping) if spot.name in ("s", "k")]
    assert last == Binding("return", looping.__code__.co_firstlineno + 8, 0, "return")
    probe.remove()


def test_lines_in_tracebacks_are_kept():
    assert "y /" in linecache.getline(__file__, outcome(failing, 1)[2])
    probe, _ = watch(failing, None, returns=True)
    assert "y /" in linecache.getline(__file__, outcome(failing, 1)[2])
    probe.remove()


# Where the source stands


def loaded(path, text, **scope):
    exec(compile(text, str(path), "exec"), scope)
    return scope


TWO = "def f(x):\n    y = x + {}\n    return y\n"


INDENTED = TWO.format("1").replace("\n", "\n    ")
SOURCES = {
    "future annotations": "from __future__ import annotations\n" + TWO.format("1"),
    "imports that change the instructions": "import math\n" + TWO.format("math.floor(1)"),
    "imports that depend": "if True:\n    import math\nelse:\n    math = 1\n" + TWO.format("math.floor(1)"),
    "beside an import": f"try:\n    import math\n    {INDENTED}\nfinally: pass\n",
    "text at the first column": 'def g():\n    """\ndef f(x): pass\n"""\n' + TWO.format("1"),
    "quotes that mislead": "def g():\n    # '''\n    pass\n" + TWO.format("1") + "class A: pass\n",
    "brackets at the first column": "def f(\n    x,\n):\n    y = x + 1\n    return y\n",
    "decorators": "def same(f): return f\n@same\n@same\n" + TWO.format("1"),
    "other definitions": "def g(): pass\nclass A: pass\n" + TWO.format("1") + "\ndef h(): pass\n",
    "a comment first": "# -*- coding: utf-8 -*-\n" + TWO.format("1"),
    "no newline at the end": TWO.format("1").rstrip(),
    "one line": "def f(x): y = x + 1; return y",
    "another of that name": TWO.format("3") + TWO.format("1"),
}


@pytest.mark.parametrize("source", SOURCES)
def test_a_definition_is_found_where_it_stands(tmp_path, source):
    path = tmp_path / "written.py"
    path.write_text(SOURCES[source])
    assert told_by(loaded(path, SOURCES[source])["f"], ["y"], 1) == [("y", 2)]


def test_a_notebook_cell_has_source():
    text = TWO.format("1")
    linecache.cache["<cell 12>"] = (len(text), None, text.splitlines(keepends=True), "<cell 12>")
    assert told_by(loaded("<cell 12>", text)["f"], ["y"], 1) == [("y", 2)]


def test_a_file_that_was_reloaded_is_read_again(tmp_path):
    path = tmp_path / "reloaded.py"
    path.write_text(TWO.format("1"))
    linecache.getlines(str(path))
    newer = "# a line more\n" + TWO.format("2")
    path.write_text(newer)
    assert told_by(loaded(path, newer)["f"], ["y"], 1) == [("y", 3)]


EDITED = {
    "other code": TWO.format("2"),
    "another type": TWO.format("1.0"),
    "other lines": "# one more\n" + TWO.format("1"),
    "not Python": "def f(x:\n",
}


@pytest.mark.parametrize("edited", EDITED)
def test_a_file_that_was_edited_since_is_refused_with_the_reason(tmp_path, edited):
    path = tmp_path / "edited.py"
    path.write_text(EDITED[edited])
    function = loaded(path, TWO.format("1"))["f"]
    probe, told = watch(function, ["y"])
    assert (probe.how, probe.why) == (
        "traced",
        "the file was edited since it was imported, or another tool changed the code",
    )
    assert (function(1), told) == (2, [("y", 2)])
    probe.remove()


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (lambda x: (y := x + 1) * 2, "a lambda has no statements"),
        (loaded("<string>", TWO.format("1"))["f"], "there is no source of <string>"),
    ],
    ids=["lambda", "exec"],
)
def test_without_source_lines_are_traced(function, why):
    probe, told = watch(function, ["y"])
    assert (probe.how, probe.why) == ("traced", why)
    function(1)
    assert told == [("y", 2)]
    probe.remove()


def test_assertions_that_pytest_rewrote_are_traced():
    def sure(x):
        y = x + 1
        assert y
        return y

    probe, told = watch(sure, ["y"])
    assert probe.why == "pytest rewrote its assertions"
    assert (sure(1), told) == (2, [("y", 2)])
    probe.remove()
