"""What the page of a comparison is told: the sentence first, then where, by how much, and why."""

import json
import re
import threading

import numpy as np
import pytest
from tests.viewer.sample import EVIL, NAMES, STEPS, keep_command, keep_program

import tensortap as tt
from tensortap.core.record import Record
from tensortap.sinks.run_directory import RunDirectory
from tensortap.viewer.compare.facts import error_growth


def compared(client, query=""):
    """The address of the comparison of a and b, once it is done."""
    return answered(client, f"/api/compare?a={client.run('a')}&b={client.run('b')}{query}")


def answered(client, path):
    with client.http.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: hello"
        told = client.json(path)
        if told["state"] == "running":
            data = (json.loads(line[5:]) for line in lines if line.startswith("data:"))
            told = next(one for one in data if one.get("c") == told["c"] and one["state"] != "running")
    assert told["state"] == "done", told["text"]
    return f"/api/compare/{told['c']}"


@pytest.fixture
def client(look):
    return look()


def test_a_comparison_lands_on_its_sentence(client):
    told = client.json(compared(client))["comparison"]
    assert told["sentence"].startswith("Equal for 3 steps. First difference: step 3, layers.1.attn")
    assert told["state"] == "different"
    assert told["first"]["seen_at"] == "layers.1.attn"
    assert told["coverage"]["pairs"] == STEPS * (len(NAMES) + 1)
    assert told["counts"]["identical"] == STEPS * (len(NAMES) + 1) - 6


def test_the_lines_of_code_that_differ_are_told(look, folder):
    for name, text in (("a", "scale = 1\n<b>\n"), ("b", "scale = 2\n<b>\n")):
        keep_program(folder / name, "train.py", text)
    client = look()
    told = client.json(compared(client))["comparison"]
    (change,) = told["changes"]
    assert (change["file"], change["added"], change["removed"]) == ("train.py", 1, 1)
    assert change["hunks"] == ["@@ -1,2 +1,2 @@", "-scale = 1", "+scale = 2", " <b>"]
    assert next(one["names"] for one in told["gate"] if one["what"] == "code") == ["files.train.py"]
    page = client.get(f"{compared(client)}/export.html").text
    assert "<h2>Lines of code that differ</h2><pre>train.py, in both, not the same\n" in page
    assert "-scale = 1\n+scale = 2\n &lt;b&gt;\n" in page


def test_kept_code_that_is_damaged_costs_a_comparison_nothing_else(look, folder):
    keep_program(folder / "a", "train.py", "scale = 1\n")
    keep_program(folder / "b", "train.py", "scale = 2\n")
    (folder / "b" / ".tensortap" / "code" / "sources.tar").write_bytes(b"no tar")
    client = look()
    told = client.json(compared(client))["comparison"]
    assert (told["changes"], told["state"]) == ([], "different")


def test_two_equal_runs_are_told_to_be(look, folder):
    client = look(folder / "a")
    run = client.run("a")
    identity = client.viewer.state.comparisons.add(tt.compare_runs(folder / "a", folder / "a"))
    told = client.json(f"/api/compare/{identity}")["comparison"]
    assert told["sentence"] == f"Identical: all {STEPS * 5} pairs are the same, bit for bit."
    assert (told["state"], told["first"], told["a"]["id"]) == ("same", None, run)


def test_only_sides_that_say_how_they_were_made_can_be_made_again(look, folder):
    keep_command(folder / "b")
    client = look()
    told = client.json(compared(client))["comparison"]
    assert told["a"]["reproduce"] is None
    assert told["b"]["reproduce"] == f"tensortap reproduce {folder / 'b'}"


def test_a_comparison_with_one_run_says_that_the_other_is_missing(client):
    refused = client.json(f"/api/compare?a={client.run('a')}", 400)["error"]["text"]
    assert refused.startswith("a comparison needs two runs, and the address does not say which is b;")


def written(path, sizes):
    """One value over the steps, as far from 1 as each of these numbers."""
    sink = RunDirectory(path)
    for step, size in enumerate(sizes):
        sink.write(Record("x", np.full(64, 1 + size), "output", step, order=0))
    sink.close()
    return path


@pytest.mark.parametrize(
    ("sizes", "wanted"),
    [
        ([1e-3 * 2 ** (step / 3) for step in range(12)], "the error doubles every 3.01 steps"),
        ([1.0e-3, 1.3e-3, 0.9e-3, 1.2e-3, 1.1e-3, 1.4e-3, 1.0e-3, 1.3e-3], "the error does not clearly grow"),
        ([1e-3, 3e-3, 0.5e-3, 2e-3, 6e-3, 1e-3], "the error does not clearly grow"),
        ([1e-3 * 2 ** (step / 40) for step in range(12)], "the error does not clearly grow"),
    ],
    ids=["doubling", "flat and noisy", "wildly noisy", "slowly"],
)
def test_an_error_doubles_only_where_it_is_seen_to(tmp_path, sizes, wanted):
    found = tt.compare_runs(written(tmp_path / "a", [0] * len(sizes)), written(tmp_path / "b", sizes))
    assert error_growth(found)["text"].startswith(wanted)


def test_the_map_has_tensors_in_execution_order_and_the_first_point(client):
    facts, columns = client.columns(f"{compared(client)}/map.bin?error=max_abs")
    assert facts["names"] == [*NAMES, "loss"]
    assert facts["steps"] == list(range(STEPS))
    assert facts["first"] == {"tensor": 2, "step": 3}
    errors = columns["error"].reshape(5, STEPS)
    assert (errors[2:4, 3:] > 0).all()
    assert errors.sum() == pytest.approx(errors[2:4, 3:].sum())
    assert columns["pair"].reshape(5, STEPS)[2, 3] == 3 * 5 + 2
    assert client.json(f"{compared(client)}/map.bin?error=colour", 400)["error"]["kind"] == "usage"


def test_repeated_calls_are_lines_of_their_own(look, tmp_path):
    for name in ("a", "b"):
        sink = RunDirectory(tmp_path / "calls" / name)
        for call in range(3):
            sink.write(Record("block", np.full(16, call, "f4"), "output", call=call, order=call))
        sink.close()
    client = look(tmp_path / "calls")
    facts, _ = client.columns(f"{compared(client)}/map.bin")
    assert facts["names"] == ["block", "block@1", "block@2"]


def test_pairs_know_the_rows_they_are_made_of(client):
    address = compared(client)
    facts, columns = client.columns(f"{address}/pairs.bin")
    assert facts["pairs"] == len(columns["name"]) == STEPS * 5
    assert columns["row_a"].tolist() == columns["row_b"].tolist() == list(range(STEPS * 5))
    _, rows = client.columns(f"{address}/rows.bin?q=err>0 step>3&sort=err&desc=1")
    assert len(rows["row"]) == 4
    errors = columns["relative_l2"][rows["row"]]
    assert (np.diff(errors) <= 0).all()
    assert (columns["ulp"][rows["row"]] > 1).all()
    assert client.columns(f"{address}/rows.bin?q=verdict:identical")[0]["matched"] == STEPS * 5 - 6


def test_a_pair_tells_its_story_and_shows_the_shape_of_the_difference(client):
    told = client.json(f"{compared(client)}/pair/17")
    assert told["name"] == "layers.1.attn"
    assert told["a"]["step"] == told["b"]["step"] == 3
    assert "layers.1.attn" in told["story"]
    assert any("axis" in one for one in told["symptoms"])
    assert told["metrics"]["max_at"][:2] == [0, 3]
    names: dict = {}
    exec(told["python"], names)
    assert not np.array_equal(names["a"], names["b"])
    assert client.json(f"{compared(client)}/pair/999", 404)["error"]["kind"] == "unknown"


def test_a_b_and_their_difference_are_tiles_of_one_shape(client):
    base = f"{compared(client)}/pair/17"
    sides = {
        side: client.columns(f"{base}/tile.bin?side={side}&index=0,:,:")[1]["value"].reshape(8, 16)
        for side in "abd"
    }
    np.testing.assert_allclose(sides["d"], sides["b"] - sides["a"], atol=1e-6)
    assert np.flatnonzero(np.abs(sides["d"]).sum(1)).tolist() == [3]
    worst = client.json(f"{base}/top?side=d&k=1")["elements"][0]
    assert worst["value"] == pytest.approx(worst["b"] - worst["a"])
    assert worst["index"][:2] == [0, 3]
    assert client.json(f"{base}/elements?at=0,0,0")["elements"][0]["value"] == 0
    profile = client.json(f"{base}/profile?side=d&axis=1")
    assert int(np.argmax(profile["mean"])) == 3
    points = client.json(f"{base}/scatter?n=50")
    assert len(points["a"]) == len(points["b"]) <= 50
    client.json(f"{base}/tile.bin?side=c", 400)


def test_names_without_a_partner_are_listed_with_rules_that_pair_them(look, tmp_path):
    for name, prefix in (("a", "model.layers"), ("b", "layers")):
        sink = RunDirectory(tmp_path / "named" / name)
        for order in range(3):
            value = np.arange(8, dtype="f4") if name == "a" else np.arange(8, dtype="f2")
            sink.write(Record(f"{prefix}.{order}.{name * order}", value[: order + 2], "output", order=order))
        sink.close()
    client = look(tmp_path / "named", allow_actions=True)
    address = compared(client)
    told = client.json(f"{address}/names")
    assert told["only_a"] or told["guesses"]
    rules = '[[rule]]\nfrom = "model.layers.0."\nto = "layers.0."\n'
    again = client.post(f"{address}/rules", {"toml": rules, "save": "map.toml"})
    assert again["c"] not in address
    assert (tmp_path / "named" / "map.toml").read_text() == rules
    for name in ("../map.toml", "map.txt", "/etc/map.toml", ".toml"):
        client.post(f"{address}/rules", {"toml": rules, "save": name}, 400)
    assert "not TOML" in client.post(f"{address}/rules", {"toml": "="}, 400)["error"]["text"]


def test_rules_are_saved_only_where_that_is_allowed(client, folder):
    address = compared(client)
    refused = client.post(f"{address}/rules", {"toml": "", "save": "map.toml"}, 403)
    assert "--allow-actions" in refused["error"]["text"]
    assert not list(folder.glob("*.toml"))


def test_a_comparison_can_be_narrowed(client):
    whole = client.json(compared(client))["comparison"]["pairs"]
    one = client.json(compared(client, "&step=2"))["comparison"]
    assert (one["pairs"], one["state"]) == (whole // STEPS, "same")


def test_a_comparison_that_fails_says_why(client):
    path = f"/api/compare?a={client.run('a')}&b={client.run('b')}&only="
    assert client.json(path)["state"] in ("running", "done")
    assert client.json("/api/compare?a=ffff&b=ffff", 404)["error"]["kind"] == "unknown"
    assert client.json("/api/compare/ffff", 404)["error"]["kind"] == "unknown"


def test_the_export_is_one_small_page_without_scripts_or_links(look, folder):
    (folder / "b" / "project.patch").write_text(
        f"+++ b/model.py\n@@ -1 +1 @@\n+{EVIL}\n" + "+x\n" * 3_000_000
    )
    client = look()
    page = client.get(f"{compared(client)}/export.html").text
    assert len(page.encode()) <= 5 << 20
    assert "First difference: step 3" in page
    assert page.count("<img") == 3
    assert page.count("<image") == 1
    assert "<script" not in page
    assert "onerror=alert" not in page.replace("&lt;img src=x onerror=alert(1)&gt;", "")
    assert not re.search(r"(?:src|href)=[\"'](?!data:)", page)


def test_the_export_shows_the_slice_that_differs_and_names_the_lines_of_its_map(look, tmp_path):
    for name, factor in (("a", 1), ("b", 3)):
        sink = RunDirectory(tmp_path / "sliced" / name)
        for step in range(3):
            for rank in range(2):
                value = np.ones((2, 4, 8, 16), np.float32)
                value[1, 2, 5] *= factor if step and rank else 1
                sink.write(Record("layers.7.<b>", value, "output", step + 40, rank=rank, time=1e9))
        sink.close()
    client = look(tmp_path / "sliced")
    page = client.get(f"{compared(client)}/export.html").text
    assert "B - A [1, 2, :, :], from 0 to 2" in page
    for told in ("layers.7.&lt;b&gt;", "40", "first difference"):
        assert f">{told}</text>" in page


def test_the_report_is_what_to_json_gives(client, folder):
    told = client.json(f"{compared(client)}/report.json")
    expected = tt.compare_runs(folder / "a", folder / "b").to_json()
    assert told["headline"] == expected["headline"]
    assert len(told["pairs"]) == len(expected["pairs"])


def test_a_comparison_made_in_python_is_shown_without_runs(look):
    a = {"x": np.ones((4, 4), "f4"), "y": np.zeros((4, 4), "f4")}
    found = tt.compare_runs(a, {**a, "y": np.ones((4, 4), "f4")})
    client = look(found)
    assert client.viewer.state.start.startswith("/compare?c=")
    address = f"/api/compare/{client.viewer.state.start.partition('=')[2]}"
    told = client.json(address)
    assert (told["a"], told["comparison"]["first"]["seen_at"]) == (None, "y")
    assert client.columns(f"{address}/pairs.bin")[1]["row_a"].tolist() == [0xFFFFFFFF] * 2
    _, columns = client.columns(f"{address}/pair/1/tile.bin?side=d")
    assert columns["value"].tolist() == [1.0] * 16
    refused = client.post(f"{address}/rules", {"toml": ""}, 400)
    assert "made in Python" in refused["error"]["text"]


def test_a_comparison_that_waits_for_another_says_so(client):
    comparisons, is_let = client.viewer.state.comparisons, threading.Event()
    comparisons._worker.submit(lambda: is_let.wait(30))  # the one thread has something else to do
    a, b = client.run("a"), client.run("b")
    first = client.json(f"/api/compare?a={a}&b={b}")
    second = client.json(f"/api/compare?a={b}&b={a}")
    assert (first["state"], first["text"]) == ("running", "")
    assert (second["state"], second["text"]) == ("running", "waiting until another comparison is done")
    is_let.set()
    assert client.json(answered(client, f"/api/compare?a={b}&b={a}"))["text"] == ""


def test_a_run_that_went_on_is_compared_anew_whoever_noticed_first(look, folder):
    sink = RunDirectory(folder / "growing")
    sink.write(Record("layers.0.attn", np.ones((2, 8, 16), np.float32), "output", 0, time=1e9))
    client = look()
    asked = f"/api/compare?a={client.run('a')}&b={client.run('growing')}"
    assert client.json(answered(client, asked))["comparison"]["pairs"] == 1
    sink.write(Record("layers.0.attn", np.ones((2, 8, 16), np.float32), "output", 1, time=1e9))
    sink.close()
    stock = client.viewer.state.library.open_run(client.run("growing"))
    stock._last_refresh = 0.0
    stock.refresh()  # as the page of the run does
    assert len(stock) == 2
    assert client.json(answered(client, asked))["comparison"]["pairs"] == 2


def test_rules_are_never_written_over_something_else(look, folder):
    (folder / "pyproject.toml").write_text("[project]\n")
    (folder / "link.toml").symlink_to(folder / "elsewhere.toml")
    client = look(allow_actions=True)
    address, rules = compared(client), 'ignore = ["loss"]\n'
    for name in ("pyproject.toml", "link.toml"):
        client.post(f"{address}/rules", {"toml": rules, "save": name}, 403)
    assert (folder / "pyproject.toml").read_text() == "[project]\n"
    assert not (folder / "elsewhere.toml").exists()
    for _ in range(2):
        client.post(f"{address}/rules", {"toml": rules, "save": "map.toml"})
    assert (folder / "map.toml").read_text() == rules
