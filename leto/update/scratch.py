"""Memory of this process for results that must not reach retained pages before they are whole."""

from __future__ import annotations

import ctypes


class ScratchPages:
    """``count`` zeroed pages, aligned to ``page_bytes``, that live as long as this object."""

    def __init__(self, count: int, page_bytes: int) -> None:
        self._memory = (ctypes.c_uint8 * ((count + 1) * page_bytes))()
        first = -(-ctypes.addressof(self._memory) // page_bytes) * page_bytes
        self.addresses = [first + k * page_bytes for k in range(count)]
