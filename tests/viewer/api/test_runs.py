"""What the pages of runs are told: columns, rows, values, and what is damaged."""

import io
import json
import shlex
import time

import numpy as np
import pytest
import torch
from tests.viewer.sample import EVIL, NAMES, STEPS, keep_command, write

import tensortap as tt
from tensortap.core.record import Record, Site
from tensortap.readers.listing import runs_being_written, summarize_run
from tensortap.sinks.run_directory import RunDirectory
from tensortap.viewer.data import run_facts
from tensortap.viewer.data.library import id_of_path
from tensortap.viewer.workspace import state


def test_runs_are_listed_with_the_shortest_ids(look):
    client = look()
    runs = client.json("/api/runs")["runs"]
    assert sorted(run["name"] for run in runs) == ["a", "b"]
    for run in runs:
        assert run["state"] == "finished"
        assert run["captures"] == STEPS * (len(NAMES) + 1)
        assert run["steps"] == {"first": 0, "last": STEPS - 1, "count": STEPS}
        assert len(run["id"]) >= 4
        assert client.json(f"/api/run/{run['id']}")["name"] == run["name"]


def test_a_command_to_copy_is_safe_whatever_the_run_is_called(look, folder):
    path = keep_command((folder / "a").rename(folder / "it's; echo $HOME"))
    client = look()
    told = client.json(f"/api/run/{client.run(path.name)}")["reproduce"]
    assert shlex.split(told) == ["tensortap", "reproduce", str(path)]


def test_a_run_that_does_not_say_how_it_was_made_cannot_be_made_again(look):
    client = look()
    assert client.json(f"/api/run/{client.run('a')}")["reproduce"] is None


def test_commits_are_told_in_words(look, folder):
    commit = {"commit": "0fc3bb33303f06f7", "author": "Ada", "date": "2026-11-18", "message": "begin"}
    info = {"project_git_info": {"branch": "main", "git_log": [commit, "odd"], "git_diff": "+1"}}
    (folder / "a" / "git_info.json").write_text(json.dumps(info))
    client = look()
    cards = client.json(f"/api/run/{client.run('a')}")["provenance"]
    (code,) = (card["facts"] for card in cards if card["title"] == "Code")
    assert code == [["branch", "main"], ["commit 0fc3bb33303f", "2026-11-18 · Ada · begin"]]


def test_runs_can_be_asked_for_in_the_query_language(look):
    client = look()
    assert len(client.json("/api/runs?q=steps>3")["runs"]) == 2
    assert len(client.json("/api/runs?q=captures>9999")["runs"]) == 0
    refused = client.json("/api/runs?q=stps>3", 400)["error"]
    assert (refused["kind"], refused["at"]) == ("query", 0)


def test_columns_are_the_index(look):
    client = look()
    facts, columns = client.columns(f"/api/run/{client.run('a')}/columns.bin")
    assert facts["rows"] == len(columns["name"]) == STEPS * (len(NAMES) + 1)
    names = [facts["texts"]["name"][code] for code in columns["name"]]
    assert names[:5] == [*NAMES, "loss"]
    assert columns["step"].tolist() == sorted(columns["step"].tolist())
    assert facts["texts"]["shape"][columns["shape"][0]] == "2,8,16"
    assert facts["texts"]["site"][columns["site"][0]] == "model.py:212 forward"
    assert columns["nbytes"][0] == 2 * 8 * 16 * 4


def test_columns_that_the_page_has_are_not_sent_again(look):
    client = look()
    path = f"/api/run/{client.run('a')}/columns.bin"
    tag = client.get(path).headers["etag"]
    assert client.get(path, 304, headers={"if-none-match": tag}).content == b""


def test_rows_are_found_and_sorted_by_the_server(look):
    client = look()
    run = client.run("a")
    facts, columns = client.columns(f"/api/run/{run}/rows.bin?q=attn step:2..3&sort=name&desc=1")
    assert facts["matched"] == len(columns["row"]) == 4
    names = [client.json(f"/api/run/{run}/row/{row}")["name"] for row in columns["row"]]
    assert names == ["layers.1.attn"] * 2 + ["layers.0.attn"] * 2
    assert client.json(f"/api/run/{run}/rows.bin?sort=colour", 400)["error"]["kind"] == "usage"


def test_statistics_are_computed_for_the_rows_that_are_seen(look):
    client = look()
    _, columns = client.columns(f"/api/run/{client.run('a')}/stats.bin?rows=0,4")
    value = np.random.default_rng(0).standard_normal((2, 8, 16)).astype(np.float32)
    assert columns["known"].tolist() == [1, 1]
    assert columns["mean"][0] == pytest.approx(value.mean(), abs=1e-6)
    assert columns["absmax"][0] == pytest.approx(np.abs(value).max())
    assert columns["mean"][1] == 1.0


def test_the_health_of_a_run_is_found_out_in_the_background(look, folder):
    sink = RunDirectory(folder / "sick")
    for step in range(5):
        value = np.ones(4, np.float32)
        value[step - 3] = np.nan if step >= 3 else 1
        sink.write(Record("layer", value, step=step))
    sink.close()
    client = look(folder / "sick")
    with client.http.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        run = client.run("sick")
        client.json(f"/api/run/{run}")
        for line in lines:
            if line.startswith("data:") and json.loads(line[5:]).get("known") == 5:
                break
    told = client.json(f"/api/run/{run}")
    assert told["sentence"].endswith("first NaN at step 3 in layer")
    assert told["first_odd"]["step"] == 3
    assert told["health"]["nan"] == 2
    assert client.columns(f"/api/run/{run}/rows.bin?q=nan>0")[1]["row"].tolist() == [3, 4]


def test_the_health_of_runs_that_are_listed_is_found_out_too(look, folder):
    sink = RunDirectory(folder / "sick")
    sink.write(Record("layer", np.array([1, np.nan], np.float32)))
    sink.close()
    client = look()
    with client.http.stream("GET", "/api/events") as stream:
        wanted = {run["id"] for run in client.json("/api/runs")["runs"]}
        for line in stream.iter_lines():
            told = json.loads(line[5:]) if line.startswith("data:") else {}
            if told.get("known") and told["known"] == told["of"]:
                wanted.discard(told["id"])
            if not wanted:
                break
    health = {run["name"]: run["health"] for run in client.json("/api/runs")["runs"]}
    assert {name: (one["known"], one["nan"]) for name, one in health.items()} == {
        "a": (health["a"]["of"], 0),
        "b": (health["b"]["of"], 0),
        "sick": (1, 1),
    }


def test_a_run_that_is_opened_while_it_is_glimpsed_is_looked_through_to_its_end(look, folder, monkeypatch):
    monkeypatch.setattr(state, "_MAX_BYTES_IF_LISTED", 0)
    monkeypatch.setattr(state, "_TYPING_PAUSE", 3600.0)
    client, run = look(), id_of_path(folder / "a")
    client.get(f"/api/run/{run}/rows.bin?q=layer")  # so that the glimpse waits until the run is opened
    client.json("/api/runs")
    with client.http.stream("GET", "/api/events") as stream:
        client.json(f"/api/run/{run}")
        monkeypatch.setattr(state, "_TYPING_PAUSE", 0.0)
        short = client.run("a")
        told = (json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:"))
        assert any(one.get("id") == short and one.get("known") == one.get("of", -1) for one in told)


def test_while_somebody_types_nothing_is_found_out_in_the_background(look, folder, monkeypatch):
    monkeypatch.setattr(state, "_TYPING_PAUSE", 3600.0)
    client, run = look(), id_of_path(folder / "a")  # to list the runs would begin with it
    client.get(f"/api/run/{run}/rows.bin?q=layer")
    with client.http.stream("GET", "/api/events") as stream:
        client.json(f"/api/run/{run}")
        for _ in range(20):  # answers, each of which the work in the background would make room for
            assert client.json(f"/api/run/{run}")["health"]["known"] == 0
        monkeypatch.setattr(state, "_TYPING_PAUSE", 0.0)
        told = (json.loads(line[5:]) for line in stream.iter_lines() if line.startswith("data:"))
        assert any(one.get("known") == one.get("of", -1) for one in told)


def test_the_icon_is_asked_for_once(look):
    assert "max-age" in look().get("/favicon.ico").headers["cache-control"]


def test_a_record_with_both_nan_and_inf_is_one(look, tmp_path):
    sink = RunDirectory(tmp_path / "odd", stats=True)
    sink.write(Record("x", np.array([np.nan, np.inf], np.float32)))
    sink.close()
    (run,) = look(tmp_path / "odd").json("/api/runs")["runs"]
    assert {name: run["health"][name] for name in ("nan", "inf", "odd")} == {"nan": 1, "inf": 1, "odd": 1}


def test_a_record_is_found_by_what_the_address_says(look):
    client = look()
    run = client.run("a")
    exact = client.json(f"/api/run/{run}/find?name=layers.0.mlp&step=2&rank=0")["row"]
    assert client.json(f"/api/run/{run}/row/{exact}")["step"] == 2
    nearest = client.json(f"/api/run/{run}/find?name=layers.0.mlp&step=99")["row"]
    assert client.json(f"/api/run/{run}/row/{nearest}")["step"] == STEPS - 1
    told = client.json(f"/api/run/{run}/find?name=layers.0.mpl", 404)
    assert "did you mean 'layers.0.mlp'" in told["error"]["text"]


def test_a_record_tells_what_it_is_and_how_to_load_it(look, folder):
    client = look()
    told = client.json(client.row("layers.1.attn", step=2))
    assert told["shape"] == [2, 8, 16]
    assert told["site"]["line"] == 212
    assert told["view"] == {"axes": [1, 2], "index": "0,:,:"}
    assert told["steps"] == [0, STEPS - 1, STEPS]
    assert told["statistics"]["count"] == 256
    names: dict = {}
    exec(told["python"], names)
    expected = tt.Run(folder / "a").load("layers.1.attn", step=2)
    np.testing.assert_array_equal(names["x"], expected)


@pytest.mark.parametrize(("number", "told"), [(-np.inf, "-inf"), (np.nan, "nan"), (0.25, 0.25)])
def test_a_single_number_is_told_as_it_is(look, tmp_path, number, told):
    sink = RunDirectory(tmp_path / "single")
    sink.write(Record("x", np.array([[number]], np.float32)))
    sink.close()
    client = look(tmp_path / "single")
    assert client.json(f"/api/run/{client.run('single')}/row/0")["value"] == told


def test_a_tile_is_the_part_of_the_tensor(look, folder):
    client = look()
    address = client.row("layers.0.attn", step=1)
    value = tt.Run(folder / "a").load("layers.0.attn", step=1)
    facts, columns = client.columns(f"{address}/tile.bin?axes=1,2&index=1,:,:")
    assert (facts["height"], facts["width"], facts["exact"]) == (8, 16, True)
    np.testing.assert_array_equal(columns["value"].reshape(8, 16), value[1])
    assert facts["high"] == pytest.approx(value[1].max())
    tag = client.get(f"{address}/tile.bin").headers["etag"]
    client.get(f"{address}/tile.bin", 304, headers={"if-none-match": tag})


def test_a_sampled_tile_is_told_apart_and_refined(look, tmp_path, monkeypatch):
    monkeypatch.setattr("tensortap.viewer.data.tiles.compute_tile.__defaults__", (1 << 20, 0))
    value = np.random.default_rng(0).standard_normal((1024, 8192)).astype(np.float32)
    sink = RunDirectory(tmp_path / "large")
    sink.write(Record("large", value))
    sink.close()
    client = look(tmp_path / "large")
    address = f"/api/run/{client.run('large')}/row/0/tile.bin?lod=5"
    with client.http.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: hello"
        facts, _ = client.columns(address)
        assert (facts["how"], facts["exact"]) == ("sampled", False)
        assert "etag" not in client.get(address).headers
        assert any(line == "event: refined" for line in lines)
    facts, columns = client.columns(address)
    assert facts["exact"]
    expected = value.reshape(32, 32, 256, 32).max(axis=(1, 3))
    np.testing.assert_array_equal(columns["max"].reshape(32, 256), expected)


def test_what_is_said_of_the_numbers_is_about_those_numbers(look, folder):
    client = look()
    address = client.row("layers.0.attn", step=0)
    value = tt.Run(folder / "a").load("layers.0.attn", step=0)
    assert client.json(f"{address}/range?index=0,:,:")["high"] == pytest.approx(value[0].max())
    assert sum(client.json(f"{address}/hist?bins=8")["counts"]) == value.size
    assert sum(client.json(f"{address}/hist?bins=8&index=0,:,:")["counts"]) == value[0].size
    np.testing.assert_allclose(
        client.json(f"{address}/profile?axis=2")["mean"], value.mean((0, 1)), rtol=1e-5
    )
    best = client.json(f"{address}/top?k=1")["elements"][0]
    assert best["value"] == value[tuple(best["index"])] == value.flat[np.abs(value).argmax()]
    one = client.json(f"{address}/elements?at=1,2,3")["elements"][0]
    assert one["bits"] == f"0x{value[1, 2, 3].view(np.uint32):08x}"
    assert client.json(f"{address}/nonsense", 404)["error"]["kind"] == "unknown"
    assert client.json(f"{address}/elements?at=9,9,9", 400)["error"]["kind"] == "usage"


def test_a_download_is_a_npy_file(look, folder):
    client = look()
    answer = client.get(f"{client.row('layers.0.attn', step=0)}/value.npy")
    found = np.load(io.BytesIO(answer.content))
    np.testing.assert_array_equal(found, tt.Run(folder / "a").load("layers.0.attn", step=0))


def test_the_history_of_a_name_goes_over_its_steps(look):
    client = look()
    _, columns = client.columns(f"{client.row('loss', step=3)}/series.bin?compute=1")
    assert columns["step"].tolist() == list(range(STEPS))
    np.testing.assert_allclose(columns["mean"], [1 / (step + 1) for step in range(STEPS)], rtol=1e-6)
    run = client.run("a")
    (line,) = client.json(f"/api/run/{run}/scalars?name=loss")["series"]
    assert line["steps"] == list(range(STEPS))
    assert [one["name"] for one in client.json(f"/api/run/{run}")["scalars"]] == ["loss"]


def test_ranks_stand_side_by_side(look, tmp_path):
    for rank in range(3):
        sink = RunDirectory(tmp_path / "ranks")
        sink.write(Record("x", np.full(4, rank, np.float32), rank=rank, step=7))
        sink.close()
    client = look(tmp_path / "ranks")
    run = client.run("ranks")
    row = client.json(f"/api/run/{run}/find?name=x&rank=1")["row"]
    _, columns = client.columns(f"/api/run/{run}/row/{row}/series.bin?by=ranks&compute=1")
    assert columns["rank"].tolist() == [0, 1, 2]
    assert columns["mean"].tolist() == [0, 1, 2]


def test_the_tree_adds_up(look):
    client = look()
    nodes = client.json(f"/api/run/{client.run('a')}/tree")["nodes"]
    by_path = {node["path"]: node for node in nodes}
    assert by_path["layers.0"]["captures"] == 2 * STEPS
    assert by_path["layers"]["names"] == 4
    assert nodes[by_path["layers.0.attn"]["parent"]]["path"] == "layers.0"


def test_a_trace_shows_calls_and_what_became_of_a_variable(look, tmp_path):
    sink = RunDirectory(tmp_path / "calls")
    for order, (kind, name, value, depth) in enumerate(
        [
            ("call", "main", "", 0),
            ("local", "main.x", np.ones((2, 3), "f4"), 1),
            ("local", "main.x", np.ones((2, 3), "f2"), 1),
            ("return", "main", np.ones(1), 0),
        ]
    ):
        site = Site("main", "/code/program.py", 10 + order, depth, (), 1)
        sink.write(Record(name, value, kind, order=order, site=site))
    sink.close()
    client = look(tmp_path / "calls")
    run = client.run("calls")
    told = client.json(f"/api/run/{run}/trace")
    assert told["source"] == "calls"
    (tree,) = told["trees"]
    lines = client.json(f"/api/run/{run}/trace?tree={tree['tree']}")["lines"]
    assert [line["depth"] for line in lines] == [0, 1, 1, 0]
    assert lines[2]["changed"] == ["dtype float32 -> float16"]
    assert client.json(f"/api/run/{run}/trace?tree={tree['tree']}&from=2&count=1")["lines"] == [lines[2]]


def test_a_variable_begins_anew_in_each_call_and_inputs_belong_to_theirs(look, tmp_path):
    sink = RunDirectory(tmp_path / "calls")
    once = [
        ("call", "attend", ""),
        ("input", "attend.q", np.ones(2, "f4")),
        ("local", "attend.scores", np.ones(3, "f4")),
        ("local", "attend.scores", np.ones(3, "f2")),
    ]
    for order, (kind, name, value) in enumerate(2 * once):
        site = Site("attend", "/code/program.py", 10, 1, (), 1)
        sink.write(Record(name, value, kind, order=order, site=site))
    sink.close()
    client = look(tmp_path / "calls")
    run = client.run("calls")
    (tree,) = client.json(f"/api/run/{run}/trace")["trees"]
    lines = client.json(f"/api/run/{run}/trace?tree={tree['tree']}")["lines"]
    assert [line["kind"] for line in lines] == 2 * ["call", "input", "local", "local"]
    assert [line["changed"] for line in lines] == 2 * [[], [], [], ["dtype float32 -> float16"]]


def test_without_calls_the_trace_is_the_modules_of_each_step(look):
    client = look()
    told = client.json(f"/api/run/{client.run('a')}/trace")
    assert told["source"] == "modules"
    assert len(told["trees"]) == STEPS


def test_a_name_that_is_a_script_comes_as_text(look, tmp_path):
    sink = RunDirectory(tmp_path / "evil")
    sink.write(Record(EVIL, np.ones(3, "f4")))
    sink.write(Record("text", EVIL))
    sink.close()
    client = look(tmp_path / "evil")
    run = client.run("evil")
    answer = client.get(f"/api/run/{run}/row/0")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["name"] == EVIL
    assert client.json(f"/api/run/{run}/row/1")["text"] == EVIL
    header = client.get(f"/api/run/{run}/row/0/value.npy").headers["content-disposition"]
    assert "<" not in header
    assert "script>" not in header


def test_a_damaged_run_is_shown_with_what_can_be_read(look, folder):
    index = next((folder / "a" / ".tensortap").glob("index-*.jsonl"))
    lines = index.read_bytes().split(b"\n")
    lines[2] = b'["half a li'
    index.write_bytes(b"\n".join(lines))
    next((folder / "b" / ".tensortap" / "packs").glob("*")).write_bytes(b"")
    client = look()
    told = client.json(f"/api/run/{client.run('a')}")
    assert told["captures"] == STEPS * (len(NAMES) + 1) - 1
    assert "is damaged" in told["problems"][0]
    run = client.run("b")
    assert client.json(f"/api/run/{run}/row/0/tile.bin", 422)["error"]["kind"] == "corrupt"
    assert "is empty" in client.json(f"/api/run/{run}/row/0")["problem"]


def test_a_run_of_a_later_version_is_listed_with_the_reason(look, folder):
    index = next((folder / "a" / ".tensortap").glob("index-*.jsonl"))
    index.write_bytes(index.read_bytes().replace(b'"tensortap_index": 1', b'"tensortap_index": 9', 1))
    runs = {run["name"]: run for run in look().json("/api/runs")["runs"]}
    assert runs["a"]["state"] == "damaged"
    assert "upgrade tensortap" in runs["a"]["problem"]
    assert runs["b"]["state"] == "finished"


def test_a_pickle_of_a_run_is_never_run(look, tmp_path):
    class Bomb:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",)

    sink = RunDirectory(tmp_path / "bomb")
    sink.write(Record("bomb", Bomb()))
    sink.close()
    client = look(tmp_path / "bomb")
    run = client.run("bomb")
    told = client.json(f"/api/run/{run}/row/0")
    assert not told["is_array"]
    client.columns(f"/api/run/{run}/stats.bin?rows=0")
    assert not (tmp_path / "ran").exists()


def test_a_run_that_grows_is_told_to_the_page_that_listens(look, folder):
    client = look()
    run = client.run("a")
    before = client.columns(f"/api/run/{run}/columns.bin")[0]["rows"]
    with client.http.stream("GET", "/api/events") as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: hello"
        write(folder / "a", steps=1)
        told = next(json.loads(line[5:]) for line in lines if line.startswith("data:") and '"added"' in line)
    assert told == {"id": run, "rows": before + 5, "added": 5}
    _, columns = client.columns(f"/api/run/{run}/columns.bin?from={before}")
    assert len(columns["name"]) == 5


def test_a_trace_file_is_a_run_too(look, tmp_path):
    sink = tt.HDF5(tmp_path / "trace.h5")
    for step in range(3):
        sink.write(Record("forward.x", np.full((2, 4), step, "f4"), step=step))
    sink.close()
    client = look(tmp_path / "trace.h5")
    (run,) = client.json("/api/runs")["runs"]
    assert (run["type"], run["captures"]) == ("trace", 3)
    row = client.json(f"/api/run/{run['id']}/find?name=forward.x&step=2")["row"]
    _, columns = client.columns(f"/api/run/{run['id']}/row/{row}/tile.bin")
    assert columns["value"].tolist() == [2.0] * 8
    names: dict = {}
    exec(client.json(f"/api/run/{run['id']}/row/{row}")["python"], names)
    assert names["x"].tolist() == [[2.0] * 4] * 2


def test_bfloat16_is_shown_and_downloaded_as_numbers(look, tmp_path):
    sink = RunDirectory(tmp_path / "half")
    sink.write(Record("w", torch.tensor([[1.5, -2.0]], dtype=torch.bfloat16)))
    sink.close()
    client = look(tmp_path / "half")
    address = f"/api/run/{client.run('half')}/row/0"
    assert client.columns(f"{address}/tile.bin")[1]["value"].tolist() == [1.5, -2.0]
    assert np.load(io.BytesIO(client.get(f"{address}/value.npy").content)).tolist() == [[1.5, -2.0]]
    assert client.json(address)["dtype"] == "bfloat16"


def test_more_runs_than_stay_open_are_listed_all_the_same(look, tmp_path, monkeypatch):
    monkeypatch.setattr("tensortap.viewer.data.library._MAX_OPEN_RUNS", 2)
    for number in range(5):
        sink = RunDirectory(tmp_path / "several" / f"run{number}")
        sink.write(Record("x", np.ones(number + 1, "f4")))
        sink.close()
    client = look(tmp_path / "several")
    first = client.json("/api/runs")["runs"]
    assert [run["bytes"] for run in first] == [20, 16, 12, 8, 4]
    library, deadline = client.viewer.state.library, time.monotonic() + 10
    while len(library.open_runs) < 2 and time.monotonic() < deadline:  # opened later, for their health
        time.sleep(0.01)
    assert len(library.open_runs) == 2
    again = client.json("/api/runs")["runs"]
    assert [{**run, "health": None} for run in again] == [{**run, "health": None} for run in first]


def test_the_list_says_of_a_run_what_the_command_line_says(look, folder):
    info = {"project_git_info": {"branch": "main", "commit_id": "0fc3bb33303f06f7", "status": "unknown"}}
    (folder / "a" / "git_info.json").write_text(json.dumps(info))
    sink = RunDirectory(folder / "merged")
    sink.write(Record("x", np.array([np.nan]), step=(1, 2), rank=(0, 3)))
    sink.close()
    sink = RunDirectory(folder / "open")
    sink.write(Record("x", np.ones(3)))
    sink.flush()
    rows = {run["name"]: run for run in look().json("/api/runs")["runs"]}
    for name, row in rows.items():
        facts = summarize_run(folder / name, runs_being_written()).facts()
        del facts["health"]
        assert {key: row[key] for key in facts} == facts
    assert (rows["a"]["dirty"], rows["open"]["state"]) == (True, "writing")
    assert (rows["merged"]["steps"]["count"], rows["merged"]["ranks"]) == (2, [0, 3])
    sink.close()


def test_a_run_is_read_again_only_after_it_was_modified(look, folder, monkeypatch):
    read = []
    monkeypatch.setattr(
        run_facts, "summarize_run", lambda path: read.append(path.name) or summarize_run(path)
    )
    client = look()
    for _ in range(3):
        client.json("/api/runs")
    assert sorted(read) == ["a", "b"]
    sink = RunDirectory(folder / "a")
    sink.write(Record("later", np.ones(3, "f4")))
    sink.close()
    captures = {run["name"]: run["captures"] for run in client.json("/api/runs")["runs"]}
    assert sorted(read) == ["a", "a", "b"]
    assert captures["a"] == captures["b"] + 1


def test_a_damaged_run_keeps_its_row_and_its_page(look, folder):
    next((folder / "b" / ".tensortap" / "packs").glob("*")).write_bytes(b"")
    client = look()
    rows = {run["name"]: run for run in client.json("/api/runs?q=state:damaged")["runs"]}
    assert list(rows) == ["b"]
    assert "ends at byte 0" in rows["b"]["problem"]
    assert client.json(f"/api/run/{rows['b']['id']}")["captures"] == STEPS * (len(NAMES) + 1)
