"""What steps of the update are called, from the plan."""

from __future__ import annotations

from collections.abc import Iterable

from leto.core.failpoints import Kernel
from leto.core.geometry import CodedGeometry, Rule
from leto.core.markers import STEPS_PER_CHUNK, Phase, StepDone, Word
from leto.core.update_plan import Operation, OpKind, Publish

IN_ONE_PASS = (Kernel.ADAM, Kernel.RS_UPDATE)
_KERNEL_OF = {
    OpKind.FETCH: Kernel.PARITY_FETCH,
    OpKind.SAVE_UNDO: Kernel.UNDO_SAVE,
    OpKind.RESTORE: Kernel.UNDO_RESTORE,
    OpKind.PARITY: Kernel.RS_UPDATE,
    OpKind.WRITE_BACK: Kernel.PARITY_WRITEBACK,
    OpKind.TIER2: Kernel.TIER2,
}
_UPDATED_BY = {
    Rule.ADAMW: Kernel.ADAM,
    Rule.MUON_MOMENTUM: Kernel.MUON_MOMENTUM,
    Rule.MUON_APPLY: Kernel.MUON_APPLY,
}


def operation_name(op: Operation, coded: CodedGeometry) -> str | None:
    """None for COMMIT: its mark is the operation."""
    if op.kind is OpKind.COMMIT:
        return None
    return name_of(_kernels_of(op, coded), op.group, op.chunk)


def _kernels_of(op: Operation, coded: CodedGeometry) -> tuple[Kernel, ...]:
    if op.kind is OpKind.UPDATE_AND_PARITY:
        return IN_ONE_PASS
    if op.kind is OpKind.UPDATE:
        assert op.chunk is not None
        return (_UPDATED_BY[coded.region_of(op.chunk).rule],)
    return (_KERNEL_OF[op.kind],)


def name_of(kernels: Iterable[Kernel], group: int | None, chunk: int | None) -> str:
    """``adam of group 0 chunk 1``, ``adam+rs-update of group 0 chunk 1``, ``tier2 of group 0``."""
    where = f"group {group}" if chunk is None else f"group {group} chunk {chunk}"
    return f"{'+'.join(kernel.value for kernel in kernels)} of {where}"


def mark_name(publish: Publish) -> str:
    """``BEGIN(2)``, ``UPDATED of chunk 3``, ``fetched 1``."""
    ordinal = publish.mark.ordinal
    if publish.word is Word.PHASE:
        return f"{Phase(ordinal).name}({publish.mark.iteration})"
    if publish.word is not Word.STEP:
        return f"{publish.word.name.lower()} {ordinal}"
    done = StepDone(ordinal % STEPS_PER_CHUNK or STEPS_PER_CHUNK)
    return f"{done.name} of chunk {(ordinal - done) // STEPS_PER_CHUNK}"
