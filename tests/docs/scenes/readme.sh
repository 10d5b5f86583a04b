cat > train.py <<'PY'
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    optimizer.zero_grad()
    model(torch.randn(3, 4)).square().mean().backward()
    optimizer.step()
PY
python - <<'PY'
import numpy as np
import tensortap as tt

for name, shift in (("before", 0.0), ("after", 0.5)):
    with tt.Tap(sinks=[tt.RunDirectory(f"runs/{name}")]) as tap:
        tap.emit(tt.Record("layers.0", np.ones((4, 4)) + shift))
PY
