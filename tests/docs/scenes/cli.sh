python - <<'PY'
import json
import numpy as np
import tensortap as tt

rng = np.random.default_rng(0)
for run, command in (("baseline", "train.py"), ("other", "train.py --lr 2")):
    sink = tt.RunDirectory(f"runs/{run}", stats=True)
    for step in range(3):
        for layer in range(4):
            value = rng.normal(size=(2, 4, 4)).astype("f4")
            sink.write(tt.Record(f"layers.{layer}.attn", value, "output", step=step, order=layer))
    sink.close()
    facts = {"command": {"full_command": command}, "timestamp": "2025-10-28T14:30:41+08:00"}
    with open(f"runs/{run}/runtime_info.json", "w") as stream:
        json.dump(facts, stream)
np.savez("weights.npz", weight=np.eye(3), bias=np.arange(3.0))
PY
