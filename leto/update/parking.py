"""Parking the calling thread at an armed point (U50)."""

from __future__ import annotations

import ctypes
import time

from leto.core.failpoints import Park

_POLL_S = 0.0005


def park_here(park: Park) -> None:
    """Store the token in the park word and wait until it is 0 again; a kill ends the wait for good.

    There is no deadline on purpose: whoever armed the point holds the thread, and the agent's own deadline covers a bench
    that forgot it.
    """
    word = ctypes.c_uint64.from_address(park.word_address)
    word.value = park.token
    while word.value != 0:
        time.sleep(_POLL_S)
