"""Lines of a call tree: folding, labels, encodings, and words for any value."""

import threading

import pytest

from tensortap.render.call_tree import MAX_BLOCK_LENGTH, RepeatFolder
from tensortap.render.call_tree_values import (
    CHINESE,
    ENGLISH,
    CallLine,
    choose_labels,
    fit_line,
    make_encodable,
)
from tensortap.render.text import ShortRepr


def fold(texts):
    """What is written of lines that hold no numbers."""
    folding = RepeatFolder(ENGLISH)
    written = [line for text in texts for line in folding.add(CallLine(text))]
    return [line.text for line in [*written, *folding.end()]]


def test_lines_that_differ_pass_as_they_come():
    assert fold("abcab") == list("abcab")


def test_a_line_again_is_counted():
    assert fold("aaaab") == ["a", "⋮ the line above 3 more times", "b"]


def test_a_block_is_written_twice_and_then_counted():
    assert fold("abcabcabcabcd") == [*"abcabc", "⋮ the 3 lines above 2 more times", "d"]


def test_half_a_block_at_the_end_is_written_in_full():
    assert fold("ababababa") == [*"abab", "⋮ the 2 lines above 2 more times", "a"]


def test_two_loops_one_after_the_other_are_both_folded():
    assert fold("ababababcdcdcdcd") == [
        *"abab",
        "⋮ the 2 lines above 2 more times",
        *"cdcd",
        "⋮ the 2 lines above 2 more times",
    ]


def test_what_came_once_more_is_written_and_not_counted():
    assert fold("aab") == list("aab")
    assert fold("abcabcabcabd") == list("abcabcabcabd")
    longest = [str(n) for n in range(MAX_BLOCK_LENGTH)]
    texts = [*longest, *longest, *longest, *longest[:-1], "end"]
    assert fold(texts) == texts


def test_nothing_is_lost_whatever_comes():
    import random

    chance = random.Random(0)
    for _ in range(300):
        texts = [chance.choice("ab") * chance.randint(1, 2) for _ in range(chance.randint(1, 60))]
        told = 0
        for text in fold(texts):
            words = text.split()
            if "⋮" not in text:
                told += 1
            else:
                told += int(words[-3]) * (int(words[2]) if words[3] == "lines" else 1)
        assert told == len(texts), texts


def test_a_block_longer_than_the_limit_is_never_held_back():
    texts = [str(n) for n in range(MAX_BLOCK_LENGTH + 1)]
    assert fold(texts * 4) == texts * 4


def test_memory_does_not_grow_with_the_lines():
    folding = RepeatFolder(ENGLISH)
    for n in range(10_000):
        folding.add(CallLine(str(n)))
    assert len(folding._last) <= 4 * MAX_BLOCK_LENGTH + 1


def test_labels_that_the_encoding_lacks_are_english(monkeypatch):
    monkeypatch.setenv("TENSORTAP_LANG", "zh")
    assert choose_labels("utf-8") is choose_labels(None) is choose_labels("gbk") is CHINESE
    assert choose_labels("latin-1") is choose_labels("ascii") is ENGLISH


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp437", "gbk", "utf-8", "no-such"])
def test_a_line_can_be_written_in_any_encoding(encoding):
    text = make_encodable("│   ├─ [Tensor] é汉@1 → shape=() …", encoding)
    text.encode(encoding if encoding != "no-such" else "ascii")
    assert "[Tensor]" in text


def test_a_line_is_cut_by_columns_so_that_its_notes_stay():
    line = CallLine("├─ 输入 [Var] " + "汉" * 40, "~len", "! first NaN: 1 of 2")
    shown = fit_line(line, 60)
    assert shown.endswith("…  ~len  ! first NaN: 1 of 2")
    assert len(shown) + sum(letter > "\u1100" and letter not in "├─…" for letter in shown) <= 62
    assert fit_line(line, None) == line.plain()


def test_words_never_hold_an_address():
    assert ShortRepr().format(object()) == "object"
    assert (
        ShortRepr().format(test_words_never_hold_an_address) == "<function test_words_never_hold_an_address>"
    )
    assert " at 0x" not in ShortRepr().format(threading.Lock())


def test_a_class_with_a_name_of_its_own_making_is_named_all_the_same():
    class Meta(type):
        __name__ = property(lambda self: 1 / 0)

    class Odd(metaclass=Meta):
        pass

    assert ShortRepr().format(Odd()).endswith("Odd")
