"""`$JS.API.>` of an account on a server of a cluster.

Every server of the cluster gets every request; `jetstream.meta.request_routing` says which of them answers.
The leader of a stream's group answers as a server without a cluster does (jetstream/api). What is the meta
leader's is here: it checks a request and proposes a command, whose outcome is the answer.

Before the meta leader answers from its state, it confirms that it leads and has applied what was committed:
a client that was told of a new stream by its leader finds it.

A request for the meta leader that comes while it hands over, or while no leader is known, is held: the next
leader serves it, once, also when several servers held it. One for the leader of a stream waits at its group
(deferred_requests.py).

Direct gets have subscriptions of their own in a queue group, so that one replica answers each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import structs

from penstock import faults
from penstock.errors import JetStreamApiError, LeadershipLostError
from penstock.jetstream.api.api_table import ApiRequest, Endpoint, queue_of
from penstock.jetstream.api.consumer_requests import creation_name, expect_empty
from penstock.jetstream.api.service import ENDPOINTS, NO_RESPONDERS, PREFIX, TABLE, ApiService
from penstock.jetstream.api.stream_requests import config_request
from penstock.jetstream.api.stream_requests import info as stream_info
from penstock.jetstream.api.transfer_requests import begin_restore, restore_request
from penstock.jetstream.consumer import consumer_config
from penstock.jetstream.limits import LIST_PAGE, NAMES_PAGE
from penstock.jetstream.meta import meta_requests
from penstock.jetstream.meta.assignments import StreamAssignment
from penstock.jetstream.meta.meta_commands import (
    CancelMove,
    DeleteConsumer,
    DeleteStream,
    MetaCommand,
    PauseConsumer,
)
from penstock.jetstream.meta.meta_requests import MetaRequest
from penstock.jetstream.meta.request_routing import (
    RESPONDERS,
    Fail,
    RequestView,
    Responder,
    Serve,
    decide,
)
from penstock.jetstream.waiting import Queue, WaitingRequests
from penstock.kernels.log.queries import DirectGets, RequestsButDirectGets
from penstock.kernels.wire.dispatch import ServiceSink, publish
from penstock.kernels.wire.sinks import Sink, SinkSubscription
from penstock.protocol import acks, status
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    TYPE_PREFIX,
    AccountInfoResponse,
    ApiConsumerConfig,
    ApiError,
    ConsumerCreateRequest,
    ConsumerListResponse,
    ConsumerNamesResponse,
    ConsumerPauseRequest,
    ErrorResponse,
    LeaderStepDownRequest,
    PagedRequest,
    PeerRemoveRequest,
    StreamListResponse,
    StreamNamesRequest,
    StreamNamesResponse,
    StreamRestoreResponse,
    SuccessResponse,
)
from penstock.protocol.status import MESSAGE_NOT_FOUND
from penstock.protocol.subjects import overlaps
from penstock.server.replicated.account_infos import account_info
from penstock.server.replicated.confirmed_requests import ConfirmedRequests
from penstock.server.replicated.deferred_requests import ELECTION_NS, Confirmation
from penstock.server.replicated.request_tickets import (
    PassedRequest,
    RequestTicket,
    SeenRequests,
    passed_request,
    success_of,
    ticket_of,
)

if TYPE_CHECKING:
    from penstock.jetstream.engine import JetStreamEngine
    from penstock.jetstream.meta.meta_tables import MetaTables
    from penstock.jetstream.restore import TakeIn
    from penstock.protocol.api import StreamConfigRequest
    from penstock.server.replicated.stream_group_owner import StreamGroup

QUEUE = b"_sys_"
ACK_PREFIX = acks.PREFIX.encode()
STREAM_LED = frozenset(
    (
        Responder.STREAM_INFO,
        Responder.STREAM,
        Responder.STREAM_ONLY,
        Responder.CONSUMER_INFO,
        Responder.CONSUMER,
        Responder.CONSUMER_ONLY,
    )
)
READING = frozenset(("STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.INFO"))
"""What cannot be confirmed any more is read again at the next leader, and what comes during an election waits
for it. What a change did is committed."""
META_LED = frozenset((Responder.META, Responder.META_ACCOUNT, Responder.META_SYSTEM))


def _nothing() -> None:
    """Who asks for what no server has gets no answer from a server that cannot be sure."""


class ClusterView(Protocol):
    """What the API uses of the cluster's part of the server."""

    @property
    def tables(self) -> MetaTables:
        """The meta state."""

    def view(self, account: str, stream: str, consumer: str) -> RequestView:
        """What this server knows about a request. "" for a request without such a name."""

    def origin(self, engine: JetStreamEngine, ticket: bytes) -> MetaRequest:
        """A request for the meta leader."""

    def propose(self, command: MetaCommand) -> bool:
        """Proposes a command at the meta group, which this server leads. False: it was not taken."""

    def confirm(self, done: Callable[[], object], lost: Callable[[], object] = ...) -> bool:
        """Calls `done` when the meta state is current, `lost` when this server cannot say so any more."""

    @property
    def awaits_meta_leader(self) -> bool:
        """Whether this server knows no meta leader."""

    @property
    def is_new_meta_leader(self) -> bool:
        """Whether this server leads the meta group since a moment: others may have held requests for it."""

    def defer(self, account: str, request: ApiRequest) -> None:
        """Keeps a request for the next meta leader, for a moment."""

    def later(self, delay_ns: int, call: Callable[[], object]) -> None:
        """Calls after a time."""

    def begin_restore(
        self, engine: JetStreamEngine, origin: MetaRequest, request: StreamConfigRequest
    ) -> TakeIn:
        """Checks a restore; returns what takes its stream in. Raises JetStreamApiError."""

    def find_group(self, account: str, stream: str) -> StreamGroup | None:
        """The group of a stream on this server."""

    def leader_peer(self, account: str, stream: str) -> str:
        """The peer id of the leader of a stream's group, as far as this server knows; "" for none."""

    def usage(self, account: str) -> tuple[int, int]:
        """Bytes of an account in memory and on disk, on all servers together."""

    def gather(
        self,
        account: str,
        stream: str,
        names: list[str],
        done: Callable[[dict[str, Any]], object],
    ) -> None:
        """Asks the leaders for infos of streams (stream ""), or of consumers of one; calls
        done({name: encoded info}) with those that came in time."""


class ClusterApi(ApiService):
    """Serves the API of one engine. cluster: the cluster's part of the server. waiting: the server's queues
    of requests."""

    def __init__(self, engine: JetStreamEngine, cluster: ClusterView, waiting: WaitingRequests) -> None:
        self._direct: dict[str, list[SinkSubscription]] = {}
        super().__init__(engine)
        self._direct_gets = DirectGets(
            self._on_direct_get,
            self._apply_pending,
            engine,
            engine.index,
            MESSAGE_NOT_FOUND.block(),
            len(PREFIX),
        )
        self._cluster = cluster
        self._account = engine.config.account
        self._seen = SeenRequests()
        self._confirmed = ConfirmedRequests(cluster, waiting, partial(faults.note, "a request"))
        handlers: dict[str, Callable[[ApiRequest], Any]] = {
            "INFO": self._account_info,
            "STREAM.CREATE": self._create_stream,
            "STREAM.UPDATE": self._update_stream,
            "STREAM.DELETE": self._delete_stream,
            "STREAM.NAMES": self._stream_names,
            "STREAM.LIST": self._stream_list,
            "STREAM.RESTORE": self._restore_stream,
            "STREAM.PEER.REMOVE": self._remove_peer,
            "STREAM.PEER.EVACUATE": self._remove_peer,
            "STREAM.CANCEL_MOVE": self._cancel_move,
            "CONSUMER.CREATE": self._create_consumer,
            "CONSUMER.DURABLE.CREATE": self._create_consumer,
            "CONSUMER.DELETE": self._delete_consumer,
            "CONSUMER.NAMES": self._consumer_names,
            "CONSUMER.LIST": self._consumer_list,
            "CONSUMER.PAUSE": self._pause_consumer,
            "CONSUMER.PEER.REMOVE": self._remove_consumer_peer,
            "CONSUMER.PEER.EVACUATE": self._remove_consumer_peer,
        }
        led = {"STREAM.LEADER.STEPDOWN": self._step_down, "CONSUMER.LEADER.STEPDOWN": self._step_down}
        self._meta = {verbs: self._endpoint(verbs, handler) for verbs, handler in handlers.items()}
        self._led = {verbs: self._endpoint(verbs, handler) for verbs, handler in led.items()}

    @staticmethod
    def _endpoint(verbs: str, handler: Callable[[ApiRequest], Any]) -> Endpoint:
        return structs.replace(ENDPOINTS[verbs], handler=lambda _, request: handler(request))

    # --- subscriptions --------------------------------------------------------------------------

    def _new_sink(self) -> ServiceSink:
        """Direct gets have subscriptions of their own, in a queue group."""
        return RequestsButDirectGets(self.on_request, self._apply_pending, self._direct)

    def stop(self) -> None:
        """Unsubscribes."""
        for name in self.direct_streams:
            self.stop_direct_gets(name)
        super().stop()

    def serve_direct_gets(self, stream: str) -> None:
        """This server's replica of a stream is current: it takes its part of the direct gets."""
        if stream in self._direct:
            return
        self._direct[stream] = [
            SinkSubscription(self._direct_gets, f"{PREFIX}DIRECT.GET.{stream}{rest}".encode(), queue=QUEUE)
            for rest in ("", ".>")
        ]
        for subscription in self._direct[stream]:
            self._engine.index.insert(subscription)

    def stop_direct_gets(self, stream: str) -> None:
        """This server does not answer direct gets of the stream any more."""
        for subscription in self._direct.pop(stream, ()):
            self._engine.index.remove(subscription)

    @property
    def direct_streams(self) -> list[str]:
        """The streams whose direct gets this server answers."""
        return list(self._direct)

    def serves_direct_gets(self, stream: str) -> bool:
        """Whether this server answers direct gets of the stream."""
        return stream in self._direct

    # --- requests -------------------------------------------------------------------------------

    def on_request(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        """Processes one request, or leaves it to another server."""
        text = subject.decode("utf-8", "surrogateescape")
        prefix = PREFIX if text.startswith(PREFIX) else self._prefixes[-1]
        endpoint, args = TABLE.find(text[len(prefix) :].split(".")) or (None, [])
        request = ApiRequest(text, args, reply, header, payload, origin)
        if endpoint is None:
            self._meet_nobody(request)
        elif endpoint.verbs == "DIRECT.GET":
            self._meet_direct_get(request)
        else:
            self._route(endpoint, request, is_current=False)

    def serve_passed(self, passed: PassedRequest) -> None:
        """Serves a request that waited for this server to lead, here or on another one, unless it came here
        as well."""
        if self._seen.is_new(passed.subject, passed.reply):
            self.on_request(passed.subject, passed.reply, passed.header, passed.payload, None)

    def _on_direct_get(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        text = subject.decode("utf-8", "surrogateescape")
        found = TABLE.find(text[len(PREFIX) :].split("."))
        if found is None:
            return
        endpoint, args = found
        if self._cluster.find_group(self._account, args[0]) is not None:
            self._serve(endpoint, ApiRequest(text, args, reply, header, payload, origin))
        else:  # the stream has just left this server, and others have it
            self.stop_direct_gets(args[0])
            publish(self._engine.index, subject, reply, header, payload)

    def _meet_direct_get(self, request: ApiRequest) -> None:
        """A direct get has its own subscribers if the stream has a replica; else the meta leader says so."""
        view = self._cluster.view(self._account, request.args[0], "")
        if view.is_meta_leader and view.stream is None:
            serve = partial(self._meet_nobody, request, unless=request.args[0])
            self._confirmed.add(serve, _nothing, Queue.INFO)

    def _meet_nobody(self, request: ApiRequest, unless: str = "") -> None:
        """No server has what is asked for: the meta leader answers as without subscribers. unless: a stream
        that there may be now."""
        view = self._cluster.view(self._account, unless, "")
        is_single = request.subject.partition(".API.")[2].startswith(NO_RESPONDERS)
        if is_single and view.is_meta_leader and view.stream is None and request.reply:
            self._send_no_responders(request)

    def _send_no_responders(self, request: ApiRequest) -> None:
        block = status.no_responders_block(request.subject)
        publish(self._engine.index, request.reply, b"", block, b"")

    def _view(self, endpoint: Endpoint, request: ApiRequest) -> RequestView:
        stream = request.args[0] if request.args else ""
        has_consumer = endpoint.verbs.startswith("CONSUMER.") and len(request.args) > 1
        view = self._cluster.view(self._account, stream, request.args[1] if has_consumer else "")
        if endpoint.verbs == "CONSUMER.CREATE" and (
            b'"direct"' in request.payload or b'"sourcing"' in request.payload
        ):
            view = structs.replace(view, reads_directly=_reads_directly(request))
        return view

    def _route(self, endpoint: Endpoint, request: ApiRequest, *, is_current: bool) -> None:
        """Acts as the routing decides. is_current: the meta state was confirmed after the request."""
        view = self._view(endpoint, request)
        if self._defer_at_group(endpoint, request, view):
            return
        if endpoint.verbs == "CONSUMER.MSG.NEXT":
            self._pull(endpoint, request, view, is_current=is_current)
            return
        decision = decide(endpoint.verbs, view)
        is_meta = endpoint.verbs in self._meta and not view.reads_directly
        if not isinstance(decision, (Serve, Fail)):
            if self._cluster.awaits_meta_leader and (is_meta or _is_unknown(endpoint, view)):
                self._cluster.defer(self._account, request)
            return
        is_from_meta = view.is_meta_leader and (is_meta or isinstance(decision, Fail))
        if is_from_meta and not is_current:
            self._note(request)
            self._confirmed.add(
                partial(self._route, endpoint, request, is_current=True),
                partial(self._defer, request),
                queue_of(endpoint),
            )
        elif isinstance(decision, Fail):
            if delay_ns := decision.after_ns or self._election_ns(request):
                self._cluster.later(delay_ns, partial(self._fail_later, endpoint, request))
            else:
                self._fail(endpoint, request, decision.error)
        elif is_meta:
            request.begin(self._engine.clock())
            self._try(self._meta[endpoint.verbs], request)
        elif endpoint.verbs in self._led:
            request.begin(self._engine.clock())
            self._try(self._led[endpoint.verbs], request)
        elif endpoint.verbs == "STREAM.INFO" and view.stream is not None and not view.stream.is_leader:
            self._show_own_state(endpoint, request)
        else:
            self._serve(endpoint, request)

    def _election_ns(self, request: ApiRequest) -> int:
        """How long to wait before an error: a leader that hands over got the request as well, and answers."""
        group = self._cluster.find_group(self._account, request.args[0]) if request.args else None
        return ELECTION_NS if group is not None and group.is_electing else 0

    def _note(self, request: ApiRequest) -> None:
        """Other servers may hold what a new meta leader got itself, and pass it on."""
        if self._cluster.is_new_meta_leader:
            self._seen.is_new(request.subject.encode("utf-8", "surrogateescape"), request.reply)
        else:
            self._seen.clear()

    def _defer(self, request: ApiRequest) -> None:
        """The leadership ended before the request could be served."""
        self._seen.clear()
        self._cluster.defer(self._account, request)

    def _defer_at_group(self, endpoint: Endpoint, request: ApiRequest, view: RequestView) -> bool:
        """Whether a request for the leader of a stream waits at its group. Pull requests at a leader that
        hands over do not: they get 409, as those that wait there."""
        responder = RESPONDERS.get(endpoint.verbs)
        if view.reads_directly:
            responder = Responder.STREAM_ONLY
        if responder not in STREAM_LED or endpoint.verbs in self._led or view.stream is None:
            return False
        group = self._cluster.find_group(self._account, request.args[0])
        if group is None or not group.is_changing:
            return False
        if endpoint.verbs == "CONSUMER.MSG.NEXT":
            is_deferred = group.defers_requests and not group.is_serving
        else:
            is_deferred = group.defers_requests or group.takes_late_requests
            # A change may have been made by the leader before; made again, it may undo what came after it.
            is_deferred |= group.is_electing and endpoint.verbs in READING
        passed = passed_request(self._account, request)
        if is_deferred:
            group.defer(passed)
        elif group.is_serving:
            group.is_first(passed, is_late=False)
        return is_deferred

    def serve_deferred(self, group: StreamGroup, deferred: PassedRequest) -> None:
        """Serves a request, or takes an ack, that waited for this server to lead the stream of a group."""
        if deferred.subject.startswith(ACK_PREFIX):
            subject, reply, header = deferred.subject, deferred.reply, deferred.header
            publish(self._engine.index, subject, reply, header, deferred.payload)
            return
        if group.is_first(deferred, is_late=True):
            self.on_request(deferred.subject, deferred.reply, deferred.header, deferred.payload, None)

    def _is_elsewhere(self, request: ApiRequest) -> bool:
        """Of a request that was this server's to answer, and waited behind another one of its client."""
        is_elsewhere = super()._is_elsewhere(request)
        group = self._cluster.find_group(self._account, request.args[0]) if is_elsewhere else None
        if group is not None:
            group.defer(passed_request(self._account, request))
        return is_elsewhere

    def _refuse(self, endpoint: Endpoint, request: ApiRequest, error: Exception) -> None:
        group = self._cluster.find_group(self._account, request.args[0]) if request.args else None
        is_lost = isinstance(error, LeadershipLostError)
        # A purge removes what is left; another change is made again only when it certainly was not made.
        if group is not None and is_lost and (endpoint.verbs == "STREAM.PURGE" or group.applied_all):
            group.defer(passed_request(self._account, request))
        else:
            super()._refuse(endpoint, request, error)

    def _try(self, endpoint: Endpoint, request: ApiRequest) -> None:
        try:
            self._answer(endpoint, request)
        except Exception as error:  # noqa: BLE001  # costs this request, and nothing else
            self._answer_fault(error, endpoint, request)

    def _fail_later(self, endpoint: Endpoint, request: ApiRequest) -> None:
        decision = decide(endpoint.verbs, self._view(endpoint, request))
        if isinstance(decision, Fail):
            self._fail(endpoint, request, decision.error)

    def _fail(self, endpoint: Endpoint, request: ApiRequest, error: ApiError) -> None:
        response = ErrorResponse(type=TYPE_PREFIX + endpoint.response, error=error)
        self._report(endpoint, request, response, True)

    def _pull(self, endpoint: Endpoint, request: ApiRequest, view: RequestView, *, is_current: bool) -> None:
        consumer = view.consumer
        if consumer is not None and consumer.is_leader:
            self._serve(endpoint, request)
        elif consumer is not None and consumer.is_member and not consumer.has_leader and request.reply:
            self._send_no_responders(request)
        elif consumer is None and view.stream is not None and view.stream.is_leader:
            self._serve(endpoint, request)  # a consumer of a mirror or source, or none
        elif consumer is None and view.stream is None and view.is_meta_leader and request.reply:
            if is_current:
                self._send_no_responders(request)
            else:
                serve = partial(self._route, endpoint, request, is_current=True)
                self._confirmed.add(serve, _nothing, Queue.INFO)

    def _show_own_state(self, endpoint: Endpoint, request: ApiRequest) -> None:
        """The group of the stream has no leader: each member shows what it has."""
        request.begin(self._engine.clock())
        try:
            steps = stream_info(self._engine, request)
            while True:
                next(steps)
        except StopIteration as end:
            self._report(endpoint, request, end.value, False)
        except JetStreamApiError as error:
            self._report(endpoint, request, self._refusal(endpoint, request, error), True)

    def _conclude(
        self, endpoint: Endpoint, request: ApiRequest, response: Any, *, failed: bool = False
    ) -> None:
        if response is None:
            return
        # No read can be confirmed while the leadership is handed over. The chunks of a snapshot follow its
        # response, and would overtake one that waits.
        if endpoint.verbs in self._led or endpoint.verbs == "STREAM.SNAPSHOT":
            self._report(endpoint, request, response, failed)
            return
        if endpoint.verbs in self._meta and RESPONDERS[endpoint.verbs] in META_LED:
            group = self._cluster.find_group(self._account, request.args[0]) if request.args else None
            if endpoint.verbs != "CONSUMER.CREATE" or group is None or not group.is_serving:
                self._report(endpoint, request, response, failed)
                return
        replica = self._engine.replicated.find(request.args[0]) if request.args else None
        group = self._cluster.find_group(self._account, request.args[0]) if request.args else None
        if replica is None or group is None:
            super()._conclude(endpoint, request, response, failed=failed)
            return
        report = partial(self._report, endpoint, request, response, failed)
        again = partial(group.defer, passed_request(self._account, request))
        lost = again if endpoint.verbs in READING else report
        if group.defers_requests:  # nothing that is submitted now will be proposed, nor a read be confirmed
            lost()
            return
        replica.commands.when_confirmed(Confirmation(report, lost))

    def answer(self, ticket: RequestTicket, response: Any) -> None:
        """Answers the request of a ticket. response: a struct, or an ApiError."""
        endpoint, request = ENDPOINTS[ticket.verbs], ticket.request()
        is_error = isinstance(response, ApiError)
        if is_error:
            response = ErrorResponse(type=TYPE_PREFIX + endpoint.response, error=response)
        self._report(endpoint, request, response, is_error)

    def confirm_success(self, ticket: RequestTicket) -> None:
        """The command of a ticket succeeded, and there is nothing to show."""
        self.answer(ticket, success_of(ticket))

    # --- what the meta leader does ----------------------------------------------------------------

    def _propose(self, command: MetaCommand) -> None:
        if not self._cluster.propose(command):
            raise codes.CLUSTER_NOT_AVAIL.exception()

    def _origin(self, verbs: str, request: ApiRequest) -> MetaRequest:
        return self._cluster.origin(self._engine, ticket_of(self._account, verbs, request))

    def _account_info(self, request: ApiRequest) -> AccountInfoResponse:
        usage = self._cluster.usage(self._account)
        assets = self._cluster.tables.assets(self._account)
        return account_info(self._engine.capacity, self._engine.config, assets, usage)

    def _create_stream(self, request: ApiRequest) -> None:
        body = config_request(request)
        self._propose(meta_requests.create_stream(self._origin("STREAM.CREATE", request), body))

    def _update_stream(self, request: ApiRequest) -> None:
        body = config_request(request, name_first=True)
        origin = self._origin("STREAM.UPDATE", request)
        self._propose(meta_requests.update_stream(self._cluster.tables, origin, body))

    def _restore_stream(self, request: ApiRequest) -> StreamRestoreResponse:
        wanted = restore_request(request)
        take_in = self._cluster.begin_restore(self._engine, self._origin("STREAM.RESTORE", request), wanted)
        return begin_restore(self._engine, request, wanted, take_in)

    def _delete_stream(self, request: ApiRequest) -> None:
        if not request.is_empty:
            raise codes.NOT_EMPTY_REQUEST.exception()
        ticket = ticket_of(self._account, "STREAM.DELETE", request)
        self._propose(DeleteStream(self._account, request.args[0], ticket=ticket))

    def _cancel_move(self, request: ApiRequest) -> None:
        ticket = ticket_of(self._account, "STREAM.CANCEL_MOVE", request)
        self._propose(CancelMove(self._account, request.args[0], ticket))

    def _remove_peer(self, request: ApiRequest) -> None:
        verbs = ".".join(request.subject[len(PREFIX) :].split(".")[:3])
        body = request.body(PeerRemoveRequest)
        origin = self._origin(verbs, request)
        self._propose(meta_requests.remove_from_stream(origin, request.args[0], body))

    def _remove_consumer_peer(self, request: ApiRequest) -> None:
        stream, consumer = request.args
        raise meta_requests.check_consumer_removal(
            self._cluster.tables, self._account, stream, consumer, request.body(PeerRemoveRequest)
        )

    def _create_consumer(self, request: ApiRequest) -> None:
        body = request.body(ConsumerCreateRequest)
        is_durable = request.subject.startswith(f"{PREFIX}CONSUMER.DURABLE.")
        self._cluster.tables.stream(self._account, request.args[0])
        name = creation_name(request, body, is_durable=is_durable)
        verbs = "CONSUMER.DURABLE.CREATE" if is_durable else "CONSUMER.CREATE"
        origin = self._origin(verbs, request)
        self._propose(meta_requests.create_consumer(self._cluster.tables, origin, name, body))

    def _delete_consumer(self, request: ApiRequest) -> None:
        expect_empty(request)
        stream, consumer = request.args
        ticket = ticket_of(self._account, "CONSUMER.DELETE", request)
        self._propose(DeleteConsumer(self._account, stream, consumer, ticket=ticket))

    def _pause_consumer(self, request: ApiRequest) -> None:
        stream, name = request.args
        body = request.optional_body(ConsumerPauseRequest)
        tables = self._cluster.tables
        present = tables.consumer(self._account, stream, name)
        asked = structs.replace(present.config, pause_until=body.pause_until)
        config = consumer_config.checked(asked, tables.stream(self._account, stream).config, self._config)
        ticket = ticket_of(self._account, "CONSUMER.PAUSE", request)
        self._propose(PauseConsumer(self._account, stream, name, config.pause_until, ticket))

    @property
    def _config(self) -> Any:
        return self._engine.config

    # --- lists ----------------------------------------------------------------------------------

    def _streams(self, request: ApiRequest, limit: int) -> tuple[list[StreamAssignment], int, int]:
        """A page of streams in order of names: (streams, offset, total)."""
        body = request.optional_body(StreamNamesRequest)
        streams = self._cluster.tables.assets(self._account).streams
        chosen = [
            one
            for _, one in sorted(streams.items())
            if not body.subject or any(overlaps(body.subject, subject) for subject in one.config.subjects)
        ]
        offset = min(max(0, body.offset), len(chosen))
        return chosen[offset : offset + limit], offset, len(chosen)

    def _stream_names(self, request: ApiRequest) -> StreamNamesResponse:
        page, offset, total = self._streams(request, NAMES_PAGE)
        return StreamNamesResponse(total=total, offset=offset, streams=[one.name for one in page])

    def _stream_list(self, request: ApiRequest) -> None:
        page, offset, total = self._streams(request, LIST_PAGE)
        names = [one.name for one in page]

        def done(infos: dict[str, Any]) -> None:
            found = [infos[name] for name in names if name in infos]
            missing = [name for name in names if name not in infos]
            response = StreamListResponse(total=total, offset=offset, streams=found, missing=missing)
            self._report(self._meta["STREAM.LIST"], request, response, False)

        self._cluster.gather(self._account, "", names, done)

    def _consumers(self, request: ApiRequest, limit: int) -> tuple[list[str], int, int]:
        tables, stream = self._cluster.tables, request.args[0]
        tables.stream(self._account, stream)
        names = sorted(tables.consumers(self._account, stream))
        offset = min(max(0, request.optional_body(PagedRequest).offset), len(names))
        return names[offset : offset + limit], offset, len(names)

    def _consumer_names(self, request: ApiRequest) -> ConsumerNamesResponse:
        page, offset, total = self._consumers(request, NAMES_PAGE)
        return ConsumerNamesResponse(total=total, offset=offset, limit=NAMES_PAGE, consumers=page)

    def _consumer_list(self, request: ApiRequest) -> None:
        names, offset, total = self._consumers(request, LIST_PAGE)

        def done(infos: dict[str, Any]) -> None:
            found = [infos[name] for name in names if name in infos]
            missing = [name for name in names if name not in infos]
            response = ConsumerListResponse(
                total=total, offset=offset, limit=LIST_PAGE, consumers=found, missing=missing
            )
            self._report(self._meta["CONSUMER.LIST"], request, response, False)

        self._cluster.gather(self._account, request.args[0], names, done)

    # --- what the leader of a group does ------------------------------------------------------------

    def _step_down(self, request: ApiRequest) -> SuccessResponse:
        body = request.optional_body(LeaderStepDownRequest)
        group = self._cluster.find_group(self._account, request.args[0])
        tables = self._cluster.tables
        stream = tables.stream(self._account, request.args[0])
        if group is None:
            raise codes.CLUSTER_NOT_AVAIL.exception()
        verbs = "STREAM" if len(request.args) == 1 else "CONSUMER"
        own = self._cluster.leader_peer(self._account, stream.name)
        wanted = meta_requests.stream_step_down(tables, stream, own, body)
        record = tables.peers.get(wanted) if wanted is not None else None
        if len(group.port.membership.voters) > 1:
            group.port.step_down(record.member if record is not None else None)
        kind = f"{TYPE_PREFIX}{verbs.lower()}_leader_stepdown_response"
        return SuccessResponse(type=kind, success=True)


def _is_unknown(endpoint: Endpoint, view: RequestView) -> bool:
    """Whether a request is about an asset that is not assigned, which is for the meta leader to say."""
    responder = RESPONDERS.get(endpoint.verbs)
    if responder in (Responder.CONSUMER, Responder.CONSUMER_INFO):
        return view.consumer is None
    return responder in (Responder.STREAM, Responder.STREAM_INFO) and view.stream is None


def _reads_directly(request: ApiRequest) -> bool:
    """Whether a request creates a consumer for a mirror or source, which is no asset of the cluster."""
    try:
        config: ApiConsumerConfig = request.body(ConsumerCreateRequest, is_strict=False).config
    except JetStreamApiError:
        return False
    return config.direct or config.sourcing
