"""Armed kernel calls in a thread, observed while they are parked (U50)."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from kernel_backends import Page

from leto.core.failpoints import Park

WAIT_S = 30.0

every_progress = pytest.mark.parametrize("progress", [0.0, 0.3, 0.5, 1.0])


@contextlib.contextmanager
def parked(call: Callable[[Park], None], progress: float) -> Iterator[None]:
    """Runs the armed call in a thread and yields while it is parked; afterwards it has been released and has returned."""
    word = np.zeros(1, np.uint64)
    token = 0xC0FFEE
    failures: list[BaseException] = []

    def work() -> None:
        try:
            call(Park(word_address=word.ctypes.data, token=token, progress=progress))
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    deadline = time.monotonic() + WAIT_S
    while word[0] != token:
        assert not failures, failures
        assert time.monotonic() < deadline, "the call did not park"
        thread.join(0.001)
    yield
    assert thread.is_alive()
    word[0] = 0
    thread.join(WAIT_S)
    assert not thread.is_alive(), "the call did not go on"
    assert not failures, failures


def torn_at(cut: int, done: list[Page], before: list[Page]) -> list[Page]:
    """Pages that are new up to the byte ``cut``, and old behind it."""
    return [np.concatenate([new[:cut], old[cut:]]) for new, old in zip(done, before, strict=True)]
