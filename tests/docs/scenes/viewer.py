"""Two runs to look at."""

import numpy as np

import tensortap as tt

for name in ("before", "after"):
    sink = tt.RunDirectory(f"runs/{name}")
    for step in range(4):
        for order, part in enumerate(("attn", "mlp")):
            value = np.ones((40, 16), "f4") * (1 + (name == "after") * (step > 1) * 0.1)
            sink.write(tt.Record(f"layers.0.{part}", value, "output", step, order=order))
    sink.close()
