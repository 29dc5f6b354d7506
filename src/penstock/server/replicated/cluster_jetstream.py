"""Replicated JetStream of a server: joins the meta group, the stream groups and the API.

Created before the engines, which take their API from here, and started when there are routes. What the meta
group decides and what groups report is acted upon in the event loop's next iteration, never within a pump of
the replication node.

Containment: each effect, group and request is handled by itself; one that raises costs itself.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock import faults
from penstock.errors import ServerError, StoreError
from penstock.jetstream.advisories import Advisories
from penstock.jetstream.meta import cluster_infos
from penstock.jetstream.meta.cluster_infos import GroupSight
from penstock.jetstream.meta.meta_commands import DeleteStream, MetaCommand
from penstock.jetstream.meta.meta_effects import (
    Answered,
    AssetAction,
    ConsumerEffect,
    MetaEffect,
    PeerAction,
    PeerEffect,
    Refused,
    StreamEffect,
    WorkLeft,
)
from penstock.jetstream.meta.meta_requests import MetaRequest
from penstock.jetstream.meta.meta_tables import MetaTables
from penstock.jetstream.meta.request_routing import LEADERLESS_NS, RequestView
from penstock.protocol import error_codes as codes
from penstock.protocol.api import ClusterInfo, StreamAlternate
from penstock.protocol.durations import format_duration
from penstock.protocol.ids import NuidGenerator, short_hash
from penstock.raft.raft_options import RaftOptions
from penstock.replication.replication_node import ReplicationOptions
from penstock.server.disk_executor import LoopExecutor
from penstock.server.links.replication_service import ReplicationService, ReplicationSetup
from penstock.server.replicated import lost_log
from penstock.server.replicated.asset_duties import AssetDuties
from penstock.server.replicated.cluster_administration import ADMINISTRATION, ClusterAdministration
from penstock.server.replicated.cluster_api import ClusterApi
from penstock.server.replicated.cluster_events import ClusterEvents
from penstock.server.replicated.cluster_restores import ClusterRestores
from penstock.server.replicated.cluster_sights import ClusterSights, asset_view, peer_of
from penstock.server.replicated.founding import Presence
from penstock.server.replicated.info_gathering import InfoGathering
from penstock.server.replicated.meta_members import MetaMembers
from penstock.server.replicated.meta_replica import MetaReplica
from penstock.server.replicated.meta_rescue import MetaRescue
from penstock.server.replicated.own_presence import own_presence
from penstock.server.replicated.peer_watch import PeerWatch
from penstock.server.replicated.request_tickets import (
    PassedRequest,
    RecentTickets,
    RequestTicket,
    decode_passed,
    decode_ticket,
    encode_passed,
)
from penstock.server.replicated.standalone_adoption import StandaloneAdoption
from penstock.server.replicated.stream_groups import StreamGroupPorts, StreamGroups
from penstock.server.replicated.stream_supervisor import StreamSupervisor
from penstock.store.disk import LOCAL_DISK, Disk

if TYPE_CHECKING:
    from penstock.jetstream.api.api_table import ApiRequest
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.restore import TakeIn
    from penstock.protocol.api import StreamConfigRequest
    from penstock.replication.replication_node import ReplicationNode
    from penstock.server.accounts.account_registry import AccountRegistry
    from penstock.server.jetstream_service import JetStreamService
    from penstock.server.replicated.stream_group_owner import StreamGroup
    from penstock.server.server_context import ServerContext

TICK_S = 0.05
KNOWN_NS = 2_000_000_000
READS_NS = 250_000_000
LOG_DIRECTORY = "_groups"
STATE_DIRECTORY = "states"
WRITE_FIRST_BYTES_MAX = 32 << 10
"""Entries that a leader without a sync writes before it sends them: the write takes microseconds, and saves
two messages and two answers about their commit."""


class ClusterJetStream:
    """See the module.

    Args:
        context: options, clock and log of the server.
        accounts: its accounts; the system account carries what servers tell each other.

    Raises:
        ServerError: there is no system account, or no store directory.
    """

    def __init__(self, context: ServerContext, accounts: AccountRegistry) -> None:
        options = context.options
        if not options.has_system_account:
            raise ServerError("JetStream in a cluster needs a system account: remove no_system_account")
        if options.jetstream is None or options.jetstream.store_dir is None:
            raise ServerError("JetStream in a cluster needs a directory for its log: set jetstream.store_dir")
        self._context = context
        self._accounts = accounts
        self._apis: dict[str, ClusterApi] = {}
        self._service: JetStreamService | None = None
        self._replication: ReplicationService | None = None
        self._effects: list[tuple[MetaEffect, bool, bool]] = []
        self._removals = RecentTickets()  # of requests to delete a consumer
        self._is_scheduled = False
        self._is_closed = False
        self._monotonic = time.monotonic_ns
        self._leads_since = 0
        self._led: set[tuple[str, str]] = set()  # streams that this server leads
        self._events: list[Callable[[], None]] = []
        self._advise: ClusterEvents | None = None
        self._reads_changed = False
        self._reads_at = 0  # when to look again which replicas are current
        self._timer: asyncio.TimerHandle | None = None
        self._executor: LoopExecutor | None = None
        self._disk: Disk = LOCAL_DISK
        self._leaving_tickets: dict[str, bytes] = {}
        self._loop = asyncio.get_running_loop()
        self._count_peers: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.own_peer = short_hash(context.server_name)
        self.meta = MetaReplica(self, self.own_peer, context.clock, time.monotonic_ns)
        self.watch: PeerWatch | None = None
        self.members: MetaMembers | None = None
        self.groups: StreamGroups | None = None
        self.sights: ClusterSights | None = None
        self.supervisor: StreamSupervisor | None = None
        self.duties: AssetDuties | None = None
        self.gathering: InfoGathering | None = None
        self.adoption: StandaloneAdoption | None = None
        self.restores: ClusterRestores | None = None
        self.administration: ClusterAdministration | None = None

    # --- life -----------------------------------------------------------------------------------

    def api(self, engine: JetStreamEngine) -> ClusterApi:
        """Serves the API of an engine."""
        made = self._apis[engine.config.account] = ClusterApi(engine, self, engine.requests)
        if self.groups is not None:  # after a reload there may be streams of this account
            self._remove_leftovers(engine.config.account)
            self._review()
        return made

    def end_account(self, account: str) -> None:
        """An account is about to lose JetStream on this server: its replicas stop here, and their files stay.
        They begin again when it has JetStream again."""
        self._apis.pop(account, None)
        if self.groups is None:
            return
        for key in [key for key in self.groups.groups if key[0] == account]:
            self._led.discard(key)
            self.groups.close(*key, remove=False, gone=self._review)

    def _review(self) -> None:
        if self.supervisor is not None:
            self.supervisor.review()
            self._schedule()

    def setup(
        self, service: JetStreamService, count_peers: Callable[[], tuple[int, int]]
    ) -> ReplicationSetup:
        """What the replication service needs. count_peers: returns how many servers there are routes to, and
        how many of them have replicated groups."""
        self._service, self._count_peers = service, count_peers
        self._disk = service.disk
        options = self._context.options.jetstream
        assert options is not None
        directory = self._directory()
        directory.mkdir(parents=True, exist_ok=True)
        self._keep_files_without_log(service, directory)
        replication = ReplicationOptions()
        if not options.sync_replicas:
            raft = RaftOptions(write_first_bytes_max=WRITE_FIRST_BYTES_MAX)
            interval_ns = options.sync_interval_ns
            replication = ReplicationOptions(raft, sync_always=False, sync_interval_ns=interval_ns)
        how = "is on the disks of a majority"
        if not options.sync_replicas:
            how = f"a majority has written; syncs follow every {format_duration(options.sync_interval_ns)}"
        self._context.log.info(f"Replicated streams acknowledge what {how}")
        return ReplicationSetup(directory / LOG_DIRECTORY, self._opened, replication, self._disk)

    def _keep_files_without_log(self, service: JetStreamService, directory: Path) -> None:
        try:
            if not lost_log.has_log(self._disk, directory / LOG_DIRECTORY):
                engines = service.running.items()
                own = {(account, name) for account, engine in engines for name in engine.table.standalone}
                lost_log.set_aside(service.store, self._disk, directory, own, self._context.log)
        except (StoreError, OSError) as error:
            raise ServerError(f"files of streams without a log cannot be kept: {error}") from error

    def _directory(self) -> Path:
        options = self._context.options.jetstream
        assert options is not None
        assert options.store_dir is not None
        return Path(options.store_dir) / "jetstream"

    def _call_later(self, delay_ns: int, call: Callable[[], None]) -> None:
        if not self._is_closed:
            self._loop.call_later(delay_ns / 1e9, faults.contain, call, self._failed)

    def _opened(self, replication: ReplicationService) -> None:
        """The log of the groups is open."""
        self._replication = replication
        node, log = replication.node, self._context.log
        account = self._accounts.open(self._context.options.system_account)
        self.watch = PeerWatch(account, self._presence, lambda: replication.linked, time.monotonic_ns)
        self._executor = LoopExecutor(self._loop)
        ports = StreamGroupPorts(
            node, self.engine_of, lambda: self.meta.tables.cluster_id,
            self._directory() / LOG_DIRECTORY / STATE_DIRECTORY, self._disk, self._executor, self._call_later,
        )  # fmt: skip
        self.groups = StreamGroups(ports, self)
        for one in list(self._engines()):
            self._remove_leftovers(one)
        self.supervisor = StreamSupervisor(
            self.groups, self.meta, self.engine_of, node.name, lambda: replication.linked,
            time.monotonic_ns, log,
        )  # fmt: skip
        self.sights = ClusterSights(
            self.meta, self.groups, self.supervisor, node, lambda: replication.linked, self._context.clock
        )
        self.duties = AssetDuties(
            self.groups, self.meta, self.engine_of, self._answer, self._context.clock, time.monotonic_ns
        )
        self.adoption = StandaloneAdoption(self._engines, self.meta, time.monotonic_ns, log)
        self.restores = ClusterRestores(self.meta, time.monotonic_ns)
        self.gathering = InfoGathering(account, self.own_peer, self, self._loop.call_later)
        new_id = NuidGenerator(lambda n: int.from_bytes(os.urandom(16), "little") % n)
        system = Advisories(account.index, clock=self._context.clock, new_id=new_id)
        self._advise = ClusterEvents(system, self._advisories_of, self.name, self._context.clock)
        rescue = MetaRescue(
            self._context.server_name, self._context.server_id, lambda: self.meta.group, self._call_later,
            self._report_rescue, log,
        )  # fmt: skip
        self.administration = ClusterAdministration(account, self, self._context.clock, rescue)
        self.members = MetaMembers(node, self.meta, self.watch, self._presence, log, self._on_removed)
        self.members.open()
        self._on_timer()

    def _remove_leftovers(self, account: str) -> None:
        assert self.groups is not None
        faults.contain(self.groups.remove_leftovers, self._failed, account)

    def _advisories_of(self, account: str) -> Advisories | None:
        engine = self._service.engine(account) if self._service is not None else None
        return engine.advisories if engine is not None else None

    def close(self) -> None:
        """Ends everything that is timed."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self.watch is not None:
            self.watch.close()
        for part in (self.gathering, self.administration):
            if part is not None:
                part.close()
        if self.groups is not None:
            self.groups.stop()
        if self._executor is not None:
            self._executor.close()

    def _engines(self) -> Mapping[str, JetStreamEngine]:
        return self._service.running if self._service is not None else {}

    def engine_of(self, account: str) -> JetStreamEngine:
        """The engine of an account. Raises ServerError when it has no JetStream on this server."""
        engine = self._service.engine(account) if self._service is not None else None
        if engine is None:
            if self._accounts.operators is not None:
                self._accounts.operators.expect(account)
            raise ServerError(f"account {account!r} has no JetStream on this server")
        return engine

    # --- time -----------------------------------------------------------------------------------

    def _on_timer(self) -> None:
        if not self._is_closed:
            self._timer = self._loop.call_later(TICK_S, self._on_timer)
            self._work()

    def _schedule(self) -> None:
        if not self._is_scheduled and not self._is_closed:
            self._is_scheduled = True
            self._loop.call_soon(self._work)

    def _work(self) -> None:
        """Acts on what happened, then on what is due."""
        self._is_scheduled = False
        if self._is_closed or self.members is None:
            return
        assert self.watch is not None
        assert self.supervisor is not None
        assert self.duties is not None
        effects, self._effects = self._effects, []
        for effect, leads, is_own in effects:
            faults.contain(self._act, self._failed, effect, leads, is_own)
        events, self._events = self._events, []
        for event in events:
            faults.contain(event, self._failed)
        assert self.adoption is not None
        assert self.restores is not None
        steps = (
            self.watch.tick, self._tell_use, self.members.tick, self.adoption.tick, self.supervisor.tick,
            self.duties.tick, self.restores.tick, self.meta.tick,
        )  # fmt: skip
        for step in steps:
            faults.contain(step, self._failed)
        if self._reads_changed or self._monotonic() >= self._reads_at:
            self._serve_reads()
        if self._effects or self.supervisor.has_work or self.duties.has_work:
            self._loop.call_soon(self._schedule)

    def _tell_use(self) -> None:
        """Engines hear what their accounts use on other servers."""
        assert self.watch is not None
        if not self.watch.take_changed():
            return
        others = self.watch.others
        for account, engine in self._engines().items():
            engine.capacity.cluster_use.reported(row for one in others for row in one.led.get(account, ()))

    def _failed(self, error: Exception, *about: object) -> None:
        what = type(about[0]).__name__ if about else "JetStream of the cluster"
        faults.note(what, error)

    def _serve_reads(self) -> None:
        """A replica that is current takes its part of the direct gets from then on, as long as it has a
        state: also while the stream has no leader, or when it lags. Were it to stop then, all would stop at
        each change of the leader, and requests meanwhile would have no answer at all."""
        assert self.groups is not None
        self._reads_changed = False
        self._reads_at = self._monotonic() + READS_NS
        for (account, stream), group in self.groups.groups.items():
            api = self._apis.get(account)
            if api is not None and not api.serves_direct_gets(stream) and group.is_current:
                api.serve_direct_gets(stream)
        for account, api in self._apis.items():
            for stream in api.direct_streams:
                found = self.groups.find(account, stream)
                if found is None or not found.has_state:
                    api.stop_direct_gets(stream)

    # --- from the meta group (MetaListener) ---------------------------------------------------------

    def meta_changed(self, effects: list[MetaEffect], *, leads: bool, is_own: bool) -> None:
        self._effects += [(effect, leads, is_own) for effect in effects]
        self._schedule()

    def meta_request(self, request: bytes) -> None:
        passed = decode_passed(request)
        api = self._api_of(passed.account) if passed is not None else None
        if passed is not None and api is not None:
            self._events.append(partial(api.serve_passed, passed))
            self._schedule()

    def meta_gave_up(self, command: MetaCommand) -> None:
        self._answer_encoded(getattr(command, "ticket", b""), codes.CLUSTER_NOT_AVAIL)

    def meta_replaced(self) -> None:
        self._review()

    def meta_role_changed(self, *, leads: bool) -> None:
        self._leaving_tickets.clear()
        if leads and self.members is not None:
            self._leads_since = self._monotonic()
            self._events.append(self._report_meta_leader)
            self._context.log.info("JetStream cluster: this server is the meta leader")
            for command in self.members.resume_work():
                self.meta.propose(command)
        self._schedule()

    def meta_failed(self, why: str) -> None:
        self._context.log.error(f"JetStream meta layer is not running: {why}")

    def _act(self, effect: MetaEffect, leads: bool, is_own: bool) -> None:
        assert self.supervisor is not None
        assert self.duties is not None
        match effect:
            case Refused(ticket, error):
                # Meta leaders that follow each other may serve the same request. The second one finds nothing
                # to remove; the leader of the stream answers for the first one.
                if is_own and ticket not in self._removals:
                    self._answer_encoded(ticket, error)
            case Answered(ticket):
                if is_own:
                    self._confirm_success(ticket)
            case StreamEffect():
                if effect.action is AssetAction.REMOVED:
                    self._stop_direct_gets(effect.account, effect.stream)
                self.supervisor.stream_changed(effect)
                self.duties.stream_changed(effect)
            case ConsumerEffect():
                if effect.action is AssetAction.REMOVED and effect.ticket:
                    self._removals.add(effect.ticket)
                self.duties.consumer_changed(effect)
            case PeerEffect():
                self._peer_changed(effect, leads)
            case WorkLeft(command):
                if leads:
                    self.meta.propose(command)

    def _peer_changed(self, effect: PeerEffect, leads: bool) -> None:
        if effect.action is PeerAction.LEAVES and leads:
            self._leaving_tickets[effect.peer] = effect.ticket
        elif effect.action is PeerAction.GONE and leads:
            ticket = self._leaving_tickets.pop(effect.peer, b"")
            if ticket:
                self._confirm_success(ticket)

    def _on_removed(self, peer: str, member: str) -> None:
        self._context.log.info(f"JetStream cluster: server {member} is removed")

    # --- from stream groups (GroupWatcher) ----------------------------------------------------------

    def on_role(self, group: StreamGroup) -> None:
        """See GroupWatcher."""
        if self.supervisor is not None and self.duties is not None:
            self._reads_changed = True
            self._note_leading(group)
            self.supervisor.group_changed(group)
            self.duties.role_changed(group)
            self._schedule()

    def _note_leading(self, group: StreamGroup) -> None:
        """Advisories follow in the next iteration of the loop."""
        key = group.key
        if group.is_serving and key not in self._led:
            self._led.add(key)
            self._events.append(partial(self._report_leader, group))
        elif not group.is_serving and key in self._led:
            self._led.discard(key)
            if group.leader is None:
                self._events.append(partial(self._report_quorum, group))

    def _report_leader(self, group: StreamGroup) -> None:
        if self._advise is not None and self.sights is not None and group.is_serving:
            self._advise.stream_led(self.tables, *group.key, self.sights.of(group))

    def _report_quorum(self, group: StreamGroup) -> None:
        if self._advise is None or self._replication is None or self.sights is None or group.failure:
            return
        online = {*self._replication.linked, self._replication.node.name}
        if not group.port.membership.is_quorum(online):
            self._advise.quorum_lost(self.tables, *group.key, self.sights.of(group))

    def _report_meta_leader(self) -> None:
        if self._advise is not None and self.meta.is_serving:
            self._advise.meta_led(self.tables, self.meta_sight())

    def _report_rescue(self, quorums: tuple[int, int]) -> None:
        options = self._context.options.jetstream
        domain = options.domain if options is not None else ""
        if self._advise is not None:
            self._advise.meta_rescued(self._context.server_name, self._context.server_id, quorums, domain)

    def on_membership(self, group: StreamGroup) -> None:
        """See GroupWatcher."""
        if self.supervisor is not None:
            self.supervisor.group_changed(group)
            self._schedule()

    def on_failed(self, group: StreamGroup, text: str) -> None:
        """A replica failed. Soon after its creation, that is the answer to the request."""
        if self.duties is None:
            return
        error = codes.STREAM_GENERAL.format(err=text)
        for ticket in self.duties.lost_tickets(group.key, group.assignment.incarnation):
            incarnation = group.assignment.incarnation
            self.meta.submit(DeleteStream(*group.key, incarnation, error, ticket.encode()))

    def on_deferred(self, group: StreamGroup, request: PassedRequest) -> None:
        """See GroupWatcher."""
        api = self._api_of(group.key[0])
        if api is not None:
            self._events.append(partial(api.serve_deferred, group, request))
            self._schedule()

    def on_consumer_dropped(self, group: StreamGroup, name: str) -> None:
        """See GroupWatcher."""
        if self.duties is not None:
            self.duties.consumer_dropped(group.key, name)
            self._schedule()

    # --- answers --------------------------------------------------------------------------------

    def _api_of(self, account: str) -> ClusterApi | None:
        if account not in self._apis and self._service is not None:
            self._service.engine(account)
        return self._apis.get(account)

    def _answer(self, ticket: RequestTicket, response: Any) -> None:
        if self.administration is not None and ticket.verbs in ADMINISTRATION:
            self.administration.answer(ticket, response)
            return
        api = self._api_of(ticket.account)
        if api is not None:
            api.answer(ticket, response)

    def _answer_encoded(self, ticket: bytes, response: Any) -> None:
        decoded = decode_ticket(ticket)
        if decoded is not None:
            self._answer(decoded, response)

    def _confirm_success(self, ticket: bytes) -> None:
        decoded = decode_ticket(ticket)
        if decoded is not None and self.administration is not None and decoded.verbs in ADMINISTRATION:
            self.administration.confirm_success(decoded)
            return
        api = self._api_of(decoded.account) if decoded is not None else None
        if decoded is not None and api is not None:
            api.confirm_success(decoded)

    def _stop_direct_gets(self, account: str, stream: str) -> None:
        api = self._apis.get(account)
        if api is not None:
            api.stop_direct_gets(stream)

    # --- for the API (ClusterView) --------------------------------------------------------------------

    @property
    def tables(self) -> MetaTables:
        """The meta state."""
        return self.meta.tables

    def view(self, account: str, stream: str, consumer: str) -> RequestView:
        """See ClusterView."""
        meta = self.meta
        assignment = meta.tables.find_stream(account, stream) if stream else None
        asset = None
        if assignment is not None:
            group = self.find_group(account, stream)
            asset = asset_view(assignment, group, self.node, self.own_peer, meta.tables)
        has_consumer = bool(consumer) and consumer in meta.tables.consumers(account, stream)
        return RequestView(
            is_meta_leader=meta.is_serving,
            leaderless=meta.leader is None and not meta.is_serving and meta.leaderless_ns() >= LEADERLESS_NS,
            stream=asset,
            consumer=asset if has_consumer else None,
        )

    def origin(self, engine: JetStreamEngine, ticket: bytes) -> MetaRequest:
        """See ClusterView."""
        options = self._context.options
        assert options.jetstream is not None
        return MetaRequest(
            account=engine.config.account,
            clusters=(options.cluster_name,),
            engine=engine.config,
            unique_tag=options.jetstream.unique_tag,
            ha_streams_max=options.jetstream.ha_assets_max,
            ticket=ticket,
        )

    def propose(self, command: MetaCommand) -> bool:
        """See ClusterView."""
        return self.meta.request(command)

    def confirm(self, done: Callable[[], object], lost: Callable[[], object] = lambda: None) -> bool:
        """See ClusterView: exactly one of the two is called. A new leader waits a moment until the state
        knows the servers of its group."""
        is_asked = self.meta.confirm(lambda: self._when_known(done), lost)
        if not is_asked:
            lost()
        return is_asked

    @property
    def awaits_meta_leader(self) -> bool:
        """See ClusterView."""
        return self.meta.awaits_leader

    @property
    def is_new_meta_leader(self) -> bool:
        """See ClusterView."""
        return self.meta.is_serving and self._monotonic() - self._leads_since < KNOWN_NS

    def defer(self, account: str, request: ApiRequest) -> None:
        """See ClusterView."""
        self.meta.defer_request(encode_passed(account, request))

    def _when_known(self, done: Callable[[], object]) -> None:
        group, peers = self.meta.group, self.meta.tables.peers
        voters = group.membership.voters if group is not None else ()
        if self.is_new_meta_leader and any(peer_of(one) not in peers for one in voters):
            self.later(int(TICK_S * 1e9), lambda: self._when_known(done))
        else:
            done()

    def later(self, delay_ns: int, call: Callable[[], object]) -> None:
        """See ClusterView."""
        self._loop.call_later(delay_ns / 1e9, faults.contain, call, self._failed)

    def begin_restore(
        self, engine: JetStreamEngine, origin: MetaRequest, request: StreamConfigRequest
    ) -> TakeIn:
        """See ClusterView."""
        assert self.restores is not None
        return self.restores.begin(engine, origin, request)

    def find_group(self, account: str, stream: str) -> StreamGroup | None:
        """See ClusterView."""
        return self.groups.find(account, stream) if self.groups is not None else None

    def leader_peer(self, account: str, stream: str) -> str:
        """See ClusterView."""
        group = self.find_group(account, stream)
        return peer_of(group.leader) if group is not None and group.leader is not None else ""

    def usage(self, account: str) -> tuple[int, int]:
        """See ClusterView."""
        own = self._presence()
        others = self.watch.others if self.watch is not None else []
        used = [one.accounts.get(account, (0, 0)) for one in (own, *others)]
        return sum(memory for memory, _ in used), sum(storage for _, storage in used)

    def gather(
        self, account: str, stream: str, names: list[str], done: Callable[[dict[str, Any]], object]
    ) -> None:
        """See ClusterView."""
        assert self.gathering is not None
        self.gathering.gather(account, stream, names, done)

    # --- infos ----------------------------------------------------------------------------------

    def cluster_of(self, account: str, stream: str, consumer: str) -> ClusterInfo | None:
        """The `cluster` object of a stream or consumer."""
        return self.sights.cluster_of(account, stream, consumer) if self.sights is not None else None

    def alternates_of(self, account: str, stream: str, domain: str) -> list[StreamAlternate]:
        """The `alternates` of a stream."""
        return cluster_infos.stream_alternates(self.meta.tables, account, stream, domain)

    def meta_sight(self) -> GroupSight:
        """The meta group as this server sees it."""
        return self.sights.of_meta() if self.sights is not None else GroupSight(own=self.own_peer)

    @property
    def name(self) -> str:
        """Of the cluster."""
        return self._context.options.name_of_cluster

    @property
    def node(self) -> ReplicationNode | None:
        """The groups of this server; None before the log is open."""
        return self._replication.node if self._replication is not None else None

    # --- this server ------------------------------------------------------------------------------

    def _presence(self) -> Presence:
        assert self._replication is not None
        return own_presence(
            self._context, self._replication.node, self.meta, self._service, self._count_peers(),
            self.members.founders if self.members is not None else (),
        )  # fmt: skip
