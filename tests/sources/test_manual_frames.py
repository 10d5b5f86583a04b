"""What a caller's frame tells: the line, and what the value was called there."""

import linecache
import sys

import pytest

from tensortap.sources.manual import argument_name, site_of

seen = []


def name_of(value=None, *rest, **named):
    """Stands for a call that the user wrote."""
    seen[:] = [argument_name(sys._getframe(1)), site_of(sys._getframe(1))]
    return seen[0]


class Holder:
    part = None

    def method(self):
        return name_of(self.part)


def test_a_plain_variable_gives_its_name():
    loss = 1
    assert name_of(loss) == "loss"
    assert name_of(loss, "rest", key=name_of) == "loss"


def test_a_dotted_path_gives_its_text():
    holder = Holder()
    holder.part = Holder()
    assert name_of(holder.part.part) == "holder.part.part"
    assert holder.method() == "self.part"


def test_a_call_over_several_lines_is_understood():
    hidden_state = 1
    found = name_of(
        # the state, not the cell
        hidden_state,
        "second",
    )
    assert found == "hidden_state"


def test_the_right_one_of_several_calls_on_a_line_is_found():
    a, b = 1, 2
    assert [name_of(a), name_of(b)] == ["a", "b"]
    assert (name_of(name_of(a)), seen[0]) == (None, None)


def test_unicode_before_the_call_does_not_shift_it():
    größe, x = "ääääää", 1
    assert ("äöü→", größe, name_of(x))[2] == "x"


def test_other_expressions_have_no_name():
    x = [1]
    assert (
        name_of(x[0]) is name_of(x + x) is name_of(3) is name_of(*x) is name_of(value=x) is name_of() is None
    )


def test_calls_inside_other_constructs_are_named_or_not_but_never_wrongly():
    a = b = 1
    assert (lambda x: name_of(x))(a) == "x"
    assert [name_of(item) for item in (a, b)] == ["item", "item"]
    assert {name_of(b): 0} == {"b": 0}
    assert f"{name_of(a)}" in ("a", "None")
    assert f"{b} text {name_of(a)!s:>3} {b}".split()[2] in ("a", "None")
    assert (
        f"""{b}
    {name_of(a)}""".split()[1]
        in ("a", "None")
    )


def test_code_without_source_has_no_name():
    scope = {"name_of": name_of, "x": 1}
    exec("found = name_of(x)", scope)
    assert scope["found"] is None


def test_code_of_a_notebook_cell_is_named():
    source = "found = name_of(tensor)\n"
    linecache.cache["<cell 1>"] = (len(source), None, [source], "<cell 1>")
    scope = {"name_of": name_of, "tensor": 1}
    exec(compile(source, "<cell 1>", "exec"), scope)
    assert scope["found"] == "tensor"


def test_a_file_that_was_edited_since_gives_no_name_that_the_code_does_not_know(tmp_path):
    path = tmp_path / "edited.py"
    path.write_text("found = name_of(other)\n")
    scope = {"name_of": name_of, "value": 1}
    exec(compile("found = name_of(value)\n", str(path), "exec"), scope)
    assert scope["found"] is None


def test_a_site_is_the_users_line():
    name_of(1)
    site = seen[1]
    assert site.function == "test_a_site_is_the_users_line"
    assert site.file == __file__
    assert linecache.getline(__file__, site.line).strip() == "name_of(1)"


@pytest.mark.parametrize("code", ["name_of(x)", "def f():\n  name_of(x)\nf()"])
def test_equal_code_in_two_files_has_two_sites(code):
    files = []
    for file in ("<cell 7>", "<cell 8>"):
        exec(compile(code, file, "exec"), {"name_of": name_of, "x": 1})
        files.append(seen[1].file)
    assert files == ["<cell 7>", "<cell 8>"]


def test_a_method_is_named_with_its_class():
    Holder().method()
    assert seen[1].function == "Holder.method"
