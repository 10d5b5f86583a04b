python - <<'PY'
import numpy as np
import tensortap as tt

tt.init("experiments")
tt.dump(np.ones(3), "hidden")
PY
mv experiments/* experiments/20251028_143041
