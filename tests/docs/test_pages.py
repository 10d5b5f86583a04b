"""Every code block of the README and the guide runs, in order, as a reader would type it."""

import re
import sys
from pathlib import Path

import pytest
from tests.docs import pages
from tests.proof import sampled

_PYTHON = [page for page in pages.pages() if pages.blocks(page, "python")]
_SHELL = [page for page in pages.pages() if pages.blocks(page, "bash")]
_CELLS = [page for page in pages.pages() if pages.blocks(page, "ipython")]
_LANGUAGES = {"", "python", "bash", "ipython", "toml", "json", "text"}


@pytest.mark.process
@pytest.mark.parametrize("page", _PYTHON, ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page_as_a_program.py"
    script.write_text(pages.program(page))
    done = pages.played([sys.executable, str(script)], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


# Other tests run the commands of these, and look at what they say: those of the example, and of `run`.
_SAMPLE = [page for page in _SHELL if page.name not in ("tensor_capture.md", "run.md")]


@pytest.mark.process
@pytest.mark.parametrize("page", sampled(_SHELL, _SAMPLE), ids=lambda page: page.name)
def test_the_commands_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    scene = pages.SCENES / f"{page.stem.lower()}.sh"
    lines = [one.text for one in pages.blocks(page, "bash") if not one.why_not]
    script = "\n".join(["set -eu", scene.read_text() if scene.exists() else "", *lines])
    done = pages.played(["bash", "-c", script], tmp_path)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


@pytest.mark.process
@pytest.mark.parametrize("page", _CELLS, ids=lambda page: page.name)
def test_the_cells_of_a_page_run_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    script = tmp_path / "page_as_a_notebook.py"
    script.write_text(pages.notebook(page))
    done = pages.played([sys.executable, str(script)], tmp_path)
    assert done.returncode == 0, f"{done.stdout[-1500:]}\n{done.stderr[-1500:]}"


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_a_page_marks_its_blocks_with_a_language_we_know(page: Path) -> None:
    opened = re.findall(r"^```(\w*)", page.read_text(), re.M)[::2]
    assert set(opened) <= _LANGUAGES


@pytest.mark.parametrize("page", pages.pages(), ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [one for one in targets if not (page.parent / one).exists()] == []


def test_a_block_that_is_not_run_says_why() -> None:
    silent = [
        f"{page.name}:{one.line}"
        for page in pages.pages()
        for language in ("python", "bash")
        for one in pages.blocks(page, language)
        if one.why_not is not None and len(one.why_not) < 10
    ]
    assert silent == []


@pytest.mark.process
def test_a_page_that_is_wrong_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "wrong.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n")
    script = tmp_path / "program.py"
    script.write_text(pages.program(page))
    done = pages.played([sys.executable, str(script)], tmp_path)
    assert done.returncode != 0
    assert 'wrong.md", line 8' in done.stderr
