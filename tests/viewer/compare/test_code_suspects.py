"""Of two runs whose code differs, the page names the changed lines that the first difference comes from."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.viewer.api.test_compare import answered, compared

from tensortap.viewer.compare.code_suspects import blocks_only_in

pytest.importorskip("torch")

MODEL = """import torch


def unrelated(x):
    return x + 1


class Part(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)

    def scaled(self, x):
        return x * 2

    def forward(self, x):
        y = self.inner(x)
        return self.scaled(y).relu()


class Whole(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = torch.nn.ModuleList([Part(), Part()])

    def forward(self, x):
        for part in self.parts:
            x = part(x)
        return x
"""
PROGRAM = """import sys
import torch
import tensortap as tt
from model import Whole

torch.manual_seed(0)
model = Whole()
with tt.capture(model, "**", "**.in", to=sys.argv[1]):
    model(torch.randn(3, 4))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A repository, and a run of its program as it is committed."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "model.py").write_text(MODEL)
    (folder / "train.py").write_text(PROGRAM)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "begin"]):
        who = ("-c", "user.name=t", "-c", "user.email=t@t")
        subprocess.run(["git", *who, *words], cwd=folder, check=True)
    run_it(folder, folder.parent / "runs" / "a")
    return folder


def run_it(project: Path, to: Path) -> Path:
    subprocess.run([sys.executable, "train.py", str(to)], cwd=project, check=True)
    return next(to.iterdir())


@pytest.fixture
def told(project, tmp_path, look):
    """What the page says of the run without and the run with a change."""

    def compare(*changes: tuple[str, str], commit: str | None = None):
        text = MODEL
        for old, new in changes:
            assert text.count(old) == 1
            text = text.replace(old, new)
        try:
            (project / "model.py").write_text(text)
            b = run_it(project, tmp_path / "b")
        finally:
            (project / "model.py").write_text(MODEL)
        if commit is not None:
            info = json.loads((b / "git_info.json").read_text())
            info["project_git_info"]["commit_id"] = commit
            (b / "git_info.json").write_text(json.dumps(info))
        a = next((project.parent / "runs" / "a").iterdir())
        client = look(a, b)
        runs = {str(run["path"]): run["id"] for run in client.json("/api/runs")["runs"]}
        address = answered(client, f"/api/compare?a={runs[str(a)]}&b={runs[str(b)]}")
        return client, address, client.json(address)["comparison"]

    return compare


@pytest.mark.process
def test_the_changed_line_of_a_forward_is_the_suspect(told, project):
    client, address, found = told(("self.scaled(y).relu()", "self.scaled(y).abs()"))
    assert found["first"]["name"] == "parts.0"
    assert found["first"]["site"] == f"{project / 'model.py'}:16"
    assert ", made at model.py:16." in found["sentence"]
    assert [one["text"] for one in found["suspects"]] == ["model.py:18 is in Part.forward, which made it"]
    assert "suspect: model.py:18 is in Part.forward" in client.get(f"{address}/export.html").text


@pytest.mark.process
def test_a_function_that_the_forward_calls_is_a_suspect_and_one_elsewhere_is_none(told):
    *_, found = told(("x * 2", "x * 3"), ("x + 1", "x + 2"))
    assert [one["text"] for one in found["suspects"]] == ["model.py:14 is in the class that made it"]


@pytest.mark.process
def test_changes_to_another_commit_accuse_nobody(told):
    *_, found = told(("x * 2", "x * 3"), commit="0" * 40)
    assert (found["first"]["name"], found["suspects"]) == ("parts.0", [])


def test_a_change_that_both_runs_have_is_no_suspect():
    patch = b"diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,3 +1,3 @@\n a\n-b\n+c\n d\n"
    assert [str(block) for block in blocks_only_in(patch, b"")] == ["m.py:2"]
    assert blocks_only_in(patch, patch) == []


def test_lines_that_were_taken_away_are_named_by_the_line_before_them():
    patch = b"diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -1,4 +1,2 @@\n a\n-b\n-c\n d\n"
    assert [str(block) for block in blocks_only_in(patch, b"")] == ["m.py:1"]


@pytest.mark.process
def test_what_was_captured_of_a_module_is_made_where_its_forward_is(project, look):
    client = look(next((project.parent / "runs" / "a").iterdir()))
    (run,) = (one["id"] for one in client.json("/api/runs")["runs"])
    row = client.json(f"/api/run/{run}/find?name=parts.1")["row"]
    site = client.json(f"/api/run/{run}/row/{row}")["site"]
    assert (site["file"], site["line"], site["last"]) == (str(project / "model.py"), 16, 18)
    assert site["function"] == "Part.forward"
    lines = client.json(f"/api/run/{run}/trace?tree=s0r0")["lines"]
    assert {(line["file"], line["line"]) for line in lines if line["name"].startswith("parts.1")} >= {
        ("model.py", 16)
    }


def test_code_facts_of_a_stranger_may_be_anything(look, folder):
    for name in "ab":
        (folder / name / ".tensortap" / "model.json").write_text(
            '{"code": [3, {"forward": [1, 2], "modules": 5}, {"forward": ["x", 1, 2], "modules": [[], "q"]}]}'
        )
    assert compared(look())
