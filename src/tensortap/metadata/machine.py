"""Describe the interpreter and the machine, without waking a device."""

import os
import platform
import sys
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
