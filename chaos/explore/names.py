"""What steps of the update are called, from the plan."""

from __future__ import annotations

from leto.core.failpoints import Kernel
from leto.core.markers import STEPS_PER_CHUNK, Phase, StepDone, Word
from leto.core.update_plan import Operation, OpKind, Publish

KERNEL_OF = {
    OpKind.FETCH: Kernel.PARITY_FETCH,
    OpKind.SAVE_UNDO: Kernel.UNDO_SAVE,
    OpKind.RESTORE: Kernel.UNDO_RESTORE,
    OpKind.UPDATE: Kernel.ADAM,
    OpKind.PARITY: Kernel.RS_UPDATE,
    OpKind.UPDATE_AND_PARITY: Kernel.RS_UPDATE,  # the last of the two that it asks for
    OpKind.WRITE_BACK: Kernel.PARITY_WRITEBACK,
    OpKind.TIER2: Kernel.TIER2,
}
"""COMMIT has none: the mark is the operation."""


def operation_name(op: Operation) -> str:
    chunk = "" if op.chunk is None else f" chunk {op.chunk}"
    return f"{KERNEL_OF[op.kind].value} of group {op.group}{chunk}"


def mark_name(publish: Publish) -> str:
    """``BEGIN(2)``, ``UPDATED of chunk 3``, ``fetched 1``."""
    ordinal = publish.mark.ordinal
    if publish.word is Word.PHASE:
        return f"{Phase(ordinal).name}({publish.mark.iteration})"
    if publish.word is not Word.STEP:
        return f"{publish.word.name.lower()} {ordinal}"
    done = StepDone(ordinal % STEPS_PER_CHUNK or STEPS_PER_CHUNK)
    return f"{done.name} of chunk {(ordinal - done) // STEPS_PER_CHUNK}"
