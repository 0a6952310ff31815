"""One rank's retained memory in this process, with the real geometry, plans, executor, marks and kernels: crashes without
processes. What is in a ``RetainedRank`` survives a crash; what is in a ``Process`` does not."""

from __future__ import annotations

import numpy as np

from chaos.explore.memory import MarkerImage, Markers, Memory
from leto.core.failpoints import Failpoints, NoFailpoints
from leto.core.geometry import (
    ELEMENT_BYTES,
    MUON_MASTER,
    CodedGeometry,
    GradientGeometry,
    Matrix,
    Page,
    Protection,
    Segment,
    pages_of_bytes,
)
from leto.core.layout import TIER2, Allocation, PageClass, tier1, updater_allocations
from leto.core.markers import Mark, Phase, Word
from leto.core.records import UpdateValues
from leto.core.recovery import Decision, decide
from leto.device.base import Kernels
from leto.device.host_kernels import HostKernels
from leto.update.executor import AdamHyper, RetainedAddresses, UpdateParts
from leto.update.marks import Marks
from leto.update.pieces import Muon
from leto.update.record_slots import RECORD_SLOT_BYTES
from leto.update.updater import ChunkUpdater

GRADIENTS = "gradients/all"
KERNELS = HostKernels()
HYPER = AdamHyper(beta1=0.9, beta2=0.95, eps=1e-8)


def gradients_of(coded: CodedGeometry) -> GradientGeometry:
    """One flat fp32 gradient for everything, all of it the rank's own: what AdamW updates comes before the matrices."""
    count = sum(part.count for part in (*coded.segments, *coded.matrices))
    pages = tuple(pages_of_bytes(GRADIENTS, 0, 4 * count, coded.protection.page_bytes))
    return GradientGeometry(protection=coded.protection, pages=pages)


def allocations_of(coded: CodedGeometry, gradients: GradientGeometry) -> tuple[Allocation, ...]:
    """Everything that is retained of a rank which derives no parameters."""
    whole = len(gradients.pages) * coded.protection.page_bytes
    return (
        *updater_allocations(coded, gradients, RECORD_SLOT_BYTES),
        Allocation(name=GRADIENTS, page_class=PageClass.GRADIENTS, byte_count=whole),
    )


def update_parts(
    coded: CodedGeometry,
    retained: RetainedAddresses,
    kernels: Kernels,
    marks: Marks,
    failpoints: Failpoints,
    *,
    fused: bool = False,
    muon: Muon | None = None,
) -> UpdateParts:
    """Of a process of such a rank. AdamW is the kernels' own."""
    matrices = {matrix.name for matrix in coded.matrices}

    def gradient_address(segment: Segment) -> int:
        before = coded.element_count if segment.name in matrices else 0
        return retained.address(GRADIENTS) + ELEMENT_BYTES * (before + segment.first)

    return UpdateParts(
        coded=coded,
        retained=retained,
        kernels=kernels,
        adam=kernels.adam,
        hyper=HYPER,
        marks=marks,
        failpoints=failpoints,
        gradient_address=gradient_address,
        fused=fused,
        muon=muon,
    )


class RetainedRank:
    """Everything of a rank that outlives its processes. ``lost`` are the pages marked as lost and not yet rebuilt,
    ``lost_mirrors`` those of this epoch's marker page."""

    def __init__(self, segments: tuple[Segment, ...], protection: Protection, matrices: tuple[Matrix, ...] = ()) -> None:
        self.coded = CodedGeometry(protection=protection, segments=segments, matrices=matrices)
        self._elements = {array: region.element_count for region in self.coded.regions for array in region.arrays}
        self.coded_arrays = tuple(self._elements)
        self._elements[GRADIENTS] = sum(part.count for part in (*segments, *matrices))
        self.gradients = gradients_of(self.coded)
        allocations = allocations_of(self.coded, self.gradients)
        self.classes = {a.name: a.page_class for a in allocations}
        self.memory = Memory(allocations, protection.page_bytes)
        self.markers = Markers()
        self.epoch = 1
        self.lost: frozenset[Page] = frozenset()
        self.lost_mirrors: tuple[int, ...] = ()

    def array(self, name: str) -> np.ndarray:
        """The real elements of a coded array or of the gradients, without padding."""
        return self.memory.bytes(name).view(np.float32)[: self._elements[name]]

    def durable(self) -> dict[str, bytes]:
        """Coded state and both tiers: what a crash may not change in the end."""
        tiers = [*(tier1(group) for group in range(self.coded.group_count)), TIER2]
        return self.memory.contents(name for name in (*self.coded_arrays, *tiers) if name in self.classes)

    def masters(self) -> np.ndarray:
        """A copy, in the order of the gradients."""
        return np.concatenate([self.array(name) for name in ("master", MUON_MASTER) if name in self.coded_arrays])

    def fill(self, generator: np.random.Generator) -> None:
        """Coded state of a model that has not been trained."""
        for name in self.coded_arrays:
            values = generator.standard_normal(self._elements[name]).astype(np.float32)
            self.array(name)[:] = np.abs(values) if name == "exp_avg_sq" else values

    def process(self) -> Process:
        return Process(self)

    def open_epoch(self, decision: Decision, rank: int = 0, *, carried: bool = False) -> None:
        """The next epoch begins with what the decision carries into its marker pages (U5), unless it is done."""
        self.epoch += 1
        self.lost_mirrors = ()
        if not carried:
            self.markers.carry(self.epoch, decision.carried[rank])

    def rebuilt(self) -> None:
        """A process acknowledges that nothing is lost any more."""
        self.lost = frozenset()

    def marker_image(self) -> MarkerImage:
        return self.markers.image(self.epoch)


class InMemoryRank(RetainedRank):
    """A rank with state and parity, as between two updates."""

    def __init__(
        self, segments: tuple[Segment, ...], protection: Protection, seed: int, matrices: tuple[Matrix, ...] = ()
    ) -> None:
        super().__init__(segments, protection, matrices)
        generator = np.random.default_rng(seed)
        self.fill(generator)
        self.array(GRADIENTS)[:] = generator.standard_normal(self._elements[GRADIENTS]).astype(np.float32)
        self.process().updater.encode_state()

    def crash(self) -> Decision:
        """The process is gone and the next epoch open, by the decision on this rank's marks alone."""
        decision = decide([self.markers.read_progress(self.epoch)], 1 << 20)
        self.open_epoch(decision)
        return decision


class Process:
    """What a trainer process builds over retained memory."""

    def __init__(
        self,
        rank: RetainedRank,
        kernels: Kernels = KERNELS,
        failpoints: Failpoints | None = None,
        *,
        fused: bool = False,
        muon: Muon | None = None,
    ) -> None:
        self.rank = rank
        self.marks = Marks(kernels, rank.markers, rank.epoch)
        self.parts = update_parts(
            rank.coded, rank.memory, kernels, self.marks, failpoints or NoFailpoints(), fused=fused, muon=muon
        )
        self.updater = ChunkUpdater(self.parts, rank.gradients)

    def begin(self, iteration: int) -> None:
        self.marks.publish(Word.PHASE, Mark(iteration, Phase.BEGIN))


RATES = (((1e-3, 0.1), (2e-3, 0.0)), ((3e-3, 0.05),))
"""(learning rate, weight decay) by optimizer and parameter group."""


def values(iteration: int) -> UpdateValues:
    return UpdateValues(iteration=iteration, skipped=False, applied_step=iteration, clip=(0.5).hex(), learning_rates=RATES)
