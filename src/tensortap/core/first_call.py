"""What the environment asks for at a program's first call, and not before: opening it to live sessions."""

import logging
import sys

from tensortap.core.settings import is_on, is_strict, setting

_is_over = False
log = logging.getLogger("tensortap.live")


def first_call() -> None:
    """To be called by every call that a live session can gain from; does its work once."""
    global _is_over
    if _is_over:
        return
    _is_over = True
    if is_on() and setting("TENSORTAP_LIVE") != "0":
        try:
            sys.modules["tensortap"].listen()  # through the front door: what listens is floors above
        except Exception:
            if is_strict():
                raise
            log.exception("TENSORTAP_LIVE=1 could not open the program to live sessions; it goes on without")
