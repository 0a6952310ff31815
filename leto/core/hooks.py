"""What plugins see of a trainer or a state manager: how observers, faults and ledgers attach, unknown to the product."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from leto.core.events import Event
from leto.core.failpoints import Failpoints, NoFailpoints
from leto.core.geometry import CodedGeometry, GradientGeometry
from leto.core.layout import Domain
from leto.core.records import IterationResult, LiveState

if TYPE_CHECKING:  # state managers import this module and never look at contents
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True)
class StateEntry:
    """One named piece of training state, as raw bytes that must not be kept beyond the call.

    Names: ``param/<parameter>``, ``master/<parameter>``, ``exp_avg/<parameter>``, ``exp_avg_sq/<parameter>``,
    ``step/<parameter>``; of a parameter that Muon updates ``momentum_buffer/<parameter>`` in the place of the last three.
    ``dtype`` is torch's name without the prefix; ``data`` is a flat uint8 view.
    """

    name: str
    dtype: str
    data: npt.NDArray[np.uint8]


class IterationView(Protocol):
    """The training state at the end of iteration ``result.iteration``: everything t+1 depends on."""

    @property
    def result(self) -> IterationResult: ...
    @property
    def live(self) -> LiveState: ...
    def entries(self) -> Iterable[StateEntry]: ...


@dataclass(frozen=True)
class ParityAudit:
    """Both tiers compared with a re-encoding of the data they stand for (U55)."""

    groups: int
    tier1_wrong: tuple[int, ...]
    tier2_wrong: tuple[int, ...]

    @property
    def equal(self) -> bool:
        return not self.tier1_wrong and not self.tier2_wrong


@dataclass(kw_only=True)
class TrainerContext:
    """Handed to every plugin before the trainer attaches to retained memory. Plugins append and replace; nothing else does.

    ``audit`` in ``on_audit`` compares parity when it is called; ``report`` sends an event to the agent.
    ``on_attached`` runs once all retained memory is mapped, with the address of every allocation in this process.
    ``on_iteration`` runs when the results of an iteration are recorded, before HEADER(t+1) is durable, and again for the same
    t when a recovery records it again. ``on_audit`` runs after every recovery and at the end of the job.
    """

    rank: int
    epoch: int
    world_size: int
    output_dir: str
    options: Mapping[str, Any]
    park_word_address: int
    heartbeat_address: int  # 64-bit word that an observer outside can read; plugins alone write it
    report: Callable[[Event], None]
    coded: CodedGeometry | None = None  # known before the first failpoint inside an update
    gradients: GradientGeometry | None = None
    failpoints: Failpoints = field(default_factory=NoFailpoints)
    on_attached: list[Callable[[Mapping[str, int]], None]] = field(default_factory=list)
    on_iteration: list[Callable[[IterationView], None]] = field(default_factory=list)
    on_audit: list[Callable[[int, Callable[[], ParityAudit]], None]] = field(default_factory=list)


Plugin = Callable[[TrainerContext], None]


@dataclass(frozen=True, kw_only=True)
class ManagerContext:
    """Handed to every plugin of a rank's state manager before it serves, and of the agent for what it maps of the rank.

    ``mappings`` are that process's own, address and byte count. Lost pages are found by asking the kernel about the state
    manager's, so a fault that is to be found must be in them, and nobody may load from them. The agent maps control only.
    """

    rank: int
    options: Mapping[str, Any]
    mappings: Mapping[Domain, tuple[int, int]]
