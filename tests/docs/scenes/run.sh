export GLOO_SOCKET_IFNAME=lo
cat > train.py <<'END'
import torch
model = torch.nn.Module()
model.layers = torch.nn.Sequential(torch.nn.Linear(2, 2))
model.forward = lambda x: model.layers(x)
model(torch.ones(1, 2))
END
mkdir mypackage
cat > mypackage/loss.py <<'END'
def focal(x):
    weights = [2 * one for one in x]
    return sum(weights)
END
cat > mypackage/train.py <<'END'
from mypackage.loss import focal
assert focal([1.0, 2.0]) == 6.0
END
