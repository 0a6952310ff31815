"""How one rank carries out the decision of a failure: its row of the crash-point table, then the common tail.

Every path ends the same way: retained state stands at HEADER(t+1), derived parameters are re-cast and re-gathered on all
ranks (U22), and everybody has passed a barrier.
"""

from __future__ import annotations

from collections.abc import Callable

from leto.core.errors import ProtocolViolation
from leto.core.failpoints import Point, Site
from leto.core.geometry import CodedGeometry
from leto.core.hooks import TrainerContext
from leto.core.markers import Phase
from leto.core.records import Header, Post
from leto.core.recovery import Action, Decision, Row, resume_row
from leto.runtime.iteration import IterationRunner

Agree = Callable[[str], list[str]]
"""All-gathers a text over all ranks, in rank order. Collective."""


def resume(
    runner: IterationRunner,
    *,
    decision: Decision,
    geometry: CodedGeometry,
    context: TrainerContext,
    agree: Agree,
    on_row: Callable[[Row, str], None],
) -> int:
    """Bring this rank to a durable HEADER and return the iteration to compute next, T+1 when nothing is left to train.

    Raises ProtocolViolation when records or the ranks' values contradict the decision.
    """
    target = decision.target
    post = runner.records.read_post(target) if decision.action is Action.FINISH else None
    skipped = post is not None and post.values.skipped
    row, reason = resume_row(geometry, decision, runner.marks.progress(), skipped=skipped)
    on_row(row, reason)
    if decision.action is Action.COLD:
        return _start(runner, geometry, context)
    if post is not None:
        _finish_update(runner, post, row, agree)
    if row is Row.KEEP_RELOAD_HEADER:
        _reload(runner, geometry, runner.records.read_header(target + 1))
    else:
        header = runner.records.read_post(target).next_header()
        _check_layout(header, geometry)
        runner.session.restore_live(header.live)
        runner.record(header)
    runner.barrier()
    return target + 1


def _start(runner: IterationRunner, geometry: CodedGeometry, context: TrainerContext) -> int:
    """U53: cast and gather, encode both tiers, HEADER(1), barrier."""
    live = runner.session.live_state()
    runner.derive(live, 0)
    runner.updater.encode_state()
    runner.records.write_header(Header(iteration=1, layout_hash=geometry.layout_hash(), live=live, previous=None))
    context.failpoints.reach(Point.BEFORE_FIRST_HEADER, Site(iteration=1))
    runner.marks.phase(Phase.HEADER, 1)
    runner.updater.lend()
    runner.barrier()
    return 1


def _finish_update(runner: IterationRunner, post: Post, row: Row, agree: Agree) -> None:
    """FINISH t: this rank's update of t completes; ranks that have completed it keep it."""
    _check_agreement(post, agree)
    if row in (Row.KEEP_BUILD_HEADER, Row.KEEP_RELOAD_HEADER):
        return
    if row is Row.RUN_WHOLE_UPDATE:
        runner.begin(post.iteration)
    runner.update(post)


def _reload(runner: IterationRunner, geometry: CodedGeometry, header: Header) -> None:
    _check_layout(header, geometry)
    runner.session.restore_live(header.live)
    runner.derive(header.live, header.iteration - 1)
    runner.tell(header)
    runner.updater.lend()


def _check_agreement(post: Post, agree: Agree) -> None:
    """The values of the update were fixed before the barrier, so every rank's own POST holds them (U23)."""
    texts = agree(repr(post.values))
    if len(set(texts)) != 1:
        raise ProtocolViolation(f"ranks hold different values of update {post.iteration}: {sorted(set(texts))}")


def _check_layout(header: Header, geometry: CodedGeometry) -> None:
    if header.layout_hash != geometry.layout_hash():
        raise ProtocolViolation(
            f"retained state was laid out as {header.layout_hash}, this trainer means {geometry.layout_hash()}"
        )
