"""Every built-in framework keeps the contract that plug-in authors are given."""

import jax.numpy as jnp
import numpy as np
import torch

from tensortap.core.dtypes import DTYPE_TABLE
from tensortap.frameworks.base import framework_named
from tensortap.testing import FrameworkContract


class TestTorch(FrameworkContract):
    framework = framework_named("torch")

    def values(self):
        base = torch.arange(12).reshape(3, 4)
        yield from (base.to(getattr(torch, name)) for name in DTYPE_TABLE if name != "complex32")
        yield from (base.float().t(), base[:, 1:3].double(), base[::2], torch.ones(1).expand(4))
        yield from (torch.tensor(1.5), torch.empty(0, 3), torch.nn.Parameter(torch.ones(2)))
        yield torch.eye(3).to_sparse()


class TestNumpy(FrameworkContract):
    framework = framework_named("numpy")

    def values(self):
        base = np.arange(12).reshape(3, 4)
        native = [name for name, row in DTYPE_TABLE.items() if row.native]
        yield from (base.astype(name) for name in native)
        yield from (np.asarray(jnp.arange(4, dtype=jnp.bfloat16)), base.T, base[::-1], base.astype(">f4"))
        yield from (np.array(1.5), np.float32(2), np.empty((0, 3)), np.array([None]), np.ma.ones(2))


class TestJax(FrameworkContract):
    framework = framework_named("jax")

    def values(self):
        names = (
            "bool",
            "int8",
            "uint16",
            "int32",
            "float16",
            "bfloat16",
            "float8_e4m3fn",
            "float32",
            "complex64",
        )
        yield from (jnp.arange(12).reshape(3, 4).astype(name) for name in names)
        yield from (jnp.float32(1), jnp.empty((0, 3)), jnp.ones((2, 3)).T)


class TestPython(FrameworkContract):
    framework = framework_named("python")

    def values(self):
        return [
            1,
            -(2**40),
            2**70,
            1.5,
            float("nan"),
            True,
            1 + 2j,
            "text",
            None,
            [1, {"a": 2}],
            {1, 2},
            object(),
        ]
