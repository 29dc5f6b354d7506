"""`$JS.API.META.>`, `SERVER.>` and `ACCOUNT.>` of the system account: administration of a cluster.

The meta leader answers, the others are silent; every server answers META.RESCUE.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock import faults
from penstock.errors import JetStreamApiError
from penstock.jetstream.api.api_table import ApiRequest, ApiTable, Endpoint
from penstock.jetstream.meta import meta_requests
from penstock.jetstream.meta.meta_commands import CancelMove, EvacuateServer, PurgeAccount, RemoveServer
from penstock.jetstream.meta.peer_assigning import WORK
from penstock.jetstream.meta.request_routing import RequestView, Serve, decide
from penstock.protocol import error_codes as codes
from penstock.protocol.api import (
    TYPE_PREFIX,
    AccountPurgeResponse,
    ApiError,
    ErrorResponse,
    LeaderStepDownRequest,
    ServerRemoveRequest,
    StreamMoveRequest,
    SuccessResponse,
    encode,
)
from penstock.server.replicated.cluster_sights import peer_of
from penstock.server.replicated.meta_rescue import MetaRescue
from penstock.server.replicated.request_tickets import RequestTicket, ticket_of

if TYPE_CHECKING:
    from penstock.kernels.wire.sinks import Sink, SinkSubscription
    from penstock.routing.account import Account
    from penstock.server.replicated.cluster_jetstream import ClusterJetStream

PREFIX = "$JS.API."
_VERBS = (
    ("META.LEADER.STEPDOWN", 0, "meta_leader_stepdown_response"),
    ("META.RESCUE", 0, "meta_rescue_response"),
    ("SERVER.REMOVE", 0, "meta_server_remove_response"),
    ("SERVER.EVACUATE", 0, "meta_server_evacuate_response"),
    ("ACCOUNT.PURGE", 1, "account_purge_response"),
    ("ACCOUNT.STREAM.MOVE", 2, "stream_update_response"),
    ("ACCOUNT.STREAM.CANCEL_MOVE", 2, "stream_cancel_move_response"),
)


def _nothing(_: object, request: ApiRequest) -> None:
    """The handlers are in ClusterAdministration."""


ADMINISTRATION = {verbs: Endpoint(verbs, args, args, response, _nothing) for verbs, args, response in _VERBS}
_TABLE = ApiTable(ADMINISTRATION.values())


class ClusterAdministration:
    """Serves these requests in the system account."""

    def __init__(
        self, account: Account, cluster: ClusterJetStream, clock: Callable[[], int], rescue: MetaRescue
    ) -> None:
        self._account = account
        self._cluster = cluster
        self._clock = clock
        self._handlers: dict[str, Callable[[ApiRequest], Any]] = {
            "META.LEADER.STEPDOWN": self._step_down,
            "META.RESCUE": lambda request: rescue.answer(request.payload, request.body),
            "SERVER.REMOVE": self._remove_server,
            "SERVER.EVACUATE": self._evacuate_server,
            "ACCOUNT.PURGE": self._purge_account,
            "ACCOUNT.STREAM.MOVE": self._move_stream,
            "ACCOUNT.STREAM.CANCEL_MOVE": self._cancel_move,
        }
        self._subscriptions: list[SinkSubscription] = [
            account.subscribe_service(f"{PREFIX}{part}.>".encode(), self._on_request)
            for part in ("META", "SERVER", "ACCOUNT")
        ]

    def close(self) -> None:
        """Takes no more requests."""
        for subscription in self._subscriptions:
            self._account.unsubscribe(subscription)

    def _on_request(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Sink | None
    ) -> None:
        text = subject.decode("utf-8", "surrogateescape")
        found = _TABLE.find(text[len(PREFIX) :].split("."))
        view = RequestView(is_meta_leader=self._cluster.meta.is_serving, is_system=True)
        if found is None or not isinstance(decide(found[0].verbs, view), Serve):
            return
        request = ApiRequest(text, found[1], reply, header, payload, origin)
        if found[0].verbs == "META.RESCUE":  # without a leader nothing can be confirmed
            faults.contain(self._serve, self._failed, found[0], request)
            return
        self._cluster.confirm(partial(faults.contain, self._serve, self._failed, found[0], request))

    def _failed(self, error: Exception, endpoint: Endpoint, request: ApiRequest) -> None:
        text = faults.describe(faults.note(f"request {request.subject!a}", error))
        self._respond(endpoint, request.reply, codes.STREAM_GENERAL.format(err=text))

    def _serve(self, endpoint: Endpoint, request: ApiRequest) -> None:
        request.begin(self._clock())
        try:
            response = self._handlers[endpoint.verbs](request)
        except JetStreamApiError as error:
            response = ApiError.from_exception(error)
        if response is not None:
            self._respond(endpoint, request.reply, response)

    def _respond(self, endpoint: Endpoint, reply: bytes, response: Any) -> None:
        if isinstance(response, ApiError):
            response = ErrorResponse(type=TYPE_PREFIX + endpoint.response, error=response)
        if reply:
            self._account.publish(reply, encode(response))

    def answer(self, ticket: RequestTicket, response: Any) -> None:
        """Answers the request of a ticket. response: a struct, or an ApiError."""
        self._respond(ADMINISTRATION[ticket.verbs], ticket.reply, response)

    def confirm_success(self, ticket: RequestTicket) -> None:
        """The command of a ticket succeeded, and there is nothing to show."""
        if ticket.verbs == "ACCOUNT.PURGE":
            self.answer(ticket, AccountPurgeResponse(initiated=True))
            return
        kind = TYPE_PREFIX + ADMINISTRATION[ticket.verbs].response
        self.answer(ticket, SuccessResponse(type=kind, success=True))

    # --- the requests ---------------------------------------------------------------------------

    def _ticket(self, request: ApiRequest, verbs: str) -> bytes:
        return ticket_of(self._account.name, verbs, request)

    def _propose(self, command: Any) -> None:
        if not self._cluster.propose(command):
            raise codes.CLUSTER_NOT_AVAIL.exception()

    def _step_down(self, request: ApiRequest) -> None:
        body = request.optional_body(LeaderStepDownRequest)
        group, tables = self._cluster.meta.group, self._cluster.tables
        assert group is not None
        voters = [peer_of(one) for one in group.membership.voters]
        wanted = meta_requests.meta_step_down(tables, voters, self._cluster.own_peer, body)
        record = tables.peers.get(wanted) if wanted is not None else None
        self._respond(
            ADMINISTRATION["META.LEADER.STEPDOWN"],
            request.reply,
            SuccessResponse(type=TYPE_PREFIX + "meta_leader_stepdown_response", success=True),
        )
        group.step_down(record.member if record is not None else None)

    def _remove_server(self, request: ApiRequest) -> None:
        peer = meta_requests.find_server(self._cluster.tables, request.body(ServerRemoveRequest))
        self._propose(RemoveServer(peer, self._ticket(request, "SERVER.REMOVE")))

    def _evacuate_server(self, request: ApiRequest) -> None:
        peer = meta_requests.find_server(self._cluster.tables, request.body(ServerRemoveRequest))
        self._propose(EvacuateServer(peer, self._ticket(request, "SERVER.EVACUATE")))

    def _purge_account(self, request: ApiRequest) -> None:
        self._propose(PurgeAccount(request.args[0], WORK, self._ticket(request, "ACCOUNT.PURGE")))

    def _move_stream(self, request: ApiRequest) -> None:
        account, stream = request.args
        engine = self._cluster.engine_of(account)
        origin = self._cluster.origin(engine, self._ticket(request, "ACCOUNT.STREAM.MOVE"))
        body = request.body(StreamMoveRequest)
        self._propose(meta_requests.move_stream(origin, account, stream, body))

    def _cancel_move(self, request: ApiRequest) -> None:
        account, stream = request.args
        self._propose(CancelMove(account, stream, self._ticket(request, "ACCOUNT.STREAM.CANCEL_MOVE")))
