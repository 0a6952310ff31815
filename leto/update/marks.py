"""Publishing marks: the one writer of a rank's marker words in an epoch (U1)."""

from __future__ import annotations

from typing import Protocol

from leto.core.markers import Mark, Phase, Progress, Word, pack
from leto.device.base import Kernels


class MarkerPages(Protocol):
    """Where an epoch's words are; implemented by the control arena."""

    def word_addresses(self, epoch: int, word: Word) -> tuple[int, int, int]: ...
    def read_progress(self, epoch: int) -> Progress: ...


class Marks:
    """Publishes in all three mirrors, one after the other, after everything that came before in program order."""

    def __init__(self, kernels: Kernels, pages: MarkerPages, epoch: int) -> None:
        self._kernels = kernels
        self._pages = pages
        self._epoch = epoch
        self._addresses = {word: pages.word_addresses(epoch, word) for word in Word}

    def publish(self, word: Word, mark: Mark) -> None:
        self._kernels.publish(self._addresses[word], pack(self._epoch, mark))

    def phase(self, phase: Phase, iteration: int) -> None:
        self.publish(Word.PHASE, Mark(iteration, int(phase)))

    def progress(self) -> Progress:
        return self._pages.read_progress(self._epoch)
