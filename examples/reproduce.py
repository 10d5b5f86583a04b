"""Train in a repository with uncommitted changes, run that again elsewhere, and find a planted line."""

import subprocess
import sys
import tempfile
from pathlib import Path

from tensortap.cli.main import main as tensortap

MODEL = """
import torch
from torch import nn

class Gate(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), Gate(), nn.Linear(16, 4))
"""
TRAINING = """
import torch
import tensortap as tt
from model import build

model = build()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
batch = torch.arange(32.0).reshape(4, 8) / 32
with tt.capture(model, "**", "**.in", to="runs"):
    for _ in range(3):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""
PLANTED = """\
--- a/model.py
+++ b/model.py
@@ -5,5 +5,5 @@
 class Gate(nn.Module):
     def forward(self, x):
-        return x * torch.sigmoid(x)
+        return x * torch.sigmoid(1.01 * x)
{}
 def build():
""".format(" ")


def git(project: Path, *arguments: str) -> None:
    identity = ("-c", "user.name=reader", "-c", "user.email=reader@example.com")
    subprocess.run(["git", *identity, *arguments], cwd=project, check=True)


def train(project: Path) -> Path:
    """A commit, a change that is not in it, and a file that git does not know; then the run."""
    git(project, "init", "-q")
    (project / "model.py").write_text(MODEL.replace("x * torch.sigmoid(x)", "torch.relu(x)"))
    git(project, "add", "model.py")
    git(project, "commit", "-q", "-m", "a model")
    (project / "model.py").write_text(MODEL)
    (project / "train.py").write_text(TRAINING)
    subprocess.run([sys.executable, "train.py"], cwd=project, check=True)
    (run,) = (project / "runs").iterdir()
    return run


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        project = Path(place, "project")
        project.mkdir()
        run = train(project)
        print("-- the same again: tensortap reproduce RUN --verify --", flush=True)
        assert tensortap(["reproduce", str(run), "--verify", "--into", f"{place}/again"]) == 0
        patch = Path(place, "planted.patch")
        patch.write_text(PLANTED)
        print("\n-- and with one line changed: --apply planted.patch --", flush=True)
        changed = ["--apply", str(patch), "--into", f"{place}/changed"]
        assert tensortap(["reproduce", str(run), "--verify", *changed]) == 1


if __name__ == "__main__":
    main()
