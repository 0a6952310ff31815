"""leto.ReedSolomon: what it takes, what it gives, what it refuses."""

from __future__ import annotations

import mmap
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kernel_backends import addresses

import leto
from leto import _kernels
from leto.core import reed_solomon as reference
from leto.core.errors import Unrecoverable
from leto.device.reed_solomon import Array, ReedSolomon

PAGE_BYTES = 320  # one group of the vector kernels and a rest


def random_array(seed: int, pages: int, page_bytes: int = PAGE_BYTES) -> Array:
    return np.random.default_rng(seed).integers(0, 256, (pages, page_bytes), dtype=np.uint8)


def group(data_pages: int, parity_pages: int, page_bytes: int = PAGE_BYTES) -> tuple[ReedSolomon, Array, Array]:
    """A code with a full group of random data and its parity."""
    code = ReedSolomon(data_pages, parity_pages, page_bytes, threads=1)
    data = random_array(data_pages, data_pages, page_bytes)
    parity = np.empty((parity_pages, page_bytes), np.uint8)
    code.encode(data, parity)
    return code, data, parity


def test_importing_leto_does_not_load_the_kernels() -> None:
    program = "import sys, leto; print('numpy' in sys.modules, 'leto._kernels' in sys.modules); leto.ReedSolomon; leto.nothing"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["False", "False"]
    assert "module 'leto' has no attribute 'nothing'" in done.stderr
    assert leto.ReedSolomon is ReedSolomon


@pytest.mark.parametrize("parity_pages", range(1, 17))
@pytest.mark.parametrize("data_pages", [1, 5, 16, 37])
def test_encode_is_the_definition(data_pages: int, parity_pages: int) -> None:
    _, data, parity = group(data_pages, parity_pages)
    assert np.array_equal(parity, reference.encode(parity_pages, range(data_pages), list(data)))


def test_the_largest_group() -> None:
    code, data, parity = group(4096, 16, 64)
    assert np.array_equal(parity, reference.encode(16, range(4096), list(data)))
    kept = data.copy()
    lost = [0, 1, 15, 16, 1000, 2047, 2048, 4095]
    data[lost] = 0
    code.reconstruct(data, parity, lost)
    assert np.array_equal(data, kept)


def test_a_page_of_four_mebibytes() -> None:
    code, data, parity = group(2, 3, 4 << 20)
    kept, last = data.copy(), slice(-4096, None)
    expected = reference.encode(3, [0, 1], [page[last].copy() for page in data])
    assert np.array_equal(parity[:, last], expected)
    data[:] = 1
    code.reconstruct(data, parity, [0, 1])
    assert np.array_equal(data, kept)


def test_a_partial_group_is_zeros_behind_its_end() -> None:
    code = ReedSolomon(20, 4, PAGE_BYTES)
    data = random_array(1, 11)
    whole = np.zeros((20, PAGE_BYTES), np.uint8)
    whole[:11] = data
    assert np.array_equal(code.encode(data), code.encode(whole))


def test_without_out_the_parity_is_a_new_array_and_with_it_that_one() -> None:
    code, data, parity = group(3, 2)
    out = np.zeros_like(parity)
    assert code.encode(data, out) is out
    fresh = code.encode(data)
    assert isinstance(fresh, np.ndarray)
    assert np.array_equal(fresh, parity)
    assert np.array_equal(out, parity)


@pytest.mark.parametrize("threads", [2, 3, 16, None])
@pytest.mark.parametrize("data_pages", [3, 40])
def test_threads_change_no_byte(threads: int | None, data_pages: int) -> None:
    page_bytes = 1 << 20
    _, data, parity = group(data_pages, 16, page_bytes)
    code = ReedSolomon(data_pages, 16, page_bytes, threads=threads)
    assert np.array_equal(code.encode(data), parity)
    assert code.check(data, parity)
    kept, kept_parity = data.copy(), parity.copy()
    data[:2], parity[3] = 0, 0
    code.reconstruct(data, parity, [0, 1], [3])
    assert np.array_equal(data, kept)
    assert np.array_equal(parity, kept_parity)


def test_threads_may_share_one_code() -> None:
    code, data, parity = group(24, 8, 4096)

    def again(_: int) -> bool:
        return np.array_equal(code.encode(data), parity)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(again, range(200)))


def test_a_second_call_allocates_no_scratch() -> None:
    scratch = _kernels.Scratch()
    data, parity = random_array(2, 64), np.empty((16, PAGE_BYTES), np.uint8)
    sizes = []
    for _ in range(3):
        _kernels.encode(scratch, 1, PAGE_BYTES, 16, range(64), addresses(list(data)), addresses(list(parity)))
        sizes.append(scratch.byte_count)
    assert sizes[0] == sizes[1] == sizes[2] > 0


def buffers(pages: Array) -> dict[str, Callable[[], object]]:
    mapping = mmap.mmap(-1, pages.nbytes)
    mapping[:] = pages.tobytes()
    return {
        "array": lambda: pages,
        "bytearray": lambda: bytearray(pages.tobytes()),
        "memoryview": lambda: memoryview(bytearray(pages.tobytes())),
        "mmap": lambda: mapping,
        "addresses": lambda: addresses(list(pages)),
    }


@pytest.mark.parametrize("kind", ["array", "bytearray", "memoryview", "mmap", "addresses"])
def test_any_buffer_and_addresses_are_taken_as_they_are(kind: str) -> None:
    code, data, parity = group(6, 3)
    given, given_parity = buffers(data)[kind](), buffers(parity)[kind]()
    assert code.check(given, given_parity)  # type: ignore[arg-type]
    broken = data.copy()
    broken[2] = 0
    target = buffers(broken)[kind]()
    code.reconstruct(target, given_parity, [2])  # type: ignore[arg-type]
    repaired = broken if kind in ("array", "addresses") else np.frombuffer(target, np.uint8).reshape(data.shape)  # type: ignore[call-overload]
    assert np.array_equal(repaired, data)


def test_update_reads_the_old_parity_and_writes_the_new() -> None:
    code, data, parity = group(40, 16)
    columns = [39, 3, 4, 17, 16, 5]
    delta, kept, new = random_array(9, len(columns)), parity.copy(), np.empty_like(parity)
    code.update(parity, new, columns, delta)
    data[columns] ^= delta
    assert np.array_equal(new, code.encode(data))
    assert np.array_equal(parity, kept)


@pytest.mark.parametrize("erased", [([], [0, 1, 2]), ([0, 1, 2], []), ([4], [2, 0]), ([], [])])
def test_exactly_the_budget_is_repaired(erased: tuple[list[int], list[int]]) -> None:
    code, data, parity = group(5, 3)
    kept, kept_parity = data.copy(), parity.copy()
    data[erased[0]], parity[erased[1]] = 0xEE, 0xEE
    code.reconstruct(data, parity, *erased)
    assert np.array_equal(data, kept)
    assert np.array_equal(parity, kept_parity)


@pytest.mark.parametrize("erased", [([0, 1, 2, 3], []), ([0, 1, 2], [1]), ([4], [0, 1, 2])])
def test_one_more_is_refused_and_nothing_written(erased: tuple[list[int], list[int]]) -> None:
    code, data, parity = group(5, 3)
    data[erased[0]], parity[erased[1]] = 0xEE, 0xEE
    kept, kept_parity = data.copy(), parity.copy()
    what = rf"{len(erased[0])} data and {len(erased[1])} parity pages are lost, 3 of them together solvable"
    with pytest.raises(Unrecoverable, match=what):
        code.reconstruct(data, parity, *erased)
    assert np.array_equal(data, kept)
    assert np.array_equal(parity, kept_parity)


def test_a_contradicting_spare_row_is_refused() -> None:
    code, data, parity = group(5, 3)
    parity[2, 100] ^= 1
    with pytest.raises(Unrecoverable, match="spare parity row 2 contradicts"):
        code.reconstruct(data, parity, [1])


def test_check_finds_any_flipped_bit() -> None:
    code, data, parity = group(18, 4)
    for page in (*data, *parity):
        for bit in (0, 7, PAGE_BYTES * 8 - 1, 1234):
            page[bit // 8] ^= 1 << bit % 8
            assert not code.check(data, parity)
            page[bit // 8] ^= 1 << bit % 8
    assert code.check(data, parity)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1, 64), "data_pages is 0; it must be 1 to 4096"),
        ((4097, 1, 64), "data_pages is 4097"),
        ((1, 17, 64), "parity_pages is 17; it must be 1 to 16"),
        ((1, 1, 32), "page_bytes is 32; it must be 64 to"),
        ((1, 1, 100), "page_bytes is 100; it must be a multiple of 64"),
        ((1, 1, (4 << 20) + 64), "page_bytes is 4194368"),
    ],
)
def test_a_code_that_cannot_be_is_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ReedSolomon(*arguments)
    with pytest.raises(ValueError, match="threads is 0"):
        ReedSolomon(1, 1, 64, threads=0)


WRONG_DATA: dict[str, tuple[Callable[[], object], str]] = {
    "too many pages": (lambda: random_array(1, 7), "data has 7 pages; a group has 1 to 6"),
    "no page": (lambda: random_array(1, 0), "data has 0 pages"),
    "other page size": (lambda: random_array(1, 6, 64), r"data is uint8 \[6, 64\]; it must be uint8 \[pages, 320\]"),
    "other type": (lambda: np.zeros((6, PAGE_BYTES), np.int8), "data is int8"),
    "strided": (lambda: random_array(1, 12)[::2], "not C-contiguous"),
    "misaligned": (lambda: np.zeros(6 * PAGE_BYTES + 1, np.uint8)[1:].reshape(6, PAGE_BYTES), "not a multiple of 4"),
    "flat buffer of another size": (lambda: bytearray(100), "data has 100 bytes"),
    "no buffer": (lambda: 7, "data is neither an array"),
    "an odd address": (lambda: [4097], "0x1001"),
}


@pytest.mark.parametrize("what", WRONG_DATA)
def test_data_that_do_not_fit_are_refused(what: str) -> None:
    make, message = WRONG_DATA[what]
    code = ReedSolomon(6, 2, PAGE_BYTES)
    with pytest.raises(ValueError, match=message):
        code.encode(make())  # type: ignore[arg-type]


def read_only(array: Array) -> Array:
    array.flags.writeable = False
    return array


def test_what_is_written_must_be_writable() -> None:
    code, data, parity = group(6, 2)
    with pytest.raises(ValueError, match="out is read-only"):
        code.encode(data, read_only(parity.copy()))
    with pytest.raises(ValueError, match="data is read-only"):
        code.reconstruct(data.tobytes(), parity, [0])
    with pytest.raises(ValueError, match="parity_out is read-only"):
        code.update(parity, read_only(parity.copy()), [0], data[:1])
    assert code.check(read_only(data), read_only(parity))


def test_what_is_written_overlaps_nothing() -> None:
    code = ReedSolomon(6, 2, PAGE_BYTES)
    memory = random_array(3, 12)
    kept = memory.copy()
    with pytest.raises(ValueError, match="overlaps"):
        code.encode(memory[:6], memory[5:7])
    with pytest.raises(ValueError, match=r"parity_(in|out) overlaps parity_(in|out)"):
        code.update(memory[:2], memory[:2], [0], memory[4:5])
    with pytest.raises(ValueError, match="overlaps"):
        code.update(memory[:2], memory[2:4], [0], memory[3:4])
    with pytest.raises(ValueError, match="overlaps"):
        code.reconstruct(memory[:6], memory[4:6], [0])
    inside = memory.ctypes.data + PAGE_BYTES // 2 // 4 * 4
    with pytest.raises(ValueError, match="overlaps"):
        code.encode(memory[:6], [inside, memory.ctypes.data + 8 * PAGE_BYTES])
    with pytest.raises(ValueError, match="out overlaps out"):
        code.encode(memory[:6], [memory.ctypes.data + 8 * PAGE_BYTES] * 2)
    assert np.array_equal(memory, kept)
    assert code.check(memory[:6], memory[:2]) in (True, False)  # reading may overlap


def test_positions_must_be_of_the_group() -> None:
    code, data, parity = group(6, 2)
    with pytest.raises(ValueError, match="erased_data names 6; positions are 0 to 5"):
        code.reconstruct(data, parity, [6])
    with pytest.raises(ValueError, match="erased_parity repeats a position"):
        code.reconstruct(data, parity, [], [1, 1])
    with pytest.raises(ValueError, match="columns repeats"):
        code.update(parity, parity.copy(), [2, 2], data[:2])
    with pytest.raises(ValueError, match="delta has 2 pages for 1 columns"):
        code.update(parity, parity.copy(), [2], data[:2])
    with pytest.raises(ValueError, match="parity has 1 pages; the code has 2"):
        code.check(data, parity[:1])
