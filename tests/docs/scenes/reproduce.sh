mkdir project && cd project && git init -q .
cat > train.py <<'END'
import numpy as np
import tensortap as tt
tt.init("runs")
tt.dump(np.arange(4.0) * 2, "x")
END
git add train.py
git -c user.name=a -c user.email=a@b commit -q -m first
python train.py
mv runs/* runs/20251028_143041
cat > idea.patch <<'END'
--- a/train.py
+++ b/train.py
@@ -1,4 +1,4 @@
 import numpy as np
 import tensortap as tt
 tt.init("runs")
-tt.dump(np.arange(4.0) * 2, "x")
+tt.dump(np.arange(4.0) * 3, "x")
END
