"""The small model, its tokens and its captures are those of the comparison's tests."""

from tests.comparison.conftest import captured, clean, llama, tokens

__all__ = ["captured", "clean", "llama", "tokens"]
