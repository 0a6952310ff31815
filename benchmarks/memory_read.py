"""The yardstick: how fast this processor reads memory when it does nothing else (memory_read.c, compiled when first asked)."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
COMPILE_TIMEOUT_S = 60.0


def memory_reader(folder: Path, page_bytes: int) -> Callable[[Sequence[int]], None]:
    """A function that reads all given pages (a multiple of four) as four streams. Builds the library in ``folder``."""
    library = folder / "memory_read.so"
    command = ["cc", "-O3", "-march=native", "-shared", "-fPIC", "-o", str(library), str(SOURCE)]
    subprocess.run(command, check=True, timeout=COMPILE_TIMEOUT_S)
    function = ctypes.CDLL(str(library)).memory_read
    function.restype = ctypes.c_uint64

    def read(pages: Sequence[int]) -> None:
        pointers = (ctypes.c_void_p * len(pages))(*pages)
        function(pointers, ctypes.c_size_t(len(pages)), ctypes.c_size_t(page_bytes))

    return read
