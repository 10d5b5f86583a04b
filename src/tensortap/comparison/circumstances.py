"""How a run was made, as facts to set side by side: configuration, packages, code, chance, machine."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from tensortap.core.errors import TensortapError
from tensortap.readers.run import Run

Facts = dict[str, Any]
_ABSENT = "-"
_LONGEST = 60
# Variables that reach into the numbers; all others would only be noise.
_VARIABLES = (
    *("CUBLAS", "CUDA", "CUDNN", "FLASH", "GLOO", "HF_", "HIP_", "HSA_", "JAX", "KMP_", "LD_PRELOAD", "MKL"),
    *("NCCL", "NVIDIA_TF32", "NVTE", "OMP", "OPENBLAS", "PYTHONHASHSEED", "PYTORCH", "ROCM", "SGLANG", "TF_"),
    *("TORCH", "TRITON", "VLLM", "WORLD_SIZE", "XLA"),
)
_CHANCE = ("state", "initial_seed", "cuda_state", "cuda_initial_seed")
_PYTHON = "random state"  # of Python's own generator
FILES = "files."  # before the name of one that no repository keeps
_SUBJECTS = (
    "files",
    "model",
    "training",
    "number of modules",
    "modules",
    "config",
    "command",
    "torch",
    "numpy",
    "jax",
)
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "torch_dtype")
# Those that compute come first.
_NUMERIC = ("torch", "jax", "jaxlib", "numpy", "transformers", "triton", "flash-attn", "vllm", "sglang")


def told_by(run: Run) -> tuple[dict[str, Any], dict[str, str], dict[str, bytes]]:
    """The metadata of a run with digests of its `sources`; what of it cannot be read, and why; the files."""
    metadata, damaged = run.readable_metadata()
    files: dict[str, bytes] = {}
    try:
        files = run.sources()
    except (TensortapError, OSError) as error:
        damaged["sources"] = str(error)
    metadata["sources"] = {name: _digest(content) for name, content in files.items()}
    return metadata, damaged, files


def facts(what: str, metadata: Mapping[str, Any]) -> Facts:
    """What the metadata of a run says on one topic, flat."""
    found = _TOPICS[what](metadata)
    return {key: told for key, told in found if told not in (None, "", {}, [])}


def differing(a: Facts, b: Facts) -> dict[str, str]:
    """What only one has or both have differently, as words; nothing where one side tells nothing at all."""
    if not a or not b:
        return {}
    keys = [key for key in dict.fromkeys([*a, *b]) if a.get(key, _ABSENT) != b.get(key, _ABSENT)]
    told_by_both = [key for key in keys if not _is_untold(key, a) and not _is_untold(key, b)]
    found = {key: _words(key, a.get(key, _ABSENT), b.get(key, _ABSENT)) for key in told_by_both}
    # Nobody seeds it in most programs: it alone would be found between any two runs.
    return {} if list(found) == [_PYTHON] and len({*a, *b}) > 1 else found


def _is_untold(key: str, facts: Facts) -> bool:
    """Whether a side says nothing of that whole subject; that is no difference."""
    subject = key.partition(".")[0]
    return subject in _SUBJECTS and not any(known.partition(".")[0] == subject for known in facts)


def _words(key: str, a: Any, b: Any) -> str:
    if key.endswith("state"):
        return f"{key} differs"
    if key.startswith("modules."):  # a list of settings, of which one or two are news
        parts = [str(told).split(", ") for told in (a, b)]
        a, b = (", ".join(part for part in parts[i] if part not in parts[1 - i]) or _ABSENT for i in (0, 1))
    return f"{key.removeprefix(FILES)} {_shown(a)} -> {_shown(b)}"


def _shown(told: Any) -> str:
    text = " ".join(str(told).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _configuration(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The model and its configuration, the command line, and torch's own switches."""
    model = _within(metadata, "model")
    yield "model", model.get("class")
    yield "training", str(model["training"]) if "training" in model else None
    yield "number of modules", len(model["modules"]) if model.get("modules") else None
    for path, told in _within(model, "settings").items():
        yield f"modules.{path}" if path else "modules", told
    for key, told in _flat(_within(model, "config")):
        if key.rpartition(".")[2] not in _NOT_OF_THE_MODEL:
            yield f"config.{key}", told
    command = _within(metadata, "runtime_info", "command")
    yield "command", command.get("full_command")
    for library, flags in _within(metadata, "environment", "randomness").items():
        for flag, told in flags.items() if isinstance(flags, dict) else ():
            if flag not in _CHANCE and not flag.startswith("version."):
                yield f"{library}.{flag}", str(told) if told is not None else None


def _packages(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    packages = _within(metadata, "packages")
    yield "python", packages.get("python_version")
    every = _within(packages, "all_packages")
    for name in sorted(every, key=lambda name: (name.lower() not in _NUMERIC, name.lower())):
        yield name, every[name]


def _code(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    git = _within(metadata, "git_info")
    for key, told in _within(git, "project_git_info").items():
        if key in ("commit_id", "branch", "status"):
            yield f"project {key.removesuffix('_id')}", told
    patch = metadata.get("patch") or b""
    yield "changes not committed", _digest(patch) if patch else None
    for name, told in _within(metadata, "sources").items():
        yield f"{FILES}{name}", told
    for name, told in _within(git, "packages_git_info").items():
        yield f"{name} commit", f"{told.get('commit_id', '')[:12]} {told.get('status', '')}".strip()
    for beside in _within(metadata, "environment").get("repositories") or ():
        # Of the files as they were: two states of one commit, both with changes, have the same words above.
        yield f"{beside.get('path') or beside.get('package')} files", (beside.get("tree") or "")[:12]
    for name, told in _within(git, "runtime_modifications").items():
        yield f"patched {name}", told


def _randomness(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for library, known in _within(metadata, "environment", "randomness").items():
        for key in _CHANCE:
            yield f"{library} {key.replace('_', ' ')}", known.get(key) if isinstance(known, dict) else None


def _environment(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The machine, and the variables that reach into the numbers."""
    environment = _within(metadata, "environment")
    hardware = _within(environment, "hardware")
    for key in ("cpu", "usable_cores", "gpus", "gpu_driver"):
        yield key, hardware.get(key)
    for key in ("platform", "machine", "libc"):
        yield key, _within(environment, "system").get(key)
    for library, known in _within(environment, "randomness").items():
        for key, told in known.items() if isinstance(known, dict) else ():
            if key.startswith("version."):
                yield f"{library} {key.removeprefix('version.')}", told
    variables = _within(metadata, "runtime_info", "environment_variables")
    for name, told in variables.items():
        if name.startswith(_VARIABLES):
            yield name, told


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _within(facts: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    """The dict below these keys; an empty one where there is none."""
    found: Any = facts
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return dict(found) if isinstance(found, Mapping) else {}


def _flat(nested: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, told in nested.items():
        if isinstance(told, Mapping) and told:
            yield from _flat(told, f"{above}{key}.")
        else:
            yield f"{above}{key}", str(told) if told is not None else None


_TOPICS = {
    "configuration": _configuration,
    "packages": _packages,
    "code": _code,
    "randomness": _randomness,
    "environment": _environment,
}
