"""Torch tensors that are not one block of bytes: which kinds there are, and what they are made of."""

from __future__ import annotations

from typing import Any

from tensortap.core.errors import UnsupportedValueError

_COMPONENT_METHODS = {
    "sparse_coo": ("_indices", "_values"),
    "sparse_csr": ("crow_indices", "col_indices", "values"),
    "sparse_bsr": ("crow_indices", "col_indices", "values"),
    "sparse_csc": ("ccol_indices", "row_indices", "values"),
    "sparse_bsc": ("ccol_indices", "row_indices", "values"),
}


def layout_of(tensor: Any) -> str:
    if tensor.is_nested:
        return "nested"
    if tensor.is_quantized:
        return "quantized"
    return str(tensor.layout).removeprefix("torch.").lstrip("_")


def component_tensors(tensor: Any) -> list[Any]:
    """The ordinary tensors that one of another layout is made of."""
    layout = layout_of(tensor)
    if layout in _COMPONENT_METHODS:
        return [getattr(tensor, part)() for part in _COMPONENT_METHODS[layout]]
    if layout == "quantized":
        return [tensor.int_repr()]
    if layout == "nested":
        # A jagged tensor keeps its pieces as attributes; the older kind has one buffer.
        jagged = getattr(tensor, "_values", None)
        return [jagged, tensor._offsets] if hasattr(jagged, "layout") else [tensor.values()]
    return [tensor.to_dense()]


def tensor_nbytes(tensor: Any) -> int:
    """The bytes of the tensor or of all its pieces; 0 while a symbolic size leaves it open."""
    parts = [tensor] if layout_of(tensor) in ("strided", "quantized", "mkldnn") else component_tensors(tensor)
    counts = [part.numel() for part in parts]
    if not all(isinstance(count, int) for count in counts):
        return 0
    return sum(count * int(part.element_size()) for count, part in zip(counts, parts, strict=True))


def require_strided(tensor: Any) -> None:
    layout = layout_of(tensor)
    if layout != "strided":
        raise UnsupportedValueError(
            f"a {layout} tensor of shape {static_shape(tensor)} is not one block of bytes; "
            "make it dense first, or capture the tensors it is made of"
        )


def static_shape(tensor: Any) -> list[int]:
    """The sizes, -1 where a nested tensor's differ from piece to piece and where one is symbolic.

    Not `tensor.shape`: an uninitialised parameter refuses that."""
    return [_static_size(tensor, dimension) for dimension in range(tensor.dim())]


def _static_size(tensor: Any, dimension: int) -> int:
    try:
        size = tensor.size(dimension)
    except RuntimeError:
        return -1
    # Asking a symbolic size for its number would put a guard into the program being traced.
    return size if type(size) is int else -1
