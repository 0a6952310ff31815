"""Every effect of a process on retained memory as a numbered step, and the states in which a crash can leave it.

    Write   a kernel's output, a record, the gradients    untouched | torn: a prefix is done, the rest is old or garbage
    Store   one marker word in its mirrors                0, 1 or 2 of 3 mirrors hold the new word

The state after a step is the first one of the step after it: "done" is "0 of 3 mirrors", "marked" is the next "untouched".
Torn outputs are what the armed variant of the real kernel leaves when it parks (U50), not a model of it.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache, cached_property
from itertools import product
from typing import Protocol

import numpy as np
import numpy.typing as npt

from chaos.explore.memory import Bytes, Memory
from chaos.explore.names import name_of
from leto.core.failpoints import Kernel, Park, Point, Site
from leto.core.markers import MIRRORS
from leto.device.base import AdamChunk, CodeShape, Kernels

PARK_DEADLINE_S = 10.0
_TOKEN = 1

Run = Callable[[Park | None], None]
Target = tuple[int, int]
"""Address and bytes."""
Aim = Callable[[], tuple[Target, ...]]


@dataclass(frozen=True)
class State:
    """How a crash leaves the step it hits."""

    name: str
    progress: float | None = None  # of the output, None when nothing was written
    garbage: bool = False  # what is not done holds anything, not what was there before
    mirrors: int = 0  # that hold the new word


def _torn(progress: float) -> tuple[State, State]:
    return (
        State(f"torn at {progress}, the rest garbage", progress=progress, garbage=True),
        State(f"torn at {progress}, the rest old", progress=progress),
    )


WRITE_STATES = (State("untouched"), *_torn(0.3), *_torn(0.8))
MARK_STATES = tuple(State(f"{n} of {MIRRORS} mirrors marked", mirrors=n) for n in range(MIRRORS))
END = State("nothing left to do")
KEY_STATES = 2
"""The first states of a step stand for the others where points are multiplied with points: not done, and half done."""

KEY_PAIRS = KEY_STATES**2
"""The first states of a cut of two lanes: every pair of these."""

LaneStates = tuple[State, ...]
"""The state of the next step of every lane: one in a serial plan, two in a pipelined one."""


def together(lanes: Sequence[Sequence[State]]) -> tuple[LaneStates, ...]:
    """The states of a crash with several lanes: none has begun, all are half done, all other pairs of these; then each lane in
    every other state, while the others have not begun."""
    if len(lanes) == 1:
        return tuple((state,) for state in lanes[0])
    untouched = tuple(states[0] for states in lanes)
    half = tuple(states[min(1, len(states) - 1)] for states in lanes)
    keys = [untouched, half, *product(*(states[:KEY_STATES] for states in lanes))]
    rest = [(*untouched[:n], state, *untouched[n + 1 :]) for n, states in enumerate(lanes) for state in states[KEY_STATES:]]
    return tuple(dict.fromkeys([*keys, *rest]))


def seen(states: LaneStates, lost_mirrors: Collection[int], lanes: Sequence[State]) -> LaneStates:
    """What a reader sees of it: a mark that stands in lost mirrors only is as good as not begun (``lanes``)."""
    return tuple(
        nothing if state.mirrors and set(range(state.mirrors)) <= set(lost_mirrors) else state
        for state, nothing in zip(states, lanes, strict=True)
    )


class Crash(Exception):
    """The process is gone; its retained memory is as the step left it."""


class Step(Protocol):
    """One effect. ``leave`` ends in one of ``states`` instead of doing all of it; ``touched`` are the allocations written."""

    @property
    def name(self) -> str: ...
    @property
    def touched(self) -> tuple[str, ...]: ...
    @property
    def states(self) -> tuple[State, ...]: ...
    def do(self) -> None: ...
    def leave(self, state: State) -> None: ...


class Armed(Enum):
    """What an armed variant of a step is like."""

    NO = "it has none"
    OUTPUT = "it writes its target and does not read it"
    IN_PLACE = "it updates its target"


class Write:
    """``describe`` and ``aim`` give its name and its targets, asked only of the few steps that a crash hits."""

    def __init__(
        self,
        describe: Callable[[], str],
        touched: tuple[str, ...],
        aim: Callable[[], tuple[Target, ...]],
        run: Run,
        armed: Armed,
    ) -> None:
        self.touched = touched
        self.run = run
        self.armed = armed
        self._describe = describe
        self._aim = aim

    @property
    def name(self) -> str:
        return self._describe()

    @cached_property
    def targets(self) -> tuple[Target, ...]:
        return self._aim()

    @property
    def states(self) -> tuple[State, ...]:
        return WRITE_STATES

    def do(self) -> None:
        self.run(None)

    def leave(self, state: State) -> None:
        if state.progress is None:
            return
        torn, missing = self._torn(state.progress)
        if state.garbage:
            torn[missing] = garbage_of(torn.size)[missing]
        _store(self.targets, torn)

    def _torn(self, progress: float) -> tuple[Bytes, npt.NDArray[np.bool_]]:
        """The output at ``progress``, with what was there before in the bytes that are not done, and which bytes those are."""
        old = _read(self.targets)
        if self.armed is Armed.IN_PLACE:
            torn = self._parked(progress)
            return torn, torn != _read(self.targets)
        self.run(None)
        new = _read(self.targets)
        if self.armed is Armed.OUTPUT:
            _store(self.targets, ~new)  # so that a byte which is not done differs, even where the old one is right
            missing = self._parked(progress) != new
        else:
            missing = np.arange(new.size) >= int(progress * new.size)
        return np.where(missing, old, new), missing

    def _parked(self, progress: float) -> Bytes:
        """The output while the armed kernel waits at ``progress``. When this returns the kernel has ended."""
        word = ctypes.c_uint64(0)
        park = Park(word_address=ctypes.addressof(word), token=_TOKEN, progress=progress)
        kernel = threading.Thread(target=self.run, args=(park,), daemon=True)
        kernel.start()
        deadline = time.monotonic() + PARK_DEADLINE_S
        while word.value != _TOKEN:
            if time.monotonic() > deadline or not kernel.is_alive():
                raise AssertionError(f"{self.name}: the armed kernel did not park")
            time.sleep(0)
        partial = _read(self.targets)
        word.value = 0
        kernel.join(PARK_DEADLINE_S)
        assert not kernel.is_alive(), self.name
        return partial


class Store:
    """``publish`` stores the word in the first mirrors, as many as it is told."""

    touched: tuple[str, ...] = ()

    def __init__(self, describe: Callable[[], str], publish: Callable[[int], None]) -> None:
        self.publish = publish
        self._describe = describe

    @property
    def name(self) -> str:
        return self._describe()

    @property
    def states(self) -> tuple[State, ...]:
        return MARK_STATES

    def do(self) -> None:
        self.publish(MIRRORS)

    def leave(self, state: State) -> None:
        if state.mirrors:
            self.publish(state.mirrors)


def view(target: Target) -> Bytes:
    address, byte_count = target
    return np.ctypeslib.as_array((ctypes.c_uint8 * byte_count).from_address(address))


def _read(targets: Sequence[Target]) -> Bytes:
    return np.concatenate([view(target) for target in targets])


def _store(targets: Sequence[Target], content: Bytes) -> None:
    at = 0
    for target in targets:
        view(target)[:] = content[at : at + target[1]]
        at += target[1]


@cache
def garbage_of(byte_count: int) -> npt.NDArray[np.uint8]:
    return np.random.default_rng(byte_count).integers(0, 256, byte_count, dtype=np.uint8)


class Driver(Protocol):
    """Decides what becomes of each step: ``take`` does it, or leaves it in one of its states and raises Crash."""

    def take(self, index: int, step: Step) -> None: ...


class Through:
    """Every step is done."""

    def take(self, index: int, step: Step) -> None:
        step.do()


class Watch(Protocol):
    """Sees steps as they happen, to judge them."""

    def before(self, kernel: Kernel, site: Site, touched: tuple[str, ...]) -> None: ...
    def marked(self, word_address: int, value: int) -> None: ...
    def name(self, word_address: int, value: int) -> str: ...


class Steps:
    """One process's effects on retained memory: the Kernels protocol, and its failpoints, which say what a kernel is for.

    Kernels whose target is memory of the process itself are no steps: nothing of them outlives a crash.
    """

    def __init__(self, memory: Memory, kernels: Kernels, driver: Driver, watch: Watch) -> None:
        self._memory = memory
        self._kernels = kernels
        self._driver = driver
        self._watch = watch
        self._aim: tuple[tuple[Kernel, ...], Site] | None = None  # of the kernel that comes next
        self.count = 0

    # Failpoints

    def reach(self, point: Point, site: Site) -> None:
        return None

    def arm(self, kernel: Kernel, site: Site) -> Park | None:
        """An update in one pass asks twice."""
        before = () if self._aim is None else self._aim[0]
        self._aim = ((*before, kernel), site)
        return None

    # Kernels

    def copy_pages(self, source: Sequence[int], target: Sequence[int], page_bytes: int, park: Park | None = None) -> None:
        self._kernel("copy", _pages(target, page_bytes), lambda p: self._kernels.copy_pages(source, target, page_bytes, p))

    def encode(
        self, shape: CodeShape, columns: Sequence[int], data: Sequence[int], target: Sequence[int], park: Park | None = None
    ) -> None:
        targets = _pages(target, shape.page_bytes)
        self._kernel("encode", targets, lambda p: self._kernels.encode(shape, columns, data, target, p))

    def update_parity(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        undo: Sequence[int],
        data: Sequence[int],
        parity: Sequence[int],
        target: Sequence[int],
        park: Park | None = None,
    ) -> None:
        def run(p: Park | None) -> None:
            self._kernels.update_parity(shape, columns, undo, data, parity, target, p)

        self._kernel("update-parity", _pages(target, shape.page_bytes), run)

    def reconstruct(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        data: Sequence[int],
        lost_columns: Sequence[int],
        target: Sequence[int],
        rows: Sequence[int],
        parity: Sequence[int],
    ) -> None:
        def run(p: Park | None) -> None:
            self._kernels.reconstruct(shape, columns, data, lost_columns, target, rows, parity)

        self._kernel("reconstruct", _pages(target, shape.page_bytes), run, Armed.NO)

    def xor_pages(self, source: Sequence[int], target: int, page_bytes: int, park: Park | None = None) -> None:
        self._kernel("xor", ((target, page_bytes),), lambda p: self._kernels.xor_pages(source, target, page_bytes, p))

    def equal_pages(self, left: Sequence[int], right: Sequence[int], page_bytes: int) -> list[int]:
        return self._kernels.equal_pages(left, right, page_bytes)

    def adam(self, chunk: AdamChunk, park: Park | None = None) -> None:
        self.update_in_place("adam", _arrays(chunk), lambda p: self._kernels.adam(chunk, p))

    def update_in_place(self, name: str, targets: tuple[Target, ...], run: Run) -> None:
        """An update of coded state that parks as kernels do."""
        self._kernel(name, targets, run, Armed.IN_PLACE)

    def update_chunk(
        self,
        shape: CodeShape,
        columns: Sequence[int],
        chunk: AdamChunk,
        parity: Sequence[int],
        target: Sequence[int],
        *,
        adam_park: Park | None = None,
        parity_park: Park | None = None,
    ) -> None:
        def run(p: Park | None) -> None:
            early = p is not None and p.progress < 0.5  # half of the states are torn in the update, half in the parity
            adam, coding = (p, None) if early else (None, p)
            self._kernels.update_chunk(shape, columns, chunk, parity, target, adam_park=adam, parity_park=coding)

        self._kernel("update-chunk", (*_arrays(chunk), *_pages(target, shape.page_bytes)), run, Armed.IN_PLACE)

    def fill(self, address: int, byte_count: int, pattern: int) -> None:
        run: Run = lambda p: self._kernels.fill(address, byte_count, pattern)  # noqa: E731
        self._kernel("fill", ((address, byte_count),), run, Armed.NO)

    def publish(self, addresses: Sequence[int], value: int) -> None:
        def store(mirrors: int) -> None:
            self._kernels.publish(addresses[:mirrors], value)
            self._watch.marked(addresses[0], value)

        self._take(Store(lambda: self._watch.name(addresses[0], value), store))

    # Everything else that writes retained memory

    def write(self, name: str, touched: tuple[str, ...], aim: Aim, run: Callable[[], None]) -> None:
        """A write that is no kernel: a record, the results of the compute phase. ``aim`` says where in ``touched``."""
        self._take(Write(lambda: name, touched, aim, lambda p: run(), Armed.NO))

    def _kernel(self, name: str, targets: tuple[Target, ...], run: Run, armed: Armed = Armed.OUTPUT) -> None:
        aim, self._aim = self._aim, None
        touched = self._memory.names_of(targets)
        if not touched:
            run(None)
            return
        if aim is not None:
            kernels, site = aim
            self._watch.before(kernels[-1], site, touched)
        self._take(Write(lambda: _named(name, aim, touched), touched, lambda: targets, run, armed))

    def _take(self, step: Step) -> None:
        index = self.count
        self.count += 1
        try:
            self._driver.take(index, step)
        finally:
            self._memory.wrote(step.touched)


def _pages(addresses: Sequence[int], page_bytes: int) -> tuple[Target, ...]:
    return tuple((address, page_bytes) for address in addresses)


def _arrays(chunk: AdamChunk) -> tuple[Target, ...]:
    byte_count = 4 * sum(segment.count for segment in chunk.segments)
    return tuple((address, byte_count) for address in (chunk.master_address, chunk.exp_avg_address, chunk.exp_avg_sq_address))


def _named(name: str, aim: tuple[tuple[Kernel, ...], Site] | None, touched: tuple[str, ...]) -> str:
    if aim is None:
        return f"{name} {', '.join(touched)}"
    kernels, site = aim
    return name_of(kernels, site.group, site.chunk)
