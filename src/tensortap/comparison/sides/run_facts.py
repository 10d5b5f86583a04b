"""Facts about how a run was made, by topic: configuration, packages, code, randomness, environment."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from tensortap.core.dtypes import ARRAY_LIBRARIES, ARRAY_LIBRARY_NAMES
from tensortap.core.errors import TensortapError
from tensortap.formats.run_layout import nested_dict
from tensortap.readers.run import Run
from tensortap.render.text import truncate

Facts = dict[str, Any]
_ABSENT = "-"
_MAX_LENGTH = 60
# Environment variables that affect numerics; all others would be noise.
_NUMERIC_VARIABLES = (
    *("CUBLAS", "CUDA", "CUDNN", "FLASH", "GLOO", "HF_", "HIP_", "HSA_", "JAX", "KMP_", "LD_PRELOAD", "MKL"),
    *("NCCL", "NVIDIA_TF32", "NVTE", "OMP", "OPENBLAS", "PYTHONHASHSEED", "PYTORCH", "ROCM", "SGLANG", "TF_"),
    *("TORCH", "TRITON", "VLLM", "WORLD_SIZE", "XLA"),
)
_RNG_KEYS = ("state", "initial_seed", "cuda_state", "cuda_initial_seed")
_PYTHON_RNG = "random state"  # of Python's `random`
FILE_PREFIX = "files."  # prefix of source files outside any repository
_SUBJECTS = (
    "files",
    "model",
    "training",
    "number of modules",
    "modules",
    "config",
    "command",
    *ARRAY_LIBRARY_NAMES,
)
_IGNORED_CONFIG_KEYS = ("_name_or_path", "transformers_version", "torch_dtype")
# Packages that affect numerics are listed first.
_NUMERIC_PACKAGES = (
    *ARRAY_LIBRARY_NAMES,
    *(distribution for library in ARRAY_LIBRARIES for distribution in library.distributions),
    *("transformers", "flash-attn", "vllm", "sglang"),
)


def read_metadata(run: Run) -> tuple[dict[str, Any], dict[str, str], dict[str, bytes]]:
    """The metadata of a run, with digests of its `sources`; errors of unreadable parts; the source files."""
    metadata, damaged = run.readable_metadata()
    files: dict[str, bytes] = {}
    try:
        files = run.sources()
    except (TensortapError, OSError) as error:
        damaged["sources"] = str(error)
    metadata["sources"] = {name: _digest(content) for name, content in files.items()}
    return metadata, damaged, files


def extract_facts(topic: str, metadata: Mapping[str, Any]) -> Facts:
    """The facts on one topic as a flat dict."""
    pairs = _TOPICS[topic](metadata)
    return {key: value for key, value in pairs if value not in (None, "", {}, [])}


def describe_differences(a: Facts, b: Facts) -> dict[str, str]:
    """Describe the facts that differ; empty if a side has no facts at all."""
    if not a or not b:
        return {}
    keys = [key for key in dict.fromkeys([*a, *b]) if a.get(key, _ABSENT) != b.get(key, _ABSENT)]
    comparable_keys = [key for key in keys if not _lacks_subject(key, a) and not _lacks_subject(key, b)]
    changes = {
        key: _describe_change(key, a.get(key, _ABSENT), b.get(key, _ABSENT)) for key in comparable_keys
    }
    # Most programs do not seed it, so on its own it would differ between any two runs.
    return {} if list(changes) == [_PYTHON_RNG] and len({*a, *b}) > 1 else changes


def _lacks_subject(key: str, facts: Facts) -> bool:
    """Whether a side recorded nothing on that subject, which is no difference."""
    subject = key.partition(".")[0]
    return subject in _SUBJECTS and not any(fact.partition(".")[0] == subject for fact in facts)


def _describe_change(key: str, a: Any, b: Any) -> str:
    if key.endswith("state"):
        return f"{key} differs"
    if key.startswith("modules."):  # a list of settings: show those that differ
        parts = [str(value).split(", ") for value in (a, b)]
        a, b = (", ".join(part for part in parts[i] if part not in parts[1 - i]) or _ABSENT for i in (0, 1))
    return f"{key.removeprefix(FILE_PREFIX)} {_shorten(a)} -> {_shorten(b)}"


def _shorten(value: Any) -> str:
    return truncate(" ".join(str(value).split()), _MAX_LENGTH, "...")


def _configuration_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The model and its configuration, the command line, and torch flags."""
    model = nested_dict(metadata, "model")
    yield "model", model.get("class")
    yield "training", str(model["training"]) if "training" in model else None
    yield "number of modules", len(model["modules"]) if model.get("modules") else None
    for path, value in nested_dict(model, "settings").items():
        yield f"modules.{path}" if path else "modules", value
    for key, value in _flatten(nested_dict(model, "config")):
        if key.rpartition(".")[2] not in _IGNORED_CONFIG_KEYS:
            yield f"config.{key}", value
    command = nested_dict(metadata, "runtime_info", "command")
    yield "command", command.get("full_command")
    for library, flags in nested_dict(metadata, "environment", "randomness").items():
        for flag, value in flags.items() if isinstance(flags, dict) else ():
            if flag not in _RNG_KEYS and not flag.startswith("version."):
                yield f"{library}.{flag}", str(value) if value is not None else None


def _package_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    packages = nested_dict(metadata, "packages")
    yield "python", packages.get("python_version")
    every = nested_dict(packages, "all_packages")
    for name in sorted(every, key=lambda name: (name.lower() not in _NUMERIC_PACKAGES, name.lower())):
        yield name, every[name]


def _code_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    git = nested_dict(metadata, "git_info")
    for key, value in nested_dict(git, "project_git_info").items():
        if key in ("commit_id", "branch", "status"):
            yield f"project {key.removesuffix('_id')}", value
    patch = metadata.get("patch") or b""
    yield "changes not committed", _digest(patch) if patch else None
    for name, value in nested_dict(metadata, "sources").items():
        yield f"{FILE_PREFIX}{name}", value
    for name, value in nested_dict(git, "packages_git_info").items():
        yield f"{name} commit", f"{value.get('commit_id', '')[:12]} {value.get('status', '')}".strip()
    for repository in nested_dict(metadata, "environment").get("repositories") or ():
        # A tree hash: two dirty states of one commit have the same commit and status.
        yield (
            f"{repository.get('path') or repository.get('package')} files",
            (repository.get("tree") or "")[:12],
        )
    for name, value in nested_dict(git, "runtime_modifications").items():
        yield f"patched {name}", value


def _rng_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for library, state in nested_dict(metadata, "environment", "randomness").items():
        for key in _RNG_KEYS:
            yield f"{library} {key.replace('_', ' ')}", state.get(key) if isinstance(state, dict) else None


def _environment_facts(metadata: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The machine, and the environment variables that affect numerics."""
    environment = nested_dict(metadata, "environment")
    hardware = nested_dict(environment, "hardware")
    for key in ("cpu", "usable_cores", "gpus", "gpu_driver"):
        yield key, hardware.get(key)
    for key in ("platform", "machine", "libc"):
        yield key, nested_dict(environment, "system").get(key)
    for library, state in nested_dict(environment, "randomness").items():
        for key, value in state.items() if isinstance(state, dict) else ():
            if key.startswith("version."):
                yield f"{library} {key.removeprefix('version.')}", value
    variables = nested_dict(metadata, "runtime_info", "environment_variables")
    for name, value in variables.items():
        if name.startswith(_NUMERIC_VARIABLES):
            yield name, value


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=6).hexdigest()


def _flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in mapping.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value) if value is not None else None


_TOPICS = {
    "configuration": _configuration_facts,
    "packages": _package_facts,
    "code": _code_facts,
    "randomness": _rng_facts,
    "environment": _environment_facts,
}
