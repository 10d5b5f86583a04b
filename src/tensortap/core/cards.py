"""How a notebook shows a thing of the ground floor: drawn upstairs, and found through a registry."""

from collections.abc import Callable
from typing import Any

from tensortap.core.registry import Registry

cards: Registry[Callable[[Any], str]] = Registry("cards")


def render_card(thing: object) -> str | None:
    """Static HTML for the thing, None where nobody draws its kind."""
    draw = cards.for_type(type(thing))
    return None if draw is None else draw(thing)
