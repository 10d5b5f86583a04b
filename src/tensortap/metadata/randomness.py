"""Describe random generators and determinism switches, without seeding or drawing."""

import hashlib
import random
import sys
from collections.abc import Callable
from typing import Any

Attempt = Callable[[str, Callable[[], Any]], Any]

_TORCH_FLAGS = (
    "initial_seed()",
    "are_deterministic_algorithms_enabled()",
    "is_deterministic_algorithms_warn_only_enabled()",
    "get_float32_matmul_precision()",
    "get_num_threads()",
    "get_num_interop_threads()",
    "get_default_dtype()",
    "backends.cuda.matmul.allow_tf32",
    "backends.cudnn.allow_tf32",
    "backends.cudnn.benchmark",
    "backends.cudnn.deterministic",
    "backends.cudnn.enabled",
    "version.cuda",
    "version.hip",
    "version.git_version",
)
_JAX_FLAGS = (
    "config.jax_enable_x64",
    "config.jax_default_prng_impl",
    "config.jax_default_matmul_precision",
    "config.jax_threefry_partitionable",
)


def randomness(attempt: Attempt) -> dict[str, Any]:
    """State hashes of random, and of numpy, torch and jax where the program has imported them."""
    facts: dict[str, Any] = {"random": {"state": _digest(repr(random.getstate()).encode())}}
    for name, collect in (("numpy.random", _numpy), ("torch", _torch), ("jax", _jax)):
        if sys.modules.get(name) is not None:
            facts[name.partition(".")[0]] = collect(sys.modules[name], attempt)
    return facts


def _numpy(module: Any, attempt: Attempt) -> dict[str, Any]:
    return {"state": attempt("numpy random state", lambda: _state(module.get_state(legacy=False)))}


def _torch(module: Any, attempt: Attempt) -> dict[str, Any]:
    facts = _flags("torch", module, _TORCH_FLAGS, attempt)
    facts["state"] = attempt("torch random state", lambda: _digest(_bytes(module.get_rng_state())))
    if attempt("torch cuda", module.cuda.is_initialized):
        facts["cuda_initial_seed"] = attempt("torch cuda seed", module.cuda.initial_seed)
        facts["cuda_state"] = attempt(
            "torch cuda state", lambda: _digest(_bytes(module.cuda.get_rng_state()))
        )
        facts["cudnn"] = attempt("cudnn version", module.backends.cudnn.version)
    return facts


def _jax(module: Any, attempt: Attempt) -> dict[str, Any]:
    return _flags("jax", module, _JAX_FLAGS, attempt)


def _flags(library: str, module: Any, flags: tuple[str, ...], attempt: Attempt) -> dict[str, Any]:
    return {
        flag.removesuffix("()"): attempt(f"{library} {flag}", lambda flag=flag: _flag(module, flag))  # type: ignore[misc]
        for flag in flags
    }


def _flag(module: Any, flag: str) -> Any:
    value = module
    for part in flag.removesuffix("()").split("."):
        value = getattr(value, part)
    if flag.endswith("()"):
        value = value()
    return value if isinstance(value, bool | int | str | None) else str(value)


def _bytes(state: Any) -> bytes:
    return bytes(state.tolist())


def _state(state: Any) -> str:
    """The digest of numpy's nested state, arrays by their bytes."""
    return _digest(repr(_plain(state)).encode())


def _plain(state: Any) -> Any:
    if isinstance(state, dict):
        return sorted((key, _plain(value)) for key, value in state.items())
    return state.tobytes() if hasattr(state, "tobytes") else state


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
