"""The code blocks of a page, and how they are run: in order, in one program, in an empty folder."""

import os
import re
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCENES = Path(__file__).parent / "scenes"
_BLOCK = re.compile(
    r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    language: str
    text: str
    line: int
    why_not: str | None


def pages() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[Block]:
    text = page.read_text()
    found = [
        Block(one["language"], one["text"], text.count("\n", 0, one.start("text")) + 1, one["why"])
        for one in _BLOCK.finditer(text)
    ]
    return [one for one in found if one.language == language]


def program(page: Path) -> str:
    """The scene of the page, then its Python blocks, each on the very lines it has in the page."""
    scene = SCENES / f"{page.stem.lower()}.py"
    parts = [
        "import sys",
        f"namespace = {{'__name__': '__main__', '__file__': {str(page)!r}}}",
        "def play(text, file, line):",
        "    exec(compile('\\n' * (line - 1) + text, file, 'exec'), namespace)",
    ]
    if scene.exists():
        parts.append(f"play({scene.read_text()!r}, {str(scene)!r}, 1)")
    parts += [
        f"play({one.text!r}, {str(page)!r}, {one.line})" for one in blocks(page, "python") if not one.why_not
    ]
    return "\n".join(parts)


def notebook(page: Path) -> str:
    """A program that runs the scene of the page, and then its cells as IPython does."""
    scene = SCENES / f"{page.stem.lower()}.py"
    cells = [one.text for one in blocks(page, "ipython")]
    parts = [
        "from IPython.core.interactiveshell import InteractiveShell",
        "from traitlets.config import Config",
        "shell = InteractiveShell(config=Config(HistoryManager={'enabled': False}))",
        f"shell.run_cell({scene.read_text()!r}).raise_error()",
        *(f"shell.run_cell({text!r}).raise_error()" for text in cells),
        "assert len(shell.user_ns['cap'])",
    ]
    return "\n".join(parts)


def environment(folder: Path) -> dict[str, str]:
    """The reader's: our commands on the path, a home of their own, nothing of the test run."""
    kept = {
        key: text for key, text in os.environ.items() if not key.startswith(("TENSORTAP", "THING", "PYTEST"))
    }
    path = os.pathsep.join([str(Path(sys.executable).parent), kept.get("PATH", "")])
    return {
        **kept,
        "PATH": path,
        "XDG_RUNTIME_DIR": str(folder),
        "NO_COLOR": "1",
        "OMP_NUM_THREADS": "1",
        "PROJECT": str(ROOT),
        "THING_PORT": str(_free_port()),
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def played(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=environment(folder), capture_output=True, text=True, timeout=180
    )
