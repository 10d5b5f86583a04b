"""What the environment asks for at a program's first call, and not before: opening it to live sessions."""

import logging
import sys

from tensortap.core.settings import is_on, is_strict, setting

_was_called = False
log = logging.getLogger("tensortap.live")


def listen_if_requested() -> None:
    """To be called by every call that a live session can gain from; does its work once."""
    global _was_called
    if _was_called:
        return
    _was_called = True
    if is_on() and setting("TENSORTAP_LIVE") != "0":
        try:
            sys.modules["tensortap"].listen()  # through the front door: what listens is floors above
        except Exception:
            if is_strict():
                raise
            log.exception("TENSORTAP_LIVE=1 could not open the program to live sessions; it goes on without")
