"""ISA-L, the erasure code that the benchmarks compare with, by ctypes. Debian: apt-get install libisal2."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

TABLE_BYTES = 32  # a coefficient


class Isal:
    """A Cauchy code over GF(2^8): ``data_pages`` + ``parity_pages`` pages of ``page_bytes``, by address."""

    def __init__(self, data_pages: int, parity_pages: int, page_bytes: int) -> None:
        self._library = _library()
        self.data_pages = data_pages
        self._parity_pages = parity_pages
        self._page_bytes = page_bytes
        rows = data_pages + parity_pages
        matrix = (ctypes.c_ubyte * (rows * data_pages))()
        self._library.gf_gen_cauchy1_matrix(matrix, rows, data_pages)
        self._tables = (ctypes.c_ubyte * (TABLE_BYTES * data_pages * parity_pages))()
        parity_rows = ctypes.byref(matrix, data_pages * data_pages)
        self._library.ec_init_tables(data_pages, parity_pages, parity_rows, self._tables)

    def encode(self, data: Sequence[int], parity: Sequence[int]) -> None:
        """parity <- code of the data."""
        self._library.ec_encode_data(
            self._page_bytes, self.data_pages, self._parity_pages, self._tables, _pointers(data), _pointers(parity)
        )

    def update(self, column: int, undo: int, data: int, difference: int, parity: Sequence[int]) -> None:
        """Updates ``parity`` in place for one page that changed; ``difference`` is a page of scratch."""
        self._library.xor_gen(3, self._page_bytes, _pointers([undo, data, difference]))
        self._library.ec_encode_data_update(
            self._page_bytes,
            self.data_pages,
            self._parity_pages,
            column,
            self._tables,
            ctypes.c_void_p(difference),
            _pointers(parity),
        )


def version() -> str:
    """Which ISA-L it is, from the name of the file that the loader found."""
    with Path("/proc/self/maps").open() as maps:
        for line in maps:
            if "libisal" in line:
                return Path(line.split()[-1]).name
    raise RuntimeError("ISA-L is not loaded")


def _library() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libisal.so.2")
    except OSError as error:
        raise SystemExit(f"the benchmark compares with ISA-L: apt-get install libisal2 ({error})") from None


def _pointers(pages: Sequence[int]) -> ctypes.Array[ctypes.c_void_p]:
    return (ctypes.c_void_p * len(pages))(*pages)
