"""Progress markers: four words a rank that say how far an update came (U1 to U5).

    word      bits 63..48   47..24      23..0 (ordinal)
    phase     epoch         iteration   Phase
    step      epoch         iteration   4 * chunk + StepDone   (operations 8 to 11 of chunk)
    fetched   epoch         iteration   groups whose parity has been fetched
    written   epoch         iteration   groups whose parity (both tiers) is back in host memory

Each word is stored with release semantics after what it announces and before the next operation begins, in three mirrors
on distinct pages. Everything else (which parity buffer speaks, where to resume) is arithmetic on the words and the static
plan, so nothing can tear. A word of an older iteration than the phase word's reads as "nothing yet".

Each word has one writer: fetched and written_back belong to the copy lane of a pipelined update, the others to the computation
(U35). No lane begins another store before all mirrors hold the last one, so at most one mark a lane is in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from leto.core.errors import ProtocolViolation, Unrecoverable

MIRRORS = 3
WORDS = 4
_ORDINAL_BITS = 24
_ITERATION_BITS = 24
_ORDINAL_MASK = (1 << _ORDINAL_BITS) - 1
_ITERATION_MASK = (1 << _ITERATION_BITS) - 1
_EPOCH_MASK = (1 << 16) - 1
STEPS_PER_CHUNK = 4


class Word(IntEnum):
    """Index of a marker word in its page."""

    PHASE = 0
    STEP = 1
    FETCHED = 2
    WRITTEN_BACK = 3


class Phase(IntEnum):
    """Phases of one iteration, in order. HEADER(t+1) implies BEGIN(t) and COMPLETE(t)."""

    NONE = 0
    HEADER = 1
    OWNED = 2
    POST = 3
    GRADS_PROTECTED = 4
    BEGIN = 5
    COMPLETE = 6


class StepDone(IntEnum):
    """Last operation of Pseudocode 1 that is done on a chunk."""

    UNDO_SAVED = 1  # operation 8
    UPDATED = 2  # operation 9
    PARITY_UPDATED = 3  # operation 10
    COMMITTED = 4  # operation 11: the store of this very word


@dataclass(frozen=True, order=True)
class Mark:
    """One marker word, decoded. Order is the order of progress: iteration, then ordinal."""

    iteration: int
    ordinal: int


NOTHING = Mark(0, 0)


def pack(epoch: int, mark: Mark) -> int:
    """The 64-bit word. Raises ProtocolViolation when a field does not fit."""
    if not (0 <= epoch <= _EPOCH_MASK and 0 <= mark.iteration <= _ITERATION_MASK and 0 <= mark.ordinal <= _ORDINAL_MASK):
        raise ProtocolViolation(f"marker does not fit its word: epoch {epoch}, {mark}")
    return (epoch << 48) | (mark.iteration << 24) | mark.ordinal


def unpack(word: int) -> tuple[int, Mark]:
    return word >> 48, Mark((word >> 24) & _ITERATION_MASK, word & _ORDINAL_MASK)


def step_mark(iteration: int, chunk: int, done: StepDone) -> Mark:
    return Mark(iteration, STEPS_PER_CHUNK * chunk + done)


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far one rank came, as its marker words say. The one input of the decision table."""

    phase: Phase
    iteration: int
    step: int = 0  # ordinal of the step word, 0 when of an older iteration
    fetched: int = 0  # groups
    written_back: int = 0  # groups

    @property
    def begun(self) -> int:
        """Highest iteration t for which BEGIN(t) is durable, 0 when none."""
        return self.iteration if self.phase >= Phase.BEGIN else max(self.iteration - 1, 0)

    @property
    def completed(self) -> int:
        """Highest iteration t for which COMPLETE(t) is durable, 0 when none."""
        return self.iteration if self.phase >= Phase.COMPLETE else max(self.iteration - 1, 0)

    @property
    def committed_chunks(self) -> int:
        """Chunks 0 .. committed_chunks-1 are committed in this iteration."""
        return self.step // STEPS_PER_CHUNK if self.step else 0

    def commits_in(self, chunks: range) -> int:
        """How many of a group's chunks are committed in this iteration."""
        return min(max(self.committed_chunks - chunks.start, 0), len(chunks))

    @property
    def in_flight(self) -> tuple[int, StepDone] | None:
        """The chunk whose undo copy is valid and which is not committed, with its last done operation."""
        done = self.step % STEPS_PER_CHUNK
        if not done:
            return None
        return self.step // STEPS_PER_CHUNK, StepDone(done)

    def describe(self) -> str:
        """For reasons and the journal: ``BEGIN(12) chunk 3 UPDATED``."""
        text = f"{self.phase.name}({self.iteration})"
        if self.phase is not Phase.BEGIN:
            return text
        flight = self.in_flight
        return text + (f" chunk {flight[0]} {flight[1].name}" if flight else f" {self.committed_chunks} chunks committed")


def read_mirrors(epoch: int, mirrors: Sequence[Sequence[int] | None]) -> Progress:
    """Progress from the three mirrors (each four words, or None where the page is lost).

    A reader takes the maximum of the valid mirrors; they differ by at most one mark of each lane (U1). Raises Unrecoverable
    when every mirror is lost: nothing is ever guessed from data (U4).
    """
    valid = [m for m in mirrors if m is not None and all(unpack(w)[0] == epoch or w == 0 for w in m)]
    if not valid:
        raise Unrecoverable(f"all {len(mirrors)} mirrors of the epoch {epoch} marker are lost")
    marks = [max(unpack(m[w])[1] for m in valid) for w in range(WORDS)]
    changed = {Word(w) for w in range(WORDS) if len({m[w] for m in valid}) > 1}
    if len(changed) > 1 and changed not in _MARKS_OF_TWO_LANES:
        raise Unrecoverable(f"mirrors of the epoch {epoch} marker differ in {len(changed)} words: more than one mark apart")
    return progress_of(marks)


_MARKS_OF_TWO_LANES = ({Word.STEP, Word.FETCHED}, {Word.STEP, Word.WRITTEN_BACK})
"""Words that may be in flight together; while phases change no copy lane runs. A mark that stands in one mirror is true: what
it announces was done before its first store, and every mark that its operation waited for stood in all mirrors by then. So the
maxima, word by word, are a state of the update. A serial update has one mark in flight, but words do not say which kind it was;
the rule is weaker there by a mirror that lags in just such a pair, and that one does not move the maximum."""


def progress_of(marks: Sequence[Mark]) -> Progress:
    """Progress from four decoded words; a step, fetched or written-back word of an older iteration reads as none."""
    phase = marks[Word.PHASE]
    current = [m.ordinal if m.iteration == phase.iteration and phase.ordinal >= Phase.BEGIN else 0 for m in marks]
    return Progress(
        phase=Phase(phase.ordinal),
        iteration=phase.iteration,
        step=current[Word.STEP],
        fetched=current[Word.FETCHED],
        written_back=current[Word.WRITTEN_BACK],
    )


def words_of(epoch: int, progress: Progress) -> tuple[int, ...]:
    """The four words that a fresh marker page of ``epoch`` must hold to say ``progress`` (carry-over, U5)."""
    t = progress.iteration
    ordinals = (int(progress.phase), progress.step, progress.fetched, progress.written_back)
    return tuple(pack(epoch, Mark(t, o)) if o else 0 for o in ordinals)
