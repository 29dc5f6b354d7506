"""Which stream groups this server runs, and what those that it leads become: carries out
`jetstream.meta.desired_state` and `jetstream.meta.membership_steps`.

Everything is compared again after each change and from time to time, so nothing that is lost on the way is
lost for good. What removes files, sets them aside, or changes members needs a current meta state.

A server that has just started applies the commands in its log of the meta group once more. On the way it
sees streams that it had before and removed, and the cluster has forgotten that they were deleted, for this
server had confirmed it. So nothing new is started before the meta state was current once.

Invariant: files are removed in two steps. The replica stops; then, if a current meta state still says so, its
files go. In between it acknowledges nothing, so that a stream that comes back loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock import faults
from penstock.errors import MisuseError, ServerError, StoreError
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.desired_state import (
    AwaitMeta,
    ConfirmMissing,
    Difference,
    QuarantineStored,
    RelabelStored,
    RemoveStored,
    StartStream,
    StoredStream,
    differences,
)
from penstock.jetstream.meta.membership_steps import (
    AwaitProgress,
    ChangeMember,
    GroupView,
    TransferLeadership,
    next_step,
)
from penstock.jetstream.meta.meta_commands import ConfirmRemoved
from penstock.jetstream.meta.meta_effects import AssetAction, StreamEffect
from penstock.protocol.api import DesiredClusterStatus

if TYPE_CHECKING:
    from collections.abc import Collection

    from penstock.jetstream.engine import JetStreamEngine
    from penstock.server.logging.logs import Log
    from penstock.server.replicated.meta_replica import MetaReplica
    from penstock.server.replicated.stream_group_owner import StreamGroup
    from penstock.server.replicated.stream_groups import StreamGroups

REVIEW_NS = 2_000_000_000
STEP_NS = 200_000_000
STEPS_REVIEW_NS = 1_000_000_000

Key = tuple[str, str]
"""Account and name of a stream."""


class StreamSupervisor:
    """See the module.

    Args:
        groups: of this server.
        meta: its meta state.
        engine_of: the engine of an account.
        node_name: this server as a member.
        online: members that answer, this one among them.
        monotonic: ns.

    quarantined: why stored streams are set aside. status: what the groups that this server leads wait for.
    failures: why streams could not be started.
    """

    def __init__(
        self,
        groups: StreamGroups,
        meta: MetaReplica,
        engine_of: Callable[[str], JetStreamEngine],
        node_name: str,
        online: Callable[[], Collection[str]],
        monotonic: Callable[[], int],
        log: Log,
    ) -> None:
        self._groups = groups
        self._meta = meta
        self._engine_of = engine_of
        self._name = node_name
        self._online = online
        self._monotonic = monotonic
        self._log = log
        self._review_at = 0
        self._started: set[Key] = set()  # to be looked at before the others
        self._asked_at = 0
        self._steps: dict[Key, int] = {}  # when to look at the members of a group
        self._steps_review_at = 0
        self._stopped: set[tuple[str, str, int]] = set()  # stopped, and not removed yet
        self.quarantined: dict[StoredStream, str] = {}
        self.status: dict[Key, DesiredClusterStatus] = {}
        self.failures: dict[Key, str] = {}

    # --- what happened --------------------------------------------------------------------------

    def stream_changed(self, effect: StreamEffect) -> None:
        """A command changed a stream."""
        key = (effect.account, effect.stream)
        if effect.action is AssetAction.CREATED:
            self._started.add(key)
        elif effect.action is not AssetAction.PRESENT:
            self.review()
        if effect.action is not AssetAction.REMOVED:
            self._steps[key] = 0

    def review(self) -> None:
        """The meta state is to be compared with what is here."""
        self._review_at = 0

    def group_changed(self, group: StreamGroup) -> None:
        """The leader or the members of a group changed."""
        self._steps[group.key] = 0

    # --- time -----------------------------------------------------------------------------------

    @property
    def has_work(self) -> bool:
        """Whether tick() has something to do at once."""
        return self._has_state and (bool(self._started) or self._review_at == 0)

    @property
    def _has_state(self) -> bool:
        """Whether this server knows the meta state of its cluster."""
        return self._meta.group is not None and bool(self._meta.tables.cluster_id)

    def tick(self) -> None:
        """Does what is due."""
        if not self._has_state:
            return
        self._groups.tick()
        now = self._monotonic()
        started, self._started = self._started, set()
        for key in started:
            faults.contain(self._start_new, self._starting_failed, key)
        if now >= self._review_at:
            self._review_at = now + REVIEW_NS
            self._review(is_current=False)
        self._make_steps(now)

    def _start_new(self, key: Key) -> None:
        """Starts a stream that was created just now, without a look at all the others."""
        tables = self._meta.tables
        assignment = tables.find_stream(*key)
        if assignment is None or self._meta.own_peer not in assignment.hosts:
            return
        if not self._meta.was_current:
            self.review()
            return
        if self._groups.find(*key) is not None or any(
            (one.account, one.name) == key for one in self._groups.unclaimed
        ):
            self.review()
            return
        self._start(assignment)

    def _starting_failed(self, error: Exception, key: Key) -> None:
        account, name = key
        fault = faults.note(f"starting stream {name} of account {account}", error)
        self.failures[key] = faults.describe(fault)

    def _review(self, *, is_current: bool) -> None:
        tables, own = self._meta.tables, self._meta.own_peer
        found = differences(tables, own, self._groups.stored, is_current=is_current)
        if is_current:
            before = self.quarantined
            self.quarantined = {one.stored: one.reason for one in found if isinstance(one, QuarantineStored)}
            for stored, reason in self.quarantined.items():
                if before.get(stored) != reason:  # else the log has it from an earlier review
                    name, account = stored.name, stored.account
                    self._log.error(f"stream {name!r} of account {account!r} is set aside: {reason}")
        needs_current = not self._meta.was_current
        for one in found:
            if isinstance(one, AwaitMeta):
                needs_current = True
            elif isinstance(one, StartStream) and not self._meta.was_current:
                pass  # see the module
            else:
                faults.contain(self._act, self._acting_failed, one, is_current)
        is_awaited = bool(tables.streams_leaving(own)) or any(
            own in tombstone.peers for tombstone in tables.tombstones.values()
        )
        if not is_current and (needs_current or is_awaited):
            now = self._monotonic()
            if now - self._asked_at >= STEP_NS and self._meta.confirm(lambda: self._review(is_current=True)):
                self._asked_at = now
            else:
                self._review_at = min(self._review_at, now + STEP_NS)

    def _acting_failed(self, error: Exception, difference: Difference, is_current: bool) -> None:
        faults.note(f"carrying out {type(difference).__name__}", error)

    def _act(self, difference: Difference, is_current: bool) -> None:
        match difference:
            case StartStream(stream, _):
                self._start(stream)
            case RelabelStored(_, stream):
                self._start(stream)
            case RemoveStored(stored, reason):
                self._remove(stored, reason, is_current=is_current)
            case QuarantineStored(stored, _):
                self._set_aside(stored)
            case ConfirmMissing(incarnations):
                tables = self._meta.tables
                self._meta.submit(ConfirmRemoved(self._meta.own_peer, incarnations, tables.applied))

    def _start(self, assignment: StreamAssignment) -> None:
        key = (assignment.account, assignment.name)
        try:
            engine = self._engine_of(assignment.account)
            if assignment.name in engine.offline and engine.replicated.find(assignment.name) is None:
                if not self._is_own(engine, assignment):
                    raise StoreError(engine.offline[assignment.name])
                if not self._groups.is_prepared(assignment):
                    self._groups.adopt(assignment, self._prepared, partial(self._not_adopted, key))
                    return
            self._groups.open(assignment, self._member_of)
            self.failures.pop(key, None)
        except (StoreError, MisuseError, ServerError, OSError) as error:
            if self.failures.get(key) != str(error):
                self._log.error(f"stream {assignment.name!r} cannot be started on this server: {error}")
            self.failures[key] = str(error)

    def _is_own(self, engine: JetStreamEngine, assignment: StreamAssignment) -> bool:
        """Whether the stream of this name that was stored here without a cluster is the assigned one."""
        stored = engine.table.standalone.get(assignment.name)
        return (
            stored is not None
            and assignment.adopted == ("", stored.created)
            and self._name in assignment.group.founders
        )

    def _prepared(self) -> None:
        """The first state of a stream is on disk."""
        self._review_at = 0

    def _not_adopted(self, key: Key, error: Exception) -> None:
        text = str(error) if isinstance(error, (StoreError, OSError)) else repr(error)
        if self.failures.get(key) != text:
            self._log.error(f"stream {key[1]!r} of account {key[0]!r} cannot be adopted now: {text}")
        self.failures[key] = text

    def _member_of(self, peer: str) -> str:
        record = self._meta.tables.peers.get(peer)
        return record.member if record is not None else ""

    def _remove(self, stored: StoredStream, reason: str, *, is_current: bool) -> None:
        present = self._groups.find(stored.account, stored.name)
        is_open = present is not None and present.assignment.incarnation == stored.incarnation
        identity = (stored.account, stored.name, stored.incarnation)
        tombstone = self._meta.tables.tombstones.get(stored.incarnation)
        if is_open and tombstone is not None:  # an incarnation never returns
            self._log.info(f"removing stream {stored.name!r}: {reason}")
            self._groups.close(stored.account, stored.name, remove=True, gone=self.review)
        elif is_open:
            self._stopped.add(identity)
            self._groups.close(stored.account, stored.name, remove=False, gone=self.review)
        elif tombstone is not None or (is_current and identity in self._stopped):
            self._log.info(f"removing stream {stored.name!r}: {reason}")
            self._stopped.discard(identity)
            self._groups.remove_unclaimed(stored, self.review)
        else:
            self._stopped.add(identity)  # it never started here: the next look decides
            self._review_at = 0

    def _set_aside(self, stored: StoredStream) -> None:
        present = self._groups.find(stored.account, stored.name)
        if present is not None and present.assignment.incarnation == stored.incarnation:
            self._groups.close(stored.account, stored.name, remove=False)

    # --- members of the groups that this server leads ---------------------------------------------

    def _make_steps(self, now: int) -> None:
        if now >= self._steps_review_at:
            self._steps_review_at = now + STEPS_REVIEW_NS
            for key, group in self._groups.groups.items():
                if group.is_serving:
                    self._steps.setdefault(key, 0)
        for key in [key for key, at in self._steps.items() if at <= now]:
            del self._steps[key]
            led = self._groups.find(*key)
            if led is None or not led.is_serving or self._is_as_wanted(led):
                self.status.pop(key, None)
            elif not self._meta.confirm(lambda key=key: self._step(key)):  # type: ignore[misc]
                self._steps[key] = now + STEP_NS

    def _is_as_wanted(self, group: StreamGroup) -> bool:
        """Whether the group has the members of its assignment, and nothing else is wanted: most have."""
        assignment = self._meta.tables.find_stream(*group.key)
        if assignment is None or assignment.incarnation != group.assignment.incarnation:
            return True
        if assignment.desired is not None:
            return False
        membership = group.port.membership
        target = {self._member_of(peer) for peer in assignment.target}
        return not membership.learners and set(membership.voters) == target

    def _step(self, key: Key) -> None:
        """The next step towards the wanted members; the meta state is current."""
        self.status.pop(key, None)
        group = self._groups.find(*key)
        assignment = self._meta.tables.find_stream(*key)
        if group is None or assignment is None or not group.is_serving:
            return
        if assignment.incarnation != group.assignment.incarnation:
            return
        membership, lags = group.port.membership, group.lags
        view = GroupView(
            leader=self._name,
            voters=membership.voters,
            learners=membership.learners,
            caught_up=[one for one in membership.learners if lags.get(one, -1) == 0],
            online={*self._online(), self._name},
            lags={**lags, self._name: 0},
        )
        self._steps[key] = self._monotonic() + STEP_NS
        step = next_step(self._meta.tables, assignment, view, is_current=True)
        match step:
            case None:
                del self._steps[key]
            case AwaitProgress(status):
                self.status[key] = status
            case ChangeMember(kind, member):
                result = group.port.change_members(kind, member)
                self._log.debug(f"stream {assignment.name!r}: {kind.value} {member}: {result.value}")
            case TransferLeadership(member):
                group.port.step_down(member)
            case command:
                self._meta.submit(command)
