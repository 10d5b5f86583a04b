"""Describe interpreter, host, devices and RNG states, without initialising a device or drawing numbers."""

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

from tensortap.core.dtypes import ARRAY_LIBRARY_NAMES


def describe_interpreter() -> dict[str, Any]:
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


def describe_hardware() -> dict[str, Any]:
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "ram_bytes": ram_bytes(),
        "gpus": list_gpus(),
        "gpu_driver": _first_line("/proc/driver/nvidia/version"),
    }


def describe_system() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()).strip(),
        "host": platform.node(),
        "umask": umask(),
    }


def cpu_model() -> str:
    for line in _read_lines("/proc/cpuinfo"):
        if line.lower().startswith(("model name", "hardware")):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def ram_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def umask() -> str | None:
    # os.umask() can only be read by changing it, for every thread; /proc needs no change.
    for line in _read_lines("/proc/self/status"):
        if line.startswith("Umask:"):
            return line.split()[1]
    return None


def list_gpus() -> list[dict[str, Any]]:
    """From torch once the program has initialised CUDA, else from the driver's files."""
    torch = sys.modules.get("torch")
    # Even is_available() initialises the driver, after which a forked worker cannot use the device.
    if torch is None or not torch.cuda.is_initialized():
        return [{"name": name} for name in _driver_gpus()]
    return [_cuda_properties(torch, index) for index in range(torch.cuda.device_count())]


def _cuda_properties(torch: Any, index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    capability = f"{properties.major}.{properties.minor}"
    return {"name": properties.name, "memory_bytes": properties.total_memory, "capability": capability}


def _driver_gpus() -> list[str]:
    files = sorted(glob("/proc/driver/nvidia/gpus/*/information"))
    lines = (line for file in files for line in _read_lines(file) if line.startswith("Model:"))
    return [line.partition(":")[2].strip() for line in lines]


def _read_lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _first_line(path: str) -> str | None:
    return next(iter(_read_lines(path)), None)


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


def describe_randomness(attempt: Attempt) -> dict[str, Any]:
    """RNG state digests of random, and of numpy, torch and jax if imported."""
    facts: dict[str, Any] = {"random": {"state": _digest(repr(random.getstate()).encode())}}
    for library in ARRAY_LIBRARY_NAMES:
        name, collect = _RNG_FACTS.get(library, (library, None))
        if collect is not None and sys.modules.get(name) is not None:
            facts[library] = collect(sys.modules[name], attempt)
    return facts


def _numpy_facts(module: Any, attempt: Attempt) -> dict[str, Any]:
    return {"state": attempt("numpy random state", lambda: _state_digest(module.get_state(legacy=False)))}


def _torch_facts(module: Any, attempt: Attempt) -> dict[str, Any]:
    facts = _read_flags("torch", module, _TORCH_FLAGS, attempt)
    facts["state"] = attempt("torch random state", lambda: _digest(_tensor_bytes(module.get_rng_state())))
    if attempt("torch cuda", module.cuda.is_initialized):
        facts["cuda_initial_seed"] = attempt("torch cuda seed", module.cuda.initial_seed)
        facts["cuda_state"] = attempt(
            "torch cuda state", lambda: _digest(_tensor_bytes(module.cuda.get_rng_state()))
        )
        facts["cudnn"] = attempt("cudnn version", module.backends.cudnn.version)
    return facts


def _jax_facts(module: Any, attempt: Attempt) -> dict[str, Any]:
    return _read_flags("jax", module, _JAX_FLAGS, attempt)


# By library: the module that holds its random state, and what is recorded of it.
_RNG_FACTS: dict[str, tuple[str, Callable[[Any, Attempt], dict[str, Any]]]] = {
    "numpy": ("numpy.random", _numpy_facts),
    "torch": ("torch", _torch_facts),
    "jax": ("jax", _jax_facts),
}


def _read_flags(library: str, module: Any, flags: tuple[str, ...], attempt: Attempt) -> dict[str, Any]:
    return {
        flag.removesuffix("()"): attempt(f"{library} {flag}", lambda flag=flag: _read_flag(module, flag))  # type: ignore[misc]
        for flag in flags
    }


def _read_flag(module: Any, flag: str) -> Any:
    value = module
    for part in flag.removesuffix("()").split("."):
        value = getattr(value, part)
    if flag.endswith("()"):
        value = value()
    return value if isinstance(value, bool | int | str | None) else str(value)


def _tensor_bytes(state: Any) -> bytes:
    return bytes(state.tolist())


def _state_digest(state: Any) -> str:
    """The digest of numpy's nested state, arrays by their bytes."""
    return _digest(repr(_to_plain(state)).encode())


def _to_plain(state: Any) -> Any:
    if isinstance(state, dict):
        return sorted((key, _to_plain(value)) for key, value in state.items())
    return state.tobytes() if hasattr(state, "tobytes") else state


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
