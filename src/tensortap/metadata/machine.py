"""Host, devices, RNG state.

Describe the interpreter and the machine, without waking a device.

Describe random generators and determinism switches, without seeding or drawing.
"""

from __future__ import annotations

import hashlib
import os
import platform
import random
import sys
from collections.abc import Callable
from glob import glob
from pathlib import Path
from typing import Any


def interpreter() -> dict[str, Any]:
    return {
        "implementation": platform.python_implementation(),
        "version": sys.version,
        "build": list(platform.python_build()),
        "compiler": platform.python_compiler(),
        "flags": {name: getattr(sys.flags, name) for name in dir(sys.flags) if _is_flag(name)},
        "hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
        "path": list(map(str, sys.path)),
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
    }


def hardware() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_bytes": ram_bytes(),
        "gpus": gpus(),
        "gpu_driver": _first_line("/proc/driver/nvidia/version"),
    }


def system() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "host": platform.node(),
        "umask": umask(),
    }


def cpu_model() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def umask() -> str | None:
    # os.umask() can only tell by changing it, for every thread; Linux tells without.
    for line in _lines("/proc/self/status"):
        if line.startswith("Umask:"):
            return line.split()[1]
    return None


def gpus() -> list[dict[str, Any]]:
    """From torch once the program has initialised CUDA, else from the driver's files."""
    torch = sys.modules.get("torch")
    # Even is_available() wakes the driver, after which a forked worker cannot use the device.
    if torch is None or not torch.cuda.is_initialized():
        return [{"name": name} for name in _driver_gpus()]
    return [_properties(torch, index) for index in range(torch.cuda.device_count())]


def _properties(torch: Any, index: int) -> dict[str, Any]:
    found = torch.cuda.get_device_properties(index)
    capability = f"{found.major}.{found.minor}"
    return {"name": found.name, "memory_bytes": found.total_memory, "capability": capability}


def _driver_gpus() -> list[str]:
    files = sorted(glob("/proc/driver/nvidia/gpus/*/information"))
    lines = (line for file in files for line in _lines(file) if line.startswith("Model:"))
    return [line.partition(":")[2].strip() for line in lines]


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _first_line(path: str) -> str | None:
    return next(iter(_lines(path)), None)


def _is_flag(name: str) -> bool:
    return not name.startswith(("_", "n_")) and name not in ("count", "index")


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
